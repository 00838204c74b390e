"""The first step and the first variable in which two runs differ."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from stepwise._display.terminal import shown_value
from stepwise._runs.run import Run
from stepwise._runs.steps import StepRecord
from stepwise.errors import UnreadableValueError

__all__ = ["StepDifference", "VariableDifference", "first_step", "first_variable"]

_ATOMS = (str, bytes, int, float, bool, type(None))


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
        step: how many steps were done at the checkpoint.
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
    """Return the first variable in which two runs differ, at checkpoints after as many steps."""
    places = [
        {each.step: each for each in run.checkpoints if each.verified} for run in (one, other)
    ]
    for step in sorted(places[0].keys() & places[1].keys()):
        variables = one._shown_locals(step), other._shown_locals(step)
        for name in dict.fromkeys((*variables[0], *variables[1])):
            pair = [each.get(name, _MISSING) for each in variables]
            if not _equal(*pair):
                first, second = (shown_value(value, 1000) for value in pair)
                position = places[0][step].position
                return VariableDifference(name, step, position, (first, second))
    return None


def _difference(one: StepRecord | None, other: StepRecord | None) -> str:
    if one is None or other is None:
        return "presence"
    for name in ("name", "arguments", "status", "preview"):
        if getattr(one, name) != getattr(other, name):
            return "result" if name == "preview" else name
    if one._entry.payload == other._entry.payload or one.status != "completed":
        return ""
    return "" if _equal(_result(one), _result(other)) else "result"


def _result(step: StepRecord) -> Any:
    try:
        return step.result
    except UnreadableValueError:
        return step.preview


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


_MISSING = _Missing()


def _equal(one: Any, other: Any) -> bool:
    if _class_name(one) != _class_name(other):
        return _says_equal(one, other)
    if type(one) in _ATOMS:
        return bool(one == other) or repr(one) == repr(other)  # NaN is what it was
    # Objects without their own equality, and containers of them, are compared by their text.
    return _says_equal(one, other) or _text(one) == _text(other)


def _class_name(value: object) -> tuple[str, str]:
    """Compare classes by name, since placeholders for missing classes are made at each load."""
    return type(value).__module__, type(value).__qualname__


def _says_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array, or somebody's __eq__
        return False


def _text(value: Any) -> str:
    """Return the text of a value, without memory addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shown_value(value, 1 << 40))
