"""LangGraph threads in a store: each one sealed log, shared by processes and threads.

What was read of a thread is kept in memory; only newer records are read again.  The lease of a
thread is held for one write, so that any process may make the next one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stepwise._runtime import settings
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import notice
from stepwise._runtime.store_urls import public_url
from stepwise._workflows.host import THREADS, HostStore, LogEnd, LogIndex, SealedLog
from stepwise.integrations._langgraph_threads import Place, Thread
from stepwise.stores import Store, open_store

__all__ = ["ThreadStore", "Writer"]

_MOST, _MOST_THREADS = 64_000_000, 200  # bytes of values, and threads, that are kept in memory


class _Known:
    """A thread as far as it was read here."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread = Thread()
        self.end = LogEnd()

    def forget(self) -> None:
        self.thread, self.end = Thread(), LogEnd()


class ThreadStore:
    """The threads in one store.

    Args:
        where: a URL, a path or a store; ``None`` for the configured store.
    """

    def __init__(self, where: object = None) -> None:
        self._where = where
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[type[ThreadStore], tuple[object]]:
        where = public_url(self._where) if isinstance(self._where, str) else self._where
        return ThreadStore, (where,)  # so that a graph can be a variable of a run

    @cached
    def _host(self) -> HostStore:
        where = self._where if self._where is not None else settings.store()
        return HostStore(open_store(where))  # type: ignore[arg-type]  # it checks that

    @property
    def store(self) -> Store:
        """The store itself."""
        return self._host.store

    def forget(self) -> None:
        """Let go of what was read."""
        with self._mutex:
            self._known.clear()

    def read(self, thread_id: str) -> Thread:
        """Return a thread as it is now; it only grows afterwards."""
        known, log = self._entry(thread_id), self._log(thread_id)
        with known.lock:
            self._refresh(known, log)
            return known.thread

    @contextmanager
    def writing(self, thread_id: str) -> Iterator[Writer]:
        """Give a writer of a thread, which nobody else writes meanwhile.

        Raises:
            RunBusyError: another process has been writing to it for a minute.
        """
        known, log = self._entry(thread_id), self._log(thread_id)
        with known.lock, log.owned() as epoch:
            self._refresh(known, log)
            try:
                yield Writer(self, thread_id, known, log, epoch)
            except BaseException:
                known.forget()  # it is not known whether the last write was done
                raise

    def thread_ids(self) -> list[str]:
        """Return the ids of all threads."""
        found = []
        for each in self._index.ids():
            if each is None:
                notice(f"an entry of {self.store.url} for a LangGraph thread is damaged; left out")
            else:
                found.append(each)
        return found

    def register(self, thread_id: str) -> None:
        """Note that a thread exists."""
        self._index.add(thread_id)

    def unregister(self, thread_id: str) -> None:
        """Note that a thread does not exist any more."""
        self._index.remove(thread_id)

    @property
    def _index(self) -> LogIndex:
        return LogIndex(self.store, self._host.seal, THREADS)

    def _log(self, thread_id: str) -> SealedLog:
        return SealedLog(self.store, self._host.seal, f"{THREADS.prefix}{thread_id}")

    def _entry(self, thread_id: str) -> _Known:
        if self._pid != os.getpid():  # a lock may be held by a thread that a fork left behind
            self._mutex, self._known, self._pid = threading.Lock(), OrderedDict(), os.getpid()
        with self._mutex:
            known = self._known.get(thread_id)
            if known is None:
                known = self._known[thread_id] = _Known()
            self._known.move_to_end(thread_id)
            size = sum(each.thread.size for each in self._known.values())
            while len(self._known) > _MOST_THREADS or (size > _MOST and len(self._known) > 1):
                _, oldest = self._known.popitem(last=False)
                size -= oldest.thread.size
            return known

    def _refresh(self, known: _Known, log: SealedLog) -> None:
        found = log.read(known.end) if known.end.at.last else None
        whole = found is None
        for attempt in range(3):  # another process may have rewritten it in between
            if found is None:
                known.forget()
                found = log.read(known.end)
            if found is None or (any(each.header is None for each in found[0]) and attempt < 2):
                whole, found = True, None
                continue
            break
        assert found is not None
        entries, known.end = found
        for each in entries:
            known.thread.add(*each)
        if whole:
            self._compare(known, log)

    def _compare(self, known: _Known, log: SealedLog) -> None:
        """Note acknowledged records that are gone from the end."""
        while log.missing(known.end):
            found = log.read(known.end)  # unless they were written since
            if found is None or found[1] == known.end:
                known.thread.gone = log.missing(known.end)
                return
            entries, known.end = found
            for each in entries:
                known.thread.add(*each)


class Writer:
    """The right to write to a thread.

    Attributes:
        thread: its content.
    """

    def __init__(
        self, owner: ThreadStore, thread_id: str, known: _Known, log: SealedLog, epoch: int
    ) -> None:
        self._owner, self._thread_id = owner, thread_id
        self._known, self._log, self._epoch = known, log, epoch

    @property
    def thread(self) -> Thread:
        """The content of the thread."""
        return self._known.thread

    def append(self, *records: tuple[list[object], bytes]) -> None:
        """Append records durably."""
        known = self._known
        if not known.end.at.last:
            self._owner.register(self._thread_id)
        known.end = self._log.append(self._epoch, known.end, records)
        for number, record in enumerate(records, known.thread.last + 1):
            known.thread.add(number, *record)
        known.thread.last = known.end.at.last

    def keep(self, places: Iterable[Place]) -> None:
        """Delete all checkpoints and writes but these."""
        known, kept = self._known, set(places)
        if not kept:
            return self.delete()
        into = Thread(known.end.at.last)
        return self.replace(list(known.thread.rewritten(kept, into)), into)

    def replace(self, records: list[tuple[list[object], bytes]], into: Thread) -> None:
        """Replace all records.

        Args:
            into: the content that the records make.
        """
        known = self._known
        if not known.end.at.last:
            self._owner.register(self._thread_id)
        known.end = self._log.append(self._epoch, known.end, records, instead=True)
        known.thread = into

    def delete(self) -> None:
        """Delete the thread."""
        if self._known.end.at.last:
            self._log.delete(self._epoch)
            self._known.forget()
        self._owner.unregister(self._thread_id)
