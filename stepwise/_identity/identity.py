"""Equality of calls and runs: when two calls are the same call, two invocations the same run.

A call is its step's name and the digest of its arguments, bound to the signature, those equal to
their default left out: ``f(1, 2)``, ``f(1, b=2)`` and ``f(b=2, a=1)`` are one, and a new parameter
with a default keeps old runs.  A run is its workflow's name and that digest.
"""

from __future__ import annotations

import builtins
import collections
import functools
import hashlib
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwise._identity.parts import KEY, digest_part, of_argument, parse, short, started_module
from stepwise._runtime import settings
from stepwise._runtime.forks import cached
from stepwise._values import digest as _digest
from stepwise._values.digest_atoms import ATOMS, COMMON, LENGTH, main_name
from stepwise._values.hidden_arguments import Hiding, Redact, attributes_in
from stepwise.errors import ConfigurationError, DigestError

__all__ = [
    "Parameters",
    "child_id",
    "compensation_key",
    "derived_id",
    "idempotency_key",
    "label_of",
    "random_id",
    "uncompared",
]

Key = Callable[..., Any] | Sequence[str] | None
_FUNCTIONS = {
    "key": ", or a function of the arguments",
    "redact": ", or a function of a name and a value that gives a text",
}

_MAIN = "__main__"
_PLAIN = frozenset(COMMON)
_NOTHING = object()
Unknown = Mapping[str, Sequence[object]]
_NONE: Unknown = {}


class Parameters:
    """The parameters of a step or workflow, and the rules that distinguish its calls.

    Args:
        function: the plain function.
        ignore: names of parameters that do not tell calls apart, and of attributes of the instance
            (``self.session``).
        key: what tells calls apart instead of all arguments: a callable that gets them, or names.
        secret: names of parameters whose values are stored nowhere; they are ignored as well.
        redact: names of parameters that are not shown, or a function of name and value that gives
            the text to show, or ``None`` for the usual one.
        what: for messages: ``step 'think'``.

    Attributes:
        hiding: what of its calls is not stored, or not shown.
        instance_ignored: attributes that ``ignore`` and ``secret`` name as ``self.NAME``.

    Raises:
        ConfigurationError: ``ignore``, ``key``, ``secret`` or ``redact`` is not the names of
            parameters.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        ignore: Iterable[str] = (),
        key: Key = None,
        secret: Iterable[str] = (),
        redact: Redact = (),
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
        self._plain = ATOMS.keys() >= set(map(type, self._defaults.values()))
        self._encoded_defaults: dict[tuple[str, str], bytes | None] = {}
        self._key: Callable[..., Any] | None = key if callable(key) else None
        self._function = function
        ignored, secret = self._check(ignore, "ignore"), self._check(secret, "secret")
        redacted = redact if callable(redact) else self._check(redact, "redact")
        self.hiding = Hiding(ignored, secret, redacted, self._defaults)
        self.instance_ignored = attributes_in(ignored | secret)
        self._ignored = (ignored | secret) & self._names
        if key is not None and not callable(key):
            kept = self._check(key, "key")
            if kept & secret:
                raise ConfigurationError(
                    f"{min(kept & secret)!r} of {self.what} is named by key= and by secret=: "
                    "a secret takes no part in the identity of a call"
                )
            self._ignored |= self._names - kept

    @cached
    def _left_out(self) -> set[str]:
        # Asked at the first call: configure(injected=...) may come after the import.
        return self._ignored | self._injected

    # Computed on use, not in __init__: a step that was pickled by value has what that made then.

    @cached
    def changeable_defaults(self) -> Mapping[str, Any]:
        """The defaults that a body may change, by the names of the parameters."""
        return {n: each for n, each in self._defaults.items() if type(each) not in ATOMS}

    @cached
    def _all_by_place(self) -> int:
        by_place = self._simple and len(self._positional) == len(self._names)
        return len(self._names) if by_place else -1

    @cached
    def _counting(self) -> list[str]:
        return sorted(self._names - self._left_out)

    @cached
    def _injected(self) -> set[str]:
        return _injected(self._function, self._signature)

    def _check(self, names: Iterable[str], option: str) -> set[str]:
        if isinstance(names, str):
            names = (names,)
        chosen = set(names) if isinstance(names, Iterable) else {names}
        if not all(isinstance(name, str) for name in chosen):
            function = _FUNCTIONS.get(option, "")
            raise ConfigurationError(
                f"{option}={names!r} of {self.what}: it is the names of parameters{function}; "
                f"the parameters are {sorted(self._names)!r}"
            )
        unknown = sorted(chosen - self._names)
        if option in ("ignore", "secret") and self._positional:  # it may be a method
            unknown = [name for name in unknown if not attributes_in([name])]
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
        if len(args) == self._all_by_place and not kwargs:
            return dict(zip(self._positional, args))  # noqa: B905 -- strict= takes half as long again
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

    def all_of(self, bound: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all arguments of a call: those that were passed, and the defaults in force.

        ``key=`` and ``ignore=`` leave none out.  What a framework injects is in neither.
        """
        kept = {name: value for name, value in bound.items() if name not in self._injected}
        passed = {n: v for n, v in kept.items() if v is not self._defaults.get(n, _NOTHING)}
        rest = self._defaults.keys() - passed.keys() - self._injected
        return passed, {
            name: self._defaults[name] for name in self._signature.parameters if name in rest
        }

    def replaced(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, some of them with other values."""
        call = self._signature.bind(*args, **kwargs)
        call.arguments.update(values)
        return call.args, call.kwargs

    def digest(
        self, bound: Mapping[str, Any], call: tuple[tuple[Any, ...], Mapping[str, Any]]
    ) -> str:
        """Digest a call; see :meth:`identify`."""
        return self.identify(bound, call)[0]

    def identify(
        self,
        bound: Mapping[str, Any],
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        *,
        one_module: bool = False,
    ) -> tuple[str, dict[str, str], Unknown]:
        """Digest a call, as a whole and in parts.

        Args:
            bound: what :meth:`bind` gave, without a ``self``.
            call: the arguments as they were passed, for a ``key`` function.
            one_module: classes of the started file count as those of the imported one.  For older
                records, and in run ids, they are those of ``__main__``.

        Returns:
            the digest of the arguments that are not equal to their default; by name the parts
            (see ``parts``) of all arguments, with the value in force; and by name the objects in
            them that have no digest.

        Raises:
            DigestError: an argument cannot be part of an identity; says which, and the way out.
        """
        if self._key is None and self._plain and _PLAIN.issuperset(map(type, bound.values())):
            return self._identify(bound)  # there are no classes in it
        token = main_name.set(started_module() if one_module else _MAIN)
        try:
            if self._key is None:
                return self._identify(bound)
            args, kwargs = call
            digest = self._digest_key(self._key(*args, **kwargs))
            return digest, {KEY: digest[:8]}, _NONE
        finally:
            main_name.reset(token)

    def _identify(self, bound: Mapping[str, Any]) -> tuple[str, dict[str, str], Unknown]:
        defaults = self._defaults
        framed: list[bytes] = []
        parts: dict[str, str] = {}
        unknown: Unknown = _NONE
        numbering = None
        for name in self._counting:
            if name not in bound:
                continue
            value = bound[name]
            if name in defaults and value is defaults[name]:
                continue
            encode = COMMON.get(type(value))
            if encode is not None:
                encoded = encode(value)
            else:  # of the whole call: one argument may refer to another
                numbering = _digest.Numbering() if numbering is None else numbering
                encoded, without = self._encode(name, value, numbering)
                if without:
                    unknown = {**unknown, name: without}
            parts[name] = short(encoded)
            if name not in defaults or encoded != self._encoded_default(name):
                framed += self._framed[name], LENGTH[len(encoded)], encoded  # no longer than that
        for name in defaults:
            if name not in parts and name not in self._left_out:
                parts[name] = self._default_part(name)
        return _digest.combined(framed), parts, unknown

    def _default_part(self, name: str) -> str:
        """The part of a parameter that is at its default."""
        encoded = self._encoded_default(name)
        text, _ = digest_part(self._defaults[name])
        return text if encoded is None or parse(text).volatile else short(encoded)

    def default_parts(self) -> dict[str, str]:
        """The parts of the parameters of a step that have a default, at their default."""
        token = main_name.set(started_module())
        try:
            return {n: self._default_part(n) for n in self._defaults if n not in self._left_out}
        finally:
            main_name.reset(token)

    @property
    def is_computed(self) -> bool:
        """True if a user's function of the arguments tells two calls apart."""
        return self._key is not None

    def in_force(self, bound: Mapping[str, Any]) -> tuple[dict[str, bytes], list[str], list[str]]:
        """Encode the arguments by name, values of defaulted parameters included.

        Returns:
            the encodings, and in the order of the signature the names of the parameters that are at
            their default, and of those that hold what has no digest.

        Raises:
            DigestError: see :meth:`digest`.
        """
        encoded: dict[str, bytes] = {}
        defaulted, by_class, numbering = [], [], _digest.Numbering()
        for name in self._signature.parameters:
            if name in self._left_out or (name not in bound and name not in self._defaults):
                continue
            default = self._defaults.get(name, _NOTHING)
            at_default = name not in bound or bound[name] is default
            if not at_default:
                encoded[name], without = self._encode(name, bound[name], numbering)
                if without:
                    by_class.append(name)
                at_default = default is not _NOTHING and (
                    encoded[name] == self._encoded_default(name)
                )
            if at_default:
                # A sentinel made for this parameter counts by its class.
                stands = self._encoded_default(name)
                encoded[name] = stands or _digest.encode(_digest.class_name(type(default)))
                defaulted.append(name)
        return encoded, defaulted, by_class

    def _digest_key(self, value: Any) -> str:
        try:
            return _digest.digest(value, _digest.Numbering())
        except DigestError as error:
            reason = str(error).replace("(at value", "(at key")
            raise DigestError(
                f"the result of key= of {self.what}: {reason}. Return plain data that "
                "distinguishes two calls: a string, a number, a tuple of them",
                path="key" + error.path,
                type_name=error.type_name,
            ) from None

    def _encode(
        self, name: str, value: Any, numbering: _digest.Numbering
    ) -> tuple[bytes, list[object]]:
        try:
            return of_argument(value, numbering)
        except DigestError as error:
            reason = str(error).replace("(at value", f"(at {name}")
            raise DigestError(
                f"argument {name!r} of {self.what}: {reason}. Leave it out of the identity with "
                f"ignore=({name!r},), or choose with key= what distinguishes two calls",
                path=name + error.path,
                type_name=error.type_name,
            ) from None

    def _encoded_default(self, name: str) -> bytes | None:
        key = name, main_name.get()
        if key not in self._encoded_defaults:
            try:
                encoded = _digest.encode(self._defaults[name], _digest.Numbering())
            except DigestError:
                encoded = None  # equal to it only by being it
            self._encoded_defaults[key] = encoded
        return self._encoded_defaults[key]


def _signature(function: Callable[..., Any], what: str) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            form = annotationlib.Format.FORWARDREF  # a name for the type checker only has no value
            return inspect.signature(function, annotation_format=form)
        return inspect.signature(function)
    except ValueError:  # some built-in functions have none
        raise ConfigurationError(
            f"{what} has no signature by which its calls could be told apart: decorate a function "
            "of yours that calls it"
        ) from None


# -- names and run ids ---------------------------------------------------------------------------


def label_of(function: Callable[..., Any]) -> str:
    """The short name of a function: its qualified name without the functions around it."""
    return function.__qualname__.rpartition("<locals>.")[2]


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
    """Return a string that is stable when this call is repeated, and unique to it.

    Args:
        undone: how often the run's side effects were undone: made anew, a call is another act,
            which nobody outside may take for the one that was undone.
    """
    again = (str(undone),) if undone else ()
    return "sw-" + _digest.combine(run_id, name, digest, str(ordinal), *again)


def compensation_key(key: str) -> str:
    """The same for the undoing of the call that was given ``key``."""
    return "sw-" + _digest.combine("compensate", key)


NOT_STATE = {"__pydantic_fields_set__"}  # which fields were given is not part of ``==``


@functools.lru_cache(maxsize=1000)
def uncompared(cls: type) -> frozenset[str]:
    """The attributes of its instances that ``==`` leaves out, and so every identity."""
    names = set(NOT_STATE)
    fields: Mapping[str, Any] = getattr(cls, "__dataclass_fields__", {})
    names.update(name for name, field in fields.items() if not field.compare)
    names.update(each.name for each in getattr(cls, "__attrs_attrs__", ()) if not each.eq)
    return frozenset(names)


@functools.lru_cache(maxsize=1000)
def reader_of(cls: type) -> Callable[[Any], Any] | None:
    """Return what reads the content of instances that are lists, texts or the like themselves.

    ``None`` for classes whose instances hold attributes only.
    """
    return next((read for base, read in _READERS.items() if issubclass(cls, base)), None)


_READERS: dict[type, Callable[[Any], Any]] = {
    # By the methods of the builtin class: those of its subclass may do anything.
    dict: lambda held: dict(dict.items(held)),
    list: lambda held: [*list.__iter__(held)],
    set: lambda held: {*set.__iter__(held)},
    str: str.__str__,
    tuple: lambda held: (*tuple.__iter__(held),),
    frozenset: lambda held: frozenset(frozenset.__iter__(held)),
    int: int.__int__,
    float: float.__float__,
    bytes: lambda held: bytes(memoryview(held)),
    bytearray: lambda held: bytes(memoryview(held)),
    collections.deque: lambda held: [*collections.deque.__iter__(held)],
    BaseException: lambda held: held.args,
}


# -- parameters that a framework injects ---------------------------------------------------------
#
# Parameters that a framework fills in are new at every call, and never part of an identity.  They
# are recognised by their annotation: one of the classes below, a generic alias of it, or
# ``Optional`` or ``Annotated`` with it.  A ``list`` of them is an argument like any other.

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


def _injected(function: Callable[..., Any], signature: inspect.Signature) -> set[str]:
    """The names of the parameters of ``function`` that a framework injects."""
    names = _AnnotationNames(getattr(inspect.unwrap(function), "__globals__", {}))
    return {
        name
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not parameter.empty and _is_injected(parameter.annotation, names)
    }


def _is_injected(annotation: Any, names: _AnnotationNames) -> bool:
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


class _AnnotationNames(dict[str, Any]):
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
