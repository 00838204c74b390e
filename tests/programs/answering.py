"""What the tests of approvals share: people who answer, and processes that die while they ask."""

import threading
from unittest import mock

from harness import until
from killed import Killed, forget_process

import stepwise
from stepwise._calls import approvals
from stepwise._calls import approvals as asking


def asked(run, count=1):
    """Wait until a run has so many open questions; them."""
    until(lambda: len(run.questions) >= count)
    return run.questions


def died_asking(call):
    """Call a workflow in a process that dies while it waits for an answer; the run's questions."""

    def dies(*_):
        raise Killed

    with (
        mock.patch.object(approvals, "answered", dies),
        mock.patch.object(asking, "answered", dies),
    ):
        try:
            raise AssertionError(f"it did not ask: {call()!r}")
        except Killed:
            forget_process()
    return [each for run in stepwise.runs() for each in run.questions]


class Person:
    """Answers questions as they come, in a thread: ``say(question)`` answers one, or leaves it."""

    def __init__(self, run, say):
        self.seen = []
        self._run, self._say = run, say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join()

    def _answer(self):
        while not self._ended.wait(0.01):
            for question in self._run.questions:
                if question not in self.seen:
                    self.seen.append(question)
                    self._say(question)
