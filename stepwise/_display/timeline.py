"""The timeline of a run: a bar for each step, child runs beneath, pauses cut short.

A bar is an HTML element; its position is a percentage of the page's width, in the page's one style
element.  Steps that ran at one time are in lanes of their own.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stepwise._display.markup import Markup, Rules, tag
from stepwise._display.terminal import duration_text
from stepwise._runtime.facts import NamedTuple

_GAP = 4.0  # percent: the maximum for a pause
_THIN = 0.4  # percent: the minimum for a step; a shorter pause is not drawn
_LANE, _THINNEST = 22, 8  # pixels
_HIGH = 528  # pixels that many lanes share
_LETTER = 0.85  # percent of the width for a letter of a label, about
_APART = 20.0  # percent between two labels
_EDGE = 24.0  # percent: the half of a label, on the narrowest page


class Pause(NamedTuple):
    """A time in which no step ran.

    Args:
        left, width: the place of the pause, in percent.
        seconds: its real length.
        down: no process executed the run for a part of the pause.
    """

    left: float
    width: float
    seconds: float
    down: bool


class _Axis:
    """Mapping of moments to percentages, in which pauses between steps are cut short.

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
                first, _, lost, _ = pauses.pop()  # resumed, and killed before any step
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
        """Return the place of a moment of a step, in percent."""
        start, offset = self._pieces[bisect.bisect(self._pieces, (moment, math.inf)) - 1]
        return (offset + (moment - start)) * self._scale


def placed(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the offset and the length of each span, in percent."""
    axis = _Axis(spans, ()) if spans else None
    return [(axis.at(start), axis.at(end) - axis.at(start)) for start, end in spans if axis]


def _lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return a lane for each span, so that spans in one lane do not overlap."""
    busy: list[tuple[float, int]] = []  # when each lane becomes free
    free: list[int] = []
    found: dict[int, int] = {}
    for number, (start, end) in sorted(enumerate(spans), key=lambda pair: pair[1]):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        found[number] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, found[number]))
    return [found[number] for number in range(len(spans))]


class RunBars(NamedTuple):
    """The steps of one run in a timeline.

    Args:
        label: the name of a child run; empty for the run itself.
        steps: the steps.
        link: returns the address of the entry of a step, given its number.
        begun: the number of the record that began the last attempt, which answered older steps; 0
            if there was one attempt only.
        chosen: the number of the step that the page shows in full; 0 for none.
    """

    label: str
    steps: Sequence[Any]
    link: Callable[[int], str]
    begun: int = 0
    chosen: int = 0


def timeline(
    groups: Sequence[RunBars], now: float | None, resumes: Sequence[float], rules: Rules
) -> Markup:
    """Draw the steps of a run and of its child runs on one axis; each step links to its entry.

    Args:
        groups: the run, then its child runs.
        now: the end of unfinished steps; ``None`` if the run is not being executed, so that the
            length of such steps is unknown.
        resumes: when the run was resumed.
        rules: takes the positions.
    """
    groups = [each for each in groups if each.steps]
    if not groups:
        return Markup()
    first = min(step.started_at for step in groups[0].steps)
    resumes = [at for at in resumes if at >= first]
    spans = [[_span(step, now, resumes) for step in each.steps] for each in groups]
    axis = _Axis(itertools.chain(*spans), resumes)
    drawn = [
        _group(group, [(axis.at(a), axis.at(b)) for a, b in theirs], _lanes(theirs), rules)
        for group, theirs in zip(groups, spans, strict=True)
    ]
    deaths = [tag("i", cls=f"death {rules.at(left=f'{axis.at(at):.2f}%')}") for at in resumes]
    total = sum(len(each.steps) for each in groups)
    return tag(
        "div",
        tag(
            "div",
            [_pause(pause, rules) for pause in axis.pauses],
            deaths,
            drawn,
            cls="lanes",
        ),
        _labels(axis.pauses, rules),
        tag("small", "pauses are shortened") if axis.pauses else None,
        cls="timeline",
        role="group",
        aria_label=f"timeline of {total} steps",
    )


def _group(
    group: RunBars, spans: Sequence[tuple[float, float]], lanes: Sequence[int], rules: Rules
) -> Markup:
    each = min(_LANE, max(_THINNEST, _HIGH // (max(lanes) + 1)))
    most = _HIGH // each
    bars = [
        _bar(group, step, span, (lane % most * each, each), rules)
        for step, span, lane in zip(group.steps, spans, lanes, strict=True)
    ]
    height = rules.at(height=f"{each * min(max(lanes) + 1, most)}px")
    label = tag("small", group.label) if group.label else None
    kind = "group child" if group.label else "group"
    return tag("div", label, tag("div", bars, cls=f"bars {height}"), cls=kind)


def _span(step: Any, now: float | None, resumes: Sequence[float]) -> tuple[float, float]:
    """Return when a step began and ended; for a repeated step, its last beginning."""
    start = float(step.started_at)
    if step.finished_at is None:
        return start, start if now is None else max(start, now)
    end = start + (step.duration or 0.0)
    return max([start, *(at for at in resumes if start < at < end)]), end


def _bar(
    group: RunBars, step: Any, span: tuple[float, float], lane: tuple[int, int], rules: Rules
) -> Markup:
    left, right = span
    top, height = lane[0], lane[1] - max(1, lane[1] // 5)
    width = max(right - left, _THIN)
    left = min(left, 100 - width)
    took = duration_text(step.duration) or "unfinished"
    tries = f", {step.attempts} tries" if step.attempts > 1 else ""
    answered = did(step, group.begun) == "skipped"
    told = f"{step.number} {step.name}: {step.status}, {took}{tries}"
    call = step._entry.call
    waits = step.status == "waiting" or (call is not None and call.is_wait)
    kinds = [
        "bar",
        step.status,
        "answered" if answered else "",
        "wait" if waits else "",
        "again" if step.attempts > 1 else "",
        rules.at(left=f"{left:.2f}%", width=f"{width:.2f}%", top=f"{top}px", height=f"{height}px"),
    ]
    name = step.name.rpartition(".")[2]
    return tag(
        "a",
        tag("span", name) if int(width / _LETTER) >= len(name) and lane[1] == _LANE else None,
        href=group.link(step.number),
        cls=" ".join(filter(None, kinds)),
        title=f"{told}, answered by the journal" if answered else told,
        aria_label=told,
        aria_current="step" if step.number == group.chosen else None,
    )


def did(step: Any, begun: int) -> str:
    """Return the status of a step; ``skipped`` if it was done before the last attempt began."""
    if step.status == "completed" and begun and step._entry.number < begun:
        return "skipped"
    return str(step.status)


def _told(pause: Pause) -> str:
    took = duration_text(pause.seconds)
    return f"resumed after {took}" if pause.down else f"no step for {took}"


def _pause(pause: Pause, rules: Rules) -> Markup:
    place = rules.at(left=f"{pause.left:.2f}%", width=f"{pause.width:.2f}%")
    return tag("i", cls=f"{'down' if pause.down else 'idle'} {place}", title=_told(pause))


def _labels(pauses: Iterable[Pause], rules: Rules) -> Markup:
    """Return the labels of the times in which the run was down, where there is room."""
    found, last = list[Markup](), -_APART
    for pause in pauses:
        middle = pause.left + pause.width / 2
        if pause.down and middle - last >= _APART:
            last = middle
            side = "start" if middle < _EDGE else "end" if middle > 100 - _EDGE else ""
            place = rules.at(left=f"{middle:.2f}%")
            found.append(tag("small", _told(pause), cls=f"label {side} {place}"))
    return tag("div", found, cls="labels") if found else Markup()
