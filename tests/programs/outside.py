"""What a test observes a run with, and steers it by, which is no part of the run.

A variable that a step captures belongs to the identity of its calls, and what the step does to it
is put back when a call is answered.  A test's log and its switches are outside of all that: they
count by their class, whatever they hold.
"""

from __future__ import annotations

import threading

import stepwise


class Outside:
    """An object of a test, which is in no checkpoint."""

    def __reduce_ex__(self, protocol):
        raise TypeError("a test's own object is not part of a run")


# Without a digest, the steps of one test could not be told from those that an earlier one left.
stepwise.identity(Outside, fields=())


class Log(Outside, list):
    """A list of what happened."""

    __hash__ = None


class Switches(Outside):
    """Settings that a test changes between the attempts of a run."""

    def __init__(self, **settings):
        self.lock = threading.Lock()
        self.__dict__.update(settings)
