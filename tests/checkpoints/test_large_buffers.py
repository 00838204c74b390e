"""Large buffers among the variables: an array that has not changed is not written again."""

import hashlib
import itertools
import os
import threading
import tracemalloc

import pytest
from harness import python
from hypothesis import example, given, settings
from hypothesis import strategies as st
from killed import Killed, forget_process, line_of, played_to_the_end

import stepwise
from stepwise import step, workflow
from stepwise._checkpoints import references
from stepwise._journal.seal import DamagedError, Seal
from stepwise._values.buffers import Pieces
from stepwise.stores import open_store
from stepwise.testing import fresh_store

numpy = pytest.importorskip("numpy")
MB = 1 << 20
ALL = {"retention": "all"}


dying = set()  # numbers of steps in which it does, once


@pytest.fixture(autouse=True)
def nobody_dies():
    dying.clear()


@pytest.fixture
def small(monkeypatch):
    """Buffers of a kilobyte are large."""
    monkeypatch.setattr(references, "_LEAF", 1000)
    monkeypatch.setattr(references, "_LARGEST", 3000)


@step
def tick(number):
    if number in dying:
        dying.remove(number)
        raise Killed
    return number


def chunks(run):
    """How many bytes each chunk of a run has."""
    store = open_store(run.store.url)
    names = store.names(run.id, "chunk/")
    return [len(store.get(run.id, name)) for name in names]


def sizes(run):
    return [checkpoint.size for checkpoint in run.checkpoints]


# -- what is written -----------------------------------------------------------------------------


@workflow(**ALL)
def keep(size, count, change):
    array = numpy.arange(size // 8, dtype="float64")
    for number in range(count):
        tick(number)
        if change:
            array[number] = -1
    return float(array.sum())


@pytest.mark.parametrize("size", [64 << 10, 4 * MB])
def test_an_array_that_stays_is_written_once(size):
    """An unchanged array is written once, or twice if it is small, by however many checkpoints."""
    run = keep.options(store="memory:").execute(size, 6, False)
    assert len(chunks(run)) == 1
    assert sum(sizes(run)) + sum(chunks(run)) < (1.1 if size > MB else 2.1) * size
    assert all(checkpoint.verified for checkpoint in run.checkpoints)


def test_an_array_that_is_changed_is_written_again():
    """Each state of an array that is changed in place is kept for the checkpoint that holds it."""
    run = keep.options(store="memory:").execute(2 * MB, 4, True)
    for checkpoint in run.checkpoints[1:]:
        found = run.locals(at=checkpoint.step)
        assert (found["array"] == -1).sum() in (checkpoint.step, checkpoint.step - 1)
    assert len(chunks(run)) == len(run.checkpoints) >= 4


def test_a_small_array_that_is_always_changed_is_part_of_its_checkpoint():
    """No chunk is made of a buffer under a megabyte that the next checkpoint does not hold."""
    run = keep.options(store="memory:").execute(64 << 10, 5, True)
    assert len(chunks(run)) <= 1  # after the last step it stays as it is


@workflow(retention="latest_only")
def let_go(count):
    array = None
    for number in range(count):
        if number % 4 == 0:
            array = numpy.full(MB // 4, number, "float64")
        tick(number)
    return array.shape


def test_what_no_checkpoint_needs_is_deleted():
    """The bytes of an array go with the last checkpoint that holds it."""
    run = let_go.options(store="memory:").execute(9)
    assert len(chunks(run)) == 1
    assert run.locals()["array"][0] == 8


@workflow(**ALL)
def share(count):
    one = numpy.ones(MB)
    other = numpy.ones(MB)
    same = one
    part = one[10:20]
    columns = numpy.asfortranarray(numpy.arange(MB, dtype="float64").reshape(1024, 1024))
    fixed = numpy.zeros(MB)
    fixed.flags.writeable = False
    for number in range(count):
        tick(number)
        one[number + 10] = 7
    return {
        "equal is not same": one[10] == 7 and other[10] == 1,
        "same is same": same is one,
        "a view": part[:count].tolist() == [7] * count,
        "columns": columns.flags.f_contiguous and columns[3, 4] == 3 * 1024 + 4,
        "fixed": not fixed.flags.writeable and not fixed.any(),
    }


@pytest.mark.parametrize("threads", [False, True])
def test_arrays_come_back_as_they_were(threads):
    """Views, equal arrays, the order in memory and what may be written survive a kill."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    if threads:
        other.start()
    try:
        dying.add(3)
        with pytest.raises(Killed):
            share.options(store="memory:", run_id=f"shared-{threads}")(6)
        forget_process()
        run = share.options(store="memory:", run_id=f"shared-{threads}").execute(6)
    finally:
        done.set()
    if threads:
        other.join()
    assert run.resumed_from_step == 3
    assert all(run.result.values()), run.result
    assert run.verify().ok


# -- any program ---------------------------------------------------------------------------------

expected = {}
names = itertools.count()
operations = st.tuples(
    st.sampled_from(["new", "write", "equal", "alias", "view", "drop", "fix", "swap", "nothing"]),
    st.integers(0, 5),
    st.sampled_from([10, 100, 200, 1000]),
)


def described(arrays):
    """What arrays hold, which of them are one, and which share memory."""
    return [
        (
            array.tolist(),
            array.flags.writeable,
            next(n for n, each in enumerate(arrays) if each is array),
            [numpy.shares_memory(array, each) for each in arrays],
        )
        for array in arrays
    ]


def change(operation, at, size, arrays):
    if operation == "new":
        arrays.append(numpy.full(size, at, "float64"))
    elif not arrays:
        return
    array = arrays[at % len(arrays)]
    if operation == "write" and array.flags.writeable:
        array[size % len(array)] += 1
    elif operation == "equal":
        arrays.append(array.copy())
    elif operation == "alias":
        arrays.append(array)
    elif operation == "view":
        arrays.append(array[: 1 + len(array) // 2])
    elif operation == "drop":
        arrays[:] = arrays[1:]
    elif operation == "fix" and sum(numpy.shares_memory(array, each) for each in arrays) == 1:
        array.flags.writeable = False  # a view that could still be written would come back fixed
    elif operation == "swap":
        arrays.reverse()


@workflow(**ALL)
def play(program):
    arrays, ticked = [], None
    for number, (operation, at, size) in enumerate(program):
        change(operation, at, size, arrays)
        expected[number] = described(arrays)
        ticked = tick(number)
    return ticked


TICKS = line_of(play, "expected[number] =")
"""The statement after which a checkpoint holds what is expected of it."""


@settings(
    max_examples=40,
)
@given(program=st.lists(operations, max_size=25), kills=st.sets(st.integers(0, 24), max_size=3))
@example(program=[("new", 0, 200), *[("write", 0, 1)] * 3, *[("nothing", 0, 10)] * 3], kills={4})
@example(program=[("new", 0, 1000), ("equal", 0, 10), ("write", 1, 1), ("swap", 0, 1)], kills={2})
def test_any_checkpoint_gives_back_what_the_arrays_were(small, program, kills):
    """Whatever is done to arrays, each checkpoint holds them as they were, also after kills."""
    expected.clear()
    dying.update(number for number in kills if number < len(program))
    name = f"arrays-{next(names)}"
    run = played_to_the_end(lambda: play.options(store="memory:", run_id=name).execute(program))
    found = 0
    for checkpoint in run.checkpoints:
        assert checkpoint.verified
        values = run.locals(at=checkpoint.step)
        if checkpoint.position == TICKS:
            assert described(values["arrays"]) == expected[values["number"]]
            found += 1
    assert found == len(program)


# -- what goes wrong -----------------------------------------------------------------------------


@workflow(**ALL)
def blocked():
    array, twin = numpy.zeros(MB), None
    tick(0)
    array[0] = 1
    open_file = open(os.devnull)  # noqa: SIM115
    tick(1)
    open_file.close()
    twin = array.copy()
    array[:] = 2
    open_file = None
    tick(2)
    return float(array.sum()), float(twin.sum())


def test_a_checkpoint_that_was_not_taken_leaves_nothing_behind():
    """What was to be in a checkpoint that something else blocked is not taken for stored."""
    with pytest.warns(stepwise.RunWarning, match="open_file"):
        run = blocked.options(store="memory:").execute()
    assert run.result == (2.0 * MB, 1.0)
    assert all(checkpoint.verified for checkpoint in run.checkpoints)
    found = run.locals()
    assert (float(found["array"].sum()), float(found["twin"].sum())) == run.result


@pytest.mark.parametrize("scheme", ["disk", "sqlite"])
def test_a_damaged_buffer_is_never_restored(scheme, tmp_path):
    """A byte of an array that changed on the disk takes the checkpoints with it that hold it."""
    with fresh_store(tmp_path):
        dying.add(3)
        where = keep.options(store=f"{scheme}:{tmp_path}/s", run_id="damaged")
        with pytest.raises(Killed):
            where(2 * MB, 5, False)
        (file,) = [each for each in (tmp_path / "s").rglob("*") if each.stat().st_size > 2 * MB]
        data = bytearray(file.read_bytes())
        data[MB] ^= 1
        file.write_bytes(data)
        run = stepwise.get_run("damaged", store=f"{scheme}:{tmp_path}/s")
        assert not any(checkpoint.verified for checkpoint in run.checkpoints)
        assert not run.verify().ok
        forget_process()
        run = where.execute(2 * MB, 5, False)
        assert run.result == keep.__wrapped__(2 * MB, 0, False)
        assert run.resumed_from_step == 0
        run.store.close()


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_an_envelope_with_a_digest_is_verified_whole(payload, at, bits):
    """Sealed by its digest, a payload is refused if any byte of it or of its envelope changed."""
    seal = Seal((b"k" * 32,))
    digest = hashlib.sha256(payload).digest()
    pieces = Pieces([memoryview(payload)])
    sealed, link = seal.close("here", {"a": 1}, pieces, digest=digest)
    assert (bytes(sealed), link) == seal.close("here", {"a": 1}, payload, digest=digest)
    opened = seal.open("here", bytes(sealed))
    assert (opened.header, opened.payload, opened.link) == ({"a": 1}, payload, link)
    damaged = bytearray(bytes(sealed))
    damaged[at % len(damaged)] ^= bits
    with pytest.raises(DamagedError):
        seal.open("here", bytes(damaged))
    with pytest.raises(DamagedError):
        seal.open("there", bytes(sealed))
    for end in range(len(sealed)):
        with pytest.raises(DamagedError):
            seal.open("here", bytes(sealed)[:end])


def test_a_large_array_is_not_copied():
    """A checkpoint of an array of 32 MB takes less than a fifth of that in memory."""
    peaks = []

    @workflow
    def agent():
        array = numpy.ones(4 * MB)
        tick(0)
        tracemalloc.start()
        tick(1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return len(array)

    agent.options(store="memory:").execute()
    assert peaks[0] < 0.2 * 32 * MB


# -- real crashes --------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import numpy
from stepwise import step, workflow

@step
def tick(number):
    if number == 4 and not os.path.exists("again"):
        open("again", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number

@workflow
def train(count):
    weights = numpy.zeros(400_000)
    data = numpy.arange(400_000.0)
    for number in range(count):
        tick(number)
        weights += data * number
    return [float(weights[7]), weights.flags.writeable, float(data.sum())]

print(train(8))
"""


def test_a_killed_process_goes_on_with_its_arrays(tmp_path):
    """Arrays that are trained in place come back after SIGKILL, and can be written again."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "STEPWISE_HOME": str(tmp_path / "home")}
    runs = [python(str(script), cwd=tmp_path, env=environment) for _ in range(2)]
    assert runs[0].returncode == -9
    assert runs[1].stdout.strip() == str([7.0 * 28, True, 400_000 * 399_999 / 2])
    files = [each for each in (tmp_path / "home").rglob("*") if each.stat().st_size > MB]
    assert len(files) <= 3 + 1  # three kept states of the weights, one of the data
