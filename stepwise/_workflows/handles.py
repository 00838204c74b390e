"""``start()``: a run beside its caller, and the handle that waits for it.

A run is taken up before its handle is given: whoever is told its id can rely on it.  A plain
workflow executes in a thread that the interpreter waits for at its end, an asynchronous one in a
task of the running event loop.
"""

from __future__ import annotations

import abc
import contextvars
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepwise._calls.driver import drive
from stepwise._execution.active_run import current_scope, live_runs
from stepwise._execution.suspension import suspended_text
from stepwise._runs.as_dict import RunStatus
from stepwise._runs.run import Run
from stepwise._runtime import asyncio_state
from stepwise._runtime.interrupts import ending, sigterms
from stepwise._runtime.messages import notice, reports
from stepwise._runtime.public_names import public
from stepwise._runtime.thread_context import call_at_exit
from stepwise._values.preview import preview
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import execute, execute_async, record_interruption
from stepwise._workflows.invoke import TopLevel, run_of
from stepwise._workflows.opening import Recall
from stepwise._workflows.resume import WorkflowRun
from stepwise._workflows.suspending import end_waiting, until_due
from stepwise.errors import ConfigurationError, RunSuspended

if TYPE_CHECKING:
    import asyncio


__all__ = ["AsyncHandle", "Handle", "StartedRun", "start"]

R = TypeVar("R")

_tasks_held: set[asyncio.Task[Any]] = set()  # an event loop holds its tasks weakly
_woken: set[tuple[str, str]] = set()  # suspended runs that go on beside the cell that called them
_threads_held: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class StartedRun(abc.ABC):
    """A run that executes beside its caller.

    Args:
        run: what is recorded of it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self.id} {self.status}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    @property
    def status(self) -> RunStatus:
        """The status of the run, as ``Run.status``."""
        return self.run.status

    @property
    @abc.abstractmethod
    def done(self) -> bool:
        """True if the run no longer runs in this process: it ended, or it stopped.

        A suspended run goes on in this process by itself, so that it is not done.
        """

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"run {self.id!r} has not ended after {timeout} s; it continues")


@public
class Handle(StartedRun, Generic[R]):
    """A run that executes in a thread of this process."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True if the run no longer runs in this process: it ended, or it stopped.

        A suspended run goes on in this process by itself, so that it is not done.
        """
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or stopped; False if it has not after ``timeout`` seconds.

        Ctrl-C ends the waiting, not the run.
        """
        return self._ended.wait(timeout)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the run, and return its result, or raise its exception.

        Raises:
            TimeoutError: it has not ended after ``timeout`` seconds; it continues.
        """
        if not self._ended.wait(timeout):
            raise self._late(timeout)
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value

    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._ended.set()


@public
class AsyncHandle(StartedRun, Generic[R]):
    """A run that executes in a task of an event loop; awaited, it gives the result."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._task: asyncio.Task[Any]

    @property
    def done(self) -> bool:
        """True if the run no longer runs in this process: it ended, or it stopped.

        A suspended run goes on in this process by itself, so that it is not done.
        """
        return self._task.done()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or stopped; False if it has not after ``timeout`` seconds.

        A cancellation ends the waiting, not the run.
        """
        import asyncio

        done, _ = await asyncio.wait({self._task}, timeout=timeout)
        return bool(done)

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the run, and return its result, or raise its exception.

        Raises:
            TimeoutError: it has not ended after ``timeout`` seconds; it continues.
        """
        if not await self.wait(timeout):
            raise self._late(timeout)
        value: R = self._task.result()
        return value

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()


# -- starting ------------------------------------------------------------------------------------


def start(workflow: Definition, instance: Any, args: Any, kwargs: Any) -> Any:
    """Start a run; gives its handle.

    Raises:
        ConfigurationError: it cannot be started: a generator, inside a run, or without a loop.
        StepwiseError: as a call of the workflow raises before it begins.
    """
    refuse_start(workflow, f"{workflow.label}.start()")
    top = TopLevel(workflow, instance, args, kwargs)
    top.promised = True
    top.choose()
    if not workflow.is_coroutine:
        return start_thread(top)
    if not asyncio_state.loop_runs():
        raise ConfigurationError(
            f"{workflow.label}.start() was called where no event loop is running, which would "
            "execute it: call it in a coroutine, or write asyncio.run(...) around the program"
        )
    return start_task(top)


def refuse_start(workflow: Definition, what: str) -> None:
    """Refuse to start a generator, and anything inside a run; ``what`` names the operation."""
    if workflow.is_generator or workflow.is_async_generator:
        raise ConfigurationError(
            f"{what}: nothing would consume the items of a generator workflow; "
            "iterate over it where you need them"
        )
    refuse_inside(what)


def refuse_inside(what: str) -> None:
    """Refuse to start runs inside a run, which could not resume them."""
    scope = current_scope()
    if scope is not None:
        raise ConfigurationError(
            f"{what} was called inside run {scope.run.run_id!r}, which would not record it: call "
            "the workflow, as a child run; or, if it is not part of that run, put it under "
            "`with stepwise.background():`"
        )


def start_thread(top: TopLevel) -> Handle[Any]:
    """Execute a run in a thread of its own; return when the run is taken over, or waits."""
    handle: Handle[Any] = Handle(run_of(top.store, top.run_id))
    began, refused = threading.Event(), list[BaseException]()

    def target() -> None:
        try:
            execute_here(top, handle, waits=began.set, begins=began.set, wakes=True)
        finally:
            if not began.is_set() and handle._error is not None:
                refused.append(handle._error)
            began.set()

    begin_thread(f"stepwise {top.run_id}", target)
    began.wait()
    if refused:
        raise refused[0]
    if handle.id != top.run_id:  # another process took over the intended run first
        handle.run = run_of(top.store, top.run_id)
    return handle


def begin_thread(name: str, target: Callable[[], None]) -> None:
    """Start a thread that the interpreter waits for at its end, while everything still works."""
    call_at_exit(_wait_for_threads)
    sigterms.begin()  # here: a thread cannot
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(target,), name=name, daemon=False)
    _threads_held.add(thread)
    thread.start()


def _wait_for_threads() -> None:
    """Wait for the started runs; after Ctrl-C, only for the steps in progress."""
    ending.begin()
    end_waiting()
    for thread in list(_threads_held):
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                if ending.by_ctrl_c:  # the second one
                    raise
                ending.by_ctrl_c = True
                for run in list(live_runs):
                    run.flows.change()


def execute_here(
    top: TopLevel,
    handle: Handle[Any],
    *,
    waits: Callable[[], None] | None = None,
    begins: Callable[[], None] | None = None,
    wakes: bool = False,
) -> None:
    """Execute a run in this thread, for a handle.

    Args:
        waits: called when somebody else executes it, and it waits.
        begins: called when it is taken up.
        wakes: should the run suspend, wait until it has to go on, and execute it again.
    """
    try:
        while True:
            try:
                value = _executed(top, waits, begins)
                break
            except RunSuspended as error:
                tell_failure(top, error, wakes=wakes)
                if not wakes or not drive(until_due(top.store, top.run_id)).unwrap():
                    handle._end(error=error)
                    return
            top.again()
    except BaseException as error:  # the store's, too, while the run waited
        tell_failure(top, error)
        handle._end(error=error)
    else:
        handle._end(value)


def _executed(
    top: TopLevel, waits: Callable[[], None] | None, begins: Callable[[], None] | None
) -> Any:
    top.begin_here(waits)
    with top as opened:
        _detach(opened)
        if begins is not None:
            begins()
        if isinstance(opened, Recall):
            return opened.value
        if top.workflow.is_coroutine:
            import asyncio

            return asyncio.run(execute_async(opened))
        return execute(opened)


def wake_here(top: TopLevel) -> None:
    """Execute a suspended run again as soon as it has to go on, beside its caller."""
    key = top.store.url, top.run_id
    if key in _woken:
        return
    _woken.add(key)
    top.unheard = True
    if top.workflow.is_coroutine and asyncio_state.loop_runs():
        task = sys.modules["asyncio"].create_task(_wake_in_task(top))
        _tasks_held.add(task)
        task.add_done_callback(_tasks_held.discard)
    else:
        begin_thread(f"stepwise {top.run_id}", lambda: _wake_in_thread(top))


def _wake_in_thread(top: TopLevel) -> None:
    try:
        if drive(until_due(top.store, top.run_id)).unwrap():
            top.again()
            execute_here(top, Handle(run_of(top.store, top.run_id)), wakes=True)
    except BaseException as error:
        tell_failure(top, error)
    finally:
        _woken.discard((top.store.url, top.run_id))


async def _wake_in_task(top: TopLevel) -> None:
    from stepwise._calls.async_driver import adrive  # a synchronous program does not load asyncio

    try:
        if (await adrive(until_due(top.store, top.run_id))).unwrap():
            top.again()
            await _execute_and_wake(top)
    except BaseException as error:
        tell_failure(top, error)
        if not isinstance(error, Exception):
            raise
    finally:
        _woken.discard((top.store.url, top.run_id))


def start_task(top: TopLevel, limit: asyncio.Semaphore | None = None) -> AsyncHandle[Any]:
    """Execute a run in a task of the running loop; it is taken over at once.

    Args:
        limit: it is taken up when that lets it pass.
    """
    import asyncio

    if limit is None:
        top.begin_now()
    handle: AsyncHandle[Any] = AsyncHandle(run_of(top.store, top.run_id))
    work = _execute_task(top, limit) if limit is not None else _execute_and_wake(top)
    task = asyncio.get_running_loop().create_task(work, name=top.run_id)
    if isinstance(top.taken, WorkflowRun):
        # The run is neither finished nor executed by the thread that starts it.
        top.taken.active.task, top.taken.active.unwinding.main = task, id(task)
    _tasks_held.add(task)
    task.add_done_callback(lambda _: _ended(top, task))
    handle._task = task
    return handle


async def _execute_and_wake(top: TopLevel) -> Any:
    """Execute a run, again and again as long as it suspends."""
    from stepwise._calls.async_driver import adrive  # a synchronous program does not load asyncio

    while True:
        try:
            return await _execute_task(top, None)
        except RunSuspended as error:
            tell_failure(top, error, wakes=True)
            if not (await adrive(until_due(top.store, top.run_id))).unwrap():
                raise
            top.again()


async def _execute_task(top: TopLevel, limit: asyncio.Semaphore | None) -> Any:
    if limit is not None:
        async with limit:
            return await _execute_task(top, None)
    await top.begin()
    with top as opened:
        _detach(opened)
        return opened.value if isinstance(opened, Recall) else await execute_async(opened)


def _ended(top: TopLevel, task: asyncio.Task[Any]) -> None:
    _tasks_held.discard(task)
    if isinstance(top.taken, WorkflowRun) and not top.taken.active.ended:
        # Its task was cancelled before it began: by the end of the loop, or by a Ctrl-C.
        ambient = sys.exc_info()[1]
        if isinstance(ambient, KeyboardInterrupt):
            record_interruption(top.taken.active, ambient)
        top.taken.active.close()
        if top.display is not None:
            top.display.close()
    if not task.cancelled():
        error = task.exception()
        if error is not None:
            tell_failure(top, error)


def _detach(opened: Recall | WorkflowRun) -> None:
    if isinstance(opened, WorkflowRun):
        opened.active.detached = True


@reports
def tell_failure(top: TopLevel, error: BaseException, *, wakes: bool = False) -> None:
    """Report that a run ended by raising, since nobody may ask its handle."""
    if top.opened:
        if isinstance(error, RunSuspended):
            here = ". It goes on here by itself" if wakes else ""
            notice(f"{suspended_text(error.run_id, error.waits)}{here}")
        else:
            notice(f"{top.run_id}, which was started, ended with {preview(error)}")
