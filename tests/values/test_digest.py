"""The canonical digest: which values share one, which do not, and which have none."""

from __future__ import annotations

import collections
import copy
import datetime as dt
import decimal
import functools
import importlib.resources
import json
import math
import os
import pathlib
import random
import re
import socket
import sys
import textwrap
import threading
import tracemalloc
import types
import zoneinfo
from typing import Any
from unittest import mock

import digested
import digested_libraries
import numpy as np
import pandas as pd
import pytest
from digested import (
    NAIVE,
    Color,
    Pair,
    Permission,
    Plain,
    Point,
    Slotted,
    WithSlots,
    closure,
    crowd,
    deep,
    local_class,
    module_function,
)
from digested_libraries import EVERYTHING, Attrs, Model
from harness import interpreted
from hypothesis import example, given
from hypothesis import strategies as st
from pythons import interpreters, others
from sweeping import some

import stepwise
from examples import sweep
from stepwise._values import digest as _digest
from stepwise._values.digest import class_name, combine, digest
from stepwise.errors import DigestError

# -- every question to every value -----------------------------------------------------------------


def test_ranges():
    """Ranges of equal items have one digest, also those with more items than len() can count."""
    large = range(0, 10**30, 3)
    assert digest(large) == digest(range(0, large[-1] + 1, 3))
    assert len({digest(each) for each in (large, large[:-1], large[1:], range(0, 10**30, 4))}) == 4
    assert digest(range(5, 6, 7)) == digest(range(5, 0, -9))
    assert digest(range(7, 0)) == digest(range(0))


@pytest.mark.parametrize("name", [name for name, each in EVERYTHING.items() if len(each) > 1])
def test_equal_values_share_a_digest(name):
    """Equal values have one digest, alone and inside others, each time that it is computed."""
    for wrap in (lambda value: value, lambda value: [value, {"k": value}]):
        assert len({digest(wrap(value)) for value in EVERYTHING[name] for _ in range(2)}) == 1


def test_no_two_share_a_digest():
    """Values that are easily taken for each other differ, alone and inside others."""
    for wrap in (lambda value: value, lambda value: [value], lambda value: {"k": (value, 0)}):
        met: dict[str, str] = {}
        for name, values in EVERYTHING.items():
            found = met.setdefault(digest(wrap(values[0])), name)
            assert found == name, (values[0], EVERYTHING[found][0])


# A package that has stepwise's folder but not its __init__, which imports what only the
# environment of the tests has.
STUB = textwrap.dedent(
    f"""
    import json, sys, types
    package = types.ModuleType("stepwise")
    package.__path__ = [{os.path.dirname(stepwise.__file__)!r}]
    sys.modules["stepwise"] = package
    sys.path.insert(0, {os.path.dirname(digested.__file__)!r})
    from stepwise._values.digest import digest
    from {{}} import VALUES
    print(json.dumps({{{{name: digest(values[0]) for name, values in VALUES.items()}}}}))
    """
)


def differing(module, python, seed):
    """Return the names of a module's values for which another process finds another digest."""
    done = interpreted(
        *["-B", "-W", "error::BytesWarning", "-c"],
        STUB.format(module.__name__),
        by=python,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ""},
    )
    found = json.loads(done.stdout)
    assert found.keys() == module.VALUES.keys()
    own = {name: digest(values[0]) for name, values in module.VALUES.items()}
    return {name for name in own if own[name] != found[name]}


@pytest.mark.parametrize(
    ("module", "seed"),
    [(digested, "4242"), (digested_libraries, "7")],
    ids=["plain", "libraries"],
)
def test_other_processes(module, seed):
    """Another process, with another hash seed, finds the same digests."""
    assert differing(module, sys.executable, seed) == set()


@pytest.mark.parametrize("version", some(others(), 2, "digests"))
def test_other_pythons(version):
    """Another version of Python finds the same digests, so that a run survives an upgrade."""
    own = {"dataclass of a", "dataclass of b"}  # Python generates some of their methods
    if version == "3.10":  # where a set of a subclass has a state, though an empty one
        own |= {"set of a subclass", "words of a subclass"}
    assert differing(digested, interpreters()[version], "random") <= own


# -- values that are drawn -------------------------------------------------------------------------

zones = st.sampled_from([dt.timezone.utc, dt.timezone(dt.timedelta(hours=5, minutes=30))])
moments = st.datetimes(min_value=NAIVE.replace(year=1900), max_value=NAIVE.replace(year=2200))
names = st.text(max_size=8)
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False, allow_infinity=True),
    st.fractions(),
    st.uuids(),
    st.dates(),
    st.timedeltas(),
    moments,
    st.builds(lambda moment, zone: moment.replace(tzinfo=zone), moments, zones),
    st.sampled_from([*Color, *Permission, Permission.READ | Permission.WRITE, int, len, ...]),
    st.builds(pathlib.PurePosixPath, names.filter(lambda text: "\0" not in text)),
)
atoms = hashables | st.just(math.nan) | st.complex_numbers() | st.builds(range, st.integers(0, 9))


def containers(inner):
    mappings = st.dictionaries(hashables, inner, max_size=5)
    return st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        mappings,
        mappings.map(lambda pairs: collections.defaultdict(list, pairs)),
        mappings.map(collections.OrderedDict),
        st.dictionaries(hashables, st.integers(0, 3), max_size=5).map(collections.Counter),
        st.sets(hashables, max_size=5),
        st.frozensets(hashables, max_size=5),
        st.lists(inner, max_size=4).map(collections.deque),
        st.builds(Point, inner, inner),
        st.builds(Slotted, inner),
        st.builds(Pair, inner, inner),
        st.builds(Attrs, inner),
        st.builds(lambda value: Model(x=value, more=value), inner),
        st.builds(lambda value: Plain(a=value, b=1), inner),
        st.builds(WithSlots, inner),
        st.builds(lambda value: types.SimpleNamespace(a=value), inner),
    )


values = st.recursive(atoms, containers, max_leaves=12)


class Twin:
    """Makes an equal value in another way: other objects, orders, zones, signs of zero."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def of(self, value):
        kind = type(value)
        if kind is str:
            return "".join(list(value))
        if kind is float:
            return float("nan") if math.isnan(value) else -value if value == 0 else value
        if kind is decimal.Decimal:
            return self.decimal(value)
        if kind is dt.datetime and value.tzinfo is not None:
            return value.astimezone(
                dt.timezone(dt.timedelta(minutes=self.chance.randint(-600, 600)))
            )
        if kind in (list, tuple, collections.deque):
            return kind([self.of(item) for item in value])
        if kind is Pair:
            return Pair(*map(self.of, value))
        if kind in (set, frozenset):
            return self.set(kind, value)
        if kind in (dict, collections.OrderedDict, collections.Counter):
            return kind(dict(self.pairs(value, shuffled=kind is not collections.OrderedDict)))
        if kind is collections.defaultdict:
            return collections.defaultdict(int, self.pairs(value, shuffled=True))
        if kind in (Point, Attrs):
            fields = [self.of(getattr(value, name)) for name in ("x", "y") if hasattr(value, name)]
            return kind(*fields, note="another note")
        if kind is Slotted or kind is WithSlots:
            return kind(self.of(value.x))
        if kind is Model:
            return Model(more=self.of(value.more), x=self.of(value.x))
        if kind in (Plain, types.SimpleNamespace):
            return kind(**dict(reversed([(n, self.of(v)) for n, v in vars(value).items()])))
        return copy.copy(value)

    def decimal(self, value):
        sign, digits, exponent = value.as_tuple()
        if not value.is_finite():
            return value
        if value == 0:
            sign, exponent = 1 - sign, exponent + 3
        return decimal.Decimal((sign, (*digits, 0), exponent - 1))

    def set(self, kind, value):
        items = [self.of(item) for item in value]
        self.chance.shuffle(items)
        strangers = [object() for _ in range(self.chance.randint(0, 40))]
        built = set(strangers + items)  # a table of another size, with other collisions
        built.difference_update(strangers)
        return kind(built)

    def pairs(self, value, *, shuffled):
        pairs = [(self.of(key), self.of(item)) for key, item in value.items()]
        if isinstance(value, collections.Counter):
            pairs.append((Pair("never", "counted"), 0))
        if shuffled:
            self.chance.shuffle(pairs)
        return pairs


def table(rows, **changed):
    columns = {
        "number": np.arange(rows, dtype="float64"),
        "count": np.arange(rows),
        "flag": np.arange(rows) % 2 == 0,
        "at": np.arange(rows).astype("M8[s]"),
        **changed,
    }
    return pd.DataFrame(columns)


def test_columns_of_numbers_are_digested_whole(monkeypatch):
    """A column of numbers is digested at once, and counts with each of its numbers."""
    whole = digest(table(1000))
    monkeypatch.setattr(_digest.Encoder, "items", counted := mock.Mock(return_value=[]))
    digest(table(1000))
    assert all(len(each.args[0]) < 10 for each in counted.call_args_list)
    monkeypatch.undo()
    assert whole == digest(table(1000)) != digest(table(1001))
    for name, kind in {"number": float, "count": int, "flag": bool, "at": "M8[s]"}.items():
        column = table(1000)[name].to_numpy().copy()
        column[999] = np.array(7).astype(kind)
        assert digest(table(1000, **{name: column})) != whole
    numbers = np.array([0.0, np.nan, 1.0])
    equal = np.array([-0.0, -np.nan, 1.0])
    assert digest(table(3, number=numbers)) == digest(table(3, number=equal))


def test_columns_of_texts_are_digested_whole(monkeypatch):
    """A column of texts is digested at once, and counts with each text and its place."""
    cells = ["ab", "c", "", None, "d", math.nan, "\ud800", 1]
    others = [
        ["a", "bc", *cells[2:]],
        [*cells[:2], None, "", *cells[4:]],
        [*cells[:3], "", *cells[4:]],
        [*cells[:7], True],
        [*cells[:7], 1.0],
        [*cells, ""],
        ["ab", "c", b"", *cells[3:]],
    ]
    arrays = [np.array(each, object) for each in (cells, *others)]
    found = [digest(each) for each in arrays]
    assert len(set(found)) == len(found)
    assert found == [digest(each.copy()) for each in arrays]
    for column in (pd.Series(["a", "b", None]), pd.Series(["a", "b", None], dtype=object)):
        assert digest(column) == digest(column.copy())
        assert digest(column) != digest(column.fillna(""))
        assert digest(column) != digest(column.replace("b", "c"))
    monkeypatch.setattr(_digest.Encoder, "items", counted := mock.Mock(return_value=[]))
    digest(table(1000, text=[str(each) for each in range(1000)]))
    assert all(len(each.args[0]) < 10 for each in counted.call_args_list)


@sweep
@given(values, st.integers(0, 2**32))
@example(-0.0, 0)
@example([{-0.0: {"b", "a", "c"}}, decimal.Decimal("-0.00"), math.nan], 1)
def test_equal_values(value, seed):
    """Equal values of one type have equal digests, however they were made."""
    assert digest(Twin(random.Random(seed)).of(value)) == digest(value)


@sweep
@given(values)
def test_copies(value):
    """A deep copy, which shares nothing with its original, has the digest of its original."""
    assert digest(copy.deepcopy(value)) == digest(value)


def form(value):
    """Return what is equal if and only if the values are, types included: the oracle."""
    kind = type(value)
    if kind in (list, tuple, collections.deque):
        return (kind, tuple(map(form, value)))
    if kind in (set, frozenset):  # these two are equal to each other
        return (set, frozenset(map(form, value)))
    if kind is dict:
        return (kind, frozenset((form(key), form(item)) for key, item in value.items()))
    if kind is collections.OrderedDict:
        return (kind, tuple((form(key), form(item)) for key, item in value.items()))
    if kind in (Point, Pair):
        return (kind, *map(form, (value.x, value.y) if kind is Point else value))
    if kind is float and math.isnan(value):
        return (kind, "nan")
    return (kind, value)


near_keys = st.sampled_from(
    [0, 1, True, 1.0, "", "a", "b", "ab", b"a", b"ab", None, (), (1,), ("a",)]
)
near = st.recursive(
    near_keys
    | st.sampled_from([False, -0.0, math.nan, -1, "a" * 63, "a" * 64, "b" * 64, "a" * 65]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(near_keys, inner, max_size=2),
        st.dictionaries(near_keys, inner, max_size=2).map(collections.OrderedDict),
        st.sets(near_keys, max_size=3),
        st.frozensets(near_keys, max_size=2),
        st.lists(inner, max_size=2).map(collections.deque),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)


@sweep
@given(st.lists(near, min_size=10, max_size=30))
def test_different_values(sample):
    """Digests are equal if and only if the values are, types included."""
    forms: dict[str, Any] = {}
    digests: dict[Any, str] = {}
    for value in [*sample, *([value] for value in sample)]:
        formed, found = form(value), digest(value)
        assert forms.setdefault(found, formed) == formed
        assert digests.setdefault(formed, found) == found


@sweep
@given(hashables, hashables)
def test_different_atoms(one, other):
    """Two atoms share a digest if and only if they are equal and of one type."""
    same = type(one) is type(other) and one == other
    assert (digest(one) == digest(other)) == same


# -- what has none ---------------------------------------------------------------------------------


def generator():
    yield 1


async def coroutine():
    pass


def culprits():
    """Yield a name, a value without a digest, and how to get rid of it."""
    yield "lock", threading.Lock(), None
    yield "rlock", threading.RLock(), None
    yield "generator", generator(), None
    opened = open(os.devnull)  # noqa: SIM115
    yield "file", opened, opened.close
    written = open(os.devnull, "wb")  # noqa: SIM115
    yield "binary file", written, written.close
    yield "lambda", lambda: 1, None
    yield "local function", closure(1), None
    yield "local class", local_class(), None
    connected = socket.socket()
    yield "socket", connected, connected.close
    awaited = coroutine()
    yield "coroutine", awaited, awaited.close
    yield "thread local", threading.local(), None
    yield "frame", sys._getframe(), None
    yield "method of a list", [].append, None
    yield "mapping proxy", types.MappingProxyType({}), None
    yield "dict view", {}.keys(), None
    with (importlib.resources.files("tzdata") / "zoneinfo" / "UTC").open("rb") as file:
        yield "zone without a name", zoneinfo.ZoneInfo.from_file(file), None


CULPRITS = [name for name, _, close in culprits() if close is None or close() is None]


@pytest.fixture
def culprit(request):
    for name, value, close in culprits():
        if name == request.param:
            yield value
        if close is not None:
            close()


@pytest.mark.parametrize("culprit", CULPRITS, indirect=True)
def test_refused(culprit):
    """A value without an identity is refused, with its type and the path to it."""
    with pytest.raises(DigestError) as caught:
        digest({"a": [1, culprit]})
    assert caught.value.path == "['a'][1]"
    assert "(at value['a'][1])" in str(caught.value)
    assert caught.value.type_name
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, TypeError)
    with pytest.raises(DigestError) as caught:
        digest(culprit)
    assert caught.value.path == ""
    assert "(at" not in str(caught.value)


LOCK = threading.Lock()
PATHS = {
    "[2]": [1, 2, LOCK],
    "[0][1]": ((1, LOCK),),
    "{...}": {LOCK},
    "['k']": collections.OrderedDict(k=LOCK),
    "['d']": collections.defaultdict(list, d=LOCK),
    "[1]": collections.deque([1, LOCK]),
    "[1][0]": Pair(1, [LOCK]),
    ".x": Point(LOCK),
    ".x[0]": Slotted([LOCK]),
    ".x['a']": Attrs({"a": LOCK}),
    ".x[3]": Model(x=[1, 2, 3, LOCK]),
    "._secret": None,  # made below: a model's private attribute
    ".a.b": Plain(a=Plain(b=LOCK)),
    ".y": WithSlots(1),
    "['a'].x[0].a": {"a": Point([Plain(a=LOCK)])},
    "[0]": np.array([LOCK]),
    "['nested'][1]": {"nested": np.array([1, LOCK])},
    "[0]['a'][1]": [pd.DataFrame({"a": [1, LOCK]})],
    "['a'][0].stop": {"a": [slice(LOCK)]},
}
PATHS["._secret"] = Model()
PATHS["._secret"]._secret = LOCK
PATHS[".y"].y = LOCK


@pytest.mark.parametrize("path", PATHS)
def test_paths(path):
    """The path to a value without an identity goes through every kind of container."""
    with pytest.raises(DigestError) as caught:
        digest(PATHS[path])
    assert caught.value.path == path
    assert caught.value.type_name == "_thread.lock"
    assert f"value{path}" in str(caught.value)


class Mute:
    def __repr__(self):
        raise RuntimeError("no text")


class Stubborn:
    def __reduce_ex__(self, protocol):
        raise ZeroDivisionError("I am a client")


def released():
    view = memoryview(b"gone")
    view.release()
    return view


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({Mute(): LOCK}, r"_thread\.lock"),
        ({"x" * 10_000: LOCK}, r"^.{,299}$"),
        ([released()], "memoryview"),
        ([Stubborn()], r"I am a client.*value\[0\]"),
        (types.MethodType(closure(1), Plain(a=1)), "inner"),
        (type("Answer", (), {"a": 0}), "Answer"),
        (functools.lru_cache(closure(1)), "inner"),
        (np.ma.array([1, 2], mask=[0, 1]), r"numpy\.asarray"),
        (np.rec.array([(1, 2)]), r"numpy\.asarray"),
    ],
    ids=(
        "key without a repr", "long key", "released memory", "no reduction", "method of a closure",
        "class without fields", "unnamed cache", "masked array", "array of records",
    ),
)  # fmt: skip
def test_what_a_refusal_says(value, told):
    """A refusal says what it is about, in a short text, and what helps, whatever the value does."""
    with pytest.raises(DigestError) as caught:
        digest(value)
    assert re.search(told, str(caught.value), re.DOTALL)


def test_objects_that_all_know_each_other(monkeypatch):
    """A crowd of objects that all refer to each other is refused, instead of taking for ever."""
    monkeypatch.setattr("stepwise._values.digest._TOO_OFTEN", 2_000)
    with pytest.raises(DigestError, match="refer to each other in too many ways"):
        digest(crowd(20))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: (inner,),
        lambda inner: {"k": inner},
        Point,
        lambda inner: Plain(inner=inner),
        lambda inner: Pair(1, inner),
        lambda inner: functools.partial(int, inner),
        slice,
    ],
    ids=["list", "tuple", "dict", "dataclass", "object", "namedtuple", "partial", "slice"],
)
def test_deep_nesting(wrap):
    """A value that is nested too deeply is refused; it does not crash the interpreter."""
    value = deep(20_000, wrap)
    try:
        with pytest.raises(DigestError) as caught:
            digest(value)
        assert len(str(caught.value)) < 2_000
    finally:
        while value is not None:  # taken apart from outside: freeing it would recurse as well
            value = _inner(value)


def _inner(value):
    if isinstance(value, slice):
        return value.stop
    if isinstance(value, functools.partial):
        return value.args[0]
    if isinstance(value, (list, tuple)):
        return value[-1]
    if isinstance(value, dict):
        return value["k"]
    return value.x if isinstance(value, Point) else value.inner


# -- the rest --------------------------------------------------------------------------------------


def test_decorated_functions(monkeypatch):
    """A step and the plain function under it are one: the name leads to both."""
    wrapper = functools.wraps(module_function)(lambda: 1)
    before = digest(module_function)
    monkeypatch.setattr(digested, "module_function", wrapper)
    assert digest(wrapper) == digest(module_function) == before


def test_mapped_files(tmp_path):
    """An array in a file that is mapped into memory is an array like any other."""
    array = np.arange(6.0)
    array.tofile(tmp_path / "a")
    assert digest(np.memmap(tmp_path / "a", dtype=float, mode="r")) == digest(array)


def test_one_character_of_a_long_text():
    """One character makes a difference in a text of a million."""
    text = "x" * 999_999
    assert digest(text + "x") == digest("x" * 1_000_000)
    assert len({digest(text + "x"), digest(text + "y"), digest("y" + text)}) == 3


def test_combine():
    """Combined strings count with their boundaries and their order."""
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ("ab", "c", ""), ("", "ab", "c"), ()]
    assert len({combine(*part) for part in parts}) == len(parts)
    assert combine("ab", "c") == combine(b"ab", b"c")
    long = "x" * 100
    assert combine(long, "y") != combine(long + "y")


def test_names_of_classes():
    """A class is named with its module, a builtin by its name alone; a digest is 32 digits."""
    assert class_name(int) == "int"
    assert class_name(Point) == "digested.Point"
    assert class_name(collections.Counter) == "collections.Counter"
    assert re.fullmatch(r"[0-9a-f]{32}", digest("anything"))


@pytest.mark.parametrize(
    ("value", "most"),
    [
        ([str(n) * 1_000_000 for n in range(10)] * 3, 8_000_000),
        (np.zeros(2_000_000), 4_000_000),
    ],
    ids=["texts", "array"],
)
def test_large_values_in_little_memory(value, most):
    """The digest of a list of large texts, or of a large array, needs no copy of the whole."""
    tracemalloc.start()
    try:
        digest(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most
