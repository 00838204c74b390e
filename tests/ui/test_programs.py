"""``resume`` starts the recorded program, and shows what it prints."""

import os
import pathlib
import subprocess

import pytest
from command import COMMAND

import stepwise
from stepwise._journal.lease import Lease, supervisor_name
from stepwise.errors import ConfigurationError
from stepwise.ui import _actions


def ended(page, run):
    """What the program of a run printed, once it has ended."""
    program = page.app._actions.programs._started[run.id]
    program.process.wait()
    program.watcher.join()
    return page.app._actions.programs.output(run.id)


def test_resume_starts_the_program(page, killed):
    """A crashed run is continued by its own program, whose output its page shows, escaped."""
    run = killed("3")
    assert page.post(f"/runs/{run.id}/resume") == f"/runs/{run.id}"
    output = ended(page, run)
    assert output.exit_code == 0
    assert output.pid != os.getpid()
    assert "the program begins" in output.text
    assert (run.status, run.result) == ("completed", "sent tides")
    text = page.get(f"/runs/{run.id}")
    assert "the program begins" in text
    assert "about tides &lt;b&gt;" not in text  # resumed behind that statement
    assert "nothing to resume" in page.post(f"/runs/{run.id}/resume", 409)


def test_a_cancelled_run_is_resumed(page, killed):
    """A cancelled run continues for whoever asks for it on its page, as by the command line."""
    run = killed("3")
    run.cancel("called off")
    page.post(f"/runs/{run.id}/resume")
    assert ended(page, run).exit_code != 0
    assert run.status == "cancelled"
    assert f'action="/runs/{run.id}/resume"' in page.get(f"/runs/{run.id}")
    page.post(f"/runs/{run.id}/resume")
    assert ended(page, run).exit_code == 0
    assert (run.status, run.result) == ("completed", "sent tides")


def test_the_whole_of_a_long_output_is_not_kept(page, killed, monkeypatch):
    """Of a long output only the end is kept, in the file and on the page."""
    monkeypatch.setattr(_actions, "_MOST", 1000)
    monkeypatch.setattr(_actions, "_TAIL", 100)
    monkeypatch.setenv("NOISE", "100000")
    run = killed("3")
    page.post(f"/runs/{run.id}/resume")
    assert len(ended(page, run).text) <= 100


def test_a_program_is_started_once(page, killed, tmp_path, monkeypatch):
    """A program that was started and has not reached its run yet is not started twice."""
    run = killed("3")
    os.mkfifo(tmp_path / "go")
    monkeypatch.setenv("WAIT", str(tmp_path / "go"))
    page.post(f"/runs/{run.id}/resume")
    assert "was started from this page already" in page.post(f"/runs/{run.id}/resume", 409)
    assert stepwise.get_run(run.id).status == "crashed"
    (tmp_path / "go").write_text("")  # waits for the reader
    assert ended(page, run).exit_code == 0
    assert run.status == "completed"


def test_a_run_in_progress_is_not_started(page, killed):
    """A run that a process executes is not started again; the page names the process."""
    run = killed("3")
    lease = Lease(run.store, run.id).acquire()
    assert str(os.getpid()) in page.post(f"/runs/{run.id}/resume", 409).replace(
        "this process", str(os.getpid())
    )
    lease.release()


def test_a_run_of_a_supervisor_is_left_to_it(page, killed):
    """A crashed run whose workflow ``stepwise up`` serves is left to it, and the page says so."""
    run = killed("3")
    lease = Lease(run.store, supervisor_name(run.workflow)).acquire()
    assert "stepwise up" in page.post(f"/runs/{run.id}/resume", 409)
    lease.release()
    assert run.status == "crashed"


def test_a_supervisor_is_known_while_it_lives(page, tmp_path, program):
    """The page knows the ``stepwise up`` of a workflow from its first look until it is killed."""
    (tmp_path / "jobs.py").write_text(program)
    store = page.app.reader.store
    environment = {**os.environ, "STEPWISE_QUIET": "", "STEPWISE_STORE": store.url}
    with subprocess.Popen(
        [COMMAND, "up", "jobs"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as up:
        assert "0 runs to continue" in up.stderr.readline()
        name = supervisor_name("jobs:agent")
        assert store.owner(name).pid == up.pid
        assert str(up.pid) in page.app.reader.supervisor("jobs:agent")
        up.kill()
        up.wait()
        assert store.owner(name) is None


def test_a_program_that_cannot_be_started(page, killed, tmp_path):
    """A program that is gone cannot be started; the page says why, and what to do."""
    run = killed("3")
    os.unlink(tmp_path / "agent.py")
    assert "agent.py is gone" in page.post(f"/runs/{run.id}/resume", 409)
    before = stepwise.runs()
    assert "agent.py is gone" in page.post(f"/runs/{run.id}/fork", 409, start="1")
    assert stepwise.runs() == before  # a form that is sent again would make a second fork


def test_a_command_that_the_system_refuses(page, killed, monkeypatch):
    """A command line that the system does not start is a page that says why."""
    run = killed("3")
    refused = str(pathlib.Path(__file__)), "--x"
    monkeypatch.setattr(_actions.starting, "start_command", lambda _: (refused, ""))
    assert "Permission denied" in page.post(f"/runs/{run.id}/resume", 409)
    assert page.app._actions.programs.output(run.id) is None


def test_records_that_are_not_trusted_start_nothing(page, killed, monkeypatch):
    """With ``trust="data"`` no recorded command line is started."""
    run = killed("3")
    monkeypatch.setenv("STEPWISE_TRUST", "data")
    assert "starts no command line" in page.post(f"/runs/{run.id}/resume", 409)


def test_a_fork_is_started(page, killed):
    """A fork can be started where it is made, by the program of its run."""
    run = killed("3")
    page.post(f"/runs/{run.id}/fork", id="other", start="1")
    fork = stepwise.get_run("other")
    assert ended(page, fork).exit_code == 0
    assert fork.status == "completed"
    assert run.status == "crashed"


def test_marked_runs_are_resumed(page, killed):
    """Marked runs are resumed, each by its program; what cannot be is named, and the rest is."""
    runs = [killed("3", topic) for topic in ("tides", "winds")]
    ids = [runs[0].id, "nobody", runs[1].id]
    assert "nobody" in page.post("/marked", 409, action="resume", id=ids)
    for run in runs:
        ended(page, run)
    assert [each.result for each in runs] == ["sent tides", "sent winds"]


def test_programs_are_forgotten_when_they_are_many(page, killed, monkeypatch):
    """The output of the oldest programs that have ended is forgotten."""
    monkeypatch.setattr(_actions, "_PROGRAMS", 1)
    first, second = killed("3", "tides"), killed("3", "winds")
    page.post(f"/runs/{first.id}/resume")
    ended(page, first)
    page.post(f"/runs/{second.id}/resume")
    ended(page, second)
    assert page.app._actions.programs.output(first.id) is None


def test_a_supervisor_says_which_workflows_it_serves(killed, page):
    """A name of a supervisor is none that a run may have."""
    with pytest.raises(ConfigurationError, match="up:"):
        stepwise.workflow(run_id="up:jobs:agent")(lambda: None)
