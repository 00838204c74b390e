"""Clients whose requests to models are not recorded are named, once, with the ways out."""

import asyncio
import contextlib

import pytest

pytest.importorskip("boto3")
pytest.importorskip("google.genai")
pytest.importorskip("aiohttp")
from scripted_server import ScriptedServer

import stepwise
from stepwise import workflow
from stepwise._runtime.messages import Once
from stepwise.integrations import instrument as _unseen_requests
from stepwise.testing import fresh_store


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("STEPWISE_QUIET", "0")
    monkeypatch.setattr(_unseen_requests, "_is_first", Once())
    server = ScriptedServer(script=())
    stepwise.instrument()
    with fresh_store():
        yield server
    stepwise.uninstrument()
    server.close()


def run(coroutine):
    """Run a coroutine, and leave the thread's event loop alone: pydantic-ai keeps one there."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(coroutine)


def notices(capsys):
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if "not recorded" in line]


def test_bedrock_by_boto3(server, capsys):
    """Bedrock's requests are made by botocore, which is named; nothing is recorded of them."""
    import boto3

    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=server.url,
        aws_access_key_id="k",
        aws_secret_access_key="s",
    )

    @workflow
    def agent():
        messages = [{"role": "user", "content": [{"text": "hello"}]}]
        replies = [client.converse(modelId="m", messages=messages) for _ in range(2)]
        return replies[0]["output"]["message"]["content"][0]["text"]

    assert "has gone" in agent()
    (line,) = notices(capsys)
    assert "botocore sends requests to a model (POST /model/m/converse) through urllib3" in line
    assert "@step" in line
    assert "name=" in line
    assert stepwise.runs()[0].steps == []


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")  # Google's own
def test_google_with_aiohttp_and_with_httpx(server, capsys):
    """Google's SDK is named where it uses aiohttp; given a client of httpx, it is recorded."""
    import httpx
    from google import genai

    async def asked(**options):
        client = genai.Client(api_key="k", http_options={"base_url": server.url, **options})
        async with client.aio as aio:
            return (await aio.models.generate_content(model="m", contents="hello")).text

    @workflow
    async def by_aiohttp():
        return await asked()

    @workflow
    async def by_httpx():
        async with httpx.AsyncClient() as client:
            return await asked(httpx_async_client=client)

    assert "has gone" in run(by_aiohttp())
    (line,) = notices(capsys)
    assert "google.genai sends requests" in line
    assert "through aiohttp" in line
    assert stepwise.runs()[0].steps == []
    assert "has gone" in run(by_httpx())
    assert notices(capsys) == []
    assert [each.name for each in stepwise.runs()[0].steps] == ["generate_content"]
