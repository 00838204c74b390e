"""LangGraph with our saver and with its SQLite saver: time per step, bytes, time to load.

    python benchmarks/langgraph_saver.py [--turns 500] [--rounds 5]

A conversation of messages of 2 KB, in a graph of one node with ``add_messages``; each turn has a
message of the user and one of the model.  The savers take turns, round by round, each in a process
of its own; the state is then loaded in new processes.  A step is a turn: three checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

SAVERS = ("stepwise disk:", "SqliteSaver")
THREAD = {"configurable": {"thread_id": "talk"}}


def saver_of(name: str, folder: str):
    """Open a saver in a folder."""
    if name == "SqliteSaver":
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver

        path = os.path.join(folder, "checkpoints.sqlite")
        return SqliteSaver(sqlite3.connect(path, check_same_thread=False))
    from stepwise.integrations.langgraph import StepwiseSaver

    return StepwiseSaver(f"{name.split()[1]}{folder}/store")


def graph_of(saver):
    """Return the graph, and the random texts that its messages hold."""
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    random = Random(1)

    def model(state):
        return {"messages": [AIMessage(text(random))]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver), random


def text(random: Random) -> str:
    """Return 2 KB that no compression makes smaller than half of that."""
    return random.randbytes(1024).hex()


def talk(name: str, folder: str, turns: int) -> None:
    """Print the seconds of each turn."""
    graph, random = graph_of(saver_of(name, folder))
    seconds = []
    for _ in range(turns):
        started = time.perf_counter()
        graph.invoke({"messages": [("user", text(random))]}, THREAD, durability="sync")
        seconds.append(time.perf_counter() - started)
    print(json.dumps(seconds))


def load(name: str, folder: str) -> None:
    """Print the seconds to load the state, imports aside."""
    graph, _ = graph_of(saver_of(name, folder))
    started = time.perf_counter()
    state = graph.get_state(THREAD)
    seconds = time.perf_counter() - started
    size = sum(len(each.content) for each in state.values["messages"])
    print(json.dumps([seconds, len(state.values["messages"]), size]))


def child(*args: object) -> list:
    """Execute a part in a process of its own."""
    command = [sys.executable, __file__, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def size_of(folder: str) -> int:
    """Return the bytes of the files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def spread(values: list[float]) -> str:
    """Return median and quartiles of times, in milliseconds."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{1000 * middle:8.2f} ms ({1000 * low:.2f} to {1000 * high:.2f})"


def main(turns: int, rounds: int) -> None:
    """Measure, alternating, and print."""
    folder = tempfile.mkdtemp(prefix="langgraph-saver-", dir=os.environ.get("BENCH_FOLDER"))
    os.environ["STEPWISE_HOME"] = os.path.join(folder, "home")
    os.environ.pop("STEPWISE_STORE", None)
    steps: dict[str, list[float]] = {name: [] for name in SAVERS}
    last: dict[str, list[float]] = {name: [] for name in SAVERS}
    loads: dict[str, list[float]] = {name: [] for name in SAVERS}
    sizes: dict[str, int] = {}
    content = 0
    for number in range(rounds):
        for place in range(len(SAVERS)):
            name = SAVERS[(place + number) % len(SAVERS)]
            path = os.path.join(folder, f"{number}-{SAVERS.index(name)}")
            os.mkdir(path)
            seconds = child("talk", name, path, turns)
            steps[name] += seconds
            last[name] += seconds[-turns // 10 :]
            sizes[name] = size_of(path)
            for _ in range(3):
                each, _, content = child("load", name, path)
                loads[name].append(each)
            shutil.rmtree(path)
    print(f"{turns} turns, {rounds} rounds, {content / 1e6:.2f} MB of text in the messages")
    for name in SAVERS:
        print(
            f"{name:16}  turn {spread(steps[name])}, the last tenth {spread(last[name])}, "
            f"{sizes[name] / 1e6:7.2f} MB, load {spread(loads[name])}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["talk"]:
        talk(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["load"]:
        load(sys.argv[2], sys.argv[3])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--turns", type=int, default=500)
        parser.add_argument("--rounds", type=int, default=5)
        given = parser.parse_args()
        main(given.turns, given.rounds)
