"""A store that cannot be written, on a read-only disk or of another user, is shown all the same."""

import contextlib
import errno
import importlib
import multiprocessing
import os
import pathlib
import subprocess
import tempfile

import pytest
from browsing import Browser
from click.testing import CliRunner

import stepwise
from stepwise import cli, step, stores, tool, workflow
from stepwise.ui._access import LOOPBACK, Access
from stepwise.ui._app import App

NOBODY = 65534
LARGE = 1_200_000  # bytes: such a value lies in a file beside the database
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@step
def think(topic):
    if topic == "fail":
        raise ValueError(topic)
    return topic * LARGE


@tool(side_effect=True)
def send(text):
    return len(text)


@workflow
def agent(topic):
    return send(think(topic))


def run(*arguments):
    """Exit code and output of a command."""
    try:
        result = CliRunner().invoke(cli.main, arguments)
    except stepwise.StoreError as problem:  # the entry point makes a message of it
        return 1, str(problem)
    problem = result.exception if not isinstance(result.exception, SystemExit) else None
    return result.exit_code, f"{result.output}{problem or ''}"


def kept_in(path):
    """The ids of a failed and a completed run in a store there, which is closed again."""
    stepwise.configure(store=f"disk:{path}")
    agent("a")
    with pytest.raises(ValueError):
        agent("fail")
    ids = [each.id for each in stepwise.runs()]
    close()
    return ids


def elsewhere(function):
    """What a function gives in a process of its own."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            stores._open.clear()
            theirs.send((function(), ""))
        except BaseException as problem:
            theirs.send((None, f"{type(problem).__name__}: {problem}"))
        finally:
            close()
            os._exit(0)
    os.waitpid(child, 0)
    given, problem = ours.recv()
    assert problem == ""
    return given


def close():
    for store in stores._open.values():
        store.close()
    stores._open.clear()


def looks(failed, completed):
    """What every command that only looks gives, checked where it is executed."""
    code, text = run("runs")
    assert (code, "failed" in text, "completed" in text) == (0, True, True), text
    code, text = run("show", completed)
    assert (code, "2 completed" in text) == (0, True), text
    assert "ValueError" in run("show", failed)[1]
    code, text = run("verify")
    assert (code, text.count("verified")) == (0, 2), text
    code, text = run("export", completed)
    assert (code, "</html>" in text) == (0, True), text
    assert stepwise.get_run(completed).steps[0].result == "a" * LARGE
    assert run("in-doubt")[0] == 0


def looks_and_cannot_write(failed, completed):
    """The same where nothing can be written, which is said."""
    looks(failed, completed)
    code, text = run("forget", completed, "--yes")
    assert code == 1
    assert "Nothing recorded is lost" in text, text
    code, text = run("compact")
    assert (code, "given back" in text) == (1, False), text


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=False).returncode:
        pytest.skip("cannot mount")
    yield path
    close()
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_read_only_disk(disk):
    """A store on a disk that is mounted read-only is read; what would write says why it cannot."""
    ids = elsewhere(lambda: kept_in(disk / "store"))  # a lock file stays open
    stepwise.configure(store=f"disk:{disk / 'store'}")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    looks_and_cannot_write(*ids)
    with pytest.raises(stepwise.StoreError) as caught:
        agent("b")
    assert caught.value.errno == errno.EROFS


def test_a_full_disk(disk):
    """A store on a full disk is read; what would write says that there is no space."""
    ids = elsewhere(lambda: kept_in(disk / "store"))
    stepwise.configure(store=f"disk:{disk / 'store'}")
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    with open(disk / "other", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    # SQLite needs a file of 32 KB to read a log.
    os.truncate(disk / "other", os.path.getsize(disk / "other") - (1 << 17))
    looks(*ids)
    with open(disk / "other", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(stepwise.StoreError) as caught:
        agent("b")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("log", ["with a log", "without"])
def test_another_user(log, home, monkeypatch):
    """A store that one may read, and not write, is read, by ``stepwise ui --read-only``, too."""
    # Not in pytest's folder: whatever else starts pytest meanwhile closes that to other users.
    with tempfile.TemporaryDirectory() as folder:
        read_by_nobody(pathlib.Path(folder), log, monkeypatch)
        close()


def read_by_nobody(folder, log, monkeypatch):
    monkeypatch.setenv("STEPWISE_KEY", "a key that two users share")
    ids = kept_in(folder / "store")
    if log == "with a log":  # a process has it open
        stepwise.runs()
    for each in (folder, folder / "store", *(folder / "store").rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)

    importlib.import_module("getpass")  # loaded on use, and nobody may not read our Python

    def look():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        looks_and_cannot_write(*ids)
        store = stores.store_for_pages(stores.open_store(f"disk:{folder}/store"), to_read=True)
        page = Browser(App(store, Access(hosts=LOOPBACK), read_only=True)).enter()
        for run_id in ids:
            assert run_id in page.get("/")
            assert "topic=" in page.get(f"/runs/{run_id}")
        assert (store._copy is None) == (log == "with a log")  # which would be made again and again

    elsewhere(look)
