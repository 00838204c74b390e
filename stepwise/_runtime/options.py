"""The checks of the decorators' options, with the same messages for all decorators."""

from __future__ import annotations

import contextlib
import inspect
import os
import reprlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from stepwise._runtime.retries import is_seconds
from stepwise.errors import ConfigurationError

_LONGEST_NAME = 200  # characters
Allowed = tuple[Callable[[Any], bool], str]


def check(kind: str, name: str, given: Mapping[str, Any]) -> None:
    """Refuse unknown options and invalid values.

    Args:
        kind: the decorator: ``step``, ``tool``, ``workflow``.
        name: the name of the decorated function.

    Raises:
        ConfigurationError: the message names the decorator, the function, the option and its valid
            values.
    """
    known = _KINDS[kind]
    for option, value in given.items():
        if option not in known:
            raise ConfigurationError(
                f"@{kind} of {name!r} has no option {option!r}{_hint(kind, option)}; "
                f"its options are {', '.join(sorted(known))}"
            )
        allowed = known[option]
        if allowed is not None and not allowed[0](value):
            raise ConfigurationError(
                f"{option}={value!r} of {kind} {name!r}: it must be {allowed[1]}"
            )
    if kind == "tool":
        _check_effect(name, given)
    if given.get("resources") is not None and given.get("executor") is None:
        raise ConfigurationError(
            f"resources= of {kind} {name!r} say what an executor is to have: write "
            f"@{kind}(executor='ray', resources=...)"
        )


def check_signal(name: object) -> None:
    """Refuse an invalid name of a signal.

    Raises:
        ConfigurationError: the name is empty, too long, or has invisible characters.
    """
    _check_name(name, "a signal", "'approval' or 'payment'")


def check_stream(name: object) -> None:
    """Refuse an invalid name of a stream, as :func:`check_signal` does for a signal."""
    _check_name(name, "a stream", "'main' or 'progress'")


def _check_name(name: object, what: str, examples: str) -> None:
    good = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not good or not 0 < len(name) <= _LONGEST_NAME:  # type: ignore[arg-type]
        raise ConfigurationError(
            f"{name!r:.300} cannot be the name of {what}: give a text of 1 to {_LONGEST_NAME} "
            f"printable characters, without spaces around it, such as {examples}"
        )


def check_tags(what: str, tags: object) -> None:
    """Refuse tags that a run cannot have.

    Raises:
        ConfigurationError: the message says how tags are written.
    """
    if not _are_tags(tags):
        raise ConfigurationError(f"tags={reprlib.repr(tags)} of {what}: it must be {_TAGS}")


def check_limit(what: str, limit: int | None) -> int | None:
    """Return a valid limit for a number of runs, or ``None`` for all.

    Raises:
        ConfigurationError: the limit is not a positive number.
    """
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        return limit
    raise ConfigurationError(f"limit={limit!r} of {what}: it must be a positive number, or None")


def no_function(kind: str, given: object) -> str:
    """Return the message for a decorator that got no function, or an option without its name."""
    if isinstance(given, type):
        way = "decorate its methods"
    elif isinstance(given, property):
        way = f"write @property above @{kind}"
    elif isinstance(given, str):
        way = f"a name is given as @{kind}(name={given!r})"
    elif callable(given):
        way = "write a function that calls it, and decorate that"
    else:
        way = f"options have names, as in @{kind}(name=...)"
    return f"@{kind} decorates a function, not {given!r}: {way}"


def check_values(what: str, **given: Any) -> None:
    """Refuse invalid arguments of the classic API.

    Raises:
        ConfigurationError: the message names the argument, its owner and its valid values.
    """
    for name, value in given.items():
        allows, meaning = _OF_CLASSIC[name]
        if not allows(value):
            raise ConfigurationError(f"{name}={value!r} of {what}: it must be {meaning}")


def check_kind(what: str, value: object, kind: Any, way: str) -> None:
    """Refuse an object that is not an instance of ``kind``.

    Raises:
        ConfigurationError: the message names the expected kind, the object and the way out.
    """
    if not isinstance(value, kind):
        given = reprlib.repr(value)
        raise ConfigurationError(f"{what}: expected a {kind.__name__}, got {given}; {way}")


def check_takes(what: str, function: Any, argument: str) -> None:
    """Refuse an object that cannot be called with one argument.

    Raises:
        ConfigurationError: the message says how it is called.
    """
    if not callable(function):
        given = reprlib.repr(function)
        raise ConfigurationError(f"{what} is a function of {argument}, not {given}")
    with contextlib.suppress(TypeError, ValueError):  # some builtins have no signature
        signature = inspect.signature(function)
        try:
            signature.bind(None)
        except TypeError as error:
            raise ConfigurationError(
                f"{what} is called with one argument, {argument}, which its signature does not "
                f"take: {error}. Write def f({argument}), and hand over anything else by "
                "functools.partial"
            ) from None


_MEANT = {"retry": "retries"}  # by its letters "retry" is nearer to retry_on


def _hint(kind: str, option: str) -> str:
    import difflib

    for other, options in _KINDS.items():
        if option in options:
            return f", which belongs to @{other}"
    known = _KINDS[kind]
    meant = _MEANT.get(option)
    close = [meant] if meant in known else difflib.get_close_matches(option, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _check_effect(name: str, given: Mapping[str, Any]) -> None:
    needing = sorted(_OF_EFFECTS.keys() & given.keys())
    if needing and not given.get("side_effect"):
        raise ConfigurationError(
            f"{needing[0]}= of tool {name!r} is an option for side effects: write "
            f"@tool(side_effect=True, {needing[0]}=...)"
        )
    if given.get("side_effect") and given.get("on_changed") == "rerun":
        raise ConfigurationError(
            f"on_changed='rerun' of tool {name!r}: a side effect never runs again by itself, since "
            "it has happened. 'keep' uses its recorded result, 'ask' stops the run for a person"
        )
    if given.get("side_effect") and given.get("cache") is not None:
        raise ConfigurationError(
            f"cache= of tool {name!r}: a side effect that a cache answers does not happen. Leave "
            "cache= out, or put it on a @step that only looks"
        )
    repeatable = given.get("idempotent") or given.get("fails_cleanly") or not given.get("retries")
    if given.get("side_effect") and not repeatable:
        raise ConfigurationError(
            f"retries={given['retries']} of tool {name!r} would never be used: a side effect that "
            "fails may have happened. Give fails_cleanly=(...), the exceptions that prove that "
            "nothing happened, or idempotent=True if current_step().idempotency_key is sent along"
        )


# -- the values of each option -------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    if not (isinstance(value, str) and value.strip() and "\0" not in value):
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


# Names beside the runs in a store: inboxes, the bell, threads and sessions of frameworks,
# supervisors.
_RESERVED = (
    *("bell:", "inbox:", "langgraph:", "langgraph-threads"),
    *("limit:", "limits:", "openai-agents:", "openai-agents-sessions"),
    *("queue:", "schedules:", "stream:", "up:"),
)
_RUN_ID = f"a text, not empty, that does not begin with {', '.join(_RESERVED)}"


def _is_run_id(value: Any) -> bool:
    return _is_text(value) and not value.startswith(_RESERVED)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    return is_seconds(value) and value > 0


def _is_count_or_zero(value: Any) -> bool:
    return _is_count(value) or (value == 0 and type(value) is int)


def _are_exceptions(value: Any) -> bool:
    return all(
        isinstance(kind, type) and issubclass(kind, BaseException)
        for kind in (value if isinstance(value, tuple) else (value,))
    )


def _are_retried(value: Any) -> bool:
    is_function = callable(value) and not isinstance(value, type)
    return is_function or _are_exceptions(value)


def _are_tags(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= 50
        and all(_is_text(text) and len(text) <= 500 for pair in value.items() for text in pair)
        and not any("=" in name for name in value)
    )


def _or_none(allows: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or allows(value)


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


_NAME: Allowed = (_or_none(_is_text), "a name, not empty")
_SWITCH: Allowed = (lambda value: isinstance(value, bool), "True or False")
_TAGS = (
    "a dict of texts by name, like {'customer': 'ann'}: at most 50, none empty or longer than 500 "
    "characters, no '=' in a name"
)
_RETENTION: Allowed = (
    _one_of("latest_only", "prune_old", "thinned", "all"),
    "'latest_only', 'prune_old', 'thinned' or 'all'",
)
_CLASSIC_RETENTION: Allowed = (
    _one_of("latest_only", "prune_old", "all"),
    "'latest_only', 'prune_old' or 'all'",
)

# None: checked where the option is used, together with other options or the function's parameters.
_OF_ALL: dict[str, Allowed | None] = {
    "name": _NAME,
    "key": None,
    "ignore": None,
    "secret": None,
    "redact": None,
}

CACHES = "'dev', a timedelta above 0 such as timedelta(days=1), or None"


def is_cache(value: Any) -> bool:
    """Return whether a value says which results answer equal calls of other runs."""
    if value is None or _one_of("dev")(value):
        return True
    seconds = getattr(value, "total_seconds", None)
    return seconds is not None and seconds() > 0


_OF_RETRIES: dict[str, Allowed] = {
    "retries": (_is_count_or_zero, "a number, 0 or more"),
    "retry_on": (
        _are_retried,
        "an exception class, a tuple of them, or a function of the exception that returns a bool",
    ),
    "backoff": (
        lambda value: value is None or callable(value) or is_seconds(value),
        "seconds, a function of the attempt's number that returns seconds, or a tenacity wait",
    ),
}

_OF_STEPS: dict[str, Allowed | None] = {
    **_OF_ALL,
    **_OF_RETRIES,
    "timeout": (
        _or_none(_is_positive),
        "seconds, above 0; None for as long as it takes",
    ),
    "record_arguments": (
        _or_none(lambda value: isinstance(value, bool)),
        "True or False; None for what configure(record_arguments=...) says",
    ),
    "limit": (
        _or_none(lambda value: hasattr(value, "concurrent")),
        'a stepwise.Limit("openai", requests=500, per=60), or None',
    ),
    "cache": (is_cache, CACHES),
    "on_changed": (
        _or_none(_one_of("keep", "rerun", "ask")),
        "'keep', 'rerun' or 'ask'; None for what configure(on_changed=...) says",
    ),
    "executor": None,
    "resources": (
        _or_none(lambda value: isinstance(value, Mapping) and all(map(_is_text, value))),
        "a dict of options by name, like {'num_gpus': 1}; None for the usual ones",
    ),
}

_OF_EFFECTS: dict[str, Allowed] = {
    "in_doubt": (
        lambda value: callable(value) or _one_of("raise", "retry", "skip")(value),
        "'raise', 'retry', 'skip', or a function of the call, which returns Landed(value), ...",
    ),
    "fails_cleanly": (_are_exceptions, "an exception class or a tuple of them"),
    "idempotent": _SWITCH,
    "approve": (
        lambda value: isinstance(value, bool) or callable(value),
        "True, or a function of the tool's arguments that returns True if a call needs an approval",
    ),
    "approvers": (
        lambda value: isinstance(value, (list, tuple)) and all(map(_is_text, value)),
        "a list of public keys, as stepwise approver-key prints them",
    ),
    "compensate": (
        _or_none(callable),
        "a function compensate(call) that undoes what the tool did",
    ),
}

OF_SCHEDULES: dict[str, Allowed | None] = {
    "every": (
        lambda value: value is None or isinstance(value, (str, timedelta)),
        "a cron expression like '0 9 * * mon-fri', or a timedelta",
    ),
    "timezone": (
        _or_none(lambda value: isinstance(value, str)),
        "the name of a time zone, like 'Europe/Zurich'; None for UTC",
    ),
    "missed": (_one_of("skip", "once", "all"), "'skip', 'once' or 'all'"),
    "arguments": (
        _or_none(callable),
        "a function of the instant, which returns a tuple or a dict of arguments",
    ),
}
"""The options of a workflow that say when ``stepwise up`` begins its runs."""

_OF_WORKFLOWS: dict[str, Allowed | None] = {
    **_OF_ALL,
    "run_id": (_or_none(_is_run_id), _RUN_ID),
    "fresh": _SWITCH,
    "on_owned": (_one_of("raise", "wait", "skip"), "'raise', 'wait' or 'skip'"),
    "start": (
        _or_none(_one_of("same", "unfinished", "new")),
        "'same', 'unfinished' or 'new'; None for what STEPWISE_START says",
    ),
    "tags": (_are_tags, _TAGS),
    "budget": (
        _or_none(lambda value: hasattr(value, "limits")),
        "a stepwise.Budget(usd=..., tokens=..., steps=..., seconds=...), or None",
    ),
    "timeout": (
        _or_none(_is_positive),
        "seconds, above 0; None for as long as it takes",
    ),
    "concurrent": (_or_none(_is_count), "a number of runs, 1 or more; None for any number"),
    **OF_SCHEDULES,
    "checkpoint_every": (_is_count, "a number of steps, 1 or more"),
    "retention": _RETENTION,
    "keep": (_is_count, "a number of checkpoints, 1 or more"),
    "prune_journal": _SWITCH,
    "compensate_on_failure": _SWITCH,
    "progress": (
        _or_none(lambda value: isinstance(value, bool)),
        "True or False; None for what STEPWISE_PROGRESS says",
    ),
    "codec": (_or_none(_one_of("pickle", "json")), "'pickle' or 'json'"),
    "durability": (_or_none(_one_of("fsync", "os")), "'fsync' or 'os'"),
    "store": (
        _or_none(lambda value: isinstance(value, (str, os.PathLike)) or hasattr(value, "acquire")),
        "a URL ('disk:/path'), a path or a store object",
    ),
}

_NAME_GIVEN: Allowed = (_is_text, "a text, not empty")
_NUMBER: Allowed = (_is_count, "a number, 1 or more")
_FROM_ZERO: Allowed = _OF_RETRIES["retries"]
_OF_CLASSIC: dict[str, Allowed] = {
    **_OF_RETRIES,
    "id": _NAME_GIVEN,
    "name": _NAME_GIVEN,
    "run_id": (_is_run_id, _RUN_ID),
    "retention": _CLASSIC_RETENTION,
    "retention_strategy": _CLASSIC_RETENTION,
    "keep": _NUMBER,
    "checkpoint_every_n": _NUMBER,
    "max_recoveries": _FROM_ZERO,
    "step_number": _FROM_ZERO,
    "enabled": _SWITCH,
    "auto_recovery": _SWITCH,
    "save_frequency": (_one_of("every_node", "every_n_nodes"), "'every_node' or 'every_n_nodes'"),
    "n_nodes": _NUMBER,
    "max_checkpoints_per_run": _NUMBER,
    "max_steps": _NUMBER,
    "max_retries_per_step": _FROM_ZERO,
}

_KINDS: dict[str, dict[str, Allowed | None]] = {
    "step": _OF_STEPS,
    "tool": {**_OF_STEPS, "side_effect": _SWITCH, **_OF_EFFECTS},
    "workflow": _OF_WORKFLOWS,
}
