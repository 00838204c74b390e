"""The straight ways of a plain call and of a usual checkpoint write what the general ways write.

Every byte of every batch is compared.  Random programs are executed both ways, with one clock that
only the bodies of steps move.  What the store is given, the events and the results have to be
equal, also when a program is cut off and resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import random
import threading
import time
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from store_tools import Recorder

import stepwise
from stepwise import (
    NotRecordableError,
    OutsideRunError,
    RunStopped,
    StoreError,
    current_step,
    step,
    tool,
    workflow,
)
from stepwise._calls import plain
from stepwise._journal.journal import read_entries, seal_for
from stepwise._matching import subjects
from stepwise._workflows import usual_save
from stepwise.stores.memory import MemoryStore

# Several large values in one example are a long text for Hypothesis, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


class Clock:
    """The time, which passes in the bodies of steps only."""

    def __init__(self):
        self.now = 1_700_000_000.0
        self.interrupted = False
        self.flaked = 0

    def __call__(self):
        return self.now


class World:
    """What the bodies of steps act on."""

    clock: ClassVar[Clock] = Clock()


@dataclasses.dataclass
class Point:
    """A value of a class of the user."""

    x: int
    label: str = ""


@step(name="plain echo")
def echo(value):
    """A plain step, which takes a moment."""
    World.clock.now += 0.03
    return value


@step(name="plain named")
def named(value, scale=2, *, note="none"):
    """A step with defaults."""
    World.clock.now += 0.02
    return [value] * scale, note


@step
def many(first, *others, **more):
    """A step with arguments of any number."""
    return first, others, more


@step(retries=2, backoff=0.0, name="plain steady")
def steady(value: int) -> int:
    """A step that may be retried, and need not be."""
    return value


@step(retries=2, backoff=0.0)
def flaky(value):
    """A step that fails every other time."""
    World.clock.flaked += 1
    if World.clock.flaked % 2:
        raise ValueError(value)
    return value


@step
def failing(value):
    """A step that fails."""
    World.clock.now += 0.01
    raise ValueError(f"no {value!r}")


@step
def grow(items, value):
    """A step that changes its argument."""
    items.append(value)
    return len(items)


@step
def lock(value):
    """A step whose value cannot be recorded."""
    return threading.Lock()


@step(key=("value",), ignore=("trace",), redact=("word",))
def chosen(value, trace=None, word=""):
    """A step with a key, and with arguments that do not count or are not shown."""
    return value


@step
def within(value):
    """A step that calls others."""
    return [echo(value), named(value, note="within")]


@tool(side_effect=True, name="plain send")
def send(value):
    """A side effect."""
    World.clock.now += 0.04
    return value


@tool(side_effect=True, fails_cleanly=ValueError, retries=1, backoff=0.0)
def flaky_send(value):
    """A side effect that proves every other time that it did not happen."""
    World.clock.flaked += 1
    if World.clock.flaked % 2:
        raise ValueError(value)
    return current_step().idempotency_key


@tool(side_effect=True, idempotent=True, in_doubt="retry")
def keyed_send(value):
    """A side effect that may be repeated, with steps inside, and is interrupted the first time."""
    return cut(value), send(value), current_step().idempotency_key


@tool(side_effect=True, in_doubt="skip")
def failing_send(value):
    """A side effect of which nobody knows whether it happened."""
    raise ValueError(value)


@tool(side_effect=True, in_doubt=lambda _: stepwise.Landed(1))
def grow_send(items, value):
    """A side effect that changes its argument, and whose value cannot always be recorded."""
    items.append(value)
    return value if len(items) % 2 else threading.Lock()


@tool(side_effect=True, compensate=lambda call: None)
def undone_send(value):
    """A side effect whose arguments are recorded, to undo it."""
    return value


@step(secret=("token",))
def login(token):
    """A step that is given a secret."""
    return 1


@step
def leak(value):
    """A step that returns the secret of another."""
    login("secret of " + "a step")
    return "the secret of a step"


@step
def cut(value):
    """A step that is interrupted the first time."""
    if not World.clock.interrupted:
        World.clock.interrupted = True
        raise KeyboardInterrupt
    return value


@step
def slow(value):
    """A step that takes longer than the time after which the inbox is looked at."""
    World.clock.now += 0.7
    return value


@step
def awaited(value):
    """A plain function that returns a coroutine."""

    async def rest():
        return value

    return rest()


class Desk:
    """An instance with a step, whose attribute the step changes."""

    def __init__(self):
        self.notes = []

    @step
    def note(self, value):
        """A method."""
        self.notes.append(value)
        return len(self.notes)


def helper(value):
    """A function of the user that calls a step."""
    return echo(value)


def make(number):
    """Give steps of one name, as a factory does."""

    @step
    def made(value):
        return number, value

    return made


def refused(function, value):
    """Call what raises; give the text of the exception."""
    try:
        return function(value)
    except (ValueError, NotRecordableError) as error:
        return str(error)


def helped_send(value):
    """A function of the user that makes a side effect."""
    return send(value)


SENDS = {
    "flaky send": flaky_send,
    "keyed send": keyed_send,
    "failing send": failing_send,
    "undone send": undone_send,
    "helped send": helped_send,
}


def act(kind, value, kept, desk):
    """Calls that are not plain, and some that are, by way of a helper."""
    if kind == "method":
        return desk.note(value)
    if kind == "helper":
        return helper(value)
    if kind == "made":
        return make(1)(value), make(2)(value)
    if kind in SENDS:
        return refused(SENDS[kind], value)
    if kind == "sends":
        return refused(lambda value: grow_send(kept, value), value)
    if kind == "leak":
        return leak(value)
    if kind == "coroutine":
        awaited(value).close()
        return None
    return grow(kept, value)


@workflow(name="program")
def program(script):
    """A loop over any of the calls."""
    kept, desk, last = [], Desk(), None
    for kind, value in script:
        if kind == "echo":
            last = echo(value)
        elif kind == "named":
            last = named(value, 3, note="here")
        elif kind == "default":
            last = named(value=value)
        elif kind == "many":
            last = many(value, 1, 2, word=value)
        elif kind == "steady":
            last = steady(value)
        elif kind == "flaky":
            last = flaky(value)
        elif kind == "chosen":
            last = chosen(value, trace=kind, word="secret")
        elif kind == "within":
            last = within(value)
        elif kind == "send":
            last = send(value)
        elif kind == "cut":
            last = cut(value)
        elif kind == "slow":
            last = slow(value)
        elif kind == "failing":
            try:
                last = failing(value)
            except ValueError as error:
                last = echo(str(error))
        elif kind == "unhandled":
            try:
                failing(value)
            except ValueError:
                last = None
        elif kind == "lock":
            last = refused(lock, value)
        elif kind == "two":
            last = [echo(value), steady(1), [each * 2 for each in (echo(1), echo(2))]]
        else:
            last = act(kind, value, kept, desk)
        kept.append(last)
    return kept


@workflow(name="counting")
def counting(count, word):
    """Few small variables, and a global that is read."""
    total, text = 0, ""
    for number in range(count):
        total += steady(number)
        text = echo(word)
    while total > 0:
        total -= 1 + len(named(text, 1)[0])
    return total, text


@workflow(name="plainly")
def plainly(script):
    """A loop whose every call is plain, as most are."""
    last = None
    for value in script:
        last = echo(value)
    return last


@workflow(name="turning")
def turning(script):
    """Variables that come, go and change their kind, in loops of several kinds."""
    held, moment = None, 0.0
    for value in script:
        for number in range(2):
            word = echo(number)
            if value == 1:
                held = [value, word]
            elif value == 2:
                held = {"word": word, "value": (number, held)}
            elif value == 3:
                held = held * 2 if isinstance(held, str) else "x" * 900
        if value == 4:
            again = iter([1, 2, 3])
            for each in again:
                steady(each)
                for other in again:
                    steady(other)
            del again
        elif value == 5:
            moment = time.time() + random.random()
            steady(0)
            moment = 0.0
        elif value == 6:
            del held
            steady(1)
            held = None
        elif value == 7:
            send(number)
        elif value == 8:
            with contextlib.suppress(ValueError):
                failing(steady(2))
    return held, moment


@workflow(name="sending")
def sending(script):
    """A loop whose every call is a side effect."""
    last = None
    for value in script:
        last = send(value)
    return last


@step
async def aecho(value):
    """A coroutine function, which lets others run."""
    World.clock.now += 0.03
    await asyncio.sleep(0)
    return value


@step(retries=1, backoff=0.0)
async def aflaky(value):
    """A coroutine function that fails every other time."""
    World.clock.flaked += 1
    if World.clock.flaked % 2:
        raise ValueError(value)
    return value


@step
async def agrow(items, value):
    """A coroutine function that changes its argument, and calls a step."""
    items.append(await aecho(value))
    return len(items)


@tool(side_effect=True, fails_cleanly=ValueError, in_doubt="retry")
async def asend(value):
    """A side effect that lets others run, and fails every other time."""
    await aecho(value)
    World.clock.flaked += 1
    if World.clock.flaked % 2:
        raise ValueError(value)
    return cut(value)


@step(timeout=100.0)
async def alimited(value):
    """A coroutine function with a timeout."""
    return value


async def ahelper(value):
    """A coroutine function of the user that calls steps of both kinds."""
    return await aecho(value), echo(value)


@workflow(name="aprogram")
async def aprogram(script):
    """A loop over coroutine functions, alone and side by side."""
    kept, last = [], None
    for kind, value in script:
        if kind == "aecho":
            last = await aecho(value)
        elif kind == "echo":
            last = echo(value)
        elif kind == "aflaky":
            last = await aflaky(value)
        elif kind == "asend":
            with contextlib.suppress(ValueError):
                last = await asend(value)
        elif kind == "asends":
            last = await asyncio.gather(*map(asend, range(2)), return_exceptions=True)
        elif kind == "agrow":
            last = await agrow(kept, value)
        elif kind == "alimited":
            last = await alimited(value)
        elif kind == "ahelper":
            last = await ahelper(value)
        elif kind == "awaited":
            last = await awaited(value)
        elif kind == "cut":
            last = cut(value)
        elif kind == "failing":
            try:
                last = failing(value)
            except ValueError as error:
                last = await aecho(str(error))
        else:
            last = await asyncio.gather(*[aecho(each) for each in range(3)], ahelper(value))
        kept.append(last)
    return kept


AKINDS = (
    *("aecho", "echo", "aflaky", "agrow", "alimited", "ahelper", "awaited", "cut", "failing"),
    *("gather", "asend", "asends"),
)
KINDS = (
    *("echo", "named", "default", "many", "steady", "flaky", "chosen", "within", "send", "cut"),
    *("slow", "failing", "unhandled", "lock", "two", "method", "helper", "made", "coroutine"),
    *("grow", "leak", "sends", *SENDS),
)
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=1500),
    st.just(b"large" * 30_000),
    st.dates().map(lambda date: dt.datetime(date.year, date.month, date.day)),  # noqa: DTZ001
)
VALUES = st.one_of(
    ATOMS,
    st.lists(ATOMS, max_size=3),
    st.dictionaries(st.text(max_size=5), ATOMS, max_size=3),
    st.tuples(st.integers(), st.text(max_size=5)),
    st.frozensets(st.integers(), max_size=3),
    st.builds(Point, st.integers(), st.text(max_size=5)),
)
SCRIPTS = st.lists(st.tuples(st.sampled_from(KINDS), VALUES), min_size=1, max_size=8)
OPTIONS = st.fixed_dictionaries(
    {
        "checkpoint_every": st.sampled_from([1, 1, 2, 100]),
        "durability": st.sampled_from(["fsync", "os"]),
        "retention": st.sampled_from(["latest_only", "prune_old", "all"]),
    }
)


def no_call(*_, **__):
    """Leave every call to the general way."""


def executed(begin, function, arguments, options, *, fails_at=0, listens=True, interrupted_at=0):
    """Execute a program, again until it is not cut off any more.

    Args:
        begin: stands in for what decides whether a call is plain; with ``no_call``, no
            checkpoint is usual, either.
        interrupted_at: before the body of this call, counted from 1, Ctrl-C is pressed.

    Returns:
        the batches that the store was given, the events, and how the attempts ended.
    """
    store, events, endings = Recorder(fails_at), [], []
    World.clock = Clock()
    random.seed(0)
    subjects._left.clear()  # what the process knows of runs of that id that did not complete

    started = itertools.count(1)

    def interrupting(event):
        if event.kind == "step_started" and next(started) == interrupted_at:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as stack:
        patched.setattr(plain, "_begin", begin)
        if begin is no_call:
            patched.setattr(usual_save, "settled_at", no_call)
        for name in ("time", "monotonic", "perf_counter"):
            patched.setattr(time, name, World.clock)
        if listens:
            stack.callback(stepwise.on_event(events.append))
        if interrupted_at:
            stack.callback(stepwise.on_event(interrupting))
        for _ in range(4):
            try:
                run = function.options(store=store, run_id="run", **options)
                value = run(*arguments)
                if function is aprogram:
                    value = asyncio.run(value)
                endings.append(repr(value))
                break
            except (ValueError, RunStopped, KeyboardInterrupt, NotRecordableError) as error:
                endings.append(repr(error))
    # The moment of an event is that of the machine's clock.
    return store.batches, [repr(dataclasses.replace(each, at=0.0)) for each in events], endings


def check(function, arguments, options, **cut):
    """Execute a program both ways, and compare; give the number of calls that were plain."""
    taken, take_off = [], plain._take_off

    def counted(*given):
        taken.append(True)
        return take_off(*given)

    general = executed(no_call, function, arguments, options, **cut)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain, "_take_off", counted)
        straight = executed(plain._begin, function, arguments, options, **cut)
    if straight[0] != general[0]:  # the first execution in a process may share other texts
        general = executed(no_call, function, arguments, options, **cut)
    assert straight[2] == general[2]
    assert straight[1] == general[1]
    assert len(straight[0]) == len(general[0])
    for one, other in zip(straight[0], general[0], strict=True):
        assert one == other
    return sum(taken)


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@pytest.mark.filterwarnings("ignore:coroutine")
@given(SCRIPTS, OPTIONS, st.booleans(), st.booleans())
def test_random_programs_are_recorded_alike(script, options, frozen, listens):
    """Each way gives the store the same bytes, tells the same events and returns the same."""
    arguments = (tuple(script) if frozen else script,)
    check(program, arguments, options, listens=listens)


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@pytest.mark.filterwarnings("ignore:coroutine")
@given(SCRIPTS, OPTIONS, st.integers(2, 20))
def test_a_program_that_is_cut_off_is_resumed_alike(script, options, fails_at):
    """After a failure of the store, each way resumes at the same place with the same records."""
    check(program, (tuple(script),), options, fails_at=fails_at)


@given(st.integers(0, 5), st.text(max_size=40), OPTIONS, st.integers(0, 25))
@example(3, "word", {"checkpoint_every": 1}, 0)
def test_small_programs_are_recorded_alike(count, word, options, fails_at):
    """So it is where a checkpoint holds a few small variables, and every call is plain."""
    assert check(counting, (count, word), options, fails_at=fails_at) or not count


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@given(st.lists(st.integers(0, 8), max_size=7).map(tuple), OPTIONS, st.integers(0, 40))
@example((0, 0, 3, 3, 3, 1, 2, 0), {"checkpoint_every": 1}, 0)
def test_checkpoints_of_changing_variables_are_written_alike(script, options, fails_at):
    """So it is where variables come and go, change their kinds, and are too large or unplain."""
    check(turning, (script,), options, fails_at=fails_at)


def test_most_checkpoints_of_a_loop_are_usual(monkeypatch):
    """From the second round of a loop on, its checkpoints take the straight way."""
    found, is_written = [], usual_save._is_written
    monkeypatch.setattr(
        usual_save, "_is_written", lambda *given: found.append(is_written(*given)) or found[-1]
    )
    check(counting, (20, ""), {"checkpoint_every": 1})
    assert found.count(True) >= 35
    assert not found.count(False)


@given(st.lists(VALUES, min_size=1, max_size=4).map(tuple), OPTIONS)
def test_calls_are_plain_with_any_value(script, options):
    """A call by the workflow's own code is plain, whatever it is given and returns."""
    assert check(plainly, (script,), options) == len(script)


@given(st.lists(VALUES, min_size=1, max_size=4).map(tuple), OPTIONS, st.integers(0, 20))
@example((1, 2, 3), {}, 4)
def test_side_effects_are_plain(script, options, fails_at):
    """A side effect takes the straight way too, also where the store fails in the middle of it."""
    send.__stepwise_step__.looked_for_caches = True  # the first call of a process looks for some
    taken = check(sending, (script,), options, fails_at=fails_at)
    assert taken == len(script) or fails_at


def test_a_side_effect_is_announced_before_its_body_and_recorded_after_it():
    """When the body begins, its announcement is flushed; the outcome follows, flushed as well."""
    store = Recorder()

    @tool(side_effect=True)
    def look():
        return batches(store)

    @workflow
    def looking():
        return [look() for _ in range(2)], look(), look()

    found = looking.options(store=store, run_id="run", checkpoint_every=100)()
    for seen in (*found[0], *found[1:]):
        assert seen[-1] == ("Intent", True)
    assert batches(store)[-2:] == [("Outcome", True), ("Ended", True)]


def test_a_secret_given_within_a_body_is_not_shown():
    """A returned secret is masked, though the run knew none when the call began."""

    @workflow
    def leaking():
        return leak(1)

    leaking.options(store="memory:leaks", run_id="run")()
    shown = [each.preview for each in stepwise.get_run("run", store="memory:leaks").steps]
    assert shown == ["'the <secret>'", "1"]


def batches(store):
    """The kind of the last record of each batch so far, and whether the batch was flushed."""
    kinds = [
        type(each.record).__name__ for each in read_entries(store, seal_for(store), "run", None)
    ]
    return [
        (kinds[batch.records[-1][0] - 1], batch.durable)
        for _, _, batch in store.batches
        if batch.records
    ]


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@pytest.mark.filterwarnings("ignore:coroutine")
@given(SCRIPTS, OPTIONS, st.integers(1, 10))
@example([("send", 1), ("keyed send", 2)], {}, 2)
def test_ctrl_c_before_a_body_is_met_alike(script, options, interrupted_at):
    """A side effect that was announced and not made is in doubt, a step is made again."""
    check(program, (tuple(script),), options, interrupted_at=interrupted_at)


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@pytest.mark.parametrize(
    "name", ["preview", "_is_usual", "_UNCHANGING", "idempotency_key", "_may_announce"]
)
def test_the_comparison_sees_a_difference(monkeypatch, name):
    """Were a record made otherwise, or a call plain that is not, the comparison would fail."""
    otherwise = {
        "preview": str,
        "_is_usual": lambda *_, **__: True,
        "_UNCHANGING": {list, int},
        "idempotency_key": lambda *_: "another",
        "_may_announce": lambda *_: True,
    }
    monkeypatch.setattr(plain, name, otherwise[name])
    sends = [("send", 4), ("undone send", 5)] * 2
    script = (("echo", "text"), ("within", 1), ("failing", 2), ("grow", 3), *sends)
    with pytest.raises(AssertionError):
        check(program, (script,), {"checkpoint_every": 1})


@pytest.mark.filterwarnings("ignore::stepwise.StepwiseWarning")
@given(
    st.lists(st.tuples(st.sampled_from(AKINDS), VALUES), min_size=1, max_size=6).map(tuple),
    OPTIONS,
    st.integers(0, 20),
)
def test_coroutine_functions_are_recorded_alike(script, options, fails_at):
    """An asynchronous program is recorded alike, also where it is cut off and resumed."""
    check(aprogram, (script,), options, fails_at=fails_at)


@pytest.mark.parametrize("fails_at", [2, 4, 6, 8])  # the batches of outcomes
def test_a_run_that_stopped_executes_no_plain_call(fails_at):
    """After its store failed, a run that swallows the error executes no other body."""
    done, stops = [], []

    @step
    def note(number):
        assert not stops
        done.append(number)

    @workflow(name="stubborn")
    def stubborn():
        for number in range(5):
            try:
                note(number)
            except StoreError as error:
                stops.append(error)

    with pytest.raises(StoreError):
        stubborn.options(store=Recorder(fails_at=fails_at), run_id="run")()
    assert stops
    assert done == [*range(6 - len(stops))]


def test_a_call_after_the_run_has_ended_is_refused():
    """A thread that outlives the workflow gets an error instead of a step that nobody records."""
    done, ended, errors, threads = [], threading.Event(), [], []

    @step
    def note(number):
        done.append(number)

    def late():
        ended.wait()
        try:
            note(2)
        except OutsideRunError as error:
            errors.append(error)

    @workflow(name="hasty")
    def hasty():
        note(1)
        threads.append(threading.Thread(target=late))
        threads[0].start()

    hasty.options(store=MemoryStore(), run_id="run")()
    ended.set()
    threads[0].join()
    assert (done, len(errors)) == ([1], 1)
