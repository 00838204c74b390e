"""Records of how a call or a run ended, or how a call was settled.

Each function makes a record with its payload; whoever calls it writes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from stepwise._checkpoints.surroundings import Surroundings
from stepwise._execution.mutation import Did, encode_changed, replay_changed
from stepwise._identity.deltas import Delta
from stepwise._journal.counters import Progress
from stepwise._journal.records import Call, Ended, Outcome, Settled, StepStatus
from stepwise._runtime.messages import notice, reports
from stepwise._values.buffers import Data
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.secrets import Secrets

__all__ = ["ended", "outcome", "reached", "settled"]


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
) -> tuple[Outcome, Data]:
    """The outcome of a call.

    Args:
        value: what it returned or raised.
        around: the arguments, if the call changed them.
        did: what it did to its subject.
        kind: the type that its value is annotated with.

    Raises:
        NotRecordableError: its value cannot be recorded.
    """
    failed = status != "completed"
    what = f"{call.name!r}"

    def encoded_plainly() -> Encoded:
        if failed:
            return codec.encode_error(value, "" if call.child else _then(call))
        return codec.encode(value, f"the value returned by {what}", kind)

    deltas = did.deltas if did is not None else _NOTHING
    if did is not None and did.around.arguments:
        around = around if around is not None else Surroundings()
        around = replace(around, arguments={**around.arguments, **did.around.arguments})
    if around is None and not deltas:
        encoded = encoded_plainly()
    else:
        told = (*encoded_plainly(),) if failed and not codec.data_only else value
        given = around if around is not None else Surroundings()
        encoded = encode_changed(codec, told, encoded_plainly, given, what, deltas)
    if not failed and (name := codec.secrets.found_in(encoded.data)):
        _tell_of_secret(call, name)
    record = Outcome(  # by position, as a Call
        call,
        status,
        attempts,
        clean,
        tuple(inner),
        codec.secrets.preview(value),
        codec.traceback(value) if failed else "",
        {**dict.fromkeys(deltas, "delta"), **(around.kinds() if around is not None else {})},
        encoded.form,
        time.time(),
        did.state if did is not None else (),
    )
    return record, encoded.data


_told: set[tuple[str, str]] = set()


@reports
def _tell_of_secret(call: Call, name: str) -> None:
    if (call.name, name) not in _told:
        _told.add((call.name, name))
        notice(
            f"the result of {call.name!r}, or a changed argument, holds the secret {name!r} "
            "and is recorded with it; return a value without the secret"
        )


class Reached(NamedTuple):
    """Return the outcome of a recorded call.

    Args:
        deltas: what it did to attributes and captured variables.
    """

    value: Any
    error: BaseException | None
    deltas: Mapping[str, Delta]


_NOTHING: Mapping[str, Delta] = {}


def reached(
    codec: Codec,
    payload: bytes,
    form: str | None,
    *,
    failed: bool,
    around: Surroundings | None = None,
    kind: Any = Any,
) -> Reached:
    """Decode the outcome of a call: its result, and its exception.

    Args:
        around: the arguments, if the call changed them; they get their contents.
        kind: the type that its value is annotated with.

    Raises:
        UnreadableValueError: it cannot be loaded; the arguments are as they were.
    """
    codec.check(form)

    def decoded(data: bytes) -> Any:
        if failed:
            return codec.decode_error(data, form, whole=True)
        return codec.decode(data, form, kind)

    if around is None:
        value, deltas = decoded(payload), _NOTHING
    else:
        value, deltas = replay_changed(payload, form, around, decoded)
        if failed and form != JSON:
            value = codec.decode_error(*value)
    return Reached(None, value, deltas) if failed else Reached(value, None, deltas)


def _then(call: Call) -> str:
    """Describe the consequence of an exception that cannot be recorded."""
    if call.effect:
        return f"Should the run stop, {call.name!r} is in doubt when it resumes"
    return f"Should the run stop, {call.name!r} runs again when it resumes"


def settled(
    codec: Codec, call: Call, *, landed: bool, value: Any = None, kind: Any = Any
) -> tuple[Settled, Data]:
    """Build the record of a person's answer for a call in doubt: that it happened, and its value.

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
    )
    return record, encoded.data


def ended(
    status: Literal["completed", "failed"],
    value: Any,
    encoded: Encoded | None,
    progress: Progress,
    secrets: Secrets,
    *,
    changed: dict[str, str],
    retry: tuple[int, ...],
    spent: tuple[int, ...],
) -> tuple[Ended, Data]:
    """Return how an attempt of the run ended.

    Args:
        value: what it returned or raised; ``encoded``, if it can be recorded.
        changed: see :class:`Ended`, as of ``retry`` and ``spent``.
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
    )
    return record, encoded.data if encoded is not None else b""
