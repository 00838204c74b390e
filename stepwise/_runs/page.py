"""Everything about a run that its HTML page shows, its child runs included."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import replace

from stepwise._display.page import (
    CheckpointShown,
    Different,
    RunPage,
    SourceShown,
    Unsettled,
    page,
)
from stepwise._display.render import RunShown
from stepwise._display.terminal import shown_value
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import how_started
from stepwise._rewrite import (
    FunctionNode,
    fingerprint,
    following_line,
    function_like,
    functions_named,
)
from stepwise._runs.as_dict import error_line
from stepwise._runs.checkpoints import newest_checkpoint
from stepwise._runs.overview import Overview
from stepwise._runs.run import Run
from stepwise._runs.steps import StepRecord
from stepwise._runtime.messages import shell_word
from stepwise.errors import RunNotFoundError, StepNotFoundError, UnreadableValueError

__all__ = ["html_page"]

_STEPS = 1000  # the newest ones, those of child runs included
_CHECKPOINTS = 8  # the newest ones
_VALUE = 2000  # characters of a value
_UNFINISHED = ("crashed", "failed", "interrupted", "ready", "suspended")


def html_page(run: Run) -> str:
    """Return a run as one HTML page that needs nothing else."""
    return page(_Pages().of(run))


class _Pages:
    """Collects the pages of a run and its child runs, with a limit of steps for all of them."""

    def __init__(self) -> None:
        self._left = _STEPS
        self._met: set[str] = set()

    def of(self, run: Run) -> RunPage:
        """Return what the page of a run shows."""
        self._met.add(run.id)
        facts, seen = run._facts(), run._seen(max(1, self._left))
        self._left -= len(seen.steps)
        shown = run._shown(seen)
        unfinished = shown.status in _UNFINISHED
        where, line = run._goes_on() if unfinished else ("", "")
        return RunPage(
            _with_error(shown, run),
            facts={
                "tags": ", ".join(f"{name}={text}" for name, text in facts.tags.items()),
                "child of": facts.parent,
                "fork of": facts.forked_from,
                "not stored": facts.secrets,
            },
            resumes=[(at, how) for _, at, how in seen.course.resumes],
            resumed=seen.course.resumed,
            result=_result(run) if shown.status == "completed" else "",
            where=where,
            line=line,
            source=_source(run, facts, at_position=unfinished),
            checkpoints=[*_checkpoints(run)],
            questions=[*_questions(run, seen)],
            different=_different(seen.steps),
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


def _with_error(shown: RunShown, run: Run) -> RunShown:
    """Return the facts with the whole text of the exception, if it can be had."""
    if shown.status != "failed":
        return shown
    try:
        error = run.error
        text = f"{type(error).__name__}: {error}" if error is not None else shown.error
    except Exception:  # it cannot be loaded here, or its __str__ fails
        text = error_line(shown.error)
    return replace(shown, error=text)


def _result(run: Run) -> str:
    try:
        return shown_value(run.result, _VALUE)
    except UnreadableValueError as error:
        return f"({error})"


def _different(steps: list[StepRecord]) -> dict[int, Different]:
    """Return the recorded steps that did not answer calls of their name, by those calls."""
    arguments = {step.number: step.arguments for step in steps}
    return {
        step.number: Different(step.instead, step.why, arguments.get(step.instead, ""))
        for step in steps
        if step.instead
    }


def _checkpoints(run: Run) -> Iterator[CheckpointShown]:
    """Return the newest checkpoints, the newest first, with their variables."""
    by_step = {each.step: each for each in run.checkpoints if each.verified}
    for step in sorted(by_step, reverse=True)[:_CHECKPOINTS]:
        title = f"after step {step}, at {by_step[step].position}"
        try:
            found = run._shown_locals(step).items()
            variables = {name: shown_value(value, _VALUE) for name, value in found}
        except (StepNotFoundError, UnreadableValueError) as error:
            yield CheckpointShown(title, {}, str(error))
        else:
            yield CheckpointShown(title, variables)


def _questions(run: Run, seen: Overview) -> Iterator[Unsettled]:
    """Return the side effects in doubt, and the calls at which the run stopped."""
    command = f"stepwise resolve {shell_word(run.id)}"
    for step in seen.in_doubt:
        yield Unsettled(
            f"{step.name}({step.arguments})",
            f"is in doubt: step {step.number} may or may not have happened. Find out (its key is "
            f"{step.idempotency_key}), then run one of these:",
            [
                f"{command} {step.number} --landed JSON",
                f"{command} {step.number} --did-not-happen",
            ],
        )
    for stop in seen.stops:
        if stop.said is None:
            yield Unsettled(
                f"{stop.name}({stop.arguments})",
                f"is where the run stopped, called at {stop.site or '?'}: it could be one of "
                "these recorded steps. Say which:",
                [
                    f"{each}    ({why})"
                    for each, why in zip(stop.commands, stop.meanings, strict=True)
                ],
                [
                    f"step {other.number} {other.name}({other.arguments})"
                    + (f" (differs: {other.why})" if other.why else "")
                    for other in stop.could_be
                ],
            )


# -- the source of a workflow ----------------------------------------------------------------------


def _source(run: Run, facts: RunFacts, *, at_position: bool) -> SourceShown | None:
    """Return the source of the workflow, if its file is known.

    Args:
        at_position: mark where the run resumes.
    """
    how = how_started(run.store, run._seal, facts)
    file = how[2] if how is not None else ""
    if not file:
        return None
    name = facts.workflow.rpartition(":")[2].rpartition(".")[2]
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if not lines:
        return SourceShown(os.path.basename(file), 1, [], note="the file is not on this machine")
    found = _function(run, facts, "".join(lines), name)
    if found is None:
        note = f"the function of {name!r} is not found in this file"
        return SourceShown(os.path.basename(file), 1, [], note=note)
    node, here, note = found
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    end = node.end_lineno or sys.maxsize
    here = here if at_position and first <= here <= end else 0
    return SourceShown(os.path.basename(file), first, lines[first - 1 : end], here, note)


def _function(
    run: Run, facts: RunFacts, text: str, name: str
) -> tuple[FunctionNode, int, str] | None:
    """Return the function, the line at which the run resumes, and a doubt about them."""
    loaded = newest_checkpoint(run.store, run._seal, run.id)
    here = 0
    if loaded is not None:
        state = loaded.state
        here = state.line
        node = function_like(text, name, state.position, state.prefix, state.visited)
        if node is not None:
            return node, following_line(node, state.position) or here, ""
    for node in functions_named(text):  # a workflow may have a name= of its own
        if fingerprint(node) == facts.code:
            return node, here, ""
    nodes = [*functions_named(text, name)]
    note = "the function was edited since, so lines may not be those that were executed"
    return (nodes[0], here, note) if nodes else None
