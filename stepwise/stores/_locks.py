"""Locks for leases on this machine: one file for a store, one byte of it for each run.

The kernel frees a record lock when the holder's process dies, however it dies.  Where the system
has them, locks of *open file descriptions* (OFD, Linux) are used.  A POSIX lock has a trap: a
process drops *all* its locks on a file when it closes *any* descriptor of that file.  An agent that
searches its own home would thus give its run away.  An OFD lock has another trap: a forked child
holds the lock, too, so that it outlives its owner.  The child therefore closes its copies at once.
Neither kind excludes its own process here (one descriptor for each lock file), so a registry does.

SQLite's own locks on a database are POSIX locks.  Once they are dropped, another process may delete
or reset the log into which this process writes.  Acknowledged records were seen to vanish that
way.  A :class:`Guard` holds the same bytes as an OFD lock.

Rejected, after measuring: ``filelock``.  It uses ``flock``, which an orphaned child keeps held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

from stepwise._runtime.forks import forget_in_child, process_lock
from stepwise._runtime.system_limits import unusable
from stepwise.errors import StoreError
from stepwise.stores.base import to_bytes

_TO_LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# struct flock: Linux puts the type first, the BSDs and macOS the offsets.
_LINUX = sys.platform.startswith("linux")
_FLOCK = struct.Struct("@hhqqi0q" if _LINUX else "@qqihh")


@functools.cache
def has_ofd() -> bool:
    """Return whether a lock survives when this process reads and closes the locked file."""
    if not _LINUX or not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query)
    except OSError:  # some sandboxes have no such locks
        return False
    finally:
        os.close(descriptor)
    return True


def _lock(descriptor: int, kind: int, offset: int, size: int = 1) -> None:
    """Take or release a lock of some bytes, without waiting.

    Raises:
        OSError: another process holds the lock (EAGAIN, EACCES), or the lock is not available.
    """
    if has_ofd():
        wanted = _FLOCK.pack(kind, os.SEEK_SET, offset, size, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    else:
        fcntl.lockf(descriptor, _LOCKF[kind] | fcntl.LOCK_NB, size, offset, os.SEEK_SET)


_LOCKF = {
    fcntl.F_RDLCK: fcntl.LOCK_SH,
    fcntl.F_WRLCK: fcntl.LOCK_EX,
    fcntl.F_UNLCK: fcntl.LOCK_UN,
}


class LockFile:
    """A lock file of this process.  Use :func:`lock_file` to get the object for a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mutex = threading.RLock()  # a finalizer may release a lease at any point
        self._descriptor = self._open()
        self._held: set[str] = set()
        forget_in_child(self)

    def acquire(self, name: str) -> bool:
        """Lock ``name``; return False if this or another process holds it."""
        with self._mutex:
            self._reopen_if_replaced()
            if name in self._held:
                return False
            try:
                _lock(self._descriptor, fcntl.F_WRLCK, _offset(name))
            except (BlockingIOError, PermissionError):
                return False
            except OSError as error:
                raise _failed(self.path, error) from error
            self._held.add(name)
            return True

    def release(self, name: str) -> None:
        """Unlock ``name``; do nothing if it is not held."""
        with self._mutex:
            if name in self._held:
                self._held.discard(name)
                with contextlib.suppress(OSError):  # a deleted file holds no lock
                    _lock(self._descriptor, fcntl.F_UNLCK, _offset(name))

    def holder(self, name: str) -> int | None:
        """Return the process id of the holder of ``name``, possibly our own; ``None`` if free.

        Return 0 if another process holds it, and the system does not say which.
        """
        with self._mutex:
            self._reopen_if_replaced()
            if name in self._held:
                return os.getpid()
            return _holder(self._descriptor, _offset(name)) if self._descriptor >= 0 else None

    @property
    def busy(self) -> bool:
        """True if this process holds any lock of the file."""
        return bool(self._held)

    def close(self) -> None:
        """Close the file if this process holds no lock of it; the next use opens the file again."""
        with self._mutex:
            if self._descriptor >= 0 and not self._held:
                os.close(self._descriptor)
                self._descriptor = -1

    def keep(self) -> None:
        """Take the held locks again if the lock file was deleted or replaced.

        A lock that another process took first is lost; the epoch reveals that to its owner.
        """
        try:
            # Without the mutex: a file that is replaced at this moment is noticed the next time.
            if os.fstat(self._descriptor).st_nlink:
                return
        except OSError:
            pass  # closed, or never opened: the code below checks the held locks, with the mutex
        with self._mutex:
            if self._held and not os.fstat(self._descriptor).st_nlink:
                self._reopen_if_replaced()

    def forget(self) -> None:
        """Forget the parent's locks in a forked child: its copies must not outlive the parent."""
        self._mutex = threading.RLock()
        self._held = set()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the program may have closed everything
                os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self.path, _TO_LOCK, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise _failed(self.path, error) from error
        try:  # a read-only file can still be queried for lock holders
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1  # no process holds a lock
        except OSError as error:
            raise _failed(self.path, error) from error

    def _reopen_if_replaced(self) -> None:
        """Follow a lock file that was deleted, or made again, while this process lives."""
        if self._descriptor < 0:
            self._descriptor = self._open()
            return
        ours = os.fstat(self._descriptor)
        if ours.st_nlink and _is_same(self.path, ours):
            return
        old, self._descriptor = self._descriptor, self._open()
        os.close(old)
        for name in list(self._held):
            try:
                _lock(self._descriptor, fcntl.F_WRLCK, _offset(name))
            except OSError:
                self._held.discard(name)


def _is_same(path: str, ours: os.stat_result) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)


def _failed(path: str, error: OSError) -> StoreError:
    return unusable("lock file", path, error, "give the store another folder")


def _offset(name: str) -> int:
    # 62 bits: among a million runs, a collision has a chance of one in ten million.
    digest = hashlib.sha256(to_bytes(name)).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def _holder(descriptor: int, offset: int) -> int | None:
    if _LINUX:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    else:
        query = _FLOCK.pack(offset, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    asked = fcntl.F_OFD_GETLK if has_ofd() else fcntl.F_GETLK
    answer = _FLOCK.unpack(fcntl.fcntl(descriptor, asked, query))
    kind, pid = (answer[0], answer[4]) if _LINUX else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else max(pid, 0)  # -1: a lock of an open file description


_files: dict[str, LockFile] = {}
_files_mutex = process_lock()


def lock_file(path: str) -> LockFile:
    """Return the lock file of this process for an absolute path; only tests close it."""
    with _files_mutex:
        file = _files.get(path)
        if file is None:
            file = _files[path] = LockFile(path)
        return file


def close_lock_files(folder: str) -> None:
    """Close the unused lock files below a folder, at the end of a test."""
    with _files_mutex:
        files = [file for path, file in _files.items() if path.startswith(folder + os.sep)]
    for file in files:
        file.close()


# -- locks of SQLite -----------------------------------------------------------------------------

_SHARED = 0x40000002, 510  # offset and size of SQLite's lock in an open database
_OPEN_LOG = 128, 1  # and of its lock in the index of the log


class Guard:
    """A lasting copy of SQLite's locks on a database that this process has open.

    Use :func:`guarded` to get the object for a path.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._uses = 0
        self._descriptors: list[int] = []
        self._held: Any = None
        forget_in_child(self)

    def begin(self) -> None:
        """Guard the database after a connection was opened and has read something."""
        self._uses += 1
        if not has_ofd() or (self._descriptors and _is_same(self._database, self._held)):
            return
        self._close(self._descriptors)  # the files of a deleted database
        self._descriptors, self._held = [], os.stat(self._database)
        for path, (offset, size) in (
            (self._database, _SHARED),
            (f"{self._database}-shm", _OPEN_LOG),
        ):
            with contextlib.suppress(OSError):  # busy for a moment: continue without a guard
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._descriptors.append(descriptor)
                _lock(descriptor, fcntl.F_RDLCK, offset, size)

    @contextlib.contextmanager
    def end(self) -> Iterator[None]:
        """Unlock around the end of the last connection, which must be able to clean up."""
        self._uses -= 1
        gone = self._descriptors if self._uses <= 0 else []
        if gone:
            self._descriptors = []
        for descriptor in gone:
            with contextlib.suppress(OSError):
                _lock(descriptor, fcntl.F_UNLCK, 0, 0)
        try:
            yield
        finally:
            self._close(gone)  # not earlier: closing would have dropped SQLite's own locks

    def forget(self) -> None:
        """Forget the guard in a forked child, where it must not outlive the parent."""
        gone, self._descriptors, self._uses = self._descriptors, [], 0
        self._close(gone)

    def _close(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # the program may have closed everything
                os.close(descriptor)


_guards: dict[str, Guard] = {}


def guarded(database: str) -> Guard:
    """Return the guard of this process for the absolute path of a database."""
    return _guards.setdefault(database, Guard(database))


@contextlib.contextmanager
def exclusively(path: str) -> Iterator[None]:
    """Hold a whole lock file; wait for other threads and processes that hold it.

    Raises:
        OSError: the lock file cannot be opened.
    """
    path = os.path.realpath(path)
    if not _mutexes:
        os.register_at_fork(after_in_child=_mutexes.clear)
    with _mutexes.setdefault(path, threading.Lock()):  # one open descriptor at a time
        descriptor = os.open(path, _TO_LOCK, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # this releases the lock


_mutexes: dict[str, threading.Lock] = {}
