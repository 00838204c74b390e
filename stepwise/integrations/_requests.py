"""HTTP requests as steps: recorded once, answered from the journal.

Recording happens below the SDKs: the record holds the request that the client library sends, and
the bytes of the answer.  So every form in which a framework asks for the answer (parsed, raw,
streamed) is made from the same record.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stepwise._calls.async_driver import adrive, aresume, in_task_of, until_body
from stepwise._calls.driver import Core, Result, at_once, drive, resume, run
from stepwise._calls.emitting import emissions_of
from stepwise._calls.limited import Limit
from stepwise._calls.rate_limits import LeftOfLimit, left_of, plain_headers
from stepwise._calls.steps import Step
from stepwise._calls.streams import AsyncStreamed, Streamed, forget_beginning
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.outcomes import ShownValue
from stepwise._runtime.facts import NamedTuple
from stepwise._values.preview import Hiding, Secrets, preview_arguments
from stepwise.errors import ConfigurationError, StreamChangedError
from stepwise.integrations import _recorded_responses as recorded
from stepwise.integrations._model_answers import Telling, shown_of
from stepwise.integrations._model_requests import (
    MODEL_REQUEST,
    ModelRequest,
    endpoint_of,
    is_final,
    keep_headers,
    read_request,
)

if TYPE_CHECKING:
    from stepwise._calls.call import Performance
    from stepwise._runtime.settings import Cache

# -- the text of answers -------------------------------------------------------------------------


def saying(scope: Scope | None, response: Any, emits: str) -> Callable[[bytes], None]:
    """Return a function that says the text of an answer on a stream, from its pieces."""
    telling = Telling(response.headers.get("content-type", ""))
    received: list[bytes] = []
    done = 0

    def say(piece: bytes) -> None:
        nonlocal done
        if not emits or scope is None:
            return
        if "content-encoding" in response.headers:
            received.append(piece)
            body = b"".join(recorded.decompressed(response, received, 1))
            piece, done = body[done:], len(body)
        for text in telling.take(piece):
            emissions_of(scope.run).emit(text, emits, scope.around)

    return say


def _said(source: Iterable[bytes], say: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in source:
        say(piece)
        yield piece


async def _asaid(
    source: AsyncIterable[bytes], say: Callable[[bytes], None]
) -> AsyncIterator[bytes]:
    async for piece in source:
        say(piece)
        yield piece


# -- limits --------------------------------------------------------------------------------------


_CHARACTERS = 4  # of a text, for a token
_OUTPUT = ("max_tokens", "max_completion_tokens", "max_output_tokens")


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
    limits, body = instrumented.limits, None
    if not limits:
        return None
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


# -- requests -------------------------------------------------------------------------------------


# The answer of any server may depend on these.  Others (for a tenant, a trace) are unknown here.
_COUNTING = (
    "accept",
    "accept-language",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "prefer",
    "range",
    "x-http-method-override",
)
_CONNECTION = (
    "connection",
    "content-encoding",
    "keep-alive",
    "set-cookie",
    "transfer-encoding",
)


class RequestKind(NamedTuple):
    """The kind of recorded request that a client sends.

    Args:
        sdk: ``httpx``, or the name that the user gave a client of httpx.
        named: True for a named client, whose requests are all recorded, not only model requests.
        reads: for a named client, the methods that change nothing; a request with another method is
            a side effect.
        emits: the stream of the run that gets the text of streamed answers; empty for none.
    """

    sdk: str
    named: bool = False
    reads: frozenset[str] = frozenset()
    emits: str = ""


class Instrumented:
    """The options of ``instrument()`` for requests to models.

    Attributes:
        kind: the kind of those of all clients; ``None`` unless they are recorded.
        cache: which answers of other runs are used for equal requests.
        limits: the limits, by model or address.
    """

    kind: RequestKind | None = None
    cache: Cache = None

    def __init__(self) -> None:
        self.limits: dict[str, Limit] = {}


instrumented = Instrumented()

# Requests with these fields change what the provider keeps, ask for what it has not made yet, or
# let it call tools that act.
_STATEFUL = frozenset({"background", "container", "conversation", "mcp_servers"})


def _is_stateful(body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    tools = body["tools"] if isinstance(body.get("tools"), list) else []
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)]
    return "mcp" in kinds or not _STATEFUL.isdisjoint(name for name, each in body.items() if each)


class NotFinal(Exception):  # noqa: N818 -- it carries an answer past the journal
    """An answer that is not an outcome, but a failed attempt."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"{response.status_code} {response.reason_phrase}")
        self.response = response


class RequestStep(Step):
    """The step for the requests to one endpoint.

    Args:
        name: the name of the step.
        sdk: the library or client that sends the requests.
        effect: True if the requests have side effects.
        endpoint: True if the endpoint is one of models.
    """

    hands_out = False  # a response is made of it
    says_again = True

    def __init__(self, name: str, sdk: str, *, effect: bool, endpoint: bool) -> None:
        def request(  # the arguments are the identity of a request
            url: str,  # noqa: ARG001
            body: str,  # noqa: ARG001
            method: str,  # noqa: ARG001
            headers: Mapping[str, str],  # noqa: ARG001
            exchange: Exchange,
        ) -> Any:
            return exchange.body()

        request.__module__, request.__qualname__ = sdk, name
        super().__init__(
            request,
            kind="tool" if effect else MODEL_REQUEST if endpoint else "step",
            name=name,
            ignore=("exchange",),
            side_effect=effect,
        )
        self.hiding = _RequestHiding(self.hiding)
        # A failed request (no connection, a limit) is no evidence about the answer.  But it is
        # unknown whether the request reached the server, which matters if it has side effects.
        self.keeps_failures = effect

    def inputs(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the request as the record of its answer has it: with its body as data."""
        read = bound["exchange"].read
        named = {"method": read.method, "url": read.url, "headers": read.headers}
        return {**named, "body": read.body}

    def limit_of(self, bound: Mapping[str, Any]) -> Limit | None:
        """Return the limit of a request."""
        limit: Limit | None = bound["exchange"].limit
        return limit

    def tokens_of(self, bound: Mapping[str, Any]) -> int | None:
        """Return an estimate of the tokens of a request, if its limit counts them."""
        limit = self.limit_of(bound)
        return None if limit is None else limit.estimate

    def left_of_limit(self, bound: Mapping[str, Any]) -> LeftOfLimit | None:
        """Return what the headers of the answer say is left of the limit."""
        response = bound["exchange"].response
        return None if response is None else left_of(plain_headers(response.headers))

    def repeats_refused(self, bound: Mapping[str, Any]) -> bool:
        """Return whether a refused request is sent again here, not by the client."""
        return not bound["exchange"].streamed  # the answer's reader has left the driver

    def cache_for(self, bound: Mapping[str, Any]) -> Cache:
        """Return which answers of other runs may answer a request."""
        cache: Cache = bound["exchange"].cache
        return cache

    def cache_key(self, made: Performance) -> tuple[str, str]:
        """Return the key of a request, which is all of its identity."""
        return made.identity.digest, ""

    def to_cache(self, value: Any) -> Any:
        """Return an answer without its request; ``None`` if it answers no other request."""
        return kept_answer(value)

    def from_cache(self, value: Any, bound: Mapping[str, Any], scope: Scope) -> Any:
        """Return an answer with the request of this call, and say its text again."""
        exchange: Exchange = bound["exchange"]
        say_again(exchange, value, scope)
        return {"request": exchange.request_form(), **value}

    def may_change(self, bound: Mapping[str, Any]) -> bool:
        """Return that nothing changes: the arguments were made for this request alone."""
        return False

    def shown_value(self, value: Any) -> ShownValue:
        """Return the text of an answer, and its usage in tokens."""
        endpoint, kind = value["request"]["endpoint"], value["headers"].get("content-type", "")
        body = recorded.body_of(value)
        text, usage = shown_of(endpoint, kind, body, value["request"]["url"])
        return ShownValue(text or f"{value['status']}, {len(body)} bytes", usage)


class _RequestHiding(Hiding):
    """The display of a request: the model and the last message, or the URL of other requests."""

    def __init__(self, hiding: Hiding) -> None:
        self.__dict__.update(hiding.__dict__)

    def shown(self, bound: Mapping[str, Any], secrets: Secrets) -> str:
        """Return the text that is shown for a request."""
        exchange: Exchange = bound["exchange"]
        read, body = exchange.read, exchange.read.body
        if exchange.kind.named or not isinstance(body, dict):
            shown = {"url": read.url, **({"body": body} if body is not None else {})}
            return preview_arguments(shown, mask=secrets.mask)
        model = {"model": body["model"]} if "model" in body else {"url": read.url}
        asked = next(
            (name for name in ("messages", "input", "prompt", "contents") if name in body), ""
        )
        last = body.get(asked)
        if isinstance(last, list) and last:
            asked, last = f"{asked}[{len(last) - 1}]", last[-1]
        return preview_arguments({**model, **({asked: last} if asked else {})}, mask=secrets.mask)


_bodies: WeakKeyDictionary[ActiveRun, recorded.Bodies] = WeakKeyDictionary()
"""The requests of live runs; the next request is stored as the difference from earlier ones."""


@cache
def _step(name: str, sdk: str, effect: bool, endpoint: bool) -> RequestStep:
    return RequestStep(name, sdk, effect=effect, endpoint=endpoint)


class Exchange:
    """One request, and its answer once it has arrived.

    Args:
        kind: the kind of request that the client sends.
        request: a request of httpx; its body has been read if it is recorded or may be cached.
        forward: sends the request, as the client would have.
        streamed: True if the caller reads the answer.
        is_async: True if an asynchronous client sends the request.
        cached: False if the cache must not answer, since a test does.
    """

    def __init__(
        self,
        kind: RequestKind,
        request: Any,
        forward: Callable[[], Any],
        *,
        streamed: bool,
        is_async: bool,
        cached: bool = True,
    ) -> None:
        self.kind = kind
        self.request = request
        self.forward = forward
        self.streamed, self.is_async = streamed, is_async
        self.response: Any = None
        self.run: ActiveRun | None = None
        self.body: Callable[[], Any] = forward
        self.limit = limit_of(request)
        self.effect = kind.named and request.method.upper() not in kind.reads
        self._cached = cached and not kind.named
        self._streams = recorded.stream_class(recorded.library_of(request))
        self.endpoint = endpoint_of(request.method, request.url.path) or ""

    @cached_property
    def read(self) -> ModelRequest:
        """The identity of the request."""
        request = self.request
        headers = {name.lower(): value for name, value in request.headers.items()}
        read = read_request(request.method, str(request.url), headers, request.content)
        if not self.kind.named:
            return read
        counting = {name: headers[name] for name in _COUNTING if name in headers}
        return read._replace(headers={**read.headers, **counting})

    @cached_property
    def cache(self) -> Cache:
        """Which answers of other runs may answer the request."""
        cache = instrumented.cache if self._cached else None
        return None if cache is None or _is_stateful(self.read.body) else cache

    def arguments(self, tag: Callable[[str, bytes], bytes], secrets: Secrets) -> dict[str, Any]:
        """Return the identity of the request, as arguments of its step.

        Args:
            tag: makes tags with the key of the store.
        """
        read = self.read
        text = json.dumps(read.body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        arguments = {
            "url": read.url,
            "body": text,
            "method": read.method,
            "headers": read.headers,
            "exchange": self,
        }
        if read.hidden:  # prompts that differ only in masked text are different requests
            hidden = secrets.mask(read.hidden).encode("utf-8", "surrogatepass")
            masked = tag("hidden in a request", hidden).hex()
            arguments["headers"] = {**read.headers, "masked": masked}
        return arguments

    def step(self) -> RequestStep:
        """Return the step of the request."""
        kind, read = self.kind, self.read
        name = f"{kind.sdk} {read.method}" if kind.named else self.endpoint
        return _step(name, kind.sdk, self.effect, not kind.named)

    def core(self, scope: Scope) -> Core:
        """Return the core of the recorded call."""
        self.body = self._sent if self.is_async else lambda: at_once(self._sent())
        self.run = scope.run
        step, arguments = self.step(), self.arguments(scope.run.journal.seal.tag, scope.run.secrets)
        if self.cache is not None and step.cache is None:
            step.cache_calls(self.cache)
        if self.limit is not None and step.limit is None:
            step.limit_calls(self.limit)
        return step.core(scope, (), arguments)

    async def _sent(self) -> Any:
        """Send the request; return the answer in its recorded form, or a response to be read.

        The answer to a side effect is always an outcome: the server has acted or has refused, and
        the program continues with the answer.

        Raises:
            NotFinal: the answer is no outcome.
        """
        response = self.response = await self.forward() if self.is_async else self.forward()
        if not self.effect and not is_final(response.status_code):
            raise NotFinal(response)
        return response if self.streamed else self.form([response.content])

    def of_opened(self, opened: Result) -> Result:
        """Return the result of a request that failed, or whose answer a transport has read."""
        return opened if opened.error is not None else Result(self.form([opened.value.content]))

    def of_stream(self, pieces: list[bytes], left: int) -> Result:
        """Return the result of a request with these pieces of its answer, as they were received."""
        return self.of_pieces(recorded.decompressed(self.response, pieces, left), left)

    def of_pieces(self, pieces: list[bytes], left: int) -> Result:
        """Return the result of a request with these decompressed pieces of its answer."""
        if not left and not self.effect and recorded.is_failed(self.response, pieces):
            return Result(error=NotFinal(self.response))
        form = self.form(pieces, left)
        if not left and self.streamed and recorded.is_broken(self.response, self.endpoint, pieces):
            form["cut"] = True
        return Result(form)

    def form(self, pieces: list[bytes], left: int = 0) -> dict[str, Any]:
        """Return the answer in its recorded form."""
        read, headers = self.read, dict(self.response.headers)
        if not self.kind.named:
            kept = keep_headers(headers)
        else:
            kept = {name: value for name, value in headers.items() if name not in _CONNECTION}
            if "content-encoding" in headers and read.method != "HEAD":
                kept.pop("content-length", None)  # the length of the compressed body
        return recorded.recorded_form(
            self.response, pieces, request=self.request_form(), headers=kept, left=left
        )

    def request_form(self) -> dict[str, Any]:
        """Return the request in its recorded form."""
        read = self.read
        request: dict[str, Any] = {
            "method": read.method,
            "url": read.url,
            "endpoint": self.endpoint,
        }
        if self.endpoint and self.run is not None:  # so that an export can answer the request
            secrets = self.run.secrets
            body = secrets.masked(read.body) if secrets else read.body
            bodies = _bodies.setdefault(self.run, recorded.Bodies())
            request |= {"headers": read.headers, "body": bodies.shortened(body)}
        return request

    def ends(self) -> dict[str, Callable[[list[bytes]], bool]]:
        """Return how the end of the answer's stream is recognised, as arguments of ``Streamed``."""
        return {
            "complete": partial(recorded.is_whole, self.response),
            "finishing": partial(recorded.is_finishing, self.response),
            "broken": partial(recorded.is_broken, self.response, self.endpoint),
        }

    def read_by(self, pieces: Callable[[], Any], close: Callable[[], Any]) -> Any:
        """Return the response, whose body is read piece by piece from an iterator."""
        self.response.stream = self._streams(pieces, close, self.response.stream)
        return self.response

    def again(self, form: Mapping[str, Any], pieces: Callable[[], Any]) -> Any:
        """Return a recorded response, whose body is read from an iterator."""
        return recorded.response_from(form, self.request, self._streams(pieces))

    def answer(self, result: Result) -> Any:
        """Return the response for the caller, when the call is over."""
        if isinstance(result.error, NotFinal):
            return result.error.response
        form = result.unwrap()
        return (
            self.response
            if self.response is not None
            else recorded.response_from(form, self.request)
        )


def kept_answer(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a recorded answer without its request; ``None`` if it is a refusal or not whole."""
    if not 200 <= form["status"] < 300 or form.keys() & {"left", "cut"}:
        return None
    return {name: value for name, value in form.items() if name != "request"}


def say_again(exchange: Exchange, form: Mapping[str, Any], scope: Scope) -> None:
    """Say the text of a streamed answer, which the cache gave."""
    if exchange.kind.emits and exchange.streamed:
        telling = Telling(form["headers"].get("content-type", ""))
        for piece in recorded.pieces_of(form):
            for text in telling.take(piece):
                emissions_of(scope.run).emit(text, exchange.kind.emits, scope.around)


# -- sending --------------------------------------------------------------------------------------


async def send(scope: Scope, exchange: Exchange) -> Any:
    """Answer a request from the journal, or send and record it."""
    if exchange.streamed:
        return await _send_streamed(scope, exchange)
    core = exchange.core(scope)
    return exchange.answer(await adrive(core) if exchange.is_async else drive(core))


async def _send_streamed(scope: Scope, exchange: Exchange) -> Any:
    core, is_async = exchange.core(scope), exchange.is_async
    attempt = await until_body(core, is_async=is_async)
    if isinstance(attempt, Result):
        form, replayed = attempt.unwrap(), _areplayed if is_async else _replayed
        return exchange.again(form, lambda: replayed(scope, exchange, form))
    opened = await in_task_of(attempt) if is_async else run(attempt)
    if opened.error is not None or opened.value.is_closed:
        done = exchange.of_opened(opened)
        if is_async:
            return exchange.answer(await aresume(core, attempt, done=done))
        return exchange.answer(resume(core, attempt, done=done))
    source = opened.value.stream
    say = saying(attempt.scope, opened.value, exchange.kind.emits)
    said: Any = _asaid(source, say) if is_async else _said(source, say)
    kind: Any = AsyncStreamed if is_async else Streamed
    pieces = kind(core, attempt, exchange.of_stream, said, **exchange.ends())

    async def close() -> None:
        try:
            _ = await pieces.aclose() if is_async else pieces.close()
        finally:
            _ = await source.aclose() if is_async else source.close()

    if is_async:
        return exchange.read_by(lambda: aiter(pieces), close)
    return exchange.read_by(lambda: iter(pieces), lambda: at_once(close()))


def _replayed(scope: Scope, exchange: Exchange, form: Mapping[str, Any]) -> Iterator[bytes]:
    yield from recorded.pieces_of(form)
    if "left" not in form:
        return
    beginning = _Beginning(scope, exchange, form)
    response = at_once(_send_streamed(scope, exchange))
    try:
        for piece in response.iter_bytes():
            yield from beginning.rest(piece)
    finally:
        response.close()


async def _areplayed(
    scope: Scope, exchange: Exchange, form: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    for piece in recorded.pieces_of(form):
        yield piece
    if "left" not in form:
        return
    beginning = _Beginning(scope, exchange, form)
    response = await _send_streamed(scope, exchange)
    try:
        async for piece in response.aiter_bytes():
            for rest in beginning.rest(piece):
                yield rest
    finally:
        await response.aclose()


class _Beginning:
    """The beginning of a stream, which its reader has received already.

    The reader stopped then, and reads on now: the request is made again, and its answer must begin
    in the same way.
    """

    def __init__(self, scope: Scope, exchange: Exchange, form: Mapping[str, Any]) -> None:
        self._scope = scope
        self._exchange = exchange
        self._number = form["left"]
        self._left = recorded.body_of(form)

    def rest(self, piece: bytes) -> Iterator[bytes]:
        """Yield the part of a piece that follows the known beginning.

        Raises:
            StreamChangedError: the piece differs from the beginning.
        """
        known = self._left[: len(piece)]
        if piece[: len(known)] != known:
            run = self._scope.run
            forget_beginning(run, self._number)
            raise StreamChangedError(
                f"run {run.run_id!r}: the stream of {self._exchange.endpoint or 'a request'} was "
                "left before its end, and recorded as far as it was read; the code now reads on. "
                "It was requested again, and began in another way, which cannot be joined to what "
                "was read. The old beginning is forgotten: run the program again",
                run_id=run.run_id,
            )
        self._left = self._left[len(known) :]
        if len(piece) > len(known):
            yield piece[len(known) :]
