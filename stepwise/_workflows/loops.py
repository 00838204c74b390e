"""Loops whose iterator cannot be recorded but begun again, behind the items that they had given.

``for each in tqdm(items)`` iterates over a generator; ``itertools.pairwise`` does not pickle.  If
the head of a loop calls nothing but the functions below, and names nothing but local variables of
plain types, it gives the same items when it is evaluated again, as long as these variables hold
what they held when the loop began.  That is proved at every checkpoint, by identity: a restored
list holds the same items in the same order.

A file that is only read is opened again, too.  Its size, time and number and a digest of the items
that it had given tell whether it is what it was; else the checkpoint does not hold.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import io
import itertools
import os
import stat
import types
from collections.abc import Iterator, Mapping
from typing import Any

from stepwise._rewrite import Ahead, Rewritten
from stepwise._runtime.facts import NamedTuple
from stepwise._values.addresses import same
from stepwise._values.digest import digest
from stepwise._values.preview import error_text
from stepwise.errors import DigestError

__all__ = ["Counted", "FileChangedError", "Skipped", "count", "names_of", "reopened"]

_CALLS = {
    "builtins": ("enumerate", "len", "list", "range", "reversed", "sorted", "tuple", "zip"),
    "itertools": (
        *("accumulate", "batched", "chain", "combinations", "combinations_with_replacement"),
        *("compress", "count", "cycle", "islice", "pairwise", "permutations", "product", "repeat"),
        "zip_longest",
    ),
    "_csv": ("reader",),
    "_io": ("open",),
    "io": ("open",),
    "tqdm": ("tqdm", "tqdm_asyncio", "tqdm_notebook", "trange"),
    "rich": ("track",),
}
"""By root package: functions that return their inputs in an order that depends on nothing else."""

_INSIDE = ("accumulate", "compress", "reader", "sorted")  # these read the contents of items
_ATOMS = (str, bytes, int, float, bool, type(None))
_FILES = (io.TextIOWrapper, io.BufferedReader)
_MODES = ("r", "rt", "rb")
_PATH = "WindowsPath" if os.name == "nt" else "PosixPath"  # what pathlib.Path() makes
_METHODS: dict[str, tuple[str, ...]] = {
    "dict": ("items", "keys", "values"),
    "str": ("split", "splitlines"),
    "DataFrame": ("groupby", "iterrows", "itertuples"),
    _PATH: ("open",),
}


class FileChangedError(LookupError):
    """A file that a loop reads has changed."""


class FileState(NamedTuple):
    """The identity and state of a file, by which a change of it is noticed."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, file: Any) -> FileState:
        """Return the state of an open file as of now."""
        now = os.fstat(file.fileno())
        return cls(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)

    def other(self, now: FileState) -> str:
        """Return what has changed; empty for nothing."""
        if self[:2] != now[:2]:
            return "it is another file"
        if self.size != now.size:
            return f"it had {self.size} bytes and has {now.size}"
        return "it was written to" if self.mtime_ns != now.mtime_ns else ""


class Skipped(NamedTuple):
    """The record of an iterator: how many items it had given.

    Args:
        file: the file that it reads, when that was recorded.
        digest: of the items, if it reads a file.
    """

    items: int
    file: FileState | None = None
    digest: bytes = b""


class Counted:
    """An iterator that counts its items.

    Args:
        held: by name, the variables that the head of the loop names, and what they held.
        file: what it reads, if it reads a file.
    """

    def __init__(
        self, iterator: Iterator[Any], held: Mapping[str, tuple[Any, Any]], file: Any = None
    ) -> None:
        self.iterator = iterator
        self.given = 0
        self.file = file
        self._held = held
        self._digest = hashlib.sha256()

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        item = next(self.iterator)
        self.given += 1
        if self.file is not None:  # items of a file are texts and numbers
            self._digest.update(f"{item!r}\n".encode())
        return item

    def skip(self, before: Skipped) -> None:
        """Take what an iterator that is recorded as that had given."""
        for _ in itertools.islice(self, before.items):
            pass
        if self.given != before.items:
            raise RuntimeError(
                f"a loop that had yielded {before.items} items has only {self.given}"
            )
        if before.file is not None and before.digest != self._digest.digest():
            raise FileChangedError("the part that was read is different")

    def changed(self, values: Mapping[str, Any]) -> str:
        """Return the names of the variables that have changed since the loop began."""
        names = [
            repr(name)
            for name, (value, held) in self._held.items()
            if values.get(name) is not value or not _holds(value, held)
        ]
        return ", ".join(names)

    def __reduce__(self) -> Any:
        if self.file is None:
            return Skipped, (self.given,)
        return Skipped, (self.given, FileState.of(self.file), self._digest.digest())


def count(
    iterator: Iterator[Any], head: Ahead, values: Mapping[str, Any], rewritten: Rewritten
) -> Iterator[Any]:
    """Return an iterator as it is if it can be recorded, or can not be made again; else counted."""
    file = _file_of(iterator) if head.opens else None
    if file is None and (head.opens or _is_recordable(iterator)):
        return iterator
    names = names_of(head, values, rewritten)
    if names is None:
        return iterator
    try:
        held = {name: (values[name], _held_by(values[name])) for name in names}
    except DigestError:
        return iterator
    return Counted(iterator, held, file)


def reopened(
    before: Skipped,
    head: Ahead,
    code: types.CodeType,
    values: Mapping[str, Any],
    rewritten: Rewritten,
) -> Counted:
    """Open the file of a loop again, and skip the items that the loop had received.

    Args:
        code: the head of the loop, as an expression.

    Raises:
        FileChangedError: the file is not what it was; says in what.
    """
    assert before.file is not None
    counted: Any = None
    try:
        iterator = iter(eval(code, rewritten.function.__globals__, {**values}))  # noqa: S307
        counted = count(iterator, head, values, rewritten)
        if not isinstance(counted, Counted) or counted.file is None:
            raise FileChangedError("it is no longer a file that can be read twice")  # noqa: TRY301
        other = before.file.other(FileState.of(counted.file))
        if other:
            raise FileChangedError(other)  # noqa: TRY301
        counted.skip(before)
    except FileChangedError:
        _close(counted)
        raise
    except Exception as error:
        _close(counted)
        raise FileChangedError(f"{type(error).__name__}: {error_text(error)}") from error
    return counted


def _close(counted: Any) -> None:
    if isinstance(counted, Counted) and counted.file is not None:
        counted.file.close()


def _file_of(iterator: Any) -> Any:
    """Return the file that an iterator reads from its start, directly or through other iterators.

    ``None`` if it is not certain that it can be opened again.
    """
    found, around, seen = [], [iterator], set()
    for each in around:
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) in _FILES:
            found.append(each)
        elif type(each) is types.GeneratorType:
            around += each.gi_frame.f_locals.values() if each.gi_frame is not None else ()
        elif hasattr(each, "__dict__") and _is_known(type(each)):
            around += vars(each).values()
        elif type(each) is tuple or hasattr(type(each), "__next__"):
            around += gc.get_referents(each)
    if len(found) != 1:
        return None
    file = found[0]
    try:
        named = isinstance(file.name, (str, bytes, os.PathLike))  # a number is a descriptor
        status = os.fstat(file.fileno())
        regular = stat.S_ISREG(status.st_mode) and status.st_size  # files in /proc have no size
        again = named and regular and file.mode in _MODES and file.tell() == 0
    except (AttributeError, OSError, ValueError):
        return None
    return file if again else None


def names_of(head: Ahead, values: Mapping[str, Any], rewritten: Rewritten) -> set[str] | None:
    """Return the variables on which the items depend; ``None`` if they may depend on more."""
    value: Any
    function, found, inside = rewritten.function, set(), head.opens
    for dotted in head.called | head.used:
        root, *attributes = dotted.split(".")
        called, value = dotted in head.called, values.get(root)
        if root not in rewritten.variables:
            value = function.__globals__.get(root, getattr(builtins, root, None))
        elif root not in values or root in function.__code__.co_freevars:
            return None
        elif cls := _plain_type(value):
            if attributes and not (called and dotted in _methods(root, cls)):
                return None
            found.add(root)
            continue
        for name in attributes:
            value = vars(value).get(name) if isinstance(value, types.ModuleType) else None
        if not called or not _is_known(value):
            return None
        inside = inside or value.__name__ in _INSIDE
    atoms = not inside or all(_are_atoms(_held_by(values[name])) for name in found)
    return found if atoms else None


def _methods(root: str, cls: str) -> set[str]:
    return {f"{root}.{name}" for name in _METHODS.get(cls, ())}


def _is_known(value: Any) -> bool:
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return value.__qualname__ in _CALLS.get(str(value.__module__).partition(".")[0], ())


def _plain_type(value: Any) -> str:
    """The type of a value that can be told to be the same; empty for others."""
    cls = type(value)
    if cls in (*_ATOMS, list, tuple, dict, range):
        return cls.__name__
    package = {"DataFrame": "pandas", _PATH: "pathlib"}.get(cls.__name__)
    return cls.__name__ if package and _is_of(package, cls) else ""


def _is_of(package: str, cls: type) -> bool:
    return cls.__module__.partition(".")[0] == package


def _held_by(value: Any) -> Any:
    """Return the direct contents of a value, or a digest of all of it where those are unknown."""
    if type(value) is dict:
        return [*value, *value.values()]
    if type(value) in (list, tuple):
        return list(value)
    return digest(value) if _is_of("pandas", type(value)) else value


def _holds(value: Any, held: Any) -> bool:
    try:
        now = _held_by(value)
    except DigestError:
        return False
    return same(held, now) if type(held) is list else bool(held == now)


def _are_atoms(held: Any) -> bool:
    return all(type(each) in _ATOMS for each in held) if type(held) is list else True


def _is_recordable(iterator: Any) -> bool:
    """Return whether an iterator pickles, with the iterators that it takes its items from."""
    cls: Any = type(iterator)
    if cls is types.GeneratorType or cls.__reduce__ is object.__reduce__:
        return False
    referents = gc.get_referents(iterator)
    groups = [each for each in referents if type(each) is tuple]
    return all(
        map(
            _is_recordable,
            (
                each
                for each in itertools.chain(referents, *groups)
                if hasattr(type(each), "__next__")
            ),
        )
    )
