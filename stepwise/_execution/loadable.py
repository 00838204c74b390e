"""A check whether recorded pickles load in this program, without executing its code.

A pickle names the classes and functions that rebuild its values.  Each name is looked up here, and
an inert stand-in takes its place, so that nothing of the program is called.  A name that is missing
fails.  A class loads if loading executes none of its code; for the rest, that code decides: this is
said, not guessed.
"""

from __future__ import annotations

import enum
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
_TAKES_CLASSES = frozenset({"functools.partial", "collections.defaultdict"})
"""Functions that execute no code of a class or function that they are given."""
_PLAIN: dict[Any, type] = {"dataclasses": list, "pydantic.main": dict}
"""The modules whose ``__setstate__`` sets any state of this type."""
_ASKED = ("__getstate__", "__reduce_ex__", "__reduce__", "__getattribute__")
"""The methods that are called to compare an instance of the module with a recorded one."""
_CONTAINERS = (list, dict, set, bytearray, deque)
_HASHES = (object.__hash__, str.__hash__, int.__hash__, enum.Enum.__hash__)
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
            about = {
                "seen": self,
                "full": full,
                "target": target,
                "is_theirs": target is not _MISSING and full.partition(".")[0] not in _SURE,
                "is_called": not _is_class(target) or issubclass(target, enum.Enum),
            }
            self._found[full] = type(name, (Inert,), about)
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


# -- stand-ins ------------------------------------------------------------------------------------


class Inert:
    """A stand-in for an object, a class or a function; nothing that is done with it has effects."""

    seen: Loadable
    full = ""
    target: Any = _MISSING
    is_theirs = False  # if the code is neither Python's nor ours
    is_called = True  # if only a call makes instances: a function or an enumeration

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance, which pickle does with and without a call; note what decides."""
        if cls.full in _SPECIAL:
            return _SPECIAL[cls.full](cls.seen, *args) or Inert()
        if cls.is_theirs and (kwargs or not _is_made(cls.target, args)):
            cls._decides("(), which is called" if cls.is_called else ".__new__")
        return object.__new__(cls)

    def __init__(self, *args: Any, **_: Any) -> None:
        """Note what decides about a call."""
        cls = type(self)
        if cls.is_theirs and not cls.is_called:
            cls._decides("(), which is called")
        for each in args if not cls.is_theirs and cls.full not in _TAKES_CLASSES else ():
            kind: Any = each if isinstance(each, type) else type(each)
            if issubclass(kind, Inert) and kind.is_theirs:
                cls._decides(f"() of {kind.full}")

    @classmethod
    def _decides(cls, what: str) -> None:
        """Note that what a class does decides."""
        cls.seen.depends(f"{cls.full}{what}")

    def __setstate__(self, state: Any) -> None:
        cls = type(self)
        if not cls.is_theirs:
            return
        cls.seen.made[cls.full] = target = cls.target
        held, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
        own = inspect.getattr_static(target, "__setstate__", None)
        if own is not None:
            if type(state) is not _PLAIN.get(getattr(own, "__module__", "")):
                cls._decides(".__setstate__")
        elif _is_python(target, "__getattr__") or _is_python(target, "__getattribute__"):
            cls._decides(".__getattr__")  # it is asked for __setstate__
        elif slots and _is_python(target, "__setattr__"):
            cls._decides(".__setattr__")
        elif not (held is None or (type(held) is dict and target.__dictoffset__)):
            cls._decides(", whose instances take no such state now")
        else:
            cls.refill(slots or ())

    @classmethod
    def refill(cls, names: Iterable[str]) -> None:
        """Note whether attributes are set in an instance of the class without code of its own."""
        if not cls.is_theirs:
            return
        cls.seen.made[cls.full] = cls.target
        for name in names:
            found = inspect.getattr_static(cls.target, name, None)
            is_set = cls.target.__dictoffset__ and not hasattr(type(found), "__set__")
            if not is_set and not isinstance(found, types.MemberDescriptorType):
                cls._decides(f".{name}")

    def __hash__(self) -> int:
        cls = type(self)
        if cls.is_theirs and inspect.getattr_static(cls.target, "__hash__") not in _HASHES:
            cls._decides(".__hash__")
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, *_: Any) -> None:
        """Take items, as a list, a set or a dict would."""
        if type(self).is_theirs:
            self._decides(", which takes items")

    extend = add = append

    def __setitem__(self, key: Any, item: Any) -> None:
        hash(key)
        self.append(item)


def _is_class(target: object) -> bool:
    return issubclass(type(target), type)  # isinstance asks the object


def _is_python(target: type, method: str) -> bool:
    """Return whether a method is written in Python, so that its code would be executed."""
    return isinstance(inspect.getattr_static(target, method, None), types.FunctionType)


def _is_made(target: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a class makes an instance of these arguments without code of its own."""
    if not _is_class(target):
        return False
    if issubclass(target, enum.Enum):
        return type(target) is enum.EnumMeta and args[0] in target._value2member_map_
    new = inspect.getattr_static(target, "__new__")
    made_by = getattr(getattr(new, "__func__", new), "__module__", None) or ""
    if made_by.startswith("namedtuple_"):
        return len(args) == len(inspect.getattr_static(target, "_fields"))
    return new is object.__new__ and not args and not inspect.isabstract(target)


# -- functions that have a meaning of their own ---------------------------------------------------


def _from_module(seen: Loadable, module: str, name: str) -> Any:
    return seen.stand_in(module, name)


def _builtin_type(seen: Loadable, name: str) -> Any:
    return seen.stand_in("types", name)


def _code(name_in: Callable[[tuple[Any, ...]], tuple[str, str]]) -> Callable[..., Any]:
    """Return a function that notes a function or class whose code is recorded.

    Args:
        name_in: returns the module and the name, given the arguments of what makes it.
    """

    def note(seen: Loadable, *args: Any) -> None:
        module, name = name_in(args)
        if module == "__main__" and not seen.main:
            seen.stand_in(module, name)  # it needs other names of the script

    return note


def _argument(_: Loadable, __: str, cls: Any) -> Any:
    return cls and cls.__new__(cls)


def _instance(_: Loadable, __: str, cls: Any, contents: tuple[Any, list[Any], list[Any]]) -> Any:
    made, (state, items, pairs) = cls.__new__(cls), contents
    made.__setstate__(state)
    if items or pairs:
        made.append(None)
    for name in _ASKED if cls.is_theirs else ():
        own = inspect.getattr_static(cls.target, name, None)
        if isinstance(own, types.FunctionType) and own.__module__ not in _PLAIN:
            cls._decides(f".{name}")
    return made


def _refill(_: Loadable, live: Any, content: Any) -> None:
    if isinstance(live, Inert) and type(content) is tuple:
        type(live).refill(content[0])


def _variable(seen: Loadable, name: str) -> None:
    if name not in seen.variables:
        seen.fail(f"the workflow shares no variable {name.removeprefix('.')} any more")


def _deciding(text: str) -> Callable[..., Any]:
    """Return a function that notes what decides."""

    def note(seen: Loadable, *args: Any) -> None:
        seen.depends(text.format(*(getattr(each, "full", each) for each in args)))

    return note


_SPECIAL: dict[str, Callable[..., Any]] = {
    "stepwise._values.codec.from_module": _from_module,
    "stepwise._checkpoints.variables._function": _code(lambda args: (args[1], args[2])),
    "cloudpickle.cloudpickle._builtin_type": _builtin_type,
    "cloudpickle.cloudpickle._make_skeleton_class": _code(
        lambda args: (args[3].get("__module__", ""), args[1])
    ),
    "cloudpickle.cloudpickle._make_skeleton_enum": _code(lambda args: (args[4], args[2])),
    "stepwise._checkpoints.variables._argument": _argument,
    "stepwise._checkpoints.variables._instance": _instance,
    "stepwise._checkpoints.variables._refill": _refill,
    "stepwise._checkpoints.variables._cell": _variable,
    "stepwise._checkpoints.variables._global": _variable,
    "builtins.getattr": _deciding("an attribute {1}, which is read"),
    "_pickle.loads": _deciding("a pickle in it"),
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
            cls = cls or self.seen.stand_in("builtins", "object")
            self.given[name] = cls.__new__(cls)
            _refill(self.seen, self.given[name], content)
        return self.given[name]
