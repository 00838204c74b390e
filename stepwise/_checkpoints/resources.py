"""Objects that cannot be stored and are made again on resume: resources, managers, SDK clients.

Resources and managers: objects that cannot be stored and are made again on resume.

Clients that the workflow made: they are made again, of what they were made of.

A client of a known package that is what its class makes of a few options and of the environment
(``OpenAI()``, ``httpx.Client(base_url=...)``) is recorded as these options.  Its key is not: what a
client gets from the environment is compared by a MAC.  Whether a client is so is found out by
making another one.  One with a transport, an authentication or a hook of its own is not, and no
more is one whose cookies or headers have changed.
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

# -- resources ------------------------------------------------------------------------------------


P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")

# -- resources -----------------------------------------------------------------------------------

_made: dict[int, tuple[Any, Any]] = {}  # id of a resource -> reference to it, how to make it
_mutex = process_lock()
_held: dict[int, Any] = {}  # the resources that no weak reference can hold: sqlite3.Connection

in_factory: ContextVar[bool] = ContextVar("stepwise_in_factory", default=False)
"""True while a factory makes a resource, which it also does where no call could be answered."""

_DATA = (str, bytes, bytearray, int, float, complex, tuple, list, dict, type(None))


def resource(factory: Callable[P, R]) -> Callable[P, R]:
    """Mark a factory: its result is not stored in a checkpoint but made again.

    For connections, clients, open files: a local variable that holds what ``factory(*args)``
    returned holds, in the resumed run, what ``factory(*args)`` returns then.  The arguments must
    be recordable.  As a context manager, what it returns is entered again.

    Raises:
        ConfigurationError: it is not a plain, named function; or, when called, it returned plain
            data.
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
    if type(made) in _DATA:  # of a class of the user's own, it may be more
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


_OURS = 2  # references to a resource that only we hold: our table's, and that of the question


def ids_of_made() -> Iterable[int]:
    """The ids of all resources that there are."""
    if _held:
        _let_go()
    return _made.keys()


def made_by(obj: object) -> Any:
    """Return the reduced form that makes a resource again, or ``None`` for other objects."""
    found = _made.get(id(obj))
    return found[1] if found is not None and found[0]() is obj else None


def _make(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factory(*args, **kwargs)


# -- context managers ----------------------------------------------------------------------------

# By name, so that none of them need be imported.  Entered again, they are as good as before.
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
    content would be lost.  It goes back to before the block.  Inside a manager that can simply be
    made and entered again it can: ``with reenterable(manager) as name:`` says so of one, and
    ``reenterable(Class)``, also as a decorator, of all of a class.  On resume the head of the
    ``with`` is evaluated again, with the variables as they are then.
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
    """Stands after a resume where a ``with`` block that was over had left a closed object."""

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
"""Attributes that requests change and that no later one depends on."""

_CACHED = functools.cached_property  # made when it is first asked for
_DEEP = 6  # objects in each other: client, client of the transport, transport, pool, ...
_PLAIN = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset, type)


class ClientOptions(NamedTuple):
    """The options that a client is made of.

    Args:
        cls: its class.
        options: what it was given.
        tag: a MAC over what it got from the environment.
    """

    cls: Any
    options: dict[str, Any]
    tag: bytes


class SdkClients:
    """The clients of known packages in the variables of one run.

    Args:
        tag: makes a MAC.
        stop: stops the run, and returns what to raise.
    """

    def __init__(self, tag: Callable[[bytes], bytes], stop: Callable[[str], BaseException]) -> None:
        self._tag, self._stop = tag, stop
        self._known: dict[int, tuple[Any, Any, ClientOptions]] = {}  # by id: also a twin of it

    def options_of(self, client: Any) -> ClientOptions | None:
        """Return what a client is made of; ``None`` if it is not made of options alone."""
        cls: Any = type(client)
        if cls is MissingClient:
            return client.__dict__["options"]  # type: ignore[no-any-return]
        if not has_key(cls) or not is_foreign(cls):
            return None  # a class of the user's own may hold more
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
        except Exception:  # nothing in the environment to make one of, or another version
            return None
        self._known[id(client)] = known
        return known

    def again(self, recorded: tuple[Any, ...]) -> Any:
        """Make a client again; one that the environment does not give stops the run on use."""
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
    """Stands for a client that could not be made again: whoever uses it stops the run."""

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
        """It is never entered."""

    async def __aenter__(self) -> Any:
        return self.__getattr__("close")

    async def __aexit__(self, *exception: object) -> None:
        """It is never entered."""


def _changed_options(client: Any, cls: Any) -> dict[str, Any]:
    """Return the options of a client that differ from those of one made of none."""
    plain, options = cls(), {}
    for name in _OPTIONS:
        if isinstance(getattr(cls, name, None), _CACHED):
            continue  # a part of the service that has this name: ``Anthropic().organization``
        value, default = getattr(client, name, None), getattr(plain, name, None)
        if value != default:
            options[name] = str(value) if name == "base_url" else value
    return options


def _rest(client: Any) -> bytes:
    """Return the texts of a client, in which its key is."""
    texts = {name: value for name, value in vars(client).items() if isinstance(value, str)}
    return repr(sorted(texts.items())).encode("utf-8", "surrogatepass")


def _is_closed(client: Any) -> bool:
    closed = getattr(client, "is_closed", False)
    return bool(closed() if callable(closed) else closed)


def _same(one: Any, other: Any, deep: int) -> bool:
    """Return whether two clients, or parts of them, do the same."""
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
    """Return how an SSL context checks; ``None`` for anything else."""
    if not hasattr(context, "cert_store_stats"):
        return None
    return context.verify_mode, context.check_hostname, context.cert_store_stats()
