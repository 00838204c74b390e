"""Copying runs between stores: all of it, verified, again and again, and never half."""

import asyncio
import contextlib
import itertools
import os
import pathlib
import signal
import sqlite3
import subprocess
from unittest import mock

import pytest
from harness import interpreted, python
from sweeping import WHOLE

import stepwise
from stepwise import (
    ConfigurationError,
    CorruptStoreError,
    RunBusyError,
    RunConflictError,
    RunNotFoundError,
    StepInDoubtError,
    StoreError,
    step,
    tool,
    workflow,
)
from stepwise._calls.approvals import ApprovedCall
from stepwise._checkpoints import checkpoints
from stepwise._journal.journal import COPYING, inbox_name, seal_for
from stepwise._journal.logs import SESSIONS, Inbox, LogEnd, LogIndex, SealedLog
from stepwise._runs import copying
from stepwise._runs.copying import Copier
from stepwise.integrations._langgraph_threads import ThreadStore
from stepwise.integrations.openai_agents import StepwiseSession
from stepwise.stores import Batch, Owner, open_store
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "copied.py"
ME = Owner(os.getpid(), os.uname().nodename, 1.5, "thread a")
DONE = []


@step
def think(n):
    DONE.append(f"think {n}")
    return "thought " * n


@tool(side_effect=True)
def send(text):
    DONE.append(f"send {text}")
    return text


@workflow
def agent(limit):
    done = []
    for n in range(limit):
        done.append(think(n))
        send(str(n))
    return len(done)


@workflow
def part(n):
    send(f"part {n}")
    return think(n)


@workflow
def whole(limit):
    return [part(n) for n in range(limit)]


@workflow
def asks():
    return think(1), stepwise.wait_for("name", str)


@workflow(prune_journal=True, keep=1, retention="prune_old")
def endless(limit):
    n = 0
    while n < limit:
        n += 1
        think(n)
    return n


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch):
    """A journal is pruned behind a few records."""
    DONE.clear()
    monkeypatch.setattr(checkpoints, "_PRUNE_AT_LEAST", 3)


@pytest.fixture
def source(tmp_path):
    return f"disk:{tmp_path}/source"


@pytest.fixture
def target(tmp_path):
    return f"disk:{tmp_path}/target"


def crashing(store, at):
    """A store in which a run crashes before it thinks for the n-th time."""
    stack = contextlib.ExitStack()
    stack.enter_context(fresh_store(store))
    stack.enter_context(pytest.raises(SimulatedCrash))
    stack.enter_context(crash_at(think, "before", call=at))
    return stack


def crashed(store, limit=4, at=3, run_id="job"):
    """A run that crashes before it thinks for the third time, say."""
    with crashing(store, at):
        agent.options(run_id=run_id)(limit)


def suspended(store):
    """A run that waits for a name."""
    with fresh_store(store), pytest.raises(stepwise.RunSuspended):
        stepwise.configure(suspend_after=0)
        asks.options(run_id="job")()


def go_on(store, limit=4, run_id="job"):
    with fresh_store(store):
        return agent.options(run_id=run_id)(limit)


def content(url, name="job"):
    """Everything that a store has under a name, but what is said of a copy."""
    store = open_store(url)
    objects = {
        each: store.get(name, each) for each in store.names(name) if each not in copying._OWN
    }
    marks = max((each[:40] for each in store.marks(name)), default=b"")
    return [*store.read(name)], objects, store.head(name), marks


def copied(source, target, *run_ids, **how):
    with contextlib.ExitStack() as stack:
        stores = [open_store(each) for each in (source, target)]
        for each in stores:
            stack.callback(each.close)
        ids = run_ids or [head.run_id for head in stores[0].heads()]
        return [*Copier(*stores, **how).copy_each(ids)]


def damage(url, number, name="job"):
    """Flip a bit of a record."""
    store = open_store(url)
    [(found, data), *_] = store.read(name, after=number - 1)
    assert found == number
    epoch = store.acquire(name, ME)
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    store.write(name, epoch, Batch(((number, flipped),)))
    store.release(name, epoch)


def outcomes(found):
    return [each.outcome for each in found]


def refused(source, target):
    """Why the only run of a store is not copied."""
    [found] = copied(source, target)
    assert found.outcome == "refused"
    return found.problem


def test_everything_of_a_run_is_copied(source, target):
    """A copy has the records, objects, head, mark and large values of its source, and verifies."""
    crashed(source)
    [found] = copied(source, target)
    assert found[:2] == ("job", "copied")
    records, objects, _, _ = content(source)
    assert found.records == len(records)
    assert found.size == sum(len(data) for _, data in records) + sum(map(len, objects.values()))
    assert content(source) == content(target)

    @step
    def download(n):
        return os.urandom(3_000_000)  # it has a file of its own

    @workflow
    def fetch():
        return [len(download(n)) for n in range(3)]

    with fresh_store(source):
        fetch.options(run_id="large")()
    assert outcomes(copied(source, target, "large")) == ["copied"]
    assert content(source, "large") == content(target, "large")
    with fresh_store(target):
        assert all(run.verify().ok for run in stepwise.runs())


def test_a_copy_continues_at_its_statement(source, target, tmp_path):
    """A copied run resumes in the middle, also after another copy, and repeats nothing."""
    crashed(source)
    third = f"disk:{tmp_path}/third"
    copied(source, target)
    copied(target, third)
    DONE.clear()
    assert go_on(third) == 4
    assert DONE == ["think 2", "send 2", "think 3", "send 3"]
    with fresh_store(third):
        assert stepwise.get_run("job").resumed_from_step == 4


def test_what_came_since_is_added(source, target):
    """A second copy writes nothing, or what its source did since; one that is further stays."""
    crashed(source)
    [first] = copied(source, target)
    before = content(target), open_store(target).get("job", copying._COPIED)
    assert outcomes(copied(source, target)) == ["there"]
    assert before == (content(target), open_store(target).get("job", copying._COPIED))
    go_on(source)
    [second] = copied(source, target)
    assert second.outcome == "copied"
    assert first.records + second.records == len(content(source)[0])
    assert content(source) == content(target)
    crashed(source, run_id="further")
    copied(source, target, "further")
    go_on(target, run_id="further")
    before = content(target, "further")
    assert outcomes(copied(source, target, "further")) == ["there"]
    assert content(target, "further") == before


def test_another_history_is_refused_by_name(source, target):
    """A run that went on in both stores is refused, and others are copied."""
    crashed(source)
    copied(source, target)
    go_on(source)
    go_on(target)
    go_on(source, run_id="other")
    before = content(target)
    found = {each.id: each for each in copied(source, target)}
    assert found["other"].outcome == "copied"
    assert found["job"].outcome == "refused"
    assert "'job'" in found["job"].problem
    assert "stepwise forget job --store disk:" in found["job"].problem
    assert content(target) == before


def test_a_damaged_record_is_not_copied(source, target):
    """A damaged run is refused by name before anything of it is written; repaired, it is copied."""
    crashed(source)
    go_on(source, run_id="other")
    damage(source, 4)
    found = {each.id: each for each in copied(source, target)}
    assert (found["job"].outcome, found["other"].outcome) == ("refused", "copied")
    assert "stepwise verify job --repair" in found["job"].problem
    assert content(target) == ([], {}, None, b"")
    with fresh_store(source):
        assert stepwise.get_run("job").repair(accept_loss=True).ok
    assert outcomes(copied(source, target, "job")) == ["copied"]
    with fresh_store(target):
        assert stepwise.get_run("job").verify().ok


def test_a_damaged_copy_is_named(source, target):
    """A record that is damaged in the target is refused with the command that repairs it there."""
    crashed(source)
    copied(source, target)
    damage(target, 2)
    go_on(source)
    assert "stepwise verify job --repair --store disk:" in refused(source, target)


def test_a_lost_tail_is_not_copied(source, target):
    """A run whose last acknowledged records are gone is refused."""
    go_on(source)
    last = content(source)[0][-1][0]
    with contextlib.closing(sqlite3.connect(f"{source[5:]}/cache.db")) as database, database:
        key = f"r/%{last:012d}"
        database.execute("DELETE FROM Cache WHERE key LIKE ?", (key,))
    assert "gone from its end" in refused(source, target)


def test_a_run_in_progress_is_left_out(source, target):
    """A run that somebody executes is left out and named, and copied when it is free."""
    crashed(source)
    go_on(source, run_id="other")
    store = open_store(source)
    epoch = store.acquire("job", ME)
    copier = Copier(store, open_store(target))
    found = {each.id: each for each in copier.copy_each(["job", "other"])}
    assert (found["job"].outcome, found["other"].outcome) == ("busy", "copied")
    assert "'job'" in found["job"].problem
    with pytest.raises(RunBusyError):
        Copier(store, open_store(target), dry_run=True).copy("job")
    store.release("job", epoch)
    assert copier.copy("job").outcome == "copied"


def test_child_runs_come_along(source, target):
    """A run is copied with the runs that it called, and continues with them."""
    with fresh_store(source), pytest.raises(SimulatedCrash), crash_at(think, "before", call=3):
        whole.options(run_id="job")(4)
    [found] = copied(source, target, "job")
    assert (found.outcome, found.children) == ("copied", 3)
    with fresh_store(target):
        DONE.clear()
        assert len(whole.options(run_id="job")(4)) == 4
    assert DONE == ["think 2", "send part 3", "think 3"]


def test_messages_come_along(source, target):
    """What was sent to a run is there in its copy, if both may act on it; else it is refused."""
    suspended(source)
    copied(source, target)
    with fresh_store(source):
        stepwise.get_run("job").send("name", "ann")
    problem = refused(source, target)
    assert "both would act on what was sent to it: the signal 'name' (message 1)" in problem
    assert outcomes(copied(source, target, messages=True)) == ["copied"]
    with fresh_store(target):
        assert asks.options(run_id="job")()[1] == "ann"
    assert outcomes(copied(source, target)) == ["there"]
    assert content(source, inbox_name("job")) == content(target, inbox_name("job"))


@pytest.mark.parametrize(
    ("messages", "first"), [(False, True), (True, True), (True, False)], ids=str
)
def test_a_message_that_comes_meanwhile(source, target, messages, first):
    """What is sent while a run is copied comes along, or the copy is refused, like any other."""
    with fresh_store(source), pytest.raises(stepwise.RunSuspended):
        stepwise.configure(suspend_after=0)
        asks.options(run_id="job")()
    if not first:
        with fresh_store(source):
            stepwise.get_run("job").send("other", 1)
        copied(source, target, messages=True)
        with fresh_store(source), pytest.raises(stepwise.RunSuspended):
            stepwise.configure(suspend_after=0)
            asks.options(run_id="job")()
    written = Copier._write

    def sent_before(*args):
        with fresh_store(source):
            stepwise.get_run("job").send("name", "ann")
        written(*args)

    with mock.patch.object(Copier, "_write", sent_before):
        [found] = copied(source, target, messages=messages)
    if not messages:
        assert found.outcome == "refused"
        assert "the signal 'name' (message 1)" in found.problem
    else:
        assert found.outcome == "copied"
        assert content(source, inbox_name("job")) == content(target, inbox_name("job"))
        with fresh_store(target):
            assert asks.options(run_id="job")()[1] == "ann"


@pytest.mark.parametrize("taken", [False, True])
def test_a_yes_is_not_doubled(source, target, taken):
    """A run with a yes that it has not acted on is copied only if that is meant; then once more."""

    @tool(side_effect=True, approve=True)
    def pay():
        return DONE.append("pay")

    @workflow(run_id="job")
    def payer():
        return pay()

    stepwise.configure(suspend_after=0)
    with fresh_store(source):
        with pytest.raises(stepwise.RunSuspended):
            payer()
        stepwise.get_run("job").questions[0].approve()
        announced = mock.patch.object(ApprovedCall, "announced", side_effect=KeyboardInterrupt)
        if taken:
            with announced, pytest.raises(KeyboardInterrupt):
                payer()
    problem = refused(source, target)
    assert f"the {'yes' if taken else 'answer'} to step 1" in problem
    assert outcomes(copied(source, target, messages=True)) == ["copied"]
    with fresh_store(source):
        payer()
    assert DONE == ["pay"]


def test_other_messages_are_another_history(source, target):
    """A run is refused if source and target were sent different messages."""
    suspended(source)
    copied(source, target)
    for url, name in ((source, "ann"), (target, "bob")):
        with fresh_store(url):
            stepwise.get_run("job").send("name", name)
    assert "the inbox of run 'job'" in refused(source, target)


def test_lost_messages_are_not_copied(source, target):
    """A run whose inbox is damaged is refused until the loss is given up."""
    suspended(source)
    with fresh_store(source):
        stepwise.get_run("job").send("name", "ann")
    damage(source, 1, inbox_name("job"))
    assert "stepwise verify job --repair" in refused(source, target)
    with fresh_store(source):
        stepwise.get_run("job").repair()
    assert outcomes(copied(source, target)) == ["copied"]
    with fresh_store(target):
        stepwise.get_run("job").send("name", "bob")
        assert asks.options(run_id="job")()[1] == "bob"


def test_a_pruned_journal(source, target):
    """A run whose old records are pruned is copied, and again after more of them were pruned."""
    with crashing(source, 20):
        endless.options(run_id="job")(60)
    first = content(source)[0][0][0]
    assert first > 1
    assert outcomes(copied(source, target)) == ["copied"]
    with fresh_store(source), pytest.raises(SimulatedCrash), crash_at(think, "before", call=30):
        endless.options(run_id="job")(60)
    assert content(source)[0][0][0] > content(target)[0][-1][0] + 1
    assert outcomes(copied(source, target)) == ["copied"]
    assert content(source) == content(target)
    with fresh_store(target):
        assert endless.options(run_id="job")(60) == 60
        assert stepwise.get_run("job").verify().ok


def test_a_pruned_journal_of_a_copy_that_went_on(source, target):
    """Where no record is left that proves one history, a copy that went on is not replaced."""
    with crashing(source, 20):
        endless.options(run_id="job")(90)
    copied(source, target)
    for url, call in ((target, 5), (source, 40)):
        with fresh_store(url), pytest.raises(SimulatedCrash), crash_at(think, "before", call=call):
            endless.options(run_id="job")(90)
    assert "were pruned since" in refused(source, target)


def test_a_restored_copy_asks(source, target):
    """Copied back from a backup as restored, a run asks about a side effect that it lacks."""
    crashed(source)
    go_on(source, run_id="done")
    assert outcomes(copied(source, target, restored=True)) == ["copied", "copied"]
    DONE.clear()
    with pytest.raises(StepInDoubtError, match="restored from a backup"):
        go_on(target)
    assert DONE == ["think 2"]
    assert go_on(target, run_id="done") == 4
    assert outcomes(copied(source, target, restored=True)) == ["there", "there"]
    assert "there" in outcomes(copied(source, target))


def test_marking_a_copy_that_is_there(source, target):
    """An unfinished run that was copied before is marked as restored afterwards, once."""
    crashed(source)
    copied(source, target)
    assert outcomes(copied(source, target, restored=True)) == ["copied"]
    count = len(content(target)[0])
    assert outcomes(copied(source, target, restored=True)) == ["there"]
    assert len(content(target)[0]) == count
    with pytest.raises(StepInDoubtError):
        go_on(target)


def test_a_comparison_writes_nothing(source, target, tmp_path):
    """A dry run says what would be copied, and makes no store."""
    crashed(source)
    before = content(source)
    [found] = copied(source, target, dry_run=True)
    assert (found.outcome, found.records) == ("copied", len(before[0]))
    assert not (tmp_path / "target").exists()
    copied(source, target)
    assert outcomes(copied(source, target, dry_run=True)) == ["there"]


def test_stores_that_cannot_be_copied(source):
    """A store in memory, and one and the same store, are refused."""
    for one, other in ((source, "memory:"), ("memory:", source), (source, source)):
        with pytest.raises(ConfigurationError):
            Copier(open_store(one), open_store(other))


def test_another_key(source, target, monkeypatch):
    """A target or a source that was written with another key is refused in words."""
    crashed(source)
    monkeypatch.setenv("STEPWISE_KEY", "another key of the tests")
    assert "was written with another key" in refused(source, target)
    crashed(target)
    monkeypatch.delenv("STEPWISE_KEY")
    with pytest.raises(ConfigurationError, match="another key"):
        copied(source, target)


OLD, NEW = "an old key of the tests", "a new key of the tests"


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [("KEY", OLD, f"{NEW},{OLD}"), ("ENCRYPT", "1", "1")],
    ids=["replaced key", "encrypted"],
)
def test_encrypted_runs(source, target, monkeypatch, name, first, then):
    """Encrypted records, and those of an older key that is known, are copied and continue."""
    monkeypatch.setenv(f"STEPWISE_{name}", first)
    crashed(source)
    monkeypatch.setenv(f"STEPWISE_{name}", then)
    assert outcomes(copied(source, target)) == ["copied"]
    assert content(source)[:3] == content(target)[:3]
    assert outcomes(copied(source, target)) == ["there"]
    assert go_on(target) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_a_read_only_source(tmp_path, target):
    """Runs are copied from a disk on which nothing can be written, such as a backup."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("cannot mount")
    try:
        crashed(f"disk:{tmp_path}/first")
        copy_in_a_process(f"disk:{tmp_path}/first", f"disk:{disk}/store")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        copy_in_a_process(f"disk:{disk}/store", target)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert content(f"disk:{tmp_path}/first") == content(target)


def test_logs_of_frameworks(source, target):
    """Conversations and threads are found by their lists, copied, and listed in the target."""
    stores = open_store(source), open_store(target)
    seal = seal_for(stores[0])
    log = SealedLog(stores[0], seal, f"{SESSIONS.prefix}ann")

    def say(end, text, **how):
        with log.owned() as epoch:
            return log.append(epoch, end, [(["add", text], text.encode())], **how)

    end = say(LogEnd(), "hello")
    LogIndex(stores[0], seal, SESSIONS).add("ann")
    copier = Copier(*stores)
    assert copier.logs() == [f"{SESSIONS.prefix}ann"]
    assert outcomes(copier.copy_each(copier.logs())) == ["copied"]
    assert outcomes(copier.copy_each(copier.logs())) == ["there"]
    end = say(end, "and again")
    assert outcomes(copier.copy_each(copier.logs())) == ["copied"]
    for text in ("cleared", "new"):  # a rewrite, which leaves nothing that both have
        end = say(end, text, instead=text == "cleared")
    assert outcomes(copier.copy_each(copier.logs())) == ["copied"]
    assert content(source, log.name) == content(target, log.name)
    assert list(LogIndex(stores[1], seal, SESSIONS).ids()) == ["ann"]
    [found] = SealedLog(stores[1], seal, log.name).read(LogEnd())[:1]
    assert [each.payload for each in found] == [b"cleared", b"new"]


def test_sessions_and_threads(source, target):
    """A session of the Agents SDK and a thread of LangGraph are on the lists of both stores."""
    asyncio.run(StepwiseSession("ann", store=source).add_items([{"role": "user"}]))
    ThreadStore(source).index.add("chat")
    log = SealedLog(open_store(source), seal_for(open_store(source)), "langgraph:chat")
    with log.owned() as epoch:
        log.append(epoch, LogEnd(), [(["w", [], []], b"")])
    stores = open_store(source), open_store(target)
    copier = Copier(*stores)
    assert copier.logs() == ["langgraph:chat", "openai-agents:ann"]
    assert outcomes(copier.copy_each(copier.logs())) == ["copied", "copied"]
    assert ThreadStore(target).thread_ids() == ["chat"]
    assert asyncio.run(StepwiseSession("ann", store=target).get_items()) == [{"role": "user"}]
    asyncio.run(StepwiseSession("ann", store=target).add_items([{"role": "assistant"}]))
    assert outcomes(copier.copy_each(copier.logs())) == ["there", "there"]


def test_a_session_of_an_earlier_version(source, target):
    """A session that is on no list is copied by its name, and is listed when it is written to."""
    asyncio.run(StepwiseSession("ann", store=source).add_items([{"role": "user"}]))
    store = open_store(source)
    LogIndex(store, seal_for(store), SESSIONS).remove("ann")
    copier = Copier(store, open_store(target))
    assert copier.logs() == []
    assert copier.copy("openai-agents:ann").outcome == "copied"
    assert Copier(copier.target, store).logs() == ["openai-agents:ann"]
    asyncio.run(StepwiseSession("ann", store=source).add_items([{"role": "assistant"}]))
    assert copier.logs() == ["openai-agents:ann"]


def test_checkpoints_alone(source, target):
    """Checkpoints under a name that is no run, which no list has, are copied by that name."""
    checkpoint = stepwise.Checkpoint("id", "mine", 1, {"a": 1})
    stepwise.CheckpointStore(source).save(checkpoint)
    assert copied(source, target) == []
    assert outcomes(copied(source, target, "mine")) == ["copied"]
    assert stepwise.CheckpointStore(target).load_latest("mine").state == {"a": 1}
    assert outcomes(copied(source, target, "mine", "nothing")) == ["there", "refused"]


def test_a_run_copies_itself(source, target):
    """``Run.copy_to`` gives the run in the other store, or raises what keeps it from that."""
    crashed(source)
    with fresh_store(source):
        copy_of = stepwise.get_run("job").copy_to(target)
        assert copy_of.store.url == target
        assert copy_of.status == "interrupted"
    go_on(source)
    go_on(target)
    with fresh_store(source), pytest.raises(RunConflictError) as error:
        stepwise.get_run("job").copy_to(target)
    assert error.value.run_id == "job"


def test_no_run_is_in_memory_at_once(source, target):
    """The memory that a copy takes does not grow with the run."""
    with fresh_store(source) as store:
        agent.options(run_id="job")(1)
        last, epoch = content(source)[0][-1][0], store.acquire("job", ME)
        journal = copying.journals.Journal(store, seal_for(store), "job", epoch, fsync=False)
        journal.load()
        record = journal.load()[-1].record
        for _ in range(100):
            journal.append((record, os.urandom(1_000_000)), durable=False)
        journal.append((record, b""))
        store.release("job", epoch)
    assert content(source)[0][-1][0] == last + 101
    program = f"""
import resource, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
from copied import copy
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
[found] = copy({source!r}, {target!r}, 0, "")
assert found.size > 100_000_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1000)
"""
    out = interpreted("-c", program)
    assert int(out.stdout) < 75  # MB


# -- killed --------------------------------------------------------------------------------------


@pytest.fixture
def tree(source):
    """A run with child runs and messages, a run in progress, a conversation."""
    with fresh_store(source) as store:
        with pytest.raises(SimulatedCrash), crash_at(think, "before", call=3):
            whole.options(run_id="tree")(4)
        Inbox(store, seal_for(store), "tree").post("signal", "name", b'"ann"')
        seal = seal_for(store)
        log = SealedLog(store, seal, f"{SESSIONS.prefix}ann")
        with log.owned() as epoch:
            log.append(epoch, LogEnd(), [(["add", str(n)], b"") for n in range(5)])
        LogIndex(store, seal, SESSIONS).add("ann")
    crashed(source)
    names = [head.run_id for head in open_store(source).heads()]
    return [*names, inbox_name("tree"), f"{SESSIONS.prefix}ann"]


def copy_in_a_process(source, target, *more):
    """Run the program that copies, which may kill itself at a write."""
    return python(PROGRAM, source, target, *(more or ["0", ""]))


def half_copied(target):
    store = open_store(target)
    return [each for each in ("tree", "job") if store.get(each, COPYING) is not None]


def whole_or_hidden(source, target):
    """No listed run lacks anything, and none that lacks something is executed."""
    store, half = open_store(target), half_copied(target)
    shown = {head.run_id for head in store.heads()}
    store.close()
    for run_id in shown - set(half):
        ours = content(source, run_id)[0]
        assert ours == content(target, run_id)[0][: len(ours)]
    for run_id in half:
        call = whole if run_id == "tree" else agent
        with fresh_store(target), pytest.raises(StoreError, match="copy that is not whole"):
            call.options(run_id=run_id)(4)
    return bool(half)


@pytest.mark.parametrize("how", ["", "restored"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_copy_that_is_killed_at_any_write_is_continued(tree, source, tmp_path, when, how):
    """Wherever a copy is killed, no run looks whole that is not; the next copy does the rest."""
    met, first = 0, 2 + 2 * (when == "before") + bool(how)
    for number in itertools.count(1) if WHOLE else itertools.count(first, 8):
        target = f"disk:{tmp_path}/target{number}"
        ended = copy_in_a_process(source, target, number, when, how)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        DONE.clear()
        met += whole_or_hidden(source, target)
        assert DONE == []
        assert copy_in_a_process(source, target, "0", "", how).returncode == 0
        compare(source, target, tree, restored=bool(how))
    assert number > 15
    assert met > (5 if WHOLE else 0)


def compare(source, target, names, *, restored):
    for name in names:
        ours, theirs = content(source, name), content(target, name)
        if restored and ours[2] is not None and theirs[2] != ours[2]:
            assert theirs[0][: len(ours[0])] == ours[0]
            assert len(ours[0]) < len(theirs[0]) <= len(ours[0]) + 4
            assert theirs[1] == ours[1]
        else:
            assert ours == theirs
    with fresh_store(target):
        assert all(run.verify().ok for run in stepwise.runs())
    assert not any(open_store(target).get(name, COPYING) for name in names)


def test_a_half_copy_can_be_given_up(tree, source, target):
    """A copy that was cut off is named, is no source, and is deleted like a run."""
    copy_in_a_process(source, target, "2", "after")
    [half] = half_copied(target)
    with pytest.raises(CorruptStoreError, match="copy that is not whole itself"):
        Copier(open_store(target), open_store(f"{target}2")).copy(half)
    with fresh_store(target):
        assert stepwise.runs() == []
        stepwise.get_run(half).delete()
        with pytest.raises(RunNotFoundError):
            stepwise.get_run(half)
