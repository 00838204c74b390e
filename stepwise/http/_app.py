"""The application: addresses and answers, who may ask for them, and what a request may start.

A request reads the store in a thread, never in the event loop.  Nothing is routed by Starlette: a
run's id may hold a slash, which only the undecoded path tells from the slashes of an address.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from types import ModuleType
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stepwise._execution.outcomes import load_inputs
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.records import OVER, RunFacts
from stepwise._runs.run import Run, each_listed
from stepwise._runs.streaming import RunStream
from stepwise._runtime import settings
from stepwise._runtime.options import check, check_stream
from stepwise._values.data import checked_json, json_bytes, json_schema, parameter_types
from stepwise._workflows.handles import recover
from stepwise._workflows.workflow import Workflow
from stepwise.errors import (
    ConfigurationError,
    RunBusyError,
    RunConflictError,
    RunEndedError,
    RunNotFoundError,
    RunStopped,
    StepwiseError,
    StoreError,
    UnreadableValueError,
)
from stepwise.http import _ai_sdk
from stepwise.http._following import (
    END,
    Encode,
    Followers,
    NoJsonError,
    encoder,
    json_text,
    kept_alive,
    problem_event,
)
from stepwise.stores import Store, open_store
from stepwise.ui._access import place
from stepwise.ui._events import EventResponse, cancelled, end_of_server, server_ends

_LARGEST = 16_000_000  # bytes of a body
_LONGEST_WAIT = 60.0  # seconds that a request for JSON may wait

_logger = logging.getLogger("stepwise.http")


class HttpApp:
    """The ASGI application; see :func:`stepwise.http.app`."""

    def __init__(
        self,
        where: Any,
        workflows: Iterable[Any],
        authorize: Any,
        form: Callable[[Any], Any] | None,
        cancel_when_left: float | None,
        *,
        metrics: bool,
    ) -> None:
        if cancel_when_left is not None and not 0 <= cancel_when_left < math.inf:
            raise ConfigurationError(
                f"cancel_when_left={cancel_when_left!r}: give seconds, 0 or more, or None for never"
            )
        self._access = Authorization(authorize)
        self._store = open_store(where if where is not None else settings.store())
        self._workflows = Startable(workflows, self._store)
        self._followers = Followers(self._store, cancel_when_left)
        self._form = form
        self._pages: Mapping[str, Callable[[], Any]] = {}
        if metrics:
            from stepwise.integrations.prometheus import pages  # the extra may be missing

            self._pages = pages([self._store])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; see ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            answer = await self._answer(Request(scope, receive))
            await answer(scope, receive, _closing(send))

    async def _live(self, receive: Any, send: Any) -> None:
        """Continue the crashed runs when the server starts, unless the application is mounted."""
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.startup":
                try:
                    recover(store=self._store)
                except (StepwiseError, RunStopped) as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def _answer(self, request: Request) -> Any:
        try:
            return await self._routed(request)
        except HTTPException as error:
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        except RunNotFoundError as error:  # deleted since it was found
            return JSONResponse({"error": _no_run(error.run_id).detail}, 404)
        except StoreError:
            _logger.exception("the store cannot be used: %s", request.url.path)
            text = "the store of the runs cannot be used at the moment"
            return JSONResponse({"error": text}, 503, {"retry-after": "1"})
        except Exception:
            _logger.exception("a request failed: %s", request.url.path)
            return JSONResponse({"error": "this request failed; the server's log says more"}, 500)

    async def _routed(self, request: Request) -> Any:  # noqa: PLR0911 -- one for each address
        _, parts = place(request.scope)
        match request.method, parts:
            case "POST", ["start", label]:
                return await self._start(request, label)
            case "POST", ["ai-sdk", label]:
                return await self._start_chat(request, label)
            case "GET", ["ai-sdk", label, chat, "stream"]:
                return await self._rejoin_chat(request, label, chat)
            case "GET", ["runs", run_id]:
                run = await self._run(request, run_id, "read")
                return await asyncio.to_thread(_state, run)
            case "GET", ["runs", run_id, "stream"]:
                return await self._rejoin(request, run_id)
            case "POST", ["runs", run_id, "cancel"]:
                return await self._cancel(request, run_id)
            case "GET", [("metrics" | "healthz" | "readyz") as name] if self._pages:
                return await self._page_of_process(request, name)
        raise HTTPException(404, "there is no such address, or not with this method")

    async def _page_of_process(self, request: Request, name: str) -> Response:
        if name == "metrics" and not (await self._access.visitor(request, None, name)).has_all:
            raise HTTPException(403, "not for you")
        status, kind, content = await asyncio.to_thread(self._pages[f"/{name}"])
        if name == "readyz" and status != 200:
            _logger.warning("not ready: %s", content.decode())
            content = b"not ready; the server's log says why\n"
        return Response(content, status, media_type=kind)

    async def _run(self, request: Request, run_id: str, action: str) -> Run:
        """Return a run that the sender of a request has.

        Raises:
            HTTPException: there is none with this id, or it is another user's.
        """
        _check_id(run_id)
        visitor = await self._access.visitor(request, run_id, action)
        seal = seal_for(self._store)
        facts = await asyncio.to_thread(facts_of, self._store, seal, run_id)
        if facts is None or not visitor.has(facts):
            raise _no_run(run_id)
        try:
            return await asyncio.to_thread(Run(self._store, run_id, seal)._to_go_on)
        except RunNotFoundError as error:  # its adopted branch was deleted
            raise _no_run(run_id) from error

    # -- runs ------------------------------------------------------------------------------------

    async def _start(self, request: Request, label: str) -> Any:
        run_id, name = request.query_params.get("run_id"), _stream_name(request)
        visitor = await self._access.visitor(request, run_id, "start")
        workflow = self._workflows.workflow(label)
        arguments = await _json_object(request)
        run = await self._workflows.start(visitor, workflow, arguments, run_id)
        if _wants_json(request):
            answer = await asyncio.to_thread(_state, run)
            answer.status_code = 202
            answer.headers["x-run-id"] = _header(run.id)
            return answer
        return await self._events(run, name, None)

    async def _rejoin(self, request: Request, run_id: str) -> Any:
        run = await self._run(request, run_id, "read")
        asked = request.query_params
        given = request.headers.get("last-event-id") or asked.get("after")
        if given == END:
            return Response(status_code=204)  # so that a browser does not reconnect
        if given is not None and not re.fullmatch(r"-?\d{1,18}", given, re.ASCII):
            raise _no_offset(given)
        after, name = int(given) if given is not None else None, _stream_name(request)
        if not _wants_json(request):
            return await self._events(run, name, after)
        return await self._page(run, name, after, asked.get("wait", "0"))

    async def _events(self, run: Run, name: str, after: int | None) -> EventResponse:
        encode = encoder(self._form)
        chunks = _chunks(await _stream(run, name, after), encode, problem_event, b"retry: 1000\n\n")
        headers = {"x-run-id": _header(run.id)}
        return EventResponse(chunks, self._followers.reading(run), headers)

    async def _page(self, run: Run, name: str, after: int | None, wait: str) -> Response:
        """Return items as JSON, as soon as there are some."""
        seconds = float(wait) if re.fullmatch(r"\d{1,3}(\.\d+)?", wait, re.ASCII) else -1
        if not 0 <= seconds <= _LONGEST_WAIT:
            raise HTTPException(422, f"wait={wait:.50}: give seconds, at most {_LONGEST_WAIT:.0f}")
        stream = await _stream(run, name, after, wait=seconds > 0)
        with self._followers.reading(run):
            items = _sendable(await _first_group(stream, seconds or None))
        shown = [{"offset": i.offset, "kind": i.kind, "value": i.value} for i in items]
        answer = {
            "run": run.id,
            "items": shown,
            "after": items[-1].offset if items else after,
            "ended": bool(items) and items[-1].kind == END,
        }
        return _json(answer, f"an item of run {run.id!r}")

    async def _cancel(self, request: Request, run_id: str) -> Response:
        run = await self._run(request, run_id, "cancel")
        reason = (await _json_object(request)).get("reason", "")
        if not isinstance(reason, str):
            raise HTTPException(422, "the reason is a text")
        try:
            await asyncio.to_thread(run.cancel, reason)
        except RunEndedError as error:
            raise HTTPException(409, f"the run has ended: {error.status}") from error
        except RunNotFoundError as error:
            raise _no_run(run_id) from error
        except ConfigurationError as error:
            raise HTTPException(409, str(error)) from error
        return JSONResponse({"run": run_id}, 202)

    # -- chats -----------------------------------------------------------------------------------

    async def _start_chat(self, request: Request, label: str) -> Any:
        workflow = self._workflows.workflow(label)
        visitor = await self._access.visitor(request, None, "start")
        body = await _json_object(request)
        chat, run_id = _ai_sdk.run_ids(body)
        if chat is None:
            raise HTTPException(422, "the body is that of DefaultChatTransport: id, messages")
        names = workflow.definition.parameters.names
        arguments = {name: value for name, value in body.items() if name in names}
        tags = {_ai_sdk.CHAT: chat}
        try:
            run = await self._workflows.start(visitor, workflow, arguments, run_id, tags)
        except HTTPException as error:
            if error.status_code != 409:  # the message was edited
                raise
            again = _ai_sdk.another(run_id)
            run = await self._workflows.start(visitor, workflow, arguments, again, tags)
        return await self._message(run)

    async def _rejoin_chat(self, request: Request, label: str, chat: str) -> Any:
        workflow = self._workflows.workflow(label)
        visitor = await self._access.visitor(request, None, "read")
        run = await asyncio.to_thread(self._active, visitor, workflow, chat)
        return Response(status_code=204) if run is None else await self._message(run)

    def _active(self, visitor: Visitor, workflow: Workflow[..., Any], chat: str) -> Run | None:
        """Return the newest run of a chat if it has not ended."""
        try:
            listed = each_listed(
                workflow, store=self._store, tags={_ai_sdk.CHAT: chat}, where=visitor.has
            )
        except ConfigurationError:  # the id of the chat can be no tag
            return None
        newest = next(itertools.islice(listed, 1), None)
        return newest.run if newest is not None and newest.facts.status not in OVER else None

    async def _message(self, run: Run) -> EventResponse:
        message = _ai_sdk.UiMessage(run.id)
        chunks = _chunks(await _stream(run, "main", None), message.encode, message.problem)
        reading = self._followers.reading(run)
        # The client takes a response that ends without a last chunk for whole.
        return EventResponse(chunks, reading, _ai_sdk.HEADERS, says_end=False)


def _closing(send: Any) -> Any:
    """Return a ``send`` that closes the connections of a server that ends.

    A client that reconnects at once on the same connection would keep the server from its end.
    """

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start" and server_ends():
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return sent


async def _stream(run: Run, name: str, after: int | None, *, wait: bool = True) -> RunStream:
    try:
        return await asyncio.to_thread(run.stream, after, name, follow=wait)
    except ConfigurationError as error:
        raise _no_offset(str(after)) from error
    except RunNotFoundError as error:
        raise _no_run(run.id) from error


async def _first_group(stream: RunStream, seconds: float | None) -> list[Any]:
    """Return the next items; none if the time is over, or the server ends."""
    async with aclosing(stream.groups()) as groups:
        first = asyncio.ensure_future(anext(groups, []))
        ending = asyncio.ensure_future(end_of_server())
        try:
            waits = {first, ending}
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return first.result() if first.done() else []
        finally:
            await cancelled(first, ending)


def _sendable(items: list[Any]) -> list[Any]:
    """Return the items before the first one that has no form in JSON, unless that comes first."""
    for number, item in enumerate(items[1:], 1):
        try:
            json_text(item.value, "it")
        except NoJsonError:
            return items[:number]
    return items


async def _chunks(
    stream: RunStream, encode: Encode, problem: Callable[[str], bytes], first: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of an event stream; a stream that cannot be read ends with a problem."""
    yield first
    try:
        async with aclosing(kept_alive(stream.groups(), encode)) as chunks:
            async for data in chunks:
                yield data
    except NoJsonError as error:
        _logger.warning("the stream of a run cannot be sent: %s", error)
        yield problem(str(error))
    except (Exception, RunStopped):  # a function of the user has failed, too
        _logger.exception("the stream of a run cannot be sent")
        yield problem("the stream cannot be sent; the server's log says more")


def _state(run: Run) -> Response:
    """Return the status of a run, and its outcome."""

    def read(*_: Any) -> dict[str, Any]:
        label, status = run.label, run.status
        answer: dict[str, Any] = {"run": run.id, "workflow": label, "status": status}
        if status == "completed":
            answer["result"] = run.result
        elif status == "failed":
            answer["error"] = run._error_text()
        return answer

    return _json(run._settled(read), f"the result of run {run.id!r}")


def _json(answer: Mapping[str, Any], what: str) -> Response:
    try:
        text = json_text(answer, what)
    except NoJsonError as error:
        _logger.warning("an answer cannot be sent: %s", error)
        return JSONResponse({"error": str(error)}, 500)
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


async def _json_object(request: Request) -> dict[str, Any]:
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
        if len(body) > _LARGEST:
            raise HTTPException(413, f"a body has {_LARGEST / 1e6:.0f} MB at most")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(422, "the body is a JSON object with the arguments by name")
    return found


def _stream_name(request: Request) -> str:
    name = request.query_params.get("stream", "main")
    try:
        check_stream(name)
    except ConfigurationError as error:
        raise HTTPException(422, str(error)) from error
    return name


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


def _no_offset(given: str) -> HTTPException:
    return HTTPException(404, f"the stream has no offset {given:.100}, or what follows was deleted")


def _header(text: str) -> str:
    """Return a text for a header, with the characters of an address."""
    return quote(text, safe="/:@!$&'()*+,;=~-._")


# -- who may ask -----------------------------------------------------------------------------------


BY = "by"
"""The tag of a run with the name of the user who started it."""


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
            raise _no_run(run_id) if run_id is not None else HTTPException(403, "not for you")
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


def _no_run(run_id: str) -> HTTPException:
    """Return the answer for a run that is not there, or is somebody else's."""
    return HTTPException(404, f"there is no run {run_id!r:.200}")


# -- what may be started ---------------------------------------------------------------------------


_NOTHING = object()
_AGAIN = 0.05  # seconds until a run that another request is beginning is looked at again
_TRIES = 200


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
                    raise _no_run(run.id)
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
            raise _no_run(run_id)
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


def _check_id(run_id: str) -> None:
    """Refuse the name of something else in a store.

    Raises:
        HTTPException: no run has such an id.
    """
    try:
        check("workflow", "", {"run_id": run_id})
    except ConfigurationError:
        raise _no_run(run_id) from None
