"""The other tasks and threads of a run that could make a call."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from stepwise._execution.active_run import ActiveRun, scope_variable
from stepwise._runtime import asyncio_state

__all__ = ["name_of_another", "others_alive", "others_may_claim", "tasks_of"]


def tasks_of(run: ActiveRun) -> list[Any]:
    """Return the unfinished tasks of a run and of its child runs, except the current task."""
    me = asyncio_state.current()
    if me is None:
        return []
    return [
        task
        for task, scope in asyncio_state.of_context(scope_variable)
        if task is not me and run in scope.run.lineage()
    ]


def others_alive(run: ActiveRun) -> bool:
    """Return whether a task or thread other than the run's main one could make a call."""
    return run.flows.others_working() or bool(run.flows.others()) or _others_in_tasks(run)


def others_may_claim(run: ActiveRun) -> bool:
    """Return whether a task or thread other than the waiting ones could make a call."""
    idle = run.flows.idle()
    main_thread = run.task is None and run.thread not in (0, *idle)
    threads = run.flows.others_working() or bool(run.flows.others(claiming=True))
    return threads or main_thread or _others_in_tasks(run, idle)


def _others_in_tasks(run: ActiveRun, idle: Container[int] = ()) -> bool:
    main = run.unwinding.main
    return any(id(task) != main and id(task) not in idle for task in tasks_of(run))


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
