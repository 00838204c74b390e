"""Threads that a run's code starts belong to the run.

``asyncio.to_thread`` carries context variables over; ``threading.Thread`` and
``ThreadPoolExecutor.submit`` do not (before Python 3.14's ``thread_inherit_context``), and a step
called there would run unrecorded.  While a run is in progress those two are wrapped so that they
carry one variable over: which run and step they were called in (``None`` for outside of any).
Nothing else of theirs changes, and with the last run they are themselves again.

Imports nothing of ours.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

__all__ = ["Carrier"]


class Carrier:
    """Carries one context variable into new threads, while somebody asks for it."""

    def __init__(self, variable: ContextVar[Any]) -> None:
        self._variable = variable
        self._mutex = threading.Lock()
        self._users = 0
        self._installed: list[_Wrapped] = []

    def __enter__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # on the first run, not at import

        with self._mutex:
            self._users += 1
            if not self._installed:
                self._installed = [
                    _Wrapped(threading.Thread, "start", self._start),
                    _Wrapped(ThreadPoolExecutor, "submit", self._submit),
                ]

    def __exit__(self, *exception: object) -> None:
        with self._mutex:
            self._users -= 1
            # Where somebody wrapped it after us, ours stays below his, and idle.
            if self._users == 0 and all(each.on_top for each in self._installed):
                for each in self._installed:
                    each.undo()
                self._installed = []

    def _start(self, start: Callable[..., None], thread: threading.Thread) -> None:
        value, run = self._variable.get(None), thread.run

        def carrying() -> None:
            del thread.run  # the instance's, so that no cycle stays
            self._variable.set(value)
            run()

        thread.run = carrying  # type: ignore[method-assign]
        start(thread)

    def _submit(
        self,
        submit: Callable[..., Any],
        pool: Any,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        value = self._variable.get(None)

        def carrying(*args: Any, **kwargs: Any) -> Any:
            token = self._variable.set(value)
            try:
                return fn(*args, **kwargs)
            finally:
                self._variable.reset(token)

        # A worker thread that this submit starts outlives the call: it must not keep the value.
        token = self._variable.set(None)
        try:
            return submit(pool, carrying, *args, **kwargs)
        finally:
            self._variable.reset(token)


class _Wrapped:
    """A method replaced by a function that gets the original first."""

    def __init__(self, owner: type, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        self._owner, self._name, self._original, self._wrapper = owner, name, original, wrapper
        setattr(owner, name, wrapper)

    @property
    def on_top(self) -> bool:
        return getattr(self._owner, self._name) is self._wrapper

    def undo(self) -> None:
        setattr(self._owner, self._name, self._original)
