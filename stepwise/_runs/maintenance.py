"""Maintenance of a whole store: its runs counted, deleted, and kept as long as wanted.

Also its space and backups, the cache of calls, and what is used of its limits.

**Counting.**  The heads of unfinished runs are opened once.  The others are counted by the words of
their heads.  The journal of a crashed run is read once for each of its attempts.

**Retention**, as ``configure(retain=...)`` says.  A *pass* begins at the oldest run.  It deletes
one run after another, as ``stepwise prune`` does, each with its child runs, and rests in between so
that no run is delayed.  A process that is killed leaves runs that are whole, or whose deletion the
next pass ends: the head of a run goes last.  One process at a time makes a pass, under a lease.

Rejected: deleting where a run ends.  The run's own end would wait for it, and idle stores would
keep everything.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepwise import errors
from stepwise._calls.limited import figures_text
from stepwise._journal.cache import CallCache, cache_of
from stepwise._journal.journal import facts_of, open_head, seal_for, words_for
from stepwise._journal.lease import Lease
from stepwise._journal.ledger import Ledger, drop_idle_ledgers, ledgers
from stepwise._journal.records import RunFacts
from stepwise._journal.stream import StreamLog
from stepwise._journal.summary import deaths_of
from stepwise._runs.copying import Copier
from stepwise._runs.run import Listed, each_listed, listed, number_of_runs
from stepwise._runs.steps import RunStatus, status_of
from stepwise._runs.verify import ChildRuns, Deleter, is_over, note_restored
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count
from stepwise._runtime.settings import public_url
from stepwise.stores import Store, open_store


def _store() -> Any:
    return open_store(settings.store())


def check_there(store: Store) -> None:
    """Refuse a store in which no other process can have left runs.

    Raises:
        ConfigurationError: its folder is not there, or it is in the memory of one process.
    """
    path = getattr(store, "path", None)
    if path is not None and not os.path.isdir(path):
        raise errors.ConfigurationError(
            f"there is no store at {path} yet: run a workflow first, or name another store with "
            "--store or STEPWISE_STORE"
        )
    if not store.persistent:
        raise errors.ConfigurationError(
            f"the store {public_url(store.url)} is in the memory of one process, so no other "
            "process has left runs there: name another one with --store or STEPWISE_STORE"
        )


def store_url() -> str:
    """Return the URL of the store that commands and programs use."""
    return public_url(str(settings.store()))


def hand_down(url: str) -> str:
    """Return a URL without its password, for the command line of a child process.

    If a password was removed, ``STEPWISE_STORE`` passes the whole URL to the child process.
    """
    shown = public_url(url)
    if shown != url:
        os.environ["STEPWISE_STORE"] = url
    return shown


# -- census ----------------------------------------------------------------------------------------


class RunsByStatus(NamedTuple):
    """The runs of a store, child runs included.

    Args:
        by_status: their number.
        late: seconds since the longest due run became due; 0 for none.  A crashed run is due since
            its last sign of life.
    """

    by_status: Mapping[str, int]
    late: float


_ENDED = ("completed", "cancelled")
_OVER = (*_ENDED, "superseded")


class Census:
    """Counts the runs of one store, again and again."""

    def __init__(self, store: Store) -> None:
        self._store, self._seal = store, seal_for(store)
        self._opened: dict[str, tuple[bytes, RunFacts | None]] = {}
        self._crashed: dict[str, tuple[RunFacts, tuple[str, float | None]]] = {}

    def count(self) -> RunsByStatus:
        """Count the runs.

        Raises:
            StoreError: the store cannot be used.
        """
        before, self._opened = self._opened, {}
        # First: a run that ends meanwhile is not counted twice.
        found = Counter({each: self._number(each) for each in _OVER})
        now, late = time.time(), 0.0
        for head in self._store.heads(unfinished=True):
            known = before.get(head.run_id)
            if known is None or known[0] != head.data:
                known = head.data, open_head(self._seal, head)
            self._opened[head.run_id] = known
            status, since = self._state(known[1])
            found[status] += 1
            late = max(late, now - since) if since is not None else late
        self._crashed = {each: of for each, of in self._crashed.items() if each in self._opened}
        # Submitted runs that have not begun are suspended, but not among the unfinished heads.
        found["suspended"] = max(found["suspended"], self._number("suspended"))
        return RunsByStatus(found, late)

    def _number(self, status: str) -> int:
        count_heads = getattr(self._store, "count_heads", None)
        words = words_for(self._seal, None, status, {})
        return int(count_heads(words)) if count_heads is not None else 0

    def _state(self, facts: RunFacts | None) -> tuple[str, float | None]:
        """Return the status of an unfinished run, and since when it is due, if at all."""
        if facts is None:
            return "unreadable", None
        place = self._store, self._seal
        owned = facts.status == "running" and self._store.owner(facts.run_id) is not None
        if facts.status != "running" or owned:
            moments = [each.until for each in facts.waits if each.until is not None]
            status = status_of(*place, facts, owned=owned)
            return status, min(moments, default=None) if status == "suspended" else None
        known = self._crashed.get(facts.run_id)
        if known is None or known[0] != facts:
            try:
                now = facts_of(*place, facts.run_id) or facts
                if now != facts:  # it has ended before its owner was asked for
                    return self._state(now)
                status = status_of(*place, facts, owned=False)
                died = deaths_of(*place, facts).at if status in ("crashed", "cancelling") else None
                known = self._crashed[facts.run_id] = facts, (status, died)
            except (errors.StepwiseError, errors.RunStopped):
                return "unreadable", None  # if the store is away, the next read says so
        return known[1]


# -- deleting --------------------------------------------------------------------------------------


def old_runs(
    before: float, keep: int, limit: int | None = None, *, streams: bool = False
) -> Iterator[Listed]:
    """Yield the completed, cancelled and superseded runs not updated since a time, one by one.

    Child runs are left out: they are deleted with their parents.

    Args:
        before: the time, in seconds since 1970.
        keep: the number of newest completed and cancelled runs of each workflow to leave out.
        limit: the maximum number of runs; if ``keep`` is 0, these are roughly the oldest runs.
        streams: only the runs that have said something, themselves or in child runs.
    """
    found = _old(before, keep)
    return itertools.islice(_with_streams(found) if streams else found, limit)


def _old(before: float, keep: int) -> Iterator[Listed]:
    seen = Counter[str]()
    for each in each_listed(oldest=not keep, where=is_over):
        seen[each.facts.workflow] += 1
        if seen[each.facts.workflow] > keep and each.facts.updated_at <= before:
            yield each


def _with_streams(found: Iterable[Listed]) -> Iterator[Listed]:
    """Yield the runs whose streams, or whose child runs' streams, hold something to delete."""
    children = None
    for each in found:
        run = each.run
        children = children or ChildRuns(run.store, run._seal)
        ids = children.below(run.id)
        if any(StreamLog(run.store, run._seal, run_id).has_items() for run_id in ids):
            yield each


def delete_each(
    found: Iterable[Listed], *, streams: bool = False
) -> Iterator[tuple[Listed, errors.StepwiseError | errors.RunStopped | None]]:
    """Delete runs; yield each run with the problem that prevented its deletion, or ``None``.

    A run that is being executed stays.  The first failure of the store itself is the last item.

    Args:
        found: the runs.
        streams: delete only what the runs and their child runs have said.
    """
    store = _store()
    deleter = Deleter(store, seal_for(store))
    for each in found:
        try:
            if streams:
                deleter.empty(each.run.id)
            elif not deleter.delete(each.facts):
                continue  # it was executed again since it was found
        except (errors.StepwiseError, errors.RunStopped) as problem:
            yield each, problem
            if isinstance(problem, errors.StoreError):
                return
        else:
            yield each, None
    deleter.erase()


# -- retention -------------------------------------------------------------------------------------


_NAME = "up:retention"  # of the lease
_COUNTED, _SWEPT = 60.0, 600.0  # seconds between two counts, and between two looks at all old runs
_AT_ONCE, _REST = 0.1, 0.3  # seconds of work, and of rest after it
_END = 5.0  # seconds to wait for the deletion in progress
_YOUNG = 1000  # runs in a row that are too young: all others are, too
_MEASURED = 4  # the size is measured again once this part of the excess is gone
_ROW = 1000  # bytes of a run beside its records and objects, about


class Retention:
    """Deletes what stores keep for longer than wanted; the thread of ``stepwise up`` that does so.

    Args:
        tell: called with what was deleted, or why nothing can be.
    """

    def __init__(self, stores: Iterable[Store], tell: Callable[[str], object]) -> None:
        self._keepers, self._tell, self._problem = [_Keeper(each) for each in stores], tell, ""
        self._ended, self._until = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._loop, name="stepwise retention", daemon=True)

    @property
    def deleted(self) -> int:
        """The number of runs that this process has deleted."""
        return sum(each.deleted for each in self._keepers)

    def begin(self) -> None:
        """Begin the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread after the deletion in progress."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_END)

    def work(self, seconds: float = math.inf) -> None:
        """Make a pass through each store, in the current thread.

        Args:
            seconds: work for that long at most; by default as long as it takes, with rests.
        """
        self._until = time.monotonic() + min(seconds, _AT_ONCE)
        ends = time.monotonic() + seconds
        for each in self._keepers:
            try:
                told = each.make_pass(lambda: self._goes_on(ends))
                self._problem = ""
            except errors.RunBusyError:  # another process does it
                told = ""
            except (errors.StepwiseError, errors.RunStopped) as error:
                told = str(error) if str(error) != self._problem else ""
                self._problem = str(error)
            if told:
                self._tell(f"retention: {told}")

    def _goes_on(self, ends: float) -> bool:
        """Rest if it is time to do so; return whether the pass goes on."""
        now = time.monotonic()
        if ends == math.inf and now >= self._until:
            self._ended.wait(_REST)
            self._until = time.monotonic() + _AT_ONCE
        return now < ends and not self._ended.is_set()

    def _loop(self) -> None:
        while not self._ended.is_set():
            self.work()
            self._ended.wait(_COUNTED)


class _Keeper:
    """Deletes what one store keeps for longer than wanted."""

    def __init__(self, store: Store) -> None:
        self._store, self._seal = store, seal_for(store)
        self._swept = -math.inf
        self._silent = 0.0  # streams of runs that were updated before this are empty
        self.deleted = self._excess = self._freed = 0

    def make_pass(self, goes_on: Callable[[], bool]) -> str:
        """Make a pass; return what was deleted, as text.

        Raises:
            RunBusyError: another process makes a pass.
            StoreError: the store cannot be used.
        """
        retain, before, began = settings.retain(), self.deleted, time.monotonic()
        sweeps, emptied = began >= self._swept + _SWEPT, 0
        if retain is None and not sweeps:
            return ""
        with Lease(self._store, _NAME).acquire():
            if sweeps:
                drop_idle_ledgers(self._store, self._seal, goes_on)
            if retain is not None:
                deleter = Deleter(self._store, self._seal)
                try:
                    emptied = self._keep(retain, deleter, goes_on, sweeps=sweeps)
                finally:
                    deleter.erase()
        self._swept = began if sweeps and goes_on() else self._swept
        said = [f"what {count(emptied, 'run')} said"] * bool(emptied)
        runs = [count(self.deleted - before, "run")] * (self.deleted > before)
        return f"deleted {' and '.join(runs + said)}" if runs + said else ""

    def _keep(
        self,
        retain: settings.Retain,
        deleter: Deleter,
        goes_on: Callable[[], bool],
        *,
        sweeps: bool,
    ) -> int:
        """Delete runs; return the number of other runs whose streams were emptied."""
        most = math.inf if retain.runs is None else retain.runs
        too_many = (number_of_runs(self._store) or 0) - most
        self._excess = self._measured(retain) if sweeps else 0
        if too_many <= 0 and not sweeps:
            return 0
        now, young, emptied, before = time.time(), 0, 0, self.deleted
        old, said = _before(now, retain.age), _before(now, retain.streams)
        for head in self._store.heads():  # oldest first
            if not goes_on():
                return emptied
            facts = open_head(self._seal, head) if head.finished else None
            if facts is None or not is_over(facts):
                continue
            exceeds = self.deleted - before < too_many or self._excess > 0
            if exceeds or facts.updated_at <= old:
                self.deleted += self._delete(facts, deleter, retain)
            elif self._silent < facts.updated_at <= said:
                emptied += self._empty(facts.run_id, deleter)
            young = 0 if exceeds or facts.created_at <= max(old, said) else young + 1
            if young >= _YOUNG:
                break
        self._silent = said
        return emptied

    def _delete(self, facts: RunFacts, deleter: Deleter, retain: settings.Retain) -> int:
        """Delete a run with its child runs; return their number, or 0 if the run goes on."""
        try:
            below = deleter.children.below(facts.run_id)
            freed = sum(map(self._weight, below)) if self._excess else 0
            deleted = deleter.delete(facts)
        except _OF_ONE_RUN:
            return 0
        self._freed += freed if deleted else 0
        if self._freed * _MEASURED >= self._excess > 0:
            self._excess = self._measured(retain)
        return deleted

    def _empty(self, run_id: str, deleter: Deleter) -> bool:
        """Delete what a run and its child runs have said; return whether there was something."""
        try:
            return deleter.empty(run_id)
        except _OF_ONE_RUN:
            return False

    def _measured(self, retain: settings.Retain) -> int:
        """Return by how many bytes the store is too large."""
        self._freed, used = 0, getattr(self._store, "used", None)
        most = retain.bytes
        return 0 if used is None or most is None else max(0, used(most) - most)

    def _weight(self, run_id: str) -> int:
        """Return about how many bytes the deletion of a run frees."""
        objects = (self._store.get(run_id, name) or b"" for name in self._store.names(run_id))
        records = (data for _, data in self._store.read(run_id))
        return sum(map(len, itertools.chain(records, objects))) + _ROW


def _before(now: float, seconds: Any) -> float:
    return -math.inf if seconds is None else now - seconds


_OF_ONE_RUN = (
    *(errors.StepwiseError, errors.CorruptStoreError),
    *(errors.JournalLostError, errors.LeaseLostError),
)


# -- space, backups, copies ------------------------------------------------------------------------


def free_space() -> int:
    """Return the number of bytes that deleted runs left free in the store for later runs."""
    free = getattr(_store(), "free", None)
    return int(free()) if free is not None else 0


def compact() -> int:
    """Give the space of deleted runs back to the disk; return the number of bytes."""
    squeeze = getattr(_store(), "compact", None)
    return int(squeeze()) if squeeze is not None else 0


def put_back() -> list[str]:
    """Record that the store was restored from a backup; return the ids of its unfinished runs."""
    store = _store()
    return note_restored(store, seal_for(store))


def copier(target: str, **how: Any) -> Copier:
    """Return a copier from the configured store into another store.

    Args:
        target: the URL of the other store.
        how: keyword arguments of :class:`Copier`.
    """
    return Copier(_store(), open_store(target), **how)


def to_copy(workflow: str | None, status: RunStatus | None, tags: Mapping[str, str]) -> list[str]:
    """Return the ids of the runs to copy, oldest first; child runs come with their parents."""
    ids = {head.run_id for head in _store().heads()}
    found = listed(workflow, status, tags=tags)
    return [each.run.id for each in reversed(found) if each.facts.parent not in ids]


def has_objects(name: str) -> bool:
    """Return whether the store has objects of a run id, such as checkpoints without a journal."""
    return bool(_store().names(name))


# -- the cache of calls --------------------------------------------------------------------------


def cache_facts() -> dict[str, Any]:
    """Return the size of the cache, its limit, and the number of its entries by step."""
    cache = _cache()
    steps = sorted(cache.steps()) if cache is not None else []
    return {
        "size": cache.size if cache is not None else 0,
        "limit": settings.cache_size(),
        "steps": [{"name": name, "entries": entries} for name, entries in steps],
    }


def clear_cache(name: str | None = None) -> int:
    """Delete all entries of the cache, or those of one step; return how many they were."""
    cache = _cache()
    return cache.clear(name) if cache is not None else 0


def _cache() -> CallCache | None:
    store = _store()
    return cache_of(store, seal_for(store))


# -- limits ----------------------------------------------------------------------------------------


def limits_in_use() -> list[dict[str, Any]]:
    """Return the facts of each limit that was used in the default store, by name."""
    store = _store()
    return [_limit(name, ledger) for name, ledger in ledgers(store, seal_for(store))]


def _limit(name: str, ledger: Ledger) -> dict[str, Any]:
    """Return the state of a limit as plain data."""
    requests, tokens = ledger.used()
    figures, now = ledger.figures, ledger.at
    return {
        "name": name,
        "requests": figures.requests,
        "tokens": figures.tokens,
        "per": figures.per,
        "concurrent": figures.concurrent,
        "used_requests": requests,
        "used_tokens": tokens,
        "in_flight": sum(open_ for open_, _ in ledger.claims.values()),
        "paused_seconds": max(0.0, ledger.paused[0] - now),
        "waiting": [
            {"run": place.run, "seconds": now - place.since, "calls": len(place.wants)}
            for place in sorted(ledger.places, key=lambda place: place.since)
        ],
        "text": figures_text(figures),
    }
