"""litellm, with a loop of one's own: ``use_litellm.py VARIANT``."""

import asyncio
import json
import sys

import litellm
from office import CLAUDE, MODEL, OPENAI_TOOLS, TASK, TOOLS

import stepwise

stepwise.instrument()


def use_tools(messages, reply):
    """Append a reply and the results of the tools that it calls."""
    messages.append(reply.model_dump(exclude_none=True))
    for call in reply.tool_calls or ():
        result = TOOLS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@stepwise.workflow
def complete(model, task):
    messages = [{"role": "user", "content": task}]
    while True:
        completion = litellm.completion(model, messages, tools=OPENAI_TOOLS)
        reply = completion.choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


@stepwise.workflow
def stream(model, task):
    messages = [{"role": "user", "content": task}]
    while True:
        pieces = litellm.completion(model, messages, tools=OPENAI_TOOLS, stream=True)
        reply = litellm.stream_chunk_builder([*pieces]).choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


@stepwise.workflow
async def complete_async(model, task):
    messages = [{"role": "user", "content": task}]
    while True:
        completion = await litellm.acompletion(model, messages, tools=OPENAI_TOOLS)
        reply = completion.choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


@stepwise.workflow
async def stream_async(model, task):
    messages = [{"role": "user", "content": task}]
    while True:
        pieces = await litellm.acompletion(model, messages, tools=OPENAI_TOOLS, stream=True)
        chunks = [piece async for piece in pieces]
        reply = litellm.stream_chunk_builder(chunks).choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


variant, _, provider = sys.argv[1].partition("/")
answer = globals()[variant]({"openai": MODEL, "anthropic": f"anthropic/{CLAUDE}"}[provider], TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
