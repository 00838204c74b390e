"""Cancellations at any turn of the loop, many processes on one run, and a clock that moves.

Ctrl-C during the calls of the store: ``test_stores.py``, ``test_journal.py``; at each event of a
whole program: ``test_same_process.py``.
"""

import asyncio
import collections
import contextlib
import os
import random
import tempfile
import warnings

import pytest
from harness import PROGRAMS as FOLDER
from harness import Lab
from judge import check, undisturbed
from sweeping import SEED, WHOLE, size, some

import stepwise
from stepwise import DidNotHappen, Landed, step, tool, workflow
from stepwise._execution import active_run
from stepwise.testing import fresh_store

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # nothing here is about the disk
YEAR = 366 * 24 * 3600
PLAIN = (FOLDER / "plain.py").read_text(encoding="utf-8")

# -- cancellations -------------------------------------------------------------------------------

DID, SENT = collections.Counter(), {}


@step
async def fetch(n):
    await asyncio.sleep(0)
    DID[f"fetch {n}"] += 1
    await asyncio.sleep(0)
    return n * 10


def look(call):
    """Whether the message has arrived, as a look outside tells."""
    key = call.idempotency_key
    return Landed(SENT[key]) if key in SENT else DidNotHappen


@tool(side_effect=True, in_doubt=look)
async def send(n):
    await asyncio.sleep(0)
    DID[f"send {n}"] += 1
    SENT[stepwise.current_step().idempotency_key] = f"sent {n}"
    await asyncio.sleep(0)
    return f"sent {n}"


async def branch(n):
    return [await fetch(n), await send(n)]


@workflow
async def agent(first):
    found = [await fetch(first)]
    found += await asyncio.gather(*[branch(n) for n in (1, 2)])
    for n in (3, 4):
        found.append(await send(n))
    return found


RIGHT = [0, [10, "sent 1"], [20, "sent 2"], "sent 3", "sent 4"]


class Turning(asyncio.SelectorEventLoop):
    """An event loop that counts its turns, and cancels its task at one of them."""

    turns, at, task = 0, None, None

    def _run_once(self):
        self.turns += 1
        if self.turns == self.at:
            self.task.cancel()
        super()._run_once()


def turned(call, at=None):
    """The result of a call that is cancelled at a turn (``None`` if it was), and the turns."""
    with contextlib.closing(Turning()) as loop:
        loop.task, loop.at = loop.create_task(call), at
        try:
            return loop.run_until_complete(loop.task), loop.turns
        except asyncio.CancelledError:
            return None, loop.turns


def storm(count, run=agent):
    """Cancel a run at random turns, and call it again; what was wrong, and how many were hit."""
    wrong, hit, chance = [], 0, random.Random(f"{SEED} cancel")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, fresh_store(folder):
        result, turns = turned(run.options(run_id="undisturbed")(0))
        assert result == RIGHT
        for number in range(count):
            DID.clear()
            call, at = run.options(run_id=f"run{number}"), chance.randint(1, turns)
            hit += turned(call(0), at)[0] is None
            if turned(call(0))[0] != RIGHT:
                wrong.append(f"cancelled at turn {at}: another result")
            if any(DID[f"send {n}"] != 1 for n in (1, 2, 3, 4)) or DID.total() > len(DID) + 2:
                wrong.append(f"cancelled at turn {at}: {DID}")
    return wrong, hit


def test_cancelled_at_any_turn_of_the_loop(tally):
    """Cancelled anywhere and called again, a run ends as if nothing had been; none is stuck."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stepwise.StepwiseWarning)
        wrong, hit = storm(size(30, 1000))
    assert wrong == []
    assert hit
    tally("a cancelled task", size(30, 1000), cancelled=hit)


def test_the_storm_sees_what_is_repeated():
    """With a look outside that lies, the same cancellations do repeat side effects."""
    lying = tool(side_effect=True, in_doubt=lambda call: DidNotHappen)(send.__wrapped__)

    @workflow
    async def other(first):
        found = [await fetch(first)]
        found += [[n * 10, await lying(n)] for n in (1, 2)]
        return [*found, await lying(3), await lying(4)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stepwise.StepwiseWarning)
        wrong, _ = storm(15, other)
    assert wrong


# -- many processes ------------------------------------------------------------------------------

NO_LOCKS = """
from stepwise.stores._files import LockFile
LockFile.acquire = lambda self, name: True
"""


def race(count):
    """Start a program in several processes at once: owners, exit codes, texts, what was done."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(PLAIN))
        paused = {"die_at": "post(task 10) after", "how": "pause"}
        processes = [stack.enter_context(lab.popen(**paused)) for _ in range(count)]
        said = [process.stdout.readline() for process in processes]
        for process in processes:
            process.stdin.close()  # the owner goes on
        told = [
            first + process.stdout.read() for first, process in zip(said, processes, strict=True)
        ]
        codes = [process.wait() for process in processes]
        owners = [
            each.pid for each, first in zip(processes, said, strict=True) if first == "paused\n"
        ]
        return owners, codes, told, lab.did


def test_many_processes_on_one_run(tally):
    """Of several processes one has the run, and the others are told at once which."""
    count = 8 if WHOLE else 4
    owners, codes, told, did = race(count)
    assert len(owners) == codes.count(0) == 1
    for code, text in zip(codes, told, strict=True):
        assert code == 0 or f"is being executed by process {owners[0]} on" in text
    assert set(did.values()) == {1}
    tally("processes on one run", count, races=1, owners=1)


def test_the_race_sees_a_second_owner():
    """Without locks a second process is not told that the run has an owner."""
    with Lab(NO_LOCKS + PLAIN) as lab, lab.popen(die_at="fetch(1) after", how="pause") as owner:
        assert owner.stdout.readline() == "paused\n"
        assert "is being executed by" not in lab.run().text
        owner.kill()


# -- a clock that moves --------------------------------------------------------------------------

CLOCK = """
import os, time
_real, _by = time.time, float(os.environ["CLOCK_BY"])
time.time = lambda: _real() + _by
"""


@pytest.mark.parametrize(("first", "second"), [(0, YEAR), (0, -YEAR), (YEAR, -YEAR)])
def test_a_clock_that_moves_by_a_year(first, second, tally):
    """A run resumes although the clock was put forward or back meanwhile; nothing is lost."""
    places = some(undisturbed("plain").places, 6, f"clock {first} {second}")
    for place in places:
        with Lab(CLOCK + PLAIN, CLOCK_BY=str(first)) as lab:
            assert lab.run(die_at=place).died
            lab.environment["CLOCK_BY"] = str(second)
            lab.run_to_end()
            check(lab, "plain", place)
    tally("the clock moved by a year", len(places))


def test_an_owner_is_the_owner_whatever_the_clock_says():
    """A clock that is a year off takes no run away from the process that executes it.

    The second process is told at once which one has the run, and since when.
    """
    with Lab(CLOCK + PLAIN, CLOCK_BY="0") as lab:
        with lab.popen(die_at="post(task 10) after", how="pause") as owner:
            assert owner.stdout.readline() == "paused\n"
            for by in (YEAR, -YEAR):
                lab.environment["CLOCK_BY"] = str(by)
                second = lab.run()
                assert second.code == 1
                assert f"is being executed by process {owner.pid} on" in second.text
                assert " since 20" in second.text
            owner.communicate("\n")
            assert owner.returncode == 0
        check(lab, "plain")


@pytest.mark.parametrize("kind", ["function", "generator"])
def test_ctrl_c_as_a_run_is_entered(kind, monkeypatch):
    """After Ctrl-C in the very moment in which a run begins, the same call continues it."""

    @step
    def twice(number):
        return number * 2

    @workflow
    def summing():
        return twice(1) + twice(2)

    @workflow
    def giving():
        yield twice(1) + twice(2)

    def called():
        return summing() if kind == "function" else next(iter(giving()))

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(active_run, "joins", interrupted)
        with pytest.raises(KeyboardInterrupt):
            called()
    assert called() == 6
