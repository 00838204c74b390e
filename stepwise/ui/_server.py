"""The server of ``stepwise ui``: one address of this machine, until Ctrl-C."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, Literal

import uvicorn

from stepwise._runs.maintenance import check_there
from stepwise._runs.run import newest_heads
from stepwise._runtime import settings
from stepwise.errors import ConfigurationError
from stepwise.stores import open_store
from stepwise.ui._access import LOOPBACK, Access, is_loopback
from stepwise.ui._app import App

_SHORTEST = 16  # characters of a token
_GRACE = 2  # seconds that requests in progress have at the end


def serve(
    place: tuple[str, int],
    ready: Callable[[str, str], None],
    *,
    token: str = "",
    read_only: bool = False,
) -> None:
    """Serve the page of the configured store until a signal ends the process.

    Args:
        place: the host to listen at, and the port; 0 for a free one.
        ready: called with the address, with its token, once the port is open; and with an address
            that opens the page one time, for the command line of a browser.
        token: opens the page; empty for a random one.
        read_only: no action is possible.

    Raises:
        ConfigurationError: the store is not there, the port cannot be taken, or a host that others
            reach has no token.
        StoreError: the store cannot be read.
    """
    store = open_store(settings.store())
    check_there(store)
    listening, address, access = listen(place, token, "stepwise ui --port")
    app = App(store, access, read_only=read_only)
    next(newest_heads(app.reader.store, app.reader.seal), None)  # or it says why it cannot be read
    ready(f"{address}/?token={access.token}", f"{address}/?token={access.once()}")
    uvicorn.Server(_config(app, "off")).run(sockets=[listening])


def listen(place: tuple[str, int], token: str, command: str) -> tuple[socket.socket, str, Access]:
    """Open a port; return its socket, the address without a path, and who may use it.

    Args:
        place: the host to listen at, and the port; 0 for a free one.
        token: what opens the address; empty for a random one.
        command: the command before the number of the port, for messages.

    Raises:
        ConfigurationError: the port cannot be taken, the token is too short, or a host that others
            reach has none.
    """
    _check_token(place[0], token)
    listening = _listen(*place, command)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    hosts = LOOPBACK | {host}
    if not is_loopback(place[0]):
        hosts |= {place[0].lower(), *_own_names()}
        shown = place[0] if place[0] not in ("0.0.0.0", "::") else socket.gethostname()  # noqa: S104
    return listening, f"http://{shown}:{port}", Access(token=token, hosts=hosts)


def serve_app(app: Any, listening: socket.socket) -> None:
    """Serve an application that has a lifespan, until a signal ends the process."""
    uvicorn.Server(_config(app, "on")).run(sockets=[listening])


def _config(app: Any, lifespan: Literal["on", "off"]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan=lifespan,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )


def _check_token(host: str, token: str) -> None:
    if not is_loopback(host) and not token:
        raise ConfigurationError(
            f"others reach this machine at {host}, so a token is needed that you have chosen: "
            "--token TEXT"
        )
    if token and (len(token) < _SHORTEST or not token.isascii() or not token.isalnum()):
        raise ConfigurationError(
            f"a token has {_SHORTEST} or more letters and digits. Make one with: "
            "python -c 'import secrets; print(secrets.token_hex(32))'"
        )


def _listen(host: str, port: int, command: str) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family)
        # asyncio sets this for sockets of getaddrinfo only; without it, a page takes 40 ms longer.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} is taken. A free one: {command} 0"
        else:
            why = f"{host} port {port} cannot be listened at ({error.strerror}): name another"
        raise ConfigurationError(f"nothing can be served: {why}") from error


def _own_names() -> set[str]:
    """Return the names and addresses of this machine, as far as they are known."""
    name = socket.gethostname()
    found = {name.lower(), socket.getfqdn().lower()}
    try:
        found |= {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    except OSError:  # the machine does not know its own name
        return found
    return found
