"""``stepwise ui``: its address, its end, and what keeps it from beginning."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from command import COMMAND, process
from harness import interpreted

import stepwise
from stepwise import step, workflow


@step
def think(topic):
    return f"about {topic}"


@workflow
def agent(topic):
    return think(topic)


class Served:
    """``stepwise ui`` in a process of its own, and a browser."""

    def __init__(self, *words, **how):
        self.process = subprocess.Popen(
            [COMMAND, "ui", "--port", "0", "--no-open", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **how,
        )
        self.line = self.process.stdout.readline().strip()

    @contextlib.contextmanager
    def browser(self, line=None):
        address = httpx.URL(line or self.line)
        place = address.copy_with(path="/", query=None)
        with httpx.Client(base_url=place, timeout=60) as made:
            made.get(address, follow_redirects=True).raise_for_status()
            yield made

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return (*self.process.communicate(timeout=60), self.process.returncode)


@pytest.fixture
def serve():
    started = []

    def serving(*words, **how):
        started.append(Served(*words, **how))
        return started[-1]

    yield serving
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_the_first_line_opens_the_page(serve):
    """The first line on stdout is the address with its token; Ctrl-C ends the server in silence."""
    agent.options(run_id="trip")("tides")
    served = serve()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", served.line)
    with served.browser() as browser:
        assert "tides" in browser.get("/runs/trip").text
        assert browser.get("/", headers={"host": "evil.example"}).status_code == 403
    assert served.end() == ("", "", 130)


def test_the_command_line_of_a_browser_opens_the_page_once(serve, tmp_path):
    """The browser gets a token that works once: a list of processes shows none that opens more."""
    agent("tides")
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    os.mkfifo(seen)
    browser.write_text(f'#!/bin/sh\necho "$1" >{seen}\n')
    browser.chmod(0o700)
    opening = {**os.environ, "DISPLAY": ":0", "BROWSER": f"{browser} %s"}
    served = serve("--open", env=opening)
    address = seen.read_text().strip()
    assert address != served.line
    with served.browser(address) as entered:
        assert "tides" in entered.get("/").text
    assert httpx.get(address, timeout=60).status_code == 403
    assert httpx.get(served.line, timeout=60).status_code == 303


def test_an_open_page_does_not_keep_the_server(serve):
    """Ctrl-C ends the server at once, though a page is open and waits for events."""
    agent("tides")
    served = serve()
    with served.browser() as browser, browser.stream("GET", "/live") as events:
        assert next(events.iter_lines()) == "retry: 1000"
        assert served.end() == ("", "", 130)


MOUNTED = """
import socket
import uvicorn
import stepwise.ui

app = stepwise.ui.app(authorize=lambda _: "ann")
listening = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])
"""


def test_an_open_page_does_not_keep_a_server_of_ones_own():
    """SIGTERM ends a server that has the page as an application, though a page is open."""
    with subprocess.Popen(
        [sys.executable, "-c", MOUNTED], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            address = server.stdout.readline().strip()
            with httpx.stream("GET", f"{address}/live", timeout=60) as events:
                assert next(events.iter_lines()) == "retry: 1000"
                server.terminate()
                assert server.wait(timeout=60) == -signal.SIGTERM
        finally:
            server.kill()


def test_events_come_over_the_network(serve):
    """A run that another process executes is heard of by an open page."""
    agent("tides")
    served = serve()
    with served.browser() as browser, browser.stream("GET", "/live") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        data = (json.loads(line[6:]) for line in events.iter_lines() if line.startswith("data: "))
        assert next(data)["runs"] == []
        agent.options(run_id="second")("winds")
        while "second" not in next(data)["runs"]:
            pass


def test_a_terminated_server(serve):
    """SIGTERM ends the server in silence, too."""
    agent("tides")
    assert serve().end(signal.SIGTERM) == ("", "", -signal.SIGTERM)


def test_a_chosen_token(serve):
    """With ``--json`` the first line has the address, with a chosen token, and the process."""
    agent("tides")
    token = "abcdefghij0123456789"
    served = serve("--json", "--token", token)
    said = json.loads(served.line)
    assert said["pid"] == served.process.pid
    assert said["address"].endswith(f"?token={token}")
    with served.browser(said["address"]) as browser:
        assert "tides" in browser.get("/").text


def test_a_store_to_read_only(serve):
    """With ``--read-only`` the page shows the runs and takes no action."""
    agent.options(run_id="trip")("tides")
    served = serve("--read-only")
    with served.browser() as browser:
        assert "tides" in browser.get("/runs/trip").text
        token = re.search(r'name="token"[^>]*value="(\w+)"', browser.get("/").text)
        data = {"token": token[1] if token else ""}
        origin = {"origin": str(browser.base_url).rstrip("/")}
        assert browser.post("/runs/trip/delete", data=data, headers=origin).status_code == 403
    assert stepwise.get_run("trip").status == "completed"


def test_a_port_that_is_taken():
    """A taken port is a sentence that names the way out."""
    agent("tides")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = process("ui", "--no-open", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert re.fullmatch(r"stepwise: .* is taken\. .*--port 0\n", done.stderr)


def test_a_store_that_is_not_there(tmp_path):
    """A store that does not exist is a sentence, and is not made."""
    done = process("ui", "--no-open", "--store", f"disk:{tmp_path / 'nothing'}")
    assert done.returncode == 1
    assert re.fullmatch(r"stepwise: there is no store at .*--store.*\n", done.stderr)
    assert not (tmp_path / "nothing").exists()
    done = process("ui", "--no-open", "--store", "memory:")
    assert "in the memory of one process" in done.stderr


def test_a_store_that_cannot_be_read(tmp_path):
    """A store that cannot be read is a sentence before the address, not only on its pages."""
    folder = tmp_path / "damaged"
    folder.mkdir(0o700)
    (folder / "cache.db").write_bytes(b"no database" * 1000)
    for more in ((), ("--read-only",)):
        done = process("ui", "--no-open", "--port", "0", "--store", f"disk:{folder}", *more)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"the database of the store {folder} is damaged" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.2", "LOCALHOST"])
def test_another_name_of_this_machine(serve, host):
    """The printed address opens the page for each address that only this machine reaches."""
    agent("tides")
    served = serve("--host", host)
    with served.browser() as browser:
        assert "tides" in browser.get("/").text


@pytest.mark.parametrize("token", ["", "short", "with spaces in the middle"])
def test_a_host_that_others_reach_needs_a_token(token):
    """An address that others reach is refused without a token of 16 letters and digits."""
    agent("tides")
    done = process("ui", "--no-open", "--host", "0.0.0.0", "--token", token)
    assert (done.returncode, done.stdout) == (1, "")
    assert "token" in done.stderr


def test_without_the_extra():
    """Without the extra, the command and the function name it."""
    agent("tides")
    code = (
        "import sys; sys.modules[{0!r}] = None\n"
        "import stepwise.cli; sys.argv = ['stepwise', 'ui', '--no-open']; stepwise.cli.run()"
    )
    for missing in ("starlette", "uvicorn"):
        done = interpreted("-c", code.format(missing), code=1)
        assert "pip install 'stepwise-agents[ui]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_importing_stepwise_loads_nothing_of_the_page():
    """``import stepwise`` and the command line load neither the page nor what serves it."""
    code = "import sys, stepwise, stepwise.cli; print(*sys.modules)"
    done = interpreted("-c", code)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"starlette", "uvicorn", "anyio", "stepwise.ui._app"})
