"""The examples of the classic objects, run as a person runs them: killed, and started again.

The outbox is a FIFO while an example is being killed: opening one blocks until somebody reads it,
so the example cannot get past its side effect and end too early.
"""

import os
import pathlib
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

import stepwise

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
TEXT = """# A text

It has a a word that stands twice, and a [link](missing.md) to nothing. It has a sentence. Another.

And a third paragraph, with some more words than the others have. One, two. Three, four.
"""
SOURCES = {f"{name}.py": f"def {name}():\n    return {n}\n" for n, name in enumerate("abcdef")}
COMMANDS = {
    "graph": ["review_graph.py", "text.md", "--longest", "4", "--answer", "yes"],
    "agent": ["recoverable_agent.py", "sources"],
}


class Ran(NamedTuple):
    """What came of one start."""

    code: int
    steps: list[str]
    result: list[str]
    errors: str


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with input, in which the examples run and keep their runs."""
    monkeypatch.setenv("STEPWISE_HOME", f"{tmp_path}/home")
    (tmp_path / "text.md").write_text(TEXT, "utf-8")
    (tmp_path / "sources").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / "sources" / name).write_text(text, "utf-8")
    return tmp_path


def run(command, folder, *, lines=None, text=None, **more):
    """Start an example; kill it once it has printed so many lines of its steps."""
    steps, result = [], []
    environment = {**os.environ, "STEPWISE_QUIET": "", "PYTHONUNBUFFERED": "1", **more}
    with (
        (folder / "errors").open("w+") as errors,
        subprocess.Popen(
            [sys.executable, EXAMPLES / command[0], *command[1:]],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        ) as process,
    ):
        if text is not None:
            process.stdin.write(text)
        process.stdin.close()
        for line in process.stdout:
            (steps if line.startswith("[") else result).append(line.rstrip())
            if lines is not None and (len(steps) >= lines or line.startswith("[append]")):
                process.kill()
        code = process.wait()
        errors.seek(0)
        return Ran(code, steps, result, errors.read())


@pytest.mark.parametrize("example", COMMANDS)
@pytest.mark.parametrize("lines", [1, 3, 5, 99])
def test_a_killed_example_goes_on(example, lines, folder):
    """Killed anywhere and started again, an example ends as if undisturbed, and repeats nothing."""
    command = COMMANDS[example]
    other = folder / "undisturbed.txt"
    away = f"{folder}/away"
    undisturbed = run([*command, "--outbox", other.name], folder, STEPWISE_HOME=away)
    assert undisturbed.code == 0, undisturbed.errors
    os.mkfifo(folder / "outbox.txt")
    killed = run(command, folder, lines=lines)
    assert killed.code == -signal.SIGKILL, killed.errors
    (folder / "outbox.txt").unlink()

    resumed = run(command, folder)
    if "StepInDoubtError" in resumed.errors:
        [stopped] = [each for each in stepwise.runs() if each.status != "completed"]
        stopped.resolve("append", did_not_happen=True)
        resumed = run(command, folder)
    assert resumed.code == 0, resumed.errors
    assert [
        line for line in resumed.result if not line.startswith(("(resumed", "-", "Review"))
    ] == [line for line in undisturbed.result if not line.startswith(("(resumed", "-", "Review"))]
    assert (folder / "outbox.txt").read_text("utf-8") == other.read_text("utf-8")
    seen = [line.partition("] /")[0] for line in (*killed.steps, *resumed.steps)]
    expected = [line.partition("] /")[0] for line in undisturbed.steps]
    assert set(seen) == set(expected)
    assert len(seen) <= len(expected) + 1  # the one in flight


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_review_waits_for_its_answer(answer, folder):
    """Left at its question, the review asks again when it is started again, and only that."""
    command = COMMANDS["graph"][:-2]
    left = run(command, folder)
    assert left.code == 1
    assert "EOFError" in left.errors
    assert left.steps[-1] == "[judge] 3 lines: good"
    done = run(command, folder, text=f"{answer}\n")
    assert done.code == 0, done.errors
    assert done.steps == []
    assert ("[append]" in "".join(done.result)) is (answer == "yes")  # behind the question
    assert done.result[-1] == f"Outcome: {'published' if answer == 'yes' else 'not published'}"
    assert "[draft] 2" in "".join(left.steps)


def test_an_agent_recovers_by_itself(folder):
    """An agent that fails in a step resumes at its checkpoint; what it read since is read again."""
    done = run([*COMMANDS["agent"], "--fail-at", "5"], folder)
    assert done.code == 0, done.errors
    assert done.result == [
        "6 files, 12 lines, 6 functions without docstring",
        "(resumed after step 3)",
    ]
    assert len(set(done.steps)) == 8
    since = ["[read_file] d.py", "[read_file] e.py"]  # the attempt that failed
    assert done.steps[4:8] == since * 2
    assert len(done.steps) == 10
