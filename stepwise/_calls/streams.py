"""Calls whose value arrives piece by piece, after their body has returned: streams.

Such a call is recorded when its stream ends.  A stream that its reader closed before is recorded as
far as it was read, but only once the workflow has gone on from it (made another call, or returned):
a stream that an exception or a kill cut off is requested again.
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
from stepwise._calls.driver import Attempt, Core, Result, resume
from stepwise._execution.active_run import ActiveRun
from stepwise._journal.records import Forgotten

__all__ = ["AsyncStreamed", "Streamed", "forget_beginning"]

Value = Callable[[list[bytes], int], Any]


class _StreamedCall:
    """The journal's side of a stream.

    Args:
        core: of the call, which waits for the result of its body.
        body: the attempt that opened the stream.
        value: makes the call's value of the pieces, and of the call's number if the reader left.
        complete: whether pieces are all that a reader waits for, although the stream goes on.
    """

    asynchronous = False

    def __init__(
        self, core: Core, body: Attempt, value: Value, complete: Callable[[list[bytes]], bool]
    ) -> None:
        assert body.scope is not None
        assert body.scope.call is not None
        self._core = core
        self._body = body
        self._value = value
        self._complete = complete
        self._run = body.scope.run
        self._number = body.scope.call.number
        self.name = body.scope.call.name
        self.left = False
        self.pieces: list[bytes] = []
        self.unread: deque[bytes] = deque()
        self.ended = False
        self._error: BaseException | None = None
        self._run.streams[self._number] = self

    def read_rest(self) -> Any:
        """Read the stream to its end, and record it; its reader gets the rest from memory."""
        raise NotImplementedError

    def leave(self) -> None:
        """Record the stream as far as it was read."""
        if not self.ended:
            number = 0 if self._complete(self.pieces) else self._number
            self._end(Result(self._value(self.pieces, number)))

    def drop(self) -> None:
        """End the call without an outcome."""
        self._over()
        self._core.close()

    def _end(self, result: Result) -> None:
        self._over()
        done = resume(self._core, self._body, done=result)
        if done.error is not None and done.error is not result.error:
            done.unwrap()

    async def _aend(self, result: Result) -> None:
        self._over()
        done = await aresume(self._core, self._body, done=result)
        if done.error is not None and done.error is not result.error:
            done.unwrap()

    def _closed(self) -> bool:
        """Note that the reader closed the stream; return whether it is to be recorded now."""
        if self.ended:
            return False
        run, interrupt = self._run, self._run.unwinding.interrupt()
        # The generator of a reader that left its loop and closed nothing is collected: no call
        # follows if it is the workflow itself that ends so.
        collected = isinstance(interrupt, GeneratorExit)
        if run.stopped is not None or run.ended or run.interrupted or (interrupt and not collected):
            self.drop()
            return False
        # Nothing is written while collecting: whatever code is executing may hold a lock.
        self.left = collected or not self._complete(self.pieces)
        return not self.left

    def _is_over(self) -> bool:
        """Return whether there is nothing more to read; raise what cut the stream off."""
        if self._error is not None:
            raise self._error
        return self.ended or self.left

    def _failed(self, error: BaseException) -> Result:
        """Keep what cut the stream off for its reader, if another reads for it."""
        self._error = error
        return Result(error=error)

    def _over(self) -> None:
        self.ended = True
        self._run.streams.pop(self._number, None)


class Streamed(_StreamedCall):
    """The pieces of a synchronous stream, recorded when it ends.

    Args:
        source: yields them.
        complete: whether pieces are all that a reader waits for, although the stream goes on.
        finishing: whether what follows them is only the formal end of the stream.
    """

    def __init__(
        self,
        core: Core,
        body: Attempt,
        value: Value,
        source: Iterator[bytes],
        complete: Callable[[list[bytes]], bool],
        finishing: Callable[[list[bytes]], bool],
    ) -> None:
        super().__init__(core, body, value, complete)
        self._source = source
        self._finishing = finishing
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

    def read_rest(self) -> None:
        """Read all that is left."""
        with self._mutex:
            while (piece := self._read()) is not None:
                self.unread.append(piece)

    def close(self) -> None:
        """Its reader reads no more."""
        with self._mutex:
            if self._closed():
                self._end(Result(self._value(self.pieces, 0)))

    def _read(self) -> bytes | None:
        if self._is_over():
            return None
        try:
            piece = next(self._source, None)
        except BaseException as error:
            self._end(self._failed(error))
            raise
        if piece is None:
            self._end(Result(self._value(self.pieces, 0)))
        else:
            self.pieces.append(piece)
        return piece


class AsyncStreamed(_StreamedCall):
    """The pieces of an asynchronous stream, recorded when it ends; see :class:`Streamed`."""

    asynchronous = True

    def __init__(
        self,
        core: Core,
        body: Attempt,
        value: Value,
        source: AsyncIterator[bytes],
        complete: Callable[[list[bytes]], bool],
        finishing: Callable[[list[bytes]], bool],
    ) -> None:
        super().__init__(core, body, value, complete)
        self._source = source
        self._finishing = finishing
        self._mutex = asyncio.Lock()

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

    async def read_rest(self) -> None:
        """Read all that is left."""
        async with self._mutex:
            await self._read_rest()

    async def _read_rest(self) -> None:
        while (piece := await self._read()) is not None:
            self.unread.append(piece)

    async def aclose(self) -> None:
        """Its reader reads no more."""
        if self._closed():
            await self._aend(Result(self._value(self.pieces, 0)))

    async def _read(self) -> bytes | None:
        if self._is_over():
            return None
        try:
            piece = await anext(self._source, None)
        except BaseException as error:
            await self._aend(self._failed(error))
            raise
        if piece is None:
            await self._aend(Result(self._value(self.pieces, 0)))
        else:
            self.pieces.append(piece)
        return piece


def forget_beginning(run: ActiveRun, number: int) -> None:
    """Let a stream that was recorded as far as it was read be requested again at the next start."""
    run.write((Forgotten((number,), time.time()), b""))
