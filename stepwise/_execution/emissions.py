"""The emissions of a run, grouped into batches, and withdrawn where they do not hold.

The contents of a stream are what the run has said in its one logical execution, in order.  So

- a failed or cut-off attempt of a step is withdrawn, with the steps inside it;
- a run that resumes meets its *old* items, those after its checkpoint.  A recorded step that
  answers, and an equal emission of the workflow's own code, keep them: nothing is said twice;
- as soon as such a run says something new, the old items that nothing has kept are withdrawn.
  What a step said inside such a region is said again, by reference, once its record answers.

So after any kill, edit or change of order, the stream is the order of the execution that counts.
Where tasks or threads speak at once, a resumed run may have another order; it then withdraws and
says again, which costs a reader a reset, and never an item.

Items wait in memory for at most ``GROUP`` seconds.  They are written before the outcome of the step
that said them, and before a checkpoint.  A checkpoint ahead of the log, which only a power cut
leaves, is left out on resume.

Rejected: matching emissions by their number since the last call.  An edit that says one sentence
more would keep all that follow under wrong offsets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from stepwise._journal.journal import Journal, Position
from stepwise._journal.records import Record
from stepwise._journal.stream import (
    AGAIN,
    ENDED,
    PLAIN,
    SAID,
    SKIPPED,
    TEXT,
    WITHDRAWN,
    StreamBatch,
    StreamWriter,
    items_of,
)
from stepwise._runtime import settings
from stepwise._runtime.forks import start_apart
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import count, notice, shell_word
from stepwise._values.codec import Codec
from stepwise._values.unpickling import Data
from stepwise.errors import NotRecordableError, RunStopped

GROUP = 0.05  # seconds in which emissions share a write
_MUCH = 1 << 20  # bytes that wait; beyond that, an emission waits for the store
_FEW = 64  # spans that are kept without a look whether they may still be withdrawn
_LARGE = 64  # bits
_UNKNOWN = b"?"  # the digest of an item that is lost: no item equals it
_AGAIN_LATER = 1.0  # seconds until a write that failed is tried again

Around = tuple[int, ...]


class _Span:
    """Items in a row that one place of the run has said.

    Attributes:
        first, count: their offsets.
        source: the offset at which they were said first.
        around: the numbers of the steps that said them, outermost first; empty for the workflow.
        digest: of the one item of the workflow's own code that an earlier process said.
        old: True while nothing in this process has kept the items of an earlier one.
    """

    __slots__ = ("around", "count", "digest", "first", "old", "source")

    def __init__(
        self, first: int, count: int, source: int, around: Around, digest: bytes = b""
    ) -> None:
        self.first, self.count, self.source = first, count, source
        self.around, self.digest, self.old = around, digest, False

    @property
    def step(self) -> int:
        """The number of the innermost step; 0 for the workflow's own code."""
        return self.around[-1] if self.around else 0

    def precedes(self, first: int, source: int, around: Around) -> bool:
        """Return whether items there would continue this span."""
        joins = self.first + self.count == first and self.source + self.count == source
        return joins and self.around == around and not (self.digest or self.old)


class _Stream:
    """One stream: its next offset, and the spans that may still be withdrawn, in order."""

    def __init__(self, following: int = 0) -> None:
        self.next = following
        self.spans: list[_Span] = []
        self.old = 0  # spans
        self.bodies: deque[_Span] = deque()  # old ones of the workflow's own code
        self.steps: dict[int, list[_Span]] = {}  # old ones of steps, by their numbers

    def add(self, count: int, source: int, around: Around, digest: bytes = b"") -> _Span:
        """Add items at the end, and return their span."""
        first, last = self.next, self.spans[-1] if self.spans else None
        self.next += count
        if last is not None and not digest and last.precedes(first, source, around):
            last.count += count
            return last
        self.spans.append(_Span(first, count, source, around, digest))
        return self.spans[-1]

    def find_old(self) -> None:
        """Find the old spans again."""
        old = [each for each in self.spans if each.old]
        self.old, self.bodies = len(old), deque(each for each in old if not each.around)
        self.steps = {}
        for each in old:
            if each.around:
                self.steps.setdefault(each.step, []).append(each)

    def keeps(self, digest: bytes) -> bool:
        """Keep the next old item of the workflow's own code if it is this one."""
        if not self.bodies or self.bodies[0].digest != digest:
            return False
        self.bodies.popleft().old = False
        self.old -= 1
        return True


class Emissions:
    """The emissions of one run, for its owner.

    Args:
        journal: of the run.
        codec: the rules by which the run records values.
        in_flight: the numbers of the calls that are being executed.
    """

    def __init__(self, journal: Journal, codec: Codec, in_flight: Mapping[int, int]) -> None:
        self.run_id = journal.run_id
        self._codec, self._in_flight = codec, in_flight
        self._log = StreamWriter(journal.store, journal.seal, self.run_id, fsync=journal.fsync)
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._timer: threading.Timer | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._unsaid: dict[int, list[tuple[str, _Span]]] = {}  # withdrawn, but a record may answer
        self._ops: list[list[Any]] = []
        self._pieces: list[bytes] = []
        self._firsts: dict[str, int] = {}
        self._spoke: set[int] = set()  # the numbers of the steps that what waits is about
        self._size = self._total = 0
        self._base: Sequence[Any] = [0, "", 0, 0, {}, []]

    # -- taking over -----------------------------------------------------------------------------

    def take_over(self, state: Sequence[Any], answering: Collection[int], *, replays: bool) -> None:
        """Read what earlier processes said after a checkpoint, and withdraw what was cut off.

        Args:
            state: the checkpoint's part that :meth:`state` returned; empty for the beginning.
            answering: the numbers of the calls that a record answers.
            replays: False if calls that were answered before are not made again.
        """
        self.flush()  # of a checkpoint that could not be restored
        with self._writing, self._lock:
            self._log.acquire()
            self._begin_anew()
            self._base = state or self._base
            last, link, self._log.withdrew, self._total, table, unsaid = self._base
            if last < self._log.start().last:
                unsaid = ()  # deleted by stepwise prune --streams
            for name, first, count, source, around in unsaid:
                span = _Span(first, count, source, (*around,))
                self._unsaid.setdefault(span.step, []).append((name, span))
            self._streams = {name: _Stream(following) for name, (following, _) in table.items()}
            self._log.at = Position(last, bytes.fromhex(link) if last else Position().link)
            self._read_old(last)
            for name, stream in self._streams.items():
                held = table.get(name, (0, 0))[1]
                for span in stream.spans:
                    span.old = span.first >= held
                cut = [s for s in stream.spans if s.old and s.around and s.step not in answering]
                self._withdraw(name, stream, {*map(id, cut)}, {each.step for each in cut})
                for span in stream.spans if not replays else ():
                    span.old = False
                stream.find_old()
            self._rouse()

    def _read_old(self, last: int) -> None:
        lost, digests = 0, dict[tuple[str, int], bytes]()
        for number, batch in self._log.batches(last, self._log.at.link):
            if batch is None:
                lost += 1
                self._log.at = Position(number, None)
                continue
            for name, following in batch.firsts.items():
                stream = self._streams.setdefault(name, _Stream())
                if not batch.ops:  # what was deleted before it, which no item equals
                    first = max(stream.next, self._base[4].get(name, (0, 0))[1])
                    stream.next = first
                    stream.add(following - first, first, (), _UNKNOWN)
                stream.next = max(stream.next, following)
            self._take_in(batch, digests)
            self._log.at, self._log.withdrew = Position(number, batch.link), batch.last_withdrawing
        last = self._log.acknowledged()
        if last > self._log.at.last:
            lost, self._log.at = lost + last - self._log.at.last, Position(last, None)
        if lost:
            for stream in self._streams.values():
                stream.next += SKIPPED * lost
            notice(
                f"run {self.run_id}: {count(lost, 'batch')} of its streams cannot be read. It goes "
                "on after them; whoever reads across them gets an error. "
                f"stepwise verify {shell_word(self.run_id)} says more"
            )

    def _take_in(self, batch: StreamBatch, digests: dict[tuple[str, int], bytes]) -> None:
        """Follow the operations of a batch.

        Args:
            digests: of withdrawn items of the workflow's own code, by stream and first offset.
        """
        self._total += len(batch.payload)
        for first, op, items in items_of(batch):
            if op[0] == ENDED:
                continue
            name, stream = op[1], self._streams.setdefault(op[1], _Stream())
            stream.next = first
            if op[0] == SAID:
                self._take_in_said(stream, op[2], items)
            elif op[0] == WITHDRAWN:
                gone = [each for each in stream.spans if each.first >= op[2]]
                stream.spans = [each for each in stream.spans if each.first < op[2]]
                digests.update({(name, each.source): each.digest for each in gone if each.digest})
                self._set_aside(name, gone, {*op[3]})
                stream.next += 1
            else:
                for count, source, around in op[2]:
                    if around:
                        stream.add(count, source, (*around,))
                        aside, said = (
                            self._unsaid.get(around[-1], []),
                            range(source, source + count),
                        )
                        aside[:] = [each for each in aside if each[1].source not in said]
                    for each in range(source, source + count) if not around else ():
                        stream.add(1, each, (), digests.get((name, each), _UNKNOWN))

    def _take_in_said(
        self, stream: _Stream, groups: list[Any], items: list[tuple[Any, bytes]]
    ) -> None:
        at = 0
        for many, around in groups:
            if around:
                stream.add(many, stream.next, (*around,))
                self._unsaid.pop(around[-1], None)
            for form, data in items[at : at + many] if not around else ():
                stream.add(1, stream.next, (), _digest(form, data))
            at += many

    @property
    def total(self) -> int:
        """The bytes that the run has said."""
        return self._total

    # -- saying ----------------------------------------------------------------------------------

    def emit(self, value: Any, name: str, around: Around) -> None:
        """Say a value on a stream, unless an earlier process has said it at this place.

        Raises:
            NotRecordableError: the value cannot be recorded, or the streams have reached the limit.
        """
        form, data = self._encoded(value, name)
        with Uninterrupted(), self._lock:
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = _Stream()
            if stream.old:
                if not around and stream.keeps(_digest(form, data)):
                    return
                self._withdraw_old(name, stream, {*around})
            self._check_limit(len(data))
            ops = self._begin_op()
            op = ops[-1] if ops and ops[-1][0] == SAID and ops[-1][1] == name else None
            if op is None:
                op = [SAID, name, [], []]
                ops.append(op)
            groups = op[2]
            if groups and groups[-1][1] == around:
                groups[-1][0] += 1
            else:
                groups.append([1, around])
                self._spoke.update(around)
            op[3].append(len(data) if form == TEXT else [len(data), form])
            self._pieces.append(data)
            self._size += len(data)
            self._total += len(data)
            stream.add(1, stream.next, around)
            if len(stream.spans) > _FEW:
                self._settle(stream)
            much = self._size > _MUCH
            if self._timer is None:
                self._rouse()
        if much:
            self.flush()

    def _encoded(self, value: Any, name: str) -> tuple[str | None, bytes]:
        with contextlib.suppress(UnicodeEncodeError, RecursionError):
            if type(value) is str:
                return TEXT, value.encode()
            if _is_plain(value):
                text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                return PLAIN, text.encode()
        encoded = self._codec.encode(value, f"what was emitted to {name!r}")
        return encoded.form, bytes(encoded.data)

    def _check_limit(self, size: int) -> None:
        limit = settings.stream_limit()
        if limit is not None and self._total + size > limit:
            raise NotRecordableError(
                f"run {self.run_id!r} has emitted {self._total:,} bytes, and {size:,} more are "
                f"beyond its limit of {limit:,}: emit less, or raise it with "
                "stepwise.configure(stream_limit=...)"
            )

    def _begin_op(self) -> list[list[Any]]:
        if not self._ops:
            self._firsts = {name: each.next for name, each in self._streams.items()}
        return self._ops

    def _settle(self, stream: _Stream) -> None:
        """Forget the first spans if nothing can withdraw them any more."""
        spans, flying = stream.spans, self._in_flight
        for at, each in enumerate(spans):
            if each.old or not flying.keys().isdisjoint(each.around):
                del spans[:at]
                return
        del spans[:-1]

    # -- withdrawing -----------------------------------------------------------------------------

    def withdraw(self, number: int) -> None:
        """Withdraw what a step has said in an attempt that failed, with the steps inside it."""
        with Uninterrupted(), self._lock:
            self._spoke.add(number)
            for name, stream in self._streams.items():
                gone = {id(each) for each in stream.spans if number in each.around}
                self._withdraw(name, stream, gone, {number})
            self._rouse()

    def answered(self, number: int, inner: Iterable[int], around: Around) -> None:
        """Keep what a recorded call and the calls inside it have said, since the record answers."""
        with Uninterrupted(), self._lock:
            unsaid: dict[str, list[_Span]] = {}
            for each in (number, *inner):
                path = (*around, each) if each == number else (*around, number, each)
                for stream in self._streams.values():
                    for span in stream.steps.pop(each, ()):
                        span.old, span.around = False, path
                        stream.old -= 1
                for name, span in self._unsaid.pop(each, ()):
                    span.around = path
                    unsaid.setdefault(name, []).append(span)
            for name, spans in unsaid.items():
                self._withdraw_old(name, self._streams[name], set())
                spans.sort(key=lambda each: each.first)  # the order in which they were said last
                self._say_again(name, self._streams[name], spans)
            self._rouse()

    def _withdraw_old(self, name: str, stream: _Stream, dropped: set[int]) -> None:
        if stream.old:
            gone = {id(each) for each in stream.spans if each.old}
            self._withdraw(name, stream, gone, dropped)

    def _withdraw(self, name: str, stream: _Stream, gone: set[int], dropped: set[int]) -> None:
        """Withdraw spans, and say again those after the first of them that still hold.

        Args:
            gone: the ids of the spans.
            dropped: the numbers of the steps whose items no record will answer.
        """
        if not gone:
            return
        at = next(n for n, each in enumerate(stream.spans) if id(each) in gone)
        after = stream.spans[at:]
        del stream.spans[at:]
        self._begin_op().append([WITHDRAWN, name, after[0].first, sorted(dropped)])
        stream.next += 1
        self._set_aside(name, [each for each in after if id(each) in gone], dropped)
        self._say_again(name, stream, [each for each in after if id(each) not in gone])
        stream.find_old()

    def _set_aside(self, name: str, gone: list[_Span], dropped: set[int]) -> None:
        for number in dropped:
            self._unsaid.pop(number, None)
        for span in gone:
            span.old = False
            if span.around and span.step not in dropped:
                self._unsaid.setdefault(span.step, []).append((name, span))

    def _say_again(self, name: str, stream: _Stream, spans: list[_Span]) -> None:
        if not spans:
            return
        said = [[each.count, each.source, each.around] for each in spans]
        self._begin_op().append([AGAIN, name, said])
        for each in spans:
            each.first, stream.next = stream.next, stream.next + each.count
        stream.spans += spans

    # -- writing ---------------------------------------------------------------------------------

    def precede(self, items: Iterable[tuple[Record, Data]]) -> bool:
        """Return whether something waits that must be written before these records.

        The outcome of a step keeps what the step has said, and the end of the run everything.  What
        the workflow's own code has said precedes the next checkpoint: without it, that code is
        executed again.
        """
        calls = (getattr(record, "call", None) for record, _ in items)
        return self._log.is_unsure or any(c is None or c.number in self._spoke for c in calls)

    def flush(self, *, durable: bool = True) -> None:
        """Write what waits.

        Raises:
            StoreError: it cannot be written; it waits on.
        """
        with self._writing:
            self._log.settle()
            with Uninterrupted(), self._lock:
                if not self._ops:
                    return
                payload = b"".join(self._pieces)
                self._log.prepare(self._firsts, self._ops, payload, durable=durable)
                self._ops, self._firsts, self._pieces, self._size = [], {}, [], 0
                self._spoke.clear()
            self._log.settle()

    def _rouse(self, seconds: float = GROUP) -> None:
        """Have what waits written soon, by a thread that belongs to no run."""
        if self._timer is None and self._ops:
            self._timer = threading.Timer(seconds, self._flush_by_itself)
            start_apart(self._timer)

    def _flush_by_itself(self) -> None:
        with Uninterrupted(), self._lock:
            self._timer = None
        try:
            self.flush()
        except (Exception, RunStopped):  # the next record of the run raises it
            with Uninterrupted(), self._lock:
                self._rouse(_AGAIN_LATER)

    def state(self) -> Sequence[Any]:
        """Return the end of the streams for a checkpoint, once the log has it.

        While old items wait to be kept, it is where they begin; they must be the last ones.
        """
        with Uninterrupted(), self._writing, self._lock:
            for name, stream in self._streams.items():
                first = next((n for n, each in enumerate(stream.spans) if each.old), None)
                if first is not None and not all(each.old for each in stream.spans[first:]):
                    self._withdraw_old(name, stream, set())
            self.flush(durable=False)
            if not any(each.old for each in self._streams.values()):
                last, link, withdrew = *self._log.at[:2], self._log.withdrew
                table = {name: (each.next, each.next) for name, each in self._streams.items()}
                unsaid = [
                    [name, each.first, each.count, each.source, each.around]
                    for spans in self._unsaid.values()
                    for name, each in spans
                ]
                link_text = (link or b"").hex()
                self._base = [last, link_text, withdrew, self._total, table, unsaid]
                return self._base
            known, held = self._base[4], dict[str, tuple[int, int]]()
            for name, stream in self._streams.items():
                ends = (each.first for each in stream.spans if each.old)
                held[name] = known.get(name, (0, 0))[0], next(ends, stream.next)
            return [*self._base[:4], held, self._base[5]]

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Withdraw what nothing has kept, since the run ends."""
        with Uninterrupted(), self._lock:
            for name, stream in self._streams.items():
                self._withdraw_old(name, stream, set())

    def close(self, *, ended: bool) -> None:
        """Write what waits, wake the readers of a run that has ended, and release the lease."""
        with Uninterrupted(), self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if ended and self._streams:
                self._begin_op().append([ENDED])
        try:
            self.flush()
        except (Exception, RunStopped):  # readers look for the end by themselves
            if not ended:
                notice(f"run {self.run_id}: what it emitted last could not be written")
        finally:
            self._log.release()


def _digest(form: str | None, data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=12, key=(form or "pickle").encode()).digest()


def _is_plain(value: Any) -> bool:
    """Return whether JSON gives back exactly this value."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    if kind is float:
        return math.isfinite(value)
    return value is None or kind in (str, bool) or (kind is int and value.bit_length() < _LARGE)
