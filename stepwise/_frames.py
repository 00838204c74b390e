"""The workflow function's frame: when a checkpoint is taken, what goes into it, how it comes back.

Imports: run, origin, checkpoints, snapshot, resources, rewrite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any, NamedTuple

from stepwise._checkpoints import Checkpoints, Loaded, State
from stepwise._going_on import state_of
from stepwise._known import Looked
from stepwise._notices import file_name, notice, warn
from stepwise._origin import Helper
from stepwise._others import name_of_another, others_alive
from stepwise._pieces import Data
from stepwise._records import Record, holds_plainly
from stepwise._references import HEAVY, References
from stepwise._resources import LetGo, is_reenterable
from stepwise._run import ActiveRun
from stepwise._snapshot import UnpicklableError, dump_few, dump_values, load_values
from stepwise._surroundings import Surroundings
from stepwise.errors import RunWarning
from stepwise.rewrite import Frame, Point, Rewritten, Source, prefix_fingerprint

__all__ = ["RestoreFailedError", "WorkflowFrame", "Workplace"]

_MANY = 20  # steps in one statement, by one helper
_PATIENCE = 3  # boundaries skipped in a row before somebody is told
_SHARE, _COST, _SETTLED = 0.05, 0.002, 5.0  # of the run's time; seconds each; seconds of running
_NO_ITERATORS = ("generator", "async_generator", "coroutine")


class RestoreFailedError(BaseException):
    """The local variables of a checkpoint cannot be brought back; raised before any code ran."""


class Workplace(NamedTuple):
    """What a frame needs to know of the workflow that is called.

    Args:
        bound, instance: the arguments by name, and ``self``.
        every: a checkpoint after this many steps.
    """

    rewritten: Rewritten
    source: Source
    bound: Mapping[str, Any]
    instance: Any
    every: int


class WorkflowFrame(Frame):
    """One execution of a workflow function in a run.

    Args:
        begun: called once the frame stands, before any code of the function runs.
        loaded: the checkpoint to go on at.
        target: the point at which it was taken, in the function as it is now.
    """

    __slots__ = (
        "active",
        "around",
        "begun",
        "checkpoints",
        "complaints",
        "cost",
        "count",
        "culprits",
        "file",
        "helped",
        "known",
        "loaded",
        "managers",
        "place",
        "prefixes",
        "references",
        "skipped",
        "started",
        "taken",
        "wanted",
    )

    def __init__(
        self,
        active: ActiveRun,
        place: Workplace,
        checkpoints: Checkpoints,
        begun: Callable[[], None],
        loaded: Loaded | None = None,
        target: int = 0,
    ) -> None:
        super().__init__()
        self.active = active
        self.place = place
        self.checkpoints = checkpoints
        self.begun = begun
        self.file = file_name(place.source.filename)
        self.loaded = loaded
        self.target = target
        self.around = Surroundings()
        self.known = checkpoints.known_values()
        self.references = References(self.known)
        self.managers: dict[int, tuple[int, bool]] = {}  # steps done before it, is it enterable
        self.complaints: set[str] = set()
        self.culprits: dict[str, Any] = {}
        self.prefixes: dict[tuple[int, int], str | None] = {}
        self.count = self.skipped = self.taken = 0
        self.cost = 0.0
        self.wanted = False  # a checkpoint, at the next boundary where one can be taken
        self.helped: dict[CodeType, int] = {}  # steps that helpers made since the last boundary
        self.started = time.perf_counter()

    def begin(self, captured: Callable[[], Any] | None = None) -> int:
        """Make the frame what it was; see the base class.

        Raises:
            RestoreFailedError: the variables cannot be loaded.
        """
        super().begin(captured)
        place, function = self.place, self.place.rewritten.function
        self.around = Surroundings.of(function, captured, place.bound, place.instance)
        self.around.references = self.references
        if self.loaded is not None:
            state = self.loaded.state
            self.around = self.around.only(state.arguments)
            reader = self.loaded.reader()
            try:
                self.values = load_values(self.loaded.payload, self.around, reader)
                self.known.adopt(reader)
                self.values.update(self.loaded.changes())
                self.references.restored(self.values.values(), self.around.arguments.values())
            except Exception as error:
                raise RestoreFailedError(f"{type(error).__name__}: {error}") from error
            blocks = place.rewritten.blocks
            self.visited.update(blocks.index(path) for path in state.visited if path in blocks)
            self.loaded = None
        self.begun()
        return self.target

    def look(self, result: object) -> Looked | None:
        """What a result looks like before it is recorded; ``None`` if it is not referred to."""
        return self.known.look(result)

    def recorded(self, number: int, record: Record, looked: Looked | None) -> None:
        """A result that was looked at is in the journal."""
        if looked is not None and holds_plainly(record):
            self.known.recorded(number, looked)

    def done(self, *, effect: bool, helper: Helper | None) -> None:
        """A step of the workflow's own code, or of a helper that it calls, ended."""
        self.count += 1
        if effect or self.count >= self.place.every:
            self.due = self.wanted = True
        if helper is not None:
            self.due = True  # the next boundary is the end of this statement
            self.helped[helper.code] = calls = self.helped.get(helper.code, 0) + 1
            if calls == _MANY:
                self._suggest(helper)

    def _suggest(self, helper: Helper) -> None:
        if helper.place in self.complaints:
            return
        self.complaints.add(helper.place)
        warn(
            f"{_MANY} steps were called in {helper.place} by one statement of the workflow "
            f"({self._where(helper.line)}). Run {self.active.run_id!r} cannot resume inside it: it "
            "would be called again, and its steps answered from the journal. Decorate "
            f"{helper.code.co_name}() with @workflow to have the run resume inside",
            RunWarning,
        )

    # -- saving ----------------------------------------------------------------------------------

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Take a checkpoint at this point, if it can be taken here; else ``due`` stays."""
        self.helped.clear()
        if not self.wanted or self.active.stopped is not None:
            # What stopped the run may have been swallowed, in a thread: nothing after it counts.
            self.due = False
            values.clear()
            return
        began = time.perf_counter()
        point = self.place.rewritten.points[number]
        kept = self._state_of(values, point)
        values.clear()  # before Python 3.13 it is the frame's, and would keep what the code drops
        if not self._can_be_taken(point, kept):
            return
        if others_alive(self.active):
            self._skip(point)
            return
        try:
            payload = self._referring(kept)
        except UnpicklableError as error:
            self._complain(error, point)
            return
        self.active.note_handled()
        state = self._state(number)
        if state is None:
            return
        facts = self.active.facts
        self.active.facts = self.checkpoints.write(state, payload, facts, self.references)
        self.active.tell("checkpoint_taken", detail=state.where, step=state.step)
        self.due = self.wanted = False
        self.skipped = self.count = 0
        self.cost += time.perf_counter() - began
        self._weigh(kept)

    def _state_of(self, values: dict[str, Any], point: Point) -> dict[str, Any]:
        """The variables that are state.

        Not ours, not those of enclosing functions, not those that an open ``with`` binds again.
        """
        withs = self.place.rewritten.withs
        again = {name for number in point.withs for name in withs[number].names}
        again.update(self.place.rewritten.function.__code__.co_freevars)
        return {
            name: value
            for name, value in values.items()
            if (name[0] != "@" or name in point.loops) and name not in again
        }

    def _can_be_taken(self, point: Point, values: dict[str, Any]) -> bool:
        for number in point.withs:
            _, enterable = self.managers.get(number, (0, True))
            if not enterable:
                return False
        for name in point.loops:
            if type(values.get(name)).__name__ in _NO_ITERATORS:
                why = f"cannot pickle {type(values[name]).__name__!r} object"
                self._complain(UnpicklableError({name: (values[name], why)}), point)
                return False
        # What did not pickle the last time and is still there will not now.
        return all(values.get(name) is not value for name, value in self.culprits.items())

    def _referring(self, values: dict[str, Any]) -> Data:
        """The variables, without what is stored already or is put into chunks now."""
        few = dump_few(values, self.around)
        if few is not None:
            self.references.prepare_none()
            return few
        self.references.prepare(values.values(), self.around.arguments.values())
        payload = self._dump(values)
        if len(payload) > HEAVY and self.references.split_heavy():
            return self._dump(values)
        return payload

    def _dump(self, values: dict[str, Any]) -> Data:
        try:
            return dump_values(values, self.around)
        except UnpicklableError as error:
            # What a ``with`` bound that is over by now (a closed file, a client) is let go.
            over = {name for each in self.place.rewritten.withs for name in each.released}
            culprits = {n: found for n, found in error.culprits.items() if n not in over}
            if culprits:
                raise UnpicklableError(culprits) from error
            gone = {name: LetGo(type(values[name]).__name__) for name in error.culprits}
            return dump_values({**values, **gone}, self.around)

    def _state(self, number: int) -> State | None:
        rewritten, source = self.place.rewritten, self.place.source
        point, node = rewritten.points[number], source.node()
        visited = [rewritten.blocks[n] for n in sorted(self.visited)]
        here = number, len(visited)  # branches are only ever added: the count tells which
        if here not in self.prefixes:
            self.prefixes[here] = (
                prefix_fingerprint(node, point.position, visited) if node is not None else None
            )
        prefix = self.prefixes[here]
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

    # -- with ------------------------------------------------------------------------------------

    def opening(self, number: int) -> None:
        """The managers of a ``with`` statement are about to be evaluated."""
        self.managers[number] = self.active.progress.done, True

    def manager(self, number: int, index: int, manager: Any) -> Any:
        """One of them was."""
        done, enterable = self.managers[number]
        if enterable and (not is_reenterable(manager) or self.active.progress.done != done):
            self.managers[number] = done, False
            line = self.place.rewritten.withs[number].line
            kind = type(manager).__name__
            self._tell(
                f"with {number}",
                f"a run cannot resume inside the with block at {self._where(line)}: "
                f"{self._why_not(manager, done)}. It would go back to before the block. If a "
                f"{kind} can simply be made and entered again, write "
                "`with stepwise.reenterable(...)`",
            )
        return manager

    def _why_not(self, manager: Any, done: int) -> str:
        if self.active.progress.done != done:
            return "its head calls a step"
        return f"this {type(manager).__name__}, entered again, would not be what it was"

    # -- saying why not --------------------------------------------------------------------------

    def _where(self, line: int) -> str:
        return f"{self.file}:{line}"

    def _tell(self, about: str, text: str) -> None:
        if about not in self.complaints:
            self.complaints.add(about)
            notice(f"{self.active.run_id}: {text}")

    def _complain(self, error: UnpicklableError, point: Point) -> None:
        rewritten = self.place.rewritten
        for name, (value, reason) in error.culprits.items():
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            if name in rewritten.loops:
                where = self._where(rewritten.loops[name])
                self._tell(
                    name,
                    f"a run cannot resume inside the loop at {where}: the {kind} that it iterates "
                    f"over cannot be recorded ({reason}). It would go back to before the loop. "
                    "Iterate over a list of plain data to have it resume inside",
                )
                continue
            self.culprits[name] = value
            if name not in self.complaints:
                self.complaints.add(name)
                warn(
                    f"no checkpoint of run {self.active.run_id!r} at {self._where(point.line)}: "
                    f"the variable {name!r} is a {kind}, which cannot be recorded ({reason}). The "
                    "run would resume at the checkpoint before it. Three ways out: make it inside "
                    "the step that uses it; make it in a @stepwise.resource factory, which is "
                    "called again on resume; or `del` it before the next step",
                    RunWarning,
                )

    def _skip(self, point: Point) -> None:
        self.skipped += 1
        if self.skipped == _PATIENCE and "tasks" not in self.complaints:
            self.complaints.add("tasks")
            another = name_of_another(self.active)
            warn(
                f"no checkpoint of run {self.active.run_id!r} at {self._where(point.line)} and "
                f"the {_PATIENCE - 1} boundaries before it: {another} is still running, and "
                "what it would do is not in the local variables. Await it, or start what is not "
                "part of the run under `with stepwise.background():`",
                RunWarning,
            )

    def _weigh(self, values: dict[str, Any]) -> None:
        """Say once that checkpoints cost more than they should, and which variable weighs most."""
        self.taken += 1
        elapsed = time.perf_counter() - self.started
        dear = self.cost > _SHARE * elapsed and self.cost / self.taken > _COST
        if elapsed < _SETTLED or not dear or "cost" in self.complaints:
            return
        self.complaints.add("cost")
        whole = replace(self.around, references=None)
        sizes = {n: len(dump_values({n: value}, whole)) for n, value in values.items()}
        heaviest = max(sizes, key=lambda name: sizes[name])
        warn(
            f"checkpoints take {self.cost / elapsed:.0%} of the time of run "
            f"{self.active.run_id!r}; of its variables {heaviest!r} weighs most "
            f"({sizes[heaviest] / 1e6:.1f} MB). Take fewer, @workflow(checkpoint_every=10), or "
            "keep large data in a file and its path in the variable",
            RunWarning,
        )
