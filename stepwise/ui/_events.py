"""A response of server-sent events, which ends when its server does.

A server waits for its open responses before it tells an application that it ends.  uvicorn sets
``should_exit`` at the signal, so the response looks at that, as ``sse-starlette`` does.

Rejected: Starlette's ``StreamingResponse``.  A reader that has stopped reading blocks its
generator, which then notices neither the end of the server nor that the reader is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any

from stepwise._runtime.interrupts import sigterms

_LOOK = 0.2  # seconds between two looks whether the server ends


def server_ends() -> bool:
    """Return whether the server of this process has been asked to end."""
    server = getattr(sigterms.handler, "__self__", None)
    return getattr(server, "should_exit", False) is True


async def end_of_server() -> None:
    """Return when the server of this process has been asked to end."""
    while not server_ends():  # noqa: ASYNC110 -- a signal handler of uvicorn sets it
        await asyncio.sleep(_LOOK)


class EventResponse:
    """A response of server-sent events.

    Args:
        chunks: what is sent.
        reading: entered while the reader is there.
        headers: more headers.
        says_end: True if the events themselves say that they are all there; else a connection that
            breaks says that they are not.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        reading: AbstractContextManager[Any],
        headers: Mapping[str, str],
        *,
        says_end: bool = True,
    ) -> None:
        self._chunks, self._reading, self._says_end = chunks, reading, says_end
        known = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **{name.lower(): value for name, value in headers.items()},
        }
        self._headers = [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in known.items()
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events; see ASGI."""
        with self._reading:
            async with aclosing(self._chunks):
                work = [self._send(send), _gone(receive), end_of_server()]
                tasks = [asyncio.ensure_future(each) for each in work]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    sending, *others = tasks
                    await cancelled(*others)
                    is_whole = await cancelled(sending)
        if is_whole or self._says_end:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        async for data in self._chunks:
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancelled(*tasks: asyncio.Task[Any] | asyncio.Future[Any] | None) -> bool:
    """Cancel tasks and wait for them; return whether all had come to their end."""
    given = [each for each in tasks if each is not None]
    whole = all(each.done() for each in given)
    for each in given:
        each.cancel()
    for each in given:
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await each
    return whole
