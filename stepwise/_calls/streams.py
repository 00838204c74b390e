"""Calls whose value arrives piece by piece, after their body has returned: streams.

Such a call is recorded when its stream ends.  A stream that its reader closed before is recorded as
far as it was read, but only once the workflow has gone on from it: made another call, or returned,
or raised an exception that did not close it.  A stream that an exception or a kill cut off is
requested again, and so is one that ended without its end mark, unless another call follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from stepwise._calls.async_driver import aresume
from stepwise._calls.driver import Attempt, Core, Result, resume
from stepwise._execution.active_run import ActiveRun, OpenStream
from stepwise._journal.records import Forgotten
from stepwise._runtime.messages import notice

Value = Callable[[list[bytes], int], Result]
Judge = Callable[[list[bytes]], bool]


class _StreamedCall(OpenStream):
    """The journal's side of a stream.

    Args:
        core: of the call, which waits for the result of its body.
        body: the attempt that opened the stream.
        value: makes the call's result of the pieces, and of the call's number if the reader left.
        complete: whether pieces are all that a reader waits for, although the stream goes on.
        finishing: whether what follows them is only the formal end of the stream.
        broken: whether pieces after which nothing came are not the whole stream.
    """

    def __init__(
        self,
        core: Core,
        body: Attempt,
        value: Value,
        complete: Judge,
        finishing: Judge,
        broken: Judge,
    ) -> None:
        assert body.scope is not None
        assert body.scope.call is not None
        self._core = core
        self._body = body
        self._value = value
        self._complete = complete
        self._finishing = finishing
        self._broken = broken
        self._run = body.scope.run
        self._number = body.scope.call.number
        self.name = body.scope.call.name
        self.pieces: list[bytes] = []
        self.unread: deque[bytes] = deque()
        self.ended = False
        self.exhausted = False  # what ended before goes on unrecorded: its run is over
        self._error: BaseException | None = None
        self._run.streams[self._number] = self

    def leave(self) -> None:
        """Record the stream as far as it was read."""
        number = 0 if self.cut or self._complete(self.pieces) else self._number
        self._end(lambda: self._value([*self.pieces], number))

    def drop(self) -> None:
        """End the call without an outcome."""
        if self._is_first():
            self._core.close()

    def _end(self, result: Callable[[], Result]) -> None:
        if self._is_first():
            given = self._given(result)
            done = resume(self._core, self._body, done=given)
            if done.error is not None and done.error is not given.error:
                done.unwrap()

    async def _aend(self, result: Callable[[], Result]) -> None:
        if self._is_first():
            given = self._given(result)
            done = await aresume(self._core, self._body, done=given)
            if done.error is not None and done.error is not given.error:
                done.unwrap()

    def _given(self, result: Callable[[], Result]) -> Result:
        try:
            return result()
        except BaseException:
            self._core.close()
            raise

    def _whole(self) -> Result:
        return self._value(self.pieces, 0)

    def _closed(self) -> bool:
        """Note that the reader closed the stream; return whether it is to be recorded now."""
        if self.ended:
            return False
        run = self._run
        if run.stopped is not None or run.ended or run.interrupted:
            self.drop()
            return False
        # Nothing is written while the generator of a reader, which left its loop and closed
        # nothing, is collected: whatever code is executing may hold a lock.
        collected = isinstance(run.unwinding.interrupt(), GeneratorExit)
        self.left = collected or not self._complete(self.pieces)
        if self.left:
            self.flow = run.unwinding.cut_off()
        return not self.left

    def _ran_out(self) -> bool:
        """Note that nothing more comes; return whether the stream is to be recorded now."""
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

    def _is_over(self) -> bool:
        """Return whether there is nothing more to read; raise what cut the stream off."""
        if self._error is not None:
            raise self._error
        return self.exhausted or self.left

    def _failed(self, error: BaseException) -> Result:
        """Keep what cut the stream off for its reader, if another reads for it."""
        self._error = error
        return Result(error=error)

    def _is_first(self) -> bool:
        """Return whether the call is not over yet, which it is from now on.

        Readers, and calls of other tasks and threads, may end it at the same time.
        """
        self.ended = True
        return self._run.streams.pop(self._number, None) is not None


class Streamed(_StreamedCall):
    """The pieces of a synchronous stream, recorded when it ends.

    Args:
        source: yields them.
    """

    def __init__(
        self,
        core: Core,
        body: Attempt,
        value: Value,
        source: Iterator[bytes],
        complete: Judge,
        finishing: Judge,
        broken: Judge,
    ) -> None:
        super().__init__(core, body, value, complete, finishing, broken)
        self._source = source
        self._mutex = threading.RLock()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._mutex:
                piece = self.unread.popleft() if self.unread else self._read()
                if self._finishing(self.pieces):
                    # Some readers (litellm) stop here, and close nothing.  What cuts off the rest
                    # is raised if they read on.
                    with contextlib.suppress(Exception):
                        self.read_rest()
            if piece is None:
                return
            yield piece

    def can_read_rest(self, *, awaits: bool) -> bool:
        """Return true: it blocks."""
        return True

    def read_rest(self) -> None:
        """Read all that is left."""
        with self._mutex:
            while (piece := self._read()) is not None:
                self.unread.append(piece)

    def close(self) -> None:
        """Its reader reads no more."""
        with self._mutex:
            if self._closed():
                self._end(self._whole)

    def _read(self) -> bytes | None:
        if self._is_over():
            return None
        try:
            piece = next(self._source, None)
        except BaseException as error:
            failed = self._failed(error)
            self._end(lambda: failed)
            raise
        if piece is None:
            if self._ran_out():
                self._end(self._whole)
        else:
            self.pieces.append(piece)
        return piece


class AsyncStreamed(_StreamedCall):
    """The pieces of an asynchronous stream, recorded when it ends; see :class:`Streamed`."""

    def __init__(
        self,
        core: Core,
        body: Attempt,
        value: Value,
        source: AsyncIterator[bytes],
        complete: Judge,
        finishing: Judge,
        broken: Judge,
    ) -> None:
        super().__init__(core, body, value, complete, finishing, broken)
        self._source = source
        self._mutex = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            async with self._mutex:
                piece = self.unread.popleft() if self.unread else await self._read()
                if self._finishing(self.pieces):  # see Streamed
                    with contextlib.suppress(Exception):
                        await self._read_rest()
            if piece is None:
                return
            yield piece

    def can_read_rest(self, *, awaits: bool) -> bool:
        """Return whether it can be awaited here: its connection belongs to an event loop."""
        return awaits and asyncio.get_running_loop() is self._loop

    async def read_rest(self) -> None:
        """Read all that is left, in a task of its own: to cancel this cuts nothing off."""
        await asyncio.shield(asyncio.ensure_future(self._read_behind_reader()))

    async def _read_behind_reader(self) -> None:
        async with self._mutex:
            with contextlib.suppress(Exception):  # its reader sees it
                await self._read_rest()

    async def _read_rest(self) -> None:
        while (piece := await self._read()) is not None:
            self.unread.append(piece)

    async def aclose(self) -> None:
        """Its reader reads no more."""
        if self._closed():
            await self._aend(self._whole)

    async def _read(self) -> bytes | None:
        if self._is_over():
            return None
        try:
            piece = await anext(self._source, None)
        except BaseException as error:
            failed = self._failed(error)
            await self._aend(lambda: failed)
            raise
        if piece is None:
            if self._ran_out():
                await self._aend(self._whole)
        else:
            self.pieces.append(piece)
        return piece


def forget_beginning(run: ActiveRun, number: int) -> None:
    """Let a stream that was recorded as far as it was read be requested again at the next start."""
    run.write((Forgotten((number,), time.time()), b""))
