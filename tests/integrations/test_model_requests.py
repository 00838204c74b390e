"""The identity of a request to a model endpoint: what counts, what does not, what is masked."""

from __future__ import annotations

import base64
import io
import json
import weakref

import httpx2
import pytest
import sdks
from hypothesis import example, given
from hypothesis import strategies as st

import stepwise
from stepwise._values import credentials
from stepwise.integrations._model_protocols import (
    ModelRequest,
    asks_model,
    endpoint_of,
    is_final,
    keep_headers,
    read_request,
)

URL = "https://api.openai.com/v1/chat/completions"
JSON = {"content-type": "application/json"}

SECRET_FIELDS = st.sampled_from(
    ["api_key", "apiKey", "API-Key", "X-API-Key", "token", "access_token", "password", "cookie"]
    + ["secret", "client_secret", "aws_secret_access_key", "private_key", "Authorization"]
)
SECRET_PARAMETERS = st.sampled_from(
    ["api-key", "key", "token", "sig", "signature", "access_token", "code", "X-Amz-Signature"]
)
SECRETS = st.text("abcdefgXYZ0123456789", min_size=12).map("s3cr3t-".__add__)
NAMES = st.text(min_size=1, max_size=8).map("f".__add__) | st.sampled_from(
    ["max_tokens", "tokens", "properties", "type", "key", "signature"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=4)


def read(body: object, **headers: str) -> ModelRequest:
    return read_request("POST", URL, {**JSON, **headers}, json.dumps(body).encode())


def written(request: ModelRequest) -> str:
    return json.dumps(request, sort_keys=True)


def spots(value: object, path: tuple = ()) -> list[tuple]:
    """The places of a JSON value, from the outside in."""
    children = value.items() if isinstance(value, dict) else ()
    children = enumerate(value) if isinstance(value, list) else children
    return [path, *(spot for key, child in children for spot in spots(child, (*path, key)))]


def replaced(value: object, path: tuple, new: object) -> object:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@given(BODIES, st.randoms(use_true_random=False))
def test_the_order_and_the_layout_of_json_do_not_count(body, random):
    """Bodies with the same values are one, whatever the order of their keys and their layout."""

    def shuffled(value):
        if isinstance(value, list):
            return [shuffled(each) for each in value]
        if not isinstance(value, dict):
            return value
        items = list(value.items())
        random.shuffle(items)
        return {key: shuffled(each) for key, each in items}

    content = json.dumps(shuffled(body), indent=2, ensure_ascii=random.random() < 0.5)
    other = read_request("post", URL, JSON, content.encode("utf-8", "surrogatepass"))
    assert written(other) == written(read(body))


@given(BODIES, VALUES, st.data())
def test_any_other_value_is_another_request(body, new, data):
    """A body in which one value differs is another request."""
    spot = data.draw(st.sampled_from(spots(body)[1:] or [("fnew",)]))
    other = replaced(body, spot, new) if len(spots(body)) > 1 else {**body, "fnew": new}
    differs = json.dumps(body, sort_keys=True) != json.dumps(other, sort_keys=True)
    assert (written(read(body)) != written(read(other))) == differs


@given(BODIES, SECRET_FIELDS, SECRETS, st.data())
def test_no_secret_of_a_body_survives(body, name, secret, data):
    """A field with the name of a secret is masked on any depth, in texts that are JSON, too."""
    spot = data.draw(st.sampled_from(spots(body)))
    form = data.draw(st.sampled_from(["plain", "list", "dict", "text"]))
    holder = {
        "plain": {name: secret},
        "list": {name: [secret]},
        "dict": {name: {"value": secret}},
        "text": json.dumps({name: secret}),
    }[form]
    if not spot:
        spot, body = ("fnew",), {**body, "fnew": None}
    requests = [read(replaced(body, spot, holder))]
    other = json.loads(json.dumps(holder).replace(secret, "another-secret"))
    requests.append(read(replaced(body, spot, other)))
    assert secret not in written(requests[0])
    assert requests[0] == requests[1]


@given(SECRET_PARAMETERS, SECRETS, SECRETS)
def test_no_secret_of_a_url_survives(name, secret, user):
    """The query and the user of a URL are masked, of the request and of links in its body."""
    url = f"https://{user}:{secret}@example.com/v1/responses?api-version=2&{name}={secret}"
    content = json.dumps({"image_url": {"url": url}}).encode()
    request = read_request(
        "POST", url, {**JSON, "authorization": secret, "api-key": secret}, content
    )
    assert secret not in written(request)
    assert user not in written(request)
    assert "api-version=2" in request.url
    assert request.url.startswith("https://***@example.com/v1/responses?")


@given(SECRET_FIELDS, st.sampled_from(["properties", "$defs", "definitions"]))
def test_the_schema_of_a_parameter_with_such_a_name_survives(name, under):
    """A tool with a parameter called ``password`` keeps its schema."""
    schema = {
        "type": "object",
        under: {name: {"type": "string", "default": "x"}},
        "required": [name],
    }
    body = {"tools": [{"function": {"name": name, "parameters": schema}}], "max_tokens": 5}
    assert read(body).body == body


@given(BODIES, SECRET_FIELDS)
def test_masking_twice_changes_nothing(body, name):
    """A request that was masked is read again as it is."""
    once = read({**body, name: "hidden", "long": "A" * 5000})
    assert read_request(once.method, once.url, {**JSON}, json.dumps(once.body).encode()) == once


@given(
    st.binary(),
    st.sampled_from(
        ["", "application/json", "text/plain", "application/x-www-form-urlencoded"]
        + ["multipart/form-data", "multipart/form-data; boundary=x"]
    ),
)
@example(b"[" * 100_000, "application/json")
@example(b'{"a":' * 300 + b"1" + b"}" * 300, "application/json")
@example(b"\xff\xfe", "application/x-www-form-urlencoded")
def test_any_body_can_be_read(content, kind):
    """A body in any form has an identity."""
    request = read_request("POST", URL, {"content-type": kind}, content)
    assert read_request("POST", URL, {"content-type": kind}, content) == request
    assert (request.body is None) == (content == b"" or content.strip() == b"null")


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_what_cannot_be_read_counts_by_its_digest(one, two):
    """Bodies in an unknown form are one if their bytes are."""
    requests = [
        read_request("POST", URL, {"content-type": "audio/wav"}, b"\xff" + b) for b in (one, two)
    ]
    assert (requests[0] == requests[1]) == (one == two)


def test_a_secret_in_a_form_does_not_survive():
    """The fields of both kinds of forms are masked by their names."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    request = read_request("POST", URL, form, b"client_secret=hunter2&grant=a&grant=b")
    assert request.body == {"form": [["client_secret", "***"], ["grant", "a"], ["grant", "b"]]}
    parts = b'--B\r\nContent-Disposition: form-data; name="token"\r\n\r\nhunter2\r\n--B--\r\n'
    request = read_request("POST", URL, {"content-type": "multipart/form-data; boundary=B"}, parts)
    assert request.body == {"multipart": [{"name": "token", "value": "***"}]}


T, OTHER = "SECRETVALUE-0123456789abcdef", "another-a1b2c3d4e5f6g7h8"
KEPT_APART = {
    "key": lambda t: {"key": t},
    "session id": lambda t: {"session_id": t},
    "key in a text": lambda t: {"content": f"set hmac_key={t} and X-Functions-Key: {t} there"},
    "part of a path": lambda t: {"image_url": {"url": f"https://images/{t}/a.png"}},
}
TAKEN_FOR_ONE = {
    "Anthropic MCP": lambda t: {"mcp_servers": [{"url": "https://m", "authorization_token": t}]},
    "headers": lambda t: {"tools": [{"type": "mcp", "headers": {"X-Workspace": t}}]},
    "header": lambda t: {"headers": [{"name": "X-Auth", "value": t}]},
    "Azure key": lambda t: {"data": [{"authentication": {"type": "api_key", "key": t}}]},
    "connection string": lambda t: {"connection_string": f"AccountEndpoint=x;AccountKey={t}"},
    "vertex": lambda t: {"vertex_credentials": t, "metadata": {"user_api_key": t}},
    "query": lambda t: {"server_url": f"https://m/sse?apiKey={t}"},
    "environment": lambda t: {"env": [{"name": "GITHUB_TOKEN", "value": t}]},
    "text": lambda t: {"content": f"curl -H 'Authorization: Bearer {t}' https://x"},
    "basic": lambda t: {"content": "Basic " + base64.b64encode(f"me:{t}".encode()).decode()},
    "JSON in a text": lambda t: {"content": f'It says: {{"access_token": "{t}"}}'},
    "escaped": lambda t: {"content": json.dumps("It says: " + json.dumps({"password": t}))},
    "shell": lambda t: {"content": f"export API_KEY={t}\nCookie: sid={t}; a=b"},
    "issuer": lambda t: {"content": f"my key is sk-proj-{t}, is it?"},
    "user": lambda t: {"content": f"psql postgresql://me:{t}@db/x"},
    "private key": lambda t: {"x": f"-----BEGIN PRIVATE KEY-----\n{t}\n-----END PRIVATE KEY-----"},
    "slack": lambda t: {"content": f"post to https://hooks.slack.com/services/T0/B0/{t} now"},
    "number": lambda t: {"pin": int.from_bytes(t.encode(), "big"), "otp": t},
}


@pytest.mark.parametrize("make", [*TAKEN_FOR_ONE.values()], ids=[*TAKEN_FOR_ONE])
def test_a_rotated_credential_makes_no_other_request(make):
    """A credential leaves nothing in the identity of a request, wherever it stands."""
    one, other = read(make(T)), read(make(OTHER))
    assert one == other
    assert T not in written(one)
    assert read(one.body) == one


@pytest.mark.parametrize("make", [*KEPT_APART.values()], ids=[*KEPT_APART])
def test_what_may_be_an_id_is_not_stored_and_tells_requests_apart(make):
    """A digest stands for what may be a credential or an id."""
    one = read(make(T))
    assert one != read(make(OTHER))
    assert one == read(make(T))
    assert T not in written(one)
    assert read(one.body) == one


def test_a_credential_in_a_path_or_form_is_not_stored():
    """The path of a URL, forms and multipart fields without quotes hold no credential."""
    urls = [f"https://api.telegram.org/bot{T}/sendMessage", f"https://x/{T}/y", f"https://u:{T}@x/"]
    parts = f"--B\r\nContent-Disposition: form-data; name=api_key\r\n\r\n{T}\r\n--B--\r\n".encode()
    kinds = {
        "multipart/form-data; boundary=B": parts,
        "application/x-www-form-urlencoded": f"assertion={T}&code={T}".encode(),
        "text/plain": f'"token={T}"'.encode(),
    }
    requests = [read_request("POST", url, JSON, b"{}") for url in urls]
    requests += [read_request("POST", URL, {"content-type": k}, v) for k, v in kinds.items()]
    assert not any(T in written(each) for each in requests)
    assert requests[0].url == "https://api.telegram.org/bot***/sendMessage"


def test_ordinary_requests_are_stored_as_they_are():
    """Prompts about keys, counts of tokens, ids, hashes and URLs are no credentials."""
    body = {
        "model": "claude-sonnet-4-20250514",
        "max_tokens": 1024,
        "max_completion_tokens": 9,
        "usage": {"prompt_tokens": 12, "token_count": 123456, "cost_per_token": 0.1},
        "logprobs": {"token": 15339},
        "messages": [
            {"role": "user", "content": "Where do I put the API key? token: see below; key=value"},
            {"role": "user", "content": "Use `api_key=os.environ['KEY']` and password = input()."},
            {
                "role": "user",
                "content": "The bearer of this letter; a basic idea, token 12.",
            },
            {"role": "user", "content": '{"next_page_token": "CAUQAA", "tokens": ["a", "b"]}'},
            {"role": "user", "content": "row_key=9f86d081884c7d659a2f; app_key='x'"},
            {"role": "user", "content": "sort(items, sort_key=by_name_2); data_key = load(path_1)"},
            {"role": "user", "content": "sk-learn, task-force-of-the-week, https://x.org/a?b=c#d"},
        ],
        "id": "msg_01AbCdEfGhIjKlMnOpQrStUv",
        "page_token": "eyJsYXN0X2lkIjo0fQaBcD1234",
        "cache_key": "user-1234567890abcdef1234",
        "idempotency_key": "5f0c9a7e11d24c0b8a5b7e6f90123456",
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "session_id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
        "key": "photos/2024/cat.jpg",
        "status_code": "a1b2c3d4e5f6a7b8",
        "pin": 17,
        "password_policy": "twelve-characters-1",
        "urls": [
            "https://github.com/python/cpython/blob/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b/README",
            "https://example.com/2024/11/28/how-to-write-agents-in-python-3?page=2&sort=newest",
            "https://x.org/files/7c9e6679-7425-40de-944b-e07fc1f90ae7/1234567890123456",
        ],
    }
    assert read(body).body == body


def test_names_that_a_project_adds_are_masked():
    """``configure(secret_names=...)`` names further fields, headers and parameters."""
    stepwise.configure(secret_names=["door_code"])
    body = {"doorCode": "4711", "x": "https://x/?Door-Code=4711", "t": '{"door_code": "4711"}'}
    assert read(body).body == {
        "doorCode": "***",
        "x": "https://x/?Door-Code=***",
        "t": '{"door_code": "***"}',
    }


def test_an_image_counts_by_its_digest():
    """Megabytes in base64 are neither kept nor forgotten."""
    images = [f"data:image/png;base64,{'A' * 2_000_000}{end}" for end in "AB"]
    one, two = [read({"image_url": {"url": image}}) for image in images]
    assert one != two
    assert len(written(one)) < 400


def test_the_ids_of_tool_calls_count_by_their_order():
    """New ids at each start make no other request; results that are swapped do."""

    def conversation(a: str, b: str, first: str, second: str) -> dict:
        calls = [{"id": each, "type": "function", "function": {"name": "f"}} for each in (a, b)]
        results = [
            {"role": "tool", "tool_call_id": each, "content": each == a} for each in (first, second)
        ]
        results = [{**each, "content": str(n)} for n, each in enumerate(results)]
        return {"messages": [{"role": "assistant", "tool_calls": calls}, *results]}

    same = read(conversation("x", "y", "x", "y"))
    assert read(conversation("p", "q", "p", "q")) == same
    assert read(conversation("p", "q", "q", "p")) != same


def test_a_call_id_among_the_arguments_of_a_tool_is_data():
    """What a tool calls ``call_id`` is as much a value as any other."""

    def asked(call_id: str) -> ModelRequest:
        block = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"call_id": call_id}}
        return read({"messages": [{"role": "assistant", "content": [block]}]})

    assert asked("one") != asked("two")


def test_betas_count_in_any_order():
    """The headers on which an answer depends count; keys, platforms and retries do not."""

    def asked(betas: str, key: str, attempt: str) -> ModelRequest:
        sent = {"authorization": key, "x-stainless-retry-count": attempt}
        return read({}, **{"anthropic-beta": betas, **sent})

    assert asked("a,b", "k", "0") == asked("b, a", "l", "1") != asked("a", "k", "0")
    assert asked("a,b", "k", "0").headers == {"anthropic-beta": "a,b"}


# -- what the SDKs send --------------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "hi"}]
ASKED = {"model": "m", "messages": MESSAGES}
SOUND = ("a.mp3", b"\x00\r\n--x")
PICTURES = [("a.png", io.BytesIO(b"a")), ("b.png", io.BytesIO(b"b"))]
CALLS = {
    "chat": lambda c: c.chat.completions.create(**ASKED),
    "chat, streamed": lambda c: c.chat.completions.create(**ASKED, stream=True),
    "chat, raw": lambda c: c.chat.completions.with_raw_response.create(**ASKED),
    "responses": lambda c: c.responses.create(model="m", input="hi"),
    "embeddings": lambda c: c.embeddings.create(model="m", input=["hi"]),
    "transcriptions": lambda c: c.audio.transcriptions.create(model="m", file=SOUND),
    "edits": lambda c: c.images.edit(model="m", prompt="p", image=PICTURES),
    "files": lambda c: c.files.create(file=("a.txt", b"hello"), purpose="batch"),
}
OF_ANTHROPIC = {
    "messages": lambda c: c.messages.create(**ASKED, max_tokens=9),
    "messages, streamed": lambda c: c.messages.create(**ASKED, max_tokens=9, stream=True),
    "betas": lambda c: c.beta.messages.create(**ASKED, max_tokens=9, betas=["x"]),
    "count_tokens": lambda c: c.messages.count_tokens(**ASKED),
}
ENDPOINTS = {
    "chat": "chat.completions",
    "responses": "responses",
    "embeddings": "embeddings",
    "transcriptions": "audio.transcriptions",
    "edits": "images.edits",
    "files": None,
    "messages": "messages",
    "betas": "messages",
    "count_tokens": "messages.count_tokens",
}


@pytest.mark.parametrize("name", [*CALLS, *OF_ANTHROPIC])
def test_attempts_and_repetitions_of_an_sdk_are_one_request(name):
    """What an SDK sends again, as a retry or at the next start, is the same request."""
    seen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {key.lower(): value for key, value in request.headers.items()}
        seen.append((request.method, str(request.url), headers, request.read()))
        body = {"id": "x", "data": [{"embedding": [0.5]}], "input_tokens": 1}
        body |= {"choices": [], "content": [], "output": []}
        status = 500 if len(seen) == 1 else 200
        return httpx2.Response(status, json=body, headers={"retry-after-ms": "1"})

    http_client = httpx2.Client(transport=httpx2.MockTransport(answer))
    make = sdks.openai.OpenAI if name in CALLS else sdks.anthropic.Anthropic
    for key in ("sk-first-key", "sk-second-key"):
        client = make(api_key=key, http_client=http_client, max_retries=1)
        {**CALLS, **OF_ANTHROPIC}[name](client)
    assert len(seen) == 3
    requests = [read_request(*each) for each in seen]
    assert requests[0] == requests[1] == requests[2]
    assert "sk-" not in written(requests[0])
    assert requests[0].streamed == ("streamed" in name)
    assert endpoint_of(seen[0][0], httpx2.URL(seen[0][1]).path) == ENDPOINTS[name.partition(",")[0]]


# -- endpoints, statuses, headers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat.completions"),
        ("/openai/deployments/gpt/chat/completions", "chat.completions"),
        ("/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/responses/compact", "responses.compact"),
        ("/anthropic/v1/messages?beta=true", "messages"),
        ("/model/anthropic.claude-v2:1/invoke", "messages"),
        ("/model/arn:aws:bedrock:eu:1:inference-profile/x/invoke-with-response-stream", "messages"),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/m:streamRawPredict", "messages"),
        ("/v1/publishers/anthropic/models/count-tokens:rawPredict", "messages.count_tokens"),
        ("/v1beta/models/gemini:streamGenerateContent", "generate_content"),
        ("/v1/audio/speech", "audio.speech"),
        ("/v1/images/generations", "images.generations"),
        ("/v1/moderations", "moderations"),
        ("/v2/chat", "chat"),
        ("/api/chat", "chat"),
        ("/v1/fim/completions", "completions"),
        ("/v1/rerank", "rerank"),
        ("/v1/files", None),
        ("/v1/messages/batches", None),
        ("/v1/batches", None),
        ("/v1/fine_tuning/jobs", None),
        ("/v1/threads/thread_1/messages", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/chat/completions/chatcmpl_1", None),
        ("/v1/conversations/c/items", None),
        ("/v1/videos", None),
        ("/oauth2/v2.0/token", None),
    ],
)
def test_the_endpoint_of_a_path(path, endpoint):
    """A POST to a model endpoint asks a model; whatever is about state on the server does not."""
    assert endpoint_of("post", path) == endpoint
    assert endpoint_of("GET", path) is None


def test_only_final_answers_are_outcomes():
    """Statuses that are about the moment or the key are failed attempts."""
    passing = {401, 403, 408, 409, 425, 429}
    final = [*range(200, 300), *(each for each in range(400, 500) if each not in passing)]
    assert [status for status in range(100, 600) if is_final(status)] == final


def test_the_headers_of_an_answer_that_are_kept():
    """Those of the answer are kept; of the connection, the moment and the account none is."""
    headers = {
        "Content-Type": "application/json",
        "X-Request-Id": "req_1",
        "Set-Cookie": "session=1",
        "Content-Encoding": "gzip",
        "Date": "now",
        "x-ratelimit-remaining-requests": "1",
        "openai-organization": "acme",
    }
    assert keep_headers(headers) == {"content-type": "application/json", "x-request-id": "req_1"}


@pytest.mark.parametrize(
    ("path", "body", "asks"),
    [
        ("/openai/v1/chat/completions", {"model": "m", "messages": MESSAGES}, True),
        ("/openai/deployments/gpt/chat/completions", {"messages": MESSAGES}, True),
        ("/v1/agents/completions", {"agent_id": "a", "messages": MESSAGES}, True),
        ("/v1beta/models/gemini:generateContent", {"contents": []}, True),
        ("/model/amazon.nova/converse", {"messages": MESSAGES}, True),
        ("/model/amazon.titan-embed-text-v2:0/invoke", {"inputText": "hello"}, True),
        ("/v2/embed", {"model": "m", "texts": ["hello"]}, True),
        ("/api/generate", {"model": "m", "prompt": "hello"}, True),
        ("/v1/messages", {"to": "+41", "from": "+42", "text": "hello"}, False),
        ("/forms/7/responses", {"answers": []}, False),
        ("/v1/completions", ["model", "course"], False),
        ("/v1/completions", "model prompt", False),
        ("/v1/jobs", {"model": "m", "messages": MESSAGES}, False),
    ],
)
def test_a_request_that_asks_a_model_is_known_by_its_shape(path, body, asks):
    """Path, model and question make a request one to a model; a path alone is also of others."""
    content = json.dumps(body).encode()
    assert asks_model("POST", path, content) is asks
    assert not asks_model("GET", path, content)


@pytest.mark.parametrize(
    ("path", "body", "asks"),
    [
        ("/v1/moderations", {"input": "hello"}, True),
        ("/v1/images/generations", {"prompt": "a cat"}, True),
        ("/v1/responses/compact", {"model": "m", "previous_response_id": "r"}, True),
        ("/v2/messages", {"to": "+41", "from": "+42", "text": "hello"}, False),
        ("/v1/files", {"model": "m", "input": "hello"}, False),
    ],
)
def test_a_request_of_an_sdk_asks_a_model_without_naming_it(path, body, asks):
    """The mark of an SDK stands for a model or a question; SDKs of other services have it, too."""
    content = json.dumps(body).encode()
    assert asks_model("POST", path, content, of_sdk=True) is asks
    assert not asks_model("POST", path, content)


def test_a_form_that_asks_a_model_is_known_by_its_fields():
    """An uploaded sound that names a model is a question; an uploaded file alone is not."""
    for field, asks in (("model", True), ("purpose", False)):
        data, files = {field: "x"}, {"file": ("a.wav", b"\xff\xfe" * 50)}
        url = "http://m/v1/audio/transcriptions"
        request = httpx2.Request("POST", url, data=data, files=files)
        assert asks_model("POST", request.url.path, request.read()) is asks


def test_a_text_is_judged_anew_when_a_name_becomes_that_of_a_secret():
    """What was left as it is stays so only until ``configure(secret_names=...)``."""
    body = {"t": 'the gate_pin_of_bob: "ab12cd34"', "x": "https://x/?gate_pin_of_bob=4711"}
    assert read(body).body == body
    stepwise.configure(secret_names=["gate_pin_of_bob"])
    assert read(body).body == {
        "t": 'the gate_pin_of_bob: "***"',
        "x": "https://x/?gate_pin_of_bob=***",
    }


def test_the_messages_of_a_long_conversation_are_searched_once(monkeypatch):
    """A text that was sent before is not searched for credentials again, after 1,000 others too."""
    searched = []
    search = credentials._masked_prose
    monkeypatch.setattr(
        credentials, "_masked_prose", lambda text: (searched.append(text), search(text))[1]
    )
    messages = [{"role": "user", "content": f"question {n} of a long talk"} for n in range(1000)]
    read({"messages": messages})
    searched.clear()
    more = {"role": "user", "content": "one question more of it"}
    assert read({"messages": [*messages, more]}).body["messages"] == [*messages, more]
    assert searched == [more["content"]]


class Text(str):
    """A text whose end can be noticed."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize(
    "text",
    [
        "https://x.example.org/v1/models?api_key=4711abcdefghijklmnop",
        "https://bob:hunter22@x.example.org/v1",
        "see https://x.example.org/v1/models, no secret",
    ],
)
def test_no_text_is_kept_that_was_looked_at(text):
    """A key in the URL of a request does not stay in memory once its client is gone."""
    text = Text(text)
    alive = weakref.ref(text)
    for in_order in (False, True):
        credentials.masked_url(text, in_order=in_order)
    credentials.masked_prose(text)
    del text
    assert alive() is None
