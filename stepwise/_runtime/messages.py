"""Messages for a person at the terminal: notices, warnings, tracebacks, the end of a program.

Notices are single lines for the person at the terminal; warnings point at the user's line.

Notices go to stderr, beginning with ``stepwise:``, so that a program's own output stays clean. They
also go to the logger ``stepwise`` at level DEBUG.  A notebook shows stderr output as an error, so
there a notice is a separate output in muted grey.

Every function that only reports is guarded by :func:`reports`: its failures (a closed stderr, a log
handler, a ``__repr__``, a callback) never reach the run.  So the text of a report is built inside
the guard, too, unless it consists of plain texts and numbers.

The module also walks linked exceptions, and removes our frames from tracebacks.

At most one of our frames stays between the user's line and the user's error.  Tracebacks are folded
where an exception leaves our outermost function, so folding costs nothing without a failure.

At the end of a program whose run was suspended or cancelled, one line on stderr and an exit code
replace the traceback.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from stepwise._runtime import settings
from stepwise.errors import (
    RunCancelled,
    RunStopped,
    RunSuspended,
    StepFailedError,
    StepwiseWarning,
    escaped,
)

# -- messages -------------------------------------------------------------------------------------


P = ParamSpec("P")
R = TypeVar("R")

reporters: set[str] = set()
"""The functions that only report, by module and name; tests make each of them fail."""

_BETWEEN = ("wrapt", "contextlib", "asyncio", "concurrent.futures", "threading")
_CELL = r"[/\\]ipykernel_\d+[/\\]|<ipython-input-"  # file names that mean nothing to a user
_STYLE = (
    "font:13px/1.5 system-ui,sans-serif;overflow-wrap:anywhere;"
    "color:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#757575))"
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_EXAMPLES = _PACKAGE + "examples" + os.sep
_NEARLY = 0.85  # share of a name that has to be right
_logger = logging.getLogger("stepwise")


def is_ours(file: str) -> bool:
    """Return whether a code file belongs to stepwise; our examples count as a user's code."""
    return file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)


class Once:
    """A callable that returns whether its argument, an identification of a report, is new."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[object, object] = {}

    def __call__(self, about: object) -> bool:
        this = object()
        return self._said.setdefault(about, this) is this  # atomic, for threads


def reports(function: Callable[P, R]) -> Callable[P, R | None]:
    """Guard a function that only reports: it never raises, and returns ``None`` if it failed.

    A warning that the user made an error is still raised.  So are exceptions that end a program
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
    r"""Return ``text`` shortened, with control characters written as ``\x1b``."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
    return escaped(text)


def _html(text: str) -> str:
    import html  # on use: most programs run outside notebooks

    return f'<div style="{_STYLE}">{html.escape(text)}</div>'


def kernel_shell() -> Any:
    """Return the notebook kernel's shell, in the kernel or in a process forked from it.

    The result is ``None`` elsewhere: a test or a server that merely imports ``ipykernel`` is not a
    kernel.
    """
    ipython = sys.modules.get("IPython")
    find = getattr(ipython, "get_ipython", None)  # absent while IPython is being imported
    shell: Any = find() if find is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


def publisher() -> Any:
    """Return the publisher of a notebook's outputs, or ``None`` where nothing shows them."""
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
    """Show ``text`` immediately, once."""
    try:
        _put(text)
    finally:
        _logger.debug("%s", text)


def count(number: int, noun: str) -> str:
    """Return a number with a noun: ``1 step``, ``2 steps``, ``3 entries``, ``4,000 batches``."""
    if number != 1:
        noun = f"{noun[:-1]}ie" if noun.endswith("ry") else noun + "e" * noun.endswith("ch")
    return f"{number:,} {noun}{'s' * (number != 1)}"


def first_of(items: Sequence[object], most: int) -> str:
    """Return the first of some items as text, with dots if there are more."""
    return ", ".join(map(str, items[:most])) + ", ..." * (len(items) > most)


def shell_word(text: str) -> str:
    """Quote a run id or a URL, so that a printed command can be pasted into a shell."""
    import shlex  # on use: only the messages that print a command need it

    return shlex.quote(text)


def settling_commands(run_id: str, step: int, result: str = "JSON") -> tuple[str, str]:
    """Return the commands that settle a step in doubt: it happened, or it did not.

    Args:
        result: what stands in the place of the result.
    """
    command = f"stepwise resolve {shell_word(run_id)} {step}"
    return f"{command} --landed {result}", f"{command} --did-not-happen"


def file_name(path: str) -> str:
    """Return a source file's name for messages: ``agent.py``, or ``cell`` for a notebook's cell."""
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


_nowhere: dict[Any, int] = {}  # warnings that were issued without a place
_Place = tuple[str, int, dict[str, Any]]  # file, line, the globals there

_working_for: ContextVar[_Place | None] = ContextVar("stepwise_working_for", default=None)
"""The place for which a thread works whose other frames are all ours.

Not its frame, whose variables would live as long as the context.
"""


def _place() -> _Place | None:
    frame = caller()
    if frame is None:
        return _working_for.get()
    return frame.f_code.co_filename, frame.f_lineno or 0, frame.f_globals


def thread_context() -> contextvars.Context:
    """Return a copy of the context for a thread of ours; its warnings show the caller's place."""
    context = contextvars.copy_context()
    context.run(_working_for.set, _place())
    return context


@reports
@functools.cache
@reports
def report_misspelled() -> None:
    """Report environment variables whose names almost match a setting, once."""
    unknown = [each for each in os.environ if each.startswith("STEPWISE_")]
    for name in sorted({*unknown}.difference(settings.NAMES)):
        import difflib  # on use: it takes long, and names are mostly right

        for meant in difflib.get_close_matches(name, settings.NAMES, 1, _NEARLY):
            notice(f"there is no setting {name}, which the environment has; did you mean {meant}?")


def warn(text: str, category: type[StepwiseWarning]) -> None:
    """Issue a warning at the nearest code that is not ours."""
    text, place = printable(text, sys.maxsize), _place()
    if place is None:  # only our own frames: Python uses this place at the end of a stack
        warnings.warn_explicit(text, category, "sys", 1, "sys", _nowhere)
        return
    file, line, names = place
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, file, line, names.get("__name__"), registry)


# -- tracebacks -----------------------------------------------------------------------------------


E = TypeVar("E", bound=BaseException)

_LINKS = 50  # exceptions of a chain that are recorded with their causes and contexts

_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__)) + os.sep
_MACHINERY = tuple(
    _LIBRARY + name for name in ("asyncio", "concurrent", "contextlib.py", "threading.py")
)


def fold(error: E) -> E:
    """Remove our frames from the tracebacks of an exception and of all exceptions linked to it.

    Frames of pools and event loops between two of our frames are removed, too.
    """
    if settings.debug():
        return error
    for each in chain(error):
        if each.__traceback__ is not None:
            each.__traceback__ = _without_ours(each.__traceback__)
    return error


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    held: list[TracebackType] = []  # library frames that follow one of ours
    after_ours = changed = False
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if is_ours(path):
            after_ours = changed = True
            held.clear()
        elif after_ours and path.startswith(_MACHINERY):
            held.append(trace)
        else:
            entries += (*held, trace)
            held.clear()
            after_ours = False
        trace = trace.tb_next
    entries += held
    if not changed:
        return entries[0] if entries else None
    folded = None
    for entry in reversed(entries):
        frame = entry.tb_frame
        line = entry.tb_lineno or frame.f_code.co_firstlineno  # a signal may come between lines
        folded = TracebackType(folded, frame, entry.tb_lasti, line)
    return folded


# -- linked exceptions ---------------------------------------------------------------------------


def chain(
    error: BaseException | None, ambient: BaseException | None = None
) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and members of groups, up to ``ambient``."""
    todo, seen = [error], {id(None), id(ambient)}
    while todo:
        each = todo.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        todo += [each.__cause__, each.__context__, *_attached(each)]


def _attached(error: BaseException) -> list[BaseException]:
    """Return the exceptions in the attribute ``exceptions`` of a group or of a user's class.

    The class is not checked: on Python 3.10 groups come from more than one package.
    """
    try:
        found = getattr(error, "exceptions", ())
    except Exception:  # a property of a user's class may raise anything
        return []
    if not isinstance(found, (list, tuple)):
        return []
    return [each for each in found if isinstance(each, BaseException)]


def linked_to(
    error: BaseException, held: Callable[[BaseException], Iterable[BaseException]]
) -> tuple[list[BaseException], dict[int, int]]:
    """Return an exception with all exceptions linked to it, and the index of each by its id.

    Args:
        held: returns the exceptions that an exception holds.
    """
    chain, index = [error], {id(error): 0}
    for each in chain:
        links = (each.__cause__, each.__context__) if len(chain) < _LINKS else ()
        for other in (*held(each), *links):
            if other is not None and id(other) not in index:
                index[id(other)] = len(chain)
                chain.append(other)
    return chain, index


def members(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group, or an empty tuple."""
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    return error.exceptions if isinstance(error, group) else ()


def link_facts(error: BaseException, index: Mapping[int, int]) -> dict[str, Any]:
    """Return what a record of an exception says of its links, as places in its list.

    Args:
        index: the places of the exceptions by their ids, from :func:`linked_to`.
    """
    return {
        "type": type(error).__qualname__,
        "cause": index.get(id(error.__cause__)),
        "context": index.get(id(error.__context__)),
        "suppress": error.__suppress_context__,
        "members": [index[id(each)] for each in members(error)],
    }


def link(made: Sequence[BaseException], facts: Iterable[Mapping[str, Any]]) -> None:
    """Link restored exceptions as :func:`link_facts` says that they were linked."""
    for error, fact in zip(made, facts, strict=True):
        for name in ("cause", "context"):  # past a ``__setattr__`` that forbids it
            linked = None if fact[name] is None else made[fact[name]]
            BaseException.__setattr__(error, f"__{name}__", linked)
        BaseException.__setattr__(error, "__suppress_context__", fact["suppress"])


def summary_of(fact: Mapping[str, Any]) -> StepFailedError:
    """Return the exception that replaces a recorded one which cannot be restored."""
    return StepFailedError(
        f"{fact['type']}: {fact['message']}",
        type_name=fact["type"],
        traceback_text=fact["traceback"],
    )


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback of a body in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


# -- exits ----------------------------------------------------------------------------------------


EX_TEMPFAIL = 75
"""The exit code for "nothing failed, and the program has to be started again"."""

_before: Any = None  # the hooks installed before
_before_in_threads: Any = None


def hook_exits() -> None:
    """Report uncaught errors of suspended and cancelled runs in one line from now on."""
    global _before, _before_in_threads
    if sys.excepthook is not _report:
        _before, sys.excepthook = sys.excepthook, _report
    if threading.excepthook is not _report_thread:
        _before_in_threads, threading.excepthook = threading.excepthook, _report_thread


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    found = _stopped(error)
    if not found:
        _before(kind, error, trace)
        return
    _print(found)
    if not (sys.flags.interactive or hasattr(sys, "ps1")):
        suspended = all(isinstance(each, RunSuspended) for each in found)
        # Python handles SystemExit here, too, and ends in good order.
        raise SystemExit(EX_TEMPFAIL if suspended else 1)


def _report_thread(given: Any) -> None:
    found = _stopped(given.exc_value)
    if found:
        _print(found)
    else:
        _before_in_threads(given)


def _stopped(error: BaseException | None) -> list[RunStopped]:
    """Return the suspensions and cancellations in an exception or its group.

    The result is empty if the group has any other exception.
    """
    if isinstance(error, (RunSuspended, RunCancelled)):
        return [error]
    found = []
    for each in members(error) if error is not None else ():
        inner = _stopped(each)
        if not inner:
            return []
        found += inner
    return found


def _print(found: list[RunStopped]) -> None:
    for each in dict.fromkeys(found):
        if not each.__dict__.get("_told"):
            each.__dict__["_told"] = True
            if sys.stderr is not None:
                sys.stderr.write(f"stepwise: {each}\n")
