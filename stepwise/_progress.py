"""A line at the bottom of the terminal that says what a run is doing.

The line is erased before anything else is written to stdout or stderr and drawn again after it, so
that it never stands in the middle of the program's own output.  It is drawn on stderr, and only if
that is a terminal.  Imports: events, notices, settings, display.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stepwise import _config
from stepwise._display import printable
from stepwise._events import Event, on_event
from stepwise._notices import count

__all__ = ["Display"]

_ERASE = "\r\x1b[2K"
_TICK = 1.0  # seconds


class _Through:
    """A stream whose writer has the line out of the way."""

    def __init__(self, stream: Any, display: Display) -> None:
        self._stream = stream
        self._display = display

    def write(self, text: str) -> int:
        return self._display.write_through(self._stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Display:
    """The line of one run, and of its child runs.

    Args:
        terminal: the stream to draw on.
    """

    def __init__(self, run_id: str, terminal: Any) -> None:
        self._run_id = run_id
        self._terminal = terminal
        self._began = time.monotonic()
        self._working: dict[tuple[str, int], str] = {}
        self._done = self._skipped = 0
        self._drawn = False
        self._midline = False  # the program's own output stands in the middle of a line
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._end: Callable[[], None] = lambda: None
        self._streams: list[tuple[str, Any, _Through]] = []

    @classmethod
    def of(cls, run_id: str, wanted: bool | None) -> Display | None:
        """One for a run, if it is wanted and there is a terminal that shows none yet."""
        if not (_config.progress() if wanted is None else wanted):
            return None
        if not _is_terminal(sys.stderr) or isinstance(sys.stderr, _Through):
            return None
        display = cls(run_id, sys.stderr)
        display.open()
        return display

    def open(self) -> None:
        """Begin to draw."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if _is_terminal(stream):
                through = _Through(stream, self)
                self._streams.append((name, stream, through))
                setattr(sys, name, through)
        self._end = on_event(self._hear)
        threading.Thread(target=self._tick, name="stepwise progress", daemon=True).start()

    def close(self) -> None:
        """Erase the line, and give the streams back."""
        self._end()
        self._over.set()
        with self._lock:
            self._erase()
        for name, stream, through in self._streams:
            if getattr(sys, name) is through:
                setattr(sys, name, stream)

    def write_through(self, stream: Any, text: str) -> int:
        """What the program writes, on a line without ours."""
        with self._lock:
            self._erase()
            written: int = stream.write(text)
            if text:
                self._midline = not text.endswith("\n")
            if not self._over.is_set():
                stream.flush()
                self._draw()
        return written

    def _hear(self, event: Event) -> None:
        if event.run_id != self._run_id and not event.run_id.startswith(f"{self._run_id}/"):
            return
        here = event.run_id, event.step
        with self._lock:
            if event.kind == "step_started":
                self._working[here] = f"{event.name}({event.arguments})"
            elif event.kind.startswith("step"):
                self._working.pop(here, None)
            if event.run_id == self._run_id:
                self._done, self._skipped = event.executed + event.skipped, event.skipped
            self._erase()
            self._draw()

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            with self._lock:
                self._erase()
                self._draw()

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            self._put(_ERASE)

    def _draw(self) -> None:
        if self._midline or self._over.is_set():
            return
        self._put(self.text()[: shutil.get_terminal_size().columns - 1])
        self._drawn = True

    def _put(self, text: str) -> None:
        try:
            encoding = getattr(self._terminal, "encoding", None) or "utf-8"
            self._terminal.write(text.encode(encoding, "replace").decode(encoding))
            self._terminal.flush()
        except (OSError, ValueError):  # it was closed: the run is not to suffer from that
            self._over.set()

    def text(self) -> str:
        """The line."""
        seconds = int(time.monotonic() - self._began)
        parts = [f"stepwise: {count(self._done, 'step')}"]
        if self._skipped:
            parts.append(f"{self._skipped} skipped")
        parts.append(f"{seconds // 60}:{seconds % 60:02}")
        doing = list(self._working.values())
        if doing:
            more = f" and {len(doing) - 1} more" if len(doing) > 1 else ""
            parts.append(f"{' '.join(printable(doing[-1][:200]).split())}{more}")
        return " · ".join(parts)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
