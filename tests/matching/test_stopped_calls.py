"""A call that could be a recorded side effect: the run stops, and each stop has an answer."""

import asyncio
import itertools
import json
import shlex
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from clocks import LIMIT, be_late
from hypothesis import given, settings
from hypothesis import strategies as st
from killed import forget_process
from twins import call as call_of

import stepwise
import stepwise.testing
from stepwise import ArgumentsChangedWarning, StepInDoubtError, cli, step, tool, workflow
from stepwise._calls import call as perform
from stepwise._calls.async_driver import adrive
from stepwise._calls.driver import Wait, drive
from stepwise._execution.flows import Flows
from stepwise._journal.persons import acting_as
from stepwise._journal.records import (
    Call,
    Entry,
    Forgotten,
    Intent,
    Outcome,
    Resumed,
    Ruled,
    Stopped,
)
from stepwise._journal.run_facts import stops_in
from stepwise._matching.pool import Pool, Verdict

pytestmark = [
    pytest.mark.filterwarnings("ignore::stepwise.ArgumentsChangedWarning"),
    pytest.mark.filterwarnings("ignore::stepwise.UnusedRecordWarning"),
    pytest.mark.filterwarnings("ignore:no checkpoint:stepwise.RunWarning"),
]


class Killed(KeyboardInterrupt):
    """The process ends here."""


clock = itertools.count(1)  # no two starts have the same time
sent = []
dying = set()  # texts whose sending ends the process: before, after


def die(place):
    if place in dying:
        dying.clear()
        raise Killed


def send_body(to, at):
    die(f"before {to}")
    sent.append((to, stepwise.current_step().idempotency_key))
    die(f"in {to}")
    return f"sent to {to}"


send = tool(name="send", side_effect=True)(send_body)


@step
def think(about):
    die(f"think {about}")
    return about


def both(one="ann", other="bob"):
    return [send(one, next(clock)), send(other, next(clock))]


@workflow
def letters():
    return [*both(), think("end")]  # one statement: nothing but its arguments tells a call


@pytest.fixture(autouse=True)
def nothing_sent():
    sent.clear()
    dying.clear()


def killed(call, *arguments, at):
    """The run of a call that is killed there."""
    dying.add(at)
    with pytest.raises(Killed):
        call_of(call, *arguments)
    forget_process()
    return next(run for run in stepwise.runs() if run.parent is None)


def stopped(call, *arguments):
    """What the run says when it stops."""
    with pytest.raises(StepInDoubtError) as caught:
        call_of(call, *arguments)
    forget_process()
    return str(caught.value)


def tos():
    """To whom was sent, in order."""
    return [to for to, _ in sent]


def command(*arguments):
    result = CliRunner().invoke(cli.main, arguments, catch_exceptions=True)
    if result.exit_code:
        raise result.exception
    return result.stdout


# -- the answers ---------------------------------------------------------------------------------


def test_one_act():
    """``same``: the recorded outcome answers the stopped call, with a warning; nothing is sent."""
    first = next(clock) + 1
    run = killed(letters, at="before bob")
    text = stopped(letters)
    assert f"stepwise resolve {run.id} 1 --same " in text
    run.resolve(1, same=True)
    run.resolve(2, did_not_happen=True)
    with pytest.warns(ArgumentsChangedWarning, match=rf"recorded: \(to='ann', at={first}\)"):
        assert letters() == ["sent to ann", "sent to bob", "end"]
    assert tos() == ["ann", "bob"]


def test_what_was_said_holds_at_every_start():
    """The answer is bound to call site and ordinal, so the next new arguments do not ask again."""
    run = killed(letters, at="before bob")
    stopped(letters)
    run.resolve("1", same=True)
    run.resolve(2, did_not_happen=True)
    killed(letters, at="before bob")
    text = stopped(letters)  # for the second call only
    assert "called    send(to='bob'" in text
    assert f"resolve {run.id} 1" not in text
    run.resolve(run.steps[-1].number, did_not_happen=True)
    assert letters()[:2] == ["sent to ann", "sent to bob"]
    assert tos() == ["ann", "bob"]


def test_two_acts():
    """``another``: the record stays, and the call runs, once, with a key of its own."""
    run = killed(letters, at="think end")
    assert len(sent) == 2
    stopped(letters)
    run.resolve(1, another=True)
    text = stopped(letters)  # at the second call, which could be the second record
    assert "called    send(to='bob'" in text
    run.resolve("2", another=True)
    assert letters() == ["sent to ann", "sent to bob", "end"]
    assert tos() == ["ann", "bob"] * 2
    assert len({key for _, key in sent}) == 4
    assert [each.name for each in run.steps] == [*["send"] * 4, "think"]


def test_a_kill_inside_the_other_act():
    """Killed inside the call that was said to be another act, it is in doubt like any other."""
    run = killed(letters, at="before bob")
    stopped(letters)
    run.resolve(1, another=True)
    killed(letters, at="in ann")
    assert tos() == ["ann", "ann"]
    assert "started and never finished" in stopped(letters)
    doubtful = [each for each in run.steps if each.status == "in_doubt"]
    assert [each.arguments.partition(",")[0] for each in doubtful] == ["to='bob'", "to='ann'"]
    run.resolve(doubtful[-1].number, landed="sent already")
    run.resolve(2, did_not_happen=True)
    text = stopped(letters)  # the second call could still be the first record
    assert "  recorded  1  send(to='ann', at=" in text
    run.resolve(1, another=True)
    assert letters() == ["sent already", "sent to bob", "end"]
    assert tos() == ["ann", "ann", "bob"]


def test_an_act_in_doubt():
    """Said to be an act that is in doubt, a call is in doubt: its tool or somebody decides."""
    run = killed(letters, at="in ann")
    stopped(letters)
    run.resolve(1, same=True)
    assert "started and never finished" in stopped(letters)
    run.resolve(1, landed="it was sent")
    assert letters() == ["it was sent", "sent to bob", "end"]
    assert tos() == ["ann", "bob"]


def test_twice_and_the_other_way_round():
    """The same answer twice is one; another answer before the next start replaces it."""
    run = killed(letters, at="before bob")
    stopped(letters)
    run.resolve(1, same=True)
    records = run.verify().records
    run.resolve(1, same=True)
    assert run.verify().records == records
    run.resolve(1, another=True)
    run.resolve(1, another=True)
    assert run.verify().records == records + 1
    stopped(letters)
    assert tos() == ["ann", "ann"]


def test_an_act_that_was_undone_is_no_other_call_any_more():
    """What was said to be a recorded act, which is undone then, is an act of its own again."""

    @tool(side_effect=True, compensate=lambda call: sent.append(("undone", call.result)))
    def book(at):
        return send_body("ann", at)

    def booked():
        return [book(next(clock)), think("end")]

    @workflow
    def trip():
        return booked()

    run = killed(trip, at="think end")
    stopped(trip)
    run.resolve(1, same=True)
    assert trip() == ["sent to ann", "end"]
    run.compensate()
    forget_process()
    assert trip() == ["sent to ann", "end"]
    assert tos() == ["ann", "undone", "ann"]


@pytest.mark.parametrize(("act", "times"), [("same", 1), ("another", 2)])
def test_a_child_workflow(act, times):
    """A child run counts as a side effect: ``same`` gives its result, ``another`` a new child."""

    @workflow
    def child(at):
        return send("ann", at)

    @workflow
    def parent(act):
        def helper():
            return child(next(clock))

        return [helper(), think(act)]

    run = killed(parent, act, at=f"think {act}")
    stopped(parent, act)
    run.resolve(1, **{act: True})
    assert parent(act) == ["sent to ann", act]
    assert len(sent) == times


def test_a_checkpoint_after_the_answer():
    """What was said of a call counts although a checkpoint was taken before that call."""

    @workflow
    def agent():
        about = think("once")
        return [about, *both(), think("end")]

    run = killed(agent, at="before bob")
    stopped(agent)
    run.resolve(2, same=True)
    run.resolve(3, did_not_happen=True)
    run.forget(1)  # made again, it leaves a checkpoint that lies after the answer
    killed(agent, at="before bob")
    assert max(each.number for each in run.checkpoints) > run.steps[0]._entry.number
    text = stopped(agent)
    assert "called    send(to='bob'" in text
    assert tos() == ["ann"]


def test_a_fork_knows_what_was_said():
    """A fork shares the answers that its part of the journal holds."""

    @workflow
    def agent():
        return [*both(), think("middle"), think("end")]

    run = killed(agent, at="before bob")
    stopped(agent)
    run.resolve(1, same=True)
    run.resolve(2, did_not_happen=True)
    killed(agent, at="think end")
    fork = run.fork(at=4)
    agent_there = agent.options(run_id=fork.id)
    text = stopped(agent_there)
    assert "called    send(to='bob'" in text
    fork.resolve(3, same=True)
    assert agent_there() == ["sent to ann", "sent to bob", "middle", "end"]
    assert tos() == ["ann", "bob"]


# -- what is refused -----------------------------------------------------------------------------


def test_wrong_numbers():
    """A step that no stopped call could be is refused, and the message lists those that are."""
    run = killed(letters, at="before bob")
    with pytest.raises(stepwise.StepNotFoundError, match="has not stopped at a call"):
        run.resolve(1, same=True)
    stopped(letters)
    for wrong in (9, "nobody", "send"):
        with pytest.raises(stepwise.StepNotFoundError, match=r"1 \(send\), 2 \(send\)"):
            run.resolve(wrong, another=True)
    with pytest.raises(stepwise.StepNotFoundError, match=r"stop 99 .* is send\(to='ann'"):
        run.resolve(1, same=True, stop=99)
    for said in ({}, {"same": True, "another": True}, {"same": True, "landed": 1}):
        with pytest.raises(stepwise.ConfigurationError, match="give exactly one answer"):
            run.resolve(1, **said)
    with pytest.raises(stepwise.ConfigurationError, match="stop= chooses a stopped call"):
        run.resolve(2, did_not_happen=True, stop=3)
    assert "send" in stopped(letters)


def test_a_stop_is_over_when_the_run_goes_on():
    """After the run went on, what it once stopped at is neither listed nor resolved."""
    run = killed(letters, at="before bob")
    stopped(letters)
    run.resolve(1, same=True)
    run.resolve(2, did_not_happen=True)
    killed(letters, at="think end")
    assert json.loads(command("show", run.id, "--json"))["stops"] == []
    with pytest.raises(stepwise.StepNotFoundError, match="has not stopped at a call"):
        run.resolve(1, another=True)


# -- several at once -----------------------------------------------------------------------------


@workflow
async def crowd():
    @tool(side_effect=True, name="post")
    async def post(to, at):
        sent.append((to, at))
        return to

    async def one(to):
        return await post(to, next(clock))

    return [*(await asyncio.gather(one("ann"), one("bob"))), think("end")]


def test_several_stopped_calls():
    """Each call that waits is recorded; where two could be one record, ``stop=`` says which."""
    run = killed(crowd, at="think end")
    text = stopped(crowd)
    assert "waiting beside it: 1 call;" in text
    assert " --stop " in text
    stops = json.loads(command("show", run.id, "--json"))["stops"]
    assert [each["arguments"].partition(",")[0] for each in stops] == ["to='ann'", "to='bob'"]
    assert [[could["number"] for could in each["could_be"]] for each in stops] == [[1, 2]] * 2
    with pytest.raises(stepwise.StepNotFoundError, match="several stopped calls"):
        run.resolve(1, same=True)
    first, second = (each["stop"] for each in stops)
    command("resolve", run.id, "1", "--same", "--stop", str(first))
    with pytest.raises(stepwise.ConfigurationError, match="answers one call only"):
        run.resolve(1, same=True, stop=second)
    command("resolve", run.id, "2", "--same", "--stop", str(second))
    assert asyncio.run(crowd()) == ["ann", "bob", "end"]
    assert len(sent) == 2


# -- what is listed ------------------------------------------------------------------------------


def test_listings():
    """``show`` and ``in-doubt`` name the stopped call, the recorded ones, and the commands."""
    run = killed(letters, at="before bob")
    stopped(letters)
    for text in (command("show", run.id), command("in-doubt")):
        assert "stopped at send(to='ann', at=" in text
        assert "step 1  send(to='ann', at=" in text
        assert f"stepwise resolve {run.id} 1 --same " in text
        assert f"stepwise resolve {run.id} 1 --another " in text
        assert f"stepwise resolve {run.id} 2 --same " in text
    rows = json.loads(command("in-doubt", "--json"))
    assert [each["status"] for each in rows] == ["in_doubt", "stopped"]
    assert rows[1]["said"] is None
    for each, meaning in zip(rows[1]["commands"], rows[1]["meanings"], strict=True):
        words = shlex.split(each)
        assert words[:3] == ["stepwise", "resolve", run.id]
        assert len(words) == 5
        assert f"  {each}    ({meaning})" in command("show", run.id).splitlines()
    assert rows[1]["commands"][0] == shlex.join(["stepwise", "resolve", run.id, "1", "--same"])
    command(*shlex.split(rows[1]["commands"][0])[1:])
    assert "resolved: it is step 1" in command("show", run.id)
    assert json.loads(command("in-doubt", "--json"))[1]["said"] == "same"


@pytest.mark.parametrize("way", ["same", "another"])
def test_who_decides_is_named(way):
    """``show`` names who said which act a stopped call is."""
    run = killed(letters, at="before bob")
    stopped(letters)
    with acting_as("ann@example.org"):
        run.resolve(1, **{way: True})
    (stop,) = json.loads(command("show", run.id, "--json"))["stops"]
    assert (stop["said"], stop["by"]) == (way, "ann@example.org")
    assert ", says ann@example.org; run the program again" in command("show", run.id)


def test_nothing_that_happened_is_to_be_forgotten():
    """No message advises to forget a side effect that completed, and the command asks first."""
    run = killed(letters, at="before bob")
    assert "forget" not in stopped(letters)
    result = CliRunner().invoke(cli.main, ["forget", run.id, "1"], input="n\n")
    assert "is a side effect that happened" in result.output
    assert len(run.steps) == 2
    assert "may have happened" in CliRunner().invoke(cli.main, ["forget", run.id, "2"]).output
    assert CliRunner().invoke(cli.main, ["forget", run.id, "1", "--yes"]).exit_code == 0
    assert len(run.steps) == 1


def test_what_was_cancelled_can_be_settled():
    """A side effect that the workflow cancelled, and handled, takes an answer from outside."""

    @tool(side_effect=True)
    async def slow():
        be_late()
        await asyncio.Event().wait()

    @workflow
    async def agent(limit=LIMIT):
        try:
            found = await asyncio.wait_for(slow(), limit)
        except asyncio.TimeoutError:
            found = "too late"
        return [found, think("end")]

    run = killed(agent, at="think end")
    run.resolve("slow", landed="it was done")
    with run._journal() as (_, entries):
        assert Pool(entries).get(1).answers
    run.delete()


# -- which call is meant -------------------------------------------------------------------------


def a_call(number=0, ordinal=1, **facts):
    facts = {"effect": True, "place": "p@0:1", "site": "a.py:1", **facts}
    return Call(number, "send", "m", f"d{number}", ordinal, **facts)


def pool_with(*records):
    return Pool([Entry(number, record, b"") for number, record in enumerate(records, 1)])


def asked(pool, call):
    match = pool.match(call, directly=False, alone=lambda: False)
    return match.verdict, [each.call.number for each in match.recorded]


RECORDED = (Intent(a_call(1)), Outcome(a_call(1)))
SAME = Ruled(a_call(7), (1,), same=True)
ANN, BOB = {"to": "ann"}, {"to": "bob"}
FIRST, SECOND = (Outcome(a_call(n, n, parts={**who, "at": "1"})) for n, who in ((1, ANN), (2, BOB)))
SAME_ANN = Ruled(a_call(7, parts={**ANN, "at": "2"}), (1,), same=True)
MEANT = {  # the records, the call, what becomes of it, and the records that it is about
    # What was said counts for the call of that site and ordinal, whatever its arguments are.
    "the stopped call": ([*RECORDED, SAME], {}, Verdict.CHANGED, 1),
    "of another thread": ([*RECORDED, SAME], {"place": ""}, Verdict.CHANGED, 1),
    "lines above it were added": ([*RECORDED, SAME], {"site": "a.py:7"}, Verdict.CHANGED, 1),
    "of another statement": (
        [*RECORDED, SAME],
        *({"site": "a.py:7", "place": "q@0:1"}, Verdict.BLOCKED, 1),
    ),
    "a later one": ([*RECORDED, SAME], {"ordinal": 2}, Verdict.BLOCKED, 1),
    "of a branch where nothing is recorded": ([*RECORDED, SAME], {"branch": "x"}, Verdict.FRESH),
    "inside another call": ([*RECORDED, SAME], {"scope": "outer"}, Verdict.BLOCKED, 1),
    "what was forgotten is nobody's": ([*RECORDED, SAME, Forgotten((1,))], {}, Verdict.FRESH),
    # Where it differs from what the stopped call and the record agreed in, it is asked anew.
    "another call at the ruled place": (
        [FIRST, SAME_ANN],
        *({"parts": {**BOB, "at": "3"}}, Verdict.BLOCKED, 1),
    ),
    "the call at the ruled place": (
        [FIRST, SAME_ANN],
        *({"parts": {**ANN, "at": "3"}}, Verdict.CHANGED, 1),
    ),
    "a call that nobody spoke of could be each record": (
        [FIRST, SECOND, SAME_ANN],
        *({"parts": {**BOB, "at": "3"}}, Verdict.BLOCKED, 1, 2),
    ),
}


@pytest.mark.parametrize("name", MEANT)
def test_which_call_is_meant(name):
    """What a person said of a stopped call counts for the call that was meant, and for no other."""
    records, facts, verdict, *about = MEANT[name]
    assert asked(pool_with(*records), a_call(8, **facts)) == (verdict, about)


def test_an_exact_record_comes_first():
    """A call whose own record is there is answered by it, whatever was said of its ordinal."""
    pool = pool_with(*RECORDED, Outcome(a_call(2)), SAME)
    assert asked(pool, a_call(2)) == (Verdict.ANSWER, [2])


def test_the_arguments_tell_swapped_calls_apart():
    """Where threads make two ruled calls in another order, the equal parts say which is which."""
    another_bob = Ruled(a_call(8, 2, parts={**BOB, "at": "3"}), (1,), same=False)
    pool = pool_with(FIRST, SAME_ANN, another_bob)
    assert asked(pool, a_call(9, 1, parts={**BOB, "at": "4"})) == (Verdict.FRESH, [])
    assert asked(pool, a_call(9, 2, parts={**ANN, "at": "5"})) == (Verdict.CHANGED, [1])


def test_each_of_several_other_acts_is_its_own_call():
    """What a call made, since it was another act, answers none of which that was said, too."""
    pool = pool_with(
        Outcome(a_call(1, parts=ANN)),
        Ruled(a_call(7, 2, parts=BOB), (1,), same=False),
        Outcome(a_call(2, 2, parts=BOB)),
        Ruled(a_call(8, 1, parts={**ANN, "at": "1"}), (1,), same=False),
    )
    assert asked(pool, a_call(9, 1, parts={**ANN, "at": "2"})) == (Verdict.BLOCKED, [2])
    assert asked(pool, a_call(9, 2, parts=BOB)) == (Verdict.ANSWER, [2])
    pool.take(pool.get(2))
    assert asked(pool, a_call(9, 1, parts={**ANN, "at": "2"})) == (Verdict.FRESH, [])


def test_what_it_was_said_to_be_is_used():
    """If another call has taken the record, the call that was said to be it does not run."""
    for others, left in (((), []), ((Outcome(a_call(2)),), [2])):
        pool = pool_with(*RECORDED, *others, SAME)
        pool.take(pool.get(1))
        assert asked(pool, a_call(8)) == (Verdict.BLOCKED, left)


def test_stops_of_a_journal():
    """A stop is over with the next attempt; a call in flight when it stopped does not end it."""
    at = 100.0
    stop = Stopped(a_call(0, at=at), (1,), (1,), at)
    entries = [Entry(n, r, b"") for n, r in enumerate((*RECORDED, stop), 1)]
    assert [each.number for each in stops_in(entries)] == [3]
    assert stops_in([*entries, Entry(4, Outcome(a_call(5, at=at - 1)), b"")])
    assert not stops_in([*entries, Entry(4, Outcome(a_call(5, at=at + 1)), b"")])
    assert not stops_in([*entries, Entry(4, Resumed(2, "", 1), b"")])


# -- waiting -------------------------------------------------------------------------------------


@pytest.fixture
def notices(monkeypatch):
    """What a waiting call says, and an event that is set when it does."""
    said, event = [], threading.Event()

    def notice(text):
        said.append(text)
        event.set()

    monkeypatch.setattr(perform, "notice", notice)
    return said, event


def test_the_patience_of_a_blocked_call():
    """It is the second that the contract names."""
    assert perform.PATIENCE == 1.0


@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_a_blocked_call_says_what_it_waits_for(notices, how):
    """After a second it names the record; the other flow, at work till then, takes that one."""
    said, told = notices
    again = threading.Event()

    @step
    def work():
        return not again.is_set() or told.wait(300)

    @tool(name="post", side_effect=True)
    async def apost(to):
        sent.append((to, ""))
        return f"sent to {to}"

    post = tool(name="post", side_effect=True)(send_body)

    def one():
        work()
        return post("ann", 1)

    async def aone():
        await asyncio.to_thread(work)
        return await apost("ann")

    @workflow
    def threads():
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(one), *([pool.submit(post, "bob", 2)] if again.is_set() else [])]
            found = [job.result() for job in jobs]
        return [found, think("end")]

    @workflow
    async def tasks():
        found = await asyncio.gather(aone(), *([apost("bob")] if again.is_set() else []))
        return [list(found), think("end")]

    flow = threads if how == "threads" else tasks
    run = killed(flow, at="think end")
    run.forget("work")
    again.set()
    assert call_of(flow) == [["sent to ann", "sent to bob"], "end"]
    (text,) = said
    assert "'bob'" in text
    assert "waits: it could be the recorded step 2" in text
    assert sorted(tos()) == ["ann", "bob"]


@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_a_change_before_the_waiting_began_is_seen(how):
    """What happened between the look into the journal and the waiting is not waited for."""
    flows = Flows()

    def core(seen):
        return (yield Wait(flows.claims, seen, 30.0))

    call = core(flows.claims.changes)
    flows.change()
    assert (drive(call) if how == "threads" else asyncio.run(adrive(call))).value is True


@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_a_blocked_call_raises_after_a_second(monkeypatch, how):
    """Where others only could make a call and none does, it raises when the second is over."""
    again, waits = threading.Event(), []
    wait = threading.Event.wait
    call_later = asyncio.BaseEventLoop.call_later

    monkeypatch.setattr(
        threading.Event,
        "wait",
        lambda event, timeout=None: (
            (waits.append(timeout), wait(event, timeout and 0.01))[1]
            if timeout in (1.0, 30.0)
            and not isinstance(threading.current_thread(), threading.Timer)  # it ends a stopped run
            else wait(event, timeout)
        ),
    )

    def calling_later(loop, seconds, *more, **context):
        if seconds not in (1.0, 30.0):  # another timer: the run looks whether it was cancelled
            return call_later(loop, seconds, *more, **context)
        waits.append(seconds)
        return call_later(loop, 0.01, *more, **context)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", calling_later)

    def in_a_pool():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(send, "bob" if again.is_set() else "ann", 1).result()

    @workflow
    def threads():
        return [in_a_pool(), think("end")]

    @tool(name="post", side_effect=True)
    async def post(to):
        return to

    @workflow
    async def tasks():
        idle = asyncio.create_task(asyncio.Event().wait())  # it could make a call, and never does
        try:
            return [await post("bob" if again.is_set() else "ann"), think("end")]
        finally:
            idle.cancel()

    flow = threads if how == "threads" else tasks
    killed(flow, at="think end")
    again.set()
    assert "1 --same" in stopped(flow)
    assert waits == [1.0]


# -- any program, any kills, and somebody who knows what happened ----------------------------------


class World:
    """What was sent, and what somebody who looks at it answers."""

    def __init__(self, texts, kills):
        self.texts, self.kills = texts, list(kills)
        self.meant = {}  # a time that is an argument -> the place of its letter in the list
        self.begun = {}  # idempotency key -> that place
        self.sent = []
        self.kill = None

    def die(self, where, place):
        if self.kill == (where, place):
            self.kill = None
            raise Killed

    def letters(self):
        found = []
        for place, text in enumerate(self.texts):
            at = next(clock)
            self.meant[at] = place
            found.append(self.post(text, at))
            self.die("after", place)
        return found

    def answer(self, run):
        """Say truly what every stopped call is, and what became of what is in doubt."""
        facts = json.loads(command("show", run.id, "--json"))
        steps = {each["number"]: each for each in facts["steps"]}
        for number, each in steps.items():
            place = self.begun.get(each["idempotency_key"])
            if each["status"] == "in_doubt":
                said = {"landed": place} if place in self.sent else {"did_not_happen": True}
                run.resolve(number, **said)
        for stop in facts["stops"]:
            place = self.meant[int(stop["arguments"].rpartition("at=")[2])]
            could = [each["number"] for each in stop["could_be"]]
            mine = [n for n in could if self.begun[steps[n]["idempotency_key"]] == place]
            if mine and place in self.sent:
                run.resolve(mine[-1], same=True, stop=stop["stop"])
            else:
                run.resolve(could[0], another=True, stop=stop["stop"])


kills = st.lists(st.tuples(st.sampled_from(["before", "in", "after"]), st.integers(0, 3)))


@settings(max_examples=25)
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), kills)
def test_whoever_answers_truly_gets_each_act_once(texts, kills):
    """Whatever is killed, with new arguments at every start: each letter is sent exactly once."""
    world = World(texts, kills)

    @tool(side_effect=True, name="post")
    def post(text, at):
        place = world.meant[at]
        world.begun[stepwise.current_step().idempotency_key] = place
        world.die("before", place)
        world.sent.append(place)
        world.die("in", place)
        return place

    world.post = post

    @workflow
    def agent():
        return [*world.letters()]

    with stepwise.testing.fresh_store():
        for _ in range(100):
            world.kill = world.kill or (world.kills.pop(0) if world.kills else None)
            try:
                found = agent.options(run_id="letters")()
                break
            except Killed:
                pass
            except StepInDoubtError:
                world.answer(stepwise.get_run("letters"))
            forget_process()
        assert found == list(range(len(texts)))
        assert sorted(world.sent) == found


def test_what_it_waits_for_is_taken_at_the_last_moment(monkeypatch):
    """A call whose rival another thread takes just before the run would stop is looked at again."""
    from stepwise._calls import doubt

    right, seen = doubt.stopped_at, []

    def late(active, call, match):
        if not seen:
            seen.append(match)
            active.take(match.recorded[0])
        return right(active, call, match)

    run = killed(letters, at="before bob")
    run.resolve(2, did_not_happen=True)
    monkeypatch.setattr(doubt, "stopped_at", late)
    assert letters() == ["sent to ann", "sent to bob", "end"]
    assert len(seen) == 1
