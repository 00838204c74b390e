"""Programs in folders of their own, which are killed, edited, and run again."""

import os
import signal
import textwrap

from harness import python

HEAD = """
import asyncio
import os
import stepwise
from stepwise import step, tool, workflow

def did(text):
    with open("bank", "a") as bank:
        bank.write(text + "\\n")

def crash(where):
    if os.environ.get("DIE") == where:
        os.kill(os.getpid(), 9)
"""


def edited(text, *changes):
    """Return a text with parts replaced, each of which must be in it."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def edit(path, *changes):
    """Replace parts of a file, each of which must be in it."""
    path.write_text(edited(path.read_text("utf-8"), *changes), "utf-8")


class Program:
    """A program that begins with ``HEAD``."""

    def __init__(self, folder, text):
        folder.mkdir(exist_ok=True)
        self.folder, self.file = folder, folder / "p.py"
        self.write(text)

    def write(self, text):
        self.file.write_text(HEAD + textwrap.dedent(text))

    def edit(self, *changes):
        edit(self.file, *changes)

    def run(self, die="", code=0, **env):
        """Run it, and return what it printed; its exit code is SIGKILL, or this one (None: any)."""
        env = {**os.environ, "DIE": die, "STEPWISE_QUIET": "", **env}
        ended = python(self.file, cwd=self.folder, env=env, together=True)
        self.code = ended.returncode
        assert self.code == (-signal.SIGKILL if die else code) or code is None, ended.stdout
        return ended.stdout

    @property
    def bank(self):
        """What happened outside."""
        bank = self.folder / "bank"
        return bank.read_text().split("\n")[:-1] if bank.exists() else []

    def done(self):
        """Return what happened outside since the last look."""
        lines = self.bank
        (self.folder / "bank").write_text("")
        return lines
