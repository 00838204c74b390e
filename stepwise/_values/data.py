"""Values as data only: JSON, shaped by the type that a function is annotated to return.

Whoever reads it makes no object that the annotation does not name.  With ``pydantic`` (the extra
``json``) that may be models, dataclasses, dates, tuples, sets, enums, bytes; without it, what JSON
itself has.  What would come back as something else (a tuple as a list) is refused when it is
recorded: found after a crash, it would be a wrong value.

The only module that knows pydantic, and jsonschema, which checks what is sent to a waiting run.
"""

from __future__ import annotations

import functools
import json
import typing
from collections.abc import Callable
from typing import Any

from stepwise._runtime.limits import ran_out
from stepwise.errors import ConfigurationError, NotRecordableError, UnreadableValueError

# -- data -----------------------------------------------------------------------------------------


_ATOMS = (str, int, float, bool, type(None))


def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the parameters and of ``return``; empty if not known."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # an annotation may name anything
        return {}


def returned_type(function: Callable[..., Any]) -> Any:
    """Return the type that a function is annotated to return; ``Any`` if that is not known."""
    return parameter_types(function).get("return", Any)


def encode_data(value: Any, kind: Any, what: str) -> bytes:
    """Encode a value as JSON.

    Args:
        kind: the type it is annotated with.
        what: it is, for the message.

    Raises:
        NotRecordableError: it is not data, or would come back as something else.
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
    """Load what :func:`encode_data` made, from verified bytes.

    Raises:
        UnreadableValueError: it does not fit the annotation any more.
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
    """Return the JSON schema of a type, as JSON; empty for any value, or if there is no schema.

    Args:
        what: names the type, for the message.

    Raises:
        ConfigurationError: pydantic is missing, or knows nothing about such a type.
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
    except Exception as error:  # of a class's own __get_pydantic_core_schema__, too
        why = str(error).split("\n", 1)[0]
        raise ConfigurationError(
            f"{what} is {_name(kind)}, which pydantic cannot validate ({why}). Give a pydantic "
            "model, a dataclass, or a type of plain data such as list[str]"
        ) from error


def checked_json(data: bytes, kind: Any) -> Any:
    """Load JSON that somebody else wrote, as a type.

    Raises:
        ValueError: it does not fit; says where.
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
    """Return pydantic's adapter for a type."""
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
        path="",
        type_name=kind,
    )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", kind))


def _to_json(value: Any, kind: Any) -> bytes:
    adapter = _adapter(kind)
    if adapter is not None:
        # Strict: a value of another type would be changed silently.
        return bytes(adapter.dump_json(value, warnings="error"))
    return json_bytes(value)


def json_bytes(value: Any) -> bytes:
    """Encode JSON data."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def plain(value: Any) -> Any:
    """Return the JSON data that a model, dataclass, moment or the like stands for.

    Raises:
        TypeError: it has no such form, or pydantic is needed to know it.
    """
    if _pydantic() is None:
        raise TypeError(
            "plain data (texts, numbers, lists, dicts) can be sent; for models, dataclasses and "
            "dates: pip install 'stepwise-agents[json]'"
        )
    try:
        return _pydantic().TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    except Exception as error:  # its serializers are code of the user
        raise TypeError(f"it has no form in JSON ({error!s:.200})") from error


def _from_json(data: bytes, kind: Any) -> Any:
    adapter = _adapter(kind)
    if adapter is not None:
        return _ints_back(json.loads(data), adapter.validate_json(data))
    return json.loads(data)


# An int is at home where a float is annotated, but pydantic writes and reads a float there.


def _parts(value: Any) -> dict[Any, Any]:
    from stepwise._values.comparison import state_of  # on use

    return value if isinstance(value, dict) else state_of(value)


def _with_ints(written: Any, value: Any) -> Any:
    """The JSON of a value, with an int where the value has one."""
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
    """A value, with an int where its JSON has one."""
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
    """Return pydantic's adapter for a type, or ``None`` where plain JSON is enough."""
    if kind in (Any, None, type(None), *_ATOMS) or _pydantic() is None:
        return None
    return _validator(kind)


@functools.lru_cache(256)
def _adapters(kind: Any) -> Any:
    return _pydantic().TypeAdapter(kind)


# -- schemas --------------------------------------------------------------------------------------


_FORMS = 5  # that are described of a value that may have several


def misfit(schema: str, value: Any) -> str:
    """Return where plain data does not fit a JSON schema, and why; an empty text if it fits.

    A schema of which a part cannot be applied here (a pattern of another kind of regular
    expressions) refuses nothing: the program that waits validates the value itself.

    Raises:
        ConfigurationError: ``jsonschema`` is not installed.
    """
    try:
        import jsonschema  # on use: only those who send need it
        import referencing
    except ImportError as error:
        raise ConfigurationError(
            "the run waits for a value of a certain type; to check the value against its JSON "
            "schema, jsonschema is needed: pip install 'stepwise-agents[json]'"
        ) from error
    # The registry has nothing in it, so that no schema makes us fetch another one.
    validator = jsonschema.Draft202012Validator(json.loads(schema), registry=referencing.Registry())
    try:
        errors = list(validator.iter_errors(value))
    except Exception:  # the schema itself, of which the value cannot be blamed
        return ""
    return _described(errors, jsonschema.exceptions.relevance) if errors else ""


def _described(errors: list[Any], relevance: Callable[[Any], Any]) -> str:
    """Describe the most telling error; of a value that may have several forms, one for each."""
    told = max(errors, key=relevance)
    forms: dict[object, list[Any]] = {}
    for each in told.context:
        forms.setdefault(each.relative_schema_path[0], []).append(each)
    if not forms:
        return f"{told.json_path}: {told.message:.200}"
    return ", or ".join(_described(found, relevance) for found in list(forms.values())[:_FORMS])
