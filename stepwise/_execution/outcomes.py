"""The outcome of a call or a run: its record, its way back, and what the call changed.

Each function that makes a record returns it with its payload; the caller writes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import (
    FrameUnpickler,
    UnpicklableError,
    dump_few,
    dump_values,
    load_values,
)
from stepwise._journal.counters import Progress
from stepwise._journal.records import Call, Ended, Entry, Outcome, Settled, StepStatus
from stepwise._matching.held import Targets
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.limits import ran_out
from stepwise._runtime.messages import Once, notice, reports
from stepwise._values import codec as _codec
from stepwise._values.buffers import Data
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.pickling import PYTHON
from stepwise._values.secrets import Secrets
from stepwise.errors import NotRecordableError

if TYPE_CHECKING:
    from stepwise._execution.call_changes import PutBack, Recorded

__all__ = [
    "LoadedOutcome",
    "ShownValue",
    "encode_changed",
    "ended",
    "load_outcome",
    "outcome",
    "record_arguments",
    "settled",
    "surroundings",
]

_NOTHING: Mapping[str, Any] = {}


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
    changes: Recorded | None = None,
    kind: Any = Any,
    shown: ShownValue | None = None,
) -> tuple[Outcome, Data]:
    """The outcome of a call.

    Args:
        value: what it returned or raised.
        changes: what it changed in what it was given.
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

    if changes is None or not changes.edits:
        encoded = encoded_plainly()
    else:
        try:
            encoded = changes.encode(codec, value, encoded_plainly, failed=failed)
        except MemoryError as error:
            doing = f"what {call.name!r} returned and changed was recorded"
            raise ran_out(doing, error) from None
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
        changes.kinds() if changes is not None else _NOTHING,
        encoded.form,
        time.time(),
        changes.state if changes is not None else (),
        "",
        usage,
    )
    return record, encoded.data


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
        put_back: repeats what the call changed in what it was given.
    """

    value: Any = None
    error: BaseException | None = None
    put_back: PutBack | None = None


def load_outcome(
    codec: Codec,
    entry: Entry,
    given: Targets | Surroundings | None = None,
    kind: Any = Any,
    viewer: type[FrameUnpickler] | None = None,
) -> LoadedOutcome:
    """Load how a call or a run ended, from its record; the only place that takes one apart.

    Args:
        given: what the call is given; the arguments of a run, which get their contents.
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
    contents, put_back = None, None
    if getattr(record, "changed", None) and isinstance(record, Outcome):
        from stepwise._execution.call_changes import load_changes  # on use: few calls change

        here = given if isinstance(given, Targets) else None
        loaded = load_changes(payload, form, here, viewer)
        put_back = loaded.put_back
        if loaded.plain is None and not failed:
            return LoadedOutcome(loaded.value, None, put_back)
        payload, form = loaded.plain or loaded.value
    elif getattr(record, "changed", None):
        assert isinstance(given, Surroundings)
        around = given
        if form == JSON:
            from stepwise._execution.contents import put_back as refill  # on use
            from stepwise._execution.contents import take_apart

            payload, contents = take_apart(payload)
        else:
            unpickler = viewer or FrameUnpickler
            held = _codec.decode_with(
                lambda: load_values(payload, around, unpickler=unpickler), form
            )
            if not failed:
                return LoadedOutcome(held["value"])
            payload, form = held["value"]
    value = None if failed else codec.decode(payload, form, kind)
    error = codec.decode_error(payload, form, whole=viewer is None) if failed else None
    if contents is not None and viewer is None:
        refill(contents, around)
    return LoadedOutcome(value, error, put_back)


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


def encode_changed(
    codec: Codec,
    told: Any,
    encoded: Callable[[], Encoded],
    around: Surroundings,
    what: str,
) -> Encoded:
    """Encode the outcome of a run together with the current contents of its arguments.

    Args:
        told: what a pickle holds of it: the value, or the pieces of an encoded exception.
        encoded: the same as data.
        what: the run, for the message.

    Raises:
        NotRecordableError: that cannot be recorded.
    """
    if codec.data_only:
        from stepwise._execution import (
            contents as _contents,  # on use: most programs record pickles
        )

        return _contents.with_contents(encoded(), around, what)
    whole = {"value": told}
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
