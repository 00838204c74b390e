"""The limits of model requests, by model or address: ``instrument(limits={...})``.

A recorded request waits as a call of its run does.  A request that the body of a step makes, or one
outside any run, waits where it is sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from stepwise._calls.limited import Limit, Permit
from stepwise._calls.rate_limits import left_of, refusal_of
from stepwise._execution.account import amounts_of_usage
from stepwise._runtime.clock import elapsed
from stepwise.errors import ConfigurationError
from stepwise.integrations._model_answers import usage_of
from stepwise.integrations._model_requests import endpoint_of

_CHARACTERS = 4  # of a text, for a token
_LONGEST = 600.0  # seconds for which a refused request is sent again
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


# -- requests that are not recorded ---------------------------------------------------------------


def send_limited(limit: Limit, send: Callable[[], Any], request: Any, *, streamed: bool) -> Any:
    """Send a request in its turn; wait and send it again while the provider refuses it."""
    began = elapsed()
    while True:
        with limit as permit:
            response = send()
            again = _heard(permit, request, response, began, streamed=streamed)
        if not again:
            return response
        response.close()


async def asend_limited(
    limit: Limit, send: Callable[[], Awaitable[Any]], request: Any, *, streamed: bool
) -> Any:
    """Do what :func:`send_limited` does, for an asynchronous client."""
    began = elapsed()
    while True:
        async with limit as permit:
            response = await send()
            again = _heard(permit, request, response, began, streamed=streamed)
        if not again:
            return response
        await response.aclose()


def _heard(permit: Permit, request: Any, response: Any, began: float, *, streamed: bool) -> bool:
    """Tell the limit what an answer says; return whether the request is to be sent again."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    seconds = refusal_of(response.status_code, headers)
    if seconds is not None:
        permit.pause(seconds)
        permit.used(0)
        return elapsed() - began + seconds < _LONGEST
    left = left_of(headers)
    if left is not None:
        permit.left(*left)
    if not streamed and limits:
        endpoint = endpoint_of(request.method, request.url.path) or ""
        kind = headers.get("content-type", "")
        usage = usage_of(endpoint, kind, response.content, str(request.url))
        permit.used(int(amounts_of_usage(usage)[1]) or None)
    return False
