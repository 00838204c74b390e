"""A check whether recorded pickles load in this program, without executing its code.

A pickle names the classes and functions that rebuild its values.  Each name is looked up here, and
an inert stand-in takes its place, so that nothing of the program is called.  Where loading would
call code of the program or of a library, that code decides: this is said, not guessed.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Container, Iterable
from operator import attrgetter
from typing import Any

from stepwise._checkpoints.checkpoints import Loaded
from stepwise._checkpoints.references import Reader
from stepwise._checkpoints.variables import FrameUnpickler
from stepwise._journal.records import Entry
from stepwise._values import preview
from stepwise._values.codec import JSON, PYTHON
from stepwise._values.preview import error_text

_SURE = frozenset({*sys.stdlib_module_names, "stepwise"})
_TAKES_CLASSES = frozenset(
    {
        "copyreg._reconstructor",
        "copyreg.__newobj__",
        "functools.partial",
        "collections.defaultdict",
        "stepwise._values.reducers._made_exception",
        "stepwise._checkpoints.variables._function",
    }
)
"""Functions that execute no code of a class or function that they are given."""
_PLAIN = ("dataclasses", "pydantic.main")
"""Modules whose ``__setstate__`` takes any state."""
_CONTAINERS = (list, dict, set, bytearray, deque)
_MISSING = object()


class Loadable:
    """The findings about the loading of some pickles.

    Args:
        main: the module that a started script is here, for the names of ``__main__``.
        variables: the names of the workflow's globals, and of the variables that it shares with
            functions inside and around it, the latter after a dot.
        secret: the names of the secrets that a call of the workflow gives.

    Attributes:
        fails: why a value certainly does not load; empty if that is not known.
        unknown: what decides whether the values load, each once.
        made: the program's classes of which the values have instances, by their full names.
    """

    def __init__(
        self,
        main: str,
        variables: Container[str] = (),
        secret: Container[str] = (),
    ) -> None:
        self.main, self.variables, self.secret = main, variables, secret
        self.fails = ""
        self.unknown: list[str] = []
        self.made: dict[str, type] = {}
        self._found: dict[str, Any] = {}

    @property
    def is_plain(self) -> bool:
        """True if the values are plain data, without stand-ins."""
        return all(each.target in _CONTAINERS for each in self._found.values())

    @property
    def of_script(self) -> list[str]:
        """The names of functions and classes of ``__main__`` that the values need."""
        return sorted(n.partition(".")[2] for n in self._found if n.startswith("__main__."))

    def fail(self, why: str) -> None:
        """Note that a value cannot be loaded; the first reason counts."""
        self.fails = self.fails or why

    def depends(self, on: str) -> None:
        """Note what decides whether a value can be loaded."""
        if on not in self.unknown:
            self.unknown.append(on)

    def look(self, data: bytes, reader: Reader | None = None) -> Any:
        """Look at one pickle; return its value with stand-ins, or None if it does not load."""
        try:
            unpickler = _InertUnpickler(data, reader.buffers() if reader is not None else None)
            unpickler.seen, unpickler.reader, unpickler.given = self, reader, {}
            if reader is not None:
                reader.find = unpickler.find_class
            return unpickler.load()
        except MemoryError:
            raise
        except Exception as error:
            if not (self.fails or self.unknown):  # a stand-in behaved unlike what it stands for
                self.depends(f"what loading it does ({type(error).__name__}: {error_text(error)})")
            return None
        finally:
            if reader is not None:
                reader.find = None

    def look_at_checkpoint(self, loaded: Loaded) -> None:
        """Look at the variables of a checkpoint."""
        reader = loaded.reader()
        self.look(loaded.payload, reader)
        end = len(loaded.payload)
        for _, form, size in reversed(loaded.state.changed):
            self.look_at(loaded.payload[end - size : end], form)
            end -= size

    def look_at_outcome(self, entry: Entry) -> None:
        """Look at the recorded outcome of a call."""
        record: Any = entry.record
        self.look_at(bytes(entry.payload), getattr(record, "form", None))

    def look_at(self, data: bytes, form: str | None) -> Any:
        """Look at a recorded value; ``form`` is as in :class:`stepwise._values.codec.Encoded`."""
        if form == JSON or not data:
            return None
        if form not in (None, PYTHON):
            self.fail(f"it holds code of Python {form}, and this is Python {PYTHON}")
            return None
        value = self.look(data)
        if type(value) is tuple:  # with changes, whose pickles are inside
            for each in value:
                if type(each) is bytes and each[:1] == b"\x80":
                    self.look(each)
        return value

    # -- names -----------------------------------------------------------------------------------

    def stand_in(self, module: str, name: str) -> Any:
        """Return the stand-in for a class or function; note if the program lacks it."""
        if module == "__main__" and not self.main:
            self.depends(f"{name} of the program that calls it")
        elif module == "__main__":
            module = self.main
        full = f"{module}.{name}"
        if full not in self._found:
            target = self._target(module, name)
            about = {"seen": self, "full": full, "target": target}
            self._found[full] = _StandIn(name, (Inert,), about)
        return self._found[full]

    def _target(self, module: str, name: str) -> Any:
        if module == "__main__":
            return _MISSING
        try:
            importlib.import_module(module)
        except Exception as error:  # a user's module may raise anything
            self.fail(f"{module} cannot be imported: {type(error).__name__}: {error_text(error)}")
            return _MISSING
        try:
            return attrgetter(name)(sys.modules[module])
        except AttributeError:
            self.fail(f"{module} has no {name} any more")
            return _MISSING


def _is_sure(full: str) -> bool:
    return full.partition(".")[0] in _SURE


def _is_python(function: Any) -> bool:
    """Return whether a method is written in Python, so that its code would be executed."""
    return isinstance(getattr(function, "__func__", function), types.FunctionType)


class _StandIn(type):
    """The class of stand-ins: calling one makes an inert object, and notes who would decide."""

    seen: Loadable
    full: str
    target: Any

    @property
    def is_theirs(cls) -> bool:
        """True for a class whose code is not Python's or ours."""
        return isinstance(cls.target, type) and not _is_sure(cls.full)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = object.__new__(cls)  # type: ignore[arg-type]
        special = _SPECIAL.get(cls.full)
        if special is not None:
            return special(cls.seen, args, made)
        cls._check_call(args)
        return made

    def _check_call(cls, args: tuple[Any, ...]) -> None:
        target, seen, full = cls.target, cls.seen, cls.full
        if target is _MISSING:
            return
        if isinstance(target, type):
            if issubclass(target, enum.Enum):
                cls._check_member(args)
            elif not _is_sure(full):
                made = (
                    inspect.getattr_static(target, "__new__"),
                    inspect.getattr_static(target, "__init__"),
                )
                if any(map(_is_python, made)) or type(target).__call__ is not type.__call__:
                    seen.depends(f"{full}(), which is called")
                elif inspect.isabstract(target):
                    seen.fail(f"{full} is abstract now")
        elif not _is_sure(full):
            seen.depends(f"{full}(), which is called")
        for each in args if full not in _TAKES_CLASSES else ():
            kind = each if isinstance(each, _StandIn) else type(each)
            if isinstance(kind, _StandIn) and not _is_sure(kind.full):
                seen.depends(f"{full}() of {kind.full}")

    def refill(cls, made: Any, state: dict[str, Any]) -> None:
        """Note whether the attributes of an object of the call can be set to recorded ones."""
        made.__dict__["state"] = frozenset(state)
        if cls.is_theirs:
            _check_attributes(cls, state, cls.target.__dictoffset__ != 0)
            cls.seen.made[cls.full] = cls.target

    def _check_member(cls, args: tuple[Any, ...]) -> None:
        values = cls.target._value2member_map_
        try:
            known = len(args) == 1 and args[0] in values
        except TypeError:  # a value without a hash
            known = False
        if known:
            return
        if _is_python(inspect.getattr_static(cls.target, "_missing_")) and not _is_sure(
            getattr(cls.target._missing_, "__module__", "")
        ):
            cls.seen.depends(f"{cls.full}._missing_")
        elif any(isinstance(type(each), _StandIn) for each in args):
            cls.seen.depends(f"{cls.full}(), which is called")
        else:
            cls.seen.fail(f"{cls.full} has no member {args[0] if args else ''!r} any more")


class Inert(metaclass=_StandIn):
    """A stand-in for an object, a class or a function; nothing that is done with it has effects."""

    seen: Loadable
    full = ""
    target: Any = _MISSING

    def __new__(cls, *args: Any, **_: Any) -> Any:
        """Note how an instance is made: without its initializer."""
        target, seen, made = cls.target, cls.seen, object.__new__(cls)
        special = _SPECIAL.get(cls.full)
        if special is not None:
            special(seen, args, made)
        elif cls.is_theirs:
            new = inspect.getattr_static(target, "__new__")
            fields = getattr(target, "_fields", None)
            if fields is not None and issubclass(target, tuple):
                least = len(fields) - len(getattr(target, "_field_defaults", ()))
                if not least <= len(args) <= len(fields):
                    seen.fail(f"{cls.full} has {len(fields)} fields now, and had {len(args)}")
            elif _is_python(new):
                seen.depends(f"{cls.full}.__new__")
            elif inspect.isabstract(target):
                seen.fail(f"{cls.full} is abstract now")
        elif target is not _MISSING and not isinstance(target, type):
            seen.fail(f"{cls.full} is no class any more")
        return made

    def __setstate__(self, state: Any) -> None:
        cls: Any = type(self)
        names = frozenset(map(str, state)) if isinstance(state, dict) else frozenset[str]()
        self.__dict__["state"] = names
        if cls.is_theirs:
            _check_state(cls, state)
            cls.seen.made[cls.full] = cls.target

    def __hash__(self) -> int:
        cls: Any = type(self)
        target = cls.target
        if cls.is_theirs and not issubclass(target, enum.Enum):
            fields = getattr(target, "__dataclass_fields__", {})
            state = self.__dict__.get("state", frozenset())
            whole = bool(fields) and all(n in state or hasattr(target, n) for n in fields)
            if _is_python(inspect.getattr_static(target, "__hash__")) and not whole:
                cls.seen.depends(f"{cls.full}.__hash__")
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, *_: Any, by: str = "append") -> None:
        """Take items, as a list or a set would."""
        self._changed(by)

    extend = functools.partialmethod(append, by="extend")
    add = functools.partialmethod(append, by="add")

    def __setitem__(self, key: Any, item: Any) -> None:
        hash(key)
        self._changed("__setitem__")

    def _changed(self, by: str) -> None:
        cls: Any = type(self)
        method = inspect.getattr_static(cls.target, by, None)
        if not cls.is_theirs:
            return
        if method is None:
            cls.seen.fail(f"{cls.full} has no {by} any more")
        elif _is_python(method):
            cls.seen.depends(f"{cls.full}.{by}")


def _check_state(cls: Any, state: Any) -> None:
    """Note whether the state of an instance can be set in today's class."""
    target, seen = cls.target, cls.seen
    own = inspect.getattr_static(target, "__setstate__", None)
    if own is not None:
        if getattr(own, "__module__", "") not in _PLAIN and _is_python(own):
            seen.depends(f"{cls.full}.__setstate__")
        return
    held, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    has_dict = target.__dictoffset__ != 0
    if held and not has_dict:
        seen.fail(f"{cls.full} has __slots__ now, and no place for {', '.join(map(str, held))}")
    if slots and _is_python(inspect.getattr_static(target, "__setattr__")):
        seen.depends(f"{cls.full}.__setattr__")
    _check_attributes(cls, slots or (), has_dict)


def _check_attributes(cls: Any, names: Iterable[str], has_dict: bool) -> None:
    """Note whether attributes can be set in an instance of today's class."""
    for name in names:
        found = inspect.getattr_static(cls.target, name, None)
        if isinstance(found, property):
            cls.seen.depends(f"{cls.full}.{name}, a property")
        elif not has_dict and not isinstance(found, types.MemberDescriptorType):
            cls.seen.fail(f"{cls.full} has no attribute {name} any more")


# -- functions that have a meaning of their own ---------------------------------------------------


def _from_module(seen: Loadable, args: tuple[Any, ...], _: Any) -> Any:
    return seen.stand_in(*args)


def _builtin_type(seen: Loadable, args: tuple[Any, ...], _: Any) -> Any:
    return seen.stand_in("types", *args)


def _attribute(seen: Loadable, args: tuple[Any, ...], made: Any) -> Any:
    owner, name = args
    target = owner.target if isinstance(owner, _StandIn) else _MISSING
    if isinstance(target, type) and inspect.getattr_static(target, name, _MISSING) is _MISSING:
        seen.fail(f"{owner.full} has no {name} any more")
    elif not isinstance(target, type) or not issubclass(target, enum.Enum):
        seen.depends(f"an attribute {name}, which is read")
    return made


def _code(
    name_in: Callable[[tuple[Any, ...]], tuple[str, str]],
) -> Callable[[Loadable, tuple[Any, ...], Any], Any]:
    """Return a function that notes a function or class whose code is recorded.

    Args:
        name_in: returns the module and the name, given the arguments of what makes it.
    """

    def note(seen: Loadable, args: tuple[Any, ...], made: Any) -> Any:
        module, name = name_in(args)
        if module == "__main__" and not seen.main:
            seen.stand_in(module, name)  # it needs other names of the script
        return made

    return note


def _argument(_: Loadable, args: tuple[Any, ...], made: Any) -> Any:
    is_class = isinstance(args[1], _StandIn)
    return object.__new__(args[1]) if is_class else made


def _refill(_: Loadable, args: tuple[Any, ...], made: Any) -> Any:
    live, content = args
    if isinstance(type(live), _StandIn) and isinstance(content, tuple):
        type(live).refill(live, content[0])
    return made


def _variable(seen: Loadable, args: tuple[Any, ...], made: Any) -> Any:
    if args[0] not in seen.variables:
        seen.fail(f"the workflow shares no variable {args[0].removeprefix('.')} any more")
    return made


def _deciding(text: str) -> Callable[[Loadable, tuple[Any, ...], Any], Any]:
    """Return a function that notes what decides."""

    def note(seen: Loadable, args: tuple[Any, ...], made: Any) -> Any:
        seen.depends(text.format(*(getattr(each, "full", each) for each in args)))
        return made

    return note


_SPECIAL: dict[str, Callable[[Loadable, tuple[Any, ...], Any], Any]] = {
    "stepwise._values.codec.from_module": _from_module,
    "builtins.getattr": _attribute,
    "stepwise._checkpoints.variables._function": _code(lambda args: (args[1], args[2])),
    "cloudpickle.cloudpickle._builtin_type": _builtin_type,
    "cloudpickle.cloudpickle._make_skeleton_class": _code(
        lambda args: (args[3].get("__module__", ""), args[1])
    ),
    "cloudpickle.cloudpickle._make_skeleton_enum": _code(lambda args: (args[4], args[2])),
    "stepwise._checkpoints.variables._argument": _argument,
    "stepwise._checkpoints.variables._refill": _refill,
    "stepwise._checkpoints.variables._cell": _variable,
    "stepwise._checkpoints.variables._global": _variable,
    "stepwise._checkpoints.variables._taken": _deciding("the call, which gives {0}"),
    "stepwise._checkpoints.variables._client": _deciding("the client {0}, which is made again"),
    "stepwise._checkpoints.resources._make": _deciding("the resource {0}, which is made again"),
    "stepwise._workflows.frame.Remade": _deciding("the client {0}, which is made again"),
    "stepwise._workflows.outlook.Skipped": _deciding("the items of a loop, which is begun again"),
    "stepwise._values.reducers._running_loop": _deciding("the running event loop"),
}


class _InertUnpickler(FrameUnpickler):
    """An unpickler of stand-ins."""

    seen: Loadable
    given: dict[str, Any]

    def find_class(self, module: str, name: str) -> Any:
        return self.seen.stand_in(module, name)

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == preview.REFERENCE:
            _, form, parts = pid
            within = (each[0] for each in parts if type(each) is not str)
            for name in [parts] if form == "whole" else within:
                if name not in self.seen.secret:
                    self.seen.fail(f"the call gives no secret {name!r} any more")
            return ""
        if type(pid[0]) is not str:
            return self.reader.load(pid) if self.reader is not None else None
        name, cls, content = pid
        if content is not None and cls is not None and cls.target in _CONTAINERS:
            self.given[name] = content
        elif name not in self.given:
            self.given[name] = object.__new__(cls or self.seen.stand_in("builtins", "object"))
            if cls is not None and isinstance(content, tuple):
                cls.refill(self.given[name], content[0])
        return self.given[name]
