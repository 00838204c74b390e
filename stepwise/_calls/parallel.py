"""``stepwise.map``: one step over many items, several at a time."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stepwise._calls.awaitables import coroutine_of
from stepwise._calls.driver import Core, Result, gives_awaitable, resume, start
from stepwise._calls.executors import (
    Elsewhere,
    call_plainly,
    check_executor,
    find_executor,
    ready,
    refuse_awaitables,
)
from stepwise._calls.steps import SentStep, step_of
from stepwise._execution.active_run import Scope, current_scope
from stepwise._execution.tasks import background
from stepwise._runtime.messages import fold, thread_context
from stepwise._values.preview import preview
from stepwise.errors import ConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Executor


T = TypeVar("T")
R = TypeVar("R")


@overload
def map(  # type: ignore[overload-overlap]  # noqa: A001
    step: Callable[[T], Coroutine[Any, Any, R]],
    items: Iterable[T],
    *,
    max_workers: int = 8,
    executor: Executor | str | None = None,
) -> Coroutine[Any, Any, list[R]]: ...
@overload
def map(  # noqa: A001
    step: Callable[[T], R],
    items: Iterable[T],
    *,
    max_workers: int = 8,
    executor: Executor | str | None = None,
) -> list[R]: ...
def map(  # noqa: A001
    step: Any, items: Iterable[Any], *, max_workers: int = 8, executor: Any = None
) -> Any:
    """Call a step (or a child workflow) with each item, at most ``max_workers`` at a time.

    Plain functions run in threads, coroutine functions in tasks (the call is then awaited).  The
    journal is asked in the order of the items, so that every attempt gets the same answers.

    Args:
        step: a function of one argument.
        items: the arguments, one for each call.
        max_workers: the number of calls at a time, 1 or more.
        executor: executes the bodies: a ``ProcessPoolExecutor``, another executor of
            ``concurrent.futures``, or the name ``"ray"``.  ``None`` uses the executor of the step,
            if it has one.  This process asks the journal before each body and writes the outcome
            after it.  Arguments and results are pickled if a body runs in another process; calls of
            steps in such a body are refused.  A worker that dies fails its calls
            (:class:`WorkerDiedError`), and leaves side effects in doubt.

    Returns:
        the results, in the order of the items.

    Raises:
        Exception: the exception of the first failing call in the order of the items, once the calls
            that had begun have ended.  Calls that have not begun by then are not made.
    """
    check_workers("map()", max_workers)
    recorded = step_of(step)
    if executor is not None:
        _check(step, executor)
    if inspect.iscoroutinefunction(step) or (recorded and gives_awaitable(recorded.function)):
        return coroutine_of(_awaited, "map", step, list(items), max_workers, executor)
    try:
        return _map(step, list(items), max_workers, executor)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def check_workers(what: str, max_workers: Any) -> None:
    """Refuse a number of calls at a time that is none.

    Raises:
        ConfigurationError: the message names the caller and the number.
    """
    if isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1:
        raise ConfigurationError(f"max_workers={max_workers!r} of {what}: it must be 1 or more")


def variations_of(variations: Any, what: str) -> list[dict[str, Any]]:
    """Return the values by name that each of several branches or calls has for itself.

    Raises:
        ConfigurationError: these are no variations.
    """
    if isinstance(variations, int) and not isinstance(variations, bool) and variations > 0:
        return [{} for _ in range(variations)]
    try:
        found = [dict(each) for each in variations]
    except (TypeError, ValueError):
        found = []
    if not found or any(not isinstance(name, str) for each in found for name in each):
        raise ConfigurationError(
            f"variations={preview(variations)}: give a number of {what}, or for each of them the "
            'values that differ, by name: variations=[{"model": "a"}, {"model": "b"}]'
        )
    return found


def _check(step: Any, executor: Any) -> None:
    check_executor("map()", executor)
    if hasattr(step, "run_id_for"):
        raise ConfigurationError(
            f"executor= of map(): {step!r} is a workflow, which must run in the process that "
            "records it; leave executor= out, or give a plain step"
        )
    recorded = step_of(step)
    refuse_awaitables("map()", recorded.function if recorded is not None else step)


def finder(step: Any, executor: Any) -> Callable[[], Any] | None:
    """Return a function that finds the executor of the bodies, or ``None`` if they run here."""
    recorded = step_of(step)
    own = recorded if isinstance(recorded, SentStep) and recorded.executor is not None else None
    if own is not None and (executor is None or executor == own.executor):
        return own.find  # with the resources of the step
    return None if executor is None else lambda: find_executor(executor)


class _NotBegunError(Exception):
    """A call of a map was not begun, since another one had failed.

    The thread or task that waits for the calls hears of a failure later than the next one would
    begin.
    """


def _outcomes(ended: Sequence[Any]) -> list[Any]:
    """Return the results of ended futures or tasks; raise the first exception of a call."""
    for each in ended:
        error = None if each.cancelled() else each.exception()
        if error is not None and not isinstance(error, _NotBegunError):
            raise error
    return [each.result() for each in ended]


class Begun:
    """A call that the journal has not answered, executed once or not at all."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.elsewhere: Elsewhere | None = None
        self._operation = start(core)
        self._taken = threading.Lock()  # held by the thread that executes or cancels the call

    def __call__(self) -> Any:
        """Execute the call in this thread."""
        if self._taken.acquire(blocking=False):
            try:
                return resume(self._core, self._operation, self.elsewhere).unwrap()
            finally:
                self.elsewhere = None  # drops the arguments of the call, too
        raise RuntimeError("the call was cancelled before it began")

    async def acall(self) -> Any:
        """Await the call."""
        from stepwise._calls.async_driver import aresume

        self._taken.acquire(blocking=False)
        if self.elsewhere is not None:
            elsewhere, self.elsewhere = self.elsewhere, None
            return (await aresume(self._core, self._operation, elsewhere.awaited)).unwrap()
        return (await aresume(self._core, self._operation)).unwrap()

    @property
    def answered(self) -> bool:
        """True if the outcome of the call is already known."""
        return isinstance(self._operation, Result)

    def close(self) -> None:
        """Close the call unless it is being executed.

        A thread unknown to the pool may be executing it: Ctrl-C can hit between the start of a
        thread and the pool's noting it.
        """
        if self._taken.acquire(blocking=False):
            self._core.close()


Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The arguments of one call, by place and by name."""


def begin(
    scope: Scope, step: Any, calls: Sequence[Arguments], find: Any = None
) -> list[Begun] | None:
    """Look up the calls of a step or a workflow in the journal, in order.

    Return ``None`` for a plain function, and for a generator, whose items are no outcome.
    """
    recorded, core = step_of(step), step._core if hasattr(step, "run_id_for") else None
    if recorded is not None:
        bound = () if getattr(step, "__self__", None) is None else (step.__self__,)
        calls, core = [((*bound, *args), kwargs) for args, kwargs in calls], recorded.core
    if core is None:
        return None
    cores = [core(scope, args, kwargs, asks_first=True) for args, kwargs in calls]
    # A record of a later item must not answer an earlier item, nor block it.
    later = scope.run.flows.start("stepwise map", daemon=False)
    try:
        begun = [Begun(each) for each in cores]
    finally:
        scope.run.flows.end(later)
    if find is not None:
        _send(begun, find, step, calls)
    return begun


def _send(
    begun: list[Begun], find: Callable[[], Any], step: Any, calls: Sequence[Arguments]
) -> None:
    """Run the bodies of unanswered calls in an executor."""
    waiting = [(each, call) for each, call in zip(begun, calls, strict=True) if not each.answered]
    try:
        for each, (args, kwargs) in waiting:
            each.elsewhere = Elsewhere(find, step, args, kwargs)
            each.elsewhere.prepare()
        executor = find() if waiting else None
        if executor is not None and not hasattr(executor, "connect"):
            with background():  # the thread that a pool starts with its first call outlives the run
                executor.submit(ready)  # its processes are started before there are more threads
    except BaseException:
        _close(begun)
        raise


def _map(
    step: Callable[[Any], Any], items: list[Any], max_workers: int, executor: Any = None
) -> list[Any]:
    scope, find = current_scope(), finder(step, executor)
    calls: list[Arguments] = [((item,), {}) for item in items]
    begun = begin(scope, step, calls, find) if scope is not None else None
    if begun is not None:
        return in_threads(begun, max_workers, begun, find)
    if executor is None:  # outside of a run, the step is the plain function
        return in_threads([partial(step, item) for item in items], max_workers)
    outside = find_executor(executor)

    def sent(item: Any) -> Any:
        return outside.submit(call_plainly, step, item).result()

    return in_threads([partial(sent, item) for item in items], max_workers, find=find)


def in_threads(
    jobs: Sequence[Callable[[], Any]],
    max_workers: int,
    begun: Sequence[Begun] = (),
    find: Callable[[], Any] | None = None,
) -> list[Any]:
    """Execute jobs in threads; return their results.

    Args:
        begun: the calls that the jobs make.
        find: finds the executor of the bodies.
    """
    from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

    if find is not None:
        max_workers = min(max_workers, getattr(find(), "_max_workers", max_workers))
    failed, at_work = threading.Event(), set[threading.Thread]()

    def one(job: Callable[[], Any]) -> Any:
        at_work.add(threading.current_thread())
        if failed.is_set():
            raise _NotBegunError
        try:
            return job()
        except BaseException:
            failed.set()
            raise

    pool = ThreadPoolExecutor(max_workers, thread_name_prefix="stepwise map")
    try:
        futures: list[Future[Any]] = [pool.submit(thread_context().run, one, job) for job in jobs]
        if find is not None and hasattr(find(), "lend"):
            find().lend(lambda: _settled(futures))
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        # After a failure or Ctrl-C, calls that have begun end and are recorded.
        failed.set()
        pool.shutdown(wait=True, cancel_futures=True)
        for each in [*at_work]:  # a Ctrl-C in submit() may have kept one from the pool's list
            each.join()
        _close(begun)
    return _outcomes(futures)


def _settled(futures: list[Any]) -> bool:
    """Return whether all calls have ended, or one has failed."""
    ended = [each for each in futures if each.done()]
    return len(ended) == len(futures) or any(each.exception() for each in ended)


def _close(begun: Iterable[Begun]) -> None:
    """Close the intents of calls that never started."""
    for each in begun:
        each.close()


async def _awaited(
    step: Callable[[Any], Any], items: list[Any], max_workers: int, executor: Any
) -> list[Any]:
    import asyncio

    scope, calls = current_scope(), list[Arguments](((item,), {}) for item in items)
    begun = begin(scope, step, calls, finder(step, executor)) if scope is not None else None
    if begun is not None:
        return await in_tasks([each.acall for each in begun], max_workers, begun)
    if executor is None:
        return await in_tasks([partial(step, item) for item in items], max_workers)
    outside = find_executor(executor)

    async def sent(item: Any) -> Any:
        return await asyncio.wrap_future(outside.submit(call_plainly, step, item))

    return await in_tasks([partial(sent, item) for item in items], max_workers)


async def in_tasks(
    jobs: Sequence[Callable[[], Awaitable[Any]]], max_workers: int, begun: Sequence[Begun] = ()
) -> list[Any]:
    """Execute jobs in tasks; return their results.

    Args:
        begun: the calls that the jobs make.
    """
    import asyncio

    places, failed = asyncio.Semaphore(max_workers), asyncio.Event()

    async def one(job: Callable[[], Awaitable[Any]]) -> Any:
        async with places:
            if failed.is_set():
                raise _NotBegunError
            try:
                return await job()
            except BaseException:
                failed.set()
                raise

    tasks = [asyncio.ensure_future(one(job)) for job in jobs]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        _close(begun)
    return _outcomes(tasks)
