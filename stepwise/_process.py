"""What this process remembers of the runs it executed.

Two things decide which run a call means and are in no store: how many runs with equal arguments
have completed here (a loop that calls a workflow five times means five runs), and which objects a
run was given that stopped (it may have changed them; a call with the same objects means that run).

Imports: digest, identity.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stepwise.errors import DigestError

__all__ = ["Given", "Memory", "command", "memory"]

_STOPPED = 32  # runs whose objects are held
_NONE = 0, None
_ATOMS = (type(None), bool, int, float, complex, str, bytes)


class Given(NamedTuple):
    """The objects a workflow was called with."""

    name: str
    bound: Mapping[str, Any]
    instance: Any

    def same_as(self, other: Given) -> bool:
        """Whether these are the very same objects."""
        return (
            self.name == other.name
            and self.instance is other.instance
            and self.bound.keys() == other.bound.keys()
            and all(_same(value, other.bound[name]) for name, value in self.bound.items())
        )


def _same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _ATOMS and one == other)


class Memory:
    """See the module."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # How many, and what stands for the last one.
        self._completed: dict[tuple[str, str], tuple[int, object]] = {}
        self.resumed: str = ""  # the run that STEPWISE_RESUME named, once it has been taken up
        self._stopped: OrderedDict[tuple[str, str], tuple[Given, str]] = OrderedDict()

    def ordinal(self, store: str, base: str) -> int:
        """How many runs of this derived id have completed here."""
        with self._mutex:
            return self._completed.get((store, base), _NONE)[0]

    def completed(self, store: str, base: str, run_id: str) -> None:
        """A run has completed, or its result was recalled.

        Where a Ctrl-C comes in here, nobody gets the result: the next call is to get it.
        """
        this = object()
        try:
            with self._mutex:
                self._stopped.pop((store, run_id), None)
                count, _ = self._completed.get((store, base), _NONE)
                self._completed[store, base] = count + 1, this
        except BaseException:
            with self._mutex:
                count, last = self._completed.get((store, base), _NONE)
                if last is this:
                    self._completed[store, base] = count - 1, None
            raise

    def stopped(self, store: str, run_id: str, given: Given, digest: Callable[[], str]) -> None:
        """A run has failed or was interrupted; ``digest`` tells how it left its arguments."""
        try:
            now = digest()
        except DigestError:
            return
        with self._mutex:
            self._stopped[store, run_id] = given, now
            self._stopped.move_to_end((store, run_id))
            while len(self._stopped) > _STOPPED:
                self._stopped.popitem(last=False)

    def recognise(self, store: str, given: Given, digest: str) -> str | None:
        """The stopped run that was given these objects, if they are as it left them."""
        with self._mutex:
            for (where, run_id), (before, left) in reversed(self._stopped.items()):
                if where == store and left == digest and before.same_as(given):
                    return run_id
        return None


memory = Memory()


def command() -> tuple[tuple[str, ...], str]:
    """How this process was started, to be started again, and in which folder.

    Empty if a command line does not tell: an interpreter at a prompt, a notebook's kernel, a
    process that another one spawned.
    """
    given = getattr(sys, "orig_argv", [])[1:]
    spawned = "--multiprocessing-fork" in given
    main = getattr(sys.modules.get("__main__"), "__file__", None) or "-c" in given
    if spawned or not main or not sys.executable or "ipykernel" in sys.modules:
        return (), ""
    try:
        return (sys.executable, *given), os.getcwd()
    except FileNotFoundError:  # the folder is gone
        return (), ""
