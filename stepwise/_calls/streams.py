"""Streams: calls whose value arrives piece by piece, after their body has returned.

A call is recorded when its stream ends.  If the reader closes a stream early, the part that was
read is recorded once the workflow has continued.  It has continued when it made another call,
returned, or raised an exception that did not close the stream.  A stream that an exception or a
kill cut off is requested again.  So is a stream that ended without its end mark, unless another
call follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from stepwise._calls.async_driver import aresume
from stepwise._calls.driver import Attempt, Core, Result, at_once, resume
from stepwise._execution.active_run import ActiveRun
from stepwise._journal.records import Forgotten
from stepwise._runtime.messages import notice

Value = Callable[[list[bytes], int], Result]
Judge = Callable[[list[bytes]], bool]


class _StreamedCall:
    """The journal's side of a stream.

    Args:
        core: the core of the call, which waits for the result of its body.
        body: the attempt that opened the stream.
        value: builds the call's result from the pieces, and from the call's number if the reader
            left.
        source: yields the pieces.
        complete: returns whether the pieces are all that a reader waits for, although the stream
            goes on.
        finishing: returns whether only the formal end of the stream follows the pieces.
        broken: returns whether the pieces, if nothing follows, are not the whole stream.

    Attributes:
        left: True if its reader has closed it before its end.
        flow: the flow of control that an exception was unwinding at that moment; 0 for none.
        cut: True if the stream ended without its end mark.
    """

    left = cut = _is_async = False
    flow = 0

    def __init__(
        self,
        core: Core,
        body: Attempt,
        value: Value,
        source: Any,
        *,
        complete: Judge,
        finishing: Judge,
        broken: Judge,
    ) -> None:
        assert body.scope is not None
        assert body.scope.call is not None
        self._core = core
        self._body = body
        self._value = value
        self._source = source
        self._complete = complete
        self._finishing = finishing
        self._broken = broken
        self._run = body.scope.run
        self._number = body.scope.call.number
        self.name = body.scope.call.name
        self.pieces: list[bytes] = []
        self.unread: deque[bytes] = deque()
        self.ended = False
        self.exhausted = False  # an ended stream can be read on, unrecorded: its run is over
        self._error: BaseException | None = None
        self._run.streams[self._number] = self

    def leave(self) -> None:
        """Record the part of the stream that was read."""
        number = 0 if self.cut or self._complete(self.pieces) else self._number
        if self._is_first():
            given = self._given(lambda: self._value([*self.pieces], number))
            self._check(given, resume(self._core, self._body, done=given))

    def drop(self) -> None:
        """End the call without an outcome."""
        if self._is_first():
            self._core.close()

    async def _end(self, result: Callable[[], Result]) -> None:
        if self._is_first():
            given = self._given(result)
            if self._is_async:
                done = await aresume(self._core, self._body, done=given)
            else:
                done = resume(self._core, self._body, done=given)
            self._check(given, done)

    def _check(self, given: Result, done: Result) -> None:
        if done.error is not None and done.error is not given.error:
            done.unwrap()

    async def _read(self) -> bytes | None:
        """Return the next piece; ``None`` at the end of the stream, which is recorded then."""
        if self._error is not None:
            raise self._error
        if self.exhausted or self.left:
            return None
        try:
            source: Any = self._source
            piece: Any = await anext(source, None) if self._is_async else next(source, None)
        except BaseException as error:
            self._error = error  # for the reader of the stream, if another reads in its place
            failed = Result(error=error)
            await self._end(lambda: failed)
            raise
        if piece is not None:
            self.pieces.append(piece)
        elif self._ran_out():
            await self._end(self._whole)
        return piece  # type: ignore[no-any-return]

    async def _read_rest(self) -> None:
        while (piece := await self._read()) is not None:
            self.unread.append(piece)

    async def _next(self) -> bytes | None:
        """Return the next piece for the reader."""
        piece = self.unread.popleft() if self.unread else await self._read()
        if self._finishing(self.pieces):
            # Some readers (litellm) stop here and close nothing.  An error in the remaining
            # stream is raised if they read on.
            with contextlib.suppress(Exception):
                await self._read_rest()
        return piece

    def _given(self, result: Callable[[], Result]) -> Result:
        try:
            return result()
        except BaseException:
            self._core.close()
            raise

    def _whole(self) -> Result:
        return self._value(self.pieces, 0)

    def _closed(self) -> bool:
        """Note that the reader closed the stream; return whether to record it now."""
        if self.ended:
            return False
        run = self._run
        if run.stopped is not None or run.ended or run.interrupted:
            self.drop()
            return False
        # Write nothing while a reader's generator is garbage-collected after its loop was left
        # unclosed: the code that is executing may hold a lock.
        collected = isinstance(run.unwinding.interrupt(), GeneratorExit)
        self.left = collected or not self._complete(self.pieces)
        if self.left:
            self.flow = run.unwinding.cut_off()
        return not self.left

    def _ran_out(self) -> bool:
        """Note that the stream has ended; return whether to record it now."""
        self.exhausted = True
        if self._broken(self.pieces):
            self.left = self.cut = True
            self.flow = self._run.unwinding.cut_off()
            notice(
                f"{self._run.run_id}: the stream of {self.name} ended without its end mark, and "
                "may have been cut off: the next start requests it again, unless another call "
                "follows here"
            )
        return not self.cut

    def _is_first(self) -> bool:
        """Mark the call as over; return whether it was open until now.

        Readers, and calls of other tasks and threads, may end it at the same time.
        """
        self.ended = True
        return self._run.streams.pop(self._number, None) is not None


class Streamed(_StreamedCall):
    """The pieces of a synchronous stream, recorded when it ends."""

    def __init__(self, *opened: Any, **ends: Any) -> None:
        super().__init__(*opened, **ends)
        self._mutex = threading.RLock()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._mutex:
                piece = at_once(self._next())
            if piece is None:
                return
            yield piece

    def can_read_rest(self, *, awaits: bool) -> bool:
        """Return true: reading blocks."""
        return True

    def read_rest(self) -> None:
        """Read all remaining pieces."""
        with self._mutex:
            at_once(self._read_rest())

    def close(self) -> None:
        """Note that the reader stops reading."""
        with self._mutex:
            if self._closed():
                at_once(self._end(self._whole))


class AsyncStreamed(_StreamedCall):
    """The pieces of an asynchronous stream, recorded when it ends."""

    _is_async = True

    def __init__(self, *opened: Any, **ends: Any) -> None:
        super().__init__(*opened, **ends)
        self._mutex = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            async with self._mutex:
                piece = await self._next()
            if piece is None:
                return
            yield piece

    def can_read_rest(self, *, awaits: bool) -> bool:
        """Return whether reading can be awaited here: the connection belongs to one event loop."""
        return awaits and asyncio.get_running_loop() is self._loop

    async def read_rest(self) -> None:
        """Read all remaining pieces, in a separate task so that a cancellation cuts nothing off."""
        await asyncio.shield(asyncio.ensure_future(self._read_behind_reader()))

    async def _read_behind_reader(self) -> None:
        async with self._mutex:
            with contextlib.suppress(Exception):  # the reader gets the error
                await self._read_rest()

    async def aclose(self) -> None:
        """Note that the reader stops reading."""
        if self._closed():
            await self._end(self._whole)


def forget_beginning(run: ActiveRun, number: int) -> None:
    """Forget a partly read stream, so that the next start requests it again."""
    run.write((Forgotten((number,), time.time()), b""))
