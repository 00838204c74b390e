"""What a run says survives: killed at any moment, with readers that come and go."""

import asyncio
import json
import random
import resource
import signal
import subprocess
import sys

import pytest
from harness import COMMAND, until
from listening import (
    PROGRAM,
    applied,
    check,
    check_reconnects,
    ended,
    killed_while_listened_to,
    start,
)
from sweeping import WHOLE

import stepwise


@pytest.mark.parametrize("kind", ["talk", "rarely", "together", "items"])
def test_killed_while_readers_come_and_go(kind):
    """0 items are lost, 0 doubled, the order is kept, whenever the program is killed."""
    seed = random.randrange(10**6) if WHOLE else 7
    listener = killed_while_listened_to(kind, kills=100 if WHOLE else 3, seed=seed)
    run = stepwise.get_run("talk")
    check(applied(listener.events), run)
    check(applied(run.stream()), run)
    check_reconnects(listener, run, 1000 if WHOLE else 15, seed)
    assert listener.events[-1].value == "completed"
    assert run.verify().ok


def test_terminated_while_readers_come_and_go():
    """SIGTERM lets the step in flight end, and loses nothing that it said."""
    listener = killed_while_listened_to("talk", kills=3, seed=1, how=signal.SIGTERM)
    check(applied(listener.events), stepwise.get_run("talk"))


def test_what_a_recorded_step_said_is_on_record(tmp_path, monkeypatch):
    """What a step said is written before its record: a kill right after it loses nothing."""
    monkeypatch.chdir(tmp_path)
    assert [ended(start("dies")), ended(start("dies"))] == [9, 0]
    items = [each.value for each in stepwise.get_run("talk").stream()]
    assert items == ["said", "completed"]


def test_a_reader_that_was_stopped():
    """A reader that was stopped for longer than the run took loses nothing."""
    program = start("talk")
    until(stepwise.runs)
    command = [COMMAND, "watch", "talk", "--stream", "main", "--json"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = reader.stdout.readline()
    reader.send_signal(signal.SIGSTOP)
    assert ended(program) == 0
    reader.send_signal(signal.SIGCONT)
    rest = reader.stdout.read()
    reader.communicate()
    events = [stepwise.StreamItem(**json.loads(each)) for each in [first, *rest.splitlines()]]
    check(applied(events), stepwise.get_run("talk"))
    assert events[-1].kind == "end"


def test_twenty_readers_in_one_event_loop():
    """Twenty asynchronous readers from random offsets end with the same items."""
    assert ended(start("talk")) == 0
    run, dice = stepwise.get_run("talk"), random.Random(3)
    events = [*run.stream()]

    async def read():
        seen = events[: dice.randrange(1, len(events))]
        return applied([each async for each in run.stream(seen[-1].offset)], applied(seen))

    async def main():
        return await asyncio.gather(*(read() for _ in range(20)))

    for items in asyncio.run(main()):
        check(items, run)


def test_a_full_disk():
    """On a full disk the run stops with ``StoreError``; with room again nothing is lost."""

    def no_space():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    command = [sys.executable, PROGRAM, "talk"]
    stopped = subprocess.run(command, preexec_fn=no_space, capture_output=True, check=False)
    assert b"StoreError" in stopped.stderr
    assert stopped.returncode == 1
    assert ended(start("talk")) == 0
    run = stepwise.get_run("talk")
    check(applied(run.stream()), run)
