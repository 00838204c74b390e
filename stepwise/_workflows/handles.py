"""Runs beside their caller: started, suspended and woken, recovered after a crash.

``recover()`` and ``stepwise up`` use the same code to find the runs that must be continued.
``recover()`` looks once, ``stepwise up`` continuously.

The waker continues the suspended runs of this process once their moment or message arrives.  The
thread or the task of a suspended run has ended, and its locals are in the store.  An entry remains
here, and the watcher rings the entry when the moment or the message arrives.  One thread then
checks the store and begins the run anew.  The thread lives while there are entries.

Rejected: keeping the thread of a run that cannot resume inside its function.  A suspension unwinds
the thread's frames anyway.

``start()`` takes a run up before it returns the handle, so that any user of the run's id can rely
on the run.  A plain workflow executes in a thread that the interpreter waits for at its end.  An
asynchronous workflow executes in a task of the running event loop.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import functools
import heapq
import importlib
import math
import os
import queue
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from stepwise import errors
from stepwise._execution.active_run import current_scope, debugged, live_runs
from stepwise._execution.message_watcher import RunWatch, watcher
from stepwise._execution.outcomes import RunInputs, load_inputs
from stepwise._execution.process_memory import known_workflow, known_workflows, names_of
from stepwise._execution.suspension import suspended_text
from stepwise._journal.journal import facts_of, is_ready, open_head, read_entries, seal_for
from stepwise._journal.logs import Inbox
from stepwise._journal.projection import is_only_submitted
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._runs.run import Run, get_run
from stepwise._runs.steps import RunStatus
from stepwise._runtime import asyncio_state, clock, settings
from stepwise._runtime.facts import NamedTuple, public
from stepwise._runtime.forks import call_at_exit, process_lock, start_apart
from stepwise._runtime.interrupts import Latch, ending
from stepwise._runtime.messages import count, first_of, notice, reports, shell_word
from stepwise._values.preview import error_text, preview
from stepwise._workflows.begin import TopLevel, run_of
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import (
    Recall,
    execute,
    execute_async,
    record_interruption,
    watch_sigterms,
)
from stepwise._workflows.resume import WorkflowRun
from stepwise.stores import Head, Store, open_store

if TYPE_CHECKING:
    import asyncio
    from typing import TypeGuard


# -- unfinished -----------------------------------------------------------------------------------


_SET_BACK = 2.0  # seconds; a suspension further in the future means that the clock was set back

Why = Literal["crashed", "cancelling", "time", "message"]
"""Why a run must continue: it died, its end was requested, or its time or message arrived."""


class UnfinishedRun(NamedTuple):
    """A run that must continue now or later, and that may have no living owner."""

    store: Store
    seal: Seal
    facts: RunFacts

    @property
    def key(self) -> tuple[str, str]:
        """The URL of the store and the id."""
        return self.store.url, self.facts.run_id

    @property
    def run(self) -> Run:
        """The run, for inspection."""
        return Run(self.store, self.facts.run_id, self.seal)

    @property
    def until(self) -> float:
        """The next moment that the run waits for, in seconds since 1970; infinite if none."""
        return min(
            (each.until for each in self.facts.waits if each.until is not None), default=math.inf
        )

    def why(self) -> Why | None:
        """Return why the run must continue now; ``None`` if it waits or is being executed."""
        facts = self.facts
        if facts.status == "running" and self.store.owner(facts.run_id) is not None:
            return None
        if facts.cancelling or facts.undoing:
            return "cancelling"
        if facts.status == "running":
            return "crashed"
        now = clock.now()
        if self.until <= now or (self.until < math.inf and facts.updated_at > now + _SET_BACK):
            return "time"
        return "message" if self.has_message() else None

    def has_message(self) -> bool:
        """Return whether an awaited message has arrived for the suspended run."""
        facts = self.facts
        own, wanted, last = facts.run_id, set[tuple[str, str, str]](), {facts.run_id: facts.seen}
        for each in facts.waits:
            what = ("answer", each.ticket) if each.ticket else ("signal", each.name)
            wanted.add((each.run or own, *what))
            if each.run:  # a child run has a separate inbox
                last[each.run] = each.seen
        for run_id, seen in last.items():
            inbox = Inbox(self.store, self.seal, run_id)
            for came in inbox.look(tolerant=True):
                is_cancel = came.kind == "cancel" and came.number > facts.cancels
                if is_cancel or (came.number > seen and (run_id, came.kind, came.name) in wanted):
                    return True
            if inbox.all_lost():  # the run itself reports lost messages
                return True
        return False

    def again(self) -> TopLevel:
        """Return the call that continues the run, unless another process does so first.

        Raises:
            ConfigurationError: this process does not know the workflow.
            UnreadableValueError: the arguments cannot be loaded.
        """
        facts = self.facts
        definition = known_workflow(facts.workflow)
        top = call_again(definition, self.run, {}, facts=facts, on_owned="raise")
        top.meant = facts.__eq__
        return top


def is_submitted(run: UnfinishedRun) -> bool:
    """Return whether a run was recorded for an engine's task, and has not begun yet."""
    store, seal, facts = run
    if facts.updated_at > facts.created_at:
        return False
    return is_only_submitted(list(read_entries(store, seal, facts.run_id)))


def _may_go_on(facts: RunFacts | None) -> TypeGuard[RunFacts]:
    """Return whether a run may continue by itself: it has not ended and was not stopped."""
    if facts is None or facts.parent or facts.superseded or facts.status in ("completed", "failed"):
        return False
    if facts.status == "cancelled":
        return facts.undoing  # the process died while undoing the run's side effects
    return bool(facts.cancelling) or (facts.status != "interrupted" and not is_ready(facts))


class Backlog:
    """The runs of a store that must continue now or later, according to their heads.

    A head that is unchanged since the last look is not opened again.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.seal = store, seal_for(store)
        self._opened: dict[str, tuple[bytes, RunFacts | None]] = {}

    def look(self) -> list[UnfinishedRun]:
        """Return the runs that must continue, oldest first."""
        before, self._opened = self._opened, {}
        found = []
        for head in self.store.heads(unfinished=True):
            known = before.get(head.run_id)
            if known is None or known[0] != head.data:
                facts = facts_of(self.store, self.seal, head.run_id)
                known = head.data, facts if _may_go_on(facts) else None
            self._opened[head.run_id] = known
            if (facts := known[1]) is not None:
                found.append(UnfinishedRun(self.store, self.seal, facts))
        return sorted(found, key=lambda each: each.facts.created_at)

    def submitted(self, names: Iterable[str]) -> Iterator[UnfinishedRun]:
        """Yield the submitted runs of a workflow that have not begun, in the order of their begin.

        Args:
            names: the full names of the workflow.
        """
        due_heads = getattr(self.store, "due_heads", None)
        if due_heads is None:  # they are among the unfinished runs
            return
        indexes = dict.fromkeys(index for name in names for index in self.seal.indexes(name))
        heads = heapq.merge(*map(due_heads, indexes), key=lambda head: head.due)
        yield from self._submitted(heads)

    def first_of_others(self, names: Iterable[str]) -> Iterator[UnfinishedRun]:
        """Yield the first submitted run of each workflow that is none of these.

        Args:
            names: the full names of workflows.
        """
        indexes = {index for name in names for index in self.seal.indexes(name)}
        heads: list[Head] = getattr(self.store, "first_due_heads", list)()
        yield from self._submitted(head for head in heads if head.workflow not in indexes)

    def _submitted(self, heads: Iterable[Head]) -> Iterator[UnfinishedRun]:
        for head in heads:
            facts = open_head(self.seal, head) or facts_of(self.store, self.seal, head.run_id)
            if facts is not None and facts.is_submitted:
                yield UnfinishedRun(self.store, self.seal, facts)

    def look_at(self, run_id: str) -> UnfinishedRun | None:
        """Return the current state of a run, or ``None`` if the run need not continue.

        For a child run, the result is the top-level run; for a superseded run, its branch.
        """
        facts = facts_of(self.store, self.seal, run_id)
        while facts is not None and (facts.parent or facts.superseded):
            facts = facts_of(self.store, self.seal, facts.parent or facts.superseded)
        return UnfinishedRun(self.store, self.seal, facts) if _may_go_on(facts) else None


def stores_of(known: Iterable[Definition], store: Any = None) -> list[Store]:
    """Return the stores that may have runs of these workflows, the configured one first.

    Args:
        store: a URL, path or store object, to return only this store.
    """
    if store is not None:
        return [open_store(store)]
    opened = [open_store(settings.store())]
    for each in known:
        if each.options.store is not None:
            other = open_store(each.options.store)
            if other not in opened:
                opened.append(other)
    return opened


def call_again(
    workflow: Definition,
    run: Run,
    given: Mapping[str, Any],
    *,
    way: str = "",
    facts: RunFacts | None = None,
    **options: Any,
) -> TopLevel:
    """Return the call that started a run, as the call that continues the run.

    Args:
        facts: of the run, if the caller has them.
        given: arguments that replace recorded ones.
        way: see :meth:`stepwise._execution.outcomes.RunInputs.whole`.
    """
    facts = facts or run._facts()
    if facts.parent:
        raise errors.ConfigurationError(
            f"run {run.id!r} is a child run: it resumes when its parent, {facts.parent!r}, does"
        )
    if workflow.is_generator or workflow.is_async_generator:
        raise errors.ConfigurationError(
            f"run {run.id!r} belongs to a generator workflow, whose items need a consumer: call it"
        )
    try:
        inputs = load_inputs(run.store, run._seal, facts)
    except errors.UnreadableValueError as error:
        if not given and way:
            all_of = ", ".join(f"{name}=..." for name in workflow.parameters.names)
            raise errors.UnreadableValueError(f"{error}, or give them: {way}({all_of})") from error
        if not given:
            raise
        inputs = RunInputs({}, "self" if "self" in given else "")
    values = inputs.whole(given, way)
    names = workflow.parameters.names
    unknown = sorted(values.keys() - {*names, inputs.method})
    if unknown:
        raise errors.ConfigurationError(
            f"run {run.id!r}: its workflow {workflow.label!r} has no parameter {unknown[0]!r}; its "
            f"parameters are {names}"
        )
    instance, args, kwargs = workflow.parameters.call_of(values, inputs.method)
    try:
        workflow.parameters.bind(args if instance is None else (instance, *args), kwargs)
    except TypeError as error:
        raise errors.ConfigurationError(
            f"run {run.id!r}: its recorded call does not fit {workflow.label!r} any more: {error}. "
            f"Give the argument: {way or f'stepwise.get_run({run.id!r}).resume'}(NAME=...)"
        ) from None
    if facts.codec:
        options["codec"] = "json"
    chosen = workflow.options.changed(
        {**options, "run_id": run.id, "store": run.store, "fresh": False}
    )
    top = TopLevel(Definition(workflow.function, chosen, workflow), instance, args, kwargs)
    top.mean(run.id, explicit=True, recorded=True)
    return top


# -- suspending -----------------------------------------------------------------------------------


def _waiting(run: Run) -> UnfinishedRun | None:
    """Return the current state of a suspended run, or ``None`` if the run no longer waits."""
    facts = facts_of(run.store, run._seal, run.id)
    if facts is None or facts.status != "suspended":
        return None
    return UnfinishedRun(run.store, run._seal, facts)


class _ParkedRun:
    """A suspended run; for ``go_on`` and ``drop`` see :meth:`Waker.park`."""

    __slots__ = ("drop", "go_on", "run", "watches")

    def __init__(self, run: Run, go_on: Callable[[], object], drop: Callable[[], object]) -> None:
        self.run, self.go_on, self.drop = run, go_on, drop
        self.watches: tuple[RunWatch, ...] = ()

    def ring(self) -> None:
        """Ask the waker to check whether the run must continue."""
        waker.rung.put(self)

    def watch(self) -> None:
        """Watch for messages to the run or its child runs."""
        run, until = _waiting(self.run), math.inf
        ids = {self.run.id}
        if run is not None:
            until = run.until
            ids |= {each.run for each in run.facts.waits} - {""}
        moment = None if math.isinf(until) else until
        for each in ids:
            watch = watcher.watch(self.run.store, self.run._seal, each, self.ring, until=moment)
            self.watches = (*self.watches, watch)

    def is_due(self) -> bool:
        """Return whether the run must continue, or another process has continued it."""
        try:
            run = _waiting(self.run)
            return run is None or run.why() is not None
        except (Exception, errors.RunStopped):  # the run itself reports problems of its store
            return True

    def close(self) -> None:
        """Stop watching."""
        for each in self.watches:
            each.close()


class Waker:
    """The waker, which continues suspended runs; see the module's docstring."""

    def __init__(self) -> None:
        self._mutex = process_lock()
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """Forget all runs: the state at first and in a forked child, which lacks the thread."""
        self._parked: set[_ParkedRun] = set()
        self.rung: queue.SimpleQueue[_ParkedRun | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def park(self, run: Run, go_on: Callable[[], object], drop: Callable[[], object]) -> None:
        """Continue a suspended run as soon as its time or message arrives.

        Args:
            go_on: called once, in the waker's thread, to continue the run; it must not block.
            drop: called instead if the program ends first.

        Raises:
            StoreError: the run cannot be read.
        """
        parked = _ParkedRun(run, go_on, drop)
        try:
            parked.watch()
            with self._mutex:
                begins = not ending.begun
                if begins:
                    self._parked.add(parked)
                    self._begin_thread()
        except BaseException:
            self._parked.discard(parked)
            parked.close()
            raise
        if begins:
            parked.ring()  # an earlier ring found no entry
        else:
            parked.close()
            drop()

    def parked(self) -> set[tuple[str, str]]:
        """Return the store's URL and the id of each suspended run that this process continues."""
        with self._mutex:
            return {(each.run.store.url, each.run.id) for each in self._parked}

    def end(self) -> None:
        """Stop continuing runs, since the program ends."""
        ending.begin()
        with self._mutex:
            dropped, self._parked = self._parked, set()
            thread, self._thread = self._thread, None
        self.rung.put(None)
        for each in dropped:
            each.close()
            each.drop()
        if thread is not None:
            thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def _begin_thread(self) -> None:
        if self._thread is None:
            call_at_exit(self.end)
            thread = threading.Thread(target=self._work, name="stepwise waker")
            start_apart(thread, daemon=False)
            self._thread = thread

    def _work(self) -> None:
        while (parked := self.rung.get()) is not None:
            if parked in self._parked and parked.is_due():
                self._go_on(parked)
            del parked
            with self._mutex:
                if not self._parked and self._thread is threading.current_thread():
                    self._thread = None
                    return

    def _go_on(self, parked: _ParkedRun) -> None:
        with self._mutex:
            if parked not in self._parked:  # the program ends
                return
            self._parked.remove(parked)
        parked.close()
        try:
            parked.go_on()
        except Exception:  # the event loop is closed, or no thread can be started
            parked.drop()


waker = Waker()
"""The waker of this process."""


# -- handles --------------------------------------------------------------------------------------


R = TypeVar("R")
Wake = Callable[[str, Callable[[], None]], object]
"""A function that executes a function in a thread of a given name."""

_tasks_held: set[asyncio.Task[Any]] = set()  # an event loop holds its tasks weakly
_woken: weakref.WeakValueDictionary[tuple[str, str], StartedRun] = weakref.WeakValueDictionary()
"""Suspended runs that continue after the cell that called them."""
_threads_held: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class StartedRun(abc.ABC):
    """A run that executes beside its caller.

    Args:
        run: the recorded run.
    """

    _is_dropped = False

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self.id} {self.status}>"

    def _mean(self, top: TopLevel) -> None:
        """Mean the run that a call has taken up instead of the run that it was to take up."""
        if self.id != top.run_id:
            self.run = run_of(top.store, top.run_id)

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
        """True if the run no longer runs in this process: it ended or stopped.

        A suspended run continues in this process automatically, so it is not done.
        """

    @abc.abstractmethod
    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Note how the run ended."""

    def _drop(self) -> None:
        """Note that the program ends while the run is suspended."""
        self._is_dropped = True
        self._end()

    def _check(self) -> None:
        if self._is_dropped:
            waits = self.run.waits
            raise errors.RunSuspended(suspended_text(self.id, waits), run_id=self.id, waits=waits)

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"run {self.id!r} has not ended after {timeout} s; it continues")


@public
class Handle(StartedRun, Generic[R]):
    """A run that executes in a thread of this process."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._ended = Latch()
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True if the run no longer runs in this process: it ended or stopped.

        A suspended run continues in this process automatically, so it is not done.
        """
        return self._ended.is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or stopped; return False if ``timeout`` seconds pass first.

        Ctrl-C ends the waiting, not the run.
        """
        return self._ended.wait(timeout)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the run, and return its result or raise its exception.

        Raises:
            TimeoutError: the run has not ended after ``timeout`` seconds; it continues.
        """
        if not self.wait(timeout):
            raise self._late(timeout)
        self._check()
        if self._error is not None:
            raise self._error
        value: R = self._value
        return value

    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._ended.set()


@public
class AsyncHandle(StartedRun, Generic[R]):
    """A run that executes in a task of an event loop; awaiting it returns the result."""

    def __init__(self, run: Run) -> None:
        import asyncio

        super().__init__(run)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Any] = self._loop.create_future()

    @property
    def done(self) -> bool:
        """True if the run no longer runs in this process: it ended or stopped.

        A suspended run continues in this process automatically, so it is not done.
        """
        return self._ended.done()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or stopped; return False if ``timeout`` seconds pass first.

        A cancellation ends the waiting, not the run.
        """
        import asyncio

        done, _ = await asyncio.wait({self._ended}, timeout=timeout)
        return bool(done)

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the run, and return its result or raise its exception.

        Raises:
            TimeoutError: the run has not ended after ``timeout`` seconds; it continues.
        """
        if not await self.wait(timeout):
            raise self._late(timeout)
        self._check()
        value: R = self._ended.result()
        return value

    def _end(self, value: Any = None, error: BaseException | None = None) -> None:
        if asyncio_state.is_cancellation(error):
            self._ended.cancel()
        elif error is not None:
            self._ended.set_exception(error)
            self._ended.exception()  # so that asyncio does not report it as never retrieved
        else:
            self._ended.set_result(value)

    def _drop(self) -> None:
        with contextlib.suppress(RuntimeError):  # a closed loop has no waiters
            self._loop.call_soon_threadsafe(super()._drop)

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()


# -- starting ------------------------------------------------------------------------------------


def start(workflow: Definition, instance: Any, args: Any, kwargs: Any) -> Any:
    """Start a run and return its handle.

    Raises:
        ConfigurationError: the run cannot be started: the workflow is a generator, the call is
            inside a run, or an asynchronous workflow has no running event loop.
        StepwiseError: any error that a call of the workflow raises before the run begins.
    """
    refuse_start(workflow, f"{workflow.label}.start()")
    top = TopLevel(workflow, instance, args, kwargs)
    top.promised = True
    top.choose()
    if not workflow.is_coroutine:
        return start_thread(top)
    if not asyncio_state.loop_runs():
        raise errors.ConfigurationError(
            f"{workflow.label}.start() was called where no event loop is running, which would "
            "execute it: call it in a coroutine, or write asyncio.run(...) around the program"
        )
    return start_task(top)


def refuse_start(workflow: Definition, what: str) -> None:
    """Refuse to start a generator, or anything inside a run.

    Args:
        what: the name of the refused operation.
    """
    refuse_generator(workflow, what)
    refuse_inside(what)


def refuse_generator(workflow: Definition, what: str) -> None:
    """Refuse to start a generator where nothing would consume its items."""
    if workflow.is_generator or workflow.is_async_generator:
        raise errors.ConfigurationError(
            f"{what}: nothing would consume the items of a generator workflow; "
            "iterate over it where you need them"
        )


def refuse_inside(what: str) -> None:
    """Refuse to start runs inside a run, since the outer run could not resume them."""
    scope = current_scope()
    if scope is not None:
        raise errors.ConfigurationError(
            f"{what} was called inside run {scope.run.run_id!r}, which would not record it: call "
            "the workflow, as a child run; or, if it is not part of that run, put it under "
            "`with stepwise.background():`"
        )


def start_thread(top: TopLevel) -> Handle[Any]:
    """Execute a run in a new thread; return once the run is taken up, or waits for its owner."""
    handle: Handle[Any] = Handle(run_of(top.store, top.run_id))
    began, refused = Latch(), list[BaseException]()
    wake = _beside()

    def target() -> None:
        try:
            execute_here(top, handle, wake, waits=began.set, begins=began.set)
        finally:
            if not began.is_set and handle._error is not None:
                refused.append(handle._error)
            began.set()

    begin_thread(f"stepwise {top.run_id}", target)
    began.wait()
    if refused:
        raise refused[0]
    handle._mean(top)
    return handle


def _beside() -> Wake:
    """Return a function that executes a function in a thread, in the caller's context."""
    run: Any = contextvars.copy_context().run
    return functools.partial(run, begin_thread)


def begin_thread(name: str, target: Callable[[], None]) -> None:
    """Start a thread that the interpreter waits for at its end, before its own clean-up."""
    call_at_exit(_wait_for_threads)
    watch_sigterms()  # called here, since the new thread could not
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(target,), name=name, daemon=False)
    _threads_held.add(thread)
    thread.start()


def _wait_for_threads() -> None:
    """Wait for the started runs; after Ctrl-C, only for the steps in progress."""
    ending.begin()
    waker.end()
    for thread in list(_threads_held):
        while thread.is_alive():
            try:
                if ending.by_ctrl_c:
                    for run in list(live_runs):  # those that wait look again
                        run.flows.change()
                thread.join()
            except KeyboardInterrupt:
                if ending.by_ctrl_c:  # the second Ctrl-C
                    raise
                ending.by_ctrl_c = True


def execute_here(
    top: TopLevel,
    handle: Handle[Any],
    wake: Wake,
    *,
    waits: Callable[[], None] | None = None,
    begins: Callable[[], None] | None = None,
) -> None:
    """Execute a run in this thread, for a handle.

    Args:
        wake: called when the suspended run must continue, with the function that executes it again.
        waits: called if the run waits because another thread or process executes it.
        begins: called when the run is taken up.
    """
    try:
        try:
            value = executed(top, waits, begins)
        finally:
            handle._mean(top)
        handle._end(value)
    except errors.RunSuspended as error:
        tell_failure(top, error, wakes=True)
        _park(top, handle, _again, wake)
    except BaseException as error:
        tell_failure(top, error)
        handle._end(error=error)


def _again(top: TopLevel, handle: Handle[Any], wake: Wake) -> None:
    """Execute a suspended run again, in another thread."""
    wake(f"stepwise {top.run_id}", functools.partial(execute_here, top, handle, wake))


def _park(top: TopLevel, handle: StartedRun, again: Callable[..., object], *where: Any) -> None:
    """Keep only the call of a suspended run, and execute it again when the run must continue."""
    top.again()
    try:
        waker.park(handle.run, functools.partial(again, top, handle, *where), handle._drop)
    except BaseException as error:  # an error of the store
        top.opened = True
        tell_failure(top, error)
        handle._end(error=error)


def executed(
    top: TopLevel,
    waits: Callable[[], None] | None = None,
    begins: Callable[[], None] | None = None,
) -> Any:
    """Execute a run in this thread; return its result."""
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


def debug_here(run: Run, **asked: Any) -> Any:
    """Open a run in a debugger in this thread, by its recorded call; return its result.

    Args:
        asked: as for :class:`.looking.Request`.

    Raises:
        ConfigurationError: this process does not know the workflow, or an event loop is running.
        RunStopped: the debugger was left.
    """
    from stepwise._execution.replaying import Request  # on use

    workflow = known_workflow(run.workflow)
    if workflow.is_coroutine and asyncio_state.loop_runs():
        raise errors.ConfigurationError(
            f"{workflow.label!r} is a coroutine function, and a prompt in a running event loop "
            "would block the loop: open the run in a terminal, stepwise debug "
            f"{shell_word(run.id)}"
        )
    top = call_again(workflow, run, {})
    try:
        if asked or settings.DEBUGGED not in os.environ:
            os.environ.update(Request(run.id, **asked).environment(resumes=False))
        return executed(top)
    finally:
        os.environ.pop(settings.DEBUGGED, None)
        debugged.look = None


def debug_module(module: str, run_id: str, store: str) -> None:
    """Import a module, and open a run of one of its workflows in a debugger, as asked."""
    importlib.import_module(module)
    debug_here(get_run(run_id, store=store))


def wake_here(top: TopLevel) -> None:
    """Execute a suspended run again as soon as it must continue, beside its caller."""
    key = top.store.url, top.run_id
    known = _woken.get(key)
    if known is not None and not known.done:
        return
    top.unheard = True
    run = run_of(top.store, top.run_id)
    if top.workflow.is_coroutine and asyncio_state.loop_runs():
        handle: StartedRun = AsyncHandle(run)
        _park(top, handle, _again_in_loop, None, contextvars.copy_context())
    else:
        handle = Handle(run)
        _park(top, handle, _again, _beside())
    _woken[key] = handle


def start_task(
    top: TopLevel, limit: asyncio.Semaphore | None = None, *, wakes: bool = True
) -> AsyncHandle[Any]:
    """Execute a run in a task of the running loop; without ``limit``, take it up immediately.

    Args:
        limit: the run is taken up once this semaphore can be acquired.
        wakes: True to execute the run again, after a suspension, when it must continue.
    """
    if limit is None:
        top.begin_now()
    handle: AsyncHandle[Any] = AsyncHandle(run_of(top.store, top.run_id))
    task = _begin_task(top, handle, limit, wakes=wakes)
    if isinstance(top.taken, WorkflowRun):
        # The new task executes the run, not the thread that starts it.
        top.taken.active.task, top.taken.active.unwinding.main = task, id(task)
    return handle


def _begin_task(
    top: TopLevel, handle: AsyncHandle[Any], limit: asyncio.Semaphore | None, *, wakes: bool
) -> asyncio.Task[Any]:
    task = handle._loop.create_task(_execute_task(top, limit), name=top.run_id)
    _tasks_held.add(task)

    def ended(_: object) -> None:
        _tasks_held.discard(task)
        handle._mean(top)
        error = asyncio_state.cancellation() if task.cancelled() else task.exception()
        try:
            _close_unbegun(top)
            if error is not None and not task.cancelled():
                tell_failure(top, error, wakes=wakes)
        finally:
            if wakes and isinstance(error, errors.RunSuspended):
                _park(top, handle, _again_in_loop, limit, contextvars.copy_context())
            else:
                handle._end(None if error is not None else task.result(), error)

    task.add_done_callback(ended)
    return task


def _again_in_loop(
    top: TopLevel,
    handle: AsyncHandle[Any],
    limit: asyncio.Semaphore | None,
    context: contextvars.Context,
) -> None:
    """Execute a suspended run again in its event loop, which another thread runs."""
    work = functools.partial(_begin_task, top, handle, limit, wakes=True)
    handle._loop.call_soon_threadsafe(work, context=context)


async def _execute_task(top: TopLevel, limit: asyncio.Semaphore | None) -> Any:
    if limit is not None:
        async with limit:
            return await _execute_task(top, None)
    await top.begin()
    with top as opened:
        _detach(opened)
        return opened.value if isinstance(opened, Recall) else await execute_async(opened)


def _close_unbegun(top: TopLevel) -> None:
    """Close a run whose task was cancelled before it began: by a Ctrl-C or the end of the loop."""
    if isinstance(top.taken, WorkflowRun) and not top.taken.active.ended:
        ambient = sys.exc_info()[1]
        if isinstance(ambient, KeyboardInterrupt):
            record_interruption(top.taken.active, ambient)
        top.taken.active.close()
        top.leave_turn()
        if top.display is not None:
            top.display.close()


def _detach(opened: Recall | WorkflowRun) -> None:
    if isinstance(opened, WorkflowRun):
        opened.active.detached = True


@reports
def tell_failure(top: TopLevel, error: BaseException, *, wakes: bool = False) -> None:
    """Report the exception that ended a run, since its handle may never be read."""
    if top.opened:
        if isinstance(error, errors.RunSuspended):
            here = ". It goes on here by itself" if wakes else ""
            notice(f"{suspended_text(error.run_id, error.waits)}{here}")
        else:
            notice(f"{top.run_id}, which was started, ended with {preview(error)}")


# -- recover --------------------------------------------------------------------------------------


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


def resume(workflow: Definition, run: Run, given: Mapping[str, Any], *, here: bool = False) -> Any:
    """Continue a run and return its handle; see :meth:`stepwise.Run.resume`.

    Args:
        here: execute the run in this thread, and return its result.
    """
    refuse_inside(f"resume() of run {run.id!r}")
    top = call_again(workflow, run, given)
    top.resumes = True
    if here:
        return executed(top)
    in_task = top.workflow.is_coroutine and asyncio_state.loop_runs()
    return start_task(top) if in_task else start_thread(top)


# -- all of them ---------------------------------------------------------------------------------


def recover(workflow: Any = None, *, max_workers: int = 8, store: Any = None) -> Recovered:
    """Continue, in this process, the runs that must continue now and that nobody executes.

    These are runs shown as ``crashed``, whose process was killed or ended or whose host is gone;
    ``suspended`` runs whose time or message has arrived; and cancelled runs, so that they unwind.

    The other ``suspended`` runs are continued here when what they wait for arrives, as long as this
    process lives; until then they take no thread and have no handle.  Failed and interrupted runs
    are left alone, and so are child runs, which their parents call again.  Runs of unknown
    workflows, and runs whose arguments could not be recorded, are left alone and named.

    Call it when a server starts, after the modules that define its workflows are imported.  It
    returns immediately.  The exception of a run is in its handle, and stops no other run.  If
    another process takes up a run first, the handle of the run raises ``RunBusyError``.

    Args:
        workflow: only the runs of this workflow: the workflow itself, its name or its full name.
        max_workers: the number of runs that execute at the same time in threads, and also, if an
            event loop is running, the number of asynchronous runs in its tasks.
        store: a URL, path or store object; by default the configured store, and the stores that
            workflows were decorated with.

    Returns:
        a list of the handles, oldest run first; its attribute ``left`` has the runs that were left
        alone, each with the reason.

    Raises:
        ConfigurationError: this process does not know ``workflow``, or the call is made inside a
            run.
    """
    refuse_inside("stepwise.recover()")
    if not isinstance(max_workers, int) or isinstance(max_workers, bool) or max_workers < 1:
        raise errors.ConfigurationError(
            f"recover(max_workers={max_workers!r}): it must be 1 or more"
        )
    wanted = getattr(workflow, "full_name", workflow)
    known = known_workflows()
    meant = [each for each in known if wanted in (None, each.full_name, each.label)]
    names = {name for each in meant for name in names_of(each)}
    if wanted is not None and not names:
        known_workflow(str(wanted))  # raises
    here = waker.parked()
    due, waiting, left = list[TopLevel](), list[Run](), list[tuple[Run, str]]()
    for each in _unfinished(stores_of(known, store), names, every=wanted is None):
        try:
            if each.why():
                due.append(each.again())
            elif each.facts.status == "suspended":
                known_workflow(each.facts.workflow)  # raises
                waiting += [each.run] * (each.key not in here)
        except (Exception, errors.RunStopped) as error:  # classes of loaded values may raise, too
            left.append((each.run, error_text(error) or type(error).__name__))
    _tell(due, waiting, left)
    return Recovered(_begun(due, waiting, max_workers), left)


def _unfinished(
    stores: Iterable[Store], names: set[str], *, every: bool
) -> Iterator[UnfinishedRun]:
    """Yield the runs in some stores that must continue now or later.

    Args:
        names: the full names of workflows.
        every: True to yield the runs of other workflows, too.
    """
    for number, store in enumerate(stores):
        try:
            backlog = Backlog(store)
            found = [*backlog.look(), *backlog.submitted(names)]
        except (errors.StepwiseError, errors.RunStopped) as error:
            if number == 0:
                raise
            notice(f"recover: the runs in {store.url} are left alone: {error}")
        else:
            yield from (each for each in found if every or each.facts.workflow in names)


@reports
def _tell(due: list[TopLevel], waiting: list[Run], left: list[tuple[Run, str]]) -> None:
    if due:
        ids = first_of([each.run_id for each in due], _SHOWN)
        notice(f"recover: {count(len(due), 'run')} continued here: {ids}")
    if waiting:
        notice(
            f"recover: {count(len(waiting), 'run')} suspended, and continued here when what they "
            f"wait for has come: {first_of([each.id for each in waiting], _SHOWN)}"
        )
    reasons = Counter(why for _, why in left)
    for why, many in reasons.most_common(_SHOWN):
        ids = first_of([run.id for run, each in left if each == why], _SHOWN)
        notice(f"recover: {count(many, 'run')} left alone ({ids}): {why}")


def _begun(
    due: list[TopLevel], waiting: list[Run], max_workers: int
) -> list[Handle[Any] | AsyncHandle[Any]]:
    """Begin to execute the runs that are due, and park the others."""
    loop, limit, workers = None, None, _Workers(max_workers)
    if asyncio_state.loop_runs():
        import asyncio

        loop, limit = asyncio.get_running_loop(), asyncio.Semaphore(max_workers)
    handles: list[Handle[Any] | AsyncHandle[Any]] = []
    for top in due:
        if loop is not None and top.workflow.is_coroutine:
            handles.append(start_task(top, limit))
        else:
            handle: Handle[Any] = Handle(run_of(top.store, top.run_id))
            handles.append(handle)
            workers.take(top, handle)
    context = contextvars.copy_context()
    for run in waiting:
        if loop is not None and known_workflow(run.workflow).is_coroutine:
            start = functools.partial(_start, run, limit)
            go_on: Callable[[], object] = functools.partial(
                loop.call_soon_threadsafe, start, context=context
            )
        else:
            go_on = functools.partial(workers.take, run, Handle(run))
        try:
            waker.park(run, go_on, lambda: None)  # if the program ends, the run stays suspended
        except (errors.StepwiseError, errors.RunStopped) as error:
            notice(f"recover: {run.id} is left alone: {error}")
    return handles


def _start(run: Run, limit: asyncio.Semaphore | None) -> None:
    """Execute a suspended run in a task of this loop, unless another process continued the run."""
    top = _call_of(run)
    if top is not None:
        start_task(top, limit)


def _call_of(run: Run) -> TopLevel | None:
    """Return the call that continues a suspended run; ``None`` if the run is not to continue here.

    Another process may have continued the run, or the run cannot be loaded, which is reported.
    """
    try:
        waiting = _waiting(run._to_go_on())
        return waiting.again() if waiting is not None else None
    except (Exception, errors.RunStopped) as error:  # classes of loaded values may raise, too
        notice(f"recover: {run.id} is left alone: {error_text(error) or type(error).__name__}")
        return None


class _Workers:
    """Threads that execute runs, one after the other.

    Args:
        most: the number of threads at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._busy = most, 0
        self._mutex = process_lock()
        self._jobs: deque[tuple[Callable[[], None], Handle[Any]]] = deque()
        self._context = contextvars.copy_context()

    def take(self, given: TopLevel | Run, handle: Handle[Any]) -> None:
        """Execute a run, and continue it after each suspension.

        Args:
            given: the call that continues the run, or a run that was suspended until now.
        """

        def work() -> None:
            top = _call_of(given) if isinstance(given, Run) else given
            if top is not None:
                execute_here(top, handle, lambda _, again: self._add(again, handle))

        self._add(work, handle)

    def _add(self, work: Callable[[], None], handle: Handle[Any]) -> None:
        with self._mutex:
            self._jobs.append((work, handle))
            begins = self._busy < self._most
            self._busy += begins
        if begins:
            self._context.copy().run(begin_thread, "stepwise recover", self._work)

    def _work(self) -> None:
        """Execute the queued jobs.

        The first job of each thread runs even while the interpreter is ending, but not after a
        Ctrl-C: a program may end with ``recover()``.  No other job begins then.
        """
        first = True
        while True:
            with self._mutex:
                if not self._jobs:
                    self._busy -= 1
                    return
                work, handle = self._jobs.popleft()
            if not ending.begun or (first and not ending.by_ctrl_c):
                work()
            else:
                why = f"{handle.id} was not begun: the program ends"
                notice(f"recover: {why}")
                handle._end(error=errors.StepwiseError(f"run {why}"))
            first = False
