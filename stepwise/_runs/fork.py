"""A fork: a new run that resumes from a point of another run, with other variables or results.

The records up to that point are copied under their numbers, and sealed again for the new run;
later records are not.
Completed steps are thus not repeated, and either run can be deleted without harm to the other.
Side effects that the fork makes itself get new idempotency keys.  Only the source can undo the
shared side effects.

A *branch* is a fork that copies no records: its journal begins behind the last record that it
shares, and says whose records come before; see :class:`.records.Branched`.  Its checkpoint is its
own, so that the source may delete the one that it was made at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stepwise import errors
from stepwise._checkpoints.checkpoints import PREFIX, Loaded, State, number_of, sealed
from stepwise._checkpoints.references import Vault
from stepwise._execution.outcomes import outcome
from stepwise._execution.process_memory import known_workflow
from stepwise._execution.viewer import look_into
from stepwise._execution.waits import Taken
from stepwise._identity.identity import random_id
from stepwise._journal import projection, records
from stepwise._journal.journal import (
    DELETING,
    SHARED,
    Lost,
    Position,
    beginning_of_branch,
    facts_of,
    half_deleted,
    names_beside,
    owned_journal,
    read,
    read_entries,
    read_on,
    recorded_versions,
    rows_of,
)
from stepwise._journal.lease import Lease
from stepwise._journal.logs import Inbox
from stepwise._journal.persons import this_person
from stepwise._journal.seal import Seal, named
from stepwise._journal.summary import Summary, how_started, sealed_summary, summary_of
from stepwise._matching.pool import key_of
from stepwise._runs.messages import untaken
from stepwise._runs.steps import kept_checkpoints, known_facts, moved, settled
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import shell_word
from stepwise._runtime.options import check_values
from stepwise._values import codec as _codec
from stepwise._values.codec import Codec
from stepwise._values.unpickling import Data
from stepwise.stores import Batch, Store


@dataclass(frozen=True)
class Change:
    """The differences between a fork and its source.

    Args:
        at: the step up to which records are shared; ``None`` for the newest checkpoint.
        variables: new values of local variables.
        results: new results of steps, by number or name.
        messages: whether the fork also takes the messages to the source, which takes them, too.
        checkpoint: the name of the checkpoint at which it resumes, and that ends what it shares;
            empty for the newest of step ``at``.
    """

    at: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[int | str, Any] = field(default_factory=dict)
    messages: bool = False
    checkpoint: str = ""


def fork(store: Store, seal: Seal, run_id: str, change: Change, new_id: str | None) -> str:
    """Write a run that resumes from a point of another run; return the id of the new run."""

    def read(*_: Any) -> tuple[ForkedRun, Mapping[int, Any], tuple[int, Loaded | None]]:
        source = ForkedRun(store, seal, run_id)
        refuse_answered(store, seal, source.facts, "forked")
        results = {source.number_of(step): value for step, value in change.results.items()}
        return source, results, point_of(source, change, results)

    if new_id:
        check_values("a fork", run_id=new_id)
    source, results, (cut, loaded) = settled(store, seal, run_id, read)
    new_id = new_id or random_id(source.facts.label)
    _refuse_taken(store, seal, new_id, run_id)
    what = f"run {run_id!r} cannot be forked there"
    refuse_undone(store, seal, source.facts, cut, what, source.entries)
    if not change.messages:
        _refuse_messages(source, cut, loaded)
    if not _NewRun(source, new_id, cut, loaded).copy(change.variables, results):
        _refuse_taken(store, seal, new_id, run_id)
    return new_id


def _refuse_taken(store: Store, seal: Seal, new_id: str, run_id: str) -> None:
    """Refuse the id of a run that exists for a fork of another one."""
    taken = facts_of(store, seal, new_id)
    if taken is not None:
        recorded = f"{taken.label}({taken.arguments})"
        raise errors.RunConflictError(
            f"run id {new_id!r} is taken by {recorded}; give the fork another id",
            run_id=new_id,
            recorded=recorded,
            given=f"a fork of {run_id}",
        )


def refuse_answered(store: Store, seal: Seal, facts: records.RunFacts, participle: str) -> None:
    """Refuse to make side effects after those that a function has answered in a branch.

    Raises:
        ConfigurationError: the run is such a branch, or a branch of one.
    """
    found: records.RunFacts | None = facts
    while found is not None and found.base:
        if found.effects.startswith(records.ANSWER):
            raise errors.ConfigurationError(
                f"branch {facts.run_id!r} cannot be {participle}: a function answered the side "
                f"effects of {found.run_id!r}, so that it would go on from what never happened. "
                f'Branch {found.base!r} with effects="collect"'
            )
        found = facts_of(store, seal, found.base)


def refuse_secrets(facts: records.RunFacts, names: Collection[str]) -> None:
    """Refuse to record the value of a secret as that of a variable.

    The run has recorded the names of the secrets that its call gave, and which names are hidden;
    the workflow knows which of these are secret.

    Raises:
        ConfigurationError: one of the variables is a secret argument of the run, or may be one.
    """
    secret, is_known = {*facts.secrets.split()}, True
    try:
        secret |= known_workflow(facts.workflow).parameters.hiding.secret
    except errors.ConfigurationError:  # a workflow that this process does not know
        secret, is_known = secret | {*facts.hidden.split()}, False
    for name in sorted(secret.intersection(names)):
        what, way = "is a secret of", ""
        if not is_known and name not in facts.secrets.split():
            what, way = "is hidden by", ". If it is none, fork or branch in its program"
        raise errors.ConfigurationError(
            f"{name!r} {what} run {facts.run_id!r}, and a secret is never stored: give it when the "
            f"run goes on, by resume({name}=...) or branch(inputs=...){way}"
        )


def refuse_unknown(
    facts: records.RunFacts, state: State, known: Collection[str], names: Iterable[str]
) -> None:
    """Refuse to change variables that the frame does not have.

    Args:
        state: the checkpoint at which they would be changed.
        known: the names of the variables that it has.

    Raises:
        ConfigurationError: the message lists these.
    """
    for name in names:
        if name not in known:
            raise errors.ConfigurationError(
                f"run {facts.run_id!r} has no variable {name!r} at {state.where}; only its local "
                f"variables and arguments can be set: {', '.join(known) or 'none'}"
            )


def refuse_undone(
    store: Store,
    seal: Seal,
    facts: records.RunFacts,
    cut: int,
    what: str,
    entries: Iterable[records.Entry] = (),
    way: str = "Choose an earlier step (at=), or let the run go on, which makes that call anew",
) -> None:
    """Refuse to go on from side effects that were undone later, by whichever run shares them.

    Args:
        what: cannot be done, for the message.
        entries: the records of the run, if the caller has them.
        way: what to do instead, for the message.

    Raises:
        ConfigurationError: a call up to record ``cut`` was undone behind it; or an adopted branch
            is gone that may have undone the call.
    """
    waiting, met = [(facts, cut, entries)], {facts.run_id}
    for each, last, given in waiting:  # grows meanwhile
        known = [*given] or [*read_entries(store, seal, each.run_id)]
        undone = projection.Places(entry for entry in known if entry.number > last).undone
        shared = projection.announcements(entry for entry in known if entry.number <= last)
        for number in sorted(undone.keys() & shared.keys()):
            raise errors.ConfigurationError(
                f"{what}: run {each.run_id!r} has undone step {number} since, which would count "
                f"as done. {way}"
            )
        gone, its_cut = _gone_heir(store, seal, each)
        for number, entry in shared.items() if gone else ():
            if entry.number <= its_cut and _may_be_undone(store, seal, entry):
                raise errors.ConfigurationError(
                    f"{what}: branch {gone!r}, which was adopted and is gone, may have undone step "
                    f"{number} of run {each.run_id!r}. Choose an earlier step (at=), or begin "
                    f"anew: .options(fresh=True), or stepwise forget {shell_word(each.run_id)}"
                )
        for other, branch in ((each.base, each.run_id), (each.superseded, each.superseded)):
            begins = (
                beginning_of_branch(store, seal, branch) if other and other not in met else None
            )
            its_facts = facts_of(store, seal, other) if begins is not None else None
            if begins is not None and its_facts is not None:
                met.add(other)
                waiting.append((its_facts, min(last, begins[0] - 1), ()))


def refuse_undone_since(store: Store, seal: Seal, fork: records.RunFacts) -> None:
    """Refuse to continue a fork if a source of it has undone a side effect that both share.

    Raises:
        ConfigurationError: the side effect would count as done.
    """
    mine, met = dict[tuple[int, str], int](), {fork.run_id}
    source = facts_of(store, seal, fork.forked_from)
    while source is not None and source.run_id not in met:
        met.add(source.run_id)
        if source.undone:
            mine = mine or _announced(store, seal, fork)
            shared = mine.keys() & _announced(store, seal, source, undone=True).keys()
            refuse_undone(
                store,
                seal,
                source,
                max((mine[each] for each in shared), default=0),
                f"fork {fork.run_id!r} is not continued",
                way=f"Fork {source.run_id!r} again: before that step, or when it has gone on",
            )
        source = facts_of(store, seal, source.forked_from) if source.forked_from else None


def _announced(
    store: Store, seal: Seal, facts: records.RunFacts, *, undone: bool = False
) -> dict[tuple[int, str], int]:
    """Return where side effects are announced, by the number and the idempotency key of the call.

    Args:
        undone: whether calls that do not count any more are among them.
    """
    entries = [*read_entries(store, seal, facts.run_id, Position(facts.pruned, None))]
    known = projection.Calls(entries).known
    return {
        (number, entry.call.key): entry.number
        for number, entry in projection.announcements(entries).items()
        if entry.call is not None and (undone or (number in known and known[number].answers))
    }


def _gone_heir(store: Store, seal: Seal, facts: records.RunFacts) -> tuple[str, float]:
    """Return the deleted branch that went on instead of a run, and what both shared at most.

    The branch may have been adopted instead of another adopted branch.  The id is empty if no such
    branch is gone.
    """
    found: records.RunFacts | None = facts
    cut = math.inf
    while found is not None and found.superseded:
        gone, begins = found.superseded, beginning_of_branch(store, seal, found.superseded)
        found = facts_of(store, seal, gone) if begins is not None else None
        if begins is None or found is None:
            return gone, cut
        cut = min(cut, begins[0] - 1)
    return "", cut


def _may_be_undone(store: Store, seal: Seal, announced: records.Entry) -> bool:
    """Return whether a side effect can be undone: its arguments are recorded for that."""
    child = announced.call.child if announced.call is not None else ""
    if child:
        return bool(projection.announcements(read_entries(store, seal, child)))
    return bool(announced.payload)


# -- the point at which it resumes ---------------------------------------------------------------


def whole_records(
    store: Store, seal: Seal, facts: records.RunFacts, what: str
) -> list[records.Entry]:
    """Return the records of a run.

    Args:
        what: is to be done with the run, as a participle.

    Raises:
        CorruptStoreError: some cannot be read, and nobody has given them up.
        JournalLostError: the deletion of the run was cut off.
    """
    if store.get(facts.run_id, DELETING) is not None:
        raise half_deleted(store, facts.run_id)
    entries, lost = list[records.Entry](), set[int]()
    for entry, at in read(store, seal, facts.run_id, Position(facts.pruned, None)):
        if isinstance(entry, Lost):
            lost.add(at.last)
        else:
            entries.append(entry)
    lost -= projection.given_up(entries)
    if lost or not entries:
        why = f"{len(lost)} of its records cannot be read" if lost else "its records are gone"
        raise errors.CorruptStoreError(
            f"run {facts.run_id!r} cannot be {what}: {why}. "
            f"Repair what can be repaired, and try again: "
            f"stepwise verify {shell_word(facts.run_id)} --repair",
            run_id=facts.run_id,
        )
    return entries


class ForkedRun:
    """The source of a fork.

    Attributes:
        entries: the records of the run, in order.
        calls: the last record of each recorded call, by the call's number.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str) -> None:
        facts = known_facts(store, seal, run_id)
        self.store, self.seal, self.facts = store, seal, facts
        self.entries = whole_records(store, seal, facts, "forked")
        self.calls = {each.step: each for each in self.entries if each.step}
        self._shared: dict[tuple[int, str], _Shared] = {}

    def shared(self, cut: int, loaded: Loaded | None) -> _Shared:
        """Return the records up to a number, for branches; read once for all of them."""
        key = cut, loaded.name if loaded is not None else ""
        if key not in self._shared:
            self._shared[key] = _shared_up_to(self, cut, loaded)
        return self._shared[key]

    def number_of(self, step: int | str) -> int:
        """Return the number of a step that is given by number, also as text, or name."""
        calls = (each.call for each in self.entries if each.call is not None)
        found = {
            call.number for call in calls if step in (call.number, f"{call.number}", call.name)
        }
        if len(found) != 1:
            why = "names more than one step; give its number" if found else "is not a step of it"
            raise self.no_step(step, why)
        return found.pop()

    def no_step(self, step: int | str, why: str) -> errors.StepNotFoundError:
        run_id = self.facts.run_id
        return errors.StepNotFoundError(
            f"run {run_id!r} cannot be forked like that: {step!r} {why}. Its steps: "
            f"stepwise show {shell_word(run_id)}",
            run_id=run_id,
            step=step,
        )

    def has_moved(self) -> bool:
        """Return whether a checkpoint is there that follows records which were not read."""
        names = self.store.names(self.facts.run_id, PREFIX)
        return any(number_of(name) > self.entries[-1].number for name in names)

    def checkpoints(self, cut: int) -> Iterator[Loaded]:
        """Return the checkpoints taken up to a record, the newest first."""
        return _checkpoints(self.store, self.seal, self.facts, cut)


def _checkpoints(store: Store, seal: Seal, facts: records.RunFacts, cut: int) -> Iterator[Loaded]:
    """Yield the verified checkpoints up to a record, newest first, also those of a base."""
    lowest = cut
    for loaded in kept_checkpoints((store, seal, facts.run_id), cut):
        lowest = min(lowest, number_of(loaded.name))
        yield loaded
    base = facts_of(store, seal, facts.base) if facts.base else None
    if base is not None:
        first = next(iter(store.read(facts.run_id)), (cut + 1, b""))[0]
        yield from _checkpoints(store, seal, base, min(lowest, first - 1))


def point_of(
    source: ForkedRun, change: Change, results: Mapping[int, Any]
) -> tuple[int, Loaded | None]:
    """Return the last record to share, and the checkpoint to resume at; ``None`` for the top."""
    run_id, at = source.facts.run_id, change.at
    if at is None and results:
        at = max(results)
    if at is None:
        places = source.checkpoints(source.entries[-1].number)
        name = change.checkpoint
        newest = next((each for each in places if name in ("", each.name)), None)
        if newest is None and source.has_moved():
            raise moved(source.store, run_id)
        if newest is None:
            raise source.no_step(
                "the newest checkpoint", "is missing; give the step at which it resumes (at=)"
            )
        return newest.state.journal[0], newest
    late = [number for number in results if number > at]
    if late:
        raise source.no_step(late[0], f"comes after step {at}, up to which records are shared")
    if at < 0 or at > max(source.calls, default=0):
        raise source.no_step(at, "is not a step of it")
    cut = _end_of(source, at)
    for loaded in source.checkpoints(cut):
        if not _has_used(source, loaded.state, results):
            return cut, loaded
    if source.facts.pruned:
        raise errors.CodeChangedError(
            f"run {run_id!r} cannot be forked so early: its journal was pruned "
            "(prune_journal=True), and there is no checkpoint before",
            run_id=run_id,
        )
    if change.variables:
        kept = ", ".join(str(each.state.step) for each in [*source.checkpoints(1 << 62)][::-1])
        raise source.no_step(
            at,
            f"has no checkpoint at or before it whose variables could be changed; there are some "
            f"after steps {kept or '(none)'}, and @workflow(retention='all') keeps them all",
        )
    return cut, None


def _end_of(source: ForkedRun, at: int) -> int:
    """Return the last record that belongs to the steps up to ``at``."""
    known = [number for number in source.calls if number <= at]
    if known:
        return projection.end_of_step(source.entries, source.calls[max(known)].number)
    return source.entries[0].number if projection.start_of(source.entries[:1]) else 0


def _has_used(source: ForkedRun, state: State, results: Mapping[int, Any]) -> bool:
    """Return whether the variables at a checkpoint already depend on any of these steps."""
    unused = {number for origin, last, *_ in state.unused for number in (origin, last)}
    waiting = {each.step for each in source.entries if each.number in unused and each.call}
    return any(number <= state.calls and number not in waiting for number in results)


def _refuse_messages(source: ForkedRun, cut: int, loaded: Loaded | None) -> None:
    """Refuse a fork that would take messages which also count for its source.

    Raises:
        ConfigurationError: there are such messages; the error names them.
    """
    found = _untaken(source, cut, loaded)
    if found:
        raise errors.ConfigurationError(
            f"a fork of run {source.facts.run_id!r} at this point takes what was sent to that run, "
            f"so that it counts twice: {', '.join(found)}. If that is meant: "
            "stepwise fork --messages, or fork(messages=True)"
        )


def _untaken(source: ForkedRun, cut: int, loaded: Loaded | None) -> list[str]:
    """Return the messages that a fork takes, for itself and for its unfinished child runs."""
    store, seal = source.store, source.seal
    shared = [each for each in source.entries if each.number <= cut]
    taken = Taken(loaded.state.taken if loaded is not None else {}, shared)
    found = untaken(store, seal, source.facts.run_id, taken)
    for recorded in projection.Calls(shared):
        child = recorded.call.child
        if child and not recorded.answers and facts_of(store, seal, child) is not None:
            below = ForkedRun(store, seal, child)
            end = below.entries[-1].number
            found += _untaken(below, end, next(below.checkpoints(end), None))
    return found


# -- writing it ----------------------------------------------------------------------------------


class _NewRun:
    """A run that continues from a point of another run, as it is written: a fork or a branch.

    Args:
        source: the other run.
        run_id: the id of the new run.
        cut: the number of the last record that it shares.
        loaded: the checkpoint at which it resumes; ``None`` for the top.
        effects: of a branch, as in :class:`.records.RunFacts`; empty for a fork.
        parent: the run that calls it; empty if none does.
    """

    def __init__(
        self,
        source: ForkedRun,
        run_id: str,
        cut: int,
        loaded: Loaded | None,
        effects: str = "",
        parent: str = "",
    ) -> None:
        self._store, self._seal, self._facts = source.store, source.seal, source.facts
        self._source, self._id, self._cut, self._loaded = source, run_id, cut, loaded
        self._effects, self._parent = effects, parent

    def copy(self, variables: Mapping[str, Any], results: Mapping[int, Any]) -> bool:
        """Write a fork, which has the shared records itself; return False if the run exists."""
        loaded, now = self._loaded, time.time()
        shared = [each for each in self._source.entries if each.number <= self._cut]
        known = look_into(loaded) if loaded is not None and variables else ()
        changes = self._with_changes(variables, known)
        entries = self._copied(shared, results, now)
        first = entries[0].number - 1

        def beside(positions: list[Position]) -> dict[str, Data]:
            summary = summary_of(zip(entries, positions[1:], strict=True))
            objects = sealed_summary(self._seal, self._id, summary) | self._beside_calls(shared)
            last = shared[-1].number if shared else first + 1
            at = min(loaded.state.journal[0], last) if loaded is not None else first
            return objects | self._checkpoint(positions[at - first], *changes)

        items = [(each.record, each.payload) for each in entries]
        return self._write(Position(first, None), items, beside, self._head(now))

    def share(self, variables: Mapping[str, Any]) -> None:
        """Write a branch, which shares the records, and has a checkpoint of its own.

        A branch that exists is left: it is the same one.
        """
        at, checkpoint, known, calls, handled, now, summary = self._source.shared(
            self._cut, self._loaded
        )
        changes = self._with_changes(variables, known)
        begins = self._begins(calls, now)
        items: list[tuple[records.Record, Data]] = [(begins, b"")]
        items += [(handled, b"")] if handled.numbers else []
        head = self._head(now)._replace(base=self._facts.run_id, effects=self._effects)

        def beside(_: list[Position]) -> dict[str, Data]:
            objects = self._versions()
            if not begins.again:
                objects |= sealed_summary(self._seal, self._id, summary)
            return objects | self._checkpoint(checkpoint, *changes)

        with _shareable(self._source, at):
            self._write(at, items, beside, head)

    def _write(
        self,
        at: Position,
        items: Iterable[tuple[records.Record, Data]],
        beside: Callable[[list[Position]], dict[str, Data]],
        head: records.RunFacts,
    ) -> bool:
        """Write the first records behind a position, and the objects beside them.

        The messages are copied first, or the run would wait for a message that was already sent.

        Returns:
            False if the run exists: another process has written it meanwhile, or, before it was
            killed, a child run alone.
        """
        inboxes = [Inbox(self._store, self._seal, each) for each in (self._facts.run_id, self._id)]
        with owned_journal(self._store, self._seal, self._id) as journal:
            if facts_of(self._store, self._seal, self._id) is not None:
                return False
            inboxes[0].copy_to(inboxes[1])
            journal.load(at)
            journal.begin_with(items, beside, head)
        return True

    def _head(self, now: float) -> records.RunFacts:
        facts = self._facts
        head = facts.unfinished(
            run_id=self._id,
            parent=self._parent,
            forked_from=facts.run_id,
            forked_by=this_person(),
            created_at=now,
            updated_at=now,
            trace={},  # a fork begins its own trace
            base="",
            effects="",
            superseded="",
        )
        if not self._parent:
            return head
        head = head._replace(end=facts.end if facts.end <= self._cut else 0)
        return head if facts.status == "suspended" else head._replace(status=facts.status)

    # -- the records -----------------------------------------------------------------------------

    def _copied(
        self, shared: list[records.Entry], results: Mapping[int, Any], now: float
    ) -> list[records.Entry]:
        """Return the records of a fork: the shared ones under their numbers, then its own."""
        handled, calls = _open_calls(self._source, shared, now)
        begins, facts, found = self._begins(calls, now), self._facts, [*shared]
        if not projection.start_of(shared[:1]):  # it was pruned, or lost
            given = facts.workflow, facts.digest, facts.arguments, facts.code
            started = records.Started(*given, tags=facts.tags)
            found.insert(0, records.Entry(facts.pruned or 1, started, b""))
        found = [records.shared_entry(each, begins) for each in projection.without_gaps(found)]
        for place, each in enumerate(found):
            if isinstance(each.record, records.Quarantined):  # the gaps are no losses of the fork
                found[place] = records.Entry(each.number, records.Handled(()), b"")
        own: list[tuple[records.Record, Data]] = [(handled, b"")] if handled.numbers else []
        for record, payload in [*own, *_changed_results(self._source, shared, results)]:
            found.append(records.Entry(found[-1].number + 1, record, bytes(payload)))
        return found

    def _begins(self, calls: Iterable[projection.RecordedCall], now: float) -> records.Branched:
        """Return the beginning, with a new key and child run for each call to be made again."""
        again = {}
        for each in calls:
            call = each.call
            child = self._child(call.child) if call.child else ""
            key = key_of(self._id, call) if call.effect else ""
            if (key, child) != (call.key, call.child):
                again[str(call.number)] = key, child
        command, cwd, _ = how_started(self._store, self._seal, self._facts) or ((), "", "")
        who = this_person()
        return records.Branched(self._facts.run_id, again, now, who, command, cwd, self._effects)

    def _child(self, child: str) -> str:
        """Fork a child run that has not answered yet; return the new id, empty if not begun."""
        if facts_of(self._store, self._seal, child) is None:
            return ""  # killed before it began
        whole, above = ForkedRun(self._store, self._seal, child), self._facts.run_id
        name = f"{self._id}{child[len(above) :]}"
        if not child.startswith(f"{above}/") or len(name) > 160:
            name = f"{self._id}/{random_id(whole.facts.label)}"
        end = whole.entries[-1].number
        loaded = next(whole.checkpoints(end), None)
        made = _NewRun(whole, name, end, loaded, self._effects, parent=self._id)
        if self._effects:
            made.share({})
        else:
            made.copy({}, {})
        return name

    # -- the objects beside them -----------------------------------------------------------------

    def _checkpoint(
        self, at: Position, payload: bytes, changed: list[list[Any]]
    ) -> dict[str, Data]:
        """Return the only checkpoint, with changed variables, and its chunks."""
        if self._loaded is None:
            return {}
        state = self._loaded.state._replace(
            journal=at.kept(),
            changed=changed,
            before=None if self._loaded.state.before is None else "",
            said=(),  # the streams of the new run begin with what it says itself
        )
        return sealed(self._seal, self._id, self._loaded, state, payload)

    def _with_changes(
        self, variables: Mapping[str, Any], known: Collection[str]
    ) -> tuple[bytes, list[list[Any]]]:
        """Return the pickled variables of the checkpoint, followed by the changed values.

        Args:
            known: the names of the variables that the checkpoint has.
        """
        if self._loaded is None:
            return b"", []
        refuse_secrets(self._facts, variables)
        before, state = self._loaded.payload, self._loaded.state
        changed = list(state.changed)
        refuse_unknown(self._facts, state, known, variables)
        for name, value in variables.items():
            data, form = _codec.encode(value, f"the new value of {name!r}")
            before += bytes(data)
            changed.append([name, form, len(data)])
        return before, changed

    def _beside_calls(self, shared: list[records.Entry]) -> dict[str, Data]:
        """Return what is recorded beside shared calls: versions, arguments, frames."""
        run_id, put = self._facts.run_id, self._versions()
        vault = Vault(self._store, self._seal, run_id)
        calls = {each.step for each in shared if each.call}
        for name, call in names_beside(self._store, run_id).items():
            opened = vault.open(name) if call in calls else None
            if opened is None:  # of a later call; or damaged, which verify reports
                continue
            if max(opened.header.get("records", ()), default=0) > shared[-1].number:
                continue  # a later attempt has made the call again
            put[name], _ = self._seal.close(named(name, self._id), opened.header, opened.payload)
        return put

    def _versions(self) -> dict[str, Data]:
        """Return the recorded versions of steps."""
        found = recorded_versions(self._store, self._seal, self._facts.run_id)
        return {e.key: self._seal.close(named(e.key, self._id), [*e])[0] for e in found}


def share(
    source: ForkedRun, run_id: str, cut: int, loaded: Loaded | None, variables: Any, effects: str
) -> None:
    """Write a branch: a run that shares the records up to ``cut``; see :class:`_NewRun`."""
    _NewRun(source, run_id, cut, loaded, effects).share(variables)


class _Shared(NamedTuple):
    """The common ground of the branches of a run at one point.

    Args:
        at: the position behind them, without the amounts that the run has spent.
        checkpoint: the position of the checkpoint in them.
        variables: the names of the variables that the checkpoint has.
        calls: the calls that each branch may make again.
        handled: which failures the run handled later.
        begun: when the branches begin, in seconds since 1970.
        summary: of the records; ``None`` if it is not worth keeping.
    """

    at: Position
    checkpoint: Position
    variables: Collection[str]
    calls: Sequence[projection.RecordedCall]
    handled: records.Handled
    begun: float
    summary: Summary | None


def _shared_up_to(source: ForkedRun, cut: int, loaded: Loaded | None) -> _Shared:
    """Return the records of a run up to a number, for branches.

    Raises:
        CorruptStoreError: the last of the records is gone or damaged.
    """
    place, facts = (source.store, source.seal, source.facts.run_id), source.facts
    entries = [each for each in source.entries if each.number <= cut]
    begins, taken = records.Branched(facts.run_id, {}, time.time()), list[tuple[Any, Position]]()
    sums = of_checkpoint = records.NO_SUMS
    for each in entries:
        entry = records.shared_entry(each, begins)
        sums = records.sums_after(sums, entry.record)
        taken.append((entry, Position(each.number, None, 0, sums)))
        if loaded is not None and each.number <= loaded.state.journal[0]:
            of_checkpoint = sums
    checkpoint = loaded.state.start._replace(sums=of_checkpoint) if loaded else Position()
    variables = look_into(loaded) if loaded is not None else ()
    for number, data, name in rows_of(*place, cut - 1):
        if number == cut:
            opened = source.seal.open(name, data)
            effects = opened.effects + isinstance(entries[-1].record, records.ANNOUNCES)
            at = Position(cut, opened.link, effects, sums)
            summary = summary_of([*taken[:-1], (taken[-1][0], at)])
            handled, calls = _open_calls(source, entries, begins.at)
            names = [*variables]
            return _Shared(at, checkpoint, names, calls, handled, begins.at, summary)
        break
    raise errors.CorruptStoreError(
        f"record {cut} of run {facts.run_id!r} is gone, and a branch would begin behind it",
        run_id=facts.run_id,
    )


@contextmanager
def _shareable(source: ForkedRun, at: Position) -> Iterator[None]:
    """Hold the lease of a run, so that nobody prunes or deletes it before the branch is written.

    Raises:
        RunBusyError: the run is being executed.
        CorruptStoreError: it is no longer the run that was read.
    """
    store, run_id = source.store, source.facts.run_id
    with Lease(store, run_id).acquire() as lease:
        if read_on(store, source.seal, run_id, at) is None:
            raise errors.CorruptStoreError(
                f"run {run_id!r} was deleted or repaired meanwhile: branch it again", run_id=run_id
            )
        if store.get(run_id, SHARED) is None:
            store.write(run_id, lease.epoch, Batch(put={SHARED: b"by branches"}))
        yield


def _open_calls(
    source: ForkedRun, shared: list[records.Entry], now: float
) -> tuple[records.Handled, list[projection.RecordedCall]]:
    """Return which failures the source handled later, and the calls that a fork may make again."""
    made = {each.step for each in shared if each.call}
    later = projection.handled_in(source.entries[len(shared) :])
    handled = records.Handled(tuple(sorted(later & made)), now)
    known = projection.Calls([*shared, records.Entry(source.entries[-1].number + 1, handled, b"")])
    return handled, [each for each in known if not (each.answers or each.in_doubt)]


def _changed_results(
    source: ForkedRun, shared: list[records.Entry], results: Mapping[int, Any]
) -> Iterator[tuple[records.Record, Data]]:
    codec = Codec(source.facts.codec)
    for number, value in results.items():
        last: records.Outcome | None = None
        call: records.Call | None = None
        for entry in shared:
            ended = entry.outcome
            if ended is not None and number in ended.inner:
                raise source.no_step(
                    number, f"was called inside {ended.call.name}, whose result answers: change it"
                )
            if entry.call is not None and entry.call.number == number:
                call, last = entry.call, ended
        if call is None:
            raise source.no_step(number, "is not among the records that are shared")
        record, payload = outcome(
            codec,
            call,
            "completed",
            value,
            attempts=last.attempts if last is not None else 1,
            inner=last.inner if last is not None else (),
        )
        yield records.uncounted(record), payload
