"""A review of a text by a graph: checks side by side, a judge that sends back, a human at the end.

    python examples/review_graph.py [FILE] [--outbox FILE] [--longest N] [--answer yes|no]

Three checks read the text in branches of their own and meet in ``collect``.  ``draft`` writes the
review, ``judge`` sends it back while it is longer than ``--longest`` lines; then the run pauses
until a human says whether ``publish`` may append it to the outbox.

Every node prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``, or
``python -u examples/review_graph.py | head -n 4``) or leave it at its question, and run it again:
it resumes where it was.  If it was killed while publishing, it stops and asks.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from pathlib import Path
from typing import Any

from stepwise import tool
from stepwise.graph import AgentRunner, CheckpointConfig, Edge, ExecutionResult, Graph, Memory, Node


def load(memory: Memory) -> dict[str, Any]:
    """The text, paragraph by paragraph."""
    print(f"[load] {memory['file']}")
    text = Path(memory["file"]).read_text(encoding="utf-8")
    return {"paragraphs": re.split(r"\n\s*\n", text)}


def repeated(memory: Memory) -> list[str]:
    """Words that stand twice in a row."""
    print("[repeated]")
    found = [re.findall(r"\b(\w{2,}) \1\b", each) for each in memory["paragraphs"]]
    return [f"'{word}' stands twice in a row" for words in found for word in words]


def links(memory: Memory) -> list[str]:
    """Links to files that are not there."""
    print("[links]")
    folder = Path(memory["file"]).parent
    found = re.findall(r"\]\(([^)#:]+)[^):]*\)", "\n".join(memory["paragraphs"]))
    return [f"{link} is not there" for link in found if not (folder / link).exists()]


async def sentences(memory: Memory) -> list[str]:
    """The longest sentences, by their number of words."""
    print("[sentences]")
    prose = " ".join(each for each in memory["paragraphs"] if each[:1].isalpha())
    by_length = sorted(re.split(r"(?<=[.!?]) ", prose), key=lambda each: -len(each.split()))
    return [f"{len(each.split())} words: {' '.join(each.split())[:60]}" for each in by_length[:9]]


def collect(memory: Memory) -> dict[str, Any]:
    """What the three found, the gravest first."""
    print("[collect]")
    found = [*memory["links"], *memory["repeated"], *memory["sentences"]]
    return {"findings": found, "kept": len(found)}


def draft(memory: Memory) -> str:
    """The review: a line for each finding that is kept."""
    print(f"[draft] {memory.visit}, {memory['kept']} findings")
    lines = [f"- {each}" for each in memory["findings"][: memory["kept"]]]
    return "\n".join([f"Review of {os.path.basename(memory['file'])}:", *lines])


def judge(memory: Memory) -> dict[str, Any]:
    """Whether it is short enough; if not, it is to be cut to two thirds."""
    lines = len(memory["draft"].splitlines())
    good = lines <= memory["longest"]
    print(f"[judge] {lines} lines: {'good' if good else 'too long'}")
    return {"good": good, "kept": memory["kept"] if good else memory["kept"] * 2 // 3}


@tool(side_effect=True)
def append(path: str, text: str) -> None:
    """The side effect: the review in the outbox."""
    print("[append]")
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def publish(memory: Memory) -> str:
    """What a human has approved."""
    append(memory["outbox"], memory["draft"])
    return "published"


GRAPH = Graph(
    name="review",
    nodes=[
        Node("load", load),
        Node("repeated", repeated),
        Node("links", links),
        Node("sentences", sentences),
        Node("collect", collect, join=True),
        Node("draft", draft),
        Node("judge", judge),
        Node("approve", pause=True),
        Node("publish", publish),
    ],
    edges=[
        *(Edge("load", check) for check in ("repeated", "links", "sentences")),
        *(Edge(check, "collect") for check in ("repeated", "links", "sentences")),
        Edge("collect", "draft"),
        Edge("draft", "judge"),
        Edge("judge", "draft", when=lambda memory: not memory["good"]),
        Edge("judge", "approve", when=lambda memory: memory["good"]),
        Edge("approve", "publish", when=lambda memory: memory["approved"]),
    ],
)


def review(file: str, outbox: str, longest: int, answer: str | None) -> ExecutionResult:
    """Run the graph; ask at its pause."""
    runner = AgentRunner(GRAPH, CheckpointConfig(), goal="a review")
    result = asyncio.run(runner.run({"file": file, "outbox": outbox, "longest": longest}))
    while result.paused_at:
        print(result.output["draft"])
        said = answer or input("Publish it? yes or no: ")
        result = asyncio.run(runner.run({"approved": said == "yes"}, result.run_id))
    if result.exception is not None:
        raise result.exception
    return result


def main() -> None:
    """Review what the command line names."""
    readme = Path(__file__).resolve().parents[1] / "README.md"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", default=str(readme))
    parser.add_argument("--outbox", default="outbox.txt")
    parser.add_argument("--longest", type=int, default=6)
    parser.add_argument("--answer", choices=["yes", "no"])
    options = parser.parse_args()
    outbox = os.path.abspath(options.outbox)
    result = review(options.file, outbox, options.longest, options.answer)
    print(f"Path: {' '.join(result.path)}")
    print(f"Outcome: {result.output.get('publish', 'not published')}")


if __name__ == "__main__":
    main()
