"""What makes two calls the same call, and two invocations the same run.

A call is its step's name and the digest of its arguments, bound to the signature, those equal to
their default left out: ``f(1, 2)``, ``f(1, b=2)`` and ``f(b=2, a=1)`` are one, and a new parameter
with a default keeps old runs.  A run is its workflow's name and that digest.

Imports: digest, injected, errors.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwise import _digest
from stepwise._injected import injected
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


class Parameters:
    """The parameters of a step or workflow, and how its calls are told apart.

    Args:
        function: the plain function.
        ignore: names of parameters that do not tell calls apart.
        key: what tells calls apart instead of all arguments: a callable that gets them, or names.
        what: for messages: ``step 'think'``.

    Raises:
        ConfigurationError: ``ignore`` or ``key`` is not the names of parameters.
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
        self._signature = _signature(function, what)
        self._called = f"{function.__qualname__}()"
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
        self._framed = {name: _digest.framed(name) for name in self._names}
        self._required = {p.name for p in parameters if p.default is p.empty}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._encoded_defaults: dict[str, bytes | None] = {}
        self._key: Callable[..., Any] | None = key if callable(key) else None
        self._function = function
        self._ignored = self._check(ignore, "ignore")
        if key is not None and not callable(key):
            kept = self._check(key, "key")
            self._ignored |= self._names - kept

    @functools.cached_property
    def _left_out(self) -> set[str]:
        # Asked at the first call: configure(injected=...) may come after the import.
        return self._ignored | injected(self._function, self._signature)

    def _check(self, names: Iterable[str], option: str) -> set[str]:
        if isinstance(names, str):
            names = (names,)
        chosen = set(names) if isinstance(names, Iterable) else {names}
        if not all(isinstance(name, str) for name in chosen):
            function = ", or a function of the arguments" if option == "key" else ""
            raise ConfigurationError(
                f"{option}={names!r} of {self.what}: it is the names of parameters{function}; "
                f"the parameters are {sorted(self._names)!r}"
            )
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
        if self._simple and not kwargs and len(args) == len(self._positional) == len(self._names):
            return dict(zip(self._positional, args, strict=True))
        if self._simple and len(args) <= len(self._positional):
            bound = dict(zip(self._positional, args, strict=False))
            bound.update(kwargs)
            if (
                len(bound) == len(args) + len(kwargs)
                and bound.keys() <= self._names
                and bound.keys() >= self._required
            ):
                return bound
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._called} {error}") from None

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
            return self._digest_key(self._key(*args, **kwargs))
        parts: list[bytes] = []
        for name in sorted(bound):
            if name in self._left_out:
                continue
            value = bound[name]
            if name in self._defaults and value is self._defaults[name]:
                continue
            encoded = self._encode(name, value)
            if name not in self._defaults or encoded != self._encoded_default(name):
                parts += self._framed[name], _digest.framed(encoded)
        return _digest.combined(parts)

    def _digest_key(self, value: Any) -> str:
        try:
            return _digest.digest(value)
        except DigestError as error:
            reason = str(error).replace("(at value", "(at key")
            raise DigestError(
                f"what key= of {self.what} returned: {reason}. Return plain data that tells two "
                "calls apart: a string, a number, a tuple of them",
                path="key" + error.path,
                type_name=error.type_name,
            ) from None

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


def _signature(function: Callable[..., Any], what: str) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            form = annotationlib.Format.FORWARDREF  # a name for the type checker only has no value
            return inspect.signature(function, annotation_format=form)
        return inspect.signature(function)
    except ValueError:  # of some built-in functions
        raise ConfigurationError(
            f"{what} has no signature by which its calls could be told apart: decorate a function "
            "of yours that calls it"
        ) from None


# -- names and run ids ---------------------------------------------------------------------------


def label_of(function: Callable[..., Any]) -> str:
    """The short name of a function: its qualified name without the functions around it."""
    return re.sub(r".*<locals>\.", "", function.__qualname__)


def workflow_name(function: Callable[..., Any], label: str) -> str:
    """The full name of a workflow: ``module:label``, or ``/path/script.py:label`` for a script."""
    return f"{place_of(function.__module__)}:{label}"


def place_of(module: str) -> str:
    """What stands for a module in the names of its workflows: for a script, its path."""
    if module not in ("__main__", "__mp_main__"):  # the second: in a worker process, the same again
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        name: str = spec.name  # python -m package.module: the same as when it is imported
        return name
    path: str | None = getattr(main, "__file__", None)
    if path:
        return _text(os.path.realpath(path))
    return os.environ.get("JPY_SESSION_NAME") or _text(os.getcwd())  # a notebook; a prompt


def _text(path: str) -> str:
    """A path that can be written down, even if the file system's bytes are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def derived_id(name: str, label: str, *digests: str) -> str:
    """The run id of a workflow called with these arguments."""
    return f"{_slug(label)}-{_digest.combine(name, *digests)[:12]}"


def random_id(label: str) -> str:
    """A run id that no other run has."""
    return f"{_slug(label)}-{os.urandom(6).hex()}"


def child_id(parent: str, label: str, digest: str, ordinal: int) -> str:
    """The run id of the ``ordinal``-th equal call of a child workflow in a run."""
    full = f"{parent}/{_slug(label)}-{_digest.digest((label, digest))[:16]}-{ordinal}"
    if len(full) <= 160:
        return full
    root = parent.partition("/")[0]
    return f"{root}/.../{hashlib.sha256(full.encode()).hexdigest()[:24]}"


def _slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "_", label)[:60]


def idempotency_key(run_id: str, name: str, digest: str, ordinal: int, undone: int = 0) -> str:
    """A string that stays the same when this very call is repeated, and is no other call's.

    Args:
        undone: how often the run's side effects were undone: made anew, a call is another act,
            which nobody outside may take for the one that was undone.
    """
    again = (str(undone),) if undone else ()
    return "sw-" + _digest.combine(run_id, name, digest, str(ordinal), *again)


def compensation_key(key: str) -> str:
    """The same for the undoing of the call that was given ``key``."""
    return "sw-" + _digest.combine("compensate", key)


def instance_digest(instance: object) -> tuple[str, list[str]]:
    """Digest of the object a method is bound to, and the attributes that had to be left out."""
    if isinstance(instance, type):
        return _digest.combine(_digest.class_name(instance)), []
    parts: list[bytes | str] = [_digest.class_name(type(instance))]
    left_out = []
    state = {name: held for name, held in attributes(instance).items() if name not in _NOT_STATE}
    for extra in ("__pydantic_extra__", "__pydantic_private__"):
        state.update(state.pop(extra, None) or {})
    items = _items(instance)
    for name, value in [*sorted(state.items()), *([("its items", items)] if items else [])]:
        try:
            parts += [name, _digest.encode(value)]
        except DigestError:
            left_out.append(name)
    return _digest.combine(*parts), left_out


_NOT_STATE = {"__pydantic_fields_set__"}  # which fields were given is not part of ``==``


def _items(instance: object) -> Any:
    """What an agent holds that is itself a list, a dict or the like."""
    if isinstance(instance, dict):
        return dict(dict.items(instance))
    if isinstance(instance, str):
        return str.__str__(instance)
    bases: tuple[type, ...] = (list, tuple, set, frozenset)
    for base in bases:
        if isinstance(instance, base):
            return base(base.__iter__(instance))  # type: ignore[attr-defined]
    return None


def attributes(instance: object) -> dict[str, Any]:
    """What an instance holds, in ``__dict__`` and in slots."""
    state = dict(getattr(instance, "__dict__", {}))
    for cls in type(instance).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{cls.__name__.lstrip('_')}{name}"  # noqa: PLW2901
            if name not in ("__dict__", "__weakref__") and hasattr(instance, name):
                state[name] = getattr(instance, name)
    return state
