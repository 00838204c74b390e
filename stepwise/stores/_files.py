"""The files of a disk store: permissions, durable and large values, marks, a read-only copy.

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
import io
import os
import re
import sqlite3
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable

from stepwise._runtime.forks import forget_in_child
from stepwise._runtime.system_limits import distrusted, largest_file, make_private, met, way_out
from stepwise._values.unpickling import Data, Pieces
from stepwise.errors import ConfigurationError, CorruptStoreError, StoreError

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


def write_file(path: str, value: Data, top: str) -> None:
    """Write a new file under the folder ``top``, durably; leave nothing of it on failure."""
    folder = os.path.dirname(path)
    descriptor = _create(path)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for view in value.views if isinstance(value, Pieces) else (memoryview(value),):
                _write(file, view)
            os.fsync(file.fileno())
        for each in (folder, os.path.dirname(folder), top):
            sync(each)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _write(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _create(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(100):
        make_private(os.path.dirname(path))
        with contextlib.suppress(FileNotFoundError):  # another process removed its last file
            return os.open(path, flags, 0o600)
    return os.open(path, flags, 0o600)


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


# -- large values in files -----------------------------------------------------------------------
#
# A large value has its own file beside the database, which is on the disk before the commit; a row
# holds the file's name.  A file that cannot be read whole yields ``b""``, which never verifies.  A
# tampered row leads to no other file.

IN_FILES = 1 << 20  # bytes; from here on a flushed file is faster than a row (measured)
_NAME = r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val"


class Values:
    """The value files of a folder, and the files that the open transaction made or gave up."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fresh: list[str] = []
        self._doomed: list[object] = []

    def write(self, value: Data) -> str:
        """Write a new file durably; return its name."""
        digits = os.urandom(16).hex()
        name = f"{digits[:2]}/{digits[2:4]}/{digits[4:]}.val"
        self._fresh.append(name)
        write_file(os.path.join(self._folder, name), value, self._folder)
        return name

    def read(self, name: object, size: object) -> bytes:
        """Return the bytes of a file; ``b""`` if it is missing, of another size, or not a value."""
        if _is_ours(name):
            path, flags = os.path.join(self._folder, str(name)), os.O_NONBLOCK | os.O_NOFOLLOW
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
                with open(descriptor, "rb") as file:
                    about = os.fstat(descriptor)  # a pipe or device would never end
                    if stat.S_ISREG(about.st_mode) and about.st_size == size:
                        return file.read()
        return b""

    def give_up(self, name: object) -> None:
        """Delete this file after the commit, when no row names it."""
        self._doomed.append(name)

    def begin(self) -> None:
        """Begin a transaction."""
        self._fresh, self._doomed = [], []

    def keep(self) -> None:
        """Complete a committed transaction: delete the files that it gave up."""
        self._fresh = []
        while self._doomed:
            self._remove(self._doomed.pop())

    def undo(self) -> None:
        """Undo a transaction: delete its new value files, and keep the replaced files."""
        self._doomed = []
        while self._fresh:
            self._remove(self._fresh.pop())

    def _remove(self, name: object) -> None:
        if _is_ours(name):
            path = os.path.join(self._folder, str(name))
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):  # its folders hold other files
                os.removedirs(os.path.dirname(path))


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(_NAME, name) is not None


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
