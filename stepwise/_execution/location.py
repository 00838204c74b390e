"""The place of a call in the user's code: its line, and its position in the workflow function."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Container, Iterable
from types import CodeType, FrameType

from stepwise._rewrite.source import Place, Points
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import file_name, is_ours

_BETWEEN = ("wrapt", "contextlib", "concurrent.futures")
# Model requests are recorded below the frames of these packages.
_SDKS = (
    *("anthropic", "httpx", "httpx2", "litellm", "openai", "tenacity"),
    *("cohere", "google", "groq", "huggingface_hub", "mistralai", "ollama", "together"),
)
_MAP = "stepwise._calls.parallel"
_LOOPS = ("asyncio.", "threading")
_BELOW = 6  # our frames below any call: from here to driver.start and its two callers
_MANY = 1000  # call sites that a run remembers


class Helper(NamedTuple):
    """A function through which the workflow makes calls, and the workflow's line."""

    code: CodeType
    line: int

    @property
    def place(self) -> str:
        """The name of the function, and where it is defined."""
        code = self.code
        return f"{code.co_name}() ({file_name(code.co_filename)}:{code.co_firstlineno})"


class Origin(NamedTuple):
    """The place of a call.

    Args:
        site: ``file:line`` of the caller.
        place: the workflow's statement, by structure, and the position of the call in it; empty if
            the place is unknown or was not requested.
        directly: True if the workflow's own code makes the call, at most once each time it is
            entered.
        helper: the function through which the workflow makes the call, if any.
    """

    site: str = ""
    place: str = ""
    directly: bool = False
    helper: Helper | None = None


class _Spot(NamedTuple):
    """The constant facts about an instruction that makes calls.

    Args:
        code: the code of the instruction, held so that no other code object gets its id.
        site: ``file:line``.
        place: the workflow's statement, if the instruction is part of one.
        origin: the origin of a call by the workflow's own code here, without its place.
        origin_of_effect: the same origin with the path of the statement and the position of the
            call.
    """

    code: CodeType
    site: str
    place: Place | None
    origin: Origin
    origin_of_effect: Origin


class Locator:
    """A finder of the workflow's statement for the calls of one run.

    Args:
        code: the code of the workflow function, which identifies its frame.
        points: the statements of the function; ``None`` without source.

    Attributes:
        is_ours: True for a graph or a step loop, which has no statements of a user.
    """

    def __init__(self, code: CodeType, points: Points | None) -> None:
        self._code = code
        self.is_ours = is_ours(code.co_filename)
        self._points = points
        self._frame: FrameType | None = None  # the workflow's, as seen from its own flow
        self._waits: FrameType | None = None  # the same, as seen from its tasks and threads
        self._spots: dict[tuple[int, int], _Spot] = {}  # by the id of the code and the instruction
        self._direct: dict[int, _Spot] = {}  # for the workflow's own code, by the instruction

    def origin(self, *, effect: bool, helped: bool) -> Origin:
        """Return the place of the current call.

        Args:
            effect: True to find the place, too; without it, this is cheap.
            helped: True to find the helper, too.
        """
        nearest = sys._getframe(_BELOW)
        spot = self._direct_spot(nearest) if nearest.f_code is self._code else None
        if spot is not None:  # almost always
            self._frame = nearest if effect else self._frame
            return spot.origin_of_effect if effect else spot.origin
        caller, mapped = _caller(nearest)
        site = self._site(caller)
        if not effect and (not helped or (caller is not None and caller.f_code is self._code)):
            return Origin(site)
        frame, helper = self._below(caller)
        if mapped or not helped:
            helper = None
        if not effect:
            return Origin(site, helper=helper)
        if frame is not None:
            self._frame = frame
        else:  # in another task or thread: use the statement at which the workflow waits
            frame = self._frame
        spot = self._spot(frame) if frame is not None else None
        if spot is None or spot.place is None:
            return Origin(site, helper=helper)
        if caller is not frame:
            return Origin(site, spot.place.path, helper=helper)
        path, once = spot.origin_of_effect.place, spot.place.once
        return Origin(site, path, once and not mapped, helper)

    def _direct_spot(self, frame: FrameType) -> _Spot | None:
        """Return the spot of the workflow's frame, or ``None`` if the frame is inside an SDK."""
        spot = self._direct.get(frame.f_lasti)
        if spot is None and _caller(frame, _SDKS)[0] is frame:
            spot = self._direct[frame.f_lasti] = self._spot(frame)
        return spot

    def _below(self, caller: FrameType | None) -> tuple[FrameType | None, Helper | None]:
        """Return the workflow's frame, and the user's function through which it makes a call.

        A helper is found only if the workflow's frame is below: the statement that waits for
        another task or thread did not call the code in it.  Comprehensions and lambdas are part of
        a statement.  A function of an installed package does not count, since users cannot decorate
        it.
        """
        frame, outer = caller, None
        while frame is not None and frame.f_code is not self._code:
            if not frame.f_code.co_name.startswith("<"):
                outer = frame.f_code
            frame = frame.f_back
        if frame is None or outer is None or "-packages" in outer.co_filename:
            return frame, None
        return frame, Helper(outer, frame.f_lineno or 0)

    def _site(self, caller: FrameType | None) -> str:
        """Return ``file:line`` of a caller above the SDKs, or of the workflow if there is none."""
        frame = _caller(caller, _SDKS)[0] or self._frame
        return self._spot(frame).site if frame is not None else ""

    def _spot(self, frame: FrameType) -> _Spot:
        code = frame.f_code
        here = id(code), frame.f_lasti
        spot = self._spots.get(here)
        if spot is None:
            if len(self._spots) >= _MANY:  # code that is compiled repeatedly
                self._spots.clear()
            line = frame.f_lineno
            place = None
            if code is self._code and self._points is not None and line is not None:
                place = self._points.at(line)
            site = f"{file_name(code.co_filename)}:{line}"
            origin = whole = Origin(site)
            if place is not None:
                path = f"{place.path}@{line - place.line}:{_column(frame)}"
                whole = Origin(site, path, place.once)
            spot = self._spots[here] = _Spot(code, site, place, origin, whole)
        return spot

    def waiting_at(self, frames: Iterable[FrameType]) -> str:
        """Return ``file:line`` of the statement at which the workflow waits for tasks or threads.

        Only people use it, for plain calls.  Effects are matched by site and place: if those of one
        ``gather`` were at its statement, each could be the other one with a new name.

        Args:
            frames: the frames of the workflow's own flow of control.
        """
        if self._waits is None:
            self._waits = next((each for each in frames if each.f_code is self._code), None)
        return self._site(self._waits) if self._waits is not None else ""

    def close(self) -> None:
        """Release the workflow's frame."""
        self._frame = self._waits = None


def _caller(
    frame: FrameType | None, packages: Container[str] = ()
) -> tuple[FrameType | None, bool]:
    """Return the user's nearest frame, and whether ``stepwise.map`` makes the call for it.

    The frame is ``None`` if only an event loop is below.

    Args:
        frame: the first frame to examine.
        packages: whose frames are left out, too.
    """
    mapped = False
    while frame is not None:
        module = f"{frame.f_globals.get('__name__', '')}"
        inside = module.startswith(_BETWEEN) or module.partition(".")[0] in packages
        if not (inside or is_ours(frame.f_code.co_filename)):
            return (None if module.startswith(_LOOPS) else frame), mapped
        mapped = mapped or module == _MAP
        frame = frame.f_back
    return None, mapped


def _column(frame: FrameType) -> str:
    """Return a text that distinguishes two calls on one line, as well as this Python can."""
    code, at = frame.f_code, frame.f_lasti
    if sys.version_info >= (3, 11):
        for position in itertools.islice(code.co_positions(), at // 2, None):
            return f"{position[2]}"
    starts = [offset for offset, _ in dis.findlinestarts(code) if offset <= at]
    return f"+{at - starts[-1]}" if starts else ""
