"""A model server on loopback: the protocols of OpenAI, Anthropic, Cohere, Gemini, ollama, Bedrock.

Each as JSON and as a stream.

It follows a script: turn ``k`` of a conversation calls tools, the last turn is a text.  The turn is
read from the request itself (each call id names its turn), so a program that was killed may ask for
any turn again.  Every request is numbered and logged to a file before it is answered.  A plan says
for single requests (number 0: for all others): kill the program (before the answer, in the middle
of it, after it), answer 429 or 500, or close the connection.  A ``numbered`` server is a model that
never answers twice the same: each text, argument and id has the number of its request in it.

This module needs nothing but the standard library.  The server lives outside of the killed program
and outlives it, so the address is the same at each start.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

FINAL = "The letter to ann@example.org has gone"
MOMENTS = ("before", "middle", "after")  # of an answer, at which the program is killed
FAULTS = ("429", "500", "drop")


class ToolCall(NamedTuple):
    """A call of a tool that the model asks for."""

    tool: str
    arguments: dict[str, str]


SCRIPT: tuple[tuple[ToolCall, ...], ...] = (
    (ToolCall("look_up", {"name": "Ann"}),),
    (ToolCall("look_up", {"name": "Bob"}), ToolCall("book_room", {"room": "Blue"})),
    (ToolCall("send_email", {"to": "ann@example.org", "body": "We meet in Blue."}),),
)
"""The calls of each turn; after these turns comes ``FINAL``."""

REQUESTS = len(SCRIPT) + 1


@dataclass(frozen=True)
class Received:
    """A request that arrived.

    Args:
        number: from 1, over all starts of the program.
        turn: of the script, from 0.
        body: as it came.
        answer: status, or what was done instead.
    """

    number: int
    path: str
    turn: int
    stream: bool
    body: str
    answer: str


class Reply(NamedTuple):
    """The model's answer, in no protocol yet."""

    number: int
    model: str
    text: str
    calls: list[tuple[str, str, dict[str, str]]]  # id, name, arguments


class ScriptedServer:
    """The server, in threads of this process.

    Args:
        log: the file to which each request is appended, one line of JSON.
        numbered: whether the answers differ at each request.
        script: the calls of each turn.
    """

    def __init__(self, log: str | None = None, *, numbered: bool = False, script=SCRIPT):
        self.log, self.numbered, self.script = log, numbered, script
        self.plan: dict[int, str] = {}
        self.kill = lambda: None
        self.received: list[Received] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {}))
        self._http.RequestHandlerClass.scripted = self
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # programs are killed: connections break
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def receive(self, path: str, body: str) -> tuple[Received, str]:
        """Number and log a request. Return it, and what the plan says of it."""
        asked = json.loads(body)
        turns = [int(turn) for turn in re.findall(r"call_(\d+)_\d+", body)]
        if path == "/api/chat":  # ollama has no ids of calls
            turns = [*range(len(re.findall(r'"role": ?"assistant"', body)))]
        stream = bool(asked.get("stream")) or ":stream" in path
        with self._lock:
            number = next(self._numbers)
            planned = self.plan.get(number, self.plan.get(0, ""))
            received = Received(number, path, max(turns, default=-1) + 1, stream, body, planned)
            self.received.append(received)
            if self.log is not None:
                with open(self.log, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(received)) + "\n")
        return received, planned

    def reply(self, received: Received) -> Reply:
        """Return what the script says to a request."""
        asked = json.loads(received.body)
        turn, number = min(received.turn, len(self.script)), received.number
        mark = f" ({number})" if self.numbered else ""
        ids = f"_r{number}" if self.numbered else ""
        model = asked.get("model", "")
        if turn < len(self.script):
            calls = [
                (f"call_{turn}_{index}{ids}", call.tool, self._marked(call, mark))
                for index, call in enumerate(self.script[turn])
            ]
            return Reply(number, model, f"Step {turn + 1}.{mark}", calls)
        text = FINAL + mark
        if "final_answer" in _tool_names(asked):  # smolagents ends by a call
            return Reply(
                number, model, "", [(f"call_{turn}_0{ids}", "final_answer", {"answer": text})]
            )
        return Reply(number, model, text, [])

    def _marked(self, call: ToolCall, mark: str) -> dict[str, str]:
        """Mark the last argument: a repeated request asks for another call."""
        *others, last = call.arguments.items()
        return {**dict(others), last[0]: last[1] + mark}


def _tool_names(asked: dict[str, Any]) -> set[str]:
    tools = asked.get("tools") or []
    return {tool.get("name") or tool.get("function", {}).get("name") for tool in tools}


# -- the protocols -------------------------------------------------------------------------------
# Each gives the JSON of a reply, and its events: pairs of a name (empty for none) and data.

Events = list[tuple[str, Any]]


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def chat_json(reply: Reply) -> dict[str, Any]:
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for id_, name, given in reply.calls
    ]
    message = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "finish_reason": finish, "logprobs": None, "message": message}
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": reply.model,
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def chat_events(reply: Reply, asked: dict[str, Any]) -> Events:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": part} for part in _halves(reply.text) if part]
    if reply.model.startswith("mistral"):  # which sends each call whole
        calls = chat_json(reply)["choices"][0]["message"].get("tool_calls", ())
        deltas += [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)]
        reply = reply._replace(calls=[])
    for index, (id_, name, given) in enumerate(reply.calls):
        first, second = _halves(json.dumps(given))
        begin = {"index": index, "id": id_, "type": "function"}
        deltas.append({"tool_calls": [{**begin, "function": {"name": name, "arguments": ""}}]})
        for part in (first, second):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    base = {
        "id": f"chatcmpl-{reply.number}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": reply.model,
    }
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    finish = "tool_calls" if reply.calls else "stop"
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events: Events = [("", {**base, "choices": [choice]}) for choice in choices]
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append(("", {**base, "choices": [], "usage": chat_json(reply)["usage"]}))
    return [*events, ("", "[DONE]")]


def responses_json(reply: Reply) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    if reply.text:
        content = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append(_message_item(reply, [content], "completed"))
    items += [
        _call_item(id_, name, json.dumps(given), "completed") for id_, name, given in reply.calls
    ]
    return {**_response(reply, "completed"), "output": items}


def _response(reply: Reply, status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    }
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if status == "completed" else None,
    }


def _message_item(reply: Reply, content: list[Any], status: str) -> dict[str, Any]:
    id_ = f"msg_{reply.number}"
    return {"id": id_, "type": "message", "role": "assistant", "status": status, "content": content}


def _call_item(id_: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    item = {"id": f"fc_{id_}", "type": "function_call", "call_id": id_, "name": name}
    return {**item, "arguments": arguments, "status": status}


def responses_events(reply: Reply, asked: dict[str, Any]) -> Events:
    events: Events = [
        ("response.created", {"response": _response(reply, "in_progress")}),
        ("response.in_progress", {"response": _response(reply, "in_progress")}),
    ]
    finished = responses_json(reply)
    for index, item in enumerate(finished["output"]):
        place: dict[str, Any] = {"output_index": index}
        inside = {**place, "item_id": item["id"]}
        if item["type"] == "message":
            begun = _message_item(reply, [], "in_progress")
            text, part = {**inside, "content_index": 0}, item["content"][0]
            within: Events = [
                ("response.content_part.added", {**text, "part": {**part, "text": ""}})
            ]
            for half in _halves(part["text"]):
                within.append(
                    ("response.output_text.delta", {**text, "delta": half, "logprobs": []})
                )
            done = {**text, "text": part["text"], "logprobs": []}
            within.append(("response.output_text.done", done))
            within.append(("response.content_part.done", {**text, "part": part}))
        else:
            begun = {**item, "arguments": "", "status": "in_progress"}
            arguments = "response.function_call_arguments"
            within = [
                (f"{arguments}.delta", {**inside, "delta": half})
                for half in _halves(item["arguments"])
            ]
            done = {**inside, "arguments": item["arguments"], "name": item["name"]}
            within.append((f"{arguments}.done", done))
        events.append(("response.output_item.added", {**place, "item": begun}))
        events += within
        events.append(("response.output_item.done", {**place, "item": item}))
    events.append(("response.completed", {"response": finished}))
    return [
        (name, {"type": name, "sequence_number": number, **data})
        for number, (name, data) in enumerate(events)
    ]


def messages_json(reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [
        {"type": "tool_use", "id": id_, "name": name, "input": given}
        for id_, name, given in reply.calls
    ]
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def messages_events(reply: Reply, asked: dict[str, Any]) -> Events:
    whole = messages_json(reply)
    begun = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 11, "output_tokens": 1},
    }
    events: Events = [("message_start", {"message": begun}), ("ping", {})]
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": half} for half in _halves(block["text"])]
        else:
            start = {**block, "input": {}}
            halves = ("", *_halves(json.dumps(block["input"])))
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves]
        events.append(("content_block_start", {"index": index, "content_block": start}))
        for delta in deltas:
            events.append(("content_block_delta", {"index": index, "delta": delta}))
        events.append(("content_block_stop", {"index": index}))
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events.append(("message_delta", {"delta": stop, "usage": {"output_tokens": 7}}))
    events.append(("message_stop", {}))
    return [(name, {"type": name, **data}) for name, data in events]


def cohere_json(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    if reply.text:
        message["content"] = [{"type": "text", "text": reply.text}]
    if reply.calls:
        message["tool_calls"] = chat_json(reply)["choices"][0]["message"]["tool_calls"]
    finish = "TOOL_CALL" if reply.calls else "COMPLETE"
    usage = {"tokens": {"input_tokens": 11, "output_tokens": 7}}
    return {
        "id": f"c-{reply.number}",
        "finish_reason": finish,
        "message": message,
        "usage": usage,
    }


def cohere_events(reply: Reply, asked: dict[str, Any]) -> Events:
    whole = cohere_json(reply)
    events: Events = [("message-start", {"id": whole["id"], "message": {"role": "assistant"}})]
    if reply.text:
        content = {"type": "text", "text": ""}
        events.append(("content-start", {"index": 0, "message": {"content": content}}))
        for half in _halves(reply.text):
            events.append(("content-delta", {"index": 0, "message": {"content": {"text": half}}}))
        events.append(("content-end", {"index": 0}))
    for index, call in enumerate(whole["message"].get("tool_calls", ())):
        begun = {**call, "function": {**call["function"], "arguments": ""}}
        events.append(("tool-call-start", {"index": index, "message": {"tool_calls": begun}}))
        for half in _halves(call["function"]["arguments"]):
            part = {"tool_calls": {"function": {"arguments": half}}}
            events.append(("tool-call-delta", {"index": index, "message": part}))
        events.append(("tool-call-end", {"index": index}))
    end = {"finish_reason": whole["finish_reason"], "usage": whole["usage"]}
    framed = [
        (name, {"type": name, "index": data.pop("index", None), "delta": data})
        for name, data in [*events, ("message-end", end)]
    ]
    return [*framed, ("", "[DONE]")]


def gemini_json(reply: Reply) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
    parts += [
        {"functionCall": {"id": id_, "name": name, "args": given}}
        for id_, name, given in reply.calls
    ]
    return _gemini(reply, parts, "STOP")


def _gemini(reply: Reply, parts: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
    content = {"role": "model", "parts": parts}
    candidate = {"index": 0, "content": content, **({"finishReason": finish} if finish else {})}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": "gemini-2.5-flash",
        "responseId": f"g-{reply.number}",
    }


def gemini_events(reply: Reply, asked: dict[str, Any]) -> Events:
    *parts, last = gemini_json(reply)["candidates"][0]["content"]["parts"]
    begun = [_gemini(reply, [part], None) for part in parts]
    return [("", each) for each in [*begun, _gemini(reply, [last], "STOP")]]


def ollama_json(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {"function": {"name": name, "arguments": given}} for _, name, given in reply.calls
        ]
    done = {"done": True, "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 7}
    return {**_ollama(reply, message), **done}


def _ollama(reply: Reply, message: dict[str, Any]) -> dict[str, Any]:
    at = "2026-11-01T12:00:00Z"
    return {"model": reply.model, "created_at": at, "message": message, "done": False}


def ollama_events(reply: Reply, asked: dict[str, Any]) -> Events:
    whole = ollama_json(reply)
    pieces = [{"role": "assistant", "content": half} for half in _halves(reply.text)]
    if reply.calls:
        pieces.append({**whole["message"], "content": ""})
    end = {**whole, "message": {"role": "assistant", "content": ""}}
    return [("", each) for each in [*(_ollama(reply, piece) for piece in pieces), end]]


def converse_json(reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
    content += [
        {"toolUse": {"toolUseId": id_, "name": name, "input": given}}
        for id_, name, given in reply.calls
    ]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if reply.calls else "end_turn",
        "usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
        "metrics": {"latencyMs": 1},
    }


PROTOCOLS = {
    "/chat/completions": (chat_json, chat_events),
    "/responses": (responses_json, responses_events),
    "/messages": (messages_json, messages_events),
    "/v2/chat": (cohere_json, cohere_events),
    "/api/chat": (ollama_json, ollama_events),
    "/converse": (converse_json, None),  # which nobody streams
    "enerateContent": (gemini_json, gemini_events),  # generate, streamGenerate
}


# -- HTTP ----------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0  # what was written has been sent
    disable_nagle_algorithm = True
    scripted: ScriptedServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        received, planned = self.scripted.receive(self.path, body)
        with contextlib.suppress(ConnectionError):  # the program may be dead
            self.answer(received, planned)

    def answer(self, received: Received, planned: str) -> None:
        if planned == "before":
            self.scripted.kill()
        if planned in ("before", "drop"):
            self.close_connection = True
        elif planned in ("429", "500"):
            error = {"type": "error", "message": f"planned {planned}", "code": None, "param": None}
            self.send_pieces(
                [json.dumps({"type": "error", "error": error})], "", status=int(planned)
            )
        else:
            self.send_pieces(*self.pieces(received), middle=planned == "middle")
            if planned == "after":
                self.scripted.kill()

    def pieces(self, received: Received) -> tuple[list[str], str]:
        """Return the pieces of the answer, and the type of an event stream (empty for JSON)."""
        asked = json.loads(received.body)
        path = self.path.partition("?")[0].rstrip("/")
        protocol = next(name for name in PROTOCOLS if path.endswith(name))
        as_json, as_events = PROTOCOLS[protocol]
        reply = self.scripted.reply(received)
        if not received.stream:
            return [json.dumps(as_json(reply))], ""
        if protocol == "/api/chat":
            events = [f"{json.dumps(data)}\n" for _, data in as_events(reply, asked)]
            return events, "application/x-ndjson"
        lines = []
        for name, data in as_events(reply, asked):
            text = data if isinstance(data, str) else json.dumps(data)
            lines.append((f"event: {name}\n" if name else "") + f"data: {text}\n\n")
        return lines, "text/event-stream"

    def send_pieces(
        self, pieces: list[str], stream: str, *, status: int = 200, middle: bool = False
    ) -> None:
        """Send an answer: a stream in chunks. In the ``middle`` of it, kill the program."""
        self.send_response(status)
        self.send_header("Content-Type", stream or "application/json")
        self.send_header("x-request-id", f"req_{time.time_ns()}")
        if status != 200:
            self.send_header("retry-after-ms", "10")
            self.send_header("retry-after", "0.01")
        if stream:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for index, piece in enumerate(pieces):
                if middle and index == len(pieces) // 2:
                    self.scripted.kill()
                data = piece.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        data = pieces[0].encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        if middle:
            self.scripted.kill()
        self.wfile.write(data[len(data) // 2 :])

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> None:
    """Serve until stdin is closed; the address is the first line on stdout."""
    import sys

    server = ScriptedServer(numbered="numbered" in sys.argv[1:])
    print(server.url, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
