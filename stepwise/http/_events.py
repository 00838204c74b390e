"""Server-sent events: how an item is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from stepwise._values.data import plain
from stepwise.ui._events import cancelled

END = "end"
"""The id of the last event of a run; a browser that reconnects with it is sent away."""

_ALIVE = 15.0  # seconds without an item after which a reader gets a comment

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


# -- the events of a stream ------------------------------------------------------------------------


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
