"""Which recorded call answers which call of a resumed run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import sweep
from stepwise._journal.records import (
    ANY_ERROR,
    Call,
    Ended,
    Entry,
    Forgotten,
    Handled,
    Intent,
    Outcome,
    Resumed,
    Settled,
    Started,
)
from stepwise._matching.pool import Pool, Verdict

ANSWER, AGAIN, DOUBT = Verdict.ANSWER, Verdict.AGAIN, Verdict.DOUBT
FRESH, CHANGED, BLOCKED = Verdict.FRESH, Verdict.CHANGED, Verdict.BLOCKED


def a_call(number=0, name="send", digest="d", ordinal=1, *, module="m", **facts):
    return Call(number, name, module, digest, ordinal, **facts)


def done(call, status="completed", **facts):
    return Outcome(call, status, **facts)


def pool_of(*journal, known=()):
    """A pool of these records, in that order."""
    entries = [Entry(number, record, b"") for number, record in enumerate(journal, 1)]
    return Pool(entries, known)


def ask(pool, call, *, directly=True, alone=True):
    """A match; a call is known to be made directly only where its place is known."""
    return pool.match(call, directly=directly and bool(call.place), alone=lambda: alone)


def verdict(pool, call, **how):
    return ask(pool, call, **how).verdict


def use(pool, call, **how):
    """Match a call and use what answers it; the verdict and the numbers of the records."""
    match = ask(pool, call, **how)
    if match.recorded and match.verdict is not Verdict.BLOCKED:
        pool.take(match.recorded[0])
    return match.verdict, [recorded.call.number for recorded in match.recorded]


# -- the model: lists, and the rules of the design, one by one -------------------------------------


@dataclasses.dataclass
class Known:
    """What the model knows of one recorded call."""

    call: Call
    status: str
    clean: bool = False
    inner: tuple[int, ...] = ()
    handled: bool = False
    retry: bool = False
    settled: bool = False
    spent: bool = False

    @property
    def over(self):
        return self.spent and not self.in_doubt

    @property
    def answers(self):
        failed = self.status in ("failed", "cancelled")
        return self.status == "completed" or (failed and self.handled and not self.retry)

    @property
    def unclean(self):
        return self.status in ("failed", "cancelled") and not self.clean

    @property
    def in_doubt(self):
        may = self.call.effect and not self.call.child and not self.answers
        return may and (self.status == "open" or self.unclean)

    @property
    def may_have_happened(self):
        return self.call.effect and (self.status in ("open", "completed") or self.unclean)


class Model:
    """The unused recorded calls, and what becomes of a call."""

    def __init__(self, journal, known=()):
        self.defined = set(known)
        self.calls: dict[int, Known] = {}
        for record in journal:
            self.load(record)

    def load(self, record):
        if isinstance(record, (Intent, Outcome)):
            call = record.call
            if call.unwinding in self.calls:
                self.calls[call.unwinding].handled = True
            if isinstance(record, Intent):
                self.calls[call.number] = Known(call, "open")
            else:
                self.calls[call.number] = Known(call, record.status, record.clean, record.inner)
        elif isinstance(record, Handled):
            for number in record.numbers:
                if number in self.calls:
                    self.calls[number].handled = True
        elif isinstance(record, Settled):
            if record.number in self.calls:
                status = "completed" if record.landed else "free"
                old = self.calls[record.number]
                self.calls[record.number] = Known(
                    old.call, status, settled=record.landed, spent=old.spent
                )
        elif isinstance(record, Forgotten):
            for number in record.numbers:
                self.calls.pop(number, None)
        elif isinstance(record, Ended):
            for number in record.retry:
                if number in self.calls:
                    self.calls[number].retry = True
            for number in record.spent:
                if number in self.calls:
                    self.calls[number].spent = True

    def covered(self, number):
        """Whether it was made inside a completed call that is unused."""
        return any(known.answers and number in known.inner for known in self.calls.values())

    def may_answer(self, known, call):
        other = known.call
        return (
            (other.name, other.digest) == (call.name, call.digest)
            and (other.module == call.module or (other.module, other.name) not in self.defined)
            and (other.scope == call.scope or not self.covered(other.number))
        )

    def rivals(self, call):
        return [
            number
            for number, known in sorted(self.calls.items())
            if known.may_have_happened
            and not self.covered(number)
            and not known.over
            and (
                known.call.name == call.name
                or (known.in_doubt and call.place and known.call.place == call.place)
            )
        ]

    def match(self, call, *, directly, alone):
        """The verdict, and the numbers it is about."""
        equal = [number for number, known in self.calls.items() if self.may_answer(known, call)]
        fitting = [n for n in equal if self.calls[n].call.unwinding == call.unwinding] or [
            n for n in equal if call.effect and (self.calls[n].in_doubt or self.calls[n].settled)
        ]
        if fitting:
            equal = [n for n in fitting if self.calls[n].call.ordinal == call.ordinal]
            number = (equal or fitting)[0]
            return self.verdict(self.calls[number]), [number]
        rivals = self.rivals(call) if call.effect else []
        if not rivals:
            return Verdict.FRESH, []
        only = self.calls[rivals[0]]
        here = (only.call.name, only.call.place, only.call.site)
        same_place = here == (call.name, call.place, call.site)
        if len(rivals) == 1 and directly and alone and same_place and only.answers:
            here = call._replace(digest=only.call.digest)
            if only.call.unwinding == call.unwinding and self.may_answer(only, here):
                return Verdict.CHANGED, rivals
        return Verdict.BLOCKED, rivals

    def verdict(self, known):
        if known.answers:
            return Verdict.ANSWER
        return Verdict.DOUBT if known.in_doubt else Verdict.AGAIN

    def take(self, number):
        known = self.calls.pop(number)
        if known.answers:
            for inner in known.inner:
                self.calls.pop(inner, None)


# -- random journals -------------------------------------------------------------------------------

NAMES, DIGESTS, MODULES = ("send", "pay"), ("x", "y"), ("m", "n")


@st.composite
def calls(draw, number, ordinal):
    effect = draw(st.booleans())
    return Call(
        number,
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(MODULES)),
        draw(st.sampled_from(DIGESTS)),
        ordinal,
        scope=draw(st.sampled_from(("", "", "outer"))),
        unwinding=draw(st.sampled_from((None, None, None, ANY_ERROR, *range(1, max(number, 2))))),
        place=draw(st.sampled_from(("", "body[0]", "body[1]"))) if effect else "",
        site=draw(st.sampled_from(("a.py:1", "a.py:2"))),
        effect=effect,
        child=draw(st.sampled_from(("", "", "run/child"))) if effect else "",
    )


@st.composite
def journals(draw, *, same_ordinals=False):
    """A journal of up to eight calls, their ends, and what became of them."""
    numbers = range(1, draw(st.integers(0, 8)) + 1)
    some = st.lists(st.sampled_from([*numbers, 99]), max_size=3, unique=True).map(tuple)
    journal: list[Any] = [Started("w", "d", "a")]
    inside: dict[int, set[int]] = {}  # what was called inside each call, to any depth
    for number in numbers:
        ordinal = draw(st.integers(1, 3)) if same_ordinals else number
        call = draw(calls(number, ordinal))
        ends = draw(st.sampled_from(("intent", "outcome", "both", "twice")))
        if call.effect and ends != "outcome":
            journal.append(Intent(call))
        if not call.effect or ends != "intent":
            made = {n for n in range(1, number) if draw(st.sampled_from((False, False, True)))}
            inside[number] = made.union(*(inside.get(n, ()) for n in made))
            outcome = Outcome(
                call,
                draw(st.sampled_from(("completed", "completed", "failed", "cancelled"))),
                clean=draw(st.booleans()),
                inner=tuple(sorted(inside[number])),
            )
            journal += [outcome] * (2 if ends == "twice" else 1)
        later = draw(
            st.sampled_from(("", "", "handled", "settled", "forgotten", "ended", "resumed"))
        )
        if later == "handled":
            journal.append(Handled(draw(some)))
        elif later == "settled":
            journal.append(Settled(draw(st.sampled_from([*numbers])), draw(st.booleans())))
        elif later == "forgotten":
            journal.append(Forgotten(draw(some)))
        elif later == "ended":
            journal.append(Ended("failed", retry=draw(some), spent=draw(some)))
        elif later == "resumed":
            journal.append(Resumed(2, "replay", 0))
    return journal


known_steps = st.sets(st.tuples(st.sampled_from(MODULES), st.sampled_from(NAMES)))
asked = st.lists(
    st.tuples(calls(9, 0), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans()),
    max_size=10,
)


def play(journal, known, questions):
    """Ask the pool and the model the same questions; the invariants hold at each of them."""
    pool, model, answered = pool_of(*journal, known=known), Model(journal, known), []
    for call, ordinal, directly, alone, used in questions:
        call = call._replace(number=0, ordinal=ordinal)  # noqa: PLW2901
        directly = directly and bool(call.place)  # noqa: PLW2901
        match = ask(pool, call, directly=directly, alone=alone)
        numbers = [recorded.call.number for recorded in match.recorded]
        assert (match.verdict, numbers) == model.match(call, directly=directly, alone=alone)
        check_invariants(pool, call, match)
        if used and match.recorded:
            pool.take(match.recorded[0])
            model.take(numbers[0])
            answered.append(numbers[0])
        assert [recorded.call.number for recorded in pool.all] == list(model.calls)
        assert [recorded.call.number for recorded in pool.unused] == [
            number
            for number, known in model.calls.items()
            if not model.covered(number) and not known.over
        ]
        assert len(pool) == len(model.calls)
    assert len(answered) == len(set(answered))  # a record answers at most one call


def check_invariants(pool, call, match):
    """Fail where a match breaks a rule that holds for every call."""
    if not call.effect:
        assert match.verdict not in (Verdict.BLOCKED, Verdict.CHANGED)
    elif match.verdict is Verdict.FRESH:
        for recorded in pool.unused:
            same_place = call.place and recorded.call.place == call.place
            assert not (recorded.call.name == call.name and recorded.may_have_happened)
            assert not (same_place and recorded.in_doubt)
    if match.verdict in (Verdict.ANSWER, Verdict.AGAIN, Verdict.DOUBT):
        [recorded] = match.recorded
        doubt = call.effect and (recorded.in_doubt or recorded.settled)
        assert recorded.call.unwinding == call.unwinding or doubt


@sweep
@given(st.one_of(journals(), journals(same_ordinals=True)), known_steps, asked)
def test_the_model(journal, known, questions):
    """The pool decides every call as the rules of the design do, applied one by one.

    Attempts of one run may have counted an ordinal twice.
    """
    play(journal, known, questions)


@sweep
@given(journals(same_ordinals=True), known_steps)
def test_the_facts_of_recorded_calls(journal, known):
    """Each recorded call answers, is in doubt, or may have happened as the records say.

    What a checkpoint keeps of the unused records makes the same pool again.
    """
    pool, model = pool_of(*journal, known=known), Model(journal, known)
    entries, flags = [], {}
    for recorded in pool.all:
        expected = model.calls[recorded.call.number]
        assert pool.get(recorded.call.number) is recorded
        assert facts_of(recorded)[3:] == (
            *(expected.answers, expected.in_doubt, expected.may_have_happened),
        )
        for entry in {e.number: e for e in (recorded.origin, recorded.entry)}.values():
            entries.append(entry)
            flags[entry.number] = recorded.flags
    assert pool.get(99) is None
    again = Pool(entries, known, flags)
    assert [facts_of(recorded) for recorded in again.all] == list(map(facts_of, pool.all))
    assert [facts_of(recorded) for recorded in again.unused] == list(map(facts_of, pool.unused))


def facts_of(recorded):
    facts = (recorded.answers, recorded.in_doubt, recorded.may_have_happened)
    return (recorded.call, recorded.entry, recorded.outcome, *facts)


def test_flags_of_a_checkpoint():
    """A failure handled before a checkpoint answers after it; one to try again does not."""
    journal = [Entry(7, done(a_call(1), "failed"), b"")]
    assert verdict(Pool(journal), a_call()) is AGAIN
    assert verdict(Pool(journal, flags={7: (True, False, False)}), a_call()) is ANSWER
    assert verdict(Pool(journal, flags={7: (True, True, False)}), a_call()) is AGAIN
    settled = [*journal, Entry(9, Settled(1, landed=True), b"")]
    flags = dict.fromkeys((7, 9), (False, False, False))
    assert verdict(Pool(settled, flags=flags), a_call()) is ANSWER


@sweep
@given(st.integers(0, 6), st.integers(0, 8), st.booleans())
def test_a_multiset(recorded, called, effect):
    """Of n equal calls made on purpose, n are answered, and the others run."""
    pool = pool_of(*(done(a_call(n, ordinal=n, effect=effect)) for n in range(1, recorded + 1)))
    found = [use(pool, a_call(ordinal=n, effect=effect)) for n in range(1, called + 1)]
    answered = min(recorded, called)
    assert found[:answered] == [(ANSWER, [n]) for n in range(1, answered + 1)]
    assert found[answered:] == [(FRESH, [])] * (called - answered)
    assert len(pool) == recorded - answered


# -- each state of a record ------------------------------------------------------------------------

HERE = {"place": "body[2]@0:4", "site": "agent.py:7", "effect": True}
STATES = {
    "open": [],
    "completed": [("completed", {})],
    "failed": [("failed", {})],
    "failed cleanly": [("failed", {"clean": True})],
    "cancelled": [("cancelled", {})],
    "cancelled cleanly": [("cancelled", {"clean": True})],
}


def recorded_as(state, **facts):
    call = a_call(1, **facts)
    first = [Intent(call)] if call.effect else []
    return [*first, *(done(call, status, **how) for status, how in STATES[state])]


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_a_side_effect(state):
    """A side effect without proof of its end is in doubt, and what may be it is blocked.

    What somebody settled answers if it landed, and runs again if it did not happen.
    """
    journal, equal = recorded_as(state, effect=True), a_call(effect=True)
    expected = ANSWER if state == "completed" else AGAIN if "cleanly" in state else DOUBT
    assert verdict(pool_of(*journal), equal) is expected
    other = a_call(digest="other", effect=True)
    blocked = FRESH if "cleanly" in state else BLOCKED
    assert verdict(pool_of(*journal), other) is blocked
    changed = verdict(pool_of(*recorded_as(state, **HERE)), a_call(digest="other", **HERE))
    assert changed is (CHANGED if state == "completed" else blocked)
    assert verdict(pool_of(*journal, Settled(1, True)), equal) is ANSWER
    pool = pool_of(*journal, Settled(1, False))
    assert (verdict(pool, equal), verdict(pool, other)) == (AGAIN, FRESH)
    assert pool.get(1).outcome is None
    assert not pool.get(1).may_have_happened


@pytest.mark.parametrize("state", STATES)
def test_plain_steps(state):
    """What did not complete of plain steps and child workflows runs again; it is never in doubt."""
    expected = ANSWER if state == "completed" else AGAIN
    if state != "open":
        assert verdict(pool_of(*recorded_as(state)), a_call()) is expected
    child = recorded_as(state, effect=True, child="run/child")
    assert verdict(pool_of(*child), a_call(effect=True)) is expected


@pytest.mark.parametrize("effect", [False, True], ids=["plain", "effect"])
@pytest.mark.parametrize("status", ["failed", "cancelled"])
@pytest.mark.parametrize("how", ["told", "acted on"])
def test_handled_failures(effect, status, how):
    """A failure that the workflow went on from, or acted on, is the outcome of its call."""
    shown = Handled((1,)) if how == "told" else done(a_call(2, "clean_up", unwinding=1))
    journal, ended = [*recorded_as(status, effect=effect), shown], Ended("failed", retry=(1,))
    again = [*journal, ended, *recorded_as(status, effect=effect)]
    for records, expected in (
        (journal, ANSWER),
        ([*journal, ended], DOUBT if effect else AGAIN),
        ([*again, Handled((1,))], ANSWER),
    ):
        assert verdict(pool_of(*records), a_call(effect=effect)) is expected


# -- by example ------------------------------------------------------------------------------------

FAILED_CLEANUP = [
    *(done(a_call(1, "think"), "failed"), Intent(a_call(2, effect=True, unwinding=1))),
    *(
        done(a_call(2, effect=True, unwinding=1), "failed"),
        Ended("failed", retry=(1, 2), spent=(2,)),
    ),
]
ENDED, LANDED = Ended("failed", retry=(1,), spent=(2,)), Settled(2, landed=True)
CLEANUP = [done(a_call(1), "failed"), done(a_call(2, "clean_up", unwinding=1))]
REFUND = [
    *(done(a_call(1), "failed"), Intent(a_call(2, "refund", effect=True, unwinding=1))),
    done(a_call(2, "refund", effect=True, unwinding=1)),
]
EQUAL = [done(a_call(n, ordinal=n)) for n in (1, 2, 3)]
INNER = [
    *(done(a_call(n, "fetch", f"f{n}", scope="outer")) for n in (2, 3)),
    done(a_call(1, "outer"), inner=(2, 3)),
]
NEST = [
    done(a_call(3, "c", scope="b")),
    done(a_call(2, "b", scope="a"), inner=(3,)),
    done(a_call(1, "a"), inner=(2, 3)),
]
INNER_EFFECT = done(a_call(2, effect=True, scope="outer"))
PAY = a_call(1, "pay", **HERE)
ELSEWHERE = a_call(**{**HERE, "place": "body[3]"})
OTHER, EFFECT = a_call(digest="other", **HERE), a_call(effect=True)
ANOTHER_EFFECT = a_call(digest="other", effect=True)
PROVEN, PROVEN_HERE = done(a_call(1)), done(a_call(1, **HERE))


def of_module(module, **facts):
    return a_call(module=module, **facts)


# What is recorded, and which calls are made one after the other: what becomes of each, and the
# numbers of the records that it is about.  A record that answers is used up.
EXAMPLES = {
    "without records everything runs": ([], [(a_call(), FRESH), (EFFECT, FRESH)]),
    "a record answers calls of its name with its arguments": (
        [PROVEN],
        [(a_call(digest="other"), FRESH), (a_call(name="other"), FRESH)]
        + [(a_call(ordinal=7), ANSWER, 1), (a_call(), FRESH)],
    ),
    "of equal records, the first where none has the ordinal": (
        EQUAL,
        [(a_call(ordinal=9), ANSWER, 1)],
    ),
    "the failure of another error says nothing": (
        [*recorded_as("failed"), done(a_call(2, "clean_up", unwinding=ANY_ERROR))],
        [(a_call(), AGAIN, 1)],
    ),
    "what was forgotten runs again": (
        [*recorded_as("completed", effect=True), Forgotten((1, 7))],
        [(EFFECT, FRESH), (ANOTHER_EFFECT, FRESH)],
    ),
    # Calls made while a run unwound to its end answer only the same unwinding, and block none.
    "a clean-up": (CLEANUP, [(a_call(name="clean_up", unwinding=1), ANSWER, 2)]),
    "a clean-up that ended the run": (
        [*CLEANUP, ENDED],
        [(a_call(name="clean_up"), FRESH), (a_call(name="clean_up", unwinding=ANY_ERROR), FRESH)]
        + [(a_call(name="clean_up", unwinding=1), ANSWER, 2)],
    ),
    "a refund that ended the run": (
        [*REFUND, ENDED],
        [(a_call(name="refund", effect=True), FRESH)]
        + [(a_call(name="refund", digest="other", effect=True), FRESH)]
        + [(a_call(name="refund", effect=True, unwinding=1), ANSWER, 2)],
    ),
    "a clean-up answers no normal course, and no other unwinding": (
        [done(a_call(5, unwinding=1))],
        [(a_call(), FRESH), (a_call(unwinding=2), FRESH), (a_call(unwinding=ANY_ERROR), FRESH)]
        + [(a_call(unwinding=1), ANSWER, 5)],
    ),
    "the effect of a clean-up": (
        [done(a_call(5, effect=True, unwinding=1))],
        [(EFFECT, BLOCKED, 5)],
    ),
    # A side effect whose own failure ended the run, in its clean-up, stays in doubt.
    **{
        f"an effect that failed in a clean-up, asked in {unwinding}, {len(settled)} settled": (
            [*FAILED_CLEANUP, *settled],
            [(a_call(digest="other", effect=True, unwinding=unwinding), other, *about)]
            + [(a_call(effect=True, unwinding=unwinding), equal, 2)],
        )
        for unwinding in (1, None)
        for settled, other, about, equal in (
            ([], BLOCKED, [2], DOUBT),
            ([LANDED], FRESH, [], ANSWER),
        )
    },
    "a blocked call names all that it could be": (
        [done(a_call(n, digest=f"d{n}", effect=True)) for n in (3, 1, 2)],
        [(EFFECT, BLOCKED, 1, 2, 3)],
    ),
    # A side effect of another name blocks only if it is in doubt and of the same statement.
    "another name that completed": ([done(PAY)], [(a_call(**HERE), FRESH)]),
    "another name in doubt": ([Intent(PAY)], [(ELSEWHERE, FRESH), (a_call(**HERE), BLOCKED, 1)]),
    "another name that failed": (
        [Intent(PAY), done(PAY, "failed")],
        [(a_call(**HERE), BLOCKED, 1)],
    ),
    "another name at an unknown place": (
        [Intent(a_call(1, "pay", effect=True))],
        [(EFFECT, FRESH)],
    ),
    # Changed arguments: the only unused record of the very same place answers with a warning.
    "changed at another statement": (
        [PROVEN_HERE],
        [
            (OTHER._replace(place="body[3]"), BLOCKED, 1),
            (OTHER._replace(site="a.py:8"), BLOCKED, 1),
        ],
    ),
    "one of two has changed": (
        [PROVEN_HERE, done(a_call(2, digest="e", **HERE))],
        [(OTHER, BLOCKED, 1, 2), (a_call(digest="e", **HERE), ANSWER, 2), (OTHER, CHANGED, 1)],
    ),
    "changed in a clean-up": (
        [done(a_call(5, unwinding=1, **HERE))],
        [(OTHER, BLOCKED, 5), (OTHER._replace(unwinding=1), CHANGED, 5)],
    ),
    "changed in another module": (
        [done(of_module("first", **HERE)._replace(number=1))],
        [(of_module("second", digest="other", **HERE), CHANGED, 1)],
    ),
    "changed in another module, while both are there": (
        [done(of_module("first", **HERE)._replace(number=1))],
        [(of_module("second", digest="other", **HERE), BLOCKED, 1)],
        {("first", "send")},
    ),
    "a step that moved to another module": (
        [done(of_module("old")._replace(number=1))],
        [(of_module("new"), ANSWER, 1)],
    ),
    "a step beside one in another module": (
        [done(of_module("old")._replace(number=1))],
        [(of_module("new"), FRESH), (of_module("old"), ANSWER, 1)],
        {("old", "send"), ("new", "send")},
    ),
    "what a completed call made inside is used with it": (
        INNER,
        [(a_call(name="outer"), ANSWER, 1), (a_call(name="fetch", digest="f2"), FRESH)],
    ),
    "what a completed call made inside answers only inside": (
        INNER,
        [(a_call(name="fetch", digest="f2"), FRESH)]
        + [(a_call(name="fetch", digest="f2", scope="another"), FRESH)]
        + [(a_call(name="fetch", digest="f2", scope="outer"), ANSWER, 2)],
    ),
    "an effect inside a completed call blocks none outside": (
        [INNER_EFFECT, done(a_call(1, "outer"), inner=(2,))],
        [(ANOTHER_EFFECT, FRESH)],
    ),
    **{
        f"what a call that {status} made inside answers when it makes it again": (
            [INNER_EFFECT, done(a_call(1, "outer"), status, inner=(2,))],
            [(a_call(name="outer"), AGAIN, 1), (a_call(effect=True, scope="outer"), ANSWER, 2)],
        )
        for status in ("failed", "cancelled")
    },
    "the code around an inner call has changed": (
        [done(a_call(2, "fetch", scope="outer"))],
        [(a_call(name="fetch"), ANSWER, 2)],
    ),
    "a nest of calls, used from the middle": (
        NEST,
        [(a_call(name="b", scope="a"), ANSWER, 2), (a_call(name="c", scope="b"), FRESH)]
        + [(a_call(name="a"), ANSWER, 1)],
    ),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_by_example(example):
    """Of the calls of a resumed run, each is answered, runs, asks or waits as its name says."""
    journal, calls, *known = example
    pool = pool_of(*journal, known=known[0] if known else ())
    for call, expected, *numbers in calls:
        assert use(pool, call) == (expected, numbers)


def test_the_same_ordinal_first():
    """Among equal records the one of the same ordinal answers, else the first."""
    pool = pool_of(*EQUAL)
    assert [use(pool, a_call(ordinal=n))[1] for n in (3, 3, 3, 3)] == [[3], [1], [2], []]
    # A record that belongs to an unwinding does not keep its ordinal from another that fits.
    records = [done(a_call(1, ordinal=2, unwinding=ANY_ERROR)), done(a_call(2)), EQUAL[1]]
    records[2] = done(a_call(3, ordinal=2))
    assert use(pool_of(*records), a_call(ordinal=2)) == (ANSWER, [3])


@pytest.mark.parametrize("how", [{}, {"directly": False}, {"alone": False}], ids=str)
def test_changed_arguments(how):
    """The only unused record of that very place answers, except in loops and beside other tasks."""
    found = use(pool_of(PROVEN_HERE), OTHER, **how)
    assert found == (BLOCKED if how else CHANGED, [1])


def test_whether_others_are_alive_is_asked_last():
    """Whether other tasks are alive takes a while to find out: it is asked only if it decides."""

    def never():
        raise AssertionError("asked")

    pool = pool_of(PROVEN_HERE)
    for call in (a_call(**HERE), a_call(digest="o"), a_call(digest="o", effect=True)):
        pool.match(call, directly=True, alone=never)
    pool.match(a_call(digest="o", **HERE), directly=False, alone=never)


def test_order_and_last_records():
    """Unused records stand in the order of their calls, each with its last record."""
    call = a_call(1, effect=True)
    pool = pool_of(Intent(call), done(a_call(2, "think")), done(call), done(a_call(3, "think")))
    assert [recorded.call.number for recorded in pool.unused] == [1, 2, 3]
    pool = pool_of(Intent(call), done(call, "failed"), Intent(call), done(call))
    assert (pool.get(1).entry.number, pool.get(1).outcome.status) == (4, "completed")
    assert pool_of(Intent(call), done(call, "failed"), Intent(call)).get(1).outcome is None
    ended = pool_of(*CLEANUP, ENDED)
    assert [recorded.call.number for recorded in ended.unused] == [1]


@pytest.mark.parametrize("shift", [0, 500, -1], ids=["same", "other", "one off"])
def test_many_equal_calls(shift, monkeypatch):
    """To find the record of one of many equal calls, one or two records are looked at."""
    looked = []
    fits = Pool._fits
    monkeypatch.setattr(Pool, "_fits", lambda *args: looked.append(1) or fits(*args))
    pool = pool_of(*(done(a_call(n, ordinal=n)) for n in range(1, 501)))
    for n in range(1, 501):
        assert use(pool, a_call(ordinal=n + shift))[0] is ANSWER
    assert len(pool) == 0
    assert len(looked) <= 2 * 500
