"""The command line: look at runs, steer them, settle calls in doubt.

Everything shown comes from :class:`stepwise.Run`; every command can also print JSON.  A run may be
named by the beginning of its id.  Exit codes: 0 done, 1 a problem that the message explains, 2 an
invalid command line.
"""

from stepwise.cli import (  # noqa: F401
    agents,
    branches,
    cache,
    learn,
    limits,
    look,
    maintain,
    preflight,
    rerun,
    schedules,
    steer,
    ui,
    up,
)
from stepwise.cli._command import main, run

__all__ = ["main", "run"]
