"""HTTP responses as recorded values, and back.

For httpx, and for httpx2, which the SDKs of today use: the classes come from the library of the
request, which this module never imports.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

__all__ = [
    "body_of",
    "decompressed",
    "is_failed",
    "is_finishing",
    "is_whole",
    "library_of",
    "pieces_of",
    "recorded_form",
    "response_from",
    "stream_class",
]

_END = re.compile(
    rb"^(data: ?\[DONE\]|event: ?(message_stop|response\.(completed|failed|incomplete)))",
    re.MULTILINE,
)
_FINISHING = re.compile(
    rb"^(data: ?\[DONE\]|event: ?(message_delta|response\.(completed|failed|incomplete)))"
    rb'|"finish_reason": ?"',
    re.MULTILINE,
)
_ERROR = re.compile(rb'^(event: ?error\s*$|data: ?\{"error": ?[{"])', re.MULTILINE)
_LAST_PIECES = 8


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
        pieces: of the body, decompressed.
        request: what the record says of the request.
        headers: those that are recorded.
        left: number of the call, if its reader left before the end.
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
    """Return the pieces of a streamed body as its readers see them; ``left`` before its end."""
    if "content-encoding" not in response.headers:
        return [piece for piece in pieces if piece]
    library = library_of(response.request)
    encoded = library.Response(
        response.status_code,
        headers=response.headers,
        stream=stream_class(library, "SyncByteStream")(lambda: iter(pieces)),
    )
    whole: list[bytes] = []
    try:
        whole.extend(encoded.iter_bytes())
    except library.DecodingError:
        if not left:  # else it was cut off in the middle of a block
            raise
    return whole


def body_of(form: Mapping[str, Any]) -> bytes:
    """Return the body of a recorded response."""
    if "base64" in form:
        return base64.b64decode(form["base64"])
    body: str = form["body"]
    return body.encode()


def pieces_of(form: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the body of a recorded response in the pieces in which it came."""
    body, at = body_of(form), 0
    for size in form.get("sizes") or ([len(body)] if body else []):
        yield body[at : at + size]
        at += size


def response_from(form: Mapping[str, Any], request: Any, stream: Any = None) -> Any:
    """Return a recorded response as the library's own.

    Args:
        stream: yields the body; without it, the response has been read.
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
def stream_class(library: Any, base: str) -> Any:
    """Return a class of streams, ``SyncByteStream`` or ``AsyncByteStream``, of a library.

    Its instances are made of a function that returns an iterator, of one that closes, and of the
    stream of the response that they stand for.
    """

    class PieceStream(getattr(library, base)):  # type: ignore[misc]
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
        def elapsed(self) -> timedelta | None:  # where httpx2 keeps that of a response
            elapsed: timedelta | None = getattr(self._source, "elapsed", None)
            return elapsed

        def __iter__(self) -> Iterator[bytes]:
            pieces: Iterator[bytes] = self._pieces()
            return pieces

        def __aiter__(self) -> AsyncIterator[bytes]:
            pieces: AsyncIterator[bytes] = self._pieces()
            return pieces

        def close(self) -> None:
            if self._closing is not None:
                self._closing()

        async def aclose(self) -> None:
            if self._closing is not None:
                await self._closing()

    return PieceStream


def is_whole(response: Any, pieces: list[bytes]) -> bool:
    """Return whether an event stream has said that it ends, so that its readers stop there."""
    if "event-stream" not in response.headers.get("content-type", ""):
        return False
    tail = b"".join(pieces[-_LAST_PIECES:])
    ends = tail.endswith((b"\n\n", b"\r\n\r\n")) and _END.search(tail) is not None
    return ends and not is_failed(response, pieces)


def is_failed(response: Any, pieces: list[bytes]) -> bool:
    """Return whether an event stream ended with an error (a limit, an overload), and no answer."""
    if "event-stream" not in response.headers.get("content-type", ""):
        return False
    return _ERROR.search(b"".join(pieces[-_LAST_PIECES:])) is not None


def is_finishing(response: Any, pieces: list[bytes]) -> bool:
    """Return whether an event stream has said why the model stopped: only its end follows."""
    if "event-stream" not in response.headers.get("content-type", ""):
        return False
    return _FINISHING.search(b"".join(pieces[-2:])) is not None
