"""The files of :class:`HiveCheckpointStore`: hive's own, with a checksum, written durably.

A file is what hive itself would write, between two keys more: the first holds the SHA-256 of all
that follows it, the last says that there has to be one.  Hive keeps and ignores unknown keys.  A
single damage cannot take both, and what hive writes again has them in another place, so that a file
of hive's own is told from a damaged one of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from stepwise.stores._files import sync

__all__ = [
    "DamagedFileError",
    "StrangeFileError",
    "file_name",
    "is_file",
    "make_folder",
    "read",
    "sealed",
    "write",
]

_FIRST, _LAST = "stepwise_sha256", "stepwise_sealed"
_HEAD = b'{"%s": "' % _FIRST.encode()
_TAIL = b',"%s":true}\n' % _LAST.encode()
_LONGEST = 246  # bytes of a name: hive adds ".json.tmp", and file systems end at 255


class DamagedFileError(Exception):
    """A file that differs from the written one; the message says why."""


class StrangeFileError(DamagedFileError):
    """The file is JSON, but neither ours nor hive's."""


def sealed(model: Any) -> bytes:
    """Return a model as hive would write it, with a checksum."""
    text: str = model.model_dump_json(indent=2, exclude={_FIRST, _LAST})
    rest = b'",' + text[1:-1].rstrip().encode() + _TAIL
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + rest


def read(path: Path, model: Any) -> tuple[Any, bool]:
    """Read a model from a file, and return whether a checksum confirms it.

    Raises:
        DamagedFileError: it is not what was written.
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
    """Replace a file, durably: a reader finds the old one or the new one, whole."""
    draft = path.parent / f".{uuid4().hex}.tmp"
    try:
        with open(draft, "xb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(str(path.parent))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(0o700, exist_ok=True)
        sync(str(folder.parent))


def file_name(checkpoint_id: str) -> str:
    """The id itself, as hive has it, with ``%XX`` for what cannot or must not be in a name."""
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
