"""The content of LangGraph threads, each value stored once, and the threads' logs in a store.

A record of a thread's log is one ``put`` or ``put_writes``.  Its payload holds *blobs*, compressed
together: serialized values that no earlier record holds.  A list is stored by item, so that a
checkpoint of a long conversation adds only its new messages.  A dictionary with a list in it is
stored by key.  A channel with the version of the parent checkpoint is left out.

Each thread is one sealed log, shared by processes and threads.  Memory keeps what was read of a
thread, so that only newer records are read again.  The lease of a thread is held for one write, so
that any process may make the next one.

Rejected: a version as the key of a value (versions repeat where a thread forks).  Rejected: a lease
held for a whole thread (a server's next request goes to another process).  Rejected: storing a blob
as its difference from a recent blob (a message that got its id): compressed, blobs take no more.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Union

from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import notice
from stepwise._runtime.settings import public_url
from stepwise._workflows.host import THREADS, HostStore, LogEnd, LogIndex, SealedLog
from stepwise.stores import Store, open_store

# -- langgraph threads ----------------------------------------------------------------------------


Blob = tuple[str, bytes]
"""A serialized value: its type, as the serializer names it, and its bytes."""

Raw = Union[Blob, list[Blob], "dict[str, Raw]"]
"""A disassembled serialized value: one blob, a list of blobs, or a dictionary of these."""

_LEVEL = 1  # of zlib: a higher level takes three times as long, and saves a tenth
_LARGE = 1 << 20  # bytes of an image or a file: compressing it takes 40 ms a MB for nothing

Ref = tuple[int, int]
"""The place of a blob: the number of the record, and the index in it."""

Place = tuple[str, str]
"""The namespace and id of a checkpoint."""

WriteKey = tuple[str, int]
"""The task and index of a write."""


class Items:
    """A stored list: the first items of an earlier list, followed by blobs."""

    __slots__ = ("base", "kept", "tail")

    def __init__(self, base: Items | None, kept: int, tail: list[Ref]) -> None:
        self.base, self.kept, self.tail = base, kept, tail

    def refs(self) -> list[Ref]:
        """Return the places of all items."""
        parts, node, most = list[list[Ref]](), self, None
        while True:
            begin = node.kept if node.base is not None else 0
            parts.append(node.tail if most is None else node.tail[: max(0, most - begin)])
            most = begin if most is None else min(most, begin)
            if node.base is None or not most:
                break
            node = node.base
        return [ref for part in reversed(parts) for ref in part]


Value = Union[Ref, Items, "dict[str, Value]"]


class StoredWrite(NamedTuple):
    """One pending write.

    Args:
        number: of its record.
        invocation: see :class:`Stored`.
    """

    channel: str
    value: Value
    path: str
    number: int
    invocation: str = ""


class About(NamedTuple):
    """Facts about a checkpoint.

    Args:
        parent: id of the checkpoint before it; empty for none.
        facts: ``v``, ``ts`` and ``updated_channels`` of LangGraph.
        graph_run: LangGraph's ``run_id``.
        invocation: the invocation of the graph that made it, inside a run of stepwise; else empty.
    """

    ns: str
    id: str
    parent: str
    facts: list[Any]
    graph_run: str = ""
    invocation: str = ""


class Stored(NamedTuple):
    """One checkpoint.

    Args:
        ns, id, parent, facts, graph_run, invocation: see :class:`About`.
        number: of its record.
        metadata, rest: places of the metadata, and of other fields of the checkpoint.
        damaged: whether a record that it needs is lost.
    """

    ns: str
    id: str
    parent: str
    facts: list[Any]
    graph_run: str
    invocation: str
    number: int
    versions: Mapping[str, Any]
    seen: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Value]
    metadata: Ref
    rest: Ref | None
    damaged: bool = False

    @property
    def about(self) -> About:
        """The facts about the checkpoint."""
        return About(self.ns, self.id, self.parent, self.facts, self.graph_run, self.invocation)


class Thread:
    """The checkpoints and writes of one thread, as far as its log was read.

    One thread of the program adds records at a time; others may read meanwhile, from copies.

    Attributes:
        checkpoints: by namespace and id.
        writes: by the checkpoint that they belong to.
        lost: numbers of unreadable records.
        gone: how many acknowledged records are missing at the end.
        last: number of the last record.
        size: bytes of all blobs.
        tips: by namespace, the checkpoint with the greatest id and the checkpoint stored last.
            The two differ if clocks disagree.
    """

    def __init__(self, last: int = 0) -> None:
        self.checkpoints: dict[Place, Stored] = {}
        self.writes: dict[Place, dict[WriteKey, StoredWrite]] = {}
        self.lost: set[int] = set()
        self.gone = 0
        self.last = last
        self.size = 0
        self.tips: dict[str, tuple[str, str]] = {}
        self._blobs: dict[int, list[Blob]] = {}
        self._by_number: dict[int, Stored] = {}
        self._known: dict[bytes, Ref] | None = None  # places by digest, once a value is stored

    # -- from records ----------------------------------------------------------------------------

    def add(self, number: int, header: list[Any] | None, payload: bytes) -> None:
        """Add a record of the log; a header of ``None`` means that the record is lost."""
        self.last = number
        if header is None:
            self.lost.add(number)
            return
        kind, facts, sizes = header
        data, at = zlib.decompress(payload), 0
        blobs = self._blobs[number] = list[Blob]()
        for name, size in sizes:
            blobs.append((name, data[at : at + size]))
            at += size
        self.size += at
        if self._known is not None:
            self._know(number)
        if kind == "c":
            self._add_checkpoint(number, About(*facts[0]), *facts[1:])
        else:
            self._add_writes(number, *facts)

    def _know(self, number: int) -> None:
        for index, blob in enumerate(self._blobs[number]):
            self.known().setdefault(_digest(blob), (number, index))

    def _add_checkpoint(
        self,
        number: int,
        about: About,
        base_number: int,
        changed: dict[str, list[Any]],
        gone: list[str],
        blobs: tuple[int, int, int | None],
    ) -> None:
        base = self._by_number.get(base_number)
        whole = not base_number or (base is not None and not base.damaged)
        before = base.values if base is not None else {}
        values = {each: value for each, value in before.items() if each not in gone}
        for channel, value in changed.items():
            values[channel] = self._value(number, value, before.get(channel))
        versions_at, metadata, rest = blobs
        versions, seen = json.loads(self.blob((number, versions_at))[1])
        stored = Stored(
            *about._replace(parent=base.id if base is not None else about.parent),
            number,
            versions,
            seen,
            values,
            (number, metadata),
            (number, rest) if rest is not None else None,
            damaged=not whole or not self._holds(values),
        )
        self.checkpoints[stored.ns, stored.id] = self._by_number[number] = stored
        self.tips[stored.ns] = max(stored.id, self.tips.get(stored.ns, ("",))[0]), stored.id

    def _add_writes(
        self, number: int, about: list[str], writes: list[tuple[int, str, list[Any]]]
    ) -> None:
        ns, checkpoint_id, task, path, invocation = about
        found = self.writes.setdefault((ns, checkpoint_id), {})
        for index, channel, value in writes:
            if index < 0 or (task, index) not in found:
                stored = self._value(number, value, None)
                found[task, index] = StoredWrite(channel, stored, path, number, invocation)

    def _value(self, number: int, value: list[Any], base: Value | None) -> Value:
        kind, *rest = value
        if kind == "b":
            return rest[0] or number, rest[1]
        if kind == "d":
            return {key: self._value(number, each, None) for key, each in rest[0].items()}
        kept, runs = rest
        tail = [(n or number, k + i) for n, k, count in runs for i in range(count)]
        return Items(base if kept and isinstance(base, Items) else None, kept, tail)

    def _holds(self, values: Mapping[str, Value]) -> bool:
        """Return whether all records that these values need were read."""
        return not self.lost or all(
            self.has(ref) for value in values.values() for ref in _refs(value)
        )

    # -- to records ------------------------------------------------------------------------------

    def checkpoint_record(
        self,
        about: About,
        versions: Mapping[str, Any],
        seen: Mapping[str, Mapping[str, Any]],
        values: Mapping[str, Raw | None],
        extra: tuple[Blob, Blob | None],
    ) -> tuple[list[Any], bytes]:
        """Return the header and payload of the next record, for a checkpoint.

        Args:
            values: the values of its channels; ``None`` for a value that its parent has, too.
            extra: the serialized metadata and other fields.
        """
        base = self.base_of(about.ns, about.parent)
        before: Mapping[str, Value] = base.values if base is not None else {}
        new = _NewBlobs(self)
        stored = {
            channel: new.put(value, before.get(channel))
            for channel, value in values.items()
            if value is not None
        }
        metadata, rest = extra
        if base is not None:
            about = about._replace(parent="")
        # The indexes of the blobs with the versions of channels and the versions that nodes saw,
        # with the metadata, and with the other fields.
        blobs = (
            new.append(("json", json.dumps([versions, seen]).encode())),
            new.append(metadata),
            new.append(rest) if rest is not None else None,
        )
        gone = [each for each in before if each not in values]
        facts = [[*about], base.number if base is not None else 0, stored, gone, blobs]
        return new.record("c", facts)

    def writes_record(
        self,
        place: Place,
        task: tuple[str, str],
        invocation: str,
        writes: Iterable[tuple[int, str, Raw]],
    ) -> tuple[list[Any], bytes] | None:
        """Return header and payload of the next record, for writes; ``None`` if all are stored.

        Args:
            place: of the checkpoint.
            task: its id and its path.
            writes: index, channel and value of each write.
        """
        known: Mapping[WriteKey, StoredWrite] = self.writes.get(place, {})
        new = _NewBlobs(self)
        stored = [
            [index, channel, new.put(value, None)]
            for index, channel, value in writes
            if index < 0 or (task[0], index) not in known
        ]
        if not stored:
            return None
        facts = [[*place, *task, invocation], stored]
        return new.record("w", facts)

    def base_of(self, ns: str, parent: str) -> Stored | None:
        """Return the parent checkpoint as a base for its child; ``None`` if missing or damaged."""
        found = self.checkpoints.get((ns, parent)) if parent else None
        return found if found is not None and not found.damaged else None

    def known(self) -> dict[bytes, Ref]:
        """Return the places of all blobs by their digest."""
        if self._known is None:
            self._known = {}
            for number in self._blobs:
                self._know(number)
        return self._known

    # -- reading ---------------------------------------------------------------------------------

    def raw(self, value: Value) -> Raw:
        """Return a stored value in serialized form."""
        if isinstance(value, Items):
            return [self.blob(ref) for ref in value.refs()]
        if isinstance(value, dict):
            return {key: self.raw(each) for key, each in value.items()}
        return self.blob(value)

    def blob(self, ref: Ref) -> Blob:
        """Return the blob at a place."""
        return self._blobs[ref[0]][ref[1]]

    def has(self, ref: Ref) -> bool:
        """Return whether the record that holds a blob was read."""
        return ref[0] in self._blobs

    def newest_first(self, ns: str | None = None) -> Iterator[Stored]:
        """Yield the checkpoints of a namespace, or of all, by descending id."""
        wanted = [key for key in list(self.checkpoints) if ns in (None, key[0])]
        for key in sorted(wanted, key=lambda key: key[1], reverse=True):
            yield self.checkpoints[key]

    def moved_past(self, ns: str, checkpoint_id: str) -> bool:
        """Return whether another checkpoint of the namespace is the newest."""
        return checkpoint_id not in self.tips.get(ns, (checkpoint_id,))

    def pending(self, stored: Stored) -> list[tuple[WriteKey, StoredWrite]]:
        """Return the writes of a checkpoint, in the order in which LangGraph applies them."""
        found = self.writes.get((stored.ns, stored.id), {}).copy()
        return sorted(found.items(), key=lambda item: (item[1].path, *item[0]))

    def is_certain(self, stored: Stored) -> bool:
        """Return whether a checkpoint and all its writes were read."""
        if stored.damaged:
            return False
        if not self.lost and not self.gone:
            return True
        parent = self.checkpoints.get((stored.ns, stored.parent))
        after = parent.number if parent is not None else 0
        children = (
            each.number
            for each in list(self.checkpoints.values())
            if each.ns == stored.ns and each.parent == stored.id
        )
        before = min(children, default=0)
        if not before and self.gone:
            return False
        return not any(after < number < (before or number + 1) for number in self.lost)

    # -- rewriting -------------------------------------------------------------------------------

    def rewritten(
        self, keep: Collection[Place], into: Thread, *, of_runs: bool = True
    ) -> Iterator[tuple[list[Any], bytes]]:
        """Yield the records that hold the given checkpoints and their writes in another thread.

        Args:
            into: the other thread, to which the records are added.
            of_runs: whether they still belong to the invocations that made them.
        """
        todo = list[tuple[int, Stored | tuple[Place, str]]]()
        for place in keep:
            stored = self.checkpoints.get(place)
            if stored is not None and not stored.damaged:
                todo.append((stored.number, stored))
            firsts = dict[str, int]()
            for (task, _), write in list(self.writes.get(place, {}).items()):
                firsts[task] = min(write.number, firsts.get(task, write.number))
            todo += [(number, (place, task)) for task, number in firsts.items()]
        for _, each in sorted(todo, key=lambda item: item[0]):
            record = (
                self._checkpoint_into(into, each, of_runs=of_runs)
                if isinstance(each, Stored)
                else self._writes_into(into, *each, of_runs=of_runs)
            )
            if record is not None:
                into.add(into.last + 1, *record)
                yield record

    def _checkpoint_into(
        self, into: Thread, stored: Stored, *, of_runs: bool
    ) -> tuple[list[Any], bytes]:
        about = stored.about if of_runs else stored.about._replace(invocation="")
        base = self.checkpoints.get((stored.ns, stored.parent))
        same = into.base_of(stored.ns, stored.parent) is not None and base is not None
        values = {
            channel: None
            if same and base is not None and base.values.get(channel) is value
            else self.raw(value)
            for channel, value in stored.values.items()
        }
        extra = self.blob(stored.metadata), self.blob(stored.rest) if stored.rest else None
        return into.checkpoint_record(about, stored.versions, stored.seen, values, extra)

    def _writes_into(
        self, into: Thread, place: Place, task: str, *, of_runs: bool
    ) -> tuple[list[Any], bytes] | None:
        found = [
            (index, write)
            for (of, index), write in list(self.writes[place].items())
            if of == task and all(map(self.has, _refs(write.value)))
        ]
        if not found:
            return None
        path, invocation = found[0][1].path, found[0][1].invocation if of_runs else ""
        writes = [(index, write.channel, self.raw(write.value)) for index, write in found]
        return into.writes_record(place, (task, path), invocation, writes)


class _NewBlobs:
    def __init__(self, thread: Thread) -> None:
        self._known, self._new = thread.known(), dict[bytes, Ref]()
        self._blobs: list[Blob] = []

    def append(self, blob: Blob) -> int:
        """Add a blob, and return its index."""
        self._blobs.append(blob)
        return len(self._blobs) - 1

    def record(self, kind: str, facts: Any) -> tuple[list[Any], bytes]:
        """Return the header and the payload of the record."""
        sizes = [[name, len(data)] for name, data in self._blobs]
        level = 0 if any(len(data) > _LARGE for _, data in self._blobs) else _LEVEL
        return [kind, facts, sizes], zlib.compress(b"".join(e for _, e in self._blobs), level)

    def put(self, raw: Raw, base: Value | None) -> list[Any]:
        """Add the unrecorded parts of a value; return the header's reference to the value."""
        if isinstance(raw, dict):
            return ["d", {key: self.put(each, None) for key, each in raw.items()}]
        if isinstance(raw, tuple):
            return ["b", *self._ref(raw)]
        refs = [self._ref(each) for each in raw]
        kept = 0
        if isinstance(base, Items):
            for mine, theirs in zip(refs, base.refs(), strict=False):
                if mine != theirs:
                    break
                kept += 1
        return ["l", kept, _runs(refs[kept:])]

    def _ref(self, blob: Blob) -> Ref:
        digest = _digest(blob)
        found = self._known.get(digest) or self._new.get(digest)
        if found is None:
            found = self._new[digest] = (0, self.append(blob))
        return found


def _runs(refs: list[Ref]) -> list[list[int]]:
    """Return consecutive places as record number, first index and count."""
    runs: list[list[int]] = []
    for number, index in refs:
        if runs and runs[-1][0] == number and runs[-1][1] + runs[-1][2] == index:
            runs[-1][2] += 1
        else:
            runs.append([number, index, 1])
    return runs


def _refs(value: Value) -> Iterator[Ref]:
    if isinstance(value, Items):
        yield from value.refs()
    elif isinstance(value, dict):
        for each in value.values():
            yield from _refs(each)
    else:
        yield value


def _digest(blob: Blob) -> bytes:
    kind, data = blob
    return hashlib.blake2b(data, digest_size=16, key=kind.encode()[:64]).digest()


# -- langgraph store ------------------------------------------------------------------------------


_MOST, _MOST_THREADS = 64_000_000, 200  # bytes of values, and threads, to keep in memory
_MOST_OWN = 10_000


class _Known:
    """The part of a thread that this process has read."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread = Thread()
        self.end = LogEnd()

    def forget(self) -> None:
        self.thread, self.end = Thread(), LogEnd()


class ThreadStore:
    """The threads in one store.

    Args:
        where: a URL, a path or a store; ``None`` for the configured store.
    """

    def __init__(self, where: object = None) -> None:
        self._where = where
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.own: OrderedDict[Place, str] = OrderedDict()  # the newest checkpoints stored here
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type[ThreadStore], tuple[object]]:
        where = public_url(self._where) if isinstance(self._where, str) else self._where
        return ThreadStore, (where,)  # so that a variable of a run can hold a graph

    @cached
    def _host(self) -> HostStore:
        where = self._where if self._where is not None else settings.store()
        return HostStore(open_store(where))  # type: ignore[arg-type]  # it checks that

    @property
    def store(self) -> Store:
        """The store itself."""
        return self._host.store

    def forget(self) -> None:
        """Release everything that was read."""
        with self._mutex:
            self._known.clear()

    def read(self, thread_id: str) -> Thread:
        """Return the current content of a thread; later reads only add to it."""
        known, log = self._entry(thread_id), self._log(thread_id)
        with known.lock:
            self._refresh(known, log)
            return known.thread

    @contextmanager
    def writing(self, thread_id: str) -> Iterator[Writer]:
        """Yield the only writer of a thread.

        Raises:
            RunBusyError: another process has been writing to the thread for a minute.
        """
        known, log = self._entry(thread_id), self._log(thread_id)
        with known.lock, log.owned() as epoch:
            self._refresh(known, log)
            try:
                yield Writer(self, thread_id, known, log, epoch)
            except BaseException:
                known.forget()  # the last write may or may not be done
                raise

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        found = []
        for each in self.index.ids():
            if each is None:
                notice(f"an entry of {self.store.url} for a LangGraph thread is damaged; left out")
            else:
                found.append(each)
        return found

    @property
    def index(self) -> LogIndex:
        """The list of threads."""
        return LogIndex(self.store, self._host.seal, THREADS)

    def _log(self, thread_id: str) -> SealedLog:
        return SealedLog(self.store, self._host.seal, f"{THREADS.prefix}{thread_id}")

    def _entry(self, thread_id: str) -> _Known:
        if self._pid != os.getpid():  # a thread that does not exist after a fork may hold a lock
            self._mutex, self._known, self._pid = threading.Lock(), OrderedDict(), os.getpid()
            self.own = OrderedDict()
        with self._mutex:
            known = self._known.get(thread_id)
            if known is None:
                known = self._known[thread_id] = _Known()
            self._known.move_to_end(thread_id)
            size = sum(each.thread.size for each in self._known.values())
            while len(self._known) > _MOST_THREADS or (size > _MOST and len(self._known) > 1):
                _, oldest = self._known.popitem(last=False)
                size -= oldest.thread.size
            return known

    def _refresh(self, known: _Known, log: SealedLog) -> None:
        found = log.read(known.end) if known.end.at.last else None
        whole = found is None
        for _ in range(3):  # another process may have rewritten the log in between
            if found is not None and all(each.header is not None for each in found[0]):
                break
            known.forget()
            found, whole = log.read(known.end), True
        assert found is not None  # from the beginning, there is always an answer
        entries, known.end = found
        for each in entries:
            known.thread.add(*each)
        if whole:
            self._compare(known, log)

    def _compare(self, known: _Known, log: SealedLog) -> None:
        """Note acknowledged records that are missing from the end."""
        while gone := log.missing(known.end):
            found = log.read(known.end)  # unless they were written since
            if found is None or found[1] == known.end:
                known.thread.gone = gone
                return
            entries, known.end = found
            for each in entries:
                known.thread.add(*each)


class Writer:
    """The right to write to a thread.

    Attributes:
        thread: the content of the thread.
    """

    def __init__(
        self, owner: ThreadStore, thread_id: str, known: _Known, log: SealedLog, epoch: int
    ) -> None:
        self._owner, self._thread_id = owner, thread_id
        self._known, self._log, self._epoch = known, log, epoch

    @property
    def thread(self) -> Thread:
        """The content of the thread."""
        return self._known.thread

    def append(self, *records: tuple[list[object], bytes]) -> None:
        """Append records durably."""
        known = self._known
        if not known.end.at.last:
            self._owner.index.add(self._thread_id)
        known.end = self._log.append(self._epoch, known.end, records)
        for number, record in enumerate(records, known.thread.last + 1):
            known.thread.add(number, *record)
        known.thread.last = known.end.at.last

    def owns(self, ns: str) -> None:
        """Note that this process has stored the newest checkpoint of a namespace."""
        own = self._owner.own
        own[self._thread_id, ns] = self.thread.tips[ns][1]
        own.move_to_end((self._thread_id, ns))
        while len(own) > _MOST_OWN:
            own.popitem(last=False)

    def owned(self, ns: str) -> bool:
        """Return whether this process has stored the newest checkpoint of a namespace."""
        return self._owner.own.get((self._thread_id, ns)) == self.thread.tips[ns][1]

    def keep(self, places: Iterable[Place]) -> None:
        """Delete all checkpoints and writes except the given ones."""
        known, kept = self._known, set(places)
        if not kept:
            return self.delete()
        into = Thread(known.end.at.last)
        return self.replace(list(known.thread.rewritten(kept, into)), into)

    def replace(self, records: list[tuple[list[object], bytes]], into: Thread) -> None:
        """Replace all records.

        Args:
            into: the content that the new records make.
        """
        known = self._known
        if not known.end.at.last:
            self._owner.index.add(self._thread_id)
        known.end = self._log.append(self._epoch, known.end, records, instead=True)
        known.thread = into

    def delete(self) -> None:
        """Delete the thread."""
        if self._known.end.at.last:
            self._log.delete(self._epoch)
            self._known.forget()
        self._owner.index.remove(self._thread_id)
