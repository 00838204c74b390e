"""The frames of a failure with short forms of their local variables, if that was asked for.

An object ``frames/CALL/ATTEMPT`` beside the records holds the frames of the user's functions in the
traceback of one failed attempt of a step.  Call 0 is the run, and its attempt is the number of the
record of its end.  Installed packages, Python's library and our
own code are left out.

Plain values and containers are shown by their content, other objects by their type alone: no code
of the user is called.  What is masked elsewhere is not shown here: hidden arguments by their names,
and the same plain values under other names; names and texts of secrets and credentials.
"""

from __future__ import annotations

import inspect
import json
import linecache
import time
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from stepwise._identity.clients import is_foreign_module
from stepwise._journal.journal import FRAMES, Journal
from stepwise._runtime.messages import is_ours, reports
from stepwise._values.credentials import is_secret_name, is_suspect, is_suspect_name
from stepwise._values.preview import HIDDEN, Hiding, PlainPreview, Secrets, is_plain

_MOST_FRAMES = 20  # the innermost ones
_MOST_VARIABLES = 50  # of a frame
_ROOM = 32_000  # characters of all variables of a failure
_MOST_HIDDEN = 200  # objects that are remembered
_LINE = 300  # characters of a line of source
_SECONDS = 0.05  # of processor time, for all variables of a failure
_SHARED = (None, True, False, "", 0, 1)  # many variables hold the same object
_NOT_SHOWN = "<not shown>"
_LEFT_OUT = "..."
_traceback_of: Any = vars(BaseException)["__traceback__"].__get__


def frames_name(call: int, attempt: int) -> str:
    """Return the name of the object that holds the frames of a failed attempt."""
    return f"{FRAMES}{call:012d}/{attempt:04d}"


class FrameRecorder:
    """The recorder of the failures of a run, and of the child runs that it calls.

    A failure that leaves the run shows the frames of its steps again.  So the recorder remembers
    what these steps hide.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._names: dict[str, str] = {}
        self._objects: dict[int, tuple[Any, str]] = {}

    def hide(self, names: Iterable[str]) -> None:
        """Show no variable of these names, the hidden arguments of a run."""
        self._names.update(dict.fromkeys(names, _NOT_SHOWN))

    @reports
    def step_failed(
        self,
        journal: Journal,
        call: int,
        attempt: int,
        error: BaseException,
        hiding: Hiding,
        given: Mapping[str, Any],
    ) -> None:
        """Record the frames of a failed attempt of a step with the next record of its run.

        Args:
            hiding: the options of the step that hide arguments.
            given: the arguments of the call, by name.
        """
        for name, value in given.items() if hiding.hides else ():
            text = hiding.instead(name, value)
            if text is not None:
                self._names[name] = text
                # Another object is shown by its type, and might be large.
                if is_plain(value) and not any(value is each for each in _SHARED):
                    self._objects[id(value)] = value, text
        for first in [*self._objects][:-_MOST_HIDDEN]:
            del self._objects[first]
        self._record(journal, call, attempt, error)

    @reports
    def run_failed(self, journal: Journal, end: int, error: BaseException) -> None:
        """Record the frames of a failed run with the record of its end, which has this number."""
        self._record(journal, 0, end, error)

    def _record(self, journal: Journal, call: int, attempt: int, error: BaseException) -> None:
        entries = [*_users_frames(_traceback_of(error))][-_MOST_FRAMES:]
        if not entries or not isinstance(error, Exception):
            return
        room, until = _ROOM, time.thread_time() + _SECONDS
        found: list[list[Any]] = []
        for frame, line in reversed(entries):  # the innermost frames get their room first
            variables = self._variables(frame, room, until)
            room -= sum(map(len, variables.values()))
            code = frame.f_code
            text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
            text = self._secrets.cleaned_text(text)[:_LINE]
            found.insert(0, [code.co_filename, line, code.co_name, text, variables])
        payload = json.dumps(found).encode()
        journal.put_with_next(frames_name(call, attempt), {"at": time.time()}, payload)

    def _variables(self, frame: FrameType, room: int, until: float) -> dict[str, str]:
        # Only a function has variables of its own; the namespace of a class may be any object.
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return {}
        shown: dict[str, str] = {}
        for name, value in dict(frame.f_locals).items():
            if not name.isidentifier():  # of the rewrite, or of a comprehension
                continue
            if len(shown) >= _MOST_VARIABLES or room < 0 or time.thread_time() > until:
                shown[_LEFT_OUT] = _LEFT_OUT
                break
            shown[name] = text = self._text(name, value, until)
            room -= len(text)
        return shown

    def _text(self, name: str, value: Any, until: float) -> str:
        shows = PlainPreview(self._secrets.cleaned_text, self._instead, until)
        return self._instead(name, value) or shows.of(value)

    def _instead(self, name: str, value: Any) -> str:
        """Return the text in place of a hidden value; an empty one for a value to show.

        Args:
            name: the name of the variable or the key; empty for another part of a value.
        """
        known = self._objects.get(id(value))
        if name in self._names or known is not None:
            return self._names.get(name) or (known[1] if known is not None else _NOT_SHOWN)
        if not is_plain(value):
            return ""
        random = type(value) is str and is_suspect_name(name) and is_suspect(value)
        return HIDDEN if random or is_secret_name(name) or self._secrets.holds(value) else ""


def _users_frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        frame = trace.tb_frame
        module = dict.get(frame.f_globals, "__name__")
        if not is_ours(frame.f_code.co_filename) and not (
            type(module) is str and is_foreign_module(module)
        ):
            yield frame, trace.tb_lineno or frame.f_code.co_firstlineno
        trace = trace.tb_next
