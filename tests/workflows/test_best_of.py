"""``best_of``: the result with the highest score, which a resumed run chooses again."""

import asyncio
import concurrent.futures
import functools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from backwards import Backwards
from flows import flow_of
from sweeping import WHOLE

import stepwise
from stepwise import Budget, NoCandidateError, best_of, step, tool, workflow
from stepwise.testing import crash_everywhere

LIMIT = None if WHOLE else 4  # kills of a sweep
made = []


@pytest.fixture(autouse=True)
def nothing_made():
    made.clear()


@step
def answer(question="", model="a", n=0):
    made.append((question, model, n))
    return f"{question}{model}{n}"


@step
async def aanswer(question="", model="a", n=0):
    made.append((question, model, n))
    await asyncio.sleep(0)
    return f"{question}{model}{n}"


@step
def last(text):
    made.append(("score", text))
    return int(text[-1])


@step
async def alast(text):
    made.append(("score", text))
    await asyncio.sleep(0)
    return int(text[-1])


@step
def shaky(n=0, bad=()):
    made.append(n)
    if n in bad:
        raise ValueError(n)
    return n


def numbers(*each):
    """Variations of ``n``."""
    return [{"n": n} for n in each]


def in_run(function):
    """The result of a function in a run of its own."""
    return flow_of(function, run_id=None)()


# -- choosing --------------------------------------------------------------------------------------


def test_the_highest_score_wins():
    """The result with the highest score is returned; each call and each score is a step."""

    @workflow
    def flow():
        return best_of(numbers(2, 7, 5), answer, "q", score=last)

    run = flow.execute()
    assert run.result == "qa7"
    assert [each.name for each in run.steps] == ["answer"] * 3 + ["last"] * 3


def test_of_equal_scores_the_first_counts():
    """Of results with equal scores the one that was called first is returned."""
    assert in_run(lambda: best_of(numbers(3, 8, 4), answer, score=lambda text: 1)) == "a3"


def test_a_number_of_equal_calls():
    """A number makes so many equal calls, each of which is a record of its own."""
    assert in_run(lambda: best_of(4, answer, "q", score=last)) == "qa0"
    assert made.count(("q", "a", 0)) == 4


def test_outside_of_a_run_it_is_plain_python():
    """Outside of any run nothing is recorded, and the same is returned."""
    assert best_of(numbers(2, 7, 5), answer, score=last) == "a7"
    assert asyncio.run(best_of(numbers(2, 7, 5), aanswer, score=alast)) == "a7"
    assert stepwise.runs() == []


def test_what_plain_functions_return_is_recorded():
    """Plain functions, partials, methods and built-in functions are recorded as steps are."""

    class Team:
        name = "team"

        def work(self, n):
            return [self.name, n, random.random()]

        def value(self, result):
            return random.random() + result[1]

    def flow():
        one = best_of(numbers(1, 2), Team().work, score=Team().value)
        two = best_of(numbers(1, 2), functools.partial(answer, "long"), score=len)
        if not made.count("stopped"):
            made.append("stopped")
            raise KeyError(f"{one}")
        return [one, two]

    flow = flow_of(flow)
    with pytest.raises(KeyError) as stopped:
        flow()
    one, two = flow()
    assert stopped.value.args == (f"{one}",)
    assert two == "longa1"
    assert made.count(("long", "a", 1)) == 1


def test_so_many_at_a_time():
    """No more calls than ``max_workers`` are executed at a time."""
    here, most = [], []

    def work(n):
        here.append(n)
        most.append(len(here))
        threading.Event().wait(0.001)
        here.remove(n)
        return n

    assert in_run(lambda: best_of(numbers(*range(9)), work, score=int.__abs__, max_workers=2)) == 8
    assert max(most) <= 2


def test_bodies_of_an_executor():
    """The bodies of a step with an executor run there."""
    with ThreadPoolExecutor(2, "elsewhere") as pool:

        @step(executor=pool)
        def where(n):
            return [n, threading.current_thread().name]

        chosen = in_run(lambda: best_of(numbers(1, 2), where, score=lambda result: result[0]))
    assert chosen[0] == 2
    assert chosen[1].startswith("elsewhere")


@step
def drawn():
    return random.random()


@workflow
def drawing():
    return drawn()


@pytest.mark.parametrize("function", [drawn, drawing])
def test_the_places_stay_whatever_the_threads_do(function, monkeypatch):
    """A resumed run has each result in its place, also if its threads take another turn."""

    def choose():
        made.append(best_of(4, function, score=lambda result: 1, max_workers=4))
        if len(made) == 1:
            raise KeyError

    flow = flow_of(choose)
    with pytest.raises(KeyError):
        flow()
    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Backwards)
    flow()
    assert made[0] == made[1]


# -- awaited ---------------------------------------------------------------------------------------


def test_coroutine_functions_are_awaited():
    """With a coroutine function, for the calls or for the score, the call is awaited."""

    @workflow
    async def flow():
        found = await asyncio.gather(
            best_of(numbers(2, 7), aanswer, "x", score=alast),
            best_of(numbers(2, 8), aanswer, "y", score=lambda text: alast(f"{text}")),
            best_of(numbers(2, 9), answer, "z", score=alast),
        )
        return [*found, await best_of(numbers(1, 3), achild, score=last)]

    assert asyncio.run(flow()) == ["xa7", "ya8", "za9", "a3"]


def test_a_choice_that_nobody_awaits():
    """A call that is not awaited is an error with its line, as that of a step."""

    @workflow
    async def flow():
        best_of(2, aanswer, score=last)

    with pytest.raises(stepwise.NotRecordableError, match="best_of"):
        asyncio.run(flow())


def test_a_plain_function_that_returns_an_awaitable():
    """A plain function that returns a coroutine is named, in a run and outside of any."""

    def later():
        async def never():
            return 1

        coroutine = never()
        coroutine.close()
        return coroutine

    for call in (best_of, lambda *args, **given: in_run(lambda: best_of(*args, **given))):
        with pytest.raises(NoCandidateError, match="NotRecordableError"):
            call(2, later, score=len)


# -- child runs ------------------------------------------------------------------------------------


@workflow
def child(n=0):
    return answer(n=n)


@workflow
async def achild(n=0):
    return await aanswer(n=n)


@workflow
def asking(n=0):
    stepwise.wait_for(f"go {n}")
    return answer(n=n)


def test_child_runs():
    """Calls of a workflow are child runs."""

    @workflow
    def flow():
        return best_of([*numbers(3, 4), {}, {}], child, score=last)

    run = flow.execute()
    assert run.result == "a4"
    assert len({each.child for each in run.steps if each.name == "child"}) == 4


def test_a_child_run_that_waits():
    """While a child run waits, the run is suspended, and chooses when all have ended."""

    @workflow
    def flow():
        return best_of(numbers(1, 2), asking, score=last)

    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        flow()
    run = stepwise.runs(flow)[0]
    for wait in run.waits:
        stepwise.get_run(wait.run_id).send(wait.name)
    while run.status == "suspended":
        try:
            flow()
        except stepwise.RunSuspended:
            for wait in run.waits:
                stepwise.get_run(wait.run_id).send(wait.name)
    assert run.result == "a2"
    assert len(made) == 4


# -- failures --------------------------------------------------------------------------------------


def test_a_call_that_fails_is_out():
    """A call that raised is not scored, and another result is chosen."""
    flow = flow_of(lambda: best_of([{"n": n, "bad": [9]} for n in (1, 9, 5)], shaky, score=value))
    run = flow.execute()
    assert run.result == 5
    assert [each.status for each in run.steps].count("failed") == 1


def value(number):
    return number


def test_all_calls_fail():
    """If all calls fail, the error has all their exceptions; the next start makes them again."""
    bad = [1, 2]

    def some(n):
        made.append(n)
        if n in bad:
            raise ValueError(n)
        return n

    flow = flow_of(lambda: best_of(numbers(1, 2), some, score=value))
    with pytest.raises(NoCandidateError, match="2 calls of 'some' failed") as failed:
        flow()
    assert [each.args for each in failed.value.exceptions] == [(1,), (2,)]
    assert failed.value.__cause__ is failed.value.exceptions[0]
    bad.clear()
    assert flow() == 2
    assert sorted(made) == [1, 1, 2, 2]


def test_a_score_that_raises():
    """An exception of the score is raised; at the next start that score alone is made again."""

    def judge(number):
        made.append(f"score {number}")
        if number == 2 and made.count("score 2") == 1:
            raise OSError(number)
        return number

    flow = flow_of(lambda: best_of(numbers(1, 2, 3), shaky, score=judge))
    with pytest.raises(OSError, match="2"):
        flow()
    made[:] = ["score 2"]
    assert flow() == 3
    assert made == ["score 2", "score 2"]


@pytest.mark.parametrize("score", [float("nan"), None, "text"])
def test_scores_that_cannot_be_compared(score):
    """A score that is no number, or that differs in kind from others, is named with its result."""
    scores = {"a1": 1, "a2": score}
    with pytest.raises(stepwise.ConfigurationError, match=r"returned .* for result 2, 'a2'"):
        in_run(lambda: best_of(numbers(1, 2), answer, score=lambda text: scores[text]))


def test_a_budget():
    """A used-up budget stops the run, and not a call alone; a larger one goes on from there."""
    flow = flow_of(lambda: best_of(numbers(1, 2, 3), answer, score=last, max_workers=1))
    with pytest.raises(stepwise.BudgetExceeded):
        flow.options(budget=Budget(steps=2))()
    assert flow.options(budget=Budget(steps=9))() == "a3"
    assert len(made) == 6


# -- refused ---------------------------------------------------------------------------------------


@tool(side_effect=True)
def send(n=0):
    made.append(n)


@workflow
def items(n=0):
    yield n


REFUSED = {
    "what would make side effects": (lambda: best_of(2, send, score=len), "side effect of tool"),
    "no calls": (lambda: best_of(0, answer, score=last), "variations=0: give a number of calls"),
    "no names": (lambda: best_of([1], answer, score=last), "by name"),
    "no function": (lambda: best_of(2, int, score=last), "must be a function, not <class 'int'>"),
    "no score": (lambda: best_of(2, answer, score=3), "score= of best_of.. must be a function"),
    "no workers": (lambda: best_of(2, answer, score=last, max_workers=0), "max_workers=0"),
    "a generator": (lambda: best_of(2, items, score=len), "is a generator"),
    "a generator as score": (lambda: best_of(2, answer, score=items), "is a generator"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what):
    """A call that means nothing is refused before anything is called, and the message says why."""
    call, why = REFUSED[what]
    for each in (call, lambda: in_run(call)):
        with pytest.raises(stepwise.ConfigurationError, match=why):
            each()
    assert made == []


def test_a_workflow_outside_of_any_run():
    """Outside of any run calls of a workflow are refused: nothing would record the choice."""
    with pytest.raises(stepwise.ConfigurationError, match="call it in a @workflow"):
        best_of(2, child, score=last)
    with pytest.raises(stepwise.ConfigurationError, match="call it in a @workflow"):
        best_of(2, answer, score=child)


def test_two_lambdas():
    """A second lambda in one run is refused, as lambdas that are steps are: a def has a name."""

    def flow():
        best_of(2, answer, score=lambda text: 1)
        return best_of(2, answer, score=lambda text: 2)

    with pytest.raises(stepwise.ConfigurationError, match="two lambdas are steps of one name"):
        in_run(flow)


# -- killed ----------------------------------------------------------------------------------------


def chosen():
    best = best_of([{"n": n, "bad": [8]} for n in (3, 8, 7)], shaky, score=value)
    other = best_of([*numbers(1, 6), {}, {}], child, score=last)
    return [best, other, answer(f"{best}{other}")]


@workflow
def agent():
    return chosen()


@workflow
async def aagent():
    found = await asyncio.gather(
        best_of(numbers(2, 7), aanswer, "x", score=alast), best_of(3, achild, score=last)
    )
    return [*found, await aanswer("after")]


@pytest.mark.parametrize("call", [agent, lambda: asyncio.run(aagent())])
def test_crash_safe(call):
    """Killed before, in and after each of its steps, a choice comes out as undisturbed."""
    assert crash_everywhere(call, limit=LIMIT).points


class Panel:
    def __init__(self):
        self.said = []

    @step
    def say(self, n):
        self.said.append(n)
        return n

    @step
    async def asay(self, n):
        self.said.append(n)
        return n

    @workflow
    def run(self):
        best = best_of(numbers(1, 3, 2), self.say, score=value, max_workers=1)
        return [best, stepwise.map(self.say, [4, 5], max_workers=1), self.said]

    @workflow
    async def arun(self):
        best = await best_of(numbers(1, 3, 2), self.asay, score=value, max_workers=1)
        return [best, await stepwise.map(self.asay, [4, 5], max_workers=1), self.said]


@pytest.mark.parametrize("call", [lambda: Panel().run(), lambda: asyncio.run(Panel().arun())])
def test_calls_that_follow_each_other_change_one_object(call):
    """With one worker, what the calls change in one object comes back, as that of a loop does."""
    assert crash_everywhere(call, limit=LIMIT).result == [3, [4, 5], [1, 3, 2, 4, 5]]


def test_a_warning_of_a_call_shows_its_line():
    """A warning about a call in a thread of ours shows the line that asked for the calls."""

    @step
    def draft(n, seen):
        seen.append(threading.Lock())
        return n

    @workflow
    def agent():
        seen = []
        return best_of([{"n": 1, "seen": seen}], draft, score=lambda n: n)

    with pytest.warns(stepwise.ArgumentMutatedWarning) as warned:
        assert agent() == 1
    assert {each.filename for each in warned} == {__file__}
