"""Executes the operations of a call, one after the other, in this thread.

Imports: perform.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable
from typing import Any

from stepwise._operations import Attempt, Cancelled, Core, Operation, Ready, Result, Sleep, Write
from stepwise._run import scope_variable
from stepwise.errors import StepTimeoutError

__all__ = ["PATIENCE", "drive", "resume", "start", "timed_out", "write"]

PATIENCE = 30.0  # seconds without any change after which a blocked call is given up


def drive(core: Core) -> Result:
    """Execute a call to its end."""
    try:
        return _go_on(core, start(core))
    finally:
        core.close()  # after a Ctrl-C nothing of the call may stay open


def start(core: Core) -> Operation | Result:
    """Begin a call; its first operation, or its result if it needed none."""
    try:
        return next(core)
    except StopIteration as stop:
        result: Result = stop.value
        return result


def resume(core: Core, operation: Operation | Result) -> Result:
    """Execute a call that has begun."""
    try:
        return _go_on(core, operation)
    finally:
        core.close()


def _go_on(core: Core, operation: Operation | Result) -> Result:
    if isinstance(operation, Result):
        return operation
    try:
        while True:
            operation = core.send(_run(operation))
    except StopIteration as stop:
        result: Result = stop.value
        return result


def _run(operation: Operation) -> Result:
    if isinstance(operation, Attempt):
        return _attempt(operation) if operation.timeout is None else _in_thread(operation)
    if isinstance(operation, Write):
        return write(operation)
    if isinstance(operation, (Cancelled, Ready)):
        return Result()
    if isinstance(operation, Sleep):
        time.sleep(operation.seconds)
        return Result()
    changed = threading.Event()
    flows = operation.flows
    with flows.watching(changed.set):
        return Result(flows.changes != operation.seen or changed.wait(PATIENCE))


def write(operation: Write) -> Result:
    """Append a record, and wait until it is written."""
    try:
        numbers = operation.run.journal.append(operation.item, durable=operation.durable)
        operation.run.written(numbers, operation.item)
        return Result(numbers[0])
    except BaseException as error:  # raised where the call is decided about
        return Result(error=error)


def _attempt(attempt: Attempt) -> Result:
    token = scope_variable.set(attempt.scope)
    try:
        value = attempt.function(*attempt.args, **attempt.kwargs)
        if attempt.scope is None and inspect.isawaitable(value):
            value = _awaited(value)  # what settles or undoes a plain tool may be a coroutine
        return Result(value)
    except BaseException as error:  # travels as a value, and is raised by the step's wrapper
        return Result(error=error)
    finally:
        scope_variable.reset(token)


def _awaited(value: Awaitable[Any]) -> Any:
    """Await in a thread of its own, so that it does not matter whether a loop runs in this one."""
    import asyncio

    results: list[Result] = []

    async def awaited() -> Any:
        return await value

    def target() -> None:
        try:
            results.append(Result(asyncio.run(awaited())))
        except BaseException as error:
            results.append(Result(error=error))

    thread = threading.Thread(target=target, name="stepwise settling")
    thread.start()
    thread.join()
    return results[0].unwrap()


def _in_thread(attempt: Attempt) -> Result:
    """A thread cannot be stopped: past the timeout it is abandoned and its result dropped."""
    done = threading.Event()
    results: list[Result] = []

    def target() -> None:
        results.append(_attempt(attempt))
        done.set()

    context = contextvars.copy_context()
    # A daemon: what is abandoned must not keep the process alive.
    threading.Thread(
        target=context.run, args=(target,), name=f"stepwise {attempt.name}", daemon=True
    ).start()
    if done.wait(attempt.timeout):
        return results[0]
    return Result(error=timed_out(attempt))


def timed_out(attempt: Attempt) -> StepTimeoutError:
    """The error of an attempt that took too long."""
    return StepTimeoutError(
        f"an attempt of {attempt.name!r} took longer than its timeout of {attempt.timeout} s",
        step=attempt.name,
        timeout=attempt.timeout,
    )
