"""Calls of a workflow: inside a run, a child run that is a step; outside of any, a run of its own.

From outside, a call means a run (``starts``), which is taken over when it is free (``turns``).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Container, Generator, Mapping
from typing import TYPE_CHECKING, Any

from stepwise._calls.awaitables import coroutine_of
from stepwise._calls.driver import Core, Result, drive
from stepwise._calls.perform import Performance, Performer
from stepwise._checkpoints.checkpoints import spent_so_far
from stepwise._execution.active_run import ActiveRun, Scope, current_scope
from stepwise._execution.process_memory import Given, memory
from stepwise._identity import identity as _identity
from stepwise._identity.identity import Parameters
from stepwise._identity.module_names import canonical_module
from stepwise._identity.parts import captured
from stepwise._journal.journal import seal_for
from stepwise._journal.records import Call, RunFacts
from stepwise._journal.spending import Sums, difference
from stepwise._matching.held import Watched
from stepwise._matching.subjects import Identity, complete
from stepwise._runtime import settings
from stepwise._runtime.messages import kernel_shell, notice, reports
from stepwise._runtime.tracebacks import fold
from stepwise._values import digest
from stepwise._workflows.definition import BoundCall, Definition
from stepwise._workflows.execute import (
    execute,
    execute_async,
    execute_async_generator,
    execute_generator,
)
from stepwise._workflows.opening import (
    Invocation,
    NoLongerMeantError,
    Recall,
    open_run,
    recall_run,
)
from stepwise._workflows.resume import WorkflowRun
from stepwise._workflows.starts import Meant, Starting
from stepwise._workflows.turns import turn
from stepwise.errors import (
    ConfigurationError,
    RunBusyError,
    RunOwnedError,
    RunSkipped,
    RunSuspended,
)
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    from stepwise._display.progress import Display
    from stepwise._runs.run import Run

__all__ = ["TopLevel", "invoke", "next_run_id", "run_of", "wakers"]


wakers: list[Callable[[TopLevel], None]] = []
"""Functions that wake a suspended run in this process, which does not end when a cell does."""


class WorkflowCall(BoundCall):
    """One call of a workflow, which takes a run up."""

    def open(
        self, store: Store, run_id: str, *, parent: ActiveRun | None = None, **how: Any
    ) -> Recall | WorkflowRun:
        """Take up the run of that id; ``how`` as for :class:`Invocation`."""
        return open_run(self.invocation(store, run_id, parent=parent, **how), WorkflowRun)

    def invocation(
        self, store: Store, run_id: str, *, parent: ActiveRun | None = None, **how: Any
    ) -> Invocation:
        """Return this call with the run that it means; ``how`` as for :class:`Invocation`."""
        codec = self.options.recording(parent.facts.codec if parent is not None else "")
        rewritten = self.workflow.rewritten()
        return Invocation(
            self,
            store,
            run_id,
            parent=parent,
            codec=codec,
            rewritten=rewritten,
            timeout=self.options.timeout,
            **how,
        )


class ChildCall(WorkflowCall, Performer):
    """A call inside a run, which is performed like one of a step."""

    effect = True
    timeout = None
    child: str
    child_digest: str
    opened: Recall | WorkflowRun | None = None

    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return the arguments that the child run may change.

        Its own record has their contents as well, for who calls it when its caller has no record.
        """
        return Watched(bound, self.hiding.hidden_in(bound) if self.hiding.hides else ())

    def prepare(self, scope: Scope) -> Core:
        """Return the core that executes the call, or answers it from the caller's journal."""
        self.parent = parent = scope.run
        parent.secrets.add(self.secret)
        self.name = self.workflow.label
        self.module = canonical_module(self.workflow.function.__module__)
        digest = self._digest(parent)
        self.child = self._id(parent, digest, parent.ordinals.of_child(self.name, digest))
        self.child_digest = digest
        return Performance(self, scope, self._identity(scope, digest), self.bound).core()

    def _identity(self, scope: Scope, digest: str) -> Identity:
        parameters, function = self.workflow.parameters, self.workflow.function
        _, parts, unknown = parameters.identify(self.bound, (self.args, self.kwargs))
        identity = Identity(digest, parts)
        if unknown:
            scope.run.subjects.give(identity, unknown, self.bound)
        subject = self.instance is not None or captured(function)
        if subject and not parameters.is_computed:
            complete(scope.run.subjects, identity, self, self.instance)
        return identity

    @property
    def function(self) -> Callable[..., Any]:
        """The plain function."""
        return self.workflow.function

    @property
    def parameters(self) -> Parameters:
        """The parameters of the workflow."""
        return self.workflow.parameters

    def _digest(self, parent: ActiveRun) -> str:
        """Return the digest of the call, as the caller's journal records it."""
        digests = self.parts.of_child()
        known = (digest for digest in digests if parent.pool.holds(self.name, digest))
        return next(known, digests[0])

    def _id(self, parent: ActiveRun, digest: str, ordinal: int) -> str:
        if self.options.run_id is not None:
            return self.options.run_id
        if self.options.start == "new":
            return _identity.random_id(self.name)
        return _identity.child_id(parent.run_id, self.name, digest, ordinal)

    def new_child(self, taken: Container[str]) -> str:
        """Return the id of a new child run, which no recorded call has.

        The id of this ordinal may be taken: by an equal call of another instance, which came in
        another order then.
        """
        parent, count = self.parent, self.parent.ordinals.of_child
        while self.options.run_id is None and self.child in taken:
            self.child = self._id(parent, self.child_digest, count(self.name, self.child_digest))
        return self.child

    def answered(self, call: Call) -> None:
        """Remember the child run that answers the call."""
        self.child = call.child

    def child_spent(self, call: Call) -> Sums | None:
        """Return what the child run has spent that no earlier outcome of its call says.

        A run that had ended before was not executed for a new call, which spent nothing then.
        """
        opened, claims = self.opened, self.parent.account.claims
        if isinstance(opened, WorkflowRun):
            active = opened.active
            return active.account.of_child(active.journal.position.sums)
        said = claims.said.get(call.number)
        if opened is None or said is None:
            return None
        return difference(spent_so_far(self._store(), self.child), said)

    def _store(self) -> Store:
        given = self.options.store
        return self.parent.journal.store if given is None else open_store(given)

    def next_id(self, parent: ActiveRun) -> str:
        """The id of the child run that the call would be, were it made now."""
        name = self.workflow.label
        self.name = name
        digest = self._digest(parent)
        if self.options.run_id is None and self.options.start == "new":
            raise no_id_yet(name)
        return self._id(parent, digest, parent.ordinals.next_child(name, digest))

    def handle(self) -> Run:
        """The child run."""
        return run_of(self._store(), self.child)

    @property
    def returns(self) -> Any:
        """The type that the workflow is annotated to return."""
        return self.workflow.returns

    def body(self, call: Call) -> Callable[..., Any]:
        """Return the function that executes the child run."""
        return lambda: self._execute(call)

    def _execute(self, call: Call) -> Any:
        options, parent = self.options, self.parent
        journal = parent.journal
        self.child = call.child
        store = self._store()

        def take(waited: bool) -> Recall | WorkflowRun:
            opened = self.open(
                store,
                call.child,
                explicit=options.run_id is not None,
                fsync=journal.fsync if options.durability is None else options.durability != "os",
                parent=parent,
                cut_off=call.number in parent.cut_off,
                waited=waited,
            )
            if isinstance(opened, WorkflowRun):
                opened.active.account.call = call.number
            return opened

        blocks = not self.workflow.is_coroutine
        taking = turn(take, store, call.child, options.on_owned, blocks=blocks)
        if not blocks:
            return self._execute_async(taking)
        self.opened = opened = drive(taking).unwrap()
        return opened.value if isinstance(opened, Recall) else execute(opened)

    async def _execute_async(self, taking: Core) -> Any:
        from stepwise._calls.async_driver import adrive  # only asynchronous programs load asyncio

        self.opened = opened = (await adrive(taking)).unwrap()
        return opened.value if isinstance(opened, Recall) else await execute_async(opened)


def run_of(store: Store, run_id: str) -> Run:
    """Return the run, for looking at it."""
    from stepwise._runs.run import Run  # on use: most programs look at no run

    return Run(store, run_id)


def no_id_yet(label: str) -> ConfigurationError:
    """Return the error for a caller that asks for the id of a run that will be a new one."""
    return ConfigurationError(
        f"the next call of {label!r} will be a new run, whose id is generated when it starts: give "
        "it an id, .options(run_id=...), or use the Run that execute() returns"
    )


# -- from outside of any run ---------------------------------------------------------------------


class TopLevel(WorkflowCall):
    """A call from outside of any run.  As a context manager, it remembers how it ended.

    Args:
        skips: a run that somebody else executes need not be taken up: only the run is asked for.

    Attributes:
        meant: as of :class:`Invocation`, for a run that is named.
    """

    display: Display | None = None
    run_id = ""  # empty until chosen
    resumes = False  # also a run that was cancelled
    taken: Recall | WorkflowRun | None = None
    meant: Callable[[RunFacts | None], bool] | None = None
    _meant: Meant
    continues = False  # it was suspended by a call of this object
    unheard = False  # it is woken beside its call, which has ended: nobody gets the result

    def __init__(self, *call: Any, skips: bool = False) -> None:
        super().__init__(*call)
        self.skips = skips
        self._turn: Core | None = None

    def __enter__(self) -> Recall | WorkflowRun:
        self.begin_here()
        assert self.taken is not None
        return self.taken

    def begin_here(self, waits: Callable[[], None] | None = None) -> None:
        """Take the run up in this thread; ``waits`` is called if it has to wait for that."""
        if self.taken is None:
            drive(self.turn(blocks=True, waits=waits))

    def begin_now(self) -> None:
        """Take the run up, unless that has to wait: then :meth:`begin` does."""
        self._turn = self.turn(blocks=False)
        with contextlib.suppress(StopIteration):
            next(self._turn)

    async def begin(self) -> None:
        """Take the run up, as entering it does, but without blocking the event loop."""
        if self.taken is None:
            from stepwise._calls.async_driver import adrive

            await adrive(self._turn or self.turn(blocks=False))

    def turn(self, *, blocks: bool, waits: Callable[[], None] | None = None) -> Core:
        """Take the run up when nobody else executes it; see :mod:`stepwise._workflows.turns`."""
        if not self.run_id:
            self.choose()
        while self.taken is None:
            unfinished = self._meant.unfinished
            on_owned = "raise" if unfinished else self.options.on_owned
            on_owned = "wait" if self.continues else on_owned
            try:
                taking = turn(
                    self._take, self.store, self.run_id, on_owned, blocks=blocks, waits=waits
                )
                opened = (yield from taking).unwrap()
            except RunSkipped:
                if not self.skips:
                    raise
                self.joined, self.taken = True, Recall(None)
                break
            except (RunBusyError, RunOwnedError, NoLongerMeantError) as error:
                if unfinished:
                    self._choose_next()  # another process was faster
                    continue
                if isinstance(error, NoLongerMeantError):
                    raise RunBusyError(
                        f"run {self.run_id!r} is not continued here: another process did so",
                        run_id=self.run_id,
                        owner=None,
                    ) from None
                raise
            try:
                self._note(opened)
            except BaseException:  # a warning that is an error
                if isinstance(opened, WorkflowRun):
                    opened.active.close()
                raise
            self.taken = opened
        return Result()

    def starting(self) -> Starting:
        """Return the run that it means."""
        options = self.options
        self.store = open_store(options.store if options.store is not None else settings.store())
        self.given = Given(self.workflow.full_name, self.bound, self.instance)
        return Starting(self, self.given, self.store)

    def again(self) -> None:
        """Mean the same run once more, which suspended."""
        explicit = self._meant.explicit
        self._meant = Meant(self.run_id, explicit=explicit, stopped=True)
        self.taken, self.opened, self._turn, self.continues = None, False, None, True

    def choose(self) -> None:
        """Decide which run is meant."""
        self._starting = self.starting()
        self.base = self._starting.base
        self._runs = self._starting.runs()
        self.joined = self.opened = False
        self._choose_next()

    def mean(self, run_id: str, *, explicit: bool) -> None:
        """Mean a run that is chosen already, by another process or by its id.

        Args:
            explicit: the user chose its id; see :class:`.starts.Meant`.
        """
        self._starting = self.starting()
        self.base = self._starting.base
        self._runs = iter(())
        self.joined = self.opened = False
        self._meant, self.run_id = Meant(run_id, explicit=explicit), run_id

    @property
    def is_explicit(self) -> bool:
        """True if the user chose the id of the run."""
        return self._meant.explicit

    def recall(self) -> Recall | None:
        """Return the recorded result, once another process has completed the run."""
        explicit = self.is_explicit
        call = self.invocation(self.store, self.run_id, explicit=explicit, fsync=True, waited=True)
        return recall_run(call, seal_for(self.store))

    def _choose_next(self) -> None:
        self._meant = next(self._runs)
        self.run_id = run_id = self._meant.run_id
        if run_id == settings.resume():
            self.resumes = self.resumes or memory.is_first(f"resumed {self.store.url} {run_id}")

    def _take(self, waited: bool) -> Recall | WorkflowRun:
        meant = self._meant
        if meant.generated and meant.told and not waited:
            notice(meant.told)
        if meant.resumed:
            memory.resumed = meant.run_id
        opened = self.open(
            self.store,
            meant.run_id,
            explicit=meant.explicit,
            fsync=self.options.durability != "os",
            arguments_changed=meant.stopped,
            meant=_is_unfinished if meant.unfinished else self.meant,
            waited=waited,
            resumes=self.resumes,
            anew=meant.generated and bool(meant.told),
        )
        self.opened = True
        # The result of a run that was waited for belongs to that run's call: not counted here.
        self.joined = waited and isinstance(opened, Recall)
        return opened

    def _note(self, opened: Recall | WorkflowRun) -> None:
        """Remember which run it is, and say if it is not what one may expect."""
        meant, store = self._meant, self.store.url
        self._starting.remember(meant.run_id)
        if meant.told and not meant.generated:
            notice(meant.told)
        # The items of a generator are made again, not recalled.
        is_over = isinstance(opened, Recall) or opened.active.facts.status == "completed"
        again = is_over and meant.later and not self.joined
        if again and not memory.has_executed(store, meant.run_id):
            self._starting.warn_of_another(meant.run_id)
        if isinstance(opened, WorkflowRun):
            memory.executes(store, meant.run_id)
            facts = opened.active.facts
            title = f"{facts.label}({facts.arguments})"
            self.display = _display(meant.run_id, title, self.options.progress)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.display is not None:
            self.display.close()
        if self.joined:
            return
        if error is None and not self.unheard:  # else the next equal call means this run, too
            memory.completed(self.store.url, self.base, self.run_id)
        elif error is not None and self.opened:
            memory.stopped(self.store.url, self.run_id, self.given, self._digest_again)

    @contextlib.contextmanager
    def returning_run(self, want_run: bool) -> Generator[None, None, None]:
        """End without an exception if the run suspends, and its caller asked for the run."""
        try:
            yield
        except RunSuspended as error:
            if wakers and kernel_shell() is not None:
                wakers[0](self)
                from stepwise._execution.suspension import suspended_text  # on use

                text = suspended_text(self.run_id, error.waits)
                error.args = (f"{text}. It goes on in this kernel; then run the cell again",)
            if not want_run:
                raise

    def _digest_again(self) -> str:
        parts = self.look()
        return digest.combine(parts.arguments, parts.instance)


def _is_unfinished(facts: RunFacts | None) -> bool:
    return facts is not None and facts.status not in ("completed", "cancelled")


def next_run_id(
    workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The id of the run that the next such call, made here and now, will be.

    Raises:
        ConfigurationError: that run will be a new one, whose id is made up when it starts.
    """
    scope = current_scope()
    if scope is not None:
        if workflow.is_generator or workflow.is_async_generator:
            return scope.run.run_id  # the steps of this workflow belong to the caller's run
        return ChildCall(workflow, instance, args, kwargs).next_id(scope.run)
    starting = TopLevel(workflow, instance, args, kwargs).starting()
    meant = next(starting.runs())
    if meant.generated:
        raise no_id_yet(workflow.label)
    return meant.run_id


# -- the four forms of a function: plain, coroutine, generator, asynchronous generator ------------


def invoke(
    workflow: Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    want_run: bool,
) -> Any:
    """Call a workflow: its result, or its ``Run``; awaitable or iterable as its function is."""
    if workflow.is_generator or workflow.is_async_generator:
        if current_scope() is not None:
            # Its items cannot be recorded as an outcome, so its steps belong to the caller's run.
            return WorkflowCall(workflow, instance, args, kwargs).run_function()
        top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
        if workflow.is_generator:
            return _drain(top) if want_run else _generate(top)
        return _adrain(top) if want_run else _agenerate(top)
    if not workflow.is_coroutine:
        return _plain(workflow, instance, args, kwargs, want_run)
    return coroutine_of(_coroutine, workflow.label, workflow, instance, args, kwargs, want_run)


def _plain(workflow: Definition, instance: Any, args: Any, kwargs: Any, want_run: bool) -> Any:
    scope = current_scope()
    if scope is not None:
        child = ChildCall(workflow, instance, args, kwargs)
        return _given(child, drive(child.prepare(scope)), want_run)
    top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
    with top.returning_run(want_run), top as opened:
        value = opened.value if isinstance(opened, Recall) else execute(opened)
    return run_of(top.store, top.run_id) if want_run else value


def _given(child: ChildCall, result: Result, want_run: bool) -> Any:
    """The result of a call of a child workflow."""
    if want_run and isinstance(result.error, RunSkipped):
        return child.handle()
    value = result.unwrap()
    return child.handle() if want_run else value


async def _coroutine(*call: Any) -> Any:
    try:
        return await _awaited(*call)
    except BaseException as error:
        raise fold(error)  # noqa: B904


async def _awaited(
    workflow: Definition, instance: Any, args: Any, kwargs: Any, want_run: bool
) -> Any:
    scope = current_scope()
    if scope is not None:
        from stepwise._calls.async_driver import (
            adrive,  # a synchronous program does not load asyncio
        )

        child = ChildCall(workflow, instance, args, kwargs)
        return _given(child, await adrive(child.prepare(scope)), want_run)
    import asyncio

    top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
    await top.begin()
    with top.returning_run(want_run), top as opened:
        value = opened.value if isinstance(opened, Recall) else await execute_async(opened)
        # A Ctrl-C during the last piece is raised now.  Raised after the end, it would lose the
        # result, and the next call would be a new run.
        await asyncio.sleep(0)
    return run_of(top.store, top.run_id) if want_run else value


def _generate(top: TopLevel) -> Generator[Any, Any, Any]:
    with top as opened:
        if isinstance(opened, Recall):
            return None  # skipped; a generator recalls nothing
        return (yield from execute_generator(opened))


async def _agenerate(top: TopLevel) -> AsyncGenerator[Any, None]:
    await top.begin()
    with top as opened:
        if isinstance(opened, Recall):
            return  # skipped
        async for item in execute_async_generator(opened):
            yield item


def _drain(top: TopLevel) -> Run:
    with top.returning_run(True):
        for _ in _generate(top):
            pass
    return run_of(top.store, top.run_id)


async def _adrain(top: TopLevel) -> Run:
    with top.returning_run(True):
        async for _ in _agenerate(top):
            pass
    return run_of(top.store, top.run_id)


@reports
def _display(run_id: str, title: str, wanted: bool | None) -> Display | None:
    """Show the progress of a run, if that is wanted and there is a place for it."""
    if not (settings.progress() if wanted is None else wanted):
        return None
    from stepwise._display.activity import Doing  # on use: few runs show their progress
    from stepwise._display.progress import Display

    return Display.of(Doing(run_id, title), True)
