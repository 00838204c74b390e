"""Where in the user's code a call is made: its line, and its place in the workflow function.

Imports: rewrite, notices.
"""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import NamedTuple

from stepwise._notices import file_name
from stepwise.rewrite import Points

__all__ = ["Helper", "Locator", "Origin"]

_OURS = ("stepwise._", "wrapt", "contextlib", "concurrent.futures")


@dataclass(frozen=True)
class Origin:
    """Where a call is made from.

    Args:
        site: ``file:line`` of the caller.
        place: the workflow's statement, by structure, and the position of the call in it; empty if
            it is not known.
        directly: the workflow's own code makes the call, and at most once each time it is entered.
    """

    site: str = ""
    place: str = ""
    directly: bool = False


class Helper(NamedTuple):
    """A function that the workflow calls, which makes calls, and the workflow's line."""

    code: CodeType
    line: int

    @property
    def place(self) -> str:
        """Its name and where it is defined."""
        code = self.code
        return f"{code.co_name}() ({file_name(code.co_filename)}:{code.co_firstlineno})"


class Locator:
    """Finds the workflow's statement for the calls of one run.

    Args:
        code: of the workflow function, by which its frame is known.
        points: its statements; ``None`` without source.
    """

    def __init__(self, code: CodeType, points: Points | None) -> None:
        self._code = code
        self._points = points
        self._frame: FrameType | None = None  # the workflow's, seen from its own flow of control

    def site(self) -> str:
        """``file:line`` of the code that makes a call: cheap, for every call."""
        frame = _caller() or self._frame
        return _site(frame) if frame is not None else ""

    def helper(self) -> Helper | None:
        """The user's function through which the workflow makes a call, if it is not its own code.

        Only where the workflow's frame is below: what runs in another task or thread was not called
        by the statement that waits for it.  Comprehensions and lambdas are part of a statement; a
        function of an installed package is nothing that a user could decorate.
        """
        frame, outer = _caller(), None
        while frame is not None and frame.f_code is not self._code:
            if not frame.f_code.co_name.startswith("<"):
                outer = frame.f_code
            frame = frame.f_back
        if frame is None or outer is None or "-packages" in outer.co_filename:
            return None
        return Helper(outer, frame.f_lineno or 0)

    def origin(self) -> Origin:
        """Everything about where a call is made."""
        caller = _caller()
        frame = caller
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        if frame is not None:
            self._frame = frame
        else:  # in another task or thread: the statement at which the workflow waits
            frame = self._frame
        nearest = caller or frame
        site = _site(nearest) if nearest is not None else ""
        line = frame.f_lineno if frame is not None else None
        if frame is None or line is None or self._points is None:
            return Origin(site)
        place = self._points.at(line)
        if place is None:
            return Origin(site)
        directly = caller is frame and place.once and not _by_map()
        spot = f"@{line - place.line}:{_column(frame)}" if caller is frame else ""
        return Origin(site, place.path + spot, directly)

    def close(self) -> None:
        """Let go of the workflow's frame."""
        self._frame = None


def _caller() -> FrameType | None:
    """The nearest frame that is not ours; ``None`` where only an event loop is below."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    if frame is None or _module(frame).startswith(("asyncio.", "threading")):
        return None
    return frame


def _by_map() -> bool:
    """Whether ``stepwise.map`` makes the call, one of many at its place."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _module(frame).startswith(_OURS):
        if _module(frame) == "stepwise._map":
            return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _site(frame: FrameType) -> str:
    return f"{file_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def _column(frame: FrameType) -> str:
    """What tells two calls on one line apart; as good as the Python version allows."""
    code, at = frame.f_code, frame.f_lasti
    if sys.version_info >= (3, 11):
        for index, position in enumerate(code.co_positions()):
            if index == at // 2:
                return f"{position[2]}"
    starts = [offset for offset, _ in dis.findlinestarts(code) if offset <= at]
    return f"+{at - starts[-1]}" if starts else ""
