"""A line at the bottom of the terminal that shows the progress of a run.

The line is erased before anything else is written to stdout or stderr and drawn again after it, so
that it never stands in the middle of the program's own output.  It is drawn on stderr, and only if
that is a terminal.
"""

from __future__ import annotations

import shutil
import sys
import threading
from typing import Any

from stepwise._display.activity import Doing
from stepwise._display.render import printable
from stepwise._runtime.messages import count, reports

__all__ = ["Line", "is_free_terminal"]

_ERASE = "\r\x1b[2K"


class _Through:
    """A stream whose writer has the line out of the way."""

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
    """The line of one run.

    Args:
        doing: what it says.
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
        """Watch the program's output."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if _is_terminal(stream):
                through = _Through(stream, self)
                self._streams.append((name, stream, through))
                setattr(sys, name, through)

    def end(self) -> None:
        """Erase the line, and give the streams back."""
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
        """Draw it again."""
        with self._lock:
            self._erase()
            self._draw()

    def ticked(self) -> None:
        """Draw it again."""
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
        """The line."""
        done, skipped = self._doing.steps
        parts = [f"stepwise: {count(done, 'step')}"]
        if skipped:
            parts.append(f"{skipped} skipped")
        parts.append(self._doing.elapsed)
        calls = self._doing.calls
        if calls:
            more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
            parts.append(f"{' '.join(printable(calls[-1][:200]).split())}{more}")
        return " · ".join(parts)


def is_free_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal that shows no progress line yet."""
    return _is_terminal(stream) and not isinstance(stream, _Through)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # stderr is missing or closed
        return False
