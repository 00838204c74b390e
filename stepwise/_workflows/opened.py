"""A run that was taken over: its execution, compensation around that, and its recorded end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stepwise._calls.operations import Core, Result
from stepwise._checkpoints.surroundings import Surroundings
from stepwise._execution.active_run import ActiveRun
from stepwise._execution.mutation import encode_changed, surroundings
from stepwise._runtime.limits import stopped
from stepwise._runtime.messages import notice, warn
from stepwise._values.codec import Encoded
from stepwise._values.preview import preview
from stepwise.errors import NotRecordableError, RunWarning

__all__ = ["Awaited", "Called", "NothingGiven", "Opened"]


class _Given(Protocol):
    """The callee of a run, seen from the objects that it was given."""

    def arguments(self) -> Surroundings:
        """The mutable objects that it was called with."""

    def changed(self, before: bytes) -> dict[str, str]:
        """Return the kinds, by name, of arguments that differ from ``before``."""


class Called(_Given, Protocol):
    """A body that is called: a plain or a generator function."""

    def run(self) -> Any:
        """Execute it, from where the run stopped."""


class Awaited(_Given, Protocol):
    """A body that is awaited: a coroutine function, or a loop of steps."""

    async def arun(self) -> Any:
        """Execute it, from where the run stopped."""


class NothingGiven:
    """A body that was given nothing that it could change."""

    def arguments(self) -> Surroundings:
        """None."""
        return surroundings({})

    def changed(self, before: bytes) -> dict[str, str]:
        """Nothing."""
        return {}


BodyT_co = TypeVar("BodyT_co", bound=_Given, covariant=True)
OtherT = TypeVar("OtherT", bound=_Given)


@dataclass(eq=False, repr=False)
class Opened(Generic[BodyT_co]):
    """A run to execute.

    Args:
        before: the contents of the arguments, encoded.
        is_new: nothing of it had been recorded.
        compensates: its side effects are undone when it fails.
        changed: it turned out to change the arguments.
        returns: the type that its function is annotated to return.
    """

    active: ActiveRun
    body: BodyT_co
    before: bytes
    is_new: bool
    compensates: bool = False
    changed: bool = False
    returns: Any = Any

    def executing(self, body: OtherT) -> Opened[OtherT]:
        """The same run, which executes something else than a workflow function."""
        return Opened(
            self.active, body, self.before, self.is_new, self.compensates, returns=self.returns
        )

    def undo_first(self) -> Core:
        """Finish the undoing at which an attempt before died, so that no half of it stays."""
        active = self.active
        if active.facts.undoing:
            from stepwise._calls.compensation import compensate  # on use: hardly a run is undone

            notice(
                f"{active.run_id}: its side effects were being undone when it stopped; that is "
                "finished first"
            )
            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                raise result.error
            active.facts = active.facts._replace(undoing=False)
        return Result()

    def undo_after(self) -> Core:
        """Undo the side effects of a failed run, if its workflow asks for that."""
        active = self.active
        if self.compensates and active.facts.status == "failed":
            from stepwise._calls.compensation import compensate  # on use

            result = yield from compensate(active.journal, active.facts)
            if result.error is not None:
                warn(
                    f"run {active.run_id!r} failed, and undoing its side effects failed too: "
                    f"{preview(result.error)}. To undo the others: "
                    f"stepwise.get_run({active.run_id!r}).compensate()",
                    RunWarning,
                )
        return Result()

    def conclude(
        self, value: Any, error: BaseException | None = None, *, again: bool = False
    ) -> None:
        """Record how the attempt ended.

        Args:
            again: what it gave cannot be recalled, only made again (the items of a generator).

        Raises:
            RunStopped: the workflow went on although the run had stopped.
        """
        active = self.active
        if active.stopped is not None:
            if error is active.stopped:
                raise error
            raise active.stopped from error
        try:
            self.changed = bool(self._record_end(value, error, again=again))
        except MemoryError as problem:
            doing = f"the end of {active.facts.label!r} was recorded"
            raise active.stop(stopped(doing, problem)) from (error or problem)

    def _record_end(
        self, value: Any, error: BaseException | None, *, again: bool
    ) -> dict[str, str]:
        """Record the end; what of the objects that the run was given was changed."""
        active, changed = self.active, dict[str, str]()
        if error is None and again:
            active.finish("completed", value, None)
        elif error is None:
            encoded, changed = self._encode(value)
            active.finish("completed", value, encoded, changed=changed)
        elif isinstance(error, Exception) and active.begun and not active.interrupted:
            active.finish("failed", error, active.codec.encode_error(error))
            if active.parent is not None:  # an answer with this error repeats its changes to them
                changed = self.body.changed(self.before)
        # Otherwise it was interrupted (Ctrl-C, exit, cancelled from outside): no end to record.
        return changed

    def _encode(self, value: Any) -> tuple[Encoded | None, dict[str, str]]:
        """The result, if it can be recorded, and the objects that the run was given and changed."""
        codec, changed = self.active.codec, self.body.changed(self.before)
        label = self.active.facts.label

        def plainly() -> Encoded:
            return codec.encode(value, f"the result of {label!r}", self.returns)

        try:
            if not changed:
                return plainly(), {}
            around = self.body.arguments()
            return encode_changed(codec, value, plainly, around, repr(label), {}), changed
        except (NotRecordableError, MemoryError) as problem:
            warn(
                f"{problem}. The run is complete; when it is called again, its journal makes the "
                "result anew",
                RunWarning,
            )
            return None, {}
