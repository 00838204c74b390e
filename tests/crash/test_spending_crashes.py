"""What a run has spent is the same wherever it is killed: each completed step once.

What a step in flight had spent at a kill is on no record; the run then shows "at least".
"""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from harness import Lab, python
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeping import WHOLE, needs_the_shim, shim, size, some

import stepwise
from stepwise import Budget, BudgetExceeded, spend, step, workflow
from stepwise.testing import crash_everywhere

# -- programs, and what they spend -----------------------------------------------------------------


@step(retries=3, backoff=0, retry_on=ConnectionError)
def paid(name, usd, tokens, failures):
    spend(usd=usd, tokens=tokens)
    if stepwise.current_step().attempt <= failures:
        raise ConnectionError
    return name


@step
def nested(name, usd, parts):
    spend(usd=usd)
    execute(parts)
    return name


@workflow
def child(name, parts):
    return execute(parts)


def execute(parts):
    done = []
    for part in parts:
        kind, name, usd, *more = part
        if kind == "step":
            done.append(paid(name, usd, *more))
        elif kind == "spend":
            spend(usd=usd)
        elif kind == "nested":
            done.append(nested(name, usd, more[0]))
        elif kind == "child":
            done.append(child(name, more[0]))
        elif kind == "map":
            done.append(stepwise.map(each, [[name, usd, n] for n in range(more[0])]))
    return done


@step
def each(item):
    spend(usd=item[1])
    return item


@workflow
def agent(parts):
    return execute(parts)


def model(parts):
    """What an undisturbed execution of these parts spends: dollars, tokens and steps."""
    usd = tokens = steps = 0
    for kind, _, cost, *more in parts:
        if kind == "step":
            each_tokens, failures = more
            usd += cost * (failures + 1)
            tokens += each_tokens * (failures + 1)
            steps += 1
        elif kind == "spend":
            usd += cost
        elif kind == "map":
            usd += cost * more[0]
            steps += more[0]
        else:
            its = model(more[0])
            usd += its[0] + (cost if kind == "nested" else 0)
            tokens += its[1]
            steps += its[2] + (kind == "nested")
    return usd, tokens, steps


names = st.integers(0, 3)
costs = st.integers(0, 5)
leaves = st.one_of(
    st.tuples(st.just("step"), names, costs, st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("spend"), names, st.integers(1, 5)),
    st.tuples(st.just("map"), names, costs, st.integers(0, 3)),
)
flat = st.lists(leaves, min_size=1, max_size=3).map(list)
inner = st.one_of(
    leaves,
    st.tuples(st.just("nested"), names, costs, flat),
    st.tuples(st.just("child"), names, st.just(0), flat),
)
programs = st.lists(
    st.one_of(inner, st.tuples(st.just("child"), names, st.just(0), st.lists(inner, max_size=3))),
    min_size=1,
    max_size=4,
).map(list)


def amounts(run):
    spent = run.spent
    return spent.usd, spent.tokens, spent.steps


def accounted(flow, *args):
    """Execute a run, and give what it has spent."""
    run = flow.execute(*args)
    if asyncio.iscoroutine(run):
        run = asyncio.run(run)
    return amounts(stepwise.get_run(run.id))


LIMIT = None if WHOLE else 3  # kills; nothing fails: what a failed attempt has spent counts, too

# -- tests -----------------------------------------------------------------------------------------


@settings(max_examples=size(2, 100))
@given(programs.filter(lambda parts: model(parts)[2]))  # with a step, at which to kill it
def test_random_programs_that_are_killed(parts):
    """Killed at some places and run again, a program has spent what the model says."""
    report = crash_everywhere(accounted, agent, parts, limit=3, vary=())
    assert report.result == model(parts)


@pytest.mark.parametrize(
    "options",
    [{}, {"checkpoint_every": 3}, {"retention": "latest_only"}, {"codec": "json"}],
    ids=str,
)
def test_killed_everywhere(options):
    """Killed at every place, the sum is the same with other checkpoints, and by replay."""
    parts = [
        ["step", 1, 2, 3, 1],
        ["nested", 2, 1, [["step", 3, 1, 1, 0], ["spend", 0, 4]]],
        ["child", 4, 0, [["step", 5, 3, 0, 0], ["spend", 0, 2]]],
        ["map", 6, 1, 2],
    ]
    report = crash_everywhere(accounted, agent.options(**options), parts, limit=LIMIT, vary=())
    assert report.result == model(parts)
    assert len(report.points) > (15 if WHOLE else 2)


@workflow(prune_journal=True, retention="latest_only", budget=Budget(usd=10_000))
def long(count):
    total = 0
    for n in range(count):
        total += len(each([n % 5, 2]))
    return total


def test_killed_while_the_journal_is_pruned():
    """A run whose records are pruned knows what they said, wherever it is killed."""
    report = crash_everywhere(accounted, long, 450, limit=2)
    assert report.result == (900, 0, 450)


def stops(parts, limit):
    """Run a program with a budget: what it had spent when it stopped, and how it is listed."""
    with pytest.raises(BudgetExceeded) as caught:
        agent.options(budget=Budget(usd=limit))(parts)
    (run,) = (each for each in stepwise.runs() if each.label == "agent")
    return (caught.value.spent.usd, caught.value.spent.steps), amounts(run), run.status


@pytest.mark.parametrize("limit", [2, 5])
def test_the_limit_is_the_same_after_a_kill(limit):
    """Killed anywhere, the run stops at the same step as an undisturbed one."""
    parts = [["step", n, 1, 0, 0] for n in range(3)]
    parts += [["child", 9, 0, [["step", n, 1, 0, 0] for n in range(3)]], *parts[:1]]
    report = crash_everywhere(stops, parts, limit, limit=LIMIT)
    assert report.result == ((limit, limit), (limit, 0, limit), "interrupted")


PROGRAM = """
import os, signal, sys
import stepwise
from stepwise import spend, step, workflow

@step
def paid(n):
    spend(usd=1)
    if os.environ.get("DIE") == str(n):
        os.kill(os.getpid(), signal.SIGKILL)
    return n

@workflow
def child():
    return paid(10) + paid(11)

@workflow
def agent():
    return paid(1) + paid(2) + child() + paid(3)

run = agent.options(run_id="job").execute()
print(run.spent.usd, run.spent.steps, run.spent.at_least)
"""


@pytest.mark.parametrize("dies", ["2", "11"])
def test_a_kill_in_a_step_is_shown_as_at_least(dies):
    """After a SIGKILL inside a step the amounts are "at least", before and after the resume."""
    with Lab(PROGRAM, DIE=dies) as lab:
        assert lab.run().died
        spent = json.loads(lab.run(command=["show", "job", "--json"]).text)["spent"]
        before = {"2": 1, "11": 3}[dies]  # the child in progress counts
        assert (spent["usd"], spent["steps"], spent["at_least"]) == (before, before, True)
        lab.environment["DIE"] = ""
        assert lab.run().text.split()[-3:] == ["5.0", "5", "True"]


@needs_the_shim
def test_killed_before_an_operation_on_the_store():
    """Killed before any write, flush or rename of the store, each step is counted once."""
    with Lab(PROGRAM, preload=shim()) as lab:
        lab.run()
        total = len(lab.operations[0])
    assert total > 30
    for number in some(range(1, total + 1), 6, "spending"):
        with Lab(PROGRAM, preload=shim()) as lab:
            killed = lab.run(die_at=f"operation {number}")
            done = lab.run().text if killed.died else killed.text
            assert done.split()[-3:-1] == ["5.0", "5"], (number, done)


# -- a side effect that a kill cut off, and that happened ------------------------------------------

LANDED = """
import os, signal
import stepwise
from stepwise import Budget, Landed, spend, step, tool, workflow

@step
def ask(number):
    spend(usd=3)

def look(call):
    return Landed("there")

@tool(side_effect=True, in_doubt=look if os.environ.get("ASKS") else "raise")
def pay(number):
    ask(number)
    print("paid", number, flush=True)
    if os.environ.get("DIE") == "9":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("DIE"):
        spend(usd=4)
        raise KeyboardInterrupt
    return number

@workflow(budget=Budget(steps=4))
def job():
    for number in range(4):
        pay(number)

job.options(run_id="one")()
"""


@pytest.mark.parametrize("asks", ["1", ""])
@pytest.mark.parametrize(("dies", "usd"), [("9", 6), ("2", 10)])
def test_a_call_that_landed_is_a_step(tmp_path, monkeypatch, asks, dies, usd):
    """A call that is settled as landed counts for the budget, with what is known to be spent."""
    path = tmp_path / "job.py"
    path.write_text(LANDED, encoding="utf-8")
    monkeypatch.setenv("ASKS", asks)

    def start(**env):
        return python(path, env={**os.environ, **env}).stdout.splitlines()

    assert start(DIE=dies) == ["paid 0"]
    if not asks:
        assert start() == []
        stepwise.get_run("one").resolve("pay", landed=None)
    assert start() == ["paid 1"]
    spent = stepwise.get_run("one").spent
    assert (spent.steps, spent.usd, spent.at_least) == (4, usd, True)
    assert stepwise.get_run("one").status == "interrupted"


def test_a_fork_did_not_spend_what_landed(tmp_path):
    """A landed call that a fork shares counts nothing there."""
    path = tmp_path / "job.py"
    path.write_text(LANDED, encoding="utf-8")
    python(path, env={**os.environ, "DIE": "9"})
    run = stepwise.get_run("one")
    run.resolve("pay", landed=None)
    assert run.spent.steps == 2
    assert run.fork(at=1, run_id="two").spent.steps == 0
