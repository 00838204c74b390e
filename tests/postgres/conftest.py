"""A real Postgres server for the tests of this folder, and one database for each test.

Where the extra is not installed, the tests are skipped with its name: a module that uses psycopg
imports it in functions, or by ``pytest.importorskip``.
"""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from proxy import Proxy
from server import missing, open_server

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    if reason := missing():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def stores_are_real(monkeypatch):
    """A URL means what it says: our plugin would put a store in the test's home in its place."""
    monkeypatch.setenv("STEPWISE_TEST_HOME", "")


@pytest.fixture(scope="session")
def shared_server():
    """The server of this worker of pytest."""
    if reason := missing():
        pytest.skip(reason)
    server = open_server()
    yield server
    if server.own:
        server.close()


@pytest.fixture
def any_server(shared_server):
    """The server, which answers before the test; a test that broke it need not repair it."""
    if shared_server.own:
        shared_server.start()
    yield shared_server
    if shared_server.own:
        shared_server.start()


@pytest.fixture
def server(any_server):
    """A server of our own, which a test may kill."""
    if not any_server.own:
        pytest.skip("the server of STEPWISE_TEST_POSTGRES is not ours to kill")
    return any_server


@pytest.fixture
def postgres(any_server):
    """The URL of a fresh database."""
    url = any_server.create_database()
    yield url
    if any_server.own:
        any_server.start()
    any_server.drop_database(url)


@pytest.fixture
def proxy(any_server):
    """A proxy before the server, whose connections a test can cut, stall or rob of an answer."""
    with Proxy(any_server.url) as made:
        yield made


@pytest.fixture
def store(postgres):
    """A store in a database of its own."""
    from server import with_options

    from stepwise.stores.postgres import PostgresStore

    made = PostgresStore(with_options(postgres, lease_seconds=3))
    yield made
    made.close()


@pytest.fixture
def forgets(server):
    """Let the server forget, in a crash, what it need not have written: it writes very late."""
    late = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    for name, value in late.items():
        server.sql(f"ALTER SYSTEM SET {name} = '{value}'")
    server.sql("SELECT pg_reload_conf()")
    yield server
    server.start()
    for name in late:
        server.sql(f"ALTER SYSTEM RESET {name}")
    server.sql("SELECT pg_reload_conf()")
