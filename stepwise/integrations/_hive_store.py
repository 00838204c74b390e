"""A checkpoint store for hive: with hive's methods and files, but durable and verified.

A file holds what hive itself would write, and two more keys.  The first key holds the SHA-256 of
everything after it; the last key says that there must be a checksum.  Hive ignores and keeps
unknown keys.  A single damage cannot remove both keys, and a file that hive rewrites has them in
another place.  Hive's own files thus differ from damaged files of this store.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.limits import open_private
from stepwise._runtime.messages import notice
from stepwise.errors import ConfigurationError, CorruptStoreError
from stepwise.stores._files import sync
from stepwise.stores._locks import exclusively

_FIRST, _LAST = "stepwise_sha256", "stepwise_sealed"
_HEAD = b'{"%s": "' % _FIRST.encode()
_TAIL = b',"%s":true}\n' % _LAST.encode()
_LONGEST = 246  # bytes of a name: hive adds ".json.tmp", and file systems end at 255


# -- files ---------------------------------------------------------------------------------------


class DamagedFileError(Exception):
    """A file differs from what was written; the message says how."""


class StrangeFileError(DamagedFileError):
    """A file is JSON, but was written neither by this store nor by hive."""


def sealed(model: Any) -> bytes:
    """Return a model as hive would write it, with a checksum."""
    text: str = model.model_dump_json(indent=2, exclude={_FIRST, _LAST})
    rest = b'",' + text[1:-1].rstrip().encode() + _TAIL
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + rest


def read(path: Path, model: Any) -> tuple[Any, bool]:
    """Read a model from a file, and return whether a checksum confirms it.

    Raises:
        DamagedFileError: the file is not what was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(str(error.strerror)) from error
    digest = len(_HEAD) + 64
    ours = data.startswith(_HEAD) or data.endswith(_TAIL)
    if ours and data[:digest] != _HEAD + hashlib.sha256(data[digest:]).hexdigest().encode():
        raise DamagedFileError("its SHA-256 does not match")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"it is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise StrangeFileError(f"it is not a {model.__name__}, but a {type(values).__name__}")
    try:
        values = {key: value for key, value in values.items() if key not in (_FIRST, _LAST)}
        return model.model_validate(values), ours
    except ValueError as error:
        raise StrangeFileError(f"it is not a {model.__name__}: {error}") from error


def write(path: Path, data: bytes) -> None:
    """Replace a file durably: a reader finds the old content or the new content, whole."""
    draft = path.parent / f".{uuid4().hex}.tmp"
    try:
        with open(draft, "xb", opener=open_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(str(path.parent))


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, durably."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(0o700, exist_ok=True)
        sync(str(folder.parent))


def file_name(checkpoint_id: str) -> str:
    """Return the file name of a checkpoint: its id, as with hive, but special characters as %XX."""
    name = _ODD.sub(_escaped, checkpoint_id) or "%"
    if name.casefold() == "index":
        name = _escaped(name[0]) + name[1:]
    if len(name.encode()) > _LONGEST:
        digest = hashlib.sha256(checkpoint_id.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{quote(checkpoint_id, errors='surrogatepass')[: _LONGEST - 64]}%{digest}"
    return name


_ODD = re.compile(r"^\.|[/\x00-\x1f\x7f\ud800-\udfff]|%(?=[0-9A-Fa-f]{2})")


def _escaped(found: re.Match[str] | str) -> str:
    data = found[0].encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in data)


OnCorrupt = Literal["none", "raise", "fallback"]


# -- the store -----------------------------------------------------------------------------------


def hive_module(name: str) -> ModuleType:
    """Return a module of hive's package ``framework``.

    Raises:
        ConfigurationError: the module is missing.
    """
    try:
        return importlib.import_module(f"framework.{name}")
    except ImportError as error:
        raise _why_not(name, error.name or "") from error


def has_hive_module(name: str) -> bool:
    """Return whether the installed version of hive has a module."""
    try:
        return importlib.util.find_spec(f"framework.{name}") is not None
    except ImportError:
        return False


def does_not_fit_hive(why: str) -> ConfigurationError:
    """Return the error for a package ``framework`` of another version, or not of hive."""
    return ConfigurationError(
        f"the installed package `framework` does not fit: {why}. It is another package, or a "
        "version of hive that is not known here. Install hive v0.5.1 to v0.11.0, or write the "
        "agent with @workflow, @step and @tool"
    )


def _why_not(name: str, missing: str) -> ConfigurationError:
    """Return the error that explains why a module of hive cannot be imported."""
    if missing == "framework":
        return ConfigurationError(
            "the package `framework` of hive is not installed, and not on the package registry: "
            "git clone --branch v0.11.0 https://github.com/aden-hive/hive, and put hive/core on "
            "PYTHONPATH"
        )
    if missing.startswith("framework"):
        return does_not_fit_hive(f"it has no {missing}")
    return ConfigurationError(
        f"framework.{name} of hive cannot be imported, since {missing or 'something'} that it "
        "imports cannot: install the dependencies of hive/core into this environment"
    )


class HiveCheckpointStore:
    """A replacement of hive's ``CheckpointStore``: the same methods and files, in ``checkpoints/``.

    This store also reads the files of hive's own store, and hive reads this store's files.  Each
    file is durable when the call returns, and carries a checksum.  Several processes may use one
    folder.

    Args:
        base_path: folder of a session; by default ``$HOME/.hive``.
        on_corrupt: what loading a damaged checkpoint returns or raises.  ``"fallback"``: the
            newest intact checkpoint before it, or ``None``.  ``"raise"``: ``CorruptStoreError``.
            ``"none"``: ``None``, as with hive, which then starts from the top.

    Raises:
        ConfigurationError: hive's package ``framework`` is missing, or ``on_corrupt`` is unknown.
    """

    def __init__(
        self, base_path: str | os.PathLike[str] | None = None, *, on_corrupt: OnCorrupt = "fallback"
    ) -> None:
        if on_corrupt not in ("none", "raise", "fallback"):
            raise ConfigurationError(
                f"on_corrupt={on_corrupt!r}: use 'none', 'raise' or 'fallback'"
            )
        self._schema = hive_module("schemas.checkpoint")
        self.base_path = Path(base_path) if base_path is not None else Path.home() / ".hive"
        self.checkpoints_dir = self.base_path / "checkpoints"
        self.index_path = self.checkpoints_dir / "index.json"
        self.on_corrupt = on_corrupt
        self._known = _KnownIndex(None, None, {})

    async def save_checkpoint(
        self, checkpoint: Any, *, max_retries: int = 3, backoff_base: float = 0.5
    ) -> None:
        """Store the current state of a checkpoint, and replace an older one with the same id.

        Args:
            max_retries: how many times to retry when the disk fails.
            backoff_base: seconds before the first retry; doubled for each further retry.

        Raises:
            OSError: the disk failed each time; the previous content is still there.
        """
        data = sealed(checkpoint)
        summary = self._schema.CheckpointSummary.from_checkpoint(checkpoint)
        for attempt in range(max_retries + 1):
            try:
                return await asyncio.to_thread(self._save, summary, checkpoint.session_id, data)
            except OSError as error:
                if attempt >= max_retries:
                    raise
                notice(f"hive checkpoint {summary.checkpoint_id!r} is saved again: {error}")
            await asyncio.sleep(backoff_base * 2**attempt)
        return None

    async def load_checkpoint(self, checkpoint_id: str | None = None) -> Any:
        """Load a checkpoint, or the latest; return ``None`` if it is missing.

        Raises:
            CorruptStoreError: it is damaged or its file is missing, and ``on_corrupt="raise"``.
        """
        return await asyncio.to_thread(self._load, checkpoint_id)

    async def verify_checkpoint(
        self, checkpoint_id: str
    ) -> Literal["verified", "unverified", "damaged"] | None:
        """Return the condition of a checkpoint's file, or ``None`` if it is missing.

        ``"unverified"`` means that hive wrote the file, without a checksum, and that it is
        readable.
        """
        return await asyncio.to_thread(self._verify, checkpoint_id)

    async def load_index(self) -> Any:
        """Return hive's ``CheckpointIndex`` of the folder; ``None`` if the folder is empty."""
        index = await asyncio.to_thread(self._index)
        return index.model_copy(deep=True) if index is not None else None

    async def list_checkpoints(
        self, checkpoint_type: str | None = None, is_clean: bool | None = None
    ) -> list[Any]:
        """Return hive's ``CheckpointSummary`` of each checkpoint, the oldest first.

        Args:
            checkpoint_type: return only checkpoints of this type.
            is_clean: return only checkpoints with this value of ``is_clean``.
        """
        index = await self.load_index()
        return [
            each
            for each in (index.checkpoints if index is not None else [])
            if (not checkpoint_type or each.checkpoint_type == checkpoint_type)
            and (is_clean is None or each.is_clean == is_clean)
        ]

    async def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether it existed."""
        return await asyncio.to_thread(self._delete, [checkpoint_id]) == 1

    async def prune_checkpoints(self, max_age_days: int = 7) -> int:
        """Delete checkpoints older than ``max_age_days`` days; return how many there were."""
        cutoff = (datetime.now() - timedelta(days=max_age_days)).timestamp()  # noqa: DTZ005
        old = [
            each.checkpoint_id
            for each in await self.list_checkpoints()
            if _when(each, cutoff) < cutoff
        ]
        return await asyncio.to_thread(self._delete, old) if old else 0

    async def checkpoint_exists(self, checkpoint_id: str) -> bool:
        """Return whether a checkpoint has a file, damaged or not."""
        return await asyncio.to_thread(lambda: self._path(checkpoint_id).exists())

    # -- one checkpoint --------------------------------------------------------------------------

    def _save(self, summary: Any, session_id: str, data: bytes) -> None:
        with self._locked() as names:
            index = self._index(names) or self._schema.CheckpointIndex(session_id=session_id)
            write(self._path(summary.checkpoint_id), data)
            others = [e for e in index.checkpoints if e.checkpoint_id != summary.checkpoint_id]
            self._write_index(index, [*others, summary])

    def _load(self, wanted: str | None) -> Any:
        checkpoint_id = wanted if wanted is not None else next(reversed(self._listed()), None)
        if checkpoint_id is None:
            return None
        path = self._path(checkpoint_id)
        try:
            return self._read(checkpoint_id)[0]
        except DamagedFileError as error:
            if not path.exists() and checkpoint_id not in self._listed():
                # The file never existed, or was deleted since the index was read.
                return None if wanted is not None else self._load(None)
            why = str(error)
        notice(f"hive checkpoint {checkpoint_id!r} is damaged: {why} ({path})")
        if self.on_corrupt == "raise":
            raise CorruptStoreError(
                f"hive checkpoint {checkpoint_id!r} is damaged: {why}. Its file is {path}: restore "
                f"it from a backup, or call delete_checkpoint({checkpoint_id!r}), or load an older "
                "one (on_corrupt='fallback' does so automatically)",
                path=str(path),
            )
        return self._before(checkpoint_id) if self.on_corrupt == "fallback" else None

    def _before(self, checkpoint_id: str) -> Any:
        """Return the newest intact checkpoint that is older, or ``None``."""
        listed = self._listed()
        older = listed[: listed.index(checkpoint_id)] if checkpoint_id in listed else listed
        for each in reversed(older):
            with contextlib.suppress(DamagedFileError):
                found, _ = self._read(each)
                notice(f"hive checkpoint {each!r} replaces {checkpoint_id!r}")
                return found
        return None

    def _read(self, checkpoint_id: str) -> tuple[Any, bool]:
        """Return a checkpoint, and whether a checksum verifies it."""
        checkpoint, verified = read(self._path(checkpoint_id), self._schema.Checkpoint)
        if verified and checkpoint.checkpoint_id != checkpoint_id:
            raise DamagedFileError(f"it is the file of {checkpoint.checkpoint_id!r}")
        return checkpoint, verified

    def _verify(self, checkpoint_id: str) -> Literal["verified", "unverified", "damaged"] | None:
        try:
            _, verified = self._read(checkpoint_id)
        except DamagedFileError:
            there = self._path(checkpoint_id).exists() or checkpoint_id in self._listed()
            return "damaged" if there else None
        return "verified" if verified else "unverified"

    def _delete(self, checkpoint_ids: list[str]) -> int:
        if not self.checkpoints_dir.exists():
            return 0
        with self._locked() as names:
            index, gone = self._index(names), set(checkpoint_ids)
            if index is not None and gone & {each.checkpoint_id for each in index.checkpoints}:
                # Before the files: after a kill in between, the checkpoints still exist, undamaged.
                kept = [each for each in index.checkpoints if each.checkpoint_id not in gone]
                self._write_index(index, kept)
            deleted = 0
            for each in gone:
                with contextlib.suppress(FileNotFoundError):
                    self._path(each).unlink()
                    deleted += 1
            sync(str(self.checkpoints_dir))
            return deleted

    def _path(self, checkpoint_id: str) -> Path:
        ours = self.checkpoints_dir / f"{file_name(checkpoint_id)}.json"
        if ours.stem == checkpoint_id or ours.exists() or "\0" in checkpoint_id:
            return ours
        hives = self.checkpoints_dir / f"{checkpoint_id}.json"  # hive makes folders of slashes
        odd = {"", ".", ".."} & set(checkpoint_id.split("/")) or checkpoint_id.casefold() == "index"
        return hives if not odd and os.path.isfile(hives) else ours  # also of too long a name

    # -- the index -------------------------------------------------------------------------------

    def _listed(self) -> list[str]:
        index = self._index()
        return [each.checkpoint_id for each in index.checkpoints] if index is not None else []

    def _index(self, names: frozenset[str] | None = None) -> Any:
        """Return the index, with the checkpoints that a killed process did not add to it.

        Callers must not change the index: it is cached until the file changes.

        Args:
            names: the names of the files in the folder, if the caller has already listed them.
        """
        stamp = _stamp(self.index_path)
        if stamp is None or stamp != self._known.stamp:
            self._known = self._read_index(stamp)
        index, files = self._known.index, self._known.files
        names = _names(self.checkpoints_dir) if names is None else names
        strange = sorted(names.difference(files.values()))
        found = [self.checkpoints_dir / name for name in strange if _is_ours(name)]
        missing = [each for each in map(self._summary, found) if each is not None]
        summaries = index.checkpoints if index is not None else []
        if index is None:
            if not missing:
                return None
            session = next((sid for sid, _ in missing if sid), self.base_path.name)
            index = self._schema.CheckpointIndex(session_id=session)
        if missing:
            latest = max((_when(each, 0) for each in summaries), default=0)
            merged = [*summaries, *(each for _, each in missing)]
            merged.sort(key=lambda each: _when(each, latest))
            index = _with(index, merged)
        return index

    def _read_index(self, stamp: _Stamp | None) -> _KnownIndex:
        if stamp is None:
            return _KnownIndex(None, None, {})
        try:
            index, _ = read(self.index_path, self._schema.CheckpointIndex)
        except DamagedFileError as error:
            notice(f"{self.index_path} is damaged ({error}); it is rebuilt from the files")
            return _KnownIndex(None, None, {})
        return _KnownIndex(stamp, index, self._files(index))

    def _summary(self, path: Path) -> tuple[str, Any] | None:
        """Return session and summary of a file outside of the index; ``None`` if foreign."""
        try:
            checkpoint, _ = read(path, self._schema.Checkpoint)
        except StrangeFileError:
            return None
        except DamagedFileError as error:
            with contextlib.suppress(FileNotFoundError):
                return "", self._schema.CheckpointSummary(
                    checkpoint_id=path.name.removesuffix(".json"),
                    checkpoint_type="damaged",
                    # As hive writes it: a local time.
                    created_at=datetime.fromtimestamp(path.stat().st_mtime).isoformat(),  # noqa: DTZ006
                    is_clean=False,
                    description=str(error),
                )
            return None
        return checkpoint.session_id, self._schema.CheckpointSummary.from_checkpoint(checkpoint)

    def _write_index(self, index: Any, summaries: list[Any]) -> None:
        index = _with(index, summaries)
        write(self.index_path, sealed(index))
        self._known = _KnownIndex(_stamp(self.index_path), index, self._files(index))

    def _files(self, index: Any) -> dict[str, str]:
        """Return the names of the files of the checkpoints in an index, by id."""
        known, ids = self._known.files, [each.checkpoint_id for each in index.checkpoints]
        return {each: known.get(each) or self._path(each).name for each in ids}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[frozenset[str]]:
        """Lock out other processes, and yield the names of the files in the folder."""
        make_folder(self.checkpoints_dir)
        with exclusively(str(self.checkpoints_dir / ".lock")):
            names = _names(self.checkpoints_dir)
            for name in names:
                if name.startswith(".") and name.endswith(".tmp"):  # left by a killed process
                    (self.checkpoints_dir / name).unlink(missing_ok=True)
            yield names


_Stamp = tuple[int, int, int]


class _KnownIndex(NamedTuple):
    """The index as last read or written.

    Args:
        stamp: of its file at that time; ``None`` if there was no file.
        files: the file names of its checkpoints, by id.
    """

    stamp: _Stamp | None
    index: Any
    files: dict[str, str]


def _stamp(path: Path) -> _Stamp | None:
    """Return a value that changes whenever a file is replaced; ``None`` for a missing file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except FileNotFoundError:
        return frozenset()


def _is_ours(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".") and name != "index.json"


def _with(index: Any, summaries: list[Any]) -> Any:
    """Return an index with other checkpoints."""
    latest = summaries[-1].checkpoint_id if summaries else None
    facts = {"total_checkpoints": len(summaries), "latest_checkpoint_id": latest}
    return index.model_copy(update={"checkpoints": summaries, **facts})


def _when(summary: Any, otherwise: float) -> float:
    """Return when a checkpoint was made, in seconds since 1970; hive writes local times."""
    try:
        return datetime.fromisoformat(summary.created_at).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return otherwise
