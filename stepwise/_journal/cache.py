"""The cache of a store: sealed results of calls and requests, for equal ones of other runs.

An entry may be lost at any time, and outlives the run that made it.  It lies on the local disk: in
the folder of a ``disk:`` store, or for a server in ``$STEPWISE_HOME``, since a development cache
need not be shared by machines.  A store in memory has no cache.  A cache that cannot be used causes
a notice, and no call fails for it.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from stepwise._journal.seal import DamagedError, Seal
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import Once, notice, reports
from stepwise._values.unpickling import Data
from stepwise.errors import StoreError
from stepwise.stores import Store
from stepwise.stores._cache import ByteCache

_is_first = Once()
_open: dict[str, ByteCache] = {}
_mutex = process_lock()


class CacheEntry(NamedTuple):
    """A result that answers equal calls.

    Args:
        run: the outermost run that made it.
        at: when it was made, in seconds since 1970.
        seconds, usd, tokens: what it took.
        awaited: see :class:`.records.Outcome`.
        form: the form of the payload.
        payload: the encoded value.
    """

    run: str
    at: float
    seconds: float
    usd: float
    tokens: float
    awaited: str
    form: str | None
    payload: Data

    @property
    def saved(self) -> dict[str, Any]:
        """The facts to record with a call that the entry answers."""
        facts = self._asdict()
        return {name: facts[name] for name in ("run", "at", "seconds", "usd", "tokens")}


class CallCache:
    """The cache of a store.

    Args:
        place: where its entries are.
        seal: the seal of the store's records.
    """

    def __init__(self, place: ByteCache, seal: Seal) -> None:
        self._place = place
        self._seal = seal

    def get(self, name: str, key: str, age: float) -> CacheEntry | None:
        """Return the entry of a call; ``None`` if it is missing, too old, or does not verify.

        Args:
            name: the name of the step.
            key: all that distinguishes the call.
            age: the highest age in seconds.
        """
        place = self._key(name, key)
        try:
            data = self._place.get(place)
            if data is None:
                return None
            opened = self._seal.open(f"cache/{place}", data)
        except StoreError as error:
            return _tell(str(error))
        except DamagedError as error:
            return _tell(f"an entry of {name} in {self._place.folder} does not verify ({error})")
        facts: list[Any] = [*opened.header[1:], opened.payload]
        entry = CacheEntry(*facts)
        return entry if time.time() - entry.at < age else None

    def put(self, name: str, key: str, entry: CacheEntry, age: float) -> None:
        """Store the entry of a call; report a cache that cannot be written."""
        place, limit = self._key(name, key), settings.cache_size()
        data = bytes(self._seal.close(f"cache/{place}", [name, *entry[:-1]], entry.payload)[0])
        if len(data) < limit:
            try:
                self._place.put(place, data, limit, age if age < math.inf else None)
            except StoreError as error:
                _tell(str(error))

    def steps(self) -> Iterator[tuple[str, int]]:
        """Yield the steps that have entries, and how many."""
        first: dict[str, str] = {}
        keys = [*self._place.keys()]
        for key in keys:
            first.setdefault(key.rpartition("/")[0], key)
        for index, many in Counter(key.rpartition("/")[0] for key in keys).items():
            opened = self._seal.opened(f"cache/{first[index]}", self._place.get(first[index]))
            yield opened.header[0] if opened is not None else "?", many

    @property
    def size(self) -> int:
        """The size on the disk, in bytes."""
        return self._place.size

    def clear(self, name: str | None = None) -> int:
        """Delete all entries, or those of one step; return how many they were."""
        mine = None if name is None else set(self._seal.indexes(name))
        try:
            return self._place.clear(lambda key: mine is None or key.rpartition("/")[0] in mine)
        except StoreError:
            if mine is not None:
                raise
            self._place.destroy()
            return 0

    def _key(self, name: str, key: str) -> str:
        tag = self._seal.tag("cached call", key.encode("utf-8", "surrogatepass"))
        return f"{self._seal.index(name)[0]}/{tag.hex()}"


def cache_of(store: Store, seal: Seal) -> CallCache | None:
    """Return the cache of a store; ``None`` for a store in memory."""
    if not store.persistent:
        return None
    folder = os.path.join(settings.home(), "caches", hashlib.sha256(store.url.encode()).hexdigest())
    path = getattr(store, "path", None)
    folder = folder if path is None else os.path.join(path, "cache")
    with _mutex:
        if folder not in _open:
            _open[folder] = ByteCache(folder)
        return CallCache(_open[folder], seal)


@reports
def _tell(why: str) -> None:
    if _is_first(why):
        notice(f"{why}. Its calls are made")
