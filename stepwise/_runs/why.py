"""Why a run stands where it stands: one screen of facts, from its records and its checkpoints.

Everything is read; nothing of the program is executed.  A failed run shows its traceback's frames,
another run the statement that follows its newest checkpoint.  The history of a variable over the
kept checkpoints, and the search for a moment, are here as well.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import linecache
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Any

from stepwise._checkpoints.checkpoints import PREFIX, Loaded, State, number_of
from stepwise._display.render import answers_to, step_text, why_html, why_text
from stepwise._display.words import ago, duration_text
from stepwise._execution.budget import Spent
from stepwise._execution.outcomes import LoadedOutcome, load_inputs
from stepwise._execution.suspension import pending
from stepwise._execution.viewer import failure_of, look_into, result_of
from stepwise._journal.journal import facts_of, read_end, recorded_versions
from stepwise._journal.lease import describe_owner
from stepwise._journal.records import RunFacts
from stepwise._runs import steps as run_steps
from stepwise._runs.fitting import LIMIT, NamedFacts, Uncut, fitted
from stepwise._runs.overview import SHOWN, Overview, overview
from stepwise._runs.paths import ABSENT, differences, find, length_of, parsed, short, size_of
from stepwise._runs.questions import RunQuestions
from stepwise._runs.sources import WorkflowSource
from stepwise._runs.steps import Place
from stepwise._runtime.clock import now
from stepwise._runtime.facts import PlainFacts, public
from stepwise._runtime.messages import count, is_ours, printable, settling_commands, shell_word
from stepwise._values.preview import NO_SECRETS, NOT_SHOWN, error_text, type_name
from stepwise.errors import ConfigurationError, StepNotFoundError, UnreadableValueError

# -- kept checkpoints -----------------------------------------------------------------------------


def without_hidden(facts: RunFacts, values: dict[str, Any]) -> dict[str, Any]:
    """Return variables with a placeholder for each one that holds a hidden argument of the run."""
    hidden = facts.hidden.split()
    return {name: NOT_SHOWN if name in hidden else value for name, value in values.items()}


class Moments:
    """The kept checkpoints of a run, oldest first, loaded one by one."""

    def __init__(self, place: Place, facts: RunFacts) -> None:
        store, _, run_id = place
        self._place, self._facts = place, facts
        self.names = store.names(run_id, PREFIX)

    def load(self, index: int) -> Loaded | None:
        """Return a checkpoint, or ``None`` if it does not verify.

        Raises:
            StoreError: it was deleted since; see :func:`.steps.moved`.
        """
        return run_steps.listed_checkpoint(self._place, self.names[index])

    def variables(self, loaded: Loaded) -> dict[str, Any]:
        """Return the variables at a checkpoint, without hidden ones.

        Raises:
            UnreadableValueError: they cannot be loaded here.
        """
        return without_hidden(self._facts, look_into(loaded))


# -- history --------------------------------------------------------------------------------------


_JSON = 7500  # characters of the changes
_MOST = 1000  # checkpoints that a history looks at


@public
@dataclass(frozen=True, slots=True)
class VariableChange(PlainFacts):
    """A change of a variable between two kept checkpoints of a run.

    Args:
        step: the number of steps that were done at the later checkpoint.
        position: ``file:line`` of the statement that changed it, if the code between the two has
            only one that could; else of the statement after which the later one was taken.
        statement: the text of that statement, which begins with ``(before)`` if another one changed
            it; empty if the code was edited since.
        path: the part that changed, such as ``messages[3].content``.
        old, new: the part before and after, as short texts; ``None`` if it did not exist.
        cut: the paths of parts that the text of ``new`` leaves out.
    """

    step: int
    position: str
    statement: str
    path: str
    old: str | None
    new: str | None
    cut: tuple[str, ...] = ()

    def __str__(self) -> str:
        statement = f": {self.statement}" if self.statement else ""
        where = f"{self.position}, after step {self.step}{statement}"
        if self.old is None:
            return f"{where}\n  {self.path} = {self.new}"
        new = "(gone)" if self.new is None else self.new
        return f"{where}\n  {self.path}: {self.old} -> {new}"


@public
class VariableHistory(list[VariableChange]):
    """The changes of a variable, oldest first.

    Attributes:
        looked_at: how many kept checkpoints were looked at: the newest ones.
        kept: how many checkpoints are kept.
        note: what is left out, in words; empty if nothing is.
    """

    looked_at = kept = 0
    note = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the history as plain data, whose JSON has about 8,000 characters at most.

        The newest changes are in it; ``left_out`` counts the others.
        """
        kept = _fitting(self)
        facts = {"looked_at": self.looked_at, "kept": self.kept, "note": self.note}
        return {**facts, "left_out": len(self) - len(kept), "changes": kept}

    def __str__(self) -> str:
        return "\n".join([*map(str, self), *([f"({self.note})"] if self.note else [])])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def _fitting(changes: Sequence[VariableChange]) -> list[dict[str, Any]]:
    """Return the newest changes as plain data, as many as JSON of limited length has room for."""
    kept: list[dict[str, Any]] = []
    room = _JSON
    for each in map(VariableChange.to_dict, reversed(changes)):
        room -= len(json.dumps(each, indent=2)) + 8 * len(each)
        if room < 0:
            break
        kept.insert(0, each)
    return kept


def changes_between(
    source: WorkflowSource,
    before: State | None,
    state: State,
    path: str,
    values: tuple[Any, Any],
    most: int = 3,
) -> list[VariableChange]:
    """Return the changes of a value between two checkpoints; none if it is the same.

    Args:
        before, state: the checkpoints; the earlier one may be missing.
        path: the path of the value.
        values: the value at either.
        most: the number of parts; where more changed, the whole is the part.
    """
    found = differences(*values, path, most)
    if not found:
        return []
    where, statement = source.writer(str(parsed(path)[0]), before, state)
    return [VariableChange(state.step, where, statement, *each[:3], cut=each.cut) for each in found]


def history_of(place: Place, facts: RunFacts, path: str, limit: int = _MOST) -> VariableHistory:
    """Return the changes of a variable, or of a part of it, over the kept checkpoints.

    Raises:
        ConfigurationError: the text is no path, or no checkpoint has such a value.
        StepNotFoundError: the run has no checkpoint that verifies.
    """
    parsed(path)
    moments, source, found = (
        Moments(place, facts),
        WorkflowSource(*place[:2], facts),
        VariableHistory(),
    )
    first = max(0, len(moments.names) - limit)
    value, problem, unreadable, met = ABSENT, None, 0, False
    if not first:
        with contextlib.suppress(ConfigurationError, UnreadableValueError):
            value = find(without_hidden(facts, load_inputs(*place[:2], facts).whole()), path)
    before: State | None = None
    for index in range(first, len(moments.names)):
        loaded = moments.load(index)
        if loaded is None:
            unreadable += 1
            continue
        found.looked_at += 1
        try:
            now = find(moments.variables(loaded), path)
        except ConfigurationError as error:
            problem, now = error, ABSENT
        except UnreadableValueError:
            unreadable += 1
            continue
        met = met or now is not ABSENT
        found += changes_between(source, before, loaded.state, path, (value, now))
        value, before = now, loaded.state
    if not found.looked_at:
        raise no_checkpoint(place[2])
    if not met:
        raise problem or UnreadableValueError(
            f"the variables of run {place[2]!r} cannot be loaded at any of its checkpoints"
        )
    found.kept = len(moments.names)
    told = [
        f"{count(first, 'older checkpoint')} not looked at" if first else "",
        f"{count(unreadable, 'checkpoint')} cannot be read" if unreadable else "",
        few_kept(found.kept, before.step if before is not None else 0),
    ]
    found.note = "; ".join(filter(None, told))
    return found


def few_kept(kept: int, steps: int) -> str:
    """Return a hint if a run keeps too few checkpoints to tell much; else an empty text.

    Args:
        steps: the steps that were done at the newest one.
    """
    if kept > 3 or steps <= kept:
        return ""
    return (
        f"the run keeps {count(kept, 'checkpoint')}, so earlier moments are unknown: "
        '@workflow(retention="all") keeps all of later runs'
    )


def no_checkpoint(run_id: str) -> StepNotFoundError:
    """Return the error for a run that has no checkpoint to look at."""
    return StepNotFoundError(
        f"run {run_id!r} has no checkpoint: it had not finished a statement that calls a step, or "
        "its variables could not be recorded",
        run_id=run_id,
        step=0,
    )


# -- bisect ---------------------------------------------------------------------------------------


_ERROR = 300  # characters of an expression's exception
_SAMPLES = 48  # checkpoints looked at before the gap is halved


@public
@dataclass(frozen=True, slots=True)
class FirstTrue(PlainFacts):
    """The first kept checkpoint at which an expression over the variables is true.

    Args:
        expression: the expression.
        step: the number of steps that were done at that checkpoint; ``None`` if it is true nowhere.
        position: ``file:line`` of the statement that made it so; see :class:`VariableChange`.
        statement: the text of that statement; empty if the code was edited since.
        changes: how the variables of the expression changed since the checkpoint before.
        looked_at: how many checkpoints were looked at.
        kept: how many checkpoints are kept.
        exact: True if no earlier checkpoint can be meant: all of them were looked at.
        note: what this leaves open, in words; empty if nothing.
    """

    expression: str
    step: int | None
    position: str
    statement: str
    changes: tuple[VariableChange, ...]
    looked_at: int
    kept: int
    exact: bool
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data, with as many changes as 7,500 characters hold."""
        return {**PlainFacts.to_dict(self), "changes": _fitting(self.changes)}

    def __str__(self) -> str:
        if self.step is None:
            return self.note
        statement = f": {self.statement}" if self.statement else ""
        where = f"after step {self.step}, at {self.position}{statement}"
        lines = [f"{self.expression} is true {where}"]
        lines += [f"  {line}" for each in self.changes for line in str(each).splitlines()[1:]]
        return "\n".join([*lines, *([f"({self.note})"] if self.note else [])])


class _Condition:
    """The values of an expression at the checkpoints of a run, each made once."""

    def __init__(self, moments: Moments, expression: str) -> None:
        self.moments = moments
        self.told: dict[int, bool] = {}
        self.error = ""
        try:
            self._code = compile(expression.strip(), "<expression>", "eval")
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(
                f"{expression!r} is not an expression of Python ({error}). Write a condition over "
                "the run's variables, like len(messages) > 40"
            ) from None

    def __call__(self, index: int) -> bool:
        if index not in self.told:
            loaded = self.moments.load(index)
            self.told[index] = loaded is not None and self._holds(loaded)
        return self.told[index]

    def _holds(self, loaded: Loaded) -> bool:
        try:
            variables = self.moments.variables(loaded)
            return bool(eval(self._code, {"__builtins__": builtins, **variables}))  # noqa: S307
        except Exception as error:  # the user's expression may raise anything
            text = NO_SECRETS.cleaned_text(error_text(error)[:_ERROR])
            self.error = printable(f"{type(error).__name__}: {text}")
            return False


def bisect_of(place: Place, facts: RunFacts, expression: str, *, every: bool) -> FirstTrue:
    """Return the first kept checkpoint at which an expression is true.

    Args:
        every: True to look at each checkpoint until it is found.

    Raises:
        ConfigurationError: the text is no expression.
        StepNotFoundError: the run has no checkpoint.
    """
    moments = Moments(place, facts)
    holds = _Condition(moments, expression)
    kept = len(moments.names)
    if not kept:
        raise no_checkpoint(place[2])
    index = _first(holds, kept, kept if every else _SAMPLES)
    exact = len(holds.told) == kept or (index is not None and {*range(index)} <= holds.told.keys())
    told = "" if exact else (
        f"{len(holds.told)} of {kept:,} checkpoints were looked at, so it may have been true "
        "for a while before: --every looks at each"
    )  # fmt: skip
    facts_of_search, newest = (len(holds.told), kept, exact), moments.load(kept - 1)
    few = few_kept(kept, newest.state.step if newest is not None else 0)
    if index is None:
        why = f"; at the last one that failed: {holds.error}" if holds.error else ""
        nowhere = f"{expression} is true at no kept checkpoint of {kept:,}{why}"
        note = ". ".join(filter(None, (nowhere, told, few)))
        return FirstTrue(expression, None, "", "", (), *facts_of_search, note)
    if index == 0:
        number = number_of(moments.names[0])
        told = f"it is true from the oldest kept checkpoint on, which follows record {number}"
    loaded = moments.load(index)
    assert loaded is not None  # the expression was evaluated there
    state, source = loaded.state, WorkflowSource(*place[:2], facts)
    before = moments.load(index - 1) if index else None
    names = dict.fromkeys(re.findall(r"[^\W\d]\w*", expression))
    values = moments.variables(loaded)
    changes = (*_changes_since(before, moments, source, (state, values), names),)
    note = ". ".join(filter(None, (told, few)))
    where, statement = state.where, source.statement(state)
    if changes:
        where, statement = changes[0].position, changes[0].statement
    return FirstTrue(expression, state.step, where, statement, changes, *facts_of_search, note)


def _first(holds: Callable[[int], bool], kept: int, samples: int) -> int | None:
    """Return the first index that holds, of evenly spread ones and then by halving the gap."""
    spread = [n * (kept - 1) // max(1, samples - 1) for n in range(samples)]
    spread = sorted({*spread}) if samples < kept else [*range(kept)]
    low = -1
    for index in spread:
        if holds(index):
            high = index
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if holds(middle) else (middle, high)
            return high
        low = index
    return None


def _changes_since(
    before: Loaded | None,
    moments: Moments,
    source: WorkflowSource,
    now: tuple[State, Mapping[str, Any]],
    names: Iterable[str] | None = None,
    most: int = 3,
) -> Iterator[VariableChange]:
    """Yield the changes of variables since an earlier checkpoint, if it can be loaded here.

    Args:
        now: the later checkpoint, with its variables.
        names: only these variables; by default all.
        most: see :func:`changes_between`.
    """
    try:
        old = moments.variables(before) if before is not None else None
    except UnreadableValueError:
        return
    if before is None or old is None:
        return
    state, new = now
    every = dict.fromkeys((*new, *old))
    for name in every if names is None else filter(every.__contains__, names):
        pair = old.get(name, ABSENT), new.get(name, ABSENT)
        yield from changes_between(source, before.state, state, name, pair, most)


# -- facts ----------------------------------------------------------------------------------------


_AROUND = 5  # lines before and after the statement
_VARIABLES = 40  # of a checkpoint
_ROOM = 1200  # characters of a variable
_RESULT = 2000  # characters
_NEWEST = 12  # steps
_STEPS = 4  # steps at which a run stands
_CHILDREN = 2  # child runs of these
_DEPTH = 3  # of child runs
_CHANGES = 12


@public
@dataclass(frozen=True, slots=True)
class CodePlace:
    """A statement of a program, with the lines around it as the file has them now.

    Args:
        file: the path of the file.
        line: the line of the statement; 0 if only the function is known.
        function: the name of the function.
        statement: the text of the line.
        first: the number of the first line in ``lines``.
        lines: the lines around the statement; none if the file is not on this machine.
        note: how the file differs from the code that was executed; empty if it fits.
    """

    file: str
    line: int
    function: str
    statement: str
    first: int = 0
    lines: tuple[str, ...] = ()
    note: str = ""

    @property
    def numbered(self) -> str:
        """The lines with their numbers; the statement is marked with ``>``."""
        width = len(str(self.first + len(self.lines)))
        return "\n".join(
            f"{'>' if number == self.line else ' '} {number:{width}}  {text}".rstrip()
            for number, text in enumerate(self.lines, self.first)
        )


@public
@dataclass(frozen=True, slots=True)
class VariableShown(PlainFacts):
    """A local variable at a checkpoint, as short text.

    Args:
        name: the name of the variable.
        type: the name of its class.
        length: the number of its items or characters; ``None`` for a value without a length.
        size: about the size in memory, in bytes, with what it holds.
        text: its value, shortened.
        cut: the paths of parts that the text leaves out, for ``stepwise locals RUN PATH``.
    """

    name: str
    type: str
    length: int | None
    size: int
    text: str
    cut: tuple[str, ...] = ()


@public
@dataclass(frozen=True, slots=True)
class Why:
    """Why a run stands where it stands; see :meth:`Run.why`.

    Args:
        id: the id of the run.
        call: the call of its workflow, as text.
        status: the status of the run; see :attr:`Run.status`.
        said: what happened, in one sentence.
        place: where it stands: the line that raised, or the statement that is next; ``None`` if
            that is unknown.
        error: the exception as text; empty if there is none.
        frames: the user's frames of the exception, outermost first; with variables if they were
            recorded (``configure(record_locals=True)``).
        because: the exceptions that led to it (causes and contexts), as texts with their lines.
        steps: the steps at which it stands: those that failed, are in doubt, wait, or are open.
        newest: the newest steps, in order; up to the checkpoint, if one was asked for.
        children: why the child runs of these steps stand where they stand.
        result: the result of a completed run as short text; empty for other runs.
        counts: the number of steps by status.
        spent: what the run has spent.
        created_at, updated_at: when it began, and when it last changed, in seconds since 1970.
        resumed: how many times it was resumed.
        step: the number of steps done at the newest checkpoint; ``None`` without a checkpoint.
        position: ``file:line`` of that checkpoint.
        kept: the number of kept checkpoints.
        variables: the variables there: those of the statement first, then the largest.
        left_out: the number of other variables.
        changes: the variables that differ from the checkpoint before.
        commands: the commands that go on, each with its meaning.
        notes: what could not be shown, and why; steps that were edited since their results were
            recorded.
    """

    id: str
    call: str
    status: str
    said: str
    place: CodePlace | None
    error: str
    frames: tuple[run_steps.RecordedFrame, ...]
    because: tuple[str, ...]
    steps: tuple[run_steps.StepRecord, ...]
    newest: tuple[run_steps.StepRecord, ...]
    children: tuple[Why, ...]
    result: str
    counts: Mapping[str, int]
    spent: Spent
    created_at: float
    updated_at: float
    resumed: int
    step: int | None
    position: str
    kept: int
    variables: tuple[VariableShown, ...]
    left_out: int
    changes: tuple[VariableChange, ...]
    commands: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data, whose JSON has 8,000 characters (2,000 tokens) at most.

        Long values are cut, and ``cut`` names the paths by which the parts can be asked for; the
        entry ``more`` says how.
        """
        return bounded(self)

    def __str__(self) -> str:
        return why_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(why_text(self))

    def _repr_html_(self) -> str:
        return why_html(self)


# -- reading --------------------------------------------------------------------------------------


def why_of(place: run_steps.Place, at: int | None = None, depth: int = 0) -> Why:
    """Return why a run stands where it stands.

    Args:
        at: a number of steps, for the last checkpoint after so many steps or fewer.
        depth: how many runs are above, for which this one is read.

    Raises:
        StepNotFoundError: no checkpoint is kept that early.
    """
    return run_steps.settled(*place, lambda facts, _: _RunReading(place, facts, depth).why(at))


class _RunReading:
    """One reading of a run, with all that says why it stands where it stands."""

    def __init__(self, place: run_steps.Place, facts: RunFacts, depth: int) -> None:
        store, seal, run_id = place
        self.place, self.facts, self.depth = place, facts, depth
        self.notes: list[str] = []
        self.seen: Overview = overview(store, seal, run_id, SHOWN)
        _, self.owner, self.status = self.seen.standing
        self.source = WorkflowSource(store, seal, facts)
        self.failure = self._failure()
        self.steps = self._steps()

    def why(self, at: int | None) -> Why:
        """Return the facts in their public form; see :func:`why_of`."""
        facts, seen, cleaned = self.facts, self.seen, NO_SECRETS.cleaned_text
        error = self._error()
        frames = self._frames()
        moments = Moments(self.place, facts)
        until = math.inf if at is None else number_of(self._checkpoint(at).name)
        found = run_steps.kept_checkpoints(self.place, until)
        newest, before = islice(chain(found, (None, None)), 2)
        state = newest.state if newest is not None else None
        place = self._place(frames if at is None else (), state, then=at is not None)
        variables, left_out, changes = self._variables(moments, newest, before, place)
        children = tuple(self._children())
        self.notes += dict.fromkeys(
            f"{each.name} has changed ({'; '.join(each.differs)}): its recorded results are used"
            for each in recorded_versions(*self.place)
            if each.used_by
        )
        return Why(
            id=facts.run_id,
            call=cleaned(f"{facts.label}({facts.arguments})"),
            status=self.status,
            said=cleaned(self._said(error, place)),
            place=place,
            error=error,
            frames=frames,
            because=tuple(map(_cause, self.failure.tracebacks[1:4])),
            steps=self.steps,
            newest=self._newest(None if at is None else state),
            children=children,
            result=self._result(),
            counts=seen.statuses,
            spent=seen.spent,
            created_at=facts.created_at,
            updated_at=max(facts.updated_at, seen.course.at),
            resumed=seen.course.resumed,
            step=state.step if state is not None else None,
            position=state.where if state is not None else "",
            kept=len(moments.names),
            variables=variables,
            left_out=left_out,
            changes=changes,
            commands=tuple(self._commands(children)),
            notes=tuple(self.notes),
        )

    def _newest(self, until: State | None) -> tuple[run_steps.StepRecord, ...]:
        """Return the newest steps of the run, or the newest up to a checkpoint."""
        if until is None:
            return tuple(self.seen.steps[-_NEWEST:])
        doubtful = {each.number for each in self.seen.in_doubt}
        steps = run_steps.each_step(*self.place[:2], self.facts, doubtful)
        return (*deque(takewhile(lambda each: each.number <= until.calls, steps), _NEWEST),)

    def _checkpoint(self, at: int) -> Loaded:
        found = run_steps.checkpoint_at(*self.place, at, self.seen.course)
        if found is None:
            raise StepNotFoundError(
                f"run {self.place[2]!r} keeps no checkpoint at or before step {at}; its oldest one "
                "is told by: stepwise locals RUN --changes NAME",
                run_id=self.place[2],
                step=at,
            )
        return found

    # -- what happened ---------------------------------------------------------------------------

    def _failure(self) -> LoadedOutcome:
        store, seal, _ = self.place
        try:
            return failure_of(store, seal, self.facts)
        except UnreadableValueError as error:
            self.notes.append(f"the exception cannot be loaded here: {error}")
            return LoadedOutcome()

    def _error(self) -> str:
        if self.failure.error is not None:
            return run_steps.text_of_error(self.failure.error)
        failed = self.status in ("failed", "cancelled")
        return run_steps.error_line(self.facts.error) if failed and self.facts.error else ""

    def _frames(self) -> tuple[run_steps.RecordedFrame, ...]:
        """Return the user's frames of the exception: as recorded, else from its traceback."""
        try:
            end = self.facts.end if self.facts.status == "failed" else 0
            recorded = run_steps.failures_of(self.place, 0).get(end, ()) if end else ()
        except UnreadableValueError as error:
            self.notes.append(str(error))
            recorded = ()
        if recorded or not self.failure.tracebacks:
            return recorded
        return tuple(frames_in(self.failure.tracebacks[0]))

    def _steps(self) -> tuple[run_steps.StepRecord, ...]:
        """Return the steps at which the run stands."""
        seen, ended = self.seen, read_end(*self.place[:2], self.facts)
        if self.status == "failed" or self.failure.error is not None:
            chain = set(ended.ended.retry) if ended is not None and ended.ended else set()
            failed = [each for each in seen.steps if each.status in ("failed", "cancelled")]
            named = [each for each in failed if each.number in chain]
            alike = [each for each in failed if each.preview == self.facts.error]
            return tuple((named or alike[-1:])[-_STEPS:])
        if self.status == "completed":
            return ()
        doubtful = {each.number for each in seen.in_doubt}
        others = (e for e in seen.steps if e.status in ("started", "waiting"))
        found = [*seen.in_doubt, *(each for each in others if each.number not in doubtful)]
        return tuple(found[-_STEPS:])

    def _children(self) -> Iterator[Why]:
        store, seal, _ = self.place
        ids = [each.child for each in self.steps if each.child]
        for child in ids[-_CHILDREN:] if self.depth < _DEPTH else ():
            facts = facts_of(store, seal, child)
            if facts is None:
                self.notes.append(f"the child run {child} is gone")
            else:
                yield why_of((store, seal, child), depth=self.depth + 1)

    def _said(self, error: str, place: CodePlace | None) -> str:
        step = self.steps[-1] if self.steps else None
        at = f" at {os.path.basename(place.file)}:{place.line}" if place and place.line else ""
        calls = f"step {step.number} {step.name}({step.arguments})" if step is not None else ""
        tries = f" after {step.attempts} tries" if step is not None and step.attempts > 1 else ""
        during = f", in {calls}" if calls else ""
        name = step._entry.limit if step is not None else ""
        limit = f" It waits for the limit {name!r}." if name else ""
        waits = "; and ".join(map(str, pending(self.facts)[:4]))
        told = {
            "failed": f"It failed{at}{during}{tries}: {error}",
            "completed": f"It completed in {duration_text(run_steps.duration_of(self.facts))}.",
            "running": f"It is being executed {describe_owner(self.owner)}{during}.{limit}",
            "suspended": f"It waits {waits}.",
            "interrupted": f"It was stopped by {self.facts.error}{at}.",
            "cancelling": f"It is to be cancelled, asked by {self.facts.cancelling}, and unwinds.",
            "cancelled": f"It was cancelled: {error}" if error else "It was cancelled.",
            "ready": "It is a fork that nobody has executed yet.",
        }.get(self.status)
        if self.status == "superseded":
            told = f"A branch was adopted: {run_steps.instead(*self.place[:2], self.facts)}."
        return told if told is not None else self._said_of_death(at, during)

    def _said_of_death(self, at: str, doing: str) -> str:
        course = self.seen.course
        since = f"{ago(max(0.0, now() - course.at))}" if course.at else "at an unknown time"
        if any(each.said is None for each in self.seen.stops):
            stop = next(each for each in self.seen.stops if each.said is None)
            return (
                f"It stopped at {stop.name}({stop.arguments}), called at {stop.site}: a person has "
                "to say whether that is a recorded side effect."
            )
        if self.seen.in_doubt:
            doubt = self.seen.in_doubt[-1]
            return (
                f"It stopped{at}, and it is in doubt whether step {doubt.number} "
                f"{doubt.name}({doubt.arguments}) happened: it began, and has no recorded end."
            )
        if course.ended_by and course.ended_by != "submitted":
            return f"Its process ended by {course.ended_by}{at}{doing}, {since}."
        store, _, run_id = self.place
        last = getattr(store, "last_owner", None)
        owner = last(run_id) if last is not None else None
        if owner is not None and owner.since > course.at:  # a command that looked at it since
            owner = None
        was = f"Process {owner.pid} on {owner.host}" if owner is not None else "Its process"
        text = f"{was} died or lost its machine{at}{doing}; last record {since}."
        if self.status == "stuck":
            text += f" It died {course.stuck + course.open} times at the same step."
        return text

    def _result(self) -> str:
        if self.status != "completed":
            return ""
        store, seal, _ = self.place
        try:
            return short(result_of(store, seal, self.facts), "result", _RESULT).text
        except UnreadableValueError as error:
            self.notes.append(f"the result cannot be shown: {error}")
            return ""

    # -- where -----------------------------------------------------------------------------------

    def _place(
        self, frames: Sequence[run_steps.RecordedFrame], state: Any, *, then: bool
    ) -> CodePlace | None:
        if frames:
            return place_of_frame(frames[-1])
        source, name = self.source, self.facts.workflow.rpartition(":")[2]
        if not source.file:
            return None
        if not source.lines:
            note = "the file is not on this machine"
            return CodePlace(source.file, 0, name, "", note=note)
        node = source.fitting(state) if state is not None else None
        code = self.seen.course.code or self.facts.code
        same = source.same_code(code)
        line = source.next_line(state) if state is not None else 0
        if not then and self.steps and same is not None and source.holds(self.steps[-1].site):
            line = int(self.steps[-1].site.rpartition(":")[2])
        found = same or node or (source.named[0] if source.named else None)
        if found is None:
            note = f"the file has no function {name} any more"
            return CodePlace(source.file, 0, name, "", note=note)
        note = ""
        if same is None:
            note = "the function was edited since"
            if state is not None and node is None:
                note += ", before the newest checkpoint: a resume begins at the top, with recorded "
                note += "results"
        return _around(source.file, line or found.lineno, name, source.lines, note)

    # -- variables -------------------------------------------------------------------------------

    def _variables(
        self, moments: Moments, newest: Any, before: Any, place: CodePlace | None
    ) -> tuple[tuple[VariableShown, ...], int, tuple[VariableChange, ...]]:
        if newest is None:
            if self.status != "ready":
                self.notes.append("no checkpoint is kept, so no variables are known")
            return (), 0, ()
        try:
            values = moments.variables(newest)
        except UnreadableValueError as error:
            self.notes.append(str(error))
            return (), 0, ()
        text = place.statement if place is not None else ""
        used = set(re.findall(r"[^\W\d]\w*", text))
        sizes = {name: size_of(value) for name, value in values.items()}
        order = sorted(values, key=lambda name: (name not in used, -sizes[name]))
        shown = []
        for name in order[:_VARIABLES]:
            value, (value_text, cut) = values[name], short(values[name], name, _ROOM)
            kind, length = type_name(value), length_of(value)
            shown.append(VariableShown(name, kind, length, sizes[name], value_text, cut))
        # The statement of each change is searched in the source: no more than are shown.
        changes = _changes_since(before, moments, self.source, (newest.state, values), most=2)
        return tuple(shown), len(values) - len(shown), (*islice(changes, _CHANGES),)

    # -- going on --------------------------------------------------------------------------------

    def _commands(self, children: Sequence[Why]) -> Iterator[tuple[str, str]]:
        run_id, status = shell_word(self.facts.run_id), self.status
        store, seal, _ = self.place
        if status == "running":
            yield f"stepwise watch {run_id}", "follow it"
        asks = "waiting" in self.seen.statuses or self.seen.course.children
        asked = RunQuestions(store, seal, self.facts).open if asks and not self.depth else ()
        for question in asked:
            yes, *no = answers_to(question)
            says = "adopt the branch" if question._proposed_by else f"say yes to {question.name}"
            yield yes, f"{says}: {question.text}"
            yield from ((each, "say no") for each in no)
        for step in self.seen.in_doubt if status != "running" else ():
            landed, not_happened = settling_commands(self.facts.run_id, step.number)
            yield landed, f"{step.name} happened, and returned this"
            yield not_happened, f"{step.name} did not happen, and may run"
        for stop in self.seen.stops:
            yield from zip(stop.commands, stop.meanings, strict=True)
        for wait in pending(self.facts):
            if wait.kind != "signal":
                continue
            yield (
                f"stepwise send {shell_word(wait.run_id)} {shell_word(wait.name)} JSON",
                "send what it waits for",
            )
        settling = ("stepwise resolve", "stepwise send")
        of_children = (each for child in children for each in child.commands)
        yield from (each for each in of_children if each[0].startswith(settling))
        if self.depth:
            return
        top = run_steps.top_facts(store, seal, self.facts).run_id
        if self.facts.is_submitted:
            yield run_steps.command_to_begin(self.facts), "begin it, and others that are due"
        elif status in run_steps.UNFINISHED or status == "cancelling":
            first = "mend the code, then " if status == "failed" else ""
            where = "go on from there" if top == self.facts.run_id else "go on by its parent"
            yield f"stepwise resume {shell_word(top)}", f"{first}{where}"
            yield f"stepwise debug {shell_word(top)}", "look at its frame, mend it, go on"
        elif status in ("completed", "cancelled"):
            if status == "cancelled":
                yield f"stepwise resume {shell_word(top)}", "go on all the same, where it stopped"
            yield f"stepwise fork {run_id} --at STEP", "go on from an earlier step, as a new run"


# -- frames and lines -----------------------------------------------------------------------------


_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)\n(?:    (?!~|\^)(.*))?', re.MULTILINE)
_FOREIGN = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3\.\d+[/\\]|^<frozen"
)


def frames_in(text: str) -> Iterator[run_steps.RecordedFrame]:
    """Yield the user's frames in the text of a traceback, outermost first."""
    for file, line, function, code in _FRAME.findall(text):
        if not _FOREIGN.search(file) and not is_ours(file):
            yield run_steps.RecordedFrame(file, int(line), function, code.strip(), {})


def _cause(text: str) -> str:
    """Return an exception of a chain in one line: its error, and the line that raised it."""
    frames, lines = [*frames_in(text)], text.strip().splitlines()
    error = next((each for each in reversed(lines) if not each.startswith(" ")), "")
    where = f", at {frames[-1].file}:{frames[-1].line}: {frames[-1].code}" if frames else ""
    return f"{error}{where}"


def place_of_frame(frame: run_steps.RecordedFrame) -> CodePlace:
    """Return the place of a recorded frame, with the lines around it if the file still has it."""
    linecache.checkcache(frame.file)
    lines = linecache.getlines(frame.file)
    if not lines:
        note = "the file is not on this machine"
        return CodePlace(frame.file, frame.line, frame.function, frame.code, note=note)
    line, note = frame.line, ""
    there = lines[line - 1].strip() if line <= len(lines) else ""
    if frame.code and there[:300] != frame.code[:300]:
        same = [n for n, each in enumerate(lines, 1) if each.strip()[:300] == frame.code[:300]]
        note = f"the file was edited since: line {frame.line} was {frame.code!r}"
        if len(same) == 1:
            line, note = same[0], f"the file was edited since: this was line {frame.line}"
        else:
            line = 0
    if not line:
        return CodePlace(frame.file, frame.line, frame.function, frame.code, note=note)
    return _around(frame.file, line, frame.function, lines, note)


def _around(file: str, line: int, function: str, lines: Sequence[str], note: str) -> CodePlace:
    first = max(1, line - _AROUND)
    shown = tuple(each.rstrip() for each in lines[first - 1 : line + _AROUND])
    statement = lines[line - 1].strip() if line <= len(lines) else ""
    return CodePlace(file, line, function, statement, first, shown, note)


# -- as plain data --------------------------------------------------------------------------------


_USUAL = 400  # characters of a text, for which the numbers of items below are meant
_EXACT = 300  # characters of JSON: a longer command or path would be of no use
_MORE = (
    "a variable or a part: stepwise locals {0} PATH [--at STEP]; its history: stepwise locals {0} "
    "--changes NAME; a step: stepwise show {0} STEP --path arguments.NAME or result; a list in "
    "parts: PATH[0:10]"
)


def bounded(why: Why) -> dict[str, Any]:
    """Return the facts of :meth:`Why.to_dict`: as much as fits."""
    more = _MORE.format(shell_word(re.sub(r"[^ -~]", "?", why.id[:200]))[:200])
    room = LIMIT - len(json.dumps(more)) - 20
    return {**fitted(lambda text: _facts_with_room(why, text), room), "more": more}


def _named(of: Any, names: str, **more: Any) -> NamedFacts:
    return NamedFacts({name: getattr(of, name) for name in names.split()} | more)


def _front(items: Sequence[Any], most: int, room: int) -> Sequence[Any]:
    return items[: max(1, most * room // _USUAL)]


def _back(items: Sequence[Any], most: int, room: int) -> Sequence[Any]:
    return items[-max(1, most * room // _USUAL) :]


def _facts_with_room(why: Why, room: int) -> NamedFacts:
    """Return the facts as data that can be cut.

    Args:
        room: the characters of a text, after which it is cut.
    """
    told = _front(why.variables, 12, room)
    return NamedFacts(
        **_facts_below(why, room),
        newest=[*map(step_text, _back(why.newest, 6, room))],
        checkpoint=_named(why, "step position kept") if why.step is not None else None,
        variables=[_variable_facts(each, room) for each in told],
        variables_left_out=[e.name for e in _front(why.variables[len(told) :], 18, room)],
        changes=[{**_named(e, "path old new statement")} for e in _front(why.changes, 6, room)],
        next=[
            {"command": Uncut(command), "meaning": meaning}
            for command, meaning in _front(why.commands, 6, room)
            if len(json.dumps(command)) <= _EXACT and command.isprintable()
        ],
    )


def _facts_below(why: Why, room: int) -> NamedFacts:
    """Return the facts that are told of child runs, too."""
    # What a child run shows, and what the variables show, is not said twice.
    below = {(each.file, each.line) for child in why.children for each in child.frames}
    frames = [each for each in why.frames if (each.file, each.line) not in below]
    known = {each.name: each.text for each in why.variables}
    done = "resumed created_at updated_at"
    return _named(
        why,
        "id call status said result",
        at=_place_facts(why.place, room) if why.place is not None else None,
        error=why.error if why.error not in why.said else "",
        frames=[_frame_facts(each, known) for each in _back(frames, 5, room)],
        because=[*_front(why.because, 3, room)],
        steps=[*map(_step_facts, _front(why.steps, 3, room))],
        children=[_facts_below(each, room // 2) for each in _front(why.children, 2, room)],
        done={"steps": dict(why.counts), "spent": str(why.spent), **_named(why, done)},
        notes=[*_front(why.notes, 4, room)],
    )


def _place_facts(place: CodePlace, room: int) -> NamedFacts:
    around = min(_AROUND, room // 160)
    width = room // (2 * around + 1) - 8  # of a line, so that the lines have room together
    lines = [
        f"{'>' if number == place.line else ' '}{number}  {text[:width]}"
        for number, text in enumerate(place.lines, place.first)
        if abs(number - place.line) <= around
    ]
    return _named(place, "file line function statement note", source="\n".join(lines))


def _frame_facts(frame: run_steps.RecordedFrame, known: Mapping[str, str]) -> NamedFacts:
    told = {name: text for name, text in frame.variables.items() if known.get(name) != text}
    where = f"{frame.file}:{frame.line} in {frame.function}: {frame.code}"
    return NamedFacts(at=where, variables=dict(islice(told.items(), 8)))


def _step_facts(step: run_steps.StepRecord) -> NamedFacts:
    failed = step.status == "failed" and not step.child
    attempts = step.attempts if step.attempts > 1 else None
    error = step.preview if failed else ""
    names = "number name status arguments child"
    return _named(step, names, at=step.site, attempts=attempts, error=error)


def _variable_facts(shown: VariableShown, room: int) -> NamedFacts:
    paths = shown.cut if len(shown.text) <= room else (*shown.cut, shown.name)
    short_ones = [each for each in dict.fromkeys(paths) if len(json.dumps(each)) <= _EXACT]
    return _named(shown, "name type length size text", cut=[*map(Uncut, short_ones[:3])])
