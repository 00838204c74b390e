"""Runs that failed are opened in a debugger, mended and finished: no step is made twice."""

import itertools
import os
from collections import Counter

import pytest
from harness import python, python_path
from prompting import Prompt
from sweeping import WHOLE

import stepwise

SOURCE = """
import asyncio, os, signal, sys
import stepwise
from stepwise import DidNotHappen, Landed, step, tool, workflow

def log(text):
    with open(os.environ["LOG"], "a") as file:
        file.write(text + "\\n")

events = 0

@stepwise.on_event
def kill(event):
    global events
    events += 1
    if str(events) == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)

def happened(question):
    with open(os.environ["LOG"]) as file:
        return Landed("sent") if f"send {question.arguments['text']}\\n" in file else DidNotHappen

@step
ASYNC def think(number):
    log(f"think {number}")
    return number * 10

@step
ASYNC def price(text):
    cents = int(text)
    log(f"price {text}")
    return cents

@tool(side_effect=True, in_doubt=happened)
ASYNC def send(text):
    log(f"send {text}")
    return "sent"

def check(text):
    if text == "seven" and os.environ.get("FAIL") == "workflow":
        raise ValueError(text)
    if text == "seven" and os.environ.get("FAIL") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)

@workflow(retention="all")
ASYNC def agent():
    notes, text = [], "seven"
    for number in range(2):
        notes.append(AWAIT think(number))
        AWAIT send(f"note {number}")
    check(text)
    cents = AWAIT price(text)
    AWAIT send(f"cents {cents}")
    return cents

if __name__ == "__main__":
    print("result", START)
"""
FORMS = {
    "plain": {"ASYNC ": "", "AWAIT ": "", "START": "agent()"},
    "awaited": {"ASYNC ": "async ", "AWAIT ": "await ", "START": "asyncio.run(agent())"},
}
ONCE = ["send cents 7", "send note 0", "send note 1", "think 0", "think 1"]


class Program:
    """A program whose run has failed or died."""

    def __init__(self, folder, monkeypatch, words, fail="step"):
        source = SOURCE
        for word, instead in words.items():
            source = source.replace(word, instead)
        (folder / "plain").mkdir()
        (folder / "plain" / "IPython.py").write_text("raise ImportError('not here')")
        self.script, self.path = folder / "program.py", folder / "log"
        self.script.write_text(source)
        monkeypatch.setenv("LOG", str(self.path))
        self.env = {"PYTHONPATH": python_path(folder / "plain")}
        self.start(FAIL=fail)
        (self.run,) = stepwise.runs()
        assert self.run.status in ("failed", "crashed")

    def start(self, **env):
        """Run the program itself; its exit code."""
        return python(self.script, env={**os.environ, **env})

    def line(self, part):
        """The number of a line of the source."""
        lines = self.script.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if part in line)

    def debug(self, *lines, **env):
        """Give commands at the prompt; what the terminal showed."""
        prompt = Prompt(self.run.id, env={**self.env, **env})
        for line in lines:
            prompt.hear()
            prompt.terminal.sendline(line if isinstance(line, str) else line())
        return prompt.end()[1]

    @property
    def log(self):
        return sorted(each for each in self.path.read_text().splitlines() if "price" not in each)


def reloaded(program):
    """A function that mends the source, and then gives the command that reads it again."""

    def line():
        text = program.script.read_text().replace("    check(text)", "    text = '7'")
        program.script.write_text(text)
        return "reload"

    return line


WAYS = {
    "variable": lambda program: ["text = '7'", "continue"],
    "source": lambda program: [reloaded(program), "continue"],
    "line by line": lambda program: ["text = '7'", "next", "next", "continue"],
    "earlier": lambda program: ["back", "back", "text = '7'", "continue"],
    "jump": lambda program: [
        "cents = 7",
        f"jump {program.line('cents {cents}')}",
        "continue",
    ],
}


ENDS = ("step", "workflow", "kill")
# In CI each way once, and each form with several ends.
FEW = zip(WAYS, itertools.cycle(FORMS), itertools.cycle(ENDS), strict=False)
CASES = [*(itertools.product(WAYS, FORMS, ENDS) if WHOLE else FEW)]


@pytest.mark.parametrize(("way", "form", "fail"), CASES)
def test_mended_and_finished(way, form, fail, tmp_path, monkeypatch):
    """A run that failed or died is opened, mended in one of five ways, and ends."""
    program = Program(tmp_path, monkeypatch, FORMS[form], fail)
    said = program.debug(*WAYS[way](program))
    assert program.run.status == "completed", said
    assert "result 7" in said
    assert program.log == ONCE


@pytest.mark.parametrize(
    ("at", "form"),
    itertools.product(range(1, 9), FORMS)
    if WHOLE
    else [(1, "plain"), (3, "awaited"), (5, "plain"), (6, "awaited")],
)
def test_killed_while_it_goes_on(at, form, tmp_path, monkeypatch):
    """Killed at any event after ``continue``, a run ends by a plain start: no step made twice."""
    program = Program(tmp_path, monkeypatch, FORMS[form])
    program.debug("text = '7'", "continue", KILL_AT=str(at))
    assert program.run.owner is None
    ended = program.start()
    if program.run.locals()["text"] == "seven":  # killed before anything was recorded
        assert ended.returncode
        program.debug("text = '7'", "continue")
    assert program.run.status == "completed", ended.stderr
    assert program.log == ONCE
    assert max(Counter(program.path.read_text().splitlines()).values()) == 1
