"""Values as data only: JSON, shaped by the annotated return type of a function.

The reading process makes only objects that the annotation names.  With ``pydantic`` (the extra
``json``) these may be models, dataclasses, dates, tuples, sets, enums, bytes; without it, only what
JSON itself has.  A value that would come back as something else (a tuple as a list) is refused when
it is recorded: after a crash, it would be a wrong value.

This module alone knows pydantic, and jsonschema, which checks values sent to a waiting run.
"""

from __future__ import annotations

import functools
import json
import typing
from collections.abc import Callable
from typing import Any

from stepwise._runtime.system_limits import ran_out
from stepwise.errors import ConfigurationError, NotRecordableError, UnreadableValueError

# -- data -----------------------------------------------------------------------------------------


_ATOMS = (str, int, float, bool, type(None))


def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the parameters and of ``return``; empty if unknown."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # an annotation may name anything
        return {}


def returned_type(function: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function; ``Any`` if unknown."""
    return parameter_types(function).get("return", Any)


def encode_data(value: Any, kind: Any, what: str) -> bytes:
    """Encode a value as JSON.

    Args:
        kind: the annotated type of the value.
        what: the value's name in messages.

    Raises:
        NotRecordableError: the value is not data, or would come back as something else.
    """
    from stepwise._values.comparison import (  # on use: most programs record pickles
        alike,
        held_twice,
    )

    try:
        data = _to_json(value, kind)
        again = _from_json(data, kind)
        if not alike(value, again) and _adapter(kind) is not None:
            data = json_bytes(_with_ints(json.loads(data), value))
            again = _from_json(data, kind)
        same, twice = alike(value, again), held_twice(value)
    except MemoryError as error:
        raise ran_out(f"{what} was recorded", error) from None
    except Exception as error:
        raise _not_data(value, what, str(error).split("\n", 1)[0]) from error
    if not same:
        what_part = "it" if type(again) is not type(value) else "with a part changed, it"
        raise _not_data(
            value, what, f"{what_part} comes back as {type(again).__name__} {again!r:.80}"
        )
    if twice is not None:
        why = f"it holds one and the same {_name(type(twice))} twice, and would come back with two"
        raise _not_data(value, what, why)
    return data


def decode_data(data: bytes, kind: Any) -> Any:
    """Load a value that :func:`encode_data` encoded, from verified bytes.

    Raises:
        UnreadableValueError: the value no longer fits the annotation.
    """
    try:
        return _from_json(data, kind)
    except MemoryError as error:
        raise ran_out("a recorded value was loaded", error) from None
    except Exception as error:
        raise UnreadableValueError(
            f"a value recorded as JSON does not fit the type {_name(kind)} that its function is "
            f"annotated to return now: {error}"
        ) from error


def json_schema(kind: Any, what: str) -> str:
    """Return the JSON schema of a type, as JSON; empty for any value, or if there is none.

    Args:
        what: the type's name in messages.

    Raises:
        ConfigurationError: pydantic is missing, or does not support the type.
    """
    if kind in (None, Any):
        return ""
    if _pydantic() is None:
        raise ConfigurationError(
            f"{what} needs pydantic: pip install 'stepwise-agents[json]'. Without it, leave the "
            "type out, and check the value yourself"
        )
    try:
        return json.dumps(_validator(kind).json_schema(), sort_keys=True)
    except _pydantic().errors.PydanticInvalidForJsonSchema:
        return ""
    except Exception as error:  # also from a class's own __get_pydantic_core_schema__
        why = str(error).split("\n", 1)[0]
        raise ConfigurationError(
            f"{what} is {_name(kind)}, which pydantic cannot validate ({why}). Give a pydantic "
            "model, a dataclass, or a type of plain data such as list[str]"
        ) from error


def checked_json(data: bytes, kind: Any) -> Any:
    """Load JSON from outside as a value of a type.

    Raises:
        ValueError: the JSON does not fit the type; the message says where.
    """
    if kind is Any:
        return json.loads(data)
    try:
        return _validator(kind).validate_json(data, strict=True)
    except _pydantic().ValidationError as error:
        found = [
            f"{'.'.join(map(str, each['loc'])) or 'the value'}: {each['msg']}"
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise ValueError("; ".join(found)) from None


def _validator(kind: Any) -> Any:
    try:
        return _adapters(kind)
    except TypeError:  # not hashable
        return _pydantic().TypeAdapter(kind)


def _not_data(value: Any, what: str, why: str) -> NotRecordableError:
    kind = _name(type(value))
    hint = "Annotate what the function returns (-> tuple[int, str], -> MyModel)"
    if not _pydantic():
        hint += ", with pydantic installed: pip install 'stepwise-agents[json]'"
    return NotRecordableError(
        f"{what} is a {kind} and cannot be recorded as JSON (codec='json'): {why}. {hint}, or "
        "return plain data",
        type_name=kind,
    )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", kind))


def _to_json(value: Any, kind: Any) -> bytes:
    adapter = _adapter(kind)
    if adapter is not None:
        # Without strict warnings, pydantic would silently change a value of another type.
        return bytes(adapter.dump_json(value, warnings="error"))
    return json_bytes(value)


def json_bytes(value: Any) -> bytes:
    """Encode JSON data."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def plain(value: Any) -> Any:
    """Return the JSON data of a model, dataclass, date or the like.

    Raises:
        TypeError: the value has no form in JSON, or pydantic is needed to find it.
    """
    if _pydantic() is None:
        raise TypeError(
            "plain data (texts, numbers, lists, dicts) can be sent; for models, dataclasses and "
            "dates: pip install 'stepwise-agents[json]'"
        )
    try:
        return _pydantic().TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    except Exception as error:  # serializers are code of the user
        raise TypeError(f"it has no form in JSON ({error!s:.200})") from error


def _from_json(data: bytes, kind: Any) -> Any:
    adapter = _adapter(kind)
    if adapter is not None:
        return _ints_back(json.loads(data), adapter.validate_json(data))
    return json.loads(data)


# An int is valid where a float is annotated, but pydantic writes and reads a float there.


def _parts(value: Any) -> dict[Any, Any]:
    from stepwise._values.comparison import state_of  # on use

    return value if isinstance(value, dict) else state_of(value)


def _with_ints(written: Any, value: Any) -> Any:
    """Return the JSON of a value, with an int wherever the value has one."""
    if type(written) is float and type(value) is int:
        return value
    if isinstance(written, dict):
        parts = _parts(value)
        if len(parts) != len(written):
            return written
        pairs = zip(written.items(), parts.values(), strict=True)
        return {name: _with_ints(each, part) for (name, each), part in pairs}
    if isinstance(written, list) and isinstance(value, (list, tuple)):
        return [*map(_with_ints, written, value)]
    return written


def _ints_back(written: Any, value: Any) -> Any:
    """Return a value with an int wherever its JSON has one."""
    if type(value) is float:
        return written if type(written) is int and written == value else value
    if isinstance(written, dict):
        _put_ints(written, value)
    elif isinstance(written, list) and isinstance(value, (list, tuple)):
        parts = [*map(_ints_back, written, value)]
        if any(part is not each for part, each in zip(parts, value, strict=True)):
            if isinstance(value, tuple):
                return value._make(parts) if hasattr(value, "_make") else tuple(parts)
            value[:] = parts
    return value


def _put_ints(written: dict[str, Any], value: Any) -> None:
    parts = _parts(value)
    if len(parts) != len(written):
        return
    for (name, part), each in zip(list(parts.items()), written.values(), strict=True):
        again = _ints_back(each, part)
        if again is part:
            continue
        if isinstance(value, dict):
            value[name] = again
        else:
            object.__setattr__(value, name, again)


@functools.cache
def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError:
        return None
    return pydantic


def _adapter(kind: Any) -> Any:
    """Return pydantic's adapter for a type, or ``None`` if plain JSON is enough."""
    if kind in (Any, None, type(None), *_ATOMS) or _pydantic() is None:
        return None
    return _validator(kind)


@functools.lru_cache(256)
def _adapters(kind: Any) -> Any:
    return _pydantic().TypeAdapter(kind)


# -- schemas --------------------------------------------------------------------------------------


_FORMS = 5  # alternatives that a message describes


def misfit(schema: str, value: Any) -> str:
    """Return where plain data does not fit a JSON schema, and why; an empty text if it fits.

    A schema with a part that cannot be applied here, such as a pattern in another regular
    expression dialect, refuses nothing: the waiting program validates the value itself.

    Raises:
        ConfigurationError: ``jsonschema`` is not installed.
    """
    try:
        import jsonschema  # on use: only programs that send signals need it
        import referencing
    except ImportError as error:
        raise ConfigurationError(
            "the run waits for a value of a certain type; to check the value against its JSON "
            "schema, jsonschema is needed: pip install 'stepwise-agents[json]'"
        ) from error
    # The registry is empty, so that no schema makes this process fetch another schema.
    validator = jsonschema.Draft202012Validator(json.loads(schema), registry=referencing.Registry())
    try:
        errors = list(validator.iter_errors(value))
    except Exception:  # the schema itself is at fault, not the value
        return ""
    return _described(errors, jsonschema.exceptions.relevance) if errors else ""


def _described(errors: list[Any], relevance: Callable[[Any], Any]) -> str:
    """Describe the most telling error; if the value may have several forms, one error for each."""
    told = max(errors, key=relevance)
    forms: dict[object, list[Any]] = {}
    for each in told.context:
        forms.setdefault(each.relative_schema_path[0], []).append(each)
    if not forms:
        return f"{told.json_path}: {told.message:.200}"
    return ", or ".join(_described(found, relevance) for found in list(forms.values())[:_FORMS])
