"""What the tests of coding agents share: a client of the SDK, and answers that are checked."""

import asyncio
import json

import pytest
import sdks

from stepwise.mcp._agent_tools import LIMIT, NOTICE

ME = {"name": "test-client", "version": "1"}


class Answer:
    """The answer of a tool, which is short, and the same as text and as data."""

    def __init__(self, result):
        self.is_error = result.is_error
        self.texts = [each.text for each in result.content]
        self.data = result.structured_content
        assert sum(len(text.encode()) for text in self.texts) <= LIMIT
        if not self.is_error:
            (text,) = self.texts
            assert json.loads(text) == self.data

    @property
    def recorded(self):
        """What was recorded, which is marked as data."""
        assert not self.is_error, self.texts
        assert next(iter(self.data)) == "notice"
        assert self.data["notice"] == NOTICE
        return self.data["recorded"]

    @property
    def problem(self):
        """The sentence of an error."""
        assert self.is_error, self.data
        return self.texts[0]


@pytest.fixture
def agent_of():
    """Lets a coding agent with a client of the SDK talk to a server: ``agent_of(server)(name)``."""

    def connected(server, me=ME):
        def ask(tool, **arguments):
            async def talk():
                named = sdks.mcp.types.Implementation(**me)
                async with sdks.mcp.Client(server, client_info=named) as client:
                    return await client.call_tool(tool, arguments)

            return Answer(asyncio.run(talk()))

        return ask

    return connected


@pytest.fixture
def ask(agent_of):
    """Ask a tool of a server that allows nothing: ``ask("why", run="trip")``."""
    return agent_of(sdks.mcp_server(()))


@pytest.fixture
def act(agent_of):
    """Ask a tool of a server that allows everything."""
    return agent_of(
        sdks.mcp_server(("evaluate", "resume", "approve", "resolve", "send", "cancel", "forget"))
    )
