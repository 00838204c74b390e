"""Objects without a value of their own, wherever a call was given them: clients, locks, queues.

Each program is killed in each of its steps but the first, in a process of its own; see
``programs/survival.py``.
"""

from __future__ import annotations

import textwrap

import pytest
from survival import lab_of, line_of, survives

AGENTS = textwrap.dedent(
    """
    class Handle:  # nothing of an installed package, and nothing that pickles
        def __init__(self, url):
            self.url, self.raw = url, threading.local()
            self.raw.url = url

    class Agent:
        def __init__(self, name, persona, client=None):
            self.name, self.persona = name, persona
            self.client = client or Handle(f"http://{name}")
            self.lock, self.history = threading.Lock(), []

        def turn(self, question):
            with self.lock:
                self.history.append(work(f"{self.name} {question}"))

        def shown(self):
            return [self.name, self.persona, self.client.url, self.client.raw.url, self.history]
    """
)


def with_agents(program):
    """Put the classes of agents before a program."""
    return AGENTS + textwrap.dedent(program)


TEAMS = {
    "agents that are shuffled": """
        class Team:
            def __init__(self, agents):
                self.agents = agents

            @workflow
            def run(self):
                for number in range(2):
                    self.agents.reverse()
                    for agent in self.agents:
                        agent.turn(number)
                    log("turned")
                return [each.shown() for each in self.agents]

        ann, bob = Agent("ann", "kind"), Agent("bob", "rude")

        def run():
            shown = Team([ann, bob]).run()
            return [shown, ann.history, bob.history]
    """,
    "clients of the installed package": """
        import httpx

        class Speaker:
            def __init__(self, name):
                self.name, self.said, self.lock = name, [], threading.Lock()
                self.client = httpx.Client(base_url=f"http://{name}.example")
                made.append(self.client)

        def shown(agent):
            of_the_call = any(agent.client is each for each in made)
            return [agent.name, str(agent.client.base_url), agent.said, of_the_call]

        made = []

        class Team:
            def __init__(self):
                self.agents = [Speaker("ann"), Speaker("bob")]

            @workflow
            def run(self):
                self.agents.reverse()
                for agent in self.agents:
                    with agent.lock:
                        agent.said.append(work(agent.name))
                return [shown(each) for each in self.agents]

        run = Team().run
    """,
    "agents in a dictionary among the arguments": """
        class Role(enum.Enum):
            CRITIC = 1

        @workflow(ignore=("config",))
        def flow(config):
            critic = config[Role.CRITIC]["agent"]
            del config[Role.CRITIC]
            critic.turn(1)
            config["writer's"].turn(2)
            critic.turn(3)
            return [critic.shown(), config["writer's"].shown()]

        def run():
            critic = Agent("ann", "kind")
            shown = flow({Role.CRITIC: {"agent": critic}, "writer's": Agent("bob", "rude")})
            return [shown, critic.history]
    """,
    "captured variables and globals": """
        AGENTS = {"ann": Agent("ann", "kind"), "bob": Agent("bob", "rude")}

        def outer():
            client = Handle("http://captured")
            agents = [Agent("eve", "kind"), Agent("dan", "rude", client)]

            @workflow
            def flow():
                first, *others = agents
                used = client
                first.turn(1)
                others[0].turn(2)
                for agent in AGENTS.values():
                    agent.turn(1)
                    agent.turn(2)
                shown = [first.shown(), others[0].shown(), agent.shown()]
                return [*shown, used is others[0].client]

            return flow

        run = outer()
    """,
    "slots, frozen dataclasses and models": """
        import dataclasses
        import typing
        import pydantic

        class Slotted:
            __slots__ = ("client", "name", "said")
            def __init__(self, name):
                self.name, self.client, self.said = name, Handle(name), []

        @dataclasses.dataclass(frozen=True)
        class Frozen:
            name: str
            client: Handle
            said: list = dataclasses.field(default_factory=list)

        class Model(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
            name: str
            client: typing.Any
            said: list = []

        @workflow(ignore=("agents",))
        def flow(agents):
            agents.reverse()
            for agent in agents:
                agent.said.append(work(agent.name))
            return [[each.name, each.client.raw.url, each.said] for each in agents]

        def run():
            model = Model(name="c", client=Handle("c"))
            given = (Slotted("a"), Frozen("b", Handle("b")), model)
            return [flow(list(given)), [each.said for each in given]]
    """,
    "child runs": """
        class Worker(Agent):
            @workflow
            def job(self, count):
                for number in range(count):
                    self.turn(number)
                return self.shown()

        class Team:
            def __init__(self, agents):
                self.agents = agents

            @workflow
            def run(self):
                self.agents.reverse()
                return [each.job(2) for each in self.agents]

        run = Team([Worker("ann", "kind"), Worker("bob", "rude")]).run
    """,
    "an asynchronous team": """
        import httpx

        class Speaker:
            def __init__(self, name, client):
                self.name, self.client, self.said = name, client, []
                self.lock, self.inbox = asyncio.Lock(), asyncio.Queue()

        class Team:
            def __init__(self, agents):
                self.agents = agents

            @workflow
            async def run(self):
                for agent in reversed(self.agents):
                    async with agent.lock:
                        agent.inbox.put_nowait(await awork(agent.name))
                        await awork(f"{agent.name} again")
                    agent.said.append(await agent.inbox.get())
                ann, bob = self.agents
                return [ann.client is bob.client, ann.said, bob.said, ann.inbox.qsize()]

        client = httpx.AsyncClient(base_url="http://one.example", verify=False)
        team = Team([Speaker("ann", client), Speaker("bob", client)])

        def run():
            return asyncio.run(team.run())
    """,
    "one client, tools that hold an agent, what is made when it is first asked for": """
        import functools

        class Lazy(Agent):
            made = None

            def ask(self):
                self.made = self.made or Handle("made")
                return self.made.raw.url

        class Team:
            def __init__(self, agents):
                self.agents, agent = agents, agents[0]
                self.tools = [agent.turn, functools.partial(Agent.turn, agent)]
                self.asked = lambda: agent.shown()

            @workflow
            def run(self):
                ann, bob = self.agents
                told = [ann.ask()]
                for number, tool in enumerate(self.tools):
                    tool(number)
                bob.turn(2)
                ann.turn(3)
                shared = [ann.client is bob.client, self.agents[0] is ann]
                return [shared, told, ann.ask(), bob.shown(), self.asked()]

        shared = Handle("http://shared")
        run = Team([Lazy("ann", "kind", shared), Agent("bob", "rude", shared)]).run
    """,
}


@pytest.mark.parametrize("team", TEAMS)
def test_objects_of_the_call(team):
    """A client is the new call's, whose place in the old call it had, wherever it is held now."""
    said = survives(with_agents(TEAMS[team]), kills=1)
    assert not [text for text in said.values() if "no checkpoint" in text]


STATES = {
    "made by the workflow": ("", "", "make()"),
    "given": ("held = make()", "held", "held"),
}


@pytest.mark.parametrize("whose", STATES)
def test_locks_and_queues(whose):
    """Locks, events, semaphores and queues come back with their state, and are what was shared."""
    made, given, held = STATES[whose]
    survives(
        f"""
        import queue

        def make():
            return [
                threading.Lock(), threading.RLock(), threading.Event(), threading.Semaphore(3),
                threading.Condition(), queue.Queue(5), queue.PriorityQueue(),
            ]

        @workflow(ignore={(given,) if given else ()})
        def flow({given}):
            parts = {held}
            lock, again, event, semaphore, condition, queued, sorted_ = parts
            work(1)
            event.set()
            semaphore.acquire()
            for number in (3, 1, 2):
                queued.put([number])
                sorted_.put(number)
            work(2)
            queued.get()
            with lock, again, semaphore, condition:
                work(3)
            work(4)
            free = [lock.acquire(False), again.acquire(False), semaphore._value]
            lock.release()
            again.release()
            work(5)
            items = [queued.get(), sorted_.get(), queued.qsize(), queued.maxsize]
            return [free, items, event.is_set(), parts[0] is lock, queued.unfinished_tasks]

        {made}
        def run():
            return flow({given})
    """
    )


HELD = {
    "asyncio.Lock()": "async ",
    "asyncio.Semaphore(1)": "async ",
    "asyncio.Condition()": "async ",
    "threading.Lock()": "",
    "threading.Semaphore(1)": "",
    "threading.BoundedSemaphore(1)": "",
    "threading.Condition()": "",
}


@pytest.mark.parametrize("made", HELD)
def test_a_given_lock_that_was_held_is_entered_again(made):
    """A lock of the call, or of its ``self``, that a killed block held is free for the next one."""
    word = HELD[made]
    survives(
        f"""
        import asyncio

        class Agent:
            def __init__(self):
                self.lock, self.done = {made}, []

            @workflow
            {word}def run(self, other):
                for number in range(2):
                    {word}with self.lock:
                        self.done.append(work(number))
                    {word}with other:
                        self.done.append(work(number + 10))
                return self.done

        def run():
            called = Agent().run({made})
            return asyncio.run(called) if {word!r} else called
        """
    )


def test_an_object_within_what_was_given_is_the_one_that_the_caller_has():
    """What a resumed run changes deep in its arguments is seen by whoever else holds that."""
    survives(
        """
        class Memory:
            def __init__(self):
                self.facts = []

        class Member:
            def __init__(self, memory):
                self.memory, self.turns = memory, 0

            @step
            def speak(self, topic):
                self.turns += 1
                self.memory.facts.append(work(topic))

        @workflow
        def team(members, topics):
            for topic in topics:
                members[0].speak(topic)
                members.reverse()
            return [each.turns for each in members]

        def run():
            memory = Memory()
            ann, bob = Member(memory), Member(memory)
            turns = team([ann, bob], ["tides", "winds", "currents"])
            return [turns, ann.turns, bob.turns, memory.facts, ann.memory is memory]
        """
    )


def test_a_lock_that_is_held():
    """While a lock is held, not by a block that is entered again, there is no checkpoint."""
    program = """
        @workflow
        def run():
            lock = threading.Lock()
            work(1)
            lock.acquire()
            work(2)
            work(3)
            lock.release()
            work(4)
            return work(5)
    """
    said = survives(program, back=["work(2)", "work(3)"], kills=0)
    assert (
        "the variable 'lock' is a _thread.lock, which cannot be recorded (it is held)"
        in (said["work(3)"])
    )
    assert f"resumes at {line_of(program, 'work(4)')}" in said["work(4)"]


def test_what_the_workflow_made_is_reported_once():
    """Clients that the workflow made itself are named by their paths, all in one warning."""
    program = """

        class Team:
            def __init__(self, agents):
                self.agents = agents

            @workflow
            def run(self):
                for agent in self.agents:
                    agent.client = Handle("new")
                for agent in self.agents:
                    agent.turn(1)
                    agent.turn(2)
                return [each.shown() for each in self.agents]

        run = Team([Agent("ann", "kind"), Agent("bob", "rude")]).run
    """
    with lab_of(with_agents(program)) as lab:
        text = lab.run().text
    assert text.count("no checkpoint of run") == 1
    assert "'self.agents[0].client.raw' is a _thread._local" in text
    assert "self.agents[1].client.raw" in text


def test_a_generator_is_no_client():
    """An object that has come some way is not taken from the new call, which begins it again."""
    program = """
        class Team:
            def __init__(self):
                self.sources = [iter(range(9)), (each for each in "abcdef")]

            @workflow
            def run(self):
                first = next(self.sources[1])
                work(1)
                second = next(self.sources[1])
                work(2)
                return [first, second, next(self.sources[1])]

        run = Team().run
    """
    said = survives(program, exactly=False)
    with lab_of(program) as lab:
        text = lab.run().text
    assert "'self.sources[1]' is a generator, which cannot be recorded (how far it has come" in text
    assert all("replays from the top" in each for each in said.values())


def test_a_call_that_is_given_another_object():
    """Where the new call has an object of another class, the path is named, and the run replays."""
    program = """
        import os
        import socket

        class Team:
            def __init__(self, agents):
                self.agents = agents

            @workflow(ignore=("self.agents",))
            def run(self):
                for agent in self.agents:
                    agent.turn(1)
                return [each.history for each in self.agents]

        team = Team([Agent("ann", "kind"), Agent("bob", "rude")])
        if os.environ.get("OTHER"):
            team.agents[1].client.raw = socket.socket()
        run = team.run
    """
    with lab_of(with_agents(program)) as lab:
        assert lab.run(die_at="work(bob 1) before").died
        lab.environment["OTHER"] = "1"
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "the call was given no _thread._local at self.agents[1].client.raw now" in ended.text
        assert "replays from the top" in ended.text
        assert lab.result == [["ann 1"], ["bob 1"]]
