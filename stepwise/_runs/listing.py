"""Finding runs: :func:`runs`, which shows as a table, :func:`get_run`, :func:`current_run`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepwise._display.render import RunShown, runs_html
from stepwise._display.text import runs_text
from stepwise._execution.active_run import current_scope
from stepwise._journal.chain import is_of_file
from stepwise._journal.heads import open_head
from stepwise._journal.journal import facts_of, newest_mark, seal_for
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._runs.as_dict import RunStatus, run_dict, status_of
from stepwise._runs.run import Run
from stepwise._runtime import options, settings
from stepwise._runtime.messages import count
from stepwise.errors import RunNotFoundError
from stepwise.stores import Head, Owner, Store, open_store

__all__ = [
    "Listed",
    "Runs",
    "current_run",
    "each_listed",
    "get_run",
    "listed",
    "number_of_runs",
    "runs",
]

_NEAR = 1000  # newest runs among which an id is looked for that was meant
_SHOWN = 100  # runs of a list
_NEVER_RUNNING = ("completed", "failed", "interrupted", "suspended", "cancelled")
_UNFINISHED = ("running", "crashed", "failed", "interrupted", "suspended", "ready")


class Runs(list[Run]):
    """A list of runs that shows as a table."""

    def __repr__(self) -> str:
        return runs_text(*self._few())

    def _repr_html_(self) -> str:
        return runs_html(*self._few())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _few(self) -> tuple[list[RunShown], int]:
        """Return the first runs for display, and the number of remaining ones."""
        shown = []
        for run in self[:_SHOWN]:
            try:
                shown.append(run._shown())
            except RunNotFoundError:
                shown.append(RunShown(run.id, "", "deleted"))
        return shown, len(self) - len(shown)


def current_run() -> Run | None:
    """Return the run that executes this code, or ``None`` outside of a run."""
    scope = current_scope()
    return None if scope is None else Run(scope.run.journal.store, scope.run.run_id)


def get_run(run_id: str, *, store: Any = None) -> Run:
    """Return a run by its id.

    A run of which only marks are left, since its database is gone, can be verified, repaired and
    deleted; reading anything else of it raises :class:`JournalLostError`.

    Args:
        run_id: the whole id; the command line takes the beginning of one, too.
        store: a URL, path or store object; by default the configured one.

    Raises:
        RunNotFoundError: there is none; names those with a similar id.
    """
    opened = open_store(store if store is not None else settings.store())
    run, seal = Run(opened, run_id), seal_for(opened)
    if facts_of(opened, seal, run_id) is None and not newest_mark(opened, seal, run_id).last:
        heads = _newest(opened, seal)
        ids = [head.run_id for head in itertools.islice(heads, _NEAR)]
        total = number_of_runs(opened) or len(ids)
        import difflib  # on use: only a mistake needs it

        near = difflib.get_close_matches(run_id, ids, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        hint = hint or (" They are listed by: stepwise runs" if ids else "")
        raise RunNotFoundError(
            f"there is no run {run_id!r} in {opened.url}, which holds {count(total, 'run')}.{hint}",
            run_id=run_id,
        )
    return run


def runs(
    workflow: Any = None,
    status: RunStatus | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    store: Any = None,
    limit: int | None = None,
) -> list[Run]:
    """Return the runs in the store, the newest first.

    Args:
        workflow: only those of this workflow: the workflow itself, its name or its full name.
        status: only those of this status.
        tags: only those that have all of these tags.
        store: a URL, path or store object; by default the configured one.
        limit: at most this many; a store of many runs is then not read whole.
    """
    found = listed(workflow, status, store, tags, limit=options.check_limit("runs()", limit))
    return Runs(each.run for each in found)


@dataclass(frozen=True)
class Listed:
    """A run, with the facts from one look."""

    run: Run
    facts: RunFacts
    owner: Owner | None

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        return status_of(self.facts, owned=self.owner is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as :meth:`Run.to_dict`."""
        seen = self.run._seen(1)
        return run_dict(self.facts, self.owner, seen.statuses, seen.spent)


def listed(
    workflow: Any = None,
    status: RunStatus | None = None,
    store: Any = None,
    tags: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
    where: Callable[[RunFacts], bool] | None = None,
) -> list[Listed]:
    """Return the runs for :func:`runs`, with the facts that were read for them.

    Args:
        where: only those of which this is true.
    """
    found = [*itertools.islice(each_listed(workflow, status, store, tags, where=where), limit)]
    # The store has them in its own order: copied runs, say, as they were copied.
    return sorted(found, key=lambda each: each.facts.created_at, reverse=True)


def each_listed(
    workflow: Any = None,
    status: RunStatus | None = None,
    store: Any = None,
    tags: Mapping[str, str] | None = None,
    *,
    where: Callable[[RunFacts], bool] | None = None,
    begins: str = "",
    oldest: bool = False,
) -> Iterator[Listed]:
    """Yield the runs of :func:`listed` one by one, the newest first, as the store has them.

    Args:
        begins: only runs whose id begins so.
        oldest: about the oldest first, if the store has them in an order at all.
    """
    if tags is not None:
        options.check_tags("runs()", tags)
    opened = open_store(store if store is not None else settings.store())
    seal = seal_for(opened)
    unfinished = status in _UNFINISHED
    heads = opened.heads(unfinished=unfinished) if oldest else None
    for head in heads or _newest(opened, seal, unfinished=unfinished):
        if not head.run_id.startswith(begins):
            continue
        facts = open_head(seal, head) or facts_of(opened, seal, head.run_id)
        if facts is None or not _is_of(opened, seal, facts, workflow):
            continue
        if (tags and not tags.items() <= facts.tags.items()) or (where and not where(facts)):
            continue
        if facts.status == "running" and status in _NEVER_RUNNING:
            continue
        owner = opened.owner(facts.run_id) if facts.status == "running" else None
        each = Listed(Run(opened, facts.run_id, seal), facts, owner)
        if status in (None, each.status):
            yield each


def number_of_runs(store: Store) -> int | None:
    """Return how many runs a store has, child runs included; ``None`` if it cannot count them."""
    count_heads = getattr(store, "count_heads", None)
    return int(count_heads()) if count_heads is not None else None


def _newest(store: Store, seal: Seal, *, unfinished: bool = False) -> Iterator[Head]:
    """Yield the heads, those of the newest runs first."""
    newest_heads = getattr(store, "newest_heads", None)
    if newest_heads is not None:
        yield from newest_heads(unfinished=unfinished)
        return

    def begun(head: Head) -> float:
        facts = open_head(seal, head)
        return facts.created_at if facts is not None else math.inf

    yield from sorted(store.heads(unfinished=unfinished), key=begun, reverse=True)


def _is_of(store: Store, seal: Seal, facts: RunFacts, workflow: Any) -> bool:
    """Return whether a run is of a workflow, whose file may have been started another way."""
    if getattr(workflow, "full_name", workflow) in (None, facts.workflow, facts.label):
        return True
    definition = getattr(workflow, "definition", None)
    return definition is not None and is_of_file(
        store, seal, facts, definition.other_names, definition.file
    )
