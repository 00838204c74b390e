"""What a page size costs a table of records: why stores have pages of 8 KB.

500 rows of a size are inserted one by one into a table of records, each in a
transaction of its own.  The ratio is the database over the rows' own bytes; the figure is what one
insert writes, its log included.  The time is beside it: not of the disk, which nobody waits for.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sqlite3
import time

import common

_ROWS = 500
_BYTES = (1500, 2500, 3500)
_PAGES = (2048, 4096, 8192, 16384)


def insert(path: pathlib.Path, page: int, size: int, count: int) -> tuple[float, float, float]:
    """The database over the rows' own bytes; kilobytes that an insert writes; microseconds."""
    file = path / f"{page}-{size}.db"
    database = sqlite3.connect(file, isolation_level=None)
    database.execute(f"PRAGMA page_size={page}")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    before, used = common.written(), time.process_time()
    for number in range(count):
        database.execute("INSERT INTO records VALUES (?, ?)", (number, os.urandom(size)))
    wrote, used = common.written() - before, time.process_time() - used
    database.close()  # its log is merged into the database
    return file.stat().st_size / (count * size), wrote / count / 1e3, used / count * 1e6


def measure(arguments: argparse.Namespace) -> list[common.Row]:
    rows, count = [], 50 if arguments.quick else _ROWS
    with common.folder() as path:
        for size, page in itertools.product(_BYTES, _PAGES):
            ratio, wrote, used = insert(path, page, size, count)
            row = common.Row(
                f"rows of {size / 1e3:g} KB in pages of {page // 1024} KB",
                common.Spread.of([wrote]),
                "KB per insert",
                common.Spread.of([ratio]),
                "the rows' own bytes",
                note=f"{used:.0f} us of processor time",
            )
            rows.append(row)
    return rows


if __name__ == "__main__":
    common.main(measure, "The page size of the stores")
