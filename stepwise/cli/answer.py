"""Answer a run: send a signal, approve or deny a call, settle a call in doubt."""

from __future__ import annotations

import sys
from typing import Any

import click

import stepwise
from stepwise import Run
from stepwise._display.render import question_text
from stepwise._journal.signatures import make_key
from stepwise._runs.questions import Decision, give_answer, question_of
from stepwise._runtime.messages import shell_word
from stepwise.cli import _command as cli

_key_option = click.option(
    "--key", metavar="FILE", help="Sign it with an approver's key, where the tool wants that."
)


@cli.command(
    "Steer",
    "stepwise send trip-0573 payment '{\"paid\": true}'\n"
    "stepwise send trip-0573 payment true --key order-7  # once, if repeated\n"
    "cat order.json | stepwise send trip-0573 payment -",
    short_help="Send a signal that a RUN waits for.",
)
@cli.run_argument()
@click.argument("name")
@click.argument("value", metavar="JSON")
@click.option("--key", metavar="TEXT", help="Signals of one NAME with the same key are one.")
def send(run_id: str, name: str, value: str, *, key: str | None, as_json: bool) -> None:
    """Send a signal to a RUN: the value for its wait_for(NAME).

    JSON is the value; - reads it from stdin.  A value sent before the run waits for it is kept.
    """
    text = sys.stdin.read() if value == "-" else value
    parsed, run = cli.typed_json(text, "JSON"), cli.find_run(run_id)
    number = run.send(name, parsed, key)
    if as_json:
        cli.echo_json(
            {**cli.id_and_status(run), "message": number, "name": name, "value": parsed, "key": key}
        )
        return
    cli.say(f"{name} is sent to {run.id}, as message {number} of its inbox")
    wait = next((each for each in run._facts().waits if each.name == name), None)
    if wait is not None and wait.run:
        child = f"stepwise send {shell_word(wait.run)} {shell_word(name)}"
        cli.note(
            f"its child run {wait.run} waits for that, and has an inbox of its own: {child} ..."
        )
    else:
        cli.say_next(run, waited_for=wait is not None)


@cli.command(
    "Steer",
    "stepwise approve trip-0573 4\n"
    "stepwise approve trip-0573 4 ask-91f0c2d4e6a8 --note 'the small room'",
    short_help="Approve a call that asks for it.",
)
@cli.run_argument()
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
    _answer(
        cli.find_run(run_id), step, ticket, Decision(True, text, key, _passphrase), as_json=as_json
    )


@cli.command(
    "Steer",
    "stepwise deny trip-0573 4 --reason costly\n"
    "stepwise deny trip-0573 4 ask-91f0c2d4e6a8 --reason 'too expensive'",
    short_help="Deny a call that asks for approval.",
)
@cli.run_argument()
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
        cli.find_run(run_id),
        step,
        ticket,
        Decision(False, reason, key, _passphrase),
        as_json=as_json,
    )


def _answer(run: Run, step: str, ticket: str | None, said: Decision, *, as_json: bool) -> None:
    """Answer the question named by a ticket, or shown to the person at the terminal."""
    facts = run._facts()
    if ticket is None:
        question = question_of(run.store, run._seal, facts, step)
        _show_first(question, "Approve it?" if said.approved else "Deny it?", as_json=as_json)
        ticket = question.ticket
    give_answer(run.store, run._seal, run.id, step, ticket, said)
    if as_json:
        given = {"ticket": ticket, "approved": said.approved, "note": said.note}
        cli.echo_json({**cli.id_and_status(run), "step": step, **given})
        return
    cli.say(f"step {step} of {run.id} is {'approved' if said.approved else 'denied'}")
    cli.say_next(run, waited_for=True)


def _passphrase() -> str:
    if not sys.stdin.isatty():
        raise stepwise.ConfigurationError("the key has a passphrase, and no terminal asks for it")
    text: str = click.prompt("Passphrase of the key", hide_input=True, err=True)
    return text


@cli.command(
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
        cli.echo_json({"file": file, "public": public})
    else:
        cli.say(public)


def _show_first(question: stepwise.Question, ask: str, *, as_json: bool) -> None:
    """Show a question and ask for confirmation; refuse without a terminal."""
    if as_json or not sys.stdin.isatty():
        raise stepwise.ConfigurationError(
            "there is no terminal to show the question and to ask. Look at it; this very question "
            f"is then answered with its ticket:\n{question_text(question)}"
        )
    cli.note(question_text(question))
    click.confirm(ask, abort=True, err=True)


@cli.command(
    "Settle",
    "stepwise resolve trip-0573 4 --landed '\"booked\"'  # it returned this\n"
    "stepwise resolve trip-0573 4 --did-not-happen  # it may run\n"
    "stepwise resolve trip-0573 4 --another  # the stopped call is new",
    short_help="Settle a side effect in doubt.",
)
@cli.run_argument()
@click.argument("step")
@click.option("--landed", metavar="JSON", help="It happened; JSON is its result.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen, and may run.")
@click.option("--same", is_flag=True, help="The call that the run stopped at is STEP.")
@click.option("--another", is_flag=True, help="That call is another act: it runs once.")
@click.option(
    "--stop", type=int, metavar="STOP", help="The stopped call, if several could be STEP."
)
def resolve(
    run_id: str,
    step: str,
    landed: str | None,
    *,
    did_not_happen: bool,
    same: bool,
    another: bool,
    stop: int | None,
    as_json: bool,
) -> None:
    """Settle a side effect in doubt, or say which act a stopped call is.

    STEP is the number or the name of the recorded side effect.
    """
    ways = {
        "landed": landed is not None,
        "did_not_happen": did_not_happen,
        "same": same,
        "another": another,
    }
    chosen = [name for name, is_given in ways.items() if is_given]
    if len(chosen) != 1:
        raise click.UsageError(
            "give exactly one answer: --landed JSON or --did-not-happen for a step in doubt, "
            "--same or --another for a call at which the run stopped because of STEP"
        )
    if stop is not None and not (same or another):
        raise click.UsageError("--stop chooses a stopped call: add --same or --another")
    (answer,) = chosen
    value: Any = cli.typed_json(landed, "--landed") if landed is not None else True
    run = cli.find_run(run_id)
    run.resolve(step, stop=stop, **{answer: value})
    if as_json:
        given = {"landed": value} if answer == "landed" else {}
        cli.echo_json({"id": run.id, "step": step, "answer": answer, "stop": stop, **given})
    else:
        cli.say(_ANSWERED[answer].format(step=step, run=run.id, landed=landed))


_ANSWERED = {
    "same": "the stopped call is step {step} of {run}; the next run of the program returns its "
    "recorded result",
    "another": "the stopped call and step {step} of {run} are two acts; the next run of the "
    "program makes the call, once",
    "did_not_happen": "step {step} of {run} did not happen; the next run of the program makes it",
    "landed": "step {step} of {run} landed; the next run of the program continues with {landed}",
}
