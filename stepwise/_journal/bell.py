"""The bell of a store: who waits for messages learns that some came, without reading each inbox.

A short log (see ``log``) that every sender appends to.  A process looks at it with one read for all
runs that it waits with.  It only saves time: whoever waits looks into the inbox now and then, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

from stepwise._journal.log import LogEnd, LogEntry, SealedLog
from stepwise._journal.seal import Seal
from stepwise._runtime.messages import reports
from stepwise.stores import Store

__all__ = ["BELL", "Bell"]

BELL = "bell:"
"""The name of the log, which no run may have."""
_MANY = 200  # records; with more, one record takes the place of all
_PAUSE = 0.5  # seconds between two looks, where a server would notify and does not
_PATIENCE = 2.0  # seconds that a ring waits for other senders


class Bell:
    """The bell of one store, as one process rings it and looks at it; not for several threads."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self._log = SealedLog(store, seal, BELL)
        self._end: LogEnd | None = None
        changes = getattr(store, "changes", None)
        self._notifies = changes is not None
        self._changes: Callable[[], int | None] = lambda: changes and changes(BELL)
        self._seen: int | None = None  # how often it had changed at the last look
        self._looked = 0.0

    def look(self) -> list[str]:
        """Return the ids of the runs that were rung since the last look; at the first one, none.

        A run may be among them that was not rung.
        """
        end, changes = self._end, self._changes()
        if end is not None and not self._may_have_rung(changes):
            return []
        self._seen, self._looked = changes, time.monotonic()
        if end is None:
            _, self._end = self._whole()
            return []
        # One row in one query: a rewrite gives its record a higher number, too.
        if next(self._log.store.read(BELL, after=end.at.last), None) is None:
            return []
        found, self._end = self._log.read(end) or self._whole()
        return _ids(found)

    def _may_have_rung(self, changes: int | None) -> bool:
        if changes is not None:
            return changes != self._seen
        # It is not known.  Reading costs nothing on this machine, and a request to a server.
        return not self._notifies or time.monotonic() - self._looked >= _PAUSE

    @reports
    def ring(self, run_id: str) -> None:
        """Ring for a run.  A ring that fails is reported, and costs time only."""
        with self._log.owned(patience=_PATIENCE) as epoch:
            end, records = self._log.find_end()
            if records < _MANY:
                self._log.append(epoch, end, [([run_id], b"")], durable=False)
            else:  # who has not looked since must not miss the last ones
                recent = list(dict.fromkeys([*_ids(self._whole()[0]), run_id]))
                self._log.append(epoch, end, [(recent[-_MANY:], b"")], instead=True, durable=False)

    def _whole(self) -> tuple[list[LogEntry], LogEnd]:
        read = self._log.read(LogEnd())
        assert read is not None  # from the beginning, there is always an answer
        return read


def _ids(entries: list[LogEntry]) -> list[str]:
    headers = (entry.header or () for entry in entries)  # a damaged one rings for nobody
    return list(dict.fromkeys(chain.from_iterable(headers)))
