"""CPython's own tests pass when every function of a module, or of the tests, is rewritten."""

import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest
from pythons import MINE, interpreters
from sweeping import WHOLE, some

DRIVER = pathlib.Path(__file__).parents[1] / "programs" / "cpython.py"
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
# Tests whose own functions are rewritten, for the sake of the language.
LANGUAGE = [
    Subject(f"test_{name}", f"test.test_{name}", functions)
    for name, functions in {
        "asyncgen": 40,
        "class": 20,
        "contextlib": 60,
        "contextlib_async": 30,
        "context": 30,
        "coroutines": 80,
        "deque": 60,
        "dict": 70,
        "enum": 150,
        "exceptions": 60,
        "fstring": 40,
        "generators": 15,
        "global": 2,
        "grammar": 60,
        "iter": 60,
        "itertools": 80,
        "list": 10,
        "listcomps": 8,
        "named_expressions": 50,
        "patma": 250,
        "raise": 30,
        "random": 60,
        "scope": 30,
        "set": 200,
        "string": 30,
        "typing": 300,
        "unpack": 0,
        "with": 60,
    }.items()
]


def subjects(chosen):
    return pytest.mark.parametrize(
        "subject", [pytest.param(each, id=each.tests) for each in chosen]
    )


def run(mode, subject, folder, version=MINE, library=None):
    """Run the tests of a subject in a process of its own, and return the driver's report."""
    python, environment = sys.executable, {**os.environ, "STEPWISE_HOME": str(folder / "home")}
    if version != MINE:
        python, environment["PYTHONPATH"] = interpreters()[version], str(library)
    look = f"import importlib.util; assert importlib.util.find_spec('test.{subject.tests}')"
    looked = subprocess.run([python, "-c", look], capture_output=True, check=False)
    if looked.returncode:
        if version == MINE:
            pytest.skip(f"this Python comes without test.{subject.tests}")
        return None  # another one does
    done = subprocess.run(
        [python, DRIVER, mode, f"test.{subject.tests}", *subject.modules.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"bad": ["the process"], "text": done.stderr[-3000:], "tests": 0}


def check(mode, subject, folder, version=MINE, library=None):
    """Check that every test passes that passes with the original module."""
    said = run(mode, subject, folder, version, library)
    if said is None:
        return None
    if said["bad"]:
        original = run("original", subject, folder, version, library)
        assert set(said["bad"]) <= set(original["bad"]), said["text"]
    times = 1 if subject in LANGUAGE else 10  # a test is called once
    assert said["tests"] >= (1 if subject in LANGUAGE else 8)
    assert said["rewritten"] >= subject.functions
    assert said["entered"] >= times * subject.functions
    refused = dict(said["refused"])
    if subject.tests == "test_grammar" and version == "3.10":  # it moves the line of a statement
        assert refused.pop("its source does not match its code", 0) <= 3
    assert set(refused) <= {
        *("it is a generator", "it is an asynchronous generator"),
        # Made by dataclass, namedtuple.
        *("it is a lambda", "its source is not available; put it into a file"),
    }
    return said


@subjects([*(each for each in SUBJECTS if WHOLE or each.sample), *(LANGUAGE if WHOLE else ())])
def test_in_a_run(subject, tmp_path):
    """CPython's tests pass when each call has a frame, which is asked to save at every point."""
    said = check("run", subject, tmp_path)
    assert said["saved"] >= (1 if subject in LANGUAGE else 5) * subject.functions


@pytest.mark.parametrize("version", sorted(interpreters().keys() - {MINE}))
def test_with_another_python(version, library, tmp_path):
    """CPython's tests pass with each installed Python."""
    for subject in some([*SUBJECTS, *LANGUAGE], 2, f"cpython {version}"):
        check("run", subject, tmp_path, version, library)


@subjects(SUBJECTS if WHOLE else SUBJECTS[1:3])
def test_outside_a_run(subject, tmp_path):
    """CPython's tests pass when no call has a frame, as outside a run."""
    assert check("plain", subject, tmp_path)["saved"] == 0


@subjects(SUBJECTS[:2])
def test_mistakes_are_found(subject, tmp_path):
    """The tests fail when a rewritten function loses a statement, so passing means something."""
    said = run("broken", subject, tmp_path)
    assert said["bad"]
    if said["bad"] != ["the process"]:  # Python 3.13's own tests do not outlive a broken textwrap
        assert said["rewritten"] >= subject.functions
