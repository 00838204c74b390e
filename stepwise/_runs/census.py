"""How many runs of a store are in which status, mostly without reading their journals.

The heads of unfinished runs are opened once.  The others are counted by the words of their heads.
The journal of a crashed run is read once for each of its attempts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from stepwise._journal import journal as journals
from stepwise._journal.records import RunFacts
from stepwise._journal.summary import deaths_of
from stepwise._runs.steps import status_of
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import RunStopped, StepwiseError
from stepwise.stores import Store


class RunsByStatus(NamedTuple):
    """The runs of a store, child runs included.

    Args:
        by_status: their number.
        late: seconds since the longest due run became due; 0 for none.  A crashed run is due since
            its last sign of life.
    """

    by_status: Mapping[str, int]
    late: float


_OVER = ("completed", "cancelled", "superseded")


class Census:
    """Counts the runs of one store, again and again."""

    def __init__(self, store: Store) -> None:
        self._store, self._seal = store, journals.seal_for(store)
        self._opened: dict[str, tuple[bytes, RunFacts | None]] = {}
        self._crashed: dict[str, tuple[RunFacts, tuple[str, float | None]]] = {}

    def count(self) -> RunsByStatus:
        """Count the runs.

        Raises:
            StoreError: the store cannot be used.
        """
        before, self._opened = self._opened, {}
        # First: a run that ends meanwhile is not counted twice.
        found = Counter({each: self._number(each) for each in _OVER})
        now, late = time.time(), 0.0
        for head in self._store.heads(unfinished=True):
            known = before.get(head.run_id)
            if known is None or known[0] != head.data:
                known = head.data, journals.open_head(self._seal, head)
            self._opened[head.run_id] = known
            status, since = self._state(known[1])
            found[status] += 1
            late = max(late, now - since) if since is not None else late
        self._crashed = {each: of for each, of in self._crashed.items() if each in self._opened}
        # Submitted runs that have not begun are suspended, but not among the unfinished heads.
        found["suspended"] = max(found["suspended"], self._number("suspended"))
        return RunsByStatus(found, late)

    def _number(self, status: str) -> int:
        count_heads = getattr(self._store, "count_heads", None)
        words = journals.words_for(self._seal, None, status, {})
        return int(count_heads(words)) if count_heads is not None else 0

    def _state(self, facts: RunFacts | None) -> tuple[str, float | None]:
        """Return the status of an unfinished run, and since when it is due, if at all."""
        if facts is None:
            return "unreadable", None
        place = self._store, self._seal
        owned = facts.status == "running" and self._store.owner(facts.run_id) is not None
        if facts.status != "running" or owned:
            moments = [each.until for each in facts.waits if each.until is not None]
            status = status_of(*place, facts, owned=owned)
            return status, min(moments, default=None) if status == "suspended" else None
        known = self._crashed.get(facts.run_id)
        if known is None or known[0] != facts:
            try:
                now = journals.facts_of(*place, facts.run_id) or facts
                if now != facts:  # it has ended before its owner was asked for
                    return self._state(now)
                status = status_of(*place, facts, owned=False)
                died = deaths_of(*place, facts).at if status in ("crashed", "cancelling") else None
                known = self._crashed[facts.run_id] = facts, (status, died)
            except (StepwiseError, RunStopped):  # if the store is away, the next read says so
                return "unreadable", None
        return known[1]
