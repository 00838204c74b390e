"""Server-sent events: how an item is written, and a response that ends when its server does.

A server waits for its open responses before it tells an application that it ends.  uvicorn sets
``should_exit`` at the signal, so the response looks at that, as ``sse-starlette`` does.

Rejected: Starlette's ``StreamingResponse``.  A reader that has stopped reading blocks its
generator, which then notices neither the end of the server nor that the reader is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any

from stepwise._runtime.interrupts import sigterms
from stepwise._values.data import plain

END = "end"
"""The id of the last event of a run; a browser that reconnects with it is sent away."""

_ALIVE = 15.0  # seconds without an item after which a reader gets a comment
_LOOK = 0.2  # seconds between two looks whether the server ends

Encode = Callable[[list[Any]], Iterator[bytes]]
"""Yields the bytes to send for some items."""


class NoJsonError(Exception):
    """A value has no form in JSON; the text says which and why."""


def json_text(value: Any, what: str) -> str:
    """Return a value as JSON.

    Raises:
        NoJsonError: the value has no form in JSON.
    """
    try:
        return json.dumps(value, default=plain, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NoJsonError(f"{what} has no form in JSON: {error}") from error


def event(data: str, name: str = "", number: object = None) -> bytes:
    """Return a server-sent event."""
    lines = [f"event: {name}"] * bool(name) + [f"id: {number}"] * (number is not None)
    lines += [
        f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "backslashreplace")


def encoder(form: Callable[[Any], Any] | None) -> Encode:
    """Return the function that writes items as events.

    Args:
        form: the user's function, or ``None`` for the value of each item as JSON.
    """
    return lambda items: (_event_of(item, form) for item in items)


def _event_of(item: Any, form: Callable[[Any], Any] | None) -> bytes:
    data = item.value if form is None else form(item)
    if form is not None and (data is None or isinstance(data, bytes)):
        return data or b""
    is_text = form is not None and isinstance(data, str)
    text = data if is_text else json_text(data, f"the item {item.offset}")
    name = "" if item.kind == "item" else item.kind
    return event(text, name, END if item.kind == "end" else item.offset)


def problem_event(text: str) -> bytes:
    """Return the event for a stream that cannot go on; nothing follows it."""
    return event(json_text(text, "a problem"), "problem", END)


# -- the response ---------------------------------------------------------------------------------


def server_ends() -> bool:
    """Return whether the server of this process has been asked to end."""
    server = getattr(sigterms.handler, "__self__", None)
    return getattr(server, "should_exit", False) is True


async def end_of_server() -> None:
    """Return when the server of this process has been asked to end."""
    while not server_ends():  # noqa: ASYNC110 -- a signal handler of uvicorn sets it
        await asyncio.sleep(_LOOK)


async def kept_alive(
    groups: AsyncGenerator[list[Any], None], encode: Encode
) -> AsyncGenerator[bytes, None]:
    """Yield the events of items, and a comment whenever none came for a while."""
    following: asyncio.Task[list[Any]] | None = None
    async with aclosing(groups):
        try:
            while True:
                following = following or asyncio.ensure_future(anext(groups))
                done, _ = await asyncio.wait({following}, timeout=_ALIVE)
                if not done:
                    yield b":\n\n"
                    continue
                try:
                    items = following.result()
                except StopAsyncIteration:
                    return
                following, written, problem = None, list[bytes](), None
                try:
                    for data in encode(items):
                        written.append(data)  # what precedes a problem is sent
                except Exception as error:
                    problem = error
                yield b"".join(written)
                if problem is not None:
                    raise problem
        finally:
            await cancelled(following)


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
        headers: dict[str, str],
        *,
        says_end: bool = True,
    ) -> None:
        self._chunks, self._reading, self._says_end = chunks, reading, says_end
        known = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **headers,
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
