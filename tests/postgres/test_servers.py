"""The server and the proxy of these tests do to programs what they say."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys

import pytest
from proxy import TO_CLIENT
from server import Server, until

psycopg = pytest.importorskip("psycopg", reason="needs the extra test-cluster")

PUT = "INSERT INTO numbers VALUES (%s)"


@pytest.fixture
def numbers(postgres):
    """The URL of a database with a table of numbers."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (number int)")
    return postgres


def beside(call, *arguments):
    """The future of a call in a thread of its own."""
    pool = concurrent.futures.ThreadPoolExecutor()
    future = pool.submit(call, *arguments)
    pool.shutdown(wait=False)
    return future


def connect(url):
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def content(url):
    with connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT number FROM numbers ORDER BY 1")]


def test_what_was_committed_survives_a_crash_of_the_server(server, numbers):
    """A server that is killed and started again has its data, on the same port."""
    with connect(numbers) as connection:
        connection.execute(PUT, [1])
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute(PUT, [2])
    with pytest.raises(psycopg.OperationalError):
        connect(numbers)
    server.start()
    assert content(numbers) == [1]


def test_a_subprocess_can_kill_the_server_and_start_it_again(server, numbers):
    """A program knows the server by its folder alone."""
    source = "import os, server; server.Server(os.environ['STEPWISE_TEST_SERVER']).restart()"
    before = server.pid
    path = os.path.dirname(os.path.abspath(__file__))
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert server.pid not in (0, before)
    assert content(numbers) == []


def test_a_paused_server_answers_later(server, numbers):
    """A paused server keeps its connections, and answers nobody until it goes on."""
    with connect(numbers) as connection:
        server.pause()
        writing = beside(connection.execute, PUT, [3])
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(numbers, connect_timeout=2)
        server.go_on()
        writing.result(20)
    assert content(numbers) == [3]


def test_nothing_stays_of_a_session_that_is_killed(server):
    """A server ends, and its folder goes, with the process that made it."""
    path = os.path.dirname(os.path.abspath(__file__))
    program = subprocess.Popen(
        [sys.executable, os.path.join(path, "server.py")], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        folder = program.stdout.readline().split()[1]
        pid = Server(folder).pid
        assert pid
        program.send_signal(signal.SIGKILL)
    until(lambda: not os.path.exists(folder), "an end of the folder")
    until(lambda: not os.path.exists(f"/proc/{pid}"), "an end of the server")


def test_flushes_and_statements_are_counted(server, numbers):
    """A hundred commits are a hundred flushes, and a hundred statements in the log."""
    server.log_statements(numbers)
    before = server.flushes()
    with connect(numbers) as connection:
        for number in range(100):
            connection.execute(PUT, [number])
    assert 100 <= until(lambda: max(0, server.flushes() - before - 99), "the flushes") + 99 < 120
    assert sum("INSERT" in line for line in server.statements(numbers)) == 100


def test_a_proxy_cuts_connections_and_refuses_new_ones(proxy, numbers):
    """A cut connection is an error for its client; a new one is accepted, unless refused."""
    url = proxy.url(numbers)
    with connect(url) as connection:
        connection.execute(PUT, [1])
        assert proxy.cut() == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute(PUT, [2])
    with connect(url) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            connection.execute(PUT, [3])
    with pytest.raises(psycopg.OperationalError):
        connect(url)
    proxy.accept()
    assert content(url) == [1]


def test_a_black_hole_in_one_direction_keeps_the_answer_only(proxy, numbers):
    """A request arrives whose answer does not, until the proxy forwards again."""
    with connect(proxy.url(numbers)) as connection:
        proxy.stall(TO_CLIENT)
        writing = beside(connection.execute, PUT, [1])
        until(lambda: content(numbers) == [1], "the number")
        assert not writing.done()
        proxy.flow()
        writing.result(20)


@pytest.mark.parametrize("form", ["one statement", "a transaction", "a pipeline", "prepared"])
@pytest.mark.parametrize(
    "what, arrives", [("answer", True), ("request", False), ("late", "later"), ("", True)]
)
def test_the_second_write_loses_what_was_said(proxy, numbers, form, what, arrives):
    """The chosen transaction loses its answer, or its request, and no other one does."""

    def write(connection, number):
        prepare = True if form == "prepared" else None
        around = contextlib.ExitStack()
        if form == "a pipeline":
            around.enter_context(connection.pipeline())
        if form in ("a pipeline", "a transaction"):
            around.enter_context(connection.transaction())
        with around:
            connection.execute("SELECT 1")
            connection.execute(PUT, [number], prepare=prepare)

    with connect(proxy.url(numbers)) as connection:
        proxy.lose(what, at={2})
        write(connection, 1)
        assert content(proxy.url(numbers)) == [1]
        if what:
            with pytest.raises(psycopg.OperationalError):
                write(connection, 2)
        else:
            write(connection, 2)
    assert content(numbers) == ([1, 2] if arrives is True else [1])
    assert proxy.deliver() == (what == "late")
    assert content(numbers) == ([1, 2] if arrives else [1])
    assert (proxy.commits, proxy.lost) == (2, int(bool(what)))
