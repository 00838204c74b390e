"""Model requests in the bodies of steps: made as usual, and counted for the budget of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import Scope
from stepwise.integrations._model_answers import usage_of
from stepwise.integrations._model_requests import endpoint_of
from stepwise.integrations._recorded_responses import decompressed, library_of, stream_class

__all__ = ["asend_counted", "send_counted"]


def send_counted(scope: Scope, request: Any, send: Callable[[], Any], *, streamed: bool) -> Any:
    """Send a request that a step makes, and count what it spends."""
    response = send()
    if not streamed:
        _count(scope, _usage(request, response, response.content))
        return response
    source, used = response.stream, _StreamedUsage(scope, request, response)

    def pieces() -> Iterator[bytes]:
        try:
            for piece in source:
                used.take(piece)
                yield piece
        finally:
            used.count()

    def close() -> None:
        used.count()
        source.close()

    response.stream = stream_class(library_of(request), "SyncByteStream")(pieces, close, source)
    return response


async def asend_counted(
    scope: Scope, request: Any, send: Callable[[], Any], *, streamed: bool
) -> Any:
    """Send a request as :func:`send_counted` does, with an asynchronous client."""
    response = await send()
    if not streamed:
        _count(scope, _usage(request, response, response.content))
        return response
    source, used = response.stream, _StreamedUsage(scope, request, response)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            async for piece in source:
                used.take(piece)
                yield piece
        finally:
            used.count()

    async def close() -> None:
        used.count()
        await source.aclose()

    response.stream = stream_class(library_of(request), "AsyncByteStream")(pieces, close, source)
    return response


class _StreamedUsage:
    """The usage that a streamed answer has reported so far; many readers stop before its end."""

    def __init__(self, scope: Scope, request: Any, response: Any) -> None:
        self._scope = scope
        self._request = request
        self._response = response
        self._pieces: list[bytes] = []
        self._counted = 0.0, 0.0

    def take(self, piece: bytes) -> None:
        """Take the next piece of the answer."""
        self._pieces.append(piece)
        if b"sage" in piece:  # usage, usageMetadata
            self.count()

    def count(self) -> None:
        """Count what the answer says beyond what it said before."""
        body = b"".join(decompressed(self._response, self._pieces, 1))
        usd, tokens = amounts_of_usage(_usage(self._request, self._response, body))
        before, self._counted = self._counted, (usd, tokens)
        if usd > before[0] or tokens > before[1]:
            more = {"cost_usd": usd - before[0], "output_tokens": tokens - before[1]}
            _count(self._scope, more)


def _usage(request: Any, response: Any, body: bytes) -> dict[str, Any]:
    endpoint = endpoint_of(request.method, request.url.path) or ""
    kind = response.headers.get("content-type", "")
    return usage_of(endpoint, kind, body, str(request.url))


def _count(scope: Scope, usage: Mapping[str, Any]) -> None:
    assert scope.call is not None
    scope.run.account.spend_usage(scope.call.number, usage)
