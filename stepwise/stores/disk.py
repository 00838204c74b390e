"""``disk:/path``: the store on one machine, on diskcache (SQLite in WAL mode).

Rows: ``r/RUN/000000000001`` a record, ``o/RUN/NAME`` an object, ``h/RUN`` the head,
``u/WORKFLOW/RUN`` the same while unfinished, ``l/RUN`` epoch and owner; RUN and WORKFLOW are
hashes.
"""

from __future__ import annotations

from stepwise._values.buffers import Data
from stepwise.stores._cache import CACHE, Cache, open_cache
from stepwise.stores._local import FolderStore
from stepwise.stores._packed import hashed, pack, unpack, unpack_of
from stepwise.stores._rows import Page
from stepwise.stores.base import Head

__all__ = ["DiskStore"]

_DIGITS = 12  # in a record's number
_LAST = "\U0010ffff"


class DiskStore(FolderStore):
    """A folder on a local disk, with a diskcache in it.

    Args:
        path: the folder; made when the first run starts, readable by its owner only.

    Raises:
        ConfigurationError: the path cannot be used as it is written.
    """

    _scheme = "disk"
    _file = CACHE
    _marked = "marks"

    def _open_rows(self, folder: str) -> _CacheRows:
        return open_cache(_CacheRows, folder)


class _CacheRows(Cache):
    """Rows as keys and values of a cache."""

    def lease(self, run_id: str) -> bytes | None:
        return self.get(f"l/{hashed(run_id)}")

    def put_lease(self, run_id: str, row: bytes) -> None:
        self.set(f"l/{hashed(run_id)}", row)

    # -- records ---------------------------------------------------------------------------------

    def put_record(self, run_id: str, number: int, data: Data) -> None:
        self.set(_key(hashed(run_id), number), data)

    def prune(self, run_id: str, number: int) -> None:
        run = hashed(run_id)
        self.drop(f"r/{run}/", _key(run, number + 1))

    def records(
        self, run_id: str, after: int, cursor: str | None, size: int
    ) -> Page[tuple[int, bytes]]:
        run = hashed(run_id)
        page = self._page(cursor or _key(run, after), f"r/{run}0", size)
        return [(key, _record(run, key, data)) for key, data in page]

    # -- objects ---------------------------------------------------------------------------------

    def put_object(self, run_id: str, name: str, data: Data) -> None:
        self.set(f"o/{hashed(run_id)}/{name}", data)

    def delete_object(self, run_id: str, name: str) -> None:
        self.delete(f"o/{hashed(run_id)}/{name}")

    def replace_object(self, run_id: str, old: str, name: str, data: Data) -> bool:
        run = hashed(run_id)
        return self.turn(f"o/{run}/{old}", f"o/{run}/{name}", data)

    def get_object(self, run_id: str, name: str) -> bytes | None:
        return self.get(f"o/{hashed(run_id)}/{name}")

    def names(self, run_id: str, prefix: str) -> list[str]:
        run = f"o/{hashed(run_id)}"
        return [key[len(run) + 1 :] for key in self.keys(f"{run}/{prefix}", f"{run}0")]

    # -- heads -----------------------------------------------------------------------------------

    def put_head(self, head: Head) -> None:
        run, row = hashed(head.run_id), pack(head)
        self.set(f"h/{run}", row)
        if head.finished:
            self.delete(f"u/{hashed(head.workflow)}/{run}")
        else:
            self.set(f"u/{hashed(head.workflow)}/{run}", row)

    def head(self, run_id: str) -> Head | None:
        return unpack_of(self.get(f"h/{hashed(run_id)}"), run_id)

    def heads(
        self, workflow: str | None, unfinished: bool, cursor: str | None, size: int
    ) -> Page[Head]:
        prefix = "u/" if unfinished else "h/"
        if unfinished and workflow is not None:
            prefix += f"{hashed(workflow)}/"
        found = []
        for key, row in self._page(cursor or prefix, prefix + _LAST, size):
            head = unpack(row, key.rpartition("/")[2])
            wanted = head is not None and workflow in (None, head.workflow)
            found.append((key, head if wanted else None))
        return found

    def forget(self, run_id: str) -> None:
        run, head = hashed(run_id), self.head(run_id)
        if head is not None:
            self.delete(f"u/{hashed(head.workflow)}/{run}")
        self.delete(f"h/{run}")
        for kind in "ro":
            self.drop(f"{kind}/{run}/", f"{kind}/{run}0")  # "0" comes after "/"

    def _page(self, cursor: str, end: str, size: int) -> list[tuple[str, bytes]]:
        return self.page(cursor + "\0", end, size)


def _key(run: str, number: int) -> str:
    return f"r/{run}/{number:0{_DIGITS}d}"


def _record(run: str, key: str, data: bytes) -> tuple[int, bytes] | None:
    digits = key[-_DIGITS:]
    if digits.isdecimal() and key == _key(run, int(digits)):
        return int(digits), data
    return None  # damaged: not a record
