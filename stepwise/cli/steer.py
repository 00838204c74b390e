"""Steer runs: resume, run, fork, branch, cancel, answer, settle and debug them; schedules."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any, get_args

import click

import stepwise
from stepwise import Run, RunBranch
from stepwise._display.render import question_text
from stepwise._display.terminal import Column, Word
from stepwise._display.words import when
from stepwise._journal.persons import make_key
from stepwise._runs import schedules as of_store
from stepwise._runs import starting
from stepwise._runs.branching import make, to_execute
from stepwise._runs.maintenance import store_url
from stepwise._runs.messages import json_or_text
from stepwise._runs.questions import Decision, RunQuestions, give_answer
from stepwise._runs.run import listed
from stepwise._runtime.messages import count, printable, shell_word
from stepwise.cli import _command as cli


@cli.command(
    "Steer",
    "stepwise resume trip-0573\n"
    "stepwise resume trip-0573 --dry-run  # only print the command\n"
    "stepwise resume --all-crashed  # after a power cut",
)
@cli.run_argument(metavar="[RUN]", required=False)
@click.option("--all-crashed", is_flag=True, help="Every run that crashed, one after another.")
@click.option("--dry-run", is_flag=True, help="Only print the command.")
def resume(run_id: str | None, *, all_crashed: bool, dry_run: bool, as_json: bool) -> None:
    """Resume a RUN: start its program with the original command line.

    The exit code is that of the program, or 1 if the run has not completed afterwards.  With
    --json, what the program prints on stdout goes to stderr.  With STEPWISE_TRUST=data the recorded
    command line is only shown.
    """
    if (run_id is None) != all_crashed:
        raise click.UsageError("name a RUN, or use --all-crashed")
    if run_id is not None:
        done = _resume(starting.top_of(cli.find_run(run_id)), dry_run=dry_run, as_json=as_json)
        if as_json:
            cli.echo_json(done)
        sys.exit(done["exit_code"])
    crashed = [each.run for each in listed(status="crashed") if not each.facts.parent]
    if not crashed:
        cli.note("no run has crashed")
    for each in listed(status="stuck"):
        cli.note(f"{each.run.id} is stuck, and left: it died at the same step three times")
    found = []
    for run in crashed[::-1]:
        try:
            if _is_crashed(run):
                found.append(_resume(run, dry_run=dry_run, as_json=as_json))
        except (stepwise.StepwiseError, stepwise.RunStopped) as problem:
            cli.note(f"stepwise: {problem}")
            found.append({**_known(run), "exit_code": 1, "problem": str(problem)})
    if as_json:
        cli.echo_json(found)
    codes = [each["exit_code"] for each in found if each["exit_code"]]
    sys.exit(codes[-1] if codes else 0)


def _is_crashed(run: Run) -> bool:
    """Return whether a run is still crashed; another program may have resumed or deleted it."""
    try:
        return run.status == "crashed"
    except stepwise.RunNotFoundError as problem:
        cli.note(str(problem))
        return False


def _known(run: Run) -> dict[str, Any]:
    """Return the facts of a run for JSON, or only its id if they cannot be read."""
    try:
        return run.to_dict()
    except (stepwise.StepwiseError, stepwise.RunStopped):
        return {"id": run.id}


def _resume(run: Run, *, dry_run: bool, as_json: bool) -> dict[str, Any]:
    """Resume a run; return what was done, as plain data."""
    status = run.status
    if not starting.can_resume(run):
        cli.note(f"{run.id} has completed; there is nothing to resume")
        return {**run.to_dict(), "command": None, "cwd": None, "exit_code": 0}
    command, folder = starting.start_command(run)
    where, line = run._goes_on()
    verb = "would resume" if dry_run else "resumes"
    cli.note(f"{cli.call_text(run)}, ", Word(status), f", {verb} {where}")
    if line:
        cli.note(f"  {printable(line, 200)}")
    cli.note(f"  in {folder}: {shlex.join(command)}")
    code = 0
    if not dry_run:
        starting.check_start(run)
        code = execute(command, folder, starting.environment_for(run), as_json=as_json)
        after = run.status
        if after != "completed":
            hint = "" if code else f": does it still call {run.label} with the same arguments?"
            cli.note(f"stepwise: {run.id} is {after} after the program ended{hint}")
        code = code or int(after != "completed")
    return {**run.to_dict(), "command": [*command], "cwd": folder, "exit_code": code}


def execute(
    command: tuple[str, ...], folder: str, environment: dict[str, str], *, as_json: bool
) -> int:
    """Run a command until it ends and return its exit code; a Ctrl-C reaches the command, too.

    Args:
        as_json: True if stdout is for JSON, so that the command prints on stderr.
    """
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=folder or None,
        env={**os.environ, **environment},
        stdout=2 if as_json else cli.descriptor_of(cli.answer()),
    )
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the child gets the same signal, and ends when it has cleaned up
        return code if code >= 0 else 128 - code


@cli.command(
    "Steer",
    "stepwise run agent.py tides\n"
    "stepwise run -m package.module\n"
    "stepwise run --store disk:./runs agent.py",
    name="run",
    short_help="Run a SCRIPT or module, and show its progress.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run_script(program: tuple[str, ...], *, as_module: bool, as_json: bool) -> None:
    """Run a SCRIPT, or with -m a module, and show its progress on stderr.

    The exit code is that of the program; 130 after Ctrl-C.  Options of stepwise come before
    SCRIPT.  With --json, what the program prints on stdout goes to stderr.
    """
    if not program:
        raise click.UsageError("name a SCRIPT, or -m MODULE")
    if as_module:
        program = ("-m", *program)
    elif not os.path.isfile(program[0]):
        is_name = all(part.isidentifier() for part in program[0].split("."))
        hint = f" To run a module: stepwise run -m {program[0]}" if is_name else ""
        raise click.UsageError(f"there is no script {program[0]!r}.{hint}")
    environment = {"STEPWISE_PROGRESS": os.environ.get("STEPWISE_PROGRESS", "1")}
    if (url := cli.chosen_store()) is not None:
        environment["STEPWISE_STORE"] = url
    command, began = (sys.executable, *program), time.time()
    code = execute(command, "", environment, as_json=as_json)
    if code:
        again = shlex.join(("stepwise", "run", *program))
        cli.note(f"stepwise: stopped (exit code {code}); to resume: {again}")
    if as_json:
        duration = time.time() - began
        cli.echo_json({"command": [*command], "exit_code": code, "duration": duration})
    sys.exit(code)


# -- fork ----------------------------------------------------------------------------------------


@cli.command(
    "Steer",
    "stepwise fork trip-0573 --at 2 --set guests=3\n"
    "stepwise fork trip-0573 --result 'search=\"Hotel Roma\"' --id roma\n"
    "stepwise fork trip-0573 --at 0 --json | jq -r .id",
)
@cli.run_argument()
@click.option(
    "--at", type=click.IntRange(0), metavar="STEP", help="Share the steps up to this one."
)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change the value of a variable."
)
@click.option(
    "--result", "results", multiple=True, metavar="STEP=VALUE", help="Change the result of a step."
)
@click.option("--id", "new_id", metavar="ID", help="The id of the fork.")
@click.option("--messages", is_flag=True, help="Take along signals that the RUN takes, too.")
def fork(
    run_id: str,
    *,
    at: int | None,
    changes: tuple[str, ...],
    results: tuple[str, ...],
    new_id: str | None,
    messages: bool,
    as_json: bool,
) -> None:
    """Start a new run from a point of a RUN, which stays as it is.

    VALUE is JSON; any other VALUE is taken as text, unless it begins as a list, an object or a
    quoted text does.
    """
    variables = dict(_pair(each, "--set") for each in changes)
    answers: dict[int | str, Any] = dict(_pair(each, "--result") for each in results)
    run = cli.find_run(run_id)
    made = run.fork(at=at, run_id=new_id, locals=variables, results=answers, messages=messages)
    if as_json:
        cli.echo_json(made.to_dict())
        return
    where, _ = made._goes_on()
    cli.say(made.id)
    cli.note(f"shares {count(made._seen(1).total, 'step')}, resumes {where}:")
    cli.note(f"  stepwise resume {shell_word(made.id)}")


def _pair(text: str, option: str) -> tuple[str, Any]:
    """Return the name and the value of an option ``NAME=VALUE``; the value is JSON or text."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    try:
        return name, json_or_text(value)
    except ValueError as problem:
        raise click.BadParameter(f"{name}: {problem}", param_hint=option) from None


# -- branches --------------------------------------------------------------------------------------


@cli.command(
    "Steer",
    "stepwise branch trip-0573 --at 2 --set model=small --set model=large\n"
    "stepwise branch trip-0573 -n 8 --effects collect",
    short_help="Continue one moment of a RUN many times, without side effects.",
)
@cli.run_argument()
@click.option("--at", metavar="STEP", help="Share the steps up to this one; or FILE:LINE.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value of a variable; of several, each makes a branch.",
)
@click.option("-n", "count", type=click.IntRange(1), default=1, help="Branches of each kind.")
@click.option(
    "--effects",
    type=click.Choice(["refuse", "collect"]),
    default="refuse",
    help="Stop at a side effect, or propose it for adopt.",
)
@click.option("--max-workers", type=click.IntRange(1), default=8, help="Programs at a time.")
def branch(
    run_id: str,
    *,
    at: str | None,
    changes: tuple[str, ...],
    count: int,
    effects: str,
    max_workers: int,
    as_json: bool,
) -> None:
    """Continue one moment of a RUN several times, each time with other variables.

    VALUE is JSON or a text, as in stepwise fork.  Values of several variables are combined. The
    program of the RUN is started for each branch; what it prints is left out. Given again, the
    command goes on with the branches that have not ended.
    """
    values = dict[str, list[Any]]()
    for name, value in (_pair(each, "--set") for each in changes):
        values.setdefault(name, []).append(value)
    combined = [
        dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())
    ]
    run = cli.find_run(run_id)
    found = make(run, at, [each for each in combined for _ in range(count)], effects)
    _execute([each.run for each in found if to_execute(each)], max_workers)
    if as_json:
        cli.echo_json(found.rows())
    else:
        cli.say(str(found))


def _execute(runs: list[Run], most: int) -> None:
    """Start the program of each run, so many at a time, and wait for all of them."""
    live = list[subprocess.Popen[bytes]]()
    try:
        for run in runs:
            if len(live) == most:
                live.pop(0).wait()
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            live.append(starting.launch(run, **silent))
    finally:
        for each in live:
            each.wait()


@cli.command(
    "Steer",
    "stepwise adopt trip-0573.1-93f27705",
    short_help="Go on with a branch instead of its base.",
)
@cli.run_argument()
def adopt(run_id: str, *, as_json: bool) -> None:
    """Go on with the branch RUN instead of its base, whose other branches are cancelled.

    What it has proposed is asked for from now on: stepwise approve, or stepwise deny.
    """
    run = cli.find_run(run_id)
    RunBranch(run, {}).adopt()
    if as_json:
        cli.echo_json(run.to_dict())
        return
    cli.say(f"{run.id} goes on instead of {run.forked_from}")
    cli.say_next(run, waited_for=False)


# -- cancel, send, answer, settle ------------------------------------------------------------------


@cli.command(
    "Steer",
    "stepwise cancel trip-0573\nstepwise cancel trip-0573 --reason 'the customer called it off'",
    short_help="Cancel a RUN, which then cleans up.",
)
@cli.run_argument()
@click.option("--reason", default="", metavar="TEXT", help="What is recorded about it.")
def cancel(run_id: str, *, reason: str, as_json: bool) -> None:
    """Cancel a RUN: it makes only the calls of its clean-up, and ends.

    If no process executes it, it cleans up when its program is started again.
    """
    run = cli.find_run(run_id)._to_go_on()
    run.cancel(reason)
    if as_json:
        cli.echo_json({**cli.id_and_status(run), "reason": reason})
        return
    if run.status == "cancelled":
        cli.say(f"{run.id} is cancelled: it had not begun")
        return
    cli.say(f"{run.id} is to be cancelled")
    cli.say_next(run, waited_for=True)


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
    parsed, run = cli.typed_json(text, "JSON"), cli.find_run(run_id)._to_go_on()
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
    run = run._to_go_on()
    if ticket is None:
        question = RunQuestions(run.store, run._seal, run._facts()).find(step)
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
    "same": "step {step} of {run} answers the call; the next run of the program returns its "
    "recorded result",
    "another": "step {step} of {run} does not answer the call; the next run of the program makes "
    "the call, once",
    "did_not_happen": "step {step} of {run} did not happen; the next run of the program makes it",
    "landed": "step {step} of {run} landed; the next run of the program continues with {landed}",
}


@cli.command(
    "Steer",
    "stepwise debug trip-0573\n"
    "stepwise debug trip-0573 --at 4  # at most 4 steps were done\n"
    "stepwise debug trip-0573 --listen 5678  # for an editor\n"
    "stepwise debug trip-0573 --step 5  # the body of a failed step",
    short_help="Open a RUN in a debugger, in the frame where it stopped.",
)
@cli.run_argument(required=False)
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="After so many steps, or fewer.")
@click.option(
    "--listen",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Wait for an editor, on this machine (extra debug).",
)
@click.option(
    "--step", type=click.IntRange(1), metavar="STEP", help="Execute a step's body, outside the RUN."
)
@click.option("--replay", is_flag=True, help="Execute the code from the checkpoint on again.")
@click.option("--allow", multiple=True, metavar="NAME", help="Let a step be executed once.")
def debug(run_id: str | None, *, port: int | None, as_json: bool, **asked: Any) -> None:
    """Open a RUN in a debugger, in the frame where it stopped; without RUN, the latest run.

    The program of the run is started, as stepwise resume does.  Nothing is recorded until the
    prompt is told to continue.  What is typed at the prompt is executed; steps are answered by the
    journal, or refused.  The exit code is that of the program.

    --replay stops before the step that follows --at, or where the recorded results end.  It
    executes the code between the steps, once you have agreed.
    """
    run = cli.find_run(run_id)
    _check(run, port, asked)
    if asked["replay"]:
        question = (
            "The code from the checkpoint on is executed again, and recorded results answer its "
            "steps. Does it act outside only through steps?"
        )
        click.confirm(question, abort=True, err=True)
    asked = {name: value for name, value in asked.items() if value is not None}
    with tempfile.TemporaryDirectory(prefix="stepwise-debug-") as folder:
        request, environment = starting.to_debug(run, folder, port=port or 0, **asked)
        code = execute(request.command, request.cwd, environment, as_json=as_json)
        if not os.path.exists(request.sign) and not code:
            cli.note(
                f"stepwise: the program ended without a call of run {run.id!r}: does it still call "
                f"{run.label} with the same arguments?"
            )
            code = 1
    if as_json:
        cli.echo_json({**run.to_dict(), "exit_code": code})
    sys.exit(code)


def _check(run: Run, port: int | None, asked: dict[str, Any]) -> None:
    """Refuse what cannot be opened.

    Raises:
        click.UsageError: there is no terminal, or two options exclude each other.
        ConfigurationError: the message says what to do instead.
    """
    if port is None and not (sys.stdin.isatty() and cli.answer().isatty()):
        raise click.UsageError("a prompt needs a terminal; for an editor: --listen PORT")
    if port is not None and (asked["replay"] or asked["step"]):
        raise click.UsageError("--replay and --step need a prompt: leave out --listen")
    if port is not None and importlib.util.find_spec("debugpy") is None:
        raise stepwise.ConfigurationError(
            "--listen needs debugpy: pip install 'stepwise-agents[debug]'"
        )
    if run.parent is not None:
        raise stepwise.ConfigurationError(
            f"run {run.id!r} is a child run, whose frame is inside the frame of its parent: "
            f"stepwise debug {shell_word(run.parent)}, and step enters the call"
        )
    number = asked["step"]
    if number is not None:
        found = [each for each in run.steps if each.number == number]
        if not found or found[0].status == "completed":
            why = "has completed" if found else "is not on record"
            raise stepwise.ConfigurationError(
                f"step {number} of run {run.id!r} {why}: only a step that the run would make again "
                f"can be entered. Its steps: stepwise show {shell_word(run.id)}"
            )
    starting.check_start(run)


# -- schedules -------------------------------------------------------------------------------------


_SCHEDULES = [
    *map(Column, ("SCHEDULE", "EVERY", "NEXT", "NEWEST RUN", "STATUS")),
    Column("MISSED", whole=True, right=True),
    Column("NOTE"),
]


@cli.command(
    "Steer",
    "stepwise schedules\n"
    "stepwise schedules pause report\n"
    "stepwise schedules fire report  # a run now, beside those of the schedule",
    short_help="List the schedules of the store, pause them, ask for a run.",
)
@click.argument("action", type=click.Choice(get_args(of_store.Action)), required=False)
@click.argument("name", required=False)
def schedules(action: of_store.Action | None, name: str | None, *, as_json: bool) -> None:
    """List the schedules of the store: the next instant, the newest run, what was missed.

    NAME is a schedule.  After pause, its instants pass without runs; after resume, it continues
    with its next instant.  fire asks for a run now, which stepwise up begins, also while the
    schedule is paused.  forget deletes what the store knows of the schedule; its runs stay, and a
    program that still has it begins anew with the next instant.
    """
    if action is not None and name is None:
        raise click.UsageError(f"name the schedule: stepwise schedules {action} NAME")
    if action is not None and name is not None:
        facts, told = of_store.act(action, name)
        cli.echo_json(facts) if as_json else cli.note(told)
        return
    found, damaged = of_store.schedules()
    if as_json:
        cli.echo_json(found)
    elif found:
        cli.show_table(_SCHEDULES, map(_schedule_row, found))
    else:
        cli.note(f"no schedule was seen by stepwise up in {store_url()}")
    if damaged:
        cli.note(f"{count(damaged, 'row')} damaged; stepwise up says which schedules these are")


def _schedule_row(facts: dict[str, Any]) -> list[Any]:
    following = when(facts["next"]) if facts["next"] is not None else ""
    newest = facts["run"] or "", Word(facts["status"] or "")
    return [facts["name"], facts["every"], following, *newest, facts["missed"] or "", facts["note"]]
