"""Crashes on purpose: at one step in a test's process, and everywhere in processes.

:class:`crash_at` raises at one step, like Ctrl-C; the test then checks the next call.
:func:`crash_everywhere` answers the whole question "is my agent crash-safe?".  Each trial kills a
separate process with SIGKILL at one point: before, inside or after a step.  The workflow is then
run again until it has ended, and compared with an undisturbed run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar
from unittest import mock

from stepwise._calls import steps
from stepwise._execution import active_run
from stepwise._journal.records import Call, Outcome
from stepwise._matching.pool import key_of
from stepwise._runs.run import current_step, runs
from stepwise._values import digest
from stepwise._values.codec import decode, encode
from stepwise.errors import (
    ArgumentsChangedWarning,
    ConfigurationError,
    DigestError,
    StepInDoubtError,
    StepNotFoundError,
)
from stepwise.testing.fresh import fresh_store

# -- crashes --------------------------------------------------------------------------------------


When = Literal["before", "after", "recorded"]
_WHEN = ("before", "after", "recorded")


class SimulatedCrash(KeyboardInterrupt):
    """The process would have died here.  Like Ctrl-C, this passes ``except Exception``."""


class SimulatedFailure(Exception):  # noqa: N818 -- named like SimulatedCrash
    """An attempt of a step fails here, as if its next call met a lost connection."""


# -- watching steps ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrashPoint:
    """A place in a run: a call, its number among equal calls, and the moment within the call."""

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
        point: the point.
        call: the call.
        key: idempotency key of the call.
        value: the value that the body returned, at ``"after"``; the status, at ``"recorded"``.
        repeatable: the tool of the call declares that it may be repeated.
        outer: idempotency key of the plain step that makes the call; empty if no step does.
    """

    point: CrashPoint
    call: Call
    key: str
    value: Any = None
    repeatable: bool = False
    outer: str = ""


class CrashWatch:
    """Watcher that calls ``reached`` at every point that the steps of this process pass."""

    def __init__(self, reached: Callable[[Passed], None]) -> None:
        self._reached = reached
        self._counts: Counter[tuple[str, str]] = Counter()
        self._effects: set[int] = set()  # numbers of side effects; child runs number from 1

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Watch within the block."""
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
                # A side effect that fails is another subject: its effect is unknown.
                plain_step = scope.call is not None and self._effects.isdisjoint(scope.around)
                outer = key_of(active.run_id, scope.call) if plain_step else ""
                self._pass(outcome.call, "recorded", key, outcome.status, outer=outer)

        with (
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
    """Give the called tool another name within the block, as before a rename."""
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
    """Crash a run when it reaches a step, by :class:`SimulatedCrash` within the block.

    Example:
        >>> with pytest.raises(SimulatedCrash), crash_at(send_email, "after"):
        ...     agent("invite the team")
        >>> with pytest.raises(StepInDoubtError):
        ...     agent("invite the team")

    Args:
        step: the decorated function, or its name.
        when: ``"before"`` the body of the step runs (a side effect is announced by then).  Or
            ``"after"``: the body has run, but nothing is recorded.  Or ``"recorded"``: the outcome
            is recorded, but has not reached the workflow.
        call: the execution of the step at which to crash, counted from 1.

    Raises:
        ConfigurationError: there is no such ``when``, or the function is no step.
        AssertionError: the block ended before the step was reached.
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


# -- everywhere -----------------------------------------------------------------------------------


Vary = Literal["retries", "renames"]
_VARY: tuple[Vary, ...] = ("retries", "renames")
_RESTARTS = 20  # restarts in one trial; each settles at least one doubt

T = TypeVar("T")


@dataclass
class CrashReport:
    """The results of :func:`crash_everywhere`.

    Args:
        points: the places at which the workflow was killed, as text.
        variations: the other disturbances, as text: outer steps that failed once, tools that were
            renamed, twins that ran before the workflow ended.
        in_doubt: the points after which a side effect was in doubt, and was settled with the truth.
        starts: how many processes were started.
        result: the result of the undisturbed run.
    """

    points: list[str] = field(default_factory=list)
    variations: list[str] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    starts: int = 0
    result: Any = None


class _Disturbance(NamedTuple):
    """The disturbance of the first process of a trial.

    Args:
        point: where the process is disturbed.
        how: by a kill, or by a failure of the step.
        renamed: the tool that had another name in that process.
    """

    point: CrashPoint
    how: Literal["killed", "failed"] = "killed"
    renamed: Call | None = None

    def __str__(self) -> str:
        if self.renamed is not None:
            return f"{self.renamed.name} was renamed after it was {self.how} {self.point}"
        if self.how == "failed":
            return f"the step around {self.point.call} failed after that call"
        return f"killed {self.point}"


@dataclass
class _ProcessEnd:
    """The end of a process: its result or exception, or a kill.

    Args:
        arguments: arguments of the call at which the process stopped, since that call is in doubt.
    """

    killed: bool = False
    value: Any = None
    error: str = ""
    trace: str = ""
    arguments: str = ""


def crash_everywhere(
    workflow: Callable[..., Any],
    *args: Any,
    setup: Callable[[], Any] | None = None,
    effects: Callable[[], Any] | None = None,
    compare: Callable[[Any, Any], bool] | None = None,
    limit: int | None = None,
    vary: Iterable[Vary] = _VARY,
    twins: Iterable[Callable[..., Any]] = (),
    **kwargs: Any,
) -> CrashReport:
    """Kill a workflow at every point that makes a difference, run it again, and compare.

    Each trial has a fresh store and runs in forked processes.  The first process is killed
    (SIGKILL) before, inside or after a step; later ones run undisturbed until the workflow has
    ended.  A side effect that is then in doubt is settled with the truth, as a person who looked
    would.

    Each trial checks that no step body runs again once its outcome is recorded, and that no side
    effect happens twice.  The result must equal the result of an undisturbed run.

    Three variations find bugs that a kill alone does not:

    - *Retries*: a step that calls other steps fails once after each of these calls.  The step is
      retried by its ``retries=`` or by the next start.
    - *Renames*: a side effect is recorded under another name than the tool has when the workflow
      runs again.  The call must be answered, or stop and ask.
    - *Twins*: workflows of agents that differ only in their configuration run in the same store. No
      answer may cross over.

    The pytest fixture of the same name does the same.

    Args:
        workflow: called with ``args`` and ``kwargs``; a coroutine is run to its end.
        setup: resets the outside world (files, a test database); called before each trial.
        effects: reads the outside world; its result after each trial must be equal, too.  It is
            called in this process, so it must read what other processes wrote.
        compare: returns whether two results are equal, if ``==`` does not.
        limit: at most this many points, and variations of each kind, spread evenly; all by default.
        vary: the variations: ``"retries"`` and ``"renames"``; ``()`` for none.
        twins: workflows that differ from ``workflow`` only in their configuration (a persona, the
            model of a client), called with the same arguments: ``twins=[Agent("bob").run]``.

    Raises:
        AssertionError: a trial differed; the message says where it was killed and what happened.
        ConfigurationError: there is no such variation.
    """
    wanted = frozenset(vary)
    if not wanted <= {*_VARY}:
        raise ConfigurationError(f"vary={vary!r} is not known: use any of {_VARY}")
    call, *others = (functools.partial(_call, each, args, kwargs) for each in (workflow, *twins))
    trials = _Trials(call, setup, effects, compare or _equal)
    trials.run(limit, wanted)
    for number, twin in enumerate(others, 1):
        trials.run_beside(twin, f"twin {number}")
    return trials.report


def _call(workflow: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = workflow(*args, **kwargs)
    if inspect.isawaitable(value):
        import asyncio

        async def awaited() -> Any:
            return await value

        return asyncio.run(awaited())
    return value


def _without_warning(call: Callable[[], Any]) -> Any:
    """Call without the warning about changed arguments, which the settled rename causes."""
    warnings.simplefilter("ignore", ArgumentsChangedWarning)
    return call()


def _folder() -> tempfile.TemporaryDirectory[str]:
    memory = "/dev/shm"  # noqa: S108
    # A killed process leaves its files behind even without a disk; in memory, a flush costs
    # nothing.
    usable = os.path.isdir(memory) and os.access(memory, os.W_OK)
    return tempfile.TemporaryDirectory(prefix="stepwise-", dir=memory if usable else None)


class _Trials:
    def __init__(
        self,
        call: Callable[[], Any],
        setup: Callable[[], Any] | None,
        effects: Callable[[], Any] | None,
        compare: Callable[[Any, Any], bool],
    ) -> None:
        self._call, self._setup, self._effects = call, setup, effects
        self._compare = compare
        self.report = CrashReport()
        self._alone = _ProcessEnd()  # the undisturbed end; the log has its points
        self._log: list[Passed] = []
        self._world: Any = None

    def run(self, limit: int | None, vary: frozenset[str]) -> None:
        """Make the undisturbed run, then every trial."""
        self._alone, self._log = self._undisturbed(self._call)
        self._world = self._effects() if self._effects is not None else None
        points = [passed.point for passed in self._log]
        if not points:
            raise AssertionError(
                f"no step was executed ({self._alone.error or 'it returned'}): is it a @workflow "
                f"that calls steps?\n{self._alone.trace}"
            )
        self.report.result = self._alone.value
        for point in _spread(points, limit):
            self.report.points.append(str(point))
            self._try(_Disturbance(point))
        failures = _failures(self._log) if "retries" in vary else []
        renames = _renames(self._log) if "renames" in vary else []
        for disturbance in (*_spread(failures, limit), *_spread(renames, limit)):
            self.report.variations.append(str(disturbance))
            self._try(disturbance)

    def _undisturbed(self, call: Callable[[], Any]) -> tuple[_ProcessEnd, list[Passed]]:
        self._prepare()
        with _folder() as folder:
            ended = self._start(folder, call)
            if ended.killed:
                raise AssertionError("the process died although the test did not kill it")
            return ended, _read_log(folder)

    def _prepare(self) -> None:
        if self._setup is not None:
            self._setup()

    def _try(self, disturbance: _Disturbance) -> None:
        self._prepare()
        with _folder() as folder:
            first = self._start(folder, self._call, disturbance)
            log = _read_log(folder)
            if not any(passed.point == disturbance.point for passed in log):
                raise AssertionError(
                    f"the point was not reached again: {disturbance.point}. Do the workflow's "
                    f"calls differ each time? It returned {first.value!r} {first.trace}"
                )
            story = [str(disturbance)]
            handled = _was_handled(log, disturbance.point) and not first.error
            if first.killed or first.error:
                first = self._recover(folder, disturbance, story)
            elif not handled:
                story.append("tried again")
            self._check_world(_read_log(folder), disturbance, story, handled=handled)
            if not handled:
                self._judge(first, "; ".join(story), self._alone)

    def _recover(self, folder: str, disturbance: _Disturbance, story: list[str]) -> _ProcessEnd:
        """Start the workflow until it ends, settling calls in doubt in between."""
        call = self._call
        if disturbance.renamed is not None:
            call = functools.partial(_without_warning, call)
        for _ in range(_RESTARTS):
            ended = self._start(folder, call)
            if ended.error != StepInDoubtError.__name__:
                break
            story.append(self._settle(folder, disturbance.renamed, ended.arguments))
            if disturbance.how == "killed" and disturbance.renamed is None:
                self.report.in_doubt.append(str(disturbance.point))
        return ended

    # -- judging ---------------------------------------------------------------------------------

    def _judge(
        self, ended: _ProcessEnd, told: str, alone: _ProcessEnd, what: str = "an undisturbed run"
    ) -> None:
        """Raise ``AssertionError`` if two processes did not end alike."""
        if ended.error != alone.error or ended.killed:
            raise AssertionError(
                f"{told}: it ended with {ended.error or 'a result'} instead of "
                f"{alone.error or 'a result'}\n{ended.trace}"
            )
        if not ended.error and not self._compare(ended.value, alone.value):
            raise AssertionError(
                f"{told}: the result differs from that of {what}:\n"
                f"  undisturbed  {alone.value!r}\n  recovered    {ended.value!r}"
            )

    def _check_world(
        self, log: list[Passed], disturbance: _Disturbance, story: list[str], *, handled: bool
    ) -> None:
        """Compare the outside world after a trial with the expected one.

        Args:
            handled: the workflow handled the failure; it may then act otherwise, but nothing twice.
        """
        told = "; ".join(story)
        if disturbance.how == "killed":
            _check_repeats(log, told)
        happened, expected = _effects_in(log), _effects_in(self._log)
        if handled:
            happened = Counter({call: happened[call] for call in expected})
        more, less = happened - expected, Counter() if handled else expected - happened
        if more or less:
            raise AssertionError(
                f"{told}: side effects happened too often: "
                f"{'; '.join(more.elements()) or 'none'}; not at all: "
                f"{'; '.join(less.elements()) or 'none'}"
            )
        after = self._effects() if self._effects is not None and not handled else self._world
        if not _equal(after, self._world):
            raise AssertionError(
                f"{told}: the effects differ from those of an undisturbed run:\n"
                f"  undisturbed  {self._world!r}\n  recovered    {after!r}"
            )

    # -- twins -----------------------------------------------------------------------------------

    def run_beside(self, twin: Callable[[], Any], name: str) -> None:
        """Run a twin in the workflow's store: after the workflow, and while it is unfinished."""
        alone, log = self._undisturbed(twin)
        last = [each.point for each in self._log if each.point.when == "recorded"][-1:]
        for disturbance in (None, *map(_Disturbance, last)):
            story = [f"{name} ran after the workflow was {disturbance or 'completed'}"]
            self.report.variations.append(story[0])
            self._prepare()
            with _folder() as folder:
                self._start(folder, self._call, disturbance)
                before = len(_read_log(folder))
                ended = self._start(folder, twin)
                made = _read_log(folder)[before:]
                self._judge(ended, story[0], alone, f"{name} alone")
                missing = _bodies_in(log) - _bodies_in(made)
                if missing:
                    raise AssertionError(
                        f"{story[0]}: calls of {name} were answered with what the workflow had "
                        f"recorded: {'; '.join(missing.elements())}. What tells the two apart is "
                        "not part of these calls' identity: name it in stepwise.identity(), or in "
                        "key="
                    )
                if disturbance is not None:
                    ended = self._recover(folder, disturbance, story)
                    self._judge(ended, "; ".join(story), self._alone)

    # -- processes -------------------------------------------------------------------------------

    def _start(
        self, folder: str, call: Callable[[], Any], disturbance: _Disturbance | None = None
    ) -> _ProcessEnd:
        """Run the workflow in a process of its own, and log every point that it passes."""
        self.report.starts += 1
        return _forked(folder, _watching(folder, disturbance), call)

    def _settle(self, folder: str, renamed: Call | None, arguments: str) -> str:
        """Settle calls in doubt truthfully: the log shows which bodies have run.

        Args:
            renamed: the tool that was renamed, if any.
            arguments: arguments of the call at which the run stopped.
        """
        happened = {
            passed.key: passed.value for passed in _read_log(folder) if passed.point.when == "after"
        }

        def settle() -> None:
            _resolve(happened)
            if renamed is not None:
                _resolve_renamed(earlier_name(renamed.name), arguments)

        ended = _forked(folder, _home(folder), settle)
        if ended.error:
            raise AssertionError(f"a call in doubt could not be settled:\n{ended.trace}")
        return "settled the calls in doubt"


def _forked(
    folder: str, around: contextlib.AbstractContextManager[None], call: Callable[[], Any]
) -> _ProcessEnd:
    """Call in a forked process, which writes how it ended, unless it is killed."""
    path = os.path.join(folder, "ended")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    pid = os.fork()
    if pid == 0:
        try:
            with around:
                written = _end_of(call)
            with open(path + ".new", "wb") as file:
                file.write(written)
            os.replace(path + ".new", path)
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    try:
        with open(path, "rb") as file:
            ended: _ProcessEnd = decode(file.read(), stored=False)
    except FileNotFoundError:
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise AssertionError(
                f"a process of the trial died by itself (status {status})"
            ) from None
        return _ProcessEnd(killed=True)
    return ended


def _end_of(call: Callable[[], Any]) -> bytes:
    try:
        return bytes(encode(_ProcessEnd(value=call()), "the result").data)
    except BaseException as error:
        ended = _ProcessEnd(
            error=type(error).__name__,
            trace=traceback.format_exc(),
            arguments=getattr(error, "arguments", ""),
        )
        return bytes(encode(ended).data)


# -- reading a log -------------------------------------------------------------------------------


def _spread(items: Sequence[T], limit: int | None) -> Sequence[T]:
    return items[:: max(1, -(-len(items) // limit)) if limit else 1]


def _failures(log: list[Passed]) -> list[_Disturbance]:
    """Return the places where an outer step can fail: after each call that it makes."""
    return [
        _Disturbance(passed.point, "failed")
        for passed in log
        if passed.outer and passed.point.when == "recorded" and passed.value == "completed"
    ]


def _renames(log: list[Passed]) -> list[_Disturbance]:
    """Return the places where the rename of a tool matters: just after its outcome is recorded."""
    tools = {
        passed.key
        for passed in log
        if passed.call.effect and passed.point.when == "after" and not passed.repeatable
    }
    return [
        _Disturbance(passed.point, renamed=passed.call)
        for passed in log
        if passed.key in tools and passed.point.when == "recorded" and passed.value == "completed"
    ]


def _was_handled(log: list[Passed], failed: CrashPoint) -> bool:
    """Return whether an outer step that failed was not retried."""
    outer = next((passed.outer for passed in log if passed.point == failed), "")
    return (
        bool(outer) and [each.key for each in log if each.point.when == "before"].count(outer) < 2
    )


def _check_repeats(log: list[Passed], told: str) -> None:
    recorded: set[str] = set()
    for passed in log:
        if passed.point.when == "recorded" and passed.value == "completed":
            recorded.add(passed.key)
        elif passed.point.when == "before" and passed.key in recorded:
            raise AssertionError(f"{told}: {passed.point.call} ran again although it was done")


def _bodies_in(log: list[Passed]) -> Counter[str]:
    """Count the bodies that began."""
    return Counter(passed.point.call for passed in log if passed.point.when == "before")


def _effects_in(log: list[Passed]) -> Counter[str]:
    """Count how often each side effect happened."""
    return Counter(
        passed.point.call
        for passed in log
        if passed.call.effect and passed.point.when == "after" and not passed.repeatable
    )


def _equal(one: Any, other: Any) -> bool:
    try:
        return digest.digest(one) == digest.digest(other)
    except DigestError:
        return bool(one == other)


def _resolve(landed: dict[str, Any]) -> None:
    for run in runs():
        for step in run.steps:
            if step.status == "in_doubt":
                if step.idempotency_key in landed:
                    run.resolve(step.number, landed=landed[step.idempotency_key])
                else:
                    run.resolve(step.number, did_not_happen=True)


def _resolve_renamed(name: str, arguments: str) -> None:
    """Declare the stopped call to be the call recorded under the tool's earlier name."""
    for run in runs():
        for step in run.steps:
            if (step.name, step.arguments) != (name, arguments):
                continue
            # Either the run did not stop because of that step, or the step has answered an equal
            # call.
            with contextlib.suppress(StepNotFoundError, ConfigurationError):
                run.resolve(step.number, same=True)
                return


@contextlib.contextmanager
def _home(folder: str) -> Iterator[None]:
    os.environ["STEPWISE_HOME"] = os.path.join(folder, "home")
    os.environ["STEPWISE_QUIET"] = "1"
    os.environ.pop("STEPWISE_KEY", None)
    with fresh_store(os.path.join(folder, "home", "store")):
        yield


@contextlib.contextmanager
def _watching(folder: str, disturbance: _Disturbance | None) -> Iterator[None]:
    log = os.open(os.path.join(folder, "log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    renamed = disturbance.renamed if disturbance is not None else None
    earlier = earlier_name(renamed.name) if renamed is not None else ""

    def reached(passed: Passed) -> None:
        if renamed is not None and passed.call.name == earlier:  # logged as the same call
            shown = passed.point.call.replace(earlier, renamed.name, 1)
            passed = replace(passed, point=replace(passed.point, call=shown))
        data = bytes(encode(passed, f"what {passed.call.name} returned").data)
        os.write(log, len(data).to_bytes(8, "little") + data)
        if disturbance is not None and passed.point == disturbance.point:
            if disturbance.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise SimulatedFailure(str(disturbance))

    with contextlib.ExitStack() as stack:
        stack.enter_context(_home(folder))
        if renamed is not None:
            stack.enter_context(under_earlier_name(renamed))
        stack.enter_context(CrashWatch(reached).installed())
        yield


def _read_log(folder: str) -> list[Passed]:
    found = []
    try:
        with open(os.path.join(folder, "log"), "rb") as file:
            while size := file.read(8):
                data = file.read(int.from_bytes(size, "little"))
                found.append(decode(data, stored=False))
    except FileNotFoundError:
        pass  # no step was executed
    return found
