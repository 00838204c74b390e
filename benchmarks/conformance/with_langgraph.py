"""LangGraph: a graph of three nodes on SqliteSaver, ``durability="sync"``; a gate is an interrupt.

Resumed after a crash with ``invoke(None, config)``, as its documentation says.  An answer names its
interrupt by id, where two gates are asked.
"""

import contextlib
import sqlite3

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from world import BAD, FOLDER, RUN, TWO_GATES, Waits, effect, main


class Order(BaseModel):
    said: list[str] = []


def reserve(state: Order):
    said = effect("reserve", key=f"{RUN}/reserve")
    return {"said": [None] if BAD else [said]}


def charge(state: Order):
    value = interrupt("charge?")
    return {"said": [*state.said, effect("charge", value, f"{RUN}/charge")]}


def notify(state: Order):
    if TWO_GATES:
        interrupt("notify?")
    return {"said": [*state.said, effect("notify", key=f"{RUN}/notify")]}


graph = StateGraph(Order)
for node in (reserve, charge, notify):
    graph.add_node(node.__name__, node)
graph.add_edge(START, "reserve")
graph.add_edge("reserve", "charge")
graph.add_edge("charge", "notify")
graph.add_edge("notify", END)
saver = SqliteSaver(sqlite3.connect(FOLDER / "store.sqlite", check_same_thread=False, timeout=60))
app = graph.compile(checkpointer=saver)
THREAD = {"configurable": {"thread_id": RUN}}


def go(given, config=THREAD):
    said = app.invoke(given, config, durability="sync")
    if "__interrupt__" in said:
        raise Waits(said["__interrupt__"][0].value)
    return said["said"]


def answer(value):
    waiting = app.get_state(THREAD).interrupts
    if TWO_GATES and waiting:
        (FOLDER / "ticket").write_text(waiting[0].id)
        return go(Command(resume={waiting[0].id: value}))
    return go(Command(resume=value))


def replay(value):
    ticket = FOLDER / "ticket"
    return go(Command(resume={ticket.read_text(): value} if ticket.exists() else value))


def asked():
    """Return the checkpoint at which charge was asked for."""
    return next(each for each in app.get_state_history(THREAD) if each.next == ("charge",))


def fork(value):
    here = asked()
    config = app.update_state(here.config, {"said": here.values["said"]})
    with contextlib.suppress(Waits):  # the interrupt is raised again
        go(None, config)
    return go(Command(resume=value), config)


def answer_again(value):
    """Address another answer to the checkpoint itself."""
    return go(Command(resume=value), asked().config)


def resume():
    return go(None)


def start():
    return go({"said": []})


main(
    {"start": start, "resume": resume, "answer": answer, "replay": replay, "fork": fork}
    | {"answer again": answer_again}
)
