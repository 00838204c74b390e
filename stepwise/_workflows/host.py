"""Runs of programs without a workflow function: agents, graphs, notebooks and integrations.

The *host* of such a program cannot enter a function in the middle.  The host names its program and
the values that distinguish its runs, and opens a run (:func:`open_run`).  The host chooses where
the run resumes (:meth:`HostedRun.resume_at_newest`, :meth:`HostedRun.resume_from_start`), and calls
steps that are recorded (:func:`call`).  The host's own objects are stored beside the records
(:class:`HostStore`).

A run of pieces is executed piece by piece, like the cells of a notebook.

A run of pieces has no function, and each piece is a step of the run.  A piece opens the run and
closes it at the end, so that another process may read or delete the run in between.  If a piece
raised or its process was killed, the records inside the piece answer the next piece that makes the
same call.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

from stepwise._calls.async_driver import adrive, aresume
from stepwise._calls.call import Performance, fail_attempt, left_by
from stepwise._calls.driver import Core, Result, at_once, drive, start
from stepwise._calls.steps import Step, step_of
from stepwise._checkpoints.checkpoints import AT_TOP, ClassicRetention, State
from stepwise._execution.account import Ordinals, Progress
from stepwise._execution.active_run import ActiveRun, Scope, branches, current_scope, scope_variable
from stepwise._execution.flows import Unwinding
from stepwise._execution.location import Locator, Origin
from stepwise._execution.outcomes import ShownValue, load_outcome
from stepwise._execution.process_memory import is_defined_now, known_steps, memory, steps_around
from stepwise._execution.tasks import warn_if_unseen
from stepwise._execution.waits import Taken
from stepwise._identity.call_parts import HeldParts
from stepwise._identity.identity import derived_id, label_of, uncounted
from stepwise._identity.module_names import file_of, other_names, place_of
from stepwise._journal import journal as journals
from stepwise._journal.journal import Journal
from stepwise._journal.lease import describe_owner
from stepwise._journal.logs import SESSIONS, THREADS, LogEnd, LogIndex, SealedLog
from stepwise._journal.projection import Calls
from stepwise._journal.records import Entry, Forgotten, Resumed, RunFacts
from stepwise._journal.seal import DamagedError, Seal, named
from stepwise._matching.pool import Pool
from stepwise._matching.subjects import NOTHING_WATCHED, Identity, Watched
from stepwise._rewrite.source import Source
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import count, notice
from stepwise._values import digest
from stepwise._values.codec import Codec
from stepwise._values.unpickling import Data
from stepwise._workflows.begin import live_run
from stepwise._workflows.begin import open_run as _open_run
from stepwise._workflows.definition import Callee, HostProgram
from stepwise._workflows.execute import Invocation, OpenedRun, Recall, execute, execute_async
from stepwise._workflows.frame import state_of
from stepwise._workflows.resume import go_on_at, newest_that_holds, record_resumed
from stepwise.stores import Store

# -- host -----------------------------------------------------------------------------------------


_NOTHING: Mapping[str, Any] = {}


# -- which run -----------------------------------------------------------------------------------


def program_of(
    function: Callable[..., Any], label: str, *, module: str = "", code: str = ""
) -> HostProgram:
    """Return a program of a module, with all names by which its file is started or imported.

    Args:
        function: represents the program.
        module: the defining module; by default the module of ``function``.
        code: fingerprint of the executed code.
    """
    module = module or function.__module__
    file = file_of(module)
    name, others = f"{place_of(module)}:{label}", other_names(module, label)
    return HostProgram(name, label, function, Source(file, "", 0, []), code, file, others)


def completed_here(store: Store, base: str) -> int:
    """Return the number of runs with this base id that have completed in this process."""
    return memory.ordinal(store.url, base)


def count_completed(store: Store, base: str) -> None:
    """Count a run that completed or whose result was recalled."""
    memory.completed(store.url, base, base)


def open_run(
    program: HostProgram,
    store: Store,
    run_id: str,
    bound: Mapping[str, Any],
    digest: str,
    *,
    parts: HeldParts | None = None,
    explicit: bool = True,
) -> Recall | HostedRun:
    """Open a run, or recall its result.

    Args:
        bound: the arguments by name, in the form for display.
        digest: the digest of the arguments.
        parts: the values that the program's functions hold, if they distinguish runs.
        explicit: True if the user chose the run id.

    Raises:
        RunBusyError, RunOwnedError: another thread or process is executing the run.
        RunConflictError: the id belongs to a run with other arguments or parts.
    """
    callee = Callee(program, bound, digest, parts)
    return _open_run(Invocation(callee, store, run_id, explicit, fsync=True), HostedRun)


# -- a run in progress ---------------------------------------------------------------------------


class HostedRun(OpenedRun):
    """A run that a host executes."""

    _body: Callable[[], Any]

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.active.run_id

    @property
    def interrupted(self) -> bool:
        """True if the run's caller was cancelled, by Ctrl-C or a shutdown."""
        return self.active.interrupted

    @property
    def codec(self) -> Codec:
        """The codec that records the run's values."""
        return self.active.codec

    async def execute(self, body: Callable[[], Awaitable[Any]], *, idle: int = 0) -> Any:
        """Execute the run to its end, and record the result of ``body``.

        Args:
            idle: the number of the run's tasks that only wait for other tasks of the run.
        """
        self._body, self.active.idle = body, idle
        try:
            return await execute_async(self)
        finally:
            parts = self.call.callee.parts
            if isinstance(parts, HeldParts):
                parts.note_assigned()

    async def arun(self) -> Any:
        """Await the body."""
        self.active.begun = True
        if self.is_new:
            self.active.tell("run_started", detail=self.active.facts.arguments)
        return await self._body()

    def changed_arguments(self) -> dict[str, str]:
        """Return nothing: a host has no arguments that its run could change."""
        return {}

    # -- where it resumes ------------------------------------------------------------------------

    def resume_from_start(self) -> str:
        """Resume from the start, with answers from all records; return the notice for the user."""
        active = self.active
        go_on_at(active, AT_TOP, active.journal.load())
        answered = count(active.pool.answering, "step")
        return f"resumes from its beginning, {answered} answered by the journal"

    def resume_at_newest(self, checkpoints: Iterable[tuple[Any, State | None]], noun: str) -> Any:
        """Resume at the newest checkpoint that still holds; return it, or ``None`` if none does.

        The records after the checkpoint answer the calls that follow.

        Args:
            checkpoints: the newest first, each with its state.  A checkpoint without a state lets
                all records answer.  Its ``step_number`` is for messages.
            noun: the unit that ``step_number`` counts.
        """

        def damaged(checkpoint: Any) -> None:
            after = f"its checkpoint after {count(checkpoint.step_number, noun)}"
            notice(
                f"{self.run_id}: the journal before {after} is damaged; the checkpoint is left out"
            )

        journal = self.active.journal
        states = ((each, state or AT_TOP) for each, state in checkpoints)
        found = newest_that_holds(journal, states, load=journal.load_on, damaged=damaged)
        if found is None:
            return None
        checkpoint, state, entries = found
        go_on_at(self.active, state, entries)
        return checkpoint

    def record_resumed(self, told: str, step: int, *, if_changed: str = "") -> None:
        """Record and report how the run resumes, and after how many steps.

        Args:
            if_changed: the notice if the program's code has changed.
        """
        code = self.call.callee.workflow.code
        if if_changed and self.active.facts.code != code:
            notice(f"{self.run_id}: {if_changed}")
        record_resumed(self.active, told, step, code=code)
        notice(f"{self.run_id} {told}")

    # -- its calls -------------------------------------------------------------------------------

    def retry_calls(self, *numbers: int) -> None:
        """Record that calls must be made again: their records no longer answer."""
        if numbers:
            self.active.write((Forgotten(numbers, time.time()), b""), durable=False)

    async def retry_attempt(self, error: Exception) -> None:
        """Record that the current call failed and another call retries it.

        Inner calls that completed answer the retry, as with the retry of a step.
        """
        scope = current_scope()
        assert scope is not None
        (await adrive(fail_attempt(scope, error, again=True, by_host=True))).unwrap()
        scope.inner.clear()

    def retry_loop(self, error: Exception | None) -> None:
        """Record that the body failed and runs again from where the run resumes, as one attempt.

        Args:
            error: the body's exception; ``None`` for a failure in an earlier process, if there was
                one.
        """
        active = self.active
        if error is None and active.facts.status != "failed":
            return  # the earlier attempt was cut off
        with active.lock:
            calls = {each.call.number: each for each in active.pool.all}
            record, _ = left_by(active, 0, calls, error)
        if record is not None:
            active.write((record, b""))
        active.unwinding = Unwinding(self.run_id)  # earlier exceptions no longer count

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Execute an attempt of the body; tasks of a failed attempt make no more calls."""
        active = self.active
        scope = Scope(active)
        token = scope_variable.set(scope)
        try:
            yield
        except Exception:
            active.inner.over[id(scope.inner)] = scope.inner
            raise
        finally:
            scope_variable.reset(token)

    def give_back(self, *, inside: int) -> None:
        """Let the records of calls inside a call answer again.

        Args:
            inside: the number of the outer call.
        """
        active, journal = self.active, self.active.journal
        entries = [*journals.read_entries(journal.store, journal.seal, journal.run_id)]
        outcomes = (entry.outcome for entry in entries if entry.step == inside)
        within = (number for outcome in outcomes if outcome is not None for number in outcome.inner)
        known = Calls(entries).known
        with active.lock:
            for recorded in filter(None, map(known.get, within)):
                active.pool.put_back(recorded)

    def count_anew(self, branch: str) -> None:
        """Number the calls of a branch from 1 again, as a process that repeats them does."""
        self.active.ordinals.count_anew(branch)

    # -- stored objects --------------------------------------------------------------------------

    def state(self) -> State:
        """Return the state of the run; a host's code has no position."""
        return state_of(self.active)

    def put(self, name: str, header: dict[str, Any], data: Data = b"", *, durable: bool) -> None:
        """Store an object beside the run's records."""
        self.active.journal.put(name, header, data, durable=durable)


# -- calls inside it -----------------------------------------------------------------------------


def is_in_run() -> bool:
    """Return whether the current code is executed as part of a run."""
    return current_scope() is not None


async def call(
    step: Step,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] = _NOTHING,
    *,
    branch: str = "",
    instance: object = None,
    only_recorded: bool = False,
) -> Any:
    """Call a step of the current run: execute and record it, or answer from the journal.

    Args:
        branch: the concurrent branch of the run that makes the call.
        instance: the first argument, if the function is an undecorated method of this object.
        only_recorded: if the call is not recorded, do nothing and return ``None``.
    """
    scope = current_scope()
    assert scope is not None
    if branch:
        scope = copy.copy(scope)
        scope.branch = branch
    core = step.core(scope, args, kwargs, instance, asks_first=only_recorded)
    operation = start(core)
    if only_recorded and not isinstance(operation, Result):
        core.close()  # the journal was queried; nothing was done
        return None
    return (await aresume(core, operation)).unwrap()


def name_branches(name: Callable[[str], str]) -> None:
    """Set the function that names the branch of each call of a run.

    The function receives the run id, and returns an empty name for no branch.  Calls of different
    branches are matched separately, so branches may run side by side, or be left out on resume.
    """
    branches.name = name


def run_here() -> str:
    """Return the id of the run that executes the current code; empty outside of any run."""
    scope = current_scope()
    return scope.run.run_id if scope is not None else ""


def continue_branches(prefix: str) -> None:
    """Let branches with this prefix skip the repetition of their completed calls."""
    scope = current_scope()
    if scope is not None:
        with scope.run.lock:
            scope.run.pool.done.add(prefix)


def call_number() -> int:
    """Return the number of the current call; 0 outside of any call."""
    scope = current_scope()
    return scope.call.number if scope is not None and scope.call is not None else 0


# -- stores --------------------------------------------------------------------------------------


class HostStore:
    """A store of runs: facts about runs, and the objects that a host stores beside the records."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @cached
    def seal(self) -> Seal:
        """The seal of the store's records and objects."""
        # Created on first use, since this also creates the key of a persistent store.
        return journals.seal_for(self.store)

    def facts(self, run_id: str) -> RunFacts | None:
        """Return the facts about a run; ``None`` if there is no such run."""
        return journals.facts_of(self.store, self.seal, run_id)

    def is_of_file(self, facts: RunFacts, names: Sequence[str], file: str) -> bool:
        """Return whether a file defines a run's program under any of these full names."""
        return journals.is_of_file(self.store, self.seal, facts, names, file)

    def get(self, run_id: str, name: str) -> tuple[Mapping[str, Any], bytes]:
        """Return the header and the data of an object beside a run's records.

        Raises:
            DamagedError: the object does not verify, or is missing.
        """
        opened = self.seal.open(named(name, run_id), self.store.get(run_id, name) or b"")
        return opened.header, opened.payload

    @contextmanager
    def owned(self, run_id: str) -> Iterator[Journal]:
        """Yield the journal of a run, to write objects to it.

        The run is leased unless this process executes it.  One thread at a time gets the journal;
        other threads wait.

        Raises:
            RunBusyError: another process is executing the run.
        """
        if not _turns:
            os.register_at_fork(after_in_child=_turns.clear)
        with _turns.setdefault(self.store.url, threading.RLock()):
            active = live_run(self.store, run_id)
            if active is not None:
                yield active.journal
                return
            with journals.owned_journal(self.store, self.seal, run_id) as journal:
                yield journal


_turns: dict[str, threading.RLock] = {}


# -- pieces ---------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A piece to execute.

    Args:
        name: the name of the piece.
        digest: distinguishes the piece from other pieces of the same name.
        inputs: the objects to show as the piece's inputs, by name.
        site: the name of the piece's place in listings.
        body: executes the piece, and returns the value to record.
    """

    name: str
    digest: str
    inputs: Mapping[str, Any]
    site: str
    body: Callable[[], Any]


class RunPieces:
    """The pieces of one run that this process knows.

    Args:
        program: represents the code of the run.
        run_id: the id of the run.
        module: the name of the module that the pieces are recorded under.
        noun: the word for a piece.

    Attributes:
        progress: the numbers of pieces that this process has executed and skipped.
        begun: True if this process has executed a piece.
    """

    def __init__(self, program: HostProgram, run_id: str, module: str, noun: str) -> None:
        self._program, self._run_id, self._module, self._noun = program, run_id, module, noun
        self.progress = Progress()
        self.begun = False
        self._forget()

    def _forget(self) -> None:
        self._store: Store | None = None
        self._entries: list[Entry] = []
        self._at = journals.Position()
        self._whole = False  # whether all records have been verified under the lease

    def find(self, store: Store, name: str, digest_: str) -> Entry | None:
        """Return the newest record of a completed piece, or ``None`` if there is none."""
        seal = journals.seal_for(store)
        same = store is self._store
        following = journals.read_on(store, seal, self._run_id, self._at) if same else None
        if following is None:
            self._forget()  # another journal has replaced the known one
            self._store, following = store, journals.read(store, seal, self._run_id)
        for entry, at in following:
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
        return journals.read_one(store, seal, self._run_id, max(found)) if found else None

    def skip(self, entry: Entry) -> Any:
        """Return the recorded value of a completed piece, and count the piece as skipped.

        Raises:
            UnreadableValueError: the value cannot be loaded here.
        """
        value = load_outcome(Codec(), entry).value
        self.progress.skipped += 1
        return value

    def _slim(self, entry: Entry) -> Entry:
        """Return an entry without the value of a piece, which is read again on use."""
        outcome = entry.outcome
        is_piece = outcome is not None and outcome.call.module == self._module
        return entry._replace(payload=b"") if is_piece else entry

    def open(self, store: Store, piece: Piece) -> PieceRun:
        """Open the run to execute a piece.

        Raises:
            RunBusyError: another thread or process executes a piece of the run.
        """
        callee = Callee(self._program, {}, digest.combine(self._program.full_name))
        call = Invocation(callee, store, self._run_id, explicit=False, fsync=True)
        run = _open_run(call, PieceRun)
        assert not isinstance(run, Recall)  # the run's result is never recorded
        run.begin_with(self, piece)
        return run

    def go_on(self, run: PieceRun) -> None:
        """Put the run into the state in which the completed pieces left it."""
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
                pool.take(each)  # takes the calls inside a completed piece, too
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
        """Record that the run is in progress.

        Before this process's first piece of an existing run, record also that the run resumes.
        """
        active, now = run.active, time.time()
        unknown = not run.is_new and active.facts.status == "running"  # the run was killed
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
    """A run while one of its pieces is executed."""

    def begin_with(self, pieces: RunPieces, piece: Piece) -> None:
        """Set the piece to execute."""
        self._pieces, self._piece = pieces, piece
        code = self.call.callee.workflow.function.__code__
        self.active.locator = _PieceLocator(code, piece.site)

    def run(self) -> None:
        """Execute the piece."""
        drive(self._begin()).unwrap()
        self.active.pool = Pool()  # the remaining records belong to other pieces

    async def arun(self) -> None:
        """Execute an asynchronous piece."""
        (await adrive(self._begin())).unwrap()
        self.active.pool = Pool()

    def _begin(self) -> Core:
        self.active.begun = True
        self._pieces.go_on(self)
        return self._pieces.perform(self._piece)

    def execute(self) -> None:
        """Execute the piece, and record its value.

        Raises:
            NotRecordableError: the value cannot be recorded.
        """
        execute(self)

    async def execute_async(self) -> None:
        """Execute an asynchronous piece, and record its value; see :meth:`execute`."""
        await execute_async(self)

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record the outcome of the piece; the run itself never completes and has no result."""
        super().conclude(value, error, again=True)


class _PieceStep(Step):
    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return nothing to watch: changes of the inputs are among the cell's outputs."""
        return NOTHING_WATCHED


class _PieceLocator(Locator):
    """The places of calls: a piece is at its site, and a call inside a piece at its line."""

    def __init__(self, code: CodeType, site: str) -> None:
        super().__init__(code, None)
        self._piece_site = site

    def origin(self, *, effect: bool, helped: bool) -> Origin:
        scope = current_scope()
        if scope is None or scope.call is None:
            return Origin(self._piece_site)
        return super().origin(effect=False, helped=False)
