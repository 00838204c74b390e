"""Looking at a long run reads its newest records only, and says the same as reading all of them."""

import asyncio
import contextlib
import json
import os
import sys
import time
import tracemalloc
from concurrent import futures

import click
import pytest
from click.testing import CliRunner

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise._journal import summary
from stepwise._journal.journal import Journal
from stepwise._journal.records import Call, Outcome, Started
from stepwise._journal.seal import ephemeral_seal
from stepwise._runs import overview, steps
from stepwise.stores import Owner
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore

EVERY = 20  # records, in these tests


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(summary, "EVERY", EVERY)


@step
def count(number):
    if number in broken:
        raise ValueError(number)
    return number


@tool(side_effect=True)
def send(number):
    if number in broken:
        raise ConnectionError(number)
    return number


@workflow(durability="os")
def long(upto):
    total = 0
    for number in range(upto):
        total += send(number) if number % 7 == 3 else count(number)
    return total


@workflow(durability="os")
def forgiving(upto):
    total = 0
    for number in range(upto):
        try:
            total += count(number)
        except ValueError:
            total -= 1
    return total


@tool(side_effect=True, approve=True)
def pay(number):
    if number in broken:
        raise ConnectionError(number)
    return number


@workflow(durability="os")
def paying(upto):
    for number in range(upto):
        count(number)
    pay(upto)
    for number in range(upto + 1, 2 * upto):
        count(number)


broken: set[int] = set()


@pytest.fixture(autouse=True)
def _mended():
    yield
    broken.clear()


@pytest.fixture
def reads(monkeypatch):
    """The numbers of the records that are read."""
    found = []
    plain = DiskStore.read

    def read(self, run_id, after=0):
        for number, data in plain(self, run_id, after):
            found.append(number)
            yield number, data

    monkeypatch.setattr(DiskStore, "read", read)
    return found


def run_of(workflow, upto, *, fails=()):
    broken.update(fails)
    try:
        return workflow.execute(upto)
    except (ValueError, ConnectionError):
        return stepwise.runs()[0]


def same(run, *, steps=30):
    """What is said of a run from its summary is what all of its records say."""
    assert summary.kept_summary(run.store, run._seal, run.id) is not None
    short, whole = run._seen(steps), run._seen(None)
    assert short.steps == whole.steps[-steps:]
    assert whole.steps == run.steps == [*run._each_step(short)]
    assert short.total == whole.total == len(run.steps)
    assert short.statuses == whole.statuses
    assert short.in_doubt == whole.in_doubt
    short.course.taken = whole.course.taken
    assert short.course.saved == pytest.approx(whole.course.saved)
    short.course.saved = whole.course.saved
    assert vars(short.course) == vars(whole.course)
    return short


def told(*arguments):
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


# -- the same as all of it -----------------------------------------------------------------------


def test_completed():
    """A run that completed is counted right, whatever of it is read."""
    assert same(run_of(long, 300)).statuses == {"completed": 300}


def test_failures_that_were_handled():
    """Failed steps that the workflow went on from are counted as failed."""
    run = run_of(forgiving, 100, fails=(5, 50, 98))
    assert same(run).statuses == {"completed": 97, "failed": 3}


@pytest.mark.parametrize("suspends", [True, False])
@pytest.mark.parametrize("upto", [14, 15, 16, 17, 40])
def test_the_time_of_a_person_is_not_saved(upto, suspends, monkeypatch):
    """The time that a person took to allow a call counts neither as the call's time nor as saved.

    The yes lies in the summary, or after it; the process waits for it, or ends until then.
    """
    stepwise.configure(suspend_after=0 if suspends else None)
    broken.add(2 * upto - 1)
    call, now = paying.options(run_id="pays"), time.time
    with futures.ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as earlier:
            earlier.setattr(time, "time", lambda: now() - 1000)
            first = pool.submit(call, upto)
            if suspends:
                assert type(first.exception()) is stepwise.RunSuspended
            while not stepwise.runs() or not (asked := stepwise.get_run("pays").questions):
                pass
        asked[0].approve()
        if suspends:
            first = pool.submit(call, upto)
        assert type(first.exception()) is ValueError
    run = stepwise.get_run("pays")
    asked = run.steps[upto]
    assert (asked.waited > 900, asked.duration < 100) == (True, True)
    same(run)
    broken.clear()
    call(upto)
    assert 0 < same(run).course.saved < 500


@pytest.mark.parametrize("at", [40, 59, 60, 61, 88])
def test_attempts(at):
    """A run that failed and went on tells both, and what its steps saved."""
    run = run_of(long, 90, fails=(at,))
    assert run.status == "failed"
    before = same(run)
    assert before.total == at + 1
    broken.clear()
    if before.in_doubt:
        run.resolve(before.in_doubt[0].number, did_not_happen=True)
        same(run)
    long(90)
    after = same(run)
    assert after.course.resumed == 1
    assert after.course.saved > 0
    assert after.course.lost > 0
    assert run.steps_executed + run.steps_skipped == 90


def test_a_step_in_doubt_of_long_ago():
    """A side effect in doubt is told however many records came after it, until it is settled."""

    @workflow(durability="os")
    def careless():
        try:
            send(3)
        except ConnectionError as error:
            for number in range(10, 100):
                count(number)
            raise error

    broken.update({3})
    with pytest.raises(ConnectionError):
        careless()
    (run,) = stepwise.runs()
    assert [each.number for each in same(run).in_doubt] == [1]
    assert "step 1 is in doubt" in told("show", run.id)
    assert run.id in told("in-doubt")
    run.resolve(1, landed=80)
    assert same(run).in_doubt == []


@pytest.mark.parametrize("steps", [1, 50, 500])
def test_forks(steps):
    """A fork is counted with what it shares, before and after it is executed."""
    run = run_of(long, 200)
    fork = run.fork(at=150)
    assert fork.status == "ready"
    assert same(fork, steps=steps).total == 150
    assert (fork.resumed_from_step, fork.steps_executed) == (None, 0)
    long.options(run_id=fork.id)(200)
    assert same(fork, steps=steps).total == 200
    assert fork.status == "completed"


def test_threads():
    """Steps of several threads are counted once each."""

    @workflow(durability="os")
    def wide():
        return sum(stepwise.map(count, range(200), max_workers=4))

    assert wide() == sum(range(200))
    same(stepwise.runs()[0])


# -- where it cannot be followed -----------------------------------------------------------------


def test_what_was_forgotten():
    """A run of which steps were forgotten is read whole, and counted right."""
    run = run_of(long, 90)
    run.forget(12)
    assert run._seen().total == 89 == len(run.steps)
    assert run.status == "crashed"
    long.options(run_id=run.id)(90)
    assert run._seen().total == 90


def damaged(run, name):
    with run.store._lock:
        cache = run.store._opened()
        (key,) = (key for key in cache.keys("o/", "o0") if key.endswith(name))
        data = bytearray(cache.get(key))
        data[70] ^= 1
        with cache.transaction(durable=False):
            cache.set(key, bytes(data))


def test_a_damaged_summary():
    """A summary that does not verify counts nothing; ``verify`` tells, and repairing removes it."""
    run = run_of(long, 90)
    damaged(run, summary.NAME)
    assert run._seen().total == 90
    assert not run.verify().ok
    assert "its summary is damaged" in "; ".join(run.verify().problems)
    assert run.repair().ok
    assert run._seen().total == 90


def test_records_that_are_gone():
    """Where records cannot be read, the listing says so and names the command that tells more."""
    run = run_of(long, 95)
    with run.store._lock:
        cache = run.store._opened()
        last = sorted(cache.keys("r/", "r0"))[-2]
        with cache.transaction(durable=False):
            cache.set(last, b"nothing")
    text = told("show", run.id)
    assert f"1 record cannot be read: stepwise verify {run.id}" in text


# -- how much is read ----------------------------------------------------------------------------


def test_what_a_listing_reads(reads):
    """A listing reads about as many records of a run of 900 steps as of one of 200."""
    runs = run_of(long, 200), run_of(long, 900, fails=(899,))
    for command in ("show", "show --json", "locals", "watch", "in-doubt", "runs"):
        for run in runs:
            reads.clear()
            name, *options = command.split()
            told(name, *[run.id] * (name not in ("in-doubt", "runs")), *options)
            assert len(reads) <= 10 * (overview.SHOWN + EVERY), command


@pytest.mark.parametrize("order", [[1, 2, 3, 4, 5], [1, 3, 2, 5, 4], [1, 5, 4, 3, 2]])
def test_what_a_process_wrote_it_does_not_read(order, tmp_path, reads, monkeypatch):
    """A run is summed up from what was written, in whatever order its threads tell of it."""
    monkeypatch.setattr(summary, "EVERY", 5)
    store = DiskStore(tmp_path / "store")
    seal, owner = ephemeral_seal(), Owner(os.getpid(), "here", 0.0)
    journal = Journal(store, seal, "run", store.acquire("run", owner), fsync=False)
    keeper = summary.SummaryKeeper(journal)
    items = {1: (Started("w", "d", "a", at=1.0), b"")}
    for number in range(2, 6):
        call = Call(number - 1, "count", "m", "d", number - 1, at=1.0)
        items[number] = (Outcome(call, at=2.0), b"")
    for item in items.values():
        journal.append(item)
    for number in order:
        keeper.note([number], [items[number]])
    assert reads == []
    kept = summary.kept_summary(store, seal, "run")
    assert (kept.start, kept.total, kept.course.taken) == (journal.position, 4, 4.0)
    store.close()


@pytest.mark.parametrize("which", [1, 2, 3])
def test_an_interrupted_summing_up(which, monkeypatch):
    """After whatever call an exception of a signal handler comes, the run is summed up later."""
    monkeypatch.setattr(summary, "EVERY", 10)
    monkeypatch.setattr(summary, "_BUNCH", 2)
    store, seal = MemoryStore(), ephemeral_seal()
    owner = Owner(os.getpid(), "here", 0.0)
    journal = Journal(store, seal, "run", store.acquire("run", owner), fsync=False)
    keeper, events, before = summary.SummaryKeeper(journal), [], sys.getprofile()

    def interrupt(frame, event, _):
        around = frame if event == "c_return" else frame.f_back
        if event in ("c_return", "call", "return") and around.f_code.co_name == "_sum_up":
            events.append(event)
            if len(events) == which:
                sys.setprofile(None)
                raise KeyboardInterrupt

    for number in range(1, 31):
        item = (Outcome(Call(number, "count", "m", "d", number, at=1.0), at=2.0), b"")
        sys.setprofile(interrupt if number == 4 else before)
        with contextlib.suppress(KeyboardInterrupt):
            keeper.note(journal.append(item), [item])
        sys.setprofile(before)
    assert len(events) == which
    assert summary.kept_summary(store, seal, "run").total == 30
    assert len(keeper._new) < 2


def test_a_new_run_beside_a_long_one(reads, monkeypatch, capsys):
    """The notice about an unfinished run counts its side effects without reading all of it."""
    monkeypatch.delenv("STEPWISE_QUIET")
    run_of(long, 500, fails=(499,))
    broken.clear()
    reads.clear()
    long(1)
    assert "with side effects send x71" in capsys.readouterr().err
    assert len(reads) <= 10 * EVERY


def test_json_says_what_it_leaves_out():
    """As JSON, too, it is said how many steps are not listed, and ``--all`` lists them."""
    run = run_of(long, 200)
    facts = json.loads(told("show", run.id, "--json"))
    assert (facts["steps_total"], facts["steps_left_out"], len(facts["steps"])) == (200, 150, 50)
    facts = json.loads(told("show", run.id, "--json", "--all"))
    assert (facts["steps_left_out"], len(facts["steps"])) == (0, 200)


def test_killed(fork):
    """A killed process leaves a summary that holds."""
    script = fork(PROGRAM)
    while script.hear():
        pass
    script.process.wait()
    (run,) = stepwise.runs()
    assert run.status == "crashed"
    seen = same(run)
    assert seen.total == 70
    assert f"{os.path.basename(run.program.file)}:" in told("show", run.id)


def test_killed_again_and_again(fork, reads, tmp_path):
    """A long run that died three times at one step is stuck, and its first records are not read."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for _ in range(4):  # the first attempt executed steps
        script = fork(program)
        while script.hear():
            pass
        script.process.wait()
    (run,) = stepwise.runs()
    reads.clear()
    assert run.status == "stuck"
    assert min(reads) > 2 * EVERY


PROGRAM = """
import os
import sys
from stepwise import step, workflow
from stepwise._journal import summary

summary.EVERY = 20

@step
def count(number):
    if number == 70:
        os._exit(9)
    return number

@workflow(durability="os")
def long(upto):
    total = 0
    for number in range(upto):
        total += count(number)
    return total

long(90)
"""


# -- every step ----------------------------------------------------------------------------------


@step
def text(number):
    return "x" * 20_000


@step
async def later(number):
    if number == 0:  # it ends after most of the others
        await most.wait()
    ended.append(number)
    if len(ended) == UPTO - 50:
        most.set()
    return number


@step
def around(upto):
    return sum(count(number) for number in range(upto))


@workflow(durability="os", checkpoint_every=10_000)
def large(upto):
    for number in range(upto):
        text(number)


@workflow(durability="os")
async def side_by_side():
    await asyncio.gather(*(later(number) for number in range(UPTO + 1)))


@workflow(durability="os")
def nested():
    return around(UPTO)


ended: list[int] = []
most = asyncio.Event()
UPTO = 700  # more than are kept while they are read


def each_step(run):
    return [*run._each_step(run._seen(1))]


@pytest.mark.parametrize("first", ["outer", "slow", "settled", "forgotten", "failed"])
def test_every_step_in_order(first):
    """Steps that are read one after the other are those of all records, whenever they ended."""
    ended.clear()
    most.clear()
    if first == "outer":
        nested()
    elif first == "slow":
        asyncio.run(side_by_side())
    elif first == "failed":
        broken.update(range(3, UPTO, 50))
        forgiving(UPTO)
    else:
        broken.add(UPTO - 4)
        with pytest.raises((ConnectionError, ValueError)):
            long(UPTO)
    (run,) = stepwise.runs()
    if first == "settled":
        for each in run._seen().in_doubt:
            run.resolve(each.number, did_not_happen=True)
    elif first == "forgotten":
        run.forget(3)
        broken.clear()
        run.resolve(UPTO - 3, did_not_happen=True)
        long(UPTO)
    assert each_step(run) == run.steps
    assert len(run.steps) >= UPTO - 5


def test_memory_for_every_step():
    """A long run is printed part by part: it is never in memory as a whole."""
    large(800)
    (run,) = stepwise.runs()
    told("show", run.id)  # what is loaded once
    for command in ("show RUN --all", "show RUN --all --json", "export RUN --format json"):
        tracemalloc.start()
        try:
            printed = told(*command.replace("RUN", run.id).split())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert printed.count("text") >= 800
        assert peak - 6 * len(printed) < 8_000_000, command  # of 16 MB


def test_every_step_is_printed_at_once(monkeypatch):
    """The first steps are printed before the last ones are read, with columns that get wider."""
    long(1200)
    (run,) = stepwise.runs()
    lines = [line for line in told("show", run.id, "--all").splitlines() if "completed " in line]
    (narrow,) = {line.index("completed") for line in lines[:1000]}
    (wide,) = {line.index("completed") for line in lines[1000:]}  # one digit more
    assert len(lines) == 1200
    assert wide == narrow + 1
    printed, echo, plain = [], click.echo, steps.step_record

    def noted(text="", **how):
        printed.append(str(text))
        echo(text, **how)

    def made(run_id, call, *rest):
        numbers.append((call.number, len(printed)))
        return plain(run_id, call, *rest)

    numbers = []
    monkeypatch.setattr(click, "echo", noted)
    monkeypatch.setattr(steps, "step_record", made)
    facts = json.loads(told("show", run.id, "--all", "--json"))
    assert [each["number"] for each in facts["steps"]] == [*range(1, 1201)]
    assert facts["steps_left_out"] == 0
    assert numbers[-1][1] > numbers[-1200][1] > 1  # the newest ones were counted before
