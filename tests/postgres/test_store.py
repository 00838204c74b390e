"""What the store on Postgres promises beyond the contract: owners, lost answers, errors."""

import asyncio
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from server import let_pass, name_in, until, with_options

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

import stepwise
from stepwise import ConfigurationError, LeaseLostError, RunOwnedError, StoreError
from stepwise._runs import doctor
from stepwise.stores import Batch, Head, Owner, open_store
from stepwise.stores._postgres_presence import ProcessFacts, is_dead, proofs
from stepwise.stores._postgres_server import ServerFacts, Standby
from stepwise.stores.postgres import PostgresStore

ME = Owner(os.getpid(), socket.gethostname(), 1.5, "thread a")

HOLDER = """
import os, sys, socket
from stepwise.stores.postgres import PostgresStore
from stepwise.stores import Batch, Owner
if len(sys.argv) > 2:  # on another machine, for all that others can know
    from stepwise.stores import _postgres_presence
    _postgres_presence._here = lambda: (sys.argv[2], "pid:[1]")
store = PostgresStore(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), socket.gethostname(), 2.5, "theirs"))
store.write("run", epoch, Batch(((1, b"1"),)))
print(epoch, flush=True)
for line in sys.stdin:
    try:
        store.write("run", epoch, Batch(((int(line), line.encode()),)))
        print("written", flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def stores():
    """A function that opens a store, which is closed after the test."""
    opened = []

    def open_one(url, **options):
        opened.append(PostgresStore(with_options(url, **options)))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def record(number, data=b"data", **more):
    return Batch(((number, data),), **more)


@pytest.fixture(autouse=True)
def real_stores(monkeypatch):
    """A URL means what it says: our plugin would put a store in the test's home in its place."""
    monkeypatch.setenv("STEPWISE_TEST_HOME", "")


def sql(url, text, *parameters):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description else []


# -- owners ----------------------------------------------------------------------------------------


def test_a_lease_of_a_killed_process_is_free_at_once(stores, postgres, start):
    """On the same machine, the next owner does not wait for the lease to run out."""
    holder = start(HOLDER, postgres)
    assert holder.hear() == "1"
    store = stores(postgres)
    with pytest.raises(RunOwnedError) as refused:
        store.acquire("run", ME)
    assert refused.value.owner.thread == "theirs"
    assert store.owner("run").pid == refused.value.owner.pid != os.getpid()
    holder.kill()
    before = time.monotonic()
    assert store.owner("run") is None
    assert store.acquire("run", ME) == 2
    assert time.monotonic() - before < 15  # of 30; a machine may be busy
    assert list(store.read("run")) == [(1, b"1")]


def test_a_lease_of_another_machine_has_to_run_out(stores, postgres, start):
    """Where nothing proves a death, the lease of a killed process is held for its whole time."""
    holder = start(HOLDER, with_options(postgres, lease_seconds=5), "another machine")
    assert holder.hear() == "1"
    holder.kill()
    store = stores(postgres)
    refused = 0

    def acquired():
        nonlocal refused
        try:
            return store.acquire("run", ME)
        except RunOwnedError:
            refused += 1
            return 0

    assert until(acquired, "a lease that ran out") == 2
    assert refused


def test_a_paused_owner_is_fenced_off(stores, postgres, start):
    """An owner that wakes up after a takeover writes nothing, and learns why."""
    holder = start(HOLDER, with_options(postgres, lease_seconds=3))
    assert holder.hear() == "1"
    store = stores(postgres)
    pid = store.owner("run").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: store.owner("run") is None, "a lease that ran out")
        assert store.acquire("run", ME) == 2
    finally:
        os.kill(pid, signal.SIGCONT)
    holder.tell("2")
    assert holder.hear() == "LeaseLostError"
    assert [number for number, _ in store.read("run")] == [1]


def test_an_owner_that_was_away_goes_on(stores, postgres, proxy):
    """A dropped connection is no death: the epoch stays, whatever was tried meanwhile."""
    store, other = stores(proxy.url(postgres)), stores(postgres)
    epoch = store.acquire("run", ME)
    for number in range(1, 6):
        proxy.cut()
        store.write("run", epoch, record(number))
    with pytest.raises(RunOwnedError):
        other.acquire("run", ME)
    assert [number for number, _ in other.read("run")] == [1, 2, 3, 4, 5]


def test_nobody_takes_over_after_a_start_of_the_server(stores, postgres, server, start):
    """A server that was away took the beats with it, so leases are held from its start on."""
    url = with_options(postgres, lease_seconds=5)
    holder = start(HOLDER, url, "another machine")
    assert holder.hear() == "1"
    server.kill()
    let_pass(5.5)
    holder.kill()
    server.start()
    store = stores(postgres)
    with pytest.raises(RunOwnedError):
        store.acquire("run", ME)
    assert until(lambda: store.owner("run") is None, "a lease that ran out")
    assert store.acquire("run", ME) == 2


@pytest.mark.parametrize("what", ["answer", "request", "late"])
def test_a_lost_answer_is_looked_up(stores, postgres, proxy, what):
    """A write, or an acquisition, whose answer was lost is done once, and not twice."""
    store, other = stores(proxy.url(postgres)), stores(postgres)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, record(1))
    for number in range(2, 6):
        proxy.lose(what, at={1})
        store.write("run", epoch, record(number, mark=b"%d" % number * 40))
        assert proxy.lost == 1
        proxy.deliver()
    assert [number for number, _ in other.read("run")] == [1, 2, 3, 4, 5]
    assert sorted(other.marks("run")) == [b"4" * 40, b"5" * 40]
    proxy.lose(what, at={1}, of="leases")
    second = store.acquire("run2", ME)
    store.write("run2", second, record(1))
    proxy.deliver()
    store.write("run2", second, record(2))
    assert len(list(other.read("run2"))) == 2


def test_a_release_without_a_server_is_made_up_for(stores, postgres, proxy):
    """It raises nothing and does not wait long; the lease is free when the server is back."""
    store, other = stores(proxy.url(postgres)), stores(postgres)
    epoch = store.acquire("run", ME)
    proxy.refuse()
    before = time.monotonic()
    store.release("run", epoch)
    assert time.monotonic() - before < 20
    assert other.owner("run") == ME
    proxy.accept()
    until(lambda: other.owner("run") is None, "a lease that is released")


def test_an_engine_proves_deaths(stores, postgres, start, monkeypatch):
    """A function that knows of a dead node frees the leases of its processes at once."""
    holder = start(HOLDER, postgres, "another machine")
    assert holder.hear() == "1"
    store, asked = stores(postgres), []
    monkeypatch.setattr(f"{is_dead.__module__}.proofs", proofs + [asked.append])
    with pytest.raises(RunOwnedError):
        store.acquire("run", ME)
    assert asked[-1].boot == "another machine"
    monkeypatch.setattr(f"{is_dead.__module__}.proofs", [lambda facts: facts == asked[-1]])
    assert store.acquire("run", ME) == 2


def test_a_process_that_cannot_be_seen_may_live():
    """Nothing is proven of a process of another machine, or of another namespace."""
    with open(f"/proc/{os.getpid()}/stat", encoding="ascii") as file:
        started = file.read().rpartition(")")[2].split()[19]
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mine = ProcessFacts(1, "h", boot, os.readlink("/proc/self/ns/pid"), os.getpid(), started, "")
    assert not is_dead(mine)
    assert is_dead(mine._replace(started="1"))
    assert is_dead(mine._replace(pid=2**22 + 1))
    assert not is_dead(mine._replace(pid=2**22 + 1, boot="other"))
    assert not is_dead(mine._replace(pid=2**22 + 1, namespace="pid:[1]"))


FORKED = """
import os, sys, socket
from stepwise.stores.postgres import PostgresStore
from stepwise.stores import Batch, Owner
store = PostgresStore(sys.argv[1])
me = Owner(os.getpid(), socket.gethostname(), 2.5)
epoch = store.acquire("parent", me)
store.write("parent", epoch, Batch(((1, b"1"),)))
pid = os.fork()
if not pid:
    assert next(store.read("parent")) == (1, b"1")
    own = store.acquire("child", me)
    for number in range(1, 50):
        store.write("child", own, Batch(((number, b"c"),)))
    try:
        store.write("parent", epoch, Batch(((2, b"c"),)))
    except BaseException as error:
        print(type(error).__name__, flush=True)
    store.close()
    os._exit(0)
for number in range(2, 50):
    store.write("parent", epoch, Batch(((number, b"p"),)))
os.waitpid(pid, 0)
store.write("parent", epoch, Batch(((50, b"p"),)))
print(len(list(store.read("parent"))), len(list(store.read("child"))), flush=True)
"""


def test_a_forked_child_is_another_process(postgres, start):
    """Parent and child write at once, each with connections and leases of its own."""
    script = start(FORKED, postgres)
    assert [script.hear(), script.hear()] == ["LeaseLostError", "50 49"]


# -- writing ---------------------------------------------------------------------------------------


def test_parallel_steps_share_flushes(postgres, server):
    """Two hundred steps of threads, or of tasks, need far fewer than two hundred flushes."""

    @stepwise.step
    def of_thread(number):
        return number

    @stepwise.step
    async def of_task(number):
        await asyncio.sleep(0)
        return number

    @stepwise.workflow(store=postgres)
    def threads():
        return sum(stepwise.map(of_thread, range(200), max_workers=64))

    @stepwise.workflow(store=postgres)
    async def tasks():
        return sum(await asyncio.gather(*map(of_task, range(200))))

    counted = {}
    for name, run in (("threads", threads), ("tasks", lambda: asyncio.run(tasks()))):
        before = server.flushes()
        assert run() == 19900
        server.close_connections(postgres)
        counted[name] = server.flushes() - before
    print(counted)
    assert max(counted.values()) < 100


def test_runs_share_transactions(stores, postgres):
    """What threads write to their runs at the same time goes in few transactions."""
    store = stores(postgres)
    epochs = [store.acquire(f"run{number}", ME) for number in range(64)]

    def commits():
        text = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return sql(postgres, text)[0][0]

    def work(number):
        for n in range(1, 21):
            store.write(f"run{number}", epochs[number], record(n))

    before = commits()
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(work, range(64)))
    store.close()
    assert commits() - before < 640
    assert all(len(list(stores(postgres).read(f"run{number}"))) == 20 for number in range(64))


def test_a_lost_lease_stops_no_other_run(stores, postgres):
    """Of runs that are written together, only the one without a lease gets the error."""
    store = stores(postgres)
    epochs = [store.acquire(f"run{number}", ME) for number in range(16)]
    sql(postgres, "UPDATE stepwise.leases SET epoch = epoch + 1 WHERE mod(run, 4) = 0")
    lost, start = [], threading.Barrier(16)

    def work(number):
        start.wait()
        try:
            for n in range(1, 11):
                store.write(f"run{number}", epochs[number], record(n))
        except LeaseLostError as error:
            lost.append(error.run_id)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(lost) == len(set(lost)) == 4
    for number in range(16):
        rows = 0 if f"run{number}" in lost else 10
        assert len(list(store.read(f"run{number}"))) == rows


def test_large_values_are_stored_whole(stores, postgres):
    """A value of 200 MB comes back byte for byte, is replaced, pruned and deleted with its run."""
    store = stores(postgres)
    epoch = store.acquire("run", ME)
    large = bytes(range(256)) * (200 << 12)
    store.write("run", epoch, Batch(((1, large),), {"a": large[: 20 << 20]}, head=head_of("run")))
    assert next(store.read("run"))[1] == large
    assert store.get("run", "a") == large[: 20 << 20]
    store.write("run", epoch, Batch(put={"a": b"small"}))
    assert store.get("run", "a") == b"small"
    store.write("run", epoch, Batch(((2, large[: 9 << 20]),), {"b": large[: 9 << 20]}, prune=1))
    assert [len(data) for _, data in store.read("run")] == [9 << 20]
    store.write("run", epoch, Batch(delete=("b",)))
    assert sql(postgres, "SELECT count(*) FROM stepwise.pieces")[0][0] == 2
    store.delete("run", epoch)
    assert sql(postgres, "SELECT count(*) FROM stepwise.pieces")[0][0] == 0


def head_of(run_id):
    return Head(run_id, "flow", False, b"data")


def test_a_large_value_without_a_lease_leaves_nothing(stores, postgres):
    """Where the lease is lost, no piece of a large value stays."""
    store = stores(postgres)
    epoch = store.acquire("run", ME)
    sql(postgres, "UPDATE stepwise.leases SET epoch = 7")
    with pytest.raises(LeaseLostError):
        store.write("run", epoch, record(1, bytes(20 << 20)))
    assert sql(postgres, "SELECT count(*) FROM stepwise.pieces") == [(0,)]
    assert list(store.read("run")) == []


def test_a_value_that_the_server_refuses_is_an_error(stores, postgres):
    """It says what the server said; nothing is written, and the run can go on."""
    store = stores(postgres)
    epoch = store.acquire("run", ME)
    sql(postgres, "ALTER TABLE stepwise.records ADD CHECK (length(data) < 1000)")
    with pytest.raises(StoreError, match="check constraint"):
        store.write("run", epoch, Batch(((1, bytes(2000)),), {"a": b"a"}))
    assert store.names("run") == []
    store.write("run", epoch, record(1))
    assert len(list(store.read("run"))) == 1


# -- the schema ------------------------------------------------------------------------------------

OPENED = """
import sys
from stepwise.stores.postgres import PostgresStore
print("ready", flush=True)
sys.stdin.readline()
try:
    print(list(PostgresStore(sys.argv[1]).heads()), flush=True)
except BaseException as error:
    print(error, flush=True)
"""


def test_many_processes_make_one_schema(postgres, start):
    """Eight processes that open an empty database at once make its tables once."""
    scripts = [start(OPENED, postgres) for _ in range(8)]
    assert {script.hear() for script in scripts} == {"ready"}
    for script in scripts:
        script.tell()
    assert [script.hear() for script in scripts] == ["[]"] * 8
    assert sql(postgres, "SELECT count(*) FROM stepwise.meta") == [(1,)]


def test_a_newer_schema_is_refused(stores, postgres):
    """Tables of a newer version are left alone, and the message says what to install."""
    list(stores(postgres).heads())
    sql(postgres, "UPDATE stepwise.meta SET version = version + 1")
    with pytest.raises(StoreError, match="install the version that made it"):
        list(stores(postgres).heads())


def test_schemas_are_stores_of_their_own(stores, postgres):
    """The parameter schema= chooses one of several stores in a database."""
    first, second = stores(postgres, schema="first"), stores(postgres, schema="second")
    for store in (first, second):
        store.write("run", store.acquire("run", ME), Batch(head=head_of("run")))
    first.delete("run", 1)
    assert [list(each.heads()) for each in (first, second)] == [[], [head_of("run")]]


# -- mistakes --------------------------------------------------------------------------------------


def test_where_there_is_no_server(stores):
    """An address where nothing listens is named, with what to do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"postgresql://me:secret@127.0.0.1:{free.getsockname()[1]}/db"
        with pytest.raises(StoreError, match="start the server, or correct") as failed:
            stores(url, patience_seconds=0.5).head("run")
    assert str(free.family) and "secret" not in str(failed.value)
    assert "postgresql://me@127.0.0.1" in str(failed.value)
    assert "refused" in str(failed.value)


def test_an_unknown_host(stores):
    """A host without an address is reported at once."""
    with pytest.raises(StoreError, match="correct the host"):
        stores("postgresql://me@no-such-host.invalid/db").head("run")


def test_an_unknown_database(stores, postgres):
    """A database that is not there is reported at once, with the command that makes it."""
    with pytest.raises(StoreError, match="createdb"):
        stores(postgres.replace(name_in(postgres), "nowhere")).head("run")


def test_an_unknown_user(stores, postgres):
    """A role that is not there is reported at once."""
    with pytest.raises(StoreError, match="create the role"):
        stores(postgres.replace("postgres@", "nobody_here@")).head("run")


def test_a_wrong_password(stores, postgres, server):
    """A wrong password is reported at once, without it; the right one opens the store."""
    hba = server.data / "pg_hba.conf"
    before = hba.read_text()
    server.sql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'")
    hba.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
    try:
        server.sql("SELECT pg_reload_conf()")
        guarded = postgres.replace("postgres@", "guarded:{}@")

        def refused():
            with pytest.raises(StoreError) as failed:
                stores(guarded.format("wrong")).head("run")
            return "correct the user or the password" in str(failed.value) and failed

        until(lambda: not opens(stores, guarded.format("wrong")), "a server that asks")
        text = str(refused().value)
        assert "wrong" not in text
        store = stores(guarded.format("right"))
        assert store.head("run") is None
        assert "right" not in store.url
    finally:
        hba.write_text(before)
        server.sql("DROP OWNED BY guarded", database=name_in(postgres))
        server.sql("DROP ROLE guarded")
        server.sql("SELECT pg_reload_conf()")


def opens(stores, url):
    try:
        stores(url).head("run")
    except StoreError:
        return False
    return True


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://h/db?lease_seconds=soon", "lease_seconds=soon"),
        ("postgresql://h/db?pool_size=0", "above 0"),
        ("postgresql://h/db?schema=A-b", "schema"),
        ("postgresql://u:geheim@h:port/db", "port"),
        ("postgresql://u:geheim@h/db?sslmodus=on&password=geheim", "sslmodus"),
    ],
)
def test_urls_that_cannot_be_used(url, text):
    """The part that is wrong is named, and no password."""
    with pytest.raises(ConfigurationError, match=text) as refused:
        open_store(url)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("module", ["psycopg", "psycopg.pq"])
def test_without_psycopg(module):
    """Where the extra, or libpq, is not installed, the message is the command that installs it."""
    program = (
        f"import sys; sys.modules[{module!r}] = None; import stepwise.stores as stores\n"
        "try: stores.open_store('postgresql://h/db')\n"
        "except stores.ConfigurationError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert "pip install 'stepwise-agents[postgres]'" in done.stdout, done.stderr


def test_urls_of_one_store():
    """A password, or the other name of the scheme, makes no other store."""
    urls = ("postgresql://u:pw@h/db", "postgres://u@h/db", "postgresql://u@h/db?password=pw")
    opened = [open_store(url) for url in urls]
    assert {each.url for each in opened} == {"postgresql://u@h/db"}
    assert opened[0] is opened[1] is opened[2] is open_store(opened[0].url)


def test_a_test_has_a_store_of_its_own(tmp_path, monkeypatch):
    """Under our pytest plugin, a store on Postgres is replaced by one in the test's home."""
    monkeypatch.setenv("STEPWISE_TEST_HOME", str(tmp_path))
    store = open_store("postgresql://me@production/db")
    assert store.url.startswith(f"disk:{tmp_path}")
    assert open_store("postgresql://me@production/other") is not store


# -- runs ------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import stepwise

@stepwise.step
def add(total, number):
    print("add", number, flush=True)
    return total + number

@stepwise.tool(side_effect=True)
def send(total):
    print("send", total, flush=True)
    return f"sent {total}"

@stepwise.step
def last():
    if len(sys.argv) > 1:
        os.kill(os.getpid(), signal.SIGKILL)

@stepwise.workflow
def flow():
    total = 0
    for number in range(5):
        total = add(total, number)
    receipt = send(total)
    last()
    return receipt

if __name__ == "__main__":
    print(flow(), flush=True)
"""


def test_a_killed_run_goes_on_at_once(postgres, start, tmp_path, monkeypatch):
    """A run that was killed with SIGKILL resumes in the middle, and repeats nothing."""
    monkeypatch.setenv("STEPWISE_STORE", postgres)
    first = start(KILLED, "die")
    assert [first.hear() for _ in range(6)] == [*(f"add {n}" for n in range(5)), "send 10"]
    assert (first.hear(), first.process.wait()) == ("", -signal.SIGKILL)
    (run,) = stepwise.runs(store=postgres)
    assert run.status == "crashed"
    before = time.monotonic()
    second = type(first)(tmp_path / "script0.py")
    try:
        assert second.finish() == "sent 10"
    finally:
        second.close()
    assert time.monotonic() - before < 5
    run = stepwise.get_run(run.id, store=postgres)
    assert run.status == "completed"
    assert run.verify().ok


def test_an_owner_without_a_server_waits_for_it(postgres, server):
    """A run goes on where it was when a crashed server is back; each step is done once."""
    done = []

    @stepwise.step
    def work(number):
        done.append(number)
        if number in (3, 6):
            server.kill()
            threading.Timer(1.0, server.start).start()
        return number

    @stepwise.workflow(store=postgres)
    def flow():
        return [work(number) for number in range(10)]

    assert flow() == done == list(range(10))


# -- looking ---------------------------------------------------------------------------------------


def findings(url, monkeypatch):
    monkeypatch.setenv("STEPWISE_STORE", url)
    return {each.what: each for each in doctor.findings("1")}


def test_doctor_knows_the_server(postgres, monkeypatch):
    """It says which server answers, and finds nothing wrong with its settings."""
    found = findings(postgres, monkeypatch)
    assert found["server"].text.startswith("PostgreSQL ")
    for what in ("store", "server", "durability", "pooler", "clock"):
        assert found[what].state == "ok", found[what]
    assert "locks" not in found


def test_doctor_refuses_lost_records(postgres, monkeypatch):
    """A database whose commits do not wait for the disk is a problem, with the way out."""
    sql(postgres, f"ALTER DATABASE {name_in(postgres)} SET synchronous_commit = off")
    found = findings(postgres, monkeypatch)["durability"]
    assert found.state == "problem"
    assert f"ALTER DATABASE {name_in(postgres)} SET synchronous_commit = on" in found.todo


def test_doctor_says_what_a_failover_loses():
    """An asynchronous standby is a warning, a synchronous one is not; a standby takes no runs."""
    facts = ServerFacts(
        {}, "db", 0.001, 0.0, True, True, (Standby("a", "async"), Standby("b", "sync"))
    )
    found = {each.text.partition(":")[0]: each for each in doctor._replication(facts)}
    assert found["standby a is asynchronous"].state == "warning"
    assert found["standby b is synchronous"].state == "ok"
    assert found["the server is a standby"].state == "problem"


def test_doctor_names_a_server_that_is_away(monkeypatch):
    """Without a server there is one problem, which says why."""
    url = "postgresql://me:geheim@127.0.0.1:1/db?patience_seconds=0.2"
    found = findings(url, monkeypatch)
    assert found["store"].state == "problem"
    assert "geheim" not in found["store"].text
    assert "server" not in found


def test_a_server_that_was_never_there():
    """The error says how long it was waited for, and its traceback shows no error of our own."""
    store = open_store("postgresql://me@127.0.0.1:1/db?patience_seconds=0.25")
    with pytest.raises(StoreError, match=r"did not answer for 0\.25 seconds") as caught:
        list(store.heads())
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert "Is the server running" not in str(caught.value)


def test_another_key_starts_no_run(postgres, monkeypatch):
    """A machine with another key is refused before it writes; the runs of the first stay listed."""

    @stepwise.workflow(store=postgres)
    def flow(number):
        return number

    monkeypatch.setenv("STEPWISE_KEY", "the key of the first machine")
    assert flow(1) == 1
    monkeypatch.setenv("STEPWISE_KEY", "the key of the second one")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="set STEPWISE_KEY"):
            flow(2)
    monkeypatch.setenv("STEPWISE_KEY", "the key of the first machine")
    assert [run.status for run in stepwise.runs(store=postgres)] == ["completed"]
    monkeypatch.setenv("STEPWISE_KEY", "a newer key of them,the key of the first machine")
    assert flow(3) == 3


def test_compact(stores, postgres):
    """Compacting gives the space at the end of the tables back, and other owners go on."""
    store = stores(postgres)
    epoch = store.acquire("run", ME)
    store.write("run", epoch, Batch(tuple((n, os.urandom(1 << 20)) for n in range(1, 7))))
    store.delete("run", epoch)
    assert store.compact() > 4 << 20
    store.write("run", epoch, record(1))


def test_changes_of_a_name(stores, postgres):
    """Every process that listens counts what is written under a name with a colon."""
    writer, listener = stores(postgres), stores(postgres)
    before = until(lambda: listener.changes("bell:"), "a process that listens")
    epoch = writer.acquire("bell:", ME)
    for number in range(1, 4):
        writer.write("bell:", epoch, record(number, durable=False))
    until(lambda: listener.changes("bell:") == before + 3, "three notifications")
    writer.write("run", writer.acquire("run", ME), record(1))
    writer.write("bell:", epoch, record(4))
    until(lambda: listener.changes("bell:") == before + 4, "one more")


def test_changes_after_a_cut(stores, postgres, proxy):
    """A process that could not hear for a while counts that as a change."""
    listener = stores(proxy.url(postgres))
    before = until(lambda: listener.changes("bell:"), "a process that listens")
    proxy.cut()
    until(lambda: (listener.changes("bell:") or 0) > before, "a change")
