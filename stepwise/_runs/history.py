"""The history of a variable over the kept checkpoints of a run, and the search for a moment."""

from __future__ import annotations

import builtins
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from stepwise._checkpoints.checkpoints import PREFIX, Loaded, State, load_checkpoint, number_of
from stepwise._checkpoints.references import Vault
from stepwise._execution.outcomes import load_inputs
from stepwise._execution.viewer import look_into
from stepwise._journal.records import RunFacts
from stepwise._runs.paths import ABSENT, differences, find, parsed
from stepwise._runs.sources import WorkflowSource
from stepwise._runs.steps import Place
from stepwise._runtime.facts import public
from stepwise._runtime.messages import count, printable
from stepwise._values.preview import NO_SECRETS, NOT_SHOWN, error_text
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
        """Return a checkpoint, or ``None`` if it does not verify."""
        return load_checkpoint(Vault(*self._place), self.names[index])

    def variables(self, loaded: Loaded) -> dict[str, Any]:
        """Return the variables at a checkpoint, without hidden ones.

        Raises:
            UnreadableValueError: they cannot be loaded here.
        """
        return without_hidden(self._facts, look_into(loaded))

    def until(self, name: str | None) -> Iterator[Loaded]:
        """Yield the checkpoints that verify, the newest first, from the one of a name on."""
        first = len(self.names) if name is None else self.names.index(name) + 1
        found = (self.load(index) for index in reversed(range(first)))
        return (each for each in found if each is not None)


# -- history --------------------------------------------------------------------------------------


_JSON = 7500  # characters of the changes
_MOST = 1000  # checkpoints that a history looks at


@public
@dataclass(frozen=True, slots=True)
class VariableChange:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain data, for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

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
class FirstTrue:
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
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**facts, "changes": _fitting(self.changes)}

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
        self._code = _compiled(expression)

    def __call__(self, index: int) -> bool:
        if index not in self.told:
            self.told[index] = self._at(index)
        return self.told[index]

    def _at(self, index: int) -> bool:
        loaded = self.moments.load(index)
        if loaded is None:
            return False
        try:
            variables = self.moments.variables(loaded)
            return bool(eval(self._code, {"__builtins__": builtins, **variables}))  # noqa: S307
        except Exception as error:  # the user's expression may raise anything
            text = NO_SECRETS.cleaned_text(error_text(error)[:_ERROR])
            self.error = printable(f"{type(error).__name__}: {text}")
            return False


def _compiled(expression: str) -> Any:
    try:
        return compile(expression.strip(), "<expression>", "eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(
            f"{expression!r} is not an expression of Python ({error}). Write a condition over the "
            "run's variables, like len(messages) > 40"
        ) from None


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
    changes = (*_changes_at(moments, source, index, loaded, expression),) if index else ()
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


def _changes_at(
    moments: Moments, source: WorkflowSource, index: int, now: Loaded, expression: str
) -> Iterator[VariableChange]:
    before = moments.load(index - 1)
    if before is None:
        return
    try:
        old, new = moments.variables(before), moments.variables(now)
    except UnreadableValueError:
        return
    for name in dict.fromkeys(re.findall(r"[^\W\d]\w*", expression)):
        if name in old or name in new:
            pair = old.get(name, ABSENT), new.get(name, ABSENT)
            yield from changes_between(source, before.state, now.state, name, pair)
