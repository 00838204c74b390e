"""The run of a notebook: the records of its cells, and the execution of one.

A cell is a step of that run.  The run has no function that would be entered again: each execution
of a cell is a piece of it, which takes the lease, and gives it up at its end, so that another
process may look and forget in between.  What is recorded inside a cell that did not complete (it
raised, or its kernel was killed) answers the next cell that makes the same call.
"""

from __future__ import annotations

import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from stepwise._calls.driver import drive
from stepwise._calls.operations import Core
from stepwise._calls.perform import perform
from stepwise._calls.steps import Step, known_steps
from stepwise._display.activity import Doing
from stepwise._display.progress import Display
from stepwise._display.render import RunShown
from stepwise._execution.active_run import ActiveRun, current_scope
from stepwise._execution.location import Locator, Origin
from stepwise._execution.mutation import Watch
from stepwise._identity import identity
from stepwise._journal.counters import Ordinals, Progress
from stepwise._journal.journal import Position, holds, read, read_one, seal_for
from stepwise._journal.lease import describe_owner
from stepwise._journal.records import Entry, Outcome, Resumed
from stepwise._journal.seal import Seal
from stepwise._matching.pool import Pool
from stepwise._matching.subjects import Identity
from stepwise._rewrite import Source
from stepwise._runs.listing import get_run
from stepwise._runs.overview import Overview
from stepwise._runs.run import Run
from stepwise._runtime import settings
from stepwise._runtime.messages import count
from stepwise._values import codec
from stepwise._values import digest as _digest
from stepwise._workflows.execute import execute, execute_async
from stepwise._workflows.opened import NothingGiven, Opened
from stepwise._workflows.opening import Invocation, Recall, open_run
from stepwise.errors import RunBusyError
from stepwise.stores import Store, open_store

__all__ = ["Cell", "Notebook"]

_CELLS = "stepwise.notebook"  # the module that cells are steps of


@dataclass(frozen=True)
class Cell:
    """A cell that is to be executed.

    Args:
        digest: of its code and inputs.
        inputs: by name.
        site: how it is called in listings.
        body: executes it, and gives what is recorded.
    """

    name: str
    digest: str
    inputs: Mapping[str, Any]
    site: str
    body: Callable[[], Any]


class Notebook:
    """The run of one notebook, as this kernel knows it."""

    def __init__(self) -> None:
        self._name = f"{identity.place_of('__main__')}:notebook"
        path = os.environ.get("JPY_SESSION_NAME", "")
        self._label = os.path.splitext(os.path.basename(path))[0] or "notebook"
        self.run_id = identity.derived_id(self._name, self._label)
        self._progress = Progress()  # this kernel's progress
        self._begun = False  # this kernel has executed a cell
        self._forget()

    def _forget(self) -> None:
        self._store: Store | None = None
        self._entries: list[Entry] = []
        self._at = Position()
        self._whole = False  # everything has been verified under the lease

    def run(self) -> Run:
        """It, as this kernel sees it.

        Raises:
            RunNotFoundError: no cell has been executed.
        """
        found = get_run(self.run_id)
        return _NotebookRun(found.store, found.id, self)

    def as_seen(self, shown: RunShown) -> RunShown:
        """Return the display form of the run, with the cells that this kernel skipped."""
        executed, skipped = self._progress.executed, self._progress.skipped
        if not executed + skipped:
            return shown
        began = self._progress.resumed_from if self._begun else skipped
        begun = (
            shown.begun
            if self._begun
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

    def _look(self) -> Seal:
        """Read new records of the journal; begin again if the journal was replaced."""
        store = self.store
        seal = seal_for(store)
        if store is not self._store or not holds(store, seal, self.run_id, self._at):
            self._forget()
            self._store = store
        for entry, at in read(store, seal, self.run_id, self._at):
            self._at = at
            if isinstance(entry, Entry):
                self._entries.append(_slim(entry))
        return seal

    def find(self, name: str, digest: str) -> Entry | None:
        """The record of a cell, if it is done; the newest, if it was executed again."""
        seal = self._look()
        found = [
            each.entry.number
            for each in Pool(self._entries).all
            if each.call.module == _CELLS
            and each.answers
            and (each.call.name, each.call.digest) == (name, digest)
        ]
        return read_one(self.store, seal, self.run_id, max(found)) if found else None

    def load(self, entry: Entry) -> dict[str, Any]:
        """Load the variables and outputs of a skipped cell.

        Raises:
            UnreadableValueError: it cannot be loaded here.
        """
        assert isinstance(entry.record, Outcome)
        value: dict[str, Any] = codec.decode(entry.payload, entry.record.form)
        self._progress.skipped += 1
        return value

    # -- executing -------------------------------------------------------------------------------

    def execute(self, cell: Cell) -> None:
        """Execute a cell, and record it.

        Raises:
            RunBusyError: another kernel executes a cell of this notebook; says which.
            NotRecordableError: its outputs cannot be recorded.
        """
        with self._shown(cell):
            execute(self._open(cell))

    async def execute_async(self, cell: Cell) -> None:
        """The same for a cell that awaits."""
        with self._shown(cell):
            await execute_async(self._open(cell))

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

    def _open(self, cell: Cell) -> _Piece:
        try:
            opened = open_run(
                Invocation(
                    name=self._name,
                    label=self._label,
                    function=_notebook,
                    source=Source("", "", 0, []),
                    bound={},
                    instance=None,
                    digest=_digest.combine(self._name),
                    store=self.store,
                    run_id=self.run_id,
                    explicit=False,
                    fsync=True,
                )
            )
        except RunBusyError as error:
            raise RunBusyError(
                f"a cell of this notebook is being executed {describe_owner(error.owner)}: "
                "wait until it ends, or interrupt or shut down that kernel",
                run_id=self.run_id,
                owner=error.owner,
            ) from None
        assert not isinstance(opened, Recall)  # its results are never recorded
        body = _Body(self, opened.active, cell, is_new=opened.is_new)
        return _Piece(opened.active, body, opened.before, opened.is_new)

    def go_on(self, active: ActiveRun, *, is_new: bool) -> None:
        """Be where the cells that are done have left the run."""
        journal = active.journal
        if not self._whole:
            self._forget()
            self._store, self._whole = journal.store, True
        self._entries += map(_slim, journal.load(self._at))
        self._at = journal.position
        pool = Pool(self._entries, known_steps)
        recorded = pool.all
        for entry in self._entries:
            journal._count(entry.record)
        for each in recorded:
            if each.call.module == _CELLS:
                pool.take(each)  # and the calls inside it, if it is done
        loose = {each.call.number for each in pool.all}
        used = [each.call for each in recorded if each.call.number not in loose]
        active.pool = pool
        active.ordinals = Ordinals(
            Counter(call.name for call in used),
            Counter((call.name, call.digest) for call in used if call.child),
        )
        self._tell(active, is_new=is_new)

    def _tell(self, active: ActiveRun, *, is_new: bool) -> None:
        """Record that the run is in progress; for a kernel's first cell, that it resumes."""
        now = time.time()
        active.facts = active.facts._replace(status="running", end=0, error="", updated_at=now)
        first, self._begun = not self._begun, True
        if first and not is_new:
            self._progress.resumed_from = self._progress.skipped
            told = f"resumes after {count(self._progress.skipped, 'skipped cell')}"
            resumed = Resumed(active.journal.epoch, told, self._progress.skipped, at=now)
            active.write((resumed, b""), durable=False, head=active.facts)
        else:
            active.write(durable=False, head=active.facts)
        active.progress = self._progress


class _NotebookRun(Run):
    """The run of this notebook."""

    def __init__(self, store: Store, run_id: str, notebook: Notebook) -> None:
        super().__init__(store, run_id)
        self._notebook = notebook

    def _shown(self, seen: Overview | None = None) -> RunShown:
        return self._notebook.as_seen(super()._shown(seen))


class _Piece(Opened["_Body"]):
    """The executing of one cell."""

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record the outcome; the run never completes, so that there is no result to recall."""
        super().conclude(value, error, again=True)


class _Body(NothingGiven):
    """The part of the run that is executed: one cell."""

    def __init__(self, notebook: Notebook, active: ActiveRun, cell: Cell, *, is_new: bool) -> None:
        self._notebook, self._active, self._cell = notebook, active, cell
        self._is_new = is_new
        self._locator = _Locator(_notebook.__code__, cell.site)
        active._locator = self._locator

    def run(self) -> None:
        """Execute the cell."""
        drive(self._begin()).unwrap()
        self._active.pool = Pool()  # the remaining records belong to other cells

    async def arun(self) -> None:
        """Execute a cell that awaits."""
        from stepwise._calls.async_driver import adrive

        (await adrive(self._begin())).unwrap()
        self._active.pool = Pool()

    def _begin(self) -> Core:
        self._active.begun = True
        self._notebook.go_on(self._active, is_new=self._is_new)
        scope = current_scope()
        assert scope is not None
        cell = self._cell
        step = _CellStep(self._inside(cell.body), cell.name)
        return perform(step, scope, Identity(cell.digest, {}), cell.inputs, (), {})

    def _inside(self, body: Callable[[], Any]) -> Callable[[], Any]:
        def inside() -> Any:
            self._locator.inside = True
            return body()

        async def inside_async() -> Any:
            self._locator.inside = True
            made: Coroutine[Any, Any, Any] = body()
            return await made

        return inside_async if inspect.iscoroutinefunction(body) else inside


class _CellStep(Step):
    """A cell, as the step that it is."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        function.__module__ = _CELLS
        super().__init__(function, kind="cell", name=name)

    def watch(self, bound: Mapping[str, Any]) -> Watch:
        """Return nothing: the changes are among the cell's outputs."""
        return Watch({})


class _Locator(Locator):
    """The places of calls: a cell by its number, a call inside it by its line."""

    def __init__(self, code: Any, site: str) -> None:
        super().__init__(code, None)
        self._cell_site = site
        self.inside = False

    def origin(self, *, effect: bool, helped: bool) -> Origin:
        if not self.inside:
            return Origin(self._cell_site)
        return super().origin(effect=False, helped=False)


def _notebook() -> None:
    """The placeholder for the function that a notebook does not have."""


def _slim(entry: Entry) -> Entry:
    """An entry without the outputs of its cell, which are read again when they are needed."""
    record = entry.record
    if isinstance(record, Outcome) and record.call.module == _CELLS:
        return entry._replace(payload=b"")
    return entry
