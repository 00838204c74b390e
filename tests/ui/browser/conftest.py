"""A store with the runs of a story, its page, and a browser: Debian's chromium, by Playwright."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

HERE = pathlib.Path(__file__).parent
BROWSER = shutil.which("chromium")
PATIENCE = 120_000  # milliseconds; time decides nothing: what has not come by then is broken
SERVER = """  # whose requests read to their end, however busy the machine is
import runpy
from stepwise.ui import _reading

_reading._SECONDS = 3600.0
runpy.run_module("stepwise", run_name="__main__", alter_sys=True)
"""
WITHOUT = (
    "the pages need a browser: make test-ui installs it as root; else apt-get install chromium, "
    "and pip install playwright axe-playwright-python"
)

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    BROWSER = None


class Story:
    """A store with runs, the programs that make them, and the page that shows them."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copy(HERE / "story.py", folder)
        names = {"STEPWISE_HOME": str(folder / "home"), "STEPWISE_QUIET": "1", "TZ": "UTC"}
        self.environment = {**os.environ, **names}
        self.address = self.root = ""

    def play(self, name):
        """Run one program of the story to its end, whatever that is."""
        command = [sys.executable, "story.py", name]
        given = {"cwd": self.folder, "env": self.environment, "timeout": 120}
        return subprocess.run(command, check=False, capture_output=True, **given).returncode

    @contextmanager
    def begun(self, name):
        """Begin one program of the story, which reads lines; yield what sends it one."""
        command = [sys.executable, "story.py", name]
        given = {"cwd": self.folder, "env": self.environment, "text": True}
        with subprocess.Popen(command, stdin=subprocess.PIPE, **given) as program:

            def tell(line):
                program.stdin.write(f"{line}\n")
                program.stdin.flush()

            yield tell
        assert program.returncode == 0

    @contextmanager
    def served(self, *options, port=0):
        """Serve the page of the store."""
        command = [sys.executable, "-c", SERVER, "ui", "--port", str(port), "--no-open", *options]
        given = {"cwd": self.folder, "env": self.environment, "text": True}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, **given)
        try:
            self.address = server.stdout.readline().strip()
            self.root = self.address.partition("/?")[0]
            yield self
        finally:
            server.terminate()
            server.communicate(timeout=120)


@pytest.fixture(scope="session")
def browser():
    """The browser, for all tests."""
    if BROWSER is None:
        pytest.skip(WITHOUT)
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def shown(browser, tmp_path_factory):
    """A served store that no test changes: crashed, suspended, in doubt, failed, with branches."""
    story = Story(tmp_path_factory.mktemp("shown"))
    for name in ("branched", "killed", "killed", "asked", "paid", "failed"):
        story.play(name)
    with story.served() as served:
        yield served


@pytest.fixture
def story(browser, tmp_path):
    """A served store with one failed run, for a test that changes it."""
    made = Story(tmp_path)
    made.play("failed")
    with made.served() as served:
        yield served


@pytest.fixture
def visit(browser):
    """Open the first page of a story in a tab of its own.

    At the end nothing was on the console but what was expected: ``says``.
    """
    tabs, said = [], []

    def opened(story, *, scheme="light", width=1400, javascript=True, says="$."):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=javascript,
        )
        tabs.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()

        def hear(text):
            if not re.search(says, text):
                said.append(text)

        page.on("console", lambda message: hear(message.text))
        page.on("pageerror", lambda error: hear(str(error)))
        page.goto(story.address)
        return page

    yield opened
    for each in tabs:
        each.close()
    assert said == []


@pytest.fixture
def accessible():
    """Check a page by the rules of axe, and that it is no wider than its window."""

    def check(page):
        found = Axe().run(page).response["violations"]
        told = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
        assert told == [], page.url
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], page.url

    return check
