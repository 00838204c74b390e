"""The choice where a run resumes: at the newest checkpoint that fits, otherwise at the top.

The run takes over from earlier attempts the records that answer its calls, and the counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from stepwise._checkpoints.checkpoints import AT_TOP, Checkpoints, Loaded, State, lost_by_replay
from stepwise._checkpoints.variables import load_values
from stepwise._execution.account import Ordinals, Progress
from stepwise._execution.active_run import ActiveRun, debugged
from stepwise._execution.process_memory import command as process_command
from stepwise._execution.process_memory import is_defined_now, known_steps
from stepwise._execution.waits import Taken
from stepwise._journal.journal import Journal, Position, is_begun, is_ready, stream_name
from stepwise._journal.projection import Flags, is_only_submitted, last_end, made_again, start_of
from stepwise._journal.records import Cancelling, Entry, Resumed, RunFacts
from stepwise._matching.pool import Pool
from stepwise._matching.subjects import Subjects
from stepwise._rewrite.frame import Rewritten, pending
from stepwise._rewrite.source import Source, following_line, prefix_fingerprint
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, is_ours, notice, shell_word
from stepwise._values.codec import JSON, PYTHON
from stepwise._workflows.definition import BoundCall, is_defined
from stepwise._workflows.execute import Invocation, OpenedRun
from stepwise._workflows.frame import RestoreFailedError, WorkflowFrame
from stepwise.errors import CodeChangedError

# -- takeover -------------------------------------------------------------------------------------


T = TypeVar("T")


def newest_that_holds(
    journal: Journal,
    checkpoints: Iterable[tuple[T, State]],
    *,
    load: Callable[[Position], list[Entry] | None],
    damaged: Callable[[T], None],
) -> tuple[T, State, list[Entry]] | None:
    """Return the newest checkpoint that holds, with the records after it; None if none holds.

    A checkpoint holds if the journal before it is intact, and no call before it has to be made
    again.  The top of the function always holds.

    Args:
        checkpoints: the newest first, each with its state.
        load: returns the records after a position; ``None`` if the journal does not hold it.
        damaged: called with a checkpoint if the journal before it is damaged.
    """
    for checkpoint, state in checkpoints:
        entries = load(state.start) if streams_hold(journal, state.said) else None
        if entries is None:
            damaged(checkpoint)
        elif all(number > state.calls for number in made_again(entries)):
            return checkpoint, state, entries
    return None


def go_on_at(active: ActiveRun, state: State, entries: list[Entry]) -> None:
    """Continue at a checkpoint; the records after it answer the calls that follow.

    Args:
        state: of the checkpoint, or :data:`AT_TOP`.
        entries: the records after the checkpoint, or all records.
    """
    journal = active.journal
    earlier = list(state.earlier(journal.store, journal.seal, journal.run_id))
    children = {(name, digest): count for name, digest, count in state.children}
    active.subjects.leave(completed=False)
    active.subjects = Subjects(
        active.run_id, ((whose, part) for whose, part in state.state), state.serial
    )
    active.pool = pool_of(entries, active.subjects.state, earlier, counted=state.ordinals)
    active.subjects.go_on_after(max(state.serial, active.pool.highest))
    active.ordinals = Ordinals(state.ordinals, children)
    active.account.take_over([*(entry for entry, _ in earlier), *entries])
    active.progress = Progress(
        skipped=state.step, resumed_from=state.step, seconds=state.seconds, usage=state.usage
    )
    active.alive = max([state.at, *map(_at, entries[-1:])])
    active.inbox.taken = Taken(state.taken, entries)
    if state.told and not any(isinstance(each.record, Cancelling) for each in entries):
        active.steering.has_been_told()
    journal.calls = max(journal.calls, state.calls)
    if state is not AT_TOP or not is_only_submitted(entries):  # else nothing was said
        _take_over_streams(active, state.said)


def _take_over_streams(active: ActiveRun, said: Sequence[Any]) -> None:
    """Continue the streams of the run after a checkpoint, unless the run is only looked at."""
    journal, look = active.journal, debugged.look
    if not is_begun(journal.store, stream_name(active.run_id)):
        return
    if look is None or not look.holds(active.root.run_id):
        from stepwise._calls.emitting import take_over  # on use: few runs say something

        take_over(active, said, replays=True)


def streams_hold(journal: Journal, said: Sequence[Any]) -> bool:
    """Return whether the streams of the run reach as far as a checkpoint says."""
    if not said:
        return True
    from stepwise._journal.stream import StreamLog  # on use, as above

    return StreamLog(journal.store, journal.seal, journal.run_id).holds(*said[:2])


def pool_of(
    entries: Iterable[Entry],
    state: set[tuple[str, str]] | None = None,
    earlier: Sequence[tuple[Entry, Flags]] = (),
    counted: Mapping[str, int] | None = None,
) -> Pool:
    """Return the recorded calls that may answer the calls which follow.

    Args:
        entries: the records after the checkpoint, or all records.
        earlier: the unused records before the checkpoint, with their flags.
        state, counted: as for :class:`Pool`.
    """
    flags = {entry.number: known for entry, known in earlier}
    records = [*(entry for entry, _ in earlier), *entries]
    return Pool(records, known_steps, flags, state, defined=is_known, counted=counted)


def in_children(pool: Pool) -> str:
    """Return the words that name the stopped child runs, which resume as well."""
    left = [each for each in pool.all if not (each.answers or each.over)]
    children = [each.call.child for each in left if each.call.child]
    more = f" and {len(children) - 1} more" if children[1:] else ""
    return f", in its child run {children[0]}{more}" if children else ""


def is_known(module: str, name: str) -> bool:
    """Return whether the program has a step or a workflow of that name."""
    return is_defined_now(module, name) or is_defined(module, name)


def _at(entry: Entry) -> float:
    """Return when a record was written, in seconds since 1970; 0 if the record has no time."""
    at: float = getattr(entry.record, "at", 0.0) or (entry.call.at if entry.call else 0.0)
    return at


def record_resumed(
    active: ActiveRun, how: str, step: int, *, code: str, void: bool = False
) -> None:
    """Record and tell how the run resumes, and after how many steps; see :class:`Resumed`."""
    now, facts = time.time(), active.facts
    had_ended = facts.end or facts.status in ("failed", "cancelled")
    # Requests to cancel the attempt that ended are void; two may have come at once.
    before = active.inbox.messages if had_ended else []
    seen = before[-1].number if before else 0
    command, cwd = process_command(active.secrets.mask) if active.parent is None else ((), "")
    sums = active.journal.position.sums
    unknown = sums.open and not is_ready(facts)
    active.account.resume(sums)
    active.facts = facts._replace(
        status="running",
        end=0,
        error="",
        code=code,
        created_at=now if facts.is_submitted else facts.created_at,
        updated_at=now,
        waits=(),
        cancels=max(seen, facts.cancels),
    )
    resumed = Resumed(
        active.journal.epoch,
        how,
        step,
        code=code,
        at=now,
        void=void,
        command=command,
        cwd=cwd,
        trace=active.facts.trace,
        unknown=unknown,
        seen=seen,
    )
    active.write((resumed, b""), durable=False, head=active.facts)
    progress = active.progress
    active.tell("run_resumed", detail=how, duration=progress.seconds, usage=progress.usage)


# -- resume ---------------------------------------------------------------------------------------


class Fitting:
    """The checkpoints of a run that fit today's code, and why the others do not.

    Args:
        rewritten: the workflow's function; ``None`` if no checkpoint can be entered.
        source: the source of that function.

    Attributes:
        given_up: the newest checkpoint with other code before it.
    """

    def __init__(
        self, checkpoints: Checkpoints, rewritten: Rewritten | None, source: Source
    ) -> None:
        self._checkpoints, self._rewritten, self._node = checkpoints, rewritten, source.node
        self._reasons: list[str] = []
        self._changed = ""
        self.given_up: State | None = None

    def __iter__(self) -> Iterator[tuple[Loaded, State]]:
        """Yield the checkpoints that fit, newest first; note why others do not."""
        for loaded in self._checkpoints.load():
            if isinstance(loaded, str):
                self._reasons.append("the newest checkpoint does not verify")
                continue
            state = loaded.state
            if self._rewritten is None:
                return
            if state.python != PYTHON:
                self._reasons.append(
                    f"the checkpoint at {state.where} was written by Python {state.python}"
                )
            elif self._rewritten.number(state.position) is None or not self._prefix_holds(state):
                self.given_up = self.given_up or state
                # The oldest checkpoint with other code before it locates the edit best.
                self._changed = f"the code before {state.where} has changed"
            else:
                yield loaded, state

    def _prefix_holds(self, state: State) -> bool:
        node = self._node()
        if node is None:
            return False
        return prefix_fingerprint(node, state.position, state.visited) == state.prefix

    def damaged(self, loaded: Loaded) -> None:
        """Note that the journal before a checkpoint is damaged."""
        self._reasons.append(f"the journal before {loaded.state.where} is damaged")

    def refuse(self, loaded: Loaded, why: str) -> None:
        """Rule out a checkpoint whose variables cannot be loaded."""
        self._checkpoints.refuse(loaded.name)
        self._reasons.append(why)

    def resumes_at(self, state: State) -> str:
        """Return ``file:line`` of the statement after a checkpoint; empty if it is not known."""
        node, other = self._node(), self.given_up
        line = following_line(node, state.position) if node is not None else None
        if other is not None:
            self._changed = (
                f"the checkpoint at {state.where} holds; the one at {other.where}, after "
                f"{count(other.step, 'step')}, is given up, since {self._changed}"
            )
        return f"{state.file}:{line}" if line is not None else ""

    @property
    def why(self) -> str:
        """Why the run does not resume at the newest checkpoint; empty if it does."""
        return "; ".join(dict.fromkeys(filter(None, (*self._reasons, self._changed))))


def cannot_replay(journal: Journal, facts: RunFacts, why: str) -> CodeChangedError | None:
    """Return the error of a run that a replay from the top would not bring back, else None."""
    if facts.pruned:
        so = (
            "its journal was pruned (prune_journal=True), so that it cannot be replayed from the "
            "top"
        )
    else:
        lost = lost_by_replay(journal.store, journal.seal, facts)
        if not lost:
            return None
        so = f"a replay from the top would lose {lost}"
    return CodeChangedError(
        f"run {facts.run_id!r} cannot resume: {why or 'earlier calls have to be made again'}, and "
        f"{so}. {'Bring back the code as it was, or start' if why else 'Start'} over: "
        f"stepwise forget {shell_word(facts.run_id)}",
        run_id=facts.run_id,
    )


def place_words(at: str, after: str) -> str:
    """Return where a run resumes, as text: at a statement, or after one if that is not known."""
    return f"at {at}" if at else f"after {after}"


class GoesOn(NamedTuple):
    """Where a run goes on; its text is what users read.

    Args:
        verdict: it continues inside its function, replays from the top, or begins there with
            nothing that answers.
        details: the words after the verdict.
        at: see :meth:`Fitting.resumes_at`; empty at the top.
        steps: the number of steps that need not be made again.
    """

    verdict: Literal["resumes", "replays", "begins"]
    details: str
    at: str = ""
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.verdict}{self.details}"


class WorkflowRun(OpenedRun):
    """A run of a workflow function, called so that the function continues where the run stopped."""

    frame_class: type[WorkflowFrame] = WorkflowFrame

    def __init__(self, call: Invocation, active: ActiveRun, before: bytes, is_new: bool) -> None:
        super().__init__(call, active, before, is_new)
        assert isinstance(call.callee, BoundCall)
        self._callee = call.callee
        options = call.callee.options
        self._source = call.callee.workflow.source
        self._rewritten = call.rewritten
        self._void = self._is_first = False
        self._goes_on = GoesOn("begins", "")
        self._checkpoints = Checkpoints(
            active.journal, options.retention, options.keep, prune_journal=options.prune_journal
        )
        self._fits = Fitting(self._checkpoints, self._rewritten, self._source)

    def run(self) -> Any:
        """Call the function, or enter it at a checkpoint."""
        while True:
            try:
                return self._enter()
            except RestoreFailedError as error:
                self._restore_failed(error)
            finally:
                self._left()

    async def arun(self) -> Any:
        """Call a coroutine function, or enter it at a checkpoint; see :meth:`run`."""
        while True:
            try:
                return await self._enter()
            except RestoreFailedError as error:
                self._restore_failed(error)
            finally:
                self._left()

    def _left(self) -> None:
        pending.set(None)
        frame = self.active.frame
        if isinstance(frame, WorkflowFrame):
            frame.module.left()

    def _enter(self) -> Any:
        """Prepare the frame, and call the function, whose own first line restores it."""
        loaded = None if self.is_new else self._choose()
        if loaded is None and not self.is_new:
            self._replay()
        if self._rewritten is None:
            self._begun()
            return self._callee.run_function()
        callee, target = self._callee, self._target(loaded) if loaded is not None else 0
        given = self.active, callee, self._rewritten, self._checkpoints, self._begun
        self.active.frame = frame = self.frame_class(*given, loaded, target)
        frame.opened = self
        pending.set(frame)
        del loaded  # large
        return self._rewritten.function(*callee.args, **callee.kwargs)

    def _target(self, loaded: Loaded) -> int:
        """Return the point of a checkpoint in today's code."""
        return (self._rewritten and self._rewritten.number(loaded.state.position)) or 0

    def _restore_failed(self, error: RestoreFailedError) -> None:
        frame = self.active.frame
        assert isinstance(frame, WorkflowFrame)
        assert frame.loaded is not None
        self._fits.refuse(frame.loaded, error.why)

    # -- choosing --------------------------------------------------------------------------------

    def _choose(self) -> Loaded | None:
        """Continue at the newest checkpoint that verifies, fits the code and holds; return it."""
        journal, damaged = self.active.journal, self._fits.damaged
        found = newest_that_holds(journal, self._fitting(), load=self._load, damaged=damaged)
        if found is None:
            return None
        loaded, state, entries = found
        go_on_at(self.active, state, entries)
        self._goes_on = self._resumes_at(loaded.state)
        return loaded

    def _fitting(self) -> Iterator[tuple[Loaded, State]]:
        return iter(self._fits)

    def _load(self, position: Position) -> list[Entry] | None:
        """Return the records after a position, without an end that its caller never acted on."""
        entries = self.active.journal.load_on(position)
        ended = last_end(entries) if entries and self.call.cut_off else None
        if entries and ended is not None:
            entries.remove(ended)
            self._void = True
        return entries

    def _resumes_at(self, state: State) -> GoesOn:
        """Return where the run resumes at a checkpoint."""
        at, code = self._fits.resumes_at(state), self._callee.workflow.code
        edited = self._fits.given_up is None and bool(code) and code != self.active.facts.code
        details = (
            f" {place_words(at, state.where)}, after {count(state.step, 'step')}"
            f"{in_children(self.active.pool)}{' (the code below it was edited)' if edited else ''}"
        )
        return GoesOn("resumes", details, at, state.step)

    def _replay(self) -> None:
        """Replay the run from the top, with answers from the journal."""
        active = self.active
        refusal = cannot_replay(active.journal, active.facts, self._fits.why)
        if refusal is not None:
            raise refusal
        entries = self._load(Position()) or []
        go_on_at(active, AT_TOP, entries)
        done = active.pool.answering
        within = in_children(active.pool)
        self._is_first = not (done or within) and is_only_submitted(entries)
        if done:
            answered = f"{count(done, 'step')} answered by the journal"
            self._goes_on = GoesOn("replays", f" from the top, {answered}{within}", steps=done)
        elif self._is_first:
            self._goes_on = GoesOn("begins", ", as it was submitted")
        else:
            why = within or self._with_nothing_done()
            self._goes_on = GoesOn("begins", f" again from the top{why}")
        if self.call.arguments_changed:
            self._put_arguments_back(entries)

    def _with_nothing_done(self) -> str:
        """Return the reason why the journal answers no step, as text."""
        active = self.active
        if active.facts.undone:
            return ": its side effects were undone"
        if active.journal.lost or active.journal.tail:  # another notice reports the loss
            return ""
        if any(each.status == "waiting" for each in active.pool.all):
            return ", where it waits"
        if active.facts.status == "failed" or any(
            each.status != "open" for each in active.pool.all
        ):
            return ": none of its steps had been done"
        if active.facts.status == "completed":
            return ": it had completed, but its end cannot be recalled"
        return ": it was stopped before its first step ended"

    def _put_arguments_back(self, entries: list[Entry]) -> None:
        start, around = start_of(entries), self.arguments()
        if not around.arguments:
            return
        if start is not None and start[1] and start[0].form != JSON:
            load_values(start[1], around)
        else:
            notice(
                f"{self.active.run_id}: its arguments could not be recorded when it began, so "
                "changes by the stopped attempt stay"
            )

    # -- beginning -------------------------------------------------------------------------------

    def _begun(self) -> None:
        """Record and report that the run begins or resumes, once the frame is ready."""
        self.active.begun = True
        if self.is_new:
            self.active.tell("run_started", detail=self.active.facts.arguments)
            return
        active = self.active
        step = active.progress.resumed_from or 0
        code = self._callee.workflow.code
        record_resumed(active, str(self._goes_on), step, code=code, void=self._void)
        has_table = active.is_branch or is_ours(self._callee.workflow.source.filename)
        if active.parent is None and not (self._is_first or has_table):
            why = self._fits.why
            notice(f"{active.run_id} {self._goes_on}{f' ({why})' if why else ''}")
