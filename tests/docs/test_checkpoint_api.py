"""``docs/how-to/step-loops-and-graphs.md``: its programs, started a second time."""

import os

import pytest
from harness import python
from pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/step-loops-and-graphs.md"
PROGRAMS = [
    each.text for each in blocks(PAGE.read_text(encoding="utf-8")) if each.language == "python"
]
PRINTED = {
    "RecoverableAgent(": ("6 results - recovered from step 3", "searching"),
    "store.prune": ("[2, 3]", ""),
    "outline": ("'check', 'write', 'check'] tides 1 and tides 2!!", "write, time"),
    "waits at": ("sent ['draft', 'ask', 'send']", "waits at"),
    "planner": ("['guess', 'look up', 'answer'] 42", ""),
    "save_checkpoint": ("{'x': [1]} node b", ""),
}


@pytest.mark.parametrize("which", PRINTED)
def test_a_program_of_the_page(which, tmp_path):
    """Each program does what the page says, and what is done is not done again in another start."""
    [program] = [each for each in PROGRAMS if which in each and next(_keys(each)) == which]
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    printed, only_once = PRINTED[which]
    environment = {**os.environ, "STEPWISE_HOME": f"{tmp_path}/home"}
    for start in (1, 2):
        done = python("-W", "error", path, cwd=tmp_path, env=environment, code=0)
        assert printed in done.stdout
        if only_once:
            assert (only_once in done.stdout) is (start == 1)


def _keys(program):
    return (key for key in PRINTED if key in program)


def test_every_program_is_tested():
    """Each program of the page is started twice."""
    assert [next(_keys(each)) for each in PROGRAMS] == list(PRINTED)
