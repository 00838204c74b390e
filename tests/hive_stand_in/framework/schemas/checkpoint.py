"""The fields of hive's checkpoints, and of their index."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class Checkpoint(_Model):
    checkpoint_id: str
    checkpoint_type: str
    session_id: str
    created_at: str
    current_node: str | None = None
    next_node: str | None = None
    execution_path: list[str] = []
    shared_memory: dict[str, Any] = {}
    accumulated_outputs: dict[str, Any] = {}
    metrics_snapshot: dict[str, Any] = {}
    is_clean: bool = True
    description: str = ""


class CheckpointSummary(_Model):
    checkpoint_id: str
    checkpoint_type: str
    created_at: str
    current_node: str | None = None
    next_node: str | None = None
    is_clean: bool = True
    description: str = ""

    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls(**{name: getattr(checkpoint, name) for name in cls.model_fields})


class CheckpointIndex(_Model):
    session_id: str
    checkpoints: list[CheckpointSummary] = []
    latest_checkpoint_id: str | None = None
    total_checkpoints: int = 0
