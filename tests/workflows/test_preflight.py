"""``stepwise preflight``: what it says of a run is what a start with the same code then does."""

import hashlib
import json
import os
import pathlib
import random
import re

import pytest
import restarted
from edited import edited, program, text_of
from harness import python
from sweeping import size

AGENT = """import os
from dataclasses import dataclass
import stepwise
from stepwise import step, tool, workflow

@dataclass
class Note:
    text: str

@step
def think(n):
    with open("log", "a") as file:
        print("think", n, file=file)
    if os.environ.get("DIE") == str(n):
        os._exit(7)
    return {"n": n}

@tool(side_effect=True)
def send(to):
    return Note(to)

@workflow
def agent(task):
    notes = [Note("a")]
    one = think(1)
    two = think(2)
    sent = send("x")
    three = think(3)
    return len(notes) + 1

if __name__ == "__main__":
    print(agent("poem"))
"""

MANY = """from stepwise import step, workflow

@step
def work(n):
    return n

@workflow
def failing(n):
    work(n)
    raise ValueError(n)
"""

CALLS = """
import contextlib, agent
for n in range(120):
    with contextlib.suppress(ValueError):
        agent.failing(n)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a program; this process is in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWISE_STORE", f"disk:{tmp_path}/store")
    monkeypatch.delenv("STEPWISE_QUIET")
    write(AGENT)
    return tmp_path


def write(text, name="agent.py"):
    pathlib.Path(name).write_text(text, "utf-8")


def die(at=3, text=AGENT):
    """Let the program die in a step."""
    write(text)
    python("agent.py", env={**os.environ, "DIE": str(at)}, code=7)


def preflight(*words):
    """Return what preflight says of the only run, and the exit code."""
    done = python("stepwise", "preflight", "agent.py", "--json", *words)
    assert done.stdout, done.stderr
    (row,) = json.loads(done.stdout)
    return row, done.returncode


def edit(*pairs, text=AGENT):
    """Write the program with other texts in it."""
    write(restarted.edited(text, *pairs))


def start():
    """Start the program again; return what it says."""
    return python("agent.py").stderr


STARTS = re.compile(
    r"(resumes at agent\.py:\d+|resumes after agent\.py:\d+|replays from the top|"
    r"begins again from the top)(?:, (?:after )?(\d+) steps?)?"
)


def what_happened():
    """Where a start of the program begins, and how many steps need not be made again."""
    found = STARTS.search(start())
    return (found[1], int(found[2] or 0)) if found else None


def what_is_said(row):
    """The same, according to preflight."""
    at = row["at"] or ""
    words = {
        "resumes": f"resumes {at if at.startswith('after') else f'at {at}'}",
        "replays": "replays from the top",
        "begins": "begins again from the top",
    }
    return words[row["verdict"]], row["steps"]


# -- random edits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(size(16, 400)))
def test_random_edits(folder, seed):
    """A verdict without a reservation is what happens; with ``--replay`` none has a reservation."""
    rng = random.Random(seed)
    head, body = program(rng)
    write(text_of(head, body))
    if python("agent.py", env={**os.environ, "DIE": str(rng.randrange(1, 5))}).returncode != 7:
        return  # it had fewer calls
    write(text_of(*edited(rng, head, body)))
    done = python("stepwise", "preflight", "agent.py", "--json")
    if "cannot be imported" in done.stderr:
        assert done.returncode == 2
        return
    (row,) = json.loads(done.stdout)
    replayed, _ = preflight("--replay")
    happened = what_happened()
    assert row["unknown"] or what_is_said(row) == happened
    assert replayed["unknown"] == []
    assert what_is_said(replayed) == happened


# -- where it resumes ------------------------------------------------------------------------------


def test_an_edit_below(folder):
    """A run resumes at the line that follows its position, wherever that line is now."""
    die()
    edit(("    three = think(3)", "    # a comment\n    three = think(30)"))
    row, code = preflight()
    assert (row["verdict"], row["at"], row["after"], row["steps"], code) == (
        "resumes",
        "agent.py:29",
        "agent.py:27",
        3,
        0,
    )
    assert what_is_said(row) == what_happened()


def test_an_edit_above(folder):
    """A run that would fall back to an older checkpoint loses its place: the exit code is 1."""
    die()
    edit(("    two = think(2)", "    two = think(2)\n    x = 0"))
    row, code = preflight()
    assert (row["verdict"], row["lost"], code) == ("resumes", True, 1)
    assert "is given up, since the code before agent.py" in row["why"]
    assert what_is_said(row) == what_happened()


def test_a_replay(folder):
    """A replay says which recorded calls have no function any more, and which results are old."""
    die()
    edit(
        ('    notes = [Note("a")]', '    notes = [Note("b")]'),
        ('return {"n": n}', 'return {"n": n + 1}'),
        ("send", "post"),
    )
    row, code = preflight()
    assert (row["verdict"], row["steps"], row["lost"], code) == ("replays", 3, True, 1)
    assert row["notes"] == [
        "no function for recorded calls of send x1",
        "results of older versions: think (body) x2",
    ]
    assert what_is_said(row) == what_happened()


CANDIDATES = """import os
import stepwise
from stepwise import workflow

def draft(tone):
    return tone

def rate(tone):
    if os.environ.get("DIE"):
        os._exit(7)
    return len(tone)

@workflow
def agent(task):
    first = stepwise.best_of([{"tone": "a"}, {"tone": "b"}], draft, score=lambda text: len(text))
    return stepwise.best_of([{"tone": "a"}, {"tone": "b"}], draft, score=rate)

if __name__ == "__main__":
    print(agent("poem"))
"""


def test_plain_candidates(folder):
    """Plain functions of ``best_of`` are known, and named once they are gone."""
    die(text=CANDIDATES)
    assert preflight()[0]["notes"] == []
    edit(("draft", "drafted"), text=CANDIDATES)
    assert preflight()[0]["notes"] == ["no function for recorded calls of draft x4"]


@pytest.mark.parametrize(
    ("policy", "verdict", "code"),
    [("keep", "resumes", 0), ("rerun", "replays", 1), ("ask", "refuses", 2)],
)
def test_results_of_older_versions(folder, policy, verdict, code):
    """What a step's ``on_changed`` makes of its recorded results is part of the verdict."""
    text = AGENT.replace("@step", f'@step(on_changed="{policy}")')
    die(text=text)
    edit(('return {"n": n}', 'return {"n": n + 1}'), text=text)
    row, exit_code = preflight()
    assert (row["verdict"], exit_code) == (verdict, code)
    assert "(body)" in f"{row['notes']} {row['why']}"
    if verdict == "refuses":
        assert "CodeChangedError" in start()
    else:
        assert what_is_said(row) == what_happened()


def test_a_pruned_journal(folder):
    """A run that would replay without its whole journal cannot go on: the exit code is 2."""
    pruning = AGENT.replace("@workflow", "@workflow(prune_journal=True, keep=1)").replace(
        "    two = think(2)", "    for n in range(300):\n        two = think(-n)"
    )
    die(text=pruning)
    edit(('    notes = [Note("a")]', '    notes = [Note("b")]'), text=pruning)
    row, code = preflight()
    assert (row["verdict"], code) == ("refuses", 2)
    assert "its journal was pruned" in row["why"]
    assert "CodeChangedError" in start()


def test_another_parameter(folder):
    """A run whose recorded call does not fit the new parameters cannot go on."""
    die()
    for new, why in (
        ("agent(question)", "has no parameter 'task' any more"),
        ("agent(task, size)", "missing a required argument: 'size'"),
    ):
        edit(("agent(task)", new))
        row, code = preflight()
        assert (row["verdict"], code) == ("refuses", 2)
        assert why in row["why"]
    edit(("agent(task)", "agent(task, size=1)"))
    row, code = preflight()
    assert (row["verdict"], row["steps"], code) == ("replays", 3, 1)
    assert what_is_said(row) == what_happened()


def test_a_workflow_that_is_gone(folder):
    """A renamed workflow, and a file that is gone, are named with what a start then does."""
    die()
    edit(("def agent", "def helper"), ("agent(", "helper("))
    row, code = preflight()
    assert (row["verdict"], code) == ("refuses", 2)
    assert "'agent' is no longer in" in row["why"]
    assert "is refused, since this run made send x1" in row["why"]
    assert "RunConflictError" in start()
    os.rename("agent.py", "other.py")
    done = python("stepwise", "preflight", "other", "--json")
    (row,) = json.loads(done.stdout)
    assert done.returncode == 2
    assert row["why"].startswith(f"{folder}/agent.py is gone")


def test_runs_of_other_programs(folder):
    """Runs of a program that was not named are listed, and do not count."""
    die()
    write(AGENT, "second.py")
    done = python("stepwise", "preflight", "second", "--json")
    (row,) = json.loads(done.stdout)
    assert (row["verdict"], done.returncode) == ("elsewhere", 0)


# -- values ----------------------------------------------------------------------------------------


def test_a_class_that_was_renamed(folder):
    """Variables whose class is gone rule a checkpoint out, and the verdict says which class."""
    text = AGENT.replace("    one = think(1)\n", '    one = think(1)\n    last = Note("z")\n')
    text = text.replace('    notes = [Note("a")]', "    notes = [0]")
    text = text.replace("return Note(to)", "return to")
    die(text=text)
    edit(("class Note:", "class Remark:"), text=text)
    row, code = preflight()
    assert (row["verdict"], row["lost"], code) == ("replays", True, 1)
    assert "agent has no Note any more" in row["why"]
    assert what_is_said(row) == what_happened()


def test_an_instance_of_the_module(folder):
    """A variable that a global's instance is in loads if the class has no code of its own."""
    text = AGENT.replace("@workflow", 'DESKS = [Note("d")]\n\n@workflow', 1)
    text = text.replace("    one = think(1)\n", "    desk, one = DESKS[0], think(1)\n")
    text = text.replace("return Note(to)", "return to").replace('[Note("a")]', "[0]")
    die(text=text)
    row, _ = preflight()
    assert (row["verdict"], row["unknown"]) == ("resumes", [])
    own = "    text: str\n    def __getstate__(self):\n        return {'text': self.text}\n"
    edit(("    text: str\n", own), text=text)
    row, _ = preflight()
    assert (row["verdict"], row["unknown"]) == ("resumes", ["agent.Note.__getstate__"])
    assert what_is_said(row) == what_happened()


def test_a_class_with_code_of_its_own(folder):
    """Where a class's own code loads a value, the verdict has a reservation; a replay has none."""
    own = "    def __setstate__(self, state):\n        self.text = state['text']\n"
    text = AGENT.replace("    text: str\n", f"    text: str\n{own}")
    text = text.replace("return Note(to)", "return to")
    die(text=text)
    row, _ = preflight()
    assert row["unknown"] == ["agent.Note.__setstate__"]
    edit(("state['text']", "state['words']"), text=text)
    row, _ = preflight()
    assert (row["verdict"], row["unknown"]) == ("resumes", ["agent.Note.__setstate__"])
    row, code = preflight("--replay")
    assert (row["unknown"], row["lost"], code) == ([], True, 1)
    assert what_is_said(row) == what_happened()


GIVEN = """
SIZE = 3

@dataclass
class Page:
    text: str
    size: int = 1

class Book(Page):
    def __init__(self, text):
        self.text = text
        self.size = SIZE
    def said(self):
        return self.text
"""


@pytest.mark.parametrize(
    ("old", "new", "means_another"),
    [
        ("size: int = 1", "size: int = 2", True),
        ("    size: int = 1\n", "", True),
        ("SIZE = 3", "SIZE = 4", True),
        ("self.text = text", "self.text = text.title()", True),
        ("self.text = text", "self.text, self.more = text, []", False),
        ("self.size = SIZE", "self.size = 1 + SIZE - 1", False),
    ],
)
def test_an_argument_of_a_changed_class(folder, old, new, means_another):
    """A call with an instance may mean another run if what makes the instance was edited."""
    text = AGENT.replace("\n@step", f"{GIVEN}\n@step", 1)
    text = text.replace('agent("poem")', 'agent([Page("poem"), Book("verse")])')
    die(text=text)
    row, _ = preflight()
    assert (row["verdict"], row["unknown"]) == ("resumes", [])
    edit(("return self.text", "return self.text * 2"), ("SIZE = 3", "SIZE = 3  # cm"), text=text)
    row, _ = preflight()
    assert (row["verdict"], row["unknown"]) == ("resumes", [])
    edit((old, new), text=text)
    row, _ = preflight()
    assert row["unknown"]
    assert {each.partition(", which makes ")[0] for each in row["unknown"]} == {
        "the program's own call"
    }
    assert ("unfinished beside it" in start()) == means_another


def test_a_side_effect_whose_result_is_lost(folder):
    """A side effect whose recorded result no longer loads stops the run, as a doubt."""
    die()
    edit(
        ("class Note:", "class Remark:"),
        ('notes = [Note("a")]', "notes = [0]"),
        ("return Note(to)", "return None"),
    )
    row, code = preflight()
    assert (row["verdict"], code) == ("refuses", 2)
    assert "the result of send(to='x'), a side effect, cannot be loaded" in row["why"]
    assert "StepInDoubtError" in start()


def test_a_call_that_is_made_no_more(folder):
    """Whether new code still meets a result that no longer loads is not known."""
    die()
    edit(
        ("class Note:", "class Remark:"),
        ('notes = [Note("a")]', "notes = [0]"),
        ("return Note(to)", "return None"),
        ('    sent = send("x")\n', ""),
    )
    row, code = preflight()
    assert (row["verdict"], code) == ("refuses", 2)
    assert row["unknown"] == ["its new code, which may not make that call any more"]
    assert what_happened() == ("replays from the top", 3)


def test_completed_runs(folder):
    """Of completed runs it is said whether their result is still there, and what a replay makes."""
    edit(("len(notes) + 1", "notes[0]"))
    python("agent.py")
    row, code = preflight("--completed", "5")
    assert (row["verdict"], code) == ("recalls", 0)
    row, code = preflight("--completed", "5", "--replay")
    assert (row["verdict"], row["unknown"], row["notes"]) == (
        "recalls",
        [],
        ["replayed as recorded"],
    )
    edit(("len(notes) + 1", "notes[0]"), ("think(2)", "think(22)"))
    row, code = preflight("--completed", "5", "--replay")
    assert (row["verdict"], code) == ("recalls", 0)
    assert row["notes"][0].startswith("replayed: ")
    assert "recorded 2, now 22" in row["notes"][0]
    edit(("class Note:", "class Remark:"), ("Note(", "Remark("))
    row, code = preflight("--completed", "5")
    assert (row["verdict"], code) == ("refuses", 2)
    assert "agent has no Note any more" in row["why"]
    assert "UnreadableValueError" in start()


# -- waits -----------------------------------------------------------------------------------------


WAITS = """import stepwise
from stepwise import step, tool, workflow

@step
def make(task):
    return task

@tool(side_effect=True, approve=True)
def pay(amount, to):
    return amount

@workflow
def agent(task):
    make(task)
    return stepwise.wait_for("go")

@workflow
def payer(task):
    make(task)
    return pay(3, to=task)

if __name__ == "__main__":
    agent("poem")
"""


def test_a_signal(folder, monkeypatch):
    """A run that waits for a signal which the code no longer names is told."""
    monkeypatch.setenv("STEPWISE_SUSPEND_AFTER", "0")
    write(WAITS)
    python("agent.py")
    row, code = preflight()
    assert (row["status"], row["verdict"], row["notes"], code) == ("suspended", "resumes", [], 0)
    edit(('wait_for("go")', 'wait_for("went")'), text=WAITS)
    row, _ = preflight()
    assert row["notes"] == ["waits for the signal 'go', which its function no longer names"]


def test_an_approval(folder, monkeypatch):
    """A run that waits for a yes is told if the question is asked anew, or its tool is gone."""
    monkeypatch.setenv("STEPWISE_SUSPEND_AFTER", "0")
    write(WAITS)
    python("-c", "import agent; agent.payer('bob')")
    assert preflight()[0]["notes"] == []
    for new, note in (
        ("pay(amount, to, note='')", "asks anew about pay: its parameters differ (note)"),
        ("settle(amount, to)", "waits for a yes to pay, which is gone"),
    ):
        edit(("def pay(amount, to)", f"def {new}"), text=WAITS)
        assert preflight()[0]["notes"] == [note]


# -- nothing is executed ---------------------------------------------------------------------------


def contents(folder):
    """Every file below a folder, with its bytes and time."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        if not path.name.endswith("-shm")  # the readers of SQLite's log, which holds no data
    }


@pytest.mark.parametrize("words", [(), ("--replay",), ("--completed", "3")])
def test_it_changes_nothing(folder, words):
    """The store and the folder stay as they were, byte by byte, and no body is executed."""
    die()
    edit(("    one = think(1)", "    x = 0\n    one = think(1)"))
    home = pathlib.Path(os.environ["STEPWISE_HOME"])
    before = contents(folder), contents(home)
    preflight(*words)
    assert contents(folder) == before[0]
    assert contents(home) == before[1]


def test_a_run_that_emits(folder):
    """The streams of a run decide about its checkpoints as they do in a start; none is written."""
    text = AGENT.replace("    sent = send", '    stepwise.emit("half")\n    sent = send')
    die(text=text)
    edit(("    three = think(3)", "    x = 0\n    three = think(3)"), text=text)
    before = contents(folder)
    for words in ((), ("--replay",)):
        row, code = preflight(*words)
        assert (row["verdict"], row["unknown"], code) == ("resumes", [], 0)
    assert contents(folder) == before
    assert what_is_said(row) == what_happened()


def test_a_script_without_a_guard(folder):
    """A module that calls a workflow while it is imported is refused, and begins nothing."""
    write(AGENT.replace('if __name__ == "__main__":\n    ', ""))
    done = python("stepwise", "preflight", "agent", code=2)
    assert "put the call under  if __name__ == '__main__':" in done.stderr
    assert not pathlib.Path("store").exists()
    assert not pathlib.Path("log").exists()


def test_a_module_that_cannot_be_imported(folder):
    """A module with an error, and a missing one, are named: the exit code is 2."""
    write("1 / 0", "broken.py")
    for name, why in (("broken", "ZeroDivisionError"), ("missing", "no module 'missing'")):
        done = python("stepwise", "preflight", name, code=2)
        assert why in done.stderr


def test_a_replay_that_ends_its_process(folder):
    """Code that ends the process of a replay is told, and the verdict stays."""
    die()
    edit(("    three = think(3)", "    os._exit(3)\n    three = think(3)"))
    row, code = preflight("--replay")
    assert (row["verdict"], code) == ("resumes", 0)
    assert row["notes"][-1] == "not replayed: its process ended with 3"


# -- many runs -------------------------------------------------------------------------------------


def test_many_runs(folder):
    """Runs with the same verdict are one line; ``--all`` has a line for each, up to ``--most``."""
    write(MANY)
    python("-c", CALLS)
    done = python("stepwise", "preflight", "agent")
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("120 runs, as failing-")
    assert "after 1 step" in lines[1] or "1 step answered" in lines[1]
    assert len(python("stepwise", "preflight", "agent", "--all").stdout.splitlines()) == 121
    done = python("stepwise", "preflight", "agent", "--json", "--most", "50")
    assert len(json.loads(done.stdout)) == 50
    assert "only 50 unfinished runs examined" in done.stderr


NAMESAKES = """
import os
from stepwise import step, workflow

@step
def think(text):
    if os.environ.get("DIE"):
        os._exit(7)
    return text

def bull():
    @workflow
    def ask(text):
        return think(text)
    return ask

def bear():
    @workflow
    def ask(text):
        return think(text * 2)
    return ask

ask = globals()[os.environ["WHO"]]()
if __name__ == "__main__":
    print(ask("x"))
"""


def test_a_run_of_a_namesake(folder, monkeypatch):
    """A run of another workflow that has the name in the same file is refused, as at a start."""
    monkeypatch.setenv("WHO", "bull")
    die(text=NAMESAKES)
    assert preflight()[0]["verdict"] != "refuses"
    monkeypatch.setenv("WHO", "bear")
    row, code = preflight()
    assert (row["verdict"], code) == ("refuses", 2)
    assert "RunConflictError" in start()
    edit(("think(text)\n    return", "think(text + text)\n    return"), text=NAMESAKES)
    row, _ = preflight()
    assert (row["verdict"], row["unknown"] != []) == ("refuses", True)
    assert "RunConflictError" in start()
