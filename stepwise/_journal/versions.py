"""The versions of the steps whose results a run has recorded, and what became of older ones.

Each record of a call has the id of a version.  An object beside the records has the parts of the
version: it is written once for each version, step and process, in the batch of the first record
that refers to it.  Copies take it along, and pruned records leave it.

Rejected: the parts in the first record of each version.  A resumed run does not read the records
before its checkpoint, and they may be pruned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwise._journal.seal import DamagedError, Seal, named
from stepwise._runtime.facts import NamedTuple

if TYPE_CHECKING:
    from stepwise.stores import Store

CODE = "code/"
"""The prefix of the objects with the parts of versions."""


class RecordedVersion(NamedTuple):
    """A version of a step, as a run recorded it.

    Args:
        id: of the version.
        name, module: of the step.
        parts: a short digest of each part, by name.
        files: a digest of each file that decides about the parts, by path.
        child: a child run that recorded it; empty for the run itself.
        used_by: id of a later version that used results of this one; empty if none did.
        differs: the parts that differ between the two.
        kept: the person who said that the results stay in use; empty if nobody did.
    """

    id: str
    name: str
    module: str
    parts: Mapping[str, str]
    files: Mapping[str, str]
    child: str = ""
    used_by: str = ""
    differs: tuple[str, ...] = ()
    kept: str = ""

    @property
    def key(self) -> str:
        """The name of the object beside the records; one for all child runs.

        The names of objects are readable in an encrypted store, so the step is a digest in it.
        """
        step = hashlib.sha256(f"{self.module}:{self.name}".encode()).hexdigest()[:16]
        return f"{CODE}{self.id}/{'child/' if self.child else ''}{step}"


def recorded_versions(
    store: Store, seal: Seal, run_id: str, version: str = ""
) -> list[RecordedVersion]:
    """Return the versions of the steps of a run, or only those with this id.

    A damaged object is left out: it only says what has changed.
    """
    found = []
    for name in store.names(run_id, CODE + version):
        try:
            header: list[Any] = seal.open(
                named(name, run_id), store.get(run_id, name) or b""
            ).header
        except DamagedError:
            continue
        recorded = RecordedVersion(*header)
        found.append(recorded._replace(differs=(*recorded.differs,)))
    return found
