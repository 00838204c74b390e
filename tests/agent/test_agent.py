"""The classic objects: checkpoints that are saved and verified, a step loop that recovers."""

import asyncio
import copy
import dataclasses
import json
import os
import pathlib
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from survival import lab_of
from sweeping import WHOLE, some

import stepwise
from stepwise import Checkpoint, CheckpointStore, RecoverableAgent, tool
from stepwise.stores.memory import MemoryStore

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    return CheckpointStore(None if request.param == "memory" else f"disk:{tmp_path / 'store'}")


def checkpoint(step=1, run="run", **facts):
    return Checkpoint("", run, step, **facts)


def damage(store, run, step):
    """Flip a bit in the stored bytes of the checkpoints of a step."""
    epoch = store.store.acquire(run, stepwise.stores.Owner(os.getpid(), "here", 0.0))
    for name in store.store.names(run, f"agent/{step:012d}"):
        data = bytearray(store.store.get(run, name))
        data[-3] ^= 4
        store.store.write(run, epoch, stepwise.stores.Batch(put={name: bytes(data)}))
    store.store.release(run, epoch)


# -- checkpoints ---------------------------------------------------------------------------------


def test_a_checkpoint_comes_back(store):
    """What was saved is loaded with every field, and gets an id, a time and a checksum."""
    saved = checkpoint(3, state={"n": 1}, messages=MESSAGES, tool_results={"look": [1, 2]})
    store.save(saved)
    loaded = store.load_latest("run")
    assert loaded == saved
    assert len(loaded.checksum) == 64
    assert loaded.checkpoint_id
    assert loaded.timestamp.endswith("+00:00")
    assert store.validate(loaded)
    assert store.load_latest("other") is None


def test_a_saved_checkpoint_is_a_copy(store):
    """What happens to the live state, or to a loaded one, changes no saved checkpoint."""
    state = {"list": [1]}
    store.save(checkpoint(state=state))
    state["list"].append(2)
    loaded = store.load_latest("run")
    loaded.state["list"].append(3)
    assert store.load_latest("run").state == {"list": [1]}


def test_a_checkpoint_is_saved_as_it_is(store):
    """A checkpoint is valid from the beginning; changed, fresh or loaded, it is saved as it is."""
    fresh = checkpoint(state={"n": [1]}, messages=MESSAGES)
    assert len(fresh.checksum) == 64
    assert fresh.checkpoint_id
    assert store.validate(fresh)
    fresh.state["n"].append(2)
    assert not store.validate(fresh)
    store.save(fresh)
    loaded = store.load_latest("run")
    assert loaded.state == {"n": [1, 2]}
    loaded.state["n"] = 3
    store.save(loaded)
    assert store.load_latest("run").state == {"n": 3}
    assert store.validate(loaded)


CHANGES = {
    "state": {"n": 2},
    "messages": [],
    "tool_results": {"look": 4},
    "step_number": 2,
    "checkpoint_id": "other",
    "run_id": "other",
    "timestamp": "2000-01-01T00:00:00+00:00",
    "checksum": "0" * 64,
    "is_valid": False,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_checksum_covers_every_field(store, name):
    """A checkpoint of which any field was changed is not valid."""
    saved = checkpoint(state={"n": 1}, messages=MESSAGES, tool_results={"look": 3})
    store.save(saved)
    assert store.validate(saved)
    setattr(saved, name, CHANGES[name])
    assert not store.validate(saved)


@settings(max_examples=100 if WHOLE else 15)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        max_leaves=20,
    )
)
def test_any_state_comes_back(value):
    """Any state of plain data is loaded as it was saved, and verifies."""
    store = CheckpointStore()
    saved = checkpoint(state={"value": value})
    store.save(saved)
    loaded = store.load_latest("run")
    assert loaded.state == {"value": value}
    assert store.validate(loaded)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "replace": lambda one: dataclasses.replace(one, timestamp="now"),
    "vars": lambda one: Checkpoint(**vars(one)),
    "asdict": lambda one: Checkpoint(**dataclasses.asdict(one)),
}


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_checkpoint_is_saved_as_it_is(store, copied):
    """A checkpoint made of another one, fresh or loaded, is saved as it is, not as that was."""
    store.save(checkpoint(1, state={"n": 1}))
    for one in (checkpoint(1, state={"n": 1}), store.load_latest("run")):
        another = COPIES[copied](one)
        another.step_number, another.state = 2, {"n": 2}
        store.save(another)
        assert store.load_at_step("run", 2).state == {"n": 2}
        store.delete("run")


def test_a_checkpoint_survives_other_formats(store):
    """A checkpoint that was kept as JSON or as a pickle is valid, and a change in it is noticed."""
    one = checkpoint(1, state={"n": 1})
    for back in (
        Checkpoint(**json.loads(json.dumps(vars(one)))),
        pickle.loads(pickle.dumps(one)),
    ):
        assert back == one
        assert type(back.checksum) is str
        assert store.validate(back)
        back.state["n"] = 2
        assert not store.validate(back)


def test_a_checksum_that_does_not_fit_is_reported(store, told):
    """A checkpoint with a wrong checksum of the caller is never loaded, which is said at once."""
    store.save(checkpoint(1))
    store.save(checkpoint(2, checksum="0" * 64))
    assert "will not be loaded" in told()
    assert store.load_latest("run").step_number == 1


FACTS = {"checkpoint_id": "id", "run_id": "run", "step_number": 1, "timestamp": "now"}


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), (1, True), (1, 1.0), (0.0, -0.0), ("", None)],
    ids=repr,
)
def test_the_checksum_tells_types_apart(one, other):
    """Values that JSON would write alike have different checksums."""
    sums = [Checkpoint(**FACTS, state={"value": value}).checksum for value in (one, other)]
    assert sums[0] != sums[1]


PLAIN = {
    "dicts": [{"role": "user", "content": f"{n}", "n": n, "ok": n % 2 == 0} for n in range(200)],
    "texts": {"text": "\u00e4\ud800" * 1000, "numbers": [n / 3 for n in range(200)]},
    "nested": {"nested": [[{"a": (b"bytes", None, 2**80)}]] * 3},
}


@pytest.mark.parametrize("kind", PLAIN)
def test_the_checksum_of_plain_data_needs_no_digest(kind, monkeypatch):
    """The checksum of plain data comes from one pass in C, and identity of parts does not count."""
    value = PLAIN[kind]
    monkeypatch.setattr("stepwise._values.digest.digest", None)
    monkeypatch.setattr("json.dumps", None)
    values = value, pickle.loads(pickle.dumps(value)), eval(repr(value))
    (checksum,) = {Checkpoint(**FACTS, state={"value": each}).checksum for each in values}
    assert len(checksum) == 64


def test_the_checksum_of_sets_and_cycles(store):
    """A set has no order in a checksum; a cycle, deep nesting and objects have a checksum too."""
    words = [f"word {n}" for n in range(50)]
    backwards = words[::-1]
    cycle: list = [1]
    cycle.append(cycle)
    deep: list = []
    for _ in range(150):
        deep = [deep]
    state = {"set": set(words), "cycle": cycle, "deep": deep, "path": pathlib.PurePosixPath("/a")}
    saved = checkpoint(state=state)
    before = saved.compute_checksum()
    saved.state["set"] = set(backwards)
    assert saved.compute_checksum() == before
    store.save(saved)
    assert store.load_latest("run").state["set"] == set(words)


def test_a_store_object_is_taken():
    """A Store instance is used as it is, so that two CheckpointStores may share one."""
    backend = MemoryStore("shared")
    CheckpointStore(backend).save(checkpoint())
    store = CheckpointStore(backend)
    assert store.load_latest("run") is not None
    assert RecoverableAgent(print, store).store is store


def test_the_newest_that_verifies(store):
    """The newest checkpoint that verifies is loaded; damaged ones are skipped, and listed so."""
    for step in (1, 2, 3):
        store.save(checkpoint(step, state={"step": step}))
    assert store.load_latest("run").step_number == 3
    damage(store, "run", 3)
    assert store.load_latest("run").step_number == 2
    assert store.load_at_step("run", 3) is None
    assert store.load_at_step("run", 1).state == {"step": 1}
    listed = [(each.step_number, each.is_valid) for each in store.list("run")]
    assert listed == [(1, True), (2, True), (3, False)]


def test_of_two_of_one_step_the_later(store):
    """A step that was saved again is loaded as it was saved last."""
    for n in range(3):
        store.save(checkpoint(5, state={"n": n}))
    assert store.load_latest("run").state == store.load_at_step("run", 5).state == {"n": 2}
    assert len({each.checkpoint_id for each in store.list("run")}) == 3


def test_pruning_keeps_the_newest_that_verifies(store):
    """Pruning keeps as many as it is told, and always the newest that verifies."""
    for step in range(1, 6):
        store.save(checkpoint(step))
    assert store.prune("run", "all") == 0
    assert store.prune("run", "prune_old", keep=3) == 2
    damage(store, "run", 5)
    assert store.prune("run", "latest_only") == 1
    assert [each.step_number for each in store.list("run")] == [4, 5]
    assert store.load_latest("run").step_number == 4
    with pytest.raises(stepwise.ConfigurationError, match=r"keep=0 .* 1 or more"):
        store.prune("run", "prune_old", keep=0)


def test_deleting(store):
    """Deleting removes the checkpoints of one run and says how many there were."""
    for run in ("run", "run2"):
        store.save(checkpoint(run=run))
    assert store.delete("run") == 1
    assert store.delete("run") == 0
    assert store.load_latest("run") is None
    assert store.load_latest("run2") is not None


def test_threads_save_one_run(store):
    """Threads that save checkpoints of one run by hand wait for one another."""
    with ThreadPoolExecutor(4) as pool:
        saved = [Checkpoint("", "run", number % 5, {"n": number}) for number in range(40)]
        list(pool.map(store.save, saved))
    assert len({each.checkpoint_id for each in store.list("run")}) == 40


# -- the agent -----------------------------------------------------------------------------------


def run(agent, task="task", run_id="run"):
    return asyncio.run(agent.run_with_recovery(task, run_id))


def look(n):
    CALLS.append(n)
    return n * 10


CALLS: list = []


@pytest.fixture(autouse=True)
def forget_calls():
    CALLS.clear()


def failing_agent(fail_in=5, times=1, last=6):
    """An agent of six steps with a tool in each, which fails in one of them, after its tool."""
    left, steps = {"times": times}, []

    async def agent_fn(ctx):
        steps.append(ctx.step)
        ctx.state.setdefault("seen", []).append(ctx.step)
        ctx.messages.append({"step": ctx.step, "found": await ctx.tool(look, ctx.step)})
        if ctx.step == fail_in and left["times"]:
            left["times"] -= 1
            raise ConnectionError("lost")
        return f"done {ctx.task}" if ctx.step == last else None

    return agent_fn, steps


def test_an_undisturbed_agent(store):
    """An agent is called once per step until it returns something, which is the result, again."""
    agent_fn, steps = failing_agent(times=0)
    agent = RecoverableAgent(agent_fn, store)
    done = run(agent)
    assert steps == [1, 2, 3, 4, 5, 6]
    assert done["result"] == "done task"
    assert (done["recovered_from_step"], done["recovery_count"]) == (None, 0)
    assert (done["steps"], done["run_id"]) == (6, "run")
    assert done["state"] == {"seen": steps}
    assert [each["found"] for each in done["messages"]] == [10, 20, 30, 40, 50, 60]
    assert list(done["tool_results"].values()) == [10, 20, 30, 40, 50, 60]
    assert done["tool_results"]["look"] == 10
    assert [each.step_number for each in store.list("run")] == [3]
    assert run(agent) == done
    assert len(steps) == 6


@pytest.mark.parametrize("fail_in", [2, 5])
def test_an_agent_that_fails_once(store, fail_in):
    """A failure runs the steps since the last checkpoint again, or all, and never their tools."""
    agent_fn, steps = failing_agent(fail_in)
    agent = RecoverableAgent(agent_fn, store, checkpoint_every_n=3)
    done = run(agent)
    began = 3 if fail_in == 5 else 0
    assert steps == [*range(1, fail_in + 1), *range(began + 1, 7)]
    assert CALLS == [1, 2, 3, 4, 5, 6]
    assert done["recovered_from_step"] == began
    assert done["recovery_count"] == agent.recovery_count == 1
    assert done["state"] == {"seen": [1, 2, 3, 4, 5, 6]}
    assert [each["found"] for each in done["messages"]] == [10, 20, 30, 40, 50, 60]


def test_tools_at_once_that_captured_the_context(store):
    """Tools that are called at once may capture the context: their results are no change of it."""
    called = []

    async def agent_fn(ctx):
        async def double(n):
            await asyncio.sleep(0)
            CALLS.append(n)
            return ctx.step * n

        await asyncio.gather(*(ctx.tool(double, n) for n in (1, 2, 3)))
        called.append(ctx.step)
        if called == [1, 2]:
            raise ConnectionError("lost")
        return "done" if ctx.step == 2 else None

    done = run(RecoverableAgent(agent_fn, store))
    assert called == [1, 2, 1, 2]
    assert sorted(CALLS) == [1, 1, 2, 2, 3, 3]
    assert sorted(done["tool_results"].values()) == [1, 2, 2, 3, 4, 6]


@pytest.mark.parametrize("damaged", [(6,), (3, 6)])
def test_damaged_checkpoints(store, damaged):
    """Damaged checkpoints are passed over, down to the beginning, and no tool runs again."""
    agent_fn, _ = failing_agent(fail_in=8, last=9)
    agent = RecoverableAgent(agent_fn, store)
    agent.max_recoveries = 0
    with pytest.raises(ConnectionError):
        run(agent)
    for step in damaged:
        damage(store, "run", step)
    agent.max_recoveries = 3
    done = run(agent)
    assert done["recovered_from_step"] == (3 if damaged == (6,) else 0)
    assert list(range(1, 10)) == CALLS
    assert done["state"]["seen"] == list(range(1, 10))


def test_too_many_failures(store):
    """The exception propagates when it comes once too often; the next call goes on."""
    agent_fn, _ = failing_agent(times=3)
    agent = RecoverableAgent(agent_fn, store, max_recoveries=2)
    with pytest.raises(ConnectionError, match="lost"):
        run(agent)
    assert agent.recovery_count == 2
    assert stepwise.get_run("run", store=store.store).status == "failed"
    done = run(agent)
    assert done["recovered_from_step"] == 3
    assert done["recovery_count"] == 0
    assert CALLS == [1, 2, 3, 4, 5, 6]


def test_a_mistake_is_no_failure_to_recover_from(store):
    """What cannot be kept, tell calls apart or be called is raised at once, by its name."""
    steps = []

    def keeps_a_lock(ctx):
        steps.append(ctx.step)
        ctx.state["lock"] = threading.Lock()

    async def gives_an_iterator(ctx):
        steps.append("iterator")
        await ctx.tool(look, (each for each in "ab"))

    async def calls_a_text(ctx):
        steps.append("text")
        await ctx.tool("look", 1)

    for agent_fn, error, said in (
        (
            keeps_a_lock,
            stepwise.DigestError,
            r"state\['lock'\] of the checkpoint after step 3",
        ),
        (gives_an_iterator, stepwise.DigestError, "generator"),
        (calls_a_text, stepwise.ConfigurationError, r"write ctx\.tool\(search, 'word'\)"),
    ):
        with pytest.raises(error, match=said):
            run(RecoverableAgent(agent_fn, store), run_id=agent_fn.__name__)
    assert steps == [1, 2, 3, "iterator", "text"]


def test_another_task_under_the_same_id(store):
    """A run id belongs to one task; another one is refused, showing both."""
    agent = RecoverableAgent(failing_agent(times=0)[0], store)
    run(agent, "first")
    with pytest.raises(stepwise.RunConflictError, match=r"(?s)first.*second") as raised:
        run(agent, "second")
    assert "@workflow" not in str(raised.value)


class Asking:
    """An agent function with a configuration, and state that its steps change."""

    def __init__(self, model, worker=""):
        self.model, self.worker, self.asked = model, worker, 0

    def __call__(self, ctx):
        self.asked += 1
        return self.model


def test_an_agent_function_that_holds_another_value(store):
    """A run made for one model is refused to another by name, unless ``ignore`` leaves it out."""
    assert run(RecoverableAgent(Asking("gpt"), store))["result"] == "gpt"
    with pytest.raises(stepwise.RunConflictError, match=r"(?s)model of the agent.*ignore=.'model'"):
        run(RecoverableAgent(Asking("claude"), store))
    assert run(RecoverableAgent(Asking("claude"), store, ignore="model"))["result"] == "gpt"


def test_what_an_agent_function_changes_of_itself(store):
    """A counter that the steps change, a time or an ignored name keeps a run from nothing."""
    agent, fails = Asking("gpt", "one"), [True]

    def step(ctx):
        agent(ctx)
        if fails.pop():
            raise ValueError
        return "done"

    with pytest.raises(ValueError):
        run(RecoverableAgent(step, store, max_recoveries=0))
    fails.append(False)
    assert run(RecoverableAgent(step, store))["result"] == "done"
    method = Asking("gpt").__call__
    assert run(RecoverableAgent(method, store), run_id="another")["result"] == "gpt"
    assert run(RecoverableAgent(method, store), run_id="another")["result"] == "gpt"


def test_plain_functions_and_callable_objects(store):
    """A step function may be plain, and any object that can be called."""
    assert run(RecoverableAgent(lambda ctx: "x", store))["result"] == "x"
    assert run(RecoverableAgent(Asking("gpt"), store), run_id="2")["result"] == "gpt"


def test_a_tool_that_fails(store):
    """A tool without side effects, or to be retried, is called again; of others it is asked."""

    def send(text="hello"):
        CALLS.append("send")
        if len(CALLS) < 3:
            raise TimeoutError
        return text

    async def in_doubt(ctx):
        await ctx.tool(send)

    async def harmless(ctx):
        return await ctx.tool(send, side_effect=False)

    decorated = tool(side_effect=True, in_doubt="retry")(send)

    async def retried(ctx):
        return await ctx.tool(decorated, "hello")

    with pytest.raises(stepwise.StepInDoubtError):
        run(RecoverableAgent(in_doubt, store))
    assert CALLS == ["send"]
    for agent_fn in (harmless, retried):
        CALLS.clear()
        assert run(RecoverableAgent(agent_fn, store), run_id=agent_fn.__name__)["result"] == "hello"
        assert CALLS == ["send"] * 3


def test_a_subclass_overrides_the_classic_methods(store):
    """Subclasses decide when to save, and see each start at a checkpoint."""
    starts = []

    class Careful(RecoverableAgent):
        def _should_checkpoint(self, step):
            return step == 4

        async def _run_from_checkpoint(self, checkpoint, task):
            starts.append(checkpoint.step_number if checkpoint else None)
            return await super()._run_from_checkpoint(checkpoint, task)

    done = run(Careful(failing_agent()[0], store))
    assert done["recovered_from_step"] == 4
    assert starts == [None, 4]


def test_a_checkpoint_saved_by_hand(store):
    """An agent resumes at a checkpoint that was saved by hand."""
    agent_fn, steps = failing_agent(times=0)
    agent = RecoverableAgent(agent_fn, store)
    start = checkpoint(4, "hand", state={"seen": ["by hand"]})
    done = asyncio.run(agent._run_from_checkpoint(start, "task"))
    assert steps == [5, 6]
    assert done["state"]["seen"] == ["by hand", 5, 6]


def test_an_agent_beside_itself(store):
    """Two agents on one run: the second is told who executes it."""
    entered, told = asyncio.Event(), []

    async def agent_fn(ctx):
        entered.set()
        await asyncio.sleep(0)
        with pytest.raises(stepwise.RunOwnedError):
            await RecoverableAgent(agent_fn, store).run_with_recovery("task", "run")
        told.append(True)
        return "done"

    assert run(RecoverableAgent(agent_fn, store))["result"] == "done"
    assert told == [True]


class Channel:
    def __init__(self, name):
        self.name = name

    @tool(side_effect=True)
    def post(self, text):
        return f"{self.name}: {text}"


def test_the_tool_of_an_instance(store):
    """``ctx.tool`` calls a decorated method on its instance."""

    async def agent(ctx):
        return await ctx.tool(Channel("slack").post, "hello")

    done = run(RecoverableAgent(agent, store))
    assert done["result"] == "slack: hello"
    assert done["tool_results"] == {"post": "slack: hello"}


# -- killed --------------------------------------------------------------------------------------

KILLED = """
    import os
    from stepwise import CheckpointStore, RecoverableAgent

    def send(n):
        return doing(f"send({n})", n * n)

    async def agent_fn(ctx):
        here(f"step {ctx.step}")
        value = await ctx.tool(send, ctx.step, side_effect=False)
        ctx.messages.append({"value": value})
        here(f"end {ctx.step}")
        return len(ctx.messages) if ctx.step == 4 else None

    def run():
        store = CheckpointStore("disk:" + os.environ["STEPWISE_HOME"] + "/agents")
        return asyncio.run(RecoverableAgent(agent_fn, store, 2).run_with_recovery("task", "job"))
"""
PLACES = [
    (number, place)
    for number in range(1, 5)
    for place in ("step {}", "send({}) before", "send({}) after", "end {}")
]


@pytest.mark.parametrize(("number", "place"), some(PLACES, 8, "agent"))
def test_a_killed_agent(number, place):
    """Killed anywhere, the agent resumes at its checkpoint; no tool that returned runs again."""
    with lab_of(KILLED) as lab:
        assert lab.run(die_at=place.format(number)).died
        ended = lab.run()
        assert ended.code == 0, ended.text
        done = lab.result
        assert done["result"] == 4
        assert [each["value"] for each in done["messages"]] == [1, 4, 9, 16]
        assert done["recovered_from_step"] == (2 if number > 2 else 0)
        inside = number if place.endswith("after") else None
        assert lab.did == {f"send({n})": 2 if n == inside else 1 for n in range(1, 5)}


def test_a_forked_child_saves_no_checkpoint_of_its_parents_run(tmp_path):
    """A forked child of the process that executes a run gets ``RunBusyError`` for its save."""
    store = CheckpointStore(f"disk:{tmp_path / 'store'}")

    async def agent_fn(ctx):
        child = os.fork()
        if not child:
            code = 1
            try:
                store.save(checkpoint(9))
            except stepwise.RunBusyError:
                code = 7
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222 - it ends at once

    assert run(RecoverableAgent(agent_fn, store))["result"] == 7
    assert store.list("run") == []
