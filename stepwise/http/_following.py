"""Following a run: its server-sent events, and its readers.

Readers of a run give it a process that continues it, and an end when nobody reads on.
``recover()`` looks once, when a server starts.  A run whose server dies later is continued by the
first server that a reader of it comes to.

The readers that other processes and applications serve are not known here, so
``cancel_when_left`` is for one process, or for several with each run's readers at one of them.

Rejected: a record in the store for each reader; a reader would cost writes, and that of a killed
server would stay.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from stepwise._execution.process_memory import known_workflow
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.summary import deaths_of
from stepwise._runs.run import Run
from stepwise._values.data import plain
from stepwise._workflows.handles import Backlog, waker
from stepwise.errors import RunBusyError, RunEndedError, RunStopped, StepwiseError
from stepwise.stores import Store
from stepwise.ui._events import cancelled, server_ends

# -- events ----------------------------------------------------------------------------------------


END = "end"
"""The id of the last event of a run; a browser that reconnects with it is sent away."""

Encode = Callable[[list[Any]], Iterator[bytes]]
"""Yields the bytes to send for some items."""


class NoJsonError(Exception):
    """A value has no form in JSON; the text says which and why."""


def json_text(value: Any, what: str) -> str:
    """Return a value as JSON.

    Raises:
        NoJsonError: the value has no form in JSON.
    """
    try:
        return json.dumps(value, default=plain, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NoJsonError(f"{what} has no form in JSON: {error}") from error


def event(data: str, name: str = "", number: object = None) -> bytes:
    """Return a server-sent event."""
    lines = [f"event: {name}"] * bool(name) + [f"id: {number}"] * (number is not None)
    lines += [
        f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "backslashreplace")


def encoder(form: Callable[[Any], Any] | None) -> Encode:
    """Return the function that writes items as events.

    Args:
        form: the user's function, or ``None`` for the value of each item as JSON.
    """
    return lambda items: (_event_of(item, form) for item in items)


def _event_of(item: Any, form: Callable[[Any], Any] | None) -> bytes:
    data = item.value if form is None else form(item)
    if form is not None and (data is None or isinstance(data, bytes)):
        return data or b""
    is_text = form is not None and isinstance(data, str)
    text = data if is_text else json_text(data, f"the item {item.offset}")
    name = "" if item.kind == "item" else item.kind
    return event(text, name, END if item.kind == "end" else item.offset)


def problem_event(text: str) -> bytes:
    """Return the event for a stream that cannot go on; nothing follows it."""
    return event(json_text(text, "a problem"), "problem", END)


# -- the events of a stream -----------------------------------------------------------------------


_ALIVE = 15.0  # seconds without an item after which a reader gets a comment


async def kept_alive(
    groups: AsyncGenerator[list[Any], None], encode: Encode
) -> AsyncGenerator[bytes, None]:
    """Yield the events of items, and a comment whenever none came for a while."""
    following: asyncio.Task[list[Any]] | None = None
    async with aclosing(groups):
        try:
            while True:
                following = following or asyncio.ensure_future(anext(groups))
                done, _ = await asyncio.wait({following}, timeout=_ALIVE)
                if not done:
                    yield b":\n\n"
                    continue
                try:
                    items = following.result()
                except StopAsyncIteration:
                    return
                following, written, problem = None, list[bytes](), None
                try:
                    for data in encode(items):
                        written.append(data)  # what precedes a problem is sent
                except Exception as error:
                    problem = error
                yield b"".join(written)
                if problem is not None:
                    raise problem
        finally:
            await cancelled(following)


# -- readers ---------------------------------------------------------------------------------------


_LOOK_AT_RUN = 1.0  # seconds between two looks whether a run has lost its process

_logger = logging.getLogger("stepwise.http")


class _RunReaders:
    """The readers of one run."""

    def __init__(self) -> None:
        self.readers = self.arrivals = 0
        self.left = asyncio.Event()
        self.problem = ""  # that was logged last


class Followers:
    """The readers of all runs in this process.

    Args:
        store: the store of the runs.
        cancel_when_left: the seconds after which a run is cancelled that its last reader has left;
            ``None`` for never.
    """

    def __init__(self, store: Store, cancel_when_left: float | None) -> None:
        self._store, self._grace = store, cancel_when_left
        self._read: dict[str, _RunReaders] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly

    @contextmanager
    def reading(self, run: Run) -> Iterator[None]:
        """Count a reader of a run, as long as the context lasts."""
        reading = self._read.get(run.id)
        if reading is None:
            reading = self._read[run.id] = _RunReaders()
            task = asyncio.get_running_loop().create_task(self._tend(run, reading))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        reading.readers += 1
        reading.arrivals += 1
        reading.left.clear()
        try:
            yield
        finally:
            reading.readers -= 1
            if not reading.readers:
                reading.left.set()

    async def _tend(self, run: Run, reading: _RunReaders) -> None:
        try:
            while reading.readers or not await self._is_over(run, reading):
                await self._continue(run, reading)
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(reading.left.wait(), _LOOK_AT_RUN)
        finally:
            if self._read.get(run.id) is reading:
                del self._read[run.id]

    async def _is_over(self, run: Run, reading: _RunReaders) -> bool:
        """Return whether nobody has come back; cancel the run then, if that is asked for."""
        if self._grace is not None and not server_ends():
            arrivals = reading.arrivals
            await asyncio.sleep(self._grace)
            if reading.arrivals != arrivals:
                return False
            if not server_ends():
                await asyncio.to_thread(_cancel, run)
        return not reading.readers

    async def _continue(self, run: Run, reading: _RunReaders) -> None:
        """Continue a run here if no process executes it."""
        try:
            dead = await asyncio.to_thread(self._dead, run)
            if dead is None:
                return
            if known_workflow(dead.workflow).is_coroutine:
                dead.resume()  # as a task of this loop
            else:
                await asyncio.to_thread(dead.resume)
        except RunBusyError:  # another process continues it
            return
        except (StepwiseError, RunStopped) as error:
            if str(error) != reading.problem:
                _logger.warning("run %s is not continued here: %s", run.id, error)
            reading.problem = str(error)

    def _dead(self, run: Run) -> Run | None:
        """Return the run that must be continued here, or its parent that calls it."""
        backlog = Backlog(self._store)
        found = backlog.look_at(run.id)
        if found is not None:
            why = found.why()
            if why is None or (found.run.store.url, found.run.id) in waker.parked():
                return None
            if why == "crashed" and deaths_of(self._store, found.seal, found.facts).are_deadly:
                raise StepwiseError("its process died again and again at the same step")
            return found.run
        facts = facts_of(self._store, seal_for(self._store), run._to_go_on().id)
        return run if facts is not None and facts.status == "interrupted" else None


def _cancel(run: Run) -> None:
    try:
        run.cancel("its last reader left")
    except RunEndedError:
        return
    except (StepwiseError, RunStopped) as error:
        _logger.warning("run %s is not cancelled: %s", run.id, error)
