"""Memory, space and open files that run out: reported as that; nothing is lost or done twice."""

import errno
import os
import sqlite3
import warnings
from types import SimpleNamespace

import pytest
from harness import python

import stepwise
from stepwise import StepInDoubtError, StoreError, step, tool, workflow
from stepwise._identity.identity import digest_part
from stepwise._runtime import system_limits
from stepwise.stores import _files


class Large:
    """A value that takes memory when it is pickled, loaded or digested, while there is little."""

    little = frozenset()

    def __init__(self, size=0):
        self.size = size

    def __reduce_ex__(self, protocol):
        if "dump" in self.little:
            raise MemoryError
        return Large._loaded, (self.size,)

    @classmethod
    def _loaded(cls, size):
        if "load" in cls.little:
            raise MemoryError
        return cls(size)


class TooLarge(Exception):
    def __reduce__(self):
        if "dump" in Large.little:
            raise MemoryError
        return TooLarge, self.args


@pytest.fixture
def little(monkeypatch):
    """Of what there is too little memory."""
    made = set()
    monkeypatch.setattr(Large, "little", made)
    return made


LIMITED = """
import os, resource, sys
from stepwise import tool, workflow

@tool(side_effect=True)
def pay(euros):
    with open(sys.argv[1], "a") as file:
        file.write("paid\\n")
    return "x" * 60_000_000

@workflow
def agent():
    try:
        return len(pay(1))
    except Exception:
        return len(pay(1))  # an agent that tries again whatever was wrong

size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_AS, (size + 90_000_000, resource.RLIM_INFINITY))
try:
    print(agent())
except BaseException as error:
    print(type(error).__name__, str(error).splitlines()[0])
"""


def test_a_limit_on_memory(tmp_path):
    """Where the result of a side effect cannot be recorded, the run stops and says: no memory."""
    script, paid = tmp_path / "agent.py", tmp_path / "paid"
    script.write_text(LIMITED)

    def said(*arguments):
        return python(script, paid, *arguments).stdout

    assert said("limited").startswith("StoreError memory ran out while the value returned by 'pay'")
    assert said().startswith("StepInDoubtError pay was started and never finished")
    assert paid.read_text() == "paid\n"


@pytest.mark.parametrize("codec", ["pickle", "changed"])
def test_a_side_effect_that_cannot_be_recorded(little, codec):
    """The run stops, past an agent that catches every exception; then the effect is in doubt."""
    done = []

    @tool(side_effect=True)
    def pay(basket):
        done.append("paid")
        if codec == "changed":
            basket.append(Large())
        return Large()

    @workflow
    def agent():
        basket = []
        try:
            pay(basket)
        except Exception:
            pay(basket)

    little.add("dump")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stepwise.StepwiseWarning)
        with pytest.raises(StoreError, match=r"memory ran out while .*is in doubt then") as caught:
            agent()
    assert caught.value.errno == errno.ENOMEM
    little.clear()
    with pytest.raises(StepInDoubtError, match="started and never finished"):
        agent()
    assert done == ["paid"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_that_cannot_be_recorded_runs_again(little, fails):
    """An outcome that memory was too small for is no failure of the step, nor a summary of one."""
    done = []

    @step(retries=0 if fails else 3)
    def load():
        done.append("loaded")
        if fails:
            raise TooLarge("much")
        return Large(5)

    @workflow
    def agent():
        try:
            return load().size
        except TooLarge:
            return 5

    little.add("dump")
    told = "the TooLarge that was raised" if fails else "what 'load' returned and changed"
    with pytest.raises(StoreError, match=f"memory ran out while {told}"):
        agent()
    assert done == ["loaded"]
    little.clear()
    assert agent() == 5
    assert done == ["loaded"] * 2


@pytest.mark.parametrize("decorate", [step, tool(side_effect=True)])
def test_a_recorded_result_that_cannot_be_loaded(little, decorate):
    """What happened is not repeated, nor in doubt, since memory does not suffice to load it."""
    done = []

    @decorate
    def load():
        done.append("loaded")
        return Large(5)

    @step
    def fail():
        if len(done) < 2:
            done.append("failed")
            raise KeyError

    @workflow(checkpoint_every=100)
    def agent():
        try:
            large = load()
        except Exception:
            return "another way"
        fail()
        return large.size

    with pytest.raises(KeyError):
        agent()
    little.add("load")
    with pytest.raises(StoreError, match=r"memory ran out while .* loaded"):
        agent()
    little.clear()
    assert agent() == 5
    assert done == ["loaded", "failed"]


def test_variables_that_cannot_be_loaded(little):
    """The newest checkpoint is not given up since there is too little memory to load it."""
    done = []

    @step
    def note(what):
        done.append(what)
        if what == "b" and done.count("b") == 1:
            raise KeyError

    @workflow(checkpoint_every=1)
    def agent():
        kept = Large(5)
        done.append("made")
        note("a")
        note("b")
        return kept.size

    with pytest.raises(KeyError):
        agent()
    little.add("load")
    with pytest.raises(StoreError, match=r"memory ran out while the variables at .* were loaded"):
        agent()
    little.clear()
    assert agent() == 5
    assert done == ["made", "a", "b", "b"]


def test_a_checkpoint_that_cannot_be_taken(little):
    """A checkpoint is left out, and the next one taken; no variable gets the blame."""

    @step
    def note(what):
        if what == "b":
            little.clear()

    @workflow(checkpoint_every=1)
    def agent():
        kept = Large(5)
        note("a")
        note("b")
        note("c")
        return kept.size

    little.add("dump")
    with pytest.warns(stepwise.RunWarning, match="no checkpoint .*memory ran out") as warned:
        assert agent() == 5
    assert len(warned) == 1
    assert stepwise.runs()[0].checkpoints


def test_a_result_of_a_run_that_cannot_be_recorded(little):
    """The run is complete, and its journal makes the result again."""

    @workflow
    def agent():
        return Large(5)

    little.add("dump")
    with pytest.warns(stepwise.RunWarning, match="memory ran out while the result of 'agent'"):
        assert agent().size == 5
    little.clear()
    assert stepwise.runs()[0].status == "completed"
    assert agent().size == 5


def test_data_that_cannot_be_recorded(monkeypatch):
    """With codec="json", too, it is memory that ran out, and not a value that is no data."""
    from stepwise._values import data

    @step
    def load():
        return [1]

    @workflow(codec="json")
    def agent():
        return load()

    def none(*_):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(data, "_to_json", none)
        with pytest.raises(StoreError, match="memory ran out while the value returned by 'load'"):
            agent()
    assert agent() == [1]


def test_no_part_is_told_by_its_class(little):
    """An object that memory does not suffice to digest does not count by its class alone."""

    class Client:
        def __init__(self):
            self.large = Large(1)

        def __getstate__(self):
            raise MemoryError

    with pytest.raises(MemoryError):
        digest_part([Client()])


def test_a_store_without_memory(monkeypatch):
    """SQLite that finds no memory is an error of the store with its code, which stops the run."""
    from stepwise.stores._rows import Rows

    @step
    def load():
        return 1

    @workflow
    def agent():
        with monkeypatch.context() as patched:
            patched.setattr(Rows, "__enter__", none)
            try:
                load()
            except Exception:
                return "another way"

    def none(*_, **__):
        raise MemoryError

    with pytest.raises(StoreError, match="memory ran out while the store was used") as caught:
        agent()
    assert caught.value.errno == errno.ENOMEM


# -- files ---------------------------------------------------------------------------------------

FILES = """
import os, resource, sys
from stepwise import step, workflow

@step
def load(number):
    if number == 3 and len(sys.argv) > 1:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), hard))
    return str(number) * 100_000

@workflow(checkpoint_every=100)
def agent():
    return sum(len(load(number)) for number in range(10))

try:
    print(agent())
except BaseException as error:
    print(type(error).__name__, error.errno, error)
"""


@pytest.mark.parametrize("limit", [4096, 400_000])
def test_a_limit_on_the_size_of_files(limit, tmp_path, monkeypatch):
    """``ulimit -f`` is told as that, not as a bad disk; without it the run continues."""
    monkeypatch.setenv("STEPWISE_STORE", f"disk:{tmp_path}/store")
    script = tmp_path / "agent.py"
    script.write_text(FILES)

    def said(*arguments):
        return python(script, *arguments).stdout

    text = said(limit)
    assert text.startswith(f"StoreError {errno.EFBIG} the store {tmp_path}/store")
    assert f"file too large: a limit on file sizes (ulimit -f, {limit:,} bytes) (EFBIG)" in text
    assert "Nothing recorded is lost; raise that limit (ulimit -f unlimited) and run again" in text
    assert said() == "1000000\n"


@pytest.mark.parametrize(
    ("code", "sqlite", "way"),
    [
        (errno.EMFILE, 14, "raise the limit on open files"),
        (errno.ENFILE, 14, "end programs that hold files open"),
        (errno.EDQUOT, None, "have the quota raised"),
        (errno.ENOSPC, 10, "free some space"),
        (errno.ENOSPC, 13, "free some space"),
        (errno.EIO, 10, "remove the cause"),
        (errno.EACCES, 14, "correct its permissions"),
    ],
)
def test_what_ran_out(code, sqlite, way, tmp_path, monkeypatch):
    """What SQLite tells as a bad disk or a missing right is looked into: what ran out is named."""
    if sqlite is None:
        error = OSError(code, os.strerror(code), str(tmp_path))
    else:
        error = sqlite3.OperationalError("disk I/O error" if sqlite == 10 else "unable to open")
        error.sqlite_errorcode = sqlite

    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        if code in (errno.EMFILE, errno.ENFILE):
            patched.setattr(os, "open", refused)
        if code == errno.ENOSPC:
            patched.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0))
        told = _files.store_error(str(tmp_path), error)
    assert told.errno == code
    assert errno.errorcode[code] in str(told)
    assert way in str(told).lower()


def test_no_open_files_left(home):
    """A lock or key file that cannot be opened since too many files are open says so."""
    error, path = OSError(errno.EMFILE, "Too many open files"), str(home / "file")
    for told in (
        _files._lock_failed(path, error),
        system_limits.unusable("key file", path, error, "a way"),
    ):
        assert "too many open files: a limit of the process (ulimit -n)" in str(told)
        assert "another folder" not in str(told)
        assert "STEPWISE_HOME" not in str(told)


def test_a_limit_on_open_files(tmp_path):
    """A program without a file left gets an error that says so, and goes on when it has some."""
    script = tmp_path / "agent.py"
    script.write_text(OPEN_FILES)
    text, result = python(script, tmp_path / "store").stdout.splitlines()
    assert text.startswith(f"StoreError {errno.EMFILE} ")
    assert "ulimit -n" in text
    assert result == "1"


OPEN_FILES = """
import os, resource, sys
from stepwise import step, workflow

@step
def one():
    return 1

@workflow
def agent():
    return one()

agent()  # so that all modules are loaded
held = []
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
other = agent.options(store=f"disk:{sys.argv[1]}")
try:
    other()
except BaseException as error:
    text = f"{type(error).__name__} {error.errno} {error}"
for each in held:
    os.close(each)
print(text)
print(other())
"""
