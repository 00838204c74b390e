"""The live values of a run that are already stored, so that checkpoints can refer to them.

Known are the results of steps, which the journal holds, and the chunks that checkpoints made of
long lists, large leaves and large buffers.  Whatever was changed since it was stored is known no
more; that is proved for every container (see ``trees``), and a buffer is known by its digest.  A
mutable container belongs to one known value only, so that what is shared stays shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from stepwise._checkpoints.chunks import Chunk, Reader, StoredValue
from stepwise._values.buffers import Data
from stepwise._values.pickling import dump_tree
from stepwise._values.trees import NUMBERS, Tree, Watch, changes, walk

__all__ = ["Indices", "KnownValues", "Looked"]

_WORTH = 512  # bytes: results below that are not referred to
_MOST = 10_000  # objects in a result that is
_WAITING = 1 << 24  # bytes of results that wait for a checkpoint

_LEAF = Watch.over(())

Looked = tuple[Tree, Watch]
"""The look of a value when it was recorded."""


def _dump(
    tree: Tree, watch: Watch, refer: Callable[[Any], Any] | None = None
) -> tuple[Data, Tree] | None:
    """The pickle of a tree, and its nodes with the numbers that they have in that.

    ``None`` if it cannot be pickled as it is: its classes may have a say in that.
    """
    places: dict[int, int] | None = {} if tree.classes else None
    try:
        payload = dump_tree(tree.root, refer, places)
    except Exception:  # somebody's __reduce__; the value is stored whole, which reports it
        return None
    if places is None:
        return payload, tree
    return (payload, tree.numbered(places)) if watch.holds() else None


class Indices:
    """The indices by which a checkpoint or chunk refers to others; those of chunks are negative."""

    __slots__ = ("chunks", "records")

    def __init__(self) -> None:
        self.records: dict[int, int] = {}
        self.chunks: dict[int, int] = {}

    def index(self, number: int) -> int:
        """Return the index of a known value; assign the next one if it has none."""
        if number > 0:
            return self.records.setdefault(number, len(self.records))
        return -1 - self.chunks.setdefault(-number, len(self.chunks))


class KnownValues:
    """The known values of one run in this process.

    Args:
        records: whether checkpoints refer to records; then these are never pruned.
        seal: seals a chunk under its number; its bytes and the link to it.
        next_chunk: a number for a new chunk.
        refuses: says of bytes whether they must not be stored.

    Attributes:
        node: the known value that the object with an id is a node of, and the number of the node in
            it; ``None`` for others.
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
        self._loose: dict[int, StoredValue] = {}  # records that are not watched with a chunk
        self._chunks: dict[int, StoredValue] = {}
        self._starts: dict[int, StoredValue] = {}  # the newest chunk by the id of its first item
        self._buffers: dict[bytes, StoredValue] = {}  # chunks by their content
        self._all = Watch()  # over all chunks, with their members
        self._all_loose = Watch()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __contains__(self, here: int) -> bool:
        """Return whether the object with this id is a node of a known value."""
        return here in self._nodes

    @property
    def chunks(self) -> int:
        """Return the number of known chunks."""
        return len(self._chunks)

    def which(self, ids: Mapping[int, Any]) -> set[int]:
        """Return the ids, of these, that are those of nodes of known values."""
        return self._nodes.keys() & ids.keys()

    def chunk(self, number: int) -> StoredValue:
        """The known chunk of this number."""
        return self._chunks[-number]

    def has(self, chunks: Iterable[StoredValue]) -> bool:
        """Return whether these chunks are all still known."""
        return all(each.number in self._chunks for each in chunks)

    def chunks_in(self, value: list[Any], at: int) -> list[tuple[int, StoredValue]]:
        """The places in a list, from one on, with items that a chunk begins with; the chunks."""
        starts, rest = self._starts, value[at:]
        if starts.keys().isdisjoint(map(id, rest)):
            return []
        places = enumerate(map(id, rest), at)
        return [(place, starts[here]) for place, here in places if here in starts]

    # -- stored values ---------------------------------------------------------------------------

    def look(self, result: object) -> Looked | None:
        """Capture a result before it is recorded; return ``None`` if it is not referred to."""
        if not self._refers_to_records or type(result) in NUMBERS:
            return None
        if type(result) in (str, bytes):  # a tree of one node
            size = len(result)  # type: ignore[arg-type]
            if size < _WORTH:
                return None
            facts = (result, (result,), size, False, (0,), ())
            return tuple.__new__(Tree, facts), _LEAF  # the constructor is a Python function
        tree = walk(result, most=_MOST)
        if tree is None or tree.size < _WORTH or not tree.nodes:
            return None
        return tree, Watch.over(tree.nodes)

    def recorded(self, number: int, looked: Looked) -> None:
        """Add a captured result that is now in the journal under this number."""
        self._arrived.append((number, *looked))
        self._waiting += looked[0].size
        while self._waiting > _WAITING and len(self._arrived) > 1:
            self._waiting -= self._arrived.popleft()[1].size

    def adopt(self, reader: Reader) -> None:
        """Mark the values that a restored checkpoint referred to as known."""
        if not self._refers_to_records and any(number > 0 for number in reader.found):
            return  # they are to be pruned: it is all written again, once
        for known in reader.found.values():
            self._add(known)

    def _add(self, known: StoredValue) -> None:
        for index, node in zip(known.tree.numbers, known.tree.nodes, strict=True):
            if index >= 0:
                self._nodes.setdefault(id(node), (known, index))
        if known.chunk is None:
            self._loose[known.number] = known
            self._all_loose.extend(known.watch)
            return
        self._chunks[known.number] = known
        if known.tree.root:
            self._starts[id(known.tree.root[0])] = known
        if known.chunk.content:
            self._buffers[known.chunk.content] = known
        known.group = Watch()
        known.group.extend(known.watch)
        for each in known.depends:
            each.holders += 1
            if self._loose.pop(each.number, None) is not None:
                known.members.append(each)
                known.group.extend(each.watch)
        if known.members:
            self._watch_loose()
        self._all.extend(known.group)

    def _watch_loose(self) -> None:
        self._all_loose = Watch()
        for each in self._loose.values():
            self._all_loose.extend(each.watch)

    def drop(self, gone: Iterable[StoredValue]) -> None:
        """Forget known values, and the chunks that refer to them."""
        waiting, dropped = list(gone), False
        while waiting:
            known = waiting.pop()
            if known.number in self._chunks:
                self._drop_chunk(known)
                dropped = dropped or bool(known.tree.nodes)
            elif self._loose.pop(known.number, None) is None:
                member_of = [each for each in self._chunks.values() if known in each.members]
                for each in member_of:
                    each.members.remove(known)
                if not member_of:
                    continue  # it was dropped before
            for node in known.tree.nodes:
                if self._nodes.get(id(node), (None,))[0] is known:
                    del self._nodes[id(node)]
            if known.holders:
                waiting.extend(c for c in self._chunks.values() if known in c.depends)
        self._watch_loose()
        if dropped:
            self._all = Watch()
            for each in self._chunks.values():
                self._all.extend(each.group)

    def _drop_chunk(self, known: StoredValue) -> None:
        del self._chunks[known.number]
        if known.chunk is not None:
            self._buffers.pop(known.chunk.content, None)
        if known.tree.root and self._starts.get(id(known.tree.root[0])) is known:
            del self._starts[id(known.tree.root[0])]
        for each in known.depends:
            each.holders -= 1
        self._loose.update((each.number, each) for each in known.members)
        known.members = []

    # -- while a checkpoint is taken -------------------------------------------------------------

    def update(self, apart: Container[int]) -> None:
        """Forget changed values, and add the results that have arrived.

        Args:
            apart: ids of mutable objects that no known value may hold.
        """
        self._forget_changed()
        lost = [each for each in self._buffers.values() if each.sealed]
        if lost:
            self.drop(lost)  # it was to be stored and was not, and may have changed since
        while self._arrived:
            self._arrive(*self._arrived.popleft(), apart)
        self._waiting = 0

    def clear(self) -> None:
        """Forget everything."""
        self._arrived.clear()
        self._waiting = 0
        if self._loose or self._chunks:
            self.drop([*self._loose.values(), *self._chunks.values()])

    def _forget_changed(self) -> None:
        if self._loose and not self._all_loose.holds():
            self.drop([each for each in self._loose.values() if not each.watch.holds()])
        if self._chunks and not self._all.holds():
            broken = [each for each in self._chunks.values() if not each.group.holds()]
            both = [known for each in broken for known in (each, *each.members)]
            self.drop([each for each in both if not each.watch.holds()])

    def _arrive(self, number: int, tree: Tree, watch: Watch, apart: Container[int]) -> None:
        mutable = [id(node) for node in tree.nodes if changes(node)]
        alone = not any(here in self._nodes or here in apart for here in mutable)
        if alone and watch.holds():
            dumped = _dump(tree, watch) if tree.classes else (b"", tree)
            if dumped is not None:
                self._add(StoredValue(number, dumped[1], watch))

    def make(self, items: list[Any], apart: Container[int], least: int = 0) -> StoredValue | None:
        """A new chunk of these items; ``None`` if they are not plain data.

        Args:
            apart: ids of mutable objects that must not be in it.
            least: how many bytes it must take.
        """
        tree = walk(items, self._nodes, apart)
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

        watch = Watch(tree.nodes[1:])  # nobody else has the list
        dumped = _dump(tree, watch, refer if tree.refers else None)
        if dumped is None or self._refuses(dumped[0]):
            return None
        payload, tree = dumped
        number, sealed, chunk = self._sealed(Chunk(list(used.records), list(used.chunks), payload))
        known = StoredValue(-number, tree, watch, chunk, tuple(depends.values()))
        known.sealed = sealed
        self._add(known)
        return known

    def buffer(self, content: bytes) -> StoredValue | None:
        """The large buffer with this SHA-256."""
        return self._buffers.get(content)

    def make_buffer(self, data: Data, content: bytes) -> StoredValue | None:
        """A new chunk of a large buffer, whose SHA-256 is ``content``; ``None`` if refused."""
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

    def keep(self, records: Container[int], chunks: Container[int] | None) -> None:
        """Release values that the stored checkpoint does not need.

        Args:
            chunks: ``None`` for the same as in the checkpoint before.
        """
        gone: list[StoredValue] = []
        if chunks is not None:
            gone = [each for each in self._chunks.values() if -each.number not in chunks]
        gone += [e for e in self._loose.values() if not e.holders and e.number not in records]
        if gone:
            self.drop(gone)
