"""Checkpoints of graphs: ``CheckpointManager`` and its records.

These are the classic checkpoints, kept by the same store: sealed, with a checksum, pruned alike.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Literal, get_origin, get_type_hints
from uuid import uuid4

from stepwise._runtime.facts import public
from stepwise._runtime.messages import Once, notice
from stepwise._runtime.options import check_kind, check_values
from stepwise._workflows.host import ClassicRetention, State
from stepwise.agent import CheckpointStore
from stepwise.errors import ConfigurationError, DigestError, NotRecordableError
from stepwise.stores import Store


class ExecutorType(str, enum.Enum):
    """The kind of executor that wrote a checkpoint."""

    GRAPH = "graph"
    FLEXIBLE = "flexible"


@dataclass(frozen=True)
class CheckpointConfig:
    """Settings for when checkpoints are saved, and how many are kept.

    Whatever the settings, each node is *recorded* before the next one starts, and is never visited
    again.  A checkpoint only saves reading all of these records on resume.

    Args:
        enabled: if False, nothing is written.
        save_frequency: ``"every_node"``, or ``"every_n_nodes"`` with ``n_nodes``.
        n_nodes: the number of nodes between checkpoints.
        auto_recovery: calling an execution again resumes it if it was cut off; otherwise the call
            needs a ``session_state``.
        max_checkpoints_per_run: how many checkpoints ``"prune_old"`` keeps.
        retention_strategy: ``"latest_only"``, ``"prune_old"`` or ``"all"``.

    Raises:
        ConfigurationError: a value is invalid; the message names it, and says what it takes.
    """

    enabled: bool = True
    save_frequency: Literal["every_node", "every_n_nodes"] = "every_node"
    n_nodes: int = 1
    auto_recovery: bool = True
    max_checkpoints_per_run: int = 100
    retention_strategy: ClassicRetention = "latest_only"

    def __post_init__(self) -> None:
        check_values("CheckpointConfig", **vars(self))

    @property
    def keep(self) -> int:
        """Number of checkpoints of a run that are kept; 0 for all."""
        if self.retention_strategy == "latest_only":
            return 1
        return self.max_checkpoints_per_run if self.retention_strategy == "prune_old" else 0


def now() -> str:
    """Return the current time in the format of a checkpoint: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat()


@dataclass
class GraphCheckpoint:
    """The position of a graph's execution after a node.

    Args:
        id: unique id of the checkpoint.
        run_id: id of the execution's run.
        created_at: UTC, ISO 8601.
        current_node_id: the node that a ``GraphExecutor`` visited last.
        current_step_id: the step that a ``FlexibleGraphExecutor`` visited last.
        next_node_id: the first node to be visited next; ``None`` at the end and at a pause.
        memory_snapshot: the merged memory of all branches.
        execution_path: the nodes that were visited.
        step_number: the number of nodes that were visited.
        total_tokens, total_latency_ms: sums over all visits.
        context: the branches, and whatever else a resume needs.
    """

    id: str
    run_id: str
    created_at: str = field(default_factory=now)
    executor_type: ExecutorType = ExecutorType.GRAPH
    current_node_id: str | None = None
    current_step_id: str | None = None
    next_node_id: str | None = None
    memory_snapshot: dict[str, Any] = field(default_factory=dict)
    execution_path: list[str] = field(default_factory=list)
    step_number: int = 0
    total_tokens: int = 0
    total_latency_ms: int = 0
    context: dict[str, Any] = field(default_factory=dict)

    @property
    def node_id(self) -> str | None:
        """The node or step that was visited last."""
        return self.current_node_id or self.current_step_id

    def model_dump(self, *, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """Return all fields by name; with ``mode="json"`` the executor's type is a plain string."""
        values = dict(vars(self))
        if mode == "json":
            values["executor_type"] = self.executor_type.value
        return values

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the fields as JSON.

        Raises:
            TypeError: the memory holds a value that is not JSON.
        """
        return json.dumps(self.model_dump(mode="json"), indent=indent, ensure_ascii=False)

    @classmethod
    def model_validate(cls, values: Any) -> GraphCheckpoint:
        """Build a checkpoint from fields by name, or from an object that has them as attributes.

        Raises:
            ConfigurationError: a field is missing or of another type.
        """
        if not isinstance(values, Mapping):
            values = dict(getattr(values, "__dict__", {}))
        given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        missing = [name for name in ("id", "run_id") if name not in given]
        if missing:
            raise ConfigurationError(f"a checkpoint of a graph needs {' and '.join(missing)}")
        try:
            given["executor_type"] = ExecutorType(given.get("executor_type", ExecutorType.GRAPH))
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        kinds = get_type_hints(cls)
        for name, value in given.items():
            container = get_origin(kinds[name])
            if not isinstance(value, container if container in (dict, list) else kinds[name]):
                raise ConfigurationError(f"{name} of a checkpoint cannot be {value!r}")
        return cls(**given)

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> GraphCheckpoint:
        """Build a checkpoint from the output of :meth:`model_dump_json`."""
        return cls.model_validate(json.loads(text))

    def to_metadata(self) -> dict[str, Any]:
        """Return all fields except the memory and the context, for a listing."""
        values = self.model_dump(mode="json")
        del values["memory_snapshot"], values["context"]
        return values

    def to_session_state(self) -> dict[str, Any]:
        """Return the session state that lets ``execute(..., session_state=...)`` continue."""
        return {
            **self.context,
            "run_id": self.run_id,
            "memory": self.memory_snapshot,
            "execution_path": self.execution_path,
            "resume_from": self.next_node_id or self.node_id,
        }


class CheckpointManager:
    """Manager that saves checkpoints of graphs, and finds the checkpoint to resume at.

    Args:
        storage: a URL, a path or a :class:`stepwise.stores.Store`.
        config: when to save, and how many checkpoints to keep.
    """

    def __init__(self, storage: str | Store | Any, config: CheckpointConfig | None = None) -> None:
        self._store = CheckpointStore(storage)
        self.storage = self._store.store
        self.config = config if config is not None else CheckpointConfig()
        check_kind("config", self.config, CheckpointConfig, "write CheckpointConfig(...)")
        self._is_first = Once()  # of reasons why no checkpoint was saved, by run id

    def save_checkpoint(
        self,
        run_id: str,
        node_id: str,
        memory: Any,
        executor_type: ExecutorType = ExecutorType.GRAPH,
        metadata: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save a deep copy of the memory after a node; the checkpoint is durable on return.

        Args:
            run_id: id of the run.
            node_id: the node or step that was visited last.
            memory: a mapping, or an object with ``read_all()``.
            executor_type: the kind of executor.
            metadata: more fields of a :class:`GraphCheckpoint`, by name; other names go into its
                ``context``.

        Returns:
            the checkpoint's id; ``None`` if checkpoints are not enabled.

        Raises:
            NotRecordableError: the memory holds a value that cannot be pickled; the message names
                it.
            RunBusyError: another process is executing the run.
        """
        if not self.config.enabled:
            return None
        read_all = getattr(memory, "read_all", None)
        if read_all is None:
            check_kind("memory", memory, Mapping, "give a mapping, or an object with read_all()")
        kind = ExecutorType(executor_type)
        by_id = "current_node_id" if kind is ExecutorType.GRAPH else "current_step_id"
        more = dict(metadata or {})
        known = {each.name for each in fields(GraphCheckpoint)}
        other = {name: more.pop(name) for name in list(more) if name not in known}
        if other:
            more["context"] = {**more.get("context", {}), **other}
        checkpoint = GraphCheckpoint.model_validate(
            {
                "id": uuid4().hex,
                "run_id": run_id,
                "executor_type": kind,
                by_id: node_id,
                "memory_snapshot": dict(read_all() if read_all is not None else memory),
                **more,
            }
        )
        self._save(checkpoint.model_dump(mode="json"), None)
        return checkpoint.id

    def _save(self, checkpoint: dict[str, Any], place: State | None, **how: Any) -> None:
        """Save a checkpoint's fields; ``place`` is where the run can resume with the checkpoint."""
        run_id, step = checkpoint["run_id"], checkpoint["step_number"]
        facts = {
            "checkpoint_id": checkpoint["id"],
            "run_id": run_id,
            "step_number": step,
            "state": checkpoint,
            "timestamp": checkpoint["created_at"],
        }
        self._store._save(run_id, step, facts, place, keep=self.config.keep, **how)

    def save_if_possible(self, checkpoint: dict[str, Any], place: State | None) -> bool:
        """Save a checkpoint during an execution; return False, with a notice, if that fails.

        A failure is harmless, since the records of the execution are the truth.
        """
        try:
            self._save(checkpoint, place, durable=False)
        except (NotRecordableError, DigestError) as error:
            run_id = checkpoint["run_id"]
            if self._is_first((run_id, str(error))):
                node = checkpoint["current_node_id"] or checkpoint["current_step_id"]
                notice(f"{run_id}: no checkpoint after {node!r}: {error}")
            return False
        return True

    def restore_from_checkpoint(
        self, run_id: str, checkpoint_id: str | None = None
    ) -> tuple[dict[str, Any], str | None] | tuple[None, None]:
        """Return the memory and the node to resume at, from one or the newest intact checkpoint.

        Args:
            run_id: id of the run.
            checkpoint_id: id of one checkpoint, which is found even without ``auto_recovery``.

        Returns:
            the memory and the node to visit next, or the checkpoint's own node if none follows;
            ``None`` twice if there is no intact checkpoint.
        """
        if not self.config.enabled or not (self.config.auto_recovery or checkpoint_id):
            return None, None
        found = self.get_checkpoint(run_id, checkpoint_id)
        if found is None:
            return None, None
        return found.memory_snapshot, found.next_node_id or found.node_id

    def get_checkpoint(
        self, run_id: str, checkpoint_id: str | None = None
    ) -> GraphCheckpoint | None:
        """Return one checkpoint, or the newest intact one, or ``None`` if there is none."""
        for checkpoint, _ in self.newest_first(run_id):
            if checkpoint_id in (None, checkpoint.id):
                return checkpoint
        return None

    def newest_first(self, run_id: str) -> Iterator[tuple[GraphCheckpoint, State | None]]:
        """Yield the intact checkpoints, each with the place where the run can resume with it."""
        for kept, place in self._store._newest_first(run_id):
            if "memory_snapshot" in kept.state:  # not from a RecoverableAgent with that run id
                yield GraphCheckpoint.model_validate(kept.state), place

    def list_checkpoints(self, run_id: str) -> list[GraphCheckpoint]:
        """Return the intact checkpoints of a run, oldest first."""
        return [checkpoint for checkpoint, _ in self.newest_first(run_id)][::-1]

    def delete_checkpoints(self, run_id: str) -> int:
        """Delete the checkpoints of a run, but not its records; return the number deleted."""
        return self._store.delete(run_id)

    def should_checkpoint(self, step_number: int) -> bool:
        """Return whether to save a checkpoint after this many nodes."""
        every = self.config.n_nodes if self.config.save_frequency == "every_n_nodes" else 1
        return self.config.enabled and step_number % every == 0


for _class in (CheckpointConfig, CheckpointManager, ExecutorType, GraphCheckpoint):
    public(_class, "stepwise.graph")
