"""Protocols of model endpoints: the identity of a request, and what its answer says.

The identity of a request is its method, URL and body, and the few headers on which the answer
depends.  The identity does not include:

- secrets: two requests that differ only in a secret are the same request.  Names at any depth and
  values decide what a secret is (:mod:`stepwise._values.credentials`).  So ``max_tokens`` stays,
  and so does the schema of a tool with a parameter ``password``.  Only the recorded request is
  masked, never the sent request;
- the values that an SDK generates at each attempt or start:

  - retry counters, idempotency keys, the SDK's version and platform, and the boundaries of
    multipart bodies;
  - the ids of tool calls, which a framework makes up if a model gives none.  Ids count by the order
    of their first appearance, so a result still belongs to its call;
  - ``prompt_cache_key``, which the OpenAI Agents SDK generates for each run.  The key chooses a
    cache and never the answer;
  - the name of an uploaded file, except its extension.

Six forms of answers are read for their token usage, cost and text, each as one JSON value or as a
stream of events: chat completions (which most servers speak), OpenAI's responses, Anthropic's
messages, and the answers of Gemini, Cohere and ollama.  The keys of an answer determine its form.
The endpoint does not, since a gateway may serve one protocol under the path of another.  An answer
in any other form has no usage, and the texts of known fields as its preview.

The module imports neither httpx nor any SDK: callers pass plain values.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.settings import plain_name, secret_names
from stepwise._values import credentials

# -- endpoints -------------------------------------------------------------------------------------


_ENDPOINTS = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"/chat/completions$", "chat.completions"),
        (r"(?<!/chat)/completions$", "completions"),
        (r"/responses$", "responses"),
        (r"/responses/(compact|input_tokens)$", r"responses.\1"),
        (r"/v\d\w*/messages$", "messages"),
        (r"/v\d\w*/messages/count_tokens$", "messages.count_tokens"),
        (r"/v\d\w*/complete$", "complete"),
        (r"/(embeddings|moderations)$", r"\1"),
        (r"/images/(generations|edits|variations)$", r"images.\1"),
        (r"/audio/(transcriptions|translations|speech)$", r"audio.\1"),
        # Bedrock and Vertex, as the SDK of Anthropic and litellm use them; Gemini
        (r"/model/.+/invoke(-with-response-stream)?$", "messages"),
        (r"/model/.+/converse(-stream)?$", "converse"),
        (r"/models/count-tokens:rawPredict$", "messages.count_tokens"),
        (r"/models/[^/]+:(rawPredict|streamRawPredict)$", "messages"),
        (r"/models/[^/]+:(generateContent|streamGenerateContent)$", "generate_content"),
        (r"/models/[^/]+:(embedContent|batchEmbedContents)$", "embed_content"),
        (r"/models/[^/]+:countTokens$", "count_tokens"),
        # Cohere, ollama, Mistral
        (r"/(api|v\d\w*)/(chat|classify|embed|generate|ocr|rerank)$", r"\2"),
    )
]
_OPERATIONS = {
    "complete": "text_completion",
    "completions": "text_completion",
    "embed": "embeddings",
    "embed_content": "embeddings",
    "embeddings": "embeddings",
    "generate": "text_completion",
    "generate_content": "generate_content",
}
_OTHER_OPERATIONS = re.compile(
    "count_?tokens|input_tokens|compact|images|audio|moderations|classify|ocr|rerank"
)
_NOT_MODELS = re.compile(r"/(threads|batches|fine_tuning|evals|vector_stores|conversations)(/|$)")


def operation_of(endpoint: str) -> str:
    """Return OpenTelemetry's name for an endpoint's operation, or the endpoint if it has none."""
    if _OTHER_OPERATIONS.search(endpoint):
        return endpoint
    return _OPERATIONS.get(endpoint, "chat")


@functools.lru_cache(256)  # called at several places for each request
def endpoint_of(method: str, path: str) -> str | None:
    """Return the name of a request's model endpoint (``chat.completions``), or ``None``.

    Requests for files, batches, jobs and lists of models have no model endpoint.  They concern the
    state of a provider, so a recorded answer could be wrong by now.

    Args:
        method: the HTTP method; only a POST asks a model.
        path: the path of the URL, with any prefix of the base URL (``/openai/deployments/NAME``).
    """
    path = path.partition("?")[0].rstrip("/")
    if method.upper() != "POST" or _NOT_MODELS.search(path):
        return None
    for pattern, name in _ENDPOINTS:
        found = pattern.search(path)
        if found is not None:
            return found.expand(name)
    return None


_MODEL_IN_PATH = re.compile(r"/(models?|deployments)/[^/]")
_BEDROCK = re.compile(r"/model/.+/(invoke|converse)")  # each model has a body format of its own
_MODEL_FIELDS = {"model", "agent_id"}
_QUESTION_FIELDS = {
    *("content", "contents", "document", "documents", "file", "generateContentRequest"),
    *("image", "images", "input", "inputs", "message", "messages", "prompt", "requests", "texts"),
}


def asks_model(method: str, path: str, content: bytes, *, of_sdk: bool = False) -> bool:
    """Return whether a request has the shape of a question to a model, whichever client sends it.

    Such a request goes to a model endpoint, names a model, and has a question.  The path alone is
    enough only for Bedrock: other services have ``/v1/messages`` and ``/responses``, too.

    Args:
        method: the HTTP method.
        path: the path of the URL.
        content: the whole body, JSON or a multipart form.
        of_sdk: True if the request bears the mark of an SDK.  Then a model or a question is enough,
            since moderations may lack the model, and stored prompts the question.  The mark alone
            is not enough, since other services' SDKs bear it, too.
    """
    if endpoint_of(method, path) is None:
        return False
    if _BEDROCK.search(path):
        return True
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = [name.decode() for name in re.findall(rb'\bname="(\w+)"', content)]
    if not isinstance(fields, (dict, list)):
        return False
    names = {each for each in fields if isinstance(each, str)}
    told = [
        not names.isdisjoint(_QUESTION_FIELDS),
        not names.isdisjoint(_MODEL_FIELDS) or _MODEL_IN_PATH.search(path) is not None,
    ]
    return any(told) if of_sdk else all(told)


# -- the identity of a request ---------------------------------------------------------------------


MODEL_REQUEST = "model request"
"""The kind of the steps that are requests to models, as OpenTelemetry shows it."""

SENDER = "httpx"
"""The module of the steps that are requests to models."""


class ModelRequest(NamedTuple):
    """The identity of a request to a model endpoint, without secrets.

    Args:
        method: the HTTP method in upper case.
        url: the URL with masked secrets and sorted parameters.
        headers: the headers on which the answer depends, by lower-case name.
        body: the masked value of a JSON body; ``{"form": [[NAME, VALUE], ...]}`` for a form;
            ``{"multipart": [...]}`` for a multipart form; ``{"bytes": N, "sha256": ...}`` for an
            unreadable body, which cannot be masked; ``None`` for no body.
        streamed: True if the request asks for a stream of events.
        hidden: the JSON before masking of the prompt's fields in which something was masked; empty
            if nothing was.  It is never recorded.  A tag under the key of the store distinguishes
            two prompts that differ only in masked values.
    """

    method: str
    url: str
    headers: dict[str, str]
    body: Any
    streamed: bool
    hidden: str = ""


# Versions and betas decide the form and the abilities of an answer; guardrails decide its content.
# The organization and the project that pay for an answer do not change it.
_COUNTING = ("anthropic-beta", "anthropic-version", "openai-beta")
_COUNTING_PREFIX = "x-amzn-bedrock-"


def read_request(method: str, url: str, headers: Mapping[str, str], content: bytes) -> ModelRequest:
    """Return the identity of a request.

    Args:
        method: the HTTP method.
        url: the sent URL.
        headers: all headers, by lower-case name.
        content: the whole body.  The caller reads the body of an iterator first.  A body that
            cannot be read twice has no identity, so its request is not recorded.
    """
    counting = {
        name: ",".join(sorted(part.strip() for part in value.split(",")))
        for name, value in headers.items()
        if name in _COUNTING or name.startswith(_COUNTING_PREFIX)
    }
    body, hidden = _read_body(headers.get("content-type", ""), content)
    return ModelRequest(
        method.upper(),
        credentials.masked_url(url, in_order=True),
        dict(sorted(counting.items())),
        body,
        _is_streamed(url, body),
        hidden,
    )


def _is_streamed(url: str, body: Any) -> bool:
    if re.search(r"-stream$|:stream\w+$", urlsplit(url).path):
        return True
    if not isinstance(body, dict):
        return False
    stream: Any = body.get("stream")
    if isinstance(body.get("multipart"), list):
        fields = {part["name"]: part.get("value") for part in body["multipart"]}
        stream = fields.get("stream") in ("true", "True", "1")
    return stream is True or body.get("stream_format") == "sse"


# -- bodies ----------------------------------------------------------------------------------------


# The fields of a body with the prompt.  Two different prompts are two requests, masked or not.
_SAID = frozenset(
    {"messages", "input", "inputs", "contents", "prompt", "suffix", "system", "systemInstruction"}
    | {"system_instruction", "instructions", "query", "question", "documents", "texts"}
)


def _read_body(content_type: str, content: bytes) -> tuple[Any, str]:
    """Return the body without secrets, and the unmasked JSON of the prompt's masked fields."""
    if not content:
        return None, ""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _multipart(content_type, content), ""
    try:
        if kind == "application/x-www-form-urlencoded":
            pairs = parse_qsl(content.decode(), keep_blank_values=True)
            return {"form": [[name, masked_field(name, value)] for name, value in pairs]}, ""
        body = _without_made_up_ids(json.loads(content))
        safe = masked(body)
    except (ValueError, RecursionError):
        return digest_of(content), ""
    if not isinstance(body, dict):
        return safe, ""
    hidden = {name: body[name] for name in _SAID & body.keys() if safe[name] != body[name]}
    return safe, json.dumps(hidden, sort_keys=True) if hidden else ""


def _multipart(content_type: str, content: bytes) -> dict[str, Any]:
    found = re.search(r'boundary="?([^";,]+)', content_type)
    if found is None:
        return digest_of(content)
    boundary = found[1].strip().encode("latin-1", "replace")
    opening, *pieces = (b"\r\n" + content).split(b"\r\n--" + boundary)
    if opening or not pieces or not pieces[-1].startswith(b"--"):  # not well-formed
        return digest_of(content.replace(boundary, b""))
    return {"multipart": [_part(piece) for piece in pieces[:-1]]}


def _part(piece: bytes) -> dict[str, Any]:
    head, _, data = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    lines = head.decode("utf-8", "replace")
    named = re.search(r'\bname="?([^";\r\n]*)', lines)
    file = re.search(r'\bfilename="([^"]*)"', lines)
    kind = re.search(r"(?im)^content-type: *([^;\r\n]+)", lines)
    part: dict[str, Any] = {"name": named[1] if named else ""}
    if kind is not None:
        part["type"] = kind[1].strip()
    if file is not None:
        part["extension"] = file[1].rpartition(".")[2] if "." in file[1] else ""
        return {**part, **digest_of(data)}
    try:
        return {**part, "value": masked_field(part["name"], data.decode())}
    except (ValueError, RecursionError):
        return {**part, **digest_of(data)}


_CALLS = ("function", "custom", "tool_use", "server_tool_use", "mcp_tool_use")


def _without_made_up_ids(body: Any) -> Any:
    """Remove ``prompt_cache_key``, and number the ids of tool calls by their first appearance.

    Only the protocols' own id fields change: in the arguments of a tool, ``call_id`` is data.
    """
    if not isinstance(body, dict):
        return body
    numbers: dict[str, str] = {}

    def numbered(item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        fields = ["tool_call_id", "tool_use_id", "call_id"]
        if item.get("type") in _CALLS:
            fields.append("id")
        item = dict(item)
        for field in fields:
            if isinstance(item.get(field), str):
                item[field] = numbers.setdefault(item[field], f"call-{len(numbers) + 1}")
        for field in ("tool_calls", "content"):
            if isinstance(item.get(field), list):
                item[field] = [numbered(each) for each in item[field]]
        return item

    body = {name: value for name, value in body.items() if name != "prompt_cache_key"}
    for field in ("messages", "input"):
        if isinstance(body.get(field), list):
            body[field] = [numbered(each) for each in body[field]]
    return body


# -- masks -----------------------------------------------------------------------------------------


# Below these keys of a schema, the keys are names of properties and the values are schemas.
_PROPERTIES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_SCHEMAS = re.compile(
    r"type|\$ref|(any|one|all)Of|not|enum|const|description|title|default|format|items|properties"
)

_HEADERS = re.compile(r"(.*_)?headers")
_HARMLESS = re.compile(  # headers without credentials
    r"accept|accept_\w+|user_agent|cache_control|content_\w+|anthropic_(version|beta)|openai_beta"
)
_OF_KEYS = re.compile(r"(.*_)?(auth|authentication|oauth|security)")
_FEW = 100  # a smaller number is not a secret but a count, or a pin of a board
_SHORT = 8  # characters; a URL with a query, or JSON with a secret, is never shorter
_BULKY = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/_=-]{1024}")
"""The beginning of an image, a sound or a document in base64."""


def masked(value: Any, *, properties: bool = False, among_keys: bool = False) -> Any:
    """Return a JSON value with its secrets masked, and base64 data replaced by a digest.

    Secrets inside URLs and inside JSON texts (the arguments of a tool call) are masked, too.

    Args:
        value: a value from ``json.loads``.
        properties: True if the keys of ``value`` name the properties of a schema.
        among_keys: True if the value is part of an authentication setting, where a suspect value
            counts as a secret.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, dict):
        hidden = {
            key: masked(each)
            if properties and _is_schema(each)
            else masked_field(key, each, properties=key in _PROPERTIES, among_keys=among_keys)
            for key, each in value.items()
        }
        named = value.get("name", value.get("key"))
        if isinstance(named, str) and isinstance(value.get("value"), str):  # a header, a variable
            hidden["value"] = masked_field(named, value["value"], among_keys=among_keys)
        return hidden
    if isinstance(value, list):
        return [masked(each, among_keys=among_keys) for each in value]
    return value


def masked_field(
    name: str, value: Any, *, properties: bool = False, among_keys: bool = False
) -> Any:
    """Return the masked value of a field.

    If the name says that the value is a secret, the result is the mask.  Otherwise secrets inside
    the value are masked; see :func:`masked`.
    """
    if _is_ordinary(name, secret_names()):
        return masked(value, properties=properties)
    if _is_secret(name, value):
        return credentials.MASK
    if isinstance(value, str) and credentials.is_suspect_name(name):
        hidden = credentials.MASK if among_keys else _masked_text(value)
        return (
            credentials.digested(value)
            if hidden == value != credentials.MASK and credentials.is_suspect(value)
            else hidden
        )
    plain = plain_name(name)
    if _HEADERS.fullmatch(plain):
        return _masked_headers(value)
    of_keys = _OF_KEYS.fullmatch(plain) is not None
    return masked(value, properties=properties, among_keys=of_keys)


@functools.lru_cache(4096)
def _is_ordinary(name: str, _: frozenset[str]) -> bool:
    """Return whether a name gives no reason to mask a value.

    The second argument is the set of configured names, which only makes the cache follow changes.
    """
    plain = plain_name(name)
    of_others = _HEADERS.fullmatch(plain) or _OF_KEYS.fullmatch(plain)
    return not (credentials.is_secret_name(name) or credentials.is_suspect_name(name) or of_others)


def _is_secret(name: str, value: Any) -> bool:
    if value is None or isinstance(value, bool) or not credentials.is_secret_name(name):
        return False
    if isinstance(value, (int, float)):
        return abs(value) >= _FEW and not plain_name(name).endswith(("token", "tokens"))
    return True


def _masked_headers(value: Any) -> Any:
    """Mask the headers of another request that a body describes, except known harmless headers."""
    if isinstance(value, dict) and not any(isinstance(each, dict) for each in value.values()):
        return {
            name: each if _HARMLESS.fullmatch(plain_name(name)) else credentials.MASK
            for name, each in value.items()
        }
    if isinstance(value, list):
        pairs = [each for each in value if isinstance(each, dict) and "value" in each]
        if len(pairs) == len(value):
            return [{**each, "value": credentials.MASK} for each in pairs]
    return masked(value)


def digest_of(data: bytes) -> dict[str, Any]:
    """Return the length and the digest that replace unread data."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, dict) and (not value or any(map(_OF_SCHEMAS.fullmatch, value)))
    )


def _masked_text(text: str) -> str:
    if len(text) < _SHORT:
        return text
    if _BULKY.match(text):
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{text[:40]}... ({len(text)} characters, sha256 {digest})"
    if text.startswith(("https://", "http://")) and not re.search(r"\s", text):
        return credentials.masked_url(text)
    if text.lstrip()[:1] in ("{", "[", '"') and credentials.has_hint(text):
        try:
            value = json.loads(text)
        except ValueError:
            return credentials.masked_prose(text)
        hidden = masked(value)
        return text if hidden == value else json.dumps(hidden, ensure_ascii=False)
    return credentials.masked_prose(text)


# -- answers that are recorded ---------------------------------------------------------------------


def is_final(status: int) -> bool:
    """Return whether an answer is an outcome that may be recorded, not a failed attempt.

    A refused key, a conflict, a limit or a timeout is temporary.  A recorded answer of this kind
    would be repeated forever.
    """
    return 200 <= status < 300 or (
        400 <= status < 500 and status not in (401, 403, 408, 409, 425, 429)
    )


_KEPT = (
    "apim-request-id",
    "content-type",
    "openai-model",
    "openai-version",
    "operation-location",
    "request-id",
    "x-amzn-requestid",
    "x-request-id",
    "x-should-retry",
)
_KEPT_PREFIXES = ("x-amzn-bedrock-", "x-litellm-model", "x-litellm-response-cost")


def keep_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer to record, by lower-case name.

    Only headers on a list are recorded, which describe the answer itself.  Other headers describe:

    - the connection (``content-encoding`` and ``content-length``: the recorded body is decoded);
    - the moment (``date``, ``x-ratelimit-*``: a program would wait for a limit of long ago);
    - the account (``set-cookie``, ``openai-organization``).
    """
    kept = {name.lower(): value for name, value in headers.items()}
    return {
        name: value
        for name, value in sorted(kept.items())
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }


# -- what an answer says ---------------------------------------------------------------------------


_MOST = 300  # characters of a preview


def usage_of(endpoint: str, content_type: str, body: bytes, url: str = "") -> dict[str, Any]:
    """Return the known facts about an answer's model, tokens and cost.

    Args:
        endpoint: the endpoint's name, as from
            :func:`endpoint_of`.
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


# -- the JSON values of an answer ------------------------------------------------------------------


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


# -- usage -----------------------------------------------------------------------------------------


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


# -- texts and previews ----------------------------------------------------------------------------


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
