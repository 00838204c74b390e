"""One entry of a store, brought into another store: the records and objects under one name.

An entry is a run, its inbox, or a log that belongs to no run.  Bytes are copied as they are: the
seal covers the name of the entry and the number of the record, and not the store.  Two stores hold
the same history of an entry if they hold the same record under one number, since a record's seal
covers the one before it.

What is written is read back and compared.  Until the last batch, an object beside the records of a
run says that its copy is not whole, so that nobody executes it.  No more than some megabytes, or
one record or object, are in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from stepwise._checkpoints.checkpoints import PREFIX
from stepwise._journal.chain import (
    INBOX,
    Lost,
    Mark,
    Position,
    followed,
    foreign,
    identity,
    is_another_history,
    mark,
    newest_mark,
    verified,
)
from stepwise._journal.heads import open_head
from stepwise._journal.journal import COPYING, Journal
from stepwise._journal.log import START, start_of_log
from stepwise._journal.projection import given_up
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import DamagedError, Envelope, ForeignKeyError, Seal
from stepwise._journal.summary import NAME
from stepwise._runs.verify import append_restored
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import shell_word
from stepwise._values.buffers import Data
from stepwise.errors import CorruptStoreError, RunConflictError
from stepwise.stores import Batch, Store

__all__ = ["Lack", "Transfer"]

_COPIED = "copied"  # an object of the copy: how far the source went
_OWN = (COPYING, _COPIED)  # what is said of a copy does not travel
_BATCH, _MOST = 4_000_000, 500  # bytes and records of one transaction

Progress = Callable[[int, int], None]
"""Called with the numbers of records and bytes that have just been written."""


class Lack(NamedTuple):
    """The part of an entry that another store lacks.

    Args:
        end: where the source ends.
        first: number of the first record that is missing; 0 if none is.
        before: the position before that.
        records, size: how many records are missing, and bytes of records and objects.
        put, drop: names of the objects that are missing or others, and of those to delete.
        ahead: how many records the target has after the end of the source.
        rest: something else is missing: the head, the mark, the end of a copy.
        new: the target has nothing of it.
    """

    end: Position
    first: int = 0
    before: Position = Position()
    records: int = 0
    size: int = 0
    put: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    ahead: int = 0
    rest: bool = False
    new: bool = False

    @property
    def nothing(self) -> bool:
        """True if the target has all of it."""
        return not (self.first or self.put or self.drop or self.rest)


class Transfer:
    """One entry on its way from a store to another one.

    Args:
        name: of the entry: the id of a run, or what stands in its place.
        facts: of the run; ``None`` for a log, and for objects that belong to no run.
        inbox: it is the inbox of a run.
        tell: of the progress.

    Attributes:
        lack: what the target lacks, since :meth:`compare`.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        seal: Seal,
        name: str,
        facts: RunFacts | None,
        *,
        inbox: bool = False,
        tell: Progress,
    ) -> None:
        self.source, self.target, self.seal, self.name = source, target, seal, name
        self.facts, self._is_inbox = facts, inbox
        self.run_id = name.removeprefix(INBOX) if inbox else name
        self._tell = tell
        self._at = Position()  # up to here, the target has the records
        self._their_end = 0  # the last record of the target
        self.lack = Lack(Position())

    # -- comparing -------------------------------------------------------------------------------

    def compare(self) -> Lack:
        """Verify the source, and find out what the target lacks.

        Raises:
            CorruptStoreError: one of the two is damaged.
            RunConflictError: the target has another history.
            ConfigurationError: one of them was written with another key.
        """
        if self.source.get(self.name, COPYING) is not None:
            way = "give the command again that made it"
            raise self._damaged(self.source, "it is a copy that is not whole itself", way)
        marked = newest_mark(self.source, self.seal, self.name)
        half = self.target.get(self.name, COPYING) is not None
        there = newest_mark(self.target, self.seal, self.name)
        lack = None if half or there != marked else self._same_end(marked)
        lack = lack or self._records()
        end = lack.end
        other = is_another_history(self.source, self.seal, self.name, marked, end)
        if marked.last > end.last or other:
            raise self._damaged(self.source, "acknowledged records are gone from its end")
        if there.last > max(end.last, self._their_end) and not half:
            raise self._damaged(self.target, "acknowledged records are gone from its end")
        put: tuple[str, ...] = ()
        drop: tuple[str, ...] = ()
        size = 0
        is_new = not lack.ahead and next(self.target.read(self.name), None) is None
        if not lack.ahead or half:
            put, drop, size = self._objects()
        rest = half or (not lack.ahead and (there.last != marked.last or self._other_head()))
        size += lack.size
        self.lack = lack._replace(put=put, drop=drop, size=size, rest=rest, new=is_new)
        self._at = self.lack.before
        return self.lack

    @property
    def _start(self) -> Position:
        """Return the position at which the source's records begin: earlier ones were pruned."""
        if self.facts is not None:
            return Position(self.facts.pruned, None)
        return start_of_log(self.source, self.seal, self.name)

    def _same_end(self, marked: Mark) -> Lack | None:
        """Return that no record is missing if both ends are the same, so that none need be read."""
        if not marked.last:
            return None
        ours, theirs = (
            iter(store.read(self.name, after=marked.last - 1))
            for store in (self.source, self.target)
        )
        at = Position(marked.last - 1)
        for one, other in itertools.zip_longest(ours, theirs):
            if one != other or one[0] != at.last + 1:
                return None
            try:
                opened = self.seal.open(identity(self.name, one[0]), one[1])
            except DamagedError:
                return None
            at = self._follow(at, one[0], opened, set())
        return Lack(at) if at.last >= marked.last else None

    def _records(self) -> Lack:
        """Read both, and return which records are missing."""
        start = self._start
        theirs = _TheirRows(self.target.read(self.name, after=start.last))
        at = before = start
        first = count = size = met = 0
        lost, known = set[int](), set[int]()
        rows = self.source.read(self.name, after=start.last)
        for number, opened, row in verified(self.source, self.seal, self.name, rows, start):
            if opened is None:
                lost.add(number)
            there = theirs.at(number)
            if opened is not None and there is None:
                count, size = count + 1, size + len(row)
                first, before = (first, before) if first else (number, at)
            elif opened is not None and there is not None:
                met += 1
                if there != row:
                    raise self._differs(number, there)
            if not met and first == number:
                self._check_follows(start, opened)
            at = self._follow(at, number, opened, known)
        if lost - known:
            numbers = ", ".join(map(str, sorted(lost - known)[:10]))
            raise self._damaged(self.source, f"records of it cannot be read ({numbers})")
        ahead = theirs.rest()
        self._their_end = theirs.last
        return Lack(at, first, before, count, size, ahead=ahead)

    def _follow(
        self, at: Position, number: int, opened: Envelope | None, known: set[int]
    ) -> Position:
        if self.facts is None:  # records of another kind, whose losses others have to judge
            if opened is None and self._is_inbox:  # the caller has asked the inbox
                known.add(number)
            return Position(number, opened.link if opened is not None else None)
        entry, at = followed(at, number, opened)
        if not isinstance(entry, Lost):
            known |= given_up([entry])
        return at

    def _check_follows(self, start: Position, opened: Envelope | None) -> None:
        """Check a source whose first records were pruned, where the target has only such.

        Raises:
            RunConflictError: nothing proves that both are one history.
        """
        last, row = 0, b""
        for number, data in self.target.read(self.name):
            if number > start.last:
                return
            last, row = number, data
        if not last or opened is None:
            return
        try:
            link = self.seal.open(identity(self.name, last), row).link
        except DamagedError:
            link = b""
        if (last == start.last and opened.previous == link) or self._copied() == (last, link):
            return
        raise self._other(f"its records up to {start.last} were pruned since")

    def _copied(self) -> tuple[int, bytes] | None:
        """Return the end that the target's copy had when it was made."""
        data = self.target.get(self.name, _COPIED)
        if data is None:
            return None
        try:
            last, link = self.seal.open(f"{_COPIED}/{self.name}", data).header
        except DamagedError:
            return None
        return last, bytes.fromhex(link)

    def _objects(self) -> tuple[tuple[str, ...], tuple[str, ...], int]:
        names = [each for each in self.source.names(self.name) if each not in _OWN]
        put, size = [], 0
        for name in names:
            data = self.source.get(self.name, name) or b""
            if name.startswith(PREFIX) or name == NAME:
                self._check_object(name, data)
            if self.target.get(self.name, name) != data:
                put.append(name)
                size += len(data)
        gone = set(self.target.names(self.name)) - {*names, *_OWN}
        return tuple(put), tuple(sorted(gone)), size

    def _check_object(self, name: str, data: bytes) -> None:
        try:
            self.seal.open(f"{name}/{self.name}", data)
        except DamagedError:
            raise self._damaged(self.source, f"its {name.partition('/')[0]} is damaged") from None

    def _other_head(self) -> bool:
        """Return whether the target's head is missing, or another one."""
        if self.facts is None:
            return False
        head = self.source.head(self.name)
        if head is None or open_head(self.seal, head) is None:
            raise self._damaged(self.source, "its entry in the listing is damaged")
        return self.target.head(self.name) != head

    # -- writing ---------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """Write the first missing records, and that the copy is not whole."""
        records = next(self._batches(), [])
        put: dict[str, Data] = {} if self.facts is None else {COPYING: b"by stepwise copy"}
        if records or put:
            # The mark first: a log, which nobody guards, is then recognised as one that lacks its
            # end.  Durable, so that a store does not keep the object beside the database.
            self._write(
                epoch, Batch(tuple(records), put=put, mark=self._mark(), durable=not records)
            )

    def copy(self, epoch: int) -> None:
        """Write the rest of the records and the objects, but what :meth:`finish` writes."""
        for records in self._batches():
            self._write(epoch, Batch(tuple(records), durable=False))
        put: dict[str, Data] = {}
        for name in self.lack.put:
            if name == START:
                continue
            put[name] = self.source.get(self.name, name) or b""
            if sum(map(len, put.values())) > _BATCH:
                self._write(epoch, Batch(put=put, durable=False))
                put = {}
        if put:
            self._write(epoch, Batch(put=put, durable=False))

    def finish(self, epoch: int, *, restored: bool = False) -> None:
        """Write the head and the mark; from now on the copy is whole.

        Args:
            restored: mark an unfinished run as restored from a backup.
        """
        end = max(self.lack.end, self._at, key=lambda each: each.last)
        put, facts = dict[str, Data](), self.facts
        head = self.source.head(self.name) if facts is not None and not self.lack.ahead else None
        last = self._mark() if not self.lack.ahead else b""
        if restored and facts is not None and head is not None:
            journal = Journal(self.target, self.seal, self.name, epoch, fsync=True)
            journal.load(end, tolerant=True)
            append_restored(journal, open_head(self.seal, head) or facts)
            head, last = None, b""  # it has others
        if START in self.lack.put:
            put[START] = self.source.get(self.name, START) or b""
        said = [end.last, (end.link or b"").hex()]
        put[_COPIED], _ = self.seal.close(f"{_COPIED}/{self.name}", said)
        batch = Batch(
            put=put,
            delete=(*self.lack.drop, COPYING),
            prune=self._start.last,
            head=head,
            mark=last,
        )
        self._write(epoch, batch)
        if head is not None and self.target.head(self.name) != head:
            raise self._damaged(self.target, "it does not give back what was written to it")

    def _batches(self) -> Iterator[list[tuple[int, Data]]]:
        """Yield the missing records, verified, as parts of a size that one transaction takes."""
        if not self.lack.first:
            return
        part, weight, at = list[tuple[int, Data]](), 0, self._at
        rows = self.source.read(self.name, after=at.last)
        for number, opened, row in verified(self.source, self.seal, self.name, rows, at):
            at = self._follow(at, number, opened, set())
            if opened is None:
                continue  # it was given up; a missing record says the same as a damaged one
            part.append((number, row))
            weight += len(row)
            if weight >= _BATCH or len(part) == _MOST:
                self._at = at
                yield part
                part, weight = [], 0
        if at.last < self.lack.end.last:
            raise self._damaged(self.source, "records are gone that were there a moment ago")
        self._at = at
        if part:
            yield part

    def _write(self, epoch: int, batch: Batch) -> None:
        """Write a batch, and compare what the target gives back."""
        self.target.write(self.name, epoch, batch)
        written = 0
        if batch.records:
            rows = self.target.read(self.name, after=batch.records[0][0] - 1)
            for record, row in zip(batch.records, rows, strict=False):
                written += record == row
        objects = (self.target.get(self.name, name) == data for name, data in batch.put.items())
        if written < len(batch.records) or not all(objects):
            raise self._damaged(self.target, "it does not give back what was written to it")
        sizes = [len(data) for _, data in batch.records] + [*map(len, batch.put.values())]
        self._tell(len(batch.records), sum(sizes))

    def _mark(self) -> bytes:
        """Return the newest mark of the source, as its bytes."""
        newest = newest_mark(self.source, self.seal, self.name)
        at = Position(newest.last, newest.link, newest.effects)
        return mark(self.seal, self.name, at) if newest.last else b""

    # -- what keeps it from being copied ---------------------------------------------------------

    def _damaged(self, store: Store, problem: str, way: str = "") -> CorruptStoreError:
        where = "" if store is self.source else f" --store {shell_word(store.url)}"
        if not way and self._is_of_run:
            way = f"stepwise verify {shell_word(self.run_id)} --repair{where}"
        way = way or "put that store back from a backup, or delete the log there"
        return CorruptStoreError(
            f"{self._what} is not copied, since {problem} in {store.url}. Repair it, then copy "
            f"again: {way}",
            path=store.url,
            errno=None,
        )

    def _differs(self, number: int, there: bytes) -> Exception | CorruptStoreError:
        """Return the error for a record that the target has with other bytes."""
        try:
            self.seal.open(identity(self.name, number), there)
        except ForeignKeyError:
            return foreign(self.target, self.name)
        except DamagedError:
            return self._damaged(self.target, f"record {number} of it is damaged")
        return self._other(f"record {number} is another one there")

    def _other(self, why: str) -> RunConflictError:
        way = "the copy there was continued, or both began apart"
        if self._is_of_run:
            target = shell_word(self.target.url)
            way += f". To replace it: stepwise forget {shell_word(self.run_id)} --store {target}"
        return RunConflictError(
            f"{self._what} is not copied, since {self.target.url} holds another history of it: "
            f"{why}; {way}",
            run_id=self.run_id,
            recorded=f"another history in {self.target.url}",
            given=f"the history in {self.source.url}",
        )

    @property
    def _is_of_run(self) -> bool:
        return self.facts is not None or self._is_inbox

    @property
    def _what(self) -> str:
        if self._is_inbox:
            return f"the inbox of run {self.run_id!r}"
        return f"run {self.name!r}" if self.facts is not None else f"the log {self.name!r}"


class _TheirRows:
    """The rows of an entry, one after the other.

    Attributes:
        last: the number of the last row that was read.
    """

    def __init__(self, rows: Iterator[tuple[int, bytes]]) -> None:
        self._rows = rows
        self.last = 0
        self._next: tuple[int, bytes] | None = (0, b"")
        self._advance()

    def _advance(self) -> None:
        self._next = next(self._rows, None)
        if self._next is not None:
            self.last = self._next[0]

    def at(self, number: int) -> bytes | None:
        """Return the row of a number, which grows from call to call; ``None`` if there is none."""
        while self._next is not None and self._next[0] < number:
            self._advance()
        if self._next is None or self._next[0] > number:
            return None
        row = self._next[1]
        self._advance()
        return row

    def rest(self) -> int:
        """Return how many rows are left."""
        left = 0
        while self._next is not None:
            left += 1
            self._advance()
        return left
