"""A step that was edited between a kill and the next start, or before a completed run is called.

Which edits count is shown by ``tests/identity/test_versions.py``.
"""

from __future__ import annotations

import re
import textwrap

import pytest
from restarted import Program

import stepwise
from stepwise import ConfigurationError, step, tool, workflow
from stepwise.testing import fresh_store

TOOLS = """
RATE = 1

@step
def price(x):
    did(f"price {x}")
    return x + RATE

@tool(side_effect=True)
def pay(cents):
    did(f"paid {cents}")
    return cents

"""
PLAIN = """
@workflow
def w():
    first = price(1)
    paid = pay(7)
    crash("here")
    return [first, paid, price(10)]

print(w())
"""


RATE = ("RATE = 1\n", "RATE = 2\n")


@pytest.fixture
def program(tmp_path):
    """Return a program that was killed after its first two steps."""

    def made(text=PLAIN, policy="keep"):
        head = f"{TOOLS}stepwise.configure(on_changed={policy!r})\n"
        program = Program(tmp_path, head + textwrap.dedent(text))
        program.run(die="here")
        program.done()
        return program

    return made


def run_of():
    return min(stepwise.runs(), key=lambda run: len(run.id))  # not a child run


TOLD = (
    r"step price \(p.py:\d+\) has changed since its result was recorded \(RATE\): "
    r'1 recorded result is used; on_changed="rerun" runs it again'
)


def test_a_result_of_another_version_is_told(program):
    """A killed run that goes on with a result of the old step says so, with what changed."""
    killed = program()
    killed.edit(RATE)
    said = killed.run()
    assert re.search(TOLD, said), said
    assert "[2, 7, 12]" in said
    assert killed.done() == ["price 10"]
    first, paid, second = run_of().steps
    assert (first.edited, paid.edited, second.edited) == (("RATE",), (), ())
    assert first.version != second.version != ""
    assert first.to_dict()["edited"] == ("RATE",)
    assert "price has changed (RATE)" in str(run_of().why())


def test_a_completed_run_that_answers_tells_it(program):
    """A completed run answers as a whole, and says which results are of another version."""
    killed = program()
    killed.run()
    killed.edit(RATE)
    said = killed.run()
    assert "has changed since its result was recorded (RATE): 2 recorded results are used" in said
    assert "already completed" in said


def test_what_was_not_edited_is_silent(program):
    """A comment, a docstring or a step that the run has not called is told nowhere."""
    killed = program()
    killed.edit(("    return x + RATE", '    "Doc."  # comment\n    return x + RATE'))
    killed.edit(("RATE = 1\n", "RATE = 1\n@step\ndef other(x):\n    return 1\n"))
    assert "has changed since" not in killed.run()


def test_rerun_makes_plain_steps_again(program):
    """With ``rerun`` the run goes back to before the step; what was paid is not paid again."""
    killed = program(policy="rerun")
    killed.edit(RATE)
    said = killed.run()
    assert "1 recorded result is not used, it runs again" in said
    assert "[3, 7, 12]" in said
    assert killed.done() == ["price 1", "price 10"]
    assert "has changed since" not in killed.run()
    assert killed.done() == []


def test_rerun_of_a_completed_run(program):
    """A completed run whose step was edited is computed again, with the new step."""
    killed = program(policy="rerun")
    killed.run()
    killed.done()
    killed.edit(RATE)
    assert "[3, 7, 12]" in killed.run()
    assert killed.done() == ["price 1", "price 10"]


def test_a_side_effect_never_runs_again_by_itself(program):
    """An edited side effect keeps its result, whatever ``configure`` says, and the run says so."""
    killed = program(policy="rerun")
    killed.edit(("    return cents", "    return cents + 1"))
    said = killed.run()
    assert "tool pay" in said
    assert "(body): 1 recorded result is used\n" in said
    assert "[2, 7, 11]" in said
    assert killed.done() == ["price 10"]


@pytest.mark.parametrize(("answer", "result"), [("same", "[2, 7, 12]"), ("another", "[3, 7, 12]")])
def test_ask_stops_until_a_person_answers(program, answer, result):
    """With ``ask`` nothing is done before a person says what becomes of the recorded results."""
    killed = program(policy="ask")
    killed.edit(RATE)
    for _ in range(2):
        said = killed.run(code=1)
        assert "CodeChangedError" in said
        assert f"stepwise resolve {run_of().id} price --{answer}" in said
        assert killed.done() == []
    run_of().resolve("price", **{answer: True})
    assert result in killed.run()
    assert "already completed" in killed.run()
    killed.edit(("RATE = 2\n", "RATE = 3\n"))  # another edit asks anew
    assert "CodeChangedError" in killed.run(code=1)


CHILDREN = """
@workflow
def child(x):
    return price(x)

@workflow
def w():
    results = [child(1), child(2)]
    pay(7)
    crash("here")
    return results

print(w())
"""


def test_results_of_completed_child_runs(program):
    """A parent tells the steps of its completed child runs, and ``rerun`` makes them again."""
    killed = program(CHILDREN)
    killed.edit(RATE)
    said = killed.run()
    assert "(RATE): the results in 2 completed child runs are used" in said
    assert "[2, 3]" in said
    killed.edit(("on_changed='keep'", "on_changed='rerun'"))
    assert "[3, 4]" in killed.run()
    assert killed.done() == ["price 1", "price 2"]


SIDE_BY_SIDE = """
@workflow
async def w():
    async def one(x):
        return await asyncio.to_thread(price, x)
    results = await asyncio.gather(*map(one, range(3)))
    results += stepwise.map(price, [4, 5])
    crash("here")
    return results

print(asyncio.run(w()))
"""


def test_steps_side_by_side_are_told_once(program):
    """Calls in tasks and threads are told in one line, and each runs again if that is asked."""
    killed = program(SIDE_BY_SIDE.replace("results += stepwise.map(price, [4, 5])\n", "\n"))
    killed.edit(RATE)
    said = killed.run()
    assert said.count("has changed since") == 1
    assert "3 recorded results are used" in said
    killed.edit(("on_changed='keep'", "on_changed='rerun'"))
    assert "[2, 3, 4]" in killed.run()
    assert sorted(killed.done()) == ["price 0", "price 1", "price 2"]


INSIDE = """
@workflow
def w():
    @step
    def made(x):
        did(f"made {x}")
        return x + RATE
    results = [made(1), made(2)]
    crash("here")
    return results

print(w())
"""


@pytest.mark.parametrize(("policy", "result"), [("keep", "[2, 3]"), ("rerun", "[3, 4]")])
def test_a_step_that_the_workflow_makes(program, policy, result):
    """A step that exists only while its run is executed is compared when a record answers it."""
    killed = program(INSIDE, policy)
    killed.edit(RATE)
    killed.edit(('    crash("here")\n', '    crash("there")\n'))
    killed.edit(("results = [", "results  = [0] and ["))  # above the position: it replays
    said = killed.run()
    assert result in said
    assert said.count("has changed since") == (policy == "keep")


NESTED = """
@step
def outer(x):
    pay(x)
    return price(x) * RATE

@workflow
def w():
    result = outer(1)
    crash("here")
    return result

print(w())
"""


def test_a_side_effect_inside_a_step_that_runs_again(program):
    """A step that runs again meets the recorded side effects inside it."""
    killed = program(NESTED, "rerun")
    killed.edit(("price(x) * RATE", "price(x) * 100"))
    assert "200" in killed.run()
    assert killed.done() == []


@pytest.mark.parametrize("policy", ["rerun", "ask"])
def test_an_edited_step_inside_a_step(program, policy):
    """A step runs again with the step around it, whose result was made of the old one."""
    killed = program(NESTED, policy)
    killed.edit(("return x + RATE", "return x + RATE * 100"))
    if policy == "ask":
        killed.run(code=1)
        run_of().resolve("price", another=True)
    assert "101" in killed.run()
    assert killed.done() == ["price 1"]


@pytest.mark.parametrize("policy", ["rerun", "ask"])
def test_an_edited_step_inside_a_side_effect(program, policy):
    """A side effect keeps its result, so an edited step inside it is not made again; it is said."""
    text = NESTED.replace("@step\ndef outer", "@tool(side_effect=True)\ndef outer")
    killed = program(text, policy)
    killed.edit(("return x + RATE", "return x + RATE * 100"))
    if policy == "ask":
        assert "--another" not in killed.run(code=1)
        with pytest.raises(stepwise.StepNotFoundError):
            run_of().resolve("price", another=True)
        run_of().resolve("price", same=True)
    said = killed.run()
    assert "1 recorded result is used" in said
    assert said.endswith("2\n")
    assert killed.done() == []


PRUNED = """
@workflow(prune_journal=True)
def w():
    results = [price(1), price(2)]
    for number in range(1100):
        other(number)
    crash("here")
    return results

@step
def other(number):
    return number

print(w())
"""


@pytest.mark.parametrize("policy", ["keep", "rerun", "ask"])
def test_a_pruned_journal_keeps_its_results(program, policy):
    """A run whose journal was pruned cannot be replayed: it keeps old results, and says so."""
    killed = program(PRUNED, policy)
    killed.edit(RATE)
    if policy == "ask":
        assert "--another" not in killed.run(code=1)
        run_of().resolve("price", same=True)
    said = killed.run()
    assert "has changed since its result was recorded (RATE): pruned results are used" in said
    assert said.endswith("[2, 3]\n")
    assert killed.done() == []


GRAPH = """
from stepwise.graph import CheckpointManager, Edge, Graph, GraphExecutor, Node

def first(memory):
    did("first")
    return {"x": 1 + RATE}

def second(memory):
    crash("here")
    return {"y": memory["x"]}

graph = Graph([Node("first", first), Node("second", second)], [Edge("first", "second")])
executor = GraphExecutor(checkpoint_manager=CheckpointManager("disk:graph"))
print(asyncio.run(executor.execute(graph, "goal", {}, {"run_id": "r"})).output)
"""


@pytest.mark.parametrize(("policy", "x"), [("keep", 2), ("rerun", 3)])
def test_nodes_of_a_graph(program, policy, x):
    """A node whose function was edited is told like a step, and runs again if that is asked."""
    killed = program(GRAPH, policy)
    killed.edit(RATE)
    said = killed.run()
    assert f"'y': {x}" in said, said
    assert "step first has changed since its result was recorded (RATE)" in said
    assert killed.done() == ["first"] * (policy == "rerun")


def test_a_fork_knows_the_versions_of_its_source(program):
    """A fork has the records of its source, and tells its edited steps as well."""
    killed = program()
    fork = run_of().fork(1)
    killed.edit(RATE)
    said = killed.run(STEPWISE_RESUME=fork.id)
    assert re.search(TOLD, said), said


@pytest.mark.parametrize("policy", ["again", 1, ""])
def test_wrong_policies_are_refused(policy):
    """A wrong value is refused with the values that are possible."""
    with pytest.raises(ConfigurationError, match="'keep', 'rerun' or 'ask'"):
        stepwise.configure(on_changed=policy)
    with pytest.raises(ConfigurationError, match="'keep', 'rerun' or 'ask'"):
        step(on_changed=policy)(len)


def test_rerun_of_a_side_effect_is_refused():
    """A tool with side effects cannot ask to be repeated when it is edited."""
    with pytest.raises(ConfigurationError, match="never runs again by itself"):
        tool(side_effect=True, on_changed="rerun")(lambda: None)


def test_a_version_is_recorded_once_for_each_step():
    """A record refers to its version by 8 characters; the parts are written once."""
    with fresh_store() as store:

        @step
        def ask(x):
            return x

        @workflow
        def agent():
            return [ask(n) for n in range(50)]

        run = agent.execute()
        (name,) = store.names(run.id, "code/")
        assert all(name.startswith(f"code/{each.version}/") for each in run.steps)
