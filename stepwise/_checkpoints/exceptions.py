"""An exception in a variable, with its causes and its traceback.

Pickle loses ``__cause__``, ``__context__`` and the traceback.  The restored traceback prints like
the original: it has the files, functions and lines, but no variables.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Sequence
from typing import Any

from stepwise._values.codec import survives, traceback_text
from stepwise._values.credentials import without_credentials
from stepwise._values.preview import NO_SECRETS, error_text
from stepwise._values.reducers import Forms
from stepwise.errors import StepFailedError

_PROTOCOL = 4
_MOST = 60  # frames of a traceback: the first half and the last
_WITHOUT_MORE = 3  # parts of a reduced form: maker, arguments, state

Place = tuple[str, str, int]
"""The file, function and line of a traceback entry."""


def raised_form(error: BaseException) -> Any:
    """Reduce an exception; return ``NotImplemented`` if it was never raised nor chained."""
    cause, context, trace = error.__cause__, error.__context__, error.__traceback__
    if cause is None and context is None and trace is None and not error.__suppress_context__:
        return NotImplemented
    bare = without_credentials(error)
    form = Forms().of(bare)
    if form is NotImplemented:
        form = bare.__reduce_ex__(_PROTOCOL)
    if not isinstance(form, tuple) or len(form) > _WITHOUT_MORE:
        return NotImplemented
    make, args, *state = form
    if NO_SECRETS.changes((args, state)):
        args, state = NO_SECRETS.cleaned(args), NO_SECRETS.cleaned(state)
    links = _kept(cause), _kept(context), error.__suppress_context__
    history = (state[0] if state else None, *links, _places(trace))
    return make, args, history, None, None, _set_history


def _kept(error: BaseException | None) -> BaseException | None:
    """Return an exception's cause or context, or its summary if it cannot be recorded."""
    if error is None or survives(error):
        return error
    name = type(error).__qualname__
    text = NO_SECRETS.cleaned_text(f"{name}: {error_text(error)}")
    trace = traceback_text(error, NO_SECRETS.cleaned_text)
    return StepFailedError(text, type_name=name, traceback_text=trace)


def _places(trace: types.TracebackType | None) -> list[Place]:
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append((code.co_filename, code.co_name, trace.tb_lineno or code.co_firstlineno))
        trace = trace.tb_next
    if len(places) > _MOST:
        places[_MOST // 2 : -_MOST // 2] = []
    return places


def _set_history(error: BaseException, history: tuple[Any, ...]) -> None:
    state, cause, context, suppress, places = history
    if state:
        error.__setstate__(state)
    for name, value in (
        ("__cause__", cause),  # also sets ``__suppress_context__``
        ("__context__", context),
        ("__suppress_context__", suppress),
        ("__traceback__", _traceback(places)),
    ):  # bypasses a ``__setattr__`` that forbids it
        BaseException.__setattr__(error, name, value)


def _traceback(places: Sequence[Place]) -> types.TracebackType | None:
    trace = None
    for file, name, line in reversed(places):
        trace = types.TracebackType(trace, _frame(file, name, line), -1, line)
    return trace


def _here() -> types.FrameType:
    return sys._getframe()


@functools.lru_cache(maxsize=256)
def _frame(file: str, name: str, line: int) -> types.FrameType:
    """Return an ended frame of a function of that name in that file."""
    code = _here.__code__.replace(co_filename=file, co_name=name, co_firstlineno=line)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name)
    frame: types.FrameType = types.FunctionType(code, {"sys": sys})()
    return frame
