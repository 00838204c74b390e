"""Stores, chosen by URL: ``memory:``, ``memory:NAME``, ``disk:/path``, ``sqlite:/path``, a path.

Imports: the protocol; a store's own module when it is asked for.
"""

from __future__ import annotations

import os
import re
import threading

from stepwise.errors import ConfigurationError
from stepwise.stores.base import Batch, Head, Owner, Store

__all__ = ["Batch", "Head", "Owner", "Store", "open_store"]

_METHODS = [name for name in vars(Store) if not name.startswith("_")]
_open: dict[str, Store] = {}
_mutex = threading.RLock()
# A fork waits for it: else the child would have a lock, of ours or of an import, that nobody frees.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_mutex.release
    )


def open_store(where: str | os.PathLike[str] | Store) -> Store:
    """The store for a URL or a path; one object for each in this process.

    Raises:
        ConfigurationError: the URL's scheme is not known, its path cannot be used, or it is neither
            a URL nor a path nor a store.
    """
    if not isinstance(where, (str, os.PathLike)):
        return _checked(where)
    text = os.fspath(where)
    scheme, rest = _split(text)
    with _mutex:
        store = _open.get(f"{scheme}:{rest}")
        if store is None:
            store = _open[f"{scheme}:{rest}"] = _make(scheme, rest)
        return store


def _checked(store: Store) -> Store:
    # Not isinstance(): since Python 3.12 it does not see what a store that wraps another one hands
    # on by ``__getattr__``.
    missing = [name for name in _METHODS if not hasattr(store, name)]
    if missing:
        raise ConfigurationError(
            f"{type(store).__qualname__} is no store: it has no {', '.join(missing)}. Give a URL "
            "('disk:/path'), a path, or an object with the methods of stepwise.stores.Store"
        )
    return store


def _split(text: str) -> tuple[str, str]:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(?://)?(.*)", text, re.DOTALL)
    scheme, rest = match.groups() if match else ("disk", text)
    if scheme not in ("memory", "disk", "sqlite"):
        raise ConfigurationError(
            f"no store for {text!r}: the URL begins with 'disk:' (disk:/path/to/folder), 'sqlite:' "
            "or 'memory:'"
        )
    if scheme != "memory":
        if not rest:
            raise ConfigurationError(f"the store's URL has no path: write {scheme}:/path/to/folder")
        rest = os.path.realpath(os.path.expanduser(rest))
    return scheme, rest


def _make(scheme: str, rest: str) -> Store:
    if scheme == "memory":
        from stepwise.stores.memory import MemoryStore

        return MemoryStore(rest)
    if scheme == "sqlite":
        from stepwise.stores.sqlite import SqliteStore

        return SqliteStore(rest)
    from stepwise.stores.disk import DiskStore

    return DiskStore(rest)
