"""Encodings of particular kinds of values for their digest: models, types, arrays, tables.

One function per kind, from a value to its canonical bytes; :mod:`stepwise._values.digest` explains
what those are.  A library is imported only here, and only when the value is one of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from stepwise._values.digest_atoms import (
    UndigestibleError,
    called,
    class_name,
    fold,
    join,
    name_of,
    noun,
    string,
)
from stepwise._values.sentinels import found_at

__all__ = ["Form", "description", "form_for", "leads_to"]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not set for classes compiled into the interpreter


class PartEncoder(Protocol):
    """The encoder as the forms of values see it, to encode their parts."""

    def encode(self, value: Any) -> bytes: ...

    def items(self, values: Iterable[Any]) -> list[bytes]: ...

    def fields(self, value: Any, names: Iterable[str]) -> list[bytes]: ...


Form = Callable[[Any, Any], bytes]
"""Takes an :class:`PartEncoder` and a value."""


@contextlib.contextmanager
def _at(piece: str) -> Iterator[None]:
    try:
        yield
    except UndigestibleError as error:
        error.path.append(piece)
        raise


def leads_to(module: str | None, name: str, value: object) -> bool:
    """Return whether a dotted name leads to this very object, or to a decorated form of it."""
    found: Any = found_at(module or "builtins", name)
    for _ in range(20):  # decorators around it
        # Methods of builtin classes are made anew at each access.
        if found is value or (type(found) is types.BuiltinMethodType and found == value):
            return True
        found = getattr(found, "__wrapped__", None)
    return False


# -- which kind ----------------------------------------------------------------------------------


def form_for(cls: type) -> Form | None:
    """The form of the values of this class, if it is one of those known here."""
    if issubclass(cls, type):
        return _class
    for module, names, form in _OF_LIBRARIES:
        library = sys.modules.get(module)
        known = tuple(getattr(library, name) for name in names if hasattr(library, name))
        if issubclass(cls, known):
            return form
    for attribute, form in _MARKED:
        if hasattr(cls, attribute):
            return form
    if cls.__module__ == "typing" or issubclass(cls, (types.GenericAlias, types.UnionType)):
        return _annotation
    return None


# -- data classes of several makers --------------------------------------------------------------


def _object(value: Any, parts: Iterable[bytes]) -> bytes:
    return join(b"o", [name_of(class_name(type(value))), *parts])


def _dataclass(encoder: PartEncoder, value: Any) -> bytes:
    # Asked for each time: a class may get other fields, and classes may be equal to each other.
    compared = tuple([f.name for f in dataclasses.fields(value) if f.compare])
    return _object(value, encoder.fields(value, compared))


def _attrs(encoder: PartEncoder, value: Any) -> bytes:
    compared = [a for a in value.__attrs_attrs__ if a.eq]
    parts = encoder.fields(value, [a.name for a in compared if a.eq_key is None])
    for field in compared:
        if field.eq_key is not None:  # attrs.field(eq=str.lower)
            with _at(f".{field.name}"):
                parts.append(encoder.encode(field.eq_key(getattr(value, field.name))))
    return _object(value, parts)


def _msgspec(encoder: PartEncoder, value: Any) -> bytes:
    return _object(value, encoder.fields(value, value.__struct_fields__))


def _pydantic(encoder: PartEncoder, value: Any) -> bytes:
    # Its __dict__ holds the cached properties as well, which are not compared.
    cls: Any = type(value)
    names = tuple(sorted(cls.model_fields))
    for extra in ("__pydantic_extra__", "__pydantic_private__"):
        more = getattr(value, extra, None)
        if more:
            names = tuple(sorted({*names, *more}))
    return _object(value, encoder.fields(value, names))


# -- classes and annotations ---------------------------------------------------------------------


def _class(encoder: PartEncoder, value: Any) -> bytes:
    """Encode a class by its name, if it can be found by that name; else by its fields.

    So that the output type of an agent may be made on the fly.
    """
    name = class_name(value)
    if not value.__flags__ & _HEAP_TYPE or leads_to(value.__module__, value.__qualname__, value):
        return fold(b"c" + name.encode())
    described = description(value)
    if described is None:
        raise UndigestibleError(
            f"no importable name leads to the class {value.__qualname__!r}, so that two of that "
            "name cannot be told apart",
            class_name(type(value)),
        )
    return join(b"k", [string(name), encoder.encode(described)])


def description(cls: Any) -> list[Any] | None:
    """The fields or members of a class that describes data; ``None`` for others."""
    if issubclass(cls, enum.Enum):
        return [(name, member.value) for name, member in cls.__members__.items()]
    if dataclasses.is_dataclass(cls):
        return [(f.name, f.type) for f in dataclasses.fields(cls)]
    if hasattr(cls, "__pydantic_validator__"):
        return [
            (name, f.annotation, None if f.is_required() else f.default, f.description, f.metadata)
            for name, f in cls.model_fields.items()
        ]
    if hasattr(cls, "__attrs_attrs__"):
        return [(a.name, a.type) for a in cls.__attrs_attrs__]
    if typing.is_typeddict(cls) or hasattr(cls, "_fields"):
        annotations = typing.get_type_hints(cls, include_extras=True)
        return [(name, annotations.get(name)) for name in getattr(cls, "_fields", annotations)]
    return None


def _annotation(encoder: PartEncoder, value: Any) -> bytes:
    """``list[int]``, ``str | None``: the same on every Python."""
    origin = typing.get_origin(value)
    if origin is None:
        name = getattr(value, "__forward_arg__", None)
        if name is not None:
            return join(b"y", [b"forward", string(name)])
        name = getattr(value, "__name__", None) or value._name
        if not leads_to(value.__module__, name, value):
            raise UndigestibleError(
                f"no importable name leads to {noun(value)} named {name!r}", class_name(type(value))
            )
        return fold(f"c{called(value.__module__)}.{name}".encode())
    parts = encoder.items(typing.get_args(value))
    if origin in (typing.Union, types.UnionType):
        return join(b"y", [b"union", *sorted(parts)])
    if origin is typing.Literal:
        return join(b"y", [b"literal", *sorted(parts)])
    kind = b"plain" if isinstance(value, types.GenericAlias) else b"typing"
    return join(b"y", [kind, encoder.encode(origin), *parts])


# -- numpy ---------------------------------------------------------------------------------------


def _array(encoder: PartEncoder, value: Any) -> bytes:
    """A numpy array or scalar."""
    import numpy as np

    if not (type(value) is np.ndarray or isinstance(value, (np.generic, np.memmap))):
        raise UndigestibleError(
            f"{noun(value)} is a special kind of array; convert it with numpy.asarray first",
            class_name(type(value)),
        )
    return join(b"n" if isinstance(value, np.generic) else b"a", _elements(encoder, value))


def _elements(encoder: PartEncoder, value: Any) -> list[bytes]:
    """Element type, shape, and elements in C order, little-endian."""
    import numpy as np

    array = np.asarray(value)
    dtype = array.dtype
    shape = encoder.encode(array.shape)
    if dtype.names is not None:  # field by field: the padding between them does not count
        parts = [b"V", shape]
        for name in dtype.names:
            with _at(f"[{name!r}]"):
                parts += [string(name), join(b"a", _elements(encoder, array[name]))]
        return parts
    if dtype.hasobject or dtype.kind == "T":
        return [dtype.kind.encode(), shape, *encoder.items(array.ravel().tolist())]
    if dtype.char == "G":
        return [b"G", *_elements(encoder, array.real), *_elements(encoder, array.imag)]
    if dtype.char == "g":  # extended floats differ by machine, and their bytes hold padding
        texts = [np.format_float_scientific(each + 0) for each in array.ravel()]
        return [b"g", shape, *encoder.items(texts)]
    little = dtype.newbyteorder("<")
    name = little.str
    if dtype.type.__module__ != "numpy":  # bfloat16: one of several types of two bytes
        name += class_name(dtype.type)
    return [string(name), shape, _hash_of_elements(array, little)]


def _hash_of_elements(array: Any, little: Any) -> bytes:
    import numpy as np

    contiguous: Any = [["readonly", "contig"]]  # numpy's stubs do not know the second
    blocks: Any = np.nditer(  # in blocks: no copy of a large array is made
        [array],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=contiguous,
        op_dtypes=[little],
        order="C",
        casting="equiv",
        buffersize=1 << 16,
    )
    hashed = hashlib.sha256()
    for block in blocks:
        if block.dtype.kind in "fc":
            numbers = block.copy().view(block.real.dtype)
            with np.errstate(invalid="ignore"):
                numbers[numbers == 0] = 0  # -0.0 == 0.0
                numbers[np.isnan(numbers)] = np.nan
            hashed.update(numbers.tobytes())
        else:
            hashed.update(block.tobytes())
    return hashed.digest()


# -- pandas --------------------------------------------------------------------------------------


def _table(encoder: PartEncoder, value: Any) -> bytes:
    """A DataFrame, Series, Index or array of pandas: cell by cell, with its labels."""
    import pandas as pd

    if isinstance(value, pd.Index):
        return join(b"p", [b"Index", *_labels(encoder, value)])
    if isinstance(value, pd.Series):
        parts = [encoder.encode(value.name), *_column(encoder, value.array)]
    elif isinstance(value, pd.DataFrame):
        parts = _labels(encoder, value.columns)
        for name, series in value.items():
            with _at(f"[{name!r}]"):
                parts.append(join(b"p", _column(encoder, series.array)))
    else:
        return join(b"p", [b"array", *_column(encoder, value)])
    return join(b"p", [type(value).__name__.encode(), *_labels(encoder, value.index), *parts])


def _labels(encoder: PartEncoder, index: Any) -> list[bytes]:
    levels = [index.get_level_values(n).array for n in range(index.nlevels)]
    columns = [join(b"p", _column(encoder, level)) for level in levels]
    return [*encoder.items(index.names), *columns]


def _column(encoder: PartEncoder, array: Any) -> list[bytes]:
    import pandas as pd

    dtype = array.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        labels = _labels(encoder, dtype.categories)
        return [b"category", encoder.encode(dtype.ordered), *labels, _array(encoder, array.codes)]
    name = string(str(dtype))
    if isinstance(dtype, pd.DatetimeTZDtype):
        return [name, *_elements(encoder, array.to_numpy(f"M8[{dtype.unit}]"))]
    if not hasattr(dtype, "newbyteorder"):  # not one of numpy's
        return [name, *encoder.items(array.to_numpy(object))]
    return [name, *_elements(encoder, array.to_numpy())]


def _timestamp(_: PartEncoder, value: Any) -> bytes:
    """A Timestamp of pandas, whatever its unit and zone: equal ones are the same instant."""
    instant = value if value.tzinfo is None else value.tz_convert("UTC")
    return _object(value, [string(instant.isoformat(timespec="nanoseconds"))])


def _timedelta(_: PartEncoder, value: Any) -> bytes:
    return _object(value, [string(value.isoformat())])


_OF_LIBRARIES: tuple[tuple[str, tuple[str, ...], Form], ...] = (
    ("numpy", ("ndarray", "generic"), _array),
    ("pandas", ("DataFrame", "Series", "Index"), _table),
    ("pandas.api.extensions", ("ExtensionArray",), _table),
    ("pandas", ("Timestamp",), _timestamp),
    ("pandas", ("Timedelta",), _timedelta),
)
_MARKED: tuple[tuple[str, Form], ...] = (
    ("__dataclass_fields__", _dataclass),
    ("__pydantic_validator__", _pydantic),
    ("__attrs_attrs__", _attrs),
    ("__struct_fields__", _msgspec),
)
