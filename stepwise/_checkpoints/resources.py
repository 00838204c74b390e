"""Objects that cannot be stored and are recreated on resume: resources, managers, SDK clients.

Resources and context managers are recreated by the user's factories and classes.

Clients that the workflow created are recreated from their options.

A client of a known package is recorded as options if its class creates it from a few options and
the environment (``OpenAI()``, ``httpx.Client(base_url=...)``).  Its key is not recorded: values
from the environment are compared by a MAC.  Creating another client and comparing the two shows
whether this applies.  It does not apply to a client with its own transport, authentication or hook,
or with changed cookies or headers.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from stepwise._identity.clients import has_key, is_foreign
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import process_lock
from stepwise.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")

# -- resources -----------------------------------------------------------------------------------

_made: dict[int, tuple[Any, Any]] = {}  # id of a resource -> reference to it, how to recreate it
_mutex = process_lock()
_held: dict[int, Any] = {}  # resources without weak references: sqlite3.Connection

in_factory: ContextVar[bool] = ContextVar("stepwise_in_factory", default=False)
"""True while a factory creates a resource, which also happens where no call could be answered."""

_DATA = (str, bytes, bytearray, int, float, complex, tuple, list, dict, type(None))


def resource(factory: Callable[P, R]) -> Callable[P, R]:
    """Mark a factory: its result is not stored in a checkpoint but created again.

    Use it for connections, clients and open files.  A local variable with the result of
    ``factory(*args)`` holds the result of a new call ``factory(*args)`` in the resumed run.  The
    arguments must be recordable.  If the result is a context manager, it is entered again.

    Raises:
        ConfigurationError: the factory is not a plain, named function; or, when called, it returned
            plain data.
    """
    if not inspect.isfunction(factory) or inspect.iscoroutinefunction(factory):
        raise ConfigurationError(
            f"@resource decorates a plain function that makes the resource, not {factory!r}"
        )

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> R:
        token = in_factory.set(True)
        try:
            made: R = factory(*args, **kwargs)
        finally:
            in_factory.reset(token)
        _remember(made, (_make, (make, args, kwargs)))
        return made

    return make


def _remember(made: Any, how: Any) -> None:
    if type(made) in _DATA:  # a user's subclass may be more than data
        raise ConfigurationError(
            f"a @resource factory returned a {type(made).__name__}, which is plain data: return "
            "the object to make again on resume"
        )
    key = id(made)
    reference: Any
    try:
        reference = weakref.ref(made, lambda _: _made.pop(key, None))
    except TypeError:
        _let_go()
        _held[key] = made
        reference = functools.partial(_held.get, key)
    _made[key] = reference, how


def _let_go() -> None:
    """Release the held resources that nobody else holds any more."""
    with _mutex:
        for key in list(_held):
            if sys.getrefcount(_held[key]) <= _OURS:
                del _made[key], _held[key]


_OURS = 2  # references to a resource that only we hold: our table's, and getrefcount's argument


def ids_of_made() -> Iterable[int]:
    """Return the ids of all existing resources."""
    if _held:
        _let_go()
    return _made.keys()


def made_by(obj: object) -> Any:
    """Return the reduced form that recreates a resource, or ``None`` for other objects."""
    found = _made.get(id(obj))
    return found[1] if found is not None and found[0]() is obj else None


def _make(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factory(*args, **kwargs)


# -- context managers ----------------------------------------------------------------------------

# By name, so that none need be imported.  Entered again, they work as before.
_REENTERABLE = {
    "_thread.lock",
    "_thread.RLock",
    "aiohttp.client.ClientSession",
    "anthropic.Anthropic",
    "anthropic.AsyncAnthropic",
    "asyncio.locks.Condition",
    "asyncio.locks.Lock",
    "asyncio.timeouts.Timeout",
    "contextlib.nullcontext",
    "contextlib.suppress",
    "httpx.AsyncClient",
    "httpx.Client",
    "openai.AsyncOpenAI",
    "openai.OpenAI",
    "requests.sessions.Session",
    "threading.BoundedSemaphore",
    "threading.Condition",
    "threading.Semaphore",
}
_registered: set[type] = set()


class _Reenterable:
    """A manager that the user declared re-enterable."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def __enter__(self) -> Any:
        return self.manager.__enter__()

    def __exit__(self, *exception: object) -> Any:
        return self.manager.__exit__(*exception)

    async def __aenter__(self) -> Any:
        return await self.manager.__aenter__()

    async def __aexit__(self, *exception: object) -> Any:
        return await self.manager.__aexit__(*exception)


@overload
def reenterable(manager: type[M]) -> type[M]: ...
@overload
def reenterable(manager: M) -> M: ...
def reenterable(manager: Any) -> Any:
    """Declare that a context manager can be entered again when a run resumes inside its block.

    A run cannot resume inside ``with open(path) as file:`` or inside a transaction: position and
    content would be lost.  The run goes back to before the block.  A run can resume inside a
    manager that can simply be created and entered again.  ``with reenterable(manager) as name:``
    declares one manager, and ``reenterable(Class)``, also as a decorator, all managers of a class.
    On resume the head of the ``with`` is evaluated again, with the current variables.
    """
    if isinstance(manager, type):
        _registered.add(manager)
        return manager
    return _Reenterable(manager)


def is_reenterable(manager: object) -> bool:
    """Return whether a run may resume inside the block of this manager."""
    if isinstance(manager, _Reenterable) or made_by(manager) is not None:
        return True
    return any(
        cls in _registered or f"{cls.__module__}.{cls.__qualname__}" in _REENTERABLE
        for cls in type(manager).__mro__
    )


class LetGo:
    """A stand-in, after a resume, for an object that a finished ``with`` block had closed."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} of a {self.__dict__.get('_kind')} that its `with` block had closed before "
            "the run was stopped: it could not be recorded. Read it inside the block"
        )


# -- sdk clients ----------------------------------------------------------------------------------


_OPTIONS = (
    *("base_url", "follow_redirects", "max_redirects", "max_retries", "organization"),
    *("project", "timeout"),
)
_CHANGING = frozenset(
    (
        *("_state", "_platform", "_connections", "_requests", "_idempotency_header"),
        *("_optional_thread_lock", "_network_backend", "_lazy_tracer"),
    )
)
"""Attributes that requests change and that no later request depends on."""

_CACHED = functools.cached_property  # created on first use
_DEEP = 6  # levels of nested objects: client, client of the transport, transport, pool, ...
_PLAIN = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset, type)


class ClientOptions(NamedTuple):
    """The options that a client is created from.

    Args:
        cls: the class of the client.
        options: the options that it was given.
        tag: a MAC over its values from the environment.
    """

    cls: Any
    options: dict[str, Any]
    tag: bytes


class SdkClients:
    """The clients of known packages in the variables of one run.

    Args:
        tag: returns a MAC.
        stop: stops the run, and returns the exception to raise.
    """

    def __init__(self, tag: Callable[[bytes], bytes], stop: Callable[[str], BaseException]) -> None:
        self._tag, self._stop = tag, stop
        self._known: dict[int, tuple[Any, Any, ClientOptions]] = {}  # by id, each with a twin

    def options_of(self, client: Any) -> ClientOptions | None:
        """Return the options of a client, or ``None`` if options alone do not determine it."""
        cls: Any = type(client)
        if cls is MissingClient:
            return client.__dict__["options"]  # type: ignore[no-any-return]
        if not has_key(cls) or not is_foreign(cls):
            return None  # a user's class may hold more
        known = self._known.get(id(client))
        if known is None or known[0]() is not client:
            known = self._made_known(client, cls)
        if known is None or _is_closed(client) or not _same(client, known[1], _DEEP):
            return None
        return known[2]

    def _made_known(self, client: Any, cls: Any) -> tuple[Any, Any, ClientOptions] | None:
        try:
            options = _changed_options(client, cls)
            twin = cls(**options)
            known = weakref.ref(client), twin, ClientOptions(cls, options, self._tag(_rest(twin)))
        except Exception:  # the environment lacks what it needs, or another version
            return None
        self._known[id(client)] = known
        return known

    def again(self, recorded: tuple[Any, ...]) -> Any:
        """Return a recreated client, or a stand-in that stops the run on use if that fails."""
        options = ClientOptions(*recorded)
        name = f"{options.cls.__module__.partition('.')[0]}.{options.cls.__name__}"
        try:
            client = options.cls(**options.options)
        except Exception as error:
            return MissingClient(options, f"a {name} cannot be made ({error})", self._stop)
        if self._tag(_rest(client)) != options.tag:
            why = f"what a {name} gets from the environment, its key, is not what it was"
            return MissingClient(options, why, self._stop)
        return client


class MissingClient:
    """A stand-in for a client that could not be recreated: any use stops the run."""

    def __init__(
        self, options: ClientOptions, why: str, stop: Callable[[str], BaseException]
    ) -> None:
        self.__dict__.update(options=options, why=why, stop=stop)

    def __repr__(self) -> str:
        return f"<{self.__dict__['options'].cls.__name__}, which could not be made again>"

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)  # Python itself asks for it
        raise self.__dict__["stop"](
            f"{self.__dict__['why']}. Set the environment variables that it had when the run "
            "stopped, and start the program again"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self.__getattr__(name)

    def __enter__(self) -> Any:
        return self.__getattr__("close")

    def __exit__(self, *exception: object) -> None:
        """Do nothing: the stand-in is never entered."""

    async def __aenter__(self) -> Any:
        return self.__getattr__("close")

    async def __aexit__(self, *exception: object) -> None:
        """Do nothing: the stand-in is never entered."""


def _changed_options(client: Any, cls: Any) -> dict[str, Any]:
    """Return the options of a client that differ from those of a client created without any."""
    plain, options = cls(), {}
    for name in _OPTIONS:
        if isinstance(getattr(cls, name, None), _CACHED):
            continue  # a part of the service with this name: ``Anthropic().organization``
        value, default = getattr(client, name, None), getattr(plain, name, None)
        if value != default:
            options[name] = str(value) if name == "base_url" else value
    return options


def _rest(client: Any) -> bytes:
    """Return the texts of a client, its key among them."""
    texts = {name: value for name, value in vars(client).items() if isinstance(value, str)}
    return repr(sorted(texts.items())).encode("utf-8", "surrogatepass")


def _is_closed(client: Any) -> bool:
    closed = getattr(client, "is_closed", False)
    return bool(closed() if callable(closed) else closed)


def _same(one: Any, other: Any, deep: int) -> bool:
    """Return whether two clients, or parts of them, behave the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, _PLAIN) or callable(one) or not deep:
        return _same_items(one, other, deep)
    if (sides := [_verified(each) for each in (one, other)])[0] is not None:
        return bool(sides[0] == sides[1])
    cls: Any = type(one)
    if cls.__eq__ is not object.__eq__:
        return bool(one == other)
    held = [_parts(each) for each in (one, other)]
    if held[0].keys() != held[1].keys():
        return False
    return all(_same(value, held[1][name], deep - 1) for name, value in held[0].items())


def _same_items(one: Any, other: Any, deep: int) -> bool:
    if deep and isinstance(one, dict):
        pairs = zip(one.values(), other.values(), strict=False)
        return list(one) == list(other) and all(_same(a, b, deep - 1) for a, b in pairs)
    return one is other or bool(one == other)


def _parts(value: Any) -> dict[str, Any]:
    cls, found = type(value), getattr(value, "__dict__", {}).items()
    return {
        name: held
        for name, held in found
        if name not in _CHANGING and not isinstance(getattr(cls, name, None), _CACHED)
    }


def _verified(context: Any) -> tuple[Any, ...] | None:
    """Return how an SSL context verifies; ``None`` for other objects."""
    if not hasattr(context, "cert_store_stats"):
        return None
    return context.verify_mode, context.check_hostname, context.cert_store_stats()
