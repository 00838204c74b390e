"""Findings about what could keep stepwise from working here, and what to do about it.

Nothing is changed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from stepwise._runs.listing import listed
from stepwise._runtime import settings
from stepwise._runtime.file_trust import check_file, check_folder
from stepwise._runtime.messages import count
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError
from stepwise.stores import open_store
from stepwise.stores._folder_store import FolderStore
from stepwise.stores._locks import has_ofd

__all__ = ["Finding", "findings"]

_PACKAGES = ("click", "cloudpickle", "diskcache", "tenacity", "wrapt")
_SQLITE = (3, 31)
_SPACE = 200 * 2**20  # bytes that should be free


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check, and what to do about a problem.

    Args:
        what: the thing that was checked.
        todo: the way out.
    """

    what: str
    state: Literal["ok", "warning", "problem"]
    text: str
    todo: str = ""


def findings(version: str) -> list[Finding]:
    """Return the result of every check.

    Args:
        version: the version of stepwise.
    """
    return [*_versions(version), *_store(), *_locks(), *_key(), *_runs()]


def _versions(version: str) -> Iterator[Finding]:
    python = f"Python {platform.python_version()} on {platform.system()}"
    yield Finding("stepwise", "ok", f"{version}, {python}")
    found = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    yield Finding("packages", "ok", ", ".join(found))
    if sqlite3.sqlite_version_info < _SQLITE:
        wanted = ".".join(map(str, _SQLITE))
        todo = f"use a Python with SQLite {wanted} or newer"
        yield Finding("SQLite", "warning", sqlite3.sqlite_version, todo)
    else:
        yield Finding("SQLite", "ok", sqlite3.sqlite_version)


def _store() -> Iterator[Finding]:
    url, folder = str(settings.store()), None
    try:
        folder = _place()
        if folder is not None and not os.path.isdir(folder):
            yield _to_be_made(url, folder)
            return
        runs = sum(1 for _ in open_store(settings.store()).heads())
        yield Finding("store", "ok", f"{url} holds {count(runs, 'run')}")
    except (StepwiseError, RunStopped) as error:
        yield Finding("store", "problem", str(error))
    if folder is not None:
        yield from _folder(folder)


def _place() -> str | None:
    """The folder of the store, which need not exist; a store without one has none.

    Raises:
        ConfigurationError: what the settings say is no store.
    """
    store = open_store(settings.store())  # touches nothing
    return store.path if isinstance(store, FolderStore) else None


def _to_be_made(url: str, folder: str) -> Finding:
    if os.path.exists(folder):
        todo = "move it away, or set STEPWISE_HOME or STEPWISE_STORE to a folder of yours"
        return Finding("store", "problem", f"{folder} is not a folder", todo)
    above = folder
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if os.access(above, os.W_OK):
        return Finding("store", "ok", f"{url} is made by the first run")
    todo = "set STEPWISE_HOME or STEPWISE_STORE to a folder of yours"
    return Finding("store", "problem", f"{folder} cannot be made in {above}", todo)


def _folder(folder: str) -> Iterator[Finding]:
    mode = os.stat(folder).st_mode & 0o777
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "permissions", "problem", f"{folder} cannot be written", f"chmod u+rwx {folder}"
        )
    elif mode & 0o022:
        text = f"other users may write to {folder} ({mode:o})"
        yield Finding("permissions", "warning", text, f"chmod go-w {folder}")
    else:
        yield Finding("permissions", "ok", f"{folder} ({mode:o})")
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GB free"
    if free < _SPACE:
        yield Finding("disk", "warning", text, "make room: stepwise prune --dry-run")
    else:
        yield Finding("disk", "ok", text)


def _locks() -> Iterator[Finding]:
    if has_ofd():
        yield Finding("locks", "ok", "of open file descriptions")
    else:
        text = "of processes (POSIX): a run that reads its own store's files loses its lease"
        todo = f"keep {settings.store()!s} out of the folders that agents search"
        yield Finding("locks", "warning", text, todo)


def _key() -> Iterator[Finding]:
    if os.environ.get("STEPWISE_KEY"):
        yield Finding("key", "ok", "from STEPWISE_KEY")
        return
    path = settings.home() / "key"
    if not path.exists():
        if path.parent.exists() and (problem := _distrusted(path)):
            yield Finding("key", "problem", problem)
        elif _is_untouched():
            yield Finding("key", "ok", f"{path} is made by the first run")
        else:
            todo = "bring it back from a backup, or set STEPWISE_KEY; else no run can be verified"
            yield Finding("key", "problem", f"{path} is gone", todo)
        return
    mode = path.stat().st_mode & 0o777
    if problem := _distrusted(path):
        yield Finding("key", "problem", problem)
        return
    if not os.access(path, os.R_OK):
        yield Finding("key", "problem", f"{path} cannot be read", f"chmod 600 {path}")
    elif mode & 0o077:
        yield Finding("key", "warning", f"others may read {path} ({mode:o})", f"chmod 600 {path}")
    else:
        yield Finding("key", "ok", str(path))


def _distrusted(path: pathlib.Path) -> str:
    """Return why the key, or its future folder, is not trusted; empty if it is."""
    try:
        check_file(path, path.stat()) if path.exists() else check_folder(path.parent)
    except ConfigurationError as error:
        return str(error)
    return ""


def _runs() -> Iterator[Finding]:
    none = Finding("runs", "ok", "none yet; to see one killed and resumed: stepwise demo")
    if _is_untouched():
        if _can_be_made():
            yield none
        return
    if not (os.environ.get("STEPWISE_KEY") or (settings.home() / "key").exists()):
        return  # the finding about the key says what that means
    try:
        counted: Counter[Any] = Counter(each.status for each in listed())
    except (StepwiseError, RunStopped) as error:
        yield Finding("runs", "problem", str(error))
        return
    told = ", ".join(f"{number} {status}" for status, number in counted.most_common())
    if not counted:
        yield none
        return
    if counted["crashed"]:
        todo = "their processes are gone, and so are their leases: stepwise resume --all-crashed"
        yield Finding("runs", "warning", told, todo)
    else:
        yield Finding("runs", "ok", told)


def _can_be_made() -> bool:
    """Return whether the settings name a store, with nothing in its place."""
    try:
        folder = _place()
    except ConfigurationError:
        return False
    return folder is None or not os.path.exists(folder)


def _is_untouched() -> bool:
    try:
        folder = _place()
    except ConfigurationError:
        return True  # the finding about the store says so
    return folder is not None and not os.path.isdir(folder)
