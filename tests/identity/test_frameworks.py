"""What frameworks put into messages anew at every start does not make every call a new one."""

import dataclasses
import datetime as dt
import os
import signal
import uuid
from collections import OrderedDict
from typing import NamedTuple

import pytest
from harness import python
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeping import WHOLE

import stepwise
from stepwise import step, workflow
from stepwise._identity.identity import Parameters
from stepwise._values import digest
from stepwise._values import digest as list_digest

# -- classes of the same shape as those of the frameworks, which need not be installed -------------

PYDANTIC_AI = """
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

def _now():
    return datetime.now(timezone.utc)

def _new():
    return uuid.uuid4().hex

@dataclass
class UserPromptPart:
    content: str
    timestamp: datetime = field(default_factory=_now)

@dataclass
class ToolCallPart:
    tool_name: str
    args: Any = None
    tool_call_id: str = field(default_factory=_new)

@dataclass
class BaseToolReturnPart:
    tool_name: str
    content: Any
    tool_call_id: str = field(default_factory=_new)
    timestamp: datetime = field(default_factory=_now)

@dataclass
class ToolReturnPart(BaseToolReturnPart):
    part_kind: str = "tool-return"

@dataclass
class ModelRequest:
    parts: list
    timestamp: datetime = field(default_factory=_now)
    run_id: str = field(default_factory=_new)

@dataclass
class ModelResponse:
    parts: list
    usage: Any = None
    timestamp: datetime = field(default_factory=_now)
    run_id: str = field(default_factory=_new)
"""
LANGCHAIN = """
from dataclasses import dataclass, field
from typing import Any

@dataclass
class BaseMessage:
    content: Any
    id: str | None = None
    response_metadata: dict = field(default_factory=dict)
    additional_kwargs: dict = field(default_factory=dict)

@dataclass
class AIMessage(BaseMessage):
    tool_calls: list = field(default_factory=list)
    usage_metadata: Any = None

@dataclass
class ToolMessage(BaseMessage):
    tool_call_id: str = ""

@dataclass
class RemoveMessage(BaseMessage):
    pass
"""


def module(name, text):
    """Its classes, as if they were those of that module."""
    namespace = {"__name__": name}
    exec(compile(text, name, "exec", dont_inherit=True), namespace)
    return type(name, (), namespace)


ai = module("pydantic_ai.messages", PYDANTIC_AI)
lc = module("langchain_core.messages", LANGCHAIN)


def identity(*values):
    """The digest of a call with these arguments."""

    def call(a=None, b=None, c=None): ...

    names = dict(zip("abc", values, strict=False))
    return Parameters(call, what="step 'call'").digest(names, (values, {}))


@pytest.fixture(autouse=True)
def nothing_known():
    list_digest.forget()
    yield
    list_digest.forget()


# -- new at every start ----------------------------------------------------------------------------


def conversation(result=3):
    call = ai.ToolCallPart("add", {"a": 1, "b": 2})
    return [
        ai.ModelRequest([ai.UserPromptPart("add 1 and 2")]),
        ai.ModelResponse([call], usage={"tokens": len(uuid.uuid4().hex)}),
        ai.ModelRequest([ai.ToolReturnPart("add", result, call.tool_call_id)]),
    ]


def test_a_conversation_made_anew():
    """Messages with other times, run ids and call ids are the same argument; contents count."""
    assert identity(conversation()) == identity(conversation())
    assert identity(conversation()) != identity(conversation(4))


def langchain(result="3"):
    """A history with ids that are made anew, and with what was measured."""
    call = str(uuid.uuid4())
    made = [{"name": "add", "args": {"a": 1}, "id": call, "type": "tool_call"}]
    raw = {"tool_calls": [{"id": call, "function": {"name": "add"}}]}
    return [
        lc.BaseMessage("hi", id=str(uuid.uuid4())),
        lc.AIMessage("", str(uuid.uuid4()), {"at": call}, raw, made, {"tokens": call}),
        lc.ToolMessage(result, str(uuid.uuid4()), tool_call_id=call),
    ]


def test_messages_of_langchain():
    """Ids of messages and of tool calls are made anew by LangChain, and so is what it measured."""
    assert identity(langchain()) == identity(langchain())
    assert identity(langchain()) != identity(langchain("4"))


def test_an_id_that_is_the_content():
    """A message that says which message is to be removed is not the same as another."""
    assert identity(lc.RemoveMessage("", "a")) != identity(lc.RemoveMessage("", "b"))
    assert identity(lc.BaseMessage("", "a")) == identity(lc.BaseMessage("", "b"))
    assert identity(lc.BaseMessage("", "a")) != identity(lc.BaseMessage(""))


def test_plain_dicts_count_as_they_are():
    """No key of a dict is left out for its name, nor a field of the user's class of that name."""
    for key in ("id", "timestamp", "tool_call_id", "run_id", "usage"):
        assert identity({key: "a", "role": "tool"}) != identity({key: "b", "role": "tool"})

    @dataclasses.dataclass
    class ModelRequest:
        parts: list
        timestamp: int

    assert identity(ModelRequest([], 1)) != identity(ModelRequest([], 2))


# -- references ------------------------------------------------------------------------------------


def returned(call_id, content="ok"):
    return ai.ToolReturnPart("add", content, call_id)


def test_a_result_belongs_to_its_call():
    """Two results that are swapped between two calls make another argument."""
    calls = ai.ModelResponse([ai.ToolCallPart("f", 1, "x"), ai.ToolCallPart("f", 2, "y")])
    right = [calls, returned("x", "one"), returned("y", "two")]
    wrong = [calls, returned("y", "one"), returned("x", "two")]
    assert identity(right) != identity(wrong)


@pytest.mark.parametrize("length", [0, 63, 64, 200])
def test_a_reference_from_one_argument_to_another(length):
    """Which of the calls in the history the other argument means tells two calls apart."""

    def history(*ids):
        filler = [ai.UserPromptPart(f"{n}") for n in range(length)]
        return [*filler, *(ai.ToolCallPart("f", 1, each) for each in ids)]

    def calls(meant, *ids):
        before, after = returned(meant), history(*ids)
        return identity(before, after), identity(after, before), identity(after, history(meant))

    first, again = calls("x", "x", "y"), calls("p", "p", "q")
    second, none = calls("y", "x", "y"), calls("z", "x", "y")
    assert first == again
    assert all(len({*each}) == 3 for each in zip(first, second, none, strict=True))


def test_dicts_in_any_order():
    """Equal dicts number what they hold in one order, whatever was put in first."""
    one, other = lc.BaseMessage("a", "x"), lc.BaseMessage("b", "y")
    refers = lc.ToolMessage("c", "z", tool_call_id="x")
    assert identity({"p": one, "q": other}, refers) == identity({"q": other, "p": one}, refers)
    assert identity({"p": one, "q": other}, refers) != identity({"p": other, "q": one}, refers)
    assert identity(OrderedDict(p=one, q=other)) != identity(OrderedDict(q=other, p=one))


def test_an_object_that_is_met_twice():
    """Equal values have one digest, whether an object is in them twice or two equal ones are."""
    one, twin = ai.ToolCallPart("f", 1, "x"), ai.ToolCallPart("f", 1, "x")
    filler = [ai.UserPromptPart(f"{n}") for n in range(70)]
    for values in ([one, [one]], [one, [*filler, one]], [one, [ai.ToolCallPart("g"), one]]):
        copied = [twin if each is one else each for each in values]
        assert identity(values, one) == identity(copied, twin)


def build(events, names):
    """The messages of a history; ``names`` are the ids in it."""
    forms = {
        "say": lambda what, _: ai.UserPromptPart(str(what)),
        "call": lambda what, which: ai.ToolCallPart("f", what, names[which]),
        "return": lambda what, which: returned(names[which], what),
    }
    return [forms[kind](what, which) for kind, what, which in events]


def canonical(*histories):
    """What tells histories apart: their ids by the order in which they appear."""
    seen: dict[int, int] = {}
    told = []
    for events in histories:
        told.append([])
        for kind, what, which in events:
            number = None if kind == "say" else seen.setdefault(which, len(seen))
            told[-1].append((kind, what, number))
    return told


event = st.tuples(st.sampled_from(["say", "call", "return"]), st.integers(0, 1), st.integers(0, 2))
events = st.lists(event, max_size=4)
fillers = st.sampled_from([0, 61, 63, 64, 66])
pairs = st.tuples(events, events)


@given(pairs, pairs | st.none(), fillers, fillers, st.permutations("xyz"))
def test_calls_are_told_apart_by_what_refers_to_what(one, other, first, second, renamed):
    """Two calls are one exactly if their histories are, but for the names of their ids."""
    other = other or one
    filled = [
        tuple(
            [("say", 7, 0)] * fill + part for fill, part in zip((first, second), each, strict=True)
        )
        for each in (one, other)
    ]
    named = [
        identity(*(build(part, names) for part in each))
        for each, names in zip(filled, ("abc", renamed), strict=True)
    ]
    assert (named[0] == named[1]) == (canonical(*filled[0]) == canonical(*filled[1]))


@settings(max_examples=100 if WHOLE else 15)
@given(st.lists(event, min_size=1, max_size=12), st.sampled_from([40, 60, 64, 90]))
def test_a_list_that_grows(added, length):
    """What was digested of a list before changes nothing, and whole digests know nothing of it."""
    list_digest.forget()
    history = build([("say", 7, 0)] * length, "abc")
    for each in build(added, "abc"):
        history.append(each)
        known = identity(history, returned("a")), digest.digest(history)
        list_digest.forget()
        assert known == (identity(history, returned("a")), digest.digest(history))


# -- what is whole ---------------------------------------------------------------------------------


def test_a_digest_of_the_value():
    """What changed is another question than which call it is: there everything counts."""
    one = conversation()
    before = digest.digest(one)
    one[0].timestamp += dt.timedelta(seconds=1)
    assert digest.digest(one) != before
    long = conversation() * 30
    before, same = digest.digest(long), identity(long)
    long[0].timestamp += dt.timedelta(seconds=1)
    assert digest.digest(long) != before
    assert identity(long) == same


def test_a_step_that_changes_an_id():
    """A step that gives a message its id has changed it, though ids tell no calls apart."""
    killed = []

    @step
    def name(one):
        one.id = "m1"

    @step
    def end():
        if not killed:
            killed.append(True)
            raise KeyboardInterrupt

    @workflow
    def agent():
        one = lc.BaseMessage("hi")
        return [name(one), end(), one.id][-1]

    with pytest.raises(KeyboardInterrupt):
        agent()
    assert agent() == "m1"


def test_a_method_of_a_workflow():
    """The run of an agent that holds messages is the same at every start."""

    class Agent:
        def __init__(self):
            self.history = conversation()

        @workflow
        def run(self): ...

    assert Agent().run.run_id_for() == Agent().run.run_id_for()


# -- classes of others -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Note:
    text: str
    created: float
    id: str = ""
    calls: list = dataclasses.field(default_factory=list)


class Later(Note):
    """Inherits what is said of it."""


class Pair(NamedTuple):
    text: str
    at: float


class Plain:
    def __init__(self, text, at):
        self.text, self.at = text, at


@pytest.mark.parametrize("by_name", [True, False])
def test_further_classes(by_name):
    """``configure(volatile=, references=)`` names fields by class, for its subclasses too."""
    key = f"{__name__}.Note" if by_name else Note
    assert identity(Note("a", 1.0)) != identity(Note("a", 2.0))
    stepwise.configure(volatile={key: "created"}, references={key: ("id", "calls[].id")})
    for cls in (Note, Later):
        assert identity(cls("a", 1.0, "x")) == identity(cls("a", 2.0, "y"))
        assert identity(cls("a", 1.0, "x")) != identity(cls("b", 1.0, "x"))
    one, same, other = (
        [Note("a", 1.0, "", [{"id": a, "of": 1}]), Note("b", 1.0, b)]
        for a, b in (("x", "x"), ("y", "y"), ("x", "y"))
    )
    assert identity(one) == identity(same) != identity(other)
    stepwise.configure(volatile={})
    assert identity(Note("a", 1.0)) != identity(Note("a", 2.0))
    assert identity(Note("a", 1.0, "x")) == identity(Note("a", 1.0, "y"))


class Team:
    def __init__(self, *names):
        for name in names:
            setattr(self, name, Note(name, 1.0, f"id of {name}"))

    @stepwise.workflow
    def run(self):
        pass


def test_the_order_in_which_attributes_were_assigned():
    """References are numbered alike whichever attribute of an instance was assigned first."""
    stepwise.configure(references={Note: "id"})
    one, same, other = Team("a", "b"), Team("b", "a"), Team("a", "c")
    assert one.run.run_id_for() == same.run.run_id_for() != other.run.run_id_for()


def test_classes_of_any_make():
    """Named tuples and plain classes take part, a list of them, and the known classes anew."""
    stepwise.configure(volatile={Pair: "at", Plain: ("at",)})
    for cls in (Pair, Plain):
        for many in (1, 100):
            assert identity([cls("a", 1)] * many) == identity([cls("a", 2)] * many)
            assert identity([cls("a", 1)] * many) != identity([cls("b", 1)] * many)
    stepwise.configure(references={"langchain_core.messages.BaseMessage": ()})
    assert identity(lc.BaseMessage("a", "x")) != identity(lc.BaseMessage("a", "y"))


def test_wrong_fields():
    """What is no field of a class is refused, with an example."""
    for fields, said in (
        (["created"], r"takes fields by class, not \['created'\]: write configure\(volatile="),
        ({"Note": "created"}, "'Note' is neither a class nor its full name"),
        ({7: "created"}, "7 is neither a class"),
        ({"m.Note": ("created at",)}, "'created at' of m.Note is not a field"),
        ({"m.Note": (7,)}, "7 of m.Note is not a field"),
        ({Note: 7}, "7 of .*Note is not a field"),
    ):
        with pytest.raises(stepwise.ConfigurationError, match=said):
            stepwise.configure(volatile=fields)


# -- killed and run again --------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
from pydantic_ai.messages import (
    ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart
)
from stepwise import step, workflow

@step
def request(messages):
    with open("asked", "a") as file:
        print(len(messages), file=file)
    if os.environ.get("DIE") == str(len(messages)):
        os.kill(os.getpid(), signal.SIGKILL)
    if len(messages) < 7:
        return ModelResponse([ToolCallPart("add", {"n": len(messages)})])
    return ModelResponse([])

def run(prompt):  # what a framework does: nothing of it is known to stepwise
    messages = [ModelRequest([UserPromptPart(prompt)])]
    while True:
        answer = request(messages)
        messages.append(answer)
        if not answer.parts:
            return len(messages)
        results = [ToolReturnPart(p.tool_name, p.args, p.tool_call_id) for p in answer.parts]
        messages.append(ModelRequest(results))

@workflow
def agent(prompt):
    return run(prompt)

print(agent("hi"))
"""


def test_model_calls_of_a_killed_program(tmp_path):
    """Killed and run again, the framework's loop asks the model for nothing that it has asked."""
    package = tmp_path / "pydantic_ai"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "messages.py").write_text(PYDANTIC_AI)
    (tmp_path / "agent.py").write_text(PROGRAM)
    for die in ("3", "5", ""):
        ended = python(
            "agent.py",
            cwd=tmp_path,
            env={**os.environ, "DIE": die},
            code=(-signal.SIGKILL if die else 0),
        )
    assert ended.stdout.strip() == "8"
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["1", "3", "3", "5", "5", "7"]  # again only what a kill cut off
