"""Messages to a run from outside: signals and requests to cancel, and the run's inbox."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any, Literal

from stepwise import errors
from stepwise._execution.active_run import branch_around, cancelled_error, current_scope, live_runs
from stepwise._execution.waits import Taken
from stepwise._journal.journal import Journal, Position, entries_of, facts_of
from stepwise._journal.lease import Lease
from stepwise._journal.logs import Bell, Inbox, Message, MessageKind
from stepwise._journal.persons import this_person
from stepwise._journal.projection import Calls, met_messages
from stepwise._journal.records import OVER, Cancelling, Ended, RunFacts
from stepwise._journal.run_facts import Questions, asked_by
from stepwise._journal.seal import Seal
from stepwise._journal.summary import open_waits
from stepwise._runs.steps import facts_to_go_on, gone, newest_checkpoint
from stepwise._runtime.facts import PlainFacts, public
from stepwise._runtime.messages import notice, reports, shell_word
from stepwise._runtime.options import check_signal
from stepwise._values.codec import encode_error
from stepwise._values.data import json_bytes, misfit, plain
from stepwise._values.preview import Secrets, preview
from stepwise.stores import Store

# -- messages -------------------------------------------------------------------------------------


@public
@dataclass(frozen=True)
class InboxMessage(PlainFacts):
    """A message that was sent to a run.

    Args:
        number: its place in the inbox, from 1.
        kind: a signal, the answer to a question of the run, or a request to cancel the run.
        name: of the signal.
        value: of a signal: its value, as plain data; of an answer: whether it is a yes.
        key: the sender's key, which makes repeated sends one message; or ``None``.
        note: the person's comment on an answer or a request.
        by: the sender, as the sending process knows it (``user@host``).
        at: the time, in seconds since 1970.
        status: ``kept`` until a call of the run meets the message; then ``taken`` or ``refused``.
        step: the number of the call that met the message; for an answer, of the call that asked.
        why: the reason for a refusal.
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


def messages_of(store: Store, seal: Seal, facts: RunFacts) -> list[InboxMessage]:
    """Return the messages to a run, in the order of their arrival."""
    inbox = Inbox(store, seal, facts.run_id)
    found = inbox.look(tolerant=True)
    if not found:
        return []
    met = met_messages(entries_of(store, seal, facts))
    if facts.pruned:  # a checkpoint knows which messages the pruned records took
        newest = newest_checkpoint(store, seal, facts.run_id)
        taken = Taken(newest.state.taken if newest is not None else {})
        met |= {each.number: (0, "") for each in found if each in taken and each.number not in met}
    return [_shown(each, met.get(each.number)) for each in found]


def untaken(store: Store, seal: Seal, run_id: str, taken: Taken) -> list[str]:
    """Return the signals to a run that the run has not taken, as text."""
    return [
        f"the signal {each.name!r} (message {each.number})"
        for each in Inbox(store, seal, run_id).look(tolerant=True)
        if each.kind == "signal" and each not in taken
    ]


def unacted(store: Store, seal: Seal, facts: RunFacts) -> list[str]:
    """Return the messages, answers included, on which a run has not acted yet, as text."""
    entries = [*entries_of(store, seal, facts)]
    kept = {each.number for each in messages_of(store, seal, facts) if each.status == "kept"}
    asked = Questions(entries)
    tickets = {asked.asked[number].waiting.ticket for number in asked.open}
    found = []
    for each in Inbox(store, seal, facts.run_id).look(tolerant=True):
        if each.number in kept and each.kind == "signal":
            found.append(f"the signal {each.name!r} (message {each.number})")
        elif each.number in kept and each.kind == "answer" and each.name in tickets:
            found.append(f"the answer to step {each.step} (message {each.number})")
    yes = (each for each in Calls(entries) if each.answer is not None and each.answer.approved)
    return [*found, *(f"the yes to step {each.call.number} ({each.call.name})" for each in yes)]


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


# -- sending --------------------------------------------------------------------------------------


LARGEST = 16_000_000  # bytes of JSON; the waiting process holds all messages in memory


def send(store: Store, seal: Seal, run_id: str, name: str, value: Any, key: str | None) -> int:
    """Put a signal into a run's inbox; see :meth:`stepwise.Run.send`."""
    check_signal(name)
    if key is not None and not (isinstance(key, str) and key):
        raise errors.ConfigurationError(f"key is {key!r}; give a text, not empty, or leave it out")
    facts = facts_to_go_on(store, seal, run_id)
    run_id = facts.run_id
    data = _to_json(value, run_id, name)
    names = {each.name for each in facts.waits if each.kind == "signal"}
    if facts.status != "suspended" or name in names:  # else the journal need not be read
        waits = [call.wait for call in open_waits(store, seal, facts)]
        signals = [each for each in waits if each and each.kind == "signal"]
        schemas = {each.schema for each in signals if each.name == name}
        _check_schemas(schemas, run_id, name, data)
        names = {each.name for each in signals}
    number, before = deliver(store, seal, facts, "signal", name, data, key=key or "")
    if before is not None and before != data:
        _report_other_value(run_id, name, number, key)
    _report_near_name(run_id, name, names)
    return number


def refuse_in_branch(why: str) -> None:
    """Refuse what the code of a branch does to other runs, in its background and processes, too.

    Raises:
        ConfigurationError: the code of a branch does it.
    """
    scope = current_scope()
    branch = branch_around()
    if scope is not None:
        branch = scope.run.run_id if scope.run.is_branch else ""
    if branch:
        raise errors.ConfigurationError(
            f"run {branch!r} is a branch, and {why}: "
            "put the call into a tool with side_effect=True, which effects= of branch() answers"
        )


def deliver(
    store: Store,
    seal: Seal,
    facts: RunFacts,
    kind: MessageKind,
    name: str = "",
    value: bytes = b"",
    **more: Any,
) -> tuple[int, bytes | None]:
    """Put a message into the inbox of a run that has not ended, and ring its bell.

    Args:
        more: as of :meth:`stepwise._journal.logs.Inbox.post`.

    Returns:
        the number of the message; and the value of an earlier message with the same key, if any.

    Raises:
        RunEndedError: the run has completed, failed or been cancelled.
        RunNotFoundError: the run was deleted in the meantime.
    """
    refuse_ended(facts)
    refuse_in_branch(f"sends no message to run {facts.run_id!r}")
    inbox = Inbox(store, seal, facts.run_id)
    number = inbox.post(kind, name, value, **more)
    now = facts_of(store, seal, facts.run_id)
    if now is None:  # deleted since: clean up the inbox
        inbox.delete()
        raise gone(store, facts.run_id)
    if now.superseded:
        forward(store, seal, facts.run_id)
    Bell(store, seal).ring(facts.run_id)
    return number, next((each.value for each in inbox.messages if each.number == number), None)


def forward(store: Store, seal: Seal, run_id: str) -> None:
    """Send what a superseded run was sent to the branch that goes on instead, and wake that one."""
    branch = facts_to_go_on(store, seal, run_id).run_id
    Inbox(store, seal, run_id).forward_to(Inbox(store, seal, branch))
    Bell(store, seal).ring(branch)


def ended_error(facts: RunFacts) -> errors.RunEndedError:
    """Return the error for a message to a run that has ended."""
    return errors.RunEndedError(
        f"run {facts.run_id!r} has ended ({facts.status}), so nothing in it can take what is "
        f"sent to it. Look at it: stepwise show {shell_word(facts.run_id)}",
        run_id=facts.run_id,
        status=facts.status,
    )


def refuse_ended(facts: RunFacts) -> None:
    """Refuse an operation that needs an unfinished run.

    Raises:
        RunEndedError: the run has completed, failed or been cancelled.
    """
    if facts.status in OVER:
        raise ended_error(facts)


@reports
def _report_other_value(run_id: str, name: str, number: int, key: str | None) -> None:
    notice(
        f"message {number} of run {run_id!r} is a signal {name!r} with the key {key!r} and another "
        "value; it counts, and what was sent now does not"
    )


@reports
def _report_near_name(run_id: str, name: str, waited_for: set[str]) -> None:
    """Report a signal that the run does not wait for, if it waits for a similar name."""
    if name in waited_for or not waited_for:
        return
    import difflib  # on use: few signals have a wrong name

    for meant in difflib.get_close_matches(name, waited_for, 1):
        notice(
            f"run {run_id!r} does not wait for {name!r}, which is kept for later; it waits for "
            f"{meant!r}. Did you mean that? stepwise send {shell_word(run_id)} "
            f"{shell_word(meant)} JSON"
        )


# -- values --------------------------------------------------------------------------------------


def parsed_json(text: str) -> Any:
    """Parse JSON that somebody typed.

    Raises:
        ValueError: the text is not JSON, or has ``NaN`` or numbers beyond a float.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_or_text(text: str) -> Any:
    """Return the value of JSON that somebody typed, or the text itself if it is no JSON.

    Raises:
        ValueError: the text begins as a list, an object or a quoted text does, but is not JSON: a
            slip must not make a text of it.
    """
    try:
        return parsed_json(text)
    except ValueError as error:
        if not text.startswith(("[", "{", '"')):
            return text
        raise ValueError(
            f"the value {text[:80]} is not JSON ({error}): mend it, or put a text that begins so "
            "in quotes, as JSON does"
        ) from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON")
    return number


def _to_json(value: Any, run_id: str, name: str) -> bytes:
    """Encode the value of a signal.

    Raises:
        SignalRefusedError: the value is not data, or too large; the error says where.
    """
    try:
        data = json_bytes(_plain(value, "value"))
    except _NoDataError as error:
        why = str(error)
    except RecursionError:
        why = "it is nested too deeply, or holds itself"
    else:
        if len(data) <= LARGEST:
            return data
        why = (
            f"it is {len(data) / 1e6:.0f} MB of JSON, and {LARGEST / 1e6:.0f} MB are the limit: "
            "put it into a file or a database, and send where it is"
        )
    raise errors.SignalRefusedError(
        f"{name!r} cannot be sent to run {run_id!r}: {why}", run_id=run_id, name=name
    )


class _NoDataError(Exception):
    """A part of a value that has no form in JSON."""


def _plain(value: Any, where: str) -> Any:
    """Return a value as JSON data; convert objects that have a plain form.

    Values that JSON would change silently are refused: keys other than texts, NaN and infinity.
    """
    kind = type(value)
    if kind in (str, int, bool) or value is None:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        raise _NoDataError(f"{where} is {value}, which JSON does not have")
    if kind in (list, tuple):
        return [_plain(each, f"{where}[{number}]") for number, each in enumerate(value)]
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise _NoDataError(f"{where} has the key {key!r:.80}; in JSON, keys are texts")
        return {key: _plain(each, f"{where}[{key!r:.80}]") for key, each in value.items()}
    try:
        return _plain(plain(value), where)
    except TypeError as error:
        raise _NoDataError(f"{where} is a {kind.__qualname__}: {error}") from None


# -- what the run waits for ----------------------------------------------------------------------


def _check_schemas(schemas: set[str], run_id: str, name: str, data: bytes) -> None:
    """Check a value against the schemas of the open waits for its signal.

    Raises:
        SignalRefusedError: the value fits none of the schemas.
    """
    if not schemas or "" in schemas:
        return
    problems = [misfit(each, json.loads(data)) for each in sorted(schemas)]
    if all(problems):
        raise errors.SignalRefusedError(
            f"run {run_id!r} waits for {name!r} with a value of another form. At "
            f"{problems[0]}. To see what it waits for: stepwise show {shell_word(run_id)}",
            run_id=run_id,
            name=name,
        )


# -- cancelling -----------------------------------------------------------------------------------


def cancel(store: Store, seal: Seal, run_id: str, reason: str) -> None:
    """Request the end of a run; see :meth:`stepwise.Run.cancel`.

    The run's owner, if there is one, finds the request in the inbox.  Otherwise the request is
    recorded now, so that listings show it, and the next owner unwinds the run.
    """
    facts = _facts(store, seal, run_id)
    run_id = facts.run_id
    if facts.cancelling:
        return
    refuse_in_branch(f"cancels no run, such as {run_id!r}")
    try:
        lease = Lease(store, run_id).acquire(child=current_scope() is not None)
    except (errors.RunBusyError, errors.RunOwnedError):
        if not _is_asked(store, seal, facts):
            deliver(store, seal, facts, "cancel", note=reason)
        for each in list(live_runs):  # a run that cancels itself must stop at once
            if each.run_id == run_id and each.journal.store is store:
                each.steering.look_soon()
        return
    with lease:
        facts = _facts(store, seal, run_id)  # the run may have ended a moment ago
        if not facts.cancelling:
            _record(store, seal, lease, facts, reason)
    Bell(store, seal).ring(run_id)


def _facts(store: Store, seal: Seal, run_id: str) -> RunFacts:
    """Return the facts of a run that can be cancelled.

    Raises:
        RunNotFoundError, RunEndedError, ConfigurationError: the run is missing, has ended, or
            is a child run.
    """
    facts = facts_to_go_on(store, seal, run_id)
    refuse_ended(facts)
    if facts.parent:
        raise errors.ConfigurationError(
            f"run {run_id!r} is a child run of {facts.parent!r}, and ends with that one: "
            f"stepwise cancel {shell_word(facts.parent)}"
        )
    return facts


def _is_asked(store: Store, seal: Seal, facts: RunFacts) -> bool:
    """Return whether the inbox holds a request to cancel that the owner has not taken."""
    inbox = Inbox(store, seal, facts.run_id)
    inbox.look()
    new = (each for each in inbox.messages if each.number > facts.cancels)
    return any(each.kind == "cancel" for each in new)


def _record(store: Store, seal: Seal, lease: Lease, facts: RunFacts, reason: str) -> None:
    record = Cancelling(this_person(), reason, 0, time.time())
    journal = Journal(store, seal, facts.run_id, lease.epoch, fsync=True)
    journal.load(Position(facts.pruned, None))
    facts = facts._replace(updated_at=record.at)
    if facts.is_submitted:  # it ends before it has begun, so that none of its code is called
        error = cancelled_error(facts.run_id, record.by, record.reason, record.at)
        encoded, text = encode_error(error, Secrets()), preview(error)
        ended = Ended("cancelled", preview=text, form=encoded.form, at=record.at)
        end = journal.position.last + 2
        over = facts._replace(status="cancelled", error=text, end=end, waits=())
        journal.append((record, b""), (ended, encoded.data), head=over)
    else:
        journal.append((record, b""), head=facts._replace(cancelling=asked_by(record)))
