"""Calls of other people's functions go on in a new interpreter, whatever statement they were at.

The functions are those of CPython's library, the arguments those that CPython's own tests call them
with; see ``programs/teleport.py``.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter

import pytest
from pythons import MINE, interpreters
from sweeping import SEED, size, some

DRIVER = pathlib.Path(__file__).parents[1] / "programs" / "teleport.py"
SECONDS = 600
EMAIL = (
    "message _header_value_parser parser feedparser header headerregistry _policybase policy "
    "generator utils charset quoprimime base64mime contentmanager _parseaddr"
)
SUBJECTS = {
    "test_argparse": "argparse",
    "test_calendar": "calendar",
    "test_configparser": "configparser",
    "test_copy": "copy",
    "test_csv": "csv",
    "test_difflib": "difflib",
    "test_email": " ".join(f"email.{name}" for name in EMAIL.split()),
    "test_fractions": "fractions",
    "test_gettext": "gettext",
    "test_graphlib": "graphlib",
    "test_htmlparser": "html.parser _markupbase",
    "test_http_cookies": "http.cookies",
    "test_ipaddress": "ipaddress",
    "test_json": "json json.decoder json.encoder json.scanner",
    "test_optparse": "optparse",
    "test_pprint": "pprint",
    "test_shlex": "shlex",
    "test_statistics": "statistics",
    "test_textwrap": "textwrap",
    "test_urlparse": "urllib.parse",
}
PARTS = 2  # for as many processes of pytest-xdist
CASES = [(tests, version) for version in interpreters() for tests in SUBJECTS]


def teleport(tests, version, library, limit, **environment):
    """Return what the three processes say, or None where there are no tests to record from."""
    python, path = sys.executable, os.environ.get("PYTHONPATH", "")
    if version == MINE and importlib.util.find_spec(f"test.{tests}") is None:
        return None  # Debian's Python
    if version != MINE:
        python, path = interpreters()[version], str(library)
    said, modules = [], SUBJECTS[tests].split()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stepwise-teleport-", dir=memory) as folder:
        for mode in ("record", "save", "load"):
            done = subprocess.run(
                [python, DRIVER, mode, folder, str(limit), f"test.{tests}", *modules],
                cwd=folder,
                env={
                    **os.environ,
                    "STEPWISE_HOME": f"{folder}/home",
                    "STEPWISE_SEED": str(SEED),
                    "PYTHONPATH": path,
                    **environment,
                },
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            if "No module named 'test" in done.stderr:
                return None  # not every Python comes with its tests
            assert done.returncode == 0, done.stderr
            said.append(json.loads(done.stdout.splitlines()[-1]))
    return said


@pytest.mark.parametrize("part", range(PARTS))
def test_calls_go_on_in_a_new_interpreter(part, library, tally):
    """At every statement a call can be left, and ends elsewhere as if nothing had happened."""
    total = Counter()
    for tests, version in some(CASES, 2, "teleports")[part::PARTS]:
        said = teleport(tests, version, library, size(8, 400))
        if said is None:
            continue
        recorded, left, ended = said
        assert recorded["functions"], (tests, version)
        assert not ended.pop("wrong"), (tests, version)
        assert "broke" not in left, (tests, version)
        assert ended["resumed"] >= 5, (tests, version)
        total.update(ended)
        total["trials"] += sum(left.values())
        total["not_recordable"] += left.get("not_recordable", 0)
    tally("calls of CPython's library, in a new interpreter", **total)


def test_a_forgotten_variable_is_noticed(library):
    """Where a checkpoint leaves a variable out, calls end otherwise: so passing means something."""
    said = teleport("test_difflib", MINE, library, 25, FORGETFUL="1")
    if said is None:
        pytest.skip("this Python comes without its tests")
    ended = said[-1]
    assert ended["wrong"]
