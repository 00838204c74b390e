"""``stepwise.instrument``: model calls are recorded, whatever framework makes them.

SDKs of models send their requests with httpx (or httpx2).  There, below everything that frameworks
use of an SDK, a request to a model becomes a recorded step.  A model request is recognised by its
shape, whichever client sends it.  A request sent by another library is not recorded, and a notice
says so.

The record holds the request that the client library sends, and the bytes of the answer.  So every
form in which a framework asks for the answer (parsed, raw, streamed) is made from the same record.

Requests in the body of a step, whose result is recorded, and those outside of runs are sent as
usual.  Such a request waits for its limit where it is sent, and what it spends counts for the run
of its step.  Recorded requests do all that as calls of their run, and the cache may answer them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import cache, cached_property, partial
from importlib import import_module
from traceback import walk_stack
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import wrapt

from stepwise._calls.async_driver import adrive, aresume, in_task_of, until_body
from stepwise._calls.driver import Core, Result, at_once, drive, resume, run
from stepwise._calls.emitting import emissions_of
from stepwise._calls.limited import Limit, Permit
from stepwise._calls.rate_limits import LeftOfLimit, left_of, plain_headers, refusal_of
from stepwise._calls.steps import Step
from stepwise._calls.streams import AsyncStreamed, Streamed, forget_beginning
from stepwise._checkpoints.resources import in_factory
from stepwise._execution.account import amounts_of_usage
from stepwise._execution.active_run import ActiveRun, Scope, current_scope
from stepwise._execution.outcomes import ShownValue
from stepwise._execution.tasks import warn_if_unseen
from stepwise._runtime.clock import elapsed
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import Once, notice, reports
from stepwise._runtime.options import CACHES, check_stream, is_cache
from stepwise._runtime.settings import Cache
from stepwise._values.preview import Hiding, Secrets, preview_arguments
from stepwise.errors import ConfigurationError, StreamChangedError
from stepwise.integrations._model_protocols import (
    MODEL_REQUEST,
    SENDER,
    ModelRequest,
    Telling,
    asks_model,
    endpoint_of,
    is_final,
    keep_headers,
    read_request,
    shown_of,
    usage_of,
)
from stepwise.integrations._recorded_responses import (
    Bodies,
    body_of,
    decompressed,
    is_broken,
    is_failed,
    is_finishing,
    is_whole,
    library_of,
    pieces_of,
    recorded_form,
    response_from,
    stream_class,
)
from stepwise.integrations._supported import does_not_fit, require

if TYPE_CHECKING:
    from stepwise._calls.call import Performance

__all__ = ["answering", "instrument", "uninstrument"]

# -- the options -----------------------------------------------------------------------------------


_READS = ("GET", "HEAD", "OPTIONS", "TRACE")
_NO_LIMITS: Mapping[str, Limit] = {}


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


_MODELS = RequestKind(SENDER)
"""The kind of the requests to models, whichever client sends them."""


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

_clients: WeakKeyDictionary[Any, RequestKind] = WeakKeyDictionary()
"""The clients of httpx that are instrumented individually."""

_answers: list[Callable[..., Any]] = []
"""Functions that answer requests instead of a server, for tests; the innermost block last."""


# -- instrument ------------------------------------------------------------------------------------


def instrument(
    client: Any = None,
    /,
    *,
    name: str | None = None,
    reads: Iterable[str] = _READS,
    limits: Mapping[str, Limit] = _NO_LIMITS,
    cache: Cache = None,
    emit: str | None = None,
) -> None:
    """Record the requests to models: each is made once per run, and answered after a crash.

    Without arguments, the model requests of every client in this process that uses httpx are
    recorded, including clients created later: litellm, the SDKs of OpenAI, Anthropic, groq, Mistral
    and others.  So one line makes a framework on these SDKs durable.

    A model request is recognised by its shape: a path such as ``/chat/completions``, and a body
    with a model and a question.  For an SDK with the header ``x-stainless-lang``, one of the two is
    enough.  A request sent by requests, aiohttp or botocore is not recorded; a notice names the
    client.  Outside runs, and in the bodies of steps, requests are made as usual.  Requests of
    steps count for the budget of the run (:class:`stepwise.Budget`), as recorded requests do.

    Answers with status 2xx are recorded, and 4xx other than 401, 403, 408, 409, 425 and 429.  All
    other answers, and failed connections, are attempts, which the client repeats as configured.

    Args:
        client: a client of openai or anthropic, whose requests to models are recorded; or a client
            of httpx (``httpx.Client``, ``httpx.AsyncClient``), all of whose requests are recorded.
        name: the name of a client of httpx, for its steps; required for such a client.
        reads: for a client of httpx, the methods that change nothing.  A request with another
            method is a side effect: announced before it is sent, never silently repeated.
        limits: limits (:class:`Limit`) by model or address: ``{"gpt-5": ..., "api.openai.com":
            ...}``; the model comes first.  All requests that are seen wait for them, outside runs
            too.  What a provider refuses (429) is sent again when it allows that.
        cache: answers of other runs that are used for equal recorded requests to models, streamed
            ones and those at any temperature included: ``"dev"`` for any age, but none where
            ``STEPWISE_ENV`` is ``production``; or those of the last ``timedelta(...)``.  The n-th
            equal request of a run gets the n-th answer.
        emit: a stream of the run that gets the text of streamed answers, as :func:`emit` would.

    Raises:
        ConfigurationError: the client is of another kind, or the version of a library does not fit.
    """
    _check_limits(limits)
    if not is_cache(cache):
        raise ConfigurationError(f"cache={cache!r:.200} of instrument(): it must be {CACHES}")
    instrumented.limits.update(limits)
    instrumented.cache = cache
    models = _MODELS._replace(emits=_checked_stream(emit))
    if client is None:
        if name is not None:
            raise ConfigurationError(
                "name= is for a client of httpx: stepwise.instrument(client, …)"
            )
        instrumented.kind = models
        _wrap_all(*_HTTPX, *_UNSEEN)
    else:
        _instrument(client, name, reads, models)


def _instrument(client: Any, name: str | None, reads: Iterable[str], models: RequestKind) -> None:
    """Record the requests of one client; see :func:`instrument`."""
    sender, sdk = _sender(client)
    if not sdk and not name:
        raise ConfigurationError(
            f"instrument({type(client).__name__}) needs a name=: it becomes part of what is "
            'recorded, as in stepwise.instrument(client, name="billing"). Every request of that '
            "client is then a step, and those that are no reads (GET, HEAD) are side effects"
        )
    if sdk and name is not None:
        raise ConfigurationError(f"name= is for a client of httpx, not for one of {sdk}")
    methods = frozenset(
        method.upper() for method in ((reads,) if isinstance(reads, str) else reads)
    )
    _wrap_all(*_HTTPX)
    _clients[sender] = models if sdk else RequestKind(f"{name}", named=True, reads=methods)


def _checked_stream(name: str | None) -> str:
    if name is None:
        return ""
    check_stream(name)
    return name


def _check_limits(given: Mapping[str, Limit]) -> None:
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


def uninstrument(client: Any = None, /) -> None:
    """Undo :func:`instrument`: requests are made as usual, inside runs too.

    Args:
        client: the client that was given to ``instrument``; by default every client.

    Raises:
        ConfigurationError: the object is not a client.
    """
    if client is not None:
        _clients.pop(_sender(client)[0], None)
        return
    instrumented.kind = None
    _clients.clear()
    instrumented.limits.clear()
    instrumented.cache = None
    with _mutex:
        for module, path in [] if _answers else list(_wrapped):
            _unwrap(module, path)


@contextmanager
def answering(answer: Callable[..., Any]) -> Iterator[None]:
    """Answer requests to models, and all requests of marked SDKs, by a function in the block.

    The function does not affect recording: inside a run, the answers of instrumented clients are
    recorded.

    Args:
        answer: ``answer(request, streamed=, asynchronous=)`` returns the response.
    """
    _answers.append(answer)
    try:
        _wrap_all(*_HTTPX)
        yield
    finally:
        _answers.remove(answer)


def _sender(client: Any) -> tuple[Any, str]:
    """Return the client of httpx that sends a client's requests, and the SDK it belongs to."""
    for cls in type(client).__mro__:
        sdk, _, rest = cls.__module__.partition(".")
        if sdk.startswith("httpx") and hasattr(client, "send"):
            return client, ""
        if sdk in ("openai", "anthropic") and rest == "_base_client":
            require(sdk)
            if not hasattr(getattr(client, "_client", None), "send"):
                raise does_not_fit(sdk, "its client has no client of httpx in `_client`")
            return client._client, sdk
    given = f"{type(client).__module__}.{type(client).__qualname__}"
    if isinstance(client, (type, str, ModuleType)):
        given = f"{client!r}: give an instance"
    raise ConfigurationError(
        f"instrument() takes a client of openai or anthropic, or one of httpx, not {given}. "
        "A framework's model is made durable through the SDK below it: stepwise.instrument()"
    )


# -- where requests are made -----------------------------------------------------------------------


def _send(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    return at_once(_sent(wrapped, client, args, kwargs, is_async=False))


async def _asend(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    return await _sent(wrapped, client, args, kwargs, is_async=True)


async def _sent(wrapped: Any, client: Any, args: Any, kwargs: Any, *, is_async: bool) -> Any:
    """Send a request, or answer it from the journal; see :func:`.at_once`."""
    request: Any = args[0] if args else kwargs["request"]
    streamed, forward = bool(kwargs.get("stream", False)), partial(wrapped, *args, **kwargs)
    is_test, kind = _is_answered(client, request), _kind(client, request)
    scope = _scope(kind) if kind is not None else None
    is_recorded = scope is not None and scope.call is None
    if is_test or is_recorded:
        _ = await request.aread() if is_async else request.read()
    if is_test:
        forward = partial(_aanswer if is_async else _answer, request, streamed)
    if kind is None:
        return await forward() if is_async else forward()
    how: dict[str, bool] = {"streamed": streamed, "is_async": is_async}
    exchange = Exchange(kind, request, forward, **how, cached=not is_test)
    if scope is not None and is_recorded:
        return await _send_recorded(scope, exchange)
    return await SentRequest(exchange, scope).send()


def _answer(request: Any, streamed: bool) -> Any:
    return _answers[-1](request, streamed=streamed, asynchronous=False)


async def _aanswer(request: Any, streamed: bool) -> Any:
    return _answers[-1](request, streamed=streamed, asynchronous=True)


def _kind(client: Any, request: Any) -> RequestKind | None:
    """Return the kind of a recorded or counted request; ``None`` for others."""
    kind = _clients.get(client)
    if kind is None:
        models = instrumented.kind
        return models if models is not None and _asks_model(request) else None
    return kind if kind.named or endpoint_of(request.method, request.url.path) else None


def _asks_model(request: Any) -> bool:
    """Return whether a request of any client of httpx is a request to a model."""
    method, path = request.method, request.url.path
    if endpoint_of(method, path) is None or not hasattr(request.stream, "__iter__"):
        return False  # JSON and forms are iterable, even from an asynchronous client
    return asks_model(method, path, request.read(), of_sdk=_is_of_sdk(request))


def _is_of_sdk(request: Any) -> bool:
    """Return whether an SDK made a request: SDKs of most model providers set this header.

    A generator of SDKs sets the header, so SDKs of other services have it, too.
    """
    return "x-stainless-lang" in request.headers


def _scope(kind: RequestKind) -> Scope | None:
    """Return the scope of a request in a run; ``None`` outside any run.

    Raises:
        RunStopped: the run has been stopped with this error.
    """
    scope = current_scope()
    if scope is None:
        warn_if_unseen(f"a request of {kind.sdk}")
    else:
        scope.run.refuse_if_stopped()  # also in the body of a step, and in any thread of the run
    return None if in_factory.get() else scope


def _is_answered(client: Any, request: Any) -> bool:
    if not _answers:
        return False
    kind = _clients.get(client)
    if kind is not None:
        return not kind.named
    return _is_of_sdk(request) or _asks_model(request)


# -- the wrapped methods ---------------------------------------------------------------------------


_wrapped: set[tuple[str, str]] = set()
_mutex = process_lock()


class _Method(NamedTuple):
    """A method to wrap, such as ``Client.send`` of a module."""

    module: str
    path: str
    wrapper: Callable[..., Any]


def _unseen(wrapped: Any, _connection: Any, args: Any, kwargs: Any) -> Any:
    """Report a request, given by its method and URL, that is not made with httpx."""
    if instrumented.kind is not None and len(args) > 1:
        _report_unseen(f"{args[0]}", f"{args[1]}")
    return wrapped(*args, **kwargs)


_HTTPX = tuple(
    method
    for name in ("httpx", "httpx2")
    for method in (_Method(name, "Client.send", _send), _Method(name, "AsyncClient.send", _asend))
)
_UNSEEN = (
    _Method("http.client", "HTTPConnection.putrequest", _unseen),  # requests, botocore, urllib3
    _Method("aiohttp.client", "ClientSession._request", _unseen),
)


def _wrap_all(*places: _Method) -> None:
    """Wrap methods now, or when their modules are imported."""
    for place in places:
        if place.module in sys.modules:
            _wrap(place)
        else:
            wrapt.register_post_import_hook(partial(_wrap, place), place.module)


def _wrap(place: _Method, _: object = None) -> None:
    with _mutex:
        if (place.module, place.path) not in _wrapped:
            wrapt.wrap_function_wrapper(place.module, place.path, place.wrapper)
            _wrapped.add((place.module, place.path))


def _unwrap(module: str, path: str) -> None:
    """Restore the original method, unless somebody has wrapped ours since."""
    owner: Any = import_module(module)
    class_name, _, method = path.partition(".")
    owner = getattr(owner, class_name)
    current = owner.__dict__[method]
    if isinstance(current, wrapt.FunctionWrapper):
        setattr(owner, method, current.__wrapped__)
        _wrapped.discard((module, path))


# -- a request and its answer ----------------------------------------------------------------------


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


class NotFinal(Exception):  # noqa: N818 -- it carries an answer past the journal
    """An answer that is not an outcome, but a failed attempt."""

    def __init__(self, response: Any) -> None:
        super().__init__(f"{response.status_code} {response.reason_phrase}")
        self.response = response


_bodies: WeakKeyDictionary[ActiveRun, Bodies] = WeakKeyDictionary()
"""The requests of live runs; the next request is stored as the difference from earlier ones."""


class Exchange:
    """One request, and its answer once it has arrived.

    Args:
        kind: the kind of request that the client sends.
        request: a request of httpx; its body has been read if it is recorded.
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
        self.limit = _limit_of(request)
        self.effect = kind.named and request.method.upper() not in kind.reads
        self._cached = cached and not kind.named
        self._streams = stream_class(library_of(request))
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

    async def forwarded(self) -> Any:
        """Send the request as the client would have; see :func:`.at_once`."""
        return await self.forward() if self.is_async else self.forward()

    async def _sent(self) -> Any:
        """Send the request; return the answer in its recorded form, or a response to be read.

        The answer to a side effect is always an outcome: the server has acted or has refused, and
        the program continues with the answer.

        Raises:
            NotFinal: the answer is no outcome.
        """
        response = self.response = await self.forwarded()
        if not self.effect and not is_final(response.status_code):
            raise NotFinal(response)
        return response if self.streamed else self.form([response.content])

    def of_opened(self, opened: Result) -> Result:
        """Return the result of a request that failed, or whose answer a transport has read."""
        return opened if opened.error is not None else Result(self.form([opened.value.content]))

    def of_stream(self, pieces: list[bytes], left: int) -> Result:
        """Return the result of a request with these pieces of its answer, as they were received."""
        pieces = decompressed(self.response, pieces, left)
        if not left and not self.effect and is_failed(self.response, pieces):
            return Result(error=NotFinal(self.response))
        form = self.form(pieces, left)
        if not left and self.streamed and is_broken(self.response, self.endpoint, pieces):
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
        return recorded_form(
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
            bodies = _bodies.setdefault(self.run, Bodies())
            request |= {"headers": read.headers, "body": bodies.shortened(body)}
        return request

    def ends(self) -> dict[str, Callable[[list[bytes]], bool]]:
        """Return how the end of the answer's stream is recognised, as arguments of ``Streamed``."""
        response, endpoint = self.response, self.endpoint
        return {
            "complete": lambda pieces: is_whole(response, decompressed(response, pieces, 1)),
            "finishing": partial(is_finishing, response),  # asked for each piece
            "broken": lambda pieces: is_broken(
                response, endpoint, decompressed(response, pieces, 1)
            ),
        }

    def read_by(self, pieces: Callable[[], Any], close: Callable[[], Any]) -> Any:
        """Return the response, whose body is read piece by piece from an iterator."""
        self.response.stream = self._streams(pieces, close, self.response.stream)
        return self.response

    def again(self, form: Mapping[str, Any], pieces: Callable[[], Any]) -> Any:
        """Return a recorded response, whose body is read from an iterator."""
        return response_from(form, self.request, self._streams(pieces))

    def answer(self, result: Result) -> Any:
        """Return the response for the caller, when the call is over."""
        if isinstance(result.error, NotFinal):
            return result.error.response
        form = result.unwrap()
        return self.response if self.response is not None else response_from(form, self.request)


# Requests with these fields change what the provider keeps, ask for what it has not made yet, or
# let it call tools that act.
_STATEFUL = frozenset({"background", "container", "conversation", "mcp_servers"})


def _is_stateful(body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    tools = body["tools"] if isinstance(body.get("tools"), list) else []
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)]
    return "mcp" in kinds or not _STATEFUL.isdisjoint(name for name, each in body.items() if each)


def _kept_answer(form: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a recorded answer without its request; ``None`` if it is a refusal or not whole."""
    if not 200 <= form["status"] < 300 or form.keys() & {"left", "cut"}:
        return None
    return {name: value for name, value in form.items() if name != "request"}


# -- limits ----------------------------------------------------------------------------------------


_CHARACTERS = 4  # of a text, for a token
_OUTPUT = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _limit_of(request: Any) -> Limit | None:
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
    return found._changed(estimate=_estimate(body, len(request.read()) if is_read else 0))


def _estimate(body: Mapping[str, Any], size: int) -> int | None:
    """Return the tokens of a request: its text, and the longest answer that it allows.

    Without a longest answer, return ``None``: the usual number is the better guess.
    """
    most = next((body[name] for name in _OUTPUT if isinstance(body.get(name), int)), None)
    return None if most is None else max(1, math.ceil(size / _CHARACTERS) + most)


# -- the text of answers ---------------------------------------------------------------------------


def _saying(scope: Scope | None, response: Any, emits: str) -> Callable[[bytes], None]:
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
            body = b"".join(decompressed(response, received, 1))
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


def _say_again(exchange: Exchange, form: Mapping[str, Any], scope: Scope) -> None:
    """Say the text of a streamed answer, which the cache gave."""
    if exchange.streamed:
        say = _saying(scope, response_from(form, exchange.request), exchange.kind.emits)
        for piece in pieces_of(form):
            say(piece)


# -- recorded requests -----------------------------------------------------------------------------


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
        return _kept_answer(value)

    def from_cache(self, value: Any, bound: Mapping[str, Any], scope: Scope) -> Any:
        """Return an answer with the request of this call, and say its text again."""
        exchange: Exchange = bound["exchange"]
        _say_again(exchange, value, scope)
        return {"request": exchange.request_form(), **value}

    def may_change(self, bound: Mapping[str, Any]) -> bool:
        """Return that nothing changes: the arguments were made for this request alone."""
        return False

    def shown_value(self, value: Any) -> ShownValue:
        """Return the text of an answer, and its usage in tokens."""
        endpoint, kind = value["request"]["endpoint"], value["headers"].get("content-type", "")
        body = body_of(value)
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


@cache
def _step(name: str, sdk: str, effect: bool, endpoint: bool) -> RequestStep:
    return RequestStep(name, sdk, effect=effect, endpoint=endpoint)


async def _send_recorded(scope: Scope, exchange: Exchange) -> Any:
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
    say = _saying(attempt.scope, opened.value, exchange.kind.emits)
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
    yield from pieces_of(form)
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
    for piece in pieces_of(form):
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
        self._left = body_of(form)

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


# -- requests that are not recorded ----------------------------------------------------------------


_LONGEST = 600.0  # seconds for which a refused request is sent again


class SentRequest:
    """A request that is not recorded.

    Args:
        scope: of the step whose body makes it; ``None`` outside of runs.
    """

    def __init__(self, exchange: Exchange, scope: Scope | None) -> None:
        self._exchange, self._scope, self._is_async = exchange, scope, exchange.is_async
        self._counted = 0.0, 0.0, 0.0
        self._source: Any = None
        self._pieces: list[bytes] = []

    async def send(self) -> Any:
        """Send the request; return the response; see :func:`.at_once`."""
        exchange, limit = self._exchange, self._exchange.limit
        response = await (exchange.forwarded() if limit is None else self._in_turn(limit))
        exchange.response = response
        if self._scope is None:
            return response
        if not exchange.streamed:
            self._pieces.append(response.content)
            self._count()
        else:
            self._source = response.stream
            self._say = _saying(self._scope, response, exchange.kind.emits)
            exchange.read_by(self._aread if self._is_async else self._read, self._close)
        return response

    # -- sending ---------------------------------------------------------------------------------

    async def _in_turn(self, limit: Limit) -> Any:
        """Send the request in its turn; wait and send it again while the provider refuses it."""
        began = elapsed()
        while True:
            async with AsyncExitStack() as block:
                if self._is_async:
                    permit = await block.enter_async_context(limit)
                else:
                    permit = block.enter_context(limit)
                response = await self._exchange.forwarded()
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
        finally:
            self._count()

    async def _aread(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._source:
                self._take(piece)
                yield piece
        finally:
            self._count()

    def _take(self, piece: bytes) -> None:
        self._pieces.append(piece)
        if b"sage" in piece:  # usage, usageMetadata
            self._count()
        self._say(piece)

    def _close(self) -> Any:
        self._count()
        return self._source.aclose() if self._is_async else self._source.close()

    def _count(self) -> None:
        """Count what the answer has reported since the last count; many readers leave early."""
        scope = self._scope
        if scope is None or scope.call is None:
            return
        response, pieces = self._exchange.response, self._pieces
        if self._exchange.streamed:
            pieces = decompressed(response, pieces, 1)
        spent = amounts_of_usage(self._usage(response, b"".join(pieces)))
        before, self._counted = self._counted, spent
        usd, tokens, held = (now - then for now, then in zip(spent, before, strict=True))
        if usd > 0 or tokens > 0:
            more = {"cost_usd": usd, "output_tokens": tokens, "cached_input_tokens": held}
            scope.run.account.spend_usage(scope.call.number, more)

    def _usage(self, response: Any, body: bytes) -> dict[str, Any]:
        """Return the usage that an answer reports."""
        kind, url = response.headers.get("content-type", ""), str(self._exchange.request.url)
        return usage_of(self._exchange.endpoint, kind, body, url)


# -- requests that are not seen --------------------------------------------------------------------


# The packages below a client: libraries that send its requests, and their callers.
_TRANSPORTS = ("http", "urllib", "urllib3", "requests", "aiohttp", "asyncio", "wrapt", "stepwise")
_is_first = Once()


@reports
def _report_unseen(method: str, url: str) -> None:
    """Print a notice, once for each client, that its requests to models are not recorded.

    Requests outside runs, and requests made by the body of a step, need no record.

    Args:
        method: the HTTP method.
        url: the URL, or only its path.
    """
    scope = current_scope()
    path = urlsplit(url).path
    if scope is None or scope.call is not None or endpoint_of(method, path) is None:
        return
    client, transport = _client_and_transport(sys._getframe(2))
    if _is_first(client):
        notice(
            f"{client} sends requests to a model (POST {path}) through {transport}, where "
            "instrument() does not see them: they are not recorded, and are made again after a "
            "crash. Put @step on the function that asks, or use a client of httpx: it is seen, and "
            "with stepwise.instrument(client, name=...) each request of it is a step"
        )


def _client_and_transport(frame: FrameType) -> tuple[str, str]:
    """Return the package that makes a request, and the package that sends it."""
    transport = "http.client"
    for each, _ in walk_stack(frame):
        module = f"{each.f_globals.get('__name__', '')}"
        package = module.partition(".")[0]
        if package not in _TRANSPORTS:
            return ".".join(module.split(".")[:2]) if package == "google" else package, transport
        if package in ("urllib3", "requests", "aiohttp"):
            transport = package
    return "a client", transport
