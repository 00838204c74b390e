"""The straight way of a usual checkpoint writes what the general way writes.

Random programs are executed both ways, with one clock that only the bodies of steps move.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from store_tools import Recorder

import stepwise
from stepwise import RunStopped, StoreError, step, workflow
from stepwise._checkpoints import checkpoints
from stepwise._journal.seal import to_json
from stepwise._workflows import usual_save

MODULE = [1, 2, 3]
COUNTED = 0


class Clock:
    """The time, which passes in the bodies of steps only.

    A class, not an instance: a run notices that an instance which its module names was changed.
    """

    _now = 0.0

    @classmethod
    def read(cls):
        """Return the time."""
        return cls._now


@step
def saved_echo(value):
    """A plain step, which takes a moment."""
    Clock._now += 0.03
    return value


@step
def saved_failure(value):
    """A step that fails."""
    raise ValueError(repr(value))


@workflow(name="child")
def child(value):
    """A run of its own."""
    return saved_echo(value)


def lines(value):
    """A generator of the user."""
    yield from range(value)


def earlier():
    """Return the messages that a conversation begins with."""
    return []


def of_module(kind, value):
    """Change the module's variables."""
    global COUNTED
    if kind == "global":
        COUNTED += 1
    MODULE.append(value)


@workflow(name="saves")
def saves(script):
    """Checkpoints of each kind, the usual and the others."""
    last, numbers, words, lock = None, [], {}, None
    shared = MODULE if len(script) > 4 else []
    messages = earlier()
    note = None
    position = -1
    for kind, value in script:
        position += 1
        last = saved_echo(value)
        if kind == "list":
            numbers.append(value)
            words[str(position)] = numbers
        elif kind == "shared":
            shared = numbers
        elif kind == "grows":
            for number in range(12):
                messages.append({"role": "tool", "content": saved_echo(value), "number": number})
        elif kind == "noted":
            note = messages[-1] if messages else saved_echo({"content": [value] * 3})
            messages.append(note)
            saved_echo(1)
        elif kind == "nested":
            for number in range(position, 3):
                for letter in "ab":
                    last = saved_echo((number, letter))
        elif kind == "items":
            for each in [1, "two", value]:
                last = saved_echo(each)
        elif kind == "with":
            with contextlib.suppress(ValueError):
                last = saved_echo(value)
                last = saved_failure(value)
        elif kind == "handled":
            try:
                last = saved_failure(value)
            except ValueError as error:
                last = str(error)
            saved_echo(last)
        elif kind == "lock":
            lock = threading.Lock()
            with lock:
                last = saved_echo(1)
            lock = threading.Event()
            saved_echo(2)
            lock = None
        elif kind == "child":
            last = child(value)
        elif kind == "generator":
            for number in lines(2):
                last = saved_echo(number)
        elif kind == "large":
            last = "large" * 2000
            saved_echo(1)
        else:
            of_module(kind, position)
    return [last, numbers, words, shared, messages, note, lock is None]


KINDS = (
    *("list", "shared", "nested", "items", "with", "handled", "lock", "child", "generator"),
    *("large", "global", "module", "grows", "grows", "noted"),
)
ATOMS = st.one_of(st.none(), st.integers(), st.text(max_size=300), st.binary(max_size=900))
VALUES = st.one_of(
    ATOMS,
    st.floats(allow_nan=False),
    st.lists(ATOMS, max_size=3),
    st.dictionaries(st.text(max_size=5), ATOMS, max_size=3),
    st.frozensets(st.integers(), max_size=2),
)
SCRIPTS = st.lists(st.tuples(st.sampled_from(KINDS), VALUES), min_size=1, max_size=6).map(tuple)
OPTIONS = st.fixed_dictionaries(
    {
        "checkpoint_every": st.sampled_from([1, 1, 2, 100]),
        "retention": st.sampled_from(["latest_only", "prune_old", "all"]),
        "prune_journal": st.booleans(),
    }
)


def executed(settled_at, script, options, fails_at):
    """Return the batches, the events and the endings of a program.

    Args:
        settled_at: says what is settled at a point.
    """
    global COUNTED
    store, events, endings = Recorder(fails_at), [], []
    COUNTED, MODULE[:], Clock._now = 0, [1, 2, 3], 1_700_000_000.0
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as stack:
        patched.setattr(usual_save, "settled_at", settled_at)
        for name in ("time", "monotonic", "perf_counter"):
            patched.setattr(time, name, Clock.read)
        stack.callback(stepwise.on_event(events.append))
        for _ in range(3):
            try:
                endings.append(repr(saves.options(store=store, run_id="run", **options)(script)))
                break
            except (RunStopped, StoreError) as error:
                endings.append(repr(error))
    return store.batches, [repr(dataclasses.replace(each, at=0.0)) for each in events], endings


def check(script, options, fails_at=0):
    """Execute a program both ways, and compare; return how many checkpoints were usual."""
    written, is_written = [], usual_save._is_written
    general = executed(lambda *_: None, script, options, fails_at)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            usual_save,
            "_is_written",
            lambda *given: written.append(is_written(*given)) or written[-1],
        )
        found = executed(usual_save.settled_at, script, options, fails_at)
    assert found[2] == general[2]
    assert found[1] == general[1]
    assert len(found[0]) == len(general[0])
    for one, other in zip(found[0], general[0], strict=True):
        assert one == other
    return sum(written)


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@given(SCRIPTS, OPTIONS, st.integers(0, 20))
@example((("nested", 1), ("items", 2)), {"checkpoint_every": 1}, 0)
@example((("handled", 1), ("lock", 2), ("with", 3)), {"checkpoint_every": 1}, 0)
@example((("grows", "x" * 600), ("noted", 2), ("grows", 3)), {"checkpoint_every": 1}, 0)
def test_random_checkpoints_are_written_alike(script, options, fails_at):
    """Each way gives the store the same bytes, reports the same events and resumes alike."""
    check(script, options, fails_at)


def test_a_usual_checkpoint_is_taken_straight():
    """A loop over a few small values takes the straight way at each of its steps."""
    script = (("nested", 1), ("list", "word"), ("nested", 2))
    assert check(script, {"checkpoint_every": 1}) >= 5


def test_growing_messages_take_the_straight_way():
    """So do all but one in eight of a loop that appends to its messages."""
    script = (("grows", "x" * 600), ("grows", b"y" * 700), ("grows", 3))
    assert check(script, {"checkpoint_every": 1}) >= 30


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("dump_few", lambda values, _: json.dumps(sorted(values)).encode()),
        ("usual_text", lambda place, *_: f'{place}"step":0}}'),
    ],
)
def test_the_comparison_sees_a_difference(monkeypatch, name, otherwise):
    """Were a checkpoint written otherwise, the comparison would fail."""
    monkeypatch.setattr(usual_save, name, otherwise)
    with pytest.raises(AssertionError):
        check((("nested", 1), ("list", "word"), ("nested", 2)), {"checkpoint_every": 1})


FACTS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
NAMED = st.dictionaries(st.text(max_size=5), FACTS, max_size=2)
STATES = st.builds(
    checkpoints.State,
    *(st.text(max_size=8), st.integers(), st.text(max_size=8), st.text(max_size=8)),
    *(st.lists(st.text(max_size=8), max_size=2), st.integers(), st.integers()),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.lists(st.lists(FACTS, max_size=2), max_size=2),
    st.tuples(
        st.integers(),
        st.just("00ff"),
        st.integers(),
        st.tuples(
            st.floats(), st.integers(), st.integers(), st.floats(), st.booleans(), st.booleans()
        ),
    ).map(list),
    st.lists(st.lists(FACTS, max_size=2), max_size=2),
    NAMED,
    at=st.floats(),
    needs=NAMED,
    changed=st.lists(st.lists(FACTS, max_size=2), max_size=2),
    state=st.lists(st.lists(st.text(max_size=5), max_size=2), max_size=2),
    serial=st.integers(),
    before=st.one_of(st.none(), st.text(max_size=5)),
    seconds=st.floats(),
    usage=NAMED,
    taken=NAMED,
    told=st.booleans(),
)


@given(STATES)
def test_a_header_is_the_json_of_its_state(state):
    """The header of a checkpoint is what ``json`` makes of the state, to the byte."""
    assert checkpoints.header_text(state) == to_json(state._asdict())


@given(st.one_of(st.floats(-1e11, 1e11), st.integers(-(10**13), 10**13).map(lambda n: n / 2000)))
@example(0.0005)
@example(-0.0004)
def test_seconds_are_written_as_they_are_rounded(seconds):
    """What formatting makes of seconds is the text of the rounded number, to the byte."""
    assert checkpoints.thousandths(seconds) == repr(round(seconds, 3))
