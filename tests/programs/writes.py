"""Kills processes at each write of their store, with a real SIGKILL, and looks at what comes of it.

A program that does it ends with ``sweep(play)``, and is called ``python NAME.py FOLDER FIRST STRIDE
...``: it takes every so many writes.  ``play(trial)`` executes functions in processes that are
forked one after the other, and says what was wrong.  The process that is about to make, or has just
made, the write of the trial's number is killed.
"""

import contextlib
import importlib
import json
import mmap
import os
import pathlib
import signal
import struct
import sys

from harness import python

import stepwise
from stepwise._rewrite.build import rewrite
from stepwise.stores import open_store

SUSPENDED = 75


class Trial:
    """A folder, and the processes that are forked in it."""

    def __init__(self, folder, kill, *, before):
        self.folder, self.kill, self.before = folder, kill, before
        self.codes = []
        self._writes = mmap.mmap(-1, 8)  # of all processes
        folder.mkdir(parents=True)

    @property
    def writes(self):
        """How many writes there were."""
        return struct.unpack("q", self._writes[:8])[0]

    @property
    def killed(self):
        """Whether a process was killed."""
        return 0 < self.kill <= self.writes

    def open(self):
        """The store; the process that has it is killed at a write of a certain number."""
        store = open_store(f"disk:{self.folder / 'store'}")
        commit = store.write

        def write(*args, **kwargs):
            number = self.writes + 1
            self._writes[:8] = struct.pack("q", number)
            if number == self.kill and self.before:
                os.kill(os.getpid(), signal.SIGKILL)
            commit(*args, **kwargs)
            if number == self.kill:
                os.kill(os.getpid(), signal.SIGKILL)

        store.write = write
        return store

    def log(self, file, *facts):
        """Append a line to a file of the trial."""
        with open(self.folder / file, "a", encoding="utf-8") as out:
            out.write(f"{json.dumps(facts)}\n")

    def lines(self, file):
        """The lines of a file of the trial."""
        path = self.folder / file
        return list(map(json.loads, path.read_text("utf-8").splitlines())) if path.exists() else []

    def fork(self, function, *given):
        """Execute a function in a process of its own; its exit code."""
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = function(self, *given) or 0
            except stepwise.RunSuspended:
                code = SUSPENDED
            except BaseException as error:
                self.log("wrong", repr(error))
            finally:
                if not self.kill:
                    self.log("modules", *sys.modules)
                os._exit(code)
        self.codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return self.codes[-1]

    def until(self, wanted, function, *given, suspended=None):
        """Execute a function until it ends with a code; whenever it is suspended, another one."""
        for _ in range(40):
            code = self.fork(function, *given)
            if code == wanted:
                return
            if code == SUSPENDED and suspended is not None:
                self.fork(suspended)
            elif code != -signal.SIGKILL:
                break
        self.log("wrong", f"ended with {self.codes}")

    def ended(self, status):
        """The run, in its store as it is; it must verify, and have a status."""
        run = stepwise.get_run("r", store=open_store(f"disk:{self.folder / 'store'}"))
        if run.status != status or not run.verify().ok:
            self.log("wrong", f"{run.status}, {run.verify()}")
        return run


def sweep(play):
    """Play the trials, each in a process of its own, and print what came of them as JSON."""
    stepwise.configure(suspend_after=0, quiet=True)
    folder, first, stride = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:4])
    trials = kills = 0
    problems = []
    writes = prepare(play, folder / "undisturbed")
    for before in (True, False):
        for kill in range(first, writes + 1, stride):
            trial = Trial(folder / f"{kill}{before}", kill, before=before)
            pid = os.fork()  # this process never opens a store
            if not pid:
                try:
                    play(trial)
                except BaseException as error:
                    trial.log("wrong", repr(error))
                os._exit(0)
            os.waitpid(pid, 0)
            trials += 1
            kills += trial.killed
            what = f"write {kill} {'before' if before else 'after'}"
            problems += [f"{what}: {each}" for each in trial.lines("wrong")]
    print(json.dumps({"trials": trials, "kills": kills, "problems": problems}))


def prepare(play, folder):
    """Import what processes of a trial do, so that they need not; return how many writes it has."""
    rewrite(play)  # what it compiles is compiled for all
    trial = Trial(folder, 0, before=True)
    trial.fork(lambda _: play(trial))
    assert not trial.lines("wrong"), trial.lines("wrong")
    for name in {name for each in trial.lines("modules") for name in each}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return trial.writes


def swept(program, folder, first, stride, *given):
    """Let a program of this folder kill its processes: how many were, if nothing was wrong."""
    path = pathlib.Path(__file__).with_name(program)
    found = json.loads(python(path, folder, first, stride, *given, code=0).stdout)
    assert found["problems"] == []
    return found["kills"]
