"""Answers that an approver has signed: nobody else's count, with the store's key or without."""

from __future__ import annotations

import builtins
import os
import stat

import pytest
from answering import asked
from click.testing import CliRunner
from killed import forget_process

import stepwise
from stepwise import ApprovalDenied, ConfigurationError, StepNotFoundError, cli, tool, workflow
from stepwise._calls.approvals import in_full
from stepwise._journal import persons as keys
from stepwise._journal.logs import Inbox
from stepwise._journal.records import Answered, Intent
from stepwise._journal.run_facts import Questions

pytest.importorskip("cryptography", reason="needs the extra approvers")

PAID: list[object] = []
COSTS = [100]


@pytest.fixture
def ann(tmp_path):
    """The file of ann's key, and her public key."""
    path = str(tmp_path / "ann")
    return path, keys.make_key(path, name="ann")


@pytest.fixture
def payer(ann, monkeypatch):
    """A workflow whose tool takes the answers of ann alone."""
    PAID.clear()
    COSTS[:] = [100]
    monkeypatch.delenv("STEPWISE_QUIET")
    stepwise.configure(suspend_after=0)

    @tool(side_effect=True, approve=True, approvers=[ann[1]], ignore=("cents",), in_doubt="retry")
    def pay(to, cents, pin="0000"):
        PAID.append((to, cents))
        return f"paid {to}"

    @workflow
    def payer(to):
        return pay(to, COSTS[0])

    return payer


def ask(payer, run_id="r", to="bob"):
    """Suspend a run at its question."""
    with pytest.raises(stepwise.RunSuspended):
        payer.options(run_id=run_id)(to)
    (question,) = stepwise.get_run(run_id).questions
    return question


def paid(payer):
    """Let the run make its call; what was paid."""
    assert payer.options(run_id="r")("bob") == "paid bob"
    return PAID


def post(question, *, approved=True, note="", signature=""):
    """Put an answer into the inbox, as somebody who has the store's key can."""
    store, seal = question._where
    message = {"step": question.step, "approved": approved, "note": note}
    Inbox(store, seal, question.run_id).post(
        "answer", question.ticket, signature.encode(), **message
    )


def signature(question, path, *, approved=True, note="", **changed):
    """What a key signs for a question, or for another one."""
    run_id = changed.pop("run_id", question.run_id)
    call = question._asked.waiting.call._replace(number=changed.pop("step", question.step))
    waiting = question._asked.waiting._replace(call=call, **changed)
    return keys.sign(path, keys.statement(run_id, waiting, approved=approved, note=note))[1]


def test_a_signed_yes(payer, ann, capsys):
    """An approver's signed yes makes the call, and is recorded under the name of the key."""
    question = ask(payer)
    assert question.approvers == (ann[1],)
    assert f"to be signed by {ann[1]}" in str(question)
    with pytest.raises(ConfigurationError, match=r"has signed: ann .*--key FILE"):
        question.approve()
    question.approve("fine", key=ann[0])
    with pytest.raises(StepNotFoundError, match=r"ann \(ed25519:.*\) answered that at .*with yes"):
        question.deny("no", key=ann[0])
    assert paid(payer) == [("bob", 100)]
    assert capsys.readouterr().err.count("is no answer") == 0


def test_a_signed_no(payer, ann):
    """An approver's signed no denies the call, in the name of the key."""
    ask(payer).deny("too much", key=ann[0])
    with pytest.raises(ApprovalDenied, match=r"^ann .* denied step 1") as caught:
        paid(payer)
    assert (caught.value.note, PAID) == ("too much", [])


def forged(question, ann, other):
    """Answers that nobody has signed for this very question: a name, and what is posted."""
    path = ann[0]
    yield "unsigned", {}
    yield "nonsense", {"signature": f"{ann[1].split()[0]} {'A' * 86}=="}
    yield "no text", {"signature": f"{ann[1].split()[0]} ???"}
    yield "another key", {"signature": signature(question, other)}
    mixed = signature(question, other).partition(" ")[2]
    yield "another's signature under her key", {"signature": f"{ann[1].split()[0]} {mixed}"}
    yield "her no as a yes", {"signature": signature(question, path, approved=False)}
    yield "another note", {"signature": signature(question, path, note="once"), "note": "twice"}
    for name, value in {
        "run_id": "r2",
        "step": 2,
        "ticket": "ask-000000000000",
        "details": question.details.replace("100", "1"),
        "digest": "{}",
        "name": "really?",
    }.items():
        yield f"of another {name}", {"signature": signature(question, path, **{name: value})}


def test_forged_answers(payer, ann, tmp_path, capsys):
    """An answer that is not signed for this very question is refused, and the call waits on."""
    other = str(tmp_path / "other")
    keys.make_key(other)
    question = ask(payer)
    posted = [*forged(question, ann, other)]
    for number, (name, answer) in enumerate(posted, 1):
        post(question, **answer)
        assert stepwise.get_run("r").questions != [], name
        assert ask(payer).ticket == question.ticket, name
        said = capsys.readouterr().err
        assert said.count("is no answer to step 1, pay: ") == 1, (name, said)
        assert stepwise.get_run("r").inbox[-1].status == "refused", name
        assert len(stepwise.get_run("r").inbox) == number
    assert PAID == []
    question.approve(key=ann[0])
    assert paid(payer) == [("bob", 100)]


def test_answers_of_another_run_and_another_question(payer, ann):
    """A signed yes is good for one question: for no equal one of another run, nor for the next."""
    first, second = ask(payer), ask(payer, "r2")
    given = signature(first, ann[0])
    post(second, signature=given)
    ask(payer, "r2")
    COSTS[:] = [900]
    anew = ask(payer)
    post(anew, signature=given)
    assert ask(payer).ticket == anew.ticket
    assert "cents = 900" in anew.details
    assert PAID == []


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("doubtful", [False, True])
def test_an_answer_in_the_journal(payer, ann, doubtful, signed):
    """A record of an answer counts by its signature, also for a call in doubt that is retried."""
    question = ask(payer)
    run = stepwise.get_run("r")
    text = signature(question, ann[0]) if signed else ""
    yes = Answered(1, question.ticket, approved=True, by="ann", signature=text)
    with run._journal() as (journal, _):
        items = [(yes, b"")]
        if doubtful:
            call = question._asked.waiting.call
            items.append((Intent(call, ticket=question.ticket), b""))
        journal.append(*items, head=run._facts()._replace(status="running", waits=()))
    forget_process()
    if signed:
        assert paid(payer) == [("bob", 100)]
        return
    with pytest.raises(stepwise.StepInDoubtError if doubtful else stepwise.RunSuspended):
        payer.options(run_id="r")("bob")
    assert PAID == []


@pytest.mark.parametrize("changed", ["details", "name"])
def test_another_question_than_the_call(payer, ann, changed, capsys):
    """Where the journal shows the approver another call than the one to be made, it asks anew."""
    question = ask(payer)
    run = stepwise.get_run("r")
    shown = {"details": question.details.replace("100", "1"), "name": "make a call?"}[changed]
    with run._journal() as (journal, entries):
        asked_last = Questions(entries).asked[1]
        waiting = asked_last.waiting._replace(**{changed: shown})
        journal.append((waiting, asked_last.payload), head=run._facts())
    (lie,) = run.questions
    assert shown in (lie.details, lie.text)
    lie.approve(key=ann[0])
    forget_process()
    anew = ask(payer)
    assert "asks again, since what the person is shown was different" in capsys.readouterr().err
    assert (anew.details, anew.text) == (question.details, question.text)
    assert PAID == []


def test_other_approvers(payer, ann, tmp_path):
    """Who may answer is what the code says now, not what it said when it asked."""
    question = ask(payer)
    bob = str(tmp_path / "bob")
    line = keys.make_key(bob, name="bob")
    step = payer.definition.function.__closure__
    performer = next(c.cell_contents for c in step if hasattr(c.cell_contents, "__wrapped__"))
    performer.__stepwise_step__.approvers = keys.approvers_of([line])
    post(question, signature=signature(question, ann[0]))
    assert ask(payer).approvers == (line,)
    stepwise.get_run("r").approve("pay", question.ticket, key=bob)
    assert payer.options(run_id="r")("bob") == "paid bob"


def test_in_a_process_that_waits(payer, ann):
    """A run that waits in its process takes the signed answer, and leaves the others."""
    stepwise.configure(suspend_after=60)
    handle = payer.options(run_id="r").start("bob")
    (question,) = asked(handle.run)
    post(question)
    question.approve(key=ann[0])
    assert handle.result(60) == "paid bob"
    assert [each.status for each in handle.run.inbox] == ["refused", "taken"]


def test_what_is_shown_has_one_order():
    """What an approver signs is the same text in each process: the items of a set in one order."""
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other]
    assert in_full([one], str) == in_full([other], str) == "[{0, 8}]"


# -- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("passphrase", ["", "a secret of ann"])
def test_a_key_of_the_command_line(tmp_path, passphrase):
    """``approver-key`` makes a key that its owner alone may read, and never over another one."""
    path = tmp_path / "key"
    command = ["approver-key", str(path), "--name", "ann"]
    typed = f"{passphrase}\n" * 2
    made = CliRunner().invoke(cli.main, command, input=typed, catch_exceptions=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.stdout.startswith("ed25519:")
    assert made.stdout.endswith(" ann\n")
    before = path.read_bytes()
    assert CliRunner().invoke(cli.main, command, input=typed).exit_code == 1
    assert path.read_bytes() == before
    (approver,) = keys.approvers_of([made.stdout])
    public, _ = keys.sign(path, b"x", lambda: passphrase)
    assert public == approver.key
    if passphrase:
        with pytest.raises(ConfigurationError, match="the passphrase is wrong"):
            keys.sign(path, b"x", lambda: "another")
        with pytest.raises(ConfigurationError, match="nobody can be asked"):
            keys.sign(path, b"x")


def test_approve_with_a_key(payer, ann):
    """``stepwise approve --key FILE`` signs the answer."""
    question = ask(payer)

    def approve(file):
        command = ["approve", "r", "1", question.ticket, "--key", file]
        return CliRunner().invoke(cli.main, command, catch_exceptions=False).exit_code

    other = f"{ann[0]}.other"
    keys.make_key(other)
    os.chmod(ann[0], 0o640)
    for file, problem in (
        (other, "is none of the approvers"),
        (f"{ann[0]}.none", "be read"),
        (ann[0], f"chmod 600 {ann[0]}"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            approve(file)
    os.chmod(ann[0], 0o600)
    assert approve(ann[0]) == 0
    assert paid(payer) == [("bob", 100)]


def test_what_is_no_public_key(ann):
    """``approvers=`` takes public keys, of a tool that asks; else it is refused at once."""
    for text in ("ann", "ed25519:", "ed25519:AAAA ann", "ssh-ed25519 AAAA"):
        with pytest.raises(ConfigurationError, match="approvers= of tool 'ask'"):
            tool(side_effect=True, approve=True, approvers=[text])(ask)
    with pytest.raises(ConfigurationError, match="without approve= nobody is asked"):
        tool(side_effect=True, approvers=[ann[1]])(ask)


def test_without_the_extra(payer, ann, monkeypatch):
    """Without the extra a tool with approvers is refused, and a run that asks is shown."""
    ask(payer).approve(key=ann[0])
    found = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigurationError, match=r"stepwise-agents\[approvers\]"):
        tool(side_effect=True, approve=True, approvers=[ann[1]])(ask)
    assert [each.approvers for each in stepwise.get_run("r").questions] == [(ann[1],)]
