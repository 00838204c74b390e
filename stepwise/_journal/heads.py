"""The head of a run: the sealed facts for listings, so that they need not read the journal.

It is derived: damaged, it is made again from the records; see ``derive_facts``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stepwise._journal.records import RunFacts, RunWait
from stepwise._journal.seal import DamagedError, ForeignKeyError, Seal
from stepwise.errors import ConfigurationError
from stepwise.stores import Head, Store

__all__ = [
    "check_key",
    "children_of",
    "is_ready",
    "open_head",
    "read_head",
    "seal_head",
    "unfinished_heads",
]


def seal_head(seal: Seal, facts: RunFacts) -> Head:
    """The head of a run, as the store keeps it."""
    data, _ = seal.close(f"head/{facts.run_id}", facts._asdict())
    index = seal.index(facts.workflow)
    return Head(facts.run_id, index, facts.status in ("completed", "cancelled"), bytes(data))


def open_head(seal: Seal, head: Head) -> RunFacts | None:
    """Return the facts in a head, or ``None`` if the head does not verify."""
    try:
        facts = RunFacts(**seal.open(f"head/{head.run_id}", head.data).header)
        return facts._replace(waits=(*(RunWait(*each) for each in facts.waits),))
    except (DamagedError, TypeError):
        return None


def read_head(store: Store, seal: Seal, run_id: str) -> RunFacts | None:
    """Return the facts in a run's head, or ``None`` if the head is missing or of another run."""
    head = store.head(run_id)
    return open_head(seal, head) if head is not None and head.run_id == run_id else None


_LOOKED_AT = 10  # heads; one that verifies is enough


def check_key(store: Store, seal: Seal) -> None:
    """Refuse a store whose runs were written with another key.

    A new run under another key would stop the listings of every other machine.  A store that holds
    runs of both keys already is not refused.

    Raises:
        ConfigurationError: none of the heads that were looked at verifies, since the key differs.
    """
    foreign = False
    for head in islice(store.heads(), _LOOKED_AT):
        try:
            seal.open(f"head/{head.run_id}", head.data)
        except ForeignKeyError:
            foreign = True
        except DamagedError:
            pass  # nothing is known of its key; verify reports the damage
        else:
            return
    if foreign:
        raise ConfigurationError(
            f"{store.url} was written with another key than the one that is set here. "
            "All machines that use a store need the same key: set STEPWISE_KEY to it"
        )


def unfinished_heads(store: Store, seal: Seal, workflow: str) -> Iterator[Head]:
    """Yield the heads of a workflow's unfinished runs, also those indexed by an older key."""
    for index in seal.indexes(workflow):
        yield from store.heads(index, unfinished=True)


def children_of(store: Store, seal: Seal) -> dict[str, list[str]]:
    """Return the ids of the child runs of each run that has some."""
    found: dict[str, list[str]] = {}
    for head in list(store.heads()):
        facts = open_head(seal, head)
        if facts is not None and facts.parent:
            found.setdefault(facts.parent, []).append(facts.run_id)
    return found


def is_ready(facts: RunFacts) -> bool:
    """Return whether a run is a fork that nobody has executed yet."""
    # The process that executes the run writes when that began.
    return bool(facts.forked_from) and facts.updated_at <= facts.created_at
