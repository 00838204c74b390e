"""Reading what a run says: ``Run.stream``, live and from any offset.

A reader has an offset, which names everything that it has seen.  It never gets a withdrawn item
whose withdrawal is recorded, and gets a ``reset`` only if it may have seen such an item.  While it
waits, it looks whether the log has grown: a store on a server announces that, other stores leave a
mark with each batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from stepwise._journal.journal import read_head
from stepwise._journal.records import OVER, RunFacts
from stepwise._journal.stream import (
    ENDED,
    PLAIN,
    SAID,
    TEXT,
    WITHDRAWN,
    StreamBatch,
    StreamLog,
    items_of,
)
from stepwise._runtime.facts import public
from stepwise._runtime.messages import shell_word
from stepwise._runtime.options import check_stream
from stepwise._values.codec import decode
from stepwise.errors import ConfigurationError, CorruptStoreError, RunNotFoundError, RunStopped

_PAUSE = 0.05  # seconds between two looks
_LOOK_ANYWAY = 1.0  # seconds after which a reader looks although nothing has rung
_SOME = 256  # items that an event loop gets at once, or that are read backwards
_LOOKS = 50  # batches that are read backwards
_LARGE = 1 << 20  # bytes, beyond which it gets no more at once


@public
@dataclass(frozen=True, slots=True)
class StreamItem:
    """One thing that a reader of a run's stream gets.

    Args:
        offset: its place in the stream; ``Run.stream(after=offset)`` continues behind it.
        kind: ``item``; ``reset``: forget every item whose offset is ``value`` or more, since an
            attempt was withdrawn; ``end``: the run has ended, and nothing follows.
        value: what the run said; for a reset, the first offset to forget; at the end, the status
            of the run: ``completed``, ``failed`` or ``cancelled``.
    """

    offset: int
    kind: Literal["item", "reset", "end"]
    value: Any


@public
class RunStream:
    """The items of one stream of a run, for ``for`` and ``async for``; see ``Run.stream``.

    Attributes:
        load: returns the value of an item from its form and bytes.
    """

    def __init__(
        self,
        log: Any,  # a StreamLog: annotations of public classes name no private ones
        facts: Callable[[], Any],
        name: str,
        after: int | None,
        *,
        follow: bool,
    ) -> None:
        check_stream(name)
        self._log: StreamLog = log
        self._facts: Callable[[], RunFacts] = facts
        self._name, self._follow = name, follow
        self._size = 0  # bytes of the items that were read lately
        self._resets: list[tuple[int, int]] = []  # the offset of each, and the first it withdraws
        self._stamp: object = None
        self._problem: BaseException | None = None
        self._found: tuple[int, dict[int, tuple[Any, bytes]]] = 0, {}
        self._read = 0  # the last batch that was read
        self.load = load
        self._born = facts().created_at  # raises for a run that does not exist
        newest = self._log.newest()
        self._check(after, newest)
        self._last = -1 if after is None else after  # the reader has seen what is up to there
        self._next = self._last + 1
        self._find_resets(newest)
        self._check_there(self._log.batch(1))
        self._read = self._holding(self._next) - 1
        self._link: bytes | None = None
        self._events = self._all()

    def __iter__(self) -> Iterator[StreamItem]:
        """Yield the items, and wait for those to come."""
        for event in self._events:
            if event is not None:
                yield event
            elif not self._follow:
                return
            else:
                until = time.monotonic() + _LOOK_ANYWAY
                time.sleep(0 if self._stamp else _PAUSE)
                while not self._may_have_grown() and time.monotonic() < until:
                    time.sleep(_PAUSE)

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        """Yield the items, and await those to come; the store is read in another thread."""
        async with aclosing(self.groups()) as groups:
            async for group in groups:
                for event in group:
                    yield event

    async def groups(self) -> AsyncGenerator[list[StreamItem], None]:
        """Yield lists of items that are there together, and await those to come."""
        import asyncio  # on use: a synchronous program does not load it

        loop = asyncio.get_running_loop()
        while True:
            found, is_over = await loop.run_in_executor(None, self._some)
            items = [event for event in found if event is not None]
            if items:
                yield items
            if is_over or (not self._follow and None in found):
                return
            until = time.monotonic() + _LOOK_ANYWAY * (None in found)
            await asyncio.sleep(0 if self._stamp or None not in found else _PAUSE)
            # Another process writes, so no event of this one tells it.
            while not self._may_have_grown() and time.monotonic() < until:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE)

    def _some(self) -> tuple[list[StreamItem | None], bool]:
        """Return the next events, up to ``None`` for nothing more now; and whether all are over."""
        found: list[StreamItem | None] = []
        self._size = 0
        if self._problem is not None:
            raise self._problem
        try:
            for event in self._events:
                found.append(event)
                if event is None or len(found) == _SOME or self._size > _LARGE:
                    return found, False
        except (Exception, RunStopped) as error:  # raised once the items before it are given
            self._problem = error
        return found, self._problem is None

    # -- waiting ---------------------------------------------------------------------------------

    def _may_have_grown(self) -> bool:
        now = self._current_stamp()
        return now != self._stamp or not now

    def _current_stamp(self) -> object:
        """Return what changes when the log grows; nothing where that is not known."""
        store, name = self._log.store, self._log.name
        changes = getattr(store, "changes", None)
        return changes(name) if changes is not None else tuple(store.marks(name))

    # -- reading ---------------------------------------------------------------------------------

    def _all(self) -> Iterator[StreamItem | None]:
        """Yield all events; ``None`` where there is nothing more now."""
        while True:
            self._stamp = self._current_stamp()  # first: what comes later rings again
            facts = self._looked()
            status = "superseded" if facts.superseded else facts.status
            is_over = status in (*OVER, "superseded")
            # The last batch is written after the head of the end, perhaps while this is read.
            acknowledged = self._log.acknowledged() if is_over else 0
            yield from self._available()
            if is_over and self._looked().created_at == facts.created_at:
                if self._read < acknowledged and not self._is_deleted(acknowledged):
                    raise self._damaged(self._read + 1)
                yield StreamItem(self._next - 1, "end", status)
                return
            yield None

    def _looked(self) -> RunFacts:
        """Return the facts of the run.

        Raises:
            RunNotFoundError: it was deleted, perhaps begun again, after something of it was read.
        """
        log = self._log
        head = read_head(log.store, log.seal, log.run_id)
        facts = head[0] if head is not None else self._facts()
        if self._read and facts.created_at != self._born:
            raise RunNotFoundError(
                f"run {log.run_id!r} in {log.store.url} was deleted and begun again while its "
                "stream was read. Read it from its beginning: give no offset",
                run_id=log.run_id,
            )
        self._born = facts.created_at
        return facts

    def _available(self) -> Iterator[StreamItem]:
        yield from self._jumped()
        for number, batch in self._log.batches(self._read, self._link):
            if batch is None:
                if not self._is_deleted(number):
                    raise self._damaged(number)
                continue
            self._check_there(batch)
            for first, op, items in items_of(batch):
                if op[0] == ENDED or op[1] != self._name:
                    continue
                if op[0] == WITHDRAWN:
                    if (first, op[2]) not in self._resets:
                        self._resets.append((first, op[2]))
                    yield from self._jumped()
                    continue
                for offset, (form, data) in self._said(first, op, items, self._next):
                    if offset >= self._next:
                        self._last, self._next = offset, offset + 1
                        self._size += len(data)
                        yield StreamItem(offset, "item", self.load(form, data))
                        yield from self._jumped()
            self._read, self._link = number, batch.link

    def _jumped(self) -> Iterator[StreamItem]:
        """Go behind what is withdrawn; yield one reset if the reader may have seen some of it."""
        reset: tuple[int, int] | None = None
        while True:
            seen = [each for each in self._resets if each[1] <= self._last < each[0]]
            if seen:
                at, to = max(each[0] for each in seen), min(each[1] for each in seen)
                reset = at, min(to, reset[1]) if reset is not None else to
                self._last, self._next = at, max(self._next, at + 1)
            unseen = [at for at, to in self._resets if to <= self._next <= at]
            if unseen:
                self._next = max(unseen) + 1
            if not (seen or unseen):
                break
        if reset is not None:
            yield StreamItem(reset[0], "reset", reset[1])

    def _said(
        self, first: int, op: list[Any], items: list[tuple[Any, bytes]], start: int
    ) -> Iterator[tuple[int, tuple[Any, bytes]]]:
        """Yield the items of an operation with their offsets, those said again from a start on."""
        if op[0] == SAID:
            yield from enumerate(items, first)
            return
        for count, source, _ in op[2]:
            for each in range(max(0, start - first), count):
                yield first + each, self._item_at(source + each)
            first += count

    def newest(self, size: int) -> tuple[list[tuple[Any, bytes]], bool]:
        """Return the newest items as forms with bytes, and whether these are all.

        Args:
            size: the bytes after which it looks no further back.
        """
        newest = self._log.newest()
        at = newest.after().get(self._name, 0) if newest is not None else 0
        number = newest.number + 1 if newest is not None else 1
        found: list[tuple[Any, bytes]] = []
        for _ in range(_LOOKS):
            while (to := min((r for w, r in self._resets if r < at <= w + 1), default=at)) < at:
                at = to  # behind it, all was withdrawn
            if at == 0 or size <= 0:
                break
            batch = self._log.batch(number - 1)
            if batch is None or batch.firsts.get(self._name, 0) >= at:
                batch = self._log.batch(self._holding(at - 1))
            if batch is None or (batch.ops and batch.firsts.get(self._name, 0) >= at):
                raise self._damaged(number - 1)
            if not batch.ops:
                break  # what came before was deleted
            start = max(batch.firsts.get(self._name, 0), at - _SOME)
            items = self._there(batch, start, at)
            found[:0] = items
            size -= sum(len(data) for _, data in items)
            number, at = batch.number + (start > batch.firsts.get(self._name, 0)), start
        return found, at == 0

    def _there(self, batch: StreamBatch, start: int, end: int) -> list[tuple[Any, bytes]]:
        """Return the items of a batch from an offset up to another that were not withdrawn."""
        gone = [each for each in self._resets if each[1] < end and start <= each[0]]
        return [
            item
            for first, op, items in items_of(batch)
            if op[1:2] == [self._name] and op[0] != WITHDRAWN
            for offset, item in self._said(first, op, items, start)
            if start <= offset < end and not any(to <= offset <= at for at, to in gone)
        ]

    def _item_at(self, offset: int) -> tuple[Any, bytes]:
        """Return an item that was said at an offset, even if it was withdrawn there."""
        if offset not in self._found[1]:
            number = self._holding(offset)
            batch = self._log.batch(number)
            said = (
                enumerate(items, first)
                for first, op, items in (items_of(batch) if batch is not None else ())
                if op[0] == SAID and op[1] == self._name
            )
            self._found = number, {at: item for each in said for at, item in each}
        if offset not in self._found[1]:
            self._is_deleted(self._found[0])  # raises for a reader that lacks it
            raise self._damaged(self._found[0])
        return self._found[1][offset]

    # -- finding ---------------------------------------------------------------------------------

    def _holding(self, offset: int) -> int:
        """Return the number of the batch that holds an offset, or of the newest batch before."""
        newest = self._log.newest()
        there, beyond = 1, newest.number + 1 if newest is not None else 1
        while there + 1 < beyond:
            middle = (there + beyond) // 2
            batch = self._log.batch(middle)
            if batch is not None and batch.firsts.get(self._name, 0) <= offset:
                there = middle
            else:
                beyond = middle
        return there

    def _find_resets(self, batch: StreamBatch | None) -> None:
        number = batch.last_withdrawing if batch is not None else 0
        while number:
            batch = self._log.batch(number)
            if batch is None or batch.number != number:
                if self._is_deleted(number):
                    return
                raise self._damaged(number)
            for first, op in batch.placed():
                if op[0] == WITHDRAWN and op[1] == self._name:
                    self._resets.append((first, op[2]))
            number = batch.withdrew

    # -- problems --------------------------------------------------------------------------------

    def _check(self, after: int | None, newest: StreamBatch | None) -> None:
        following = newest.after().get(self._name, 0) if newest is not None else 0
        if after is None or (type(after) is int and -1 <= after < following):
            return
        last = f"its last offset is {following - 1}" if following else "nothing was said on it"
        raise ConfigurationError(
            f"after={after!r:.100}: the stream {self._name!r} of run {self._log.run_id!r} has no "
            f"such offset; {last}. Give the offset of the last item that you have, or None for all"
        )

    def _check_there(self, batch: StreamBatch | None) -> None:
        """Refuse a reader that lacks items which were deleted before a batch without operations."""
        first = batch.firsts.get(self._name, 0) if batch is not None and not batch.ops else 0
        withdrawn = any(to <= self._next and first <= at for at, to in self._resets)
        if self._next < first and not withdrawn:
            raise ConfigurationError(
                f"what run {self._log.run_id!r} said on the stream {self._name!r} up to offset "
                f"{first - 1} was deleted (stepwise prune --streams). What follows can be read: "
                f"give after={first - 1}"
            )

    def _is_deleted(self, number: int) -> bool:
        """Return whether a batch was deleted, perhaps while this was read.

        Raises:
            RunNotFoundError: the run was deleted.
            ConfigurationError: the reader lacks items of the batch.
        """
        self._looked()
        is_deleted = number <= self._log.start().last
        if is_deleted:
            self._check_there(self._log.batch(1))
        return is_deleted

    def _damaged(self, number: int) -> CorruptStoreError:
        log = self._log
        return CorruptStoreError(
            f"batch {number} of the streams of run {log.run_id!r} in {log.store.url} is damaged or "
            "missing. What comes later can be read: give a later offset. "
            f"stepwise verify {shell_word(log.run_id)} says more",
            run_id=log.run_id,
        )


def load(form: Any, data: bytes) -> Any:
    """Return the value of an item."""
    if form == TEXT:
        return data.decode()
    return json.loads(data) if form == PLAIN else decode(data, form)


def shown_text(items: Iterable[tuple[Any, bytes]]) -> str:
    """Return items as a display has them: texts joined, any other item on a line of its own."""
    text = ""
    for form, data in items:
        line = data.decode() if form in (TEXT, PLAIN) else shown_item(form, data)
        alone = form != TEXT
        text += "\n" * (alone and text[-1:] not in ("", "\n")) + line + "\n" * alone
    return text


def shown_item(form: Any, data: bytes) -> Any:
    """Return the value of an item for a display, which loads plain data only."""
    return load(form, data) if form in (TEXT, PLAIN) else f"<a value of {len(data):,} bytes>"
