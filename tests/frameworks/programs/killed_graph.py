"""A workflow that invokes a graph: it kills itself where ``KILL`` says, and writes what it does."""

import asyncio
import operator
import os
import pathlib
import signal
import sys
from typing import Annotated, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from stepwise import DidNotHappen, Landed, step, tool, workflow
from stepwise.integrations.langgraph import StepwiseSaver

DONE = pathlib.Path(os.environ["DONE"])
THREAD = {"configurable": {"thread_id": "a thread"}}


def note(what):
    """Write a line, and die if this is the place."""
    with DONE.open("a") as file:
        file.write(f"{what}\n")
    if os.environ.get("KILL") == what:
        os.kill(os.getpid(), signal.SIGKILL)


def happened(call):
    """Look whether a message was sent."""
    to = call.arguments["to"]
    return Landed(f"sent {to}") if f"send {to}" in DONE.read_text().split("\n") else DidNotHappen


@tool(side_effect=True, in_doubt=happened)
def send(to):
    note(f"send {to}")
    return f"sent {to}"


class Notes(TypedDict):
    notes: Annotated[list, operator.add]


def node_of(name, *tools):
    """Make a node that sends messages."""

    def node(state):
        turn = state["notes"].count("again")
        note(f"begin {name}{turn}")
        found = [send(f"{name}{turn}{each}") for each in tools]
        note(f"end {name}{turn}")
        return {"notes": [f"{name}: {', '.join(found)}"]}

    return node


def graph_of(saver):
    """Make a graph with two nodes side by side, and a subgraph of two nodes."""
    inner = StateGraph(Notes).add_node("i", node_of("i", 1)).add_node("j", node_of("j", 1))
    inner.add_edge(START, "i").add_edge("i", "j")
    outer = StateGraph(Notes).add_node("a", node_of("a", 1, 2))
    outer.add_node("p", node_of("p", 1)).add_node("q", node_of("q", 1))
    outer.add_node("inner", inner.compile()).add_node("z", node_of("z", 1))
    outer.add_edge(START, "a").add_edge("a", "p").add_edge("a", "q")
    outer.add_edge(["p", "q"], "inner").add_edge("inner", "z")
    return outer.compile(checkpointer=saver)


GRAPH = graph_of(StepwiseSaver())


@workflow
def two_turns():
    first = GRAPH.invoke({"notes": ["hello"]}, THREAD, durability="sync")
    second = GRAPH.invoke({"notes": ["again"]}, THREAD, durability="sync")
    return len(first["notes"]), second["notes"]


@workflow(checkpoint_every=1000)  # it replays from the top
async def two_async_turns():
    graph = graph_of(StepwiseSaver())
    first = await graph.ainvoke({"notes": ["hello"]}, THREAD, durability="sync")
    second = await graph.ainvoke({"notes": ["again"]}, THREAD, durability="sync")
    return len(first["notes"]), second["notes"]


def asks(question):
    """Make a node that asks, and sends the answer."""

    def node(state):
        answer = interrupt(question)
        note(f"{question}: {answer}")
        return {"notes": [f"{question} {answer}, {send(question)}"]}

    return node


def ends(state):
    note("between")
    return {"notes": [send("between")]}


@workflow
def two_questions():
    builder = StateGraph(Notes).add_node("pay", asks("pay")).add_node("ends", ends)
    builder.add_node("ship", asks("ship"))
    builder.add_edge(START, "pay").add_edge("pay", "ends").add_edge("ends", "ship")
    graph = builder.compile(checkpointer=StepwiseSaver())
    asked = graph.invoke({"notes": []}, THREAD, durability="sync")["__interrupt__"]
    note(f"asked {asked[0].value}")
    asked = graph.invoke(Command(resume="yes"), THREAD, durability="sync")["__interrupt__"]
    note(f"asked {asked[0].value}")
    return graph.invoke(Command(resume="no"), THREAD, durability="sync")["notes"]


@workflow
def child(name):
    found = [send(f"{name}1")]
    note("within child")
    return [*found, send(f"{name}2")]


def has_child(state):
    return {"notes": child("child")}


@step
def in_a_step():
    builder = StateGraph(Notes).add_node("has_child", has_child).add_node("ends", ends)
    builder.add_edge(START, "has_child").add_edge("has_child", "ends")
    graph = builder.compile(checkpointer=StepwiseSaver())
    return graph.invoke({"notes": []}, THREAD, durability="sync")["notes"]


@workflow
def with_child():
    return in_a_step()


@task
def work(number):
    note(f"work {number}")
    return send(f"work {number}")


SAVER = StepwiseSaver()


@entrypoint(checkpointer=SAVER)
def works(count):
    found = [each.result() for each in [work(number) for number in range(count)]]
    while len(SAVER.get_tuple(THREAD).pending_writes) < count:
        """LangGraph stores them in the background."""
    note("works")
    return [*found, work(count).result()]


@workflow
def functional():
    return works.invoke(3, THREAD)


if __name__ == "__main__":
    made = globals()[sys.argv[1]]()
    print(asyncio.run(made) if asyncio.iscoroutine(made) else made)
