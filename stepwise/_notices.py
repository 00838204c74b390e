"""One-line notices to the person at the terminal, and warnings that point at the user's line.

Notices go to stderr, beginning with ``stepwise:``, so that a program's own output stays clean, and
to the logger ``stepwise`` at level DEBUG for whoever collects logs.  Imports: settings only.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from types import FrameType

from stepwise import _config

__all__ = ["count", "file_name", "notice", "warn"]

_OURS = ("stepwise._", "wrapt", "contextlib", "asyncio", "concurrent.futures", "threading")
_CELL = r"[/\\]ipykernel_\d+[/\\]|<ipython-input-"  # names that say nothing
_logger = logging.getLogger("stepwise")


def notice(text: str) -> None:
    """Tell ``text`` once, now."""
    _logger.debug("%s", text)
    if not _config.quiet():
        print(f"stepwise: {text}", file=sys.stderr, flush=True)  # noqa: T201


def count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def file_name(path: str) -> str:
    """A source file's name, for messages: ``agent.py``; ``cell`` for a notebook's cell."""
    return "cell" if "ipy" in path and re.search(_CELL, path) else os.path.basename(path)


def warn(text: str, category: type[Warning]) -> None:
    """Warn; the place of the warning is the nearest code that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    warnings.warn_explicit(
        text,
        category,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
