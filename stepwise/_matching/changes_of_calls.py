"""The changes that belong to one call: the changes to record, and the changes to repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwise._changes import (
    BEFORE,
    NEITHER,
    Changed,
    Edit,
    Path,
    Snapshot,
    edit_of,
    follow,
    path_text,
    steps_of,
)
from stepwise._identity.held_parts import below
from stepwise._matching.in_flight import Held, Targets, roots_of
from stepwise._runtime.facts import NamedTuple
from stepwise._values.trees import ATOMS

NO_CHANGE = Edit("attributes", ([], [], []), [], [], {})

_MOST = 10_000  # objects that are searched for a secret
SHARED = "while other calls that hold it were in progress"


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


def returned(held: Held, given: list[object]) -> list[tuple[Path, Edit]]:
    """Return an edit that changes nothing for each given object that a returned value holds.

    A record with edits names the given objects in its value, so that the answered call returns the
    very objects.  A copy would not show later changes.
    """
    assert held.snapshot is not None
    held.snapshot.changed()
    paths = held.snapshot.paths(given).values()
    found = [path for path in paths if not _is_hidden(held, path_text(path))]
    return [(path, NO_CHANGE) for path in found if all(step[0] != "member" for step in path[1:])]


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
        return SHARED
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


# -- putting back --------------------------------------------------------------------------------


def undecided(
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
