"""A recorded run as a test: today's code is executed, and its record answers the calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stepwise._execution.process_memory import known_workflow, known_workflows
from stepwise._runs.portable import from_data
from stepwise._runs.replica import Replica, taken_from
from stepwise._runs.run import Run, get_run
from stepwise._workflows.definition import Definition
from stepwise._workflows.rerun import At, Rerun, replayed
from stepwise.errors import ConfigurationError
from stepwise.testing.recorded import placeholder_keys


def rerun(
    run: Run | str | os.PathLike[str],
    workflow: Any = None,
    *,
    at: At = None,
    live: Collection[str] = (),
    answers: Mapping[str, Callable[..., Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    store: Any = None,
) -> Rerun:
    """Execute the code of a recorded run again, and compare it with the record.

    The record answers the steps, model calls, child runs and waits of the workflow, as long as the
    code makes the recorded calls in their order, with the recorded arguments.  The rerun stops at
    the first difference.  It needs no store, key or network, and writes nothing.

    Example:
        >>> rerun("tests/trip.json", agent).assert_same()

    Args:
        run: a run or its id; or the file that ``stepwise export RUN --format test`` wrote.
        workflow: the workflow; by default the known workflow of that name.
        at: where to begin: after so many steps (``4``), at a statement (``"agent.py:43"``), or
            before the first call of a step (``"think"``).  The variables are those of a kept
            checkpoint there or before.  By default the rerun begins at the top; so does a file.
        live: names of steps to make if a call is not on record.
        answers: functions that answer such calls instead, by the name of the step.
        inputs: arguments of the run that are not on record, by name.
        store: the store of an id; by default the configured one.

    Raises:
        ConfigurationError: the run cannot be executed again like that; the message says why.
        StepNotFoundError: the run has no step or statement ``at``.
        UnreadableValueError: arguments of the run are not on record.
    """
    if isinstance(live, str):
        raise ConfigurationError(f"live={live!r}: give a tuple of names, live=({live!r},)")
    replica = _replica(run, store)
    if at is not None and not replica.checkpoints:
        raise ConfigurationError(
            f"run {replica.facts.run_id!r} has no checkpoint here, so that it is rerun from the "
            "top: leave out at=. A file for tests holds none; the run in its store may"
        )
    with placeholder_keys():
        return replayed(
            replica, _workflow(replica, workflow), at=at, live=live, answers=answers, inputs=inputs
        )


def _replica(run: Run | str | os.PathLike[str], store: Any) -> Replica:
    if isinstance(run, Run):
        return taken_from(run.store, run._seal, run.id)
    path = os.fspath(run)
    if not (path.endswith(".json") or isinstance(run, os.PathLike)):
        found = get_run(path, store=store)
        return taken_from(found.store, found._seal, found.id)
    try:
        with open(path, "rb") as file:
            data = json.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}. Make it: stepwise export RUN --format test -o FILE"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error
    return from_data(data, path)


def _workflow(replica: Replica, given: Any) -> Definition:
    """Return the workflow that executes a run.

    Raises:
        ConfigurationError: it is not known, or not a workflow.
    """
    facts = replica.facts
    if given is not None:
        definition = getattr(given, "definition", None)
        if not isinstance(definition, Definition):
            raise ConfigurationError(f"{given!r} is no @workflow: give the decorated function")
        return definition
    named = [each.definition for each in known_workflows() if each.definition.label == facts.label]
    if len(named) == 1:
        found: Definition = named[0]
    else:
        found = known_workflow(facts.workflow).definition
    return found
