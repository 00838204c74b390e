"""The Pythons of this machine."""

import functools
import os
import pathlib
import shutil
import sys

import pytest


@functools.cache
def interpreters():
    """Those that are installed, by version."""
    found = {}
    versions = pathlib.Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    for minor in range(10, 15):
        each = [*versions.glob(f"3.{minor}.*/bin/python"), shutil.which(f"python3.{minor}")]
        if sys.version_info[1] == minor:
            each.insert(0, sys.executable)
        found.update({f"3.{minor}": str(next(filter(None, each)))} if any(each) else {})
    return found


def interpreter(version):
    """One of them; skips where it is not there."""
    if version not in interpreters():
        pytest.skip(f"no Python {version} on this machine")
    return interpreters()[version]
