"""Suspended runs that this process wakes itself, once what they wait for has come."""

from __future__ import annotations

import math

from stepwise._calls.driver import Core, Result, Wait
from stepwise._execution.concurrency import Gong
from stepwise._execution.watching import watcher
from stepwise._journal.journal import facts_of, seal_for
from stepwise._runtime.interrupts import ending
from stepwise._workflows.unfinished import UnfinishedRun
from stepwise.stores import Store

__all__ = ["end_waiting", "until_due"]

_LONGEST = 15.0  # seconds between two looks, should a ring be lost

_gongs: set[Gong] = set()


def until_due(store: Store, run_id: str) -> Core:
    """Wait until a suspended run has to go on; false if the program ends before."""
    gong, seal = Gong(), seal_for(store)
    facts = facts_of(store, seal, run_id)
    if facts is None:
        return Result(True)
    until = UnfinishedRun(store, seal, facts).until
    moment = None if math.isinf(until) else until
    runs = {run_id, *(each.run for each in facts.waits)} - {""}
    _gongs.add(gong)
    watches = [watcher.watch(store, seal, each, gong.ring, until=moment) for each in runs]
    try:
        while not ending.begun:
            seen = gong.changes
            facts = facts_of(store, seal, run_id)
            if facts is None or facts.status != "suspended":  # another process was faster
                return Result(True)
            if UnfinishedRun(store, seal, facts).why() is not None:
                return Result(True)
            (yield Wait(gong, seen, _LONGEST)).unwrap()
        return Result(False)
    finally:
        _gongs.discard(gong)
        for watch in watches:
            watch.close()


def end_waiting() -> None:
    """The program ends: nothing is woken any more."""
    for gong in list(_gongs):
        gong.ring()
