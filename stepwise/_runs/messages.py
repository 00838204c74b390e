"""The messages in the inbox of a run, as people see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stepwise._execution.waits import Taken
from stepwise._journal.inbox import Inbox, Message
from stepwise._journal.journal import Position, read_entries
from stepwise._journal.projection import met_messages
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._runs.checkpoints import newest_checkpoint
from stepwise._runtime.public_names import public
from stepwise.stores import Store

__all__ = ["InboxMessage", "messages_of"]


@public
@dataclass(frozen=True)
class InboxMessage:
    """A message that was sent to a run.

    Args:
        number: its place in the inbox, from 1.
        kind: a signal, the answer to a question of the run, or a request to cancel it.
        name: of the signal.
        value: of a signal: its value, as plain data; of an answer: whether it is a yes.
        key: what the sender gave, so that it is one message however often it is sent; or ``None``.
        note: what the person said about an answer or a request.
        by: who sent it, as the sending process knows it (``user@host``).
        at: when, in seconds since 1970.
        status: ``kept`` until a call of the run meets it; then ``taken`` or ``refused``.
        step: the number of the call that met it; of an answer, of the call that it is for.
        why: it was refused.
    """

    number: int
    kind: Literal["signal", "answer", "cancel"]
    name: str
    value: Any
    key: str | None
    note: str
    by: str
    at: float
    status: Literal["kept", "taken", "refused"]
    step: int | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return its fields as plain data, for JSON."""
        return dict(vars(self))


def messages_of(store: Store, seal: Seal, facts: RunFacts) -> list[InboxMessage]:
    """Return what was sent to a run, in the order in which it came."""
    inbox = Inbox(store, seal, facts.run_id)
    found = inbox.look(tolerant=True)
    if not found:
        return []
    met = met_messages(read_entries(store, seal, facts.run_id, Position(facts.pruned, None)))
    if facts.pruned:  # a checkpoint says what the pruned records did
        newest = newest_checkpoint(store, seal, facts.run_id)
        taken = Taken(newest.state.taken if newest is not None else {})
        met |= {each.number: (0, "") for each in found if each in taken and each.number not in met}
    return [_shown(each, met.get(each.number)) for each in found]


def _shown(message: Message, met: tuple[int, str] | None) -> InboxMessage:
    step, why = met or (message.step, "")
    signal = message.kind == "signal"
    return InboxMessage(
        message.number,
        message.kind,  # type: ignore[arg-type]  # what was given up is no message
        message.name if signal else "",
        message.load() if signal else message.approved if message.kind == "answer" else None,
        message.key or None,
        message.note,
        message.by,
        message.at,
        "kept" if met is None else "refused" if why else "taken",
        step or None,
        why,
    )
