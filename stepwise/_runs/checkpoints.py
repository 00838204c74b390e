"""The checkpoints of a run, for display: as a list, or the newest."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from stepwise._checkpoints.checkpoints import PREFIX, Loaded, load_checkpoint, number_of
from stepwise._checkpoints.chunks import Vault
from stepwise._display.render import facts_html
from stepwise._journal.seal import Seal
from stepwise._runtime.public_names import public
from stepwise.stores import Store

__all__ = ["RunCheckpoint", "checkpoints_of", "newest_checkpoint"]


@public
@dataclass(frozen=True, slots=True)
class RunCheckpoint:
    """A checkpoint of a run, as :attr:`Run.checkpoints` lists it.

    Args:
        number: of the journal record that it follows.
        step: how many steps were done.
        position: ``file:line`` of the statement that was done last.
        size: bytes.
        created_at: seconds since 1970.
        verified: its digest matches; otherwise the run resumes at an older one.
    """

    number: int
    step: int
    position: str
    size: int
    created_at: float
    verified: bool

    def to_dict(self) -> dict[str, Any]:
        """Its attributes as plain data, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _repr_html_(self) -> str:
        facts = {name: str(value) for name, value in self.to_dict().items()}
        return facts_html(f"checkpoint after step {self.step}, at {self.position}", facts)


def newest_checkpoint(
    store: Store, seal: Seal, run_id: str, at: int | None = None
) -> Loaded | None:
    """The newest checkpoint that verifies; of those after so many steps or fewer, if ``at``."""
    vault = Vault(store, seal, run_id)
    for name in reversed(store.names(run_id, PREFIX)):
        loaded = load_checkpoint(vault, name)
        if loaded is not None and (at is None or loaded.state.step <= at):
            return loaded
    return None


def checkpoints_of(
    store: Store, seal: Seal, run_id: str
) -> list[tuple[RunCheckpoint, Loaded | None]]:
    """The checkpoints of a run, the oldest first, each with its content if it verifies."""
    found: list[tuple[RunCheckpoint, Loaded | None]] = []
    vault = Vault(store, seal, run_id)
    for name in store.names(run_id, PREFIX):
        size = len(store.get(run_id, name) or b"")
        loaded = load_checkpoint(vault, name)
        number = number_of(name)
        if loaded is None:
            found.append((RunCheckpoint(number, 0, "", size, 0.0, verified=False), None))
            continue
        state = loaded.state
        listed = RunCheckpoint(number, state.step, state.where, size, state.at, verified=True)
        found.append((listed, loaded))
    return found
