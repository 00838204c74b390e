"""Caches around side effects: empty after a resume, so the effect would happen twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from stepwise._runtime.messages import caller, reports, warn
from stepwise._values.sentinels import found_at
from stepwise.errors import RunWarning

__all__ = ["warn_if_cached", "warn_if_caching"]

_DEPTH = 20  # functions that call each other
_WAY_OUT = (
    "It is empty when a run resumes, so that a call which it answered before happens again. Remove "
    "it: a run records each call. To share one call, make it once and keep its value"
)


def _caches(value: object) -> bool:
    """Return whether a value is a cache such as ``functools.lru_cache``, cachetools or async_lru.

    Values of users are asked nothing: some of them are proxies, which answer for others.
    """
    if isinstance(value, FunctionType):
        return "cache_clear" in vars(value)
    return hasattr(type(value), "cache_clear")


@reports
def warn_if_caching(function: object, what: str) -> None:
    """Warn of a side effect whose body is a cache: the decorator stands above it."""
    if _caches(function):
        warn(
            f"{what} has side effects, and a cache inside (functools.cache). {_WAY_OUT}", RunWarning
        )


@reports
def warn_if_cached(
    module: str, function: Any, args: tuple[Any, ...], what: str, is_it: Callable[[Any], bool]
) -> None:
    """Warn of a side effect that is called through a cache; looked for where it can be named.

    Args:
        function: the plain one.
        args: of a call.
        is_it: whether a value leads to this very step.
    """
    if any(_caches(value) and is_it(value) for value in _around(module, function, args)):
        warn(
            f"{what} has side effects, and a cache around it (functools.cache). {_WAY_OUT}",
            RunWarning,
        )
    helper = _cached_caller()
    if helper:
        warn(
            f"{what} has side effects, and is called in {helper!r}, which is behind a cache "
            f"(functools.cache). {_WAY_OUT}",
            RunWarning,
        )


def _cached_caller() -> str:
    """Return the name of a function behind a cache that is being executed; empty for none."""
    frame = caller()
    for _ in range(_DEPTH):
        if frame is None:
            break
        code, around = frame.f_code, frame.f_back
        called: str = code.co_name
        places: list[Mapping[str, Any]] = [
            frame.f_globals,
            around.f_locals if around is not None else {},
        ]
        for name in code.co_varnames[:1]:  # a method's first parameter
            places += [vars(cls) for cls in type(frame.f_locals.get(name)).__mro__]
        for place in places:
            value = place.get(called)
            inner = getattr(value, "__wrapped__", None) if _caches(value) else None
            if getattr(inner, "__code__", None) is code:
                return called
        frame = around
    return ""


def _around(module: str, function: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """Yield what may hold the cache: its name in its module, variables, an instance, its class."""
    yield found_at(module, function.__qualname__)
    frame = caller()
    if frame is not None:
        yield from [*frame.f_locals.values(), *frame.f_globals.values()]
    for cls in type(args[0]).__mro__ if args else ():
        yield from tuple(vars(cls).values())
    try:
        held = [*vars(args[0]).values()] if args else []
    except Exception:  # an object without variables, or an unbound proxy
        held = []
    yield from held
