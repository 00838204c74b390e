"""The timeline of a run as a picture: side by side what ran side by side, and where it was down.

Positions are percentages: the picture is as wide as the page.  It has no inline styles, which the
page's Content-Security-Policy refuses.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from stepwise._display.markup import Markup, tag
from stepwise._display.render import duration_text
from stepwise._runtime.facts import NamedTuple

__all__ = ["timeline"]

_GAP = 4.0  # percent that a pause takes at most
_THIN = 0.4  # percent that a step takes at least; a shorter pause is not drawn
_LANE, _THINNEST = 22, 5  # pixels
_HIGH = 528  # pixels that many lanes share
_LETTER = 0.85  # percent of the width that a letter of a label takes, about
_APART = 20.0  # percent between two labels


class Pause(NamedTuple):
    """A time in which no step ran.

    Args:
        left, width: where it is drawn, in percent.
        down: no process executed the run for a part of it.
    """

    left: float
    width: float
    seconds: float
    down: bool


class _Axis:
    """Maps moments to percentages; pauses between steps are cut short.

    Args:
        spans: start and end of each step, in seconds since 1970.
        resumes: when the run was resumed.
    """

    def __init__(self, spans: Iterable[tuple[float, float]], resumes: Sequence[float]) -> None:
        busy: list[list[float]] = []
        for start, end in sorted([*spans, *((at, at) for at in resumes)]):
            if busy and start <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], end)
            else:
                busy.append([start, end])
        total = sum(end - start for start, end in busy)
        most = _GAP / 100 * (total or 1.0)
        self._pieces: list[tuple[float, float]] = []  # start, offset
        pauses: list[tuple[float, float, float, bool]] = []
        offset = 0.0
        for (_, before), (start, end) in itertools.pairwise([[0.0, busy[0][0]], *busy]):
            seconds, down = start - before, start in resumes
            width = min(seconds, most)
            if down and pauses and pauses[-1][3] and pauses[-1][0] + pauses[-1][1] == offset:
                first, _, lost, _ = pauses.pop()  # resumed, and killed before it did anything
                pauses.append((first, offset - first + width, seconds + lost, True))
            elif seconds:
                pauses.append((offset, width, seconds, down))
            offset += width
            self._pieces.append((start, offset))
            offset += end - start
        self._scale = 100 / (offset or 1.0)
        self.pauses = [
            Pause(left * self._scale, width * self._scale, seconds, down)
            for left, width, seconds, down in pauses
            if down or width * self._scale >= _THIN
        ]

    def at(self, moment: float) -> float:
        """Return the place of a moment of a step."""
        start, offset = self._pieces[bisect.bisect(self._pieces, (moment, math.inf)) - 1]
        return (offset + moment - start) * self._scale


def _lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return a lane for each span, so that those of one lane do not overlap."""
    busy: list[tuple[float, int]] = []  # when each lane becomes free
    free: list[int] = []
    found: dict[int, int] = {}
    for number, (start, end) in sorted(enumerate(spans), key=lambda pair: pair[1]):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        found[number] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, found[number]))
    return [found[number] for number in range(len(spans))]


def timeline(
    steps: Sequence[Any], now: float | None, resumes: Sequence[float], prefix: str = ""
) -> Markup:
    """Draw the steps of a run; each is a link to its entry.

    Args:
        now: the end of what is not finished; ``None`` if the run is not being executed, so that
            nobody knows how long such a step ran.
        prefix: of the ids of the entries.
    """
    if not steps:
        return Markup()
    first = min(step.started_at for step in steps)
    resumes = [at for at in resumes if at >= first]
    spans = [_span(step, now, resumes) for step in steps]
    axis, lanes = _Axis(spans, resumes), _lanes(spans)
    each = min(_LANE, max(_THINNEST, _HIGH // (max(lanes) + 1)))
    most = _HIGH // each
    height = each * min(max(lanes) + 1, most)
    bars = [
        _bar(step, axis.at(start), axis.at(end), (lane % most * each, each), prefix)
        for step, (start, end), lane in zip(steps, spans, lanes, strict=True)
    ]
    return tag(
        "svg",
        [_pause(pause, height) for pause in axis.pauses],
        _labels(axis.pauses, height),
        bars,
        cls="timeline",
        width="100%",
        height=height + 20,
        role="group",
        **{"aria-label": f"timeline of {len(steps)} steps"},
    )


def _span(step: Any, now: float | None, resumes: Sequence[float]) -> tuple[float, float]:
    """Return when a step began and ended; one that was executed again, when it last began."""
    start = float(step.started_at)
    if step.finished_at is None:
        return start, start if now is None else max(start, now)
    end = start + (step.duration or 0.0)
    return max([start, *(at for at in resumes if start < at < end)]), end


def _bar(step: Any, left: float, right: float, lane: tuple[int, int], prefix: str) -> Markup:
    top, height = lane[0], lane[1] - max(1, lane[1] // 5)
    width = max(right - left, _THIN)
    left = min(left, 100 - width)
    took = duration_text(step.duration) or "unfinished"
    tries = f", {step.attempts} tries" if step.attempts > 1 else ""
    label = step.name.rpartition(".")[2]
    room = int(width / _LETTER)
    return tag(
        "a",
        tag(
            "svg",
            tag("title", f"{step.number} {step.name}: {step.status}, {took}{tries}"),
            tag("rect", width="100%", height=height),
            tag("text", label, x=4, y=13) if room >= len(label) and lane[1] == _LANE else None,
            x=f"{left:.2f}%",
            y=top,
            width=f"{width:.2f}%",
            height=height,
            cls=step.status,
        ),
        href=f"#{prefix}s{step.number}",
    )


def _told(pause: Pause) -> str:
    return f"{'down' if pause.down else 'no step'} for {duration_text(pause.seconds)}"


def _pause(pause: Pause, height: int) -> Markup:
    return tag(
        "rect",
        tag("title", _told(pause)),
        x=f"{pause.left:.2f}%",
        width=f"{pause.width:.2f}%",
        height=height,
        cls="down" if pause.down else "idle",
    )


def _labels(pauses: Iterable[Pause], height: int) -> list[Markup]:
    """Return the labels below the times in which the run was down, where they have room."""
    found, last = list[Markup](), -_APART
    for pause in pauses:
        middle = pause.left + pause.width / 2
        if pause.down and middle - last >= _APART:
            last = middle
            anchor = "start" if middle < _APART / 2 else "end" if middle > 100 - _APART / 2 else ""
            where = {"text-anchor": anchor or "middle"}
            found.append(tag("text", _told(pause), x=f"{middle:.2f}%", y=height + 14, **where))
    return found
