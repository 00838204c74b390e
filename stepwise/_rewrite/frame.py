"""The protocol between a rewritten function and the code that resumes it.

The base class saves nothing; a function that runs under it behaves as the original, guards and all.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from types import AsyncGeneratorType
from typing import Any

from stepwise._values.reducers import Iterating, gives_itself

pending: ContextVar[Frame | None] = ContextVar("stepwise_pending_frame", default=None)
"""The frame that the next rewritten function to be entered in this context takes."""


enter: Callable[[], Frame | None] = pending.get
"""Called at the entry of every rewritten function: its frame, or ``None`` to run plainly."""


def visible(function: Callable[..., Any], names: Any) -> Any:
    """Return the result of ``locals()``, ``vars()`` or ``dir()`` without the hidden names.

    A dictionary of its own for each call, as everywhere since Python 3.13.

    Args:
        function: what was called; it need not be the builtin.
        names: what it returned.
    """
    if function is builtins.locals or function is builtins.vars:
        return {name: value for name, value in names.items() if name[0] != "@"}
    return [name for name in names if name[0] != "@"] if function is builtins.dir else names


class Frame:
    """One execution of a rewritten function.

    Attributes:
        due: a checkpoint is wanted at the next boundary.
        asking: by point, whether one may be wanted there though none is due.
        asks: by point, whether ``save`` is to be called there; one list, kept by ``due``.
        values: the local variables to begin with, on resume.
        locals: the builtin, called in the rewritten function's own frame.
    """

    __slots__ = ("_due", "_everywhere", "asking", "asks", "locals", "target", "values")

    def __init__(self) -> None:
        self.asks: list[bool] = []
        self.asking: list[bool] = []
        self._everywhere: list[bool] = []
        self._due = False
        self.target = 0
        self.values: Mapping[str, Any] = {}
        self.locals = builtins.locals

    @property
    def due(self) -> bool:
        return self._due

    @due.setter
    def due(self, due: bool) -> None:
        self._due = due
        self.asks[:] = self._everywhere if due else self.asking

    def begin(self, points: int, captured: Callable[[], Any] | None = None) -> int:
        """The function has this frame now, and no other function will take it.

        Args:
            points: the number of the last one.
            captured: a function that closes over every variable of the frame that a nested
                function shares; its closure holds the frame's cells.

        Returns:
            The number of the point to resume after; 0 to begin at the beginning.
        """
        pending.set(None)
        self._everywhere = [True] * (points + 1)
        self.asking = self.asking or [False] * (points + 1)
        self.due = self._due
        return self.target

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Take a checkpoint, if one is wanted here; what comes next may call something."""
        self.due = False

    def remakes(self, name: str) -> bool:
        """On resume: whether the statement that made this variable is to be executed again."""
        return False

    # -- loops -----------------------------------------------------------------------------------

    def iter(self, iterable: Any) -> Iterator[Any]:
        """The iterator of a loop, which is part of the state."""
        iterator = builtins.iter(iterable)
        # The rewritten loop asks for it once more, and a resumed one again.
        return iterator if gives_itself(iterator) else Iterating(iterator)

    def again(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """For a resumed loop: its first pass takes no item."""
        return itertools.chain((None,), iterator)

    def nothing(self) -> tuple[()]:
        """For a resumed loop that had ended."""
        return ()

    def anew(self, iterator: Any) -> bool:
        """For a resumed loop: whether its iterator is to be made again."""
        return False

    def counted(self, name: str, iterator: Iterator[Any], values: dict[str, Any]) -> Iterator[Any]:
        """An iterator that can be made again from the calls and names in the head of the loop.

        Args:
            name: of the hidden variable.
            values: the local variables.
        """
        return iterator

    def aiter(self, iterable: Any) -> AsyncIterator[Any]:
        """The iterator of an asynchronous loop."""
        cls: Any = type(iterable)
        if not hasattr(cls, "__aiter__"):
            raise TypeError(
                f"'async for' requires an object with __aiter__ method, got {cls.__name__}"
            )
        iterator = cls.__aiter__(iterable)
        cls = type(iterator)
        if not hasattr(cls, "__anext__"):
            raise TypeError(
                "'async for' received an object from __aiter__ that does not implement "
                f"__anext__: {cls.__name__}"
            )
        return iterator if cls is AsyncGeneratorType else _AsyncAgain(iterator, skip=0)

    def aagain(self, iterator: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """For a resumed asynchronous loop: its first pass takes no item."""
        return _AsyncAgain(iterator)

    def anothing(self) -> AsyncIterator[Any]:
        """For a resumed asynchronous loop that had ended."""
        return _AsyncAgain(None)

    # -- with ------------------------------------------------------------------------------------

    def opening(self, number: int) -> None:
        """The managers of a ``with`` statement are about to be evaluated."""

    def manager(self, number: int, index: int, manager: Any) -> Any:
        """One of them was; it is returned."""
        return manager


class _AsyncAgain:
    """Nothing to take at first, then the items of an iterator; without one, no pass at all.

    Not an asynchronous generator: one that a ``break`` leaves is closed by the event loop, later.
    """

    def __init__(self, iterator: AsyncIterator[Any] | None, *, skip: int = 1) -> None:
        self.iterator = iterator
        self.skip = skip

    def __aiter__(self) -> _AsyncAgain:
        return self

    async def __anext__(self) -> Any:
        if self.iterator is None:
            raise StopAsyncIteration
        if self.skip:
            self.skip = 0
            return None
        return await type(self.iterator).__anext__(self.iterator)
