"""Readers of real servers: reconnects, kills, shutdowns, and readers that stop or leave."""

import pathlib
import signal
import socket
import subprocess
import sys

import pytest
from reconnecting import Reader, events_of, said, storm
from sweeping import SEED, size

import stepwise


@pytest.mark.parametrize("workflow", ["talk", "read_out"])
def test_nothing_is_lost_or_doubled(server, workflow):
    """Readers that reconnect at random offsets to a server that is killed get each item once."""
    readers, reconnects, kills = size(5, 20), size(60, 1000), size(4, 100)
    storm(server(), workflow, readers=readers, reconnects=reconnects, kills=kills, seed=SEED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_ends_ends_its_streams(server, number):
    """A signal ends a server whose readers wait for a run that waits; the readers come back."""
    served = server()
    with served.client() as client:
        with client.stream("POST", "/start/pause?run_id=r", json={}) as answer:
            events = events_of(answer)
            assert next(events) == ("item", "0", "before")
            served.end(number)  # waits, without a limit, until the server has ended
            assert list(events) == []
        reader = Reader(client, "r")
        reader.note("item", "0", "before")
        served.start()
        stepwise.get_run("r").send("go", "now")
        assert reader.follow() == ["before", "after"]


def test_a_reader_revives_a_run(server):
    """A run whose server dies is continued by the server that a reader comes to."""
    first, second = server(), server()
    with first.client() as client, second.client() as other:
        given = {"parts": 50, "words": 20}
        with client.stream("POST", "/start/talk?run_id=r", json=given) as answer:
            assert next(events_of(answer)) == ("item", "0", "part 0")
            begun = Reader(other, "r")
            begun.connect(30)  # the run of another process
            first.end()
            assert begun.follow() == said(50, 20)
    assert stepwise.get_run("r").owner is None


def test_a_server_is_stopped_by_ctrl_c(server):
    """Runs that Ctrl-C has interrupted with their server continue when a reader comes back."""
    served = server()
    with served.client() as client:
        given = {"parts": 30, "words": 20}
        for workflow in ("talk", "read_out"):
            path = f"/start/{workflow}?run_id={workflow}"
            with client.stream("POST", path, json=given) as answer:
                assert next(events_of(answer)) == ("item", "0", "part 0")
        served.end(signal.SIGINT)
        served.start()
        for workflow in ("talk", "read_out"):
            assert Reader(client, workflow).follow() == said(30, 20)


def test_a_stopped_reader_holds_no_memory(server):
    """A client that does not read costs the server its buffers, and delays no other reader."""
    served = server()
    with (
        served.client() as client,
        socket.create_connection(("127.0.0.1", served.listening.getsockname()[1])) as stopped,
    ):
        asked = {"accept": "application/json"}
        given = {"times": 1200, "size": 100_000}
        assert client.post("/start/shout?run_id=r", json=given, headers=asked).status_code == 202
        stopped.sendall(b"GET /runs/r/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stopped.recv(15) == b"HTTP/1.1 200 OK"
        before = _memory(served)
        items = Reader(client, "r").follow()
        assert [each.partition(" ")[0] for each in items] == [*map(str, range(1200))]
        # Each thread of the server that reads, and there are several under load, keeps some MB.
        assert _memory(served) - before < 80_000_000  # of 120 MB that were said


def _memory(served):
    """The bytes of memory of a server's process."""
    text = pathlib.Path(f"/proc/{served.process.pid}/statm").read_text()
    return int(text.split()[1]) * 4096


def test_the_last_reader_leaves(server):
    """With cancel_when_left, a run is cancelled when its last reader has left."""
    with server(left="0").client() as client:
        with client.stream("POST", "/start/pause?run_id=r", json={}) as answer:
            assert next(events_of(answer)) == ("item", "0", "before")
        (end,) = stepwise.get_run("r").stream(after=0)
        assert (end.kind, end.value) == ("end", "cancelled")


def test_a_reload_cancels_nothing(server):
    """A reader that comes back within cancel_when_left keeps its run, and so does a shutdown."""
    served = server(left="3600")
    with served.client() as client:
        with client.stream("POST", "/start/pause?run_id=r", json={}) as answer:
            assert next(events_of(answer)) == ("item", "0", "before")
        with client.stream("GET", "/runs/r/stream?after=0") as answer:
            served.end(signal.SIGTERM)
            assert list(events_of(answer)) == []
        served.start()
        stepwise.get_run("r").send("go", "now")
        assert Reader(client, "r").follow() == ["before", "after"]


def test_a_run_of_another_program_is_followed(server, tmp_path):
    """A run that no server has started is followed, too, as soon as it says something."""
    program = "import talking; talking.pause.options(run_id='r')('x')"
    folder = pathlib.Path(sys.modules["reconnecting"].__file__).parent
    with subprocess.Popen([sys.executable, "-c", program], cwd=folder) as other:
        with server().client() as client:
            while client.get("/runs/r").status_code == 404:
                assert other.poll() is None
            with client.stream("GET", "/runs/r/stream") as answer:
                events = events_of(answer)
                assert next(events) == ("item", "0", "before")
                stepwise.get_run("r").send("go", "now")
                assert list(events) == [("item", "1", "after"), ("end", "end", "completed")]
