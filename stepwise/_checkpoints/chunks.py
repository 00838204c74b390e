"""Values that checkpoints store by reference: results in the journal, and chunks.

A *chunk* (``chunk/N`` beside the journal) holds a block of items of a long list, one large leaf, or
the bytes of a large buffer (of an array, say), which is known by its content.  It is written in the
batch of the first checkpoint that needs it, and deleted in that which prunes the last one.  Its
number is never used again.  A chunk refers in its turn to results and to chunks.  Every one is
sealed like a record; a checkpoint knows the links of all chunks that it needs, so that it is
restored from exactly these or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from stepwise._journal.journal import identity
from stepwise._journal.seal import DamagedError, Envelope, Seal
from stepwise._runtime.facts import NamedTuple
from stepwise._values.buffers import Data
from stepwise._values.pickling import FindClass, load_tree
from stepwise._values.trees import Tree, Watch, walk
from stepwise.stores import Store

__all__ = [
    "NO_NEEDS",
    "Chunk",
    "Needs",
    "Reader",
    "StoredValue",
    "Vault",
    "chunk_name",
    "digest_of",
]

_CHUNK = "chunk/"


class Chunk(NamedTuple):
    """A verified chunk: the records and chunks that its references name by index, and its bytes.

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
        """Its sealed bytes in a run, and the link to them."""
        name = f"{chunk_name(number)}/{run_id}"
        return seal.close(name, self.header(), self.payload, digest=self.content)

    @classmethod
    def of(cls, opened: Envelope) -> Chunk:
        """The verified chunk in an envelope."""
        content = bytes.fromhex(opened.header.get("content", ""))
        records, chunks = (_unpack(opened.header.get(key, ())) for key in ("records", "chunks"))
        return cls(records, chunks, opened.payload, opened.link, content)


class Needs(NamedTuple):
    """The references of a checkpoint.

    Args:
        records: numbers of the records that its variables name by index.
        chunks: numbers of the chunks that they do.
        all_chunks: these and the chunks that they need, sorted.
        links: a digest over the links of all of them.
        lowest: the first record that any of it refers to; 0 for none.
        buffers: numbers of the chunks that hold its large buffers, in the order of the pickle.
    """

    records: list[int] = []  # noqa: RUF012
    chunks: list[int] = []  # noqa: RUF012
    all_chunks: list[int] = []  # noqa: RUF012
    links: str = ""
    lowest: int = 0
    buffers: list[int] = []  # noqa: RUF012

    def header(self) -> dict[str, Any]:
        """The same for a header; empty if there is nothing."""
        if not self.records and not self.chunks:
            return {}
        header = {name: _pack(getattr(self, name)) for name in _PACKED}
        return {**header, "links": self.links, "lowest": self.lowest}

    def text(self) -> str:
        """Return the header as JSON, byte for byte as ``json`` writes it."""
        if not self.records and not self.chunks:
            return "{}"
        facts = [f'"{name}":{_packed_text((*getattr(self, name),))}' for name in _PACKED]
        return f'{{{",".join(facts)},"links":"{self.links}","lowest":{self.lowest}}}'

    def along_with(self, records: list[int], buffers: list[int]) -> Needs:
        """Add records and buffers to references that name only chunks."""
        if not records and not buffers:
            return self
        lowest = min(filter(None, (self.lowest, *records)), default=0)
        return self._replace(records=records, lowest=lowest, buffers=buffers)

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Needs:
        """The inverse of :meth:`header`."""
        if not header:
            return cls()
        packed = {name: _unpack(header.get(name, ())) for name in _PACKED}
        return cls(**packed, links=header["links"], lowest=header["lowest"])


NO_NEEDS = Needs()
_PACKED = ("records", "chunks", "all_chunks", "buffers")


def chunk_name(number: int) -> str:
    """Under which a chunk lies in the store."""
    return f"{_CHUNK}{number:012d}"


def digest_of(links: Iterable[bytes]) -> str:
    """Return the digest that a checkpoint keeps over the links of its chunks."""
    return hashlib.sha256(b"".join(links)).hexdigest()


def _pack(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers in their order, as first and count of those that follow each other."""
    packed: list[list[int]] = []
    for number in numbers:
        if packed and number == packed[-1][0] + packed[-1][1]:
            packed[-1][1] += 1
        else:
            packed.append([number, 1])
    return packed


@lru_cache(64)  # a checkpoint mostly refers to what the one before it did
def _packed_text(numbers: tuple[int, ...]) -> str:
    return str(_pack(numbers)).replace(" ", "")


def _unpack(packed: Iterable[list[int]]) -> list[int]:
    """The inverse of :func:`_pack`."""
    return [number for first, count in packed for number in range(first, first + count)]


# -- reading -------------------------------------------------------------------------------------


class Vault:
    """The verified chunks and results of one run, each read once."""

    def __init__(self, store: Store, seal: Seal, run_id: str) -> None:
        self._store, self._seal, self._run_id = store, seal, run_id
        self._chunks: dict[int, Chunk | None] = {}
        self._records: dict[int, bytes | None] = {}

    def open(self, name: str) -> Envelope:
        """An object of the run.

        Raises:
            DamagedError: it is not there or does not verify.
        """
        sealed = self._store.get(self._run_id, name) or b""
        return self._seal.open(f"{name}/{self._run_id}", sealed)

    def needs(self, checkpoint: str) -> Needs:
        """Return the references of a checkpoint; none if it does not verify."""
        try:
            return Needs.of(self.open(checkpoint).header.get("needs", {}))
        except DamagedError:
            return Needs()

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
        self._read(sorted(records - self._records.keys()))
        return all(self._records[number] is not None for number in records)

    def chunk(self, number: int) -> Chunk | None:
        """A chunk; ``None`` if it is not there or does not verify."""
        if number not in self._chunks:
            try:
                opened = self.open(chunk_name(number))
            except DamagedError:
                self._chunks[number] = None
            else:
                self._chunks[number] = Chunk.of(opened)
        return self._chunks[number]

    def _read(self, numbers: list[int]) -> None:
        """Verify records; the store reads those that follow each other at once."""
        self._records.update(dict.fromkeys(numbers))
        for first, count in _pack(numbers):
            for number, data in self._store.read(self._run_id, after=first - 1):
                if number >= first + count:
                    break
                try:
                    opened = self._seal.open(identity(self._run_id, number), data)
                except DamagedError:
                    continue
                self._records[number] = opened.payload

    def record(self, number: int) -> bytes:
        """The payload of a record that :meth:`holds` has found."""
        payload = self._records[number]
        assert payload is not None
        return payload


class StoredValue:
    """A value stored for the run, and its look when it was stored.

    Args:
        number: of the record; negative: of the chunk.
        tree: the value as it lives in this process.
        watch: whether it still is what was stored.
        chunk: for a chunk, what is stored, without its bytes.
        depends: the values that a chunk refers to.

    Attributes:
        chunks: those of ``depends`` that are chunks.
        sealed: the bytes of a chunk that is not in the store yet.
        holders: how many chunks refer to it.
        lowest: the first record that a chunk refers to; 0 for none.
        members: of a chunk, the records that are watched together with it.
    """

    __slots__ = (
        "chunk",
        "chunks",
        "depends",
        "group",
        "holders",
        "lowest",
        "members",
        "number",
        "sealed",
        "tree",
        "watch",
    )

    @property
    def link(self) -> bytes:
        """The link of the chunk; empty for a record."""
        return self.chunk.link if self.chunk is not None else b""

    def __init__(
        self,
        number: int,
        tree: Tree,
        watch: Watch,
        chunk: Chunk | None = None,
        depends: tuple[StoredValue, ...] = (),
    ) -> None:
        self.number = number
        self.tree = tree
        self.watch = watch
        self.chunk = chunk
        self.depends = depends
        self.chunks = [each for each in depends if each.chunk is not None]
        self.sealed: Data = b""
        self.holders = 0
        self.lowest = min(chunk.records, default=0) if chunk is not None else 0
        self.members: list[StoredValue] = []
        self.group = watch

    @classmethod
    def of_buffer(cls, number: int, chunk: Chunk) -> StoredValue:
        """A large buffer in a chunk: it is known by its content, and nothing lives here."""
        return cls(-number, Tree(None), Watch(), chunk._replace(payload=b""))


class Reader:
    """Returns the objects that one checkpoint refers to, each as one object.

    Attributes:
        found: those that were loaded, by number; what a value depends on comes before it.
        lists: the long lists, by the key that the checkpoint gives them.
        find: finds classes by module and name.
    """

    find: FindClass | None = None

    def __init__(self, vault: Vault, needs: Needs) -> None:
        self._vault, self._needs = vault, needs
        self.found: dict[int, StoredValue] = {}
        self.lists: dict[int, list[Any]] = {}
        self._nodes: dict[int, Mapping[int, Any]] = {}  # of each value, by their numbers

    def load(self, reference: tuple[int, Any]) -> Any:
        """Resolve a reference: a node of a value, or a long list with its parts.

        See :meth:`stepwise._checkpoints.references.References.identity`.
        """
        self._load_chunks()
        key, rest = reference
        if type(rest) is int:
            return self._nodes[self._known(self._needs, key).number][rest]
        found = self.lists.setdefault(key, []) if key >= 0 else []
        for part in rest or ():
            chunk = self._known(self._needs, part) if type(part) is int else None
            found.extend(chunk.tree.root if chunk is not None else part)
        return found

    def _load_chunks(self) -> None:
        if not self._nodes:  # one after the other, since each may refer to those before it
            buffers = set(self._needs.buffers)
            for number in self._needs.all_chunks:
                if number not in buffers:
                    self._found(-number)

    def put_together(self, parts: Iterable[Any]) -> list[Any]:
        """Return a list made of its parts; see :class:`stepwise._checkpoints.references.Apart`."""
        self._load_chunks()
        made: list[Any] = []
        for part in parts:
            if type(part) is int:
                made += self._known(self._needs, part).tree.root
            elif type(part) is list:
                made += part
            elif type(part[0]) is dict:
                item, references = part
                item.update((key, self.load(each)) for key, each in references.items())
                made.append(item)
            else:
                made.append(self.load(part))
        return made

    def buffers(self) -> Iterator[bytearray]:
        """The large buffers, in the order of the pickle: each a new one, that may be written."""
        for number in self._needs.buffers:
            yield bytearray(bytes(self._buffer(number)))

    def _buffer(self, number: int) -> Data:
        chunk = self._vault.chunk(number)
        assert chunk is not None
        if -number not in self.found:
            self.found[-number] = StoredValue.of_buffer(number, chunk)
        return chunk.payload

    def _known(self, names: Needs | Chunk, index: int) -> StoredValue:
        return self._found(names.records[index] if index >= 0 else -names.chunks[-1 - index])

    def _found(self, number: int) -> StoredValue:
        if number not in self.found:
            known = self._record(number) if number > 0 else self._chunk(number)
            self.found[number] = known
        return self.found[number]

    def _record(self, number: int) -> StoredValue:
        return self._made(number, *load_tree(self._vault.record(number), find=self.find))

    def _chunk(self, number: int) -> StoredValue:
        chunk = self._vault.chunk(-number)
        assert chunk is not None
        depends: dict[int, StoredValue] = {}

        def resolve(reference: tuple[int, int]) -> Any:
            known = self._known(chunk, reference[0])
            depends[known.number] = known
            return self._nodes[known.number][reference[1]]

        loaded = load_tree(bytes(chunk.payload), resolve, self.find)
        return self._made(number, *loaded, chunk._replace(payload=b""), tuple(depends.values()))

    def _made(
        self,
        number: int,
        root: Any,
        objects: Mapping[int, Any] | None,
        chunk: Chunk | None = None,
        depends: tuple[StoredValue, ...] = (),
    ) -> StoredValue:
        known = {id(node) for each in depends for node in self._nodes[each.number].values()}
        tree = walk(root, known)
        if objects is not None:
            self._nodes[number] = objects
            if tree is not None:
                tree = tree.numbered({id(each): place for place, each in objects.items()})
            if tree is None or -1 in tree.numbers:
                # Its classes are not here, or made more of it than there was: it is written again.
                return StoredValue(number, Tree(root), Watch.broken(), chunk, depends)
        assert tree is not None
        if objects is None:
            self._nodes[number] = dict(zip(tree.numbers, tree.nodes, strict=True))
        watched = tree.nodes if chunk is None else tree.nodes[1:]  # nobody else has its list
        return StoredValue(number, tree, Watch(watched), chunk, depends)
