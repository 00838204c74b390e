"""Logs beside the journals: the inbox of a run, the bell of a store, the logs that a host keeps.

A log has its own kinds of records, sealed and chained like a run's.  Several processes append to a
log in turn, each under a lease held for one write.  A rewrite replaces all earlier records by
records with new numbers; the object ``start`` then names the record after which the log begins.

The inbox of a run is a log, so that anybody may send a message while another process executes the
run.  The journal records which messages the run has taken; the inbox only records their arrival.
Numbers are never reused, even after messages are lost: a loss stays visible until a person gives
the messages up.

The bell is a short log that every sender appends to.  A process that waits for messages learns from
the bell that some arrived, without reading each inbox: one read covers all its runs.  The bell only
saves time: a waiting process also looks into the inbox now and then.

Rejected: an object that each ring replaces (two rings between two looks are one), a socket or a
pipe (a store on another machine has none).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

from stepwise._journal import journal
from stepwise._journal.lease import Lease
from stepwise._journal.persons import this_person
from stepwise._journal.seal import NO_LINK, Seal, anchor_cell, drop_anchor, lift_anchor, named
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import first_of, reports, shell_word
from stepwise._values.unpickling import Data
from stepwise.errors import CorruptStoreError, RunBusyError
from stepwise.stores import Batch, Store

# -- log ------------------------------------------------------------------------------------------


START = "start"
"""Name of the object that says after which record a rewritten log begins."""
_FRONT = 68  # leading bytes of a sealed record, unlike those of any other
_PATIENCE = 60.0  # seconds


class LogEntry(NamedTuple):
    """One record: its number, header and payload; ``header`` is ``None`` if the record is lost."""

    number: int
    header: Any
    payload: bytes = b""


class LogEnd(NamedTuple):
    """The end of a log as far as it was read.

    Args:
        at: the position of the last record.
        front: the beginning of that record's sealed bytes, which is unique to the record.
    """

    at: journal.Position = journal.Position()
    front: bytes = b""


class SealedLog:
    """One log in a store.

    Args:
        store: the store.
        seal: seals and opens the records.
        name: takes the place of a run id in the store.
    """

    def __init__(self, store: Store, seal: Seal, name: str) -> None:
        self.store, self.seal, self.name = store, seal, name

    def read(self, end: LogEnd) -> tuple[list[LogEntry], LogEnd] | None:
        """Read the verified records after an end; return ``None`` if the log was rewritten since.

        Raises:
            ConfigurationError: the records were written with another key.
        """
        last = end.at.last
        rows = self.store.read(self.name, after=max(0, last - 1))
        if last:
            known = next(rows, None)
            if known is None or known[0] != last or known[1][:_FRONT] != end.front:
                return None
            start = end.at
        else:
            start = start_of_log(self.store, self.seal, self.name)
            first = next(rows, None)
            while first is not None and first[0] <= start.last:  # rows of a rewrite in progress
                first = next(rows, None)
            rows = chain([first] if first is not None else [], rows)
        found = []
        at, front = start, end.front
        for number, opened, row in journal.verified(self.store, self.seal, self.name, rows, start):
            if opened is None:
                found.append(LogEntry(number, None))
            else:
                found.append(LogEntry(number, opened.header, opened.payload))
            if row:
                link = opened.link if opened is not None else None
                at, front = journal.Position(number, link), row[:_FRONT]
        is_whole = all(entry.header is not None for entry in found)
        if not is_whole and start_of_log(self.store, self.seal, self.name).last > start.last:
            return None if last else self.read(end)  # it was rewritten meanwhile
        return found, LogEnd(at, front)

    def find_end(self) -> tuple[LogEnd, int]:
        """Return the end of the log and the number of its records, usually without reading it.

        Raises:
            ConfigurationError: the log was written with another key.
        """
        marked = self.newest_mark()
        data = next(self.store.read(self.name, after=marked.last - 1), (0, b""))[1]
        opened = self.seal.opened(journal.identity(self.name, marked.last), data)
        link = opened.link if opened is not None else b""
        at = LogEnd(journal.Position(marked.last, link), data[:_FRONT])
        read = self.read(at) if link and link[:8] == marked.link else None
        if read is None:
            read = self.read(LogEnd())
        assert read is not None  # from the beginning, there is always an answer
        end = read[1]
        return end, end.at.last - start_of_log(self.store, self.seal, self.name).last

    def newest_mark(self) -> journal.Mark:
        """Return the newest mark of the log's length, which each write leaves beside the log."""
        return journal.newest_mark(self.store, self.seal, self.name)

    def missing(self, end: LogEnd, marked: journal.Mark | None = None) -> int:
        """Return how many acknowledged records are gone from the end of the log.

        Args:
            end: the end of the log as it was read.
            marked: the newest mark from before the log was read, since others may have written
                since.
        """
        marked = self.newest_mark() if marked is None else marked
        gone = max(0, marked.last - end.at.last)
        other = journal.is_another_history(self.store, self.seal, self.name, marked, end.at)
        return gone or (marked.last if other else 0)

    @contextmanager
    def owned(self, patience: float = _PATIENCE) -> Iterator[int]:
        """Hold the lease of the log and yield its epoch, after waiting for other owners.

        Args:
            patience: seconds to wait at most.

        Raises:
            RunBusyError: others have held the lease for all that time.
        """
        with Lease(self.store, self.name).acquire(patience=patience) as lease:
            yield lease.epoch

    def append(
        self,
        epoch: int,
        end: LogEnd,
        items: Sequence[tuple[list[Any], Data]],
        *,
        instead: bool = False,
        durable: bool = True,
    ) -> LogEnd:
        """Append records in one transaction; return the new end.

        Args:
            epoch: the epoch of the held lease.
            end: the current end of the log.
            items: headers and payloads.
            instead: the new records replace all earlier records.
            durable: the records survive a power cut, not only the end of the process.
        """
        at, front, sealed = end.at, end.front, list[tuple[int, Data]]()
        for header, payload in items:
            number = at.last + 1
            name = journal.identity(self.name, number)
            data, link = self.seal.close(name, header, payload, at.link or NO_LINK)
            at, front = journal.Position(number, link), bytes(data)[:_FRONT]
            sealed.append((number, data))
        put: dict[str, Data] = {}
        if instead:
            put[START], _ = self.seal.close(
                named(START, self.name), [end.at.last, (end.at.link or NO_LINK).hex()]
            )
        batch = Batch(
            tuple(sealed),
            put=put,
            prune=end.at.last if instead else 0,
            mark=journal.mark(self.seal, self.name, at),
            durable=durable,
        )
        with Uninterrupted():
            self.store.write(self.name, epoch, batch)
        return LogEnd(at, front)

    def delete(self, epoch: int) -> None:
        """Delete all records."""
        with Uninterrupted():
            self.store.delete(self.name, epoch)


def start_of_log(store: Store, seal: Seal, name: str) -> journal.Position:
    """Return the position after which a log begins: behind the records that a rewrite replaced."""
    opened = seal.opened(named(START, name), store.get(name, START))
    if opened is None:  # damaged, the records before the first are reported as lost
        return journal.Position()
    last, link = opened.header
    return journal.Position(last, bytes.fromhex(link))


# -- inbox -----------------------------------------------------------------------------------------


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
        drop_anchor(anchor_cell(log.store, log.name), journal.mark(log.seal, log.name, at))
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
            lift_anchor(self._log.store, self._log.name)


def _header(kind: MessageKind) -> list[Any]:
    """Return the header of a message that this process writes itself."""
    return [kind, "", "", 0, False, "", this_person(), time.time()]


# -- bell -----------------------------------------------------------------------------------------


BELL = "bell:"
"""Name of the bell's log, which no run may have."""
QUEUE = "queue:"
"""Rung for a submitted run: no run has that id."""
_MANY = 200  # records; beyond that, one record replaces all
_LOOK_PAUSE = 0.5  # seconds between looks if a server that could notify does not
_RING_PATIENCE = 2.0  # seconds that a ring waits for other senders


class Bell:
    """The bell of one store, as one process rings and reads it; not safe for concurrent threads."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self._log = SealedLog(store, seal, BELL)
        self._end: LogEnd | None = None
        changes = getattr(store, "changes", None)
        self._notifies = changes is not None
        self._changes: Callable[[], int | None] = lambda: changes and changes(BELL)
        self._seen: int | None = None  # the count of changes at the last look
        self._looked = 0.0

    def look(self) -> list[str]:
        """Return the ids of the runs rung since the last look; the first look returns none.

        The result may include runs that were not rung.
        """
        end, changes = self._end, self._changes()
        if end is not None and not self._may_have_rung(changes):
            return []
        self._seen, self._looked = changes, time.monotonic()
        if end is None:
            _, self._end = self._whole()
            return []
        # One row in one query suffices: even a rewrite gives its record a higher number.
        if next(self._log.store.read(BELL, after=end.at.last), None) is None:
            return []
        found, self._end = self._log.read(end) or self._whole()
        return _ids(found)

    def _may_have_rung(self, changes: int | None) -> bool:
        if changes is not None:
            return changes != self._seen
        # The changes are unknown.  Reading costs nothing on this machine, but a request to a
        # server.
        return not self._notifies or time.monotonic() - self._looked >= _LOOK_PAUSE

    @reports
    def ring(self, run_id: str) -> None:
        """Ring for a run.  A ring that fails is reported, and only costs time."""
        with self._log.owned(patience=_RING_PATIENCE) as epoch:
            end, records = self._log.find_end()
            if records < _MANY:
                self._log.append(epoch, end, [([run_id], b"")], durable=False)
            else:  # slow readers must not miss the last rings
                recent = list(dict.fromkeys([*_ids(self._whole()[0]), run_id]))
                self._log.append(epoch, end, [(recent[-_MANY:], b"")], instead=True, durable=False)

    def forget(self, run_id: str) -> None:
        """Remove a run that is being deleted from the bell."""
        if run_id not in _ids(self._whole()[0]):
            return
        with self._log.owned(patience=_RING_PATIENCE) as epoch:
            entries, end = self._whole()
            others = [each for each in _ids(entries) if each != run_id]
            self._log.append(epoch, end, [(others[-_MANY:], b"")], instead=True, durable=False)

    def _whole(self) -> tuple[list[LogEntry], LogEnd]:
        read = self._log.read(LogEnd())
        assert read is not None  # from the beginning, there is always an answer
        return read


def _ids(entries: list[LogEntry]) -> list[str]:
    headers = (entry.header or () for entry in entries)  # a damaged entry rings for no run
    return list(dict.fromkeys(chain.from_iterable(headers)))


# -- the lists of logs ----------------------------------------------------------------------------


class LogKind(NamedTuple):
    """A kind of logs of a host.

    Args:
        prefix: the beginning of the logs' names in a store.
        list_name: the name, in place of a run id, of the list of these logs.
        field: the host's word for one log.
    """

    prefix: str
    list_name: str
    field: str


THREADS = LogKind("langgraph:", "langgraph-threads", "thread")
SESSIONS = LogKind("openai-agents:", "openai-agents-sessions", "session")
LOG_KINDS = (THREADS, SESSIONS)


class LogIndex:
    """The list of the logs of one kind, since a store lists runs only."""

    def __init__(self, store: Store, seal: Seal, kind: LogKind) -> None:
        self._store, self._seal, self._kind = store, seal, kind

    def ids(self) -> Iterator[str | None]:
        """Yield the host's id of each log; ``None`` for a damaged entry."""
        index, field = self._kind.list_name, self._kind.field
        for name in self._store.names(index, f"{field}/"):
            data = self._store.get(index, name)
            if data is not None:  # else it was removed meanwhile
                opened = self._seal.opened(named(name, index), data)
                yield str(opened.header[field]) if opened is not None else None

    def has(self, which: str) -> bool:
        """Return whether a log is on the list."""
        return self._store.get(self._kind.list_name, self._entry(which)) is not None

    def add(self, which: str) -> None:
        """Put a log on the list."""
        name = self._entry(which)
        data, _ = self._seal.close(named(name, self._kind.list_name), {self._kind.field: which})
        self._write(Batch(put={name: data}))

    def remove(self, which: str) -> None:
        """Take a log from the list."""
        self._write(Batch(delete=(self._entry(which),)))

    def _entry(self, which: str) -> str:
        digest = hashlib.sha256(which.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._kind.field}/{digest}"

    def _write(self, batch: Batch) -> None:
        with SealedLog(self._store, self._seal, self._kind.list_name).owned() as epoch:
            self._store.write(self._kind.list_name, epoch, batch)
