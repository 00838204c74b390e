"""The side effects of branches: refused, answered by a function, or collected as proposals.

A branch never makes a side effect of its own, in whatever attempt and process: the record of its
beginning says what happens instead.  Child runs take that over.  The one place that decides is
:meth:`BranchedCall.conduct`, where each call of a side effect ends that no record answers.

A proposal is a question that nobody can answer before the branch is adopted: its arguments are
recorded, the branch stops there and goes on with what the call really returns.  Rejected: going on
with ``None``.  Everything that the branch computed from it would be made up.

A call that a function answers has an outcome and no intent: it is never in doubt, and nothing
undoes it.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._calls.approvals import ApprovedCall
from stepwise._calls.call import Performance, record_failure, record_outcome
from stepwise._calls.driver import Attempt, Core, Result
from stepwise._calls.waiting import check_may_wait
from stepwise._execution.active_run import ActiveRun, Scope
from stepwise._execution.location import Origin
from stepwise._journal.records import ADOPTED, ANSWER, COLLECT, REFUSE, Call
from stepwise._journal.run_facts import Asked
from stepwise._matching.pool import Match, Verdict
from stepwise._runtime.facts import NamedTuple, public
from stepwise.errors import ConfigurationError, EffectRefusedError

_functions: dict[tuple[str, str], Callable[[BranchCall], Any]] = {}


@public
class BranchCall(NamedTuple):
    """A call of a side effect in a branch, for the function that answers it.

    Args:
        name: the name of the tool.
        arguments: the arguments by name.
        run_id: the id of the branch, or of its child run.
    """

    name: str
    arguments: Mapping[str, Any]
    run_id: str


def policy_of(effects: Any) -> str:
    """Return what is recorded of the ``effects=`` of a branch.

    Raises:
        ConfigurationError: it is neither a policy nor a function.
    """
    if effects in (REFUSE, COLLECT):
        return str(effects)
    if callable(effects):
        module = getattr(effects, "__module__", None) or type(effects).__module__
        name = getattr(effects, "__qualname__", None) or type(effects).__qualname__
        # No other process has the object, so it finds nothing by this name.
        name += " of an object" if object_of(effects) is not None else ""
        return f"{ANSWER}{module}:{name}"
    raise ConfigurationError(
        f"effects={effects!r}: it must be 'refuse', 'collect', or a function that answers a call "
        "of a side effect: effects=lambda call: 'sent'"
    )


def object_of(function: Any) -> Any:
    """Return the object of a method, or an object that is called itself; ``None`` for others."""
    if not hasattr(function, "__qualname__"):
        return function
    bound = getattr(function, "__self__", None)
    return None if isinstance(bound, (type, types.ModuleType)) else bound


def answer_with(url: str, run_id: str, effects: Any) -> None:
    """Remember the function that answers the side effects of a branch in this process."""
    if callable(effects):
        _functions[url, run_id] = effects


class BranchedCall(Performance):
    """A call of a side effect in a branch."""

    __slots__ = ()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Do what a branch does instead of a side effect.

        Raises:
            EffectRefusedError: the branch refuses it, or cannot have it answered or proposed here.
            RunStopped: the branch is being cancelled, and ends without its clean-up's side effects.
        """
        active, policy = self.scope.run, self.scope.run.effects
        if policy in (REFUSE, COLLECT) and active.steering.unwinds is not None:
            raise active.steering.unwinds  # a clean-up waits for nobody; nothing is there to undo
        if policy == COLLECT or (policy == ADOPTED and self._was_proposed(call, match)):
            return (yield from self._as(ProposedCall).conduct(call, origin, match))
        if policy == ADOPTED:
            tool: Any = self.performer
            made = self._as(tool.kind_of_call(active))
            return (yield from made.conduct(call, origin, match))
        if policy.startswith(ANSWER):
            return (yield from _answer(self, call, origin, _function(active, call, policy)))
        way = (
            "have it answered by a function, effects=lambda call: ..., or collect it as a "
            'proposal, effects="collect"'
        )
        raise active.stop(_refused(active, call, way))

    def _was_proposed(self, call: Call, match: Match) -> bool:
        """Return whether a person has a say in a call: it was proposed, or edited since then.

        A proposal that no call has met is that of an edited call: its yes or no is for another.
        """
        pool = self.scope.run.pool
        met = match.recorded[:1] or [each for each in pool.all if each.call.name == call.name]
        return any(each.wait is not None and each.wait.ticket for each in met)

    def _as(self, kind: type[Performance]) -> Performance:
        """Return the call as one of another kind."""
        made = self.performer, self.scope, self.identity, self.bound, self.args, self.kwargs
        return kind(*made)


def _refused(active: ActiveRun, call: Call, way: str) -> EffectRefusedError:
    at = f" at {call.site}" if call.site else ""
    return EffectRefusedError(
        f"run {active.root.run_id!r} is a branch, and does not make the side effect "
        f"{call.name}({call.arguments}){at}: {way}",
        run_id=active.root.run_id,
        name=call.name,
        arguments=call.arguments,
    )


# -- answered --------------------------------------------------------------------------------------


def _function(active: ActiveRun, call: Call, policy: str) -> Callable[[BranchCall], Any]:
    """Return the function that answers the side effects of a branch."""
    root = active.root
    known = _functions.get((root.journal.store.url, root.run_id))
    if known is not None:
        return known
    place = policy.removeprefix(ANSWER)
    module, _, name = place.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        way = (
            f"the function {place} answers it, which this process cannot import. Call branch() "
            "again, or define the function in a module"
        )
        raise active.stop(_refused(active, call, way)) from None
    function: Callable[[BranchCall], Any] = found
    return function


def _answer(
    made: Performance, call: Call, origin: Origin, function: Callable[[BranchCall], Any]
) -> Core:
    """Record what a function says that a side effect returns."""
    scope, active = made.scope, made.scope.run
    asked = BranchCall(call.name, dict(made.bound), active.run_id)
    made.takes_off(call)
    try:
        inner = Scope(active, call, (*scope.around, call.number), 1, scope.branch, scope)
        result: Result = yield Attempt(function, (asked,), {}, None, f"the answer of {call.name}")
        if result.error is not None:
            yield from record_failure(scope, inner, result, None, clean=True, helper=origin.helper)
            return result
        looked = active.look(scope, result.value)
        record = made._completed(call, result.value, inner, ())
        yield from record_outcome(scope, record, looked=looked, helper=origin.helper)
        return result
    finally:
        made.landed(call)


# -- proposed --------------------------------------------------------------------------------------


class ProposedCall(ApprovedCall):
    """A call of a side effect that waits until its branch is adopted and a person says yes."""

    __slots__ = ()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Propose the call; once the branch is adopted, ask for permission and make the call."""
        try:
            check_may_wait(self.scope, call.name)
        except ConfigurationError as error:
            way = f"it cannot be proposed, since it is made inside a step. {error}"
            raise self.scope.run.stop(_refused(self.scope.run, call, way)) from None
        if self.scope.run.effects == COLLECT and match.verdict is Verdict.DOUBT:
            way = "its base does not know whether it has happened: stepwise resolve says so there"
            raise self.scope.run.stop(_refused(self.scope.run, call, way))
        return (yield from super().conduct(call, origin, match))

    def _is_needed(self, terms: Any) -> Any:
        yield from ()
        return True

    def _look(self, active: ActiveRun, asked: Asked) -> Result | None:
        return super()._look(active, asked) if active.effects == ADOPTED else None
