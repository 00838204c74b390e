"""A run taken out of its store, and put into a store in memory to be executed again from there.

The records keep their numbers, so that the checkpoints fit.  Everything is sealed again with the
key of the store in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._checkpoints.checkpoints import PREFIX, Loaded, sealed
from stepwise._checkpoints.references import Vault
from stepwise._execution.outcomes import RunInputs, record_inputs
from stepwise._execution.viewer import look_into
from stepwise._journal.journal import (
    INPUTS,
    Position,
    owned_journal,
    read_end,
    recorded_versions,
    seal_for,
)
from stepwise._journal.projection import as_made
from stepwise._journal.records import Entry, RecordedVersion, RunFacts
from stepwise._journal.seal import Seal, named
from stepwise._runs.fork import whole_records
from stepwise._runs.run import Run
from stepwise._runs.steps import listed_checkpoint, settled
from stepwise._runs.why import without_hidden
from stepwise._runtime.facts import NamedTuple
from stepwise._values.codec import Codec
from stepwise._values.unpickling import Data
from stepwise.stores import Store
from stepwise.stores.memory import MemoryStore

_numbers = itertools.count(1)


class Variables(NamedTuple):
    """The variables of the workflow at a checkpoint.

    Args:
        step: the number of done steps.
        position: see :class:`stepwise._checkpoints.checkpoints.State`.
        variables: returns them, or raises ``UnreadableValueError``.
    """

    step: int
    position: str
    variables: Callable[[], Mapping[str, Any]]


class Replica(NamedTuple):
    """The recorded state of one run.

    Args:
        entries: the records, in order.
        end: the record of the run's end; ``None`` if the run has not ended.
        moments: the variables at the kept checkpoints, oldest first.
        checkpoints: the checkpoints themselves; none if the run comes from a file.
        beside: header and payload of the objects beside the records, by their names.
        arguments: loads those of the run, if a file holds them; else the first record does.
        masked: what a file leaves out, since it is secret.
        versions: of the steps whose results are recorded.
    """

    facts: RunFacts
    entries: tuple[Entry, ...]
    end: Entry | None
    moments: tuple[Variables, ...]
    checkpoints: tuple[Loaded, ...] = ()
    beside: Mapping[str, tuple[Any, bytes]] = {}
    arguments: Callable[[], RunInputs] | None = None
    masked: tuple[str, ...] = ()
    versions: tuple[RecordedVersion, ...] = ()


def taken_from(store: Store, seal: Seal, run_id: str) -> Replica:
    """Return the recorded state of a run; take no lease, and write nothing.

    Raises:
        CorruptStoreError: records of the run cannot be read.
    """
    return settled(store, seal, run_id, lambda facts, _: _taken(store, seal, facts))


def _taken(store: Store, seal: Seal, facts: RunFacts) -> Replica:
    run_id = facts.run_id
    place, vault = (store, seal, run_id), Vault(store, seal, run_id)
    # Before the records: the run may go on, and its next checkpoint refers to later ones.
    found = (listed_checkpoint(place, name) for name in store.names(run_id, PREFIX))
    checkpoints = tuple(each for each in found if each is not None)
    entries = whole_records(store, seal, facts, "executed again")
    ended = facts.status in ("completed", "failed")
    inputs = {name: vault.open(name) for name in store.names(run_id, INPUTS)}
    return Replica(
        facts,
        tuple(entries),
        read_end(store, seal, facts) if ended else None,
        tuple(_moment(facts, each) for each in checkpoints),
        checkpoints,
        {n: (each.header, each.payload) for n, each in inputs.items() if each is not None},
        versions=tuple(recorded_versions(store, seal, run_id)),
    )


def _moment(facts: RunFacts, loaded: Loaded) -> Variables:
    state = loaded.state
    return Variables(state.step, state.position, lambda: without_hidden(facts, look_into(loaded)))


def in_memory(replica: Replica, workflow: str, function: Callable[..., Any]) -> Run:
    """Return the run in a new store in memory: unfinished, with all its calls.

    Args:
        workflow, function: the workflow that will execute it: its full name, and its function.
    """
    facts = replica.facts
    run_id, store = facts.run_id, MemoryStore(f"rerun-{next(_numbers)}")
    head = facts.unfinished(workflow=workflow, parent="", restored=False)
    entries = [*as_made(replica.entries)]
    if replica.arguments is not None:
        entries = [_begun_with(entries[0], function, replica.arguments()), *entries[1:]]
    seal = seal_for(store)

    def beside(positions: list[Position]) -> dict[str, Data]:
        first, objects = entries[0].number - 1, dict[str, Data]()
        for loaded in replica.checkpoints:
            at = positions[loaded.state.journal[0] - first]
            state = loaded.state._replace(journal=at.kept(), said=())  # it says all anew
            objects |= sealed(seal, run_id, loaded, state, loaded.payload)
        for name, (header, payload) in replica.beside.items():
            objects[name] = seal.close(named(name, run_id), header, payload)[0]
        return objects

    with owned_journal(store, seal, run_id) as journal:
        journal.load(Position(entries[0].number - 1, None))
        journal.begin_with([(each.record, each.payload) for each in entries], beside, head)
    return Run(store, run_id, seal)


def _begun_with(first: Entry, function: Callable[..., Any], given: RunInputs) -> Entry:
    """Return the record of the beginning with arguments that a file held."""
    record: Any = first.record
    values, missing = {**given.values}, dict.fromkeys(given.missing)
    instance = values.pop(given.method, None)
    payload, form, _ = record_inputs(
        Codec(), function, {**missing, **values}, given.method, instance, missing
    )
    return first._replace(record=record._replace(form=form), payload=bytes(payload))
