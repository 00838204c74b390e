"""The rule which calls of a failed attempt answer the next one.

What an attempt did outside is done, so its side effects answer, and so does all that was recorded
before the last of them: with other values before it, that side effect could not be recognised.
The plain calls after it led to the failure and to nothing else.  They are made again, or an attempt
that failed since a model answered nonsense would meet the same nonsense for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepwise._journal.projection import RecordedCall

__all__ = ["superseded"]


def superseded(calls: Iterable[RecordedCall]) -> tuple[int, ...]:
    """Return the numbers of the calls that do not answer the next attempt.

    A call is placed by its last record: attempts are ordered by what was recorded, so that a
    process that was killed between two of them decides as one that was not.

    Args:
        calls: made or answered inside the failed step, to any depth; those in doubt included.
    """
    known = list(calls)
    last = max((each.entry.number for each in known if _binds(each)), default=0)
    return tuple(
        sorted(
            each.call.number
            for each in known
            if each.answers and not _binds(each) and each.entry.number > last
        )
    )


def _binds(recorded: RecordedCall) -> bool:
    """Return whether a call did something outside that is not to be done again."""
    call = recorded.call  # a wait has taken a message, or a person's answer
    return call.is_wait or (call.effect and (bool(call.child) or recorded.may_have_happened))
