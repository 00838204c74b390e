"""Changes of runs as they happen, for the pages that are open.

A run does nothing for its readers: they look at its marks, which each batch of records leaves in
the store, at those of its streams and inbox, at the note of its steps in progress, and at heads.
One thread looks for all pages, as long as there are any; it pauses longer if looking takes long.

Rejected: a notification at each step, which every run would pay, looked at or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterable

from stepwise._journal.journal import inbox_name, open_head, stream_name
from stepwise._runs.run import newest_heads
from stepwise._runtime.facts import NamedTuple
from stepwise.errors import RunStopped, StepwiseError
from stepwise.stores import Head, Store
from stepwise.ui._reading import OpenMatters, RunReader

_PAUSE = 0.1  # seconds between two looks
_SLOWER = 2  # times as long as the look took, if that is more
_NEWEST = 33  # heads of a list; as many as Postgres sends in two answers
_ALIVE = 5.0  # seconds after which a reader without news gets a comment


class _SeenState(NamedTuple):
    """The facts of a run that are compared at each look.

    Args:
        head: its head.
        moves: its marks, its note, and whether a process executes it.
        above: the run that called it, or whose branch it is; empty for others.
    """

    head: bytes
    moves: tuple[object, ...] = ()
    above: str = ""


class _Listener:
    """An open page."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self.is_new = run_id, True
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._changed: set[str] = set()
        self._matters = OpenMatters(0, at_least=False)

    def tell(self, changed: Iterable[str], matters: OpenMatters) -> None:
        """Note changes; called by the watcher's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note, changed, matters)

    def _note(self, changed: Iterable[str], matters: OpenMatters) -> None:
        self._changed.update(changed)
        self._matters = matters
        self._news.set()

    async def event(self) -> str:
        """Return the next event, or a comment that keeps the connection alive."""
        try:
            await asyncio.wait_for(self._news.wait(), _ALIVE)
        except (TimeoutError, asyncio.TimeoutError):
            return ":\n\n"
        self._news.clear()
        changed, self._changed = sorted(self._changed), set()
        total, at_least = self._matters
        facts = {"runs": changed, "open": total, "at_least": at_least}
        return f"event: changed\ndata: {json.dumps(facts)}\n\n"


def _changes(before: dict[str, _SeenState], now: dict[str, _SeenState]) -> dict[str, _SeenState]:
    """Return the states that are new or other ones, and those of runs that are gone."""
    found = {i: now.get(i) or before[i] for i in now.keys() | before.keys()}
    return {i: state for i, state in found.items() if now.get(i) != before.get(i)}


class RunWatcher:
    """The watcher of one store, for all open pages."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._listeners: set[_Listener] = set()
        self._watches = False
        self._known: dict[str, tuple[bytes, str, bool]] = {}

    async def events(self, run_id: str = "") -> AsyncGenerator[str, None]:
        """Yield server-sent events: one for each look that found a change.

        Args:
            run_id: only changes of this run, its child runs and branches, and of the number of
                open matters; empty for all runs.
        """
        listener = _Listener(run_id)
        with self._lock:
            self._listeners.add(listener)
            if not self._watches:
                self._watches = True
                name = "stepwise watches runs"
                threading.Thread(target=self._watch, name=name, daemon=True).start()
        try:
            yield "retry: 1000\n\n"
            while True:
                yield await listener.event()
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _watch(self) -> None:
        """Look for changes until no page is open; an unforeseen error ends that, too."""
        before: dict[str, _SeenState] = {}
        counted: OpenMatters | None = None
        try:
            while listeners := self._listening():
                began = time.monotonic()
                try:
                    now = self._look({each.run_id for each in listeners})
                    matters = self._reader.open_matters()
                except (StepwiseError, RunStopped):  # a page that is loaded says it
                    for each in listeners:  # what they load meanwhile is a problem, too
                        each.is_new = True
                else:
                    changed = _changes(before, now)
                    for each in listeners:
                        found = [i for i, s in changed.items() if each.run_id in ("", i, s.above)]
                        # A page may be older than the first look: it is loaded again once.
                        if found or each.is_new or counted != matters:
                            each.tell(() if each.is_new else found, matters)
                        each.is_new = False
                    before, counted = now, matters
                time.sleep(max(_PAUSE, _SLOWER * (time.monotonic() - began)))
        except BaseException:
            self._watches = False  # the next page that opens begins anew
            raise

    def _listening(self) -> list[_Listener]:
        """Return the open pages; if there are none, the thread that asks ends."""
        with self._lock:
            self._watches = bool(self._listeners)
            return [*self._listeners] if self._watches else []

    def _look(self, wanted: set[str]) -> dict[str, _SeenState]:
        """Return the states of the unfinished runs, the newest runs and the wanted ones."""
        store = self._reader.store
        found = {
            run_id: _SeenState(data, above=facts.parent or facts.base)
            for run_id, (data, facts) in self._reader.heads().items()
        }
        for head in itertools.islice(newest_heads(store, self._reader.seal), _NEWEST):
            found[head.run_id] = self._state(head)
        for run_id in wanted - {""}:
            head_now = store.head(run_id)
            state = self._state(head_now) if head_now is not None else _SeenState(b"")
            beside = *store.marks(inbox_name(run_id)), *_marks(store, stream_name(run_id))
            found[run_id] = state._replace(moves=(*state.moves, *beside))
        self._known = {i: known for i, known in self._known.items() if i in found}
        return found

    def _state(self, head: Head) -> _SeenState:
        run_id, store = head.run_id, self._reader.store
        data, above, runs = self._known.get(run_id, (b"", "", False))
        if data != head.data:
            facts = open_head(self._reader.seal, head)
            above = facts.parent or facts.base if facts is not None else ""
            runs = facts is None or facts.status == "running"
            self._known[run_id] = head.data, above, runs
        if not runs:
            return _SeenState(head.data, (), above)
        owner, noted = store.owner(run_id), getattr(store, "noted", None)
        note = noted(run_id) if noted is not None else b""
        return _SeenState(head.data, (owner, note, *_marks(store, run_id)), above)


def _marks(store: Store, name: str) -> list[object]:
    """Return what each write to a run or a log changes; a store in memory has no marks."""
    return [*store.marks(name)] or [sum(1 for _ in store.read(name))]
