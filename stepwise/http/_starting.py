"""The workflows that a request may start, the check of its arguments, and the owner of a run."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from stepwise._execution.outcomes import load_inputs
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.records import RunFacts
from stepwise._runs.run import Run
from stepwise._runtime.options import check
from stepwise._values.data import checked_json, json_bytes, json_schema, parameter_types
from stepwise._workflows.workflow import Workflow
from stepwise.errors import (
    ConfigurationError,
    RunBusyError,
    RunConflictError,
    UnreadableValueError,
)
from stepwise.stores import Store

if TYPE_CHECKING:
    from starlette.requests import Request

BY = "by"
"""The tag of a run with the name of the user who started it."""

_NOTHING = object()
_AGAIN = 0.05  # seconds until a run that another request is beginning is looked at again
_TRIES = 200


class Authorization:
    """The permissions of users; see ``authorize`` of :func:`stepwise.http.app`."""

    def __init__(self, authorize: Any) -> None:
        if not callable(authorize):
            raise ConfigurationError(
                f"authorize={authorize!r:.80}: give a function of the request, the run id and the "
                "action, which returns the name of the user, or True for any run, or False. "
                "For everybody: authorize=lambda request, run_id, action: True"
            )
        self._authorize = authorize

    async def visitor(self, request: Request, run_id: str | None, action: str) -> Visitor:
        """Return who sends a request.

        Raises:
            HTTPException: the user may not do that; with 404 if a run is named.
        """
        said = self._authorize(request, run_id, action)
        if inspect.isawaitable(said):
            said = await said
        if said is not True and not (isinstance(said, str) and said):
            if said not in (None, False):
                raise ConfigurationError(
                    f"authorize returned {said!r:.80}: it returns a name, True or False"
                )
            raise no_run(run_id) if run_id is not None else HTTPException(403, "not for you")
        return Visitor(said)


class Visitor:
    """A user who may do what the request asks for.

    Args:
        name: her name; True if she has all runs.
    """

    def __init__(self, name: str | bool) -> None:
        self._name = name

    def has(self, facts: RunFacts) -> bool:
        """Return whether a run is one of hers."""
        return self._name is True or facts.tags.get(BY) == self._name

    @property
    def has_all(self) -> bool:
        """Return whether all runs are hers."""
        return self._name is True

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a run that she starts."""
        return {BY: self._name} if isinstance(self._name, str) else {}


def check_id(run_id: str) -> None:
    """Refuse the name of something else in a store.

    Raises:
        HTTPException: no run has such an id.
    """
    try:
        check("workflow", "", {"run_id": run_id})
    except ConfigurationError:
        raise no_run(run_id) from None


def no_run(run_id: str) -> HTTPException:
    """Return the answer for a run that is not there, or is somebody else's."""
    return HTTPException(404, f"there is no run {run_id!r:.200}")


class Startable:
    """The workflows that a request may start.

    Raises:
        ConfigurationError: one of them cannot be started, or its arguments cannot be checked.
    """

    def __init__(self, given: Iterable[Any], store: Store) -> None:
        self._store = store
        self._known: dict[str, Workflow[..., Any]] = {}
        for each in given:
            found = vars(each).values() if isinstance(each, ModuleType) else [each]
            chosen = [each for each in found if isinstance(each, Workflow)]
            if not chosen:
                raise ConfigurationError(
                    f"workflows={each!r:.80}: it is no workflow, and no module that has one"
                )
            for workflow in chosen:
                self._add(workflow)

    def _add(self, workflow: Workflow[..., Any]) -> None:
        definition = workflow.definition
        label = definition.label
        if self._known.setdefault(label, workflow) is not workflow:
            raise ConfigurationError(
                f"two workflows are called {label!r}: give one of them @workflow(name=...)"
            )
        if definition.is_generator or definition.is_async_generator:
            raise ConfigurationError(
                f"{label!r} is a generator, whose items need a consumer in its process: write a "
                "plain function that says them with stepwise.emit()"
            )
        for name, kind in parameter_types(definition.function).items():
            if name != "return":
                json_schema(kind, f"the type of the argument {name!r} of {label!r}")

    def workflow(self, label: str) -> Workflow[..., Any]:
        """Return a workflow by its name.

        Raises:
            HTTPException: there is none of that name.
        """
        if label not in self._known:
            raise HTTPException(404, f"there is no workflow {label!r:.200}")
        return self._known[label]

    async def start(
        self,
        visitor: Visitor,
        workflow: Workflow[..., Any],
        arguments: Mapping[str, Any],
        run_id: str | None,
        tags: Mapping[str, str] | None = None,
    ) -> Run:
        """Start a run, or return the run that has the id.

        Raises:
            HTTPException: the arguments do not fit, or the id is another call's or another user's.
        """
        values = _checked(workflow, arguments)
        known = {**dict(workflow.definition.options.tags), **(tags or {}), **visitor.tags}
        options: dict[str, Any] = {"store": self._store, "tags": known, "on_owned": "raise"}
        options |= {"run_id": run_id} if run_id is not None else {"start": "new"}
        try:
            chosen = workflow.options(**options)
        except ConfigurationError as error:  # the id or a tag
            raise HTTPException(422, str(error)) from error
        for _ in range(_TRIES):
            found = await asyncio.to_thread(self._existing, visitor, workflow, values, run_id)
            if found is not None:
                return found
            _, args, kwargs = workflow.definition.parameters.call_of(values, "")
            with suppress(RunBusyError, RunConflictError):  # the same request came twice
                if workflow.definition.is_coroutine:
                    run = chosen.start(*args, **kwargs).run
                else:
                    run = (await asyncio.to_thread(chosen.start, *args, **kwargs)).run
                if not visitor.has(await asyncio.to_thread(run._facts)):
                    raise no_run(run.id)
                return run
            await asyncio.sleep(_AGAIN)
        raise HTTPException(503, f"the run {run_id!r:.200} is just beginning: ask again")

    def _existing(
        self,
        visitor: Visitor,
        workflow: Workflow[..., Any],
        values: Mapping[str, Any],
        run_id: str | None,
    ) -> Run | None:
        if run_id is None:
            return None
        seal = seal_for(self._store)
        facts = facts_of(self._store, seal, run_id)
        if facts is None:
            return None
        if not visitor.has(facts):
            raise no_run(run_id)
        try:
            inputs = load_inputs(self._store, seal, facts)
        except UnreadableValueError as error:
            raise HTTPException(
                409, "the arguments of this run cannot be compared: rejoin it by GET"
            ) from error
        defaults = workflow.definition.parameters.all_of({})[1]
        names = {*inputs.values, *values} - {*inputs.missing}
        differing = [
            name
            for name in sorted(names)
            if not _equal(
                inputs.values.get(name, defaults.get(name, _NOTHING)),
                values.get(name, defaults.get(name, _NOTHING)),
            )
        ]
        if facts.workflow != workflow.full_name or differing:
            which = f", which differs in {', '.join(differing)}" if differing else ""
            raise HTTPException(409, f"the run id {run_id!r:.200} is another call's{which}")
        return Run(self._store, run_id, seal)._to_go_on()


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _checked(workflow: Workflow[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call from outside.

    Raises:
        HTTPException: they do not fit the signature or its types.
    """
    definition, values = workflow.definition, dict[str, Any]()
    kinds = parameter_types(definition.function)
    try:
        definition.parameters.bind((), arguments)
        for name, value in arguments.items():
            try:
                values[name] = checked_json(json_bytes(value), kinds.get(name, Any))
            except ValueError as error:
                raise TypeError(f"{definition.label}() argument {name!r}: {error}") from None
    except TypeError as error:
        raise HTTPException(422, str(error)) from error
    return values


async def json_object(request: Request, largest: int) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        HTTPException: the body is not a JSON object, or is too large.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        # A page of another site cannot send this type unless the server allows it.
        raise HTTPException(415, "send the header Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise HTTPException(413, f"a body has {largest / 1e6:.0f} MB at most")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(422, "the body is a JSON object with the arguments by name")
    return found
