"""Budgets: what a run spends is counted once, survives its attempts, and stops it where it must."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import decimal
import functools
import operator
import pickle
import threading
import types

import pytest
from twins import KINDS, call, defined

import stepwise
from stepwise import Budget, BudgetExceeded, RunCancelled, Spent, spend, step, workflow
from stepwise._calls import steps
from stepwise._execution import account

calls: list = []


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


@pytest.fixture
def clock(monkeypatch):
    """The clock by which accounts measure time."""
    stopped = types.SimpleNamespace(now=0.0, monotonic=lambda: stopped.now)
    monkeypatch.setattr(account, "time", stopped)
    return stopped


@step
def paid(n, usd=1.0, tokens=0):
    calls.append(n)
    spend(usd=usd, tokens=tokens)
    return n


@workflow
def agent(count, usd=1.0, tokens=0):
    return [paid(n, usd, tokens) for n in range(count)]


@workflow
def spends(given):
    spend(**given)


@workflow(name="agent", ignore=("a_step",))
def around(a_step):
    a_step()


def amounts(run):
    spent = run.spent
    return spent.usd, spent.tokens, spent.steps


def only_run(label="agent"):
    (run,) = (each for each in stepwise.runs() if each.label == label)
    return run


# -- what may be given -----------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["usd", "tokens", "steps", "seconds"])
def test_a_budget_of_no_amount_is_refused(unit):
    """A limit that is no number, negative, infinite or a bool is refused, by its name."""
    for wrong in (-1, float("nan"), float("inf"), True, "5", [1]):
        with pytest.raises(stepwise.ConfigurationError, match=rf"Budget\({unit}=...\)"):
            Budget(**{unit: wrong})
    if unit in ("tokens", "steps"):
        with pytest.raises(stepwise.ConfigurationError, match="whole number"):
            Budget(**{unit: 1.5})


def test_budgets():
    """Decimals, which price tables have, are amounts; a budget that limits nothing is a mistake."""
    assert Budget(usd=decimal.Decimal("2.5")) == Budget(usd=2.5)
    assert Budget(usd=2).limits == {"usd": 2.0}
    with pytest.raises(stepwise.ConfigurationError, match="limits nothing"):
        Budget()
    for wrong in ({"usd": 5}, 5, "5"):
        with pytest.raises(stepwise.ConfigurationError, match=r"budget=.*stepwise\.Budget\("):
            workflow(budget=wrong)(lambda: None)
        with pytest.raises(stepwise.ConfigurationError, match="budget="):
            agent.options(budget=wrong)


@pytest.mark.parametrize("wrong", [("usd", -1), ("tokens", -1), ("tokens", 1.5), ("usd", True)])
def test_what_cannot_be_spent_is_refused(wrong):
    """A negative amount, and one that is no number, is refused, inside a run and outside."""
    for spending in (lambda given: spend(**given), spends):
        with pytest.raises(stepwise.ConfigurationError, match=rf"spend\({wrong[0]}=...\)"):
            spending(dict([wrong]))


def test_spending_outside_of_a_run_is_nothing():
    """Outside of a run ``spend`` does nothing, so that a step works there as well."""
    assert paid(1) == 1
    assert stepwise.runs() == []


# -- what is counted -------------------------------------------------------------------------------


def test_a_step_spends():
    """What a step's body spends is recorded with the step, and adds up in the run."""
    run = agent.execute(3, 0.5, 10)
    assert amounts(run) == (1.5, 30, 3)
    assert not run.spent.at_least
    assert run.to_dict()["spent"]["tokens"] == 30


@step(retries=2, backoff=0)
def flaky():
    spend(usd=1, tokens=5)
    if stepwise.current_step().attempt < 3:
        raise ValueError


@step
def outer():
    spend(usd=1)
    paid(1)
    paid(2)
    spend(usd=1)


@step
def threads():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spend(usd=0.5), range(40)))


@step
async def tasks():
    async def one():
        await asyncio.sleep(0)
        await asyncio.to_thread(spend, usd=0.5)

    await asyncio.gather(*[one() for _ in range(20)])


COUNTED = {
    "each attempt of a step that is retried": (flaky, (3, 15, 1)),
    "inside another step, for the inner one alone": (outer, (4, 0, 3)),
    "threads of a step": (threads, (20, 0, 1)),
    "tasks of a step": (tasks, (10, 0, 1)),
}


@pytest.mark.parametrize("what", COUNTED)
def test_what_is_counted(what):
    """What the body of a step spends, however it is called and wherever, counts once for it."""
    spending, expected = COUNTED[what]

    @workflow(name="agent")
    async def flow():
        await spending() if spending is tasks else spending()

    assert amounts(asyncio.run(flow.execute())) == expected


def test_a_failed_step_counts_each_time():
    """A step that failed with its run, and runs again, was paid twice."""

    @workflow(name="agent")
    def failing():
        paid(1)
        breaks()

    @step
    def breaks():
        spend(usd=2)
        if len(calls) < 2:
            calls.append("broken")
            raise ValueError

    with pytest.raises(ValueError):
        failing()
    failing()
    assert amounts(only_run()) == (5, 0, 3)


def test_spending_of_the_workflow_itself():
    """In the workflow's own code ``spend`` is a recorded call, no step, and answered on replay."""

    @workflow(name="agent")
    def spending():
        for _ in range(3):
            spend(usd=1, tokens=2)
        paid(1)
        if len(calls) == 1:
            calls.append("stopped")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spending()
    spending()
    assert amounts(only_run()) == (4, 6, 1)


def in_worker(n):
    spend(usd=n)
    if n == 3:
        raise ValueError(n)
    return n


worker_step = step(in_worker)


@pytest.mark.parametrize("kind", ["ThreadPoolExecutor", "ProcessPoolExecutor"])
def test_bodies_in_executors_spend(kind):
    """Bodies that ``map`` executes elsewhere spend, in another process too, failed ones as well."""

    @workflow(name="agent")
    def mapping():
        with getattr(concurrent.futures, kind)(2) as executor, pytest.raises(ValueError, match="3"):
            stepwise.map(worker_step, [1, 2, 3], executor=executor)

    assert amounts(mapping.execute()) == (6, 0, 3)


def test_a_thread_that_outlives_its_step():
    """What a thread spends after its step has ended is recorded with what comes next."""
    ended, spent = threading.Event(), threading.Event()

    @step
    def leaves():
        def later():
            ended.wait(30)
            spend(usd=7)
            spent.set()

        threading.Thread(target=later, daemon=True).start()

    @workflow(name="agent")
    def outlived():
        leaves()
        ended.set()
        assert spent.wait(30)
        paid(1)

    assert amounts(outlived.execute()) == (8, 0, 2)


# -- attempts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"checkpoint_every": 3}, {"retention": "latest_only"}])
def test_answered_steps_count_once(options):
    """Interrupted after each step and called again, a run has spent what an undisturbed one has."""

    @workflow(name="agent", **options)
    def stopping(count):
        for n in range(count):
            paid(n, 1, 3)
            if len(calls) == n + 1 and calls[-1] == n and n not in stopped:
                stopped.add(n)
                raise KeyboardInterrupt
        return count

    stopped: set = set()
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            stopping(5)
    run = stopping.execute(5)
    assert run.result == 5
    assert amounts(run) == (5, 15, 5)
    assert dict(run.spent.saved, seconds=0) == {"usd": 5, "tokens": 15, "seconds": 0}


def test_spending_survives_pruning():
    """What pruned records say was spent is in the checkpoints, live and for who looks."""

    @workflow(name="agent", prune_journal=True, retention="latest_only", budget=Budget(usd=450))
    def long(count):
        for n in range(count):
            paid(n % 7)
        return count

    with pytest.raises(BudgetExceeded) as caught:
        long(600)
    assert (caught.value.spent.usd, caught.value.spent.steps) == (450, 450)
    run = only_run()
    assert run._facts().pruned > 0
    assert amounts(run) == (450, 0, 450)
    run = long.options(budget=Budget(usd=5000)).execute(600)
    assert amounts(run) == (600, 0, 600)


def test_a_replay_knows_what_was_spent():
    """A generator, which is replayed from the top, has spent what its records say."""

    @workflow(name="agent", budget=Budget(steps=3))
    def generating():
        for n in range(4):
            yield paid(n)

    with pytest.raises(BudgetExceeded):
        list(generating())
    assert list(generating.options(budget=Budget(steps=4))()) == calls == [0, 1, 2, 3]
    assert amounts(only_run()) == (4, 0, 4)


def test_forgotten_steps_stay_spent():
    """A step that was forgotten, and runs again, was paid twice."""
    run = agent.execute(3)
    run.forget(2)
    run = agent.options(run_id=run.id).execute(3)
    assert amounts(run) == (4, 0, 4)


def test_a_fork_begins_with_nothing_spent():
    """A fork has spent what it executes itself; the shared steps were paid by its source."""
    run = agent.options(retention="all").execute(4)
    fork = run.fork(at=2)
    assert amounts(fork) == (0, 0, 0)
    done = agent.options(run_id=fork.id, budget=Budget(usd=3)).execute(4)
    assert amounts(done) == (2, 0, 2)
    assert not done.spent.at_least
    assert amounts(run) == (4, 0, 4)


# -- the limit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "begun", "said"),
    [
        (Budget(usd=3), 3, r"has spent \$3\.00 of the \$3\.00 that"),
        (Budget(usd=2.5), 3, r"has spent \$3\.00 of the \$2\.50 that"),
        (Budget(tokens=20), 2, "20 tokens"),
        (Budget(steps=4), 4, "4 steps"),
        (Budget(steps=0), 0, "0 steps"),
        (Budget(usd=0), 1, r"\$1\.00 of"),
        (Budget(usd=100, steps=2), 2, "2 steps"),
    ],
    ids=str,
)
def test_no_step_begins_beyond_the_budget(budget, begun, said):
    """Before the next step begins the run stops, and says what was spent of what."""
    with pytest.raises(BudgetExceeded, match=said) as caught:
        agent.options(budget=budget)(6, 1, 10)
    assert "options(budget=" in str(caught.value)
    assert calls == [*range(begun)]
    assert caught.value.budget == budget
    assert caught.value.spent.steps == begun
    assert caught.value.run_id == only_run().id
    assert pickle.loads(pickle.dumps(caught.value)).spent == caught.value.spent


def test_a_larger_budget_continues():
    """With a larger budget the same call resumes the same run; done steps do not run again.

    The listing says that the budget stopped it, and nothing brings it back by itself.
    """
    for limit in (2, 4, 4):  # the same budget: no step, and no money
        with pytest.raises(BudgetExceeded):
            agent.options(budget=Budget(usd=limit))(5)
    run = only_run()
    assert run.status == "interrupted"
    assert run.to_dict()["error"] == "its budget: $4.00 of $4.00 spent"
    assert not run.spent.at_least
    assert stepwise.recover() == []
    assert agent.options(budget=Budget(usd=9))(5) == calls == [0, 1, 2, 3, 4]
    assert amounts(run) == (5, 0, 5)


def test_what_needs_no_budget():
    """A run whose last step went beyond its budget completes, and so does one that is answered.

    Eight times $0.1 uses up $0.8, although the sum of the floats is below.
    """
    assert agent.options(budget=Budget(usd=1))(1, 100.0) == [0]
    assert only_run().status == "completed"
    stops = [KeyboardInterrupt]

    @workflow(name="stops")
    def stopping():
        agent(2)
        if stops:
            raise stops.pop()

    with pytest.raises(KeyboardInterrupt):
        stopping()
    stopping.options(budget=Budget(steps=1))()
    assert only_run("stops").status == "completed"
    assert functools.reduce(operator.add, [0.1] * 8) < 0.8  # sum() is exact since Python 3.12
    calls.clear()
    with pytest.raises(BudgetExceeded):
        agent.options(budget=Budget(usd=0.8))(9, 0.1)
    assert len(calls) == 8


def test_the_stop_passes_handlers():
    """``except Exception`` does not swallow the stop, and a later step raises it again."""

    @workflow(name="agent", budget=Budget(steps=1))
    def handling():
        try:
            paid(1)
            paid(2)
        except Exception:
            calls.append("swallowed")
        finally:
            with pytest.raises(BudgetExceeded):
                paid(3)

    with pytest.raises(BudgetExceeded):
        handling()
    assert calls == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_run_cleans_up_beyond_its_budget(kind, tmp_path):
    """A run whose budget is used up can be cancelled: its clean-up is counted, not refused.

    A workflow that goes on after it was cancelled goes on within its budget.
    """

    @step
    async def apaid(n):
        paid.__wrapped__(n)

    module = defined(
        tmp_path,
        """
        @workflow(name="tidies")
        async def tidy():
            await paid("nested")

        @workflow(name="agent", budget=Budget(steps=2))
        async def agent():
            try:
                for n in range(6):
                    await paid(n)
            finally:
                await paid("tidy")
                await tidy()

        @workflow(name="stubborn", budget=Budget(steps=2))
        async def stubborn():
            for n in range(6):
                try:
                    await paid(n)
                except Cancelled:
                    continue
        """,
        kind,
        paid=paid if kind == "plain" else apaid,
        workflow=workflow,
        Budget=Budget,
        Cancelled=(RunCancelled, asyncio.CancelledError),
    )
    with pytest.raises(BudgetExceeded):
        call(module.agent)
    only_run().cancel()
    with pytest.raises(RunCancelled):
        call(module.agent)
    assert only_run().status == "cancelled"
    assert calls == [0, 1, "tidy", "nested"]
    assert only_run().spent.steps == len(calls)
    calls.clear()
    with pytest.raises(BudgetExceeded):
        call(module.stubborn)
    only_run("stubborn").cancel()
    with pytest.raises(BudgetExceeded):
        call(module.stubborn)
    assert calls == [0, 1]


def test_a_step_stopped_inside_keeps_what_it_spent():
    """What a step had spent when an inner step was refused is on record, and spent again later."""

    @step
    def outer():
        spend(usd=2)
        paid(1)
        paid(2)

    with pytest.raises(BudgetExceeded):
        around.options(budget=Budget(usd=3))(outer)
    assert amounts(only_run()) == (3, 0, 1)
    around.options(budget=Budget(usd=50))(outer)
    assert amounts(only_run()) == (6, 0, 3)
    assert calls == [1, 2]


@pytest.mark.parametrize("unit", ["usd", "steps"])
def test_what_is_in_flight_is_recorded(unit):
    """In a ``gather`` the overshoot is what was in flight, which is recorded; of steps, none."""

    @step
    async def slow(n):
        await asyncio.sleep(0.02)
        calls.append(n)
        spend(usd=1)
        return n

    @workflow(name="agent")
    async def gathering():
        limit = asyncio.Semaphore(3)

        async def one(n):
            async with limit:
                return await slow(n)

        return await asyncio.gather(*[one(n) for n in range(10)])

    limited = gathering.options(budget=Budget(**{unit: 4}))
    with pytest.raises(BudgetExceeded):
        asyncio.run(limited())
    run = only_run()
    begun = len(calls)
    assert begun == 4 if unit == "steps" else 4 <= begun <= 6
    assert amounts(run) == (begun, 0, begun)
    assert asyncio.run(gathering.options(budget=Budget(usd=20))()) == [*range(10)]
    assert sorted(calls) == [*range(10)]
    assert amounts(run) == (10, 0, 10)


def test_map_respects_the_steps():
    """Of the items that ``map`` is given, no more begin than the budget has steps."""

    @workflow(name="agent", budget=Budget(steps=4))
    def mapping():
        return stepwise.map(paid, range(9), max_workers=3)

    with pytest.raises(BudgetExceeded):
        mapping()
    assert len(calls) == 4
    assert mapping.options(budget=Budget(steps=9))() == [*range(9)]
    assert sorted(calls) == [*range(9)]


# -- time ------------------------------------------------------------------------------------------


def test_seconds_of_execution_are_limited(clock):
    """Time in which the run is executed counts, over all attempts; time between them does not."""

    @step
    def slow(n):
        calls.append(n)
        clock.now += 10

    @workflow(name="agent", budget=Budget(seconds=25))
    def taking():
        for n in range(6):
            slow(n)

    for _ in range(2):
        with pytest.raises(BudgetExceeded):
            taking()
        clock.now += 1000
        assert calls == [0, 1, 2]
        assert only_run().spent.seconds == 30
    taking.options(budget=Budget(seconds=600))()
    assert calls == [*range(6)]
    assert only_run().spent.seconds == 60


def test_a_pause_counts_no_seconds(clock):
    """While something waits and no step is executed, the clock of the account stands still."""
    from stepwise._execution.active_run import current_scope

    @step
    def slow():
        clock.now += 10

    @workflow(name="agent")
    def waiting(works):
        with current_scope().run.account.waiting():
            if works:
                slow()
            clock.now += 100

    assert waiting.execute(False).spent.seconds == 0
    assert waiting.execute(True).spent.seconds == 10


def test_a_paused_generator_spends_no_time(clock):
    """Between two items of a generator the caller's code runs, which is no time of the run."""

    @workflow(name="agent")
    def generating():
        yield paid(1)
        yield paid(2)

    for _ in generating():
        clock.now += 100
    assert only_run().spent.seconds == 0


# -- child runs ------------------------------------------------------------------------------------


@workflow
def child(count):
    for n in range(count):
        paid(n)
    return count


@workflow
def parent(counts):
    return [child(count) for count in counts]


def test_children_count_for_their_parent():
    """What a child run spends counts for its caller, once; a recorded run costs nothing."""
    run = parent.execute([1, 2])
    assert amounts(run) == (3, 0, 3)
    assert amounts(parent.execute([1, 2])) == (3, 0, 3)
    child.options(run_id="shared")(2)

    @workflow(name="agent")
    def calling():
        return child.options(run_id="shared")(2)

    assert amounts(calling.execute()) == (0, 0, 0)


def test_the_parents_budget_holds_inside_children():
    """A step of a child run does not begin if the budget of the parent is used up."""
    with pytest.raises(BudgetExceeded) as caught:
        parent.options(budget=Budget(usd=4))([3, 3])
    run = only_run("parent")
    assert caught.value.run_id == run.id
    assert amounts(run) == (4, 0, 4)
    assert {each.status for each in stepwise.runs()} == {"interrupted", "completed"}
    assert parent.options(budget=Budget(usd=40))([3, 3]) == [3, 3]
    assert amounts(run) == (6, 0, 6)
    assert calls == [0, 1, 2, 0, 1, 2]


def test_the_childs_own_budget():
    """A child run has its own budget, over all of its attempts."""
    mine = child.options(budget=Budget(steps=2))

    @workflow(name="agent")
    def calling():
        paid(10)
        return mine(3)

    with pytest.raises(BudgetExceeded) as caught:
        calling()
    assert caught.value.budget == Budget(steps=2)
    mine = child.options(budget=Budget(steps=3))
    assert calling() == 3
    assert amounts(only_run()) == (4, 0, 4)


def test_a_failed_child_that_is_tried_again():
    """A child run that failed with its parent, and goes on later, counts what it spent, once."""

    @workflow(name="inner")
    def inner():
        paid(1)
        paid(2)
        if len(calls) < 3:
            calls.append("failed")
            raise ValueError
        paid(3)

    @workflow(name="agent")
    def calling():
        inner()
        paid(4)

    with pytest.raises(ValueError):
        calling()
    assert amounts(only_run()) == (2, 0, 2)
    calling()
    assert amounts(only_run()) == (4, 0, 4)


# -- what people see -------------------------------------------------------------------------------


def test_spent_in_words():
    """Money, tokens, steps and seconds in words; zeros are left out."""
    assert str(Spent(usd=1234.5, tokens=12000, steps=1)) == "$1,234.50, 12,000 tokens, 1 step"
    assert str(Spent(usd=0.00012, at_least=True)) == "at least $0.00012"
    saved = {"usd": 3.0, "tokens": 4500.0}
    assert str(Spent(steps=2, saved=saved)) == "2 steps; resuming saved $3.00, 4,500 tokens"


def test_a_run_in_progress_shows_what_it_spent():
    """While the run is executed, what its steps in flight have spent is shown, too."""

    @step
    def looking():
        spend(usd=2)
        calls.append(amounts(only_run()))

    @workflow(name="agent")
    def looked():
        paid(1)
        looking()

    looked()
    assert calls[-1] == (3, 0, 1)


# -- waits -----------------------------------------------------------------------------------------


def send_later(clock):
    """Let time pass once a run does nothing but wait, and send what it waits for then."""
    from stepwise._execution.active_run import current_scope

    account, run = current_scope().run.account, stepwise.current_run()

    def send():
        while account.clock._since is not None:
            threading.Event().wait(0.01)
        clock.now += 1000
        stepwise.get_run(run.id).send("go", None)

    threading.Thread(target=send).start()


def test_waits_are_no_steps_and_take_no_time(clock):
    """A wait counts no step and no second; it is let through although the budget is used up."""

    @workflow(name="agent", budget=Budget(steps=1, seconds=60))
    def waiting():
        paid(1)
        send_later(clock)
        stepwise.wait_for("go")
        stepwise.sleep(0.01)

    run = waiting.execute()
    assert amounts(run) == (1, 0, 1)
    assert run.spent.seconds == 0


def test_a_wait_beside_a_step_takes_the_time_of_the_step(clock):
    """While a step is executed beside a wait, time is spent."""

    @step
    async def slow():
        await asyncio.sleep(0)
        clock.now += 10

    @workflow(name="agent")
    async def waiting():
        send_later(clock)
        await asyncio.gather(stepwise.wait_for("go"), slow())

    run = asyncio.run(waiting.execute())
    assert run.spent.seconds == 10


def test_threads_that_spend_first_make_one_step_of_it(monkeypatch):
    """Two threads that spend for the first time get one step: two would tell their calls apart."""
    made, meet = [], threading.Barrier(2)

    class Slow(steps.Step):
        def __init__(self, *args, **options):
            made.append(self)
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(0.5)  # for another thread, which the lock keeps out
            super().__init__(*args, **options)

    monkeypatch.setattr(steps, "Step", Slow)
    steps._recorded.cache_clear()

    @workflow
    def spends():
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda usd: spend(usd=usd), [1, 2]))

    spends()
    steps._recorded.cache_clear()
    assert len(made) == 1
