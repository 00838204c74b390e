"""Files whose contents are trusted, after a check that no other user can have written them.

As ssh does: the file and its folder belong to this user or to root, and others may not write there.
"""

from __future__ import annotations

import contextlib
import os
import stat

from stepwise.errors import ConfigurationError

__all__ = ["check_file", "check_folder", "read_trusted"]

_LARGEST = 1 << 16  # bytes
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_trusted(path: str) -> bytes:
    """Read a file that only this user, or root, can have written; others may then read it no more.

    Raises:
        ConfigurationError: somebody else can have written it, or it is no file.
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
    """Look whether others could have written a file, or put it there.

    Raises:
        ConfigurationError: they could, or it is no file.
    """
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(
            f"{path} is not a file; remove it, or set STEPWISE_KEY to a secret"
        )
    _check(path, found, "u=rw,go=")
    for folder in dict.fromkeys((os.path.dirname(path), os.path.dirname(os.path.realpath(path)))):
        check_folder(folder)


def check_folder(folder: str) -> None:
    """Look whether others could replace a file in a folder.

    Raises:
        ConfigurationError: they could.
    """
    found = os.stat(folder)
    sticky = found.st_mode & stat.S_ISVTX  # as in /tmp: users can replace only their own files
    if not sticky or found.st_uid not in (0, os.geteuid()):
        _check(folder, found, "go-w")


def _check(path: str, found: os.stat_result, mode: str) -> None:
    writers = found.st_mode & _OTHERS
    if writers == stat.S_IWGRP and _is_private(found.st_gid):
        writers = 0
    if found.st_uid in (0, os.geteuid()) and not writers:
        return
    whose = (
        f"others may write to it ({stat.S_IMODE(found.st_mode):o})"
        if writers
        else f"it belongs to another user (uid {found.st_uid})"
    )
    mend = f"chmod {mode} {path}" if writers else f"chown {os.geteuid()} {path}"
    raise ConfigurationError(
        f"{path} is not trusted, since {whose}: anybody with the key can make this program "
        f"execute anything. If nobody else has touched it: {mend}. Otherwise set STEPWISE_HOME to "
        "a folder of your own, or STEPWISE_KEY to a secret"
    )


def _is_private(gid: int) -> bool:
    """Return whether a group belongs to this user alone, as many systems arrange it."""
    import grp  # on use
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
