"""The words of providers about their rate limits: in headers of answers, and in errors of SDKs."""

from __future__ import annotations

import datetime as dt
import email.utils
import re
import time
from collections.abc import Mapping
from typing import Any

from stepwise._runtime.facts import NamedTuple

_REFUSED = (429, 529)  # too many requests; Anthropic's servers are overloaded
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 7 * 86400.0  # seconds; what is longer is no duration
_UNKNOWN = 60.0  # seconds until a limit is whole again, if the provider does not say


class LeftOfLimit(NamedTuple):
    """The rest of a limit as a provider states it, and the seconds until it is whole again."""

    requests: int | None
    tokens: int | None
    seconds: float


def refused_for(error: BaseException) -> float | None:
    """Return for how many seconds a provider refuses requests, or ``None`` if it did not refuse.

    The error of an SDK has the answer of the provider.  A refusal that does not say for how long is
    none: an account without money is refused in the same way, for ever.
    """
    response: Any = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    found = getattr(response, "headers", None) or getattr(error, "headers", None)
    return refusal_of(status or getattr(error, "status", None), plain_headers(found))


def refusal_of(status: object, headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a refusal asks to wait, or ``None`` if the answer is none.

    ``Retry-After`` says it, or the reset of an empty limit.
    """
    if status not in _REFUSED:
        return None
    seconds = [
        _seconds(headers.get("retry-after-ms", ""), unit=0.001),
        _seconds(headers.get("retry-after", "")),
    ]
    known = [each for each in seconds if each is not None]
    if known:
        return known[0]
    left = left_of(headers)
    return left.seconds if left is not None and 0 in (left.requests, left.tokens) else None


def left_of(headers: Mapping[str, str]) -> LeftOfLimit | None:
    """Return what the headers of an answer say is left; ``None`` if they say nothing.

    The headers of OpenAI and its many followers, of Anthropic, and of the draft of the IETF.
    """
    found: dict[str, tuple[int, float]] = {}
    for what in ("requests", "tokens"):
        for left, reset in (
            (f"x-ratelimit-remaining-{what}", f"x-ratelimit-reset-{what}"),
            (f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset"),
            *([("ratelimit-remaining", "ratelimit-reset")] if what == "requests" else []),
        ):
            number = headers.get(left, "")
            if re.fullmatch(r"\d{1,15}", number):
                seconds = _seconds(headers.get(reset, ""))
                found[what] = int(number), _UNKNOWN if seconds is None else seconds
                break
    if not found:
        return None
    numbers = {what: number for what, (number, _) in found.items()}
    # The reset of the limit that is empty counts; else the longer one.
    empty = [seconds for number, seconds in found.values() if number == 0]
    seconds = max(empty or [each for _, each in found.values()])
    return LeftOfLimit(numbers.get("requests"), numbers.get("tokens"), seconds)


def plain_headers(headers: Any) -> Mapping[str, str]:
    """Return the headers of any library by their lower-case names."""
    try:
        return {str(name).lower(): str(value) for name, value in headers.items()}
    except Exception:  # of any library, or no headers at all
        return {}


def _seconds(text: str, unit: float = 1.0) -> float | None:
    """Return the seconds of ``2``, ``1.5s``, ``6m0s``, ``20ms``, or until a date; else ``None``."""
    text = text.strip()
    found: float | None = None
    if re.fullmatch(r"\d{1,12}(\.\d+)?", text):
        found = float(text) * unit
    elif re.fullmatch(r"(\d{1,12}(\.\d+)?(ms|[smhd]))+", text):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
        found = sum(float(number) * _UNITS[name] for number, name in parts)
    elif text:
        found = _until(text)
    return found if found is not None and 0 <= found <= _LONGEST else None


def _until(text: str) -> float | None:
    """Return the seconds until a date of HTTP or of RFC 3339; ``None`` for another text."""
    try:
        moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(text)
        except (TypeError, ValueError):
            return None
    return max(0.0, moment.timestamp() - time.time())
