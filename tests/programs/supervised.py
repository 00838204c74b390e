"""Supervisors of the default store, in this process."""

import threading

from harness import until

import stepwise
from stepwise._workflows.engines import RunOutput
from stepwise._workflows.up import Supervisor, Terms
from stepwise.stores import open_store

SECONDS = 60


def supervisor(**terms):
    """A supervisor of the default store, and what it reported."""
    said = []
    store = open_store(stepwise.runs()[0].store)
    return Supervisor([store], Terms(**terms), said.append, RunOutput()), said


def once(**terms):
    made, said = supervisor(once=True, **terms)
    with made._here._output:
        made.run()
    return said


class Staying:
    """A supervisor in a thread, while the block lasts."""

    def __init__(self, **terms):
        self.made, self.said = supervisor(**terms)
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        with self.made._here._output:
            self.made.run()

    def __enter__(self):
        self._thread.start()
        until(lambda: self.said)  # it has looked at everything
        return self

    def __exit__(self, *exception):
        self.made.stop()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
