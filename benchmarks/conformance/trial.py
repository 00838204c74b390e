"""One trial of a cell: a folder, and the processes of a program in it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import time
from typing import Any

SECONDS = 60  # for a process, at most
RACERS = 4

Told = dict[str, Any]


class Trial:
    """A folder with a store and a ledger, in which a program is started.

    Args:
        python: the interpreter that has the library.
        program: the program.
        number: of the trial, from 0.
    """

    def __init__(
        self, python: str, program: pathlib.Path, folder: pathlib.Path, number: int, **settings: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.python, self.program, self.folder, self.number = python, program, folder, number
        self.settings = settings
        self.environment = {
            **{name: each for name, each in os.environ.items() if name != "RACE"},
            "FOLDER": str(folder),
            "STEPWISE_HOME": str(folder / "home"),
            "STEPWISE_QUIET": "1",
            "PYTHONWARNINGS": "ignore",
            **settings,
        }

    def plan(self, what: str) -> None:
        """Say what is to go wrong, once."""
        (self.folder / "plan").write_text(what, "utf-8")

    def happened(self) -> bool:
        """Return whether it has."""
        return not (self.folder / "plan").exists()

    def ledger(self) -> list[dict[str, str]]:
        """Return the effects, in their order."""
        file = self.folder / "ledger"
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return [json.loads(each) for each in lines]

    def do(self, *action: str, then_kill: bool = False, seconds: float = SECONDS) -> Told:
        """Do an action in a process of its own, to its end; return what it printed."""
        return self._told(self._process(*action, lives=then_kill), seconds, then_kill=then_kill)

    def begin(self, *action: str) -> subprocess.Popen[str] | None:
        """Begin an action, up to where it hangs; ``None`` if it ended before."""
        process = self._process(*action)
        while process.poll() is None:
            if (self.folder / "stalled").exists():
                return process
            time.sleep(0.01)
        process.communicate()
        return None

    def wake(self, process: subprocess.Popen[str]) -> Told:
        """Let a process that hangs go on, to its end."""
        (self.folder / "woken").touch()
        return self._told(process, SECONDS)

    def race(self, *action: str) -> list[Told]:
        """Do an action in several processes at once; each begins when all have imported."""
        racers = [self._process(*action, RACE="1") for _ in range(RACERS)]
        while len([*self.folder.glob("armed-*")]) < RACERS:
            if any(each.poll() is not None for each in racers):
                break
            time.sleep(0.01)
        (self.folder / "go").touch()
        return [self._told(each, SECONDS) for each in racers]

    def close(self) -> None:
        """End the server that the program has started, if any."""
        service = self.folder / "service.pid"
        if service.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(service.read_text("utf-8")), signal.SIGKILL)

    def copied(self, name: str, **settings: str) -> Trial:
        """Return a trial in a copy of the folder."""
        folder = self.folder.with_name(f"{self.folder.name}-{name}")
        shutil.copytree(self.folder, folder)
        return Trial(
            self.python, self.program, folder, self.number, **{**self.settings, **settings}
        )

    def _process(self, *action: str, lives: bool = False, **more: str) -> subprocess.Popen[str]:
        with open(self.folder / "errors", "a", encoding="utf-8") as errors:
            return subprocess.Popen(
                [self.python, self.program, *action],
                env={**self.environment, **more, **({"LIVES": "1"} if lives else {})},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def _told(self, process: subprocess.Popen[str], seconds: float, *, then_kill=False) -> Told:
        assert process.stdout is not None
        if then_kill:  # once it has said how it ended
            ready, _, _ = select.select([process.stdout], [], [], seconds)
            line = process.stdout.readline() if ready else '{"state": "hangs", "why": "in start"}'
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return json.loads(line) if line else {"state": "killed"}
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"state": "hangs", "why": f"not over after {seconds:g} s"}
        if process.returncode == -signal.SIGKILL:
            return {"state": "killed"}
        lines = [each for each in said.splitlines() if each.startswith('{"state"')]
        if not lines:
            errors = (self.folder / "errors").read_text("utf-8")[-500:]
            return {"state": "failed", "why": f"exit {process.returncode}: {errors}"}
        told: Told = json.loads(lines[-1])
        return told
