"""Small programs that are killed in each of their steps, and resume where they were.

A program is the text of a script: it defines ``run()`` and calls the step ``work`` or the tool
``act``.  It is killed, once for each of these calls, as the call begins.
"""

import re
import textwrap

from harness import Lab

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


def lab_of(program):
    """A folder in which that program can be run."""
    return Lab(f"{HEAD}\n{textwrap.dedent(program).strip()}\n\nmain(run)\n")


def line_of(program, text):
    """``script.py:N`` of the line that begins with a text."""
    lines = f"{HEAD}\n{textwrap.dedent(program).strip()}".splitlines()
    found = [n for n, line in enumerate(lines, 1) if line.strip().startswith(text)]
    assert len(found) == 1, (text, found)
    return f"script.py:{found[0]}"


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


def survives(program, *, back=(), exactly=True):
    """Kill the program in each step but the first, and run it again: nothing is done again.

    What it logs on its second start, in steps and in the statements between them, is what the
    undisturbed program logs from that step on: the statements before it are not executed again, as
    far as they stand in the workflow itself.  The result is the same.

    Args:
        back: the calls in which a kill sets it back further: what it logs then is not compared.
        exactly: compare what is logged at all.

    Returns:
        what was said on each second start, by the call it had been killed in.
    """
    result, rests = undisturbed(program)
    assert len(rests) > 1
    said = {}
    for place, rest in list(rests.items())[1:]:
        call = place.removesuffix(" before")
        with lab_of(program) as lab:
            assert lab.run(die_at=place).died, lab.said
            before = lab.log
            ended = lab.run()
            story = "\n".join([place, *lab.said, *lab.log])
            assert ended.code == 0, story
            assert lab.result == result, story
            assert {*lab.did.values()} == {1}, story
            if exactly and call not in back:
                assert "resumes at script.py:" in ended.text, story
                assert lab.log == before + rest, story
            said[call] = ended.text
    return said
