"""The course of a run, read from its records: facts for listings, questions, attempts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepwise._journal import records
from stepwise._journal.projection import CallKey, Projection, call_key
from stepwise._runtime.facts import NamedTuple

# -- run facts ------------------------------------------------------------------------------------


_AS_STARTED = [name for name in records.RunFacts._fields if name in records.Started._fields]


def facts_at_start(run_id: str, started: records.Started) -> records.RunFacts:
    """Return the facts of a run that begins: its record has most of them, under their names."""
    return records.RunFacts(
        run_id=run_id,
        label=started.workflow.rpartition(":")[2],
        status="running",
        forked_by=started.by,
        created_at=started.at,
        updated_at=started.at,
        **{name: getattr(started, name) for name in _AS_STARTED},
    )


def asked_by(record: records.Cancelling) -> str:
    """Return who asked for the end of a run, and why, in words."""
    return ": ".join(each for each in (record.by or "somebody", record.reason) if each)


def superseded(facts: records.RunFacts, record: records.Superseded) -> records.RunFacts:
    """Return the facts of a run once one of its branches goes on instead; nothing resumes it."""
    facts = facts._replace(superseded=record.branch, tally=None)
    if facts.status not in ("running", "suspended"):
        return facts
    why = f"its branch {record.branch} goes on instead"
    return facts._replace(status="interrupted", error=why, waits=(), updated_at=record.at)


class _Derived(Projection):
    """The facts of a run, updated record by record; ``None`` before the first record."""

    def __init__(self, run_id: str, facts: records.RunFacts | None = None) -> None:
        self._run_id = run_id
        self.facts: Any = facts

    def take(self, entry: records.Entry) -> None:
        if self.facts is not None or isinstance(entry.record, records.Started):
            super().take(entry)

    def _change(self, **changes: Any) -> None:
        self.facts = self.facts._replace(**changes)

    def on_started(self, entry: records.Entry, record: records.Started) -> None:
        self.facts = facts_at_start(self._run_id, record)

    def on_branched(self, entry: records.Entry, record: records.Branched) -> None:
        own = {"base": record.base, "effects": record.effects, "updated_at": record.at}
        self.facts = self.facts.unfinished(**own)

    def on_adopted(self, entry: records.Entry, record: records.Adopted) -> None:
        self._change(effects=records.ADOPTED)

    def on_superseded(self, entry: records.Entry, record: records.Superseded) -> None:
        self.facts = superseded(self.facts, record)

    def on_ended(self, entry: records.Entry, record: records.Ended) -> None:
        at = record.at
        self._change(status=record.status, end=entry.number, updated_at=at, cancelling="")

    def on_interrupted(self, entry: records.Entry, record: records.Interrupted) -> None:
        if record.decided:
            self._change(status="interrupted", error=record.why, updated_at=record.at)

    def on_suspended(self, entry: records.Entry, record: records.Suspended) -> None:
        waits, seen = (*(records.RunWait(*each) for each in record.waits),), record.seen
        self._change(status="suspended", waits=waits, seen=seen, updated_at=record.at)

    def on_cancelling(self, entry: records.Entry, record: records.Cancelling) -> None:
        self._change(cancelling=asked_by(record), updated_at=record.at)
        self._note_cancels(record.message)

    def _note_cancels(self, number: int) -> None:
        self._change(cancels=max(number, self.facts.cancels))

    def on_compensating(self, entry: records.Entry, record: records.Compensating) -> None:
        undone = self.facts.undone + (not self.facts.undoing)
        status, at = "cancelled" if self.facts.status == "cancelled" else "failed", record.at
        self._change(status=status, end=0, undoing=True, undone=undone, updated_at=at)

    def on_resumed(self, entry: records.Entry, record: records.Resumed) -> None:
        if self.facts.is_submitted:
            self._change(created_at=record.at)  # now it begins
        self._change(status="running", end=0, undoing=False, updated_at=record.at, waits=())
        self._note_cancels(record.seen)
        if record.trace:
            self._change(trace=record.trace)

    def on_forgotten(
        self, entry: records.Entry, record: records.Forgotten | records.Quarantined
    ) -> None:
        self.facts = self.facts.reopened(record.at)

    on_quarantined = on_forgotten

    def on_restored(self, entry: records.Entry, record: records.Restored) -> None:
        self._change(restored=True)


def derive_facts(
    run_id: str, entries: Iterable[records.Entry], facts: records.RunFacts | None = None
) -> records.RunFacts | None:
    """Derive a run's facts from its records; return ``None`` if the run's beginning is missing.

    Args:
        run_id: id of the run.
        entries: the records.
        facts: the facts before these records.
    """
    derived = _Derived(run_id, facts)
    for entry in entries:
        derived.take(entry)
    found: records.RunFacts | None = derived.facts
    return found


# -- questions ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """The last question of a call.

    Args:
        waiting: the record of the question.
        payload: the arguments of the call.
        answer: the answer to this question; ``None`` while there is none.
        before: the details of the previous question of the call, or of the call that it replaces;
            empty if there was none.
    """

    waiting: records.Waiting
    payload: bytes
    answer: records.Answered | None = None
    before: str = ""


class Questions(Projection):
    """The questions of a run.

    Attributes:
        asked: the last question of each call, by the call's number.
        open: the numbers of the calls that wait for an answer.
        earlier: the tickets of earlier questions of calls, before their last question.
        instead: for an open question whose call is now made with other arguments, the number of the
            call that asks instead.
    """

    def __init__(self, entries: Iterable[records.Entry] = ()) -> None:
        self.asked: dict[int, Asked] = {}
        self.earlier: set[str] = set()
        self.open: set[int] = set()
        self.instead: dict[int, int] = {}
        for entry in entries:
            self.take(entry)

    def on_waiting(self, entry: records.Entry, record: records.Waiting) -> None:
        number, instead_of = record.call.number, record.call.instead
        if instead_of in self.open:
            self.instead[instead_of] = number
        if record.kind != "approval":
            return
        self.instead.pop(number, None)
        self.open.discard(number)
        before, details = self.asked.get(number), ""
        if before is not None:
            details = before.before
            if before.waiting.ticket != record.ticket:
                self.earlier.add(before.waiting.ticket)
                details = before.waiting.details
        elif instead_of in self.asked:  # the call is made with other arguments now
            details = self.asked[instead_of].waiting.details
        if record.ticket:  # a fork knows its source's questions, and asks new ones
            self.asked[number] = Asked(record, entry.payload, before=details)
            self.open.add(number)

    def on_answered(self, entry: records.Entry, record: records.Answered) -> None:
        asked = self.asked.get(record.number)
        if asked is not None and asked.waiting.ticket == record.ticket:
            self.asked[record.number] = asked._replace(answer=record)
            self.open.discard(record.number)

    def on_intent(self, entry: records.Entry, record: records.Intent | records.Outcome) -> None:
        if record.call.instead in self.open:
            self.instead[record.call.instead] = record.call.number
        self.open.discard(record.call.number)

    on_outcome = on_intent

    def on_settled(self, entry: records.Entry, record: records.Settled) -> None:
        self.open.discard(record.number)

    def on_forgotten(self, entry: records.Entry, record: records.Forgotten) -> None:
        self.open.difference_update(record.numbers)

    def waited_for(self, facts: records.RunFacts) -> list[Asked]:
        """Return the open questions that a run waits for, in the order of their calls."""
        found = self.open - self.instead.keys() if facts.status not in records.OVER else set()
        if facts.status == "suspended":
            found = self.open & {each.number for each in facts.waits if each.kind == "approval"}
        return [self.asked[number] for number in sorted(found)]


# -- course ---------------------------------------------------------------------------------------


_RESUMES = 20  # number of resumes that are listed


class Stop(NamedTuple):
    """A call that was not made, since it could be a recorded side effect.

    Args:
        number: of the record of the stop.
        call: the call, with its arguments at that start.
        steps: numbers of the recorded calls that it could be.
        records: numbers of the records that hold the arguments of these calls.
        ruled: a person's decision since then; ``None`` if there is none.
    """

    number: int
    call: records.Call
    steps: tuple[int, ...]
    records: tuple[int, ...]
    at: float
    ruled: records.Ruled | None = None


def stops_in(entries: Iterable[records.Entry]) -> list[Stop]:
    """Return the stops that are not over, the last stop of each call."""
    found: dict[CallKey, Stop] = {}
    for entry in entries:
        record = entry.record
        if isinstance(record, records.Stopped):
            found.pop(call_key(record.call), None)
            found[call_key(record.call)] = Stop(entry.number, *record)
        elif isinstance(record, records.Ruled):
            if call_key(record.call) in found:
                found[call_key(record.call)] = found[call_key(record.call)]._replace(ruled=record)
        elif found and _is_over(max(each.at for each in found.values()), entry):
            found.clear()
    return list(found.values())


def _is_over(at: float, entry: records.Entry) -> bool:
    """Return whether a record shows that the run continued after it had stopped at that time."""
    if entry.call is not None:  # a call in flight at the stop began before
        return entry.call.at > at
    return isinstance(entry.record, records.Resumed)


# -- the run -------------------------------------------------------------------------------------


def own_seconds(record: records.Outcome, allowed: float) -> float:
    """Return how long the workflow's own call took, without its wait for a person.

    Args:
        record: the outcome; only that of a completed call counts, and of no mere wait.
        allowed: when the run took the person's yes to the call; 0 for a call that asked nobody.
    """
    call = record.call
    if record.status != "completed" or call.scope or call.is_wait:
        return 0.0
    return max(0.0, record.at - max(call.at, allowed))


class Course(Projection):
    """The attempts of a run: time, losses, answered steps.

    Args:
        born: when the run began, in seconds since 1970; records shared by a fork are older.
        forked: the run is a fork.
        started, command: numbers of the records that hold the workflow's definition, and the last
            start command of its program.
        resumes: the last few resumes: number of the record, when, and how.
        ends: how the attempt before each of these resumes had ended: ``died``, ``suspended``,
            ``interrupted`` (on purpose), ``stopped``, ``submitted``, or the status of its end.
        ended: how the last attempt ended; empty while it is open.
        resumed: how many times the run was resumed.
        at: when the last record was made.
        taken: seconds taken by the completed steps that the workflow called directly, without their
            waits for a person.
        allowed: for each uncompleted call that a person allowed, by number: when the run took the
            answer.
        saved: the part of these seconds that the last attempt need not spend again.
        lost: seconds from the last record of each attempt to the beginning of the next.
        resumed_from, executed, skipped: of the last attempt; see :class:`stepwise.Run`.
        effects: how many side effects were announced, by tool.
        stops: numbers of the records of stops, and of people's decisions about them, until the run
            continues.
        stopped: when the run stopped.
        paid, kept: money and tokens spent by completed calls, by unit; the part that the last
            attempt need not spend again.
        cached: what the cache saved, by unit.
        children: for each call of an uncompleted child run, by number: the child run, and the sums
            in outcomes of the call; see :class:`.records.Claims`.
        code: fingerprint of the workflow's code in the last attempt.
        open: the last attempt has not ended in good order: it is still running, or it died.
        deaths: how many attempts before the last one died in a row, with its code.
        stuck: how many of these died before any step had ended.
        other_deaths: both numbers for each other code, since versions may take turns.
        ended_by: why the last attempt ended in good order without an end of the run: ``SIGTERM``, a
            class of errors; empty if it did not.
    """

    def __init__(self, **facts: Any) -> None:
        self.born = 0.0
        self.forked = False
        self.started = 0
        self.command = 0
        self.resumes: list[list[Any]] = []
        self.ends: list[str] = []
        self.ended = ""
        self.resumed = 0
        self.at = 0.0
        self.taken = 0.0
        self.allowed: dict[str, float] = {}
        self.saved = 0.0
        self.lost = 0.0
        self.resumed_from: int | None = None
        self.executed = 0
        self.skipped = 0
        self.effects: dict[str, int] = {}
        self.stops: list[int] = []
        self.stopped = 0.0
        self.paid: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self.cached: dict[str, float] = {}
        self.children: dict[str, list[Any]] = {}
        self.code = ""
        self.open = False
        self.deaths = 0
        self.stuck = 0
        self.other_deaths: dict[str, list[int]] = {}
        self.ended_by = ""
        vars(self).update(facts)

    @property
    def begun(self) -> int:
        """Number of the record that began the last attempt; 0 for the first attempt."""
        return self.resumes[-1][0] if self.resumes else 0

    @property
    def resumptions(self) -> list[tuple[float, str, str]]:
        """The last few resumes: when, how, and how the attempt before had ended, if known."""
        return [(at, how, end) for (_, at, how), end in zip(self.resumes, self.ends, strict=True)]

    def on_outcome(self, entry: records.Entry, record: records.Outcome) -> None:
        if self.stops and _is_over(self.stopped, entry):
            self.stops = []
        call, at = record.call, record.at
        if record.status == "completed":
            allowed = self.allowed.pop(str(call.number), 0.0) if self.allowed else 0.0
            self.taken += own_seconds(record, allowed)
        if record.spent:
            self._note_spent(record)
        if not self.forked or at > self.born:  # the run's own record; this runs for every step
            self.executed += 1
            self.stuck = 0
            if record.cached:
                for unit in ("usd", "tokens", "seconds"):
                    self.cached[unit] = self.cached.get(unit, 0) + record.cached.get(unit, 0)
            for counts in self.other_deaths.values():
                counts[1] = 0
        if at > self.at:  # noqa: PLR1730 -- max() takes ten times as long
            self.at = at

    def _note_spent(self, record: records.Outcome) -> None:
        number, spent = str(record.call.number), record.spent
        if record.status == "completed":
            for unit in ("usd", "tokens"):
                if spent.get(unit):
                    self.paid[unit] = self.paid.get(unit, 0) + spent[unit]
            self.children.pop(number, None)
        elif number in self.children:
            child, said = self.children[number]
            self.children[number] = [child, records.plus(records.Sums(*said), spent)]

    def on_answered(self, entry: records.Entry, record: records.Answered) -> None:
        if record.approved:
            self.allowed[str(record.number)] = record.at
        self.at = max(self.at, record.at)

    def on_intent(self, entry: records.Entry, record: records.Intent) -> None:
        if self.stops and _is_over(self.stopped, entry):
            self.stops = []
        call = record.call
        if call.child:
            self.children.setdefault(str(call.number), [call.child, records.NO_SUMS])
        else:
            self.effects[call.name] = self.effects.get(call.name, 0) + 1
        self.at = max(self.at, call.at)

    def on_started(self, entry: records.Entry, record: records.Started) -> None:
        self._note_command(entry, record)
        self.started, self.forked, self.born = entry.number, bool(record.forked_from), record.at
        self.open, self.code = not self.forked, record.code
        self.at = max(self.at, record.at)

    def on_resumed(self, entry: records.Entry, record: records.Resumed) -> None:
        self._note_command(entry, record)
        self.stops, self.ended_by = [], ""
        if self._is_own(record.at):
            if self.ended != "suspended":
                self.lost += max(0.0, record.at - max(self.at, self.born))
            end = self.ended or ("died" if self.open else "")
            self.ends, self.ended = [*self.ends, end][-_RESUMES:], ""
            self.resumed += 1
            self.resumes = [*self.resumes, [entry.number, record.at, record.how]][-_RESUMES:]
            self.saved, self.kept = self.taken, dict(self.paid)
            self.resumed_from, self.executed, self.skipped = record.step, 0, 0
            self.deaths, self.stuck = self.deaths + self.open, self.stuck + self.open
            if record.code != self.code:
                self.other_deaths[self.code] = [self.deaths, self.stuck]
                self.deaths, self.stuck = self.other_deaths.pop(record.code, [0, 0])
            self.open, self.code = True, record.code
        self.at = max(self.at, record.at)

    def on_stopped(self, entry: records.Entry, record: records.Stopped) -> None:
        self.stopped = max(self.stopped, record.at)
        self.stops = [*self.stops, entry.number]
        self.at = max(self.at, record.at)

    def on_ruled(self, entry: records.Entry, record: records.Ruled) -> None:
        self.stops = [*self.stops, entry.number]
        self.on_settled(entry, record)

    def on_ended(self, entry: records.Entry, record: records.Ended) -> None:
        if self._is_own(record.at):
            self.resumed_from, self.executed = record.resumed_from, record.executed
            self.skipped = record.skipped
        self._in_good_order(record.at, record.status)

    def on_suspended(self, entry: records.Entry, record: records.Suspended) -> None:
        self._in_good_order(record.at, "suspended")

    def _in_good_order(self, at: float, ended: str) -> None:
        self.open = False
        self._forget_deaths()
        self.at, self.ended = max(self.at, at), ended

    def on_interrupted(self, entry: records.Entry, record: records.Interrupted) -> None:
        """Leave ``at`` as it is: the calls in flight count as lost from the record before."""
        self.open, self.ended_by = False, record.why
        self.ended = "interrupted" if record.decided else "stopped"
        if record.why == records.SUBMITTED:
            self.ended = records.SUBMITTED

    def on_settled(self, entry: records.Entry, record: Any) -> None:
        """Reset the deaths: a person acted on the run, so it is worth another try."""
        self._forget_deaths()
        self.ended = "died" if self.open else self.ended
        self.open = False
        self.at = max(self.at, record.at)

    def deaths_with(self, code: str) -> tuple[int, int]:
        """Return the deaths with a code, the last attempt's included, and the stuck ones."""
        if code in ("", self.code):
            return self.deaths + self.open, self.stuck + self.open
        deaths, stuck = self.other_deaths.get(code, (0, 0))
        return deaths, stuck

    def _forget_deaths(self) -> None:
        self.deaths = self.stuck = 0
        self.other_deaths = {}

    on_forgotten = on_compensated = on_quarantined = on_cancelling = on_settled

    def on_other(self, entry: records.Entry, record: Any) -> None:
        self.at = max(self.at, record.at)

    def _note_command(
        self, entry: records.Entry, record: records.Started | records.Resumed
    ) -> None:
        if record.command:
            self.command = entry.number

    def _is_own(self, at: float) -> bool:
        """Return whether a record from that time is the run's own, not shared by a fork."""
        return not self.forked or at > self.born
