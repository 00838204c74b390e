"""The copying of runs, and of logs that belong to no run, from one store into another.

An *entry* is everything that a store has under one name: the records and objects of a run, of an
inbox, or of a log that belongs to no run.  Bytes are copied unchanged: the seal covers the name of
the entry and the number of the record, but not the store.  Each record's seal covers the record
before it.  Two stores thus hold the same history of an entry if they hold the same record under one
number.

A run is copied with its child runs, and the inboxes and streams of all.  The copier holds the
leases of both stores, so that no process executes the run in the meantime.  Everything is compared
first: if anything prevents the copy of a run, nothing of that run is written.  Each entry is then
marked as incomplete, so that no process executes it, and written in batches.  Each batch is read
back and compared.  The last batch removes the mark.  The next copy continues a copy that was cut
off.  Memory holds only some megabytes, or one record or object.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Literal

from stepwise import errors
from stepwise._checkpoints.checkpoints import PREFIX
from stepwise._execution.active_run import current_scope
from stepwise._journal import journal as journals
from stepwise._journal.lease import Lease, describe_owner
from stepwise._journal.logs import LOG_KINDS, START, Inbox, LogIndex, LogKind, start_of_log
from stepwise._journal.projection import given_up
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import DamagedError, Envelope, ForeignKeyError, Seal, lift_anchor, named
from stepwise._journal.summary import NAME
from stepwise._runs.messages import unacted
from stepwise._runs.verify import append_restored
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, shell_word
from stepwise._values.unpickling import Data
from stepwise.stores import Batch, Store

_COPIED = "copied"  # an object of the copy: the end that the source had
_OWN = (journals.COPYING, _COPIED)  # objects about the copy itself, which do not travel
_BATCH, _MOST = 4_000_000, 500  # bytes and records of one transaction
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_PATIENCE = 60.0  # seconds to wait for the lease of a log, which is held for one write

Outcome = Literal["copied", "there", "busy", "refused"]


class Copied(NamedTuple):
    """The result of copying a run with its child runs, or a log.

    Args:
        id: of the run; for a log, its name.
        outcome: the run was copied, was there already, is being executed, or was refused.
        records, size: the number of copied records, and the bytes of records and objects.
        children: the number of child runs that were copied.
        problem: what prevented the copy.
    """

    id: str
    outcome: Outcome
    records: int = 0
    size: int = 0
    children: int = 0
    problem: str = ""


class _StoreEntry:
    """One entry that is copied from a store to another store.

    Args:
        copier: holds the stores.
        name: the id of a run, or the name of an inbox or log.
        facts: of the run; ``None`` for an inbox, a log, and objects that belong to no run.

    Attributes, as :meth:`compare` found them:
        end: the end of the source.
        marked: the newest mark of the source from before its records were read.
        before: the position before the first record that the target lacks.
        records, size: the number of these records, and the bytes of records and objects.
        put, drop: the names of objects that are missing or different, and of objects to delete.
        ahead: whether the target has records after the end of the source.
        is_whole: whether the target has all, the head and the mark, too.
    """

    def __init__(self, copier: Copier, name: str, facts: RunFacts | None = None) -> None:
        self.source, self.target, self.seal = copier.source, copier.target, copier.seal
        self.name, self.facts = name, facts
        self._is_inbox = name.startswith(journals.INBOX)
        self._is_stream = name.startswith(journals.STREAM)
        self.run_id = name.removeprefix(journals.INBOX)
        if self._is_stream:
            self.run_id = name.removeprefix(journals.STREAM).removesuffix(":")
        self._restored = copier.restored
        self.end = self.before = journals.Position()
        self.records = self.size = 0
        self.marked = journals.Mark()
        self.put, self.drop = list[str](), list[str]()
        self.ahead = self.is_whole = False

    # -- comparing -------------------------------------------------------------------------------

    @property
    def to_mark(self) -> bool:
        """True if the copy must be marked as restored from a backup."""
        unfinished = self.facts is not None and self.facts.status != "completed"
        return self._restored and unfinished and not self.ahead

    def compare(self) -> _StoreEntry:
        """Verify the source, and determine what the target lacks.

        Raises:
            CorruptStoreError: the entry is damaged in one of the stores.
            RunConflictError: the target has another history.
            ConfigurationError: one of the stores was written with another key.
        """
        if self.source.get(self.name, journals.COPYING) is not None:
            way = "give the command again that made it"
            raise self._damaged(self.source, "it is a copy that is not whole itself", way)
        marked = self.marked = journals.newest_mark(self.source, self.seal, self.name)
        half = self.target.get(self.name, journals.COPYING) is not None
        there = journals.newest_mark(self.target, self.seal, self.name)
        their_end = self._compare_records(half)
        self.ahead = their_end > self.end.last
        other = journals.is_another_history(self.source, self.seal, self.name, marked, self.end)
        if marked.last > self.end.last or other:
            raise self._damaged(self.source, "acknowledged records are gone from its end")
        if there.last > their_end and not half:
            raise self._damaged(self.target, "acknowledged records are gone from its end")
        rest = half or (not self.ahead and (there.last != marked.last or self._other_head()))
        if half or not self.ahead:
            self._compare_objects()
        self.is_whole = not (self.records or self.put or self.drop or rest or self.to_mark)
        return self

    def _compare_records(self, half: bool) -> int:
        """Compare the records of both stores; return where the target ends."""
        start = self._start
        theirs, nothing = self.target.read(self.name, after=start.last), (math.inf, b"")
        there: tuple[float, bytes] = next(theirs, nothing)
        at = self.before = start
        self.records, self.size, self.put, self.drop = 0, 0, [], []
        met = half
        lost, known = set[int](), set[int]()
        rows = self.source.read(self.name, after=start.last)
        for number, opened, row in journals.verified(
            self.source, self.seal, self.name, rows, start
        ):
            while there[0] < number:
                there = next(theirs, nothing)
            if opened is None:
                lost.add(number)
            elif there[0] == number:
                met = True
                if there[1] != row:
                    raise self._differs(number, there[1])
            else:
                if not (met or self.records):
                    self._check_follows(start)
                self.before = self.before if self.records else at
                self.records, self.size = self.records + 1, self.size + len(row)
            at = self._follow(at, number, opened, known)
        if lost - known:
            numbers = ", ".join(map(str, sorted(lost - known)[:10]))
            raise self._damaged(self.source, f"records of it cannot be read ({numbers})")
        self.end = at
        left = (int(n) for n, _ in chain((there,), theirs) if at.last < n < math.inf)
        return max(left, default=at.last)

    @property
    def _start(self) -> journals.Position:
        """The position before the first own record; a branch has those before from its base."""
        if self.facts is None:
            return self._start_of_log
        first = next(iter(self.source.read(self.name)), None) if self.facts.base else None
        return journals.Position(first[0] - 1 if first else self.facts.pruned, None)

    @property
    def _start_of_log(self) -> journals.Position:
        return start_of_log(self.source, self.seal, self.name)

    def _follow(
        self, at: journals.Position, number: int, opened: Envelope | None, known: set[int]
    ) -> journals.Position:
        """Return the position after a row, and add the numbers whose loss was given up."""
        if self.facts is None:  # records of another kind: other code judges their losses
            # The caller has checked the inbox; readers notice what a stream has lost.
            if opened is None and (self._is_inbox or self._is_stream):
                known.add(number)
            return journals.Position(number, opened.link if opened is not None else None)
        entry, at = journals.followed(at, number, opened)
        if not isinstance(entry, journals.Lost):
            known |= given_up([entry])
        return at

    def _check_follows(self, start: journals.Position) -> None:
        """Check a source whose first records were pruned, if the target has only such records.

        Raises:
            RunConflictError: nothing proves a common history, since the target's copy was
                continued.
        """
        last, row = 0, b""
        for number, data in self.target.read(self.name):
            if number > start.last:
                return
            last, row = number, data
        opened = self.seal.opened(journals.identity(self.name, last), row)
        link = opened.link if opened is not None else b""
        if last and self.target.get(self.name, _COPIED) != _end_text(journals.Position(last, link)):
            raise self._other(f"its records up to {start.last} were pruned since")

    def _compare_objects(self) -> None:
        names = [each for each in self.source.names(self.name) if each not in _OWN]
        for name in names:
            data = self.source.get(self.name, name) or b""
            sealed = name.startswith(PREFIX) or name == NAME
            if sealed and self.seal.opened(named(name, self.name), data) is None:
                raise self._damaged(self.source, f"its {name.partition('/')[0]} is damaged")
            if self.target.get(self.name, name) != data:
                self.put.append(name)
                self.size += len(data)
        self.drop = sorted(set(self.target.names(self.name)) - {*names, *_OWN})

    def _other_head(self) -> bool:
        """Return whether the target's head is missing or different."""
        if self.facts is None:
            return False
        head = self.source.head(self.name)
        if head is None or journals.open_head(self.seal, head) is None:
            raise self._damaged(self.source, "its entry in the listing is damaged")
        return self.target.head(self.name) != head

    # -- writing ---------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """Mark the copy as incomplete, and write the first missing record.

        The mark of the whole entry comes along.  No process guards a log, so this mark reveals a
        log that lacks its end.
        """
        first = tuple(next(self._batches(), [])[:1])  # copy() writes it again
        # No process guards a log, which may grow in between: only a run is marked as incomplete.
        put = {journals.COPYING: b"by stepwise copy"} if self.facts is not None else {}
        self._write(epoch, Batch(first, put=put, mark=self._mark()))

    def copy(self, epoch: int) -> None:
        """Write the remaining part after :meth:`begin`; the copy is complete afterwards."""
        for records in self._batches():
            self._write(epoch, Batch(tuple(records), durable=False))
        put: dict[str, Data] = {}
        for name in self.put:
            if name != START:
                put[name] = self.source.get(self.name, name) or b""
            if sum(map(len, put.values())) > _BATCH:
                self._write(epoch, Batch(put=put, durable=False))
                put = {}
        if put:
            self._write(epoch, Batch(put=put, durable=False))
        self._finish(epoch)

    def _finish(self, epoch: int) -> None:
        """Write the head and the mark, and remove the mark of an incomplete copy."""
        put, facts = dict[str, Data](), self.facts
        if START in self.put:
            put[START] = self.source.get(self.name, START) or b""
        head = self.source.head(self.name) if facts is not None and not self.ahead else None
        last = self._mark()
        if not self.ahead:
            put[_COPIED] = _end_text(self.end)
        if facts is not None and self.to_mark:
            journal = journals.Journal(self.target, self.seal, self.name, epoch, fsync=True)
            journal.load(self.end, tolerant=True)
            append_restored(journal, facts)
            head, last = None, b""  # append_restored() wrote others
        pruned = facts.pruned if facts is not None else self._start_of_log.last
        delete = (*self.drop, journals.COPYING)
        self._write(epoch, Batch(put=put, delete=delete, prune=pruned, head=head, mark=last))
        lift_anchor(self.target, self.name)  # an entry that was deleted there returns on purpose
        if head is not None and self.target.head(self.name) != head:
            raise self._damaged(self.target, "it does not give back what was written to it")

    def _batches(self) -> Iterator[list[tuple[int, Data]]]:
        """Yield the missing records, verified, in parts that fit one transaction."""
        if not self.records:
            return
        part, weight, at = list[tuple[int, Data]](), 0, self.before
        rows = self.source.read(self.name, after=at.last)
        for number, opened, row in journals.verified(self.source, self.seal, self.name, rows, at):
            at = self._follow(at, number, opened, set())
            if opened is None:
                continue  # its loss was given up: a missing record says the same as a damaged one
            part.append((number, row))
            weight += len(row)
            if weight >= _BATCH or len(part) == _MOST:
                yield part
                part, weight = [], 0
        if at.last < self.end.last:
            raise self._damaged(self.source, "records are gone that were there a moment ago")
        self.end = at
        if part:
            yield part

    def _write(self, epoch: int, batch: Batch) -> None:
        """Write a batch, and verify what the target reads back."""
        self.target.write(self.name, epoch, batch)
        written = 0
        if batch.records:
            rows = self.target.read(self.name, after=batch.records[0][0] - 1)
            for record, row in zip(batch.records, rows, strict=False):
                written += record == row
        objects = (self.target.get(self.name, name) == data for name, data in batch.put.items())
        if written < len(batch.records) or not all(objects):
            raise self._damaged(self.target, "it does not give back what was written to it")

    def _mark(self) -> bytes:
        """Return the newest mark of what is copied; empty if the target is ahead."""
        last, effects, link = self.marked
        if self.ahead or not last:
            return b""
        return journals.mark(self.seal, self.name, journals.Position(last, link, effects))

    # -- problems --------------------------------------------------------------------------------

    def _damaged(self, store: Store, problem: str, way: str = "") -> errors.CorruptStoreError:
        where = "" if store is self.source else f" --store {shell_word(store.url)}"
        if not way and self.is_of_run:
            way = f"stepwise verify {shell_word(self.run_id)} --repair{where}"
        way = way or "put that store back from a backup, or delete the log there"
        return errors.CorruptStoreError(
            f"{self._what} is not copied, since {problem} in {store.url}. Repair it, then copy "
            f"again: {way}",
            path=store.url,
        )

    def _differs(self, number: int, there: bytes) -> errors.StepwiseError | errors.StoreError:
        """Return the error for a record whose bytes differ in the target."""
        try:
            self.seal.open(journals.identity(self.name, number), there)
        except ForeignKeyError:
            return journals.foreign(self.target, self.name)
        except DamagedError:
            return self._damaged(self.target, f"record {number} of it is damaged")
        return self._other(f"record {number} is another one there")

    def _other(self, why: str) -> errors.RunConflictError:
        way = "the copy there was continued, or both began apart"
        if self.is_of_run:
            target = shell_word(self.target.url)
            way += f". To replace it: stepwise forget {shell_word(self.run_id)} --store {target}"
        return errors.RunConflictError(
            f"{self._what} is not copied, since {self.target.url} holds another history of it: "
            f"{why}; {way}",
            run_id=self.run_id,
            recorded=f"another history in {self.target.url}",
            given=f"the history in {self.source.url}",
        )

    @property
    def is_of_run(self) -> bool:
        """True if the entry is a run, or its inbox or streams."""
        return self.facts is not None or self._is_inbox or self._is_stream

    @property
    def _what(self) -> str:
        if self._is_inbox:
            return f"the inbox of run {self.run_id!r}"
        if self._is_stream:
            return f"the log of the streams of run {self.run_id!r}"
        return f"run {self.name!r}" if self.facts is not None else f"the log {self.name!r}"


def _end_text(at: journals.Position) -> bytes:
    """Return the text with which a copy remembers the end of its source."""
    return f"{at.last} {(at.link or b'').hex()}".encode()


class Copier:
    """The copying from one store into another.

    Args:
        restored: mark the unfinished runs as restored from a backup.
        messages: also copy unfinished runs with messages on which original and copy may both act.
        dry_run: only compare.

    Raises:
        ConfigurationError: one of the stores ends with the process, both are the same store, or
            they were written with different keys.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        restored: bool = False,
        messages: bool = False,
        dry_run: bool = False,
    ) -> None:
        self.source, self.target, self.restored = source, target, restored
        self._dry_run = dry_run
        self._messages = messages or restored  # the original of a backup is gone
        for store in (source, target):
            if not store.persistent:
                raise errors.ConfigurationError(
                    f"{store.url} ends with its process: copy between stores that last, such as "
                    "disk: and postgresql:"
                )
        if source is target or source.url == target.url:
            raise errors.ConfigurationError(f"source and target are the same store, {source.url}")
        self.seal: Seal = journals.seal_for(source)
        journals.check_key(self.target, self.seal)

    def copy_each(self, run_ids: Iterable[str]) -> Iterator[Copied]:
        """Copy runs and logs; yield the result of each.

        The first failure of a store itself is raised after the item that reports it.

        Args:
            run_ids: ids of runs, which are copied with their child runs, or names of logs.
        """
        known = journals.children_of(self.source, self.seal)
        for run_id in run_ids:
            try:
                yield self.copy(run_id, known)
            except (errors.RunBusyError, errors.RunOwnedError) as problem:
                yield Copied(run_id, "busy", problem=str(problem))
            except (errors.StepwiseError, errors.RunStopped) as problem:
                yield Copied(run_id, "refused", problem=str(problem))
                is_of_store = isinstance(problem, errors.StoreError)
                if is_of_store and not isinstance(problem, errors.CorruptStoreError):
                    raise

    def copy(self, name: str, children: Mapping[str, list[str]] | None = None) -> Copied:
        """Copy one run with its child runs, or one log.

        Raises:
            RunBusyError: a process executes the run.
            RunConflictError: the target holds another history of the run.
            CorruptStoreError: the run is damaged in one of the stores.
            RunNotFoundError: the source has nothing under this name.
        """
        facts, given = self._facts(name), name
        while facts is not None and facts.superseded:  # its branch brings it along
            branch = journals.facts_of(self.source, self.seal, facts.superseded)
            if branch is None:
                break
            facts, name = branch, branch.run_id
        known = (
            journals.children_of(self.source, self.seal) if facts and children is None else children
        )
        patience = 0.0 if facts is not None else _PATIENCE
        with (
            self._held(self.source, name, patience),
            self._held(self.target, name, patience) as epoch,
        ):
            entries = [*self._entries(name, known or {}, set())]
            lacking = [each for each in entries if not each.is_whole]
            if lacking and not self._messages:
                self._refuse_messages(name, lacking)
            if lacking and not self._dry_run:
                self._write(entries, epoch, given)
        self._list(name)
        below = {each.run_id for each in lacking} - {name}
        records, size = (sum(each.records for each in entries), sum(each.size for each in entries))
        return Copied(given, "copied" if lacking else "there", records, size, len(below))

    def _entries(
        self, name: str, children: Mapping[str, list[str]], met: set[str]
    ) -> Iterator[_StoreEntry]:
        """Yield the compared entries of a name; for a run, also of its inbox and children.

        A branch comes before its base, which is written first.

        Args:
            met: the runs whose entries were yielded.
        """
        facts = self._facts(name)
        met.add(name)
        branch = facts.superseded if facts is not None else ""
        if branch and branch not in met and journals.facts_of(self.source, self.seal, branch):
            yield from self._entries(branch, children, met)
        yield _StoreEntry(self, name, facts).compare()
        if facts is not None and journals.is_begun(self.source, journals.inbox_name(name)):
            self._check_inbox(name)
            yield _StoreEntry(self, journals.inbox_name(name)).compare()
        if facts is not None and journals.is_begun(self.source, journals.stream_name(name)):
            yield _StoreEntry(self, journals.stream_name(name)).compare()
        base = facts.base if facts is not None else ""
        for each in (*children.get(name, ()), base):
            if each and each not in met:
                yield from self._entries(each, children, met)

    def _facts(self, name: str) -> RunFacts | None:
        """Return the facts of a run; ``None`` for a log, and for objects that belong to no run.

        Raises:
            RunNotFoundError: the source has nothing under this name.
        """
        facts = (
            journals.facts_of(self.source, self.seal, name) if log_kind_of(name) is None else None
        )
        is_there = facts or next(self.source.read(name), None) or self.source.names(name)
        if not is_there:
            raise errors.RunNotFoundError(
                f"there is no run {name!r} in {self.source.url}", run_id=name
            )
        return facts

    def _write(self, entries: list[_StoreEntry], epoch: int, given: str) -> None:
        """Write a run with its inbox and its child runs.

        The run that was asked for comes first, marked as incomplete, so that no process starts it
        over.  It is complete once its child runs are.
        """
        top = entries[0]
        for each in entries[1:]:
            if each.name == given and not each.is_whole:  # the base of a branch that goes on
                with self._held(self.target, given, _PATIENCE) as of_it:
                    each.begin(of_it)
        top.begin(epoch)
        known = {each.name for each in entries}
        inboxes = {
            journals.inbox_name(each.name) for each in entries if each.facts is not None
        } - known
        begun = (
            name for name in inboxes if journals.is_begun(self.source, name)
        )  # got a first message
        entries += [_StoreEntry(self, name) for name in begun]
        for each in reversed(entries[1:]):
            # No process executes it without the top run; a command may hold it for a moment.
            held = [self._held(store, each.name, _PATIENCE) for store in (self.source, self.target)]
            with held[0], held[1] as of_it:
                if each.facts is None:  # new messages may have arrived
                    before = each.records if each.name in known else 0
                    if each.compare().records > before and not self._messages:
                        self._refuse_messages(top.name, [each])
                if not each.is_whole:
                    each.begin(of_it)
                    each.copy(of_it)
        top.copy(epoch)

    def _refuse_messages(self, run_id: str, lacking: list[_StoreEntry]) -> None:
        """Refuse to copy a run if both original and copy would act on the same message.

        Raises:
            ConfigurationError: there is such a message, or an approval; the error names them.
        """
        found = []
        for each in {each.run_id: None for each in lacking if each.is_of_run}:
            facts = journals.facts_of(self.source, self.seal, each)
            if facts is not None and facts.status not in ("completed", "cancelled"):
                found += unacted(self.source, self.seal, facts)
        if found:
            raise errors.ConfigurationError(
                f"run {run_id!r} is not copied, since both would act on what was sent to it: "
                f"{', '.join(found)}. If only one of them goes on: stepwise copy --messages, or "
                "copy_to(messages=True)"
            )

    def _check_inbox(self, run_id: str) -> None:
        inbox = Inbox(self.source, self.seal, run_id)
        inbox.look(tolerant=True)
        lost = inbox.all_lost()
        if lost:
            raise errors.CorruptStoreError(
                f"run {run_id!r} is not copied: {self.source.url} lacks "
                f"{count(len(lost), 'message')} to it, damaged or gone. Repair it, then copy "
                f"again: stepwise verify {shell_word(run_id)} --repair",
                path=self.source.url,
            )

    # -- logs ------------------------------------------------------------------------------------

    def logs(self) -> list[str]:
        """Return the names of the logs in the source that belong to no run."""
        return [
            f"{kind.prefix}{each}"
            for kind in LOG_KINDS
            for each in LogIndex(self.source, self.seal, kind).ids()
            if each is not None
        ]

    def _list(self, name: str) -> None:
        """Add a copied log to the target's index of logs."""
        kind = log_kind_of(name)
        if kind is None or self._dry_run:
            return
        index, which = LogIndex(self.target, self.seal, kind), name.removeprefix(kind.prefix)
        if not index.has(which):
            index.add(which)

    # -- leases ----------------------------------------------------------------------------------

    @contextmanager
    def _held(self, store: Store, name: str, patience: float = 0.0) -> Iterator[int]:
        """Hold the lease of an entry; yield its epoch.

        A comparison only checks for an owner.  A read-only source is read without a lease.
        """
        if self._dry_run:
            if not patience:
                self._refuse_owned(store, name)
            yield 0
            return
        with Lease(store, name) as lease:
            try:
                lease.acquire(child=current_scope() is not None, patience=patience)
            except errors.StoreError as error:
                if store is not self.source or error.errno not in _READ_ONLY:
                    raise
                self._refuse_owned(store, name)
            yield lease.epoch

    def _refuse_owned(self, store: Store, name: str) -> None:
        owner = store.owner(name)
        if owner is not None:
            raise errors.RunBusyError(
                f"run {name!r} is being executed {describe_owner(owner)}, in {store.url}",
                run_id=name,
                owner=owner,
            )


def log_kind_of(name: str) -> LogKind | None:
    """Return the kind of a log that belongs to no run; ``None`` for any other name."""
    return next((each for each in LOG_KINDS if name.startswith(each.prefix)), None)
