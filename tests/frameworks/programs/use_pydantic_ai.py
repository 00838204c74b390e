"""pydantic-ai: ``use_pydantic_ai.py VARIANT/PROVIDER``; ``durable`` ones with our engine."""

import asyncio
import sys

from office import CLAUDE, MODEL, TASK, book_room, look_up, send_email
from pydantic_ai import Agent, AgentRunResultEvent

import stepwise
from stepwise.integrations.pydantic_ai import StepwiseDurability

stepwise.instrument()
variant, _, provider = sys.argv[1].partition("/")
MODELS = {
    "openai": f"openai-chat:{MODEL}",
    "responses": f"openai-responses:{MODEL}",
    "anthropic": f"anthropic:{CLAUDE}",
}
secretary = Agent(
    MODELS[provider],
    name="secretary",
    tools=[look_up, book_room, send_email],
    capabilities=[StepwiseDurability()] if variant.startswith("durable") else [],
)


@stepwise.workflow
def run_sync(task):
    return secretary.run_sync(task).output


@stepwise.workflow
async def run(task):
    result = await secretary.run(task)
    return result.output


@stepwise.workflow
async def stream(task):
    async with secretary.run_stream_events(task) as events:
        last = [event async for event in events][-1]
        assert isinstance(last, AgentRunResultEvent)
        return last.result.output


durable, durable_stream = run, stream
answer = globals()[variant](TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
