"""The log of a process: its file, whatever has become of it, and how a reader sees it."""

import itertools
import os
import random
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeping import some

from stepwise.stores import Batch, _process_log
from stepwise.stores._process_log import LogReader, LogTakenError, ProcessLog, fence

RUN, OTHER = "run", "run \udc80 of another"


class Written:
    """A log that is written, and of each frame: its ends, what flush it was behind, its batch."""

    made: ClassVar[list] = []

    def __init__(self, path):
        self.made.append(self)
        self.log = ProcessLog(str(path))
        self.log.open()
        self.frames = []
        self.flushed = 0

    def add(self, batch, run_id=RUN, generation=0):
        start = self.log._at
        self.log.add(run_id, 1, generation, batch)
        frame = (start, self.log._at, self.flushed, (run_id, 1, generation), plain(batch))
        self.frames.append(frame)

    def flush(self):
        self.log.flush()
        self.flushed = len(self.frames)

    def data(self):
        return Path(self.log.path).read_bytes()


def plain(batch):
    put = {name: bytes(data) for name, data in batch.put.items()}
    return tuple((at, bytes(data)) for at, data in batch.records), put, batch.delete


def looked(reader):
    return {key: [plain(each) for each in tail.batches] for key, tail in reader._tails.items()}


def contents(path, data=None):
    """What a new reader finds in a log, or in a copy that holds other data."""
    if data is not None:
        path = path.parent / "copies" / path.name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    reader = LogReader(str(path))
    reader.look()
    return looked(reader)


def tails(frames):
    found = {}
    for *_, key, batch in frames:
        found.setdefault(key, []).append(batch)
    return found


@pytest.fixture(autouse=True)
def closed_logs():
    yield
    while Written.made:
        Written.made.pop().log.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0123456789abcdef"


@pytest.fixture
def written(path):
    """A log of two runs: frames with and without a flush of their own, and two that share one."""
    found = Written(path)
    found.add(Batch(((1, b"one"),)))
    found.flush()
    found.add(Batch(put={"c/1": b"state", "é": b""}, durable=False))
    found.add(Batch(((2, b"two"), (3, memoryview(b"three"))), {"c/2": b"x" * 70}, ("c/1",)))
    found.add(Batch(((1, b"of another"),)), run_id=OTHER, generation=7)
    found.flush()
    found.add(Batch(delete=("c/2", "\udc80")))
    found.add(Batch(((4, b"four"),)), generation=1)
    found.flush()
    for number in (5, 6, 7):
        found.add(Batch(((number, b"not flushed"),), durable=False), generation=1)
    return found


def test_what_was_added_is_read(written, path):
    """A reader finds each batch whole, by run, epoch and generation, in the order of writing."""
    assert contents(path) == tails(written.frames)


@pytest.mark.parametrize("kind", ["truncated", "zeros", "garbage"])
def test_an_end_that_was_not_written(written, path, kind):
    """Wherever a log is cut off, whatever follows, the frames before are read, and no more."""
    data = written.data()
    for cut in some(range(len(data) + 1), 120, kind):
        rest = {
            "truncated": b"",
            "zeros": bytes(len(data) - cut),
            "garbage": random.Random(cut).randbytes(len(data) - cut),
        }[kind]
        if data[cut : cut + 1] == rest[:1]:
            continue  # not the first byte that differs
        expected = tails(frame for frame in written.frames if frame[1] <= cut)
        assert contents(path, data[:cut] + rest) == expected, cut


def without(frames, lost):
    """What a reader is to find if one frame is damaged."""
    behind = any(flushed > lost for _, _, flushed, *_ in frames[lost + 1 :])
    return tails(frames[:lost] + (frames[lost + 1 :] if behind else []))


def test_a_flipped_bit(written, path):
    """A flipped bit costs the one frame that it is in, or what no later flush is known to cover."""
    data = written.data()
    ends = [end for _, end, *_ in written.frames]
    for bit in some(range(8 * ends[-1]), 600):
        at, damaged = bit // 8, bytearray(data)
        damaged[at] ^= 1 << bit % 8
        lost = next(index for index, end in enumerate(ends) if at < end)
        assert contents(path, bytes(damaged)) == without(written.frames, lost), bit


@pytest.mark.parametrize("lost", range(9))
def test_a_hole(written, path, lost):
    """A frame of zeros is a hole if a later frame says that it had been flushed, else the end."""
    start, end, *_ = written.frames[lost]
    data = written.data()
    holed = data[:start] + bytes(end - start) + data[end:]
    found = contents(path, holed)
    assert found == without(written.frames, lost)
    assert sum(map(len, found.values())) == (lost if lost > 5 else 8)


def test_no_file_and_an_empty_one(path):
    """A log that is missing, or empty, or all zeros, holds nothing, and is seen when it appears."""
    reader = LogReader(str(path))
    reader.look()
    assert looked(reader) == {}
    for data in (b"", b"\0", bytes(1 << 14)):
        assert contents(path, data) == {}
        reader.look()
    written = Written(path)
    written.add(Batch(((1, b"1"),)))
    reader.look()
    assert looked(reader) == tails(written.frames)
    written.log.close()
    reader.look()
    assert looked(reader) == {}


# -- written over from the beginning ---------------------------------------------------------------


def rewound(path, flushes):
    """A log that is written over: old frames of generation 0, new ones of generation 1."""
    written = Written(path)
    for number in range(8):
        written.add(Batch(((number, b"%d" % number * 9),)))
        if flushes:
            written.flush()
    written.log.empty()
    written.frames, written.flushed = [], 0
    return written


@pytest.mark.parametrize("flushes", [True, False])
def test_old_frames_behind_the_end(path, flushes):
    """Of a log that was written over from its beginning, only the new frames are read."""
    written = rewound(path, flushes)
    for number in (1, 2, 3):
        written.add(Batch(((number, b"new" * number),)), generation=1)
        assert contents(path) == tails(written.frames)


@pytest.mark.parametrize("flushes", [True, False])
def test_a_torn_first_frame(path, flushes):
    """A power cut that lost the first new frame, but not the second, lost both: neither counts."""
    written = rewound(path, flushes)
    before = written.data()
    written.add(Batch(((1, b"one" * 9),), durable=False), generation=1)
    written.add(Batch(((2, b"two" * 9),)), generation=1)
    after, end = written.data(), written.frames[0][1]
    for cut in range(end):
        for place in (before, bytes(len(before))):
            torn = after[:cut] + place[cut:end] + after[end:]
            if torn != after:
                assert (RUN, 1, 1) not in contents(path, torn), cut


def test_an_old_frame_where_a_new_one_is_lost(path):
    """A new frame that stands right behind an old one does not count: the ones before are lost."""
    written = Written(path)
    for number in range(4):
        written.add(Batch(((number, b"x"),)))
        written.flush()
    end = written.frames[0][1]
    before = written.data()
    written.log.empty()
    for number in range(3):
        written.add(Batch(((number, b"y"),), durable=False), generation=1)
    after = written.data()
    for lost in (1, 2):
        kept = before[: lost * end] + after[lost * end :]
        assert (RUN, 1, 1) not in contents(path, kept)


@pytest.mark.parametrize("lost", range(3))
def test_a_hole_among_new_frames(path, lost):
    """Old frames are no proof of a flush; new ones that came after a flush are."""
    written = rewound(path, flushes=True)
    written.add(Batch(((1, b"one"),), durable=False), generation=1)
    written.add(Batch(((2, b"two"),)), generation=1)
    written.flush()
    written.add(Batch(((3, b"three"),)), generation=1)
    data = bytearray(written.data())
    data[written.frames[lost][1] - 1] ^= 1
    found = contents(path, bytes(data)).get((RUN, 1, 1), [])
    kept = [batch for index, (*_, batch) in enumerate(written.frames) if index != lost]
    assert found == (kept if lost < 2 else kept[:2])


def test_written_over_during_a_look(path, monkeypatch):
    """A log that is written over while it is read gives no late frame without the earlier ones."""
    written = Written(path)
    for number in (1, 2, 3):
        written.add(Batch(((number, b"old"),)))
    reader = LogReader(str(path))
    reader.look()
    beginning, calls = _process_log._beginning, itertools.count()

    def overtaken(file):
        found = beginning(file)
        if next(calls) == 0:  # the reader now knows where to read on
            written.log.empty()
            written.frames.clear()
            for number in range(4, 9):
                written.add(Batch(((number, b"new"),)), generation=1)
        return found

    monkeypatch.setattr(_process_log, "_beginning", overtaken)
    reader.look()
    assert looked(reader) == tails(written.frames)


# -- looks -----------------------------------------------------------------------------------------

ADD = st.builds(
    Batch,
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=40)), max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=3), st.binary(max_size=40), max_size=2),
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
    durable=st.booleans(),
)


@given(st.lists(st.sampled_from(["flush", "look", "look", "empty"]) | ADD, max_size=30))
def test_many_looks_are_as_one(tmp_path_factory, actions):
    """Whenever it looks, a reader that goes on knows what one finds that reads from the start."""
    path = tmp_path_factory.mktemp("log") / "log"
    written, generation, reader = Written(path), 0, LogReader(str(path))
    for action in actions:
        if action == "flush":
            written.flush()
        elif action == "empty":
            written.log.empty()
            written.frames.clear()
            generation += 1
        elif action == "look":
            reader.look()
            key = RUN, 1, generation
            assert looked(reader).get(key) == contents(path).get(key)
            assert looked(reader).get(key) == tails(written.frames).get(key)
        else:
            written.add(action, generation=generation)


def test_a_frame_that_is_being_written(written, path, monkeypatch):
    """A reader that looks while a frame is written sees the frames before, and then this one."""
    reader, pwrite = LogReader(str(path)), os.pwrite
    before = tails(written.frames)

    def slow(descriptor, data, at):
        for place, byte in enumerate(bytes(data)):
            pwrite(descriptor, bytes([byte]), at + place)
            if place + 1 < len(data):
                reader.look()
                assert looked(reader) == before
        return len(data)

    monkeypatch.setattr(os, "pwrite", slow)
    written.add(Batch(((5, b"five"),), durable=False))
    reader.look()
    assert looked(reader) == tails(written.frames) == contents(path)


def test_frames_that_are_written_behind_the_reader(written, path, monkeypatch):
    """A reader that was too early for one frame, and then for another one, misses neither."""
    beginning, calls, whole = _process_log._beginning, itertools.count(), written.data()

    def early(file):
        call = next(calls)
        data = bytearray(whole)
        if call in (0, 2):  # a read follows, in which a frame is not there yet
            start, end, *_ = written.frames[call + 1]
            data[start:end] = bytes(end - start)
        path.write_bytes(data)
        return beginning(file)

    monkeypatch.setattr(_process_log, "_beginning", early)
    reader = LogReader(str(path))
    reader.look()
    assert next(calls) > 4
    assert looked(reader) == tails(written.frames)


# -- frames that are none --------------------------------------------------------------------------


def crafted(path, body):
    """A frame of any contents, with the check sum that belongs to it."""
    digest = zlib.crc32(body, zlib.crc32(path.name.encode()))
    return struct.pack("<4sII", _process_log._MAGIC, len(body), digest) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 47,
        struct.pack("<QQQQIIII", 9, 0, 1, 0, 4, 0, 0, 0) + b"run",  # the id ends too early
        struct.pack("<QQQQIIII", 9, 0, 1, 0, 3, 1, 0, 0) + b"run",
        struct.pack("<QQQQIIII", 9, 0, 1, 0, 3, 2**32 - 1, 0, 0) + b"run" + bytes(99),
        struct.pack("<QQQQIIII", 9, 0, 1, 0, 3, 0, 1, 0) + b"run" + struct.pack("<II", 1, 9) + b"a",
        struct.pack("<QQQQIIII", 9, 0, 1, 0, 3, 0, 0, 1) + b"run" + struct.pack("<I", 2) + b"a",
        struct.pack("<QQQQIIII", 9, 0, 1, 0, 3, 0, 0, 0) + b"\xff\xfe\xfd",
    ],
    ids=range(8),
)
def test_a_frame_with_wrong_contents(written, path, body):
    """A frame whose check sum is right and whose contents are not is none."""
    data = written.data()
    assert contents(path, data + crafted(path, body)) == tails(written.frames)
    assert contents(path, crafted(path, body) + data) == tails(written.frames)  # as of a hole


@given(st.binary(max_size=120), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_any_contents(tmp_path_factory, body, number, count):
    """Whatever a frame holds, reading it raises no error, and the frames before it stay."""
    path = tmp_path_factory.mktemp("log") / "log"
    written = Written(path)
    written.add(Batch(((1, b"1"),)))
    data = written.data()[: written.frames[-1][1]]
    numbered = struct.pack("<QQQQIIII", number, 0, 1, 0, 3, count, 0, 0) + b"run" + body
    for each in (body, numbered):
        found = contents(path, data + crafted(path, each))
        assert found[RUN, 1, 0][0] == plain(Batch(((1, b"1"),)))


def test_frames_of_another_log_as_data(path, tmp_path):
    """A run that records the contents of another log adds no frames by it, torn or written over."""
    other = Written(tmp_path / "other")
    for number in range(50):
        other.add(Batch(((number, b"foreign"),)))
        other.flush()
    written = Written(path)
    written.add(Batch(((1, b"1"),)))
    written.flush()
    written.add(Batch(((2, other.data()[: other.frames[-1][1]]),)))
    start, end, *_ = written.frames[1]
    for cut in range(start, end, 97):
        data = written.data()
        assert contents(path, data[:cut] + bytes(9) + data[cut + 9 : end]) in (
            tails(written.frames[:1]),
            tails(written.frames),
        )


# -- the writer ------------------------------------------------------------------------------------


def test_a_fenced_writer(written, path):
    """After a log was taken nothing is acknowledged any more; what came before is in it."""
    fence(str(path))
    before = contents(path)
    written.log.add(RUN, 1, 1, Batch(((5, b"5"),)))
    with pytest.raises(LogTakenError):
        written.log.flush()
    assert written.log.failed
    with pytest.raises(LogTakenError):
        written.log.add(RUN, 1, 1, Batch(((6, b"6"),), durable=False))
    assert before == tails(written.frames)


def test_a_deleted_log(written, path):
    """A writer whose log was deleted notices, even if the log has another name besides."""
    os.link(path, path.with_name("copy"))
    fence(str(path))
    path.unlink()
    with pytest.raises(LogTakenError):
        written.log.add(RUN, 1, 1, Batch(durable=False))


@pytest.mark.parametrize("name", ["pwrite", "fdatasync", "fstat"])
@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()], ids=["os", "ctrl-c"])
def test_whatever_is_cut_off(written, monkeypatch, name, error):
    """After any error in a write or a flush the log is marked as failed."""
    real = getattr(os, name)

    def fails(descriptor, *rest):
        if descriptor == written.log._descriptor:
            raise error
        return real(descriptor, *rest)

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(os, name, fails)
        written.log.add(RUN, 1, 1, Batch(((5, b"5" * 99),), durable=name != "fstat"))
        written.log.flush()
    assert written.log.failed


def test_zeros_lie_ahead(path, monkeypatch):
    """A durable frame lies where zeros were written before, so that its flush moves no end."""
    written, sizes = Written(path), set()
    for number in range(200):
        written.add(Batch(((number, bytes(300)),)))
        sizes.add(os.path.getsize(path))
    assert sizes == {1 << 14, 1 << 15, 1 << 16, 1 << 17}


def test_the_first_flush_covers_the_name(written, path, monkeypatch):
    """The folder of a log, and the one that it lies in, are flushed once, with the first frames."""
    flushed, fsync = [], os.fsync

    def seen(descriptor):
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    other = Written(path.with_name("other"))
    for number in (1, 2):
        other.add(Batch(((number, b"x"),)))
        other.flush()
    assert flushed == [path.parent.stat().st_ino, path.parent.parent.stat().st_ino]


def test_a_frame_that_is_written_during_a_flush(path, monkeypatch):
    """A flush proves nothing of the frames that were written while it ran: one may be torn."""
    written, fdatasync = Written(path), os.fdatasync
    written.add(Batch(((1, b"1"),)))

    def overtaken(descriptor):
        fdatasync(descriptor)
        written.add(Batch(((2, b"2"),), durable=False))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", overtaken)
        written.log.flush()
    written.add(Batch(((3, b"3"),)))
    start, end, *_ = written.frames[1]
    data = written.data()
    assert contents(path) == tails(written.frames)
    assert contents(path, data[:start] + bytes(end - start) + data[end:]) == tails(
        written.frames[:1]
    )


def test_a_system_that_writes_less_than_it_is_given(path, monkeypatch):
    """A frame is whole, however few of its bytes the system takes at once."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda to, data, at: pwrite(to, bytes(data)[:7], at))
    written = Written(path)
    for number in (1, 2):
        written.add(Batch(((number, b"data" * 9),)))
        assert contents(path) == tails(written.frames)
