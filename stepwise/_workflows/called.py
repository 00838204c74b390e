"""A call of a workflow; inside a run, a child run that is a step of its caller."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any

from stepwise._calls.operations import Core
from stepwise._calls.perform import perform
from stepwise._checkpoints.surroundings import Surroundings
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.outcomes import surroundings
from stepwise._identity import identity as _identity
from stepwise._identity.identity import Parameters
from stepwise._identity.module_names import canonical_module
from stepwise._identity.parts import captured
from stepwise._journal.records import Call
from stepwise._matching.subjects import Identity, complete
from stepwise._runtime.retries import Attempts
from stepwise._values.codec import Codec
from stepwise._values.secrets import Secrets
from stepwise._workflows.definition import BoundCall
from stepwise._workflows.execute import execute, execute_async
from stepwise._workflows.opening import Invocation, Recall, open_run
from stepwise._workflows.resume import WorkflowRun
from stepwise._workflows.turns import Turn, await_turn, sleep_turn, turn
from stepwise.errors import ConfigurationError
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    from stepwise._calls.doubt import InDoubt
    from stepwise._runs.run import Run

__all__ = ["ChildCall", "WorkflowCall", "no_id_yet", "run_of"]


class WorkflowCall(BoundCall):
    """One call of a workflow, which takes a run up."""

    def open(
        self, store: Store, run_id: str, *, parent: ActiveRun | None = None, **how: Any
    ) -> Recall | WorkflowRun:
        """Take up the run of that id; ``how`` as for :class:`Invocation`."""
        codec = self.options.recording(parent.facts.codec if parent is not None else "")
        rewritten = self.workflow.rewritten()
        call = Invocation(
            self, store, run_id, parent=parent, codec=codec, rewritten=rewritten, **how
        )
        return open_run(call, WorkflowRun)


class ChildCall(WorkflowCall):
    """A call inside a run.  What ``perform`` needs to know of it, like of a step."""

    effect = True
    idempotent = False
    in_doubt: InDoubt = "raise"
    fails_cleanly: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    name: str
    module: str
    child: str
    child_digest: str
    opened: Recall | WorkflowRun | None = None

    def watch(self, bound: Mapping[str, Any]) -> _ChildWatch:
        """Return the watch that notices when the call changes its arguments."""
        return _ChildWatch(self)

    def shown(self, bound: Mapping[str, Any], secrets: Secrets) -> str:
        """Return the arguments as text, without hidden values."""
        return self.hiding.shown(bound, secrets)

    def prepare(self, scope: Scope) -> Core:
        """Return the core that executes the call, or answers it from the caller's journal."""
        self.parent = parent = scope.run
        parent.secrets.add(self.secret)
        self.name = self.workflow.label
        self.module = canonical_module(self.workflow.function.__module__)
        digest = self._digest(parent)
        self.child = self._id(parent, digest, parent.ordinals.of_child(self.name, digest))
        self.child_digest = digest
        return perform(self, scope, self._identity(scope, digest), self.bound, (), {})

    def _identity(self, scope: Scope, digest: str) -> Identity:
        parameters, function = self.workflow.parameters, self.workflow.function
        _, parts = parameters.identify(self.bound, (self.args, self.kwargs))
        identity = Identity(digest, parts)
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
        given = self.options.store
        store = self.parent.journal.store if given is None else open_store(given)
        return run_of(store, self.child)

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
        """Return the function that executes the child run."""
        return lambda: self._execute(call)

    def _execute(self, call: Call) -> Any:
        options, parent = self.options, self.parent
        journal = parent.journal
        self.child = call.child
        store = journal.store if options.store is None else open_store(options.store)

        def take(waited: bool) -> Recall | WorkflowRun:
            return self.open(
                store,
                call.child,
                explicit=options.run_id is not None,
                fsync=journal.fsync if options.durability is None else options.durability != "os",
                parent=parent,
                cut_off=call.number in parent.cut_off,
                waited=waited,
            )

        blocks = not self.workflow.is_coroutine
        taking = turn(take, store, call.child, options.on_owned, blocks=blocks)
        if not blocks:
            return self._execute_async(taking)
        self.opened = opened = sleep_turn(taking)
        return opened.value if isinstance(opened, Recall) else execute(opened)

    async def _execute_async(self, taking: Turn[Recall | WorkflowRun]) -> Any:
        self.opened = opened = await await_turn(taking)
        return opened.value if isinstance(opened, Recall) else await execute_async(opened)


class _ChildWatch:
    """A child run knows itself whether it changed what it was given."""

    def __init__(self, child: ChildCall) -> None:
        self._child = child

    def changed(self) -> list[str]:
        opened = self._child.opened
        return list(self.around.arguments) if opened is not None and opened.changed else []

    @property
    def around(self) -> Surroundings:
        call = self._child
        return surroundings(call.bound, call.instance, call.workflow.function, call.secret)


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
