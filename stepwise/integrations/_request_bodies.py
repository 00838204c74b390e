"""Bodies of requests, each stored as what it adds to earlier ones.

An agent sends its whole conversation with every request: kept whole, the requests of n turns take
n² messages.  Here a list that begins as one before it is ``{"$like": NAME, "$first": 12, "$then":
[...]}``, and a long value that was there before is ``{"$like": NAME}``.  A name is a digest in a
journal, where the records of parallel tasks come in any order; in a file for people it is the
number of the earlier request, and its field is meant that has the same name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["Bodies", "canonical", "whole_bodies"]

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_LONG = 200  # characters of JSON, below which a value is repeated


def canonical(value: Any) -> str:
    """Return the one text of a JSON value; equal texts mean equal values."""
    return _encode(value)


def _prefixes(field: str, items: Iterable[Any]) -> Iterator[str]:
    """Yield the digest of each beginning of a list."""
    digest = hashlib.sha256(field.encode("utf-8", "surrogatepass"))
    for item in items:
        digest.update(canonical(item).encode() + b"\n")
        yield digest.copy().hexdigest()[:32]


def _digests(field: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return [*_prefixes(field, value)]
    text = canonical(value)
    return [*_prefixes(field, [text])] if len(text) >= _LONG else []


class Bodies:
    """The bodies that were stored before, by the digests of their parts."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def shortened(self, body: Any, name: Any = None) -> Any:
        """Return a body without what is known, which is known from now on.

        Args:
            body: a JSON value.
            name: of the request; by default, digests are the names.
        """
        if not isinstance(body, dict):
            return body
        short: dict[str, Any] = {}
        fresh: dict[str, Any] = {}
        for field, value in body.items():
            digests = _digests(field, value)
            short[field] = self._field(value, digests)
            fresh.update((each, name or each) for each in digests)
        for digest, known in fresh.items():
            self._names.setdefault(digest, known)
        return short

    def _field(self, value: Any, digests: list[str]) -> Any:
        count = next((n for n in range(len(digests), 0, -1) if digests[n - 1] in self._names), 0)
        if not count:
            return value
        like = {"$like": self._names[digests[count - 1]]}
        if not isinstance(value, list):
            return like
        if len(canonical(value[:count])) < _LONG:
            return value
        then = {"$then": value[count:]} if count < len(value) else {}
        return {**like, "$first": count, **then}


def whole_bodies(shortened: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the bodies that :class:`Bodies` shortened.

    Args:
        shortened: the name of each (None where digests are the names), and the short form.

    Returns:
        them, in their order; None for one that refers to a body that is not among them.
    """
    waiting = dict(enumerate(shortened))
    known: dict[tuple[str, Any], Any] = {}
    found: list[Any] = [None] * len(waiting)
    while waiting:
        before = len(waiting)
        for at, (name, short) in [*waiting.items()]:
            try:
                found[at] = body = _whole(short, known)
            except LookupError:
                continue
            del waiting[at]
            for field, value in body.items() if isinstance(body, dict) else ():
                names = [name] if name is not None else _digests(field, value)
                known.update(((field, each), value) for each in names)
        if len(waiting) == before:
            return found
    return found


def _whole(short: Any, known: dict[tuple[str, Any], Any]) -> Any:
    if not isinstance(short, dict):
        return short
    body = {}
    for field, value in short.items():
        if isinstance(value, dict) and "$like" in value:
            like = known[field, value["$like"]]
            if "$first" in value:
                like = [*like[: value["$first"]], *value.get("$then", [])]
            value = like  # noqa: PLW2901
        body[field] = value
    return body
