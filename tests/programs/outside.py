"""What a test observes a run with, which is no part of the run.

A variable that a step captures belongs to the identity of its calls, and what the step does to it
is put back when a call is answered.  A test's log is outside of all that: it counts by its class,
whatever it holds.
"""

from __future__ import annotations

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
