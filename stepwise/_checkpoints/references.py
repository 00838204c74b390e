"""Values that checkpoints store by reference: results in the journal, and chunks.

A *chunk* (``chunk/N`` beside the journal) holds a block of items of a long list, one large leaf, or
the bytes of a large buffer (of an array, say).  A large buffer is identified by its content.  A
chunk is written in the batch of the first checkpoint that needs it, and deleted in the batch that
prunes the last such checkpoint.  Chunk numbers are never reused.  A chunk may refer to results and
to other chunks.  Every chunk is sealed like a record.  A checkpoint records the links of all chunks
that it needs, so that it is restored from exactly these chunks or not at all.

New items of a growing list fill a chunk eight at a time.  Eight such chunks become one, up to 1 MB,
as in a log-structured merge tree: each item is written a few times at most.

A *known value* is a live value of the run that is already stored, so that checkpoints can refer to
the value.  It is the result of a step in the journal, or a chunk that a checkpoint made.  A value
that changed since it was stored is no longer known.  Every container is proved to be unchanged (see
``trees``), and a buffer is identified by its digest.  A mutable container belongs to one known
value only, so that shared objects stay shared.

At each checkpoint, the pickler of the variables calls :meth:`References.identity` for every object.
A node of a known value becomes a reference; a long list becomes its parts, chunks and the items in
between.  Buffers that pickle hands out are offered to :meth:`References.takes`.

Some hundred results that chunks refer to are watched together, as a *group*: one look takes some
nanoseconds for each slot.  Only if the look finds a change are the changed values searched for.  On
resume the records of a chunk are read, verified and loaded in one go, and form one group.  Each
payload is released once it is loaded, so that no value is in memory twice.

Rejected: one digest over a range of records in the chunk that refers to them (their bytes are no
longer at hand when the chunk is made; verifying takes 3 us of the 11 us that a result of 1 KB takes
on resume); one unpickler for many pickles (the places of objects in its memo go on counting);
loading a list when a statement first looks at it (no list can hide that it is not loaded yet).
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile
from typing import Any

from stepwise._checkpoints.resources import ids_of_made
from stepwise._journal.journal import rows_of
from stepwise._journal.seal import DamagedError, Envelope, Seal, named
from stepwise._runtime.facts import NamedTuple
from stepwise._values.codec import FindClass, dump_tree, load_trees
from stepwise._values.digest import held
from stepwise._values.trees import (
    BLOCK,
    NUMBERS,
    Tree,
    Watch,
    changes,
    few,
    is_array,
    is_view,
    same,
    starts_with,
    walk,
)
from stepwise._values.unpickling import Data, Pieces, stable
from stepwise.stores import Store

# -- chunks ---------------------------------------------------------------------------------------


_CHUNK = "chunk/"


class Chunk(NamedTuple):
    """A verified chunk: its bytes, and the records and chunks that its references name by index.

    ``content`` is the SHA-256 of a large buffer; empty for a pickle.
    """

    records: list[int]
    chunks: list[int]
    payload: Data
    link: bytes = b""
    content: bytes = b""

    def header(self) -> dict[str, Any]:
        """Return the header that is sealed with the payload."""
        if self.content:
            return {"content": self.content.hex()}
        return {"records": _pack(self.records), "chunks": _pack(self.chunks)}

    def seal(self, seal: Seal, run_id: str, number: int) -> tuple[Data, bytes]:
        """Return the sealed bytes of the chunk in a run, and the link to them."""
        name = named(chunk_name(number), run_id)
        return seal.close(name, self.header(), self.payload, digest=self.content)

    @classmethod
    def of(cls, opened: Envelope) -> Chunk:
        """Return the verified chunk that an envelope holds."""
        content = bytes.fromhex(opened.header.get("content", ""))
        records, chunks = (_unpack(opened.header.get(key, ())) for key in ("records", "chunks"))
        return cls(records, chunks, opened.payload, opened.link, content)


class Needs(NamedTuple):
    """The references of a checkpoint.

    Args:
        records: numbers of the records that its variables name by index.
        chunks: numbers of the chunks that its variables name by index.
        all_chunks: ``chunks`` and all chunks that these need in turn, sorted.
        links: a digest over the links of ``all_chunks``.
        lowest: the first record that the variables or chunks refer to; 0 for none.
        buffers: numbers of the chunks that hold its large buffers, in the order of the pickle.
    """

    records: list[int] = []  # noqa: RUF012
    chunks: list[int] = []  # noqa: RUF012
    all_chunks: list[int] = []  # noqa: RUF012
    links: str = ""
    lowest: int = 0
    buffers: list[int] = []  # noqa: RUF012

    def header(self) -> dict[str, Any]:
        """Return the references in the form for a checkpoint's header; empty if there are none."""
        if not self.records and not self.chunks:
            return {}
        header = {name: _pack(getattr(self, name)) for name in _PACKED}
        return {**header, "links": self.links, "lowest": self.lowest}

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Needs:
        """Return the references that :meth:`header` packed."""
        if not header:
            return cls()
        packed = {name: _unpack(header.get(name, ())) for name in _PACKED}
        return cls(**packed, links=header["links"], lowest=header["lowest"])


_PACKED = ("records", "chunks", "all_chunks", "buffers")
_NOTHING_NEEDED = Needs()


def chunk_name(number: int) -> str:
    """Return the name of a chunk in the store."""
    return f"{_CHUNK}{number:012d}"


def digest_of(links: Iterable[bytes]) -> str:
    """Return the digest that a checkpoint keeps over the links of its chunks."""
    return hashlib.sha256(b"".join(links)).hexdigest()


def _pack(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers, in their order, as runs: the first number of each run, and its length."""
    packed: list[list[int]] = []
    for number in numbers:
        if packed and number == packed[-1][0] + packed[-1][1]:
            packed[-1][1] += 1
        else:
            packed.append([number, 1])
    return packed


def _unpack(packed: Iterable[list[int]]) -> list[int]:
    """Return the numbers that :func:`_pack` packed."""
    return [number for first, count in packed for number in range(first, first + count)]


# -- reading -------------------------------------------------------------------------------------


class Vault:
    """The verified chunks and results of one run, each read once."""

    def __init__(self, store: Store, seal: Seal, run_id: str) -> None:
        self._store, self._seal, self._run_id = store, seal, run_id
        self._chunks: dict[int, Chunk | None] = {}
        self._records: dict[int, bytes | None] = {}

    def open(self, name: str) -> Envelope | None:
        """Return the opened envelope of a stored object of the run.

        Return ``None`` if the object is missing or does not verify.
        """
        return self._seal.opened(named(name, self._run_id), self._store.get(self._run_id, name))

    def numbers(self) -> list[int]:
        """Return the numbers of the stored chunks."""
        names = self._store.names(self._run_id, _CHUNK)
        return [int(name.removeprefix(_CHUNK)) for name in names]

    def holds(self, needs: Needs) -> bool:
        """Return whether everything that a checkpoint refers to is stored and verifies."""
        found = [self.chunk(number) for number in needs.all_chunks]
        chunks = [each for each in found if each is not None]
        if len(chunks) < len(found):
            return False
        if found and digest_of(each.link for each in chunks) != needs.links:
            return False
        records = {*needs.records, *(number for each in chunks for number in each.records)}
        self._read(records - self._records.keys())
        return all(self._records[number] is not None for number in records)

    def chunk(self, number: int) -> Chunk | None:
        """Return a chunk, or ``None`` if the chunk is missing or does not verify."""
        if number not in self._chunks:
            opened = self.open(chunk_name(number))
            self._chunks[number] = Chunk.of(opened) if opened is not None else None
        return self._chunks[number]

    def _read(self, numbers: Collection[int]) -> None:
        """Read and verify records; nearby records are read in one query."""
        self._records.update(dict.fromkeys(numbers))
        for first, last in _spans(sorted(numbers)):
            for number, data, name in rows_of(self._store, self._seal, self._run_id, first - 1):
                if number > last:
                    break
                if number not in numbers:
                    continue
                try:
                    payload = self._seal.payload(name, data)
                except DamagedError:
                    continue
                self._records[number] = payload

    def take(self, numbers: Collection[int]) -> Iterator[bytes]:
        """Yield the payloads of records that :meth:`holds` has verified, and release each of them.

        Raises:
            DamagedError: a record that had been released and was read again is damaged now.
        """
        self._read({each for each in numbers if each not in self._records})
        for number in numbers:
            payload = self._records.pop(number)
            if payload is None:
                raise DamagedError(f"record {number}")
            yield payload


_NEAR = 32  # records: reading so many extra ones takes less time than another query


def _spans(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each span of nearby numbers; the input is sorted."""
    first = last = 0
    for number in numbers:
        if first and number > last + _NEAR:
            yield first, last
            first = 0
        first, last = first or number, number
    if first:
        yield first, last


class StoredValue:
    """A value stored for the run, with its live objects in this process.

    Args:
        number: the number of the record, or minus the number of the chunk.
        tree: the live objects of the value.
        chunk: the chunk; only its link and content are kept here.
        depends: the values that a chunk refers to.

    Attributes:
        group: the group that watches the value; ``None`` if the value cannot change.
        chunks: the chunks in ``depends``.
        sealed: the sealed bytes of a chunk that is not in the store yet.
        holders: how many chunks refer to the value.
        lowest: the first record that a chunk refers to; 0 for none.
    """

    __slots__ = (
        *("chunk", "chunks", "depends", "group", "holders", "lowest", "number", "sealed", "tree"),
    )

    def __init__(
        self,
        number: int,
        tree: Tree,
        chunk: Chunk | None = None,
        depends: Sequence[StoredValue] = (),
    ) -> None:
        self.number = number
        self.tree = tree
        self.depends = depends
        self.group: Group | None = None
        self.holders = self.lowest = 0
        self.sealed: Data = b""
        self.chunks: Sequence[StoredValue] = ()
        self.chunk = chunk
        if chunk is not None:
            self.chunks = [each for each in depends if each.chunk is not None]
            self.lowest = min(chunk.records, default=0)
            self.chunk = chunk._replace(records=[], chunks=[], payload=b"")

    @property
    def link(self) -> bytes:
        """The link of the chunk; empty for a record."""
        return self.chunk.link if self.chunk is not None else b""

    @property
    def watched(self) -> Sequence[Any]:
        """The objects to watch: without the root list of a chunk, which no other code has."""
        return self.tree.nodes if self.chunk is None else self.tree.nodes[1:]

    @property
    def changes(self) -> bool:
        """True if the value can be changed in place."""
        return any(map(changes, self.watched))

    @classmethod
    def of_buffer(cls, number: int, chunk: Chunk) -> StoredValue:
        """Return a large buffer in a chunk; its content identifies it, so no object is watched."""
        return cls(-number, Tree(None), chunk)


class Group:
    """Stored values that are watched together: one look at all of them is a few calls in C.

    Args:
        watch: an earlier watch over the values; by default a new watch starts now.
    """

    __slots__ = ("numbers", "watch")

    def __init__(self, values: Collection[StoredValue] = (), watch: Watch | None = None) -> None:
        self.watch = watch or watch_over(values)
        self.numbers = {each.number for each in values}
        for each in values:
            each.group = self

    def take(self, value: StoredValue, watch: Watch) -> None:
        """Add a value that is watched already."""
        self.watch.extend(watch)
        self.numbers.add(value.number)
        value.group = self


def watch_over(values: Iterable[StoredValue]) -> Watch:
    """Return a watch over all objects of these values that can change."""
    return Watch(chain.from_iterable(each.watched for each in values))


class Reader:
    """The loader of the objects that one checkpoint refers to; each object is loaded once.

    Attributes:
        found: the loaded values by number; a value comes after the values that it depends on.
        groups: the groups that watch the loaded values.
        lists: the long lists, by their keys in the checkpoint.
        find: finds classes by module and name.
    """

    find: FindClass | None = None

    def __init__(self, vault: Vault, needs: Needs) -> None:
        self._vault, self._needs = vault, needs
        self.found: dict[int, StoredValue] = {}
        self.groups: list[Group] = []
        self.lists: dict[int, list[Any]] = {}
        self._values: list[StoredValue] | None = None  # by the indices of the checkpoint
        self._objects: dict[int, Mapping[int, Any]] = {}  # of values with classes, by place

    def load(self, reference: tuple[int, Any]) -> Any:
        """Resolve a reference: a node of a value, or a long list with its parts.

        See :meth:`stepwise._checkpoints.references.References.identity`.
        """
        if self._values is None:
            self._values = self._loaded()
        key, rest = reference
        if type(rest) is int:
            return self._nodes(self._values[key])[rest]
        found = self.lists.setdefault(key, []) if key >= 0 else []
        for part in rest or ():
            found.extend(self._values[part].tree.root if type(part) is int else part)
        return found

    def _loaded(self) -> list[StoredValue]:
        """Load all values in order, since a value may refer to earlier ones; return them."""
        collects = gc.isenabled()
        gc.disable()  # nothing that is loaded here is garbage, and there may be many objects
        try:
            buffers = set(self._needs.buffers)
            for number in self._needs.all_chunks:
                if number not in buffers:
                    self._load_chunk(number)
            for known in self._load_records(self._needs.records):
                self._watch([known])
        finally:
            if collects:
                gc.enable()
        return self._indexed(self._needs)

    def _indexed(self, names: Needs | Chunk) -> list[StoredValue]:
        """Return the values at the indices that references use; chunks have negative indices."""
        chunks = [self.found.get(-number) for number in reversed(names.chunks)]
        # No reference names a buffer, so a buffer may be missing.
        return [*(self.found[number] for number in names.records), *chunks]  # type: ignore[list-item]

    def buffers(self) -> Iterator[bytearray]:
        """Yield the large buffers in the order of the pickle, each as a new writable copy."""
        for number in self._needs.buffers:
            yield bytearray(bytes(self._buffer(number)))

    def _buffer(self, number: int) -> Data:
        chunk = self._vault.chunk(number)
        assert chunk is not None
        if -number not in self.found:
            self.found[-number] = StoredValue.of_buffer(number, chunk)
        return chunk.payload

    def _load_records(self, numbers: Iterable[int]) -> list[StoredValue]:
        """Load the records that are not loaded yet, and return their values."""
        new = [each for each in numbers if each not in self.found]
        trees = load_trees(self._vault.take(new), self.find)
        return [self._made(number, *each) for number, each in zip(new, trees, strict=True)]

    def _load_chunk(self, number: int) -> None:
        chunk = self._vault.chunk(number)
        assert chunk is not None
        new = self._load_records(chunk.records)
        depends = self._indexed(chunk)
        nodes = [*map(self._nodes, depends)]
        trees = load_trees((bytes(chunk.payload),), self.find, lambda pid: nodes[pid[0]][pid[1]])
        known = self._made(-number, *next(trees), chunk, depends)
        self._watch([*new, known])

    def _nodes(self, known: StoredValue) -> Mapping[int, Any] | Sequence[Any]:
        """Return the nodes of a value by their numbers."""
        return self._objects.get(known.number, known.tree.nodes)

    def _made(
        self,
        number: int,
        root: Any,
        objects: Mapping[int, Any] | None,
        chunk: Chunk | None = None,
        depends: Sequence[StoredValue] = (),
    ) -> StoredValue:
        known: set[int] = set()
        for each in depends:
            objects_of = self._objects.get(each.number)
            known.update(map(id, each.tree.nodes if objects_of is None else objects_of.values()))
        is_leaf = type(root) in (str, bytes)
        tree = leaf(root) if is_leaf else walk(root, known, arrays=True)
        if objects is not None:
            self._objects[number] = objects
            if tree is not None:
                tree = tree.numbered({id(each): place for place, each in objects.items()})
            if tree is None or -1 in tree.numbers:
                # Its classes are missing or made other objects: the value is written again.
                tree = Tree(root)
        assert tree is not None
        self.found[number] = value = StoredValue(number, tree, chunk, depends)
        return value

    def _watch(self, values: list[StoredValue]) -> None:
        """Watch values from now on, since other code may change them later."""
        for each in values:
            if not each.tree.nodes:
                self.groups.append(Group([each], Watch.broken()))
        mutable = [each for each in values if each.group is None and each.changes]
        if mutable:
            self.groups.append(Group(mutable))


# -- stored values --------------------------------------------------------------------------------


_WORTH = 512  # bytes: smaller results are not referred to
_MOST = 10_000  # objects: results with more are not referred to
_WAITING = 1 << 24  # bytes of results that wait for a checkpoint

_UNCHANGING = Watch()

Looked = tuple[Tree, Watch]
"""The tree of a value, and a watch over it, from just before the value is recorded."""


def leaf(value: str | bytes) -> Tree:
    """Return the tree of a text or of bytes: a single node."""
    facts = (value, (value,), len(value), False, (0,), ())
    return tuple.__new__(Tree, facts)  # the constructor is a Python function


def _dump(
    tree: Tree, watch: Watch, refer: Callable[[Any], Any] | None = None
) -> tuple[Data, Tree] | None:
    """Return the pickle of a tree, and the tree with its nodes numbered as in the pickle.

    Return ``None`` if pickling fails, or if the tree changes meanwhile: its classes may run code of
    their own.
    """
    places: dict[int, int] | None = {} if tree.classes else None
    try:
        payload = dump_tree(tree, refer, places)
    except Exception:  # a class's __reduce__; storing the value whole reports the error
        return None
    if not watch.holds():
        return None
    return payload, tree if places is None else tree.numbered(places)


class Indices:
    """The indices by which a checkpoint or chunk refers to values; chunks have negative indices."""

    __slots__ = ("chunks", "records")

    def __init__(self) -> None:
        self.records: dict[int, int] = {}
        self.chunks: dict[int, int] = {}

    def index(self, number: int) -> int:
        """Return the index of a known value; assign the next index if the value has none."""
        if number > 0:
            return self.records.setdefault(number, len(self.records))
        return -1 - self.chunks.setdefault(-number, len(self.chunks))


class KnownValues:
    """The known values of one run in this process.

    Args:
        records: whether checkpoints refer to records, which are never pruned then.
        seal: seals a chunk under its number; returns the sealed bytes and the link to them.
        next_chunk: returns the number for a new chunk.
        refuses: returns true for bytes that must not be stored.

    Attributes:
        node: takes the id of an object; returns the known value that has the object as a node, and
            the number of the node, or ``None``.
    """

    def __init__(
        self,
        *,
        records: bool,
        seal: Callable[[int, Chunk], tuple[Data, bytes]],
        next_chunk: Callable[[], int],
        refuses: Callable[[Data], object] = lambda _: False,
    ) -> None:
        self._refuses = refuses
        self._refers_to_records = records
        self._seal = seal
        self._next_chunk = next_chunk
        self._nodes: dict[int, tuple[StoredValue, int]] = {}
        self.node = self._nodes.get  # asked for every object that is pickled
        self._arrived: deque[tuple[int, Tree, Watch]] = deque()
        self._waiting = 0
        self._values: dict[int, StoredValue] = {}
        self._groups: set[Group] = set()
        self._newest = Group()  # takes values that chunks refer to, until it is large
        self._loose: dict[int, StoredValue] = {}  # records that no chunk refers to
        self._chunks: dict[int, StoredValue] = {}
        self._starts: dict[int, StoredValue] = {}  # the newest chunk by the id of its first item
        self._buffers: dict[bytes, StoredValue] = {}  # chunks by their content

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __contains__(self, here: int) -> bool:
        """Return whether the object with this id is a node of a known value."""
        return here in self._nodes

    def chunk(self, number: int) -> StoredValue:
        """Return the known chunk of this number."""
        return self._chunks[-number]

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays in known values."""
        for known in self._values.values():
            nodes = known.tree.nodes
            yield from (each for each in nodes if is_array(type(each)) and not is_view(each))

    def has(self, chunks: Iterable[StoredValue]) -> bool:
        """Return whether these chunks are all still known."""
        return all(each.number in self._chunks for each in chunks)

    def chunks_in(self, value: list[Any], at: int) -> list[tuple[int, StoredValue]]:
        """Return the places, from ``at`` on, of items that a chunk begins with, and the chunks."""
        starts, rest = self._starts, value[at:]
        if starts.keys().isdisjoint(map(id, rest)):
            return []
        places = enumerate(map(id, rest), at)
        return [(place, starts[here]) for place, here in places if here in starts]

    # -- stored values ---------------------------------------------------------------------------

    def look(self, result: object) -> Looked | None:
        """Capture a result before it is recorded; return ``None`` if none will refer to it."""
        if not self._refers_to_records or type(result) in NUMBERS:
            return None
        if type(result) in (str, bytes):
            tree = leaf(result)  # type: ignore[arg-type]
            return (tree, _UNCHANGING) if tree.size >= _WORTH else None
        found = walk(result, most=_MOST, arrays=True)
        if found is None or found.size < _WORTH or not found.nodes:
            return None
        return found, Watch(found.nodes)

    def recorded(self, number: int, looked: Looked) -> None:
        """Add a captured result that is now in the journal under this number."""
        self._arrived.append((number, *looked))
        self._waiting += looked[0].size
        while self._waiting > _WAITING and len(self._arrived) > 1:
            self._waiting -= self._arrived.popleft()[1].size

    def adopt(self, reader: Reader) -> None:
        """Mark the values that a restored checkpoint referred to as known."""
        if not self._refers_to_records and any(number > 0 for number in reader.found):
            return  # records may be pruned, so everything is written again, once
        for known in reader.found.values():
            self._add(known)
        self._groups.update(reader.groups)

    def _add(self, known: StoredValue) -> None:
        for index, node in zip(known.tree.numbers, known.tree.nodes, strict=True):
            if index >= 0:
                self._nodes.setdefault(id(node), (known, index))
        self._values[known.number] = known
        if known.chunk is None:
            self._loose[known.number] = known
            return
        self._chunks[known.number] = known
        if known.tree.root:
            self._starts[id(known.tree.root[0])] = known
        if known.chunk.content:
            self._buffers[known.chunk.content] = known
        for each in known.depends:
            each.holders += 1
            self._loose.pop(each.number, None)

    def _watch(self, known: StoredValue, watch: Watch) -> None:
        """Watch a new value, by a watch that began before the value was stored."""
        if known.changes:
            self._groups.add(Group([known], watch))

    def _join(self, known: StoredValue) -> None:
        """Watch a value that a chunk refers to together with others: it is seldom dropped.

        A group is watched anew whenever one of its values is dropped.
        """
        group = known.group
        if group is None or len(group.numbers) > 1 or group is self._newest:
            return
        if self._newest not in self._groups or self._newest.watch.count >= BLOCK:
            self._newest = Group()
            self._groups.add(self._newest)
        self._groups.discard(group)
        self._newest.take(known, group.watch)

    def drop(self, gone: Iterable[StoredValue]) -> None:
        """Forget known values, and the chunks that refer to them."""
        waiting, less = list(gone), set[Group]()
        while waiting:
            known = waiting.pop()
            if self._values.pop(known.number, None) is None:
                continue  # it was dropped before
            self._loose.pop(known.number, None)
            if known.chunk is not None:
                self._drop_chunk(known)
            for node in known.tree.nodes:
                if self._nodes.get(id(node), (None,))[0] is known:
                    del self._nodes[id(node)]
            if known.group is not None:
                known.group.numbers.remove(known.number)
                less.add(known.group)
            if known.holders:
                waiting.extend(c for c in self._chunks.values() if known in c.depends)
        for each in less:
            self._watch_less(each)

    def _drop_chunk(self, known: StoredValue) -> None:
        del self._chunks[known.number]
        if known.chunk is not None:
            self._buffers.pop(known.chunk.content, None)
        if known.tree.root and self._starts.get(id(known.tree.root[0])) is known:
            del self._starts[id(known.tree.root[0])]
        for each in known.depends:
            each.holders -= 1
            if not each.holders and each.chunk is None and each.number in self._values:
                self._loose[each.number] = each

    def _watch_less(self, group: Group) -> None:
        """Watch only the remaining values of a group, and drop the changed ones."""
        values = [self._values[number] for number in group.numbers]
        if not values:
            self._groups.discard(group)
            return
        before, group.watch = group.watch, watch_over(values)
        self.drop(_changed(values, before))  # they changed meanwhile, or before

    # -- while a checkpoint is taken -------------------------------------------------------------

    def update(self, apart: Container[int]) -> None:
        """Forget changed values, and add the results that have arrived.

        Args:
            apart: ids of mutable objects that no known value may hold.
        """
        self._forget_changed()
        lost = [each for each in self._buffers.values() if each.sealed]
        if lost:
            self.drop(lost)  # their checkpoint was not stored, and they may have changed
        while self._arrived:
            self._arrive(*self._arrived.popleft(), apart)
        self._waiting = 0

    def clear(self) -> None:
        """Forget everything."""
        self._arrived.clear()
        self._waiting = 0
        if self._values:
            self.drop([*self._values.values()])

    def _forget_changed(self) -> None:
        for group in [each for each in self._groups if not each.watch.holds()]:
            values = [self._values[number] for number in group.numbers]
            self.drop(_changed(values, group.watch))

    def _arrive(self, number: int, tree: Tree, watch: Watch, apart: Container[int]) -> None:
        mutable = [id(node) for node in tree.nodes if changes(node)]
        alone = not any(here in self._nodes or here in apart for here in mutable)
        if alone:
            dumped = _dump(tree, watch) if tree.classes else (b"", tree) if watch.holds() else None
            if dumped is not None and -1 not in dumped[1].numbers:
                known = StoredValue(number, dumped[1])
                self._add(known)
                self._watch(known, watch)

    def make(self, items: list[Any], apart: Container[int], least: int = 0) -> StoredValue | None:
        """Make a chunk of these items and return it.

        Return ``None`` if the items are not a tree, are too small, or must not be stored.

        Args:
            apart: ids of mutable objects that must not be in the chunk.
            least: how many bytes the items must take.
        """
        tree = walk(items, self._nodes, apart, arrays=True)
        if tree is None or tree.size < least:
            return None
        used = Indices()
        depends: dict[int, StoredValue] = {}

        def refer(value: Any) -> tuple[int, int] | None:
            entry = self._nodes.get(id(value))
            if entry is None:
                return None
            depends[entry[0].number] = entry[0]
            return used.index(entry[0].number), entry[1]

        watch = Watch(tree.nodes[1:])  # no other code has the list
        dumped = _dump(tree, watch, refer if tree.refers or tree.arrays else None)
        if dumped is None or self._refuses(dumped[0]):
            return None
        payload, tree = dumped
        number, sealed, chunk = self._sealed(Chunk(list(used.records), list(used.chunks), payload))
        known = StoredValue(-number, tree, chunk, tuple(depends.values()))
        known.sealed = sealed
        loose = [each for each in known.depends if each.number in self._loose]
        self._add(known)
        self._watch(known, watch)
        for each in loose:
            self._join(each)
        return known

    def buffer(self, content: bytes) -> StoredValue | None:
        """Return the large buffer with this SHA-256, or ``None`` if no such buffer is known."""
        return self._buffers.get(content)

    def make_buffer(self, data: Data, content: bytes) -> StoredValue | None:
        """Make a chunk of a large buffer with the SHA-256 ``content``; return ``None`` if refused.

        The caller passes the digest, so that the bytes are hashed once.
        """
        if self._refuses(data):
            return None
        number, sealed, chunk = self._sealed(Chunk([], [], data, content=content))
        known = StoredValue.of_buffer(number, chunk)
        known.sealed = sealed
        self._add(known)
        return known

    def _sealed(self, chunk: Chunk) -> tuple[int, Data, Chunk]:
        """Return the number of a new chunk, its sealed bytes, and the entry to keep."""
        number = self._next_chunk()
        sealed, link = self._seal(number, chunk)
        return number, sealed, chunk._replace(link=link, payload=b"")

    def keep(self, records: Container[int], chunks: Container[int]) -> None:
        """Forget the chunks and unused records that the stored checkpoint does not need."""
        gone = [each for each in self._chunks.values() if -each.number not in chunks]
        gone += [e for e in self._loose.values() if not e.holders and e.number not in records]
        self.drop(gone)


def _changed(values: Iterable[StoredValue], watch: Watch) -> list[StoredValue]:
    """Return the values that have changed since a watch began; all if the watch is broken."""
    if watch.holds():
        return []
    changed = watch.changed()
    if not changed:  # a thread changed a dict as the watch began, so the watch saw nothing
        return [*values]
    return [each for each in values if not changed.isdisjoint(map(id, each.watched))]


# -- references -----------------------------------------------------------------------------------


HEAVY = 1 << 15
"""Bytes: list items of at least this size go into a chunk even if they are few."""

_LONG = 16  # items: lists of at least this length are split
_GROUP = 8  # items in a small chunk; also the number of chunks that are merged into one
_BLOCK = 64  # items in a chunk when many are new; more if they are small
_LARGEST = 1 << 20  # bytes in a merged chunk
_FEW = 4  # items: lists of at least this length may be heavy
_LEAF = 1 << 14  # bytes: such a leaf or buffer goes into a chunk when it is met a second time
_LOOK = 300  # objects to examine in the search for long lists and large leaves
_ITERATORS: tuple[Any, ...] = (type(iter([])), type(iter(())), enumerate)


class _LongList:
    """A long list that is split into chunks and the items in between.

    Attributes:
        key: the key by which a checkpoint names the list.
        parts: chunks, and lists of the items in between.
    """

    def __init__(self, value: list[Any]) -> None:
        self.value = value
        self.key = 0
        self.parts: list[StoredValue | list[Any]] = []
        self.begins: list[Any] = []  # the items of the leading chunks
        self.met = False

    @property
    def first(self) -> list[StoredValue]:
        """The leading chunks of the list."""
        return [*takewhile(_is_chunk, self.parts)]  # type: ignore[list-item]

    @property
    def _end(self) -> int:
        """The index behind the last chunk."""
        return len(self.parts) - (bool(self.parts) and isinstance(self.parts[-1], list))

    def group(self) -> list[StoredValue]:
        """Return the last chunks if one chunk should replace them, or an empty list."""
        last = self.parts[max(0, self._end - _GROUP) : self._end]
        chunks = [part for part in last if not isinstance(part, list)]
        if len(chunks) < _GROUP or sum(each.tree.size for each in chunks) > _LARGEST:
            return []
        counts = [len(each.tree.root) for each in chunks]
        return chunks if max(counts) < _GROUP * min(counts) else []

    def replace(self, group: list[StoredValue], part: StoredValue | list[Any]) -> None:
        """Replace the last group of chunks with one part."""
        self.parts[self._end - len(group) : self._end] = [part]

    def append(self, part: StoredValue | list[Any]) -> None:
        """Add a part at the end."""
        if type(part) is not list and all(map(_is_chunk, self.parts)):
            self.begins += part.tree.root  # type: ignore[union-attr]
        self.parts.append(part)


def _is_chunk(part: object) -> bool:
    return type(part) is not list


def _ends_of(lists: Iterable[list[Any]]) -> set[int]:
    """Return the ids of lists, and of their first and last items."""
    ends: set[int] = set()
    for each in lists:
        ends.update(map(id, (each, *each[:_GROUP], *each[-_GROUP:])))
    return ends


class _Content:
    """A placeholder that gives a pickler the contents of a long list."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class References:
    """The references of one run's checkpoints in this process."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._lists: dict[int, _LongList] = {}
        self._again: list[list[Any]] = []  # lists that existed at the last checkpoint
        self._once: list[list[Any]] = []  # new lists
        self._guessed: set[int] = set()  # ids of lists that may be in the variables
        self._elsewhere: dict[int, list[Any]] = {}  # found, but not pickled: a client's, say
        self._ends: set[int] = set()  # ids of the lists found, and of their end items
        self._leaves: dict[int, Any] = {}
        self._apart: set[int] = set()
        self._used = Indices()
        self._buffers: list[int] = []
        self._met: set[bytes] = set()  # digests of buffers
        self._meeting: set[bytes] = set()
        self._is_empty = True  # as prepare_none() leaves it

    def __bool__(self) -> bool:
        return bool(self._known)

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays that a reference may replace."""
        return self._known.arrays()

    # -- before the variables are pickled --------------------------------------------------------

    def prepare(self, values: Iterable[Any], arguments: Iterable[Any]) -> None:
        """Find the parts of the variables that need not be written again.

        Args:
            arguments: objects that the next call passes again; no known value may hold them.
        """
        self._is_empty = False
        values, arguments = list(values), list(arguments)
        self._apart = {*map(id, arguments), *ids_of_made()}  # a resuming run gets these anew
        self._known.update(self._apart)
        leaves, lists = self._find([*values, *arguments])
        hidden = self._hidden(lists)
        self._guessed = set(map(id, hidden))
        lists += hidden
        self._apart.update(id(found) for found in lists if len(found) >= _LONG)
        self._meet(lists)
        before, self._lists = self._lists, {}
        for found in self._again:
            if len(found) >= _LONG:
                self._split(found, before.get(id(found)))
        for leaf in leaves:
            if id(leaf) in self._leaves or len(leaf) > _LARGEST:
                self._known.make([leaf], self._apart)
        self._leaves = {id(leaf): leaf for leaf in leaves}
        self._met, self._meeting = self._meeting, set()

    def prepare_none(self) -> None:
        """Forget all known values, so that the variables are written whole."""
        self._known.clear()
        if self._is_empty:
            return
        self._is_empty = True
        self._used, self._buffers = Indices(), []
        self._lists.clear()
        self._once.clear()
        self._ends.clear()
        self._leaves.clear()
        self._meeting.clear()

    def restored(self, values: Iterable[Any], arguments: Iterable[Any]) -> None:
        """Remember the lists in variables that a checkpoint has just restored."""
        self._is_empty = False
        self._ends = _ends_of(self._find([*values, *arguments])[1])

    def _meet(self, lists: list[list[Any]]) -> None:
        """Separate the lists that existed at the last checkpoint from new ones.

        Splitting a list takes several times as long as writing it (measured), and many lists that a
        program makes for one step never appear again.
        """
        met, self._ends = self._ends, _ends_of(lists)
        self._again, self._once = [], []
        for each in lists:
            again = (
                id(each) in met
                or not met.isdisjoint(map(id, each))
                or self._known.chunks_in(each, 0)
            )
            (self._again if again else self._once).append(each)

    def _hidden(self, lists: list[list[Any]]) -> list[list[Any]]:
        """Return lists of the last search that are missing now but still held, say by a large dict.

        A variable may name such a list at one checkpoint only, while all later checkpoints still
        contain the list.
        """
        here = set(map(id, lists))
        once = [each for each in self._once if id(each) not in here and id(each) not in self._known]
        self._once.clear()
        once.append([])  # held by nothing else
        *counts, alone = map(sys.getrefcount, once)
        return [
            each for each, count in zip(once, counts, strict=False) if count > alone + held(each)
        ]

    def _find(self, values: Iterable[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Search the nearest ``_LOOK`` objects; return large leaves, and lists that may be long."""
        leaves: dict[int, Any] = {}
        lists: dict[int, list[Any]] = {}
        waiting = deque(values)
        for _ in range(_LOOK):
            if not waiting:
                break
            value = waiting.popleft()
            cls = type(value)
            if cls in (str, bytes):
                if len(value) >= _LEAF and id(value) not in self._known:
                    leaves[id(value)] = value
            elif cls is list:
                if id(value) in lists or id(value) in self._known:
                    continue
                if len(value) >= _FEW:
                    lists[id(value)] = value
                if len(value) < _LONG:
                    waiting.extend(value)
            elif cls is dict:
                if id(value) not in self._known:
                    newest = len(value) if len(value) < _BLOCK else _GROUP
                    waiting.extend(islice(reversed(value.values()), newest))
            elif cls in _ITERATORS or (cls.__module__ != "builtins" and not issubclass(cls, type)):
                waiting.extend(gc.get_referents(value))  # attributes; no code of the object runs
        found = [each for each in lists.values() if id(each) not in self._elsewhere]
        return list(leaves.values()), found

    def _split(self, value: list[Any], before: _LongList | None, *, heavy: bool = False) -> bool:
        """Split a list into chunks and the items in between; return whether a chunk was made."""
        long, at = _LongList(value), 0
        first = before.first if before is not None else []
        if before is not None and self._known.has(first):
            at = sum(len(each.tree.root) for each in first)
            del before.begins[at:]  # left by a checkpoint that was not taken
            if starts_with(value, before.begins):
                long.parts, long.begins = [*first], before.begins
            else:
                at = 0
        made = False
        for start, known in self._known.chunks_in(value, at):
            items = known.tree.root
            if start >= at and same(items, value[start : start + len(items)]):
                made |= self._put(long, value[at:start], heavy=heavy)
                long.append(known)
                at = start + len(items)
        made |= self._put(long, value[at:], heavy=heavy)
        if not heavy:
            self._gather(long)
        if any(map(_is_chunk, long.parts)):
            known_as = self._lists.get(id(value))
            long.key = known_as.key if known_as is not None else len(self._lists)
            self._lists[id(value)] = long
        return made

    def _put(self, long: _LongList, items: list[Any], *, heavy: bool) -> bool:
        """Put new items into chunks, except the last few; return whether a chunk was made."""
        made, at, block = False, 0, _BLOCK
        while at < len(items):
            some = items[at : at + block]
            if len(some) < block and not heavy:
                some = some[: _BLOCK if len(some) >= _BLOCK else _GROUP]
            at += len(some)
            known = None
            if heavy or len(some) > _GROUP or (len(some) == _GROUP and not few(some)):
                known = self._known.make(some, self._apart, HEAVY if heavy else 0)
            if known is not None:
                made = True
                long.append(known)
                larger = _BLOCK * _GROUP
                block = larger if known.tree.size * larger <= _LARGEST * len(some) else _BLOCK
            elif long.parts and type(long.parts[-1]) is list:
                long.parts[-1].extend(some)
            else:
                long.append(some)
        return made

    def _gather(self, long: _LongList) -> None:
        """Merge the last chunks of a list while enough of them have about the same length.

        Each item is written only a few times, and a checkpoint names few chunks.
        """
        while group := long.group():
            named = [part for each in (*self._lists.values(), long) for part in each.parts]
            if any(each.holders or named.count(each) > 1 for each in group):
                return  # another chunk or list refers to this chunk
            items = [*chain.from_iterable(each.tree.root for each in group)]
            self._known.drop(group)
            long.replace(group, self._known.make(items, self._apart) or items)

    def split_heavy(self) -> bool:
        """Put heavy list items into chunks; return whether a chunk was made.

        For variables that are still large after :meth:`prepare`.
        """
        before = dict(self._lists)
        found = [self._split(each, before.get(id(each)), heavy=True) for each in self._again]
        if not any(found):
            self._lists = before  # as they were pickled
        return any(found)

    # -- while they are pickled ------------------------------------------------------------------

    def begin(self) -> None:
        """Discard the references used so far: pickling the variables starts again."""
        self._used, self._buffers = Indices(), []
        for each in self._lists.values():
            each.met = False

    def identity(self, value: Any) -> tuple[int, Any] | None:
        """Return the reference that replaces an object in the pickle, or ``None``.

        For a node of a known value: the index of the value in the checkpoint (negative for a
        chunk), and the number of the node.  For a long list: its key and, the first time, its
        parts: indices and lists of items.
        """
        here = id(value)
        entry = self._known.node(here)
        if entry is not None:
            return self._used.index(entry[0].number), entry[1]
        long = self._lists.get(here)
        if long is not None:
            if long.met:
                return long.key, None
            return long.key, self._parts(long)
        return (-1, value.parts) if type(value) is _Content else None

    def content(self, value: list[Any]) -> Any:
        """Return the contents of a list as a separate value for a pickler."""
        long = self._lists.get(id(value))
        return list(value) if long is None else _Content(self._parts(long))

    def takes(self, raw: memoryview) -> bool:
        """Return whether a chunk holds the bytes of a buffer, so that the pickle omits them."""
        if len(raw) < _LEAF:
            return False
        content = hashlib.sha256(raw).digest()
        self._meeting.add(content)
        known = self._known.buffer(content)
        if known is None and (len(raw) > _LARGEST or content in self._met):
            kept = stable(raw)
            if kept is not raw:  # the buffer may have changed since it was hashed
                content = hashlib.sha256(kept).digest()
            known = self._known.make_buffer(Pieces([kept]), content)
        if known is None:
            return False
        self._used.index(known.number)
        self._buffers.append(-known.number)
        return True

    def _parts(self, long: _LongList) -> list[Any]:
        long.met = True
        return [
            part if type(part) is list else self._used.index(part.number)  # type: ignore[union-attr]
            for part in long.parts
        ]

    # -- afterwards ------------------------------------------------------------------------------

    def needs(self) -> tuple[Needs, dict[int, Data]]:
        """Return the references of the pickled variables, and the chunks that must be stored."""
        if self._is_empty:
            return _NOTHING_NEEDED, {}
        found = {number: self._known.chunk(number) for number in self._used.chunks}
        waiting = list(found.values())
        while waiting:
            for each in waiting.pop().chunks:
                if -each.number not in found:
                    found[-each.number] = each
                    waiting.append(each)
        every, records = sorted(found), list(self._used.records)
        links = digest_of(found[number].link for number in every) if every else ""
        lowest = min(filter(None, (*records, *(each.lowest for each in found.values()))), default=0)
        needs = Needs(records, list(self._used.chunks), every, links, lowest, self._buffers)
        return needs, {number: found[number].sealed for number in every if found[number].sealed}

    def stored(self, needs: Needs) -> None:
        """Release everything that the stored checkpoint does not refer to."""
        if self._is_empty:
            return
        for here, long in self._lists.items():
            if not long.met and here not in self._guessed:
                self._elsewhere[here] = long.value
        for number in needs.all_chunks:
            self._known.chunk(number).sealed = b""
        self._known.keep(set(needs.records), set(needs.all_chunks))


class ResultReferences(References):
    """References to recorded results alone, for values that are kept longer than any chunk."""

    def arrays(self) -> Iterator[Any]:
        """Return no array: a view of a recorded array is written as an array of its own."""
        return iter(())

    def identity(self, value: Any) -> tuple[int, Any] | None:
        """Return the reference that replaces a part of a recorded result, or ``None``."""
        entry = self._known.node(id(value))
        if entry is None or entry[0].number < 0:
            return None
        return self._used.index(entry[0].number), entry[1]

    def takes(self, raw: memoryview) -> bool:
        """Return that no chunk holds the bytes."""
        return False

    @property
    def records(self) -> list[int]:
        """The numbers of the records that the pickle names by index."""
        return list(self._used.records)
