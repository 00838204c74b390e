"""The child runs of a run, found without a look at every run of the store."""

from __future__ import annotations

from stepwise._journal.heads import children_of
from stepwise._journal.journal import Lost, facts_of, read
from stepwise._journal.seal import Seal
from stepwise._runtime.forks import cached
from stepwise.stores import Store

__all__ = ["ChildRuns"]


class ChildRuns:
    """The child runs of the runs in a store, as it was at the first look.

    Args:
        store: where the runs are.
        seal: of its records.
    """

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store, self._seal = store, seal

    def of(self, run_id: str) -> list[str]:
        """Return the ids of a run's child runs.

        Its journal names them.  If that is not whole any more, all runs are asked for their parent.
        """
        facts = facts_of(self._store, self._seal, run_id)
        if facts is None or facts.pruned:
            return self._all.get(run_id, [])
        named = dict[str, None]()
        for entry, _ in read(self._store, self._seal, run_id):
            if isinstance(entry, Lost):
                return self._all.get(run_id, [])
            if entry.call is not None and entry.call.child:
                named[entry.call.child] = None
        return [child for child in named if self._parent(child) == run_id]

    def _parent(self, run_id: str) -> str:
        # The journal of a fork names child runs of its source.
        facts = facts_of(self._store, self._seal, run_id)
        return facts.parent if facts is not None else ""

    @cached
    def _all(self) -> dict[str, list[str]]:
        return children_of(self._store, self._seal)
