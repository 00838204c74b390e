"""What is recorded of how a call or a run ended, or how a call was settled.

Each function makes a record with its payload; whoever calls it writes them.

Imports: codec, counts, mutation, previews, records, snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal

from stepwise._codec import Codec, Encoded, traceback_text
from stepwise._counts import Progress
from stepwise._mutation import encode_changed
from stepwise._pieces import Data
from stepwise._previews import preview
from stepwise._records import Call, Ended, Outcome, Settled, StepStatus
from stepwise._surroundings import Surroundings

__all__ = ["ended", "outcome", "settled"]


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
    kind: Any = Any,
) -> tuple[Outcome, Data]:
    """How a call ended.

    Args:
        value: what it returned or raised.
        around: the arguments, if the call changed them.
        kind: the type that its value is annotated with.

    Raises:
        NotRecordableError: its value cannot be recorded.
    """
    failed = status != "completed"
    problem = codec.encode_error(value) if failed else None
    changed = None
    if around is not None and not codec.data_only:
        told = value if problem is None else (problem.data, problem.form)
        changed = encode_changed(told, around)
    if changed is not None:
        encoded = changed
    elif problem is not None:
        encoded = problem
    else:
        encoded = codec.encode(value, f"the value returned by {call.name!r}", kind)
    record = Outcome(  # by position, as a Call
        call,
        status,
        attempts,
        clean,
        tuple(inner),
        preview(value),
        traceback_text(value) if failed else "",
        around.kinds() if around is not None and changed is not None else {},
        encoded.form,
        time.time(),
    )
    return record, encoded.data


def settled(
    codec: Codec, call: Call, *, landed: bool, value: Any = None, kind: Any = Any
) -> tuple[Settled, Data]:
    """What somebody who looked says of a call in doubt: that it happened, and what it returned.

    Raises:
        NotRecordableError: its value cannot be recorded.
    """
    if not landed:
        return Settled(call.number, landed=False, at=time.time()), b""
    encoded = codec.encode(value, f"the landed value of {call.name!r}", kind)
    record = Settled(
        call.number, landed=True, preview=preview(value), form=encoded.form, at=time.time()
    )
    return record, encoded.data


def ended(
    status: Literal["completed", "failed"],
    value: Any,
    encoded: Encoded | None,
    progress: Progress,
    *,
    changed: dict[str, str],
    retry: tuple[int, ...],
    spent: tuple[int, ...],
) -> tuple[Ended, Data]:
    """How an attempt of the run ended.

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
        preview=preview(value),
        form=encoded.form if encoded is not None else None,
        at=time.time(),
    )
    return record, encoded.data if encoded is not None else b""
