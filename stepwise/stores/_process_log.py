"""The logs of processes: what their runs wrote last, before the database of the store takes it in.

A small batch costs a transaction of the database several pages, and a checkpoint as many again.
Here it is a *frame* behind the last one, and one ``fdatasync`` makes all frames durable that the
runs of the process have written meanwhile::

    magic, length, CRC-32 of the log's name and the rest
    number of the frame; the last frame that had been flushed since the file was begun
    epoch and generation of the run, and the batch

The frames of a run that the database lacks are its *tail*.  Each transaction of the database that
concerns a run takes its tail in and raises the run's *generation*, in the row of its lease, which
names the log, too.  A frame counts only if that row names this log, and the frame's epoch and
generation: so frames that were taken in, that belong to a deleted run, or that follow a commit
which a power cut undid, count no more, whatever becomes of the file.

The file is written over from its beginning once all of it was taken in.  It is zeroed ahead, since
a file that grows makes each flush commit the file system's own journal.

*Fencing.*  Who takes over a run whose lease names the log of another process first takes away the
owner's right to write the file, and then reads it.  The writer looks at the mode after each write,
and after the flush, before anybody acts on what was written.  It finds its log taken, goes on in
the database, which checks the epoch of each run, and begins another log.  (A file that is renamed
would have to be looked up by its path after each write; a second link is not seen any more once
one of both names is deleted.)

Rejected: one log for each run.  The runs of an event loop, for which one thread writes, would wait
for as many flushes (14 times as long for 64).  Copying the log and
then telling its owner: a payment that is acknowledged in between is made twice.  Noting in the
database how far a log was taken in: a log is shared, restored and written over, so that is a number
for each run and file.
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
from stepwise.stores._files import flush, sync
from stepwise.stores._locks import LockFile, lock_file
from stepwise.stores.base import Batch

# -- process log ----------------------------------------------------------------------------------


LARGEST_BATCH = 1 << 17  # bytes; a larger batch is not worth writing twice
_LARGEST_LOG = 1 << 20  # bytes, after which the database takes it in
_FIRST_SIZE = 1 << 14  # bytes that are zeroed at first; then as many again
_MAGIC = b"\xf5swl"
_FRONT = struct.Struct("<4sII")
_CHECKED = struct.Struct("<QQQQIIII")
_RECORD = struct.Struct("<QI")
_OBJECT = struct.Struct("<II")
_NAME = struct.Struct("<I")
_TRIES = 10  # looks at a log that is being written
_WRITABLE = 0o200  # the bit of the mode that a fence takes away


class LogTakenError(Exception):
    """Another process has taken the log over: what was written last may have been overlooked."""


class LoggedBatch(NamedTuple):
    """One batch of a run, as it lies in a log."""

    number: int
    flushed: int
    run_id: str
    epoch: int
    generation: int
    batch: Batch


class Tail:
    """The batches of a run that the database lacks, in their order."""

    __slots__ = ("batches", "epoch", "generation")

    def __init__(self, epoch: int, generation: int) -> None:
        self.epoch, self.generation = epoch, generation
        self.batches: list[Batch] = []

    def as_batch(self) -> Batch:
        """All of it as one batch."""
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

    The mutex covers the position and the tails.  A flush does not hold it, so that what need not
    be durable is written meanwhile.  Who flushes or empties the log holds the store's lock, too.

    Args:
        path: of the file.

    Attributes:
        tails: by run.
        mutex: reentrant, since a finalizer may enter anywhere.
        failed: a write or a flush was cut off, or the log was taken: it takes nothing any more.
        unsure: the runs with a batch in it that was to be durable, and perhaps is not.
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
        self._at = 0  # where the next frame begins
        self._size = 0  # of the part that is zeroed or written
        self._number = 0  # of the last frame
        self._flushed = 0  # the last frame that is on the disk, of those since the beginning
        self._named = False  # whether the name of the file is

    @property
    def is_open(self) -> bool:
        """True if there is the file."""
        return self._descriptor >= 0

    def holds(self, run_id: str) -> bool:
        """Return whether the file has anything of a run, in frames that count no more, too."""
        try:
            with open(self.path, "rb") as file:
                return _text(run_id) in file.read()
        except OSError:
            return False

    def open(self) -> None:
        """Make the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)

    def add(self, run_id: str, epoch: int, generation: int, batch: Batch) -> bool:
        """Write a batch, which then survives the process; false if there is no room for it.

        The caller holds the mutex, and knows that the batch is not large.

        Raises:
            OSError: it cannot be written.
            LogTakenError: it may have been overlooked.
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
            self._number, self._at = number, end  # no interrupt comes between
            if not durable:
                self._check()
            tail.batches.append(batch)  # at once: an interrupt leaves all of it, or nothing
            self.tails[run_id] = tail
        except BaseException:
            self.failed = True
            raise
        return True

    def fail(self, wanted: Iterable[tuple[str, int, Batch]]) -> None:
        """Take nothing any more; those batches were not acknowledged, though some may be here."""
        self.failed = True
        for run_id, _, batch in wanted:
            tail = self.tails.get(run_id) if batch.durable else None
            if tail is not None and any(each is batch for each in tail.batches):
                self.unsure.add(run_id)

    def flush(self) -> None:
        """Make durable what was added.

        Raises:
            OSError: it is not known how much of it is.
            LogTakenError: it may have been overlooked.
        """
        try:
            number = self._number
            flush(self._descriptor)
            if not self._named:
                self._check()  # else the folder may be gone, too
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
        """Begin again at the beginning of the file: the database holds all of it, durably."""
        self.tails.clear()
        self._at = self._flushed = 0  # old frames are no proof that a new one had been flushed

    def close(self) -> None:
        """Delete the file; the database must hold all of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # the program may have closed everything
                os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def close_if_empty(self) -> None:
        """Delete the file at the end of the process, if the database lacks nothing."""
        with self.mutex:
            if self.tails or self.failed:
                self.abandon()
            else:
                self.close()
            self.failed = True  # who writes even later begins another log

    def abandon(self) -> None:
        """Leave the file to those who take it in; in a forked child, to the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the program may have closed everything
                os.close(descriptor)

    def _zero(self, end: int) -> None:
        """Have zeros where the next frame comes to lie."""
        self._size = max(self._size, self._at)
        while end > self._size:
            more = max(_FIRST_SIZE, self._size)
            self._write(memoryview(bytes(more)), self._size)
            self._size += more

    def _write(self, data: memoryview, at: int) -> None:
        while data:  # a limit, or a full disk, says so at the next call
            written = os.pwrite(self._descriptor, data, at)
            data, at = data[written:], at + written

    def _check(self) -> None:
        there = os.fstat(self._descriptor)
        if not (there.st_mode & _WRITABLE and there.st_nlink):
            raise LogTakenError


def fence(path: str) -> None:
    """Let the writer of a log notice that it is taken over; only then may the log be read.

    Raises:
        FileNotFoundError: there is no such log any more.
        OSError: the file system has no permissions, so that the writer would go on.
    """
    os.chmod(path, 0o600 & ~_WRITABLE)
    if os.stat(path).st_mode & _WRITABLE:
        raise OSError(errno.ENOTSUP, "its file system has no permissions", path)


# -- frames ----------------------------------------------------------------------------------------


def weight(batch: Batch) -> int:
    """Return about how many bytes a batch takes."""
    records, put, delete = batch.records, batch.put, batch.delete
    if len(records) == 1 and not (put or delete):  # mostly
        return len(records[0][1])
    found = _RECORD.size * (len(records) + len(put) + len(delete))
    for _, data in records:
        found += len(data)
    for name, data in put.items():
        found += len(name) + len(data)
    for name in delete:
        found += len(name)
    return found


def _seed(path: str) -> int:
    """Return what the check sums of a log begin with.

    So a frame of another log, which a run may have recorded as its data, is no frame of this one.
    """
    return zlib.crc32(_text(os.path.basename(path)))


def _encode(seed: int, numbers: tuple[int, int, int, int], run_id: str, batch: Batch) -> bytes:
    """Return the frame of a batch."""
    number, flushed, epoch, generation = numbers
    records, put, delete, _, _, _, _ = batch  # at once: an attribute takes longer
    run = run_id.encode("utf-8", "surrogatepass")
    of, also, less = len(records), len(put), len(delete)
    parts = [_CHECKED.pack(number, flushed, epoch, generation, len(run), of, also, less), run]
    for at, data in records:
        parts += _RECORD.pack(at, len(data)), data if type(data) is bytes else bytes(data)
    if also or less:
        for name, data in put.items():
            text = name.encode("utf-8", "surrogatepass")
            parts += _OBJECT.pack(len(text), len(data)), text
            parts.append(data if type(data) is bytes else bytes(data))
        for name in delete:
            text = name.encode("utf-8", "surrogatepass")
            parts += _NAME.pack(len(text)), text
    body = b"".join(parts)
    return _FRONT.pack(_MAGIC, len(body), zlib.crc32(body, seed)) + body


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes, at: int, seed: int) -> tuple[LoggedBatch, int] | None:
    """Return the frame that begins there, and where it ends; ``None`` if there is none."""
    start = at + _FRONT.size
    if data[at : at + len(_MAGIC)] != _MAGIC or len(data) < start:
        return None
    _, size, digest = _FRONT.unpack_from(data, at)
    body = data[start : start + size]
    if len(body) < size or zlib.crc32(body, seed) != digest:
        return None
    try:
        return _take_apart(body), start + size
    except (struct.error, ValueError):  # no frame of ours, with a check sum of its own
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
    """Reads the log of another process, or of one that is gone; a second look reads what is new.

    A torn frame at the end is none: nobody was told that it was written.  A frame that cannot be
    read although it had been flushed when a later one was written is damage: it alone is left out,
    and the records of it are missing where the journal counts them.
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
        """The ids of the runs of which there are frames."""
        return {run_id for run_id, _, _ in self._tails}

    def tail(self, run_id: str, epoch: int, generation: int) -> Tail | None:
        """Return what the database lacks of a run, if it holds the run in that generation."""
        return self._tails.get((run_id, epoch, generation))

    def look(self) -> None:
        """Read what was written since the last look.

        Raises:
            OSError: it cannot be read.
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
            # Perhaps it was being written as it was read.
            data = self._rest(file)
            if data.startswith(left):
                break
        self._take(data, skip=True)

    def _rest(self, file: FileIO) -> bytes:
        for _ in range(_TRIES):
            first = _beginning(file)
            if first != self._first:  # written over from the beginning
                self._begin()
                self._first = first
            file.seek(self._at)
            data = file.read()
            if _beginning(file) == first:  # else there may be late frames without earlier ones
                return data
        raise OSError(errno.EAGAIN, "it changes too fast to be read", self.path)

    def _take(self, data: bytes, *, skip: bool = False) -> bytes | None:
        """Take frames; at a damaged one, return the data from there on, unless it is skipped."""
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
    """Return the next frame where ``number + 1`` is missing; ``None`` if this is the end, or torn.

    A frame is missing if any later one says that something after ``number`` had been flushed.  (Not
    only the next one: of frames that share a flush none says so.)  Otherwise a power cut may have
    left a late frame without the earlier ones, behind an old frame that lies in place of these.
    """
    first, last, at = None, number, at - 1
    while (at := data.find(_MAGIC, at + 1)) >= 0:
        found = _decode(data, at, seed)
        if found is None or found[0].number <= last:  # what was written over has lower numbers
            continue
        first, last, at = first or found, found[0].number, found[1] - 1
        if found[0].flushed > number:
            return first
    return None


# -- folder logs ----------------------------------------------------------------------------------


_DIGITS = frozenset("0123456789abcdef")
_LOCKS = "locks"  # a file among the logs: the kernel knows by it whose process is alive
_MOST_READERS = 8  # logs of other processes whose contents are kept


def _new_name() -> str:
    return os.urandom(8).hex()


def _is_name(name: str) -> bool:
    """Return whether a log may have that name: what else lies in the folder is left alone."""
    return len(name) == 16 and _DIGITS.issuperset(name)


class HeldRun:
    """A run whose lease is held here.

    Attributes:
        key: the name of its file of marks.
        log: the one that the row of its lease names; ``None`` while that is not known.
        generation: the one in that row.
        commit: which of our commits wrote that row.
        begun: a batch has been written, so that more will follow.
    """

    __slots__ = ("begun", "commit", "epoch", "generation", "key", "log")

    def __init__(self, epoch: int, key: str) -> None:
        self.epoch, self.key = epoch, key
        self.log: ProcessLog | None = None
        self.generation = self.commit = 0
        self.begun = False

    def would_log(self, batch: Batch) -> bool:
        """Return whether the row of the lease is to name the log from this batch on.

        Not with the first batch: a ring of the bell is one batch, and so is the end of a run.  Who
        takes over a run whose row names the log of a living process takes the log away from it.
        """
        return self.begun and batch.head is None


class FolderLogs:
    """The logs in a folder.

    Args:
        folder: made with the first log.

    Attributes:
        own: the log of this process.
        name: of its file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._readers: dict[str, LogReader] = {}
        self.name, self.own = "", ProcessLog("")
        self.begin()

    # -- ours ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Delete our log, which the database has taken in, and begin another one."""
        self.own.close()
        if self.name and os.path.isdir(self._folder):
            self._locks().release(self.name)
        self.name = _new_name()
        self.own = ProcessLog(self._path(self.name))

    def open(self) -> None:
        """Make our log; from then on the row of a lease may name it."""
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._locks().acquire(self.name)
        self.own.open()

    def end(self) -> None:
        """Delete our log at the end of the process, if the database lacks nothing."""
        self.own.close_if_empty()

    def leave(self) -> None:
        """Leave our log to whoever has the folder, which is no more in its place."""
        if self.own.is_open:
            self._locks().release(self.name)
        with self.own.mutex:
            self.forget()

    def forget(self) -> None:
        """In a forked child: the parent's log is not ours."""
        self.own.abandon()
        self.name = _new_name()
        self.own = ProcessLog(self._path(self.name))

    # -- of other processes ----------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether there is a log of that name."""
        return _is_name(name) and os.path.exists(self._path(name))

    def dead(self) -> list[str]:
        """The names of logs whose processes are gone."""
        return [name for name in self._others() if self._locks().holder(name) is None]

    def holding(self, run_id: str) -> list[str]:
        """The names of logs, but ours, with anything of a run: also what counts no more."""
        return [name for name in self._others() if ProcessLog(self._path(name)).holds(run_id)]

    def _others(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [name for name in names if _is_name(name) and name != self.name]

    def read(self, name: str) -> LogReader:
        """Return what a log holds now."""
        found = self._readers.pop(name, None) or LogReader(self._path(name))
        found.look()
        self._readers[name] = found
        while len(self._readers) > _MOST_READERS:
            del self._readers[next(iter(self._readers))]
        return found

    def take(self, name: str) -> LogReader | None:
        """Return what a log holds and its owner writes no more; ``None`` if it is gone."""
        path = self._path(name)
        try:
            fence(path)  # of a dead process, too: one whose lock file was deleted looks like it
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
