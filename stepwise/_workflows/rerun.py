"""A recorded run executed again with today's code, in memory, and compared with its record.

The workflow's own code is executed.  Its calls are answered by the record as long as they are the
recorded calls, in their order.  The execution stops at the first difference, or where the record
ends.  The run is a copy in a store in memory, so nothing else is written.

The order of calls is compared where it is certain: while no other task or thread of the run could
have made the recorded call.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import ModuleType
from typing import Any, Literal
from uuid import UUID

from stepwise._calls.call import PATIENCE, AnsweredInstead, Performance
from stepwise._calls.driver import Attempt, Core, Result, Wait
from stepwise._calls.edits import edited_among
from stepwise._checkpoints.checkpoints import PREFIX, Checkpoints, Loaded, State, load_checkpoint
from stepwise._checkpoints.references import Vault
from stepwise._execution.active_run import ActiveRun, current_scope, debugged
from stepwise._execution.process_memory import known_workflow, known_workflows
from stepwise._execution.replaying import Replay
from stepwise._execution.tasks import others_alive, others_may_claim
from stepwise._execution.viewer import look_into, view, view_inputs
from stepwise._identity.clients import placeholder_keys
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, Entry
from stepwise._matching.pool import differences as parts_differing
from stepwise._rewrite.source import following_line
from stepwise._runs.paths import Difference as ValueDifference
from stepwise._runs.paths import differences
from stepwise._runs.replica import Replica, Variables, from_data, in_memory, taken_from
from stepwise._runs.run import Run, get_run
from stepwise._runs.why import without_hidden
from stepwise._runtime import asyncio_state
from stepwise._runtime.facts import PlainFacts
from stepwise._runtime.messages import count, file_name
from stepwise._values.preview import NotShown, error_text
from stepwise._values.trees import attributes, found_at
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import Invocation
from stepwise._workflows.frame import WorkflowFrame
from stepwise._workflows.handles import call_again, executed
from stepwise._workflows.resume import GoesOn, WorkflowRun
from stepwise.errors import (
    ConfigurationError,
    RunStopped,
    StepNotFoundError,
    StepwiseError,
    UnreadableValueError,
)

_NOTHING: Mapping[str, Any] = {}

At = int | str | None
"""Where a rerun begins: after so many steps; ``agent.py:43`` or ``:43``; the name of a step."""


@dataclass(frozen=True, repr=False)
class Rerun:
    """How a recorded run went on with today's code.

    Args:
        run_id, workflow: the recorded run, and the name of its workflow.
        start: where the rerun began, in words.
        difference: the first difference from the record; ``None`` if there is none.
        calls: the calls that the code made, in order.
        result: the value that the workflow function returned; ``None`` if it did not.
        error: the exception that it raised; ``None`` if it did not.
        end: ``returned`` or ``raised``; ``differs`` if the rerun stopped at a difference, and
            ``record`` if it reached the end of the record of a run that has not ended.
        masked: what the file of the run leaves out, since it is secret.
        changed_steps: the steps that were edited since a result was recorded that was used, each
            with what has changed: ``score (body)``.
    """

    run_id: str
    workflow: str
    start: str
    difference: RerunDifference | None
    calls: tuple[RerunCall, ...] = ()
    result: Any = None
    error: BaseException | None = None
    end: Literal["returned", "raised", "differs", "record"] = "returned"
    masked: tuple[str, ...] = ()
    changed_steps: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """True if nothing differs from the record."""
        return self.difference is None

    def assert_same(self) -> None:
        """Raise an ``AssertionError`` with the first difference, if there is one."""
        __tracebackhide__ = True  # pytest then shows the line of the test
        if not self.same:
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the rerun as plain data, for JSON."""
        return {
            "id": self.run_id,
            "workflow": self.workflow,
            "same": self.same,
            "end": self.end,
            "start": self.start,
            "difference": asdict(self.difference) if self.difference is not None else None,
            "calls": [asdict(each) for each in self.calls],
            "changed_steps": [*self.changed_steps],
            "error": error_text(self.error) if self.error is not None else None,
        }

    def __str__(self) -> str:
        """Return what happened, and what can be done, in a few lines."""
        where = self.start.removeprefix("resumes ")
        if where == self.start:  # it replays, or begins
            where = "from the top"
        what = f"run {self.run_id} of {self.workflow} was executed again {where}"
        made = count(len(self.calls), "call")
        if self.difference is None:
            ends = {"record": "up to the end of its record", "raised": "and the same exception"}
            same = f"{what}: {made} as recorded, {ends.get(self.end, 'and the same result')}"
            return f"{same}{'; ' if self.changed_steps else ''}{self._edited}"
        lines = [str(self.difference), f"  {what}, and differs after {made}"]
        if self.masked:
            lines.append(f"  masked in the file: {', '.join(self.masked)}")
        if self.changed_steps:
            lines.append(f"  {self._edited}")
        lines.append("  if the code is meant to do that, record a new run")
        name = self.difference.name
        if name:
            ways = f"live=({name!r},) makes the call, answers={{{name!r}: ...}} answers it"
            lines[-1] += f"; or go on: {ways}"
        return "\n".join(lines)

    @property
    def _edited(self) -> str:
        steps = ", ".join(self.changed_steps)
        return f"edited since, and answered by their old results: {steps}" if steps else ""

    __repr__ = __str__  # in a report of pytest


def rerun(
    run: Run | str | os.PathLike[str],
    workflow: Any = None,
    *,
    at: At = None,
    live: Collection[str] = (),
    answers: Mapping[str, Callable[..., Any]] | None = None,
    ignore: Collection[str] = (),
    inputs: Mapping[str, Any] | None = None,
    store: Any = None,
) -> Rerun:
    """Execute the code of a recorded run again, and compare it with the record.

    The record answers the steps, model calls, child runs and waits of the workflow, as long as the
    code makes the recorded calls in their order, with the recorded arguments.  The rerun stops at
    the first difference.  It needs no store, key or network, and writes nothing.

    Example:
        >>> rerun("tests/trip.json", "agent:plan").assert_same()

    Args:
        run: a run or its id; or the file that ``stepwise export RUN --format test`` wrote.
        workflow: the workflow, or where it is defined, as ``"agent:plan"``; by default the known
            workflow of that name.
        at: where to begin: after so many steps (``4``), at a statement (``"agent.py:43"``), or
            before the first call of a step (``"think"``).  The variables are those of a kept
            checkpoint there or before.  By default the rerun begins at the top; so does a file.
        live: names of steps to make if a call is not on record.
        answers: functions that answer such calls instead, by the name of the step.
        ignore: names of variables that are not compared.  A variable that differs at each
            execution, such as a time, is left out anyway.
        inputs: arguments of the run that are not on record, by name.
        store: the store of an id; by default the configured one.

    Raises:
        ConfigurationError: the run cannot be executed again like that; the message says why.
        StepNotFoundError: the run has no step or statement ``at``.
        UnreadableValueError: arguments of the run are not on record.
    """
    for option, given in (("live", live), ("ignore", ignore)):
        if isinstance(given, str):
            raise ConfigurationError(f"{option}={given!r}: give a tuple, {option}=({given!r},)")
    replica = _replica(run, store)
    if at is not None and replica.moments and not replica.checkpoints:
        raise ConfigurationError(
            f"at={at!r}: a file holds no checkpoints, so that its run is rerun from the top"
        )
    with placeholder_keys():
        definition = _workflow(replica, workflow)
        look = compared(replica, definition, at, live, answers or {}, ignore, inputs or {})
    return _rerun_of(look, definition)


def _rerun_of(look: Comparing, workflow: Definition) -> Rerun:
    return Rerun(
        look.run_id,
        workflow.label,
        str(look.goes_on),
        look.difference,
        tuple(look.calls),
        look.result,
        look.error,
        look.end,
        look.replica.masked,
        tuple(_changed_steps(look)),
    )


def _replica(run: Run | str | os.PathLike[str], store: Any) -> Replica:
    if isinstance(run, Run):
        return taken_from(run.store, run._seal, run.id)
    path = os.fspath(run)
    if not (path.endswith(".json") or isinstance(run, os.PathLike)):
        found = get_run(path, store=store)
        return taken_from(found.store, found._seal, found.id)
    try:
        with open(path, "rb") as file:
            data = json.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}. Make it: stepwise export RUN --format test -o FILE"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error
    return from_data(data, path)


def _workflow(replica: Replica, given: Any) -> Definition:
    """Return the workflow that executes a run.

    Raises:
        ConfigurationError: it is not known, or not a workflow.
    """
    facts = replica.facts
    if isinstance(given, str):
        module, _, label = given.partition(":")
        importlib.import_module(module)
        defined = found_at(module, label) if label else None
        given = defined if label != facts.label else defined or None  # it may have another name
    if given is not None:
        definition = getattr(given, "definition", None)
        if not isinstance(definition, Definition):
            raise ConfigurationError(f"{given!r} is no @workflow: give the decorated function")
        return definition
    named = [each for each in known_workflows() if each.label == facts.label]
    try:
        found: Definition = named[0] if len(named) == 1 else known_workflow(facts.workflow)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"run {facts.run_id!r} cannot be executed again: {error}; or give the workflow: "
            "rerun(run, workflow). The runs of graphs and step loops cannot be executed again"
        ) from None
    return found


def compared(
    replica: Replica,
    workflow: Definition,
    at: At,
    live: Collection[str] = (),
    answers: Mapping[str, Callable[..., Any]] = _NOTHING,
    ignore: Collection[str] = (),
    inputs: Mapping[str, Any] = _NOTHING,
) -> Comparing:
    """Execute a recorded run again with a workflow's code, in memory, and compare.

    Args:
        replica: the recorded run.
        workflow: its workflow, as it is now.
        at, live, answers, ignore, inputs: as for :func:`rerun`.

    Raises:
        ConfigurationError: the run cannot be executed like that; the message says why.
        StepNotFoundError: the run has no step or statement ``at``.
        UnreadableValueError: the arguments of the run were not recorded.
    """
    if current_scope() is not None or debugged.look is not None:
        raise ConfigurationError("a rerun inside a run, a rerun or a debugger is not possible")
    ignored, before = {*ignore}, None
    while True:
        accepts = _accepts(replica, workflow, at)
        look = Comparing(replica, accepts, answers, live, ignored)
        _execute(look, workflow, inputs)
        found = look.difference
        if found is None or found.what != "variable":
            break
        if before is not None and (before.path, before.now) == (found.path, found.now):
            break
        if before is not None and before.path == found.path:  # it differs at each execution
            ignored.add(re.split(r"[.\[]", found.path)[0])
        before = found
    return look


def _main_with(module: ModuleType, main: ModuleType) -> ModuleType:
    """Return a ``__main__`` that also has the names of a module: the program of the run had them.

    Its records name what it defined so, if it was started as a script or by ``python -m``.
    """
    if module is main:
        return main
    both = ModuleType("__main__")

    def found(name: str) -> Any:
        return getattr(module if hasattr(module, name) else main, name)

    both.__getattr__ = found  # type: ignore[method-assign]
    return both


def _changed_steps(look: Comparing) -> Iterator[str]:
    """Yield the steps that were edited since they recorded a result that was used."""
    used = {each.step for each in look.calls if each.how == "recorded"}
    calls = (each.call for each in look.replica.entries if each.call is not None)
    made = {(call.name, call.code) for call in calls if call.number in used}
    for edit in edited_among([each for each in look.replica.versions if not each.child]):
        if (edit.recorded.name, edit.recorded.id) in made:
            yield f"{edit.step.name} ({'; '.join(edit.differs)})"


def _execute(look: Comparing, workflow: Definition, inputs: Mapping[str, Any]) -> None:
    """Execute the workflow until its end, its first difference, or the end of its record."""
    replica, main, ended = look.replica, sys.modules["__main__"], list[BaseException]()

    def execute() -> None:
        try:
            run = in_memory(replica, workflow.full_name, workflow.function)
            top = call_again(workflow, run, inputs, way="inputs=dict")
            debugged.look = look
            executed(top)
        except BaseException as error:  # raised in the caller's thread
            ended.append(error)

    sys.modules["__main__"] = _main_with(sys.modules[workflow.function.__module__], main)
    try:
        if asyncio_state.loop_runs():  # of a test; the workflow has its own
            thread = threading.Thread(target=execute, name="stepwise rerun")
            thread.start()
            thread.join()
        else:
            execute()
    finally:
        debugged.look, sys.modules["__main__"] = None, main
    if look.problem is not None or not isinstance(ended[0], _ReplayEnded):
        raise look.problem or ended[0]


# -- where it begins -------------------------------------------------------------------------------


def _accepts(replica: Replica, workflow: Definition, at: At) -> Callable[[State], bool] | None:
    """Return a function that says whether a rerun may begin at a checkpoint; None for the top."""
    states = [each.state for each in replica.checkpoints]
    if at is None:
        if not replica.facts.pruned:
            return None
        at = 0 if not states else states[0].step  # the records before are gone
    if isinstance(at, int):
        most: int = at
        return lambda state: state.step <= most
    if ":" not in at:
        first_call = _first_call(replica, at)
        return lambda state: state.calls < first_call
    last = _at_line(replica, workflow, states, at)
    return lambda state: state.journal[0] <= last


def _first_call(replica: Replica, name: str) -> int:
    calls = [each.call for each in replica.entries if each.call is not None]
    numbers = [call.number for call in calls if call.name == name]
    if not numbers:
        names = ", ".join(dict.fromkeys(call.name for call in calls)) or "(none)"
        raise StepNotFoundError(
            f"run {replica.facts.run_id!r} has no step {name!r}; its steps: {names}. A statement "
            "is named by its line: at=':43'",
            run_id=replica.facts.run_id,
            step=name,
        )
    return min(numbers)


def _at_line(replica: Replica, workflow: Definition, states: list[State], at: str) -> int:
    """Return the record of the first kept checkpoint at a statement; 0 if none is kept there."""
    file, _, text = at.rpartition(":")
    node, name = workflow.source.node(), file_name(workflow.source.filename)
    line = int(text) if text.isdecimal() else 0
    inside = node is not None and node.lineno <= line <= (node.end_lineno or 0)
    if not inside or os.path.basename(file) not in ("", name):
        where = f"{name}:{node.lineno} to {name}:{node.end_lineno}" if node is not None else "?"
        raise StepNotFoundError(
            f"at={at!r} is no statement of {workflow.label!r}, which is {where}",
            run_id=replica.facts.run_id,
            step=at,
        )
    assert node is not None
    found = (each for each in states if following_line(node, each.position) == line)
    state = next(found, None)
    return state.journal[0] if state is not None else 0


# -- the first difference --------------------------------------------------------------------------


What = Literal["call", "argument", "variable", "result"]


@dataclass(frozen=True)
class RerunDifference(PlainFacts):
    """The first difference between a recorded run and its rerun.

    Args:
        what: ``call`` (another one, one more, or one missing), ``argument``, ``variable``, or
            ``result``, also for an exception.
        step: the number of the recorded step; 0 if there is none.
        where: ``file:line`` of the code that differs, as far as known.
        path: the part that differs, such as ``messages[2].content``; empty for a call.
        recorded, now: what the run had and what the code has now, as short texts; ``None`` for
            nothing.
        text: the difference, as a sentence.
        name: the step that the code calls there; empty if it calls none.
    """

    what: What
    step: int
    where: str
    path: str
    recorded: str | None
    now: str | None
    text: str
    name: str = ""

    def __str__(self) -> str:
        return self.text


_TEXT = 300  # characters of an exception
_ENDS = (Exception, SystemExit)


class _ReplayEnded(RunStopped):
    """The rerun is over: it differs, or its record ends."""


@dataclass(frozen=True)
class RerunCall:
    """A call that a rerun made.

    Args:
        name, arguments: of the step, tool or child workflow.
        how: ``recorded`` if the record answered it, ``answered`` if a function did, ``live`` if it
            was made.
        step: the number of the recorded step; 0 if there is none.
    """

    name: str
    arguments: str
    how: Literal["recorded", "answered", "live"]
    step: int = 0


class Comparing(Replay):
    """A rerun, as its calls see it.

    Args:
        replica: the recorded run.
        accepts: returns whether the rerun may begin at a checkpoint; ``None`` for the top.
        answers: functions that answer calls without a record, by the names of the steps.
        live: names of the steps whose calls without a record are made.
        ignored: names of variables that are not compared.

    Attributes:
        difference: the first difference; ``None`` while there is none.
        calls: the calls so far.
        goes_on: where the rerun began.
        result, error: how the workflow function ended, if it did.
        has_ended: True once it did.
        problem: why the rerun cannot go on, if it cannot.
    """

    compares = True

    def __init__(
        self,
        replica: Replica,
        accepts: Callable[[State], bool] | None,
        answers: Mapping[str, Callable[..., Any]],
        live: Collection[str],
        ignored: Collection[str],
    ) -> None:
        self.replica, self.run_id = replica, replica.facts.run_id
        self.accepts, self._answers, self._live = accepts, answers, live
        self.ignored = ignored
        self.difference: RerunDifference | None = None
        self.calls: list[RerunCall] = []
        self.goes_on = GoesOn("begins", "")
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self.problem: StepwiseError | None = None
        self.unsure: RerunDifference | None = None  # variables, until the next call
        self.moments: dict[int, list[Variables]] = {}  # by the number of done steps
        for moment in replica.moments:
            self.moments.setdefault(moment.step, []).append(moment)
        self._orders: dict[str, list[int]] = {}  # of the recorded calls, by run

    @property
    def end(self) -> Literal["returned", "raised", "differs", "record"]:
        """How the rerun ended; see :class:`.rerun.Rerun`."""
        if self.difference is not None and not self.has_ended:
            return "differs"
        return "raised" if self.error is not None else "returned" if self.has_ended else "record"

    # -- calls -----------------------------------------------------------------------------------

    def check(self, call: Invocation) -> None:
        if call.run_id != self.run_id:
            raise ConfigurationError(
                f"a rerun executes run {self.run_id!r} alone, and a call of "
                f"{call.callee.workflow.label!r} that would begin run {call.run_id!r} is refused"
            )

    def opened(self, *taken: Any) -> ComparedRun:
        return ComparedRun(self, *taken)

    def before(self, made: Performance, name: str) -> None:
        """Stop if the variables before this call differ from the recorded ones."""
        if self.unsure is not None:
            raise self._stop(made.scope.run, self.unsure)

    def answers(self, made: Performance, call: Call, recorded: RecordedCall, *, same: bool) -> bool:
        """Return True if the record answers a call; stop at a difference."""
        active = made.scope.run
        if not same and self._is_allowed(call):
            return False
        skipped = next(self._left(active, call, recorded.call.number), None)
        if skipped is not None and _is_alone(active):
            raise self._stop(active, self._another(call, skipped, recorded))
        if not same:
            raise self._stop(active, self._arguments(made, call, recorded))
        self.calls.append(RerunCall(call.name, call.arguments, "recorded", recorded.call.number))
        return True

    def unanswered(self, made: Performance, call: Call, recorded: RecordedCall | None) -> Core:
        """Return if a call may be made; otherwise stop: the record ends, or differs."""
        active = made.scope.run
        if recorded is not None and not recorded.answers:
            raise self._stop(active)  # the run was stopped in this very call
        if self._is_allowed(call):
            self.moments.clear()  # the variables follow from another result
            answer = self._answers.get(call.name)
            how: Any = "live" if answer is None else "answered"
            self.calls.append(RerunCall(call.name, call.arguments, how))
            if answer is None:
                return Result()
            here: Any = made if made.performer.kind else made.performer  # a child run's call
            given = Attempt(answer, here.args, here.kwargs, None, f"the answer of {call.name}")
            raise AnsweredInstead((yield given))
        if recorded is not None:
            self.problem = ConfigurationError(
                f"step {recorded.call.number} {call.name} of run {self.run_id!r} cannot be "
                "answered: its result is masked in the file, or cannot be loaded here. Give a "
                f"function that answers it: answers={{{call.name!r}: ...}}"
            )
            raise self._stop(active)
        began = active.flows.claims.changes
        while others_may_claim(active):  # their records would look like skipped ones
            changed = (yield Wait(active.flows.claims, began, PATIENCE)).unwrap()
            if not changed and not active.flows.others_working():
                break
            began = active.flows.claims.changes
        expected = next(self._left(active, call), None)
        if expected is None and self.replica.end is None:
            raise self._stop(active)
        if expected is not None and expected.call.name == call.name:
            raise self._stop(active, self._arguments(made, call, expected))
        raise self._stop(active, self._another(call, expected, None))

    def _is_allowed(self, call: Call) -> bool:
        return call.name in self._answers or call.name in self._live

    def _left(self, active: ActiveRun, call: Call, before: int = 1 << 62) -> Iterator[RecordedCall]:
        """Yield the recorded calls that the code around a call has not made, in their order.

        Args:
            before: the number of the record at which to end.
        """
        order = self._orders.get(active.run_id)
        if order is None:  # no call has been answered yet
            order = sorted((each.call.number for each in active.pool.all), reverse=True)
            self._orders[active.run_id] = order
        while order and active.pool.get(order[-1]) is None:
            order.pop()
        for number in reversed(order):
            each = active.pool.get(number) if number < before else None
            if number >= before:
                return
            if each is not None and self._counts(each, call):
                yield each

    def _counts(self, recorded: RecordedCall, call: Call) -> bool:
        """Return whether the code around a call has to make a recorded call."""
        other = recorded.call
        if other.unwinding or recorded.status == "free" or self._is_allowed(other):
            return False
        return (other.branch, other.scope) == (call.branch, call.scope)

    # -- differences -----------------------------------------------------------------------------

    def _stop(self, active: ActiveRun, difference: RerunDifference | None = None) -> RunStopped:
        if active.stopped is None:
            self.difference = difference
        return active.stop(_ReplayEnded("the rerun is over", run_id=self.run_id))

    def _another(
        self, call: Call, expected: RecordedCall | None, recorded: RecordedCall | None
    ) -> RerunDifference:
        now, at = _text(call), _at(call.site)
        if expected is None:
            text = f"the code calls {now}{at}, but the run had made its last call"
            return RerunDifference("call", 0, call.site, "", None, now, text, call.name)
        later = ", which the run never made"
        if recorded is not None:
            later = f", which the run made later, as step {recorded.call.number}"
        found = _not_made(expected.call, "call", f"calls {now}{at}{later}")
        return replace(found, where=call.site, now=now, name=call.name)

    def _arguments(self, made: Performance, call: Call, recorded: RecordedCall) -> RerunDifference:
        other, active = recorded.call, made.scope.run
        names = parts_differing(other, call, active.subjects.state)
        found = self._deepest(active, made, other.number, names)
        if found is not None:
            path, old, new = found.path, str(found.old), str(found.new)
        else:
            path = ", ".join(names)
            old, new = (_argument(each.arguments, path, made.bound) for each in (other, call))
        text = (
            f"step {other.number} {call.name}{_at(call.site)} is called with other arguments: "
            f"{path or 'they'}, recorded {old}, now {new}"
        )
        if old == new:
            text += "; the texts are shortened, and record_arguments=True records arguments whole"
        number = other.number
        return RerunDifference("argument", number, call.site, path, old, new, text, call.name)

    def _deepest(
        self, active: ActiveRun, made: Performance, number: int, names: list[str]
    ) -> ValueDifference | None:
        """Return the first part of an argument that differs, if the arguments are recorded."""
        journal = active.journal
        if made.performer.hiding.names(made.bound):
            return None
        try:
            recorded = view_inputs(journal.store, journal.seal, active.run_id, number)
        except UnreadableValueError:
            return None
        for name in names:
            old = recorded.get(name)
            found = name in made.bound and differences(old, made.bound[name], name)
            if found and name in recorded and not isinstance(old, NotShown):
                return found[0]
        return None

    def ended(self, active: ActiveRun, value: Any, error: BaseException | None) -> RunStopped:
        """Compare how the workflow function ended; return the error that ends the rerun."""
        if active.stopped is not None:
            return active.stopped
        self.result, self.error, self.has_ended = value, error, True
        end = self.replica.end
        if self.unsure is not None:
            return self._stop(active, self.unsure)
        nothing = Call(0, "", "", "", 0)
        cancelled = error is not None and self.replica.facts.status == "cancelled"
        left = None if cancelled else next(self._left(active, nothing), None)
        if left is not None and error is None:
            return self._stop(active, _not_made(left.call, "call", "returns"))
        if left is not None and error is not None:
            return self._stop(active, _not_made(left.call, "result", f"raises {_of_error(error)}"))
        return self._stop(active, self._end(active, end) if end is not None else None)

    def _end(self, active: ActiveRun, end: Entry) -> RerunDifference | None:
        try:
            outcome = view(end, active.codec)
        except UnreadableValueError:
            return None  # the result was not recorded: there is nothing to compare
        old, new = outcome.error, self.error
        if old is None and new is None:
            record = end.ended
            if record is None or not record.recorded:
                return None
            found = differences(outcome.value, self.result, "result")
            if not found:
                return None
            path, one, two = found[0].path, found[0].old, found[0].new
            text = f"the workflow returns another {path}: recorded {one}, now {two}"
            return RerunDifference("result", 0, "", path, one, two, text)
        one, two = (_ended(error) for error in (old, new))
        if one == two:
            return None
        text = f"the run {one}; the code {two}"
        return RerunDifference("result", 0, "", "", one, two, text)


def _is_alone(active: ActiveRun) -> bool:
    """Return whether the run's main flow makes a call, and no other flow can make one."""
    if active.unwinding.main != asyncio_state.who():
        return False
    return not (others_alive(active) or others_may_claim(active))


def _argument(arguments: str, name: str, names: Collection[str]) -> str:
    """Return the text of one argument out of the text of all, or that of all."""
    others = "|".join(map(re.escape, names))
    found = re.search(
        rf"(?:^|, ){re.escape(name)}=(.*?)(?:$|, (?:{others})=)", arguments, re.DOTALL
    )
    return found[1] if name in names and found else f"({arguments})"


def _text(call: Call) -> str:
    return f"{call.name}({call.arguments})"


def _not_made(call: Call, what: What, now: str) -> RerunDifference:
    """Return the difference of a recorded call that the code does not make in its place."""
    text = f"the run called {_text(call)} here (step {call.number}{_at(call.site)}); the code {now}"
    return RerunDifference(what, call.number, call.site, "", _text(call), now, text)


def _ended(error: BaseException | None) -> str:
    return "returned" if error is None else f"raised {_of_error(error)}"


def _of_error(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error_text(error)}"
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


def _at(site: str) -> str:
    return f" at {site}" if site else ""


# -- the run ---------------------------------------------------------------------------------------


class ComparedFrame(WorkflowFrame):
    """The frame of a rerun, whose variables are compared where the run had a checkpoint.

    The variables count as equal if they are at any boundary between the two steps: edits may have
    moved the statement.  They differ if they do at the boundary with the position of the
    checkpoint, and are equal at none before the next call.
    """

    opened: ComparedRun

    def begin(self, points: int, captured: Callable[[], Any] | None = None) -> int:
        # Checkpoints are taken only to compare, so nothing is to be complained of.
        self.complaints.first = lambda _: False
        target = super().begin(points, captured)
        self.due = True  # at each boundary
        return target

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Compare the variables with a checkpoint after as many steps, if there is one."""
        recorded = self.opened.look.moments.get(self.active.progress.done, [])
        if recorded and self.active.stopped is None:
            super().save(number, values)
            self._compare(recorded, self.rewritten.points[number].position)
        values.clear()
        self.due = True

    def _wants(self, number: int, values: dict[str, Any]) -> bool:
        return True

    def _compare(self, recorded: list[Variables], position: str) -> None:
        journal, facts = self.active.journal, self.opened.look.replica.facts
        vault = Vault(journal.store, journal.seal, journal.run_id)
        now = load_checkpoint(vault, f"{PREFIX}{journal.position.last:012d}")
        if now is None or now.state.position != position:
            return  # none can be taken here
        try:
            values = without_hidden(facts, look_into(now))
            values = {n: v for n, v in values.items() if n not in self.opened.look.ignored}
            found = [(each, _differing(each.variables(), values)) for each in recorded]
        except UnreadableValueError:
            return
        if not all(differs for _, differs in found):
            recorded.clear()
            self.opened.look.unsure = None
            return
        for moment, differs in found:
            if moment.position == position and differs is not None:
                where = f"{self.file}:{now.state.line}"
                self.opened.look.unsure = _of_variable(moment, where, differs)


def _differing(recorded: Mapping[str, Any], values: Mapping[str, Any]) -> ValueDifference | None:
    """Return the first difference of a variable that both have."""
    for name, old in recorded.items():
        if name in values and _is_data(old):
            found = differences(old, values[name], name)
            if found:
                return found[0]
    return None


_ATOMS = (
    *(str, bytes, int, float, complex, type(None), dt.date, dt.time),
    *(dt.timedelta, Decimal, Fraction, Enum, PurePath, UUID),
)
_MOST = 100_000  # parts of a value


def _is_data(value: Any) -> bool:
    """Return whether a value is data to its leaves: another object may differ at each execution."""
    waiting, met = [value], set[int]()
    while waiting and len(met) <= _MOST:
        each = waiting.pop()
        if isinstance(each, _ATOMS) or id(each) in met:
            continue
        met.add(id(each))
        if isinstance(each, Mapping):
            waiting += [*each, *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset, deque)):
            waiting += each
        elif hasattr(type(each), "__dataclass_fields__") or hasattr(type(each), "model_fields"):
            waiting += attributes(each).values()
        else:
            return False
    return not waiting


def _of_variable(moment: Variables, where: str, found: ValueDifference) -> RerunDifference:
    text = (
        f"{found.path} differs at {where}, after {count(moment.step, 'step')}: recorded "
        f"{found.old}, now {found.new}"
    )
    return RerunDifference("variable", 0, where, found.path, found.old, found.new, text)


class ComparedRun(WorkflowRun):
    """A run that is executed again, and compared."""

    frame_class = ComparedFrame

    def __init__(self, look: Comparing, *opened: Any) -> None:
        super().__init__(*opened)
        self.look = look
        self._checkpoints = Checkpoints(self.active.journal, "all", 0)

    def run(self) -> Any:
        try:
            value = super().run()
            self.active.flows.join(self.active.run_id)
        except _ENDS as error:
            raise self.look.ended(self.active, None, error) from None
        raise self.look.ended(self.active, value, None)

    async def arun(self) -> Any:
        import asyncio  # loaded already

        try:
            value = await super().arun()
        except (*_ENDS, asyncio.CancelledError) as error:
            raise self.look.ended(self.active, None, error) from None
        raise self.look.ended(self.active, value, None)

    def _fitting(self) -> Iterator[tuple[Loaded, State]]:
        accepts = self.look.accepts
        if accepts is None:
            return iter(())
        return (each for each in super()._fitting() if accepts(each[1]))

    def _begun(self) -> None:
        """Note where the rerun begins; nothing else is recorded."""
        self.active.begun = True
        why = self._fits.why
        details = f"{self._goes_on.details}{f' ({why})' if why else ''}"
        self.look.goes_on = self._goes_on._replace(details=details)
