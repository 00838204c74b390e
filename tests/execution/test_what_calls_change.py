"""What steps do to their instances and to what these hold, when the steps are answered."""

import re

import pytest
from calls import Calls, stopped

BLOCKS = pytest.mark.parametrize(
    "block", ["with open(os.devnull):", "if True:"], ids=["replay", "inside"]
)
RUN = 'print("result", repr(run()))'


def resumed(text, **environment):
    """What a program gives that crashed and is started again, its bodies, and what it told."""
    with Calls(text, **environment) as program:
        told = program.crash()
        return program.rerun(), program.bodies, told


TEAM = """
class Worker:
    def __init__(self, number): self.number, self.history = number, []
    @step
    async def ask(self, question):
        self.history.append(question)
        await asyncio.sleep(0)
        self.history.append("answer")
        return did("ask", self.number, question)
class Lead:
    def __init__(self, workers): self.workers = workers
    @step
    async def sum_up(self, question): return did("sum", "-", question)
    @tool(side_effect=True)
    async def publish(self, text): return did("publish", "-", text)
@workflow
async def run():
    workers = [Worker(n) for n in range(3)]
    lead = Lead(workers)
    BLOCK
        found = await asked(workers)
        found.append(await lead.sum_up("all"))
        found.append(await lead.publish("it"))
        crash()
        found.append(await lead.publish("more"))
    return found, [each.history for each in workers]
print("result", repr(asyncio.run(run())))
"""
ONE_BY_ONE = "async def asked(them): return [await each.ask('x') for each in them]\n"
AT_ONCE = "async def asked(them): return list(await asyncio.gather(*(w.ask('x') for w in them)))\n"


@BLOCKS
@pytest.mark.parametrize("asked", [ONE_BY_ONE, AT_ONCE], ids=["one by one", "at once"])
def test_who_holds_instances_that_grow_is_not_another(block, asked):
    """An object that holds others, which their own steps change, is answered all the same."""
    (found, histories), bodies, told = resumed(asked + TEAM.replace("BLOCK", block))
    assert found == ["0: x", "1: x", "2: x", "-: all", "-: it", "-: more"]
    assert len(bodies) == 6
    assert histories == [["x", "answer"]] * 3 or "ArgumentMutatedWarning" in told


BOARD = (
    """
class Agent:
    def __init__(self, name, board): self.name, self.board = name, board
    @step
    def write(self, text):
        if text == "last": crash()
        self.board.append(self.name + text)
        return did("write", self.name, text)
@workflow
def run():
    board = []
    a, b = Agent("a", board), Agent("b", board)
    BLOCK
        a.write("1")
        b.write("2")
        out = [a.write("3"), b.write("4"), a.write("last")]
    return board, a.board is board, b.board is board, out
"""
    + RUN
)


USAGE = (
    """
class Usage:
    def __init__(self): self.tokens, self.calls = 0, {}
class Agent:
    def __init__(self, usage): self.usage, self.client = usage, threading.local()
    @step
    def ask(self, question):
        self.usage.tokens += 100
        self.usage.calls[question] = self.usage.calls.get(question, 0) + 1
        return did("ask", "-", question)
usage = Usage()
@workflow
def run():
    agent = Agent(usage)
    BLOCK
        for n in range(4):
            agent.ask("abab"[n])
            if n == 2: crash()
    return usage.tokens, usage.calls, agent.usage is usage
"""
    + RUN
)


NESTED = (
    """
class Agent:
    def __init__(self): self.history, self.count = [], 0
    @step
    def think(self, question):
        self.count += 1
        return did("think", "-", question)
    @step
    def ask(self, question):
        self.history.append(question)
        answer = self.think(question)
        if question == "b": crash()
        self.history.append(answer)
        return answer
@workflow
def run():
    agent = Agent()
    BLOCK
        out = [agent.ask("a"), agent.ask("b"), agent.ask("c")]
    return out, agent.history, agent.count
"""
    + RUN
)


FAILING = (
    """
class Agent:
    def __init__(self): self.tries, self.history = 0, []
    @step
    def ask(self, question):
        self.tries += 1
        self.history.append(question)
        did("ask", "-", question)
        raise ValueError(question)
@workflow
def run():
    agent = Agent()
    BLOCK
        for n in range(3):
            try:
                agent.ask("x")
            except ValueError:
                pass
        handled()
        crash()
    return agent.tries, agent.history
@step
def handled(): return 1
"""
    + RUN
)


FIRST_SIGHT = (
    """
class Agent:
    def __init__(self, level): self.level, self.first = level, ledger(level)
    @step
    def up(self):
        self.level = 7
        return did("up", NAMES[id(self)], "-")
    @step
    def ask(self, question): return did("ask", NAMES[id(self)], question)
def ledger(level): return None
NAMES = {}
@workflow
def run():
    out = {}
    with open(os.devnull):
        a, b = Agent(1), Agent(2)
        NAMES.update({id(a): "a", id(b): "b"})
        a.up(), b.up()
        for name in "ab" if FIRST else "ba":
            out[name] = {"a": a, "b": b}[name].ask("x")
            crash()
    return sorted(out.items())
"""
    + RUN
)


def test_a_scalar_tells_apart_by_what_it_was_at_first():
    """A number that a step body changes still tells instances apart by what they began with."""
    given, bodies, _ = resumed(FIRST_SIGHT)
    assert given == [("a", "a: x"), ("b", "b: x")]
    assert bodies == ["up a -", "up b -", "ask a x", "ask b x"]


MANY = (
    """
class Agent:
    def __init__(self, who): self.who = who
    @KIND
    def ask(self, question): return did("ask", self.who, question)
@workflow
def run():
    out = []
    BLOCK
        for n in range(12):
            out.append(Agent("ab"[n % 2]).ask("x"))
            if n == int(os.environ["DIES"]): crash()
    return out
"""
    + RUN
)


@BLOCKS
@pytest.mark.parametrize("kind", ["step", "tool(side_effect=True)"])
@pytest.mark.parametrize("dies", [0, 5, 6])
def test_objects_made_for_one_call_are_told_apart(block, kind, dies):
    """Objects that live for one call, one in another's memory, get their own answers in turn."""
    with Calls(MANY.replace("BLOCK", block).replace("KIND", kind), DIES=str(dies)) as program:
        program.crash()
        ended = program.rerun()
        while stopped(ended):
            assert "was started and never finished" not in ended
            program.resolve(ended, "--another")
            ended = program.rerun()
        assert ended == ["a: x", "b: x"] * 6
        assert len(program.bodies) == 12


REBOUND = (
    """
class Agent:
    def __init__(self): self.messages = [{"role": "system"}]
    @step
    def ask(self, question):
        self.messages = [*self.messages, {"role": "user", "content": question}]
        answer = did("ask", len(self.messages), question)
        self.messages = self.messages + [{"role": "assistant", "content": answer}]
        return answer
@workflow
def run():
    agent = Agent()
    BLOCK
        out = []
        for n in range(5):
            out.append(agent.ask("same"))
            if n == 3: crash()
    return out, len(agent.messages)
"""
    + RUN
)


OUTSIDE = (
    """
class Agent:
    def __init__(self): self.messages = []
    @step
    def complete(self): return did("complete", len(self.messages), self.messages[-1])
@workflow
def run():
    agent = Agent()
    BLOCK
        for n in range(5):
            agent.messages.append(f"q{n}")
            agent.messages.append(agent.complete())
            if n == 3: crash()
    return agent.messages
"""
    + RUN
)


PUT_BACK = {  # what each gives, and how many bodies were executed
    "a list that two instances share stays one": (
        BOARD,
        (["a1", "b2", "a3", "b4", "alast"], True, True, ["a: 3", "b: 4", "a: last"]),
        5,
    ),
    "what an instance counts in another object": (USAGE, (400, {"a": 2, "b": 2}, True), 4),
    "what a step and a step that it called changed, once": (
        NESTED,
        (["-: a", "-: b", "-: c"], ["a", "-: a", "b", "-: b", "c", "-: c"], 3),
        3,
    ),
    "what a step had changed that failed": (FAILING, (3, ["x", "x", "x"]), 3),
    "a conversation that is rebound at each turn": (
        REBOUND,
        ([f"{n}: same" for n in (2, 4, 6, 8, 10)], 11),
        5,
    ),
    "a conversation that the workflow writes": (
        OUTSIDE,
        [each for n in range(5) for each in (f"q{n}", f"{2 * n + 1}: q{n}")],
        5,
    ),
}


@BLOCKS
@pytest.mark.parametrize("what", PUT_BACK)
def test_what_steps_did_to_their_instances_is_put_back(what, block):
    """Answered, a step changes its instance and what that holds as its body did, once."""
    program, expected, count = PUT_BACK[what]
    given, bodies, _ = resumed(program.replace("BLOCK", block))
    assert (given, len(bodies)) == (expected, count)


EDITED = (
    """
class Agent:
    def __init__(self): self.messages = ["PROMPT"]
    @step
    def complete(self): return did("complete", self.messages[0], len(self.messages))
@workflow
def run():
    with open(os.devnull):
        agent = Agent()
        found = agent.complete()
        crash()
    return found
"""
    + RUN
)


def test_an_edited_prompt_in_an_instance_is_a_new_call():
    """A plain step of an agent whose prompt was edited runs again."""
    with Calls(EDITED) as program:
        program.crash()
        program.edit(("PROMPT", "another"))
        assert program.rerun() == "another: 1"


SHARED = """
class Agents:
    def __init__(self): self.gate, self.done = asyncio.Semaphore(2), asyncio.Event()
    @step
    async def ask(self, n):
        async with self.gate:
            await asyncio.sleep(0.01)
            if n == 4: self.done.set()
            return did("ask", n, "why")
@workflow
async def run():
    agents = Agents()
    with open(os.devnull):
        found = await asyncio.gather(*[agents.ask(n) for n in range(5)])
        crash()
    return found, (await agents.ask(5))
print("result", repr(asyncio.run(run())))
"""


def test_what_tasks_wait_with_is_no_state():
    """Steps side by side that share a semaphore and an event are not warned about, and answered."""
    with Calls(SHARED) as program:
        assert "ArgumentMutatedWarning" not in program.crash()
        program.rerun()
        assert len(program.bodies) == 6


MAPPED = """
import os, stepwise, threading
from stepwise import step, workflow
together = threading.Barrier(4)
class Agent:
    asked = 0
    @step
    def ask(self, question):
        together.wait()
        self.asked += 1
@workflow
def run():
    list(stepwise.map(Agent().ask, "abcd"))
    crash()
run()
"""


def test_a_warning_in_a_thread_of_ours_names_the_line_that_began_it():
    """In a thread with nothing but our code in it, a warning names its caller's line, once."""
    with Calls(MAPPED) as program:
        told = program.crash()
        assert told.count("ArgumentMutatedWarning") == 1
        warning, line = told.partition("ArgumentMutatedWarning: ")[::2]
        assert re.search(r"script\.py:\d+: $", warning)
        assert line.startswith("'Agent.ask' changed self.asked,")
        assert '\n  list(stepwise.map(Agent().ask, "abcd"))\n' in line
