"""Branches: one moment of a run, continued many times, sharing what came before."""

import asyncio
import contextlib
import functools
import json
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from harness import python

import stepwise
import stepwise._workflows.handles  # pytest reads its source: in 3.11, not beside other threads
from stepwise import Budget, EffectRefusedError, cli, step, tool, workflow
from stepwise._journal.journal import branches_of
from stepwise._runs import branching

calls = []


@pytest.fixture(autouse=True)
def nothing_called():
    calls.clear()


@pytest.fixture
def in_memory():
    """Let the test change what a store holds."""
    stepwise.configure(store="memory:branches")
    yield
    stepwise.configure(store=None)


@step
def think(topic):
    calls.append(("think", topic))
    stepwise.spend(usd=0.01)
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    calls.append(("send", text))
    return f"sent {text}"


@workflow(retention="all")
def agent(topic, model="a"):
    found = think(topic)
    for number in range(3):
        found = think(f"{model} {number} {found}")
    first = send(found)
    return [first, think(f"after {first}")]


def answer(call):
    """Say what a side effect would return."""
    return f"said {call.arguments['text']}"


def sent():
    """The side effects that were made."""
    return [text for name, text in calls if name == "send"]


# -- sharing -------------------------------------------------------------------------------------


def test_what_came_before_is_shared():
    """A branch has the steps before it, makes none again, and holds none of their records."""
    run = agent.execute("tides")
    calls.clear()
    [branch] = run.branch(at=2, effects=answer)
    assert [each.number for each in branch.run.steps] == [1, 2, 3, 4, 5, 6]
    assert [each.preview for each in branch.run.steps[:2]] == [e.preview for e in run.steps[:2]]
    assert calls[0] == ("think", "a 1 about a 0 about tides")
    own = [number for number, _ in run.store.read(branch.run.id)]
    assert min(own) > 2
    assert branch.run.verify().ok
    assert branch.run.spent.usd == pytest.approx(0.03)  # what it shares is paid for
    assert branch.run.forked_from == run.id


def test_a_branch_of_a_branch():
    """A branch can be branched, before and behind the point at which it began."""
    run = agent.execute("tides")
    [one] = run.branch(at=2, variations=[{"model": "b"}], effects=answer)
    for at in (1, 3):
        [two] = one.run.branch(at=at, variations=[{"model": "c"}], effects=answer)
        assert two.run.verify().ok
        assert [each.number for each in two.run.steps] == [1, 2, 3, 4, 5, 6]
        models = [each.arguments[7:8] for each in two.run.steps[1:4]]
        assert models == (["c", "c", "c"] if at == 1 else ["a", "b", "c"])


def test_a_branch_where_another_begins():
    """A variable that both a branch and the branch of it set has the later value."""
    run = agent.execute("tides")
    [one] = run.branch(at=2, variations=[{"model": "b"}], effects=answer)
    [two] = one.run.branch(at=2, variations=[{"model": "c"}], effects=answer)
    assert two.result[0] == "said about c 2 about c 1 about a 0 about tides"
    assert two.run.locals(at=2)["model"] == "c"


def test_a_branch_that_another_process_makes_meanwhile(monkeypatch):
    """A branch that was made and executed between the look for it and the writing stays."""
    run = agent.execute("tides")
    made, rows, share = [], [], branching.share

    def after_another(*what):
        monkeypatch.undo()
        made.extend(run.branch(at=2, effects=answer))
        calls.clear()
        rows.extend(run.store.read(made[0].run.id))
        share(*what)

    monkeypatch.setattr(branching, "share", after_another)
    [branch] = run.branch(at=2, effects=answer)
    assert (branch.run, branch.result) == (made[0].run, made[0].result)
    assert (calls, [*run.store.read(branch.run.id)]) == ([], rows)
    assert [each.number for each in branch.run.steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("in_memory")
def test_a_tampered_base_is_noticed_through_the_branch():
    """A changed record of the base does not verify in the branch, nor does one put in its place."""
    run = agent.execute("tides")
    [branch] = run.branch(at=2, effects=answer)
    rows = run.store._runs[run.id].records
    kept = dict(rows)
    for number in (1, 2):
        rows[number] = kept[number][:-1] + bytes([kept[number][-1] ^ 1])
        assert number in branch.run.verify().lost
        rows[number] = kept[number]
    assert branch.run.verify().ok
    del rows[2]
    assert not branch.run.verify().ok


@pytest.mark.usefixtures("in_memory")
def test_a_base_that_began_again_is_another():
    """The first record of a branch covers the last one that it shares, of that history alone."""
    run = agent.execute("tides")
    [branch] = run.branch(at=2, effects=answer)
    del run.store._runs[run.id]
    agent.options(run_id=run.id)("tides")
    assert not branch.run.verify().ok


def test_forget_names_the_branches():
    """A run whose records branches share is not deleted until they are."""
    run = agent.execute("tides")
    branches = run.branch(at=2, variations=2)
    with pytest.raises(stepwise.ConfigurationError, match=branches[1].run.id):
        run.delete()
    assert run.steps
    for each in branches:
        each.run.delete()
    run.delete()
    assert stepwise.runs() == []


def test_prune_leaves_a_shared_run(monkeypatch):
    """``stepwise prune`` reports a run that branches share, and deletes it after them."""
    from stepwise._runs.maintenance import delete_each, old_runs

    run = agent.execute("tides")
    [branch] = run.branch(at=2, effects=answer)
    done = {each.run.id: problem for each, problem in delete_each(old_runs(1e12, 0))}
    assert branch.run.id in str(done[run.id]) or done[run.id] is None
    assert done[branch.run.id] is None
    with contextlib.suppress(stepwise.StepwiseError):
        run.delete()


def test_a_shared_journal_is_not_pruned():
    """A base that goes on deletes no record that a branch shares."""

    @workflow(retention="latest_only", prune_journal=True)
    def long(topic):
        for number in range(400):
            think(number)
            if number == 50 and stop:
                raise RuntimeError("stopped")
        return topic

    stop = [1]
    with pytest.raises(RuntimeError):
        long.options(run_id="long")("tides")
    run = stepwise.get_run("long")
    [branch] = run.branch(effects=answer)
    stop.clear()
    long.options(run_id="long")("tides")
    assert next(iter(run.store.read(run.id)))[0] == 1
    assert branch.run.verify().ok


def test_a_copy_takes_the_base_along(tmp_path):
    """A branch that is copied into another store is whole there."""
    stepwise.configure(store=f"disk:{tmp_path / 'one'}")
    run = agent.execute("tides")
    [branch] = run.branch(at=2, effects=answer)
    copy = branch.run.copy_to(f"disk:{tmp_path / 'two'}")
    assert copy.verify().ok
    assert copy.steps == branch.run.steps
    assert copy.result == branch.result
    assert {each.id for each in stepwise.runs(store=copy.store)} == {run.id, branch.run.id}


@pytest.mark.usefixtures("in_memory")
def test_the_head_is_derived_again():
    """Without its head, a branch still knows its base, and what it does with side effects."""
    run = agent.execute("tides")
    [branch] = run.branch(at=2)
    before = branch.run._facts()
    run.store._runs[branch.run.id].head = None
    after = branch.run._facts()
    assert (after.base, after.effects) == (before.base, before.effects) == (run.id, "refuse")
    assert branches_of(run.store, run._seal, run.id) == []  # a listing has lost it, so:
    with pytest.raises(EffectRefusedError):
        agent.options(run_id=branch.run.id)("tides")
    assert sent() == [calls_of_base()]


def calls_of_base():
    """What the base has sent."""
    return "about a 2 about a 1 about a 0 about tides"


# -- variables -----------------------------------------------------------------------------------


def test_each_branch_has_its_variables():
    """Each branch goes on with the variables that it was given; the base stays as it was."""
    run = agent.execute("tides")
    before = run.steps, run.result
    branches = run.branch(at=2, variations=[{"model": "b"}, {"model": "c"}, {}], effects=answer)
    assert [each.result[0] for each in branches] == [
        "said about b 2 about b 1 about a 0 about tides",
        "said about c 2 about c 1 about a 0 about tides",
        "said about a 2 about a 1 about a 0 about tides",
    ]
    assert (run.steps, run.result) == before
    assert [each.parted[:6] for each in branches] == ["step 3", "step 3", "step 6"]


def test_a_variable_that_is_not_there():
    """A name that the frame does not have is refused with those that it has; nothing is made."""
    run = agent.execute("tides")
    with pytest.raises(stepwise.ConfigurationError, match=r"'modell'.*topic, model"):
        run.branch(at=2, variations=[{}, {"modell": "b"}])
    assert len(stepwise.runs()) == 1


def test_a_value_that_cannot_be_told_from_another():
    """A variable's value without a digest is refused: an older branch would answer for it."""
    run = agent.execute("tides")
    for model in (lambda: "b", lambda: "c"):
        with pytest.raises(stepwise.ConfigurationError, match=r"model=.*no importable name"):
            run.branch(at=2, variations=[{"model": model}])
    assert run.branches == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"variations": 0},
        {"variations": []},
        {"variations": ["model"]},
        {"variations": [{1: "b"}]},
        {"effects": "allow"},
        {"max_workers": 0},
        {"budget": 5},
        {"at": 0, "variations": [{"model": "b"}]},
    ],
)
def test_mistakes(wrong):
    """A wrong argument is refused with what to write; nothing is made."""
    run = agent.execute("tides")
    with pytest.raises(stepwise.ConfigurationError):
        run.branch(**{"at": 2, **wrong})
    assert len(stepwise.runs()) == 1


def test_where():
    """A point is a number of steps, the name of a step, or the statement that comes next."""
    run = agent.execute("tides")
    line = run.checkpoints[-1].position
    with pytest.raises(stepwise.StepNotFoundError, match="no checkpoint"):
        run.branch(at="nowhere.py:1")
    with pytest.raises(stepwise.StepNotFoundError):
        run.branch(at=99)
    by_line, by_name, by_number = (
        run.branch(at=at, effects=answer)[0].run for at in (line, "send", 5)
    )
    assert len(by_line.steps) == len(by_name.steps) == len(by_number.steps) == 6


def test_a_top_without_variables():
    """At step 0 a branch begins anew, with the recorded arguments."""
    run = agent.execute("tides")
    calls.clear()
    [branch] = run.branch(at=0, effects=answer)
    assert len([each for each in calls if each[0] == "think"]) == 5
    assert branch.run.status == "completed"


# -- which runs can be branched ------------------------------------------------------------------


def test_generators_and_live_runs_are_refused():
    """A generator cannot be branched, nor a run in progress, nor from inside a run."""

    @workflow
    def items(topic):
        yield think(topic)

    assert list(items.options(run_id="items")("tides"))
    with pytest.raises(stepwise.ConfigurationError, match="generator"):
        stepwise.get_run("items").branch()

    @workflow
    def inside(run_id):
        stepwise.get_run(run_id).branch()

    run = agent.execute("tides")
    with pytest.raises(stepwise.ConfigurationError, match="inside run"):
        inside(run.id)

    @workflow
    def itself():
        think("tides")
        with ThreadPoolExecutor() as pool, stepwise.background():
            return pool.submit(stepwise.get_run("itself").branch).exception()

    assert isinstance(itself.options(run_id="itself")(), stepwise.RunBusyError)


# -- side effects --------------------------------------------------------------------------------


def test_refused():
    """A branch stops at a side effect, with an error that names it and the ways out."""
    run = agent.execute("tides")
    calls.clear()
    [branch] = run.branch(at=2, variations=[{"model": "b"}])
    assert isinstance(branch.error, EffectRefusedError)
    assert branch.error.name == "send"
    assert "effects=" in str(branch.error)
    assert branch.run.status == "interrupted"
    assert sent() == []


def test_a_refusal_cannot_be_caught():
    """``except Exception`` does not go on behind a refused side effect."""

    @workflow
    def careless(topic):
        think(topic)
        try:
            send(topic)
        except Exception:
            return "went on"

    run = careless.execute("tides")
    [branch] = run.branch(at=1)
    assert isinstance(branch.error, EffectRefusedError)


def test_answered_by_a_function():
    """A function says what a side effect returns; that is recorded, and in no doubt."""
    run = agent.execute("tides")
    calls.clear()
    asked = []

    def say(call):
        asked.append((call.name, dict(call.arguments)))
        return "from the function"

    [branch] = run.branch(at=4, effects=say)
    assert branch.result[0] == "from the function"
    assert asked == [("send", {"text": calls_of_base()})]
    assert sent() == []
    again = run.branch(at=4, effects=say)
    assert again[0].result == branch.result
    assert len(asked) == 1
    assert branch.run.compensate() == 0


def test_a_function_that_fails():
    """An exception of the function is what the tool raises."""
    run = agent.execute("tides")

    def say(call):
        raise ValueError("no mail today")

    [branch] = run.branch(at=4, effects=say)
    assert isinstance(branch.error, ValueError)
    assert branch.run.status == "failed"


def test_collected():
    """A branch stops at a side effect and proposes it, with its arguments."""
    run = agent.execute("tides")
    calls.clear()
    [branch] = run.branch(at=2, variations=[{"model": "b"}], effects="collect")
    assert branch.run.status == "suspended"
    [proposal] = branch.proposals
    assert proposal.name == "send"
    assert "about b 2" in proposal.details
    assert sent() == []
    with pytest.raises(stepwise.ConfigurationError, match="adopt"):
        branch.run.approve(proposal.step, proposal.ticket)
    with pytest.raises(stepwise.ConfigurationError, match="adopt"):
        branch.run.deny(proposal.step, proposal.ticket, "no")


def test_the_command_before_the_answer():
    """Until a branch is adopted, its proposal is shown with the command that adopts it."""

    def told(word, run):
        return CliRunner().invoke(cli.main, [word, run.id]).output

    run = agent.execute("tides")
    [branch] = run.branch(at=2, variations=[{"model": "b"}], effects="collect")
    for word in ("show", "why"):
        assert f"stepwise adopt {branch.run.id}" in told(word, branch.run)
        assert "stepwise approve" not in told(word, branch.run)
    branch.adopt()
    assert f"stepwise approve {branch.run.id}" in told("show", branch.run)
    assert f"adopted   {branch.run.id} goes on instead" in told("show", run)


def test_what_would_get_out(tmp_path):
    """No side effect gets out of a branch by a child run, a thread, a task or the background."""

    @workflow
    def child(text):
        return send(text)

    @step
    def outer(text):
        return send(text)

    def in_thread(text):
        with ThreadPoolExecutor() as pool:
            return pool.submit(send, text).result()

    def in_background(text):
        with stepwise.background():
            return send(text)

    def in_an_old_thread(text):
        return old.submit(send, text).result()

    def to_another_run(text):
        stepwise.get_run(waiting.id).send("news", text)

    ways = {
        "child": child,
        "step": outer,
        "thread": in_thread,
        "background": in_background,
        "old": in_an_old_thread,
        "map": lambda text: list(stepwise.map(send, [text], max_workers=2)),
        "run": to_another_run,
        "submit": lambda text: child.submit(text).id,
    }

    @workflow(retention="all")
    def many(way):
        think(way)
        return ways[way](way)

    @workflow
    def waits():
        return stepwise.wait_for("news")

    with stepwise_suspends():
        with pytest.raises(stepwise.RunSuspended):
            waits.options(run_id="waits")()
    waiting = stepwise.get_run("waits")
    old = ThreadPoolExecutor()
    old.submit(int).result()
    for way in ways:
        run = many.execute(way)
        before = sent(), len(waiting.inbox)
        for effects in ("refuse", "collect"):
            [branch] = run.branch(at=1, effects=effects)
            assert branch.run.status != "completed", way
        assert (sent(), len(waiting.inbox)) == before, way
    assert len([each for each in stepwise.runs() if each.workflow.endswith(":child")]) <= 4
    old.shutdown()


def test_other_runs_stay_as_they_are():
    """A branch begins, changes, and deletes no other run, nor does code that it leaves behind."""

    @workflow
    def child(text):
        return send(text)

    @workflow
    def waits():
        return stepwise.wait_for("news")

    def in_background(act):
        with stepwise.background():
            return act()

    def in_thread(act):
        ended = Future()

        def target():
            try:
                ended.set_result(act())
            except BaseException as error:
                ended.set_exception(error)

        threading.Thread(target=target).start()
        return ended.result()

    old = ThreadPoolExecutor()
    old.submit(int).result()

    def in_job(act):
        return old.submit(act).result()

    acts = {
        "call": lambda: child("tides"),
        "start": lambda: child.start("tides").result(),
        "submit": lambda: child.submit("tides"),
        "send": lambda: stepwise.get_run("waits").send("news", 1),
        "cancel": lambda: stepwise.get_run("waits").cancel(),
        "delete": lambda: stepwise.get_run("ended").delete(),
        "fork": lambda: stepwise.get_run("ended").fork(0),
        "forget": lambda: stepwise.get_run("ended").forget(1),
        "compensate": lambda: stepwise.get_run("ended").compensate(),
    }
    ways = {
        "here": lambda act: act(),
        "in the background": in_background,
        "in a thread there": lambda act: in_background(lambda: in_thread(act)),
        "in a job there": lambda act: in_background(lambda: in_job(act)),
    }

    @workflow(name="steers")
    def many(act, way):
        think(act)
        return ways[way](acts[act]) if act else None

    with stepwise_suspends(), pytest.raises(stepwise.RunSuspended):
        waits.options(run_id="waits")()
    child.options(run_id="ended")("moons")
    run = many.options(run_id="base").execute("", "")
    calls.clear()
    before = {each.id: len(each.steps) for each in stepwise.runs()}
    branches = run.branch(variations=[{"act": act, "way": way} for act in acts for way in ways])
    old.shutdown()
    assert [each.variation for each in branches if each.run.status == "completed"] == []
    assert sent() == []
    own = {each.run.id for each in branches}
    rest = [each for each in stepwise.runs() if each.id not in own and each.parent not in own]
    assert {each.id: len(each.steps) for each in rest} == before
    assert stepwise.get_run("waits").inbox == []
    with stepwise.background():
        child("moons")
    assert sent() == ["moons"]  # once branch() has returned


PROCESSES = """
import multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import stepwise
from stepwise import step, tool, workflow

@step
def think(way):
    return way

@tool(side_effect=True)
def send(text):
    with open("log", "a") as file:
        print("SENT", text, file=file)

@workflow
def child(text):
    send(text)

def in_pool(method, act):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(act, "pool").result()

@workflow
def agent(way):
    think(way)
    kind, _, text = way.partition(" ")
    if kind == "program":
        subprocess.run([sys.executable, "-c", f"import program; program.{text}"], check=True)
    elif kind:
        in_pool(kind, {"send": send, "child": child}[text])

if __name__ == "__main__":
    in_pool("forkserver", len)  # the server starts before the branches
    run = agent.execute("")
    ways = [f"{kind} send" for kind in ("fork", "spawn", "forkserver")]
    ways += ["spawn child", "forkserver child"]
    ways += ["program send('x')", "program child('x')", "program child.submit('x')"]
    for branch in run.branch(variations=[{"way": way} for way in ways], max_workers=2):
        print(branch.run.status)
    print(len(stepwise.runs()))
"""


def test_processes_of_a_branch_make_no_side_effects(tmp_path):
    """Worker processes and programs that a branch starts make no side effect, and begin no run."""
    (tmp_path / "program.py").write_text(PROCESSES, encoding="utf-8")
    done = python("program.py", cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.stdout.split() == [*["failed"] * 8, "9"], done.stderr
    assert not (tmp_path / "log").exists()


@contextlib.contextmanager
def stepwise_suspends():
    stepwise.configure(suspend_after=0)
    yield
    stepwise.configure(suspend_after=60)


def test_answers_inside():
    """Child runs, tasks and steps have their side effects answered as the branch has."""

    @workflow(name="below")
    def child(text):
        return send(text)

    @step
    def outer(text):
        return send(text)

    @tool(side_effect=True)
    async def post(text):
        calls.append(("send", text))
        return text

    @workflow(retention="all", name="several")
    async def many(topic):
        think(topic)
        return [child(topic), outer(topic), *await asyncio.gather(*map(post, [topic, topic]))]

    run = asyncio.run(many.execute("tides"))
    calls.clear()
    [branch] = run.branch(at=1, effects=lambda call: f"said {call.name}")
    assert branch.result == ["said send", "said send", "said post", "said post"], branch.error
    assert sent() == []


def test_another_answer_is_another_branch():
    """A function with other code, or that captured another text, answers in other branches."""
    run = agent.execute("tides")

    def answering(text):
        return lambda call: text

    one, two = Answering("one"), Answering("two")
    given = {
        "captured": [answering("one"), answering("two")],
        "code": [lambda call: "one", lambda call: "two"],
        "method": [one.says, two.says],
        "partial method": [functools.partial(each.says, more="!") for each in (one, two)],
        "object": [one, two],
        "default": [lambda call, text=text: text for text in ("one", "two")],
    }
    for _ in range(2):
        found = [run.branch(at=2, effects=each)[0] for pair in given.values() for each in pair]
        assert [each.result[0].strip("!") for each in found] == ["one", "two"] * len(given)
        assert len({each.run.id for each in found}) == 2 * len(given)


class Answering:
    def __init__(self, text):
        self.text, self.notes = text, []

    def says(self, call, more=""):
        self.notes.append(call)
        return self.text + more

    __call__ = says


def test_the_policy_stays_with_the_branch():
    """A branch that is called, resumed, or adopted by nobody, makes no side effect either."""
    run = agent.execute("tides")
    branches = [
        run.branch(at=2, effects=effects)[0] for effects in ("refuse", "collect", fails_to_answer)
    ]
    calls.clear()
    for branch in branches:
        for _ in range(2):
            with pytest.raises((stepwise.errors.RunStopped, ValueError)):
                agent.options(run_id=branch.run.id)("tides")
    with pytest.raises(EffectRefusedError):
        branches[0].run.resume().result()
    assert sent() == []


def fails_to_answer(call):
    raise ValueError(call.name)


# -- together ------------------------------------------------------------------------------------


def test_side_by_side():
    """As many branches are executed at the same time as were asked for."""
    barrier = threading.Barrier(3, timeout=60)

    @step
    def meet(number):
        if meets:
            barrier.wait()
        return number

    @workflow
    def meeting(topic):
        think(topic)
        return meet(topic)

    meets = []
    run = meeting.execute("tides")
    meets.append(1)
    branches = run.branch(at=1, variations=3, max_workers=3)
    assert [each.result for each in branches] == ["tides"] * 3


def test_a_budget_for_all():
    """Branches share a budget, what they spent before included; with a larger one they go on."""
    run = agent.execute("tides")
    more = {"at": 2, "variations": 3, "effects": answer, "max_workers": 1}
    branches = run.branch(**more, budget=Budget(steps=5))
    assert sum(each.run.spent.steps for each in branches) == 5
    assert isinstance(branches[2].error, stepwise.BudgetExceeded)
    again = run.branch(**more, budget=Budget(steps=5))
    assert sum(each.run.spent.steps for each in again) == 5
    last = run.branch(**more, budget=Budget(steps=12))
    assert [each.run.status for each in last] == ["completed"] * 3


def test_called_again():
    """The same call finds the same branches, and executes none that has ended."""
    run = agent.execute("tides")
    more = {"at": 2, "variations": [{"model": "b"}, {"model": "c"}], "effects": answer}
    one = run.branch(**more)
    calls.clear()
    two = run.branch(**more)
    assert [each.run for each in one] == [each.run for each in two]
    assert calls == []
    assert len(run.branch(**{**more, "at": 3})) == 2
    assert len(stepwise.runs()) == 5


def test_asynchronous():
    """An asynchronous workflow is branched too, also from within an event loop."""

    @step
    async def fetch(topic):
        calls.append(("fetch", topic))
        return f"about {topic}"

    @workflow(retention="all")
    async def reads(topic):
        found = await fetch(topic)
        return await fetch(f"{found} {topic}")

    async def main():
        run = await reads.execute("tides")
        return run.branch(at=1, variations=[{"topic": "moons"}, {}])

    moons, tides = asyncio.run(main())
    assert (moons.result, tides.result) == ("about about tides moons", "about about tides tides")


def test_a_table():
    """The branches print as a table: variables, status, cost, where each parted, result."""
    run = agent.execute("tides")
    branches = run.branch(at=2, variations=[{"model": "b"}, {"model": "c"}], effects="collect")
    for text in (str(branches), branches._repr_html_()):
        assert "proposes send" in text
        assert "$0.02" in text
    json.dumps(branches.rows())
    assert [each["variation"] for each in branches.rows()] == ["model='b'", "model='c'"]
    assert branches.rows()[0]["parted"].startswith("step 3 think")
    assert run.branches.rows() == branches.rows()
    for each, row in zip(branches, branches.rows(), strict=True):
        spent = each.run.spent
        assert (row["steps"], row["usd"], row["seconds"]) == (spent.steps, spent.usd, spent.seconds)
    assert [each.variation for each in run.branches] == [{"model": "b"}, {"model": "c"}]


def test_the_variables_that_a_branch_was_given_are_kept():
    """Whatever checkpoints a branch keeps, it keeps that of its beginning, with its variables."""

    @workflow(retention="latest_only", name="keeps")
    def long(topic, model="a"):
        for number in range(9):
            think(f"{model} {number}")
            if number == 3 and stop:
                raise RuntimeError("stopped")
        return topic

    stop = [1]
    with pytest.raises(RuntimeError):
        long.options(run_id="long")("tides")
    run = stepwise.get_run("long")
    stop.clear()
    variations = [{"model": "b", "topic": {"sea": 1}}, {}]
    for branch in run.branch(variations=variations):
        [two] = branch.run.branch(variations=[{"model": "c"}])
        assert len(branch.run.checkpoints) == 2
        assert [each.variation for each in branch.run.branches] == [{"model": "c"}]
        assert two.run.verify().ok
    assert [each.variation for each in run.branches] == variations
    assert [each.parted[:6] for each in run.branches] == ["step 5"] * 2


def test_a_secret_that_the_base_was_not_given():
    """A variable that is a declared secret is refused, though the base was called without it."""

    @workflow(retention="all", secret="key")
    def may_have_a_key(topic, key=None):
        found = think(topic)
        return think(found)

    run = may_have_a_key.execute("tides")
    variables = {"key": "sk-very-secret-0123456789"}
    with pytest.raises(stepwise.ConfigurationError, match="'key' is a secret"):
        run.branch(at=1, variations=[variables])
    with pytest.raises(stepwise.ConfigurationError, match="'key' is a secret"):
        run.fork(1, locals=variables)
    assert run.branches == []


HIDING = """
import stepwise
from stepwise import step, workflow

@step
def think(text):
    return text

@workflow(retention="all", run_id="base", secret="key", redact="note")
def agent(topic, key=None, note="none", model="a"):
    found = think(topic)
    return think(found + str(bool(key)))

if __name__ == "__main__":
    print(agent("tides"))
"""


def test_a_secret_from_the_terminal(tmp_path):
    """A command, which does not know what of the hidden is secret, stores none of it."""
    (tmp_path / "program.py").write_text(HIDING, encoding="utf-8")
    assert python("program.py", cwd=tmp_path).stdout == "tidesFalse\n"
    for name in ("key", "note"):
        told = CliRunner().invoke(cli.main, ["branch", "base", "--at", "1", "--set", f"{name}=me"])
        assert f"'{name}' is hidden by run 'base'" in f"{told.exception}"
        assert "in its program" in f"{told.exception}"
    told = CliRunner().invoke(cli.main, ["branch", "base", "--at", "1", "--set", "model=b"])
    assert told.exit_code == 0
    assert [str(each.variation) for each in stepwise.get_run("base").branches] == ["{'model': 'b'}"]


def test_secrets_in_variations():
    """Secrets by name, hidden arguments and credentials are masked in tables; none is stored."""

    @workflow(retention="all", secret="key", redact=("topic", "note"), name="hides")
    def calls_a_model(topic, key, model="a", note="none"):
        api_key = think("none")
        return think("end"), len(model), len(api_key)

    run = calls_a_model.execute("tides", "sk-very-secret-0123456789")
    credential = "sk-proj-0123456789abcdef0123"
    variations = [
        {"api_key": "hunter-number-2", "topic": "private-topic", "note": "private-note"},
        {"model": {"password": "hunter-number-3", "n": 1}},
        {"model": f"uses {credential}"},
    ]
    branches = run.branch(at=1, variations=variations, inputs={"key": "sk-another-0123456789"})
    shown = [str(branches), branches._repr_html_(), json.dumps(branches.rows()), repr(branches[0])]
    shown += [CliRunner().invoke(cli.main, ["show", run.id, "--json"]).output]
    shown += [CliRunner().invoke(cli.main, ["show", each.run.id]).output for each in branches]
    for text in shown:
        for secret in ("hunter-number", "private-topic", "private-note", credential):
            assert secret not in text, text
    assert "'n': 1" in shown[0]
    with pytest.raises(stepwise.ConfigurationError, match="'key' is a secret"):
        run.branch(at=1, variations=[{"key": "sk-third-0123456789"}])
    with pytest.raises(stepwise.ConfigurationError, match="'key' is a secret"):
        run.fork(at=1, locals={"key": "sk-third-0123456789"})
    assert len(run.branches) == 3


# -- adopting ------------------------------------------------------------------------------------


def test_adopted():
    """An adopted branch goes on for its base: it asks for what it proposed, and then makes it."""
    run = agent.execute("tides")
    one, two = run.branch(at=2, variations=[{"model": "b"}, {"model": "c"}], effects="collect")
    calls.clear()
    two.adopt()
    assert (run.status, one.run.status) == ("superseded", "cancelled")
    assert run.superseded_by == two.run.id
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        agent.options(run_id=run.id)("tides")
    assert sent() == []
    assert run.questions == []
    [question] = two.run.questions
    run.approve(question.step, question.ticket)
    result = agent.options(run_id=run.id)("tides")
    assert sent() == ["about c 2 about c 1 about a 0 about tides"]
    assert result[0] == f"sent {sent()[0]}"
    assert two.run.verify().ok
    assert run.verify().ok
    two.adopt()
    assert two.run.result == agent.options(run_id=run.id)("tides") == result


@pytest.mark.parametrize("step", ["owned_journal", "Adopted", "branches_of"])
def test_adopting_is_finished_when_asked_again(step, monkeypatch):
    """Stopped in the middle, adopt() called again does the rest; no other branch is adopted."""
    run = agent.execute("tides")
    one, two, three = run.branch(at=2, variations=3, effects="collect")

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(f"stepwise._runs.branching.{step}", stopped)
        two.adopt()
    if step != "owned_journal":
        why = "was cancelled" if step == "Adopted" else two.run.id
        with pytest.raises(stepwise.ConfigurationError, match=why):
            one.adopt()
    two.adopt()
    assert [each.run.status for each in (one, two, three)] == [
        "cancelled",
        "suspended",
        "cancelled",
    ]
    with pytest.raises(stepwise.ConfigurationError, match="cancelled"):
        three.adopt()
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended, match=two.run.id):
        agent.options(run_id=run.id)("tides")


@pytest.mark.parametrize("effects", ["refuse", "collect"])
def test_a_cancelled_branch_ends_without_the_side_effects_of_its_clean_up(effects):
    """A clean-up that would make a side effect ends there, in child runs too; nobody is asked."""

    @workflow(name=f"tidy-{effects}")
    def child(text):
        try:
            return send(text)
        finally:
            send("child tidied")

    @workflow(name=f"tidies-{effects}")
    def tidies(text):
        think(text)
        try:
            return child(text)
        finally:
            send("tidied")

    run = tidies.options(run_id="tidies").execute("tides")
    calls.clear()
    one, two = run.branch(at=1, variations=2, effects=effects)
    two.adopt()
    assert one.run.status == "cancelled"
    assert two.run.status != "cancelled"
    assert sent() == []


def test_what_cannot_be_adopted():
    """What a function answered is not adopted, nor forked, nor what goes on from it."""
    run = agent.execute("tides")
    [branch] = run.branch(at=2, effects=answer)
    [two] = branch.run.branch(effects="collect")
    for each in (branch.adopt, two.adopt, branch.run.fork, two.run.fork):
        with pytest.raises(stepwise.ConfigurationError, match="never happened"):
            each()
    with pytest.raises(stepwise.ConfigurationError, match="no branch"):
        stepwise.RunBranch(run, {}).adopt()


def test_a_crashed_base_is_not_resumed():
    """A base that was adopted away is superseded, so that nothing resumes it by itself."""

    @workflow(retention="all")
    def breaks(topic):
        think(topic)
        raise SystemExit

    with pytest.raises(SystemExit):
        breaks.options(run_id="breaks")("tides")
    run = stepwise.get_run("breaks")
    assert run.status == "crashed"
    [branch] = run.branch(at=1, effects="collect")
    branch.adopt()
    assert run.status == "superseded"
    handles = stepwise.recover()
    assert [each.id for each in handles] == [branch.run.id]
    assert handles[0].wait()
    assert run.verify().ok


# -- killed --------------------------------------------------------------------------------------


SCRIPT = """
import json, os, signal, sys
import stepwise
from stepwise import step, tool, workflow

def note(text):
    with open("log", "a") as file:
        print(text, file=file, flush=True)

@step
def think(number, model):
    note(f"think {number} {model}")
    if os.environ.get("KILL") == f"{number} {model}":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{model}{number}"

@tool(side_effect=True)
def send(text):
    note(f"SENT {text}")
    return text

def answer(call):
    note(f"answer {call.arguments['text']}")
    return "answered"

class Answering:
    def says(self, call):
        return "answered"

    __call__ = says

@workflow(retention="all")
def agent(topic, model="a"):
    found = [think(number, model) for number in range(2)]
    for number in range(2, 5):
        found.append(think(number, model))
    found.append(send(found[-1]))
    return found

def main():
    run = stepwise.get_run("base")
    branches = run.branch(at=2, variations=[{"model": "b"}, {"model": "c"}], effects=answer,
                          max_workers=1)
    print(json.dumps([each.result for each in branches]))
"""


def test_killed_and_called_again(tmp_path):
    """Killed anywhere and called again, branches go on; what had ended is not made again."""
    (tmp_path / "program.py").write_text(SCRIPT, encoding="utf-8")
    code = "import program; program.agent.options(run_id='base')('tides')"
    python("-c", code, cwd=tmp_path, code=0)
    log = tmp_path / "log"
    assert "SENT a4" in log.read_text()
    log.write_text("")
    for kill in ("3 b", "4 b", "2 c", "4 c", ""):
        env = {**os.environ, "KILL": kill}
        done = python(
            "-c", "import program; program.main()", cwd=tmp_path, env=env, code=(-9 if kill else 0)
        )
    expected = [["a0", "a1", *(f"{m}{n}" for n in (2, 3, 4)), "answered"] for m in "bc"]
    assert json.loads(done.stdout) == expected
    made = log.read_text().splitlines()
    assert not any(each.startswith("SENT") for each in made)
    killed = ["think 3 b", "think 4 b", "think 2 c", "think 4 c"]
    for line in {*made}:
        assert made.count(line) == 1 + (line in killed), line
    assert made.count("answer b4") == made.count("answer c4") == 1


def test_another_program_resumes_a_branch(tmp_path):
    """A branch that another process resumes finds the function that answers, or stops."""
    (tmp_path / "program.py").write_text(SCRIPT, encoding="utf-8")
    code = "import program; program.agent.options(run_id='base')('tides')"
    python("-c", code, cwd=tmp_path, code=0)
    made = (
        "import program, stepwise; run = stepwise.get_run('base'); "
        "from stepwise._runs.branching import make; "
        "[print(make(run, 2, [{'model': 'b'}], each)[0].run.id) "
        "for each in (program.answer, program.Answering().says, program.Answering(), "
        "lambda call: 'unknown')]"
    )
    done = python("-c", made, cwd=tmp_path)
    known, *unknown = done.stdout.split()
    call = "import program; print(program.agent.options(run_id={!r})('tides'))"
    done = python("-c", call.format(known), cwd=tmp_path)
    assert "'answered'" in done.stdout, done.stderr
    for each in unknown:
        done = python("-c", call.format(each), cwd=tmp_path)
        assert "cannot import" in done.stderr, each
    assert "SENT b" not in (tmp_path / "log").read_text()
