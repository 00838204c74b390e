"""The logs of processes: the newest small batches of their runs, which the database still lacks.

A transaction of the database writes several pages for a small batch, and a checkpoint of the
database writes as many again.  A log appends the batch as a *frame*, and one ``fdatasync`` makes
all frames durable that the runs of the process have written meanwhile::

    magic, length, CRC-32 of the log's name and the rest
    number of the frame; the last frame that had been flushed since the file was begun
    epoch and generation of the run, and the batch

The *tail* of a run is its frames that the database lacks.  Each transaction of the database that
concerns a run takes in the tail and raises the run's *generation*.  The generation and the name of
the log are in the row of the run's lease.  A frame counts only if this row has the name of the log
and the frame's epoch and generation.  So a frame stops counting once it was taken in, its run was
deleted, or a power cut undid the commit before the frame, whatever becomes of the file.

Once the database has taken in the whole log, the file is overwritten from its beginning.  The file
is zeroed ahead, since a growing file makes each flush commit the file system's own journal.

*Fencing.*  A process takes over a run whose lease names another process's log.  First it takes away
the owner's permission to write the file; then it reads the file.  The writer checks the file's mode
after each write and after the flush, before any caller acts on the write.  If the log was taken,
the writer continues in the database, which checks the epoch of each run, and begins another log.
(Rejected: renaming the file, which would need a look-up of the path after each write; and a second
link, which is no longer seen once one of the two names is deleted.)

Rejected:

- One log for each run: the runs of an event loop share one writing thread, and would wait for as
  many flushes (14 times as long for 64 runs).
- Copying the log and then notifying the owner: a payment that is acknowledged in between is made
  twice.
- Recording in the database how far a log was taken in: a log is shared, restored and overwritten,
  so this takes a number for each run and file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import zlib
from collections.abc import Iterable
from io import FileIO
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise._values.unpickling import Data
from stepwise.stores._files import LockFile, flush, lock_file, sync
from stepwise.stores.base import Batch, to_bytes

# -- process log ----------------------------------------------------------------------------------


LARGEST_BATCH = 1 << 17  # bytes; a larger batch is not worth writing twice
_LARGEST_LOG = 1 << 20  # bytes; then the database takes in the log
_FIRST_SIZE = 1 << 14  # bytes that are zeroed first; each extension doubles the file
_MAGIC = b"\xf5swl"
_FRONT = struct.Struct("<4sII")
_CHECKED = struct.Struct("<QQQQIIII")
_RECORD = struct.Struct("<QI")
_OBJECT = struct.Struct("<II")
_NAME = struct.Struct("<I")
_TRIES = 10  # attempts to read a log that is being written
_WRITABLE = 0o200  # the bit of the mode that a fence takes away


class LogTakenError(Exception):
    """Another process has taken over the log, and may have missed the last write."""


class LoggedBatch(NamedTuple):
    """One batch of a run, as decoded from a frame."""

    number: int
    flushed: int
    run_id: str
    epoch: int
    generation: int
    batch: Batch


class Tail:
    """The batches of a run that the database lacks, oldest first."""

    __slots__ = ("batches", "epoch", "generation")

    def __init__(self, epoch: int, generation: int) -> None:
        self.epoch, self.generation = epoch, generation
        self.batches: list[Batch] = []

    def as_batch(self) -> Batch:
        """Merge the tail into one batch."""
        records, objects = dict[int, Data](), dict[str, Data | None]()
        for batch in self.batches:
            records.update(batch.records)
            objects.update(batch.put)
            objects.update(dict.fromkeys(batch.delete))
        return Batch(
            tuple(sorted(records.items())),
            put={name: data for name, data in objects.items() if data is not None},
            delete=tuple(name for name, data in objects.items() if data is None),
        )


class ProcessLog:
    """The log that this process writes.

    The mutex covers the position and the tails.  A flush does not hold the mutex, so batches that
    need not be durable are written meanwhile.  A flush and an emptying need the store's lock, too.

    Args:
        path: the path of the file.

    Attributes:
        tails: the tails, by run id.
        mutex: reentrant, since a finalizer may enter anywhere.
        failed: True once a write or a flush was cut off, or the log was taken; no batch is added
            any more.
        unsure: the ids of runs with a durable batch in the log that may not be on the disk.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.tails: dict[str, Tail] = {}
        self.mutex: Any = threading.RLock()
        self.failed = False
        self.unsure: set[str] = set()
        self._pid = os.getpid()
        self._seed = _seed(path)
        self._descriptor = -1
        self._at = 0  # the offset of the next frame
        self._size = 0  # bytes that are zeroed or written
        self._number = 0  # the number of the last frame
        self._flushed = 0  # the last flushed frame since the file was begun; 0 if none
        self._named = False  # whether the file's name is on the disk

    @property
    def is_open(self) -> bool:
        """True while the log has its file open."""
        return self._descriptor >= 0

    def holds(self, run_id: str) -> bool:
        """Return whether any frame of the file belongs to a run, even one that no longer counts."""
        try:
            with open(self.path, "rb") as file:
                return to_bytes(run_id) in file.read()
        except OSError:
            return False

    def open(self) -> None:
        """Create and open the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)

    def add(self, run_id: str, epoch: int, generation: int, batch: Batch) -> bool:
        """Append a batch, which then survives the process.

        The caller holds the mutex, and has checked that the batch is at most ``LARGEST_BATCH``.

        Returns:
            False if the log has no room for the batch.

        Raises:
            OSError: the batch cannot be written.
            LogTakenError: another process has taken over the log, and may have missed the batch.
        """
        number, at, durable = self._number + 1, self._at, batch.durable
        numbers = number, self._flushed, epoch, generation
        frame = _encode(self._seed, numbers, run_id, batch)
        size = len(frame)
        end = at + size
        if end > _LARGEST_LOG:
            return False
        tail = self.tails.get(run_id)
        if tail is None or tail.generation != generation or tail.epoch != epoch:
            tail = Tail(epoch, generation)
        try:
            if durable and end > self._size:
                self._zero(end)
            written = os.pwrite(self._descriptor, frame, at)
            if written < size:
                self._write(memoryview(frame)[written:], at + written)
            self._number, self._at = number, end  # one statement: no interrupt comes between
            if not durable:
                self._check()
            tail.batches.append(batch)  # atomic: an interrupt leaves the whole batch, or nothing
            self.tails[run_id] = tail
        except BaseException:
            self.failed = True
            raise
        return True

    def fail(self, wanted: Iterable[tuple[str, int, Batch]]) -> None:
        """Mark the log as failed after a write that was not acknowledged.

        The runs become unsure whose durable batches are in the log all the same.

        Args:
            wanted: the run, the epoch and the batch of each part of the write.
        """
        self.failed = True
        for run_id, _, batch in wanted:
            tail = self.tails.get(run_id) if batch.durable else None
            if tail is not None and any(each is batch for each in tail.batches):
                self.unsure.add(run_id)

    def flush(self) -> None:
        """Make all added batches durable.

        Raises:
            OSError: an unknown part of the batches is durable.
            LogTakenError: another process has taken over the log, and may have missed batches.
        """
        try:
            number = self._number
            flush(self._descriptor)
            if not self._named:
                self._check()  # before the sync: with a deleted log, the folder may be gone, too
                folder = os.path.dirname(self.path)
                sync(folder)
                sync(os.path.dirname(folder))
                self._named = True
            self._check()
            self._flushed = number
        except BaseException:
            self.failed = True
            raise

    def empty(self) -> None:
        """Start over at the beginning of the file; the database must hold all frames durably."""
        self.tails.clear()
        self._at = self._flushed = 0  # old frames do not prove that a new frame was flushed

    def close(self) -> None:
        """Close and delete the file; the database must hold all frames."""
        if self.is_open and os.getpid() == self._pid:
            self.abandon()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def abandon(self) -> None:
        """Close the log but leave the file for other processes, or for a forked child's parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the program may have closed everything
                os.close(descriptor)

    def _zero(self, end: int) -> None:
        """Extend the zeroed part of the file until it reaches ``end``."""
        self._size = max(self._size, self._at)
        while end > self._size:
            more = max(_FIRST_SIZE, self._size)
            self._write(memoryview(bytes(more)), self._size)
            self._size += more

    def _write(self, data: memoryview, at: int) -> None:
        while data:  # after a short write, the next call raises if a limit or the disk is reached
            written = os.pwrite(self._descriptor, data, at)
            data, at = data[written:], at + written

    def _check(self) -> None:
        there = os.fstat(self._descriptor)
        if not (there.st_mode & _WRITABLE and there.st_nlink):
            raise LogTakenError


def fence(path: str) -> None:
    """Take away the permission to write a log, so that its writer notices the takeover.

    Only a fenced log may be read for a takeover.

    Raises:
        FileNotFoundError: the log does not exist any more.
        OSError: the file system has no permissions, so the writer would not notice.
    """
    os.chmod(path, 0o600 & ~_WRITABLE)
    if os.stat(path).st_mode & _WRITABLE:
        raise OSError(errno.ENOTSUP, "its file system has no permissions", path)


# -- frames ----------------------------------------------------------------------------------------


def weight(batch: Batch) -> int:
    """Return the approximate size of a batch in bytes."""
    records, put, delete, _, _, _, _ = batch  # unpacking is faster than attribute access
    found = _RECORD.size * (len(records) + len(put) + len(delete))
    for _, data in records:
        found += len(data)
    for data in put.values():  # sum() takes three times as long
        found += len(data)
    return found


def _seed(path: str) -> int:
    """Return the initial value of a log's check sums, made from the log's name.

    So a frame of another log, which a run may have recorded as data, does not count as a frame.
    """
    return zlib.crc32(to_bytes(os.path.basename(path)))


def _encode(seed: int, numbers: tuple[int, int, int, int], run_id: str, batch: Batch) -> bytes:
    """Serialize a batch into a frame."""
    number, flushed, epoch, generation = numbers
    records, put, delete, _, _, _, _ = batch
    run = to_bytes(run_id)
    of, also, less = len(records), len(put), len(delete)
    parts = [_CHECKED.pack(number, flushed, epoch, generation, len(run), of, also, less), run]
    for at, data in records:
        parts += _RECORD.pack(at, len(data)), data if type(data) is bytes else bytes(data)
    if also or less:
        for name, data in put.items():
            text = to_bytes(name)
            parts += _OBJECT.pack(len(text), len(data)), text
            parts.append(data if type(data) is bytes else bytes(data))
        for name in delete:
            text = to_bytes(name)
            parts += _NAME.pack(len(text)), text
    body = b"".join(parts)
    return _FRONT.pack(_MAGIC, len(body), zlib.crc32(body, seed)) + body


def _decode(data: bytes, at: int, seed: int) -> tuple[LoggedBatch, int] | None:
    """Return the frame at an offset, and the offset of its end; ``None`` if there is no frame."""
    start = at + _FRONT.size
    if data[at : at + len(_MAGIC)] != _MAGIC or len(data) < start:
        return None
    _, size, digest = _FRONT.unpack_from(data, at)
    body = data[start : start + size]
    if len(body) < size or zlib.crc32(body, seed) != digest:
        return None
    try:
        return _take_apart(body), start + size
    except (struct.error, ValueError):  # not a frame of ours, in spite of a right check sum
        return None


def _take_apart(body: bytes) -> LoggedBatch:
    number, flushed, epoch, generation, size, of, also, less = _CHECKED.unpack_from(body)
    start = _CHECKED.size
    at = start + size
    run_id = body[start:at].decode("utf-8", "surrogatepass")
    records: list[tuple[int, Data]] = []
    put: dict[str, Data] = {}
    delete: list[str] = []
    for _ in range(of):
        record, size = _RECORD.unpack_from(body, at)
        start = at + _RECORD.size
        at = start + size
        records.append((record, body[start:at]))
    for _ in range(also):
        length, size = _OBJECT.unpack_from(body, at)
        start = at + _OBJECT.size
        middle = start + length
        at = middle + size
        put[body[start:middle].decode("utf-8", "surrogatepass")] = body[middle:at]
    for _ in range(less):
        (size,) = _NAME.unpack_from(body, at)
        start = at + _NAME.size
        at = start + size
        delete.append(body[start:at].decode("utf-8", "surrogatepass"))
    if at > len(body):  # the last slices were short
        raise ValueError(at)
    batch = Batch(tuple(records), put, tuple(delete))
    return LoggedBatch(number, flushed, run_id, epoch, generation, batch)


# -- reading ---------------------------------------------------------------------------------------


class LogReader:
    """A reader of the log of another process, living or dead.

    Each look reads only the frames since the previous look.

    A torn frame at the end is ignored: its write was never acknowledged.  A frame is damaged if it
    is unreadable although a later frame says that it had been flushed.  The reader skips damaged
    frames only, and the journal notices the missing records when it counts them.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seed = _seed(path)
        self._begin()

    def _begin(self) -> None:
        self._at = self._number = 0
        self._first = b""
        self._tails: dict[tuple[str, int, int], Tail] = {}

    def runs(self) -> set[str]:
        """Return the ids of the runs with frames in the log."""
        return {run_id for run_id, _, _ in self._tails}

    def tail(self, run_id: str, epoch: int, generation: int) -> Tail | None:
        """Return the tail of a run with that epoch and generation, or ``None`` if it has none."""
        return self._tails.get((run_id, epoch, generation))

    def look(self) -> None:
        """Read the frames since the last look.

        Raises:
            OSError: the log cannot be read, or changes too fast.
        """
        try:
            with open(self.path, "rb", buffering=0) as file:
                self._look(file)
        except FileNotFoundError:
            self._begin()

    def _look(self, file: FileIO) -> None:
        data = self._rest(file)
        for _ in range(_TRIES):
            left = self._take(data)
            if left is None:
                return
            # The damaged frame may have been half written when it was read.
            data = self._rest(file)
            if data.startswith(left):
                break
        self._take(data, skip=True)

    def _rest(self, file: FileIO) -> bytes:
        for _ in range(_TRIES):
            first = _beginning(file)
            if first != self._first:  # the file was overwritten from the beginning
                self._begin()
                self._first = first
            file.seek(self._at)
            data = file.read()
            if _beginning(file) == first:  # otherwise the data may lack frames before late ones
                return data
        raise OSError(errno.EAGAIN, "it changes too fast to be read", self.path)

    def _take(self, data: bytes, *, skip: bool = False) -> bytes | None:
        """Take the frames in some data.

        Args:
            skip: skip damaged frames.

        Returns:
            the data from the first damaged frame on, or ``None`` if all frames were taken.
        """
        at = 0
        while True:
            found = _decode(data, at, self._seed)
            if found is None or (self._number and found[0].number != self._number + 1):
                found = _following(data, at, self._number, self._seed)
                if found is not None and not skip:
                    self._at += at
                    return data[at:]
            if found is None:
                self._at += at
                return None
            frame, at = found
            self._number = frame.number
            key = frame.run_id, frame.epoch, frame.generation
            if key not in self._tails:
                self._tails[key] = Tail(frame.epoch, frame.generation)
            self._tails[key].batches.append(frame.batch)


def _beginning(file: FileIO) -> bytes:
    file.seek(0)
    return file.read(_FRONT.size + _CHECKED.size)


def _following(data: bytes, at: int, number: int, seed: int) -> tuple[LoggedBatch, int] | None:
    """Return the next frame if frame ``number + 1`` is damaged.

    Return ``None`` if the log ends after frame ``number``, perhaps with a torn frame.

    Frame ``number + 1`` is damaged if any later frame says that a frame after ``number`` had been
    flushed.  The next frame alone would not do: frames that share a flush do not say so.  Without
    such a frame, a power cut may have left a late frame but not the earlier ones, behind an old
    frame in their place.
    """
    first, last, at = None, number, at - 1
    while (at := data.find(_MAGIC, at + 1)) >= 0:
        found = _decode(data, at, seed)
        if found is None or found[0].number <= last:  # old frames have lower numbers
            continue
        first, last, at = first or found, found[0].number, found[1] - 1
        if found[0].flushed > number:
            return first
    return None


# -- folder logs ----------------------------------------------------------------------------------


_DIGITS = frozenset("0123456789abcdef")
_LOCKS = "locks"  # the lock file beside the logs, which shows whose process is alive
_MOST_READERS = 8  # logs of other processes whose readers are kept


def _new_name() -> str:
    return os.urandom(8).hex()


def _is_name(name: str) -> bool:
    """Return whether a file's name is a log's; other files in the folder are left alone."""
    return len(name) == 16 and _DIGITS.issuperset(name)


class HeldRun:
    """A run whose lease this process holds.

    Attributes:
        epoch: the epoch of the lease.
        key: the name of the run's file of marks.
        log: the log that the row of the lease names; ``None`` if it names none, or is not known.
        generation: the generation in the row of the lease.
        commit: the number of our commit that named the log in that row.
        begun: True once a batch has been written, so that more will follow.
    """

    __slots__ = ("begun", "commit", "epoch", "generation", "key", "log")

    def __init__(self, epoch: int, key: str) -> None:
        self.epoch, self.key = epoch, key
        self.log: ProcessLog | None = None
        self.generation = self.commit = 0
        self.begun = False

    def would_log(self, batch: Batch) -> bool:
        """Return whether the row of the lease should name the log from this batch on.

        The first batch does not name the log, since a ring of the bell is only one batch.  Nor does
        the batch at the end of a run.  Taking over a run whose row names the log of a living
        process takes the log away from that process.
        """
        return self.begun and batch.head is None


class FolderLogs:
    """The logs in a folder, of this process and of others.

    Args:
        folder: the folder, which the first log creates.

    Attributes:
        own: the log of this process.
        name: the name of our log's file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._readers: dict[str, LogReader] = {}
        self.name, self.own = "", ProcessLog("")
        self.begin()

    # -- ours ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Delete our log, which the database has taken in, and begin another log."""
        self.own.close()
        if self.name and os.path.isdir(self._folder):
            self._locks().release(self.name)
        self.name = _new_name()
        self.own = ProcessLog(self._path(self.name))

    def open(self) -> None:
        """Create our log, so that the row of a lease may name it."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._locks().acquire(self.name)
        self.own.open()

    def end(self) -> None:
        """Close our log at the end of the process; delete its file if the database has all.

        The file of a failed log stays.
        """
        with self.own.mutex:
            if self.own.tails or self.own.failed:
                self.own.abandon()
            else:
                self.own.close()
            self.own.failed = True  # an even later write begins another log

    def leave(self) -> None:
        """Abandon our log, since the store's folder was deleted or replaced."""
        if self.own.is_open:
            self._locks().release(self.name)
        with self.own.mutex:
            self.forget()

    def forget(self) -> None:
        """Abandon the current log and begin a new one, as in a forked child."""
        self.own.abandon()
        self.name = _new_name()
        self.own = ProcessLog(self._path(self.name))

    # -- of other processes ----------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether a log of that name exists."""
        return _is_name(name) and os.path.exists(self._path(name))

    def dead(self) -> list[str]:
        """Return the names of logs whose processes are dead."""
        return [name for name in self._others() if self._locks().holder(name) is None]

    def holding(self, run_id: str) -> list[str]:
        """Return the names of other logs with any frame of a run, counting or not."""
        return [name for name in self._others() if ProcessLog(self._path(name)).holds(run_id)]

    def _others(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [name for name in names if _is_name(name) and name != self.name]

    def read(self, name: str) -> LogReader:
        """Read a log, and return its reader."""
        found = self._readers.pop(name, None) or LogReader(self._path(name))
        found.look()
        self._readers[name] = found
        while len(self._readers) > _MOST_READERS:
            del self._readers[next(iter(self._readers))]
        return found

    def take(self, name: str) -> LogReader | None:
        """Take a log from its owner and read it; return ``None`` if the log is gone.

        Raises:
            OSError: the log of a living process cannot be fenced, or the log cannot be read.
        """
        path = self._path(name)
        try:
            fence(path)  # for a dead process, too: a living one may only have lost its lock file
        except FileNotFoundError:
            return None
        except OSError:
            if self._locks().holder(name) is not None:
                raise
        reader = LogReader(path)
        reader.look()
        return reader

    def delete(self, name: str) -> None:
        """Delete a log that the database has taken in."""
        self._readers.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, os.path.basename(name))

    def _locks(self) -> LockFile:
        return lock_file(os.path.join(self._folder, _LOCKS))
