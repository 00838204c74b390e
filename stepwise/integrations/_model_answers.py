"""Answers of model endpoints: their token usage, cost and text.

Six forms are read, each as one JSON value or as a stream of events: chat completions (which most
servers speak), OpenAI's responses, Anthropic's messages, and the answers of Gemini, Cohere and
ollama.  The keys of an answer determine its form.  The endpoint does not, since a gateway may serve
one protocol under the path of another.  An answer in any other form has no usage, and the texts of
known fields as its preview.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any
from urllib.parse import urlsplit

_MOST = 300  # characters of a preview


def usage_of(endpoint: str, content_type: str, body: bytes, url: str = "") -> dict[str, Any]:
    """Return the known facts about an answer's model, tokens and cost.

    Args:
        endpoint: the endpoint's name, as from
            :func:`~stepwise.integrations._model_requests.endpoint_of`.
        content_type: the content type of the answer.
        body: the decoded body of the answer.
        url: the URL of the request, which determines the provider.  For the URL of an unknown
            server no cost is computed, since the server sets its own prices.

    Returns:
        ``model``, ``provider``, ``input_tokens`` (cached tokens included), ``cached_input_tokens``,
        ``output_tokens`` and ``cost_usd``.  The cost is from the answer itself, or from the library
        ``genai-prices`` if it is installed.
    """
    return _usage(endpoint, _parts(content_type, body), url)


def shown_of(endpoint: str, content_type: str, body: bytes, url: str) -> tuple[str, dict[str, Any]]:
    """Return the preview and the usage of an answer, and parse the answer only once.

    The preview is one line: the text, or the tool calls (``get_weather(city='Bern')``).  For the
    arguments and the usage see :func:`usage_of`.
    """
    parts = [*_parts(content_type, body)]
    return _preview(endpoint, content_type, body, parts), _usage(endpoint, parts, url)


def said_in(content_type: str, body: bytes) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of an answer, or of its error, and its tool calls, each with its JSON.

    Of several answers to one request, it is the first.
    """
    parts, wording = [*_parts(content_type, body)], _Wording()
    for part in parts:
        wording.add(part)
    return "".join(wording.texts) or _error_of(parts), wording.calls


def _usage(endpoint: str, parts: Iterable[dict[str, Any]], url: str) -> dict[str, Any]:
    model, counts = "", _Counts()
    for part in parts:
        model = _model_of(part) or model
        counts.add(part)
    facts: dict[str, Any] = {}
    if model:
        facts["model"] = model
    provider = _provider_of(endpoint, url)
    if provider:
        facts["provider"] = provider
    facts.update(counts.facts())
    cost = _number(counts.raw.get("cost"))
    # Other tiers (flex, priority, batch) have prices of their own.
    usual = counts.raw.get("service_tier") in (None, "auto", "default", "standard")
    if cost is None and model and "input_tokens" in facts and usual:
        cost = _price(model, url, facts, counts.written)
    if cost is not None:
        facts["cost_usd"] = cost
    return facts


def _preview(endpoint: str, content_type: str, body: bytes, parts: list[dict[str, Any]]) -> str:
    wording = _Wording()
    try:
        for part in parts:
            wording.add(part)
        line = wording.line() or _error_of(parts)
    except RecursionError:  # an argument is nested too deeply
        line = ""
    if not line and body and endpoint.startswith(("embeddings", "images", "audio")):
        line = f"{len(body)} bytes of {content_type.partition(';')[0] or 'data'}"
    line = " ".join(line[: 4 * _MOST].split()).encode("utf-8", "replace").decode()
    return line if len(line) <= _MOST else line[: _MOST - 3] + "..."


# -- the JSON values of an answer ----------------------------------------------------------------


def _parts(content_type: str, body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an answer: a single one, or the data of each event of a stream."""
    texts: Iterable[bytes] = [body]
    if "event-stream" in content_type:
        texts = _event_data(body)
    elif "ndjson" in content_type:  # ollama
        texts = body.splitlines()
    for text in texts:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue  # "[DONE]", a stream that was cut, or another format
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield each


def _event_data(body: bytes) -> Iterator[bytes]:
    for event in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if right and 0 <= value < 1e18 else None


def _model_of(part: dict[str, Any]) -> str:
    for holder in (part, _dict(part.get("response")), _dict(part.get("message"))):
        found = _text(holder.get("model")) or _text(holder.get("modelVersion"))
        if found:
            return found
    return ""


# -- usage ---------------------------------------------------------------------------------------


class _Counts:
    """The token counts of an answer; in a stream, a later count replaces an earlier one."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}

    @property
    def written(self) -> int:
        """The input tokens that were written to a cache, which cost more."""
        return self._first("cache_creation_input_tokens") or 0

    def add(self, part: dict[str, Any]) -> None:
        """Take the counts in a part of an answer or in an event."""
        inner = [_dict(part.get(name)) for name in ("response", "message", "delta", "x_groq")]
        for holder in (part, *inner):
            if holder.get("service_tier") is not None:
                self.raw["service_tier"] = holder["service_tier"]
            for name in ("usage", "usageMetadata", "meta"):
                known = _dict(holder.get(name))
                known = {**known, **_dict(known.get("tokens"))}  # Cohere
                self.raw.update((key, value) for key, value in known.items() if value is not None)
        if "eval_count" in part or "prompt_eval_count" in part:  # ollama
            self.raw.update(part)

    def facts(self) -> dict[str, int]:
        """Return the known counts; the input tokens include the cached tokens."""
        found = {
            "input_tokens": self._first(
                "input_tokens", "prompt_tokens", "promptTokenCount", "prompt_eval_count"
            ),
            "cached_input_tokens": self._first(
                "cache_read_input_tokens", "cachedContentTokenCount"
            ),
            "output_tokens": self._first("output_tokens", "completion_tokens", "eval_count"),
        }
        if found["input_tokens"] is not None:  # Anthropic counts cached tokens separately
            found["input_tokens"] += self.written + (self._first("cache_read_input_tokens") or 0)
        for name in ("prompt_tokens_details", "input_tokens_details"):
            if found["cached_input_tokens"] is None:
                cached = _number(_dict(self.raw.get(name)).get("cached_tokens"))
                found["cached_input_tokens"] = None if cached is None else int(cached)
        if found["output_tokens"] is None:  # Gemini
            counts = (self._first("candidatesTokenCount"), self._first("thoughtsTokenCount"))
            if counts != (None, None):
                found["output_tokens"] = sum(each or 0 for each in counts)
        return {name: count for name, count in found.items() if count is not None}

    def _first(self, *names: str) -> int | None:
        for name in names:
            count = _number(self.raw.get(name))
            if count is not None:
                return int(count)
        return None


_PROVIDERS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    ".openai.azure.com": "azure",
    ".cognitiveservices.azure.com": "azure",
    ".services.ai.azure.com": "azure",
    ".amazonaws.com": "aws",
    ".googleapis.com": "google",
    "openrouter.ai": "openrouter",
    "api.cohere.com": "cohere",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.together.xyz": "together",
    "api.x.ai": "x-ai",
}


def _provider_of(endpoint: str, url: str) -> str:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    for known, provider in _PROVIDERS.items():
        if host == known or (known.startswith(".") and host.endswith(known)):
            return provider
    return "anthropic" if not url and endpoint.startswith("messages") else ""


@functools.cache  # a failed import searches each time
def _prices() -> Any:
    """Return the library ``genai-prices``, or ``None`` if it is not installed."""
    try:
        return importlib.import_module("genai_prices")
    except ImportError:
        return None


def _price(model: str, url: str, facts: dict[str, Any], written: int) -> float | None:
    prices = _prices()
    if prices is None:
        return None
    usage = prices.Usage(
        input_tokens=facts["input_tokens"],
        cache_read_tokens=facts.get("cached_input_tokens", 0),
        cache_write_tokens=written,
        output_tokens=facts.get("output_tokens", 0),
    )
    try:
        found = prices.calc_price(usage, model, provider_api_url=url or None)
    except (LookupError, ValueError):  # an unknown server or model, or contradictory counts
        return None
    return float(found.total_price)


# -- previews ------------------------------------------------------------------------------------


_INSIDE = (
    *("choices", "candidates", "output", "item", "message", "delta", "content_block"),
    *("content", "parts", "tool_calls"),
)
"""The fields of answers that hold parts with texts and calls."""
_TEXTS = ("content", "refusal", "text", "response", "delta")
_EVENTS = ("response.", "transcript.")
_TOLD = ("response.output_text.delta", "response.output_item.done", "transcript.text.done")
"""The events that together hold each text and call once; other events would repeat them."""


class _Wording:
    """The text and the tool calls of an answer, put together from its parts.

    Attributes:
        texts: the pieces of the text.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._calls: dict[str, list[str]] = {}  # name and pieces of the arguments, by place

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The names and the arguments of the tool calls."""
        return [(name, "".join(pieces)) for name, *pieces in self._calls.values()]

    def line(self) -> str:
        """Return the text, or the calls if there is no text."""
        return "".join(self.texts).strip() or ", ".join(starmap(_call, self.calls))

    def add(self, part: dict[str, Any], place: Any = None) -> None:
        """Take the texts and calls of a part, and of the parts inside it.

        Args:
            part: the part of an answer, or an event.
            place: the place of the call that the part is a piece of.
        """
        kind, place = _text(part.get("type")), part.get("index", place)
        if kind == "reasoning" or kind.endswith(("_result", "_output")):
            return
        if kind.startswith(_EVENTS) and kind not in _TOLD:
            return
        called = (part.get(name) for name in ("function", "custom", "functionCall"))
        call = next((each for each in called if isinstance(each, dict)), part)
        if call is not part or kind.endswith(("tool_use", "_call")):
            self._add_call(place, call, kind)
        elif "partial_json" in part:
            self._add_piece(place, part["partial_json"])
        else:
            self.texts += [_text(part.get(name)) for name in _TEXTS]
            for name in _INSIDE:
                inside = part.get(name)
                if inside:  # few parts have any
                    self._add_inside(name, inside, place)

    def _add_inside(self, name: str, value: Any, place: Any) -> None:
        parts = [_dict(value)] if isinstance(value, dict) else _dicts(value)
        if name in ("choices", "candidates"):  # the first of several answers
            parts = [{**each, "index": None} for each in parts if not each.get("index")][:1]
        for each in parts:
            if name != "item" or each.get("type") != "message":  # a message's text came in deltas
                self.add(each, place)

    def _add_call(self, place: Any, call: dict[str, Any], kind: str) -> None:
        if place is None:
            place = len(self._calls)
        names = ("arguments", "input", "args", "action")
        arguments = next((call[name] for name in names if call.get(name)), "")
        self._calls.setdefault(
            str(place), [_text(call.get("name")) or (kind if kind.endswith("_call") else "?")]
        )
        self._add_piece(place, arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _add_piece(self, place: Any, arguments: Any) -> None:
        if str(place) in self._calls:
            self._calls[str(place)].append(_text(arguments))


class Telling:
    """The text of a streamed answer, as its pieces arrive.

    Args:
        content_type: of the answer.
    """

    def __init__(self, content_type: str) -> None:
        self._kind = content_type
        self._end = b"\n" if "ndjson" in content_type else b"\n\n"
        self._rest = b""

    def take(self, piece: bytes) -> list[str]:
        """Return the texts that a piece, decompressed, completes."""
        whole, end, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").rpartition(self._end)
        wording = _Wording()
        for part in _parts(self._kind, whole) if end else ():
            wording.add(part)
        return [text for text in wording.texts if text]


def _call(name: str, arguments: str) -> str:
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return f"{name}({arguments})"
    if not isinstance(values, dict):
        return f"{name}({arguments})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def _error_of(parts: list[dict[str, Any]]) -> str:
    for part in parts:
        error = part.get("error") or _dict(part.get("response")).get("error")
        if error:
            return _text(_dict(error).get("message")) or str(error)
    return ""
