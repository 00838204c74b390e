"""The contents of the objects that a call was given, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stepwise._checkpoints.surroundings import COLLECTIONS, Surroundings
from stepwise._checkpoints.variables import content_of, refill
from stepwise._runtime.facts import NamedTuple
from stepwise._values import data as _data
from stepwise._values.codec import Encoded, pickles
from stepwise._values.instances import attributes
from stepwise._values.synchronizers import is_synchronizer
from stepwise._values.tagged_json import NotDataError, dump_tagged, load_tagged
from stepwise.errors import NotRecordableError, UnreadableValueError

__all__ = ["put_back", "take_apart", "with_contents"]

_OWN = frozenset({"__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"})


def with_contents(encoded: Encoded, around: Surroundings, what: str) -> Encoded:
    """Return an encoded outcome together with the current contents of the arguments.

    Args:
        what: the run, for the message.

    Raises:
        NotRecordableError: an argument does not hold data.
    """
    types, written = around.annotated, {}
    for name, value in around.arguments.items():
        try:
            written[name] = _write(name, value, types.get(name), around)
        except (NotDataError, NotRecordableError) as problem:
            kind = type(value).__qualname__
            raise NotRecordableError(
                f"{what} changed its argument {name!r}, and the new contents of that {kind} cannot "
                f"be recorded as JSON (codec='json'): {problem}. Return the change instead, or "
                "leave the argument as it was",
                path="",
                type_name=kind,
            ) from problem
    whole = {"value": json.loads(bytes(encoded.data)), "arguments": written}
    return Encoded(_data.json_bytes(whole), encoded.form)


def take_apart(payload: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return the encoded outcome, and what :func:`put_back` takes."""
    whole = json.loads(payload)
    return _data.json_bytes(whole["value"]), whole["arguments"]


def put_back(written: Mapping[str, Any], around: Surroundings) -> None:
    """Restore the recorded contents of the arguments.

    Raises:
        UnreadableValueError: they cannot be loaded here; nothing was changed then.
    """
    types = around.annotated
    try:
        contents = {n: _read(each, types.get(n), around, n) for n, each in written.items()}
    except (UnreadableValueError, MemoryError):
        raise
    except Exception as problem:
        raise UnreadableValueError(
            f"the contents that the call left in its arguments cannot be loaded: {problem}"
        ) from problem
    before = {name: content_of(name, live, around) for name, live in around.arguments.items()}
    try:
        for name, held in contents.items():
            _put(name, held, around)
    except Exception as problem:
        for name, held in before.items():
            refill(around.arguments[name], held)
        if isinstance(problem, MemoryError):
            raise
        raise UnreadableValueError(
            f"what the call left in its argument {name!r} cannot be put back: {problem}"
        ) from problem


def _write(name: str, value: Any, kind: Any, around: Surroundings) -> dict[str, Any]:
    try:
        return {"tagged": dump_tagged(value)}
    except NotDataError as problem:
        if kind is not None:
            try:
                data = _data.encode_data(value, kind, f"the argument {name!r}")
                return {"typed": json.loads(data)}
            except NotRecordableError:
                pass  # it may be data attribute by attribute
        if type(value) in COLLECTIONS or name not in around.arguments:
            raise NotDataError(f"{name}: {problem}") from None
    return _write_state(name, value, around)


def _write_state(name: str, value: Any, around: Surroundings) -> dict[str, Any]:
    """An instance that is an argument, attribute by attribute.

    An attribute that is an argument itself has its contents there; a secret one, or one that cannot
    be recorded in any way (a client), keeps the value of the fresh object.
    """
    hints = _data.parameter_types(type(value))
    state, kept = {}, []
    for key, held in attributes(value).items():
        path = f"{name}.{key}"
        if path in around.arguments or path in around.secret:
            kept.append(key)
            continue
        try:
            state[key] = _write(path, held, hints.get(key), around)
        except NotDataError:
            if key in _OWN or (pickles(held) and not is_synchronizer(held)):
                raise
            kept.append(key)
    _, _, items = content_of(name, value, around)
    return {"state": state, "kept": kept, "items": dump_tagged(items)}


def _read(written: Mapping[str, Any], kind: Any, around: Surroundings, name: str) -> Any:
    """Return the written object: a value, or the content of an instance."""
    if "tagged" in written:
        return load_tagged(written["tagged"])
    if "typed" in written:
        return _data.decode_data(_data.json_bytes(written["typed"]), kind)
    live = around.arguments.get(name)
    if live is None:
        raise UnreadableValueError(f"the call was given an object {name!r}, which is not there now")
    hints = _data.parameter_types(type(live))
    held = {
        key: _read(each, hints.get(key), around, f"{name}.{key}")
        for key, each in written["state"].items()
    }
    return _InstanceState(held, tuple(written["kept"]), load_tagged(written["items"]))


class _InstanceState(NamedTuple):
    """The content of an instance, as ``refill`` takes it."""

    held: dict[str, Any]
    kept: tuple[str, ...]
    items: Any


def _put(name: str, held: Any, around: Surroundings) -> None:
    live = around.arguments.get(name)
    if live is None or (type(held) is not _InstanceState and type(held) is not type(live)):
        owner, _, attribute = name.rpartition(".")
        if owner not in around.arguments:
            raise TypeError("the call was given another object now")
        object.__setattr__(around.arguments[owner], attribute, held)
    elif type(held) is _InstanceState:
        refill(live, held)
    else:
        refill(live, content_of(name, held, around))
