"""The progress of a run, shown live in a notebook or on a terminal."""

from __future__ import annotations

import contextvars
import sys
import threading
from typing import TYPE_CHECKING, Protocol

from stepwise._display.activity import Doing
from stepwise._runtime import settings
from stepwise._runtime.listening import on_event
from stepwise._runtime.messages import publisher, reports

if TYPE_CHECKING:
    from stepwise._runtime.event import Event

__all__ = ["Display"]


class Screen(Protocol):
    """The place that shows the progress."""

    tick: float

    def begin(self) -> None:
        """Get ready."""

    def news(self) -> None:
        """React to an event; its sender waits for this call."""

    def ticked(self) -> None:
        """React to the timer, every ``tick`` seconds, in a separate thread."""

    def end(self) -> None:
        """End the display."""


class Display:
    """Shows one run, and its child runs.

    Args:
        doing: what is shown.
        place: where.
    """

    def __init__(self, doing: Doing, place: Screen) -> None:
        self._doing = doing
        self._place = place
        self._over = threading.Event()
        place.begin()
        self._end = on_event(self._hear)
        # The context names the cell that started the thread; the thread publishes for that cell.
        run = contextvars.copy_context().run
        name = "stepwise progress"
        threading.Thread(target=run, args=(self._tick,), name=name, daemon=True).start()

    @classmethod
    @reports
    def of(cls, doing: Doing, wanted: bool | None, *, unasked: bool = False) -> Display | None:
        """One of a run, if it is wanted, and there is a place for it.

        Args:
            wanted: whether it is; ``None`` if only the environment says so.
            unasked: show it in a notebook even if nobody says anything.
        """
        wanted = settings.progress() if wanted is None else wanted
        if wanted is False or (wanted is None and not unasked):
            return None
        from stepwise._display.progress_notebook import Output
        from stepwise._display.progress_terminal import Line, is_free_terminal

        found = publisher()
        if found is not None:
            return cls(doing, Output(doing, found))
        if wanted and is_free_terminal(sys.stderr):
            return cls(doing, Line(doing, sys.stderr))
        return None

    @reports
    def close(self) -> None:
        """End it."""
        self._end()
        self._over.set()
        self._place.end()

    def _hear(self, event: Event) -> None:
        if self._doing.hear(event):
            self._place.news()

    @reports
    def _tick(self) -> None:
        while not self._over.wait(self._place.tick):
            self._place.ticked()
