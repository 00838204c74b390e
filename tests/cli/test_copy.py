"""``stepwise copy``: what it prints, which runs it takes, its exit codes."""

import json
import os
import re
import signal

import pytest
from click.testing import CliRunner
from command import process
from harness import python

import stepwise
from stepwise import cli, step, workflow
from stepwise.stores import Owner, open_store
from stepwise.testing import SimulatedCrash, crash_at

ME = Owner(os.getpid(), os.uname().nodename, 1.5, "thread a")


@step
def think(topic):
    return f"about {topic}"


@workflow
def part(topic):
    return think(topic)


@workflow
def agent(topic):
    return part(f"half of {topic}") and think(topic)


@workflow
def other(topic):
    return think(topic)


def run(*arguments):
    return CliRunner().invoke(cli.main, ["copy", *arguments])


def copied(*arguments):
    """The outcomes by id, and the exit code."""
    result = run("--json", *arguments)
    assert isinstance(result.exception, (SystemExit, type(None))), result.output
    runs = json.loads(result.stdout)["runs"]
    return {each["id"]: each["outcome"] for each in runs}, result.exit_code


@pytest.fixture
def target(tmp_path):
    return f"disk:{tmp_path}/target"


@pytest.fixture
def ids():
    """A completed run with a child run and a tag, a crashed one of another workflow."""
    done = agent.options(tags={"customer": "ann"}).execute("tides")
    with pytest.raises(SimulatedCrash), crash_at(think, "before", call=1):
        other("winds")
    return done.id, other.run_id_for("winds")


def test_all_runs_are_copied_and_summed_up(ids, target):
    """A table has each run that is copied, the last line the sums; the second time, no table."""
    done, crashed = ids
    result = run("--to", target)
    assert result.exit_code == 0
    *table, last = result.stdout.splitlines()
    assert [line.split()[0] for line in table] == ["RUN", done, crashed]
    assert all(re.search(r"\d+ +(\d+ B|\d+\.\d kB)  copied$", line) for line in table[1:])
    assert re.fullmatch(
        r"2 runs with 1 child run, \d+ records, \d+\.\d kB copied from disk:\S+ to disk:\S+ "
        r"in \d+\.\d s",
        last,
    )
    (again,) = run("--to", target).stdout.splitlines()
    assert re.fullmatch(r"nothing copied from disk:\S+ to disk:\S+; 2 already there", again)


def test_json(ids, target):
    """As JSON, each run has its outcome, and the sums are those of the runs."""
    facts = json.loads(run("--to", target, "--json").stdout)
    assert facts["to"] == target
    assert [each["outcome"] for each in facts["runs"]] == ["copied", "copied"]
    assert [each["children"] for each in facts["runs"]] == [1, 0]
    assert facts["records"] == sum(each["records"] for each in facts["runs"]) > 5
    assert facts["size"] == sum(each["size"] for each in facts["runs"]) > 1000


def test_some_runs(ids, target):
    """Runs are chosen by the beginning of an id, by workflow, status or tag."""
    done, crashed = ids
    assert copied("--to", target, "--dry-run", done[:9]) == ({done: "copied"}, 0)
    for option, value, chosen in (
        ("--workflow", "other", crashed),
        ("--status", "interrupted", crashed),
        ("--status", "completed", done),
        ("--tag", "customer=ann", done),
    ):
        assert copied("--to", target, "--dry-run", option, value) == ({chosen: "copied"}, 0)
    assert copied("--to", target, "--workflow", "nothing") == ({}, 0)
    assert "nothing to copy" in run("--to", target, "--workflow", "nothing").stderr
    assert run("--to", target, done, "--status", "completed").exit_code == 2
    assert run(done).exit_code == 2


def test_from_another_store(ids, target, tmp_path):
    """``--from`` names the source, which ``--store`` does as well."""
    assert run("--to", target).exit_code == 0
    third = f"disk:{tmp_path}/third"
    assert copied("--from", target, "--to", third) == (dict.fromkeys(ids, "copied"), 0)
    assert copied("--store", target, "--to", third) == (dict.fromkeys(ids, "there"), 0)


def test_a_run_that_is_left_out(ids, target):
    """A run that is being executed is named on stderr, and the exit code is 1."""
    done, crashed = ids
    store = open_store(stepwise.get_run(done).store.url)
    epoch = store.acquire(done, ME)
    result = run("--to", target)
    assert result.exit_code == 1
    assert f"stepwise: run '{done}' is being executed" in result.stderr
    assert "busy" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("; 1 being executed")
    store.release(done, epoch)
    assert copied("--to", target) == ({done: "copied", crashed: "there"}, 0)


def test_what_cannot_be_copied_is_a_message(ids, target):
    """A store in memory, an unknown run and a store that there is not are messages."""
    for arguments in (("--to", "memory:"), ("--to", target, "nobody"), ("--to", "nosql://x")):
        result = run(*arguments)
        assert isinstance(result.exception, stepwise.StepwiseError), arguments


def test_a_backup_that_is_put_back(ids, target, tmp_path):
    """``--restored`` marks unfinished runs, and says nothing more."""
    run("--to", target)
    back = f"disk:{tmp_path}/back"
    assert copied("--from", target, "--to", back, "--restored") == (dict.fromkeys(ids, "copied"), 0)
    found = {each.id: each._facts().restored for each in stepwise.runs(store=back)}
    assert (found[ids[0]], found[ids[1]]) == (False, True)


def test_ctrl_c(ids, target):
    """A copy that is ended by Ctrl-C is continued by the next one."""
    program = (
        "import os, signal\n"
        "from stepwise._runs import copying\n"
        "copying._StoreEntry._finish = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "from stepwise.cli import run\n"
        "run()\n"
    )
    ended = python("-c", program, "copy", "--to", target)
    assert ended.returncode in (1, 130, -signal.SIGINT), ended.stderr
    assert "Traceback" not in ended.stderr
    assert stepwise.runs(store=target) == []
    assert process("copy", "--to", target).returncode == 0
    assert {each.id for each in stepwise.runs(store=target)} >= set(ids)
