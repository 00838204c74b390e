"""Doubt: the answers to "did it happen?", and what is said while nobody knows.

Imports: matching, records.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from stepwise import _config
from stepwise._identity import compensation_key
from stepwise._journal import Journal
from stepwise._matching import Match
from stepwise._recorded import Recorded
from stepwise._records import Call
from stepwise.errors import StepInDoubtError

if TYPE_CHECKING:
    from stepwise._run import ActiveRun

__all__ = [
    "DidNotHappen",
    "InDoubt",
    "InDoubtCall",
    "Inconclusive",
    "Landed",
    "changed_text",
    "compensation_in_doubt",
    "in_doubt",
    "may_be_another",
]


@dataclass(frozen=True)
class Landed:
    """The answer to "did it happen?": yes, and it returned ``value``."""

    value: Any = None


class DidNotHappen:
    """The answer to "did it happen?": no; it may run (again)."""


class Inconclusive:
    """The answer to "did it happen?": that cannot be told."""


@dataclass(frozen=True)
class InDoubtCall:
    """What a ``reconcile`` function gets: a side effect that was started and never finished.

    Args:
        name: of the tool.
        arguments: by parameter name, as they are passed now.
        idempotency_key: that the recorded attempt was given.
        started_at: seconds since 1970.
        error: what it raised, if it is known to have raised.
    """

    name: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    started_at: float
    error: BaseException | None


for _class in (Landed, DidNotHappen, Inconclusive, InDoubtCall):
    _class.__module__ = "stepwise"  # tracebacks and pickles show the public name

InDoubt = Union[Literal["raise", "retry", "skip"], Callable[[InDoubtCall], Any]]


def in_doubt(active: ActiveRun, recorded: Recorded, why: str = "") -> StepInDoubtError:
    """The error for a call whose side effect was started and never finished.

    Args:
        why: what is known instead, if something is.
    """
    call = recorded.call
    outcome = recorded.outcome
    if why:
        what = why
    elif outcome is None:
        what = f"{call.name} was started and never finished: whether it happened is not known"
    elif outcome.status == "cancelled":
        what = f"{call.name} was cancelled in its course: whether it happened is not known"
    else:
        what = f"{call.name} raised {outcome.preview}: that does not prove that nothing happened"
    lines = [
        f"{what}.",
        *_facts(active, call),
        "Look outside whether it happened, then settle it and run the program again:",
        *_commands(active, call),
    ]
    return StepInDoubtError(
        "\n".join(lines),
        run_id=active.run_id,
        step=call.number,
        name=call.name,
        arguments=call.arguments,
        idempotency_key=call.key,
    )


def compensation_in_doubt(journal: Journal, call: Call) -> StepInDoubtError:
    """The error for a call whose undoing was started and never finished."""
    option = _store_option(journal)
    command = f"  stepwise resolve {shlex.quote(journal.run_id)} {call.number}"
    return StepInDoubtError(
        f"the compensation of {call.name} was started and never finished: whether it is undone is "
        f"not known.\n"
        f"  run       {journal.run_id}\n"
        f"  step      {call.number}  {call.name}({call.arguments})\n"
        f"  key       {compensation_key(call.key)}\n"
        "Look outside whether it is undone, then settle it and run the program again:\n"
        f"{command} --landed null{option}       (it is undone)\n"
        f"{command} --did-not-happen{option}    (it is not)",
        run_id=journal.run_id,
        step=call.number,
        name=f"the compensation of {call.name}",
        arguments=call.arguments,
        idempotency_key=compensation_key(call.key),
    )


def may_be_another(active: ActiveRun, call: Call, match: Match) -> StepInDoubtError:
    """The error for a call that could be a recorded side effect with other arguments."""
    other = match.recorded[0].call
    same = other.name == call.name
    lines = [
        (
            f"{call.name} is called with arguments that are not recorded, while a recorded "
            f"{'call of it' if same else 'side effect of the same statement'} was not met again: "
            "running it could repeat that side effect in another form."
        ),
        f"  called    {call.name}({call.arguments})",
        *_facts(active, other, word="recorded"),
    ]
    store = _store_option(active.journal)
    if match.recorded[0].in_doubt:
        lines += ["Settle the recorded one and run the program again:", *_commands(active, other)]
    lines += [
        "If both are the same act, tell by what: @tool(key=...) names the arguments that count,",
        "ignore=(...) those that do not (a time, a request id). If the recorded one is obsolete:",
        f"  stepwise forget {shlex.quote(active.run_id)} {other.number}{store}",
    ]
    return StepInDoubtError(
        "\n".join(lines),
        run_id=active.run_id,
        step=other.number,
        name=call.name,
        arguments=call.arguments,
        idempotency_key=other.key,
    )


def changed_text(call: Call, recorded: Recorded) -> str:
    """The warning for a side effect that was answered although its arguments changed."""
    return (
        f"{call.name} at {call.site} was answered from the journal although its arguments changed; "
        f"recorded: ({recorded.call.arguments}), now: ({call.arguments}). If they never tell two "
        "calls apart, say so with ignore= or key="
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
    command = f"  stepwise resolve {shlex.quote(active.run_id)} {call.number}"
    store = _store_option(active.journal)
    return [
        f"{command} --landed '<its result as JSON>'{store}",
        f"{command} --did-not-happen{store}",
    ]


def _store_option(journal: Journal) -> str:
    """What the command line needs to find the same store; empty for the default one."""
    url = journal.store.url
    return "" if url == _config.store() else f" --store {shlex.quote(url)}"
