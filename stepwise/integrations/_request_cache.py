"""Requests that the cache answers where they are sent: in bodies of steps, and outside of runs.

A recorded request is a call of its run; :mod:`stepwise._calls.cached` answers it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from stepwise._calls.cached import Lookup, usable_cache
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import Scope
from stepwise._journal.cache import CacheEntry
from stepwise._journal.journal import seal_for
from stepwise._runtime import settings
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
from stepwise.stores import open_store

_CODEC = Codec("json")


class SentRequest:
    """A request that is not recorded, and its look into the cache.

    Args:
        exchange: the request.
        scope: of the step whose body makes it; ``None`` outside of runs.
        asynchronous: whether an asynchronous client sends it.
    """

    def __init__(self, exchange: Exchange, scope: Scope | None, *, asynchronous: bool) -> None:
        self._exchange, self._scope, self._asynchronous = exchange, scope, asynchronous
        self._lookup, self._began = self._look_up(), time.time()

    def _look_up(self) -> Lookup | None:
        exchange, scope = self._exchange, self._scope
        if exchange.cache is None:
            return None
        store = scope.run.journal.store if scope is not None else open_store(settings.store())
        seal = scope.run.journal.seal if scope is not None else seal_for(store)
        found = usable_cache(store, seal, exchange.cache)
        if found is None:
            return None
        secrets = scope.run.secrets if scope is not None else NO_SECRETS
        step, arguments = exchange.step(), exchange.arguments(seal, secrets)
        key = step.parameters.digest(step.parameters.bind((), arguments), ((), arguments))
        return Lookup(found[0], step.name, key, found[1], scope.run.root if scope else None)

    def answer(self) -> Any:
        """Return the response from the cache, or ``None``."""
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
        if self._asynchronous:
            return exchange.again(form, lambda: _awaited(form))
        return exchange.again(form, lambda: pieces_of(form))

    def failed(self) -> None:
        """Note that the request has no answer."""
        if self._lookup is not None:
            self._lookup.release()

    def kept(self, response: Any) -> Any:
        """Return the response of the server, which is kept once its reader has it whole."""
        if self._lookup is None:
            return response
        self._exchange.response = response
        if not self._exchange.streamed:
            self._keep([response.content])
            return response
        source, pieces, asynchronous = response.stream, list[bytes](), self._asynchronous
        over = _Over(lambda: self._keep(decompressed(response, pieces)), self.failed)

        def read() -> Iterator[bytes]:
            for piece in source:
                pieces.append(piece)
                yield piece
            over.whole()

        async def aread() -> AsyncIterator[bytes]:
            async for piece in source:
                pieces.append(piece)
                yield piece
            over.whole()

        def close() -> Any:
            over.left(whole=is_whole(response, decompressed(response, pieces, 1)))
            return source.aclose() if asynchronous else source.close()

        cls = stream_class(library_of(self._exchange.request))
        response.stream = cls(aread if asynchronous else read, close, source)
        return response

    def _keep(self, pieces: list[bytes]) -> None:
        exchange, lookup = self._exchange, self._lookup
        result = exchange.of_stream(pieces, 0, decompress=False)
        form = kept_answer(result.value) if result.error is None else None
        if lookup is None or form is None:
            self.failed()
            return
        usage = usage_of_request(exchange.request, exchange.response, body_of(form))
        payload, kind = _CODEC.encode(form, "an answer")
        run, now = self._scope.run.root.run_id if self._scope is not None else "", time.time()
        cost = amounts_of_usage(usage)
        lookup.keep(CacheEntry(run, now, now - self._began, *cost, "", kind, payload))


class _Over:
    """The end of a stream, which comes once."""

    def __init__(self, keep: Callable[[], None], fail: Callable[[], None]) -> None:
        self._keep, self._fail, self._is_over = keep, fail, False

    def whole(self) -> None:
        """Keep the answer: its reader has all of it."""
        self.left(whole=True)

    def left(self, *, whole: bool) -> None:
        """Note that the reader stops."""
        if not self._is_over:
            self._is_over = True
            (self._keep if whole else self._fail)()


async def _awaited(form: Mapping[str, Any]) -> AsyncIterator[bytes]:
    for piece in pieces_of(form):
        yield piece
