"""Captured variables of a workflow function, as part of its identity; the body of a step.

A captured number or text counts as it is at the call.  What the workflow or one of its steps may
change (a list, an object, a ``nonlocal`` variable) counts as it was when the function was called
first: what a run did to it must not make the next call another one.  A captured function counts
by its module, its name, its defaults and what it captured; what has no digest by its class, there
where it stands.  Times and random ids in an object count by their type.  What is defined beside the
workflow (its steps) is code, not a value: it counts by what it captured only, so that an edited
workflow may call another step.

A body is part of no identity.  Its fingerprint knows a step again that was renamed.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

from stepwise._identity.clients import fields_of, is_foreign
from stepwise._identity.module_names import canonical_module
from stepwise._identity.parts import class_digest, lenient
from stepwise._runtime.messages import is_ours
from stepwise._values import digest
from stepwise._values.class_contents import assigned_in
from stepwise._values.instances import attributes
from stepwise._values.moments import is_momentary

__all__ = [
    "FIXED",
    "body_digest",
    "captured_parts",
    "fixed_cells",
    "own_name",
    "plain_function",
    "within",
]

FIXED: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes)
"""Types of values that cannot change."""
_MOST = 1000  # values that are looked at within one


def captured_parts(
    function: Callable[..., Any], first_seen: dict[str, bytes]
) -> tuple[dict[str, bytes], set[str]]:
    """Encode the captured variables of a function, by name.

    Args:
        first_seen: what stood for those that may change, when it was called first; filled here.

    Returns:
        the encodings, and the names of times and random ids.
    """
    cells = _cells(function)
    if not cells:
        return {}, set()
    rebound = _rebound(function)
    parts: dict[str, bytes] = {}
    momentary = set()
    for name, cell in cells.items():
        value = cell.cell_contents
        if name in first_seen:
            parts[name] = first_seen[name]
        else:
            told = _Teller(function).tell(value, name)
            if told is None:
                continue
            parts[name] = told
            if type(value) not in FIXED or id(cell) in rebound:
                first_seen[name] = told
        if is_momentary(value):
            momentary.add(name)
    return parts, momentary


def fixed_cells(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the captured variables that nobody assigns to any more, with their values."""
    rebound = _rebound(function)
    for name, cell in _cells(function).items():
        if id(cell) not in rebound:
            yield name, cell.cell_contents


def own_name(value: Any, function: Callable[..., Any]) -> str:
    """The name of a class or function; without its module if ``function`` has the same."""
    module = canonical_module(getattr(value, "__module__", None) or "builtins")
    name = getattr(value, "__qualname__", None) or repr(value)
    return name if module == canonical_module(function.__module__) else f"{module}.{name}"


def _cells(function: Callable[..., Any]) -> dict[str, types.CellType]:
    """The captured variables that have a value."""
    found = {}
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:  # not bound yet
            continue
        if name != "__class__":
            found[name] = cell
    return found


class _Teller:
    """One telling of a captured value; functions that capture each other end it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._of = function
        self._met: dict[int, Any] = {id(function): function}

    def tell(self, value: Any, variable: str = "") -> bytes | None:
        """Return the replacement of a value; ``None`` for code beside the function.

        Args:
            variable: that holds it; empty if it is part of another value.
        """
        cls = type(value)  # not isinstance: the __class__ of a proxy may raise
        if issubclass(cls, type):
            return self._class(value, variable)
        if issubclass(cls, functools.partial):
            keywords = sorted(value.keywords.items())
            parts = [value.func, *value.args, *(part for pair in keywords for part in pair)]
            return self._join("partial", parts)
        if cls is types.MethodType:
            return self._join("method", [value.__func__, value.__self__])
        function = plain_function(value)
        if function is not None:
            return self._function(function, variable)
        return digest.encode(value) if cls in FIXED else lenient(value, masking=True)[0]

    def _class(self, value: Any, variable: str) -> bytes | None:
        name, content = own_name(value, self._of), class_digest(value)
        if content:
            return digest.encode(("class", name, content))
        return None if self._is_beside(value, variable) else digest.encode(("class", name))

    def _is_beside(self, value: Any, variable: str) -> bool:
        """Return whether a function around this one defines the value under that name."""
        scope = value.__qualname__.removesuffix(variable)
        return (
            value.__name__ == variable
            and value.__module__ == self._of.__module__
            and scope.endswith("<locals>.")
            and self._of.__qualname__.startswith(scope)
        )

    def _join(self, kind: str, values: list[Any]) -> bytes:
        return digest.encode((kind, *[self.tell(value) for value in values]))

    def _function(self, function: types.FunctionType, variable: str) -> bytes | None:
        name, beside = own_name(function, self._of), self._is_beside(function, variable)
        if id(function) in self._met:
            return None if beside else digest.encode(("met", name))
        self._met[id(function)] = function
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        told = [self.tell(value) for value in defaults]
        told += [self.tell(cell.cell_contents, each) for each, cell in _cells(function).items()]
        held = [each for each in told if each is not None]
        return None if beside and not held else digest.encode(("function", name, *held))


def plain_function(value: Any) -> types.FunctionType | None:
    """The function in a step, a workflow or a method, or the value itself, if it is a function."""
    while True:
        if type(value) is types.MethodType:
            value = value.__func__
        elif type(value) is types.FunctionType and "__stepwise_step__" in vars(value):
            value = vars(value)["__wrapped__"]
        elif hasattr(type(value), "run_id_for"):
            value = value.__wrapped__
            value = getattr(value, "__func__", value)  # a class method
        else:
            return value if type(value) is types.FunctionType else None


# -- what a value holds --------------------------------------------------------------------------


def within(name: str, value: Any, *, objects: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield a value and what it holds, each by its path: ``ask.client`` of a captured step ``ask``.

    Functions, methods and partials hold what they captured, their defaults and their arguments.

    Args:
        objects: look into containers and into objects of the user's own classes as well, which a
            run may change.
    """
    waiting: list[tuple[str, Any, frozenset[int]]] = [(name, value, frozenset())]
    for _ in range(_MOST):
        if not waiting:
            return
        path, each, outer = waiting.pop()
        yield path, each
        if id(each) in outer:
            continue
        around = outer | {id(each)}
        held = _held_by_function(each) or (_held_by_object(each) if objects else {})
        waiting += [(f"{path}.{key}", inner, around) for key, inner in reversed(held.items())]


def _held_by_function(value: Any) -> dict[str, Any]:
    """Return what a function, a method or a partial holds, by name."""
    if type(value) is types.MethodType:
        return {"__self__": value.__self__, **_held_by_function(value.__func__)}
    if issubclass(type(value), functools.partial):
        arguments = {str(number): each for number, each in enumerate(value.args, 1)}
        return {"func": value.func, **arguments, **value.keywords}
    function = plain_function(value)
    if function is None:
        return {}
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    named = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    return {**dict(named), **(function.__kwdefaults__ or {}), **dict(fixed_cells(function))}


def _held_by_object(value: Any) -> dict[str, Any]:
    """Return the items of a container, or the attributes of an object that is no client."""
    cls: Any = type(value)
    if issubclass(cls, dict):
        first = itertools.islice(value.items(), _MOST)
        return {str(key): each for key, each in first if type(key) in FIXED}
    if issubclass(cls, (list, tuple)):
        return {str(number): each for number, each in enumerate(value[:_MOST])}
    if cls in FIXED or issubclass(cls, type) or is_foreign(cls) or fields_of(cls) is not None:
        return {}
    return attributes(value)


# -- nonlocal ------------------------------------------------------------------------------------


def _rebound(function: Callable[..., Any]) -> set[int]:
    """Return the ids of the cells that a function, or one that it captured, assigns to."""
    found: set[int] = set()
    for each in _reached(function, set()):
        assigned = assigned_in(each.__code__)
        found.update(id(cell) for name, cell in _cells(each).items() if name in assigned)
    return found


def _reached(function: Any, met: set[int]) -> Iterator[types.FunctionType]:
    met.add(id(function))
    yield function
    for cell in _cells(function).values():
        inner = plain_function(cell.cell_contents)
        if inner is not None and id(inner) not in met:
            yield from _reached(inner, met)


# -- the body -------------------------------------------------------------------------------------

_OWN = "@"  # takes the place of the function's own name, which no identifier equals


def body_digest(function: Any) -> str:
    """Return 8 characters for the code of a function; empty if the function has no code.

    Comments, layout and the function's own name do not count, annotations and defaults neither.
    The code is that which the interpreter executes, so that it is at hand without a source file;
    another version of Python gives another fingerprint.  Functions of installed packages have
    none: they call what they were given, which is another function each time.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return ""
    if "-packages" in code.co_filename or is_ours(code.co_filename):
        return ""
    shape = _shape(code, code.co_name, f"{getattr(function, '__qualname__', '')}.<locals>.")
    return hashlib.sha256(repr(shape).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def _shape(code: types.CodeType, own: str, inside: str) -> tuple[Any, ...]:
    """Return what two functions that do the same have in common, as plain data.

    Args:
        own: the name of the outermost function.
        inside: how qualified names of functions within it begin.
    """
    names = [
        [_OWN if each == own and _calls_itself(code, own) else each for each in held]
        for held in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    ]
    counts = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags
    constants = [_constant(each, own, inside) for each in code.co_consts]
    return code.co_code, getattr(code, "co_exceptiontable", b""), counts, names, constants


def _calls_itself(code: types.CodeType, own: str) -> bool:
    """Return whether a name means the function itself wherever its code has it.

    It does as a global or captured variable, and does not as an attribute: ``client.search()``.
    """
    used = {each.opname for each in dis.get_instructions(code) if each.argval == own}
    return all("GLOBAL" in each or "DEREF" in each or "CLOSURE" in each for each in used)


def _constant(value: Any, own: str, inside: str) -> Any:
    if isinstance(value, types.CodeType):
        return value.co_name, _shape(value, own, inside)
    if isinstance(value, str) and value.startswith(inside):  # Python 3.10 keeps such names here
        return _OWN, value.removeprefix(inside)
    if isinstance(value, frozenset):  # its order changes from process to process
        return "frozenset", sorted(repr(_constant(each, own, inside)) for each in value)
    if isinstance(value, tuple):
        return "tuple", [_constant(each, own, inside) for each in value]
    return repr(value)
