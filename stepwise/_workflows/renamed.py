"""Runs of workflows that were renamed, or moved to another file.

A run belongs to a workflow by its name: the script's path, and the function's.  A name that is gone
is told, since the new one begins from the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container

from stepwise._identity.identity import place_of
from stepwise._journal.journal import read_one
from stepwise._journal.records import RunFacts, Started
from stepwise._journal.seal import Seal
from stepwise._workflows.definition import is_defined
from stepwise.stores import Store

__all__ = ["is_call_of", "is_of_file", "place_of_run", "was_moved", "was_renamed"]


def place_of_run(facts: RunFacts) -> str:
    """The script or module of its workflow."""
    return facts.workflow.removesuffix(f":{facts.label}")


def is_call_of(old: RunFacts, workflow: str, digest: str, code: str) -> bool:
    """Return whether a run is of this call of a workflow, which may have been moved.

    Args:
        workflow: its full name.
        digest: of the arguments.
        code: fingerprint of what it executes.
    """
    return (old.workflow, old.digest) == (workflow, digest) or was_moved(
        old, workflow, digest, code
    )


def is_of_file(store: Store, seal: Seal, old: RunFacts, names: Container[str], file: str) -> bool:
    """Return whether a run's workflow is defined in a file, however that was started or imported.

    Args:
        names: the full names that the workflow may have had.
        file: where it is defined, resolved.
    """
    if not file or old.workflow not in names:
        return False
    if place_of_run(old) == file:
        return True
    entry = read_one(store, seal, old.run_id, 1)
    if entry is None or not isinstance(entry.record, Started) or not entry.record.file:
        return False
    return os.path.realpath(os.path.join(entry.record.cwd, entry.record.file)) == file


def was_moved(old: RunFacts, workflow: str, digest: str, code: str) -> bool:
    """Return whether a run is of the same call of the same code, in a script that is gone."""
    place = place_of_run(old)
    return (
        bool(code)
        and (old.digest, old.code) == (digest, code)
        and workflow.endswith(f":{old.label}")
        and os.path.isabs(place)
        and not os.path.exists(place)
    )


def was_renamed(old: RunFacts, digest: str, module: str) -> bool:
    """Return whether a run is of an equal call of a workflow that its module no longer has.

    Not in a notebook, whose other cells may not have been executed yet.

    Args:
        module: that of the workflow which is called now.
    """
    if (place_of_run(old), old.digest) != (place_of(module), digest) or "ipykernel" in sys.modules:
        return False
    # Only names are compared: reading an attribute of an arbitrary object in a module may run
    # arbitrary code (a proxy outside of its request raises).
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return old.label.partition(".")[0] not in names and not is_defined(module, old.label)
