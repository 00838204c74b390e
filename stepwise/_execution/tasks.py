"""The tasks and threads of a run, code outside it, and the end of a program after SIGTERM.

The module finds the tasks and threads of a run that could make a call, and counts a loop's tasks.

A run must know its other tasks at each checkpoint.  asyncio does not report new tasks.  Asking all
of them each time made a step of 64 concurrent runs cost five times a step of one run.  So each task
is examined once: a set difference finds the tasks that are new since the last look, however they
were made.  The run around each new task adds it to a set, and later asks only the tasks of its own
set.  References are weak, so that nothing here keeps a task alive.

Rejected: a task factory.  ``asyncio.Task(...)`` and other people's factories bypass it.

The module also carries a run into threads, and detects code that does not see the run it may belong
to.

After SIGTERM in a program without a handler, no step begins, steps in flight may end, and then the
program ends.

A plain workflow in the main thread is unwound by ``SystemExit``, raised immediately if no step is
in flight, else by the next call.  Workflows in other threads are unwound by their next call.  The
caller of an asynchronous run is cancelled once no step of the run is in flight; calls made before
then wait for the cancellation.

The process ends with the last run, by the signal, as it would have without us: no ``atexit``
callback runs, nor any code around the calls of the workflows.  Letting the exception end the
program was rejected: code that swallows it would continue, and the exit status would differ.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from stepwise._execution import active_run
from stepwise._execution.flows import Worker
from stepwise._runtime import asyncio_state, settings
from stepwise._runtime.asyncio_state import TaskReference
from stepwise._runtime.forks import Carrier, process_lock, start_apart, works_for_a_run
from stepwise._runtime.interrupts import AFTER_SIGTERM, raise_from_signal, sigterms
from stepwise._runtime.messages import count, notice, reports, warn
from stepwise.errors import OutsideRunError, UnrecordedCallWarning

if TYPE_CHECKING:
    from stepwise._execution.replaying import TypedThread

# -- other tasks ----------------------------------------------------------------------------------


_FEW = 10  # tasks: the run's own, its caller's, and eight branches
_MANY = 1000  # number of references above which those to ended tasks are dropped


class _KnownTasks:
    """The tasks that were examined, by their event loops.

    A task counts as seen after it was taken in, so that looking needs no lock.
    """

    def __init__(self) -> None:
        self._mutex = process_lock()
        self._references: set[TaskReference] = set()
        self._loops: dict[int, dict[TaskReference, None]] = {}  # the oldest task first
        self._most = _MANY

    def look(self) -> None:
        """Take in the tasks that are new since the last look."""
        new = asyncio_state.references() - self._references
        if not new:
            return
        with self._mutex:
            for reference in new:
                task = reference()
                if not _is_over(task):
                    self._take_in(reference, task)
            self._references.update(new)
            if len(self._references) > self._most:
                self._drop_ended()

    def _take_in(self, reference: TaskReference, task: Any) -> None:
        self._loops.setdefault(id(asyncio_state.loop_of(task)), {})[reference] = None
        scope = _scope_of(task)
        if scope is not None and isinstance(
            scope.run, active_run.ActiveRun
        ):  # else a worker process's run
            scope.run.root.flows.tasks.add(reference)

    def _drop_ended(self) -> None:
        self._references -= {each for each in self._references if each() is None}
        for loop, tasks in tuple(self._loops.items()):
            for each in tuple(tasks):
                if _is_over(each()):
                    del tasks[each]
            if not tasks:
                del self._loops[loop]
        self._most = max(_MANY, 2 * len(self._references))

    def more_than(self, count: int, loop: Any) -> bool:
        """Return whether a loop has more than ``count`` unfinished tasks among those seen."""
        mine = self._loops.get(id(loop), {})
        while len(mine) > count:
            over = [each for each in islice(mine, count + 1) if _is_over(each())]
            if not over:
                return True
            with self._mutex:
                for each in over:
                    mine.pop(each, None)
        return False

    def forget(self) -> None:
        """Forget the seen tasks, so that every task is examined again."""
        with self._mutex:
            self._references.clear()


def _is_over(task: Any) -> bool:
    return task is None or task.done()


_known = _KnownTasks()
look_again = _known.forget


def _scope_of(task: Any) -> active_run.Scope | None:
    context = asyncio_state.context_of(task)
    return context.get(active_run.scope_variable) if context is not None else None


def many(run: active_run.ActiveRun) -> bool:
    """Return whether so many calls are in progress that sharing their flushes is worthwhile.

    With a shared flush, other branches continue while a step's record is written, and after a kill
    at that moment the step runs again.  With few branches, records are written before any other
    code runs, so that no work is repeated; one flush for each record is affordable then.
    """
    few = _FEW + run.idle
    return run.flows.busy(few + 1) or is_crowded(few)


def is_crowded(few: int) -> bool:
    """Return whether this thread's event loop has more than ``few`` unfinished tasks.

    Only the oldest tasks are checked, however many there are: each finished task is met once.
    """
    if asyncio_state.loaded() is None or len(asyncio_state.references()) <= few:
        return False  # without asyncio, something else drives the coroutine
    loop = asyncio_state.loaded()._get_running_loop()
    if _known.more_than(few, loop):
        return True
    _known.look()
    return _known.more_than(few, loop)


def tasks_within(root: active_run.ActiveRun) -> Iterator[tuple[Any, active_run.Scope]]:
    """Yield the unfinished tasks of this thread's loop in a run or in its child runs."""
    me = asyncio_state.current()
    if me is None:
        return
    _known.look()
    loop, tasks = asyncio_state.loop_of(me), root.flows.tasks
    for reference in tuple(tasks):
        task = reference()
        if _is_over(task):
            tasks.discard(reference)
        elif asyncio_state.loop_of(task) is loop:
            scope = _scope_of(task)
            if scope is not None and scope.run.root is root:
                yield task, scope


def _others_of(run: active_run.ActiveRun) -> Iterator[Any]:
    me = asyncio_state.current()
    for task, scope in tasks_within(run.root):
        if task is not me and run in scope.run.lineage():
            yield task


def tasks_of(run: active_run.ActiveRun) -> list[Any]:
    """Return the unfinished tasks of a run and of its child runs, except the current task."""
    return list(_others_of(run))


def others_alive(run: active_run.ActiveRun) -> bool:
    """Return whether a task or thread other than the run's main one could make a call."""
    flows = run.flows
    in_threads = not flows.are_none and (flows.others_working() or bool(flows.others()))
    return in_threads or _others_in_tasks(run)


def others_may_claim(run: active_run.ActiveRun) -> bool:
    """Return whether a task or thread other than the waiting ones could make a call."""
    idle = run.flows.idle()
    main_thread = run.task is None and run.thread not in (0, *idle)
    threads = run.flows.others_working() or bool(run.flows.others(claiming=True))
    return threads or main_thread or _others_in_tasks(run, idle)


def _others_in_tasks(run: active_run.ActiveRun, idle: Container[int] = ()) -> bool:
    if asyncio_state.current() is None:
        return False
    main = run.unwinding.main
    return any(id(task) != main and id(task) not in idle for task in _others_of(run))


def name_of_another(run: active_run.ActiveRun) -> str:
    """Describe another running task or thread; return "" if none will make calls."""
    for task in tasks_of(run):
        if not asyncio_state.closes_generator(task):
            what = getattr(task.get_coro(), "__qualname__", type(task.get_coro()).__qualname__)
            return f"the task {task.get_name()!r} ({what})"
    names = run.flows.others()
    if names:
        return f"the thread {names[0]!r}"
    return "a step in another thread" if run.flows.others_working() else ""


# -- outside --------------------------------------------------------------------------------------


def _begin_thread(
    scope: active_run.Scope | None, name: str, daemon: bool
) -> Worker | TypedThread | _BackgroundThread | None:
    """Register a thread that a debugger or the workflow's own code starts, not those of steps."""
    if active_run.debugged.look is not None and active_run.debugged.look.is_typed():
        return active_run.debugged.look.new_thread()
    left = active_run.left_branch.get()
    if scope is None and left:
        return _BackgroundThread(left)
    if scope is None or scope.call is not None:
        return None
    return scope.run.flows.start(name, daemon=daemon)


class _BackgroundThread:
    """A thread, or a job of a pool, that the background of a branch starts."""

    def __init__(self, branch: str) -> None:
        self._branch = branch
        self._token: contextvars.Token[str] | None = None

    def __enter__(self) -> None:
        self._token = active_run.left_branch.set(self._branch)

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            active_run.left_branch.reset(token)


carrier = Carrier(active_run.scope_variable, _begin_thread)

_NOWHERE = object()


def warn_if_unseen(what: str) -> None:
    """Warn if a step called where no run is visible may belong to a run in progress.

    Raises:
        OutsideRunError: the call is typed at the prompt of a debugger, or a run is only looked at.
    """
    look = active_run.debugged.look
    if look is not None and (not look.live or look.is_typed()):
        why = f"{what} is refused while a run is debugged or rerun: no run is visible here"
        raise OutsideRunError(why, run_id=look.run_id)
    _warn_if_unseen(what)


def refuse_beside_branch(what: str) -> None:
    """Refuse a side effect called where no run is visible, while a branch is executed.

    Raises:
        OutsideRunError: code of the branch may have called it: in the background, in an older
            thread, or in a worker process.
    """
    branch = os.environ.get(settings.IN_BRANCH, "") or active_run.branch_around()
    if branch:
        raise OutsideRunError(
            f"{what} has side effects, and was called where no run is visible, while branch "
            f"{branch!r} is executed, which makes none. If it does not belong to the branch, "
            "call it once branch() has returned",
            run_id=branch,
        )


@reports
def _warn_if_unseen(what: str) -> None:
    """Warn if the call is not known to be outside of any run.

    In a task it does not belong to one: tasks inherit the context.  Nor does it where the variable
    is set to ``None``: in a thread started outside, in the background, in a reconcile function.
    The remaining cases are threads older than the run, calls in an emptied context, and worker
    processes.
    """
    if works_for_a_run() and active_run.scope_variable.get(_NOWHERE) is _NOWHERE:
        warn(
            f"{what} was called in a worker process, while a run is in progress in the process "
            "that started this one: it ran without being recorded. Call it there, in tasks or "
            "threads, or make the worker's whole job one step; if it does not belong to the "
            "run, put it under `with stepwise.background():`",
            UnrecordedCallWarning,
        )
    if not active_run.live_runs or active_run.scope_variable.get(_NOWHERE) is not _NOWHERE:
        return
    here = threading.get_ident()
    for run in list(active_run.live_runs):
        if run.thread == here or threading.current_thread() is not threading.main_thread():
            break
    else:
        return
    if asyncio_state.current() is None:
        warn(
            f"{what} was called where no run is visible, while run {run.run_id!r} is in progress: "
            "it ran without being recorded. If it belongs to the run, call it with "
            "contextvars.copy_context().run(...), or start the thread inside the workflow; if not, "
            "put it under `with stepwise.background():`",
            UnrecordedCallWarning,
        )


@contextmanager
def background() -> Iterator[None]:
    """Keep code, tasks and threads that are started in this block out of the run.

    Use it for a tracer, a client's keep-alive, or a metrics thread: steps called there are plain
    functions, and the run does not wait for them.
    """
    if active_run.debugged.look is not None and active_run.debugged.look.is_typed():
        run_id = active_run.debugged.look.run_id
        why = "stepwise.background() is refused at a prompt: steps in it would be executed"
        raise OutsideRunError(why, run_id=run_id)
    scope = active_run.current_scope()
    left = active_run.left_branch.get()
    if scope is not None and scope.run.is_branch:
        left = scope.run.root.run_id
    token, marked = active_run.scope_variable.set(None), active_run.left_branch.set(left)
    try:
        yield
    finally:
        active_run.left_branch.reset(marked)
        active_run.scope_variable.reset(token)
        active_run.joins()  # the task may have been examined meanwhile


# -- draining -------------------------------------------------------------------------------------


_SOON = 0.1  # seconds that the code between two steps has to reach the next step, or its end
_IGNORED = 1.0  # seconds after which a signal to this process counts as ignored (it is init)


def drain(at_end: Callable[[], None]) -> None:
    """Let the runs end; called by the signal handler, between any two main-thread instructions.

    Args:
        at_end: called when the grace period of steps in flight is over, before the process ends.
    """
    grace = settings.grace()
    if not active_run.live_runs or not grace:
        _end_process()
    late = threading.Thread(target=_end_late, args=(grace, at_end), name="stepwise drain")
    start_apart(late)
    _report(grace)
    _let_all_go()
    if _executes_here() and not asyncio_state.loop_runs():
        raise_from_signal(SystemExit(AFTER_SIGTERM))


def _let_all_go() -> None:
    for run in list(active_run.live_runs):
        run.flows.change()  # waiting calls check whether they still may wait
        if run.parent is None:
            let_go(run)


@contextlib.contextmanager
def drained() -> Iterator[None]:
    """Let no step begin during the block, for programs that end themselves by their own handler."""
    sigterms.count += 1  # cancellations from now on do not mean that somebody gave up
    sigterms.draining, sigterms.ends_process = True, False
    _let_all_go()
    try:
        yield
    finally:
        if not active_run.live_runs:
            sigterms.draining, sigterms.ends_process = False, True


@reports
def _report(grace: float) -> None:
    flying = sum(len(run.in_flight) for run in list(active_run.live_runs))
    if flying:
        notice(
            f"SIGTERM: no step begins any more; {count(flying, 'step')} in flight may end within "
            f"{grace:g} s. A second SIGTERM ends the program at once"
        )


def _executes_here() -> bool:
    """Return whether this thread executes a plain workflow, and no step of it."""
    here, runs = threading.get_ident(), list(active_run.live_runs)
    if any(here in run.in_flight.values() for run in runs):
        return False
    return any(run.home == here and run.task is None and run.waiter is None for run in runs)


def let_go(run: active_run.ActiveRun, *, later: bool = False) -> None:
    """Cancel the caller of an asynchronous run, if no step of the run is in flight.

    Args:
        later: True to let the run's code first continue to its next step, or to its end.
    """
    root = run.root
    if root.waiter is None or root.waiter.done() or _in_flight(root):
        return
    loop = root.waiter.get_loop()
    with contextlib.suppress(RuntimeError):  # the loop is closed
        if later:
            loop.call_soon_threadsafe(loop.call_later, _SOON, let_go, root)
        else:
            loop.call_soon_threadsafe(root.waiter.cancel)


def _in_flight(root: active_run.ActiveRun) -> bool:
    return any(run.in_flight for run in list(active_run.live_runs) if run.root is root)


def end_if_drained() -> None:
    """End the process if SIGTERM arrived and no run is in progress any more."""
    if sigterms.draining and sigterms.ends_process and not active_run.live_runs:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        _end_process()


def _end_late(grace: float, at_end: Callable[[], None]) -> None:
    _wait(grace)
    at_end()
    _end_process()


def _end_process() -> None:
    """End the process as SIGTERM does; the default handler is installed by now."""
    os.kill(os.getpid(), signal.SIGTERM)
    _wait(_IGNORED)
    # The first process of a container ignores signals that it does not handle.
    os._exit(AFTER_SIGTERM)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)  # not time.sleep, which a program may have replaced
