"""Conversion of requests and responses to recorded plain values, and back.

An agent sends its whole conversation with every request, so the requests of n turns would take n²
messages.  To avoid this, a list that begins like an earlier list is recorded as ``{"$like": NAME,
"$first": 12, "$then": [...]}``.  A long value that occurred before is recorded as ``{"$like":
NAME}``.  In a journal, NAME is a digest, since the records of parallel tasks come in any order.  In
a file for people, NAME is the number of the earlier request, and refers to the field of the same
name.

Responses are built for httpx and for httpx2, which today's SDKs use.  The classes come from the
library of the request, which this module never imports.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

# -- request bodies -------------------------------------------------------------------------------


canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Return the canonical JSON text of a value; equal texts mean equal values."""
in_order = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Return the JSON text of a value with its keys in their order, on which prompt caches depend."""
_LONG = 200  # characters of JSON; a shorter value is repeated rather than referred to


def _prefixes(field: str, items: Iterable[Any]) -> Iterator[str]:
    """Yield the digest of each prefix of a list, shortest first."""
    digest = hashlib.sha256(field.encode("utf-8", "surrogatepass"))
    for item in items:
        digest.update(in_order(item).encode("utf-8", "surrogatepass") + b"\n")
        yield digest.copy().hexdigest()[:32]


def _digests(field: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return [*_prefixes(field, value)]
    text = canonical(value)
    return [*_prefixes(field, [text])] if len(text) >= _LONG else []


def _is_long(items: Iterable[Any]) -> bool:
    """Return whether the JSON of a list has ``_LONG`` characters or more.

    The function reads no more items than needed.
    """
    total = 1
    for item in items:
        total += len(canonical(item)) + 1
        if total >= _LONG:
            return True
    return False


class Bodies:
    """The known parts of recorded bodies, by digest."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def shortened(self, body: Any, name: Any = None) -> Any:
        """Return a body with references in place of known parts, and remember its new parts.

        Args:
            body: a JSON value.
            name: the name of the request in references; by default, parts are named by digest.
        """
        if not isinstance(body, dict):
            return body
        short: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        for field, value in body.items():
            digests = _digests(field, value)
            short[field] = self._field(value, digests)
            fresh.update((each, name or each) for each in digests)
        for digest, known in fresh.items():
            self._names.setdefault(digest, known)
        return short

    def _field(self, value: Any, digests: list[str]) -> Any:
        count = next((n for n in range(len(digests), 0, -1) if digests[n - 1] in self._names), 0)
        if not count:
            return value
        like = {"$like": self._names[digests[count - 1]]}
        if not isinstance(value, list):
            return like
        if not _is_long(value[:count]):
            return value
        then = {"$then": value[count:]} if count < len(value) else {}
        return {**like, "$first": count, **then}


def whole_bodies(shortened: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Restore the bodies that :class:`Bodies` shortened.

    Args:
        shortened: for each body, its name and its short form; the name is ``None`` if parts are
            named by digest.

    Returns:
        the bodies in their order; ``None`` for a body that refers to a missing body.
    """
    waiting = dict(enumerate(shortened))
    known: dict[tuple[str, Any], Any] = {}
    found: list[Any] = [None] * len(waiting)
    while waiting:
        before = len(waiting)
        for at, (name, short) in [*waiting.items()]:
            try:
                found[at] = body = _whole(short, known)
            except LookupError:
                continue
            del waiting[at]
            for field, value in body.items() if isinstance(body, dict) else ():
                names = [name] if name is not None else _digests(field, value)
                known.update(((field, each), value) for each in names)
        if len(waiting) == before:
            return found
    return found


def _whole(short: Any, known: dict[tuple[str, Any], Any]) -> Any:
    if not isinstance(short, dict):
        return short
    body = {}
    for field, value in short.items():
        if isinstance(value, dict) and "$like" in value:
            like = known[field, value["$like"]]
            if "$first" in value:
                like = [*like[: value["$first"]], *value.get("$then", [])]
            value = like  # noqa: PLW2901
        body[field] = value
    return body


# -- recorded responses ---------------------------------------------------------------------------


_END = re.compile(
    rb"^(data: ?\[DONE\]|event: ?(message_stop|response\.(completed|failed|incomplete)))",
    re.MULTILINE,
)
_FINISHING = re.compile(
    rb"^(data: ?\[DONE\]|event: ?(message_delta|response\.(completed|failed|incomplete)))"
    rb'|"finish_reason": ?"',
    re.MULTILINE,
)
_ENDED = re.compile(
    rb"^(data: ?\[DONE\]"
    rb"|event: ?(message_stop|response\.(completed|failed|incomplete|cancelled))\r?\ndata)"
    rb'|"(type|event_type)": ?"(message_stop|message-end|stream-end'
    rb'|response\.(completed|failed|incomplete|cancelled))"'
    rb'|"finish_?[rR]eason": ?"[^"]|"blockReason"|"(done|is_finished)": ?true',
    re.MULTILINE,
)
_ENDING = {
    *("chat", "chat.completions", "completions", "generate", "generate_content", "messages"),
    "responses",
}
"""The endpoints whose streams of events announce their end."""
_ERROR = re.compile(rb'^(event: ?error\s*$|data: ?\{"error": ?[{"])', re.MULTILINE)
_LAST_PIECES = 8
_LAST_LINE = re.compile(rb"[^\r\n]+\Z")


def library_of(request: Any) -> Any:
    """Return the module ``httpx`` or ``httpx2`` that a request belongs to."""
    for cls in type(request).__mro__:
        name = cls.__module__.partition(".")[0]
        if name.startswith("httpx"):
            return sys.modules[name]
    raise TypeError(f"{request!r} is no request of httpx")


def recorded_form(
    response: Any,
    pieces: list[bytes],
    *,
    request: Mapping[str, Any],
    headers: Mapping[str, str],
    left: int = 0,
) -> dict[str, Any]:
    """Return a response as plain data: status, headers, body, and the sizes of its pieces in bytes.

    Args:
        response: the response of httpx or httpx2.
        pieces: the decompressed pieces of the body.
        request: the recorded form of the request.
        headers: the headers to record.
        left: the number of the call if its reader left before the end, else 0.
    """
    body = b"".join(pieces)
    form: dict[str, Any] = {
        "request": dict(request),
        "status": response.status_code,
        "headers": dict(headers),
    }
    try:
        form["body"] = body.decode()
    except UnicodeDecodeError:
        form["base64"] = base64.b64encode(body).decode()
    if len(pieces) > 1:
        form["sizes"] = [len(piece) for piece in pieces]
    if left:
        form["left"] = left
    if response.default_encoding != "utf-8":
        encoding = response.default_encoding
        form["encoding"] = encoding if isinstance(encoding, str) else encoding(body)
    return form


def decompressed(response: Any, pieces: list[bytes], left: int = 0) -> list[bytes]:
    """Return the decompressed pieces of a streamed body.

    Args:
        response: the response of httpx or httpx2.
        pieces: the pieces as received.
        left: not 0 if the reader left before the end, so that the last piece may be incomplete.
    """
    if "content-encoding" not in response.headers:
        return [piece for piece in pieces if piece]
    library = library_of(response.request)
    encoded = library.Response(
        response.status_code,
        headers=response.headers,
        stream=stream_class(library)(lambda: iter(pieces)),
    )
    whole: list[bytes] = []
    try:
        whole.extend(encoded.iter_bytes())
    except library.DecodingError:
        if not left:  # otherwise the body was cut off in the middle of a block
            raise
    return whole


def body_of(form: Mapping[str, Any]) -> bytes:
    """Return the body of a recorded response."""
    if "base64" in form:
        return base64.b64decode(form["base64"])
    body: str = form["body"]
    return body.encode()


def pieces_of(form: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the body of a recorded response in its original pieces."""
    body, at = body_of(form), 0
    for size in form.get("sizes") or ([len(body)] if body else []):
        yield body[at : at + size]
        at += size


def response_from(form: Mapping[str, Any], request: Any, stream: Any = None) -> Any:
    """Build the library's response object from a recorded response.

    Args:
        form: the recorded response.
        request: the request of httpx or httpx2.
        stream: a stream that yields the body; without a stream, the response is already read.
    """
    library = library_of(request)
    body = {"content": body_of(form)} if stream is None else {"stream": stream}
    response = library.Response(
        form["status"],
        headers=form["headers"],
        request=request,
        default_encoding=form.get("encoding") or "utf-8",
        **body,
    )
    response.elapsed = timedelta(0)
    return response


@cache
def stream_class(library: Any) -> Any:
    """Return a library's class of streams for synchronous and asynchronous readers.

    The constructor takes a function that returns an iterator of pieces, a function that closes the
    stream, and the response's original stream.
    """

    class PieceStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __init__(
            self,
            pieces: Callable[[], Any],
            closing: Callable[[], Any] | None = None,
            source: Any = None,
        ) -> None:
            self._pieces = pieces
            self._closing = closing
            self._source = source

        @property
        def elapsed(self) -> timedelta | None:  # httpx2 reads a response's ``elapsed`` from here
            elapsed: timedelta | None = getattr(self._source, "elapsed", None)
            return elapsed

        def __iter__(self) -> Iterator[bytes]:
            pieces: Iterator[bytes] = self._pieces()
            return pieces

        def __aiter__(self) -> AsyncIterator[bytes]:
            pieces: AsyncIterator[bytes] = self._pieces()
            return pieces

        def close(self) -> None:
            left = self._closing() if self._closing is not None else None
            if inspect.iscoroutine(left):
                left.close()
                raise RuntimeError("Attempted to call a sync close on an async stream.")  # httpx's

        async def aclose(self) -> None:
            if self._closing is not None:
                await self._closing()

    return PieceStream


def _is_of_events(response: Any) -> bool:
    return "event-stream" in response.headers.get("content-type", "")


def is_whole(response: Any, pieces: list[bytes]) -> bool:
    """Return whether an event stream has announced its end, at which its readers stop."""
    tail = b"".join(pieces[-_LAST_PIECES:])
    ends = tail.endswith((b"\n\n", b"\r\n\r\n")) and _END.search(tail) is not None
    return _is_of_events(response) and ends and not is_failed(response, pieces)


def is_failed(response: Any, pieces: list[bytes]) -> bool:
    """Return whether an event stream ended with an error (a limit, an overload), not an answer."""
    tail = b"".join(pieces[-_LAST_PIECES:])
    return _is_of_events(response) and _ERROR.search(tail) is not None


def is_broken(response: Any, endpoint: str, pieces: list[bytes]) -> bool:
    """Return whether a stream of a model's answer ended without announcing its end or an error.

    Args:
        response: the response of httpx or httpx2.
        endpoint: the name of the endpoint.
        pieces: the decompressed pieces of the body.
    """
    kind = response.headers.get("content-type", "")
    if endpoint not in _ENDING or not ("event-stream" in kind or "ndjson" in kind):
        return False
    body = _whole_lines(b"".join(pieces))
    return _ENDED.search(body) is None and _ERROR.search(body) is None


def _whole_lines(body: bytes) -> bytes:
    """Return a stream without an incomplete last line, which no reader takes for an event."""
    last = _LAST_LINE.search(body)
    line = last[0].strip().removeprefix(b"data:") if last is not None else b""
    if last is None or line.strip() in (b"", b"[DONE]"):
        return body
    try:
        json.loads(line)
    except ValueError:
        return body[: last.start()]
    return body


def is_finishing(response: Any, pieces: list[bytes]) -> bool:
    """Return whether an event stream has said why the model stopped; only its end follows then."""
    return _is_of_events(response) and _FINISHING.search(b"".join(pieces[-2:])) is not None
