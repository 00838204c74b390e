"""An agent of pydantic-ai that answers its customers' e-mails, and can be killed anywhere.

    python examples/pydantic_ai_agent.py [QUESTION] [--latency SECONDS] [--outbox FILE]

Shows ``stepwise.integrations.pydantic_ai``: one capability, and each model request and each call of
a tool is recorded.  The model is a function here, so no key and no network are needed; give the
agent ``"openai:gpt-5"`` instead for a real one.

The model and each tool print a line when they really run.  Crash it (Ctrl-C, ``kill -9``) and run
it again: no request is made twice, and no e-mail is sent twice.  Killed inside ``send_email``, it
stops and asks.  Needs ``stepwise-agents[pydantic-ai]``.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass

from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stepwise import workflow
from stepwise.integrations.pydantic_ai import StepwiseDurability

LATENCY = [0.5]


@dataclass
class Customer:
    """The customer who asks."""

    name: str
    address: str
    outbox: str


async def scripted(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Look up the orders, send an e-mail, and say so."""
    asked = sum(isinstance(message, ModelResponse) for message in messages)
    print(f"[model] request {asked + 1}")
    await asyncio.sleep(LATENCY[0])
    if asked == 0:
        return ModelResponse([ToolCallPart("orders"), ToolCallPart("delays", {"country": "NO"})])
    if asked == 1:
        found = [part.content for part in messages[-1].parts if part.part_kind == "tool-return"]
        body = "; ".join(str(each) for each in found)
        return ModelResponse([ToolCallPart("send_email", {"body": body})])
    return ModelResponse([TextPart("The customer has an answer.")])


support = Agent(
    FunctionModel(scripted),
    deps_type=Customer,
    name="support",
    capabilities=[StepwiseDurability()],
)


@support.tool
async def orders(context: RunContext[Customer]) -> list[int]:
    """Return the numbers of the customer's orders."""
    print(f"[orders] {context.deps.name}")
    await asyncio.sleep(LATENCY[0])
    return [17, 42]


@support.tool_plain
async def delays(country: str) -> str:
    """Say how late parcels to a country are."""
    print(f"[delays] {country}")
    await asyncio.sleep(LATENCY[0])
    return "two days"


@support.tool(metadata={"stepwise": {"side_effect": True}})
def send_email(context: RunContext[Customer], body: str) -> str:
    """Send the customer an e-mail."""
    print(f"[send_email] {context.deps.address}")
    with open(context.deps.outbox, "a", encoding="utf-8") as file:
        file.write(f"{context.deps.address}: {body}\n")
    time.sleep(LATENCY[0])
    return "sent"


@workflow
async def answer(question: str, outbox: str) -> str:
    """Answer a customer's question."""
    ann = Customer("Ann", "ann@example.org", outbox)
    result = await support.run(question, deps=ann, usage_limits=UsageLimits(request_limit=5))
    return f"{result.output} ({result.usage.requests} requests)"


def main() -> None:
    """Answer the question on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("question", nargs="?", default="Where is my parcel?")
    parser.add_argument("--latency", type=float, default=LATENCY[0], help="seconds of each call")
    parser.add_argument("--outbox", default="outbox.txt", help="the file that e-mails go to")
    arguments = parser.parse_args()
    LATENCY[0] = arguments.latency
    print(asyncio.run(answer(arguments.question, arguments.outbox)))


if __name__ == "__main__":
    main()
