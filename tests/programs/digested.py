"""Values whose digests are compared, of the standard library alone: any Python can import this.

``VALUES[name]`` holds values that are equal, though they look different or are made differently;
values of two names are different, though some look alike.  A new kind of value is one more entry.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import http
import io
import ipaddress
import itertools
import math
import operator
import os
import pathlib
import random
import re
import signal
import string
import struct
import sys
import threading
import time
import types
import typing
import uuid
import zoneinfo
from typing import Any, NamedTuple

from stepwise._values.digest import encode


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0
    note: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Pair(NamedTuple):
    left: Any
    right: Any


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def ask(self):
        return "asked"


class Child(Plain):
    def ask(self):
        return super().ask()

    def parents(self):
        return super().ask


class WithSlots:
    __slots__ = ("x", "y")

    def __init__(self, x):
        self.x = x


class Versioned:
    """An object with a pair for its state, the second half of which is a dict, as with slots."""

    def __init__(self, version, content):
        self.state = (version, {"content": content})

    def __getstate__(self):
        return self.state

    def __setstate__(self, state):
        self.state = state


class Odd:
    """An object that a callable object makes."""

    def __init__(self, base):
        self.base = base

    def __reduce__(self):
        return functools.partial(int, base=self.base), ("1",)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Word(str, enum.Enum):
    YES = "yes"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    i3 = 4  # its name reads like the encoding of READ | WRITE


class IntPermission(enum.IntFlag):
    READ = 1
    WRITE = 2


class Text(str):
    __slots__ = ()


class Names(set):
    pass


class FrozenNames(frozenset):
    __slots__ = ()


class Tally(collections.Counter):
    pass


class Order(collections.OrderedDict):
    pass


def module_function():
    return 1


@functools.lru_cache
def cached_function():
    return 1


def closure(value):
    def inner():
        return value

    return inner


def local_class():
    class Inner:
        pass

    return Inner


def read(buffer):
    """Look at the attributes of a buffer, which makes it have some."""
    assert vars(buffer) == {}
    return buffer


def named(buffer):
    buffer.name = "a"
    return buffer


def ring(size, content):
    """Return lists each of which holds the next, the last one the first."""
    first: list[Any] = [content]
    last = first
    for _ in range(size - 1):
        last.append([content])
        last = last[-1]
    last.append(first)
    return first


def linked(*, leads_out):
    """Return a list in a list, whose inner one holds itself or the outer one."""
    inner: list[Any] = ["inner"]
    outer = ["outer", inner]
    inner.append(outer if leads_out else inner)
    return outer


def friends():
    node = Plain(name="n")
    node.friend = [node]
    return node


def in_itself():
    table: dict[str, Any] = {}
    table["self"] = table
    return table


def diamond(content):
    """Return an object from which 2**80 ways lead down to the content."""
    below = Plain(content=content)
    for _ in range(80):
        below = Plain(left=below, right=below)
    return below


def crowd(size):
    """Return objects that all refer to each other."""
    people = [Plain(number=number) for number in range(size)]
    for each in people:
        each.others = [other for other in people if other is not each]
    return people


def deep(depth, wrap):
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


def cached_of(module):
    """Return a cached function named ``search`` of some module."""
    namespace = {"__name__": module}
    exec("def search(): pass", namespace)
    held = types.ModuleType(module)
    held.search = functools.lru_cache(namespace["search"])
    sys.modules[module] = held
    return held.search


def with_nan(real, imaginary):
    """Return a complex number of a NaN and a number, given by their bytes or as NaN."""
    parts = [
        each if isinstance(each, float) else struct.unpack(">d", each)[0]
        for each in (real, imaginary)
    ]
    return complex(*parts)


def classes_made_on_the_fly(name, make):
    """Return entries for a class that no module holds, which its fields tell apart."""
    return {f"{name} of {field}": (make(field), make(field)) for field in "ab"}


NAIVE = dt.datetime.fromisoformat("2024-01-01T00:00:00")
UTC, HOUR = dt.timezone.utc, dt.timedelta(hours=1)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
INTERNED = sys.intern("stepwise-digest")
MADE = "".join(list(INTERNED))
SHARED = [1, {"a": 2}]
SIX = memoryview(bytes(range(6)))
call = operator.methodcaller

VALUES: dict[str, tuple[Any, ...]] = {
    "zero": (0.0, -0.0),
    "complex zero": (complex(0, 0), complex(-0.0, -0.0)),
    "nan": (math.nan, -float("nan")),
    "nan beside bytes that look like it": (with_nan(math.nan, b"abc,fnan"),),
    "bytes that look like it beside nan": (with_nan(b"nan,fabc", math.nan),),
    "decimal": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "large decimal": (decimal.Decimal("1E+3"), decimal.Decimal(1000)),
    "decimal zero": (decimal.Decimal("0.0"), decimal.Decimal("-0.000")),
    "fraction": (fractions.Fraction(2, 4), fractions.Fraction(1, 2)),
    "instant": (
        NAIVE.replace(hour=12, tzinfo=UTC),
        NAIVE.replace(hour=14, tzinfo=dt.timezone(HOUR * 2)),
    ),
    "instant in a named zone": (
        NAIVE.replace(month=7, hour=12, tzinfo=UTC),
        NAIVE.replace(month=7, hour=14, tzinfo=BERLIN),
    ),
    "time of day": (dt.time(12, tzinfo=UTC), dt.time(14, tzinfo=dt.timezone(HOUR * 2))),
    "offset, named or not": (dt.timezone(HOUR), dt.timezone(HOUR, "CET")),
    "zone": (BERLIN, zoneinfo.ZoneInfo.no_cache("Europe/Berlin")),
    "counter": (collections.Counter(a=1, b=0), collections.Counter(a=1)),
    "dict with a default": (
        collections.defaultdict(list, a=1),
        collections.defaultdict(lambda: None, a=1),
    ),
    "deque": (collections.deque([1, 2]), collections.deque([1, 2], maxlen=5)),
    "empty range": (range(0), range(5, 5, 3)),
    "range": (range(0, 10, 3), range(0, 12, 3)),
    "range of one": (range(5, 6), range(5, 7, 2)),
    "uuid": (uuid.UUID(int=7), uuid.UUID(str(uuid.UUID(int=7)), is_safe=uuid.SafeUUID.safe)),
    "path": (pathlib.Path("a/b"), pathlib.PurePosixPath("a//b/")),
    "windows path": (pathlib.PureWindowsPath("C:/A"), pathlib.PureWindowsPath("c:\\a")),
    "field that is not compared": (Point(1, 2, note="a"), Point(1, 2, note=threading.Lock())),
    "pattern": (re.compile("a+", re.IGNORECASE), re.compile("a+", re.IGNORECASE | re.UNICODE)),
    "flags": (Permission.READ | Permission.WRITE, Permission(3)),
    "partial": (functools.partial(int, base=2), functools.partial(int, base=2)),
    "bound method": (Plain(a=1).ask, Plain(a=1).ask),
    "bound method of the parent": (Child(a=1).parents(), Child(a=1).parents()),
    "text of a subclass": (Text("a"), Text("a")),
    "slice": (slice(1, 2), slice(1, 2, None)),
    "exception": (ValueError("a", 1), ValueError("a", 1)),
    "generic class": (list[int], list[int]),
    "interned text": ({INTERNED: [INTERNED] * 2}, {MADE: ["".join(list(MADE)), MADE]}),
    "shared object": ([SHARED, SHARED], [SHARED, [1, {"a": 2}]]),
    "buffer": (io.StringIO("text"), read(io.StringIO("text"))),
    "named buffer": (named(io.StringIO("text")), named(read(io.StringIO("text")))),
    "buffer of bytes": (io.BytesIO(b"text"), read(io.BytesIO(b"text"))),
    "named buffer of bytes": (named(io.BytesIO(b"text")),),
    "set of a subclass": (Names([0, 8, 16]), Names([16, 8, 0])),
    "counter of a subclass": (Tally(a=1, b=0), Tally(a=1)),
    "ordered dict of a subclass": (Order(a=1, b=2),),
    "ordered dict of a subclass, turned": (Order(b=2, a=1),),
    "state that is a pair": (Versioned("v1", [1]), Versioned("v1", [1])),
    "state that is a pair of another version": (Versioned("v2", [1]),),
    "state that is a pair of other content": (Versioned("v1", [2]),),
    "made by a callable object": (Odd(2), Odd(2)),
    "made by another callable object": (Odd(3),),
    "methodcaller": (call("get", 1, default=2), call("get", 1, default=2)),
    **{f"methodcaller {n}": (each,) for n, each in enumerate([call("a"), call("a", x=1)])},
    "another methodcaller": (call("b", x=1),),
    "methodcaller of another value": (call("a", x=2),),
    "itemgetter": (operator.itemgetter(1),),
    "another itemgetter": (operator.itemgetter(2),),
    "attrgetter": (operator.attrgetter("a.b"),),
    "cached function": (cached_function, cached_function),
    "cached function of one module": (cached_of("first"),),
    "cached function of another module": (cached_of("second"),),
    "views of one memory, flat": (SIX,),
    "views of one memory, wide": (SIX.cast("B", (2, 3)),),
    "views of one memory, high": (SIX.cast("B", (3, 2)),),
    "enum of one name": (enum.Enum("Colour", ["RED"], module="paint").RED,),
    "enum of one name in another module": (enum.Enum("Colour", ["RED"], module="light").RED,),
    **{
        f"ring of {size} with {content}": (ring(size, content), ring(size, content))
        for size in (1, 2, 3)
        for content in "ab"
    },
    "cycle of objects": (friends(), friends()),
    "dict in itself": (in_itself(), in_itself()),
    "cycle to itself": (linked(leads_out=False), linked(leads_out=False)),
    "cycle to the outside": (linked(leads_out=True), linked(leads_out=True)),
    "diamond": (diamond(1), diamond(1)),
    "another diamond": (diamond(2),),
    "crowd of 5": (crowd(5), crowd(5)),
    "crowd of 4": (crowd(4),),
    "nested in 100 levels": (deep(100, lambda inner: [inner]), deep(100, lambda inner: [inner])),
    "nested in 99 levels": (deep(99, lambda inner: [inner]),),
    "dataclasses nested in 100 levels": (deep(100, Point), deep(100, Point)),
    # Sets and dicts of texts: each process has an order of its own.
    "set": (set(WORDS), {*WORDS[4:], *WORDS}),
    "frozenset": (frozenset(WORDS[1:]),),
    "set as a key": ({frozenset(WORDS): set(WORDS)},),
    "dict from a set": ({word: len(word) for word in set(WORDS)},),
    "set of sets": ({frozenset({word, "x"}) for word in WORDS},),
    "words of a subclass": (Names(WORDS),),
    "frozen words of a subclass": (FrozenNames(WORDS),),
    "words in a dataclass": (Point([1], set(WORDS)),),
    "words in a tuple": (Pair(1, set(WORDS)),),
    "words in an object": (Plain(b=set(WORDS), a=1), Plain(a=1, b=set(WORDS))),
    "words in slots": (WithSlots({"y", "x"}),),
    "words in an exception": (ValueError("a", {"b", "c"}),),
    # Types, as they are given for structured output.
    "union": (int | str, str | int),
    "optional": (typing.Optional[int], int | None),  # noqa: UP045
    "literal": (typing.Literal["a", "b"], typing.Literal["b", "a"]),
    "nested generic class": (dict[str, list[int]], dict[str, list[int]]),
    **classes_made_on_the_fly(
        "dataclass", lambda field: dataclasses.make_dataclass("Answer", [field])
    ),
    **classes_made_on_the_fly("enum", lambda field: enum.Enum("Answer", [field])),
    **classes_made_on_the_fly("named tuple", lambda field: NamedTuple("Answer", [(field, int)])),
    **classes_made_on_the_fly("typed dict", lambda field: typing.TypedDict("Reply", {field: int})),
}


def others():
    """Yield values that differ from each other, and from those above."""
    inner = encode(["a", "b"])
    decimals = map(decimal.Decimal, ("-1", "10", "0.1", "1.1", "NaN", "Infinity"))
    fractional = itertools.starmap(fractions.Fraction, [(-1, 2), (2, 1), (1, 18), (18, 1)])
    yield from [None, ..., NotImplemented, True, False, 0, 1, -1, 16, 1.0, 2**64, 1j, "", "1", "i1"]
    yield from [b"", b"1", b"i1", bytearray(b"1"), memoryview(b"1"), inner, inner.decode("latin1")]
    yield from [math.inf, -math.inf, 5e-324, sys.float_info.max, 0.1 + 0.2, 0.3, 0.1, 1 + 2j]
    yield from [*decimals, *fractional, "nan", "N", "T", "!", ".", "~", "#" + "a" * 32]
    yield from ["\ud800", "\ud800\udc00", "\U00010000", "é", "e\u0301", "a" * 64, "a" * 65, "a\0"]
    yield from ["x" * 100_000, b"\0\xff", [], (), {}, set(), collections.deque()]
    yield from [collections.OrderedDict(), collections.ChainMap({"a": 1})]
    yield collections.UserList([1])
    yield from [[1], (1,), {1}, {1: 1}, collections.Counter({1: 1}), [[1]], [1, 1], {(1, 2)}]
    yield from [["ab", "c"], ["a", "bc"], ["abc"], [["a"], "bc"], ["a", ["bc"]], [["a", "bc"]]]
    yield from [{"a": "b"}, {"b": "a"}, {"a": {"b": 1}}, {"a": "b", "b": 1}, [("a", "b")]]
    yield from [collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)]
    yield from [collections.UserDict(a=1), collections.Counter("hello"), (1, (2, (3,)))]
    yield from [{"a": 1, "b": 2}, {1, 2}, {frozenset({1}), 2}, [{1}, {2}], [{1, 2}, set()]]
    yield from [NAIVE, NAIVE.date(), NAIVE.time(), NAIVE.replace(microsecond=1), HOUR, HOUR * 24]
    yield from [NAIVE.replace(tzinfo=UTC), dt.time(tzinfo=UTC), UTC, NAIVE.replace(tzinfo=BERLIN)]
    yield from [NAIVE.replace(year=1, tzinfo=dt.timezone(HOUR)), zoneinfo.ZoneInfo("UTC")]
    yield from [uuid.UUID(int=1), range(1), range(2), range(1, 2), range(1, 9, 2), slice(1)]
    yield from [slice(1, 1), slice(1, None), re.compile("a"), re.compile(b"a")]
    yield re.compile("a|b", re.IGNORECASE)
    yield from [re.IGNORECASE | re.MULTILINE, re.compile("a", re.MULTILINE)]
    yield from [pathlib.Path("a"), pathlib.PureWindowsPath("a")]
    yield from [pathlib.Path("A"), Color.RED, Color.BLUE, Level.LOW, Word.YES]
    yield from [Permission.READ, Permission.i3, Permission(0), IntPermission.READ, IntPermission(3)]
    yield from [http.HTTPStatus.NOT_FOUND, signal.SIGINT, int, str, len, math.sqrt, str.upper]
    yield from [module_function, Color, Point, Plain, re, os, Plain().ask, Child(a=1).ask]
    yield Plain.ask
    yield from [Point(1), Point(1, 1), Slotted(1), Pair(1, 0), Plain(x=1), Plain(), Plain(y=1)]
    yield from [WithSlots(1), types.SimpleNamespace(x=1), types.SimpleNamespace(a=1, b=2)]
    yield Text("1")
    yield from [Child(x=1), functools.partial(int, "1"), functools.partial(int, base=1)]
    yield from [ValueError(), ValueError("a"), TypeError("a"), OSError(2, "gone", "f"), list[str]]
    yield from [ipaddress.ip_address("1.2.3.4"), ipaddress.ip_network("10.0.0.0/8")]
    yield from [array.array("d", [1.5]), time.gmtime(0), string.Template("$x"), random.Random(1)]
    yield from [decimal.Context(prec=5), io.BytesIO(b"a"), io.StringIO("a"), iter([1, 2])]
    yield from [int | bytes, tuple[int, ...], typing.List[int], typing.Set[int]]  # noqa: UP006
    yield from [typing.Literal[1], typing.Literal[True], typing.Literal["1"], typing.Any]
    yield from [typing.Annotated[int, "a"], typing.Annotated[int, "b"], collections.deque[int]]
    callables = collections.abc.Callable
    yield from [callables[[int], str], callables[[str], str]]


VALUES.update({f"another {n}": (each,) for n, each in enumerate(others())})
