"""pydantic-ai's agents inside a workflow: killed anywhere, they repeat at most what was open."""

import os
import pathlib
import re
import signal
from collections import Counter
from typing import NamedTuple

import pytest

pydantic_ai = pytest.importorskip("pydantic_ai")

from harness import Watched  # noqa: E402
from pydantic_ai import Agent  # noqa: E402
from pydantic_ai import durable_exec as durable  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability  # noqa: E402
from pydantic_ai.models.test import TestModel  # noqa: E402

import stepwise  # noqa: E402
from stepwise.errors import ConfigurationError  # noqa: E402
from stepwise.integrations import pydantic_ai as ours  # noqa: E402
from stepwise.integrations.pydantic_ai import StepwiseDurability  # noqa: E402

PROGRAM = pathlib.Path(__file__).parent / "programs" / "pydantic_ai_agent.py"
IMPORTS = ("pydantic_ai", "pydantic_ai.models.function", "pydantic_ai.mcp", "mcp.server")


class Ended(NamedTuple):
    """An ended program."""

    code: int
    out: str
    err: str


class Program:
    """A scenario of the program, in a folder of its own."""

    def __init__(self, folder, scenario):
        self.folder, self.scenario = folder, scenario
        folder.mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            "STEPWISE_HOME": f"{folder / 'home'}",
            "STEPWISE_QUIET": "1",
        }

    def start(self, place="nowhere", *words):
        """Start the program, or stepwise's command line; return what came of it."""
        errors = self.folder / "errors"
        errors.unlink(missing_ok=True)
        started = Watched(
            *(words or (PROGRAM, self.scenario, self.folder / "notes", place)),
            cwd=f"{self.folder}",
            env=self.environment,
            err=errors,
            imports=IMPORTS,
        )
        out = started.stdout.read()
        return Ended(started.wait(), out, errors.read_text("utf-8"))

    def killed(self, place):
        assert self.start(place).code == -signal.SIGKILL

    def answer(self):
        ended = self.start()
        assert ended.code == 0, ended.err
        return ended.out

    def doubt(self):
        ended = self.start()
        assert "StepInDoubtError" in ended.err
        return ended.err

    @property
    def notes(self):
        return Counter((self.folder / "notes").read_text("utf-8").split("\n")[:-1])


@pytest.fixture
def program(tmp_path):
    return lambda scenario, folder="a": Program(tmp_path / folder, scenario)


@pytest.fixture(scope="module")
def plainly(tmp_path_factory):
    """What a scenario prints and notes when nothing kills it."""
    known = {}

    def run(scenario):
        if scenario not in known:
            made = Program(tmp_path_factory.mktemp(scenario), scenario)
            known[scenario] = made.answer(), made.notes
        return known[scenario]

    return run


KILLS = {
    "every_kind": ["request 0", "look 1", "request 1", "look 2", "request 2"],
    "streams": ["look", "event FunctionToolResultEvent", "midway", "second"],
    "agents_in_tools": ["inner 1", "asked a", "last"],
    "ways_out": ["request 1", "request 2", "end"],
    "options": ["request 1", "free"],
    "servers": ["list", "weather Oslo", "request 1"],
}


@pytest.mark.parametrize("scenario", KILLS)
def test_an_agent_is_killed(program, plainly, scenario):
    """Killed at one place after the other, an agent repeats what was open there, and no more."""
    if scenario == "servers":
        pytest.importorskip("pydantic_ai.mcp")
    expected, once = plainly(scenario)
    killed, places = program(scenario), KILLS[scenario]
    for place in places:
        killed.killed(place)
    assert killed.answer() == expected
    again = killed.notes - once
    if "midway" in places:  # the stream is open since its request
        again -= Counter(["request 1", "event PartStartEvent", "event FinalResultEvent"])
    more = again - Counter(places)
    if scenario == "agents_in_tools":  # a kill may meet both tools, which run side by side
        more -= Counter(["inner 0", "inner 1", "asked b"])
    assert (more, Counter(places) - again) == (Counter(), Counter())
    assert once - killed.notes == Counter()


def test_a_side_effect_is_in_doubt(program):
    """Killed inside a side effect, plain with options or decorated, an agent stops and asks."""
    for scenario, place, name in (
        ("options", "send", "agent.send"),
        ("every_kind", "send ann", "send"),
        ("ways_out", "approve", "agent.approve"),
    ):
        killed = program(scenario, scenario)
        killed.killed(place)
        assert f"{name} was started and never finished" in killed.doubt()
        assert killed.notes[place] == 1


def test_a_settled_side_effect(program):
    """What a person or a reconcile function says of a tool in doubt is its result."""
    settled = program("options", "settled")
    settled.killed("send")
    command = re.search(r"stepwise (resolve \S+ \d+ --landed) ", settled.doubt())[1].split()
    assert settled.start("", "stepwise", *command, '"settled"').code == 0
    assert "done: ['settled', 'f']" in settled.answer()
    asked = program("reconciled", "asked")
    asked.killed("send")
    assert "done: ['found']" in asked.answer()
    assert (asked.notes["send"], asked.notes["asked for ann"]) == (1, 1)


def test_runs_side_by_side(program, plainly):
    """A recorded tool call answers the run of the same customer, whichever run comes first."""
    expected, _ = plainly("side_by_side")
    killed = program("side_by_side")
    killed.killed("answered 1")
    assert "[100]" in expected
    assert killed.answer() == expected
    assert killed.notes["request 0"] == 2, "it did not resume"


def test_usage_limits(program):
    """The limit that stops an agent stops its resumed run at the same request."""
    plain = program("agents_in_tools", "plain")
    resumed = program("agents_in_tools", "resumed")
    for each in (plain, resumed):
        each.environment["LIMIT"] = "6"
    resumed.killed("asked a")
    reason = "The next request would exceed the request_limit of 6"
    assert reason in plain.start().err
    assert reason in resumed.start().err
    assert resumed.notes["last"] == plain.notes["last"] == 1


# -- in this process -----------------------------------------------------------------------------


def agent(*tools, **options):
    return Agent(TestModel(), name="a", tools=tools, capabilities=[StepwiseDurability(**options)])


def said(agent, **options):
    """What an agent answers in a run."""

    @stepwise.workflow
    def main():
        return agent.run_sync("hi", **options).output

    return main()


def names_of_steps():
    return [step.name for step in stepwise.runs()[0].steps]


def test_outside_a_run():
    """Outside a run an agent with the capability behaves as usual, a replaced model included."""
    plain = agent()
    with plain.override(model=TestModel(custom_output_text="other")):
        assert plain.run_sync("hi").output == "other"
    assert stepwise.runs() == []


def test_what_is_recorded():
    """A decorated tool is recorded once, by its decorator; a plain one under the agent's name."""

    @stepwise.tool(side_effect=True)
    def send() -> str:
        return "sent"

    def look() -> str:
        return "seen"

    said(agent(send, look))
    requests = ["a: model request"] * 2
    names = [name for name in names_of_steps() if name != "a: run id"]
    assert sorted(names) == ["a.look", *requests, send.__qualname__[-4:]]


def test_a_listing_shows_what_was_said():
    """A step shows the text or the calls of an answer with its tokens, or what a tool returned."""

    def look() -> str:
        return "seen"

    said(agent(look))
    [asked, looked, answered] = list(stepwise.runs()[0].steps)[-3:]
    assert (asked.preview, looked.preview) == ("look({})", "'seen'")
    assert answered.preview == '{"look":"seen"}'
    assert answered.usage["model"] == "test"
    assert answered.usage["output_tokens"] > 0


def test_a_capability_of_an_agent_with_dependencies():
    """The capability is a generic class, like those of other engines, and may be subclassed."""

    class Own(StepwiseDurability[int]):
        """One with a name of its own."""

    for capability in (StepwiseDurability[int](), Own()):
        assert isinstance(capability, StepwiseDurability)
        assert isinstance(capability, AbstractCapability)
        one = Agent(TestModel(), name="a", deps_type=int, capabilities=[capability])

        said(one, deps=3)
        assert names_of_steps()[-1] == "a: model request"


def test_options_that_mean_nothing():
    """An option that there is not is refused, by name, before the agent runs."""
    with pytest.raises(ConfigurationError, match="model requests have no option 'side_effect'"):
        StepwiseDurability(model_options={"side_effect": True})
    with pytest.raises(ConfigurationError, match="retries=-1"):
        StepwiseDurability(tool_options={"retries": -1})


def test_options_given_twice():
    """Options in the metadata of a decorated tool are refused: one of both would be ignored."""
    twice = agent()

    @twice.tool_plain(metadata={"stepwise": {"retries": 1}})
    @stepwise.tool
    def send() -> str:
        return "sent"

    with pytest.raises(ConfigurationError, match="write all of them in one place"):
        said(twice)


def test_decorators_in_the_wrong_order():
    """A decorator that pydantic-ai never sees is refused: its side effect would count as none."""
    wrong = agent()

    @stepwise.tool(side_effect=True)
    @wrong.tool_plain
    def send() -> str:
        return "sent"

    with pytest.raises(ConfigurationError, match=r"write @agent\.tool above @tool"):
        said(wrong)


def test_a_result_that_cannot_be_recorded():
    """A tool that returns a live object is refused with the way out."""

    def look() -> object:
        return object()

    with pytest.raises(stepwise.NotRecordableError, match="Return plain data"):
        said(agent(look))


@pytest.mark.parametrize(
    ("place", "name", "value", "reason"),
    [
        ("CallableOperationBackend", "__abstractmethods__", {"run"}, r"\['run'\]"),
        ("CallableOperationBackend", "execute", lambda self, body: None, r"\['body', 'self'\]"),
        ("", "JSON_CODEC", None, "JSON_CODEC"),
    ],
)
def test_a_version_that_does_not_fit(monkeypatch, place, name, value, reason):
    """A version with another interface is refused with the reason."""
    ours._interface.cache_clear()
    where = getattr(durable, place) if place else durable
    with monkeypatch.context() as changed:
        if value is None:
            changed.delattr(where, name, raising=False)
            changed.delitem(durable._exports, name)
        else:
            changed.setattr(where, name, value)
        with pytest.raises(ConfigurationError, match=f"does not fit .*{reason}"):
            ours._interface()
    ours._interface.cache_clear()
