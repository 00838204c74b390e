"""Limits of the system, reported by name, with the remedy.

Memory that ran out is never a property of the value at hand.  A run that continued after it could
repeat what it did not get recorded, so it stops.
"""

from __future__ import annotations

import errno

from stepwise.errors import StoreError

__all__ = ["largest_file", "met", "ran_out", "stopped", "way_out"]

_MORE = "give the program more memory (ulimit -v, the limit of its container)"
_WAYS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "raise that limit (ulimit -f unlimited)",
    errno.EMFILE: "raise the limit on open files (ulimit -n), or let the program close some",
    errno.ENFILE: "end programs that hold files open, or raise the system's limit (fs.file-max)",
    errno.ENOMEM: _MORE,
}


def way_out(code: int | None) -> str:
    """Return what helps where a limit was met; empty for another error."""
    return _WAYS.get(code or 0, "")


def largest_file() -> int | None:
    """Return how many bytes a file may have (``ulimit -f``); ``None`` for any number."""
    import resource  # on use: a shared library

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def met(code: int | None) -> str:
    """Return the name of a limit for a message; empty for another error."""
    if code == errno.EFBIG and (limit := largest_file()) is not None:
        return f"file too large: a limit on file sizes (ulimit -f, {limit:,} bytes)"
    return {errno.EMFILE: "too many open files: a limit of the process (ulimit -n)"}.get(
        code or 0, ""
    )


def ran_out(doing: str, error: MemoryError) -> MemoryError:
    """Return an error that names the activity during which memory ran out.

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
        f"{ran_out(doing, error)}. Nothing recorded is lost; {_MORE} and run it again{then}",
        path=path,
        errno=errno.ENOMEM,
    )
