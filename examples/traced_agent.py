"""An agent in a trace that survives a kill, printed as a tree.

    python examples/traced_agent.py [TOPIC ...] [--latency SECONDS] [--traces FILE] [--outbox FILE]

Shows ``stepwise.integrations.opentelemetry``: a span for the run and for each step, and a retry.
The spans go to a file here, at once; a service would send them in batches, by the OTLP exporter::

    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

Every step prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``) and run it again: the
same trace continues, and what was done is an event of the run's new span.  Needs
``opentelemetry-sdk``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from stepwise import current_step, step, tool, workflow
from stepwise.integrations.opentelemetry import instrument

LATENCY = [0.2]


@step
def plan(topics: list[str]) -> list[str]:
    """A model would be asked for queries here."""
    print(f"[plan] {', '.join(topics)}")
    time.sleep(LATENCY[0])
    return [f"news about {topic}" for topic in topics]


@tool(retries=2, backoff=0)
def search(query: str) -> str:
    """Search the web, where the first attempt fails."""
    print(f"[search] {query}")
    with trace.get_tracer("traced_agent").start_as_current_span("GET /search"):
        time.sleep(LATENCY[0])
        if current_step().attempt == 1:
            raise ConnectionError("the search engine is busy")
    return f"3 pages of {query}"


@tool(side_effect=True)
def append(path: str, lines: list[str]) -> int:
    """The side effect: lines in the outbox."""
    print(f"[append] {os.path.basename(path)}")
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return len(lines)


@workflow
def news(topics: list[str], outbox: str) -> int:
    """Search for each topic, and note what was found."""
    found = [search(query) for query in plan(topics)]
    return append(outbox, found)


def tree(spans: list[dict[str, Any]], parent: str | None, depth: int) -> Iterator[str]:
    """Lines that show the spans below one, each with its events."""
    for span in spans:
        if span["parent_id"] == parent:
            events = [
                event["attributes"].get("stepwise.step.name") or event["name"]
                for event in span["events"]
                if event["name"] in ("stepwise.step.answered", "exception")
            ]
            told = f"  ({', '.join(events)})" if events else ""
            yield f"{'  ' * depth}{span['name']}{told}"
            yield from tree(spans, span["context"]["span_id"], depth + 1)


def show(path: str) -> None:
    """Print the newest trace of a file; an attempt that was killed has not sent its own span."""
    with open(path, encoding="utf-8") as file:
        spans = [json.loads(line) for line in file]
    newest = spans[-1]["context"]["trace_id"]
    spans = [span for span in spans if span["context"]["trace_id"] == newest]
    spans.sort(key=lambda span: str(span["start_time"]))
    known = {span["context"]["span_id"] for span in spans} | {None}
    for lost in dict.fromkeys(s["parent_id"] for s in spans if s["parent_id"] not in known):
        print("invoke_workflow news, killed")
        print("\n".join(tree(spans, lost, 1)))
    for line in tree(spans, None, 0):
        print(line)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("topics", nargs="*", default=["tides", "winds"])
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--traces", default="traces.jsonl")
    parser.add_argument("--outbox", default="outbox.txt")
    options = parser.parse_args()
    LATENCY[0] = options.latency

    provider = TracerProvider()
    with open(options.traces, "a", encoding="utf-8") as file:
        exporter = ConsoleSpanExporter(out=file, formatter=lambda s: s.to_json(indent=None) + "\n")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        instrument()
        count = news(options.topics, os.path.abspath(options.outbox))
        provider.shutdown()
    print(f"{count} lines in {options.outbox}")
    show(options.traces)


if __name__ == "__main__":
    main()
