"""Forks: a run resumes from a point of another one, with other variables or results."""

import asyncio
import contextlib
import json
import os
import pathlib
import sys

import pytest
from harness import python

import stepwise
from stepwise import step, tool, workflow
from stepwise._execution import process_memory
from stepwise._runs import fork as forking
from stepwise._runs.branching import make as make_branches

SCRIPT = """
import os, sys
from stepwise import current_step, step, tool, workflow

@step
def think(number):
    print("think", number, flush=True)
    if os.environ.get("STOP_AT") == str(number):
        print("waiting", flush=True)
        sys.stdin.readline()
    return number * 10

@tool(side_effect=True)
def send(text):
    print("send", text, current_step().idempotency_key, flush=True)
    return f"sent {text}"

@workflow(retention="all")
def agent(topic):
    mood = "calm"
    total = 0
    for number in range(1, 4):
        total += think(number)
        send(f"{mood} {number} {total}")
    return total

if __name__ == "__main__":
    print("result", agent("tides"))
"""

calls = []


@pytest.fixture(autouse=True)
def nothing_called():
    calls.clear()


@step
def think(topic):
    calls.append(("think", topic))
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    calls.append(("send", text))
    return f"sent {text}"


@workflow(retention="all")
def agent(topic):
    thought = think(topic)
    mood = "calm"
    first = send(f"{mood} {thought}")
    second = send(f"{mood} {first}")
    return [thought, first, second]


def execute(run, topic="tides"):
    """Execute a fork of ``agent``."""
    calls.clear()
    return agent.options(run_id=run.id)(topic)


# -- from where ----------------------------------------------------------------------------------


def test_what_came_before_is_shared():
    """A fork resumes after the step it was made at, and repeats nothing that came before."""
    run = agent.execute("tides")
    fork = run.fork(at=2)
    assert (fork.status, fork.forked_from, fork.workflow) == ("ready", run.id, run.workflow)
    assert [each.number for each in fork.steps] == [1, 2]
    assert execute(fork) == run.result
    assert calls == [("send", "calm sent calm about tides")]
    assert fork.status == "completed"


def test_the_source_stays_as_it_was():
    """Neither forking nor executing the fork changes the run that was forked."""
    run = agent.execute("tides")
    before = run.steps, run.result, run.updated_at
    execute(run.fork(at=1))
    assert (run.steps, run.result, run.updated_at) == before
    assert agent.run_id_for("tides") == f"{run.id}-2"


def test_other_variables():
    """Variables that are given to ``fork`` have these values from there on, in forks of it too."""
    run = agent.execute("tides")
    fork = run.fork(at=2, locals={"mood": "merry"})
    assert fork.locals()["mood"] == "merry"
    assert execute(fork) == [
        "about tides",
        "sent calm about tides",
        "sent merry sent calm about tides",
    ]
    assert calls == [("send", "merry sent calm about tides")]
    fork = run.fork(at=1, locals={"thought": "a tale"})
    assert execute(fork) == ["a tale", "sent calm a tale", "sent calm sent calm a tale"]
    again = fork.fork(at=2, locals={"mood": "merry"})
    assert again.locals()["thought"] == "a tale"
    assert execute(again)[2] == "sent merry sent calm a tale"


def test_other_results():
    """A result that is given to ``fork`` is what its step returns; only the rest runs with that."""
    run = agent.execute("tides")
    fork = run.fork(results={"think": "a tale"})
    assert execute(fork) == ["a tale", "sent calm a tale", "sent calm sent calm a tale"]
    assert ("think", "tides") not in calls
    assert fork.steps[0].preview == "'a tale'"
    assert execute(run.fork(results={2: "lost"})) == ["about tides", "lost", "sent calm lost"]
    assert calls == [("send", "calm lost")]


def test_from_the_beginning_and_the_newest_checkpoint():
    """``at=0`` shares nothing but the arguments; without ``at`` a fork repeats nothing at all."""
    run = agent.execute("tides")
    fork = run.fork(at=0)
    assert fork.steps == []
    execute(fork)
    assert [name for name, _ in calls] == ["think", "send", "send"]
    assert execute(run.fork()) == run.result
    assert calls == []


def test_own_idempotency_keys():
    """The side effects that a fork makes itself have idempotency keys of their own."""
    run = agent.execute("tides")
    fork = run.fork(at=2)
    execute(fork)
    before, after = ([each.idempotency_key for each in r.steps] for r in (run, fork))
    assert before[1] == after[1]
    assert before[2] != after[2]


def test_without_checkpoints():
    """Where no checkpoint is left, a fork is answered by the shared records from the top."""

    @workflow(retention="latest_only")
    def short(topic):
        thought = think(topic)
        first = send(thought)
        return send(first)

    run = short.execute("tides")
    fork = run.fork(at=1)
    calls.clear()
    assert short.options(run_id=fork.id)("tides") == run.result
    assert calls == [("send", "about tides"), ("send", "sent about tides")]
    with pytest.raises(stepwise.StepNotFoundError, match="retention='all'"):
        run.fork(at=1, locals={"thought": "x"})


def test_a_failed_run():
    """A fork of a failed run with another variable goes past the failure."""

    @workflow
    def fragile(topic):
        thought = think(topic)
        divisor = 0
        second = think(thought)
        return len(second) / divisor

    with pytest.raises(ZeroDivisionError):
        fragile("tides")
    run = stepwise.get_run(fragile.run_id_for("tides"))
    fork = run.fork(locals={"divisor": 1})
    calls.clear()
    assert fragile.options(run_id=fork.id)("tides") == 17.0
    assert calls == []
    assert run.status == "failed"


@step
async def ask(topic):
    calls.append(("ask", topic))
    await asyncio.sleep(0)
    return f"about {topic}"


@tool(side_effect=True)
async def tell(text):
    calls.append(("tell", text))
    return f"told {text}"


@workflow(retention="all", checkpoint_every=2)
async def gathering(topics):
    told = []
    for topic in topics:
        thoughts = await asyncio.gather(*(ask(f"{topic} {number}") for number in range(3)))
        told.append(await tell(" and ".join(thoughts)))
        try:
            raise_on(topic)
        except ValueError:
            told.append("nothing")
    with contextlib.suppress(ValueError):
        told.append(think(topics[-1]))
    return told


@step
def raise_on(topic):
    calls.append(("raise_on", topic))
    if topic == "winds":
        raise ValueError(topic)


def test_behind_a_handled_failure():
    """Forked at a step whose failure was handled, a run resumes behind the handler."""

    @workflow(retention="all")
    def careful(topic):
        try:
            note = raise_on(topic)
        except ValueError:
            note = "none"
        return think(note)

    run = careful.execute("winds")
    calls.clear()
    fork = run.fork(at=1, locals={"note": "merry"})
    assert careful.options(run_id=fork.id)("winds") == "about merry"
    assert calls == [("think", "merry")]


def test_from_every_step():
    """From whatever step a run is forked, its fork ends like it, and makes the calls after that."""
    topics = ["tides", "winds", "currents"]
    run = asyncio.run(gathering.execute(topics))
    whole, steps = list(calls), run.steps
    assert len(steps) == len(whole) == 16
    for at in range(17):
        fork = run.fork(at=at)
        calls.clear()
        assert asyncio.run(gathering.options(run_id=fork.id)(topics)) == run.result, at
        shared = [(each.name, each.arguments) for each in fork.steps[: len(whole) - len(calls)]]
        assert len(shared) >= at
        assert sorted(calls) == sorted(whole[len(shared) :]), at
        assert fork.verify().ok


# -- child runs and undoing ----------------------------------------------------------------------


@workflow
def child(topic):
    first = send(topic)
    if topic in broken:
        raise ConnectionError("the line is dead")
    return send(first)


broken = set()


@workflow
def parent(topic):
    one = child(topic)
    two = child(f"more {topic}")
    return [one, two]


def test_child_runs():
    """A child run that has answered is shared; a later one is the fork's own."""
    run = parent.execute("tides")
    fork = run.fork(at=1)
    calls.clear()
    assert parent.options(run_id=fork.id)("tides") == run.result
    assert calls == [("send", "more tides"), ("send", "sent more tides")]
    shared, own = (each.child for each in fork.steps)
    assert shared.startswith(run.id)
    assert own.startswith(fork.id)


def test_a_child_run_that_stopped():
    """A child run that has not answered goes on in the fork, where it stopped, as its own."""
    broken.add("more tides")
    with pytest.raises(ConnectionError):
        parent("tides")
    broken.clear()
    run = stepwise.get_run(parent.run_id_for("tides"))
    fork = run.fork(at=2)
    calls.clear()
    parent.options(run_id=fork.id)("tides")
    assert calls == [("send", "sent more tides")]
    assert fork.steps[1].child.startswith(fork.id)
    assert stepwise.get_run(run.steps[1].child).status == "failed"
    fork.delete()
    assert stepwise.get_run(run.steps[1].child).steps


@pytest.mark.parametrize("way", ["fork", "branch"])
def test_killed_between_a_child_run_and_its_caller(way, monkeypatch):
    """Made again, a fork or a branch takes the child run that the killed process had written."""
    broken.add("more tides")
    with pytest.raises(ConnectionError):
        parent("tides")
    broken.clear()
    run, write = stepwise.get_run(parent.run_id_for("tides")), forking._NewRun._write
    known = {each.run_id for each in run.store.heads()}

    def killed_above(new, *what):
        if not new._parent:
            raise KeyboardInterrupt
        return write(new, *what)

    def make():
        return run.fork(at=2, run_id="f") if way == "fork" else make_branches(run, 2, 1, "refuse")

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(forking._NewRun, "_write", killed_above)
        make()
    (left,) = {each.run_id for each in run.store.heads()} - known
    before = [*run.store.read(left)]
    make()
    assert [*run.store.read(left)] == before
    (made,) = {each.run_id for each in run.store.heads()} - {*known, left}
    assert stepwise.get_run(made).steps[1].child == left
    if way == "fork":
        calls.clear()
        parent.options(run_id="f")("tides")
        assert calls == [("send", "sent more tides")]


def test_a_run_that_takes_the_id_meanwhile(monkeypatch):
    """A fork whose id another process has given to a fork meanwhile is refused; that one stays."""
    run, write = agent.execute("tides"), forking._NewRun._write

    def after_another(new, *what):
        monkeypatch.undo()
        execute(run.fork(at=1, run_id="f"))
        return write(new, *what)

    monkeypatch.setattr(forking._NewRun, "_write", after_another)
    with pytest.raises(stepwise.RunConflictError, match="'f' is taken by agent"):
        run.fork(at=0, run_id="f")
    assert stepwise.get_run("f").status == "completed"


@tool(side_effect=True, compensate=lambda call: calls.append(("undo", call.arguments["text"])))
def book(text):
    return text


@workflow
def leg(text):
    return book(text)


@pytest.mark.parametrize("part", [book, leg], ids=["step", "child run"])
def test_what_is_shared_is_not_undone(part):
    """A fork that is compensated undoes what it and its own child runs did, nothing it shares."""

    @workflow(retention="all")
    def trip(topic):
        part(f"{topic} 1")
        part(f"{topic} 2")

    run = trip.execute("tides")
    fork = run.fork(at=1)
    trip.options(run_id=fork.id)("tides")
    assert fork.compensate() == 1
    assert calls == [("undo", "tides 2")]
    assert run.compensate() == 2
    assert calls[1:] == [("undo", "tides 2"), ("undo", "tides 1")]


@pytest.mark.parametrize("part", [book, leg], ids=["step", "child run"])
def test_a_fork_whose_source_was_undone_is_not_continued(part):
    """A side effect that the source has undone since the fork was made is not done for the fork."""

    @workflow(retention="all")
    def trip(topic):
        done = part(topic)
        if topic not in calls:
            raise ConnectionError(topic)
        return done

    with pytest.raises(ConnectionError):
        trip("tides")
    (run,) = [each for each in stepwise.runs() if each.workflow.endswith("trip")]
    fork = run.fork(at=1)
    of_fork = fork.fork(at=1)
    assert run.compensate() == 1
    calls.append("tides")
    for each in (fork, of_fork):
        with pytest.raises(stepwise.ConfigurationError, match=f"{run.id!r} has undone step 1 sin"):
            trip.options(run_id=each.id)("tides")
    assert trip("tides")
    assert calls.count(("undo", "tides")) == 1


@tool(side_effect=True)
def charge(topic):
    calls.append(("charge", stepwise.current_step().idempotency_key))
    if topic in broken:
        raise ConnectionError("the line is dead")
    return "charged"


@tool(side_effect=True, fails_cleanly=ConnectionError)
def ship(topic):
    return charge.__wrapped__(topic)


@workflow(retention="all")
def order(topic):
    think(topic)
    return charge(topic)


@workflow(retention="all")
def delivery(topic):
    think(topic)
    return ship(topic)


def stopped(flow):
    """A run that failed in its second step, which would succeed now."""
    broken.add("tides")
    with pytest.raises(ConnectionError):
        flow("tides")
    broken.clear()
    return stepwise.get_run(flow.run_id_for("tides"))


def test_what_is_shared_in_doubt_is_in_doubt():
    """A side effect in doubt that a fork shares is not repeated; it is settled, or replaced."""
    run = stopped(order)
    fork, other = run.fork(at=2), run.fork(results={"charge": "it was"})
    calls.clear()
    with pytest.raises(stepwise.StepInDoubtError):
        order.options(run_id=fork.id)("tides")
    fork.resolve("charge", landed="it was")
    for each in (fork, other):
        assert order.options(run_id=each.id)("tides") == "it was"
    assert calls == []
    assert run.steps[1].status == "in_doubt"


def test_what_is_made_again_is_the_forks_own():
    """A side effect that did not happen is made by the fork under an idempotency key of its own."""
    run = stopped(delivery)
    fork = run.fork(at=2)
    assert delivery.options(run_id=fork.id)("tides") == "charged"
    assert delivery("tides") == "charged"
    first, forked, again = (key for name, key in calls if name == "charge")
    assert first == again != forked


# -- what cannot be ------------------------------------------------------------------------------


def test_what_cannot_be_forked():
    """A step or variable that is not there is named, and what cannot be recorded; none is made."""
    run = agent.execute("tides")
    for error, text, given in (
        (stepwise.StepNotFoundError, "9 is not a step of it", {"at": 9}),
        (stepwise.StepNotFoundError, "'send' names more than one", {"results": {"send": 1}}),
        (stepwise.StepNotFoundError, "3 comes after step 1", {"at": 1, "results": {3: 1}}),
        (stepwise.ConfigurationError, "no variable 'nod' .* thought", {"locals": {"nod": 1}}),
        (stepwise.NotRecordableError, "'mood'", {"locals": {"mood": (each for each in ())}}),
        (stepwise.RunConflictError, "is taken by agent", {"run_id": run.id}),
    ):
        with pytest.raises(error, match=text):
            run.fork(**{"at": 2, **given})
    assert stepwise.runs() == [run]
    with pytest.raises(stepwise.RunConflictError, match="tides"):
        execute(run.fork(at=1), "winds")


# -- stored --------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypt", [False, True])
def test_a_fork_verifies(encrypt):
    """Every byte of a fork verifies, before and after it was executed."""
    stepwise.configure(encrypt=encrypt)
    fork = agent.execute("tides").fork(at=2, locals={"mood": "merry"})
    assert fork.verify().ok
    execute(fork)
    assert fork.verify().ok
    stepwise.get_run(fork.forked_from).delete()
    assert fork.verify().ok
    assert fork.result[2] == "sent merry sent calm about tides"


def test_a_pruned_journal():
    """A run whose journal was pruned can be forked at the checkpoints that it kept."""

    @workflow(prune_journal=True, keep=2)
    def endless(count):
        total = 0
        for number in range(count):
            total += len(think(number))
        return total

    run = endless.execute(450)
    fork = run.fork()
    assert fork.verify().ok
    assert endless.options(run_id=fork.id)(450) == run.result
    with pytest.raises(stepwise.CodeChangedError, match="pruned"):
        run.fork(at=1)


# -- with a real kill ----------------------------------------------------------------------------


def killed_at(fork, monkeypatch, number):
    """A script whose run was killed inside ``think(number)``; what it had printed."""
    monkeypatch.setenv("STOP_AT", str(number))
    script = fork(SCRIPT)
    heard = []
    while (line := script.hear()) != "waiting":
        heard.append(line)
    script.kill()
    monkeypatch.delenv("STOP_AT")
    (run,) = stepwise.runs()
    return run, script.process.args[-1], heard


def again(path, **env):
    done = python(path, env={**os.environ, **env}, code=0)
    return done.stdout.splitlines()


def test_fork_of_a_killed_run(fork, monkeypatch):
    """A killed run and its fork both resume where it was killed, each with its own variables."""
    run, path, heard = killed_at(fork, monkeypatch, 3)
    made = run.fork(locals={"mood": "merry"})
    for run_id, mood in ((made.id, "merry"), ("", "calm")):
        said = again(path, STEPWISE_RESUME=run_id)
        assert [line.split()[:3] for line in said] == [
            ["think", "3"],
            ["send", mood, "3"],
            ["result", "60"],
        ]
    keys = [line.split()[-1] for line in [*heard, *said] if line.startswith("send")]
    assert len(set(keys)) == 3
    assert made.status == run.status == "completed"


def test_a_fork_that_is_killed(fork, monkeypatch):
    """A fork that is killed resumes where it stopped, and repeats nothing either."""
    run, path, _ = killed_at(fork, monkeypatch, 2)
    made = run.fork(at=1, results={1: 7})
    monkeypatch.setenv("STEPWISE_RESUME", made.id)
    monkeypatch.setenv("STOP_AT", "3")
    script = fork(pathlib.Path(path))
    said = []
    while (line := script.hear()) != "waiting":
        said.append(line.rpartition(" sw-")[0] or line)
    script.kill()
    monkeypatch.delenv("STOP_AT")
    assert said == ["send calm 1 7", "think 2", "send calm 2 27", "think 3"]
    said = again(path)
    assert said[0] == "think 3"
    assert said[-1] == "result 57"


def test_how_the_program_was_started(fork, monkeypatch):
    """A run knows the command line and the folder of the program that executes it."""
    run, path, _ = killed_at(fork, monkeypatch, 1)
    assert run.program.command[-1] == path
    assert run.program.command[0] == sys.executable
    assert run.program.cwd == os.getcwd()
    assert json.dumps(run.program.command)


# -- a fork of a run that the program names ------------------------------------------------------

NAMED = """
import os, sys
from stepwise import current_run, step, tool, workflow

@step
def look():
    return 1

@tool(side_effect=True)
def pay(cents):
    print("pay", cents, "in", current_run().id, flush=True)
    return cents

@workflow
def job(order):
    seen = look()
    if "STOP" in os.environ:
        print("waiting", flush=True)
        sys.stdin.readline()
    return pay(100 * seen)

for order in ("6", "7"):
    if os.environ.get("NAMES"):
        print("result", job.options(run_id=f"order-{order}")("book"))
    else:
        print("result", job.options(start=os.environ.get("MODE", "same"))(order))
"""


@pytest.fixture
def named(fork, monkeypatch):
    """A run that the program names; gives it, and the path of the program."""

    def killed(names="1"):
        monkeypatch.setenv("NAMES", names)
        monkeypatch.setenv("STOP", "1")
        script = fork(NAMED)
        assert script.hear() == "waiting"
        script.kill()
        monkeypatch.delenv("STOP")
        (run,) = stepwise.runs()
        return run, script.process.args[-1]

    return killed


@pytest.mark.parametrize("names", ["1", ""])
def test_a_fork_takes_the_place_of_its_source(named, names):
    """The fork that is to be resumed is executed where the program calls its source, not that."""
    run, path = named(names)
    first = run.fork(at=1, results={"look": 5}, run_id="first")
    fork = first.fork(at=1, results={"look": 7}, run_id="trial")
    said = again(path, STEPWISE_RESUME="trial")
    assert said[:2] == ["pay 700 in trial", "result 700"]
    assert said[-1] == "result 100"  # the other call of the program is another run
    assert (run.status, first.status, fork.status) == ("crashed", "ready", "completed")
    assert again(path, STEPWISE_RESUME="trial") == ["result 700", "result 100"]
    assert run.status == "crashed"


def test_a_fork_that_the_call_does_not_fit(named):
    """Where the source is called with other arguments, nothing runs, and an error says so."""
    run, path = named()
    made = run.fork(at=1, results={"look": 5}, run_id="trial")
    source = pathlib.Path(path).read_text("utf-8")
    pathlib.Path(path).write_text(source.replace('("book")', '("desk")'), "utf-8")
    done = python(path, env={**os.environ, "STEPWISE_RESUME": "trial"})
    assert "RunConflictError: run id 'trial' belongs to another call" in done.stderr
    assert "pay" not in done.stdout
    assert (run.status, made.status) == ("crashed", "ready")


def test_a_source_that_is_meant_beside_its_fork(monkeypatch):
    """A later call that means the source is refused while its fork is asked for."""
    monkeypatch.setitem(globals(), "broken", {"more tea"})
    with pytest.raises(OSError, match="line is dead"):
        parent("tea")
    (run,) = [each for each in stepwise.runs() if each.parent is None]
    fork = run.fork(at=0, run_id="trial")
    monkeypatch.setenv("STEPWISE_RESUME", fork.id)
    with pytest.raises(OSError, match="line is dead"):
        parent("tea")
    assert fork.status == "failed"
    calls.clear()
    vars(process_memory.memory)["_stopped"].clear()  # as for a call with other objects
    with pytest.raises(stepwise.RunConflictError, match="not executed in the fork's place"):
        parent("tea")
    assert calls == []


def test_the_source_itself_is_resumed_by_its_id(monkeypatch):
    """``Run.resume()`` of the source means that run, whatever fork the environment names."""
    run = agent.options(run_id="source").execute("a")
    fork = run.fork(at=0, run_id="trial")
    monkeypatch.setenv("STEPWISE_RESUME", fork.id)
    assert run.resume().id == "source"
    assert fork.status == "ready"
