"""What readers say of a run that moves while they read: what held before the move, or after it."""

import functools
import itertools
import queue
import threading

import pytest
from sweeping import some

import stepwise
from stepwise import emit, step, tool, workflow
from stepwise._checkpoints import checkpoints
from stepwise._journal.journal import seal_for
from stepwise._journal.logs import THREADS, LogEnd, LogIndex, SealedLog
from stepwise._journal.schedule_rows import ScheduleRow, ScheduleRows
from stepwise._runs.maintenance import Census, delete_each, old_runs
from stepwise._runs.replica import taken_from
from stepwise._runs.run import find_step, unsettled
from stepwise._runs.verify import empty_streams
from stepwise._runtime import settings
from stepwise._workflows.preflight import Forecasts
from stepwise.errors import RunNotFoundError, RunStopped, StepwiseError
from stepwise.stores import disk

READS = ("_page", "_read_rest", "get", "names", "head", "marks", "noted", "owner")
jobs, done, ids = queue.Queue(), queue.Queue(), (f"r{number}" for number in itertools.count())


def leave():
    """The job after which no other follows."""


def fail():
    """The job that fails."""


def asked_for():
    """Return the next job."""
    job = jobs.get()
    if job is fail:
        raise ValueError("failed")
    return job


@step
def think():
    return "thought"


@tool(side_effect=True)
def pay():
    while (job := asked_for()) is not leave:
        job()
        done.put(job)


@workflow
def agent():
    turn = 0
    while (job := asked_for()) is not leave:
        turn += 1
        job()
        done.put(job)
    return turn


pruned = agent.options(prune_journal=True, keep=1)


class Mover:
    """A thread that executes a run, and does one thing after the other."""

    def __init__(self, workflow=agent):
        self.run = stepwise.Run(stepwise.stores.open_store(settings.store()), next(ids))
        self.workflow = workflow.options(run_id=self.run.id)

    def _execute(self):
        try:
            self.workflow()
        except ValueError:
            pass
        finally:
            done.put(leave)

    def _do(self, job):
        """Have something done in the run, and wait until it is done or the run has ended."""
        asked = functools.partial(job)  # a resumed run may do again what it was asked for before
        jobs.put(asked)
        while (told := done.get(timeout=60)) is not asked:
            if told is leave:
                self.thread.join()
                return

    def begin(self):
        self.thread = threading.Thread(target=self._execute, daemon=True)
        self.thread.start()
        self._do(int)

    def think(self):
        self._do(think)

    def say(self):
        self._do(lambda: emit("x" * 100_000))  # more than waits for a batch

    def begin_to_pay(self):
        jobs.put(pay)
        self._do(int)

    def pay_and_fail(self):
        jobs.put(leave)
        self.fail()

    def end(self):
        while self.thread.is_alive():
            jobs.put(leave)
            if done.get(timeout=60) is leave:
                self.thread.join()
        jobs.queue.clear()
        done.queue.clear()

    def fail(self):
        jobs.put(fail)
        while done.get(timeout=60) is not leave:
            pass
        self.thread.join()

    def delete(self):
        self.run.delete()

    def empty(self):
        empty_streams(self.run.store, self.run._seal, self.run.id)


LIVES = {
    "attempts": (agent, 2, "begin think fail begin begin_to_pay pay_and_fail begin end"),
    "deleted": (agent, 3, "begin think say end delete begin say"),
    "emptied": (agent, 3, "begin say say end empty"),
    "pruned": (pruned, 4, "begin think think think think think end"),
}


def checked_copy(run):
    """The state that ``rerun`` takes of a run fits together."""
    taken = taken_from(run.store, run._seal, run.id)
    last = taken.entries[-1].number
    return all(each.state.journal[0] <= last for each in taken.checkpoints)


READERS = {
    "status": lambda run: run.status,
    "steps": lambda run: {step.name: step.status for step in run.steps},
    "facts": lambda run: [key for key, value in run.to_dict().items() if value is None],
    "verify": lambda run: run.verify().problems,
    "stream": lambda run: [(each.offset, each.kind) for each in run.stream(follow=False)],
    "checkpoints": lambda run: all(each.verified for each in run.checkpoints),
    "locals": lambda run: [*run.locals()],
    "history": lambda run: len(run.history("turn")) > 0,
    "why": lambda run: (run.why().status, run.why(1).kept > 0),
    "rerun": checked_copy,
    "a step": lambda run: find_step(run, 1).name,
    "result": lambda run: run.result,
    "error": lambda run: repr(run.error),
    "preflight": lambda run: [
        each.verdict for each in Forecasts([run.store], 100, 100) if each.facts.run_id == run.id
    ],
    "fork": lambda run: run.fork().status,  # the last one: others would read the new run, too
}


@pytest.fixture
def at_each_read(monkeypatch):
    """Call a function before each operation of the store that this thread asks for."""
    reader, hook = threading.get_ident(), [lambda: None]

    def hooked(method):
        def read(*args):
            if threading.get_ident() == reader:
                each, hook[0] = hook[0], lambda: None  # what it does itself is not looked at
                each()
                hook[0] = each
            return method(*args)

        return read

    for name in READS:
        monkeypatch.setattr(disk.DiskStore, name, hooked(getattr(disk.DiskStore, name)))
    monkeypatch.setattr(disk, "_WHOLE", (2, 2))
    monkeypatch.setattr(checkpoints, "_PRUNE_AT_LEAST", 1)

    def set_hook(function):
        hook[0] = function

    yield set_hook
    hook[0] = lambda: None


def after(life, made):
    """A thread whose run has made so many moves of a life, and the moves that are left."""
    workflow, _, moves = life
    mover, moves = Mover(workflow), iter(moves.split())
    for name in itertools.islice(moves, made):
        getattr(mover, name)()
    return mover, moves


def end_all(mover):
    """End a run, and delete it and its forks: some readers read all runs of a store."""
    mover.end()
    for run in stepwise.runs():
        run.delete()


def answer_of(read, mover, at_each_read, moves=(), moves_at=0):
    """What a reader says of a run, if its next move comes before a read of so high a number.

    Returns:
        the answer, the number of reads, and whether the move came.
    """
    run = stepwise.Run(mover.run.store, mover.run.id)
    reads, left = 0, []

    def count():
        nonlocal reads
        reads += 1
        if reads == moves_at:
            left.append(next(moves))
            getattr(mover, left[0])()

    at_each_read(count)
    try:
        answer = read(run)
    except RunNotFoundError:
        answer = "there is no such run"
    except (StepwiseError, RunStopped) as error:
        answer = str(error).replace(run.id, "RUN")
    finally:
        at_each_read(lambda: None)
    return answer, reads, bool(left)


_undisturbed = {}  # by life, after each of its moves: what each reader says, and its reads


def undisturbed(name, at_each_read):
    """What readers say after each move of a life but the first ones, and how often they read."""
    if name not in _undisturbed:
        _, first, moves = LIVES[name]
        found = _undisturbed[name] = []
        for made in (*range(first, len(moves.split())), None):
            mover, _ = after(LIVES[name], made)
            found.append(
                {each: answer_of(read, mover, at_each_read)[:2] for each, read in READERS.items()}
            )
            end_all(mover)
    return _undisturbed[name]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", LIVES)
def test_before_or_after(name, reader, at_each_read):
    """Whichever move comes between two reads, a reader says what held before it, or after it."""
    life, known = LIVES[name], [each[reader] for each in undisturbed(name, at_each_read)]
    _, first, moves = life
    held = [answer for answer, _ in known]
    trials = [(made, n) for made, (_, reads) in enumerate(known[:-1]) for n in range(1, reads + 1)]
    found = []
    for made, number in some(trials, 8, f"{name} {reader}"):
        mover, left = after(life, first + made)
        answer, _, has_moved = answer_of(READERS[reader], mover, at_each_read, left, number)
        end_all(mover)
        if has_moved and answer not in held[made : made + 2]:
            found.append((moves.split()[first + made], number, answer, held[made : made + 2]))
    assert found == []


def test_a_run_that_is_executed_again_is_not_pruned():
    """A run that was completed when it was found, and goes on since, is not deleted."""
    mover = Mover()
    mover.begin()
    mover.think()
    mover.end()
    found = [*old_runs(float("inf"), 0)]
    mover.run.forget(1)
    assert [*delete_each(found)] == []
    assert mover.run.status == "crashed"


def test_a_run_that_is_deleted_while_doubts_are_listed(monkeypatch):
    """A list of what is in doubt leaves out a run that somebody deletes meanwhile."""
    movers = [Mover(), Mover()]
    for each in movers:
        each.begin()
        each.fail()
    whole = stepwise.Run._seen

    def seen(run, *count):
        for each in movers:
            each.run.delete()
        return whole(run, *count)

    monkeypatch.setattr(stepwise.Run, "_seen", seen)
    assert [*unsettled()] == []


def test_a_run_that_begins_while_it_is_looked_for(monkeypatch):
    """A run that begins while ``get_run`` looks for runs with a similar id is found."""
    mover, whole = Mover(), disk.DiskStore.newest_heads

    def newest_heads(self, **wanted):
        mover.begin()
        return whole(self, **wanted)

    monkeypatch.setattr(disk.DiskStore, "newest_heads", newest_heads)
    assert stepwise.get_run(mover.run.id) == mover.run
    mover.end()


def test_a_census_counts_no_run_that_begins_as_completed(monkeypatch):
    """A run that begins between two numbers of a census is not counted as completed."""
    mover, whole = Mover(), disk.DiskStore.count_heads

    def count_heads(self, words=()):
        if not hasattr(mover, "thread"):
            mover.begin()
        return whole(self, words)

    monkeypatch.setattr(disk.DiskStore, "count_heads", count_heads)
    assert not Census(mover.run.store).count().by_status["completed"]
    mover.end()


def test_a_run_that_ends_while_it_is_counted(monkeypatch):
    """A run that ends before a census asks for its owner has not crashed."""
    mover, whole = Mover(), disk.DiskStore.owner
    mover.begin()

    def owner(self, run_id):
        mover.end()
        return whole(self, run_id)

    monkeypatch.setattr(disk.DiskStore, "owner", owner)
    assert not Census(mover.run.store).count().by_status["crashed"]


@pytest.mark.parametrize("number", range(1, 8))
def test_a_log_that_is_rewritten_while_it_is_read(number, store, at_each_read):
    """A log whose records another process replaces by one, between two reads, lacks none."""
    log, reads = SealedLog(store, seal_for(store), "langgraph:chat"), itertools.count(1)
    with log.owned() as epoch:
        end = log.append(epoch, LogEnd(), [([each], b"") for each in range(5)])

    def rewrite():
        if next(reads) == number:
            with log.owned() as epoch:
                log.append(epoch, end, [(["all"], b"")], instead=True)

    at_each_read(rewrite)
    entries, _ = log.read(LogEnd())
    assert [each.header for each in entries] in ([[0], [1], [2], [3], [4]], [["all"]])


@pytest.mark.parametrize("number", range(1, 5))
def test_a_log_that_is_deleted_while_logs_are_listed(number, store, at_each_read):
    """An entry that another process removes while the list of logs is read is not damaged."""
    index, reads = LogIndex(store, seal_for(store), THREADS), itertools.count(1)
    index.add("chat")
    at_each_read(lambda: next(reads) == number and index.remove("chat"))
    assert [*index.ids()] in (["chat"], [])


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("is_there", [True, False])
def test_a_schedule_that_comes_or_goes_while_it_is_read(number, is_there, store, at_each_read):
    """A row of a schedule that another process writes or deletes meanwhile is not damaged."""
    rows, row, reads = (
        ScheduleRows(store, seal_for(store)),
        ScheduleRow("nightly", "w", "1 d", 1.0, 1.0),
        itertools.count(1),
    )

    def write(row):
        with rows.owned() as epoch:
            rows.write(epoch, "nightly", row)

    write(row if is_there else None)
    at_each_read(lambda: next(reads) == number and write(None if is_there else row))
    assert rows.read("nightly") in (row, None)
    assert rows.all() in ([row], [])
