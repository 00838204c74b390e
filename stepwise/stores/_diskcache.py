"""Creation and repair of a ``disk:`` store's database, by diskcache itself.

The only module that imports diskcache, on use: a database that is as it should be is opened without
it.  The package loads ``tempfile``, ``random``, ``pickletools``, queues and locks, which was a
twelfth of the time to resume; and its ``__init__`` imports all of its modules, whichever is asked
for, so that importing only ``diskcache.core`` spares nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NoReturn

import diskcache
from diskcache.core import DEFAULT_SETTINGS, METADATA

__all__ = ["make_cache"]

_UNUSED = {
    "Cache_expire_time": "INDEX",
    "Settings_count_insert": "TRIGGER",
    "Settings_count_delete": "TRIGGER",
    "Settings_size_insert": "TRIGGER",
    "Settings_size_update": "TRIGGER",
    "Settings_size_delete": "TRIGGER",
}


def make_cache(
    connection: sqlite3.Connection, folder: str, settings: dict[str, Any], seconds: float
) -> None:
    """Make or repair a cache: its tables, its settings, and nothing that is not used here.

    Args:
        seconds: how long to wait for a database in use.
    """
    _Making(connection, folder, settings, seconds)
    for name, kind in _UNUSED.items():  # another opener may have made it
        connection.execute(f"DROP {kind} IF EXISTS {name}")


class _Disk(diskcache.Disk):  # type: ignore[misc]
    """Nothing that diskcache does by itself may pickle or unpickle."""

    def __init__(self, directory: str, **_: object) -> None:
        super().__init__(directory)  # other settings in the database are ignored

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("values are not read or written here")

    put = get = store = fetch = _refuse


class _Making(diskcache.Cache):  # type: ignore[misc]
    """A cache while it opens, on a connection that stays open."""

    def __init__(
        self, connection: sqlite3.Connection, folder: str, settings: dict[str, Any], seconds: float
    ) -> None:
        self._connection = connection
        self._settings = {**DEFAULT_SETTINGS, **settings}
        try:
            self._told = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
        except sqlite3.OperationalError:
            self._told = {}  # a new database
        super().__init__(folder, timeout=seconds, disk=_Disk, **self._settings)

    @property
    def _con(self) -> sqlite3.Connection:
        return self._connection

    def close(self) -> None:
        """Leave the connection open: closing it would sync the log."""

    def reset(self, key: str, *value: Any, **how: Any) -> Any:
        if key in self._settings or key in METADATA:
            return super().reset(key, *value, **how)
        return None

    def _is_told(self, statement: str, values: tuple[Any, ...]) -> bool:
        """Return whether a statement would write a setting that is already stored."""
        if "INTO Settings VALUES" in statement:
            key, value = values
        elif statement.startswith("UPDATE Settings SET value"):
            value, key = values
        else:
            return False
        return key in self._told and (key in METADATA or self._told[key] == value)

    @property
    def _sql_retry(self) -> Callable[..., Any]:
        """Return diskcache's settings for a new database, without unused features.

        And without writing again what is there: a store on a full disk can be looked at.
        """
        execute = super()._sql_retry

        def sql(statement: str, *parameters: Any) -> Any:
            unused = statement.startswith("CREATE ") and any(name in statement for name in _UNUSED)
            if unused or self._is_told(statement, *parameters or ((),)):
                return None
            return execute(statement, *parameters)

        return sql
