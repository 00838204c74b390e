"""Saves, replaces, deletes and prunes hive's checkpoints; dies at the N-th file operation."""

import asyncio
import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hive_stand_in"))

import world
from framework.schemas.checkpoint import Checkpoint

from stepwise.integrations.hive import HiveCheckpointStore

FILE_OPERATIONS = {
    "open",
    "write",
    "flush",
    "close",
    "fsync",
    "replace",
    "unlink",
    "mkdir",
    "lockf",
}
_count = 0


def watch(frame, event, argument):
    """Die before or after a call into the system, of any thread."""
    global _count
    ours = frame.f_globals.get("__name__", "").startswith("stepwise")
    if ours and event in ("c_call", "c_return") and argument.__name__ in FILE_OPERATIONS:
        _count += 1
        world.here(f"operation {_count}")


def checkpoint(name, value, day=20):
    return Checkpoint(
        checkpoint_id=name,
        checkpoint_type="node_complete",
        session_id="session",
        created_at=f"2026-01-{day}T10:00:00",
        shared_memory={"value": value, "long": "x" * 5000},
    )


async def main():
    store = HiveCheckpointStore(os.environ["STEPWISE_HOME"])
    threading.setprofile(watch)
    for number, name in enumerate(("one", "two", "three")):
        await store.save_checkpoint(checkpoint(name, 1, 20 + number))
        world.log(f"saved {name} 1")
    await store.save_checkpoint(checkpoint("two", 2, 23))
    world.log("saved two 2")
    await store.delete_checkpoint("one")
    world.log("deleted one")
    await store.prune_checkpoints(1)
    world.log("pruned")


if __name__ == "__main__":
    world.main(lambda: asyncio.run(main()))
