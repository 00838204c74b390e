"""The run of a notebook: its cells are the pieces of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stepwise._display.activity import Doing
from stepwise._display.progress import Display
from stepwise._display.render import RunShown
from stepwise._runs.listing import get_run
from stepwise._runs.overview import Overview
from stepwise._runs.run import Run
from stepwise._runtime import settings
from stepwise._workflows.host import HostProgram, derived_id, describe_owner, place_of
from stepwise._workflows.pieces import Entry, Piece, PieceRun, RunPieces
from stepwise.errors import RunBusyError
from stepwise.stores import Store, open_store

__all__ = ["Cell", "Notebook"]

_CELLS = "stepwise.notebook"  # the module that cells are steps of

Cell = Piece


class Notebook:
    """The run of one notebook, as this kernel knows it."""

    def __init__(self) -> None:
        name = f"{place_of('__main__')}:notebook"
        path = os.environ.get("JPY_SESSION_NAME", "")
        label = os.path.splitext(os.path.basename(path))[0] or "notebook"
        self.run_id = derived_id(name, label)
        self._cells = RunPieces(HostProgram(name, label, _notebook), self.run_id, _CELLS, "cell")

    def run(self) -> Run:
        """It, as this kernel sees it.

        Raises:
            RunNotFoundError: no cell has been executed.
        """
        found = get_run(self.run_id)
        return _NotebookRun(found.store, found.id, self)

    def as_seen(self, shown: RunShown) -> RunShown:
        """Return the display form of the run, with the cells that this kernel skipped."""
        cells = self._cells
        executed, skipped = cells.progress.executed, cells.progress.skipped
        if not executed + skipped:
            return shown
        began = cells.progress.resumed_from if cells.begun else skipped
        begun = (
            shown.begun
            if cells.begun
            else 1 + max((s._entry.number for s in shown.steps), default=0)
        )
        saved = sum(s.duration or 0.0 for s in shown.steps if s._entry.number < begun)
        return replace(
            shown,
            executed=executed,
            skipped=skipped,
            resumed_from=began,
            begun=begun,
            saved=saved,
        )

    # -- records ---------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Return the store."""
        return open_store(settings.store())

    def find(self, name: str, digest: str) -> Entry | None:
        """The record of a cell, if it is done; the newest, if it was executed again."""
        return self._cells.find(self.store, name, digest)

    def load(self, entry: Entry) -> dict[str, Any]:
        """Load the variables and outputs of a skipped cell.

        Raises:
            UnreadableValueError: it cannot be loaded here.
        """
        value: dict[str, Any] = self._cells.skip(entry)
        return value

    # -- executing -------------------------------------------------------------------------------

    def execute(self, cell: Cell) -> None:
        """Execute a cell, and record it.

        Raises:
            RunBusyError: another kernel executes a cell of this notebook; says which.
            NotRecordableError: its outputs cannot be recorded.
        """
        with self._shown(cell):
            self._open(cell).execute()

    async def execute_async(self, cell: Cell) -> None:
        """The same for a cell that awaits."""
        with self._shown(cell):
            await self._open(cell).execute_async()

    @contextmanager
    def _shown(self, cell: Cell) -> Iterator[None]:
        """Show the progress of the cell."""
        doing = Doing(self.run_id, f"cell {cell.name!r}", cell=True)
        display = Display.of(doing, None, unasked=True)
        try:
            yield
        finally:
            if display is not None:
                display.close()

    def _open(self, cell: Cell) -> PieceRun:
        try:
            return self._cells.open(self.store, cell)
        except RunBusyError as error:
            raise RunBusyError(
                f"a cell of this notebook is being executed {describe_owner(error.owner)}: "
                "wait until it ends, or interrupt or shut down that kernel",
                run_id=self.run_id,
                owner=error.owner,
            ) from None


class _NotebookRun(Run):
    """The run of this notebook."""

    def __init__(self, store: Store, run_id: str, notebook: Notebook) -> None:
        super().__init__(store, run_id)
        self._notebook = notebook

    def _shown(self, seen: Overview | None = None) -> RunShown:
        return self._notebook.as_seen(super()._shown(seen))


def _notebook() -> None:
    """The placeholder for the function that a notebook does not have."""
