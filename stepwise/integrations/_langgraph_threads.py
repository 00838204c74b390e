"""The content of one LangGraph thread: its checkpoints and writes, with each value stored once.

A record of the thread's log is one ``put`` or ``put_writes``.  Its payload are *blobs*: serialized
values that no earlier record holds.  A blob that has most of its bytes in common with a recent one
(a message, once it has got its id) is stored as what differs.  A list is stored by item, so that a
checkpoint of a long conversation adds its new messages only; a dictionary by key, if a list is in
it.  A channel whose version is that of the parent checkpoint is not named at all.

Knows neither LangGraph nor a store: it turns records into checkpoints and checkpoints into records.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Union

from stepwise._runtime.facts import NamedTuple

__all__ = ["About", "Blob", "Place", "Raw", "Stored", "StoredWrite", "Thread", "WriteKey"]

Blob = tuple[str, bytes]
"""A serialized value: its type, as the serializer calls it, and its bytes."""

Raw = Union[Blob, list[Blob], "dict[str, Raw]"]
"""A serialized value, taken apart: one blob, a list of blobs, or a dictionary of these."""

_ALIKE, _SAMPLE, _RECENT = 256, 24, 16  # bytes, bytes, blobs

Ref = tuple[int, int]
"""The place of a blob: number of the record, index in it."""

Place = tuple[str, str]
"""Namespace and id of a checkpoint."""

WriteKey = tuple[str, int]
"""Task and index of a write."""


class Items:
    """A stored list: the first items of an earlier one, and blobs behind them."""

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


class Stored(NamedTuple):
    """One checkpoint.

    Args:
        number: of its record.
        parent: id of the checkpoint before it; empty for none.
        facts: ``v``, ``ts`` and ``updated_channels`` of LangGraph.
        metadata, rest: places of the metadata, and of other fields of the checkpoint.
        graph_run: LangGraph's ``run_id``.
        invocation: of the graph inside a run of stepwise, that made it; else empty.
        damaged: a record that it needs is lost.
    """

    number: int
    ns: str
    id: str
    parent: str
    facts: list[Any]
    versions: Mapping[str, Any]
    seen: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Value]
    metadata: Ref
    rest: Ref | None
    graph_run: str = ""
    invocation: str = ""
    damaged: bool = False


class About(NamedTuple):
    """Facts about a checkpoint that is to be stored; see :class:`Stored`."""

    ns: str
    id: str
    parent: str
    facts: list[Any]
    graph_run: str = ""
    invocation: str = ""


class _CheckpointFacts(NamedTuple):
    """The record of a checkpoint, as far as it differs from its base.

    Args:
        parent: empty if that is the base.
        base: number of the record of the parent checkpoint; 0 for none.
        versions, seen, values: new and changed ones.
        unversioned, unseen, gone: names of those that the base has and this one has not.
        metadata, rest: indexes of blobs.
    """

    ns: str
    id: str
    parent: str
    facts: list[Any]
    graph_run: str
    invocation: str
    base: int
    versions: dict[str, Any]
    unversioned: list[str]
    seen: dict[str, dict[str, Any]]
    unseen: list[str]
    values: dict[str, list[Any]]
    gone: list[str]
    metadata: int
    rest: int | None


class _Blobs(NamedTuple):
    """The blobs of one record: type and size of each, for one that is copied in part how."""

    sizes: list[list[Any]]
    ends: list[int]
    payload: bytes

    def get(self, index: int) -> tuple[bytes, list[int]]:
        """Return the stored bytes of a blob, and how the rest is copied."""
        start = self.ends[index - 1] if index else 0
        return self.payload[start : self.ends[index]], self.sizes[index][2:]


class Thread:
    """The checkpoints and writes of one thread, as far as its log was read.

    One thread of the program adds records at a time; others may read meanwhile, from copies.

    Attributes:
        checkpoints: by namespace and id.
        writes: by the checkpoint that they belong to.
        lost: numbers of records that cannot be read.
        gone: how many acknowledged records are missing at its end.
        last: number of the last record.
        recent: places of the blobs that a new one may have something in common with.
        size: bytes of all blobs.
    """

    def __init__(self, last: int = 0) -> None:
        self.checkpoints: dict[Place, Stored] = {}
        self.writes: dict[Place, dict[WriteKey, StoredWrite]] = {}
        self.lost: set[int] = set()
        self.gone = 0
        self.last = last
        self.recent: deque[Ref] = deque(maxlen=_RECENT)
        self.size = 0
        self._blobs: dict[int, _Blobs] = {}
        self._by_number: dict[int, Stored] = {}
        self._known: dict[bytes, Ref] | None = None  # places by digest, once something is stored

    # -- from records ----------------------------------------------------------------------------

    def add(self, number: int, header: list[Any] | None, payload: bytes) -> None:
        """Take a record of the log in; ``None``: it is lost."""
        self.last = number
        if header is None:
            self.lost.add(number)
            return
        kind, facts, sizes = header
        ends, at = [], 0
        for index, (_, size, *copied) in enumerate(sizes):
            at += size
            ends.append(at)
            if size >= _ALIKE and not copied:
                self.recent.append((number, index))
        self._blobs[number] = _Blobs(sizes, ends, payload)
        self.size += at
        if self._known is not None:
            self._know(number)
        if kind == "c":
            self._add_checkpoint(number, _CheckpointFacts(*facts))
        else:
            self._add_writes(number, *facts)

    def _know(self, number: int) -> None:
        for index in range(len(self._blobs[number].ends)):
            if self.has((number, index)):
                self.known().setdefault(_digest(self.blob((number, index))), (number, index))

    def _add_checkpoint(self, number: int, facts: _CheckpointFacts) -> None:
        base = self._by_number.get(facts.base)
        whole = not facts.base or (base is not None and not base.damaged)
        before = base.values if base is not None else {}
        values = {each: value for each, value in before.items() if each not in facts.gone}
        for channel, value in facts.values.items():
            values[channel] = self._value(number, value, before.get(channel))
        stored = Stored(
            number,
            facts.ns,
            facts.id,
            base.id if base is not None else facts.parent,
            facts.facts,
            _updated(base.versions if base is not None else {}, facts.versions, facts.unversioned),
            _updated(base.seen if base is not None else {}, facts.seen, facts.unseen),
            values,
            (number, facts.metadata),
            (number, facts.rest) if facts.rest is not None else None,
            facts.graph_run,
            facts.invocation,
            damaged=not whole or not self._holds(values),
        )
        self.checkpoints[stored.ns, stored.id] = self._by_number[number] = stored

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
        """Return whether every record that these values need was read."""
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
            values: the values of its channels; ``None`` for one that its parent has, too.
            extra: the serialized metadata and other fields.
        """
        base = self.base_of(about.ns, about.parent)
        old_versions: Mapping[str, Any] = base.versions if base is not None else {}
        old_seen: Mapping[str, Any] = base.seen if base is not None else {}
        before: Mapping[str, Value] = base.values if base is not None else {}
        new = _NewBlobs(self)
        stored = {
            channel: new.put(value, before.get(channel))
            for channel, value in values.items()
            if value is not None
        }
        metadata, rest = extra
        facts = _CheckpointFacts(
            about.ns,
            about.id,
            about.parent if base is None else "",
            about.facts,
            about.graph_run,
            about.invocation,
            base.number if base is not None else 0,
            _changed(versions, old_versions),
            [each for each in old_versions if each not in versions],
            _changed(seen, old_seen),
            [each for each in old_seen if each not in seen],
            stored,
            [each for each in before if each not in values],
            new.append(metadata),
            new.append(rest) if rest is not None else None,
        )
        return ["c", facts, new.sizes], b"".join(new.parts)

    def writes_record(
        self,
        place: Place,
        task: tuple[str, str],
        invocation: str,
        writes: Iterable[tuple[int, str, Raw]],
    ) -> tuple[list[Any], bytes] | None:
        """Return header and payload of the next record, for writes; ``None`` if all are there.

        Args:
            place: of the checkpoint.
            task: its id and its path.
            writes: index, channel and value of each.
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
        return ["w", facts, new.sizes], b"".join(new.parts)

    def base_of(self, ns: str, parent: str) -> Stored | None:
        """Return the checkpoint that a child of it may build on."""
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
        """Return a stored value."""
        if isinstance(value, Items):
            return [self.blob(ref) for ref in value.refs()]
        if isinstance(value, dict):
            return {key: self.raw(each) for key, each in value.items()}
        return self.blob(value)

    def blob(self, ref: Ref) -> Blob:
        """Return the blob at a place."""
        blobs, index = self._blobs[ref[0]], ref[1]
        data, copied = blobs.get(index)
        if copied:
            number, other, start, at, size = copied
            whole, _ = self._blobs[number or ref[0]].get(other)
            data = data[:at] + whole[start : start + size] + data[at:]
        return blobs.sizes[index][0], data

    def has(self, ref: Ref) -> bool:
        """Return whether the records that hold a blob were read."""
        found = self._blobs.get(ref[0])
        return found is not None and all(
            number in self._blobs for number in found.sizes[ref[1]][2:3] if number
        )

    def newest_first(self, ns: str | None = None) -> Iterator[Stored]:
        """Yield the checkpoints of a namespace, or of all, by descending id."""
        wanted = [key for key in list(self.checkpoints) if ns in (None, key[0])]
        for key in sorted(wanted, key=lambda key: key[1], reverse=True):
            yield self.checkpoints[key]

    def pending(self, stored: Stored) -> list[tuple[WriteKey, StoredWrite]]:
        """Return the writes of a checkpoint, in the order in which LangGraph applies them."""
        found = self.writes.get((stored.ns, stored.id), {}).copy()
        return sorted(found.items(), key=lambda item: (item[1].path, *item[0]))

    def is_certain(self, stored: Stored) -> bool:
        """Return whether a checkpoint and all of its writes were read."""
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
        """Yield the records that hold some of the checkpoints and their writes in another thread.

        Args:
            into: takes them in.
            of_runs: they still belong to the invocations that made them.
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
        invocation = stored.invocation if of_runs else ""
        about = About(
            stored.ns, stored.id, stored.parent, stored.facts, stored.graph_run, invocation
        )
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
    """The blobs of the next record."""

    def __init__(self, thread: Thread) -> None:
        self._known, self._new = thread.known(), dict[bytes, Ref]()
        self._thread = thread
        self.sizes: list[list[Any]] = []
        self.parts: list[bytes] = []

    def append(self, blob: Blob) -> int:
        """Add a blob; return its index."""
        kind, data = blob
        copied: list[int] = []
        for ref in reversed(self._thread.recent) if len(data) >= _ALIKE else ():
            found = _common(data, self._thread.blob(ref)[1])
            if found is not None:
                start, at, size = found
                data, copied = data[:at] + data[at + size :], [*ref, start, at, size]
                break
        self.sizes.append([kind, len(data), *copied])
        self.parts.append(data)
        return len(self.sizes) - 1

    def put(self, raw: Raw, base: Value | None) -> list[Any]:
        """Add what no record holds yet of a value; return how the header names the value."""
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


def _common(data: bytes, other: bytes) -> tuple[int, int, int] | None:
    """Return where most of some bytes are in others: start there, start here, and size."""
    middle = len(data) // 2
    found = other.find(data[middle : middle + _SAMPLE])
    if found < 0:
        return None
    after = _same(data[middle:], other[found:])
    before = _same(data[:middle][::-1], other[:found][::-1])
    if 2 * (before + after) < len(data):
        return None
    return found - before, middle - before, before + after


def _same(one: bytes, other: bytes) -> int:
    """Return how many bytes are the same at the beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _updated(
    before: Mapping[str, Any], changed: Mapping[str, Any], gone: Collection[str]
) -> dict[str, Any]:
    now = {key: each for key, each in before.items() if key not in gone}
    now.update(changed)
    return now


def _runs(refs: list[Ref]) -> list[list[int]]:
    """Return places that follow each other as record, first index and count."""
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


def _changed(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    missing = object()
    return {key: each for key, each in now.items() if before.get(key, missing) != each}


def _digest(blob: Blob) -> bytes:
    kind, data = blob
    return hashlib.blake2b(data, digest_size=16, key=kind.encode()[:64]).digest()
