"""The digests of numpy's arrays and scalars and of pandas' tables."""

from __future__ import annotations

import math
import threading
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from stepwise._values.digest import digest
from stepwise.errors import DigestError


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


# -- arrays ----------------------------------------------------------------------------------------

_structured = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
EQUAL_ARRAYS = {
    "order": (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    "strides": (np.arange(0, 10, 2), np.arange(10)[::2]),
    "negative strides": (np.array([2, 1, 0]), np.arange(3)[::-1]),
    "transposed": (np.array([[0, 2], [1, 3]]), np.arange(4).reshape(2, 2).T),
    "byte order": (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    "byte order of floats": (np.array([1.5], dtype=">f8"), np.array([1.5])),
    "byte order of text": (np.array(["ab"], dtype=">U2"), np.array(["ab"], dtype="<U2")),
    "byte order in structures": (
        _structured,
        _structured.astype([("a", ">i4"), ("b", ">f8")]),
    ),
    "zeros": (np.array([0.0, 1.0]), np.array([-0.0, 1.0])),
    "complex zeros": (np.array([0j]), np.array([complex(-0.0, -0.0)])),
    "scalar zeros": (np.float32(0), np.float32(-0.0)),
    "read-only": (np.arange(3), np.broadcast_to(np.arange(3), (3,))),
    "broadcast": (np.zeros((2, 3)), np.broadcast_to(0.0, (2, 3))),
    "objects": (np.array([{"a": 1, "b": 2}, None]), np.array([{"b": 2, "a": 1}, None])),
    "object order": (
        np.array([[1, "a"], [2, "b"]], dtype=object),
        np.asfortranarray(np.array([[1, "a"], [2, "b"]], dtype=object)),
    ),
    "structures": (_structured, _structured[::-1][::-1]),
    "one structure": (_structured[0], _structured.copy()[0]),
    "scalars": (np.float64(1.5), np.array([1.5])[0]),
    "bools": (np.bool_(True), np.array([True])[0]),
    "text scalars": (np.str_("ab"), np.array(["ab"])[0]),
    "no elements": (np.zeros((0, 3)), np.ones((0, 3))),
    "no dimensions": (np.array(1.5), np.array(1.5)),
    "halves": (np.float16([1, 2]), np.array([1, 2], dtype="f2")),
    "generators": (np.random.default_rng(3), np.random.default_rng(3)),
    "dtypes": (np.dtype("f4"), np.dtype("float32")),
}


@pytest.mark.parametrize("case", EQUAL_ARRAYS)
def test_equal_arrays(case):
    """Arrays of equal elements have one digest, whatever their layout in memory."""
    one, other = EQUAL_ARRAYS[case]
    assert digest(one) == digest(other)
    assert digest([one]) == digest([other])


def test_different_arrays():
    """Element type, shape, elements, and being a scalar or not all make a difference."""
    arrays = [
        *(np.arange(6), np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), np.arange(6)[::-1]),
        *(np.arange(6, dtype="i4"), np.arange(6, dtype="u8"), np.arange(6.0), list(range(6))),
        *(np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(0, dtype="i1")),
        *(np.int64(1), np.int32(1), np.array(1), np.array([1]), 1, np.bool_(1), np.float64(1), 1.0),
        *(np.array([1, 2], dtype=object), np.array(["a"]), np.array([b"a"]), "a", np.str_("a")),
        *(_structured, _structured[["a"]], _structured[0], _structured["b"]),
        *(np.array([np.nan, 1.0]), np.array([1.0, np.nan]), np.array([np.inf]), np.array([1j])),
        *(np.dtype("f4"), np.dtype("f8"), np.random.default_rng(1), np.random.default_rng(2)),
    ]
    digests = [digest(array) for array in arrays]
    assert len(set(digests)) == len(arrays)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array(["2024-01-01", "NaT"], "M8[D]"), np.array(["2024-01-02", "NaT"], "M8[D]")),
        (np.array([1, 2], "m8[s]"), np.array([1, 3], "m8[s]")),
        (np.datetime64("2024-01-01"), np.datetime64("2024-01-02")),
        (np.timedelta64(1, "s"), np.timedelta64(2, "s")),
        (np.timedelta64(1, "s"), np.timedelta64(1, "ms")),
        (
            np.array([("2024-01-01", 1)], [("when", "M8[s]"), ("n", "i4")]),
            np.array([("2024-01-02", 1)], [("when", "M8[s]"), ("n", "i4")]),
        ),
    ],
    ids=["dates", "durations", "date", "duration", "unit", "structure"],
)
def test_dates_of_numpy(one, other):
    """Arrays and scalars of dates and durations have digests like all others."""
    assert digest(one) == digest(one.copy()) != digest(other)


@pytest.mark.parametrize("make", [np.longdouble, lambda text: np.array([text], dtype="g")])
def test_long_doubles(make):
    """Extended floats, whose bytes hold padding, count by their value."""
    digests = {digest(make("1.5")) for _ in range(20)}
    assert len(digests) == 1
    assert digests != {digest(make("2.5"))}


def test_nan_in_arrays():
    """A NaN in an array is a NaN, whatever its sign and payload, as in a plain float."""
    with np.errstate(invalid="ignore"):
        computed = np.array([np.inf]) - np.inf
    assert digest(float(computed[0])) == digest(math.nan)
    assert digest(computed) == digest(np.array([np.nan])) == digest(-np.array([np.nan]))
    assert digest(computed[0]) == digest(np.float64("nan"))


def test_zeros_in_structures():
    """The sign of a zero does not count inside a structured array either."""
    one, other = (np.array([(zero,)], dtype=[("a", "f8")]) for zero in (0.0, -0.0))
    assert (one == other).all()
    assert digest(one) == digest(other)


def test_padding_in_structures():
    """The bytes between the fields of an aligned structure are not part of its value."""
    aligned = np.dtype([("a", "i1"), ("b", "i8")], align=True)
    one, other = np.zeros(1, aligned), np.zeros(1, aligned)
    other.view("u1")[3] = 7
    assert (one == other).all()
    assert digest(one) == digest(other)


def test_overlapping_structures():
    """A structure whose fields overlap has a digest."""
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 0]})
    one, other = np.zeros(2, overlapping), np.ones(2, "i4").view(overlapping)
    assert digest(one) == digest(one.copy()) != digest(other)


@pytest.mark.parametrize("special", [np.ma.array([1, 2], mask=[0, 1]), np.rec.array([(1, 2)])])
def test_special_arrays(special):
    """A special kind of array is refused, with the conversion that helps."""
    with pytest.raises(DigestError, match=r"numpy\.asarray"):
        digest(special)


# -- tables ----------------------------------------------------------------------------------------


def test_equal_tables():
    """Equal frames, series and indexes of pandas have equal digests."""
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, np.nan]})
    same = pd.DataFrame({"c": [0.5, np.nan], "a": [1, 2], "b": ["x", None]})[["a", "b", "c"]]
    assert digest(frame) == digest(same) == digest(frame.copy())
    assert digest(frame["a"]) == digest(same["a"])
    assert digest(frame) == digest(frame.set_axis(pd.Index([0, 1])))  # a list is a range
    assert digest(frame.index) == digest(pd.RangeIndex(2))
    assert digest({"table": frame}) == digest({"table": same})


def test_different_tables():
    """Cells, column names, their order, element types, the index and a name make a difference."""
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    tables = [
        *(frame, frame[["b", "a"]], frame.rename(columns={"a": "c"}), frame.astype({"a": "i4"})),
        *(frame.astype({"a": float}), frame.iloc[::-1], frame.set_axis(["x", "y"]), frame[["a"]]),
        *(frame["a"], frame["a"].rename("c"), frame["a"].astype("i4"), frame.index, frame.columns),
        *(
            pd.DataFrame(),
            frame.iloc[:0],
            frame["a"].to_numpy(),
            frame["a"].tolist(),
            pd.Series([1]),
        ),
        *(pd.to_datetime(frame["a"]), pd.Series(["1", "2"], name="a"), frame.replace(1, 9)),
        *(
            pd.MultiIndex.from_tuples([(1, 2)]),
            pd.Categorical(["a"]),
            pd.Series(["a"], dtype="category"),
        ),
    ]
    assert len({digest(table) for table in tables}) == len(tables)


def test_mixed_columns():
    """In a column of mixed objects, the number 1 is not the text "1"."""
    one = pd.DataFrame({"a": [1, "b"]}, dtype=object)
    other = pd.DataFrame({"a": ["1", "b"]}, dtype=object)
    assert digest(one) != digest(other)


def test_objects_in_columns():
    """Equal objects in a column count by their value, not by the address in their ``repr``."""
    one, other = (pd.DataFrame({"a": [Plain(x=1), Plain(x=2)]}) for _ in range(2))
    assert digest(one) == digest(other)


def test_lists_in_columns():
    """A column of lists has a digest."""
    one, same, other = (pd.DataFrame({"a": [[number]]}) for number in (1, 1, 2))
    assert digest(one) == digest(same) != digest(other)


def test_path_into_a_table():
    """The path to what has no identity leads through the column to its row."""
    with pytest.raises(DigestError) as caught:
        digest([pd.DataFrame({"a": [1, threading.Lock()]})])
    assert caught.value.path == "[0]['a'][1]"
    assert caught.value.type_name == "_thread.lock"


def test_columns_of_other_kinds():
    """Categories, dates with zones, periods, nullable numbers and texts count by their values."""
    make = [
        lambda x: pd.Series(["a", x], dtype="category"),
        lambda x: pd.Series(["a", x], dtype="string"),
        lambda x: pd.Series([1, None, len(x)], dtype="Int64"),
        lambda x: pd.to_datetime(pd.Series(["2024-01-01", f"2024-01-0{len(x)}"])).dt.tz_localize(
            "Europe/Berlin"
        ),
        lambda x: pd.Series(pd.period_range("2024-01", periods=len(x))),
        lambda x: pd.Series(pd.interval_range(0, len(x))),
        lambda x: pd.MultiIndex.from_tuples([("a", 1), (x, 2)], names=["k", "n"]),
    ]
    digests = [{digest(each("x")), digest(each("x")), digest(each("xyz"))} for each in make]
    assert [len(each) for each in digests] == [2] * len(make)
    assert len(set.union(*digests)) == 2 * len(make)


def test_timestamps():
    """Equal timestamps of pandas have one digest, whatever their unit and zone."""
    noon = pd.Timestamp("2024-01-01 12:00", tz="UTC")
    assert digest(noon) == digest(pd.Timestamp("2024-01-01 12:00", tz="UTC"))
    assert digest(noon) != digest(pd.Timestamp("2024-01-01 13:00", tz="UTC"))
    assert digest(noon) == digest(noon.as_unit("s"))
    assert digest(noon) == digest(noon.tz_convert("Europe/Berlin"))


def test_mapped_files(tmp_path):
    """An array in a file that is mapped into memory is an array like any other."""
    array = np.arange(6.0)
    array.tofile(tmp_path / "a")
    assert digest(np.memmap(tmp_path / "a", dtype=float, mode="r")) == digest(array)


def test_large_arrays_in_little_memory():
    """The digest of a large array makes no copy of it."""
    array = np.zeros(2_000_000)
    tracemalloc.start()
    try:
        digest(array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < array.nbytes / 4
