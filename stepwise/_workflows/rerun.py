"""A recorded run executed again with today's code, in memory; see :mod:`.replayed`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stepwise._checkpoints.checkpoints import State
from stepwise._execution.active_run import current_scope, debugged
from stepwise._journal.journal import place_of_run
from stepwise._rewrite import following_line
from stepwise._runs.replica import Replica, in_memory
from stepwise._runtime import asyncio_state
from stepwise._runtime.messages import count, file_name
from stepwise._values.preview import error_text
from stepwise._workflows.definition import Definition
from stepwise._workflows.handles import call_again, executed
from stepwise._workflows.replayed import Comparing, ReplayEnded, RerunCall, RerunDifference
from stepwise.errors import ConfigurationError, StepNotFoundError

At = int | str | None
"""Where a rerun begins: after so many steps; ``agent.py:43`` or ``:43``; the name of a step."""


_RECORD = "If the code is meant to do that, record a new run"
_WAYS = {
    "call": f"{_RECORD}, or let the call be made: live=(NAME,), or answers={{NAME: function}}",
    "argument": f"{_RECORD}, or let the call be made: live=(NAME,), or answers={{NAME: function}}",
    "variable": f"{_RECORD}",
    "result": f"{_RECORD}",
}


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
            "difference": self.difference.to_dict() if self.difference is not None else None,
            "calls": [asdict(each) for each in self.calls],
            "error": error_text(self.error) if self.error is not None else None,
        }

    def __str__(self) -> str:
        """Return what happened, and what can be done, in a few lines."""
        made = count(len(self.calls), "call")
        first = f"run {self.run_id} of {self.workflow}, executed again: {self.start}"
        if self.difference is None:
            ends = {"record": "up to the end of its record", "raised": "and the same exception"}
            return f"{first}; {made} as recorded, {ends.get(self.end, 'and the same result')}"
        lines = [first, f"After {made} as recorded it differs ({self.difference.what}):"]
        lines.append(f"  {self.difference}")
        if self.masked:
            lines.append(f"  (masked in the file: {', '.join(self.masked)})")
        lines.append(_WAYS[self.difference.what])
        return "\n".join(lines)

    __repr__ = __str__  # in a report of pytest


def replayed(
    replica: Replica,
    workflow: Definition,
    *,
    at: At = None,
    live: Collection[str] = (),
    answers: Mapping[str, Callable[..., Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Rerun:
    """Execute a recorded run again with a workflow's code, in memory, and compare.

    Args:
        replica: the recorded run.
        workflow: its workflow, as it is now.
        at: where to begin; ``None`` for the top.
        live: names of steps whose calls are made if they are not on record.
        answers: functions that answer such calls instead, by the names of the steps.
        inputs: the arguments of the run that were not recorded, by name.

    Raises:
        ConfigurationError: the run cannot be executed like that; the message says why.
        StepNotFoundError: the run has no step or statement ``at``.
        UnreadableValueError: the arguments of the run were not recorded.
    """
    if current_scope() is not None or debugged.look is not None:
        raise ConfigurationError("a rerun inside a run, a rerun or a debugger is not possible")
    answers = answers or {}
    look = Comparing(replica, _accepts(replica, workflow, at), answers, live)
    ended = list[BaseException]()

    def execute() -> None:
        try:
            run = in_memory(replica, workflow.full_name, workflow.function)
            top = call_again(workflow, run, inputs or {}, way="inputs=dict")
            debugged.look = look
            executed(top)
        except BaseException as error:  # raised below, in the caller's thread
            ended.append(error)

    main = sys.modules["__main__"]
    if place_of_run(replica.facts).endswith(".py"):  # its records name what the script defines
        sys.modules["__main__"] = sys.modules[workflow.function.__module__]
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
    end: Any = "raised" if look.error is not None else "returned" if look.has_ended else "record"
    return Rerun(
        replica.facts.run_id,
        workflow.label,
        look.start,
        look.difference,
        tuple(look.calls),
        look.result,
        look.error,
        end if look.has_ended or look.difference is None else "differs",
        replica.masked,
    )


# -- where it begins -------------------------------------------------------------------------------


def _accepts(replica: Replica, workflow: Definition, at: At) -> Callable[[State], bool] | None:
    """Return a function that says whether a rerun may begin at a checkpoint; None for the top."""
    states = [each.state for each in replica.checkpoints]
    if at is None:
        if not replica.facts.pruned:
            return None
        at = 0 if not states else states[0].step  # the records before are gone
    if isinstance(at, int):
        return lambda state: state.step <= at
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
    inside = node is not None and text.isdecimal() and node.lineno <= int(text) <= node.end_lineno
    if not inside or file not in ("", name):
        where = f"{name}:{node.lineno} to {name}:{node.end_lineno}" if node is not None else "?"
        raise StepNotFoundError(
            f"at={at!r} is no statement of {workflow.label!r}, which is {where}",
            run_id=replica.facts.run_id,
            step=at,
        )
    assert node is not None
    found = (each for each in states if following_line(node, each.position) == int(text))
    state = next(found, None)
    return state.journal[0] if state is not None else 0
