"""Send something to a run: a signal, the answer to a question, a request to cancel it."""

from __future__ import annotations

import sys
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._display.render import question_text
from stepwise._journal.approvers import make_key
from stepwise._runs.questions import Decision, give_answer, question_of
from stepwise._runtime.messages import shell_word
from stepwise.cli._command import command, echo_json, find_run, note, run_argument, say, typed_json

_key_option = click.option(
    "--key", metavar="FILE", help="Sign it with an approver's key, where the tool wants that."
)


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
    "stepwise approve trip-0573 4\n"
    "stepwise approve trip-0573 4 ask-91f0c2d4e6a8 --note 'the small room'",
    short_help="Approve a call that asks for it.",
)
@run_argument()
@click.argument("step")
@click.argument("ticket", required=False)
@click.option("--note", "text", default="", metavar="TEXT", help="What the run is told with it.")
@_key_option
def approve(
    run_id: str, step: str, ticket: str | None, *, text: str, key: str | None, as_json: bool
) -> None:
    """Say yes to the call STEP of a RUN, with the arguments that stepwise show prints.

    STEP is the number or the name of the call.  TICKET is the name of the question that you have
    seen; without it, the question is shown first, and you are asked.
    """
    _answer(find_run(run_id), step, ticket, Decision(True, text, key, _passphrase), as_json=as_json)


@command(
    "Steer",
    "stepwise deny trip-0573 4 --reason costly\n"
    "stepwise deny trip-0573 4 ask-91f0c2d4e6a8 --reason 'too expensive'",
    short_help="Deny a call that asks for approval.",
)
@run_argument()
@click.argument("step")
@click.argument("ticket", required=False)
@click.option("--reason", required=True, metavar="TEXT", help="What the run is told.")
@_key_option
def deny(
    run_id: str, step: str, ticket: str | None, *, reason: str, key: str | None, as_json: bool
) -> None:
    """Say no to the call STEP of a RUN, which gets ApprovalDenied.

    STEP is the number or the name of the call.  TICKET is the name of the question that you have
    seen; without it, the question is shown first, and you are asked.
    """
    _answer(
        find_run(run_id), step, ticket, Decision(False, reason, key, _passphrase), as_json=as_json
    )


def _answer(run: Run, step: str, ticket: str | None, said: Decision, *, as_json: bool) -> None:
    """Answer the question that a ticket names, or that a person at the terminal is shown."""
    facts = run._facts()
    if ticket is None:
        question = question_of(run.store, run._seal, facts, step)
        _show_first(question, "Approve it?" if said.approved else "Deny it?", as_json=as_json)
        ticket = question.ticket
    give_answer(run.store, run._seal, run.id, step, ticket, said)
    given = {"ticket": ticket, "approved": said.approved, "note": said.note}
    _answered(run, step, as_json=as_json, **given)


def _passphrase() -> str:
    if not sys.stdin.isatty():
        raise stepwise.ConfigurationError("the key has a passphrase, and no terminal asks for it")
    text: str = click.prompt("Passphrase of the key", hide_input=True, err=True)
    return text


@command(
    "Steer",
    "stepwise approver-key ~/ann.key --name ann",
    name="approver-key",
    short_help="Make the key of an approver.",
)
@click.argument("file", type=click.Path())
@click.option("--name", default="", metavar="TEXT", help="Who it is, behind the public key.")
@click.option("--no-passphrase", is_flag=True, help="Do not ask for one.")
def approver_key(file: str, *, name: str, no_passphrase: bool, as_json: bool) -> None:
    """Make the private key of a person who approves, in a new FILE, and print the public key.

    The public key goes into @tool(approve=True, approvers=[...]).  The private key stays where the
    agent cannot read it: on another machine, or behind a passphrase.
    """
    secret = ""
    if not no_passphrase:
        text = "Passphrase (none if empty)"
        secret = click.prompt(
            text, "", hide_input=True, confirmation_prompt=True, show_default=False, err=True
        )
    try:
        public = make_key(file, secret, name)
    except OSError as error:
        raise click.FileError(file, error.strerror or str(error)) from error
    if as_json:
        echo_json({"file": file, "public": public})
    else:
        say(public)


def _show_first(question: stepwise.Question, ask: str, *, as_json: bool) -> None:
    """Show a question, and ask whether it is meant; without a terminal, refuse."""
    if as_json or not sys.stdin.isatty():
        raise stepwise.ConfigurationError(
            "there is no terminal to show the question and to ask. Look at it; this very question "
            f"is then answered with its ticket:\n{question_text(question)}"
        )
    note(question_text(question))
    click.confirm(ask, abort=True, err=True)


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
