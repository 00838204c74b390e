"""The journal: what is refused, what is missed when it is gone, and who can read it.

Records are changed, removed and exchanged behind its back, in the store and in its files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from outside import Log
from store_tools import ME, edit
from sweeping import size

from stepwise import (
    ConfigurationError,
    JournalLostError,
    LeaseLostError,
    StoreError,
    step,
    tool,
    workflow,
)
from stepwise._journal import journal as _journal
from stepwise._journal import seal as _seal
from stepwise._journal.journal import (
    Journal,
    Lost,
    Position,
    facts_of,
    open_head,
    read,
    read_on,
    read_one,
)
from stepwise._journal.records import (
    Branched,
    Call,
    Ended,
    Entry,
    Forgotten,
    Intent,
    Outcome,
    RunFacts,
    Started,
)
from stepwise._journal.seal import (
    CELL_KEY,
    DamagedError,
    FileCell,
    ForeignKeyError,
    Seal,
    anchor_cell,
    anchor_of,
    drop_anchor,
    load_seal,
)
from stepwise.stores import Batch
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore

SEAL = Seal((b"k" * 32,))
FACTS = RunFacts(
    run_id="run",
    workflow="agent.py:agent",
    label="agent",
    status="running",
    arguments="x=1",
    digest="d",
    code="",
    parent="",
    created_at=1.0,
    updated_at=2.0,
)


def call(number, *, effect=False):
    key = "k" if effect else ""
    return Call(number, f"step{number}", "agent", f"digest{number}", 1, effect=effect, key=key)


def outcome(number, *, effect=False):
    return Outcome(call(number, effect=effect), "completed", preview="\u2713", inner=(7, 8), at=3.5)


STARTED = Started("agent.py:agent", "d", "x=1", at=1.0)
STORY = (
    (STARTED, b"arguments"),
    (Intent(call(1, effect=True)), b""),
    (outcome(1, effect=True), b"sent"),
    (outcome(2), b"value " * 100),
    (outcome(3), b""),
    (Intent(call(4, effect=True)), b""),
    (outcome(5), b"large" * 300_000),
)
OPEN_INTENT = 6  # the number of the one without an outcome


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else DiskStore(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def disk(tmp_path):
    store = DiskStore(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def told(monkeypatch):
    """The notices of the journal."""
    notices = []
    monkeypatch.setattr(_journal, "notice", notices.append)
    return notices


def begin(store, run_id="run", seal=SEAL):
    return Journal(store, seal, run_id, store.acquire(run_id, ME), fsync=True)


def write_story(store, run_id="run", story=STORY, seal=SEAL):
    """Record the story and end; the entries, and the stored bytes by number."""
    journal = begin(store, run_id, seal)
    entries = []
    for number, item in enumerate(story):
        numbers = journal.append(item, head=FACTS if number == 0 else None)
        entries += [Entry(numbers[0], *item)]
    store.release(run_id, journal.epoch)
    return entries, dict(store.read(run_id))


def load(store, run_id="run", seal=SEAL):
    """Take the run up, read its journal, and give it back."""
    journal = begin(store, run_id, seal)
    try:
        return journal, journal.load()
    finally:
        store.release(run_id, journal.epoch)


@contextlib.contextmanager
def changed(store, records):
    """Within the block these records hold other bytes."""
    epoch = store.acquire("run", ME)
    before = dict(store.read("run"))
    store.write("run", epoch, Batch(tuple(records.items()), durable=False))
    store.release("run", epoch)
    try:
        yield
    finally:
        epoch = store.acquire("run", ME)
        back = tuple((number, before[number]) for number in records)
        store.write("run", epoch, Batch(back, durable=False))
        store.release("run", epoch)


def remove(store, *numbers):
    """Delete records."""
    if isinstance(store, MemoryStore):
        for number in numbers:
            del store._runs["run"].records[number]
    else:
        for number in numbers:
            edit(store, "DELETE FROM Cache WHERE key LIKE ?", f"r/%/{number:012d}")


def numbers_of(entries):
    return [entry.number for entry in entries]


# -- what is appended ----------------------------------------------------------------------------


def test_what_is_appended_is_read_back(store, told):
    """Every record comes back as it was appended, in its place, and the journal goes on there."""
    entries, _ = write_story(store)
    assert [(entry.record, entry.payload) for entry in entries] == list(STORY)
    journal, loaded = load(store)
    assert loaded == entries
    assert (journal.calls, journal.lost, journal.unknown_effects) == (5, [], 0)
    assert (journal.position.last, journal.position.effects) == (7, 2)
    assert open_head(SEAL, store.head("run")) == FACTS
    assert told == []


def test_a_journal_is_read_from_a_position(store):
    """Reading can begin behind any record; what lies before it is not read."""
    entries, _ = write_story(store)
    positions = [Position(), *(at for _, at in read(store, SEAL, "run"))]
    remove(store, 1, 2)
    for at in positions[2:]:
        journal = begin(store)
        assert journal.load(at) == entries[at.last :]
        assert journal.lost == []
        store.release("run", journal.epoch)


def test_what_follows_a_position_is_read_if_its_record_is_there(store):
    """The records after a position are read if the run, or the run it branched off, holds it."""
    entries, _ = write_story(store)
    positions = [Position(), *(at for _, at in read(store, SEAL, "run"))]
    branch = begin(store, "branch")
    branch.load(positions[4])
    branch.append((Branched("run", {}), b""))

    def following(run_id, at):
        found = read_on(store, SEAL, run_id, at)
        return None if found is None else numbers_of(entry for entry, _ in found)

    for at in positions:
        assert following("run", at) == numbers_of(entries[at.last :])
        shared = [*range(at.last + 1, 6)] if at.last <= 4 else None
        assert following("branch", at) == shared
        if at.last:
            other = at._replace(link=bytes(len(at.link)))
            assert following("run", other) is following("branch", other) is None
    with changed(store, {3: b"damaged"}):
        assert following("run", positions[3]) is following("branch", positions[3]) is None
    remove(store, 3)
    assert following("run", positions[3]) is following("branch", positions[3]) is None


def load_again(store, journal):
    store.release(journal.run_id, journal.epoch)
    return load(store, journal.run_id, journal.seal)


def test_several_records_are_one_batch(store):
    """Records that are appended together get consecutive numbers, and are there together."""
    journal = begin(store)
    assert journal.append(*STORY[:3]) == [1, 2, 3]
    assert journal.append(*STORY[3:]) == [4, 5, 6, 7]
    _, loaded = load_again(store, journal)
    assert [(entry.record, entry.payload) for entry in loaded] == list(STORY)


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_append_at_once(store, restless):
    """Records that threads append at once form one chain, each thread's in its order."""
    journal = begin(store)

    def work(thread):
        for turn in range(50):
            record = outcome(1000 * thread + turn)
            journal.append((record, b"%d" % turn), durable=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    journal, loaded = load_again(store, journal)
    assert numbers_of(loaded) == list(range(1, 201))
    assert journal.lost == []
    calls = [entry.record.call.number for entry in loaded]
    for thread in range(4):
        mine = [number for number in calls if number // 1000 == thread]
        assert mine == list(range(1000 * thread, 1000 * thread + 50))


def test_numbers_of_calls(store):
    """Numbers of calls go on behind the highest that is recorded."""
    write_story(store)
    journal, _ = load(store)
    assert [journal.next_call() for _ in range(3)] == [6, 7, 8]


def test_an_old_epoch_is_refused(store):
    """Who lost the run appends nothing more, however often it tries."""
    old = begin(store)
    old.append(STORY[0])
    store.release("run", old.epoch)
    new = begin(store)
    new.load()
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            old.append(STORY[1], head=FACTS)
    assert new.append(STORY[3]) == [2]
    assert store.head("run") is None
    journal, loaded = load_again(store, new)
    assert [entry.record for entry in loaded] == [STARTED, STORY[3][0]]
    assert journal.lost == []


# -- what does not verify ------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=50)
def test_one_damaged_record_is_refused(store, told, data):
    """A record that was changed, cut off, made longer or replaced is refused, and no other."""
    if store.head("run") is None:
        write_story(store)
    sealed, truth = dict(store.read("run")), load(store)[1]
    number = data.draw(st.sampled_from(sorted(sealed)), "number")
    whole = sealed[number]
    size = len(whole)

    def flipped(position, change):
        return whole[:position] + bytes([whole[position] ^ change]) + whole[position + 1 :]

    places = st.integers(0, min(size, 300) - 1) | st.integers(0, size - 1)
    changed_byte = st.builds(flipped, places, st.integers(1, 255))
    cut = st.integers(0, size - 1).map(lambda end: whole[:end])
    longer = st.binary(min_size=1, max_size=40).map(lambda tail: whole + tail)
    damaged = changed_byte | changed_byte | cut | longer | st.binary(max_size=200)
    with changed(store, {number: data.draw(damaged, "damaged")}):
        refused(store, told, truth, number)


def refused(store, told, truth, number):
    del told[:]
    journal, loaded = load(store)
    assert journal.lost == [number]
    assert loaded == [entry for entry in truth if entry.number != number]
    assert journal.position.last == len(truth)
    without_marks = number == len(truth) and not store.persistent
    assert journal.unknown_effects == (number == OPEN_INTENT or without_marks)
    assert read_one(store, SEAL, "run", number) is None
    (notice,) = told
    assert f"1 of its records in {store.url} cannot be read ({number})" in notice


def test_records_in_another_place_are_refused(store, told):
    """A record is valid under its own number, in its own run, and nowhere else."""
    _, sealed = write_story(store)
    _, others = write_story(store, "run2")
    for swapped in ({2: sealed[3], 3: sealed[2]}, {4: others[4]}, {7: sealed[5]}):
        with changed(store, swapped):
            journal, loaded = load(store)
            assert journal.lost == sorted(swapped)
            assert set(numbers_of(loaded)) == set(range(1, 8)) - set(swapped)


def test_an_exchanged_record_breaks_the_chain(store, told):
    """A record replaced by another that is validly sealed is noticed at the one behind it."""
    write_story(store)
    other = MemoryStore()
    _, sealed = write_story(other, story=[*STORY[:3], (outcome(2), b"another"), *STORY[4:]])
    with changed(store, {4: sealed[4]}):
        journal, _ = load(store)
        assert journal.lost == [5]


@pytest.mark.parametrize("gone", [(1,), (2,), (4,), (3, 4, 5), (2, 6), (1, 2, 3, 4, 5, 6)])
def test_a_missing_record_is_noticed(store, told, gone):
    """Records that are missing before others are noticed, and how many intents are among them.

    The error for a new side effect names it, the run, and the way to start over.
    """
    write_story(store)
    remove(store, *gone)
    journal, loaded = load(store)
    assert journal.lost == list(gone)
    assert numbers_of(loaded) == [number for number in range(1, 8) if number not in gone]
    outcome_tells = 2 in gone and 3 not in gone
    assert journal.unknown_effects == len({2, 6} & set(gone)) - outcome_tells
    assert len(told) == 1
    error = journal.refuse_effect("send_email")
    assert isinstance(error, JournalLostError)
    assert (error.run_id, error.path) == ("run", store.url)
    for part in (
        "send_email would run",
        f"{journal.unknown_effects} of the records",
        "stepwise forget run",
    ):
        assert part in str(error)


def test_a_run_with_a_lost_record_goes_on(store, told):
    """Behind a record that cannot be read the journal goes on, and the rest still verifies."""
    write_story(store)
    remove(store, 4)
    damaged = dict(store.read("run"))[7][:-1] + b"?"
    with changed(store, {7: damaged}):
        journal = begin(store)
        journal.load()
        assert journal.append((outcome(6), b"6")) == [8]
        journal.append((outcome(7), b"7"))
        journal, loaded = load_again(store, journal)
        assert journal.lost == [4, 7]
        assert numbers_of(loaded) == [1, 2, 3, 5, 6, 8, 9]


def test_effects_before_the_place_that_is_read_from_are_not_lost(store, told):
    """A lost plain record behind a checkpoint refuses no side effect for those before it."""
    write_story(store)
    journal = begin(store)
    journal.load()
    (at,) = [at for _, at in read(store, SEAL, "run") if at.last == 3]
    remove(store, 4)
    journal.load(at)
    assert journal.lost == [4]
    assert journal.unknown_effects == 0
    store.release("run", journal.epoch)


def test_a_side_effect_whose_record_is_lost_is_not_made_again(store, told):
    """A run of which records of side effects are lost stops before the next one is made."""
    did = Log()

    @tool(side_effect=True)
    def pay():
        did.append("pay")

    @step
    def ship():
        if len(did) == 1:
            raise OSError

    def order():
        pay()
        ship()

    @workflow(store=store)
    def agent():
        order()

    agent = agent.options(run_id="run")
    with pytest.raises(OSError):
        agent()
    intent, paid = (n for n, record in records_of(store) if "'pay'" in record)
    remove(store, intent, paid)
    with pytest.raises(JournalLostError, match="pay would run"):
        agent()
    assert did == ["pay"]


def records_of(store):
    """The numbers of the records of a run, and what they say."""
    found = _journal.read(store, _journal.seal_for(store), "run")
    return [(entry.number, repr(entry.record)) for entry, _ in found]


def test_a_damaged_end_without_marks_may_be_an_effect(told):
    """Where no mark tells what the last record was, it may have announced a side effect."""
    store = MemoryStore()
    write_story(store, story=STORY[:4])
    with changed(store, {4: b"?"}):
        assert load(store)[0].unknown_effects == 1


def test_a_damaged_number_is_one_damage(store):
    """A record under a number far off, one flipped bit away, is not billions of lost ones."""
    write_story(store)
    data = dict(store.read("run"))[7]
    remove(store, 7)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, Batch(((800_000_000_007, data),)))
    assert len(list(itertools.islice(read(store, SEAL, "run"), 100))) < 10


def test_a_swapped_value_file_is_refused(disk, told, tmp_path):
    """The file of a large value, put in the place of another one of equal size, is refused."""
    large = [(outcome(number), bytes([number]) * (2 << 20)) for number in (1, 2)]
    write_story(disk, story=[STORY[0], *large])
    one, two = (path for path in (tmp_path / "store").rglob("*.val"))
    one.rename(tmp_path / "x")
    two.rename(one)
    (tmp_path / "x").rename(two)
    journal, _ = load(disk)
    assert journal.lost == [2, 3]
    one.unlink()
    assert load(disk)[0].lost == [2, 3]


def test_a_damaged_head_is_made_up_from_the_records(store, told):
    """What a listing shows of a run with a damaged head comes from its records."""
    journal = begin(store)
    journal.append(*STORY[:3], head=FACTS)
    broken = store.head("run")
    damaged = type(broken)("run", broken.workflow, False, broken.data[:-1] + b"?")
    store.write("run", journal.epoch, Batch(head=damaged))
    assert open_head(SEAL, store.head("run")) is None
    facts = facts_of(store, SEAL, "run")
    assert (facts.run_id, facts.workflow, facts.status) == ("run", "agent.py:agent", "running")
    journal.append((Ended("completed", at=9.0), b"result"))
    facts = facts_of(store, SEAL, "run")
    assert (facts.status, facts.end, facts.updated_at) == ("completed", 4, 9.0)
    journal.append((Forgotten((2,), at=10.0), b""))
    facts = facts_of(store, SEAL, "run")
    assert (facts.status, facts.end, facts.updated_at) == ("running", 0, 10.0)
    assert facts_of(store, SEAL, "another") is None


def test_a_newer_format_is_refused(monkeypatch):
    """What a newer version of the format has sealed is refused by name, not misread."""
    monkeypatch.setattr(_seal, "FORMAT", 99)
    data, _ = SEAL.close("identity", {"kind": "new"})
    monkeypatch.undo()
    with pytest.raises(DamagedError, match="format 99"):
        SEAL.open("identity", data)


# -- what is gone --------------------------------------------------------------------------------


@pytest.mark.parametrize("left", range(7))
def test_a_lost_tail_is_noticed(disk, told, monkeypatch, left):
    """Acknowledged records gone from the end are an error if intents are among them.

    That is so at every start until somebody decides, also after the key was replaced.
    """
    write_story(disk, seal=seal_of(monkeypatch, A))
    remove(disk, *range(left + 1, 8))
    seals = [seal_of(monkeypatch, text) for text in (A, A, f"{B},{A}")]
    if left >= OPEN_INTENT:
        journal, loaded = load(disk, seal=seals[0])
        assert numbers_of(loaded) == list(range(1, left + 1))
        assert journal.unknown_effects == 0
        (notice,) = told
        assert f"ends at record {left}, though 7 were acknowledged" in notice
        return
    for seal in seals:
        with pytest.raises(JournalLostError) as caught:
            load(disk, seal=seal)
    error, effects = caught.value, 1 if left >= 2 else 2
    assert (error.run_id, error.path, told) == ("run", disk.url, [])
    for part in (f"ends at record {left}", "up to 7 were", f"{effects} of", "stepwise forget run"):
        assert part in str(error)


def test_a_lost_tail_is_told_on_stderr(disk, monkeypatch, capsys):
    """The loss of plain steps is told in one line on stderr."""
    write_story(disk, story=STORY[:5])
    remove(disk, 5)
    monkeypatch.setenv("STEPWISE_QUIET", "0")
    load(disk)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("stepwise: run 'run': the journal in")
    assert "ends at record 4" in line


def delete_database(store):
    store.close()
    for path in pathlib.Path(store.path).glob("cache.db*"):
        path.unlink()


def new_database(store):
    delete_database(store)
    other = DiskStore(store.path)
    other.acquire("run", ME)
    write_story(other, "run2")
    other.release("run", 1)
    other.close()


EMPTYING = {
    "no rows": lambda store: edit(store, "DELETE FROM Cache"),
    "no database": delete_database,
    "empty": lambda store: (store.close(), os.truncate(os.path.join(store.path, "cache.db"), 0)),
    "new": new_database,
}


@pytest.mark.parametrize("damage", EMPTYING)
def test_an_emptied_database_is_noticed(disk, told, damage):
    """A run whose records are all gone does not silently begin again."""
    write_story(disk)
    write_story(disk, "plain", story=STORY[3:5])
    EMPTYING[damage](disk)
    with pytest.raises(JournalLostError, match="ends at record 0"):
        load(disk)
    assert told == []
    assert load(disk, "plain")[1] == []
    assert len(told) == 1


def test_marks_are_only_a_help(disk, told, tmp_path):
    """Without its marks, or with damaged or foreign ones, an intact journal raises no alarm."""
    write_story(disk)
    write_story(disk, "run2", story=STORY * 2)
    (one, two) = sorted((tmp_path / "store" / "marks").iterdir(), key=os.path.getsize)
    marks = {path: path.read_bytes() for path in (one, two)}
    one.write_bytes(marks[two])
    two.write_bytes(marks[one])
    for run_id in ("run", "run2"):
        assert load(disk, run_id)[0].lost == []
    for damaged in (b"", b"x", b"x" * 128, bytes(128), marks[one][:70], os.urandom(500)):
        one.write_bytes(damaged)
        assert numbers_of(load(disk)[1]) == list(range(1, 8))
    shutil.rmtree(tmp_path / "store" / "marks")
    assert load(disk)[0].lost == []
    assert told == []


@pytest.mark.parametrize("slot", [0, 1])
def test_one_torn_mark_leaves_the_other(disk, told, tmp_path, slot):
    """When one of the two marks is torn, the other still tells of a lost tail."""
    write_story(disk)
    (path,) = (tmp_path / "store" / "marks").iterdir()
    with open(path, "r+b") as file:
        file.seek(64 * slot + 5)
        file.write(b"torn")
    remove(disk, *range(1, 8))
    with pytest.raises(JournalLostError):
        load(disk)


def test_what_nobody_relied_on_is_not_missed(disk, told):
    """Records that were appended without being acknowledged may be lost without a word."""
    journal = begin(disk)
    journal.append(*STORY[:3])
    journal.append((outcome(2), b""), durable=False)
    disk.release("run", journal.epoch)
    remove(disk, 4)
    assert numbers_of(load(disk)[1]) == [1, 2, 3]
    assert told == []


def test_a_deleted_run_is_not_missed(store, told):
    """A run that was deleted on purpose begins anew under its id."""
    write_story(store)
    epoch = store.acquire("run", ME)
    store.delete("run", epoch)
    store.release("run", epoch)
    assert load(store)[1] == []
    write_story(store, story=STORY[:2])
    assert len(load(store)[1]) == 2
    assert told == []


def test_a_deletion_that_is_cut_short(disk, told, monkeypatch):
    """A deletion that is cut short leaves the run as it was, or gone, but never lost."""
    write_story(disk)
    epoch = disk.acquire("run", ME)

    def unlink(path):
        raise OSError(errno.EIO, "killed here", path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(StoreError):
        disk.delete("run", epoch)
    monkeypatch.undo()
    disk.release("run", epoch)
    assert len(load(disk)[1]) in (0, 7)
    assert told == []


@pytest.mark.parametrize("damaged", ["cache.db-wal", "cache.db"])
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@example(position=0.0, bit=0)
@settings(max_examples=60)
def test_a_flipped_bit_in_a_file(tmp_path, monkeypatch, damaged, position, bit):
    """A flipped bit in a file of SQLite's never goes unnoticed where it changes what is read."""
    notices = []
    monkeypatch.setattr(_journal, "notice", notices.append)
    intact, flipped = tmp_path / "intact", tmp_path / "flipped"
    if not intact.exists():
        running = DiskStore(tmp_path / "store")
        write_story(running)
        if damaged == "cache.db":
            running.close()  # merges the log
        shutil.copytree(running.path, intact)  # with the log, as a crash leaves it
        running.close()
    shutil.rmtree(flipped, ignore_errors=True)
    shutil.copytree(intact, flipped, ignore=shutil.ignore_patterns("*-shm"))
    data = bytearray((flipped / damaged).read_bytes())
    data[int(position * len(data))] ^= 1 << bit
    (flipped / damaged).write_bytes(data)
    store = DiskStore(flipped)
    try:
        journal, loaded = load(store)
    except StoreError:  # also JournalLostError
        return
    finally:
        store.close()
    assert all(entry[1:] == STORY[entry.number - 1] for entry in loaded)
    missing = set(range(1, 8)) - set(numbers_of(loaded))
    assert bool(missing) == bool(notices)
    assert journal.unknown_effects >= (OPEN_INTENT in missing) + ({2, 3} <= missing)


# -- writes that fail ----------------------------------------------------------------------------


class Failing:
    """A store whose writes raise, before or after they were done."""

    def __init__(self, store):
        self.store = store
        self.fate = "done"

    def __getattr__(self, name):
        return getattr(self.store, name)

    def write(self, run_id, epoch, batch):
        if self.fate == "not done":
            raise StoreError("no answer", run_id=run_id)
        self.store.write(run_id, epoch, batch)
        if self.fate == "done, but":
            raise StoreError("no answer", run_id=run_id)
        if self.fate == "interrupted":
            raise KeyboardInterrupt


FATES = st.lists(st.sampled_from(["done", "done, but", "not done", "interrupted"]), max_size=12)


@given(fates=FATES)
@example(["done, but", "done, but", "done"])
@settings(max_examples=30)
def test_a_write_that_raises_is_caught_up(store, told, fates):
    """Whether a write that raised was done is read from the store: no gap, and nothing twice."""
    failing = Failing(store)
    journal = begin(failing)
    store.delete("run", journal.epoch)
    expected = []
    for number, fate in enumerate([*fates, "done"], 1):
        failing.fate = fate
        item = (outcome(number), b"%d" % number)
        if fate == "done":
            assert journal.append(item) == [len(expected) + 1]
        else:
            with pytest.raises((StoreError, KeyboardInterrupt)):
                journal.append(item)
        if fate != "not done":
            expected.append(item)
    journal, loaded = load_again(store, journal)
    assert [(entry.record, entry.payload) for entry in loaded] == expected
    assert numbers_of(loaded) == list(range(1, len(expected) + 1))
    assert journal.lost == told == []


APPENDER = """
import os, random, signal, sys
from stepwise._journal.journal import Journal
from stepwise._journal.lease import Lease
from stepwise._journal.records import Call, Intent, Outcome
from stepwise._journal.seal import Seal
from stepwise.stores.disk import DiskStore

store = DiskStore(sys.argv[1])
lease = Lease(store, "run").acquire()
journal = Journal(store, Seal((b"k" * 32,)), "run", lease.epoch, fsync=True)
journal.load()

def append():
    number = journal.next_call()
    call = Call(number, "s", "m", "d", 1, effect=True)
    journal.append((Intent(call), b""))
    return journal.append((Outcome(call, "completed"), b"x" * 100))[0]
"""


def test_kill_in_the_midst_of_appending(fork, disk, told):
    """After kill -9 every acknowledged record is there, and nothing is said to be lost."""
    for acknowledged in (1, 10, 40):
        script = fork(f'{APPENDER}\nwhile True:\n    os.write(1, b"%d\\n" % append())', disk.path)
        for _ in range(acknowledged):
            said = script.hear()
        script.kill()
        said = script.process.stdout.read().split()[-1:] or [said]
        journal, loaded = load(disk)
        assert numbers_of(loaded) == list(range(1, len(loaded) + 1))
        assert len(loaded) - int(said[0]) in (0, 1, 2)
        assert journal.lost == told == []


STORM = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
interrupts, last, within = 0, 0, 2e-3
while interrupts < int(sys.argv[2]):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, within))
            last = append()
            within *= 0.98
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
        within *= 1.02
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert append() > last
print(last, journal.position.last)
lease.release()
"""


def test_a_storm_of_interrupts_while_appending(fork, disk, told, tally):
    """After hundreds of Ctrl-C the journal has no gap, and all that was acknowledged."""
    count = size(200, 4000)
    last, end = map(int, fork(APPENDER + STORM, disk.path, count).finish().split())
    assert last < end
    journal, loaded = load(disk)
    assert numbers_of(loaded) == list(range(1, end + 1))
    assert journal.lost == told == []
    tally("Ctrl-C during a call of the store", count)


# -- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_the_key_file_is_made_at_first_use(home, mode):
    """The key is made once, readable by its owner only, and is the same ever after.

    Where everybody may write, but replaces only what is his own, it is trusted.  A copy that made
    it readable for others is closed again.
    """
    before = os.umask(0)
    try:
        if mode != 0o700:
            home.mkdir(parents=True)
            home.chmod(mode)
        seal = load_seal()
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == mode
    assert os.listdir(home) == ["key"]
    assert bytes.fromhex((home / "key").read_text().strip()) == seal.keys[0]
    assert len(seal.keys[0]) == 32
    (home / "key").chmod(0o644)
    assert load_seal() == seal
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600


OTHERS = [("key", 0o620), ("key", 0o602), ("", 0o777), ("", 0o720)]


@pytest.mark.parametrize(("name", "mode"), OTHERS)
def test_a_key_that_others_can_have_written(home, monkeypatch, name, mode):
    """A key that others may write, or replace, is refused by its path, with what mends it."""
    monkeypatch.setattr("stepwise._runtime.system_limits._is_private", lambda gid: False)
    before = load_seal()
    (home / name).chmod(mode)
    with pytest.raises(ConfigurationError, match="others may write to it") as caught:
        load_seal()
    mend = str(caught.value).partition("touched it: ")[2].partition(". Otherwise")[0]
    subprocess.run(mend.split(), check=True)
    assert load_seal() == before


def test_a_home_that_others_can_write_gets_no_key(home):
    """No key is made in a folder in which others could replace it, and only that is shown."""
    home.mkdir(parents=True)
    home.chmod(0o777)
    with pytest.raises(ConfigurationError, match="others may write to it") as caught:
        load_seal()
    assert caught.value.__context__ is None
    assert os.listdir(home) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["key", ""])
def test_a_key_of_another_user(home, name):
    """A key that belongs to another user, or lies in such a folder, is refused."""
    load_seal()
    os.chown(home / name, 65534, -1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        load_seal()


def test_a_group_of_its_own(home, monkeypatch):
    """A folder that the user's own group may write, as many systems make them, is trusted."""
    import grp
    import pwd

    user = SimpleNamespace(pw_name="ann")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    found = []
    for name, members in (("ann", []), ("ann", ["ann"]), ("ann", ["bob"]), ("staff", [])):
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr(grp, "getgrgid", lambda gid, group=group: group)
        home.mkdir(exist_ok=True)
        home.chmod(0o770)
        try:
            load_seal()
            found.append(True)
        except ConfigurationError:
            found.append(False)
    assert found == [True, True, False, False]


RACER = """
import sys
from stepwise._journal.seal import load_seal
print("ready")
sys.stdin.readline()
print(load_seal().key_id.hex())
"""


def test_racing_processes_make_one_key(fork, home):
    """Processes that need a key at the same moment all get the same one."""
    scripts = [fork(RACER) for _ in range(4)]
    for script in scripts:
        assert script.hear() == "ready"
    for script in scripts:
        script.tell()
    assert {script.finish() for script in scripts} == {load_seal().key_id.hex()}
    assert os.listdir(home) == ["key"]


def test_racing_threads_make_one_key(home):
    """Threads that need a key at the same moment all get the same one."""
    barrier = threading.Barrier(8)

    def ask(_):
        barrier.wait()
        return load_seal().key_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert os.listdir(home) == ["key"]


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"0" * 63, b"0" * 65, b"g" * 64, b"\xff" * 64, b"0" * 64 + b"\nab\n"]
)
def test_a_damaged_key_file(home, content):
    """A damaged key file is named, and is not replaced by a new one; a FIFO is not waited for."""
    home.mkdir(parents=True)
    (home / "key").write_bytes(content)
    with pytest.raises(ConfigurationError, match="is damaged") as caught:
        load_seal()
    assert str(home / "key") in str(caught.value)
    assert (home / "key").read_bytes() == content
    (home / "key").unlink()
    os.mkfifo(home / "key")
    with pytest.raises(ConfigurationError, match="is not a file"):
        load_seal()


def test_a_home_that_cannot_be_used(home):
    """A home folder that cannot be made is an error that names it and the ways out."""
    home.write_bytes(b"a file")
    with pytest.raises(StoreError, match="STEPWISE_HOME") as caught:
        load_seal()
    assert caught.value.path == str(home / "key")
    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize(
    "text", ["short", "x" * 15, " " * 40, "a" * 16 + ",", ",", "a" * 16 + ",b"]
)
def test_a_key_that_is_too_short(monkeypatch, home, text):
    """A key of less than 16 characters is refused, with a command that makes a good one."""
    monkeypatch.setenv("STEPWISE_KEY", text)
    with pytest.raises(ConfigurationError, match=r"secrets\.token_hex"):
        load_seal()
    assert not home.exists()


def test_a_key_of_any_bytes(monkeypatch):
    """A key that is not UTF-8 is a key, or is refused as a setting."""
    monkeypatch.setenv("STEPWISE_KEY", "\udcff" * 32)
    with contextlib.suppress(ConfigurationError):
        assert load_seal() == load_seal()


A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.mark.parametrize("with_head", [False, True])
def test_another_key_is_no_damage(store, monkeypatch, home, with_head):
    """A run that was written with another key is refused as that, and says which key is meant."""
    journal = begin(store, seal=seal_of(monkeypatch, A))
    journal.append(*STORY, head=FACTS if with_head else None)
    store.release("run", journal.epoch)
    for seal in (seal_of(monkeypatch, B), seal_of(monkeypatch, None)):
        with pytest.raises(ConfigurationError, match="another key") as caught:
            load(store, seal=seal)
        for part in ("STEPWISE_KEY", "'run'", store.url):
            assert part in str(caught.value)
        with pytest.raises(ForeignKeyError):
            seal.open("record/1/run", dict(store.read("run"))[1])
    assert len(load(store, seal=seal_of(monkeypatch, A))[1]) == 7


def seal_of(monkeypatch, text):
    if text is None:
        monkeypatch.delenv("STEPWISE_KEY")
    else:
        monkeypatch.setenv("STEPWISE_KEY", text)
    return load_seal()


def test_keys_are_rotated(store, monkeypatch, told):
    """What was written with a key stays readable while that stands behind the new one."""
    write_story(store, seal=seal_of(monkeypatch, A))
    journal = begin(store, seal=seal_of(monkeypatch, f"{B}, {A}"))
    assert len(journal.load()) == 7
    journal.append((outcome(6), b"6"))
    _, loaded = load_again(store, journal)
    assert numbers_of(loaded) == list(range(1, 9))
    journal, loaded = load(store, seal=seal_of(monkeypatch, f"{C},{B},{A}"))
    assert (len(loaded), journal.lost, told) == (8, [], [])
    for alone in (A, C):
        seal = seal_of(monkeypatch, alone)
        with pytest.raises(ForeignKeyError):
            seal.open("record/8/run", dict(store.read("run"))[8])
    with pytest.raises(ConfigurationError):
        load(store, seal=seal_of(monkeypatch, B))


def test_the_text_of_a_key_file_is_its_key(store, monkeypatch, home):
    """What the key file has signed is read with its text in STEPWISE_KEY, and the reverse.

    The file may hold several keys, the newest first.
    """
    monkeypatch.delenv("STEPWISE_KEY", raising=False)
    write_story(store, seal=load_seal())
    text = (home / "key").read_text()
    journal = begin(store, seal=seal_of(monkeypatch, text))
    assert (len(journal.load()), journal.lost) == (7, [])
    journal.append((outcome(6), b"6"))
    store.release("run", journal.epoch)
    monkeypatch.delenv("STEPWISE_KEY")
    (home / "key").write_text("ab" * 32 + "\n" + text)
    seal = load_seal()
    assert seal.keys[0] == b"\xab" * 32
    journal, loaded = load(store, seal=seal)
    assert (len(loaded), journal.lost) == (8, [])


def test_the_key_stays_out_of_the_store(disk, monkeypatch, home, tmp_path):
    """No file of the store holds the key, or the text that it was made from."""
    for run_id, text in (("file", None), ("text", A)):
        monkeypatch.setenv("STEPWISE_KEY", "")
        seal = seal_of(monkeypatch, text)
        write_story(disk, run_id, seal=seal)
        secrets = [seal.keys[0], seal.keys[0].hex().encode(), A.encode()]
        for path in (tmp_path / "store").rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert [secret for secret in secrets if secret in content] == []


def test_a_seal_is_bound_to_its_identity():
    """What was sealed under one identity opens under no other, whatever the two look like."""
    data, link = SEAL.close("record/1/run", {"a": "\udce9"}, b"payload", b"p" * 16, 3)
    opened = SEAL.open("record/1/run", data)
    assert opened == ({"a": "\udce9"}, b"payload", b"p" * 16, 3, link)
    for other in ("record/1/ru", "record/11/run", "record/1/run2", "head/run", "", "Record/1/run"):
        with pytest.raises(DamagedError):
            SEAL.open(other, data)


def test_a_lost_record_is_told_apart():
    """While reading, a record that is missing or damaged comes as its number."""
    store = MemoryStore()
    entries, _ = write_story(store)
    remove(store, 3)
    found = [each for each, _ in read(store, SEAL, "run")]
    assert found == [*entries[:2], Lost(3), *entries[3:]]
    assert isinstance(found[0], Entry)


def test_an_object_waits_for_records_in_line(tmp_path, monkeypatch):
    """A store has one batch of a run at a time: what is acknowledged beside a write is not lost."""
    from stepwise.stores import disk

    store = DiskStore(tmp_path / "store")
    journal = Journal(store, SEAL, "run", store.acquire("run", ME), fsync=True)
    journal.load()

    def record(number, payload=b"x"):
        return Intent(Call(number, "f", "m", "d", 0)), payload

    for number in range(1, 4):
        journal.append(record(number))
    put_batch, inside = disk.put_batch, threading.Event()

    def slowly(rows, run, batch):
        put_batch(rows, run, batch)
        if batch.records and len(batch.records[0][1]) > 100_000:
            inside.set()
            threading.Event().wait(0.5)  # for whoever does not wait

    monkeypatch.setattr(disk, "put_batch", slowly)
    large = threading.Thread(target=journal.append, args=[record(4, b"z" * 300_000)])
    large.start()
    assert inside.wait(60)
    journal.put("checkpoint/1", {"a": 1}, b"y")
    large.join()
    assert store.names("run") == ["checkpoint/1"]
    assert [number for number, _ in store.read("run")] == [1, 2, 3, 4]
    store.close()


def test_many_calls_in_progress_share_a_note():
    """A call that begins beside as many as a note holds writes none; one that follows them does."""
    notes, doing = [], {}
    store = SimpleNamespace(note=lambda run, epoch, note: notes.append(note))
    note = _journal.noter(store, SEAL, "run", 1)
    for number in range(1, 201):
        doing[number] = f"call {number}"
        note(doing)
    assert len(notes) == 20
    del doing[7]
    note(doing)
    assert len(notes) == 21
    assert b"call 181" in notes[-1]
    assert b"call 7" not in notes[-1]
    doing.clear()
    doing[201] = "call 201"
    note(doing)
    assert notes[-1].endswith(b"call 201")


# -- anchors ---------------------------------------------------------------------------------------


def test_two_processes_make_the_folder_of_anchors(tmp_path, monkeypatch):
    """A process that finds the folder made by another one a moment ago still keeps its anchor."""
    mkdir = os.mkdir

    def twice(*args):
        mkdir(*args)
        mkdir(*args)  # as if the other one had been first

    monkeypatch.setattr(os, "mkdir", twice)
    cell = FileCell(str(tmp_path / "anchors" / "cells"), b"k" * CELL_KEY)
    drop_anchor(cell, b"m" * 40)
    assert cell.get().startswith(b"m" * 40)


def test_an_anchor_that_is_cut_is_none(tmp_path):
    """Of a run whose anchor is cut off, wherever that is, no anchor is known; the run goes on."""
    store = DiskStore(tmp_path / "store")
    load_seal()  # makes the folder
    cell = anchor_cell(store, "run")
    drop_anchor(cell, b"m" * 40)
    assert anchor_of(store, "run").mark == b"m" * 40
    for end in reversed(range(os.path.getsize(cell.path))):
        os.truncate(cell.path, end)
        assert anchor_of(store, "run") is None
