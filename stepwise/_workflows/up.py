"""``stepwise up``: the executor of unfinished runs.

The supervisor decides which run continues, and when.  An engine executes the run: in a thread or a
task of this process, in a process of its own, or on a cluster (``integrations``).  The engine
reports the end of a run as news, so that the supervisor needs to know no engine.

A process continues runs with the code that it imported, and reports that a source file has changed.
Rejected: importing an edited module anew.  Objects of two versions of a class would meet in one
process.

One thread decides, and every event reaches this thread as news: a run that ended, a signal.  The
thread reads the heads of all unfinished runs now and then.  In between, it looks at the bell of
each store and waits for the next due moment.  The records alone say what a run waits for, and how
often its process died.  Any number of supervisors therefore come to the same decisions; the lease
lets only one of them act.

Rejected: executing a run that kills its process while nothing else runs (a run of hours would block
all others).  Rejected: reading every inbox each 15 seconds (4,000 reads a minute for 1,000 runs).

Runs are executed in another process on behalf of an engine.  Each run in a shared process has its
own log of printed text.  ``sys.stdout`` and ``sys.stderr`` are replaced by writers that look up
which run is printing.  A context variable names the run in the run's own threads and tasks; the
scope names it in threads that its code starts.

The submitter decides which run a call means, and records that run, so that callers can rely on its
id.  The engine carries an :class:`Order` to another process, which takes the run over and executes
it.  A :class:`Reply` comes back and says how the run ended.  A recorded result stays in the
journal, where the submitter reads it.  The result is thus stored once, and its objects have the
classes of the submitter's script.

Rejected: recording nothing at the submission (queued work would vanish with its submitter).
Rejected: a lease that the submitter keeps until the run begins (workers would need a protocol for
the handover).  Rejected: a detached actor for each run (a second way to keep a run alive, beside
``up``).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import io
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from stepwise import errors
from stepwise._execution.active_run import current_scope
from stepwise._execution.limit_turns import Turn
from stepwise._execution.process_memory import (
    known_workflow,
    known_workflows,
    memory,
    names_of,
    workflows_named,
)
from stepwise._execution.suspension import pending
from stepwise._execution.tasks import drained
from stepwise._execution.viewer import error_of
from stepwise._journal.journal import facts_of, newest_mark, read_end, read_head, seal_for
from stepwise._journal.lease import Lease, describe_owner, supervisor_name
from stepwise._journal.log import QUEUE, Bell
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import DEADLY, deaths_of
from stepwise._runs.retention import Retention
from stepwise._runs.run import Run
from stepwise._runs.steps import error_line
from stepwise._runtime import clock, settings
from stepwise._runtime.event import Event
from stepwise._runtime.events import listen
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import start_apart
from stepwise._runtime.interrupts import AFTER_SIGTERM
from stepwise._runtime.messages import EX_TEMPFAIL, count, reports, shell_word
from stepwise._runtime.system_limits import make_private, open_private
from stepwise._values.codec import decode_error, dump_code, encode_error, traceback_text
from stepwise._values.preview import Secrets, error_text, preview
from stepwise._values.unpickling import loads
from stepwise._workflows import handles
from stepwise._workflows.begin import TopLevel, run_of
from stepwise._workflows.definition import Definition, TakesOptions
from stepwise._workflows.execute import Recall, record_end_of_process, record_submission
from stepwise._workflows.handles import UnfinishedRun, refuse_start
from stepwise._workflows.queues import Agenda, Key, Plan, Queue, Turns
from stepwise._workflows.resume import WorkflowRun
from stepwise._workflows.schedules import Timetable
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self

# -- run output -----------------------------------------------------------------------------------


_LONGEST_NAME = 200  # characters of a file's name


def log_name(run_id: str) -> str:
    """Return the file name of a run's log: the id, with special characters as %XX.

    Letters, digits and ``-._~`` stay as they are.
    """
    name = urllib.parse.quote(run_id, safe="", errors="surrogatepass")
    if len(name) > _LONGEST_NAME:
        import hashlib

        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        name = f"{name[:_LONGEST_NAME]}~{digest}"
    return f"{name}.log"


class RunLog:
    """The output of one run: to its file, or to the terminal with the run id before each line."""

    def __init__(self, run_id: str, folder: str, terminal: IO[str]) -> None:
        self.run_id = run_id
        self._path = os.path.join(folder, log_name(run_id)) if folder else ""
        self._terminal = terminal
        self._file: IO[str] | None = None
        self._rest = ""  # the last line, still without its end
        self._mutex = threading.RLock()

    @property
    def has_file(self) -> bool:
        """True if the output goes to a file."""
        return bool(self._path)

    def write(self, text: str) -> None:
        """Write text that the run prints."""
        with self._mutex:
            if self._path:
                try:
                    self._opened().write(text)
                except OSError as error:  # a full disk must not fail the run
                    self._path, self._file = "", None
                    self.write(f"{text}\nthe log cannot be written: {error}\n")
                return
            *lines, self._rest = f"{self._rest}{text}".split("\n")
            if lines:
                self._terminal.write("".join(f"{self.run_id} | {line}\n" for line in lines))
                self._terminal.flush()

    def _opened(self) -> IO[str]:
        if self._file is None:
            self._file = open(  # noqa: SIM115
                self._path,
                "a",
                encoding="utf-8",
                errors="backslashreplace",
                buffering=1,
                opener=open_private,
            )
        return self._file

    def close(self) -> None:
        """End the last line, and close the file; further output opens the file again."""
        with self._mutex:
            if self._rest:
                self.write("\n")
            if self._file is not None:
                self._file.close()
                self._file = None


_current: ContextVar[RunLog | None] = ContextVar("stepwise_run_log", default=None)


class RunOutput:
    """The logs of the runs in this process, while this object is installed.

    Args:
        folder: for the logs; empty to print everything on stderr.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._logs: dict[str, RunLog] = {}
        self._before: tuple[Any, Any] | None = None

    def __enter__(self) -> Self:
        if self._folder:
            make_private(self._folder)
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _PrintedBy(sys.stdout, self), _PrintedBy(sys.stderr, self)
        self._end = listen(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        if self._before is not None:
            sys.stdout, sys.stderr = self._before
        for log in list(self._logs.values()):
            log.close()

    @property
    def terminal(self) -> IO[str]:
        """The standard output of the process itself."""
        return self._before[0] if self._before is not None else sys.stdout

    def begin(self, run_id: str) -> tuple[RunLog, contextvars.Context]:
        """Return the log of a run that begins, and a context whose output goes to the log."""
        assert self._before is not None
        log = self._logs[run_id] = RunLog(run_id, self._folder, self._before[1])
        context = contextvars.copy_context()
        context.run(_current.set, log)
        return log, context

    def end(self, log: RunLog) -> None:
        """Close the log of a run that ended."""
        self._logs.pop(log.run_id, None)
        log.close()

    def here(self) -> RunLog | None:
        """Return the log for output of the current code; ``None`` outside of any run."""
        log = _current.get()
        if log is None and (scope := current_scope()) is not None:
            log = self._logs.get(scope.run.root.run_id)
        return log

    @reports
    def _note(self, event: Event) -> None:
        log = self.here()
        if log is not None and log.has_file:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
            log.write(f"{at} {event}\n")


class _PrintedBy(io.TextIOBase):
    """The replacement of ``sys.stdout`` or ``sys.stderr``."""

    def __init__(self, terminal: IO[str], output: RunOutput) -> None:
        self._terminal, self._output = terminal, output

    def write(self, text: str) -> int:
        log = self._output.here()
        if log is None:
            return self._terminal.write(text)
        log.write(text)
        return len(text)

    def flush(self) -> None:
        self._terminal.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._terminal, "encoding", "utf-8"))

    @property
    def buffer(self) -> Any:
        """The byte stream, whose output is not assigned to runs."""
        return self._terminal.buffer  # type: ignore[attr-defined]


# -- elsewhere ------------------------------------------------------------------------------------


WAIT_HERE = 1.0
"""Seconds that a run waits before it suspends and another run takes its place."""

_HOPELESS = 10  # deaths in a row, without a step's end in between


class Order(NamedTuple):
    """A run for another process to execute.

    Args:
        run_id: of the run.
        explicit: whether the user chose the id.
        resumes: whether the run resumes even if it was cancelled.
        store: the URL of the store, without a password.
        key: the id of the records' key, which reveals nothing about the key.
        call: the workflow and its arguments, pickled.
        settings: of the submitter; see :func:`stepwise._runtime.settings.traveling`.
        end: number of the record that ended the run before it was submitted; 0 for none.
    """

    run_id: str
    explicit: bool
    resumes: bool
    store: str
    key: bytes
    call: bytes
    settings: dict[str, Any]
    end: int = 0


class Continuation(NamedTuple):
    """A run for another process to continue, with its recorded arguments.

    Args:
        facts: of the run; if they have changed, another process continues the run.
        store: the URL of the store, without a password.
        key: the id of the records' key, which reveals nothing about the key.
        modules: the modules to import, which define the workflow.
        folder: the folder in which the modules were found.
        logs: a folder for the output of runs; empty for none.
        settings: as in an :class:`Order`.
    """

    facts: RunFacts
    store: str
    key: bytes
    modules: tuple[str, ...]
    folder: str
    logs: str
    settings: dict[str, Any]


class Reply(NamedTuple):
    """The end of a run that was executed in another process.

    Args:
        kind: ``"recorded"``: the result is in the journal; ``"value"``: the result is in ``data``,
            since it could not be recorded; ``"error"``: an exception ended or stopped the run.
        data: the value or the exception, encoded.
        place: where the run was executed, as text.
        trace: the traceback of the exception, as text.
        suspended: whether the run waits, and continues later.
        refused: whether the workflow could not be called at all.
    """

    kind: Literal["recorded", "value", "error"]
    data: bytes = b""
    place: str = ""
    trace: str = ""
    suspended: bool = False
    refused: bool = False


def continuation(run: UnfinishedRun, modules: Sequence[str], logs: str) -> Continuation:
    """Return the order to continue a run, for another process.

    Args:
        modules: the modules that define the workflow, as found from the current folder.
        logs: a folder for the output of runs; empty for none.
    """
    folder, key = os.getcwd(), run.seal.key_id
    now = settings.traveling()
    return Continuation(run.facts, run.store.url, key, tuple(modules), folder, logs, now)


# -- the submitter -------------------------------------------------------------------------------


class Placement:
    """A recorded run that is to be executed in another process.

    Attributes:
        recalled: the recorded result, if the run has already completed.
    """

    def __init__(self, top: TopLevel, call: bytes) -> None:
        self._top = top
        self._call = call
        self.recalled: Recall | None = top.taken if isinstance(top.taken, Recall) else None

    @property
    def run(self) -> Run:
        """The run, for inspection."""
        return run_of(self._top.store, self._top.run_id)

    @property
    def key(self) -> tuple[str, str]:
        """The URL of the store and the run id."""
        return self._top.store.url, self._top.run_id

    def order(self) -> Order:
        """Return the order for the executing process."""
        top, seal = self._top, seal_for(self._top.store)
        facts = facts_of(top.store, seal, top.run_id)
        return Order(
            top.run_id,
            top.is_explicit,
            top.resumes,
            top.store.url,
            seal.key_id,
            self._call,
            settings.traveling(),
            facts.end if facts is not None else 0,
        )

    def result(self, reply: Reply) -> Any:
        """Return what the workflow returned.

        Raises:
            BaseException: the workflow's exception.
        """
        if reply.kind == "error":
            error = decode_error(reply.data, stored=False)
            if reply.trace and hasattr(error, "add_note"):
                error.add_note(f"Raised {reply.place}:\n{reply.trace.rstrip()}")
            raise error
        if reply.kind == "value":
            return loads(reply.data, stored=False)
        recalled = self._top.recall()
        if recalled is None:
            raise errors.StepwiseError(
                f"run {self._top.run_id!r} completed {reply.place}, and its result is no longer "
                "in the store: the run was deleted, or called again"
            )
        return recalled.value

    def completed(self) -> None:
        """Count the run as completed: a later equal call means another run."""
        memory.completed(self._top.store.url, self._top.base, self._top.run_id)


def place(
    workflow: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    what: str,
    check: Callable[[Store], None],
) -> Placement:
    """Record the run that a call means, so that another process can execute it.

    Args:
        workflow: a result of :func:`stepwise.workflow`; bound, if it is a method.
        what: the name of the operation, for messages.
        check: raises if other processes cannot use the store.

    Raises:
        ConfigurationError: the argument is not a workflow, or is a generator; or the caller is a
            run itself.
        StepwiseError: any error that a call of the workflow raises before it begins.
    """
    definition = getattr(workflow, "definition", None)
    if not isinstance(definition, Definition):
        raise errors.ConfigurationError(
            f"{what}: {workflow!r} is not a workflow: decorate the function with @workflow"
        )
    operation = functools.partial(_place, (workflow, args), what, check)
    placed: Placement = workflow._with(definition, operation)(*args, **kwargs)
    return placed


def _place(
    given: tuple[Any, tuple[Any, ...]],
    what: str,
    check: Callable[[Store], None],
    definition: Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Placement:
    refuse_start(definition, what)
    if definition.options.on_owned == "wait":  # the task waits instead
        options = definition.options.changed({"on_owned": "raise"})
        definition = Definition(definition.function, options, definition)
    top = TopLevel(definition, instance, args, kwargs)
    top.promised, top.counts = True, False
    top.choose()
    check(top.store)
    workflow, whole = given  # possibly unbound, with the instance among the arguments
    elsewhere = workflow.options(store=top.store.url, on_owned="wait")
    try:
        call = dump_code((elsewhere, whole, dict(kwargs)))
    except Exception as error:
        raise errors.NotRecordableError(
            f"{what}: the workflow or one of its arguments cannot be sent to another process: "
            f"{error}",
            type_name=type(error).__name__,
        ) from error
    try:
        top.begin_here()
    except errors.RunBusyError:  # the task waits for the result
        return Placement(top, call)
    opened = top.taken
    if isinstance(opened, WorkflowRun):
        _put_down(top, opened)
    else:
        top.__exit__(None, None, None)
    return Placement(top, call)


def _put_down(top: TopLevel, opened: WorkflowRun) -> None:
    """Record the submission of a run that was taken over for that purpose, and release the run."""
    if top.display is not None:
        top.display.close()
        top.display = None
    active = opened.active
    try:
        if opened.is_new:
            record_submission(active)
    finally:
        active.close()


# -- the process that executes it ----------------------------------------------------------------


def carry_out(order: Order, where: str) -> Reply:
    """Execute a run, and return how it ended, even if it raised.

    Args:
        where: the place of this process, as text: ``on node ...``.

    Raises:
        KeyboardInterrupt: the engine cancelled the task.
    """
    try:
        return _carry_out(order, where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _raised(error, where)


def _carry_out(order: Order, where: str) -> Reply:
    store = _prepared(order, order.run_id, where)
    seal = seal_for(store)
    facts = facts_of(store, seal, order.run_id)
    if facts is not None and facts.status == "failed" and facts.end not in (0, order.end):
        # It failed after the submission, in a task that could not report that before its node died.
        error = error_of(store, seal, facts)
        if error is not None:
            raise error
    if facts is not None and store.owner(order.run_id) is None:
        stuck = deaths_of(store, seal, facts).stuck
        if stuck >= _HOPELESS:
            raise errors.StepwiseError(
                f"run {order.run_id!r} is not tried again: its process died {stuck} times at the "
                f"same step. To try it again: stepwise resume {shell_word(order.run_id)}"
            )
    try:
        workflow, args, kwargs = loads(order.call, stored=False)
    except Exception as error:
        raise errors.ConfigurationError(
            f"the workflow of run {order.run_id!r}, or one of its arguments, cannot be loaded "
            f"{where}: {type(error).__name__}: {error}. Its modules must be there; "
            "ray.init(runtime_env={'working_dir': '.'}) sends the files of a folder along"
        ) from error
    _keep_names(workflow.definition.function)
    operation = functools.partial(_executed, order, where)
    reply: Reply = workflow._with(workflow.definition, operation)(*args, **kwargs)
    return reply


def _prepared(order: Order | Continuation, run_id: str, where: str) -> Store:
    """Prepare this process to execute a run for another process; return the run's store."""
    memory.is_executor = True
    settings.suspend_soon(WAIT_HERE)
    settings.adopt(order.settings)
    store = open_store(order.store)
    if order.key not in seal_for(store).key_ids:
        raise errors.ConfigurationError(
            f"run {run_id!r} cannot be executed {where}: the key there is not the "
            "submitter's, so its records do not verify. Set STEPWISE_KEY to the same secret on "
            "every machine, before its processes start"
        )
    return store


def _executed(
    order: Order,
    where: str,
    definition: Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Reply:
    top = TopLevel(definition, instance, args, kwargs)
    top.mean(order.run_id, explicit=order.explicit, recorded=True)
    top.resumes = order.resumes
    return _reply(top, where)


def _reply(top: TopLevel, where: str) -> Reply:
    """Execute a run, and return how it ended."""
    try:
        value = handles.executed(top)
    except BaseException as error:
        handles.tell_failure(top, error)
        if is_of_the_engine(error):
            raise
        opened = top.taken
        secrets = opened.active.secrets if isinstance(opened, WorkflowRun) else None
        return _raised(error, where, secrets)._replace(refused=not top.opened)
    seal = seal_for(top.store)
    facts = facts_of(top.store, seal, top.run_id)
    end = read_end(top.store, seal, facts) if facts is not None else None
    if end is not None and end.ended is not None and end.ended.answers:
        return Reply("recorded", place=where)
    try:
        return Reply("value", dump_code(value), where)
    except Exception as error:
        return _raised(
            errors.NotRecordableError(
                f"run {top.run_id!r} completed {where}, and its result cannot be sent: {error}",
                type_name=type(value).__name__,
            ),
            where,
        )


def carry_on(order: Continuation, where: str) -> Reply:
    """Continue a run, and return how it ended, even if it raised.

    An interrupt of the main thread, with which the engine cancels a task, drains the run: no step
    begins, and steps in flight may end.

    Args:
        where: the place of this process, as text: ``on node ...``.
    """
    try:
        with RunOutput(order.logs) as output, _drained_by_interrupts():
            store = _prepared(order, order.facts.run_id, where)
            _import(order)
            top = UnfinishedRun(store, seal_for(store), order.facts).again()
            log, context = output.begin(top.run_id)
            try:
                return context.run(_reply, top, where)
            finally:
                output.end(log)
    except BaseException as error:
        if is_of_the_engine(error):
            raise
        return _raised(error, where)._replace(refused=True)


def _import(order: Continuation) -> None:
    """Import the modules that define the workflow, from the submitter's folder."""
    if os.path.isdir(order.folder) and order.folder not in sys.path:
        sys.path.insert(0, order.folder)
    for name in order.modules:
        importlib.import_module(name)


@contextlib.contextmanager
def _drained_by_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as stack:

        def drain(*_: object) -> None:
            stack.enter_context(drained())

        before = signal.signal(signal.SIGINT, drain)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def is_of_the_engine(error: BaseException) -> bool:
    """Return whether an exception means that the engine ends the task or the process."""
    return isinstance(error, KeyboardInterrupt) or hasattr(error, "ray_terminate_msg")


def _raised(error: BaseException, where: str, secrets: Secrets | None = None) -> Reply:
    secrets = secrets or Secrets()
    trace = (
        "" if isinstance(error, errors.RunStopped) else traceback_text(error, secrets.cleaned_text)
    )
    data = bytes(encode_error(error, secrets).data)
    return Reply("error", data, where, trace, isinstance(error, errors.RunSuspended))


_kept: dict[str, object] = {}  # names that were added to this process's __main__


def _keep_names(function: Any) -> None:
    """Add the classes and functions of the submitter's ``__main__`` to this ``__main__``.

    These objects came by value.  Recorded by name, they refer to the script's own objects where
    the run is inspected or resumed.
    """
    here = vars(sys.modules["__main__"])
    space = getattr(function, "__globals__", {})
    if function.__module__ != "__main__" or space is here:
        return
    for name, value in list(space.items()):
        is_code = isinstance(value, (type, types.FunctionType))
        if is_code and value.__module__ == "__main__" and here.get(name) is _kept.get(name):
            here[name] = _kept[name] = value


# -- engines --------------------------------------------------------------------------------------


class Underway:
    """A run that an engine executes.

    Args:
        news: called once with this object, when the execution of the run is over.

    Attributes:
        error: the exception that stopped the run.
        refused: whether the workflow could not be called at all.
        lost: whether the process ended without a report; the store shows what became of the run.
        told: whether the executing process has already reported what became of the run.
        permit: the turn of the run, if its workflow has ``concurrent=``.
    """

    def __init__(
        self,
        run: handles.UnfinishedRun,
        news: Callable[[Underway], None],
        permit: Turn | None = None,
    ) -> None:
        self.run, self.permit = run, permit
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
        """Report that the run is no longer executed."""
        self.error, self.refused, self.lost, self.told = error, refused, lost, told
        self._news(self)


class Engine(Protocol):
    """The executor of the runs that the supervisor begins."""

    def begin(self, job: Underway) -> str:
        """Begin to execute a run, and return at once; call ``job.end()`` when that is over.

        Returns:
            the place of execution, as text; empty for this process, whose output shows the run.
        """

    def drain(self) -> None:
        """Keep runs in other processes from starting steps; runs of this process know already."""


class Threads:
    """An engine with a thread for each plain workflow, and one event loop for coroutines."""

    def __init__(self, output: RunOutput) -> None:
        self._output = output
        self._loop: Any = None

    def begin(self, job: Underway) -> str:
        """Begin to execute a run; see :class:`Engine`."""
        facts = job.run.facts
        log, context = self._output.begin(facts.run_id)
        if known_workflow(facts.workflow).is_coroutine:
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
        """Do nothing: no run is in another process; see :class:`Engine`."""

    def _execute(self, job: Underway, log: RunLog) -> None:
        """Execute a run in the current thread."""
        top, error = None, None
        try:
            top = job.run.again()
            top.permit = job.permit
            handles.executed(top)
        except BaseException as problem:  # classes of loaded values may raise, too
            error = problem
            if top is not None:
                handles.tell_failure(top, problem)
        finally:
            self._output.end(log)
            job.end(error, refused=top is None or not top.opened)

    def _event_loop(self) -> Any:
        """Return the event loop of the coroutine workflows, which runs in its own thread."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            forever = self._loop.run_forever
            start_apart(threading.Thread(target=forever, name="stepwise event loop"))
        return self._loop

    def _start(self, job: Underway, log: RunLog) -> None:
        """Execute a run in a task of the current event loop."""
        import asyncio

        try:
            top = job.run.again()
            top.permit = job.permit
            handle = handles.start_task(top, asyncio.Semaphore(), wakes=False)
        except Exception as error:
            self._output.end(log)
            job.end(error, refused=True)
            return

        def ended(end: asyncio.Future[Any]) -> None:
            error = asyncio.CancelledError() if end.cancelled() else end.exception()
            self._output.end(log)
            job.end(error, refused=not top.opened)

        handle._ended.add_done_callback(ended)


class OwnProcess:
    """An engine with a process for each run, so that a deadly run kills only its own process.

    Args:
        command: returns the command that executes one run, and reports what becomes of the run.
    """

    def __init__(self, command: Callable[[Run], Sequence[str]]) -> None:
        self._command = command
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self, job: Underway) -> str:
        """Begin to execute a run; see :class:`Engine`."""
        none = {settings.IN_BRANCH: ""}  # it is in no branch that this process executes
        process = subprocess.Popen(self._command(job.run.run), env={**os.environ, **none})  # noqa: S603
        self._processes.append(process)

        def wait() -> None:
            process.wait()
            self._processes.remove(process)
            job.end(lost=True, told=True)

        threading.Thread(target=wait, name=f"stepwise waits for {job.run.facts.run_id}").start()
        return f"alone, in process {process.pid}"

    def drain(self) -> None:
        """Terminate the processes; see :class:`Engine`."""
        for process in list(self._processes):
            process.terminate()


# -- module files ---------------------------------------------------------------------------------


class ModuleFiles(dict[str, tuple[int, int, int]]):
    """The imported modules' files, watched for changes since the first look: their versions."""

    def look(self) -> list[str]:
        """Return the files that have changed since the last look.

        A missing file, as in the middle of a deployment, is checked again at the next look.
        """
        changed = []
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or not file.endswith(".py"):
                continue
            try:
                found = os.stat(file)
            except (OSError, ValueError):
                continue
            version = found.st_mtime_ns, found.st_size, found.st_ino
            if self.setdefault(file, version) != version:
                self[file] = version
                changed.append(file)
        return changed


# -- supervisor -----------------------------------------------------------------------------------


_DRAW_AGAIN = 0.25  # seconds after a ring; a submission may follow another one without a ring
_SCAN = 5.0  # seconds between two looks at all unfinished runs
_BELL = 0.1  # seconds between two looks at the bells
_SET_BACK = 2.0  # seconds by which the clock may be corrected without a new look at everything
_SWEPT = 20  # inboxes that are looked into at each scan, since a ring may be lost
_NAMED = 20  # runs of unknown workflows that are named, beside the first of each workflow
_OWN_TASK = 60.0  # seconds for the task of a submitted run to begin it
_LONGEST = 300.0  # seconds after a death, at most
_RETENTION = 1.0  # seconds for deletions in each store, with ``once``
Kind = Literal[
    "ready", "begun", "ended", "left", "changed", "draining", "problem", "pruned", "schedule"
]


class Happening(NamedTuple):
    """An action or a discovery of the supervisor.

    Args:
        kind: what happened; for ``ended`` and ``left``, ``status`` says more.
        facts: of the run, as it was when the supervisor looked: it may be deleted meanwhile.
        status: of the run at that moment.
        detail: as text.
        command: the command that continues a run that is left, as a list of words.
    """

    kind: Kind
    facts: RunFacts | None = None
    status: str = ""
    detail: str = ""
    command: tuple[str, ...] = ()


class Terms(NamedTuple):
    """The terms on which the supervisor executes runs.

    Args:
        most: how many runs are executed at the same time.
        once: execute only the runs that are due now.
        only: execute only the runs with these ids, even if they died too often; empty for all.
        alone: returns the command that executes one run in its own process.
        continuing: returns the command that continues a run of another program; raises
            :class:`ConfigurationError` if there is none.
        engine: executes the runs; ``None`` for threads of this process.
        until_edited: end once the file of an imported module has changed.
    """

    most: int = 8
    once: bool = False
    only: frozenset[str] = frozenset()
    alone: Callable[[Run], Sequence[str]] = lambda _: ()
    continuing: Callable[[Run], Sequence[str]] = lambda _: ()
    engine: Engine | None = None
    until_edited: bool = False


def stores_for(modules: Sequence[str]) -> list[Store]:
    """Return the stores that may hold runs of the workflows in imported modules.

    Raises:
        ConfigurationError: a module has no workflow; or the store does not outlive a process.
    """
    known = known_workflows()
    for name in modules:
        # Not by an attribute: the proxies of web frameworks raise outside of a request.
        held = any(
            issubclass(type(each), TakesOptions) for each in vars(sys.modules[name]).values()
        )
        places = (f"{each.function.__module__}." for each in known)
        if not held and not any(place.startswith(f"{name}.") for place in places):
            raise errors.ConfigurationError(
                f"module {name!r} has no workflows: name the modules with functions that are "
                "decorated with @workflow"
            )
    first, *others = handles.stores_of(known)
    if not first.persistent:
        raise errors.ConfigurationError(
            f"the store {first.url} is in the memory of one process, so no other process has left "
            "runs there: choose another one with --store or STEPWISE_STORE"
        )
    return [first, *(each for each in others if each.persistent)]


class _LeftAlone(NamedTuple):
    """A run that the supervisor leaves alone until something about the run changes."""

    run: handles.UnfinishedRun
    last: int  # number of its last record; 0 if only its head counts


class Supervisor:
    """The executor of due runs: until it is stopped, or with ``once`` until all due runs ended.

    Args:
        stores: the stores to look for unfinished runs in.
        report: called with each :class:`Happening`; by several threads.
        output: where the runs print.

    Attributes:
        ends: the status of each run that was executed, by run id.
        deaths: how often the process of a run was found dead, by workflow.
        looked: when the supervisor last looked for due runs, by the monotonic clock.
        most: how many runs are executed at the same time, at most.
    """

    def __init__(
        self,
        stores: Iterable[Store],
        terms: Terms,
        report: Callable[[Happening], None],
        output: RunOutput,
    ) -> None:
        self._backlogs = {store.url: handles.Backlog(store) for store in stores}
        self._queues = [
            Queue(backlog, names)
            for backlog in self._backlogs.values()
            for names in {names_of(each) for each in known_workflows()}
        ]
        self._draws: list[float] = []  # moments, by the monotonic clock, of looks at the queues
        self._terms, self._report = terms, report
        self._bells: dict[str, Bell] = {}
        self._agenda = Agenda()
        self._jobs: dict[Key, Underway] = {}
        self._left: dict[Key, _LeftAlone] = {}
        self._strange: set[str] = set()  # workflows that are not known here
        self._said: set[tuple[Key, str]] = set()
        self._faults: dict[Key, int] = {}  # times in a row that the store failed a run
        self._swept: deque[Key] = deque()
        self._here = Threads(output)
        self._engine: Engine = terms.engine or self._here
        self._apart: Engine = terms.engine or OwnProcess(terms.alone)
        # Not a condition or event: a signal handler of the same thread may put an item.
        self._news: queue.SimpleQueue[Underway | None] = queue.SimpleQueue()
        self._turns = Turns(functools.partial(self._news.put, None), _behind())
        self._announced: dict[Key, Lease] = {}
        self._timetable = Timetable(
            (each.store for each in self._backlogs.values()), self._tell_of_schedule
        )
        self._files = ModuleFiles()
        self._is_edited = False
        self._stops = 0
        self._by_ctrl_c = False
        self._horizon = math.inf
        self._failed = 0
        self._noted = math.inf
        self._died: dict[Key, float] = {}
        self.ends: dict[str, str] = {}
        self.deaths: Counter[str] = Counter()
        self.looked, self.most = time.monotonic(), terms.most
        stores = [each.store for each in self._backlogs.values()]
        self.retention = Retention(stores, lambda what: self._say("pruned", None, what))

    # -- the loop --------------------------------------------------------------------------------

    def stop(self, by: int = signal.SIGTERM) -> None:
        """Begin no further run, and end when the runs in progress have reached a safe point.

        Call again to end at once.  Signal handlers may call this; ``by`` is the signal.
        """
        self._stops += 1
        self._by_ctrl_c = by == signal.SIGINT
        self._news.put(None)

    @property
    def is_stopped(self) -> bool:
        """True if the supervisor begins no further run."""
        return self._is_ending

    @property
    def is_stopped_twice(self) -> bool:
        """True if the supervisor no longer waits for anything."""
        return self._stops > 1

    @property
    def is_executing(self) -> bool:
        """True if runs are still in progress that did not reach a safe point in time."""
        return bool(self._jobs)

    @property
    def slots_in_use(self) -> int:
        """How many runs are being executed."""
        return len(self._jobs)

    def note_due(self, at: float) -> None:
        """Note a moment, in seconds since 1970, at which this command should run again."""
        self._noted = min(self._noted, at)

    @property
    def wake(self) -> float | None:
        """When the next start is due, in seconds since 1970; ``None`` if nothing waits for a time.

        Runs that other processes execute are not considered.
        """
        at = min([self._noted, *(plan.at for plan in self._agenda.plans.values())])
        if not self._terms.only:
            at = min(at, self._timetable.next)
        return None if math.isinf(at) else at

    @property
    def exit_code(self) -> int:
        """The exit code of the process: with ``once``, 1 if a run failed.

        After Ctrl-C the code is 130.  SIGTERM is the usual end of a service, and no failure of it.
        75 asks for a restart, since a module has changed.
        """
        if self._is_edited and not self._by_ctrl_c:
            return EX_TEMPFAIL
        if self._stops and (self._by_ctrl_c or not self._terms.once):
            return 130 if self._by_ctrl_c else 0
        if self._stops:
            return AFTER_SIGTERM
        return int(bool(self._failed))

    @property
    def _is_ending(self) -> bool:
        return self._is_edited or bool(self._stops)

    def run(self) -> None:
        """Execute runs until :meth:`stop`; with ``once``, until all due runs are done."""
        memory.is_executor = True
        settings.suspend_soon(WAIT_HERE)
        self._files.look()
        self._scan()
        self._begin_scheduled(look=True)
        if self._terms.once:
            self._horizon = clock.now() + _SCAN
        if not self._terms.only:
            now, plans = clock.now(), self._agenda.plans.values()
            waiting = sum(p.at > now and p.run.facts.status == "suspended" for p in plans)
            due = count(len(plans) - waiting, "run")
            more = ", and more" if any(each.has_more for each in self._queues) else ""
            self._say("ready", None, f"{due} to continue, {waiting} waiting{more}")
            if not self._terms.once:
                self.retention.begin()
        scanned, behind = time.monotonic(), _behind()
        while not self._is_ending:
            self.looked = time.monotonic()
            self._begin_scheduled()
            self._begin_due()
            if self._terms.once and not self._has_due():
                self._draw()  # these runs may have submitted others
                if not self._has_due():
                    break
            self._take_news(self._pause(scanned + _SCAN - time.monotonic()))
            set_back = _behind() > behind + _SET_BACK
            if set_back:  # moments by the old clock would come too late
                self._forget_plans()
            if set_back or time.monotonic() >= scanned + _SCAN:
                self._look_for_edits()
                self._begin_scheduled(look=True)
                self._scan()
                scanned, behind = time.monotonic(), _behind()
            else:
                self._hear()
                if self._draws and time.monotonic() >= self._draws[0]:
                    del self._draws[0]
                    self._draw()
        self._end()

    def _has_due(self) -> bool:
        is_due = any(plan.at <= self._horizon for plan in self._agenda.plans.values())
        return bool(self._jobs or self._turns.asked or is_due)

    def _end(self) -> None:
        """End in order: first what others may take over."""
        self._turns.leave()
        for url in self._backlogs:
            self._withdraw(url)
        self._drain()
        for job in self._jobs.values():
            self.note_due(clock.now())
            self.ends[job.run.facts.run_id] = "crashed"
        if self._terms.once:
            self._tell_of_others()
            if not (self._is_ending or self._terms.only):
                self.retention.work(_RETENTION)
        self.retention.end()

    def _forget_plans(self) -> None:
        """Forget when runs continue; the next scan plans all of them."""
        self._agenda.clear()
        for each in self._queues:
            each.planned.clear()

    def _pause(self, to_scan: float) -> float:
        ahead = self._agenda.next - clock.now()
        if len(self._jobs) >= self._terms.most:
            ahead = math.inf
        return max(0.0, min(to_scan, ahead, _BELL))

    def _take_news(self, pause: float) -> None:
        """Wait for news, and handle all that has arrived."""
        with contextlib.suppress(queue.Empty):
            job = self._news.get(timeout=pause)
            while True:
                if job is not None:
                    self._note_end(job)
                job = self._news.get_nowait()

    def _look_for_edits(self) -> None:
        """Report changed modules; end if the terms say so."""
        files = self._files.look()
        if files:
            self._is_edited = self._terms.until_edited
            many = count(len(files) - 1, "other file") if len(files) > 1 else ""
            named = f"{files[0]}{f' and {many}' if many else ''} changed since the import"
            todo = (
                "ends, to be started again"
                if self._is_edited
                else "goes on with the old code until it is started again"
            )
            self._say("changed", None, f"{named}; up {todo}")

    # -- looking ---------------------------------------------------------------------------------

    def _scan(self) -> None:
        for url, backlog in self._backlogs.items():
            try:
                self._announce(backlog.store)
                self._renew_bell(url)
                found = backlog.look()
                for run in [*found, *filter(None, map(backlog.look_at, self._terms.only))]:
                    self._consider(run)
                self._name_unserved(backlog)
            except (errors.StepwiseError, errors.RunStopped) as error:
                if self._terms.once:
                    raise
                self._withdraw(url)
                self._say("problem", None, f"the runs in {url} cannot be looked at: {error}")
                continue
            there = {run.key for run in found}
            there |= {key for key, left in self._left.items() if left.run.facts.is_submitted}
            there |= {key for each in self._queues for key in each.planned}
            for known in (self._agenda.plans, self._left, self._faults, self._died):
                for key in [key for key in known if key[0] == url and key not in there]:
                    del known[key]
        self._draw()
        self._draws = [time.monotonic() + _DRAW_AGAIN]  # a ring before this look may cover others
        self._sweep()

    def _name_unserved(self, backlog: handles.Backlog) -> None:
        """Name a submitted run of each workflow that is not known here, once for each workflow."""
        known = {name for each in known_workflows() for name in names_of(each)}
        for run in backlog.first_of_others(known):
            if run.facts.workflow not in self._strange:
                self._consider(run)

    def _draw(self) -> None:
        """Plan the submitted runs that are next."""
        if self._terms.only:
            return
        for each in self._queues:
            if not each.is_full():
                # The next scan reports an error of the store.
                with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
                    self._refill(each)

    def _draw_soon(self) -> None:
        """Look for submitted runs now, and again a moment later."""
        soon = time.monotonic()
        self._draws = [soon, soon + _DRAW_AGAIN]

    def _refill(self, line: Queue) -> None:
        before = line.planned
        underway = self._jobs.keys() | self._turns.asked.keys()
        line.draw(lambda run: run.key not in underway and not self._is_left(run))
        for key in before.keys() - line.planned.keys():
            self._agenda.plans.pop(key, None)
        for run in line.planned.values():
            self._consider(run)

    def _announce(self, store: Store) -> None:
        """Take a lease for each workflow, so that others see who continues its runs.

        A lease that was lost, since this machine slept or the server was away for long, is taken
        again.
        """
        if self._terms.once or self._terms.only:
            return
        known = known_workflows()
        names = {
            supervisor_name(each.full_name, code) for each in known for code in ("", each.code)
        }
        names |= self._timetable.leases(store.url)
        for key in ((store.url, name) for name in sorted(names)):
            if key in self._announced and not self._announced[key].is_ours():
                self._announced.pop(key).release()
            if key not in self._announced:
                with contextlib.suppress(errors.RunBusyError):  # of another supervisor
                    self._announced[key] = Lease(store, key[1]).acquire()

    def _withdraw(self, url: str) -> None:
        """Release these leases: a store that was replaced opens again only without any."""
        for key in [key for key in self._announced if key[0] == url]:
            self._announced.pop(key).release()

    def _renew_bell(self, url: str) -> None:
        """Renew the bell of a store, since the store may have been restored from a backup."""
        backlog, before = self._backlogs[url], self._bells.get(url)
        fresh = Bell(backlog.store, backlog.seal)
        fresh.look()
        for run_id in before.look() if before is not None else ():
            self._look_at(url, run_id)
        self._bells[url] = fresh

    def _hear(self) -> None:
        """Look at the runs whose bell rang."""
        for url, bell in self._bells.items():
            with contextlib.suppress(
                errors.StepwiseError, errors.RunStopped
            ):  # the next scan reports it
                for run_id in bell.look():
                    if run_id == QUEUE:
                        self._draw_soon()
                    else:
                        self._look_at(url, run_id)

    def _look_at(self, url: str, run_id: str) -> None:
        run = self._backlogs[url].look_at(run_id)
        if run is not None and (run.key in self._agenda.plans or not run.facts.is_submitted):
            self._agenda.plans.pop(run.key, None)
            self._consider(run)

    def _sweep(self) -> None:
        """Read a few inboxes, since a ring may have been lost."""
        if not self._swept:
            self._swept.extend(
                key
                for key, plan in self._agenda.plans.items()
                if plan.run.facts.status == "suspended"
            )
        for _ in range(min(_SWEPT, len(self._swept))):
            key = self._swept.popleft()
            plan = self._agenda.plans.get(key)
            if plan is not None and plan.at > clock.now():
                with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
                    self._look_at(*key)

    # -- schedules -------------------------------------------------------------------------------

    def _begin_scheduled(self, *, look: bool = False) -> None:
        """Submit the runs of schedules that are due; with ``once``, only at first."""
        once = self._terms.once
        if self._terms.only or (once and self._horizon < math.inf):
            return
        found = self._timetable.begin_due(look=look)
        while once and self._timetable.next <= clock.now():  # many instants were missed
            found |= self._timetable.begin_due()
        if found:
            self._draw()

    def _tell_of_schedule(self, kind: Literal["problem", "schedule"], text: str) -> None:
        self._failed += kind == "problem"
        self._say(kind, None, text)

    # -- deciding --------------------------------------------------------------------------------

    def _consider(self, run: handles.UnfinishedRun) -> None:
        """Plan when a run continues, or leave it; an unreadable run must not stop the others."""
        try:
            self._decide(run)
        except (errors.StepwiseError, errors.RunStopped) as error:
            self._failed += 1
            self._say("problem", run, f"it cannot be read: {error}")

    def _decide(self, run: handles.UnfinishedRun) -> None:
        key, facts, only = run.key, run.facts, self._terms.only
        if (
            key in self._jobs
            or key in self._turns.asked
            or (only and facts.run_id not in only)
            or self._is_left(run)
        ):
            return
        known = self._agenda.plans.get(key)
        if known is not None and known.run.facts == facts:
            return
        why = run.why()
        if why is None and facts.status == "running":
            self._agenda.plans.pop(key, None)  # a process executes the run
            return
        try:
            definition = known_workflow(facts.workflow)
        except errors.ConfigurationError as error:
            self._leave_strange(run, error)
            return
        if why == "crashed":
            self._plan_after_death(run, definition.code)
        else:
            is_due = why is not None and not facts.is_submitted  # those keep their order
            self._agenda.add(Plan(run, clock.now() if is_due else run.until))

    def _leave_strange(self, run: handles.UnfinishedRun, error: errors.ConfigurationError) -> None:
        """Leave a run whose workflow is unknown here; report the first of them by name."""
        unknown = run.facts.workflow not in self._strange
        self._strange.add(run.facts.workflow)
        self._left[run.key] = _LeftAlone(run, 0)
        if unknown or len(self._left) <= _NAMED:
            command = tuple[str, ...]()
            is_here = workflows_named(run.facts.workflow)  # several of one name
            why = str(error) if is_here else "its workflow is not in these modules"
            try:
                command = tuple(self._terms.continuing(run.run))
            except errors.StepwiseError as problem:
                why = f"{why}; {problem}"
            self._say("left", run, why, command=command)

    def _plan_after_death(self, run: handles.UnfinishedRun, code: str) -> None:
        deaths = deaths_of(*run, code)
        if deaths.attempts and self._died.get(run.key) != deaths.at:
            self._died[run.key] = deaths.at
            self.deaths[run.facts.workflow] += 1
        if self._terms.only:
            self._agenda.add(Plan(run, clock.now()))
        elif deaths.are_deadly:
            why = f"its process died {deaths.stuck} times at the same step"
            self._failed += 1
            self._leave(run, why, self._terms.alone(run.run), status="stuck")
        else:
            wait = min(_LONGEST, 2.0 ** (deaths.attempts - 1)) if deaths.attempts else 0.0
            if not deaths.attempts and handles.is_submitted(run):
                wait = _OWN_TASK
            alone = deaths.stuck >= DEADLY - 1 and bool(self._terms.alone(run.run))
            self._agenda.add(Plan(run, deaths.at + wait, alone))

    def _is_left(self, run: handles.UnfinishedRun) -> bool:
        left = self._left.get(run.key)
        if left is None:
            return False
        if left.run.facts == run.facts and left.last in (0, _last(run)):
            return True
        del self._left[run.key]
        return False

    def _leave(
        self,
        run: handles.UnfinishedRun,
        detail: str,
        command: Sequence[str] = (),
        *,
        last: int = 0,
        status: str = "",
    ) -> None:
        """Leave a run until something about it changes, and report that once."""
        self._left[run.key] = _LeftAlone(run, last)
        self._say("left", run, detail, command=command, status=status)

    def _say(
        self,
        kind: Kind,
        run: handles.UnfinishedRun | None,
        detail: str = "",
        *,
        status: str = "",
        command: Sequence[str] = (),
    ) -> None:
        about = run.key if run is not None else ("", "")
        if kind in ("left", "problem"):
            if (about, detail) in self._said:
                return
            self._said.add((about, detail))
        if run is not None and not status:
            status = "crashed" if run.facts.status == "running" else run.facts.status
        facts = run.facts if run is not None else None
        self._report(Happening(kind, facts, status, detail, tuple(command)))

    def _tell_of_others(self) -> None:
        """Report the runs that were not due when the supervisor ends."""
        for plan in sorted(self._agenda.plans.values(), key=lambda each: each.at):
            if plan.run.facts.status == "suspended":
                self._say("left", plan.run, _waits_for(plan.run))
            else:
                ahead = max(0.0, plan.at - clock.now())
                why = "it was submitted" if handles.is_submitted(plan.run) else "its process died"
                detail = f"{why}; it is tried again in {ahead:.0f} s"
                self._say("left", plan.run, detail)

    # -- executing -------------------------------------------------------------------------------

    def _begin_due(self) -> None:
        """Begin the runs whose moment has come, the longest due first."""
        self._begin_in_turn()
        latest = min(clock.now(), self._horizon)
        while len(self._jobs) < self._terms.most and not self._is_ending:
            plan = self._agenda.take(latest)
            if plan is None:
                return
            if plan.run.key in self._jobs or self._is_held(plan):
                continue
            del self._agenda.plans[plan.run.key]
            if self._is_ours(plan.run):
                self._begin(plan)

    def _is_ours(self, run: UnfinishedRun) -> bool:
        """Return whether to begin a run whose moment has come."""
        return self._is_still_next(run) and not self._is_left_to_another_version(run)

    def _is_held(self, plan: Plan) -> bool:
        """Ask for the turn of a run whose workflow has ``concurrent=``; return whether it waits."""
        workflow = known_workflow(plan.run.facts.workflow)
        is_free = workflow.options.concurrent is None
        if is_free or plan.alone or self._engine is not self._here:
            return False  # another process asks itself
        if self._turns.ask(plan, workflow, self._terms.most):
            del self._agenda.plans[plan.run.key]
        return True

    def _begin_in_turn(self) -> None:
        """Begin the runs that have got their turn."""
        for plan, turn in self._turns.decided():
            if turn.error is not None:
                self._agenda.add(plan._replace(at=clock.now() + self._pause_after_fault(plan.run)))
                self._say("problem", plan.run, error_text(turn.error))
            elif len(self._jobs) >= self._terms.most:  # others took the places here meanwhile
                turn.desk.leave(turn)
                self._agenda.add(plan)
            elif self._is_ours(plan.run):
                self._begin(plan, turn)
            else:
                turn.desk.leave(turn)
            for each in self._turns.held():
                if self._agenda.plans.get(each.run.key) is each:
                    self._agenda.add(each)

    def _is_still_next(self, run: UnfinishedRun) -> bool:
        """Return whether nobody has begun a submitted run meanwhile; plan the next ones in time."""
        if not run.facts.is_submitted:
            return True
        line = next((each for each in self._queues if each.planned.pop(run.key, None)), None)
        # The execution reports an error.
        with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
            if line is not None and line.has_more and len(line.planned) < self._terms.most:
                self._refill(line)
            found = read_head(run.store, run.seal, run.facts.run_id)
            return found is not None and found[0] == run.facts
        return True

    def _is_left_to_another_version(self, run: UnfinishedRun) -> bool:
        """Return whether another supervisor has the code that last executed the run.

        The next scan considers the run again.  A run that dies with that code again and again is
        not left to the other supervisor: our code may be the mended one.
        """
        facts = run.facts
        if facts.run_id in self._terms.only or not facts.code:
            return False
        if facts.code == known_workflow(facts.workflow).code:
            return False
        # The execution reports an error.
        with contextlib.suppress(errors.StepwiseError, errors.RunStopped):
            owner = run.store.owner(supervisor_name(facts.workflow, facts.code))
            if owner is not None and not (run.why() == "crashed" and deaths_of(*run).are_deadly):
                self._say("left", run, f"stepwise up, {describe_owner(owner)}, has its code")
                return True
        return False

    def _begin(self, plan: Plan, turn: Turn | None = None) -> None:
        job = self._jobs[plan.run.key] = Underway(plan.run, self._news.put, turn)
        engine = self._apart if plan.alone else self._engine
        if engine is self._here:
            self._say("begun", plan.run)
            engine.begin(job)
        else:
            self._say("begun", plan.run, engine.begin(job))

    # -- how it ended ----------------------------------------------------------------------------

    def _note_end(self, job: Underway) -> None:
        """Handle the end of a run; retry the run later if the store is not available."""
        try:
            self._ended(job)
        except errors.StoreError as error:
            if self._terms.once or self._is_ending:
                raise
            self._agenda.add(Plan(job.run, clock.now() + self._pause_after_fault(job.run)))
            self._say("problem", None, f"{job.run.facts.run_id}: {error_text(error)}")

    def _pause_after_fault(self, run: handles.UnfinishedRun) -> float:
        """Return the seconds to wait before the retry of a run that the store failed."""
        number = self._faults[run.key] = self._faults.get(run.key, 0) + 1
        return min(_LONGEST, 2.0**number)

    def _ended(self, job: Underway) -> None:
        """Handle the end of a run's execution: report it, and plan or leave the run."""
        run, error = job.run, job.error
        if job.permit is not None:
            job.permit.desk.over(job.permit)  # if the run was not even taken up
        del self._jobs[run.key]
        if isinstance(error, errors.RunBusyError) and run.facts.is_submitted:
            return  # another process was faster
        if isinstance(error, errors.RunBusyError) or (
            isinstance(error, errors.LeaseLostError)
            and run.store.owner(run.facts.run_id) is not None
        ):
            self._say("ended", run, "another process executes it", status="running")
            return
        now, status = None, "completed"
        if error is not None or job.lost:
            now = self._backlogs[run.store.url].look_at(run.facts.run_id)
            status = now.facts.status if now is not None else _status_of(run)
        self.ends[run.facts.run_id] = "crashed" if status == "running" else status
        waits = now is not None and status == "suspended" and now.facts != run.facts
        if now is None or waits:
            self._faults.pop(run.key, None)
            self._failed += status in ("failed", "interrupted")
            if not (job.told or (job.lost and self._is_ending)):
                how = error_line(preview(error)) if error is not None else ""
                self._say("ended", run, _waits_for(now) if now is not None else how, status=status)
        elif not job.lost and not self._is_ending:
            self._stopped(now, error, refused=job.refused)
            return
        elif not job.told:
            why = "its process died" if error is None else error_text(error)
            detail = "it goes on at the next start" if self._is_ending else why
            self._say("ended", run, detail, status="crashed")
        if now is None:
            return
        if self._is_ending:
            self.note_due(now.until if waits else clock.now())
            return
        if waits and now.facts.waits == run.facts.waits:  # the run was woken in vain
            self._agenda.add(Plan(now, max(clock.now() + 1.0, now.until)))
        else:
            self._consider(now)

    def _stopped(
        self, run: handles.UnfinishedRun, error: BaseException | None, *, refused: bool
    ) -> None:
        """Decide what becomes of a run that stopped without an end."""
        self._failed += 1
        lost = isinstance(error, (errors.CorruptStoreError, errors.JournalLostError))
        if isinstance(error, (errors.StoreError, errors.LeaseLostError, MemoryError)) and not lost:
            self._agenda.add(Plan(run, clock.now() + self._pause_after_fault(run)))
            self._say("problem", run, error_text(error))
            return
        text = "" if error is None else error_text(error) or type(error).__name__
        why = "it cannot be called" if refused else "it stopped"
        self._leave(run, f"{why}: {text}", last=_last(run))

    def _drain(self) -> None:
        """Give the runs in progress time to reach a safe point."""
        if not self._jobs:
            return
        self._say("draining", None, f"{count(len(self._jobs), 'run')} in progress")
        with drained():
            for engine in {id(each): each for each in (self._engine, self._apart)}.values():
                engine.drain()
            until = time.monotonic() + settings.grace()
            while self._jobs and self._stops < 2 and time.monotonic() < until:
                self._take_news(min(1.0, until - time.monotonic()))
        record_end_of_process()


def _behind() -> float:
    """Return how many seconds the time of day is behind the monotonic clock."""
    return clock.elapsed() - clock.now()


def _status_of(run: handles.UnfinishedRun) -> str:
    """Return the status that a run has now, or ``deleted``."""
    try:
        return run.run.status
    except errors.RunNotFoundError:
        return "deleted"


def _waits_for(run: handles.UnfinishedRun) -> str:
    return f"waits {'; '.join(map(str, pending(run.facts)))}"


def _last(run: handles.UnfinishedRun) -> int:
    return newest_mark(run.store, run.seal, run.facts.run_id).last
