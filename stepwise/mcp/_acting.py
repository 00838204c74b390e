"""Tools that change something, or execute code: each is offered only on request.

The run records who did it: ``mcp``, the name of the client, and the user of this process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

from stepwise._runs.messages import parsed_json
from stepwise._runs.run import Run, find_run
from stepwise._runs.starting import top_of
from stepwise._runtime import settings
from stepwise.errors import ConfigurationError
from stepwise.mcp._answers import marked
from stepwise.mcp._evaluation import evaluate as value_of
from stepwise.stores import open_store
from stepwise.ui._actions import Actions
from stepwise.ui._reading import RunReader

_OUTPUT = 3000  # characters of a program's output


def evaluate(run: str, expression: str, at: int | None = None) -> dict[str, Any]:
    """Evaluate a Python expression with the variables of a checkpoint: this EXECUTES ANY CODE.

    It runs on the user's machine with the rights of the user, in a process of its own, outside of
    the run: nothing is recorded.  Objects of classes that only the program has are placeholders.

    Args:
        run: the id of the run, or its beginning.
        expression: such as "[m['role'] for m in messages]".
        at: after this many steps; by default where the run stopped.
    """
    return marked(value_of(find_run(run), expression, at))


def approve(
    run: str, step: int, ticket: str, *, approved: bool = True, note: str = ""
) -> dict[str, Any]:
    """Answer the question of a call that waits for approval, in the name of the user.

    Args:
        run: the id of the run, or its beginning.
        step: the number of the asking call.
        ticket: the ticket of the question, as the tool waits lists it.
        approved: false to deny it; the call then raises ApprovalDenied.
        note: a note for the workflow and for people; the reason, for a denial.
    """
    found = find_run(run)
    (found.approve if approved else found.deny)(step, ticket, note)
    return _done(found, "approved" if approved else "denied")


def resolve(
    run: str,
    step: int,
    answer: Literal["landed", "did_not_happen", "same", "another"],
    result_json: str = "null",
    stop: int | None = None,
) -> dict[str, Any]:
    """Record what somebody found out about a side effect in doubt.  A wrong answer repeats an act.

    Args:
        run: the id of the run, or its beginning.
        step: the number of the recorded side effect.
        answer: landed (it happened), did_not_happen (it may run again); or, for a call at which
            the run stopped, same (it is this step) or another (both are acts of their own).
        result_json: for landed, what the call returned, as JSON.
        stop: for same and another, the number of the stopped call, if several could be this step.
    """
    found = find_run(run)
    value: Any = _json(result_json, "result_json") if answer == "landed" else True
    found.resolve(step, stop=stop, **{answer: value})
    return _done(found, answer)


def send(run: str, name: str, value_json: str, key: str | None = None) -> dict[str, Any]:
    """Send a signal that a run waits for.

    Args:
        run: the id of the run, or its beginning.
        name: the name of the signal.
        value_json: the value, as JSON.
        key: signals of one name with the same key are one, so that a repeated call sends nothing.
    """
    found = find_run(run)
    number = found.send(name, _json(value_json, "value_json"), key)
    return _done(found, f"sent as message {number} of the inbox")


def cancel(run: str, reason: str = "") -> dict[str, Any]:
    """Cancel a run: it makes only the calls of its clean-up, and ends.

    Args:
        run: the id of the run, or its beginning.
        reason: what is recorded about it.
    """
    found = find_run(run)
    found.cancel(reason)
    return _done(found, "asked to end")


def forget(run: str, step: int) -> dict[str, Any]:
    """Forget a recorded step, so that it is executed again when the run resumes.

    Args:
        run: the id of the run, or its beginning.
        step: the number of the step.
    """
    found = find_run(run)
    found.forget(step)
    return _done(found, "forgotten")


def _done(run: Run, what: str) -> dict[str, Any]:
    return marked({"id": run.id, "status": run.status}, done=what)


def _json(text: str, name: str) -> Any:
    try:
        return parsed_json(text)
    except ValueError as error:
        raise ConfigurationError(
            f'{name} is not JSON ({error}): write "\\"text\\"", "42", "null" or "{{\\"id\\": 1}}"'
        ) from None


@functools.cache
def _actions() -> Actions:
    """Return the actions of this process, which know the programs that they have started."""
    store = open_store(settings.store())
    return Actions(RunReader(store), store)


def resume(run: str, seconds: float = 20) -> dict[str, Any]:
    """Resume a run: start its program with the recorded command line, in its own process.

    The program goes on after this call and after the server.  Call list_runs or why to see how it
    ends.

    Args:
        run: the id of the run, or its beginning.
        seconds: how long to wait for the end of the program, 60 at most.
    """
    found = top_of(find_run(run))
    _actions().resume(found)
    programs = _actions().programs
    programs.wait(found.id, max(0.0, min(seconds, 60.0)))
    output = programs.output(found.id)
    facts: dict[str, Any] = {"id": found.id, "status": found.status}
    if output is not None:
        ended = {"exit_code": output.exit_code, "output": output.text[-_OUTPUT:]}
        facts |= {"command": output.command, **ended}
    return marked(facts)


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (evaluate, resume, approve, resolve, send, cancel, forget)
}
"""The tools that change something, by name."""
