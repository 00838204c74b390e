"""Approvals: what a person allows is what is done, once; nothing else is."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from unittest import mock

import pytest
from answering import Person, asked, died_asking
from flows import aflow_of, flow_of
from killed import Killed, forget_process

import stepwise
from stepwise import (
    ApprovalDenied,
    ArgumentMutatedWarning,
    ConfigurationError,
    OutsideRunError,
    RunEndedError,
    StepInDoubtError,
    StepNotFoundError,
    WaitTimeoutError,
    step,
    tool,
    workflow,
)
from stepwise._calls import approvals
from stepwise._calls.approvals import ApprovedCall
from stepwise.testing import SimulatedCrash, crash_at

PAID: list[object] = []


@pytest.fixture(autouse=True)
def nothing_paid(monkeypatch):
    PAID.clear()
    monkeypatch.delenv("STEPWISE_QUIET")


@tool(side_effect=True, approve=True)
def pay(to: str, amount: int = 3) -> str:
    PAID.append((to, amount))
    return f"paid {to}"


@workflow(run_id="r")
def payer(to, amount=3):
    return pay(to, amount)


def paying(**options):
    """A tool that needs a yes."""

    @tool(side_effect=True, **{"approve": True, **options})
    def transfer(to, amount=0):
        PAID.append((to, amount))

    return transfer


def answered_yes(flow):
    """Call a workflow, and say yes to whatever it asks; its result, and what it asked."""
    handle = flow.start()
    with Person(handle.run, yes) as person:
        return handle.result(60), person.seen


def yes(question):
    question.approve()


# -- asking and answering ------------------------------------------------------------------------


def answered(flow, *words):
    """Say yes to the one question of a workflow of either kind; the question, and the result."""

    def answer(run):
        (question,) = asked(run)
        assert PAID == []
        run.approve(question.step, question.ticket, *words)
        return question

    async def main():
        handle = flow.start()
        return await asyncio.to_thread(answer, handle.run), await handle

    if flow.definition.is_coroutine:
        return asyncio.run(main())
    handle = flow.start()
    return answer(handle.run), handle.result(60)


@tool(side_effect=True, approve=True)
async def apay(to: str, amount: int = 3) -> str:
    return pay.__wrapped__(to, amount)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_tool_waits_for_a_yes(kind):
    """A call is made when a person has allowed it, with the arguments that the person was shown."""
    flow = flow_of(lambda: pay("bob")) if kind == "plain" else aflow_of(lambda: apay("bob"))
    question, result = answered(flow, "it is due")
    assert (result, PAID) == ("paid bob", [("bob", 3)])
    assert question.details == "to = 'bob'\namount = 3"
    assert question.arguments == {"to": "bob"}
    assert stepwise.get_run("r").questions == []


def test_the_yes_is_on_record():
    """The journal says who said yes, when, with which note; the intent names the question."""
    question, _ = answered(flow_of(lambda: pay("bob")), "it is due")
    waiting, answer, intent, outcome, _ = (
        each.record for each in list(stepwise.get_run("r")._entries())[1:]
    )
    assert (waiting.kind, waiting.ticket) == ("approval", question.ticket)
    assert (answer.approved, answer.note) == (True, "it is due")
    assert "@" in answer.by
    assert waiting.at <= answer.sent_at <= answer.at
    assert intent.ticket == question.ticket
    assert outcome.status == "completed"


def test_a_no_is_an_exception():
    """A denial says who, and why; a workflow that handles it goes on, and is answered so again."""

    @workflow(run_id="r")
    def careful():
        try:
            return pay("bob")
        except ApprovalDenied as denied:
            return (denied.step, denied.note, "@" in denied.by, "too much" in str(denied))

    handle = careful.start()
    (question,) = asked(handle.run)
    with pytest.raises(ConfigurationError, match="needs a reason"):
        handle.run.deny(question.step, question.ticket, " ")
    handle.run.deny(question.step, question.ticket, "too much")
    assert handle.result(60) == (1, "too much", True, True)
    assert PAID == []
    assert [each.status for each in handle.run.steps] == ["failed"]


def test_a_run_that_failed_with_a_no_asks_again():
    """The next start asks anew; the old answer does not count."""
    handle = payer.start("bob")
    (question,) = asked(handle.run)
    question.deny("not today")
    with pytest.raises(ApprovalDenied):
        handle.result(60)
    handle = payer.start("bob")
    (again,) = asked(handle.run)
    assert again.step == question.step
    assert again.ticket != question.ticket
    again.approve()
    assert handle.result(60) == "paid bob"
    assert PAID == [("bob", 3)]


def test_a_function_says_which_calls_need_a_yes():
    """``approve=`` with a function of the arguments: only calls for which it is true wait."""
    spend = paying(approve=lambda to, amount: amount > 10)
    handle = flow_of(lambda: [spend("ann", 5), spend("bob", 50)]).start()
    (question,) = asked(handle.run)
    assert PAID == [("ann", 5)]
    assert "amount = 50" in question.details
    question.approve()
    handle.result(60)
    assert PAID == [("ann", 5), ("bob", 50)]


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_function_that_is_a_coroutine_function_is_awaited(kind):
    """``approve=`` may be asynchronous, in both kinds of tools."""

    async def needed(to):
        await asyncio.sleep(0)
        return to == "bob"

    asks = tool(side_effect=True, approve=needed)

    @asks
    def plain(to):
        return to

    @asks
    async def coroutine(to):
        return to

    async def both():
        return [await coroutine("ann"), await coroutine("bob")]

    flow = aflow_of(both)
    if kind == "plain":
        flow = flow_of(lambda: [plain("ann"), plain("bob")])
    question, result = answered(flow)
    assert (question.arguments, result) == ({"to": "bob"}, ["ann", "bob"])


def test_a_function_that_raises_or_returns_no_bool():
    """What the function raises comes out before anything happened; a forgotten return is said."""
    raising = paying(approve=lambda to: {}[to])
    forgetful = paying(approve=lambda to: None)
    with pytest.raises(KeyError):
        flow_of(lambda: raising("bob"))()
    with pytest.raises(ConfigurationError, match="returned None: it returns True"):
        flow_of(lambda: forgetful("bob")).options(run_id="other")()
    assert PAID == []


def test_options_that_cannot_mean_anything():
    """``approve=`` is for side effects, and True or a function."""
    with pytest.raises(ConfigurationError, match=r"write @tool\(side_effect=True, approve="):
        tool(approve=True)(lambda to: None)
    with pytest.raises(ConfigurationError, match="it must be True, or a function"):
        tool(side_effect=True, approve="yes")(lambda to: None)
    with pytest.raises(ConfigurationError, match="which belongs to @tool"):
        step(approve=True)(lambda to: None)


def test_outside_of_runs():
    """Where nobody could be asked, what needs a yes is refused; and a question is a text."""

    @tool(side_effect=True, approve=lambda to: to == "bob")
    async def apay(to):
        return to

    with pytest.raises(OutsideRunError, match=r"pay\.__wrapped__"):
        pay("bob")
    assert pay.__wrapped__("bob") == "paid bob"
    with pytest.raises(OutsideRunError):
        asyncio.run(apay("bob"))
    assert asyncio.run(apay("ann")) == "ann"
    with pytest.raises(ConfigurationError, match="not empty"):
        stepwise.approve(" ")
    with pytest.raises(OutsideRunError):
        stepwise.approve("Go on?")


def test_two_people_at_once():
    """Of two answers to one question exactly one counts, and the other person is told."""
    handle = payer.start("bob")
    (question,) = asked(handle.run)
    barrier = threading.Barrier(2)

    def answer(how, *words):
        barrier.wait()
        try:
            how(*words)
        except (StepNotFoundError, RunEndedError) as error:
            return error

    with ThreadPoolExecutor(2) as people:
        said = [people.submit(answer, question.approve), people.submit(answer, question.deny, "no")]
    assert [each.result() for each in said].count(None) == 1
    assert PAID in ([], [("bob", 3)])
    with pytest.raises((StepNotFoundError, RunEndedError)):
        question.approve()


def test_an_answer_names_its_question():
    """An answer counts for the question whose ticket it names, once; who comes later is told."""
    (first,) = died_asking(lambda: payer("bob"))
    run = stepwise.get_run("r")
    for ticket in ("", "fine", first.ticket[:-1]):
        with pytest.raises(StepNotFoundError, match="is not the ticket of what it asks"):
            run.approve(first.step, ticket)
    with pytest.raises(StepNotFoundError, match=r"wait for an answer: 1 \(pay\) of run 'r'"):
        run.approve(7, first.ticket)
    assert run.questions == [first]
    run.approve("pay", first.ticket, "fine")
    assert run.questions == []
    for named in (first.step, "pay"):
        with pytest.raises(
            StepNotFoundError, match=r"@.* answered that at \d{4}-\d\d-.*, with yes \(fine\)"
        ):
            run.deny(named, first.ticket, "no")
    payer("bob")
    with pytest.raises(RunEndedError):
        run.approve(7, "ask-0")


# -- what a yes is bound to ----------------------------------------------------------------------


def test_equal_calls_need_a_yes_each():
    """A yes is for one call: a second equal call asks again."""
    _, seen = answered_yes(flow_of(lambda: [pay("bob"), pay("bob")]))
    assert len({each.ticket for each in seen}) == 2
    assert PAID == [("bob", 3)] * 2


def test_an_object_that_changes_between_question_and_yes():
    """The call is made with the arguments that the person saw, whatever became of the objects."""
    transfer, letter = paying(), ["dear bob"]
    handle = flow_of(lambda: transfer(letter)).start()
    (question,) = asked(handle.run)
    letter.append("send me all your money")
    question.approve()
    handle.result(60)
    assert PAID == [(["dear bob"], 0)]


def test_a_tool_that_changes_its_arguments_changes_copies():
    """The caller's object stays as it is, now and after a resume; a warning says so."""

    @tool(side_effect=True, approve=True)
    def send(letter):
        letter.append("sent")

    @workflow(run_id="r")
    def sender():
        letter = ["dear bob"]
        send(letter)
        return letter

    with pytest.warns(ArgumentMutatedWarning, match="which is a copy"):
        result, _ = answered_yes(sender)
    assert result == ["dear bob"]


@pytest.mark.parametrize("answered", ["answered", "open"])
def test_other_arguments_are_another_call(answered, capsys):
    """A call with other arguments asks for itself; the old question is not open any more."""
    amounts = [10]
    flow = flow_of(lambda: pay("bob", amounts[0]))
    (question,) = died_asking(flow)
    if answered == "answered":
        question.approve()
    amounts[0] = 20
    (other,) = died_asking(flow)
    assert other.step != question.step
    (run,) = stepwise.runs()
    assert run.steps[-1].why == "pay waits, since the argument 'amount' differs from step 1"
    if answered == "open":
        with pytest.raises(StepNotFoundError, match=f"for which step {other.step} asks"):
            question.approve()
    else:
        assert f"step {other.step} asks instead" in capsys.readouterr().err
    assert PAID == []
    other.approve()
    flow()
    assert PAID == [("bob", 20)]


class Account:
    def __init__(self, owner):
        self.owner = owner
        self.lock = threading.Lock()  # has no digest, and counts by its class

    @tool(side_effect=True, approve=True, ignore=("self.owner",))
    def withdraw(self, amount):
        PAID.append((self.owner, amount))


@pytest.mark.parametrize("when", ["while it waits", "as it begins"])
def test_an_attribute_that_changes(when, capsys):
    """The instance belongs to what is allowed; a change as the intent is written counts, too."""
    account, announced = Account("ann"), ApprovedCall.announced

    def changing(self, *args):
        answer = yield from announced(self, *args)
        account.owner = "bob"
        return answer

    handle = flow_of(lambda: account.withdraw(5)).start()
    (question,) = asked(handle.run)
    assert question.details.splitlines()[:2] == ["amount = 5", "self.owner = 'ann'"]
    if when == "while it waits":
        account.owner = "bob"
        changing = announced
    with mock.patch.object(ApprovedCall, "announced", changing):
        question.approve()
        (again,) = asked(handle.run)
    said = capsys.readouterr().err
    assert when == "as it begins" or "the attribute 'owner' of its instance" in said
    assert (PAID, again.ticket != question.ticket) == ([], True)
    again.approve()
    handle.result(60)
    assert PAID == [("bob", 5)]


@dataclass
class Till:
    owner: str
    cents: int = field(compare=False)

    def __call__(self, to):
        PAID.append((to, self.cents))

    def give(self, to):
        PAID.append((to, self.cents))

    @tool(side_effect=True, approve=True, key=lambda self, to: to)
    def hand_over(self, to):
        PAID.append((to, self.cents))


def pays(to, cents):
    PAID.append((to, cents))


def paying_by_default(cents):
    def pays(to, cents=cents):
        PAID.append((to, cents))

    return pays


def paying_what_is_captured(cents):
    def pays(to):
        PAID.append((to, held))

    held = cents
    return pays


def closure_over(cents):
    held = [cents]

    def pays(to):
        PAID.append((to, held[0]))

    return pays


def given(function, **options):
    """A tool that asks, and whose calls are one whatever the function holds."""
    options = options or {"key": lambda *_: "k"}
    return tool(function, name="give", side_effect=True, approve=True, **options)


AMOUNT, OTHERS = "asks again, since the argument 'cents'", "for other arguments"
HIDDEN = {
    "left out by key=": (lambda cents: given(pays, key=("to",))("bob", cents), AMOUNT),
    "left out by ignore=": (lambda cents: given(pays, ignore=("cents",))("bob", cents), AMOUNT),
    "no part of a key": (lambda cents: given(pays, key=lambda to, _: to)("bob", cents), AMOUNT),
    "default": (lambda cents: given(paying_by_default(cents), ignore=("cents",))("bob"), AMOUNT),
    "captured": (lambda cents: given(paying_what_is_captured(cents))("bob"), OTHERS),
    "closure": (lambda cents: given(closure_over(cents))("bob"), OTHERS),
    "instance": (lambda cents: Till("ann", cents).hand_over("bob"), OTHERS),
    "callable": (lambda cents: given(Till("ann", cents))("bob"), OTHERS),
    "bound method": (lambda cents: given(Till("ann", cents).give)("bob"), OTHERS),
    "partial": (lambda cents: given(functools.partial(Till("ann", cents).give, "bob"))(), OTHERS),
}


def test_the_function_that_says_whether_to_ask_changes_its_argument():
    """``approve=`` has copies of its own: what it does to them is not what is called."""
    buy = paying(approve=lambda to: to.pop("cents") > 100)
    flow_of(lambda: buy({"cents": 5}))()
    assert PAID == [({"cents": 5}, 0)]


@pytest.mark.parametrize("what", HIDDEN)
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "open"])
def test_state_that_no_argument_shows(what, answered, capsys):
    """What a call acts on is part of what is allowed, though no part of its identity.

    With another value the step asks anew, and its old question cannot be answered any more.
    """
    (call, said), cents = HIDDEN[what], [1]
    flow = flow_of(lambda: call(cents[0]))
    (question,) = died_asking(flow)
    assert "1" in question.details
    if answered:
        question.approve()
    cents[0] = 1_000_000
    (again,) = [each for each in died_asking(flow) if each.ticket != question.ticket]
    assert again.step == question.step
    assert said in capsys.readouterr().err
    assert "1000000" in again.details
    assert stepwise.get_run("r").questions == [again]
    with pytest.raises(StepNotFoundError, match=None if answered else "it has asked again since"):
        question.approve()
    assert PAID == []
    again.approve()
    flow()
    assert PAID == [("bob", 1_000_000)]


@dataclass
class Letter:
    to: str
    memo: str = field(default="", compare=False)


def test_what_equality_leaves_out_is_what_the_person_saw():
    """A field that ``==`` leaves out is made as it was shown, not as the code has it now."""
    send, memos = paying(), ["all the best"]
    flow = flow_of(lambda: send(Letter("bob", memos[0])))
    (question,) = died_asking(flow)
    question.approve()
    memos[0] = "pay at once"
    flow()
    assert [each.memo for each, _ in PAID] == ["all the best"]


class Forgetful:
    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return (len, ("",))


UNBOUND = {
    "no digest": threading.Lock(),
    "not recordable": (each for each in ()),
    "comes back otherwise": Forgetful("a"),
}


@pytest.mark.parametrize("what", UNBOUND)
def test_arguments_that_cannot_be_bound(what):
    """Without a digest, or a record, of an argument, approve= is refused, and nobody is asked."""
    use = paying(ignore=("to",))
    with pytest.raises(ConfigurationError, match="approve= of tool"):
        flow_of(lambda: use(UNBOUND[what]))()
    assert PAID == []
    assert stepwise.get_run("r").questions == []


def test_secrets_are_bound_and_not_shown():
    """A secret is in no record, and another one asks anew."""

    @tool(side_effect=True, approve=True, secret=("token",))
    def call(url, token):
        PAID.append((url, token))

    @workflow(run_id="r", secret=("token",))
    def flow(token):
        call("/x", token)

    (question,) = died_asking(lambda: flow("hunter2-hunter2"))
    assert question.details == "url = '/x'\ntoken = <secret>"
    run = stepwise.get_run("r")
    for entry in run._entries():
        assert "hunter2" not in repr(entry)
    question.approve()
    (again,) = died_asking(lambda: flow("correct horse"))
    assert again.ticket != question.ticket
    again.approve()
    flow("correct horse")
    assert PAID == [("/x", "correct horse")]


def test_what_a_framework_injects_is_not_asked_about():
    """A context that a framework passes is not shown, and reaches the tool as the very object."""

    class RunContext:
        def __init__(self):
            self.lock = threading.Lock()

    RunContext.__module__, RunContext.__qualname__ = "pydantic_ai.tools", "RunContext"

    def send_in(ctx, to):
        PAID.append((ctx, to))

    send_in.__annotations__["ctx"] = RunContext
    context, sends = RunContext(), tool(side_effect=True, approve=True)(send_in)
    _, (question,) = answered_yes(flow_of(lambda: sends(context, "bob")))
    assert question.details == "to = 'bob'"
    assert [(context, "bob")] == PAID


def test_redacted_arguments():
    """``redact=`` holds for the question, too; what is ignored is shown, since it is allowed."""
    wire = paying(redact=("to",), ignore=("amount",))
    (question,) = died_asking(flow_of(lambda: wire("DE99", "rent")))
    assert question.details == "to = <redacted>\namount = 'rent'"


class Envelope:
    def __init__(self):
        self.stamp = "80c"


def test_all_of_the_arguments_are_shown():
    """However long a text is, the person sees all of it; no text looks like another argument."""
    text = "dear bob\nto = 'ann'\n" + "x" * 5000
    send = paying()
    (question,) = died_asking(flow_of(lambda: send(text, [*range(300), Envelope()])))
    shown = question.details.splitlines()
    assert shown[:3] == ["to =", "  | dear bob", "  | to = 'ann'"]
    assert "x" * 5000 in question.details
    assert all(str(number) in question.details for number in range(300))
    assert "Envelope(stamp='80c')" in question.details


# -- one yes, one act ----------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_an_answer_that_was_taken_and_not_acted_on(answer):
    """A process that dies after it took an answer: the next one acts on it without asking."""
    (question,) = died_asking(lambda: payer("bob"))
    place = (ApprovedCall, "announced") if answer == "yes" else (approvals, "denied")
    (question.approve if answer == "yes" else question.deny)(answer)
    with mock.patch.object(*place, killed), pytest.raises(Killed):
        payer("bob")
    forget_process()
    with pytest.raises(ApprovalDenied) if answer == "no" else nullcontext():
        assert payer("bob") == "paid bob"
    assert ([("bob", 3)] if answer == "yes" else []) == PAID


def test_a_person_who_says_that_it_did_not_happen():
    """The yes holds until the call has happened: after ``resolve`` it is made without asking."""
    (question,) = died_asking(lambda: payer("bob"))
    question.approve()
    with pytest.raises(SimulatedCrash), crash_at(pay, "before"):
        payer("bob")
    with pytest.raises(StepInDoubtError):
        payer("bob")
    stepwise.get_run("r").resolve(1, did_not_happen=True)
    assert payer("bob") == "paid bob"
    assert PAID == [("bob", 3)]


def test_in_doubt_retry_needs_no_new_question():
    """The yes holds for the call that is retried under its key; with what was approved."""
    transfer, amounts = paying(in_doubt="retry", key=("to",)), [10]
    flow = flow_of(lambda: transfer("bob", amounts[0]))
    (question,) = died_asking(flow)
    question.approve()
    with pytest.raises(SimulatedCrash), crash_at(transfer, "after"):
        flow()
    amounts[0] = 1_000_000
    with pytest.raises(StepInDoubtError, match="argument 'amount' is not what was approved"):
        flow()
    amounts[0] = 10
    flow()
    assert PAID == [("bob", 10)] * 2


def test_retries_need_no_new_question():
    """Another attempt of a call that failed cleanly is covered by its yes."""

    @tool(side_effect=True, approve=True, retries=2, backoff=0.0, fails_cleanly=LookupError)
    def send(to):
        PAID.append(to)
        if len(PAID) < 3:
            raise LookupError

    _, seen = answered_yes(flow_of(lambda: send("bob")))
    assert (len(seen), len(PAID)) == (1, 3)


def test_a_forgotten_step_asks_again():
    """After ``forget`` the call is another act, which needs a yes of its own."""
    flow = flow_of(lambda: pay("bob"))
    answered_yes(flow)
    stepwise.get_run("r").forget(1)
    (question,) = died_asking(flow)
    assert PAID == [("bob", 3)]
    question.approve()
    flow()
    assert PAID == [("bob", 3)] * 2


@pytest.mark.parametrize("state", ["open", "answered", "taken"])
def test_a_fork_asks_anew(state):
    """A yes is for one call of one run: a fork of it asks for itself."""
    (question,) = died_asking(lambda: payer("bob"))
    run = stepwise.get_run("r")
    if state != "open":
        question.approve()
    if state == "taken":
        with mock.patch.object(ApprovedCall, "announced", killed), pytest.raises(Killed):
            payer("bob")
        forget_process()
        assert run.questions == []
    fork = run.fork(at=1, run_id="f")
    assert fork.questions == []
    (again,) = [
        each for each in died_asking(lambda: payer.options(run_id="f")("bob")) if each.run_id == "f"
    ]
    assert again.ticket != question.ticket
    assert PAID == []
    again.approve()
    payer.options(run_id="f")("bob")
    assert PAID == [("bob", 3)]


def killed(*arguments):
    raise Killed


# -- approve() -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_approve_returns_the_note(kind):
    """``approve`` waits for a yes, and returns what the person said."""

    def asks():
        return stepwise.approve("Go on?", details={"cost": 5})

    question, result = answered((flow_of if kind == "plain" else aflow_of)(asks), "with care")
    assert result == "with care"
    assert (question.text, question.details) == ("Go on?", "{'cost': 5}")
    assert (question.name, question.arguments) == ("stepwise.approve", {})
    (answer,) = [
        e.record for e in stepwise.get_run("r")._entries() if hasattr(e.record, "approved")
    ]
    assert (answer.approved, answer.note) == (True, "with care")


def test_approve_can_be_denied_and_time_out():
    """A no and the end of the time are exceptions that the workflow can handle."""

    @workflow(run_id="r")
    def flow():
        said = []
        for question in ("One?", "Two?"):
            try:
                stepwise.approve(question, timeout=60 if question == "One?" else 0.01)
            except (ApprovalDenied, WaitTimeoutError) as error:
                said.append(type(error).__name__)
        return said

    handle = flow.start()
    (question,) = asked(handle.run)
    question.deny("no")
    assert handle.result(60) == ["ApprovalDenied", "WaitTimeoutError"]
    assert flow() == ["ApprovalDenied", "WaitTimeoutError"]


def test_approve_with_other_details_is_another_question():
    """An answer holds for its question over a crash, and for none with other details."""
    details = ["a plan"]
    flow = flow_of(lambda: stepwise.approve("Go on?", details[0]))
    (question,) = died_asking(flow)
    assert died_asking(flow) == [question]
    question.approve("fine")
    details[0] = "another plan"
    (other,) = died_asking(flow)
    assert other.details == "'another plan'"
    other.approve("fine, too")
    assert flow() == "fine, too"


# -- several at once, and in other places --------------------------------------------------------


def test_several_at_once():
    """Calls that are gathered or mapped ask side by side, and each waits for its own answer."""

    @tool(side_effect=True, approve=True)
    async def apay(to):
        return pay.__wrapped__(to)

    def answered(run):
        first, second, third = asked(run, 3)
        third.approve()
        first.approve()
        second.deny("no")

    async def main():
        calls = aflow_of(lambda: asyncio.gather(*map(apay, "abc"), return_exceptions=True))
        handle = calls.start()
        await asyncio.to_thread(answered, handle.run)
        return await handle

    one, two, three = asyncio.run(main())
    assert (one, three) == ("paid a", "paid c")
    assert isinstance(two, ApprovalDenied)
    mapped, _ = answered_yes(flow_of(lambda: list(stepwise.map(pay, "def")), run_id="mapped"))
    assert mapped == ["paid d", "paid e", "paid f"]
    assert sorted(PAID) == [(each, 3) for each in "acdef"]


def test_a_child_run_asks():
    """The questions of a run include those of its child runs, which are answered there."""

    @workflow
    def child():
        return pay("bob")

    handle = flow_of(child).start()
    (question,) = asked(handle.run)
    assert question.run_id.startswith("r/")
    with pytest.raises(StepNotFoundError, match=r"wait for an answer: 1 \(pay\) of run 'r/"):
        handle.run.approve(1, "ask-0")
    handle.run.approve(1, question.ticket)
    assert handle.result(60) == "paid bob"


def test_inside_a_step():
    """A step cannot wait: its body would run again."""
    outer = step(name="outer")(lambda: pay("bob"))
    with pytest.raises(ConfigurationError, match="a step cannot wait"):
        flow_of(outer)()
    assert PAID == []


def test_data_only():
    """With ``codec="json"`` the arguments are recorded as data, by their annotations."""

    @tool(side_effect=True, approve=True)
    def send(to: str, copies: tuple[int, ...]):
        PAID.append((to, copies))

    @workflow(run_id="r", codec="json")
    def flow():
        send("bob", (1, 2))

    (question,) = died_asking(flow)
    assert question.arguments["to"] == "bob"
    question.approve()
    flow()
    assert PAID == [("bob", (1, 2))]
