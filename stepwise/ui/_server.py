"""The server of ``stepwise ui``: one address of this machine, until Ctrl-C."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from stepwise._runs.run import newest_heads
from stepwise._runtime import settings
from stepwise._runtime.store_urls import public_url
from stepwise.errors import ConfigurationError
from stepwise.stores import Store, open_store
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
    _check(store, place[0], token)
    listening = _listen(*place)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    hosts = LOOPBACK | {host}
    if not is_loopback(place[0]):
        hosts |= {place[0].lower(), *_own_names()}
        shown = place[0] if place[0] not in ("0.0.0.0", "::") else socket.gethostname()  # noqa: S104
    app = App(store, Access(token=token, hosts=hosts), read_only=read_only)
    next(newest_heads(app.reader.store, app.reader.seal), None)  # or it says why it cannot be read
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    address = f"http://{shown}:{port}/?token="
    ready(address + app.access.token, address + app.access.once())
    _Server(config, app).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server whose open pages do not keep it from ending."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end the server; called for a signal."""
        self._app.watcher.end()
        super().handle_exit(sig, frame)


def _check(store: Store, host: str, token: str) -> None:
    path = getattr(store, "path", None)
    if path is not None and not os.path.isdir(path):
        raise ConfigurationError(
            f"there is no store at {path} yet: run a workflow first, or name another store with "
            "--store or STEPWISE_STORE"
        )
    if not store.persistent:
        raise ConfigurationError(
            f"the store {public_url(store.url)} is in the memory of one process, so no other "
            "process has left runs there: name another one with --store or STEPWISE_STORE"
        )
    if not is_loopback(host) and not token:
        raise ConfigurationError(
            f"others reach this machine at {host}, so the page needs a token that you have chosen: "
            "--token TEXT"
        )
    if token and (len(token) < _SHORTEST or not token.isascii() or not token.isalnum()):
        raise ConfigurationError(
            f"a token has {_SHORTEST} or more letters and digits. Make one with: "
            "python -c 'import secrets; print(secrets.token_hex(32))'"
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family)
        # asyncio sets this for sockets of getaddrinfo only; without it, a page takes 40 ms longer.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} is taken. A free one: stepwise ui --port 0"
        else:
            why = f"{host} port {port} cannot be listened at ({error.strerror}): name another"
        raise ConfigurationError(f"the page cannot be served: {why}") from error


def _own_names() -> set[str]:
    """Return the names and addresses of this machine, as far as they are known."""
    name = socket.gethostname()
    found = {name.lower(), socket.getfqdn().lower()}
    try:
        found |= {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    except OSError:  # the machine does not know its own name
        return found
    return found
