"""Whether a run is of a workflow that has another name by now, or is in another file.

A run belongs to a workflow by its name: the script's path, and the function's.  A name that is gone
is told, since the new one begins from the start.  Imports: records, identity.
"""

from __future__ import annotations

import os
import sys

from stepwise._identity import place_of
from stepwise._records import RunFacts

__all__ = ["is_call_of", "was_moved", "was_renamed"]


def is_call_of(old: RunFacts, workflow: str, digest: str, code: str) -> bool:
    """Whether a run is of this call of a workflow, which may have been moved.

    Args:
        workflow: its full name.
        digest: of the arguments.
        code: fingerprint of what it executes.
    """
    return (old.workflow, old.digest) == (workflow, digest) or was_moved(
        old, workflow, digest, code
    )


def was_moved(old: RunFacts, workflow: str, digest: str, code: str) -> bool:
    """Whether a run is of the same call of the same code in a script that is there no more."""
    place, _, label = old.workflow.rpartition(":")
    return (
        bool(code)
        and (label, digest, code) == (workflow.rpartition(":")[2], old.digest, old.code)
        and os.path.isabs(place)
        and not os.path.exists(place)
    )


def was_renamed(old: RunFacts, digest: str, module: str) -> bool:
    """Whether a run is of an equal call of a workflow that its script or module no longer has.

    Not in a notebook, whose other cells may not have been executed yet.

    Args:
        module: that of the workflow which is called now.
    """
    place, _, label = old.workflow.rpartition(":")
    if (place, old.digest) != (place_of(module), digest) or "ipykernel" in sys.modules:
        return False
    defined = vars(sys.modules[module]) if module in sys.modules else {}
    return label.partition(".")[0] not in defined and not any(
        getattr(each, "full_name", None) == old.workflow for each in list(defined.values())
    )
