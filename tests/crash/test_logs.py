"""Logs of processes that died, were stopped or are alive, in the hands of others."""

import errno
import os
import shutil
import signal

import pytest
from click.testing import CliRunner
from store_tools import ME, log_files, records

import stepwise
from stepwise import cli
from stepwise.stores import Batch, disk
from stepwise.testing import fresh_store

WRITER = """
import os, signal, socket, sys
from stepwise.stores import Batch, Head, Owner, _process_log, open_store

store = open_store(sys.argv[1])
_process_log._LARGEST_LOG = int(sys.argv[2])
epochs = {}


def begin(run):
    me = Owner(os.getpid(), socket.gethostname(), 1.0, "thread main")
    epochs[run] = store.acquire(run, me)
    return [number for number, _ in store.read(run)]


def write(run, *numbers):
    for number in numbers:
        data = f"{run} {number}".encode()
        head = Head(run, "flow", False, b"head") if number == 1 else None
        put = {"newest": data}
        batch = Batch(((number, data),), put, head=head, mark=data.ljust(40))
        store.write(run, epochs[run], batch)
        os.write(1, b"." if "loud" in sys.argv else b"")


def in_child(run, *numbers):
    child, code = os.fork(), 1
    if not child:
        try:
            begin(run)
            write(run, *numbers)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stop_at(name, count):
    real = getattr(os, name)

    def stopping(*args):
        nonlocal count
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*args)

    setattr(os, name, stopping)


for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def writer(fork, store):
    """Start a process that writes to the store: ``writer(largest log)``."""
    return lambda largest=1 << 20, *more: fork(WRITER, store.url, largest, *more)


def ask(script, text):
    script.tell(text)
    return script.hear()


def written(script, run, *numbers):
    """Let a script begin a run and write records."""
    ask(script, f"begin({run!r})")
    assert ask(script, f"write({run!r}, *{numbers})") == "None"


def texts(store, run):
    return [data.decode() for _, data in store.read(run)]


# -- logs that are not what they should be -------------------------------------------------------


def test_two_logs_that_changed_places(writer, store, folder):
    """In the place of another log, a log is none: the records of its runs count as lost."""
    scripts = {run: writer() for run in ("one", "two")}
    for run, script in scripts.items():
        written(script, run, 1, 2, 3, 4, 5, 6)
    for script in scripts.values():
        script.kill()
    first, second = log_files(folder)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    for run in scripts:
        for epoch in (2, 3):
            found = texts(store, run)
            assert found == [f"{run} {number}" for number in range(1, len(found) + 1)]
            assert len(found) < 6
            assert store.marks(run)[-1].startswith(f"{run} 6 ".encode())
            assert store.acquire(run, ME) == epoch
            store.release(run, epoch)


def test_an_older_log(writer, store, folder):
    """An older state of a log lacks records; once the newer one was taken in, it says nothing."""
    script = writer()
    written(script, "run", 1, 2, 3, 4)
    (log,) = log_files(folder)
    older = log.read_bytes()
    assert ask(script, "write('run', 5, 6)") == "None"
    script.kill()
    newer = log.read_bytes()
    log.write_bytes(older)
    assert texts(store, "run") == [f"run {number}" for number in range(1, 5)]
    assert store.marks("run")[-1].startswith(b"run 6 ")
    log.write_bytes(newer)
    epoch = store.acquire("run", ME)
    for content in (older, newer):
        log.write_bytes(content)
        assert texts(store, "run") == [f"run {number}" for number in range(1, 7)]
    store.release("run", epoch)


def test_a_forgotten_run_does_not_come_back(writer, store, folder):
    """A copy of the log of a run that was deleted brings nothing back."""
    script = writer()
    written(script, "run", 1, 2, 3, 4, 5, 6)
    script.kill()
    (log,) = log_files(folder)
    shutil.copy(log, folder.parent / "copy")
    epoch = store.acquire("run", ME)
    store.delete("run", epoch)
    for _ in range(2):
        shutil.copy(folder.parent / "copy", log)
        assert (list(store.read("run")), store.names("run")) == ([], [])
        assert (store.head("run"), store.marks("run")) == (None, [])
        store.release("run", epoch)
        epoch = store.acquire("run", ME)
    written(writer(), "other", 1, 2, 3)  # a process that looks for logs of dead ones
    assert list(store.read("run")) == []


@pytest.mark.parametrize(("what", "count"), [("log", 5), ("folder", 2)])
def test_a_log_that_somebody_deletes(begun, folder, what, count):
    """An owner whose log, or its folder, was deleted writes all to the database, and goes on.

    The folder may vanish before the first frame is on the disk.
    """
    store, epoch = begun
    for number in range(1, count + 1):
        store.write("run", epoch, records(number))
    if what == "log":
        (log,) = log_files(folder)
        log.unlink()
    else:
        shutil.rmtree(store._logs._folder)
    store.write("run", epoch, records(count + 1, count + 2))
    other = type(store)(folder)
    assert [number for number, _ in other.read("run")] == [*range(1, count + 3)]
    other.close()


def test_a_forked_child_writes_a_log_of_its_own(writer, store, folder):
    """A child that executes runs leaves the frames of its parent alone, and the reverse."""
    script = writer()
    written(script, "run", 1, 2, 3, 4)
    assert ask(script, "in_child('child', 1, 2, 3, 4)") == "0"
    assert ask(script, "write('run', 5, 6)") == "None"
    assert len(log_files(folder)) == 2
    for _ in range(2):
        assert texts(store, "run") == [f"run {number}" for number in range(1, 7)]
        assert texts(store, "child") == [f"child {number}" for number in range(1, 5)]
        script.kill()


# -- owners that were stopped --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "count", "lost"),
    [
        ("pwrite", 1, "leases"),
        ("pwrite", 1, "all locks"),
        ("fdatasync", 1, "leases"),
        ("fstat", 2, "all locks"),
    ],
)
def test_an_owner_that_wakes_up_too_late(start, store, folder, operation, count, lost):
    """Stopped in a write while its run is taken over, an owner is refused, and writes nothing."""
    script = start(WRITER, store.url, 1 << 20)  # a child of ours, so that we hear when it stops
    written(script, "run", 1, 2, 3, 4, 5)
    ask(script, f"stop_at({operation!r}, {count})")
    script.tell("write('run', 6)")
    os.waitid(os.P_PID, script.pid, os.WSTOPPED | os.WNOWAIT)
    (folder / "leases").unlink()
    if lost == "all locks":
        (log_files(folder)[0].parent / "locks").unlink()
    assert store.acquire("run", ME) == 2
    found = texts(store, "run")
    assert found[:5] == [f"run {number}" for number in range(1, 6)]
    store.write("run", 2, Batch(((len(found) + 1, b"new"),), mark=b"new" * 10))
    os.kill(script.pid, signal.SIGCONT)
    assert script.hear() == "LeaseLostError"
    assert texts(store, "run") == [*found, "new"]
    assert store.marks("run")[-1].startswith(b"new")
    assert ask(script, "begin('own')") == "[]"  # its other runs go on
    assert ask(script, "write('own', 1, 2, 3, 4)") == "None"
    assert texts(store, "own") == [f"own {number}" for number in range(1, 5)]


# -- many ----------------------------------------------------------------------------------------


def test_many_processes_on_one_store(writer, store):
    """While others write to the store, killed processes lose nothing that was acknowledged."""
    scripts = [writer(4096, "loud") for _ in range(6)]
    for number, script in enumerate(scripts):
        ask(script, f"begin('run {number}')")
        script.tell(f"write('run {number}', *range(1, 41))")
    acknowledged = []
    for script in scripts[:3]:
        acknowledged.append(len(script.process.stdout.read(20)))
        script.kill()
        acknowledged[-1] += script.process.stdout.read().count(".")
    for number, script in enumerate(scripts[3:]):
        assert script.hear() == "." * 40 + "None"
        found = [*map(int, ask(script, f"begin('run {number}')").strip("[]").split(", "))]
        assert found == [*range(1, len(found) + 1)]
        assert len(found) >= acknowledged[number]
        assert len(texts(store, f"run {number + 3}")) == 40


def test_many_runs_of_a_killed_process(writer, store):
    """Several processes at once take over the runs that a killed one had in its log."""
    dead = writer()
    for number in range(32):
        written(dead, f"run {number}", *range(1, 6))
    dead.kill()
    scripts = [writer() for _ in range(4)]
    for number, script in enumerate(scripts):
        mine = [f"run {each}" for each in range(32)[number::4]]
        script.tell(f"[[begin(each), write(each, 6, 7, 8)][0] for each in {mine}]")
    for script in scripts:
        assert script.hear() == str([[1, 2, 3, 4, 5]] * 8)
    for number in range(32):
        assert len(texts(store, f"run {number}")) == 8


# -- what others do with such runs ---------------------------------------------------------------

AGENT = """
import os, sys
import stepwise
from stepwise import step, tool, workflow

stepwise.configure(store=sys.argv[1])


@step
def think(n):
    if n == 5 and sys.argv[2] == "waits":
        print("here")
        sys.stdin.readline()
    return f"secret thought {n}"


@tool(side_effect=True)
def send(n):
    return n


@workflow(prune_journal="prune" in sys.argv)
def agent():
    found = []
    for n in range(7):
        found.append(think(n))
        send(n)
    return found


print(agent.options(run_id="job")())
"""
RESULT = str([f"secret thought {n}" for n in range(7)])


@pytest.fixture
def agent(fork, store, tmp_path):
    """Start the program in a process: ``agent("waits")`` stays inside a step."""
    (tmp_path / "agent.py").write_text(AGENT)
    program = f"import runpy; runpy.run_path({str(tmp_path / 'agent.py')!r}, run_name='__main__')"
    return lambda *arguments: fork(program, store.url, *arguments)


@pytest.fixture(params=["alive", "dead"])
def busy(request, agent, folder):
    """A process in the middle of a run; ``None`` if it was killed there."""
    script = agent("waits")
    assert script.hear() == "here"
    assert max(len(path.read_bytes().strip(b"\0")) for path in log_files(folder)) > 2000
    if request.param == "dead":
        script.kill()
    yield script if request.param == "alive" else None


def check(store):
    """What is seen of the run."""
    with fresh_store(store):
        run = stepwise.get_run("job")
        results = [step.result for step in run.steps if step.status == "completed"]
        assert results == [each for n in range(5) for each in (f"secret thought {n}", n)]
        assert run.verify().ok
        assert [each.id for each in stepwise.runs()] == ["job"]


def test_what_others_see(busy, store, folder, monkeypatch):
    """All steps are seen, also where the store can only be read, and after it was compacted."""
    check(store.url)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "unwritable", lambda path: errno.EROFS)
        check(type(store)(folder))
    with fresh_store(store.url):
        code = CliRunner().invoke(cli.main, ["compact"]).exit_code
    assert code == 0
    check(store.url)


def test_a_run_ends_after_others_looked(busy, store, agent):
    """Its process goes on, or another one takes it up; nothing is done again."""
    check(store.url)
    if busy:
        busy.tell()
        assert busy.finish() == RESULT
    else:
        assert agent("").finish() == RESULT
    with fresh_store(store.url):
        assert stepwise.get_run("job").verify().ok
        assert len(stepwise.get_run("job").steps) == 14


def test_copies_and_forks(busy, store):
    """A fork shares all steps; a copy has them, or is refused while the run is executed."""
    other = f"{store.url}-copy"
    with fresh_store(store.url):
        arguments = ["copy", "--from", store.url, "--to", other]
        code = CliRunner().invoke(cli.main, arguments).exit_code
        if busy:
            assert code
        else:
            assert code == 0
            check(other)
        fork = stepwise.get_run("job").fork(at=8)
        assert fork.verify().ok
        assert len(fork.steps) == 8


def test_encrypted_and_pruned(agent, store, folder, monkeypatch):
    """With encryption, a log holds no text of a value, and is read as any other; pruned, too."""
    pytest.importorskip("cryptography")
    monkeypatch.setenv("STEPWISE_ENCRYPT", "1")
    script = agent("waits", "prune")
    assert script.hear() == "here"
    script.kill()
    for path in folder.rglob("*"):
        assert path.is_dir() or b"secret thought" not in path.read_bytes()
    check(store.url)
    assert agent("", "prune").finish() == RESULT
