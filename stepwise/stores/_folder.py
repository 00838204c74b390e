"""The folder of a disk store: who may use it, how files get onto the disk, what errors mean.

Imports: errors.
"""

from __future__ import annotations

import errno
import os

from stepwise.errors import StoreError

__all__ = ["inode", "make_folder", "store_error", "write_file"]

_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "lustre", "ceph", "gluster")


def make_folder(path: str) -> None:
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
    # SQLite gives its other files the mode of the database.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    os.close(os.open(os.path.join(path, "cache.db"), flags, 0o600))


def _network_kind(path: str) -> str | None:
    """The type of the file system, if it is one whose locks are not to be trusted."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return None  # no /proc: not Linux
    real = os.path.realpath(path)
    best, kind = "", ""
    for point, name in mounts:
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind if kind.startswith(_NETWORK) else None


def write_file(path: str, value: bytes, top: str) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, 0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        view = memoryview(value)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
    for each in (folder, os.path.dirname(folder), top):
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_CODES = {
    5: errno.EAGAIN,  # SQLITE_BUSY
    6: errno.EAGAIN,  # SQLITE_LOCKED
    8: errno.EROFS,  # SQLITE_READONLY
    10: errno.EIO,  # SQLITE_IOERR
    13: errno.ENOSPC,  # SQLITE_FULL
    14: errno.EACCES,  # SQLITE_CANTOPEN
}
_TEXTS = (  # Python 3.10 gives no error code
    ("disk is full", errno.ENOSPC),
    ("readonly", errno.EROFS),
    ("disk I/O error", errno.EIO),
    ("unable to open", errno.EACCES),
    ("locked", errno.EAGAIN),
)


def store_error(path: str, error: Exception) -> StoreError:
    if isinstance(error, OSError):
        code, text = error.errno, error.strerror or str(error)
        path = error.filename if isinstance(error.filename, str) else path
    else:
        text = str(error)
        code = _CODES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        code = code or next((number for part, number in _TEXTS if part in text), None)
    name = f" ({errno.errorcode[code]})" if code and code in errno.errorcode else ""
    hint = {
        errno.ENOSPC: "free some space",
        errno.EROFS: "make it writable, or give the store another folder",
        errno.EACCES: "mend its permissions, or give the store another folder",
        errno.EAGAIN: "another process kept it locked for a minute; end that one",
    }.get(code or 0, "mend the cause")
    return StoreError(
        f"the store {path} failed: {text}{name}. Nothing recorded is lost; {hint} and run again",
        path=path,
        errno=code,
    )


def inode(path: str) -> tuple[int, int] | None:
    """What tells a file from another one that took its name; ``None`` if there is none."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    return there.st_ino, there.st_dev
