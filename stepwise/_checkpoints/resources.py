"""Resources and managers: objects that cannot be stored and are made again on resume."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from stepwise._runtime.forks import process_lock
from stepwise.errors import ConfigurationError

__all__ = [
    "LetGo",
    "ids_of_made",
    "in_factory",
    "is_reenterable",
    "made_by",
    "reenterable",
    "resource",
]

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")

# -- resources -----------------------------------------------------------------------------------

_made: dict[int, tuple[Any, Any]] = {}  # id of a resource -> reference to it, how to make it
_mutex = process_lock()
_held: dict[int, Any] = {}  # the resources that no weak reference can hold: sqlite3.Connection

in_factory: ContextVar[bool] = ContextVar("stepwise_in_factory", default=False)
"""True while a factory makes a resource, which it also does where no call could be answered."""

_DATA = (str, bytes, bytearray, int, float, complex, tuple, list, dict, type(None))


def resource(factory: Callable[P, R]) -> Callable[P, R]:
    """Mark a factory: its result is not stored in a checkpoint but made again.

    For connections, clients, open files: a local variable that holds what ``factory(*args)``
    returned holds, in the resumed run, what ``factory(*args)`` returns then.  The arguments must
    be recordable.  As a context manager, what it returns is entered again.

    Raises:
        ConfigurationError: it is not a plain, named function; or, when called, it returned plain
            data.
    """
    if not inspect.isfunction(factory) or inspect.iscoroutinefunction(factory):
        raise ConfigurationError(
            f"@resource decorates a plain function that makes the resource, not {factory!r}"
        )

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> R:
        token = in_factory.set(True)
        try:
            made: R = factory(*args, **kwargs)
        finally:
            in_factory.reset(token)
        _remember(made, (_make, (make, args, kwargs)))
        return made

    return make


def _remember(made: Any, how: Any) -> None:
    if type(made) in _DATA:  # of a class of the user's own, it may be more
        raise ConfigurationError(
            f"a @resource factory returned a {type(made).__name__}, which is plain data: return "
            "the object to make again on resume"
        )
    key = id(made)
    reference: Any
    try:
        reference = weakref.ref(made, lambda _: _made.pop(key, None))
    except TypeError:
        _let_go()
        _held[key] = made
        reference = functools.partial(_held.get, key)
    _made[key] = reference, how


def _let_go() -> None:
    """Release the held resources that nobody else holds any more."""
    with _mutex:
        for key in list(_held):
            if sys.getrefcount(_held[key]) <= _OURS:
                del _made[key], _held[key]


_OURS = 2  # references to a resource that only we hold: our table's, and that of the question


def ids_of_made() -> Iterable[int]:
    """The ids of all resources that there are."""
    if _held:
        _let_go()
    return _made.keys()


def made_by(obj: object) -> Any:
    """Return the reduced form that makes a resource again, or ``None`` for other objects."""
    found = _made.get(id(obj))
    return found[1] if found is not None and found[0]() is obj else None


def _make(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factory(*args, **kwargs)


# -- context managers ----------------------------------------------------------------------------

# By name, so that none of them need be imported.  Entered again, they are as good as before.
_REENTERABLE = {
    "_thread.lock",
    "_thread.RLock",
    "aiohttp.client.ClientSession",
    "anthropic.Anthropic",
    "anthropic.AsyncAnthropic",
    "asyncio.locks.Condition",
    "asyncio.locks.Lock",
    "asyncio.timeouts.Timeout",
    "contextlib.nullcontext",
    "contextlib.suppress",
    "httpx.AsyncClient",
    "httpx.Client",
    "openai.AsyncOpenAI",
    "openai.OpenAI",
    "requests.sessions.Session",
    "threading.BoundedSemaphore",
    "threading.Condition",
    "threading.Semaphore",
}
_registered: set[type] = set()


class _Reenterable:
    """A manager that the user declared re-enterable."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def __enter__(self) -> Any:
        return self.manager.__enter__()

    def __exit__(self, *exception: object) -> Any:
        return self.manager.__exit__(*exception)

    async def __aenter__(self) -> Any:
        return await self.manager.__aenter__()

    async def __aexit__(self, *exception: object) -> Any:
        return await self.manager.__aexit__(*exception)


@overload
def reenterable(manager: type[M]) -> type[M]: ...
@overload
def reenterable(manager: M) -> M: ...
def reenterable(manager: Any) -> Any:
    """Declare that a context manager can be entered again when a run resumes inside its block.

    A run cannot resume inside ``with open(path) as file:`` or inside a transaction: position and
    content would be lost.  It goes back to before the block.  Inside a manager that can simply be
    made and entered again it can: ``with reenterable(manager) as name:`` says so of one, and
    ``reenterable(Class)``, also as a decorator, of all of a class.  On resume the head of the
    ``with`` is evaluated again, with the variables as they are then.
    """
    if isinstance(manager, type):
        _registered.add(manager)
        return manager
    return _Reenterable(manager)


def is_reenterable(manager: object) -> bool:
    """Return whether a run may resume inside the block of this manager."""
    if isinstance(manager, _Reenterable) or made_by(manager) is not None:
        return True
    return any(
        cls in _registered or f"{cls.__module__}.{cls.__qualname__}" in _REENTERABLE
        for cls in type(manager).__mro__
    )


class LetGo:
    """Stands after a resume where a ``with`` block that was over had left a closed object."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} of a {self.__dict__.get('_kind')} that its `with` block had closed before "
            "the run was stopped: it could not be recorded. Read it inside the block"
        )
