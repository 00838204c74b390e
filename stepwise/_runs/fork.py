"""A fork: a new run that resumes from a point of another run, with other variables or results.

The records up to that point are copied, sealed anew for the new run, so that nothing done is done
again and deleting either run leaves the other whole; what comes after is not.  Side effects that
the fork makes itself get idempotency keys of their own; what it shares is the other run's to undo.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from stepwise._calls.history import program_of
from stepwise._checkpoints.checkpoints import Loaded, sealed
from stepwise._execution.outcomes import outcome
from stepwise._execution.summary import sealed_summary
from stepwise._execution.viewer import look_into
from stepwise._identity.identity import random_id
from stepwise._journal.counters import key_of
from stepwise._journal.journal import Journal, Position, facts_of
from stepwise._journal.lease import Lease
from stepwise._journal.records import (
    Call,
    Entry,
    Handled,
    Intent,
    Outcome,
    Quarantined,
    Record,
    RunFacts,
    Started,
    call_of,
)
from stepwise._journal.seal import Seal
from stepwise._matching.pool import Pool
from stepwise._matching.recorded_call import Recorded
from stepwise._runs.fork_point import Change, ForkedRun, point_of
from stepwise._values import codec as _codec
from stepwise._values.buffers import Data
from stepwise._values.codec import Codec
from stepwise.errors import (
    ConfigurationError,
    RunConflictError,
)
from stepwise.stores import Store

__all__ = ["Change", "fork"]


def fork(store: Store, seal: Seal, run_id: str, change: Change, new_id: str | None) -> str:
    """Write a run that resumes from a point of another one; gives its id."""
    source = ForkedRun(store, seal, run_id)
    new_id = new_id or random_id(source.facts.label)
    taken = facts_of(store, seal, new_id)
    if taken is not None:
        recorded = f"{taken.label}({taken.arguments})"
        raise RunConflictError(
            f"run id {new_id!r} is taken by {recorded}; give the fork another one",
            run_id=new_id,
            recorded=recorded,
            given=f"a fork of {run_id}",
        )
    results = {source.number_of(step): value for step, value in change.results.items()}
    cut, loaded = point_of(source, change, results)
    _write(source, new_id, cut, loaded, change.variables, results)
    return new_id


# -- writing it ----------------------------------------------------------------------------------


def _write(
    source: ForkedRun,
    new_id: str,
    cut: int,
    loaded: Loaded | None,
    variables: Mapping[str, Any],
    results: Mapping[int, Any],
    parent: str = "",
) -> None:
    facts, now = source.facts, time.time()
    shared = [each for each in source.entries if each.number <= cut]
    payload, changed = _with_changes(facts, loaded, variables)
    items, numbers = _items(source, new_id, shared, results, now)
    head = facts._replace(
        run_id=new_id,
        parent=parent,
        forked_from=facts.run_id,
        status=facts.status if parent else "running",
        end=numbers.get(facts.end, 0) if parent else 0,
        error="",
        undoing=False,
        pruned=1 if facts.pruned else 0,  # the record that says how it began is made anew
        created_at=now,
        updated_at=now,
    )

    def beside(positions: list[Position]) -> dict[str, Data]:
        entries = [Entry(n, record, b"") for n, (record, _) in enumerate(items, 1)]
        objects = sealed_summary(source.seal, new_id, zip(entries, positions[1:], strict=True))
        if loaded is None:
            return objects
        state = loaded.state
        last = max((new for old, new in numbers.items() if old <= state.journal[0]), default=1)
        at = positions[last]
        state = state._replace(
            journal=[at.last, (at.link or b"").hex(), at.effects],
            unused=[
                [numbers[origin], numbers[end], *flags] for origin, end, *flags in state.unused
            ],
            changed=changed,
            before=None if state.before is None else "",  # it is the only one
        )
        return {**objects, **sealed(source.seal, new_id, loaded, state, numbers, payload)}

    lease = Lease(source.store, new_id).acquire()
    try:
        journal = Journal(source.store, source.seal, new_id, lease.epoch, fsync=True)
        journal.begin_with(items, beside, head)
    finally:
        lease.release()


def _with_changes(
    facts: RunFacts, loaded: Loaded | None, variables: Mapping[str, Any]
) -> tuple[bytes, list[list[Any]]]:
    """The variables of a checkpoint, and behind them those that are to have other values."""
    if loaded is None:
        return b"", []
    before = loaded.payload
    changed = list(loaded.state.changed)
    if variables:
        known = look_into(loaded)
        unknown = [name for name in variables if name not in known]
        if unknown:
            raise ConfigurationError(
                f"run {facts.run_id!r} has no variable {unknown[0]!r} at {loaded.state.where}; it "
                f"has {', '.join(known) or 'none'}"
            )
    for name, value in variables.items():
        data, form = _codec.encode(value, f"the new value of {name!r}")
        before += bytes(data)
        changed.append([name, form, len(data)])
    return before, changed


def _items(
    source: ForkedRun, new_id: str, shared: list[Entry], results: Mapping[int, Any], now: float
) -> tuple[list[tuple[Record, Data]], dict[int, int]]:
    """The records of the fork, and where each shared one of the source stands in it."""
    items: list[tuple[Record, Data]] = []
    numbers: dict[int, int] = {}
    handled = Handled(_handled_later(source, shared), now)
    known = [*shared, Entry(source.entries[-1].number + 1, handled, b"")]
    pool = {each.call.number: each for each in Pool(known).all}
    calls = {number: _call_in_fork(source, new_id, each) for number, each in pool.items()}
    if not isinstance(shared[0].record if shared else None, Started):
        items.append((_started(source, None, now), b""))
    for entry in shared:
        record, payload = entry.record, entry.payload
        if isinstance(record, Started):
            record = _started(source, record, now)
        elif isinstance(record, (Intent, Outcome)):
            call = record.call
            again = calls.get(call.number)
            if again is not None:
                record = record._replace(call=call._replace(key=again.key, child=again.child))
            if isinstance(record, Intent) and (again is None or again.key == call.key):
                record, payload = record._replace(form=None), b""  # not this run's to undo
        elif isinstance(record, Quarantined):
            continue
        items.append((record, payload))
        numbers[entry.number] = len(items)
    if handled.numbers:
        items.append((handled, b""))
    items.extend(_changed_results(source, shared, results))
    return items, numbers


def _handled_later(source: ForkedRun, shared: list[Entry]) -> tuple[int, ...]:
    """Return the shared calls whose failures were handled, according to later records."""
    made = {call.number for entry in shared if (call := call_of(entry)) is not None}
    numbers: set[int] = set()
    for entry in source.entries:
        if shared and entry.number <= shared[-1].number:
            continue
        if isinstance(entry.record, Handled):
            numbers.update(entry.record.numbers)
        elif (call := call_of(entry)) is not None and call.unwinding:
            numbers.add(call.unwinding)
    return tuple(sorted(numbers & made))


def _started(source: ForkedRun, started: Started | None, now: float) -> Started:
    facts, program = source.facts, program_of(source.entries)
    if started is None:
        started = Started(facts.workflow, facts.digest, facts.arguments, facts.code)
    return started._replace(
        at=now,
        forked_from=facts.run_id,
        command=program.command if program is not None else (),
        cwd=program.cwd if program is not None else "",
    )


def _call_in_fork(source: ForkedRun, new_id: str, recorded: Recorded) -> Call:
    """Return a shared call for the fork, under a new key if it will be made again."""
    call = recorded.call
    if recorded.answers or recorded.in_doubt:
        return call
    child = ""
    if call.child:
        child = _fork_child(source, new_id, call.child)
    return call._replace(key=key_of(new_id, call) if call.effect else "", child=child)


def _fork_child(source: ForkedRun, new_id: str, child: str) -> str:
    """A child run that has not answered yet goes on in the fork, in a run of its own."""
    if facts_of(source.store, source.seal, child) is None:
        return ""  # killed before it began
    whole = ForkedRun(source.store, source.seal, child)
    name = f"{new_id}{child[len(source.facts.run_id) :]}"
    if not child.startswith(f"{source.facts.run_id}/") or len(name) > 160:
        name = f"{new_id}/{random_id(whole.facts.label)}"
    end = whole.entries[-1].number
    places = whole.checkpoints(end)
    _write(whole, name, end, places[0] if places else None, {}, {}, parent=new_id)
    return name


def _changed_results(
    source: ForkedRun, shared: list[Entry], results: Mapping[int, Any]
) -> Iterator[tuple[Record, Data]]:
    codec = Codec(source.facts.codec)
    for number, value in results.items():
        last: Outcome | None = None
        call: Call | None = None
        for entry in shared:
            record = entry.record
            if isinstance(record, Outcome) and number in record.inner:
                raise source.no_step(
                    number, f"was called inside {record.call.name}, whose result answers: change it"
                )
            if (found := call_of(entry)) is not None and found.number == number:
                call, last = found, record if isinstance(record, Outcome) else None
        if call is None:
            raise source.no_step(number, "is not among the records that are shared")
        yield outcome(
            codec,
            call,
            "completed",
            value,
            attempts=last.attempts if last is not None else 1,
            inner=last.inner if last is not None else (),
        )
