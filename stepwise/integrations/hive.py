"""For users of aden-hive/hive: a recorded graph executor, and a durable checkpoint store.

:func:`executor_class` returns a subclass of hive's ``GraphExecutor``, called ``Orchestrator`` since
v0.10.  The subclass records each visit of a node, and each result of a tool when it returns.  After
a kill, another call repeats neither.  :class:`HiveCheckpointStore` replaces hive's
``CheckpointStore``.  hive's package ``framework`` is imported when either is first used.

The session state of a failed or paused result gets one more key.  The key holds the run, the number
of visits that had succeeded, and a digest of each value of the run's memory.  A call with that
session state executes the graph from its beginning, with the first input, and the journal answers
everything that is done.  Changes to the memory are stored in the run.  They are written at the
place where the run had stopped, now and in every later process.

The checkpoint store has hive's methods and files, but is durable and verified.  A file holds what
hive itself would write, and two more keys.  The first key holds the SHA-256 of everything after it;
the last key says that there must be a checksum.  Hive ignores and keeps unknown keys.  A single
damage cannot remove both keys, and a file that hive rewrites has them in another place.  Hive's own
files thus differ from damaged files of this store.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast
from urllib.parse import quote
from uuid import uuid4

import wrapt  # type: ignore[import-untyped, unused-ignore]

from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count, notice, shell_word
from stepwise._runtime.options import check_values
from stepwise._runtime.system_limits import open_private
from stepwise._values import codec
from stepwise._values import digest as _digest
from stepwise._workflows import host
from stepwise._workflows.host import DamagedError, HostedRun, HostProgram, HostStore, Recall, Step
from stepwise.errors import ConfigurationError, CorruptStoreError, DigestError, RunStopped
from stepwise.stores import Store, open_store
from stepwise.stores._files import exclusively, sync

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


# -- hive execution -------------------------------------------------------------------------------


_KEY = "stepwise"
_BEGAN = "hive/began"
_CHANGED = "hive/changed"


# -- session states ------------------------------------------------------------------------------


@dataclass
class Continued:
    """A run that a session state continues.

    Args:
        input_data, session_state: the arguments of the run's first call.
        visits: how many visits had succeeded when the run stopped.
        changed: the values of the memory that have changed since, by key.
    """

    run_id: str
    input_data: Any
    session_state: Any
    visits: int
    changed: dict[str, Any] = field(default_factory=dict)


def session_of(store: Store, given: Any, input_data: Any) -> Continued | None:
    """Return the run that a session state continues; ``None`` if it begins a new run.

    Raises:
        ConfigurationError: the store does not hold the run, or its beginning.
        CorruptStoreError: the record of the run's beginning does not verify.
    """
    noted = given.get(_KEY) if isinstance(given, Mapping) else None
    if not noted:
        return None
    run_id = noted["run_id"]
    if HostStore(store).facts(run_id) is None:
        raise ConfigurationError(
            f"the session_state continues run {run_id!r}, which store {store.url!r} does not hold: "
            "give the executor the store of that run, or, to begin anew with its memory, remove "
            f"the key {_KEY!r} from the session_state"
        )
    began = _read(store, run_id, _BEGAN)
    if began is None:
        raise ConfigurationError(
            f"store {store.url!r} lacks the record of how run {run_id!r} began; call it with its "
            "first input, and without the session_state"
        )
    first, state = began
    changed = _changed(_memory_of(given), noted["memory"])
    if not given.get("paused_at"):  # without it, hive also writes the input to the memory
        changed.update(_changed(input_data, {key: _print(value) for key, value in first.items()}))
    return Continued(run_id, first, state, noted["visits"], changed)


def _memory_of(state: Mapping[str, Any]) -> Any:
    """Return the memory in a session state, which hive calls data buffer since v0.9."""
    return state.get("data_buffer", state.get("memory"))


def _changed(values: Any, prints: Mapping[str, str]) -> dict[str, Any]:
    """Return the changed values; a value without a digest counts as unchanged."""
    if not isinstance(values, Mapping):
        return {}
    return {
        key: value
        for key, value in values.items()
        if (now := _print(value)) and now != prints.get(key)
    }


def _print(value: Any) -> str:
    with contextlib.suppress(DigestError):
        return _digest.digest(value)
    return ""


def _read(store: Store, run_id: str, name: str) -> Any:
    """Return an object stored beside the records of a run, or ``None`` if it is missing.

    Raises:
        CorruptStoreError: the object does not verify.
    """
    try:
        header, payload = HostStore(store).get(run_id, name)
    except DamagedError as error:
        if store.get(run_id, name) is None:
            return None
        raise CorruptStoreError(
            f"the session state of run {run_id!r} in store {store.url!r} is damaged ({name}: "
            f"{error}). Restore it from a backup, or start over: "
            f"stepwise forget {shell_word(run_id)}",
            path=store.url,
        ) from None
    return codec.decode(payload, header["form"])


class Session:
    """The session states of a run, as one execution knows them."""

    def __init__(
        self,
        run: HostedRun,
        input_data: Any,
        session_state: Any,
        going_on: Continued | None,
    ) -> None:
        self._run = run
        self._input_data, self._session_state = input_data, session_state
        self._going_on = going_on
        self._pending: dict[int, dict[str, Any]] = {}

    def go_on(self) -> None:
        """Store the changes since the run stopped, together with earlier changes.

        Raises:
            CorruptStoreError: the earlier changes do not verify.
            NotRecordableError: the new changes cannot be stored.
        """
        run, going_on = self._run, self._going_on
        self._pending = _read(run.call.store, run.run_id, _CHANGED) or {}
        if going_on is not None and going_on.changed:
            earlier = self._pending.get(going_on.visits, {})
            self._pending[going_on.visits] = {**earlier, **going_on.changed}
            self._put(_CHANGED, self._pending)

    def begin(self) -> None:
        """Store the input with which the run began."""
        self._put(_BEGAN, (dict(self._input_data or {}), self._session_state), durable=False)

    def _put(self, name: str, value: Any, *, durable: bool = True) -> None:
        encoded = codec.encode(value, "the session state")
        self._run.put(name, {"form": encoded.form}, encoded.data, durable=durable)

    def changes(self, visits: int) -> Iterator[tuple[str, Any]]:
        """Yield once the changes that were made when at most this many visits had succeeded."""
        for each in sorted(self._pending):
            if each <= visits:
                yield from self._pending.pop(each).items()

    def noted(self, result: Any, visits: int) -> Any:
        """Return a result whose session state continues this run."""
        state = getattr(result, "session_state", None)
        if isinstance(state, dict):
            memory = _memory_of(state)
            held = memory if isinstance(memory, Mapping) else {}
            prints = {key: _print(value) for key, value in held.items()}
            state[_KEY] = {"run_id": self._run.run_id, "visits": visits, "memory": prints}
        return result


# -- executions ----------------------------------------------------------------------------------


class UnfinishedError(Exception):
    """A failed execution of hive: the run is not completed, and can resume."""

    def __init__(self, result: Any, why: str = "") -> None:
        super().__init__(why or str(result.error))
        self.result = result


class RecordedNode(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """A node whose visits are recorded."""

    def __init__(self, node: Any, spec: Any) -> None:
        super().__init__(node)
        self._self_spec = spec

    async def execute(self, ctx: Any) -> Any:
        execution = _execution.get()
        if execution is None:
            return await self.__wrapped__.execute(ctx)
        return await execution.visit(self.__wrapped__, self._self_spec, ctx)


def record_workers(workers: Any) -> None:
    """Make the worker agents of hive v0.9 and later record their visits, inside an execution.

    hive waits for the report of a worker, so an exception that stops the run ends the worker as a
    failure.
    """
    plain = workers._execute_with_retries
    if getattr(plain, "records", False):
        return

    async def execute_with_retries(worker: Any, node: Any, ctx: Any) -> Any:
        execution = _execution.get()
        if execution is None or _visit.get() is not None:  # an inner graph is part of its node
            return await plain(worker, node, ctx)
        if execution.is_over:  # at its limit of steps, hive leaves started agents running
            raise UnfinishedError(None, "the execution has ended")
        if execution.change(worker._gc.buffer):
            ctx = worker._build_node_context()
        try:
            return await plain(worker, RecordedNode(node, worker.node_spec), ctx)
        except RunStopped as stopped:
            raise UnfinishedError(None, str(stopped)) from stopped
        finally:
            await execution.take_turn()

    execute_with_retries.records = True  # type: ignore[attr-defined]
    workers._execute_with_retries = execute_with_retries


class RecordedValidator(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """Hive's validator: a node with a rejected output is visited again, as if it had failed."""

    def validate_all(self, output: Any, *args: Any, **kwargs: Any) -> Any:
        validation = self.__wrapped__.validate_all(output, *args, **kwargs)
        execution = _execution.get()
        if execution is not None and not validation.success:
            execution.rejected(output)
        return validation


class _NodeMemory(wrapt.ObjectProxy):  # type: ignore[misc, unused-ignore]
    """The memory of a node, which notes writes, to repeat them on resume."""

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self._self_written: list[Any] = []

    def write(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.__wrapped__.write(key, value, *args, **kwargs)
        self._self_written.append(("write", (key, value, *args), kwargs))

    async def write_async(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        await self.__wrapped__.write_async(key, value, *args, **kwargs)
        self._self_written.append(("write_async", (key, value, *args), kwargs))


class _NodeVisit:
    """One attempt at a node.

    Attributes:
        held_as: the name of the memory in the context: ``buffer`` since v0.9.
    """

    def __init__(self, node: Any, ctx: Any, key: str) -> None:
        self.node, self.ctx, self.key = node, ctx, key
        self.held_as = "buffer" if hasattr(ctx, "buffer") else "memory"
        self.called: Counter[str] = Counter()
        self.executed = False
        self.number = 0


def structure(graph: Any) -> str:
    """Return the digest of the graph's structure, without prompts and the like."""

    def facts(spec: Any, names: str) -> list[str]:
        return [str(getattr(spec, name, "")) for name in names.split()]

    nodes = [facts(each, "id node_type input_keys output_keys") for each in graph.nodes]
    edges = [
        facts(each, "source target condition condition_expr priority")
        for each in getattr(graph, "edges", ())
    ]
    return _digest.digest([facts(graph, "entry_node terminal_nodes pause_nodes"), nodes, edges])


class HiveExecution:
    """One execution of hive's own loop, whose nodes and tools ask the journal first.

    Attributes:
        done: how many visits have succeeded.
        is_over: whether hive has returned its result.
    """

    def __init__(
        self, run: HostedRun, call: Any, graph: Any, session: Session, *, side_effects: bool
    ) -> None:
        self._run, self._call = run, call
        self._graph, self._session = graph, session
        self.done, self.is_over = 0, False
        self.side_effects = side_effects
        self.stopped: RunStopped | None = None
        self.returned: dict[tuple[str, str], Any] = {}
        self._steps: dict[str, Step] = {}
        self._attempts: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()
        self._open: dict[tuple[str, int], _NodeVisit] = {}
        self._ended_last: asyncio.Task[Any] | None = None
        self._ended: dict[str, tuple[Any, int, bool]] = {}  # output, call, executed here; by node

    async def execute(self) -> Any:
        """Run hive's loop from its entry; the journal answers completed nodes."""
        run = self._run
        if run.is_new:
            self._session.begin()
        else:
            self._session.go_on()
            run.record_resumed(
                run.resume_from_start(),
                0,
                if_changed="the graph has changed since the run began; done nodes are answered by "
                "their ids, and the new graph decides what follows",
            )
        token = _execution.set(self)
        try:
            result = await self._call()
        finally:
            _execution.reset(token)
            self.is_over = True
            await _saved()
        if self.stopped is not None:
            raise self.stopped
        if not result.success:
            raise UnfinishedError(result)
        if self._cut_short(result):
            steps = count(self._graph.max_steps, "step")
            why = f"has used all {steps} of its graph, and may not be done"
            notice(f"{run.run_id} {why}: called again with a higher max_steps, it continues")
            raise UnfinishedError(result, why)
        return result

    def _cut_short(self, result: Any) -> bool:
        """Return whether the step limit may have cut the graph short, a success for hive."""
        most = getattr(self._graph, "max_steps", None)
        if most is None or result.paused_at or result.steps_executed < most:
            return False
        return result.path[-1:] != [] and result.path[-1] not in self._graph.terminal_nodes

    def change(self, memory: Any) -> bool:
        """Write the changes of a session state to hive's memory, where the run had stopped.

        Returns:
            whether there was a change.
        """
        changes = list(self._session.changes(self.done))
        for key, value in changes:
            memory.write(key, value, validate=False)
        return bool(changes)

    async def take_turn(self) -> None:
        """Wait until the previous worker agent has reported: only one reports at a time.

        hive's event bus takes two agents that end together, like answered ones, for the end of the
        graph.
        """
        before, self._ended_last = self._ended_last, asyncio.current_task()
        if before is not None and before is not self._ended_last:
            await asyncio.wait([before])

    @contextlib.contextmanager
    def noting_stops(self) -> Iterator[None]:
        """Remember the exception that stops the run, since hive makes an error result of it."""
        try:
            yield
        except RunStopped as error:
            self.stopped = error
            raise

    async def visit(self, node: Any, spec: Any, ctx: Any) -> Any:
        """Make an attempt at a node; record it if it succeeds."""
        if not host.is_in_run():
            return await node.execute(ctx)
        visit = self._visits[spec.id] + 1
        self._attempts[spec.id] += 1
        at = _NodeVisit(node, ctx, f"{spec.id}#{visit}")
        place = (at.key, self._attempts[spec.id])
        self._open[place] = at
        step = self._steps.get(spec.id)
        if step is None:  # the number of the attempt is ignored: only the successful one counts
            step = Step(self._visited, kind="step", name=spec.id, ignore=("attempt",))
            self._steps[spec.id] = step
        try:
            with self.noting_stops():
                record = await host.call(step, (at.key,), {"attempt": place[1]}, branch=at.key)
        except RunStopped:
            raise
        except Exception as error:
            if at.number:  # a resuming process repeats the attempt
                self._run.retry_calls(at.number)
            if isinstance(error, _Failed):
                return error.result
            raise
        finally:
            del self._open[place]
        if not at.executed:
            for name, args, kwargs in record["written"]:
                done = getattr(getattr(ctx, at.held_as), name)(*args, **kwargs)
                if isinstance(done, Awaitable):
                    await done
        self._visits[spec.id] += 1
        self.done += 1
        self._attempts[spec.id] = 0
        result = record["result"]
        self._ended[spec.id] = (result.output, record["call"], at.executed)
        return result

    def rejected(self, output: Any) -> None:
        """Note that hive rejected a node's result, so that the visit has not succeeded."""
        for node, (held, call, executed) in list(self._ended.items()):
            if held is output:
                del self._ended[node]
                self._visits[node] -= 1
                self.done -= 1
                self._run.retry_calls(call)
                if not executed:  # here, but by an earlier process
                    self._run.give_back(inside=call)

    async def _visited(self, visit: str, attempt: int) -> Any:
        at = self._open[visit, attempt]
        at.executed, at.number = True, host.call_number()
        memory, token = getattr(at.ctx, at.held_as), _visit.set(at)
        noted = _NodeMemory(memory)
        setattr(at.ctx, at.held_as, noted)
        try:
            result = await at.node.execute(at.ctx)
        except Exception as error:
            await self._run.retry_attempt(error)  # the completed tools answer the next attempt
            raise
        finally:
            setattr(at.ctx, at.held_as, memory)
            _visit.reset(token)
        if self.stopped is not None:
            raise self.stopped
        if not result.success:
            failure = _Failed(result)
            await self._run.retry_attempt(failure)
            raise failure
        return {"result": result, "written": noted._self_written, "call": at.number}


class _Failed(Exception):  # noqa: N818
    """A failure reported by a node: only the results of its tools are kept."""

    def __init__(self, result: Any) -> None:
        super().__init__(str(result.error))
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (self.result,)


class _Use:
    """A caller of a tool; a function's captured variables would be part of the call's identity."""

    def __init__(self, executor: Any, tool_use: Any) -> None:
        self._executor, self._tool_use = executor, tool_use

    async def acalled(self, arguments: Any, call: str) -> Any:
        return await self._executor(self._tool_use)

    def called(self, arguments: Any, call: str) -> Any:
        value = self._executor(self._tool_use)
        if inspect.iscoroutine(value):
            value.close()
            raise ConfigurationError(
                f"the tool {self._tool_use.name!r} is async, and the tool_executor is not: give "
                "an `async def` that awaits the tool's result"
            )
        return value


def recorded_tools(executor: Any) -> Any:
    """Record hive's ``tool_executor`` by visit, tool and input; the LLM makes up the ids."""
    is_async = inspect.iscoroutinefunction(executor)

    async def answer(tool_use: Any) -> Any:
        execution, at = _execution.get(), _visit.get()
        if execution is None or at is None:
            return await executor(tool_use) if is_async else executor(tool_use)
        same = f"{tool_use.name}\n{_digest.digest(tool_use.input)}"
        at.called[same] += 1
        call = f"{at.key}, {at.called[same]}"
        if (same, call) not in execution.returned:
            use = _Use(executor, tool_use)
            step = Step(
                use.acalled if is_async else use.called,
                kind="tool",
                name=tool_use.name,
                side_effect=execution.side_effects,
                fails_cleanly=ConfigurationError,
            )
            with execution.noting_stops():
                made = step.acall if is_async else step
                value = made(tool_use.input, call)
                execution.returned[same, call] = await value if is_async else value
        return _answered(execution.returned[same, call], tool_use)

    @functools.wraps(executor)  # hive also looks for attributes of it: kill_for_tool
    def recorded(tool_use: Any) -> Any:
        return host.at_once(answer(tool_use))

    @functools.wraps(executor)
    async def arecorded(tool_use: Any) -> Any:
        return await answer(tool_use)

    return arecorded if is_async else recorded


def _answered(value: Any, tool_use: Any) -> Any:
    if not dataclasses.is_dataclass(value):  # the landed value of a tool in doubt
        from framework.llm.provider import ToolResult

        content = value if isinstance(value, str) else json.dumps(value)
        return ToolResult(tool_use_id=tool_use.id, content=content)
    return dataclasses.replace(cast("Any", value), tool_use_id=tool_use.id)


async def _saved() -> None:
    """Wait for the checkpoints that hive saves in other tasks, which end with the run."""
    saving = [
        task
        for task in asyncio.all_tasks()
        if getattr(task.get_coro(), "__name__", "") in ("save_checkpoint", "prune_checkpoints")
    ]
    if saving:
        await asyncio.wait(saving)


_execution: ContextVar[HiveExecution | None] = ContextVar("stepwise_hive", default=None)
_visit: ContextVar[_NodeVisit | None] = ContextVar("stepwise_hive_visit", default=None)


# -- hive -----------------------------------------------------------------------------------------


__all__ = ["HiveCheckpointStore", "executor_class"]

CheckpointStore = HiveCheckpointStore  # hive's name, for programs that import it from here


@functools.cache
def executor_class() -> Any:
    """Return hive's class that executes graphs, with recording.

    The class is a subclass of hive's ``GraphExecutor``, or of ``Orchestrator`` since v0.10.  It
    takes hive's arguments, and the following by name:

    - ``store``: a URL, a path or a store; by default the configured one, ``~/.stepwise``.
    - ``run_id``: by default derived from the graph, the goal, the input and the session state.
      Since v0.9, hive itself has such an argument, and gets the same value.
    - ``side_effects``: whether repeating a tool would double an effect outside.  If a process dies
      inside such a tool, the tool is in doubt.

    Raises:
        ConfigurationError: hive's package ``framework`` is missing, or its version has an executor
            that cannot be recorded.
    """
    if has_hive_module("orchestrator"):  # since v0.10
        base = hive_module("orchestrator.orchestrator").Orchestrator
        workers = hive_module("orchestrator.node_worker").NodeWorker
    else:
        base, workers = hive_module("graph.executor").GraphExecutor, None
        if has_hive_module("graph.worker_agent"):  # in v0.9
            workers = hive_module("graph.worker_agent").WorkerAgent
    if workers is not None:
        record_workers(workers)
    elif "_get_node_implementation" not in base.execute.__code__.co_names:
        raise does_not_fit_hive("its executor does not look up its nodes")
    return type("RecordedGraphExecutor", (_RecordingMixin, base), {"__module__": __name__})


class _RecordingMixin:
    """The recording methods, which override hive's own."""

    def __init__(
        self,
        *args: Any,
        store: Any = None,
        run_id: str | None = None,
        side_effects: bool = True,
        **kwargs: Any,
    ) -> None:
        if run_id:
            check_values("GraphExecutor", run_id=run_id)
            if "run_id" in inspect.signature(cast("Any", super()).__init__).parameters:
                kwargs["run_id"] = run_id
        cast("Any", super()).__init__(*args, **kwargs)
        self._recorded_in, self._recorded_as = store, run_id or None
        self._side_effects = side_effects
        this: Any = self
        if this.tool_executor is not None:
            this.tool_executor = recorded_tools(this.tool_executor)
        if getattr(this, "validator", None) is not None:
            this.validator = RecordedValidator(this.validator)

    async def execute(
        self,
        graph: Any,
        goal: Any,
        input_data: Any = None,
        session_state: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Execute a graph, or resume where a process was killed or an execution stopped.

        Args:
            session_state: the state of a result that failed, or that ``request_pause()`` paused,
                continues its run.  The journal answers everything that is done.  Changes of its
                ``"memory"``, or of ``input_data``, are in the memory from there on.

        Raises:
            StepInDoubtError: a tool may or may not have happened.
            RunBusyError: the run is being executed.
            ConfigurationError: the store does not hold the run of the session state.
        """
        store = open_store(self._recorded_in if self._recorded_in is not None else settings.store())
        this: Any = self
        going_on = session_of(store, session_state, input_data)
        if going_on is not None:
            input_data, session_state = going_on.input_data, going_on.session_state
            if hasattr(this, "_pause_requested"):
                this._pause_requested.clear()  # the request was for the paused execution
        run, base = self._open(store, graph, goal, input_data, session_state, going_on)
        if isinstance(run, Recall):
            result = run.value
        else:
            call = functools.partial(
                cast("Any", super()).execute,
                graph,
                goal,
                input_data,
                session_state,
                *args,
                **kwargs,
            )
            session = Session(run, input_data, session_state, going_on)
            execution = HiveExecution(run, call, graph, session, side_effects=self._side_effects)
            try:
                result = await run.execute(execution.execute)
            except UnfinishedError as unfinished:
                return session.noted(unfinished.result, execution.done)
        if self._recorded_as is None:
            host.count_completed(store, base)
        return result

    def _open(
        self,
        store: Store,
        graph: Any,
        goal: Any,
        input_data: Any,
        session_state: Any,
        going_on: Continued | None,
    ) -> tuple[Recall | HostedRun, str]:
        """Open the run of a call; return it, and the id derived from the call."""
        # A goal holds the time when it was made, so only its id and text count.
        told = (goal.id, getattr(goal, "description", ""), input_data, session_state)
        digest, name = _digest.digest(told), f"hive:{graph.id}"
        base = host.derived_id(name, graph.id, digest)
        ordinal = host.completed_here(store, base)
        run_id = going_on.run_id if going_on is not None else self._recorded_as
        run = host.open_run(
            HostProgram(name, graph.id, _RecordingMixin.execute, code=structure(graph)),
            store,
            run_id or (f"{base}-{ordinal + 1}" if ordinal else base),
            {"input_data": input_data},
            digest,
            explicit=run_id is not None,
        )
        return run, base

    def _build_context(self, node_spec: Any, memory: Any, *args: Any, **kwargs: Any) -> Any:
        execution = _execution.get()
        if execution is not None:
            execution.change(memory)
        return cast("Any", super())._build_context(node_spec, memory, *args, **kwargs)

    def _get_node_implementation(self, node_spec: Any, *args: Any, **kwargs: Any) -> Any:
        node = cast("Any", super())._get_node_implementation(node_spec, *args, **kwargs)
        return RecordedNode(node, node_spec)
