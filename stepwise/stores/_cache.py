"""A folder of bytes by key that may be lost: a diskcache with a size limit and its own eviction.

Values lie in the database alone, so that a tampered row leads to no other file.  Nothing is pickled
or unpickled.  Rejected: a table of the store, whose rows must never be evicted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import diskcache

from stepwise._runtime.forks import process_lock
from stepwise.errors import StoreError
from stepwise.stores._files import StoreConnection, make_folder

T = TypeVar("T")

_DAMAGES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_BUSY_SECONDS = 2.0  # for which a call waits while other processes write
_SETTINGS = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "least-recently-stored",  # a reader writes nothing
    "sqlite_auto_vacuum": 1,  # the size of the file decides about eviction
    "sqlite_mmap_size": 0,
    "sqlite_secure_delete": 1,
    "disk_min_file_size": 2**31 - 1,
    "disk_pickle_protocol": 5,
}


class _InRows(diskcache.Disk):  # type: ignore[misc]
    """A disk of ``bytes`` under ``str`` keys, all in the database."""

    def put(self, key: str) -> tuple[str, bool]:
        return key, True

    def get(self, key: str, raw: bool) -> str:
        return key

    def store(self, value: bytes, read: bool, key: object = None) -> tuple[int, int, None, Any]:
        return 0, diskcache.core.MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        return value if type(value) is bytes else b""  # tampered: these bytes do not verify

    def remove(self, file_path: str) -> None:
        """Leave all files alone: no value is in a file."""


class _Cache(diskcache.Cache):  # type: ignore[misc]
    """A diskcache with a connection of ours."""

    @property
    def _con(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "con", None)
        if connection is None:
            # As diskcache connects, which takes no class.
            connection = self._local.con = sqlite3.connect(
                os.path.join(self.directory, diskcache.core.DBNAME),
                timeout=self._timeout,
                isolation_level=None,
                check_same_thread=False,  # another thread may be the one that collects it
                factory=StoreConnection,
            )
            with contextlib.suppress(sqlite3.OperationalError):  # there are no settings yet
                for key, value in connection.execute("SELECT key, value FROM Settings").fetchall():
                    if key.startswith("sqlite_"):
                        self.reset(key, value, update=False)
        return connection


class ByteCache:
    """Bytes by key, of which the oldest are evicted beyond a size.

    Args:
        folder: the folder; made when a value is stored, readable by its owner only.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = process_lock()
        self._cache: Any = None
        self._opened = 0, 0  # the process, and the size limit
        self._inherited: list[Any] = []  # connections of the parent process, which are not closed

    def get(self, key: str) -> bytes | None:
        """Return a value, or ``None`` if it is missing.

        Raises:
            StoreError: the folder cannot be read.
        """
        found: bytes | None = self._use(lambda cache: cache.get(key))
        return found

    def put(self, key: str, data: bytes, size_limit: int, expire: float | None) -> None:
        """Store a value, and evict the oldest ones beyond the size limit.

        Args:
            size_limit: in bytes.
            expire: seconds after which the value may be deleted; ``None`` for never.

        Raises:
            StoreError: the value cannot be written.
        """
        self._use(lambda cache: cache.set(key, data, expire=expire), size_limit)

    def keys(self) -> Iterator[str]:
        """Yield all keys."""
        yield from self._use(list) or ()

    @property
    def size(self) -> int:
        """The size on the disk, in bytes."""
        return self._use(lambda cache: cache.volume()) or 0

    def clear(self, is_wanted: Callable[[str], bool]) -> int:
        """Delete the values whose keys are wanted; return their number."""
        wanted = [key for key in self.keys() if is_wanted(key)]
        return self._use(lambda cache: sum(map(cache.delete, wanted))) or 0

    def destroy(self) -> None:
        """Delete everything, whatever state it is in."""
        with self._lock:
            if self._cache is not None:
                self._cache.close()
            self._cache = None
            shutil.rmtree(self.folder, ignore_errors=True)

    def _use(self, do: Callable[[Any], T], size_limit: int = 0) -> T | None:
        """Do something with the database; ``None`` if it does not exist and need not be made."""
        with self._lock:
            try:
                if not (size_limit or os.path.exists(self._database)):
                    return None
                return do(self._open(size_limit))
            except (sqlite3.Error, OSError, diskcache.Timeout, *_DAMAGES) as error:
                self._drop()
                raise _unusable(self.folder, error) from error
            except BaseException:  # a Ctrl-C in diskcache leaves its transaction open
                self._drop()
                raise

    @property
    def _database(self) -> str:
        return os.path.join(self.folder, "cache.db")

    def _open(self, size_limit: int) -> Any:
        pid = os.getpid()
        if self._cache is not None and self._opened[0] != pid:
            self._inherited.append(self._cache)
            self._cache = None
        if self._cache is None:
            make_folder(self._database, ())
            self._cache = _Cache(self.folder, timeout=_BUSY_SECONDS, disk=_InRows, **_SETTINGS)
            self._opened = pid, 0
        if size_limit and self._opened[1] != size_limit:
            self._cache.reset("size_limit", size_limit)
            self._opened = pid, size_limit
        return self._cache

    def _drop(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._cache = None


def _unusable(folder: str, error: Exception) -> StoreError:
    busy = isinstance(error, diskcache.Timeout)
    why = "other processes use it" if busy else f"{type(error).__name__}: {error}"
    return StoreError(
        f"the cache {folder} cannot be used ({why}); stepwise cache --clear empties it",
        path=folder,
    )
