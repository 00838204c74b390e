"""The marks of a journal's end, kept apart from the database that holds it.

A *mark* says so after each acknowledged batch; a lost tail is noticed by it, and whether a side
effect was in it.  It also tells one history of a run from another.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from stepwise._journal.chain import Position, identity
from stepwise._journal.seal import NO_LINK, DamagedError, Seal
from stepwise.stores import Store

__all__ = ["Mark", "is_another_history", "mark", "newest_mark"]

_MARK = struct.Struct("<QQ8s")
_SIZE = _MARK.size + 16


def mark(seal: Seal, run_id: str, at: Position) -> bytes:
    """The mark for a position."""
    data = _MARK.pack(at.last, at.effects, (at.link or NO_LINK)[:8])
    return data + seal.tag(f"mark/{run_id}", data)


class Mark(NamedTuple):
    """The end of a journal: its last number, the intents up to it, the link to that record."""

    last: int = 0
    effects: int = 0
    link: bytes = b""


def newest_mark(store: Store, seal: Seal, run_id: str) -> Mark:
    """Return the newest mark that verifies, or zeros."""
    newest = Mark()
    for each in store.marks(run_id):
        data, tag = each[: _MARK.size], each[_MARK.size : _SIZE]
        if len(data) == _MARK.size and seal.is_tag(f"mark/{run_id}", data, tag):
            newest = max(newest, Mark(*_MARK.unpack(data)))
    return newest


def is_another_history(
    store: Store, seal: Seal, run_id: str, marked: Mark, at: Position | None = None
) -> bool:
    """Return whether the database holds another record than the marked one under its number.

    So it is where an older database lies beside newer marks: that of a run which was deleted and
    begun again, say.  What is missing or damaged proves nothing.

    Args:
        at: where the journal ends, if that is known.
    """
    if not marked.last or marked.link == NO_LINK[:8]:
        return False
    if at is not None and at.last == marked.last:
        return at.link is not None and at.link[:8] != marked.link
    entry = next(iter(store.read(run_id, after=marked.last - 1)), None)
    if entry is None or entry[0] != marked.last:
        return False
    try:
        link = seal.open(identity(run_id, marked.last), entry[1]).link
    except DamagedError:
        return False
    return link[:8] != marked.link
