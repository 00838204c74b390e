"""An adopted branch goes on as its base: whoever calls, resumes or asks for the base gets it."""

import asyncio
import json
import os
import random
import signal

import pytest
from click.testing import CliRunner
from harness import python
from supervised import Staying, until
from sweeping import SEED, size

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise._journal.lease import Lease
from stepwise._runs.maintenance import Census

calls, broken = [], set()


@pytest.fixture(autouse=True)
def nothing_called():
    calls.clear()
    broken.clear()
    stepwise.configure(suspend_after=0)


@step
def think(topic):
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    calls.append(text)
    return f"sent {text}"


@workflow(retention="all")
def agent(topic, model="a"):
    found = think(topic)
    found = think(f"{model} {found}")
    return send(found)


@workflow(retention="all")
def waiting(topic, model="a"):
    found = think(topic)
    news = stepwise.wait_for("news")
    return f"{model} {found} {news}"


@workflow(retention="all")
async def reads(topic, model="a"):
    found = think(topic)
    return send(f"{model} {found}")


def adopted(run, model="b", **more):
    """Adopt a branch of a run; return it."""
    [branch] = run.branch(at=1, variations=[{"model": model}], effects="collect", **more)
    branch.adopt()
    return branch.run


def answer(run):
    """Say yes to what a run asks."""
    [question] = run.questions
    question.approve()


def calls_again(run_id="base"):
    """Call the workflow of the base again, as a script that is run again does."""
    return agent.options(run_id=run_id)("tides")


# -- the rule --------------------------------------------------------------------------------------


def test_the_call_of_the_base_is_that_of_the_branch(capsys):
    """A call with the arguments of the base goes on with the branch, and says so once."""
    stepwise.configure(quiet=False)
    run = agent.execute("tides")
    branch = adopted(run)
    process_forgets()
    for _ in range(2):
        with pytest.raises(stepwise.RunSuspended, match=branch.id):
            agent("tides")
    answer(branch)
    assert agent.run_id_for("tides") == branch.id
    made = agent.execute("tides")
    assert (made, made.result) == (branch, "sent about b about tides")
    assert calls == ["about a about tides", "about b about tides"]
    assert capsys.readouterr().err.count(f"its branch {branch.id} was adopted") == 1
    assert agent.execute("tides").id not in (run.id, branch.id)  # the next equal call is another


def process_forgets():
    """Forget what this process knows of its runs, as a new process does not."""
    from stepwise._execution import process_memory

    process_memory.memory.__init__()


@pytest.mark.parametrize("which", [0, 1])
def test_resumed_by_its_id(which, monkeypatch):
    """``STEPWISE_RESUME`` with the id of either means the branch, once; a later call is another."""
    run = agent.execute("tides")
    branch = adopted(run)
    answer(branch)
    process_forgets()
    monkeypatch.setenv("STEPWISE_RESUME", (run.id, branch.id)[which])
    assert agent.execute("tides") == branch
    assert agent.execute("tides").id not in (run.id, branch.id)


def test_the_arguments_still_count():
    """The base's id with other arguments is a conflict, as before."""
    agent.options(run_id="base")("tides")
    adopted(stepwise.get_run("base"))
    with pytest.raises(stepwise.RunConflictError, match="another call"):
        agent.options(run_id="base")("winds")


def test_a_chain():
    """The branch of an adopted branch goes on for both, wherever the call begins."""
    run = agent.options(run_id="base").execute("tides")
    one = adopted(run)
    two = adopted(one, "c")
    assert [each.status for each in (run, one)] == ["superseded", "superseded"]
    assert Census(run.store).count().by_status["superseded"] == 2
    assert {each.id for each in stepwise.runs(status="superseded")} == {"base", one.id}
    for run_id in ("base", one.id):
        with pytest.raises(stepwise.RunSuspended, match=two.id):
            calls_again(run_id)
    answer(two)
    assert calls_again() == calls_again(one.id) == "sent about c about tides"
    assert len(calls) == 2


def test_resumed_and_started():
    """``resume()`` and ``start()`` of the base give a handle of the branch."""
    branch = adopted(agent.options(run_id="base").execute("tides"))
    handle = stepwise.get_run("base").resume()
    assert handle.id == branch.id
    answer(branch)
    assert handle.result() == "sent about b about tides"
    again = agent.options(run_id="base").start("tides")
    assert (again.id, again.result()) == (branch.id, "sent about b about tides")
    assert agent.submit("tides", run_id="base") == branch


def test_asynchronous():
    """A coroutine that is called, started or resumed goes on as the branch, too."""

    async def main():
        run = await reads.options(run_id="base").execute("tides")
        branch = await asyncio.to_thread(adopted, run)
        with pytest.raises(stepwise.RunSuspended):
            await reads.options(run_id="base")("tides")
        handle = run.resume()
        assert handle.id == branch.id
        answer(branch)
        assert await handle == "sent b about tides"
        return await reads.options(run_id="base")("tides")

    assert asyncio.run(main()) == "sent b about tides"


def test_a_handle_that_waits():
    """A suspended base whose handle waits in this process goes on there as the branch."""
    handle = waiting.options(run_id="base").start("tides")
    run = stepwise.get_run("base")
    until(lambda: run.status == "suspended" and run.owner is None)
    branch = adopted(run)
    branch.send("news", "at last")
    assert handle.result() == "b about tides at last"
    assert handle.id == branch.id


def test_recovered_runs_that_wait():
    """A base that waits since ``recover()`` goes on as the branch when its message has come."""
    with pytest.raises(stepwise.RunSuspended):
        waiting.options(run_id="base")("tides")
    stepwise.recover()
    run = stepwise.get_run("base")
    branch = adopted(run)
    run.send("news", "at last")
    until(lambda: branch.status == "completed")
    assert branch.result == "b about tides at last"


def test_a_supervisor_that_has_the_base():
    """``stepwise up`` goes on with the branch when what the base waited for has come."""
    with pytest.raises(stepwise.RunSuspended):
        waiting.options(run_id="base")("tides")
    run = stepwise.get_run("base")
    with Staying():
        branch = adopted(run)
        run.send("news", "at last")
        until(lambda: branch.status == "completed")
    assert branch.result == "b about tides at last"
    assert run.status == "superseded"


def stopped(*_):
    raise KeyboardInterrupt


# -- messages --------------------------------------------------------------------------------------


def test_what_is_sent_to_the_base():
    """Signals, answers and requests to cancel that name the base reach the branch."""
    with pytest.raises(stepwise.RunSuspended):
        waiting.options(run_id="base")("tides")
    run = stepwise.get_run("base")
    branch = adopted(run)
    run.send("news", 1)
    assert [each.value for each in branch.inbox] == [1]
    assert run.inbox == []
    assert waiting.options(run_id="base")("tides") == "b about tides 1"
    with pytest.raises(stepwise.RunEndedError, match=branch.id):
        run.send("news", 2)

    other = agent.execute("winds")
    asks = adopted(other)
    other.cancel("no longer needed")
    with pytest.raises(stepwise.RunCancelled):
        agent.options(run_id=other.id)("winds")
    assert asks.status == "cancelled"


def test_what_was_sent_before():
    """What the base was sent between the making of the branch and its adoption reaches it once."""
    with pytest.raises(stepwise.RunSuspended):
        waiting.options(run_id="base")("tides")
    run = stepwise.get_run("base")
    run.send("other", "before")
    [branch] = run.branch(at=1, variations=[{"model": "b"}], effects="collect")
    run.send("news", "meanwhile", "key")
    for _ in range(2):
        branch.adopt()
    run.send("news", "meanwhile", "key")
    values = [each.value for each in branch.run.inbox]
    assert values == ["before", "meanwhile"]
    assert waiting.options(run_id="base")("tides") == "b about tides meanwhile"


@pytest.mark.parametrize("place", ["forward", "Adopted"])
def test_what_was_sent_before_a_stop_in_between(place, monkeypatch):
    """Stopped while it adopts, the next call of the base still brings the branch its signals."""
    with pytest.raises(stepwise.RunSuspended):
        waiting.options(run_id="base")("tides")
    run = stepwise.get_run("base")
    [branch] = run.branch(at=1, variations=[{"model": "b"}], effects="collect")
    run.send("news", "meanwhile")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(f"stepwise._runs.branching.{place}", stopped)
        branch.adopt()
    assert waiting.options(run_id="base")("tides") == "b about tides meanwhile"
    assert [each.value for each in branch.run.inbox] == ["meanwhile"]


# -- at the edges ----------------------------------------------------------------------------------


def test_an_adopted_branch_that_was_deleted():
    """Its base does not begin again by itself: the call names the branch and the ways out."""
    run = agent.options(run_id="base").execute("tides")
    branch = adopted(run)
    branch.delete()
    with pytest.raises(stepwise.ConfigurationError, match="is gone"):
        run.compensate()
    for ask in (calls_again, run.resume, lambda: run.send("news", 1)):
        with pytest.raises(stepwise.RunNotFoundError, match="forget base"):
            ask()
    assert run.result == "sent about a about tides"  # its own
    assert f"{branch.id} went on instead, and is gone" in f"{run.why()}"
    run.delete()
    assert calls_again() == "sent about a about tides"


def test_no_step_of_a_superseded_run_is_forgotten():
    """The base makes no step again: it keeps its result, and says which branch goes on."""
    run = agent.options(run_id="base").execute("tides")
    branch = adopted(run)
    with pytest.raises(stepwise.ConfigurationError, match=f"its branch '{branch.id}' goes on"):
        run.forget("send")
    assert run.result == "sent about a about tides"
    branch.forget(2)


def test_copied(tmp_path):
    """A copy of any of them takes along the branch that goes on, so that a call goes on there."""
    stepwise.configure(store=f"disk:{tmp_path / 'here'}")
    run = agent.options(run_id="base").execute("tides")
    [other] = run.branch(at=1, effects=lambda call: "sent")
    one = adopted(run)
    two = adopted(one, "c")
    every = {run.id, one.id, two.id}
    for each in (run, one, two, other.run):
        copy = each.copy_to(f"disk:{tmp_path / each.id}")
        assert {found.id for found in stepwise.runs(store=copy.store)} == {*every, each.id}
        assert copy.id == each.id
        assert copy.verify().ok
        with pytest.raises(stepwise.RunSuspended, match=two.id):
            agent.options(run_id="base", store=copy.store)("tides")
    two.delete()
    with pytest.raises(stepwise.RunNotFoundError, match="is gone"):
        agent.options(store=run.copy_to(f"disk:{tmp_path / 'late'}").store, run_id="base")("tides")


def test_pruned(monkeypatch):
    """An old base is deleted after its adopted branch."""
    from stepwise._runs.maintenance import delete_each, old_runs

    run = agent.options(run_id="base").execute("tides")
    branch = adopted(run)
    answer(branch)
    calls_again()
    for _ in range(2):
        list(delete_each(old_runs(1e12, 0)))
    assert stepwise.runs() == []


def test_a_branch_is_no_unfinished_run():
    """``start="unfinished"`` takes up an adopted branch, and no branch that stands beside a run."""

    @workflow(start="unfinished", name="tries", retention="all")
    def tries(topic, model="a"):
        found = think(f"{model} {topic}")
        if fails:
            raise RuntimeError("no luck")
        return send(found)

    fails = [1]
    with pytest.raises(RuntimeError):
        tries("tides")
    [run] = stepwise.runs()
    one, two = run.branch(at=1, variations=2, effects="collect")
    fails.clear()
    for _ in range(2):
        process_forgets()
        assert tries.execute("tides").id not in (one.run.id, two.run.id)
        fails.append(1)
        with pytest.raises(RuntimeError):
            tries("tides")
        [run, *_] = stepwise.runs(status="failed")
        fails.clear()
    [branch] = run.branch(at=1, effects="collect")
    branch.adopt()
    process_forgets()
    with pytest.raises(stepwise.RunSuspended, match=branch.run.id):
        tries("tides")


def test_the_commands():
    """``runs``, ``show``, ``resume`` and ``approve`` go on with the branch, given the base's id."""

    def told(*words):
        done = CliRunner().invoke(cli.main, words)
        return done.stdout

    run = agent.options(run_id="base").execute("tides")
    branch = adopted(run)
    [facts] = [each for each in json.loads(told("runs", "--json")) if each["id"] == "base"]
    assert (facts["status"], facts["superseded_by"]) == ("superseded", branch.id)
    assert json.loads(told("runs", "--status", "superseded", "--json"))[0]["id"] == "base"
    assert f"{branch.id} goes on instead" in told("show", "base")
    assert branch.id in told("why", "base")
    [question] = branch.questions
    assert f"of {branch.id} is approved" in told("approve", "base", "3", question.ticket)


def test_the_others_are_closed_whatever_they_do():
    """A branch that is executed, or whose clean-up fails, does not keep the others from closing."""

    @workflow(name="tidies", retention="all")
    def tidies(topic, model="a"):
        think(topic)
        try:
            return send(model)
        finally:
            if model == "c":
                raise ValueError("the clean-up failed")

    run = tidies.options(run_id="base").execute("tides")
    variations = [{"model": each} for each in "bcde"]
    busy, fails, chosen, last = run.branch(at=1, variations=variations, effects="collect")
    with Lease(run.store, busy.run.id).acquire():
        chosen.adopt()
    assert (fails.run.status, last.run.status) == ("failed", "cancelled")
    assert [each.kind for each in busy.run.inbox] == ["cancel"]
    assert run.superseded_by == chosen.run.id


# -- undoing ---------------------------------------------------------------------------------------


@tool(side_effect=True, compensate=lambda call: calls.append(("undo", call.arguments["what"])))
def book(what):
    calls.append(("book", what))
    return what


@workflow
def leg(what):
    think(what)
    return book(what)


@workflow
async def async_leg(what):
    return book(what)


parts = {"step": book, "child": leg, "async child": async_leg}


async def books(part, model="a"):
    await either(parts[part]("flight"))
    await either(parts[part](f"{model} hotel"))
    if model in broken:
        raise ConnectionError


trip = workflow(name="trip", retention="all")(books)
safe_trip = workflow(name="safe_trip", retention="all", compensate_on_failure=True)(books)


async def either(made):
    return await made if asyncio.iscoroutine(made) else made


def go_on(trip=trip, part="step"):
    """Call the workflow until it has ended, and approve what it asks; its run."""
    while True:
        run = asyncio.run(execute(trip, part))
        if run.status != "suspended":
            return run
        answer(run)


async def execute(trip, part):
    return await trip.options(run_id="base").execute(part)


def undone(run):
    """What a run undoes."""
    del calls[:]
    assert run.compensate() == len(calls)
    return [what for _, what in calls]


@pytest.mark.parametrize("part", parts)
def test_what_a_branch_shares_is_undone_once(part):
    """The base undoes what it did alone; the branch that goes on also what both share."""
    run = go_on(part=part)
    one = adopted(run)
    go_on(part=part)
    two = adopted(one, "c")
    go_on(part=part)
    assert [undone(each) for each in (run, one)] == [["a hotel"], ["b hotel"]]
    assert undone(two) == ["c hotel", "flight"]
    assert [undone(each) for each in (two, run, one)] == [[], [], []]


@workflow(retention="all")
def two_legs():
    book("flight")
    think("hotels")
    if broken:
        raise ConnectionError
    return book("hotel")


@workflow(retention="all")
def journey():
    think("journeys")
    return two_legs()


def test_a_child_run_that_both_went_on_with():
    """A child run that was half done where the branch began is undone by each for its own part."""
    broken.add("all")
    with pytest.raises(ConnectionError):
        journey.options(run_id="base")()
    run = stepwise.get_run("base")
    [branch] = run.branch(at=2, effects="collect")
    broken.clear()
    journey.options(run_id="base")()
    branch.adopt()
    journey.options(run_id="base")()
    assert calls == [("book", "flight"), ("book", "hotel"), ("book", "hotel")]
    assert (undone(run), undone(branch.run)) == (["hotel"], ["hotel", "flight"])


def test_an_adopted_branch_that_fails_undoes_what_it_shares():
    """``compensate_on_failure`` undoes what is shared, once, and only if the branch was adopted."""
    run = go_on(safe_trip)
    broken.add("b")
    [branch, _] = run.branch(at=1, variations=[{"model": "b"}, {"model": "c"}], effects="collect")
    [answered] = run.branch(at=1, variations=[{"model": "b"}], effects=lambda call: "booked")
    assert (answered.run.status, answered.run.compensate()) == ("failed", 0)
    branch.adopt()
    with pytest.raises(ConnectionError):
        go_on(safe_trip)
    broken.clear()
    assert calls[2:] == [("book", "b hotel"), ("undo", "b hotel"), ("undo", "flight")]
    assert (undone(branch.run), undone(run)) == ([], ["a hotel"])


@workflow(retention="all")
async def planned(plan, model="a"):
    for number, part in enumerate(plan):
        what = f"{model} {number}"
        if part == "gather":
            await asyncio.gather(async_leg(f"{what} left"), async_leg(f"{what} right"))
        else:
            await either(parts[part](what))
        think(number)


@pytest.mark.parametrize("seed", range(size(4, 400)))
def test_random_chains_undo_each_side_effect_once(seed):
    """However branches were adopted, and in whatever order they are undone: each effect once."""
    rnd = random.Random(f"{SEED} {seed}")
    plan = ["step", *rnd.choices([*parts, "gather"], k=rnd.randint(1, 3))]
    runs = [go_on(planned, plan)]
    for model in "bcd"[: rnd.randint(1, 3)]:
        at = rnd.choice([each.number for each in runs[-1].steps])
        [branch] = runs[-1].branch(at, [{"model": model}], effects="collect")
        branch.adopt()
        runs.append(go_on(planned, plan))
        assert runs[-1] == branch.run
    made = [what for _, what in calls]
    runs += rnd.sample(runs, len(runs))
    assert sorted(what for run in runs for what in undone(run)) == sorted(made)


def test_nothing_goes_on_from_what_was_undone():
    """What was undone is neither adopted, branched nor forked as if it were done."""
    run = go_on()
    [branch] = run.branch(at=1, variations=[{"model": "b"}], effects="collect")
    [below] = branch.run.branch(at=1, effects="collect")
    assert undone(run) == ["a hotel", "flight"]
    again = branch.run.branch
    for refuse in (branch.adopt, below.adopt, run.branch, again, lambda: run.fork(at=1)):
        with pytest.raises(stepwise.ConfigurationError, match="'base' has undone step 1 since"):
            refuse()
    assert run.superseded_by is None
    go_on()
    assert run.fork().status == "ready"


def test_no_fork_goes_on_from_what_the_adopted_branch_has_undone():
    """What the branch that goes on has undone is not done for a fork of its base either."""
    run = go_on()
    heir = adopted(run)
    go_on()
    assert undone(heir) == ["b hotel", "flight"]
    with pytest.raises(stepwise.ConfigurationError, match=f"'{heir.id}' has undone step 1"):
        run.fork(at=1)
    assert run.fork(at=0).status == "ready"


@pytest.mark.parametrize("part", parts)
def test_nothing_goes_on_from_what_a_deleted_branch_may_have_undone(part):
    """What an adopted branch may have undone before it was deleted counts as done for nobody."""
    run = go_on(part=part)
    [other] = run.branch(at=1, variations=[{"model": "d"}], effects="collect")
    one = adopted(run)
    go_on(part=part)
    two = adopted(one, "c")
    go_on(part=part)
    assert undone(two) == ["c hotel", "flight"]
    two.delete()
    gone = f"branch '{two.id}', which was adopted and is gone, may have undone step 1"
    for each in (run, one, other.run):
        for refuse in (each.fork, each.branch):
            with pytest.raises(stepwise.ConfigurationError, match=gone):
                refuse(at=1)
        assert each.fork(at=0).status == "ready"
    assert calls[-1] == ("undo", "flight")


@workflow(retention="all")
def late(topic, model="a"):
    think(topic)
    return book(f"{model} hotel")


def test_an_undone_branch_says_whether_it_can_be_called_again(capsys):
    """A branch whose variables a second try would lose says so, and how to start over."""
    stepwise.configure(quiet=False)
    run = go_on()
    heir = adopted(run)
    go_on()
    capsys.readouterr()
    assert undone(heir) == ["b hotel", "flight"]
    assert "it cannot be called again, since that would lose" in capsys.readouterr().err
    with pytest.raises(stepwise.CodeChangedError, match=r"would lose .* \(model\)"):
        go_on()
    heir.delete()
    run.delete()
    [heir] = late.options(run_id="base").execute("x").branch(1, [{"model": "b"}], effects="collect")
    heir.adopt()
    called = late.options(run_id="base")
    with pytest.raises(stepwise.RunSuspended):
        called("x")
    answer(heir.run)
    called("x")
    capsys.readouterr()
    assert undone(heir.run) == ["b hotel"]
    assert "called again, the workflow repeats them" in capsys.readouterr().err
    assert called("x") == "b hotel"
    assert calls[-1] == ("book", "b hotel")


def test_the_variables_of_a_branch_are_not_lost():
    """A branch that would have to begin at the top says which variables that would lose."""
    run = agent.options(run_id="base").execute("tides")
    branch = adopted(run)
    branch.forget(1)
    with pytest.raises(stepwise.CodeChangedError, match=r"would lose .* \(model\)"):
        calls_again()
    fork = run.fork(at=1, locals={"model": "b"})
    fork.forget(1)
    with pytest.raises(stepwise.CodeChangedError, match=r"would lose .* \(model\)"):
        agent.options(run_id=fork.id)("tides")
    assert calls == ["about a about tides"]


# -- killed ----------------------------------------------------------------------------------------


SCRIPT = """
import os, signal, sys
import stepwise
from stepwise import step, tool, workflow

@step
def think(text):
    return text

@tool(side_effect=True)
def send(text):
    with open("log", "a") as file:
        print("SENT", text, file=file, flush=True)
    return f"sent {text}"

@workflow(retention="all")
def agent(topic, model="a"):
    found = think(f"{model} {topic}")
    return send(f"{model} {found}")

def adopt():
    from stepwise._runs import branching
    name, kills = os.environ["KILL"].split("/"), None
    place, before = getattr(branching, name[0]), name[1] == "before"
    def killed(*args, **more):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        place(*args, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(branching, name[0], killed)
    one, two = stepwise.get_run("base").branch(at=1, variations=[{"model": "b"}, {"model": "c"}],
                                               effects="collect")
    two.adopt()

if __name__ == "__main__":
    stepwise.configure(suspend_after=0)
    if "KILL" in os.environ:
        adopt()
    try:
        print(agent.options(run_id="base")("tides"))
    except stepwise.RunSuspended as error:
        print(error.run_id)
"""


# Between these places nothing is written: no message is to be sent on, one branch is to be closed.
@pytest.mark.parametrize("place", ["superseded/before", "forward/before", "Adopted/before"])
def test_killed_while_adopting(tmp_path, place):
    """Killed anywhere in an adoption, the same script goes on as before it, or as the branch."""
    (tmp_path / "program.py").write_text(SCRIPT, encoding="utf-8")
    assert python("program.py", cwd=tmp_path).stdout.strip() == "sent a a tides"
    env = {**os.environ, "KILL": place}
    python("-c", "import program; program.adopt()", cwd=tmp_path, env=env, code=-signal.SIGKILL)
    said = python("program.py", cwd=tmp_path).stdout.strip()
    if place == "superseded/before":  # nothing was recorded
        assert said == "sent a a tides"
        return
    branch = stepwise.get_run(said)
    assert branch.forked_from == "base"
    others = [each for each in stepwise.runs() if each.id not in ("base", said)]
    answer(branch)
    assert python("program.py", cwd=tmp_path).stdout.strip() == "sent c a tides"
    assert {each.status for each in others} == {"cancelled"}
    assert (tmp_path / "log").read_text().splitlines() == ["SENT a a tides", "SENT c a tides"]


@pytest.mark.parametrize("named", ["base", "branch"])
def test_a_resume_finishes_an_adoption(tmp_path, named):
    """Killed between its two records, an adoption is finished by ``stepwise resume`` of either."""
    (tmp_path / "program.py").write_text(SCRIPT, encoding="utf-8")
    assert python("program.py", cwd=tmp_path).stdout.strip() == "sent a a tides"
    died = python("program.py", cwd=tmp_path, env={**os.environ, "KILL": "Adopted/before"})
    assert died.returncode == -signal.SIGKILL, died.stderr
    branch = stepwise.get_run("base")._to_go_on()
    [other] = [each.run for each in stepwise.get_run("base").branches if each.run != branch]
    assert branch.to_dict()["status"] == "suspended"
    given = {"base": "base", "branch": branch.id}[named]
    for expected in ("suspended", "completed"):
        python("-m", "stepwise", "resume", given, cwd=tmp_path)
        assert (branch.status, other.status) == (expected, "cancelled")
        for question in branch.questions:
            question.approve()
    assert (tmp_path / "log").read_text().splitlines() == ["SENT a a tides", "SENT c a tides"]


COPY = """
import os, signal, stepwise
from stepwise._runs import copying
write, done = copying._StoreEntry._write, []
def counted(*given):
    done.append(1)
    if len(done) == int(os.environ["KILL"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*given)
copying._StoreEntry._write = counted
stepwise.get_run("base").copy_to("disk:there")
"""


@pytest.mark.parametrize("write", ["2", "3", "6"])
def test_killed_while_a_superseded_base_is_copied(tmp_path, write):
    """A copy that was cut off begins nothing anew, and the same command copies the rest."""
    (tmp_path / "program.py").write_text(SCRIPT, encoding="utf-8")
    assert python("program.py", cwd=tmp_path).stdout.strip() == "sent a a tides"
    there = {**os.environ, "STEPWISE_STORE": f"disk:{tmp_path / 'there'}"}
    adopts = "stepwise.get_run('base').branch(at=1, effects='collect')[0].adopt()"
    done = python("-c", f"import program, stepwise; {adopts}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    died = python("-c", COPY, cwd=tmp_path, env={**os.environ, "KILL": write})
    assert died.returncode == -signal.SIGKILL, died.stderr
    refused = python("program.py", cwd=tmp_path, env=there)
    assert "is a copy that is not whole" in refused.stderr
    done = python("-c", COPY, cwd=tmp_path, env={**os.environ, "KILL": "0"})
    assert done.returncode == 0, done.stderr
    said = python("program.py", cwd=tmp_path, env=there).stdout.strip()
    assert said == stepwise.get_run("base").superseded_by
    assert (tmp_path / "log").read_text().splitlines() == ["SENT a a tides"]


@workflow(retention="all")
def reports(topic, model="a"):
    found = think(topic)
    news = stepwise.wait_for("news")
    return send(f"{model} {found} {news}")


@pytest.mark.parametrize("way", ["recover", "start", "up"])
def test_whoever_goes_on_finishes_an_adoption(way, monkeypatch):
    """``stepwise up``, ``recover`` and a call finish a half-done adoption, and then go on."""
    with pytest.raises(stepwise.RunSuspended):
        reports.options(run_id="base")("tides")
    run = stepwise.get_run("base")
    [branch] = run.branch(at=1, variations=[{"model": "b"}], effects="collect")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("stepwise._runs.branching.Adopted", stopped)
        branch.adopt()
    if way == "up":
        with Staying():
            run.send("news", "at last")
            until(lambda: branch.run.status == "completed")
    else:
        run.send("news", "at last")
        ways = {"recover": stepwise.recover, "start": lambda: [branch.run.resume()]}
        assert [each.result() for each in ways[way]()] == ["sent b about tides at last"]
    assert calls == ["b about tides at last"]


EDITED = """
import sys
import stepwise
from stepwise import step, tool, workflow

stepwise.configure(suspend_after=0)

@step
def think(topic):
    return f"about {topic}"

@tool(side_effect=True)
def send(text):
    print("sent", text)
    return f"sent {text}"

@workflow(retention="all", run_id="base")
def agent(topic, model="a"):
    found = think(topic)
    found = think(f"{model} {found}")
    EDIT
    return send(found)

if sys.argv[1] == "branch":
    run = agent.execute("tides")
    [branch] = run.branch(at=1, variations=[{"model": "b"}], effects="collect")
    branch.adopt()
    [question] = branch.run.questions
    question.approve() if sys.argv[2] == "yes" else question.deny("no")
else:
    try:
        agent("tides")
    except stepwise.RunSuspended:
        print([question.details for question in stepwise.get_run("base")._to_go_on().questions])
"""


@pytest.mark.parametrize("said", ["yes", "no"])
def test_an_edit_asks_anew(tmp_path, said):
    """What was said to a proposal does not count for the call of the edited program."""
    program = tmp_path / "program.py"
    program.write_text(EDITED.replace("EDIT", "pass"))
    first = python("program.py", "branch", said, cwd=tmp_path)
    assert first.stdout == "sent about a about tides\n", first.stderr
    program.write_text(EDITED.replace("EDIT", "found += '!'"))
    edited = python("program.py", "call", cwd=tmp_path)
    assert edited.stdout == "[\"text = 'about b about tides!'\"]\n", edited.stderr
