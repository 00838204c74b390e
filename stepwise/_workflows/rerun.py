"""A recorded run executed again with today's code, in memory; see :mod:`.replayed`."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, Literal

from stepwise._calls.edits import edited_among
from stepwise._checkpoints.checkpoints import State
from stepwise._execution.active_run import current_scope, debugged
from stepwise._execution.process_memory import known_workflow, known_workflows
from stepwise._identity.clients import placeholder_keys
from stepwise._rewrite.positions import following_line
from stepwise._runs.portable import from_data
from stepwise._runs.replica import Replica, in_memory, taken_from
from stepwise._runs.run import Run, get_run
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import count, file_name
from stepwise._values.preview import error_text
from stepwise._values.trees import found_at
from stepwise._workflows.definition import Definition
from stepwise._workflows.handles import call_again, executed
from stepwise._workflows.replayed import Comparing, ReplayEnded, RerunCall, RerunDifference
from stepwise.errors import ConfigurationError, StepNotFoundError

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
    if look.problem is not None or not isinstance(ended[0], ReplayEnded):
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
