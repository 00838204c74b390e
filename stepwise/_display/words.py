"""Steps, their attempts, and the attempts of runs in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwise._display.terminal import duration_text, when
from stepwise._runtime.messages import count

_ENDS = {"died": "process died", "completed": "ended"}


def counts_text(counts: Mapping[str, int]) -> str:
    """Return the number of steps by status, as ``12 completed, 1 failed``; empty for none."""
    told = [f"{n:,} {status.replace('_', ' ')}" for status, n in sorted(counts.items()) if n]
    return ", ".join(told)


def ended_text(end: str) -> str:
    """Return in words how an attempt of a run ended; see ``Course.ends``."""
    return _ENDS.get(end, end)


def resume_text(at: float, how: str, end: str) -> str:
    """Return a resume in words: when, how, and how the attempt before had ended."""
    return f"{when(at)}, {how}" + (f" (before: {ended_text(end)})" if end else "")


def is_waiting(step: Any) -> bool:
    call = step._entry.call
    return step.status == "waiting" or (call is not None and call.is_wait)


def took_text(step: Any) -> str:
    """Return how long a step took itself, and how long it waited; empty while unfinished."""
    waited = f"waited {duration_text(step.waited)}" if step.waited else ""
    own = "" if step.waited and is_waiting(step) else duration_text(step.duration)
    return ", ".join(filter(None, (own, waited)))


def cached_text(step: Any) -> str:
    """Return where the cache had a step's result from; empty if it did not answer the step."""
    if "run" not in step.cached:
        return ""
    made = f"from {step.cached['run'] or 'outside of runs'}, {when(step.cached['at'])}"
    return f"cached {made}"


def result_text(step: Any) -> str:
    """Return what came of a step, shortened; a result from the cache says so."""
    return " · ".join(filter(None, (step.preview, cached_text(step))))


def attempt_text(attempt: Any) -> str:
    """Return an attempt of a step in words: how and after how long it ended."""
    ended = attempt.status
    if attempt.finished_at is not None:  # the clock may have been set back
        ended += f" after {duration_text(max(0.0, attempt.finished_at - attempt.started_at))}"
    error = f": {attempt.error}" if attempt.error else ""
    return f"attempt {attempt.number} {ended}{error}"


def before_text(attempt: Any) -> str:
    """Return how many attempts of a step came before one."""
    return f"{count(attempt.number - 1, 'attempt')} before"


def tries_text(step: Any) -> list[str]:
    """Return the attempts of a step that took several, a text each."""
    tries = step.tries if step.attempts > 1 else ()
    told = [f"{attempt_text(each)}, begun {when(each.started_at)}" for each in tries]
    missing = [before_text(tries[0])] if tries and tries[0].number > 1 else []
    return [*missing, *told]
