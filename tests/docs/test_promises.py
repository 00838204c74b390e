"""The README's table of what is promised, line by line, with real processes that are really killed.

They are forks of a host, or interpreters with ``STEPWISE_WHOLE=1``.  Every test names the line
that it proves; the last one compares with the README.
"""

import contextlib
import os
import pathlib
import re
import signal
import sqlite3

import pytest

import stepwise

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"

PROGRAM = """
import sys
from stepwise import step, tool, workflow

def ask(line):
    print(line, flush=True)
    return sys.stdin.readline().strip()

@step
def research(topic):
    answer = ask(f"researching {topic}")
    if answer == "fail":
        raise ValueError(topic)
    return topic.upper()

@tool(side_effect=True)
def send(text):
    with open("outbox", "a") as file:
        file.write(text + "\\n")
    ask("sending")

@workflow
def agent(topics):
    notes = []
    for topic in topics:
        notes.append(research(topic))
    send(" ".join(notes))
    return f"{len(notes)} notes sent"

print(agent(["tides", "winds", "currents"]))
"""

proven = set()


def promise(line):
    """This test proves a line of the README's table."""

    def decorate(test):
        proven.add(line)
        return test

    return decorate


class Process:
    """The program, running; it prints a line and waits for one."""

    def __init__(self, script):
        self.script, self.process = script, script.process

    def hear(self, *lines):
        """The next lines are these; all but the last are answered."""
        for number, line in enumerate(lines):
            if number:
                self.say()
            heard = self.script.hear()
            assert re.fullmatch(line, heard), heard + "\n" + self.process.stdout.read()

    def say(self, text=""):
        self.script.tell(text)

    def stop(self):
        self.process.kill()
        self.end()

    def end(self, said=""):
        """What it still prints, when nothing else is said to it; it may have ended already."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(said)
            self.process.stdin.close()
        text = self.process.stdout.read()
        self.process.wait()
        return text


class Agent:
    """The program in its folder, to be edited and started again."""

    def __init__(self, folder, fork):
        self.folder, self.fork, self.source = folder, fork, PROGRAM

    def start(self):
        (self.folder / "agent.py").write_text(self.source)
        return Process(self.fork(self.folder / "agent.py"))

    def at(self, place):
        """Start it until it has come so far."""
        process = self.start()
        lines = [f"researching {topic}" for topic in ("tides", "winds", "currents")] + ["sending"]
        process.hear(*lines[: 1 + next(n for n, line in enumerate(lines) if place in line)])
        return process

    def killed_in_the_second_step(self):
        self.at("winds").stop()

    def goes_on(self, process=None):
        """Another start goes on with the second step, and does everything else once."""
        process = process or self.start()
        process.hear(r"stepwise: agent-\w+ resumes at agent.py:\d+, after 1 step")
        process.hear("researching winds", "researching currents", "sending", "3 notes sent")
        assert process.end() == ""
        assert self.outbox() == ["TIDES WINDS CURRENTS"]

    def edit(self, old, new):
        assert self.source.count(old) == 1
        self.source = self.source.replace(old, new)

    def outbox(self):
        path = self.folder / "outbox"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def agent(tmp_path, monkeypatch, fork):
    monkeypatch.delenv("STEPWISE_QUIET")
    monkeypatch.chdir(tmp_path)
    return Agent(tmp_path, fork)


@promise("an exception leaves the workflow")
def test_exception(agent):
    """An exception propagates unchanged; the next call tries the failed step again."""
    process = agent.at("winds")
    process.say("fail")
    assert "ValueError: winds" in process.end()
    assert process.process.returncode == 1
    agent.goes_on()


@promise("Ctrl-C, a kernel interrupt")
def test_ctrl_c(agent):
    """After Ctrl-C the run can be resumed at once."""
    process = agent.at("winds")
    process.process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.end()
    agent.goes_on()


@promise("Ctrl-C, a kernel interrupt")
def test_ctrl_c_in_the_same_process(agent):
    """After Ctrl-C the same process can call the workflow again, and resumes."""
    call = 'print(agent(["tides", "winds", "currents"]))'
    agent.edit(call, f"try:\n    {call}\nexcept KeyboardInterrupt:\n    {call}\n")
    process = agent.at("winds")
    process.process.send_signal(signal.SIGINT)
    process.hear("stepwise: run .* was interrupted by Ctrl-C; run it again to resume")
    agent.goes_on(process)


@promise("`kill -9`, `os._exit`, a power cut")
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_kill(agent, how):
    """After SIGKILL, or after ``os._exit``, the next start resumes at once."""
    agent.edit("raise ValueError(topic)", '__import__("os")._exit(3)')
    process = agent.at("winds")
    if how == "kill":
        process.stop()
    else:
        process.say("fail")
        process.end()
    assert process.process.returncode == (-signal.SIGKILL if how == "kill" else 3)
    agent.goes_on()


@promise("`kill -9`, `os._exit`, a power cut")
def test_kill_in_the_first_step(agent):
    """Killed before anything was done, it begins again, and says so."""
    process = agent.start()
    process.hear("researching tides")
    process.stop()
    process = agent.start()
    process.hear("stepwise: agent-.* begins again from the top: it was stopped before its first .*")
    process.hear("researching tides", "researching winds", "researching currents", "sending")


@promise("killed *inside* a side effect")
def test_killed_inside_a_side_effect(agent):
    """The next start stops with ``StepInDoubtError``, and how to settle it; it sends once."""
    process = agent.at("sending")
    process.stop()
    text = agent.start().end()
    assert "StepInDoubtError" in text
    (run,) = stepwise.runs()
    command = re.search(rf"stepwise resolve {run.id} 4 --landed", text)
    assert command is not None, text
    run.resolve("send", landed=None)
    assert "3 notes sent" in agent.start().end()
    assert agent.outbox() == ["TIDES WINDS CURRENTS"]


@promise("two processes, one run")
def test_two_processes(agent):
    """The second process gets ``RunBusyError``, naming the first; that one is not disturbed."""
    process = agent.at("winds")
    text = agent.start().end()
    assert "RunBusyError" in text
    assert str(process.process.pid) in text
    process.say()
    process.hear("researching currents", "sending", "3 notes sent")


@promise("disk full, read-only")
def test_disk_full(agent):
    """No space: ``StoreError`` with the path and the cause; with space again it goes on."""
    agent.killed_in_the_second_step()
    (database,) = pathlib.Path(os.environ["STEPWISE_HOME"]).glob("**/*.db")
    files = database.parent.iterdir()
    largest = max(path.stat().st_size for path in files)
    no_space = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {largest}))\n"
    )
    agent.edit("import sys\n", no_space)
    agent.edit("return topic.upper()", 'return topic.upper() + " " * 300_000')
    text = agent.start().end("\n")
    assert "StoreError" in text
    assert str(database.parent) in text
    agent.edit(' + " " * 300_000', "")
    agent.edit(no_space, "import sys\n")
    agent.goes_on()


@promise("a flipped bit, a deleted file")
@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("o/%/checkpoint/%4", "after 2 steps .the newest checkpoint does not verify.*3 notes sent"),
        ("r/%/%4", "1 of its records .* cannot be read.*researching currents.*3 notes sent"),
        ("r/%/%5", "cannot be read .*JournalLostError: .*announced a side effect"),
        ("r/%/%6", "cannot be read .*StepInDoubtError: send was started and never finished"),
        ("r/%/%3", "after 3 steps.*3 notes sent"),  # behind the checkpoint, and not needed
        ("the head", "after 3 steps.*3 notes sent"),  # only what listings read; made anew
    ],
)
def test_flipped_bit(agent, key, told):
    """A flipped bit in whatever is stored: never a wrong value, never a second e-mail."""
    process = agent.at("sending")
    process.stop()
    (run,) = stepwise.runs()
    run.resolve("send", landed=None)
    run.store.close()
    (path,) = pathlib.Path(os.environ["STEPWISE_HOME"]).glob("**/*.db")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        table, like = ("Cache", "key like ?") if "/" in key else ("Heads", "? = 'the head'")
        query = f"select value from {table} where {like}"
        (value,) = database.execute(query, [key]).fetchone()
        middle = len(value) // 2
        flipped = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
        database.execute(f"update {table} set value = ? where {like}", [flipped, key])
    text = agent.start().end()
    assert re.search(told, text, re.DOTALL), text
    assert agent.outbox() == ["TIDES WINDS CURRENTS"]


@promise("a flipped bit, a deleted file")
def test_deleted_file(agent):
    """A deleted database is noticed, since records of side effects may be lost with it."""
    process = agent.at("sending")
    process.stop()
    for path in pathlib.Path(os.environ["STEPWISE_HOME"]).glob("**/*.db*"):
        path.unlink()
    text = agent.start().end()
    assert "JournalLostError" in text
    assert agent.outbox() == ["TIDES WINDS CURRENTS"]


@promise("it waits for a day, or for somebody")
def test_waits(agent):
    """It ends with exit code 75, and the next start continues at the wait, with its variables."""
    agent.edit("import sys\n", "import sys\nimport stepwise\nstepwise.configure(suspend_after=0)\n")
    agent.edit("    send(", "    notes.append(stepwise.wait_for('note'))\n    send(")
    process = agent.at("currents")
    assert "is suspended: it waits for the signal 'note'" in process.end()
    assert process.process.returncode == 75
    stepwise.runs()[0].send("note", "SENT")
    process = agent.start()
    process.hear("stepwise: agent-.* resumes at agent.py:.*, after 3 steps", "sending")
    process.hear("4 notes sent")
    assert (process.end(), process.process.returncode) == ("", 0)
    assert agent.outbox() == ["TIDES WINDS CURRENTS SENT"]


@promise("a tool asks for approval")
def test_approval(agent):
    """A yes holds for what the person was shown; for other arguments, the next start asks again."""
    agent.edit("import sys\n", "import sys\nimport stepwise\nstepwise.configure(suspend_after=0)\n")
    agent.edit("side_effect=True", "side_effect=True, approve=True, ignore=('text',)")
    process = agent.at("currents")
    assert process.end().endswith("stepwise resume " + stepwise.runs()[0].id + "\n")
    (run,) = stepwise.runs()
    run.approve(4, run.waits[0].ticket)
    agent.edit('" ".join', '"; ".join')
    assert "asks again, since the argument 'text' was different" in agent.start().end()
    (question,) = run.questions
    assert question.arguments == {"text": "TIDES; WINDS; CURRENTS"}
    assert agent.outbox() == []
    question.approve()
    assert "3 notes sent" in agent.start().end()
    assert "3 notes sent" in agent.start().end()
    assert agent.outbox() == ["TIDES; WINDS; CURRENTS"]


@promise("the run is cancelled")
def test_cancelled(agent):
    """Its clean-up runs, and what it did is undone; a plain call does not resume it."""
    agent.edit("@workflow\n", "@workflow(compensate_on_failure=True)\n")
    agent.edit("side_effect=True", "side_effect=True, compensate=lambda call: print('undone')")
    agent.edit(
        '    return f"{len(notes)} notes sent"\n',
        '    try:\n        return research("tea")\n    finally:\n        research("clean-up")\n',
    )
    process = agent.at("sending")
    process.say()
    process.hear("researching tea")
    process.stop()
    stepwise.runs()[0].cancel("enough")
    text = agent.start().end()
    assert re.search("researching clean-up\nundone\n(.*\n)*.* was cancelled by .*enough", text)
    assert "researching tea" not in text
    assert "was cancelled by" in agent.start().end()
    assert stepwise.runs(status="cancelled")


@promise("SIGTERM")
def test_sigterm(agent):
    """The step in flight ends, and is recorded; no other one begins; the next start resumes."""
    process = agent.at("winds")
    process.process.send_signal(signal.SIGTERM)
    process.hear("stepwise: SIGTERM: no step begins any more; 1 step in flight may end.*")
    assert process.end() == ""
    assert process.process.returncode == -signal.SIGTERM
    process = agent.start()
    process.hear("stepwise: agent-.* resumes at agent.py:.*, after 2 steps", "researching currents")
    assert "3 notes sent" in process.end()


@promise("the code was edited below where it stopped")
def test_edited_below(agent):
    """It resumes where it stopped, with the new code."""
    agent.killed_in_the_second_step()
    agent.edit('" ".join(notes)', '"; ".join(notes)')
    process = agent.start()
    process.hear(r"stepwise: .* resumes at agent.py:\d+, after 1 step \(the code below.*\)")
    process.hear("researching winds", "researching currents", "sending", "3 notes sent")
    assert agent.outbox() == ["TIDES; WINDS; CURRENTS"]


@promise("the code was edited above")
def test_edited_above(agent):
    """It replays; what was recorded is answered by the journal."""
    agent.killed_in_the_second_step()
    agent.edit("    notes = []\n", '    notes = ["first:"]\n')
    process = agent.start()
    process.hear("stepwise: .* replays from the top, 1 step answered by the journal .*changed.*")
    process.hear("researching winds", "researching currents", "sending", "4 notes sent")
    assert agent.outbox() == ["first: TIDES WINDS CURRENTS"]


def test_every_line_is_proven():
    """Each line of the table in the README has a test here, and each test a line."""
    table = README.read_text(encoding="utf-8").partition("## What is promised")[2]
    table = table.partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert set(rows[1:]) == proven
