"""Approvals: what a person allows is what is done, once; nothing else is."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass, field
from unittest import mock

import pytest
from answering import Person, asked, died_asking
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


def yes(question):
    question.approve()


# -- asking and answering ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_tool_waits_for_a_yes(kind):
    """A call is made when a person has allowed it, with the arguments that the person was shown."""

    @tool(side_effect=True, approve=True)
    async def apay(to: str, amount: int = 3) -> str:
        PAID.append((to, amount))
        return f"paid {to}"

    @workflow(run_id="r")
    async def apayer(to):
        return await apay(to)

    async def main():
        handle = apayer.start("bob")
        (question,) = await asyncio.to_thread(asked, handle.run)
        assert PAID == []
        await asyncio.to_thread(handle.run.approve, question.step, "it is due")
        return await handle, question

    if kind == "plain":
        handle = payer.start("bob")
        (question,) = asked(handle.run)
        assert PAID == []
        handle.run.approve(question.step, "it is due")
        result = handle.result(60)
    else:
        result, question = asyncio.run(main())
    assert result == "paid bob"
    assert PAID == [("bob", 3)]
    assert question.details == "to = 'bob'\namount = 3"
    assert question.arguments == {"to": "bob"}
    assert stepwise.get_run("r").questions == []


def test_the_yes_is_on_record():
    """The journal says who said yes, when, with which note; the intent names the question."""
    handle = payer.start("bob")
    (question,) = asked(handle.run)
    question.approve("it is due")
    handle.result(60)
    waiting, answered, intent, outcome, _ = (
        each.record for each in list(handle.run._entries())[1:]
    )
    assert (waiting.kind, waiting.ticket) == ("approval", question.ticket)
    assert (answered.approved, answered.note) == (True, "it is due")
    assert "@" in answered.by
    assert waiting.at <= answered.sent_at <= answered.at
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
        handle.run.deny(question.step, " ")
    handle.run.deny(question.step, "too much")
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

    @tool(side_effect=True, approve=lambda to, amount: amount > 10)
    def spend(to, amount):
        PAID.append((to, amount))

    @workflow(run_id="r")
    def spender():
        spend("ann", 5)
        spend("bob", 50)

    handle = spender.start()
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

    @tool(side_effect=True, approve=needed)
    def plain(to):
        PAID.append(to)

    @tool(side_effect=True, approve=needed)
    async def coroutine(to):
        PAID.append(to)

    @workflow(run_id="r")
    def flow():
        plain("ann")
        plain("bob")

    @workflow(run_id="r")
    async def aflow():
        await coroutine("ann")
        await coroutine("bob")

    run = stepwise.get_run
    if kind == "plain":
        handle = flow.start()
        with Person(handle.run, yes):
            handle.result(60)
    else:

        async def main():
            handle = aflow.start()
            with Person(handle.run, yes) as person:
                await handle
            return person

        asyncio.run(main())
    assert PAID == ["ann", "bob"]
    assert len([e for e in run("r")._entries() if type(e.record).__name__ == "Waiting"]) == 1


def test_a_function_that_raises_or_returns_no_bool():
    """What the function raises comes out before anything happened; a forgotten return is said."""

    def broken(to):
        raise LookupError(to)

    @tool(side_effect=True, approve=broken)
    def raising(to):
        PAID.append(to)

    @tool(side_effect=True, approve=lambda to: None)
    def forgetful(to):
        PAID.append(to)

    @workflow
    def flow(which):
        return {"raising": raising, "forgetful": forgetful}[which]("bob")

    with pytest.raises(LookupError):
        flow("raising")
    with pytest.raises(ConfigurationError, match="returned None: it returns True"):
        flow("forgetful")
    assert PAID == []


def test_options_that_cannot_mean_anything():
    """``approve=`` is for side effects, and True or a function."""
    with pytest.raises(ConfigurationError, match=r"write @tool\(side_effect=True, approve="):
        tool(approve=True)(lambda to: None)
    with pytest.raises(ConfigurationError, match="it must be True, or a function"):
        tool(side_effect=True, approve="yes")(lambda to: None)
    with pytest.raises(ConfigurationError, match="which belongs to @tool"):
        step(approve=True)(lambda to: None)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_outside_of_runs(kind):
    """Where nobody could be asked, a call that needs a yes is refused."""

    @tool(side_effect=True, approve=lambda to: to == "bob")
    async def apay(to):
        return to

    if kind == "plain":
        with pytest.raises(OutsideRunError, match=r"pay\.__wrapped__"):
            pay("bob")
        assert pay.__wrapped__("bob") == "paid bob"
    else:
        with pytest.raises(OutsideRunError):
            asyncio.run(apay("bob"))
        assert asyncio.run(apay("ann")) == "ann"


def test_two_people_at_once():
    """Of two answers to one question exactly one counts, and the other person is told."""
    handle = payer.start("bob")
    (question,) = asked(handle.run)
    said, barrier = [], threading.Barrier(2)

    def answer(how, *words):
        barrier.wait()
        try:
            how(*words)
            said.append(None)
        except (StepNotFoundError, RunEndedError) as error:
            said.append(error)

    threads = [
        threading.Thread(target=answer, args=(question.approve,)),
        threading.Thread(target=answer, args=(question.deny, "no")),
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert said.count(None) == 1
    assert PAID in ([], [("bob", 3)])
    with pytest.raises((StepNotFoundError, RunEndedError)):
        question.approve()


def test_the_second_answer_names_the_first():
    """Who answers a question that was answered learns by whom, and how."""
    (question,) = died_asking(lambda: payer("bob"))
    run = stepwise.get_run("r")
    run.approve(question.step, "fine")
    assert run.questions == []
    with pytest.raises(StepNotFoundError, match=r"has answered that already, with yes \(fine\)"):
        run.deny(question.step, "no")


def test_answers_to_what_does_not_ask():
    """The error says which steps wait; a run that ended says so."""
    died_asking(lambda: payer("bob"))
    run = stepwise.get_run("r")
    with pytest.raises(StepNotFoundError, match=r"wait for an answer: 1 \(pay\) of run 'r'"):
        run.approve(7)
    run.approve(1)
    payer("bob")
    with pytest.raises(RunEndedError):
        run.approve(7)


# -- what a yes is bound to ----------------------------------------------------------------------


def test_equal_calls_need_a_yes_each():
    """A yes is for one call: a second equal call asks again."""

    @workflow(run_id="r")
    def twice():
        return [pay("bob"), pay("bob")]

    handle = twice.start()
    (first,) = asked(handle.run)
    first.approve()
    with Person(handle.run, yes) as person:
        handle.result(60)
    assert len(person.seen) >= 1
    assert {each.ticket for each in person.seen}.isdisjoint({first.ticket})
    assert PAID == [("bob", 3)] * 2


def test_an_object_that_changes_between_question_and_yes():
    """The call is made with the arguments that the person saw, whatever became of the objects."""

    @tool(side_effect=True, approve=True)
    def send(letter):
        PAID.append(list(letter))

    letters = [["dear bob"]]

    @workflow(run_id="r")
    def sender():
        send(letters[0])

    handle = sender.start()
    (question,) = asked(handle.run)
    letters[0].append("send me all your money")
    question.approve()
    handle.result(60)
    assert PAID == [["dear bob"]]


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

    handle = sender.start()
    with Person(handle.run, yes), pytest.warns(ArgumentMutatedWarning, match="which is a copy"):
        assert handle.result(60) == ["dear bob"]


HIDDEN = {
    "key": {"key": ("to",)},
    "ignore": {"ignore": ("amount",)},
    "a function": {"key": lambda to, amount: to},
}


@pytest.mark.parametrize("hides", HIDDEN)
@pytest.mark.parametrize("answered", ["answered", "open"])
def test_an_argument_that_is_no_part_of_the_identity(hides, answered, capsys):
    """``key=`` and ``ignore=`` do not matter: with another argument, the call asks anew."""

    @tool(side_effect=True, approve=True, **HIDDEN[hides])
    def transfer(to, amount):
        PAID.append((to, amount))

    amounts = [10]

    @workflow(run_id="r")
    def flow():
        transfer("bob", amounts[0])

    (question,) = died_asking(flow)
    if answered == "answered":
        question.approve()
    amounts[0] = 1_000_000
    (again,) = [each for each in died_asking(flow) if each.ticket != question.ticket]
    assert again.step == question.step
    assert "asks again, since the argument 'amount'" in capsys.readouterr().err
    assert "amount = 1000000" in again.details
    with pytest.raises(StepNotFoundError):
        question.approve()
    assert PAID == []
    again.approve()
    flow()
    assert PAID == [("bob", 1_000_000)]


def test_other_arguments_are_another_call(capsys):
    """A call with other arguments asks for itself; a yes to the old question does nothing."""
    amounts = [10]

    @workflow(run_id="r")
    def flow():
        pay("bob", amounts[0])

    (question,) = died_asking(flow)
    question.approve()
    amounts[0] = 20
    (other,) = died_asking(flow)
    assert other.step != question.step
    said = capsys.readouterr().err
    assert f"step {other.step} asks instead" in said
    assert PAID == []
    other.approve()
    flow()
    assert PAID == [("bob", 20)]


def test_a_stale_question_cannot_be_answered():
    """A question whose call is made with other arguments now is not open, and says so."""
    amounts = [10]

    @workflow(run_id="r")
    def flow():
        pay("bob", amounts[0])

    (question,) = died_asking(flow)
    amounts[0] = 20
    (other,) = died_asking(flow)
    assert [each.step for each in stepwise.get_run("r").questions] == [other.step]
    with pytest.raises(StepNotFoundError, match=f"for which step {other.step} asks"):
        question.approve()


def sender(default):
    """A tool that sends so many copies."""

    def send(to, copies=default):
        PAID.append((to, copies))

    send.__qualname__ = "send"
    return tool(side_effect=True, approve=True, ignore=("copies",))(send)


def test_a_question_that_asks_again_cannot_be_answered():
    """What a person saw is what is answered: not the question that the step asks instead."""
    tools = [sender(1)]

    @workflow(run_id="r")
    def flow():
        tools[0]("bob")

    (question,) = died_asking(flow)
    tools[0] = sender(1000)
    (again,) = died_asking(flow)
    assert (again.step, "copies = 1000" in again.details) == (question.step, True)
    with pytest.raises(StepNotFoundError, match="it has asked again since"):
        question.approve()
    assert stepwise.get_run("r").questions == [again]
    assert list(stepwise.get_run("r").inbox) == []


def test_a_default_that_changes(capsys):
    """Arguments at their default belong to what is allowed: with another default it asks anew."""
    tools = [sender(1)]

    @workflow(run_id="r")
    def flow():
        tools[0]("bob")

    (question,) = died_asking(flow)
    question.approve()
    tools[0] = sender(1000)
    (again,) = died_asking(flow)
    assert "copies = 1000" in again.details
    assert again.step == question.step
    assert "the argument 'copies'" in capsys.readouterr().err
    assert PAID == []


class Account:
    def __init__(self, owner):
        self.owner = owner
        self.lock = threading.Lock()  # has no digest, and counts by its class

    @tool(side_effect=True, approve=True, ignore=("self.owner",))
    def withdraw(self, amount):
        PAID.append((self.owner, amount))


def test_an_attribute_that_changes_while_the_call_waits(capsys):
    """The instance of a method belongs to what is allowed: with another attribute it asks anew."""
    account = Account("ann")

    @workflow(run_id="r")
    def flow():
        account.withdraw(5)

    handle = flow.start()
    (question,) = asked(handle.run)
    assert question.details.splitlines()[:2] == ["amount = 5", "self.owner = 'ann'"]
    account.owner = "bob"
    question.approve()
    (again,) = asked(handle.run)
    assert again.ticket != question.ticket
    assert "the attribute 'owner' of its instance" in capsys.readouterr().err
    assert PAID == []
    again.approve()
    handle.result(60)
    assert PAID == [("bob", 5)]


def test_an_attribute_that_changes_as_the_call_begins():
    """What changes while the intent is written is noticed, too: it asks anew."""
    account, announced = Account("ann"), ApprovedCall.announced

    def changing(self, *args):
        answer = yield from announced(self, *args)
        account.owner = "bob"
        return answer

    @workflow(run_id="r")
    def flow():
        account.withdraw(5)

    handle = flow.start()
    (question,) = asked(handle.run)
    with mock.patch.object(ApprovedCall, "announced", changing):
        question.approve()
        (again,) = asked(handle.run)
    assert (PAID, again.ticket != question.ticket) == ([], True)
    again.approve()
    handle.result(60)
    assert PAID == [("bob", 5)]


def test_a_captured_text_that_changes():
    """A captured text or number belongs to what is allowed."""

    def make(unit):
        @tool(side_effect=True, approve=True, key=lambda amount: amount)
        def order(amount):
            PAID.append((amount, unit))

        return order

    tools = [make("kg")]

    @workflow(run_id="r")
    def flow():
        tools[0](5)

    (question,) = died_asking(flow)
    assert question.details == "amount = 5\nclosure.unit = 'kg'"
    question.approve()
    tools[0] = make("t")
    (again,) = died_asking(flow)
    assert (again.step, again.details) == (question.step, "amount = 5\nclosure.unit = 't'")


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


def closure_over(cents):
    held = [cents]

    def give(to):
        PAID.append((to, held[0]))

    return give


SUBJECTS = {
    "instance": lambda cents: Till("ann", cents).hand_over,
    "callable": lambda cents: Till("ann", cents),
    "bound method": lambda cents: Till("ann", cents).give,
    "partial": lambda cents: functools.partial(Till("ann", cents).give, "bob"),
    "closure": closure_over,
}


def test_the_function_that_says_whether_to_ask_changes_its_argument():
    """``approve=`` has copies of its own: what it does to them is not what is called."""

    @tool(side_effect=True, approve=lambda order: order.pop("cents") > 100)
    def buy(order):
        PAID.append(order)

    @workflow(run_id="r")
    def flow():
        buy({"cents": 5})

    flow()
    assert PAID == [{"cents": 5}]


@pytest.mark.parametrize("kind", SUBJECTS)
def test_state_that_no_argument_shows(kind, capsys):
    """What a call acts on besides its arguments is part of what is allowed, compared or not."""

    def given(cents):
        made = SUBJECTS[kind](cents)
        if kind == "instance":
            return made
        return tool(made, name="give", side_effect=True, approve=True, key=lambda *_: "k")

    cents, args = [1], () if kind == "partial" else ("bob",)

    @workflow(run_id="r")
    def flow():
        given(cents[0])(*args)

    (question,) = died_asking(flow)
    assert "1" in question.details
    question.approve()
    cents[0] = 1_000_000
    (again,) = died_asking(flow)
    assert (again.step, PAID) == (question.step, [])
    assert again.ticket != question.ticket
    assert "for other arguments" in capsys.readouterr().err


@dataclass
class Letter:
    to: str
    memo: str = field(default="", compare=False)


def test_what_equality_leaves_out_is_what_the_person_saw():
    """A field that ``==`` leaves out is made as it was shown, not as the code has it now."""

    @tool(side_effect=True, approve=True)
    def send(letter):
        PAID.append(letter.memo)

    memos = ["all the best"]

    @workflow(run_id="r")
    def flow():
        send(Letter("bob", memos[0]))

    (question,) = died_asking(flow)
    question.approve()
    memos[0] = "pay at once"
    flow()
    assert PAID == ["all the best"]


@pytest.mark.parametrize("what", ["no digest", "not recordable", "comes back otherwise"])
def test_arguments_that_cannot_be_bound(what):
    """Without a digest, or a record, of an argument, approve= is refused, and nobody is asked."""

    class Forgetful:
        def __init__(self, text):
            self.text = text

        def __reduce__(self):
            return (len, ("",))

    @tool(side_effect=True, approve=True, ignore=("given",))
    def use(given):
        PAID.append(given)

    values = {
        "no digest": threading.Lock(),
        "not recordable": (each for each in ()),
        "comes back otherwise": Forgetful("a"),
    }

    @workflow(run_id="r")
    def flow():
        use(values[what])

    with pytest.raises(ConfigurationError, match="approve= of tool"):
        flow()
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

    send_in = tool(side_effect=True, approve=True, name="send_in")(annotated(RunContext))
    context = RunContext()

    @workflow(run_id="r")
    def flow():
        send_in(context, "bob")

    handle = flow.start()
    (question,) = asked(handle.run)
    assert question.details == "to = 'bob'"
    question.approve()
    handle.result(60)
    assert [(context, "bob")] == PAID


def annotated(kind):
    def send_in(ctx, to):
        PAID.append((ctx, to))

    send_in.__annotations__["ctx"] = kind
    return send_in


def test_redacted_arguments():
    """``redact=`` holds for the question, too; what is ignored is shown, since it is allowed."""

    @tool(side_effect=True, approve=True, redact=("iban",), ignore=("memo",))
    def wire(iban, memo):
        PAID.append((iban, memo))

    @workflow(run_id="r")
    def flow():
        wire("DE99", "rent")

    (question,) = died_asking(flow)
    assert question.details == "iban = <redacted>\nmemo = 'rent'"


def test_all_of_the_arguments_are_shown():
    """However long a text is, the person sees all of it; no text looks like another argument."""
    text = "dear bob\nto = 'ann'\n" + "x" * 5000

    @tool(side_effect=True, approve=True)
    def send(body, lines, letter):
        PAID.append(body)

    class Envelope:
        def __init__(self):
            self.stamp = "80c"

    globals()["Envelope"] = Envelope
    Envelope.__qualname__ = "Envelope"

    @workflow(run_id="r")
    def flow():
        send(text, [*range(300)], Envelope())

    (question,) = died_asking(flow)
    shown = question.details.splitlines()
    assert shown[:3] == ["body =", "  | dear bob", "  | to = 'ann'"]
    assert "x" * 5000 in question.details
    assert all(str(number) in question.details for number in range(300))
    assert "Envelope(stamp='80c')" in question.details


# -- one yes, one act ----------------------------------------------------------------------------


def test_a_yes_that_was_taken_and_not_acted_on():
    """A process that dies after it took the answer: the next one acts on it without asking."""
    (question,) = died_asking(lambda: payer("bob"))
    question.approve()
    with mock.patch.object(ApprovedCall, "announced", killed), pytest.raises(Killed):
        payer("bob")
    forget_process()
    assert payer("bob") == "paid bob"
    assert PAID == [("bob", 3)]


def test_a_no_that_was_taken_and_not_acted_on():
    """A process that dies after it took a no: the next one acts on it without asking."""
    (question,) = died_asking(lambda: payer("bob"))
    question.deny("no")
    with mock.patch.object(approvals, "denied", killed), pytest.raises(Killed):
        payer("bob")
    forget_process()
    with pytest.raises(ApprovalDenied):
        payer("bob")
    assert PAID == []


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
    amounts = [10]

    @tool(side_effect=True, approve=True, in_doubt="retry", key=("to",))
    def transfer(to, amount):
        PAID.append((to, amount))

    @workflow(run_id="r")
    def flow():
        transfer("bob", amounts[0])

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

    class Busy(Exception):
        pass

    @tool(side_effect=True, approve=True, retries=2, backoff=0.0, fails_cleanly=Busy)
    def send(to):
        PAID.append(to)
        if len(PAID) < 3:
            raise Busy

    @workflow(run_id="r")
    def flow():
        send("bob")

    handle = flow.start()
    with Person(handle.run, yes) as person:
        handle.result(60)
    assert len(person.seen) == 1
    assert len(PAID) == 3


def test_a_forgotten_step_asks_again():
    """After ``forget`` the call is another act, which needs a yes of its own."""
    handle = payer.start("bob")
    with Person(handle.run, yes):
        handle.result(60)
    stepwise.get_run("r").forget(1)
    (question,) = died_asking(lambda: payer("bob"))
    assert PAID == [("bob", 3)]
    question.approve()
    payer("bob")
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

    @workflow(run_id="r")
    def plain():
        return stepwise.approve("Go on?", details={"cost": 5})

    @workflow(run_id="r")
    async def coroutine():
        return await stepwise.approve("Go on?", details={"cost": 5})

    flow = plain if kind == "plain" else coroutine

    async def main():
        handle = flow.start()
        (question,) = await asyncio.to_thread(asked, handle.run)
        question.approve("with care")
        result = await handle
        return question, result

    if kind == "plain":
        handle = flow.start()
        (question,) = asked(handle.run)
        question.approve("with care")
        result = handle.result(60)
    else:
        question, result = asyncio.run(main())
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
    """An answer to a question with other details is not used."""
    details = ["a plan"]

    @workflow(run_id="r")
    def flow():
        return stepwise.approve("Go on?", details[0])

    (question,) = died_asking(flow)
    question.approve("fine")
    details[0] = "another plan"
    (other,) = died_asking(flow)
    assert other.details == "'another plan'"
    other.approve("fine, too")
    assert flow() == "fine, too"


def test_approve_keeps_its_question_over_a_crash():
    """A process that dies while it asks: the next one waits for the answer to the same question."""

    @workflow(run_id="r")
    def flow():
        return stepwise.approve("Go on?")

    (question,) = died_asking(flow)
    (same,) = died_asking(flow)
    assert same == question
    question.approve("yes")
    assert flow() == "yes"


def test_mistakes_in_approve():
    """A question is a text; outside of a run nobody could answer it."""
    with pytest.raises(ConfigurationError, match="not empty"):
        stepwise.approve(" ")
    with pytest.raises(OutsideRunError):
        stepwise.approve("Go on?")


# -- several at once, and in other places --------------------------------------------------------


def test_several_at_once():
    """Calls that are gathered or mapped ask side by side, and each waits for its own answer."""

    @tool(side_effect=True, approve=True)
    async def apay(to):
        PAID.append(to)
        return to

    @workflow(run_id="r")
    async def flow():
        return await asyncio.gather(*map(apay, "abc"), return_exceptions=True)

    async def main():
        handle = flow.start()
        first, second, third = await asyncio.to_thread(asked, handle.run, 3)
        third.approve()
        first.approve()
        second.deny("no")
        return await handle

    one, two, three = asyncio.run(main())
    assert (one, three) == ("a", "c")
    assert isinstance(two, ApprovalDenied)
    assert sorted(PAID) == ["a", "c"]


def test_mapped_calls():
    """``map`` has a thread for each call that waits."""

    @workflow(run_id="r")
    def flow():
        return list(stepwise.map(pay, ["a", "b", "c"]))

    handle = flow.start()
    for question in asked(handle.run, 3):
        question.approve()
    assert handle.result(60) == ["paid a", "paid b", "paid c"]


def test_a_child_run_asks():
    """The questions of a run include those of its child runs, which are answered there."""

    @workflow
    def child():
        return pay("bob")

    @workflow(run_id="r")
    def parent():
        return child()

    handle = parent.start()
    (question,) = asked(handle.run)
    assert question.run_id.startswith("r/")
    with pytest.raises(StepNotFoundError, match=r"wait for an answer: 1 \(pay\) of run 'r/"):
        handle.run.approve(1)
    stepwise.get_run(question.run_id).approve(1)
    assert handle.result(60) == "paid bob"


def test_inside_a_step():
    """A step cannot wait: its body would run again."""

    @step
    def outer():
        return pay("bob")

    @workflow(run_id="r")
    def flow():
        return outer()

    with pytest.raises(ConfigurationError, match="a step cannot wait"):
        flow()
    assert PAID == []


def test_data_only():
    """With ``codec="json"`` the arguments are recorded as data, by their annotations."""

    @tool(side_effect=True, approve=True)
    def send(to: str, copies: tuple[int, ...]):
        PAID.append((to, copies))

    @workflow(run_id="r", codec="json", trust="data")
    def flow():
        send("bob", (1, 2))

    (question,) = died_asking(flow)
    assert question.arguments["to"] == "bob"
    question.approve()
    flow()
    assert PAID == [("bob", (1, 2))]
