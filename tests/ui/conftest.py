"""What the tests of the page share: a browser without a screen, and runs to look at."""

import os
import re
import signal

import pytest
from harness import python
from starlette.testclient import TestClient

import stepwise
import stepwise.ui
from stepwise._runtime import settings
from stepwise.stores import open_store
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
PLACE = "http://127.0.0.1:8276"


class Browser:
    """A browser that has opened the address with the token."""

    def __init__(self, app, place=PLACE, root=""):
        self.app, self.root, self.place = app, root, place
        self.client = TestClient(app, base_url=place, follow_redirects=False)

    def enter(self):
        """Open the address that was printed."""
        answer = self.client.get(f"{self.root}/", params={"token": self.app.access.token})
        assert answer.status_code == 303
        return self

    def get(self, path, status=200, **how):
        """Load a page."""
        answer = self.client.get(self.root + path, **how)
        assert answer.status_code == status, answer.text
        return answer.text

    @property
    def token(self):
        """The hidden field of a form."""
        return re.search(r'name="token"[^>]*value="(\w+)"', self.get("/"))[1]

    def post(self, path, status=303, headers=None, **fields):
        """Send a form; return where it leads, or the text of its problem."""
        given = {"token": self.token, **fields}
        origin = {"origin": self.place}
        answer = self.client.post(
            self.root + path, data=given, headers=origin if headers is None else headers
        )
        assert answer.status_code == status, answer.text
        return answer.headers.get("location", answer.text)


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
        ended = python(script, topic, env={**os.environ, "DIE_AT": where})
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        (made,) = [each for each in stepwise.runs() if each not in before]
        return made

    return kill


@pytest.fixture
def program():
    """The source of the program of ``killed``."""
    return SCRIPT
