"""The limits of model requests, by model or address: ``instrument(limits={...})``.

A recorded request waits as a call of its run does; :mod:`._sent_requests` has the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepwise._calls.limited import Limit
from stepwise.errors import ConfigurationError

_CHARACTERS = 4  # of a text, for a token
_OUTPUT = ("max_tokens", "max_completion_tokens", "max_output_tokens")

limits: dict[str, Limit] = {}
"""The limits, by model or address."""


def check_limits(given: Mapping[str, Limit]) -> None:
    """Refuse limits that requests cannot have.

    Raises:
        ConfigurationError: the message names the model or address, and what to write.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"limits={given!r:.200} of instrument(): it must be a dict of limits by model or "
            'address, such as {"api.openai.com": Limit("openai", requests=500)}'
        )
    for name, limit in given.items():
        if not isinstance(name, str) or not isinstance(limit, Limit):
            raise ConfigurationError(
                f"limits={{{name!r:.200}: {limit!r:.200}}} of instrument(): it must be a model or "
                'an address ("gpt-5", "api.openai.com"), and a stepwise.Limit'
            )
        if limit.key is not None:
            raise ConfigurationError(
                f"Limit({limit.name!r}) of instrument(limits=...) has a key=, and a request has no "
                f"such parameter: write limit.of(value), or @step(limit=...)"
            )


def limit_of(request: Any) -> Limit | None:
    """Return the limit of a request with an estimate of its tokens; ``None`` if it has none."""
    body: Any = None
    is_read = hasattr(request.stream, "__iter__")  # else only an asynchronous client can read it
    if is_read and "json" in request.headers.get("content-type", ""):
        try:
            body = json.loads(request.read())
        except (ValueError, RecursionError):
            body = None
    body = body if isinstance(body, dict) else {}
    url = request.url
    names = (body.get("model"), f"{url.host}:{url.port}", url.host)
    found = next((limits[each] for each in names if isinstance(each, str) and each in limits), None)
    if found is None or found.tokens is None or found.estimate is not None:
        return found
    made = replace(found, estimate=_estimate(body, len(request.read()) if is_read else 0))
    object.__setattr__(made, "_since", found._since)
    return made


def _estimate(body: Mapping[str, Any], size: int) -> int | None:
    """Return the tokens of a request: its text, and the longest answer that it allows.

    Without a longest answer, return ``None``: the usual number is the better guess.
    """
    most = next((body[name] for name in _OUTPUT if isinstance(body.get(name), int)), None)
    return None if most is None else max(1, math.ceil(size / _CHARACTERS) + most)
