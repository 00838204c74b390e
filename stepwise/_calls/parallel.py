"""``stepwise.map``: one step over many items, several at a time."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from stepwise._calls.driver import (
    Attempt,
    Core,
    Operation,
    Result,
    gives_awaitable,
    in_thread_of,
    resume,
    run,
    start,
    timed_out,
)
from stepwise._calls.steps import step_of
from stepwise._execution.active_run import Scope, current_scope, scope_variable
from stepwise._journal.records import Call
from stepwise._runtime import tracing
from stepwise._runtime.tracebacks import fold
from stepwise._values import codec
from stepwise.errors import ConfigurationError, NotRecordableError, OutsideRunError

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["map"]

T = TypeVar("T")
R = TypeVar("R")


@overload
def map(  # type: ignore[overload-overlap]  # noqa: A001
    step: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], *, max_workers: int = 8
) -> Coroutine[Any, Any, list[R]]: ...
@overload
def map(  # noqa: A001
    step: Callable[[T], R],
    items: Iterable[T],
    *,
    max_workers: int = 8,
    executor: Executor | None = None,
) -> list[R]: ...
def map(  # noqa: A001
    step: Any, items: Iterable[Any], *, max_workers: int = 8, executor: Any = None
) -> Any:
    """Call a step (or a child workflow) with each item, at most ``max_workers`` at a time.

    Plain functions run in threads, coroutine functions in tasks (the call is then awaited).  The
    journal is asked in the order of the items, so that what answers is the same in every attempt.

    Args:
        step: a function of one argument.
        items: what to call it with.
        max_workers: how many at a time, 1 or more.
        executor: executes the bodies: a ``ProcessPoolExecutor`` or another executor of
            ``concurrent.futures``.  The journal is asked and written in this process, before and
            after each body.  What the body is given and returns is pickled where it is executed in
            another process; steps that it calls there are refused.  A worker that dies is a failure
            of the calls it had, and leaves side effects in doubt.

    Returns:
        the results, in the order of the items.

    Raises:
        Exception: what the first failing call (in the order of the items) raised, once the calls
            that had begun have ended; calls not begun by then are not made.
    """
    if isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1:
        raise ConfigurationError(f"max_workers={max_workers!r} of map(): it must be 1 or more")
    recorded = step_of(step)
    if executor is not None:
        _check_executor(step, executor)
    elif inspect.iscoroutinefunction(step) or (recorded and gives_awaitable(recorded.function)):
        return _amap(step, list(items), max_workers)
    try:
        return _map(step, list(items), max_workers, executor)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _check_executor(step: Any, executor: Any) -> None:
    from concurrent.futures import Executor

    if not isinstance(executor, Executor):
        raise ConfigurationError(
            f"executor={executor!r} of map(): it must be an executor of concurrent.futures, such "
            "as ProcessPoolExecutor()"
        )
    recorded = step_of(step)
    function = recorded.function if recorded is not None else step
    if hasattr(step, "run_id_for") or gives_awaitable(function):
        kind = "a workflow" if hasattr(step, "run_id_for") else "a coroutine function"
        raise ConfigurationError(
            f"executor= of map(): {step!r} is {kind}, which must run in the process that "
            "records it; leave executor= out, or give a plain step"
        )


class _Begun:
    """A call that the journal has not answered: executed once, or not at all."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.run: Callable[[Operation], Result] | None = None
        self._operation = start(core)
        self._taken = threading.Lock()  # held by the thread that executes or cancels the call

    def __call__(self) -> Any:
        """Execute it in this thread."""
        if self._taken.acquire(blocking=False):
            return resume(self._core, self._operation, self.run).unwrap()
        raise RuntimeError("the call was cancelled before it began")

    async def acall(self) -> Any:
        """Await it."""
        from stepwise._calls.async_driver import aresume

        self._taken.acquire(blocking=False)
        return (await aresume(self._core, self._operation)).unwrap()

    @property
    def answered(self) -> bool:
        """True if the outcome of the call is already known."""
        return isinstance(self._operation, Result)

    def close(self) -> None:
        """Close the call if nobody has begun to execute it.

        A thread may just execute it that the pool does not know of: Ctrl-C can hit between the
        start of a thread and the pool's noting it.
        """
        if self._taken.acquire(blocking=False):
            self._core.close()


def _begin(step: Any, items: list[Any], executor: Any = None) -> list[_Begun] | None:
    """Look up each item in the journal, in order; return ``None`` if nothing is recorded here."""
    scope, recorded = current_scope(), step_of(step)
    if scope is None or recorded is None:
        return None
    bound = () if getattr(step, "__self__", None) is None else (step.__self__,)
    cores = [recorded.core(scope, (*bound, item), {}) for item in items]
    # A record of a later item must not answer an earlier item, nor block it.
    later = scope.run.flows.start("stepwise map", daemon=False)
    try:
        begun = [_Begun(core) for core in cores]
    finally:
        later.leave()
    if executor is not None:
        _send(begun, executor, step, [(*bound, item) for item in items])
    return begun


def _send(begun: list[_Begun], executor: Any, step: Any, calls: list[tuple[Any, ...]]) -> None:
    """Run the remaining bodies in an executor."""
    waiting = [(each, args) for each, args in zip(begun, calls, strict=True) if not each.answered]
    try:
        for each, args in waiting:
            each.run = _Elsewhere(executor, step, args)
        if waiting:
            executor.submit(_ready)  # it starts its processes before there are more threads
    except BaseException:
        _close(begun)
        raise


def _map(
    step: Callable[[Any], Any], items: list[Any], max_workers: int, executor: Any = None
) -> list[Any]:
    from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

    begun = _begin(step, items, executor)
    if executor is not None:
        max_workers = min(max_workers, getattr(executor, "_max_workers", max_workers))
    if begun is None and executor is not None:
        jobs: list[Callable[[], Any]] = [
            lambda item=item: executor.submit(step, item).result()  # type: ignore[misc]
            for item in items
        ]
    elif begun is None:
        jobs = [_plain(step, item) for item in items]
    else:
        jobs = [*begun]
    pool = ThreadPoolExecutor(max_workers, thread_name_prefix="stepwise map")
    try:
        futures: list[Future[Any]] = [
            pool.submit(contextvars.copy_context().run, job) for job in jobs
        ]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        # After a failure, and after Ctrl-C: calls that have begun end and are recorded.
        pool.shutdown(wait=True, cancel_futures=True)
        _close(begun)
    for future in futures:
        if not future.cancelled() and (error := future.exception()) is not None:
            raise error
    return [future.result() for future in futures]


def _close(begun: list[_Begun] | None) -> None:
    """Close the intents of calls that never started."""
    for each in begun or ():
        each.close()


def _plain(step: Callable[[Any], Any], item: Any) -> Callable[[], Any]:
    return lambda: step(item)


async def _amap(step: Callable[[Any], Any], items: list[Any], max_workers: int) -> list[Any]:
    try:
        return await _awaited(step, items, max_workers)
    except BaseException as error:
        raise fold(error)  # noqa: B904


async def _awaited(step: Callable[[Any], Any], items: list[Any], max_workers: int) -> list[Any]:
    import asyncio

    begun = _begin(step, items)
    places = asyncio.Semaphore(max_workers)

    async def one(index: int) -> Any:
        async with places:
            if begun is None:
                return await step(items[index])
            return await begun[index].acall()

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(items))]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        _close(begun)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]


# -- bodies in an executor -----------------------------------------------------------------------
#
# Only the body is executed there: the owner has asked the journal, has written an intent, and
# records the outcome.  What goes to a worker process is the decorated function with its arguments,
# and comes back as bytes, so that a value or an exception that cannot be sent names itself and
# breaks no pool.


class _Elsewhere:
    """Runs the bodies of a call's attempts in an executor; a driver of operations.

    Args:
        step: the decorated function.
        args: what it is called with.

    Raises:
        NotRecordableError: the call cannot be sent to another process; nothing of it has begun.
    """

    def __init__(self, executor: Any, step: Any, args: tuple[Any, ...]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._executor = executor
        # Python 3.14's pool of interpreters is a pool of threads, but they share no objects.
        interpreters = "Interpreter" in type(executor).__name__
        self._shares = isinstance(executor, ThreadPoolExecutor) and not interpreters
        self._encoded = None if self._shares else _packed(getattr(step, "__func__", step), args)

    def __call__(self, operation: Operation) -> Result:
        """Execute an operation of a call; a body in the executor."""
        if not isinstance(operation, Attempt) or operation.scope is None:
            return run(operation)
        return tracing.trace(self._sent, operation)

    def _sent(self, operation: Attempt) -> Result:
        assert operation.scope is not None
        try:
            if self._encoded is None:
                context = contextvars.copy_context()
                future = self._executor.submit(context.run, in_thread_of, operation)
            else:
                future = self._executor.submit(_execute, _work(self._encoded, operation.scope))
            return self._came_of(future, operation)
        except Exception as error:  # the pool is broken or shut down
            return Result(error=error)

    def _came_of(self, future: Any, attempt: Attempt) -> Result:
        from concurrent.futures import wait

        done, _ = wait([future], attempt.timeout)
        if not done:
            future.cancel()  # a body that has begun is abandoned
            return Result(error=timed_out(attempt))
        came = future.result()
        if self._shares:
            result: Result = came
            return result
        value, error, trace = came
        if error is None:
            return Result(codec.decode(value.data, value.form))
        raised = codec.decode_error(error.data, error.form)
        raised.__cause__ = _Remote(trace)
        return Result(error=raised)


def _packed(function: Any, args: tuple[Any, ...]) -> codec.Encoded:
    try:
        return codec.encode((function, args))
    except NotRecordableError as error:
        place, name = error.path, getattr(function, "__qualname__", function)
        part = f"argument{place.removeprefix('[1]')}" if place.startswith("[1]") else "function"
        raise NotRecordableError(
            f"a call of {name!r} cannot be sent to another process: its {part} is a "
            f"{error.type_name}. Give it plain data, or an executor of threads",
            path=place,
            type_name=error.type_name,
        ) from error


def _work(encoded: codec.Encoded, scope: Scope) -> _Work:
    assert scope.call is not None
    return _Work(encoded, scope.call, scope.attempt, scope.run.run_id)


class _Remote(Exception):  # noqa: N818
    """The traceback of a body in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


# -- in the worker -------------------------------------------------------------------------------


class _Work(NamedTuple):
    """The task that is sent to a worker process."""

    encoded: codec.Encoded
    call: Call
    attempt: int
    run_id: str


class _NotHere:
    """A stand-in for the run in a worker process, where nothing can be recorded."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def __getattr__(self, name: str) -> Any:
        raise OutsideRunError(
            f"a step, a workflow or a run was used in a worker process of run "
            f"{self.run_id!r}, which only the process that started it can record. Make the "
            "worker's whole job one step, of plain functions",
            run_id=self.run_id,
        )


def _ready() -> None:
    """Do nothing: the executor starts its processes, before there are more threads."""


def _execute(work: _Work) -> tuple[Any, Any, str]:
    """Execute a body: its value or its exception, encoded, and the text of its traceback."""
    call, run_id = work.call, work.run_id
    # The body can read its idempotency key; steps that it calls are refused.
    here: Any = _NotHere(run_id)
    token = scope_variable.set(Scope(here, call, (call.number,), work.attempt, []))
    try:
        function, args = codec.decode(work.encoded.data, work.encoded.form)
        step = step_of(function)
        plain = step.function if step is not None else function
        value = plain(*args)
        return codec.encode(value, f"the value returned by {call.name!r}"), None, ""
    except Exception as error:
        return None, codec.encode_error(error), codec.traceback_text(error)
    finally:
        scope_variable.reset(token)
