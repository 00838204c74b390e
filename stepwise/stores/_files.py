"""The folder of a disk store: its permissions, durable files, the meaning of errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import sqlite3
import sys

from stepwise._runtime.limits import largest_file, met, way_out
from stepwise._values.buffers import Data, Pieces
from stepwise.errors import ConfigurationError, CorruptStoreError, StoreError

__all__ = [
    "IN_FILES",
    "Values",
    "check_path",
    "damaged",
    "flush",
    "inode",
    "is_alive",
    "make_folder",
    "store_error",
    "sync",
    "write_file",
]

_NETWORK = (
    "nfs", "cifs", "smb", "9p", "sshfs", "afs", "lustre", "ceph", "gluster", "s3fs", "gcsfuse",
    "rclone", "davfs",
)  # fmt: skip


def check_path(path: str) -> None:
    """Refuse a path that diskcache would silently expand; before each opening, it says when."""
    if os.path.expandvars(path) != path:
        raise ConfigurationError(
            f"the store's path {path} names an environment variable; write the path out"
        )


def make_folder(database: str) -> None:
    """Make a store's folder and an empty database, readable by their owner only, if missing."""
    path = os.path.dirname(database)
    check_path(path)
    os.makedirs(path, 0o700, exist_ok=True)
    owner = os.stat(path).st_uid
    if os.geteuid() not in (0, owner) and owner != 0:
        raise StoreError(
            f"the store's folder {path} belongs to another user (uid {owner}), who could read and "
            "change what is recorded; give the store a folder of your own",
            path=path,
            errno=errno.EPERM,
        )
    kind = _network_kind(path)
    if kind is not None and os.environ.get("STEPWISE_ALLOW_NETWORK") != "1":
        raise StoreError(
            f"the store's folder {path} is on a network file system ({kind}), where SQLite's locks "
            "do not hold; use a local disk, or set STEPWISE_ALLOW_NETWORK=1 if only one machine "
            "uses it",
            path=path,
            errno=errno.ENOTSUP,
        )
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # SQLite's error would not name the cause
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
    _make_database(database)


def _make_database(path: str) -> None:
    """An empty file that only its owner can read; SQLite gives its other files the same mode.

    It is made under another name: closing any descriptor of the database itself would drop the
    locks that SQLite holds on it in this process.
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
    """The type of the file system, if it is one whose locks are not to be trusted."""
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
    """Write a new file under the folder ``top``, durably; nothing is left of it if that fails."""
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
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process removed its last file
            return os.open(path, flags, 0o600)
    return os.open(path, flags, 0o600)


def sync(folder: str) -> None:
    """Make changes in a folder durable: new, renamed and deleted files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
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


def inode(path: str) -> tuple[int, int] | None:
    """Return an id that tells a file from a later one of the same name, or ``None`` without one."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    return there.st_ino, there.st_dev


def is_alive(pid: int) -> bool:
    """Return whether there is a process of that id on this machine."""
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
    """Return why SQLite failed, where it tells of a limit as of a bad disk or a missing right."""
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
        errno=None,
    )


# -- large values in files -----------------------------------------------------------------------
#
# A large value has a file of its own beside the database, which is on the disk before the commit; a
# row holds the file's name.  What cannot be read whole is ``b""``, which never verifies; and a row
# that somebody changed leads to no other file.

IN_FILES = 1 << 20  # bytes; from here on a flushed file is faster than a row (measured)
_NAME = r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val"


class Values:
    """The value files of a folder, and which of them the open transaction made or gave up."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fresh: list[str] = []
        self._doomed: list[object] = []

    def write(self, value: Data) -> str:
        """Write a new file, durably; its name."""
        digits = os.urandom(16).hex()
        name = f"{digits[:2]}/{digits[2:4]}/{digits[4:]}.val"
        self._fresh.append(name)
        write_file(os.path.join(self._folder, name), value, self._folder)
        return name

    def read(self, name: object, size: object) -> bytes:
        """The bytes of a file; ``b""`` if it is missing, is of another size, or no such file."""
        if _is_ours(name):
            with contextlib.suppress(OSError):
                with open(os.path.join(self._folder, str(name)), "rb") as file:
                    data = file.read()
                return data if len(data) == size else b""
        return b""

    def give_up(self, name: object) -> None:
        """No row names this file after the commit."""
        self._doomed.append(name)

    def begin(self) -> None:
        """A transaction begins."""
        self._fresh, self._doomed = [], []

    def keep(self) -> None:
        """The transaction was committed."""
        self._fresh = []
        while self._doomed:
            self._remove(self._doomed.pop())

    def undo(self) -> None:
        """Undo a transaction: delete its new value files, and keep the replaced ones."""
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
