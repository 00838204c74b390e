"""Crashes on purpose, at one step, in this process; and the watch that sees each step pass.

:class:`crash_at` raises at one step, as Ctrl-C does; what it tests is the next call.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal
from unittest import mock

from stepwise._calls import plain, steps
from stepwise._execution import active_run
from stepwise._journal.counters import key_of
from stepwise._journal.records import Call, Outcome
from stepwise._runs.current import current_step
from stepwise.errors import ConfigurationError

__all__ = [
    "CrashPoint",
    "CrashWatch",
    "Passed",
    "SimulatedCrash",
    "SimulatedFailure",
    "crash_at",
    "earlier_name",
    "under_earlier_name",
]

When = Literal["before", "after", "recorded"]
_WHEN = ("before", "after", "recorded")


class SimulatedCrash(KeyboardInterrupt):
    """The process would have died here.  Like Ctrl-C, it passes ``except Exception``."""


class SimulatedFailure(Exception):  # noqa: N818 -- named like SimulatedCrash
    """An attempt of a step fails here, as when its next call meets a lost connection."""


# -- watching steps ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrashPoint:
    """A place in a run: a call, the how many-th of its kind, and when in its course."""

    call: str
    count: int
    when: str

    def __str__(self) -> str:
        nth = f" (call {self.count})" if self.count > 1 else ""
        return f"{self.when} {self.call}{nth}"


@dataclass(frozen=True)
class Passed:
    """A point that was passed.

    Args:
        key: idempotency key of the call.
        value: what the body returned, at ``"after"``; the status, at ``"recorded"``.
        repeatable: its tool says that it may be repeated.
        outer: idempotency key of the plain step that makes the call; empty if none does.
    """

    point: CrashPoint
    call: Call
    key: str
    value: Any = None
    repeatable: bool = False
    outer: str = ""


class CrashWatch:
    """Calls ``reached`` at every point that the steps of this process pass."""

    def __init__(self, reached: Callable[[Passed], None]) -> None:
        self._reached = reached
        self._counts: Counter[tuple[str, str]] = Counter()
        self._effects: set[int] = set()  # numbers of side effects; child runs have numbers anew

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Within the block, it watches."""
        body, record = steps.Step.body, active_run.ActiveRun.recorded

        def watched_body(step: steps.Step, call: Call) -> Callable[..., Any]:
            repeatable = step.idempotent or step.in_doubt == "retry"
            if call.effect:
                self._effects.add(call.number)
            return self._around(body(step, call), call, repeatable=repeatable)

        def watched_record(
            active: Any, scope: Any, number: int, outcome: Outcome, **facts: Any
        ) -> None:
            record(active, scope, number, outcome, **facts)
            if not outcome.call.child:
                key = outcome.call.key or key_of(active.run_id, outcome.call)
                # A side effect that fails is another subject: nobody knows what it did.
                plain_step = scope.call is not None and self._effects.isdisjoint(scope.around)
                outer = key_of(active.run_id, scope.call) if plain_step else ""
                self._pass(outcome.call, "recorded", key, outcome.status, outer=outer)

        def not_plain(*_: object, **__: object) -> None:
            """The straight way passes neither of these two."""

        with (
            mock.patch.object(plain, "_begin", not_plain),
            mock.patch.object(steps.Step, "body", watched_body),
            mock.patch.object(active_run.ActiveRun, "recorded", watched_record),
        ):
            yield

    def _around(
        self, function: Callable[..., Any], call: Call, *, repeatable: bool
    ) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awatched(*args: Any, **kwargs: Any) -> Any:
                key = current_step().idempotency_key
                self._pass(call, "before", key)
                value = await function(*args, **kwargs)
                self._pass(call, "after", key, value, repeatable=repeatable)
                return value

            return awatched

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            key = current_step().idempotency_key
            self._pass(call, "before", key)
            value = function(*args, **kwargs)
            self._pass(call, "after", key, value, repeatable=repeatable)
            return value

        return watched

    def _pass(
        self,
        call: Call,
        when: str,
        key: str,
        value: Any = None,
        *,
        repeatable: bool = False,
        outer: str = "",
    ) -> None:
        shown = f"{call.name}({call.arguments})"
        self._counts[when, shown] += 1
        point = CrashPoint(shown, self._counts[when, shown], when)
        self._reached(Passed(point, call, key, value, repeatable, outer))


_SINCE = "_renamed_since"


def earlier_name(name: str) -> str:
    """Return the name that a tool has within :func:`under_earlier_name`."""
    return name + _SINCE


@contextlib.contextmanager
def under_earlier_name(tool: Call) -> Iterator[None]:
    """Within the block, the called tool has another name, as before somebody renamed it."""
    core = steps.Step.core

    def called(step: steps.Step, *args: Any, **more: Any) -> Any:
        if (step.module, step.name) == (tool.module, tool.name):
            step.qualname = earlier_name(step.qualname)
            step.name = earlier_name(step.name)
        return core(step, *args, **more)

    with mock.patch.object(steps.Step, "core", called):
        yield


# -- one crash, in this process ------------------------------------------------------------------


class crash_at:  # noqa: N801
    """Within the block, the run crashes when it reaches a step: :class:`SimulatedCrash`.

    Example:
        >>> with pytest.raises(SimulatedCrash), crash_at(send_email, "after"):
        ...     agent("invite the team")
        >>> with pytest.raises(StepInDoubtError):
        ...     agent("invite the team")

    Args:
        step: the decorated function, or its name.
        when: ``"before"`` its body runs (a side effect is announced by then), ``"after"`` the body
            has run but nothing is recorded, or ``"recorded"``: its outcome is, and the workflow has
            not got it yet.
        call: at how many-th execution of it, from 1.

    Raises:
        ConfigurationError: there is no such ``when``, or the function is no step.
        AssertionError: the block ended, and the step had not been reached.
    """

    def __init__(
        self, step: Callable[..., Any] | str, when: When = "before", *, call: int = 1
    ) -> None:
        if when not in _WHEN:
            raise ConfigurationError(
                f"when={when!r} is not known: use 'before', 'after' or 'recorded'"
            )
        found = step if isinstance(step, str) else steps.step_of(step)
        if found is None:
            raise ConfigurationError(f"crash_at() takes a step, a tool or its name, not {step!r}")
        self._name = found if isinstance(found, str) else found.name
        self._when, self._left = when, call
        self._seen: list[str] = []
        self._watching: contextlib.AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        self._watching = CrashWatch(self._reached).installed()
        self._watching.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._watching is not None
        self._watching.__exit__(kind, error, trace)
        if error is None and self._left > 0:
            seen = ", ".join(dict.fromkeys(self._seen)) or "none"
            raise AssertionError(
                f"no crash: {self._name!r} was executed too few times; steps executed: {seen}"
            )

    def _reached(self, passed: Passed) -> None:
        name = passed.call.name
        self._seen.append(name)
        if self._name in (name, name.rpartition(".")[2]) and passed.point.when == self._when:
            self._left -= 1
            if self._left == 0:
                raise SimulatedCrash(f"a simulated crash {passed.point}")
