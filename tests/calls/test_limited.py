"""``Limit``: calls that wait for what a provider allows, in one process and in several."""

from __future__ import annotations

import asyncio
import itertools
import json
import pathlib
import sys
import threading
import time

import pytest
from harness import python, until
from sweeping import WHOLE

import stepwise
from stepwise import ConfigurationError, Limit, RunSuspended, step, tool, workflow
from stepwise._calls import limited
from stepwise._calls.limited import figures_of
from stepwise._calls.rate_limits import left_of, refusal_of
from stepwise._journal.journal import seal_for
from stepwise._journal.ledger import LIMITS, HolderLease, StoredLedger, is_dead, ledgers
from stepwise._runtime import clock, settings
from stepwise.stores import Batch, open_store

gates = {}
made = []  # by the steps of a test; not in their closures, where it would be watched


@pytest.fixture(autouse=True)
def settled():
    """No thread of a test asks for another one's store."""
    made.clear()
    yield
    limited.settle()


@pytest.fixture(params=["memory", "disk"])
def place(request, tmp_path):
    """A store of each kind, as the default one."""
    store = open_store(f"{request.param}:{tmp_path}/store")
    stepwise.configure(store=store)
    yield store
    limited.settle(store)
    store.close()


def ledger(name="api"):
    """The ledger of a limit in the default store, after this process has reported."""
    store = open_store(settings.store())
    limited.settle(store)
    return dict(ledgers(store, seal_for(store))).get(name)


def taken(name="api"):
    found = ledger(name)
    return sum(requests for requests, _ in found.over.values()) if found is not None else 0


def test_calls_wait_for_their_turn(place):
    """No window of the limit's length has more calls than it allows, and all are made."""
    limit = Limit("api", requests=3, per=0.4)

    @step(limit=limit)
    def ask(number):
        made.append(time.monotonic())
        return number

    @workflow
    def flow():
        return [ask(number) for number in range(8)]

    assert flow() == list(range(8))
    assert all(later - earlier >= 0.4 for earlier, later in zip(made, made[3:], strict=False))


def test_an_answered_call_takes_nothing(place):
    """A replayed call is answered by the journal, and takes no turn."""
    limit = Limit("api", requests=50, per=600)

    @step(limit=limit)
    def ask(number):
        return number

    @workflow(run_id="r")
    def flow():
        found = [ask(number) for number in range(4)]
        if not made:
            raise OSError
        return found

    with pytest.raises(OSError):
        flow()
    assert taken() == 4
    made.append("mended")
    assert flow() == [0, 1, 2, 3]
    assert taken() == 4


def test_each_attempt_takes_a_turn(place):
    """Retries count: each attempt is a request."""

    @step(limit=Limit("api", requests=50, per=600), retries=2, backoff=0)
    def ask():
        made.append(1)
        if len(made) < 3:
            raise OSError
        return len(made)

    @workflow
    def flow():
        return ask()

    assert flow() == 3
    assert taken() == 3


def test_calls_at_a_time(place):
    """``concurrent`` bounds the calls in flight, and a call that ends lets the next one begin."""
    limit = Limit("api", concurrent=2)

    @step(limit=limit)
    async def ask(number):
        made.append(1)
        await asyncio.sleep(0)
        made.append(-1)
        return number

    @workflow
    async def flow():
        return await asyncio.gather(*(ask(number) for number in range(7)))

    assert asyncio.run(flow()) == list(range(7))
    assert max(itertools.accumulate(made)) <= 2


def test_waiting_calls_hold_no_thread(tmp_path):
    """Fifty tasks that wait for a limit share the one thread that asks."""
    stepwise.configure(store=f"disk:{tmp_path}/store", suspend_after=None)
    limit = Limit("api", requests=1, per=600)

    @step(limit=limit)
    async def ask(number):
        return number

    async def crowd():
        calls = [asyncio.ensure_future(ask(number)) for number in range(50)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        made.extend(thread.name for thread in {*threading.enumerate()} - before)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    @workflow
    async def flow():
        await crowd()

    before = {*threading.enumerate()}  # those of other tests may still be ending
    asyncio.run(flow())
    assert made.count("stepwise limits") == 1
    assert len(made) <= 3  # with the writer of the store


@pytest.mark.parametrize("kind", ["step", "side effect"])
def test_a_run_that_waits_long_is_suspended(tmp_path, monkeypatch, kind):
    """It leaves memory until its turn, says what it waits for, and keeps its place in the queue."""
    stepwise.configure(store=f"disk:{tmp_path}/store", suspend_after=0.05)
    passed, now, elapsed = [0.0], clock.now, clock.elapsed
    monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
    monkeypatch.setattr(clock, "elapsed", lambda: elapsed() + passed[0])
    limit = Limit("api", requests=1, per=600)
    decorate = step(limit=limit) if kind == "step" else tool(side_effect=True, limit=limit)

    @decorate
    def ask(number):
        made.append(number)
        return number

    @workflow(run_id="r")
    def flow():
        return [ask(0), ask(1)]

    began = clock.now()
    with pytest.raises(RunSuspended, match="it waits for the limit 'api'") as caught:
        flow()
    (wait,) = caught.value.waits
    assert (wait.kind, wait.name, made) == ("limit", "api", [0])
    assert wait.until is not None
    run = stepwise.get_run("r")
    assert [each.status for each in run.steps] == ["completed", "waiting"]
    assert "the limit 'api'" in str(run.why())
    while True:  # as `stepwise up` does it, at the moment that is said
        passed[0] += max(0.0, wait.until - clock.now())
        try:
            assert flow() == [0, 1]
            break
        except RunSuspended as error:
            (again,) = error.waits
            assert again.since == wait.since >= began
            wait = again
    assert made == [0, 1]


def test_a_side_effect_that_waits_has_not_begun(tmp_path, fork, monkeypatch):
    """Killed while it waits for its turn, a side effect is not in doubt, and happens once."""
    program = f"""
import sys, stepwise
from stepwise import Limit, tool, workflow
stepwise.configure(store="disk:{tmp_path}/store", suspend_after=None)
limit = Limit("api", requests=1, per=float(sys.argv[1]))

@tool(side_effect=True, limit=limit)
def pay(number):
    print("paid", number)

@workflow(run_id="r")
def flow():
    pay(0)
    print("next")
    pay(1)

flow()
"""
    first = fork(program, 600)
    assert [first.hear(), first.hear()] == ["paid 0", "next"]
    monkeypatch.setenv("STEPWISE_STORE", f"disk:{tmp_path}/store")
    until(lambda: "waiting    for the limit 'api'" in python("stepwise", "show", "r").stdout)
    assert "It waits for the limit 'api'" in python("stepwise", "why", "r").stdout
    first.kill()
    second = fork(tmp_path / "script0.py", 0.2)
    assert [second.hear(), second.hear()] == ["next", "paid 1"]
    assert second.finish() == ""


def test_a_dead_process_gives_back_what_it_holds(tmp_path, fork):
    """The calls in flight of a killed process no longer count as calls at a time: at once."""
    program = f"""
import sys, stepwise
from stepwise import Limit
stepwise.configure(store="disk:{tmp_path}/store")
with Limit("api", concurrent=1):
    print("in")
    sys.stdin.read() if sys.argv[1:] else None
"""
    first = fork(program, "stay")
    assert first.hear() == "in"
    second = fork(program)
    until(lambda: waiting_in(tmp_path / "store"))
    first.kill()
    assert second.hear() == "in"
    second.finish()


def waiting_in(folder):
    """Whether a call waits for the limit, by the ledger."""
    store = open_store(f"disk:{folder}")
    return any(found.places for _, found in ledgers(store, seal_for(store)))


def test_a_block_waits(place):
    """``with`` and ``async with`` take a turn, also outside runs; an exception gives it back."""
    limit = Limit("api", requests=100, tokens=10_000, per=600, concurrent=1)
    with pytest.raises(KeyError), limit:
        raise KeyError

    async def within():
        async with limit as permit:
            permit.used(70)

    asyncio.run(within())
    assert taken() == 2
    assert sum(tokens for _, tokens in ledger().over.values()) == 1000 + 70


def test_tokens_are_corrected_by_the_usage(place):
    """An estimate counts while a call is in flight, and what it spent afterwards."""
    limit = Limit("api", tokens=5000, per=600, estimate=2000)

    @step(limit=limit)
    def ask(tokens):
        stepwise.spend(tokens=tokens)

    @workflow
    def flow():
        for tokens in (10, 20, 30, 40):  # as estimated, three of them would be too many
            ask(tokens)

    flow()
    assert sum(tokens for _, tokens in ledger().over.values()) == 100


def test_each_key_has_a_limit_of_its_own(place):
    """``key`` chooses the limit by arguments of the step, defaults included."""

    @step(limit=Limit("api", requests=5, per=600, key=lambda customer: customer))
    def ask(question, customer="zoe"):
        return question

    @workflow
    def flow():
        return [ask(1), ask(2, "ann"), ask(3, customer="ann")]

    assert flow() == [1, 2, 3]
    assert (taken("api[ann]"), taken("api[zoe]"), ledger()) == (2, 1, None)


class Refusal(Exception):
    """The error of an SDK, for an answer 429."""

    def __init__(self, **headers):
        super().__init__("slow down")
        self.status_code, self.headers = 429, headers


def test_a_refusal_is_waited_for(place):
    """The provider's 429 pauses the limit, and the attempt is made again: it is no failure."""

    @step(limit=Limit("api", requests=100, per=600))
    def ask():
        made.append(time.monotonic())
        if len(made) < 3:
            raise Refusal(**{"Retry-After": "0.3"})
        return len(made)

    @workflow(run_id="r")
    def flow():
        return ask()

    assert flow() == 3
    assert all(later - earlier >= 0.3 for earlier, later in itertools.pairwise(made))
    assert stepwise.get_run("r").steps[0].attempts == 1
    assert taken() == 3


@pytest.mark.parametrize(
    ("options", "headers"),
    [({}, {}), ({"timeout": 5}, {"Retry-After": "30"}), ({}, {"Retry-After": "3600"})],
)
def test_a_refusal_that_is_not_waited_for(options, headers):
    """Without a time, or with one beyond the step's timeout, the error is the step's."""

    @step(limit=Limit("api", requests=100, per=600), **options)
    def ask():
        made.append(1)
        raise Refusal(**headers)

    @workflow
    def flow():
        return ask()

    with pytest.raises(Refusal):
        flow()
    assert made == [1]


def test_a_refused_side_effect(place):
    """A side effect is made again only where the refusal proves that nothing happened."""

    @tool(side_effect=True, limit=Limit("api", requests=9, per=600), fails_cleanly=(Refusal,))
    def clean():
        made.append("clean")
        if len(made) < 2:
            raise Refusal(**{"retry-after-ms": "10"})

    @tool(side_effect=True, limit=Limit("other", requests=9, per=600))
    def unclear():
        made.append("unclear")
        raise Refusal(**{"retry-after-ms": "10"})

    @workflow
    def flow():
        clean()
        unclear()

    with pytest.raises(Refusal):
        flow()
    assert made == ["clean", "clean", "unclear"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "1s"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "9" * 400}, None),
        ({}, None),
    ],
)
def test_how_long_a_refusal_lasts(headers, expected):
    """``Retry-After`` in its forms, or the reset of an empty limit; other texts say nothing."""
    assert refusal_of(429, headers) == expected
    assert refusal_of(500, headers) is None


def test_what_is_left():
    """The headers of OpenAI and of Anthropic say what is left, and until when."""
    openai = {
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "20ms",
    }
    assert left_of(openai) == (59, 149984, 1.0)
    anthropic = {
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2015-10-21T07:28:00Z",
    }
    assert left_of(anthropic) == (0, None, 0.0)
    assert left_of({"content-type": "x"}) is None


def test_a_turn_inside_a_turn_of_the_limit(place):
    """A step that calls a step with its limit is refused: one would wait for the other."""
    limit = Limit("api", concurrent=1)

    @step(limit=limit)
    def inner():
        return 1

    @step(limit=limit)
    def outer():
        return inner()

    @workflow
    def flow():
        return outer()

    with pytest.raises(ConfigurationError, match="Limit the innermost call only"):
        flow()
    with limit, pytest.raises(ConfigurationError, match="innermost"), limit:
        pass


def test_a_cancelled_call_gives_its_place_back(place):
    """A task that is cancelled while it waits leaves the queue, and takes nothing."""
    stepwise.configure(suspend_after=None)
    limit = Limit("api", concurrent=1)

    @step(limit=limit)
    async def ask(number):
        made.append(number)
        if number == 0:
            gates["begun"].set()
            await asyncio.Event().wait()
        return number

    @workflow
    async def flow():
        gates["begun"], calls = asyncio.Event(), []
        for number in range(3):
            calls.append(asyncio.ensure_future(ask(number)))
            await asyncio.sleep(0)
        await gates["begun"].wait()
        for call in (calls[1], calls[0]):
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert call.cancelled()
        return await calls[2]

    assert asyncio.run(flow()) == 2
    assert made == [0, 2]
    assert ledger().claims == {}


def test_a_damaged_ledger_counts_as_used_up(tmp_path, told):
    """Nobody knows what was taken, so that a whole window is waited for, and that is said."""
    stepwise.configure(store=f"disk:{tmp_path}/store")
    with Limit("api", requests=5, per=600):
        pass
    store = open_store(settings.store())
    limited.settle(store)
    from stepwise.stores.base import Owner

    epoch = store.acquire("limit:api", Owner(1, "here", 0.0))
    store.write("limit:api", epoch, Batch(put={"ledger": b"damaged"}))
    store.release("limit:api", epoch)
    found = StoredLedger(
        store, seal_for(store), "api", figures_of(Limit("api", requests=5, per=600))
    ).read()
    assert found.room()[0] == 0
    assert "the ledger of limit 'api'" in told()


def test_programs_with_other_figures(tmp_path, told):
    """The figures that were stated last count for all, and a notice says so once."""
    stepwise.configure(store=f"disk:{tmp_path}/store")
    old, new = Limit("api", requests=5, per=600), Limit("api", requests=7, per=600)
    for limit in (old, new, new):
        with limit:
            pass
        limited.settle()
    assert ledger().figures.requests == 7
    assert told().count("the newest count") == 1
    with old:
        pass
    assert ledger().figures.requests == 7
    assert "another program states: 7 requests in 600 s" in told()


def test_a_restart_of_the_machine(tmp_path, monkeypatch):
    """After a restart, what was taken counts as long as the time of day says."""
    store = open_store(f"disk:{tmp_path}/store")
    found = StoredLedger(
        store, seal_for(store), "api", figures_of(Limit("api", requests=2, per=50))
    )
    with found.changing() as change:
        change.queue("1/1.0", change.at, {"r": (change.at, [0, 0])})
        change.grant("1/1.0", change.at)
        change.bury("1/1.0", change.at)
    day = time.time()
    monkeypatch.setattr("stepwise._journal.ledger._boot", lambda: "another")
    monkeypatch.setattr("stepwise._journal.ledger.clock.elapsed", lambda: 3.0)
    for later, room in ((10, 0), (45, 0), (52, 2)):
        monkeypatch.setattr("stepwise._journal.ledger.time.time", lambda: day + later)  # noqa: B023
        assert found.read().room()[0] == room


def test_holders(place):
    """A process that holds a part of a limit shows by a lease that it lives."""
    first, second = HolderLease(place), HolderLease(place)
    assert (is_dead(place, first.id), is_dead(place, second.id)) == (False, False)
    assert is_dead(place, "1/12.5")
    first.release()
    assert is_dead(place, first.id)
    third = HolderLease(place)
    assert third.id.partition("/")[0] == first.id.partition("/")[0]
    assert is_dead(place, first.id)
    for each in (second, third):
        each.release()


def test_nothing_is_held_when_nothing_is_in_flight(place):
    """An idle process holds no lease and no thread."""
    with Limit("api", requests=5, per=600):
        pass
    until(lambda: place.owner(f"{LIMITS.list_name}1") is None)
    until(lambda: all(each.name != "stepwise limits" for each in threading.enumerate()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "the name is a text"),
        ({"name": "a\nb"}, "the name is a text"),
        ({"requests": 0}, "requests=0 of Limit"),
        ({"tokens": 1.5}, "tokens=1.5 of Limit"),
        ({"concurrent": True}, "concurrent=True of Limit"),
        ({"per": 0}, "per=0 of Limit"),
        ({"per": "60"}, "per='60' of Limit"),
        ({"requests": None}, "limits nothing"),
        ({"key": "customer"}, "key='customer' of Limit"),
    ],
)
def test_wrong_limits(given, said):
    """A limit that makes no sense is refused when it is written, with its name and the way out."""
    with pytest.raises(ConfigurationError, match=said):
        Limit(**{"name": "api", "requests": 5, **given})


def test_wrong_uses():
    """A limit is given where it can be used, and a key names parameters of the step."""
    with pytest.raises(ConfigurationError, match=r"it must be a stepwise\.Limit"):
        step(limit=5)(lambda: None)
    keyed = Limit("api", requests=5, key=lambda customer: customer)
    with pytest.raises(ConfigurationError, match="takes 'customer', which is no parameter of step"):

        @step(limit=keyed)
        def ask(question):
            return question

    with pytest.raises(ConfigurationError, match=r"of\(customer\)"), keyed:
        pass
    with keyed.of("ann"):
        pass
    with pytest.raises(ConfigurationError, match=r"write limit.of\(value\)"):
        stepwise.instrument(limits={"gpt-5": keyed})
    with pytest.raises(ConfigurationError, match="limit:"):
        workflow(run_id="limit:api")(lambda: None)


def test_eight_processes_and_kills():
    """A provider's own count has no request too many in any window, though processes are killed."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
    import limits

    provider = limits.Provider()
    figures, processes = Limit("fake", requests=40, tokens=100_000, per=1.0), []
    pace = 60 if WHOLE else 25  # requests between two kills
    try:
        store = f"disk:{settings.home()}/limits"
        for _ in range(8):
            processes.append(limits.start(provider.port, store, figures, 2, 10_000))
        for kill in range(4):
            goal = pace * (kill + 1)
            until(lambda: len(provider.came) >= goal)  # noqa: B023
            processes[kill].kill()
            processes[kill].wait()
            processes.append(limits.start(provider.port, store, figures, 2, 10_000))
        until(lambda: len(provider.came) >= 5 * pace)
    finally:
        for each in processes:
            each.kill()
            each.wait()
        provider.close()
    assert provider.over(40, 1.0) == 0


def test_fifty_runs_are_served_in_turn(tmp_path):
    """A run with many calls gets one of them after one of each other run."""
    stepwise.configure(store=f"disk:{tmp_path}/store", suspend_after=None)
    limit = Limit("api", requests=25, per=0.5)

    @step(limit=limit)
    async def ask(run, number):
        made.append(run)

    in_line = {}

    def heard(event):
        if event.kind == "step_waiting":
            in_line.setdefault((event.run_id, event.step), len(made))

    unheard = stepwise.on_event(heard)

    @workflow(fresh=True)
    async def flow(run):
        await asyncio.gather(*(ask(run, number) for number in range(4 if run else 30)))

    async def main():
        await asyncio.gather(*(flow(run) for run in range(50)))

    asyncio.run(main())
    unheard()
    assert sorted(made) == sorted([0] * 30 + [*range(1, 50)] * 4)
    # Two windows after the last call began to wait, while another run waits, the first one gets one
    # call in each round.  In line with the calls, it would be done by then.
    waited = max(in_line.values())
    rest = made[waited + 50 :]
    assert 0 in rest or waited > 25  # on a busy machine it is long alone
    while rest and not rest[-1]:
        rest.pop()
    del rest[-25:]  # in the last window, the first run's other calls may come before the last one
    assert rest.count(0) <= 5


def test_a_command_lists_the_limits(tmp_path, monkeypatch):
    """``stepwise limits`` says what is used now and who waits, as a table and as JSON."""
    url = f"disk:{tmp_path}/store"
    monkeypatch.setenv("STEPWISE_STORE", url)
    assert "no limit was used" in python("stepwise", "limits").stderr
    store = open_store(url)
    stored = StoredLedger(
        store, seal_for(store), "api", figures_of(Limit("api", requests=5, tokens=9000, per=600))
    )
    with stored.changing() as change:
        change.queue(
            "1/1.0", change.at, {"first": (change.at, [1000, 9000]), "other": (change.at, [1])}
        )
        change.grant("1/1.0", change.at)
        change.pause(change.at, 300)
    shown = python("stepwise", "limits").stdout
    assert "5 requests and 9,000 tokens in 600 s" in shown
    (facts,) = json.loads(python("stepwise", "limits", "--json").stdout)
    assert (facts["name"], facts["used_requests"], facts["used_tokens"]) == ("api", 2, 1001)
    assert 0 < facts["paused_seconds"] <= 300
    assert [(each["run"], each["calls"]) for each in facts["waiting"]] == [("first", 1)]


def test_the_answer_says_what_is_left(tmp_path):
    """Model requests wait for limits by model or address; a 429 and headers correct the limit."""
    httpx = pytest.importorskip("httpx")
    answers = [
        httpx.Response(429, headers={"retry-after-ms": "50"}),
        httpx.Response(
            200,
            json={"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 12}},
            headers={"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "9m"},
        ),
    ]

    def answer(request):
        made.append(request)
        return answers[min(len(made), 2) - 1]

    @workflow(run_id="r")
    def flow(where):
        with httpx.Client(transport=httpx.MockTransport(answer)) as client:
            said = {
                "model": "m",
                "max_tokens": 5000,
                "messages": [{"role": "user", "content": "hi"}],
            }
            return [
                client.post("https://llm.example/v1/chat/completions", json=said).status_code
                for _ in range(2 if where == "in a run" else 1)
            ]

    stepwise.configure(store=f"disk:{tmp_path}/store")
    limit = Limit("api", requests=100, tokens=9000, per=600)
    stepwise.instrument(limits={"llm.example": limit})
    try:
        assert flow("in a run") == [200, 200]
        assert len(made) == 3
        stepwise.get_run("r").delete()
        assert flow.__wrapped__("outside") == [200]
    finally:
        stepwise.uninstrument()
    found = ledger()
    requests, tokens = found.used()
    assert 93 <= requests <= 97  # others have taken what the provider lacks
    assert 3 * 42 <= tokens <= 3 * 42 + 5100  # the refused one as estimated
