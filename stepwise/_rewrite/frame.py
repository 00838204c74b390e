"""The protocol between a rewritten function and the code that resumes it.

The base class saves nothing; a function that runs under it behaves as the original, guards and all.
Imports nothing of ours.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["Frame", "enter", "pending", "visible"]

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
        asking: points at which one may be wanted though none is due.
        values: the local variables to begin with, on resume.
        visit: gets the number of each branch that is entered.
        locals: the builtin, called in the rewritten function's own frame.
    """

    __slots__ = ("asking", "due", "locals", "target", "values", "visit", "visited")

    def __init__(self) -> None:
        self.due = False
        self.asking: set[int] = set()
        self.target = 0
        self.values: Mapping[str, Any] = {}
        self.visited: set[int] = set()
        self.visit: Callable[[int], None] = self.visited.add
        self.locals = builtins.locals

    def begin(self, captured: Callable[[], Any] | None = None) -> int:
        """The function has this frame now, and no other function will take it.

        Args:
            captured: a function that closes over every variable of the frame that a nested
                function shares; its closure holds the frame's cells.

        Returns:
            The number of the point to resume after; 0 to begin at the beginning.
        """
        pending.set(None)
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
        # A for loop needs only __next__, but the rewritten one calls iter() again.
        return iterator if hasattr(type(iterator), "__iter__") else _Iterator(iterator)

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
        iterator = builtins.aiter(iterable)
        # As above: an async for loop needs only __anext__.
        return iterator if hasattr(type(iterator), "__aiter__") else _AsyncAgain(iterator, skip=0)

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


class _Iterator:
    """An iterator around one that has no ``__iter__``."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        return builtins.next(self.iterator)


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
