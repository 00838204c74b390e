"""The logs in the folder of a store: ours, those of other processes, and the runs that use ours."""

from __future__ import annotations

import contextlib
import os

from stepwise._runtime.group_commit import Share
from stepwise.stores._locks import LockFile, lock_file
from stepwise.stores._process_log import LogReader, ProcessLog, fence
from stepwise.stores.base import Batch

__all__ = ["FolderLogs", "HeldRun", "RunWrites", "Wanted"]

Wanted = tuple[str, int, Batch]  # run id, epoch, batch

_DIGITS = frozenset("0123456789abcdef")
_LOCKS = "locks"  # a file among the logs: the kernel knows by it whose process is alive
_MOST_READERS = 8  # logs of other processes whose contents are kept


def _new_name() -> str:
    return os.urandom(8).hex()


def _is_name(name: str) -> bool:
    """Return whether a log may have that name: what else lies in the folder is left alone."""
    return len(name) == 16 and _DIGITS.issuperset(name)


class RunWrites(Share):
    """A run's writes that wait for the writes of others."""

    __slots__ = ("wanted",)

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self.wanted = wanted


class HeldRun:
    """A run whose lease is held here.

    Attributes:
        key: the name of its file of marks.
        log: the one that the row of its lease names; ``None`` while that is not known.
        generation: the one in that row.
        commit: which of our commits wrote that row.
        steady: the last batch had no head, so that more of the kind will follow.
    """

    __slots__ = ("commit", "epoch", "generation", "key", "log", "steady")

    def __init__(self, epoch: int, key: str) -> None:
        self.epoch, self.key = epoch, key
        self.log: ProcessLog | None = None
        self.generation = self.commit = 0
        self.steady = False

    def would_log(self, batch: Batch) -> bool:
        """Return whether the row of the lease is to name the log from this batch on.

        Not with the first batch: a ring of the bell is one batch, and so is the end of a run.  Who
        takes over a run whose row names the log of a living process takes the log away from it.
        """
        return self.steady and batch.head is None


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
        self.name = _new_name()
        self.own = ProcessLog(self._path(self.name))

    def open(self) -> None:
        """Make our log; from then on the row of a lease may name it."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._locks().acquire(self.name)
        self.own.open()

    def end(self) -> None:
        """Delete our log at the end of the process, if the database lacks nothing."""
        self.own.close_if_empty()

    def leave(self) -> None:
        """Leave our log to whoever has the folder, which is no more in its place."""
        if self.own.is_open:
            self._locks().release(self.name)
        with self.own.mutex:
            self.forget()

    def forget(self) -> None:
        """In a forked child: the parent's log is not ours."""
        self.own.abandon()
        self.name = _new_name()
        self.own = ProcessLog(self._path(self.name))

    # -- of other processes ----------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether there is a log of that name."""
        return _is_name(name) and os.path.exists(self._path(name))

    def dead(self) -> list[str]:
        """The names of logs whose processes are gone."""
        names = [name for name in os.listdir(self._folder) if _is_name(name) and name != self.name]
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
            fence(path)  # of a dead process, too: one whose lock file was deleted looks like it
        except FileNotFoundError:
            return None
        except OSError:
            if self._locks().holder(name) is not None:
                raise
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
