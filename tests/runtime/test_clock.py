"""Clocks that jump: how long a wait lasts."""

from __future__ import annotations

import datetime as dt
import os
import time

import pytest
from harness import until

import stepwise
from stepwise import RunSuspended, workflow
from stepwise._execution.active_run import live_runs
from stepwise._runtime import clock, settings
from stepwise._runtime.clock import End

YEAR = 365 * 86400.0


class Clocks:
    """The clocks of a process, as a test sets them."""

    def __init__(self):
        self.now, self.elapsed = 1e9, 1000.0

    def pass_by(self, seconds):
        """Let time pass."""
        self.now += seconds
        self.elapsed += seconds

    def begin_process(self):
        """Begin another process on a machine that was started again."""
        self.elapsed = 5.0


@pytest.fixture
def clocks(monkeypatch):
    """Clocks that stand still unless the test moves them."""
    found = Clocks()
    monkeypatch.setattr(clock, "now", lambda: found.now)
    monkeypatch.setattr(clock, "elapsed", lambda: found.elapsed)
    return found


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_duration_in_one_process_ignores_a_clock_that_is_set(clocks, jump):
    """A wall clock that jumps neither ends nor prolongs a duration that began in this process.

    A moment comes when the wall clock says so; a wait without an end has no time left to tell.
    """
    end, moment = End.of(clocks.now + 60, 60), End.of(clocks.now + 60, None)
    clocks.now += jump
    assert (end.left(), moment.left()) == (60, 60 - jump)
    clocks.pass_by(59)  # also while the machine sleeps
    assert end.left() == 1
    clocks.pass_by(1)
    assert end.left() == 0
    assert End.of(None, None).left() is None


@pytest.mark.parametrize(("jump", "left"), [(-YEAR, 60), (YEAR, 0), (40, 20), (1040, 0)])
def test_a_clock_that_jumps_between_two_processes(clocks, jump, left):
    """In another process the recorded end counts: a clock set back costs one length at most."""
    until = clocks.now + 60
    clocks.now += jump
    clocks.begin_process()
    assert End.of(until, 60).left() == left


def test_the_clocks_of_this_machine():
    """The clock of durations counts on, and is no wall clock."""
    before = clock.elapsed()
    assert clock.elapsed() >= before
    assert abs(clock.now() - time.time()) < 60


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_a_change_of_the_time_zone_means_nothing(monkeypatch, zone):
    """A run that suspended in one time zone goes on in another one at the same moment."""
    now = [1e9]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    monkeypatch.setattr(settings._settings, "suspend_after", 0.0)
    moment = dt.datetime.fromtimestamp(now[0] + 1.5, dt.timezone.utc)

    @workflow(run_id="r")
    def flow():
        stepwise.sleep_until(moment.astimezone())
        return "over"

    with pytest.raises(RunSuspended):
        flow()
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with pytest.raises(RunSuspended):
            flow()
        assert [each.until for each in stepwise.get_run("r").waits] == [moment.timestamp()]
        now[0] += 1.5
        assert flow() == "over"
    finally:
        monkeypatch.undo()
        os.environ.get("TZ")
        time.tzset()


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_run_whose_clock_jumps_while_it_waits(clocks, monkeypatch, jump):
    """A run that sleeps in its process wakes in time, whatever the wall clock says."""
    stepwise.configure(suspend_after=None)
    looks = []

    def elapsed():
        looks.append(clocks.elapsed)
        return clocks.elapsed

    monkeypatch.setattr(clock, "elapsed", elapsed)

    @workflow(run_id="r")
    def flow():
        stepwise.sleep(3600)
        return clocks.elapsed

    def look_again():
        before = len(looks)
        for run in list(live_runs):
            run.flows.parked.ring()
        until(lambda: len(looks) > before)

    handle, began = flow.start(), clocks.elapsed
    until(lambda: stepwise.get_run("r").counts.get("waiting"))
    clocks.now += jump
    look_again()
    clocks.elapsed += 3599
    look_again()
    clocks.elapsed += 1
    look_again()
    assert handle.result(300) == began + 3600


@pytest.mark.parametrize(("jump", "over"), [(YEAR, True), (-YEAR, False)])
def test_a_run_whose_clock_jumped_between_two_attempts(monkeypatch, jump, over):
    """Between two attempts only the wall clock is there: set ahead, the wait is over."""
    real = clock.now
    shift = [0.0]
    monkeypatch.setattr(clock, "now", lambda: real() + shift[0])
    monkeypatch.setattr(settings._settings, "suspend_after", 0.0)

    @workflow(run_id="r")
    def flow():
        stepwise.sleep(3600)
        return "over"

    with pytest.raises(RunSuspended):
        flow()
    shift[0] = jump
    if over:
        assert flow() == "over"
    else:
        with pytest.raises(RunSuspended):
            flow()
