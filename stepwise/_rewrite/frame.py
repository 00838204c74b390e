"""A rewritten function: its points, and the protocol with the code that resumes it.

The base class of frames saves nothing: a function that runs under it behaves like the original.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import AsyncGeneratorType, CodeType, FunctionType
from typing import Any

from stepwise._rewrite.source import FunctionNode, walk
from stepwise._rewrite.statements import Ahead, made_by_calls
from stepwise._runtime.facts import NamedTuple
from stepwise._values.reducers import Iterating, gives_itself

# -- the function ---------------------------------------------------------------------------------


class Point(NamedTuple):
    """A statement boundary.

    Args:
        position: ``after PATH`` (that statement is done) or ``enter PATH`` (that block begins).
        line: the line of the finished statement, or of the block's first statement.
        withs: numbers of the ``with`` statements around the boundary.
        loops: hidden iterators of the loops around the boundary.
    """

    position: str
    line: int
    withs: tuple[int, ...] = ()
    loops: tuple[str, ...] = ()


class With(NamedTuple):
    """A ``with`` statement that can be entered.

    Args:
        line: its line in the file.
        names: the names that its ``as`` clauses bind.
        released: the bound names that no code outside the statement mentions.
    """

    line: int
    names: tuple[str, ...]
    released: tuple[str, ...]


class Reading(NamedTuple):
    """A loop that reads a file.

    Args:
        code: the iterable of the loop as an expression that also opens the file.
        within: the ``with`` statement that opens the file; ``None`` if the head of the loop does.
    """

    code: CodeType
    within: int | None


class Rewritten:
    """A function that can be entered at its points, and the facts about them.

    Args:
        function: the original; once it is built, the function that can be entered.
        node: the function's tree, as it is before the rewrite.

    Attributes:
        made: variables that a resume may make again, by name.
        assigned: the globals that the function or a function inside it declares.
        stored: the attributes of variables that the function assigns, as ``self.name``.
        variables: the function's own variables, and the variables of enclosing functions that it
            names.
        points: by number, from 1.
        blocks: paths of the branches, by the number of their hidden variable, from 0.
        withs: by number, from 0.
        loops: hidden iterators, with the line of their loop.
        ahead: the code executed after each point that can save, by the point's number; under 0 the
            code that the function begins with.
        heads: by hidden iterator, the iterables of the loops that could be begun again.
        files: by hidden iterator, the loops among them that read a file.
    """

    variables: frozenset[str]

    def __init__(self, function: FunctionType, node: FunctionNode) -> None:
        self.function = function
        self.made = made_by_calls(node)
        globals_ = [each for each in walk(node) if isinstance(each, ast.Global)]
        self.assigned = frozenset(name for each in globals_ for name in each.names)
        self.stored = _attributes_stored(node)
        self.points: dict[int, Point] = {}
        self.blocks: list[str] = []
        self.withs: list[With] = []
        self.loops: dict[str, int] = {}
        self.ahead: dict[int, Ahead] = {}
        self.heads: dict[str, Ahead] = {}
        self.files: dict[str, Reading] = {}

    def number(self, position: str) -> int | None:
        """Return the number of the point at a structural position, or ``None`` if there is none."""
        return next((n for n, point in self.points.items() if point.position == position), None)


def _attributes_stored(node: FunctionNode) -> frozenset[str]:
    """Return the attributes of variables that a function assigns, as ``self.name``."""
    return frozenset(
        f"{each.value.id}.{each.attr}"
        for each in walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
    )


# -- the frame ------------------------------------------------------------------------------------


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
