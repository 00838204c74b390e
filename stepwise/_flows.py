"""The flows of control of one run: what its tasks and threads execute, and who waits for whom.

A *flow* is an asyncio task or, without one, a thread.  Imports: tasks, notices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepwise import _tasks
from stepwise._notices import notice

__all__ = ["Flows"]

_TELL_AFTER = 5.0  # seconds


class Flows:
    """Which calls are being executed, which wait, and a bell for those that wait."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._working: dict[int, int] = {}  # number of a call being executed -> its flow
        self._blocked: list[tuple[int, ...]] = []  # of each waiting call, the calls around it
        self._changes = 0
        self._bells: list[Callable[[], None]] = []

    @property
    def changes(self) -> int:
        """A number that grows whenever something happens that a waiting call may wait for."""
        return self._changes

    def change(self) -> None:
        """Something happened."""
        with self._mutex:
            self._changes += 1
            bells = list(self._bells)
        for ring in bells:
            ring()

    @contextmanager
    def watching(self, ring: Callable[[], None]) -> Iterator[None]:
        """Have ``ring`` called at every change."""
        with self._mutex:
            self._bells.append(ring)
        try:
            yield
        finally:
            with self._mutex:
                self._bells.remove(ring)

    @contextmanager
    def working(self, number: int) -> Iterator[None]:
        """While the body of a call is executed in this flow."""
        with self._mutex:
            self._working[number] = _tasks.who()
        try:
            yield
        finally:
            with self._mutex:
                self._working.pop(number, None)
            self.change()

    @contextmanager
    def blocked(self, around: tuple[int, ...]) -> Iterator[None]:
        """While a call waits for what others do; ``around`` are the calls it is made in."""
        with self._mutex:
            self._blocked.append(around)
        try:
            yield
        finally:
            with self._mutex:
                self._blocked.remove(around)

    def others_working(self) -> bool:
        """Whether another flow executes a body, other than one that itself waits for its parts."""
        here = _tasks.who()
        with self._mutex:
            waiting = {number for around in self._blocked for number in around}
            return any(
                flow != here and number not in waiting for number, flow in self._working.items()
            )

    def join(self, whose: str) -> None:
        """Wait until no other flow executes a body."""
        bell, told = threading.Event(), False
        with self.watching(bell.set):
            while self.others_working():
                bell.clear()
                if self.others_working() and not bell.wait(_TELL_AFTER) and not told:
                    told = True
                    notice(f"{whose} waits for steps that are still running in threads")
