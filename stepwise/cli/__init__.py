"""The command line: look at runs, steer them, settle calls in doubt.

Everything shown comes from :class:`stepwise.Run`; every command can also print JSON.  A run may be
named by the beginning of its id.  Exit codes: 0 done, 1 a problem that the message explains, 2 an
invalid command line.

A command line imports the modules up to the one that defines its command: all of them would be half
of the time of ``stepwise show``.
"""

import importlib
import sys
from typing import Any

from stepwise.cli._command import main as _main
from stepwise.cli._command import run as _run

__all__ = ["main", "run"]
_MODULES = "look steer maintain servers up learn changed_code"


def run() -> None:
    """Run the command line, and show errors of stepwise as messages, not tracebacks."""
    _load(*sys.argv[1:2])
    _run()


def _load(command: str = "") -> None:
    for module in _MODULES.split():
        if command not in _main.commands:
            importlib.import_module(f"{__name__}.{module}")


def __getattr__(name: str) -> Any:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return _main
