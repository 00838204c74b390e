"""From a call of a workflow to its run: which run is meant, and as what it is executed.

Called outside of any run, it is a run of its own; called inside one, it is a child run, and the
call is recorded in the caller's journal like that of a step.

Imports: definition, execute, lifecycle, perform and its drivers, identity, process memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from stepwise import _config, _digest, _identity
from stepwise._attempts import Attempts
from stepwise._codec import Codec
from stepwise._definition import Definition
from stepwise._doing import Doing
from stepwise._drive import drive
from stepwise._execute import execute, execute_async, execute_async_generator, execute_generator
from stepwise._journal import facts_of, seal_for
from stepwise._lifecycle import Invocation, Recall, open_run
from stepwise._mutation import surroundings
from stepwise._notices import notice
from stepwise._opened import Opened
from stepwise._operations import Core
from stepwise._perform import perform
from stepwise._process import Given, memory
from stepwise._progress import Display
from stepwise._records import Call
from stepwise._renamed import is_call_of
from stepwise._resume import Body
from stepwise._run import ActiveRun, Scope, current_scope
from stepwise._surroundings import Surroundings
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    from stepwise._doubt import InDoubt
    from stepwise._runs import Run

__all__ = ["derived_run_id", "invoke"]


class _Call:
    """One call of a workflow: its arguments, bound and digested."""

    def __init__(
        self, workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.workflow = workflow
        self.options = workflow.options
        self.instance = instance
        self.args = args if instance is None else (instance, *args)
        self.kwargs = kwargs
        self.bound = workflow.parameters.bind(self.args, kwargs)
        if instance is not None:
            self.bound.pop(workflow.parameters.first or "", None)
        self.arguments_digest = self._digest_arguments()
        self.instance_digest = self._digest_instance()

    def _digest_arguments(self) -> str:
        return self.workflow.parameters.digest(self.bound, (self.args, self.kwargs))

    def _digest_instance(self) -> str:
        if self.instance is None:
            return ""
        digest, left_out = _identity.instance_digest(self.instance)
        told = (type(self.instance), *left_out)
        if left_out and told not in _told:
            _told.add(told)
            notice(
                f"attributes of {type(self.instance).__name__} that cannot be part of a run's "
                f"identity are left out of it: {', '.join(left_out)}"
            )
        return digest

    def run_function(self) -> Any:
        """The plain call."""
        return self.workflow.function(*self.args, **self.kwargs)

    def open(
        self,
        store: Store,
        run_id: str,
        *,
        explicit: bool,
        fsync: bool,
        parent: ActiveRun | None = None,
        arguments_changed: bool = False,
        cut_off: bool = False,
    ) -> Recall | Opened[Body]:
        """Take up the run of that id."""
        return open_run(
            Invocation(
                name=self.workflow.full_name,
                label=self.workflow.label,
                function=self.workflow.function,
                source=self.workflow.source,
                code=self.workflow.code,
                bound=self.bound,
                instance=self.instance,
                digest=self.arguments_digest,
                store=store,
                run_id=run_id,
                explicit=explicit,
                fsync=fsync,
                parent=parent,
                args=self.args,
                kwargs=self.kwargs,
                rewritten=self.workflow.rewritten(),
                policy=self.options.policy,
                arguments_changed=arguments_changed,
                compensates=self.options.compensate_on_failure,
                codec=self.options.recording(parent.facts.codec if parent is not None else ""),
                cut_off=cut_off,
            )
        )


_told: set[tuple[Any, ...]] = set()


class _TopLevel(_Call):
    """A call from outside of any run.  As a context manager, it remembers how it ended."""

    display: Display | None = None

    def __enter__(self) -> Recall | Opened[Body]:
        options = self.options
        self.store = open_store(options.store if options.store is not None else _config.store())
        self.base = _first_id(self)
        given = self.given = Given(self.workflow.full_name, self.bound, self.instance)
        self.run_id, explicit = self.base, options.run_id is not None
        if options.run_id is None and (options.fresh or _config.fresh()):
            self.run_id = _identity.random_id(self.workflow.label)
            notice(
                f"a fresh run: {self.run_id}; should it stop: "
                f".options(run_id={self.run_id!r}) with the same arguments goes on with it"
            )
        elif options.run_id is None and self._is_meant(_config.resume()):
            self.run_id = memory.resumed = _config.resume()
        digest = _digest.combine(self.arguments_digest, self.instance_digest)
        known = memory.recognise(self.store.url, given, digest)
        if known is not None and options.run_id in (None, known):
            self.run_id, explicit = known, False
        elif self.run_id == self.base and options.run_id is None:
            ordinal = memory.ordinal(self.store.url, self.base)
            self.run_id += f"-{ordinal + 1}" if ordinal else ""
        self.opened = False
        opened = self.open(
            self.store,
            self.run_id,
            explicit=explicit,
            fsync=options.durability != "os",
            arguments_changed=known is not None,
        )
        self.opened = True
        if isinstance(opened, Opened):
            facts = opened.active.facts
            doing = Doing(self.run_id, f"{facts.label}({facts.arguments})")
            self.display = Display.of(doing, options.progress)
        return opened

    def _is_meant(self, run_id: str) -> bool:
        """Whether this is the call of a run that the environment says is to be resumed.

        One of a derived id is found as ever, at its place among equal calls.
        """
        ordinal = run_id.removeprefix(self.base).lstrip("-")
        if run_id in ("", self.base, memory.resumed) or ordinal.isdecimal():
            return False
        facts = facts_of(self.store, seal_for(self.store), run_id)
        return facts is not None and is_call_of(
            facts, self.workflow.full_name, self.arguments_digest, self.workflow.code
        )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.display is not None:
            self.display.close()
        if error is None:
            memory.completed(self.store.url, self.base, self.run_id)
        elif self.opened:
            memory.stopped(self.store.url, self.run_id, self.given, self._digest_again)

    def _digest_again(self) -> str:
        return _digest.combine(self._digest_arguments(), self._digest_instance())


def _first_id(call: _Call) -> str:
    """The id of the run that a first call from outside of any run means."""
    workflow = call.workflow
    return workflow.options.run_id or _identity.derived_id(
        workflow.full_name, workflow.label, call.arguments_digest, call.instance_digest
    )


class _Child(_Call):
    """A call inside a run.  What ``perform`` needs to know of it, like of a step."""

    effect = True
    idempotent = False
    in_doubt: InDoubt = "raise"
    fails_cleanly: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    name: str
    module: str
    child: str
    opened: Recall | Opened[Body] | None = None

    def watch(self, bound: Mapping[str, Any]) -> _ChildWatch:
        """What notices that the call changes its arguments."""
        return _ChildWatch(self)

    def prepare(self, scope: Scope) -> Core:
        """What executes the call, or answers it from the caller's journal."""
        options, parent = self.options, scope.run
        self.parent = parent
        self.name = self.workflow.label
        self.module = self.workflow.function.__module__
        digest = self.arguments_digest
        if self.instance is not None:
            digest = _digest.combine(digest, self.instance_digest)
        ordinal = parent.ordinals.of_child(self.name, digest)
        if options.run_id is not None:
            self.child = options.run_id
        elif options.fresh:
            self.child = _identity.random_id(self.name)
        else:
            self.child = _identity.child_id(parent.run_id, self.name, digest, ordinal)
        return perform(self, scope, digest, self.bound, (), {})

    def handle(self) -> Run:
        """The child run."""
        given = self.options.store
        store = self.parent.journal.store if given is None else open_store(given)
        return _run_of(store, self.child)

    def attempts(self) -> Attempts:
        """One."""
        return Attempts(0, Exception, None)

    @property
    def returns(self) -> Any:
        """The type that the workflow is annotated to return."""
        return self.workflow.returns

    def to_undo(self, bound: Mapping[str, Any], codec: Codec) -> None:
        """Nothing: the child run's own journal has it."""

    def body(self, call: Call) -> Callable[..., Any]:
        """What executes the child run."""
        return lambda: self._execute(call)

    def _execute(self, call: Call) -> Any:
        options, parent = self.options, self.parent
        journal = parent.journal
        self.child = call.child
        opened = self.open(
            journal.store if options.store is None else open_store(options.store),
            call.child,
            explicit=options.run_id is not None,
            fsync=journal.fsync if options.durability is None else options.durability != "os",
            parent=parent,
            cut_off=call.number in parent.cut_off,
        )
        self.opened = opened
        if isinstance(opened, Recall):
            return _given(opened.value) if self.workflow.is_coroutine else opened.value
        run = execute_async if self.workflow.is_coroutine else execute
        return run(opened)


class _ChildWatch:
    """A child run knows itself whether it changed what it was given."""

    def __init__(self, child: _Child) -> None:
        self._child = child

    def changed(self) -> list[str]:
        opened = self._child.opened
        return list(self._child.bound) if opened is not None and opened.changed else []

    @property
    def around(self) -> Surroundings:
        return surroundings(self._child.bound, self._child.instance)


async def _given(value: Any) -> Any:
    return value


def _run_of(store: Store, run_id: str) -> Run:
    from stepwise._runs import Run  # on use: most programs look at no run

    return Run(store, run_id)


# -- the four forms of a workflow function -------------------------------------------------------


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
            # What it yields cannot be recorded as an outcome: its steps belong to the caller's run.
            return _Call(workflow, instance, args, kwargs).run_function()
        top = _TopLevel(workflow, instance, args, kwargs)
        if workflow.is_generator:
            return _drain(top) if want_run else _generate(top)
        return _adrain(top) if want_run else _agenerate(top)
    if not workflow.is_coroutine:
        return _plain(workflow, instance, args, kwargs, want_run)
    coroutine: Any = _coroutine(workflow, instance, args, kwargs, want_run)
    # "coroutine 'agent' was never awaited", says Python, who looks here.
    coroutine.__name__ = coroutine.__qualname__ = workflow.label
    return coroutine


def _plain(workflow: Definition, instance: Any, args: Any, kwargs: Any, want_run: bool) -> Any:
    scope = current_scope()
    if scope is not None:
        child = _Child(workflow, instance, args, kwargs)
        value = drive(child.prepare(scope)).unwrap()
        return child.handle() if want_run else value
    top = _TopLevel(workflow, instance, args, kwargs)
    with top as opened:
        value = opened.value if isinstance(opened, Recall) else execute(opened)
        if want_run:
            value = _run_of(top.store, top.run_id)
    return value


async def _coroutine(
    workflow: Definition, instance: Any, args: Any, kwargs: Any, want_run: bool
) -> Any:
    scope = current_scope()
    if scope is not None:
        from stepwise._adrive import adrive  # a synchronous program does not load asyncio

        child = _Child(workflow, instance, args, kwargs)
        value = (await adrive(child.prepare(scope))).unwrap()
        return child.handle() if want_run else value
    import asyncio

    top = _TopLevel(workflow, instance, args, kwargs)
    with top as opened:
        value = opened.value if isinstance(opened, Recall) else await execute_async(opened)
        # A Ctrl-C during the last piece comes only now.  Were it to come after the end, nobody
        # would get the result, and the next call would be a new run.
        await asyncio.sleep(0)
    return _run_of(top.store, top.run_id) if want_run else value


def _generate(top: _TopLevel) -> Generator[Any, Any, Any]:
    with top as opened:
        assert isinstance(opened, Opened)  # nothing is recalled of a generator
        return (yield from execute_generator(opened))


async def _agenerate(top: _TopLevel) -> AsyncGenerator[Any, None]:
    with top as opened:
        assert isinstance(opened, Opened)
        async for item in execute_async_generator(opened):
            yield item


def _drain(top: _TopLevel) -> Run:
    for _ in _generate(top):
        pass
    return _run_of(top.store, top.run_id)


async def _adrain(top: _TopLevel) -> Run:
    async for _ in _agenerate(top):
        pass
    return _run_of(top.store, top.run_id)


def derived_run_id(
    workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The id of the run that a first call from outside of any run means."""
    return _first_id(_Call(workflow, instance, args, kwargs))
