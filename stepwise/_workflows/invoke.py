"""A call of a workflow from outside of any run: the run it means, taken over when it is free."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._display.activity import Doing
from stepwise._display.progress import Display
from stepwise._execution.active_run import current_scope
from stepwise._execution.process_memory import Given, memory
from stepwise._runtime import settings
from stepwise._runtime.messages import notice
from stepwise._values import digest
from stepwise._workflows.called import ChildCall, WorkflowCall, no_id_yet, run_of
from stepwise._workflows.definition import Definition
from stepwise._workflows.opening import NotUnfinishedError, Recall
from stepwise._workflows.resume import WorkflowRun
from stepwise._workflows.starts import Meant, Starting
from stepwise._workflows.turns import Turn, await_turn, sleep_turn, turn
from stepwise.errors import RunBusyError, RunOwnedError, RunSkipped
from stepwise.stores import open_store

__all__ = ["ChildCall", "TopLevel", "next_run_id", "plain_call", "run_of"]


class TopLevel(WorkflowCall):
    """A call from outside of any run.  As a context manager, it remembers how it ended.

    Args:
        skips: a run that somebody else executes need not be taken up: only the run is asked for.
    """

    display: Display | None = None
    run_id = ""  # empty until chosen
    taken: Recall | WorkflowRun | None = None

    def __init__(self, *call: Any, skips: bool = False) -> None:
        super().__init__(*call)
        self.skips = skips
        self._turn: Turn[Recall | WorkflowRun] | None = None

    def __enter__(self) -> Recall | WorkflowRun:
        return self.taken or sleep_turn(self.turn(blocks=True))

    def begin_here(self, waits: Callable[[], None] | None) -> None:
        """Take the run up in this thread; ``waits`` is called if it has to wait for that."""
        sleep_turn(self.turn(blocks=True), waits)

    def begin_now(self) -> None:
        """Take the run up, unless that has to wait: then :meth:`begin` does."""
        self._turn = self.turn(blocks=False)
        with contextlib.suppress(StopIteration):
            next(self._turn)

    async def begin(self) -> None:
        """Take the run up, as entering it does, but without blocking the event loop."""
        if self.taken is None:
            await await_turn(self._turn or self.turn(blocks=False))

    def turn(self, *, blocks: bool) -> Turn[Recall | WorkflowRun]:
        """Take the run up when nobody else executes it; see :mod:`stepwise._workflows.turns`."""
        if not self.run_id:
            self.choose()
        while self.taken is None:
            unfinished = self._meant.unfinished
            on_owned = "raise" if unfinished else self.options.on_owned
            try:
                opened = yield from turn(
                    self._take, self.store, self.run_id, on_owned, blocks=blocks
                )
            except RunSkipped:
                if not self.skips:
                    raise
                self.joined, self.taken = True, Recall(None)
                return self.taken
            except (RunBusyError, RunOwnedError, NotUnfinishedError):
                if not unfinished:
                    raise
                self._choose_next()  # another process was faster
                continue
            try:
                self._note(opened)
            except BaseException:  # a warning that is an error
                if isinstance(opened, WorkflowRun):
                    opened.active.close()
                raise
            self.taken = opened
        return self.taken

    def starting(self) -> Starting:
        """Return the run that it means."""
        options = self.options
        self.store = open_store(options.store if options.store is not None else settings.store())
        self.given = Given(self.workflow.full_name, self.bound, self.instance)
        return Starting(self.workflow, self.parts, self.given, self.store)

    def choose(self) -> None:
        """Decide which run is meant."""
        self._starting = self.starting()
        self.base = self._starting.base
        self._runs = self._starting.runs()
        self.joined = self.opened = False
        self._choose_next()

    def _choose_next(self) -> None:
        self._meant: Meant = next(self._runs)
        self.run_id = self._meant.run_id

    def _take(self, waited: bool) -> Recall | WorkflowRun:
        meant = self._meant
        if meant.generated and meant.told and not waited:
            notice(meant.told)
        if meant.resumed:
            memory.resumed = meant.run_id
        opened = self.open(
            self.store,
            meant.run_id,
            explicit=meant.explicit,
            fsync=self.options.durability != "os",
            arguments_changed=meant.stopped,
            only_unfinished=meant.unfinished,
            waited=waited,
        )
        self.opened = True
        # The result of a run that was waited for belongs to that run's call: not counted here.
        self.joined = waited and isinstance(opened, Recall)
        return opened

    def _note(self, opened: Recall | WorkflowRun) -> None:
        """Remember which run it is, and say if it is not what one may expect."""
        meant, store = self._meant, self.store.url
        self._starting.remember(meant.run_id)
        if meant.told and not meant.generated:
            notice(meant.told)
        # The items of a generator are made again, not recalled.
        is_over = isinstance(opened, Recall) or opened.active.facts.status == "completed"
        again = is_over and meant.later and not self.joined
        if again and not memory.has_executed(store, meant.run_id):
            self._starting.warn_of_another(meant.run_id)
        if isinstance(opened, WorkflowRun):
            memory.executes(store, meant.run_id)
            facts = opened.active.facts
            doing = Doing(meant.run_id, f"{facts.label}({facts.arguments})")
            self.display = Display.of(doing, self.options.progress)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.display is not None:
            self.display.close()
        if self.joined:
            return
        if error is None:
            memory.completed(self.store.url, self.base, self.run_id)
        elif self.opened:
            memory.stopped(self.store.url, self.run_id, self.given, self._digest_again)

    def _digest_again(self) -> str:
        parts = self.look()
        return digest.combine(parts.arguments, parts.instance)


def plain_call(
    workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call a generator function as a part of the run that is in progress."""
    return WorkflowCall(workflow, instance, args, kwargs).run_function()


def next_run_id(
    workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The id of the run that the next such call, made here and now, will be.

    Raises:
        ConfigurationError: that run will be a new one, whose id is made up when it starts.
    """
    scope = current_scope()
    if scope is not None:
        if workflow.is_generator or workflow.is_async_generator:
            return scope.run.run_id  # the steps of this workflow belong to the caller's run
        return ChildCall(workflow, instance, args, kwargs).next_id(scope.run)
    starting = TopLevel(workflow, instance, args, kwargs).starting()
    meant = next(starting.runs())
    if meant.generated:
        raise no_id_yet(workflow.label)
    return meant.run_id
