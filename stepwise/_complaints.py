"""Why a run could not resume inside a statement: said once for each reason.

Imports: origin, run, others, snapshot, rewrite.
"""

from __future__ import annotations

from typing import Any

from stepwise._notices import notice, reports, warn
from stepwise._origin import Helper
from stepwise._others import name_of_another
from stepwise._run import ActiveRun
from stepwise._snapshot import UnpicklableError
from stepwise.errors import RunWarning
from stepwise.rewrite import Rewritten

__all__ = ["Complaints"]

_PATIENCE = 3  # boundaries skipped in a row before somebody is told


class Complaints:
    """What was said about the checkpoints of one execution of a workflow function.

    Args:
        file: of the function, for messages.

    Attributes:
        culprits: variables that could not be recorded.
        in_a_row: boundaries that were skipped since the last checkpoint.
    """

    def __init__(self, active: ActiveRun, file: str, rewritten: Rewritten) -> None:
        self._active = active
        self._file = file
        self._rewritten = rewritten
        self._said: set[str] = set()
        self.culprits: dict[str, Any] = {}
        self.in_a_row = 0

    def first(self, about: str) -> bool:
        """Return whether nothing was said about this before."""
        first = about not in self._said
        self._said.add(about)
        return first

    def _where(self, line: int) -> str:
        return f"{self._file}:{line}"

    def _tell(self, about: str, text: str) -> None:
        if self.first(about):
            notice(f"{self._active.run_id}: {text}")

    @reports
    def helped(self, helper: Helper, calls: int) -> None:
        """Warn of a helper that made many calls within one statement."""
        if self.first(helper.place):
            warn(
                f"{calls} steps were called in {helper.place} by one statement of the workflow "
                f"({self._where(helper.line)}). Run {self._active.run_id!r} cannot resume inside "
                "it: it would be called again, and its steps answered from the journal. Decorate "
                f"{helper.code.co_name}() with @workflow to have the run resume inside",
                RunWarning,
            )

    @reports
    def no_entry(self, number: int, kind: str, *, calls: bool) -> None:
        """Tell of a ``with`` block that cannot be entered again.

        Args:
            kind: the class of its manager.
            calls: its head calls a step.
        """
        why = f"this {kind}, entered again, would not be what it was"
        self._tell(
            f"with {number}",
            "a run cannot resume inside the with block at "
            f"{self._where(self._rewritten.withs[number].line)}: "
            f"{'its head calls a step' if calls else why}. It would go back to before the block. "
            f"If a {kind} can simply be made and entered again, write "
            "`with stepwise.reenterable(...)`",
        )

    @reports
    def unpicklable(self, error: UnpicklableError, line: int) -> None:
        """Tell of variables that cannot be recorded."""
        for name, (value, reason) in error.culprits.items():
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            if name in self._rewritten.loops:
                where = self._where(self._rewritten.loops[name])
                self._tell(
                    name,
                    f"a run cannot resume inside the loop at {where}: the {kind} that it iterates "
                    f"over cannot be recorded ({reason}). It would go back to before the loop. "
                    "Iterate over a list of plain data to have it resume inside",
                )
                continue
            self.culprits[name] = value
            if self.first(name):
                warn(
                    f"no checkpoint of run {self._active.run_id!r} at {self._where(line)}: "
                    f"the variable {name!r} is a {kind}, which cannot be recorded ({reason}). The "
                    "run would resume at the checkpoint before it. Three ways out: make it inside "
                    "the step that uses it; make it in a @stepwise.resource factory, which is "
                    "called again on resume; or `del` it before the next step",
                    RunWarning,
                )

    @reports
    def no_memory(self, line: int) -> None:
        """Warn that memory ran out while the variables were recorded."""
        if self.first("memory"):
            warn(
                f"no checkpoint of run {self._active.run_id!r} at {self._where(line)}: memory ran "
                "out while its variables were recorded. The run would resume at the checkpoint "
                "before it. Let go (`del`) what is no longer used, or give the program more memory",
                RunWarning,
            )

    @reports
    def skipped(self, line: int) -> None:
        """Warn, after some boundaries in a row, of what else of the run is still at work."""
        self.in_a_row += 1
        if self.in_a_row == _PATIENCE and self.first("tasks"):
            warn(
                f"no checkpoint of run {self._active.run_id!r} at {self._where(line)} and "
                f"the {_PATIENCE - 1} boundaries before it: {name_of_another(self._active)} is "
                "still running, and what it would do is not in the local variables. Await it, or "
                "start what is not part of the run under `with stepwise.background():`",
                RunWarning,
            )
