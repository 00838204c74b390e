"""What the store on Postgres promises beyond the contract: owners, lost answers, errors."""

import asyncio
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from server import name_in, until, with_options

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

import stepwise
from stepwise import ConfigurationError, LeaseLostError, RunOwnedError, StoreError
from stepwise._runs import doctor
from stepwise.stores import Batch, Head, Owner, open_store
from stepwise.stores._group_commit import Share, commits_of
from stepwise.stores._postgres_connections import ServerFacts, Standby
from stepwise.stores._postgres_presence import ProcessFacts, is_dead, proofs
from stepwise.stores.base import LAST_READER
from stepwise.stores.postgres import PostgresStore

ME = Owner(os.getpid(), socket.gethostname(), 1.5, "thread a")
HEAD = Head("run", "flow", False, b"data")

HOLDER = """
import os, sys, socket
from stepwise.stores import Batch, Owner, _postgres_presence
from stepwise.stores.postgres import PostgresStore
_postgres_presence._here = lambda: ("another machine", "pid:[1]")  # for all that others can know
PostgresStore(sys.argv[1]).acquire("run", Owner(os.getpid(), socket.gethostname(), 2.5, "theirs"))
print("held", flush=True)
sys.stdin.readline()
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


def sql(url, text, *parameters):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description else []


# -- owners ----------------------------------------------------------------------------------------


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


def test_each_thread_releases_its_own_lease(stores, postgres, monkeypatch):
    """A release sends nothing for leases that other threads are releasing."""
    store = stores(postgres)
    epoch = store.acquire("run", ME)
    named, chores = [], store._chores
    monkeypatch.setattr(store, "_chores", lambda at, *ids: named.append(ids) or chores(at, *ids))
    store.release("run", epoch)
    assert named == [("run",)]
    assert store.owner("run") is None


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


def test_an_engine_proves_deaths(stores, postgres, fork, monkeypatch):
    """A function that knows of a dead node frees the leases of its processes at once.

    One that raises, since its cluster is away, leaves the lease where it is.
    """
    holder = fork(HOLDER, postgres)
    assert holder.hear() == "held"
    store, asked = stores(postgres), []

    def away(facts):
        asked.append(facts)
        raise RuntimeError("the cluster does not answer")

    monkeypatch.setattr(f"{is_dead.__module__}.proofs", proofs + [away])
    with pytest.raises(RunOwnedError) as refused:
        store.acquire("run", ME)
    assert asked[-1].boot == "another machine"
    assert refused.value.owner.thread == "theirs"
    assert store.owner("run").pid == refused.value.owner.pid == holder.pid
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


def test_a_forked_child_is_another_process(postgres, fork):
    """Parent and child write at once, each with connections and leases of its own."""
    script = fork(FORKED, postgres)
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
            share = Share()
            share.wanted = f"run{number}", epochs[number], record(n)
            together.write(share)

    before, together = commits(), commits_of(store, fsync=True)
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
    """A value of 200 MB comes back byte for byte, is replaced, pruned and deleted with its run.

    Where the lease is lost, nothing of a large value stays.
    """
    store = stores(postgres)
    epoch = store.acquire("run", ME)
    large = bytes(range(256)) * (200 << 12)
    store.write("run", epoch, Batch(((1, large),), {"a": large[: 20 << 20]}, head=HEAD))
    assert next(store.read("run"))[1] == large
    assert store.get("run", "a") == large[: 20 << 20]
    store.write("run", epoch, Batch(put={"a": b"small"}))
    assert store.get("run", "a") == b"small"
    store.write("run", epoch, Batch(((2, large[: 9 << 20]),), {"b": large[: 9 << 20]}, prune=1))
    assert [len(data) for _, data in store.read("run")] == [9 << 20]
    store.write("run", epoch, Batch(delete=("b",)))
    assert store.get("run", "b") is None
    store.delete("run", epoch)
    assert list(store.read("run")) == []
    sql(postgres, "UPDATE stepwise.leases SET epoch = 7")
    with pytest.raises(LeaseLostError):
        store.write("run", epoch, record(1, bytes(20 << 20)))
    assert sql(postgres, "SELECT count(*) FROM stepwise.records") == [(0,)]
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


def test_many_processes_make_one_schema(postgres, fork):
    """Processes that open an empty database at once make its tables once."""
    scripts = [fork(OPENED, postgres) for _ in range(4)]
    assert {script.hear() for script in scripts} == {"ready"}
    for script in scripts:
        script.tell()
    assert [script.hear() for script in scripts] == ["[]"] * 4
    assert sql(postgres, "SELECT count(*) FROM stepwise.meta") == [(1,)]


@pytest.mark.parametrize(
    ("found", "way_out"), [(1, f"commit {LAST_READER}"), (99, "newer version")]
)
def test_a_schema_of_another_format_is_refused(stores, postgres, found, way_out):
    """Tables of another format are left alone, and the message says which stepwise reads them."""
    list(stores(postgres).heads())
    sql(postgres, f"UPDATE stepwise.meta SET version = {found}")
    with pytest.raises(StoreError, match=f"of format {found}, .* {way_out}"):
        list(stores(postgres).heads())


def test_schemas_are_stores_of_their_own(stores, postgres):
    """The parameter schema= chooses one of several stores in a database."""
    first, second = stores(postgres, schema="first"), stores(postgres, schema="second")
    for store in (first, second):
        store.write("run", store.acquire("run", ME), Batch(head=HEAD))
    first.delete("run", 1)
    assert [list(each.heads()) for each in (first, second)] == [[], [HEAD]]


# -- mistakes --------------------------------------------------------------------------------------


def test_where_there_is_no_server(stores, monkeypatch):
    """An address where nothing listens is named, with what to do and how long it was waited for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"postgresql://me:secret@127.0.0.1:{free.getsockname()[1]}/db?patience_seconds=0.25"
        with pytest.raises(StoreError, match=r"did not answer for 0\.25 seconds") as failed:
            stores(url).head("run")
        found = findings(url, monkeypatch)
    text = str(failed.value)
    assert "secret" not in text
    for part in ("postgresql://me@127.0.0.1", "refused", "start the server, or correct"):
        assert part in text
    assert isinstance(failed.value.__cause__, psycopg.OperationalError)
    assert "Is the server running" not in text
    assert found["store"].state == "problem"  # the one that ``doctor`` tells
    assert "secret" not in found["store"].text
    assert "server" not in found


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (r"127\.0\.0\.1:\d+", "no-such-host.invalid", "correct the host"),
        (r"/\w+$", "/nowhere", "createdb"),
        ("postgres@", "nobody_here@", "create the role"),
    ],
    ids=["host", "database", "user"],
)
def test_an_address_that_cannot_be_right(stores, postgres, old, new, text):
    """A host, database or role that is not there is reported at once, with what to do."""
    with pytest.raises(StoreError, match=text):
        stores(re.sub(old, new, postgres)).head("run")


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


def test_changes_of_a_name(stores, postgres, proxy):
    """Every process that listens counts what is written under a name with a colon.

    One that could not hear for a while counts that as a change.
    """
    writer, listener = stores(postgres), stores(proxy.url(postgres))
    before = until(lambda: listener.changes("bell:"), "a process that listens")
    epoch = writer.acquire("bell:", ME)
    for number in range(1, 4):
        writer.write("bell:", epoch, record(number, durable=False))
    until(lambda: listener.changes("bell:") == before + 3, "three notifications")
    writer.write("run", writer.acquire("run", ME), record(1))
    writer.write("bell:", epoch, record(4))
    until(lambda: listener.changes("bell:") == before + 4, "one more")
    proxy.cut()
    until(lambda: (listener.changes("bell:") or 0) > before + 4, "a change")


@pytest.mark.parametrize("what", ["schema", "table"])
def test_a_schema_of_another_role(postgres, stores, what):
    """A schema or table of another role is refused, whose triggers would run with our rights."""
    ours, other = f"ours_{name_in(postgres)}", f"other_{name_in(postgres)}"
    sql(postgres, f"CREATE ROLE {ours} LOGIN; CREATE ROLE {other}")
    try:
        if what == "schema":
            stores(postgres).acquire("run", ME)
            sql(postgres, f"ALTER SCHEMA stepwise OWNER TO {other}")
        else:
            sql(
                postgres,
                f"CREATE SCHEMA stepwise AUTHORIZATION {ours}; CREATE TABLE stepwise.runs ()",
            )
            sql(postgres, f"ALTER TABLE stepwise.runs OWNER TO {other}")
        sql(postgres, f"GRANT ALL ON SCHEMA stepwise TO {ours}")
        sql(postgres, f"GRANT ALL ON ALL TABLES IN SCHEMA stepwise TO {ours}")
        url = postgres.replace(f"//{urlsplit(postgres).username}@", f"//{ours}@")
        with pytest.raises(StoreError, match=f"belongs to the role {other}"):
            stores(url).acquire("second", ME)
        sql(postgres, f"GRANT {other} TO {ours} WITH INHERIT FALSE, SET FALSE")
        if what == "schema":
            assert stores(url).acquire("second", ME) == 1
    finally:
        for each in (ours, other):
            sql(postgres, f"DROP OWNED BY {each} CASCADE; DROP ROLE {each}")
