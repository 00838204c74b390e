"""Graphs of functions: what an execution does, and what of it survives."""

import asyncio
import functools
import itertools
import json
import os
import threading

import pytest
from killed import forget_process
from sweeping import some

import stepwise
from stepwise import tool
from stepwise.graph import (
    AgentRunner,
    CheckpointConfig,
    CheckpointManager,
    Edge,
    ExecutorType,
    FlexibleGraphExecutor,
    Graph,
    GraphCheckpoint,
    GraphExecutor,
    Node,
)
from stepwise.stores import Batch, Owner

CALLS: list = []


@pytest.fixture(autouse=True)
def forget_calls():
    CALLS.clear()


@pytest.fixture
def manager(tmp_path):
    return CheckpointManager(
        f"disk:{tmp_path / 'store'}", CheckpointConfig(retention_strategy="all")
    )


@pytest.fixture(params=[False, True], ids=["not recorded", "recorded"])
def either(request, manager):
    """No manager, and one."""
    return manager if request.param else None


def node(name, function=None, **options):
    """A node that notes that it was visited."""

    def visited(memory):
        CALLS.append(name)
        return function(memory) if function is not None else None

    return Node(name, visited, **options)


def edges(pairs):
    """Edges as ``"a b, b c"`` names them."""
    return [Edge(*pair.split()) for pair in pairs.split(", ")]


def chain(*nodes, **options):
    """A graph of nodes that follow one another."""
    ids = [each.id for each in nodes]
    return Graph(nodes, [Edge(*pair) for pair in itertools.pairwise(ids)], **options)


def run(graph, manager=None, data=None, session=None, *, goal="goal", runtime=None):
    executor = GraphExecutor(runtime, manager)
    return asyncio.run(executor.execute(graph, goal, data, session))


def failing(times, error=ConnectionError):
    """A node's function that fails so many times."""
    left = [times]

    def function(memory):
        memory["junk"] = True
        if left[0]:
            left[0] -= 1
            raise error("lost")
        del memory["junk"]
        return "well"

    return function


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


# -- what an execution does ------------------------------------------------------------------------


def test_a_chain(either):
    """Nodes are visited one after the other, and what they return and write is the output."""

    async def two(memory):
        memory.write("b", memory.read("a") + 1)
        return {"c": memory.goal, "d": memory.runtime}

    graph = chain(
        Node("one", lambda memory: memory.update(a=memory["x"] + 1)),
        Node("two", two),
        Node("three", lambda memory: [memory.node_id, memory.visit]),
    )
    result = run(graph, either, {"x": 1}, runtime="client")
    assert result.success
    assert result.status == "completed"
    assert result.path == ["one", "two", "three"]
    assert result.steps_executed == 3
    assert result.output == {
        "x": 1, "a": 2, "b": 3, "c": "goal", "d": "client", "three": ["three", 1]
    }  # fmt: skip
    assert result.is_clean_success
    assert result.execution_quality == "clean"
    assert result.recovered_from_step is None


def test_a_new_value_without_contents_is_written(manager):
    """What a node adds is there in the next one, also an object that looks like any other."""
    found = []
    graph = chain(
        node("one", lambda memory: memory.update(mark=object())),
        node("two", lambda memory: found.append("mark" in memory)),
    )
    run(graph, manager)
    assert found == [True]


def test_conditions_choose(manager):
    """Of the edges those are followed whose condition holds; without any, the branch ends."""
    graph = Graph(
        [node("a"), node("b"), node("c"), node("d")],
        [
            Edge("a", "b", when=lambda memory: memory["x"] > 0),
            Edge("a", "c", when=lambda memory: memory["x"] <= 0),
            Edge("b", "d", when=lambda memory: False),
        ],
    )
    assert run(graph, manager, {"x": 1}).path == ["a", "b"]
    assert run(graph, manager, {"x": 0}).path == ["a", "c"]


def test_branches_see_their_own_way(either):
    """Branches run side by side, each sees what was written on its way; a join sees it all."""
    started = asyncio.Event()

    async def slow(memory):
        await started.wait()
        return {"slow": sorted(memory), "both": "slow"}

    def fast(memory):
        started.set()
        memory.pop("gone")
        return {"fast": sorted(memory), "both": "fast"}

    graph = Graph(
        [
            Node("start", lambda memory: {"a": 1, "gone": 1}),
            Node("slow", slow),
            Node("fast", fast),
            Node("later", lambda memory: {"later": sorted(memory)}),
            Node("join", lambda memory: {"join": sorted(memory)}, join=True),
        ],
        edges("start slow, start fast, fast later, slow join, later join"),
    )
    result = run(graph, either)
    assert result.path == ["start", "slow", "fast", "later", "join"]
    assert result.output["slow"] == ["a", "gone"]
    assert result.output["fast"] == ["a"]
    assert result.output["later"] == ["a", "both", "fast"]
    assert result.output["join"] == ["a", "both", "fast", "later", "slow"]
    assert result.output["both"] == "fast"  # of two at the same time: by the order of the graph


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_join_does_not_ask_who_came_first(manager, first):
    """Whichever branch arrives first: of two that wrote a key, the later in the graph wins."""
    arrived = asyncio.Event()

    async def visit(memory):
        if memory.node_id != first:
            await arrived.wait()
        return {"both": memory.node_id}

    async def watch(memory):
        arrived.set()

    graph = Graph(
        [
            Node("start", lambda memory: {"x": 1}),
            Node("a", visit),
            Node("b", visit),
            Node(f"after {first}", watch),
            Node("end", lambda memory: {"end": memory["both"]}, join=True),
        ],
        [
            *(Edge("start", name) for name in "ab"),
            Edge(first, f"after {first}"),
            *(Edge(name, "end") for name in "ab"),
        ],
    )
    assert run(graph, manager).output["end"] == "b"


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_join_keeps_the_list_that_one_branch_changed(manager, order):
    """A list that one branch changed in place is not set back by a branch that left it alone."""
    branches = {
        "a": lambda memory: memory["notes"].append("noted"),
        "b": lambda memory: {"seen": len(memory["notes"])},
    }
    graph = Graph(
        [
            Node("start", lambda memory: {"notes": ["begun"]}),
            *[Node(name, branches[name]) for name in order],
            Node("end", lambda memory: {"end": list(memory["notes"])}, join=True),
        ],
        [Edge("start", name) for name in order] + [Edge(name, "end") for name in order],
    )
    assert run(graph, manager).output["end"] == ["begun", "noted"]


def test_a_join_waits_for_all_that_can_come(manager):
    """A join is visited once, after a branch of any length; one that a branch avoids, too."""
    graph = Graph(
        [node("a"), node("b"), node("c"), node("d"), node("e"), node("join", join=True), node("z")],
        [
            *edges("a b, a c, a e, c d, b join, d join"),
            Edge("e", "join", when=lambda memory: False),
            Edge("join", "z"),
        ],
    )
    assert run(graph, manager).path == ["a", "b", "c", "e", "d", "join", "z"]
    assert CALLS.count("join") == 1


def test_joins_that_wait_for_one_another():
    """Two joins of which each can reach the other do not wait for ever."""
    graph = Graph(
        [node("a"), node("p", join=True), node("q", join=True)],
        [
            *edges("a p, a q"),
            Edge("p", "q", when=lambda memory: memory.visit < 2),
            Edge("q", "p", when=lambda memory: False),
        ],
    )
    assert run(graph).path == ["a", "p", "q"]


def test_loops_count_visits(manager):
    """A node knows how often it was visited, and an endless loop ends with an error."""

    def again(memory):
        return memory["n"] < 3

    graph = Graph(
        [node("work", lambda memory: {"n": memory.visit}), node("end")],
        [Edge("work", "work", when=again), Edge("work", "end", when=lambda m: not again(m))],
    )
    assert run(graph, manager).path == ["work", "work", "work", "end"]
    endless = Graph([node("a")], edges("a a"), max_steps=5)
    result = run(endless, manager)
    assert not result.success
    assert "max_steps" in result.error
    assert result.path == ["a"] * 5


@pytest.mark.parametrize("often", ["x", "y"])
def test_a_join_counts_the_visits_of_the_longest_way(manager, often):
    """Of branches that visited a node more and less often, the highest count goes on."""

    def n(memory):
        if memory.get("joined"):
            return {"visit": memory.visit}
        return {"again": memory.visit < (10 if memory["way"] == often else 2)}

    graph = Graph(
        [
            Node("start", lambda memory: {"x": 1}),
            *[Node(name, lambda memory: {"way": memory.node_id}) for name in "xy"],
            Node("n", n),
            Node("join", lambda memory: {"joined": True}, join=True),
        ],
        [
            *[Edge("start", name) for name in "xy"],
            *[Edge(name, "n") for name in "xy"],
            Edge("n", "n", when=lambda memory: memory.get("again") and not memory.get("joined")),
            Edge(
                "n",
                "join",
                when=lambda memory: not (memory.get("again") or memory.get("joined")),
            ),
            Edge("join", "n"),
        ],
    )
    assert run(graph, manager).output["visit"] == 11


def test_tokens_and_latency_are_summed(manager):
    """What the nodes say that they spent is in the result, in failed attempts, too."""

    def spend(memory):
        memory.tokens += 10
        if memory.node_id == "b" and memory.attempt < 3:
            raise ConnectionError

    result = run(chain(Node("a", spend), Node("b", spend, retries=2, backoff=0)), manager)
    assert result.total_tokens == 40
    assert result.total_latency_ms >= 0


# -- failures --------------------------------------------------------------------------------------


def test_retries_roll_back(either):
    """A failed attempt is tried again, and leaves nothing in the memory."""
    graph = chain(node("a", failing(2), retries=2, backoff=0), node("b"))
    result = run(graph, either)
    assert result.output == {"a": "well"}
    assert (result.total_retries, result.retry_details) == (2, {"a": 2})
    assert result.is_degraded_success
    assert result.nodes_with_failures == ["a"]
    assert result.had_partial_failures


def test_retries_roll_back_what_was_changed_inside(either):
    """What a failed attempt did inside a list of the memory is undone for the next one."""
    fails = failing(1)

    def note(memory):
        memory["notes"].append("noted")
        return fails(memory)

    graph = chain(
        Node("start", lambda memory: {"notes": ["begun"]}),
        Node("note", note, retries=1, backoff=0),
    )
    output = run(graph, either).output
    assert output["notes"] == ["begun", "noted"]


def test_a_failure_is_in_the_result(manager):
    """A node that fails for good ends the execution; the next call runs only that node again.

    It gets all its attempts again.
    """
    graph = chain(node("a"), node("b", failing(3), retries=1, backoff=0), node("c"))
    result = run(graph, manager)
    assert not result.success
    assert result.status == "failed"
    assert result.error == "ConnectionError: lost"
    assert isinstance(result.exception, ConnectionError)
    assert result.execution_quality == "failed"
    assert result.path == ["a"]
    assert stepwise.get_run(result.run_id, store=manager.storage).status == "failed"
    again = run(graph, manager)
    assert again.success
    assert again.path == ["a", "b", "c"]
    assert ["a", *"bbbb", "c"] == CALLS


def test_attempts_of_an_earlier_process_count(manager):
    """A node that was cut off between its attempts has as many left as it had."""

    def fails(memory):
        if CALLS.count("a") == 2:
            raise KeyboardInterrupt
        raise ConnectionError

    graph = chain(node("a", fails, retries=3, backoff=0))
    with pytest.raises(KeyboardInterrupt):
        run(graph, manager)
    assert not run(graph, manager).success
    assert CALLS.count("a") == 5  # the second one was cut off, and is made anew


def test_only_what_is_worth_it_is_tried_again():
    """``retry_on`` says which exceptions are worth another attempt."""
    graph = chain(node("a", failing(1), retries=5, retry_on=OSError))
    assert run(graph).success  # a ConnectionError is one
    graph = chain(node("a", failing(1), retries=5, retry_on=KeyError))
    assert run(graph).error == "ConnectionError: lost"


def test_a_failure_edge(either):
    """After the last attempt the failure edge is followed, and the memory says why."""
    graph = Graph(
        [node("a", failing(9), retries=1, backoff=0), node("never"), node("mend")],
        [Edge("a", "never"), Edge("a", "mend", on_failure=True)],
    )
    result = run(graph, either)
    assert result.is_degraded_success
    assert result.path == ["a", "mend"]
    assert result.output == {"failure": {"node": "a", "error": "ConnectionError: lost"}}
    assert CALLS == ["a", "a", "mend"]


def test_one_failed_branch(either):
    """When a branch fails the others end; called again, only the failed one runs again."""
    graph = Graph(
        [node("a"), node("b"), node("c", failing(1)), node("d"), node("join", join=True)],
        edges("a b, a c, b d, d join, c join"),
    )
    result = run(graph, either)
    assert result.error == "ConnectionError: lost"
    assert sorted(CALLS) == ["a", "b", "c", "d"]
    again = run(graph, either, None, result.session_state)
    assert again.success
    assert again.output == {"c": "well"}
    assert again.path == ["a", "b", "c", "d", "join"]
    assert sorted(CALLS) == ["a", "b", "c", "c", "d", "join"]


def test_a_stopped_branch_is_not_lost(manager):
    """While a branch stops the run with a side effect in doubt, others end; then it goes on."""
    may_end = asyncio.Event()

    def doubts(memory):
        try:
            return crashes("x")
        finally:
            if memory.attempt == 2:
                may_end.set()

    async def ends(memory):
        await may_end.wait()
        for _ in range(5):
            await asyncio.sleep(0)

    graph = Graph(
        [
            node("a"),
            node("doubts", doubts, retries=1, backoff=0),
            Node("ends", ends),
            node("join", join=True),
        ],
        edges("a doubts, a ends, doubts join, ends join"),
    )
    with pytest.raises(stepwise.StepInDoubtError):
        run(graph, manager)
    [pending] = stepwise.runs(store=manager.storage)
    assert [step.name for step in pending.steps if step.name == "ends"] == ["ends"]
    pending.resolve("crashes", landed="there")
    done = run(graph, manager)
    assert done.path == ["a", "doubts", "ends", "join"]
    assert done.output == {"doubts": "there"}


def test_a_condition_that_raises(manager):
    """A condition that raises fails the run, and mended it is asked again; its node is done."""

    def condition(memory):
        return memory["missing"]

    graph = Graph([node("a"), node("b")], [Edge("a", "b", when=condition)])
    assert run(graph, manager).error == "KeyError: 'missing'"

    def condition(memory):
        return True

    graph = Graph([node("a"), node("b")], [Edge("a", "b", when=condition)])
    assert run(graph, manager).success
    assert CALLS == ["a", "b"]


# -- tools in nodes --------------------------------------------------------------------------------


@tool(side_effect=True)
def send(text):
    CALLS.append(f"send {text}")
    return f"sent {text}"


@tool(side_effect=True)
def crashes(text):
    CALLS.append(f"crashes {text}")
    raise TimeoutError(text)


@tool
def fetch():
    CALLS.append("fetch")
    if CALLS.count("fetch") < 2:
        raise TimeoutError
    return "page"


def test_tools_keep_their_results(manager):
    """A tool that returned in a failed attempt is not called again in the next one."""
    fails = failing(2)

    def function(memory):
        memory["sent"] = send("hello")
        fails(memory)

    result = run(chain(node("a", function, retries=1, backoff=0)), manager)
    assert not result.success
    result = run(chain(node("a", function, retries=1, backoff=0)), manager)
    assert result.output == {"sent": "sent hello"}
    assert CALLS == ["a", "send hello", "a", "a"]


def test_a_harmless_tool_is_tried_again(manager):
    """A tool without side effects that failed a node is called again in the next attempt."""
    graph = chain(node("a", lambda memory: fetch(), retries=1, backoff=0))
    assert run(graph, manager).output == {"a": "page"}


def test_a_side_effect_in_doubt(manager):
    """A side effect that raised is not repeated: the execution stops, and asks."""
    graph = chain(node("a", lambda memory: crashes("x"), retries=3, backoff=0))
    with pytest.raises(stepwise.StepInDoubtError):
        run(graph, manager)
    assert CALLS == ["a", "crashes x", "a"]
    [pending] = stepwise.runs(store=manager.storage)
    pending.resolve("crashes", landed="there")
    assert run(graph, manager).output == {"a": "there"}
    assert CALLS.count("crashes x") == 1


def test_tools_of_branches_are_kept_apart(manager):
    """Equal calls of branches that are cut off are answered each in its own branch."""
    fails = failing(1)

    def left(memory):
        memory["left"] = send("same")
        fails(memory)

    graph = Graph(
        [node("a"), node("left", left), node("right", lambda memory: send("same"))],
        edges("a left, a right"),
    )
    assert not run(graph, manager).success
    assert run(graph, manager).success
    assert CALLS.count("send same") == 2


@tool(side_effect=True)
def draw():
    CALLS.append("drawn")
    return CALLS.count("drawn")


def test_a_branch_does_not_get_what_another_one_was_given(manager):
    """A tool that one branch called answers no equal call of another branch, which comes first."""
    drawn, again = asyncio.Event(), asyncio.Event()
    attempts = [drawn, again]

    async def left(memory):
        if attempts[0] is again:
            await again.wait()
        memory["left"] = draw()
        attempts[0].set()
        if attempts[0] is drawn:
            raise ConnectionError

    async def right(memory):
        if attempts[0] is drawn:
            await drawn.wait()
            raise ConnectionError
        memory["right"] = draw()
        again.set()

    graph = Graph(
        [node("a"), Node("left", left), Node("right", right)],
        edges("a left, a right"),
    )
    assert not run(graph, manager).success
    attempts.pop(0)
    output = run(graph, manager).output
    assert (output["left"], output["right"]) == (1, 2)
    assert CALLS.count("drawn") == 2


# -- pauses ----------------------------------------------------------------------------------------


def asking():
    ask = node("ask", lambda memory: {"question": "well?"}, pause=True)
    end = node("end", lambda memory: memory["answer"])
    return Graph(
        [node("a"), ask, end, node("no")],
        [
            Edge("a", "ask"),
            Edge("ask", "end", when=lambda memory: memory["answer"] == "yes"),
            Edge("ask", "no", when=lambda memory: memory["answer"] != "yes"),
        ],
    )


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_pause(either, answer):
    """An execution pauses after its node, and goes on with the human's answer."""
    paused = run(asking(), either, {"x": 1})
    assert paused.status == "paused"
    assert paused.success
    assert paused.paused_at == "ask"
    assert paused.output == {"x": 1, "question": "well?"}
    json.dumps(paused.session_state)
    done = run(asking(), either, {"answer": answer}, paused.session_state)
    assert done.status == "completed"
    assert done.path == ["a", "ask", "end" if answer == "yes" else "no"]
    assert done.path == CALLS


def test_a_pause_is_kept(manager):
    """Called again without an answer it is still paused, and nothing runs again."""
    paused = run(asking(), manager, {"x": 1})
    again = run(asking(), manager, {"x": 1})
    assert again.paused_at == "ask"
    assert again.session_state == paused.session_state
    assert CALLS == ["a", "ask"]


def test_an_answer_is_given_once(manager, capsys, monkeypatch):
    """What was answered counts; another answer to the same pause is told that it came late."""
    monkeypatch.setenv("STEPWISE_QUIET", "")
    graph = asking()
    broken = Graph([*graph.nodes, node("fail", failing(1))], [*graph.edges, Edge("end", "fail")])
    paused = run(broken, manager)
    assert run(broken, manager, {"answer": "yes"}, paused.session_state).error
    done = run(broken, manager, {"answer": "no"}, paused.session_state)
    assert done.output["answer"] == "yes"
    assert "answered before" in capsys.readouterr().err
    assert CALLS == ["a", "ask", "end", "fail", "fail"]


def test_pauses_of_two_branches(manager):
    """Two branches that pause are answered one after the other."""
    graph = Graph(
        [node("a"), Node("p", pause=True), Node("q", pause=True), node("end", join=True)],
        edges("a p, a q, p end, q end"),
    )
    first = run(graph, manager)
    second = run(graph, manager, {first.paused_at: 1}, first.session_state)
    assert {first.paused_at, second.paused_at} == {"p", "q"}
    done = run(graph, manager, {second.paused_at: 1}, second.session_state)
    assert done.output == {"p": 1, "q": 1}


# -- which run -------------------------------------------------------------------------------------


def test_without_a_manager_nothing_is_written(home, tmp_path):
    """Without a checkpoint manager, or with one that is not enabled, no file is made."""
    clients = chain(node("a", lambda memory: {"client": threading.Lock()}), node("b"))
    before = files(tmp_path)
    assert run(clients).success
    disabled = CheckpointManager(f"disk:{tmp_path}/store", CheckpointConfig(enabled=False))
    assert run(clients, disabled).success
    assert disabled.save_checkpoint("run", "a", {}) is None
    assert files(tmp_path) == before


def test_a_completed_run_is_recalled(manager):
    """Under the same id a completed execution gives what it gave; other input is refused."""
    graph = chain(node("a"), node("b"))
    first = run(graph, manager, {"x": 1}, {"run_id": "job"})
    assert run(graph, manager, {"x": 1}, {"run_id": "job"}) == first
    assert CALLS == ["a", "b"]
    with pytest.raises(stepwise.RunConflictError, match=r"(?s)'x': 1.*'x': 2"):
        run(graph, manager, {"x": 2}, {"run_id": "job"})


def test_called_again_after_the_end(manager):
    """Without an id of its own, an execution after a completed one is a new run."""
    graph = chain(node("a"))
    assert run(graph, manager).run_id != run(graph, manager).run_id
    assert CALLS == ["a", "a"]


class Asker:
    """An agent whose method is a node; what it asks is counted in it."""

    def __init__(self, model, **more):
        self.model, self.asked, self.history = model, 0, []
        vars(self).update(more)

    def ask(self, memory):
        self.asked += 1
        self.history.append(memory["x"])
        return {"answer": self.model}


class Team:
    """Agents, the last of which answers."""

    def __init__(self, agents):
        self.agents = agents

    def ask(self, memory):
        return self.agents[-1].ask(memory)


def capturing(model):
    return lambda memory: {"answer": model}


def with_default(model):
    def ask(memory, model=model):
        return {"answer": model}

    return ask


def put_into(model):
    def ask(model, memory):
        return {"answer": model}

    return functools.partial(ask, model)


def calling(model):
    def gpt():
        return "gpt"

    def claude():
        return "claude"

    function = {"gpt": gpt, "claude": claude}[model]
    return lambda memory: {"answer": function()}


def captured_step(model):
    @stepwise.step
    def ask(memory):
        return {"answer": model}

    return lambda memory: ask(dict(memory))


class Client:
    """A client, which has no digest."""

    def __init__(self, url):
        self.url, self.lock = url, threading.Lock()


def captured_client(model):
    class Model:
        client = None

    held = Model()
    held.client = Client(model)
    return lambda memory: {"answer": held.client.url}


def test_a_graph_goes_on_with_its_run_when_the_first_of_its_name_is_gone(manager):
    """Once the other graph's run is deleted, a graph still resumes the run of its own."""

    def made(model, fails):
        return chain(Node("ask", capturing(model)), node("b", failing(fails)))

    other = run(made("gpt", 0), manager, {"x": 1})
    first = run(made("claude", 1), manager, {"x": 1})
    stepwise.get_run(other.run_id, store=manager.storage).delete()
    again = run(made("claude", 0), manager, {"x": 1})
    assert (again.run_id, again.success) == (first.run_id, True)


@pytest.mark.parametrize(
    "make",
    [
        *(capturing, with_default, put_into, calling, captured_step, captured_client),
        lambda model: Asker(model).ask,
    ],
)
def test_graphs_whose_nodes_hold_other_values_are_other_runs(manager, make):
    """A graph made for one model does not answer for another, and each finds its own run again."""
    stepwise.identity(Client, fields=["url"])
    answers, ids = [], []
    for model in ("gpt", "claude", "gpt", "claude"):
        forget_process()
        result = run(chain(Node("ask", make(model))), manager, {"x": 1})
        answers.append(result.output["answer"])
        ids.append(result.run_id)
    assert answers == ["gpt", "claude", "gpt", "claude"]
    assert ids[:2] == ids[2:]


def test_a_persona_inside_an_agent_of_a_node_tells_executions_apart(manager):
    """What an agent inside the agent of a node is configured with belongs to the run, too."""
    answers = []
    for persona in ("ann", "bob", "ann"):
        forget_process()
        team = Team([Asker("chair"), Asker(persona, lock=threading.Lock())])
        result = run(chain(Node("ask", team.ask)), manager, {"x": 1})
        answers.append((result.run_id, result.output["answer"]))
    assert [answer for _, answer in answers] == ["ann", "bob", "ann"]
    assert answers[0] == answers[2]


def test_what_a_node_does_to_its_agent_tells_no_executions_apart(manager):
    """A counter and a history that nodes change are state: the failed execution resumes."""
    agent, tell = Asker("gpt"), node("tell", failing(1))
    first = run(chain(Node("ask", agent.ask), tell), manager, {"x": 1})
    again = run(chain(Node("ask", agent.ask), tell), manager, {"x": 1})
    assert (again.run_id, first.success, again.success) == (first.run_id, False, True)
    assert agent.asked == 1


def test_a_run_id_belongs_to_what_the_nodes_held(manager):
    """Under a run id, a graph whose node holds another value is refused, and the value is named."""
    run(chain(Node("ask", capturing("gpt"))), manager, {"x": 1}, {"run_id": "job"})
    with pytest.raises(stepwise.RunConflictError, match="model of node 'ask'"):
        run(chain(Node("ask", capturing("claude"))), manager, {"x": 1}, {"run_id": "job"})


def test_values_that_a_graph_ignores_tell_nothing_apart(manager):
    """A name in ``ignore=`` may differ between an execution and the one that resumes it."""
    ids = []
    for worker in ("one", "two"):
        forget_process()
        nodes = [Node("ask", Asker("gpt", worker=worker).ask)]
        ids.append(run(Graph(nodes, ignore=("worker",)), manager, {"x": 1}).run_id)
    assert ids[0] == ids[1]


def test_a_node_more_is_the_same_run(manager):
    """A node that is added, and holds values of its own, leaves the unfinished run as it is."""
    first = run(chain(Node("ask", capturing("gpt")), node("b", failing(1))), manager, {"x": 1})
    more = node("b", failing(0)), Node("c", capturing("claude"))
    again = run(chain(Node("ask", capturing("gpt")), *more), manager, {"x": 1})
    assert (again.run_id, again.success) == (first.run_id, True)


def test_a_run_beside_itself(manager):
    """Two executions of one run: the second is told who executes it."""

    async def main():
        executor = GraphExecutor(checkpoint_manager=manager)

        async def twice(memory):
            with pytest.raises(stepwise.RunOwnedError):
                await executor.execute(graph, "goal", {}, {"run_id": "job"})

        graph = chain(Node("a", twice))
        return await executor.execute(graph, "goal", {}, {"run_id": "job"})

    assert asyncio.run(main()).success


def test_a_cancelled_execution(manager):
    """An execution whose caller is cancelled goes on later; what was done stays done."""
    entered, once = asyncio.Event(), []

    async def waits(memory):
        if not once:
            once.append(True)
            entered.set()
            await asyncio.Event().wait()
        return "well"

    graph = chain(node("a"), node("b", waits), node("c"))

    async def cancelled():
        execution = GraphExecutor(None, manager).execute(graph, "goal")
        task = asyncio.get_running_loop().create_task(execution)
        await entered.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert run(graph, manager).output == {"b": "well"}
    assert CALLS == ["a", "b", "b", "c"]


def test_a_branch_that_is_cancelled_before_it_begins(manager):
    """An execution does not wait for a branch whose task was cancelled before it began."""

    async def cancels(memory):
        for task in asyncio.all_tasks():
            if task.get_name() == "b":
                task.cancel()

    nodes = [node("start"), node("a", cancels), node("b")]
    graph = Graph(nodes, edges("start a, start b"))
    with pytest.raises(asyncio.CancelledError):
        run(graph, manager)
    assert CALLS == ["start", "a"]
    assert run(graph, manager).success
    assert CALLS == ["start", "a", "b"]


def test_a_changed_graph_is_noticed(manager, capsys, monkeypatch):
    """A graph that changed is noticed, and goes on: what is done stays done."""
    monkeypatch.setenv("STEPWISE_QUIET", "")
    assert run(chain(node("a"), node("b", failing(1))), manager).error
    assert "the graph has changed" not in capsys.readouterr().err
    assert run(chain(node("a"), node("b", failing(0)), node("c")), manager).path == [
        "a", "b", "c"
    ]  # fmt: skip
    assert "the graph has changed" in capsys.readouterr().err
    assert CALLS == ["a", "b", "b", "c"]


def test_a_node_that_is_gone(manager):
    """A run that is to resume at a node that is gone says which."""
    assert run(chain(node("a"), node("b", failing(1)), name="g"), manager).error
    result = run(chain(node("a"), node("c"), name="g"), manager)
    assert isinstance(result.exception, stepwise.CodeChangedError)
    assert "'b'" in result.error


def test_what_cannot_be_recorded(manager):
    """A node that writes what cannot be recorded fails, and the error says what it is."""
    result = run(chain(node("a", lambda memory: {"lock": threading.Lock()})), manager)
    assert isinstance(result.exception, stepwise.NotRecordableError)
    assert "lock" in result.error


def test_the_same_missing_checkpoint_is_told_once(manager, capsys, monkeypatch):
    """What keeps a run from its checkpoints is told after the first node, not after each."""
    monkeypatch.delenv("STEPWISE_QUIET")

    def refuse(*_, **__):
        raise stepwise.NotRecordableError("it holds a lock", path="lock", type_name="lock")

    monkeypatch.setattr(manager, "_save", refuse)
    assert run(chain(node("a"), node("b"), node("c")), manager).success
    told = [line for line in capsys.readouterr().err.splitlines() if "no checkpoint" in line]
    assert [line.partition(": no ")[2] for line in told] == [
        "checkpoint after 'a': it holds a lock"
    ]


def test_no_automatic_recovery(tmp_path):
    """Without ``auto_recovery`` an unfinished run resumes only when it is told to."""
    manager = CheckpointManager(tmp_path / "store", CheckpointConfig(auto_recovery=False))
    graph = chain(node("a"), node("b", failing(1)))
    failed = run(graph, manager)
    with pytest.raises(stepwise.ConfigurationError, match="auto_recovery"):
        run(graph, manager)
    assert run(graph, manager, None, failed.session_state).success
    assert CALLS == ["a", "b", "b"]


def test_a_session_of_another_store(tmp_path, manager):
    """With a session state an execution resumes in a store that does not know the run."""
    graph = chain(node("a"), node("b", failing(1)))
    failed = run(graph, manager)
    other = CheckpointManager(tmp_path / "other")
    done = run(graph, other, None, json.loads(json.dumps(failed.session_state)))
    assert done.path == ["a", "b"]
    assert CALLS == ["a", "b", "b"]


def test_a_memory_is_a_session(manager):
    """A session state that is only a memory is what a new execution begins with."""
    graph = chain(node("a", lambda memory: memory["old"]))
    assert run(graph, manager, {"x": 1}, {"memory": {"old": 2}}).output == {
        "old": 2,
        "x": 1,
        "a": 2,
    }


# -- damage ----------------------------------------------------------------------------------------


def rewrite(manager, run_id, name, data):
    store = manager.storage
    epoch = store.acquire(run_id, Owner(os.getpid(), "here", 0.0))
    store.write(run_id, epoch, Batch(put={name: data}))
    store.release(run_id, epoch)


def test_checkpoints_are_where_it_goes_on(manager):
    """An execution resumes at its newest intact checkpoint, else at the beginning."""
    nodes = [node(each) for each in "abcd"]
    for damaged, recovered in ((0, 4), (1, 3), (3, 1), (4, 0)):
        CALLS.clear()
        run_id = f"damaged {damaged}"
        graph = chain(*nodes, node("e", failing(1)))
        assert run(graph, manager, {"x": 1}, {"run_id": run_id}).error
        assert [each.step_number for each in manager.list_checkpoints(run_id)] == [1, 2, 3, 4]
        names = manager.storage.names(run_id, "agent/")
        for name in names[len(names) - damaged :]:
            data = bytearray(manager.storage.get(run_id, name))
            data[-40] ^= 1
            rewrite(manager, run_id, name, bytes(data))
        done = run(graph, manager, {"x": 1}, {"run_id": run_id})
        assert done.recovered_from_step == recovered
        assert done.output == {"x": 1, "e": "well"}
        assert [*"abcd", "e", "e"] == CALLS


def test_every_bit_counts(tmp_path):
    """Any flipped bit of a checkpoint is noticed, and the one before is used."""
    manager = CheckpointManager(tmp_path / "s", CheckpointConfig(retention_strategy="all"))
    for step in (1, 2):
        manager.save_checkpoint("run", f"n{step}", {"n": step}, metadata={"step_number": step})
    [_, name] = manager.storage.names("run", "agent/")
    intact = manager.storage.get("run", name)
    for position in some(range(len(intact) * 8), 80, "graph checkpoint"):
        data = bytearray(intact)
        data[position // 8] ^= 1 << (position % 8)
        rewrite(manager, "run", name, bytes(data))
        assert manager.restore_from_checkpoint("run") == ({"n": 1}, "n1"), position
    rewrite(manager, "run", name, intact)
    assert manager.restore_from_checkpoint("run") == ({"n": 2}, "n2")


# -- the manager -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["a/b", "../up", "run 1", "\u8fd0\u884c", "%", "x" * 300])
def test_a_checkpoint_comes_back(manager, run_id):
    """Saved by hand, a checkpoint is listed, restored and deleted; any text is an id."""
    memory = {"list": [1]}
    first = manager.save_checkpoint(run_id, "a/..", memory, metadata={"next_node_id": "b"})
    memory["list"].append(2)
    more = {"note": "of mine"}
    second = manager.save_checkpoint(run_id, "b", memory, ExecutorType.FLEXIBLE, more)
    assert first != second
    assert manager.restore_from_checkpoint(run_id, first) == ({"list": [1]}, "b")
    assert manager.restore_from_checkpoint(run_id) == ({"list": [1, 2]}, "b")
    assert manager.restore_from_checkpoint(run_id, "none") == (None, None)
    assert [each.id for each in manager.list_checkpoints(run_id)] == [first, second]
    assert manager.get_checkpoint(run_id).current_step_id == "b"
    assert manager.get_checkpoint(run_id).context == more
    assert manager.get_checkpoint(run_id, first).current_node_id == "a/.."
    assert manager.delete_checkpoints(run_id) == 2
    assert manager.restore_from_checkpoint(run_id) == (None, None)


@pytest.mark.parametrize(
    ("strategy", "kept"), [("latest_only", [5]), ("prune_old", [4, 5]), ("all", [1, 2, 3, 4, 5])]
)
def test_retention(tmp_path, strategy, kept):
    """As many checkpoints are kept as the configuration says, by hand and by an executor."""
    config = CheckpointConfig(retention_strategy=strategy, max_checkpoints_per_run=2)
    manager = CheckpointManager(tmp_path / "s", config)
    for step in range(1, 6):
        manager.save_checkpoint("run", "n", {}, metadata={"step_number": step})
    assert [each.step_number for each in manager.list_checkpoints("run")] == kept
    result = run(chain(*(node(each) for each in "abcde")), manager)
    assert [each.step_number for each in manager.list_checkpoints(result.run_id)] == kept


def test_every_n_nodes(tmp_path):
    """A checkpoint after every n nodes is enough: each node is recorded all the same."""
    config = CheckpointConfig(save_frequency="every_n_nodes", n_nodes=3, retention_strategy="all")
    manager = CheckpointManager(tmp_path / "s", config)
    assert [n for n in range(1, 10) if manager.should_checkpoint(n)] == [3, 6, 9]
    graph = chain(*(node(each) for each in "abcde"), node("f", failing(1)))
    failed = run(graph, manager)
    assert [each.execution_path for each in manager.list_checkpoints(failed.run_id)] == [
        ["a", "b", "c"]
    ]
    assert run(graph, manager).recovered_from_step == 3
    assert [*"abcdef", "f"] == CALLS


def test_a_checkpoint_is_like_a_model():
    """A checkpoint is written to a dictionary or JSON and read from it, and checks what it gets."""
    kept = GraphCheckpoint("id", "run", current_node_id="a", memory_snapshot={"x": [1]})
    assert GraphCheckpoint.model_validate(kept.model_dump()) == kept
    assert GraphCheckpoint.model_validate(kept) == kept
    assert GraphCheckpoint.model_validate_json(kept.model_dump_json()) == kept
    assert kept.model_dump()["executor_type"] is ExecutorType.GRAPH
    assert kept.model_dump(mode="json")["executor_type"] == "graph"
    assert kept.to_metadata()["current_node_id"] == "a"
    assert "memory_snapshot" not in kept.to_metadata()
    assert kept.created_at.endswith("+00:00")
    assert kept.to_session_state()["memory"] == {"x": [1]}
    for wrong in ({"run_id": "r"}, {**kept.model_dump(), "step_number": "3"}):
        with pytest.raises(stepwise.ConfigurationError, match="checkpoint"):
            GraphCheckpoint.model_validate(wrong)
    with pytest.raises(stepwise.ConfigurationError, match="ExecutorType"):
        GraphCheckpoint.model_validate({**kept.model_dump(), "executor_type": "?"})


def test_a_checkpoint_is_a_session(manager):
    """An execution goes on with the session state of one of its checkpoints."""
    graph = chain(node("a"), node("b", failing(1)), node("c"))
    failed = run(graph, manager)
    [kept] = manager.list_checkpoints(failed.run_id)
    assert (kept.current_node_id, kept.next_node_id) == ("a", "b")
    assert run(graph, None, None, kept.to_session_state()).path == ["a", "b", "c"]
    assert CALLS == ["a", "b", "b", "c"]


def test_options_that_cannot_be():
    """Options, graphs and nodes that make no sense are refused where they are given."""
    wrong = [
        lambda: CheckpointConfig(save_frequency="sometimes"),
        lambda: CheckpointConfig(retention_strategy="none"),
        lambda: CheckpointConfig(n_nodes=0),
        lambda: CheckpointConfig(max_checkpoints_per_run=0),
        lambda: Node(""),
        lambda: Node("a", "function"),
        lambda: Node("a", retries=-1),
        lambda: Graph([]),
        lambda: Graph([Node("a"), Node("a")]),
        lambda: Graph([Node("a")], edges("a b")),
        lambda: Graph([Node("a")], entry="b"),
        lambda: Graph([Node("a")], max_steps=0),
    ]
    for make in wrong:
        with pytest.raises(stepwise.ConfigurationError):
            make()


# -- plans -----------------------------------------------------------------------------------------


def execute_plan(steps, manager=None, data=None, session=None, **options):
    executor = FlexibleGraphExecutor(None, manager, **options)
    return asyncio.run(executor.execute(steps, "goal", data, session))


def test_a_plan(either):
    """The judge accepts steps, has them done again, or has the planner plan anew."""
    verdicts = iter(["accept", "retry", "accept", "replan", "accept", "accept"])
    plans = iter([["a", "b", "c"], ["d", "c"]])
    result = execute_plan(
        [node(each) for each in "abcd"],
        either,
        judge=lambda memory: next(verdicts),
        planner=lambda memory: next(plans),
    )
    assert result.success
    assert CALLS == ["a", "b", "b", "c", "d", "c"]
    assert result.output["plan"] == []


def test_a_plan_without_judge():
    """Without judge and planner all steps are done in order."""
    assert execute_plan([node("a"), node("b")]).success
    assert CALLS == ["a", "b"]


def test_a_plan_that_is_cut_off(manager):
    """A plan that failed goes on; what was planned and judged is not asked again."""
    asked = []

    def judge(memory):
        asked.append(memory["step"])
        return "accept"

    def planner(memory):
        asked.append("plan")
        return ["a", "b"]

    steps = [node("a"), node("b", failing(1))]
    assert execute_plan(steps, manager, judge=judge, planner=planner).error
    result = execute_plan(steps, manager, judge=judge, planner=planner)
    assert result.success
    assert asked == ["plan", "a", "b"]
    assert CALLS == ["a", "b", "b"]
    [newest] = manager.list_checkpoints(result.run_id)[-1:]
    assert newest.executor_type is ExecutorType.FLEXIBLE
    assert newest.current_step_id == "judge"


def test_a_step_that_is_never_accepted():
    """After so many retries the planner plans anew; without one the plan has failed."""
    result = execute_plan([node("a")], judge=lambda memory: "retry", max_retries_per_step=2)
    assert "not accepted" in result.error
    assert CALLS == ["a"] * 3


def test_a_human_is_asked(manager):
    """The judge may ask a human; then the step is done again, with the answer."""

    def judge(memory):
        return "accept" if memory.get("hint") else "escalate"

    steps = [node("a", lambda memory: memory.get("hint"))]
    paused = execute_plan(steps, manager, judge=judge)
    assert paused.paused_at == "human"
    done = execute_plan(steps, manager, {"hint": "left"}, paused.session_state, judge=judge)
    assert done.output["a"] == "left"


# -- the runner ------------------------------------------------------------------------------------


def test_a_runner(tmp_path):
    """A runner resumes a run by its id, and takes other input for the answer at a pause only."""
    runner = AgentRunner(asking(), CheckpointConfig(), tmp_path / "store")
    paused = asyncio.run(runner.run({"x": 1}, "job"))
    assert asyncio.run(runner.run({"x": 1}, "job")).paused_at == "ask"
    assert asyncio.run(runner.run(run_id="job")).paused_at == "ask"
    again = AgentRunner(asking(), storage=tmp_path / "store")
    done = asyncio.run(again.run({"answer": "yes"}, "job"))
    assert done.output["answer"] == "yes"
    assert CALLS == ["a", "ask", "end"]
    assert paused.run_id == done.run_id == "job"
    assert asyncio.run(again.run({"answer": "yes"}, "job")) == done
    failed = AgentRunner(chain(node("a", failing(1))), storage=tmp_path / "store")
    assert asyncio.run(failed.run({"x": 1}, "other")).error
    with pytest.raises(stepwise.RunConflictError):
        asyncio.run(failed.run({"x": 2}, "other"))


def test_where_a_runner_writes(home, tmp_path):
    """By default a runner writes nothing; with a configuration, to the default store."""
    plain = AgentRunner(chain(node("a")))
    assert asyncio.run(plain.run({"x": 1})).output == {"x": 1}
    assert files(tmp_path) == []
    kept = AgentRunner(chain(node("a")), CheckpointConfig())
    assert asyncio.run(kept.run({"x": 1}, "job")).run_id == "job"
    assert stepwise.get_run("job").status == "completed"
    assert files(home)
