"""Requests that are not recorded: in the body of a step, whose result is, and outside of runs.

Such a request waits for its limit where it is sent, the cache may answer it, and what it spends
counts for the run of its step.  Recorded requests do all that as calls of their run.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from stepwise._calls.cached import Lookup, look_up, place_of
from stepwise._calls.limited import Limit, Permit
from stepwise._calls.rate_limits import left_of, plain_headers, refusal_of
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import Scope
from stepwise._runtime.clock import elapsed
from stepwise._values.codec import Codec
from stepwise._values.preview import NO_SECRETS
from stepwise.errors import UnreadableValueError
from stepwise.integrations._model_answers import usage_of
from stepwise.integrations._recorded_responses import (
    body_of,
    decompressed,
    is_whole,
    pieces_of,
    response_from,
)
from stepwise.integrations._requests import (
    Exchange,
    instrumented,
    kept_answer,
    say_again,
    saying,
)

_CODEC = Codec("json")
_LONGEST = 600.0  # seconds for which a refused request is sent again


class SentRequest:
    """A request that is not recorded.

    Args:
        scope: of the step whose body makes it; ``None`` outside of runs.
    """

    def __init__(self, exchange: Exchange, scope: Scope | None) -> None:
        self._exchange, self._scope, self._is_async = exchange, scope, exchange.is_async
        self._began, self._counted = time.time(), (0.0, 0.0, 0.0)
        self._source: Any = None
        self._pieces: list[bytes] = []
        self._lookup = self._look_up()

    async def send(self) -> Any:
        """Return the response from the cache, or send the request; see :func:`.at_once`."""
        answer = self._answer()
        if answer is not None:
            return answer
        exchange, limit = self._exchange, self._exchange.limit
        try:
            response = await (self._sent() if limit is None else self._in_turn(limit))
        except BaseException:
            if self._lookup is not None:
                self._lookup.release()
            raise
        exchange.response = response
        if self._scope is None and self._lookup is None:
            return response
        if not exchange.streamed:
            self._pieces.append(response.content)
            self._count()
            self._keep(left=False)
        else:
            self._source = response.stream
            self._say = saying(self._scope, response, exchange.kind.emits)
            exchange.read_by(self._aread if self._is_async else self._read, self._close)
        return response

    # -- sending ---------------------------------------------------------------------------------

    async def _sent(self) -> Any:
        forward = self._exchange.forward
        return await forward() if self._is_async else forward()

    async def _in_turn(self, limit: Limit) -> Any:
        """Send the request in its turn; wait and send it again while the provider refuses it."""
        began = elapsed()
        while True:
            async with AsyncExitStack() as block:
                if self._is_async:
                    permit = await block.enter_async_context(limit)
                else:
                    permit = block.enter_context(limit)
                response = await self._sent()
                seconds = self._heard(permit, response)
            if seconds is None or elapsed() - began + seconds >= _LONGEST:
                return response
            if self._is_async:
                await response.aclose()
            else:
                response.close()

    def _heard(self, permit: Permit, response: Any) -> float | None:
        """Tell the limit what an answer says; return for how long the provider refuses requests."""
        headers = plain_headers(response.headers)
        seconds, left = refusal_of(response.status_code, headers), left_of(headers)
        if seconds is not None:
            permit.pause(seconds)
            permit.used(0)
            return seconds
        if left is not None:
            permit.left(*left)
        if not self._exchange.streamed and instrumented.limits:
            used = self._usage(response, response.content)
            permit.used(int(amounts_of_usage(used)[1]) or None)
        return None

    # -- reading ---------------------------------------------------------------------------------

    def _read(self) -> Iterator[bytes]:
        try:
            for piece in self._source:
                self._take(piece)
                yield piece
            self._keep(left=False)
        finally:
            self._count()

    async def _aread(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._source:
                self._take(piece)
                yield piece
            self._keep(left=False)
        finally:
            self._count()

    def _take(self, piece: bytes) -> None:
        self._pieces.append(piece)
        if b"sage" in piece:  # usage, usageMetadata
            self._count()
        self._say(piece)

    def _close(self) -> Any:
        self._count()
        self._keep(left=True)
        return self._source.aclose() if self._is_async else self._source.close()

    def _received(self, *, left: bool) -> list[bytes]:
        """Return the pieces of the answer; the last one may be cut if its reader has left."""
        if not self._exchange.streamed:
            return self._pieces
        return decompressed(self._exchange.response, self._pieces, int(left))

    def _count(self) -> None:
        """Count what the answer has reported since the last count; many readers leave early."""
        scope = self._scope
        if scope is None or scope.call is None:
            return
        body = b"".join(self._received(left=True))
        spent = amounts_of_usage(self._usage(self._exchange.response, body))
        before, self._counted = self._counted, spent
        usd, tokens, held = (now - then for now, then in zip(spent, before, strict=True))
        if usd > 0 or tokens > 0:
            more = {"cost_usd": usd, "output_tokens": tokens, "cached_input_tokens": held}
            scope.run.account.spend_usage(scope.call.number, more)

    # -- the cache -------------------------------------------------------------------------------

    def _look_up(self) -> Lookup | None:
        exchange, scope = self._exchange, self._scope
        if exchange.cache is None:
            return None
        place, secrets = place_of(scope), scope.run.secrets if scope is not None else NO_SECRETS
        step, arguments = exchange.step(), exchange.arguments(place[1].tag, secrets)
        key = step.parameters.digest(step.parameters.bind((), arguments), ((), arguments))
        root = scope.run.root if scope is not None else None
        return look_up(place, exchange.cache, step.name, key, root, several=True)

    def _answer(self) -> Any:
        exchange, scope = self._exchange, self._scope
        entry = self._lookup.entry if self._lookup is not None else None
        if entry is None:
            return None
        try:
            form = _CODEC.decode(bytes(entry.payload), entry.form)
        except UnreadableValueError:
            return None
        if scope is not None and scope.call is not None:
            scope.run.account.save(scope.call.number, entry.saved)
            say_again(exchange, form, scope)
        if not exchange.streamed:
            return response_from(form, exchange.request)
        read = _apieces_of if self._is_async else pieces_of
        return exchange.again(form, lambda: read(form))

    def _keep(self, *, left: bool) -> None:
        """Keep the answer, once; ``left`` if its reader has left, perhaps before its end."""
        exchange, lookup, self._lookup = self._exchange, self._lookup, None
        if lookup is None:
            return
        pieces = self._received(left=left)
        is_all = not left or is_whole(exchange.response, pieces)
        result = exchange.of_pieces(pieces, 0) if is_all else None
        whole = result is not None and result.error is None
        form = kept_answer(result.value) if result is not None and whole else None
        if form is None:
            lookup.release()
            return
        usd, tokens, _ = amounts_of_usage(self._usage(exchange.response, body_of(form)))
        cost = time.time() - self._began, usd, tokens
        lookup.keep(cost, "", _CODEC.encode(form, "an answer"))

    def _usage(self, response: Any, body: bytes) -> dict[str, Any]:
        """Return the usage that an answer reports."""
        kind, url = response.headers.get("content-type", ""), str(self._exchange.request.url)
        return usage_of(self._exchange.endpoint, kind, body, url)


async def _apieces_of(form: Mapping[str, Any]) -> AsyncIterator[bytes]:
    for piece in pieces_of(form):
        yield piece
