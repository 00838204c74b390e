"""How far a journal went, kept apart from the database that holds it.

A *mark* says so after each acknowledged batch; a lost tail is noticed by it, and whether a side
effect was in it.  Imports: chain, seal, stores.
"""

from __future__ import annotations

import struct

from stepwise._chain import Position
from stepwise._seal import NO_LINK, Seal
from stepwise.stores import Store

__all__ = ["mark", "newest_mark"]

_MARK = struct.Struct("<QQ8s")
_SIZE = _MARK.size + 16


def mark(seal: Seal, run_id: str, at: Position) -> bytes:
    """The mark for a position."""
    data = _MARK.pack(at.last, at.effects, (at.link or NO_LINK)[:8])
    return data + seal.tag(f"mark/{run_id}", data)


def newest_mark(store: Store, seal: Seal, run_id: str) -> tuple[int, int]:
    """Last number and intents of the newest mark that verifies; zeros if there is none."""
    newest = (0, 0)
    for each in store.marks(run_id):
        data, tag = each[: _MARK.size], each[_MARK.size : _SIZE]
        if len(data) == _MARK.size and seal.is_tag(f"mark/{run_id}", data, tag):
            last, effects, _ = _MARK.unpack(data)
            newest = max(newest, (last, effects))
    return newest
