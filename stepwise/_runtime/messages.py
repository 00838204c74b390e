"""One-line notices to the person at the terminal, and warnings that point at the user's line.

Notices go to stderr, beginning with ``stepwise:``, so that a program's own output stays clean, and
to the logger ``stepwise`` at level DEBUG for whoever collects logs.  A notebook shows what is on
stderr as an error: there, a notice is an output of its own, in the grey of what is by the way.

Everything that only reports is guarded by :func:`reports`: what fails in it (a closed stderr, a
handler of a log, a ``__repr__``, a callback) never reaches the run that is reported on.  So the
text of a report is made there, too, unless it is put together of texts and numbers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from stepwise._runtime import settings
from stepwise.errors import RunStopped, StepwiseWarning

__all__ = [
    "Once",
    "caller",
    "count",
    "file_name",
    "is_ours",
    "kernel_shell",
    "notice",
    "printable",
    "publisher",
    "reporters",
    "reports",
    "shell_word",
    "warn",
]

P = ParamSpec("P")
R = TypeVar("R")

reporters: set[str] = set()
"""The functions that only report, by module and name; tests make each of them fail."""

_BETWEEN = ("wrapt", "contextlib", "asyncio", "concurrent.futures", "threading")
_CELL = r"[/\\]ipykernel_\d+[/\\]|<ipython-input-"  # names without meaning to a user
_STYLE = (
    "font:13px/1.5 system-ui,sans-serif;overflow-wrap:anywhere;"
    "color:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#757575))"
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_EXAMPLES = _PACKAGE + "examples" + os.sep
_logger = logging.getLogger("stepwise")


def is_ours(file: str) -> bool:
    """Return whether a file of code belongs to stepwise; its examples are code of a user."""
    return file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)


class Once:
    """Tells whether something is reported for the first time; called with what identifies it."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[object, object] = {}

    def __call__(self, about: object) -> bool:
        this = object()
        return self._said.setdefault(about, this) is this  # in one step, for threads


def reports(function: Callable[P, R]) -> Callable[P, R | None]:
    """Guard a function that only reports: it never raises, and returns ``None`` if it failed.

    A warning that the user made an error is raised all the same, as is what ends a program
    (Ctrl-C, an exit, a cancellation).
    """
    reporters.add(f"{function.__module__}.{function.__qualname__}")

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except StepwiseWarning:
            raise
        except (Exception, RunStopped) as error:
            _failed(function.__qualname__, error)
            return None

    return guarded


def _failed(what: str, error: BaseException) -> None:
    """Report that a report failed, as far as possible."""
    with contextlib.suppress(Exception, RunStopped):  # the log itself may have failed
        _logger.debug("the report %s failed", what, exc_info=error)
    with contextlib.suppress(Exception, RunStopped):
        if what not in _told:
            _told.add(what)
            _put(f"a report failed ({type(error).__name__} in {what}); the run continues")


_told: set[str] = set()


def _put(text: str) -> None:
    if settings.quiet():
        return
    line = f"stepwise: {printable(text, sys.maxsize)}"
    notebook = publisher()
    if notebook is not None:
        data = {"text/plain": line, "text/html": _html(line)}
        notebook.publish(data, {"stepwise": "notice"})
    elif sys.stderr is not None:  # with None, print would use stdout
        print(line, file=sys.stderr, flush=True)  # noqa: T201


def printable(text: str, limit: int = 20_000) -> str:
    r"""``text`` shortened, with what a terminal or a browser would obey written as ``\x1b``."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
    if text.isprintable():
        return text
    return "".join(
        each
        if each.isprintable() or each in "\n\t"
        else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def _html(text: str) -> str:
    import html  # on use: most programs run outside notebooks

    return f'<div style="{_STYLE}">{html.escape(text)}</div>'


def kernel_shell() -> Any:
    """Return the shell of the notebook kernel that this process is, or that it was forked from.

    ``None`` elsewhere: a test or a server that merely imports ``ipykernel`` is no kernel.
    """
    ipython = sys.modules.get("IPython")
    find = getattr(ipython, "get_ipython", None)  # absent while IPython is being imported
    shell: Any = find() if find is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


def publisher() -> Any:
    """Return what publishes outputs for a notebook, or ``None`` where nothing shows them."""
    shell = kernel_shell()
    if shell is None:
        return None
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return None  # a forked worker: the connection belongs to the kernel
    found = shell.display_pub
    capturing = sys.modules["IPython.core.displaypub"].CapturingDisplayPublisher
    return None if isinstance(found, capturing) else found


@reports
def notice(text: str) -> None:
    """Show ``text`` once, now."""
    try:
        _put(text)
    finally:
        _logger.debug("%s", text)


def count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shell_word(text: str) -> str:
    """Quote a run id or a URL, so that a printed command can be pasted into a shell."""
    import shlex  # on use: only the messages that print a command need it

    return shlex.quote(text)


def file_name(path: str) -> str:
    """A source file's name, for messages: ``agent.py``; ``cell`` for a notebook's cell."""
    return "cell" if "ipy" in path and re.search(_CELL, path) else os.path.basename(path)


def caller() -> FrameType | None:
    """Return the frame of the nearest code that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_ours(frame.f_code.co_filename)
        or str(frame.f_globals.get("__name__", "")).startswith(_BETWEEN)
    ):
        frame = frame.f_back
    return frame


_nowhere: dict[Any, int] = {}  # warnings that were given without a place


@reports
def warn(text: str, category: type[StepwiseWarning]) -> None:
    """Warn; the place of the warning is the nearest code that is not ours."""
    text, frame = printable(text, sys.maxsize), caller()
    if frame is None:  # only our own frames: Python uses this place at the end of a stack
        warnings.warn_explicit(text, category, "sys", 1, "sys", _nowhere)
        return
    warnings.warn_explicit(
        text,
        category,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno or 0,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
