"""A model of the protocol of a shared store (docs/design.md, 7.1), and its explorer.

Two processes execute one run on one server.  The run has three batches: a record that is not
flushed, the intent of a side effect (flushed), and its outcome (flushed).  The process sends
*statements*.  The server executes each of them at once, or late: a statement whose connection was
lost may still be executed after the process has reconnected, or never.

- A *pause*, or a network that is cut, is a process that makes no move while time passes.
- Time is two bits: the holder's beat is younger than ``lease_seconds``, and the server started less
  than ``lease_seconds`` ago.  A *tick* makes both old.  Only who is cut off or paused misses beats.
- A *crash* of the server brings back any state since the last flush, and takes all connections.
- A *death* of a process is proven: whoever looks knows of it at once.
- A *stop* lets a process give the run up without its end, and live on.

:func:`explore` visits every state that can be reached with a bounded number of faults.  It checks
the promises of the protocol in each, and that each state still leads to the end of the run without
another fault.  :class:`Rules` switches single rules of the protocol off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from exploring import Found, visit

__all__ = ["Faults", "Found", "Rules", "State", "explore", "start"]

FLUSHED = {1: False, 2: True, 3: True}
"""The batches of the run, by number, and whether they are flushed."""
INTENT, LAST = 2, 3
_NO = 2  # "no process" as an index


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol.  A mutant lacks one of them."""

    epoch_in_statement: bool = True  # else a statement of its own looks at the epoch before
    turn_in_statement: bool = True  # else a batch with a lost answer is simply sent again
    acquisition_flushed: bool = True
    intent_flushed: bool = True
    drop_is_no_death: bool = True  # else a lost connection counts as the death of its process
    grace_after_start: bool = True
    expiry_in_statement: bool = True  # else it is looked up before the statement that acquires
    refusal_is_read: bool = True  # else a batch that changed no row means that the lease is lost
    lost_answer_is_read: bool = True  # else a batch whose answer was lost counts as written
    acquisition_names_epoch: bool = True  # else a late one takes the lease of its own process
    release_names_epoch: bool = True
    release_flushed: bool = True
    release_repeated: bool = True  # else nobody looks whether a release with a lost answer happened
    open_intent_is_settled: bool = True  # else whoever takes over executes the body again


class Faults(NamedTuple):
    """How many faults may still happen."""

    drops: int = 1
    crashes: int = 1
    deaths: int = 1
    stops: int = 0
    expiries: int = 1  # takeovers of leases that ran out; no fault, but they are to be bounded


class Row(NamedTuple):
    """What the server has committed: the lease's row and the run's log.

    ``log`` has each batch that was written, with the epoch under which it was: so a batch that is
    written twice shows.
    """

    epoch: int = 0
    turn: int = 0
    holder: int = _NO
    log: tuple[tuple[int, int], ...] = ()


class Statement(NamedTuple):
    """A statement between a process and the server.

    ``stage`` is ``sent``, ``yes`` or ``no`` (executed, and the answer is on its way); ``orphan`` is
    one whose connection was lost.  ``checked`` is used by a mutant only.
    """

    by: int
    kind: str
    epoch: int
    turn: int = 0
    batch: int = 0
    certain: bool = False  # an acquisition that need not look at the clock: the holder is dead
    orphan: bool = False
    stage: str = "sent"


class Process(NamedTuple):
    """A process: what it does, and what it believes.

    ``at`` is ``idle``, ``acquiring``, ``ready``, ``writing``, ``unsure`` (it has to read the
    lease's row), ``leaving`` (it has to release), ``releasing``, ``done`` or ``dead``.
    """

    at: str = "idle"
    epoch: int = 0
    first: int = 0  # the batch that has turn 0 in this epoch
    batch: int = 0  # the next one
    ran: bool = False  # the body, in this epoch
    then: str = ""  # what it does after it has given the run up


class State(NamedTuple):
    """A state of the whole system.  The last three are kept for the checks only."""

    row: Row
    older: tuple[Row, ...]  # what a crash may bring back, beside ``row``
    fresh: bool  # the server started less than lease_seconds ago
    beat: bool  # the holder's beat is younger than lease_seconds
    processes: tuple[Process, Process]
    statements: tuple[Statement, ...]
    faults: Faults
    acknowledged: tuple[tuple[int, int], ...]  # batches with their epochs that must be there
    believers: tuple[tuple[int, int], ...]  # epochs, and who had a batch acknowledged under them
    bodies: int


class Move(NamedTuple):
    """A step from one state to the next; ``wrong`` says which promise it broke."""

    label: str
    state: State
    fault: bool = False
    wrong: str = ""


def start(faults: Faults) -> State:
    """Return the first state: one process (it does not matter which) has begun to acquire."""
    acquiring = Process("acquiring"), Process()
    sent = (Statement(0, "acquire", 0),)
    return State(Row(), (), False, False, acquiring, sent, faults, (), (), 0)


# -- parts of a state ----------------------------------------------------------------------------


def _with(state: State, number: int, process: Process, **changes: object) -> State:
    both = list(state.processes)
    both[number] = process
    return state._replace(processes=(both[0], both[1]), **changes)


def _sent(state: State, statement: Statement) -> tuple[Statement, ...]:
    return (*sorted((*state.statements, statement)),)


def _without(state: State, statement: Statement, *then: Statement) -> tuple[Statement, ...]:
    left = list(state.statements)
    left.remove(statement)
    return (*sorted((*left, *then)),)


def _name(number: int) -> str:
    return "AB"[number]


def _committed(state: State, row: Row, *, flushed: bool, **changes: object) -> State:
    """Commit a transaction.  A flush takes along all that was committed before."""
    older = () if flushed else (*state.older, state.row)
    return state._replace(row=row, older=older, **changes)


# -- the server ----------------------------------------------------------------------------------


def _executed(state: State, one: Statement, rules: Rules) -> Iterator[Move]:
    """The server executes a statement."""
    label = f"server: executes {one.kind} of {_name(one.by)}, epoch {one.epoch}"
    if one.kind == "write":
        label += f", turn {one.turn}: batch {one.batch}"
    if one.orphan:
        label += " (its connection is lost)"
    perform = {"acquire": _acquire, "write": _write, "release": _release}[one.kind]
    after, done, wrong = perform(state, one, rules)
    if done is None:  # a mutant's first half
        rest = (one._replace(stage="checked"),)
    else:
        granted = after.row.epoch if done and one.kind == "acquire" else one.epoch
        answer = one._replace(stage="yes" if done else "no", epoch=granted)
        rest = () if one.orphan else (answer,)
    yield Move(label, after._replace(statements=_without(state, one, *rest)), wrong=wrong)


def _acquire(state: State, one: Statement, rules: Rules) -> tuple[State, bool | None, str]:
    row, faults = state.row, state.faults
    free = row.holder in (_NO, one.by) or one.certain
    same = row.epoch == one.epoch or not rules.acquisition_names_epoch
    if not same or not (free or _ran_out(state, rules)):
        return state, False, ""
    wrong = ""
    for me, own in enumerate(state.processes):
        if own.epoch == row.epoch and own.at in ("ready", "writing", "unsure"):
            if me == one.by:
                wrong = "a live owner loses its lease to its own late statement"
            elif state.fresh:
                wrong = "a takeover without a proven death, in the time of grace after a start"
            elif state.beat:
                wrong = "a takeover from a live owner whose lease has not run out"
    if not free:
        faults = faults._replace(expiries=faults.expiries - 1)
    taken = row._replace(epoch=row.epoch + 1, turn=0, holder=one.by)
    flushed = rules.acquisition_flushed
    return _committed(state, taken, flushed=flushed, beat=True, faults=faults), True, wrong


def _ran_out(state: State, rules: Rules) -> bool:
    grace = state.fresh and rules.grace_after_start
    return state.faults.expiries > 0 and not grace and not state.beat


def _write(state: State, one: Statement, rules: Rules) -> tuple[State, bool | None, str]:
    row = state.row
    if one.stage != "checked":
        same_turn = row.turn == one.turn or not rules.turn_in_statement
        if row.epoch != one.epoch or not same_turn:
            return state, False, ""
        if not rules.epoch_in_statement:
            return state, None, ""
    wrong = ""
    if one.epoch < row.epoch:
        wrong = f"batch {one.batch} of epoch {one.epoch} is written under epoch {row.epoch}"
    elif any(one.batch == batch for batch, _ in row.log):
        wrong = f"batch {one.batch} is written twice"
    elif one.batch != len(row.log) + 1:
        wrong = f"batch {one.batch} is written out of order"
    written = row._replace(turn=row.turn + 1, log=(*row.log, (one.batch, one.epoch)))
    flushed = FLUSHED[one.batch] and (rules.intent_flushed or one.batch != INTENT)
    return _committed(state, written, flushed=flushed), True, wrong


def _release(state: State, one: Statement, rules: Rules) -> tuple[State, bool | None, str]:
    if state.row.epoch != one.epoch and rules.release_names_epoch:
        return state, False, ""
    released = state.row._replace(holder=_NO)
    return _committed(state, released, flushed=rules.release_flushed), True, ""


# -- a process -----------------------------------------------------------------------------------


def _process(state: State, me: int, rules: Rules) -> Iterator[Move]:
    """The moves of a process, its answers included."""
    own = state.processes[me]
    if own.at == "dead":
        return
    if state.row.holder == me and not state.beat:
        yield Move(f"{_name(me)}: beats", state._replace(beat=True))
    if own.at == "idle":
        yield from _looks(state, me, rules)
    elif own.at == "ready":
        yield from _goes_on(state, me, rules)
    elif own.at == "unsure":
        yield _reads(state, me, own)
    elif own.at == "leaving":
        sent = _sent(state, Statement(me, "release", own.epoch))
        releasing = _with(state, me, own._replace(at="releasing"), statements=sent)
        yield Move(f"{_name(me)}: sends a release of epoch {own.epoch}", releasing)
    elif own.at in ("acquiring", "writing", "releasing"):
        for one in state.statements:
            if one.by == me and not one.orphan and one.stage in ("yes", "no"):
                yield _answered(state, me, one, rules)


def _looks(state: State, me: int, rules: Rules) -> Iterator[Move]:
    """It sees who has the lease, and sends an acquisition that names the epoch it saw."""
    row = state.row
    if len(row.log) >= LAST:
        return
    certain = False
    if row.holder not in (_NO, me):
        other = state.processes[row.holder].at
        certain = other == "dead" or (other == "unsure" and not rules.drop_is_no_death)
        if not certain and not _ran_out(state, rules):
            return
        certain = certain or not rules.expiry_in_statement
    sent = _sent(state, Statement(me, "acquire", row.epoch, certain=certain))
    acquiring = _with(state, me, Process("acquiring"), statements=sent)
    yield Move(f"{_name(me)}: looks, and asks for epoch {row.epoch + 1}", acquiring)


def _goes_on(state: State, me: int, rules: Rules) -> Iterator[Move]:
    own, name = state.processes[me], _name(me)
    leaving = _with(state, me, Process("leaving", own.epoch))
    if own.batch > LAST:
        yield Move(f"{name}: is done", leaving)
        return
    if state.faults.stops:
        fewer = state.faults._replace(stops=state.faults.stops - 1)
        yield Move(f"{name}: gives the run up", leaving._replace(faults=fewer), fault=True)
        back = Process("leaving", own.epoch, then="idle")
        stopped = _with(state, me, back, faults=fewer)
        yield Move(f"{name}: gives the run up, for the time being", stopped, fault=True)
    mine = own.first <= INTENT or not rules.open_intent_is_settled
    if own.batch == LAST and mine and not own.ran:
        yield _body(state, me, own)
        return
    turn = own.batch - own.first
    one = Statement(me, "write", own.epoch, turn, own.batch)
    sent = _sent(state, one)
    writing = _with(state, me, own._replace(at="writing"), statements=sent)
    yield Move(f"{name}: sends batch {own.batch}, epoch {own.epoch}, turn {turn}", writing)


def _body(state: State, me: int, own: Process) -> Move:
    wrong = ""
    flushed = state.older[0] if state.older else state.row
    if (INTENT, own.epoch) not in flushed.log:
        wrong = "the body of a side effect begins without a durable intent of its epoch"
    elif state.bodies:
        wrong = "the body of a side effect begins twice"
    begun = _with(state, me, own._replace(ran=True), bodies=state.bodies + 1)
    return Move(f"{_name(me)}: the body of the side effect", begun, wrong=wrong)


def _answered(state: State, me: int, one: Statement, rules: Rules) -> Move:
    own, name, left = state.processes[me], _name(me), _without(state, one)
    yes = one.stage == "yes"
    if one.kind == "acquire" and yes:
        batch = len(state.row.log) + 1
        ready = Process("ready", one.epoch, batch, batch)
        label = f"{name}: has epoch {one.epoch}, reads {batch - 1} batches"
        return Move(label, _with(state, me, ready, statements=left))
    if one.kind == "release":
        then = Process(own.then or "done")
        return Move(f"{name}: has released", _with(state, me, then, statements=left))
    if one.kind == "acquire":
        return Move(f"{name}: was refused", _with(state, me, Process(), statements=left))
    after = _with(state, me, own, statements=left)
    if yes:
        return _believes(after, me, own, own.batch + 1, f"{name}: batch {own.batch} is written")
    if not rules.refusal_is_read:
        wrong = "" if state.row.epoch != own.epoch else "a live owner is locked out"
        return Move(f"{name}: lease lost", _with(after, me, Process()), wrong=wrong)
    unsure = _with(after, me, own._replace(at="unsure"))
    return Move(f"{name}: batch {own.batch} changed no row", unsure)


def _believes(state: State, me: int, own: Process, following: int, label: str) -> Move:
    """A process knows how far its epoch has come."""
    known = {*state.acknowledged, *((each, own.epoch) for each in range(own.first, following))}
    believers = set(state.believers)
    if following > own.first:
        believers.add((own.epoch, me))
    ready = own._replace(at="ready", batch=following)
    after = _with(
        state,
        me,
        ready,
        acknowledged=(*sorted(known),),
        believers=(*sorted(believers),),
    )
    return Move(label, after)


def _reads(state: State, me: int, own: Process) -> Move:
    """It has reconnected, and reads the lease's row.

    The turn says how many batches of the epoch are there: the one whose answer was lost may be, and
    ones that were not flushed may have gone with a crash.  The process sends again what is missing.
    """
    row, name = state.row, _name(me)
    if row.epoch == own.epoch:
        following = own.first + row.turn
        label = f"{name}: reads turn {row.turn}: the next batch is {following}"
        return _believes(state, me, own, following, label)
    wrong = "" if row.epoch > own.epoch else "a live owner is locked out: its epoch is gone"
    label = f"{name}: reads epoch {row.epoch}: lease lost"
    return Move(label, _with(state, me, Process()), wrong=wrong)


# -- faults --------------------------------------------------------------------------------------


def _faults(state: State, rules: Rules) -> Iterator[Move]:
    left = state.faults
    for me, own in enumerate(state.processes):
        if own.at == "dead":
            continue
        if left.drops and own.at in ("acquiring", "writing", "releasing"):
            dropped = _cut(state, me, rules)
            fewer = left._replace(drops=left.drops - 1)
            yield Move(f"{_name(me)}: connection lost", dropped._replace(faults=fewer), fault=True)
        if left.deaths and own.at not in ("idle", "done"):
            dead = _with(_cut(state, me, rules), me, Process("dead"))
            fewer = left._replace(deaths=left.deaths - 1)
            yield Move(f"{_name(me)}: dies", dead._replace(faults=fewer), fault=True)
    if left.crashes:
        fewer = left._replace(crashes=left.crashes - 1)
        for row in (*state.older, state.row):
            yield Move(
                f"server: crashes, and has {len(row.log)} batches, epoch {row.epoch}",
                _crashed(state, row, rules)._replace(faults=fewer),
                fault=True,
            )


def _cut(state: State, me: int, rules: Rules) -> State:
    """A process loses its connection.  What the server has not begun may still be executed."""
    own = state.processes[me]
    left = []
    for one in state.statements:
        if one.by != me or one.orphan:
            left.append(one)
        elif one.stage in ("sent", "checked"):
            left.append(one._replace(orphan=True))
    again = "leaving" if rules.release_repeated else own.then or "done"
    at = {"acquiring": "idle", "writing": "unsure", "releasing": again}.get(own.at, own.at)
    lost = own._replace(at=at) if at != "idle" else Process()
    cut = _with(state, me, lost, statements=(*sorted(left),))
    if own.at == "writing" and not rules.lost_answer_is_read:
        return _believes(cut, me, own, own.batch + 1, "").state
    if own.at == "writing" and not rules.turn_in_statement:
        return _with(cut, me, own._replace(at="ready"))
    return cut


def _crashed(state: State, row: Row, rules: Rules) -> State:
    for me in (0, 1):
        if state.processes[me].at != "dead":
            state = _cut(state, me, rules)
    kept = {*row.log}
    flushed = {each for each in state.acknowledged if FLUSHED[each[0]]}
    return state._replace(
        row=row,
        older=(),
        fresh=True,
        beat=False,  # it may have been away for long
        statements=(),
        acknowledged=(*sorted(flushed | (kept & {*state.acknowledged})),),
    )


# -- the whole -----------------------------------------------------------------------------------


def _settled(state: State, rules: Rules) -> State:
    """Forget late statements that can change nothing any more: that makes fewer states."""
    row = state.row
    late = [one for one in state.statements if one.orphan and one.stage == "sent"]
    for one in late:
        old = one.epoch < row.epoch
        named = {
            "acquire": rules.acquisition_names_epoch,
            "release": rules.release_names_epoch,
            "write": rules.epoch_in_statement,
        }[one.kind]
        past = one.kind == "write" and one.turn < row.turn and rules.turn_in_statement
        if (old and named) or (past and one.epoch == row.epoch):
            state = state._replace(statements=_without(state, one))
    return state


def moves(state: State, rules: Rules) -> Iterator[Move]:
    """Everything that can happen next."""
    for one in state.statements:
        if one.stage in ("sent", "checked"):
            yield from _executed(state, one, rules)
    for me in (0, 1):
        yield from _process(state, me, rules)
    if state.fresh or state.beat:
        # A process that has nothing to do beats; only one that works may be paused or cut off.
        holder = state.row.holder
        beat = holder != _NO and state.processes[holder].at == "done"
        if state.fresh or not beat:
            yield Move("time: lease_seconds go by", state._replace(fresh=False, beat=beat))
    yield from _faults(state, rules)


def broken(state: State) -> str:
    """Return the promise that a state breaks, or an empty text."""
    there = {*state.row.log}
    for batch, epoch in state.acknowledged:
        if (batch, epoch) not in there:
            return f"acknowledged batch {batch} of epoch {epoch} is lost"
    epochs = [epoch for epoch, _ in state.believers]
    if len(epochs) != len({*epochs}):
        return "two processes believe that they wrote under one epoch"
    return ""


def is_over(state: State) -> bool:
    """Return whether the run has ended, or nobody is left who could end it."""
    nobody = all(each.at in ("dead", "done") for each in state.processes)
    return nobody or len(state.row.log) == LAST


def explore(rules: Rules, faults: Faults) -> Found:
    """Visit every state, the nearest first, until a promise is broken."""

    def following(state: State) -> Iterator[tuple[str, State, str, bool]]:
        for label, reached, fault, wrong in moves(state, rules):
            yield label, _settled(reached, rules) if reached.statements else reached, wrong, fault

    return visit(start(faults), following, broken, is_over)
