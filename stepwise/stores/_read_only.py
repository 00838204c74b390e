"""A database where nothing can be written: on a read-only disk, or of another user.

SQLite reads a database with a log only where it may make files beside it.  So a copy is read, in a
folder for a while, and made again when the database has changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable

__all__ = ["Copy", "unwritable"]

_COPIES = 5


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
        import shutil  # on use: hardly a database is read-only, and these two load twelve modules
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
