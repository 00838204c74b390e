"""The SDKs of models and of MCP, each imported when a test asks for it: ``sdks.openai.OpenAI()``.

They take 90 MB and two seconds, and whatever a worker of pytest holds is copied for each process
that a test forks.
"""

import importlib


def __getattr__(name):
    if name not in ("anthropic", "mcp", "openai"):
        raise AttributeError(name)
    return importlib.import_module(name)


def mcp_server(allowed):
    """The server of ``stepwise mcp``, which allows these tools that act."""
    return importlib.import_module("stepwise.mcp._server")._server(allowed)
