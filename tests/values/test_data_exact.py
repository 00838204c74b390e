"""What is recorded as data comes back as it was, to its types and parts, or is refused."""

import builtins
import collections
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import signal
import sys
import threading
import typing
import zoneinfo
from typing import Any

import pandas as pd
import pydantic
import pytest
from harness import python
from hypothesis import given
from hypothesis import strategies as st
from resuming import crashed, resumed

import stepwise
from stepwise import step, tool, workflow
from stepwise._values.codec import traceback_text
from stepwise._values.comparison import alike
from stepwise._values.data import decode_data, encode_data
from stepwise._values.exception_data import (
    NotDataError,
    decode_raised,
    dump_tagged,
    encode_raised,
    load_tagged,
)
from stepwise.testing import fresh_store

needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups in 3.10")
Group = getattr(builtins, "ExceptionGroup", None)
CALLS: list = []


class Pair(typing.NamedTuple):
    first: Any
    second: Any


class Level(enum.IntEnum):
    HIGH = 1


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    x: float
    y: Any = None


class Base(pydantic.BaseModel):
    name: str


class Derived(Base):
    pass


@pytest.fixture(autouse=True)
def store():
    CALLS.clear()
    with fresh_store() as opened:
        yield opened


# -- values ----------------------------------------------------------------------------------------

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.decimals(),
    st.datetimes(timezones=st.none() | st.just(dt.timezone.utc) | st.timezones()),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.complex_numbers(),
    st.sampled_from([Level.HIGH, pathlib.Path("a"), Text("t"), int, Point(1), Base(name="n")]),
)


def is_hashable(value):
    try:
        hash(value)
    except TypeError:  # of a signaling NaN, too
        return False
    return True


hashable = atoms.filter(is_hashable)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3) | st.just("$"), inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.lists(inner, max_size=3).map(lambda items: collections.deque(items, 5)),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(st.text(max_size=3), st.integers(), max_size=3).map(collections.Counter),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(
            lambda items: collections.defaultdict(list, items)
        ),
        st.builds(Pair, inner, inner),
        st.builds(Point, st.floats() | st.integers(), inner),
        st.builds(bytearray, st.binary(max_size=3)),
    ),
    max_leaves=8,
)


def told(value):
    """A value as text: its types and parts, sets in some order."""
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, map(told, value)))
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return type(value).__name__, factory, [(told(k), told(v)) for k, v in value.items()]
    if isinstance(value, collections.deque):
        return "deque", value.maxlen, list(map(told, value))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, list(map(told, value))
    if isinstance(value, Point):
        return "Point", told(value.x), told(value.y)
    if isinstance(value, (dt.datetime, dt.time)):
        zone = value.tzinfo
        named = zone if isinstance(zone, zoneinfo.ZoneInfo) else value.utcoffset()
        return type(value).__name__, str(value), value.fold, str(named)
    return type(value).__name__, repr(value)


KINDS = [
    Any,
    list,
    dict,
    dict[str, Any],
    dict[int, Any],
    tuple[Any, ...],
    list[float],
    list[Point],
    Point,
    float,
    set[Any],
    int | str | None,
    dt.datetime,
    decimal.Decimal,
    bytes,
    collections.defaultdict[str, list[Any]],
    collections.OrderedDict[str, Any],
    collections.Counter[str],
    collections.deque[Any],
    Pair,
    Level,
    Base,
    Base | Derived,
]


@given(values, st.sampled_from(KINDS))
def test_a_value_comes_back_or_is_refused(value, kind):
    """Whatever a step returns, annotated as whatever: it comes back the same, or is refused."""
    try:
        data = encode_data(value, kind, "the value")
    except stepwise.NotRecordableError:
        return
    assert told(decode_data(data, kind)) == told(value)


STANDARD = [
    bytearray(b"a"),
    1 + 2j,
    collections.deque([1], 3),
    collections.OrderedDict(b=1, a=2),
    collections.Counter("aab"),
    collections.defaultdict(list, a=[1]),
]


@given(values)
def test_a_tagged_value_comes_back_or_is_refused(value):
    """A value without an annotation comes back the same through its tags, or is refused.

    Containers of the standard library come back.
    """
    for each in STANDARD:
        again = load_tagged(json.loads(json.dumps(dump_tagged(each))))
        assert (type(again), alike(again, each)) == (type(each), True)
    try:
        written = dump_tagged(value)
    except NotDataError:
        return
    assert told(load_tagged(json.loads(json.dumps(written)))) == told(value)


@given(values)
def test_a_value_is_like_itself(value):
    """The comparison takes a value for its own copy, whatever it is made of."""
    assert alike(value, copy.deepcopy(value))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([0, 0.5, 1], list[float]),
        ({"line": (Point(0, 0), Point(1, 2.0))}, dict[str, tuple[Point, ...]]),
        (Pair(1, 2), Pair),
        (collections.Counter(a=1), collections.Counter[str]),
        (collections.defaultdict(list, a=[1]), collections.defaultdict[str, list[int]]),
        (dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), dt.datetime),
        ({1: "a"}, dict[int, str]),
        (Level.HIGH, Level),
        (-0.0, float),
        (float("nan"), float),
        (1, float),
    ],
    ids=repr,
)
def test_what_comes_back(value, kind):
    """Annotated values come back with their types: an int where a float is annotated, too."""
    assert told(decode_data(encode_data(value, kind, "it"), kind)) == told(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (collections.defaultdict(list, a=[1]), dict),
        (collections.defaultdict(list, a=[1]), Any),
        ([collections.OrderedDict(a=1)], Any),
        ({"n": collections.Counter(a=1)}, Any),
        ([Level.HIGH], Any),
        ([Level.HIGH], list[int]),
        ([True], list[int]),
        ([Text("t")], Any),
        ([Derived(name="n")], list[Base]),
        (Point(1, (1, 2)), Point),
        ([float("nan")], list[float]),
        (collections.deque([1], 3), collections.deque[int]),
        (dt.datetime(2020, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")), dt.datetime),
        (dt.datetime(2020, 1, 1, fold=1), dt.datetime),  # noqa: DTZ001
        ([[1]] * 2, Any),
        (b"\xff", typing.Annotated[bytes, pydantic.Field()]),  # no JSON text
        (pd.Timestamp("2020-01-01"), dt.datetime),
    ],
    ids=repr,
)
def test_what_is_refused(value, kind):
    """A value of which any part would come back as another is refused."""
    with pytest.raises(stepwise.NotRecordableError, match=r"comes? back|valid"):
        encode_data(value, kind, "it")


# -- exceptions ------------------------------------------------------------------------------------


class Declined(Exception):
    """Takes other arguments than it hands on."""

    def __init__(self, code, *, retry=False):
        super().__init__(f"declined with {code}")
        self.code, self.retry = code, retry


class Sealed(OSError):
    """Refuses to be changed, and counts how often it is made."""

    __slots__ = ("part",)
    made = 0

    def __init__(self, part):
        type(self).made += 1
        super().__init__(5, "sealed")
        object.__setattr__(self, "part", part)

    def __setattr__(self, name, value):
        raise AttributeError(name)


class Wrapper(ValueError):
    def __init__(self, original):
        super().__init__("wrapped", original)
        self.original = original


def through(error):
    return decode_raised(encode_raised(error, traceback_text), whole=True)


def raised(call):
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError


def facts_of(error):
    return (
        type(error),
        told(error.args),
        str(error),
        {
            n: facts_of(v) if isinstance(v, BaseException) else told(v)
            for n, v in vars(error).items()
        },
    )


def test_no_constructor_is_called():
    """The class of an exception has no say when it is made again."""
    error, before = Sealed((1, b"\x00")), Sealed.made
    again = through(error)
    assert type(again) is Sealed
    assert (again.part, again.errno, again.args) == ((1, b"\x00"), 5, (5, "sealed"))
    assert Sealed.made == before


def test_links_notes_and_attributes():
    """Causes, contexts, notes and exceptions that an exception holds come back with it."""

    def fail():
        try:
            raise Declined(1)
        except Declined as declined:
            declined.__notes__ = ["at the till"]
            raise Wrapper(declined) from KeyError("k")

    again = through(raised(fail))
    assert type(again) is Wrapper
    assert again.args[1] is again.original
    assert again.original is again.__context__
    assert again.original.__notes__ == ["at the till"]
    assert again.original.code == 1
    assert type(again.__cause__) is KeyError
    assert again.__suppress_context__


@needs_groups
def test_a_group_with_a_member_that_cannot_come_back():
    """A member that cannot come back takes its group along."""
    with pytest.raises(stepwise.UnreadableValueError, match="object"):
        through(Group("some", [ValueError(object())]))


def local():
    class Hidden(Exception):
        pass

    return Hidden("x")


def holding_itself():
    error = ValueError("x")
    error.me = error
    return error


class Lying(Exception):
    def __str__(self):
        return f"made {id(self)}"


@pytest.mark.parametrize(
    "error",
    [
        local(),
        ValueError(object()),
        ValueError(Text("t")),
        ValueError([Point(1)]),
        holding_itself(),
        Lying(),
        raised(lambda: Base(name=1)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_come_back(error):
    """An exception that would come back as another is a summary, which answers no call."""
    data = encode_raised(error, traceback_text)
    with pytest.raises(stepwise.UnreadableValueError, match="could not be recorded as data"):
        decode_raised(data, whole=True)
    summary = decode_raised(data, whole=False)
    assert isinstance(summary, stepwise.StepFailedError)
    assert summary.type_name == type(error).__qualname__


@given(
    st.sampled_from([ValueError, KeyError, OSError, Declined, RuntimeError]),
    st.lists(values, max_size=3),
    st.dictionaries(st.sampled_from(["code", "body", "x"]), values, max_size=2),
)
def test_any_exception_comes_back_or_is_refused(cls, args, attributes):
    """Whatever an exception holds, it comes back the same, or as nothing."""
    error = BaseException.__new__(cls) if cls is not OSError else OSError()
    error.args = tuple(args)
    vars(error).update(attributes)
    try:
        again = through(error)
    except stepwise.UnreadableValueError:
        return
    assert facts_of(again) == facts_of(error)


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("builtins", "int"), ("no_such_module", "Error"), ("stepwise", "step")],
)
def test_only_exception_classes_of_imported_modules(module, name):
    """A record names an exception class of an imported module, or nothing is made of it."""
    facts = json.loads(encode_raised(ValueError("x"), traceback_text))
    facts[0].update(module=module, type=name)
    loaded = set(sys.modules)
    with pytest.raises(stepwise.UnreadableValueError, match="Import it"):
        decode_raised(json.dumps(facts).encode(), whole=True)
    assert set(sys.modules) == loaded


# -- in runs ---------------------------------------------------------------------------------------


@step
def last() -> None:
    CALLS.append("last")


@step
def refuse():
    CALLS.append("refuse")
    raise local()


@tool(side_effect=True)
def pay():
    CALLS.append("pay")
    raise local()


@workflow(codec="json")
def handling(call):
    try:
        call()
    except Exception as error:
        found = type(error).__name__
    last()
    return found


def test_a_failure_that_cannot_come_back_is_made_again():
    """A plain step whose exception cannot come back runs again, and is caught as at first."""
    stepwise.configure(trust="data")  # no checkpoint is behind the failure
    assert resumed(handling, refuse, at=last) == "Hidden"
    assert CALLS == ["refuse", "refuse", "last"]


def test_a_side_effect_whose_failure_cannot_come_back_is_in_doubt():
    """A side effect whose exception cannot come back stops and asks, and does not happen again."""
    stepwise.configure(trust="data")
    crashed(handling, pay, at=last)
    with pytest.raises(stepwise.StepInDoubtError, match=r"pay raised, but the .*Hidden"):
        handling(pay)
    assert CALLS == ["pay"]
    (run,) = stepwise.runs()
    assert isinstance(run.steps[0].error, stepwise.StepFailedError)


class Box(pydantic.BaseModel):
    items: list[int] = []


@step
def fill(names: list, boxes: dict[str, Box], failing: bool = False) -> str:
    CALLS.append("fill")
    names.append(("a", 1))
    boxes["b"] = Box(items=[2])
    if failing:
        raise Declined(2)
    return "filled"


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.filterwarnings("ignore::stepwise.ArgumentMutatedWarning")
def test_what_a_step_did_to_its_arguments(failing):
    """What a step put into lists and dicts is put back when it is answered, also if it raised."""

    @workflow(codec="json")
    def flow():
        names, boxes = [], {}
        try:
            done = fill(names, boxes, failing)
        except Declined as error:
            done = error.code
        last()
        return [done, repr(names), repr(boxes)]

    expected = [2 if failing else "filled", "[('a', 1)]", "{'b': Box(items=[2])}"]
    assert resumed(flow, at=last) == expected
    assert CALLS == ["fill", "last"]
    (run,) = stepwise.runs()
    assert run.steps[0].result == (None if failing else "filled")
    assert (type(run.steps[0].error) is Declined) == failing


def test_arguments_that_hold_no_data():
    """A change that cannot be recorded as data is told at the first run, with the way out."""

    @step
    def spoil(items: list) -> None:
        items.append(object())

    @workflow(codec="json")
    def flow():
        spoil([])

    with pytest.warns(stepwise.ArgumentMutatedWarning, match=r"'spoil' changed items.* Return"):
        flow()


@pytest.mark.parametrize("options", [{"codec": "json"}, {"codec": "pickle"}], ids=str)
@pytest.mark.filterwarnings("ignore:no checkpoint")
def test_what_a_child_did_to_its_instance(options):
    """A method that is a child workflow leaves its instance as it did, when it is answered."""

    class Agent:
        def __init__(self, failing):
            self.failing = failing
            self.count, self.history, self.seen = 0, [], set()
            self.lock = threading.Lock()  # nothing of the kind is recorded

        @workflow
        def work(self):
            self.count += 1
            self.history.append("worked")
            self.seen.add((1, 2))
            self.extra = {"new": [1]}
            last()
            if self.failing:
                raise Declined(4)

    @workflow(**options)
    def flow():
        found = []
        for failing in (False, True):
            agent = Agent(failing)
            history = agent.history
            try:
                agent.work()
            except Declined as error:
                found.append(str(error.code))
            found.append([agent.count, history is agent.history, history, agent.extra])
            found.append(repr(agent.seen))
        [end() for _ in range(1)]
        return found

    @step
    def end() -> None:
        CALLS.append("end")

    each = [[1, True, ["worked"], {"new": [1]}], "{(1, 2)}"]
    assert resumed(flow, at=end) == [*each, "4", *each]
    assert CALLS == ["last", "last", "end"]


PROGRAM = """
import asyncio, os, sys
from stepwise import step, tool, workflow

class CardDeclined(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code

@step
def charge(amount):
    print("charge", flush=True)
    raise CardDeclined(amount)

@step(timeout=0.05)
async def slow():
    await asyncio.Event().wait()

@tool(side_effect=True)
def alarm(why):
    print("alarm", why, flush=True)

@step
def note():
    print("note", flush=True)

@step
def dunning():
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
    return "sent"

@workflow(codec="json")
async def agent():
    found = []
    try:
        charge(51)
    except CardDeclined as error:
        found.append(error.code)
        note()
        dunning()
    except Exception as error:
        alarm(type(error).__name__)
    try:
        await slow()
    except TimeoutError:
        found.append("slow")
    except Exception as error:
        alarm(type(error).__name__)
    return found

print(asyncio.run(agent()))
"""


@pytest.mark.parametrize("trust", ["all", "data"])
def test_a_handler_is_the_same_after_a_kill(tmp_path, trust, monkeypatch):
    """After kill -9, ``except CardDeclined`` and ``except TimeoutError`` catch what they caught."""
    script = tmp_path / "agent.py"
    script.write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setenv("STEPWISE_TRUST", trust)
    ended = [python(script, cwd=tmp_path) for _ in range(2)]
    assert ended[0].returncode == -signal.SIGKILL
    assert ended[1].stdout == "[51, 'slow']\n", ended[1].stderr
    assert ended[0].stdout == "charge\nnote\n"
