"""The waits of a run: its view of the inbox, and its parked calls.

The journal determines which messages a run has taken.  A checkpoint holds a summary, so that a
resumed run need not read the whole journal.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from stepwise._journal.journal import inbox_name, is_begun
from stepwise._journal.projection import met_messages
from stepwise._journal.records import Entry, RunWait
from stepwise._journal.seal import Seal
from stepwise._runtime.clock import End, elapsed
from stepwise.stores import Store

if TYPE_CHECKING:
    from stepwise._execution.message_watcher import RunWatch
    from stepwise._journal.logs import Inbox, Message


F = TypeVar("F", bound=Callable[..., Any])

_NOTHING: Mapping[str, Sequence[int]] = {}


may_wait: set[Callable[..., Any]] = set()
"""The public functions that wait; a checkpoint is taken before their statements."""


def waits(function: F) -> F:
    """Mark a public function as waiting."""
    may_wait.add(function)
    return function


class Taken:
    """The messages that a run has taken, according to its records.

    Args:
        kept: the summary in a checkpoint: by the name of the signal, the number up to which all
            messages of that name are taken, and the numbers of later ones.
        entries: the records after that checkpoint.
    """

    def __init__(
        self, kept: Mapping[str, Sequence[int]] = _NOTHING, entries: Iterable[Entry] = ()
    ) -> None:
        self._low = {name: numbers[0] for name, numbers in kept.items()}
        self._others = {number for numbers in kept.values() for number in numbers[1:]}
        self._others |= met_messages(entries).keys()

    def __contains__(self, message: Message) -> bool:
        low = self._low.get(message.name, 0)
        return message.number <= low or message.number in self._others

    def knows(self, number: int) -> bool:
        """Return whether a message is known to be taken by its number."""
        return number in self._others

    def add(self, number: int) -> None:
        """Note that a message is taken."""
        self._others.add(number)

    def settle(self, name: str, low: int, known: Iterable[int]) -> None:
        """Note that all messages of a name up to a number are taken, among them the known ones."""
        if low > self._low.get(name, 0):
            self._low[name] = low
        self._others.difference_update(known)

    def kept(self) -> dict[str, list[int]]:
        """Return the summary for a checkpoint; messages of unknown name stand under "".

        Numbers are unique among all names, so a number may stand under any name.
        """
        if not (self._low or self._others):
            return {}
        found = {name: [low] for name, low in self._low.items()}
        if self._others:
            found[""] = [self._low.get("", 0), *sorted(self._others)]
        return found


class RunInbox:
    """The inbox of a run in progress, used by several of its threads.

    The store is read when new messages are possible: at the first use, and after :meth:`ring`.
    """

    def __init__(self, store: Store, seal: Seal, run_id: str, taken: Taken) -> None:
        self._of = store, seal, run_id
        self._opened: Inbox | None = None
        self._lock = threading.RLock()
        self.taken = taken
        self._fresh = False
        self._seen = 0  # messages that were sorted
        self._held: dict[int, str] = {}  # taken and not recorded yet: number and name
        self._last: dict[str, int] = {}  # number of the newest signal of a name
        self._recent: dict[str, set[int]] = {}  # taken signals that ``low`` does not cover yet
        self._waiting: dict[str, deque[Message]] = {}  # signals that were not taken, by name
        self._answers: dict[str, deque[Message]] = {}  # by ticket

    def ring(self) -> None:
        """Note that there may be new messages."""
        self._fresh = False

    def _inbox(self) -> Inbox | None:
        """Return the inbox, or ``None`` while nobody has sent anything, as for most runs."""
        if self._opened is None:
            store, _, run_id = self._of
            if is_begun(store, inbox_name(run_id)):
                from stepwise._journal.logs import Inbox  # on use: a large module

                self._opened = Inbox(*self._of)
        return self._opened

    @property
    def messages(self) -> list[Message]:
        """All messages, in the order of arrival."""
        with self._lock:
            self._look()
            return list(self._opened.messages) if self._opened is not None else []

    @property
    def seen(self) -> int:
        """The number of the last message that was read; 0 if there was none."""
        with self._lock:
            messages = self._opened.messages if self._opened is not None else []
            return messages[-1].number if messages else 0

    def signals(self, name: str) -> list[Message]:
        """Return the signals of a name that were not taken, in the order of arrival."""
        with self._lock:
            self._look()
            return list(self._waiting.get(name, ()))

    def answer(self, ticket: str) -> Message | None:
        """Return the first answer to a question, or None."""
        with self._lock:
            self._look()
            given = self._answers.get(ticket)
            return given[0] if given else None

    def ignore(self, answer: Message) -> bool:
        """Ignore an invalid answer; return whether it was unknown until now."""
        with self._lock:
            self._answers[answer.name].remove(answer)
            known = answer in self.taken
            self.taken.add(answer.number)
            return not known

    def take(self, name: str) -> Message | None:
        """Take the first signal of a name, or return ``None`` if there is none.

        The caller records the message (:meth:`recorded`), or gives it back.
        """
        with self._lock:
            self._look()
            waiting = self._waiting.get(name)
            if not waiting:
                return None
            message = waiting.popleft()
            self._held[message.number] = name
            return message

    def recorded(self, message: Message) -> None:
        """Note that the taking of a message is recorded."""
        with self._lock:
            del self._held[message.number]
            self.taken.add(message.number)
            self._recent.setdefault(message.name, set()).add(message.number)

    def give_back(self, message: Message) -> None:
        """Put back a signal that was taken and not recorded."""
        with self._lock:
            del self._held[message.number]
            waiting = [*self._waiting.get(message.name, ()), message]
            self._waiting[message.name] = deque(sorted(waiting, key=attrgetter("number")))

    def kept(self) -> dict[str, list[int]]:
        """Return the summary of taken messages for a checkpoint."""
        if not self._recent:
            return self.taken.kept()
        with self._lock:
            for name, numbers in self._recent.items():
                waiting = self._waiting.get(name)
                open_ = [number for number, held in self._held.items() if held == name]
                open_ += [waiting[0].number] if waiting else []
                low = min(open_) - 1 if open_ else self._last[name]
                known = {each for each in numbers if each <= low}
                self.taken.settle(name, low, known)
                numbers.difference_update(known)
            return self.taken.kept()

    def _look(self) -> None:
        if self._fresh:
            return
        self._fresh = True  # a ring during the reading causes another one
        try:
            inbox = self._inbox()
            if inbox is None:
                return
            before = inbox.messages
            inbox.look()
        except BaseException:
            self._fresh = False
            raise
        messages = inbox.messages
        if messages is not before:  # the store was restored from a backup
            self._waiting.clear()
            self._answers.clear()
            self._recent.clear()
            self._seen = 0
        new, self._seen = messages[self._seen :], len(messages)
        for message in new:
            if message.kind == "answer":
                self._answers.setdefault(message.name, deque()).append(message)
            elif message.kind == "signal":
                name, number = message.name, message.number
                self._last[name] = number
                if number in self._held:
                    continue
                if message not in self.taken:
                    self._waiting.setdefault(name, deque()).append(message)
                elif self.taken.knows(number):
                    self._recent.setdefault(name, set()).add(number)


class Parked:
    """A waiting call.

    Args:
        wait: the wait, as listings show it.
        end: when the wait times out.
        flow: the flow of control that waits.
    """

    __slots__ = ("end", "flow", "since", "wait")

    def __init__(self, wait: RunWait, end: End, flow: int) -> None:
        self.wait = wait
        self.end = end
        self.flow = flow
        self.since = elapsed()

    @property
    def asks(self) -> bool:
        """True if the call waits for a message."""
        return self.wait.kind in ("signal", "approval")


class Waits:
    """The waiting calls of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parked: dict[int, Parked] = {}
        self._watch: RunWatch | None = None

    @property
    def all(self) -> list[Parked]:
        """The waiting calls, in the order of their numbers."""
        with self._lock:
            return [self._parked[number] for number in sorted(self._parked)]

    @property
    def watched(self) -> bool:
        """True if the inbox is watched, so that new messages wake the calls."""
        return self._watch is not None

    @contextmanager
    def parked(self, parked: Parked, watch: Callable[[], RunWatch] | None = None) -> Iterator[None]:
        """Register a waiting call while the block runs.

        Args:
            watch: begins to watch the inbox; called if the call waits for a message, and the inbox
                is not watched yet.
        """
        try:
            with self._lock:
                self._parked[parked.wait.number] = parked
                if parked.asks and self._watch is None and watch is not None:
                    self._watch = watch()
            yield
        finally:
            with self._lock:
                self._parked.pop(parked.wait.number, None)
                unwatched = not any(each.asks for each in self._parked.values())
                watched, self._watch = self._watch, None if unwatched else self._watch
            if unwatched and watched is not None:
                watched.close()
