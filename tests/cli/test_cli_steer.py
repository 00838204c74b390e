"""The commands that steer and compare runs, on programs that were really killed."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from command import COMMAND, process, run, waiting
from harness import python, until

import stepwise
from stepwise import Run, step, tool, workflow
from stepwise._journal.lease import Lease
from stepwise._journal.seal import Seal
from stepwise._runtime import settings
from stepwise.cli import steer

SCRIPT = """
import os, signal, sys
from stepwise import step, tool, workflow

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores

@step
def think(number):
    print("think", number, flush=True)
    if os.environ.get("STOP_AT") == str(number):
        print("waiting", flush=True)
        sys.stdin.readline()
    if os.environ.get("DIE_AT") == str(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 10

@tool(side_effect=True)
def send(text):
    print("send", text, flush=True)
    return f"sent {text}"

@workflow(retention="all")
def agent(topic):
    mood = "calm"
    for number in range(1, 4):
        think(number)
        send(f"{topic} {mood} {number}")
    return mood

if __name__ == "__main__":
    print("result", agent(sys.argv[1] if len(sys.argv) > 1 else "tides"))
"""


def is_new(before):
    """The run that was not there before."""
    (made,) = [each for each in stepwise.runs() if each not in before]
    return made


@pytest.fixture
def live(fork, monkeypatch):
    """A program whose run waits inside its second call of ``think``, and the run."""
    before = stepwise.runs()
    monkeypatch.setenv("STEPWISE_QUIET", "")
    monkeypatch.setenv("STOP_AT", "2")
    script = fork(SCRIPT)
    while script.hear() != "waiting":
        pass
    monkeypatch.delenv("STOP_AT")
    return script, is_new(before)


@pytest.fixture
def killed(tmp_path):
    """A run that was killed inside its fifth step, ``think(3)``; its fourth was ``send``."""

    def kill(topic="tides"):
        before = stepwise.runs()
        script = tmp_path / f"script{len(before)}.py"
        script.write_text(SCRIPT)
        python(script, topic, env={**os.environ, "DIE_AT": "3"}, code=-signal.SIGKILL)
        return is_new(before)

    return kill


@step
def think(topic):
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    return f"sent {text}"


@workflow(retention="all")
def agent(topic, mood="calm"):
    thought = think(topic)
    first = send(f"{mood} {thought}")
    return send(first)


# -- resume --------------------------------------------------------------------------------------


def test_resume(killed):
    """``resume`` says what it will do, starts the program as it was started, and it goes on.

    With ``--dry-run`` it only says what would be run.
    """
    crashed = killed("winds")
    done = process("resume", crashed.id[:-3], "--dry-run")
    assert (done.returncode, done.stdout) == (0, "")
    assert "would resume at script0.py:" in done.stderr
    assert crashed.status == "crashed"
    done = process("resume", crashed.id)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["think 3", "send winds calm 3", "result calm"]
    told = done.stderr.splitlines()
    assert told[0].startswith("agent(topic='winds'), crashed, resumes at script0.py:")
    assert told[1] == "  for number in range(1, 4):"
    assert told[2].endswith("script0.py winds")
    assert stepwise.get_run(crashed.id).status == "completed"
    text = run("show", crashed.id).stdout
    assert re.search(r"resumed   \d.*, resumes at script0.py:\d+, after 4 steps", text)
    assert "the last one: 2 executed, 4 skipped, which saved " in text


def test_resume_all(killed):
    """``resume --all-crashed`` resumes every run whose process is gone; ``doctor`` names it."""
    killed("tides")
    killed("winds")
    found = run("doctor").stdout
    assert "2 crashed" in found
    assert "stepwise resume --all-crashed" in found
    done = process("resume", "--all-crashed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result calm") == 2
    assert {each.status for each in stepwise.runs()} == {"completed"}
    done = process("resume", "--all-crashed")
    assert (done.returncode, done.stderr) == (0, "no run has crashed\n")


def test_resume_all_although_a_program_deletes_another_run(killed):
    """``resume --all-crashed`` passes over a run that an earlier program has deleted."""
    first, second, third = killed("tides"), killed("winds"), killed("currents")
    with open(first.program.command[-2], "a") as file:
        file.write(f"    import stepwise; stepwise.get_run({second.id!r}).delete()\n")
    done = process("resume", "--all-crashed", "--json")
    assert done.returncode == 0, done.stderr
    told = [(each["id"], each["status"]) for each in json.loads(done.stdout)]
    assert told == [(first.id, "completed"), (third.id, "completed")]
    assert f"run '{second.id}' is gone" in done.stderr


@pytest.mark.parametrize("readable", [True, False])
def test_resume_all_although_one_run_stops(readable, killed, monkeypatch):
    """``resume --all-crashed`` reports a run that it cannot resume, and goes on to the others."""
    first, second = killed("tides"), killed("winds")
    known, start = Run.to_dict, steer.starting.start_command

    def damaged(run, original):
        if run == first:
            raise stepwise.CorruptStoreError("it is damaged", path="store", errno=None)
        return original(run)

    monkeypatch.setattr(steer.starting, "start_command", lambda run: damaged(run, start))
    if not readable:
        monkeypatch.setattr(Run, "to_dict", lambda run: damaged(run, known))
    done = run("resume", "--all-crashed", "--dry-run", "--json")
    assert done.exit_code == 1
    one, other = json.loads(done.stdout)
    assert (one["id"], one["exit_code"], one["problem"]) == (first.id, 1, "it is damaged")
    assert one.get("status") == ("crashed" if readable else None)
    assert (other["id"], other["exit_code"]) == (second.id, 0)


def test_resume_a_module(tmp_path, monkeypatch):
    """A program that was started with ``python -m`` is started so again, in its folder."""
    (tmp_path / "talk.py").write_text(SCRIPT)
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        python_ = (sys.executable, "-u")
        with waiting("-m", "talk", "winds", command=python_, STOP_AT="2") as started:
            started.kill()
    (crashed,) = stepwise.runs()
    done = process("resume", crashed.id)
    assert done.returncode == 0, done.stderr
    assert "-m talk winds" in done.stderr
    assert done.stdout.splitlines()[0] == "think 2"


def test_nothing_to_resume():
    """A completed run is left alone; a command without a run, or with too many, is wrong."""
    completed = agent.execute("tides")
    done = process("resume", completed.id)
    assert (done.returncode, done.stdout) == (0, "")
    assert "has completed" in done.stderr
    assert run("resume").exit_code == 2
    assert run("resume", completed.id, "--all-crashed").exit_code == 2


def test_a_program_that_is_gone(killed):
    """A script that is gone, and one that does not take up the run, are errors that say so."""
    crashed = killed()
    script = crashed.program.command[-2]
    with open(script, "w") as file:
        file.write("print('hello')\n")
    done = process("resume", crashed.id)
    assert done.returncode == 1
    assert "does it still call agent with the same arguments?" in done.stderr
    os.remove(script)
    done = process("resume", crashed.id)
    assert done.returncode == 1
    assert f"{script} is gone" in done.stderr
    assert f"STEPWISE_RESUME={crashed.id}" in done.stderr


STORES = """
import os
from stepwise import step, workflow

@step
def think(number):
    if number == 2 and "STEPWISE_RESUME" not in os.environ:
        raise ValueError(number)

@workflow(store="disk:other")
def first():
    think(1)

@workflow
def second():
    think(2)

first()
second()
"""


def test_resume_a_run_beside_one_of_another_store(tmp_path, monkeypatch):
    """The notice of a workflow that does not resume the run names that workflow and its store."""
    (tmp_path / "two.py").write_text(STORES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPWISE_QUIET", raising=False)
    python("two.py")
    (failed,) = stepwise.runs()
    told = process("resume", failed.id).stderr
    assert (
        f"STEPWISE_RESUME={failed.id} is ignored by first: there is no such run in disk:" in told
    ), told
    assert failed.status == "completed"


# -- fork ----------------------------------------------------------------------------------------


def test_fork_and_resume(killed):
    """``fork --set`` starts a run with another variable, and ``resume`` resumes it."""
    crashed = killed()
    made = process("fork", crashed.id, "--at", "2", "--set", "mood=merry")
    assert made.returncode == 0, made.stderr
    assert "shares 2 steps, resumes at" in made.stderr
    assert f"stepwise resume {made.stdout.strip()}" in made.stderr
    done = process("resume", made.stdout.strip())
    assert done.stdout.splitlines() == [
        "think 2",
        "send tides merry 2",
        "think 3",
        "send tides merry 3",
        "result merry",
    ]
    assert crashed.status == "crashed"


@pytest.mark.parametrize(
    ("value", "result"),
    [('{"a": 1}', {"a": 1}), ("NaN", "NaN")],
)
def test_fork_with_another_result(value, result):
    """``fork --result`` gives a step another result; values are JSON, or else text."""
    source = agent.execute("tides")
    made = run("fork", source.id, "--result", f"think={value}", "--id", "other")
    assert made.exit_code == 0
    assert stepwise.get_run("other").steps[0].result == result
    agent.options(run_id="other")("tides")
    said = f"calm {result}"
    assert stepwise.get_run("other").steps[1].arguments.startswith(f"text={said!r}"[:20])


def test_a_slip_in_json_is_no_text():
    """A value that begins like JSON and is none is refused, not taken as text."""
    source = agent.execute("tides")
    for slip in ('think=["a"', 'think={"a"', 'think="a', "think=" + "[" * 90_000):
        done = run("fork", source.id, "--result", slip)
        assert done.exit_code == 2
        assert "is not JSON" in done.output
        assert len(done.output) < 1000
    assert len(stepwise.runs()) == 1


def test_fork_at_a_step():
    """``fork --at`` says what it shares; a step that there is not, and no value, are refused."""
    source = agent.execute("tides")
    assert run("fork", source.id, "--set", "mood").exit_code == 2
    assert run("fork", source.id, "--at", "99").exit_code == 1
    assert "shares 1 step, resumes" in run("fork", source.id, "--at", "1").stderr


# -- looking -------------------------------------------------------------------------------------


def test_locals():
    """``locals`` shows the variables at the newest checkpoint, or after a step, if there is one."""
    source = agent.execute("tides")
    told = json.loads(run("locals", source.id, "--json").stdout)
    assert (told["id"], told["step"]) == (source.id, 2)
    assert told["locals"]["first"] == "'sent calm about tides'"
    told = json.loads(run("locals", source.id, "--at", "1", "--json").stdout)
    assert "first" not in told["locals"]
    shown = run("locals", source.id, "--at", "1")
    assert "at test_cli_steer.py:" in shown.stderr
    assert shown.stdout.split()[:2] == ["VARIABLE", "VALUE"]
    done = run("locals", source.fork(at=0).id)
    assert done.exit_code == 1
    assert str(done.exception).endswith("has no checkpoint")


def test_diff():
    """``diff`` names the first step and the first variable in which two runs differ.

    Runs that did the same do not differ, although their pickles and ids do.  Exit code 2 says that
    a run cannot be compared, since 1 says that they differ.
    """
    one, other = agent.execute("tides"), agent.execute("tides", mood="merry")
    done = run("diff", one.id, other.id)
    assert done.exit_code == 1
    assert "step 2 is the first that differs, in its arguments:" in done.stdout
    assert "variable mood is the first that differs" in done.stdout
    told = json.loads(run("diff", one.id, other.id, "--json").stdout)
    assert (told["step"]["number"], told["variable"]["values"]) == (2, ["'calm'", "'merry'"])
    again = one.fork(at=0)
    agent.options(run_id=again.id)("tides")
    for same in (one, again):
        done = run("diff", one.id, same.id)
        assert (done.exit_code, done.stdout) == (0, "the runs do not differ\n")
    done = process("diff", one.id, "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no run 'nothing'" in done.stderr


class Mood:
    def __init__(self, word):
        self.word = word


@workflow
def moody(number):
    mood, unknown = Mood(os.environ["MOOD"]), float("nan")
    thought = think(number)
    return thought, mood.word, unknown


def test_diff_of_what_is_not_to_be_had(monkeypatch):
    """Objects of a class that cannot be loaded are compared by what they show; NaN is NaN."""
    for run_id, word in (("one", "calm"), ("other", "calm"), ("third", "merry")):
        monkeypatch.setenv("MOOD", word)
        moody.options(run_id=run_id)(1)
    assert process("diff", "one", "other").stdout == "the runs do not differ\n"
    assert "variable mood is the first that differs" in process("diff", "one", "third").stdout


def test_export(tmp_path):
    """``export`` writes one page that needs nothing else, in which everything is escaped."""
    source = agent.execute("<script>alert(1)</script>")
    path = tmp_path / "run.html"
    assert run("export", source.id, "-o", str(path)).exit_code == 0
    page = path.read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert page.count("<script") == page.count('<script>"use strict";') == 1
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    told = json.loads(run("export", source.id, "--format", "json").stdout)
    assert [each["name"] for each in told["steps"]] == ["think", "send", "send"]
    assert told["locals"]["mood"] == "'calm'"
    assert told["checkpoints"][0]["verified"]


def test_doctor(home):
    """``doctor`` looks at everything and changes nothing."""
    done = run("doctor")
    assert done.exit_code == 0, done.stdout
    assert not home.exists()
    agent("tides")
    told = json.loads(run("doctor", "--json").stdout)
    assert {each["what"] for each in told} >= {
        *("stepwise", "SQLite", "store", "key", "runs", "locks"),
    }
    assert {each["state"] for each in told} <= {"ok", "warning"}


@pytest.mark.parametrize(
    ("used", "spoil", "said"),
    [
        (True, lambda home: (home / "key").unlink(), "is gone"),
        (True, lambda home: (home / "key").chmod(0o602), "others may write to it (602)"),
        (False, lambda home: home.chmod(0o777), "chmod go-w"),
        (False, lambda home: os.mkfifo(home / "key"), "is not a file"),
    ],
    ids=["gone", "writable", "not made yet, in a writable folder", "no file"],
)
def test_doctor_of_the_key(used, spoil, said, home):
    """A key that is gone, or that others could write, is a problem, and is left as it is."""

    def found():
        told = json.loads(run("doctor", "--json").stdout)
        return next(each for each in told if each["what"] == "key")

    if used:
        agent("tides")
    else:
        home.mkdir(0o700)
    assert found()["state"] == "ok"
    spoil(home)
    before = [(path.name, path.stat().st_mode) for path in home.glob("key")]
    assert run("doctor").exit_code == 1
    assert found()["state"] == "problem"
    assert said in found()["text"]
    assert [(path.name, path.stat().st_mode) for path in home.glob("key")] == before


def test_doctor_tells_which_locks_there_are(home, monkeypatch):
    """Where locks are dropped by reading the store's files, ``doctor`` warns, before a run too."""
    monkeypatch.setattr("stepwise._runs.doctor.has_ofd", lambda: False)
    told = json.loads(run("doctor", "--json").stdout)
    assert {each["what"]: each["state"] for each in told}["locks"] == "warning"


@pytest.mark.parametrize("url", ["disk:{home}/other", "disk:~/runs"])
def test_doctor_of_another_store(home, monkeypatch, url):
    """``doctor`` looks into whatever store is meant, however its URL is written."""
    monkeypatch.setenv("HOME", str(home / "user"))
    monkeypatch.setenv("STEPWISE_STORE", url.format(home=home))
    told = run("doctor")
    assert told.exit_code == 0, told.stdout
    assert f"{url.format(home=home)} is made by the first run" in told.stdout
    assert not home.exists()
    agent("tides")
    told = run("doctor")
    assert told.exit_code == 0, told.stdout
    assert f"{url.format(home=home)} holds 1 run" in told.stdout
    assert "permissions" in told.stdout
    folder = os.path.expanduser(url.format(home=home).partition(":")[2])
    os.chmod(folder, 0o777)
    told = run("doctor")
    assert told.exit_code == 1
    assert f"chmod go-w {folder}" in told.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "url", "said"),
    [
        ("doctor", "mongodb://somewhere", "no store for 'mongodb://somewhere'"),
        ("runs", "memory", "write 'memory:'"),
        ("runs", "postgresql//ann@host/db", "write 'postgresql://ann@host/db'"),
    ],
)
def test_a_url_that_is_no_store(monkeypatch, command, url, said):
    """A URL that no store has is a problem; without its colon, the URL that was meant is told."""
    monkeypatch.setenv("STEPWISE_STORE", url)
    told = run(command)
    assert told.exit_code == 1
    assert said in told.output + str(told.exception)


def test_a_misspelled_setting(monkeypatch):
    """A variable whose name is nearly that of a setting is reported; others are left alone."""
    monkeypatch.setenv("STEPWISE_QUITE", "1")
    monkeypatch.setenv("STEPWISE_SOMETHING_OF_OURS", "1")
    monkeypatch.setenv("STEPWISE_QUIET", "")
    told = process("runs").stderr
    assert (
        "no setting STEPWISE_QUITE, which the environment has; did you mean STEPWISE_QUIET?" in told
    )
    assert "STEPWISE_SOMETHING" not in told


def test_the_settings_are_listed():
    """Each variable that is documented is known to the check of names, and the reverse."""
    documented = set(re.findall(r"^``(STEPWISE_\w+)``", settings.__doc__, re.MULTILINE))
    assert documented == set(settings.NAMES)


def test_times():
    """``--since`` and ``--older-than`` take 90s, 15m, 2h, 30d, 4w."""
    agent("tides")
    assert len(json.loads(run("runs", "--since", "1h", "--json").stdout)) == 1
    assert json.loads(run("runs", "--older-than", "1h", "--json").stdout) == []
    assert run("runs", "--since", "soon").exit_code == 2


def test_prune_keeps():
    """``prune --keep`` keeps the newest runs of each workflow."""
    for topic in ("tides", "winds", "currents"):
        agent(topic)
    run("prune", "--older-than", "0s", "--keep", "2")
    assert [each.arguments for each in stepwise.runs()] == ["topic='currents'", "topic='winds'"]


def test_prune_leaves_what_is_being_executed():
    """``prune`` skips a run that somebody executes, deletes the others, and says so."""
    for number, topic in enumerate(("tides", "winds", "currents")):
        agent.options(run_id=f"run-{number}")(topic)
    lease = Lease(stepwise.get_run("run-1").store, "run-1").acquire(child=False)
    try:
        done = process("prune", "--older-than", "0s", "--json")
        again = process("prune", "--older-than", "0s")
    finally:
        lease.release()
    assert done.returncode == again.returncode == 1
    told = json.loads(done.stdout)
    assert [each["id"] for each in told["runs"]] == ["run-2", "run-0"]
    (skipped,) = told["skipped"]
    assert skipped["id"] == "run-1"
    assert skipped["problem"] in done.stderr
    assert again.stdout.startswith("0 runs completed")
    assert [each.id for each in stepwise.runs()] == ["run-1"]


def test_prune_looks_for_child_runs_once(monkeypatch):
    """``prune`` reads the facts of all runs as often for many deletions as for one."""
    opened = []
    original = Seal.open

    def count(self, what, data):
        opened.append(what)
        return original(self, what, data)

    monkeypatch.setattr(Seal, "open", count)
    heads = []
    for many in (5, 20):
        for number in range(many):
            agent(f"topic {number}")
        opened.clear()
        assert run("prune", "--older-than", "0s").exit_code == 0
        heads.append(sum(what.startswith("head/") for what in opened) / many)
        assert stepwise.runs() == []
    assert heads[1] <= heads[0]


# -- while it runs -------------------------------------------------------------------------------


def test_watch_and_show_a_live_run(live):
    """``show`` names the step in progress and since when; ``watch`` follows the run to its end."""
    script, made = live
    text = process("show", made.id).stdout
    assert f"running  by process {script.pid}" in text
    assert re.search(r"think\(number=2\) +started .* so far", text)
    assert json.loads(process("show", made.id, "--json").stdout)["steps"][-1]["status"] == "started"
    assert process("resume", made.id).returncode == 1
    watching = subprocess.Popen([COMMAND, "watch", made.id], stdout=subprocess.PIPE, text=True)
    assert "think(number=1)  completed" in watching.stdout.readline()
    while "think(number=2)  started" not in (line := watching.stdout.readline()):
        assert line
    script.tell()
    script.finish()
    rest, _ = watching.communicate(timeout=300)
    assert "think(number=2)  completed" in rest
    assert rest.splitlines()[-1] == f"{made.id} has completed"
    assert watching.returncode == 0


def test_a_stopped_owner_is_named(live):
    """The refusal of a run whose owner is stopped says so, and how to let the owner go on."""
    script, made = live
    os.kill(script.pid, signal.SIGSTOP)
    until(lambda: ") T " in pathlib.Path(f"/proc/{script.pid}/stat").read_text())
    refused = process("resume", made.id)
    os.kill(script.pid, signal.SIGCONT)
    assert f"kill -CONT {script.pid}" in refused.stderr
    script.tell()
    script.finish()


def test_ctrl_c_says_how_to_go_on(live):
    """A program that Ctrl-C ends says last that the run resumes when it is run again."""
    script, _ = live
    os.kill(script.pid, signal.SIGINT)
    assert "was interrupted by Ctrl-C; run it again to resume" in script.process.stdout.read()


def test_the_latest_run():
    """``show`` without an id shows the latest run; without any run it says where it looked."""
    assert run("show").exit_code == 1
    agent("tides")
    agent("winds")
    assert run("show").stdout.startswith("agent(topic='winds')")


def test_runs_that_begin_alike():
    """Of several runs whose ids begin alike, the parts are shown in which their calls differ."""
    for which in ("first", "second"):
        agent(f"{'a long text that all of them have, ' * 3}and the {which}")
    refused = run("show", "agent")
    assert "the first')" in str(refused.exception)
    assert "the second')" in str(refused.exception)


def test_run_a_script(tmp_path):
    """``run`` runs a script with its arguments, and gives its exit code."""
    path = tmp_path / "talk.py"
    path.write_text(SCRIPT)
    done = process("run", str(path), "winds")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "result calm"
    path.write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    done = process("run", str(path), "--store", "x", "-n")
    assert (done.returncode, done.stdout) == (3, "['--store', 'x', '-n']\n")
    assert f"to resume: stepwise run {path} --store x -n" in done.stderr


def test_run_a_module(tmp_path, monkeypatch):
    """``run -m`` runs a module of a package with its arguments; killed, ``resume`` goes on."""
    package = tmp_path / "talks"
    package.mkdir()
    (package / "__init__.py").write_text("TOPICS = ['tides']")
    (package / "talk.py").write_text(SCRIPT.replace("import os", "from . import TOPICS\nimport os"))
    monkeypatch.chdir(tmp_path)
    with waiting("run", "-m", "talks.talk", "winds", STOP_AT="2") as started:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate(timeout=300)  # until the script, too, is dead
    (crashed,) = stepwise.runs()
    done = process("resume", crashed.id)
    assert done.stdout.splitlines()[0] == "think 2", done.stderr
    assert "-m talks.talk winds" in done.stderr
    assert crashed.status == "completed"
    done = process("run", "talks.talk")
    assert done.returncode == 2
    assert "To run a module: stepwise run -m talks.talk" in done.stderr
    assert process("run").returncode == 2


def test_interrupt_a_script(tmp_path):
    """Ctrl-C during ``run`` ends the script, and tells how to go on; that goes on."""
    path = tmp_path / "talk.py"
    path.write_text(SCRIPT)
    with waiting("run", str(path), STOP_AT="2") as started:
        os.killpg(started.pid, signal.SIGINT)
        _, told = started.communicate(timeout=300)
    assert started.returncode == 130
    assert told.splitlines()[-1].endswith(f"to resume: stepwise run {path}")
    done = process("run", str(path))
    assert done.stdout.splitlines()[0] == "think 2"
