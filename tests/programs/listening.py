"""Readers of a run's stream while its process is killed, and what they must have in the end."""

import pathlib
import random
import signal
import threading
from collections import Counter

import saying
from harness import talking, until

import stepwise

PROGRAM = pathlib.Path(__file__).with_name("saying.py")


def applied(events, items=None):
    """The items that a reader has after some events; it had ``items`` before."""
    items = dict(items or {})
    for each in events:
        if each.kind == "reset":
            items = {n: v for n, v in items.items() if n < each.value}
        elif each.kind == "item":
            assert all(each.offset > other for other in items), each
            items[each.offset] = each.value
    return items


def check(items, run):
    """0 lost, 0 doubled, in order; steps at once may interleave, each in its own order."""
    left = [*items.values()]
    for part in saying.expected(run):
        here, left = left[: len(part)], left[len(part) :]
        assert Counter(map(str, here)) == Counter(map(str, part))
        for one in {_speaker(each) for each in part}:
            mine = [each for each in here if _speaker(each) == one]
            assert mine == [each for each in part if _speaker(each) == one]
    assert left == []


def _speaker(said):
    return said.rpartition(":")[0] if isinstance(said, str) else ""


class Listener(threading.Thread):
    """A reader that leaves and comes back at random places; it keeps all that it got."""

    def __init__(self, seed):
        super().__init__(daemon=True)
        self.dice, self.events, self.problem = random.Random(seed), [], None
        self.grown, self.ended = threading.Condition(), False

    def run(self):
        try:
            while not self.ended:
                self.listen()
        except BaseException as problem:
            self.problem, self.ended = problem, True
            with self.grown:
                self.grown.notify_all()

    def listen(self):
        try:
            run = stepwise.get_run("talk")
        except (stepwise.RunNotFoundError, stepwise.JournalLostError):
            return  # it has not begun
        most = self.dice.randrange(1, 60)
        for each in run.stream(self.events[-1].offset if self.events else None):
            with self.grown:
                self.events.append(each)
                self.ended = each.kind == "end"
                self.grown.notify_all()
            most -= 1
            if not most:
                return

    def until(self, count):
        """Wait until it has got so many events, or the run has ended."""
        with self.grown:
            assert self.grown.wait_for(lambda: self.ended or len(self.events) >= count, 120)
        if self.problem is not None:
            raise self.problem


def start(kind):
    return talking(PROGRAM, kind)


def ended(process):
    """Wait for the end of the program; return its exit code."""
    with process.stdin, process.stdout:
        process.stdout.read()
        return process.wait()


def killed_while_listened_to(kind, *, kills, seed, how=signal.SIGKILL):
    """Kill the program as often, each time when a reader has got some more; return the reader."""
    listener, dice = Listener(seed), random.Random(seed)
    listener.start()
    for _ in range(kills):
        process = start(kind)
        wanted = len(listener.events) + dice.randrange(1, 40)
        until(lambda: process.poll() is not None or len(listener.events) >= wanted)  # noqa: B023
        process.send_signal(how)
        ended(process)
    assert ended(start(kind)) == 0
    listener.until(10**9)
    return listener


def check_reconnects(listener, run, count, seed):
    """A reader that left after any event, and comes back only now, ends with the same."""
    dice, events = random.Random(seed), listener.events
    for _ in range(count):
        seen = events[: dice.randrange(1, len(events) + 1)]
        items = applied(run.stream(seen[-1].offset, follow=False), applied(seen))
        check(items, run)
