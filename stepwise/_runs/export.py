"""The export of a run, with its child runs, as a page; and the first difference of two runs."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwise._checkpoints.checkpoints import Loaded
from stepwise._display.page import CheckpointShown, RunPage, SourceShown, page
from stepwise._display.render import RunShown
from stepwise._journal.records import RunFacts
from stepwise._rewrite.source import FunctionNode, following_line
from stepwise._runs.overview import Overview
from stepwise._runs.paths import ABSENT, same_value, short, shown
from stepwise._runs.run import Run
from stepwise._runs.sources import WorkflowSource
from stepwise._runs.steps import (
    UNFINISHED,
    RecordedFrame,
    StepRecord,
    checkpoints_of,
    error_line,
    newest_checkpoint,
    or_why,
)
from stepwise.errors import RunNotFoundError, UnreadableValueError

# -- diff -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepDifference:
    """The first step that two runs do not share.

    Args:
        what: the difference: ``name``, ``arguments``, ``status``, ``result``, or ``presence``.
        steps: the step in either run; ``None`` if a run has no such step.
    """

    number: int
    what: str
    steps: tuple[StepRecord | None, StepRecord | None]

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain data, for JSON."""
        steps = [each.to_dict() if each is not None else None for each in self.steps]
        return {"number": self.number, "what": self.what, "steps": steps}


@dataclass(frozen=True)
class VariableDifference:
    """The first variable with another value at a checkpoint that two runs share.

    Args:
        step: the number of completed steps at the checkpoint.
        position: ``file:line`` of the checkpoint.
        values: the text of the value in either run.
    """

    name: str
    step: int
    position: str
    values: tuple[str, str]


def first_step(one: Run, other: Run) -> StepDifference | None:
    """Return the first step in which two runs differ, or ``None``."""
    for number, pair in enumerate(itertools.zip_longest(one.steps, other.steps), 1):
        what = _difference(*pair)
        if what:
            return StepDifference(number, what, pair)
    return None


def first_variable(one: Run, other: Run) -> VariableDifference | None:
    """Return the first variable that differs between two runs, at checkpoints of the same step."""
    places = _checkpoints_by_step(one), _checkpoints_by_step(other)
    for step in sorted(places[0].keys() & places[1].keys()):
        variables = one._shown_at(places[0][step]), other._shown_at(places[1][step])
        for name in dict.fromkeys((*variables[0], *variables[1])):
            pair = [each.get(name, ABSENT) for each in variables]
            if not same_value(*pair):
                first, second = (
                    "(missing)" if value is ABSENT else shown(value, name, 1000) for value in pair
                )
                position = places[0][step].state.where
                return VariableDifference(name, step, position, (first, second))
    return None


def _checkpoints_by_step(run: Run) -> dict[int, Loaded]:
    """Return the checkpoints that verify, by the number of steps that were done."""
    found = (loaded for _, loaded in checkpoints_of(run.store, run._seal, run.id))
    return {each.state.step: each for each in found if each is not None}


def _difference(one: StepRecord | None, other: StepRecord | None) -> str:
    if one is None or other is None:
        return "presence"
    for name in ("name", "arguments", "status", "preview"):
        if getattr(one, name) != getattr(other, name):
            return "result" if name == "preview" else name
    if one._entry.payload == other._entry.payload or one.status != "completed":
        return ""
    return "" if same_value(_result_of(one), _result_of(other)) else "result"


def _result_of(step: StepRecord) -> Any:
    try:
        return step.result
    except UnreadableValueError:
        return step.preview


# -- page -----------------------------------------------------------------------------------------


_STEPS = 1000  # the newest steps, child runs included
_CHECKPOINTS = 8  # the newest checkpoints
_VALUE = 2000  # characters of a value


def html_page(run: Run) -> str:
    """Return a run as one self-contained HTML page."""
    return run._settled(lambda *_: page(_Pages().of(run)))


class _Pages:
    """A collector of the pages of a run and its child runs, with a common limit of steps."""

    def __init__(self) -> None:
        self._left = _STEPS
        self._met: set[str] = set()

    def of(self, run: Run) -> RunPage:
        self._met.add(run.id)
        seen = run._seen(max(1, self._left))
        self._left -= len(seen.steps)
        return replace(
            page_of(run, seen),
            checkpoints=[*_checkpoints(run)],
            inputs={each.number: _inputs(each) for each in seen.steps if each.has_inputs},
            children={child.id: self.of(child) for child in self._children(run, seen.steps)},
        )

    def _children(self, run: Run, steps: list[StepRecord]) -> Iterator[Run]:
        for step in steps:
            if step.child and step.child not in self._met and self._left > 0:
                child = Run(run.store, step.child, run._seal)
                try:
                    child._facts()
                except RunNotFoundError:
                    continue
                yield child


def page_of(run: Run, seen: Overview) -> RunPage:
    """Return what the page of a run shows, without its checkpoints and child runs.

    Args:
        run: the run.
        seen: its overview, with the steps to show.
    """
    facts, of_run = run._facts(), run._shown(seen)
    unfinished = of_run.status in UNFINISHED
    where, line = ("", "") if facts.is_submitted or not unfinished else run._goes_on()
    return RunPage(
        _with_error(of_run, run),
        facts={
            "tags": ", ".join(f"{name}={text}" for name, text in facts.tags.items()),
            "child of": facts.parent,
            "branch of" if facts.base else "fork of": facts.forked_from,
            "effects": facts.effects,
            "adopted": facts.superseded and f"{facts.superseded} goes on instead of this run",
            "forked by": facts.forked_by,
            "not stored": facts.secrets,
        },
        resumes=seen.course.resumptions,
        resumed=seen.course.resumed,
        result=(
            or_why(lambda: short(run.result, "result", _VALUE).text)
            if of_run.status == "completed"
            else ""
        ),
        where=where,
        line=line,
        source=source_of(run, newest_checkpoint(run.store, run._seal, run.id), unfinished),
        in_doubt=seen.in_doubt,
        stops=seen.stops,
        frames=_frames(run),
    )


def _frames(run: Run) -> Sequence[RecordedFrame]:
    try:
        return run.frames
    except UnreadableValueError:
        return ()


def _inputs(step: StepRecord) -> dict[str, str]:
    """Return the recorded arguments of a step as text."""
    try:
        return {name: short(value, name, _VALUE).text for name, value in step.inputs.items()}
    except UnreadableValueError as error:
        return {"": f"({error})"}


def _with_error(of_run: RunShown, run: Run) -> RunShown:
    """Return the facts with the full text of the exception, if it is available."""
    if of_run.status != "failed":
        return of_run
    return replace(of_run, error=run._error_text() or error_line(of_run.error))


def _checkpoints(run: Run) -> Iterator[CheckpointShown]:
    """Yield the newest checkpoints, the newest first, with their variables."""
    by_step = _checkpoints_by_step(run)
    for step in sorted(by_step, reverse=True)[:_CHECKPOINTS]:
        title = f"after step {step}, at {by_step[step].state.where}"
        try:
            found = run._shown_at(by_step[step]).items()
            variables = {name: short(value, name, _VALUE).text for name, value in found}
        except UnreadableValueError as error:
            yield CheckpointShown(title, {}, str(error))
        else:
            yield CheckpointShown(title, variables)


# -- the source of a workflow ----------------------------------------------------------------------


def source_of(run: Run, loaded: Loaded | None, at_position: bool) -> SourceShown | None:
    """Return the source of the workflow, if its file is known.

    Args:
        run: the run.
        loaded: the checkpoint whose line is marked, and whose code is looked for.
        at_position: whether to mark the line that follows the checkpoint.
    """
    facts = run._facts()
    known = WorkflowSource(run.store, run._seal, facts)
    if not known.file:
        return None
    name = os.path.basename(known.file)
    if not known.lines:
        return SourceShown(name, 1, [], note="the file is not on this machine")
    found = _function(known, loaded, facts)
    if found is None:
        note = f"the function of {known.name!r} is not found in this file"
        return SourceShown(name, 1, [], note=note)
    node, here, note = found
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    end = node.end_lineno or sys.maxsize
    here = here if at_position and first <= here <= end else 0
    return SourceShown(name, first, known.lines[first - 1 : end], here, note)


def _function(
    known: WorkflowSource, loaded: Loaded | None, facts: RunFacts
) -> tuple[FunctionNode, int, str] | None:
    """Return the function, the line after the checkpoint, and a doubt about them."""
    here = loaded.state.line if loaded is not None else 0
    node = known.fitting(loaded.state) if loaded is not None else None
    if node is not None and loaded is not None:
        return node, following_line(node, loaded.state.position) or here, ""
    same = known.same_code(facts.code)  # a workflow may have another name than its function
    if same is not None:
        return same, here, ""
    note = "the function was edited since, so lines may not be those that were executed"
    return (known.named[0], here, note) if known.named else None
