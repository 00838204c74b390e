"""The choice, at each checkpoint, of the objects to store by reference.

The pickler of the variables asks :meth:`References.identity` for every object.  A node of a known
value becomes a reference; a long list becomes its parts, chunks and the items in between.  What
pickle hands out as a buffer is offered to :meth:`References.takes`.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, compress, islice, repeat
from operator import is_
from typing import Any

from stepwise._checkpoints.chunks import NO_NEEDS, Needs, StoredValue, digest_of
from stepwise._checkpoints.resources import ids_of_made
from stepwise._checkpoints.stored_values import Indices, KnownValues
from stepwise._runtime.facts import NamedTuple
from stepwise._values.addresses import same
from stepwise._values.buffers import Data, Pieces, stable
from stepwise._values.list_digest import held
from stepwise._values.trees import few

__all__ = ["HEAVY", "Apart", "References"]

HEAVY = 1 << 15
"""Bytes: items of a list that take more are put into a chunk though they are few."""

_LONG = 16  # items of a list that is taken apart
_GROUP = 8  # items of a chunk; smaller chunks that become one
_BLOCK = 64  # items of a chunk of a list that is met for the first time; more if they are small
_LARGEST = 1 << 20  # bytes of a chunk that groups become
_FEW = 4  # items of a list that may be heavy
_LEAF = 1 << 14  # bytes: such a leaf or buffer is put into a chunk when it is met a second time
_LOOK = 300  # objects that are looked at for long lists and large leaves
_TURNS = 32  # checkpoints until the variables are looked at thoroughly again
_SHORT = 1 << 11  # characters or bytes that are written again rather than looked for
_KEYS = frozenset({str, bytes, int, bool, type(None)})
_LEAVES = frozenset({str, bytes})
_NO_CHUNKS: Mapping[int, Data] = {}
_ITERATORS: tuple[Any, ...] = (type(iter([])), type(iter(())), enumerate)


class _LongList:
    """A list with parts in chunks.

    Args:
        key: by which a checkpoint names it.
        parts: chunks, and lists of the items in between.
        first: how many chunks it begins with; ``items`` are those of these chunks.
    """

    __slots__ = ("first", "items", "key", "met", "parts", "value")

    def __init__(self, value: list[Any]) -> None:
        self.value = value
        self.key = 0
        self.parts: list[StoredValue | list[Any]] = []
        self.first: list[StoredValue] = []
        self.items: list[Any] = []
        self.met = False

    def begins(self, value: list[Any]) -> bool:
        """Return whether a list begins with the items of these chunks."""
        return same(self.items, value[: len(self.items)])

    def put(self, known: StoredValue) -> None:
        """Add a chunk to the list."""
        if len(self.parts) == len(self.first):
            if not self.first:
                self.first, self.items = [], []
            self.first.append(known)
            self.items.extend(known.tree.root)
        self.parts.append(known)

    @property
    def is_begun(self) -> bool:
        """True if nothing but its last items is in no chunk."""
        return self._end == len(self.first)

    @property
    def _end(self) -> int:
        """The place behind its last chunk."""
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
        """Replace a group of chunks with one part."""
        end = self._end
        start = end - len(group)
        self.parts[start:end] = [part]
        if len(self.first) > start:  # all before it are chunks
            self.first = self.first[:start]
            if isinstance(part, list):
                self.items = [item for each in self.first for item in each.tree.root]
            else:
                self.first.append(part)


def _ends_of(lists: Iterable[list[Any]]) -> set[int]:
    """The ids of lists, and of their first and last items."""
    ends: set[int] = set()
    for each in lists:
        ends.update(map(id, (each, *each[:_GROUP], *each[-_GROUP:])))
    return ends


class Apart(NamedTuple):
    """Variables, of which some are stored already.

    Args:
        rest: the variables that have to be written.
        lists: the lists of which parts are stored: their names, and their parts.  A part is the
            index of a chunk; a reference to a node; a dict with the references that replace some
            of its values; or a list of items.
        nodes: references to the variables that are nodes of known values, by name.
    """

    rest: dict[str, Any]
    lists: list[tuple[list[str], list[Any]]]
    nodes: dict[str, tuple[int, int]]


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
        self._again: list[list[Any]] = []  # the lists found that existed before
        self._once: list[list[Any]] = []  # the others
        self._guessed: set[int] = set()  # ids of lists that may be in the variables
        self._elsewhere: dict[int, list[Any]] = {}  # found, but not pickled: of a client, say
        self._ends: set[int] = set()  # ids of the lists found and of what they begin and end with
        self._leaves: dict[int, Any] = {}
        self._apart: set[int] = set()
        self._used = Indices()
        self._buffers: list[int] = []
        self._met: set[bytes] = set()  # digests of buffers
        self._meeting: set[bytes] = set()
        self._last = self._next = Needs()  # without records and buffers
        self._is_empty = True  # as prepare_none() leaves it
        self._opened: set[int] = set()  # ids of lists and dicts that are written in parts
        self._settled: dict[int, int] = {}  # items of lists that the last look has decided about
        self._turns = 0  # checkpoints that may do without another look
        self._pause = 0  # looks until that is tried again

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def are_none(self) -> bool:
        """True if neither the variables to be written nor the last checkpoint refer to anything."""
        return self._is_empty and not self._last.all_chunks

    # -- before the variables are pickled --------------------------------------------------------

    def prepare(self, values: Iterable[Any], arguments: Iterable[Any]) -> None:
        """Find the parts of the variables that need not be written again.

        Args:
            arguments: objects that are kept by reference, so that no known value may hold them.
        """
        self._is_empty = False
        values, arguments = list(values), list(arguments)
        self._apart = {*map(id, arguments), *ids_of_made()}  # these are made anew
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
        self._settled = {id(each): self._decided(each) for each in self._again}
        self._turns, self._pause = 0 if self._pause else _TURNS, max(0, self._pause - 1)

    def _decided(self, value: list[Any]) -> int:
        """Return how many items of a list are in chunks, or in groups that are in none."""
        long = self._lists.get(id(value))
        open_ = len(value) - (len(long.items) if long is not None else 0)
        return len(value) - open_ % _GROUP

    def apart(self, values: Mapping[str, Any], *, prepared: bool = False) -> Apart | None:
        """Set apart the variables that are stored already, as far as that needs no thorough look.

        A loop adds a few items to its lists at each step, and refers to all others as before.
        What :meth:`prepare` found is then still right, until a list has grown by a group.

        Args:
            prepared: it has just looked: what a thread has changed since counts the next time, as
                what it found is written if this is in vain.

        Returns:
            ``None`` if :meth:`prepare` has to look.  Otherwise, what is to be written must be plain
            data, and must not :meth:`meet` what is stored.
        """
        if not self._turns or ids_of_made():
            return None
        if not prepared:
            self._known.update(())
        self.begin()
        for each in self._lists.values():
            each.met = True  # one that no variable names any more is gone, not elsewhere
        self._opened.clear()
        apart = Apart({}, [], {})
        names: dict[int, list[str]] = {}
        for name, value in values.items():
            node = self._known.node(id(value))
            if node is not None:
                apart.nodes[name] = self._reference(node)
            elif type(value) is not list:
                apart.rest[name] = value
            elif id(value) in names:
                names[id(value)].append(name)  # another name of the same list
            else:
                parts = self._parts_again(value)
                if parts is None:
                    return None
                if len(parts) == 1 and type(parts[0]) is list:
                    apart.rest[name] = value
                elif parts:
                    names[id(value)] = [name]
                    apart.lists.append((names[id(value)], parts))
                    self._opened.add(id(value))
        return apart

    def _parts_again(self, value: list[Any]) -> list[Any] | None:
        """Return the parts of a list as they were, with the new items; ``None`` to look again."""
        if len(value) >= self._settled.get(id(value), _GROUP) + _GROUP:
            return None
        long, items = self._lists.get(id(value)), value
        parts: list[Any] = []
        if long is not None:
            if not (long.is_begun and self._known.has(long.first) and long.begins(value)):
                return None
            parts += [self._used.index(each.number) for each in long.first]
            items = value[len(long.items) :]
        dicts = compress(items, map(is_, map(type, items), repeat(dict)))
        held = chain(items, chain.from_iterable(map(dict.values, dicts)))
        if not any(map(self._known.node, map(id, held))):
            parts.append(items)
            return parts
        for item in items:
            part = self._part(item)
            if part is not item:
                parts.append(part)
            elif parts and type(parts[-1]) is list:
                parts[-1].append(item)
            else:
                parts.append([item])
        return parts

    def _part(self, item: Any) -> Any:
        """Return a reference to an item, or a dict of which some values are; or the item itself."""
        node = self._known.node(id(item))
        if node is not None:
            return self._reference(node)
        if type(item) is not dict or id(item) in self._opened:  # meet() finds the second one
            return item
        held = item.copy()  # another thread may change it
        if not _KEYS.issuperset(map(type, held)):  # a NaN does not equal itself when it is loaded
            return item
        nodes = list(map(self._known.node, map(id, held.values())))
        if not any(nodes):
            return item
        self._opened.add(id(item))
        found = {
            key: self._reference(node)
            for key, node in zip(held, nodes, strict=True)
            if node is not None
        }
        return {**held, **dict.fromkeys(found)}, found

    def _reference(self, node: tuple[StoredValue, int]) -> tuple[int, int]:
        return self._used.index(node[0].number), node[1]

    def meet(self, written: Mapping[int, tuple[int, Any]]) -> bool:
        """Return whether what was written must not be: it is stored already, or was set apart.

        Short texts may be written again.

        Args:
            written: the objects, by their ids; with their places in the pickle.
        """
        if not (written.keys().isdisjoint(self._lists) and self._opened.isdisjoint(written)):
            return True
        stored = [written[here][1] for here in self._known.which(written)]
        return not _LEAVES.issuperset(map(type, stored)) or sum(map(len, stored)) > _SHORT

    def look_thoroughly(self) -> None:
        """Note that it was in vain to set variables apart: not again for some checkpoints."""
        self._turns, self._pause = 0, _TURNS

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
        self._turns = 0

    def restored(self, values: Iterable[Any], arguments: Iterable[Any]) -> None:
        """Remember the lists of variables that a checkpoint has just restored."""
        self._is_empty = False
        self._ends = _ends_of(self._find([*values, *arguments])[1])

    def _meet(self, lists: list[list[Any]]) -> None:
        """Separate the lists that were there at the last checkpoint from new ones.

        To take a list apart costs several times what writing it does (measured), and much of what a
        program makes anew for each step is never met again.
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

        A variable may name such a list at one checkpoint only, and all later ones contain it.
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
        """Look, not too deeply, for large leaves and for lists that may be long."""
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
                waiting.extend(gc.get_referents(value))  # attributes, without asking the object
        found = [each for each in lists.values() if id(each) not in self._elsewhere]
        return list(leaves.values()), found

    def _split(self, value: list[Any], before: _LongList | None, *, heavy: bool = False) -> bool:
        """Take a list apart into chunks and the items between; return whether a chunk was made."""
        long, at = _LongList(value), 0
        if before is not None and self._known.has(before.first) and before.begins(value):
            long.first, long.items = before.first, before.items
            long.parts = [*before.first]
            at = len(before.items)
        made = False
        for start, known in self._known.chunks_in(value, at):
            items = known.tree.root
            if start >= at and same(items, value[start : start + len(items)]):
                made |= self._put(long, value[at:start], heavy=heavy)
                long.put(known)
                at = start + len(items)
        made |= self._put(long, value[at:], heavy=heavy)
        if not heavy:
            self._gather(long)
        if any(type(part) is not list for part in long.parts):
            known_as = self._lists.get(id(value))
            long.key = known_as.key if known_as is not None else len(self._lists)
            self._lists[id(value)] = long
        return made

    def _put(self, long: _LongList, items: list[Any], *, heavy: bool) -> bool:
        """Put items that are in no chunk into chunks, but for the last few."""
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
                long.put(known)
                larger = _BLOCK * _GROUP
                block = larger if known.tree.size * larger <= _LARGEST * len(some) else _BLOCK
            elif long.parts and type(long.parts[-1]) is list:
                long.parts[-1].extend(some)
            else:
                long.parts.append(some)
        return made

    def _gather(self, long: _LongList) -> None:
        """Make the last groups of a list one, and the last of those.

        So each item is written a few times, and a checkpoint has few chunks to name.
        """
        while group := long.group():
            named = [part for each in (*self._lists.values(), long) for part in each.parts]
            if any(each.holders or named.count(each) > 1 for each in group):
                return  # something else needs it as it is
            items = [item for each in group for item in each.tree.root]
            self._known.drop(group)
            long.replace(group, self._known.make(items, self._apart) or items)

    def split_heavy(self) -> bool:
        """Put what makes the variables large into chunks, where that is items of lists."""
        before = dict(self._lists)
        found = [self._split(each, before.get(id(each)), heavy=True) for each in self._again]
        if not any(found):
            self._lists = before  # as they were pickled
        return any(found)

    # -- while they are pickled ------------------------------------------------------------------

    def begin(self) -> None:
        """The variables are pickled from the beginning."""
        self._used, self._buffers = Indices(), []
        for each in self._lists.values():
            each.met = False

    def identity(self, value: Any) -> tuple[int, Any] | None:
        """Return the reference that replaces an object in the pickle, or ``None``.

        A node of a known value: the index of this value in the checkpoint (negative: of a chunk),
        and its own.  A long list: its key and, at first, its parts: indices, and lists of items.
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
        """Return whether a buffer's bytes are in a chunk, so that the pickle can leave them out."""
        if len(raw) < _LEAF:
            return False
        content = hashlib.sha256(raw).digest()
        self._meeting.add(content)
        known = self._known.buffer(content)
        if known is None and (len(raw) > _LARGEST or content in self._met):
            kept = stable(raw)
            if kept is not raw:  # it may have been changed meanwhile
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

    def needs(self) -> tuple[Needs, Mapping[int, Data]]:
        """Return the references of the pickled variables, and the chunks that have to be stored."""
        if self.are_none:
            return NO_NEEDS, _NO_CHUNKS
        records, chunks = list(self._used.records), list(self._used.chunks)
        if chunks == self._last.chunks:  # mostly: all of them are stored
            return self._last.along_with(records, self._buffers), _NO_CHUNKS
        found = {number: self._known.chunk(number) for number in chunks}
        waiting = list(found.values())
        while waiting:
            for each in waiting.pop().chunks:
                if -each.number not in found:
                    found[-each.number] = each
                    waiting.append(each)
        every = sorted(found)
        links = digest_of(found[number].link for number in every)
        lowest = min(filter(None, (each.lowest for each in found.values())), default=0)
        new = {number: found[number].sealed for number in every if found[number].sealed}
        self._next = Needs([], chunks, every, links, lowest)
        return self._next.along_with(records, self._buffers), new

    def stored(self, needs: Needs) -> None:
        """Release everything that the stored checkpoint does not refer to."""
        if self.are_none:
            return
        self._turns = max(0, self._turns - 1)
        for here, long in self._lists.items():
            if not long.met and here not in self._guessed:
                self._elsewhere[here] = long.value
        every = len(needs.all_chunks) == self._known.chunks
        if every and needs.chunks == self._last.chunks:
            self._known.keep(set(needs.records), None)
            return
        if needs.chunks != self._last.chunks:
            self._last = self._next
        for number in needs.all_chunks:
            self._known.chunk(number).sealed = b""
        self._known.keep(set(needs.records), set(needs.all_chunks))
