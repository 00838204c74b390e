"""Builds the sdist, a wheel of that, installs it alone into a clean environment, and uses it there.

    python .ci/wheel.py PYTHON_WITH_BUILD

Checks what a user gets who types ``pip install stepwise-agents``: every module, at most 8
distributions, a package with its types, a command line, a program that is killed and goes on, the
pages.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

PROGRAM = """
import os
from stepwise import step, tool, workflow

@step
def think(number: int) -> int:
    return number + 1

@tool(side_effect=True)
def send(text: str) -> str:
    return text.upper()

@workflow
def agent(limit: int) -> list:
    done = []
    for number in range(limit):
        done.append(think(number))
        if number == 2 and "DIE" in os.environ:
            os._exit(9)
    done.append(send("done"))
    return done

print(agent(4))
"""
SEARCH = """
from stepwise.mcp._knowledge import search
print(search("approvals")[0].page)
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command and hand back what it printed."""
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def main(builder: str) -> None:
    """Build, install, use."""
    with tempfile.TemporaryDirectory() as folder:
        built = run(builder, "-m", "build", "--outdir", folder, ".")
        assert built.returncode == 0, built.stdout + built.stderr
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        missing = {str(each) for each in pathlib.Path("stepwise").rglob("*.py")}
        missing -= set(zipfile.ZipFile(wheel).namelist())
        assert not missing, f"not in the wheel: {sorted(missing)}"
        home = pathlib.Path(folder, "clean")
        venv.create(home, with_pip=True)
        python, command = str(home / "bin" / "python"), str(home / "bin" / "stepwise")
        done = run(python, "-m", "pip", "install", "--quiet", str(wheel))
        assert done.returncode == 0, done.stderr
        listed = json.loads(run(python, "-m", "pip", "list", "--format", "json").stdout)
        names = sorted(each["name"] for each in listed if each["name"] not in ("pip", "setuptools"))
        print(f"{wheel.name}: {len(names)} distributions: {', '.join(names)}")
        assert len(names) <= 8, names
        program = pathlib.Path(folder, "agent.py")
        program.write_text(PROGRAM)
        state = {"STEPWISE_HOME": str(pathlib.Path(folder, "state")), "PYTHONPATH": ""}
        killed = run(python, str(program), DIE="1", **state)
        assert killed.returncode == 9, killed.stderr
        again = run(python, str(program), **state)
        assert again.stdout.strip() == "[1, 2, 3, 4, 'DONE']", again.stdout + again.stderr
        assert "resumes at agent.py" in again.stderr, again.stderr
        shown = run(command, "runs", "--json", **state)
        assert json.loads(shown.stdout)[0]["status"] == "completed", shown.stdout + shown.stderr
        typed = pathlib.Path(
            run(python, "-c", "import stepwise; print(stepwise.__file__)", **state).stdout.strip()
        ).with_name("py.typed")
        assert typed.exists(), typed
        found = run(python, "-c", SEARCH, **state)
        assert found.stdout.split() == ["how-to/approvals.md"], found.stdout + found.stderr
        skill = run(command, "skill", str(pathlib.Path(folder, "skills")), **state)
        assert skill.returncode == 0, skill.stderr
        print("killed, run again, goes on: as promised; with its pages, and the skill")


if __name__ == "__main__":
    main(sys.argv[1])
