"""SDKs of providers, with a loop of one's own: ``SDK/VARIANT``.

Most of them instrument() does not know by name, but by the shape of their requests.

Each asks in its own way: ``ask(messages)`` returns a message and its calls, in the form of chat
completions, for a model that is called at once, streamed, or awaited.
"""

import asyncio
import dataclasses
import json
import os
import sys

from office import (
    ANTHROPIC_TOOLS,
    CLAUDE,
    MODEL,
    OPENAI_TOOLS,
    RESPONSES_TOOLS,
    SCHEMAS,
    TASK,
    TOOLS,
    joined,
)

import stepwise

stepwise.instrument()
URL = os.environ["ANTHROPIC_BASE_URL"]  # of the server, without a path
sdk, _, variant = sys.argv[1].partition("/")
STREAM, ASYNC = "stream" in variant, "async" in variant


def message_of(choice):
    """A message of chat completions, as plain data."""
    if not dataclasses.is_dataclass(choice.message):
        return choice.message.model_dump(exclude_none=True)
    return {name: each for name, each in dataclasses.asdict(choice.message).items() if each}


def of_openai_shape(create, acreate, model=MODEL):
    """Return ``ask`` for an SDK whose methods are like those of OpenAI's."""

    def options(messages):
        return {"model": model, "messages": messages, "tools": OPENAI_TOOLS}

    def ask(messages):
        if not STREAM:
            return message_of(create(**options(messages)).choices[0])
        return joined(create(**options(messages), stream=True))

    async def ask_async(messages):
        if not STREAM:
            return message_of((await acreate(**options(messages))).choices[0])
        return joined([each async for each in await acreate(**options(messages), stream=True)])

    return ask_async if ASYNC else ask


def openai():
    import openai

    client, aclient = openai.OpenAI(), openai.AsyncOpenAI()
    if "responses" in variant:
        return lambda messages: of_responses(client.responses, messages)
    chat, achat = client.chat.completions.create, aclient.chat.completions.create
    if "raw" in variant:
        raw = client.chat.completions.with_raw_response.create
        return of_openai_shape(lambda **options: raw(**options).parse(), achat)
    return of_openai_shape(chat, achat)


def of_responses(client, messages):
    """Ask by OpenAI's responses; a message keeps its items beside what it says."""
    items = []
    for message in messages:
        if message["role"] == "tool":
            result = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **result})
        else:
            items += message.get("items") or [message]
    options = {"model": MODEL, "input": items, "tools": RESPONSES_TOOLS}
    if STREAM:
        with client.stream(**options) as events:
            response = events.get_final_response()
    else:
        response = client.create(**options)
    calls = [item for item in response.output if item.type == "function_call"]
    return {
        "role": "assistant",
        "content": response.output_text,
        "tool_calls": [call_of(each.call_id, each.name, each.arguments) for each in calls],
        "items": [item.model_dump(exclude_none=True) for item in response.output],
    }


def call_of(id_, name, arguments):
    return {"id": id_, "function": {"name": name, "arguments": arguments}}


def anthropic():
    import anthropic

    client, aclient = anthropic.Anthropic().messages, anthropic.AsyncAnthropic().messages

    def options(messages):
        said = []
        for message in messages:
            if message["role"] != "tool":
                content = message.get("blocks") or message["content"]
                said.append({"role": message["role"], "content": content})
                continue
            if said[-1]["role"] == "assistant":  # the results of one answer are one message
                said.append({"role": "user", "content": []})
            result = {"tool_use_id": message["tool_call_id"], "content": message["content"]}
            said[-1]["content"].append({"type": "tool_result", **result})
        return {"model": CLAUDE, "max_tokens": 1000, "messages": said, "tools": ANTHROPIC_TOOLS}

    def whole(reply):
        blocks = [block.model_dump(exclude_none=True) for block in reply.content]
        uses = [block for block in reply.content if block.type == "tool_use"]
        return {
            "role": "assistant",
            "content": "".join(each.text for each in reply.content if each.type == "text"),
            "tool_calls": [call_of(each.id, each.name, each.input) for each in uses],
            "blocks": blocks,
        }

    def ask(messages):
        if STREAM:
            with client.stream(**options(messages)) as events:
                return whole(events.get_final_message())
        return whole(client.create(**options(messages)))

    async def ask_async(messages):
        if STREAM:
            async with aclient.stream(**options(messages)) as events:
                return whole(await events.get_final_message())
        return whole(await aclient.create(**options(messages)))

    return ask_async if ASYNC else ask


def litellm():
    import litellm

    model = f"anthropic/{CLAUDE}" if "anthropic" in variant else MODEL
    return of_openai_shape(litellm.completion, litellm.acompletion, model)


def groq():
    import groq

    client, aclient = (cls(api_key="k", base_url=URL) for cls in (groq.Groq, groq.AsyncGroq))
    return of_openai_shape(client.chat.completions.create, aclient.chat.completions.create)


def together():
    import together

    classes = (together.Together, together.AsyncTogether)
    client, aclient = (cls(api_key="k", base_url=f"{URL}/v1") for cls in classes)
    return of_openai_shape(client.chat.completions.create, aclient.chat.completions.create)


def huggingface():
    import huggingface_hub
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = False  # for tests it is; this server is no network
    classes = (huggingface_hub.InferenceClient, huggingface_hub.AsyncInferenceClient)
    client, aclient = (cls(base_url=f"{URL}/v1", api_key="k") for cls in classes)
    return of_openai_shape(client.chat.completions.create, aclient.chat.completions.create)


def mistral():
    from mistralai.client import Mistral

    chat = Mistral(api_key="k", server_url=URL).chat

    def create(stream=False, **options):
        if not stream:
            return chat.complete(**options)
        return (each.data for each in chat.stream(**options))

    async def acreate(stream=False, **options):
        if not stream:
            return await chat.complete_async(**options)
        events = await chat.stream_async(**options)
        return (each.data async for each in events)

    return of_openai_shape(create, acreate, "mistral-large")


def cohere():
    import cohere

    client, aclient = (
        cls(api_key="k", base_url=URL) for cls in (cohere.ClientV2, cohere.AsyncClientV2)
    )

    def plain(message):
        message = message.model_dump(exclude_none=True)
        text = "".join(each["text"] for each in message.get("content") or ())
        return {**message, "content": text} if text else message

    def whole(events):
        text, calls = "", []
        for event in events:
            if event.type == "content-delta":
                text += event.delta.message.content.text
            elif event.type == "tool-call-start":
                calls.append(event.delta.message.tool_calls.model_dump(exclude_none=True))
            elif event.type == "tool-call-delta":
                calls[-1]["function"]["arguments"] += (
                    event.delta.message.tool_calls.function.arguments
                )
        message = {"role": "assistant", "content": text, "tool_calls": calls}
        return {name: value for name, value in message.items() if value}

    def ask(messages):
        options = {"model": MODEL, "messages": messages, "tools": OPENAI_TOOLS}
        if STREAM:
            return whole(client.chat_stream(**options))
        return plain(client.chat(**options).message)

    async def ask_async(messages):
        options = {"model": MODEL, "messages": messages, "tools": OPENAI_TOOLS}
        if STREAM:
            return whole([each async for each in aclient.chat_stream(**options)])
        return plain((await aclient.chat(**options)).message)

    return ask_async if ASYNC else ask


def ollama():
    import ollama

    client, aclient = ollama.Client(host=URL), ollama.AsyncClient(host=URL)

    def whole(parts):
        message = {"role": "assistant", "content": "", "tool_calls": []}
        for part in parts:
            said = part.message.model_dump(exclude_none=True)
            message["content"] += said.get("content", "")
            message["tool_calls"] += said.get("tool_calls", ())
        return message

    def ask(messages):
        options = {"model": MODEL, "messages": messages, "tools": OPENAI_TOOLS}
        if STREAM:
            return whole(client.chat(**options, stream=True))
        return whole([client.chat(**options)])

    async def ask_async(messages):
        options = {"model": MODEL, "messages": messages, "tools": OPENAI_TOOLS}
        if STREAM:
            return whole([each async for each in await aclient.chat(**options, stream=True)])
        return whole([await aclient.chat(**options)])

    return ask_async if ASYNC else ask


def gemini():
    import httpx
    from google import genai

    http_options = {"base_url": URL}
    if ASYNC:  # where aiohttp is installed, it would be used, which nobody sees
        http_options["httpx_async_client"] = httpx.AsyncClient()
    client = genai.Client(api_key="k", http_options=http_options)
    functions = [
        {
            "name": name,
            "description": TOOLS[name].__doc__,
            "parameters": {"type": "OBJECT", "properties": {k: {"type": "STRING"} for k in each}},
        }
        for name, each in ((name, schema["properties"]) for name, schema in SCHEMAS.items())
    ]

    def options(messages):
        contents, names = [], {}
        for message in messages:
            parts = [{"text": message["content"]}] if message.get("content") else []
            for call in message.get("tool_calls", ()):
                function = call["function"]
                names[call["id"]] = function["name"]
                part = {"name": function["name"], "args": function["arguments"], "id": call["id"]}
                parts.append({"function_call": part})
            if message["role"] == "tool":
                id_ = message["tool_call_id"]
                given = {"id": id_, "name": names[id_], "response": {"result": message["content"]}}
                parts = [{"function_response": given}]
            role = "model" if message["role"] == "assistant" else "user"
            contents.append({"role": role, "parts": parts})
        tools = [{"function_declarations": functions}]
        off = {"disable": True}
        config = {"tools": tools, "automatic_function_calling": off}
        return {"model": "gemini-2.5-flash", "contents": contents, "config": config}

    def whole(answers):
        message = {"role": "assistant", "content": "", "tool_calls": []}
        for part in (part for each in answers for part in each.candidates[0].content.parts):
            message["content"] += part.text or ""
            call = part.function_call
            if call:
                function = {"name": call.name, "arguments": call.args}
                message["tool_calls"].append({"id": call.id, "function": function})
        return message

    def ask(messages):
        if STREAM:
            return whole(client.models.generate_content_stream(**options(messages)))
        return whole([client.models.generate_content(**options(messages))])

    async def ask_async(messages):
        if STREAM:
            events = await client.aio.models.generate_content_stream(**options(messages))
            return whole([each async for each in events])
        return whole([await client.aio.models.generate_content(**options(messages))])

    return ask_async if ASYNC else ask


def use_tools(messages, message):
    """Append a message and the results of its tool calls; return whether there were any."""
    messages.append(message)
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        result = {"role": "tool", "content": TOOLS[call["function"]["name"]](**given)}
        if "id" in call:
            result["tool_call_id"] = call["id"]
        messages.append(result)
    return bool(message.get("tool_calls"))


ask = globals()[sdk]()


@stepwise.workflow
def agent(task):
    messages = [{"role": "user", "content": task}]
    while use_tools(messages, ask(messages)):
        pass
    return messages[-1]["content"]


@stepwise.workflow
async def agent_async(task):
    messages = [{"role": "user", "content": task}]
    while use_tools(messages, await ask(messages)):
        pass
    return messages[-1]["content"]


print(asyncio.run(agent_async(TASK)) if ASYNC else agent(TASK))
