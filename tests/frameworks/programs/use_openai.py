"""The OpenAI SDK, with a loop of one's own: ``use_openai.py VARIANT``."""

import asyncio
import json
import sys

import openai
from office import MODEL, OPENAI_TOOLS, RESPONSES_TOOLS, TASK, TOOLS

import stepwise

stepwise.instrument()
client = openai.OpenAI()
async_client = openai.AsyncOpenAI()


def use_tools(messages, reply):
    """Append a reply and the results of the tools that it calls."""
    messages.append(reply.model_dump(exclude_none=True))
    for call in reply.tool_calls or ():
        result = TOOLS[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@stepwise.workflow
def chat(task):
    messages = [{"role": "user", "content": task}]
    while True:
        completion = client.chat.completions.create(
            model=MODEL, messages=messages, tools=OPENAI_TOOLS
        )
        reply = completion.choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


@stepwise.workflow
def raw(task):
    messages = [{"role": "user", "content": task}]
    while True:
        response = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, tools=OPENAI_TOOLS
        )
        reply = response.parse().choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


@stepwise.workflow
async def chat_async(task):
    messages = [{"role": "user", "content": task}]
    while True:
        completion = await async_client.chat.completions.create(
            model=MODEL, messages=messages, tools=OPENAI_TOOLS
        )
        reply = completion.choices[0].message
        use_tools(messages, reply)
        if not reply.tool_calls:
            return reply.content


def join(pieces):
    """Put the pieces of a streamed message together."""
    text, calls = "", {}
    for chunk in pieces:
        delta = chunk.choices[0].delta if chunk.choices else None
        text += (delta and delta.content) or ""
        for part in (delta and delta.tool_calls) or ():
            call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {}})
            call["function"].setdefault("name", part.function.name)
            call["function"]["arguments"] = (
                call["function"].get("arguments", "") + part.function.arguments
            )
    return {"role": "assistant", "content": text, "tool_calls": [*calls.values()]}


def use_joined(messages, reply):
    messages.append({name: value for name, value in reply.items() if value})
    for call in reply["tool_calls"]:
        function = call["function"]
        result = TOOLS[function["name"]](**json.loads(function["arguments"]))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@stepwise.workflow
def stream(task):
    messages = [{"role": "user", "content": task}]
    while True:
        pieces = client.chat.completions.create(
            model=MODEL, messages=messages, tools=OPENAI_TOOLS, stream=True
        )
        reply = join(pieces)
        use_joined(messages, reply)
        if not reply["tool_calls"]:
            return reply["content"]


@stepwise.workflow
async def stream_async(task):
    messages = [{"role": "user", "content": task}]
    while True:
        pieces = await async_client.chat.completions.create(
            model=MODEL, messages=messages, tools=OPENAI_TOOLS, stream=True
        )
        reply = join([piece async for piece in pieces])
        use_joined(messages, reply)
        if not reply["tool_calls"]:
            return reply["content"]


def use_items(items, response):
    """Append the output of a response and the results of the tools that it calls."""
    items += [item.model_dump(exclude_none=True) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    for call in calls:
        result = TOOLS[call.name](**json.loads(call.arguments))
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    return calls


@stepwise.workflow
def responses(task):
    items = [{"role": "user", "content": task}]
    while True:
        response = client.responses.create(model=MODEL, input=items, tools=RESPONSES_TOOLS)
        if not use_items(items, response):
            return response.output_text


@stepwise.workflow
def responses_stream(task):
    items = [{"role": "user", "content": task}]
    while True:
        with client.responses.stream(model=MODEL, input=items, tools=RESPONSES_TOOLS) as events:
            response = events.get_final_response()
        if not use_items(items, response):
            return response.output_text


variant = globals()[sys.argv[1]]
answer = variant(TASK)
print(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
