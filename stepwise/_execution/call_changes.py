"""Changes of a call: on record together with its value, and back again.

The value and the new contents are one pickle, so that what is shared stays shared.  What the call
was given is in it by name alone: the paths of these names, and what was changed where, stand
beside it (the *outline*), so that it can be decided before anything is loaded what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepwise._changes.edits import Edit, is_cached_property
from stepwise._changes.layouts import ATOMS, LEAF, layout_of
from stepwise._changes.snapshots import Path, Snapshot, follow, path_text
from stepwise._checkpoints.graphs import dump_graph, load_graph
from stepwise._checkpoints.variables import FrameUnpickler
from stepwise._matching.attributed import SHARED, CallChanges, undecided
from stepwise._matching.held import Targets
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import reports, warn
from stepwise._values import codec as _codec
from stepwise._values import data as _data
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.pickling import PYTHON
from stepwise.errors import ArgumentMutatedWarning

__all__ = ["LoadedChanges", "PutBack", "Recorded", "load_changes", "recordable", "tell_untold"]

_Pairs = list[tuple[Path, Edit]]


class Recorded(NamedTuple):
    """The changes of a call that go on record.

    Args:
        edits: each with the path of its object.
        state: names of parts of the subject that turned out to be state by the call.
        snapshot: finds the paths of what the call was given.
        function: whose parameters that are.
    """

    edits: _Pairs
    state: tuple[str, ...]
    snapshot: Snapshot | None
    function: Callable[..., Any] | None = None

    def kinds(self) -> dict[str, str]:
        """Return the paths of what was changed, each with what was changed there."""
        return {path_text(path): edit.facet for path, edit in self.edits}

    def encode(
        self, codec: Codec, value: Any, plainly: Callable[[], Encoded], *, failed: bool
    ) -> Encoded:
        """Encode the outcome of a call together with what it changed.

        Args:
            plainly: encodes the outcome alone.
            failed: the outcome is an exception.

        Raises:
            NotRecordableError: the outcome alone cannot be recorded.
        """
        if codec.data_only:
            from stepwise._execution.changes_as_data import written_edits  # on use: few record data

            encoded, roots = plainly(), self.snapshot.roots if self.snapshot is not None else {}
            data = {
                "value": json.loads(bytes(encoded.data)),
                "did": written_edits(self.edits, roots, self.function),
            }
            return Encoded(_data.json_bytes(data), encoded.form)
        names = _Names(self.snapshot)
        try:
            graph = names.dump((None if failed else value, [edit.put for _, edit in self.edits]))
        except MemoryError:
            raise
        except Exception:
            plainly()  # it says what cannot be recorded, if that is the value
            raise
        # Also alone, for a call that is given other objects than those that have names.
        plain = plainly() if failed or names.paths else None
        outline = [(path, edit._replace(put=None)) for path, edit in self.edits]
        beside = None if plain is None else (bytes(plain.data), plain.form)
        whole = (_outline(outline), names.paths, graph, beside)
        return Encoded(dump_graph(whole, lambda _: None), PYTHON)


def _as_tuple(path: Path, edit: Edit) -> tuple[Any, ...]:
    return path, tuple(edit)


def _outline(edits: _Pairs) -> bytes:
    return bytes(dump_graph([_as_tuple(*each) for each in edits], lambda _: None))


class _Names:
    """Gives names to the objects that a call was given, as they are met in a pickle."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._met: dict[int, Any] = {}
        self._numbers: dict[int, str] = {}
        self._nowhere: set[int] = set()
        self.paths: dict[str, Path] = {}

    def refer(self, obj: Any) -> str | None:
        """Return the name of an object that the call was given; ``None`` for any other."""
        snapshot = self._snapshot
        if snapshot is None or type(obj) in ATOMS or not snapshot.knows(obj):
            return None
        if id(obj) in self._nowhere or layout_of(type(obj)) is LEAF:
            return None
        self._met[id(obj)] = obj
        return self._numbers.setdefault(id(obj), str(len(self._numbers)))

    def dump(self, graph: Any) -> bytes:
        """Pickle a graph; all names in it have paths then."""
        while True:
            self._met.clear()
            self._numbers.clear()
            data = dump_graph(graph, self.refer)
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
            self._nowhere |= lost  # it is recorded by value


# -- what can be recorded ------------------------------------------------------------------------


def recordable(
    codec: Codec, changes: CallChanges, function: Callable[..., Any] | None
) -> tuple[Recorded, list[tuple[str, str]]]:
    """Return the changes of a call that can be recorded, and the paths of others with the reason.

    What a ``cached_property`` holds is not missed: it is computed again when it is read.
    """
    edits, untold = changes.edits, list(changes.untold)
    if edits and not _can_be(codec, edits, changes.snapshot, function):
        kept: _Pairs = []
        for path, edit in edits:
            for each in _apart(edit):
                if _can_be(codec, [(path, each)], changes.snapshot, function):
                    kept.append((path, each))
                elif not _is_cached(path, each, changes.snapshot):
                    untold += (
                        (name, "so that it cannot be recorded") for name in _names(path, each)
                    )
        edits = kept
    return Recorded(edits, changes.state, changes.snapshot, function), untold


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
    edits: _Pairs,
    snapshot: Snapshot | None,
    function: Callable[..., Any] | None,
) -> bool:
    try:
        if codec.data_only:
            from stepwise._execution.changes_as_data import written_edits  # on use: few record data

            roots = snapshot.roots if snapshot is not None else {}
            return not codec.secrets.found_in(
                _data.json_bytes(written_edits(edits, roots, function))
            )
        _outline([(path, edit._replace(put=None)) for path, edit in edits])
        data = _Names(snapshot).dump([edit.put for _, edit in edits])
        return not codec.secrets.found_in(data)
    except MemoryError:
        raise
    except Exception:
        return False
    return True


@reports
def tell_untold(
    name: str,
    untold: Iterable[tuple[str, str]],
    unwatched: Iterable[tuple[str, str]],
    is_first: Callable[[str], bool],
) -> None:
    """Warn of what is not recorded, at the first run; once for each path.

    Args:
        untold: paths of changes, each with the reason.
        unwatched: paths of what was not looked at, each with the reason.
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
            if why == SHARED
            else "Return"
        )
        warn(
            f"{name!r} changed {', '.join(paths)}, {why}. The change will be missing after a "
            f"crash, when the call is answered from the journal. {way} the change, and apply it "
            "in the workflow",
            ArgumentMutatedWarning,
        )


# -- back ----------------------------------------------------------------------------------------


class PutBack(NamedTuple):
    """Recorded changes that are missing in the objects that an answered call is given now.

    Args:
        edits: those to repeat, each with its object.
        lost: paths of objects that are neither as before the call nor as after it.
    """

    edits: list[tuple[Any, Edit]]
    lost: list[str]

    def __call__(self, name: str, is_first: Callable[[str], bool]) -> None:
        """Repeat the changes; warn of those that cannot be.

        Args:
            name: of the call.
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
        plain: the encoded outcome, if that is to be decoded: bytes and form.
    """

    value: Any
    plain: tuple[bytes, str | None] | None
    put_back: PutBack | None


def load_changes(
    payload: bytes, form: str | None, given: Targets | None, viewer: type[FrameUnpickler] | None
) -> LoadedChanges:
    """Load what :meth:`Recorded.encode` wrote.

    Args:
        given: what the call is given now; ``None`` for somebody who only looks.

    Raises:
        UnreadableValueError: it cannot be loaded here.
    """
    if form == JSON:
        from stepwise._execution.changes_as_data import read_edits  # on use: few record data

        whole = json.loads(payload)
        plain = _data.json_bytes(whole["value"]), form
        if given is None:
            return LoadedChanges(None, plain, None)
        edits = read_edits(whole["did"], given.roots, given.function)
        return LoadedChanges(None, plain, PutBack(*undecided(edits, given)))
    unpickler = viewer or FrameUnpickler
    loaded: LoadedChanges = _codec.decode_with(lambda: _load(payload, given, unpickler), form)
    return loaded


def _load(payload: bytes, given: Targets | None, unpickler: type[FrameUnpickler]) -> LoadedChanges:
    outline, paths, data, plain = load_graph(payload, {}, unpickler)
    if given is None:
        if plain is not None:
            return LoadedChanges(None, plain, None)
        shown = {name: f"<{path_text(path)}>" for name, path in paths.items()}
        return LoadedChanges(load_graph(data, shown, unpickler)[0], None, None)
    edits = [(path, Edit(*edit)) for path, edit in load_graph(outline, {}, unpickler)]
    again, lost = undecided(edits, given)
    named = _found(paths, given) if again or not paths else None
    if named is None and plain is not None:  # nothing to repeat, or the objects are not there
        again_lost = {id(edit) for _, edit in again}
        lost += [path_text(path) for path, edit in edits if id(edit) in again_lost]
        return LoadedChanges(None, plain, PutBack([], lost))
    value, put = load_graph(data, named or {}, unpickler)
    whole = {id(edit): edit._replace(put=new) for (_, edit), new in zip(edits, put, strict=True)}
    ready = PutBack([(obj, whole[id(edit)]) for obj, edit in again], lost)
    # A failure stands beside its changes: it is decoded in a way of its own.
    return LoadedChanges(value, plain if value is None else None, ready)


def _found(paths: Mapping[str, Path], given: Targets) -> dict[str, Any] | None:
    try:
        return {name: follow(path, given.roots) for name, path in paths.items()}
    except Exception:  # another object is there now
        return None
