"""The reasons why a run could not resume inside a statement, each reported once."""

from __future__ import annotations

import contextlib
import re
import sys
import weakref
from collections.abc import Callable, Mapping
from inspect import iscoroutine
from types import CodeType, FrameType
from typing import Any

from stepwise._checkpoints.given import follow, root_of
from stepwise._checkpoints.variables import UnpicklableError
from stepwise._execution.active_run import ActiveRun
from stepwise._execution.location import Helper
from stepwise._execution.other_tasks import name_of_another
from stepwise._rewrite import FunctionNode, Rewritten, handler_at
from stepwise._runtime.messages import Once, count, notice, reports, warn
from stepwise._values.synchronizers import is_synchronizer
from stepwise.errors import RunWarning

__all__ = ["Complaints", "why_shut"]

_PATIENCE = 3  # boundaries skipped in a row before a warning
_SHOWN = 4  # objects that a warning names
_INDEX = re.compile(r"\[[^\]]*\]")
_WAYS_OUT = (
    "Three ways out: make it inside the step that uses it; make it in a @stepwise.resource "
    "factory, which is called again on resume; or `del` it before the next step"
)
_LARGE = 100_000  # bytes that a variable takes


def why_shut(manager: Any, *, calls: bool) -> str:
    """Return why a ``with`` block cannot be entered again, and the way out.

    Args:
        calls: its head calls a step.
    """
    cls = type(manager)
    is_function = cls.__module__ == "contextlib" and hasattr(manager, "gen")  # @contextmanager
    kind = f"{manager.gen.__name__}()" if is_function else cls.__name__
    why = f"entering this {kind} again would not restore its state"
    return (
        f"{'its head calls a step' if calls else why}. It would go back to before the block. If a "
        f"{kind} can safely be made and entered again, write `with stepwise.reenterable(...)`"
    )


def _reference(culprit: Any) -> Callable[[], Any]:
    return weakref.ref(culprit) if iscoroutine(culprit) else lambda: culprit


class Complaints:
    """Warnings about the checkpoints of one execution of a workflow function.

    Args:
        file: of the function, for messages.

    Attributes:
        culprits: variables that could not be recorded; a coroutine among them is not kept alive,
            or nobody would notice that it was never awaited.
        in_a_row: boundaries that were skipped since the last checkpoint.
    """

    def __init__(self, active: ActiveRun, file: str, rewritten: Rewritten) -> None:
        self._active = active
        self._file = file
        self._rewritten = rewritten
        self.first = Once()
        self.culprits: dict[str, Callable[[], Any]] = {}
        self.in_a_row = 0

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
                f"{helper.code.co_name}() with @workflow to make the run resume inside",
                RunWarning,
            )

    @reports
    def no_entry(self, number: int, why: str) -> None:
        """Report steps in a ``with`` block that cannot be entered again; see :func:`why_shut`."""
        where = self._where(self._rewritten.withs[number].line)
        self._tell(f"with {number}", f"a run cannot resume inside the with block at {where}: {why}")

    @reports
    def within_handler(self, function: FunctionNode | None, code: CodeType) -> None:
        """Report several steps in an ``except`` or ``finally`` block, if they are in one.

        Args:
            code: of the workflow function, which is being executed below.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        line = (frame.f_lineno if frame is not None else None) or 0
        if function is None or not self.first(f"line {line}"):
            return
        kind, begin = handler_at(function, line)
        if kind:
            self._tell(
                f"handler {begin}",
                f"a run cannot resume inside the {kind} block at {self._where(begin)}. It would go "
                "back to before the block, and the journal would answer the steps inside. "
                "Call them after the try statement to make it resume between them",
            )

    @reports
    def dear(self, share: float, name: str, size: int) -> None:
        """Report that checkpoints take much of a run's time, and the heaviest variable."""
        is_large, most, rest = size >= _LARGE, "", ""
        if is_large or (size and name[0] != "@"):
            told = f"{size / 1e6:.1f} MB" if is_large else f"{size / 1e3:.1f} kB"
            most = f"; {self._named(name)} weighs most ({told})"
        if is_large:
            rest = ", or keep large data in a file and its path in the variable"
        notice(
            f"checkpoints take {share:.0%} of the time of run {self._active.run_id!r}{most}. "
            f"Take fewer, @workflow(checkpoint_every=10){rest}"
        )

    def _named(self, name: str) -> str:
        """Return a readable name for a value in a checkpoint; some names are internal."""
        if (root := root_of(name)) in self._rewritten.loops:
            return f"the iterable of the loop at {self._where(self._rewritten.loops[root])}"
        if name[:1] == "@":
            return f"the global {name.rpartition(' ')[2]!r}"
        return f"the variable {name!r}" if name else "a variable"

    @reports
    def skipping(self, name: str, items: int) -> None:
        """Report a loop that is begun again, behind the items that it had yielded."""
        where = self._where(self._rewritten.loops[name])
        notice(f"{self._active.run_id}: skips {count(items, 'item')} of the loop at {where}")

    @reports
    def changed(self, name: str, variables: str) -> None:
        """Report a loop that could be begun again if the variables in its head had not changed."""
        self._tell(
            name,
            "a run can no longer resume inside the loop at "
            f"{self._where(self._rewritten.loops[name])}: {variables} changed since it began, so "
            "its items could differ. It would go back to before the change. Iterate over a "
            "copy, in a variable of its own",
        )

    def is_still_there(self, values: Mapping[str, Any]) -> bool:
        """Return whether an object that could not be recorded is where it was found.

        A lock may be free by now.
        """
        for path, reference in self.culprits.items():
            culprit = reference()
            if culprit is None or is_synchronizer(culprit):
                continue
            with contextlib.suppress(LookupError):
                if follow(path, values) is culprit:
                    return True
        return False

    @reports
    def unpicklable(self, error: UnpicklableError, line: int) -> None:
        """Report objects that cannot be recorded: all that were found at once, and each kind once.

        An object that stands in for others, an iterator over them, is none of its own.
        """
        found, loops = error.culprits.items(), self._rewritten.loops
        others = {n: each for n, (each, _) in found if root_of(n) not in loops}
        self.culprits.update((n, _reference(each)) for n, each in others.items())
        told: list[tuple[str, str]] = []
        kinds: set[str] = set()
        for name, (value, reason) in found:
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            if (root := root_of(name)) in loops:
                if others:
                    continue
                where = self._where(loops[root])
                self._tell(
                    root,
                    f"a run cannot resume inside the loop at {where}: the {kind} that it iterates "
                    f"over cannot be recorded ({reason}). It would go back to before the loop. "
                    "Iterate over a list of plain data to make it resume inside",
                )
                continue
            alike = f"{kind} {_INDEX.sub('[]', name)}"
            if alike in kinds or self.first(alike):
                kinds.add(alike)
                is_a = f" is a {kind}, which" if name else ""
                told.append((name, f"{self._named(name)}{is_a} cannot be recorded ({reason})"))
        if not told:
            return
        more = f" (so are {', '.join(n for n, _ in told[1:_SHOWN])}" if told[1:] else ""
        more += f" and {len(told) - _SHOWN} more)" if told[_SHOWN:] else ")" if more else ""
        warn(
            f"no checkpoint of run {self._active.run_id!r} at {self._where(line)}: "
            f"{told[0][1]}{more}. The run would resume at the checkpoint before it. "
            f"{_WAYS_OUT}",
            RunWarning,
        )

    @reports
    def no_memory(self, line: int) -> None:
        """Warn that memory ran out while the variables were recorded."""
        if self.first("memory"):
            warn(
                f"no checkpoint of run {self._active.run_id!r} at {self._where(line)}: memory ran "
                "out while its variables were recorded. The run would resume at the checkpoint "
                "before it. Delete (`del`) unused variables, or give the program more memory",
                RunWarning,
            )

    @reports
    def skipped(self, line: int) -> None:
        """Warn, after some boundaries in a row, of what else of the run is still at work."""
        another = name_of_another(self._active)
        self.in_a_row += bool(another)
        if another and self.in_a_row >= _PATIENCE and self.first("tasks"):
            warn(
                f"no checkpoint of run {self._active.run_id!r} at {self._where(line)} and "
                f"the {_PATIENCE - 1} boundaries before it: {another} is "
                "still running, and its pending work is not in the local variables. Await it, or, "
                "if it is not part of the run, start it under `with stepwise.background():`",
                RunWarning,
            )
