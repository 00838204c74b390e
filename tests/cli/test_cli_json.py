"""Every command as JSON, its help, and what it says where there is nothing."""

import json
import os
import pathlib
import re
import shlex
import sys
import threading

import click
import pytest
from command import process, run
from harness import python, python_path

import stepwise
from stepwise import cli, errors, step, tool, workflow

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/command-line.md"


@step
def think(topic):
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    raise ConnectionError("the line is dead")


@workflow(retention="all")
def agent(topic):
    thought = think(topic)
    return think(f"more {thought}") and thought


@workflow
def sender(topic):
    return send(agent(topic))


@tool(side_effect=True, approve=True)
def book(hotel):
    return hotel


@workflow
def trip():
    return book("Roma")


def asking():
    """A suspended run whose call waits for a person."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        trip()
    return trip.run_id_for()


@pytest.fixture
def ids():
    """A completed run with tags, and one in doubt, which has a child run."""
    done = agent.options(tags={"customer": "ann"}).execute("tides")
    with pytest.raises(ConnectionError):
        sender("winds")
    return {"RUN": done.id, "DOUBT": sender.run_id_for("winds")}


COMMANDS = {
    "runs": (list, "runs --children"),
    "show": (dict, "show DOUBT"),
    "show all": (dict, "show RUN --all --locals"),
    "why": (dict, "why DOUBT"),
    "locals": (dict, "locals RUN"),
    "bisect": (dict, "bisect RUN topic"),
    "diff": (dict, "diff RUN DOUBT"),
    "limits": (list, "limits"),
    "schedules": (list, "schedules"),
    "in-doubt": (list, "in-doubt"),
    "resume": (dict, "resume RUN"),
    "resume all": (list, "resume --all-crashed"),
    "fork": (dict, "fork RUN --at 0"),
    "branch": (list, "branch RUN --at 1"),
    "send": (dict, "send ASKING paid true"),
    "approve": (dict, "approve ASKING book TICKET --note fine"),
    "deny": (dict, "deny ASKING 1 TICKET --reason costly"),
    "cancel": (dict, "cancel ASKING"),
    "resolve": (dict, "resolve DOUBT send --landed 7"),
    "forget": (dict, "forget RUN --yes"),
    "forget a step": (dict, "forget RUN 1"),
    "prune": (dict, "prune --older-than 0s --dry-run"),
    "compact": (dict, "compact"),
    "copy": (dict, "copy RUN --to disk:./copy-of-a-test --dry-run"),
    "verify": (list, "verify"),
    "restore": (dict, "restore"),
    "export": (dict, "export RUN"),
    "doctor": (list, "doctor"),
    "explain": (dict, "explain StepInDoubtError"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_json(name, ids):
    """Every command prints one JSON value on stdout, with the names that the page lists."""
    kind, line = COMMANDS[name]
    if name == "branch":  # it has ended, so that the command does not start our own program
        [branch] = stepwise.get_run(ids["RUN"]).branch(at="1", effects="refuse")
        assert branch.run.status == "completed"
    if "ASKING" in line:
        ids["ASKING"] = asking()
        ids["TICKET"] = stepwise.get_run(ids["ASKING"]).waits[0].ticket
    arguments = [ids.get(part, part) for part in line.split()]
    result = run(*arguments, "--json")
    assert result.exit_code == int(name == "diff"), result.output
    value = json.loads(result.stdout)
    assert isinstance(value, kind)
    (row,) = re.findall(rf"^\| `{arguments[0]}` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    facts = value if kind is dict else (value or [{}])[0]
    row = re.sub(r"\(.*?\)|`--.*?`|;.*", "", row if "--locals" in line else row.partition(";")[0])
    assert not facts or set(re.findall(r"`(\w+)`", row)) <= facts.keys()


def test_json_of_programs(tmp_path):
    """``run`` and ``demo`` leave stdout to JSON: what the programs print is on stderr."""
    script = tmp_path / "talk.py"
    script.write_text("import sys; print('hello'); sys.exit(3)")
    done = process("run", "--json", str(script))
    assert done.returncode == 3
    facts = json.loads(done.stdout)
    assert (facts["exit_code"], facts["command"][1:]) == (3, [str(script)])
    assert "hello" in done.stderr


TALKS = """
import dataclasses, subprocess, threading

from stepwise import step, workflow

print("imported")

@dataclasses.dataclass
class Found:
    number: int

@step
def look(number, fails):
    subprocess.run(["echo", "a child"], check=True)
    threading.Thread(target=print, args=["a thread"]).start()
    print("a run")
    if fails:
        raise SystemExit(1)
    return Found(number)

@workflow(run_id="talks")
def talks():
    return look(1, FAILS)
"""


@pytest.mark.parametrize("line", ["show talks", "why talks", "export talks", "up --once talks"])
def test_only_json_is_on_stdout(line, tmp_path, monkeypatch):
    """What the user's code prints at its import, in a run, in a thread or by a child process is on
    stderr, and stdout is JSON alone.
    """
    monkeypatch.chdir(tmp_path)
    path = {**os.environ, "PYTHONPATH": python_path(tmp_path)}
    module = tmp_path / "talks.py"
    module.write_text(TALKS.replace("FAILS", str(line.startswith("up"))))
    python("-c", "import talks; talks.talks()", env=path)
    module.write_text(TALKS.replace("FAILS", "False"))
    done = python("stepwise", *line.split(), "--json", env=path, code=0)
    if line.startswith("up"):
        events = [json.loads(each)["event"] for each in done.stdout.splitlines()]
        assert events == ["ready", "begun", "ended", "done"]
        assert {"a child", "talks | a thread"} <= set(done.stderr.splitlines()), done.stderr
    else:
        assert json.loads(done.stdout)
    assert "imported" in done.stderr.splitlines()


def test_every_command_takes_json():
    """Every command has ``--json`` and ``--store``, and is in the table of the page."""
    page = PAGE.read_text("utf-8").partition("## JSON")[2]
    for name, command in cli.main.commands.items():
        options = {option for each in command.params for option in each.opts}
        assert {"--json", "--store"} <= options, name
        assert f"| `{name}` |" in page


def test_json_of_a_run_is_what_python_has(ids):
    """``runs --json`` and ``to_dict()`` have the same names and values, those of the attributes."""
    listed = json.loads(run("runs", "--json").stdout)
    assert listed == [each.to_dict() for each in stepwise.runs() if each.parent is None]
    for facts in listed:
        found = stepwise.get_run(facts["id"])
        assert facts["spent"] == found.spent.to_dict()
        for name in facts.keys() - {"error", "owner", "spent"}:
            assert facts[name] == getattr(found, name)
    failed, done = listed
    assert (done["tags"], done["error"], done["counts"]) == (
        {"customer": "ann"},
        None,
        {"completed": 2},
    )
    assert done["duration"] > 0
    assert failed["error"] == "ConnectionError: the line is dead"
    assert failed["counts"] == {"completed": 1, "in_doubt": 1}


@pytest.mark.filterwarnings("ignore::stepwise.RunWarning")
def test_json_of_a_result(ids):
    """The result is a text, or ``null`` beside the reason why there is none to show."""

    @workflow
    def gate():
        return threading.Lock()

    gate.options(run_id="gate")()
    for name in ("show", "export"):
        shown = json.loads(run(name, ids["RUN"], "--json").output)
        assert shown["result"] == "'about tides'"
        shown = json.loads(run(name, "gate", "--json").output)
        assert shown["result"] is None
        assert "result is not recorded" in shown["result_unreadable"]


def test_json_of_steps_is_what_python_has(ids):
    """``show --json`` has the steps as ``StepRecord.to_dict()`` has them."""
    steps = json.loads(run("show", ids["DOUBT"], "--json").stdout)["steps"]
    found = stepwise.get_run(ids["DOUBT"]).steps
    assert steps == [json.loads(json.dumps(each.to_dict())) for each in found]
    assert (steps[0]["child"], steps[0]["duration"]) == (found[0].child, found[0].duration)
    assert steps[1]["preview"].startswith("ConnectionError")
    checkpoints = json.loads(run("export", ids["RUN"], "--json").stdout)["checkpoints"]
    assert checkpoints == [each.to_dict() for each in stepwise.get_run(ids["RUN"]).checkpoints]


def test_watch_as_json(ids):
    """``watch --json`` prints an object for each step, one a line, and at the end the run."""
    *steps, last = map(json.loads, run("watch", ids["DOUBT"], "--json").stdout.splitlines())
    assert [each["step"]["name"] for each in steps] == ["agent", "send"]
    assert last["run"]["status"] == "failed"


# -- runs ----------------------------------------------------------------------------------------


def test_runs_by_tag(ids):
    """``--tag`` chooses by tags; what is no tag is refused with an example."""
    agent.options(tags={"customer": "bob"})("winds")
    (found,) = json.loads(run("runs", "--tag", "customer=ann", "--json").stdout)
    assert found["id"] == ids["RUN"]
    assert json.loads(run("runs", "--tag", "customer=nobody", "--json").stdout) == []
    both = run("runs", "--tag", "customer=ann", "--tag", "kind=x", "--json")
    assert json.loads(both.stdout) == []
    assert "customer=ann" in run("runs").stdout
    for wrong in ("customer", "=ann", "customer="):
        refused = run("runs", "--tag", wrong)
        assert refused.exit_code == 2
        assert "like customer=ann" in refused.output


@pytest.mark.parametrize("columns", ["80", "200"])
def test_errors_and_counts_in_the_list(ids, monkeypatch, columns):
    """``runs`` shows errors and what became of steps: in columns, or below where it is narrow."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = run("runs").stdout.splitlines()
    assert max(map(len, lines)) <= int(columns)
    (failed,) = [n for n, line in enumerate(lines) if line.startswith(ids["DOUBT"])]
    told = lines[failed + 1] if columns == "80" else lines[failed]
    assert "ConnectionError: the line is dead" in told
    assert "1 in doubt" in told


def test_a_tree_of_child_runs(ids):
    """``show --tree`` has the steps of a child run below its call."""
    tree = run("show", ids["DOUBT"], "--tree").stdout.partition("\n\n")[2].splitlines()
    assert tree[0].startswith("sender(topic='winds')")
    assert tree[1].startswith("├── 1  agent(topic='winds')")
    assert tree[2].startswith("│   ├── 1  think(topic='winds')")
    assert tree[3].startswith("│   └── 2  think(topic='more about winds')")
    assert tree[4].startswith("└── 2  send(text='about winds')")


@pytest.mark.parametrize("columns", [80, 160])
def test_a_difference_fits(ids, monkeypatch, columns):
    """``diff`` fits the terminal, and shows the part that differs."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = "a long question about the sea, with many words before the end: "
    one, other = (agent.execute(text + word) for word in ("tides", "winds"))
    lines = run("diff", one.id, other.id).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    rows = [line for line in lines if line.startswith("  ")]
    assert ["tides" in row for row in rows] == [True, False, True, False]
    assert ["winds" in row for row in rows] == [False, True, False, True]


# -- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(cli.main.commands))
def test_help_has_examples(name, monkeypatch):
    """The help of every command ends with examples, each a right command line, in 80 columns."""
    monkeypatch.setattr(stepwise, "configure", lambda **_: None)
    text = run(name, "--help", terminal_width=80).output
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(
        r"^    (stepwise .*?)(?: +# .*)?$", text.partition("Examples:")[2], re.MULTILINE
    )
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" [|>] ", example)[0])
        command = cli.main.commands[words[1]]
        command.make_context(words[1], words[2:])


def test_the_list_of_commands():
    """The list of commands has each of them, in sections."""
    text = run("--help").output
    for name, command in cli.main.commands.items():
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE), name
        assert f"{command.section}:" in text
    assert isinstance(cli.main, click.Group)


# -- nothing, and what cannot be read ------------------------------------------------------------


def test_doctor_of_an_empty_store(home):
    """``doctor`` says before the first run that there is none yet, and how to see one."""
    told = {each["what"]: each for each in json.loads(run("doctor", "--json").stdout)}
    assert "is made by the first run" in told["store"]["text"]
    assert "stepwise demo" in told["runs"]["text"]
    assert not home.exists()


def test_doctor_of_a_file_in_the_place_of_the_store(home):
    """A file where the store should be is a problem that ``doctor`` names."""
    home.mkdir(mode=0o700, parents=True)
    (home / "store").write_text("hello")
    result = run("doctor")
    assert result.exit_code == 1
    assert "is not a folder" in result.stdout


UNREADABLE = ["runs", "show x", "in-doubt", "verify", "watch x", "locals x", "diff x y", "export x"]
UNREADABLE += [
    "resume x",
    "resume --all-crashed",
    "fork x",
    "branch x",
    "forget x --yes",
    "prune",
    "compact",
]
UNREADABLE += ["resolve x 1 --landed 1", "restore"]


@pytest.mark.parametrize("command", UNREADABLE)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_store_that_cannot_be_read(command, as_json, home, capsys, monkeypatch):
    """A store that cannot be read is one line on stderr, and exit code 1 (of ``diff``: 2)."""
    home.mkdir(mode=0o700, parents=True)
    (home / "store").write_text("hello")
    words = ["stepwise", *command.split(), *(["--json"] if as_json else [])]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.run()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2 if words[1] == "diff" else 1, "")
    assert printed.err.count("\n") == 1
    assert re.match("stepwise: the store .* failed: Not a directory", printed.err)


# -- explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [each for each in errors.__all__ if each != "errors"])
def test_every_error_is_explained(name):
    """``explain`` has every error and warning: its text, its kind, its attributes."""
    cls = getattr(errors, name)
    text = run("explain", f"stepwise.{name}").stdout
    assert text.startswith(
        f"stepwise.{name}  ({'warning' if issubclass(cls, Warning) else 'error'}"
    )
    assert " ".join(cls.__doc__.split())[:40].replace("``", "`") in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("STEPWISE_START", "`unfinished`"),
        ("stepwise_home=/tmp", "folder of the default store"),
        ("checkpoint_every", "After a crash"),
        ("--on-owned", "RunBusyError"),
        ("retries", "step"),
        ("errors.RunStopped", "every later step call"),
        ("runbusyerror:", "Somebody else"),
        ("Run", "execution of a workflow"),
    ],
)
def test_what_is_explained(name, part):
    """Settings, options and public names are explained, however their case."""
    result = run("explain", "--", name)
    assert result.exit_code == 0, result.output
    assert part in " ".join(result.stdout.split())


def test_a_name_that_is_near():
    """A name that is not known is one line with the names that are close to it."""
    result = run("explain", "StepInDoubt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Did you mean StepInDoubtError" in result.stderr
    assert run("explain", "xyzzy").stderr == (
        "stepwise: there is nothing called 'xyzzy' to explain\n"
    )
