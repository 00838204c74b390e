"""Times and durations, steps, their attempts, and the attempts of runs in words."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from stepwise._runtime.messages import count

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_ENDS = {"died": "process died", "completed": "ended"}


def seconds_in(text: str) -> float | None:
    """Return the seconds of ``90s``, ``15m``, ``2h``, ``30d`` or ``4w``; ``None`` for others."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*([smhdw])", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match is not None else None


def ago(seconds: float) -> str:
    """Return a past time in words, given the seconds since then."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def duration_text(seconds: float | None) -> str:
    """Return a duration in words; empty for ``None``."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes / 60:.1f} h"


def when(moment: float) -> str:
    """Return a moment as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


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
    made = f"from {step.cached['run']}, {when(step.cached['at'])}"
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
