"""The operations of a call, and the driver that executes them in this thread."""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar, Union

from stepwise._execution.active_run import ActiveRun, Scope, scope_variable
from stepwise._execution.flows import Gong
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Record
from stepwise._runtime import observers
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import notice, shell_word
from stepwise._values.unpickling import Data
from stepwise.errors import RunStopped, StepTimeoutError

T = TypeVar("T")

_DEPTH = 20  # the longest chain of decorators that is followed
_LATE = 1.0  # seconds beyond the recorded duration to wait for the cancellation


class Result:
    """The result of an operation: a value, or an exception that is yet to be raised.

    Exceptions travel as values: thrown through a generator, a ``StopIteration`` would change type.

    Args:
        awaited: the kind of awaitable in which a plain function's body returned the value; see
            :class:`Outcome`.
    """

    __slots__ = ("awaited", "error", "value")

    def __init__(
        self, value: Any = None, error: BaseException | None = None, awaited: str = ""
    ) -> None:
        self.value = value
        self.error = error
        self.awaited = awaited

    def unwrap(self) -> Any:
        """Return the value, or raise the exception."""
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # no cycle through the traceback


class Attempt:
    """One try of a body, inside the scope of its call; ``kind`` is the kind of the callee."""

    __slots__ = ("args", "function", "kind", "kwargs", "name", "scope", "timeout")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        scope: Scope | None,
        name: str,
        timeout: float | None = None,
        kind: str = "",
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.scope, self.name, self.timeout, self.kind = scope, name, timeout, kind


class Sleep(NamedTuple):
    """A pause between two attempts."""

    seconds: float


class Cancelled(NamedTuple):
    """A wait for the cancellation that ended the recorded call; the error is this cancellation.

    The value is true if no cancellation came within ``seconds``.  A call that is not awaited cannot
    be cancelled, so it does not wait.

    Args:
        awaited: the kind of awaitable in which a plain function's body returned its outcome.
    """

    seconds: float
    awaited: str = ""


class Wait(NamedTuple):
    """A wait for a bell; the value says whether the bell rang within ``seconds``.

    A Ctrl-C or a cancellation meanwhile is the error of the result.

    Args:
        seen: how often the bell had rung when the caller decided to wait.
    """

    bell: Gong
    seen: int
    seconds: float


class Ready(NamedTuple):
    """The point at which the journal has been asked, and nothing was done yet."""


class Write:
    """The append of a record with its payload to the journal of a run.

    The value of the result is the record's number.  An error beside a value is a cancellation of
    the caller, not a failure of the journal.

    Args:
        at_once: True to write before any other code runs, so that nobody cancels the caller
            meanwhile.
    """

    __slots__ = ("at_once", "durable", "item", "run")

    def __init__(
        self,
        run: ActiveRun,
        item: tuple[Record, Data],
        durable: bool = True,
        at_once: bool = False,
    ) -> None:
        self.run, self.item, self.durable, self.at_once = run, item, durable, at_once


READY = Ready()
NOTHING = Result()
"""The result of an operation that does nothing."""

Operation = Union[Attempt, Cancelled, Sleep, Ready, Wait, Write]
Core = Generator[Operation, Result, Result]


def cancelled_again(scope: Scope, recorded: RecordedCall) -> Generator[Cancelled, Result, Result]:
    """Wait for what cancelled the recorded call: a timeout, a task group, the workflow itself.

    An immediate answer would make ``wait_for`` raise a cancellation that nobody asked for, instead
    of its ``TimeoutError``.  If the code no longer cancels, or cancels later, the value of the
    result is true, and a plain step runs again.  A side effect is not repeated.
    """
    call, outcome = recorded.call, recorded.outcome
    assert outcome is not None
    took = max(0.0, outcome.at - call.at)
    again = yield Cancelled(took + _LATE, outcome.awaited)
    if again.value and call.effect and not call.child:
        notice(
            f"run {scope.run.run_id}: {call.name} was cancelled the last time, after {took:.1f} s, "
            "and is a side effect that is not repeated: it waits to be cancelled again. If nothing "
            "cancels it any more, stop the program, find out whether it happened, and settle it: "
            f"stepwise resolve {shell_word(scope.run.run_id)} {call.number} --landed JSON | "
            "--did-not-happen"
        )
        again = yield Cancelled(math.inf, outcome.awaited)
    return again


# -- executing them ------------------------------------------------------------------------------


def drive(core: Core) -> Result:
    """Execute a call until it ends."""
    return resume(core, start(core))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Execute a coroutine that suspends nowhere, as code does that also has an asynchronous use."""
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    work.close()
    raise RuntimeError("a synchronous call was to be awaited")


class Unfinished(NamedTuple):
    """A call that has to be awaited from here on.

    Args:
        core: the core that executes the call.
        operation: the attempt whose body returned an awaitable, or the operation to await.
        value: the awaitable.
    """

    core: Core
    operation: Operation
    value: Any = None


# For most classes, the answer is an AttributeError inside, which takes fifteen times as long.
_is_awaitable: Callable[[Any], bool] = functools.lru_cache(256)(lambda c: hasattr(c, "__await__"))


def drive_on(core: Core) -> Result | Unfinished:
    """Execute a call until it ends, or until it has to be awaited."""
    goes_on = False
    try:
        operation = next(core)
        while True:
            if isinstance(operation, Attempt):
                done = run(operation)
                if _is_awaitable(type(done.value)):
                    goes_on = True
                    return Unfinished(core, operation, done.value)
            elif isinstance(operation, Cancelled) and operation.awaited:
                goes_on = True
                return Unfinished(core, operation)
            else:
                done = run(operation)
            operation = core.send(done)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        if not goes_on:
            core.close()


def start(core: Core) -> Operation | Result:
    """Begin a call; return its first operation, or its result if it needs none."""
    try:
        return next(core)
    except StopIteration as stop:
        result: Result = stop.value
        return result


def is_body(operation: Operation) -> bool:
    """Return whether an operation is an attempt of the body, not of ``reconcile=`` or the like."""
    return isinstance(operation, Attempt) and operation.scope is not None


def resume(
    core: Core,
    operation: Operation | Result,
    execute: Callable[[Operation], Result] | None = None,
    done: Result | None = None,
) -> Result:
    """Execute a call that has begun; ``execute`` runs its operations, by default :func:`run`.

    Args:
        done: the result of ``operation``, if it is already known.
    """
    execute = execute or run
    try:
        while not isinstance(operation, Result):
            operation, done = core.send(done or execute(operation)), None
        return operation
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        core.close()  # a Ctrl-C leaves nothing of the call open


def run(operation: Operation) -> Result:
    """Execute an operation in this thread; a body with a timeout gets a thread."""
    if isinstance(operation, Attempt):
        at_once = operation.timeout is None or gives_awaitable(operation.function)
        execute = in_thread_of if at_once else _in_thread
        if observers.tracer is None:
            return execute(operation)
        return observers.trace(execute, operation)
    if isinstance(operation, Write):
        return write(operation)
    if isinstance(operation, (Cancelled, Ready)):
        return NOTHING
    if isinstance(operation, Sleep):
        time.sleep(operation.seconds)
        return Result()
    return _wait(operation)


def _wait(operation: Wait) -> Result:
    bell, rung = operation.bell, threading.Event()
    try:
        with bell.watching(rung.set):
            return Result(bell.changes != operation.seen or rung.wait(operation.seconds))
    except BaseException as error:  # raised by the code that decides about the call
        return Result(error=error)


def gives_awaitable(function: Any) -> bool:
    """Return whether a function, or any function that it wraps, returns an awaitable."""
    for _ in range(_DEPTH):
        if inspect.iscoroutinefunction(function):
            return True
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if inner is None and not inspect.isroutine(function) and not inspect.isclass(function):
            inner = vars(type(function)).get("__call__")
        if inner is None or inner is function:
            return False
        function = inner
    return False


def write(operation: Write) -> Result:
    """Append a record, and wait until it is written."""
    try:
        return Result(operation.run.write(operation.item, durable=operation.durable)[0])
    except BaseException as error:  # raised by the code that decides about the call
        return Result(error=error)


def written(active: ActiveRun, result: Result) -> tuple[int, BaseException | None]:
    """Return a record's number and a cancellation that came meanwhile; a failure stops the run."""
    if isinstance(result.error, RunStopped):
        raise active.stop(result.error) from result.error.__cause__
    if result.value is None:
        result.unwrap()
    number: int = result.value
    return number, result.error


def in_thread_of(attempt: Attempt) -> Result:
    """Execute a body in the current thread."""
    token = scope_variable.set(attempt.scope)
    try:
        value = attempt.function(*attempt.args, **attempt.kwargs)
        if attempt.scope is None and inspect.isawaitable(value):
            value = _awaited(value)  # a plain tool's reconcile or compensate may be async
        return Result(value)
    except BaseException as error:  # travels as a value, and is raised by the step's wrapper
        return Result(error=error)
    finally:
        scope_variable.reset(token)


def _awaited(value: Awaitable[Any]) -> Any:
    """Await a value in another thread, since this thread may run an event loop."""
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
    """Execute a body in a new thread, abandoned past the timeout since it cannot be stopped."""
    done = threading.Event()
    results: list[Result] = []

    def target() -> None:
        results.append(in_thread_of(attempt))
        done.set()

    context = contextvars.copy_context()
    # A daemon thread: an abandoned body must not keep the process alive.
    threading.Thread(
        target=context.run, args=(target,), name=f"stepwise {attempt.name}", daemon=True
    ).start()
    if done.wait(attempt.timeout):
        return results[0]
    return Result(error=timed_out(attempt))


def timed_out(attempt: Attempt) -> StepTimeoutError:
    """Return the error for an attempt that took too long."""
    return StepTimeoutError(
        f"an attempt of {attempt.name!r} took longer than its timeout of {attempt.timeout} s",
        step=attempt.name,
        timeout=attempt.timeout,
    )
