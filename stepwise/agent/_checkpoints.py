"""Checkpoints that are objects: ``Checkpoint`` and ``CheckpointStore``.

They lie in a store beside the records of their run, and are sealed like the records.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from stepwise._display.render import facts_html
from stepwise._runtime.messages import notice
from stepwise._runtime.options import check_kind, check_values
from stepwise._values import codec, digest
from stepwise._values.codec import canonical_bytes
from stepwise._values.preview import preview
from stepwise._workflows import host
from stepwise.errors import DigestError
from stepwise.stores import Store, open_store
from stepwise.stores.memory import MemoryStore

if TYPE_CHECKING:
    from typing_extensions import Self


_PREFIX = "agent/"
_FIELD = re.compile(r"^\['(\w+)'\]")  # the first part of a path
_Names = list[str]  # the class below has a method called list


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


@dataclass
class Checkpoint:
    """The knowledge of an agent after a step.

    Args:
        checkpoint_id: unique; made if empty.
        run_id: id of the checkpoint's run.
        step_number: how many steps were done.
        state, messages, tool_results: of the agent.
        timestamp: UTC, ISO 8601.
        is_valid: False if the checkpoint was found to be damaged.
        checksum: SHA-256 over all other fields but ``is_valid``, as 64 hexadecimal digits; computed
            if empty.

    Raises:
        DigestError: the checkpoint holds a value that is neither data nor an object of data.
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

    def __post_init__(self) -> None:
        self.checkpoint_id = self.checkpoint_id or uuid4().hex
        if not self.checksum:
            self.checksum = _Computed(self.compute_checksum())

    def _repr_html_(self) -> str:
        shown = {name: preview(value, 20_000) for name, value in self._facts().items()}
        return facts_html(f"checkpoint of {self.run_id} after step {self.step_number}", shown)

    def compute_checksum(self) -> str:
        """Return the SHA-256 over every field but ``is_valid`` and ``checksum``, in hexadecimal.

        The order of the keys of a dictionary counts.

        Raises:
            DigestError: the checkpoint holds a value that is neither data nor an object of data.
        """
        facts = self._facts()
        del facts["is_valid"], facts["checksum"]
        data = canonical_bytes(facts)
        if data is None:
            try:
                data = digest.digest(facts).encode()
            except DigestError as error:
                where = _FIELD.sub(r"\1", error.path)
                raise DigestError(
                    f"{where} of the checkpoint after step {self.step_number} of run "
                    f"{self.run_id!r} cannot be kept: {str(error).rpartition(' (at ')[0]}. A "
                    "checkpoint holds data: make this object where it is used, or reach it from "
                    "the function by a global or a closure",
                    path=where,
                    type_name=error.type_name,
                ) from None
        return hashlib.sha256(data).hexdigest()

    def _facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        facts = {each.name: getattr(self, each.name) for each in fields(Checkpoint)}
        return {**facts, "checksum": str(self.checksum)}

    def _renew(self) -> bool:
        """Renew the checksum if it was computed here; return whether it fits now."""
        now = _Computed(self.compute_checksum())
        if not self.checksum or isinstance(self.checksum, _Computed):
            self.checksum = now
        return self.checksum == now


class _Computed(str):
    """A checksum that was computed here, or was right when the checkpoint was loaded.

    A checkpoint that is changed, copied or made from another one keeps this checksum until it is
    saved, and then gets a new one.  A checksum given by the caller is a plain string, and is never
    replaced.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return str, (str(self),)

    def __deepcopy__(self, memo: object) -> Self:
        return self


WHEN_SAVED = _Computed("computed when it is saved")
"""Placeholder for a checksum that is not needed before ``save`` computes it."""


class CheckpointStore:
    """A store of checkpoints, each a deep copy that later changes of live objects do not affect.

    Args:
        storage_backend: a URL (``"disk:/path"``), a path or a :class:`stepwise.stores.Store`; by
            default checkpoints are kept in memory, by this object alone.
    """

    def __init__(self, storage_backend: Any = None) -> None:
        self.store: Store = (
            MemoryStore(f"checkpoints-{uuid4().hex}")
            if storage_backend is None
            else open_store(storage_backend)
        )
        self._host = host.HostStore(self.store)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint as it is now; the checkpoint is durable on return.

        A checksum given by the caller is kept even if it does not fit: the checkpoint is then never
        loaded.

        Raises:
            ConfigurationError: the argument is no checkpoint, or has no run id or step number.
            NotRecordableError: the checkpoint holds a value that cannot be pickled; the message
                names it.
            DigestError: the checkpoint holds a value without a checksum.
            RunBusyError: another process is executing the run.
        """
        check_kind(
            "the argument of save()", checkpoint, Checkpoint, "write Checkpoint('', run_id, step)"
        )
        check_values("a checkpoint", run_id=checkpoint.run_id, step_number=checkpoint.step_number)
        active = host.live_run(self.store, checkpoint.run_id)
        if not checkpoint._renew():
            notice(
                f"{checkpoint.run_id}: the checkpoint after step {checkpoint.step_number} does not "
                "match its given checksum, and will not be loaded. With checksum='' it is stored "
                "as it is"
            )
        self._save(
            checkpoint.run_id,
            checkpoint.step_number,
            checkpoint._facts(),
            host.state_of(active) if active is not None else None,
        )

    def _save(
        self,
        run_id: str,
        step: int,
        facts: dict[str, Any],
        place: host.State | None,
        *,
        durable: bool = True,
        keep: int = 0,
    ) -> None:
        """Save the fields of a checkpoint.

        Args:
            run_id: id of the run.
            step: number of steps done.
            facts: the fields.  Without a checksum, the checksum is computed on load: the seal
                covers everything.
            place: where the run was at the time; ``None`` if the run cannot resume there.
            durable: whether the checkpoint is durable on return.
            keep: delete all checkpoints but this many of the newest; 0 to delete none.
        """
        encoded = codec.encode(facts, f"checkpoint {facts['checkpoint_id']!r}")
        header = {
            "step": step,
            "id": facts["checkpoint_id"],
            "form": encoded.form,
            "run": place.header() if place is not None else None,
        }
        with self._host.owned(run_id) as journal:
            known = _known.setdefault(journal, _KnownCheckpoints())
            names, known.names = known.names, None  # unknown until the write has succeeded
            if names is None:
                names = self.store.names(run_id, _PREFIX)
                known.serial = max((int(each.rpartition("/")[2]) for each in names), default=0)
            known.serial += 1
            name = f"{_PREFIX}{step:012d}/{known.serial:012d}"
            names = sorted([*names, name])
            pruned = [each for each in names[:-keep] if each != name] if keep else []
            journal.put(name, header, encoded.data, delete=tuple(pruned), durable=durable)
            known.names, known.written = [each for each in names if each not in pruned], name

    def load_latest(self, run_id: str) -> Checkpoint | None:
        """Return the verifying checkpoint of the highest step, the later one if there are two."""
        return next((found for found, _ in self._newest_first(run_id)), None)

    def load_at_step(self, run_id: str, step: int) -> Checkpoint | None:
        """Return the latest checkpoint of a step that verifies, or ``None``."""
        for name in reversed(self._names(run_id)):
            if _step_of(name) == step and (found := self._load(run_id, name)) is not None:
                return found[0]
        return None

    def validate(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is as it was when its checksum was computed."""
        return checkpoint.is_valid and checkpoint.checksum == checkpoint.compute_checksum()

    def list(self, run_id: str) -> list[Checkpoint]:
        """Return the checkpoints of a run, by step; a damaged one is invalid and has no content."""
        found = []
        for name in self._names(run_id):
            loaded = self._load(run_id, name)
            damaged = Checkpoint(name, run_id, _step_of(name), timestamp="", is_valid=False)
            found.append(loaded[0] if loaded is not None else damaged)
        return found

    def delete(self, run_id: str) -> int:
        """Delete the checkpoints of a run, but not its records; return the number deleted."""
        return self._delete(run_id, self._names(run_id))

    def prune(
        self, run_id: str, retention: host.ClassicRetention = "prune_old", keep: int = 3
    ) -> int:
        """Delete superfluous checkpoints; the newest checkpoint that verifies always stays.

        Args:
            run_id: id of the run.
            retention: ``"latest_only"``, ``"prune_old"`` (the newest ``keep``) or ``"all"``.
            keep: how many checkpoints ``"prune_old"`` keeps.

        Returns:
            the number of deleted checkpoints.

        Raises:
            ConfigurationError: there is no such retention, or ``keep`` is no number of 1 or more.
        """
        check_values("prune", run_id=run_id, retention=retention, keep=keep)
        if retention == "all":
            return 0
        names, known = self._names(run_id), self._known(run_id)
        kept = set(names[-(1 if retention == "latest_only" else keep) :])
        if kept == set(names):
            return 0
        newest = next(
            (n for n in reversed(names) if n == known.written or self._load(run_id, n) is not None),
            None,
        )
        return self._delete(run_id, [name for name in names if name not in {*kept, newest}])

    # -- inside ----------------------------------------------------------------------------------

    def _names(self, run_id: str) -> _Names:
        check_values("a checkpoint", run_id=run_id)
        names = self._known(run_id).names
        return names if names is not None else self.store.names(run_id, _PREFIX)

    def _load(self, run_id: str, name: str) -> tuple[Checkpoint, host.State | None] | None:
        """Return a checkpoint and its place in the run, or ``None`` for a damaged checkpoint."""
        try:
            header, payload = self._host.get(run_id, name)
        except host.DamagedError:
            return None
        facts = codec.decode(payload, header["form"])
        place = header["run"]
        with contextlib.suppress(DigestError):  # the memory of a graph is kept without a checksum
            checkpoint = Checkpoint(**facts)
            if not self.validate(checkpoint):
                return None
            checkpoint.checksum = _Computed(checkpoint.checksum)
            return checkpoint, place and host.State(*place)
        checksum = hashlib.sha256(payload).hexdigest()
        return Checkpoint(**{**facts, "checksum": checksum}), place and host.State(*place)

    def _newest_first(self, run_id: str) -> Iterator[tuple[Checkpoint, host.State | None]]:
        for name in reversed(self._names(run_id)):
            found = self._load(run_id, name)
            if found is None:
                step = _step_of(name)
                notice(f"{run_id}: its checkpoint after step {step} does not verify; left out")
            else:
                yield found

    def _delete(self, run_id: str, names: _Names) -> int:
        if names:
            with self._host.owned(run_id) as journal:
                known, left = self._known(run_id), set(self._names(run_id)).difference(names)
                known.names = None
                journal.drop(tuple(names))
                known.names = sorted(left)
        return len(names)

    def _known(self, run_id: str) -> _KnownCheckpoints:
        active = host.live_run(self.store, run_id)
        if active is None:
            return _KnownCheckpoints()
        return _known.setdefault(active.journal, _KnownCheckpoints())


@dataclass
class _KnownCheckpoints:
    """The checkpoints of a run that is executed here, so that no other process can change them.

    Args:
        names: the names of all checkpoints; ``None`` if they have to be looked up.
        written: the name of the newest written checkpoint, which verifies without being read.
        serial: the serial number of the newest written checkpoint.
    """

    names: _Names | None = None
    written: str = ""
    serial: int = 0


_known: weakref.WeakKeyDictionary[host.Journal, _KnownCheckpoints] = weakref.WeakKeyDictionary()
"""Known checkpoints by the journal that a run in progress writes its checkpoints to."""


def _step_of(name: str) -> int:
    return int(name.split("/")[1])
