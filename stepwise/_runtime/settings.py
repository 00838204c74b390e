"""Settings: the environment, and the values of :func:`configure` on top of it.

=====================  ==============================================================
``STEPWISE_HOME``      folder of the default store and the key (default ``~/.stepwise``)
``STEPWISE_STORE``     URL of the store (default ``disk:$STEPWISE_HOME/store``)
``STEPWISE_KEY``       secret of 16 characters or more that signs the records, instead of
                       ``$STEPWISE_HOME/key``; if there are several secrets, separated by commas,
                       the first one signs, and all of them verify
``STEPWISE_ENCRYPT``   ``1``: encrypt what is stored (extra ``encryption``)
``STEPWISE_RESUME``    id of a run: the first call of its workflow with its arguments resumes this
                       run, whatever id it would have; ``stepwise resume`` sets it
``STEPWISE_START``     the run that a call from outside a run starts or resumes if the workflow has
                       no ``start=``: ``same`` (the default), ``unfinished`` or ``new``
``STEPWISE_FRESH``     ``1``: every workflow called from outside a run starts a new run
``STEPWISE_PROGRESS``  ``1``: runs show what they are doing, on the terminal or in the notebook;
                       ``0`` turns off the display of a notebook's cells, too
``STEPWISE_SUSPEND_AFTER``
                       seconds that a run waits in its process before it suspends (default 60), or
                       ``never``
``STEPWISE_TRUST``     ``data``: load no pickles, not even those that verify; see
                       :func:`configure`; or ``all`` (the default)
``STEPWISE_RECORD_ARGUMENTS``
                       ``1``: the arguments of steps are recorded in full; see :func:`configure`
``STEPWISE_RECORD_LOCALS``
                       ``1``: failures are recorded with local variables; see :func:`configure`
``STEPWISE_ENV``       ``production``: ``cache="dev"`` is off; or ``development`` (the default)
``STEPWISE_CACHE_SIZE``
                       bytes that the cache of a store may take (default 1 GB); 0 for no cache
``STEPWISE_STREAM_LIMIT``
                       bytes that the streams of one run may hold; no limit by default
``STEPWISE_QUIET``     ``1``: no notices on stderr
``STEPWISE_DEBUG``     ``1``: tracebacks show the library's own frames
``STEPWISE_IN_BRANCH`` the id of a branch in progress, outside of which no side effect is made
``STEPWISE_DEBUG_RUN`` what ``stepwise debug`` asks of the program that it starts, as JSON
``STEPWISE_ALLOW_NETWORK``
                       ``1``: allow a store on a network file system that only one machine uses
``STEPWISE_TEST_HOME`` folder of a test, set by the pytest plugin: stores elsewhere are replaced
                       by stores in this folder
=====================  ==============================================================

The environment is read when a value is needed, never at import.

A store's URL may have a password, which only the server may see.  A URL is shown, recorded and
passed to other programs without its password.  This process remembers the password, and its child
processes get it by ``STEPWISE_STORE``.  So the shown URL opens the same store in all of them.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar, Union

from stepwise._runtime.facts import public
from stepwise.errors import ConfigurationError

T = TypeVar("T")
Cache = Union[Literal["dev"], timedelta, None]
"""Which results answer equal calls of other runs: those of development, or up to an age."""
ClassFields = Mapping[Any, "str | Iterable[str]"]
FieldNames = Mapping[str, tuple[str, ...]]

_LONGEST = 1e9  # seconds, 32 years: longer than any timeout of the system
_PATH = r"\w+(\[\])*(\.\w+(\[\])*)*"


NAMES = (
    "STEPWISE_ALLOW_NETWORK",
    "STEPWISE_CACHE_SIZE",
    "STEPWISE_DEBUG",
    "STEPWISE_DEBUG_RUN",
    "STEPWISE_IN_BRANCH",
    "STEPWISE_ENCRYPT",
    "STEPWISE_ENV",
    "STEPWISE_FRESH",
    "STEPWISE_HOME",
    "STEPWISE_KEY",
    "STEPWISE_PROGRESS",
    "STEPWISE_QUIET",
    "STEPWISE_RECORD_ARGUMENTS",
    "STEPWISE_RECORD_LOCALS",
    "STEPWISE_RESUME",
    "STEPWISE_START",
    "STEPWISE_STORE",
    "STEPWISE_STREAM_LIMIT",
    "STEPWISE_SUSPEND_AFTER",
    "STEPWISE_TEST_HOME",
    "STEPWISE_TRUST",
)
"""The environment variables that stepwise reads."""

IN_BRANCH = "STEPWISE_IN_BRANCH"
DEBUGGED = "STEPWISE_DEBUG_RUN"
"""The variable by which ``stepwise debug`` asks a program to open a run."""


class Fields:
    """Fields whose plain values do not distinguish calls, by the full names of their classes.

    Args:
        volatile: fields that are ignored.
        references: fields with ids that count by the order of their first appearance in a call.
    """

    def __init__(self, volatile: FieldNames, references: FieldNames) -> None:
        self.volatile = volatile
        self.references = references


_UNSET = object()
_SUSPEND_AFTER = 60.0  # seconds
_CACHE_SIZE = 1_000_000_000  # bytes


@public
class Retain:
    """The limits up to which ``stepwise up`` keeps ended runs; see ``configure(retain=...)``.

    Completed and cancelled runs are deleted with their child runs, the oldest first, as ``stepwise
    prune`` does.  All other runs stay, and count.

    Args:
        age: the time after its end at which a run is deleted, in seconds or as a ``timedelta``.
        runs: the number of runs, with child runs, above which the oldest are deleted.
        bytes: the size of all data above which the oldest are deleted; measured every ten minutes.
        streams: the time after its end at which what a run said is deleted; the run stays.

    Raises:
        ConfigurationError: an argument is invalid, or nothing is limited.
    """

    def __init__(
        self,
        age: float | timedelta | None = None,
        runs: int | None = None,
        bytes: int | None = None,  # noqa: A002
        streams: float | timedelta | None = None,
    ) -> None:
        self.age, self.streams = _amount("age", age), _amount("streams", streams)
        self.runs, self.bytes = _amount("runs", runs), _amount("bytes", bytes)
        if self.age is self.runs is self.bytes is self.streams is None:
            raise ConfigurationError(
                "Retain() deletes nothing: give it age=, runs=, bytes= or streams="
            )


_SECONDS = (int, float), 0, "seconds, 0 or more, or a timedelta"
_NUMBER = (int,), 1, "a number, 1 or more"
_AMOUNTS = {"age": _SECONDS, "runs": _NUMBER, "bytes": _NUMBER, "streams": _SECONDS}


def _amount(name: str, value: Any) -> Any:
    amount = value.total_seconds() if isinstance(value, timedelta) else value
    allowed, least, meaning = _AMOUNTS[name]
    good = isinstance(amount, allowed) and not isinstance(amount, bool)
    if value is not None and not (good and amount >= least):
        raise ConfigurationError(f"Retain({name}={value!r}): it must be {meaning}")
    return amount


class _Settings:
    """The values of :func:`configure`; one that it was not given is ``_UNSET``."""

    def __init__(self) -> None:
        self.store: Any = None
        self.quiet: Any = _UNSET
        self.encrypt: Any = _UNSET
        self.trust: Any = _UNSET
        self.record_arguments: Any = _UNSET
        self.record_locals: Any = _UNSET
        self.on_changed = "keep"
        self.grace = 10.0
        self.injected: frozenset[str] = frozenset()
        self.volatile: FieldNames = {}
        self.references: FieldNames = {}
        self.fields = Fields({}, {})
        self.secret_names: frozenset[str] = frozenset()
        self.suspend_after: Any = _UNSET
        self.suspend_by_default = _SUSPEND_AFTER
        self.stream_limit: Any = _UNSET
        self.cache_size: Any = _UNSET
        self.retain: Retain | None = None


_settings = _Settings()


def configure(
    *,
    store: Any = None,
    quiet: bool | None = None,
    encrypt: bool | None = None,
    trust: Literal["all", "data"] | None = None,
    injected: Iterable[str] | None = None,
    volatile: ClassFields | None = None,
    references: ClassFields | None = None,
    grace: float | None = None,
    suspend_after: float | None = _UNSET,  # type: ignore[assignment]
    secret_names: Iterable[str] | None = None,
    record_arguments: bool | None = None,
    record_locals: bool | None = None,
    on_changed: Literal["keep", "rerun", "ask"] | None = None,
    stream_limit: int | None = _UNSET,  # type: ignore[assignment]
    cache_size: int | None = None,
    retain: Retain | None = _UNSET,  # type: ignore[assignment]
) -> None:
    """Set defaults for this process; omitted settings stay as they are.

    Args:
        store: a URL (``"disk:/path"``), a path, or a store; runs in progress keep theirs.
        quiet: True to print no notices on stderr.
        encrypt: True to encrypt all data stored from now on, with a key derived from the key of the
            records (extra ``encryption``).  Run ids, sizes, times and process ids stay readable.
        trust: ``"data"``: this process loads no pickle, not even one that verifies.  Workflows then
            record as ``codec="json"``, and replay from the top.  ``"all"`` by default.
        injected: full names of classes (``"mypackage.Context"``) whose instances a framework
            injects as arguments: parameters annotated with them do not distinguish calls.
        volatile: fields that do not distinguish calls, by class or full name of a class, subclasses
            included: ``{"mypackage.Message": ("created", "usage")}``, instead of built-in ones.
        references: fields with ids that every start generates anew, by class as above.  Ids count
            by their order in a call.  ``"calls[].id"`` is the ``id`` of each item of ``calls``.
        grace: seconds that steps in flight have after SIGTERM, unless the program handles it: 10.
        suspend_after: seconds that a run waits in its process (``sleep``, ``wait_for``,
            ``approve``) before it suspends: 60 by default, ``None`` for never, 0 for at once.
        secret_names: further names whose values are masked in requests (``door_code``).
        record_arguments: True to record the arguments of all steps in full.
        record_locals: True to record failures with short forms of local variables, which may hold
            secrets.
        on_changed: as ``on_changed=`` of a step: ``"keep"``, the default, ``"rerun"`` or ``"ask"``.
        stream_limit: bytes that one run may emit: more is an error; ``None``: no limit (default).
        cache_size: bytes that the cache of a store may take: 1 GB by default, 0 for no cache.
        retain: a :class:`Retain`: what ``stepwise up`` keeps of ended runs; ``None``: all.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    given = {name: each for name, each in locals().items() if each is not _UNSET}
    given = {n: each for n, each in given.items() if each is not None or n in _MAY_BE_NONE}
    what = {name: f"configure({name}={each!r:.100})" for name, each in given.items()}
    vars(_settings).update({n: _CHECKS[n](each, what[n]) for n, each in given.items()})
    if "volatile" in given or "references" in given:
        _settings.fields = Fields(_settings.volatile, _settings.references)


def _names(given: Iterable[str], _: str = "") -> frozenset[str]:
    return frozenset((given,) if isinstance(given, str) else given)


def _checked_store(store: Any, _: str) -> Any:
    if isinstance(store, (str, os.PathLike)) or hasattr(store, "acquire"):
        return store
    raise ConfigurationError(
        f"configure(store=...) takes a URL, a path or a store object, not {store!r}: "
        'write configure(store="disk:/path/to/folder")'
    )


def _by_name(given: ClassFields, option: str) -> FieldNames:
    """Return the paths of fields, by the full names of their classes."""
    example = f'write configure({option}={{"mypackage.Message": ("created",)}})'
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"configure({option}=...) takes fields by class, not {given!r}: {example}"
        )
    found = {}
    for cls, paths in given.items():
        name = f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else cls
        if not isinstance(name, str) or not re.fullmatch(r"\w+(\.[\w<>]+)+", name):
            raise ConfigurationError(
                f"configure({option}=...): {cls!r} is neither a class nor its full name, with its "
                f"module: {example}"
            )
        names: tuple[Any, ...] = tuple(paths) if _is_several(paths) else (paths,)
        for path in names:
            if not isinstance(path, str) or not re.fullmatch(_PATH, path):
                raise ConfigurationError(
                    f"configure({option}=...): {path!r} of {name} is not a field: write its "
                    'name, or a path to it, like "calls[].id"'
                )
        found[name] = names
    return found


def _is_several(paths: Any) -> bool:
    return isinstance(paths, Iterable) and not isinstance(paths, (str, bytes))


def fields() -> Fields:
    """Return the fields whose plain values do not distinguish calls; a new object per change."""
    return _settings.fields


def injected() -> frozenset[str]:
    """Return the full names of further classes that a framework injects."""
    return _settings.injected


def secret_names() -> frozenset[str]:
    """Return the plain names of further fields that hold a secret."""
    return _settings.secret_names


@functools.lru_cache(4096)  # the same fields come with every request and every error
def plain_name(name: str) -> str:
    """Return ``api_key`` for ``apiKey``, ``APIKey``, ``Api-Key`` and ``_api_key``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def home() -> str:
    """Return the absolute folder of the default store and the key; it need not exist."""
    # Rejected: pathlib.  With its imports it was a twentieth of a start.
    given = os.path.expanduser(os.environ.get("STEPWISE_HOME") or "~/.stepwise")
    if given.startswith("~"):
        raise RuntimeError(f"the home directory in {given} is unknown: set STEPWISE_HOME")
    return given if given[:1] == "/" else os.path.join(os.getcwd(), given)


def store() -> Any:
    """Return the default store: a URL, a path or a store object."""
    return _settings.store if _settings.store is not None else store_of_commands()


def store_of_commands() -> str:
    """Return the URL of the store that a shell command opens, whatever this program configured."""
    return os.environ.get("STEPWISE_STORE") or f"disk:{os.path.join(home(), 'store')}"


def test_home() -> str:
    """Return the folder of the test that is being executed; empty outside of tests."""
    return os.environ.get("STEPWISE_TEST_HOME", "")


def _environment(variable: str, read: Callable[[Any, str], T], default: T) -> T:
    """Return what a variable of the environment says, or a default if it is not set.

    Args:
        read: returns the value of a text; gets the variable with the text for its message, too.
    """
    text = os.environ.get(variable, "").strip().lower()
    return read(text, f"{variable}={text!r}") if text else default


def _chosen(name: str, variable: str, read: Callable[[Any, str], T], default: T) -> T:
    """Return a setting: as configured, else as the environment has it, else the default."""
    value: Any = getattr(_settings, name)
    return _environment(variable, read, default) if value is _UNSET else value


def fresh() -> bool:
    """Return whether every workflow called from outside a run starts a new run."""
    return _environment("STEPWISE_FRESH", _flag, default=False)


def start() -> str:
    """Return the default of ``start=``: ``same``, ``unfinished``, ``new``; or empty."""
    return _environment("STEPWISE_START", _one_of("same", "unfinished", "new"), "")


def resume() -> str:
    """Return the id of the run to resume, whatever id the program would derive; empty for none."""
    return os.environ.get("STEPWISE_RESUME", "")


def progress() -> bool | None:
    """Return whether runs show progress, on a terminal or in a notebook; ``None`` if unset."""
    return _environment("STEPWISE_PROGRESS", _flag, default=None)


def debug() -> bool:
    """Return whether tracebacks show the library's own frames."""
    return os.environ.get("STEPWISE_DEBUG", "0") not in ("", "0")


def encrypt() -> bool:
    """Return whether stored data are encrypted."""
    return _chosen("encrypt", "STEPWISE_ENCRYPT", _flag, default=False)


def on_changed() -> str:
    """Return what becomes of the recorded results of steps that were edited since."""
    return _settings.on_changed


def record_arguments() -> bool:
    """Return whether the arguments of every step are recorded in full."""
    return _chosen("record_arguments", "STEPWISE_RECORD_ARGUMENTS", _flag, default=False)


def record_locals() -> bool:
    """Return whether failures are recorded with local variables."""
    return _chosen("record_locals", "STEPWISE_RECORD_LOCALS", _flag, default=False)


def trusts_data_only() -> bool:
    """Return whether this process loads no pickles."""
    return _chosen("trust", "STEPWISE_TRUST", _one_of("all", "data"), "all") == "data"


def grace() -> float:
    """Return the seconds that steps in flight have after SIGTERM."""
    return _settings.grace


def quiet() -> bool:
    """Return whether notices stay off stderr."""
    return _chosen("quiet", "STEPWISE_QUIET", _flag, default=False)


def suspend_after() -> float | None:
    """Return the seconds that a run waits before it suspends; ``None`` if it never suspends."""
    default: float | None = _settings.suspend_by_default
    return _chosen("suspend_after", "STEPWISE_SUSPEND_AFTER", _seconds_or_never, default)


def stream_limit() -> int | None:
    """Return the bytes that the streams of one run may hold; ``None`` for no limit."""
    return _chosen("stream_limit", "STEPWISE_STREAM_LIMIT", _bytes_or_none, None)


def cache_size() -> int:
    """Return the bytes that the cache of a store may take."""
    return _chosen("cache_size", "STEPWISE_CACHE_SIZE", _bytes, _CACHE_SIZE)


def cache_age(cache: Cache) -> float | None:
    """Return the age in seconds up to which results answer equal calls; ``None`` for no cache."""
    if cache != "dev":
        return None if cache is None else cache.total_seconds()
    where = _environment("STEPWISE_ENV", _one_of("development", "production"), "")
    return None if where == "production" else math.inf


def _checked_retention(given: Any, what: str) -> Any:
    if given is None or hasattr(given, "streams"):
        return given
    raise ConfigurationError(
        f"{what}: write retain=stepwise.Retain(age=30 * 86400, runs=100_000), or None"
    )


def retain() -> Retain | None:
    """Return what is kept of ended runs; ``None`` for all."""
    return _settings.retain


def traveling() -> dict[str, Any]:
    """Return the settings for a process that executes runs for this process, as plain data.

    The store and the key are left out.
    """
    known = _settings
    found: dict[str, Any] = {
        "encrypt": encrypt(),
        "trust": "data" if trusts_data_only() else "all",
        "injected": known.injected,
        "volatile": known.volatile,
        "references": known.references,
        "secret_names": known.secret_names,
        "record_arguments": record_arguments(),
        "record_locals": record_locals(),
    }
    said = os.environ.get("STEPWISE_SUSPEND_AFTER", "").strip()
    if said or known.suspend_after is not _UNSET:
        found["suspend_after"] = suspend_after()
    return found


def adopt(settings: Mapping[str, Any]) -> None:
    """Take over the settings of another process; see :func:`traveling`."""
    known = _settings
    for name in ("encrypt", "trust", "record_arguments", "record_locals", "suspend_after"):
        setattr(known, name, settings.get(name, _UNSET))
    known.injected |= settings["injected"]
    known.secret_names |= settings["secret_names"]
    known.volatile = {**known.volatile, **settings["volatile"]}
    known.references = {**known.references, **settings["references"]}
    known.fields = Fields(known.volatile, known.references)


def suspend_soon(seconds: float) -> None:
    """Set the default after which runs of this process suspend, unless configured otherwise."""
    _settings.suspend_by_default = seconds


# -- checks --------------------------------------------------------------------------------------


def _seconds(given: Any, what: str, never: str = "") -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST or isinstance(given, bool):
        ways = f", or {never} for never" if never else ""
        raise ConfigurationError(f"{what} is no number of seconds: give 0 or more{ways}")
    return seconds


def _seconds_or_never(given: Any, what: str) -> float | None:
    if given in (None, "never"):
        return None
    return _seconds(given, what, "never" if isinstance(given, str) else "None")


def _bytes(given: Any, what: str) -> int:
    number = int(given) if isinstance(given, str) and given.isdecimal() else given
    if type(number) is int and number >= 0:
        return number
    raise ConfigurationError(f"{what} is not a number of bytes: give 0 or more, or None")


def _bytes_or_none(given: Any, what: str) -> int | None:
    return None if given is None else _bytes(given, what)


def _switch(given: Any, what: str) -> bool:
    if isinstance(given, bool):
        return given
    raise ConfigurationError(f"{what}: it must be True or False")


def _flag(text: str, what: str) -> bool:
    if text in ("0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise ConfigurationError(f"{what} is neither yes nor no: set it to 1 or 0")


def _one_of(*words: str) -> Callable[[Any, str], str]:
    def check(given: Any, what: str) -> str:
        if given in words:
            return str(given)
        *others, last = map(repr, words)
        raise ConfigurationError(f"{what}: use {', '.join(others)} or {last}")

    return check


_MAY_BE_NONE = ("suspend_after", "stream_limit", "retain")
"""The settings for which ``None`` is a value."""

_CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "store": _checked_store,
    **dict.fromkeys(("quiet", "encrypt", "record_arguments", "record_locals"), _switch),
    "trust": _one_of("all", "data"),
    "injected": _names,
    "volatile": lambda given, _: _by_name(given, "volatile"),
    "references": lambda given, _: _by_name(given, "references"),
    "grace": _seconds,
    "suspend_after": _seconds_or_never,
    "secret_names": lambda given, _: frozenset(map(plain_name, _names(given))),
    "on_changed": _one_of("keep", "rerun", "ask"),
    "stream_limit": _bytes_or_none,
    "cache_size": _bytes,
    "retain": _checked_retention,
}


# -- passwords in the URLs of stores ---------------------------------------------------------------


_SECRET = ("password", "sslpassword")
_given_urls: dict[str, str] = {}  # by the URL that may be shown, the URL with the password


def public_url(url: str) -> str:
    """Return a URL without a password."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, mark, query = rest.partition("?")
    user, at, host = place.rpartition("@")
    shown = [each for each in query.split("&") if each.partition("=")[0].lower() not in _SECRET]
    end = mark * any(shown) + "&".join(shown)
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{host}{end}"


def remember_url(url: str) -> None:
    """Remember the password of a store that was opened."""
    for given in {url, _other_scheme(url)}:
        if public_url(given) != given:
            _given_urls[public_url(given)] = given


def with_password(url: str) -> str:
    """Return a store's URL with the password known to this process or its environment."""
    if "://" not in url:
        return url
    remember_url(os.environ.get("STEPWISE_STORE", ""))
    return _given_urls.get(url, url)


def hide_passwords(texts: Iterable[str]) -> list[str]:
    """Return texts in which the URLs of stores have no password."""
    found = [*texts]
    for shown, given in _given_urls.items():
        found = [text.replace(given, shown) for text in found]
    return found


def _other_scheme(url: str) -> str:
    """Return the same URL with the other scheme name of Postgres."""
    scheme, separator, rest = url.partition("://")
    names = {"postgres": "postgresql", "postgresql": "postgres"}
    return f"{names.get(scheme, scheme)}{separator}{rest}"
