"""Clients and models: the attributes that tell two of them apart."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepwise.errors import ConfigurationError

_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_SCALARS = (str, int, float, bool, bytes, complex, type(None))
_ADDRESS = " at 0x"  # in the default repr of an object
_CLIENT = ("base_url", "organization", "project", "api_version")
_MODEL = ("model", "model_name", "model_id", "deployment_name", "base_url", "temperature")
_known: dict[str, tuple[str, ...]] = {
    "openai.OpenAI": _CLIENT,
    "openai.AsyncOpenAI": _CLIENT,
    "anthropic.Anthropic": ("base_url",),
    "anthropic.AsyncAnthropic": ("base_url",),
    "groq.Groq": ("base_url",),
    "groq.AsyncGroq": ("base_url",),
    "mistralai.Mistral": (),
    "httpx.Client": ("base_url",),
    "httpx.AsyncClient": ("base_url",),
    "requests.Session": (),
    "aiohttp.ClientSession": (),
    "pydantic_ai.models.Model": (*_MODEL, "system"),
    "langchain_core.language_models.BaseLanguageModel": _MODEL,
    "langchain_core.language_models.base.BaseLanguageModel": _MODEL,
    "smolagents.models.Model": _MODEL,
    "agents.Model": _MODEL,
    "logging.Logger": ("name",),
    "logging.LoggerAdapter": (),
    "random.Random": (),
    # These objects hold the tasks that wait on them, and change with those tasks.
    **{f"asyncio.{name}": () for name in ("Lock", "Event", "Condition", "Semaphore", "Barrier")},
    **{f"anyio.{name}": () for name in ("Lock", "Event", "Condition", "Semaphore")},
    "anyio.CapacityLimiter": (),
}
"""Classes, by ``root package.class`` or full name, whose objects count by these fields."""


_SDK = frozenset(
    (
        *("openai.OpenAI", "openai.AsyncOpenAI", "anthropic.Anthropic", "anthropic.AsyncAnthropic"),
        *("groq.Groq", "groq.AsyncGroq", "mistralai.Mistral"),
    )
)
"""Clients that hold only their constructor's arguments; a session has cookies and headers."""

_HTTP = frozenset(("httpx.Client", "httpx.AsyncClient"))
_CLIENTS = _SDK | _HTTP | {"httpx2.Client", "httpx2.AsyncClient"}
_PARTS: dict[str, Callable[[Any], Any]] = {
    "HTTPTransport": lambda _: (),
    "AsyncHTTPTransport": lambda _: (),
    "Headers": lambda headers: headers.raw,
    "Cookies": lambda held: [(each.domain, each.path, each.name, each.value) for each in held.jar],
}
"""The attributes that tell two httpx clients apart: connections are none of them."""
_ON_USE = {"_state", "_platform", "_lazy_tracer", "_middleware_chain"}


def identity(cls: type, *, fields: Iterable[str]) -> None:
    """Declare which attributes tell two objects of a class apart, in calls and runs.

    A client holds locks and sockets, so it has no digest and counts by its class alone.  With this
    declaration the client counts by the named attributes, wherever it occurs: in arguments, in
    attributes and in captured variables.  Never name keys or secrets here.

    Args:
        cls: the class; its subclasses are included.
        fields: names of attributes; dotted names are possible (``meta.region_name``).

    Raises:
        ConfigurationError: ``cls`` is not a class, or ``fields`` are not names.
    """
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not isinstance(cls, type):
        raise ConfigurationError(f"stepwise.identity({cls!r}): the first argument is a class")
    wrong = [each for each in names if not isinstance(each, str) or not each]
    if wrong:
        raise ConfigurationError(
            f"stepwise.identity({cls.__qualname__}, fields={names!r}): fields are names of "
            f"attributes, and {wrong[0]!r} is not one"
        )
    _declared[cls] = names
    fields_of.cache_clear()


_declared: dict[type, tuple[str, ...]] = {}


def declared(cls: type) -> tuple[str, ...] | None:
    """Return the fields that the user declared for the objects of a class, or ``None``."""
    if not _declared:
        return None
    return next((_declared[base] for base in cls.__mro__ if base in _declared), None)


@functools.lru_cache(maxsize=1000)
def fields_of(cls: type) -> tuple[str, ...] | None:
    """Return the declared or known fields by which the objects of a class count, or ``None``."""
    for base in cls.__mro__:
        if base in _declared:
            return _declared[base]
        module, _, _ = base.__module__.partition(".")
        for name in (f"{base.__module__}.{base.__qualname__}", f"{module}.{base.__qualname__}"):
            if name in _known:
                return _known[name]
    return None


def field(value: Any, name: str) -> Any:
    """Return a field of an object as plain data; ``name`` may be dotted.

    A field without its own text counts by its class: the default ``repr`` holds an address, which
    differs in each process.
    """
    try:
        for each in name.split("."):
            value = getattr(value, each, None)
        if type(value) in _SCALARS:
            return value
        cls: Any = type(value)
        if cls.__str__ is not object.__str__ or cls.__repr__ is not object.__repr__:
            text = str(value)
            if _ADDRESS not in text:
                return text
    except Exception:  # a property or a user's __str__
        return f"?{type(value).__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def is_client(cls: type) -> bool:
    """Return whether a class is an SDK's client, which can be made again without loss."""
    root = cls.__module__.partition(".")[0]  # a user's subclass may hold more
    return any(f"{root}.{base.__qualname__}" in _SDK for base in cls.__mro__)


def held_by(value: Any) -> Mapping[str, Any] | None:
    """Return all that decides what a client of an SDK or of HTTP answers; ``None`` if not known.

    Connections tell nothing, nor does what a client makes of its other attributes on use.
    """
    cls: Any = type(value)
    names = _names_of(cls)
    library, _, _ = cls.__module__.partition(".")
    if library in ("httpx", "httpx2") and cls.__qualname__ in _PARTS:
        return {"": _PARTS[cls.__qualname__](value)}
    if names.isdisjoint(_CLIENTS):
        return None
    on_use = {n for n in vars(value) if isinstance(getattr(cls, n, 0), functools.cached_property)}
    return {n: each for n, each in vars(value).items() if n not in on_use | _ON_USE}


def has_key(cls: type) -> bool:
    """Return whether objects of a class are clients, or of a derived class, and may hold a key."""
    return not _names_of(cls).isdisjoint(_SDK | _HTTP)


@functools.lru_cache(maxsize=1000)
def _names_of(cls: type) -> frozenset[str]:
    """Return the names of a class and its bases: root package and qualified name."""
    return frozenset(f"{e.__module__.partition('.')[0]}.{e.__qualname__}" for e in cls.__mro__)


def is_foreign(cls: type) -> bool:
    """Return whether a class comes from an installed package, the standard library or Python."""
    return is_foreign_module(cls.__module__)


@functools.lru_cache(maxsize=4096)
def is_foreign_module(name: str) -> bool:
    """Return whether a module belongs to an installed package or to Python.

    A module without a file belongs where its package is.  A module created while the program runs
    belongs to no package.
    """
    root = name.partition(".")[0]
    if root in sys.stdlib_module_names:
        return True
    while name:
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None) or "".join([*getattr(module, "__path__", ())][:1])
        if path:
            return "-packages" in path
        name = name.rpartition(".")[0]
    return root != "__main__" and root not in sys.modules


@contextlib.contextmanager
def placeholder_keys() -> Iterator[None]:
    """Set API keys that the environment lacks: without one, the SDKs create no client."""
    missing = [name for name in _KEYS if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, "recorded"))
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
