"""Large values: written as they lie in memory, and read back whole."""

import pickle
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwise import get_run, step, workflow
from stepwise._journal.seal import Seal
from stepwise._values.codec import decode, encode
from stepwise._values.unpickling import Pieces, collected
from stepwise.testing import fresh_store

MB = 1 << 20
numpy = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def store(tmp_path):
    with fresh_store(tmp_path) as store:
        yield store


@pytest.mark.parametrize(
    ("where", "kind"), [("result", "bytes"), ("checkpoint", "bytes"), ("checkpoint", "array")]
)
def test_a_large_result_is_not_copied(where, kind):
    """Recording 32 MB, as a result or in a checkpoint, takes less than a fifth of it in memory."""
    peaks = []

    @step
    def small():
        return 1

    @step
    def large():
        return held

    @workflow(checkpoint_every=1 if where == "checkpoint" else 100)
    def agent():
        state = held if where == "checkpoint" else None
        small()
        tracemalloc.start()
        large() if where == "result" else small()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return len(state) if where == "checkpoint" else 0

    held = numpy.ones(4 * MB) if kind == "array" else b"x" * (32 * MB)
    agent()
    assert peaks[0] < 0.2 * 32 * MB


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: b"ab" * MB, id="bytes"),
        pytest.param(lambda: "\N{SNOWMAN}" * MB, id="str"),
        pytest.param(lambda: bytearray(b"ab" * MB), id="bytearray"),
        pytest.param(
            lambda: [{"content": "x" * 2000 + str(n)} for n in range(1000)], id="messages"
        ),
        pytest.param(lambda: numpy.arange(MB, dtype="float64").reshape(1024, 1024), id="array"),
        pytest.param(
            lambda: numpy.asfortranarray(numpy.arange(MB).reshape(1024, 1024)), id="by columns"
        ),
        pytest.param(lambda: numpy.arange(2 * MB)[::2], id="every second"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_is_read_back_is_what_was_recorded(made, alone):
    """Every kind of large value comes back equal, whether or not other threads are alive."""
    value = made()
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    if not alone:
        other.start()

    @step
    def large():
        return value

    @workflow
    def agent():
        large()

    try:
        run = agent.execute()
    finally:
        done.set()
    if not alone:
        other.join()
    (found,) = [each.result for each in get_run(run.id).steps]
    assert type(found) is type(value)
    assert pickle.dumps(found) == pickle.dumps(value)
    assert run.verify().ok


def test_what_another_thread_changes_meanwhile_is_recorded_as_it_was():
    """Of a buffer that another thread could change while it is written, a copy is recorded."""
    value = numpy.zeros(MB)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    encoded = encode(value)
    value[:] = 1
    done.set()
    other.join()
    assert isinstance(encoded.data, Pieces)
    assert not decode(*encoded).any()


@given(
    st.lists(st.binary(max_size=64) | st.sampled_from([b"a" * MB, b"b" * 70_000]), max_size=6),
    st.binary(),
)
def test_pieces_are_sealed_as_if_they_were_one(parts, front):
    """Whether a value is in pieces or not, its seal and its bytes are the same."""
    data = collected([memoryview(part) for part in parts])
    assert len(data) == sum(map(len, parts))
    assert bytes(data) == b"".join(parts)
    seal = Seal((b"k" * 32,))
    in_pieces, link = seal.close("here", {"a": front.hex()}, data)
    joined, same = seal.close("here", {"a": front.hex()}, b"".join(parts))
    assert (bytes(in_pieces), link) == (joined, same)
    assert seal.open("here", joined).payload == b"".join(parts)
