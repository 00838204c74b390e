"""``stepwise mcp`` in a process of its own: over stdio and over HTTP, and who is let in."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess

import httpx2
import pytest
import sdks
from command import COMMAND, run
from harness import interpreted

from stepwise import ConfigurationError, step, workflow


@step
def look_up(city):
    return {"city": city, "degrees": 21}


@workflow
def agent(city):
    found = look_up(city)
    return found["temperature"]


@pytest.fixture
def failed():
    with pytest.raises(KeyError):
        agent.options(run_id="weather")("Oslo")


async def finds_the_cause(client):
    """A coding agent goes from the list of runs to the value that has no such key."""
    listed = await client.call_tool("list_runs", {"status": "failed"})
    (row,) = listed.structured_content["recorded"]["runs"]
    told = await client.call_tool("why", {"run": row["id"]})
    assert "KeyError" in told.content[0].text
    value = await client.call_tool("step", {"run": row["id"], "n": 1, "path": "result"})
    assert "'degrees': 21" in value.structured_content["recorded"]["value"]
    return {each.name for each in (await client.list_tools()).tools}


def over_stdio(*words, talk=finds_the_cause, env=None):
    """Start the command as a client does, which gives it little of its environment."""
    given = {name: os.environ[name] for name in ("STEPWISE_HOME",)} if env is None else env

    async def connected():
        command = sdks.mcp.StdioServerParameters(command=COMMAND, args=["mcp", *words], env=given)
        async with sdks.mcp.Client(command) as client:
            return await talk(client)

    return asyncio.run(connected())


def test_over_stdio(failed):
    """A client that starts the command finds a failed run, its cause, and no tool that acts."""
    names = over_stdio()
    assert names.isdisjoint({"evaluate", "resume", "approve", "resolve", "send", "cancel"})


def test_a_store_is_named(failed, tmp_path):
    """--store chooses the store, as for each command, and --allow the tools that act."""

    async def told(client):
        answer = await client.call_tool("list_runs", {})
        assert answer.is_error
        assert "there is no store at" in answer.content[0].text
        return {each.name for each in (await client.list_tools()).tools}

    words = ("--store", f"disk:{tmp_path / 'no'}", "--allow", "resume")
    assert "resume" in over_stdio(*words, talk=told)


class Served:
    """``stepwise mcp --http`` in a process of its own."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [COMMAND, "mcp", "--http", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = self.process.stdout.readline().strip()
        self.header = "" if "--json" in words else self.process.stdout.readline().strip()

    def post(self, **headers):
        """Send a request as a program does that is no client of the SDK."""
        given = dict([self.header.split(": ")]) if "authorization" not in headers else {}
        return httpx2.post(
            self.address,
            json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
            headers={**given, "accept": "application/json, text/event-stream", **headers},
            timeout=60,
        )

    def talk(self, conversation=finds_the_cause):
        from mcp.client.streamable_http import streamable_http_client

        async def connected():
            headers = dict([self.header.split(": ")])
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                transport = streamable_http_client(self.address, http_client=http)
                async with sdks.mcp.Client(transport) as client:
                    return await conversation(client)

        return asyncio.run(connected())

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return (*self.process.communicate(timeout=60), self.process.returncode)


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def serving(*words):
            made = Served(*words)
            stack.callback(made.process.communicate)
            stack.callback(made.process.kill)
            return made

        yield serving


@pytest.fixture(scope="module")
def served():
    """A server with a chosen token, which says as JSON where it is; nobody talks with it long."""
    made = Served("--json", "--token", "a" * 32)
    made.told = json.loads(made.address)
    made.address, made.header = made.told["address"], f"Authorization: Bearer {made.told['token']}"
    yield made
    made.process.kill()
    made.process.communicate()


def test_over_http(failed, serve):
    """A client with the token finds the cause; Ctrl-C ends the server in silence."""
    served = serve()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", served.address)
    assert re.fullmatch(r"Authorization: Bearer [\w-]{43}", served.header)
    assert "why" in served.talk()
    assert served.end() == ("", "", 130)


def test_without_the_token_nobody_gets_in(served):
    """Without the token, or with another, the answer is 401 and says what to send."""
    for given in ("", "Bearer", "Bearer x", served.header.split(": ")[1] + "x"):
        answer = served.post(authorization=given)
        assert answer.status_code == 401
        assert "Authorization: Bearer TOKEN" in answer.text
        assert answer.headers["www-authenticate"] == "Bearer"
    assert served.post().status_code not in (401, 403)


def test_another_site_does_not_get_in(served):
    """A foreign Host or Origin is refused, with the token, too."""
    place = served.address.removeprefix("http://").removesuffix("/mcp")
    assert served.post(host="evil.example").status_code == 403
    for origin in ("http://evil.example", "null", "", f"http://{place}.evil.example"):
        assert served.post(origin=origin).status_code == 403
    assert served.post(origin=f"http://{place}").status_code not in (401, 403)


def test_as_json(served):
    """With --json the first line has the address, the token and the process."""
    assert served.told["pid"] == served.process.pid
    assert served.told["token"] == "a" * 32
    assert served.post().status_code not in (401, 403)


def test_what_keeps_it_from_beginning():
    """A taken port, a short token and an unknown tool are sentences; options of HTTP need it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("mcp", "--http", str(taken.getsockname()[1]))
    assert re.fullmatch(r".* is taken\. .*stepwise mcp --http 0", str(done.exception))
    done = run("mcp", "--http", "0", "--token", "short")
    assert "16 or more" in str(done.exception)
    done = run("mcp", "--allow", "everything")
    assert isinstance(done.exception, ConfigurationError)
    assert "no tool 'everything'" in str(done.exception)
    assert run("mcp", "--token", "a" * 32).exit_code == 2


def test_without_the_extra():
    """Without the extra, the command names it, and no other command misses it."""
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "import stepwise.cli; sys.argv = ['stepwise', {0!r}]; stepwise.cli.run()"
    )
    for name, says in (("mcp", "pip install 'stepwise-agents[mcp]'"), ("runs", "no runs")):
        done = interpreted("-c", code.format(name), code=None)
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_the_command_line_loads_nothing_of_the_server():
    """The command line does not load the SDK."""
    code = "import sys, stepwise.cli; print(*sys.modules)"
    done = interpreted("-c", code)
    assert {"mcp", "pydantic", "starlette"}.isdisjoint(done.stdout.split())


def test_the_help_names_what_can_be_allowed():
    """The help of --allow lists the tools that act."""
    from stepwise.mcp._agent_tools import ACTIONS

    told = " ".join(run("mcp", "--help").stdout.split())
    assert ", ".join([*ACTIONS][:-1]) in told
