"""Requests to model endpoints as plain values: masking, identity, and which answers are recorded.

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

The module imports neither httpx nor any SDK: callers pass plain values.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.settings import plain_name, secret_names
from stepwise._values import credentials

# -- request masks --------------------------------------------------------------------------------


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


# -- model requests -------------------------------------------------------------------------------


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


# -- bodies --------------------------------------------------------------------------------------


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


# -- endpoints and final answers -----------------------------------------------------------------

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
