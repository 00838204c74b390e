"""Limits of the system with their remedies, and files that only trusted users can have written.

Limits of the system are reported by name, with the remedy.

Running out of memory is never a property of the value at hand.  A run that continued afterwards
could repeat an unrecorded call, so it stops.

Files and folders are trusted after a check that no other user can have written them.

The rule is that of ssh: a file and its folder belong to this user or to root, and others may not
write there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from stepwise.errors import ConfigurationError, StoreError

# -- limits ---------------------------------------------------------------------------------------


_MORE = "give the program more memory (ulimit -v, the limit of its container)"
_WAYS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "raise that limit (ulimit -f unlimited)",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or let the program close some",
    errno.ENFILE: "end programs that hold files open, or raise the system's limit (fs.file-max)",
    errno.ENOMEM: _MORE,
}


def way_out(code: int | None) -> str:
    """Return the remedy for a limit; empty for another error."""
    return _WAYS.get(code or 0, "")


def largest_file() -> int | None:
    """Return the largest allowed file size in bytes (``ulimit -f``); ``None`` for no limit."""
    import resource  # on use: a shared library

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def met(code: int | None) -> str:
    """Return the name of a limit for a message; empty for another error."""
    if code == errno.EFBIG and (limit := largest_file()) is not None:
        return f"file too large: a limit on file sizes (ulimit -f, {limit:,} bytes)"
    return {errno.EMFILE: "too many open files: a limit of the process (ulimit -n)"}.get(
        code or 0, ""
    )


def unusable(what: str, path: str, error: OSError, way: str) -> StoreError:
    """Return the error for a file that cannot be used.

    Args:
        what: the file, in words.
        way: the remedy, unless the error has one of its own.
    """
    way = way_out(error.errno) or way
    return StoreError(
        f"the {what} {path} cannot be used: {met(error.errno) or error.strerror}. "
        f"{way[0].upper()}{way[1:]}",
        path=path,
        errno=error.errno,
    )


def ran_out(doing: str, error: MemoryError) -> MemoryError:
    """Return an error that names the activity during which memory ran out.

    The frames of ``error`` are released, and with them the objects they hold.
    """
    error.with_traceback(None)
    return error if error.args else MemoryError(f"memory ran out while {doing}")


def stopped(doing: str, error: MemoryError, then: str = "", path: str = "") -> StoreError:
    """Return the error that stops a run in whose records memory ran out.

    Args:
        then: what happens to the call at the next start.
    """
    return StoreError(
        f"{ran_out(doing, error)}. Nothing recorded is lost; {_MORE} and run it again{then}",
        path=path,
        errno=errno.ENOMEM,
    )


# -- file trust -----------------------------------------------------------------------------------


_LARGEST = 1 << 16  # bytes
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_trusted(path: str) -> bytes:
    """Read a file that only this user or root can have written, and make it private.

    Raises:
        ConfigurationError: another user can have written it, or it is not a file.
        OSError: it cannot be read.
    """
    # Non-blocking: opening a FIFO of that name would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        check_file(path, found)
        if found.st_mode & 0o077:
            with contextlib.suppress(OSError):  # a read-only disk keeps the mode
                os.chmod(descriptor, 0o600)  # a copy or a restore may have widened the mode
        return file.read(_LARGEST)


def check_file(path: str, found: os.stat_result) -> None:
    """Raise an error if others could have written a file, or put it there.

    Raises:
        ConfigurationError: others could have written it, or it is not a file.
    """
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(
            f"{path} is not a file; remove it, or set STEPWISE_KEY to a secret"
        )
    _check(path, found)
    check_folder(os.path.dirname(path))
    if os.path.islink(path):
        check_folder(os.path.dirname(os.path.realpath(path)))


def check_folder(folder: str) -> None:
    """Raise an error if others could replace a file in a folder.

    Raises:
        ConfigurationError: others could replace a file.
    """
    _check(folder, os.stat(folder))


def _check(path: str, found: os.stat_result) -> None:
    reason = distrusted(path, found)
    if reason is not None:
        why, mend = reason
        raise ConfigurationError(
            f"{path} is not trusted, since {why}: anybody with the key can make this program "
            f"execute anything. If nobody else has touched it: {mend}. Otherwise set STEPWISE_HOME "
            "to a folder of your own, or STEPWISE_KEY to a secret"
        )


def distrusted(path: str, found: os.stat_result) -> tuple[str, str] | None:
    """Return why others could have written a file or replaced one in a folder, with the remedy.

    Returns:
        the reason in words, and the command that repairs it; ``None`` if they could not.
    """
    ours = found.st_uid in (0, os.geteuid())
    folder = stat.S_ISDIR(found.st_mode)
    if folder and ours and found.st_mode & stat.S_ISVTX:
        return None  # as in /tmp: users can replace only their own files
    if not ours:
        return f"it belongs to another user (uid {found.st_uid})", f"chown {os.geteuid()} {path}"
    writers = found.st_mode & _OTHERS
    if writers == stat.S_IWGRP and _is_private(found.st_gid):
        writers = 0
    if writers:
        mode = "go-w" if folder else "u=rw,go="
        why = f"others may write to it ({stat.S_IMODE(found.st_mode):o})"
        return why, f"chmod {mode} {path}"
    return None


def make_private(folder: str) -> None:
    """Create a folder for its owner only; others may not write to created parent folders.

    Raises:
        OSError: the folder cannot be created.
    """
    above, missing = os.path.dirname(folder), list[str]()
    while above and not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was first
            os.mkdir(each, 0o755)
    os.makedirs(folder, 0o700, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file for writing that only this user can read; an ``opener`` for :func:`open`.

    Raises:
        OSError: the file cannot be opened, or another user has put a link or a file in its place.
    """
    there = os.lstat(path) if os.path.islink(path) else None
    if there is None or there.st_uid not in (0, os.geteuid()):  # /dev/stdout is a link of root's
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):  # not a pipe, nor /dev/null
            _refuse_foreign(path, found)
            os.fchmod(descriptor, 0o600)  # before anything is in it
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_foreign(path: str, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})", path)


def _is_private(gid: int) -> bool:
    """Return whether a group belongs to this user alone, as many systems arrange it."""
    import grp  # on use
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
