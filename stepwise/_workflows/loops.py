"""Loops whose iterator cannot be recorded but begun again, behind the items that they had given.

``for each in tqdm(items)`` iterates over a generator; ``itertools.pairwise`` does not pickle.  If
the head of a loop calls nothing but the functions below, and names nothing but local variables of
plain types, it gives the same items when it is evaluated again, as long as these variables hold
what they held when the loop began.  That is proved at every checkpoint, by identity: a restored
list holds the same items in the same order.
"""

from __future__ import annotations

import builtins
import gc
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from stepwise._rewrite import Ahead, Rewritten
from stepwise._values.digest import digest
from stepwise._values.trees import same
from stepwise.errors import DigestError

__all__ = ["Counted", "Skipped", "count", "names_of"]

_CALLS = {
    "builtins": ("enumerate", "len", "list", "range", "reversed", "sorted", "tuple", "zip"),
    "itertools": (
        *("accumulate", "batched", "chain", "combinations", "combinations_with_replacement"),
        *("compress", "count", "cycle", "islice", "pairwise", "permutations", "product", "repeat"),
        "zip_longest",
    ),
    "_csv": ("reader",),
    "tqdm": ("tqdm", "tqdm_asyncio", "tqdm_notebook", "trange"),
    "rich": ("track",),
}
"""By root package: they give what they are given, in an order that depends on nothing else."""

_INSIDE = ("accumulate", "compress", "reader", "sorted")  # they look into the items
_ATOMS = (str, bytes, int, float, bool, type(None))
_METHODS: dict[str, tuple[str, ...]] = {
    "dict": ("items", "keys", "values"),
    "str": ("split", "splitlines"),
    "DataFrame": ("groupby", "iterrows", "itertuples"),
}


class Skipped(NamedTuple):
    """The record of an iterator: how many items it had given."""

    items: int


class Counted:
    """An iterator that counts what it gives.

    Args:
        held: by name, the variables that the head of the loop names, and what they held.
    """

    def __init__(self, iterator: Iterator[Any], held: Mapping[str, tuple[Any, Any]]) -> None:
        self.iterator = iterator
        self.given = 0
        self._held = held

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        item = next(self.iterator)
        self.given += 1
        return item

    def skip(self, items: int) -> None:
        """Take what an iterator that is recorded as that number had given."""
        for _ in itertools.islice(self, items):
            pass
        if self.given != items:
            raise RuntimeError(f"a loop that had given {items} items has only {self.given}")

    def changed(self, values: Mapping[str, Any]) -> str:
        """Name the variables that are not what they were when the loop began."""
        names = [
            repr(name)
            for name, (value, held) in self._held.items()
            if values.get(name) is not value or not _holds(value, held)
        ]
        return ", ".join(names)

    def __reduce__(self) -> Any:
        return Skipped, (self.given,)


def count(
    iterator: Iterator[Any], head: Ahead, values: Mapping[str, Any], rewritten: Rewritten
) -> Iterator[Any]:
    """Return an iterator as it is if it can be recorded, or can not be made again; else counted."""
    if _is_recordable(iterator):
        return iterator
    names = names_of(head, values, rewritten)
    if names is None:
        return iterator
    try:
        return Counted(iterator, {name: (values[name], _held_by(values[name])) for name in names})
    except DigestError:
        return iterator


def names_of(head: Ahead, values: Mapping[str, Any], rewritten: Rewritten) -> set[str] | None:
    """Return the variables on which the items depend; ``None`` if they may depend on more."""
    value: Any
    function, found, inside = rewritten.function, set(), False
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
    return cls.__name__ if cls.__name__ == "DataFrame" and _is_of_pandas(cls) else ""


def _is_of_pandas(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "pandas"


def _held_by(value: Any) -> Any:
    """Return the direct contents of a value, or a digest of all of it where those are unknown."""
    if type(value) is dict:
        return [*value, *value.values()]
    if type(value) in (list, tuple):
        return list(value)
    return digest(value) if _is_of_pandas(type(value)) else value


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
