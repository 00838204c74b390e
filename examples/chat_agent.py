"""An agent that chooses its tools, over the OpenAI protocol.

    python examples/chat_agent.py [QUESTION] [--model NAME] [--latency SECONDS]

Shows the loop at the heart of an agent: ask the model, run the tools it asks for, send the results
back, until it answers.  By default the model is ``chat_server.py`` beside this file, started
here; with ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` set, it is any other.

Every step prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``, or
``python -u examples/chat_agent.py | head -n 3``) and run it again: no answer is asked, or paid, for
twice.  If it was killed while it saved a note, it stops and asks whether the note was saved.
"""

from __future__ import annotations

import argparse
import ast
import functools
import html
import inspect
import json
import operator
import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import chat_server
import openai

from stepwise import step, tool, workflow

QUESTION = (
    "How many seconds slow was Harrison's H4 after the voyage to Jamaica? "
    "How much is that a day: 5.1 / 81? Save a note of that."
)
SITE = pathlib.Path(__file__).with_name("site")
NOTES = pathlib.Path("notes.txt")
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

Json = dict[str, Any]


# -- tools ----------------------------------------------------------------------------------------


@tool
def search(query: str) -> str:
    """Find the sentence on our pages about longitude that fits a query best."""
    print(f"[search] {query}")
    sentences = [sentence for page in sorted(SITE.glob("*.html")) for sentence in read(page)]
    common = Counter(word for sentence in sentences for word in words_of(sentence))
    wanted = words_of(query)
    best = max(sentences, key=lambda each: sum(1 / common[w] for w in wanted & words_of(each)))
    return best if wanted & words_of(best) else "nothing"


def read(page: pathlib.Path) -> list[str]:
    """The sentences of a page."""
    paragraphs = re.findall(r"<(?:p|li)>(.*?)</(?:p|li)>", page.read_text("utf-8"), re.DOTALL)
    texts = [html.unescape(re.sub(r"<[^>]+>", "", each)) for each in paragraphs]
    return [" ".join(s.split()) for text in texts for s in re.split(r"(?<=[.?!])\s+", text)]


def words_of(text: str) -> set[str]:
    """The words of a text, in small letters."""
    return set(re.findall(r"\w+", text.lower()))


@tool
def calculate(expression: str) -> str:
    """Work out a sum of numbers with + - * / and brackets."""
    print(f"[calculate] {expression}")
    return f"{evaluate(ast.parse(expression, mode='eval').body):.6g}"


def evaluate(node: ast.expr) -> float:
    """The value of an expression of numbers; nothing else is executed."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
    raise ValueError(f"{ast.unparse(node)!r} is not a sum of numbers")


@tool(side_effect=True)
def save_note(text: str) -> str:
    """Save a note for later."""
    print(f"[save_note] {text}")
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return "saved"


TOOLS: dict[str, Callable[..., str]] = {
    function.__name__: function for function in (search, calculate, save_note)
}


def describe(function: Callable[..., str]) -> Json:
    """A tool in the words of the protocol; all our parameters are strings."""
    names = list(inspect.signature(function).parameters)
    return {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": inspect.getdoc(function),
            "parameters": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in names},
                "required": names,
            },
        },
    }


# -- the agent ------------------------------------------------------------------------------------


@functools.cache
def client() -> openai.OpenAI:
    """The client; what is worth another try is the step's to know."""
    return openai.OpenAI(max_retries=0)


@step(
    retries=3,
    retry_on=(openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError),
)
def ask_model(model: str, messages: list[Json], tools: list[Json]) -> Json:
    """The model's next message."""
    print(f"[ask_model] {len(messages)} messages")
    create: Any = client().chat.completions.create
    reply = create(model=model, messages=messages, tools=tools)
    message: Json = reply.choices[0].message.model_dump(exclude_none=True)
    return message


def use_tool(name: str, arguments: str) -> str:
    """Run a tool that the model asked for; it is told of its own mistakes."""
    if name not in TOOLS:
        return f"error: there is no tool {name!r}"
    try:
        return TOOLS[name](**json.loads(arguments))
    except (ArithmeticError, SyntaxError, TypeError, ValueError) as error:
        return f"error: {error}"


@workflow
def agent(question: str, model: str) -> str:
    """Answer a question, with as many tools as it takes."""
    messages: list[Json] = [
        {"role": "system", "content": "Answer briefly, from what the tools return."},
        {"role": "user", "content": question},
    ]
    tools = [describe(function) for function in TOOLS.values()]
    for _ in range(20):
        message = ask_model(model, messages, tools)
        messages.append(message)
        calls = message.get("tool_calls", [])
        for call in calls:
            result = use_tool(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not calls:
            return str(message["content"])
    return "There is no end to this question."


def main() -> None:
    """Read the command line; without a server to ask, start our own."""
    parser = argparse.ArgumentParser(description="Ask an agent.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--model", default="rules", help="the server's name for it (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.5, help="of our server (%(default)s)")
    given = parser.parse_args()
    if "OPENAI_BASE_URL" not in os.environ:
        os.environ["OPENAI_BASE_URL"] = chat_server.start(latency=given.latency)
        os.environ["OPENAI_API_KEY"] = "none is needed"
    print(agent(given.question, given.model))


if __name__ == "__main__":
    main()
