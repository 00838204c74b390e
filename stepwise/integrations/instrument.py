"""``stepwise.instrument``: model calls are recorded, whatever framework makes them.

SDKs of models send their requests with httpx (or httpx2).  There, below everything that frameworks
use of an SDK, a request to a model becomes a recorded step.  A model request is recognised by its
shape, whichever client sends it.  A request sent by another library is not recorded, and a notice
says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from traceback import walk_stack
from types import FrameType, ModuleType
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import wrapt

from stepwise._calls.driver import at_once
from stepwise._calls.limited import Limit
from stepwise._checkpoints.resources import in_factory
from stepwise._execution.active_run import Scope, current_scope
from stepwise._execution.tasks import warn_if_unseen
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import Once, notice, reports
from stepwise._runtime.options import CACHES, check_stream, is_cache
from stepwise._runtime.settings import Cache
from stepwise.errors import ConfigurationError
from stepwise.integrations._model_requests import SENDER, asks_model, endpoint_of
from stepwise.integrations._requests import (
    Exchange,
    RequestKind,
    check_limits,
    instrumented,
    send,
)
from stepwise.integrations._supported import does_not_fit, require
from stepwise.integrations._unrecorded_requests import SentRequest

# -- unseen requests ------------------------------------------------------------------------------


# The packages below a client: libraries that send its requests, and their callers.
_TRANSPORTS = ("http", "urllib", "urllib3", "requests", "aiohttp", "asyncio", "wrapt", "stepwise")
_is_first = Once()


@reports
def report_unseen(method: str, url: str) -> None:
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


# -- instrument -----------------------------------------------------------------------------------


__all__ = ["answering", "instrument", "uninstrument"]

_READS = ("GET", "HEAD", "OPTIONS", "TRACE")
_NO_LIMITS: Mapping[str, Limit] = {}


class _Method(NamedTuple):
    """A method to wrap, such as ``Client.send`` of a module."""

    module: str
    path: str
    wrapper: Callable[..., Any]


_MODELS = RequestKind(SENDER)
"""The kind of the requests to models, whichever client sends them."""


_clients: WeakKeyDictionary[Any, RequestKind] = WeakKeyDictionary()
"""The clients of httpx that are instrumented individually."""

_answers: list[Callable[..., Any]] = []
"""Functions that answer requests instead of a server, for tests; the innermost block last."""

_wrapped: set[tuple[str, str]] = set()
_mutex = process_lock()


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
        cache: answers of other runs that are used for equal requests to models, streamed ones and
            those at any temperature included: ``"dev"`` for any age, but none where
            ``STEPWISE_ENV`` is ``production``; or those of the last ``timedelta(...)``.  The n-th
            equal request of a run gets the n-th answer.
        emit: a stream of the run that gets the text of streamed answers, as :func:`emit` would.

    Raises:
        ConfigurationError: the client is of another kind, or the version of a library does not fit.
    """
    check_limits(limits)
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


# -- where requests are made ---------------------------------------------------------------------


def _kind(client: Any, request: Any) -> RequestKind | None:
    """Return the kind of a recorded request; ``None`` if the request is not recorded."""
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


def _seen(client: Any, request: Any) -> tuple[RequestKind | None, Scope | None]:
    """Return the kind and scope of a recorded or counted request; ``None`` for others."""
    kind = _kind(client, request)
    return kind, _scope(kind) if kind is not None else None


def _send(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    return at_once(_sent(wrapped, client, args, kwargs, is_async=False))


async def _asend(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    return await _sent(wrapped, client, args, kwargs, is_async=True)


async def _sent(wrapped: Any, client: Any, args: Any, kwargs: Any, *, is_async: bool) -> Any:
    """Send a request, or answer it from the journal or the cache; see :func:`.at_once`."""
    request, streamed = _request(args, kwargs), bool(kwargs.get("stream", False))
    is_test, forward = _is_answered(client, request), partial(wrapped, *args, **kwargs)
    kind, scope = _seen(client, request)
    is_recorded = scope is not None and scope.call is None
    is_cached = kind is not None and instrumented.cache is not None and not is_test
    if is_test or is_recorded or is_cached:
        _ = await request.aread() if is_async else request.read()
    if is_test:
        forward = partial(_aanswer if is_async else _answer, request, streamed)
    if kind is None:
        return await forward() if is_async else forward()
    how: dict[str, bool] = {"streamed": streamed, "is_async": is_async}
    exchange = Exchange(kind, request, forward, **how, cached=not is_test)
    if scope is not None and is_recorded:
        return await send(scope, exchange)
    return await SentRequest(exchange, scope).send()


def _answer(request: Any, streamed: bool) -> Any:
    return _answers[-1](request, streamed=streamed, asynchronous=False)


async def _aanswer(request: Any, streamed: bool) -> Any:
    return _answers[-1](request, streamed=streamed, asynchronous=True)


def _request(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs["request"]


def _unseen(wrapped: Any, _connection: Any, args: Any, kwargs: Any) -> Any:
    """Report a request, given by its method and URL, that is not made with httpx."""
    if instrumented.kind is not None and len(args) > 1:
        report_unseen(f"{args[0]}", f"{args[1]}")
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
