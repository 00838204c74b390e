"""The tools of an office: each writes to a ledger when it begins, and what it has done.

``DIE_IN="look_up Bob: did"`` kills the process as soon as that line has been written, once.
"""

import json
import os
import signal

import stepwise
from stepwise import DidNotHappen, Landed, tool

TASK = "Write to Ann: we meet in a room that is free."
MODEL = "gpt-4o"
CLAUDE = "claude-opus-4-6"

if os.environ.get("PLAIN"):  # the control: what comes of it without the line under test
    stepwise.instrument = lambda *_: None


def note(line):
    """Append a line to the ledger; die if it is the line to die at."""
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)
    dying = os.environ.get("DIE_IN", "")
    if dying and line.startswith(dying):
        os.kill(os.getpid(), signal.SIGKILL)


def is_in_ledger(call):
    """Find out whether a side effect that was cut off had happened."""
    name, what = call.name.rpartition(".")[2], json.dumps(call.arguments)
    with open(os.environ["LEDGER"], encoding="utf-8") as file:
        done = f"did {name} {what}" in file.read().splitlines()
    return Landed("done") if done else DidNotHappen


@tool
def look_up(name: str) -> str:
    """Look up the address of a person.

    Args:
        name: The person's first name.
    """
    note(f"began look_up {json.dumps({'name': name})}")
    note(f"did look_up {json.dumps({'name': name})}")
    return f"{name.lower()}@example.org"


@tool(side_effect=True, in_doubt=is_in_ledger)
def book_room(room: str) -> str:
    """Book a meeting room.

    Args:
        room: The name of the room.
    """
    note(f"began book_room {json.dumps({'room': room})}")
    note(f"did book_room {json.dumps({'room': room})}")
    return "done"


@tool(side_effect=True, in_doubt=is_in_ledger)
def send_email(to: str, body: str) -> str:
    """Send an e-mail.

    Args:
        to: The address.
        body: The text.
    """
    note(f"began send_email {json.dumps({'to': to, 'body': body})}")
    note(f"did send_email {json.dumps({'to': to, 'body': body})}")
    return "done"


TOOLS = {each.__name__: each for each in (look_up, book_room, send_email)}
"""For programs with a loop of their own."""


def _schema(*names):
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": [*names]}


SCHEMAS = {
    "look_up": _schema("name"),
    "book_room": _schema("room"),
    "send_email": _schema("to", "body"),
}
OPENAI_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": TOOLS[name].__doc__, "parameters": schema},
    }
    for name, schema in SCHEMAS.items()
]
RESPONSES_TOOLS = [{"type": "function", **each["function"]} for each in OPENAI_TOOLS]
ANTHROPIC_TOOLS = [
    {"name": name, "description": TOOLS[name].__doc__, "input_schema": schema}
    for name, schema in SCHEMAS.items()
]


def joined(chunks):
    """Put the pieces of a streamed message of chat completions together."""
    text, calls = "", {}
    for chunk in chunks:
        delta = chunk.choices[0].delta if chunk.choices else None
        text += (delta and delta.content) or ""
        for part in (delta and delta.tool_calls) or ():
            call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {}})
            call["function"].setdefault("name", part.function.name)
            call["function"]["arguments"] = (
                call["function"].get("arguments", "") + part.function.arguments
            )
    message = {"role": "assistant", "content": text, "tool_calls": [*calls.values()]}
    return {name: value for name, value in message.items() if value}
