"""A LangGraph agent that plans, searches, asks a human and sends, and that can be killed anywhere.

    pip install "stepwise-agents[langgraph]" langgraph
    python examples/langgraph_agent.py [--outbox FILE] [--answer yes|no] [--delay SECONDS]

The model is a script, so that no key and no network are needed.  Every node and tool prints a line
when it really runs.  Crash the program (Ctrl-C, ``kill -9``, or
``python -u examples/langgraph_agent.py | head -n 4``) and run it again: the graph continues at its
last checkpoint, and what was sent is not sent twice.
"""

from __future__ import annotations

import argparse
import operator
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from stepwise import step, tool, workflow
from stepwise.integrations.langgraph import StepwiseSaver

DELAY = [0.0]  # seconds that a search takes


class State(TypedDict):
    """The state of the graph."""

    topics: list[str]
    notes: Annotated[list[str], operator.add]
    outbox: str


@step
def ask_model(question: str) -> str:
    """Answer as a model would."""
    print(f"[model] {question}")
    return {"What should I look up?": "tides, winds"}.get(question, f"a summary of {question}")


@tool
def search(topic: str) -> str:
    """Search for a topic."""
    print(f"[search] {topic}")
    time.sleep(DELAY[0])
    return f"{topic} are strong"


@tool(side_effect=True)
def send(outbox: str, text: str) -> str:
    """Append a message to the outbox."""
    print(f"[send] {text}")
    with Path(outbox).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return "sent"


def plan(_: State) -> dict[str, Any]:
    """Ask the model for topics."""
    return {"topics": ask_model("What should I look up?").split(", ")}


def look_up(state: State) -> dict[str, Any]:
    """Search for each topic."""
    return {"notes": [search(topic) for topic in state["topics"]]}


def publish(state: State) -> dict[str, Any]:
    """Ask a human, then send."""
    text = ask_model("; ".join(state["notes"]))
    if interrupt(f"Send {text!r}?") == "yes":
        return {"notes": [send(state["outbox"], text)]}
    return {"notes": ["not sent"]}


builder = StateGraph(State)
builder.add_node("plan", plan).add_node("look_up", look_up).add_node("publish", publish)
builder.add_edge(START, "plan").add_edge("plan", "look_up").add_edge("look_up", "publish")
graph = builder.compile(checkpointer=StepwiseSaver())


@workflow
def agent(outbox: str, answer: str) -> list[str]:
    """Let the graph work, and answer its question."""
    thread: Any = {"configurable": {"thread_id": f"weather for {outbox}"}}
    asked = graph.invoke({"outbox": outbox}, thread, durability="sync")
    print("[asked]", asked["__interrupt__"][0].value)
    done = graph.invoke(Command(resume=answer), thread, durability="sync")
    return list(done["notes"])


def main() -> None:
    """Read the command line, and run the agent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--outbox", default="outbox.txt")
    parser.add_argument("--answer", choices=("yes", "no"), default="yes")
    parser.add_argument("--delay", type=float, default=0.0)
    given = parser.parse_args()
    DELAY[0] = given.delay
    print("; ".join(agent(given.outbox, given.answer)))


if __name__ == "__main__":
    main()
