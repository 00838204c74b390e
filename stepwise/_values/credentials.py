"""The masking of credentials in names, URLs, texts and errors, before anything is recorded.

Names of fields and the shape of values reveal credentials.  There are three verdicts.  A *secret*
is a field with a secret's name, or a text with a secret's shape (``sk-...``, a JWT, a password in a
URL).  It is masked, so that another key does not make another request.  A *suspect* may be a
credential or an id (``key``, ``session_id``, a random part of a path).  A suspect is replaced by a
short digest, so that two ids are never taken for one.  Everything else stays.

Errors of HTTP clients hold the failed request, with its headers, cookies, query and body.  Such an
error is recorded as a copy without these; the error itself is not changed.
"""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import itertools
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, unquote_plus, urlsplit, urlunsplit

from stepwise._runtime import settings
from stepwise._runtime.settings import plain_name

# -- credentials ----------------------------------------------------------------------------------


MASK = "***"
"""The text that replaces a secret."""

# -- names ---------------------------------------------------------------------------------------

_STEMS = (
    r"([a-z0-9]*(password|passwd|apikey|accesskey|secretkey|privatekey|authkey|secret|token))"
    r"|passwords|passphrases?|passcode|passw|pwd|secrets|credentials?|creds|authorization|jwt|bearer"
    r"|cookies?|otp|totp|cvv|cvc|sas|dsn|mnemonic|kubeconfig|(php|j)?sessid|jsessionid"
)
_OF_KEYS = (
    "api|access|secret|private|signing|encryption|decryption|account|master|license|ssh|deploy|auth"
    "|subscription|shared|consumer|service_account"
)
_OF_SECRETS = (  # words for facts about a secret, which are not secret
    "(types?|counts?|limits?|length|len|size|hint|policy|names?|ids?|arn|expiry|expires|expiration|ttl"
    "|url|uri|endpoint|file|path|dir|usage|budget|cost|price|format|required|enabled|mode|rules|in"
    "|version|schema|field|header|index|algorithm|at|date|provider|status|kind|location|source|ref"
    "|env|var|manager|store|strength|token|code)"
)
_SECRET = re.compile(
    rf"(.*_)?({_STEMS}|({_OF_KEYS})_keys?|(access|refresh|auth|api|bearer)_tokens"
    r"|(mfa|otp|totp|recovery|backup|verification|security|pin|auth)_codes?|one_time_(code|pass)"
    r"|pin|[a-z0-9]+_pass|(seed|secret|recovery)_phrase|security_answer|connection_?string"
    r"|(client_)?assertion|aws_?access_?key_?id|access_key_id|private_pem)"
    r"(_?(value|plain|raw|b64|base64|encoded|hash|[0-9]{1,2}))?"
    r"|(.*_)?(api_key|password|passwd|secret|bearer|(access|auth|bearer)_token)"
    rf"_(?!{_OF_SECRETS}$)[a-z0-9]+"
)
_NO_SECRET = re.compile(
    r"(.*_)?(max|min|eos|bos|pad|stop|unk|sep|cls|mask|next|page|prev|previous|continuation|sync"
    r"|start|end|per|num|total|prompt|completion|input|output|reasoning|image|audio|text|special"
    r"|first|last|top|cached|pagination|idempotency|request|cursor|resume|watch|sub|client)_token"
)
_SUSPECT = re.compile(
    r"(.*_)?(key|auth|authentication|sig|signature|hmac|pass|code|session|session_?id|sid|webhook"
    r"|service_account|nonce|state|database_url|db_url|license|certificate|cert|pem|keystore"
    r"|(secret|credential|token)_id|oauth|pat)"
)
_NO_SUSPECT = re.compile(
    r"(.*_)?(cache|public|primary|foreign|sort|partition|idempotency|object|row|index|group|map|item"
    r"|lookup|dedup|dedupe|deduplication|unique|shard|routing|route|translation|i18n|message|record"
    r"|dict|hash|range|composite|natural|s3)_key"
    r"|(.*_)?(status|error|exit|return|response|country|language|lang|currency|zip|postal|source"
    r"|product|area|reason)_code"
)


@functools.lru_cache(4096)
def _is_secret_name(name: str, added: frozenset[str]) -> bool:
    plain = plain_name(name)
    return plain in added or bool(_SECRET.fullmatch(plain) and not _NO_SECRET.fullmatch(plain))


def is_secret_name(name: str) -> bool:
    """Return whether a field, header, parameter or attribute of this name holds a secret."""
    return _is_secret_name(name, settings.secret_names())


@functools.lru_cache(4096)
def is_suspect_name(name: str) -> bool:
    """Return whether a field of this name may hold a secret, if its value looks like one."""
    plain = plain_name(name)
    return _SUSPECT.fullmatch(plain) is not None and not _NO_SUSPECT.fullmatch(plain)


# -- values --------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[\w\-.~+/=:%@]{16,8192}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_HASH = re.compile(r"[0-9a-f]+", re.IGNORECASE)
_PARTS = re.compile(r"[\-_.~+/=:%@]+")


def is_suspect(text: str) -> bool:
    """Return whether a text looks random: not a UUID, and not made of words, numbers and dates."""
    if not _TOKEN.fullmatch(text) or _UUID.fullmatch(text):
        return False
    return any(map(_is_random, _PARTS.split(text)))


def _is_random(part: str) -> bool:
    if len(part) < 9:
        return False
    digits = sum(each.isdigit() for each in part)
    if digits in (0, len(part)) and (digits or part.islower() or part.isupper()):
        return bool(digits) or len(part) > 24
    kinds = [(each.isdigit(), each.isupper()) for each in part]
    turns = sum(one != other for one, other in itertools.pairwise(kinds))
    return len(part) > 10 and (digits > 2 or 3 * turns > len(part))


def _is_suspect_part(text: str) -> bool:
    """Return whether a part of a path looks random, and is not a hash or a number."""
    return is_suspect(text) and not _HASH.fullmatch(text)


_LONG = 16  # minimum length of a key, in characters


def digested(text: str) -> str:
    """Return the replacement of a suspect: it distinguishes suspects, and cannot be read."""
    return MASK + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# -- URLs ----------------------------------------------------------------------------------------

_PARAMETER = re.compile(
    "key|sig|signature|auth|code|awsaccesskeyid|x_(amz|goog)_(signature|credential|security_token)"
)
_AMBIGUOUS = ("key", "code", "auth", "sig", "signature")  # ``code=DE`` is not a credential
_HOOKS = re.compile(  # URLs whose path is the key
    r"(//(?:hooks\.slack\.com/[a-z]+|discord(?:app)?\.com/api/webhooks)/)[^\s?#\"'<>]+"
    r"|(//api\.telegram\.org/(?:file/)?bot)[^/\s?#\"'<>]+"
)


def _masked_hook(found: re.Match[str]) -> str:
    return (found[1] or found[2]) + MASK


def masked_url(url: str, *, in_order: bool = False) -> str:
    """Return a URL with its user, the secrets of its query and random parts of its path masked.

    Args:
        url: returned unchanged if it cannot be split.
        in_order: sort the parameters by name, and drop the fragment, which is never sent.
    """
    masks = _sorted_masked_url if in_order else _masked_url
    return _without_secrets(url, masks)


def _sorted_masked_url(url: str) -> str:
    return _masked_url(url, in_order=True)


def _masked_url(url: str, *, in_order: bool = False) -> str:
    try:
        parts = urlsplit(_HOOKS.sub(_masked_hook, url))
    except ValueError:
        return url
    _, user, host = parts.netloc.rpartition("@")
    pairs = [_masked_pair(pair) for pair in parts.query.split("&")]
    if in_order:
        pairs.sort(key=lambda pair: pair.partition("=")[0])
    fragment = "" if in_order else "&".join(map(_masked_pair, parts.fragment.split("&")))
    path = "/".join(map(_masked_segment, parts.path.split("/")))
    netloc = f"{MASK}@{host}" if user else host
    return urlunsplit((parts.scheme, netloc, path, "&".join(pairs), fragment))


def _masked_segment(segment: str) -> str:
    return digested(segment) if _is_suspect_part(segment) else masked_prose(segment)


def _masked_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return pair
    name_text, text = unquote_plus(name), unquote_plus(value)
    plain = plain_name(name_text)
    known = _PARAMETER.fullmatch(plain) and not (plain in _AMBIGUOUS and len(value) < _LONG)
    if known or is_secret_name(name_text):
        return f"{name}={MASK}"
    if is_suspect_name(name_text) and is_suspect(text):
        return f"{name}={digested(text)}"
    hidden = masked_prose(text)
    return pair if hidden == text else f"{name}={quote_plus(hidden, safe='*')}"


# -- texts ---------------------------------------------------------------------------------------

_PREFIXED = (  # prefixes of the issuers
    r"sk-(?=[\w-]*[0-9])[\w-]{16,}|[spr]k_(?:live|test)_\w{10,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w.-]{20,}"
    r"|(?:hf_|npm_|gsk_|nvapi-|xai-|pplx-|tvly-|r8_|whsec_|shpat_|dop_v1_)[A-Za-z0-9]{16,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"
)
_KNOWN = re.compile(
    rf"(?<![\w-])(?:{_PREFIXED})"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:(?!-----END).)*(?:-----END [A-Z ]{0,40}-----)?",
    re.ASCII | re.DOTALL,
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)([\w\-.~+/]{8,8192}={0,2})", re.IGNORECASE | re.ASCII)
_USER_INFO = re.compile(r"(://)[^\s/@:\"'<>{}]{0,200}:[^\s/@\"'<>{}]{1,400}(?=@)")
_COOKIES = re.compile(r"\b((?:set-)?cookie: *)[^\s\"'][^\r\n\"']*", re.IGNORECASE)
_SEPARATOR = re.compile("[:=]")
_NAME_BACKWARDS = re.compile(r"[\w.-]{1,60}")
_VALUE = re.compile(
    r"(?:=>|[:=])\s{0,4}(?:(\\{0,8}[\"'])((?:(?!\1)[^\n]){4,4000})\1"
    r"|([\w\-+/=.~%@!$]{8,8192})(?![\w\-+/=.~%@!$(\[]))"
)
_HINTS = (
    *(
        "key",
        "secret",
        "passw",
        "pwd",
        "passphrase",
        "credential",
        "token",
        "jwt",
        "bearer",
        "basic ",
    ),
    *("authorization", "cookie", "_pass", "otp", "dsn", "sas"),
)
_KNOWN_HINTS = (
    *("sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("xox", "xapp-", "AKIA", "ASIA", "AIza", "ya29.", "hf_", "npm_", "gsk_", "nvapi-", "xai-"),
    *("pplx-", "tvly-", "r8_", "whsec_", "shpat_", "dop_v1_", "SG.", ".eyJ", "PRIVATE KEY"),
)


def has_hint(text: str) -> bool:
    """Return whether a text may hold a field with a secret's name."""
    low = text.lower()
    return any(each in low for each in _HINTS) or any(
        all(part in low for part in each.split("_")) for each in settings.secret_names()
    )


def masked_prose(text: str) -> str:
    """Return a text with everything masked that has the shape of a credential."""
    return _without_secrets(text, _masked_prose)


_MOST_HARMLESS = 20_000
_harmless: dict[tuple[Callable[[str], str], bytes], frozenset[str]] = {}
"""The digests of texts in which nothing is masked, each with the names of secrets of that time.

Each turn of a conversation sends all earlier messages again.  A cache that held the texts forgot
each of them before it came again, from the 257th message on; and it kept secrets in memory.
"""


def _without_secrets(text: str, masks: Callable[[str], str]) -> str:
    """Return what a function makes of a text, which is looked at once if nothing is masked."""
    names = settings.secret_names()
    mark = masks, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    if _harmless.get(mark) is names:
        return text
    hidden = masks(text)
    if hidden == text:
        if len(_harmless) >= _MOST_HARMLESS:
            _harmless.clear()
        _harmless[mark] = names
    return hidden


def _masked_prose(text: str) -> str:
    if any(each in text for each in _KNOWN_HINTS):
        text = _KNOWN.sub(MASK, text)
    if "://" in text:
        text = _HOOKS.sub(_masked_hook, _USER_INFO.sub(rf"\1{MASK}", text))
    if not has_hint(text):
        return text
    text = _SCHEME.sub(_without_token, text)
    if "ookie: " in text:
        text = _COOKIES.sub(rf"\1{MASK}", text)
    return _without_values(text)


def _without_token(found: re.Match[str]) -> str:
    scheme, space, token = found.groups()
    if scheme.lower() == "bearer":
        masks = len(token) >= _LONG and re.search("[0-9]", token) is not None
    else:
        masks = ":" in _decoded(token)
    return f"{scheme}{space}{MASK}" if masks else found[0]


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""


def _without_values(text: str) -> str:
    """Return a text with the values of ``password=...`` and ``"token": "..."`` masked."""
    kept, end = list[str](), 0
    for separator in _SEPARATOR.finditer(text):
        at = separator.start()
        before = text[max(end, at - 70) : at].rstrip("\\\"' ")
        name = _NAME_BACKWARDS.match(before[::-1])
        if name is None:
            continue
        named, found = name[0][::-1], None
        if is_secret_name(named) or (  # a name like ``hmac_key``; ``key`` alone means no key
            plain_name(named).endswith("_key") and is_suspect_name(named)
        ):
            found = _VALUE.match(text, at)
        if found is not None and (mask := _mask_of(named, found[2] or "", found[3] or "")):
            start, stop = found.span(2 if found[2] else 3)
            kept += text[end:start], mask
            end = stop
    return "".join((*kept, text[end:])) if kept else text


def _mask_of(name: str, quoted: str, bare: str) -> str:
    """Return the replacement of a value in a text, or an empty text if the value stays."""
    if is_secret_name(name):
        return MASK if _is_worth_masking(quoted, bare) else ""
    return digested(quoted or bare) if _is_suspect_part(quoted or bare) else ""


def _is_worth_masking(quoted: str, bare: str) -> bool:
    if MASK in (quoted or bare) or re.search(r"\s", quoted):
        return False
    if quoted:
        return len(quoted) >= 6 and re.search("[^A-Za-z_.]", quoted) is not None
    return re.search("[0-9]", bare) is not None and re.search("[A-Za-z]", bare) is not None


_ABSOLUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{1,15}://[^\s\"'<>()\[\]{}]+")
_QUERY = re.compile(r"(?<=[?&])([\w.\-\[\]%]{1,100})=([^&\s'\"#<>()]{8,})")


def masked_error_text(text: str) -> str:
    """Return the text of an error without credentials, also in its URLs.

    Values of query parameters are checked for randomness, too, since libraries write the whole
    URL into their errors.
    """
    if "://" in text:
        text = _ABSOLUTE.sub(lambda found: masked_url(found[0]), text)
    if "?" in text:
        text = _QUERY.sub(_without_random, text)
    return masked_prose(text)


def _without_random(found: re.Match[str]) -> str:
    value = unquote_plus(found[2])
    return f"{found[1]}={MASK}" if is_suspect(value) else found[0]


# -- http errors ----------------------------------------------------------------------------------


_LIBRARIES = ("httpx", "httpx2", "requests")
_REQUESTS = ("Request", "PreparedRequest")


def without_credentials(error: BaseException) -> BaseException:
    """Return the error, or a copy if its requests or responses hold credentials to remove."""
    kept = {name: _bare(value) for name, value in vars(error).items()}
    if all(value is kept[name] for name, value in vars(error).items()):
        return error
    bare = type(error).__new__(type(error), *error.args)
    bare.args = error.args
    vars(bare).update(kept)
    return bare


def _kind(value: Any) -> tuple[str, str]:
    """Return the library and the class of a request or response."""
    for cls in type(value).__mro__:
        library = cls.__module__.partition(".")[0]
        if library in _LIBRARIES and cls.__name__ in (*_REQUESTS, "Response"):
            return library, cls.__name__
    return "", ""


def _bare(value: Any) -> Any:
    library, kind = _kind(value)
    if not library:
        return value
    if kind == "Response":
        return _bare_response(value)
    if library == "requests":
        return _bare_prepared(value)
    return type(value)(value.method, value.url.copy_with(query=None, userinfo=b""))


def _bare_response(value: Any) -> Any:
    value = copy.copy(value)
    vars(value).update((n, _bare(each)) for n, each in vars(value).items() if _kind(each)[0])
    value.history = []
    value.headers = value.headers.copy()
    value.headers.pop("set-cookie", None)
    if _kind(value)[0] == "requests":
        value.url = _bare_url(value.url)
        value.cookies = type(value.cookies)()
    return value


def _bare_prepared(value: Any) -> Any:
    value = copy.copy(value)
    value.url, value.headers, value.body = _bare_url(value.url), {}, None
    for name in ("auth", "cookies", "params", "data", "files", "json"):  # fields of a Request
        if hasattr(value, name):
            setattr(value, name, None)
    value._cookies = None
    value.hooks = {}
    return value


def _bare_url(url: Any) -> Any:
    if not isinstance(url, str):
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
