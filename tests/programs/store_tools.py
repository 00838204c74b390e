"""What the tests of stores share."""

import contextlib
import os
import socket
import sqlite3
import sys

import pytest

from stepwise import RunStopped, StoreError
from stepwise.stores import Batch, Head, Owner
from stepwise.stores.memory import MemoryStore

ME = Owner(os.getpid(), socket.gethostname(), 1.5, "thread a")
LARGE = bytes(range(256)) * (8 << 10)  # 2 MiB, kept in a file
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def edit(store, sql, *parameters):
    """Change the database as any other program could."""
    store.close()
    connection = sqlite3.connect(store._database)
    rows = connection.execute(sql, parameters).fetchall()
    connection.commit()
    connection.close()
    return rows


def pragma(store, name):
    return store._rows._con.execute(f"PRAGMA {name}").fetchone()[0]


def pages_written(store, write):
    """How many pages a write adds to the log, on the average of twenty."""
    log = f"{store._database}-wal"
    before = os.path.getsize(log)
    for number in range(20):
        write(number)
    return (os.path.getsize(log) - before) / 20 / pragma(store, "page_size")


def step_of(store, epoch, size):
    """A function that writes what a step does: a checkpoint, without the oldest, and a record."""

    def step(number):
        number += 10
        put = Batch(
            put={f"c/{number:012d}": bytes(size)}, delete=(f"c/{number - 3:012d}",), durable=False
        )
        store.write("run", epoch, put)
        store.write("run", epoch, Batch(((number, bytes(size)),), mark=b"m" * 40))

    step(-1)
    return step


def records(*numbers):
    return Batch(tuple((number, b"%d" % number) for number in numbers))


def files(folder, pattern="*"):
    return sorted(path for path in folder.rglob(pattern) if path.is_file())


def log_files(folder):
    """The logs of processes in a store."""
    return [path for path in files(folder) if "logs" in path.parent.name and path.name != "locks"]


def use_all_of(store):
    """Call every method; what makes no sense may raise an error of ours, and no other."""
    for read in (
        lambda: list(store.read("run")),
        lambda: [store.get("run", name) for name in store.names("run")],
        lambda: store.head("run"),
        lambda: list(store.heads()),
        lambda: list(store.heads("flow", unfinished=True)),
        lambda: store.owner("run"),
        lambda: store.marks("run"),
        lambda: rewrite(store),
    ):
        with contextlib.suppress(RunStopped):
            read()


def rewrite(store):
    epoch = store.acquire("run", ME)
    try:
        head = Head("run", "flow", False, b"head")
        store.write("run", epoch, Batch(((1, b"1"), (2, b"2")), {"a": b"a"}, ("b",), head=head))
        store.delete("run", epoch)
    finally:
        store.release("run", epoch)


HOLDER = """
import os, signal, socket, sys, time
from stepwise.stores import Batch, Owner, open_store
store = open_store(sys.argv[1])
epoch = store.acquire("run", Owner(os.getpid(), socket.gethostname(), 42.0, "thread main"))
store.write("run", epoch, Batch(((1, b"1"),)))
"""


class Recorder(MemoryStore):
    """A store that keeps all batches, and fails at one of them."""

    def __init__(self, fails_at=0):
        super().__init__()
        self.batches = []
        self.fails_at = fails_at

    def write(self, run_id, epoch, batch):
        """Write a batch, unless it is the one to fail at."""
        records = tuple((number, bytes(data)) for number, data in batch.records)
        put = {name: bytes(data) for name, data in batch.put.items()}
        self.batches.append((run_id, epoch, batch._replace(records=records, put=put)))
        if len(self.batches) == self.fails_at:
            raise StoreError("no answer")
        super().write(run_id, epoch, batch)
