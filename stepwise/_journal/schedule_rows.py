"""The rows of schedules in a store: which instants are over, and what somebody asked for.

A row is a sealed object under ``schedules:``, changed under the lease of that name.  The lease is
held while runs are submitted, so that processes advance a schedule in turn, and each finds what the
others did.

Rejected: the newest run of a schedule as its state.  Runs are deleted, and a schedule that missed
its instants has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from stepwise._journal.log import SealedLog
from stepwise._journal.seal import DamagedError, Seal, named
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import shell_word
from stepwise.errors import CorruptStoreError
from stepwise.stores import Batch, Store

SCHEDULES = "schedules:"
"""The name of the rows in a store, which no run may have."""
_PATIENCE = 60.0  # seconds


class ScheduleRow(NamedTuple):
    """What is known of a schedule; moments are seconds since 1970.

    Args:
        name: of the schedule and its workflow.
        workflow: the full name of the workflow.
        every: what the program says: the expression or the period, and the time zone; empty if the
            workflow has no schedule any more.
        stated: the start of the program that said so.
        last: all instants up to here are over.
        next: the next instant; ``None`` without a schedule.
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
    next: float | None = None
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
    """The rows of one store."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self.store = store
        self._seal = seal
        self._log = SealedLog(store, seal, SCHEDULES)

    def names(self) -> list[str]:
        """Return the names of the objects that hold rows."""
        return self.store.names(SCHEDULES, "row/")

    def read(self, name: str) -> ScheduleRow | None:
        """Return the row of a schedule; ``None`` if the store has none.

        Raises:
            CorruptStoreError: the row is damaged.
        """
        found = self.opened(entry_of(name))
        if found is None and self.store.get(SCHEDULES, entry_of(name)) is not None:
            raise CorruptStoreError(
                f"the row of schedule {name!r} in {self.store.url} is damaged, or of another "
                "STEPWISE_KEY: nobody knows which instants are over. To let it begin anew, with "
                f"its next instant: stepwise schedules forget {shell_word(name)}",
                path=self.store.url,
            )
        return found

    def opened(self, entry: str) -> ScheduleRow | None:
        """Return the row in an object; ``None`` if it is missing or damaged."""
        try:
            opened = self._seal.open(
                named(entry, SCHEDULES), self.store.get(SCHEDULES, entry) or b""
            )
        except DamagedError:
            return None
        row = ScheduleRow(*opened.header)
        return row._replace(fired=tuple(row.fired))

    @contextmanager
    def owned(self, patience: float = _PATIENCE) -> Iterator[int]:
        """Hold the lease of the rows and yield its epoch, for :meth:`write`.

        Args:
            patience: seconds to wait for other processes, at most.

        Raises:
            RunBusyError: others have held the lease for all that time.
        """
        with self._log.owned(patience) as epoch:
            yield epoch

    def write(self, epoch: int, name: str, row: ScheduleRow | None) -> None:
        """Replace the row of a schedule, or delete it."""
        entry = entry_of(name)
        if row is None:
            batch = Batch(delete=(entry,))
        else:
            batch = Batch(put={entry: self._seal.close(named(entry, SCHEDULES), list(row))[0]})
        with Uninterrupted():
            self.store.write(SCHEDULES, epoch, batch)


def entry_of(name: str) -> str:
    """Return the name of the object that holds the row of a schedule."""
    return f"row/{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
