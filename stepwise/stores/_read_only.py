"""A store that only reads, for a page that lets nobody change a run."""

from __future__ import annotations

from typing import Any, NoReturn

from stepwise.errors import ConfigurationError
from stepwise.stores.base import Store

_WRITING = frozenset(("acquire", "write", "write_all", "delete", "note", "erase", "compact"))


class ReadOnlyStore:
    """Another store, without the methods that change it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name in _WRITING else getattr(self._store, name)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"the store {self._store.url} was opened to read only: start stepwise ui without "
            "--read-only to change something"
        )
