"""The outcome of a call or a run: its record, its way back, and what the call changed.

Each function that makes a record returns it with its payload; the caller writes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import (
    FrameUnpickler,
    UnpicklableError,
    dump_few,
    dump_values,
    load_values,
)
from stepwise._identity.deltas import WHOLE, Delta, as_data
from stepwise._identity.parts import shown_part
from stepwise._journal.counters import Progress
from stepwise._journal.records import Call, Ended, Entry, Outcome, Settled, StepStatus
from stepwise._matching.subjects import Identity, SubjectChanges, Subjects
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.limits import ran_out
from stepwise._runtime.messages import Once, notice, reports, warn
from stepwise._values import codec as _codec
from stepwise._values import digest
from stepwise._values.buffers import Data
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.pickling import PYTHON
from stepwise._values.secrets import Secrets
from stepwise._values.trees import few
from stepwise.errors import ArgumentMutatedWarning, DigestError, NotRecordableError

__all__ = [
    "ArgumentWatch",
    "Did",
    "LoadedOutcome",
    "ShownValue",
    "Watches",
    "changed_by",
    "did_to_subject",
    "encode_changed",
    "ended",
    "load_outcome",
    "outcome",
    "record_arguments",
    "settled",
    "surroundings",
]

_NOTHING: Mapping[str, Any] = {}
_SIZED = (list, dict, set, bytearray)


class ShownValue(NamedTuple):
    """The text that a listing shows for a value, and the usage of a model request."""

    preview: str
    usage: Mapping[str, Any]


# -- records -------------------------------------------------------------------------------------


def outcome(
    codec: Codec,
    call: Call,
    status: StepStatus,
    value: Any,
    *,
    inner: Iterable[int],
    attempts: int,
    clean: bool = False,
    around: Surroundings | None = None,
    did: Did | None = None,
    kind: Any = Any,
    shown: ShownValue | None = None,
) -> tuple[Outcome, Data]:
    """The outcome of a call.

    Args:
        value: what it returned or raised.
        around: the arguments, if the call changed them.
        did: what it did to its subject.
        kind: the type that its value is annotated with.
        shown: what a listing shows instead of the value.

    Raises:
        NotRecordableError: its value cannot be recorded.
    """
    failed = status != "completed"

    def encoded_plainly() -> Encoded:
        if failed:
            return codec.encode_error(value, "" if call.child else _then(call))
        return codec.encode(value, f"the value returned by {call.name!r}", kind)

    deltas = did.deltas if did is not None else _NOTHING
    around = _with_subject(around, did)
    if around is None and not deltas:
        encoded = encoded_plainly()
    else:
        held = (*encoded_plainly(),) if failed and not codec.data_only else value
        given = around or Surroundings()
        encoded = encode_changed(codec, held, encoded_plainly, given, f"{call.name!r}", deltas)
    if not failed and (name := codec.secrets.found_in(encoded.data)):
        _tell_of_secret(call, name)
    preview, usage = shown or (codec.secrets.preview(value), _NOTHING)
    record = Outcome(  # by position, as a Call
        call,
        status,
        attempts,
        clean,
        tuple(inner),
        codec.secrets.mask(preview),
        codec.traceback(value) if failed else "",
        {**dict.fromkeys(deltas, "delta"), **(around.kinds() if around is not None else {})},
        encoded.form,
        time.time(),
        did.state if did is not None else (),
        "",
        usage,
    )
    return record, encoded.data


def _with_subject(around: Surroundings | None, did: Did | None) -> Surroundings | None:
    """Return the arguments that a call changed, with what it changed inside its subject."""
    if did is None or not did.around.arguments:
        return around
    around = around or Surroundings()
    return around.holding({**around.arguments, **did.around.arguments})


_is_first = Once()


@reports
def _tell_of_secret(call: Call, name: str) -> None:
    if _is_first((call.name, name)):
        notice(
            f"the result of {call.name!r}, or a changed argument, holds the secret {name!r} "
            "and is recorded with it; return a value without the secret"
        )


def _then(call: Call) -> str:
    """Describe the consequence of an exception that cannot be recorded."""
    if call.effect:
        return f"Should the run stop, {call.name!r} is in doubt when it resumes"
    return f"Should the run stop, {call.name!r} runs again when it resumes"


def settled(
    codec: Codec,
    call: Call,
    *,
    landed: bool,
    value: Any = None,
    kind: Any = Any,
    is_open: bool = False,
) -> tuple[Settled, Data]:
    """Build the record of a person's answer for a call in doubt: that it happened, and its value.

    Args:
        is_open: no outcome of the call is recorded, which would say what the call spent.

    Raises:
        NotRecordableError: its value cannot be recorded.
    """
    if not landed:
        return Settled(call.number, landed=False, at=time.time()), b""
    encoded = codec.encode(value, f"the landed value of {call.name!r}", kind)
    record = Settled(
        call.number,
        landed=True,
        preview=codec.secrets.preview(value),
        form=encoded.form,
        at=time.time(),
        spent={"steps": int(not call.child), "at_least": 1} if is_open else _NOTHING,
    )
    return record, encoded.data


def ended(
    status: Literal["completed", "failed", "cancelled"],
    value: Any,
    encoded: Encoded | None,
    progress: Progress,
    secrets: Secrets,
    *,
    changed: dict[str, str],
    retry: tuple[int, ...],
    spent: tuple[int, ...],
    rest: Mapping[str, float],
    again: str = "",
) -> tuple[Ended, Data]:
    """Return how an attempt of the run ended.

    Args:
        value: what it returned or raised; ``encoded``, if it can be recorded.
        changed: see :class:`Ended`, as of ``retry``, ``spent``, ``rest`` and ``again``.
    """
    record = Ended(
        status,
        recorded=encoded is not None,
        changed=changed,
        retry=retry,
        spent=spent,
        resumed_from=progress.resumed_from,
        executed=progress.executed,
        skipped=progress.skipped,
        preview=secrets.preview(value),
        form=encoded.form if encoded is not None else None,
        at=time.time(),
        rest=rest,
        again=again,
    )
    return record, encoded.data if encoded is not None else b""


# -- loading -------------------------------------------------------------------------------------


class LoadedOutcome(NamedTuple):
    """How a recorded call or run ended: what it returned or raised, and what it changed.

    Args:
        deltas: what it did to attributes and captured variables.
    """

    value: Any = None
    error: BaseException | None = None
    deltas: Mapping[str, Delta] = _NOTHING


def load_outcome(
    codec: Codec,
    entry: Entry,
    around: Surroundings | None = None,
    kind: Any = Any,
    viewer: type[FrameUnpickler] | None = None,
) -> LoadedOutcome:
    """Load how a call or a run ended, from its record; the only place that takes one apart.

    Args:
        around: the arguments, if the call changed them; they get their contents.
        kind: the type that its value is annotated with.
        viewer: loads what the program may lack, for somebody who only looks: the arguments are
            stand-ins, and an exception that was recorded as data may be a summary.

    Raises:
        UnreadableValueError: it cannot be loaded; the arguments are as they were.
    """
    record, payload = entry.record, entry.payload
    form = getattr(record, "form", None)
    failed = getattr(record, "status", "completed") != "completed"
    codec.check(form)
    contents, deltas = None, _NOTHING
    if getattr(record, "changed", None):
        assert around is not None
        if form == JSON:
            from stepwise._execution.contents import put_back, take_apart  # on use

            payload, contents, deltas = take_apart(payload)
        else:
            unpickler = viewer or FrameUnpickler
            loaded = _codec.decode_with(
                lambda: load_values(payload, around, unpickler=unpickler), form
            )
            deltas = loaded.get("did", _NOTHING)
            if not failed:
                return LoadedOutcome(loaded["value"], None, deltas)
            payload, form = loaded["value"]
    value = None if failed else codec.decode(payload, form, kind)
    error = codec.decode_error(payload, form, whole=viewer is None) if failed else None
    if contents is not None and around is not None and viewer is None:
        put_back(contents, around)
    return LoadedOutcome(value, error, deltas)


# -- arguments that a call changes ---------------------------------------------------------------


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
            left = left.holding(kept)
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
    return around.holding(held)


class ArgumentWatch:
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


# -- instances and captured variables ------------------------------------------------------------


if TYPE_CHECKING:

    class HasSubjects(Protocol):
        """A run in progress."""

        subjects: Subjects
        codec: Codec

        def is_first(self, about: str) -> bool:
            """Return whether this is the first report of its kind in this run."""


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


def _as_data(effects: SubjectChanges) -> tuple[dict[str, Delta], list[str]]:
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
