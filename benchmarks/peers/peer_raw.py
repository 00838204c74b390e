"""The limits: SQLite, a file and diskcache, without any library for workflows.

Each keeps the pickled result of a step, with its digest, under the run's and the step's name, so
that it could go on after a crash.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import pickle
import sqlite3

import diskcache
import harness
import workloads
from harness import Peer, abody, body


class Sqlite:
    def __init__(self, path, synchronous):
        self.database = sqlite3.connect(path / "kv.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute(f"PRAGMA synchronous={synchronous}")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS kv (k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID"
        )

    def get(self, key):
        row = self.database.execute("SELECT v FROM kv WHERE k=?", (key,)).fetchone()
        return row and row[0]

    def put(self, key, value):
        self.database.execute("INSERT INTO kv VALUES (?, ?)", (key, value))

    def close(self):
        self.database.close()


class Diskcache:
    def __init__(self, path, synchronous):
        self.cache = diskcache.Cache(
            str(path / "cache"), sqlite_synchronous=synchronous, eviction_policy="none"
        )
        self.get, self.put, self.close = self.cache.get, self.cache.set, self.cache.close


class File:
    """Records behind one another, each flushed; written only."""

    def __init__(self, path, _):
        self.file = os.open(path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def get(self, _):
        return None

    def put(self, _, value):
        os.write(self.file, value)
        os.fdatasync(self.file)

    def close(self):
        os.close(self.file)


_STORES = {
    "sqlite-full": (Sqlite, "FULL"),
    "sqlite-normal": (Sqlite, "NORMAL"),
    "diskcache-full": (Diskcache, 2),
    "file-fdatasync": (File, None),
}


class Raw(Peer):
    """What the machine and SQLite cost."""

    name = "raw"
    variants = tuple(_STORES)
    imports = "import sqlite3"
    survives = dict.fromkeys(variants, harness.POWER) | {"sqlite-normal": harness.PROCESS}
    cannot = {
        "w5": "part of Python",
        "file-fdatasync:w2": "written only",
        **{f"diskcache-full:{w}": "only w1 and w4: as SQLite" for w in ("w2", "w3", "w6")},
    }

    def open(self):
        kind, option = _STORES[self.variant]
        self.kv = kind(self.store, option)

    def close(self):
        self.kv.close()

    def step(self, run_id, number):
        key = f"{run_id}/{number:012d}"
        found = self.kv.get(key)
        if found is not None:
            digest, value = found[:32], found[32:]
            assert hmac.compare_digest(digest, hmac.digest(b"key", value, hashlib.sha256))
            return pickle.loads(value)
        result = body(number)
        self.keep(key, result)
        return result

    def keep(self, key, result):
        value = pickle.dumps(result, 5)
        self.kv.put(key, hmac.digest(b"key", value, hashlib.sha256) + value)

    def loop(self, run_id, count):
        for number in range(count):
            self.step(run_id, number)

    def agent(self, run_id, count):
        messages = []
        for number in range(count):
            messages.append(self.step(run_id, number))

    def fanout(self, run_id, count):
        async def one(number):
            self.keep(f"{run_id}/{number:012d}", await abody(number))

        async def everything():
            await asyncio.gather(*(one(number) for number in range(count)))

        asyncio.run(everything())


if __name__ == "__main__":
    workloads.main(Raw)
