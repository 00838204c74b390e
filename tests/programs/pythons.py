"""The Pythons of this machine, and what they need: this library, the pure Python of the others."""

import functools
import os
import pathlib
import shutil
import sys

import click
import cloudpickle
import diskcache
import pytest
import tenacity
import wrapt

import stepwise

NEEDED = (click, cloudpickle, diskcache, stepwise, tenacity, wrapt)
MINE = f"3.{sys.version_info[1]}"


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


def others():
    """The versions of the other ones."""
    return [version for version in interpreters() if version != MINE]


def interpreter(version):
    """One of them; skips where it is not there."""
    if version not in interpreters():
        pytest.skip(f"no Python {version} on this machine")
    return interpreters()[version]


def copy_library(folder):
    """Copy the packages that are needed, and nothing of one version only."""
    for package in NEEDED:
        source = pathlib.Path(package.__file__).parent
        shutil.copytree(
            source, folder / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    return folder
