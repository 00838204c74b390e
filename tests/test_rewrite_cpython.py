"""CPython's own tests of its modules pass when every function of the module is rewritten."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest
from sweeping import WHOLE

DRIVER = pathlib.Path(__file__).parent / "programs" / "cpython.py"
SECONDS = 600


class Subject(NamedTuple):
    """Modules of the standard library.

    Args:
        tests: of them, in the package ``test``.
        functions: at least so many can be rewritten, in every version of Python.
        sample: tested each time, not only with STEPWISE_WHOLE=1.
    """

    tests: str
    modules: str
    functions: int
    sample: bool = False


EMAIL = (
    "message _header_value_parser parser feedparser header headerregistry _policybase policy "
    "generator utils charset quoprimime base64mime contentmanager _parseaddr mime.text encoders"
)
SUBJECTS = [
    Subject("test_argparse", "argparse", 110, sample=True),
    Subject("test_textwrap", "textwrap", 12, sample=True),
    Subject("test_asyncio.test_queues", "asyncio.queues asyncio.mixins", 20, sample=True),
    Subject("test_copy", "copy", 9, sample=True),
    Subject("test_csv", "csv", 12, sample=True),
    Subject("test_fractions", "fractions", 30, sample=True),
    Subject("test_graphlib", "graphlib", 8, sample=True),
    Subject("test_heapq", "heapq", 12, sample=True),
    Subject("test_shlex", "shlex", 12, sample=True),
    Subject("test_bisect", "bisect", 4, sample=True),
    Subject("test_getopt", "getopt", 7, sample=True),
    Subject("test_htmlparser", "html.parser _markupbase", 30, sample=True),
    Subject("test_http_cookies", "http.cookies", 25, sample=True),
    Subject("test_asyncio.test_base_events", "asyncio.base_events", 90),
    Subject("test_asyncio.test_locks", "asyncio.locks asyncio.mixins", 35),
    Subject("test_asyncio.test_streams", "asyncio.streams", 40),
    Subject("test_asyncio.test_tasks", "asyncio.tasks", 20),
    Subject("test_calendar", "calendar", 50),
    Subject("test_configparser", "configparser", 80),
    Subject("test_dataclasses", "dataclasses", 40),
    Subject("test_decimal", "decimal _pydecimal", 200),
    Subject("test_difflib", "difflib", 25),
    Subject("test_email", " ".join(f"email.{name}" for name in EMAIL.split()), 400),
    Subject("test_gettext", "gettext", 25),
    Subject("test_ipaddress", "ipaddress", 110),
    Subject("test_json", "json json.decoder json.encoder json.scanner", 20),
    Subject("test_optparse", "optparse", 100),
    Subject("test_pickle", "pickle", 100),
    Subject("test_pprint", "pprint", 35),
    Subject("test_statistics", "statistics", 40),
    Subject("test_urlparse", "urllib.parse", 40),
    Subject("test_zipfile", "zipfile", 60),
]


def subjects(chosen):
    return pytest.mark.parametrize(
        "subject", [pytest.param(each, id=each.modules.split()[0]) for each in chosen]
    )


def run(mode, subject, folder):
    """Run the tests of a subject in a process of its own; what the driver says of it."""
    try:
        found = importlib.util.find_spec(f"test.{subject.tests}")
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"this Python comes without test.{subject.tests}")
    done = subprocess.run(
        [sys.executable, DRIVER, mode, f"test.{subject.tests}", *subject.modules.split()],
        cwd=folder,
        env={**os.environ, "STEPWISE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"bad": ["the process"], "text": done.stderr[-3000:], "tests": 0}


def check(mode, subject, folder):
    """No test may fail that passes with the module as it is."""
    said = run(mode, subject, folder)
    if said["bad"]:
        assert set(said["bad"]) <= set(run("original", subject, folder)["bad"]), said["text"]
    assert said["tests"] >= 8
    assert said["rewritten"] >= subject.functions
    assert said["entered"] >= 10 * subject.functions
    assert set(said["refused"]) <= {
        *("it is a generator", "it is an asynchronous generator"),
        *("it is a lambda", "its source is not to be had"),  # made by dataclass, namedtuple
    }
    return said


@subjects(each for each in SUBJECTS if WHOLE or each.sample)
def test_in_a_run(subject, tmp_path):
    """They pass when each call has a frame, which is asked to save at every point."""
    assert check("run", subject, tmp_path)["saved"] >= 5 * subject.functions


@subjects(SUBJECTS if WHOLE else SUBJECTS[:2])
def test_outside_a_run(subject, tmp_path):
    """They pass when no call has a frame, as it is outside a run."""
    assert check("plain", subject, tmp_path)["saved"] == 0


@subjects(SUBJECTS[:2])
def test_mistakes_are_found(subject, tmp_path):
    """They fail when a rewritten function loses a statement, so passing means something."""
    said = run("broken", subject, tmp_path)
    assert said["bad"]
    if said["bad"] != ["the process"]:  # Python 3.13's own tests do not outlive a broken textwrap
        assert said["rewritten"] >= subject.functions
