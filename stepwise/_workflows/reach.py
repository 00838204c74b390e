"""The prediction whether a statement that is about to be executed may call a step.

What it names is looked up without calling anything (``isinstance`` would, of a proxy): a step, a
workflow, something that certainly calls no step (builtins, and the parts of the standard library
that do not call what they are not given), or something of which nobody can tell.

What calls no step may still leave something in a variable that no checkpoint can hold: an open
file, a generator.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import types
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from stepwise._calls.steps import step_of
from stepwise._execution.waits import may_wait
from stepwise._rewrite import Ahead, Rewritten
from stepwise._runtime.facts import NamedTuple
from stepwise._workflows.loops import Counted

__all__ = ["Outlook", "Outlooks", "Reach", "SeenNames", "outlook"]


class Reach:
    """The furthest effect that a statement may have, as numbers in their order.

    No enum: to make one takes as many instructions as to load two small modules.
    """

    NOTHING = 0
    UNSURE = 1
    """No step, but the result may not be recordable."""
    PERHAPS = 2
    STEP = 3
    EFFECT = 4
    WAIT = 5


class Outlook(NamedTuple):
    """The expected effect of the code between a point and the next one.

    Args:
        drawn: executed again, it may come to other values.
    """

    reach: int
    drawn: bool


_SAME = frozenset(
    (
        *("base64", "binascii", "bisect", "builtins", "cmath", "collections", "copy"),
        *("dataclasses", "decimal", "fractions", "heapq", "html", "itertools", "json", "math"),
        *("pprint", "re", "statistics", "string", "textwrap", "typing", "unicodedata"),
    )
)
"""Modules whose results depend on the arguments alone, except for the functions below."""

_DRAWING = frozenset(("frozenset", "getattr", "globals", "hash", "id", "input", "open", "set"))

_PLAIN = _SAME - {"itertools"} | frozenset(
    (
        *("calendar", "datetime", "genericpath", "getpass", "logging", "ntpath", "os", "pathlib"),
        *("platform", "posix", "posixpath", "random", "secrets", "sys", "time", "uuid"),
        *("warnings", "zoneinfo"),
    )
)
"""Modules whose results can be recorded, except for functions that open or iterate."""

_OPEN = frozenset(
    (
        *("aiter", "fdopen", "filter", "finditer", "glob", "iter", "iterdir", "map", "memoryview"),
        *("open", "popen", "rglob", "scandir", "walk"),
    )
)

_PURE = _PLAIN | frozenset(
    (
        *("abc", "argparse", "array", "colorsys", "configparser", "contextlib", "copyreg", "csv"),
        *("difflib", "email", "enum", "fnmatch", "glob", "gzip", "hashlib", "hmac", "io"),
        *("ipaddress", "itertools", "linecache", "locale", "mimetypes", "numbers", "pickle"),
        *("quopri", "reprlib", "shlex", "shutil", "socket", "sqlite3", "stat", "struct"),
        *("subprocess", "tempfile", "traceback", "urllib", "zlib"),
    )
)
"""Functions that call only their arguments, which are examined as well."""

_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes, bytearray, range, deque)
_SCALARS = (int, float, bool, type(None), complex, *_CONTAINERS)
_SUSPENDED: tuple[type, ...] = (
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    *(map, filter, zip, enumerate, functools.partial),
    *(each for each in vars(itertools).values() if isinstance(each, type)),
)
"""Objects that run user code when they are iterated, awaited or called."""

_ITERABLES: tuple[Any, ...] = (
    *([], (), {}, {}.values(), {}.items(), set(), "", b"", bytearray(), deque()),
    *(reversed([]), range(0), range(1 << 70)),
)
_SET_ITERATOR: type = type(iter(set[int]()))
_PLAIN_ITERATORS = tuple(type(iter(each)) for each in _ITERABLES)

_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)
_THEMSELVES = (type, types.ModuleType, types.FunctionType, *_C_FUNCTIONS)
_RUN_CODE = frozenset({id(exec), id(eval), id(builtins.__import__)})
_MISSING = object()


def outlook(
    ahead: Ahead,
    values: Mapping[str, Any],
    rewritten: Rewritten,
    entered: Collection[str | int],
) -> Outlook:
    """Predict the effect of the code between a point and the next one.

    Args:
        values: the local variables.
        entered: loops and ``with`` statements in which checkpoints can be taken.
    """
    look = _Look(values, rewritten)
    look.at(ahead, entered)
    return Outlook(look.reach, look.drawn)


class Outlooks:
    """The outlooks of a function at its points, each taken anew only where it could be another.

    Args:
        rewritten: the function.
        entered: loops and ``with`` statements in which checkpoints can be taken.
    """

    def __init__(self, rewritten: Rewritten, entered: Collection[str | int]) -> None:
        self._rewritten = rewritten
        self._namespace = rewritten.function.__globals__
        self._entered = entered
        self._known: dict[int, tuple[SeenNames, Outlook]] = {}
        self._open: set[int] = set()  # points whose answer depends on more than is remembered

    def at(self, number: int, ahead: Ahead, values: Mapping[str, Any]) -> Outlook:
        """Return the outlook at the point of this number."""
        known = self._known.get(number)
        if known is not None and known[0].still(values):
            return known[1]
        found = outlook(ahead, values, self._rewritten, self._entered)
        if number not in self._open:
            seen = self._seen(ahead, values)
            if seen is not None:
                self._known[number] = seen, found
            else:
                self._known.pop(number, None)
                self._open.add(number)
        return found

    def known(self, number: int) -> tuple[SeenNames, Outlook] | None:
        """Return the outlook that was taken last at a point, and what it depends on."""
        return self._known.get(number)

    def _seen(self, ahead: Ahead, values: Mapping[str, Any]) -> SeenNames | None:
        """Return what an outlook depends on; ``None`` if that is more than names and their kinds.

        Nothing that belongs to the run is held: an instance that is held counts as alive.
        """
        if ahead.inner is not None:
            return None
        look, seen = _Look(values, self._rewritten), SeenNames(self._namespace)
        for dotted in ahead.called | ahead.used:
            root, *attributes = dotted.split(".")
            is_local = root in values or look.is_local(root)
            value = (values if is_local else self._namespace).get(root, _MISSING)
            cls = type(value)
            if issubclass(cls, (types.MethodType, functools.partial)) or len(attributes) > 1:
                return None
            itself = value is _MISSING or issubclass(cls, _THEMSELVES)
            if is_local and itself and isinstance(value, (type, types.FunctionType)):
                return None
            held = _attribute(value, attributes[0]) if attributes else None
            if attributes and cls in _CONTAINERS and type(held) in _C_FUNCTIONS:
                attributes = []  # a method of a builtin class, which cannot be replaced
            if attributes and (
                type(held) is not types.FunctionType or "<locals>" in held.__qualname__
            ):
                return None
            seen.add(root, value, is_local=is_local, itself=itself)
            if attributes:
                seen.attributes.append((is_local, root, attributes[0], held))
        return seen


class SeenNames:
    """The names that code uses: the kinds of their values, and the values that matter themselves.

    They are few, and are looked at twice a step: a loop takes a third of what ``map`` takes to
    begin.

    Args:
        namespace: the globals.

    Attributes:
        attributes: that are asked of them: whether it is a local variable, its name, the
            attribute, and the function that this is.
    """

    __slots__ = ("_kinds", "_namespace", "_values", "attributes")

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._kinds: list[tuple[bool, str, type]] = []  # the first: it is a local variable
        self._values: list[tuple[bool, str, Any]] = []
        self.attributes: list[tuple[bool, str, str, Any]] = []

    def add(self, name: str, value: Any, *, is_local: bool, itself: bool) -> None:
        """Add a name.

        Args:
            itself: its kind does not say all: no other value stands for it.
        """
        if itself:
            self._values.append((is_local, name, value))
        else:
            self._kinds.append((is_local, name, type(value)))

    def still(self, values: Mapping[str, Any]) -> bool:
        """Return whether all names still stand for objects of the same kind as when seen.

        Args:
            values: the local variables.
        """
        namespace = self._namespace
        for is_local, name, kind in self._kinds:
            if type((values if is_local else namespace).get(name, _MISSING)) is not kind:
                return False
        for is_local, name, value in self._values:
            if (values if is_local else namespace).get(name, _MISSING) is not value:
                return False
        return not self.attributes or all(
            _attribute((values if is_local else namespace).get(root, _MISSING), attribute) is held
            for is_local, root, attribute, held in self.attributes
        )


class _Look:
    """Looks at what code names, one name after the other."""

    def __init__(self, values: Mapping[str, Any], rewritten: Rewritten) -> None:
        self.values, self.namespace = values, rewritten.function.__globals__
        self.is_local = rewritten.variables.__contains__
        self.reach, self.drawn = Reach.NOTHING, False

    def at(self, ahead: Ahead, entered: Collection[str | int]) -> None:
        """Look at all of it; at a body only if no checkpoint might be taken in there."""
        if ahead.unknown or ahead.generates:
            self.found(Reach.PERHAPS if ahead.unknown else Reach.UNSURE, drawn=True)
        for dotted in ahead.called:
            self.name(dotted, called=True)
        for dotted in ahead.used:
            self.name(dotted, called=False)
        if ahead.inner is not None and ahead.key not in entered:
            iterable: Any = () if ahead.iterable == "" else _MISSING
            if ahead.iterable:
                iterable = self.value(ahead.iterable)
            if type(iterable) not in _CONTAINERS:
                self.at(ahead.inner, entered)

    def found(self, reach: int, *, drawn: bool = False) -> None:
        self.reach = max(self.reach, reach)
        self.drawn = self.drawn or drawn

    def value(self, name: str) -> Any:
        """Return the value of a name."""
        if name in self.values:
            return self.values[name]
        if self.is_local(name):
            return _MISSING
        value = self.namespace.get(name, _MISSING)
        return getattr(builtins, name, _MISSING) if value is _MISSING else value

    def name(self, dotted: str, *, called: bool) -> None:
        """Examine the object that a dotted name denotes."""
        root, *attributes = dotted.split(".")
        if root[0] == "@":  # the iterator of a loop
            cls = type(self.values.get(root))
            plain = cls in _PLAIN_ITERATORS or cls is Counted
            self.found(Reach.NOTHING if plain else Reach.PERHAPS, drawn=cls is _SET_ITERATOR)
            return
        value = self.value(root)
        for number, name in enumerate(attributes):
            if _is_workflow(type(value)):
                break
            owner, value = value, _attribute(value, name)
            if value is _MISSING:  # created on first access
                self.found(Reach.PERHAPS if called else Reach.UNSURE, drawn=True)
                return
            cls = type(owner)
            of_theirs = issubclass(cls, (type, types.ModuleType)) or _is_of(_PURE, cls)
            if type(value) is types.FunctionType and of_theirs and _is_of(_PURE, value):
                if number == len(attributes) - 1:
                    self.call(value)
                else:
                    self.found(Reach.PERHAPS, drawn=True)
                return
        if attributes or not self.is_local(root):
            self.drawn = self.drawn or not callable(value)
        self.held(value, called=called, attribute=bool(attributes))

    def held(self, value: Any, *, called: bool, attribute: bool) -> None:
        """Look at a value that is named, or called."""
        cls = type(value)
        if cls is types.MethodType:
            value, cls = value.__func__, types.FunctionType
        if cls in _SCALARS or issubclass(cls, types.ModuleType):
            self.found(Reach.NOTHING, drawn=cls in (set, frozenset))
        elif issubclass(cls, functools.partial):
            self.found(Reach.PERHAPS, drawn=True)
            self.held(value.func, called=True, attribute=False)
        elif _is_workflow(cls):
            self.found(Reach.EFFECT)  # a child run, which is announced like a side effect
        elif cls is types.FunctionType and value in may_wait:
            self.found(Reach.WAIT)
        elif cls is types.FunctionType and (step := step_of(value)) is not None:
            self.found(Reach.EFFECT if step.effect else Reach.STEP)
        elif _perhaps(value, cls, called=called):
            self.found(Reach.PERHAPS, drawn=True)
        elif called:
            self.call(value)
        elif attribute and not _is_of(_PURE, cls):
            self.found(Reach.UNSURE)

    def call(self, value: Any) -> None:
        """Look at a builtin or a function of the standard library that is called."""
        module, name = _module_of(value), value.__name__
        plain = module in _PLAIN and name not in _OPEN
        same = module in _SAME and name not in _DRAWING
        self.found(Reach.NOTHING if plain else Reach.UNSURE, drawn=not same)


def _attribute(value: Any, name: str) -> Any:
    """An attribute, found without calling anything of the user's."""
    if issubclass(type(value), types.ModuleType):
        found = vars(value).get(name, _MISSING)
        if found is _MISSING and vars(value).get("__name__") == "stepwise":
            return getattr(value, name, _MISSING)  # its functions that wait are loaded on use
        return found
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    classes = (*(value.__mro__ if issubclass(type(value), type) else ()), *type(value).__mro__)
    for holder in (own, *map(vars, classes)):
        if name in holder:
            found = holder[name]
            if issubclass(type(found), (staticmethod, classmethod)):
                return found.__func__
            return _MISSING if issubclass(type(found), property) else found
    return _MISSING


def _perhaps(value: Any, cls: type, *, called: bool) -> bool:
    """Return whether a value that is neither a step nor plain data may call a step."""
    if cls is types.FunctionType:
        return not _is_of(_PURE, value)
    if issubclass(cls, _C_FUNCTIONS):
        return id(value) in _RUN_CODE
    if issubclass(cls, type):
        return called and not _is_of(_PURE, value)
    suspended = issubclass(cls, _SUSPENDED) or hasattr(cls, "__await__")
    return suspended or hasattr(cls, "__next__") or called


def _is_workflow(cls: type) -> bool:
    return hasattr(cls, "run_id_for")


def _is_of(modules: Collection[str], value: Any) -> bool:
    """Return whether a class or function is of one of these modules."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0].lstrip("_") in modules


def _module_of(called: Any) -> str:
    module = getattr(getattr(called, "__objclass__", called), "__module__", None)
    if not isinstance(module, str):  # a method of a builtin object
        module = type(getattr(called, "__self__", None)).__module__
    return module.partition(".")[0].lstrip("_")
