"""Changes of a call as data: each new value as JSON without an annotation, else by its annotation.

The annotations are those of the step's parameters, of the attributes of classes on the way, and
within them those of items: in ``boxes: dict[str, Box]``, a new item is a ``Box``.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._changes.edits import Edit
from stepwise._changes.snapshots import Path, follow
from stepwise._values import data as _data
from stepwise._values.tagged_json import NotDataError, dump_tagged, load_tagged
from stepwise.errors import NotRecordableError

__all__ = ["read_edits", "written_edits"]

_Pairs = list[tuple[Path, Edit]]
_Function = Callable[..., Any] | None


def written_edits(edits: _Pairs, roots: Mapping[str, Any], function: _Function) -> list[Any]:
    """Return edits as something that ``json`` writes.

    Args:
        roots: what the call was given, by name.
        function: whose parameters they are.

    Raises:
        NotDataError: a new value is no data.
    """
    return [
        [dump_tagged((path, tuple(edit._replace(put=None)))), _written(edit, kinds)]
        for path, edit, kinds in ((p, e, _Kinds(p, roots, function)) for p, e in edits)
    ]


def read_edits(written: list[Any], roots: Mapping[str, Any], function: _Function) -> _Pairs:
    """Return the edits that :func:`written_edits` wrote.

    Raises:
        Exception: a value cannot be loaded here.
    """
    found: _Pairs = []
    for outline, put in written:
        path, facts = load_tagged(outline)
        edit = Edit(*facts)
        kinds = _Kinds(path, roots, function)
        found.append((path, edit._replace(put=_read(edit, put, kinds))))
    return found


def _written(edit: Edit, kinds: _Kinds) -> Any:
    if type(edit.put) is list:
        return [_value(each, kinds.of_item()) for each in edit.put]
    if type(edit.put) is dict:
        kind = kinds.of_attribute if edit.facet == "attributes" else kinds.of_key
        return [[dump_tagged(name), _value(each, kind(name))] for name, each in edit.put.items()]
    return dump_tagged(edit.put)


def _read(edit: Edit, put: Any, kinds: _Kinds) -> Any:
    if edit.facet in ("attributes", "items") and type(edit.what) is tuple and len(edit.what) > 2:
        if type(edit.what[0]) is int:
            return [_loaded(each, kinds.of_item()) for each in put]
        kind = kinds.of_attribute if edit.facet == "attributes" else kinds.of_key
        pairs = [(load_tagged(name), each) for name, each in put]
        return {name: _loaded(each, kind(name)) for name, each in pairs}
    return load_tagged(put)


def _value(value: Any, kind: Any) -> dict[str, Any]:
    try:
        return {"tagged": dump_tagged(value)}
    except NotDataError:
        if kind is Any:
            raise
    try:
        return {"typed": json.loads(_data.encode_data(value, kind, "a new value"))}
    except NotRecordableError as problem:
        raise NotDataError(str(problem)) from problem


def _loaded(written: Mapping[str, Any], kind: Any) -> Any:
    if "tagged" in written:
        return load_tagged(written["tagged"])
    return _data.decode_data(_data.json_bytes(written["typed"]), kind)


class _Kinds:
    """The annotated types of what one changed object holds."""

    def __init__(self, path: Path, roots: Mapping[str, Any], function: _Function) -> None:
        parameters = _data.parameter_types(function) if function is not None else {}
        self._kind: Any = parameters.get(path[0], Any)
        self._obj: Any = roots.get(path[0])
        for place, step in enumerate(path[1:], 2):
            if step[0] == "attr":
                self._kind = self.of_attribute(step[1])
            elif step[0] in ("item", "key"):
                self._kind = self.of_item() if step[0] == "item" else self.of_key(step[1])
            else:
                self._kind = Any
            try:
                self._obj = follow(path[:place], roots)
            except LookupError:
                self._obj = None

    def of_attribute(self, name: str) -> Any:
        return _data.parameter_types(type(self._obj)).get(name, Any)

    def of_key(self, _: Any) -> Any:
        inside = typing.get_args(self._kind)
        return inside[1] if len(inside) > 1 else Any

    def of_item(self) -> Any:
        inside = typing.get_args(self._kind)
        return inside[0] if inside else Any
