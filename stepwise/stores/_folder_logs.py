"""The logs in the folder of a store: the one of this process, and those of others."""

from __future__ import annotations

import contextlib
import os

from stepwise.stores._locks import LockFile, lock_file
from stepwise.stores._process_log import LogReader, ProcessLog, fence

__all__ = ["FolderLogs"]

_LOCKS = "locks"  # a file among the logs: the kernel knows by it whose process is alive
_MOST_READERS = 8  # logs of other processes whose contents are kept


class FolderLogs:
    """The logs in a folder.

    Args:
        folder: made with the first log.

    Attributes:
        own: the log of this process.
        name: of its file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._readers: dict[str, LogReader] = {}
        self.name, self.own = "", ProcessLog("")
        self.begin()

    # -- ours ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Delete our log, which the database has taken in, and begin another one."""
        self.own.close()
        if self.name and os.path.isdir(self._folder):
            self._locks().release(self.name)
        self.name = os.urandom(8).hex()
        self.own = ProcessLog(self._path(self.name))

    def open(self) -> None:
        """Make our log; from then on the row of a lease may name it."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._locks().acquire(self.name)
        self.own.open()

    def end(self) -> None:
        """Delete our log at the end of the process, if the database lacks nothing."""
        self.own.close_if_empty()

    def forget(self) -> None:
        """In a forked child: the parent's log is not ours."""
        self.own.abandon()
        self.name = os.urandom(8).hex()
        self.own = ProcessLog(self._path(self.name))

    # -- of other processes ----------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether there is a log of that name."""
        return bool(name) and os.path.exists(self._path(name))

    def dead(self) -> list[str]:
        """The names of logs whose processes are gone."""
        names = [name for name in os.listdir(self._folder) if name not in (_LOCKS, self.name)]
        return [name for name in names if self._locks().holder(name) is None]

    def read(self, name: str) -> LogReader:
        """Return what a log holds now."""
        found = self._readers.pop(name, None) or LogReader(self._path(name))
        found.look()
        self._readers[name] = found
        while len(self._readers) > _MOST_READERS:
            del self._readers[next(iter(self._readers))]
        return found

    def take(self, name: str) -> LogReader | None:
        """Return what a log holds and its owner writes no more; ``None`` if it is gone."""
        path = self._path(name)
        try:
            if self._locks().holder(name) is not None:  # otherwise nobody could write
                fence(path)
        except FileNotFoundError:
            return None
        reader = LogReader(path)
        reader.look()
        return reader

    def delete(self, name: str) -> None:
        """Delete a log that the database has taken in."""
        self._readers.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, os.path.basename(name))

    def _locks(self) -> LockFile:
        return lock_file(os.path.join(self._folder, _LOCKS))
