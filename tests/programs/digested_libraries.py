"""Values of numpy, pandas, pydantic and attrs whose digests are compared: see ``digested``."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pydantic
from digested import VALUES as PLAIN_VALUES
from digested import WORDS, Plain, classes_made_on_the_fly


@attrs.define
class Attrs:
    x: Any
    note: Any = attrs.field(default=None, eq=False)


@attrs.define
class Caseless:
    name: str = attrs.field(eq=str.lower)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)

    x: Any = None
    _secret: Any = pydantic.PrivateAttr(default=None)

    @functools.cached_property
    def slow(self) -> str:
        return f"computed from {self.x}"


class Tags(pydantic.BaseModel):
    tags: set[str]
    more: Any = None


@pydantic.dataclasses.dataclass(slots=True)
class PydanticSlotted:
    x: int = 0


@pydantic.dataclasses.dataclass
class PydanticPoint:
    x: int = 0
    note: str = dataclasses.field(default="", compare=False)


def with_secret():
    model = Model(x=1)
    model._secret = "s"
    return model


def looked_at(model):
    assert model.slow
    return model


def padded(byte):
    """Return an array of one structure, with this byte between its two fields."""
    array = np.zeros(1, np.dtype([("a", "i1"), ("b", "i8")], align=True))
    array.view("u1")[3] = byte
    return array


def answer(field):
    return pydantic.create_model("Answer", n=field)


def twice(make):
    return make(), make()


def nan_of_a_subtraction():
    with np.errstate(invalid="ignore"):
        return np.array([np.inf]) - np.inf


FIELDS = {
    "an int": (int, ...),
    "a text": (str, ...),
    "an int or 0": (int, 0),
    "ints": (list[int], ...),
    "an int or none": (int | None, ...),
    "an int from 1": (int, pydantic.Field(ge=1)),
    "an int from 2": (int, pydantic.Field(ge=2)),
    "an int that is described": (int, pydantic.Field(description="how many")),
}
ROW = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, np.nan]})
TWO = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
NOON = pd.Timestamp("2024-01-01 12:00", tz="UTC")
OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 0]})

VALUES: dict[str, tuple[Any, ...]] = {
    "model": (Model(x=1, more=[2]), Model(more=[2], x=1)),
    "cached property of a model": (Model(x=1), looked_at(Model(x=1))),
    "private field of a model": (with_secret(),),
    "extra field of a model": (Model(x=1, more=1),),
    "field that attrs does not compare": (Attrs(1, note="a"), Attrs(1, note=threading.Lock())),
    "field that attrs compares by a key": (Caseless("A"), Caseless("a")),
    "dataclass of pydantic": (PydanticPoint(1, "a"), PydanticPoint(1, "b")),
    "dataclass of pydantic with slots": (PydanticSlotted(1), PydanticSlotted(1)),
    **classes_made_on_the_fly(
        "model", lambda field: pydantic.create_model("Answer", **{field: (int, 0)})
    ),
    **classes_made_on_the_fly("attrs", lambda field: attrs.make_class("Answer", [field])),
    **{f"output type with {name}": twice(lambda f=f: answer(f)) for name, f in FIELDS.items()},
    # Sets of texts: each process has an order of its own.
    "words in models": (Tags(tags=set(WORDS), more={"m": Tags(tags=set(WORDS))}),),
    "words in attrs": (Attrs(set(WORDS)),),
    "words in an array": (np.array([set(WORDS), None]),),
    "words in a frame": (pd.DataFrame({"a": [frozenset(WORDS)]}),),
    "output type of a set": twice(lambda: answer((set[str], ...))),
    # Arrays.
    "array": (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    "strides": (np.arange(0, 10, 2), np.arange(10)[::2]),
    "negative strides": (np.array([2, 1, 0]), np.arange(3)[::-1]),
    "transposed": (np.array([[0, 2], [1, 3]]), np.arange(4).reshape(2, 2).T),
    "byte order": (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    "byte order of floats": (np.array([1.5], dtype=">f8"), np.array([1.5])),
    "byte order of text": (np.array(["ab"], dtype=">U2"), np.array(["ab"], dtype="<U2")),
    "structures": (ROW, ROW[::-1][::-1], ROW.astype([("a", ">i4"), ("b", ">f8")])),
    "one structure": (ROW[0], ROW.copy()[0]),
    "zeros": (np.array([0.0, 1.0]), np.array([-0.0, 1.0])),
    "zeros in a structure": twice(lambda: np.array([(0.0,)], dtype=[("a", "f8")]))
    + (np.array([(-0.0,)], dtype=[("a", "f8")]),),
    "complex zeros": (np.array([0j]), np.array([complex(-0.0, -0.0)])),
    "scalar zeros": (np.float32(0), np.float32(-0.0)),
    "nan, whatever its sign and payload": (
        *(nan_of_a_subtraction(), np.array([np.nan]), -np.array([np.nan])),
    ),
    "nan of a scalar": (nan_of_a_subtraction()[0], np.float64("nan")),
    "read-only": (np.arange(3), np.broadcast_to(np.arange(3), (3,))),
    "broadcast": (np.zeros((2, 3)), np.broadcast_to(0.0, (2, 3))),
    "objects": (np.array([{"a": 1, "b": 2}, None]), np.array([{"b": 2, "a": 1}, None])),
    "objects by columns": (
        np.array([[1, "a"], [2, "b"]], dtype=object),
        np.asfortranarray(np.array([[1, "a"], [2, "b"]], dtype=object)),
    ),
    "padding in a structure": (padded(0), padded(7)),
    "fields that overlap": (np.zeros(2, OVERLAPPING), np.zeros(2, OVERLAPPING)),
    "other fields that overlap": (np.ones(2, "i4").view(OVERLAPPING),),
    "scalar": (np.float64(1.5), np.array([1.5])[0]),
    "bool": (np.bool_(True), np.array([True])[0]),
    "text scalar": (np.str_("ab"), np.array(["ab"])[0]),
    "no elements": (np.zeros((0, 3)), np.ones((0, 3))),
    "no dimensions": (np.array(1.5), np.array(1.5)),
    "halves": (np.float16([1, 2]), np.array([1, 2], dtype="f2")),
    "generator of random numbers": (np.random.default_rng(3), np.random.default_rng(3)),
    "dtype": (np.dtype("f4"), np.dtype("float32")),
    # The bytes of extended floats hold padding.
    "long double": tuple(np.longdouble("1.5") for _ in range(20)),
    "another long double": (np.longdouble("2.5"),),
    "long doubles": tuple(np.array(["1.5"], dtype="g") for _ in range(20)),
    "other long doubles": (np.array(["2.5"], dtype="g"),),
    # Tables.
    "frame": (FRAME, FRAME[["c", "b", "a"]][["a", "b", "c"]], FRAME.set_axis(pd.Index([0, 1]))),
    "column": (FRAME["b"], FRAME.copy()["b"]),
    "index": (FRAME.index, pd.RangeIndex(2)),
    "number in a mixed column": (pd.DataFrame({"a": [1, "b"]}, dtype=object),),
    "text in a mixed column": (pd.DataFrame({"a": ["1", "b"]}, dtype=object),),
    "objects in a column": twice(lambda: pd.DataFrame({"a": [Plain(x=1), Plain(x=2)]})),
    "lists in a column": twice(lambda: pd.DataFrame({"a": [[1]]})),
    "other lists in a column": (pd.DataFrame({"a": [[2]]}),),
    "timestamp": (
        NOON,
        pd.Timestamp(str(NOON)),
        NOON.as_unit("s"),
        NOON.tz_convert("Europe/Berlin"),
    ),
    "another timestamp": (pd.Timestamp("2024-01-01 13:00", tz="UTC"),),
}


def others():
    """Yield values that differ from each other, and from those above."""
    yield from [np.arange(6), np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)]
    yield from [np.arange(6)[::-1], np.arange(6, dtype="i4"), np.arange(6, dtype="u8")]
    yield from [np.arange(6.0), list(range(6)), np.zeros(0), np.zeros((3, 0))]
    yield from [np.zeros(0, dtype="i1"), np.int64(1), np.int32(1), np.array(1), np.array([1])]
    yield from [np.float64(1), np.float32(1), np.array([1, 2], dtype=object), np.array(["a"])]
    yield from [np.array([b"a"]), np.str_("a"), ROW[["a"]], ROW["b"], np.array([np.nan, 1.0])]
    yield from [np.array([1.0, np.nan]), np.array([np.inf]), np.array([1j]), np.dtype("f8")]
    yield from [np.random.default_rng(1), np.random.default_rng(2)]
    for day in (1, 2):
        date = f"2024-01-0{day}"
        yield from [np.array([date, "NaT"], "M8[D]"), np.datetime64(date)]
        yield np.array([(date, 1)], [("when", "M8[s]"), ("n", "i4")])
        yield np.array([1, day + 1], "m8[s]")
    yield from [np.timedelta64(1, "s"), np.timedelta64(2, "s"), np.timedelta64(1, "ms")]
    yield from [TWO, TWO[["b", "a"]], TWO.rename(columns={"a": "c"}), TWO.astype({"a": "i4"})]
    yield from [TWO.astype({"a": float}), TWO.iloc[::-1], TWO.set_axis(["x", "y"]), TWO[["a"]]]
    yield from [TWO["a"], TWO["a"].rename("c"), TWO["a"].astype("i4"), TWO.columns, pd.DataFrame()]
    yield from [TWO.iloc[:0], TWO["a"].to_numpy(), TWO["a"].tolist(), pd.Series([1])]
    yield from [pd.to_datetime(TWO["a"]), pd.Series(["1", "2"], name="a"), TWO.replace(1, 9)]
    yield from [pd.MultiIndex.from_tuples([(1, 2)]), pd.Categorical(["a"])]
    yield from [pd.Series(["a"], dtype="category"), pd.Series([1.5], name="s"), pd.Index(WORDS)]
    yield from [pd.Timestamp("2024-01-01"), pd.Timedelta("1h"), pd.Period("2024-01"), pd.NA, pd.NaT]
    yield from [pydantic.SecretStr("s"), attrs.make_class("Answer", ["a", "b"])]
    yield pd.DataFrame({"a": ["x", "y"], "b": pd.to_datetime(["2024-01-01", None])})
    for x in ("x", "xyz"):
        yield pd.Series(["a", x], dtype="category")
        yield pd.Series(["a", x], dtype="string")
        yield pd.Series([1, None, len(x)], dtype="Int64")
        dates = pd.Series(["2024-01-01", f"2024-01-0{len(x)}"])
        yield pd.to_datetime(dates).dt.tz_localize("Europe/Berlin")
        yield pd.Series(pd.period_range("2024-01", periods=len(x)))
        yield pd.Series(pd.interval_range(0, len(x)))
        yield pd.MultiIndex.from_tuples([("a", 1), (x, 2)], names=["k", "n"])


VALUES.update({f"another {n}": (each,) for n, each in enumerate(others())})
EVERYTHING = {**{f"plain {name}": each for name, each in PLAIN_VALUES.items()}, **VALUES}
assert math.isnan(float(nan_of_a_subtraction()[0]))
