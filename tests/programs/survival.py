"""Small programs that are killed in each of their steps, and resume where they were.

A program is the text of a script: it defines ``run()`` and calls the step ``work`` or the tool
``act``.  It is killed as one of these calls begins: in a few of them in CI, else once in each.
"""

import functools
import importlib.util
import re
import textwrap

import pytest
from harness import Lab
from sweeping import some

HEAD = """\
import asyncio
import contextlib
import enum
import random
import sys
import threading
import time
from collections import deque

import stepwise
from stepwise import step, tool, workflow
from world import doing, here, log, main


@step
def work(x):
    return doing(f"work({x})", x)


@step
async def awork(x):
    return doing(f"work({x})", x)


@tool(side_effect=True)
def act(x):
    return doing(f"act({x})", x)

"""


def needs(package):
    """Skip a test whose program imports a package that is missing; the test itself imports none."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"a program imports {package}, which is not installed")


def lab_of(program):
    """A folder in which that program can be run."""
    return Lab(f"{HEAD}\n{textwrap.dedent(program).strip()}\n\nmain(run)\n")


def line_of(program, text):
    """``script.py:N`` of the line that begins with a text."""
    lines = f"{HEAD}\n{textwrap.dedent(program).strip()}".splitlines()
    found = [n for n, line in enumerate(lines, 1) if line.strip().startswith(text)]
    assert len(found) == 1, (text, found)
    return f"script.py:{found[0]}"


@functools.cache
def undisturbed(program):
    """The result of a program to which nothing happens, and what it logs from each step on."""
    with lab_of(program) as lab:
        ended = lab.run()
        assert ended.code == 0, ended.text
        lines = lab.lines
        begun = [n for n, line in enumerate(lines) if re.fullmatch("@.* before", line)]
        return lab.result, {
            lines[n][1:]: [line for line in lines[n:] if line[0] != "@"] for n in begun
        }


def placed(program, text):
    """Return a text in which ``<<beginning>>`` stands for the place of that line."""
    return re.sub("<<(.*?)>>", lambda found: line_of(program, found[1]), text)


class Survived(dict):
    """What was said on each second start, by the call that the program had been killed in.

    A call that is not in the sample is killed when it is asked for.
    """

    def __init__(self, program, back=(), exactly=True):
        super().__init__()
        self._program, self._back, self._exactly = program, back, exactly
        self._result, self._rests = undisturbed(program)
        self.calls = [place.removesuffix(" before") for place in self._rests][1:]

    def __missing__(self, call):
        with lab_of(self._program) as lab:
            assert lab.run(die_at=f"{call} before").died, lab.said
            before = lab.log
            ended = lab.run()
            story = "\n".join([call, *lab.said, *lab.log])
            assert ended.code == 0, story
            assert lab.result == self._result, story
            assert {*lab.did.values()} == {1}, story
            if self._exactly and call not in self._back:
                assert "resumes at script.py:" in ended.text, story
                assert lab.log == before + self._rests[f"{call} before"], story
            self[call] = ended.text
        return ended.text


def survives(program, *, back=(), exactly=True, kills=2):
    """Kill the program in each step but the first, and run it again: nothing is done again.

    What it logs on its second start, in steps and in the statements between them, is what the
    undisturbed program logs from that step on: the statements before it are not executed again, as
    far as they stand in the workflow itself.  The result is the same.

    Args:
        back: the calls in which a kill sets it back further: what it logs then is not compared.
        exactly: compare what is logged at all.
        kills: in how many of the steps, in CI; none where the caller asks for some by name.

    Returns:
        what was said on each second start, by the call it had been killed in.
    """
    said = Survived(program, back, exactly)
    assert said.calls
    for call in some(said.calls, kills, program):
        assert said[call]
    return said
