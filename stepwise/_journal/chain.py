"""The hash chain of a run's records: each is verified before it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stepwise._journal import records
from stepwise._journal.heads import read_head
from stepwise._journal.records import ANNOUNCES, Entry
from stepwise._journal.seal import NO_LINK, DamagedError, ForeignKeyError, Seal
from stepwise.errors import ConfigurationError
from stepwise.stores import Store

__all__ = ["Lost", "Position", "holds", "identity", "read", "read_one"]


class Position(NamedTuple):
    """The end of a journal: its last number, the link to it, the intents up to it."""

    last: int = 0
    link: bytes | None = NO_LINK  # None: the last record cannot be read
    effects: int = 0


class Lost(NamedTuple):
    """A record that does not verify, or is missing before one that does."""

    number: int


def read(
    store: Store, seal: Seal, run_id: str, start: Position | None = None
) -> Iterator[tuple[Entry | Lost, Position]]:
    """The records after a position, verified, each with the position that it makes.

    Raises:
        ConfigurationError: they were written with another key.
    """
    at, stray = start or Position(), 0
    for number, data in store.read(run_id, after=at.last):
        try:
            opened = seal.open(identity(run_id, number), data)
        except ForeignKeyError:
            if not _knows(store, seal, run_id):
                raise _foreign(store, run_id) from None
            opened = None
        except DamagedError:
            opened = None
        if opened is None and number > at.last + 1:
            stray = number  # the number itself may be damaged, so it does not prove a gap
            continue
        stray = 0
        for missing in range(at.last + 1, number):
            at = Position(missing, None, at.effects)
            yield Lost(missing), at
        if opened is None or (at.link is not None and opened.previous != at.link):
            at = Position(number, None, at.effects)
            yield Lost(number), at
            continue
        record = records.from_header(opened.header)
        at = Position(number, opened.link, opened.effects + isinstance(record, ANNOUNCES))
        yield Entry(number, record, opened.payload), at
    if stray:
        yield Lost(stray), at


def holds(store: Store, seal: Seal, run_id: str, at: Position) -> bool:
    """Return whether the journal reaches this position, with the same record there."""
    for number, data in store.read(run_id, after=at.last - 1):
        try:
            return number == at.last and seal.open(identity(run_id, number), data).link == at.link
        except DamagedError:
            return False
    return at.last == 0


def read_one(store: Store, seal: Seal, run_id: str, number: int) -> Entry | None:
    """One record; ``None`` if it is not there or does not verify."""
    for found, data in store.read(run_id, after=number - 1):
        if found == number:
            try:
                opened = seal.open(identity(run_id, number), data)
            except DamagedError:
                break
            return Entry(number, records.from_header(opened.header), opened.payload)
        break
    return None


def identity(run_id: str, number: int) -> str:
    """Return the name under which a record is sealed."""
    return f"record/{number}/{run_id}"


def _knows(store: Store, seal: Seal, run_id: str) -> bool:
    """Return whether this key verifies the run's head; a record's key id is then damaged."""
    return read_head(store, seal, run_id) is not None


def _foreign(store: Store, run_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"run {run_id!r} in {store.url} was written with another key. Bring back the key file "
        "($STEPWISE_HOME/key), or set STEPWISE_KEY to the key it was written with; to start over "
        "with this key, use another store"
    )
