"""Changes that a call makes to its arguments: attributed to it, recorded with its value, repeated.

The value and the new contents are one pickle, so that shared objects stay shared.  The pickle
refers to the objects of the caller by name only.  The paths of these names, and an *outline* of
what was changed where, stand beside the pickle, so that missing changes are found before anything
is loaded.

With ``codec="json"``, each new value is plain JSON if possible, else encoded by its annotation.
Annotations come from the step's parameters, from attributes of classes on the path, and from item
types within them (in ``boxes: dict[str, Box]``, a new item is a ``Box``).
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from stepwise._changes import (
    BEFORE,
    LEAF,
    NEITHER,
    Changed,
    Edit,
    Path,
    Snapshot,
    edit_of,
    follow,
    is_cached_property,
    layout_of,
    path_text,
    steps_of,
)
from stepwise._checkpoints import variables
from stepwise._checkpoints.variables import COLLECTIONS, Surroundings
from stepwise._identity.held_parts import below
from stepwise._identity.identity import lenient
from stepwise._matching.subjects import Held, Identity, Looked, Subjects, Targets, roots_of
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import reports, warn
from stepwise._values import codec as _codec
from stepwise._values import data as _data
from stepwise._values.codec import JSON, PYTHON, Codec, Encoded, pickles
from stepwise._values.exception_data import NotDataError, dump_tagged, load_tagged
from stepwise._values.reducers import is_synchronizer
from stepwise._values.trees import ATOMS, attributes
from stepwise.errors import ArgumentMutatedWarning, NotRecordableError, UnreadableValueError

# -- what a call changed ---------------------------------------------------------------------------


_NO_CHANGE = Edit("attributes", ([], [], []), [], [], {})

_MOST = 10_000  # objects that are searched for a secret
_SHARED = "while other calls that hold it were in progress"


class CallChanges(NamedTuple):
    """The changes that a call made to the objects that it was given.

    Args:
        edits: the changes that can be recorded, each with its path.
        untold: paths, as text, of changes that are not recorded, each with the reason.
        state: names of parts of the subject that this call showed to be state.
        snapshot: the snapshot of the given objects before the call; it finds the paths of objects.
        unwatched: paths, as text, of objects that were not examined, each with the reason.
    """

    edits: list[tuple[Path, Edit]]
    untold: list[tuple[str, str]]
    state: tuple[str, ...]
    snapshot: Snapshot | None = None
    unwatched: tuple[tuple[str, str], ...] = ()


def changes_made(subjects: Subjects, identity: Identity, seen: Looked) -> CallChanges | None:
    """Return the changes that a call in flight made to its arguments so far, or ``None``.

    The parts of its subject that it changed are state of the run from now on.
    """
    held = identity.held
    assert held is not None
    with subjects.lock:
        found = (None if seen.unchanged else changes_of(held)) or CallChanges([], [], ())
        if seen.given and seen.unchanged:
            found = found._replace(edits=_returned(held, seen.given), snapshot=held.snapshot)
        state = subjects.note_changes(identity, found.state, stay=bool(found.edits))
    found = found._replace(state=state)
    return found if any((found.edits, found.untold, found.state, found.unwatched)) else None


def changes_of(held: Held) -> CallChanges | None:
    """Return the changes of a call so far, or ``None`` if there are none."""
    snapshot = held.snapshot
    if snapshot is None:
        roots = ", ".join(roots_of(held.holder, held.watched))
        seen = ((roots, held.unwatched),) if held.unwatched else ()
        return CallChanges([], [], (), None, seen) if seen else None
    try:
        found = snapshot.changed()
    except Exception as problem:  # a user's class raises, or a file was closed
        why = f"which cannot be looked at ({type(problem).__name__}: {problem})"
        return CallChanges([], [], (), None, ((", ".join(snapshot.roots), why),))
    if not found and not snapshot.unwatched:
        return None
    unseen = [obj for obj, _ in snapshot.unwatched.values()]
    paths = snapshot.paths([*(each.obj for each in found), *unseen])
    unwatched = [
        (path_text(paths[here]), why)
        for here, (_, why) in snapshot.unwatched.items()
        if here in paths
    ]
    untold: list[tuple[str, str]] = []
    edits: list[tuple[Path, Edit]] = []
    for each in found:
        if id(each.obj) in paths:
            edits += _edits(held, each, paths[id(each.obj)], untold)
    state = _parts(held, edits, untold)
    return CallChanges(edits, untold, state, snapshot, tuple(unwatched))


def _returned(held: Held, given: list[object]) -> list[tuple[Path, Edit]]:
    """Return an edit that changes nothing for each given object that a returned value holds.

    A record with edits names the given objects in its value, so that the answered call returns the
    very objects.  A copy would not show later changes.
    """
    assert held.snapshot is not None
    held.snapshot.changed()
    paths = held.snapshot.paths(given).values()
    found = [path for path in paths if not _is_hidden(held, path_text(path))]
    return [(path, _NO_CHANGE) for path in found if all(step[0] != "member" for step in path[1:])]


def _edits(
    held: Held, each: Changed, path: Path, untold: list[tuple[str, str]]
) -> Iterator[tuple[Path, Edit]]:
    """Yield the edit of a changed object, or add the reason to ``untold`` if it is not recorded."""
    text = path_text(path)
    edit = edit_of(each)
    why = _why_not(held, each, path, text, edit)
    if edit is not None and not why and each.facet in ("attributes", "items"):
        edit, hidden = _without_hidden(held, edit, text)
        untold += ((name, "which is never recorded") for name in hidden)
        if not edit.what and edit.what is not None:
            return
    if why:
        names = [text]
        if edit is not None and edit.facet == "attributes":
            names = [f"{text}.{name}" for name in edit.what[0]]
        untold += ((name, why) for name in names)
    elif edit is not None:
        yield path, edit


def _why_not(held: Held, each: Changed, path: Path, text: str, edit: Edit | None) -> str:
    """Return why a change is not recorded; an empty text if the change is recorded."""
    is_argument = path[0] in held.watched.arguments
    if held.watched.unrecorded and (is_argument or not held.watched.copies):
        return held.watched.unrecorded
    if held.held_by_others(each.obj):
        return _SHARED
    if _is_hidden(held, text) or any(_says_secret(step) for step in path[1:]):
        return "which is never recorded"
    if any(step[0] == "member" for step in path[1:]):
        return "which is an item of a set, and so has no place to be found at"
    if edit is None:
        return "in a way that cannot be put back in place"
    return ""


def _says_secret(step: tuple[Any, ...]) -> bool:
    from stepwise._values.credentials import is_secret_name  # imported on use

    return step[0] in ("attr", "key") and type(step[1]) is str and is_secret_name(step[1])


def _is_hidden(held: Held, text: str) -> bool:
    return any(
        text == name or text.startswith((f"{name}.", f"{name}[")) for name in held.watched.hidden
    )


def _without_hidden(held: Held, edit: Edit, text: str) -> tuple[Edit, list[str]]:
    """Return an edit without secret and hidden values, and the names of the removed values."""
    if type(edit.put) is not dict:
        new = [*edit.put[1]] if type(edit.put) is tuple else [*edit.put]
        if any(map(_holds_secret, new)):
            return edit._replace(what=()), [text]
        return edit, []
    names = edit.what[0]
    step = "attr" if edit.facet == "attributes" else "key"
    hidden = [
        name
        for name in names
        if _says_secret((step, name))
        or _is_hidden(held, f"{text}.{name}")
        or _holds_secret(edit.put.get(name))
    ]
    if not hidden:
        return edit, []
    shown = [f"{text}.{name}" if step == "attr" else f"{text}[{name!r}]" for name in hidden]
    left = [name for name in names if name not in hidden]
    if not left:
        return edit._replace(what=()), shown
    return edit.only(left), shown


def _holds_secret(value: Any) -> bool:
    """Return whether a new value holds a filled field with the name of a secret."""
    waiting, met = [value], set[int]()
    while waiting and len(met) < _MOST:
        each = waiting.pop()
        if type(each) in ATOMS or id(each) in met:
            continue
        met.add(id(each))
        for step, held in steps_of(each):
            if _says_secret(step) and held not in (None, "") and not isinstance(held, bool):
                return True
            waiting.append(held)
    return False


def _parts(
    held: Held, edits: list[tuple[Path, Edit]], untold: list[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the parts of the subject that were changed."""
    if held.holder is None or held.sight is None:
        return ()
    holder, parts = held.holder, held.sight.values
    found: dict[str, None] = {}
    for path, edit in edits:
        if path[0] == "self" or path[0].startswith("closure."):
            names = edit.what[0] if edit.facet == "attributes" else ()
            found.update(dict.fromkeys(holder.parts_of(path_text(path), parts, names)))
    for text, _ in untold:
        if text.startswith(("self", "closure.")):
            found.update(dict.fromkeys(holder.parts_of(text, parts)))
    replaced = [part for part in found if part in held.sight.leaves.nodes]
    if replaced:  # attributes of a replaced object may be parts, too, and differ now
        now, inside = (
            holder.values(),
            [p for p in parts if any(below(p, each) for each in replaced)],
        )
        for part in inside:
            text = held.sight.parts[part].text
            if part not in now or holder.digest(part, now[part])[0] != text:
                found[part] = None
    return tuple(found)


# -- changes as data ------------------------------------------------------------------------------


Pairs = list[tuple[Path, Edit]]
_Function = Callable[..., Any] | None


def written_edits(edits: Pairs, roots: Mapping[str, Any], function: _Function) -> list[Any]:
    """Return edits as plain data for ``json``.

    Args:
        roots: the arguments of the call, by name.
        function: the function with these parameters.

    Raises:
        NotDataError: a new value is not data.
    """
    return [
        [dump_tagged((path, tuple(edit._replace(put=None)))), _written(edit, kinds)]
        for path, edit, kinds in ((p, e, _Kinds(p, roots, function)) for p, e in edits)
    ]


def read_edits(written: list[Any], roots: Mapping[str, Any], function: _Function) -> Pairs:
    """Return the edits that :func:`written_edits` wrote.

    Raises:
        Exception: a value cannot be loaded here.
    """
    found: Pairs = []
    for outline, put in written:
        path, facts = load_tagged(outline)
        edit = Edit(*facts)
        kinds = _Kinds(path, roots, function)
        found.append((path, edit._replace(put=_read_put(edit, put, kinds))))
    return found


def _written(edit: Edit, kinds: _Kinds) -> Any:
    if type(edit.put) is list:
        return [value_as_data(each, kinds.of_item()) for each in edit.put]
    if type(edit.put) is dict:
        kind = kinds.of_attribute if edit.facet == "attributes" else kinds.of_key
        return [
            [dump_tagged(name), value_as_data(each, kind(name))] for name, each in edit.put.items()
        ]
    return dump_tagged(edit.put)


def _read_put(edit: Edit, put: Any, kinds: _Kinds) -> Any:
    if edit.facet in ("attributes", "items") and type(edit.what) is tuple and len(edit.what) > 2:
        if type(edit.what[0]) is int:
            return [value_of_data(each, kinds.of_item()) for each in put]
        kind = kinds.of_attribute if edit.facet == "attributes" else kinds.of_key
        pairs = [(load_tagged(name), each) for name, each in put]
        return {name: value_of_data(each, kind(name)) for name, each in pairs}
    return load_tagged(put)


def value_as_data(value: Any, kind: Any) -> dict[str, Any]:
    """Return a value as plain data for ``json``.

    Args:
        kind: the annotated type of the value.

    Raises:
        NotDataError: the value is not data.
    """
    try:
        return {"tagged": dump_tagged(value)}
    except NotDataError:
        if kind is Any:
            raise
    try:
        return {"typed": json.loads(_data.encode_data(value, kind, "a new value"))}
    except NotRecordableError as problem:
        raise NotDataError(str(problem)) from problem


def value_of_data(written: Mapping[str, Any], kind: Any) -> Any:
    """Return the value that :func:`value_as_data` wrote."""
    if "tagged" in written:
        return load_tagged(written["tagged"])
    return _data.decode_data(_data.json_bytes(written["typed"]), kind)


class _Kinds:
    """The annotated types of the parts of one changed object."""

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


# -- contents -------------------------------------------------------------------------------------


_OWN = frozenset({"__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"})


def with_contents(encoded: Encoded, around: Surroundings, what: str) -> Encoded:
    """Return an encoded outcome together with the current contents of the arguments.

    Args:
        what: a name of the run, for the message.

    Raises:
        NotRecordableError: an argument does not hold data.
    """
    types, written = around.annotated, {}
    for name, value in around.arguments.items():
        try:
            written[name] = _write(name, value, types.get(name, Any), around)
        except (NotDataError, NotRecordableError) as problem:
            kind = type(value).__qualname__
            raise NotRecordableError(
                f"{what} changed its argument {name!r}, and the new contents of that {kind} cannot "
                f"be recorded as JSON (codec='json'): {problem}. Return the change instead, or "
                "leave the argument as it was",
                type_name=kind,
            ) from problem
    whole = {"value": json.loads(bytes(encoded.data)), "arguments": written}
    return Encoded(_data.json_bytes(whole), encoded.form)


def take_apart(payload: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return the encoded outcome, and the argument for :func:`put_back`."""
    whole = json.loads(payload)
    return _data.json_bytes(whole["value"]), whole["arguments"]


def put_back(written: Mapping[str, Any], around: Surroundings) -> None:
    """Restore the recorded contents of the arguments.

    Raises:
        UnreadableValueError: the contents cannot be loaded here; the arguments are unchanged then.
    """
    types = around.annotated
    try:
        contents = {n: _read(each, types.get(n, Any), around, n) for n, each in written.items()}
    except (UnreadableValueError, MemoryError):
        raise
    except Exception as problem:
        raise UnreadableValueError(
            f"the contents that the call left in its arguments cannot be loaded: {problem}"
        ) from problem
    before = {
        name: variables.content_of(name, live, around) for name, live in around.arguments.items()
    }
    try:
        for name, held in contents.items():
            _put(name, held, around)
    except Exception as problem:
        for name, held in before.items():
            variables.refill(around.arguments[name], held)
        if isinstance(problem, MemoryError):
            raise
        raise UnreadableValueError(
            f"what the call left in its argument {name!r} cannot be put back: {problem}"
        ) from problem


def _write(name: str, value: Any, kind: Any, around: Surroundings) -> dict[str, Any]:
    try:
        return value_as_data(value, kind)
    except NotDataError as problem:  # its attributes may be data, one by one
        if type(value) in COLLECTIONS or name not in around.arguments:
            raise NotDataError(f"{name}: {problem}") from None
    return _write_state(name, value, around)


def _write_state(name: str, value: Any, around: Surroundings) -> dict[str, Any]:
    """Return the contents of an instance that is an argument, attribute by attribute.

    An attribute that is an argument itself is recorded under its own name.  A secret attribute, or
    one that cannot be recorded in any way (a client), keeps the value of the fresh object.
    """
    hints = _data.parameter_types(type(value))
    state, kept = {}, []
    for key, held in attributes(value).items():
        path = f"{name}.{key}"
        if path in around.arguments or path in around.secret:
            kept.append(key)
            continue
        try:
            state[key] = _write(path, held, hints.get(key, Any), around)
        except NotDataError:
            if key in _OWN or (pickles(held) and not is_synchronizer(held)):
                raise
            kept.append(key)
    _, _, items = variables.content_of(name, value, around)
    return {"state": state, "kept": kept, "items": dump_tagged(items)}


def _read(written: Mapping[str, Any], kind: Any, around: Surroundings, name: str) -> Any:
    """Return the recorded object: a value, or the content of an instance."""
    if "state" not in written:
        return value_of_data(written, kind)
    live = around.arguments.get(name)
    if live is None:
        raise UnreadableValueError(f"the call was given an object {name!r}, which is not there now")
    hints = _data.parameter_types(type(live))
    held = {
        key: _read(each, hints.get(key, Any), around, f"{name}.{key}")
        for key, each in written["state"].items()
    }
    return _InstanceState(held, tuple(written["kept"]), load_tagged(written["items"]))


class _InstanceState(NamedTuple):
    """The content of an instance, in the form that ``refill`` takes."""

    held: dict[str, Any]
    kept: tuple[str, ...]
    items: Any


def _put(name: str, held: Any, around: Surroundings) -> None:
    live = around.arguments.get(name)
    if live is None or (type(held) is not _InstanceState and type(held) is not type(live)):
        owner, _, attribute = name.rpartition(".")
        if owner not in around.arguments:
            raise TypeError("the call was given another object now")
        object.__setattr__(around.arguments[owner], attribute, held)
    elif type(held) is _InstanceState:
        variables.refill(live, held)
    else:
        variables.refill(live, variables.content_of(name, held, around))


# -- call changes ---------------------------------------------------------------------------------


class Recorded(NamedTuple):
    """The changes of a call that are recorded.

    Args:
        edits: the edits, each with the path of its object.
        state: names of parts of the subject that the call changed, so that they are state.
        snapshot: finds the paths of objects that the call was given.
        function: the function whose parameters are the roots of the paths.
        graph: the pickled value with the new contents, and the paths of the names in it; ``None``
            if some of this does not pickle.
    """

    edits: Pairs
    state: tuple[str, ...]
    snapshot: Snapshot | None
    function: Callable[..., Any] | None = None
    graph: _PickledChanges | None = None

    def kinds(self) -> dict[str, str]:
        """Return the paths of changed objects, each with the kind of change."""
        return {path_text(path): edit.facet for path, edit in self.edits}

    def encode(
        self, codec: Codec, value: Any, plainly: Callable[[], Encoded], *, failed: bool
    ) -> Encoded:
        """Encode the outcome of a call together with its changes.

        Args:
            plainly: encodes the outcome alone.
            failed: True if the outcome is an exception.

        Raises:
            NotRecordableError: the outcome alone cannot be recorded.
        """
        if codec.data_only:
            encoded, roots = plainly(), self.snapshot.roots if self.snapshot is not None else {}
            data = {
                "value": json.loads(bytes(encoded.data)),
                "did": written_edits(self.edits, roots, self.function),
            }
            return Encoded(_data.json_bytes(data), encoded.form)
        try:
            graph = self.graph or _graph(self.edits, self.snapshot, None if failed else value)
        except MemoryError:
            raise
        except Exception:
            plainly()  # raises an error that names the value, if the value cannot be recorded
            raise
        # The outcome is also stored alone, for a call that is given objects other than the named
        # ones.
        plain = plainly() if failed or graph.paths else None
        beside = None if plain is None else (bytes(plain.data), plain.form)
        return Encoded(_codec.encode((*graph, beside)).data, PYTHON)


class _PickledChanges(NamedTuple):
    """The outline of some edits, the paths of the named objects, and the pickled new contents."""

    outline: bytes
    paths: dict[str, Path]
    data: bytes


def _graph(edits: Pairs, snapshot: Snapshot | None, value: Any) -> _PickledChanges:
    """Pickle edits together with the value of their call.

    Raises:
        Exception: some object does not pickle.
    """
    outline = [(path, tuple(edit._replace(put=None))) for path, edit in edits]
    names = _Names(snapshot)
    data = names.dump((value, [edit.put for _, edit in edits]))
    return _PickledChanges(bytes(_codec.encode(outline).data), names.paths, data)


class _Names:
    """Names for the objects that a call was given, assigned as they occur in a pickle."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._met: dict[int, Any] = {}
        self._numbers: dict[int, str] = {}
        self._nowhere: set[int] = set()
        self.paths: dict[str, Path] = {}

    def refer(self, obj: Any) -> str | None:
        """Return the name of an object that the call was given, or ``None`` for other objects."""
        snapshot = self._snapshot
        if snapshot is None or type(obj) in ATOMS or not snapshot.knows(obj):
            return None
        if id(obj) in self._nowhere or layout_of(type(obj)) is LEAF:
            return None
        self._met[id(obj)] = obj
        return self._numbers.setdefault(id(obj), str(len(self._numbers)))

    def dump(self, graph: Any) -> bytes:
        """Pickle a graph in which every name has a path."""
        while True:
            self._met.clear()
            self._numbers.clear()
            data = variables.dump_graph(graph, self.refer)
            if not self._met or self._snapshot is None:
                return bytes(data)
            found = self._snapshot.paths(self._met.values())
            lost = {
                here
                for here in self._met
                if here not in found or any(step[0] == "member" for step in found[here][1:])
            }
            if not lost:
                self.paths = {self._numbers[here]: path for here, path in found.items()}
                return bytes(data)
            self._nowhere |= lost  # these objects are recorded by value


# -- what can be recorded ------------------------------------------------------------------------


def recordable(
    codec: Codec, changes: CallChanges, function: Callable[..., Any] | None, value: Any = None
) -> tuple[Recorded, list[tuple[str, str]]]:
    """Return the recordable changes of a call, and the paths of others with the reason.

    A lost ``cached_property`` value is not reported: it is computed again when it is read.

    Args:
        value: the returned value; usually all is pickled together, and once.
    """
    edits, untold, snapshot = changes.edits, list(changes.untold), changes.snapshot
    graph = None if codec.data_only or not edits else _whole(codec, edits, snapshot, value)
    if edits and graph is None and not _can_be(codec, edits, snapshot, function):
        kept: Pairs = []
        for path, edit in edits:
            for each in _apart(edit):
                if _can_be(codec, [(path, each)], snapshot, function):
                    kept.append((path, each))
                elif not _is_cached(path, each, snapshot):
                    untold += (
                        (name, "so that it cannot be recorded") for name in _names(path, each)
                    )
        edits = kept
    return Recorded(edits, changes.state, snapshot, function, graph), untold


def _whole(
    codec: Codec, edits: Pairs, snapshot: Snapshot | None, value: Any
) -> _PickledChanges | None:
    """Return pickled edits and value; ``None`` if a part does not pickle, or holds a secret."""
    try:
        graph = _graph(edits, snapshot, value)
    except MemoryError:
        raise
    except Exception:
        return None
    return None if codec.secrets.found_in(graph.data) else graph


def _apart(edit: Edit) -> Iterable[Edit]:
    if edit.facet == "attributes" and len(edit.what[0]) > 1:
        return [edit.only([name]) for name in edit.what[0]]
    return [edit]


def _names(path: Path, edit: Edit) -> list[str]:
    text = path_text(path)
    return [f"{text}.{n}" for n in edit.what[0]] if edit.facet == "attributes" else [text]


def _is_cached(path: Path, edit: Edit, snapshot: Snapshot | None) -> bool:
    if edit.facet != "attributes" or snapshot is None:
        return False
    try:
        obj = follow(path, snapshot.roots)
    except LookupError:
        return False
    return all(is_cached_property(obj, name) for name in edit.what[0])


def _can_be(
    codec: Codec,
    edits: Pairs,
    snapshot: Snapshot | None,
    function: Callable[..., Any] | None,
) -> bool:
    if not codec.data_only:
        return _whole(codec, edits, snapshot, None) is not None
    try:
        roots = snapshot.roots if snapshot is not None else {}
        return not codec.secrets.found_in(_data.json_bytes(written_edits(edits, roots, function)))
    except MemoryError:
        raise
    except Exception:
        return False


@reports
def tell_untold(
    name: str,
    untold: Iterable[tuple[str, str]],
    unwatched: Iterable[tuple[str, str]],
    is_first: Callable[[str], bool],
) -> None:
    """Warn of changes that are not recorded, once for each path, at the first run.

    Args:
        untold: paths of unrecorded changes, each with the reason.
        unwatched: paths of objects that were not examined, each with the reason.
    """
    for path, why in unwatched:
        if is_first(f"{name} may change {path} {why}"):
            warn(
                f"{name!r} is given {path}, {why}: whether it changes that is not looked at. "
                "Should it do so, return the change, and apply it in the workflow: else it will "
                "be missing after a crash, when the call is answered from the journal",
                ArgumentMutatedWarning,
            )
    by_reason: dict[str, list[str]] = {}
    for path, why in untold:
        if is_first(f"{name} changed {path} {why}"):
            by_reason.setdefault(why, []).append(path)
    for why, paths in by_reason.items():
        way = (
            "Let calls that hold one object follow each other, or return"
            if why == _SHARED
            else "Return"
        )
        warn(
            f"{name!r} changed {', '.join(paths)}, {why}. The change will be missing after a "
            f"crash, when the call is answered from the journal. {way} the change, and apply it "
            "in the workflow",
            ArgumentMutatedWarning,
        )


# -- back ----------------------------------------------------------------------------------------


def _undecided(
    edits: list[tuple[Path, Edit]], given: Targets
) -> tuple[list[tuple[Any, Edit]], list[str]]:
    """Return the edits to repeat, each with its object, and the paths of lost changes.

    An edit is repeated if the object is as it was before the call.  It is left out if the object is
    as it was after the call, or if an attempt in this process left its changes in the object.
    """
    again, lost = [], []
    for path, edit in edits:
        try:
            obj = follow(path, given.roots)
            state = edit.state_of(obj)
        except Exception:  # an object of another class may be there now
            obj, state = None, NEITHER
        if state == BEFORE:
            again.append((obj, edit))
        elif state == NEITHER and not given.left(path[0]):
            lost.append(path_text(path))
    return again, lost


class PutBack(NamedTuple):
    """Recorded changes that are missing in the objects that an answered call is given now.

    Args:
        edits: the edits to repeat, each with its object.
        lost: paths of objects that are neither as before the call nor as after it.
    """

    edits: list[tuple[Any, Edit]]
    lost: list[str]

    def __call__(self, name: str, is_first: Callable[[str], bool]) -> None:
        """Repeat the changes, and warn of changes that cannot be repeated.

        Args:
            name: the name of the call.
            is_first: returns whether a text is reported for the first time.
        """
        lost = list(self.lost)
        for obj, edit in self.edits:
            try:
                edit.apply(obj)
            except MemoryError:
                raise
            except Exception as problem:  # a key's hash, an array of another shape
                lost.append(f"a {type(obj).__qualname__} ({problem})")
        if lost:
            _tell_lost(name, [each for each in lost if is_first(f"{name} lost {each}")])


@reports
def _tell_lost(name: str, lost: list[str]) -> None:
    if lost:
        warn(
            f"{name!r} is answered from the journal, and what it changed in {', '.join(lost)} is "
            "left as it is: that is neither as it was before the call nor as it was after it. The "
            "recorded result counts. Return the change from the step, and apply it in the workflow",
            ArgumentMutatedWarning,
        )


class LoadedChanges(NamedTuple):
    """The value of a call, and its changes.

    Args:
        plain: the encoded outcome, bytes and form, if it still has to be decoded.
    """

    value: Any
    plain: tuple[bytes, str | None] | None
    put_back: PutBack | None


def load_changes(
    payload: bytes,
    form: str | None,
    given: Targets | None,
    viewer: type[variables.FrameUnpickler] | None,
) -> LoadedChanges:
    """Load the payload that :meth:`Recorded.encode` made.

    Args:
        given: the current arguments of the call; ``None`` for a viewer.

    Raises:
        UnreadableValueError: the payload cannot be loaded here.
    """
    if form == JSON:
        whole = json.loads(payload)
        plain = _data.json_bytes(whole["value"]), form
        if given is None:
            return LoadedChanges(None, plain, None)
        edits = read_edits(whole["did"], given.roots, given.function)
        return LoadedChanges(None, plain, PutBack(*_undecided(edits, given)))
    unpickler = viewer or variables.FrameUnpickler
    loaded: LoadedChanges = _codec.decode_with(lambda: _load(payload, given, unpickler), form)
    return loaded


def _load(
    payload: bytes, given: Targets | None, unpickler: type[variables.FrameUnpickler]
) -> LoadedChanges:
    outline, paths, data, plain = variables.load_graph(payload, {}, unpickler)
    if given is None:
        if plain is not None:
            return LoadedChanges(None, plain, None)
        shown = {name: f"<{path_text(path)}>" for name, path in paths.items()}
        return LoadedChanges(variables.load_graph(data, shown, unpickler)[0], None, None)
    edits = [(path, Edit(*edit)) for path, edit in variables.load_graph(outline, {}, unpickler)]
    again, lost = _undecided(edits, given)
    named = _found(paths, given) if again or not paths else None
    if named is None and plain is not None:  # nothing to repeat, or the objects are missing
        again_lost = {id(edit) for _, edit in again}
        lost += [path_text(path) for path, edit in edits if id(edit) in again_lost]
        return LoadedChanges(None, plain, PutBack([], lost))
    value, put = variables.load_graph(data, named or {}, unpickler)
    is_unchanged = all(edit.what == _NO_CHANGE.what for _, edit in edits)
    if is_unchanged and plain is not None and not _is_alike(value, *plain):
        return LoadedChanges(None, plain, PutBack([], lost))
    whole = {id(edit): edit._replace(put=new) for (_, edit), new in zip(edits, put, strict=True)}
    ready = PutBack([(obj, whole[id(edit)]) for obj, edit in again], lost)
    # A failure stands beside its changes, and is decoded separately.
    return LoadedChanges(value, plain if value is None else None, ready)


def _is_alike(value: Any, recorded: bytes, form: str | None) -> bool:
    """Return whether given objects, which may be others now, hold what the call returned."""
    try:
        return lenient(value)[0] == lenient(_codec.decode(recorded, form))[0]
    except Exception:  # a generator, or a class of the user that raises
        return False


def _found(paths: Mapping[str, Path], given: Targets) -> dict[str, Any] | None:
    try:
        return {name: follow(path, given.roots) for name, path in paths.items()}
    except Exception:  # the objects have changed
        return None
