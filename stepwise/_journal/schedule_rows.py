"""The rows of schedules in a store: which instants are over, and what somebody asked for.

A row is a sealed object under ``schedules:``, changed under the lease of that name.  The lease is
held while runs are submitted, so that processes advance a schedule in turn, and each finds what the
others did.

Rejected: the newest run of a schedule as its state.  Runs are deleted, and a schedule that missed
its instants has none.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone

from stepwise._journal.logs import SealedLog
from stepwise._journal.seal import Seal, named
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import shell_word
from stepwise.errors import CorruptStoreError
from stepwise.stores import Batch, Store

SCHEDULES = "schedules:"
"""The name of the rows in a store, which no run may have."""


class ScheduleRow(NamedTuple):
    """The recorded facts of a schedule; moments are seconds since 1970.

    Args:
        name: of the schedule and its workflow.
        workflow: the full name of the workflow.
        every: what the program says: the expression or the period, and the time zone.
        stated: the start of the program that said so.
        last: all instants up to here are over.
        next: the next instant; not after ``last`` if nobody has computed it.
        ran: the id of the newest run; empty if there was none.
        missed: how many instants have been left out.
        paused: whether runs are begun only on request.
        fired: the moments at which somebody asked for a run, for the ids of these runs.
    """

    name: str
    workflow: str
    every: str
    stated: float
    last: float
    next: float = 0.0
    ran: str = ""
    missed: int = 0
    paused: bool = False
    fired: tuple[int, ...] = ()


def run_id_of(name: str, instant: int, *, fired: bool = False) -> str:
    """Return the id of a schedule's run: readable, and sorted by time.

    Args:
        fired: whether the instant is the moment at which somebody asked for the run.
    """
    at = datetime.fromtimestamp(instant, timezone.utc)
    return f"{name}@{at:%Y-%m-%dT%H:%M:%SZ}{'-fired' if fired else ''}"


class ScheduleRows:
    """The rows of one store.

    Attributes:
        owned: holds the lease of the rows and yields its epoch, for :meth:`write`; see
            :meth:`SealedLog.owned`.
    """

    def __init__(self, store: Store, seal: Seal) -> None:
        self.store = store
        self._seal = seal
        self.owned = SealedLog(store, seal, SCHEDULES).owned

    def all(self) -> list[ScheduleRow | None]:
        """Return all rows by name; ``None`` for a damaged one."""
        entries = self.store.names(SCHEDULES, "row/")
        found = ((entry, self.store.get(SCHEDULES, entry)) for entry in entries)
        # One that is missing was deleted since.
        return [self._opened(entry, data) for entry, data in found if data is not None]

    def read(self, name: str) -> ScheduleRow | None:
        """Return the row of a schedule; ``None`` if the store has none.

        Raises:
            CorruptStoreError: the row is damaged.
        """
        entry = entry_of(name)
        data = self.store.get(SCHEDULES, entry)
        found = self._opened(entry, data) if data is not None else None
        if found is None and data is not None:
            raise CorruptStoreError(
                f"the row of schedule {name!r} in {self.store.url} is damaged, or of another "
                "STEPWISE_KEY: nobody knows which instants are over. To let it begin anew, with "
                f"its next instant: stepwise schedules forget {shell_word(name)}",
                path=self.store.url,
            )
        return found

    def _opened(self, entry: str, data: bytes) -> ScheduleRow | None:
        opened = self._seal.opened(named(entry, SCHEDULES), data)
        if opened is None:
            return None
        row = ScheduleRow(*opened.header)
        return row._replace(fired=tuple(row.fired))

    def write(self, epoch: int, name: str, row: ScheduleRow | None) -> None:
        """Replace the row of a schedule, or delete it."""
        entry = entry_of(name)
        batch = Batch(delete=(entry,))
        if row is not None:
            batch = Batch(put={entry: self._seal.close(named(entry, SCHEDULES), list(row))[0]})
        with Uninterrupted():
            self.store.write(SCHEDULES, epoch, batch)


def entry_of(name: str) -> str:
    """Return the name of the object that holds the row of a schedule."""
    return f"row/{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
