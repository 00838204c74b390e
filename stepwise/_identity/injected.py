"""Parameters that a framework fills in: new at every call, never part of an identity.

They are recognised by their annotation: one of the classes below, a generic alias of it, or
``Optional`` or ``Annotated`` with it.  A ``list`` of them is an argument like any other.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._runtime import settings

__all__ = ["injected"]

_INJECTED = {
    "RunContext": ("pydantic_ai", "livekit"),
    "RunContextWrapper": ("agents",),
    "ToolContext": ("agents", "google"),
    "RunnableConfig": ("langchain_core",),
    "ToolRuntime": ("langchain", "langgraph"),
    "Runtime": ("langgraph",),
    "InjectedState": ("langgraph",),
    "InjectedStore": ("langgraph",),
    "CallbackContext": ("google",),
    "Context": ("mcp", "fastmcp", "llama_index", "workflows"),
}
_AMBIGUOUS = {"Context", "Runtime"}  # as bare words in a string they could be anything


def injected(function: Callable[..., Any], signature: inspect.Signature) -> set[str]:
    """The names of the parameters of ``function`` that a framework injects."""
    names = _Names(getattr(inspect.unwrap(function), "__globals__", {}))
    return {
        name
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not parameter.empty and _is_injected(parameter.annotation, names)
    }


def _is_injected(annotation: Any, names: _Names) -> bool:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, {}, names)  # noqa: S307
        except Exception:  # an annotation may be anything; then it is not one of ours
            return False
        return not isinstance(annotation, str) and _is_injected(annotation, names)
    if isinstance(annotation, _Unknown):
        return annotation.is_injected()
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_injected(part, names) for part in typing.get_args(annotation))
    cls = origin if origin is not None else annotation
    return _is_known(cls if isinstance(cls, type) else type(cls))


def _is_known(cls: type) -> bool:
    roots = _INJECTED.get(cls.__qualname__, ())
    full = f"{cls.__module__}.{cls.__qualname__}"
    return cls.__module__.partition(".")[0] in roots or full in settings.injected()


# -- annotations that are strings ----------------------------------------------------------------


class _Names(dict[str, Any]):
    """The namespace of an annotation, with placeholders for names that have no value here."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        super().__init__({**vars(builtins), **namespace})

    def __missing__(self, name: str) -> _Unknown:
        return _Unknown(name)


class _Unknown:
    """A class known only by its (dotted) name.  Behaves as a class in an annotation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_injected(self) -> bool:
        """Return whether that name can only mean a class that is injected."""
        root, last = self._name.partition(".")[0], self._name.rpartition(".")[2]
        configured = settings.injected()
        return (
            (last in _INJECTED and (last not in _AMBIGUOUS or root in _INJECTED[last]))
            or self._name in configured
            or ("." not in self._name and any(full.endswith(f".{last}") for full in configured))
        )

    def __getattr__(self, part: str) -> _Unknown:
        if part.startswith("__"):
            raise AttributeError(part)
        return _Unknown(f"{self._name}.{part}")

    def __getitem__(self, arguments: Any) -> _Unknown:
        return self  # a generic alias of it

    def __call__(self, *args: Any, **kwargs: Any) -> _Unknown:
        return self  # an instance of it, in Annotated

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]
