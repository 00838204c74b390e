"""The tables of a Postgres store: made and migrated under a lock of the transaction.

::

    meta       version of the tables
    leases     run, hash of the run id, epoch, turn, holder, owner, the last two marks
    runs       run, for listings: run id, workflow and its hash, finished, head, and its place in
               the order in which the runs began
    records    run, number, data
    objects    run, hash of the name, name, data
    pieces     run, what they are pieces of, number, data: values of more than 8 MB
    processes  id, host, boot, namespace of process ids, pid, its start, node, lease, beat

A lease is the small row that each batch changes in place: no index holds what a batch changes.
Texts are bytes, since Postgres stores neither NUL nor half a surrogate pair.  Instead of names and
run ids, which may be longer than an entry of an index, hashes are in the indexes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg

from stepwise.errors import StoreError

__all__ = ["prepare_schema"]

VERSION = 1

_TABLES = """
CREATE TABLE {schema}.meta (version integer NOT NULL);
CREATE TABLE {schema}.leases (
    run bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash bytea NOT NULL UNIQUE,
    epoch bigint NOT NULL,
    turn bigint NOT NULL,
    holder bigint,
    large boolean NOT NULL DEFAULT false,
    owner text,
    mark bytea,
    mark_before bytea
) WITH (fillfactor = 50);
CREATE INDEX leases_holder ON {schema}.leases (holder) WHERE holder IS NOT NULL;
CREATE TABLE {schema}.runs (
    run bigint PRIMARY KEY,
    name bytea NOT NULL,
    flow bytea NOT NULL,
    workflow bytea NOT NULL,
    finished boolean NOT NULL,
    size bigint,
    data bytea,
    place bigint GENERATED ALWAYS AS IDENTITY
) WITH (fillfactor = 80);
CREATE INDEX runs_place ON {schema}.runs (place);
CREATE INDEX runs_workflow ON {schema}.runs (workflow, run);
CREATE INDEX runs_unfinished ON {schema}.runs (run) WHERE NOT finished;
CREATE INDEX runs_unfinished_place ON {schema}.runs (place) WHERE NOT finished;
CREATE INDEX runs_unfinished_workflow ON {schema}.runs (workflow, run) WHERE NOT finished;
CREATE TABLE {schema}.records (
    run bigint NOT NULL,
    number bigint NOT NULL,
    size bigint,
    data bytea,
    PRIMARY KEY (run, number)
);
CREATE TABLE {schema}.objects (
    run bigint NOT NULL,
    hash bytea NOT NULL,
    name bytea NOT NULL,
    size bigint,
    data bytea,
    PRIMARY KEY (run, hash)
);
CREATE TABLE {schema}.pieces (
    run bigint NOT NULL,
    ref bytea NOT NULL,
    part integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, ref, part)
);
CREATE TABLE {schema}.processes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host text NOT NULL,
    boot text NOT NULL,
    namespace text NOT NULL,
    pid bigint NOT NULL,
    started text NOT NULL,
    node text NOT NULL,
    lease_seconds double precision NOT NULL,
    beat timestamptz NOT NULL
) WITH (fillfactor = 50);
INSERT INTO {schema}.meta VALUES ({version});
"""

_MIGRATIONS: dict[int, str] = {}
"""For each older version, the statements that make the next one of it."""


def prepare_schema(connection: psycopg.Connection[Any], schema: str, where: str) -> None:
    """Make the tables, or bring those of an older version up to date.

    Raises:
        StoreError: a newer version of stepwise made them.
    """
    if _version(connection, schema) == VERSION:
        return
    # Many processes may start at once; the lock ends with the transaction, also behind a pooler.
    key = int.from_bytes(
        hashlib.blake2b(schema.encode(), digest_size=8).digest(), "big", signed=True
    )
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1::bigint)", (key,))
        found = _version(connection, schema)
        if found > VERSION:
            raise StoreError(
                f"the store {where} is of version {found}, and this version of stepwise reads "
                f"version {VERSION}: install the version that made it",
                path=where,
                errno=None,
            )
        if not found:
            connection.execute(_statement(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
            connection.execute(_statement(_TABLES.format(schema=schema, version=VERSION)))
        else:
            for version in range(found, VERSION):
                connection.execute(_statement(_MIGRATIONS[version].format(schema=schema)))
            connection.execute(_statement(f"UPDATE {schema}.meta SET version = {VERSION}"))


def _version(connection: psycopg.Connection[Any], schema: str) -> int:
    """Return the version of the tables; 0 if there are none."""
    # Not to_regclass(): its answer may be from before the transaction waited for the lock.
    there = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        "ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'meta'",
        (schema,),
    ).fetchone()
    if there is None:
        return 0
    row = connection.execute(_statement(f"SELECT version FROM {schema}.meta")).fetchone()
    return int(row[0]) if row is not None else 0


def _statement(text: str) -> Any:
    return text  # psycopg wants literals; the name of the schema was checked
