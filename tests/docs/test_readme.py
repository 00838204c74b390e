"""What the README shows is what happens: its blocks are taken from it and executed as they are.

The programs wait where they would sleep, until the test lets them go on, so that they are killed
exactly where the README shows it.
"""

import inspect
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest
from harness import python_path

import stepwise
from stepwise import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
PYTHON = [text for language, text in BLOCKS if language == "python"]
CONSOLE = [text for language, text in BLOCKS if language == "console"]

# A pause ends when the test says so.
WAIT = "import sys, time\ntime.sleep = lambda seconds: sys.stdin.readline()\n"

SHOP = """
import os, sys
from stepwise import step, workflow

class CardDeclined(Exception):
    pass

class Charge:
    id = "ch_1"

class payments:
    @staticmethod
    def charge(customer, cents, key):
        with open("charges", "a") as file:
            file.write(key + "\\n")
        os._exit(9)  # it reached the bank, and nobody here knows

    @staticmethod
    def find(key):
        charges = open("charges").read().split() if os.path.exists("charges") else []
        return Charge if key in charges else None
"""
CALLED = """
@step
def price(item):
    return 500

@workflow
def order(items):
    cents = 0
    for item in items:
        cents = price(item)
    return charge("ann", cents)

print(order(["book", "pen", "lamp"]))
"""


def execute(folder, name, source, *, lines=0, answers=0, kill_at=None):
    """Run a program; what it prints, up to the line at which it is killed."""
    (folder / name).write_text(source, encoding="utf-8")
    (folder / "wait").mkdir(exist_ok=True)
    (folder / "wait" / "sitecustomize.py").write_text(WAIT)
    with subprocess.Popen(
        [sys.executable, "-u", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(folder / "wait")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        printed = []
        process.stdin.write("\n" * answers)
        process.stdin.flush()
        for line in process.stdout:
            printed.append(line.rstrip("\n"))
            if line.rstrip("\n") == kill_at:
                process.send_signal(signal.SIGKILL)
        return printed


def general(line):
    """A line without what differs between machines: the digest in a run id, the time."""
    line = re.sub(r"agent-[0-9a-f]{12}", "agent-DIGEST", line)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line).rstrip()


@pytest.fixture(autouse=True)
def loud(monkeypatch):
    monkeypatch.delenv("STEPWISE_QUIET")


def test_first_program(tmp_path):
    """The first program, killed where the README shows it and run again, prints what it shows."""
    first, second = re.split(r"^Killed .*\n", CONSOLE[0], flags=re.MULTILINE)
    command, *before = first.splitlines()
    assert command == "$ python agent.py"
    assert execute(tmp_path, "agent.py", PYTHON[0], answers=1, kill_at=before[-1]) == before
    command, *after = second.splitlines()
    assert command == "$ python agent.py"
    printed = execute(tmp_path, "agent.py", PYTHON[0], answers=2)
    assert list(map(general, printed)) == list(map(general, after))


def test_the_tool_in_doubt(tmp_path):
    """Killed inside ``charge``, the next process asks ``did_it_land``, and charges once."""
    source = SHOP + PYTHON[1] + CALLED
    execute(tmp_path, "shop.py", source)
    assert len((tmp_path / "charges").read_text().split()) == 1
    assert execute(tmp_path, "shop.py", source)[-1] == "ch_1"
    assert len((tmp_path / "charges").read_text().split()) == 1


def test_in_doubt(tmp_path):
    """Without ``did_it_land`` it stops, and ``stepwise in-doubt`` shows what the README shows."""
    source = (SHOP + PYTHON[1] + CALLED).replace("in_doubt=did_it_land, ", "")
    source = source.replace("def order", "def agent").replace("order(", "agent(")
    execute(tmp_path, "shop.py", source)
    assert "StepInDoubtError" in "\n".join(execute(tmp_path, "shop.py", source))
    command, *shown = next(text for text in CONSOLE if "in-doubt" in text).splitlines()
    executable = os.path.join(os.path.dirname(sys.executable), command.split()[1])
    done = subprocess.run(
        [executable, *command.split()[2:]], capture_output=True, text=True, check=True
    )
    spaced = re.compile("  +")
    assert [spaced.split(general(line)) for line in done.stdout.splitlines()] == [
        spaced.split(general(line)) for line in shown
    ]


def test_looking_at_runs(tmp_path, capsys):
    """The block that looks at crashed runs prints their steps and variables."""
    before = CONSOLE[0].splitlines()[1:3]
    execute(tmp_path, "agent.py", PYTHON[0], answers=1, kill_at=before[-1])
    exec(PYTHON[2], {})
    steps, variables = capsys.readouterr().out.splitlines()
    assert steps.endswith("[('research', 'completed')]")
    assert "'notes': ['what is known about tides']" in variables


def test_testing(tmp_path):
    """The tests that the README shows pass with pytest, for the agent that it shows."""
    program = PYTHON[0].replace("time.sleep(1)", "")
    (tmp_path / "my_agent.py").write_text(program[: program.index("\nprint(agent(")])
    (tmp_path / "test_agent.py").write_text(PYTHON[3])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_agent.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_every_python_block_is_tried():
    """No block of Python is left out above, and each is valid by itself."""
    assert len(PYTHON) == 4
    for text in PYTHON:
        compile(textwrap.dedent(text), "README.md", "exec")


def test_every_command_exists():
    """Each command of ``stepwise`` and each target of ``make`` that the README names is there."""
    named = set(re.findall(r"(?:`|^\$ |^)stepwise ([a-z-]+)", README, re.MULTILINE))
    assert {"runs", "show", "in-doubt", "resolve", "forget"} <= named
    assert named <= set(cli.main.commands)
    options = {
        option for each in cli.main.commands.values() for p in each.params for option in p.opts
    }
    assert set(re.findall(r"stepwise resolve.* (--[a-z-]+)", README)) <= options
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", README)) <= targets


def test_every_name_exists():
    """Each setting, option and name of the package that the README mentions is there."""
    sources = "".join(path.read_text() for path in (ROOT / "stepwise").rglob("*.py"))
    for setting in re.findall(r"\bSTEPWISE_[A-Z]+", README):
        assert f'"{setting}"' in sources, setting
    for name in re.findall(r"\bstepwise\.([a-z]\w+)\b(?!\.)", README):
        assert hasattr(stepwise, name) or find_spec(f"stepwise.{name}"), name
    for setting in re.findall(r"configure\((\w+)=", README):
        assert setting in inspect.signature(stepwise.configure).parameters
    for name in re.findall(r"from stepwise import (.*)", README):
        assert all(hasattr(stepwise, each.strip()) for each in name.split(","))
    for name in re.findall(r"`([A-Z]\w+Error)`", README):
        assert hasattr(stepwise, name), name


def test_every_link_leads_somewhere():
    """Each file that the README links to is in the repository."""
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_every_example_is_listed():
    """The README leads to each example and each notebook."""
    scripts = [path for path in (ROOT / "examples").glob("*.py") if path.name != "chat_server.py"]
    for path in [*scripts, *(ROOT / "notebooks").glob("*.ipynb")]:
        assert f"]({path.relative_to(ROOT)})" in README, path.name


def test_few_words_before_the_first_program():
    """A reader sees code on the first screen."""
    assert len(README.partition("```")[0].split()) < 80
