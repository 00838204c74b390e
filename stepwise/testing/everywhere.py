"""Crashes everywhere, with a real kill: the whole question "is my agent crash-safe?".

A process of its own per trial, killed with SIGKILL before, inside and after every step, run again
until it has ended, and compared with a run that nothing disturbed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stepwise._runs.listing import runs
from stepwise._values import digest
from stepwise._values.codec import decode, encode
from stepwise.errors import ConfigurationError, DigestError, StepInDoubtError
from stepwise.testing.crashes import CrashPoint, CrashWatch, Passed
from stepwise.testing.fresh import fresh_store

__all__ = ["CrashReport", "crash_everywhere"]

_RESTARTS = 20  # restarts in one trial; each settles one doubt at least


@dataclass
class CrashReport:
    """The results of :func:`crash_everywhere`.

    Args:
        points: the places at which the workflow was killed, as text.
        in_doubt: those after which a side effect was in doubt, and was settled with the truth.
        starts: how many processes were started.
        result: what the undisturbed run gave.
    """

    points: list[str] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    starts: int = 0
    result: Any = None


@dataclass
class _ProcessEnd:
    """The end of a process: its result or exception, or a kill."""

    killed: bool = False
    value: Any = None
    error: str = ""
    trace: str = ""


def crash_everywhere(
    workflow: Callable[..., Any],
    *args: Any,
    setup: Callable[[], Any] | None = None,
    effects: Callable[[], Any] | None = None,
    compare: Callable[[Any, Any], bool] | None = None,
    limit: int | None = None,
    **kwargs: Any,
) -> CrashReport:
    """Kill a workflow at every point that makes a difference, run it again, and compare.

    Each trial has a store of its own and runs in forked processes: one is killed (SIGKILL) before,
    inside or after a step, the next ones are left alone until the workflow has ended.  A side
    effect that is then in doubt is settled with the truth, as somebody who looked would.  It holds
    that no body of a step runs again whose outcome was recorded, that no side effect happens twice,
    and that the result is that of an undisturbed run.

    Also the pytest fixture of the same name.

    Args:
        workflow: called with ``args`` and ``kwargs``; a coroutine is run to its end.
        setup: puts the outside world (files, a test database) back; called before each trial.
        effects: reads the outside world; what it gives after each trial must be equal, too.  It is
            called in this process, so it must read what other processes wrote.
        compare: tells whether two results are equal, if ``==`` does not.
        limit: at most this many points, spread evenly; all by default.

    Raises:
        AssertionError: a trial differed; says where it was killed and what happened.
        ConfigurationError: this system cannot fork.
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("crash_everywhere() needs os.fork(), which this system lacks")
    call = functools.partial(_call, workflow, args, kwargs)
    return _Trials(call, setup, effects, compare or _equal).run(limit)


def _call(workflow: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = workflow(*args, **kwargs)
    if inspect.isawaitable(value):
        import asyncio

        async def awaited() -> Any:
            return await value

        return asyncio.run(awaited())
    return value


def _folder() -> tempfile.TemporaryDirectory[str]:
    memory = "/dev/shm"  # noqa: S108
    # A killed process leaves its files behind without a disk; in memory, a flush costs nothing.
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
        self._report = CrashReport()
        self._log: list[Passed] = []

    def run(self, limit: int | None) -> CrashReport:
        """The undisturbed run, then every trial."""
        with _folder() as folder:
            self._prepare()
            undisturbed = self._start(folder, None)
            if undisturbed.killed:
                raise AssertionError("the process died although the test did not kill it")
            self._log = _read_log(folder)
            world = self._effects() if self._effects is not None else None
        points = [passed.point for passed in self._log]
        if not points:
            raise AssertionError(
                f"no step was executed ({undisturbed.error or 'it returned'}): is it a @workflow "
                f"that calls steps?\n{undisturbed.trace}"
            )
        self._report.result = undisturbed.value
        step = max(1, -(-len(points) // limit)) if limit else 1
        for point in points[::step]:
            self._report.points.append(str(point))
            self._prepare()
            with _folder() as folder:
                self._try(folder, point, undisturbed, world)
        return self._report

    def _prepare(self) -> None:
        if self._setup is not None:
            self._setup()

    def _try(self, folder: str, point: CrashPoint, undisturbed: _ProcessEnd, world: Any) -> None:
        killed = self._start(folder, point)
        story = [f"killed {point}"]
        if not killed.killed:
            raise AssertionError(
                f"the point was not reached again: {point}. Do the workflow's calls differ "
                f"each time? It returned {killed.value!r} {killed.trace}"
            )
        for _ in range(_RESTARTS):
            ended = self._start(folder, None)
            if ended.error != StepInDoubtError.__name__:
                break
            story.append(self._settle(folder))
            self._report.in_doubt.append(str(point))
        self._judge(folder, ended, undisturbed, world, story)

    def _judge(
        self,
        folder: str,
        ended: _ProcessEnd,
        undisturbed: _ProcessEnd,
        world: Any,
        story: list[str],
    ) -> None:
        told = "; ".join(story)
        if ended.error != undisturbed.error or ended.killed:
            raise AssertionError(
                f"{told}: it ended with {ended.error or 'a result'} instead of "
                f"{undisturbed.error or 'a result'}\n{ended.trace}"
            )
        if not ended.error and not self._compare(ended.value, undisturbed.value):
            raise AssertionError(
                f"{told}: the result differs from that of an undisturbed run:\n"
                f"  undisturbed  {undisturbed.value!r}\n  recovered    {ended.value!r}"
            )
        self._check_repeats(_read_log(folder), told)
        after = self._effects() if self._effects is not None else None
        if self._effects is not None and not _equal(after, world):
            raise AssertionError(
                f"{told}: the effects differ from those of an undisturbed run:\n"
                f"  undisturbed  {world!r}\n  recovered    {after!r}"
            )

    def _check_repeats(self, log: list[Passed], told: str) -> None:
        recorded: set[str] = set()
        for passed in log:
            if passed.point.when == "recorded" and passed.value == "completed":
                recorded.add(passed.key)
            elif passed.point.when == "before" and passed.key in recorded:
                raise AssertionError(f"{told}: {passed.point.call} ran again although it was done")
        happened, expected = _effects_in(log), _effects_in(self._log)
        if happened != expected:
            more = "; ".join((happened - expected).elements()) or "none"
            less = "; ".join((expected - happened).elements()) or "none"
            raise AssertionError(
                f"{told}: side effects happened too often: {more}; not at all: {less}"
            )

    # -- processes -------------------------------------------------------------------------------

    def _start(self, folder: str, point: CrashPoint | None) -> _ProcessEnd:
        """One process: it writes how it ended, unless it was killed."""
        self._report.starts += 1
        path = os.path.join(folder, "ended")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        pid = os.fork()
        if pid == 0:
            try:
                self._in_child(folder, point, path)
            finally:
                os._exit(3)
        _, status = os.waitpid(pid, 0)
        try:
            with open(path, "rb") as file:
                ended: _ProcessEnd = decode(file.read())
        except FileNotFoundError:
            if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
                raise AssertionError(
                    f"a process of the trial died by itself (status {status})"
                ) from None
            return _ProcessEnd(killed=True)
        return ended

    def _in_child(self, folder: str, point: CrashPoint | None, path: str) -> None:
        """Run the workflow, and log every point that it passes."""
        with _watching(folder, point):
            try:
                written = bytes(encode(_ProcessEnd(value=self._call()), "the result").data)
            except BaseException as error:
                ended = _ProcessEnd(error=type(error).__name__, trace=traceback.format_exc())
                written = bytes(encode(ended).data)
        with open(path + ".new", "wb") as file:
            file.write(written)
        os.replace(path + ".new", path)

    def _settle(self, folder: str) -> str:
        """Settle calls in doubt truthfully: the log shows which bodies have run."""
        happened = {
            passed.key: passed.value for passed in _read_log(folder) if passed.point.when == "after"
        }
        pid = os.fork()
        if pid == 0:
            try:
                with _home(folder):
                    _resolve(happened)
            except BaseException:
                traceback.print_exc()
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            raise AssertionError("a call in doubt could not be settled; see the output above")
        return "settled the calls in doubt"


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


@contextlib.contextmanager
def _home(folder: str) -> Iterator[None]:
    os.environ["STEPWISE_HOME"] = os.path.join(folder, "home")
    os.environ["STEPWISE_QUIET"] = "1"
    os.environ.pop("STEPWISE_KEY", None)
    with fresh_store(os.path.join(folder, "home", "store")):
        yield


@contextlib.contextmanager
def _watching(folder: str, point: CrashPoint | None) -> Iterator[None]:
    log = os.open(os.path.join(folder, "log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def reached(passed: Passed) -> None:
        data = bytes(encode(passed, f"what {passed.call.name} returned").data)
        os.write(log, len(data).to_bytes(8, "little") + data)
        if passed.point == point:
            os.kill(os.getpid(), signal.SIGKILL)

    with _home(folder), CrashWatch(reached).installed():
        yield


def _read_log(folder: str) -> list[Passed]:
    found = []
    try:
        with open(os.path.join(folder, "log"), "rb") as file:
            while size := file.read(8):
                found.append(decode(file.read(int.from_bytes(size, "little"))))
    except FileNotFoundError:
        pass  # no step was executed
    return found
