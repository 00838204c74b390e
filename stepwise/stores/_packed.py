"""Encodings of a row: of a name, of a run's head and of its lease."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
import zlib

from stepwise.stores.base import Head, Owner

__all__ = [
    "epoch_of",
    "hashed",
    "lease_front",
    "owner_of",
    "pack",
    "pack_lease",
    "unpack",
    "unpack_of",
]

_EPOCH = 24  # bytes: its check sum, and itself


@functools.lru_cache(maxsize=256)
def hashed(name: str) -> str:
    """Return the hash that replaces an id or a name, whatever its characters."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# -- leases --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def lease_front(epoch: int) -> bytes:
    """How the row of a lease begins: with its epoch, which nothing turns into another one."""
    digits = b"%016x" % epoch
    return b"%08x" % zlib.crc32(digits) + digits


def pack_lease(epoch: int, owner: Owner) -> bytes:
    """A lease as one value."""
    return lease_front(epoch) + json.dumps(owner._asdict()).encode()


def epoch_of(row: bytes | None) -> int:
    """Return the epoch of the lease, or 0 if there is none.

    Of a damaged row it is more than any count has come to, so that nobody before is still let in.
    """
    if row is None:
        return 0
    with contextlib.suppress(ValueError):
        epoch = int(row[8:_EPOCH], 16)
        if row.startswith(lease_front(epoch)):
            return epoch
    return int(time.time() * 1000)


def owner_of(row: bytes) -> Owner | None:
    """Return the owner of a lease, or ``None`` if the row cannot be read."""
    try:
        owner = Owner(**json.loads(row[_EPOCH:]))
    except (ValueError, TypeError):
        return None
    # The row is not sealed, so a value of another kind counts as damaged.
    numbers = isinstance(owner.pid, int) and isinstance(owner.since, (int, float))
    texts = isinstance(owner.host, str) and isinstance(owner.thread, str)
    return owner if numbers and texts and owner.pid > 0 else None


# -- heads ---------------------------------------------------------------------------------------


def pack(head: Head) -> bytes:
    """A head as one value."""
    front = json.dumps([head.run_id, head.workflow, head.finished]).encode()
    return len(front).to_bytes(4, "big") + front + head.data


def unpack(row: bytes, run: str) -> Head | None:
    """The head that was packed; ``None`` if it cannot be read, or is that of another run.

    Args:
        run: the hashed id of the run in whose row it lies.
    """
    end = 4 + int.from_bytes(row[:4], "big")
    try:
        run_id, workflow, finished = json.loads(row[4:end])
        head = Head(run_id, workflow, finished, row[end:])
        return head if hashed(run_id) == run else None
    except (ValueError, TypeError, AttributeError):
        return None  # a damaged row of the listing; the run's records are the truth


def unpack_of(row: bytes | None, run_id: str) -> Head | None:
    """Return a run's head; an unreadable row gives a head that does not verify."""
    if row is None:
        return None
    return unpack(row, hashed(run_id)) or Head(run_id, "", False, b"")
