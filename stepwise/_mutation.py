"""What a call did to the objects that it was given, so that answering it does the same.

Imports: snapshot, digest, settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepwise import _codec, _config, _digest
from stepwise._codec import Encoded
from stepwise._pickling import PYTHON
from stepwise._pieces import Data
from stepwise._snapshot import UnpicklableError, dump_values, load_values
from stepwise._surroundings import Surroundings
from stepwise.errors import DigestError

__all__ = ["Watch", "encode_changed", "record_arguments", "replay_changed", "surroundings"]

_SIZED = (list, dict, set, bytearray)


def surroundings(bound: Mapping[str, Any], instance: object = None) -> Surroundings:
    """The mutable arguments of a call."""
    return Surroundings(arguments=Surroundings.mutable(bound, instance))


def record_arguments(around: Surroundings) -> Data:
    """The contents of the arguments, as far as they can be recorded."""
    left = around
    while left.arguments:
        try:
            return dump_values({}, left)
        except UnpicklableError as error:
            kept = {n: v for n, v in left.arguments.items() if n not in error.culprits}
            if len(kept) == len(left.arguments):
                break
            left = replace(left, arguments=kept)
    return b""


class Watch:
    """Notices cheaply that a step changes its arguments: by lengths, or, strictly, digests."""

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self._bound = bound
        self._look = _digests if _config.strict() else _lengths
        self._before = self._look(bound)

    @property
    def around(self) -> Surroundings:
        """The arguments that may be changed."""
        return surroundings(self._bound)

    def changed(self) -> list[str]:
        """The names of the arguments that are not as they were."""
        if not self._before:
            return []
        now = self._look(self._bound)
        return [name for name, before in self._before.items() if now.get(name) != before]


def _lengths(bound: Mapping[str, Any]) -> dict[str, Any]:
    return {n: len(v) for n, v in bound.items() if type(v) in _SIZED}


def _digests(bound: Mapping[str, Any]) -> dict[str, Any]:
    digests = {}
    for name, value in bound.items():
        try:
            digests[name] = _digest.digest(value)
        except DigestError:
            continue  # it is not part of the call's identity either
    return digests


def encode_changed(value: Any, around: Surroundings) -> Encoded | None:
    """A value together with what the arguments hold now; ``None`` if that cannot be recorded."""
    try:
        return Encoded(dump_values({"value": value}, around), PYTHON)
    except UnpicklableError:
        return None


def replay_changed(payload: bytes, python: str | None, around: Surroundings) -> Any:
    """The value that :func:`encode_changed` took; the arguments get their contents.

    Raises:
        UnreadableValueError: it cannot be loaded here.
    """
    return _codec.decode_with(lambda: load_values(payload, around)["value"], python)
