"""Values and exceptions to bytes and back.

Plain pickle first: it stores classes and functions by name, which is what must happen to those of
``__main__``, and it is the fastest.  Where it fails (a lambda, a class made inside a function),
code goes by value; what ``__main__`` holds under a name is still stored by that name, since a
by-value copy comes back as a stranger (``isinstance`` is False, an enum member is no longer
itself).  Bytes are only ever loaded after their envelope was verified.  Imports: pickling, errors.
"""

from __future__ import annotations

import inspect
import pickle
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from stepwise._pickling import PROTOCOL, PYTHON, Reducers, dump
from stepwise.errors import NotRecordableError, StepFailedError, UnreadableValueError

__all__ = ["Encoded", "decode", "decode_error", "encode", "encode_error"]

_TRACEBACK_CHARACTERS = 8_000


class Encoded(NamedTuple):
    """The bytes of a value.  ``python`` is set when they hold code, which only that one reads."""

    data: bytes
    python: str | None = None


def encode(value: object, what: str = "the value") -> Encoded:
    """Encode ``value``.

    Raises:
        NotRecordableError: it cannot be pickled; says which part of it.
    """
    try:
        return Encoded(pickle.dumps(value, PROTOCOL))
    except Exception:
        try:
            return Encoded(dump(value, Reducers()), PYTHON)
        except Exception as error:
            raise _not_recordable(value, what, error) from error


def decode(data: bytes, python: str | None = None) -> Any:
    """Load what :func:`encode` made, from verified bytes.

    Raises:
        UnreadableValueError: it needs a class that is gone, or holds code of another Python.
    """
    return decode_with(lambda: pickle.loads(data), python)


def decode_with(load: Callable[[], Any], python: str | None) -> Any:
    """:func:`decode` with another loader."""
    if python is not None and python != PYTHON:
        # Not a formality: by-value code of 3.11 crashes the interpreter of 3.12 and 3.13.
        raise UnreadableValueError(
            f"the value holds code recorded by Python {python}, which Python {PYTHON} cannot load; "
            f"run the program with Python {python}"
        )
    try:
        return load()
    except Exception as error:
        raise UnreadableValueError(
            f"a recorded value cannot be loaded: {type(error).__name__}: {error}. Bring back the "
            "class or module that it names"
        ) from error


# -- naming the part that does not pickle --------------------------------------------------------


def _not_recordable(value: object, what: str, error: BaseException) -> NotRecordableError:
    path, culprit = _culprit(value)
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    where = f"{what}{path}" if path else what
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    hint = "Return plain data (the text, the id, the path) instead of the live object"
    if inspect.isawaitable(culprit):
        hint = f"An `await` is missing where this {kind} is made"
    return NotRecordableError(
        f"{where} is a {kind} and cannot be recorded: {reason}. {hint}",
        path=path,
        type_name=kind,
    )


def _culprit(value: Any, depth: int = 6) -> tuple[str, Any]:
    """The innermost part of ``value`` that fails to pickle, and the path to it."""
    for path, part in _parts(value):
        if depth and not _pickles(part):
            inner, culprit = _culprit(part, depth - 1)
            return path + inner, culprit
    return "", value


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r:.40}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    state = getattr(value, "__dict__", None)
    return [(f".{name}", item) for name, item in state.items()] if isinstance(state, dict) else []


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value, PROTOCOL)
    except Exception:
        try:
            dump(value, Reducers())
        except Exception:
            return False
    return True


# -- exceptions ----------------------------------------------------------------------------------

_LINKS = ("__cause__", "__context__")


class _Failure(NamedTuple):
    """One exception of a chain: itself if it pickles, else a summary; links are indices."""

    pickled: bytes | None
    python: str | None
    type_name: str
    message: str
    traceback_text: str
    cause: int | None
    context: int | None
    suppress: bool


def encode_error(error: BaseException) -> Encoded:
    """Encode an exception with its causes and contexts.

    Each is round-tripped through pickle now: many exceptions with an ``__init__`` of their own
    pickle but do not load.  Where one does not survive, its summary is recorded, and comes back as
    :class:`~stepwise.errors.StepFailedError`.
    """
    chain: list[BaseException] = [error]
    index = {id(error): 0}
    for link in (link for each in chain for link in (each.__cause__, each.__context__)):
        if link is not None and id(link) not in index and len(chain) < 20:
            index[id(link)] = len(chain)
            chain.append(link)
    failures = [
        _Failure(
            *_surviving(each),
            type_name=type(each).__qualname__,
            message=str(each),
            traceback_text=traceback_text(each),
            cause=index.get(id(each.__cause__)),
            context=index.get(id(each.__context__)),
            suppress=each.__suppress_context__,
        )
        for each in chain
    ]
    return Encoded(pickle.dumps([tuple(failure) for failure in failures], PROTOCOL))


def _surviving(error: BaseException) -> tuple[bytes | None, str | None]:
    try:
        encoded = encode(error)
        copy = decode(*encoded)
    except Exception:
        return None, None
    same = type(copy) is type(error) and str(copy) == str(error)
    return (encoded.data, encoded.python) if same else (None, None)


def decode_error(data: bytes) -> BaseException:
    """Load what :func:`encode_error` made, from verified bytes; links between them are restored."""
    failures = [_Failure(*fields) for fields in pickle.loads(data)]
    errors = [_revive(failure) for failure in failures]
    for error, failure in zip(errors, failures, strict=True):
        error.__cause__ = errors[failure.cause] if failure.cause is not None else None
        error.__context__ = errors[failure.context] if failure.context is not None else None
        error.__suppress_context__ = failure.suppress
    return errors[0]


def _revive(failure: _Failure) -> BaseException:
    if failure.pickled is not None:
        try:
            return cast("BaseException", decode(failure.pickled, failure.python))
        except UnreadableValueError:
            pass  # its class is gone since: the summary still tells what happened
    return StepFailedError(
        f"{failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        traceback_text=failure.traceback_text,
    )


def traceback_text(error: BaseException) -> str:
    """The traceback of one exception, without its chain, shortened in the middle."""
    lines = traceback.format_exception(type(error), error, error.__traceback__, chain=False)
    text = "".join(lines)
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    half = _TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n  [...]\n{text[-half:]}"
