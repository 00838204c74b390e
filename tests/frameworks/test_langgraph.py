"""LangGraph's checkpoints in our stores: complete, verified, small, and continued by runs."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import operator
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from typing import Annotated, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance")

from harness import Watched, python_path
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

try:
    from langgraph.channels.delta import DeltaChannel
except ImportError:
    DeltaChannel = None

import stepwise
from stepwise.errors import ConfigurationError, CorruptStoreError, ThreadMovedOnError
from stepwise.integrations.langgraph import StepwiseSaver
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore

IMPORTS = ("langgraph.func", "langgraph.graph", "langgraph.types")
HERE = pathlib.Path(__file__).parent
PROGRAM = HERE / "programs" / "killed_graph.py"
THREAD = {"configurable": {"thread_id": "a thread"}}
OPENERS = {"disk": DiskStore, "memory": lambda _: MemoryStore("of the test")}
METHODS = (
    *("aput", "aput_writes", "aget_tuple", "adelete_thread", "adelete_for_runs"),
    *("acopy_thread", "aprune"),
)


class Notes(TypedDict):
    notes: Annotated[list, operator.add]


# -- LangGraph's own suite -----------------------------------------------------------------------


def reopened(path, kind):
    """Make a saver that is closed, with its store, and opened again around each call."""
    memory = MemoryStore("of the suite")

    @contextlib.contextmanager
    def opened():
        store = memory if kind == "memory" else DiskStore(path)
        yield store
        if store is not memory:
            store.close()

    class Reopened(StepwiseSaver):
        async def alist(self, *args, **kwargs):
            with opened() as store:
                for each in [each async for each in StepwiseSaver(store).alist(*args, **kwargs)]:
                    yield each

    def method(name):
        async def called(self, *args, **kwargs):
            with opened() as store, StepwiseSaver(store) as saver:
                return await getattr(saver, name)(*args, **kwargs)

        return called

    for name in METHODS:
        setattr(Reopened, name, method(name))
    return Reopened(memory)


@pytest.mark.parametrize("kind", OPENERS)
def test_conformance(kind, tmp_path):
    """The saver passes LangGraph's suite, all of it, closed and opened again between any calls."""

    @checkpointer_test(name=kind)
    async def savers():
        yield reopened(tmp_path / "store", kind)

    report = asyncio.run(validate(savers))
    assert {name: (each.passed, each.failures) for name, each in report.results.items()} == {
        name: (True, []) for name in report.results
    }
    assert len(report.results) == 8


# -- what graphs do ------------------------------------------------------------------------------


def history_of(saver):
    """Execute a graph in every way there is; return what it shows, without ids and times."""

    def asks(state):
        return {"notes": [f"answer: {interrupt('really?')}"]}

    inner = StateGraph(Notes).add_node("asks", asks).add_edge(START, "asks").compile()
    builder = StateGraph(Notes).add_node("a", lambda state: {"notes": ["a"]})
    builder.add_node("inner", inner).add_node("z", lambda state: {"notes": ["z"]})
    builder.add_edge(START, "a").add_edge("a", "inner").add_edge("inner", "z")
    graph = builder.compile(checkpointer=saver)
    found = [graph.invoke({"notes": ["one"]}, THREAD)["notes"]]
    found.append(graph.get_state(THREAD, subgraphs=True).tasks[0].state.values)
    found.append(graph.invoke(Command(resume="yes"), THREAD)["notes"])
    history = list(graph.get_state_history(THREAD))
    before = next(each for each in history if each.next == ("z",))
    found.append(graph.invoke(None, before.config)["notes"])  # time travel
    changed = graph.update_state(before.config, {"notes": ["changed"]}, as_node="a")
    found.append(graph.invoke(None, changed)["__interrupt__"][0].value)
    found.append(graph.invoke(Command(resume="no"), THREAD)["notes"])
    found += [
        (each.values, each.next, each.metadata, [task.name for task in each.tasks])
        for each in graph.get_state_history(THREAD)
    ]
    found += [each.values for each in graph.get_state_history(THREAD, filter={"source": "fork"})]
    return found


@pytest.mark.parametrize("kind", OPENERS)
def test_a_graph_cannot_tell_the_savers_apart(kind, tmp_path):
    """Interrupts, subgraphs, time travel, updates and history are those of LangGraph's saver."""
    store = OPENERS[kind](tmp_path / "store")
    assert history_of(StepwiseSaver(store)) == history_of(InMemorySaver())


def test_delta_channels(tmp_path):
    """Pruned and copied threads rebuild delta channels, whose history LangGraph's saver gives."""
    if DeltaChannel is None:
        pytest.skip("this version of LangGraph has none")

    class State(TypedDict):
        notes: Annotated[list, DeltaChannel(lambda now, new: [*now, *itertools.chain(*new)])]

    def talk(saver):
        builder = StateGraph(State).add_node("a", lambda state: {"notes": [len(state["notes"])]})
        graph = builder.add_edge(START, "a").compile(checkpointer=saver)
        for turn in range(5):
            graph.invoke({"notes": [f"turn {turn}"]}, THREAD)
        return graph

    saver = StepwiseSaver(tmp_path / "store")
    graph, other = talk(saver), talk(InMemorySaver())
    assert graph.get_state(THREAD).values == other.get_state(THREAD).values
    saver.copy_thread("a thread", "a copy")
    before = len(list(graph.get_state_history(THREAD)))
    saver.prune(["a thread"])
    with StepwiseSaver(tmp_path / "store") as again:
        graph.checkpointer = again
        copy = {"configurable": {"thread_id": "a copy"}}
        assert graph.get_state(copy).values == other.get_state(THREAD).values
        assert graph.get_state(THREAD).values == other.get_state(THREAD).values
        assert len(list(graph.get_state_history(copy))) == before


# -- the store -----------------------------------------------------------------------------------


def talk(saver, turns, thread_id="a thread"):
    """Let a graph answer messages of 2 KB; return the graph."""
    texts = random.Random(1)

    def answer(state):
        return {"messages": [AIMessage(texts.randbytes(1024).hex())]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread_id}}
    for _ in range(turns):
        graph.invoke({"messages": [HumanMessage(texts.randbytes(1024).hex())]}, config)
    return graph


def test_what_has_not_changed_is_stored_once(tmp_path):
    """A store grows with the text of a conversation, not with its square, nor when it is copied."""
    sizes = []
    for turns in (20, 60):
        store = DiskStore(tmp_path / str(turns))
        graph = talk(StepwiseSaver(store), turns)
        assert len(graph.get_state(THREAD).values["messages"]) == 2 * turns
        store.close()
        sizes.append((tmp_path / str(turns) / "cache.db").stat().st_size)
    assert sizes[1] < 2.5 * 60 * 4096
    assert sizes[1] - sizes[0] < 2.5 * 40 * 4096


def test_prune_gives_space_back(tmp_path):
    """Pruning leaves the newest checkpoint, whose values are complete, and little more."""
    store = MemoryStore("pruned")
    saver = StepwiseSaver(store)
    graph = talk(saver, 10)
    before = graph.get_state(THREAD)
    saver.prune(["a thread", "no such thread"])
    assert graph.get_state(THREAD) == before
    assert len(list(saver.list(None))) == 1
    records = [data for _, data in store.read("langgraph:a thread")]
    assert sum(map(len, records)) < 1.2 * 10 * 4096
    graph.invoke({"messages": ["more"]}, THREAD)
    assert len(graph.get_state(THREAD).values["messages"]) == 22
    with pytest.raises(ConfigurationError, match="keep_latest"):
        saver.prune(["a thread"], strategy="all")
    saver.prune(["a thread"], strategy="delete")
    assert list(saver.list(None)) == []
    assert list(store.read("langgraph:a thread")) == []


def test_a_saver_sees_what_another_one_did(tmp_path):
    """A saver reads again what another one wrote, pruned, deleted or began anew."""
    store = MemoryStore("shared")
    one, other = StepwiseSaver(store), StepwiseSaver(store)
    graph = talk(one, 3)
    assert len(other.get_tuple(THREAD).checkpoint["channel_values"]["messages"]) == 6
    graph.invoke({"messages": ["more"]}, THREAD)
    assert len(other.get_tuple(THREAD).checkpoint["channel_values"]["messages"]) == 8
    one.prune(["a thread"])
    assert len(list(other.list(THREAD))) == 1
    one.delete_thread("a thread")
    assert other.get_tuple(THREAD) is None
    talk(one, 5)
    assert len(other.get_tuple(THREAD).checkpoint["channel_values"]["messages"]) == 10


WRITER = """
import sys, threading
from langgraph.checkpoint.base import empty_checkpoint
from stepwise.integrations.langgraph import StepwiseSaver
saver = StepwiseSaver(sys.argv[1])
def write(name):
    for number in range(15):
        config = {"configurable": {"thread_id": "a thread", "checkpoint_ns": ""}}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"it": [name, number]}
        checkpoint["channel_versions"] = {"it": 1}
        config = saver.put(config, checkpoint, {"name": name}, {"it": 1})
        saver.put_writes(config, [("it", name), ("it", number)], "a task")
threads = [threading.Thread(target=write, args=(sys.argv[2] + str(n),)) for n in range(2)]
[each.start() for each in threads]
[each.join() for each in threads]
"""


def test_several_writers_of_one_thread(tmp_path):
    """Processes and threads that write to one thread at once lose nothing of each other."""
    url = f"disk:{tmp_path}/store"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, name]) for name in ("one", "two")
    ]
    assert [each.wait() for each in writers] == [0, 0]
    found = list(StepwiseSaver(url).list(THREAD))
    names = [f"{name}{number}" for name in ("one", "two") for number in range(2)]
    values = sorted(tuple(each.checkpoint["channel_values"]["it"]) for each in found)
    assert values == sorted((name, number) for name in names for number in range(15))
    assert all(len(each.pending_writes) == 2 for each in found)


def test_a_damaged_record(tmp_path):
    """A damaged, exchanged or lost row is an error that says so, or on request an older state."""
    path = tmp_path / "store"
    store = DiskStore(path)
    graph = talk(StepwiseSaver(store), 3)
    whole = texts_of(graph)
    store.close()
    database = sqlite3.connect(path / "cache.db")
    rows = database.execute(
        "SELECT rowid, value FROM Cache WHERE key LIKE 'r/%' ORDER BY key"
    ).fetchall()
    database.close()
    assert len(rows) == 15
    update, delete = (
        "UPDATE Cache SET value = ? WHERE rowid = ?",
        "DELETE FROM Cache WHERE rowid = ?",
    )
    changes = [[(update, (bytes(_flipped(data)), number))] for number, data in rows]
    changes += [[(delete, (number,))] for number, _ in rows]
    changes += [
        [(update, (rows[n + 1][1], rows[n][0])), (update, (rows[n][1], rows[n + 1][0]))]
        for n in range(0, 14, 3)
    ]
    refused = 0
    for number, change in enumerate(changes):
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        _execute(copy, change)
        store = DiskStore(copy)
        graph.checkpointer = StepwiseSaver(store)
        try:
            assert texts_of(graph) == whole  # only an older checkpoint needs the record
            store.close()
            continue
        except CorruptStoreError as error:
            message = str(error)
        refused += 1
        graph.checkpointer = StepwiseSaver(store, on_corrupt="fallback")
        if "on_corrupt='fallback'" in message:
            before = texts_of(graph)
            assert before == whole[: len(before)]
            graph.invoke({"messages": ["goes on"]}, THREAD)
            assert texts_of(graph)[-2] == "goes on"
        else:
            with pytest.raises(CorruptStoreError, match="delete_thread"):
                graph.get_state(THREAD)
        store.close()
    assert refused > 20


def texts_of(graph):
    """Return the texts of the messages of a conversation."""
    return [each.content for each in graph.get_state(THREAD).values.get("messages", ())]


def _execute(path, statements):
    database = sqlite3.connect(path / "cache.db")
    with database:
        for statement, values in statements:
            database.execute(statement, values)
    database.close()


def _flipped(data):
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return changed


def test_encrypted(tmp_path):
    """With ``configure(encrypt=True)`` no text of a message or a name of a channel is readable."""
    pytest.importorskip("cryptography")
    stepwise.configure(encrypt=True)
    path = tmp_path / "store"
    store = DiskStore(path)
    saver = StepwiseSaver(store)
    graph = StateGraph(Notes).add_node("secret node", lambda state: {"notes": ["secret answer"]})
    graph = graph.add_edge(START, "secret node").compile(checkpointer=saver)
    graph.invoke({"notes": ["secret question"]}, THREAD)
    assert graph.get_state(THREAD).values == {"notes": ["secret question", "secret answer"]}
    store.close()
    assert all(b"secret" not in file.read_bytes() for file in path.iterdir() if file.is_file())
    saver = StepwiseSaver(DiskStore(path))
    assert len(list(saver.list(None))) == 3


def test_the_command_line_sees_runs_only(tmp_path, monkeypatch):
    """Threads in the store of the runs are no runs: listing, verifying and pruning leave them."""
    monkeypatch.setenv("STEPWISE_HOME", str(tmp_path))

    @stepwise.workflow
    def hello():
        return "hello"

    saver = StepwiseSaver()
    talk(saver, 2)
    hello()
    for command in ("runs", "verify", "prune --all --yes", "runs", "doctor"):
        argv = [sys.executable, "-m", "stepwise", *command.split()]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "langgraph" not in done.stdout + done.stderr, command
        assert "Traceback" not in done.stderr, command
    assert len(StepwiseSaver().get_tuple(THREAD).checkpoint["channel_values"]["messages"]) == 4


def test_prune_beside_a_writer(tmp_path):
    """What is stored while another saver prunes stays."""
    pruning = StepwiseSaver(tmp_path / "store")
    done = threading.Event()

    def prune():
        while not done.is_set():
            pruning.prune(["a thread"])

    thread = threading.Thread(target=prune)
    thread.start()
    graph = talk(StepwiseSaver(tmp_path / "store"), 10)
    done.set()
    thread.join()
    assert len(graph.get_state(THREAD).values["messages"]) == 20
    assert graph.get_state(THREAD).next == ()


def test_writes_before_their_checkpoint(tmp_path):
    """Writes are kept though their checkpoint comes later; what is stored of them stays."""
    saver = StepwiseSaver(tmp_path / "store")
    checkpoint = empty_checkpoint()
    config = {"configurable": {**THREAD["configurable"], "checkpoint_id": checkpoint["id"]}}
    saver.put_writes(config, [("a", [1, 2]), ("__interrupt__", "old")], "a task")
    saver.put_writes(config, [("a", "other"), ("__interrupt__", "new")], "a task")
    saver.put(THREAD, checkpoint, {}, {})
    expected = [("a task", "__interrupt__", "new"), ("a task", "a", [1, 2])]
    assert saver.get_tuple(THREAD).pending_writes == expected


def test_threads_of_one_process(tmp_path):
    """Many graphs may work at once, on threads of their own."""
    saver = StepwiseSaver(tmp_path / "store")
    threads = [threading.Thread(target=talk, args=(saver, 3, f"thread {n}")) for n in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = collections.Counter(
        each.config["configurable"]["thread_id"] for each in saver.list(None)
    )
    assert found == {f"thread {n}": 9 for n in range(6)}


# -- inside a run --------------------------------------------------------------------------------


def execute(workflow, home, kill=""):
    """Execute a workflow; return its process and the lines that it wrote."""
    home.mkdir(exist_ok=True)
    done, errors = home / "done", home / "errors"
    done.touch()
    errors.write_text("")
    known = len(done.read_text().split("\n"))
    homes = {"STEPWISE_HOME": str(home / "home"), "DONE": str(done), "KILL": kill}
    environment = {**os.environ, **homes}
    started = Watched(PROGRAM, workflow, cwd=home, env=environment, err=errors, imports=IMPORTS)
    printed = started.stdout.read()
    ended = subprocess.CompletedProcess(PROGRAM, started.wait(), printed, errors.read_text())
    return ended, done.read_text().split("\n")[known - 1 : -1]


def undisturbed(workflow, home):
    """Execute a workflow to its end; return what it printed and the lines that it wrote."""
    whole, lines = execute(workflow, home)
    assert whole.returncode == 0, whole.stderr
    return whole.stdout, lines


def killed_at(line, workflow, home):
    """Kill a workflow at a line, and execute it again; return what it printed and the lines."""
    killed, before = execute(workflow, home, line)
    assert killed.returncode == -9, line
    again, after = execute(workflow, home)
    assert again.returncode == 0, (line, again.stderr)
    assert "UnusedRecord" not in again.stderr, (line, again.stderr)
    return again.stdout, before, after


def sent(lines):
    return sorted(each for each in lines if each.startswith("send"))


@pytest.mark.parametrize("workflow", ["two_turns", "two_async_turns"])
def test_killed_in_each_node_and_tool(workflow, tmp_path):
    """A killed graph continues where it was: finished nodes and tools do not run again."""
    printed, lines = undisturbed(workflow, tmp_path / "whole")
    points = [each for each in lines if "0" in each]  # of the first turn
    if workflow == "two_async_turns":
        points = [each for each in lines if each not in points][::5]
    for number, line in enumerate(points):
        again, before, after = killed_at(line, workflow, tmp_path / str(number))
        assert again == printed, line
        assert sent(before + after) == sent(lines), line
        # Those of the superstep that was cut off may be made again, and no others.
        repeated = {each.split()[1] for each in before if each in after}
        node = line.split()[1][:2]
        together = {"p": "pq", "q": "pq"}.get(node[0], node[0])
        assert {each[:2] for each in repeated} <= {f"{each}{node[1]}" for each in together}, line


@pytest.mark.parametrize("workflow", ["two_questions", "with_child"])
def test_killed_between_questions_and_in_a_child_run(workflow, tmp_path):
    """An answer is never taken for that to the next question; child runs have their own calls."""
    printed, lines = undisturbed(workflow, tmp_path / "whole")
    if workflow == "two_questions":
        assert "pay yes, sent pay" in printed
        assert "ship no, sent ship" in printed
    for line in lines:
        again, before, after = killed_at(line, workflow, tmp_path / line.replace(" ", "-"))
        assert again == printed, line
        assert sent(before + after) == sent(lines), line


def test_killed_in_the_functional_api(tmp_path):
    """Tasks that had finished are not executed again, and the others' tools are answered."""
    for number, line in enumerate(["send work 1", "works", "send work 3"]):
        again, before, after = killed_at(line, "functional", tmp_path / str(number))
        assert again == "['sent work 0', 'sent work 1', 'sent work 2', 'sent work 3']\n"
        assert sent(before + after) == [f"send work {n}" for n in range(4)], line
        if number:
            assert not {"work 0", "work 1", "work 2"} & set(after)


def test_the_example(tmp_path):
    """The example ends as it does undisturbed when it is cut off after each line it prints."""
    example = pathlib.Path(__file__).parents[2] / "examples" / "langgraph_agent.py"
    environment = {**os.environ, "STEPWISE_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}

    def started(folder):
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, example, "--outbox", "outbox.txt", "--delay", "0.2"],
            cwd=folder,
            env={**environment, "STEPWISE_HOME": str(folder / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    whole, _ = started(tmp_path / "whole").communicate()
    lines = whole.splitlines()
    assert lines[-1] == "tides are strong; winds are strong; sent"
    for number in range(1, 6):  # not while it sends: then it stops and asks
        process = started(tmp_path / str(number))
        seen = [process.stdout.readline() for _ in range(number)]
        process.kill()
        process.communicate()
        assert [each.strip() for each in seen] == lines[:number]
        out, err = started(tmp_path / str(number)).communicate()
        assert out.splitlines()[-1] == lines[-1], err
        sent = (tmp_path / str(number) / "outbox.txt").read_text().splitlines()
        assert sent == ["a summary of tides are strong; winds are strong"]


# -- writers that are no longer the owner --------------------------------------------------------


def line(saver, within=None, **more):
    """A graph of two nodes, the second of which calls ``within`` the first time."""
    todo = [within] if within is not None else []

    def second(state):
        while todo:
            todo.pop()()
        return {"notes": ["second"]}

    builder = StateGraph(Notes).add_node("first", lambda state: {"notes": ["first"]})
    builder.add_node("second", second).add_edge(START, "first").add_edge("first", "second")
    return builder.compile(checkpointer=saver, **more)


def elsewhere(call):
    """Call something as another process would, without the context of this node."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def finish(graph, given=None):
    """Continue the thread as another process would, once it is at the second node."""
    while given is None and graph.get_state(THREAD).next != ("second",):
        """LangGraph stores it in the background."""
    elsewhere(lambda: graph.invoke(given, THREAD))


def invoked(graph, given, config, way, **more):
    if way == "async":
        return asyncio.run(graph.ainvoke(given, config, **more))
    return graph.invoke(given, config, **more)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", OPENERS)
def test_a_stale_writer_is_refused(kind, way, durability, tmp_path):
    """A graph whose thread another writer has continued meanwhile adds nothing, and says so."""
    store = OPENERS[kind](tmp_path / "store")
    other = line(StepwiseSaver(store))

    given = {"notes": ["other"]} if durability == "exit" else None
    stale = line(StepwiseSaver(store), lambda: finish(other, given))
    with pytest.raises(ThreadMovedOnError, match=r"'a thread' .* has moved on") as caught:
        invoked(stale, {"notes": ["one"]}, THREAD, way, durability=durability)
    newest = other.get_state(THREAD)
    assert caught.value.newest_id == newest.config["configurable"]["checkpoint_id"]
    begun = ["other"] if durability == "exit" else ["one"]
    assert newest.values["notes"] == [*begun, "first", "second"]
    again = invoked(stale, {"notes": ["two"]}, THREAD, way)
    assert again["notes"] == [*newest.values["notes"], "two", "first", "second"]


@pytest.mark.parametrize("same", [True, False])
def test_one_of_two_requests_is_refused(same):
    """Of two graphs in one process that continue one checkpoint, the second one is refused."""
    savers = [StepwiseSaver(MemoryStore("of the test"))] * 2
    if not same:
        savers[1] = StepwiseSaver(savers[0]._threads.store)
    other = line(savers[1])
    stale = line(savers[0], lambda: finish(other))
    with pytest.raises(ThreadMovedOnError):
        stale.invoke({"notes": ["one"]}, THREAD)
    assert other.get_state(THREAD).values["notes"] == ["one", "first", "second"]


class Overtaken(StepwiseSaver):
    """A saver whose thread another writer continues after it was read for the first time."""

    def __init__(self, store, meanwhile):
        super().__init__(store)
        self.todo = [meanwhile]

    def get_tuple(self, config):
        found = super().get_tuple(config)
        while self.todo:
            elsewhere(self.todo.pop())
        return found


def test_a_stale_update_is_refused():
    """``update_state`` of the newest checkpoint is refused if another writer has continued it."""
    store = MemoryStore("of the test")
    graph = line(StepwiseSaver(store))
    graph.invoke({"notes": ["one"]}, THREAD)
    stale = line(Overtaken(store, lambda: graph.update_state(THREAD, {"notes": ["other"]})))
    with pytest.raises(ThreadMovedOnError):
        stale.update_state(THREAD, {"notes": ["stale"]})
    stale.update_state(THREAD, {"notes": ["again"]})
    assert graph.get_state(THREAD).values["notes"][-2:] == ["other", "again"]


def branched(saver, way):
    """Branch at an older checkpoint in every way there is; return the states."""
    graph = line(saver)
    graph.invoke({"notes": ["one"]}, THREAD)
    older = next(each for each in graph.get_state_history(THREAD) if each.next == ("second",))
    found = [invoked(graph, given, older.config, way) for given in (None, {"notes": ["two"]})]
    changed = (
        asyncio.run(graph.aupdate_state(older.config, {"notes": ["changed"]}))
        if way == "async"
        else graph.update_state(older.config, {"notes": ["changed"]})
    )
    found += [graph.get_state(THREAD).values, invoked(graph, None, changed, way)]
    return [*found, graph.get_state(THREAD).values]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_older_checkpoints_may_branch(way):
    """A graph that is invoked or updated at the id of an older checkpoint branches there."""
    expected = branched(InMemorySaver(), way)
    assert branched(StepwiseSaver(MemoryStore("of the test")), way) == expected


def test_a_branch_on_purpose():
    """With ``on_stale="branch"`` what a stale writer stores becomes the newest."""
    store = MemoryStore("of the test")
    other = line(StepwiseSaver(store))
    branching = line(StepwiseSaver(store, on_stale="branch"), lambda: finish(other))
    branching.invoke({"notes": ["one"]}, THREAD, durability="sync")
    assert len(list(other.get_state_history(THREAD))) == 5
    with pytest.raises(ConfigurationError, match="on_stale='fork': use 'raise' or 'branch'"):
        StepwiseSaver(store, on_stale="fork")


STOPPED = """
import os, signal, sys
from test_langgraph import THREAD, StepwiseSaver, ThreadMovedOnError, line

saver = StepwiseSaver(sys.argv[1])

def stop():
    while not all(each.pending_writes for each in [*saver.list(THREAD)][1:]):
        pass  # LangGraph stores them in the background
    with saver._threads.writing("a thread"):
        pass  # nor is the lease held any more
    os.kill(os.getpid(), signal.SIGSTOP)

try:
    line(saver, stop).invoke({"notes": ["one"]}, THREAD, durability="sync")
except ThreadMovedOnError:
    os._exit(7)
"""


def test_a_process_that_was_stopped(tmp_path):
    """A process that was stopped in a node while another one finished the thread is refused."""
    url = f"disk:{tmp_path}/store"
    command = [sys.executable, "-c", STOPPED, url]
    where = {**os.environ, "PYTHONPATH": python_path(HERE, HERE.parent / "programs")}
    stopped = subprocess.Popen(command, env=where)
    try:
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        other = line(StepwiseSaver(url))
        other.invoke(None, THREAD)
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait() == 7
    finally:
        stopped.kill()
    assert other.get_state(THREAD).values["notes"] == ["one", "first", "second"]
    assert len(list(other.get_state_history(THREAD))) == 4


def test_writes_of_a_stale_writer():
    """What a task of a stale writer wrote, or that it failed, is not put on the old checkpoint."""
    saver = StepwiseSaver(MemoryStore("of the test"))
    other = line(StepwiseSaver(saver._threads.store))

    def fails():
        finish(other)
        raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, ThreadMovedOnError)):
        line(saver, fails).invoke({"notes": ["one"]}, THREAD)
    older = next(each for each in other.get_state_history(THREAD) if each.next == ("second",))
    assert [channel for _, channel, _ in saver.get_tuple(older.config).pending_writes] == ["notes"]


def test_the_methods_of_a_subclass_are_called_by_asynchronous_graphs():
    """An asynchronous graph calls the methods that a subclass of the saver has in their place."""
    stored = []

    class Counted(StepwiseSaver):
        def put(self, config, checkpoint, *rest):
            stored.append(checkpoint["id"])
            return super().put(config, checkpoint, *rest)

    graph = line(Counted(MemoryStore("of the test")))
    asyncio.run(graph.ainvoke({"notes": ["one"]}, THREAD))
    assert stored[-1] == graph.get_state(THREAD).config["configurable"]["checkpoint_id"]
    assert StepwiseSaver.aput.__qualname__ == "StepwiseSaver.aput"


def test_a_large_value_is_not_compressed():
    """A large value is mostly an image or a file, whose compression would take long for nothing."""
    sizes = []
    for count, size in ((1, 2_000_000), (2000, 1000)):
        store = MemoryStore("of the test")
        line(StepwiseSaver(store)).invoke({"notes": ["x" * size] * count}, THREAD)
        notes = line(StepwiseSaver(store)).get_state(THREAD).values["notes"]
        assert notes == [*["x" * size] * count, "first", "second"]
        sizes.append(sum(len(data) for _, data in store.read("langgraph:a thread")))
    assert sizes[0] > 2_000_000 > 4 * sizes[1]
