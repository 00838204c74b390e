"""The Anthropic SDK, with a loop of one's own: ``use_anthropic.py VARIANT``."""

import asyncio
import sys

import anthropic
from office import ANTHROPIC_TOOLS, CLAUDE, TASK, TOOLS

import stepwise

stepwise.instrument()
client = anthropic.Anthropic()
async_client = anthropic.AsyncAnthropic()


def use_tools(messages, reply):
    """Append a reply and the results of the tools that it calls; return whether there were any."""
    content = [block.model_dump(exclude_none=True) for block in reply.content]
    messages.append({"role": "assistant", "content": content})
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": TOOLS[block.name](**block.input),
        }
        for block in reply.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
    return bool(results)


@stepwise.workflow
def messages(task):
    said = [{"role": "user", "content": task}]
    while True:
        reply = client.messages.create(
            model=CLAUDE, max_tokens=1000, messages=said, tools=ANTHROPIC_TOOLS
        )
        if not use_tools(said, reply):
            return reply.content[0].text


@stepwise.workflow
async def messages_async(task):
    said = [{"role": "user", "content": task}]
    while True:
        reply = await async_client.messages.create(
            model=CLAUDE, max_tokens=1000, messages=said, tools=ANTHROPIC_TOOLS
        )
        if not use_tools(said, reply):
            return reply.content[0].text


@stepwise.workflow
def stream(task):
    said = [{"role": "user", "content": task}]
    while True:
        with client.messages.stream(
            model=CLAUDE, max_tokens=1000, messages=said, tools=ANTHROPIC_TOOLS
        ) as events:
            reply = events.get_final_message()
        if not use_tools(said, reply):
            return reply.content[0].text


@stepwise.workflow
async def stream_async(task):
    said = [{"role": "user", "content": task}]
    while True:
        async with async_client.messages.stream(
            model=CLAUDE, max_tokens=1000, messages=said, tools=ANTHROPIC_TOOLS
        ) as events:
            reply = await events.get_final_message()
        if not use_tools(said, reply):
            return reply.content[0].text


variant = globals()[sys.argv[1]]
answer = variant(TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
