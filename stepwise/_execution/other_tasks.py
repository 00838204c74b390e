"""The tasks and threads of a run that could make a call, and how many tasks a loop has.

A run must know its other tasks at each checkpoint.  asyncio does not tell of new tasks, and asking
all of them each time made a step of 64 runs at once cost five times a step of one.  So each task is
looked at once: a set difference finds the tasks that are new since the last look, whoever made
them and in whichever way, and the set of the run around each of them takes it in.  A run then asks
the tasks of its own set alone.  References are weak, so that nothing here keeps a task.

Rejected: a task factory.  ``asyncio.Task(...)`` and other people's factories pass it by.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

from stepwise._execution.active_run import ActiveRun, Scope, current_scope, scope_variable
from stepwise._runtime import asyncio_state
from stepwise._runtime.asyncio_state import TaskReference
from stepwise._runtime.forks import process_lock

__all__ = [
    "is_crowded",
    "joins",
    "look_again",
    "many",
    "name_of_another",
    "others_alive",
    "others_may_claim",
    "tasks_of",
    "tasks_within",
]


_FEW = 10  # tasks: the run's own, its caller's, and eight branches
_MANY = 1000  # references, before those to ended tasks are dropped


class _KnownTasks:
    """The tasks that were looked at, by their event loops.

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
        if scope is not None and isinstance(scope.run, ActiveRun):  # else it is a worker's
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
        """Return whether a loop has more than so many unfinished tasks, of those that were seen."""
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
        """Have every task looked at again."""
        with self._mutex:
            self._references.clear()


def _is_over(task: Any) -> bool:
    return task is None or task.done()


_known = _KnownTasks()
look_again = _known.forget


def _scope_of(task: Any) -> Scope | None:
    context = asyncio_state.context_of(task)
    return context.get(scope_variable) if context is not None else None


def joins() -> None:
    """Note that the current task, if there is one, sees a run that it did not see when it was made.

    For code that sets the scope, or that resets it from ``None``.
    """
    scope, task = current_scope(), asyncio_state.current()
    if scope is not None and task is not None:
        scope.run.root.flows.tasks.add(weakref.ref(task))


def many(run: ActiveRun) -> bool:
    """Return whether so many calls are in progress that their flushes are worth sharing.

    Shared, a step's record is written while other branches go on, and a kill at that moment has the
    step run again.  Few branches get their records written before any other code runs, so that
    what they have done is not done twice; a flush for each is no burden to them.
    """
    few = _FEW + run.idle
    return run.flows.busy(few + 1) or is_crowded(few)


def is_crowded(few: int) -> bool:
    """Return whether this thread's event loop has more than so many unfinished tasks.

    However many there are, only the oldest are asked: each task that is over is met once.
    """
    if asyncio_state.loaded() is None or len(asyncio_state.references()) <= few:
        return False  # without asyncio, something else drives the coroutine
    loop = asyncio_state.loaded()._get_running_loop()
    if _known.more_than(few, loop):
        return True
    _known.look()
    return _known.more_than(few, loop)


def tasks_within(root: ActiveRun) -> Iterator[tuple[Any, Scope]]:
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


def _others_of(run: ActiveRun) -> Iterator[Any]:
    me = asyncio_state.current()
    for task, scope in tasks_within(run.root):
        if task is not me and run in scope.run.lineage():
            yield task


def tasks_of(run: ActiveRun) -> list[Any]:
    """Return the unfinished tasks of a run and of its child runs, except the current task."""
    return list(_others_of(run))


def others_alive(run: ActiveRun) -> bool:
    """Return whether a task or thread other than the run's main one could make a call."""
    flows = run.flows
    in_threads = not flows.are_none and (flows.others_working() or bool(flows.others()))
    return in_threads or _others_in_tasks(run)


def others_may_claim(run: ActiveRun) -> bool:
    """Return whether a task or thread other than the waiting ones could make a call."""
    idle = run.flows.idle()
    main_thread = run.task is None and run.thread not in (0, *idle)
    threads = run.flows.others_working() or bool(run.flows.others(claiming=True))
    return threads or main_thread or _others_in_tasks(run, idle)


def _others_in_tasks(run: ActiveRun, idle: Container[int] = ()) -> bool:
    if asyncio_state.current() is None:
        return False
    main = run.unwinding.main
    return any(id(task) != main and id(task) not in idle for task in _others_of(run))


def name_of_another(run: ActiveRun) -> str:
    """Describe another running task or thread; return an empty text if none will make calls."""
    for task in tasks_of(run):
        if not asyncio_state.closes_generator(task):
            what = getattr(task.get_coro(), "__qualname__", type(task.get_coro()).__qualname__)
            return f"the task {task.get_name()!r} ({what})"
    names = run.flows.others()
    if names:
        return f"the thread {names[0]!r}"
    return "a step in another thread" if run.flows.others_working() else ""
