"""``stepwise.instrument``: model calls are recorded, whatever framework makes them.

Clients of openai, anthropic and litellm send their requests with httpx (or httpx2): there, below
everything that frameworks use of an SDK, a request to a model endpoint becomes a recorded step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import wrapt

from stepwise._checkpoints.resources import in_factory
from stepwise._execution.active_run import Scope, current_scope
from stepwise._execution.outside import warn_if_unseen
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import process_lock
from stepwise.errors import ConfigurationError
from stepwise.integrations._model_requests import endpoint_of
from stepwise.integrations._request_spending import asend_counted, send_counted
from stepwise.integrations._requests import Exchange, RequestKind, asend, send
from stepwise.integrations._supported import LIBRARIES, does_not_fit, require

__all__ = ["answering", "instrument", "uninstrument"]

_READS = ("GET", "HEAD", "OPTIONS", "TRACE")


class _Method(NamedTuple):
    """A method that is wrapped: ``Client.send`` of a module."""

    module: str
    path: str
    wrapper: Callable[..., Any]


_sdk: ContextVar[str] = ContextVar("stepwise_sdk", default="")
"""The SDK that is making a request in this flow of control."""

_everywhere: set[str] = set()
"""The SDKs all of whose clients are instrumented."""

_clients: WeakKeyDictionary[Any, RequestKind] = WeakKeyDictionary()
"""The clients of httpx that are instrumented one by one."""

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
) -> None:
    """Record the requests to models: each is made once per run, and answered after a crash.

    Without arguments, those of every client of openai, anthropic and litellm in this process, also
    of clients that are made later: so a framework on these SDKs becomes durable by one line.
    Outside of runs, and in the bodies of steps, requests are made as usual; those of steps count
    for the budget of the run (:class:`stepwise.Budget`), as recorded requests do.

    Answers with status 2xx, and 4xx other than 401, 403, 408, 409, 425 and 429, are recorded; all
    others, and failed connections, are attempts, which the client repeats as it is configured.

    Args:
        client: a client of openai or anthropic, whose requests to models are recorded.  Or a client
            of httpx (``httpx.Client``, ``httpx.AsyncClient``), all of whose requests are.
        name: of a client of httpx, for its steps.  It must be given.
        reads: for a client of httpx, the methods that change nothing.  A request of any other is
            a side effect: announced before it is sent, never silently repeated.

    Raises:
        ConfigurationError: it is no such client; or the version of a library does not fit.
    """
    if client is None:
        if name is not None:
            raise ConfigurationError(
                "name= is for a client of httpx: stepwise.instrument(client, …)"
            )
        for sdk in _SDKS:
            _instrument_sdk(sdk)
        return
    if isinstance(client, ModuleType) and client.__name__ in _SDKS:
        _instrument_sdk(client.__name__)
        return
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
    _watch_httpx()
    _clients[sender] = RequestKind(sdk or f"{name}", named=not sdk, reads=methods)


def uninstrument(client: Any = None, /) -> None:
    """Undo :func:`instrument`: requests are made as usual, in runs too.

    Args:
        client: as it was given to ``instrument``; without it, every client.

    Raises:
        ConfigurationError: it is no client.
    """
    if client is not None:
        if isinstance(client, ModuleType):
            _everywhere.discard(client.__name__)
        else:
            _clients.pop(_sender(client)[0], None)
        return
    _everywhere.clear()
    _clients.clear()
    with _mutex:
        for module, path in [] if _answers else list(_wrapped):
            _unwrap(module, path)


@contextmanager
def answering(answer: Callable[..., Any]) -> Iterator[None]:
    """Within the block, a function answers the requests of every client of the SDKs.

    Recording is not its business: inside a run of instrumented clients its answers are recorded.

    Args:
        answer: ``answer(request, streamed=, asynchronous=)`` returns the response.
    """
    _answers.append(answer)
    try:
        _watch_httpx()
        for sdk, methods in _SDKS.items():
            for method in methods:
                _when_imported(method, sdk)
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
    if isinstance(client, (type, str)):
        given = f"{client!r}: give an instance, or the module"
    raise ConfigurationError(
        f"instrument() takes a client of openai or anthropic, or one of httpx, not {given}. "
        "A framework's model is made durable through the SDK below it: stepwise.instrument()"
    )


# -- where requests are made ---------------------------------------------------------------------


def _kind(client: Any, request: Any) -> RequestKind | None:
    """Return how a request is recorded; ``None`` if it is not."""
    kind = _clients.get(client)
    if kind is None and _sdk.get() in _everywhere:
        kind = RequestKind(_sdk.get())
    if kind is None or kind.named or endpoint_of(request.method, request.url.path):
        return kind
    return None


def _scope(kind: RequestKind) -> Scope | None:
    """Return where a request of a run is made; ``None`` outside of any.

    Raises:
        RunStopped: the run has been stopped with it.
    """
    scope = current_scope()
    if scope is None:
        warn_if_unseen(f"a request of {kind.sdk}")
    else:
        scope.run.refuse_if_stopped()  # also in the body of a step, and in any thread of the run
    return None if in_factory.get() else scope


def _is_answered(client: Any) -> bool:
    if not _answers:
        return False
    kind = _clients.get(client)
    return bool(_sdk.get()) or (kind is not None and not kind.named)


def _send(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if _is_answered(client):
        wrapped = _answer
    kind = _kind(client, _request(args, kwargs))
    scope = _scope(kind) if kind is not None else None
    if kind is None or scope is None:
        return wrapped(*args, **kwargs)
    request = _request(args, kwargs)
    streamed = bool(kwargs.get("stream", False))
    if scope.call is not None:  # the step is what is recorded
        return send_counted(scope, request, lambda: wrapped(*args, **kwargs), streamed=streamed)
    request.read()
    return send(scope, Exchange(kind, request, lambda: wrapped(*args, **kwargs), streamed=streamed))


async def _asend(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    if _is_answered(client):
        wrapped = _aanswer
    kind = _kind(client, _request(args, kwargs))
    scope = _scope(kind) if kind is not None else None
    if kind is None or scope is None:
        return await wrapped(*args, **kwargs)
    request = _request(args, kwargs)
    streamed = bool(kwargs.get("stream", False))
    if scope.call is not None:
        sending = asend_counted(scope, request, lambda: wrapped(*args, **kwargs), streamed=streamed)
        return await sending
    await request.aread()
    exchange = Exchange(kind, request, lambda: wrapped(*args, **kwargs), streamed=streamed)
    return await asend(scope, exchange)


def _answer(*args: Any, **kwargs: Any) -> Any:
    request = _request(args, kwargs)
    request.read()
    return _answers[-1](request, streamed=bool(kwargs.get("stream")), asynchronous=False)


async def _aanswer(*args: Any, **kwargs: Any) -> Any:
    request = _request(args, kwargs)
    await request.aread()
    return _answers[-1](request, streamed=bool(kwargs.get("stream")), asynchronous=True)


def _request(args: Any, kwargs: Any) -> Any:
    return args[0] if args else kwargs["request"]


def _marking(sdk: str) -> Callable[..., Any]:
    """Return a wrapper that says whose request is being made while a method runs."""

    def marked(wrapped: Any, _client: Any, args: Any, kwargs: Any) -> Any:
        token = _sdk.set(sdk)
        try:
            return wrapped(*args, **kwargs)
        finally:
            _sdk.reset(token)

    return marked


def _amarking(sdk: str) -> Callable[..., Any]:
    async def marked(wrapped: Any, _client: Any, args: Any, kwargs: Any) -> Any:
        token = _sdk.set(sdk)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            _sdk.reset(token)

    return marked


_HTTPX = {
    name: (_Method(name, "Client.send", _send), _Method(name, "AsyncClient.send", _asend))
    for name in ("httpx", "httpx2")
}
_LITELLM = "litellm.llms.custom_httpx.http_handler"
_SDKS = {
    **{
        sdk: (
            _Method(f"{sdk}._base_client", "SyncAPIClient.request", _marking(sdk)),
            _Method(f"{sdk}._base_client", "AsyncAPIClient.request", _amarking(sdk)),
        )
        for sdk in ("openai", "anthropic")
    },
    "litellm": (
        _Method(_LITELLM, "HTTPHandler.post", _marking("litellm")),
        _Method(_LITELLM, "AsyncHTTPHandler.post", _amarking("litellm")),
    ),
}


def _instrument_sdk(sdk: str) -> None:
    _everywhere.add(sdk)
    _watch_httpx()
    for place in _SDKS[sdk]:
        _when_imported(place, sdk)


def _watch_httpx() -> None:
    for places in _HTTPX.values():
        for place in places:
            _when_imported(place)


def _when_imported(place: _Method, sdk: str = "") -> None:
    """Wrap a method now, or when its module is imported."""
    if place.module in sys.modules:
        _wrap(place, sdk)
        return
    wrapt.register_post_import_hook(lambda _: _wrap(place, sdk), place.module)


def _wrap(place: _Method, sdk: str) -> None:
    with _mutex:
        if (place.module, place.path) in _wrapped or (
            sdk and sdk not in _everywhere and not _answers
        ):
            return
        if sdk in LIBRARIES:
            require(sdk)
        try:
            wrapt.wrap_function_wrapper(place.module, place.path, place.wrapper)
        except AttributeError as error:
            raise does_not_fit(sdk, f"{place.module} has no {place.path}") from error
        _wrapped.add((place.module, place.path))


def _unwrap(module: str, path: str) -> None:
    """Put the plain method back, unless somebody has wrapped ours since."""
    owner: Any = import_module(module)
    class_name, _, method = path.partition(".")
    owner = getattr(owner, class_name)
    current = owner.__dict__[method]
    if isinstance(current, wrapt.FunctionWrapper):
        setattr(owner, method, current.__wrapped__)
        _wrapped.discard((module, path))
