"""The server and the proxy of these tests do to programs what they say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from server import Server, until

psycopg = pytest.importorskip("psycopg", reason="needs the extra test-cluster")

PUT = "INSERT INTO numbers VALUES (%s)"


@pytest.fixture
def numbers(postgres):
    """The URL of a database with a table of numbers."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (number int)")
    return postgres


def connect(url):
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def content(url):
    with connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT number FROM numbers ORDER BY 1")]


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
