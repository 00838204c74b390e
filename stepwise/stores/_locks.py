"""Who holds a lease on this machine: one lock file for a store, one byte of it for each run.

The kernel frees a POSIX record lock when its process dies, however it dies, and a forked child
does not inherit it.  Two traps of these locks shape this module.  They do not exclude their own
process: a registry answers for it.  And *all* of a process's locks on a file are dropped when it
closes *any* descriptor of that file: so there is one descriptor for each lock file, for good.

``filelock`` was measured and not taken: it uses ``flock``, which an orphaned child keeps held.
Imports: errors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
import sys
import threading
from collections.abc import Iterator

from stepwise.errors import StoreError

__all__ = ["LockFile", "exclusively", "lock_file"]

# struct flock, for F_GETLK: Linux puts the type first, the BSDs and macOS the offsets.
_FLOCK = struct.Struct("@hhqqi0q" if sys.platform.startswith("linux") else "@qqihh")


class LockFile:
    """One lock file of this process.  Use :func:`lock_file` to get the one for a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mutex = threading.RLock()  # a finalizer may release a lease anywhere
        self._descriptor = self._open()
        self._held: set[str] = set()

    def acquire(self, name: str) -> bool:
        """Lock ``name``; False if this process or another holds it."""
        with self._mutex:
            self._reopen_if_replaced()
            if name in self._held:
                return False
            try:
                fcntl.lockf(
                    self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(name), os.SEEK_SET
                )
            except (BlockingIOError, PermissionError):
                return False
            except OSError as error:
                raise _failed(self.path, error) from error
            self._held.add(name)
            return True

    def release(self, name: str) -> None:
        """Unlock ``name``; no error if it is not held."""
        with self._mutex:
            if name in self._held:
                self._held.discard(name)
                with contextlib.suppress(OSError):  # a vanished file holds no lock
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _offset(name), os.SEEK_SET)

    def holder(self, name: str) -> int | None:
        """The process id of who holds ``name``, this process included; ``None`` if nobody."""
        with self._mutex:
            self._reopen_if_replaced()
            if name in self._held:
                return os.getpid()
            return _holder(self._descriptor, _offset(name)) if self._descriptor >= 0 else None

    @property
    def busy(self) -> bool:
        """Whether this process holds any lock of the file."""
        return bool(self._held)

    def forget(self) -> None:
        """In a forked child: the parent's locks are not ours."""
        self._mutex = threading.RLock()
        self._held = set()

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise _failed(self.path, error) from error
        try:  # where nothing can be written, it can still be asked who holds what
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1  # nobody
        except OSError as error:
            raise _failed(self.path, error) from error

    def _reopen_if_replaced(self) -> None:
        """Follow a store's folder that was deleted and made again while this process lives."""
        if self._descriptor < 0:
            self._descriptor = self._open()
            return
        ours = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev):
            self._descriptor = self._open()  # the old one stays open: its locks may still be held
            self._held = set()


def _failed(path: str, error: OSError) -> StoreError:
    return StoreError(
        f"the lock file {path} cannot be used: {error.strerror}. Give the store another folder",
        path=path,
        errno=error.errno,
    )


def _offset(name: str) -> int:
    # 62 bits: two of a million runs collide with a chance of one in ten million.
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def _holder(descriptor: int, offset: int) -> int | None:
    if sys.platform.startswith("linux"):
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    else:
        query = _FLOCK.pack(offset, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    if sys.platform.startswith("linux"):
        kind, pid = answer[0], answer[4]
    else:
        kind, pid = answer[3], answer[2]
    return None if kind == fcntl.F_UNLCK else pid


_files: dict[str, LockFile] = {}
_files_mutex = threading.Lock()


def lock_file(path: str) -> LockFile:
    """The lock file of this process for an absolute path; opened once, and never closed."""
    with _files_mutex:
        file = _files.get(path)
        if file is None:
            if not _files:
                os.register_at_fork(after_in_child=_after_fork)
            file = _files[path] = LockFile(path)
        return file


def _after_fork() -> None:
    global _files_mutex  # noqa: PLW0603
    _files_mutex = threading.Lock()
    for file in _files.values():
        file.forget()


@contextlib.contextmanager
def exclusively(path: str) -> Iterator[None]:
    """Hold a whole lock file, waiting for other threads and processes that hold it.

    Raises:
        OSError: the lock file cannot be opened.
    """
    path = os.path.realpath(path)
    if not _mutexes:
        os.register_at_fork(after_in_child=_mutexes.clear)
    with _mutexes.setdefault(path, threading.Lock()):  # so that one descriptor is open at a time
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # which gives the lock up


_mutexes: dict[str, threading.Lock] = {}
