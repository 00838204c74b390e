"""Results as data only: ``codec="json"``, and ``trust="data"``, which never unpickles."""

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from stepwise import Landed, step, tool, workflow
from stepwise._values.data import decode_data, encode_data
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

CALLS: list = []


class Person(pydantic.BaseModel):
    name: str
    born: dt.date


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Colour(enum.Enum):
    RED = "red"


@step
def person(name: str) -> Person:
    CALLS.append(name)
    return Person(name=name, born=dt.date(1815, 12, 10))


@step
def shapes() -> dict[str, tuple[Point, ...]]:
    CALLS.append("shapes")
    return {"line": (Point(0, 0), Point(1, 2))}


@step
async def colours() -> set[Colour]:
    CALLS.append("colours")
    return {Colour.RED}


@step
def plain():
    CALLS.append("plain")
    return {"n": [1, 2.5, None, True, "\u00e9"]}


@step
def last() -> None:
    CALLS.append("last")


@workflow(codec="json")
def agent(name: str) -> list[Person]:
    found = [person(name)]
    assert shapes() == {"line": (Point(0, 0), Point(1, 2))}
    assert plain() == {"n": [1, 2.5, None, True, "\u00e9"]}
    last()
    assert isinstance(found[0], Person)
    return found


@pytest.fixture(autouse=True)
def store():
    CALLS.clear()
    with fresh_store() as opened:
        yield opened


@pytest.fixture
def no_pickles(monkeypatch):
    """Loading any pickle fails."""

    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was loaded")

    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


def test_models_and_dataclasses_come_back():
    """What a step is annotated to return comes back as that, after a crash as before it."""
    with pytest.raises(SimulatedCrash), crash_at(last):
        agent("ada")
    expected = [Person(name="ada", born=dt.date(1815, 12, 10))]
    assert agent("ada") == expected
    assert CALLS == ["ada", "shapes", "plain", "last"]
    (run,) = stepwise.runs()
    assert run.steps[0].result == {"name": "ada", "born": "1815-12-10"}  # looking needs no class


def test_asynchronous_steps():
    """A coroutine function's annotation is that of what it is awaited for."""

    @workflow(codec="json")
    async def flow() -> Colour:
        (found,) = await colours()
        last()
        return found

    with pytest.raises(SimulatedCrash), crash_at(last):
        asyncio.run(flow())
    assert asyncio.run(flow()) is Colour.RED
    assert CALLS == ["colours", "last"]


def test_completed_runs():
    """The result of a completed run comes back as the workflow is annotated."""
    agent.options(run_id="one")("ada")
    stepwise._execution.process_memory.memory.__init__()
    assert agent.options(run_id="one")("ada")[0].name == "ada"
    assert len(CALLS) == 4


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ((1, 2), "comes back as list"),
        ({1: 2}, "comes back as dict"),
        (decimal.Decimal(1), "not JSON serializable"),
        (object(), "not JSON serializable"),
    ],
    ids=["tuple", "int keys", "decimal", "object"],
)
def test_what_is_no_data(value, told):
    """A value that JSON would change is refused when it is recorded, with the way out."""

    @step(name="give")
    def give():
        return value

    @workflow(codec="json")
    def flow():
        give()

    with pytest.raises(stepwise.NotRecordableError, match=rf"'give'.*{told}.*[Aa]nnotate"):
        flow()


def test_a_value_that_is_not_of_its_type():
    """A value that is not what the annotation says is refused, instead of being converted."""

    @step
    def give() -> list[int]:
        return ["1"]

    @workflow(codec="json")
    def flow():
        give()

    with pytest.raises(stepwise.NotRecordableError, match="give"):
        flow()


class Lost(Exception):
    pass


def test_exceptions_come_back():
    """An exception of a class that has a name is replayed as itself."""

    @step
    def fail(kind):
        CALLS.append(kind)
        raise {"value": ValueError("bad", 3), "lost": Lost("on the way")}[kind]

    @workflow(codec="json")
    def flow():
        found = []
        for kind in ("value", "lost"):
            try:
                fail(kind)
            except Exception as error:
                found.append(f"{type(error).__name__} {error}")
        last()
        return found

    with pytest.raises(SimulatedCrash), crash_at(last):
        flow.options(trust="data")()
    assert flow.options(trust="data")() == [
        "ValueError ('bad', 3)",
        "Lost on the way",
    ]
    assert CALLS == ["value", "lost", "last"]


def test_nothing_is_unpickled(no_pickles):
    """With trust="data" no pickle is loaded, whatever is resumed, looked at or settled."""

    @tool(side_effect=True)
    def send(text: str) -> str:
        CALLS.append(text)
        return text

    @workflow(trust="data")
    def flow(limit: int, names: list) -> list:
        names.append("seen")
        done = [person("ada").name, send("hello")]
        last()
        return done

    with pytest.raises(SimulatedCrash), crash_at(send, "after"):
        flow(2, ["a"])
    (run,) = stepwise.runs()
    run.resolve(2, Landed("settled"))
    with pytest.raises(SimulatedCrash), crash_at(last):
        flow(2, ["a"])
    assert flow(2, ["a"]) == ["ada", "settled"]
    assert run.result == ["ada", "settled"]
    assert [each.result for each in run.steps][1:] == ["settled", None]
    assert CALLS == ["ada", "hello", "last"]


def test_a_pickle_is_refused(no_pickles):
    """A run that was recorded with pickles is not believed under trust="data"."""

    @workflow
    def flow(n):
        person("ada")
        last()

    with pytest.raises(SimulatedCrash), crash_at(last):
        flow.options(run_id="one")(1)
    CALLS.clear()
    flow.options(run_id="one", trust="data")(1)
    assert CALLS == ["ada", "last"]


def test_a_pickle_of_a_side_effect_is_in_doubt(no_pickles):
    """A side effect whose result is a pickle is in doubt under trust="data", not repeated."""

    @tool(side_effect=True)
    def send():
        CALLS.append("send")

    @workflow
    def flow():
        send()
        last()

    with pytest.raises(SimulatedCrash), crash_at(last):
        flow.options(run_id="one")()
    with pytest.raises(stepwise.StepInDoubtError, match="trust='data' loads none"):
        flow.options(run_id="one", trust="data")()
    assert CALLS == ["send"]


def test_children_record_as_their_caller():
    """A child workflow records as its caller does, unless it says otherwise."""

    @workflow
    def child() -> Person:
        return person("ada")

    @workflow(trust="data")
    def flow():
        return child().name

    assert flow() == "ada"
    assert {run._facts().codec for run in stepwise.runs()} == {"data"}


def test_compensation_of_data():
    """Arguments for a compensation are data as well."""
    undone = []

    @tool(side_effect=True, compensate=lambda call: undone.append(dict(call.arguments)))
    def book(item: str, seats: list[int]) -> str:
        return item

    @workflow(trust="data")
    def flow():
        return book("a", [1, 2])

    assert flow.execute().compensate() == 1
    assert undone == [{"item": "a", "seats": [1, 2]}]


def test_options_that_cannot_be():
    """trust="data" and codec="pickle" contradict each other, and there are no other values."""
    with pytest.raises(stepwise.ConfigurationError, match="trust"):
        workflow(trust="some")(lambda: None)
    with pytest.raises(stepwise.ConfigurationError, match="codec"):
        workflow(codec="yaml")(lambda: None)
    with pytest.raises(stepwise.ConfigurationError, match="trust='data'"):
        workflow(codec="pickle", trust="data")(lambda: None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_any_data_comes_back(value):
    """Any JSON value comes back as it was."""
    data = encode_data(value, Any, "the value")
    again = decode_data(data, Any)
    assert stepwise._values.digest.digest(again) == stepwise._values.digest.digest(value)
