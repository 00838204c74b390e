"""The canonical digest: what is equal, what differs, and what has none."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import io
import itertools
import math
import operator
import os
import pathlib
import random
import re
import struct
import sys
import threading
import tracemalloc
import types
import typing
import uuid
import zoneinfo
from typing import Any, NamedTuple

import attrs
import pydantic
import pytest
from digested import Attrs, Model, Pair, Plain, Point, Slotted, WithSlots, closure
from hypothesis import example, given
from hypothesis import strategies as st

from examples import sweep
from stepwise._values.digest import class_name, combine, digest, encode
from stepwise.errors import DigestError

# -- what is digested ------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    i3 = 4  # its name reads like the encoding of READ | WRITE


@attrs.define
class Caseless:
    name: str = attrs.field(eq=str.lower)


@pydantic.dataclasses.dataclass(slots=True)
class PydanticSlotted:
    x: int = 0


@pydantic.dataclasses.dataclass
class PydanticPoint:
    x: int = 0
    note: str = dataclasses.field(default="", compare=False)


class Child(Plain):
    def ask(self):
        return super().ask()

    def parents(self):
        return super().ask


class Versioned:
    """Its state is a pair whose second half is a dict, as that of slots is."""

    def __init__(self, version, content):
        self.state = (version, {"content": content})

    def __getstate__(self):
        return self.state

    def __setstate__(self, state):
        self.state = state


class Text(str):
    __slots__ = ()


class Names(set):
    pass


class Tally(collections.Counter):
    pass


class Order(collections.OrderedDict):
    pass


def module_function():
    return 1


@functools.lru_cache
def cached_function():
    return 1


# -- equal values ----------------------------------------------------------------------------------

zones = st.sampled_from([dt.timezone.utc, dt.timezone(dt.timedelta(hours=5, minutes=30))])
NAIVE = dt.datetime.fromisoformat("2024-01-01T00:00:00")
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
    """Makes an equal value of another making: other objects, orders, zones, signs of zero."""

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


def test_buffers_that_were_looked_at():
    """That somebody has asked a buffer for its attributes makes no difference to its digest."""
    for make in (lambda: io.StringIO("text"), lambda: io.BytesIO(b"text")):
        looked, other = make(), make()
        assert vars(looked) == {}
        assert digest(looked) == digest(other)
        other.name = "a"
        assert digest(looked) != digest(other)


def test_interning():
    """Whether a string is interned makes no difference, alone, as a key, or twice in one list."""
    interned = sys.intern("stepwise-digest")
    made = "".join(list(interned))
    assert made is not interned
    assert digest({interned: [interned, interned]}) == digest({made: ["".join(list(made)), made]})


def test_sharing():
    """An object met twice has the digest of two equal objects."""
    shared = [1, {"a": 2}]
    assert digest([shared, shared]) == digest([shared, copy.deepcopy(shared)])


EQUAL = {
    "zeros": (0.0, -0.0),
    "complex zeros": (complex(0, 0), complex(-0.0, -0.0)),
    "nan": (math.nan, -float("nan")),
    "decimals": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "large decimals": (decimal.Decimal("1E+3"), decimal.Decimal(1000)),
    "decimal zeros": (decimal.Decimal("0.0"), decimal.Decimal("-0.000")),
    "fractions": (fractions.Fraction(2, 4), fractions.Fraction(1, 2)),
    "instants": (
        dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone.utc),
        dt.datetime(2024, 1, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    ),
    "instants of a named zone": (
        dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone.utc),
        dt.datetime(2024, 7, 1, 14, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ),
    "times of day": (
        dt.time(12, tzinfo=dt.timezone.utc),
        dt.time(14, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    ),
    "named offsets": (
        dt.timezone(dt.timedelta(hours=1)),
        dt.timezone(dt.timedelta(hours=1), "CET"),
    ),
    "zones": (zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo.no_cache("Europe/Berlin")),
    "counters": (collections.Counter(a=1, b=0), collections.Counter(a=1)),
    "default factories": (
        collections.defaultdict(list, a=1),
        collections.defaultdict(lambda: None, a=1),
    ),
    "deques": (collections.deque([1, 2]), collections.deque([1, 2], maxlen=5)),
    "empty ranges": (range(0), range(5, 5, 3)),
    "ranges": (range(0, 10, 3), range(0, 12, 3)),
    "ranges of one": (range(5, 6), range(5, 7, 2)),
    "uuids": (uuid.UUID(int=7), uuid.UUID(str(uuid.UUID(int=7)), is_safe=uuid.SafeUUID.safe)),
    "paths": (pathlib.Path("a/b"), pathlib.PurePosixPath("a//b/")),
    "windows paths": (pathlib.PureWindowsPath("C:/A"), pathlib.PureWindowsPath("c:\\a")),
    "not compared": (Point(1, 2, note="a"), Point(1, 2, note=threading.Lock())),
    "not compared in attrs": (Attrs(1, note="a"), Attrs(1, note=threading.Lock())),
    "patterns": (re.compile("a+", re.IGNORECASE), re.compile("a+", re.IGNORECASE | re.UNICODE)),
    "flags": (Permission.READ | Permission.WRITE, Permission(3)),
    "partials": (functools.partial(int, base=2), functools.partial(int, base=2)),
    "bound methods": (Plain(a=1).ask, Plain(a=1).ask),
    "text of a subclass": (Text("a"), Text("a")),
    "10 MB": ("x" * 10_000_000, "x" * 9_999_999 + "x"),
    "slices": (slice(1, 2), slice(1, 2, None)),
    "exceptions": (ValueError("a", 1), ValueError("a", 1)),
    "models": (Model(x=1, more=[2]), Model(more=[2], x=1)),
    "generic classes": (list[int], list[int]),
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_examples(case):
    """Values that are equal though they look different have one digest."""
    one, other = EQUAL[case]
    assert digest(one) == digest(other)
    assert digest([one, {"k": one}]) == digest([other, {"k": other}])


SUBCLASSES = {
    "a set's order": (Names([0, 8, 16]), Names([16, 8, 0])),
    "a Counter's zeros": (Tally(a=1, b=0), Tally(a=1)),
}


@pytest.mark.parametrize("case", SUBCLASSES)
def test_equal_values_of_a_subclass(case):
    """Equal values of a subclass of a builtin container have one digest."""
    one, other = SUBCLASSES[case]
    assert one == other
    assert digest(one) == digest(other)


def test_the_order_of_an_ordered_subclass():
    """Two of a subclass of OrderedDict that differ by their order differ by their digest."""
    assert Order(a=1, b=2) != Order(b=2, a=1)
    assert digest(Order(a=1, b=2)) != digest(Order(b=2, a=1))


def test_keyed_attrs():
    """A field that attrs compares by a key counts by that key."""
    assert Caseless("A") == Caseless("a")
    assert digest(Caseless("A")) == digest(Caseless("a"))


def test_cached_property_of_a_model():
    """That a pydantic model's cached property was looked at is not part of its identity."""
    fresh, used = Model(x=1), Model(x=1)
    assert used.slow
    assert fresh == used
    assert digest(fresh) == digest(used)


def test_pydantic_dataclasses():
    """A pydantic dataclass counts by the fields it compares, with slots or without."""
    assert digest(PydanticPoint(1, "a")) == digest(PydanticPoint(1, "b"))
    assert digest(PydanticPoint(1)) != digest(PydanticPoint(2))
    assert digest(PydanticSlotted(1)) == digest(PydanticSlotted(1)) != digest(PydanticSlotted(2))


def test_private_and_extra_fields_of_a_model():
    """What a pydantic model holds besides its fields is compared, so it counts."""
    one, other = Model(x=1), Model(x=1)
    other._secret = "s"
    assert len({digest(one), digest(other), digest(Model(x=1, more=1)), digest(Model(x=1))}) == 3


# -- different values ------------------------------------------------------------------------------


def form(value):
    """The independent oracle: equal if and only if the values are equal, types included."""
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
@given(st.lists(near, min_size=20, max_size=50))
def test_different_values(sample):
    """Digests are equal if and only if the values are, types included."""
    forms: dict[str, Any] = {}
    digests: dict[Any, str] = {}
    for value in [*sample, *([value] for value in sample)]:
        assert forms.setdefault(digest(value), form(value)) == form(value)
        assert digests.setdefault(form(value), digest(value)) == digest(value)


@sweep
@given(hashables, hashables)
def test_different_atoms(one, other):
    """Two atoms share a digest if and only if they are equal and of one type."""
    same = type(one) is type(other) and one == other
    assert (digest(one) == digest(other)) == same


def different():
    """Values of which no two are the same."""
    inner = encode(["a", "b"])
    utc, hour = dt.timezone.utc, dt.timedelta(hours=1)
    decimals = map(decimal.Decimal, ("1", "-1", "10", "0.1", "NaN", "Infinity"))
    fractional = itertools.starmap(fractions.Fraction, [(1, 2), (-1, 2), (2, 1), (1, 18), (18, 1)])
    yield from [None, ..., NotImplemented, True, False, 0, 1, -1, 16, 1.0, 2**64, 1j, "", "1", "i1"]
    yield from [b"", b"1", b"i1", bytearray(b"1"), memoryview(b"1"), inner, inner.decode("latin1")]
    yield from [math.inf, -math.inf, math.nan, 5e-324, sys.float_info.max, 0.1 + 0.2, 0.3]
    yield from [*decimals, *fractional, "nan", "N", "T", "!", ".", "~", "#" + "a" * 32]
    yield from ["\ud800", "\ud800\udc00", "\U00010000", "é", "e\u0301", "a" * 64, "a" * 65, "a\0"]
    yield from [[], (), {}, set(), collections.deque(), collections.OrderedDict()]
    yield from [[1], (1,), {1}, {1: 1}, collections.Counter({1: 1}), [[1]], [1, 1], {(1, 2)}]
    yield from [["ab", "c"], ["a", "bc"], ["abc"], [["a"], "bc"], ["a", ["bc"]], [["a", "bc"]]]
    yield from [{"a": "b"}, {"b": "a"}, {"a": {"b": 1}}, {"a": "b", "b": 1}, [("a", "b")]]
    yield from [collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)]
    yield from [{"a": 1, "b": 2}, {1, 2}, {frozenset({1}), 2}, [{1}, {2}], [{1, 2}, set()]]
    yield from [NAIVE, NAIVE.date(), NAIVE.time(), NAIVE.replace(microsecond=1), hour, hour * 24]
    yield from [NAIVE.replace(tzinfo=utc), dt.time(tzinfo=utc), utc, dt.timezone(hour)]
    yield from [NAIVE.replace(year=1, tzinfo=dt.timezone(hour)), zoneinfo.ZoneInfo("UTC")]
    yield from [zoneinfo.ZoneInfo("Europe/Berlin"), uuid.UUID(int=1), range(1), range(2)]
    yield from [range(1, 2), slice(1), slice(1, 1), re.compile("a"), re.compile(b"a")]
    yield from [re.compile("a", re.MULTILINE), pathlib.Path("a"), pathlib.PureWindowsPath("a")]
    yield from [pathlib.Path("A"), pathlib.Path("a/b"), Color.RED, Color.BLUE, Level.LOW]
    yield from [Permission.READ, Permission.READ | Permission.WRITE, int, str, len, module_function]
    yield from [Color, Point, re, os, Plain().ask, Plain(a=1).ask, Child(a=1).ask, Plain.ask]
    yield from [Point(1), Point(1, 1), Slotted(1), Pair(1, 0), Attrs(1), Model(x=1), Plain(x=1)]
    yield from [WithSlots(1), types.SimpleNamespace(x=1), Text("1"), Plain(), Plain(y=1)]
    yield from [Child(x=1), functools.partial(int, "1"), functools.partial(int, base=1)]
    yield from [ValueError(), ValueError("a"), TypeError("a"), list[int], list[str], dict[str, int]]


def test_no_two_share_a_digest():
    """Values that are easily taken for each other differ, alone and inside a list."""
    kept = list(different())
    for wrap in (lambda value: value, lambda value: [value], lambda value: {"k": (value, 0)}):
        met: dict[str, Any] = {}
        for value in kept:
            found = digest(wrap(value))
            assert found not in met, f"{value!r} has the digest of {met[found]!r}"
            met[found] = value


def test_one_character_of_ten_million():
    """One character makes a difference in a text of ten million."""
    text = "x" * 9_999_999
    assert len({digest(text + "x"), digest(text + "y"), digest("y" + text)}) == 3


def test_composite_flags():
    """A composite flag is not taken for a member whose name looks like its encoding."""
    assert digest(Permission.READ | Permission.WRITE) != digest(Permission.i3)


def test_enums_of_one_name():
    """Members of one name, of enums of one name in two modules, are not equal."""
    one, other = (enum.Enum("Colour", ["RED"], module=name) for name in ("paint", "light"))
    assert digest(one.RED) != digest(other.RED)


def test_views_of_one_memory():
    """Views of the same bytes in two shapes are not equal."""
    numbers = memoryview(bytes(range(6)))
    shapes = [numbers, numbers.cast("B", (2, 3)), numbers.cast("B", (3, 2))]
    assert len({digest(view) for view in shapes}) == 3


def test_complex_nan():
    """A complex number with a NaN part is not taken for another whose bytes look like it."""
    (imaginary,) = struct.unpack(">d", b"abc,fnan")
    (real,) = struct.unpack(">d", b"nan,fabc")
    assert digest(complex(math.nan, imaginary)) != digest(complex(real, math.nan))


def test_methods_that_only_share_a_name():
    """A bound method that its object does not have under that name is refused."""
    with pytest.raises(DigestError, match="inner"):
        digest(types.MethodType(closure(1), Plain(a=1)))


def test_method_of_a_parent_class():
    """The parent's bound method is not the child's that overrides it."""
    assert digest(Child(a=1).parents()) == digest(Child(a=1).parents())
    assert digest(Child(a=1).parents()) != digest(Child(a=1).ask)


@pytest.mark.parametrize(
    "make",
    [
        lambda field: pydantic.create_model("Answer", **{field: (int, 0)}),
        lambda field: dataclasses.make_dataclass("Answer", [field]),
        lambda field: enum.Enum("Answer", [field]),
        lambda field: NamedTuple("Answer", [(field, int)]),
        lambda field: typing.TypedDict("Answer", {field: int}),
        lambda field: attrs.make_class("Answer", [field]),
    ],
    ids=["pydantic", "dataclass", "enum", "namedtuple", "typeddict", "attrs"],
)
def test_classes_made_on_the_fly(make):
    """Classes that no module holds, output types say, are told apart by their fields."""
    assert digest(make("a")) == digest(make("a")) != digest(make("b"))


def test_other_classes_made_on_the_fly():
    """A class made on the fly that has no fields to tell it by is refused."""
    with pytest.raises(DigestError, match="Answer"):
        digest(type("Answer", (), {"a": 0}))


def test_descriptions_of_output_types():
    """The type, default, constraint and description of a field of an output type all count."""
    field = pydantic.Field
    made = [
        *((int, ...), (str, ...), (int, 0), (list[int], ...), (int | None, ...)),
        *((int, field(ge=1)), (int, field(ge=2)), (int, field(description="how many"))),
    ]
    digests = [{digest(pydantic.create_model("Answer", n=each)) for _ in range(2)} for each in made]
    assert all(len(each) == 1 for each in digests)
    assert len(set.union(*digests)) == len(made)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (int | str, str | int),
        (typing.Optional[int], int | None),  # noqa: UP045
        (typing.Literal["a", "b"], typing.Literal["b", "a"]),
        (dict[str, list[int]], dict[str, list[int]]),
    ],
)
def test_equal_annotations(one, other):
    """Annotations that mean the same have one digest."""
    assert one == other
    assert digest(one) == digest(other)


def test_different_annotations():
    """Annotations that differ by any part have different digests."""
    kinds = [
        *(int | str, int | bytes, list[int], list[str], typing.List[int], tuple[int, ...]),  # noqa: UP006
        *(typing.Literal[1], typing.Literal[True], typing.Literal["1"], typing.Any),
        *(typing.Annotated[int, "a"], typing.Annotated[int, "b"], collections.deque[int]),
        *(collections.abc.Callable[[int], str], collections.abc.Callable[[str], str]),
    ]
    assert len({digest(kind) for kind in kinds}) == len(kinds)


# -- objects ---------------------------------------------------------------------------------------


def test_cycles():
    """What contains itself has a digest, which depends on its shape and content only."""

    def ring(size, content):
        first: list[Any] = [content]
        last = first
        for _ in range(size - 1):
            last.append([content])
            last = last[-1]
        last.append(first)
        return first

    digests = [digest(ring(size, content)) for size in (1, 2, 3) for content in "ab"]
    assert digests == [digest(ring(size, content)) for size in (1, 2, 3) for content in "ab"]
    assert len(set(digests)) == 6
    table: dict[str, Any] = {}
    table["self"] = table
    node, twin = Plain(name="n"), Plain(name="n")
    node.friend, twin.friend = [node], [twin]
    assert digest(node) == digest(twin) != digest(table)


def test_where_a_cycle_leads():
    """It makes a difference whether an inner object leads back to itself or to the outer one."""

    def pair(leads_out):
        inner: list[Any] = ["inner"]
        outer = ["outer", inner]
        inner.append(outer if leads_out else inner)
        return outer

    assert digest(pair(True)) == digest(pair(True)) != digest(pair(False))


def test_shared_objects_are_taken_apart_once():
    """Objects that many others refer to cost no more than once, however many ways lead to them."""

    def diamond(content):
        below = Plain(content=content)
        for _ in range(80):  # 2**80 ways lead from the top to the bottom
            below = Plain(left=below, right=below)
        return below

    assert digest(diamond(1)) == digest(diamond(1)) != digest(diamond(2))


def test_objects_that_all_know_each_other():
    """A crowd of objects that all refer to each other is refused, instead of keeping one waiting.

    A few of them are no problem.
    """

    def crowd(size):
        people = [Plain(number=number) for number in range(size)]
        for each in people:
            each.others = [other for other in people if other is not each]
        return people

    assert digest(crowd(5)) == digest(crowd(5)) != digest(crowd(4))
    with pytest.raises(DigestError, match="refer to each other in too many ways"):
        digest(crowd(20))


def test_operators():
    """Callables of ``operator`` that hold arguments have digests like any other object."""
    call = operator.methodcaller
    assert digest(call("get", 1, default=2)) == digest(call("get", 1, default=2))
    assert (
        len({digest(c) for c in (call("a"), call("a", x=1), call("a", x=2), call("b", x=1))}) == 4
    )
    assert digest(operator.itemgetter(1)) != digest(operator.itemgetter(2))


def test_state_that_is_a_pair():
    """A state of the user's own making that is a pair of a version and a dict counts whole."""
    one, same = Versioned("v1", [1]), Versioned("v1", [1])
    assert digest(one) == digest(same)
    assert len({digest(v) for v in (one, Versioned("v2", [1]), Versioned("v1", [2]))}) == 3


def test_registered_reducers():
    """A type that pickles because ``copyreg`` knows how has a digest."""
    assert digest(int | str) == digest(int | str) != digest(int | bytes)


def test_cached_functions():
    """A function under ``lru_cache`` is its importable name; without one it is refused."""
    assert digest(cached_function) == digest(cached_function)
    with pytest.raises(DigestError, match="inner"):
        digest(functools.lru_cache(closure(1)))


def test_cached_functions_of_two_modules():
    """Two cached functions of the same name in different modules differ."""
    digests = set()
    for module in ("first", "second"):
        namespace = {"__name__": module}
        exec("def search(): pass", namespace)
        held = types.ModuleType(module)
        held.search = functools.lru_cache(namespace["search"])
        sys.modules[module] = held
        try:
            digests.add(digest(held.search))
        finally:
            del sys.modules[module]
    assert len(digests) == 2


def test_decorated_functions():
    """A step and the plain function under it are one: the name leads to both."""
    wrapper = functools.wraps(module_function)(lambda: 1)
    held = sys.modules[__name__]
    before = digest(module_function)
    original = held.module_function
    held.module_function = wrapper
    try:
        assert digest(wrapper) == digest(original) == before
    finally:
        held.module_function = original


def test_combine():
    """Combined strings count with their boundaries and their order."""
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ("ab", "c", ""), ("", "ab", "c"), ()]
    assert len({combine(*part) for part in parts}) == len(parts)
    assert combine("ab", "c") == combine(b"ab", b"c")
    long = "x" * 100
    assert combine(long, "y") != combine(long + "y")


def test_the_form_of_a_digest():
    """A digest is 32 hexadecimal digits."""
    assert re.fullmatch(r"[0-9a-f]{32}", digest("anything"))


def test_names_of_classes():
    """A class is named with its module, a builtin by its name alone."""
    assert class_name(int) == "int"
    assert class_name(Point).endswith("digested.Point")
    assert class_name(collections.Counter) == "collections.Counter"


def test_large_values_in_little_memory():
    """The digest of a list of large texts needs no copy of all of them at once."""
    texts = [str(n) * 1_000_000 for n in range(10)] * 3
    tracemalloc.start()
    try:
        digest(texts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
