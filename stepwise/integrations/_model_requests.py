"""Requests to model endpoints as plain values: their identity, and which answers are recorded.

The identity of a request is its method, URL and body, and the few headers on which the answer
depends.  Not part of it:

- secrets, which are masked first (:mod:`stepwise.integrations._request_masks`): two requests that
  differ only in a secret are one;
- what an SDK makes anew at each attempt or start: retry counters, idempotency keys, its own version
  and platform, the boundaries of multipart bodies, the ids of tool calls (a framework makes them up
  where a model gives none; they count by the order in which they first appear, so a result still
  belongs to its call), ``prompt_cache_key`` (the OpenAI Agents SDK makes one for each run; it
  chooses a cache and never the answer), the name of an uploaded file up to its extension.

Imports neither httpx nor any SDK: the callers give plain values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stepwise._runtime.facts import NamedTuple
from stepwise.integrations._request_masks import digest_of, masked, masked_field, masked_url

__all__ = [
    "MODEL_REQUEST",
    "ModelRequest",
    "endpoint_of",
    "is_final",
    "keep_headers",
    "operation_of",
    "read_request",
]

MODEL_REQUEST = "model request"
"""The kind of the steps that are requests to models; OpenTelemetry shows them as such."""


class ModelRequest(NamedTuple):
    """The identity of a request to a model endpoint, without secrets.

    Args:
        method: in upper case.
        url: with masked secrets, and sorted parameters.
        headers: those on which the answer depends, by lower-case name.
        body: the value, if the body is JSON.  ``{"form": [[NAME, VALUE], ...]}`` for a form,
            ``{"multipart": [...]}`` for a multipart form.  ``{"bytes": N, "sha256": ...}`` for
            what cannot be read, and so could not be masked.  None for no body.
        streamed: whether the answer is asked for as a stream of events.
    """

    method: str
    url: str
    headers: dict[str, str]
    body: Any
    streamed: bool


# Their versions and betas decide the form and the abilities of an answer; guardrails its content.
# An organization or a project pays for the answer, and does not change it.
_COUNTING = ("anthropic-beta", "anthropic-version", "openai-beta")
_COUNTING_PREFIX = "x-amzn-bedrock-"


def read_request(method: str, url: str, headers: Mapping[str, str], content: bytes) -> ModelRequest:
    """Return the identity of a request.

    Args:
        method: of HTTP.
        url: as it is sent.
        headers: all of them, by lower-case name.
        content: the whole body.  The caller reads a body that is an iterator first; one that cannot
            be read twice has no identity, so such a request is not recorded.
    """
    counting = {
        name: ",".join(sorted(part.strip() for part in value.split(",")))
        for name, value in headers.items()
        if name in _COUNTING or name.startswith(_COUNTING_PREFIX)
    }
    body = _read_body(headers.get("content-type", ""), content)
    return ModelRequest(
        method.upper(),
        masked_url(url, in_order=True),
        dict(sorted(counting.items())),
        body,
        _is_streamed(url, body),
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


def _read_body(content_type: str, content: bytes) -> Any:
    if not content:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return _multipart(content_type, content)
    try:
        if kind == "application/x-www-form-urlencoded":
            pairs = parse_qsl(content.decode(), keep_blank_values=True)
            return {"form": [[name, masked_field(name, value)] for name, value in pairs]}
        return masked(_without_made_up_ids(json.loads(content)))
    except (ValueError, RecursionError):
        return digest_of(content)


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
    named = re.search(r'\bname="([^"]*)"', lines)
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
    """Leave out ``prompt_cache_key``, and number the ids of tool calls by their first appearance.

    Only where the protocols have these ids: in the arguments of a tool, ``call_id`` is data.
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


# -- endpoints, and the answers that are final ---------------------------------------------------

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
    )
]
_OPERATIONS = {
    "complete": "text_completion",
    "completions": "text_completion",
    "embed_content": "embeddings",
    "embeddings": "embeddings",
    "generate_content": "generate_content",
}
_NOT_MODELS = re.compile(r"/(threads|batches|fine_tuning|evals|vector_stores|conversations)(/|$)")


def operation_of(endpoint: str) -> str:
    """Return the operation of an endpoint, by the name that OpenTelemetry has for it, if any."""
    if re.search("count_?tokens|input_tokens|compact|images|audio|moderations", endpoint):
        return endpoint
    return _OPERATIONS.get(endpoint, "chat")


def endpoint_of(method: str, path: str) -> str | None:
    """Return the name of the model endpoint (``chat.completions``) that a request goes to.

    None for all else (files, batches, jobs, lists of models): those requests are about the state of
    a provider, so a recorded answer could be wrong by now.

    Args:
        method: of HTTP; only a POST asks a model.
        path: of the URL, with whatever the base URL puts before it (``/openai/deployments/NAME``).
    """
    path = path.partition("?")[0].rstrip("/")
    if method.upper() != "POST" or _NOT_MODELS.search(path):
        return None
    for pattern, name in _ENDPOINTS:
        found = pattern.search(path)
        if found is not None:
            return found.expand(name)
    return None


def is_final(status: int) -> bool:
    """Return whether an answer is an outcome, and no failed attempt.

    A key that is refused, a conflict, a limit or a timeout is about the moment: recorded, such an
    answer would be given for ever.
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
    """Return the headers of an answer that are recorded, by lower-case name.

    Those are named that say something of the answer itself.  The others are about the connection
    (``content-encoding`` and ``content-length``: the recorded body is decoded), the moment
    (``date``, ``x-ratelimit-*``: a program would wait for a limit of long ago), or the account
    (``set-cookie``, ``openai-organization``).
    """
    kept = {name.lower(): value for name, value in headers.items()}
    return {
        name: value
        for name, value in sorted(kept.items())
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
