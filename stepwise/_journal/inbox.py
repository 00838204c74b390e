"""The inbox of a run: messages from other processes, sealed and chained, beside its journal.

The inbox is a separate log (see ``log``), so that anybody may write while another process executes
the run.  The journal records which messages the run has taken; the log only records their arrival.
Numbers are never reused, even after messages are lost: a loss stays visible until a person gives
the messages up.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal

from stepwise._journal import anchors, journal
from stepwise._journal.log import LogEnd, SealedLog
from stepwise._journal.seal import Seal
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import first_of, shell_word
from stepwise.errors import CorruptStoreError, RunBusyError
from stepwise.stores import Store

MessageKind = Literal["signal", "answer", "cancel", "given up"]


class Message(NamedTuple):
    """One message in an inbox.

    Args:
        number: its place in the inbox, from 1, growing.
        kind: a signal; the answer to a question; a request to cancel the run; or a statement that
            messages are lost, whose numbers are its value.
        name: of the signal; for an answer, the ticket of the question.
        value: for a signal: JSON, as bytes; for an answer: the signature of an approver, if any.
        key: messages of one kind and name with the same key count as one; empty for no key.
        step: for an answer: the number of the call.
        approved: for an answer: yes or no.
        note: the person's comment on an answer or a request.
        by: who sent the message, as the sending process knows it (``user@host``).
        at: when it was sent, in seconds since 1970.
    """

    number: int
    kind: MessageKind
    name: str = ""
    value: bytes = b""
    key: str = ""
    step: int = 0
    approved: bool = False
    note: str = ""
    by: str = ""
    at: float = 0.0

    def load(self) -> Any:
        """Return the value of a signal, as plain data."""
        return json.loads(self.value)


_acting: ContextVar[str] = ContextVar("person whom stepwise records", default="")


@contextlib.contextmanager
def acting_as(who: str) -> Iterator[None]:
    """Record this person, within the block, for what is sent, answered, settled and asked for."""
    token = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(token)


def this_person() -> str:
    """Return who acts: the person of :func:`acting_as`, else ``user@host`` of this process."""
    if _acting.get():
        return _acting.get()
    try:
        import getpass  # imported on use: it loads a terminal's module

        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, in a container
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


class Inbox:
    """The inbox of one run, as one process reads and writes it; not safe for concurrent threads.

    Attributes:
        messages: the messages read so far, in order of arrival.
        lost: numbers of the messages that are damaged or missing, and not given up.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str) -> None:
        self._run_id = run_id
        self._log = SealedLog(store, seal, journal.inbox_name(run_id))
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._end, self._marked = LogEnd(), journal.Mark()
        self._keys: dict[tuple[str, str, str], int] = {}
        self._gone: set[int] = set()
        self.messages: list[Message] = []
        self.lost: set[int] = set()

    def look(self, *, tolerant: bool = False) -> list[Message]:
        """Read and return the messages since the last look; ``messages`` has all of them.

        Args:
            tolerant: leave out lost messages.  A run must not: it would take later messages in
                their place.

        Raises:
            CorruptStoreError: messages that were acknowledged are damaged or gone.
            ConfigurationError: the messages were written with another key.
        """
        marked = self._log.newest_mark()  # read first, so that its messages are in the log by now
        found = self._log.read(self._end)
        if found is None:  # the log was put back from a backup
            self._begin_anew()
            found = self._log.read(self._end)
        assert found is not None
        entries, self._end = found
        self._marked = marked
        new = []
        for entry in entries:
            if entry.header is None:
                self.lost.add(entry.number)
                continue
            kind, name, *others = entry.header
            message = Message(entry.number, kind, name, bytes(entry.payload), *others)
            if message.kind == "given up":
                self._gone.update(message.load())
                continue
            new.append(message)
            if message.key:
                self._keys.setdefault((kind, name, message.key), message.number)
        self.lost -= self._gone
        self.messages += new
        if not tolerant:
            lost = self.all_lost()
            # Messages sent between the reading of the messages and of their number are not lost.
            while lost and (more := self.look(tolerant=True)):
                new += more
                lost = self.all_lost()
            self._check(lost)
        return new

    def _check(self, lost: list[int]) -> None:
        if lost:
            raise CorruptStoreError(
                f"the inbox of run {self._run_id!r} lacks messages that were sent to it (number "
                f"{first_of(lost, 10)}): they are damaged or missing. Have them sent again, if "
                "they can be, and give up the lost ones: "
                f"stepwise verify {shell_word(self._run_id)} --repair",
                run_id=self._run_id,
            )

    def all_lost(self) -> list[int]:
        """Return the numbers of all lost messages: damaged, missing, or gone from the end."""
        return sorted({*self.lost, *self._missing()})

    def _missing(self) -> range:
        """Return the numbers of the acknowledged messages that are gone from the end."""
        last = self._end.at.last
        return range(last + 1, last + 1 + self._log.missing(self._end, self._marked))

    def post(
        self,
        kind: MessageKind,
        name: str = "",
        value: bytes = b"",
        *,
        key: str = "",
        step: int = 0,
        approved: bool = False,
        note: str = "",
        by: str = "",
    ) -> int:
        """Put a message into the inbox, durably; return its number.

        If a message of the same kind and name has the same key, return that message's number
        instead.

        Args:
            kind: the kind of message.
            name, value, key, step, approved, note: as in :class:`Message`.
            by: who sends the message; by default the user of this process.

        Raises:
            RunBusyError: other processes have been writing for a minute.
            StoreError: the store cannot be written.
        """
        try:
            with self._log.owned() as epoch:
                if key:
                    self.look(tolerant=True)
                    if (kind, name, key) in self._keys:
                        return self._keys[kind, name, key]
                facts = key, step, approved, note, by or this_person(), time.time()
                return self._append(epoch, [kind, name, *facts], value)
        except RunBusyError as error:
            raise RunBusyError(
                f"nothing could be sent to run {self._run_id!r}: other processes have been writing "
                "into its inbox for a minute; try again",
                run_id=self._run_id,
                owner=error.owner,
            ) from None

    def _append(self, epoch: int, header: list[Any], value: bytes) -> int:
        end, _ = self._log.find_end()
        missing = self._log.missing(end)
        if missing:  # never reuse the number of a lost message
            end = LogEnd(journal.Position(end.at.last + missing, None))
        log = self._log
        at = log.append(epoch, end, [(header, value)]).at
        anchors.drop(anchors.cell_of(log.store, log.name), journal.mark(log.seal, log.name, at))
        return at.last

    def give_up(self) -> None:
        """Record which messages are known to be lost, so that the run may take later ones."""
        with self._log.owned() as epoch:
            self.look(tolerant=True)
            lost = self.all_lost()
            if lost:
                value = json.dumps(lost).encode()
                self._append(epoch, _header("given up"), value)

    def copy_to(self, other: Inbox) -> None:
        """Copy this inbox to another run's inbox, which nobody reads yet, for a fork.

        Messages keep their numbers, since shared records name taken messages by number.  Answers
        and requests to cancel concern this run alone: their numbers stay unused.

        Args:
            other: the inbox of the fork.

        Raises:
            CorruptStoreError: messages are damaged or missing.
        """
        other.delete()
        self.look()
        if not self._end.at.last:
            return
        items: list[tuple[list[Any], bytes]] = [
            (_header("given up"), b"[]") for _ in range(self._end.at.last)
        ]
        for each in self.messages:
            if each.kind == "signal":
                number, kind, name, value, *facts = each
                items[number - 1] = [kind, name, *facts], value
        with other._log.owned() as epoch:
            other._log.append(epoch, LogEnd(), items)

    def forward_to(self, other: Inbox) -> None:
        """Send to a branch the signals that its inbox lacks.

        A copied message has the time and the sender of its original, so that it is sent once.
        """
        self.look(tolerant=True)
        with other._log.owned() as epoch:
            other.look(tolerant=True)
            known = {each[1:] for each in other.messages}
            for each in self.messages:
                if each.kind == "signal" and each[1:] not in known:
                    _, kind, name, value, *facts = each
                    other._append(epoch, [kind, name, *facts], value)

    def delete(self) -> None:
        """Delete the inbox with all its messages, if it exists."""
        if journal.is_begun(self._log.store, self._log.name):
            with self._log.owned() as epoch:
                self._log.delete(epoch)
            anchors.lift(self._log.store, self._log.name)


def _header(kind: MessageKind) -> list[Any]:
    """Return the header of a message that this process writes itself."""
    return [kind, "", "", 0, False, "", this_person(), time.time()]
