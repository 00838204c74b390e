"""Which recorded call answers which call of a resumed run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given
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
    """Ask the pool and the model the same questions."""
    pool, model = pool_of(*journal, known=known), Model(journal, known)
    for call, ordinal, directly, alone, used in questions:
        call = call._replace(number=0, ordinal=ordinal)  # noqa: PLW2901
        directly = directly and bool(call.place)  # noqa: PLW2901
        match = ask(pool, call, directly=directly, alone=alone)
        found = (match.verdict, [recorded.call.number for recorded in match.recorded])
        assert found == model.match(call, directly=directly, alone=alone)
        if used and match.recorded:
            pool.take(match.recorded[0])
            model.take(match.recorded[0].call.number)
        assert [recorded.call.number for recorded in pool.all] == list(model.calls)
        assert [recorded.call.number for recorded in pool.unused] == [
            number
            for number, known in model.calls.items()
            if not model.covered(number) and not known.over
        ]
        assert len(pool) == len(model.calls)


@sweep
@given(journals(), known_steps, asked)
def test_the_model(journal, known, questions):
    """The pool decides every call as the rules of the design do, applied one by one."""
    play(journal, known, questions)


@sweep
@given(journals(same_ordinals=True), known_steps, asked)
@example(
    [
        done(a_call(1, ordinal=2, unwinding=ANY_ERROR)),
        done(a_call(2, ordinal=1)),
        done(a_call(3, ordinal=2)),
    ],
    set(),
    [(a_call(), 2, True, True, True)],
)
def test_the_model_with_attempts(journal, known, questions):
    """Where attempts of a run have counted an ordinal twice, the pool decides by the rules, too."""
    play(journal, known, questions)


@sweep
@given(journals(same_ordinals=True), known_steps)
def test_the_facts_of_recorded_calls(journal, known):
    """Each recorded call answers, is in doubt, or may have happened as the records say."""
    pool, model = pool_of(*journal, known=known), Model(journal, known)
    for recorded in pool.all:
        expected = model.calls[recorded.call.number]
        assert pool.get(recorded.call.number) is recorded
        assert (recorded.answers, recorded.in_doubt, recorded.may_have_happened) == (
            *(expected.answers, expected.in_doubt, expected.may_have_happened),
        )
    assert pool.get(99) is None


@sweep
@given(journals(same_ordinals=True), known_steps)
def test_a_pool_from_a_checkpoint(journal, known):
    """What a checkpoint keeps of the unused records makes the same pool again."""
    pool = pool_of(*journal, known=known)
    entries, flags = [], {}
    for recorded in pool.all:
        for entry in {e.number: e for e in (recorded.origin, recorded.entry)}.values():
            entries.append(entry)
            flags[entry.number] = recorded.flags
    again = Pool(entries, known, flags)
    assert [facts_of(recorded) for recorded in again.all] == list(map(facts_of, pool.all))
    assert [facts_of(recorded) for recorded in again.unused] == list(map(facts_of, pool.unused))


def facts_of(recorded):
    facts = (recorded.answers, recorded.in_doubt, recorded.may_have_happened)
    return (recorded.call, recorded.entry, recorded.outcome, *facts)


def test_flags_of_a_checkpoint():
    """A failure handled before a checkpoint answers after it; one to try again does not."""
    journal = [Entry(7, done(a_call(1), "failed"), b"")]
    assert verdict(Pool(journal), a_call()) is Verdict.AGAIN
    assert verdict(Pool(journal, flags={7: (True, False, False)}), a_call()) is Verdict.ANSWER
    assert verdict(Pool(journal, flags={7: (True, True, False)}), a_call()) is Verdict.AGAIN
    settled = [*journal, Entry(9, Settled(1, landed=True), b"")]
    flags = dict.fromkeys((7, 9), (False, False, False))
    assert verdict(Pool(settled, flags=flags), a_call()) is Verdict.ANSWER


# -- the invariants, each for itself ---------------------------------------------------------------


@sweep
@given(journals(same_ordinals=True), known_steps, asked)
def test_a_record_answers_once(journal, known, questions):
    """A record answers at most one call."""
    pool, answered = pool_of(*journal, known=known), []
    for call, ordinal, directly, alone, _ in questions * 3:
        found, numbers = use(pool, call._replace(ordinal=ordinal), directly=directly, alone=alone)
        if found is not Verdict.BLOCKED:
            answered += numbers
    assert len(answered) == len(set(answered))


@sweep
@given(journals(same_ordinals=True), known_steps, asked)
def test_fresh_side_effects(journal, known, questions):
    """A side effect runs afresh only if nothing unused of its name may have happened."""
    pool = pool_of(*journal, known=known)
    for call, ordinal, directly, alone, _ in questions:
        found, _ = use(pool, call._replace(ordinal=ordinal), directly=directly, alone=alone)
        if call.effect and found is Verdict.FRESH:
            assert not [
                recorded
                for recorded in pool.unused
                if recorded.call.name == call.name and recorded.may_have_happened
            ]
            assert not [
                recorded
                for recorded in pool.unused
                if call.place and recorded.call.place == call.place and recorded.in_doubt
            ]


@sweep
@given(journals(same_ordinals=True), known_steps, asked)
def test_labels_of_unwinding(journal, known, questions):
    """A call is answered by records of the same unwinding, or by what was in doubt."""
    pool = pool_of(*journal, known=known)
    for call, ordinal, directly, alone, _ in questions:
        asking = call._replace(ordinal=ordinal)
        match = ask(pool, asking, directly=directly, alone=alone)
        if match.verdict in (Verdict.ANSWER, Verdict.AGAIN, Verdict.DOUBT):
            [recorded] = match.recorded
            doubt = call.effect and (recorded.in_doubt or recorded.settled)
            assert recorded.call.unwinding == call.unwinding or doubt
            pool.take(recorded)


@sweep
@given(journals(same_ordinals=True), asked)
def test_plain_calls_are_never_refused(journal, questions):
    """A call without side effects is answered or runs; it is never blocked."""
    pool = pool_of(*journal)
    for call, _, directly, alone, _ in questions:
        plain = call._replace(effect=False, place="", child="")
        assert verdict(pool, plain, directly=directly, alone=alone) not in (
            *(Verdict.BLOCKED, Verdict.CHANGED),
        )


@sweep
@given(st.integers(0, 6), st.integers(0, 8), st.booleans())
def test_a_multiset(recorded, called, effect):
    """Of n equal calls made on purpose, n are answered, and the others run."""
    pool = pool_of(*(done(a_call(n, ordinal=n, effect=effect)) for n in range(1, recorded + 1)))
    found = [use(pool, a_call(ordinal=n, effect=effect)) for n in range(1, called + 1)]
    answered = min(recorded, called)
    assert found[:answered] == [(Verdict.ANSWER, [n]) for n in range(1, answered + 1)]
    assert found[answered:] == [(Verdict.FRESH, [])] * (called - answered)
    assert len(pool) == recorded - answered


# -- by example ------------------------------------------------------------------------------------


def test_an_empty_pool():
    """Without records everything runs."""
    pool = pool_of()
    assert verdict(pool, a_call()) is Verdict.FRESH
    assert verdict(pool, a_call(effect=True)) is Verdict.FRESH
    assert (len(pool), pool.all, pool.unused) == (0, [], [])


def test_matching_takes_nothing():
    """A match leaves its records in the pool until they are taken."""
    pool = pool_of(done(a_call(1)))
    assert verdict(pool, a_call()) is verdict(pool, a_call()) is Verdict.ANSWER
    assert use(pool, a_call()) == (Verdict.ANSWER, [1])
    assert verdict(pool, a_call()) is Verdict.FRESH


def test_name_and_arguments():
    """A record answers calls of its name with its arguments."""
    pool = pool_of(done(a_call(1)))
    assert verdict(pool, a_call(digest="other")) is Verdict.FRESH
    assert verdict(pool, a_call(name="other")) is Verdict.FRESH
    assert verdict(pool, a_call(ordinal=7)) is Verdict.ANSWER


def test_the_same_ordinal_first():
    """Among equal records the one of the same ordinal answers, else the first."""
    journal = [done(a_call(n, ordinal=n)) for n in (1, 2, 3)]
    assert use(pool_of(*journal), a_call(ordinal=2)) == (Verdict.ANSWER, [2])
    assert use(pool_of(*journal), a_call(ordinal=9)) == (Verdict.ANSWER, [1])
    pool = pool_of(*journal)
    assert [use(pool, a_call(ordinal=n))[1] for n in (3, 3, 3, 3)] == [[3], [1], [2], []]


def test_the_same_ordinal_among_those_that_fit():
    """A record that belongs to an unwinding does not keep its ordinal from another that fits."""
    journal = [
        done(a_call(1, ordinal=2, unwinding=ANY_ERROR)),
        done(a_call(2, ordinal=1)),
        done(a_call(3, ordinal=2)),
    ]
    assert use(pool_of(*journal), a_call(ordinal=2)) == (Verdict.ANSWER, [3])


STATES = {
    "open": [],
    "completed": [("completed", {})],
    "failed": [("failed", {})],
    "failed cleanly": [("failed", {"clean": True})],
    "cancelled": [("cancelled", {})],
    "cancelled cleanly": [("cancelled", {"clean": True})],
}
EFFECTS = {
    "open": Verdict.DOUBT,
    "completed": Verdict.ANSWER,
    "failed": Verdict.DOUBT,
    "failed cleanly": Verdict.AGAIN,
    "cancelled": Verdict.DOUBT,
    "cancelled cleanly": Verdict.AGAIN,
}


def recorded_as(state, **facts):
    call = a_call(1, **facts)
    first = [Intent(call)] if call.effect else []
    return [*first, *(done(call, status, **how) for status, how in STATES[state])]


@pytest.mark.parametrize("state", STATES)
def test_doubt(state):
    """A side effect that was left open, or failed without proof of nothing, is in doubt."""
    assert verdict(pool_of(*recorded_as(state, effect=True)), a_call(effect=True)) is EFFECTS[state]


@pytest.mark.parametrize("state", [state for state in STATES if state != "open"])
def test_plain_steps(state):
    """A plain step that failed or was cancelled runs again; it is never in doubt."""
    expected = Verdict.ANSWER if state == "completed" else Verdict.AGAIN
    assert verdict(pool_of(*recorded_as(state)), a_call()) is expected


@pytest.mark.parametrize("state", STATES)
def test_children(state):
    """A child workflow that did not complete runs again: its own journal knows how far it was."""
    pool = pool_of(*recorded_as(state, effect=True, child="run/child"))
    expected = Verdict.ANSWER if state == "completed" else Verdict.AGAIN
    assert verdict(pool, a_call(effect=True)) is expected


@pytest.mark.parametrize("effect", [False, True], ids=["plain", "effect"])
@pytest.mark.parametrize("status", ["failed", "cancelled"])
@pytest.mark.parametrize("how", ["told", "acted on"])
def test_handled_failures(effect, status, how):
    """A failure that the workflow went on from, or acted on, is the outcome of its call."""
    shown = Handled((1,)) if how == "told" else done(a_call(2, "clean_up", unwinding=1))
    journal = [*recorded_as(status, effect=effect), shown]
    assert verdict(pool_of(*journal), a_call(effect=effect)) is Verdict.ANSWER
    ended = Ended("failed", retry=(1,))
    assert verdict(pool_of(*journal, ended), a_call(effect=effect)) is (
        Verdict.DOUBT if effect else Verdict.AGAIN
    )
    again = [*journal, ended, *recorded_as(status, effect=effect)]
    assert verdict(pool_of(*again, Handled((1,))), a_call(effect=effect)) is Verdict.ANSWER


def test_acting_on_another_error():
    """A call made while an unrecorded exception is handled says nothing about recorded failures."""
    journal = [*recorded_as("failed"), done(a_call(2, "clean_up", unwinding=ANY_ERROR))]
    assert verdict(pool_of(*journal), a_call()) is Verdict.AGAIN


@pytest.mark.parametrize("state", STATES)
def test_settled(state):
    """What somebody settled answers if it landed, and runs again if it did not happen."""
    journal = recorded_as(state, effect=True)
    assert verdict(pool_of(*journal, Settled(1, True)), a_call(effect=True)) is Verdict.ANSWER
    pool = pool_of(*journal, Settled(1, False))
    assert verdict(pool, a_call(effect=True)) is Verdict.AGAIN
    assert pool.get(1).outcome is None
    assert not pool.get(1).may_have_happened
    assert verdict(pool, a_call(digest="other", effect=True)) is Verdict.FRESH


def test_forgotten():
    """What was forgotten runs again, and stands in nobody's way."""
    journal = [*recorded_as("completed", effect=True), Forgotten((1, 7))]
    assert verdict(pool_of(*journal), a_call(effect=True)) is Verdict.FRESH
    assert verdict(pool_of(*journal), a_call(digest="other", effect=True)) is Verdict.FRESH


def test_spent():
    """Calls made while a run unwound to its end answer only the same unwinding, and block none."""
    cleanup = done(a_call(2, "clean_up", unwinding=1))
    journal = [*recorded_as("failed"), cleanup]
    assert use(pool_of(*journal), a_call(name="clean_up", unwinding=1)) == (Verdict.ANSWER, [2])
    ended = Ended("failed", retry=(1,), spent=(2,))
    pool = pool_of(*journal, ended)
    assert [recorded.call.number for recorded in pool.unused] == [1]
    assert verdict(pool, a_call(name="clean_up")) is Verdict.FRESH
    assert verdict(pool, a_call(name="clean_up", unwinding=ANY_ERROR)) is Verdict.FRESH
    assert use(pool, a_call(name="clean_up", unwinding=1)) == (Verdict.ANSWER, [2])


def test_spent_side_effects():
    """A refund of one failure is not made again for it, and holds up no other call of its tool."""
    refund = a_call(2, "refund", effect=True, unwinding=1)
    ended = Ended("failed", retry=(1,), spent=(2,))
    pool = pool_of(*recorded_as("failed"), Intent(refund), done(refund), ended)
    assert verdict(pool, a_call(name="refund", effect=True)) is Verdict.FRESH
    assert verdict(pool, a_call(name="refund", digest="other", effect=True)) is Verdict.FRESH
    assert use(pool, a_call(name="refund", effect=True, unwinding=1)) == (Verdict.ANSWER, [2])


@pytest.mark.parametrize("unwinding", [1, None])
def test_spent_side_effects_in_doubt(unwinding):
    """A side effect whose own failure ended the run, in its clean-up, stays in doubt."""
    message = a_call(2, effect=True, unwinding=1)
    journal = [
        done(a_call(1, "think"), "failed"),
        Intent(message),
        done(message, "failed"),
        Ended("failed", retry=(1, 2), spent=(2,)),
    ]
    asked = a_call(effect=True, unwinding=unwinding)
    assert use(pool_of(*journal), asked) == (Verdict.DOUBT, [2])
    assert use(pool_of(*journal, Settled(2, landed=True)), asked) == (Verdict.ANSWER, [2])
    another = a_call(digest="other", effect=True, unwinding=unwinding)
    assert verdict(pool_of(*journal), another) is Verdict.BLOCKED
    assert verdict(pool_of(*journal, Settled(2, landed=True)), another) is Verdict.FRESH
    found = verdict(pool_of(*journal, Settled(2, landed=False)), asked)
    assert found in (Verdict.AGAIN, Verdict.FRESH)


def test_other_unwinding():
    """A record of a clean-up does not answer the normal course, nor that of another failure."""
    pool = pool_of(done(a_call(5, unwinding=1)))
    assert verdict(pool, a_call()) is Verdict.FRESH
    assert verdict(pool, a_call(unwinding=2)) is Verdict.FRESH
    assert verdict(pool, a_call(unwinding=ANY_ERROR)) is Verdict.FRESH
    assert verdict(pool, a_call(unwinding=1)) is Verdict.ANSWER
    pool = pool_of(done(a_call(5, effect=True, unwinding=1)))
    assert verdict(pool, a_call(effect=True)) is Verdict.BLOCKED


# -- side effects with other arguments -------------------------------------------------------------

HERE = {"place": "body[2]@0:4", "site": "agent.py:7", "effect": True}


@pytest.mark.parametrize("state", STATES)
def test_blocked(state):
    """A side effect that matches nothing is blocked while one of its name may have happened."""
    found = verdict(pool_of(*recorded_as(state, effect=True)), a_call(digest="other", effect=True))
    assert found is (Verdict.FRESH if "cleanly" in state else Verdict.BLOCKED)


def test_blocked_by_all():
    """A blocked call names everything that it could be, in order."""
    journal = [done(a_call(n, digest=f"d{n}", effect=True)) for n in (3, 1, 2)]
    assert use(pool_of(*journal), a_call(effect=True)) == (Verdict.BLOCKED, [1, 2, 3])


def test_other_names():
    """A side effect of another name blocks only if it is in doubt and of the same statement."""
    pay = a_call(1, "pay", **HERE)
    here, elsewhere = a_call(**HERE), a_call(**{**HERE, "place": "body[3]"})
    assert verdict(pool_of(done(pay)), here) is Verdict.FRESH
    assert verdict(pool_of(Intent(pay)), here) is Verdict.BLOCKED
    assert verdict(pool_of(Intent(pay), done(pay, "failed")), here) is Verdict.BLOCKED
    assert verdict(pool_of(Intent(pay)), elsewhere) is Verdict.FRESH
    unknown = a_call(1, "pay", effect=True)
    assert verdict(pool_of(Intent(unknown)), a_call(effect=True)) is Verdict.FRESH


def test_changed_arguments():
    """The only unused record, made at the very same place, answers with a warning."""
    journal = [done(a_call(1, **HERE))]
    assert use(pool_of(*journal), a_call(digest="other", **HERE)) == (Verdict.CHANGED, [1])


@pytest.mark.parametrize(
    ("call", "how"),
    [
        ({"place": "body[3]"}, {}),
        ({"site": "agent.py:8"}, {}),
        ({}, {"directly": False}),
        ({}, {"alone": False}),
    ],
    ids=["place", "site", "repeated", "not alone"],
)
def test_changed_arguments_elsewhere(call, how):
    """At another place, in a loop, or beside another task, changed arguments are not assumed."""
    pool = pool_of(done(a_call(1, **HERE)))
    assert verdict(pool, a_call(digest="other", **{**HERE, **call}), **how) is Verdict.BLOCKED


def test_changed_arguments_of_one_among_two():
    """Two unused records leave it open which of them has changed."""
    pool = pool_of(done(a_call(1, **HERE)), done(a_call(2, digest="e", **HERE)))
    assert verdict(pool, a_call(digest="other", **HERE)) is Verdict.BLOCKED
    use(pool, a_call(digest="e", **HERE))
    assert verdict(pool, a_call(digest="other", **HERE)) is Verdict.CHANGED


@pytest.mark.parametrize("state", [state for state in STATES if state != "completed"])
def test_changed_arguments_without_an_answer(state):
    """A record that has no outcome to give does not answer changed arguments."""
    pool = pool_of(*recorded_as(state, **HERE))
    found = verdict(pool, a_call(digest="other", **HERE))
    assert found is (Verdict.FRESH if "cleanly" in state else Verdict.BLOCKED)


def test_changed_arguments_of_another_unwinding():
    """A clean-up's record does not answer the normal course with changed arguments either."""
    pool = pool_of(done(a_call(5, unwinding=1, **HERE)))
    assert verdict(pool, a_call(digest="other", **HERE)) is Verdict.BLOCKED
    assert verdict(pool, a_call(digest="other", unwinding=1, **HERE)) is Verdict.CHANGED


def test_changed_arguments_of_another_function():
    """The record of a function that is still there in another module answers no changed call."""
    pool = pool_of(done(a_call(1, module="first", **HERE)), known={("first", "send")})
    call = a_call(module="second", digest="other", **HERE)
    assert verdict(pool, call) is not Verdict.CHANGED
    pool = pool_of(done(a_call(1, module="first", **HERE)))
    assert verdict(pool, call) is Verdict.CHANGED


def test_whether_others_are_alive_is_asked_last():
    """Whether other tasks are alive takes a while to find out: it is asked only if it decides."""

    def never():
        raise AssertionError("asked")

    pool = pool_of(done(a_call(1, **HERE)))
    for call in (a_call(**HERE), a_call(digest="o"), a_call(digest="o", effect=True)):
        pool.match(call, directly=True, alone=never)
    pool.match(a_call(digest="o", **HERE), directly=False, alone=never)


# -- modules, scopes, inner calls ------------------------------------------------------------------


def test_a_step_that_moved():
    """The record of a step answers when it moved to another module, not while both are there."""
    journal = [done(a_call(1, module="old"))]
    assert verdict(pool_of(*journal), a_call(module="new")) is Verdict.ANSWER
    known = {("old", "send"), ("new", "send")}
    assert verdict(pool_of(*journal, known=known), a_call(module="new")) is Verdict.FRESH
    assert verdict(pool_of(*journal, known=known), a_call(module="old")) is Verdict.ANSWER


def test_inner_calls():
    """What a completed call made inside is used with it."""
    inner = [done(a_call(n, "fetch", f"f{n}", scope="outer")) for n in (2, 3)]
    pool = pool_of(*inner, done(a_call(1, "outer"), inner=(2, 3)))
    assert [recorded.call.number for recorded in pool.unused] == [1]
    assert len(pool) == 3
    assert use(pool, a_call(name="outer")) == (Verdict.ANSWER, [1])
    assert (len(pool), pool.unused) == (0, [])
    assert verdict(pool, a_call(name="fetch", digest="f2")) is Verdict.FRESH


def test_inner_calls_are_not_given_away():
    """What a completed call made inside answers no call from outside of it."""
    inner = done(a_call(2, "fetch", scope="outer"))
    pool = pool_of(inner, done(a_call(1, "outer"), inner=(2,)))
    assert verdict(pool, a_call(name="fetch")) is Verdict.FRESH
    assert verdict(pool, a_call(name="fetch", scope="another")) is Verdict.FRESH
    assert verdict(pool, a_call(name="fetch", scope="outer")) is Verdict.ANSWER


def test_inner_side_effects_of_a_completed_call():
    """A side effect inside a completed call blocks no call of its name outside."""
    inner = done(a_call(2, effect=True, scope="outer"))
    pool = pool_of(inner, done(a_call(1, "outer"), inner=(2,)))
    assert verdict(pool, a_call(digest="other", effect=True)) is Verdict.FRESH


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_inner_calls_of_a_call_that_runs_again(status):
    """What a call that runs again had made inside answers when it makes it again."""
    inner = done(a_call(2, effect=True, scope="outer"))
    pool = pool_of(inner, done(a_call(1, "outer"), status, inner=(2,)))
    assert use(pool, a_call(name="outer")) == (Verdict.AGAIN, [1])
    assert use(pool, a_call(effect=True, scope="outer")) == (Verdict.ANSWER, [2])


def test_inner_calls_when_the_code_around_them_changed():
    """What a call made that is not completed answers outside of it as well: code was rearranged."""
    pool = pool_of(done(a_call(2, "fetch", scope="outer")))
    assert verdict(pool, a_call(name="fetch")) is Verdict.ANSWER


def test_inner_calls_at_any_depth():
    """Used from the middle, a nest of calls takes along what lies inside, and no more."""
    journal = [
        done(a_call(3, "c", scope="b")),
        done(a_call(2, "b", scope="a"), inner=(3,)),
        done(a_call(1, "a"), inner=(2, 3)),
    ]
    pool = pool_of(*journal)
    assert use(pool, a_call(name="b", scope="a")) == (Verdict.ANSWER, [2])
    assert [recorded.call.number for recorded in pool.all] == [1]
    assert use(pool, a_call(name="a")) == (Verdict.ANSWER, [1])
    assert len(pool) == 0


def test_order_of_the_unused():
    """Unused records are listed in the order in which their calls were first made."""
    pool = pool_of(
        *(Intent(a_call(1, effect=True)), done(a_call(2, "think"))),
        *(done(a_call(1, effect=True)), done(a_call(3, "think"))),
    )
    assert [recorded.call.number for recorded in pool.unused] == [1, 2, 3]


def test_the_last_record_counts():
    """A recorded call keeps its last record, with the entry that holds its payload."""
    call = a_call(1, effect=True)
    pool = pool_of(Intent(call), done(call, "failed"), Intent(call), done(call))
    assert pool.get(1).entry.number == 4
    assert pool.get(1).outcome.status == "completed"
    assert pool_of(Intent(call), done(call, "failed"), Intent(call)).get(1).outcome is None


# -- large journals --------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0, 2_000, -1], ids=["same", "other", "one off"])
def test_many_equal_calls(shift, monkeypatch):
    """To find the record of one of many equal calls, one or two records are looked at."""
    looked = []
    fits = Pool._fits
    monkeypatch.setattr(Pool, "_fits", lambda *args: looked.append(1) or fits(*args))
    pool = pool_of(*(done(a_call(n, ordinal=n)) for n in range(1, 2_001)))
    for n in range(1, 2_001):
        verdict, _ = use(pool, a_call(ordinal=n + shift))
        assert verdict is Verdict.ANSWER
    assert len(pool) == 0
    assert len(looked) <= 2 * 2_000
