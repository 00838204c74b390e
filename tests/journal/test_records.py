"""Records to headers and back, sealed; previews of values."""

from __future__ import annotations

import collections
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
from stepwise._checkpoints.checkpoints import State, header_text
from stepwise._journal import seal as _seal
from stepwise._journal.chain import Position
from stepwise._journal.header_text import record_text
from stepwise._journal.records import (
    Answered,
    Call,
    Cancelling,
    Compensated,
    Compensating,
    Ended,
    Forgotten,
    Handled,
    Intent,
    Interrupted,
    Outcome,
    Quarantined,
    Refused,
    Resumed,
    Ruled,
    Settled,
    Started,
    Stopped,
    Suspended,
    Waiting,
    from_header,
    to_header,
)
from stepwise._journal.seal import DamagedError, ephemeral_seal, to_json
from stepwise._journal.spending import Sums
from stepwise._values.preview import preview, preview_arguments

# -- headers ---------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=()), max_size=6)
whole = st.integers(0, 2**53)
seconds = st.floats(0, 1e12)
numbers = st.lists(whole, max_size=4).map(tuple)
pythons = st.none() | st.just("3.11")
waits = st.tuples(whole, texts, texts, st.none() | seconds, seconds, texts).map(list)
changes = st.dictionaries(texts, texts, max_size=3)
amounts = st.dictionaries(texts, seconds, max_size=2)
calls = st.builds(
    Call,
    number=whole,
    name=texts,
    module=texts,
    digest=texts,
    ordinal=whole,
    scope=texts,
    unwinding=st.none() | whole,
    place=texts,
    site=texts,
    arguments=texts,
    effect=st.booleans(),
    key=texts,
    parts=changes,
    child=texts,
    at=seconds,
    branch=texts,
    serial=whole,
    instead=whole,
)


records = st.one_of(
    st.builds(
        Started,
        *[texts] * 6,
        pythons,
        seconds,
        parts=st.none() | changes,
        tags=changes,
        trace=changes,
    ),
    st.builds(Resumed, whole, texts, whole, texts, seconds, trace=changes, unknown=st.booleans()),
    st.builds(Intent, calls, pythons, texts),
    st.builds(
        Waiting,
        calls,
        st.sampled_from(["time", "signal", "approval"]),
        texts,
        st.none() | seconds,
        st.none() | seconds,
        *[texts] * 4,
        pythons,
        seconds,
    ),
    st.builds(Answered, whole, texts, st.booleans(), texts, texts, whole, seconds, seconds),
    st.builds(Refused, whole, whole, texts, texts, seconds),
    st.builds(Suspended, st.lists(waits, max_size=2).map(tuple), whole, seconds, amounts),
    st.builds(Cancelling, texts, texts, whole, seconds),
    st.builds(
        Outcome,
        calls,
        st.sampled_from(["completed", "failed", "cancelled"]),
        attempts=whole,
        clean=st.booleans(),
        inner=numbers,
        preview=texts,
        traceback=texts,
        changed=changes,
        form=pythons,
        at=seconds,
        state=st.lists(texts, max_size=2).map(tuple),
        awaited=texts,
        usage=st.dictionaries(texts, texts | whole | seconds, max_size=3),
        message=whole,
        spent=amounts,
    ),
    st.builds(
        lambda call, preview, at, spent: Outcome(call, preview=preview, at=at, spent=spent),
        *(calls, texts, seconds, amounts),  # as most outcomes are
    ),
    st.builds(Handled, numbers, seconds),
    st.builds(Settled, whole, st.booleans(), texts, pythons, seconds, amounts),
    st.builds(Stopped, calls, numbers, numbers, seconds),
    st.builds(Ruled, calls, numbers, st.booleans(), seconds),
    st.builds(Forgotten, numbers, seconds),
    st.builds(Interrupted, texts, seconds, st.booleans(), amounts),
    st.builds(
        Ended,
        st.sampled_from(["completed", "failed", "cancelled"]),
        recorded=st.booleans(),
        changed=changes,
        retry=numbers,
        spent=numbers,
        resumed_from=st.none() | whole,
        executed=whole,
        skipped=whole,
        preview=texts,
        form=pythons,
        at=seconds,
        rest=amounts,
        again=texts,
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


@sweep
@given(records)
def test_header_texts(record):
    """The text of a record's header is what ``json`` makes of it, whatever its facts are."""
    text = record_text(record)
    assert text == to_json(to_header(record))
    assert seal.close("i", text)[0][100:] == seal.close("i", to_header(record))[0][100:]


@pytest.mark.parametrize("moment", [math.inf, -math.inf, math.nan, 0, 1e300])
def test_header_texts_of_strange_moments(moment):
    """Moments that are no usual numbers are written as ``json`` writes them."""
    call = Call(1, "think", "m", "d", 1, at=moment)
    for record in (Outcome(call, at=moment), Outcome(call), Intent(call)):
        assert record_text(record) == to_json(to_header(record))


states = st.builds(
    State,
    *(texts, whole, texts, texts, st.lists(texts, max_size=3), whole, whole),
    st.dictionaries(texts, whole, max_size=3),
    st.lists(st.tuples(texts, texts, whole).map(list), max_size=2),
    st.builds(
        Position,
        whole,
        st.none() | st.binary(min_size=16, max_size=16),
        whole,
        st.builds(
            Sums,
            seconds | st.just(math.nan),
            whole | seconds,
            whole,
            seconds,
            st.booleans(),
            st.booleans(),
        ),
    ).map(Position.kept)
    | st.just([3, "ab", 1]),
    st.lists(st.tuples(whole, whole, st.booleans()).map(list), max_size=2),
    changes,
    at=seconds | st.just(math.inf),
    needs=st.dictionaries(texts, numbers | texts, max_size=2),
    changed=st.lists(st.tuples(texts, pythons, whole).map(list), max_size=2),
    state=st.lists(st.tuples(texts, texts).map(list), max_size=2),
    serial=whole,
    before=st.none() | texts,
    seconds=seconds,
    usage=amounts,
    taken=st.dictionaries(texts, numbers, max_size=2),
    told=st.booleans(),
)


@sweep
@given(states)
def test_header_texts_of_checkpoints(state):
    """The text of a checkpoint's header is what ``json`` makes of it, whatever its facts are."""
    assert header_text(state) == to_json(state._asdict())


PLACES = {
    Call: "number name module digest ordinal scope unwinding place site arguments effect key child"
    " at branch serial parts instead",
    Started: "workflow digest arguments code file parent python at forked_from command cwd",
    Resumed: "epoch how step code at void command cwd trace unknown",
    Intent: "call form ticket",
    Waiting: "call kind name until seconds ticket digest schema details form at",
    Answered: "number ticket approved by note message sent_at at",
    Refused: "message number name why at",
    Suspended: "waits seen at rest",
    Interrupted: "why at decided rest",
    Cancelling: "by reason message at",
    Outcome: "call status attempts clean inner preview traceback changed form at state"
    " awaited usage message spent",
    Handled: "numbers at",
    Settled: "number landed preview form at spent",
    Stopped: "call steps records at",
    Ruled: "call steps same at",
    Forgotten: "numbers at",
    Compensating: "number key at",
    Compensated: "number preview at",
    Quarantined: "numbers effects at",
    Ended: "status recorded changed retry spent resumed_from executed skipped preview form at rest"
    " again",
}


@pytest.mark.parametrize("cls", PLACES, ids=lambda cls: cls.__name__)
def test_facts_keep_their_places(cls):
    """What is stored says by its place what it is: no fact moves or goes, a new one comes last."""
    places = PLACES[cls].split()
    assert list(cls._fields[: len(places)]) == places


def test_headers_of_a_later_version():
    """Facts that this version does not know are ignored, in the record and in its call."""
    call = Call(1, "think", "m", "d", 1)
    assert through_header(Outcome(call, "failed"), "good") == Outcome(call, "failed")
    assert from_header(["intent", [*call, ["good"]], None, "", "good"]) == Intent(call)


def test_headers_of_an_earlier_version():
    """Facts that an earlier version did not know are at their default."""
    call = Call(1, "think", "m", "d", 1)
    assert from_header(["outcome", [1, "think", "m", "d", 1], "failed"]) == Outcome(call, "failed")
    assert from_header(["handled", [1]]) == Handled((1,))


CALL = Call(1, "think", "m", "d", 1, place="body[1]", at=5.5)
NAMED_CALL = {
    "number": 1,
    "name": "think",
    "module": "m",
    "digest": "d",
    "ordinal": 1,
    "place": "body[1]",
    "at": 5.5,
    "mood": "good",
}
NAMED = [
    ({"kind": "forgotten", "numbers": [3, 4]}, Forgotten((3, 4))),
    ({"kind": "intent", "call": NAMED_CALL}, Intent(CALL)),
    (
        {"kind": "outcome", "call": NAMED_CALL, "status": "failed", "inner": [2], "mood": "good"},
        Outcome(CALL, "failed", inner=(2,)),
    ),
    (
        {"kind": "started", "workflow": "w", "digest": "d", "arguments": "a", "command": ["x"]},
        Started("w", "d", "a", command=("x",)),
    ),
]


@pytest.mark.parametrize(("header", "record"), NAMED, ids=lambda item: type(item).__name__)
def test_headers_of_format_1(monkeypatch, header, record):
    """A record of the first format, whose facts had names, is read."""
    monkeypatch.setattr(_seal, "FORMAT", 1)
    data, _ = seal.close("identity", header)
    monkeypatch.undo()
    assert from_header(seal.open("identity", data).header) == record


def test_all_kinds_have_headers():
    """Each kind of record says in its header what it is."""
    call = Call(1, "think", "m", "d", 1)
    kinds = [
        Started("w", "d", "a"),
        Resumed(1, "replay", 0),
        Intent(call),
        Outcome(call, "completed"),
        Handled((1,)),
        Settled(1, landed=True),
        Forgotten((1,)),
        Ended("failed"),
    ]
    assert [to_header(kind)[0] for kind in kinds] == [
        *("started", "resumed", "intent", "outcome", "handled", "settled", "forgotten", "ended")
    ]
    assert [through_header(kind) for kind in kinds] == kinds


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


def test_previews_let_ctrl_c_through():
    """Ctrl-C inside somebody's ``repr`` is not taken for a failure of it."""

    class Slow:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        preview(Slow())


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
    """The preview of a large container looks at a few of its items, not at all of them."""
    value = kind([Counted(number) for number in range(5_000)])
    Counted.asked = 0
    assert len(preview(value)) <= 200
    assert Counted.asked < 100


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
