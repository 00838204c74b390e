"""What every test gets: a home of its own, and a library that remembers nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading

import hypothesis
import pytest

import stepwise.stores
from stepwise._execution import frames, process_memory
from stepwise._execution.active_run import live_runs
from stepwise._runtime import settings
from stepwise.stores import _files, _rows
from stepwise.stores.disk import DiskStore

sys.path.insert(0, str(pathlib.Path(__file__).parent / "programs"))

from harness import talking
from store_tools import ME
from sweeping import SEED, WHOLE


def memory_for_files():
    """The folder in memory, if there is one with room: a flush costs nothing there."""
    folder = pathlib.Path("/dev/shm")
    roomy = folder.is_dir() and shutil.disk_usage(folder).free > 4 << 30
    return folder if roomy and os.access(folder, os.W_OK) else pathlib.Path(tempfile.gettempdir())


# Where pytest makes the folders of tests; the sweeps on demand are on a disk, as users are.
if not WHOLE:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory_for_files()))

# Programs that are killed must have written what they printed, whatever the environment says.
os.environ["PYTHONUNBUFFERED"] = "1"
# IPython warns where another virtual environment than its own is activated.
os.environ.pop("VIRTUAL_ENV", None)

# What an example takes says more of the machine than of the code; our fixtures may be shared.
hypothesis.settings.register_profile(
    "stepwise",
    deadline=None,
    derandomize=not WHOLE,  # CI looks at the same examples each time, test-all at new ones
    max_examples=100 if WHOLE else 50,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.load_profile("stepwise")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in the background, as in CI
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no program hears a Ctrl-C

# What "make test-fast" leaves out: sweeps, kernels, builds, browsers, programs that are killed.
SLOW = {
    *("browser", "crash", "docs", "frameworks", "notebook", "integrations", "postgres", "cluster"),
    *("test_rewrite_cpython.py", "test_store_processes.py", "test_plugin.py", "test_typing.py"),
    *("test_runs_together.py", "test_map_executors.py", "test_workflow_names.py"),
    *("test_elsewhere.py", "test_resume_loops.py", "test_stored_once.py"),
    *("test_reports.py", "test_reloading.py", "test_cli_steer.py", "test_long_runs.py"),
    *("test_which_call.py", "test_variables.py", "test_starts.py"),
    *("test_resume_clients.py", "test_testing.py", "test_statements.py"),
    *("test_log_protocol.py", "test_logged_store.py", "test_following.py", "test_ai_sdk.py"),
    "test_instructions.py",
}
SLOW_TESTS = {
    *("test_a_step_in_a_worker_process_is_not_recorded", "test_random_programs"),
    *("test_other_pythons", "test_other_processes", "test_many_steps", "test_broken_pipe"),
    *("test_what_a_script_defines", "test_a_table_fits", "test_suggested_names"),
    *("test_the_storm_sees_what_is_repeated", "test_the_race_sees_a_second_owner"),
    *("test_a_copy_that_is_killed_at_any_write_is_continued", "test_no_run_is_in_memory_at_once"),
    *("test_garbage_is_collected_once_for_each_live_instance", "test_terminal"),
}
SLOW_FIXTURES = {"start", "fork", "tally", "library", "browse", "picture"}
SECONDS = 900 if WHOLE else 300  # for a script of a test, at most: it is ended, were it to hang


def pytest_addoption(parser):
    parser.addoption("--sweeps", action="store_true", help="only the tests that tell totals")
    parser.addoption(
        "--fast", action="store_true", help="without what takes long: processes, sweeps"
    )


def pytest_configure(config):
    if config.getoption("--fast"):
        hypothesis.settings.register_profile(
            "fast", hypothesis.settings.get_profile("stepwise"), max_examples=15
        )
        hypothesis.settings.load_profile("fast")


def pytest_ignore_collect(collection_path, config):
    if config.getoption("--fast"):
        return collection_path.name in SLOW or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """What is collected stays: a look for garbage at every so many objects finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session):
    """A look for garbage, or for who holds what, is at what the test made, not at the suite."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    # Last: its trees leave holes in memory, 120 MB that each fork of a later test would copy.
    items.sort(key=lambda item: item.path.name == "test_layers.py")
    if config.getoption("--sweeps"):
        items[:] = [item for item in items if "tally" in getattr(item, "fixturenames", ())]
    if config.getoption("--fast"):
        items[:] = [
            item
            for item in items
            if getattr(item, "originalname", "") not in SLOW_TESTS
            and SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        ]


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """No later test looks through what the modules before it have imported and left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def home():
    """``$STEPWISE_HOME``: our plugin gives each test its own; and no other setting is in force."""
    folder = pathlib.Path(os.environ["STEPWISE_HOME"])
    opened: dict[str, stepwise.stores.Store] = {}
    # Not the fixture ``monkeypatch``: a test that undoes its changes would undo these.
    with pytest.MonkeyPatch.context() as patch:
        recorded = ("RECORD_ARGUMENTS", "RECORD_LOCALS")
        names = ("STORE", "KEY", "START", "FRESH", "PROGRESS", "TRUST", "ALLOW_NETWORK", *recorded)
        for name in names:
            patch.delenv(f"STEPWISE_{name}", raising=False)
        # readline sets the first for all that pytest starts; of the others, programs are told by
        # stepwise that there is no such setting.
        for name in ("COLUMNS", "LINES", "STEPWISE_WHOLE", "STEPWISE_SCALE", "STEPWISE_SEED"):
            patch.delenv(name, raising=False)
        patch.setenv("STEPWISE_QUIET", "1")
        patch.setattr(settings, "_settings", settings._Settings())
        patch.setattr(frames, "_SECONDS", 60.0)  # a busy machine shows as many variables
        vars(process_memory.memory).update(
            vars(process_memory.ProcessMemory())
        )  # other modules hold the object itself
        patch.setattr(stepwise.stores, "_open", opened)
        yield folder
        for run in list(live_runs):  # of a crash that was played: no other test is to see it
            run.close()
        for store in opened.values():
            store.close()
        # Of stores that a test opened itself: a process has a limit of open files.
        for lock in list(_files._lock_files.values()):
            lock.close()
        while _rows._abandoned:
            connection = _rows._abandoned.pop()
            if connection is not None:
                connection.close()


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A folder in which kernels execute the cells of a notebook, one kernel after the other."""
    from kernels import Notebook

    monkeypatch.delenv("STEPWISE_QUIET")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "folder"
    folder.mkdir()
    made = Notebook(folder)
    yield made
    made.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder with what another version of Python needs to run this library."""
    from pythons import copy_library

    return copy_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def told(capsys, monkeypatch):
    """What was told on stderr since the last time."""
    monkeypatch.delenv("STEPWISE_QUIET")
    return lambda: capsys.readouterr().err


@pytest.fixture
def tally(record_property):
    """Tell what came of a sweep; ``tests/sweeps.py`` adds it up: ``tally(sweep, trials, ...)``."""

    def told(sweep, trials, **results):
        record_property("sweep", {"sweep": sweep, "trials": trials, "results": results})
        print(f"{sweep}: {trials} trials, {results}, STEPWISE_SEED={SEED}")

    return told


class Script:
    """A Python program in a process of its own, with whom to talk line by line."""

    def __init__(self, path, *arguments, forked):
        self.process = talking(path, *arguments, forked=forked)
        self.pid = self.process.pid
        self._watchdog = threading.Timer(SECONDS, self._end_all)
        self._watchdog.start()

    def hear(self):
        """The next line that it prints; empty at its end."""
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, line=""):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self):
        """``kill -9``, and wait until it is dead."""
        self.process.kill()
        self.process.wait()

    def finish(self):
        """Wait for its end, which must be a good one; the rest of what it printed."""
        self.process.stdin.close()
        text = self.process.stdout.read()
        assert self.process.wait() == 0, text
        return text.strip()

    def _end_all(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its children too

    def close(self):
        self._watchdog.cancel()
        self._end_all()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path):
    """Start a program: ``start(source, *arguments) -> Script``; all are ended after the test.

    A source that is a path is the program of another one, started again.
    """
    yield from starting(tmp_path, forked=False)


@pytest.fixture
def fork(tmp_path):
    """The same in a fork of a host: at once, but its end is not that of an interpreter."""
    yield from starting(tmp_path, forked=True)


def starting(folder, *, forked):
    scripts = []

    def start_script(source, *arguments):
        path = source
        if isinstance(source, str):
            path = folder / f"script{len(scripts)}.py"
            path.write_text(source, encoding="utf-8")
        scripts.append(Script(path, *arguments, forked=forked))
        return scripts[-1]

    yield start_script
    for script in scripts:
        script.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(folder):
    store = DiskStore(folder)
    yield store
    store.close()


@pytest.fixture
def begun(store):
    """A store and the epoch of a run in it."""
    return store, store.acquire("run", ME)
