"""Resume runs in this process from their records: one, or all that crashed."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from stepwise._execution.registry import known_workflow, known_workflows, names_of
from stepwise._runs.run import Run
from stepwise._runtime import asyncio_state
from stepwise._runtime.interrupts import ending
from stepwise._runtime.messages import count, notice, reports
from stepwise._runtime.public_names import public
from stepwise._values.preview import error_text
from stepwise._workflows.definition import Definition
from stepwise._workflows.handles import (
    AsyncHandle,
    Handle,
    begin_thread,
    execute_here,
    refuse_inside,
    start_task,
    start_thread,
)
from stepwise._workflows.invoke import TopLevel, run_of
from stepwise._workflows.unfinished import Backlog, call_again, stores_of
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError
from stepwise.stores import Store

__all__ = ["Recovered", "recover", "resume"]

_SHOWN = 5  # runs that a notice names


@public
class Recovered(list["Handle[Any] | AsyncHandle[Any]"]):
    """The handles of the resumed runs.

    Args:
        left: the runs that were left alone, each with the reason.
    """

    def __init__(
        self,
        handles: Iterable[Handle[Any] | AsyncHandle[Any]] = (),
        left: Iterable[tuple[Run, str]] = (),
    ) -> None:
        super().__init__(handles)
        self.left = list(left)


def resume(workflow: Definition, run: Run, given: Mapping[str, Any]) -> Any:
    """Continue a run; gives its handle.  See :meth:`stepwise.Run.resume`."""
    refuse_inside(f"resume() of run {run.id!r}")
    top = call_again(workflow, run, given)
    top.resumes = True
    in_task = top.workflow.is_coroutine and asyncio_state.loop_runs()
    return start_task(top) if in_task else start_thread(top)


# -- all of them ---------------------------------------------------------------------------------


def recover(workflow: Any = None, *, max_workers: int = 8, store: Any = None) -> Recovered:
    """Continue, in this process, the runs that have to go on now and that nobody executes.

    Those are the runs shown as ``crashed``: their process was killed or ended, or their host is
    gone; the ``suspended`` runs whose time or message has come; and those that somebody cancelled,
    so that they unwind.  ``stepwise up`` does the same all the time.  Runs that failed or were
    interrupted are left alone; so are child runs, which their parents call again.  Runs of
    workflows that this process does not know, and runs whose arguments could not be recorded, are
    left alone and named.

    Call it when a server starts, after the modules that define its workflows are imported.  It
    returns at once.  What a run raises is in its handle, and stops no other run; a run that another
    process was faster to take up is that one's: its handle raises ``RunBusyError``.

    Args:
        workflow: only the runs of this workflow: the workflow itself, its name or its full name.
        max_workers: how many runs execute at the same time: in threads, and, where an event loop is
            running, so many asynchronous ones in its tasks.
        store: a URL, path or store object; by default the configured one, and those that workflows
            were decorated with.

    Returns:
        a list of the handles, the oldest run first; its attribute ``left`` has the runs that were
        left alone, each with the reason.

    Raises:
        ConfigurationError: this process does not know ``workflow``; or it is called inside a run.
    """
    refuse_inside("stepwise.recover()")
    if not isinstance(max_workers, int) or isinstance(max_workers, bool) or max_workers < 1:
        raise ConfigurationError(f"recover(max_workers={max_workers!r}): it must be 1 or more")
    wanted = getattr(workflow, "full_name", workflow)
    known = [each.definition for each in known_workflows()]
    meant = [each for each in known if wanted in (None, each.full_name, each.label)]
    names = {name for each in meant for name in names_of(each)}
    if wanted is not None and not names:
        known_workflow(str(wanted))  # raises
    found, left = _due(wanted, names, stores_of(known, store))
    _tell(found, left)
    return Recovered(_executed(found, max_workers), left)


def _due(
    wanted: Any, names: set[str], stores: Iterable[Store]
) -> tuple[list[TopLevel], list[tuple[Run, str]]]:
    """Return the calls that continue the runs which have to go on now, and what is left alone."""
    found: list[TopLevel] = []
    left: list[tuple[Run, str]] = []
    for number, store in enumerate(stores):
        try:
            runs = Backlog(store).look()
        except (StepwiseError, RunStopped) as error:
            if number == 0:
                raise
            notice(f"recover: the runs in {store.url} are left alone: {error}")
            continue
        for each in runs:
            if wanted is not None and each.facts.workflow not in names:
                continue
            try:
                if each.why():
                    found.append(each.again())
            except (Exception, RunStopped) as error:  # classes of loaded values may raise, too
                left.append((each.run, error_text(error) or type(error).__name__))
    return found, left


@reports
def _tell(found: list[TopLevel], left: list[tuple[Run, str]]) -> None:
    if found:
        ids = ", ".join(each.run_id for each in found[:_SHOWN])
        more = ", ..." if len(found) > _SHOWN else ""
        notice(f"recover: {count(len(found), 'run')} continued here: {ids}{more}")
    reasons = Counter(why for _, why in left)
    for why, many in reasons.most_common(_SHOWN):
        ids = ", ".join([run.id for run, each in left if each == why][:_SHOWN])
        more = ", ..." if many > _SHOWN else ""
        notice(f"recover: {count(many, 'run')} left alone ({ids}{more}): {why}")


def _executed(found: list[TopLevel], max_workers: int) -> list[Handle[Any] | AsyncHandle[Any]]:
    in_tasks = asyncio_state.loop_runs()
    handles: list[Handle[Any] | AsyncHandle[Any]] = []
    jobs: deque[tuple[TopLevel, Handle[Any]]] = deque()
    limit = None
    for top in found:
        if in_tasks and top.workflow.is_coroutine:
            if limit is None:
                import asyncio

                limit = asyncio.Semaphore(max_workers)
            handles.append(start_task(top, limit))
        else:
            handle: Handle[Any] = Handle(run_of(top.store, top.run_id))
            jobs.append((top, handle))
            handles.append(handle)
    for number in range(min(max_workers, len(jobs))):
        begin_thread(f"stepwise recover {number + 1}", functools.partial(_work, jobs))
    return handles


def _work(jobs: deque[tuple[TopLevel, Handle[Any]]]) -> None:
    """Execute one run after the other.

    The first of each thread is executed in any case: a program may end with ``recover()``.  Once
    the interpreter is ending, no other is begun.
    """
    first = True
    while True:
        try:
            top, handle = jobs.popleft()
        except IndexError:
            return
        if not ending.begun or (first and not ending.by_ctrl_c):
            execute_here(top, handle)
        else:
            why = f"{top.run_id} was not begun: the program ends"
            notice(f"recover: {why}")
            handle._end(error=StepwiseError(f"run {why}"))
        first = False
