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
from resuming import crashed, resumed

import stepwise
from stepwise import step, tool, workflow
from stepwise._values import unpickling
from stepwise._values.data import decode_data, encode_data
from stepwise.testing import fresh_store

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


ADA = Person(name="ada", born=dt.date(1815, 12, 10))
PLAIN = {"n": [1, 2.5, None, True, "\u00e9"]}
LINE = {"line": (Point(0, 0), Point(1, 2))}


@step
def person(name: str) -> Person:
    CALLS.append(name)
    return Person(name=name, born=dt.date(1815, 12, 10))


@step
def shapes() -> dict[str, tuple[Point, ...]]:
    CALLS.append("shapes")
    return LINE


@step
async def colours() -> set[Colour]:
    CALLS.append("colours")
    return {Colour.RED}


@step
def plain():
    CALLS.append("plain")
    return PLAIN


@step
def last() -> None:
    CALLS.append("last")


@tool(side_effect=True)
def send(text: str) -> str:
    CALLS.append(text)
    return text


@workflow(codec="json")
def agent(name: str) -> list[Person]:
    CALLS.append("begun")
    found = [person(name)]
    assert (shapes(), plain()) == (LINE, PLAIN)
    last()
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
    monkeypatch.setattr(unpickling.Unpickler, "load", refuse)


def test_models_and_dataclasses_come_back():
    """What a step or workflow is annotated to return comes back as that, after a crash as before.

    The run resumes inside its function: the codec says nothing about checkpoints.
    """
    call = agent.options(run_id="one")
    assert resumed(call, "ada", at=last) == [ADA]
    stepwise._execution.process_memory.memory.__init__()
    assert call("ada") == [ADA]
    assert CALLS == ["begun", "ada", "shapes", "plain", "last"]
    (run,) = stepwise.runs()
    assert run.steps[0].result == {"name": "ada", "born": "1815-12-10"}  # looking needs no class


def test_asynchronous_steps():
    """A coroutine function's annotation is that of what it is awaited for."""

    @workflow(codec="json")
    async def flow() -> Colour:
        (found,) = await colours()
        last()
        return found

    assert resumed(lambda: asyncio.run(flow()), at=last) is Colour.RED
    assert CALLS == ["colours", "last"]


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        ((1, 2), None, "comes back as list"),
        ({1: 2}, None, "comes back as dict"),
        (decimal.Decimal(1), None, "not JSON serializable"),
        (object(), None, "not JSON serializable"),
        (["1"], list[int], "not a list"),
    ],
    ids=["tuple", "int keys", "decimal", "object", "of another type"],
)
def test_what_is_no_data(value, kind, told):
    """A value that JSON would change, or that is not of its type, is refused with the way out."""

    def give():
        return value

    if kind is not None:
        give.__annotations__["return"] = kind
    give = step(name="give")(give)

    @workflow(codec="json")
    def flow():
        give()

    match = rf"'give'.*{told}.*[Aa]nnotate" if kind is None else "give"
    with pytest.raises(stepwise.NotRecordableError, match=match):
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

    assert resumed(flow, at=last) == ["ValueError ('bad', 3)", "Lost on the way"]
    assert CALLS == ["value", "lost", "last"]


def test_nothing_is_unpickled(no_pickles, monkeypatch):
    """With trust="data" no pickle is loaded, whatever is resumed, looked at or settled."""
    monkeypatch.setenv("STEPWISE_TRUST", "data")

    @workflow
    def flow(limit: int, names: list) -> list:
        names.append("seen")
        done = [person("ada").name, send("hello")]
        last()
        return done

    crashed(flow, 2, ["a"], at=send, when="after")
    (run,) = stepwise.runs()
    run.resolve(2, landed="settled")
    assert resumed(flow, 2, ["a"], at=last) == ["ada", "settled"]
    assert run.result == ["ada", "settled"]
    assert [each.result for each in run.steps][1:] == ["settled", None]
    assert CALLS == ["ada", "hello", "last"]


@pytest.mark.parametrize("codec", ["pickle", "json"])
def test_a_pickle_is_refused(no_pickles, codec):
    """A step, checkpoint or input that was recorded as a pickle is not believed by trust="data"."""

    @workflow(run_id="one")
    def flow(n):
        CALLS.append("begun")
        found = person("ada").name
        last()
        return found

    crashed(flow.options(codec=codec), 1, at=last)
    stepwise.configure(trust="data")
    (run,) = stepwise.runs()
    with pytest.raises(stepwise.UnreadableValueError, match="STEPWISE_TRUST=data"):
        run.locals()
    assert flow(1) == "ada"
    assert ["begun", "ada", "begun", *["ada"] * (codec == "pickle"), "last"] == CALLS


def test_a_pickle_of_a_side_effect_is_in_doubt(no_pickles):
    """A side effect whose result is a pickle is in doubt under trust="data", not repeated."""

    @workflow(run_id="one")
    def flow():
        send("x")
        last()

    crashed(flow, at=last)
    stepwise.configure(trust="data")
    with pytest.raises(stepwise.StepInDoubtError, match="trust='data' loads none"):
        flow()
    assert CALLS == ["x"]


def test_children_record_as_their_caller():
    """A child workflow records as its caller does, unless it says otherwise."""

    @workflow
    def child() -> Person:
        return person("ada")

    @workflow(codec="json")
    def flow():
        return child().name

    assert flow() == "ada"
    assert {run._facts().codec for run in stepwise.runs()} == {"json"}


def test_compensation_of_data():
    """Arguments for a compensation are data as well."""
    undone = []

    @tool(side_effect=True, compensate=lambda call: undone.append(dict(call.arguments)))
    def book(item: str, seats: list[int]) -> str:
        return item

    @workflow(codec="json")
    def flow():
        return book("a", [1, 2])

    assert flow.execute().compensate() == 1
    assert undone == [{"item": "a", "seats": [1, 2]}]


def test_options_that_cannot_be():
    """trust="data" and codec="pickle" contradict each other, and there are no other values."""
    for told, call in {
        r"configure\(trust='some'\)": lambda: stepwise.configure(trust="some"),
        "codec": lambda: workflow(codec="yaml")(lambda: None),
        "no option 'trust'": lambda: workflow(trust="data")(lambda: None),
    }.items():
        with pytest.raises(stepwise.ConfigurationError, match=told):
            call()

    @workflow(codec="pickle")
    def flow():
        last()

    stepwise.configure(trust="data")
    with pytest.raises(stepwise.ConfigurationError, match="would be recorded as pickles"):
        flow()
    assert not stepwise.runs()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_any_data_comes_back(value):
    """Any JSON value comes back as it was."""
    again = decode_data(encode_data(value, Any, "the value"), Any)
    assert stepwise._values.digest.digest(again) == stepwise._values.digest.digest(value)
