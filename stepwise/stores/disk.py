"""``disk:/path``: the store on one machine, on diskcache (SQLite in WAL mode).

Rows: ``r/RUN/000000000001`` a record, ``o/RUN/NAME`` an object, ``h/RUN`` the head,
``u/WORKFLOW/RUN`` the same while unfinished, ``l/RUN`` epoch and owner; RUN and WORKFLOW are
hashes.  Beside the database, ``leases`` is the lock file, and ``marks/RUN`` holds the marks and the
draft of an object that the next transaction takes along.

One process writes through one connection behind one lock, which a fork waits for.  Imports: the
protocol, cache, folder, marks and locks, errors.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import socket
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Concatenate, ParamSpec, TypeVar

from stepwise.errors import LeaseLostError, RunOwnedError, StoreError
from stepwise.stores._cache import Cache, open_cache
from stepwise.stores._folder import check_path, inode, make_folder, store_error
from stepwise.stores._locks import LockFile, lock_file
from stepwise.stores._marks import LARGEST_DRAFT, Draft, Marks
from stepwise.stores.base import Batch, Head, Owner

__all__ = ["DiskStore"]

P = ParamSpec("P")
R = TypeVar("R")

_PAGE = 1000  # rows
_DIGITS = 12  # of a record's number
_EPOCH = 24  # bytes: its check sum, and itself


def _locked(
    method: Callable[Concatenate[DiskStore, P], R],
) -> Callable[Concatenate[DiskStore, P], R]:
    """Run a method alone, and turn what SQLite and the system raise into ``StoreError``.

    The lock is taken by a plain ``with``: a generator-based context manager that a Ctrl-C hits
    between two of its frames would keep it for as long as the traceback lives.
    """

    @functools.wraps(method)
    def alone(self: DiskStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
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
                # The last one is sqlite3's own: a message that quotes a damaged name.
                raise store_error(self.path, error) from error

    return alone


class DiskStore:
    """A folder on a local disk.

    Args:
        path: the folder; made when the first run starts, readable by its owner only.

    Raises:
        ConfigurationError: the path cannot be used as it is written.
    """

    persistent = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.realpath(os.path.expanduser(os.fspath(path)))
        check_path(self.path)
        self.url = f"disk:{self.path}"
        self._lock = threading.RLock()
        self._database = os.path.join(self.path, "cache.db")
        self._cache: Cache | None = None
        self._inode: tuple[int, int] | None = None
        self._marks = Marks(os.path.join(self.path, "marks"))
        self._epochs: dict[str, int] = {}  # of the leases held here
        self._drafts: dict[str, Batch] = {}  # what the next transaction of a run takes along
        _stores.add(self)
        _watch_forks()

    # -- lease -----------------------------------------------------------------------------------

    @_locked
    def acquire(self, run_id: str, owner: Owner) -> int:
        cache = self._opened()
        if not self._leases().acquire(run_id):
            raise RunOwnedError(run_id=run_id, owner=self._owner(run_id))
        try:
            cache.begin(durable=False)
            draft = self._draft(cache, run_id)
            if draft is not None:
                cache.set(f"o/{_hash(run_id)}/{draft.name}", draft.data)
            epoch = self._epoch(cache, run_id) + 1
            cache.set(f"l/{_hash(run_id)}", _pack_lease(epoch, owner))
            cache.commit()
        except BaseException:
            self._leases().release(run_id)
            raise
        self._drafts.pop(run_id, None)
        self._epochs[run_id] = epoch
        return epoch

    def release(self, run_id: str, epoch: int) -> None:
        # Without the store's lock: it must work while another thread waits for the disk.
        if self._epochs.get(run_id) == epoch:
            self._epochs.pop(run_id, None)
            self._drafts.pop(run_id, None)  # it lies beside the database
            self._marks.close(_hash(run_id))
            self._leases().release(run_id)

    @_locked
    def owner(self, run_id: str) -> Owner | None:
        return self._owner(run_id) if self._exists() else None

    def _owner(self, run_id: str) -> Owner | None:
        pid = self._leases().holder(run_id)
        if pid is None:
            return None
        row = self._opened().get(f"l/{_hash(run_id)}") or b""
        try:
            owner = Owner(**json.loads(row[_EPOCH:]))
        except (ValueError, TypeError):
            owner = Owner(pid, socket.gethostname(), 0.0)
        # Between taking the lock and writing the row, the row still names the owner before.
        return owner if pid in (0, owner.pid) else Owner(pid, owner.host, owner.since)

    def _epoch(self, cache: Cache, run_id: str) -> int:
        row = cache.get(f"l/{_hash(run_id)}")
        if row is None:
            return 0
        check, digits = row[:8], row[8:_EPOCH]
        if len(digits) == 16 and check == b"%08x" % zlib.crc32(digits):
            return int(digits, 16)
        return int(time.time() * 1000)  # damaged; this is more than any count has come to

    def _leases(self) -> LockFile:
        return lock_file(os.path.join(self.path, "leases"))

    # -- writing ---------------------------------------------------------------------------------

    @_locked
    def write(self, run_id: str, epoch: int, batch: Batch) -> None:
        run, draft = _hash(run_id), self._drafts.get(run_id)
        if draft is None and self._is_draft(run_id, epoch, batch):
            ((name, data),) = batch.put.items()
            self._marks.draft(run, Draft(epoch, name, data))
            self._drafts[run_id] = batch
            return
        cache = self._opened()
        cache.begin(batch.durable)
        try:
            self._check(cache, run_id, epoch)
            for number, data in batch.records:
                cache.set(_key(run, number), data)
            for each in (draft, batch):
                if each is not None:
                    self._put_objects(cache, run, each)
            if batch.prune:
                cache.drop(f"r/{run}/", _key(run, batch.prune + 1))
            if batch.head is not None:
                self._put_head(cache, batch.head)
            cache.commit()
        except BaseException:
            cache.roll_back()
            raise
        if draft is not None:
            self._drafts.pop(run_id, None)
            self._marks.taken(run)
        if batch.mark:
            self._marks.mark(run, batch.mark)

    def _is_draft(self, run_id: str, epoch: int, batch: Batch) -> bool:
        """Whether a batch is one small object that need not survive a power cut yet."""
        return (
            len(batch.put) == 1
            and not (batch.durable or batch.records or batch.prune or batch.head or batch.mark)
            and self._epochs.get(run_id) == epoch
            and all(len(data) <= LARGEST_DRAFT for data in batch.put.values())
        )

    def _put_objects(self, cache: Cache, run: str, batch: Batch) -> None:
        for name, data in batch.put.items():
            cache.set(f"o/{run}/{name}", data)
        for name in batch.delete:
            cache.delete(f"o/{run}/{name}")

    def _draft(self, cache: Cache, run_id: str) -> Draft | None:
        """The object that the last owner left beside the database."""
        _, draft = self._marks.read(_hash(run_id))
        if draft is None or draft.epoch != self._epoch(cache, run_id):
            return None
        return draft

    @_locked
    def delete(self, run_id: str, epoch: int) -> None:
        run, cache = _hash(run_id), self._opened()
        cache.begin(durable=True)
        try:
            self._check(cache, run_id, epoch)
            # First: a mark without its records would tell of a loss; the other way is harmless.
            self._drafts.pop(run_id, None)
            self._marks.delete(run)
            head = _unpack(cache.get(f"h/{run}"))
            if head is not None:
                cache.delete(f"u/{_hash(head.workflow)}/{run}")
            cache.delete(f"h/{run}")
            for kind in "ro":
                cache.drop(f"{kind}/{run}/", f"{kind}/{run}0")  # "0" comes after "/"
            cache.commit()
        except BaseException:
            cache.roll_back()
            raise

    def _check(self, cache: Cache, run_id: str, epoch: int) -> None:
        if self._epoch(cache, run_id) != epoch:
            raise LeaseLostError(run_id=run_id)

    def _put_head(self, cache: Cache, head: Head) -> None:
        run, row = _hash(head.run_id), _pack(head)
        cache.set(f"h/{run}", row)
        if head.finished:
            cache.delete(f"u/{_hash(head.workflow)}/{run}")
        else:
            cache.set(f"u/{_hash(head.workflow)}/{run}", row)

    # -- reading ---------------------------------------------------------------------------------

    def read(self, run_id: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
        run = _hash(run_id)
        for key, data in self._scan(_key(run, after + 1), f"r/{run}0"):
            digits = key[-_DIGITS:]
            if digits.isdecimal() and key == _key(run, int(digits)):  # else damaged: not a record
                yield int(digits), data

    @_locked
    def get(self, run_id: str, name: str) -> bytes | None:
        if not self._exists():
            return None
        cache = self._opened()
        draft = self._draft(cache, run_id)
        if draft is not None and draft.name == name:
            return draft.data
        return cache.get(f"o/{_hash(run_id)}/{name}")

    @_locked
    def names(self, run_id: str, prefix: str = "") -> list[str]:
        if not self._exists():
            return []
        run, cache = f"o/{_hash(run_id)}", self._opened()
        found = {key[len(run) + 1 :] for key in cache.keys(f"{run}/{prefix}", f"{run}0")}
        draft = self._draft(cache, run_id)
        if draft is not None:
            found.add(draft.name)
        return sorted(name for name in found if name.startswith(prefix))

    @_locked
    def head(self, run_id: str) -> Head | None:
        return _unpack(self._opened().get(f"h/{_hash(run_id)}")) if self._exists() else None

    def heads(self, workflow: str | None = None, *, unfinished: bool = False) -> Iterator[Head]:
        prefix = "u/" if unfinished else "h/"
        if unfinished and workflow is not None:
            prefix += f"{_hash(workflow)}/"
        for _, row in self._scan(prefix, prefix + "\U0010ffff"):
            head = _unpack(row)
            if head is not None and workflow in (None, head.workflow):
                yield head

    @_locked
    def marks(self, run_id: str) -> list[bytes]:
        return self._marks.read(_hash(run_id))[0]

    @_locked
    def close(self) -> None:
        for run_id, epoch in list(self._epochs.items()):
            self.release(run_id, epoch)
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    def _scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        page = self._page(start, end)
        while page:
            yield from page
            page = self._page(page[-1][0] + "\0", end) if len(page) == _PAGE else []

    @_locked
    def _page(self, start: str, end: str) -> list[tuple[str, bytes]]:
        """Rows in key order; nothing stays open between two pages."""
        return self._opened().page(start, end, _PAGE) if self._exists() else []

    # -- the folder and the marks ----------------------------------------------------------------

    def _exists(self) -> bool:
        return inode(self._database) is not None

    def _opened(self) -> Cache:
        """The open cache; opened again if the folder was deleted and made anew meanwhile."""
        if self._cache is not None:
            if inode(self._database) == self._inode:
                self._cache.roll_back()
                return self._cache
            self._cache.close()
            self._cache = None
            if self._leases().busy:
                raise StoreError(
                    f"the store {self.path} was deleted or replaced while a run was using it",
                    path=self.path,
                    errno=errno.ENOENT,
                )
        make_folder(self.path)
        self._cache = open_cache(self.path)
        self._inode = inode(self._database)
        return self._cache


@functools.lru_cache(maxsize=256)
def _hash(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _key(run: str, number: int) -> str:
    return f"r/{run}/{number:0{_DIGITS}d}"


def _pack_lease(epoch: int, owner: Owner) -> bytes:
    digits = b"%016x" % epoch
    return b"%08x" % zlib.crc32(digits) + digits + json.dumps(asdict(owner)).encode()


def _pack(head: Head) -> bytes:
    front = json.dumps([head.run_id, head.workflow, head.finished]).encode()
    return len(front).to_bytes(4, "big") + front + head.data


def _unpack(row: bytes | None) -> Head | None:
    if not row:
        return None
    end = 4 + int.from_bytes(row[:4], "big")
    try:
        run_id, workflow, finished = json.loads(row[4:end])
        return Head(run_id, workflow, finished, row[end:])
    except (ValueError, TypeError):
        return None  # a damaged row of the listing; the run's records are the truth


# -- fork ----------------------------------------------------------------------------------------

_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()
_fork_held: list[DiskStore] = []


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    # A fork while another thread is inside SQLite leaves the child with locks nobody frees.
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
        if store._cache is not None:
            store._cache.abandon()
