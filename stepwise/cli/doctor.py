"""Check that stepwise can work here."""

from __future__ import annotations

import dataclasses
import sys

import stepwise
from stepwise._display.terminal import Word
from stepwise._runs.doctor import findings
from stepwise.cli._command import command
from stepwise.cli._display import echo_json, say

__all__: list[str] = []

_STATE = len("warning")


@command(
    "Check and learn",
    "stepwise doctor\nstepwise doctor --store sqlite:./runs",
    short_help="Check that stepwise can work here.",
)
def doctor(*, as_json: bool) -> None:
    """Look for what could keep stepwise from working here, and change nothing.

    The exit code is 1 if there is a problem.
    """
    found = findings(stepwise.__version__)
    if as_json:
        echo_json([dataclasses.asdict(each) for each in found])
    for each in found if not as_json else ():
        space = " " * (_STATE - len(each.state))
        say(f"{each.what:<12}  ", Word(each.state), f"{space}  {each.text}")
        if each.todo:
            say(f"{'':<12}  {'':<{_STATE}}  {each.todo}")
    sys.exit(int(any(each.state == "problem" for each in found)))
