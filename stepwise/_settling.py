"""What somebody who looked outside says of a step, and which step is meant.

Imports: doubt, matching, errors.
"""

from __future__ import annotations

from typing import Any

from stepwise._doubt import DidNotHappen, Landed
from stepwise._recorded import Recorded
from stepwise.errors import ConfigurationError, StepNotFoundError

__all__ = ["UNSET", "answer_given", "choose"]

UNSET: Any = object()


def choose(run_id: str, step: int | str, among: list[Recorded], what: str) -> Recorded:
    """The one of these calls that a number or a name means.

    Raises:
        StepNotFoundError: none, or more than one.
    """
    number = int(step) if isinstance(step, int) or step.isdecimal() else None
    found = [each for each in among if step == each.call.name or number == each.call.number]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{each.call.number} ({each.call.name})" for each in among[:20])
    problem = f"is no step {what}" if not found else "names more than one; give its number"
    raise StepNotFoundError(
        f"{step!r} of run {run_id!r} {problem}. Steps {what}: {listed or 'none'}",
        run_id=run_id,
        step=step,
    )


def answer_given(answer: Any, landed: Any, did_not_happen: bool) -> tuple[bool, Any]:
    """Whether it happened, and what it returned.

    Raises:
        ConfigurationError: not exactly one thing is said.
    """
    given = [answer is not None, landed is not UNSET, did_not_happen]
    if sum(given) != 1:
        raise ConfigurationError(
            "say one thing: resolve(step, landed=value) or resolve(step, did_not_happen=True)"
        )
    if isinstance(answer, Landed):
        return True, answer.value
    if answer is DidNotHappen or isinstance(answer, DidNotHappen) or did_not_happen:
        return False, None
    if answer is not None:
        raise ConfigurationError(f"resolve() takes Landed(value) or DidNotHappen, not {answer!r}")
    return True, landed
