"""The changes a call made to the objects it was given, so that a replay repeats them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import UnpicklableError, dump_few, dump_values, load_values
from stepwise._identity.deltas import WHOLE, Delta, as_data
from stepwise._identity.parts import shown_part
from stepwise._journal.records import Call
from stepwise._matching.subjects import Effects, Identity, Subjects
from stepwise._runtime import settings
from stepwise._runtime.limits import ran_out
from stepwise._runtime.messages import reports, warn
from stepwise._values import codec as _codec
from stepwise._values import digest
from stepwise._values.buffers import Data
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.pickling import PYTHON
from stepwise._values.trees import few
from stepwise.errors import ArgumentMutatedWarning, DigestError, NotRecordableError

__all__ = [
    "Did",
    "Watch",
    "Watches",
    "changed_by",
    "did_to_subject",
    "encode_changed",
    "record_arguments",
    "replay_changed",
    "surroundings",
]

_NOTHING: Mapping[str, Any] = {}
_SIZED = (list, dict, set, bytearray)


class HasSubjects(Protocol):
    """A run in progress."""

    subjects: Subjects
    codec: Codec

    def is_first(self, about: str) -> bool:
        """Return whether this is the first report of its kind in this run."""


def surroundings(
    bound: Mapping[str, Any],
    instance: object = None,
    function: Callable[..., Any] | None = None,
    secret: Mapping[str, Any] = _NOTHING,
) -> Surroundings:
    """The mutable arguments of a call of ``function`` that has these secrets."""
    arguments = Surroundings.mutable(bound, instance)
    return Surroundings(arguments=arguments, function=function, secret=secret)


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


class Watches(Protocol):
    """Notices that a call changes its arguments."""

    def changed(self) -> list[str]:
        """The names of those that are not as they were."""

    @property
    def around(self) -> Surroundings:
        """The arguments that may be changed."""


def changed_by(watch: Watches, codec: Codec) -> Surroundings | None:
    """Return the arguments, if the call changed any; where data is recorded, those alone."""
    changed = watch.changed()
    if not changed:
        return None
    around = watch.around
    if not codec.data_only:  # the value may share an object with any of them
        return around
    held = {name: value for name, value in around.arguments.items() if name in changed}
    return replace(around, arguments=held)


class Watch:
    """Notices changed arguments cheaply: by lengths, or, in strict mode, by digests."""

    def __init__(
        self, bound: Mapping[str, Any], function: Callable[..., Any] | None = None
    ) -> None:
        self._bound = bound
        self._function = function
        self._look = _digests if settings.strict() else _lengths
        self._before = self._look(bound)

    @property
    def around(self) -> Surroundings:
        """The arguments that may be changed."""
        return surroundings(self._bound, function=self._function)

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
            digests[name] = digest.digest(value)
        except DigestError:
            continue  # it is not part of the call's identity either
    return digests


def encode_changed(
    codec: Codec,
    told: Any,
    encoded: Callable[[], Encoded],
    around: Surroundings,
    what: str,
    deltas: Mapping[str, Delta],
) -> Encoded:
    """Encode the outcome of a call together with the current contents of its arguments.

    Args:
        told: what a pickle holds of it: the value, or the pieces of an encoded exception.
        encoded: the same as data.
        what: the call, for the message.
        deltas: what was done to attributes and captured variables.

    Raises:
        NotRecordableError: that cannot be recorded.
    """
    if codec.data_only:
        from stepwise._execution import (
            contents as _contents,  # on use: most programs record pickles
        )

        return _contents.with_contents(encoded(), around, what, deltas)
    whole = {"value": told, "did": deltas} if deltas else {"value": told}
    few = dump_few(whole, around)
    if few is not None:
        return Encoded(few, PYTHON)
    try:
        return Encoded(dump_values(whole, around), PYTHON)
    except MemoryError as problem:
        doing = f"what {what} returned and changed was recorded"
        raise ran_out(doing, problem) from None
    except UnpicklableError as error:
        name, (value, reason) = next(iter(error.culprits.items()))
        kind = type(value).__qualname__
        raise NotRecordableError(
            f"{what} changed its arguments, which cannot be recorded: {name!r} is or holds "
            f"a {kind} ({reason}). Return the change instead, or leave the argument as it was",
            path="",
            type_name=kind,
        ) from error


def replay_changed(
    payload: bytes, form: str | None, around: Surroundings, decode: Callable[[bytes], Any]
) -> tuple[Any, Mapping[str, Delta]]:
    """Return what :func:`encode_changed` was told, and the deltas; arguments get their contents.

    Args:
        decode: gives the value, or the pieces of an encoded exception, for what was data.

    Raises:
        UnreadableValueError: it cannot be loaded here; nothing was changed then.
    """
    if form == JSON:
        from stepwise._execution import contents as _contents  # on use

        inner, contents, deltas = _contents.take_apart(payload)
        value = decode(inner)
        _contents.put_back(contents, around)
        return value, deltas
    loaded = _codec.decode_with(lambda: load_values(payload, around), form)
    return loaded["value"], loaded.get("did", {})


# -- instances and captured variables ------------------------------------------------------------


class Did(NamedTuple):
    """The changes a call made to its subject, as far as they can be recorded.

    Args:
        deltas: by the name of the attribute (``self.history``) or variable (``closure.seen``).
        around: the objects that changed inside, which are recorded as a whole.
        state: names that turned out to be state by it.
    """

    deltas: Mapping[str, Delta]
    around: Surroundings
    state: tuple[str, ...]


def did_to_subject(active: HasSubjects, call: Call, identity: Identity) -> Did | None:
    """Return the changes of a call in flight to its instance or captured variables, or ``None``.

    What cannot be put back when the call is answered is warned about now, not on resume.
    """
    effects = active.subjects.effects(identity)
    if effects is None:
        return None
    if call.child:  # the child's own journal records its changes
        return Did({}, Surroundings(), effects.state)
    if effects.unclear:
        _warn_lost(active, call, effects.unclear, "while other calls that hold it were in progress")
    if active.codec.data_only:
        around = Surroundings()
        deltas, lost = _as_data(effects)
    else:
        around = surroundings(effects.whole)
        deltas, lost = _recordable(effects.deltas, around)
    if lost:
        _warn_lost(active, call, lost, "so that it cannot be recorded")
    return Did(deltas, around, effects.state)


def _as_data(effects: Effects) -> tuple[dict[str, Delta], list[str]]:
    """The changes that can be recorded as data, and the names of the others."""
    from stepwise._execution import contents as _contents  # on use

    deltas = {n: as_data(each, effects.whole.get(n)) for n, each in effects.deltas.items()}
    lost = [n for n, each in deltas.items() if each == WHOLE or not _contents.is_data(each)]
    return {name: each for name, each in deltas.items() if name not in lost}, lost


def _recordable(
    deltas: Mapping[str, Delta], around: Surroundings
) -> tuple[dict[str, Delta], list[str]]:
    """The changes that can be recorded, and the names of the others."""
    lost = [n for n, each in deltas.items() if each == WHOLE and n not in around.arguments]
    kept = {name: each for name, each in deltas.items() if name not in lost}
    if not around.arguments and few(kept.values()):
        return kept, lost
    try:
        dump_values(kept, around)
    except UnpicklableError as error:
        culprits = set(error.culprits) & set(kept)
        lost += sorted(culprits or kept)
        around.arguments = {n: v for n, v in around.arguments.items() if n not in lost}
        kept = {name: each for name, each in kept.items() if name not in lost}
    return kept, lost


@reports
def _warn_lost(active: HasSubjects, call: Call, parts: Iterable[str], why: str) -> None:
    what = f"{call.name!r} changed {', '.join(map(shown_part, parts))} {why}"
    if active.is_first(what):
        warn(
            f"{what}. The change will be missing after a crash, when the call is answered from "
            "the journal. Return the change, and apply it in the workflow",
            ArgumentMutatedWarning,
        )
