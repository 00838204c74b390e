"""Checkpoints that are objects: ``Checkpoint`` and ``CheckpointStore``.

They lie in a store beside the records of the run that they belong to, sealed like these.
Imports: journal, checkpoints, run, lease, codec, digest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from stepwise import _codec, _digest
from stepwise._checkpoints import Retention, State
from stepwise._display import facts_html
from stepwise._going_on import state_of
from stepwise._journal import Journal, seal_for
from stepwise._lease import Lease
from stepwise._notices import notice
from stepwise._previews import preview
from stepwise._run import ActiveRun, live_runs
from stepwise._seal import DamagedError, Seal
from stepwise.errors import ConfigurationError, DigestError
from stepwise.stores import Store, open_store
from stepwise.stores.memory import MemoryStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpoint", "CheckpointStore", "place_of"]

_PREFIX = "agent/"
_Names = list[str]  # the class below has a method called list


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


@dataclass
class Checkpoint:
    """What an agent knew after a step.

    Args:
        checkpoint_id: unique; made where it is empty.
        run_id: the run it belongs to.
        step_number: how many steps were done.
        state, messages, tool_results: of the agent.
        timestamp: UTC, ISO 8601.
        is_valid: nobody has found it to be damaged.
        checksum: SHA-256 over all the rest, as 64 hexadecimal digits; computed by
            :meth:`CheckpointStore.save` where it is empty.
    """

    checkpoint_id: str
    run_id: str
    step_number: int
    state: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tool_results: dict[str, Any] = field(default_factory=dict)
    timestamp: str = field(default_factory=_now)
    is_valid: bool = True
    checksum: str = ""

    def _repr_html_(self) -> str:
        shown = {name: preview(value, 20_000) for name, value in vars(self).items()}
        return facts_html(f"checkpoint of {self.run_id} after step {self.step_number}", shown)

    def compute_checksum(self) -> str:
        """SHA-256 over every field but ``is_valid`` and ``checksum`` itself, in hexadecimal.

        Raises:
            DigestError: a value in it is neither data nor an object of data.
        """
        facts = [
            self.checkpoint_id,
            self.run_id,
            self.step_number,
            self.timestamp,
            self.state,
            self.messages,
            self.tool_results,
        ]
        try:  # four times as fast as the general digest, and messages are JSON
            text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
        except (TypeError, ValueError):
            text = _digest.digest(facts)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class CheckpointStore:
    """Keeps checkpoints, each a deep copy: what happens to the live objects later changes none.

    Args:
        storage_backend: a URL (``"disk:/path"``), a path or a :class:`stepwise.stores.Store`; by
            default they are kept in memory, by this object alone.
    """

    def __init__(self, storage_backend: Any = None) -> None:
        self.store: Store = (
            MemoryStore(f"checkpoints-{uuid4().hex}")
            if storage_backend is None
            else open_store(storage_backend)
        )

    @functools.cached_property
    def _seal(self) -> Seal:
        # At first use: the key of a persistent store is made then, and not before.
        return seal_for(self.store)

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; durable when this returns.  Its checksum is computed if it has none.

        Raises:
            NotRecordableError: it holds something that cannot be pickled; says what.
            DigestError: it holds something that no checksum can be computed of.
            RunOwnedError: another process is executing the run.
        """
        active = self._active(checkpoint.run_id)
        self._save(checkpoint, place_of(active) if active is not None else None)

    def _save(
        self,
        checkpoint: Checkpoint,
        place: State | None,
        *,
        durable: bool = True,
        keep: int = 0,
        checksum: bool = True,
    ) -> None:
        """Keep a checkpoint.

        Args:
            place: where the run then was; ``None`` if nobody can go on there.
            keep: delete all but the newest so many; 0 for none.
            checksum: now; else when it is loaded, since the seal is over all of it.
        """
        run_id = checkpoint.run_id
        checkpoint.checkpoint_id = checkpoint.checkpoint_id or uuid4().hex
        if checksum and not checkpoint.checksum:
            checkpoint.checksum = checkpoint.compute_checksum()
        encoded = _codec.encode(vars(checkpoint), f"checkpoint {checkpoint.checkpoint_id!r}")
        header = {
            "step": checkpoint.step_number,
            "id": checkpoint.checkpoint_id,
            "form": encoded.form,
            "run": place._asdict() if place is not None else None,
        }
        with _Owned(self, run_id) as owned:
            names = owned.names
            serial = 1 + max((int(name.rpartition("/")[2]) for name in names), default=0)
            name = f"{_PREFIX}{checkpoint.step_number:012d}/{serial:012d}"
            names = sorted([*names, name])
            pruned = [each for each in names[:-keep] if each != name] if keep else []
            owned.journal.put(name, header, encoded.data, delete=tuple(pruned), durable=durable)
            owned.now([each for each in names if each not in pruned], name)

    def load_latest(self, run_id: str) -> Checkpoint | None:
        """The checkpoint of the highest step that verifies; of two of one step the later one."""
        return next((found for found, _ in self._newest_first(run_id)), None)

    def load_at_step(self, run_id: str, step: int) -> Checkpoint | None:
        """The latest checkpoint of a step that verifies; ``None`` if there is none."""
        for name in reversed(self._names(run_id)):
            if _step_of(name) == step and (found := self._load(run_id, name)) is not None:
                return found[0]
        return None

    def validate(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is as it was when its checksum was computed."""
        return checkpoint.is_valid and checkpoint.checksum == checkpoint.compute_checksum()

    def list(self, run_id: str) -> list[Checkpoint]:
        """The checkpoints of a run, by step; a damaged one is not valid, and has no content."""
        found = []
        for name in self._names(run_id):
            loaded = self._load(run_id, name)
            damaged = Checkpoint("", run_id, _step_of(name), timestamp="", is_valid=False)
            found.append(loaded[0] if loaded is not None else damaged)
        return found

    def delete(self, run_id: str) -> int:
        """Delete the checkpoints of a run, not its records; how many there were."""
        return self._delete(run_id, self._names(run_id))

    def prune(self, run_id: str, retention: Retention = "prune_old", keep: int = 3) -> int:
        """Delete checkpoints that are not needed; the newest that verifies always stays.

        Args:
            retention: ``"latest_only"``, ``"prune_old"`` (the newest ``keep``) or ``"all"``.
            keep: how many ``"prune_old"`` keeps.

        Returns:
            how many were deleted.

        Raises:
            ConfigurationError: there is no such retention, or ``keep`` is below 1.
        """
        if retention not in ("latest_only", "prune_old", "all") or keep < 1:
            raise ConfigurationError(
                f"prune(retention={retention!r}, keep={keep!r}): retention is 'latest_only', "
                "'prune_old' or 'all', and keep is 1 or more"
            )
        if retention == "all":
            return 0
        names, active = self._names(run_id), self._active(run_id)
        kept = set(names[-(1 if retention == "latest_only" else keep) :])
        if kept == set(names):
            return 0
        written = _written_in.get(active) if active is not None else None
        newest = next(
            (n for n in reversed(names) if n == written or self._load(run_id, n) is not None), None
        )
        return self._delete(run_id, [name for name in names if name not in {*kept, newest}])

    # -- inside ----------------------------------------------------------------------------------

    def _names(self, run_id: str) -> _Names:
        active = self._active(run_id)
        names = _names_in.get(active) if active is not None else None
        return names if names is not None else self.store.names(run_id, _PREFIX)

    def _load(self, run_id: str, name: str) -> tuple[Checkpoint, State | None] | None:
        """A checkpoint, and where in the run it was taken; ``None`` if it does not verify."""
        try:
            opened = self._seal.open(f"{name}/{run_id}", self.store.get(run_id, name) or b"")
        except DamagedError:
            return None
        checkpoint = Checkpoint(**_codec.decode(opened.payload, opened.header["form"]))
        place = opened.header["run"]
        if not checkpoint.checksum:
            with contextlib.suppress(DigestError):
                checkpoint.checksum = checkpoint.compute_checksum()
        elif not self.validate(checkpoint):
            return None
        return checkpoint, State(**place) if place is not None else None

    def _newest_first(self, run_id: str) -> Iterator[tuple[Checkpoint, State | None]]:
        for name in reversed(self._names(run_id)):
            found = self._load(run_id, name)
            if found is None:
                step = _step_of(name)
                notice(f"{run_id}: its checkpoint after step {step} does not verify; left out")
            else:
                yield found

    def _delete(self, run_id: str, names: _Names) -> int:
        if names:
            with _Owned(self, run_id) as owned:
                owned.journal.drop(tuple(names))
                owned.now([each for each in owned.names if each not in names])
        return len(names)

    def _active(self, run_id: str) -> ActiveRun | None:
        for active in list(live_runs):
            if active.run_id == run_id and active.journal.store is self.store:
                return active
        return None


_names_in: weakref.WeakKeyDictionary[ActiveRun, _Names] = weakref.WeakKeyDictionary()
"""The checkpoints of runs that are being executed here, where nobody else can change them."""

_written_in: weakref.WeakKeyDictionary[ActiveRun, str] = weakref.WeakKeyDictionary()
"""The one that was written last: it need not be read to know that it verifies."""


class _Owned:
    """The journal of a run: of the agent that is being executed here, else under a lease.

    One thread at a time, so that those that save by hand wait for one another.

    Attributes:
        journal: to write to.
        names: of the checkpoints that there are.
    """

    journal: Journal
    names: _Names

    def __init__(self, store: CheckpointStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._active: ActiveRun | None = None
        self._lease: Lease | None = None
        if not _turns:
            os.register_at_fork(after_in_child=_turns.clear)
        self._turn = _turns.setdefault(store.store.url, threading.RLock())

    def __enter__(self) -> Self:
        self._turn.acquire()
        try:
            self._begin(self._store)
        except BaseException:
            self._turn.release()
            raise
        return self

    def _begin(self, store: CheckpointStore) -> None:
        self._active = store._active(self._run_id)
        if self._active is None:
            self._lease = Lease(store.store, self._run_id).acquire()
            epoch = self._lease.epoch
            self.journal = Journal(store.store, store._seal, self._run_id, epoch, fsync=True)
        else:
            self.journal = self._active.journal
        self.names = store._names(self._run_id)
        if self._active is not None:
            _names_in.pop(self._active, None)  # until it is known what has become of them

    def now(self, names: _Names, written: str | None = None) -> None:
        """These are the names of all checkpoints, of which that one has just been written."""
        if self._active is not None:
            _names_in[self._active] = names
            if written is not None:
                _written_in[self._active] = written

    def __exit__(self, *exception: object) -> None:
        if self._lease is not None:
            self._lease.release()
        self._turn.release()


_turns: dict[str, threading.RLock] = {}


def _step_of(name: str) -> int:
    return int(name.split("/")[1])


def place_of(active: ActiveRun) -> State:
    """Where in the journal a checkpoint is taken; the step function has no position of its own."""
    return state_of(active, position="", line=0, file="", prefix="", visited=[], arguments={})
