"""How hive's own store writes and reads its files: no checksum, no lock, ``None`` for damage."""

import os
from pathlib import Path

from framework.schemas.checkpoint import Checkpoint, CheckpointIndex, CheckpointSummary


class CheckpointStore:
    def __init__(self, base_path):
        self.folder = Path(base_path) / "checkpoints"

    def _write(self, name, model):
        path = self.folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".json.tmp")
        draft.write_text(model.model_dump_json(indent=2), encoding="utf-8")
        os.replace(draft, path)

    def _read(self, name, model):
        try:
            text = (self.folder / f"{name}.json").read_text(encoding="utf-8")
            return model.model_validate_json(text)
        except (OSError, ValueError):
            return None

    async def save_checkpoint(self, checkpoint):
        self._write(checkpoint.checkpoint_id, checkpoint)
        index = await self.load_index() or CheckpointIndex(session_id=checkpoint.session_id)
        index.checkpoints.append(CheckpointSummary.from_checkpoint(checkpoint))
        index.latest_checkpoint_id = checkpoint.checkpoint_id
        index.total_checkpoints = len(index.checkpoints)
        self._write("index", index)

    async def load_checkpoint(self, checkpoint_id=None):
        if checkpoint_id is None:
            index = await self.load_index()
            checkpoint_id = index.latest_checkpoint_id if index else None
        return self._read(checkpoint_id, Checkpoint) if checkpoint_id else None

    async def load_index(self):
        return self._read("index", CheckpointIndex)
