"""What does not grow with a run; and ``docs/reliability.md`` names tests that exist."""

import pathlib
import re
import subprocess
import sys

import pytest

from stepwise import step, workflow
from stepwise._journal import seal as _seal
from stepwise.testing import SimulatedCrash, crash_at, fresh_store

HERE = pathlib.Path(__file__).parents[1]
PAGE = HERE.parent / "docs" / "reliability.md"


@step
def say(n):
    return f"{n} " + "word " * 400  # 2 KB


@workflow
def talk(turns):
    messages = []
    for n in range(turns):
        messages.append(say(n))
    return len(messages)


@workflow
def remember(turns):
    messages = []
    for n in range(turns):
        messages = [*messages[-9:], say(n)]
    return turns


def opened_while_resuming(folder, turns, monkeypatch):
    """How many sealed things are opened by a run that resumes after so many turns."""
    with fresh_store(folder), pytest.raises(SimulatedCrash), crash_at(say, "before", call=turns):
        remember(turns)
    opened, real = [], _seal.Seal.open

    def opening(seal, identity, data):
        opened.append(identity)
        return real(seal, identity, data)

    with fresh_store(folder), monkeypatch.context() as patch:
        patch.setattr(_seal.Seal, "open", opening)
        assert remember(turns) == turns
    return len(opened)


def test_resuming_reads_no_more_of_a_longer_run(tmp_path, monkeypatch):
    """After 200 steps no more records are read to go on than after 20, if as much is held."""
    few = opened_while_resuming(tmp_path / "few", 20, monkeypatch)
    assert few > 0
    assert opened_while_resuming(tmp_path / "many", 200, monkeypatch) == few


def test_the_disk_holds_no_copy_for_each_turn(tmp_path):
    """A conversation of 300 turns of 2 KB takes a few times its size, not 300 times."""
    with fresh_store(tmp_path / "store"):
        assert talk(300) == 300
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert size < 20 * 300 * len(say(0))


def test_the_sweeps_can_be_run():
    """``make sweeps`` finds its tests, and leaves the page alone if none of them ran."""
    before = PAGE.read_text(encoding="utf-8")
    command = [sys.executable, HERE / "sweeps.py", "--collect-only", "-q", HERE / "crash"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "test_power_cut.py" in done.stdout
    assert PAGE.read_text(encoding="utf-8") == before


def test_the_tests_that_are_named_exist():
    """Each hazard's test is there, by the name that the page gives."""
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", page)
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in next(HERE.rglob(file)).read_text(encoding="utf-8")
    ]
    assert missing == []
