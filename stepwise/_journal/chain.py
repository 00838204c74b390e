"""The hash chain of a run's records, each verified before it is read, and how far it went.

A *mark*, kept apart from the database that holds the records, says how far after each acknowledged
batch; a lost tail is noticed by it, and whether a side effect was in it.  It also tells one history
of a run from another.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from stepwise._journal import records
from stepwise._journal.heads import read_head
from stepwise._journal.projection import start_of
from stepwise._journal.records import ANNOUNCES, Entry, RunFacts, Started
from stepwise._journal.seal import NO_LINK, DamagedError, Envelope, ForeignKeyError, Seal
from stepwise._journal.spending import NO_SUMS, Sums, sums_after
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import ConfigurationError
from stepwise.stores import Store

__all__ = [
    "INBOX",
    "Lost",
    "Mark",
    "Position",
    "followed",
    "foreign",
    "holds",
    "identity",
    "inbox_name",
    "is_another_history",
    "is_begun",
    "is_of_file",
    "mark",
    "marker",
    "newest_mark",
    "place_of_run",
    "read",
    "read_end",
    "read_entries",
    "read_one",
    "read_start",
    "verified",
]

INBOX = "inbox:"
"""The beginning of the names of inboxes in a store, with which no run id begins."""

_MARK = struct.Struct("<QQ8s")
_SIZE = _MARK.size + 16


class Position(NamedTuple):
    """The end of a journal: its last number, the link to it, the intents up to it, its sums."""

    last: int = 0
    link: bytes | None = NO_LINK  # None: the last record cannot be read
    effects: int = 0
    sums: Sums = NO_SUMS

    def kept(self) -> list[Any]:
        """Return the position as JSON-able facts."""
        return [self.last, (self.link or b"").hex(), self.effects, self.sums]

    @classmethod
    def from_kept(cls, kept: Sequence[Any]) -> Position:
        """Return the position of these facts; an earlier version kept no sums."""
        last, link, effects, *sums = kept
        spent = Sums(*sums[0]) if sums else Sums(at_least=bool(last))
        return cls(last, bytes.fromhex(link) or None, effects, spent)


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
    at = start or Position()
    rows = store.read(run_id, after=at.last)
    for number, opened, _ in verified(store, seal, run_id, rows, at):
        entry, at = followed(at, number, opened)
        yield entry, at


def followed(at: Position, number: int, opened: Envelope | None) -> tuple[Entry | Lost, Position]:
    """Return what :func:`verified` gave after a position as an entry, and the new position."""
    if number > at.last + 1:
        return Lost(number), at  # at the end: the number itself may be damaged
    if opened is None:
        return Lost(number), Position(number, None, at.effects, at.sums._replace(at_least=True))
    record = records.from_header(opened.header)
    effects = opened.effects + isinstance(record, ANNOUNCES)
    at = Position(number, opened.link, effects, sums_after(at.sums, record))
    return Entry(number, record, opened.payload), at


def verified(
    store: Store, seal: Seal, run_id: str, rows: Iterable[tuple[int, bytes]], start: Position
) -> Iterator[tuple[int, Envelope | None, bytes]]:
    """Open the rows after a position: number, envelope and row of each.

    The envelope is ``None`` for a row that does not verify or does not follow the one before it,
    and for each missing row.  Damaged rows at the end that follow a gap come as the last of them.

    Raises:
        ConfigurationError: they were written with another key.
    """
    last, link, stray = start.last, start.link, 0
    for number, data in rows:
        try:
            opened: Envelope | None = seal.open(identity(run_id, number), data)
        except ForeignKeyError:
            if not _knows(store, seal, run_id):
                raise foreign(store, run_id) from None
            opened = None
        except DamagedError:
            opened = None
        if opened is None and number > last + 1:
            stray = number  # the number itself may be damaged, so it does not prove a gap
            continue
        stray = 0
        for missing in range(last + 1, number):
            link = None
            yield missing, None, b""
        if opened is not None and link is not None and opened.previous != link:
            opened = None
        last, link = number, opened.link if opened is not None else None
        yield number, opened, data
    if stray:
        yield stray, None, b""


def read_entries(
    store: Store, seal: Seal, run_id: str, start: Position | None = None
) -> Iterator[Entry]:
    """The records after a position that verify."""
    for entry, _ in read(store, seal, run_id, start):
        if isinstance(entry, Entry):
            yield entry


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


def read_start(
    store: Store, seal: Seal, run_id: str, number: int = 1
) -> tuple[Started, bytes] | None:
    """The record of a run's beginning and its payload; see :func:`read_one`."""
    entry = read_one(store, seal, run_id, number) if number else None
    return start_of([entry]) if entry is not None else None


def place_of_run(facts: RunFacts) -> str:
    """The script or module of a run's workflow."""
    return facts.workflow.removesuffix(f":{facts.label}")


def is_of_file(store: Store, seal: Seal, old: RunFacts, names: Container[str], file: str) -> bool:
    """Return whether a run's workflow is defined in a file, however that was started or imported.

    Args:
        names: the full names that the workflow may have had.
        file: where it is defined, resolved.
    """
    if not file or old.workflow not in names:
        return False
    if place_of_run(old) == file:
        return True
    start = read_start(store, seal, old.run_id)
    if start is None or not start[0].file:
        return False
    return os.path.realpath(os.path.join(start[0].cwd, start[0].file)) == file


def read_end(store: Store, seal: Seal, facts: RunFacts) -> Entry | None:
    """The record of a run's end; see :func:`read_one`."""
    entry = read_one(store, seal, facts.run_id, facts.end) if facts.end else None
    return entry if entry is not None and entry.ended is not None else None


def identity(run_id: str, number: int) -> str:
    """Return the name under which a record is sealed."""
    return f"record/{number}/{run_id}"


def inbox_name(run_id: str) -> str:
    """Return the name of a run's inbox in its store."""
    return f"{INBOX}{run_id}"


def is_begun(store: Store, name: str) -> bool:
    """Return whether anything was ever written to an inbox or a log, be it damaged or lost."""
    return bool(store.marks(name)) or next(store.read(name), None) is not None


def _knows(store: Store, seal: Seal, run_id: str) -> bool:
    """Return whether this key verifies the run's head; a record's key id is then damaged."""
    return read_head(store, seal, run_id) is not None


def foreign(store: Store, run_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"run {run_id!r} in {store.url} was written with another key. Bring back the key file "
        "($STEPWISE_HOME/key), or set STEPWISE_KEY to the key it was written with; to start over "
        "with this key, use another store"
    )


# -- marks -----------------------------------------------------------------------------------------


def mark(seal: Seal, run_id: str, at: Position) -> bytes:
    """The mark for a position."""
    return marker(seal, run_id)(at)


def marker(seal: Seal, run_id: str) -> Callable[[Position], bytes]:
    """Return what makes the marks of a run."""
    tag = seal.tagger(f"mark/{run_id}")

    def mark(at: Position) -> bytes:
        last, link, effects, _ = at
        data = _MARK.pack(last, effects, link[:8] if link else NO_LINK[:8])
        return data + tag(data)

    return mark


class Mark(NamedTuple):
    """The end of a journal: its last number, the intents up to it, the link to that record."""

    last: int = 0
    effects: int = 0
    link: bytes = b""


def newest_mark(store: Store, seal: Seal, run_id: str) -> Mark:
    """Return the newest mark that verifies, or zeros."""
    newest = Mark()
    for each in store.marks(run_id):
        data, tag = each[: _MARK.size], each[_MARK.size : _SIZE]
        if len(data) == _MARK.size and seal.is_tag(f"mark/{run_id}", data, tag):
            newest = max(newest, Mark(*_MARK.unpack(data)))
    return newest


def is_another_history(
    store: Store, seal: Seal, run_id: str, marked: Mark, at: Position | None = None
) -> bool:
    """Return whether the database holds another record than the marked one under its number.

    So it is where an older database lies beside newer marks: that of a run which was deleted and
    begun again, say.  What is missing or damaged proves nothing.

    Args:
        at: where the journal ends, if that is known.
    """
    if not marked.last or marked.link == NO_LINK[:8]:
        return False
    if at is not None and at.last == marked.last:
        return at.link is not None and at.link[:8] != marked.link
    entry = next(iter(store.read(run_id, after=marked.last - 1)), None)
    if entry is None or entry[0] != marked.last:
        return False
    try:
        link = seal.open(identity(run_id, marked.last), entry[1]).link
    except DamagedError:
        return False
    return link[:8] != marked.link
