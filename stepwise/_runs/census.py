"""How many runs of a store are in which status, without reading their journals.

Runs that may go on are few, or are in the cache of the last look; the others are counted by the
words of their heads.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from stepwise._journal import journal as journals
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import deaths_of
from stepwise._runtime.facts import NamedTuple
from stepwise.stores import Store
from stepwise.stores.base import Words

_JUDGED = 100  # crashed runs whose journals one count reads; the others are read later


class RunsByStatus(NamedTuple):
    """The runs of a store, child runs included.

    Args:
        by_status: their number.
        late: seconds for which the longest due run has been due; 0 for none.  A crashed run is due
            since it was first counted as such.
    """

    by_status: Mapping[str, int]
    late: float


class Census:
    """Counts the runs of one store, again and again.

    A head that is unchanged since the last count is not opened again.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._seal = store, journals.seal_for(store)
        self._opened: dict[str, tuple[bytes, RunFacts | None]] = {}
        self._stuck: dict[str, tuple[RunFacts, bool]] = {}
        self._judged = 0  # crashed runs whose journal was read by this count
        self._dead: dict[str, float] = {}  # when a run was first found to be crashed

    def count(self) -> RunsByStatus:
        """Count the runs.

        Raises:
            StoreError: the store cannot be used.
        """
        before, self._opened, self._judged = self._opened, {}, 0
        found, due, now = Counter[str](), dict[str, float](), time.time()
        for head in self._store.heads(unfinished=True):
            known = before.get(head.run_id)
            if known is None or known[0] != head.data:
                known = head.data, journals.open_head(self._seal, head)
            self._opened[head.run_id] = known
            status, since = self._state(known[1], now)
            found[status] += 1
            if since is not None and since <= now:
                due[head.run_id] = since
        self._dead = {each: at for each, at in self._dead.items() if each in due}
        self._stuck = {each: at for each, at in self._stuck.items() if each in self._opened}
        words = journals.words_for(self._seal, None, "cancelled", {})
        total, found["cancelled"] = self._number(), self._number(words)
        found["completed"] = max(0, total - sum(found.values()))
        return RunsByStatus(found, max([0.0, *(now - at for at in due.values())]))

    def _number(self, words: Words = ()) -> int:
        count_heads = getattr(self._store, "count_heads", None)
        return int(count_heads(words)) if count_heads is not None else 0

    def _state(self, facts: RunFacts | None, now: float) -> tuple[str, float | None]:
        """Return the status of an unfinished run, and since when it has been due, if at all."""
        if facts is None:
            return "unreadable", None
        if facts.status == "suspended":
            moments = [each.until for each in facts.waits if each.until is not None]
            return "suspended", min(moments, default=None)
        if facts.status != "running" or self._store.owner(facts.run_id) is not None:
            return facts.status, None
        if journals.is_ready(facts):
            return "ready", None
        if self._is_stuck(facts):
            return "stuck", None
        return "crashed", self._dead.setdefault(facts.run_id, now)

    def _is_stuck(self, facts: RunFacts) -> bool:
        """Return whether a crashed run is given up; its journal is read once for each attempt."""
        known = self._stuck.get(facts.run_id)
        if known is None or known[0] != facts:
            if self._judged >= _JUDGED:
                return False
            self._judged += 1
            known = facts, deaths_of(self._store, self._seal, facts).are_deadly
        self._stuck[facts.run_id] = known
        return known[1]
