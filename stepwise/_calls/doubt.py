"""Doubt: the answers to "did it happen?", and the errors that ask a person for an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from stepwise._identity.identity import compensation_key, shown_parts
from stepwise._journal.journal import Journal
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, Stopped
from stepwise._journal.run_facts import Stop
from stepwise._matching.pool import Match, differences, differing, ruling_on
from stepwise._runtime import settings
from stepwise._runtime.facts import public
from stepwise._runtime.messages import count, settling_commands, shell_word
from stepwise._runtime.settings import public_url
from stepwise.errors import RunStopped, StepInDoubtError
from stepwise.stores import open_store

if TYPE_CHECKING:
    from stepwise._execution.active_run import ActiveRun


_MOST = 5  # recorded calls that are listed
_EXCLUDE = (
    "If the differing arguments never distinguish two calls (a time, a request id), exclude",
    "them in the code: @tool(ignore=(...)) names them, key=... names the other arguments.",
)


@public
@dataclass(frozen=True)
class Landed:
    """The answer of an ``in_doubt=`` function: yes, it happened, and returned ``value``."""

    value: Any = None


@public
class DidNotHappen:
    """The answer of an ``in_doubt=`` function: no, it did not happen; the call runs."""


@public
class Inconclusive:
    """The answer of an ``in_doubt=`` function: nobody can tell; the run stops and asks a person."""


@public
@dataclass(frozen=True)
class InDoubtCall:
    """The argument of an ``in_doubt=`` function: a side effect started and never finished.

    Args:
        name: the name of the tool.
        arguments: the arguments of the current call, by parameter name.
        idempotency_key: the key that the recorded attempt was given.
        started_at: seconds since 1970.
        error: the exception of the recorded attempt, or ``None`` if none is known.
    """

    name: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    started_at: float
    error: BaseException | None


@public
@dataclass(frozen=True)
class CompletedCall:
    """The argument of a ``compensate=`` function: a completed side effect that is to be undone.

    Args:
        name: the name of the tool.
        arguments: the passed arguments by parameter name, without ``self`` and defaults.
        result: the return value of the call.
        idempotency_key: the key that the call was given.
        compensation_key: the idempotency key of the undoing; every retry gets the same key.
        finished_at: seconds since 1970.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any
    idempotency_key: str
    compensation_key: str
    finished_at: float


InDoubt = Union[Literal["raise", "retry", "skip"], Callable[[InDoubtCall], Any]]


def in_doubt(active: ActiveRun, recorded: RecordedCall, why: str = "") -> StepInDoubtError:
    """Return the error for a call whose side effect was started and never finished.

    Args:
        why: the first sentence of the message, instead of the usual one.
    """
    call = recorded.call
    outcome = recorded.outcome
    if why:
        what = why
    elif outcome is None:
        what = f"{call.name} was started and never finished: it may or may not have happened"
    elif outcome.status == "cancelled":
        what = f"{call.name} was cancelled in progress: it may or may not have happened"
    else:
        what = f"{call.name} raised {outcome.preview}: that does not prove that nothing happened"
    lines = [
        f"{what}.",
        *_facts(active, call),
        "Find out whether it happened, then settle it and run the program again:",
        *_commands(active, call),
    ]
    return _error(active.run_id, call, lines)


def _error(run_id: str, call: Call, lines: list[str]) -> StepInDoubtError:
    return StepInDoubtError(
        "\n".join(lines),
        run_id=run_id,
        step=call.number,
        name=call.name,
        arguments=call.arguments,
        idempotency_key=call.key,
    )


def compensation_in_doubt(journal: Journal, call: Call) -> StepInDoubtError:
    """Return the error for a call whose undoing was started and never finished."""
    option, key = _store_option(journal), compensation_key(call.key)
    landed, not_happened = settling_commands(journal.run_id, call.number, "null")
    what = f"the compensation of {call.name}"
    lines = [
        f"{what} was started and never finished: the call may or may not be undone.",
        f"  run       {journal.run_id}",
        f"  step      {call.number}  {call.name}({call.arguments})",
        f"  key       {key}",
        "Find out whether it is undone, then settle it and run the program again:",
        f"  {landed}{option}       (it is undone)",
        f"  {not_happened}{option}    (it is not)",
    ]
    return _error(journal.run_id, call._replace(name=what, key=key), lines)


def stopped_at(active: ActiveRun, call: Call, match: Match) -> RunStopped | None:
    """Stop the run at a call that could be a recorded side effect, and record which calls wait.

    Returns:
        the error for this call and all later ones, or an earlier error that stopped the run;
        ``None`` if another thread has taken the record that the call waited for.
    """
    with active.lock:
        if active.stopped is not None:
            return active.stopped
        if match.recorded and not any(
            each is active.pool.get(each.call.number) for each in match.recorded
        ):
            return None
        stops = _record_stops(active, call, match)
        return active.stop(_may_be_another(active, call, match, stops))


def _record_stops(active: ActiveRun, call: Call, match: Match) -> list[Stop]:
    """Record this call and the calls that wait beside it, so that a person can resolve them."""
    others = [(each, its) for each, its in active.flows.blocked() if each is not call]
    stopped, now = [], time.time()
    waiting: list[tuple[Call, Match]] = [(call, match), *others]
    for each, its in sorted(waiting, key=lambda each: each[0].ordinal):
        recorded = [r for r in its.recorded if r is active.pool.get(r.call.number)]
        said = ruling_on(each, active.pool.rulings)
        steps = [r.call.number for r in recorded] or (said[1].steps if said is not None else ())
        if steps:
            records = (*(r.origin.number for r in recorded),)
            stopped.append(Stopped(each, (*steps,), records, now))
    numbers = active.write(*((each, b"") for each in stopped))
    return [Stop(number, *each) for number, each in zip(numbers, stopped, strict=True)]


def _may_be_another(
    active: ActiveRun, call: Call, match: Match, stops: list[Stop]
) -> StepInDoubtError:
    """Return the error for a call that could be a recorded side effect with other arguments."""
    stop = next(each for each in stops if each.call is call)
    run_id, store = active.run_id, _store_option(active.journal)
    others = [each.call for each in match.recorded]
    lines = [
        _why_it_stops(call, stop, match),
        f"  run       {run_id}",
        f"  called    {call.name}({call.arguments}){f' at {call.site}' if call.site else ''}",
    ]
    for recorded in match.recorded[:_MOST]:
        lines += _facts(active, recorded.call, word="recorded")[1:]
        differs = differences(recorded.call, call, active.subjects.state)
        if differs and recorded.call.name == call.name:
            lines.append(f"  differs   in {shown_parts(differs)}")
        if recorded.in_doubt:
            lines += ["Find out whether the recorded call happened, and settle it first:"]
            lines += _commands(active, recorded.call)
    lines += [
        "Say which act it is, and run the program again:",
        *(f"  {each}    ({why})" for each, why in ruling_commands(run_id, stop, stops, store)),
    ]
    gone = [other for other in others if active.pool.is_gone(other, call)][:_MOST]
    if gone:
        forget = f"  stepwise forget {shell_word(run_id)}"
        lines += [
            f"If {gone[0].name} was removed and no call takes its place, give up its record:",
            *(f"{forget} {each.number}{store}" for each in gone),
        ]
    if len(gone) < len(others) or not others:
        lines += _EXCLUDE
    if len(stops) > 1:
        lines.append(
            f"waiting beside it: {count(len(stops) - 1, 'call')}; stepwise show "
            f"{shell_word(run_id)}{store}"
        )
    other = others[0] if others else call._replace(number=stop.steps[0])
    return _error(run_id, call._replace(number=other.number, key=other.key), lines)


def _why_it_stops(call: Call, stop: Stop, match: Match) -> str:
    others = [each.call for each in match.recorded]
    if not others:
        return f"{call.name} was resolved as step {stop.steps[0]}, which has answered another call."
    before = f"{call.name} is called with arguments that are not recorded, while a recorded"
    after = "was not called again: running it could repeat that side effect in another form."
    named = [other for other in others if other.name == call.name]
    if named and not any(differing(call, other) for other in named):
        return (
            f"An equal call of {call.name} is recorded, and nobody knows whether another object or "
            "function of that name made it: running this one could repeat that side effect."
        )
    if named:
        return f"{before} call of it {after}"
    if match.recorded[0].in_doubt and others[0].place == call.place != "":
        return f"{before} side effect of the same statement {after}"
    return (
        f"{call.name} is called and is not recorded. In its place {others[0].name} is recorded, "
        f"which the program no longer defines: if {call.name} is its new name, running it would "
        "repeat that side effect."
    )


def ruling_commands(
    run_id: str, stop: Stop, stops: list[Stop], store: str = ""
) -> list[tuple[str, str]]:
    """Return the commands that resolve a stopped call, each with its meaning.

    Args:
        stops: all stops of the run.  If several wait for one recorded call, the command names the
            stop.
    """
    commands = []
    for word, why, steps in (
        ("--same", "one act: the recorded outcome answers this call", stop.steps[:_MOST]),
        ("--another", "two acts: the record stays, this call runs, once", stop.steps[:1]),
    ):
        for step in steps:
            shared = sum(step in each.steps for each in stops) > 1
            which = f" --stop {stop.number}" if shared else ""
            command = f"stepwise resolve {shell_word(run_id)} {step} {word}{which}{store}"
            commands.append((command, why))
    return commands


def waiting_text(call: Call, match: Match) -> str:
    """Return the message about a call that waits for other tasks and threads."""
    others = ", ".join(
        f"step {each.call.number} {each.call.name}({each.call.arguments})"
        for each in match.recorded[:_MOST]
    )
    return (
        f"{call.name}({call.arguments}) at {call.site or '?'} waits: it could be the recorded "
        f"{others or 'call that it was resolved as'}, which another task or thread may yet take"
    )


def changed_text(call: Call, recorded: RecordedCall) -> str:
    """Return the warning for a side effect that was answered although its arguments changed."""
    if recorded.call.name != call.name:
        return (
            f"{call.name} at {call.site} was answered by the recorded "
            f"{recorded.call.name}({recorded.call.arguments}), as somebody resolved; now: "
            f"({call.arguments})"
        )
    return (
        f"{call.name} at {call.site} was answered from the journal although its arguments changed; "
        f"recorded: ({recorded.call.arguments}), now: ({call.arguments}). If they never "
        "distinguish two calls, exclude them with ignore= or key="
    )


def _facts(active: ActiveRun, call: Call, word: str = "step") -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(call.at))
    return [
        f"  run       {active.run_id}",
        f"  {word:<9} {call.number}  {call.name}({call.arguments})",
        f"  started   {when}{f' at {call.site}' if call.site else ''}",
        f"  key       {call.key}",
    ]


def _commands(active: ActiveRun, call: Call) -> list[str]:
    commands = settling_commands(active.run_id, call.number, "'<its result as JSON>'")
    store = _store_option(active.journal)
    return [f"  {each}{store}" for each in commands]


def _store_option(journal: Journal) -> str:
    """Return the ``--store`` option that commands need for a journal; "" for the default."""
    url, default = journal.store.url, settings.store_of_commands()
    if not journal.store.persistent or url in (public_url(default), open_store(default).url):
        return ""
    return f" --store {shell_word(url)}"
