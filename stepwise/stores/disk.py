"""``disk:/path``: the store on one machine, in a folder.

The database is a diskcache (see ``_rows``).  Beside the database, ``leases`` is the lock file,
``marks`` holds the marks of each run, and ``logs`` the logs of the processes that execute runs now
(see ``_process_log``).  A small batch goes into the log of the process.  A large batch, or a batch
with a new head, goes into the database, together with the run's tail in the log.  A process writes
through one connection under one lock, and a fork waits for the lock.  Batches that several runs
write at once share one transaction, or one flush.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from stepwise._runtime.forks import cached, forget_in_child
from stepwise._runtime.system_limits import stopped
from stepwise.errors import LeaseLostError, RunOwnedError, StoreError
from stepwise.stores._files import (
    Copy,
    LockFile,
    Marks,
    check_folder,
    check_path,
    guarded,
    is_alive,
    lock_file,
    make_folder,
    store_error,
    unwritable,
)
from stepwise.stores._group_commit import Wanted, error_of, for_several, refused
from stepwise.stores._process_log import (
    LARGEST_BATCH,
    FolderLogs,
    HeldRun,
    LogTakenError,
    Tail,
    weight,
)
from stepwise.stores._rows import (
    CACHE,
    Page,
    Rows,
    WantedDue,
    WantedHeads,
    epoch_of,
    hashed,
    inode,
    lease_front,
    log_of,
    nameless,
    owner_of,
    pack_lease,
    put_batch,
    put_tail,
    with_log,
)
from stepwise.stores.base import Batch, Head, Owner, Words

__all__ = ["DiskStore"]

P = ParamSpec("P")
R = TypeVar("R")

_BESIDE = ("leases", "marks", "logs")  # beside the database
_PAGES = (1, 32, 1000)  # rows: many readers need only the first
_WHOLE = (4, 32, 1000)  # rows of a journal from its beginning; of many runs these are all
_NEWEST_PAGES = (100, 1000)  # heads: as many as a terminal shows, then as many as memory may hold
_TRIES = 100  # attempts to read a run that another process is writing
_NAMED_AFTER, _PAUSE = 25, 0.01  # attempts to read a run's owner, and seconds between two


def _locked(
    method: Callable[Concatenate[DiskStore, P], R],
) -> Callable[Concatenate[DiskStore, P], R]:
    """Run a method under the store's lock, and turn errors of SQLite and the system to StoreError.

    A plain ``with`` takes the lock.  A Ctrl-C between two frames of a generator-based context
    manager would keep the lock taken for as long as the traceback lives.
    """

    @functools.wraps(method)
    def alone(self: DiskStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._refuse_inside()
        with self._lock:
            try:
                return method(self, *args, **kwargs)
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                # sqlite3 raises UnicodeDecodeError for a message that quotes a damaged name.
                raise store_error(self.path, error) from error
            except MemoryError as error:
                raise stopped("the store was used", error, path=self.path) from error

    return alone


class DiskStore:
    """A folder on a local disk, with a diskcache in it.

    Args:
        path: the folder; created when the first run starts, readable by its owner only.
        to_read: the folder and its database are only read; see :meth:`for_pages`.

    Raises:
        ConfigurationError: the path cannot be used as written.
    """

    persistent = True

    def __init__(self, path: str | os.PathLike[str], *, to_read: bool = False) -> None:
        self.path = os.path.realpath(os.path.expanduser(os.fspath(path)))
        self._to_read = to_read
        check_path(self.path)
        self.url = f"disk:{self.path}"
        self._lock: Any = threading.RLock()
        self._database = os.path.join(self.path, CACHE)
        self._rows: Rows | None = None
        self._copy: Copy | None = None  # read instead of a read-only database
        leases, marks, logs = (os.path.join(self.path, name) for name in _BESIDE)
        self._lock_path, self._marks = leases, Marks(marks)
        self._held: dict[str, HeldRun] = {}  # by run id
        self._commits = self._flushed = 0  # numbers of our last commit, and our last durable one
        self._logs = FolderLogs(logs)
        self._log_end = weakref.finalize(self, self._logs.end)
        _stores.add(self)
        _watch_forks()
        forget_in_child(self)

    # -- lease -----------------------------------------------------------------------------------

    @_locked
    def acquire(self, run_id: str, owner: Owner) -> int:
        self._opened_to_write()
        if not self._leases.acquire(run_id):
            raise RunOwnedError(run_id=run_id, owner=self._owner_by_name(run_id))
        try:
            rows = self._settled()
            while not self._take_over(rows, run_id, owner):
                pass
        except BaseException:
            self._leases.release(run_id)
            raise
        return self._held[run_id].epoch

    def _refuse_inside(self) -> None:
        """Raise ``StoreError`` if this thread is inside a method already, as in a finalizer."""
        if self._lock._is_owned() or self._logs.own.mutex._is_owned():
            raise refused(self.path)

    def _take_over(self, rows: Rows, run_id: str, owner: Owner) -> bool:
        """Begin a new epoch of a run.

        Returns:
            False if the caller must try again: another process's log was taken in first, or the
            row of the lease has changed.
        """
        row = rows.lease(run_id)
        log, _ = log_of(row)
        if log != self._logs.name and self._logs.has(log):
            self._take_in_log_of_another(rows, log)
            return False
        with rows.transaction(durable=False):
            if rows.lease(run_id) != row:
                return False  # an owner that had lost its lock has written
            epoch = epoch_of(row) + 1
            self._take_in(rows, run_id, row)
            rows.put_lease(run_id, pack_lease(epoch, owner))
        self._commits += 1
        self._held[run_id] = HeldRun(epoch, hashed(run_id))
        return True

    def release(self, run_id: str, epoch: int) -> None:
        # Without the store's lock: a release must work while another thread waits for the disk.
        held = self._held.get(run_id)
        if held is not None and held.epoch == epoch:
            self._held.pop(run_id, None)  # the run's tail stays in the log
            self._marks.close(hashed(run_id))
            self._leases.release(run_id)

    @_locked
    def owner(self, run_id: str) -> Owner | None:
        return self._owner(run_id) if self._there() else None

    @_locked
    def last_owner(self, run_id: str) -> Owner | None:
        """Return the process that last took the lease, even if it is gone."""
        return owner_of(rows.lease(run_id) or b"") if (rows := self._there()) else None

    def _owner(self, run_id: str) -> Owner | None:
        if self._to_read and not os.path.exists(self._lock_path):
            return None  # a query for a lock would make the file
        pid = self._leases.holder(run_id)
        if pid is None:
            return None
        host = os.uname().nodename
        owner = owner_of(self._opened().lease(run_id) or b"")
        # The pid of a run of this process is known.  So if it is unknown, our pid in the row is
        # from another container.
        gone = owner is not None and (owner.pid == os.getpid() or not is_alive(owner.pid))
        if owner is None or (not pid and owner.host == host and gone):
            owner = Owner(pid, host, 0.0)
        # Between taking the lock and writing the row, the row still names the previous owner.
        return owner if pid in (0, owner.pid) else Owner(pid, owner.host, owner.since)

    def _owner_by_name(self, run_id: str) -> Owner | None:
        """Return the owner; wait a moment if an owner with the lock has not written its row yet."""
        for _ in range(_NAMED_AFTER):
            owner = self._owner(run_id)
            if owner is None or owner.pid:
                return owner
            time.sleep(_PAUSE)
        return self._owner(run_id)

    @cached
    def _leases(self) -> LockFile:
        return lock_file(self._lock_path)

    # -- writing ---------------------------------------------------------------------------------

    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        # A batch that need not be durable does not wait for another run's flush.
        if batch.durable or not self._is_logged(run_id, epoch, batch):
            self._write((run_id, epoch, batch))

    def _is_logged(self, run_id: str, epoch: int, batch: Batch) -> bool:
        """Write a batch that need not be durable into the log; return whether that succeeded."""
        self._refuse_inside()
        log = self._logs.own
        try:
            with log.mutex:
                held = self._held.get(run_id)
                if held is None or not self._fits((run_id, epoch, batch)):
                    return False
                if not log.add(run_id, epoch, held.generation, batch):
                    return False
            if self._held.get(run_id) is not held:
                return False  # released meanwhile: a takeover may have missed this batch
            if batch.mark:
                self._marks.mark(held.key, batch.mark)
            return True
        except (LogTakenError, StoreError):
            return False  # the locked write finds the cause
        except OSError as error:
            raise store_error(self.path, error) from error
        except MemoryError as error:
            raise stopped("the store was used", error, path=self.path) from error

    @for_several(write)
    def write_all(self, wanted: Sequence[Wanted]) -> Sequence[BaseException | None]:
        """Write a batch for each of several runs, in one transaction if nothing fails.

        Returns:
            the error of each batch, or ``None`` for a batch that was written.
        """
        with contextlib.suppress(StoreError, LeaseLostError):
            self._write(*wanted)
            return [None] * len(wanted)
        # One by one, so that no run gets the error of another.
        return [error_of(self._write, each) for each in wanted]

    @_locked
    def _write(self, *wanted: Wanted) -> None:
        try:
            self._leases.keep()
        except StoreError:
            self._opened()  # raises a clearer error if the folder is gone, or creates it again
            self._leases.keep()
        if self._logs.own.failed:
            self._settled()
        in_rows: list[Wanted] = []
        in_log: list[Wanted] = []
        for each in wanted:  # asked once: a release, or a failing log, would change the answer
            (in_log if self._fits(each) else in_rows).append(each)
        if in_rows:
            self._write_rows(self._opened(), in_rows)
        if in_log:
            try:
                self._write_log(in_log)
            except LogTakenError:  # the database checks whether each run's lease is still ours
                self._write_rows(self._settled(), in_log)
        for run_id, _, batch in wanted:
            if batch.mark:
                self._marks.mark(hashed(run_id), batch.mark)

    def _fits(self, wanted: Wanted) -> bool:
        """Return whether a batch goes into the log."""
        run_id, epoch, batch = wanted
        _, _, _, prune, head, _, durable = batch  # unpacking is faster than reading fields
        held, log = self._held.get(run_id), self._logs.own
        return (
            held is not None
            and held.epoch == epoch
            and held.log is log
            and not log.failed
            and head is None
            and not prune
            # A power cut must not undo the commit that gave the run its epoch and generation.
            and (not durable or held.commit <= self._flushed)
            and weight(batch) <= LARGEST_BATCH
        )

    def _write_log(self, wanted: Sequence[Wanted]) -> None:
        log, durable = self._logs.own, False
        try:
            for run_id, epoch, batch in wanted:
                with log.mutex:
                    while (held := self._held.get(run_id)) is not None:
                        if log.add(run_id, epoch, held.generation, batch):
                            break
                        self._take_in_all()
                        log.empty()
                if held is None:  # released meanwhile
                    raise LogTakenError  # noqa: TRY301
                durable = durable or batch.durable
            if durable:
                log.flush()
        except BaseException:  # a durable batch may not be read before it is on the disk
            log.fail(wanted)
            raise

    def _write_rows(self, rows: Rows, wanted: Sequence[Wanted]) -> None:
        """Write batches into the database in one transaction, each after the tail of its run."""
        held = self._held
        logged = {run for run, _, batch in wanted if run in held and held[run].would_log(batch)}
        if logged and not self._logs.own.is_open:
            self._open_log(rows)
        durable = any(batch.durable for _, _, batch in wanted)
        with rows.transaction(durable=durable):
            for run_id, epoch, batch in wanted:
                row = self._check(rows, run_id, epoch)
                self._take_in(rows, run_id, row)
                put_batch(rows, run_id, batch)
                self._name_log(rows, run_id, row, self._logs.name if run_id in logged else "")
        self._committed([run_id for run_id, _, _ in wanted], logged, durable=durable)
        for run_id, _, _ in wanted:
            if run_id in held:
                held[run_id].begun = True

    def _name_log(self, rows: Rows, run_id: str, row: bytes, log: str) -> None:
        """Begin a run's next generation, with the name of the log for its tail, or ``""``."""
        if log or log_of(row)[0]:  # without a log in the row, no frame counts anyway
            rows.put_lease(run_id, with_log(row, log))
        held = self._held.get(run_id)
        if held is not None:
            held.log, held.generation = None, log_of(row)[1] + 1  # no log until the commit

    def _committed(self, run_ids: Iterable[str], logged: Container[str], *, durable: bool) -> None:
        self._commits += 1
        if durable:
            self._flushed = self._commits
        for run_id in run_ids:
            if durable:  # otherwise the tail must stay in the log
                self._logs.own.tails.pop(run_id, None)
            held = self._held.get(run_id)
            if held is not None and run_id in logged:
                held.commit = self._commits
                held.log = self._logs.own

    # -- logs ------------------------------------------------------------------------------------

    def _open_log(self, rows: Rows) -> None:
        """Create our log, and take in the logs of dead processes."""
        self._logs.open()
        for name in self._logs.dead():
            with contextlib.suppress(OSError):  # a run that needs the log will raise the error
                self._take_in_log_of_another(rows, name)

    def _settled(self) -> Rows:
        """Return the open database, after it has taken in our log if the log failed."""
        rows = self._opened()
        if self._logs.own.failed:
            with self._logs.own.mutex:
                self._take_in_all()
                self._logs.begin()
        return rows

    def _settled_to_read(self, run_id: str) -> Rows | None:
        """Return the open database for reading, settled if possible; ``None`` if there is none.

        On a full disk the failed log cannot be taken in, and its tails are read from memory.  A run
        in ``unsure`` raises the error instead.
        """
        rows = self._there()
        if rows is None or not self._logs.own.failed:
            return rows
        try:
            return self._settled()
        except (sqlite3.Error, OSError):
            if run_id in self._logs.own.unsure:
                raise
            return self._opened()

    def _own_tail(self, run_id: str, row: bytes | None) -> Tail | None:
        """Return the run's tail in our log, or ``None`` if it does not match the lease's row."""
        tail = self._logs.own.tails.get(run_id)
        if tail is None or (self._logs.name, tail.generation) != log_of(row):
            return None
        return tail if epoch_of(row) == tail.epoch else None

    def _take_in(self, rows: Rows, run_id: str, row: bytes | None) -> None:
        """Write the tail of a run into the database.

        The caller changes the lease's row in the same transaction, so that the frames of the tail
        no longer count.
        """
        tail = self._own_tail(run_id, row)
        if tail is not None:
            put_tail(rows, run_id, tail.as_batch())

    def _take_in_all(self) -> None:
        """Take in the tails of all runs in our log, durably; the caller holds the log's mutex."""
        rows, found = self._opened(), list[str]()
        with rows.transaction(durable=True):
            for run_id in list(self._logs.own.tails):
                row = rows.lease(run_id)
                if row is not None and self._own_tail(run_id, row) is not None:
                    self._take_in(rows, run_id, row)
                    self._name_log(rows, run_id, row, self._logs.name)
                    found.append(run_id)
        self._committed(found, found, durable=True)

    def _take_in_log_of_another(self, rows: Rows, name: str) -> None:
        """Take the log of another process, write its tails durably, and delete the log."""
        reader = self._logs.take(name)
        if reader is None:
            return
        with rows.transaction(durable=True):
            for run_id in reader.runs():
                row = rows.lease(run_id)
                log, generation = log_of(row)
                tail = reader.tail(run_id, epoch_of(row), generation)
                if row is not None and log == name and tail is not None:
                    put_tail(rows, run_id, tail.as_batch())
                    rows.put_lease(run_id, with_log(row, ""))
        self._committed((), (), durable=True)
        self._logs.delete(name)

    @_locked
    def delete(self, run_id: str, epoch: int) -> None:
        rows = self._settled()
        with rows.transaction(durable=True):
            row = self._check(rows, run_id, epoch)
            # Marks first: a mark without its records would report a loss; the reverse is harmless.
            self._marks.delete(hashed(run_id))
            rows.forget(run_id)
            row = nameless(row)
            rows.put_lease(run_id, row)
            self._name_log(rows, run_id, row, "")  # so the run's frames in the log no longer count
        self._committed([run_id], (), durable=True)
        for name in self._logs.holding(run_id):
            with contextlib.suppress(OSError):  # the file system does not allow taking the log
                self._take_in_log_of_another(rows, name)
        if self._logs.own.holds(run_id):
            self._begin_log()

    def _check(self, rows: Rows, run_id: str, epoch: int) -> bytes:
        row = rows.lease(run_id)
        if row is None or not row.startswith(lease_front(epoch)):
            raise LeaseLostError(run_id=run_id)
        return row

    # -- reading ---------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        last, in_log = after, False

        def page(rows: Rows, cursor: str | None, size: int) -> Page[tuple[int, bytes]]:
            nonlocal in_log
            if cursor is None:  # before the records: a takeover may take the log in meanwhile
                in_log = bool(log_of(rows.lease(run_id))[0])
            return rows.records(run_id, after, cursor, size)

        for number, data in self._all(page, _PAGES if after else _WHOLE):
            yield number, data
            last = number
        while in_log:
            in_log, found = self._read_rest(run_id, last)
            for number, data in found:
                yield number, data
                last = number

    @_locked
    def _read_rest(self, run_id: str, after: int) -> tuple[bool, list[tuple[int, bytes]]]:
        """Return whether the caller must ask again, and the next records of a run.

        Records in the database come first.  The records in the log follow, and are the last.
        """

        def look(rows: Rows, tail: Tail | None) -> tuple[bool, list[tuple[int, bytes]]]:
            more, may_follow, cursor = list[tuple[int, bytes]](), True, None
            while may_follow and not more:  # unreadable records are passed over
                page, may_follow = rows.records(run_id, after, cursor, 32)
                more = [each for _, each in page if each is not None]
                cursor = page[-1][0] if page else None
            if more or tail is None:
                return bool(more), more
            found = tail.as_batch().records
            return False, [(number, bytes(data)) for number, data in found if number > after]

        return self._look(run_id, look, (False, list[tuple[int, bytes]]()))

    @_locked
    def get(self, run_id: str, name: str) -> bytes | None:
        def look(rows: Rows, tail: Tail | None) -> bytes | None:
            lacks = tail.as_batch() if tail is not None else Batch()
            if name in lacks.put:
                return bytes(lacks.put[name])
            if name in lacks.delete:
                return None
            return rows.get_object(run_id, name)

        return self._look(run_id, look, None)

    @_locked
    def names(self, run_id: str, prefix: str = "") -> list[str]:
        def look(rows: Rows, tail: Tail | None) -> list[str]:
            found = set(rows.names(run_id, prefix))
            lacks = tail.as_batch() if tail is not None else Batch()
            found = (found - set(lacks.delete)) | lacks.put.keys()
            return sorted(name for name in found if name.startswith(prefix))

        return self._look(run_id, look, [])

    def _look(self, run_id: str, look: Callable[[Rows, Tail | None], R], nothing: R) -> R:
        """Call a function with the database and a run's tail, as of one moment.

        Args:
            nothing: the result if there is no database.

        Raises:
            StoreError: the run changed during each attempt.
        """
        for _ in range(_TRIES):
            rows = self._settled_to_read(run_id)
            if rows is None:
                return nothing
            row = rows.lease(run_id)
            name, generation = log_of(row)
            tail = self._own_tail(run_id, row)
            if name and name != self._logs.name:
                tail = self._logs.read(name).tail(run_id, epoch_of(row), generation)
            found = look(rows, tail)
            # A changed row means that the database took in a tail meanwhile.
            if not name or self._opened().lease(run_id) == row:
                return found
        raise StoreError(
            f"run {run_id!r} in {self.path} changed at each of {_TRIES} looks at it; look again",
            path=self.path,
            errno=errno.EAGAIN,
        )

    @_locked
    def head(self, run_id: str) -> Head | None:
        return rows.head(run_id) if (rows := self._there()) else None

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        return self._heads(WantedHeads(workflow, unfinished, newest=unfinished))

    def newest_heads(
        self, *, unfinished: bool = False, words: Words = (), before: str = "", prefix: str = ""
    ) -> Iterator[Head]:
        """Yield the heads of all runs, or of unfinished runs, newest run first.

        Args:
            unfinished: only the heads of unfinished runs.
            words: only the heads with these words (see :data:`.base.Words`).
            before: only the heads of runs that began before this run.
            prefix: only the heads of runs whose ids begin with this text.
        """
        wanted = WantedHeads(
            None, unfinished, newest=True, words=words, before=before, prefix=prefix
        )
        return self._heads(wanted, _NEWEST_PAGES)

    def due_heads(self, workflow: str) -> Iterator[Head]:
        """Yield the heads of a workflow's runs that are to begin, the earliest first."""
        return self._heads(WantedDue(workflow))

    def _heads(
        self, wanted: WantedHeads | WantedDue, sizes: tuple[int, ...] = _PAGES
    ) -> Iterator[Head]:
        return self._all(lambda rows, *page: rows.heads(wanted, *page), sizes)

    @_locked
    def first_due_heads(self) -> list[Head]:
        """Return the earliest head of each workflow's runs that are to begin."""
        return rows.first_due_heads() if (rows := self._there()) else []

    @_locked
    def count_heads(self, words: Words = ()) -> int:
        """Return the number of runs whose heads have these words, child runs included."""
        return rows.count_heads(words) if (rows := self._there()) else 0

    @_locked
    def marks(self, run_id: str) -> list[bytes]:
        return self._marks.read(hashed(run_id))[0]

    def note(self, run_id: str, epoch: int, note: bytes) -> None:
        held = self._held.get(run_id)
        try:
            if held is not None and held.epoch == epoch:
                self._marks.note(held.key, note)
        except OSError:
            return  # only displays read it

    @_locked
    def noted(self, run_id: str) -> bytes:
        return self._marks.read(hashed(run_id))[1]

    @_locked
    def close(self) -> None:
        for run_id, held in list(self._held.items()):
            self.release(run_id, held.epoch)
        if self._logs.own.is_open:
            # If the database cannot be written, the log stays and is taken in later.
            with contextlib.suppress(sqlite3.Error, OSError, StoreError):
                self._begin_log()
        rows, self._rows = self._rows, None
        if rows is not None:
            self._close(rows)
        if self._copy is not None:
            self._copy.close()

    def _begin_log(self) -> None:
        """Take in our log, delete its file, and begin another log."""
        self._logs.own.failed = True
        self._settled()

    @_locked
    def free(self) -> int:
        """Return the number of unused bytes in the database, which later runs will fill."""
        return rows.free() if (rows := self._there()) else 0

    @_locked
    def used(self, _: int) -> int:
        """Return the bytes of all data, without the space that deleted runs left."""
        return rows.used() if (rows := self._there()) else 0

    @_locked
    def erase(self) -> None:
        """Clear deleted data from SQLite's log, unless another connection is reading."""
        if self._there():
            self._opened_to_write().erase()

    @_locked
    def compact(self) -> int:
        """Give the database's free space back to the file system.

        Returns:
            the number of bytes that were freed.
        """
        if not self._there():
            return 0
        rows = self._opened_to_write()
        for name in self._logs.dead():
            self._take_in_log_of_another(rows, name)
        if self._logs.own.is_open:
            self._begin_log()
        return rows.compact()

    def _all(
        self, page: Callable[[Rows, Any, int], Page[R]], sizes: tuple[int, ...] = _PAGES
    ) -> Iterator[R]:
        """Yield the readable rows, read page by page; nothing stays open between two pages.

        Args:
            page: a function of the database, a cursor and a size: reads that many rows after the
                cursor, or from the first row if the cursor is ``None``.
            sizes: the largest sizes of the first pages, in rows; no later page is larger than the
                last.
        """
        cursor: Any = None
        for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
            found, may_follow = self._page(page, cursor, size)
            for _, item in found:
                if item is not None:
                    yield item
            if not may_follow:
                return
            cursor = found[-1][0]
            del found  # a reader may pause for long before it takes the next page

    @_locked
    def _page(self, page: Callable[[Rows, Any, int], Page[R]], cursor: Any, size: int) -> Page[R]:
        return page(rows, cursor, size) if (rows := self._there()) else ([], False)

    # -- the folder and the marks ----------------------------------------------------------------

    def _there(self) -> Rows | None:
        """Return the open database, or ``None`` if there is no database."""
        found = self._current()
        return self._opened_anew() if found is None and inode(self._database) else found

    def for_pages(self, *, to_read: bool) -> DiskStore:
        """Return the store for the pages of ``stepwise ui``: this one, or one that only reads."""
        return DiskStore(self.path, to_read=True) if to_read else self

    def _opened_to_write(self) -> Rows:
        rows = self._opened()
        if rows.to_read or self._copy is not None:
            code = unwritable(self._database) or errno.EROFS
            raise OSError(code, os.strerror(code), self.path)
        return rows

    def _opened(self) -> Rows:
        """Return the open database, which is created if it is missing.

        Raises:
            StoreError: the folder was deleted or replaced while a run was using the store.
        """
        return self._current() or self._opened_anew()

    def _current(self) -> Rows | None:
        """Return the database if it is open and neither deleted nor replaced."""
        rows = self._rows
        if rows is None or not (self._copy is None or self._copy.is_current()):
            return None
        return rows if rows.is_there() else None

    def _opened_anew(self) -> Rows:
        if self._rows is not None:
            rows, self._rows = self._rows, None
            self._close(rows)
            if self._copy is None:
                self._logs.leave()  # the log went with the folder
            if self._leases.busy:
                raise StoreError(
                    f"the store {self.path} was deleted or replaced while a run was using it",
                    path=self.path,
                    errno=errno.ENOENT,
                )
        self._copy = None
        self._rows = self._connected()
        if self._copy is None:
            guarded(self._database).begin()
        return self._rows

    def _connected(self) -> Rows:
        if unwritable(self._database):
            # Without SQLite's files beside the database, SQLite would make them, as ours.
            if all(os.path.exists(f"{self._database}{end}") for end in ("-wal", "-shm")):
                with contextlib.suppress(sqlite3.OperationalError):
                    return Rows(self.path, self.path, to_read=True)
            self._copy = Copy(self._database)
            return Rows(self._copy.folder, self.path)
        if self._to_read:
            check_path(self.path)
            check_folder(self._database, _BESIDE)
        else:
            make_folder(self._database, _BESIDE)
            check_path(self.path)
        return Rows(self.path, self.path, to_read=self._to_read)

    def forget(self) -> None:
        """Forget the parent's lock, leases and files in a forked child."""
        self._lock = threading.RLock()
        self._held = {}
        self._logs.forget()
        if self._rows is not None:
            self._rows.abandon()

    def _close(self, rows: Rows) -> None:
        if self._copy is not None:
            rows.close()
            return
        with guarded(self._database).end():
            rows.close()


# -- fork ----------------------------------------------------------------------------------------

_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()
_fork_held: list[DiskStore] = []


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_fork_held.clear
    )


def _before_fork() -> None:
    # A fork while another thread is inside SQLite would leave the child with locks held forever.
    for store in list(_stores):
        store._lock.acquire()
        _fork_held.append(store)


def _after_fork() -> None:
    while _fork_held:
        _fork_held.pop()._lock.release()
