"""The files of a disk store: permissions, locks, marks, a read-only copy.

``leases`` is the lock file of the leases on this machine, with one byte for each run.  The kernel
frees a record lock when the holder's process dies, however it dies.  Where the system has them,
locks of *open file descriptions* (OFD, Linux) are used.  A POSIX lock has a trap: a process drops
*all* its locks on a file when it closes *any* descriptor of that file.  An agent that searches its
own home would thus give its run away.  An OFD lock has another trap: a forked child holds the lock,
too, so that it outlives its owner.  The child therefore closes its copies at once.  Neither kind
excludes its own process here (one descriptor for each lock file), so a registry does.

SQLite's own locks on a database are POSIX locks.  Once they are dropped, another process may delete
or reset the log into which this process writes.  Acknowledged records were seen to vanish that
way.  A :class:`Guard` holds the same bytes as an OFD lock.

Rejected, after measuring: ``filelock``.  It uses ``flock``, which an orphaned child keeps held.

``marks/RUN`` is a small file beside the database, written without waiting for the disk::

    0    64  the run's second newest mark
    64   64  the newest mark
    128  4   length of the note
    132  ..  the note: the steps in progress, for displays

A note is torn if a crash or a reader comes in between; then its seal does not fit.

SQLite cannot read a database without its log files where it cannot make them: on a read-only disk,
or in the folder of another user.  A temporary copy is read instead, and made again when the
database has changed.  While a process of the owner has the database open, the files are there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import sqlite3
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stepwise._runtime.forks import forget_in_child, process_lock
from stepwise._runtime.system_limits import (
    distrusted,
    largest_file,
    make_private,
    met,
    unusable,
    way_out,
)
from stepwise.errors import ConfigurationError, CorruptStoreError, StoreError
from stepwise.stores.base import to_bytes

# -- files ----------------------------------------------------------------------------------------


_NETWORK = (
    "nfs", "cifs", "smb", "9p", "sshfs", "afs", "lustre", "ceph", "gluster", "s3fs", "gcsfuse",
    "rclone", "davfs",
)  # fmt: skip


class StoreConnection(sqlite3.Connection):
    """A connection of ours, which is no twin of a connection that the user's steps are given.

    Collected, it is closed without the warning of Python 3.13: diskcache closes no connection of a
    thread that has ended, and a program need not close a store.
    """

    def __del__(
        # At the exit of the interpreter the names of the module are gone.
        self,
        suppress: type[contextlib.suppress] = contextlib.suppress,
        unopened: type[Exception] = sqlite3.ProgrammingError,
    ) -> None:
        with suppress(unopened):
            self.close()


def check_path(path: str) -> None:
    """Refuse a path that diskcache would silently expand; checked before each opening."""
    if os.path.expandvars(path) != path:
        raise ConfigurationError(
            f"the store's path {path} names an environment variable; write the path out"
        )


def make_folder(database: str, beside: Iterable[str]) -> None:
    """Make a store's folder and an empty database, readable by their owner only, if missing.

    Args:
        beside: as of :func:`check_folder`.

    Raises:
        StoreError: as of :func:`check_folder`.
    """
    path = os.path.dirname(database)
    check_path(path)
    make_private(path)
    check_folder(database, beside)
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # SQLite's error would not name the cause
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
    _make_database(database)


def check_folder(database: str, beside: Iterable[str]) -> None:
    """Refuse a folder in which files, or SQLite's locks, cannot be trusted.

    Args:
        beside: the names of the store's files and folders beside the database.

    Raises:
        StoreError: others may write there, or the folder is on a network file system.
    """
    path = os.path.dirname(database)
    _check_others(database, beside)
    kind = _network_kind(path)
    if kind is not None and os.environ.get("STEPWISE_ALLOW_NETWORK") != "1":
        raise StoreError(
            f"the store's folder {path} is on a network file system ({kind}), where SQLite's locks "
            "do not hold; use a local disk, or set STEPWISE_ALLOW_NETWORK=1 if only one machine "
            "uses it",
            path=path,
            errno=errno.ENOTSUP,
        )


def _check_others(database: str, beside: Iterable[str]) -> None:
    """Refuse a folder in which others could replace files, or have already done so.

    Raises:
        StoreError: others could, or have.
    """
    folder = os.path.dirname(database)
    names = [f"{database}{end}" for end in ("", "-wal", "-shm")]
    for path in (folder, *names, *(os.path.join(folder, each) for each in beside)):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            reason: tuple[str, str] | None = ("it is a link", f"rm {path}")
        else:
            reason = distrusted(path, found)
        if reason is not None:
            what = "folder " if path == folder else ""
            raise StoreError(
                f"the store's {what}{path} is not trusted, since {reason[0]}: others could change "
                "what is recorded, or have it written over a file of yours. If nobody else has "
                f"touched it: {reason[1]}. Otherwise give the store a folder of your own",
                path=folder,
                errno=errno.EPERM,
            )


def _make_database(path: str) -> None:
    """Make an empty file that only its owner can read; SQLite copies the mode to its other files.

    The file is made under another name.  Closing any descriptor of the database itself would drop
    SQLite's locks on the database in this process.
    """
    if os.path.exists(path):
        return
    draft = f"{path}.{os.urandom(8).hex()}"
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _network_kind(path: str) -> str | None:
    """Return the type of a network file system, whose locks cannot be trusted, or ``None``."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return None  # no /proc: not Linux
    real = os.path.realpath(path)
    best, kind = "", ""
    for escaped, name in mounts:
        point = escaped
        if "\\" in escaped:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped)
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind if kind.removeprefix("fuse.").startswith(_NETWORK) else None


def sync(path: str) -> None:
    """Make changes in a file or a folder durable; those of a folder are its files' names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """Make the contents of a file durable."""
    if sys.platform == "darwin":  # where fsync leaves the data in the memory of the disk
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # a process of another user
    return True


# -- errors --------------------------------------------------------------------------------------

_CODES = {
    3: errno.EACCES,  # SQLITE_PERM
    5: errno.EAGAIN,  # SQLITE_BUSY
    6: errno.EAGAIN,  # SQLITE_LOCKED
    7: errno.ENOMEM,  # SQLITE_NOMEM
    8: errno.EROFS,  # SQLITE_READONLY
    10: errno.EIO,  # SQLITE_IOERR
    13: errno.ENOSPC,  # SQLITE_FULL
    14: errno.EACCES,  # SQLITE_CANTOPEN
    15: errno.EAGAIN,  # SQLITE_PROTOCOL: a race for the log that did not end
}
_TEXTS = (  # Python 3.10 gives no error code
    ("disk is full", errno.ENOSPC),
    ("readonly", errno.EROFS),
    ("disk I/O error", errno.EIO),
    ("unable to open", errno.EACCES),
    ("locked", errno.EAGAIN),
    ("locking protocol", errno.EAGAIN),
)
_ONE_WRITE = 1 << 16  # bytes at most
_INTACT = "Nothing recorded is lost; "
_HINTS = {
    errno.EROFS: _INTACT + "make it writable, or give the store another folder",
    errno.EACCES: _INTACT + "correct its permissions, or give the store another folder",
    errno.EAGAIN: _INTACT + "another process kept it locked for a minute; end that process",
}


def store_error(path: str, error: Exception) -> StoreError:
    """Convert an error of SQLite or the system to ours, which names path, cause and way out."""
    if isinstance(error, OSError):
        code, text = error.errno, error.strerror or str(error)
        path = error.filename if isinstance(error.filename, str) else path
    else:
        text = str(error)
        code = _CODES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        code = code or next((number for part, number in _TEXTS if part in text), None)
        code = _cause(path, code)
        misused = isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError))
        if code is None and not misused:
            return damaged(path, text)  # our statements are correct, so the database is damaged
    name = f" ({errno.errorcode[code]})" if code and code in errno.errorcode else ""
    text = met(code) or text
    hint = _INTACT + way_out(code) if way_out(code) else _HINTS.get(code or 0, "remove the cause")
    return StoreError(
        f"the store {path} failed: {text}{name}. {hint[0].upper()}{hint[1:]} and run again",
        path=path,
        errno=code,
    )


def _cause(folder: str, code: int | None) -> int | None:
    """Return the true cause where SQLite reports a limit or a full disk as I/O or access error."""
    if code not in (errno.EIO, errno.EACCES):
        return code
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        largest = max((each.stat().st_size for each in os.scandir(folder)), default=0)
        full = os.statvfs(folder).f_bavail == 0
    except OSError as error:
        return error.errno if error.errno in (errno.EMFILE, errno.ENFILE) else code
    limit = largest_file()
    if code == errno.EIO and limit is not None and largest + _ONE_WRITE > limit:
        return errno.EFBIG
    return errno.ENOSPC if code == errno.EIO and full else code


def damaged(path: str, what: str) -> CorruptStoreError:
    """Return the error for a database whose contents contradict each other."""
    return CorruptStoreError(
        f"the database of the store {path} is damaged: {what}. Put the folder back from a "
        "backup, then run stepwise restore (the runs then ask about side effects that the backup "
        "lacks). If repeating the side effects is harmless, move the folder away and start over",
        path=path,
    )


# -- locks -----------------------------------------------------------------------------------------


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
                raise _lock_failed(self.path, error) from error
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
                raise _lock_failed(self.path, error) from error
        try:  # a read-only file can still be queried for lock holders
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1  # no process holds a lock
        except OSError as error:
            raise _lock_failed(self.path, error) from error

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


def _lock_failed(path: str, error: OSError) -> StoreError:
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


_lock_files: dict[str, LockFile] = {}
_lock_files_mutex = process_lock()


def lock_file(path: str) -> LockFile:
    """Return the lock file of this process for an absolute path; only tests close it."""
    with _lock_files_mutex:
        file = _lock_files.get(path)
        if file is None:
            file = _lock_files[path] = LockFile(path)
        return file


def close_lock_files(folder: str) -> None:
    """Close the unused lock files below a folder, at the end of a test."""
    with _lock_files_mutex:
        files = [file for path, file in _lock_files.items() if path.startswith(folder + os.sep)]
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


# -- marks ----------------------------------------------------------------------------------------


_SLOT = 64  # bytes
_NOTE_AT = 2 * _SLOT
_LENGTH = struct.Struct("<I")


class Marks:
    """The mark files of one store, by run; each stays open until its run is given up.

    The mutex keeps a write from using a closed descriptor, whose number may belong to another file
    by then.  It is reentrant, since a finalizer may give up a run at any point.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mutex = threading.RLock()
        self._open: dict[str, tuple[int, bytes]] = {}  # descriptors, and the two newest marks
        forget_in_child(self)

    def read(self, run: str) -> tuple[list[bytes], bytes]:
        """Return the marks of a run and its note, unverified; ``b""`` if it has no note."""
        try:
            with self._mutex, open(self._path(run), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return [], b""
        slots = [slot for slot in (data[:_SLOT], data[_SLOT:_NOTE_AT]) if any(slot)]
        at = _NOTE_AT + _LENGTH.size
        size = _LENGTH.unpack_from(data, _NOTE_AT)[0] if len(data) >= at else 0
        return slots, data[at : at + size]

    def mark(self, run: str, mark: bytes) -> None:
        """Write a mark after the newest one, and drop the oldest."""
        with self._mutex:
            descriptor, marks = self._open.get(run) or self._file(run)
            marks = marks[_SLOT:] + mark.ljust(_SLOT, b"\0")
            self._open[run] = descriptor, marks
            os.pwrite(descriptor, marks, 0)  # within a sector, so that it cannot be torn

    def note(self, run: str, note: bytes) -> None:
        """Replace the note of a run."""
        with self._mutex:
            descriptor, _ = self._open.get(run) or self._file(run)
            os.pwrite(descriptor, _LENGTH.pack(len(note)) + note, _NOTE_AT)

    def close(self, run: str) -> None:
        """Close the file of a run."""
        with self._mutex:
            file = self._open.pop(run, None)
            if file is not None:
                os.close(file[0])

    def delete(self, run: str) -> None:
        """Delete the file of a run, durably."""
        self.close(run)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(run))
            sync(self._folder)

    def forget(self) -> None:
        """Forget the parent's files in a forked child."""
        self._mutex = threading.RLock()
        self._open = {}

    def _file(self, run: str) -> tuple[int, bytes]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._path(run), flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            descriptor = os.open(self._path(run), flags, 0o600)
        marks = os.pread(descriptor, _NOTE_AT, 0).ljust(_NOTE_AT, b"\0")
        found = self._open[run] = descriptor, marks
        return found

    def _path(self, run: str) -> str:
        return os.path.join(self._folder, run)


# -- read only ------------------------------------------------------------------------------------


_COPIES = 5


def unwritable(database: str) -> int:
    """Return the ``errno`` of writing to an existing database; 0 if writing seems possible."""
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
        folder: the temporary folder that holds it.
        close: deletes it; called when this object goes.
    """

    def __init__(self, database: str) -> None:
        import shutil  # on use: databases are rarely read-only, and both load twelve modules
        import tempfile

        self._files = [database, f"{database}-wal"]
        self.folder = tempfile.mkdtemp(prefix="stepwise-")
        self.close = weakref.finalize(self, _delete, shutil.rmtree, self.folder, os.getpid())
        for _ in range(_COPIES):  # another process may be writing to the database
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


def _delete(remove: Callable[..., None], folder: str, pid: int) -> None:
    if os.getpid() == pid:  # in a forked child, the copy belongs to the parent
        remove(folder, ignore_errors=True)
