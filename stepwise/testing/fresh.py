"""A fresh store for a test, in a process that behaves as if just started."""

from __future__ import annotations

import functools
import inspect
import os
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from stepwise._calls.limited import settle
from stepwise._execution import process_memory
from stepwise._execution.message_watcher import watcher
from stepwise._runtime import settings as _config
from stepwise.stores import Store, open_store
from stepwise.stores.memory import MemoryStore

F = TypeVar("F", bound=Callable[..., Any])


class fresh_store:  # noqa: N801
    """Replace the default store by a fresh one within the block; afterwards restore everything.

    Within the block the program behaves as if just started: no earlier run is remembered.  A
    workflow with its own ``store=`` keeps that store.

    It is also a decorator of functions and coroutine functions; each call then gets a new store.

    Args:
        folder: keep the runs on disk, in this folder, or in the store of this URL.  To test a crash
            and the start after it, use two blocks with one folder.  Without a folder the runs are
            kept in memory.

    Example:
        >>> with fresh_store() as store:
        ...     agent("invite the team")
        ...     assert [run.status for run in stepwise.runs()] == ["completed"]
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = folder
        self._outer: list[tuple[Store, dict[str, Any], dict[str, Any]]] = []

    def __enter__(self) -> Store:
        store: Store
        if self._folder is None:
            store = MemoryStore(f"fresh-{secrets.token_hex(8)}")
        else:
            store = open_store(self._folder)
        settings, memory = vars(_config._settings), vars(process_memory.memory)
        self._outer.append((store, settings.copy(), memory.copy()))
        settings.update(store=store)
        memory.update(vars(process_memory.ProcessMemory()))
        return store

    def __exit__(self, *exception: object) -> None:
        store, settings, memory = self._outer.pop()
        vars(_config._settings).update(settings)
        vars(process_memory.memory).update(memory)
        if store.persistent:
            settle(store)
            watcher.finish_look()  # or it may recreate a folder that the caller deletes
            store.close()

    def __call__(self, function: F) -> F:
        """Decorate ``function``: each call runs in a separate block."""
        folder = self._folder

        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with fresh_store(folder):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def awaited_within(*args: Any, **kwargs: Any) -> Any:
            with fresh_store(folder):
                return await function(*args, **kwargs)

        decorated: Any = awaited_within if inspect.iscoroutinefunction(function) else within
        result: F = decorated
        return result
