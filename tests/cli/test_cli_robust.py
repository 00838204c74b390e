"""Every command, on whatever a store may hold: nothing, damage, another key, odd values, a lot."""

import html
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys

import pytest
from click.testing import CliRunner
from harness import python

import stepwise
from stepwise import cli, step, workflow
from stepwise._journal.seal import Seal
from stepwise._runtime import messages

LISTINGS = {
    "runs": "runs",
    "runs as JSON": "runs --json --children --since 30d",
    "in-doubt": "in-doubt",
    "in-doubt as JSON": "in-doubt --json",
    "verify": "verify",
    "doctor": "doctor",
    "doctor as JSON": "doctor --json",
    "prune": "prune --older-than 0s --dry-run",
    "resume all": "resume --all-crashed --dry-run",
}
ON_A_RUN = {
    "show": "show RUN",
    "show as JSON": "show RUN --json",
    "show all": "show RUN --all --locals",
    "show as a tree": "show RUN --tree",
    "why": "why RUN",
    "why as JSON": "why RUN --json",
    "locals": "locals RUN",
    "locals as JSON": "locals RUN --json",
    "watch": "watch RUN",
    "watch as JSON": "watch RUN --json",
    "diff": "diff RUN RUN",
    "diff as JSON": "diff RUN RUN --json",
    "export": "export RUN",
    "export as JSON": "export RUN --format json",
    "resume": "resume RUN --dry-run",
    "resume as JSON": "resume RUN --dry-run --json",
    "fork": "fork RUN",
    "verify one": "verify RUN",
    "verify as JSON": "verify RUN --json",
    "resolve": "resolve RUN 1 --did-not-happen",
    "forget a step": "forget RUN 1",
    "forget": "forget RUN --yes",
    "forget as JSON": "forget RUN --yes --json",
}
COMMANDS = {**LISTINGS, **ON_A_RUN}
listings = pytest.mark.parametrize("command", LISTINGS)
on_a_run = pytest.mark.parametrize("command", ON_A_RUN)
commands = pytest.mark.parametrize("command", COMMANDS)


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Loud:
    def __repr__(self):
        return "\x1b[2J\x1b]0;title\x07<script>alert(1)</script>"


class Silent:
    def __repr__(self):
        raise RuntimeError("no repr")


VALUES = {
    "html": "<script>alert(1)</script>",
    "ansi": "\x1b[2J\x1b[31mred",
    "big": "x" * 2_000_000,
    "bytes": b"\xff\xfe\x00",
    "surrogate": "\udc80",
    "lines": "a\r\nb\x00",
    "loud": Loud(),
    "silent": Silent(),
}


@step
def give(kind):
    return VALUES[kind]


@workflow
def odd(first):
    kept = {kind: give(kind) for kind in VALUES}
    give("html")
    if kept:
        raise Odd


@step
def count(number):
    return number


@workflow(durability="os", checkpoint_every=1000)
def long(upto):
    total = 0
    for number in range(upto):
        total += count(number)
    return total


@workflow
def short(upto):
    return count(upto)


@pytest.fixture
def known():
    """A run that has completed."""
    return short.execute(1)


def run(command, run_id=""):
    """Execute a command; only what the entry point turns into a message may be raised."""
    arguments = [part.replace("RUN", run_id) for part in COMMANDS[command].split()]
    try:
        result = CliRunner().invoke(cli.main, arguments, input="")
    except stepwise.RunStopped as error:
        assert "Put the folder back from a backup" in str(error)
        return None
    if not isinstance(result.exception, (SystemExit, stepwise.StepwiseError, type(None))):
        raise result.exception
    assert result.exit_code in (0, 1, trouble(command)), result.output
    if result.exit_code == 2 and "no run" not in result.output:
        # What ``diff`` reports itself is what others leave to the entry point.
        assert result.output.startswith("stepwise: ")
        assert re.search("Put the folder back from a backup|another key", result.output)
    return result


def trouble(command):
    """The exit code of a problem; that of ``diff`` is not the one of a difference."""
    return 2 if command.startswith("diff") else 1


# -- nothing, or something else ------------------------------------------------------------------


EMPTY = {
    "runs": "no runs in disk:",
    "in-doubt": "nothing is in doubt",
    "verify": "nothing to verify: no runs in disk:",
}


@listings
def test_an_empty_store(command):
    """Every listing of an empty store is good, says so on stderr, and as JSON it can be read."""
    result = run(command)
    assert result.exit_code == 0, result.output
    if command in EMPTY:
        assert result.stdout == ""
        assert result.stderr.startswith(EMPTY[command])
    if "JSON" in command:
        json.loads(result.stdout)


@on_a_run
def test_an_unknown_run(command, known):
    """Every command on a run that is not there says so, and names those that are close."""
    result = run(command, known.id[:-2] + "zz")
    assert result.exit_code == trouble(command)
    assert "Did you mean" in str(result.exception) + result.output
    assert stepwise.runs() == [known]


@commands
def test_another_key(command, known, monkeypatch):
    """With another key nothing can be read, which every command explains, and none changes."""
    monkeypatch.setenv("STEPWISE_KEY", "another key than before")
    result = run(command, known.id)
    if result.exit_code:
        assert "another key" in str(result.exception) + result.output
    monkeypatch.delenv("STEPWISE_KEY")
    assert known.verify().ok
    assert known.result == 1


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["zeros", "garbage", "cut", "empty"])
@commands
def test_a_damaged_store(command, damage, known, home):
    """A database that is damaged is explained by every command, or told by what can be read."""
    for store in stepwise.stores._open.values():
        store.close()
    stepwise.stores._open.clear()
    path = home / "store" / "cache.db"
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    if damage == "zeros":
        data[4096:] = bytes(len(data) - 4096)
    elif damage == "garbage":
        data[middle : middle + 8000] = os.urandom(8000)
    elif damage == "cut":
        del data[middle:]
    else:
        data.clear()
    for name in ("cache.db-wal", "cache.db-shm"):
        (home / "store" / name).unlink(missing_ok=True)
    path.write_bytes(data)
    run(command, known.id)


# -- odd values ----------------------------------------------------------------------------------


@pytest.fixture
def odd_run():
    with pytest.raises(Odd):
        odd("\x1b[2J")
    (made,) = stepwise.runs()
    return made


@commands
def test_odd_values(command, odd_run):
    """Whatever is recorded, a command prints what is safe on a terminal, and not much of it."""
    result = run(command, odd_run.id)
    refused = command == "resolve"
    assert result.exit_code == int(refused), result.output
    text = result.output
    assert "\x07" not in text
    assert "\x00" not in text
    assert "\x1b" not in text
    assert len(text) < 500_000
    text.encode("utf-8")


def test_odd_values_on_a_page(odd_run):
    """A page holds nothing that a browser would execute or load, but for its own script."""
    page = run("export", odd_run.id).stdout
    assert page.count("<script") == page.count('<script>"use strict";') == 1
    assert "&lt;script&gt;" in page


def test_what_an_odd_exception_says(odd_run):
    """An exception whose text cannot be had is named by its class."""
    assert "Odd" in run("show", odd_run.id).stdout
    assert "Odd" in json.loads(run("show as JSON", odd_run.id).stdout)["error"]


# -- a lot ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A store with a run of 1,200 steps: its folder and the id of the run."""
    folder = tmp_path_factory.mktemp("many")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWISE_HOME", str(folder))
        patch.setenv("STEPWISE_QUIET", "1")
        long(1_200)
        (made,) = stepwise.runs()
    return folder, made.id


READING = [name for name in COMMANDS if name.split()[0] not in ("resolve", "forget", "fork")]


@pytest.mark.parametrize("command", READING)
def test_many_steps(command, many, monkeypatch):
    """A run of 1,200 steps is shown in a few looks at each, the newest of its steps only."""
    folder, run_id = many
    monkeypatch.setenv("STEPWISE_HOME", str(folder))
    looks, look = [], Seal.open
    monkeypatch.setattr(Seal, "open", lambda *args: looks.append(1) or look(*args))
    result = run(command, run_id)
    assert result.exit_code == 0, result.output
    assert len(looks) <= 10 * 1_200
    if command in ("show", "export"):
        assert len(result.stdout) < 600_000
        assert "earlier steps" in result.stdout
        assert "count(number=1199)" in result.stdout
    if command == "show all":
        assert "count(number=600)" in result.stdout


# -- what a terminal would obey ------------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x1b[32mcompleted\u202e[red]\x9b31m"

PROGRAM = """
import os, signal, sys
import stepwise
from stepwise import tool, workflow

class Odd:
    def __init__(self, text): self.text = text
    def __repr__(self): return self.text
    def __reduce__(self): return Odd, (self.text,)

@tool(side_effect=True)
def pay(odd):
    os.kill(os.getpid(), signal.SIGKILL)

@workflow
def agent(odd):
    return pay(odd)

tags = {sys.argv[1]: sys.argv[1]}
agent.options(run_id="run" + sys.argv[1], tags=tags)(Odd(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A store with a run whose id, arguments, folder and command line a terminal would obey."""
    folder = tmp_path_factory.mktemp("hostile") / HOSTILE.replace("/", "")
    folder.mkdir()
    (folder / "agent.py").write_text(PROGRAM)
    environment = {**os.environ, "STEPWISE_HOME": str(folder / "home"), "STEPWISE_QUIET": "1"}
    python(folder / "agent.py", HOSTILE, cwd=folder, env=environment, code=-signal.SIGKILL)
    return folder


ALL = {
    **COMMANDS,
    "restore": "restore",
    "forget and ask": "forget RUN",
    "repair": "verify --repair",
}


@pytest.mark.parametrize("columns", ["", "60"])
@pytest.mark.parametrize("command", [name for name in ALL if not name.startswith("export")])
def test_nothing_that_a_terminal_obeys(command, columns, hostile, tmp_path, monkeypatch, capsys):
    """Whatever is in a run's id, arguments, command line and folder is shown as printable text."""
    home = tmp_path / hostile.name / "home"
    shutil.copytree(hostile, home.parent)
    monkeypatch.setenv("STEPWISE_HOME", str(home))
    monkeypatch.delenv("STEPWISE_QUIET")
    monkeypatch.setenv("COLUMNS", columns)
    arguments = [part.replace("RUN", f"run{HOSTILE}") for part in ALL[command].split()]
    monkeypatch.setattr(sys, "argv", ["stepwise", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit):
        cli.run()
    shown = "".join(capsys.readouterr())
    assert shown
    assert not {each for each in shown if not each.isprintable() and each not in "\n\t"}


def test_nothing_that_a_terminal_obeys_in_a_notice(told):
    """A notice or a warning of the library shows what was recorded as printable text."""
    messages.notice(f"run {HOSTILE}")
    shown = told()
    assert shown.startswith("stepwise: run \\x1b]0;owned\\x07\\x1b[32mcompleted\\u202e[red]\\x9b")
    with pytest.warns(stepwise.RunWarning) as warned:
        messages.warn(HOSTILE, stepwise.RunWarning)
    assert str(warned[0].message).isprintable()


# -- files ---------------------------------------------------------------------------------------


def export(known, *options):
    return CliRunner().invoke(cli.main, ["export", known.id, *map(str, options)])


@pytest.mark.parametrize("form", ["json", "html"])
@pytest.mark.parametrize("before", [None, 0o644, 0o600])
def test_an_exported_file_is_private(form, before, tmp_path, known):
    """What is exported can be read by its owner only, also where another file was before."""
    path = tmp_path / "page"
    if before is not None:
        path.write_text("x" * 1_000_000)
        path.chmod(before)
    umask = os.umask(0)
    try:
        result = export(known, "--format", form, "-o", path)
    finally:
        os.umask(umask)
    assert result.exit_code == 0, result.output
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == export(known, "--format", form).stdout


def test_an_export_that_cannot_be_written(tmp_path, known):
    """The file that cannot be written is named, with the reason; a pipe stays what it is."""
    missing = tmp_path / "missing" / "page"
    result = export(known, "-o", missing)
    assert result.exit_code == 1
    assert str(missing) in result.output
    assert "No such file" in result.output
    before = os.stat(os.devnull).st_mode
    assert export(known, "-o", os.devnull).exit_code == 0
    assert os.stat(os.devnull).st_mode == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("prepared", ["link", "file"])
def test_an_export_into_a_prepared_file(prepared, tmp_path, known):
    """An export is not written through another user's link, nor into another user's file."""
    mine, there = tmp_path / "mine", tmp_path / "page"
    mine.write_text("precious")
    if prepared == "link":
        there.symlink_to(mine)
    else:
        there.write_text("precious")
    os.chown(there, 54321, -1, follow_symlinks=False)
    result = export(known, "-o", there)
    assert result.exit_code == 1
    assert str(there) in result.output
    assert there.read_text() == "precious"


def test_every_file_is_private(home):
    """All that a run and the command line leave is readable by its owner only."""
    umask = os.umask(0)
    try:
        long(300)
        (known,) = stepwise.runs()
        for command in ("runs", "show", "verify", "doctor", "watch", "fork"):
            run(command, known.id)
    finally:
        os.umask(umask)
    found = [home, *home.rglob("*")]
    assert [path for path in found if path.stat().st_mode & 0o077] == []


# -- commands to paste ---------------------------------------------------------------------------

CRASHING = """
import os, sys
from stepwise import tool, workflow

@tool(side_effect=True)
def pay(cents):
    os._exit(9)

@workflow
def agent(cents):
    return pay(cents)

agent.options(run_id=sys.argv[1])(7)
"""


def test_a_printed_command_holds_the_run_id_as_one_word(tmp_path, monkeypatch):
    """A command that is printed for a run can be pasted, whatever is in the run's id."""
    (tmp_path / "agent.py").write_text(CRASHING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPWISE_QUIET", raising=False)
    odd = "x; touch pwn"
    told = [python("agent.py", odd), python("agent.py", odd)]  # the second one is in doubt
    told += [python("stepwise", name, odd) for name in ("show", "export", "watch", "resume")]
    told.append(python("stepwise", "fork", odd, "--at", "0", "--id", f"{odd}2"))
    (tmp_path / "agent.py").unlink()
    told.append(python("stepwise", "resume", odd))
    text = html.unescape("".join(each.stdout + each.stderr for each in told))
    commands = re.findall(r"(?:stepwise (?:resolve|resume|forget|show|watch) |RESUME=).*", text)
    assert len(commands) >= 6
    for command in commands:
        words = shlex.split(command.partition("RESUME=")[2] or command)
        assert {odd, f"{odd}2"} & {*words}, command
