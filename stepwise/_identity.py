"""What makes two calls the same call, and two invocations the same run.

A call is its step's name and the digest of its arguments, bound to the signature, those equal to
their default left out: ``f(1, 2)``, ``f(1, b=2)`` and ``f(b=2, a=1)`` are one, and a new parameter
with a default keeps old runs.  A run is its workflow's name and that digest.

Imports: digest, errors, settings.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import secrets
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwise import _config, _digest
from stepwise.errors import ConfigurationError, DigestError

__all__ = [
    "Parameters",
    "child_id",
    "compensation_key",
    "derived_id",
    "idempotency_key",
    "instance_digest",
    "label_of",
    "random_id",
    "workflow_name",
]

Key = Callable[..., Any] | Sequence[str] | None

# Parameters that a framework fills in: new at every call, never part of an identity.
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


class Parameters:
    """The parameters of a step or workflow, and how its calls are told apart.

    Args:
        function: the plain function.
        ignore: names of parameters that do not tell calls apart.
        key: what tells calls apart instead of all arguments: a callable that gets them, or names.
        what: for messages: ``step 'think'``.

    Raises:
        ConfigurationError: ``ignore`` or ``key`` names a parameter that is not there.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        ignore: Iterable[str] = (),
        key: Key = None,
        what: str,
    ) -> None:
        self.what = what
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        kinds = {p.kind for p in parameters}
        self._simple = kinds <= {
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        }
        self._positional = [
            p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._names = {p.name for p in parameters}
        self._required = {p.name for p in parameters if p.default is p.empty}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._encoded_defaults: dict[str, bytes | None] = {}
        self._key: Callable[..., Any] | None = key if callable(key) else None
        self._left_out = self._check(ignore, "ignore") | _injected(function)
        if key is not None and not callable(key):
            kept = self._check(key, "key")
            self._left_out |= self._names - kept

    def _check(self, names: Iterable[str], option: str) -> set[str]:
        if isinstance(names, str):
            names = (names,)
        chosen = set(names)
        unknown = sorted(chosen - self._names)
        if unknown:
            raise ConfigurationError(
                f"{option}={sorted(chosen)!r} of {self.what}: it has no parameter {unknown[0]!r}; "
                f"its parameters are {sorted(self._names)!r}"
            )
        return chosen

    @property
    def first(self) -> str | None:
        """The name of the first positional parameter."""
        return self._positional[0] if self._positional else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by parameter name; extra ones under ``*args`` and their own names.

        Raises:
            TypeError: the call does not fit the signature.
        """
        if self._simple and len(args) <= len(self._positional):
            bound = dict(zip(self._positional, args, strict=False))
            bound.update(kwargs)
            if (
                len(bound) == len(args) + len(kwargs)
                and bound.keys() <= self._names
                and bound.keys() >= self._required
            ):
                return bound
        return dict(self._signature.bind(*args, **kwargs).arguments)

    def digest(
        self, bound: Mapping[str, Any], call: tuple[tuple[Any, ...], Mapping[str, Any]]
    ) -> str:
        """Digest a call.

        Args:
            bound: what :meth:`bind` gave, without a ``self``.
            call: the arguments as they were passed, for a ``key`` function.

        Raises:
            DigestError: an argument cannot be part of an identity; says which, and the way out.
        """
        if self._key is not None:
            args, kwargs = call
            return _digest.digest(self._key(*args, **kwargs))
        parts: list[bytes | str] = []
        for name in sorted(bound):
            if name in self._left_out:
                continue
            value = bound[name]
            if name in self._defaults and value is self._defaults[name]:
                continue
            encoded = self._encode(name, value)
            if name not in self._defaults or encoded != self._encoded_default(name):
                parts += [name, encoded]
        return _digest.combine(*parts)

    def _encode(self, name: str, value: Any) -> bytes:
        try:
            return _digest.encode(value)
        except DigestError as error:
            reason = str(error).replace("(at value", f"(at {name}")
            raise DigestError(
                f"argument {name!r} of {self.what}: {reason}. Leave it out of the identity with "
                f"ignore=({name!r},), or say with key= what tells two calls apart",
                path=name + error.path,
                type_name=error.type_name,
            ) from None

    def _encoded_default(self, name: str) -> bytes | None:
        if name not in self._encoded_defaults:
            try:
                self._encoded_defaults[name] = _digest.encode(self._defaults[name])
            except DigestError:
                self._encoded_defaults[name] = None  # equal to it only by being it
        return self._encoded_defaults[name]


# -- parameters that a framework injects ---------------------------------------------------------


def _injected(function: Callable[..., Any]) -> set[str]:
    annotations = getattr(function, "__annotations__", {})
    namespace = getattr(function, "__globals__", {})
    return {
        name
        for name, annotation in annotations.items()
        if name != "return" and _is_injected(annotation, namespace)
    }


def _is_injected(annotation: Any, namespace: Mapping[str, Any]) -> bool:
    if isinstance(annotation, str):
        return any(_is_injected_word(word, namespace) for word in _words(annotation))
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_injected(part, namespace) for part in typing.get_args(annotation))
    cls = origin if origin is not None else annotation
    cls = cls if isinstance(cls, type) else type(cls)
    full = f"{cls.__module__}.{cls.__qualname__}"
    roots = _INJECTED.get(cls.__qualname__, ())
    return cls.__module__.partition(".")[0] in roots or full in _config.injected()


def _words(annotation: str) -> list[str]:
    return re.findall(r"[A-Za-z_][\w.]*", annotation)


def _is_injected_word(word: str, namespace: Mapping[str, Any]) -> bool:
    first, *rest = word.split(".")
    found: Any = namespace.get(first)
    for part in rest:
        found = getattr(found, part, None)
    if found is not None:
        return not isinstance(found, str) and _is_injected(found, namespace)
    # Imported for the type checker only: the name is all there is.
    last = word.rpartition(".")[2]
    return last in _INJECTED and last not in _AMBIGUOUS


# -- names and run ids ---------------------------------------------------------------------------


def label_of(function: Callable[..., Any]) -> str:
    """The short name of a function: its qualified name without the functions around it."""
    return re.sub(r".*<locals>\.", "", function.__qualname__)


def workflow_name(function: Callable[..., Any], label: str) -> str:
    """The full name of a workflow: ``module:label``, or ``/path/script.py:label`` for a script."""
    return f"{_place_of(function.__module__)}:{label}"


def _place_of(module: str) -> str:
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module: the same as when it is imported
        name: str = spec.name
        return name.removesuffix(".__main__")
    path: str | None = getattr(main, "__file__", None)
    if path:
        return os.path.realpath(path)
    return os.environ.get("JPY_SESSION_NAME") or os.getcwd()  # a notebook; a prompt


def derived_id(name: str, label: str, *digests: str) -> str:
    """The run id of a workflow called with these arguments."""
    return f"{_slug(label)}-{_digest.combine(name, *digests)[:12]}"


def random_id(label: str) -> str:
    """A run id that no other run has."""
    return f"{_slug(label)}-{secrets.token_hex(6)}"


def child_id(parent: str, label: str, digest: str, ordinal: int) -> str:
    """The run id of the ``ordinal``-th equal call of a child workflow in a run."""
    full = f"{parent}/{_slug(label)}-{digest[:8]}-{ordinal}"
    if len(full) <= 160:
        return full
    root = parent.partition("/")[0]
    return f"{root}/.../{hashlib.sha256(full.encode()).hexdigest()[:24]}"


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "_", label)[:60]


def idempotency_key(run_id: str, name: str, digest: str, ordinal: int) -> str:
    """A string that stays the same when this very call is repeated, and is no other call's."""
    return "sw-" + _digest.combine(run_id, name, digest, str(ordinal))


def compensation_key(key: str) -> str:
    """The same for the undoing of the call that was given ``key``."""
    return "sw-" + _digest.combine("compensate", key)


def instance_digest(instance: object) -> tuple[str, list[str]]:
    """Digest of the object a method is bound to, and the attributes that had to be left out."""
    if isinstance(instance, type):
        return _digest.combine(_digest.class_name(instance)), []
    parts: list[bytes | str] = [_digest.class_name(type(instance))]
    left_out = []
    for name, value in sorted(attributes(instance).items()):
        try:
            parts += [name, _digest.encode(value)]
        except DigestError:
            left_out.append(name)
    return _digest.combine(*parts), left_out


def attributes(instance: object) -> dict[str, Any]:
    """What an instance holds, in ``__dict__`` and in slots."""
    state = dict(getattr(instance, "__dict__", {}))
    for cls in type(instance).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(instance, name):
                state[name] = getattr(instance, name)
    return state
