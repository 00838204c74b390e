"""A model of the log of a process (``stepwise/stores/_process_log.py``), and its explorer.

One run has a *writer*, a *taker* who takes it over while the writer lives on or is dead, and a
*reader* in a third process.  Each move is one operation: a write of a frame, a flush, a look at the
mode, a transaction, a read of the file, an unlink.  The writer chooses for each batch whether it is
durable and where it goes, and writes its log over from the beginning when this is full.

- A *kill* ends the writer, or sends the taker back to its beginning.
- A *power cut* ends everybody.  The database is in any state since the last durable commit.  Each
  frame that was not flushed is there, or torn, or what had been in its place.  A new file whose
  folder was not flushed may be gone, and a deleted one may be back.

:func:`explore` visits every state and checks the promises in each.  :class:`Rules` switches single
rules off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from exploring import Found, visit

__all__ = ["Found", "Frame", "Rules", "World", "explore", "frames_of"]


@dataclass(frozen=True)
class Rules:
    """The rules.  A mutant lacks one of them."""

    flush: bool = True
    fence: bool = True
    check: bool = True  # the writer looks at the mode before it acknowledges
    fence_before_read: bool = True
    generation_in_frame: bool = True
    durable_row: bool = True  # else a durable frame may follow a commit that is not on the disk
    durable_before_rewind: bool = True
    commit_before_unlink: bool = True
    file_before_name: bool = True
    empty_commit_flushes: bool = True
    end_waits_for_disk: bool = True  # else the end of the process counts on a commit in memory
    proof_of_this_round: bool = True  # else frames name flushes of before the file was rewritten
    row_again: bool = True


class World(NamedTuple):
    """How much may happen."""

    batches: int = 4
    room: int = 3  # frames in the log
    cuts: int = 1
    kills: int = 1  # of the taker
    looks: int = 1  # of the reader


class Frame(NamedTuple):
    number: int
    flushed: int
    epoch: int
    generation: int
    batch: int


class Row(NamedTuple):
    """The database: the row of the lease, and the batches that it has."""

    epoch: int = 1
    generation: int = 0
    logged: bool = False  # whether it names the writer's log
    batches: tuple[int, ...] = ()


Slots = tuple[Frame | None, ...]
_NO_FILE, _NEW, _NAMED, _DELETED = range(4)


class Writer(NamedTuple):
    at: str = "ready"
    batch: int = 1  # the next one
    durable: bool = False
    opened: bool = False
    logged: bool = False  # what it believes of the row
    generation: int = 0
    row_is_durable: bool = True
    slot: int = 0
    number: int = 0
    flushed: int = 0
    tail: tuple[int, ...] = ()
    tail_of: int = -1  # the generation of the tail


class Taker(NamedTuple):
    at: str = "idle"
    row: Row = Row()
    seen: tuple[Frame, ...] = ()
    owns: bool = False


class Reader(NamedTuple):
    at: str = "idle"
    row: Row = Row()
    seen: tuple[Frame, ...] = ()
    found: tuple[int, ...] = ()
    must: tuple[int, ...] = ()


class State(NamedTuple):
    row: Row = Row()
    older: tuple[Row, ...] = ()  # what a power cut may bring back
    slots: Slots = ()
    disk: Slots = ()  # what is flushed of them
    file: int = _NO_FILE
    fenced: bool = False
    writer: Writer = Writer()
    taker: Taker = Taker()
    reader: Reader = Reader()
    acknowledged: tuple[tuple[int, bool], ...] = ()  # batches, and whether they were durable
    deleted: bool = False
    cuts: int = 0
    kills: int = 0
    looks: int = 0


Moves = Iterator[tuple[str, State]]


def frames_of(slots: Slots) -> tuple[Frame, ...]:
    """Return what a reader makes of a file: the counterpart of ``LogReader``."""
    found: list[Frame] = []
    number = at = 0
    while at < len(slots):
        frame = slots[at]
        if frame is None or (number and frame.number != number + 1):
            bad, at, last, proof = at, -1, number, False
            for place in range(bad, len(slots)):
                other = slots[place]
                if other is not None and other.number > last and not proof:
                    at = place if at < 0 else at
                    last, proof = other.number, other.flushed > number
            if not proof:
                break
            frame = slots[at]
        assert frame is not None
        found.append(frame)
        number, at = frame.number, at + 1
    return tuple(found)


def _there(state: State) -> bool:
    return state.file in (_NEW, _NAMED)


def _tail(row: Row, frames: tuple[Frame, ...], rules: Rules) -> tuple[int, ...]:
    if not row.logged:
        return ()
    same = [each for each in frames if each.epoch == row.epoch]
    if rules.generation_in_frame:
        same = [each for each in same if each.generation == row.generation]
    return tuple(each.batch for each in same)


def _view(state: State, rules: Rules) -> tuple[int, ...]:
    """What anybody finds who reads all at once."""
    frames = frames_of(state.slots) if _there(state) else ()
    return _with(state.row.batches, _tail(state.row, frames, rules))


def _with(batches: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return (*sorted({*batches, *more}),)


def _commit(state: State, row: Row, *, durable: bool) -> State:
    older = () if durable else (*state.older, state.row)
    return state._replace(row=row, older=older)


# -- the writer ------------------------------------------------------------------------------------


def _writer(state: State, rules: Rules, world: World) -> Moves:
    own = state.writer
    if own.at == "dead":
        return
    yield "writer: is killed", state._replace(writer=Writer("dead"))
    if own.at == "ready":
        yield from _begins(state, own, rules, world)
        yield _ends(state, own, rules)
    elif own.at == "opening":
        yield "writer: makes its log", _made(state, own)
    elif own.at == "added":
        yield "writer: flushes", _flushed(state, own, rules)
    elif own.at == "checking":
        taken = rules.check and (state.fenced or not _there(state))
        if taken:
            yield "writer: finds its log taken", _at(state, own._replace(at="settling"))
        else:
            yield f"writer: acknowledges {own.batch}", _acknowledged(state, own)
    elif own.at == "settling":
        row = state.row
        if _own_tail(state, own):
            batches = _with(row.batches, own.tail)
            row = Row(row.epoch, row.generation + 1, False, batches)
        settled = own._replace(at="leaving", tail=(), tail_of=-1, opened=False, logged=False)
        yield "writer: takes its log in", _at(_commit(state, row, durable=True), settled)
    elif own.at == "leaving":
        gone = _DELETED if _there(state) else state.file
        yield "writer: deletes its log", _at(state, own._replace(at="again"))._replace(file=gone)
    else:
        yield from _transaction(state, own, own.durable, rules)


def _at(state: State, own: Writer) -> State:
    return state._replace(writer=own)


def _own_tail(state: State, own: Writer) -> bool:
    row = state.row
    return row.logged and (row.epoch, row.generation) == (1, own.tail_of)


def _begins(state: State, own: Writer, rules: Rules, world: World) -> Moves:
    if not own.opened and state.file == _NO_FILE and rules.file_before_name:
        yield "writer: makes its log", _made(state, own)
    if own.batch > world.batches:
        return
    for durable in (False, True):
        yield from _transaction(state, own, durable, rules)
        safe = own.row_is_durable or not durable or not rules.durable_row
        if own.logged and safe and own.slot < world.room:
            yield f"writer: adds frame {own.batch}", _added(state, own, durable=durable)
    if own.slot == world.room:
        row = state.row
        if _own_tail(state, own):
            batches = _with(row.batches, own.tail)
            row = Row(row.epoch, row.generation + 1, True, batches)
        anew = own._replace(slot=0, tail=(), tail_of=-1, generation=row.generation)
        if rules.proof_of_this_round:
            anew = anew._replace(flushed=0)
        if row.epoch == 1:
            after = _commit(state, row, durable=rules.durable_before_rewind)
            yield "writer: takes its log in, and begins it again", _at(after, anew)


def _made(state: State, own: Writer) -> State:
    made = own._replace(opened=True, at="ready")
    return _at(state, made)._replace(file=_NEW, fenced=False)


def _added(state: State, own: Writer, *, durable: bool) -> State:
    frame = Frame(own.number + 1, own.flushed, 1, own.generation, own.batch)
    slots = (*state.slots[: own.slot], frame, *state.slots[own.slot + 1 :])
    disk = (*state.disk, *(None,) * (len(slots) - len(state.disk)))
    tail = own.tail if own.tail_of == own.generation else ()
    after = own._replace(
        at="added" if durable else "checking",
        durable=durable,
        slot=own.slot + 1,
        number=own.number + 1,
        tail=(*tail, own.batch),
        tail_of=own.generation,
    )
    return _at(state, after)._replace(slots=slots, disk=disk)


def _flushed(state: State, own: Writer, rules: Rules) -> State:
    after = _at(state, own._replace(at="checking", flushed=own.number))
    if not rules.flush:
        return after
    file = _NAMED if state.file == _NEW else state.file
    return after._replace(disk=state.slots, file=file)


def _acknowledged(state: State, own: Writer) -> State:
    known = (*state.acknowledged, (own.batch, own.durable))
    ready = own._replace(at="ready", batch=own.batch + 1)
    return _at(state, ready)._replace(acknowledged=known)


def _transaction(state: State, own: Writer, durable: bool, rules: Rules) -> Moves:
    """A batch goes into the database, and the tail before it."""
    row = state.row
    if row.epoch != 1:
        yield "writer: lease lost", _at(state, Writer("dead"))
        return
    batches = _with(row.batches, own.tail if _own_tail(state, own) else ())
    logged = own.opened or (not rules.file_before_name and own.at == "ready")
    after = Row(1, row.generation + 1, logged, _with(batches, (own.batch,)))
    clear = durable or not rules.end_waits_for_disk
    done = own._replace(
        durable=durable,
        logged=logged,
        generation=after.generation,
        row_is_durable=durable,
        tail=() if clear else own.tail,
        tail_of=-1 if clear else own.tail_of,
    )
    written = _acknowledged(_commit(state, after, durable=durable), done)
    if logged and not own.opened:
        written = _at(written, written.writer._replace(at="opening"))
    how = "durably" if durable else "in memory"
    yield f"writer: commits {own.batch} {how}", written


def _ends(state: State, own: Writer, rules: Rules) -> tuple[str, State]:
    ended = _at(state, Writer("dead"))
    if own.opened and not own.tail and _there(state):
        ended = ended._replace(file=_DELETED)
    return "writer: ends", ended


# -- the taker -------------------------------------------------------------------------------------


def _taker(state: State, rules: Rules, world: World) -> Moves:
    own, row = state.taker, state.row
    if own.at == "idle":
        wanted = row.logged or state.writer.at == "dead"
        if wanted and _there(state):
            first = "fence" if rules.fence_before_read else "read"
            yield "taker: sees a log", state._replace(taker=own._replace(at=first))
        if not own.owns and not (row.logged and _there(state)):
            yield "taker: sees no log", state._replace(taker=own._replace(at="acquire", row=row))
        if own.owns and not state.deleted:
            gone = _commit(state, row._replace(batches=(), logged=False), durable=True)
            yield "taker: deletes the run", gone._replace(deleted=True, acknowledged=())
        return
    if state.kills < world.kills:
        again = Taker(owns=own.owns)
        yield "taker: is killed", state._replace(taker=again, kills=state.kills + 1)
    after = {
        "fence": "read" if rules.fence_before_read else "commit",
        "read": "commit" if rules.fence_before_read else "fence",
        "commit": "unlink",
        "unlink": "idle",
        "acquire": "idle",
    }
    if not rules.commit_before_unlink:
        after |= {"read": "unlink", "unlink": "commit", "commit": "idle"}
    then = own._replace(at=after[own.at])
    if then.at == "idle":
        then = Taker(owns=own.owns)
    moved = state._replace(taker=then)
    if own.at == "fence":
        yield "taker: fences", moved._replace(fenced=state.fenced or rules.fence)
    elif own.at == "read":
        seen = frames_of(state.slots) if _there(state) else ()
        yield "taker: reads the log", moved._replace(taker=then._replace(seen=seen))
    elif own.at == "commit":
        yield "taker: takes the log in", _taken_in(moved, own.seen, rules)
    elif own.at == "unlink":
        gone = _DELETED if _there(state) else state.file
        yield "taker: deletes the log", moved._replace(file=gone)
    elif row == own.row:
        acquired = _commit(moved, Row(row.epoch + 1, 0, False, row.batches), durable=False)
        yield "taker: acquires", acquired._replace(taker=Taker(owns=True))
    else:
        yield "taker: sees another row", moved


def _taken_in(state: State, seen: tuple[Frame, ...], rules: Rules) -> State:
    row, tail = state.row, _tail(state.row, seen, rules)
    if tail:
        after = Row(row.epoch, row.generation + 1, False, _with(row.batches, tail))
        return _commit(state, after, durable=True)
    return state._replace(older=()) if rules.empty_commit_flushes else state


# -- the reader, and faults ------------------------------------------------------------------------


def _reader(state: State, rules: Rules, world: World) -> Iterator[tuple[str, State, str]]:
    own, row = state.reader, state.row
    if own.at == "idle" and state.looks < world.looks:
        must = tuple(batch for batch, _ in state.acknowledged)
        begun = Reader("log" if row.logged else "rows", row, must=must)
        yield "reader: reads the row", state._replace(reader=begun, looks=state.looks + 1), ""
    elif own.at == "log":
        seen = frames_of(state.slots) if _there(state) else ()
        read = own._replace(at="rows", seen=seen)
        yield "reader: reads the log", state._replace(reader=read), ""
    elif own.at == "rows":
        read = own._replace(at="row", found=row.batches)
        yield "reader: reads the database", state._replace(reader=read), ""
    elif own.at == "row":
        done = state._replace(reader=Reader())
        if own.row.logged and rules.row_again and row[:3] != own.row[:3]:
            yield "reader: begins again", done._replace(looks=state.looks - 1), ""
            return
        found = _with(own.found, _tail(own.row, own.seen, rules))
        wrong = "" if _is_whole(found) else f"a reader finds {found}"
        if not {*own.must} <= {*found} and not state.deleted:
            wrong = f"a reader misses what was acknowledged: it finds {found}"
        yield f"reader: finds {found}", done, wrong


def _cut(state: State, world: World) -> Moves:
    if state.cuts >= world.cuts:
        return
    rows = {*state.older, state.row}
    files = {_NEW: (_NO_FILE, _NAMED), _DELETED: (_NO_FILE, _NAMED)}.get(state.file, (state.file,))
    outcomes = [
        {new} if new == old else {new, old, None}
        for new, old in zip(state.slots, state.disk, strict=True)
    ]
    kept = tuple(each for each in state.acknowledged if each[1])
    for row, file, slots in itertools.product(rows, files, itertools.product(*outcomes)):
        there = slots if file == _NAMED else ()
        label = f"power cut: {row}, {'a' if there else 'no'} log"
        yield (
            label,
            State(
                row,
                slots=there,
                disk=there,
                file=file,
                writer=Writer("dead"),
                acknowledged=kept,
                deleted=state.deleted,
                cuts=state.cuts + 1,
                kills=state.kills,
            ),
        )


# -- the whole -------------------------------------------------------------------------------------


def _is_whole(batches: tuple[int, ...]) -> bool:
    return batches == tuple(range(1, len(batches) + 1))


def broken(state: State, rules: Rules) -> str:
    """Return the promise that a state breaks, or an empty text."""
    view = _view(state, rules)
    if state.deleted:
        return f"a deleted run is back: {view}" if view or state.acknowledged else ""
    if not _is_whole(view):
        return f"a batch is there without an earlier one: {view}"
    lost = {batch for batch, _ in state.acknowledged} - {*view}
    return f"acknowledged batches are lost: {lost}" if lost else ""


def moves(state: State, rules: Rules, world: World) -> Iterator[tuple[str, State, str]]:
    """Everything that can happen next."""
    for move in itertools.chain(
        _writer(state, rules, world), _taker(state, rules, world), _cut(state, world)
    ):
        yield *move, ""
    yield from _reader(state, rules, world)


def explore(rules: Rules, world: World) -> Found:
    """Visit every state, the nearest first, until a promise is broken."""

    def following(state: State) -> Iterator[tuple[str, State, str, bool]]:
        for move in moves(state, rules, world):
            yield *move, False

    return visit(State(), following, lambda state: broken(state, rules))
