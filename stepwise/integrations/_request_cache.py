"""Requests that the cache answers where they are sent: in bodies of steps, and outside of runs.

A recorded request is a call of its run; :mod:`stepwise._calls.cached` answers it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from stepwise._calls.cached import Lookup, look_up, place_of
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import Scope
from stepwise._values.codec import Codec
from stepwise._values.preview import NO_SECRETS
from stepwise.errors import UnreadableValueError
from stepwise.integrations._recorded_responses import (
    body_of,
    decompressed,
    is_whole,
    library_of,
    pieces_of,
    response_from,
    stream_class,
)
from stepwise.integrations._requests import Exchange, kept_answer, say_again, usage_of_request

_CODEC = Codec("json")


class SentRequest:
    """A request that is not recorded, and its look into the cache.

    Args:
        exchange: the request.
        scope: of the step whose body makes it; ``None`` outside of runs.
        asynchronous: whether an asynchronous client sends it.

    Attributes:
        is_answered: whether the cache has answered it.
    """

    is_answered = False

    def __init__(self, exchange: Exchange, scope: Scope | None, *, asynchronous: bool) -> None:
        self._exchange, self._scope, self._asynchronous = exchange, scope, asynchronous
        self._lookup, self._began, self._is_over = self._look_up(), time.time(), False

    def _look_up(self) -> Lookup | None:
        exchange, scope = self._exchange, self._scope
        if exchange.cache is None:
            return None
        place, secrets = place_of(scope), scope.run.secrets if scope is not None else NO_SECRETS
        step, arguments = exchange.step(), exchange.arguments(place[1].tag, secrets)
        key = step.parameters.digest(step.parameters.bind((), arguments), ((), arguments))
        root = scope.run.root if scope is not None else None
        return look_up(place, exchange.cache, step.name, key, root, several=True)

    def send(self) -> Any:
        """Return the response from the cache, or send the request."""
        answer = self._answer()
        if answer is not None:
            return answer
        try:
            return self._kept(self._exchange.forward())
        except BaseException:
            self._failed()
            raise

    async def asend(self) -> Any:
        """Do what :meth:`send` does, for an asynchronous client."""
        answer = self._answer()
        if answer is not None:
            return answer
        try:
            return self._kept(await self._exchange.forward())
        except BaseException:
            self._failed()
            raise

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
        self.is_answered = True
        if not exchange.streamed:
            return response_from(form, exchange.request)
        read = _awaited if self._asynchronous else pieces_of
        return exchange.again(form, lambda: read(form))

    def _failed(self) -> None:
        if self._lookup is not None:
            self._lookup.release()

    def _kept(self, response: Any) -> Any:
        """Return the response of the server, which is kept once its reader has it whole."""
        if self._lookup is None:
            return response
        self._exchange.response = response
        if not self._exchange.streamed:
            self._end([response.content])
            return response
        source, pieces, asynchronous = response.stream, list[bytes](), self._asynchronous

        def read() -> Iterator[bytes]:
            for piece in source:
                pieces.append(piece)
                yield piece
            self._end(decompressed(response, pieces))

        async def aread() -> AsyncIterator[bytes]:
            async for piece in source:
                pieces.append(piece)
                yield piece
            self._end(decompressed(response, pieces))

        def close() -> Any:
            whole = decompressed(response, pieces, 1)
            self._end(whole if is_whole(response, whole) else None)
            return source.aclose() if asynchronous else source.close()

        cls = stream_class(library_of(self._exchange.request))
        response.stream = cls(aread if asynchronous else read, close, source)
        return response

    def _end(self, pieces: list[bytes] | None) -> None:
        """Keep the answer, once; ``None`` if its reader left before the end."""
        exchange, is_first, self._is_over = self._exchange, not self._is_over, True
        if self._lookup is None or not is_first:
            return
        result = exchange.of_pieces(pieces, 0) if pieces is not None else None
        whole = result is not None and result.error is None
        form = kept_answer(result.value) if result is not None and whole else None
        if form is None:
            self._failed()
            return
        usage = usage_of_request(exchange.request, exchange.response, body_of(form))
        usd, tokens, _ = amounts_of_usage(usage)
        self._lookup.keep(
            (time.time() - self._began, usd, tokens), "", _CODEC.encode(form, "an answer")
        )


async def _awaited(form: Mapping[str, Any]) -> AsyncIterator[bytes]:
    for piece in pieces_of(form):
        yield piece
