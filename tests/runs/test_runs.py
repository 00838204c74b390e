"""Looking at runs, settling what is in doubt, and which run a call means."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest
from click.testing import CliRunner
from harness import WHOLE, python
from killed import forget_process
from outside import Log

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise._journal.lease import Lease
from stepwise._journal.records import Call, Ended, Entry, Handled, Intent, Outcome, Resumed
from stepwise._matching.pool import Pool
from stepwise._runs.steps import steps_of
from stepwise.stores.memory import MemoryStore


class Killed(SystemExit):
    """The process ends here."""


class Trouble(Exception):
    """What a step raises."""


done = Log()  # what steps did
dying = {}  # argument of a step -> what it raises, once


def body(x):
    if x in dying:
        raise dying.pop(x)
    done.append(x)
    return x


work = step(name="work")(body)
post = tool(name="post", side_effect=True)(body)


@workflow
def chain(*names):
    notes = []
    for name in names:
        notes.append(work(name))
    return notes


@workflow
def letter(text):
    draft = work("draft")
    sent = post(text)
    return [draft, sent, work("end")]


@workflow
def collect(items):
    items.append(work("a"))
    items.append(work("b"))
    return items


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
    dying.clear()


def stopped(call, *arguments, at, by=None):
    """The run of a call that was stopped in a step."""
    error = by or Killed()
    dying[at] = error
    with pytest.raises(type(error)):
        call(*arguments)
    forget_process()
    return stepwise.runs()[0]


# -- the steps of a run --------------------------------------------------------------------------


def test_steps():
    """Each recorded call tells its number, name, arguments, outcome, times and place."""
    before = time.time()
    run = letter.execute("hello")
    first, second, third = run.steps
    assert [each.number for each in run.steps] == [1, 2, 3]
    assert [each.name for each in run.steps] == ["work", "post", "work"]
    assert [each.status for each in run.steps] == ["completed"] * 3
    assert (second.arguments, second.preview, second.result) == ("x='hello'", "'hello'", "hello")
    assert [each.side_effect for each in run.steps] == [False, True, False]
    assert [each.attempts for each in run.steps] == [1, 1, 1]
    assert first.site.startswith("test_runs.py:")
    assert second.idempotency_key.startswith("sw-")
    assert before <= first.started_at <= first.finished_at <= third.finished_at <= time.time()
    assert first.duration == first.finished_at - first.started_at
    assert (first.error, first.traceback, first.child) == (None, "", "")


def test_a_child_run():
    """The call of a child workflow leads to its run, and that back to its caller."""

    @workflow
    def parent():
        return chain("a")

    run = parent.execute()
    (call,) = run.steps
    child = stepwise.get_run(call.child)
    assert (call.name, call.side_effect, call.result) == ("chain", False, ["a"])
    assert (child.parent, child.result) == (run.id, ["a"])
    assert run.parent is None


def test_status():
    """A run is running, then completed, failed or crashed."""
    seen = []

    @step
    def look():
        run = stepwise.current_run()
        seen.append((run.status, run.owner.pid > 0, run.result, run.error))

    @workflow
    def looking(fails):
        look()
        post("seen")
        if fails:
            raise Trouble("no")

    run = looking.execute(False)
    assert seen == [("running", True, None, None)]
    assert (run.status, run.owner, run.error) == ("completed", None, None)
    with pytest.raises(Trouble):
        looking(True)
    assert stepwise.runs()[0].status == "failed"
    run = stopped(letter, "hi", at="hi")
    assert (run.status, run.owner) == ("crashed", None)
    assert [each.status for each in run.steps] == ["completed", "in_doubt"]


def test_result_and_error():
    """The result of a completed run, and the exception of a failed one, are there to be had."""
    run = chain.execute("a", "b")
    assert (run.result, run.error, run.arguments) == (["a", "b"], None, "names=('a', 'b')")
    run = stopped(chain, "c", "d", at="d", by=Trouble("why"))
    assert run.result is None
    assert isinstance(run.error, Trouble)
    assert run.error.args == ("why",)
    failed = run.steps[1]
    assert (failed.status, failed.preview) == ("failed", "Trouble('why')")
    assert isinstance(failed.error, Trouble)
    assert "raise dying.pop(x)" in failed.traceback
    assert failed.result is None


class Team:
    """An object that no pickle can hold, and that its run changes."""

    def __init__(self):
        self.lock = threading.Lock()
        self.log = []

    @workflow
    def ask(self, question):
        self.log.append(work(question))
        return {"answer": self.log[-1]}


@pytest.mark.filterwarnings("ignore::stepwise.RunWarning")
def test_a_result_beside_a_changed_object_that_cannot_be_recorded():
    """The result is recorded apart from the object, which a call of the run changes anew."""
    team = Team()
    ask = team.ask.options(run_id="one")
    assert ask.execute("why").result == {"answer": "why"}
    assert team.ask.options(run_id="two").start("how").result() == {"answer": "how"}
    assert stepwise.get_run("two").result == {"answer": "how"}
    another = Team()
    done.clear()
    assert another.ask.options(run_id="one")("why") == {"answer": "why"}
    assert (another.log, done) == (["why"], [])


def test_a_result_that_is_not_recorded():
    """A result that cannot be recorded is made anew without the steps; reading it says the way."""

    @workflow
    def lock():
        work("a")
        return threading.Lock()

    warned = {"match": "(?s)the result of 'lock'.*its journal makes the result anew"}
    with pytest.warns(stepwise.RunWarning, **warned):
        run = lock.execute()
    with pytest.warns(stepwise.RunWarning, **warned):
        lock.options(run_id=run.id)()
    assert done == ["a"]
    assert run.status == "completed"
    with pytest.raises(
        stepwise.UnreadableValueError, match=r"result is not recorded: .*lock.* anew$"
    ):
        _ = run.result


def test_a_run_without_steps_whose_result_is_not_recorded(told):
    """Called again, such a run is not taken for one that was stopped."""

    @workflow(run_id="one")
    def lock():
        return threading.Lock()

    for _ in range(2):
        with pytest.warns(stepwise.RunWarning):
            lock()
    assert "one begins again from the top: it had completed, but its end" in told()


def test_the_result_of_a_generator():
    """The result of a generator is what it returned; a call of its run yields the items anew."""

    @workflow
    def count():
        yield work("a")
        return "all"

    assert [*count.options(run_id="one")()] == ["a"]
    assert stepwise.get_run("one").result == "all"
    assert [*count.options(run_id="one")()] == ["a"]


def test_what_an_attempt_did():
    """A run tells where its last attempt resumed, and how many steps it executed and skipped."""
    run = chain.execute("x")
    assert (run.resumed_from_step, run.steps_executed, run.steps_skipped) == (None, 1, 0)
    run = stopped(chain, *"abcd", at="c")
    assert (run.resumed_from_step, run.steps_executed, run.steps_skipped) == (None, 2, 0)
    assert chain.execute(*"abcd") == run
    assert (run.resumed_from_step, run.steps_executed, run.steps_skipped) == (2, 2, 2)
    assert run.result == [*"abcd"]
    assert done == ["x", *"abcd"]


# -- settling and forgetting ---------------------------------------------------------------------


@pytest.mark.parametrize("which", [2, "2", "post"])
def test_resolve_landed(which):
    """Settled as landed, by number or name, a side effect returns what it is said to have."""
    run = stopped(letter, "hi", at="hi")
    with pytest.raises(stepwise.StepInDoubtError):
        letter("hi")
    forget_process()
    run.resolve(which, landed="id 7")
    assert run.steps[1].status == "completed"
    assert run.steps[1].result == "id 7"
    assert letter("hi") == ["draft", "id 7", "end"]
    assert done == ["draft", "end"]


def test_resolve_did_not_happen():
    """Settled as not happened, a side effect runs."""
    run = stopped(letter, "hi", at="hi")
    run.resolve("post", did_not_happen=True)
    assert letter("hi") == ["draft", "hi", "end"]
    assert done == ["draft", "hi", "end"]


def test_resolve_wrongly():
    """What is not in doubt cannot be settled, and one thing has to be said."""
    run = stopped(letter, "hi", at="hi")
    for which in (1, "work", 9, "nobody"):
        with pytest.raises(stepwise.StepNotFoundError, match=r"in doubt: 2 \(post\)") as caught:
            run.resolve(which, landed=1)
        assert caught.value.run_id == run.id
    for answer in ({}, {"landed": 1, "did_not_happen": True}):
        with pytest.raises(stepwise.ConfigurationError):
            run.resolve(2, **answer)
    assert run.steps[1].status == "in_doubt"


def test_forget():
    """A forgotten step runs again the next time, and nothing else does."""
    run = chain.execute("a", "b", "c")
    run.forget(2)
    assert run.status == "crashed"
    assert [each.number for each in run.steps] == [1, 3]
    forget_process()
    assert chain("a", "b", "c") == ["a", "b", "c"]
    assert done == ["a", "b", "c", "b"]
    with pytest.raises(stepwise.StepNotFoundError, match="names more than one; give its number"):
        run.forget("work")
    with pytest.raises(
        stepwise.StepNotFoundError, match=r"'nobody' of run .* is not a step recorded"
    ):
        run.forget("nobody")


def test_what_was_forgotten_stays_forgotten():
    """A forgotten step is executed again, even if the attempt after that failed before it could."""
    log = []

    @step
    def look():
        log.append("look")
        if len(log) == 3:
            raise ConnectionError("no route")
        return len(log)

    @step
    def send(what):
        log.append(f"send {what}")
        if len(log) == 2:
            raise ConnectionError("no route")
        return what

    @workflow
    def agent():
        seen = look()
        sent = send(seen)
        return seen, sent

    with pytest.raises(ConnectionError):
        agent()
    (run,) = stepwise.runs()
    run.forget("look")
    with pytest.raises(ConnectionError):
        agent()
    assert agent() == (4, 4)
    assert log == ["look", "send 1", "look", "look", "send 4"]


def test_delete():
    """A deleted run is gone with its children, and the same call starts afresh."""

    @workflow
    def parent():
        return chain("a")

    run = parent.execute()
    child = stepwise.get_run(run.steps[0].child)
    run.delete()
    assert stepwise.runs() == []
    for gone in (run, child):
        with pytest.raises(stepwise.RunNotFoundError):
            _ = gone.status
    forget_process()
    assert parent() == ["a"]
    assert done == ["a", "a"]


KILLED = """
import os, signal, sys
import stepwise
from stepwise import emit, tool, workflow
from stepwise._runs import verify
from stepwise.stores.disk import DiskStore

stepwise.configure(suspend_after=0)
_, what, kill = sys.argv
changes = 0

def killing(method):
    def changed(*args, **more):
        global changes
        for step in (method, None):
            if step is not None:
                result = step(*args, **more)
            changes += 1
            if changes == int(kill):
                os.kill(os.getpid(), signal.SIGKILL)
        return result
    return changed

@tool(side_effect=True)
def pay(whom):
    with open("log", "a") as file:
        print(whom, file=file, flush=True)

@workflow
def inner(whom):
    pay(whom)
    if what == "fails":
        raise ValueError(whom)

@workflow
def outer():
    pay("a")
    emit("paid")
    inner("b")
    inner("c")

if what == "deletes":
    for name in ("write", "delete"):
        setattr(DiskStore, name, killing(getattr(DiskStore, name)))
    verify.bury_anchor = killing(verify.bury_anchor)
    stepwise.get_run("r").delete()
else:
    outer.options(run_id="r")()
"""


def test_a_deletion_that_is_killed(tmp_path):
    """Wherever a deletion is killed, the run is whole or asks for the rest, then begins anew."""
    (tmp_path / "program.py").write_text(KILLED, encoding="utf-8")
    log, refused = tmp_path / "log", 0

    def start(what, kill=0):
        return python("program.py", what, str(kill), cwd=tmp_path)

    for kill in itertools.count(1) if WHOLE else itertools.count(2, 3):
        log.write_text("")
        assert "ValueError" in start("fails").stderr
        if start("deletes", kill).returncode == 0:
            break
        before, ended = log.read_text(), start("goes on")
        if ended.returncode:
            refused += 1
            with pytest.raises(stepwise.JournalLostError, match="its deletion was cut off"):
                stepwise.get_run("r").fork()
            assert "its deletion was cut off" in ended.stderr
            assert log.read_text() == before
            python("-m", "stepwise", "forget", "r", "--yes", cwd=tmp_path, code=0)
            assert start("goes on").returncode == 0
            assert log.read_text() == f"{before}a\nb\nc\n"
        assert stepwise.get_run("r").status == "completed"
        stepwise.get_run("r").delete()
    assert refused > (5 if WHOLE else 1)


def test_a_run_whose_child_run_is_in_use_is_not_deleted():
    """If a process has a child run, nothing is deleted, and the run goes on as before."""

    @workflow
    def first(x):
        return work(x)

    @workflow
    def second(x):
        return work(x)

    @workflow
    def outer():
        return [first("a"), second("b")]

    run = outer.options(run_id="r").execute()
    for step_ in run.steps:
        with (
            Lease(run.store, step_.child).acquire(),
            pytest.raises(stepwise.RunBusyError, match="is being executed"),
        ):
            run.delete()
    assert [each.result for each in run.steps] == ["a", "b"]
    assert [stepwise.get_run(each.child).status for each in run.steps] == ["completed"] * 2
    run.forget(2)
    assert outer.options(run_id="r")() == ["a", "b"]
    run.delete()
    assert stepwise.runs() == []


def test_a_child_run_is_deleted_with_its_caller():
    """A child run is not deleted alone: called again, its caller would repeat its side effects."""

    @workflow
    def parent():
        return chain("a")

    run = parent.execute()
    child = stepwise.get_run(run.steps[0].child)
    with pytest.raises(stepwise.ConfigurationError, match=f"stepwise forget {run.id} deletes both"):
        child.delete()
    assert child.status == "completed"
    run.delete()
    assert stepwise.runs() == []


def test_a_child_run_that_begins_before_the_deletion(monkeypatch):
    """A child run that its caller begins while the deletion begins is deleted, too."""
    stops = [True]

    @step
    def stop():
        if stops:
            raise SystemExit

    @workflow
    def parent():
        stop()
        return chain("a")

    with pytest.raises(SystemExit):
        parent()
    run, acquire = stepwise.get_run(parent.run_id_for()), Lease.acquire

    def after_the_run(lease, **how):
        if lease.run_id == run.id:
            monkeypatch.undo()
            stops.clear()
            parent()
        return acquire(lease, **how)

    monkeypatch.setattr(Lease, "acquire", after_the_run)
    run.delete()
    assert done == ["a"]
    assert list(run.store.heads()) == []


def test_a_run_in_progress_keeps_its_child_runs():
    """A run that is being executed is not deleted, and neither are its completed child runs."""

    @step
    def look():
        run = stepwise.current_run()
        with pytest.raises(stepwise.RunOwnedError):
            run.delete()

    @workflow
    def parent():
        chain("a")
        look()

    run = parent.execute()
    assert stepwise.get_run(run.steps[0].child).status == "completed"


def test_owned_runs_are_left_alone():
    """A run that is being executed is not deleted, forgotten or settled under its feet."""

    @step
    def meddle():
        run = stepwise.current_run()
        for change in (run.delete, lambda: run.forget(1), lambda: run.resolve(1, landed=1)):
            with pytest.raises(stepwise.RunOwnedError):
                change()

    @workflow
    def flow():
        work("a")
        meddle()
        return work("b")

    assert flow() == "b"


# -- finding runs --------------------------------------------------------------------------------


def test_runs():
    """Runs are listed newest first, all or those of a workflow, all or those of a status."""
    first, second = chain.execute("a"), chain.execute("b")
    crashed = stopped(letter, "hi", at="hi")
    assert stepwise.runs() == [crashed, second, first]
    assert stepwise.runs(chain) == [second, first]
    assert stepwise.runs("chain") == stepwise.runs(chain.full_name) == [second, first]
    assert stepwise.runs(status="crashed") == [crashed]
    assert stepwise.runs(workflow=chain, status="failed") == []
    assert stepwise.runs("nobody") == []


def test_get_run():
    """A run is got by its id, equal to each handle of it; an error names similar ids."""
    run = chain.execute("a")
    assert repr(run) == f"<Run {run.id} completed: chain(names=('a',))>"
    assert {run, stepwise.get_run(run.id)} == {run}
    assert run != chain.execute("b")
    assert run.workflow.endswith("test_runs:chain")
    with pytest.raises(stepwise.RunNotFoundError, match=f"Did you mean '{run.id}'") as caught:
        stepwise.get_run(run.id[:-1] + "x")
    assert caught.value.run_id == run.id[:-1] + "x"

    @workflow
    async def later(x):
        return work(x)

    async def main():
        return await later.execute("a")

    assert asyncio.run(main()).result == "a"


def test_other_stores(tmp_path):
    """Runs of another store are found there, and only there."""
    other = f"disk:{tmp_path / 'other'}"
    run = chain.options(store=other).execute("a")
    assert stepwise.runs(store=other) == [run]
    assert stepwise.runs() == []
    assert stepwise.get_run(run.id, store=other).result == ["a"]


# -- which run is meant --------------------------------------------------------------------------


def test_called_again_after_it_completed(told):
    """Called again in the same process, a completed workflow is a new run, as a function is."""
    ids = [chain.execute("a").id for _ in range(3)]
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]
    assert done == ["a"] * 3
    assert told() == ""
    forget_process()
    with pytest.warns(stepwise.RunWarning, match=f"was answered by {ids[1]}, which another"):
        assert [chain.execute("a").id for _ in range(4)] == [*ids, f"{ids[0]}-4"]
    assert done == ["a"] * 4
    assert told().count("already completed") == 3


def test_a_completed_run_is_recalled(told):
    """Started again, a script gets the recorded result; the first notice says how to start anew."""
    runs = [chain.execute(name) for name in "abc"]
    forget_process()
    for name in "abc":
        assert chain(name) == [name]
    first, *others = told().splitlines()
    assert first.startswith(f"stepwise: {runs[0].id} already completed at ")
    assert "its code has changed" not in first
    assert "To run it afresh: .options(fresh=True)" in first
    assert first.endswith(f"STEPWISE_FRESH=1, or: stepwise forget {runs[0].id}")
    assert len(others) == 2
    assert all(line.endswith("; this is its recorded result") for line in others)
    assert done == [*"abc"]


def test_a_run_that_stopped_in_a_child_says_so(told):
    """What the parent tells names the child run in which it goes on, not that nothing was done."""

    @workflow(name="inner")
    def inner(*letters):
        return chain(*letters)

    @workflow
    def outer(first):
        return ([inner("a")] if first else []) + [inner("b", "c")]

    for first, said in (
        (True, ", 1 step answered by the journal, in its child run {}/inner-"),
        (False, "{} begins again from the top, in its child run {}/inner-"),
    ):
        run_id = stopped(outer, first, at="c").id.partition("/")[0]
        told()
        outer(first)
        assert said.format(run_id, run_id) in told()


def test_a_run_that_failed_first_says_so(told):
    """A run that failed before a step of it was done does not say that it was stopped."""
    stopped(chain, "a", at="a", by=ValueError())
    told()
    assert chain("a") == ["a"]
    line = told().splitlines()[-1]
    assert line.endswith("begins again from the top: none of its steps had been done")


def test_a_resumed_run_says_so(told):
    """A run that resumes says in one line where, and after how many steps."""
    run = stopped(chain, *"abc", at="c")
    told()
    chain(*"abc")
    line = chain.definition.function.__code__.co_firstlineno + 3
    told_last = told().splitlines()[-1]  # before it: what the steps did to ``done`` is not restored
    assert told_last == f"stepwise: {run.id} resumes at test_runs.py:{line}, after 2 steps"


def test_starting_afresh(monkeypatch, told):
    """``fresh=True`` and ``STEPWISE_FRESH=1`` start a new run, whose id they tell."""
    runs = [chain.execute("a"), chain.options(fresh=True).execute("a")]
    monkeypatch.setenv("STEPWISE_FRESH", "1")
    runs.append(chain.execute("a"))
    assert len({run.id for run in runs}) == 3
    assert done == ["a"] * 3
    told_ids = [
        line.partition("a fresh run: ")[2].partition(";")[0] for line in told().splitlines()
    ]
    assert told_ids == [run.id for run in runs[1:]]


def test_an_unfinished_run_beside_it(told):
    """A new run beside an unfinished one names that, and its side effects."""
    old = stopped(letter, "hi", at="end")
    new = letter.execute("there")
    assert f"stepwise: {new.id} starts; unfinished beside it: {old.id}(text='hi')" in told()
    assert letter.execute("hi") == old


def test_conflict():
    """A run id that belongs to another call is refused, and both calls are shown."""
    chain.options(run_id="mine")("a")
    forget_process()
    assert chain.options(run_id="mine")("a") == ["a"]
    with pytest.raises(stepwise.RunConflictError) as caught:
        chain.options(run_id="mine")("b")
    text = str(caught.value)
    assert "recorded  chain(names=('a',))" in text
    assert "given     chain(names=('b',))" in text
    assert "stepwise forget mine" in text
    assert (caught.value.run_id, caught.value.given) == ("mine", "chain(names=('b',))")
    with pytest.raises(stepwise.RunConflictError, match=r"belongs to another call of .*:chain"):
        letter.options(run_id="mine")("a")
    assert done == ["a"]


def test_the_same_objects_again():
    """Called again with the objects that a failed attempt changed, it goes on with that run."""

    class Agent:
        def __init__(self):
            self.notes = []

        @workflow
        def go(self):
            return collect.__wrapped__(self.notes)

    agent, mine = Agent(), []
    for call, notes in ((agent.go, agent.notes), (lambda: collect(mine), mine)):
        dying["b"] = Trouble("no")
        with pytest.raises(Trouble):
            call()
        assert notes == ["a"]
        assert call() is notes
        assert notes == ["a", "b"]
    assert done == ["a", "b"] * 2
    assert len(stepwise.runs()) == 2
    dying["b"] = Trouble("no")
    with pytest.raises(Trouble):
        collect(mine)
    mine.append("mine")  # changed since, so another call
    assert collect(mine) == ["a", "b", "a", "mine", "a", "b"]
    assert collect(["a", "b", "a"]) == ["a", "b", "a", "a", "b"]
    assert len(stepwise.runs()) == 5


# -- why a record did not answer -------------------------------------------------------------------


def test_which_record_a_call_stands_beside():
    """It is the unused one of its turn; where the parts of both are known, it says what differs."""
    old = Call(1, "think", "m", "d1", 1, parts={"about": "a", "messages": "b"})
    new = old._replace(number=2, digest="d2", parts={"about": "a", "messages": "c"}, instead=1)
    entries = [Entry(n, Outcome(call), b"") for n, call in enumerate((old, new), 1)]
    assert [
        each.differs for each in steps_of((MemoryStore("nothing"), None, "r"), entries, owned=False)
    ] == [
        (),
        ("messages",),
    ]
    pool = Pool(entries[:1])
    turns = new, new._replace(branch="left"), new._replace(ordinal=2)
    assert [*map(pool.instead, turns)] == [1, 0, 0]
    pool.take(pool.get(1))
    assert pool.instead(new) == 0


def test_why_a_step_ran_again():
    """A call made anew beside an unused record of its name names it, and the part that differs."""
    prompts = iter(["first", "second"])

    @workflow
    def agent():
        return [work(next(prompts)), work("end")]

    run = stopped(agent, at="end")
    assert [each.instead for each in run.steps] == [0]
    assert agent() == ["second", "end"]
    assert [(each.number, each.instead) for each in run.steps] == [(1, 0), (2, 1), (3, 0)]
    text = CliRunner().invoke(cli.main, ["show", run.id]).output
    assert "step 2 work ran, since the argument 'x' differs from step 1" in text


@pytest.mark.parametrize("void", [True, False])
def test_an_end_that_does_not_count(void):
    """A handled failure is in doubt again if the run ended with it, and that end counts."""
    call = Call(1, "send", "m", "d", 1, effect=True)
    records = [Intent(call), Outcome(call, "failed"), Handled((1,)), Ended("failed", retry=(1,))]
    entries = [
        Entry(number, record, b"")
        for number, record in enumerate([*records, Resumed(2, "resumes", 0, void=void)], 1)
    ]
    (step,) = steps_of((MemoryStore("nothing"), None, "r"), entries, owned=False)
    assert step.status == ("failed" if void else "in_doubt")
    (before,) = steps_of((MemoryStore("nothing"), None, "r"), entries[:-1], owned=False)
    assert before.status == "in_doubt"
