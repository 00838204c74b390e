"""An agent framework that knows nothing of stepwise, made durable by one line.

    python examples/instrumented_agent.py [QUESTION]

``Assistant`` below stands for the framework: it asks the model through the ``openai`` SDK and calls
the tools it was given.  ``stepwise.instrument()`` records each of its model calls; the tools are
decorated.  The model is a script in this file, so that the example needs no key and no network: a
real one answers if ``http_client=`` is left out.

Every request that reaches the model, and every tool, prints a line.  Crash it (Ctrl-C, ``kill -9``,
or ``python -u examples/instrumented_agent.py | head -n 3``) and run it again: no answer is asked
for twice.  If it was killed while it booked, it stops and asks whether the booking was made.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pathlib
from collections.abc import Callable
from typing import Any

import httpx2
import openai

import stepwise
from stepwise import tool, workflow

QUESTION = "Book the cheapest night in Oslo or Bergen."
PRICES = {"Oslo": 140, "Bergen": 95}
BOOKINGS = pathlib.Path("bookings.txt")

Json = dict[str, Any]


# -- the framework: it does not import stepwise ---------------------------------------------------


class Assistant:
    """Asks a model until it answers, and runs the tools that it asks for.

    Args:
        client: of the model.
        tools: functions of texts, with docstrings.
    """

    def __init__(self, client: openai.OpenAI, tools: list[Callable[..., str]]) -> None:
        self.client = client
        self.tools = {each.__name__: each for each in tools}

    def run(self, question: str) -> str:
        """Return the model's answer to a question."""
        messages: list[Json] = [{"role": "user", "content": question}]
        create: Any = self.client.chat.completions.create
        while True:
            reply = create(model="gpt-5", messages=messages, tools=self.described())
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                result = self.tools[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def described(self) -> list[Json]:
        """Return the tools as the model sees them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": inspect.getdoc(function),
                    "parameters": {
                        "type": "object",
                        "properties": {
                            each: {"type": "string"}
                            for each in inspect.signature(function).parameters
                        },
                    },
                },
            }
            for name, function in self.tools.items()
        ]


# -- the model: a script --------------------------------------------------------------------------


def model(request: httpx2.Request) -> httpx2.Response:
    """Look both prices up, book the lower one, then answer."""
    results = [each for each in json.loads(request.content)["messages"] if each["role"] == "tool"]
    print(f"[chat.completions] after {len(results)} results")
    said: Json = {"role": "assistant", "content": None}
    if not results:
        said["tool_calls"] = [tool_call("price", city=city) for city in PRICES]
    elif len(results) == len(PRICES):
        price, city = min(
            (int(each["content"]), city) for city, each in zip(PRICES, results, strict=True)
        )
        said["tool_calls"] = [tool_call("book", city=city, price=str(price))]
    else:
        said["content"] = f"I have booked {results[-1]['content']}."
    choice = {"index": 0, "finish_reason": "stop", "message": said}
    usage = {"prompt_tokens": len(request.content) // 4, "completion_tokens": 9, "total_tokens": 9}
    reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "gpt-5"}
    return httpx2.Response(200, json={**reply, "choices": [choice], "usage": usage})


def tool_call(name: str, **arguments: str) -> Json:
    """Return a call as the model asks for it."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{name}_{arguments['city']}", "type": "function", "function": function}


# -- the program ----------------------------------------------------------------------------------

stepwise.instrument()
client = openai.OpenAI(
    api_key="none is needed",
    http_client=httpx2.Client(transport=httpx2.MockTransport(model)),
)


@tool
def price(city: str) -> str:
    """Return the price of a night in a city."""
    print(f"[price] {city}")
    return str(PRICES[city])


@tool(side_effect=True)
def book(city: str, price: str) -> str:
    """Book a night."""
    print(f"[book] {city}")
    with BOOKINGS.open("a", encoding="utf-8") as file:
        file.write(f"a night in {city} for {price}\n")
    return f"a night in {city} for {price}"


@workflow
def agent(question: str) -> str:
    """Answer a question with the framework."""
    return Assistant(client, [price, book]).run(question)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Book a night.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    print(agent(parser.parse_args().question))


if __name__ == "__main__":
    main()
