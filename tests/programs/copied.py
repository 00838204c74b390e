"""A copy of all runs that is killed at one of its writes: ``copied.py FROM TO WRITE WHEN``.

``WRITE`` counts the writes into the target, from 1; ``WHEN`` is ``before`` or ``after``.
"""

import os
import signal
import sys

from stepwise._journal.journal import children_of, seal_for
from stepwise._runs import copying
from stepwise._runs.copying import Copier
from stepwise.stores import open_store


class Killing:
    """A store whose process is killed at one of its writes."""

    def __init__(self, store, at, when):
        self._store, self._at, self._when, self._writes = store, at, when, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def write(self, run_id, epoch, batch):
        self._writes += 1
        if self._writes == self._at and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        self._store.write(run_id, epoch, batch)
        if self._writes == self._at and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


def copy(source, target, at, when, **how):
    """Copy all runs and logs."""
    source = open_store(source)
    copier = Copier(source, Killing(open_store(target), at, when), **how)
    ids = [head.run_id for head in source.heads()]
    children = children_of(source, seal_for(source))
    below = {child for found in children.values() for child in found}
    tops = [each for each in ids if each not in below]
    return [*copier.copy_each([*tops, *copier.logs()])]


if __name__ == "__main__":
    copying._MOST = 3  # records of one write, so that there are many writes
    _, source, target, at, when, *more = sys.argv
    found = copy(source, target, int(at), when, restored="restored" in more, messages=True)
    assert not any(each.problem for each in found), found
