"""A small chat model on a local server, so that ``chat_agent.py`` needs neither key nor network.

    python examples/chat_server.py [PORT]

It speaks ``POST /v1/chat/completions`` of the OpenAI protocol, without streaming.  The model is a
handful of rules: it reads the last question, asks for those of the offered tools that the question
needs, and answers from what they returned.
"""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
import time
from typing import Any, NamedTuple

Json = dict[str, Any]

SUM = re.compile(r"[\d.]*\d(?:\s*[-+*/]\s*[\d.]*\d)+")
NOTE = re.compile(r"\b(save|remember|write down|a note|note (that|this|it))\b", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[.?!])\s+|,? and (?=save\b|remember\b|write down\b|note\b)")


class Used(NamedTuple):
    """A tool call that has been answered."""

    tool: str
    argument: str
    result: str


# -- the model ------------------------------------------------------------------------------------


def think(messages: list[Json], tools: list[Json]) -> Json:
    """The next message: a tool call while one is needed and offered, then the answer."""
    last = max(place for place, message in enumerate(messages) if message["role"] == "user")
    question = text_of(messages[last])
    used = used_tools(messages[last:])
    done = {(each.tool, each.argument) for each in used}
    for name, text in needs(question, used):
        function = next((t["function"] for t in tools if t["function"]["name"] == name), None)
        if function is not None and (name, text) not in done:
            parameter = next(iter(function["parameters"]["properties"]))
            call = {"name": name, "arguments": json.dumps({parameter: text})}
            calls = [{"id": f"call_{len(messages)}", "type": "function", "function": call}]
            return {"role": "assistant", "content": None, "tool_calls": calls}
    return {"role": "assistant", "content": answer(used)}


def needs(question: str, used: list[Used]) -> list[tuple[str, str]]:
    """The tools that a question needs, in order, each with what to tell it."""
    sentences = [each for each in SENTENCE_END.split(question) if each.strip()]
    topics = [each for each in sentences if not SUM.search(each) and not NOTE.search(each)]
    found = [("search", topic) for topic in topics]
    found += [("calculate", expression) for expression in SUM.findall(question)]
    if NOTE.search(question):
        found.append(("save_note", answer([each for each in used if each.tool != "save_note"])))
    return found


def answer(used: list[Used]) -> str:
    """What can be said, given what the tools returned."""
    phrases = {
        "search": "{result}",
        "calculate": "{argument} = {result}.",
        "save_note": "Note {result}.",
    }
    said = []
    for each in used:
        failed = each.result.startswith("error")
        phrase = "{tool} gave {result}." if failed else phrases.get(each.tool, "{result}")
        said.append(phrase.format(**each._asdict()))
    return " ".join(said) or "I know nothing of that; my tools might."


def used_tools(messages: list[Json]) -> list[Used]:
    """The tool calls among messages, with their results."""
    results = {m["tool_call_id"]: text_of(m) for m in messages if m["role"] == "tool"}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return [
        Used(
            call["function"]["name"],
            next(iter(json.loads(call["function"]["arguments"]).values())),
            results[call["id"]],
        )
        for call in calls
    ]


def text_of(message: Json) -> str:
    """The text of a message, whose content may come in parts."""
    content = message["content"]
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


# -- the protocol ---------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers ``POST /v1/chat/completions``."""

    latency = 0.0

    def do_POST(self) -> None:
        """Read a request, let the model think, answer."""
        time.sleep(self.latency)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            return self.refuse(404, f"there is no {self.path} here")
        try:
            request = json.loads(body)
            if request.get("stream"):
                return self.refuse(400, "this server does not stream")
            message = think(request["messages"], request.get("tools") or [])
        except Exception as error:
            return self.refuse(400, f"this is not a request for a chat completion: {error!r}")
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return self.send(
            200,
            {
                "id": f"chatcmpl-{time.time_ns()}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": request["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            },
        )

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error."""
        self.send(status, {"error": {"message": reason, "type": "invalid_request_error"}})

    def send(self, status: int, answer: Json) -> None:
        """Answer."""
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def start(port: int = 0, latency: float = 0.0) -> str:
    """Serve in a thread, on a free port by default; gives the base URL."""
    handler = type("Handler", (Handler,), {"latency": latency})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


if __name__ == "__main__":
    print(start(int(sys.argv[1]) if len(sys.argv) > 1 else 8000), flush=True)
    threading.Event().wait()
