"""The ledgers of limits in a store, and the processes that hold a part of them.

A ledger is one sealed object under ``limit:NAME``.  A process changes it under the lease of that
name, which it holds for one write.  The write is atomic, so that a killed process leaves a whole
ledger.  A ledger need not survive a power cut, which ends all processes that hold a part of it.

A process that has open requests holds the lease of ``limits:NUMBER``, the first one that is free.
The lease shows whether the process lives: on a disk the kernel frees it with the process, on
Postgres it lapses like the lease of a run.

The clock of a ledger is the clock of the store's server.  A store without a server is used on one
machine, and its clock counts since the start of the machine; nobody can set it.  After a restart of
the machine, the time of day tells how much time has passed.

Rejected: records instead of an object.  A reader needs the sum of all records, so that each grant
would read a whole window.

Rejected: new tables with a row for each request, and a sum by the server.  Only Postgres could do
that, and each call would write.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stepwise._journal.lease import Lease
from stepwise._journal.ledger import Figures, Ledger, Over
from stepwise._journal.logs import LogIndex, LogKind, SealedLog
from stepwise._journal.seal import Seal, named
from stepwise._runtime import clock
from stepwise._runtime.interrupts import Uninterrupted
from stepwise._runtime.messages import notice, reports
from stepwise.errors import RunBusyError
from stepwise.stores import Batch, Store

LIMITS = LogKind("limit:", "limits:", "limit")
"""The names of the ledgers, and of their list."""

_LEDGER = "ledger"  # the name of the object
_PATIENCE = 1.0  # seconds to wait for the lease of a ledger that may be deleted
_CHECKED = 5.0  # seconds for which a lease that was held is taken to be held


def moment(store: Store) -> float:
    """Return the time of the clock that all processes of a store share."""
    now = getattr(store, "now", None)
    return float(now()) if now is not None else clock.elapsed()


@functools.cache
def _boot() -> str:
    """Return the id of this start of the machine, if the system gives one."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class StoredLedger:
    """The ledger of one limit in a store.

    Args:
        figures: of the limit, as this program states them; ``None`` to look only.
    """

    def __init__(self, store: Store, seal: Seal, name: str, figures: Figures | None = None) -> None:
        self.store, self.name, self.figures = store, name, figures
        self._seal = seal
        self._log = SealedLog(store, seal, f"{LIMITS.prefix}{name}")

    def read(self) -> Ledger | None:
        """Return the ledger as it is now, or ``None`` if nobody has used the limit."""
        data, now = self.store.get(self._log.name, _LEDGER), moment(self.store)
        if data is None:
            return None
        opened = self._seal.opened(named(_LEDGER, self._log.name), data)
        if opened is None:
            return self._used_up(now)
        header = opened.header
        ledger = Ledger.from_data(header["ledger"])
        if header["boot"] != self._of_boot():
            passed = max(0.0, time.time() - header["wall"])
            ledger.shift(now - ledger.at - passed)
        ledger.tick(now)
        return ledger

    def _used_up(self, now: float) -> Ledger | None:
        """Return the ledger of a window that is used up: nobody knows what was taken."""
        if self.figures is None:
            return None
        _tell_damaged(self.name, self.store.url)
        ledger = Ledger(self.figures)
        used = Over(now, self.figures.requests or 0, self.figures.tokens or 0)
        ledger.report("", now, [used], (0, 0))
        ledger.at = now
        return ledger

    def _of_boot(self) -> str:
        return "" if hasattr(self.store, "now") else _boot()

    @contextmanager
    def changing(self) -> Iterator[Ledger]:
        """Yield the ledger as it is now, under its lease, and write it at the end of the block.

        Raises:
            RunBusyError: other processes have held the lease for a minute.
            StoreError: the store cannot be used.
        """
        with self._log.owned() as epoch:
            found = self.read()
            ledger = found or Ledger(self.figures or Figures())
            ledger.at = ledger.at or moment(self.store)
            yield ledger
            self._write(epoch, ledger)
        if found is None:
            LogIndex(self.store, self._seal, LIMITS).add(self.name)

    def _write(self, epoch: int, ledger: Ledger) -> None:
        header = {"ledger": ledger.to_data(), "boot": self._of_boot(), "wall": time.time()}
        data, _ = self._seal.close(named(_LEDGER, self._log.name), header)
        with Uninterrupted():
            self.store.write(self._log.name, epoch, Batch(put={_LEDGER: data}, durable=False))

    def drop_if_idle(self) -> None:
        """Delete the ledger if nothing counts any more, and nobody waits.

        What dead processes have taken counts for one more window.

        Raises:
            RunBusyError: another process has the lease.
        """
        with self._log.owned(_PATIENCE) as epoch:
            found = self.read()
            if found is None and self.store.get(self._log.name, _LEDGER) is not None:
                return  # damaged: it counts as used up for the processes that use it
            dead = self._dead(found) if found is not None else ()
            if found is not None and dead:
                for each in dead:
                    found.bury(each, found.at)
                self._write(epoch, found)
            elif found is None or found.is_idle():
                self._log.delete(epoch)
                LogIndex(self.store, self._seal, LIMITS).remove(self.name)

    def _dead(self, ledger: Ledger) -> list[str]:
        known = {*ledger.claims, *(each.holder for each in ledger.places)}
        return [each for each in known if is_dead(self.store, each)]


@reports
def _tell_damaged(name: str, url: str) -> None:
    notice(f"the ledger of limit {name!r} in {url} is damaged: it counts as used up for one window")


def ledgers(store: Store, seal: Seal) -> Iterator[tuple[str, Ledger]]:
    """Yield the limits that were used in a store, by name."""
    for name in sorted(filter(None, LogIndex(store, seal, LIMITS).ids())):
        ledger = StoredLedger(store, seal, name).read()
        if ledger is not None:
            yield name, ledger


def drop_idle_ledgers(store: Store, seal: Seal, goes_on: Callable[[], bool]) -> None:
    """Delete the ledgers of values of a ``key=`` that nobody uses any more.

    Args:
        goes_on: called before each; returns whether to go on.
    """
    for name in filter(None, LogIndex(store, seal, LIMITS).ids()):
        if not goes_on():
            return
        if name.endswith("]"):  # the others are few, and have learned the usual tokens of a call
            with suppress(RunBusyError):
                StoredLedger(store, seal, name).drop_if_idle()


class HolderLease:
    """A lease of this process, which shows the others that the process lives.

    Attributes:
        id: the name of the process in ledgers.
    """

    def __init__(self, store: Store) -> None:
        for number in itertools.count(1):
            self._lease = Lease(store, f"{LIMITS.list_name}{number}")
            try:
                self._lease.acquire()
                break
            except RunBusyError:
                continue
        self.id = f"{number}/{self._lease.since!r}"
        self._checked = clock.elapsed()

    def is_held(self) -> bool:
        """Return whether the lease is held: a machine that slept may have lost it on a server."""
        now = clock.elapsed()
        if now - self._checked < _CHECKED:
            return True
        self._checked = now
        return self._lease.is_ours()

    def release(self) -> None:
        """Release the lease: this process has nothing of any limit any more."""
        self._lease.release()


def is_dead(store: Store, holder: str) -> bool:
    """Return whether the process of a holder's id is gone."""
    number, _, since = holder.partition("/")
    owner = store.owner(f"{LIMITS.list_name}{number}")
    return owner is None or (bool(owner.since) and repr(owner.since) != since)
