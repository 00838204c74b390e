"""Values as data only: JSON, shaped by the type that a function is annotated to return.

Whoever reads it makes no object that the annotation does not name.  With ``pydantic`` (the extra
``json``) that may be models, dataclasses, dates, tuples, sets, enums, bytes; without it, what JSON
itself has.  What would come back as something else (a tuple as a list) is refused when it is
recorded: found after a crash, it would be a wrong value.

The only module that knows pydantic.  Imports: digest, errors.
"""

from __future__ import annotations

import builtins
import functools
import json
import typing
from collections.abc import Callable
from typing import Any

from stepwise import _digest
from stepwise.errors import DigestError, NotRecordableError, StepFailedError, UnreadableValueError

__all__ = ["decode_data", "decode_error_data", "encode_data", "encode_error_data", "returned_type"]

_ATOMS = (str, int, float, bool, type(None))


def returned_type(function: Callable[..., Any]) -> Any:
    """The type that a function is annotated to return; ``Any`` if none is, or it is not known."""
    try:
        return typing.get_type_hints(function, include_extras=True).get("return", Any)
    except Exception:  # an annotation may name anything
        return Any


def encode_data(value: Any, kind: Any, what: str) -> bytes:
    """Encode a value as JSON.

    Args:
        kind: the type it is annotated with.
        what: it is, for the message.

    Raises:
        NotRecordableError: it is not data, or would come back as something else.
    """
    try:
        data = _to_json(value, kind)
        again = _from_json(data, kind)
    except Exception as error:
        raise _not_data(value, what, str(error).split("\n", 1)[0]) from error
    if not _same(value, again):
        shown = f"it comes back as {type(again).__name__} {again!r:.80}"
        raise _not_data(value, what, shown)
    return data


def decode_data(data: bytes, kind: Any) -> Any:
    """Load what :func:`encode_data` made, from verified bytes.

    Raises:
        UnreadableValueError: it does not fit the annotation any more.
    """
    try:
        return _from_json(data, kind)
    except Exception as error:
        raise UnreadableValueError(
            f"a value recorded as JSON does not fit the type {_name(kind)} that its function is "
            f"annotated to return now: {error}"
        ) from error


def _not_data(value: Any, what: str, why: str) -> NotRecordableError:
    kind = _name(type(value))
    hint = "Annotate what the function returns (-> tuple[int, str], -> MyModel)"
    if not _pydantic():
        hint += ", with pydantic installed: pip install 'stepwise-agents[json]'"
    return NotRecordableError(
        f"{what} is a {kind} and cannot be recorded as JSON (codec='json'): {why}. {hint}, or "
        "return plain data",
        path="",
        type_name=kind,
    )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", kind))


def _same(one: Any, other: Any) -> bool:
    # Equal is enough: 0 where a float is annotated comes back as 0.0.  NaN is not equal to itself.
    if type(one) is type(other) and one == other:
        return True
    try:
        return _digest.digest(one) == _digest.digest(other)
    except DigestError:
        return False


def _to_json(value: Any, kind: Any) -> bytes:
    adapter = _adapter(kind)
    if adapter is not None:
        # Strict in what is taken: a value that is not of its type would be changed silently.
        return bytes(adapter.dump_json(value, warnings="error"))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _from_json(data: bytes, kind: Any) -> Any:
    adapter = _adapter(kind)
    if adapter is not None:
        return adapter.validate_json(data)
    return json.loads(data.decode("utf-8", "surrogatepass"))


@functools.cache
def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError:
        return None
    return pydantic


def _adapter(kind: Any) -> Any:
    """What pydantic makes of a type; ``None`` where plain JSON does."""
    if kind in (Any, None, type(None), *_ATOMS) or _pydantic() is None:
        return None
    try:
        return _adapters(kind)
    except TypeError:  # not hashable
        return _pydantic().TypeAdapter(kind)


@functools.lru_cache(256)
def _adapters(kind: Any) -> Any:
    return _pydantic().TypeAdapter(kind)


# -- exceptions ----------------------------------------------------------------------------------


def encode_error_data(error: BaseException, traceback: str) -> bytes:
    """Encode an exception: of a builtin one its class and arguments, of any other a summary."""
    cls = type(error)
    plain = getattr(builtins, cls.__name__, None) is cls and all(
        type(each) in _ATOMS for each in error.args
    )
    facts = {
        "type": cls.__qualname__,
        "message": str(error),
        "traceback": traceback,
        "args": list(error.args) if plain else None,
    }
    return json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_error_data(data: bytes) -> BaseException:
    """Load what :func:`encode_error_data` made: a builtin exception, or ``StepFailedError``."""
    facts = json.loads(data.decode("utf-8", "surrogatepass"))
    cls = getattr(builtins, facts["type"], None)
    if facts["args"] is not None and isinstance(cls, type) and issubclass(cls, BaseException):
        return cls(*facts["args"])
    return StepFailedError(
        f"{facts['type']}: {facts['message']}",
        type_name=facts["type"],
        traceback_text=facts["traceback"],
    )
