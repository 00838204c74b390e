"""Reading what a run says: offsets, resets and ends; copies, forks, damage."""

import asyncio
import contextvars
import itertools
import sqlite3
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from stepwise import emit, step, workflow
from stepwise._journal.journal import Position, seal_for
from stepwise._journal.stream import AGAIN, ENDED, SAID, WITHDRAWN, StreamLog, StreamWriter
from stepwise._runs.streaming import RunStream
from stepwise.stores import open_store


class Mark:
    pass


@step(retries=2, backoff=0)
def stumble(flush):
    """Say something in each attempt; the first ones fail."""
    attempt = stepwise.current_step().attempt
    emit(f"attempt {attempt}")
    flush()
    if attempt < 3:
        raise ValueError(attempt)


def read(run, *after, **more):
    return [(each.offset, each.kind, each.value) for each in run.stream(*after, **more)]


def emissions():
    from stepwise._execution.active_run import live_runs

    (active,) = live_runs
    return active.emissions


def test_a_failed_attempt_is_withdrawn():
    """Who saw it gets a reset to an offset; who comes later never sees it."""

    @workflow
    def agent():
        emit("before")
        stumble(lambda: emissions().flush())
        emit("after")

    run = agent.execute()
    assert [value for _, kind, value in read(run) if kind == "item"] == [
        "before",
        "attempt 3",
        "after",
    ]
    assert read(run, 1)[0] == (2, "reset", 1)  # it had seen the first attempt
    assert [kind for _, kind, _ in read(run, 0)] == ["item", "item", "end"]


@pytest.mark.parametrize(("ends", "status"), [(None, "completed"), (ValueError("no"), "failed")])
def test_the_end_says_how(ends, status):
    """The last thing of a stream is its end, with the status of the run."""

    @workflow(run_id="r")
    def agent():
        emit("x")
        if ends:
            raise ends

    if ends:
        with pytest.raises(ValueError, match="no"):
            agent()
    else:
        agent()
    run = stepwise.get_run("r")
    assert read(run) == [(0, "item", "x"), (0, "end", status)]
    assert read(run, 0) == [(0, "end", status)]
    assert read(run, stream="another") == [(-1, "end", status)]


@pytest.mark.parametrize("after", [-2, 1, 10**12, "0", True, 0.0])
def test_forged_offsets(after):
    """An offset that the stream does not have is an error that names the stream and its last."""

    @workflow
    def agent():
        emit("x")

    with pytest.raises(stepwise.ConfigurationError, match=r"'main' .* last offset is 0"):
        agent.execute().stream(after)


def test_values_come_back_as_they_were():
    """Texts, plain data and values of other kinds are what was emitted."""
    values = ["ä\n\x00", "", "\ud800", {"a": [1, 2.5, None, True]}, (1, 2), {1: 2}, b"x", 1 << 70]
    values += [float("inf"), "x" * (3 << 20), {1, 2}]

    @workflow
    def agent():
        for each in values:
            emit(each)

    items = [each.value for each in agent.execute().stream()][:-1]
    assert items == values
    assert [*map(type, items)] == [*map(type, values)]


@pytest.mark.parametrize("how", ["json", "encrypted"])
def test_codec_and_encryption(how, monkeypatch):
    """With ``codec="json"`` and with encryption, streams are recorded like results."""
    if how == "encrypted":
        pytest.importorskip("cryptography")
        stepwise.configure(encrypt=True)

    @workflow(codec="json" if how == "json" else None)
    def agent():
        emit("a text that nobody else may read")
        emit({"n": 1})
        if how == "json":
            with pytest.raises(stepwise.NotRecordableError, match="emitted to 'main'"):
                emit(threading.Lock())

    run = agent.execute()
    assert [each.value for each in run.stream()] == [
        "a text that nobody else may read",
        {"n": 1},
        "completed",
    ]
    if how == "encrypted":
        raw = b"".join(data for _, data in run.store.read(f"stream:{run.id}:"))
        assert b"nobody" not in raw
        assert raw


def test_streams_of_threads_and_of_other_names():
    """Threads of a run say something on streams of their own; each keeps its order."""

    @workflow
    def agent():
        def speak(name):
            for number in range(100):
                emit(number, name)

        threads = [threading.Thread(target=speak, args=(name,)) for name in "ab"]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    run = agent.execute()
    for name in "ab":
        assert [value for *_, value in read(run, stream=name)] == [*range(100), "completed"]


def test_outside_of_a_run():
    """Outside a run nothing is said, and nothing happens."""
    emit("x")
    assert stepwise.runs() == []


def test_after_the_end():
    """Code that outlives its run is refused, by name."""
    kept = []

    @workflow
    def agent():
        emit("x")
        kept.append(contextvars.copy_context())

    agent()
    with pytest.raises(stepwise.OutsideRunError, match=r"emit\(\) was called after run"):
        kept[0].run(emit, "late")


LEFT = []  # of the first attempt: its context, as a thread of it has it


@step(retries=1, backoff=0)
def leave_something_behind():
    if not LEFT:
        LEFT.append(contextvars.copy_context())
        emit("early")
        raise ValueError
    with pytest.raises(stepwise.OutsideRunError, match="outlived an attempt of leave_something"):
        LEFT.pop().run(emit, "late")


def test_what_outlives_its_attempt():
    """Code that a failed attempt left behind is refused, since the next attempt has begun."""

    @workflow
    def agent():
        leave_something_behind()

    assert [value for *_, value in read(agent.execute())] == ["completed"]
    assert LEFT == []


def test_items_of_a_generator():
    """What a generator workflow yields is its stream, live; what is no value is left out."""

    @workflow(run_id="g")
    def agent():
        yield 1
        yield threading.Lock()
        yield {"n": 2}

    items = agent()
    next(items)
    emissions().flush()
    assert read(stepwise.get_run("g"), follow=False) == [(0, "item", 1)]
    assert len([*items]) == 2
    assert [value for *_, value in read(stepwise.get_run("g"))] == [1, {"n": 2}, "completed"]


def test_a_copy_has_the_streams(tmp_path):
    """A copied run has its streams, with the same offsets."""

    @workflow
    def agent():
        emit("before")
        stumble(lambda: emissions().flush())

    run = agent.execute()
    copy = run.copy_to(f"disk:{tmp_path / 'copy'}")
    assert read(copy, 1) == read(run, 1)
    assert copy.verify().ok
    assert copy.verify().batches == run.verify().batches > 0


def test_a_fork_has_a_stream_of_its_own():
    """The streams of a fork hold what the fork says itself."""

    @workflow(retention="all")
    def agent():
        emit("before")
        stumble(lambda: None)
        emit("after")

    run = agent.execute()
    fork = run.fork(at=1)
    agent.options(run_id=fork.id)()
    assert [value for *_, value in read(fork)] == ["after", "completed"]
    assert [value for *_, value in read(run)][:1] == ["before"]


def test_a_deleted_run_leaves_nothing():
    """Streams are deleted with their run; the next run of that id begins anew."""

    @workflow(run_id="r")
    def agent(what):
        emit(what)

    run = agent.execute("secret words")
    run.delete()
    assert run.store.names("stream:r:") == []
    assert [*run.store.read("stream:r:")] == []
    assert read(agent.execute("other")) == [(0, "item", "other"), (0, "end", "completed")]


def test_a_stale_owner_is_fenced():
    """Once another process owns the run, an earlier owner can add nothing to its streams."""
    store = open_store("memory:fenced")
    seal = seal_for(store)
    old, new = (StreamWriter(store, seal, "r", fsync=True) for _ in range(2))
    for writer in (old, new):
        writer.prepare({}, [[SAID, "main", [[1, []]], [1]]], b"x", durable=True)
    old.settle()
    store.release(old.name, 1)
    new.acquire()
    old.prepare({"main": 1}, [[SAID, "main", [[1, []]], [1]]], b"y", durable=True)
    with pytest.raises(stepwise.LeaseLostError):
        old.settle()


@pytest.mark.parametrize("lost", ["a batch", "the end"])
def test_damage_is_noticed(lost):
    """A damaged or lost part is an error for who reads across it only, and verify says it."""

    @workflow(run_id="r")
    def agent():
        for number in range(3):
            emit(number)
            emissions().flush()

    run = agent.execute()
    with sqlite3.connect(f"{run.store.path}/cache.db") as database:
        keys = "SELECT key FROM Cache WHERE key LIKE 'r/%' AND length(value) > 0"
        rows = database.execute(f"{keys} ORDER BY key").fetchall()
        from stepwise.stores._rows import hashed

        ours = [key for (key,) in rows if hashed("stream:r:") in key]
        run.store.close()
        if lost == "the end":
            database.execute("DELETE FROM Cache WHERE key = ?", ours[-1:])
        else:
            database.execute("UPDATE Cache SET value = x'00' WHERE key = ?", ours[1:2])
    run = stepwise.get_run("r")
    with pytest.raises(stepwise.CorruptStoreError, match="of the streams of run 'r'"):
        read(run)
    if lost == "a batch":
        assert read(run, 1) == [(2, "item", 2), (2, "end", "completed")]
    assert "of its streams damaged or gone" in str(run.verify().problems)


def test_the_last_batch_is_written_after_the_end(monkeypatch):
    """A batch that comes while a reader reads the rest of a run that has ended is not lost."""

    @workflow(run_id="r")
    def agent():
        emit("all")

    run = agent.execute()
    log = StreamWriter(run.store, seal_for(run.store), "r", fsync=False)
    *_, (number, last) = log.batches()
    log.at = Position(number, last.link)
    stream, store, late = run.stream(), type(run.store), [ENDED]
    whole = store.read

    def read_slowly(self, name, after=0):
        yield from whole(self, name, after=after)
        if name == log.name and late:
            log.prepare(last.after(), [[late.pop()]], b"", durable=False)
            log.settle()

    monkeypatch.setattr(store, "read", read_slowly)
    assert [(each.offset, each.kind) for each in stream] == [(0, "item"), (0, "end")]
    assert not late
    log.release()


def test_a_value_that_cannot_be_loaded(monkeypatch):
    """An asynchronous reader gets what precedes the value first, and then the error."""

    @workflow
    def agent():
        emit("before")
        emit(Mark())

    stream, found = agent.execute().stream(), []
    monkeypatch.delattr(f"{__name__}.Mark")

    async def follow():
        async for each in stream:
            found.append(each.value)

    with pytest.raises(stepwise.UnreadableValueError):
        asyncio.run(follow())
    assert found == ["before"]


def test_a_run_that_says_nothing_has_no_log():
    """A run that emits nothing writes nothing for it."""

    @workflow
    def agent():
        stumble(lambda: None) if False else None

    run = agent.execute()
    assert run.store.marks(f"stream:{run.id}:") == []


class _InProgress:
    """The facts of a run that only has streams."""

    status, superseded, created_at = "running", "", 0.0


run_ids = (f"run-{number}" for number in itertools.count())
NAMES = st.sampled_from(["main", "progress"])
OPS = st.tuples(st.sampled_from([SAID, WITHDRAWN, AGAIN]), NAMES, st.integers(1, 5))


@given(st.lists(st.lists(OPS, min_size=1, max_size=3), max_size=8), st.integers(1, 20))
def test_the_newest_items_are_the_end_of_all(batches, size):
    """Backwards, a stream has the same items as forwards, withdrawn and said again or not."""
    store = open_store("memory:backwards")
    log = StreamWriter(store, seal_for(store), next(run_ids), fsync=False)
    following, first_said, words = {}, {}, itertools.count()
    for wanted in batches:
        firsts, ops, payload = dict(following), [], b""
        for kind, name, number in wanted:
            at, many = following.get(name, 0), number
            if kind == SAID or not at:
                texts = [f"{next(words)} " for _ in range(number)]
                payload += "".join(texts).encode()
                ops.append([SAID, name, [[number, []]], [*map(len, texts)]])
                first_said.setdefault(name, at)
            elif kind == WITHDRAWN:
                many = 1
                ops.append([WITHDRAWN, name, max(0, at - number), []])
            else:
                ops.append([AGAIN, name, [[1, first_said[name], []]] * number])
            following[name] = at + many
        log.prepare(firsts, ops, payload, durable=False)
        log.settle()
    for name in ("main", "progress"):
        stream = RunStream(log, _InProgress, name, None, follow=False)
        items = [each.value for each in stream]
        for most, is_whole in ((1 << 30, True), (size, False)):
            found, is_all = stream.newest(most)
            values = [data.decode() for _, data in found]
            assert values == items[len(items) - len(values) :]
            assert is_all or not is_whole
            assert values == items or not is_all
            assert sum(map(len, values)) >= min(most, sum(map(len, items)))
    log.release()


def test_a_long_stream_is_not_read_whole(monkeypatch):
    """The newest items of a long stream take as many looks as those of a short one."""

    @workflow
    def agent():
        for number in range(2000):
            emit(f"{number} ")
            if number % 4 == 0:
                emissions().flush()

    run = agent.execute()
    looks = []
    batch = StreamLog.batch
    monkeypatch.setattr(StreamLog, "batch", lambda *given: looks.append(1) or batch(*given))
    ((name, text, is_all),) = run._newest_said(100)
    assert (name, is_all) == ("main", False)
    assert "".join(f"{number} " for number in range(2000)).endswith(text)
    assert len(text) == 100
    assert len(looks) < 150
