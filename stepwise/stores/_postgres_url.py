"""The URL of a Postgres store: what libpq gets, what people see, and settings of ours.

Imports psycopg only to open a store: a command may have to show the URL without it.
"""

from __future__ import annotations

import re
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.store_urls import public_url
from stepwise.errors import ConfigurationError

__all__ = ["PostgresOptions", "parsed"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "fallback_application_name": "stepwise",
}


class PostgresOptions(NamedTuple):
    """Settings of a store in its URL."""

    schema: str = "stepwise"
    lease_seconds: float = 30.0
    patience_seconds: float = 60.0
    pool_size: int = 4


def parsed(url: str) -> tuple[str, str, PostgresOptions]:
    """Return the connection string of libpq, the URL without a password, and our settings.

    Raises:
        ConfigurationError: the URL cannot be used as it is written.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    parameters = [each for each in query.split("&") if each]
    ours = [each for each in parameters if each.partition("=")[0] in PostgresOptions._fields]
    theirs = [each for each in parameters if each not in ours]
    public = public_url(f"postgresql://{rest}")
    secrets = [place.rpartition("@")[0].partition(":")[2]]
    secrets += [each.partition("=")[2] for each in parameters if "password=" in each]
    full = f"postgresql://{place}" + (f"?{'&'.join(theirs)}" if theirs else "")
    try:
        given: dict[str, Any] = conninfo_to_dict(full)
        for port in str(given.get("port", "")).split(","):
            if port and not port.isdecimal():
                raise psycopg.ProgrammingError(f"the port {port!r} is not a number")  # noqa: TRY301
        conninfo = make_conninfo(**{**_DEFAULTS, **given})
    except psycopg.ProgrammingError as error:
        text = str(error).strip()
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        raise ConfigurationError(
            f"the store's URL {public!r} cannot be used: {text}. Write "
            "postgresql://user@host:5432/database"
        ) from None
    return conninfo, public, _options(ours, public)


def _options(parameters: list[str], url: str) -> PostgresOptions:
    options = PostgresOptions()
    for each in parameters:
        name, _, text = each.partition("=")
        kind = type(getattr(options, name))
        try:
            value = kind(text)
            if kind is not str and not 0 < value < 1e6:
                raise ValueError  # noqa: TRY301
        except ValueError:
            raise ConfigurationError(
                f"{each!r} in the store's URL {url!r} is not a number above 0"
            ) from None
        options = options._replace(**{name: value})
    check_schema_name(options.schema)
    return options


def check_schema_name(name: str) -> str:
    """Return the name of a schema, if it needs no quotes.

    Raises:
        ConfigurationError: it has other characters, or too many.
    """
    if not _SCHEMA.fullmatch(name):
        raise ConfigurationError(
            f"schema={name!r} in the store's URL is not a name of a schema: it begins with a small "
            "letter, and has at most 40 small letters, digits and underscores"
        )
    return name
