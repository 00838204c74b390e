"""Runs that another process executes, on behalf of an engine: who asks for one, and who does it.

The submitter decides which run a call means, and puts it on record, so that its id can be relied
on.  An :class:`Order` travels, in the manner of the engine.  The process that gets it takes the
run over and executes it; how that ended goes back as an :class:`Reply`.  A recorded result stays
in the journal, from which the submitter takes it: so it is stored once, and objects of classes of
the submitter's script are of these classes.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from stepwise._calls.driver import drive
from stepwise._execution.draining import drained
from stepwise._execution.process_memory import memory
from stepwise._execution.viewer import error_of
from stepwise._journal.journal import facts_of, read_end, seal_for
from stepwise._journal.records import RunFacts
from stepwise._runs.run import Run
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._values.codec import decode_error, encode_error, traceback_text
from stepwise._values.pickling import dump_code, load_code
from stepwise._values.secrets import Secrets
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import record_submission
from stepwise._workflows.handles import Handle, execute_here, refuse_start
from stepwise._workflows.invoke import TopLevel, run_of
from stepwise._workflows.opening import Recall
from stepwise._workflows.resume import WorkflowRun
from stepwise._workflows.run_output import RunOutput
from stepwise._workflows.suspending import until_due
from stepwise._workflows.unfinished import UnfinishedRun, deaths_of
from stepwise.errors import (
    ConfigurationError,
    NotRecordableError,
    RunBusyError,
    RunStopped,
    RunSuspended,
    StepwiseError,
)
from stepwise.stores import Store, open_store

__all__ = [
    "Continuation",
    "Order",
    "Placement",
    "Reply",
    "carry_on",
    "carry_out",
    "continuation",
    "place",
]

WAIT_HERE = 1.0
"""Seconds that a run waits before it suspends, and gives its place to another run."""

_HOPELESS = 10  # deaths in a row, without a step's end in between


class Order(NamedTuple):
    """A run that another process is to execute.

    Args:
        run_id: of the run.
        explicit: the user chose the id.
        resumes: the run is taken up even if it was cancelled.
        store: the URL of the store, without a password.
        key: identifies the key of the records, and says nothing about the key.
        call: the workflow and its arguments, pickled.
        settings: of the submitter; see :func:`stepwise._runtime.settings.traveling`.
        end: number of the record that had ended the run when it was submitted; 0 for none.
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
    """A run that another process is to continue, with its recorded arguments.

    Args:
        facts: of the run; if they have changed, another process continues it.
        store: the URL of the store, without a password.
        key: identifies the key of the records, and says nothing about the key.
        modules: to import, so that the workflow is known.
        folder: in which the modules were found.
        logs: a folder for what runs print; empty for none.
        settings: as of an :class:`Order`.
    """

    facts: RunFacts
    store: str
    key: bytes
    modules: tuple[str, ...]
    folder: str
    logs: str
    settings: dict[str, Any]


class Reply(NamedTuple):
    """How a run that was to be executed elsewhere ended there.

    Args:
        kind: ``"recorded"``: the result is in the journal; ``"value"``: here, since it could not
            be recorded; ``"error"``: the run ended or stopped with an exception.
        data: the value or the exception, encoded.
        place: where it was executed, in words.
        trace: the traceback of the exception, as text.
        suspended: the run waits, and goes on later.
        refused: the run could not be called at all.
    """

    kind: Literal["recorded", "value", "error"]
    data: bytes = b""
    place: str = ""
    trace: str = ""
    suspended: bool = False
    refused: bool = False


def key_of(store: Store) -> bytes:
    """Return what identifies the key of the records in a store."""
    return seal_for(store).key_id


def continuation(run: UnfinishedRun, modules: Sequence[str], logs: str) -> Continuation:
    """Return what travels to a process that is to continue a run.

    Args:
        modules: that have its workflow, found as in the current folder.
        logs: a folder for what runs print; empty for none.
    """
    folder, key = os.getcwd(), key_of(run.store)
    now = settings.traveling()
    return Continuation(run.facts, run.store.url, key, tuple(modules), folder, logs, now)


# -- the submitter -------------------------------------------------------------------------------


class Placement:
    """A run that is on record, to be executed elsewhere.

    Attributes:
        recalled: its recorded result, if it has completed before.
    """

    def __init__(self, top: TopLevel, call: bytes) -> None:
        self._top = top
        self._call = call
        self.recalled: Recall | None = top.taken if isinstance(top.taken, Recall) else None

    @property
    def store(self) -> Store:
        """The store that has it."""
        return self._top.store

    @property
    def run(self) -> Run:
        """The run, for looking at it."""
        return run_of(self._top.store, self._top.run_id)

    @property
    def key(self) -> tuple[str, str]:
        """The store and the id."""
        return self._top.store.url, self._top.run_id

    def order(self) -> Order:
        """Return what travels."""
        top = self._top
        facts = facts_of(top.store, seal_for(top.store), top.run_id)
        return Order(
            top.run_id,
            top.is_explicit,
            top.resumes,
            top.store.url,
            key_of(top.store),
            self._call,
            settings.traveling(),
            facts.end if facts is not None else 0,
        )

    def until_due(self) -> None:
        """Wait until the run, which is suspended, has to go on."""
        drive(until_due(self._top.store, self._top.run_id)).unwrap()

    def result(self, reply: Reply) -> Any:
        """Return what the workflow returned.

        Raises:
            BaseException: what it raised.
        """
        if reply.kind == "error":
            error = decode_error(reply.data)
            if reply.trace and hasattr(error, "add_note"):
                error.add_note(f"Raised {reply.place}:\n{reply.trace.rstrip()}")
            raise error
        if reply.kind == "value":
            return load_code(reply.data)
        recalled = self._top.recall()
        if recalled is None:
            raise StepwiseError(
                f"run {self._top.run_id!r} completed {reply.place}, and its result is no longer "
                "in the store: the run was deleted, or called again"
            )
        return recalled.value

    def completed(self) -> None:
        """Count the run: an equal call that comes later means another one."""
        memory.completed(self._top.store.url, self._top.base, self._top.run_id)


def place(
    workflow: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    what: str,
    check: Callable[[Store], None],
) -> Placement:
    """Put the run that a call means on record, so that another process can execute it.

    Args:
        workflow: as :func:`stepwise.workflow` gives it; bound, if it is a method.
        what: names the operation, in messages.
        check: raises if other processes cannot use the store.

    Raises:
        ConfigurationError: it is no workflow, or a generator; this is a run.
        StepwiseError: as a call of the workflow raises before it begins.
    """
    definition = getattr(workflow, "definition", None)
    if not isinstance(definition, Definition):
        raise ConfigurationError(
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
    if definition.options.on_owned == "wait":  # its task does that
        options = definition.options.changed({"on_owned": "raise"})
        definition = Definition(definition.function, options, definition)
    top = TopLevel(definition, instance, args, kwargs)
    top.promised = True
    top.choose()
    check(top.store)
    workflow, whole = given  # unbound as it may be, with the instance among the arguments
    elsewhere = workflow.options(store=top.store.url, on_owned="wait")
    try:
        call = dump_code((elsewhere, whole, dict(kwargs)))
    except Exception as error:
        raise NotRecordableError(
            f"{what}: the workflow or one of its arguments cannot be sent to another process: "
            f"{error}",
            path="",
            type_name=type(error).__name__,
        ) from error
    try:
        top.begin_here()
    except RunBusyError:  # the task waits for the result
        return Placement(top, call)
    opened = top.taken
    if isinstance(opened, WorkflowRun):
        _put_down(top, opened)
    else:
        top.__exit__(None, None, None)
    return Placement(top, call)


def _put_down(top: TopLevel, opened: WorkflowRun) -> None:
    """Give up a run that was taken over to put it on record."""
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
    """Execute a run, and return how that ended, whatever it raised.

    Args:
        where: this process is, in words: ``on node ...``.

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
        # It failed since it was submitted: in a task whose node died before that was reported.
        error = error_of(store, seal, facts)
        if error is not None:
            raise error
    if facts is not None and store.owner(order.run_id) is None:
        stuck = deaths_of(UnfinishedRun(store, seal, facts)).stuck
        if stuck >= _HOPELESS:
            raise StepwiseError(
                f"run {order.run_id!r} is not tried again: its process died {stuck} times at the "
                f"same step. To try it again: stepwise resume {order.run_id}"
            )
    try:
        workflow, args, kwargs = load_code(order.call)
    except Exception as error:
        raise ConfigurationError(
            f"the workflow of run {order.run_id!r}, or one of its arguments, cannot be loaded "
            f"{where}: {type(error).__name__}: {error}. Its modules must be there; "
            "ray.init(runtime_env={'working_dir': '.'}) sends the files of a folder along"
        ) from error
    _keep_names(workflow.definition.function)
    operation = functools.partial(_executed, order, where)
    reply: Reply = workflow._with(workflow.definition, operation)(*args, **kwargs)
    return reply


def _prepared(order: Order | Continuation, run_id: str, where: str) -> Store:
    """Return the store of a run that this process is to execute for another one."""
    memory.is_executor = True
    settings.suspend_soon(WAIT_HERE)
    settings.adopt(order.settings)
    store = open_store(order.store)
    if order.key not in seal_for(store).key_ids:
        raise ConfigurationError(
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
    top.mean(order.run_id, explicit=order.explicit)
    top.resumes = order.resumes
    return _reply(top, where)


def _reply(top: TopLevel, where: str) -> Reply:
    """Execute a run, and return how that ended."""
    handle: Handle[Any] = Handle(run_of(top.store, top.run_id))
    execute_here(top, handle)
    if handle._error is not None:
        if is_of_the_engine(handle._error):
            raise handle._error
        opened = top.taken
        secrets = opened.active.secrets if isinstance(opened, WorkflowRun) else None
        return _raised(handle._error, where, secrets)._replace(refused=not top.opened)
    seal = seal_for(top.store)
    facts = facts_of(top.store, seal, top.run_id)
    end = read_end(top.store, seal, facts) if facts is not None else None
    if end is not None and end.ended is not None and end.ended.answers:
        return Reply("recorded", place=where)
    try:
        return Reply("value", dump_code(handle._value), where)
    except Exception as error:
        return _raised(
            NotRecordableError(
                f"run {top.run_id!r} completed {where}, and its result cannot be sent: {error}",
                path="",
                type_name=type(handle._value).__name__,
            ),
            where,
        )


def carry_on(order: Continuation, where: str) -> Reply:
    """Continue a run, and return how that ended, whatever it raised.

    An interrupt of the main thread, by which the engine cancels a task, drains: no step begins, and
    those in flight may end.

    Args:
        where: this process is, in words: ``on node ...``.
    """
    try:
        with RunOutput(order.logs) as output, _drained_by_interrupts():
            store = _prepared(order, order.facts.run_id, where)
            _import(order)
            top = UnfinishedRun(store, seal_for(store), order.facts).again()
            log = output.begin(top.run_id)
            context = contextvars.copy_context()
            context.run(output.enter, log)
            try:
                return context.run(_reply, top, where)
            finally:
                output.end(log)
    except BaseException as error:
        if is_of_the_engine(error):
            raise
        return _raised(error, where)._replace(refused=True)


def _import(order: Continuation) -> None:
    """Import the modules in which the workflow is."""
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
    """Return whether an exception says that the engine ends the task, or the process."""
    return isinstance(error, KeyboardInterrupt) or hasattr(error, "ray_terminate_msg")


def _raised(error: BaseException, where: str, secrets: Secrets | None = None) -> Reply:
    secrets = secrets or Secrets()
    trace = "" if isinstance(error, RunStopped) else traceback_text(error, secrets.mask)
    data = bytes(encode_error(error, secrets).data)
    return Reply("error", data, where, trace, isinstance(error, RunSuspended))


_kept: dict[str, object] = {}  # what was put into this process's __main__, by name


def _keep_names(function: Any) -> None:
    """Let the names of the submitter's ``__main__`` stand for its classes and functions here.

    They came by value.  Recorded by name, they are the script's own where the run is looked at
    or goes on.
    """
    here = vars(sys.modules["__main__"])
    space = getattr(function, "__globals__", {})
    if function.__module__ != "__main__" or space is here:
        return
    for name, value in list(space.items()):
        is_code = isinstance(value, (type, types.FunctionType))
        if is_code and value.__module__ == "__main__" and here.get(name) is _kept.get(name):
            here[name] = _kept[name] = value
