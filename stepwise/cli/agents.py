"""For coding agents: ``stepwise mcp`` serves tools, ``stepwise skill`` writes instructions."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import sys
from importlib.resources import files

import click

import stepwise
from stepwise.cli import _command as cli
from stepwise.mcp import serve

_SKILLS = ".claude/skills"


@cli.command(
    "Look",
    "claude mcp add stepwise -- stepwise mcp\n"
    "stepwise mcp --allow resume --allow evaluate\n"
    "stepwise mcp --http 8277",
    name="mcp",
    short_help="Serve tools over the runs to coding agents.",
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
        if as_json:
            click.echo(json.dumps({"address": address, "token": needed, "pid": os.getpid()}))
        else:
            click.echo(f"{address}\nAuthorization: Bearer {needed}")
        sys.stdout.flush()

    try:
        serve(allowed, port=port, token=token, ready=ready)
    except KeyboardInterrupt:
        sys.exit(130)


@cli.command(
    "Check and learn",
    f"stepwise skill  # in {_SKILLS}\n"
    "stepwise skill .agents/skills\n"
    "stepwise skill ~/.claude/skills --replace",
    short_help="Write instructions for coding agents.",
)
@click.argument("folder", type=click.Path(), default=_SKILLS)
@click.option("--replace", is_flag=True, help="Replace a file that has another text.")
def skill(folder: str, *, replace: bool, as_json: bool) -> None:
    """Write stepwise/SKILL.md into a FOLDER of skills, which coding agents read.

    It says how to decorate a program, and how to mend, test and debug it.
    """
    text = files("stepwise.mcp").joinpath("SKILL.md").read_text("utf-8")
    path = pathlib.Path(folder).expanduser() / "stepwise" / "SKILL.md"
    try:
        old = path.read_text("utf-8") if path.exists() else text
        if old != text and not replace:
            raise stepwise.ConfigurationError(
                f"{path} has another text, which is of another version or was edited. To replace "
                f"it: stepwise skill {shlex.quote(folder)} --replace"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from error
    if as_json:
        cli.echo_json({"file": str(path)})
        return
    cli.say(str(path))
    cli.note("coding agents read it when they start")
