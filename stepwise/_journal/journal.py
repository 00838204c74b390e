"""The append-only records of a run: sealed, chained, and read back only after they verify.

Each envelope holds the link of the record before it (a hash chain) and the number of intents before
it, and after each acknowledged batch the store keeps a *mark* apart from the database that says how
far the journal went.  So a damaged record, a missing one, a lost tail and an emptied database are
all noticed, and even then it is known whether a side effect is concerned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepwise._journal.chain import (
    Lost,
    Position,
    holds,
    identity,
    is_another_history,
    marker,
    newest_mark,
    read,
    read_end,
    read_entries,
    read_one,
    read_start,
)
from stepwise._journal.header_text import record_text
from stepwise._journal.heads import read_head, seal_head
from stepwise._journal.projection import effects_seen, given_up
from stepwise._journal.records import ANNOUNCES, Entry, Record, RunFacts
from stepwise._journal.seal import NO_LINK, Seal, ephemeral_seal, load_seal
from stepwise._journal.spending import sums_after
from stepwise._runtime.group_commit import Group, Share
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.limits import stopped
from stepwise._runtime.messages import Once, notice, shell_word
from stepwise._values.buffers import Data
from stepwise.errors import JournalLostError, StoreError
from stepwise.stores import Batch, Store

__all__ = [
    "COPYING",
    "Journal",
    "Lost",
    "Position",
    "facts_of",
    "holds",
    "identity",
    "is_another_history",
    "newest_mark",
    "read",
    "read_end",
    "read_entries",
    "read_one",
    "read_start",
    "seal_for",
]

COPYING = "copying"
"""The name of an object that lies beside the records of a run whose copy is not whole yet."""
_ephemeral = ephemeral_seal()
_NO_OBJECTS: Mapping[str, Data] = {}


class Records(Share):
    """Records that one caller wants appended.

    Args:
        items: records with their payloads.
        durable: somebody relies on it.
        head: the run's new head.

    Attributes:
        numbers: of the records, once they are written.
        end: where the journal ends with the batch that it was last part of.
    """

    __slots__ = ("durable", "end", "head", "items", "numbers")

    def __init__(
        self,
        items: tuple[tuple[Record, Data], ...],
        *,
        durable: bool,
        head: RunFacts | None = None,
        future: Any = None,
    ) -> None:
        super().__init__(future)
        self.items = items
        self.durable = durable
        self.head = head
        self.numbers: list[int] = []
        self.end: Position | None = None


class Journal:
    """The journal of one run, for its one owner.

    Args:
        epoch: of the lease; goes with every write.
        fsync: whether an acknowledged record must survive a power cut.

    Attributes:
        calls: the highest number of a call so far.
        lost: the numbers of records that could not be read.
        tail: how many acknowledged records are gone from the end.
        unknown_effects: how many of them may be intents of side effects that nothing else tells of.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str, epoch: int, *, fsync: bool) -> None:
        self.store = store
        self.seal = seal
        self.run_id = run_id
        self.epoch = epoch
        self.calls = 0
        self.lost: list[int] = []
        self.tail = 0
        self.unknown_effects = 0
        self.fsync = fsync
        self._lock = threading.RLock()
        self._group = Group[Records](store.url)
        self._mark = marker(seal, run_id)
        self._at = self._next = Position()
        self._known = True  # whether _at is the current end of the store's journal
        self._is_first = Once()
        self._tolerant = False
        self._other = False  # the marks belong to another history

    @property
    def position(self) -> Position:
        """Return where the journal ends."""
        return self._at

    def load(self, start: Position | None = None, *, tolerant: bool = False) -> list[Entry]:
        """Read and verify the records after ``start``.

        Args:
            tolerant: only count what is gone, and tell nobody.

        Raises:
            JournalLostError: acknowledged records of side effects are gone.
            StoreError: it is a copy that is not whole.
        """
        self._at = start or Position()
        self.lost = []
        self.tail = self.unknown_effects = 0
        self._other = False
        self._tolerant = tolerant
        entries: list[Entry] = []
        for entry, at in read(self.store, self.seal, self.run_id, start):
            self._at = at
            if isinstance(entry, Lost):
                self.lost.append(entry.number)
            else:
                entries.append(entry)
                self.count(entry)
        self._known = True
        known = given_up(entries)
        self.lost = [number for number in self.lost if number not in known]
        if not tolerant and self._at.last:
            self._refuse_half()
        self._compare_marks()
        if self.lost or self.tail:
            self._assess(entries, start or Position())
        return entries

    def count(self, entry: Entry) -> None:
        """Take the number of a recorded call into account."""
        call = entry.call
        if call is not None:
            self.calls = max(self.calls, call.number, call.unwinding or 0)

    def append(
        self,
        *items: tuple[Record, Data],
        durable: bool = True,
        head: RunFacts | None = None,
    ) -> list[int]:
        """Append records in one transaction, and return their numbers.

        Args:
            items: records with their payloads.
            durable: somebody relies on it; it is then acknowledged at the run's durability.
            head: the run's new head.
        """
        with Uninterrupted():
            numbers = self._group.at_once(self._write_now, items, durable, head)
        if numbers is None:  # others write
            share = Records(items, durable=durable, head=head)
            self._group.write(share, self.write)
            numbers = share.numbers
        return numbers

    def submit(self, *items: tuple[Record, Data], durable: bool, future: Any) -> Records:
        """Append records as :meth:`append` does, but in another thread.

        Args:
            future: of an event loop; done when they are written, or cannot be.
        """
        share = Records(items, durable=durable, future=future)
        self._group.submit(share, self.write, halves=self)
        return share

    def _write_now(
        self, items: tuple[tuple[Record, Data], ...], durable: bool, head: RunFacts | None
    ) -> list[int]:
        """Write the records of a caller who is alone; return their numbers."""
        if not self._known:
            self._catch_up()
        try:
            sealed, at = self._follow(self._at, items)
        except MemoryError as error:
            raise stopped("a record was sealed", error, path=self.store.url) from None
        self.store.write(*self._ready(sealed, at, durable, head))
        before, self._at, self._known = self._at, at, True
        return list(range(before.last + 1, at.last + 1))

    def write(self, shares: list[Records]) -> None:
        """Write the shares of several callers in one transaction, in their order."""
        wanted = self.prepare(shares)
        if wanted is not None:
            self.store.write(*wanted)
            self.settle()

    def prepare(self, shares: list[Records]) -> tuple[str, int, Batch] | None:
        """Seal the shares of several callers; return what the store is to write for them."""
        if not self._known:
            self._catch_up()
        sealed: list[tuple[int, Data]] = []  # list[...]() takes ten times as long
        at, head, durable = self._at, None, False
        written = []
        for share in shares:
            if share.items and share.end == self._at:  # an interrupted write that was done
                share.done = True
                continue
            try:
                following, at = self._follow(at, share.items)
            except MemoryError as error:
                share.error = stopped("a record was sealed", error, path=self.store.url)
                continue
            except Exception as error:
                share.error = error
                continue
            sealed += following
            share.numbers = [number for number, _ in following]
            head = share.head or head
            durable = durable or share.durable
            written.append(share)
        if not written:
            return None
        for share in written:
            share.end = at
        return self._ready(sealed, at, durable, head)

    def _ready(
        self, sealed: list[tuple[int, Data]], at: Position, durable: bool, head: RunFacts | None
    ) -> tuple[str, int, Batch]:
        """Return what the store is to write for sealed records, with which the journal ends."""
        head_row = seal_head(self.seal, head) if head is not None else None
        marked = self._mark(at) if durable else b""
        facts = (tuple(sealed), _NO_OBJECTS, (), 0, head_row, marked, durable and self.fsync)
        batch = tuple.__new__(Batch, facts)  # the constructor is a Python function
        self._known, self._next = False, at  # until the write has returned
        return self.run_id, self.epoch, batch

    def settle(self) -> None:
        """Note that what was prepared last is written."""
        self._at, self._known = self._next, True

    def _follow(
        self, at: Position, items: Iterable[tuple[Record, Data]]
    ) -> tuple[list[tuple[int, Data]], Position]:
        """Records sealed as they follow a position, and the position that they make."""
        sealed: list[tuple[int, Data]] = []
        number, link, effects, sums = at
        for record, payload in items:
            number += 1
            name, header = identity(self.run_id, number), record_text(record)
            data, link = self.seal.close(name, header, payload, link or NO_LINK, effects)
            effects += type(record) in ANNOUNCES
            sums = sums_after(sums, record)
            sealed.append((number, data))
        # The constructor is a Python function.
        return sealed, tuple.__new__(Position, (number, link, effects, sums))

    def begin_with(
        self,
        items: Iterable[tuple[Record, Data]],
        put: Callable[[list[Position]], dict[str, Data]],
        head: RunFacts,
    ) -> None:
        """Write the first records of a run and objects beside them, all of it or nothing.

        Args:
            put: gives the objects, sealed; it gets the positions that the records make.
        """
        sealed: list[tuple[int, Data]] = []
        positions = [self._at]
        for item in items:
            following, at = self._follow(positions[-1], (item,))
            sealed += following
            positions.append(at)
        batch = Batch(
            tuple(sealed),
            put=put(positions),
            head=seal_head(self.seal, head),
            mark=self._mark(positions[-1]),
            durable=self.fsync,
        )
        self._known = False
        self._put(batch)
        self._at, self._known = positions[-1], True

    def put(
        self,
        name: str,
        header: dict[str, Any] | str,
        payload: Data,
        *,
        also: Mapping[str, Data] | None = None,
        delete: tuple[str, ...] = (),
        prune: int = 0,
        head: RunFacts | None = None,
        durable: bool = False,
    ) -> int:
        """Write an object beside the records, and others that are sealed; its size in bytes."""
        data, _ = self.seal.close(f"{name}/{self.run_id}", header, payload)
        put = {**also, name: data} if also else {name: data}
        head_row = seal_head(self.seal, head) if head is not None else None
        facts = ((), put, delete, prune, head_row, b"", durable and self.fsync)
        self._put(tuple.__new__(Batch, facts))  # the constructor is a Python function
        return len(data)

    def drop(self, names: tuple[str, ...]) -> None:
        """Delete objects."""
        self._put(Batch(delete=names, durable=False))

    def _put(self, batch: Batch) -> None:
        with Uninterrupted():
            self._group.alone(self.store.write, self.run_id, self.epoch, batch)

    def disown(self) -> None:
        """In a forked child: nothing is written here any more, and no thread of the parent helps.

        A store refuses the epoch that nobody has.
        """
        self.epoch = 0
        self._lock = threading.RLock()
        self._group = Group[Records](self.store.url)

    def next_call(self) -> int:
        """A number for a new call."""
        with self._lock:
            self.calls += 1
            return self.calls

    def _catch_up(self) -> None:
        """Read the journal after a failed write, to learn whether the write was done."""
        for entry, at in read(self.store, self.seal, self.run_id, self._at):
            if isinstance(entry, Entry):
                self.count(entry)
            self._at = at
        self._known = True

    def _refuse_half(self) -> None:
        """Raise for a run of which a copy was begun and not finished: what lacks would repeat."""
        if self.store.get(self.run_id, COPYING) is not None:
            run = shell_word(self.run_id)
            raise StoreError(
                f"run {self.run_id!r} in {self.store.url} is a copy that is not whole: stepwise "
                "copy was cut off. Give the same command again, which copies the rest; or delete "
                f"the copy: stepwise forget {run}",
                path=self.store.url,
                errno=None,
            )

    # -- lost records ----------------------------------------------------------------------------

    def _compare_marks(self) -> None:
        at = self._at
        marked = newest_mark(self.store, self.seal, self.run_id)
        last, effects, _ = marked
        self.tail = max(0, last - at.last)
        if not self.tail and is_another_history(self.store, self.seal, self.run_id, marked, at):
            self.tail, self._other = last, True  # none of these records was acknowledged
            if not self._tolerant:
                raise self._effects_lost(
                    f"run {self.run_id!r}: {self.store.url} holds another history of it than the "
                    f"one that was acknowledged, up to record {last}: an older copy, perhaps of a "
                    "run that was deleted since. Nothing shows which side effects are missing"
                )
        if not self.tail:
            return
        where = f"run {self.run_id!r}: the journal in {self.store.url} ends at record {at.last}"
        if effects > at.effects and not self._tolerant:
            raise self._effects_lost(
                f"{where}, but records up to {last} were acknowledged, and {effects - at.effects} "
                "of the missing ones announced a side effect"
            )
        self._tell(f"{where}, though {last} were acknowledged; the missing steps run again")

    def _assess(self, entries: list[Entry], start: Position) -> None:
        """Count the lost intents that have no outcome and that nobody has given up."""
        seen = effects_seen(entries)
        marked_last, marked, _ = newest_mark(self.store, self.seal, self.run_id)
        total = max(self._at.effects, marked) - start.effects
        self.unknown_effects = max(int(self._other), total - seen)
        if not self.lost:
            return
        if not marked_last and (self._at.link is None or self.lost[-1] > self._at.last):
            self.unknown_effects += 1  # nothing says what the last record was
        numbers = ", ".join(map(str, self.lost[:10])) + (", ..." if len(self.lost) > 10 else "")
        self._tell(
            f"run {self.run_id}: {len(self.lost)} of its records in {self.store.url} cannot be "
            f"read ({numbers}); plain steps among them run again"
        )

    def _tell(self, text: str) -> None:
        if not self._tolerant and self._is_first(text):
            notice(text)

    def refuse_effect(self, name: str) -> JournalLostError:
        """The error for a new side effect that one of the lost records may be of."""
        return self._effects_lost(
            f"run {self.run_id!r}: {name} would run, but {self.unknown_effects} of the records "
            f"that cannot be read in {self.store.url} announced a side effect, perhaps this one"
        )

    def _effects_lost(self, what: str) -> JournalLostError:
        run = shell_word(self.run_id)
        return JournalLostError(
            f"{what}; continuing could repeat it. Find out what happened. If repeating the missing "
            "steps is harmless, continue with the remaining records: "
            f"stepwise verify {run} --repair --accept-loss; or start over: "
            f"stepwise forget {run}. To use a backup: put the whole folder back, then run "
            "stepwise restore; a run that the backup has then asks about each side effect that the "
            "backup lacks",
            run_id=self.run_id,
            path=self.store.url,
            errno=None,
        )


def seal_for(store: Store) -> Seal:
    """The seal of a store's records."""
    return load_seal() if store.persistent else _ephemeral


def facts_of(store: Store, seal: Seal, run_id: str) -> RunFacts | None:
    """Return a run's facts for a listing: from its head, or from its records if that is damaged.

    ``None`` if there is no such run.
    """
    facts = read_head(store, seal, run_id)
    if facts is not None:
        return facts
    from stepwise._journal.run_facts import derive_facts  # on use: heads are rarely damaged

    return derive_facts(run_id, read_entries(store, seal, run_id))
