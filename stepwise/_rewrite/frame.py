"""The protocol between a rewritten function and the code that resumes it.

The base class saves nothing: a function that runs under it behaves like the original.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import AsyncGeneratorType
from typing import Any

from stepwise._values.reducers import Iterating, gives_itself

pending: ContextVar[Frame | None] = ContextVar("stepwise_pending_frame", default=None)
"""The frame for the next rewritten function that is entered in this context."""


enter: Callable[[], Frame | None] = pending.get
"""Called on entry of every rewritten function; returns its frame, or ``None`` to run plainly."""


_VISITED = "@^^"  # the prefix of marks of entered branches: hidden variables, see ``scope``


def visited_name(number: int) -> str:
    """Return the name of the hidden variable that is set once a branch was entered."""
    return f"{_VISITED}{number}"


def visited_in(names: Iterable[str]) -> set[int]:
    """Return the numbers of the branches that were entered."""
    return {int(name[len(_VISITED) :]) for name in names if name.startswith(_VISITED)}


def visible(function: Callable[..., Any], names: Any) -> Any:
    """Return the result of ``locals()``, ``vars()`` or ``dir()`` without the hidden names.

    Each call returns a new dictionary, as every function's ``locals()`` does since Python 3.13.

    Args:
        function: the function that was called, not necessarily the builtin.
        names: the result of the call.
    """
    if function is builtins.locals or function is builtins.vars:
        return {name: value for name, value in names.items() if name[0] != "@"}
    return [name for name in names if name[0] != "@"] if function is builtins.dir else names


class Frame:
    """One execution of a rewritten function.

    Attributes:
        due: a checkpoint is wanted at the next boundary.
        asking: by point, whether a checkpoint may be wanted there although none is due.
        asks: by point, whether ``save`` is to be called there.  It is one list, updated when
            ``due`` changes.
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
        """Bind the frame to the entered function, so that no other function takes it.

        Args:
            points: the number of the last point.
            captured: a function that closes over every variable of the frame that a nested function
                shares; its closure holds the frame's cells.

        Returns:
            The number of the point to resume after, or 0 to begin at the beginning.
        """
        pending.set(None)
        self._everywhere = [True] * (points + 1)
        self.asking = self.asking or [False] * (points + 1)
        self.due = self._due
        return self.target

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Take a checkpoint, if one is wanted here: the code ahead may call something."""
        self.due = False

    def remakes(self, name: str) -> bool:
        """Return whether a resume executes the statement again that made this variable."""
        return False

    # -- loops -----------------------------------------------------------------------------------

    def iter(self, iterable: Any) -> Iterator[Any]:
        """Return the iterator of a loop; the iterator is part of the saved state."""
        iterator = builtins.iter(iterable)
        # The rewritten loop calls ``iter`` on the iterator once more, and a resumed loop again.
        return iterator if gives_itself(iterator) else Iterating(iterator)

    def again(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return the iterator for a resumed loop, whose first pass takes no item."""
        return itertools.chain((None,), iterator)

    def nothing(self) -> tuple[()]:
        """Return the empty iterable for a resumed loop that had already ended."""
        return ()

    def anew(self, iterator: Any) -> bool:
        """Return whether a resumed loop has to make its iterator again."""
        return False

    def counted(self, name: str, iterator: Iterator[Any], values: dict[str, Any]) -> Iterator[Any]:
        """Return an iterator that can be made again from the head of its loop.

        Args:
            name: the hidden variable that holds the iterator.
            values: the local variables.
        """
        return iterator

    def aiter(self, iterable: Any) -> AsyncIterator[Any]:
        """Return the iterator of an asynchronous loop."""
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
        """Return the iterator for a resumed asynchronous loop, whose first pass takes no item."""
        return _AsyncAgain(iterator)

    def anothing(self) -> AsyncIterator[Any]:
        """Return the empty iterator for a resumed asynchronous loop that had already ended."""
        return _AsyncAgain(None)

    # -- with ------------------------------------------------------------------------------------

    def opening(self, number: int) -> None:
        """Note that the managers of a ``with`` statement are about to be evaluated."""

    def manager(self, number: int, index: int, manager: Any) -> Any:
        """Return the context manager to enter in the place of an evaluated one."""
        return manager


class _AsyncAgain:
    """Iterator of a resumed loop, whose first pass takes no item; empty without an iterator.

    An asynchronous generator would not do: after a ``break`` the event loop closes it only later.
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
