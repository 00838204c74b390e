"""``submit()``: runs that are recorded now, and begun by whoever serves their workflow; turns."""

import asyncio
import datetime as dt
import functools
import itertools
import os
import threading
import time

import pytest
from harness import python, until
from supervised import SECONDS, Staying, once, supervisor

import stepwise
from stepwise import step, workflow
from stepwise._journal.journal import open_head, seal_for
from stepwise._runtime import clock, settings
from stepwise._workflows import definition, submitted
from stepwise._workflows import up as module
from stepwise.stores import open_store

done = []
HOUR = dt.timedelta(hours=1)
gates = {}
executed = {"now": 0, "most": 0}
mutex = threading.Lock()
EXCHANGES = "acquire", "release", "owner", "write", "read", "get", "names", "head", "marks"


@step
def work(name):
    done.append(name)
    return name


@workflow
def job(name):
    return work(name)


@workflow
def empty():
    pass


@workflow
async def ajob(name):
    return work(name)


@workflow
def other(name):
    return work(name)


@workflow
def items(name):
    yield work(name)


@workflow
def by_names(at=None, run_id=None, name=""):
    return work((at, run_id, name))


@workflow(timeout=60)
def timely(name):
    return work(name)


@workflow(secret=["key"])
def secretive(key):
    return work(len(key))


class Agent:
    def __init__(self, name):
        self.name = name

    @workflow
    def greet(self, whom):
        return work(f"{self.name} greets {whom}")


class Gone:
    """Its objects pickle, and do not load."""

    def __reduce__(self):
        return _refuse, ()


loads = [True]


def _refuse():
    if not loads:
        raise ValueError("it is gone")
    return Gone()


def counted(name):
    with mutex:
        executed["now"] += 1
        executed["most"] = max(executed["most"], executed["now"])
    try:
        if name in gates:
            assert gates[name].wait(SECONDS)
        done.append(name)
    finally:
        with mutex:
            executed["now"] -= 1


@workflow(concurrent=2)
def two(name):
    counted(name)


@workflow(concurrent=1)
def one(name):
    counted(name)


@workflow(concurrent=1)
async def aone(name):
    await asyncio.sleep(0.01)
    counted(name)


@workflow(concurrent=1)
def patient(name):
    stepwise.wait_for("go")
    done.append(name)


@workflow(concurrent=1)
def outer(name):
    return one(name)


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()
    gates.clear()
    loads[:] = [True]
    executed.update(now=0, most=0)
    submitted._rung.clear()


# -- submitting ----------------------------------------------------------------------------------


def test_a_submitted_run_is_recorded_and_has_not_begun():
    """A submitted run is suspended, waits to be begun, and none of its code is called."""
    run = job.submit("a")
    assert (run.status, run.steps, done) == ("suspended", [], [])
    (wait,) = run.waits
    assert (wait.kind, wait.step) == ("start", 0)
    assert str(wait).startswith("to be begun, since ")
    assert "not before" not in str(wait)
    assert [each.id for each in stepwise.runs(status="suspended")] == [run.id]
    assert "to be begun" in str(run.why())
    assert f"stepwise up {__name__}" in str(run.why())
    shown = python("stepwise", "show", run.id)
    assert f"begins    by stepwise up {__name__}" in shown.stdout


def test_a_submission_is_rows_only(home):
    """No file is made for a submitted run, and no lease is held."""
    job.submit("first")

    def files():
        return sum(len(names) for _, _, names in os.walk(home))

    before = files()
    runs = [job.submit(name) for name in range(20)]
    assert files() == before
    assert all(run.owner is None for run in runs)


def test_each_submission_is_a_run_of_its_own():
    """Without a run id, equal submissions are different runs."""
    assert len({job.submit("a").id for _ in range(5)}) == 5


def test_a_run_id_is_submitted_once():
    """A second submission with the same id and arguments is the same run; with others an error."""
    first = job.submit("a", run_id="r")
    assert job.submit("a", run_id="r").id == first.id == "r"
    assert job.options(run_id="r").submit("a").id == "r"
    assert len(stepwise.runs()) == 1
    with pytest.raises(stepwise.RunConflictError, match="belongs to another call"):
        job.submit("b", run_id="r")
    once()
    assert job.submit("a", run_id="r").status == "completed"
    assert done == ["a"]


def test_one_id_from_many_threads():
    """Threads that submit one run id at once record one run."""
    job.submit("before")
    found = []
    submit = functools.partial(job.submit, "a", run_id="r")
    threads = [threading.Thread(target=lambda: found.append(submit().id)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SECONDS)
    assert found == ["r"] * 8
    assert len(stepwise.runs()) == 2


def test_submissions_from_many_threads():
    """Submissions of many threads are all recorded."""
    threads = [
        threading.Thread(target=lambda n=n: [job.submit((n, i)) for i in range(8)])
        for n in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SECONDS)
    once()
    assert sorted(done) == [(n, i) for n in range(8) for i in range(8)]


@pytest.mark.parametrize("at", [dt.datetime(2026, 1, 1), 5, "noon"])  # noqa: DTZ001
def test_a_time_that_is_none(at):
    """A time without a zone, or no time, is refused with what to write."""
    with pytest.raises(stepwise.ConfigurationError, match="a datetime with a time zone"):
        job.submit("a", at=at)
    assert stepwise.runs() == []


def test_a_run_id_that_is_none():
    """A run id that no run can have is refused."""
    with pytest.raises(stepwise.ConfigurationError, match="run_id="):
        job.submit("a", run_id="")


def test_parameters_of_the_same_name():
    """``at`` and ``run_id`` are those of submit; if they may be the workflow's, it is refused."""
    for own in ({"at": HOUR}, {"run_id": "r"}):
        with pytest.raises(stepwise.ConfigurationError, match="by position"):
            by_names.submit(**own)
    run = by_names.submit("noon", "theirs", at=dt.timedelta(0), run_id="ours")
    once()
    assert (run.id, done) == ("ours", [("noon", "theirs", "")])


def test_what_cannot_be_recorded():
    """An argument that another process would not get is refused, and nothing is recorded."""
    with pytest.raises(stepwise.NotRecordableError, match="another process begins the run"):
        job.submit(threading.Lock())
    with pytest.raises(stepwise.NotRecordableError, match="secret"):
        secretive.submit("a key")
    with pytest.raises(TypeError):
        job.submit()
    assert stepwise.runs() == []


SCRIPT = """
import enum, functools
import shop
from stepwise import NotRecordableError, workflow

class Order:
    pass

class Size(enum.Enum):
    SMALL = 1

def price(order):
    return 1

def made():
    class Inner:
        pass
    unit = 1
    def inner(order):
        return unit
    return inner, Inner

@workflow
def job(what):
    return repr(what)

if __name__ == "__main__":
    inner, Inner = made()
    for name, what in {
        "an object": Order(), "a class": [Order], "a member": {"size": Size.SMALL},
        "a function": price, "a partial": functools.partial(price, 1), "a lambda": [lambda: 1],
        "a closure": inner, "a local class": Inner,
    }.items():
        try:
            shop.job.submit(what)
            print("recorded:", name)
        except NotRecordableError as error:
            assert "lacks " in str(error), error
    for what in ("__main__", shop.sold, shop.made(2), shop.Good()):
        shop.job.submit(what)
"""
SHOP = """
from stepwise import workflow

def made(unit):
    return lambda: unit

def sold():
    pass

class Good:
    pass

@workflow
def job(what):
    return repr(what)
"""


def test_code_of_the_script_is_refused(tmp_path):
    """An argument that needs a definition of the submitting script is refused, not left by up."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "shop.py").write_text(SHOP)
    said = python("script.py", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, ""), said.stderr
    assert len(stepwise.runs()) == 4
    python("stepwise", "up", "--once", "shop", cwd=tmp_path, code=0)
    assert {run.status for run in stepwise.runs()} == {"completed"}


OWN = """
import stepwise
from stepwise import workflow

class Order:
    pass

@workflow
def job(what):
    return type(what).__name__

if __name__ == "__main__":
    stepwise.configure(quiet=False)
    for _ in range(2):
        job.submit(Order())
    print([each.result() for each in stepwise.recover(job)])
"""


def test_a_script_begins_its_own_runs(tmp_path):
    """A script whose own workflow needs its own classes is told that only it can begin the runs."""
    (tmp_path / "script.py").write_text(OWN)
    said = python("script.py", cwd=tmp_path)
    assert said.stdout == "['Order', 'Order']\n", said.stderr
    assert said.stderr.count("only recover() in this script can begin it") == 1


def test_a_program_without_a_file_begins_its_own_runs():
    """A notebook or a program on stdin submits what only it can begin, with its own classes."""
    said = python(
        "-c",
        "import stepwise\nfrom stepwise import workflow\nclass Order: pass\n"
        "@workflow\ndef job(what): return 7\njob.submit(Order(), run_id='r')\n"
        "print([each.result() for each in stepwise.recover(job)])",
    )
    assert said.stdout == "[7]\n", said.stderr


def test_a_store_in_memory(capfd):
    """A submission to a store in memory says once that no other process can begin its runs."""
    stepwise.configure(quiet=False)
    for _ in range(2):
        job.options(store="memory:submitted").submit("a")
    said = capfd.readouterr().err
    assert said.count("only recover() in this process can") == 1
    (first, second) = stepwise.recover(job, store="memory:submitted")
    assert (first.result(), second.result()) == ("a", "a")


def test_a_generator_is_refused():
    """Nothing would consume the items of a generator."""
    with pytest.raises(stepwise.ConfigurationError, match="generator"):
        items.submit("a")


def test_methods_and_coroutines():
    """A method is submitted with its instance; a coroutine function without an event loop."""
    run, other_run = Agent("ann").greet.submit("bob"), ajob.submit("a")
    once()
    assert sorted(done) == ["a", "ann greets bob"]
    assert (run.result, other_run.result) == ("ann greets bob", "a")


def test_in_a_coroutine():
    """``submit()`` is called in a coroutine, too."""

    async def main():
        return ajob.submit("a")

    assert asyncio.run(main()).status == "suspended"


# -- beginning -----------------------------------------------------------------------------------


def test_in_the_order_of_submission(monkeypatch):
    """Runs begin in the order of their submission, however few of them are planned at a time."""
    monkeypatch.setattr(module, "_DRAWN", 5)
    names = [f"{number}" for number in range(40)]
    for name in names:
        job.submit(name)
    once(most=1)
    assert done == names


def test_workflows_take_turns_in_order():
    """The order holds over several workflows of a store."""
    names = [f"{number}" for number in range(20)]
    for name, each in zip(names, itertools.cycle([job, other, ajob])):
        each.submit(name)
    once(most=1)
    assert done == names


def test_recover_begins_in_order(monkeypatch):
    """``recover()`` begins the runs that are due, in order, and later those that are due later."""
    now, passed = clock.now, [0.0]
    monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
    for name in "abc":
        job.submit(name)
    later = job.submit("d", at=HOUR)
    handles = stepwise.recover(job, max_workers=1)
    assert [each.result() for each in handles] == done[:3] == ["a", "b", "c"]
    passed[0] = HOUR.total_seconds()
    later.send("look", None)
    until(lambda: later.status == "completed")


def test_not_before_its_time():
    """A run with a time begins then, and another time in the past is now."""
    at = dt.datetime.now(dt.timezone.utc)
    job.submit("now")
    job.submit("past", at=at - HOUR)
    run = job.submit("later", at=at + HOUR)
    said = once(most=1)
    assert done == ["now", "past"]
    assert "not before" in said[-1].detail
    assert (said[-1].kind, said[-1].facts.run_id) == ("left", run.id)
    assert "not before" in str(run.waits[0])


def test_a_supervisor_hears_of_submissions(monkeypatch):
    """A supervisor that waits begins what is submitted, in order, also many at once."""
    monkeypatch.setattr(module, "_DRAWN", 10)
    monkeypatch.setattr(module, "_SCAN", 1000.0)
    job.submit("0")
    with Staying(most=1):
        for number in range(1, 30):
            job.submit(str(number))
        until(lambda: len(done) == 30)
    assert done == [str(number) for number in range(30)]


def test_a_later_submission_that_is_due_earlier(monkeypatch):
    """Runs that are due later do not keep others waiting, however many there are."""
    monkeypatch.setattr(module, "_DRAWN", 5)
    monkeypatch.setattr(module, "_SCAN", 1000.0)
    for number in range(20):
        job.submit(number, at=HOUR)
    with Staying() as up:
        job.submit("a")
        job.submit("b")
        until(lambda: sorted(done) == ["a", "b"])
        assert len(up.made._agenda.plans) <= 5


def test_a_call_begins_the_run():
    """A call by the run's id begins it there, and nobody begins it again."""
    run = job.submit("a", run_id="r")
    assert job.options(run_id="r")("a") == "a"
    assert run.status == "completed"
    job.submit("b")
    once()
    assert done == ["a", "b"]


def test_a_run_that_somebody_began_is_not_begun_again(monkeypatch):
    """What another process has begun since it was planned is left, without a word."""
    for name in "abc":
        job.submit(name, run_id=name)
    made, said = supervisor(once=True, most=1)
    look = made._is_still_next

    def slow(run):
        if run.facts.run_id == "b":
            job.options(run_id="b")("b")
        return look(run)

    monkeypatch.setattr(made, "_is_still_next", slow)
    with made._here._output:
        made.run()
    assert sorted(done) == ["a", "b", "c"]
    assert [each.facts.run_id for each in said if each.kind == "begun"] == ["a", "c"]


def test_cancelled_before_it_begins():
    """A submitted run that is cancelled has ended, and none of its code is called."""
    run = job.submit("a", run_id="r")
    said = python("stepwise", "cancel", "r", "--reason", "a mistake")
    assert said.stdout == "r is cancelled: it had not begun\n"
    assert (run.status, run.waits) == ("cancelled", [])
    assert "a mistake" in str(run.error)
    with pytest.raises(stepwise.RunEndedError):
        run.cancel()
    job.submit("b")
    once()
    assert done == ["b"]
    with pytest.raises(stepwise.RunCancelled, match="a mistake"):
        job.options(run_id="r")("a")


def test_forgotten_before_it_begins():
    """A submitted run is deleted like any other, and begins nowhere."""
    run = job.submit("a")
    job.submit("b")
    run.delete()
    once()
    assert done == ["b"]


def test_a_signal_before_it_begins():
    """A message to a submitted run is kept, and does not begin it before its time."""
    run = patient.submit("a", run_id="r", at=HOUR)
    run.send("go", 1)
    once()
    assert (done, run.status) == ([], "suspended")
    patient.options(run_id="r")("a")
    assert done == ["a"]


def test_a_run_that_cannot_be_called_stops_no_other(monkeypatch):
    """Runs whose arguments do not load any more are left, and those behind them begin."""
    monkeypatch.setattr(module, "_DRAWN", 5)
    for _ in range(12):
        job.submit(Gone())
    job.submit("a")
    loads.clear()
    said = once(most=1)
    assert done == ["a"]
    assert sum(each.kind == "left" and "it is gone" in each.detail for each in said) == 12


def test_the_timeout_counts_from_the_begin():
    """What a run waited to be begun is no part of its time."""
    run = timely.submit("a")
    submitted_at = run.created_at
    until(lambda: time.time() > submitted_at + 0.05)
    once()
    assert run.status == "completed"
    assert run.created_at > submitted_at
    head = open_store(run.store).head(run.id)
    facts = open_head(seal_for(open_store(run.store)), head)
    assert facts.created_at == run.created_at


def test_it_begins_without_a_notice(capsys, monkeypatch):
    """The beginning of a submitted run is no resume that a person need hear of."""
    monkeypatch.delenv("STEPWISE_QUIET")
    job.submit("a", run_id="r")
    once()
    assert "r " not in capsys.readouterr().err


def test_resume_of_a_run_that_has_not_begun(monkeypatch):
    """``Run.resume`` begins it; the submitter's program is not started for that."""
    run = job.submit("a")
    assert run.resume().result() == "a"
    from stepwise._runs.starting import start_command

    with pytest.raises(stepwise.ConfigurationError, match="has not begun"):
        start_command(job.submit("b"))


def test_unknown_workflows_are_left():
    """Submitted runs of workflows that are not imported here wait, and the first is named once."""
    python(
        "-c",
        "from stepwise import workflow\n"
        "@workflow(name='elsewhere')\ndef f(number): pass\n"
        "@workflow(name='nowhere')\ndef g(number): pass\n"
        "for number in range(3):\n"
        "    f.submit(number, run_id=f'e{number}')\n    g.submit(number, run_id=f'n{number}')",
    )
    job.submit("a")
    made, said = supervisor(once=True)
    with made._here._output:
        made._scan()
        made.run()
    assert (done, stepwise.get_run("e0").status) == (["a"], "suspended")
    left = [each for each in said if each.kind == "left"]
    assert {each.facts.run_id for each in left} == {"e0", "n0"}
    assert len(left) == 2
    assert all("its workflow is not in these modules" in each.detail for each in left)
    assert "no stepwise up has it now" in python("stepwise", "show", "e0").stdout


def test_looking_does_not_cost_more_with_many(monkeypatch):
    """What a supervisor reads and keeps is the same for any number of submitted runs."""
    monkeypatch.setattr(module, "_DRAWN", 10)
    monkeypatch.setattr(module, "_SCAN", 0.0)

    def opened(number):
        for _ in range(number):
            job.submit("x", at=HOUR)
        made, _ = supervisor()
        looks = []
        read = module.handles.open_head

        def counted_head(*place):
            looks.append(place)
            return read(*place)

        monkeypatch.setattr(module.handles, "open_head", counted_head)
        for _ in range(3):
            made._scan()
        monkeypatch.setattr(module.handles, "open_head", read)
        assert len(made._agenda.plans) == 10
        for lease in made._announced.values():
            lease.release()
        return len(looks)

    assert opened(15) == opened(90) == 30


def _counted(store, method, asked, *given, **named):
    asked.append(method)
    return method(store, *given, **named)


def exchanges(monkeypatch, number):
    """Return how often a supervisor asks the store, and looks at the code, for so many runs."""
    for _ in range(number):
        empty.submit()
    kind, asked, hashed = type(open_store(settings.store())), [], []
    with monkeypatch.context() as patch:
        for name in EXCHANGES:
            method = getattr(kind, name)
            patch.setattr(kind, name, functools.partialmethod(_counted, method, asked))
        fingerprint = definition.fingerprint
        patch.setattr(definition, "fingerprint", lambda node: hashed.append(1) or fingerprint(node))
        once()
    return len(asked), len(hashed)


def test_what_is_known_is_not_asked_again(monkeypatch):
    """To begin, execute and end a submitted run takes 13 exchanges with its store."""
    exchanges(monkeypatch, 1)
    (few, before), (many, after) = (exchanges(monkeypatch, number) for number in (2, 12))
    assert many - few <= 13 * 10
    assert before == after == 0


# -- inside a run --------------------------------------------------------------------------------


stops = []


@workflow
def submitting(name):
    run = job.submit(name)
    if stops:
        stops.pop()
        raise SystemExit
    return run.id


def test_a_submission_in_a_run_is_recorded():
    """A run that stops after a submission does not submit it again."""
    stops[:] = [1, 1]
    for _ in range(2):
        with pytest.raises(SystemExit):
            submitting.options(run_id="outer")("a")
    assert len(stepwise.runs(job)) == 1
    submitting.options(run_id="outer")("a")
    (run,) = stepwise.runs(job)
    assert stepwise.get_run("outer").result == run.id
    assert [(each.name, each.status) for each in stepwise.get_run("outer").steps] == [
        ("submit", "completed")
    ]


def test_stopped_between_the_submission_and_its_record(monkeypatch):
    """A run that dies before the step is recorded finds the run that it submitted."""

    def die(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(submitted, "_ring", die)
        with pytest.raises(SystemExit):
            submitting("a")
    found = submitting("a")
    assert [run.id for run in stepwise.runs(job)] == [found]


@workflow
def twice(name):
    return job.submit(name).id, job.submit(name).id


def test_two_equal_submissions_in_a_run():
    """Two equal submissions of a run are two runs."""
    first, second = twice("a")
    assert first != second
    assert len(stepwise.runs(job)) == 2


def test_once_begins_what_its_runs_submit(monkeypatch):
    """With ``--once``, what its runs submit begins too, even if the bell does not ring for it."""
    monkeypatch.setattr(submitted, "_ring", lambda *_: None)
    submitting.submit("a")
    once()
    assert done == ["a"]


# -- turns ---------------------------------------------------------------------------------------


def in_threads(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for each in threads:
        each.start()
    return threads


def test_calls_wait_for_their_turn(capsys, monkeypatch):
    """At most so many runs are executed at once, and a call that waits says so."""
    monkeypatch.delenv("STEPWISE_QUIET")
    gates["a"] = gates["b"] = threading.Event()
    threads = in_threads(*(functools.partial(two, name) for name in "ab"))
    until(lambda: executed["now"] == 2)
    threads += in_threads(*(functools.partial(two, name) for name in "cd"))
    said = []
    until(lambda: said.append(capsys.readouterr().err) or "waits for its turn" in "".join(said))
    assert executed["now"] == 2
    gates["a"].set()
    for each in threads:
        each.join(SECONDS)
    assert (sorted(done), executed["most"]) == ([*"abcd"], 2)


def test_coroutines_wait_for_their_turn():
    """The event loop goes on while a run waits for its turn."""

    async def main():
        await asyncio.gather(*(aone(name) for name in "abc"))

    asyncio.run(main())
    assert (sorted(done), executed["most"]) == ([*"abc"], 1)


def test_a_result_needs_no_turn():
    """A completed run answers, and a run that is being executed is refused, without waiting."""
    one("a")
    gates["b"] = threading.Event()
    (thread,) = in_threads(functools.partial(one, "b"))
    until(lambda: executed["now"] == 1)
    assert one.options(run_id=stepwise.runs(status="completed")[0].id)("a") is None
    with pytest.raises(stepwise.RunBusyError):
        one.options(run_id=stepwise.runs(status="running")[0].id)("b")
    gates["b"].set()
    thread.join(SECONDS)
    assert done == ["a", "b"]


def test_child_runs_do_not_count():
    """A workflow that calls itself, or one with the same limit, does not wait for itself."""
    outer("a")
    assert done == ["a"]


def test_a_suspended_run_gives_up_its_turn():
    """A run that waits for a message does not keep others from being executed."""
    patient.submit("a", run_id="a")
    patient.submit("b", run_id="b")
    with Staying(most=1):
        until(lambda: stepwise.get_run("b").steps)  # both wait for their signal
        for each in "ab":
            stepwise.get_run(each).send("go", 1)
        until(lambda: sorted(done) == ["a", "b"])


def test_a_run_that_waits_for_its_turn_takes_no_place():
    """With all turns taken, the supervisor executes other runs; `why` says what a run waits for."""
    gates["a"] = threading.Event()
    one.submit("a", run_id="a")
    for number in range(5):
        one.submit(number, run_id=f"{number}")
    for name in "xyz":
        job.submit(name)
    with Staying(most=2):
        until(lambda: {*"xyz"} <= {*done} and executed["now"])
        assert executed == {"now": 1, "most": 1}
        waits = [str(each) for each in stepwise.get_run("3").waits]
        assert waits[1].startswith(f"for the limit '{one.full_name}'")
        gates["a"].set()
        until(lambda: len(done) == 9)
    assert executed["most"] == 1
    assert {*done} == {*"axyz", *range(5)}


def test_many_runs_that_wait_for_their_turn(monkeypatch):
    """Few of the runs of a limited workflow are planned at a time, and all are executed."""
    monkeypatch.setattr(module, "_DRAWN", 5)
    for number in range(30):
        two.submit(number)
    once(most=3)
    assert (sorted(done), executed["most"] <= 2) == ([*range(30)], True)


def test_a_wrong_number_is_refused():
    """``concurrent`` is a positive number."""
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(stepwise.ConfigurationError, match="concurrent="):
            workflow(concurrent=wrong)(lambda: None)
