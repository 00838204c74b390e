"""The timeline of a run: a bar for each attempt of a step, child runs beneath, pauses cut short.

A bar is an HTML element; its position is a percentage of the page's width, in the page's one style
element.  Steps that ran at one time are in lanes of their own.  What a step waited for, a person or
its next attempt, is no bar of its own time, and is cut short where no step ran.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwise._display.markup import Markup, Rules, tag
from stepwise._display.words import (
    attempt_text,
    before_text,
    cached_text,
    duration_text,
    ended_text,
    is_waiting,
    took_text,
)
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count

_GAP = 4.0  # percent: the maximum for a pause
_THIN = 0.4  # percent: the minimum for a step; a shorter pause is not drawn
_LANE, _THINNEST = 22, 8  # pixels
_HIGH = 528  # pixels that many lanes share
_LETTER = 0.85  # percent of the width for a letter of a label, about
_LABEL = 20.0  # percent: the width of a label, about
_EARLIER = 80  # attempts that are drawn, beside the last one of each step


class Pause(NamedTuple):
    """A time in which no step ran.

    Args:
        left, width: the place of the pause, in percent.
        seconds: its real length.
        end: how the attempt ended that was resumed after the pause; empty if unknown; ``None`` if
            one attempt goes on.
    """

    left: float
    width: float
    seconds: float
    end: str | None

    @property
    def told(self) -> str:
        """The pause in words."""
        took = duration_text(self.seconds)
        if self.end is None:
            return f"no step for {took}"
        resumed = f"{'begun' if self.end == 'submitted' else 'resumed'} after {took}"
        return f"{ended_text(self.end)}, {resumed}" if self.end else resumed


class _Axis:
    """Mapping of moments to percentages, in which pauses between steps are cut short.

    Args:
        spans: start and end of each time in which a step ran, in seconds since 1970.
        resumes: when the run was resumed, and how the attempt before had ended.
    """

    def __init__(self, spans: Iterable[tuple[float, float]], resumes: Mapping[float, str]) -> None:
        busy: list[list[float]] = []
        for start, end in sorted([*spans, *((at, at) for at in resumes)]):
            if busy and start <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], end)
            else:
                busy.append([start, end])
        total = sum(end - start for start, end in busy)
        most = _GAP / 100 * (total or 1.0)
        self._pieces: list[tuple[float, float, float]] = []  # start, offset, scale
        pauses: list[tuple[float, float, float, str | None]] = []
        offset = 0.0
        for (_, before), (start, end) in itertools.pairwise([[0.0, busy[0][0]], *busy]):
            seconds, down = start - before, resumes.get(start)
            width = min(seconds, most)
            resumed = down is not None
            if resumed and pauses and pauses[-1][3] is not None and sum(pauses[-1][:2]) == offset:
                first, _, lost, _ = pauses.pop()  # resumed, and killed before any step
                pauses.append((first, offset - first + width, seconds + lost, down))
            elif seconds:
                pauses.append((offset, width, seconds, down))
                self._pieces.append((before, offset, width / seconds))
            offset += width
            self._pieces.append((start, offset, 1.0))
            offset += end - start
        self._scale = 100 / (offset or 1.0)
        self.pauses = [
            Pause(left * self._scale, width * self._scale, seconds, down)
            for left, width, seconds, down in pauses
            if down is not None or width * self._scale >= _THIN
        ]

    def at(self, moment: float) -> float:
        """Return the place of a moment, in percent."""
        found = bisect.bisect(self._pieces, (moment, math.inf)) - 1
        start, offset, scale = self._pieces[max(0, found)]
        return (offset + max(0.0, moment - start) * scale) * self._scale


def placed(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the offset and the length of each span, in percent."""
    axis = _Axis(spans, {}) if spans else None
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


class _Stretch(NamedTuple):
    """A part of a step's time: an attempt, or a wait.

    Args:
        start, end: in seconds since 1970.
        kind: ``own`` for the last attempt; ``waits`` for a step that only waits; ``wait`` for a
            person; ``rest`` before the next attempt; for an earlier attempt, its status.
        told: the part in words; empty for ``own`` and ``waits``, which have the words of the step.
    """

    start: float
    end: float
    kind: str
    told: str = ""

    @property
    def is_whole(self) -> bool:
        """True if the part stands for the step."""
        return self.kind in ("own", "waits")

    @property
    def moments(self) -> list[tuple[float, float]]:
        """The times in which the step ran; waits are points, so that they can be cut short."""
        idle = self.kind in ("waits", "wait", "rest")
        return [(at, at) for at in self[:2]] if idle else [(self.start, self.end)]


def timeline(
    groups: Sequence[RunBars],
    now: float | None,
    resumes: Sequence[tuple[float, str]],
    rules: Rules,
) -> Markup:
    """Draw the steps of a run and of its child runs on one axis; each step links to its entry.

    Args:
        groups: the run, then its child runs.
        now: the end of unfinished steps; ``None`` if the run is not being executed, so that the
            length of such steps is unknown.
        resumes: when the run was resumed, and how the attempt before had ended.
        rules: takes the positions.
    """
    groups = [each for each in groups if each.steps]
    if not groups:
        return Markup()
    first = min(step.started_at for step in groups[0].steps)
    ends = {at: end for at, end in resumes if at >= first}
    retried = sum(step.attempts > 1 for each in groups for step in each.steps)
    most = 1 + _EARLIER // max(1, retried)
    parts = [[_parts(step, now, ends, most) for step in each.steps] for each in groups]
    moments = [each.moments for theirs in parts for step in theirs for each in step]
    axis = _Axis(itertools.chain(*moments), ends)
    drawn = [
        _group(group, theirs, axis, rules) for group, theirs in zip(groups, parts, strict=True)
    ]
    legend = "; ".join(_legend(axis, ends.values()))
    total = sum(len(each.steps) for each in groups)
    return tag(
        "div",
        tag(
            "div",
            [_pause(pause, rules) for pause in axis.pauses],
            [_cut(end, axis.at(at), rules) for at, end in ends.items()],
            drawn,
            cls="lanes",
        ),
        _labels(axis.pauses, rules),
        tag("small", legend) if legend else None,
        cls="timeline",
        role="group",
        aria_label=f"timeline of {count(total, 'step')}",
    )


def _group(
    group: RunBars, parts: Sequence[Sequence[_Stretch]], axis: _Axis, rules: Rules
) -> Markup:
    lanes = _lanes([(each[0].start, each[-1].end) for each in parts])
    each = min(_LANE, max(_THINNEST, _HIGH // (max(lanes) + 1)))
    most = _HIGH // each
    bars = [
        _bar(
            group, step, part, (axis.at(part.start), axis.at(part.end)), (lane % most, each), rules
        )
        for step, theirs, lane in zip(group.steps, parts, lanes, strict=True)
        for part in theirs
    ]
    height = rules.at(height=f"{each * min(max(lanes) + 1, most)}px")
    label = tag("small", group.label) if group.label else None
    kind = "group child" if group.label else "group"
    return tag("div", label, tag("div", bars, cls=f"bars {height}"), cls=kind)


def _parts(
    step: Any, now: float | None, resumes: Iterable[float] = (), most: int = 1
) -> list[_Stretch]:
    """Return the parts of a step's time, oldest first; the last one stands for the step.

    Args:
        step, now, resumes: see :func:`timeline`.
        most: the number of attempts that have parts of their own.
    """
    begun, end = float(step.started_at), step.finished_at
    if is_waiting(step):
        return [_Stretch(begun, max(begun, end or now or begun), "waits")]
    found: list[_Stretch] = []
    tries = step.tries[-most:] if step.attempts > 1 else ()
    start = begun + step.waited
    if step.waited:
        found.append(_Stretch(begun, start, "wait", f"waited {duration_text(step.waited)}"))
    if tries and tries[0].number > 1:
        told = before_text(tries[0])
        found.append(_Stretch(start, max(start, tries[0].started_at), "rest", told))
    for one, other in itertools.pairwise(tries):
        over = max(one.started_at, one.finished_at or one.started_at)  # clocks are set back
        found.append(_Stretch(one.started_at, over, one.status, attempt_text(one)))
        told = f"next attempt after {duration_text(max(0.0, other.started_at - over))}"
        found.append(_Stretch(over, max(over, other.started_at), "rest", told))
    if tries:
        start = tries[-1].started_at
    elif end is not None:
        start = end - (step.duration or 0.0)
        start = max([start, *(at for at in resumes if start < at < end)])
    return [*found, _Stretch(start, max(start, end or now or start), "own")]


def last_span(step: Any, now: float) -> tuple[float, float]:
    """Return when the last attempt of a step, or its wait, began and ended."""
    return _parts(step, now)[-1][:2]


def _bar(
    group: RunBars,
    step: Any,
    part: _Stretch,
    span: tuple[float, float],
    lane: tuple[int, int],
    rules: Rules,
) -> Markup:
    (left, right), (number, high) = span, lane
    idle = part.kind in ("wait", "rest")
    width = max(right - left, 0.0 if idle else _THIN)
    place = rules.at(
        left=f"{min(left, 100 - width):.2f}%",
        width=f"{width:.2f}%",
        top=f"{number * high}px",
        height=f"{high - max(1, high // 5)}px",
    )
    if idle:
        return tag("i", cls=f"gap {part.kind} {place}", title=part.told)
    answered = did(step, group.begun) == "skipped"
    told = f"{step.number} {step.name}: {part.told}"
    if part.is_whole:
        told = _told(step) + ", answered by the journal" * answered
    kinds = [
        "bar",
        step.status if part.is_whole else f"try {part.kind}",
        "answered" if answered else "",
        "wait" if part.kind == "waits" else "",
        place,
    ]
    name = step.name.rpartition(".")[2]
    fits = part.is_whole and int(width / _LETTER) >= len(name) and high == _LANE
    return tag(
        "a",
        tag("span", name) if fits else None,
        href=group.link(step.number),
        cls=" ".join(filter(None, kinds)),
        title=told,
        aria_label=told,
        aria_current="step" if part.is_whole and step.number == group.chosen else None,
    )


def _told(step: Any) -> str:
    """Return a step in words: its status, its own time, its attempts and its waits."""
    tries = f", {step.attempts} tries" if step.attempts > 1 else ""
    answered = f", {made}" if (made := cached_text(step)) else ""
    took = took_text(step) or "unfinished"
    return f"{step.number} {step.name}: {step.status}, {took}{tries}{answered}"


def did(step: Any, begun: int) -> str:
    """Return the status of a step; ``skipped`` if it was done before the last attempt began."""
    if step.status == "completed" and begun and step._entry.number < begun:
        return "skipped"
    return str(step.status)


def _pause(pause: Pause, rules: Rules) -> Markup:
    place = rules.at(left=f"{pause.left:.2f}%", width=f"{pause.width:.2f}%")
    kind = "idle" if pause.end is None else "down" if pause.end == "died" else "down calm"
    return tag("i", cls=f"{kind} {place}", title=pause.told)


_LINES = {"died": ("death", "solid"), "suspended": ("sleep", "dotted")}
_LINE = "stop", "dashed"


def _cut(end: str, left: float, rules: Rules) -> Markup:
    """Return the line where one attempt of a run had ended and the next one began."""
    told = f"{ended_text(end)}, then resumed" if end else "resumed"
    place = rules.at(left=f"{left:.2f}%")
    return tag("i", cls=f"cut {_LINES.get(end, _LINE)[0]} {place}", title=told)


def _legend(axis: _Axis, ends: Iterable[str]) -> list[str]:
    """Return in words what the lines of the resumes mean, and that pauses are shortened."""
    told: dict[str, list[str]] = {}
    for end in sorted({*ends}):
        told.setdefault(_LINES.get(end, _LINE)[1], []).append(ended_text(end) or "resumed")
    lines = [f"{style} line: {' or '.join(words)}" for style, words in told.items()]
    return [*lines, *(["pauses are shortened"] if axis.pauses else [])]


def _labels(pauses: Iterable[Pause], rules: Rules) -> Markup:
    """Return the labels of the times in which the run was down, where there is room."""
    found, taken = list[Markup](), -_LABEL
    for pause in pauses:
        middle = pause.left + pause.width / 2
        # As much of the label is left of its pause as of the page, whose edges it never leaves.
        begin = middle - _LABEL * middle / 100
        if pause.end is not None and begin >= taken:
            taken = begin + _LABEL
            place = rules.at(left=f"{middle:.2f}%", transform=f"translateX(-{middle:.2f}%)")
            found.append(tag("small", pause.told, cls=f"label {place}"))
    return tag("div", found, cls="labels") if found else Markup()
