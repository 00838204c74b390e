"""What an answer of a model endpoint says of its tokens, its price and its text."""

from __future__ import annotations

import json
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeping import WHOLE

from stepwise.integrations import _model_protocols
from stepwise.integrations._model_protocols import shown_of, usage_of

EVENTS = "text/event-stream; charset=utf-8"


def preview_of(endpoint, kind, content):
    """Return the line that is shown of an answer."""
    return shown_of(endpoint, kind, content, "")[0]


@pytest.fixture(autouse=True)
def _without_prices(monkeypatch):
    monkeypatch.setattr(_model_protocols, "_prices", lambda: None)


def stream(*events: object) -> bytes:
    """Events as the providers send them: with a name (Anthropic, responses) or without."""
    lines = []
    for event in events:
        kind = event.get("type") if isinstance(event, dict) else None
        data = event if isinstance(event, str) else json.dumps(event)
        lines.append(f"event: {kind}\ndata: {data}\n\n" if kind else f"data: {data}\n\n")
    return "".join(lines).encode()


def chunk(delta: dict, **more: object) -> dict:
    return {"model": "gpt-5", "choices": [{"index": 0, "delta": delta}], "usage": None, **more}


CALL = {"index": 0, "id": "call_1", "type": "function"}
WEATHER = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
SPENT = {"prompt_tokens": 100, "completion_tokens": 7}
CHAT = {
    "model": "gpt-5",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "It\nrains."}}],
    "usage": {**SPENT, "prompt_tokens_details": {"cached_tokens": 64}},
}
CALLED = [{**CALL, "function": WEATHER}]
CALLED += [{**CALL, "index": 1, "function": {"name": "now", "arguments": ""}}]
CHAT_CALLS = {
    "model": "gpt-5",
    "choices": [{"index": 0, "message": {"content": None, "tool_calls": CALLED}}],
}
CHAT_STREAM = stream(
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "It "}),
    chunk({"content": "rains."}),
    {"model": "gpt-5", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    "[DONE]",
)
CALL_STREAM = stream(
    chunk({"tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": ' "Bern"}'}}]}),
    "[DONE]",
)
RESPONSE = {
    "model": "gpt-5",
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "content": [{"type": "output_text", "text": "It rains."}]},
    ],
    "usage": {
        "input_tokens": 50,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 10},
    },
}
FUNCTION_CALL = {"type": "function_call", **WEATHER}
RESPONSE_STREAM = stream(
    {"type": "response.created", "response": {"model": "gpt-5", "usage": None}},
    {"type": "response.output_text.delta", "delta": "It "},
    {"type": "response.output_text.delta", "delta": "rains."},
    {"type": "response.output_item.done", "item": RESPONSE["output"][1]},
    {"type": "response.completed", "response": RESPONSE},
)
MESSAGE = {
    "model": "claude-opus-4",
    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "It rains."}],
    "usage": {
        "input_tokens": 3,
        "output_tokens": 5,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 7,
    },
}
TOOL_USE = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {"city": "Bern"}}


def block(index: int, **delta: object) -> dict:
    return {"type": "content_block_delta", "index": index, "delta": delta}


BEGUN = {**MESSAGE, "content": [], "usage": {**MESSAGE["usage"], "output_tokens": 1}}
MESSAGE_STREAM = stream(
    {"type": "message_start", "message": BEGUN},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    block(0, type="text_delta", text="It "),
    block(0, type="text_delta", text="rains."),
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
)
USE_STREAM = stream(
    {"type": "content_block_start", "index": 1, "content_block": {**TOOL_USE, "input": {}}},
    block(1, type="input_json_delta", partial_json='{"city":'),
    block(1, type="input_json_delta", partial_json='"Bern"}'),
)
GEMINI = {
    "modelVersion": "gemini-3",
    "candidates": [{"content": {"parts": [{"text": "It rains."}]}}],
    "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 2, "thoughtsTokenCount": 9},
}
EMBEDDINGS = {
    "model": "text-embedding-3",
    "data": [{"embedding": [0.5]}],
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}


def counts(model: str, input_tokens: int, output_tokens: int | None, cached: int | None) -> dict:
    found = {"model": model, "input_tokens": input_tokens, "output_tokens": output_tokens}
    found["cached_input_tokens"] = cached
    return {name: value for name, value in found.items() if value is not None}


CALL_DONE = stream({"type": "response.output_item.done", "item": FUNCTION_CALL})
OF_MESSAGE = {"provider": "anthropic", **counts("claude-opus-4", 50, 5, 40)}


@pytest.mark.parametrize(
    ("endpoint", "answer", "expected"),
    [
        ("chat.completions", CHAT, counts("gpt-5", 100, 7, 64)),
        ("chat.completions", CHAT_CALLS, {"model": "gpt-5"}),
        ("chat.completions", CHAT_STREAM, counts("gpt-5", 9, 3, None)),
        ("chat.completions", CALL_STREAM, {"model": "gpt-5"}),
        ("responses", RESPONSE, counts("gpt-5", 50, 5, 10)),
        ("responses", RESPONSE_STREAM, counts("gpt-5", 50, 5, 10)),
        ("messages", MESSAGE, OF_MESSAGE),
        ("messages", MESSAGE_STREAM, OF_MESSAGE),
        ("generate_content", GEMINI, counts("gemini-3", 4, 11, None)),
        ("embeddings", EMBEDDINGS, counts("text-embedding-3", 8, None, None)),
        ("messages.count_tokens", {"input_tokens": 9}, {"provider": "anthropic"}),
    ],
)
def test_the_usage_of_an_answer(endpoint, answer, expected):
    """Tokens are counted alike for every provider: those of the input with the cached ones."""
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    kind = EVENTS if isinstance(answer, bytes) else "application/json"
    assert usage_of(endpoint, kind, content) == expected


_WEATHER = {"name": "get_weather", "arguments": {"city": "Bern"}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (CHAT, "It rains."),
        (CHAT_CALLS, "get_weather(city='Bern'), now()"),
        (CHAT_STREAM, "It rains."),
        (CALL_STREAM, "get_weather(city='Bern')"),
        (RESPONSE, "It rains."),
        ({"output": [FUNCTION_CALL]}, "get_weather(city='Bern')"),
        (RESPONSE_STREAM, "It rains."),
        (CALL_DONE, "get_weather(city='Bern')"),
        (MESSAGE, "It rains."),
        ({"content": [TOOL_USE]}, "get_weather(city='Bern')"),
        (MESSAGE_STREAM, "It rains."),
        (USE_STREAM, "get_weather(city='Bern')"),
        (GEMINI, "It rains."),
        ({"text": "spoken"}, "spoken"),
        (
            stream(
                {"type": "transcript.text.delta", "delta": "spo"},
                {"type": "transcript.text.delta", "delta": "ken"},
                {"type": "transcript.text.done", "text": "spoken"},
            ),
            "spoken",
        ),
        (
            {"choices": [{"message": {"tool_calls": [{"function": None, "custom": _WEATHER}]}}]},
            "get_weather(city='Bern')",
        ),
        ({"candidates": [{"content": {"parts": [{"text": "A", "functionCall": None}]}}]}, "A"),
        ({"error": {"message": "no such model", "code": "x"}}, "no such model"),
        ({"error": "no such model"}, "no such model"),
        (CALL_STREAM[:300], "get_weather()"),
        ({"choices": [{"message": {"content": "x" * 1000}}]}, "x" * 297 + "..."),
    ],
)
def test_the_preview_of_an_answer(answer, expected):
    """The text is shown, or the tool calls as Python writes them, whole or streamed."""
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    kind = EVENTS if isinstance(answer, bytes) else "application/json"
    assert preview_of("chat.completions", kind, content) == expected


def of_cohere(**message):
    usage = {"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 9, "output_tokens": 3}}
    return {"id": "1", "message": {"role": "assistant", **message}, "usage": usage}


@pytest.mark.parametrize(
    ("kind", "parts", "text"),
    [
        ("application/json", [of_cohere(content=[{"type": "text", "text": "It rains."}])], ""),
        (
            EVENTS,
            [
                {"type": "message-start", "delta": {"message": {"role": "assistant"}}},
                {"type": "content-delta", "delta": {"message": {"content": {"text": "It "}}}},
                {"type": "content-delta", "delta": {"message": {"content": {"text": "rains."}}}},
                {"type": "message-end", "delta": {"usage": of_cohere()["usage"]}},
            ],
            "",
        ),
        (
            EVENTS,
            [
                {"delta": {"message": {"tool_calls": {"function": {"name": "now"}}}}, "index": 0},
                {"delta": {"message": {"tool_calls": {"function": _WEATHER}}}, "index": 1},
                {"type": "message-end", "delta": {"usage": of_cohere()["usage"]}},
            ],
            "now(), get_weather(city='Bern')",
        ),
        (
            "application/x-ndjson",
            [
                {"message": {"role": "assistant", "content": "It "}, "done": False},
                {"message": {"role": "assistant", "content": "rains."}, "done": False},
                {"message": {}, "done": True, "prompt_eval_count": 9, "eval_count": 3},
            ],
            "",
        ),
        (
            "application/json",
            [{"response": "It rains.", "done": True, "prompt_eval_count": 9, "eval_count": 3}],
            "",
        ),
        (
            EVENTS,
            [
                {"choices": [{"index": 0, "delta": {"content": "It rains."}}]},
                {"choices": [], "x_groq": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}},
            ],
            "",
        ),
    ],
    ids=["cohere", "a stream", "calls in a stream", "ollama in lines", "ollama", "groq"],
)
def test_answers_of_other_sdks(kind, parts, text):
    """The text, the calls and the tokens of Cohere's, ollama's and groq's answers are read."""
    lines = b"".join(json.dumps(part).encode() + b"\n" for part in parts)
    content = stream(*parts) if kind == EVENTS else lines
    assert usage_of("chat", kind, content) == {"input_tokens": 9, "output_tokens": 3}
    assert preview_of("chat", kind, content) == (text or "It rains.")


def test_a_sound_is_shown_by_its_size():
    """An answer that is no text is shown by its size."""
    assert preview_of("audio.speech", "audio/mpeg", b"\xff\xf3" * 50) == "100 bytes of audio/mpeg"


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1/responses", "openai"),
        ("https://acme.openai.azure.com/openai/deployments/d/chat/completions", "azure"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/invoke", "aws"),
        ("http://localhost:4000/v1/messages", None),
        ("https://api.openai.com.evil.example/v1/responses", None),
    ],
)
def test_the_provider_is_known_by_the_server(url, provider):
    """The server of the URL decides; one that is not known may be anybody's."""
    facts = usage_of("messages", "application/json", b"{}", url)
    assert facts.get("provider") == provider


def test_the_cost_that_an_answer_states_is_taken():
    """A gateway that says what an answer costs is believed, without a table of prices."""
    answer = {**CHAT, "usage": {**CHAT["usage"], "cost": 0.25}}
    facts = usage_of("chat.completions", "application/json", json.dumps(answer).encode())
    assert facts["cost_usd"] == 0.25


def test_the_cost_is_computed_if_prices_are_installed(monkeypatch):
    """With genai-prices, the tokens have a price; unknown models and tiers have none."""
    asked = []

    def calc_price(usage, model, provider_api_url):
        asked.append((vars(usage), model, provider_api_url))
        if model == "unknown":
            raise LookupError(model)
        return SimpleNamespace(total_price=Decimal("0.5"))

    prices = SimpleNamespace(Usage=SimpleNamespace, calc_price=calc_price)
    monkeypatch.setattr(_model_protocols, "_prices", lambda: prices)
    content = json.dumps(CHAT).encode()
    url = "https://api.openai.com/v1/chat/completions"
    assert usage_of("chat.completions", "application/json", content, url)["cost_usd"] == 0.5
    tokens = {"input_tokens": 100, "output_tokens": 7}
    cached = {"cache_read_tokens": 64, "cache_write_tokens": 0}
    assert asked == [({**tokens, **cached}, "gpt-5", url)]
    for other in ({"model": "unknown"}, {"service_tier": "flex"}):
        content = json.dumps({**CHAT, **other}).encode()
        assert "cost_usd" not in usage_of("chat.completions", "application/json", content, url)


KEYS = st.sampled_from(
    ["usage", "choices", "message", "delta", "content", "tool_calls", "function", "output", "type"]
    + ["index", "response", "error", "item", "input", "arguments", "name", "prompt_tokens", "cost"]
    + ["content_block", "candidates", "parts", "functionCall", "input_tokens_details", "text"]
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["response.output_item.done", "content_block_start", "message", "tool_use"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=500 if WHOLE else 20)
@given(st.lists(ODD, max_size=4), st.binary(max_size=9), st.booleans())
def test_an_odd_answer_is_read_as_far_as_it_goes(values, rest, streamed):
    """Whatever a server answers, there is a usage and a preview, and no exception."""
    content = stream(*values) + rest if streamed else json.dumps(values).encode() + rest
    kind = EVENTS if streamed else "application/json"
    facts = usage_of("chat.completions", kind, content)
    json.dumps(facts, allow_nan=False)
    preview = preview_of("chat.completions", kind, content)
    assert len(preview.encode()) >= len(preview) <= 300
    assert shown_of("chat.completions", kind, content, "") == (preview, facts)


@pytest.mark.parametrize("depth", [100, 500, 990, 2000, 100_000])
def test_an_answer_that_is_nested_deeply_is_no_error(depth):
    """Depth is no reason to fail a model call that has been paid."""
    deep = "[" * depth + "]" * depth
    use = f'{{"type": "tool_use", "name": "f", "input": {{"a": {deep}}}}}'
    function = json.dumps({"name": "f", "arguments": f'{{"a": {deep}}}'})
    call = f'{{"message": {{"tool_calls": [{{"function": {function}}}]}}}}'
    for content in (deep, f'{{"content": [{use}]}}', f'{{"choices": [{call}]}}'):
        usage_of("messages", "application/json", content.encode())
        preview_of("messages", "application/json", content.encode())
