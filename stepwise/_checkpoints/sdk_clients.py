"""Clients that the workflow made: they are made again, of what they were made of.

A client of a known package that is what its class makes of a few options and of the environment
(``OpenAI()``, ``httpx.Client(base_url=...)``) is recorded as these options.  Its key is not: what a
client gets from the environment is compared by a MAC.  Whether a client is so is found out by
making another one.  One with a transport, an authentication or a hook of its own is not, and no
more is one whose cookies or headers have changed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from stepwise._identity.clients import has_key, is_foreign
from stepwise._runtime.facts import NamedTuple

__all__ = ["ClientOptions", "MissingClient", "SdkClients"]

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
