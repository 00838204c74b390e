"""Group commit: what is written at once shares a flush; nobody goes on before his is written."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from outside import Log, Outside

import stepwise
from stepwise import StoreError, step, tool, workflow
from stepwise._execution.active_run import live_runs
from stepwise._journal.journal import Journal
from stepwise._journal.records import Call, Intent, Outcome
from stepwise._journal.seal import Seal
from stepwise.stores import Batch, Owner
from stepwise.stores._group_commit import Commits, Share
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore

SEAL = Seal((b"k" * 32,))
OWNER = Owner(os.getpid(), "here", 0.0)


class Watched(Outside):
    """A store that tells of its writes: ``held`` keeps the first with records until it is set."""

    def __init__(self, store):
        self.store = store
        self.batches = []
        self.threads = []
        self.began, self.held = threading.Event(), None
        self.fate = None

    def __getattr__(self, name):
        return getattr(self.store, name)

    def write(self, run_id, epoch, batch):
        self.batches.append(batch)
        self.threads.append(threading.get_ident())
        if self.held is not None:
            self.began.set()
            assert self.held.wait(300)
        if self.fate is not None:
            self.fate()
        self.store.write(run_id, epoch, batch)

    @property
    def records(self):
        """How many records each write had, of those that had any."""
        return [len(batch.records) for batch in self.batches if batch.records]


@pytest.fixture(params=[MemoryStore, DiskStore])
def store(request, tmp_path):
    """A store that is watched."""
    inside = MemoryStore() if request.param is MemoryStore else DiskStore(tmp_path / "store")
    yield Watched(inside)
    inside.close()


def begin(store):
    """A journal."""
    journal = Journal(store, SEAL, "run", store.acquire("run", OWNER), fsync=True)
    journal.load()
    return journal


def outcome(number):
    return Outcome(Call(number, "s", "m", "d", 1), "completed")


def flows_in(journal):
    """How many wait for a write of a journal, or write."""
    return len(journal._commits._waiting)


def together(store, journal, count, append):
    """Have threads append while a write is held back; what each of them got."""
    store.held = threading.Event()
    got = {}

    def work(number):
        try:
            got[number] = append(number)
        except BaseException as error:
            got[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    threads[0].start()
    assert store.began.wait(300)  # the first writes for itself alone
    for waiting, thread in enumerate(threads[1:], 2):
        thread.start()
        # So they wait in the order of their numbers.
        while flows_in(journal) < sum(each.is_alive() for each in threads[:waiting]):
            threading.Event().wait(0.001)
    store.held.set()
    for thread in threads:
        thread.join()
    store.held = None
    return got


# -- one transaction for many --------------------------------------------------------------------


def test_a_handler_that_writes_while_others_wait():
    """Code that interrupts a write is refused, also if another thread waits to write next."""
    store = Watched(MemoryStore())
    epochs = {run: store.acquire(run, OWNER) for run in "abc"}
    commits, threads = Commits(store), []

    def write(run):
        share = Share()
        share.wanted = run, epochs[run], Batch(((1, b""),))
        commits.write(share)

    def interrupted():
        if threads:
            return
        threads.append(threading.Thread(target=write, args="b"))
        threads[0].start()
        while len(commits._waiting) < 2:
            threading.Event().wait(0.001)
        with pytest.raises(StoreError, match="in the middle of a write"):
            write("c")

    store.fate = interrupted
    write("a")
    threads[0].join()
    assert [len([*store.store.read(run)]) for run in "abc"] == [1, 1, 0]


def test_a_handler_whose_thread_comes_to_lead_meanwhile():
    """Code that interrupts a wait is refused if the lead comes to its thread as it gets in line."""
    store = Watched(MemoryStore())
    epochs = {run: store.acquire(run, OWNER) for run in "abc"}
    commits, refused = Commits(store), []

    class Sealed(Share):
        def join(self, commits):
            store.held.set()  # as what it brings is sealed
            while commits._leader != threading.get_ident():
                threading.Event().wait(0.001)
            commits.join(self)

    def write(run, kind=Share):
        share = kind()
        share.wanted = run, epochs[run], Batch(((1, b""),))
        commits.write(share)

    def handle(*_):
        with pytest.raises(StoreError, match="in the middle of a write"):
            write("c", Sealed)
        refused.append("c")

    def interrupt():
        while len(commits._waiting) < 2:
            threading.Event().wait(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    store.held = threading.Event()
    threads = [threading.Thread(target=write, args="a"), threading.Thread(target=interrupt)]
    try:
        threads[0].start()
        assert store.began.wait(300)
        threads[1].start()
        write("b")
    finally:
        signal.signal(signal.SIGUSR1, before)
        for thread in threads:
            thread.join()
    assert refused == ["c"]
    assert [len([*store.store.read(run)]) for run in "abc"] == [1, 1, 0]


def test_threads_share_a_write(store):
    """What 20 threads append during a write is written with the next one, each in its place."""
    journal = begin(store)
    got = together(store, journal, 20, lambda n: journal.append((outcome(n), b"%d" % n)))
    assert store.records == [1, 19]
    loaded = Journal(store, SEAL, "run", journal.epoch, fsync=True).load()
    assert {entry.number: entry.payload for entry in loaded} == {
        number: b"%d" % n for n, (number,) in got.items()
    }
    assert [entry.number for entry in loaded] == list(range(1, 21))


@pytest.mark.parametrize("lasting", [1, 2, 3])
def test_one_that_must_last_makes_what_it_shares_last(store, lasting):
    """A transaction is durable, and marked, if any one of those who share it relies on that."""
    journal = begin(store)
    together(
        store,
        journal,
        4,
        lambda n: journal.append((outcome(n), b""), durable=n == lasting),
    )
    (batch,) = [batch for batch in store.batches if len(batch.records) == 3]
    assert batch.durable
    assert batch.mark


@step
async def fetch(n):
    await asyncio.sleep(0)
    return n


@tool(side_effect=True)
async def send(n):
    await asyncio.sleep(0)
    return n


@step
def work(n):
    return n


@workflow(name="many")
async def many(kind, count):
    call = {"fetch": fetch, "send": send}[kind]
    return sum(await asyncio.gather(*[call(n) for n in range(count)]))


@workflow(name="mapped")
def mapped(count):
    return sum(stepwise.map(work, range(count), max_workers=64))


@workflow(name="pooled")
def pooled(count):
    with ThreadPoolExecutor(64) as pool:
        return sum(pool.map(work, range(count)))


def patient(store, flows, total):
    """Have each write last until all of a run's flows wait for one, as those of a slow disk do."""

    def fate():
        written = sum(store.records[:-1]) - 1  # without the run's begin
        if written < 0 or not store.batches[-1].records:
            return
        (run,) = live_runs
        while flows_in(run.journal) < min(flows, total - written):
            threading.Event().wait(0.001)

    store.fate = fate
    return store


@pytest.mark.parametrize(("kind", "records"), [("fetch", 200), ("send", 400)])
def test_concurrent_tasks_share_writes(store, kind, records):
    """200 concurrent steps or side effects need a handful of writes."""
    run = many.options(store=patient(store, 200, records), run_id="run")
    assert asyncio.run(run(kind, 200)) == sum(range(200))
    assert sum(store.records) == records + 2  # and the run's begin and end
    assert len(store.records) <= 6


@pytest.mark.parametrize("run", [mapped, pooled])
def test_concurrent_threads_share_writes(store, run):
    """200 steps in 64 threads need about two writes for each of the four times they all write."""
    run = run.options(store=patient(store, 64, 200), run_id="run")
    assert run(200) == sum(range(200))
    assert sum(store.records) == 202
    assert len(store.records) <= 12


def test_a_lone_task_needs_no_other_thread(store):
    """Steps one after the other are written in the event loop's own thread, each at once."""

    @workflow(name="lone")
    async def lone():
        for n in range(5):
            await send(n)

    asyncio.run(lone.options(store=store, run_id="run")())
    assert set(store.threads) == {threading.get_ident()}
    assert store.records == [1] * 12


def crowd():
    """So many tasks that a step's record is written while they go on."""
    return [asyncio.ensure_future(asyncio.sleep(3600)) for _ in range(20)]


def test_few_branches_are_written_at_once(store):
    """What one of a few branches has done is on record before any code of another one runs."""
    seen = Log()

    @step(name="work")
    async def work(n):
        run = stepwise.get_run("run", store=store)
        seen.append([each.result for each in run.steps if each.status == "completed"])
        return n

    @workflow(name="few")
    async def few():
        await asyncio.gather(*[work(n) for n in range(4)])

    asyncio.run(few.options(store=store, run_id="run")())
    assert seen == [[], [0], [0, 1], [0, 1, 2]]
    assert set(store.threads) == {threading.get_ident()}


def test_many_concurrent_steps_cost_each_no_more(store, monkeypatch):
    """What a step costs does not grow with the number of those that are made at the same time."""
    counted, all_tasks = [], asyncio.all_tasks

    def count():
        counted.append(all_tasks())
        return counted[-1]

    begun, every = Log(), asyncio.Event()

    @step(name="together")
    async def together(n):
        begun.append(n)
        if len(begun) == 100:
            every.set()
        await every.wait()
        return n

    @workflow(name="crowded", checkpoint_every=200)
    async def crowded():
        return sum(await asyncio.gather(*[together(n) for n in range(100)]))

    monkeypatch.setattr(asyncio, "all_tasks", count)
    assert asyncio.run(crowded.options(store=store, run_id="run")()) == sum(range(100))
    assert len(counted) < 30


def test_the_loop_goes_on_during_a_flush(store):
    """While a step's record is written, the other tasks of the loop go on, if they are many."""
    going = asyncio.Event()

    @step
    async def recorded():
        store.held = threading.Event()
        going.set()

    async def other():
        await going.wait()
        assert await asyncio.to_thread(store.began.wait, 30)
        store.held.set()  # were the loop to stand still in the write, nobody would

    @workflow(name="beside")
    async def beside():
        await recorded()
        return "done"

    async def main():
        others, helper = crowd(), asyncio.ensure_future(other())
        assert others
        result = await beside.options(store=store, run_id="run")()
        await helper
        return result

    assert asyncio.run(main()) == "done"


# -- durable before it returns -------------------------------------------------------------------

CONCURRENT = """
import asyncio, os, sys
import stepwise
from stepwise import step, workflow
{broken}
@step
async def fetch(n):
    for _ in range(n % 7):
        await asyncio.sleep(0)
    return n

@step
def work(n):
    return n

async def one(n):
    for k in range(50):
        os.write(1, b"%d\\n" % await fetch(50 * n + k))

@workflow
async def tasks():
    await asyncio.gather(*[one(n) for n in range(40)])

def two(n):
    for k in range(50):
        os.write(1, b"%d\\n" % work(50 * n + k))

@workflow
def threads():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(two, range(40)))

run = {kind}.options(store="disk:" + sys.argv[1], run_id="run")
asyncio.run(run()) if "{kind}" == "tasks" else run()
"""
# Acknowledged 50 steps before they are written, more than there are threads: a broken promise.
HASTY = """
from collections import deque
from stepwise._calls import async_driver as _adrive
from stepwise._calls import driver as _drive
from stepwise._calls.driver import Result
late = deque()
def hasty(operation):
    late.append(operation)
    if len(late) > 50:
        first = late.popleft()
        first.run.journal.append(first.item)
    return Result(1)
_adrive._write = None
_adrive.many = lambda run: False
_adrive.write = _drive.write = hasty
"""


def killed(fork, path, kind, acknowledged, broken=""):
    """Kill a program once it was given so many results; those that it got, and those on record."""
    script = fork(CONCURRENT.format(kind=kind, broken=broken), path)
    got = [script.hear() for _ in range(acknowledged)]
    os.kill(script.pid, signal.SIGKILL)
    got += script.process.stdout.read().split()
    store = DiskStore(path)
    run = stepwise.get_run("run", store=f"disk:{path}")
    recorded = {each.result for each in run.steps if each.status == "completed"}
    store.close()
    return set(map(int, got)), recorded


@pytest.mark.parametrize("acknowledged", [1, 60, 400])
@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_what_was_returned_is_on_record(fork, tmp_path, kind, acknowledged):
    """Killed at any instant, every step that had returned to the workflow is in the journal."""
    got, recorded = killed(fork, str(tmp_path / "store"), kind, acknowledged)
    assert len(got) >= acknowledged
    assert got <= recorded


@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_the_kill_sees_a_broken_promise(fork, tmp_path, kind):
    """Were steps to return before their records are written, these kills would show it."""
    got, recorded = killed(fork, str(tmp_path / "store"), kind, 60, HASTY)
    assert not got <= recorded


# -- errors --------------------------------------------------------------------------------------


def test_everybody_gets_the_error_of_the_store(store):
    """When the store fails, each caller of the batch gets the error, and none its record."""
    journal = begin(store)

    def fail():
        if len(store.records) == 2:
            raise StoreError("no answer")

    store.fate = fail
    got = together(store, journal, 5, lambda n: journal.append((outcome(n), b"")))
    assert sum(isinstance(each, StoreError) for each in got.values()) == 4
    assert journal.append((outcome(9), b"")) == [2]
    assert len(Journal(store, SEAL, "run", journal.epoch, fsync=True).load()) == 2


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_is_of_one_caller(store, written):
    """What a signal handler raises in the midst of a write costs the others nothing.

    They were sealed on what was interrupted, which is therefore written with them.
    """
    journal = begin(store)
    inside = store.store.write

    def interrupted(run_id, epoch, batch):
        if len(store.records) == 2:
            if written:
                inside(run_id, epoch, batch)
            raise SystemExit
        inside(run_id, epoch, batch)

    store.store.write = interrupted
    got = together(store, journal, 5, lambda n: journal.append((outcome(n), b"%d" % n)))
    del store.store.write
    assert sum(isinstance(each, SystemExit) for each in got.values()) == 1
    loaded = Journal(store, SEAL, "run", journal.epoch, fsync=True).load()
    assert [entry.number for entry in loaded] == list(range(1, 6))
    payloads = {entry.number: entry.payload for entry in loaded}
    for n, numbers in got.items():
        assert isinstance(numbers, SystemExit) or payloads[numbers[0]] == b"%d" % n


def test_one_that_cannot_be_sealed_is_alone(store):
    """A record that cannot be sealed is an error for its caller, and for nobody else."""
    journal = begin(store)
    got = together(
        store, journal, 5, lambda n: journal.append((outcome(n), b"" if n != 3 else None))
    )
    assert isinstance(got.pop(3), TypeError)
    loaded = Journal(store, SEAL, "run", journal.epoch, fsync=True).load()
    assert sorted(number for (number,) in got.values()) == [1, 2, 3, 4]
    assert len(loaded) == 4


def test_a_run_whose_store_fails_stops_and_goes_on_later(store):
    """Tasks whose records cannot be written stop the run; the next call goes on, nothing twice."""
    did = Log()

    @step(name="did")
    async def act(n):
        did.append(n)
        await asyncio.sleep(0)
        return n

    @workflow(name="failing")
    async def failing():
        return sum(await asyncio.gather(*[act(n) for n in range(10)]))

    def fail():
        if did:
            raise StoreError("no space")

    store.fate = fail
    run = failing.options(store=store, run_id="run")
    with pytest.raises(StoreError, match="no space"):
        asyncio.run(run())
    store.fate = None
    assert asyncio.run(run()) == 45
    assert sorted(did) == sorted([*range(10), *range(10)])
    assert stepwise.get_run("run", store=store).status == "completed"


def test_nobody_waits_for_a_write_that_failed_in_another_thread():
    """Tasks whose shares a thread could not write are told of the error, whatever its class."""

    def ends():
        raise SystemExit

    async def main():
        store = Watched(MemoryStore())
        store.fate = ends
        commits, shares = Commits(store), []
        for _ in range(3):
            shares.append(Share(asyncio.get_running_loop().create_future()))
            shares[-1].wanted = "run", 1, Batch(((1, b""),))
            commits.submit(shares[-1])
        await asyncio.wait_for(asyncio.gather(*(share.future for share in shares)), 60)
        return [type(share.error) for share in shares]

    assert asyncio.run(main()) == [SystemExit] * 3


def test_a_write_in_a_write_is_refused(store):
    """A signal handler that appends in the midst of a write is told, and harms nothing."""
    journal = begin(store)
    inner = []

    def append():
        store.fate = None
        try:
            journal.append((outcome(2), b""))
        except StoreError as error:
            inner.append(str(error))

    store.fate = append
    journal.append((outcome(1), b""))
    assert "in the middle of a write" in inner[0]
    assert journal.append((outcome(3), b"")) == [2]


# -- cancellations -------------------------------------------------------------------------------


async def cancelled_in_a_write(store, run, records):
    """Cancel the call of a run while its n-th record is being written."""
    loop = asyncio.get_running_loop()
    before, seen = len(store.records), loop.create_future()
    release = threading.Event()

    def fate():
        if len(store.records) == before + records:
            loop.call_soon_threadsafe(seen.set_result, None)
            assert release.wait(300)

    store.fate = fate
    others, task = crowd(), asyncio.ensure_future(run())
    await seen
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)  # the task hears of it
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    for each in others:
        each.cancel()
    store.fate = None


@pytest.mark.parametrize(("record", "happened"), [("intent", []), ("outcome", ["did"])])
def test_cancelled_in_a_write(store, record, happened):
    """Cancelled while its intent is written, a call did not happen; its outcome: it is done.

    Neither is in doubt: the next call of the run makes the call once, or answers it.
    """
    did = Log()

    @tool(side_effect=True, name="did")
    async def act():
        did.append("did")
        return "value"

    @workflow(name="cancelled")
    async def cancelled():
        return await act()

    run = cancelled.options(store=store, run_id="run")

    async def main():
        records = ["begin", "intent", "outcome"]  # of the run, then of the call
        await cancelled_in_a_write(store, run, records.index(record) + 1)
        assert did == happened
        return await run()

    assert asyncio.run(main()) == "value"
    assert did == ["did"]


def test_one_of_many_is_cancelled(store):
    """Of tasks that write together one is cancelled: the others' steps return as ever."""

    @workflow(name="one of many")
    async def one_of_many():
        tasks = [asyncio.ensure_future(fetch(n)) for n in range(20)]
        await asyncio.sleep(0)
        tasks[7].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [n for n in found if isinstance(n, int)]

    run = one_of_many.options(store=patient(store, 20, 20), run_id="run")
    assert asyncio.run(run()) == [n for n in range(20) if n != 7]


# -- Ctrl-C --------------------------------------------------------------------------------------

INTERRUPTED = """
import asyncio, os, signal, stepwise, sys
from stepwise import step, workflow
from stepwise.stores.disk import DiskStore
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none

@step
async def fetch(n):
    for _ in range(n % 5):
        await asyncio.sleep(0)
    with open(sys.argv[2], "a") as file:
        file.write(f"{n}\\n")
    return n

async def one(n):
    return [await fetch(20 * n + k) for k in range(20)]

@workflow
async def tasks():
    found = await asyncio.gather(*[one(n) for n in range(20)])
    return sum(map(sum, found))

class Interrupting(DiskStore):
    def write(self, *batch):
        self.writes += 1
        if self.writes == 5 * attempts:
            os.kill(os.getpid(), signal.SIGINT)
        super().write(*batch)

store = Interrupting(sys.argv[1])
run = tasks.options(store=store, run_id="run")
result, attempts = None, 0
while result is None:
    attempts += 1
    store.writes = 0
    try:
        result = asyncio.run(run())
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(attempts, result)
"""


def test_ctrl_c_among_many_tasks(fork, tmp_path):
    """However often Ctrl-C hits a write of tasks together, the run ends, and its journal holds."""
    path, log = tmp_path / "store", tmp_path / "log"
    attempts, result = map(int, fork(INTERRUPTED, path, log).finish().split()[-2:])
    assert attempts > 1
    assert result == sum(range(400))
    run = stepwise.get_run("run", store=f"disk:{path}")
    assert run.status == "completed"
    assert sorted(each.result for each in run.steps if each.status == "completed") == [*range(400)]


# -- the group itself ----------------------------------------------------------------------------


def test_intents_are_counted_in_their_order(store):
    """Intents and outcomes that share a write make one chain, with the intents counted."""
    journal = begin(store)

    def append(n):
        call = Call(n, "s", "m", "d", 1, effect=True)
        return journal.append((Intent(call), b"")) + journal.append(
            (Outcome(call, "completed"), b"")
        )

    together(store, journal, 10, append)
    again = Journal(store, SEAL, "run", journal.epoch, fsync=True)
    records = [entry.record for entry in again.load()]
    assert again.position == journal.position
    assert again.position.effects == 10
    for n in range(10):
        kinds = [type(each).__name__ for each in records if each.call.number == n]
        assert kinds == ["Intent", "Outcome"]


def test_a_loop_that_was_closed_is_not_told():
    """A loop that ended while its record was being written is nobody to be told."""
    store, loop = Watched(MemoryStore()), asyncio.new_event_loop()
    commits, share = Commits(store), Share(loop.create_future())
    share.wanted = "run", store.acquire("run", OWNER), Batch(((1, b""),))
    store.held = threading.Event()
    loop.close()
    commits.submit(share)
    assert store.began.wait(300)
    store.held.set()
    commits.alone(lambda: None)
    assert share.done
