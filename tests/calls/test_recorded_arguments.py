"""``record_arguments=True``: the arguments of a step in full, as they were when its call began."""

import asyncio
import copy
import dataclasses
import json
import os
import pickle
import signal
import threading
import tracemalloc

import numpy as np
import pytest
from harness import python
from hypothesis import given
from hypothesis import strategies as st
from resuming import crashed, resumed

import stepwise
from stepwise import step, tool, workflow
from stepwise._values.preview import NotShown
from stepwise.testing import fresh_store

SECRET = "sk-S3CR3T-0123456789"


@pytest.fixture(autouse=True)
def store():
    with fresh_store() as opened:
        yield opened


def steps(run_of):
    """The steps of the newest run of a workflow."""
    return stepwise.runs(run_of)[0].steps


@dataclasses.dataclass
class Point:
    x: int
    y: list


@step(record_arguments=True)
def take(value, *more, **named):
    """Change whatever it was given."""
    for each in (value, *more, *named.values()):
        spoil(each)
    return len(more)


def spoil(value):
    if isinstance(value, list):
        value.append("later")
    elif isinstance(value, dict):
        value["later"] = 1
    elif isinstance(value, Point):
        value.y.append("later")
    elif isinstance(value, (np.ndarray, bytearray)):
        value[:] = 0 if isinstance(value, np.ndarray) else bytes(len(value))


@workflow
def taking(value):
    take(value, value, other=value)


ATOMS = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
PLAIN = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Point, st.integers(), st.lists(inner, max_size=3))
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_what_a_body_changes_is_recorded_as_it_was(value):
    """Any value comes back as it was before the body changed it, and one object stays one."""
    before = copy.deepcopy(value)
    with fresh_store():
        taking.options(start="new")(value)
        (taken,) = steps(taking)
        assert taken.has_inputs
        inputs = taken.inputs
        assert inputs == {"value": before, "more": (before,), "named": {"other": before}}
        if not isinstance(value, (int, str, bytes)):
            assert inputs["value"] is inputs["more"][0] is inputs["named"]["other"]


@pytest.mark.parametrize("kind", ["array", "bytes"])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_large_buffers_are_copied(kind, where, tmp_path):
    """An array or a buffer of a megabyte that the body overwrites is recorded as it was."""
    value = np.arange(1 << 17) if kind == "array" else bytearray(os.urandom(1 << 20))
    before = value.copy()
    store = "memory:" if where == "memory" else f"disk:{tmp_path}"
    run = taking.options(store=store).execute(value)
    (taken,) = run.steps
    assert np.array_equal(np.asarray(taken.inputs["value"]), np.asarray(before))
    assert not np.array_equal(np.asarray(value), np.asarray(before))
    assert run.verify().ok


def test_off_by_default(store):
    """Without the option nothing is recorded beside a call, and the error says how to."""

    @step
    def plain(n):
        return n

    @workflow
    def flow():
        plain(1)

    flow()
    (recorded,) = steps(flow)
    assert not recorded.has_inputs
    with pytest.raises(stepwise.UnreadableValueError, match="record_arguments=True"):
        _ = recorded.inputs
    assert store.names(stepwise.runs(flow)[0].id, "inputs/") == []


@pytest.mark.parametrize("how", ["configure", "environment"])
def test_for_all_steps_of_a_process(how, monkeypatch):
    """``configure()`` and the environment record for every step that does not say False."""

    @step
    def plain(n):
        return n

    @step(record_arguments=False)
    def never(n):
        return n

    @workflow
    def flow(n):
        plain(n)
        never(n)

    flow(0)
    if how == "configure":
        stepwise.configure(record_arguments=True)
    else:
        monkeypatch.setenv("STEPWISE_RECORD_ARGUMENTS", "1")
    flow(1)
    assert [each.has_inputs for each in steps(flow)] == [True, False]
    assert steps(flow)[0].inputs == {"n": 1}
    first = stepwise.runs(flow)[1]
    assert [each.has_inputs for each in first.steps] == [False, False]


def test_a_wrong_value_of_the_option():
    """Values other than True and False are refused, with the option's name."""
    with pytest.raises(stepwise.ConfigurationError, match="record_arguments=1 of step"):
        step(record_arguments=1)(len)
    with pytest.raises(stepwise.ConfigurationError, match="record_arguments='yes'"):
        stepwise.configure(record_arguments="yes")


# -- by reference ---------------------------------------------------------------------------------


@step(record_arguments=True)
def think(messages):
    return {"role": "assistant", "content": f"{len(messages)}" + "x" * 4000}


@workflow
def agent(turns):
    messages = [{"role": "user", "content": "hi"}]
    for _ in range(turns):
        messages.append(think(messages))
    return [each["content"][:1] for each in messages]


def test_results_are_not_written_again(store):
    """A conversation of recorded answers takes a few bytes more at each turn."""
    agent(30)
    run = stepwise.runs(agent)[0]
    sizes = [len(store.get(run.id, name)) for name in store.names(run.id, "inputs/")]
    assert len(sizes) == 30
    assert max(sizes) < 4000
    *_, last = run.steps
    assert [each["role"] for each in last.inputs["messages"]] == ["user", *["assistant"] * 29]
    assert last.inputs["messages"][-1] == run.steps[-2].result


def test_a_changed_result_is_written(store):
    """A result that the program has changed is recorded as it is, not by a reference."""

    @workflow
    def flow():
        first = think([])
        first["content"] = "changed"
        think([first])

    flow()
    assert steps(flow)[1].inputs == {"messages": [{"role": "assistant", "content": "changed"}]}


@step
def make(kind, n):
    """A result that is worth a reference."""
    text = f"{n} " * 300
    made = {
        "dict": {"n": n, "text": text, "inner": [n, {"deep": text}]},
        "list": [{"n": n, "text": text}, [n, text]],
        "array": np.arange(n, n + 300),
        "text": text,
        "point": Point(n, [text]),
    }
    return made[kind]


@step(record_arguments=True)
def look(values):
    return None


KINDS = st.sampled_from(["dict", "list", "array", "text", "point"])
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("make"), KINDS),
        st.tuples(st.just("change"), st.integers(0, 9)),
        st.tuples(st.just("part"), st.integers(0, 9)),
        st.tuples(st.just("hold"), st.integers(0, 9)),
        st.tuples(st.just("look"), st.integers(1, 4)),
    ),
    max_size=14,
)


@workflow
def acting(acts, seen):
    held = [make("dict", 0)]
    for number, (act, choice) in enumerate(acts):
        one = held[choice % len(held)] if act != "make" and held else None
        if act == "make":
            held.append(make(choice, number))
        elif act == "change":
            spoil(one)
        elif act == "part" and isinstance(one, (dict, list)) and one:
            held.append(next(iter(one.values())) if isinstance(one, dict) else one[-1])
        elif act == "hold":
            held.append({"again": one, "and": [one, number]})
        elif act == "look":
            values = held[-choice:]
            seen.append(copy.deepcopy(values))
            look(values)
    look(held)
    return


@given(ACTS)
def test_any_mix_of_results_comes_back(acts):
    """Whatever results, parts and changed results a call is given, they come back as they were."""
    seen: list = []
    with fresh_store():
        acting.options(start="new")(acts, seen)
        looks = [each.inputs["values"] for each in steps(acting) if each.name == "look"]
        assert len(looks) == len(seen) + 1
        for now, then in zip(looks, seen, strict=False):
            assert same(now, then), (now, then)


def same(one, other):
    """Whether two values are equal, with the same objects shared."""
    return shape_of(one) == shape_of(other)


def shape_of(value):
    """What tells a value apart, with which of its containers are one object."""
    met: dict = {}

    def of(each):
        if isinstance(each, (list, dict, Point, np.ndarray)):
            if id(each) in met:
                return "met", met[id(each)]
            met[id(each)] = len(met)
        if isinstance(each, dict):
            return "dict", [(of(key), of(item)) for key, item in each.items()]
        if isinstance(each, list):
            return "list", [of(item) for item in each]
        if isinstance(each, Point):
            return "point", each.x, of(each.y)
        if isinstance(each, np.ndarray):
            return "array", each.tolist()
        return each

    return of(value)


def test_references_survive_checkpoints_that_are_pruned():
    """Each step's arguments are there after the chunks of its checkpoints were deleted."""

    @workflow
    def talk(turns):
        messages = []
        for n in range(turns):
            messages.append({"role": "user", "content": f"question {n}"})
            messages.append(think(messages))

    talk(60)
    run = stepwise.runs(talk)[0]
    for number, each in enumerate(run.steps):
        messages = each.inputs["messages"]
        assert len(messages) == 2 * number + 1
        assert messages[-1]["content"] == f"question {number}"
    assert run.verify().ok


def test_in_a_fork():
    """A fork has the arguments of the steps that it shares with its source."""
    agent(5)
    run = stepwise.runs(agent)[0]
    shared = run.fork(at=3).steps
    assert [each.inputs for each in shared] == [each.inputs for each in run.steps[:3]]
    assert run.fork(at=3).verify().ok


def test_in_a_copy(tmp_path):
    """A copy of a run in another store has the arguments of its steps."""
    run = agent.options(store=f"disk:{tmp_path}/one").execute(3)
    copied = run.copy_to(f"disk:{tmp_path}/other")
    assert [each.inputs for each in copied.steps] == [each.inputs for each in run.steps]


def test_they_are_pruned_with_the_journal(store):
    """With ``prune_journal=True`` the arguments of pruned steps are deleted with their records."""

    @step(record_arguments=True)
    def note(n, before):
        return {"n": n, "text": "x" * 1000}

    @workflow(prune_journal=True)
    def loop(turns):
        last = None
        for n in range(turns):
            last = note(n, last)

    loop(500)
    run = stepwise.runs(loop)[0]
    names = store.names(run.id, "inputs/")
    assert len(names) < 350
    assert run.steps[-1].inputs == {"n": 499, "before": {"n": 498, "text": "x" * 1000}}


# -- what is not recorded --------------------------------------------------------------------------


class Client:
    """An object that does not pickle, and whose code must not be called to show it."""

    def __init__(self):
        self.lock = threading.Lock()

    def __repr__(self):
        raise SystemExit("called")


class Failing:
    def __reduce__(self):
        raise RuntimeError("called")


def test_placeholders():
    """Hidden arguments, and those that do not pickle, are placeholders; the step does not fail."""

    @step(
        record_arguments=True,
        secret=["key"],
        ignore=["client"],
        redact=["card"],
    )
    def call(key, client, card, n, lock, failing):
        return n

    @workflow
    def flow():
        call(SECRET, Client(), "4111", 7, Client(), Failing())

    flow()
    inputs = steps(flow)[0].inputs
    assert {name: repr(value) for name, value in inputs.items()} == {
        "key": "<secret>",
        "client": "<ignored>",
        "card": "<redacted>",
        "n": "7",
        "lock": "<Client, which cannot be recorded>",
        "failing": "<Failing, which cannot be recorded>",
    }


def test_a_function_that_redacts():
    """What a ``redact=`` function hides is the text that it returns; the rest is recorded."""

    def hide(name, value):
        return f"card {value[-4:]}" if name == "card" else None

    @step(record_arguments=True, redact=hide)
    def pay(card, cents):
        return cents

    @workflow
    def flow():
        pay("4111 1111 1111 1234", 5)

    flow()
    assert steps(flow)[0].inputs == {"card": NotShown("card 1234"), "cents": 5}


SECRETS = """
import os, sys, stepwise
from stepwise import step, tool, workflow

KEY = os.environ["THE_KEY"]

class Holder:
    def __init__(self):
        self.key = KEY

@step(record_arguments=True, secret=["key"])
def login(key, n): return n

@step(record_arguments=True)
def think(messages, box, holder, n): return n

@tool(side_effect=True, record_arguments=True)
def send(header, n):
    if os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
    return n

@workflow(secret=["key"] OPTIONS)
def main(key):
    login(key, 1)
    messages = [{"role": "system", "content": f"use {key} to enter"}, "plain text"]
    think(messages, {"deep": [(key, key.encode())]}, Holder(), 2)
    send(f"Bearer {key}", 3)
    raise ValueError(f"with {key}")

main(KEY)
"""


@pytest.mark.parametrize("options", ["", ", codec='json'"])
@pytest.mark.parametrize("die", ["", "1"])
def test_no_byte_of_a_secret_is_on_the_disk(tmp_path, options, die):
    """No file holds a secret that any argument carried, in any part of it; the rest is there."""
    script, home = tmp_path / "main.py", tmp_path / "home"
    script.write_text(SECRETS.replace("OPTIONS", options))
    environment = {"STEPWISE_HOME": str(home), "THE_KEY": SECRET, "DIE": die}
    environment |= {"STEPWISE_RECORD_LOCALS": "1"}
    python(
        script,
        cwd=tmp_path,
        env={**os.environ, **environment},
        code=(-signal.SIGKILL if die else 1),
    )
    found = b"".join(each.read_bytes() for each in home.rglob("*") if each.is_file())
    assert b"plain text" in found
    assert SECRET.encode() not in found
    os.environ["STEPWISE_HOME"] = str(home)
    (run,) = stepwise.runs(store=f"disk:{home}/store")
    one, two, three = run.steps
    assert (repr(one.inputs["key"]), one.inputs["n"]) == ("<secret>", 1)
    assert two.inputs["messages"][0]["content"] == "use <secret> to enter"
    assert (three.inputs["header"], three.inputs["n"]) == ("Bearer <secret>", 3)
    assert three.status == ("in_doubt" if die else "completed")


@pytest.mark.parametrize("codec", ["pickle", "json"])
def test_a_secret_of_several_lines(codec):
    """A secret with line breaks, quotes and accents is masked like any other."""
    key = '-----BEGIN-----\nMIIEowIBAA"quoted"\\clé\n'

    @step(record_arguments=True, secret=["key"])
    def login(key):
        pass

    @step(record_arguments=True)
    def think(message, n):
        pass

    @workflow(codec=codec)
    def flow():
        login(key)
        think({"text": f"use {key}."}, 1)

    flow()
    assert steps(flow)[1].inputs == {"message": {"text": "use <secret>."}, "n": 1}


# -- each way to make a call -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory:", "disk:"])
def test_asynchronous_steps(where, tmp_path):
    """Steps that run side by side each have their own arguments, whoever writes them."""

    @step(record_arguments=True)
    async def fetch(number, seen):
        seen.append(number)
        await asyncio.sleep(0)
        return number

    @workflow(store=f"{where}{tmp_path}")
    async def flow():
        await asyncio.gather(*(fetch(n, [n]) for n in range(20)))

    run = asyncio.run(flow.execute())
    found = {each.inputs["number"]: each.inputs["seen"] for each in run.steps}
    assert found == {n: [n] for n in range(20)}


def test_many_large_arguments_do_not_wait_in_memory(tmp_path):
    """Calls that begin before any of them ends hold a few of their recorded arguments at most."""
    text = "x" * (1 << 20)

    @step(record_arguments=True, ignore=["gate"])
    async def wait(n, text, gate):
        if n < 39:
            return await gate.wait()
        gate.set()
        return tracemalloc.get_traced_memory()[0] / (1 << 20)

    @workflow(store=f"disk:{tmp_path}")
    async def flow():
        gate = asyncio.Event()
        return await asyncio.gather(*(wait(n, text, gate) for n in range(40)))

    tracemalloc.start()
    try:
        run = asyncio.run(flow.execute())
    finally:
        tracemalloc.stop()
    assert run.result[39] < 20
    assert [each.inputs["n"] for each in run.steps] == [*range(40)]


def test_steps_in_threads():
    """Steps that threads call have their arguments, whatever the workflow's results are."""

    @workflow
    def flow():
        first = think([])
        stepwise.map(take, [[first, n] for n in range(8)])

    flow()
    _, *taken = steps(flow)
    assert sorted(each.inputs["value"][1] for each in taken) == [*range(8)]


def test_a_generator():
    """A workflow that yields has no checkpoints, and its steps have their arguments."""

    @workflow
    def flow():
        for n in range(3):
            yield think([n, "y" * 600])

    assert len([*flow()]) == 3
    assert [each.inputs["messages"][0] for each in steps(flow)] == [0, 1, 2]


def test_a_method():
    """The arguments of a method come without the instance."""

    class Shop:
        @step(record_arguments=True)
        def sell(self, what, *, price=1):
            return price

        @workflow
        def open(self):
            return self.sell("tea", price=3)

    Shop().open()
    (sold,) = stepwise.runs()[0].steps
    assert sold.inputs == {"what": "tea", "price": 3}


def test_a_retried_step():
    """The arguments are those of the call's beginning, not those of its last attempt."""
    tries = []

    @step(record_arguments=True, retries=2, backoff=0.0)
    def flaky(box):
        box.append(len(tries))
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(box)
        return box

    @workflow
    def flow():
        flaky(["begun"])

    flow()
    (tried,) = steps(flow)
    assert (tried.attempts, tried.inputs) == (3, {"box": ["begun"]})


def test_a_side_effect_in_doubt():
    """A side effect in doubt shows what it was called with: they are recorded with its intent."""

    @tool(side_effect=True, record_arguments=True)
    def pay(account, cents):
        return cents

    @workflow
    def flow():
        pay({"iban": "DE00"}, 5)

    crashed(flow, at=pay, when="after")
    (paid,) = steps(flow)
    assert paid.status == "in_doubt"
    assert paid.inputs == {"account": {"iban": "DE00"}, "cents": 5}


def test_an_approved_tool():
    """A tool that asks has its arguments recorded before it asks."""

    @tool(side_effect=True, approve=True, record_arguments=True)
    def pay(cents, note):
        return cents

    @workflow
    def flow():
        return pay(5, {"why": "tea"})

    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        flow()
    run = stepwise.runs(flow)[0]
    assert run.steps[0].inputs == {"cents": 5, "note": {"why": "tea"}}
    (question,) = run.questions
    run.approve("pay", question.ticket)
    assert flow() == 5
    assert run.steps[0].inputs == {"cents": 5, "note": {"why": "tea"}}


KILLED = """
import os, stepwise
from stepwise import step, workflow

@step(record_arguments=True)
def work(items, last):
    if len(items) == 3 and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
    items.append(len(items))
    return {"n": len(items), "text": "x" * 5000}

@workflow(store="disk:store")
def flow():
    items, last = [], None
    for _ in range(6):
        last = work(items, last)
    return len(items)

print(flow())
"""


def test_a_killed_program(tmp_path):
    """A program that was killed in a step, and run again, has the arguments of all steps."""
    script = tmp_path / "main.py"
    script.write_text(KILLED)
    environment = {**os.environ, "STEPWISE_HOME": str(tmp_path / "home")}
    python(script, cwd=tmp_path, env=environment, code=-signal.SIGKILL)
    assert python(script, cwd=tmp_path, env=environment).stdout == "6\n"
    os.environ["STEPWISE_HOME"] = str(tmp_path / "home")
    (run,) = stepwise.runs(store=f"disk:{tmp_path}/store")
    found = [each.inputs for each in run.steps]
    assert [len(each["items"]) for each in found] == [0, 1, 2, 3, 4, 5]
    assert [each["last"] and each["last"]["n"] for each in found] == [None, 1, 2, 3, 4, 5]
    assert run.verify().ok


@pytest.mark.parametrize("at", range(1, 6))
def test_a_resumed_run(at):
    """A run that was killed anywhere has the arguments of all steps in the end."""

    @step(record_arguments=True)
    def work(items, n):
        items.append(n)
        return {"n": n, "text": "x" * 800}

    @workflow
    def flow():
        items, last = [], None
        for n in range(5):
            last = work(items, {"n": n, "last": last})
        return len(items)

    assert resumed(flow, at=work, nth=at) == 5
    found = [each.inputs for each in steps(flow)]
    assert [len(each["items"]) for each in found] == [0, 1, 2, 3, 4]
    assert [each["n"]["n"] for each in found] == [0, 1, 2, 3, 4]
    assert found[4]["n"]["last"]["n"]["n"] == 3


CUT_OFF = """
import asyncio, os, stepwise
from stepwise import step, workflow

again = os.path.exists("died")

@step
async def first(ready):
    await ready.wait()

@step(record_arguments=True)
async def cut_off(x, ready):
    ready.set()
    if not again:
        while not stepwise.current_run().steps:  # until a record is written
            await asyncio.sleep(0)
        open("died", "w").close()
        os.kill(os.getpid(), 9)

@step
async def other(y):
    pass

def calls():
    ready = asyncio.Event()
    between = [other(2)] if again else []
    return [first(ready), *between, cut_off(1, ready)]

@workflow(store="disk:store")
async def flow():
    await asyncio.gather(*calls())

asyncio.run(flow())
"""


def test_a_call_that_was_cut_off(tmp_path):
    """The arguments of a call without any record are never those of a later call."""
    script = tmp_path / "main.py"
    script.write_text(CUT_OFF)
    environment = {**os.environ, "STEPWISE_HOME": str(tmp_path / "home")}
    python(script, cwd=tmp_path, env=environment, code=-signal.SIGKILL)
    python(script, cwd=tmp_path, env=environment, code=0)
    os.environ["STEPWISE_HOME"] = str(tmp_path / "home")
    (run,) = stepwise.runs(store=f"disk:{tmp_path}/store")
    found = {each.name: each.has_inputs and each.inputs["x"] for each in run.steps}
    assert found == {"first": False, "other": False, "cut_off": 1}


def test_data_only():
    """With ``codec="json"`` arguments are recorded as data, and are shown without a pickle."""

    @step(record_arguments=True)
    def work(items, odd):
        return 1

    @workflow(codec="json")
    def flow():
        work([1, {"a": "b"}], object())

    flow()
    stepwise.configure(trust="data")
    inputs = steps(flow)[0].inputs
    assert inputs["items"] == [1, {"a": "b"}]
    assert repr(inputs["odd"]) == "<object, which cannot be recorded>"


def test_pickled_arguments_need_trust():
    """With ``trust="data"`` pickled arguments are refused, not loaded."""
    agent(1)
    stepwise.configure(trust="data")
    with pytest.raises(stepwise.UnreadableValueError):
        _ = steps(agent)[0].inputs


def test_a_step_survives_pickle():
    """A decorated step that records its arguments is pickled with the option."""
    again = pickle.loads(pickle.dumps(think))

    @workflow
    def flow():
        again([1])

    flow()
    assert steps(flow)[0].inputs == {"messages": [1]}


def test_a_pickled_step_record():
    """A pickle of a step's record holds no key, and has no arguments any more."""
    agent(1)
    (recorded,) = steps(agent)
    again = pickle.loads(pickle.dumps(recorded))
    assert (again, again.has_inputs, again.frames) == (recorded, False, ())
    with pytest.raises(stepwise.UnreadableValueError, match="get_run"):
        _ = again.inputs


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["inputs", "record"])
def test_a_flipped_bit_is_detected(store, place):
    """Damaged arguments, or a damaged result that they refer to, are never shown as values."""
    agent(4)
    run = stepwise.runs(agent)[0]
    good = [each.inputs for each in run.steps]
    name = store.names(run.id, "inputs/")[3]
    run_id, number = run.id, 2
    if place == "inputs":
        data = bytearray(store.get(run_id, name))
        data[len(data) // 2] ^= 1
        store._runs[run_id].objects[name] = bytes(data)
    else:
        data = bytearray(store._runs[run_id].records[number])
        data[-20] ^= 1
        store._runs[run_id].records[number] = bytes(data)
    with pytest.raises(stepwise.UnreadableValueError, match="does not verify"):
        _ = run.steps[-1].inputs
    assert [each.inputs for each in run.steps if each.number == 1] in ([], good[:1])
    seen = run.verify()
    assert not seen.ok
    assert (seen.damaged_steps, seen.lost) == (((4,), ()) if place == "inputs" else ((), (number,)))
    if place == "inputs":
        assert run.repair().ok
        assert not run.steps[-1].has_inputs


def test_another_runs_arguments_are_refused(store):
    """The arguments of one step in the place of another's are no arguments of it."""
    agent(2)
    run = stepwise.runs(agent)[0]
    one, two = store.names(run.id, "inputs/")
    store._runs[run.id].objects[two] = store.get(run.id, one)
    with pytest.raises(stepwise.UnreadableValueError, match="does not verify"):
        _ = run.steps[1].inputs


def test_encrypted(tmp_path):
    """In an encrypted store no argument is readable, and it is shown with the key."""
    pytest.importorskip("cryptography")
    stepwise.configure(encrypt=True)
    taking.options(store=f"disk:{tmp_path}/store")(["a readable text"])
    found = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"readable" not in found
    (run,) = stepwise.runs(store=f"disk:{tmp_path}/store")
    assert run.steps[0].inputs["value"] == ["a readable text"]


# -- model calls, the command line -----------------------------------------------------------------


def test_the_command_line(tmp_path):
    """``stepwise show RUN STEP`` prints the arguments in full, as text and as JSON."""
    store = f"disk:{tmp_path}/store"
    run = taking.options(store=store).execute({"text": "long " * 100})
    environment = {**os.environ, "STEPWISE_STORE": store}
    shown = python("-m", "stepwise", "show", run.id, "1", env=environment)
    assert "long " * 100 in shown.stdout, shown.stderr
    told = json.loads(
        python("-m", "stepwise", "show", run.id, "1", "--json", env=environment).stdout
    )
    assert told["inputs"]["value"] == repr({"text": "long " * 100})
    gone = python("-m", "stepwise", "show", run.id, "9", env=environment)
    assert (gone.returncode, "has no step 9" in gone.stderr) == (1, True)
