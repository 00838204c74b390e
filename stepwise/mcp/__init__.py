"""The tools of coding agents: a server of the Model Context Protocol.  Needs the extra ``mcp``.

``stepwise mcp`` serves it.  The tools read, and make forks; what else changes something is offered
only on request.

The modules, each importing only from those before it::

    _knowledge _evaluation _agent_tools _server
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from stepwise.errors import ConfigurationError

__all__: list[str] = []


def serve(
    allowed: Collection[str] = (),
    *,
    port: int | None = None,
    token: str = "",
    ready: Callable[[str, str], None] | None = None,
) -> None:
    """Serve the tools over the runs of the configured store, until the client or a signal ends it.

    Args:
        allowed: the names of tools to offer, too: of those that change or execute something.
        port: the port on this machine for streamable HTTP, 0 for a free one; ``None`` for stdio.
        token: what a client has to send over HTTP; empty for a random one.
        ready: called with the address and the token once the port is open.

    Raises:
        ConfigurationError: the extra is not installed, there is no such tool to allow, the port
            cannot be taken, or the token is too short.
    """
    try:
        from stepwise.mcp import _server  # imported on use: the extra may be missing
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the tools of coding agents need {error.name}: pip install 'stepwise-agents[mcp]'"
        ) from error
    if port is None:
        _server.serve_stdio(allowed)
    else:
        _server.serve_http(allowed, port, token, ready)
