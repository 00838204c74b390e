"""A store in a folder of one machine, whatever kind of database keeps its rows.

Beside the database, ``leases`` is the lock file, and a folder holds for each run its marks and the
draft of an object that the next transaction takes along.  One process writes through one connection
behind one lock, which a fork waits for; what its runs want written at once goes in one transaction.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import functools
import itertools
import os
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from stepwise._runtime.group_commit import Group, Share, for_several
from stepwise._runtime.limits import stopped
from stepwise.errors import LeaseLostError, RunOwnedError, StoreError
from stepwise.stores._files import Values, check_path, inode, is_alive, make_folder, store_error
from stepwise.stores._locks import LockFile, guarded, lock_file
from stepwise.stores._marks import LARGEST_DRAFT, Draft, Marks
from stepwise.stores._rows import (
    Page,
    Rows,
    epoch_of,
    hashed,
    lease_front,
    owner_of,
    pack_lease,
    put_batch,
    put_objects,
)
from stepwise.stores.base import Batch, Head, Owner

__all__ = ["Copy", "FolderStore", "unwritable"]

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_PAGES, _PAGE = (1, 32), 1000  # rows: many readers need only the first
_NEWEST_PAGES = (100, 1000, 10_000)  # heads: each page of them may begin with a look at all keys
_WEIGHT = 4_000_000  # bytes in a page of large records
_NAMED_AFTER, _PAUSE = 25, 0.01  # looks at who has a run, and seconds between two of them


def _locked(
    method: Callable[Concatenate[FolderStore, P], R],
) -> Callable[Concatenate[FolderStore, P], R]:
    """Run a method alone, and turn what SQLite and the system raise into ``StoreError``.

    The lock is taken by a plain ``with``: a generator-based context manager that a Ctrl-C hits
    between two of its frames would keep it for as long as the traceback lives.
    """

    @functools.wraps(method)
    def alone(self: FolderStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise StoreError(
                "a signal handler or a finalizer called stepwise in the middle of a write; "
                "call it from ordinary code",
                path=self.path,
                errno=errno.EDEADLK,
            )
        with self._lock:
            try:
                return method(self, *args, **kwargs)
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                # UnicodeDecodeError is sqlite3's own, for a message that quotes a damaged name.
                raise store_error(self.path, error) from error
            except MemoryError as error:
                raise stopped("the store was used", error, path=self.path) from error

    return alone


_Wanted = tuple[str, int, Batch]  # run id, epoch, batch


class _RunWrites(Share):
    """A run's writes that wait for the writes of others."""

    __slots__ = ("wanted",)

    def __init__(self, wanted: _Wanted) -> None:
        super().__init__()
        self.wanted = wanted


class FolderStore(abc.ABC):
    """A folder on a local disk.

    Args:
        path: the folder; made when the first run starts, readable by its owner only.

    Raises:
        ConfigurationError: the path cannot be used as it is written.
    """

    persistent = True
    _scheme: str
    _file: str  # the name of the database
    _marked: str  # the name of the folder of marks

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.realpath(os.path.expanduser(os.fspath(path)))
        check_path(self.path)
        self.url = f"{self._scheme}:{self.path}"
        self._lock = threading.RLock()
        self._database = os.path.join(self.path, self._file)
        self._rows: Rows | None = None
        self._copy: Copy | None = None  # read instead of a read-only database
        self._inode: tuple[int, int] | None = None
        self._lock_path = os.path.join(self.path, "leases")
        self._marks = Marks(os.path.join(self.path, self._marked))
        self._epochs: dict[str, int] = {}  # by run, for the leases held here
        self._drafts: dict[str, Batch] = {}  # written with the next transaction of their run
        self._group = Group[_RunWrites](self.path)
        _stores.add(self)
        _watch_forks()

    @abc.abstractmethod
    def _open_rows(self, folder: str) -> Rows:
        """Open the database in a folder."""

    # -- lease -----------------------------------------------------------------------------------

    @_locked
    def acquire(self, run_id: str, owner: Owner) -> int:
        rows = self._opened_to_write()
        if not self._leases().acquire(run_id):
            raise RunOwnedError(run_id=run_id, owner=self._owner_by_name(run_id))
        try:
            rows.begin(durable=False)
            draft = self._draft(rows, run_id)
            if draft is not None:
                rows.put_object(run_id, draft.name, draft.data)
            epoch = epoch_of(rows.lease(run_id)) + 1
            rows.put_lease(run_id, pack_lease(epoch, owner))
            rows.commit()
        except BaseException:
            self._leases().release(run_id)
            raise
        self._drafts.pop(run_id, None)
        self._epochs[run_id] = epoch
        return epoch

    def release(self, run_id: str, epoch: int) -> None:
        # Without the store's lock: a release must work while another thread waits for the disk.
        if self._epochs.get(run_id) == epoch:
            self._epochs.pop(run_id, None)
            self._drafts.pop(run_id, None)  # a copy lies beside the database
            self._marks.close(hashed(run_id))
            self._leases().release(run_id)

    @_locked
    def owner(self, run_id: str) -> Owner | None:
        return self._owner(run_id) if self._exists() else None

    def _owner(self, run_id: str) -> Owner | None:
        pid = self._leases().holder(run_id)
        if pid is None:
            return None
        host = os.uname().nodename
        owner = owner_of(self._opened().lease(run_id) or b"")
        # Runs of this process are known by now: our id in the row is of another container.
        gone = owner is not None and (owner.pid == os.getpid() or not is_alive(owner.pid))
        if owner is None or (not pid and owner.host == host and gone):
            owner = Owner(pid, host, 0.0)
        # Between taking the lock and writing the row, the row still names the previous owner.
        return owner if pid in (0, owner.pid) else Owner(pid, owner.host, owner.since)

    def _owner_by_name(self, run_id: str) -> Owner | None:
        """Return the owner, after a moment if it has the lock and has not written its row yet."""
        for _ in range(_NAMED_AFTER):
            owner = self._owner(run_id)
            if owner is None or owner.pid:
                return owner
            time.sleep(_PAUSE)
        return self._owner(run_id)

    def _leases(self) -> LockFile:
        return lock_file(self._lock_path)

    # -- writing ---------------------------------------------------------------------------------

    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        if self._is_draft(run_id, epoch, batch):
            self._put_draft(run_id, epoch, batch)
        elif len(self._epochs) <= 1:  # nobody else writes here
            self._write((run_id, epoch, batch))
        else:
            self._group.write(_RunWrites((run_id, epoch, batch)), self._write_together)

    @for_several(write)
    def write_all(self, wanted: Sequence[_Wanted]) -> Sequence[BaseException | None]:
        """Write a batch for each of several runs; return what came of each instead."""
        return self._group.write_all([_RunWrites(each) for each in wanted], self._write_together)

    def _write_together(self, waiting: list[_RunWrites]) -> None:
        """Write the batches of several runs, in one transaction if nothing fails."""
        if len(waiting) > 1:
            with contextlib.suppress(StoreError, LeaseLostError):
                self._write(*[each.wanted for each in waiting])
                return
            for each in waiting:  # one by one, so that no run gets the error of another
                try:
                    self._write(each.wanted)
                except (StoreError, LeaseLostError) as error:
                    each.error = error
            return
        self._write(waiting[0].wanted)

    @_locked
    def _write(self, *wanted: _Wanted) -> None:
        rows = self._opened()
        self._leases().keep()
        rows.begin(any(batch.durable for _, _, batch in wanted))
        try:
            for run_id, epoch, batch in wanted:
                self._check(rows, run_id, epoch)
                if run_id in self._drafts:
                    put_objects(rows, run_id, self._drafts[run_id])
                put_batch(rows, run_id, batch)
            rows.commit()
        except BaseException:
            rows.roll_back()
            raise
        for run_id, _, batch in wanted:
            taken = self._drafts.pop(run_id, None) is not None
            if batch.mark:
                self._marks.mark(hashed(run_id), batch.mark, taken=taken)
            elif taken:
                self._marks.taken(hashed(run_id))

    def _put_draft(self, run_id: str, epoch: int, batch: Batch) -> None:
        # Without the store's lock, so that no caller waits here for another run's flush.
        ((name, data),) = batch.put.items()
        try:
            self._marks.draft(hashed(run_id), Draft(epoch, name, bytes(data)))
        except OSError as error:
            raise store_error(self.path, error) from error
        before = self._drafts.get(run_id)
        if before is not None:
            batch = batch._replace(delete=(*before.delete, *batch.delete))
        self._drafts[run_id] = batch

    def _is_draft(self, run_id: str, epoch: int, batch: Batch) -> bool:
        """Return whether a batch is one small object, or its next form, that may wait."""
        more = batch.records or batch.durable or batch.prune or batch.head or batch.mark
        if more or len(batch.put) != 1 or self._epochs.get(run_id) != epoch:
            return False
        before = self._drafts.get(run_id)
        if before is not None and before.put.keys() != batch.put.keys():
            return False
        (data,) = batch.put.values()
        return len(data) <= LARGEST_DRAFT

    def _draft(self, rows: Rows, run_id: str) -> Draft | None:
        """The object that the last owner left beside the database."""
        _, draft = self._marks.read(hashed(run_id))
        if draft is None or draft.epoch != epoch_of(rows.lease(run_id)):
            return None
        return draft

    @_locked
    def delete(self, run_id: str, epoch: int) -> None:
        rows = self._opened()
        rows.begin(durable=True)
        try:
            self._check(rows, run_id, epoch)
            # Marks first: a mark without its records would report a loss; the reverse is harmless.
            self._drafts.pop(run_id, None)
            self._marks.delete(hashed(run_id))
            rows.forget(run_id)
            rows.commit()
        except BaseException:
            rows.roll_back()
            raise

    def _check(self, rows: Rows, run_id: str, epoch: int) -> None:
        row = rows.lease(run_id)
        if row is None or not row.startswith(lease_front(epoch)):
            raise LeaseLostError(run_id=run_id)

    # -- reading ---------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return self._all(lambda rows, *page: rows.records(run_id, after, *page))

    @_locked
    def get(self, run_id: str, name: str) -> bytes | None:
        if not self._exists():
            return None
        rows = self._opened()
        draft = self._draft(rows, run_id)
        if draft is not None and draft.name == name:
            return draft.data
        return rows.get_object(run_id, name)

    @_locked
    def names(self, run_id: str, prefix: str = "") -> list[str]:
        if not self._exists():
            return []
        rows = self._opened()
        found, draft = set(rows.names(run_id, prefix)), self._draft(rows, run_id)
        if draft is not None:
            found.add(draft.name)
        return sorted(name for name in found if name.startswith(prefix))

    @_locked
    def head(self, run_id: str) -> Head | None:
        return self._opened().head(run_id) if self._exists() else None

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        return self._all(lambda rows, *page: rows.heads(workflow, unfinished, *page))

    def newest_heads(self, *, unfinished: bool = False) -> Iterator[Head]:
        """Yield the heads of all runs, or of unfinished ones, those of the newest runs first."""
        cursor: Any = None
        for size in itertools.chain(_NEWEST_PAGES, itertools.repeat(_NEWEST_PAGES[-1])):
            found = self._page(
                lambda rows, *page: rows.newest_heads(unfinished, *page), cursor, size
            )
            for _, head in found:
                if head is not None:
                    yield head
            if len(found) < size:
                return
            cursor = found[-1][0]

    @_locked
    def count_heads(self) -> int:
        """Return how many runs there are, child runs included."""
        return self._opened().count_heads() if self._exists() else 0

    @_locked
    def marks(self, run_id: str) -> list[bytes]:
        return self._marks.read(hashed(run_id))[0]

    @_locked
    def close(self) -> None:
        for run_id, epoch in list(self._epochs.items()):
            self.release(run_id, epoch)
        rows, self._rows = self._rows, None
        if rows is not None:
            self._close(rows)
        if self._copy is not None:
            self._copy.close()

    @_locked
    def free(self) -> int:
        """Bytes of the database that hold nothing; later runs fill them."""
        return self._opened().free() if self._exists() else 0

    @_locked
    def compact(self) -> int:
        """Return the database's free space to the disk; return the number of bytes."""
        return self._opened_to_write().compact() if self._exists() else 0

    def _all(self, page: Callable[[Rows, Any, int], Page[R]]) -> Iterator[R]:
        """Row by row, read page by page; nothing stays open between two pages."""
        cursor: Any = None
        most = _PAGE
        for wanted in itertools.chain(_FIRST_PAGES, itertools.repeat(_PAGE)):
            size = min(wanted, most)
            found = self._page(page, cursor, size)
            for _, item in found:
                if item is not None:
                    yield item
            if len(found) < size:
                return
            cursor = found[-1][0]
            weight = sum(len(item[1]) for _, item in found if type(item) is tuple)  # of records
            most = max(1, min(_PAGE, _WEIGHT * len(found) // max(1, weight)))

    @_locked
    def _page(self, page: Callable[[Rows, Any, int], Page[R]], cursor: Any, size: int) -> Page[R]:
        return page(self._opened(), cursor, size) if self._exists() else []

    # -- the folder and the marks ----------------------------------------------------------------

    def _exists(self) -> bool:
        return inode(self._database) is not None

    def _opened_to_write(self) -> Rows:
        rows = self._opened()
        if self._copy is not None:
            code = unwritable(self._database)
            raise OSError(code, os.strerror(code), self.path)
        return rows

    def _opened(self) -> Rows:
        """Return the open database; reopen it if the folder was deleted and made again."""
        if self._rows is not None:
            current = self._copy is None or self._copy.is_current()
            if current and inode(self._database) == self._inode:
                self._rows.roll_back()
                return self._rows
            rows, self._rows = self._rows, None
            self._close(rows)
            if self._leases().busy:
                raise StoreError(
                    f"the store {self.path} was deleted or replaced while a run was using it",
                    path=self.path,
                    errno=errno.ENOENT,
                )
        self._inode = inode(self._database)
        if unwritable(self._database):
            self._copy = Copy(self._database)
            self._rows = self._open_rows(self._copy.folder)
            self._rows.values = Values(self.path)
            return self._rows
        self._copy = None
        make_folder(self._database)
        check_path(self.path)
        self._rows = self._open_rows(self.path)
        self._inode = inode(self._database)
        guarded(self._database).begin()
        return self._rows

    def _close(self, rows: Rows) -> None:
        if self._copy is not None:
            rows.close()
            return
        with guarded(self._database).end():
            rows.close()


# -- fork ----------------------------------------------------------------------------------------

_stores: weakref.WeakSet[FolderStore] = weakref.WeakSet()
_fork_held: list[FolderStore] = []


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    # A fork while another thread is inside SQLite leaves the child with locks that stay taken.
    for store in list(_stores):
        store._lock.acquire()
        _fork_held.append(store)


def _after_fork() -> None:
    while _fork_held:
        _fork_held.pop()._lock.release()


def _in_child() -> None:
    _fork_held.clear()
    for store in list(_stores):
        store._lock = threading.RLock()
        store._marks.forget()
        store._drafts = {}
        store._epochs = {}
        store._group = Group(store.path)
        if store._rows is not None:
            store._rows.abandon()


# -- reading where nothing can be written --------------------------------------------------------
#
# On a read-only disk, or of another user: SQLite reads a database with a log only where it may make
# files beside it.  So a copy is read, in a folder for a while, and made again when the database has
# changed.

_TRIES = 5


def unwritable(database: str) -> int:
    """The ``errno`` of writing to a database that is there; 0 if nothing speaks against it."""
    folder = os.path.dirname(database)
    try:
        if os.statvfs(database).f_flag & os.ST_RDONLY:
            return errno.EROFS
    except FileNotFoundError:
        return 0
    may = os.access(folder, os.W_OK | os.X_OK) and os.access(database, os.W_OK)
    return 0 if may else errno.EACCES


class Copy:
    """A copy of a database and its log.

    Attributes:
        folder: where it lies.
        close: deletes it; called at the end of this object.
    """

    def __init__(self, database: str) -> None:
        self._files = [database, f"{database}-wal"]
        self.folder = tempfile.mkdtemp(prefix="stepwise-")
        self.close = weakref.finalize(self, _delete, self.folder, os.getpid())
        for _ in range(_TRIES):  # another process may be writing to the database
            self._seen = self._state()
            for file in self._files:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(file, self.folder)
            if self.is_current():
                break

    def is_current(self) -> bool:
        """Return whether the database is unchanged since it was copied."""
        return self._seen == self._state()

    def _state(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                there = os.stat(file)
            except FileNotFoundError:
                found.append(None)
            else:
                found.append((there.st_ino, there.st_size, there.st_mtime_ns))
        return found


def _delete(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # in a forked child, the copy belongs to the parent
        shutil.rmtree(folder, ignore_errors=True)
