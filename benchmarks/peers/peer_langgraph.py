"""LangGraph's functional API and its StateGraph, on SqliteSaver.

``graph-sync`` writes each checkpoint before the next step begins; by default a thread writes it,
and what a functional task has returned is always written by one.
``graph-delta`` keeps the messages in a DeltaChannel, which differs only in W3.
"""

from __future__ import annotations

import asyncio
import operator
import sqlite3
from typing import Annotated, TypedDict

import harness
import workloads
from harness import Peer, abody, body, passed, waited
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt


@task
def step(number):
    return body(number)


@task
def say(messages, number):
    return body(number)


@task
async def astep(number):
    return await abody(number)


def functional_loop(count):
    for number in range(count):
        step(number).result()


def functional_agent(count):
    messages = []
    for number in range(count):
        messages.append(say(messages, number).result())


def functional_waiting(count):
    for number in range(count):
        passed(number)
        step(number).result()
    interrupt("go")
    waited()


async def functional_fanout(count):
    await asyncio.gather(*(astep(number) for number in range(count)))


def extended(have, writes):
    return [*have, *(message for write in writes for message in write)]


class LoopState(TypedDict):
    i: int
    n: int
    last: object


class AgentState(TypedDict):
    i: int
    n: int
    messages: Annotated[list, operator.add]


class DeltaState(TypedDict):
    i: int
    n: int
    messages: Annotated[list, DeltaChannel(extended)]


class FanState(TypedDict):
    n: int
    got: Annotated[list, operator.add]


def work(state):
    return {"i": state["i"] + 1, "last": body(state["i"])}


def talk(state):
    return {"i": state["i"] + 1, "messages": [body(state["i"])]}


async def leaf(state):
    return {"got": [await abody(state["i"])]}


def passing(state):
    passed(state["i"])
    return work(state)


def asking(state):
    interrupt("go")
    waited()
    return {}


def waiting_graph():
    """The cycle, and then a node that waits."""
    graph = StateGraph(LoopState)
    graph.add_node("work", passing)
    graph.add_node("ask", asking)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda s: "work" if s["i"] < s["n"] else "ask")
    graph.add_edge("ask", END)
    return graph


def cycle(schema, node):
    """A graph of one node that leads back to itself."""
    graph = StateGraph(schema)
    graph.add_node("work", node)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda s: "work" if s["i"] < s["n"] else END)
    return graph


def fan():
    graph = StateGraph(FanState)
    graph.add_node("spread", lambda _: {})
    graph.add_node("leaf", leaf)
    graph.add_edge(START, "spread")
    graph.add_conditional_edges("spread", lambda s: [Send("leaf", {"i": i}) for i in range(s["n"])])
    return graph


_NO_MESSAGES = ("w1", "w2", "w4", "w6", "w10", "flushes")


class LangGraph(Peer):
    """SqliteSaver: WAL, synchronous FULL."""

    name = "langgraph"
    variants = ("functional", "graph", "graph-sync", "graph-delta")
    distribution = "langgraph"
    imports = (
        "import langgraph.func, langgraph.graph; "
        "from langgraph.checkpoint.sqlite import SqliteSaver"
    )
    survives = {v: harness.POWER if v.endswith("sync") else harness.LATER for v in variants}
    sends_to_nobody = False
    cannot = {
        **{f"graph-delta:{w}": "only W3 differs" for w in _NO_MESSAGES},
        "graph-sync:w6": "as graph",
    }

    def open(self):
        self.database = sqlite3.connect(self.store / "saved.db", check_same_thread=False)
        self.saver = SqliteSaver(self.database)

    def close(self):
        self.database.close()

    def invoke(self, app, start, run_id, count):
        """Start, or resume a thread that has a checkpoint, as a script that is run again would.

        ``get_state(config).next`` is no test for that: it is empty where the last step's writes are
        stored and its checkpoint is not.
        """
        config = {"configurable": {"thread_id": run_id}, "recursion_limit": count + 10}
        known = app.get_state(config).metadata is not None
        durability = "sync" if self.variant.endswith("-sync") else "async"
        app.invoke(None if known else start, config, durability=durability)

    def loop(self, run_id, count):
        if self.variant.startswith("functional"):
            app = entrypoint(checkpointer=self.saver)(functional_loop)
            self.invoke(app, count, run_id, count)
        else:
            app = cycle(LoopState, work).compile(checkpointer=self.saver)
            self.invoke(app, {"i": 0, "n": count, "last": None}, run_id, count)

    def waiting(self, run_id, count):
        config = {"configurable": {"thread_id": run_id}, "recursion_limit": count + 10}
        if self.variant.startswith("functional"):
            app, start = entrypoint(checkpointer=self.saver)(functional_waiting), count
        else:
            app = waiting_graph().compile(checkpointer=self.saver)
            start = {"i": 0, "n": count, "last": None}
        known = app.get_state(config).metadata is not None
        durability = "sync" if self.variant.endswith("-sync") else "async"
        app.invoke(Command(resume={"number": 1}) if known else start, config, durability=durability)

    def agent(self, run_id, count):
        if self.variant.startswith("functional"):
            app = entrypoint(checkpointer=self.saver)(functional_agent)
            self.invoke(app, count, run_id, count)
        else:
            schema = DeltaState if "delta" in self.variant else AgentState
            app = cycle(schema, talk).compile(checkpointer=self.saver)
            self.invoke(app, {"i": 0, "n": count, "messages": []}, run_id, count)

    def fanout(self, run_id, count):
        config = {"configurable": {"thread_id": run_id}, "recursion_limit": count + 10}

        async def call():
            path = str(self.store / "async.db")
            async with AsyncSqliteSaver.from_conn_string(path) as saver:
                if self.variant.startswith("functional"):
                    app, start = entrypoint(checkpointer=saver)(functional_fanout), count
                else:
                    app, start = fan().compile(checkpointer=saver), {"n": count, "got": []}
                await app.ainvoke(start, config)

        asyncio.run(call())


if __name__ == "__main__":
    workloads.main(LangGraph)
