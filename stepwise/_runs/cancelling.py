"""Asking for the end of a run, from any process."""

from __future__ import annotations

import time

from stepwise._execution.active_run import current_scope, live_runs
from stepwise._journal.bell import Bell
from stepwise._journal.inbox import Inbox, this_person
from stepwise._journal.journal import Journal, Position, facts_of
from stepwise._journal.lease import Lease
from stepwise._journal.records import Cancelling, RunFacts
from stepwise._journal.run_facts import asked_by
from stepwise._journal.seal import Seal
from stepwise._runs.sending import deliver, refuse_ended
from stepwise._runtime.messages import shell_word
from stepwise.errors import ConfigurationError, RunBusyError, RunNotFoundError, RunOwnedError
from stepwise.stores import Store

__all__ = ["cancel"]


def cancel(store: Store, seal: Seal, run_id: str, reason: str) -> None:
    """Ask for the end of a run; see :meth:`stepwise.Run.cancel`.

    Its owner, if there is one, finds the request in the inbox.  Otherwise it is recorded now, so
    that listings show it, and whoever takes the run up next unwinds it.
    """
    facts = _facts(store, seal, run_id)
    if facts.cancelling:
        return
    lease = Lease(store, run_id)
    try:
        lease.acquire(child=current_scope() is not None)
    except (RunBusyError, RunOwnedError):
        if not _is_asked(store, seal, facts):
            deliver(store, seal, facts, "cancel", note=reason)
        for each in list(live_runs):  # one that cancels itself executes nothing more
            if each.run_id == run_id and each.journal.store is store:
                each.steering.look_soon()
        return
    try:
        facts = _facts(store, seal, run_id)  # it may have ended a moment ago
        if not facts.cancelling:
            _record(store, seal, lease, facts, reason)
    finally:
        lease.release()
    Bell(store, seal).ring(run_id)


def _facts(store: Store, seal: Seal, run_id: str) -> RunFacts:
    """Return the facts of a run that can be cancelled.

    Raises:
        RunNotFoundError, RunEndedError, ConfigurationError: there is none, or it cannot.
    """
    facts = facts_of(store, seal, run_id)
    if facts is None:
        raise RunNotFoundError(f"run {run_id!r} is gone from {store.url}", run_id=run_id)
    refuse_ended(facts)
    if facts.parent:
        raise ConfigurationError(
            f"run {run_id!r} is a child run of {facts.parent!r}, and ends with that one: "
            f"stepwise cancel {shell_word(facts.parent)}"
        )
    return facts


def _is_asked(store: Store, seal: Seal, facts: RunFacts) -> bool:
    """Return whether a request that the run's owner has not taken lies in the inbox."""
    inbox = Inbox(store, seal, facts.run_id)
    inbox.look()
    new = (each for each in inbox.messages if each.number > facts.cancels)
    return any(each.kind == "cancel" for each in new)


def _record(store: Store, seal: Seal, lease: Lease, facts: RunFacts, reason: str) -> None:
    record = Cancelling(this_person(), reason, 0, time.time())
    journal = Journal(store, seal, facts.run_id, lease.epoch, fsync=True)
    journal.load(Position(facts.pruned, None))
    journal.append(
        (record, b""), head=facts._replace(cancelling=asked_by(record), updated_at=record.at)
    )
