"""UnfinishedRun runs that somebody has to continue, and the calls that continue them.

``recover()`` and ``stepwise up`` ask the same code: the first once, the second all the time.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from stepwise._execution.inputs import RunInputs, load_inputs
from stepwise._execution.registry import known_workflow
from stepwise._journal.heads import is_ready, open_head
from stepwise._journal.inbox import Inbox
from stepwise._journal.journal import Position, facts_of, read_entries, seal_for
from stepwise._journal.projection import Calls, is_only_submitted
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._runs.run import Run
from stepwise._runtime import clock, settings
from stepwise._runtime.facts import NamedTuple
from stepwise._workflows.definition import Definition
from stepwise._workflows.invoke import TopLevel
from stepwise.errors import ConfigurationError, UnreadableValueError
from stepwise.stores import Head, Store, open_store

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = [
    "Backlog",
    "Deaths",
    "UnfinishedRun",
    "Why",
    "call_again",
    "deaths_of",
    "is_submitted",
    "stores_of",
]

_SET_BACK = 2.0  # seconds by which a suspension may seem to lie ahead; with more, the clock was set

Why = Literal["crashed", "cancelling", "time", "message"]
"""Why a run has to go on: it died; somebody asked for its end; what it waits for has come."""


class UnfinishedRun(NamedTuple):
    """A run that nobody may be executing, and that has to go on, now or later."""

    store: Store
    seal: Seal
    facts: RunFacts

    @property
    def key(self) -> tuple[str, str]:
        """The store and the id."""
        return self.store.url, self.facts.run_id

    @property
    def run(self) -> Run:
        """The run, for looking at it."""
        return Run(self.store, self.facts.run_id, self.seal)

    @property
    def until(self) -> float:
        """The next moment that it waits for, in seconds since 1970; infinite if it has none."""
        return min(
            (each.until for each in self.facts.waits if each.until is not None), default=math.inf
        )

    def why(self) -> Why | None:
        """Return why it has to go on now; ``None`` if it waits, or somebody executes it."""
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
        """Return whether something came for it, while it is suspended, that it waits for."""
        facts = self.facts
        own, wanted, last = facts.run_id, set[tuple[str, str, str]](), {facts.run_id: facts.seen}
        for each in facts.waits:
            what = ("answer", each.ticket) if each.ticket else ("signal", each.name)
            wanted.add((each.run or own, *what))
            if each.run:  # a child run has an inbox of its own
                last[each.run] = each.seen
        for run_id, seen in last.items():
            inbox = Inbox(self.store, self.seal, run_id)
            for came in inbox.look(tolerant=True):
                is_cancel = came.kind == "cancel" and came.number > facts.cancels
                if is_cancel or (came.number > seen and (run_id, came.kind, came.name) in wanted):
                    return True
            if inbox.all_lost():  # the run itself reports those
                return True
        return False

    def again(self) -> TopLevel:
        """Return the call that continues it, if nobody else does so first.

        Raises:
            ConfigurationError: this process does not know its workflow.
            UnreadableValueError: its arguments cannot be loaded.
        """
        facts = self.facts
        definition = known_workflow(facts.workflow).definition
        top = call_again(definition, self.run, {}, on_owned="raise")
        top.meant = facts.__eq__
        return top


class Deaths(NamedTuple):
    """How often a run died, until now.

    Args:
        attempts: how many of its attempts died, one after the other.
        stuck: how many of these died before any step had ended, with the same code.
        at: its last sign of life, in seconds since 1970.
        waits: it was waiting, so that nothing that it did need have been what killed it.
    """

    attempts: int = 0
    stuck: int = 0
    at: float = 0.0
    waits: bool = False


def deaths_of(run: UnfinishedRun, code: str = "") -> Deaths:
    """Return how often a crashed run died.

    Args:
        code: fingerprint of its workflow now; an attempt with other code died of that, perhaps.
    """
    store, seal, facts = run
    course = course_of(store, seal, facts)
    if code and course.code and code != course.code:
        return Deaths(at=course.at)
    stuck, waits = course.stuck + course.open, False
    if stuck > 1:  # its child runs may have got on
        calls = [*Calls(read_entries(store, seal, facts.run_id, Position(facts.pruned, None)))]
        children = [each.call.child for each in calls if each.status == "open"]
        known = [facts_of(store, seal, child) for child in children if child]
        theirs = [deaths_of(run._replace(facts=each)) for each in known if each is not None]
        stuck = min([stuck, *(each.stuck for each in theirs)])
        waits = any(each.status == "waiting" for each in calls)
        waits = waits or any(each.waits for each in theirs)
    return Deaths(course.deaths + course.open, stuck, course.at, waits)


def is_submitted(run: UnfinishedRun) -> bool:
    """Return whether a run was put on record for a task of an engine, which has not begun yet."""
    store, seal, facts = run
    if facts.updated_at > facts.created_at:
        return False
    return is_only_submitted(list(read_entries(store, seal, facts.run_id)))


def _may_go_on(facts: RunFacts | None) -> TypeGuard[RunFacts]:
    """Return whether a run goes on by itself one day: most have ended, or were stopped."""
    if facts is None or facts.parent or facts.status in ("completed", "failed"):
        return False
    if facts.status == "cancelled":
        return facts.undoing  # its process died while its side effects were being undone
    return bool(facts.cancelling) or (facts.status != "interrupted" and not is_ready(facts))


class Backlog:
    """The runs of a store that have to go on, now or later, as their heads show them.

    Heads that are unchanged since the last look are not opened again.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.seal = store, seal_for(store)
        self._opened: dict[str, tuple[bytes, RunFacts | None]] = {}

    def look(self) -> list[UnfinishedRun]:
        """Return them, the oldest first."""
        before, self._opened = self._opened, {}
        found = []
        for head in self.store.heads(unfinished=True):
            known = before.get(head.run_id)
            if known is None or known[0] != head.data:
                known = head.data, self._facts(head)
            self._opened[head.run_id] = known
            if (facts := known[1]) is not None:
                found.append(UnfinishedRun(self.store, self.seal, facts))
        return sorted(found, key=lambda each: each.facts.created_at)

    def look_at(self, run_id: str) -> UnfinishedRun | None:
        """Return one of them, as it is now; ``None`` if it does not have to go on.

        Of a child run, it is the run at the top that has to.
        """
        facts = facts_of(self.store, self.seal, run_id)
        while facts is not None and facts.parent:
            facts = facts_of(self.store, self.seal, facts.parent)
        return UnfinishedRun(self.store, self.seal, facts) if _may_go_on(facts) else None

    def _facts(self, head: Head) -> RunFacts | None:
        facts = open_head(self.seal, head) or facts_of(self.store, self.seal, head.run_id)
        return facts if _may_go_on(facts) else None


def stores_of(known: Iterable[Definition], store: Any = None) -> list[Store]:
    """Return the stores that may have runs of these workflows, the configured one first.

    Args:
        store: a URL, path or store object: only this one.
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
    workflow: Definition, run: Run, given: Mapping[str, Any], **options: Any
) -> TopLevel:
    """Return the call that a run was started with, as the call that continues it."""
    facts = run._facts()
    if facts.parent:
        raise ConfigurationError(
            f"run {run.id!r} is a child run: it resumes when its parent, {facts.parent!r}, does"
        )
    if workflow.is_generator or workflow.is_async_generator:
        raise ConfigurationError(
            f"run {run.id!r} belongs to a generator workflow, whose items need a consumer: call it"
        )
    try:
        inputs = load_inputs(run.store, run._seal, facts)
    except UnreadableValueError:
        if not given:
            raise
        inputs = RunInputs({}, "self" if "self" in given else "")
    values = inputs.whole(given)
    signature = inspect.signature(workflow.function)
    unknown = sorted(values.keys() - signature.parameters.keys())
    if unknown:
        raise ConfigurationError(
            f"run {run.id!r}: its workflow {workflow.label!r} has no parameter {unknown[0]!r}; its "
            f"parameters are {list(signature.parameters)}"
        )
    bound = inspect.BoundArguments(signature, OrderedDict(values))
    instance, args = (bound.args[0], bound.args[1:]) if inputs.method else (None, bound.args)
    if facts.codec:
        options["codec"] = "json"
        options["trust"] = "data" if facts.codec == "data" else "all"
    chosen = workflow.options.changed(
        {**options, "run_id": run.id, "store": run.store, "fresh": False}
    )
    top = TopLevel(Definition(workflow.function, chosen, workflow), instance, args, bound.kwargs)
    top.mean(run.id, explicit=True)
    return top
