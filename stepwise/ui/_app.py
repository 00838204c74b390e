"""The application: addresses, errors and limits.

A request reads the store in a thread, never in the event loop.  Nothing is routed by Starlette: a
run's id may hold a slash, which only the undecoded path tells from the slashes of an address.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from stepwise import errors
from stepwise._display import render
from stepwise._display.markup import Markup
from stepwise._runs.export import html_page
from stepwise._runs.run import Run, get_run
from stepwise._runs.schedules import schedules
from stepwise._runtime import settings
from stepwise._runtime.messages import notice
from stepwise._runtime.settings import public_url
from stepwise.stores import Store, open_store, store_for_pages
from stepwise.ui import _pages, _run_page
from stepwise.ui import _reading as reading
from stepwise.ui._access import Access, Authorize, RefusedError, address, headers, place
from stepwise.ui._actions import NAMES, Actions, BadFieldError, FormFields
from stepwise.ui._events import EventResponse
from stepwise.ui._live import RunWatcher
from stepwise.ui._shell import View

_LARGEST = 8_000_000  # bytes of a form
_FIELDS = 10_000  # fields of a form
_LONGEST = 8000  # characters of an address
_TRUSTED = 1.0  # seconds for which it holds that somebody may see an open page
_STATIC = {
    "page.css": (os.path.join(os.path.dirname(render.__file__), "page.css"), "text/css"),
    "page.js": (os.path.join(os.path.dirname(__file__), "page.js"), "text/javascript"),
}

_logger = logging.getLogger("stepwise.ui")


class _ProblemError(Exception):
    """A request that gets a page with a problem."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


def mounted(where: Any, authorize: Authorize | None, *, read_only: bool) -> App:
    """Return the application for :func:`stepwise.ui.app`."""
    store = open_store(where if where is not None else settings.store())
    made = App(store, Access(authorize), read_only=read_only)
    if authorize is None:
        notice(f"the page of runs opens with ?token={made.access.token} after its address")
    else:
        # Several processes may serve one application, so that the store's key makes it.
        made.access = Access(authorize, key=made.reader.seal.tag("forms of the page", b"").hex())
    return made


class App:
    """The ASGI application.

    Args:
        store: the store.
        access: who may see it.
        read_only: no action is possible.
    """

    def __init__(self, store: Store, access: Access, *, read_only: bool = False) -> None:
        self._store, self._read_only = store_for_pages(store, to_read=read_only), read_only
        self.access = access
        self.reader = reading.RunReader(self._store)
        self.watcher = RunWatcher(self.reader)
        self._actions = Actions(self.reader, self._store if read_only else store)
        self._folder = getattr(store, "path", "")
        self._has_folder = os.path.isdir(self._folder)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; see ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response | EventResponse:
        root, parts = place(request.scope)
        nonce = secrets.token_urlsafe(16)
        try:
            self.access.check_host(request)
            if request.method in ("GET", "HEAD") and self.access.has_token(request):
                return self._enter(request, root, parts)
            who = await self.access.person(request)
            given, problem = await _form(request)
            if request.method == "POST" and problem is None:
                self.access.check_action(request, who, given)
        except RefusedError as refused:
            return PlainTextResponse(f"403: {refused}\n", 403, headers(nonce))
        watched = _watched(parts) if request.method == "GET" and problem is None else None
        if watched is not None:
            return EventResponse(self._events(request, watched), nullcontext(), headers(nonce))
        asked = _PageRequest(request, root, parts, who, nonce, FormFields(given))
        return await run_in_threadpool(self._respond, asked, problem)

    async def _events(self, request: Request, run_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the events of a page for as long as its reader may see it."""
        asked = time.monotonic()
        async with aclosing(self.watcher.events(run_id)) as events:
            async for event in events:
                if time.monotonic() - asked > _TRUSTED:
                    try:
                        await self.access.person(request)
                    except RefusedError:
                        return
                    asked = time.monotonic()
                yield event.encode()

    def _enter(self, request: Request, root: str, parts: list[str]) -> Response:
        """Return the answer to an address with the token: the cookie, and the same address."""
        query = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        response = RedirectResponse(address(root, parts, query), 303, headers(""))
        is_tls = request.url.scheme == "https"
        response.set_cookie(
            self.access.cookie,
            self.access.session,
            path=root or "/",
            secure=is_tls,
            httponly=True,
            samesite="strict",
        )
        return response

    # -- in a thread -----------------------------------------------------------------------------

    def _respond(self, asked: _PageRequest, problem: _ProblemError | None) -> Response:
        """Return the answer to a request of somebody who may see the page."""
        try:
            if problem is None:
                self._check_folder()
                return self._page(asked) if asked.request.method != "POST" else self._act(asked)
            found = problem
        except (
            errors.StepwiseError,
            errors.RunStopped,
            BadFieldError,
            reading.WrongWordsError,
        ) as error:
            found = _problem_of(error)
        except _ProblemError as error:
            found = error
        except Exception:
            _logger.exception("a page of runs failed: %s", asked.request.url.path)
            text = "The server's log says more. The runs are not affected."
            found = _ProblemError(500, "This page failed", text)
        view = self._view(asked, counts=False)  # a store that is away would be waited for again
        again = asked.again() if found.status == 503 else ""
        page = _pages.problem_page(view, found.status, found.title, found.text, again)
        return _html(page, asked, found.status)

    def _check_folder(self) -> None:
        """Refuse to show a store that is gone: without its folder, a store reads as an empty one.

        Raises:
            StoreError: the folder was there.
        """
        if os.path.isdir(self._folder):
            self._has_folder = True
        elif self._has_folder:
            raise errors.StoreError(
                f"the store {self._store.url} is gone: its folder was deleted or moved, or its "
                "disk is not there. Bring it back, or end this server",
                path=self._folder,
                errno=errno.ENOENT,
            )

    def _view(self, asked: _PageRequest, run_id: str = "", *, counts: bool = True) -> View:
        total, at_least = 0, True
        with contextlib.suppress(
            errors.CorruptStoreError, errors.JournalLostError
        ):  # other pages may be intact
            if counts:
                total, at_least = self.reader.open_matters()
        return View(
            root=asked.root,
            form_token=self.access.form_token(asked.who),
            read_only=self._read_only,
            open_matters=total,
            nonce=asked.nonce,
            who=asked.who,
            store=public_url(self._store.url),
            now=time.time(),
            at_least=at_least,
            output=self._actions.programs.output(run_id) if run_id else None,
        )

    def _page(self, asked: _PageRequest) -> Response:
        match asked.parts:
            case []:
                page = self._runs(asked)
            case ["static", name] if name in _STATIC:
                return _static(asked, name)
            case ["inbox"]:
                page = _pages.inbox_page(self._view(asked), self.reader.inbox())
            case ["spending"]:
                by = asked.query("by") or reading.WAYS[0]
                if by not in reading.WAYS:
                    raise BadFieldError(f"by is none of {', '.join(reading.WAYS)}")
                page = _pages.spending_page(
                    self._view(asked),
                    reading.spending(self.reader, by, longer=asked.query("longer") == "1"),
                )
            case ["schedules"]:
                page = _pages.schedules_page(self._view(asked), *schedules(self._store))
            case ["compare"]:
                one, other = (self._run(asked.query(name)) for name in ("a", "b"))
                page = _pages.compare_page(self._view(asked), one, other)
            case ["runs", run_id, *rest]:
                return self._of_run(asked, self._run(run_id), rest)
            case _:
                raise _no_page()
        return _html(page, asked)

    def _of_run(self, asked: _PageRequest, run: Run, rest: list[str]) -> Response:
        view, step = self._view(asked, run.id), asked.number("step")
        match rest:
            case []:
                found = self.reader.branches(run, 0, _run_page.FEW)
                return _html(_run_page.run_page(view, run, step, found), asked)
            case ["branches"]:
                found = self.reader.branches(run, asked.number("start") or 0, reading.PAGE)
                return _html(_run_page.branches_page(view, run, found), asked)
            case ["value"]:
                if step is None:
                    raise BadFieldError("the address of a value names its step: ?of=locals&step=3")
                of, path, begin = asked.query("of"), asked.query("path"), asked.number("begin") or 0
                return _html(_run_page.value_page(view, run, of, step, path, begin), asked)
            case ["fork"]:
                return _html(_run_page.fork_page(view, run, step), asked)
            case ["export"]:
                name = re.sub(r"[^\w.-]", "-", run.id, flags=re.ASCII)[:100]
                more = {"Content-Disposition": f'attachment; filename="{name}.html"'}
                return _html(html_page(run), asked, more=more)
        raise _no_page()

    def _runs(self, asked: _PageRequest) -> Markup:
        query, before, problem = asked.query("q"), asked.query("before"), ""
        found = reading.SearchPage([], None, "")
        try:
            search, rows = reading.parsed(query, time.time()), self.reader.rows()
            try:
                found = reading.find(self._store, search, before, rows)
            except errors.RunNotFoundError:
                problem = f"The run {before}, after which this page begins, is gone."
                found = reading.find(self._store, search, "", rows)
        except reading.WrongWordsError as error:
            problem = str(error)
        view = self._view(asked)
        return _pages.runs_page(view, found.rows, query, found.older, problem or found.note)

    def _run(self, run_id: str) -> Run:
        return get_run(run_id, store=self._store)

    def _act(self, asked: _PageRequest) -> Response:
        """Do what a form says, and go to the page that shows it."""
        if self._read_only:
            text = "This page was started with --read-only: it shows, and changes nothing."
            raise _ProblemError(403, "Only to read", text)
        view = self._view(asked)
        match asked.parts:
            case ["marked"]:
                problems = self._actions.do_marked(asked.who, asked.fields)
                for run_id in asked.fields.all("id"):
                    self.reader.acted_on(run_id)
                if problems:
                    raise _ProblemError(409, "Not all could be done", "\n".join(problems))
                return RedirectResponse(view.at(), 303, headers(asked.nonce))
            case ["runs", run_id, action] if action in NAMES:
                run = self._run(run_id)
                try:
                    parts = self._actions.do(asked.who, action, run_id, asked.fields)
                except (errors.StepwiseError, BadFieldError) as error:
                    if action != "fork":
                        raise
                    step = asked.fields.step() if asked.fields.one("step").isdecimal() else None
                    given = asked.fields.below("")
                    page = _run_page.fork_page(view, run, step, str(error), given)
                    return _html(page, asked, 409)
                self.reader.acted_on(run_id)
                return RedirectResponse(view.at(*parts), 303, headers(asked.nonce))
        raise _no_page()


# -- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PageRequest:
    """A request of somebody who may see the page.

    Args:
        root: the path under which the application is mounted, quoted.
        parts: the parts of the path below.
        who: the person.
        nonce: for the page's style element.
        fields: of the form.
    """

    request: Request
    root: str
    parts: list[str]
    who: str
    nonce: str
    fields: FormFields

    def again(self) -> str:
        """Return the address to load after a problem: of this page, or of the form's page."""
        if self.request.method == "POST":
            return address(self.root, self.parts[:-1])
        return address(self.root, self.parts, self.request.query_params.multi_items())

    def query(self, name: str) -> str:
        """Return a parameter of the address; empty if it is missing."""
        return self.request.query_params.get(name, "")

    def number(self, name: str) -> int | None:
        """Return a whole number of the address; ``None`` if it is missing."""
        return FormFields({name: [self.query(name)]}).number(name) if self.query(name) else None


def _watched(parts: list[str]) -> str | None:
    """Return the run whose changes an address tells, empty for all; ``None`` for a page."""
    match parts:
        case ["live"]:
            return ""
        case ["runs", run_id, "live"]:
            return run_id
    return None


async def _form(request: Request) -> tuple[dict[str, list[str]], _ProblemError | None]:
    """Return the fields of a form, or what is wrong with it or with the address."""
    if len(str(request.url)) > _LONGEST:
        return {}, _ProblemError(414, "Too long", "The address is too long.")
    if request.method in ("GET", "HEAD"):
        return {}, None
    if request.method != "POST":
        return {}, _ProblemError(405, "Not possible", "This address can only be read.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            text = f"A form of {_LARGEST / 1e6:.0f} MB at most is taken. For a larger value: "
            return {}, _ProblemError(413, "Too large", f"{text}stepwise send RUN NAME -")
    try:
        return parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=_FIELDS,
        ), None
    except ValueError:
        return {}, _ProblemError(400, "Not a form", "The form that was sent cannot be read.")


# -- answers --------------------------------------------------------------------------------------


def _no_page() -> _ProblemError:
    return _ProblemError(404, "No such page", "There is no page at this address.")


def _problem_of(error: BaseException) -> _ProblemError:
    """Return the page for an exception of the library, whose text says what to do."""
    kinds: list[tuple[type | tuple[type, ...], int, str]] = [
        (errors.RunNotFoundError, 404, "No such run"),
        ((BadFieldError, reading.WrongWordsError), 400, "Not understood"),
        ((errors.CorruptStoreError, errors.JournalLostError), 500, "Damaged"),
        (errors.StoreError, 503, "The store cannot be used"),
    ]
    for kind, status, title in kinds:
        if isinstance(error, kind):
            return _ProblemError(status, title, str(error))
    return _ProblemError(409, "Not possible", str(error))


def _html(
    page: str, asked: _PageRequest, status: int = 200, more: Mapping[str, str] | None = None
) -> Response:
    data = page.encode("utf-8", "backslashreplace")
    return Response(data, status, {**headers(asked.nonce), **(more or {})}, "text/html")


def _static(asked: _PageRequest, name: str) -> Response:
    """Return a file of ours; the browser asks each time whether its copy is still the same."""
    path, kind = _STATIC[name]
    with open(path, "rb") as file:
        data = file.read()
    tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    same = asked.request.headers.get("if-none-match") == tag
    known = {**headers(asked.nonce), "Cache-Control": "private, no-cache", "ETag": tag}
    return Response(b"" if same else data, 304 if same else 200, known, kind)
