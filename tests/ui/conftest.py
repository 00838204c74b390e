"""What the tests of the page share: a browser without a screen, and runs to look at."""

import re

import pytest
from starlette.testclient import TestClient

import stepwise
from stepwise._runtime import settings
from stepwise.stores import open_store
from stepwise.ui._access import LOOPBACK, Access
from stepwise.ui._app import App

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
def suspends():
    """Runs that wait release their process at once."""
    stepwise.configure(suspend_after=0)
