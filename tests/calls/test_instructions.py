"""What a step may take of the processor: counted, so that no busy machine decides."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import instructions

# Thousands of instructions in user mode, by the version of Python: some 2 % above what was counted.
# `python benchmarks/instructions.py --quick` counts them.  A change that takes more has to say what
# for; one that takes less brings the ceiling down with it.
CEILINGS = {
    (3, 11): {
        # There is one way for a call, for a checkpoint and for a write.  A tenth are headers as
        # JSON; another tenth are four HMACs, which take less with instructions for SHA.  Each write
        # is timed, for metrics: 5 thousand.
        "memory: a step": 750,
        "disk: a step": 925,
        "disk: a step, a checkpoint every 1,000": 619,
        "disk: a side effect": 1294,  # its mark is kept beside the key, too
        # All that a step may change is compared with what was there before, at any depth.
        "disk: a step whose argument is the growing messages": 2803,
        "disk: an asynchronous step": 1034,
        # Records know their attempts, and each call asks whether a debugger looks at its run.
        "disk: a node of a graph": 1668,
        "disk: a run of three steps": 8925,  # 8,420 to 8,875: its beginning and end take six steps
    },
}


# Millions of instructions from the start of a killed program to its first new step, and in the same
# program with plain SQLite: see `instructions.resumes`.
# Calls know what they are given, attempts of steps and the bodies of functions: 9 million more.
START_CEILINGS = {(3, 11): (613, 1.46)}  # the records behind the head are read: 3 of a hundred


def test_a_step_takes_no_more_instructions_than_its_ceiling():
    """Each kind of step stays below its ceiling: what it costs is never raised unnoticed."""
    if instructions.why_not():
        pytest.skip(instructions.why_not())
    if sys.version_info[:2] not in CEILINGS:
        pytest.skip(f"instructions were not counted with Python {sys.version.split()[0]} yet")
    ceilings = CEILINGS[sys.version_info[:2]]
    counted = instructions.instructions(ceilings, instructions.QUICK)
    assert {kind: round(each) for kind, each in counted.items() if each > ceilings[kind]} == {}


def test_a_start_takes_no_more_instructions_than_its_ceiling():
    """A resume stays below its ceiling, alone and over the same program with plain SQLite."""
    if instructions.why_not():
        pytest.skip(instructions.why_not())
    if sys.version_info[:2] not in START_CEILINGS:
        pytest.skip(f"instructions were not counted with Python {sys.version.split()[0]} yet")
    ours, plain = instructions.resumes()
    ceiling, ratio = START_CEILINGS[sys.version_info[:2]]
    assert (ours <= ceiling, ours / plain <= ratio) == (True, True), (ours, plain)
