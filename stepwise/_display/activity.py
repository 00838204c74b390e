"""The current activity of a run, derived from its events, for progress displays."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwise._runtime.event import Event

__all__ = ["Doing"]

_ENDS = {
    "run_completed": "completed",
    "run_failed": "failed",
    "run_interrupted": "interrupted",
    "run_stopped": "stopped",
    "run_suspended": "suspended",
    "step_completed": "completed",
    "step_failed": "failed",
}


class Doing:
    """The current activity of a run and its child runs.

    Args:
        title: the call, for who sees several of them.
        cell: it is a cell of a notebook, which is the first step that its run begins from now on.

    Attributes:
        status: ``running`` up to the end; then how that was.
    """

    def __init__(self, run_id: str, title: str, *, cell: bool = False) -> None:
        self.run_id = run_id
        self.title = title
        self.status = "running"
        self._began = time.monotonic()
        self._cell: int | None = 0 if cell else None  # its step number, 0 until it is known
        self._before = 0, 0  # totals of the notebook's run before the cell
        self._counts: dict[str, tuple[int, int]] = {}
        self._working: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()

    def hear(self, event: Event) -> bool:
        """Process an event; return whether it belongs to this run or its child runs."""
        own = event.run_id == self.run_id
        if not own and not event.run_id.startswith(f"{self.run_id}/"):
            return False
        with self._lock:
            if own and self._cell is not None and self._cell in (0, event.step):
                self._hear_of_cell(event)
                return True
            here = event.run_id, event.step
            if event.kind in ("step_started", "step_waiting"):
                self._working[here] = f"{event.name}({event.arguments})"
            elif event.kind.startswith("step"):
                self._working.pop(here, None)
            elif own and self._cell is not None:
                return True  # an event of the notebook's run, which contains the cell
            elif own:
                self.status = _ENDS.get(event.kind, self.status)
            self._counts[event.run_id] = event.executed, event.skipped
        return True

    def _hear_of_cell(self, event: Event) -> None:
        if event.kind == "step_started":
            self._cell = event.step
            self._before = self._counts[self.run_id] = event.executed, event.skipped
        elif event.kind.startswith("step") and event.kind != "step_waiting":
            self.status = _ENDS.get(event.kind, "stopped")

    @property
    def steps(self) -> tuple[int, int]:
        """Return the number of done steps, and how many of them were skipped as done before."""
        with self._lock:
            executed = sum(each for each, _ in self._counts.values()) - self._before[0]
            skipped = sum(each for _, each in self._counts.values()) - self._before[1]
        return executed + skipped, skipped

    @property
    def calls(self) -> list[str]:
        """The steps that are being executed, the newest last."""
        with self._lock:
            return list(self._working.values())

    @property
    def elapsed(self) -> str:
        """Since it began in this process, as ``minutes:seconds``."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return time.monotonic() - self._began
