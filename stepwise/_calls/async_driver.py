"""The asynchronous driver: awaits the operations of a call; the counterpart of ``driver``.

Imported at the first asynchronous call, so that a synchronous program does not load asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable

from stepwise._calls.driver import (
    NOTHING,
    Attempt,
    Cancelled,
    Core,
    Operation,
    Ready,
    Result,
    Sleep,
    Unfinished,
    Wait,
    Write,
    is_body,
    run,
    start,
    timed_out,
    write,
)
from stepwise._execution.active_run import joins, scope_variable
from stepwise._execution.tasks import many
from stepwise._runtime import observers


async def adrive(core: Core) -> Result:
    """Await a call until it ends."""
    return await aresume(core, start(core))


async def until_body(core: Core, *, is_async: bool) -> Attempt | Result:
    """Execute a call up to its body, which the caller runs, or to its result if it has no body.

    Args:
        is_async: whether its operations are awaited; else :func:`.at_once` executes the coroutine.
    """
    operation = start(core)
    try:
        while not (isinstance(operation, Result) or is_body(operation)):
            operation = core.send(await arun(operation) if is_async else run(operation))
    except StopIteration as stop:
        operation = stop.value
    assert isinstance(operation, (Attempt, Result))
    return operation


async def aresume(
    core: Core,
    operation: Operation | Result,
    execute: Callable[[Operation], Awaitable[Result]] | None = None,
    done: Result | None = None,
) -> Result:
    """Await a call that has begun; ``execute`` runs its operations, by default :func:`arun`.

    Args:
        done: the result of ``operation``, if it is already known.
    """
    execute = execute or arun
    try:
        while not isinstance(operation, Result):
            operation, done = core.send(done or await execute(operation)), None
        return operation
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        core.close()  # a Ctrl-C or a cancellation leaves nothing of the call open


async def afinish(unfinished: Unfinished, awaited: str) -> Result:
    """Await a call whose body has been called and has returned an awaitable."""
    core, operation, value = unfinished
    try:
        if not isinstance(operation, Attempt):
            return await aresume(core, operation)
        scope = operation.scope
        if scope is not None and scope.call is not None:
            scope.run.flows.begin(scope.call.number, child=bool(scope.call.child))  # in this task
        done = await in_task_of(operation, value)
        done.awaited = awaited
        return await aresume(core, operation, done=done)
    finally:
        core.close()


async def arun(operation: Operation) -> Result:
    """Await one operation of a call."""
    if isinstance(operation, Attempt):
        body = _of_body if observers.tracer is None else in_task_of
        return await body(operation)
    if isinstance(operation, Write):
        at_once = operation.at_once or not many(operation.run)
        return write(operation) if at_once else await _write(operation)
    if isinstance(operation, Ready):
        return NOTHING
    if isinstance(operation, Sleep):
        await asyncio.sleep(operation.seconds)
        return Result()
    if isinstance(operation, Cancelled):
        return await _cancelled(operation)
    return await _wait(operation)


async def _cancelled(operation: Cancelled) -> Result:
    try:
        await asyncio.sleep(operation.seconds)
    except asyncio.CancelledError as error:
        return Result(error=error)
    return Result(True)


async def _wait(operation: Wait) -> Result:
    bell, loop = operation.bell, asyncio.get_running_loop()
    rung = loop.create_future()  # asyncio.wait_for may swallow a cancellation before Python 3.12

    def wake(ringing: bool) -> None:
        if not rung.done():
            rung.set_result(ringing)

    def ring() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake, True)

    with bell.watching(ring):
        if bell.changes != operation.seen:
            return Result(True)
        timer = loop.call_later(operation.seconds, wake, False)
        try:
            return Result(await rung)
        except BaseException as error:  # raised by the code that decides about the call
            return Result(error=error)
        finally:
            timer.cancel()


async def in_task_of(attempt: Attempt, value: object = None) -> Result:
    """Await a body; ``value`` is its awaitable if the body has been called already."""
    if observers.tracer is None:
        return await _of_body(attempt, value)
    left = observers.enter_attempt(attempt)
    result = await _of_body(attempt, value)
    if left is not None:
        observers.leave(left, result.error)
    return result


async def _of_body(attempt: Attempt, value: object = None) -> Result:
    token = scope_variable.set(attempt.scope)
    try:
        if token.old_value is token.MISSING or token.old_value is None:
            joins()  # a task outside the run awaits the call
        if value is None:
            value = attempt.function(*attempt.args, **attempt.kwargs)
        if not inspect.isawaitable(value):
            return Result(value)  # a reconcile function may be plain
        if attempt.timeout is None:
            return Result(await value)
        return await _limited(attempt, asyncio.ensure_future(value))
    except BaseException as error:  # travels as a value, and is raised by the step's wrapper
        return Result(error=error)
    finally:
        scope_variable.reset(token)


async def _limited(attempt: Attempt, task: asyncio.Future[object]) -> Result:
    # Not asyncio.wait_for: if time runs out just as the task ends, its value must not be lost.
    try:
        done, _ = await asyncio.wait({task}, timeout=attempt.timeout)
        if done:
            return Result(task.result())
        task.cancel()
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if not task.cancelled() and task.exception() is None:
        return Result(task.result())
    return Result(error=timed_out(attempt))


# -- writing -------------------------------------------------------------------------------------


class _Written(asyncio.Future[None]):
    """The future of a write, which ignores cancellation until the outcome of the write is known."""

    def cancel(self, msg: object = None) -> bool:
        return False


async def _write(operation: Write) -> Result:
    """Append a record in another thread, in one transaction with other waiting records."""
    loop, cancelled = asyncio.get_running_loop(), None
    written, emissions = _Written(loop=loop), operation.run.emissions
    if emissions is not None and emissions.precede((operation.item,)):
        flushed = loop.run_in_executor(None, emissions.flush)
        while not flushed.done():
            try:
                await asyncio.wait({flushed})
            except asyncio.CancelledError as error:
                cancelled = error
        if flushed.exception() is not None:
            return Result(error=flushed.exception())
    share = operation.run.journal.submit(operation.item, durable=operation.durable, future=written)
    try:
        await written
    except asyncio.CancelledError as error:
        cancelled = error
    if share.error is not None:
        return Result(error=share.error)
    operation.run.summary.note(share.numbers, (operation.item,))
    return Result(share.numbers[0], cancelled)
