"""Workflows that the tests of the cluster submit; the workers import this module.

What they do is seen in a folder: a line of ``steps`` for each body that was executed, with the
process; and they wait for files there.
"""

import asyncio
import os
import pathlib
import signal
import time

import stepwise
from stepwise import Landed, step, tool, workflow
from stepwise._runtime.interrupts import sigterms

SECONDS = 240


class MyError(Exception):
    """An error of a user's module."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


def note(world, text):
    """Add a line to the file of what was executed."""
    with open(os.path.join(world, "steps"), "a") as file:
        file.write(f"{text} {os.getpid()}\n")


def noted(world):
    """Return what was executed, and the processes."""
    path = pathlib.Path(world, "steps")
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split() for line in lines]


def pids(world, text):
    """Return the processes that noted a text."""
    return [int(pid) for what, pid in noted(world) if what == text]


def mark(world, name):
    """Make a file that jobs look for."""
    with open(os.path.join(world, name), "w"):
        pass


def wait_until(happened):
    """Wait until something has happened."""
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def wait_for_file(world, name):
    """Wait until somebody makes a file."""
    wait_until(lambda: os.path.exists(os.path.join(world, name)))


@step
def work(world, number):
    if os.path.exists(os.path.join(world, f"hold-{number}")):
        note(world, f"holds-{number}")
        wait_for_file(world, "go")
        if os.path.exists(os.path.join(world, "drains")):
            wait_until(lambda: sigterms.draining)  # the word comes from the driver, by Ray
    note(world, f"work-{number}")
    return number


@workflow
def many(world, count):
    """Make some steps, and remember in which process each piece of this code ran."""
    got, processes = [], []
    for number in range(count):
        got.append(work(world, number))
        processes.append(os.getpid())
    return got, processes


@workflow
async def amany(world, count):
    got = []
    for number in range(count):
        got.append(await awork(world, number))
        await asyncio.sleep(0)
    return got


@step
async def awork(world, number):
    return work.__wrapped__(world, number)


@workflow
def fails(kind):
    if kind == "mine":
        raise MyError(7)
    if kind == "exit":
        raise SystemExit(3)
    raise ValueError(kind)


@workflow
def gives(size):
    return bytes(size)


@workflow
def gives_what_cannot_be_recorded(world):
    work(world, 0)
    return (each for each in range(3))


@workflow
def waits(world):
    work(world, 0)
    answer = stepwise.wait_for("answer")
    work(world, 1)
    return answer


@workflow
def naps(world, seconds):
    work(world, 0)
    stepwise.sleep(seconds)
    work(world, 1)
    return "awake"


def landed(call):
    """Look outside whether a charge has happened: it has."""
    note(call.arguments["world"], "reconciled")
    return Landed("reconciled")


def _charge(world):
    note(world, "charged")
    if os.path.exists(os.path.join(world, "die")):
        os.unlink(os.path.join(world, "die"))
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists(os.path.join(world, "hold")):
        note(world, "holds")
        wait_for_file(world, "go")
        note(world, "goes-on")
    return "charged"


@tool(side_effect=True)
def charge(world):
    return _charge(world)


@tool(side_effect=True, in_doubt=landed)
def charge_and_look(world):
    return _charge(world)


@workflow
def pays(world):
    work(world, 0)
    return charge(world)


@workflow
def pays_and_looks(world):
    work(world, 0)
    return charge_and_look(world)


class Agent:
    """An agent whose method is a workflow."""

    def __init__(self, name):
        self.name = name

    @workflow
    def run(self, task, *, times=1):
        return [f"{self.name}: {task}"] * times
