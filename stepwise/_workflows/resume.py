"""The choice where a run resumes: at the newest checkpoint that fits, else at the top."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwise._checkpoints.checkpoints import Checkpoints, Loaded, State
from stepwise._checkpoints.variables import load_values
from stepwise._execution.active_run import ActiveRun
from stepwise._journal.journal import Position
from stepwise._journal.projection import is_only_submitted, last_end, start_of
from stepwise._journal.records import Entry
from stepwise._rewrite import following_line, pending, prefix_fingerprint
from stepwise._runtime.messages import count, notice, shell_word
from stepwise._values.codec import JSON
from stepwise._values.pickling import PYTHON
from stepwise._workflows.definition import BoundCall
from stepwise._workflows.frame import RestoreFailedError, WorkflowFrame
from stepwise._workflows.opening import Invocation, OpenedRun
from stepwise._workflows.takeover import go_on_at_newest, go_on_from_the_top, record_resumed
from stepwise.errors import CodeChangedError

__all__ = ["WorkflowRun"]


class WorkflowRun(OpenedRun):
    """A run of a workflow function, which is called so that it resumes where the run stopped."""

    def __init__(self, call: Invocation, active: ActiveRun, before: bytes, is_new: bool) -> None:
        super().__init__(call, active, before, is_new)
        assert isinstance(call.callee, BoundCall)
        self._callee = call.callee
        options = call.callee.options
        self._source = call.callee.workflow.source
        self._rewritten = call.rewritten if active.codec.trusting else None
        self._void = self._is_first = False
        self._told = ""
        self._reasons: list[str] = []
        self._changed = ""
        self._checkpoints = Checkpoints(
            active.journal, options.retention, options.keep, prune_journal=options.prune_journal
        )

    def run(self) -> Any:
        """Call the function, or enter it in the middle."""
        while True:
            try:
                return self._enter()
            except RestoreFailedError as error:
                self._restore_failed(error)
            finally:
                self._left()

    async def arun(self) -> Any:
        """The same for a coroutine function."""
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
        """Prepare what fits best; the call itself is left to the function's own first line."""
        loaded = None if self.is_new else self._choose()
        if loaded is None and not self.is_new:
            self._replay()
        if self._rewritten is None:
            self._begun()
            return self._callee.run_function()
        target = self._rewritten.number(loaded.state.position) if loaded is not None else 0
        callee = self._callee
        frame = WorkflowFrame(
            self.active,
            callee,
            self._rewritten,
            self._checkpoints,
            self._begun,
            loaded,
            target or 0,
        )
        self.active.frame = frame
        pending.set(frame)
        del loaded  # large
        return self._rewritten.function(*callee.args, **callee.kwargs)

    def _restore_failed(self, error: RestoreFailedError) -> None:
        frame = self.active.frame
        assert isinstance(frame, WorkflowFrame)
        assert frame.loaded is not None
        self._checkpoints.refuse(frame.loaded.name)
        self._reasons.append(error.why)

    # -- choosing --------------------------------------------------------------------------------

    def _choose(self) -> Loaded | None:
        """Continue at the newest checkpoint that verifies, fits the code, and still holds."""

        def damaged(loaded: Loaded) -> None:
            self._reasons.append(f"the journal before {loaded.state.where} is damaged")

        active, fitting = self.active, self._fitting()
        found = go_on_at_newest(active, fitting, load=self._load, damaged=damaged)
        if found is None:
            return None
        self._told = self._resumes_at(found[0].state)
        return found[0]

    def _fitting(self) -> Iterator[tuple[Loaded, State]]:
        """Yield the checkpoints that fit the code, newest first; note why others do not."""
        for loaded in self._checkpoints.load():
            if isinstance(loaded, str):
                self._reasons.append("the newest checkpoint does not verify")
                continue
            if self._rewritten is None:
                return
            state = loaded.state
            if state.python != PYTHON:
                self._reasons.append(
                    f"the checkpoint at {state.where} was written by Python {state.python}"
                )
            elif self._rewritten.number(state.position) is None or not self._prefix_holds(state):
                # The oldest checkpoint with other code before it locates the edit best.
                self._changed = f"the code before {state.where} has changed"
            else:
                yield loaded, state

    def _load(self, position: Position) -> list[Entry]:
        """The records after a position, without an end that does not count."""
        entries = self.active.journal.load(position)
        ended = last_end(entries) if self.call.cut_off else None
        if ended is not None:
            entries.remove(ended)
            self._void = True
        return entries

    def _prefix_holds(self, state: State) -> bool:
        node = self._source.node()
        if node is None:
            return False
        return prefix_fingerprint(node, state.position, state.visited) == state.prefix

    def _resumes_at(self, state: State) -> str:
        """The notice of a run that resumes at a checkpoint."""
        node = self._source.node()
        line = following_line(node, state.position) if node is not None else None
        where = f"at {state.file}:{line}" if line is not None else f"after {state.where}"
        code = self._callee.workflow.code
        edited = bool(code) and code != self.active.facts.code
        return (
            f"resumes {where}, after {count(state.step, 'step')}{self._in_children()}"
            f"{' (the code below it was edited)' if edited else ''}"
        )

    def _replay(self) -> None:
        """Replay the run from the top, answered by the journal."""
        active = self.active
        if active.facts.pruned:
            raise CodeChangedError(
                f"run {active.run_id!r} cannot resume: {self._why()}, and its journal "
                "was pruned (prune_journal=True), so that it cannot be replayed from the top. "
                "Bring back the code as it was, or start over: "
                f"stepwise forget {shell_word(active.run_id)}",
                run_id=active.run_id,
            )
        entries = self._load(Position())
        done = go_on_from_the_top(active, entries)
        within = self._in_children()
        if done:
            self._told = (
                f"replays from the top, {count(done, 'step')} answered by the journal{within}"
            )
        else:
            self._told = f"begins again from the top{within or self._with_nothing_done()}"
            self._is_first = not within and is_only_submitted(entries)
            if self._is_first:
                self._told = "begins, as it was submitted"
        if self.call.arguments_changed:
            self._put_arguments_back(entries)

    def _in_children(self) -> str:
        """Name the stopped child runs in which it resumes, too."""
        left = [each for each in self.active.pool.all if not (each.answers or each.over)]
        children = [each.call.child for each in left if each.call.child]
        more = f" and {len(children) - 1} more" if children[1:] else ""
        return f", in its child run {children[0]}{more}" if children else ""

    def _with_nothing_done(self) -> str:
        """Say why no step is answered."""
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
        """The frame stands; nothing of the function has run."""
        self.active.begun = True
        if self.is_new:
            self.active.tell("run_started", detail=self.active.facts.arguments)
            return
        active = self.active
        step = active.progress.resumed_from or 0
        code = self._callee.workflow.code
        record_resumed(active, self._told, step, code=code, void=self._void)
        progress = active.progress
        active.tell(
            "run_resumed", detail=self._told, duration=progress.seconds, usage=progress.usage
        )
        if active.parent is None and not self._is_first:
            why = self._why()
            notice(f"{active.run_id} {self._told}{f' ({why})' if why else ''}")

    def _why(self) -> str:
        """Return why the run does not resume at the newest checkpoint."""
        return "; ".join(dict.fromkeys(filter(None, (*self._reasons, self._changed))))
