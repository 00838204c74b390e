"""Stores, chosen by URL or path: ``disk:/path``, ``memory:``, ``postgresql:``.

Each name in ``memory:NAME`` is a separate store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from stepwise._runtime import settings
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import report_misspelled
from stepwise._runtime.settings import public_url, remember_url, with_password
from stepwise.errors import ConfigurationError
from stepwise.stores.base import Batch, Head, Owner, Store

__all__ = ["Batch", "Head", "Owner", "Store", "close_under", "open_store"]

_POSTGRES = "postgresql"
_METHODS = [name for name in vars(Store) if not name.startswith("_")]
_WRITING = frozenset(("acquire", "write", "write_all", "delete", "note", "erase", "compact"))
_open: dict[str, Store] = {}
_mutex = process_lock()  # held while a store's module is imported under Python's import lock


def open_store(where: str | os.PathLike[str] | Store) -> Store:
    """Open the store for a URL or a path.

    This process has one store object for each URL.  A store object is returned as it is.

    Raises:
        ConfigurationError: the URL's scheme is unknown, its path cannot be used, or ``where`` is
            neither a URL nor a path nor a store.
    """
    if not isinstance(where, (str, os.PathLike)):
        return _checked(where)
    text = os.fspath(where)
    report_misspelled()
    known = _open.get(text)
    if known is not None and not settings.test_home():
        return known
    scheme, rest = _split(with_password(text))
    if scheme == _POSTGRES:
        remember_url(text)
    if settings.test_home():
        scheme, rest = _of_the_test(scheme, rest, settings.test_home())
    with _mutex:
        store = _open.get(f"{scheme}:{rest}")
        if store is None:
            store = _make(scheme, rest)
            # A server's URL may have a password, and the store's own URL lacks it.  Both URLs mean
            # this store.
            store = _open[f"{scheme}:{rest}"] = _open.setdefault(store.url, store)
        return store


def store_for_pages(store: Store, *, to_read: bool) -> Store:
    """Return the store object that pages read, which stays open like those of :func:`open_store`.

    Args:
        to_read: the object can write nothing.
    """
    key, make = f"{store.url}#{to_read}", getattr(store, "for_pages", None)
    with _mutex:
        made = _open.get(key) or (store if make is None else make(to_read=to_read))
        if made is not store:
            _open[key] = made
    return ReadOnlyStore(made) if to_read else made


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


def close_under(folder: str, used: Iterable[Store] = ()) -> None:
    """Close the stores in a test's folder, and the test's stores in memory.

    Args:
        folder: the test's folder.
        used: stores that stay open.
    """
    below, suffix = os.path.realpath(folder) + os.sep, _suffix(folder)
    with _mutex:
        for url, store in list(_open.items()):
            of_the_test = url.partition(":")[2].startswith(below) or url.endswith(suffix)
            if of_the_test and not any(store is each for each in used):
                del _open[url]
                store.close()
    files = sys.modules.get("stepwise.stores._files")
    if files is not None:
        files.close_lock_files(os.path.realpath(folder))


def _suffix(home: str) -> str:
    import hashlib

    return f"@{hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:12]}"


def _of_the_test(scheme: str, rest: str, home: str) -> tuple[str, str]:
    """Replace a store that outlives the test, since old runs would answer the test's calls.

    A store in a temporary folder counts as the test's own, unless the test runs inside that folder.
    """
    import tempfile

    if scheme == "memory":
        return scheme, rest.removesuffix(_suffix(home)) + _suffix(home)
    if scheme == _POSTGRES:
        return "disk", os.path.join(os.path.realpath(home), "stores", _POSTGRES + _suffix(rest))
    session = os.path.dirname(os.path.dirname(os.path.realpath(home)))
    temporary = any(_is_below(rest, each) for each in (tempfile.gettempdir(), "/dev/shm"))  # noqa: S108
    if _is_below(rest, session) or (temporary and not _is_below(rest, os.getcwd())):
        return scheme, rest
    name = os.path.basename(rest) + _suffix(rest)
    return scheme, os.path.join(os.path.realpath(home), "stores", name)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.realpath(folder) + os.sep)


def _checked(store: Store) -> Store:
    if any(store is each for each in list(_open.values())):
        return store
    # Not isinstance(): since Python 3.12, isinstance() ignores the methods that a wrapper delegates
    # to another store with ``__getattr__``.
    missing = [name for name in _METHODS if not hasattr(store, name)]
    if missing:
        raise ConfigurationError(
            f"{type(store).__qualname__} is not a store: it has no {', '.join(missing)}. Give a "
            "URL ('disk:/path'), a path, or an object with the methods of stepwise.stores.Store"
        )
    return store


def _split(text: str) -> tuple[str, str]:
    scheme, colon, rest = text.partition(":")
    # No regular expression, since it would be compiled at every start.
    named = scheme.replace("+", "").replace(".", "").replace("-", "").isalnum()
    if colon and len(scheme) > 1 and scheme[0].isalpha() and named and scheme.isascii():
        rest = rest.removeprefix("//")
    else:  # a path; one letter is a drive
        _refuse_bare_scheme(text)
        scheme, rest = "disk", text
    if scheme in (_POSTGRES, "postgres"):
        return _POSTGRES, f"//{rest}"
    if scheme not in ("memory", "disk"):
        raise ConfigurationError(
            f"no store for {public_url(text)!r}: the URL begins with 'disk:' "
            "(disk:/path/to/folder), 'postgresql:' (postgresql://user@host/database) or 'memory:'"
        )
    if scheme != "memory":
        if not rest:
            raise ConfigurationError(f"the store's URL has no path: write {scheme}:/path/to/folder")
        rest = os.path.realpath(os.path.expanduser(rest))
    return scheme, rest


def _refuse_bare_scheme(text: str) -> None:
    word, _, rest = text.partition("/")
    meant = word in ("memory", "disk", _POSTGRES, "postgres")
    if meant and (not rest or rest.startswith("/")) and not os.path.exists(text):
        url = public_url(f"{word}:{text[len(word) :]}")
        raise ConfigurationError(
            f"the store {public_url(text)!r} is a URL without a colon: write {url!r}; for a "
            f"folder of that name, './{word}'"
        )


def _make(scheme: str, rest: str) -> Store:
    if scheme == "memory":
        from stepwise.stores.memory import MemoryStore

        return MemoryStore(rest)
    if scheme == _POSTGRES:
        return _postgres(f"{scheme}:{rest}")
    from stepwise.stores.disk import DiskStore

    return DiskStore(rest)


def _postgres(url: str) -> Store:
    try:
        from stepwise.stores.postgres import PostgresStore
    except ImportError as error:
        # An error without a module's name means that psycopg is there but finds no libpq.
        if (error.name or "psycopg").partition(".")[0] != "psycopg":
            raise
        raise ConfigurationError(
            f"a store on Postgres needs psycopg ({error}): pip install 'stepwise-agents[postgres]'"
        ) from error
    return PostgresStore(url)
