"""The command line: what it prints, its exit codes, and the way out of each mistake.

Most commands run in this process, through click's runner; what depends on a real terminal, pipe or
entry point runs as a process of its own.
"""

import json
import os
import subprocess
import sys

import pytest
from command import COMMAND, process, run, terminal
from harness import python

import stepwise
from stepwise import step, tool, workflow


@step
def think(topic):
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    if text == "fail":
        raise ConnectionError("the line is dead")
    return len(text)


@workflow
def agent(topic):
    thought = think(topic)
    return send(thought)


@workflow
def sender(text):
    thought = think(text)
    send(text)
    return thought


@workflow
def family(topic):
    return agent(topic)


def fails(*arguments):
    """The exception that the entry point would turn into a message and exit code 1."""
    result = run(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, (stepwise.StepwiseError, stepwise.RunStopped))
    return str(result.exception)


@pytest.fixture
def doubtful():
    """The id of a run that failed inside its side effect, which is step 2."""
    with pytest.raises(ConnectionError):
        sender("fail")
    return sender.run_id_for("fail")


# -- runs ----------------------------------------------------------------------------------------


def test_runs():
    """``runs`` lists run, status, steps, times and call, the newest first."""
    agent("tides")
    agent("winds")
    result = run("runs")
    assert result.exit_code == 0
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["RUN", "STATUS", "STEPS", "UPDATED", "TIME", "CALL"]
    assert first.startswith(agent.run_id_for("winds").rpartition("-")[0])
    assert "completed" in first
    assert "agent(topic='winds')" in first
    assert "agent(topic='tides')" in second


def test_runs_like_that(doubtful):
    """``--workflow`` and ``--status`` choose; an unknown status is a wrong command line."""
    agent("tides")
    assert "sender" not in run("runs", "--workflow", "agent").stdout
    assert doubtful in run("runs", "--status", "failed").stdout
    assert "agent(" not in run("runs", "--status", "failed").stdout
    result = run("runs", "--status", "odd")
    assert result.exit_code == 2
    assert "'crashed'" in result.output
    result = run("runs", "--workflow", "nobody")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no runs like that in disk:" in result.stderr


def test_which_runs_are_listed():
    """Child runs are listed on request only, and ``-n`` shows only the newest few."""
    for topic in ("tides", "winds"):
        family(topic)
    listed = json.loads(run("runs", "--json").stdout)
    assert [each["arguments"] for each in listed] == ["topic='winds'", "topic='tides'"]
    (newest,) = json.loads(run("runs", "--json", "-n", "1").stdout)
    assert newest == listed[0]
    parent, child = json.loads(run("runs", "--children", "--json").stdout)[1::-1]
    assert child["parent"] == parent["id"]
    assert run("show", child["id"]).exit_code == 0
    assert run("runs", "-n", "0").exit_code == 2


def test_as_a_module():
    """``python -m stepwise`` is the same command: an unknown run is one line on stderr."""
    by_module, by_name = python("-m", "stepwise", "show", "nobody"), process("show", "nobody")
    for done in (by_module, by_name):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("stepwise: there is no run 'nobody' in disk:")
        assert done.stderr.count("\n") == 1


def test_a_command_line_imports_its_own_command():
    """A command is imported with those beside it in its module, and the others are not."""
    program = (
        "import contextlib, sys; from stepwise import cli; sys.argv[1:] = ['show', 'nobody']\n"
        "with contextlib.suppress(SystemExit): cli.run()\n"
        "print(*[name for name in sys.modules if name.startswith('stepwise.cli')])"
    )
    imported = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "stepwise.cli.look" in imported
    assert "stepwise.cli.up" not in imported


def test_store_of_choice(tmp_path):
    """``--store`` looks elsewhere; a URL that means nothing is explained."""
    agent.options(store=f"disk:{tmp_path / 'other'}")("tides")
    assert "no runs" in run("runs").stderr
    assert "tides" in run("runs", "--store", f"disk:{tmp_path / 'other'}").stdout
    assert "begins with 'disk:'" in fails("runs", "--store", "nonsense:")


# -- show ----------------------------------------------------------------------------------------


def test_show():
    """``show`` tells a run and its steps with results, tries, times and where they were called."""
    agent("tides")
    (listed,) = json.loads(run("runs", "--json").stdout)
    text = run("show", listed["id"]).stdout
    assert text.startswith("agent(topic='tides')\n")
    assert listed["id"] in text
    assert listed["workflow"] in text
    head, think_row, send_row = text.splitlines()[-3:]
    assert head.split() == ["STEP", "CALL", "STATUS", "RESULT", "TRIES", "TIME", "FROM"]
    assert "think(topic='tides')" in think_row
    assert "'about tides'" in think_row
    assert "test_cli.py:" in think_row
    assert send_row.split()[0] == "2"


def test_show_a_failed_run(doubtful):
    """A failed run says where it resumes, its error, and how to settle what is in doubt."""
    text = run("show", doubtful).stdout
    assert "resumes   at test_cli.py:" in text
    assert "error     ConnectionError: the line is dead" in text
    assert f"stepwise resolve {doubtful} 2 --landed JSON | --did-not-happen" in text


def test_show_locals(doubtful):
    """``show --locals`` adds the variables with which the run would resume."""
    text = run("show", doubtful, "--locals").stdout
    assert "VARIABLE" in text
    assert "'about fail'" in text.partition("VARIABLE")[2]
    facts = json.loads(run("show", doubtful, "--locals", "--json").stdout)
    assert facts["locals"] == {"text": "'fail'", "thought": "'about fail'"}


# -- which run -----------------------------------------------------------------------------------


def test_beginning_of_an_id(doubtful):
    """The beginning of a run's id is enough, for every command, while only one begins so."""
    start = doubtful[: len("sender-") + 4]
    assert doubtful in run("show", start).stdout
    assert doubtful in run("resolve", start, "2", "--did-not-happen").stdout
    assert doubtful in run("forget", start, "1").stdout
    assert doubtful in run("forget", start, "--yes").stdout


def test_ambiguous_beginning():
    """A beginning that fits several runs changes nothing, and lists them."""
    agent("tides")
    agent("winds")
    for command in (["show"], ["forget", "--yes"]):
        text = fails(*command, "agent-")
        assert "2 runs begin with 'agent-'" in text
        assert len(text.splitlines()) == 3
    assert len(stepwise.runs()) == 2


def test_beginning_of_a_family():
    """A run is not hidden by its own child runs, whose ids begin with its own."""
    family("tides")
    parent = next(each for each in stepwise.runs() if each.parent is None)
    assert json.loads(run("show", parent.id[:-2], "--json").stdout)["id"] == parent.id


# -- in doubt ------------------------------------------------------------------------------------


def test_in_doubt(doubtful):
    """``in-doubt`` lists the calls nobody knows about, and the command that settles them."""
    text = run("in-doubt").stdout
    assert text.splitlines()[0].split() == ["RUN", "STEP", "CALL", "STARTED"]
    assert text.splitlines()[1].split()[:3] == [doubtful, "2", "send(text='fail')"]
    assert "stepwise resolve RUN STEP --landed JSON | --did-not-happen" in text
    (row,) = json.loads(run("in-doubt", "--json").stdout)
    assert (row["run_id"], row["number"], row["name"]) == (doubtful, 2, "send")


def test_landed(doubtful):
    """``resolve --landed`` gives the call its result, and the workflow continues with it."""
    result = run("resolve", doubtful, "2", "--landed", '{"id": 7}')
    assert result.exit_code == 0
    assert "continues with" in result.stdout
    assert "nothing is in doubt" in run("in-doubt").stderr
    assert sender("fail") == "about fail"
    assert stepwise.get_run(doubtful).steps[1].result == {"id": 7}


def test_did_not_happen(doubtful):
    """``resolve --did-not-happen`` has the call made once more; a step goes by its name, too."""
    assert run("resolve", doubtful, "send", "--did-not-happen").exit_code == 0
    with pytest.raises(ConnectionError):  # it was really made
        sender("fail")


@pytest.mark.parametrize(
    ("landed", "hint"),
    [
        ("done", "'\"done\"'"),
        ("{", "'\"text\"'"),
        ("", "'\"text\"'"),
        ("NaN", "NaN is not a number of JSON"),
        ('{"price": -Infinity}', "-Infinity is not a number of JSON"),
        ("1e999", "1e999 is not a number of JSON"),
        ("[" * 90_000, "it is nested too deeply"),
    ],
)
def test_bad_json(doubtful, landed, hint):
    """What is no JSON is refused with an example to copy, and nothing is settled."""
    result = run("resolve", doubtful, "2", "--landed", landed)
    assert result.exit_code == 2
    assert "is not JSON" in result.output
    assert hint in result.output
    assert len(result.output) < 1000
    assert len(json.loads(run("in-doubt", "--json").stdout)) == 1


def test_resolve_says_one_thing(doubtful):
    """Neither or both answers are a wrong command line."""
    for extra in ([], ["--landed", "1", "--did-not-happen"]):
        result = run("resolve", doubtful, "2", *extra)
        assert result.exit_code == 2
        assert "give exactly one answer" in result.output


def test_resolve_what_is_not_in_doubt(doubtful):
    """A step that is not in doubt cannot be settled; those that are, are named."""
    for wrong in ("1", "9", "think"):
        text = fails("resolve", doubtful, wrong, "--did-not-happen")
        assert wrong in text
        assert "2 (send)" in text


# -- forget --------------------------------------------------------------------------------------


def test_forget_a_step():
    """A forgotten step runs again when the workflow is called."""
    with pytest.raises(ConnectionError):
        sender("fail")
    run_id = sender.run_id_for("fail")
    assert "runs again" in run("forget", run_id, "1").stdout
    assert "Steps recorded: " in fails("forget", run_id, "nobody")
    assert [each.name for each in stepwise.get_run(run_id).steps] == ["send"]


def test_forget_a_run(doubtful):
    """Deleting a run that holds side effects asks first, naming them; no answer is a no."""
    result = run("forget", doubtful, input="n\n")
    assert result.exit_code == 1
    assert "send(text='fail')" in result.output
    assert run("forget", doubtful, input="").exit_code == 1
    assert stepwise.get_run(doubtful).id == doubtful
    assert run("forget", doubtful, input="y\n").exit_code == 0
    assert stepwise.runs() == []

    @workflow
    def harmless():
        return think("tides")

    harmless()
    (listed,) = stepwise.runs()
    assert run("forget", listed.id).stdout == f"{listed.id} is deleted\n"  # nothing to ask


def test_prune(doubtful):
    """``prune`` deletes completed runs that are old enough; what is unfinished stays."""
    agent("tides")
    family("winds")
    assert "0 runs" in run("prune").stdout  # 30 days
    assert "would be deleted" in run("prune", "--older-than", "0", "--dry-run").stdout
    assert len(stepwise.runs("agent")) == 2
    assert run("prune", "--older-than", "0").stdout.splitlines()[-1].startswith("2 runs")
    assert [each.id for each in stepwise.runs()] == [doubtful]
    assert run("prune", "--older-than", "-1").exit_code == 2


@pytest.mark.parametrize(
    ("age", "said"),
    [
        ("0s", "completed so far"),
        ("90s", "completed more than 90 seconds ago"),
        ("2h", "completed more than 2 hours ago"),
        ("1d", "completed more than 1 day ago"),
        ("4w", "completed more than 28 days ago"),
    ],
)
def test_the_age_of_pruned_runs(age, said):
    """``prune`` says in words how long ago the runs completed that it deletes."""
    assert f"0 runs {said}: deleted" in run("prune", "--older-than", age).stdout


# -- as a process --------------------------------------------------------------------------------


def test_messages_not_tracebacks(monkeypatch):
    """A problem is one line on stderr and exit code 1; a wrong command line is exit code 2."""
    agent("tides")
    monkeypatch.setenv("STEPWISE_KEY", "00" * 32)  # that of another machine, which is no damage
    done = process("runs")
    assert (done.returncode, done.stdout) == (1, "")
    assert "key" in done.stderr
    assert "Traceback" not in done.stderr
    assert process("nonsense").returncode == 2
    assert process("locals").returncode == 2
    assert process("--version").stdout == f"stepwise, version {stepwise.__version__}\n"


LONG = "a topic that is longer than a third of any terminal, which is where cells are cut"


def test_pipe_has_no_colours():
    """Into a pipe go whole cells without colours."""
    agent(LONG)
    text = process("runs").stdout
    assert "\x1b" not in text
    assert "where cells are cut" in text


@pytest.mark.parametrize("no_colour", [False, True])
def test_terminal(no_colour, monkeypatch):
    """A terminal gets colours and short cells; ``NO_COLOR`` turns the colours off."""
    agent(LONG)
    monkeypatch.delenv("NO_COLOR", raising=False)
    options = {"NO_COLOR": "1"} if no_colour else {}
    shown = terminal(["stepwise", "runs"], COLUMNS="100", **options).stdout
    assert ("\x1b[32mcompleted" in shown) is not no_colour
    assert "completed" in shown
    assert "where cells are cut" not in shown


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_table_fits(columns):
    """On a terminal a table is no wider than that, and the names that commands take are whole."""
    run_id = family.execute(LONG).id
    commands = ["stepwise", "show", run_id], ["stepwise", "runs", "--children"]
    shown = terminal(*commands, COLUMNS=str(columns), NO_COLOR="1").stdout
    lines = shown.partition("STEP")[2].splitlines()
    (child,) = [each.id for each in stepwise.runs() if each.parent]
    assert any(line.startswith(child) for line in lines)
    assert max(len(line) for line in lines if not line.startswith(child)) <= columns


def test_broken_pipe():
    """``stepwise runs | head -1`` shows one line and no complaint."""
    for number in range(3):
        agent("x" * 60 + str(number))
    script = f"{COMMAND} runs | head -1; {COMMAND} runs --json | true"
    env = {**os.environ}  # readline sets COLUMNS in the environment of C
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["RUN", "STATUS", "STEPS", "UPDATED", "TIME", "CALL"]
    assert done.stderr == ""


def test_demo(tmp_path):
    """``stepwise demo`` kills a program, runs it again, and leaves nothing behind."""
    done = process("demo", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Killed (kill -9)" in done.stdout
    assert "resumes at release_notes.py:" in done.stdout
    assert "Lines in the outbox: 1." in done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"home"}


# -- completion ----------------------------------------------------------------------------------


def test_completion():
    """A shell completes commands, and the ids of runs."""
    agent("tides")
    (made,) = stepwise.runs()

    def completed(*words):
        typed = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return process(_STEPWISE_COMPLETE="bash_complete", **typed).stdout.split()

    assert completed("stepwise", "in") == ["plain,in-doubt"]
    assert completed("stepwise", "show", "age") == [f"plain,{made.id}"]
    assert completed("stepwise", "show", "--store", "memory:", "age") == []
