"""``crash_everywhere`` beyond kills: steps that fail once, renamed tools, twins of an agent."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest
from sweeping import WHOLE

import stepwise
from stepwise import step, tool, workflow
from stepwise.errors import ConfigurationError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is missing here"),
    pytest.mark.filterwarnings("ignore:.*changed its argument"),
]


@step
def think(topic: str) -> str:
    return f"thought about {topic}"


@tool(side_effect=True)
def post(path: str, text: str) -> int:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")
        return file.tell()


@pytest.fixture
def outbox(tmp_path):
    return tmp_path / "outbox"


@pytest.fixture
def crash(crash_everywhere, outbox):
    """``crash_everywhere`` with the outbox as the world outside."""

    def crash(workflow, *args, **options):
        return crash_everywhere(
            workflow,
            *args,
            setup=lambda: outbox.write_text(""),
            effects=outbox.read_text,
            **options,
        )

    return crash


# -- a state that steps change -------------------------------------------------------------------


@dataclasses.dataclass
class State:
    messages: list = dataclasses.field(default_factory=list)
    cost: float = 0.0


@step
def extend(state: State, text: str) -> int:
    state.messages.append(text)
    state.cost += 0.5
    return len(state.messages)


@workflow
def extending() -> tuple:
    state = State()
    counts = [extend(state, text) for text in ("a", "b")]
    extend(state, "c")
    return counts, state.messages, state.cost


def test_an_agent_whose_steps_change_a_dataclass(crash_everywhere):
    """What steps changed in a state object is there after a kill at any point."""
    report = crash_everywhere(extending, limit=None if WHOLE else 5)
    assert report.result == ([1, 2], ["a", "b", "c"], 1.5)


# -- outer steps that fail once ------------------------------------------------------------------


@step(retries=1, backoff=0)
def crew(path: str, topic: str) -> int:
    return post(path, think(topic))


@step
def team(path: str, topic: str) -> int:
    """Without retries: the run fails, and is started again."""
    post(path, f"about {topic}")
    return post(path, think(topic))


@workflow
def crews(path: str) -> list:
    return [crew(path, "tides"), team(path, "winds")]


def test_a_side_effect_in_a_step_that_fails_once(crash, outbox):
    """A side effect happens once, though the step around it fails after it and is tried again."""
    report = crash(crews, str(outbox), vary=["retries"], limit=5)
    assert len(report.variations) == 5  # after each inner call
    assert "failed after that call" in report.variations[0]


@step(retries=1, backoff=0)
def gather(notes: list) -> int:
    for topic in ("tides", "winds"):
        notes.append(think(topic))
    return len(notes)


@workflow
def gathering() -> list:
    notes: list = []
    gather(notes)
    return notes


def test_a_failed_attempt_that_leaves_half_of_its_changes(crash_everywhere):
    """A step that changes its state between two calls is found: its retry changes it twice."""
    told = (
        r"(?s)the step around think\(.*\) failed after that call; tried again: the result differs"
    )
    with pytest.raises(AssertionError, match=told):
        crash_everywhere(gathering, vary=["retries"], limit=3)


@workflow
def careful(path: str) -> str:
    try:
        return str(team(path, "winds"))
    except Exception:
        return "no team today"


def test_a_failure_that_the_workflow_handles(crash, outbox):
    """A workflow that handles the failure of a step may return something else."""
    assert len(crash(careful, str(outbox), vary=["retries"], limit=3).variations) == 3


@workflow
def double(path: str) -> int:
    try:
        return team(path, "winds")
    except Exception:
        return post(path, "about winds")


def test_a_failure_that_is_handled_by_a_second_act(crash, outbox):
    """A workflow that makes a side effect again, since the step around it failed, is found."""
    with pytest.raises(
        AssertionError, match=r"(?s)too often: post\(.*about winds.*not at all: none"
    ):
        crash(double, str(outbox), vary=["retries"], limit=3)


# -- renamed tools -------------------------------------------------------------------------------


@workflow
def posting(path: str) -> list:
    sizes = [post(path, text) for text in ("a", "b")]
    return [*sizes, post(path, "a")]


def test_a_renamed_tool(crash, outbox):
    """A tool that is renamed between kill and rerun does nothing twice."""
    report = crash(posting, str(outbox), vary=["renames"], limit=3)
    assert len(report.variations) == 3
    assert "post was renamed after it was killed recorded post(" in report.variations[0]


@tool(side_effect=True, in_doubt="retry")
def touch(path: str) -> None:
    open(path, "a").close()


@workflow
def touching(path: str) -> None:
    touch(path)


def test_a_renamed_tool_that_may_be_repeated(crash, outbox):
    """The rename of a tool that may be repeated is not tried: it may happen twice."""
    assert crash(touching, str(outbox), limit=2).variations == []


# -- twins ---------------------------------------------------------------------------------------


class Client:
    """It has no digest, as the client of an SDK."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.lock = threading.Lock()


class Declared(Client):
    pass


stepwise.identity(Declared, fields=["model"])


class Agent:
    def __init__(self, persona: str, client: Client) -> None:
        self.persona, self.client = persona, client

    @step
    def speak(self, topic: str) -> str:
        return f"{self.persona} ({self.client.model}) on {topic}"

    @workflow
    def run(self, topic: str) -> list:
        return [self.speak(topic), self.speak(f"more {topic}")]


class Team:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    @workflow
    def run(self, topic: str) -> list:
        return [self.agent.speak(topic), self.agent.speak(f"more {topic}")]


class Keyed(Agent):
    @workflow(key=lambda self, topic: topic)
    def run(self, topic: str) -> str:
        return self.speak(topic)


def test_twins_that_differ_in_their_persona(crash_everywhere):
    """Two agents with one kind of client, and different personas, get answers of their own."""
    twins = [Agent("bob", Declared("small")).run, Agent("ann", Declared("large")).run]
    report = crash_everywhere(Agent("ann", Declared("small")).run, "tides", twins=twins, limit=1)
    assert report.variations == [
        f"twin {number} ran after the workflow was {what}"
        for number in (1, 2)
        for what in ("completed", "killed recorded Agent.speak(topic='more tides')")
    ]


def test_twins_whose_difference_is_within_an_attribute(crash_everywhere):
    """Two teams whose agents hold a client, and differ in their persona, get their own answers."""
    twin = Team(Agent("bob", Client("small"))).run
    crash_everywhere(Team(Agent("ann", Client("small"))).run, "tides", twins=[twin], limit=1)


def test_twins_whose_difference_does_not_count(crash_everywhere):
    """Two agents that differ in what a key leaves out are found: one answer is for both."""
    twin = Keyed("ann", Client("large")).run
    told = r"(?s)twin 1 ran after the workflow was completed: .*(result differs|were answered)"
    with pytest.raises(AssertionError, match=told):
        crash_everywhere(Keyed("ann", Client("small")).run, "tides", twins=[twin], limit=1)


@step(key=lambda self, topic: topic)
def rate(self, topic: str) -> int:
    return len(topic)


class Rater(Agent):
    """Its persona changes no result, and the calls of its step are one call for all."""

    rate = rate

    @workflow(key=lambda self, topic: topic)
    def run(self, topic: str) -> int:
        return self.rate(topic)


def test_twins_with_one_result(crash_everywhere):
    """An answer that crosses over is found although it is the same by chance."""
    ann, bob = (Rater(persona, Declared("small")).run for persona in ("ann", "bob"))
    with pytest.raises(AssertionError, match=r"were answered with what .* recorded: rate\("):
        crash_everywhere(ann, "tides", twins=[bob], limit=1)


# -- which variations ----------------------------------------------------------------------------


def test_no_variations(crash, outbox):
    """Without variations, there are kills only."""
    report = crash(crews, str(outbox), vary=(), limit=2)
    assert report.points
    assert report.variations == []


def test_an_unknown_variation(crash_everywhere):
    """A variation that does not exist is refused, and the error names those that do."""
    with pytest.raises(ConfigurationError, match=r"'names'.* is not known: use .*'renames'"):
        crash_everywhere(posting, vary=["names"])
