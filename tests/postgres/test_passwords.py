"""The password in the URL of a store is in nothing that is written or printed."""

import json
import os
import pathlib
import textwrap

import pytest

pytest.importorskip("psycopg", reason="needs the extra postgres")

from harness import python
from server import name_in

SECRET = "xK7-very.hidden"
PROGRAM = """
import logging, os, pickle, signal, sys
import stepwise
from stepwise import step, tool, workflow
from stepwise.integrations import _langgraph_threads as _langgraph_store

logging.basicConfig(level=1, filename="program.log")
stepwise.on_event(lambda event: print(repr(event), file=sys.stderr))
URL = sys.argv[1].removeprefix("--store=")
stepwise.configure(store=URL)

@step
def look(n):
    if os.path.exists("crash"):
        os.remove("crash")
        os.kill(os.getpid(), signal.SIGKILL)
    return n

@tool(side_effect=True)
def send(text):
    if os.path.exists("doubt"):
        os.remove("doubt")
        os.kill(os.getpid(), signal.SIGKILL)
    return text

@workflow(run_id="job")
def job(n):
    threads = THREADS
    first = look(1)
    second = look(2)
    return first, second, send("hello"), type(threads).__name__

@workflow(run_id="asks")
def asks():
    return stepwise.wait_for("name", str)

THREADS = None

def main():
    global THREADS
    THREADS = _langgraph_store.ThreadStore(URL)
    print(repr(THREADS), pickle.dumps(THREADS))
    print(job(3))
    stepwise.configure(suspend_after=0)
    print(asks())

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def guarded(server):
    """A database whose user needs a password."""
    url = server.create_database()
    name = name_in(url)
    server.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    server.sql(f"ALTER DATABASE {name} OWNER TO {name}")
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{before}")
    server.sql("SELECT pg_reload_conf()")
    yield f"postgresql://{name}:{SECRET}@127.0.0.1:{server.port}/{name}", url
    rules.write_text(before)
    server.sql("SELECT pg_reload_conf()")
    server.drop_database(url)
    server.sql(f"DROP ROLE {name}")


@pytest.fixture(autouse=True)
def real_stores(monkeypatch):
    """Let URLs of servers open these: our plugin replaces them in tests, in subprocesses too."""
    monkeypatch.delenv("STEPWISE_TEST_HOME", raising=False)


class Shell:
    """Executes commands in a folder, and keeps everything that they print."""

    def __init__(self, folder):
        self.folder, self.printed = folder, []

    def __call__(self, *words, code=0, **env):
        env = {**os.environ, "STEPWISE_QUIET": "", **env}
        ended = python(*words, cwd=self.folder, env=env)
        text = f"{ended.stdout}\n{ended.stderr}"
        assert code is None or ended.returncode == code, text
        self.printed.append((words, text))
        return text

    def stepwise(self, *words, **how):
        return self("stepwise", *words, **how)


def stored(server, url):
    """Every value in the tables of the database, as bytes."""
    found = []
    tables = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'stepwise'"
    for schema, table in server.sql(tables, database=name_in(url)):
        for row in server.sql(f"SELECT * FROM {schema}.{table}", database=name_in(url)):
            found += [each if isinstance(each, bytes) else str(each).encode() for each in row]
    assert len(found) > 50
    return found


def test_the_password_of_a_store_is_nowhere(guarded, server, tmp_path, home):
    """No record, file, output, message or event has it; a program that is resumed still gets it."""
    url, plain = guarded
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "crash").touch()
    shell = Shell(tmp_path)
    program = ("program.py", f"--store={url}")
    shell(*program, code=-9)
    assert f"--store={url.replace(f':{SECRET}', '')}" in shell.stepwise(
        "resume", "job", "--dry-run", "--store", url
    )
    (tmp_path / "doubt").touch()
    shell.stepwise("resume", "job", "--store", url, code=None)  # the program gets the password
    assert "StepInDoubtError" in shell(*program, code=1)
    for number, words in enumerate((
        "runs", "runs --json", "runs --workflow no", "show job --all --locals", "locals job",
        "show job --json", "in-doubt", "in-doubt --json", "verify", "doctor", "doctor --json",
        "restore", "export job --json", "export job -o page.html", "compact", "show nobody",
        "resume --all-crashed --dry-run", "prune --older-than 0s --json",
        "up --once program", "up --once --json program", "copy --to disk:./copy",
        "copy --to disk:./copy2 --json",
    )):  # fmt: skip
        given = ((*words.split(), "--store", url), words.split())[number % 2]
        shell.stepwise(*given, code=None, STEPWISE_STORE=url if number % 2 else "")
    shell.stepwise("resolve", "job", "send", "--landed", '"hello"', "--store", url)
    assert "asks" in shell(*program, code=75)
    shell.stepwise("send", "asks", "name", '"ann"', "--store", url)
    shell.stepwise("up", "--once", "program", "--store", url, code=None)
    shell.stepwise("copy", "--from", "disk:./copy", "--to", url, code=None)
    shell.stepwise("copy", "--from", url, "--to", url, code=1)
    for wrong in (
        url.replace(f"@127.0.0.1:{server.port}", "@127.0.0.1:1") + "?patience_seconds=1",
        url.replace("postgresql:", "postgress:"),
        f"{url}?pool_size=many",
        f"{url}?nonsense=1",
        url.replace(SECRET, f"not{SECRET}") + "?patience_seconds=1",
        f"postgresql://{name_in(plain)}@127.0.0.1:1/x?password={SECRET}&patience_seconds=1",
    ):
        shell.stepwise("runs", "--store", wrong, code=1)
        shell.stepwise("doctor", "--store", wrong, code=1)
        shell("program.py", f"--store={wrong}", code=1)
    for command, text in shell.printed:
        assert SECRET not in text, (command, text)
    for data in stored(server, plain):
        assert SECRET.encode() not in data, data
    for folder in (tmp_path, home):
        for path in pathlib.Path(folder).rglob("*"):
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert any("'job'" in text or "job" in text for _, text in shell.printed)


def test_a_url_without_its_password_opens_the_store(guarded, tmp_path):
    """The URL that is shown opens the store where the environment has the password."""
    url, _ = guarded
    shell = Shell(tmp_path)
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "doubt").touch()
    shell("program.py", f"--store={url}", code=-9)
    shown = url.replace(f":{SECRET}", "")
    text = shell("program.py", f"--store={url}", code=1)
    assert f"stepwise resolve job 3 --did-not-happen --store {shown}\n" in text
    runs = json.loads(shell.stepwise("runs", "--json", "--store", shown, PGPASSWORD=SECRET))
    assert [each["id"] for each in runs] == ["job"]
    runs = json.loads(shell.stepwise("runs", "--json", "--store", shown, STEPWISE_STORE=url))
    assert [each["id"] for each in runs] == ["job"]
