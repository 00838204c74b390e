"""The globals that a workflow function assigns, and the module's containers that a run changes.

What the function declares ``global`` is part of its checkpoints.  It is restored where that takes
nothing from anybody: the global still has the value that it had when the first run of this process
began (mostly that of the import), or that this run left, and no other run of the process is alive.
Containers that are changed in place are not restored: they are named at the first checkpoint after
that, and on resume.  So are attributes of the module's classes, and variables of enclosing
functions, which the function, or a function that it names, captured.  The state of generators of
random numbers that the whole process shares is not restored either, which the first run says.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stepwise._execution.active_run import ActiveRun, live_runs
from stepwise._execution.process_memory import memory
from stepwise._identity.parts import captured
from stepwise._runtime.messages import notice, reports
from stepwise._values.class_contents import cell_content
from stepwise._values.digest import digest
from stepwise._values.preview import preview
from stepwise._values.trees import Watch, walk
from stepwise.errors import DigestError

__all__ = ["ModuleState", "is_global"]

_GLOBAL, _CHANGED, _CAPTURED = "@global ", "@changed", "closure."
_MOST = 1000  # objects in a container that is watched
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_MISSING = object()


def is_global(name: str) -> bool:
    """Return whether a checkpoint's value by this name is a global variable."""
    return name.startswith(_GLOBAL)


class ModuleState:
    """The module variables that one execution of a workflow function reads and changes.

    Args:
        assigned: names of the globals that the function assigns.
    """

    __slots__ = (
        "_active",
        "_all_watched",
        "_assigned",
        "_cells",
        "_changed",
        "_classes",
        "_namespace",
        "_watched",
    )

    def __init__(
        self, active: ActiveRun, function: types.FunctionType, assigned: Collection[str]
    ) -> None:
        self._active = active
        self._namespace = function.__globals__
        self._assigned = sorted(assigned)
        self._changed: list[str] = []
        for name in self._assigned:
            memory.globals.setdefault(self._key(name), _mark(self._value(name)))
        named, functions = _named_by(function)
        contents = {name: _content(self._value(name)) for name in named - {*self._assigned}}
        self._cells = {
            _CAPTURED + name: (cell, cell_content(cell, _MISSING))
            for name, cell in _cells(functions)
        }
        contents.update((name, _content(value)) for name, (_, value) in self._cells.items())
        self._classes: dict[str, tuple[type, Mapping[str, Any]]] = {}
        for name in named:
            cls = self._value(name)
            if isinstance(cls, type) and cls.__module__ == self._namespace.get("__name__"):
                self._classes[name] = cls, _state_of_class(cls)
                held = self._classes[name][1].items()
                contents.update((f"{name}.{n}", v) for n, v in held if type(v) in _CONTAINERS)
        trees = {name: walk(c, most=_MOST) for name, c in contents.items() if c is not None}
        self._watched = {n: Watch.over(t.nodes) for n, t in trees.items() if t and t.nodes}
        self._all_watched = Watch()
        for watch in self._watched.values():
            self._all_watched.extend(watch)
        if not active.journal.calls:
            self._tell_of_generators(function)

    @reports
    def _tell_of_generators(self, function: types.FunctionType) -> None:
        used = [*shared_generators(function)]
        if used and self._active.is_first("generators"):
            notice(
                f"{self._active.run_id}: {function.__qualname__} uses {', '.join(used)}, whose "
                "state is not restored when the run resumes. A generator of its own is: "
                "rng = random.Random(seed), or numpy.random.default_rng(seed), as a local variable"
            )

    def _key(self, name: str) -> tuple[str, str]:
        return str(self._namespace.get("__name__")), name

    def _value(self, name: str) -> Any:
        return self._namespace.get(name, _MISSING)

    def kept(self) -> dict[str, Any]:
        """Return the part of it that a checkpoint holds, under names that no variable has."""
        if not (self._assigned or self._watched or self._changed or self._cells or self._classes):
            return {}
        found = {name: self._value(name) for name in self._assigned}
        kept = {f"{_GLOBAL}{n}": value for n, value in found.items() if value is not _MISSING}
        changed = []
        if not self._all_watched.holds():
            changed = [name for name, watch in self._watched.items() if not watch.holds()]
        changed += [name for name, held in self._cells.items() if _is_another(*held)]
        for name, (cls, before) in self._classes.items():
            changed += [f"{name}.{each}" for each in _differing(before, _state_of_class(cls))]
        self._tell_changed({*changed} - {*self._changed})
        changed = sorted({*self._changed, *changed})
        return {**kept, _CHANGED: changed} if changed else kept

    @reports
    def _tell_changed(self, names: Collection[str]) -> None:
        new = [name for name in sorted(names) if self._active.is_first(f"changed {name}")]
        if new:
            notice(
                f"{self._active.run_id}: changes in {_spoken(new)} are not restored when the run "
                "resumes: keep the state of a run in its local variables, or in arguments"
            )

    def restore(self, values: Mapping[str, Any]) -> None:
        """Give the globals the values of a checkpoint, and report those that cannot be restored."""
        again = self._active.run_id in memory.runs  # globals are as this process left them
        self._changed = list(values.get(_CHANGED, ()))
        mine = memory.runs.get(self._active.run_id, {})
        others = live_runs.difference(self._active.lineage())
        left = []
        for name in self._assigned:
            value, now = values.get(f"{_GLOBAL}{name}", _MISSING), self._value(name)
            if value is _MISSING or _mark(value) == _mark(now):
                continue
            key = self._key(name)
            if others or _mark(now) not in (memory.globals[key], mine.get(name)):
                shown = "missing" if now is _MISSING else preview(now)
                left.append(f"{name} (it was {preview(value)} and is {shown})")
            else:
                self._namespace[name] = value
                memory.globals[key] = _mark(value)
        told = []
        if left:
            why = "another run of this process is alive" if others else "this process changed it"
            told.append(f"these globals are not restored: {', '.join(left)}, since {why}")
        if self._changed and not again:
            told.append(
                f"changes in {_spoken(self._changed)} are not restored: "
                "keep the state of a run in its local variables, or in arguments"
            )
        if told:
            notice(f"{self._active.run_id}: {'; '.join(told)}")

    @reports
    def replayed(self) -> None:
        """Report that the function begins again with globals that were assigned meanwhile."""
        changed = [
            n for n in self._assigned if memory.globals[self._key(n)] != _mark(self._value(n))
        ]
        if changed:
            notice(
                f"{self._active.run_id}: begins again from the top with the module's "
                f"{', '.join(changed)} as this process left them"
            )

    def left(self) -> None:
        """The function is not executed any more: called again, it finds the globals like this."""
        marks = {name: _mark(self._value(name)) for name in self._assigned}
        memory.runs[self._active.run_id] = marks


_CONTAINERS = (list, dict, set)


def _state_of_class(cls: type) -> dict[str, Any]:
    """Return the attributes of a class that are no functions and no names of Python's own."""
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith("_") and not hasattr(type(value), "__get__")
    }


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [n for n in {**before, **now} if before.get(n, _MISSING) is not now.get(n, _MISSING)]


class _Same:
    """The placeholder for a value without digest: equal for the very same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    __hash__ = None  # type: ignore[assignment]


def _mark(value: object) -> object:
    """Equal for equal values."""
    if value is _MISSING:
        return ""
    try:
        return digest(value)
    except DigestError:
        return _Same(value)


def _content(value: Any) -> Any:
    """The container whose changes show that a value was changed; ``None`` for others."""
    if type(value) in (list, dict, set):
        return value
    cls = type(value)
    if not cls.__flags__ & _HEAP_TYPE or issubclass(cls, (type, types.ModuleType)):
        return None
    try:  # the target of a proxy is not touched
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attributes if type(attributes) is dict else None


def _spoken(names: Collection[str]) -> str:
    captured = [n.removeprefix(_CAPTURED) for n in names if n.startswith(_CAPTURED)]
    of_module = [n for n in names if not n.startswith(_CAPTURED)]
    spoken = [f"{', '.join(of_module)} of the module"] if of_module else []
    return " and ".join([*spoken, *([f"the captured {', '.join(captured)}"] if captured else [])])


def _is_another(cell: types.CellType, before: Any) -> bool:
    """Return whether a captured variable was given another value."""
    now = cell_content(cell, _MISSING)
    return now is not before and _mark(now) != _mark(before)


def _cells(functions: list[types.FunctionType]) -> Iterator[tuple[str, types.CellType]]:
    """Yield the variables that functions captured, by name, without hidden names."""
    for function in functions:
        for name, cell in captured(function).items():
            if name.replace(".", "").isidentifier():
                yield name, cell


def _named_by(function: types.FunctionType) -> tuple[set[str], list[types.FunctionType]]:
    """The globals that a function names, and those that the module's functions it names do.

    Returns:
        their names; and the function with those of the module's functions.
    """
    namespace, named = function.__globals__, set[str]()
    functions = [function]
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in set(code.co_names) - named:
            value = namespace.get(name, _MISSING)
            if value is _MISSING:
                continue
            named.add(name)
            if type(value) is types.FunctionType:
                inside = getattr(value, "__wrapped__", value)
                if type(inside) is types.FunctionType and inside.__globals__ is namespace:
                    waiting.append(inside.__code__)
                    functions.append(inside)
    return named, functions


# -- generators of random numbers ----------------------------------------------------------------

_OWN = frozenset({"Random", "SystemRandom", "default_rng", "Generator", "RandomState"})
"""What makes a generator that is no other code's."""


def shared_generators(function: types.FunctionType) -> Iterator[str]:
    """Yield the names of functions that a workflow calls on generators that all code shares."""
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy")
    shared = getattr(random, "_inst", None)
    namespace, met = function.__globals__, set[str]()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in set(code.co_names) & namespace.keys():
            value = namespace[name]
            if value is random is not None or value is numpy is not None:
                found = _attributes_of(code, name, 1 if value is random else 2)
                yield from (f"{name}.{each}()" for each in found)
            elif shared is not None and getattr(value, "__self__", None) is shared:
                yield f"{name}()"
            elif _is_helper(value, namespace) and name not in met:
                met.add(name)
                waiting.append(value.__code__)


def _is_helper(value: Any, namespace: Mapping[str, Any]) -> bool:
    """Return whether a value is a function of the module, and no step: that records its result."""
    is_function = type(value) is types.FunctionType and value.__globals__ is namespace
    return is_function and not hasattr(value, "__wrapped__")


def _attributes_of(code: types.CodeType, name: str, depth: int) -> list[str]:
    """Return what code reads of a module: of ``random``, or of ``numpy`` in its ``random``."""
    import dis  # on use: few workflows name these modules

    found: dict[str, None] = {}
    path: list[str] | None = None
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL" and each.argval == name:
            path = []
        elif path is not None and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path.append(str(each.argval))
            if len(path) == depth:
                if path[-1] not in _OWN and (depth == 1 or path[0] == "random"):
                    found[".".join(path)] = None
                path = None
        elif each.opname not in ("PUSH_NULL", "CACHE", "EXTENDED_ARG"):
            path = None
    return [*found]
