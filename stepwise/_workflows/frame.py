"""The frame of a workflow function: when checkpoints are taken, and what they contain.

A client in a variable is not recorded; a resumed run repeats the statement that made the client.
A client such as ``client = OpenAI()`` holds locks and sockets, and nothing else but its arguments.
The statement must call the class of a known client, and bind the variable once, outside of loops.
Its arguments must be unchanged.

The reasons why a run could not resume inside a statement are reported once each.

Variables that the function declares ``global`` are part of its checkpoints.  A global is restored
only if no other run of the process is alive, so that no other code loses a value.  The global must
also have the value of the time when the first run of this process began (mostly that of the
import), or the value that this run left.

Containers that are changed in place are not restored: the next checkpoint and the resumed run name
them.  The same holds for attributes and defaults of the module's classes and functions, and for
globals that these assign.  It also holds for variables of enclosing functions that the function, or
a function that it names, captured.  The state of random number generators that the whole process
shares is not restored either, which the first run says.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import re
import sys
import time
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from stepwise._checkpoints.checkpoints import Checkpoints, Loaded, State
from stepwise._checkpoints.references import HEAVY, KnownValues, Looked, References
from stepwise._checkpoints.resources import LetGo, ids_of_made, is_reenterable
from stepwise._checkpoints.variables import (
    Surroundings,
    UnpicklableError,
    dump_few,
    dump_values,
    follow,
    load_values,
    root_of,
)
from stepwise._execution.active_run import ActiveRun, live_runs
from stepwise._execution.location import Helper
from stepwise._execution.process_memory import memory
from stepwise._execution.tasks import name_of_another, others_alive
from stepwise._identity.clients import has_key, is_client
from stepwise._identity.identity import captured
from stepwise._journal.records import Record, holds_plainly
from stepwise._matching.pool import Pool
from stepwise._rewrite.build import names_within
from stepwise._rewrite.frame import Frame, Point, Rewritten, visited_in
from stepwise._rewrite.source import FunctionNode, handler_at, prefix_fingerprint
from stepwise._rewrite.statements import Made
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import Once, count, file_name, notice, reports, warn
from stepwise._runtime.observers import heard
from stepwise._runtime.system_limits import stopped
from stepwise._values.codec import PYTHON
from stepwise._values.digest import cell_content, digest
from stepwise._values.preview import error_text, preview
from stepwise._values.reducers import is_lock, is_synchronizer, lock_of
from stepwise._values.trees import Watch, attributes, own_layout, same, slots_in, walk
from stepwise._values.unpickling import Data
from stepwise._workflows.definition import BoundCall
from stepwise._workflows.outlook import (
    Counted,
    FileChangedError,
    Outlook,
    Reach,
    Skipped,
    counting,
    names_of,
    reopened,
)
from stepwise.errors import DigestError, RunStopped, RunWarning

if TYPE_CHECKING:
    from stepwise._changes import Snapshot
    from stepwise._checkpoints.resources import SdkClients


# -- remade clients -------------------------------------------------------------------------------


_ATOMS = (str, bytes, int, float, bool, type(None))
# Names of the module, since an attribute of a class takes ten times as long to read.
_NOTHING, _UNSURE, _PERHAPS = Reach.NOTHING, Reach.UNSURE, Reach.PERHAPS
_STEP, _WAIT = Reach.STEP, Reach.WAIT


class Remade(NamedTuple):
    """The record of a client that is made again on resume.

    Args:
        cls: its class.
        globals: MACs of the global variables that are passed to it, by name.
    """

    cls: type
    globals: dict[str, str]

    def __repr__(self) -> str:
        return f"<{self.cls.__name__}, made again on resume>"


def remade(
    name: str,
    cls: type,
    values: Mapping[str, Any],
    rewritten: Rewritten,
    tag: Callable[[bytes], bytes],
) -> Remade | None:
    """Return the replacement of a client in a checkpoint; ``None`` if it cannot be remade.

    Args:
        name: of the variable.
        cls: of its value.
        values: the local variables.
        tag: makes a MAC, since a global may be a key.
    """
    made: Made | None = rewritten.made.get(name)
    function, found = rewritten.function, {}
    if made is None or not is_client(cls):
        return None
    root, *attributes = made.called.split(".")
    for each in made.read | {root}:
        if each in rewritten.variables:
            value = values.get(each, function)  # no free variable is restored
        else:
            value = function.__globals__.get(each, getattr(builtins, each, function))
            if type(value) in _ATOMS:
                found[each] = tag(digest(value).encode()).hex()
        if each == root:
            for attribute in attributes:
                value = vars(value).get(attribute) if type(value) is types.ModuleType else None
            if value is not cls:
                return None
        elif type(value) not in _ATOMS:
            return None
    return Remade(cls, found)


# -- complaints -----------------------------------------------------------------------------------


_PATIENCE = 3  # boundaries skipped in a row before a warning
_SHOWN = 4  # objects that a warning names
_INDEX = re.compile(r"\[[^\]]*\]")
_WAYS_OUT = (
    "Three ways out: make it inside the step that uses it; make it in a @stepwise.resource "
    "factory, which is called again on resume; or `del` it before the next step"
)
_LARGE = 100_000  # bytes that a variable takes


def why_shut(manager: Any, *, calls: bool) -> str:
    """Return why a ``with`` block cannot be entered again, and the way out.

    Args:
        calls: whether the head of the block calls a step.
    """
    cls = type(manager)
    is_function = cls.__module__ == "contextlib" and hasattr(manager, "gen")  # @contextmanager
    kind = f"{manager.gen.__name__}()" if is_function else cls.__name__
    why = f"entering this {kind} again would not restore its state"
    return (
        f"{'its head calls a step' if calls else why}. It would go back to before the block. If a "
        f"{kind} can safely be made and entered again, write `with stepwise.reenterable(...)`"
    )


def _variable(path: str) -> str:
    """Return the variable, or the attribute of ``self``, with which a path begins."""
    first, *rest = _INDEX.sub("", path).split(".")
    return f"self.{rest[0]}" if first == "self" and rest else first


def _reference(culprit: Any) -> Callable[[], Any]:
    return weakref.ref(culprit) if inspect.iscoroutine(culprit) else lambda: culprit


class Complaints:
    """Warnings about the checkpoints of one execution of a workflow function.

    Args:
        file: the file of the function, for messages.

    Attributes:
        first: returns whether a complaint is the first of its kind.
        culprits: variables that could not be recorded.  A coroutine among them is not kept
            alive: otherwise Python would not warn that it was never awaited.
        in_a_row: boundaries that were skipped since the last checkpoint.
    """

    def __init__(self, active: ActiveRun, file: str, rewritten: Rewritten) -> None:
        self._active = active
        self._file = file
        self._rewritten = rewritten
        self.first: Callable[[Any], bool] = Once()
        self._told: set[str] = set()
        self.culprits: dict[str, Callable[[], Any]] = {}
        self.in_a_row = 0

    def _where(self, line: int) -> str:
        return f"{self._file}:{line}"

    def _tell(self, about: str, text: str) -> None:
        if self.first(about):
            notice(f"{self._active.run_id}: {text}")

    @reports
    def helped(self, helper: Helper, calls: int) -> None:
        """Warn of a helper that made many calls within one statement."""
        if self.first(helper.place):
            warn(
                f"{calls} steps were called in {helper.place} by one statement of the workflow "
                f"({self._where(helper.line)}). Run {self._active.run_id!r} cannot resume inside "
                "it: it would be called again, and its steps answered from the journal. Decorate "
                f"{helper.code.co_name}() with @workflow to make the run resume inside",
                RunWarning,
            )

    @reports
    def no_entry(self, number: int, why: str) -> None:
        """Report steps in a ``with`` block that cannot be entered again; see :func:`why_shut`."""
        where = self._where(self._rewritten.withs[number].line)
        self._tell(f"with {number}", f"a run cannot resume inside the with block at {where}: {why}")

    @reports
    def within_handler(self, function: FunctionNode | None, code: CodeType) -> None:
        """Report several steps in an ``except`` or ``finally`` block, if they are in one.

        Args:
            code: the code of the workflow function, which is on the stack.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        line = (frame.f_lineno if frame is not None else None) or 0
        if function is None or not self.first(f"line {line}"):
            return
        kind, begin = handler_at(function, line)
        if kind:
            self._tell(
                f"handler {begin}",
                f"a run cannot resume inside the {kind} block at {self._where(begin)}. It would go "
                "back to before the block, and the journal would answer the steps inside. "
                "Call them after the try statement to make it resume between them",
            )

    @reports
    def dear(self, share: float, name: str, size: int) -> None:
        """Report that checkpoints take much of a run's time, and the heaviest variable."""
        is_large, most, rest = size >= _LARGE, "", ""
        if is_large or (size and name[0] != "@"):
            told = f"{size / 1e6:.1f} MB" if is_large else f"{size / 1e3:.1f} kB"
            most = f"; {self._named(name)} weighs most ({told})"
        if is_large:
            rest = ", or keep large data in a file and its path in the variable"
        notice(
            f"checkpoints take {share:.0%} of the time of run {self._active.run_id!r}{most}. "
            f"Take fewer, @workflow(checkpoint_every=10){rest}"
        )

    def _named(self, name: str) -> str:
        """Return a readable name for a value in a checkpoint; some names are internal."""
        if (root := root_of(name)) in self._rewritten.loops:
            return f"the iterable of the loop at {self._where(self._rewritten.loops[root])}"
        if name[:1] == "@":
            return f"the global {name.rpartition(' ')[2]!r}"
        return f"the variable {name!r}" if name else "a variable"

    @reports
    def skipping(self, name: str, items: int) -> None:
        """Report how many items a resumed loop skips, since an earlier attempt received them."""
        where = self._where(self._rewritten.loops[name])
        notice(f"{self._active.run_id}: skips {count(items, 'item')} of the loop at {where}")

    @reports
    def changed(self, name: str, variables: str) -> None:
        """Report a loop that cannot be resumed, since the variables in its head have changed."""
        self._tell(
            name,
            "a run can no longer resume inside the loop at "
            f"{self._where(self._rewritten.loops[name])}: {variables} changed since it began, so "
            "its items could differ. It would go back to before the change. Iterate over a "
            "copy, in a variable of its own",
        )

    def is_still_there(self, values: Mapping[str, Any]) -> bool:
        """Return whether an object that could not be recorded is where it was found.

        A lock is not counted: it may be free by now.
        """
        for path, reference in self.culprits.items():
            culprit = reference()
            if culprit is None or is_synchronizer(culprit):
                continue
            with contextlib.suppress(LookupError):
                if follow(path, values) is culprit:
                    return True
        return False

    @reports
    def unpicklable(self, error: UnpicklableError, line: int) -> None:
        """Report all objects that were found unrecordable at once, but each kind only once.

        A variable is reported once, even if another part of it fails later.  The iterator of a loop
        is reported only if nothing else failed: otherwise an item or argument is the reason.
        """
        found, loops = error.culprits.items(), self._rewritten.loops
        others = {n: each for n, (each, _) in found if root_of(n) not in loops}
        self.culprits.update((n, _reference(each)) for n, each in others.items())
        told: list[tuple[str, str]] = []
        kinds: set[str] = set()
        variables: set[str] = set()
        for name, (value, reason) in found:
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            if (root := root_of(name)) in loops:
                if others:
                    continue
                where = self._where(loops[root])
                self._tell(
                    root,
                    f"a run cannot resume inside the loop at {where}: the {kind} that it iterates "
                    f"over cannot be recorded ({reason}). It would go back to before the loop. "
                    "Iterate over a list of plain data to make it resume inside",
                )
                continue
            alike = f"{kind} {_INDEX.sub('[]', name)}"
            variables.add(variable := _variable(name))
            if alike in kinds or (variable not in self._told and self.first(alike)):
                kinds.add(alike)
                is_a = f" is a {kind}, which" if name else ""
                told.append((name, f"{self._named(name)}{is_a} cannot be recorded ({reason})"))
        self._told |= variables
        if not told:
            return
        more = f" (so are {', '.join(n for n, _ in told[1:_SHOWN])}" if told[1:] else ""
        more += f" and {len(told) - _SHOWN} more)" if told[_SHOWN:] else ")" if more else ""
        warn(
            f"no checkpoint of run {self._active.run_id!r} at {self._where(line)}: "
            f"{told[0][1]}{more}. The run would resume at the checkpoint before it. "
            f"{_WAYS_OUT}",
            RunWarning,
        )

    @reports
    def no_memory(self, line: int) -> None:
        """Warn that memory ran out while the variables were recorded."""
        if self.first("memory"):
            warn(
                f"no checkpoint of run {self._active.run_id!r} at {self._where(line)}: memory ran "
                "out while its variables were recorded. The run would resume at the checkpoint "
                "before it. Delete (`del`) unused variables, or give the program more memory",
                RunWarning,
            )

    @reports
    def copied(self, classes: Iterable[type]) -> None:
        """Report modules that ``sys.modules`` lacks: their classes are stored as copies."""
        made = [each for each in classes if each.__flags__ & _HEAP_TYPE]
        named = {each.__module__ for each in made if "<locals>" not in each.__qualname__}
        for module in sorted(named - sys.modules.keys()):
            if self.first(f"module {module}"):
                notice(
                    f"{self._active.run_id}: the module {module!r} is not in sys.modules, so that "
                    "a resumed run gets copies of its classes: isinstance() fails, and members of "
                    "enums are others. Where the module is loaded, write "
                    f"sys.modules[{module!r}] = module before exec_module(module)"
                )

    @reports
    def skipped(self, line: int) -> None:
        """Warn, after several skipped boundaries, which task or thread is still running."""
        another = name_of_another(self._active)
        self.in_a_row += bool(another)
        if another and self.in_a_row >= _PATIENCE and self.first("tasks"):
            warn(
                f"no checkpoint of run {self._active.run_id!r} at {self._where(line)} and "
                f"the {_PATIENCE - 1} boundaries before it: {another} is "
                "still running, and its pending work is not in the local variables. Await it, or, "
                "if it is not part of the run, start it under `with stepwise.background():`",
                RunWarning,
            )


# -- module state ---------------------------------------------------------------------------------


_GLOBAL, _CHANGED, _CAPTURED = "@global ", "@changed", "closure."
_MOST = 1000  # objects in a container that is watched
_MOST_BYTES = 1 << 18  # of contents in it that are copied: comparing takes about 20 us
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_MISSING = object()


class ModuleState:
    """The module variables that one execution of a workflow function reads and changes.

    Args:
        assigned: names of the globals that the function assigns.
    """

    def __init__(
        self, active: ActiveRun, function: types.FunctionType, assigned: Collection[str]
    ) -> None:
        self._active = active
        self._namespace = function.__globals__
        self._assigned = sorted(assigned)
        self._changed: list[str] = []
        for name in self._assigned:
            memory.globals.setdefault(self._key(name), mark(self._value(name)))
        named, functions, holders = _named_by(function)
        left = {name: self._value(name) for name in named - {*self._assigned}}
        left.update(_behind(left))
        self._scalars = {n: value for n, value in left.items() if type(value) in _SCALARS}
        self._cells = {
            _CAPTURED + name: (cell, cell_content(cell, _MISSING))
            for name, cell in _cells(functions)
        }
        left.update((name, value) for name, (_, value) in self._cells.items())
        self._holders: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        self._bare: dict[str, dict[str, Any]] = {}  # functions without attributes, as most are
        module = self._namespace.get("__name__")
        slotted = {n: v for n, v in left.items() if _has_slots(v) and type(v).__module__ == module}
        for name, held in {**holders, **slotted}.items():
            left.update((f"{name}({n})", value) for n, value in _defaults(held))
            if type(held) is types.FunctionType:
                (left if vars(held) else self._bare)[name] = vars(held)
                continue
            self._holders[name] = held, _state_of(held)
            state = self._holders[name][1].items()
            left.update((f"{name}.{n}", value) for n, value in state)
        self._shallow = {n: (v, _items(v)) for n, v in left.items() if type(v) in _SHALLOW}
        left.update((n, items) for n, (_, items) in self._shallow.items())
        contents = {name: _content(value) for name, value in left.items()}
        trees = {name: walk(c, most=_MOST) for name, c in contents.items() if c is not None}
        apart = {*self._holders, *(name for name, tree in trees.items() if tree is not None)}
        self._snapshots = _snapshots((n, v) for n, v in left.items() if n not in apart)
        self._watched = {n: Watch(t.nodes) for n, t in trees.items() if t and t.nodes}
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
        """Return the module's part of a checkpoint, under names that no local variable has."""
        changed = self._differences()
        if not (changed or self._assigned or self._changed):
            return {}
        found = {name: self._value(name) for name in self._assigned}
        kept = {f"{_GLOBAL}{n}": value for n, value in found.items() if value is not _MISSING}
        self._tell_changed({*changed} - {*self._changed})
        changed = sorted({*self._changed, *changed})
        return {**kept, _CHANGED: changed} if changed else kept

    def _differences(self) -> list[str]:
        """Return the names of the values that have changed in place."""
        changed = []
        if self._watched and not self._all_watched.holds():
            changed = [name for name, watch in self._watched.items() if not watch.holds()]
        if any(self._bare.values()):
            changed += [name for name, held in self._bare.items() if held]
        if not same([*map(self._namespace.get, self._scalars)], [*self._scalars.values()]):
            now = {n: self._value(n) for n in self._scalars}
            changed += [n for n in _differing(self._scalars, now) if type(now[n]) in _SCALARS]
        for name, (cell, before) in self._cells.items():
            if _is_another(cell, before):
                changed.append(name)
        for name, (holder, state) in self._holders.items():
            changed += [f"{name}.{each}" for each in _differing(state, _state_of(holder))]
        for name, (container, items) in self._shallow.items():
            changed += [] if same(items, _items(container)) else [name]
        for name, each in self._snapshots.items():
            if not each.holds_surely() and not any(n.startswith(f"{name}[") for n in changed):
                changed.append(name)
        return changed

    @reports
    def _tell_changed(self, names: Collection[str]) -> None:
        new = [name for name in sorted(names) if self._active.is_first(f"changed {name}")]
        if new:
            notice(
                f"{self._active.run_id}: changes in {_spoken(new)} are not restored when the run "
                "resumes: keep the state of a run in its local variables, or in arguments"
            )

    def restore(self, values: Mapping[str, Any]) -> None:
        """Assign the globals of a checkpoint; report any global that cannot be restored."""
        again = self._active.run_id in memory.runs  # globals are as this process left them
        self._changed = list(values.get(_CHANGED, ()))
        mine = memory.runs.get(self._active.run_id, {})
        others = live_runs.difference(self._active.lineage())
        left = []
        for name in self._assigned:
            value, now = values.get(f"{_GLOBAL}{name}", _MISSING), self._value(name)
            if value is _MISSING or mark(value) == mark(now):
                continue
            key = self._key(name)
            if others or mark(now) not in (memory.globals[key], mine.get(name)):
                shown = "missing" if now is _MISSING else preview(now)
                left.append(f"{name} (it was {preview(value)} and is {shown})")
            else:
                self._namespace[name] = value
                memory.globals[key] = mark(value)
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
        """Report that the function restarts with globals that this process has changed."""
        changed = [
            n for n in self._assigned if memory.globals[self._key(n)] != mark(self._value(n))
        ]
        if changed:
            notice(
                f"{self._active.run_id}: begins again from the top with the module's "
                f"{', '.join(changed)} as this process left them"
            )

    def left(self) -> None:
        """Remember the globals as this execution leaves them, so that the next may restore them."""
        marks = {name: mark(self._value(name)) for name in self._assigned}
        memory.runs[self._active.run_id] = marks


_CONTAINERS = (list, dict, set, tuple, deque, defaultdict, OrderedDict, Counter, bytearray)
_SHALLOW = (deque, defaultdict, OrderedDict, Counter, bytearray)
"""Containers that :func:`walk` does not enter."""

_SCALARS = (int, float, str, bytes, bool, type(None))
_ELSEWHERE = (
    *_SCALARS,
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
    *(types.MethodType, functools.partial),
)
"""Types of objects that hold nothing, or whose contents are looked at under other names."""


def _snapshots(values: Iterable[Any]) -> dict[str, Snapshot]:
    """Return snapshots of named values that no tree holds: generators, iterators, queues."""
    shared = getattr(sys.modules.get("random"), "_inst", None)  # told by shared_generators()
    held = {n: v for n, v in values if not (isinstance(v, _ELSEWHERE) or is_lock(v) or v is shared)}
    if not held:
        return {}
    from stepwise._changes import Snapshot  # on use: few modules hold such objects

    taken = {n: Snapshot({n: v}, most=_MOST, most_bytes=_MOST_BYTES) for n, v in held.items()}
    return {name: each for name, each in taken.items() if not each.unwatched}


def _has_slots(value: Any) -> bool:
    """Return whether the attributes of an instance are all in slots."""
    cls: Any = type(value)
    return bool(slots_in(cls)) and cls.__dictoffset__ == 0 and _content(value) is None


def _state_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of a slotted instance, or of a class without its functions."""
    if not isinstance(holder, type):
        return attributes(holder)
    return {
        name: value
        for name, value in vars(holder).items()
        if not name.startswith(("__", "_abc_"))
        and not name.endswith("_")
        and not hasattr(type(value), "__get__")
    }


def _defaults(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the mutable default values of a function, or of a class's functions, by name."""
    if isinstance(holder, type):
        for name, value in vars(holder).items():
            function = getattr(value, "__func__", value)
            if type(function) is types.FunctionType:
                yield from ((f"{name}.{each}", default) for each, default in _defaults(function))
    if type(holder) is not types.FunctionType:
        return
    code, defaults = holder.__code__, holder.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    found = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found.update(holder.__kwdefaults__ or {})
    yield from ((name, value) for name, value in found.items() if type(value) in _CONTAINERS)


def _items(container: Any) -> list[Any]:
    """Return the items of a container; the keys and values of a mapping."""
    return [*container, *(container.values() if isinstance(container, dict) else ())]


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [n for n in {**before, **now} if before.get(n, _MISSING) is not now.get(n, _MISSING)]


class _Same:
    """The placeholder for a value without digest: equal for the very same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    __hash__ = None  # type: ignore[assignment]


def mark(value: object) -> object:
    """Return a key that is equal for equal values."""
    if value is _MISSING:
        return ""
    try:
        return digest(value)
    except DigestError:
        return _Same(value)


def _content(value: Any) -> Any:
    """Return the container that shows changes of a value, or ``None`` if there is none."""
    if type(value) in (list, dict, set, tuple):
        return value
    cls = type(value)
    if not cls.__flags__ & _HEAP_TYPE or issubclass(cls, (type, types.ModuleType)):
        return None
    if own_layout(cls) is not object:
        return None  # what it holds in C, or as items, its attributes do not show
    try:  # a proxy forwards plain attribute access to its target
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if type(held) is dict else None


def _spoken(names: Collection[str]) -> str:
    captured = [n.removeprefix(_CAPTURED) for n in names if n.startswith(_CAPTURED)]
    of_module = [n for n in names if not n.startswith(_CAPTURED)]
    spoken = [f"{', '.join(of_module)} of the module"] if of_module else []
    return " and ".join([*spoken, *([f"the captured {', '.join(captured)}"] if captured else [])])


def _is_another(cell: types.CellType, before: Any) -> bool:
    """Return whether a captured variable was given another value."""
    now = cell_content(cell, _MISSING)
    return now is not before and mark(now) != mark(before)


def _cells(functions: list[types.FunctionType]) -> Iterator[tuple[str, types.CellType]]:
    """Yield the variables that functions captured, by name, without hidden names."""
    for function in functions:
        for name, cell in captured(function).items():
            if name.replace(".", "").isidentifier():
                yield name, cell


def _named_by(
    function: types.FunctionType,
) -> tuple[set[str], list[types.FunctionType], dict[str, Any]]:
    """Return the globals that a function uses, itself or through its module's code.

    Returns:
        the names of the globals; the function and the module's functions that it uses; and these
            functions and the module's classes, by name.
    """
    namespace, named = function.__globals__, set[str]()
    functions = [function]
    holders: dict[str, Any] = {function.__qualname__: function}
    waiting = [function.__code__]

    def enter(name: str, cls: type) -> None:
        if cls.__module__ == namespace.get("__name__"):
            found = {n: each for n, each in _classes_of(name, cls) if n not in holders}
            holders.update(found)
            waiting.extend(code for each in found.values() for code in _codes_of(each))

    owner, _, path = function.__qualname__.rpartition(".")[0].partition(".")
    with contextlib.suppress(AttributeError):
        holder = attrgetter(path)(namespace.get(owner)) if path else namespace.get(owner)
        if isinstance(holder, type):
            enter(holder.__qualname__, holder)
    while waiting:
        for name in {*names_within(waiting.pop())} - named:
            value = namespace.get(name, _MISSING)
            if value is _MISSING:
                continue
            named.add(name)
            inside = value
            while type(inside) is types.FunctionType:
                if inside.__globals__ is namespace:
                    waiting.append(inside.__code__)
                    functions.append(inside)
                    holders[name] = inside
                inside = getattr(inside, "__wrapped__", None)
            if isinstance(value, type):
                enter(name, value)
            else:
                enter(type(value).__qualname__, type(value))
    return named, functions, holders


def _behind(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what bound methods, partials and wrapped callables hold, by how the code names them."""
    waiting = [*values.items()]
    for name, value in waiting:
        if type(value) in (list, tuple, dict):
            pairs = value.items() if type(value) is dict else enumerate(value)
            found = [(f"{name}[{key!r}]", each) for key, each in pairs if callable(each)]
            waiting += found[:_MOST]
        elif isinstance(value, functools.partial):
            waiting += [(name, value.func), (f"{name}.args", value.args)]
            yield from ((f"{name}.args[{n}]", each) for n, each in enumerate(value.args))
            yield from ((f"{name}.{n}", each) for n, each in value.keywords.items())
        elif type(value) is types.MethodType:
            yield name, value.__self__
        elif type(value) is types.FunctionType and hasattr(value, "__wrapped__"):
            inner = inspect.unwrap(value)
            if isinstance(inner, (functools.partial, types.MethodType)):
                waiting.append((name, inner))
            elif type(inner) is not types.FunctionType:
                yield name, inner


def _classes_of(name: str, cls: type) -> Iterator[tuple[str, type]]:
    """Yield a class, its bases and metaclasses of the same module, and the classes in them."""
    for base in (*cls.__mro__, *inspect.getmro(type(cls))):
        if base.__module__ == cls.__module__:
            here = name if base is cls else base.__qualname__
            yield here, base
            for each, inner in vars(base).items():
                if isinstance(inner, type) and inner.__qualname__ == f"{base.__qualname__}.{each}":
                    yield from _classes_of(f"{here}.{each}", inner)


def _codes_of(cls: type) -> Iterator[types.CodeType]:
    functions = (getattr(each, "__func__", each) for each in vars(cls).values())
    yield from (each.__code__ for each in functions if type(each) is types.FunctionType)


# -- generators of random numbers ----------------------------------------------------------------

_OWN = frozenset({"Random", "SystemRandom", "default_rng", "Generator", "RandomState"})
"""Makers of a generator that no other code shares."""


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
    """Return whether a value is a function of the module, but no step, which records results."""
    is_function = type(value) is types.FunctionType and value.__globals__ is namespace
    return is_function and not hasattr(value, "__wrapped__")


def _attributes_of(code: types.CodeType, name: str, depth: int) -> list[str]:
    """Return the functions that code reads from ``random``, or from ``numpy.random``."""
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


# -- frame ----------------------------------------------------------------------------------------


_MANY = 20  # steps in one statement, by one helper
_SEVERAL = 3  # steps without a boundary
_ALLOWED = 0.05  # seconds for checkpoints before statements that might call a step
_GUESSES = 0.05  # share of the run's time for such checkpoints, in a long run
_SHARE, _COST, _SETTLED = 0.1, 0.002, 30.0  # share of the run's time; seconds each; seconds run
_NONE_GIVEN: Mapping[str, str] = {}
_NO_ITERATORS = ("generator", "async_generator", "coroutine")


class RestoreFailedError(BaseException):
    """The failure to restore a checkpoint's local variables, raised before the function runs.

    Args:
        why: for the user.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class WorkflowFrame(Frame):
    """One execution of a workflow function in a run.

    Args:
        begun: called once the frame stands, before any code of the function runs.
        loaded: the checkpoint to resume at.
        target: the point of that checkpoint in today's code of the function.

    Attributes:
        opened: the :class:`.WorkflowRun`.
    """

    opened: Any

    def __init__(
        self,
        active: ActiveRun,
        callee: BoundCall,
        rewritten: Rewritten,
        checkpoints: Checkpoints,
        begun: Callable[[], None],
        loaded: Loaded | None = None,
        target: int = 0,
    ) -> None:
        super().__init__()
        self.active = active
        self.callee = callee
        self.clients: SdkClients | None = None
        self.rewritten = rewritten
        self.every = callee.options.checkpoint_every
        self.checkpoints = checkpoints
        self.begun = begun
        self.file = file_name(callee.workflow.source.filename)
        self.loaded = loaded
        self.target = target
        self.around = Surroundings()
        self.classes = 0  # how many classes of stored objects were examined
        self.known = checkpoints.known_values(active.secrets)
        self.references = References(self.known)
        self.module = ModuleState(active, rewritten.function, rewritten.assigned)
        self.managers: dict[int, tuple[int, str]] = {}  # steps done before; why it cannot resume
        self.inside: dict[tuple[int, int], Any] = {}  # locks that ``with`` statements entered
        self.complaints = Complaints(active, self.file, rewritten)
        # Caches, by everything that their values depend on: see _state() and _shape().
        self.prefixes: dict[tuple[int, int], tuple[list[str], str | None]] = {}
        self.shapes: dict[tuple[object, ...], tuple[set[int], list[str]]] = {}
        self.outlooks: dict[int, Outlook] = {}  # by point
        self.visited: set[int] = set()  # branches
        self.asking = [number in rewritten.ahead for number in range(len(rewritten.points) + 1)]
        self.asked = 0  # the last point before which something may have called a step
        self.seen: set[int] = set()  # points after which a step was called
        self.tried: set[int] = set()  # points after which a step might have been called
        self.refused: set[int] = set()
        self.entered: set[int | str] = set()  # ``with`` statements and loops with checkpoints
        self.shut: set[int] = set()  # blocks that were not reported yet
        self.reopened: dict[int, Any] = {}  # the files of ``with`` statements to be entered again
        self.guesses = False
        self.drawn = False  # whether an executed statement may produce other values next time
        self.count = self.taken = self.without = 0
        self.cost = self.guessed = self.last = 0.0
        self.wanted = False  # whether the next possible boundary takes a checkpoint
        self.helped: dict[CodeType, int] = {}  # steps that helpers made since the last boundary
        self.started = time.perf_counter()

    def begin(self, points: int, captured: Callable[[], Any] | None = None) -> int:
        """Restore the frame; see the base class.

        Raises:
            RestoreFailedError: the variables cannot be loaded.
        """
        super().begin(points, captured)
        callee, rewritten, function = self.callee, self.rewritten, self.rewritten.function
        self.around = Surroundings.of(
            function, captured, callee.bound, callee.instance, callee.secret
        )
        self.around.stored = frozenset(name.rpartition(".")[2] for name in rewritten.stored)
        self.around.references = self.references
        self.around.clients = self._sdk_clients
        self.around.subjects = self.active.subjects
        if self.active.progress.resumed_from == 0:
            self.module.replayed()
        values: Mapping[str, Any] = callee.bound
        if self.loaded is not None:
            state = self.loaded.state
            self.around = self.around.only(state.arguments)
            reader = self.loaded.reader()
            try:
                self.values = load_values(
                    self.loaded.payload, self.around, reader, named=self._of_today
                )
                self.known.adopt(reader)
                self.values.update(self.loaded.changes())
                self.references.restored(self.values.values(), self.around.arguments.values())
                self.module.restore(self.values)
            except MemoryError as error:
                doing = f"the variables at {state.where} were loaded"
                raise self.active.stop(stopped(doing, error)) from error
            except FileChangedError as error:
                raise RestoreFailedError(str(error)) from error
            except Exception as error:
                why = f"{type(error).__name__}: {error_text(error)}"
                why = f"the variables at {state.where} cannot be loaded ({why})"
                raise RestoreFailedError(why) from error
            blocks = rewritten.blocks
            self.visited.update(blocks.index(path) for path in state.visited if path in blocks)
            self.loaded, values = None, self.values
        first = rewritten.ahead.get(self.target)  # no checkpoint is requested before it
        if first is not None:
            self.drawn = Outlook(first, values, rewritten).drawn
        self.begun()
        for name, value in self.values.items():
            if isinstance(value, Counted):  # whose file was opened again
                self.complaints.skipping(name, value.given)
        return self.target

    def _sdk_clients(self) -> SdkClients:
        if self.clients is None:
            from stepwise._checkpoints.resources import SdkClients  # on use: few make one

            self.clients = SdkClients(self._tag, self._stop)
        return self.clients

    def _tag(self, data: bytes) -> bytes:
        """Return a MAC over a value that a client takes from the environment."""
        return self.active.journal.seal.tag(f"{self.active.run_id}/client", data)

    def _stop(self, why: str) -> RunStopped:
        """Stop the run, since its client could not be made again; return the exception to raise."""
        run_id = self.active.run_id
        return self.active.stop(RunStopped(f"run {run_id!r} cannot go on: {why}", run_id=run_id))

    def _of_today(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of a checkpoint, with iterators and clients made again.

        Raises:
            LookupError: an iterator is missing, an iterator or a client cannot be made again,
                or a file has changed.
        """
        named = {**values}
        rewritten = self.rewritten
        for name in rewritten.points[self.target].loops:
            head, before = rewritten.heads.get(name), named[name]
            if type(before) is not Skipped:
                continue
            reading = rewritten.files.get(name)
            known = head is not None and names_of(head, named, rewritten) is not None
            if not known or (reading is None) != (before.file is None):
                raise LookupError(f"the loop at line {rewritten.loops[name]} is a different one")
            if reading is not None:
                assert head is not None
                try:
                    again = reopened(before, head, reading.code, named, rewritten)
                except FileChangedError as error:
                    where = f"{self.file}:{rewritten.loops[name]}"
                    why = f"the file that the loop at {where} reads has changed ({error})"
                    raise FileChangedError(why) from error
                named[name] = again
                if reading.within is not None:
                    self.reopened[reading.within] = again.file
        for name in rewritten.made.keys() & named.keys():
            value = named[name]
            if (
                type(value) is Remade
                and remade(name, value.cls, named, rewritten, self._tag) != value
            ):
                raise LookupError(f"what makes {name!r} has changed: its class or an argument")
        return named

    def look(self, result: object) -> Looked | None:
        """Capture a result before it is recorded; return ``None`` if no reference will be made."""
        return self.known.look(result)

    def recorded(self, number: int, record: Record, looked: Looked | None) -> None:
        """Note that an examined result is in the journal."""
        if self.shut:
            self.due = True  # an answered step belongs to the block, too
        if looked is not None and holds_plainly(record):
            self.known.recorded(number, looked)

    def caught_up(self) -> None:
        """Note that no record is left, so that the next checkpoint is that of an answered step."""
        self.due = self.wanted = True

    def known_now(self) -> KnownValues:
        """Return the values that are stored already, for a value recorded between checkpoints."""
        self.known.update({*map(id, self.around.arguments.values()), *ids_of_made()})
        return self.known

    def done(self, *, effect: bool, helper: Helper | None) -> None:
        """Note that a step ended, called by the workflow's own code or by a helper of it."""
        self.count += 1
        if effect or self.every == 1:
            self.seen.add(self.asked)
        if effect or self.count >= self.every:
            self.due = self.wanted = True
        if self.refused:
            for number in self.refused:
                self.asking[number] = self.asks[number] = True
            self.refused.clear()
        if helper is not None:
            self.due = True  # the next boundary is the end of this statement
            self.helped[helper.code] = calls = self.helped.get(helper.code, 0) + 1
            if calls == _MANY:
                self.complaints.helped(helper, calls)
        self.without += 1  # boundaries
        if self.without % _SEVERAL == 0 and helper is None:
            node, function = self.callee.workflow.source.node(), self.rewritten.function
            self.complaints.within_handler(node, function.__code__)

    # -- saving ----------------------------------------------------------------------------------

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Take a checkpoint if one is wanted and can be taken here; otherwise leave it due."""
        active, point = self.active, self.rewritten.points[number]
        entered, names = self._shape(number, point, values)
        self.visited |= entered
        self.helped.clear()
        self.without = 0
        if self.shut:
            self._tell_shut(point, values)
        tells = self.wanted  # an event is for due checkpoints only
        if active.stopped is not None or not self._wants(number, values):
            # A thread may have swallowed the stop of the run: nothing after it counts.
            if self._due:
                self.due = self.wanted and active.stopped is None
            values.clear()
            return
        began = time.perf_counter()
        kept = self._state_of(values, names)
        values.clear()  # before Python 3.13 the frame's own dict, which keeps dropped objects alive
        read = self._files_read(point, kept)
        # A stream that was cut may be requested again.
        cut = active.streams and any(each.cut for each in active.streams.values())
        if cut or not self._can_be_taken(point, kept, read, tells=tells):
            return
        if others_alive(active):
            if tells:
                self.complaints.skipped(point.line)
            return
        self.around.entered = self._entered(point)
        payload = self._pickled(kept, point, tells=tells)
        if payload is None:
            return
        active.note_handled()
        state = self._state(number)
        if state is None:
            return
        active.facts = self.checkpoints.write(
            state, payload, active.facts, self.references, reads_files=bool(read)
        )
        if heard():
            active.tell("checkpoint_taken", detail=state.where, step=state.step)
        self.entered.update(point.withs, point.loops)
        if read:
            self.shut -= read  # blocks after the loop are not reported
            self.entered -= read  # only in the loop
        self._note_taken(began, kept)

    def _note_taken(self, began: float, kept: dict[str, Any]) -> None:
        """Reset the counters after a checkpoint, and add up its cost.

        Args:
            began: its start, in seconds of ``time.perf_counter()``.
            kept: the variables in it.
        """
        self.due = self.wanted = False
        self.complaints.in_a_row = self.count = 0
        now = time.perf_counter()
        self.last = now - began
        self.cost += self.last
        if self.guesses:
            self.guessed += self.last
        self.taken += 1
        if len(self.around.classes) != self.classes:
            self.classes = len(self.around.classes)
            self.complaints.copied(self.around.classes)
        if now - self.started >= _SETTLED:
            self._weigh(kept)

    def _wants(self, number: int, values: dict[str, Any]) -> bool:
        """Return whether to take a checkpoint before the next statement.

        A checkpoint is always taken before a statement that may wait.  It is also taken before a
        statement that certainly calls a step, or has called one, if values were drawn since the
        last checkpoint.  A second execution could draw other values, which flow into the step.  A
        checkpoint that is due is taken early if no value was drawn: no second one is necessary.
        """
        rewritten, before = self.rewritten, self.drawn
        ahead, outlook = rewritten.ahead[number], self.outlooks.get(number)
        if outlook is None or not outlook.holds(values):
            outlook = self.outlooks[number] = Outlook(ahead, values, rewritten, self.entered)
        reach, self.drawn = outlook.reach, before or outlook.drawn
        self.guesses, seen, new = False, number in self.seen, number not in self.tried
        if reach > _UNSURE:
            self.asked = number
            self.tried.add(number)
        if self.wanted or reach is _WAIT:  # another process may continue after a wait
            if reach is _NOTHING and not (ahead.ends or ahead.escapes):
                return not self.drawn  # else a second one would follow
            if reach is not _PERHAPS or seen or new:
                return True
        elif reach <= _UNSURE or (reach is _STEP and self.every > 1 and not seen):
            self.asking[number] = self.asks[number] = False
            return False
        elif not before:  # the executed statements produce the same values again
            return False
        elif (seen or reach >= _STEP) and not self.active.pool:
            return True
        elapsed = time.perf_counter() - self.started
        self.guesses = self.guessed + self.last <= max(_ALLOWED, _GUESSES * elapsed)
        if not self.guesses:
            self.asking[number] = self.asks[number] = False
            self.refused.add(number)  # until the next step is done
        return self.guesses

    def _shape(
        self, number: int, point: Point, values: Mapping[str, Any]
    ) -> tuple[set[int], list[str]]:
        """Return the branches entered and the variables that are state, both found by their names.

        State excludes internal variables, variables of enclosing functions, and variables that an
        open ``with`` statement binds again on resume.
        """
        rewritten, here = self.rewritten, (number, *values)
        found = self.shapes.get(here)
        if found is None:
            again = {name for each in point.withs for name in rewritten.withs[each].names}
            again.update(rewritten.function.__code__.co_freevars)
            names = [
                name
                for name in values
                if (name[0] != "@" or name in point.loops) and name not in again
            ]
            found = self.shapes[here] = visited_in(values), names
        return found

    def _state_of(self, values: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
        """Return the variables that are state, with clients replaced, and the module's state."""
        rewritten = self.rewritten
        kept = {name: values[name] for name in names}
        for name in rewritten.made.keys() & kept.keys() if rewritten.made else ():
            client: Any = kept[name]
            cls: Any = type(client)
            if has_key(cls) and self._sdk_clients().options_of(client) is not None:
                continue
            anew = remade(name, type(kept[name]), kept, rewritten, self._tag)
            # If a global changes, the run needs an older checkpoint or the whole journal.
            if anew is not None and not (anew.globals and self.checkpoints.prunes_journal):
                kept[name] = anew
        kept.update(self.module.kept())
        return kept

    def _can_be_taken(
        self,
        point: Point,
        values: dict[str, Any],
        read: Collection[int | None],
        *,
        tells: bool,
    ) -> bool:
        for number in point.withs:
            if self.managers.get(number, (0, ""))[1] and number not in read:
                return False
        for name in point.loops:
            iterator = values.get(name)
            if isinstance(iterator, Counted):
                changed = iterator.changed(values)
                if changed and tells:
                    self.complaints.changed(name, changed)
                if changed:
                    return False
            if type(iterator).__name__ in _NO_ITERATORS:
                why = f"cannot pickle {type(iterator).__name__!r} object"
                error = UnpicklableError({name: (iterator, why)})
                if tells:
                    self.complaints.unpicklable(error, point.line)
                return False
        # A value that did not pickle the last time and is still there will not pickle now.
        complaints, held = self.complaints, self.around.arguments
        return not (complaints.culprits and complaints.is_still_there({**held, **values}))

    def _pickled(self, values: dict[str, Any], point: Point, *, tells: bool) -> Data | None:
        """Return the pickled variables; report a failure and return ``None``."""
        try:
            payload = self._referring(values)
            if self.active.secrets:
                self._refuse_secrets(values, payload)
            return payload
        except UnpicklableError as error:
            if tells:
                self.complaints.unpicklable(error, point.line)
        except MemoryError as error:
            error.with_traceback(None)  # its frames hold values that were pickled so far
            self.complaints.no_memory(point.line)
        return None

    def _referring(self, values: dict[str, Any]) -> Data:
        """Pickle the variables; refer to values that are stored already or in separate chunks."""
        few = dump_few(values, self.around)
        if few is not None:
            self.references.prepare_none()
            return few
        self.references.prepare(values.values(), self.around.arguments.values())
        payload = self._dump(values)
        if len(payload) > HEAVY and self.references.split_heavy():
            return self._dump(values)
        return payload

    def _refuse_secrets(self, values: dict[str, Any], payload: Data) -> None:
        """Refuse a checkpoint with a secret that a resumed call would not pass again."""
        secrets = self.active.secrets
        name = secrets.found_in(payload)
        if not name:
            return
        why = (
            f"it holds the secret {name!r}, which is stored nowhere; name it in secret= of the "
            "workflow, too, whose call then gives it again"
        )
        alone = self.around.holding({})
        alone.references = None
        found = {n: v for n, v in values.items() if secrets.found_in(dump_values({n: v}, alone))}
        raise UnpicklableError({n: (v, why) for n, v in (found or {"": None}).items()})

    def _dump(self, values: dict[str, Any]) -> Data:
        try:
            return dump_values(values, self.around)
        except UnpicklableError as error:
            # Values bound by a ``with`` that has ended (a closed file, a client) are dropped.
            over = {name for each in self.rewritten.withs for name in each.released}
            found, left = error.culprits.items(), {*map(root_of, error.culprits)}
            culprits = {
                n: each for n, each in found if root_of(n) not in over and not n.startswith(_GLOBAL)
            }
            if culprits:
                raise UnpicklableError(culprits) from error
            kept = {n: value for n, value in values.items() if n not in left}
            gone = {n: LetGo(type(values[n]).__name__) for n in left & over}
            return dump_values({**kept, **gone}, self.around)

    def _state(self, number: int) -> State | None:
        rewritten, point = self.rewritten, self.rewritten.points[number]
        here = number, len(self.visited)  # branches are only added, so their number identifies them
        if here not in self.prefixes:
            node = self.callee.workflow.source.node()
            visited = [rewritten.blocks[n] for n in sorted(self.visited)]
            known = prefix_fingerprint(node, point.position, visited) if node is not None else None
            self.prefixes[here] = visited, known
        visited, prefix = self.prefixes[here]
        if prefix is None:
            return None
        return state_of(
            self.active,
            position=point.position,
            line=point.line,
            file=self.file,
            prefix=prefix,
            visited=visited,
            arguments=self.around.kinds(),
        )

    def remakes(self, name: str) -> bool:
        """Return whether a variable has to be made again."""
        return type(self.values.get(name)) is Remade

    # -- loops -----------------------------------------------------------------------------------

    def anew(self, iterator: Any) -> bool:
        """Return whether the iterator of a resumed loop has to be made again."""
        if isinstance(iterator, Counted):  # only the loop holds its file
            self.values = {n: value for n, value in self.values.items() if value is not iterator}
        return isinstance(iterator, Skipped)

    def counted(self, name: str, iterator: Iterator[Any], values: dict[str, Any]) -> Iterator[Any]:
        """Count the items of an iterator that cannot be recorded; on resume, skip past items."""
        counted = counting(iterator, self.rewritten.heads[name], values, self.rewritten)
        before = values.get(name)
        values.clear()
        if isinstance(before, Skipped):
            assert isinstance(counted, Counted)
            self.complaints.skipping(name, before.items)
            counted.skip(before)
        return counted

    def _files_read(self, point: Point, values: Mapping[str, Any]) -> set[int | None]:
        """Return the numbers of the ``with`` statements whose files the surrounding loops read.

        A loop that opens its file itself is represented by ``None``.
        """
        files = self.rewritten.files
        if not files:
            return set()
        return {
            files[name].within
            for name in point.loops
            if name in files and isinstance(values.get(name), Counted)
        }

    # -- with ------------------------------------------------------------------------------------

    def opening(self, number: int) -> None:
        """Note that the managers of a ``with`` statement are about to be evaluated."""
        self.managers[number] = self.active.progress.done, ""

    def manager(self, number: int, index: int, manager: Any) -> Any:
        """Return the manager to enter, or instead the file that was opened again on resume."""
        if number in self.reopened:
            manager.close()
            manager = self.reopened.pop(number)
        if is_synchronizer(manager):
            self.inside[number, index] = manager
        else:
            self.inside.pop((number, index), None)
        done, why = self.managers[number]
        if not why and (not is_reenterable(manager) or self.active.progress.done != done):
            why = why_shut(manager, calls=self.active.progress.done != done)
            self.managers[number] = self.active.progress.done, why
            self.shut.add(number)
        return manager

    def _entered(self, point: Point) -> Mapping[int, int]:
        """Return how often the open blocks entered each lock, since a resumed run repeats that."""
        if not self.inside:
            return {}
        entered = [held for (number, _), held in self.inside.items() if number in point.withs]
        return Counter(id(each) for held in entered for each in (held, lock_of(held)))

    def _tell_shut(self, point: Point, values: Mapping[str, Any]) -> None:
        """Report surrounding blocks in which a step was done, but no checkpoint is possible."""
        for number in self.shut.intersection(point.withs) - self._files_read(point, values):
            done, why = self.managers[number]
            if self.active.progress.done > done:
                self.shut.discard(number)
                self.complaints.no_entry(number, why)

    # -- costs -----------------------------------------------------------------------------------

    @reports
    def _weigh(self, values: dict[str, Any]) -> None:
        """Report once that checkpoints cost too much, and the heaviest variable.

        The report is a notice: a warning could become an error, and a busy machine fail the run.
        """
        elapsed = time.perf_counter() - self.started
        dear = self.cost > _SHARE * elapsed and self.cost / self.taken > _COST
        if elapsed < _SETTLED or not dear or not self.complaints.first("cost"):
            return
        self.complaints.dear(self.cost / elapsed, *self._heaviest(values))

    def _heaviest(self, values: Mapping[str, Any]) -> tuple[str, int]:
        """Return the heaviest variable of a checkpoint and its size in bytes; 0 for no variable."""
        whole, found = self.around.holding({}), ("", 0)
        whole.references = None
        for name, value in values.items():
            with contextlib.suppress(UnpicklableError):  # the object may have been released
                found = max(
                    found, (name, len(dump_values({name: value}, whole))), key=itemgetter(1)
                )
        return found


def state_of(
    active: ActiveRun,
    *,
    position: str = "",
    line: int = 0,
    file: str = "",
    prefix: str = "",
    visited: Sequence[str] = (),
    arguments: Mapping[str, str] = _NONE_GIVEN,
) -> State:
    """Return the state of the run for a checkpoint; the arguments describe the frame, if any."""
    journal, pool, progress = active.journal, active.pool, active.progress
    ordinals, children = active.ordinals.kept()
    with active.lock:
        facts: tuple[Any, ...] = (  # the constructor would cost one more Python call
            position,
            line,
            file,
            prefix,
            visited,
            progress.done,
            journal.calls,
            ordinals,
            children,
            journal.position.kept(),
            _unused(pool) if pool else [],
            arguments,
            PYTHON,
            time.time(),
            round(progress.seconds, 3),
            dict(progress.usage),
            {},
            (),
            sorted(map(list, active.subjects.state)) if active.subjects.state else (),
            active.subjects.last,
            None,
            active.inbox.kept(),
            active.steering.told is not None,
            active.emissions.state() if active.emissions is not None else (),
        )
    return tuple.__new__(State, facts)


def _unused(pool: Pool) -> list[list[Any]]:
    """Return the records that no call has used, in the form that a checkpoint stores."""
    rulings = [[number, number, False, False, False] for number, _ in pool.rulings.values()]
    return [*([e.origin.number, e.entry.number, *e.flags] for e in pool.all), *rulings]
