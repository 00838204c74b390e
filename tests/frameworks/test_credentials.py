"""Credentials, by 114 names, through every client that is recorded: in no store and no export."""

import asyncio
import gc
import json
import re
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

import stepwise
from stepwise import cli, step, workflow

NAMES = """
    api_key apikey apiKey x-api-key X-Api-Key token access_token refresh_token id_token auth_token
    authToken bearer_token session_token security_token jwt secret client_secret clientSecret
    password passwd passphrase credentials credential authorization proxy-authorization cookie
    set-cookie private_key aws_secret_access_key aws_access_key_id subscription_key
    authorization_token access_key accessKey access_key_id secret_key secretKey app_secret appSecret
    consumer_secret signing_secret webhook_secret signing_key encryption_key account_key AccountKey
    SharedAccessKey connection_string connectionString database_url dsn pwd pass pin otp totp
    mfa_code one_time_password new_password old_password user_password db_password github_token
    gitlab_token slack_token bot_token hf_token personal_access_token private_token oauth_token
    csrf_token xsrf_token device_token service_account service_account_key openai_api_key
    anthropic_api_key user_api_key master_key license_key ssh_key deploy_key auth auth_key authkey
    bearer sas sas_token sessionid session_id PHPSESSID x-amz-security-token sig signature
"""
OTHERS = """
    azure_ad_token vertex_credentials aws_bearer_token_bedrock encoded_api_key PGPASSWORD smtp_pass
    STRIPE_SECRET_KEY twilioAuthToken recovery_code seed_phrase hmac_key basic_auth vault-token
    cf-access-client-secret DD-API-KEY x-functions-key ssh_private_key admin_passphrase storage_key
    client_assertion
"""
MARK = re.compile("MARKER-?([0-9]{3})x0a1b2c3d4e5f")
SAID = "an ordinary sentence about keys and tokens"


def marks(names):
    """A credential for each name."""
    return {name: f"MARKER-{at:03}x0a1b2c3d4e5f" for at, name in enumerate(names)}


FIELDS = marks((NAMES + OTHERS).split())
HEADERS = {f"x-{name}": FIELDS[name] for name in [*FIELDS][::3]}  # a server takes 100 of them
PLACES = {
    "fields": FIELDS,
    "list": [{"deep": FIELDS}],
    "data_sources": [
        {"parameters": {"authentication": {"type": "api_key", "key": FIELDS["pass"]}}}
    ],
    "mcp_servers": [
        {"url": f"https://m/{FIELDS['sas']}/sse", "authorization_token": FIELDS["jwt"]},
        {"server_url": f"https://me:{FIELDS['pwd']}@m/sse?key={FIELDS['sig']}", "headers": FIELDS},
    ],
    "env": [{"name": name, "value": value} for name, value in FIELDS.items()],
    "text": f"Authorization: Bearer {FIELDS['token']}\nexport API_KEY={FIELDS['api_key']}",
    "in_text": "The result: " + json.dumps({"access_token": FIELDS["access_token"]}),
}
CALL = {"name": "login", "arguments": json.dumps(FIELDS)}
CALLS = [{"id": "call_1", "type": "function", "function": CALL}]
MESSAGES = [
    {"role": "user", "content": SAID},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(FIELDS)},
]
USE = {"type": "tool_use", "id": "call_1", "name": "login", "input": FIELDS}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": json.dumps(FIELDS)}
OF_ANTHROPIC = [
    {"role": "user", "content": SAID},
    {"role": "assistant", "content": [USE]},
    {"role": "user", "content": [RESULT]},
]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        text = {"type": "text", "text": "done"}
        answer = {"id": "1", "model": "m", "created": 1}
        answer |= {"type": "message", "role": "assistant", "content": [text]}
        answer |= {"stop_reason": "end_turn", "stop_sequence": None}
        answer |= {"usage": {"input_tokens": 1, "output_tokens": 1}}
        if not self.path.partition("?")[0].endswith("/messages"):
            said = {"role": "assistant", "content": "done"}
            choice = {"index": 0, "finish_reason": "stop", "message": said}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
            answer |= {"choices": [choice]}
        self.answer(401 if "refused" in self.path else 200, json.dumps(answer).encode())

    do_GET = do_POST

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("set-cookie", f"sid={FIELDS['cookie']}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path):
    stepwise.configure(store=f"disk:{tmp_path / 'store'}")
    stepwise.instrument()
    yield tmp_path / "store"
    stepwise.uninstrument()


MORE = {"extra_body": PLACES, "extra_headers": HEADERS, "extra_query": FIELDS}


def with_openai(url):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key=FIELDS["api_key"], base_url=url, max_retries=0) as client:
        client.chat.completions.create(model="m", messages=MESSAGES, **MORE)


def with_anthropic(url):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(api_key=FIELDS["api_key"], base_url=url, max_retries=0) as client:
        client.messages.create(model="m", max_tokens=9, messages=OF_ANTHROPIC, **MORE)


def with_litellm(url):
    litellm = pytest.importorskip("litellm")
    more = {"extra_body": PLACES, "extra_headers": HEADERS, "api_key": FIELDS["api_key"]}
    loop = asyncio.new_event_loop()  # else litellm makes one, and closes it as little
    asyncio.set_event_loop(loop)
    litellm.completion("openai/m", MESSAGES, api_base=url, num_retries=0, **more)
    asyncio.set_event_loop(None)
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # litellm closes nothing
        litellm.in_memory_llm_clients_cache.flush_cache()
        gc.collect()


def with_httpx(url):
    httpx = pytest.importorskip("httpx")
    with httpx.Client(base_url=url, cookies={"sid": FIELDS["cookie"]}, headers=HEADERS) as client:
        stepwise.instrument(client, name="other")
        client.post("/x", params=FIELDS, json={"messages": MESSAGES, **PLACES})
        client.post(f"/bot{FIELDS['token']}/send", data={**FIELDS, "said": SAID})
        client.post("/form", files={name: (None, value) for name, value in FIELDS.items()})


CLIENTS = [with_openai, with_anthropic, with_litellm, with_httpx]


def found_in(folder, run_id):
    """The names of the credentials in the files of a store and in what is exported of a run."""
    texts = [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    words = [["show", run_id, "--all", "--locals"], ["show", run_id, "--json"]]
    words += [["export", run_id, "--format", each] for each in ("model-calls", "json", "html")]
    results = [CliRunner().invoke(cli.main, each) for each in words]
    texts += [result.stdout for result in results]
    assert any(SAID in text for text in texts[: -len(words)])  # else the scan finds nothing
    return {[*FIELDS][int(at)] for text in texts for at in MARK.findall(text)}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.__name__)
def test_no_credential_of_a_recorded_request_is_stored(client, url, folder):
    """Whatever the credential is called and wherever it stands, no store and no export holds it."""

    @workflow
    def ask(said):
        client(url)

    ask.options(run_id="ask")(SAID)
    assert found_in(folder, "ask") == set()


# -- exceptions of HTTP libraries ----------------------------------------------------------------

KEY, SID, QUERY = FIELDS["token"], FIELDS["cookie"], FIELDS["sig"]
SENT = {"headers": {"Authorization": f"Bearer {KEY}", "X-Own": KEY}, "cookies": {"sid": SID}}


def fail_requests(url):
    requests = pytest.importorskip("requests")
    requests.post(f"{url}/refused?q={QUERY}", data={"a": KEY}, **SENT).raise_for_status()


def fail_requests_with_basic(url):
    requests = pytest.importorskip("requests")
    requests.get(url.replace("//", f"//me:{KEY}@") + "/refused").raise_for_status()


def fail_requests_to_nobody(url):
    requests = pytest.importorskip("requests")
    requests.get(f"http://127.0.0.1:9/x?q={QUERY}", auth=("me", KEY), **SENT)


def fail_httpx(url):
    httpx = pytest.importorskip("httpx")
    with httpx.Client(**SENT) as client:
        client.get(f"{url}/refused?q={QUERY}").raise_for_status()


def fail_aiohttp(url):
    aiohttp = pytest.importorskip("aiohttp")

    async def ask():
        async with aiohttp.ClientSession(**SENT) as session:
            async with session.get(f"{url}/refused?q={QUERY}") as response:
                response.raise_for_status()

    asyncio.run(ask())


FAILING = [fail_requests, fail_requests_with_basic, fail_requests_to_nobody]
FAILING += [fail_httpx, fail_aiohttp]


@pytest.mark.parametrize("codec", ["pickle", "json"])
@pytest.mark.parametrize("client", FAILING, ids=lambda each: each.__name__)
def test_no_credential_of_an_exception_is_stored(client, codec, url, folder):
    """What failed is recorded without the keys that its library keeps in the exception."""

    @step(name="fail")
    def fail(said):
        client(url)

    @workflow(codec=codec)
    def ask(said):
        try:
            fail(said)
        except Exception as error:
            kind = type(error).__name__
            kept = error if error.__class__.__module__.startswith("requests") else None
        step(len)(said)  # a checkpoint with the exception in it
        return f"{kind} {kept is None}"

    done = ask.options(run_id="ask")(SAID)
    assert found_in(folder, "ask") == set()
    assert ask.options(run_id="ask")(SAID) == done
