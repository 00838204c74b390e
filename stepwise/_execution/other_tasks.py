"""Who else, beside the code that asks, could make a call of a run: its other tasks and threads."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from stepwise._execution.active_run import ActiveRun, scope_variable
from stepwise._runtime import asyncio_state

__all__ = ["name_of_another", "others_alive", "others_may_claim", "tasks_of"]


def tasks_of(run: ActiveRun) -> list[Any]:
    """The unfinished tasks of a run and of those that it called, except the one that asks."""
    me = asyncio_state.current()
    if me is None:
        return []
    return [
        task
        for task, scope in asyncio_state.of_context(scope_variable)
        if task is not me and _is_within(scope.run, run)
    ]


def _is_within(run: ActiveRun | None, other: ActiveRun) -> bool:
    """Whether a run is ``other`` or was called by it, at any distance."""
    while run is not None and run is not other:
        run = run.parent
    return run is other


def others_alive(run: ActiveRun) -> bool:
    """Whether another task or thread of the run, beside its main one, could make a call."""
    return run.flows.others_working() or bool(run.flows.others()) or _others_in_tasks(run)


def others_may_claim(run: ActiveRun) -> bool:
    """The same, where a call waits: the main thread may, others that wait may not."""
    idle = run.flows.idle()
    main_thread = run.task is None and run.thread not in (0, *idle)
    threads = run.flows.others_working() or bool(run.flows.others(claiming=True))
    return threads or main_thread or _others_in_tasks(run, idle)


def _others_in_tasks(run: ActiveRun, idle: Container[int] = ()) -> bool:
    main = run.unwinding.main
    return any(id(task) != main and id(task) not in idle for task in tasks_of(run))


def name_of_another(run: ActiveRun) -> str:
    """What is still running, in words; empty for what only closes a generator, and soon ends."""
    for task in tasks_of(run):
        if not asyncio_state.closes_generator(task):
            what = getattr(task.get_coro(), "__qualname__", type(task.get_coro()).__qualname__)
            return f"the task {task.get_name()!r} ({what})"
    names = run.flows.others()
    if names:
        return f"the thread {names[0]!r}"
    return "a step in another thread" if run.flows.others_working() else ""
