"""The statements of batches, executed with little more than what libpq itself needs.

psycopg looks for types, plans and adapters at each execution: a third of what a step costs.  The
statements of batches have few texts and three types, so they are prepared once for each connection
and get their parameters in the binary format.  Those of several runs go in one pipeline, which is
one transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any

from psycopg import errors, generators
from psycopg.pq import ExecStatus, Format

from stepwise.stores._postgres_arrays import ArrayValue
from stepwise.stores._postgres_connections import Connection

__all__ = ["Statement", "execute", "fetch", "is_new", "post", "prepare"]

Statement = tuple[str, Sequence[Any]]
"""A text and its parameters: integers, bytes, booleans, arrays, or ``None``."""

_integer = struct.Struct("!q")
_MOST = 256  # statements that a connection keeps prepared
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.PIPELINE_SYNC)


def execute(connection: Connection, statements: Sequence[Statement]) -> list[int]:
    """Execute statements in one transaction, each for one run; return the first columns.

    Raises:
        psycopg.Error: one of them failed, so none of them did anything.
    """
    names = [_prepared(connection, text) for text, _ in statements]
    pgconn = connection.pgconn
    together = len(statements) > 1
    try:
        if together:
            pgconn.enter_pipeline_mode()
        for name, (_, values) in zip(names, statements, strict=True):
            data = [_dumped(value) for value in values]
            pgconn.send_query_prepared(name, data, [Format.BINARY] * len(data), Format.BINARY)
        if together:
            pgconn.pipeline_sync()
        results = connection.wait(_exchange(pgconn, len(statements), together))
        if together:
            pgconn.exit_pipeline_mode()
    except BaseException:
        connection.close()  # nobody knows what it would answer next
        raise
    _check(results)
    return _first_columns(results)


def _first_columns(results: Sequence[Any]) -> list[int]:
    return [
        _integer.unpack(result.get_value(row, 0))[0]
        for result in results
        for row in range(result.ntuples)
    ]


# -- without waiting -----------------------------------------------------------------------------


def is_new(connection: Connection, statement: Statement) -> bool:
    """Return whether a statement has to be prepared first."""
    return statement[0] not in connection.statements


def prepare(connection: Connection, statement: Statement) -> None:
    """Prepare a statement on a connection in pipeline mode, of which all answers were fetched."""
    connection.pgconn.exit_pipeline_mode()
    _prepared(connection, statement[0])
    connection.pgconn.enter_pipeline_mode()


def post(connection: Connection, statement: Statement) -> None:
    """Hand a statement to the operating system, as a transaction of its own."""
    text, values = statement
    data = [_dumped(value) for value in values]
    pgconn = connection.pgconn
    pgconn.send_query_prepared(
        connection.statements[text], data, [Format.BINARY] * len(data), Format.BINARY
    )
    pgconn.pipeline_sync()
    connection.wait(generators.send(pgconn))


def fetch(connection: Connection) -> list[int]:
    """Wait for the oldest answer that was not fetched; return its first columns.

    Raises:
        psycopg.Error: the statement failed, and did nothing.
    """
    results = connection.wait(_answer(connection.pgconn))
    _check(results)
    return _first_columns(results)


def _answer(pgconn: Any) -> Generator[Any, Any, list[Any]]:
    results: list[Any] = yield from generators.fetch_many(pgconn)
    yield from generators.fetch_many(pgconn)
    return results


# -- more ----------------------------------------------------------------------------------------


def _exchange(pgconn: Any, count: int, together: bool) -> Generator[Any, Any, list[Any]]:
    """Send what is queued, and fetch the results."""
    yield from generators.send(pgconn)
    results: list[Any] = []
    for _ in range(count):
        results += yield from generators.fetch_many(pgconn)
    if together:
        yield from generators.fetch_many(pgconn)
    return results


def _prepared(connection: Connection, text: str) -> bytes:
    """Return the name of a prepared statement of the connection."""
    name = connection.statements.get(text)
    if name is not None:
        return name
    if len(connection.statements) >= _MOST:
        connection.execute("DEALLOCATE ALL", prepare=False)
        connection.statements.clear()
    name = f"stepwise_{len(connection.statements)}".encode()
    try:
        connection.pgconn.send_prepare(name, text.encode())
        results = connection.wait(generators.execute(connection.pgconn))
    except BaseException:
        connection.close()
        raise
    _check(results)
    connection.statements[text] = name
    return name


def _check(results: Sequence[Any]) -> None:
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result, encoding="utf-8")
    for result in results:
        if result.status not in _GOOD:
            raise errors.OperationalError(f"unexpected answer: {ExecStatus(result.status).name}")


def _dumped(value: Any) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, ArrayValue):
        return value.data
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    return _integer.pack(value)
