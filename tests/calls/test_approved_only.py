"""Random edits, kills and answers: what is done was allowed, and each yes is good for one act."""

from __future__ import annotations

import ast
from collections import Counter
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given
from killed import Killed, forget_process

import stepwise
from examples import sweep
from stepwise import ApprovalDenied, RunEndedError, RunStopped, StepNotFoundError, tool, workflow
from stepwise._calls import approvals
from stepwise.testing import fresh_store

PAID: Counter[tuple[str, int, str]] = Counter()
plan: dict[str, object] = {"dies": "", "calls": []}


class Account:
    """An instance whose attribute belongs to what is allowed."""

    def __init__(self) -> None:
        self.owner = "me"

    @tool(side_effect=True, approve=True, key=("to",), ignore=("self.owner",))
    def pay(self, to, amount, memo="x"):
        if plan["dies"] == "before":
            raise Killed
        PAID[to, amount, f"{memo} of {self.owner}"] += 1
        if plan["dies"] == "after":
            raise Killed


ACCOUNT = Account()


def planned(number):
    """The call of this turn, as the program has it now: no checkpoint holds it."""
    calls = plan["calls"]
    return calls[number] if number < len(calls) else None


@workflow(run_id="r")
def payer():
    for number in range(3):
        try:
            planned(number) and ACCOUNT.pay(*planned(number))
        except ApprovalDenied:
            continue


def impatient(active, waiting, approvers):
    """Nobody waits here: without an answer the process dies."""
    message = active.inbox.answer(waiting.ticket)
    if message is None:
        raise Killed
    return approvals.Result(message)


def start(calls, owner, dies):
    """One process: it ends, or dies somewhere; then somebody looks whether what it did happened."""
    plan.update(calls=calls, dies=dies)
    ACCOUNT.owner = owner
    announced = approvals.ApprovedCall.announced

    def announces(self, *given):
        if dies == "announced":
            raise Killed
        return announced(self, *given)

    before = Counter(PAID)
    with (
        mock.patch.object(approvals, "answered", impatient),
        mock.patch.object(approvals.ApprovedCall, "announced", announces),
    ):
        try:
            payer()
        except (Killed, RunStopped):
            pass
        finally:
            forget_process()
    run = stepwise.get_run("r")
    for step in run.steps:
        if step.status == "in_doubt":
            if before != PAID and dies == "after":
                run.resolve(step.number, landed=None)
            else:
                run.resolve(step.number, did_not_happen=True)


def act_in(details):
    """What a person allows who is shown this."""
    shown = dict(line.split(" = ") for line in details.splitlines())
    to, amount, memo, owner = (
        ast.literal_eval(shown[name]) for name in ("to", "amount", "memo", "self.owner")
    )
    return to, amount, f"{memo} of {owner}"


PARTS = ["to", "amount", "memo", "owner", "less", "more"]
edits = st.tuples(st.integers(0, 2), st.sampled_from(PARTS))
days = st.tuples(
    st.sampled_from(["yes", "yes", "yes", "no", "late", ""]),
    st.sampled_from([0, 0, 1, 2]),
    st.just([]) | st.lists(edits, min_size=1, max_size=2),
    st.sampled_from(["", "", "announced", "before", "after"]),
)
OTHER = {"a": "b", "b": "a", 1: 2, 2: 1, "x": "y", "y": "x", "me": "you", "you": "me"}


def edited(program, edits):
    """The calls of a program, and the owner of the account, after somebody edited it."""
    calls, owner = [list(each) for each in program[0]], program[1]
    for number, what in edits:
        place = number % len(calls)
        if what == "owner":
            owner = OTHER[owner]
        elif what == "less" and len(calls) > 1:
            del calls[place]
        elif what == "more" and len(calls) < 3:
            calls.insert(place, list(calls[place]))
        elif what in ("to", "amount", "memo"):
            part = ("to", "amount", "memo").index(what)
            calls[place][part] = OTHER[calls[place][part]]
    return calls, owner


@pytest.mark.filterwarnings("ignore::stepwise.UnusedRecordWarning")
@sweep
@given(st.lists(days, min_size=3, max_size=12))
def test_nothing_is_done_that_was_not_allowed(days):
    """What was done was allowed with these very arguments, and no yes was used twice.

    On each day somebody answers a question, edits the program, and starts it.
    """
    PAID.clear()
    allowed: Counter[tuple[str, int, str]] = Counter()
    seen, program = [], ([["a", 1, "x"], ["a", 1, "x"]], "me")
    with fresh_store():
        for answer, which, changes, dies in [("", 0, [], ""), *days]:
            if answer:
                among = seen if answer == "late" else stepwise.get_run("r").questions
                for question in among[which : which + 1]:
                    try:
                        question.deny("no") if answer == "no" else question.approve()
                    except (StepNotFoundError, RunEndedError):
                        continue
                    allowed[act_in(question.details)] += answer != "no"
            program = edited(program, changes)
            start(*program, dies)
            seen += [each for each in stepwise.get_run("r").questions if each not in seen]
            assert not PAID - allowed, (PAID, allowed)
