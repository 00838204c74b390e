"""Counters of an attempt: its calls, by name, and its steps."""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from typing import Any

from stepwise._identity.identity import idempotency_key
from stepwise._journal.records import Call

__all__ = ["Ordinals", "Progress", "apart", "counted_as", "key_of", "turn"]


_TURNS = 1 << 40
_COUNTED = ("input_tokens", "output_tokens", "cached_input_tokens", "cost_usd")


def turn(call: Call) -> int:
    """Return how many-th call of its name a call was, whatever ordinal keeps its key apart."""
    return call.ordinal % _TURNS


class Progress:
    """The progress of this attempt so far.

    Args:
        executed, skipped: steps that it executed; that it did not, since they were done.
        resumed_from: how many were done where it resumed; ``None`` for a first attempt.
        seconds: that the done steps of the run's own code have taken.
        usage: what the done model requests have used: tokens and US dollars, by name.
    """

    def __init__(
        self,
        executed: int = 0,
        skipped: int = 0,
        resumed_from: int | None = None,
        seconds: float = 0.0,
        usage: Mapping[str, float] | None = None,
    ) -> None:
        self.executed = executed
        self.skipped = skipped
        self.resumed_from = resumed_from
        self.seconds = seconds
        self.usage = dict(usage or {})

    def add(self, seconds: float, usage: Mapping[str, Any] | None) -> None:
        """Count what a done step has taken."""
        self.seconds += seconds
        for name in _COUNTED if usage else ():
            if usage and usage.get(name):
                self.usage[name] = self.usage.get(name, 0) + usage[name]

    @property
    def done(self) -> int:
        """Return the number of done steps, in all attempts."""
        return self.executed + self.skipped


class Ordinals:
    """The ordinals of calls among calls of their name, and of child workflows among equals.

    A branch of a graph counts its own calls, under names of its own.
    """

    def __init__(
        self,
        calls: Mapping[str, int] | None = None,
        children: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._calls = dict(calls or {})
        self._children = dict(children or {})
        self._lock = threading.Lock()

    def of_call(self, counted: str) -> int:
        """Count one more call of a name; see :func:`counted_as`."""
        with self._lock:
            ordinal = self._calls[counted] = self._calls.get(counted, 0) + 1
        return ordinal

    def of_child(self, name: str, digest: str) -> int:
        """Count one more call of a child workflow with these arguments."""
        with self._lock:
            ordinal = self._children[name, digest] = self._children.get((name, digest), 0) + 1
        return ordinal

    def next_child(self, name: str, digest: str) -> int:
        """Return what :meth:`of_child` will give."""
        with self._lock:
            return self._children.get((name, digest), 0) + 1

    def count_anew(self, branch: str) -> None:
        """The next calls of a branch are its first again."""
        with self._lock:
            for counted in [each for each in self._calls if each.startswith(f"{branch}\n")]:
                del self._calls[counted]

    def kept(self) -> tuple[dict[str, int], list[list[object]]]:
        """Return the counts for a checkpoint: calls by name, and children by name and digest.

        No branch of a graph is alive where one is taken.
        """
        with self._lock:
            calls, children = self._calls.copy(), self._children.copy()
        if "\n" in "".join(calls):
            calls = {counted: n for counted, n in calls.items() if "\n" not in counted}
        return calls, [[*key, n] for key, n in children.items()] if children else []


def counted_as(name: str, branch: str) -> str:
    """The name under which a call is counted."""
    return f"{branch}\n{name}" if branch else name


def key_of(run_id: str, call: Call) -> str:
    """The idempotency key of a call that is made in this run."""
    counted = counted_as(call.name, call.branch)
    return idempotency_key(run_id, counted, call.digest, call.ordinal)


def apart(call: Call, run_id: str, undone: int, taken: Container[tuple[str, str, int]]) -> Call:
    """Give a new call an ordinal, and so an idempotency key, that no recorded call has.

    Its own may be taken: of objects that call in another order than before, the first has the
    ordinal under which another was recorded.  The new one is below zero, so that the calls that
    follow keep theirs; :func:`turn` tells the call's own.
    """
    counted, ordinal = counted_as(call.name, call.branch), call.ordinal
    while (counted, call.digest, ordinal) in taken:
        ordinal -= _TURNS
    if ordinal == call.ordinal:
        return call
    key = idempotency_key(run_id, counted, call.digest, ordinal, undone) if call.effect else ""
    return call._replace(ordinal=ordinal, key=key)
