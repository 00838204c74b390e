"""A run that is executed piece by piece: the cells of a notebook.

Such a run has no function.  Each piece is a step of it, which takes the run up and gives it up at
its end, so that another process may look and forget in between.  What is recorded inside a piece
that did not complete (it raised, or its process was killed) answers the next one that makes the
same call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from stepwise._calls.async_driver import adrive
from stepwise._calls.driver import Core, drive
from stepwise._calls.perform import Performance
from stepwise._calls.steps import Step, is_defined_now, known_steps
from stepwise._execution.active_run import current_scope
from stepwise._execution.location import Locator, Origin
from stepwise._execution.outcomes import load_outcome
from stepwise._execution.waits import Taken
from stepwise._journal.counters import Ordinals, Progress
from stepwise._journal.journal import Position, holds, read, read_one, seal_for
from stepwise._journal.projection import Calls
from stepwise._journal.records import Entry, Resumed
from stepwise._matching.held import NOTHING_WATCHED, Watched
from stepwise._matching.pool import Pool
from stepwise._matching.subjects import Identity
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count
from stepwise._values import digest
from stepwise._values.codec import Codec
from stepwise._workflows import execute
from stepwise._workflows.definition import Callee, HostProgram
from stepwise._workflows.opening import Invocation, OpenedRun, Recall, open_run
from stepwise.stores import Store

__all__ = ["Entry", "Piece", "PieceRun", "RunPieces"]


class Piece(NamedTuple):
    """A piece that is to be executed.

    Args:
        digest: what tells it from others of its name.
        inputs: the objects that it is shown with, by name.
        site: how it is called in listings.
        body: executes it, and gives what is recorded.
    """

    name: str
    digest: str
    inputs: Mapping[str, Any]
    site: str
    body: Callable[[], Any]


class RunPieces:
    """The pieces of one run, as this process knows them.

    Args:
        program: stands for the run.
        run_id: of the run.
        module: the one that they count as steps of.
        noun: what one is called.

    Attributes:
        progress: how many this process has executed, and how many it has skipped.
        begun: it has executed one.
    """

    def __init__(self, program: HostProgram, run_id: str, module: str, noun: str) -> None:
        self._program, self._run_id, self._module, self._noun = program, run_id, module, noun
        self.progress = Progress()
        self.begun = False
        self._forget()

    def _forget(self) -> None:
        self._store: Store | None = None
        self._entries: list[Entry] = []
        self._at = Position()
        self._whole = False  # everything has been verified under the lease

    def find(self, store: Store, name: str, digest_: str) -> Entry | None:
        """The record of a piece, if it is done; the newest, if it was executed again."""
        seal = seal_for(store)
        if store is not self._store or not holds(store, seal, self._run_id, self._at):
            self._forget()  # it is another journal
            self._store = store
        for entry, at in read(store, seal, self._run_id, self._at):
            self._at = at
            if isinstance(entry, Entry):
                self._entries.append(self._slim(entry))
        found = [
            each.entry.number
            for each in Calls(self._entries)
            if each.call.module == self._module
            and each.answers
            and (each.call.name, each.call.digest) == (name, digest_)
        ]
        return read_one(store, seal, self._run_id, max(found)) if found else None

    def skip(self, entry: Entry) -> Any:
        """Load what a piece gave that is done, and count it as skipped.

        Raises:
            UnreadableValueError: it cannot be loaded here.
        """
        value = load_outcome(Codec(), entry).value
        self.progress.skipped += 1
        return value

    def _slim(self, entry: Entry) -> Entry:
        """An entry without the value of its piece, which is read again when it is needed."""
        outcome = entry.outcome
        is_piece = outcome is not None and outcome.call.module == self._module
        return entry._replace(payload=b"") if is_piece else entry

    def open(self, store: Store, piece: Piece) -> PieceRun:
        """Take the run up, to execute a piece.

        Raises:
            RunBusyError: somebody executes a piece of it.
        """
        callee = Callee(self._program, {}, digest.combine(self._program.full_name))
        call = Invocation(callee, store, self._run_id, explicit=False, fsync=True)
        run = open_run(call, PieceRun)
        assert not isinstance(run, Recall)  # its results are never recorded
        run.begin_with(self, piece)
        return run

    def go_on(self, run: PieceRun) -> None:
        """Be where the pieces that are done have left the run."""
        active, journal = run.active, run.active.journal
        if not self._whole:
            self._forget()
            self._store, self._whole = journal.store, True
        self._entries += map(self._slim, journal.load(self._at))
        self._at = journal.position
        pool = Pool(self._entries, known_steps, defined=is_defined_now)
        recorded = pool.all
        for entry in self._entries:
            journal.count(entry)
        for each in recorded:
            if each.call.module == self._module:
                pool.take(each)  # and the calls inside it, if it is done
        loose = {each.call.number for each in pool.all}
        used = [each.call for each in recorded if each.call.number not in loose]
        active.pool = pool
        active.inbox.taken = Taken(entries=self._entries)
        active.ordinals = Ordinals(
            Counter(call.name for call in used),
            Counter((call.name, call.digest) for call in used if call.child),
        )
        self._tell(run)

    def _tell(self, run: PieceRun) -> None:
        """Record that the run is in progress; for the first piece here, that it resumes."""
        active, now = run.active, time.time()
        unknown = not run.is_new and active.facts.status == "running"  # it was killed
        active.account.resume(active.journal.position.sums)
        active.facts = active.facts._replace(
            status="running", end=0, error="", updated_at=now, waits=()
        )
        first, self.begun = not self.begun, True
        resumed = []
        if first and not run.is_new:
            skipped = self.progress.resumed_from = self.progress.skipped
            told = f"resumes after {count(skipped, f'skipped {self._noun}')}"
            record = Resumed(
                active.journal.epoch,
                told,
                skipped,
                at=now,
                trace=active.facts.trace,
                unknown=unknown,
            )
            resumed.append((record, b""))
        active.write(*resumed, durable=False, head=active.facts)
        active.progress = self.progress

    def perform(self, piece: Piece) -> Core:
        """Return the core that executes a piece in the run in progress."""
        scope, function = current_scope(), piece.body
        assert scope is not None
        function.__module__ = self._module
        step = _PieceStep(function, kind=self._noun, name=piece.name)
        return Performance(step, scope, Identity(piece.digest, {}), piece.inputs).core()


class PieceRun(OpenedRun):
    """The run while one piece of it is executed."""

    def begin_with(self, pieces: RunPieces, piece: Piece) -> None:
        """Execute this piece."""
        self._pieces, self._piece = pieces, piece
        code = self.call.callee.workflow.function.__code__
        self.active.locator = _PieceLocator(code, piece.site)

    def run(self) -> None:
        """Execute the piece."""
        drive(self._begin()).unwrap()
        self.active.pool = Pool()  # the remaining records belong to other pieces

    async def arun(self) -> None:
        """Execute a piece that awaits."""
        (await adrive(self._begin())).unwrap()
        self.active.pool = Pool()

    def _begin(self) -> Core:
        self.active.begun = True
        self._pieces.go_on(self)
        return self._pieces.perform(self._piece)

    def execute(self) -> None:
        """Execute the piece, and record what it gives.

        Raises:
            NotRecordableError: that cannot be recorded.
        """
        execute.execute(self)

    async def execute_async(self) -> None:
        """The same for a piece that awaits."""
        await execute.execute_async(self)

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record the outcome; the run never completes, so that there is no result to recall."""
        super().conclude(value, error, again=True)


class _PieceStep(Step):
    """A piece, as the step that it is."""

    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return nothing: the changes are among the cell's outputs."""
        return NOTHING_WATCHED


class _PieceLocator(Locator):
    """Where calls are made: the piece itself at its site, those inside it at their line."""

    def __init__(self, code: CodeType, site: str) -> None:
        super().__init__(code, None)
        self._piece_site = site

    def origin(self, *, effect: bool, helped: bool, plain: bool = False) -> Origin:
        scope = current_scope()
        if scope is None or scope.call is None:
            return Origin(self._piece_site)
        return super().origin(effect=False, helped=False)
