"""Engines: where the runs that a supervisor begins are executed.

An engine executes a run in a thread or a task of this process, in a process of its own, or on a
cluster (``integrations``).  It reports the end of a run as news, so that the supervisor needs to
know no engine.

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
import os
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from stepwise import errors
from stepwise._calls.limited import Turn
from stepwise._execution.active_run import current_scope
from stepwise._execution.process_memory import known_workflow, memory
from stepwise._execution.tasks import drained
from stepwise._execution.viewer import error_of
from stepwise._journal.journal import facts_of, read_end, seal_for
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import deaths_of
from stepwise._runs.run import Run
from stepwise._runtime import settings
from stepwise._runtime.event import Event, on_event
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import start_apart
from stepwise._runtime.messages import reports, shell_word
from stepwise._runtime.system_limits import make_private, open_private
from stepwise._values.codec import decode_error, dump_code, encode_error, traceback_text
from stepwise._values.preview import Secrets
from stepwise._values.unpickling import loads
from stepwise._workflows import handles
from stepwise._workflows.begin import TopLevel, run_of
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import Recall, record_submission
from stepwise._workflows.handles import UnfinishedRun, refuse_start
from stepwise._workflows.resume import WorkflowRun
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import Self

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
        run: UnfinishedRun,
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
        self._end = on_event(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        if self._before is not None:
            sys.stdout, sys.stderr = self._before
        for log in list(self._logs.values()):
            log.close()

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


# -- orders and replies ---------------------------------------------------------------------------


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
