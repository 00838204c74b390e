"""The output of a notebook's cell that shows the progress of a run, and is replaced as it goes.

It is an output of its own, so that it does not mix with what the cell prints, and appears only
once a run has taken a moment.  At the end it says how that was.  Should the kernel die, nobody can
take it away: each version therefore says when it was made, as soon as no newer one replaces it.
"""

from __future__ import annotations

import html
import logging
import os
import threading
import time
from typing import Any

from stepwise._display.activity import Doing
from stepwise._display.render import printable
from stepwise._runtime.messages import count

__all__ = ["Output"]

_PATIENCE = 1.0  # seconds until a run is shown
_AGAIN = 1.0  # seconds until the elapsed time is shown anew
_LATE = 5  # seconds without a newer version until "no news" is shown
_CALLS, _LONG = 3, 160  # number of calls that are named, and characters of each
_SHOWN_AS = {
    "completed": "good",
    "failed": "bad",
    "running": "now",
    "suspended": "now",
    "interrupted": "doubt",
    "stopped": "doubt",
}
_logger = logging.getLogger("stepwise")

_STYLE = """<style>
.stepwise-now{--sw-good:#1a7f37;--sw-bad:#d1242f;--sw-doubt:#9a6700;--sw-now:#0969da;
--sw-soft:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#59636e));
color:var(--jp-content-font-color1,var(--vscode-editor-foreground,#1f2328));
font:13px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){.stepwise-now{
--sw-good:#3fb950;--sw-bad:#f85149;--sw-doubt:#d29922;--sw-now:#4493f8;
--sw-soft:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#9198a1));
color:var(--jp-content-font-color1,var(--vscode-editor-foreground,#e6edf3))}}
body[data-jp-theme-light=false] .stepwise-now,body.vscode-dark .stepwise-now{
--sw-good:#3fb950;--sw-bad:#f85149;--sw-doubt:#d29922;--sw-now:#4493f8}
body[data-jp-theme-light=true] .stepwise-now,body.vscode-light .stepwise-now{
--sw-good:#1a7f37;--sw-bad:#d1242f;--sw-doubt:#9a6700;--sw-now:#0969da}
.stepwise-now.stepwise-now code{padding:0;
font:12px/1.5 ui-monospace,monospace;color:inherit;background:none}
.stepwise-now small{font-size:12px;color:var(--sw-soft)}
.stepwise-now .sw-good{color:var(--sw-good)}.stepwise-now .sw-bad{color:var(--sw-bad)}
.stepwise-now .sw-doubt{color:var(--sw-doubt)}.stepwise-now .sw-now{color:var(--sw-now)}
.stepwise-now .sw-late{opacity:0;animation:stepwise-late 1s LATEs forwards}
@keyframes stepwise-late{to{opacity:1}}
</style>""".replace("LATE", str(_LATE))


class Output:
    """The output of one run.

    Args:
        doing: what it says.
        published: what publishes it; kept, since the cell may capture its own outputs.
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
        """Show it soon: steps may be faster than a browser."""
        self._dirty = True

    def ticked(self) -> None:
        """Show the new state."""
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
        now = f" · {'; '.join(map(_short, calls[-_CALLS:]))}" if calls and self._running else ""
        as_of = f" ({time.strftime('%H:%M:%S')})" if self._running else ""
        return f"stepwise: {_short(self._doing.title)} {self._doing.status} · {told}{now}{as_of}"

    def html(self) -> str:
        """For everybody else."""
        status = self._doing.status
        parts = [
            f'<span class="sw-{_SHOWN_AS[status]}">● {status}</span> ',
            f"<code>{_escaped(self._doing.title)}</code> ",
            f"<small>{' · '.join(self._facts())}</small>",
        ]
        if self._running:
            at = time.strftime("%H:%M:%S")
            parts.append(f' <small class="sw-late">no news since {at}</small>')
            parts += self._calls()
        return f'<div class="stepwise-now">{_STYLE}{"".join(parts)}</div>'

    def _calls(self) -> list[str]:
        calls = self._doing.calls
        lines = [f"<br>→ <code>{_escaped(each)}</code>" for each in calls[-_CALLS:]]
        if len(calls) > _CALLS:
            lines.append(f" <small>and {len(calls) - _CALLS} more</small>")
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


def _short(text: str) -> str:
    line = " ".join(printable(text[: 2 * _LONG]).split())
    return line if len(line) <= _LONG else f"{line[: _LONG - 1]}…"


def _escaped(text: str) -> str:
    return html.escape(_short(text))
