"""Values that differ at each start, and so cannot distinguish runs: times and random ids.

Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import re
import sys
import time
from typing import Any

__all__ = ["has_volatile_form", "is_clock", "is_momentary"]

_RANDOM = "1467"  # versions of UUIDs; the others are made of a name, and stay
_UUID = r"(?i)[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # compiled on use
_WRITTEN = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|[A-Z][a-z]{2},? [\w ]{5,15} \d\d:\d\d:\d\d "
"""How a text begins that is a time: by ISO 8601, ``time.ctime()``, or as in mails and HTTP."""
_LENGTHS = (32, 36)  # characters of a UUID's text
_FORMS = ("%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT")


def is_momentary(value: object) -> bool:
    """Return whether a value is a random UUID or a time since this process began."""
    cls: Any = type(value)  # not isinstance: the __class__ of a proxy may raise
    if cls in (int, float):
        return is_clock(value)  # type: ignore[arg-type]
    if issubclass(cls, str):
        return _is_written(str(value))
    if issubclass(cls, dt.datetime):
        return _is_now(value)  # type: ignore[arg-type]
    uuid: Any = sys.modules.get("uuid")  # where nobody imported it, there are none
    return (
        uuid is not None and issubclass(cls, uuid.UUID) and str(cls.version.fget(value)) in _RANDOM
    )


def has_volatile_form(text: str) -> bool:
    """Return whether a text is a UUID or a time by its form, whenever it was made."""
    return 16 <= len(text) <= 40 and (_is_uuid(text) or _of_form(_WRITTEN).match(text) is not None)


@functools.cache
def _of_form(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _is_uuid(text: str) -> bool:
    return len(text) in _LENGTHS and _of_form(_UUID).fullmatch(text) is not None


def _is_written(text: str) -> bool:
    if _is_uuid(text):
        digits = text.replace("-", "")
        return digits[12] in _RANDOM and digits[16] in "89abAB"  # version and variant
    if not has_volatile_form(text):
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
    begun, now = _began(), time.time()
    try:
        if moment.tzinfo is not None:
            return begun <= moment.timestamp() <= now
        # Without a zone, it is the time of here or of Greenwich.
        here, there = moment.timestamp(), moment.replace(tzinfo=dt.timezone.utc).timestamp()
    except (ValueError, OverflowError, OSError):
        return False
    return begun - 1 <= here <= now or begun - 1 <= there <= now  # cut to a second


def is_clock(number: float) -> bool:
    """Return whether a clock of this process has shown a number, in seconds or in parts of them."""
    if not 1 <= number <= 1 << 62:  # nor is NaN
        return False
    if number < 1000 and number == round(number, 3):
        return False  # soon after boot, a clock shows what others count; but with finer digits
    now, begun = time.time(), _began() - 1
    for unit in (1, 10**3, 10**6, 10**9):
        if begun * unit <= number <= now * unit:
            return True
    if type(number) is int:
        return False
    return any(
        0 <= clock() - number <= now - begun for clock in (time.monotonic, time.perf_counter)
    )


@functools.cache
def _began() -> float:
    """Return when this process began, in seconds since 1970."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        age = time.process_time() + 60  # no such file: it began at least that long ago
    return time.time() - max(age, 0)
