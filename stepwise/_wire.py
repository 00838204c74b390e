"""Where the modules are today that stored values and checkpoints name.

A pickle names functions and classes by their modules, so the name of a private module is part of
the format on disk.  A module that such a pickle may name gets a row here when it moves, for good;
whatever loads stored bytes asks :func:`current`.  Imports nothing of ours.
"""

from __future__ import annotations

__all__ = ["current", "names_a_moved_one"]

_MOVED = {
    f"stepwise.{before}": f"stepwise.{now}"
    for before, now in {
        # version 0.1.0 before its modules were put into rooms
        "_chained": "_checkpoints.exceptions",
        "_digest_atoms": "_values.digest_atoms",
        "_forms": "_values.reducers",
        "_graph_visits": "graph._visits",
        "_graph_walk": "graph._walk",
        "_notebook_output": "notebook._outputs",
        "_pickling": "_values.pickling",
        "_resources": "_checkpoints.resources",
        "_seal": "_journal.seal",
        "_sentinels": "_values.sentinels",
        "_snapshot": "_checkpoints.variables",
        "_steps": "_calls.steps",
        "_tagged": "_values.tagged_json",
        "_workflow": "_workflows.workflow",
        "rewrite.build": "_rewrite.build",
    }.items()
}
_NAMES = tuple(name.encode() for name in _MOVED)


def current(module: str) -> str:
    """Return today's name of a module, given the name that a pickle holds."""
    return _MOVED.get(module, module)


def names_a_moved_one(data: bytes) -> bool:
    """Return whether a pickle may name a module that has moved."""
    return b"stepwise." in data and any(name in data for name in _NAMES)
