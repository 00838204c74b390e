"""``stepwise preflight`` with a role of the server that may only read."""

import json
import os
import pathlib

import pytest
from harness import python

psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")

AGENT = """
import os
from stepwise import step, workflow

@step
def think(n):
    if os.environ.get("DIE") == str(n):
        os._exit(7)
    return n

@workflow
def agent(task):
    one = think(1)
    return think(2)

if __name__ == "__main__":
    agent("poem")
"""
ROLE = (
    "CREATE ROLE looker LOGIN NOINHERIT",
    "GRANT USAGE ON SCHEMA stepwise TO looker",
    "GRANT SELECT ON ALL TABLES IN SCHEMA stepwise TO looker",
)
DROP = ("DROP OWNED BY looker", "DROP ROLE looker")


def test_a_role_that_only_reads(postgres, tmp_path, monkeypatch):
    """A role with ``SELECT`` alone is enough, and the run resumes afterwards as was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWISE_STORE", postgres)
    pathlib.Path("agent.py").write_text(AGENT, "utf-8")
    python("agent.py", env={**os.environ, "DIE": "2"}, code=7)
    with psycopg.connect(postgres, autocommit=True) as connection:
        for statement in ROLE:
            connection.execute(statement)
        try:
            url = psycopg.conninfo.conninfo_to_dict(postgres)
            url = f"postgresql:///{url['dbname']}?host={url['host']}&port={url.get('port', 5432)}"
            done = python(
                "stepwise", "preflight", "agent.py", "--json", "--store", f"{url}&user=looker"
            )
            (row,) = json.loads(done.stdout)
            assert (row["verdict"], row["at"], done.returncode) == ("resumes", "agent.py:14", 0)
        finally:
            for statement in DROP:
                connection.execute(statement)
    python("agent.py", code=0)
