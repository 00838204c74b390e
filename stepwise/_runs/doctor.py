"""Findings about problems that could keep stepwise from working here, with their solutions.

The checks change nothing.
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

from stepwise._runs.run import listed
from stepwise._runtime import settings
from stepwise._runtime.messages import count
from stepwise._runtime.settings import public_url
from stepwise._runtime.system_limits import check_file, check_folder, distrusted
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError
from stepwise.stores import open_store
from stepwise.stores._files import has_ofd
from stepwise.stores.disk import DiskStore

_PACKAGES = ("click", "cloudpickle", "diskcache", "tenacity", "wrapt")
_SQLITE = (3, 31)
_SPACE = 200 * 2**20  # free bytes below which there is a warning
_CLOCKS = 2.0  # seconds between two clocks


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check, with the solution of a problem.

    Args:
        what: the subject of the check.
        todo: the solution.
    """

    what: str
    state: Literal["ok", "warning", "problem"]
    text: str
    todo: str = ""


def _judged(what: str, text: str, todo: str, *, is_good: bool) -> Finding:
    """Return a finding that is a warning with its solution unless it is good."""
    return Finding(what, "ok", text) if is_good else Finding(what, "warning", text, todo)


def findings(version: str) -> Iterator[Finding]:
    """Return the result of every check.

    Args:
        version: the version of stepwise.
    """
    yield from _versions(version)
    try:
        store: Any = open_store(settings.store())  # creates no file and no connection
    except StepwiseError as error:  # the settings do not name a store
        yield Finding("store", "problem", str(error))
        yield from _locks(is_server=False)
        yield _key(is_server=False, is_untouched=True)
        return
    folder = store.path if isinstance(store, DiskStore) else None
    is_untouched = folder is not None and not os.path.isdir(folder)
    is_server = hasattr(store, "server_facts")
    yield from _store(store, folder)
    if is_server:
        yield from _server(store)
    yield from _locks(is_server=is_server)
    yield _key(is_server=is_server, is_untouched=is_untouched)
    if not is_untouched:
        yield from _runs()
    elif folder is not None and not os.path.exists(folder):
        yield _NO_RUNS


def _versions(version: str) -> Iterator[Finding]:
    python = f"Python {platform.python_version()} on {platform.system()}"
    yield Finding("stepwise", "ok", f"{version}, {python}")
    found = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    yield Finding("packages", "ok", ", ".join(found))
    todo = f"use a Python with SQLite {'.'.join(map(str, _SQLITE))} or newer"
    is_good = sqlite3.sqlite_version_info >= _SQLITE
    yield _judged("SQLite", sqlite3.sqlite_version, todo, is_good=is_good)


def _store(store: Any, folder: str | None) -> Iterator[Finding]:
    url = public_url(str(settings.store()))
    if folder is not None and not os.path.isdir(folder):
        yield _to_be_made(url, folder)
        return
    try:
        runs = sum(1 for _ in store.heads())
        yield Finding("store", "ok", f"{url} holds {count(runs, 'run')}")
    except (StepwiseError, RunStopped) as error:
        yield Finding("store", "problem", str(error))
    if folder is not None:
        yield from _folder(folder)


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
    found = os.stat(folder)
    mode, reason = found.st_mode & 0o777, distrusted(folder, found)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "permissions", "problem", f"{folder} cannot be written", f"chmod u+rwx {folder}"
        )
    elif reason is not None:
        yield Finding("permissions", "problem", f"{folder}: {reason[0]}", reason[1])
    else:
        yield Finding("permissions", "ok", f"{folder} ({mode:o})")
    free = shutil.disk_usage(folder).free
    text, todo = f"{free / 2**30:.1f} GB free", "make room: stepwise prune --dry-run"
    yield _judged("disk", text, todo, is_good=free >= _SPACE)


def _server(store: Any) -> Iterator[Finding]:
    try:
        facts = store.server_facts()
    except (StepwiseError, RunStopped):
        return  # the finding about the store reports the problem
    answered = f"{facts.seconds * 1000:.1f} ms for a request"
    yield Finding("server", "ok", f"PostgreSQL {facts.settings['server_version']}, {answered}")
    yield _durability(facts)
    yield from _replication(facts)
    direct = "none: messages to runs arrive at once"
    pooled = "there is one: messages to runs are looked for twice a second"
    yield Finding("pooler", "ok", direct if facts.direct else pooled)
    text = f"the server's is {abs(facts.ahead):.1f} s {'ahead' if facts.ahead > 0 else 'behind'}"
    todo = "synchronize the clocks (NTP): waits that another machine began end at other times"
    yield _judged("clock", text, todo, is_good=abs(facts.ahead) <= _CLOCKS)


def _durability(facts: Any) -> Finding:
    for name in ("fsync", "synchronous_commit"):
        if facts.settings[name] == "off":
            text = f"{name} = off: steps that were recorded are lost when the server crashes"
            way = "ALTER SYSTEM" if name == "fsync" else f"ALTER DATABASE {facts.database}"
            todo = f"{way} SET {name} = on; then restart the program"
            return Finding("durability", "problem", text, todo)
    if facts.settings["full_page_writes"] == "off":
        text = "full_page_writes = off: a power cut may damage the database"
        return Finding("durability", "warning", text, "ALTER SYSTEM SET full_page_writes = on")
    text = f"fsync = on, synchronous_commit = {facts.settings['synchronous_commit']}"
    return Finding("durability", "ok", text)


def _replication(facts: Any) -> Iterator[Finding]:
    if facts.standby:
        text = "the server is a standby: it can be read, and no run can be executed"
        yield Finding("replication", "problem", text, "use the URL of the primary server")
    for each in facts.standbys:
        if each.sync in ("sync", "quorum"):
            yield Finding("replication", "ok", f"standby {each.name} is synchronous")
            continue
        text = (
            f"standby {each.name} is asynchronous: a failover to it loses the newest records, so "
            "that steps run again, and side effects among them happen twice, without a question"
        )
        todo = "set synchronous_standby_names; after a failover without it: stepwise restore"
        yield Finding("replication", "warning", text, todo)


def _locks(*, is_server: bool) -> Iterator[Finding]:
    if is_server:
        return  # leases are rows
    if has_ofd():
        yield Finding("locks", "ok", "of open file descriptions")
    else:
        text = "of processes (POSIX): a run that reads its own store's files loses its lease"
        todo = f"keep {public_url(str(settings.store()))} out of the folders that agents search"
        yield Finding("locks", "warning", text, todo)


def _key(*, is_server: bool, is_untouched: bool) -> Finding:  # noqa: PLR0911 -- one for each case
    if os.environ.get("STEPWISE_KEY"):
        return Finding("key", "ok", "from STEPWISE_KEY")
    path = pathlib.Path(settings.home(), "key")
    if path.parent.exists() and (problem := _distrusted(path)):
        return Finding("key", "problem", problem)
    if not path.exists() and is_untouched:
        return Finding("key", "ok", f"{path} is made by the first run")
    if not path.exists():
        todo = "bring it back from a backup, or set STEPWISE_KEY; else no run can be verified"
        return Finding("key", "problem", f"{path} is gone", todo)
    mode = path.stat().st_mode & 0o777
    if not os.access(path, os.R_OK):
        return Finding("key", "problem", f"{path} cannot be read", f"chmod 600 {path}")
    if mode & 0o077:
        return Finding("key", "warning", f"others may read {path} ({mode:o})", f"chmod 600 {path}")
    if is_server:
        todo = "set STEPWISE_KEY to the same secret on every machine that uses the store"
        return Finding("key", "warning", f"{path}: other machines do not have it", todo)
    return Finding("key", "ok", str(path))


def _distrusted(path: pathlib.Path) -> str:
    """Return why the key, or its future folder, is not trusted; empty if it is trusted."""
    try:
        check_file(str(path), path.stat()) if path.exists() else check_folder(str(path.parent))
    except ConfigurationError as error:
        return str(error)
    return ""


_NO_RUNS = Finding("runs", "ok", "none yet; to see one killed and resumed: stepwise demo")


def _runs() -> Iterator[Finding]:
    if not (os.environ.get("STEPWISE_KEY") or pathlib.Path(settings.home(), "key").exists()):
        return  # the finding about the key reports the problem
    try:
        counted: Counter[Any] = Counter(each.status for each in listed())
    except (StepwiseError, RunStopped) as error:
        yield Finding("runs", "problem", str(error))
        return
    told = ", ".join(f"{number} {status}" for status, number in counted.most_common())
    if not counted:
        yield _NO_RUNS
    elif counted["stuck"]:
        todo = "stuck ones died at one step three times, and are left: stepwise runs --status stuck"
        yield Finding("runs", "warning", told, todo)
    elif counted["crashed"]:
        todo = "their processes are gone, and so are their leases: stepwise resume --all-crashed"
        yield Finding("runs", "warning", told, todo)
    else:
        yield Finding("runs", "ok", told)
