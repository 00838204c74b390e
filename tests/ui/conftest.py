"""What the tests of the page share: a browser without a screen, and runs to look at."""

import os
import signal

import pytest
from browsing import Browser
from harness import python

import stepwise
import stepwise.ui
from stepwise._runtime import settings
from stepwise.stores import open_store
from stepwise.ui import _reading
from stepwise.ui._access import LOOPBACK, Access
from stepwise.ui._app import App

SCRIPT = """
import os, signal, sys
from stepwise import step, tool, workflow

def die(where):
    if os.environ.get("DIE_AT") == where:
        os.kill(os.getpid(), signal.SIGKILL)

@step
def think(number):
    die(str(number))
    return number

def unsend(text):
    print("unsent", text)

@tool(side_effect=True, compensate=unsend)
def send(text):
    die("send")
    return f"sent {text}"

@workflow
def agent(topic):
    print("about", topic, "<b>", flush=True)
    for number in range(1, 4):
        think(number)
    print("noise\\n" * int(os.environ.get("NOISE", "0")), flush=True)
    done = send(topic)
    die("after")
    return done

if __name__ == "__main__":
    print("the program begins", flush=True)
    if "WAIT" in os.environ:
        sys.stdout.write("it waits")
        sys.stdout.flush()
        open(os.environ["WAIT"]).close()  # a pipe
    agent(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A request reads to its end, however busy the machine is."""
    monkeypatch.setattr(_reading, "_SECONDS", 3600.0)


@pytest.fixture
def browse():
    """Opens the page of the store of the test."""

    def opened(**how):
        app = App(open_store(settings.store()), Access(hosts=LOOPBACK), **how)
        return Browser(app).enter()

    return opened


@pytest.fixture
def page(browse):
    """The page of the store of the test, in a browser."""
    return browse()


@pytest.fixture
def page_of_ann():
    """The page in an application that names its user Ann."""
    return Browser(stepwise.ui.app(authorize=lambda request: "ann@example.org"))


@pytest.fixture
def suspends():
    """Runs that wait release their process at once."""
    stepwise.configure(suspend_after=0)


@pytest.fixture
def killed(tmp_path):
    """Runs a program that kills itself at a place: 1, 2, 3, send or after; returns its run."""

    def kill(where, topic="tides"):
        before = stepwise.runs()
        script = tmp_path / "agent.py"
        script.write_text(SCRIPT)
        python(script, topic, env={**os.environ, "DIE_AT": where}, code=-signal.SIGKILL)
        (made,) = [each for each in stepwise.runs() if each not in before]
        return made

    return kill


@pytest.fixture
def program():
    """The source of the program of ``killed``."""
    return SCRIPT
