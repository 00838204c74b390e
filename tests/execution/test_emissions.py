"""What a run says, killed and resumed at any moment: a simulation of runs, and a small model."""

import contextlib
import random
import signal
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from stepwise._execution import emissions as emissions_module
from stepwise._execution.emissions import Emissions
from stepwise._journal.seal import ephemeral_seal
from stepwise._journal.stream import StreamLog
from stepwise._runs.streaming import RunStream
from stepwise._runtime.interrupts import raise_from_signal
from stepwise._values.codec import Codec
from stepwise.stores.memory import MemoryStore


class KilledError(Exception):
    """The process of a run dies here."""


def say(name):
    return ("say", name)


def step(name, *inside, fails=0):
    return ("step", name, inside, fails)


class SimulatedRun:
    """A run in a world that can kill it: programs are trees of what is said and of steps.

    What a step says names the execution, so that what is said twice is told apart.
    """

    def __init__(self, choose):
        self.choose = choose
        self.store, self.seal = MemoryStore(), ephemeral_seal()
        self.recorded = {}  # by step: its number, the numbers inside, what it said
        self.checkpoints = [(0, ())]
        self.executions = 0
        self.status = "running"
        self.readers = [Reader(self) for _ in range(4)]
        self.patience = 0

    def begin(self, emissions_of=Emissions):
        """A new process takes over; it reads the log from the checkpoint that it resumes at."""
        journal = SimpleNamespace(store=self.store, seal=self.seal, run_id="r", fsync=True)
        self.in_flight = {}
        self.emissions = emissions_of(journal, Codec(), self.in_flight)
        self.emissions._rouse = lambda *_: None  # the simulation decides when it is written
        at, state = self.choose(self.checkpoints)
        self.checkpoints = [each for each in self.checkpoints if each[0] <= at]
        answering = {n for number, inner, _ in self.recorded.values() for n in (number, *inner)}
        self.emissions.take_over(state, answering, replays=True)
        return at

    def attempt(self, program, patience):
        """Execute the program from a checkpoint on, until the process is killed; say if it ends."""
        self.patience = patience
        at = self.begin()
        try:
            for place in range(at, len(program)):
                self.execute(program[place], ())
                if self.choose((True, False)):
                    self.checkpoints.append((place + 1, self.emissions.state()))
            self.emissions.end()
        except KilledError:
            if self.choose((True, False)):
                self.emissions.flush()  # a moment before
            self.emissions._log.release()
            return False
        self.status = "completed"
        self.emissions.close(ended=True)
        return True

    def execute(self, node, around):
        self.live()
        if node[0] == "say":
            self.emissions.emit(node[1], "main", around)
            return [node[1]], []
        _, name, inside, fails = node
        if name not in self.recorded:
            self.make(name, inside, fails, around)
        else:
            number, inner, _ = self.recorded[name]
            self.emissions.answered(number, inner, around)
        number, inner, said = self.recorded[name]
        return said, [number, *inner]

    def make(self, name, inside, fails, around):
        numbers = [number for number, _, _ in self.recorded.values()]
        number = max([*numbers, *self.in_flight], default=0) + 1
        self.in_flight[number] = 1
        for attempt in range(fails + 1):
            self.executions += 1
            said, inner = [f"{name} begins {self.executions}"], []
            self.emissions.emit(said[0], "main", (*around, number))
            for each in inside:
                more, numbers = self.execute(each, (*around, number))
                said, inner = said + more, inner + numbers
            if attempt < fails:
                self.emissions.withdraw(number)
            self.live()
        self.emissions.flush()
        self.recorded[name] = number, tuple(inner), said
        del self.in_flight[number]

    def live(self):
        self.patience -= 1
        if self.patience < 0:
            raise KilledError
        if self.choose((True, False)):
            self.emissions.flush()
        if self.choose((True, False, False)):
            self.choose(self.readers).read()

    def said(self, program):
        """The model: what the execution that counts has said, in order."""
        found = []
        for node in program:
            found += [node[1]] if node[0] == "say" else self.recorded[node[1]][2]
        return found

    def stream(self, after=None):
        facts = SimpleNamespace(status=self.status, superseded="", created_at=0.0)
        log = StreamLog(self.store, self.seal, "r")
        return RunStream(log, lambda: facts, "main", after, follow=False)


class Reader:
    """A reader that comes and goes, and applies what it gets."""

    def __init__(self, run):
        self.run, self.items, self.after = run, {}, None

    def read(self, most=None):
        for each in self.run.stream(self.after):
            self.after = each.offset
            if each.kind == "item":
                assert all(each.offset > other for other in self.items), "an offset twice"
                self.items[each.offset] = each.value
            elif each.kind == "reset":
                assert any(offset >= each.value for offset in self.items), "a reset for nothing"
                self.items = {n: v for n, v in self.items.items() if n < each.value}
            most = None if most is None else most - 1
            if most == 0:
                return


NAMES = iter(range(10**9))


def programs():
    """Programs: sayings of the workflow, steps in steps, attempts that fail."""
    sayings = st.sampled_from("abc").map(say)
    leaves = st.one_of(sayings, st.integers(0, 2).map(lambda fails: ("step", "", (), fails)))
    nodes = st.recursive(
        leaves,
        lambda inner: st.tuples(
            st.just("step"), st.just(""), st.lists(inner, max_size=3).map(tuple), st.integers(0, 2)
        ),
        max_leaves=5,
    )
    return st.lists(nodes, min_size=1, max_size=6).map(lambda found: named(found, [0]))


def named(nodes, count):
    """The nodes with a name for each step."""
    found = []
    for node in nodes:
        if node[0] == "step":
            count[0] += 1
            name = f"s{count[0]}"
            found.append(("step", name, tuple(named(node[2], count)), node[3]))
        else:
            found.append(node)
    return found


@given(programs(), st.integers(0, 2**32), st.integers(0, 4), st.booleans())
def test_any_program_killed_anywhere(program, seed, kills, edits):
    """After any kills, edits and resumes each reader has what the execution that counts has said.

    Nothing is lost or doubled, in order; nobody gets a reset for what it has not seen.
    """
    dice = random.Random(seed)
    run = SimulatedRun(dice.choice)
    for _ in range(kills):
        if run.attempt(program, dice.randrange(30)):
            break
        if edits:  # the code after the last kept checkpoint says something else
            at = max(place for place, _ in run.checkpoints)
            program = [
                say(dice.choice("abc")) if node[0] == "say" and place >= at else node
                for place, node in enumerate(program)
            ]
    else:
        while not run.attempt(program, 10**6):
            pass
    expected = run.said(program)
    assert [each.value for each in run.stream() if each.kind == "item"] == expected
    for reader in run.readers:
        reader.read(dice.choice((1, 2, None)))
        reader.read()
        assert [*reader.items.values()] == expected


def test_the_model_sees_a_doubled_item():
    """Without the rule that withdraws old items, the same simulation finds what is said twice."""
    run = SimulatedRun(lambda options: options[0])
    program = [say("a"), step("s1", say("x")), say("b")]
    assert not run.attempt(program, 3)
    run.emissions.flush()
    run.checkpoints = run.checkpoints[:1]
    run.begin()
    run.patience = 99
    for stream in run.emissions._streams.values():
        for span in stream.spans:
            span.old = False
        stream.find_old()
    for node in program:
        run.execute(node, ())
    run.emissions.close(ended=True)
    assert [each.value for each in run.stream() if each.kind == "item"] != run.said(program)


@pytest.mark.parametrize("value", [lambda: 1, open])
def test_a_value_that_cannot_be_recorded(value, tmp_path):
    """An emission that cannot be recorded is an error that names the stream and the value."""
    if value is open:
        value = open(tmp_path / "file", "w")  # noqa: SIM115

    @stepwise.workflow
    def agent():
        stepwise.emit([value], "progress")

    if callable(value):
        agent()  # code is recorded by value, as in a step's result
        return
    with value, pytest.raises(stepwise.NotRecordableError, match="emitted to 'progress'"):
        agent()


@pytest.mark.parametrize("name", ["", " x", "a\nb", 7, "x" * 201])
def test_a_stream_has_a_printable_name(name):
    """The name of a stream is refused like that of a signal, where it is given."""
    with pytest.raises(stepwise.ConfigurationError, match="cannot be the name of a stream"):
        stepwise.emit("x", name)


def test_the_limit():
    """Beyond ``stream_limit`` an emission is an error that says how much there is, and the way."""
    stepwise.configure(stream_limit=10)

    @stepwise.workflow
    def agent():
        stepwise.emit("12345")
        stepwise.emit("1234567")

    with pytest.raises(stepwise.NotRecordableError, match=r"5 bytes, and 7 more .* limit of 10"):
        agent()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_line(number):
    """Ctrl-C or SIGTERM while something is said leaves no item half said."""
    place, places = 0, 1

    def trace(frame, event, _):
        nonlocal place
        if frame.f_code.co_filename != emissions_module.__file__:
            return None
        if event == "line":
            place += 1
            if place == at:
                signal.raise_signal(number)
        return trace

    def said(emissions):
        emissions.emit("before", "main", ())
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            sys.settrace(trace)
            try:
                emissions.emit("maybe", "main", (1,))
            finally:
                sys.settrace(None)
        emissions.emit("after", "main", ())
        emissions.flush()

    known = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: raise_from_signal(SystemExit()))
    try:
        for at in range(1, 1000):
            run, place = SimulatedRun(lambda options: options[0]), 0
            run.begin()
            said(run.emissions)
            run.status = "completed"
            *items, _ = run.stream()
            values = [each.value for each in items]
            assert [each for each in values if each != "maybe"] == ["before", "after"], at
            assert [each.offset for each in items] == [*range(len(values))]
            places = max(places, place)
            if place < at:
                break
    finally:
        signal.signal(signal.SIGTERM, known)
    assert places > 20
