"""The server on the page about servers works, with FastAPI or with something of its shape."""

import asyncio
import importlib
import pathlib
import re
import sys
import types

import pytest

import stepwise

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/how-to/servers.md"


class HTTPException(Exception):
    def __init__(self, status_code):
        self.status_code = status_code


class FastAPI:
    """Routes, and what is done when the server starts."""

    def __init__(self, lifespan):
        self.lifespan = lifespan

    def post(self, path, status_code=200):
        return lambda function: function

    get = post


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The program of the page, imported as a module."""
    shape = types.ModuleType("fastapi")
    shape.FastAPI, shape.HTTPException = FastAPI, HTTPException
    monkeypatch.setitem(sys.modules, "fastapi", shape)
    text = PAGE.read_text("utf-8")
    (program,) = re.findall(r"```python\n(# serving.py\n.*?)```", text, re.DOTALL)
    (tmp_path / "serving.py").write_text(program, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "serving", raising=False)
    yield lambda: importlib.import_module("serving")
    sys.modules.pop("serving", None)


async def until_completed():
    while {run.status for run in stepwise.runs()} != {"completed"}:  # noqa: ASYNC110 -- as a client
        await asyncio.sleep(0.01)


def test_requests(server):
    """A request is answered at once with its id; its run can be looked at, and has the result."""
    app = server()

    async def main():
        async with app.app.lifespan(app.app):
            told = await app.ask("one", "what is a tide?")
            assert told["run"] == "one"
            other = await app.ask("two", "what is a tide?")
            await until_completed()
            assert other["run"] == "two"
            return await app.look("one"), await app.look("two")

    one, two = asyncio.run(main())
    assert one == two
    assert (one["status"], one["steps"]) == ("completed", 2)
    assert one["result"].startswith("the answer to")


def test_a_request_that_comes_again(server):
    """Repeated while its run executes, and after it, a request is answered with the same run."""
    app = server()

    async def main():
        first = await app.ask("one", "what is a tide?")
        again = await app.ask("one", "what is a tide?")
        assert again == first == {"run": "one", "status": "running"}
        await until_completed()
        return await app.ask("one", "what is a tide?")

    assert asyncio.run(main()) == {"run": "one", "status": "completed"}
    assert len(stepwise.runs()) == 1


def test_unknown_requests(server):
    """A request that nobody made is not found."""
    app = server()
    with pytest.raises(HTTPException) as missing:
        asyncio.run(app.look("nobody"))
    assert missing.value.status_code == 404


KILLED = """
import asyncio, os, sys, types

class FastAPI:
    def __init__(self, lifespan):
        self.lifespan = lifespan
    def post(self, path, status_code=200):
        return lambda function: function
    get = post

sys.modules["fastapi"] = types.SimpleNamespace(FastAPI=FastAPI, HTTPException=Exception)
import serving

async def main():
    async with serving.app.lifespan(serving.app):
        for number in range(3):
            await serving.ask(str(number), "a tide")
        os._exit(9)

asyncio.run(main())
"""


def test_a_server_that_is_killed(server, start):
    """Started anew after a kill, it goes on with every request that it had answered with an id."""
    app = server()
    script = start(KILLED)
    script.process.stdout.read()
    assert script.process.wait() == 9
    assert [run.status for run in stepwise.runs()] == ["crashed"] * 3

    async def main():
        async with app.app.lifespan(app.app):
            await until_completed()

    asyncio.run(main())
    assert {run.id for run in stepwise.runs()} == {"0", "1", "2"}
