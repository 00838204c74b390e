"""Checkpoints refer to what is stored already, and give back what the variables were.

``programs/messages.py`` has the messages (plain data, typed objects, arrays) and what is done to
them.  ``CASES`` are programs whose variables stay or grow, each with what it may write.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import itertools
import os
import re
import threading
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import messages
import numpy  # noqa: ICN001
import pytest
from harness import python
from hypothesis import example, given, settings
from hypothesis import strategies as st
from killed import Killed, chunk_little, forget_process, line_of, played_to_the_end
from messages import AT, CHANGES, FAMILIES, KINDS, OPERATIONS, Plain, Role, Slotted, described
from restarted import edited
from sweeping import WHOLE, some

import stepwise
from stepwise import step, workflow
from stepwise._checkpoints import references
from stepwise._checkpoints.checkpoints import load_checkpoint
from stepwise._checkpoints.references import KnownValues, Needs, Vault, digest_of
from stepwise._journal.journal import identity
from stepwise._journal.seal import DamagedError, Seal
from stepwise._runs.steps import checkpoints_of
from stepwise._values import digest, trees
from stepwise._values import digest as list_digest
from stepwise._values.trees import Watch
from stepwise._values.unpickling import Pieces
from stepwise._workflows import frame
from stepwise.stores import Batch, Owner, open_store
from stepwise.testing import fresh_store

MB = 1 << 20
ALL = {"retention": "all"}
MESSAGES = [kind for kind in KINDS if kind != "ndarray"]
dying = set()  # numbers of steps in which the process ends, once


@pytest.fixture(autouse=True)
def nothing_known():
    dying.clear()
    list_digest.forget()


@pytest.fixture
def small(monkeypatch):
    """Chunks of a few items, and of a few hundred bytes."""
    chunk_little(monkeypatch)
    monkeypatch.setattr(references, "_LEAF", 400)
    monkeypatch.setattr(references, "_LARGEST", 3000)
    monkeypatch.setattr(references, "HEAVY", 2000)
    monkeypatch.setattr(frame, "HEAVY", 2000)


@step
def tick(number):
    if number in dying:
        dying.remove(number)
        raise Killed
    return number


@step
def think(number, kind):
    return messages.message(kind, number)


def chunks(run):
    """Return how many bytes each chunk of a run has."""
    store = open_store(run.store.url)
    return [len(store.get(run.id, name)) for name in store.names(run.id, "chunk/")]


def needed(run):
    """Return the references of the newest checkpoint."""
    vault = Vault(run.store, run._seal, run.id)
    return Needs.of(load_checkpoint(vault, names(run, "checkpoint/")[-1]).state.needs)


def names(run, prefix):
    return open_store(run.store.url).names(run.id, prefix)


# -- any program ---------------------------------------------------------------------------------

expected = {}
numbers = itertools.count()


@workflow(**ALL)
def play(program, handed):
    listed, others, last, ticked = [], [], None, None
    for number, (operation, at, how, kind) in enumerate(program):
        if operation == "think":
            last = think(number, kind)
            listed.append(last)
        elif operation == "copy":
            listed = [*listed]
        elif operation == "hand":
            handed.extend(listed[:at])
        else:
            messages.change(operation, at, how, kind, listed, others, [*handed, last])
        expected[number] = described([listed, others, last, handed])
        ticked = tick(number)
    return ticked


TICKS = line_of(play, "expected[number] =")
"""The statement after which a checkpoint holds what is expected of it."""


def played(program, kills=(), **options):
    """Return the run of a program that is killed in some of its steps, and resumed."""
    expected.clear()
    dying.update(number for number in kills if number < len(program))
    name = f"play-{next(numbers)}"
    return played_to_the_end(
        lambda: play.options(store="memory:", run_id=name, **options).execute(program, [])
    )


def check(run, program):
    """Fail unless each checkpoint of a run of a program holds what the variables were."""
    found = 0
    for checkpoint in run.checkpoints:
        assert checkpoint.verified
        values = run.locals(at=checkpoint.step)
        if checkpoint.position == TICKS:
            here = [values[name] for name in ("listed", "others", "last", "handed")]
            assert described(here) == expected[values["number"]]
            found += 1
    assert found == len(program)


def programs(family):
    operation = st.tuples(
        st.sampled_from(OPERATIONS[family]),
        st.integers(0, 12),
        st.sampled_from(sorted(CHANGES)),
        st.sampled_from(FAMILIES[family]),
    )
    return st.lists(operation, max_size=40)


def thought(kind, count=14):
    return [("think", 0, "", kind)] * count


@settings(max_examples=180 if WHOLE else 20)
@given(st.one_of(*map(programs, FAMILIES)), st.sets(st.integers(0, 40), max_size=3))
@example([*thought("dict", 12), ("change", 1, "order", "dict")], {8})
@example([*thought("dict", 12), *[("change", 1, "inner", "dict")] * 3], set())
@example([*(("think", 0, "set", kind) for kind in FAMILIES["objects"])] * 3, {5, 8})
@example([*thought("Forgetful", 9), ("change", 1, "set", "Plain")], {5, 8})
@example(
    [("append", 2, "", "ndarray"), *[("write", 0, "", "ndarray")] * 3, *[("turn", 0, "", "")] * 3],
    {4},
)
@example(
    [
        ("append", 12, "", "ndarray"),
        ("equal", 0, "", ""),
        ("write", 1, "", ""),
        ("turn", 0, "", ""),
    ],
    {2},
)
def test_any_checkpoint_gives_back_what_the_variables_were(small, program, kills):
    """Whatever is done to messages, each checkpoint holds their types, order and sharing."""
    check(played(program, kills), program)


@pytest.mark.parametrize(
    ("kind", "made"), some(itertools.product(MESSAGES, ["think", "append"]), 4, "changes")
)
def test_every_change_is_seen(small, kind, made):
    """A message that is changed in place, in a chunk or behind the last, is written again."""
    program = [(made, n % 12, "", kind) for n in range(13)]
    for at, how in enumerate(sorted(CHANGES)):
        if kind == "dict":
            program += [("change", 12 + at, how, kind)]  # the last
        program += [("change", at % 13, how, kind), (made, 1, "", kind)]
    run = played(program)
    assert names(run, "chunk/")
    check(run, program)


def test_a_change_that_is_not_seen_would_be_found(small, monkeypatch):
    """The tests of changes fail if changes are not looked for."""
    monkeypatch.setattr(trees.Watch, "holds", lambda _: True)
    with pytest.raises(AssertionError):
        test_every_change_is_seen(small, "dict", "think")


# -- how little is written -----------------------------------------------------------------------


class Case(NamedTuple):
    """A program with two variables, and what it may write.

    Args:
        next: returns both variables, from what a step returned and what they were.
        little: says of the sizes of checkpoints and of chunks whether they are small enough.
        made: returns what the step of a number returns.
        kills: numbers of steps in which a process is killed; each set is another run.
    """

    count: int
    next: Any
    little: Any
    made: Any = lambda number, kind: number
    kinds: Any = ("dict",)
    kills: Any = ((),)
    options: Any = ALL


def grown(value, *items):
    value = [] if value is None else value
    value.extend(items)
    return value


def said(number, size):
    return {"role": "user", "content": f"{number}" * size}


def rows(number):
    return [{"number": number, "at": at, "text": f"{number} {at}" * 20} for at in range(100)]


ROWS = sum(len(each["text"]) for each in rows(0))


def served(number, users, _):
    """Let one of many conversations grow, which a variable names meanwhile."""
    users = {f"user {each}": rows(each) for each in range(30)} if users is None else users
    users[f"user {number % 30}"].append(said(number, 200))
    return users, users[f"user {number % 30}"]


def collected(number, chosen, _):
    found = rows(number)
    return {**(chosen or {}), number: [each for each in found if each["at"] % 5]}, found


def marked(size):
    def mark(number, array, _):
        array = numpy.arange(size // 8, dtype="float64") if array is None else array
        array[number] = -1
        return array, None

    return mark


def kept(make):
    return lambda _, value, __: (make() if value is None else value, None)


LARGE, TEXT = 2048, 60_000
CASES = {
    "results of steps": Case(
        300,
        lambda made, value, _: (grown(value, made), None),
        lambda sizes, chunks: sizes[-1] < 3000 and sum(chunks) < 40 * 300 and len(chunks) <= 2 * 8,
        made=lambda number, kind: messages.message(kind, number, LARGE // 3),
        kinds=some(MESSAGES, 2, "kinds"),
        options={},  # 512 items, 64 of them, 8 of them: few chunks
    ),
    "results that are arrays": Case(
        300,
        lambda made, value, _: (grown(value, made), None),
        lambda sizes, chunks: sizes[-1] < 3000 and sum(chunks) < 40 * 300 and len(chunks) <= 2 * 8,
        made=lambda number, kind: messages.message("ndarray", number, LARGE // 3),
        kills=((), (150, 151, 299)),
        options={},
    ),
    "what a list grew by": Case(
        150,
        lambda made, value, _: (grown(value, messages.message(*made, 500)), None),
        lambda sizes, chunks: max(sizes) <= references.HEAVY and sum(chunks) < 3.5 * 150 * 2100,
        made=lambda number, kind: (kind, number),
        kinds=some(MESSAGES, 2, "kinds"),
    ),
    "what a short list grew by": Case(
        200,
        lambda number, value, _: (grown(value, said(number, 300)), None),
        lambda sizes, chunks: max(sizes) < 8 * 1000 + 3000 and sum(chunks) < 3.5 * 200 * 900,
    ),
    "three at once": Case(
        200,
        lambda number, value, _: (grown(value, *(said(number, 300) for _ in range(3))), None),
        lambda sizes, chunks: len(chunks) <= 3 * 8,
        options={},
    ),
    "two lists": Case(
        110,
        lambda n, one, two: (grown(one, said(n, 400)), grown(two, said(-n, 400))),
        lambda sizes, chunks: max(sizes) < 30_000,
    ),
    "made anew": Case(20, lambda n, *_: (rows(n), None), lambda sizes, chunks: chunks == []),
    "stays": Case(
        20,
        kept(lambda: rows(0)),
        lambda sizes, chunks: sizes[0] > ROWS and max(sizes[1:]) < ROWS / 2,
    ),
    "copied and longer": Case(
        20,
        lambda n, value, _: ([*value, said(n, 100)] if value else rows(0), None),
        lambda sizes, chunks: sizes[0] > ROWS and max(sizes[1:]) < ROWS / 2,
        kills=((), (1,), range(1, 20)),
    ),
    "slides": Case(
        20,
        lambda n, value, _: ([*value[3:], said(n, 100)] if value else rows(0), None),
        lambda sizes, chunks: sizes[0] > ROWS and max(sizes[1:]) < ROWS / 2,
    ),
    "one of many": Case(70, served, lambda sizes, chunks: max(sizes[35:]) < sizes[0] / 4),
    "put into a large dict": Case(40, collected, lambda sizes, chunks: max(sizes) < 100_000),
    "a text": Case(
        5,
        kept(lambda: "word " * (TEXT // 5)),
        lambda sizes, chunks: sum(size > 50_000 for size in sizes) <= 1,
    ),
    "a text of megabytes": Case(
        5,
        kept(lambda: "word " * (40 * TEXT // 5)),
        lambda sizes, chunks: max(sizes) < 50_000 and len(chunks) == 1,
    ),
    "little": Case(
        60,
        lambda n, value, _: (grown(value, {"n": n}), None),
        lambda sizes, chunks: chunks == [],
    ),
    "an array": Case(
        6,
        kept(lambda: numpy.arange(8 << 10, dtype="float64")),
        lambda sizes, chunks: len(chunks) == 1 and sum(sizes + chunks) < 2.1 * (64 << 10),
    ),
    "an array of megabytes": Case(
        6,
        kept(lambda: numpy.arange(MB // 2, dtype="float64")),
        lambda sizes, chunks: len(chunks) == 1 and sum(sizes + chunks) < 1.1 * 4 * MB,
    ),
    "an array of megabytes that changes": Case(
        4,
        marked(2 * MB),
        lambda sizes, chunks: len(chunks) == len(sizes) >= 4,
    ),
    "an array that changes": Case(  # after the last step it stays as it is
        5,
        marked(64 << 10),
        lambda sizes, chunks: len(chunks) <= 1,
    ),
    "arrays that are replaced": Case(
        9,
        lambda n, value, _: (value if n % 4 else numpy.full(MB // 4, n, "float64"), None),
        lambda sizes, chunks: len(chunks) == 1,
        options={"retention": "latest_only"},
    ),
}


@step
def do(case, kind, number):
    if number in dying:
        dying.remove(number)
        raise Killed
    return CASES[case].made(number, kind)


@workflow
def hold(case, kind, count):
    value = named = None
    for number in range(count):
        value, named = CASES[case].next(do(case, kind, number), value, named)
    return number


@pytest.mark.parametrize(
    ("case", "kind", "kills"),
    [
        pytest.param(case, kind, kills, id=f"{case}, {kind}, killed {len(kills)} times")
        for case, row in CASES.items()
        for kind in row.kinds
        for kills in row.kills
    ],
)
def test_what_stays_or_grows_is_stored_a_few_times(case, kind, kills):
    """However long a run becomes, each of its values is written a few times, and comes back."""
    row = CASES[case]
    dying.update(kills)
    bound = hold.options(store="memory:", run_id=case, **row.options)
    run = played_to_the_end(lambda: bound.execute(case, kind, row.count))
    checkpoints = run.checkpoints
    assert row.little([each.size for each in checkpoints], chunks(run))
    looked_at = {each.step for each in checkpoints[:: len(checkpoints) // 2 + 1] + checkpoints[-1:]}
    value = named = None
    for number in range(row.count):
        value, named = row.next(row.made(number, kind), value, named)
        if number + 1 in looked_at:
            values = run.locals(at=number + 1)
            assert described([values["value"], values["named"]]) == described([value, named])


@step
def measure(batch):
    return len(batch)


@workflow(**ALL)
def send_batches(count):
    for number in range(count):
        batch = [{"at": at, "text": f"{number} {at}" * 20} for at in range(100)]
        measure(batch)
    del batch


def test_a_list_that_only_a_step_is_given_is_written_as_it_is(monkeypatch):
    """A long list is not worth chunks because it was an argument."""
    made = []
    monkeypatch.setattr(KnownValues, "make", lambda _, items, *__: made.append(items))
    send_batches.options(store="memory:").execute(10)
    assert made == []


class Client:
    """Holds much that is not state, and does not pickle."""

    def __init__(self):
        self.known = [{"n": n} for n in range(500)]
        self.lock = threading.Lock()


client = Client()


@stepwise.resource
def connect():
    return dataclasses.make_dataclass("Connection", ["opened"])(True)


class Unknown(list):
    """A class with a layout of C."""


@workflow(**ALL)
def hold_odd(what, count):
    heard, mine = [], client
    connection = connect() if what == "resource" else None

    @dataclasses.dataclass
    class Local:
        number: int

    for number in range(count):
        if what == "resource":
            connection.opened = tick(number)
            heard.append(Plain("user", connection))
        elif what == "class":
            heard.append(Plain("user", Unknown([tick(number)])))
            heard.append(Local(number))
        else:
            tick(number)
    if what == "resource":
        return heard[0].content is heard[-1].content is connection, connection.opened
    numbers = [(heard[n].content[0], heard[n + 1].number) for n in range(0, len(heard), 2)]
    return numbers, len(mine.known)


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("resource", (True, 30)),
        ("class", ([(n, n) for n in range(31)], 500)),
        ("client", ([], 500)),
    ],
)
def test_what_is_not_understood_is_in_no_chunk(what, result):
    """Resources, objects of a module and classes that are not understood come back anyway."""
    dying.add(30)
    bound = hold_odd.options(store="memory:", run_id=what)
    run = played_to_the_end(lambda: bound.execute(what, 31))
    assert run.result == result
    assert run.resumed_from_step == 30
    assert chunks(run) == []


# -- what comes back -----------------------------------------------------------------------------


@workflow
def chain(count):
    linked, last = [], None
    for number in range(count):
        last = Plain("user", str(number), [], set(), {"parent": last})
        linked.append(last)
        tick(number)
    return [each.more["parent"] for each in linked[1:]] == linked[:-1] and len(linked)


def test_messages_that_know_the_one_before_them():
    """A long chain of objects, each of which refers to the one before, is restored."""
    dying.add(399)
    run = played_to_the_end(lambda: chain.options(store="memory:", run_id="chain").execute(400))
    assert run.resumed_from_step == 399
    linked = run.locals()["linked"]
    assert all(b.more["parent"] is a for a, b in itertools.pairwise(linked))


@workflow(**ALL)
def share(count):
    one = numpy.ones(MB)
    other = numpy.ones(MB)
    same = one
    part = one[10:20]
    columns = numpy.asfortranarray(numpy.arange(MB, dtype="float64").reshape(1024, 1024))
    fixed = numpy.zeros(MB)
    fixed.flags.writeable = False
    for number in range(count):
        tick(number)
        one[number + 10] = 7
    return {
        "equal is not same": one[10] == 7 and other[10] == 1,
        "same is same": same is one,
        "a view": part[:count].tolist() == [7] * count,
        "columns": columns.flags.f_contiguous and columns[3, 4] == 3 * 1024 + 4,
        "fixed": not fixed.flags.writeable and not fixed.any(),
    }


@pytest.mark.parametrize("threads", [False, True])
def test_arrays_come_back_as_they_were(threads):
    """Views, equal arrays, the order in memory and what may be written survive a kill."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    if threads:
        other.start()
    try:
        dying.add(3)
        run = played_to_the_end(lambda: share.options(store="memory:", run_id="r").execute(6))
    finally:
        done.set()
    if threads:
        other.join()
    assert run.resumed_from_step == 3
    assert all(run.result.values()), run.result
    assert run.verify().ok


@workflow(**ALL)
def blocked():
    array, twin = numpy.zeros(MB), None
    tick(0)
    array[0] = 1
    open_file = open(os.devnull)  # noqa: SIM115
    tick(1)
    open_file.close()
    twin = array.copy()
    array[:] = 2
    open_file = None
    tick(2)
    return float(array.sum()), float(twin.sum())


def test_a_checkpoint_that_was_not_taken_leaves_nothing_behind():
    """What was to be in a checkpoint that something else blocked is not taken for stored."""
    with pytest.warns(stepwise.RunWarning, match="open_file"):
        run = blocked.options(store="memory:").execute()
    assert run.result == (2.0 * MB, 1.0)
    assert all(checkpoint.verified for checkpoint in run.checkpoints)
    found = run.locals()
    assert (float(found["array"].sum()), float(found["twin"].sum())) == run.result


# -- chunks that nobody needs, and chunks that are damaged ---------------------------------------


@pytest.mark.parametrize(
    ("retention", "kills"), [("latest_only", ()), ("prune_old", (9, 20)), ("all", (9, 20))]
)
def test_chunks_go_with_the_last_checkpoint_that_needs_them(small, retention, kills):
    """Every chunk that a kept checkpoint needs is there, and no other, whatever is kept."""
    grow = thought("dict")
    program = [*grow, ("cut", 7, "", ""), *grow, ("clear", 0, "", ""), *grow]
    run = played(program, kills, retention=retention)
    assert all(checkpoint.verified for checkpoint in run.checkpoints)
    assert set(names(run, "chunk/")) == {
        f"chunk/{number:012d}"
        for _, loaded in checkpoints_of(run.store, run._seal, run.id)
        for number in Needs.of(loaded.state.needs).all_chunks
    }
    if retention == "latest_only":
        assert len(names(run, "checkpoint/")) == 1


def damage(run, name, how):
    store = open_store(run.store.url)
    epoch = store.acquire(run.id, Owner(os.getpid(), "here", time.time(), "thread"))
    data = bytearray(store.get(run.id, name))
    data[len(data) // 2] ^= 1
    store.write(
        run.id, epoch, Batch(put={name: bytes(data)}) if how == "flip" else Batch(delete=(name,))
    )
    store.release(run.id, epoch)


@pytest.mark.parametrize(
    ("how", "kind"), [("flip", "dict"), ("lose", "Plain"), ("flip", "ndarray"), ("lose", "dict")]
)
def test_a_damaged_chunk_invalidates_what_needs_it(small, how, kind):
    """A chunk that is damaged or lost takes the checkpoints with it that need it, and no others."""
    program = [("append", n, "", kind) for n in range(14)]
    bound = play.options(store="memory:", run_id="damaged")
    dying.add(13)
    with pytest.raises(Killed):
        bound(program, [])
    run = stepwise.get_run("damaged", store="memory:")
    before = [checkpoint.step for checkpoint in run.checkpoints]
    damage(run, names(run, "chunk/")[-1], how)
    verified = [checkpoint.step for checkpoint in run.checkpoints if checkpoint.verified]
    assert verified
    assert verified == before[: len(verified)] != before
    assert not run.verify().ok
    forget_process()
    again = bound.execute(program, [])
    assert again.resumed_from_step == verified[-1]
    right = []
    for each in program:
        messages.change(*each, right, [])
    assert described(again.locals()["listed"]) == described(right)
    assert again.verify().ok


def test_a_damaged_file_of_a_chunk_is_never_restored(tmp_path):
    """A byte of an array that changed on the disk takes all checkpoints with it that hold it."""
    with fresh_store(tmp_path):
        dying.add(3)
        bound = hold.options(store=f"disk:{tmp_path}/s", run_id="damaged", **ALL)
        with pytest.raises(Killed):
            bound("an array of megabytes", "dict", 6)
        (file,) = [each for each in (tmp_path / "s").rglob("*") if each.stat().st_size > 2 * MB]
        data = bytearray(file.read_bytes())
        data[MB] ^= 1
        file.write_bytes(data)
        run = stepwise.get_run("damaged", store=f"disk:{tmp_path}/s")
        assert not any(checkpoint.verified for checkpoint in run.checkpoints)
        assert not run.verify().ok
        forget_process()
        run = bound.execute("an array of megabytes", "dict", 6)
        assert run.resumed_from_step == 0
        assert (run.locals()["value"] == numpy.arange(MB // 2)).all()
        run.store.close()


def test_a_chunk_of_another_time_is_not_the_one_that_is_meant(small):
    """Chunks that verify, under the right numbers, are refused if they are others than those."""
    run = played(thought("dict"))
    vault = Vault(run.store, run._seal, run.id)
    needs = needed(run)
    assert needs.all_chunks
    assert vault.holds(needs)
    assert not vault.holds(needs._replace(links=digest_of([b"another"])))


def test_a_change_while_values_are_put_together_is_found(monkeypatch):
    """What changes while a watch over several values begins is known no more, whatever is left."""
    seal, count = Seal((b"k" * 32,)), itertools.count(1)
    known = KnownValues(
        records=True,
        seal=lambda number, chunk: chunk.seal(seal, "run", number),
        next_chunk=lambda: next(count),
    )
    results = [{"text": "x" * 600, "number": number} for number in range(3)]
    for number, each in enumerate(results, 1):
        known.recorded(number, known.look(each))
    known.update(())
    monkeypatch.setattr(references, "watch_over", lambda _: Watch.broken())  # a thread changes one
    known.make(results, ())
    monkeypatch.undo()
    results[1]["number"] = "another"
    known.drop([known.node(id(results[2]))[0]])
    assert known.node(id(results[1])) is None
    known.update(())
    assert known.node(id(results[1])) is None


class Altered:
    """A store in which the records of a run are what a function makes of them."""

    def __init__(self, store, alter):
        self.store, self.alter = store, alter

    def get(self, run_id, name):
        return self.store.get(run_id, name)

    def read(self, run_id, after=0):
        rows = self.alter(dict(self.store.read(run_id)))
        return iter([each for each in rows.items() if each[0] > after])


def flipped(rows, number, at):
    data = bytearray(rows[number])
    data[at % len(data)] ^= 1 << at % 8
    return {**rows, number: bytes(data)}


ALTERATIONS = {
    "flip": flipped,
    "cut": lambda rows, number, at: {**rows, number: rows[number][: at % len(rows[number])]},
    "longer": lambda rows, number, at: {**rows, number: rows[number] + bytes(1 + at % 9)},
    "lose": lambda rows, number, at: {n: data for n, data in rows.items() if n != number},
    "empty": lambda rows, number, at: {**rows, number: b""},
    "swap": lambda rows, number, at: (
        {**rows, number: rows[1 + at % (len(rows) - 1)]}
        if 1 + at % (len(rows) - 1) != number
        else {n: data for n, data in rows.items() if n != number}
    ),
}


@pytest.mark.parametrize("kind", ["dict", "Plain"])
def test_one_damaged_record_among_many_is_refused(small, tally, kind):
    """Each record that is not as it was sealed is refused, and none that is read with it."""
    run = played(thought(kind, 20))
    needs = needed(run)
    vault = Vault(run.store, run._seal, run.id)
    assert vault.holds(needs)
    chunks = [*map(vault.chunk, needs.all_chunks)]
    numbers = sorted({*needs.records, *itertools.chain(*(each.records for each in chunks))})
    assert len(numbers) > 10
    right = dict(zip(numbers, vault.take(numbers), strict=True))
    rows, trials = dict(run.store.read(run.id)), 0
    for number in numbers:
        for how, alter in ALTERATIONS.items():
            for at in some(range(len(rows[number])), 10, f"{number} {how}"):
                altered = Altered(run.store, functools.partial(alter, number=number, at=at))
                vault = Vault(altered, run._seal, run.id)
                assert not vault.holds(needs), (how, number, at)
                others = [each for each in numbers if each != number]
                assert dict(zip(others, vault.take(others), strict=True)) == {
                    each: right[each] for each in others
                }
                with pytest.raises(DamagedError):
                    next(vault.take([number]))
                trials += 1
    tally("a record among many that are read together", trials)


@given(st.sets(st.integers(1, 500)), st.sets(st.integers(1, 600)))
def test_records_are_found_however_they_lie(wanted, others):
    """Records that lie near each other or far apart are all read, and no others."""
    seal = Seal((b"k" * 32,))
    rows = {
        number: seal.close(identity("run", number), {}, b"%d" % number)[0]
        for number in wanted | others
    }
    store = Altered(SimpleNamespace(read=lambda _: sorted(rows.items())), dict)
    vault = Vault(store, seal, "run")
    assert [*vault.take(sorted(wanted))] == [b"%d" % each for each in sorted(wanted)]


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(1, 255))
def test_an_envelope_with_a_digest_is_verified_whole(payload, at, bits):
    """A payload that is sealed by its digest is refused if any byte of its envelope changed."""
    seal = Seal((b"k" * 32,))
    sha = hashlib.sha256(payload).digest()
    sealed, link = seal.close("here", {"a": 1}, Pieces([memoryview(payload)]), digest=sha)
    assert (bytes(sealed), link) == seal.close("here", {"a": 1}, payload, digest=sha)
    opened = seal.open("here", bytes(sealed))
    assert (opened.header, opened.payload, opened.link) == ({"a": 1}, payload, link)
    damaged = bytearray(bytes(sealed))
    damaged[at % len(damaged)] ^= bits
    wrong = [("here", damaged), ("there", sealed)]
    wrong += [("here", bytes(sealed)[:end]) for end in range(len(sealed))]
    for place, data in wrong:
        with pytest.raises(DamagedError):
            seal.open(place, bytes(data))
        with pytest.raises(DamagedError):
            seal.payload(place, bytes(data))


# -- forks, pruned journals ----------------------------------------------------------------------


def test_a_fork_has_chunks_of_its_own():
    """A fork resumes after its source has been deleted, with the whole conversation."""
    converse = functools.partial(hold, "results of steps", "dict")
    run = hold.options(**ALL).execute(*converse.args, 200)
    fork = run.fork(at=150)
    run.delete()
    assert fork.verify().ok
    assert [each["more"]["n"] for each in fork.locals()["value"]] == list(range(150))
    again = hold.options(run_id=fork.id).execute(*converse.args, 200)
    assert again.resumed_from_step == 150
    assert [each["more"]["n"] for each in again.locals()["value"]] == list(range(200))


def test_a_pruned_journal_keeps_what_checkpoints_need():
    """With ``prune_journal`` the conversation is in the checkpoints, and the records are gone."""
    run = hold.options(prune_journal=True).execute("results of steps", "dict", 500)
    assert len(run.steps) < 450
    assert [each["more"]["n"] for each in run.locals()["value"]] == list(range(500))
    assert run.verify().ok


# -- digests -------------------------------------------------------------------------------------


def plainly(value):
    """Return the digest of a value without anything that was known of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest.Encoder, "grows", False)
        return digest.digest(value)


class Defaults:
    """Reads what its class holds."""

    role = "user"


@dataclasses.dataclass
class Inherits(Defaults):
    n: int
    role: str = "user"

    def __post_init__(self):
        del self.role


def test_a_class_is_part_of_the_digest_of_its_instances(monkeypatch):
    """What a message has from its class is looked at again when that has changed."""
    listed = [Inherits(n) for n in range(100)]
    before = digest.digest(listed)
    monkeypatch.setattr(Inherits, "role", "other")
    assert digest.digest(listed) == plainly(listed) != before


# -- what is known of an instance ----------------------------------------------------------------


class Secret:
    """Leaves something out of what is pickled."""

    def __getstate__(self):
        return {"name": "name", "key": "hidden"}


class Reduces(Plain):
    def __reduce__(self):
        return Plain, ("user", "text")


class Computes(Plain):
    """Answers for attributes that it does not have."""

    def __getattribute__(self, name):
        return super().__getattribute__(name)


class Shadows(Slotted):
    role = property(lambda _: "other")


class Zone(dt.tzinfo):
    """May tell another time tomorrow."""


def unset():
    message = Slotted("user", "text")
    del message.tools
    return message


UNKNOWN = {
    "state": Secret,
    "reduced": lambda: Reduces("user", "text"),
    "attributes": lambda: Computes("user", "text"),
    "shadowed": lambda: Shadows.__new__(Shadows),
    "slot not set": unset,
    "text": lambda: messages.Equal("text"),
    "exception": lambda: ValueError("no"),
    "zone": lambda: AT.replace(tzinfo=Zone()),
    "class": lambda: Plain,
    "set of large": lambda: {"x" * 1000},
    "keys": lambda: {Role.USER: 1},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_known_is_in_no_tree(what):
    """An object whose class may say more than it holds is pickled whole."""
    assert trees.walk([Plain("user", "text")]) is not None
    assert trees.walk([Plain("user", UNKNOWN[what]())]) is None


# -- real crashes, edited classes, no classes ----------------------------------------------------

SCRIPT = """
import dataclasses, os, signal
from enum import Enum
import numpy, pydantic
import stepwise
from stepwise import step, workflow

class Role(Enum):
    USER = "user"
    MODEL = "model"

@dataclasses.dataclass
class Message:
    role: Role
    content: str
    parts: list = dataclasses.field(default_factory=list)

class Kept:
    __slots__ = ("__dict__", "fields")

    def __init__(self, content):
        self.content, self.fields = content, {"content"}

    def __getstate__(self):
        return {"__dict__": self.__dict__, "fields": self.fields}

    def __setstate__(self, state):
        object.__setattr__(self, "__dict__", state["__dict__"])
        self.fields = state["fields"]

class Model(pydantic.BaseModel):
    content: str

@step
def think(number, plain=False):
    if os.environ.get("DIE") == str(number) and not plain:
        os.kill(os.getpid(), signal.SIGKILL)
    print("think", number, flush=True)
    text = str(number) * 700
    return {"role": "assistant", "content": text} if plain else Message(Role.MODEL, text)

class Agent:
    def __init__(self):
        self.history = []

    @workflow
    def run(self, count):
        mine, heard, said, last, kept = [], [], [], None, None
        weights, data = numpy.zeros(150_000), numpy.arange(150_000.0)
        every = iter(list(range(count)))
        for number in every:
            last = think(number)
            mine.append(last)
            self.history.append(think(number, plain=True))
            heard.append(Message(Role.USER, last.content, [number]))
            heard.append(Model(content=last.content))
            heard.append(Kept(last.content))
            said.append({"said": last.content, "by": [number]})
            kept = heard[2]
            if number % 30 == 15:
                changed = f"changed at {number}"
                mine[3].content = heard[0].content = self.history[3]["content"] = changed
                kept.fields.add(str(number))
                weights += data * number
        texts = [str(n) * 700 for n in range(count)]
        assert last is mine[-1] and kept is heard[2]
        assert [each.content for each in mine[4:]] == texts[4:]
        assert [each["content"] for each in self.history[4:]] == texts[4:]
        assert [each["said"] for each in said] == texts
        assert [each["by"] for each in said] == [[n] for n in range(count)]
        assert [each.parts for each in heard[::3]] == [[n] for n in range(count)]
        assert [each.content for each in heard[3:]] == [t for t in texts[1:] for _ in "123"]
        assert all(type(each) is Message and each.role is Role.USER for each in heard[::3])
        assert all(type(each) is Model for each in heard[1::3])
        assert weights[7] == 7.0 * (15 + 45) and weights.flags.writeable
        assert data.sum() == 150_000 * 149_999 / 2
        lengths = len(self.history), len(heard), len(said)
        contents = mine[3].content, heard[0].content, self.history[3]["content"]
        return set(contents), sorted(kept.fields), lengths

if __name__ == "__main__":
    agent = Agent()
    history = agent.history
    print("result", agent.run(60), history is agent.history)
"""
RESULT = "result ({'changed at 45'}, ['15', '45', 'content'], (60, 180, 60)) True"


@pytest.fixture
def start(tmp_path):
    """Start the script, changed first: ``start(die, (old, new), ...)``."""
    script = tmp_path / "script.py"

    def start(die, *edits):
        script.write_text(edited(SCRIPT, *edits), encoding="utf-8")
        environment = {**os.environ, "DIE": str(die), "STEPWISE_QUIET": ""}
        return python(script, cwd=tmp_path, env=environment, code=(0 if die is None else -9))

    return start


@pytest.mark.parametrize(
    ("kills", "edit"),
    [
        ((20, 42, 43), ("@workflow", "@workflow")),
        ((43,), ("@workflow", "@workflow(prune_journal=True)")),
        ((43,), ("class Agent", "stepwise.configure(encrypt=True)\nclass Agent")),
    ],
    ids=["plain", "pruned", "encrypted"],
)
def test_killed_and_resumed(start, kills, edit):
    """A script that is killed again and again has all its messages and arrays each time."""
    done = [start(die, edit) for die in (*kills, None)]
    thought = re.findall(r"^think (\d+)$", "".join(each.stdout for each in done), re.MULTILINE)
    assert thought == [str(number) for number in range(60) for _ in "12"]
    assert RESULT in done[-1].stdout
    home = os.environ["STEPWISE_HOME"]
    sizes = [os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(home) for f in files]
    assert sum(size > MB for size in sizes) <= 4  # the arrays, and the database


def test_a_class_that_is_gone_or_edited(start):
    """Messages get their attributes back when their class has got more; without it, a run replays.

    What is missing is named.  The messages of another program are shown with class and attributes.
    """
    start(50)
    values = stepwise.runs()[0].locals()
    assert len(values["heard"]) == 3 * 50
    assert values["heard"][4 * 3].content == "4" * 700
    assert "Message role=" in repr(values["heard"][0])
    assert values["kept"] is values["heard"][2]
    added = ("    content: str\n    parts", "    content: str\n    cost: int = 0\n    parts")
    start(52, added, ("content, [number]", "content, parts=[number]"))
    done = start(None, ("class Kept:", "class Other:"), ("Kept(", "Other("))
    assert "cannot be loaded" in done.stderr
    assert "replays from the top, 104 steps answered" in done.stderr
    assert RESULT in done.stdout
