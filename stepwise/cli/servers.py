"""Servers: the page of the runs, and the tools of coding agents."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser

import click

from stepwise.cli import _command as cli
from stepwise.mcp import serve as serve_agents
from stepwise.ui import serve


def _announce(text: str, facts: dict[str, str], *, as_json: bool) -> None:
    """Print where a server listens, at once: a program may wait for it."""
    click.echo(json.dumps({**facts, "pid": os.getpid()}) if as_json else text, cli.answer())


# -- ui --------------------------------------------------------------------------------------------


_PORT = 8276


@cli.command(
    "Look",
    "stepwise ui\n"
    "stepwise ui --port 0 --no-open  # any free port\n"
    "stepwise ui --read-only --store disk:./runs",
    name="ui",
    short_help="Show the runs as a page in the browser.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option("--read-only", is_flag=True, help="Show only: no action, and a store to read only.")
@click.option("--open/--no-open", "opens", default=True, help="Open the browser; the default.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address to listen at; another one than this machine's own needs --token.",
)
@cli.token_option("The token that opens the page")
def show_page(
    *, port: int, read_only: bool, opens: bool, host: str, token: str, as_json: bool
) -> None:
    """Serve the page of the runs until Ctrl-C, and open it in the browser.

    The first line on stdout is the address with its token.  Whoever has that address sees and
    steers the runs, so give it to nobody.  With --json, the line is an object.
    """

    def ready(address: str, once: str) -> None:
        _announce(address, {"address": address}, as_json=as_json)
        if opens and not as_json and (sys.platform == "darwin" or _has_screen()):
            # A thread: some browsers are waited for.
            threading.Thread(target=webbrowser.open, args=(once,), daemon=True).start()

    try:
        serve((host, port), ready, token=token, read_only=read_only)
    except KeyboardInterrupt:
        sys.exit(130)


def _has_screen() -> bool:
    """Return whether there is a screen; without one, a browser would open in the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


# -- mcp -------------------------------------------------------------------------------------------


@cli.command(
    "Look",
    "claude mcp add stepwise -- stepwise mcp\n"
    "stepwise mcp --allow resume --allow evaluate\n"
    "stepwise mcp --http 8277",
    name="mcp",
    short_help="Serve tools over the runs to coding agents.",
    answers=False,
)
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve streamable HTTP on this machine instead of stdio; 0 takes a free port.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Offer a tool that executes or changes something: evaluate, resume, approve, resolve, "
    "send, cancel or forget; may be repeated.",
)
@cli.token_option("With --http: the token of clients")
def serve_tools(*, port: int | None, allowed: tuple[str, ...], token: str, as_json: bool) -> None:
    """Serve tools with which a coding agent looks at the runs: the Model Context Protocol.

    A client starts this command, and speaks to it over stdio.  The tools read, and make forks; the
    others are offered with --allow only, and the run records the client that used them.

    With --http, the first line on stdout is the address, and the second the header with the token
    that each request needs.  With --json, the line is an object.
    """
    if port is None and (token or as_json):
        raise click.UsageError("--token and --json are for --http: over stdio, stdout is the wire")
    if port is None and sys.stdin.isatty():
        cli.note("a coding agent starts this: claude mcp add stepwise -- stepwise mcp")

    def ready(address: str, needed: str) -> None:
        told = f"{address}\nAuthorization: Bearer {needed}"
        _announce(told, {"address": address, "token": needed}, as_json=as_json)

    try:
        serve_agents(allowed, port=port, token=token, ready=ready)
    except KeyboardInterrupt:
        sys.exit(130)
