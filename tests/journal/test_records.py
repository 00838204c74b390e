"""Records to headers and back, sealed; previews of values."""

from __future__ import annotations

import collections
import json
import math
import sys
import tracemalloc
import uuid

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pickled import Account, Model, Plain, Point, double

from examples import sweep
from stepwise._checkpoints.checkpoints import State
from stepwise._journal.journal import Position
from stepwise._journal.records import KINDS, Call, Outcome, Sums, from_header, to_header
from stepwise._journal.seal import DamagedError, ephemeral_seal, to_json
from stepwise._values.preview import preview, preview_arguments

# -- headers ---------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=()), max_size=6)
whole = st.integers(0, 2**53)
seconds = st.floats(0, 1e12)
numbers = st.lists(whole, max_size=4).map(tuple)
amounts = st.dictionaries(texts, seconds, max_size=2)
waits = st.tuples(whole, texts, texts, st.none() | seconds, seconds, texts).map(list)
BY_TYPE = {
    "str": texts,
    "str | None": st.none() | texts,
    "int": whole,
    "int | None": st.none() | whole,
    "float": seconds,
    "float | None": st.none() | seconds,
    "bool": st.booleans(),
    "tuple[int, ...]": numbers,
    "tuple[str, ...]": st.lists(texts, max_size=2).map(tuple),
    "tuple[Any, ...]": st.lists(waits, max_size=2).map(tuple),
    "list[str]": st.lists(texts, max_size=3),
    "dict[str, int]": st.dictionaries(texts, whole, max_size=3),
    "dict[str, str]": st.dictionaries(texts, texts, max_size=3),
    "Mapping[str, str]": st.dictionaries(texts, texts, max_size=3),
    "Mapping[str, str] | None": st.none() | st.dictionaries(texts, texts, max_size=3),
    "Mapping[str, float]": amounts,
    "Mapping[str, Any]": st.dictionaries(texts, texts | whole | seconds, max_size=3),
    "Mapping[str, Sequence[int]]": st.dictionaries(texts, numbers, max_size=2),
    "Sequence[list[str]]": st.lists(st.tuples(texts, texts).map(list), max_size=2),
    "Sequence[list[Any]]": st.lists(st.tuples(texts, texts, whole).map(list), max_size=2),
    "Sequence[Any]": st.lists(
        whole | texts | st.dictionaries(texts, whole, max_size=2), max_size=3
    ),
    "list[Any]": st.nothing(),  # given
    "list[list[Any]]": st.lists(st.tuples(whole, whole, st.booleans()).map(list), max_size=2),
    "WaitKind": st.sampled_from(["time", "signal", "approval"]),
    "StepStatus": st.sampled_from(["completed", "failed", "cancelled"]),
    "Literal['completed', 'failed', 'cancelled']": st.sampled_from(["completed", "failed"]),
}


def built(cls, **given):
    """Instances of a class of facts, each fact of the type that it has there."""
    fields = {
        name: BY_TYPE[str(kind)] for name, kind in cls.__annotations__.items() if name not in given
    }
    return st.builds(cls, **fields, **given)


BY_TYPE["Call"] = built(Call)
records = st.one_of(
    *map(built, KINDS.values()),
    st.builds(
        lambda call, preview, at, spent: Outcome(call, preview=preview, at=at, spent=spent),
        *(BY_TYPE["Call"], texts, seconds, amounts),  # as most outcomes are
    ),
)
seal = ephemeral_seal()


def through_header(record, *extra):
    data, _ = seal.close("identity", [*to_header(record), *extra])
    return from_header(seal.open("identity", data).header)


@sweep
@given(records)
def test_headers(record):
    """Every record comes back from its sealed header as it was, whatever its texts hold."""
    assert through_header(record) == record
    assert repr(through_header(record)) == repr(record)


positions = st.builds(
    Position,
    whole,
    st.none() | st.binary(min_size=16, max_size=16),
    whole,
    built(Sums, usd=seconds | st.just(math.nan), tokens=whole | seconds),
).map(Position.kept)
states = built(State, journal=positions | st.just([3, "ab", 1]), at=seconds | st.just(math.inf))


@sweep
@given(states)
def test_headers_of_checkpoints(state):
    """The state of a checkpoint comes back from its header, which leaves out what is as usual."""
    header = json.loads(to_json(state.header()))
    assert to_json(State(*header)) == to_json(state)
    assert len(header) >= len(State._fields) - len(State._field_defaults)


PLACES = {
    "call": "number name module digest ordinal scope unwinding place site arguments effect key"
    " child at branch serial parts instead",
    "started": "workflow digest arguments code file parent python at forked_from command cwd",
    "resumed": "epoch how step code at void command cwd trace unknown",
    "intent": "call form ticket",
    "waiting": "call kind name until seconds ticket digest schema details form at",
    "answered": "number ticket approved by note message sent_at at",
    "refused": "message number name why at",
    "suspended": "waits seen at rest",
    "interrupted": "why at decided rest",
    "cancelling": "by reason message at",
    "outcome": "call status attempts clean inner preview traceback changed form at state"
    " awaited usage message spent tries cached",
    "handled": "numbers at",
    "settled": "number landed preview form at spent",
    "stopped": "call steps records at",
    "ruled": "call steps same at",
    "forgotten": "numbers at",
    "compensating": "number key at",
    "compensated": "number preview at",
    "quarantined": "numbers effects at",
    "ended": "status recorded changed retry spent resumed_from executed skipped preview form at"
    " rest again",
}


@pytest.mark.parametrize("kind", PLACES)
def test_facts_keep_their_places(kind):
    """What is stored says by its place what it is: no fact moves or goes, a new one comes last."""
    fields, places = {**KINDS, "call": Call}[kind]._fields, PLACES[kind].split()
    assert [*fields[: len(places)]] == places


@sweep
@given(records, st.binary(), st.integers(0), st.integers(1, 255))
def test_any_flipped_byte(record, payload, position, flip):
    """A sealed record of which any byte is changed, cut off or added is refused."""
    data, _ = seal.close("run/7", to_header(record), payload)
    position %= len(data)
    changed = bytearray(data)
    changed[position] ^= flip
    for damaged in (bytes(changed), data[:position], data + bytes([flip])):
        with pytest.raises(DamagedError):
            seal.open("run/7", damaged)
    with pytest.raises(DamagedError):
        seal.open("run/8", data)
    opened = seal.open("run/7", data)
    assert (from_header(opened.header), opened.payload) == (record, payload)


# -- previews --------------------------------------------------------------------------------------


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(texts, inner, max_size=4),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


@sweep
@given(values, st.integers(3, 250))
def test_previews(value, limit):
    """A preview is text, no longer than its limit, that can be stored and read back."""
    text = preview(value, limit)
    assert isinstance(text, str)
    assert len(text) <= limit
    assert seal.open("i", seal.close("i", {"t": text})[0]).header["t"] == text


class EvilRepr:
    def __repr__(self):
        raise RuntimeError("no text")


class NonTextRepr:
    def __repr__(self):
        return 5


class EvilGetattr:
    def __getattr__(self, name):
        raise RuntimeError(name)


class EvilShape:
    shape = (EvilRepr(), 1)


class EvilLen(list):
    def __len__(self):
        raise RuntimeError("no length")


class MuteReprError(Exception):
    def __repr__(self):
        raise RuntimeError("no repr")


class Endless:
    def __repr__(self):
        return repr([self])


function = type("function", (), {})  # its name is that of another type


def _nested():
    value: list = []
    for _ in range(5_000):
        value = [value]
    return value


EVIL = {
    "repr": EvilRepr,
    "repr not text": NonTextRepr,
    "getattr": EvilGetattr,
    "shape": EvilShape,
    "len": lambda: EvilLen([1]),
    "name of another type": function,
    "class": lambda: EvilRepr,
    "huge number": lambda: 10**100_000,
    "nested": _nested,
    "endless": Endless,
    "ring": lambda: (ring := Plain(), setattr(ring, "ring", ring), ring)[2],
    "surrogates": lambda: "\ud800" * 500,
    "bytes": lambda: b"\xff\xfe" * 500,
    "nan": lambda: math.nan,
    "error": lambda: MuteReprError("x"),
    "frame": sys._getframe,
}


@pytest.mark.parametrize("case", EVIL)
@pytest.mark.parametrize(
    "wrap",
    [lambda value: value, lambda value: [value], lambda value: {"k": value}, Point],
    ids=["alone", "list", "dict", "dataclass"],
)
def test_previews_of_evil_values(case, wrap):
    """A preview never raises, whatever the value's own methods do."""
    value = EVIL[case]()
    text = preview(wrap(value))
    assert isinstance(text, str)
    assert 0 < len(text) <= 200
    assert 0 < len(preview_arguments({"a": wrap(value), "b": 1})) <= 400
    if case == "nested":
        while value:
            value = value.pop()


def test_readable_previews():
    """Small data is shown as it is written; what is large or has an address is shortened."""
    assert preview({"a": [1, "x", None]}) == "{'a': [1, 'x', None]}"
    assert preview(Point(1, [2])) == "Point(x=1, y=[2])"
    assert preview(Model(x=1)) == "Model(x=1)"
    assert preview(Plain(a=1)) == "<Plain>"
    assert preview(double) == "<function double>"
    assert preview(np.zeros((3, 4))) == "<ndarray 3x4>"
    assert preview(b"x" * 1_000) == "<1000 bytes>"
    assert preview(list(range(100))) == "[0, 1, 2, 3, 4, 5, ...]"
    assert preview(uuid.UUID(int=0)) == "UUID('00000000-0000-0000-0000-000000000000')"
    assert " at 0x" not in preview([Plain(), double, Point(Plain())])


def test_previews_hide_what_the_class_hides():
    """A field that a class leaves out of its ``repr``, a password, is not in the preview either."""

    class Login(pydantic.BaseModel):
        user: str
        password: str = pydantic.Field("secret", repr=False)

    assert preview(Account("ann")) == "Account(user='ann')"
    assert preview([Login(user="ann")]) == "[Login(user='ann')]"


def test_previews_of_arguments():
    """Arguments are shown by name; each has its share of the room."""
    assert preview_arguments({"to": "ann", "n": 3}) == "to='ann', n=3"
    assert preview_arguments({}) == ""
    shown = preview_arguments({"text": "x" * 1_000, "to": "ann"})
    assert shown.endswith("to='ann'")
    assert len(preview_arguments({f"a{n}": "x" * 1_000 for n in range(50)})) == 400


class Counted:
    """Counts how often its instances are shown or compared."""

    asked = 0

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        Counted.asked += 1
        return f"c{self.number}"

    def __lt__(self, other):
        Counted.asked += 1
        return self.number < other.number


@pytest.mark.parametrize(
    "kind",
    [
        list,
        tuple,
        set,
        frozenset,
        dict.fromkeys,
        collections.deque,
        collections.OrderedDict.fromkeys,
        lambda items: collections.defaultdict(int, dict.fromkeys(items, 1)),
        collections.Counter,
    ],
    ids=[*("list", "tuple", "set", "frozenset", "dict", "deque", "ordered", "default", "counter")],
)
def test_previews_of_large_containers(kind):
    """The preview of a large container asks none of its items how it looks or which is first."""
    value = kind([Counted(number) for number in range(5_000)])
    Counted.asked = 0
    assert len(preview(value)) <= 200
    assert Counted.asked == 0


@pytest.mark.parametrize("value", ["x" * 10_000_000, b"x" * 10_000_000], ids=["text", "bytes"])
def test_previews_of_ten_megabytes(value):
    """The preview of a very long text makes no copy of it."""
    tracemalloc.start()
    try:
        text = preview([value, {"k": value}])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) <= 200
    assert peak < 100_000
