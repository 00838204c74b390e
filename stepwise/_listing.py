"""Finding runs: :func:`runs`, which shows as a table, and :func:`get_run`.

Imports: runs, heads, journal, display, stores.
"""

from __future__ import annotations

from typing import Any

from stepwise import _config
from stepwise._display import RunShown, runs_html, runs_text
from stepwise._heads import open_head
from stepwise._journal import facts_of
from stepwise._runs import Run, RunStatus, seal_for
from stepwise.errors import RunNotFoundError
from stepwise.stores import open_store

__all__ = ["Runs", "get_run", "runs"]

_SHOWN = 100  # runs of a list


class Runs(list[Run]):
    """A list of runs that shows as a table."""

    def __repr__(self) -> str:
        return runs_text(*self._few())

    def _repr_html_(self) -> str:
        return runs_html(*self._few())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _few(self) -> tuple[list[RunShown], int]:
        """What is shown of the first ones, and how many there are more."""
        shown = []
        for run in self[:_SHOWN]:
            try:
                shown.append(run._shown())
            except RunNotFoundError:
                shown.append(RunShown(run.id, "", "deleted"))
        return shown, len(self) - len(shown)


def get_run(run_id: str, *, store: Any = None) -> Run:
    """The run of that id.

    Args:
        store: a URL, path or store object; by default the configured one.

    Raises:
        RunNotFoundError: there is none; names those with a similar id.
    """
    opened = open_store(store if store is not None else _config.store())
    run = Run(opened, run_id)
    if facts_of(opened, seal_for(opened), run_id) is None:
        ids = [head.run_id for head in opened.heads()]
        import difflib  # on use: only a mistake needs it

        near = difflib.get_close_matches(run_id, ids, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise RunNotFoundError(
            f"there is no run {run_id!r} in {opened.url}, which holds {len(ids)} runs.{hint}",
            run_id=run_id,
        )
    return run


def runs(workflow: Any = None, status: RunStatus | None = None, *, store: Any = None) -> list[Run]:
    """The runs in the store, newest first.

    Args:
        workflow: only those of this workflow: the workflow itself, its name or its full name.
        status: only those of this status.
        store: a URL, path or store object; by default the configured one.
    """
    opened = open_store(store if store is not None else _config.store())
    seal = seal_for(opened)
    wanted = getattr(workflow, "full_name", workflow)
    found = []
    for head in opened.heads():
        facts = open_head(seal, head) or facts_of(opened, seal, head.run_id)
        if facts is None or wanted not in (None, facts.workflow, facts.label):
            continue
        run = Run(opened, facts.run_id)
        if status is None or run.status == status:
            found.append((facts.created_at, run))
    return Runs(run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True))
