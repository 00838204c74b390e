"""The progress of a run, shown live in a notebook or on a terminal.

On a terminal, progress is a line at the bottom of stderr.  The line is erased before anything else
is written to stdout or stderr, and drawn again afterwards.  So the line never appears in the middle
of the program's own output.

In a notebook, progress has a separate output, which does not mix with prints of the cell.  The
output appears only once a run has taken a moment, and finally shows the outcome.  If the kernel
dies, the output stays.  So each version says when it was made, and shows that once no newer version
replaces it.
"""

from __future__ import annotations

import contextvars
import logging
import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from stepwise._display.markup import Markup, markup, tag
from stepwise._display.render import framed, status_of
from stepwise._display.terminal import is_terminal, one_line
from stepwise._runtime import settings
from stepwise._runtime.event import on_event
from stepwise._runtime.messages import count, publisher, reports

if TYPE_CHECKING:
    from stepwise._runtime.event import Event


# -- activity -------------------------------------------------------------------------------------


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
        run_id: id of the run.
        title: the call, to tell several runs apart.
        cell: the activity is a notebook cell: the next step that the run begins.

    Attributes:
        status: ``running`` up to the end; then the outcome.
    """

    def __init__(self, run_id: str, title: str, *, cell: bool = False) -> None:
        self.run_id = run_id
        self.title = title
        self.status = "running"
        self._began = time.monotonic()
        self._cell: int | None = 0 if cell else None  # step number of the cell, 0 until known
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
        """Number of finished steps, and how many of them were skipped as done before."""
        with self._lock:
            executed = sum(each for each, _ in self._counts.values()) - self._before[0]
            skipped = sum(each for _, each in self._counts.values()) - self._before[1]
        return executed + skipped, skipped

    @property
    def calls(self) -> list[str]:
        """The steps that are being executed, newest last."""
        with self._lock:
            return list(self._working.values())

    @property
    def elapsed(self) -> str:
        """Time since the run began in this process, as ``minutes:seconds``."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    @property
    def seconds(self) -> float:
        """Seconds since the run began in this process."""
        return time.monotonic() - self._began


# -- progress terminal ----------------------------------------------------------------------------


_ERASE = "\r\x1b[2K"


class _Through:
    """A stream whose writes clear the progress line first."""

    def __init__(self, stream: Any, line: Line) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write_through(self._stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Line:
    """The progress line of one run.

    Args:
        doing: the activity to show.
        terminal: the stream to draw on.
    """

    tick = 1.0  # seconds

    def __init__(self, doing: Doing, terminal: Any) -> None:
        self._doing = doing
        self._terminal = terminal
        self._drawn = False
        self._midline = False  # the program's own output has an unfinished line
        self._over = False
        self._lock = threading.RLock()
        self._streams: list[tuple[str, Any, _Through]] = []

    def begin(self) -> None:
        """Redirect the program's output through the line."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if is_terminal(stream):
                through = _Through(stream, self)
                self._streams.append((name, stream, through))
                setattr(sys, name, through)

    def end(self) -> None:
        """Erase the line, and restore the streams."""
        with self._lock:
            self._over = True
            self._erase()
        for name, stream, through in self._streams:
            if getattr(sys, name) is through:
                setattr(sys, name, stream)

    def write_through(self, stream: Any, text: str) -> int:
        """Write the program's own output, on a line without the progress display."""
        with self._lock:
            self._erase()
            written: int = stream.write(text)
            if text:
                self._midline = not text.endswith("\n")
            if not self._over:
                stream.flush()
                self._draw()
        return written

    def news(self) -> None:
        """Draw the line again after an event."""
        with self._lock:
            self._erase()
            self._draw()

    def ticked(self) -> None:
        """Draw the line again, with the elapsed time."""
        self.news()

    @reports
    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            self._put(_ERASE)

    @reports
    def _draw(self) -> None:
        if self._midline or self._over:
            return
        self._put(self.text()[: shutil.get_terminal_size().columns - 1])
        self._drawn = True

    def _put(self, text: str) -> None:
        try:
            encoding = getattr(self._terminal, "encoding", None) or "utf-8"
            self._terminal.write(text.encode(encoding, "replace").decode(encoding))
            self._terminal.flush()
        except (OSError, ValueError):  # a closed stream must not affect the run
            self._over = True

    def text(self) -> str:
        """Return the text of the line."""
        done, skipped = self._doing.steps
        parts = [f"stepwise: {count(done, 'step')}"]
        if skipped:
            parts.append(f"{skipped} skipped")
        parts.append(self._doing.elapsed)
        calls = self._doing.calls
        if calls:
            more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
            parts.append(f"{one_line(calls[-1], 200)}{more}")
        return " · ".join(parts)


def is_free_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal that shows no progress line yet."""
    return is_terminal(stream) and not isinstance(stream, _Through)


# -- progress notebook ----------------------------------------------------------------------------


_PATIENCE = 1.0  # seconds until a run is shown
_AGAIN = 1.0  # seconds until the elapsed time is updated
_CALLS, _LONG = 3, 160  # number of calls shown, and characters of each
_logger = logging.getLogger("stepwise")


class Output:
    """The progress output of one run.

    Args:
        doing: the activity to show.
        published: the publisher; kept, since the cell may capture its own outputs.
    """

    tick = 0.1  # seconds

    def __init__(self, doing: Doing, published: Any) -> None:
        self._doing = doing
        self._publisher = published
        self._id = f"stepwise-progress-{os.urandom(8).hex()}"
        self._at = 0.0  # when the last version was made
        self._dirty = self._over = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin without showing anything."""

    def news(self) -> None:
        """Mark the output for the next tick: steps may be faster than a browser."""
        self._dirty = True

    def ticked(self) -> None:
        """Show the new state, if it is due."""
        with self._lock:
            due = self._dirty or time.monotonic() - self._at >= _AGAIN
            if due and not self._over and self._doing.seconds >= _PATIENCE:
                self._publish()

    def end(self) -> None:
        """Show the outcome, if anything was shown."""
        if self._doing.status == "running":
            self._doing.status = "stopped"
        with self._lock:
            self._over = True
            if self._at:
                self._publish()

    def _publish(self) -> None:
        self._dirty = False
        update, self._at = bool(self._at), time.monotonic()
        data = {"text/plain": self.text(), "text/html": self.html()}
        metadata = {"stepwise": "progress"}
        ident = {"display_id": self._id}
        try:
            self._publisher.publish(data, metadata, transient=ident, update=update)
        except Exception:  # a lost connection must not affect the run
            _logger.debug("progress could not be shown", exc_info=True)

    # -- appearance ------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the text for front ends without HTML."""
        calls, told = self._doing.calls, " · ".join(self._facts())
        now = (
            f" · {'; '.join(one_line(each, _LONG) for each in calls[-_CALLS:])}"
            if calls and self._running
            else ""
        )
        as_of = f" ({time.strftime('%H:%M:%S')})" if self._running else ""
        title = one_line(self._doing.title, _LONG)
        return f"stepwise: {title} {self._doing.status} · {told}{now}{as_of}"

    def html(self) -> str:
        """Return the HTML for other front ends."""
        title = one_line(self._doing.title, _LONG)
        facts = tag("small", " · ".join(self._facts()))
        parts = [status_of(self._doing.status), " ", tag("code", title), " ", facts]
        if self._running:
            at = time.strftime("%H:%M:%S")
            parts += [" ", tag("small", f"no news since {at}", cls="late"), *self._calls()]
        return framed(*parts, tables=False)

    def _calls(self) -> list[Markup]:
        calls = [one_line(each, _LONG) for each in self._doing.calls]
        lines = [markup(tag("br"), "→ ", tag("code", each)) for each in calls[-_CALLS:]]
        if len(calls) > _CALLS:
            lines.append(tag("small", f" and {len(calls) - _CALLS} more"))
        return lines

    @property
    def _running(self) -> bool:
        return self._doing.status == "running"

    def _facts(self) -> list[str]:
        done, skipped = self._doing.steps
        facts = [count(done, "step")] if done else []
        if skipped:
            facts.append(f"{skipped} of them skipped, since done before")
        return [*facts, self._doing.elapsed]


# -- progress -------------------------------------------------------------------------------------


class Display:
    """Live display of one run and its child runs.

    Args:
        doing: the activity to show.
        place: a ``Line`` or an ``Output``.
    """

    def __init__(self, doing: Doing, place: Any) -> None:
        self._doing = doing
        self._place = place
        self._over = threading.Event()
        place.begin()
        self._end = on_event(self._hear)
        # The context names the cell that started the thread, so that the thread publishes for that
        # cell.
        run = contextvars.copy_context().run
        name = "stepwise progress"
        threading.Thread(target=run, args=(self._tick,), name=name, daemon=True).start()

    @classmethod
    @reports
    def of(cls, doing: Doing, wanted: bool | None, *, unasked: bool = False) -> Display | None:
        """Return a display of a run, or ``None`` if none is wanted or there is no place for one.

        Args:
            doing: the activity to show.
            wanted: whether to show progress; ``None`` leaves the choice to the settings.
            unasked: show progress in a notebook even if the settings do not choose.
        """
        wanted = settings.progress() if wanted is None else wanted
        if wanted is False or (wanted is None and not unasked):
            return None
        found = publisher()
        if found is not None:
            return cls(doing, Output(doing, found))
        if wanted and is_free_terminal(sys.stderr):
            return cls(doing, Line(doing, sys.stderr))
        return None

    @reports
    def close(self) -> None:
        """End the display."""
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
