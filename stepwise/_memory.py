"""Memory that ran out: reported as what it is, never as a property of the value at hand.

A run that goes on after it could repeat what it did not get recorded, so it stops.
Imports: errors.
"""

from __future__ import annotations

import errno

from stepwise.errors import StoreError

__all__ = ["MORE", "ran_out", "stopped"]

MORE = "give the program more memory (ulimit -v, the limit of its container) and run it again"


def ran_out(doing: str, error: MemoryError) -> MemoryError:
    """Return an error that says what was being done when memory ran out.

    The frames of ``error`` are let go, and with them what they hold.
    """
    error.with_traceback(None)
    return error if error.args else MemoryError(f"memory ran out while {doing}")


def stopped(doing: str, error: MemoryError, then: str = "", path: str = "") -> StoreError:
    """Return what stops a run in whose records memory ran out.

    Args:
        then: what becomes of the call at the next start.
    """
    return StoreError(
        f"{ran_out(doing, error)}. Nothing recorded is lost; {MORE}{then}",
        path=path,
        errno=errno.ENOMEM,
    )
