"""Values that are made anew at each start, and so tell no runs apart: times and random ids.

Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import sys
import time
from typing import Any

__all__ = ["WRITTEN", "is_momentary"]

_EARLY = 5.0  # seconds that an interpreter may have run before this module is imported
_began = time.time() - _EARLY
_ticked = time.perf_counter() - _EARLY, time.monotonic() - _EARLY

_RANDOM = "1467"  # versions of UUIDs; the others are made of a name, and stay
_UUID = re.compile(
    rf"(?i)[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?[{_RANDOM}][0-9a-f]{{3}}-?[89ab][0-9a-f]{{3}}-?[0-9a-f]{{12}}"
)
WRITTEN = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|[A-Z][a-z]{2},? [\w ]{5,15} \d\d:\d\d:\d\d ")
"""How a text begins that is a time: by ISO 8601, ``time.ctime()``, or as in mails and HTTP."""
_FORMS = ("%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT")


def is_momentary(value: object) -> bool:
    """Whether a value is a random UUID, or a time since this process began, by type or text."""
    cls: Any = type(value)  # not isinstance: the __class__ of a proxy may raise
    if cls in (int, float):
        return _is_clock(value)  # type: ignore[arg-type]
    if issubclass(cls, str):
        return _is_written(str(value))
    if issubclass(cls, dt.datetime):
        return _is_now(value)  # type: ignore[arg-type]
    uuid: Any = sys.modules.get("uuid")  # where nobody imported it, there are none
    return (
        uuid is not None and issubclass(cls, uuid.UUID) and str(cls.version.fget(value)) in _RANDOM
    )


def _is_written(text: str) -> bool:
    if len(text) in (32, 36) and _UUID.fullmatch(text):
        return True
    if len(text) > 40 or not WRITTEN.match(text):
        return False
    for form in ("", *_FORMS):
        with contextlib.suppress(ValueError):
            return _is_now(_read(text, form))
    return False


def _read(text: str, form: str) -> dt.datetime:
    if form:
        return dt.datetime.strptime(text, form)  # noqa: DTZ007 (any zone is tried)
    return dt.datetime.fromisoformat(text.removesuffix("Z"))


def _is_now(moment: dt.datetime) -> bool:
    begun, now = _began, time.time()
    try:
        if moment.tzinfo is not None:
            return begun <= moment.timestamp() <= now
        # Without a zone, it is the time of here or of Greenwich.
        here, there = moment.timestamp(), moment.replace(tzinfo=dt.timezone.utc).timestamp()
    except (ValueError, OverflowError, OSError):
        return False
    return begun - 1 <= here <= now or begun - 1 <= there <= now  # cut to a second


def _is_clock(number: float) -> bool:
    """Whether a clock of this process has shown it, in seconds or in parts of them."""
    now = time.time()
    if any(_began - 1 <= number / unit <= now for unit in (1, 1e3, 1e6, 1e9)):
        return True
    clocks = zip(_ticked, (time.perf_counter(), time.monotonic()), strict=True)
    return isinstance(number, float) and any(begun <= number <= ticks for begun, ticks in clocks)
