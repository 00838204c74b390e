"""Facts of a Postgres server that ``stepwise doctor`` asks for."""

from __future__ import annotations

import time

from stepwise._runtime.facts import NamedTuple
from stepwise.stores._postgres_connections import Connection

__all__ = ["ServerFacts", "Standby", "server_facts"]

_SETTINGS = ("server_version", "fsync", "full_page_writes", "synchronous_commit")


class Standby(NamedTuple):
    """A server that follows this one; ``sync`` is empty where the user may not see it."""

    name: str
    sync: str


class ServerFacts(NamedTuple):
    """Facts of a server, as one connection sees them.

    Args:
        settings: values by name.
        seconds: that one request took.
        ahead: seconds by which the server's clock is ahead of ours.
        standby: it follows another server, and takes no writes.
        direct: there is no pooler in between.
    """

    settings: dict[str, str]
    database: str
    seconds: float
    ahead: float
    standby: bool
    direct: bool
    standbys: tuple[Standby, ...]


def server_facts(connection: Connection) -> ServerFacts:
    """Ask a server."""
    rows = connection.execute(
        "SELECT name, setting FROM pg_settings WHERE name = ANY($1::text[])", (list(_SETTINGS),)
    ).fetchall()
    sent = time.time()
    row = connection.execute(
        "SELECT extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(), "
        "current_database()"
    ).fetchone()
    came = time.time()
    assert row is not None
    clock, standby, database = row
    found = connection.execute(
        "SELECT coalesce(application_name, ''), coalesce(sync_state, '') FROM pg_stat_replication"
    ).fetchall()
    return ServerFacts(
        dict(rows),
        database,
        came - sent,
        clock - (sent + came) / 2,
        standby,
        connection.direct,
        tuple(Standby(*each) for each in found),
    )
