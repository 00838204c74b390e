"""Values and exceptions to bytes and back.

Plain pickle first: it stores classes and functions by name, which is what must happen to those of
``__main__``, and it is the fastest.  Where it fails (a lambda, a class made inside a function),
code goes by value; what ``__main__`` holds under a name is still stored by that name, since a
by-value copy comes back as a stranger (``isinstance`` is False, an enum member is no longer
itself).  Bytes are only ever loaded after their envelope was verified.
"""

from __future__ import annotations

import builtins
import collections
import copy
import inspect
import io
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.limits import ran_out
from stepwise._runtime.tracebacks import fold, linked_to, members
from stepwise._values import data as _data
from stepwise._values.buffers import Data
from stepwise._values.pickling import (
    PROTOCOL,
    PYTHON,
    CodeByValue,
    Reducers,
    dump,
    dump_plain,
    masked_copy,
    too_deep,
)
from stepwise._values.preview import error_text
from stepwise._values.secrets import NO_SECRETS, Secrets
from stepwise._wire import current, names_a_moved_one
from stepwise.errors import NotRecordableError, StepFailedError, UnreadableValueError

__all__ = [
    "JSON",
    "Codec",
    "Encoded",
    "decode",
    "decode_error",
    "encode",
    "encode_error",
    "encode_for_afar",
    "pickles",
]

_PARTS = 100  # parts of a value that are searched for the unpicklable one
_TRACEBACK_CHARACTERS = 8_000
_GROUPS: tuple[Any, ...] = tuple(  # since Python 3.11
    getattr(builtins, name)
    for name in ("ExceptionGroup", "BaseExceptionGroup")
    if hasattr(builtins, name)
)


class Encoded(NamedTuple):
    """The bytes of a value, in pieces if they are many.

    ``form`` says what they are: ``None`` for a pickle; ``"json"``; for a pickle that holds code,
    the Python version, which alone reads it.
    """

    data: Data
    form: str | None = None


JSON = "json"
"""The form of what was recorded as data."""


class Codec(NamedTuple):
    """The rules by which one run records values, and which of its records are trusted.

    Args:
        name: ``""``: as pickles.  ``"json"``: as data only.  ``"data"``: the same, and nothing is
            ever unpickled (``trust="data"``).
        secrets: what must not be recorded.
    """

    name: str = ""
    secrets: Secrets = NO_SECRETS

    @property
    def data_only(self) -> bool:
        """True if values are recorded as JSON."""
        return self.name != ""

    @property
    def trusting(self) -> bool:
        """True if pickles that verify are loaded."""
        return self.name != "data"

    def encode(self, value: object, what: str, kind: Any = Any) -> Encoded:
        """Encode a value; ``kind`` is the type that it is annotated with.

        Raises:
            NotRecordableError: it cannot be recorded; says which part of it.
        """
        if self.name:  # data only
            return Encoded(_data.encode_data(value, kind, what), JSON)
        return encode(value, what)

    def encode_error(self, error: BaseException, then: str = "") -> Encoded:
        """Encode an exception; ``then`` is used for exceptions as data: see ``encode_raised``."""
        if not self.data_only:
            return encode_error(error, self.secrets)
        from stepwise._values.exception_data import (
            encode_raised,  # on use: most programs record pickles
        )

        return Encoded(encode_raised(error, self.traceback, then, self.secrets), JSON)

    def traceback(self, error: BaseException) -> str:
        """The traceback of one exception, without secrets."""
        return traceback_text(error, self.secrets.mask)

    def decode(self, data: bytes, form: str | None, kind: Any = Any) -> Any:
        """Load a value from verified bytes.

        Raises:
            UnreadableValueError: it cannot be loaded, or is a pickle and these are not loaded.
        """
        self.check(form)
        return decode(data, form, kind)

    def decode_error(self, data: bytes, form: str | None, *, whole: bool = False) -> BaseException:
        """Load an exception from verified bytes; ``whole``: not as a summary, if it was data.

        Raises:
            UnreadableValueError: it cannot be loaded, or is a pickle and these are not loaded.
        """
        self.check(form)
        return decode_error(data, form, whole=whole)

    def check(self, form: str | None) -> None:
        """Refuse pickles where they are not to be loaded.

        Raises:
            UnreadableValueError: it is one.
        """
        if form != JSON and not self.trusting:
            raise UnreadableValueError(
                "it was recorded as a pickle, and trust='data' loads none; call the workflow "
                "without it if you trust who could write to the store and had the key"
            )


def encode(value: object, what: str = "the value") -> Encoded:
    """Encode ``value``.

    Raises:
        NotRecordableError: it cannot be pickled; says which part of it.
        MemoryError: memory ran out; says what was recorded.
    """
    try:
        return _encode(value)
    except MemoryError as error:
        raise ran_out(f"{what} was recorded", error) from None
    except Exception as error:
        raise _not_recordable(value, what, error) from error


def encode_for_afar(values: tuple[Any, ...], what: str = "the value") -> Encoded:
    """Encode values for a process whose ``__main__`` is another program: its code by value.

    Returns:
        the values, and a dict of what they use of ``__main__``, by name.

    Raises:
        NotRecordableError: they cannot be pickled; says which part of them.
    """
    by_value = CodeByValue()
    try:
        data = dump((*values, {}), by_value)
        if by_value.names:
            main = vars(sys.modules["__main__"])
            data = dump((*values, {name: main[name] for name in by_value.names}), by_value)
        return Encoded(data, PYTHON)
    except MemoryError as error:
        raise ran_out(f"{what} was recorded", error) from None
    except Exception as error:
        raise _not_recordable(values, what, error) from error


def _encode(value: object) -> Encoded:
    try:
        return tuple.__new__(Encoded, (dump_plain(value), None))  # the constructor is Python's
    except MemoryError:
        raise
    except Exception:
        return Encoded(dump(value, Reducers()), PYTHON)


def decode(data: Data, form: str | None = None, kind: Any = Any) -> Any:
    """Load what :func:`encode` or :meth:`Codec.encode` made, from verified bytes.

    Raises:
        UnreadableValueError: it needs a class that is gone, or holds code of another Python.
    """
    if form == JSON:
        return _data.decode_data(bytes(data), kind)
    return decode_with(lambda: _loaded(bytes(data)), form)


def _loaded(data: bytes) -> Any:
    # The class of ours is slower where a value holds many classes.
    return _Unpickler(io.BytesIO(data)).load() if names_a_moved_one(data) else pickle.loads(data)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(current(module), name)


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
    except MemoryError as error:
        raise ran_out("a recorded value was loaded", error) from None
    except Exception as error:
        raise UnreadableValueError(
            f"a recorded value cannot be loaded: {type(error).__name__}: {error_text(error)}. "
            "Bring back the class or module that it names"
        ) from error


# -- naming the part that does not pickle --------------------------------------------------------


def _not_recordable(value: object, what: str, error: BaseException) -> NotRecordableError:
    path, culprit = ("", value) if too_deep(error) else _culprit(value)
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    where = f"{what}{path}" if path else what
    reason = "it is nested too deeply" if too_deep(error) else error_text(error)
    hint = "Return plain data (the text, the id, the path) instead of the live object"
    if inspect.isawaitable(culprit):
        hint = f"An `await` is missing where this {kind} is made"
    return NotRecordableError(
        f"{where} is a {kind} and cannot be recorded: {reason}. {hint}",
        path=path,
        type_name=kind,
    )


def _culprit(value: Any) -> tuple[str, Any]:
    """The part nearest to the top that fails to pickle although all its parts do, and its path."""
    waiting, met = collections.deque([("", value)]), {id(value)}
    for _ in range(_PARTS):
        if not waiting:
            break
        path, part = waiting.popleft()
        failing = [(piece, each) for piece, each in _parts(part) if not pickles(each)]
        if not failing:
            return path, part
        for piece, each in failing:
            if id(each) not in met:  # else it leads back up: the reason is elsewhere
                met.add(id(each))
                waiting.append((path + piece, each))
    return "", value


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [
            *((f"[{_short(key)}]", item) for key, item in value.items()),
            *((f" key {_short(key)}", key) for key in value),
        ]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    try:
        state = value.__reduce_ex__(2)[2]
    except Exception:
        state = getattr(value, "__dict__", None)
    states = state if isinstance(state, tuple) else (state,)  # of __dict__ and __slots__
    return [
        (f".{name}", item)
        for each in states
        if isinstance(each, dict)
        for name, item in each.items()
    ]


def pickles(value: object) -> bool:
    """Return whether a value can be recorded as a pickle."""
    try:
        _encode(value)
    except MemoryError:
        raise
    except Exception:
        return False
    return True


def _short(value: object) -> str:
    try:
        return f"{value!r:.40}"
    except Exception:
        return f"<{type(value).__qualname__}>"


# -- exceptions ----------------------------------------------------------------------------------


class _Failure(NamedTuple):
    """One exception of a chain: itself if it pickles, else a summary; links are indices.

    ``members`` are the exceptions of a group, ``notes`` what was added to it.
    """

    pickled: bytes | None
    python: str | None
    type_name: str
    message: str
    traceback_text: str
    cause: int | None
    context: int | None
    suppress: bool
    members: tuple[int, ...]
    notes: tuple[str, ...]


def encode_error(error: BaseException, secrets: Secrets = NO_SECRETS) -> Encoded:
    """Encode an exception with its causes and contexts, and the members of a group with theirs.

    Each is round-tripped through pickle now: many exceptions with an ``__init__`` of their own
    pickle but do not load.  Where one does not survive, its summary is recorded, and comes back as
    :class:`~stepwise.errors.StepFailedError`.  Secrets are masked in what it says and holds.
    """
    chain, index = linked_to(error, members)
    failures = [_failure(each, index, secrets) for each in chain]
    return Encoded(pickle.dumps([tuple(failure) for failure in failures], PROTOCOL))


def _failure(error: BaseException, index: dict[int, int], secrets: Secrets) -> _Failure:
    plain_group = type(error) in _GROUPS  # made again of its members
    pickled, python = (None, None) if plain_group else _surviving(error, secrets)
    message = str(getattr(error, "message", "")) if plain_group else error_text(error)
    return _Failure(
        pickled,
        python,
        type_name=type(error).__qualname__,
        message=secrets.mask(message),
        traceback_text=traceback_text(error, secrets.mask),
        cause=index.get(id(error.__cause__)),
        context=index.get(id(error.__context__)),
        suppress=error.__suppress_context__,
        members=tuple(index[id(each)] for each in members(error)),
        notes=tuple(map(secrets.mask, _notes(error))),
    )


def _notes(error: BaseException) -> tuple[str, ...]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, (list, tuple)):  # anybody may set it
        return ()
    return tuple(note for note in notes if isinstance(note, str))


def survives(error: BaseException) -> bool:
    """Return whether an exception can be recorded as it is."""
    return type(error) in _GROUPS or _surviving(error, NO_SECRETS)[0] is not None


def _surviving(error: BaseException, secrets: Secrets) -> tuple[bytes | None, str | None]:
    try:
        error = _without_keys(error)
        encoded, text = _encode(error), error_text(error)
        if secrets.found_in(encoded.data):
            masked = masked_copy(error, secrets.masked)
            encoded, text = _encode(masked), error_text(masked)
            if secrets.found_in(encoded.data):
                return None, None
        loaded = decode(*encoded)
    except MemoryError as problem:
        raise ran_out(f"the {type(error).__name__} that was raised was recorded", problem) from None
    except Exception:
        return None, None
    same = type(loaded) is type(error) and error_text(loaded) == text
    return (bytes(encoded.data), encoded.form) if same else (None, None)


def _without_keys(error: BaseException) -> BaseException:
    """Return an error without the keys that a request or response of httpx in it holds.

    Errors of the clients of models have them: in headers, cookies, and the query of the URL.
    """
    held = {name: _of_httpx(value) for name, value in vars(error).items()}
    if not any(held.values()):
        return error
    bare = type(error).__new__(type(error), *error.args)
    bare.args = error.args
    vars(bare).update(
        (name, _bare(value, held[name]) if held[name] else value)
        for name, value in vars(error).items()
    )
    return bare


def _of_httpx(value: Any) -> str:
    """Return ``Request`` or ``Response`` for such an object of httpx or httpx2."""
    for cls in type(value).__mro__:
        library = cls.__module__.partition(".")[0]
        if library in ("httpx", "httpx2") and cls.__name__ in ("Request", "Response"):
            return cls.__name__
    return ""


def _bare(value: Any, kind: str) -> Any:
    if kind == "Request":
        return type(value)(value.method, value.url.copy_with(query=None, userinfo=b""))
    value = copy.copy(value)
    vars(value).update((name, _bare(each, "Request")) for name, each in _requests_of(value))
    value.history = []
    value.headers = value.headers.copy()
    value.headers.pop("set-cookie", None)
    return value


def _requests_of(response: Any) -> list[tuple[str, Any]]:
    return [each for each in vars(response).items() if _of_httpx(each[1]) == "Request"]


def decode_error(data: bytes, form: str | None = None, *, whole: bool = False) -> BaseException:
    """Load what :func:`encode_error` made, from verified bytes; links between them are restored."""
    if form == JSON:
        from stepwise._values.exception_data import decode_raised  # on use

        return decode_raised(data, whole=whole)
    failures = [_Failure(*fields) for fields in _loaded(data)]
    revived: dict[int, BaseException] = {}

    def revive(number: int) -> BaseException:
        if number not in revived:
            failure = failures[number]
            revived[number] = error = _revive(failure, [revive(each) for each in failure.members])
            # A group that was pickled whole has members of its own.
            revived.update(zip(failure.members, members(error), strict=False))
        return revived[number]

    for number in range(len(failures)):
        revive(number)
    for number, failure in enumerate(failures):
        links = {
            "__cause__": None if failure.cause is None else revived[failure.cause],
            "__context__": None if failure.context is None else revived[failure.context],
            "__suppress_context__": failure.suppress,
            **({"__notes__": list(failure.notes)} if failure.notes else {}),
        }
        for name, value in links.items():  # past a ``__setattr__`` that forbids it
            BaseException.__setattr__(revived[number], name, value)
    return revived[0]


def _revive(failure: _Failure, members: list[BaseException]) -> BaseException:
    if failure.pickled is not None:
        try:
            return cast("BaseException", decode(failure.pickled, failure.python))
        except UnreadableValueError:
            pass  # its class is gone since: the summary still tells what happened
    for group in _GROUPS:
        if members and failure.type_name == group.__name__:
            return cast("BaseException", group(failure.message, members))
    return StepFailedError(
        f"{failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        traceback_text=failure.traceback_text,
    )


def traceback_text(error: BaseException, mask: Callable[[str], str] = str) -> str:
    """The traceback of one exception, without its chain, masked and shortened in the middle."""
    try:
        fold(error)
        lines = traceback.format_exception(type(error), error, error.__traceback__, chain=False)
        text = "".join(lines)
    except Exception:  # a SyntaxError made by hand
        text = f"{type(error).__qualname__}: {error_text(error)}\n"
    text = mask(text)
    if len(text) <= _TRACEBACK_CHARACTERS:
        return text
    half = _TRACEBACK_CHARACTERS // 2
    return f"{text[:half]}\n  [...]\n{text[-half:]}"
