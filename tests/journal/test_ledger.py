"""The accounts of a limit, without a store: against a model that looks at every window."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwise._journal.ledger import Figures, Ledger, Over

HOLDERS = ("a", "b", "c")
LIMITS = st.none() | st.integers(1, 6)
PARTS = (0.0, 0.0001, 0.004, 0.006, 0.3, 0.9, 0.991, 0.996, 0.9999, 1.0, 1.02)  # of a window
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "end", "end late", "give back", "die", "stored"]),
        st.sampled_from(HOLDERS),
        st.integers(1, 5),
        st.sampled_from(PARTS),
    ),
    max_size=40,
)


class Model:
    """A provider's view: when each request was granted and over, and what it took."""

    def __init__(self, figures):
        self.figures, self.ledger, self.now = figures, Ledger(figures), 1000.0
        self.open = {holder: [] for holder in HOLDERS}  # [granted, tokens, ended]
        self.unsaid = {holder: [] for holder in HOLDERS}
        self.made, self.most_open = [], 0

    def granted(self, holder, tokens):
        each = [self.now, tokens, math.inf]
        self.open[holder].append(each)
        self.made.append(each)

    def report(self, holder, waiting=()):
        over, self.unsaid[holder] = self.unsaid[holder], []
        claim = self.open[holder]
        self.ledger.tick(self.now)
        self.ledger.report(
            holder,
            self.now,
            [Over(end, 1, tokens) for _, tokens, end in over],
            (len(claim), sum(tokens for _, tokens, _ in claim)),
        )
        self.ledger.queue(
            holder, self.now, {f"run {holder}": (self.now, waiting)} if waiting else {}
        )

    def play(self, kind, holder, number, part):
        self.now += part * self.figures.per
        open_ = self.open[holder]
        if kind == "ask":
            most = self.figures.tokens or 5
            self.report(holder, [min(most, n) for n in range(1, number + 1)])
            for wants in self.ledger.grant(holder, self.now).values():
                for tokens in wants:
                    self.granted(holder, tokens)
        elif kind.startswith("end"):
            for each in [open_.pop(0) for _ in range(min(number, len(open_)))]:
                each[2] = self.now
                self.unsaid[holder].append(each)
            if kind == "end":
                self.report(holder)
        elif kind == "give back":
            for each in [open_.pop() for _ in range(min(number, len(open_)))]:
                self.made = [other for other in self.made if other is not each]
            self.report(holder)
        elif kind == "die":  # what it had sent may still arrive until somebody notices
            for each in (*open_, *self.unsaid[holder]):
                each[2] = min(each[2], self.now)
            self.open[holder], self.unsaid[holder] = [], []
            self.ledger.tick(self.now)
            self.ledger.bury(holder, self.now)
        else:
            self.ledger = Ledger.from_data(self.ledger.to_data())

    def windows(self):
        """What may have arrived in each window: the requests and the tokens of each."""
        for start in {moment for each in self.made for moment in each[::2] if moment < math.inf}:
            inside = [
                each
                for each in self.made
                if each[0] < start + self.figures.per and each[2] >= start
            ]
            yield len(inside), sum(tokens for _, tokens, _ in inside)


@given(st.tuples(LIMITS, LIMITS, LIMITS).filter(any), st.sampled_from([0.5, 2.0, 60.0]), EVENTS)
def test_no_window_has_more_than_the_limit(limits, per, events):
    """Wherever a request arrives between its grant and its end, no window has too many of them."""
    requests, tokens, concurrent = limits
    model = Model(Figures(requests, tokens, per, concurrent))
    for event in events:
        model.play(*event)
        open_ = sum(map(len, model.open.values()))
        assert concurrent is None or open_ <= concurrent
    for in_window, spent in model.windows():
        assert requests is None or in_window <= requests
        assert tokens is None or spent <= tokens


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 100), EVENTS)
def test_what_is_over_for_a_window_is_free_again(requests, tokens, per, events):
    """When all is over for a window, the whole limit is granted: nothing stays behind."""
    model = Model(Figures(requests, tokens, per))
    for event in events:
        model.play(*event)
    for holder in HOLDERS:
        model.play("end", holder, len(model.open[holder]), 0.0)
    model.now += per * 1.02
    model.ledger.tick(model.now)
    assert model.ledger.room() == (requests, tokens)
    assert (model.ledger.claims, model.ledger.over, model.ledger.places) == ({}, {}, [])


@given(st.floats(1e3, 1e9), st.sampled_from([0.5, 2.0, 60.0, 86400.0]))
def test_a_request_counts_for_a_whole_window(at, per):
    """A request that is over counts until a window later, and for at most a hundredth more."""
    ledger = Ledger(Figures(requests=1, per=per))
    ledger.tick(at)
    ledger.report("a", at, [Over(at, 1, 0)], (0, 0))
    ledger.tick(at + per * 0.9999)
    assert ledger.room()[0] == 0
    ledger.tick(at + per * 1.0101)
    assert ledger.room()[0] == 1


@given(
    st.lists(st.tuples(st.sampled_from(HOLDERS), st.integers(1, 8)), min_size=1, max_size=8),
    st.integers(1, 30),
)
def test_each_run_gets_a_call_before_any_gets_a_second(runs, room):
    """Room goes round the runs in the order in which they came, whichever process has them."""
    ledger = Ledger(Figures(requests=room))
    ledger.tick(100.0)
    for holder in HOLDERS:
        waiting = {
            f"run {n}": (n, [0] * calls) for n, (of, calls) in enumerate(runs) if of == holder
        }
        ledger.queue(holder, 100.0, waiting)
    got = {}
    for holder in HOLDERS:
        before = [*ledger.places]
        for run, wants in ledger.grant(holder, 100.0).items():
            got[run] = got.get(run, 0) + len(wants)
        # What a process was granted leaves the queue; the others' places are as they were.
        ledger.places = [each for each in before if each.holder != holder] if holder != "c" else []
    line = itertools.chain.from_iterable(
        (f"run {n}" for n, (_, calls) in enumerate(runs) if calls > turn) for turn in range(8)
    )
    expected = {}
    for run in itertools.islice(line, room):
        expected[run] = expected.get(run, 0) + 1
    first = {run for n, (of, _) in enumerate(runs) if of == "a" for run in [f"run {n}"]}
    assert {run: n for run, n in got.items() if run in first} == {
        run: n for run, n in expected.items() if run in first
    }


def test_a_run_that_was_served_goes_behind_the_others():
    """First come, first served: between runs, not between calls."""
    ledger = Ledger(Figures(requests=1, per=10))
    ledger.tick(100.0)
    ledger.queue("a", 100.0, {"many": (1.0, [0] * 9), "one": (2.0, [0])})
    assert ledger.grant("a", 100.0) == {"many": [0]}
    ledger.report("a", 101.0, [Over(101.0, 1, 0)], (0, 0))
    ledger.tick(111.2)
    ledger.queue("a", 111.2, {"many": (1.0, [0] * 8), "one": (2.0, [0])})
    assert ledger.grant("a", 111.2) == {"one": [0]}


def test_room_for_the_first_is_left_free():
    """What another process's run waits for is not given to a later one; dead places lapse."""
    ledger = Ledger(Figures(tokens=100, per=10))
    ledger.tick(100.0)
    ledger.queue("a", 100.0, {"large": (1.0, [90])})
    ledger.queue("b", 100.0, {"small": (2.0, [20])})
    assert ledger.grant("b", 100.0) == {}
    ledger.forget(120.0, 10.0)
    ledger.queue("b", 120.0, {"small": (2.0, [20])})
    assert ledger.grant("b", 120.0) == {"small": [20]}


def test_a_call_with_more_tokens_than_the_limit_gets_a_window_of_its_own():
    """An estimate above the limit waits for an empty window, not for ever."""
    ledger = Ledger(Figures(tokens=100, per=10))
    ledger.tick(100.0)
    ledger.queue("a", 100.0, {"run": (1.0, [5000, 1])})
    assert ledger.grant("a", 100.0) == {"run": [100]}


def test_corrections():
    """A pause grants nothing; what others took of the account counts until the provider's reset."""
    ledger = Ledger(Figures(requests=10, tokens=100, per=10))
    ledger.tick(100.0)
    ledger.pause(100.0, 5.0)
    assert (ledger.room(), ledger.soonest(100.0)) == ((0, 0), 105.0)
    ledger.tick(105.0)
    assert ledger.room() == (10, 100)
    ledger.correct(105.0, 3, None, 2.0)
    assert ledger.room() == (3, 100)
    ledger.correct(105.0, 3, None, 2.0)  # said again: counted once
    assert ledger.room() == (3, 100)
    ledger.tick(107.2)
    assert ledger.room() == (10, 100)
    ledger.report("a", 107.2, [Over(107.2, 1, 80)], (0, 0))
    ledger.report("a", 107.2, [Over(107.2, 0, -70)], (0, 0))  # the usage, after the estimate
    assert ledger.room() == (9, 90)


@pytest.mark.parametrize("back", [1.0, 50.0, 1e6])
def test_a_clock_that_is_set_back(back):
    """What was taken counts for a whole window more, and not for longer."""
    ledger = Ledger(Figures(requests=2, per=10))
    ledger.tick(100.0)
    ledger.report("a", 100.0, [Over(100.0, 2, 0)], (0, 0))
    ledger.pause(100.0, 3.0)
    now = 100.0 - back
    ledger.tick(now)
    assert ledger.room() == (0, 0)
    ledger.tick(now + 9.9)
    assert ledger.room()[0] == 0
    ledger.tick(now + 10.2)
    assert ledger.room()[0] == 2


def test_the_newest_figures_count():
    """Of two programs with other figures, the later one's hold; what was taken stays taken."""
    ledger = Ledger(Figures(requests=10, per=10, since=1.0))
    ledger.tick(100.0)
    ledger.report("a", 100.0, [Over(100.0, 4, 0)], (0, 0))
    assert not ledger.state(Figures(requests=10, per=10, since=5.0))
    assert ledger.state(Figures(requests=6, per=20, since=2.0))
    assert ledger.room()[0] == 2
    assert ledger.state(Figures(requests=99, per=10, since=1.5))
    assert ledger.figures.requests == 6
    ledger.tick(119.0)
    assert ledger.room()[0] == 2


def test_the_outlook():
    """The time of a grant is foretold from what ceases to count, over several windows."""
    ledger = Ledger(Figures(requests=2, per=10))
    ledger.tick(100.0)
    ledger.report("a", 100.0, [Over(95.0, 2, 0)], (0, 0))
    ledger.queue("a", 100.0, {f"run {n}": (float(n), [0]) for n in range(5)})
    assert [ledger.expected(f"run {n}", 100.0) for n in range(5)] == [
        105.0,
        105.0,
        115.0,
        115.0,
        125.0,
    ]
    assert ledger.expected("another", 100.0) is None
    assert ledger.soonest(100.0) == 105.0
