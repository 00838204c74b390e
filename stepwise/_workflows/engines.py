"""Engines: what executes the runs that the supervisor of ``stepwise up`` begins.

The supervisor decides which run goes on, and when; an engine executes it: in a thread or a task of
this process, in a process of its own, or on a cluster (``integrations``).  How a run ended comes
back as news, so that the supervisor needs to know no engine.
"""

from __future__ import annotations

import contextvars
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stepwise._execution.registry import known_workflow
from stepwise._runs.run import Run
from stepwise._workflows.handles import Handle, execute_here, start_task
from stepwise._workflows.invoke import run_of
from stepwise._workflows.run_output import RunLog, RunOutput
from stepwise._workflows.unfinished import UnfinishedRun

if TYPE_CHECKING:
    import asyncio

__all__ = ["Engine", "OwnProcess", "Threads", "Underway"]


class Underway:
    """A run that an engine executes.

    Args:
        news: called once with this object, when the run is not executed any more.

    Attributes:
        error: that stopped it.
        refused: it could not be called at all.
        lost: its process ended, and nobody says how; the store tells what became of the run.
        told: the process that executed it has reported what became of it.
    """

    def __init__(self, run: UnfinishedRun, news: Callable[[Underway], None]) -> None:
        self.run = run
        self.error: BaseException | None = None
        self.refused = self.lost = self.told = False
        self._news = news

    def end(
        self,
        error: BaseException | None = None,
        *,
        refused: bool = False,
        lost: bool = False,
        told: bool = False,
    ) -> None:
        """Say that the run is not executed any more."""
        self.error, self.refused, self.lost, self.told = error, refused, lost, told
        self._news(self)


class Engine(Protocol):
    """Executes the runs that the supervisor begins."""

    def begin(self, job: Underway) -> str:
        """Begin to execute a run, and return at once; ``job.end()`` is called when that is over.

        Returns:
            where, in words; empty for this process, whose output shows it.
        """

    def drain(self) -> None:
        """Let runs in other processes begin no step; those of this process are told already."""


class Threads:
    """Executes plain workflows in a thread each, and coroutine workflows in one event loop."""

    def __init__(self, output: RunOutput) -> None:
        self._output = output
        self._loop: Any = None

    def begin(self, job: Underway) -> str:
        """Begin to execute a run; see :class:`Engine`."""
        facts = job.run.facts
        log = self._output.begin(facts.run_id)
        context = contextvars.copy_context()
        context.run(self._output.enter, log)
        if known_workflow(facts.workflow).definition.is_coroutine:
            loop = self._event_loop()
            loop.call_soon_threadsafe(self._start, job, log, context=context)
        else:
            name = f"stepwise {facts.run_id}"
            work = threading.Thread(
                target=context.run, args=(self._execute, job, log), name=name, daemon=True
            )
            work.start()
        return ""

    def drain(self) -> None:
        """See :class:`Engine`: there are no others."""

    def _execute(self, job: Underway, log: RunLog) -> None:
        """Execute a run in this thread."""
        error: BaseException | None = None
        refused = False
        try:
            top = job.run.again()
        except Exception as problem:  # classes of loaded values may raise, too
            error, refused = problem, True
        else:
            handle: Handle[Any] = Handle(run_of(top.store, top.run_id))
            execute_here(top, handle)
            error, refused = handle._error, not top.opened
        finally:
            self._output.end(log)
            job.end(error, refused=refused)

    def _event_loop(self) -> Any:
        """Return the event loop of the coroutine workflows, in a thread of its own."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=self._loop.run_forever, name="stepwise event loop", daemon=True
            )
            contextvars.Context().run(thread.start)
        return self._loop

    def _start(self, job: Underway, log: RunLog) -> None:
        """Execute a run in a task of the loop that calls this."""
        import asyncio

        try:
            top = job.run.again()
            handle = start_task(top, asyncio.Semaphore())
        except Exception as error:
            self._output.end(log)
            job.end(error, refused=True)
            return

        def ended(task: asyncio.Task[Any]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._output.end(log)
            job.end(error, refused=not top.opened)

        handle._task.add_done_callback(ended)


class OwnProcess:
    """Executes each run in a process of its own, which a run that kills its process may kill.

    Args:
        command: returns the command that executes one run, and reports what becomes of it.
    """

    def __init__(self, command: Callable[[Run], Sequence[str]]) -> None:
        self._command = command
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self, job: Underway) -> str:
        """Begin to execute a run; see :class:`Engine`."""
        process = subprocess.Popen(self._command(job.run.run))  # noqa: S603
        self._processes.append(process)

        def wait() -> None:
            process.wait()
            self._processes.remove(process)
            job.end(lost=True, told=True)

        threading.Thread(target=wait, name=f"stepwise waits for {job.run.facts.run_id}").start()
        return f"alone, in process {process.pid}"

    def drain(self) -> None:
        """Tell the processes to end; see :class:`Engine`."""
        for process in list(self._processes):
            process.terminate()
