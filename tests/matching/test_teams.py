"""Agents inside agents: which record answers a call of an object that holds others.

Each program is killed once and started again; what differs between two objects stands somewhere
inside them, beside a client without a digest and beside state that steps change.
"""

import itertools
import random

import pytest
from calls import Calls
from hypothesis import given
from hypothesis import strategies as st
from sweeping import some

from examples import sweep
from stepwise._identity.held_parts import Holder, Sights, attribute, deepest, item
from stepwise._identity.identity import Parameters

AGENTS = {
    "own class": """
class Agent:
    def __init__(self, persona):
        self.persona, self.history, self.client = persona, [], threading.Lock()
""",
    "slots": """
class Agent:
    __slots__ = ("persona", "history", "client")
    def __init__(self, persona):
        self.persona, self.history, self.client = persona, [], threading.Lock()
""",
    "dataclass": """
@dataclasses.dataclass
class Agent:
    persona: str
    history: list = dataclasses.field(default_factory=list)
    client: object = dataclasses.field(default_factory=threading.Lock)
""",
    "frozen dataclass": """
@dataclasses.dataclass(frozen=True)
class Agent:
    persona: str
    history: list = dataclasses.field(default_factory=list)
    client: object = dataclasses.field(default_factory=threading.Lock)
""",
    "attrs": """
import attrs
@attrs.define
class Agent:
    persona: str
    history: list = attrs.field(factory=list)
    client: object = attrs.field(factory=threading.Lock)
""",
    "pydantic": """
import pydantic
class Model(pydantic.BaseModel):
    persona: str
    history: list = []
    _client: object = pydantic.PrivateAttr(default_factory=threading.Lock)
def Agent(persona): return Model(persona=persona)
""",
    "its own pickled state": """
class Agent:
    def __init__(self, persona):
        self.persona, self.history, self.client = persona, [], threading.Lock()
    def __getstate__(self): return {"persona": self.persona, "history": self.history}
    def __setstate__(self, state): self.__dict__.update(state, client=threading.Lock())
""",
}
PLACES = {
    "an attribute": ("Agent(persona)", "self.held"),
    "a list": ("[Agent('chair'), Agent(persona)]", "self.held[1]"),
    "a tuple in a dict": ("{'all': (Agent(persona), 1)}", "self.held['all'][0]"),
    "a team of teams": ("Box([Box([Agent(persona)])])", "self.held.inside[0].inside[0]"),
}
MEMBERS = """
class Box:
    def __init__(self, inside): self.inside = inside
class Member:
    def __init__(self, persona): self.held = HELD
    def agent(self): return WHERE
    @step
    def speak(self, question):
        agent = self.agent()
        agent.history.append(question)
        return did("speak", agent.persona, question)
@workflow
def debate():
    members = {who: Member(who) for who in ("ann", "bob")}
    said = {}
    with open(os.devnull):
        for who in ("ann", "bob") if FIRST else ("bob", "ann"):
            said[who] = members[who].speak("hi")
            if who == os.environ.get("LAST"):
                crash()
    return sorted((who, said[who], members[who].agent().history) for who in members)
print("result", repr(debate()))
"""
SAID = [("ann", "ann: hi", ["hi"]), ("bob", "bob: hi", ["hi"])]


@pytest.mark.parametrize(
    ("agents", "place", "last"),
    some(itertools.product(AGENTS, PLACES, ["ann", "bob"]), 10, "teams"),
)
def test_a_persona_beside_a_changed_history_tells_two_members_apart(agents, place, last):
    """A history that a step changes is state; the persona beside it keeps excluding records."""
    held, where = PLACES[place]
    program = AGENTS[agents] + MEMBERS.replace("HELD", held).replace("WHERE", where)
    with Calls(program) as calls:
        calls.environment["LAST"] = last
        calls.crash()
        assert calls.rerun() == SAID
        assert sorted(calls.bodies) == ["speak ann hi", "speak bob hi"]


CAPTURED = """
class Agent:
    def __init__(self, persona):
        self.persona, self.history, self.client = persona, [], threading.Lock()
def make(persona):
    team = {"agents": [Agent("chair"), Agent(persona)]}
    @step
    def speak(question):
        agent = team["agents"][1]
        agent.history.append(question)
        return did("speak", agent.persona, question)
    return speak
@workflow
def debate():
    steps = {who: make(who) for who in ("ann", "bob")}
    with open(os.devnull):
        said = {}
        for who in ("ann", "bob") if FIRST else ("bob", "ann"):
            said[who] = steps[who]("hi")
            crash()
    return sorted(said.items())
print("result", repr(debate()))
"""


def test_a_captured_team():
    """What a captured variable holds is told apart at every depth, as an attribute is."""
    with Calls(CAPTURED) as calls:
        calls.crash()
        assert calls.rerun() == [("ann", "ann: hi"), ("bob", "bob: hi")]


ARGUMENTS = """
class Agent:
    def __init__(self, persona, client): self.persona, self.client = persona, client
@step
def ask(agents, question): return did("ask", agents[-1].persona, question)
@tool(side_effect=True)
def post(agents, question): return did("post", agents[-1].persona, question)
A, B = threading.Lock(), threading.Lock()
@workflow
def debate():
    agents = {"ann": Agent("ann", A), "bob": Agent(BOB, B)}
    said = {}
    with open(os.devnull):
        for who in ("ann", "bob") if FIRST else ("bob", "ann"):
            said[who] = CALL([agents[who]], "hi")
            crash()
    return sorted(said.items())
print("result", repr(debate()))
"""


def arguments(call, bob="bob", **replaced):
    program = ARGUMENTS.replace("CALL", call).replace("BOB", repr(bob))
    for old, new in replaced.items():
        program = program.replace(old, new)
    return program


OWN = [("ann", "ann: hi"), ("bob", "bob: hi")]
TWINS = [("ann", "ann: hi"), ("bob", "ann: hi")]
ONE_CLIENT = {"BOB, B": "BOB, A", "'ann', B": "'ann', A"}
AMONG_ARGUMENTS = {  # the program, its result, and how many bodies ran in both processes
    "by what stands beside a client": (arguments("ask"), OWN, 2),
    "two records of one attempt that may be twins answer nobody": (
        arguments("ask", bob="ann", **{"            crash()": "        crash()"}),
        *(TWINS, 4),
    ),
    "no twins: they hold one client": (arguments("post", bob="ann", **ONE_CLIENT), TWINS, 2),
}


@pytest.mark.parametrize("what", AMONG_ARGUMENTS)
def test_arguments_with_clients(what):
    """An argument in which something has no digest tells calls apart by what stands beside it."""
    program, result, count = AMONG_ARGUMENTS[what]
    with Calls(program) as calls:
        calls.crash()
        assert calls.rerun() == result
        assert len(calls.bodies) == count


@pytest.mark.parametrize("call", ["ask", "post"])
def test_twins_among_arguments(call):
    """Arguments equal but for their clients are twins: a plain step runs again, an effect asks."""
    with Calls(arguments(call, bob="ann")) as calls:
        calls.environment["STEPWISE_QUIET"] = ""
        calls.crash()
        if call == "post":
            assert "--another" in calls.rerun()
            assert len(calls.bodies) == 1
        else:
            assert calls.rerun() == TWINS
            assert len(calls.bodies) == 3
            assert "stepwise.identity(lock, fields=(...))" in "".join(calls.said)


RUNS = """
import sys
class Agent:
    def __init__(self, persona):
        self.persona, self.client, self.started = persona, threading.Lock(), time.time()
class Copy:
    def __init__(self, persona): self.persona, self.client = persona, threading.Lock()
class Team:
    def __init__(self, *agents): self.agents, self.session = list(agents), uuid.uuid4().hex
    @workflow
    def talk(self, question):
        said = [did("talk", each.persona, question) for each in self.agents]
        child([Copy(each.persona) for each in self.agents])
        crash()
        return said
@workflow
def child(agents): return ask(agents[-1])
@step
def ask(agent): return did("ask", agent.persona, "q")
print("result", repr(Team(Agent("chair"), Agent(os.environ["WHO"])).talk("q")))
"""


def test_a_run_of_a_team_belongs_to_its_agents():
    """Another persona in a nested agent is another run; equal teams resume, whatever the time."""
    with Calls(RUNS) as calls:
        calls.environment["WHO"] = "ann"
        calls.crash()
        calls.environment["WHO"] = "bob"
        assert calls.rerun() == ["chair: q", "bob: q"]
        calls.environment["WHO"] = "ann"
        assert calls.rerun() == ["chair: q", "ann: q"]
        assert calls.bodies.count("ask ann q") == 1
        assert calls.bodies.count("ask bob q") == 1


# -- random teams ----------------------------------------------------------------------------------


class Agent:
    def __init__(self, persona, inside):
        self.persona, self.history, self.inside = persona, [], inside


class Member:
    def __init__(self, inside):
        self.inside = inside

    def speak(self): ...


def trees():
    """Nested agents, as data: a persona, and what the agent holds."""
    persona = st.sampled_from(["ann", "bob", "eve"])
    leaf = st.tuples(persona, st.none())
    return st.recursive(
        leaf,
        lambda inner: st.tuples(
            persona, st.one_of(inner, st.lists(inner, max_size=3), st.tuples(inner, inner))
        ),
        max_leaves=12,
    )


def made(tree):
    """The agents that a tree describes."""
    if tree is None:
        return None
    if isinstance(tree, list):
        return [made(each) for each in tree]
    if isinstance(tree[0], str):
        return Agent(tree[0], made(tree[1]))
    return tuple(made(each) for each in tree)


ROOT = "self", attribute("inside")


def agents_in(value, path=ROOT):
    """Each agent below a value, with its path."""
    if isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from agents_in(each, (*path, item(number)))
    elif value is not None:
        yield path, value
        yield from agents_in(value.inside, (*path, attribute("inside")))


def look(tree, sights=None):
    member = Member(made(tree))
    holder = Holder("speak", Member.speak, Parameters(Member.speak, what="step"), member, Member)
    return member, holder, (sights or Sights(str)).look(holder, ())


@sweep
@given(one=trees(), other=trees())
def test_equal_trees_have_equal_parts_and_others_differ(one, other):
    """Two trees have the same parts exactly if they are equal."""
    assert look(one)[2].texts == look(one)[2].texts
    assert (look(one)[2].texts == look(other)[2].texts) == (one == other)


@sweep
@given(tree=trees(), seed=st.integers(0, 1000))
def test_a_change_touches_the_deepest_part_on_its_path(tree, seed):
    """A change at a path changes the deepest part that the path runs through, and no other one."""
    sights = Sights(str)
    member, holder, before = look(tree, sights)
    texts = dict(before.texts)
    path, agent = random.Random(seed).choice([*agents_in(member.inside)])
    agent.history.append("hi")
    after = sights.look(holder, ())
    part = deepest("".join((*path, attribute("history"), item(0))), before.values)
    assert part == deepest("".join((*path, attribute("history"))), after.values)
    assert [name for name, text in after.texts.items() if text != texts[name]] == [part]
