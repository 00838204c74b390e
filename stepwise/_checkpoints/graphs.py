"""Graphs of objects, to bytes and back, in which some objects go by names."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import FrameReducers, FrameUnpickler, restoring
from stepwise._values.buffers import Data
from stepwise._values.pickling import dump

__all__ = ["dump_graph", "load_graph"]


class _GraphReducers(FrameReducers):
    """Refers to objects by the names that a function has for them."""

    def __init__(self, refer: Callable[[Any], str | None]) -> None:
        super().__init__(Surroundings())
        self.refer = refer
        self.identifies = True

    def identity(self, obj: Any) -> Any:
        name = self.refer(obj)
        return None if name is None else (name, None, None)


def dump_graph(graph: Any, refer: Callable[[Any], str | None]) -> Data:
    """Pickle an object and what it holds, without the objects that have names.

    Args:
        refer: returns the name of an object, or ``None``.

    Raises:
        Exception: something in it does not pickle.
    """
    return dump(graph, _GraphReducers(refer))


def load_graph(data: bytes, named: dict[str, Any], unpickler: type[FrameUnpickler]) -> Any:
    """Load what :func:`dump_graph` wrote, from verified bytes.

    Args:
        named: the objects by name.

    Raises:
        Exception: whatever unpickling raises.
    """
    token = restoring.set(Surroundings(arguments=named))
    try:
        return unpickler(io.BytesIO(data)).load()
    finally:
        restoring.reset(token)
