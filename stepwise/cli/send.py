"""Send something to a run: a signal, the answer to a question, a request to cancel it."""

from __future__ import annotations

import sys
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._display.render import shell_word
from stepwise.cli._command import command, find_run, run_argument
from stepwise.cli._display import echo_json, note, say, typed_json

__all__: list[str] = []


@command(
    "Steer",
    "stepwise send trip-0573 payment '{\"paid\": true}'\n"
    "stepwise send trip-0573 payment true --key order-7  # once, if repeated\n"
    "cat order.json | stepwise send trip-0573 payment -",
    short_help="Send a signal that a RUN waits for.",
)
@run_argument()
@click.argument("name")
@click.argument("value", metavar="JSON")
@click.option("--key", metavar="TEXT", help="Signals of one NAME with the same key are one.")
def send(run_id: str, name: str, value: str, *, key: str | None, as_json: bool) -> None:
    """Send a signal to a RUN: the value for its wait_for(NAME).

    JSON is the value; - reads it from stdin.  What is sent before the run waits for it is kept.
    """
    text = sys.stdin.read() if value == "-" else value
    parsed, run = typed_json(text, "JSON"), find_run(run_id)
    number = run.send(name, parsed, key)
    if as_json:
        echo_json({**_told(run), "message": number, "name": name, "value": parsed, "key": key})
        return
    say(f"{name} is sent to {run.id}, as message {number} of its inbox")
    wait = next((each for each in run._facts().waits if each.name == name), None)
    if wait is not None and wait.run:
        child = f"stepwise send {shell_word(wait.run)} {shell_word(name)}"
        note(f"its child run {wait.run} waits for that, and has an inbox of its own: {child} ...")
    else:
        _say_next(run, waited_for=wait is not None)


@command(
    "Steer",
    "stepwise approve trip-0573 4\nstepwise approve trip-0573 book_hotel --note 'the small room'",
    short_help="Approve a call that asks for it.",
)
@run_argument()
@click.argument("step")
@click.option("--note", "text", default="", metavar="TEXT", help="What the run is told with it.")
def approve(run_id: str, step: str, *, text: str, as_json: bool) -> None:
    """Say yes to the call STEP of a RUN, with the arguments that stepwise show prints.

    STEP is the number or the name of the call.
    """
    run, number = _asking(find_run(run_id), step)
    run.approve(number, text)
    _answered(run, step, as_json=as_json, approved=True, note=text)


@command(
    "Steer",
    "stepwise deny trip-0573 4 --reason 'too expensive'",
    short_help="Deny a call that asks for approval.",
)
@run_argument()
@click.argument("step")
@click.option("--reason", required=True, metavar="TEXT", help="What the run is told.")
def deny(run_id: str, step: str, *, reason: str, as_json: bool) -> None:
    """Say no to the call STEP of a RUN, which gets ApprovalDenied.

    STEP is the number or the name of the call.
    """
    run, number = _asking(find_run(run_id), step)
    run.deny(number, reason)
    _answered(run, step, as_json=as_json, approved=False, note=reason)


def _asking(run: Run, step: str) -> tuple[Run, int]:
    """Return the run and the number of the step that is meant: of a child run, if not its own.

    Raises:
        StepNotFoundError: no step of that name asks, or more than one of that number or name.
    """
    asking = run.questions
    named = [each for each in asking if step in (str(each.step), each.name)]
    found = [each for each in named if each.run_id == run.id] or named
    if len(found) == 1:
        return stepwise.get_run(found[0].run_id, store=run.store), found[0].step
    if step.isdecimal() and not found:
        return run, int(step)  # which says why it does not ask, or not any more
    why = "more than one step asks by that name; give a number" if found else "nothing asks"
    listed = ", ".join(f"{each.step} ({each.name})" for each in found or asking)
    raise stepwise.StepNotFoundError(
        f"{step!r} of run {run.id!r}: {why}. Steps that ask: {listed or 'none'}",
        run_id=run.id,
        step=step,
    )


def _answered(run: Run, step: str, *, as_json: bool, **answer: Any) -> None:
    if as_json:
        echo_json({**_told(run), "step": step, **answer})
        return
    say(f"step {step} of {run.id} is {'approved' if answer['approved'] else 'denied'}")
    _say_next(run, waited_for=True)


@command(
    "Steer",
    "stepwise cancel trip-0573\nstepwise cancel trip-0573 --reason 'the customer called it off'",
    short_help="Cancel a RUN, which then cleans up.",
)
@run_argument()
@click.option("--reason", default="", metavar="TEXT", help="What is recorded about it.")
def cancel(run_id: str, *, reason: str, as_json: bool) -> None:
    """Cancel a RUN: it makes no further call but those of its clean-up, and ends.

    Without a process that executes it, it cleans up when its program is started again.
    """
    run = find_run(run_id)
    run.cancel(reason)
    if as_json:
        echo_json({**_told(run), "reason": reason})
        return
    say(f"{run.id} is to be cancelled")
    _say_next(run, waited_for=True)


def _told(run: Run) -> dict[str, Any]:
    return {"id": run.id, "status": run.status}


def _say_next(run: Run, *, waited_for: bool) -> None:
    """Say what happens with what was sent.

    Args:
        waited_for: the run is suspended until it comes.
    """
    status, owner = run.status, run.owner
    if owner is not None:
        note(f"process {owner.pid} on {owner.host} executes the run, and has it now")
        return
    if status in ("completed", "failed", "cancelled"):
        note(f"the run has {'been ' * (status == 'cancelled')}{status} since")
        return
    resume = f"stepwise resume {shell_word(run.id)}"
    if waited_for:
        note(
            f"it is {status}, and goes on when its program is started again, by itself where "
            f"stepwise up or a server has it: {resume}"
        )
    else:
        note(f"it is {status}: that is kept until it goes on and waits for it: {resume}")
