"""Masks for what a request to a model endpoint must not leave behind: keys, tokens, passwords.

Names decide, on any depth: a header, query parameter or field with one of these exact names.  So
``max_tokens`` stays, and so does the schema of a tool that has a parameter ``password``.  A secret
that is written into a prompt is text like any other, and stays.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from urllib.parse import unquote_plus, urlsplit, urlunsplit

from stepwise._values.secrets import SECRET_NAMES, is_secret_name, plain_name

__all__ = ["MASK", "digest_of", "masked", "masked_field", "masked_url"]

MASK = "***"
"""The text in place of a secret."""

_PARAMETER = re.compile(
    rf"{SECRET_NAMES} | key | sig | signature | auth | code | awsaccesskeyid"
    " | x_(amz|goog)_(signature|credential|security_token)",
    re.VERBOSE,
)
_HINT = re.compile(
    "key|secret|passw|passphrase|credential|token|jwt|authorization|cookie", re.IGNORECASE
)
"""A text without any of these has no field that is a secret."""

# In a schema, the keys under these are names of properties, and the values are schemas.
_PROPERTIES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_SCHEMAS = re.compile(
    r"type|\$ref|(any|one|all)Of|not|enum|const|description|title|default|format|items|properties"
)

_AMBIGUOUS = ("key", "code", "auth", "sig", "signature")
_KEY = 16  # characters of a key, at least: ``code=DE`` is none, and tells two requests apart
_SHORT = 8  # characters: no URL with a query, and no JSON with a secret, is shorter
_BULKY = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/_=-]{1024}")
"""The beginning of an image, a sound or a document in base64."""


def masked(value: Any, *, properties: bool = False) -> Any:
    """Return a JSON value with its secrets masked, and data in base64 replaced by its digest.

    A text that is JSON itself (the arguments of a tool call) is masked inside, and so are the query
    and the user of a text that is a URL.

    Args:
        value: as ``json.loads`` returns it.
        properties: whether the keys of ``value`` name the properties of a schema.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    if isinstance(value, str):
        return _masked_text(value)
    if isinstance(value, dict):
        return {
            key: masked(each)
            if properties and _is_schema(each)
            else masked_field(key, each, properties=key in _PROPERTIES)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [masked(each) for each in value]
    return value


def masked_field(name: str, value: Any, *, properties: bool = False) -> Any:
    """Return the value of a field: the mask, if the name says that it is a secret."""
    if value is not None and not isinstance(value, bool) and is_secret_name(name):
        return MASK
    return masked(value, properties=properties)


def masked_url(url: str, *, in_order: bool = False) -> str:
    """Return a URL with its user and the secrets of its query masked.

    Args:
        url: if it cannot be split, it is returned as it is.
        in_order: sort the parameters by name, and leave out the fragment, which is not sent.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    _, user, host = parts.netloc.rpartition("@")
    pairs = [_masked_pair(pair) for pair in parts.query.split("&")]
    if in_order:
        pairs.sort(key=lambda pair: pair.partition("=")[0])
    fragment = "" if in_order else "&".join(map(_masked_pair, parts.fragment.split("&")))
    netloc = f"{MASK}@{host}" if user else host
    return urlunsplit((parts.scheme, netloc, parts.path, "&".join(pairs), fragment))


def digest_of(data: bytes) -> dict[str, Any]:
    """Return what stands for data that is not read: its length and digest."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _masked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    plain = plain_name(unquote_plus(name))
    short = plain in _AMBIGUOUS and len(value) < _KEY
    return f"{name}={MASK}" if equals and not short and _PARAMETER.fullmatch(plain) else pair


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
        return masked_url(text)
    if text.lstrip()[:1] in ("{", "[") and _HINT.search(text):
        try:
            value = json.loads(text)
        except ValueError:
            return text
        hidden = masked(value)
        return text if hidden == value else json.dumps(hidden, ensure_ascii=False)
    return text
