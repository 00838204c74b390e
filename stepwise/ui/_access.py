"""Addresses of the pages, and access to them: token, cookie, Host, Origin, form token.

A browser sends a cookie to every port of a host, so the cookie's name depends on the secret: two
servers on one machine do not take each other's cookies.  A cookie with ``SameSite=Strict`` is not
sent by other sites.  A page of another site can still post a form, or let its own name point to
this machine (DNS rebinding); the checks of ``Origin``, ``Host`` and the form token refuse both.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from stepwise._journal.persons import this_person

Authorize = Callable[[Request], Any]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class RefusedError(Exception):
    """A request that may not see the page, or may not act; the text says why."""

    def __init__(self, text: str, status: int = 403) -> None:
        super().__init__(text)
        self.status = status


class Access:
    """The rules of one application.

    Args:
        authorize: called with each request; returns the person's name, or True for the user of this
            process, or False to refuse.  It may be a coroutine function.  ``None``: the request
            needs the token, or the cookie that the token gave.
        token: the token; by default a random one.
        key: signs the forms of a mounted application, which several processes may serve; by default
            the token does.
        hosts: the names under which this machine is reached; ``None`` if the application around
            this one checks that.
    """

    def __init__(
        self,
        authorize: Authorize | None = None,
        *,
        token: str = "",
        key: str = "",
        hosts: frozenset[str] | None = None,
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self._authorize, self._hosts = authorize, hosts
        self._once: set[str] = set()
        self._key = (key or self.token).encode()
        self.cookie = f"stepwise-{self._sign('name')[:12]}"
        self.session = self._sign("session")

    def check_host(self, request: Request) -> None:
        """Refuse a request for a host that is not this machine.

        Raises:
            RefusedError: the name in ``Host`` is not one of ours.
        """
        name = _name(request.headers.get("host", ""))
        if self._hosts is not None and name not in self._hosts:
            raise RefusedError(
                "this server does not answer under that name. Open the address that it has printed"
            )

    def check_bearer(self, request: Request) -> None:
        """Refuse a request of another site, or without the token in ``Authorization``.

        Raises:
            RefusedError: with the status for the answer.
        """
        self.check_host(request)
        if "origin" in request.headers and not _is_of_here(request):
            raise RefusedError("this request comes from a page of another site")
        if not _same(request.headers.get("authorization", ""), f"Bearer {self.token}"):
            raise RefusedError(
                "this server answers to its token only. Send the header that it has printed: "
                "Authorization: Bearer TOKEN",
                401,
            )

    def has_token(self, request: Request) -> bool:
        """Return whether the address holds the token, or one of :meth:`once`, which it uses up."""
        given = request.query_params.get("token", "")
        if self._authorize is not None:
            return False
        if given in self._once:
            self._once.remove(given)
            return True
        return _same(given, self.token)

    def once(self) -> str:
        """Return a token for one request.

        The command line of a browser holds it, which other users of this machine can see.
        """
        made = secrets.token_urlsafe(32)
        self._once.add(made)
        return made

    async def person(self, request: Request) -> str:
        """Return who looks.

        Raises:
            RefusedError: nobody who may.
        """
        if self._authorize is None:
            if _same(request.cookies.get(self.cookie, ""), self.session):
                return this_person()
            raise RefusedError(
                "this page opens with the token that stepwise ui has printed: open the whole "
                "address, up to its end"
            )
        said = self._authorize(request)
        if inspect.isawaitable(said):
            said = await said
        if not said:
            raise RefusedError("the application does not let you see these runs")
        return said if isinstance(said, str) else this_person()

    def form_token(self, who: str) -> str:
        """Return the value of the hidden field of the forms of a person."""
        return self._sign(f"form {who}")

    def check_action(self, request: Request, who: str, fields: Mapping[str, list[str]]) -> None:
        """Refuse an action that does not come from one of our forms.

        Raises:
            RefusedError: ``Origin`` is missing or another one, or the form token is wrong.
        """
        if not _is_of_here(request):
            raise RefusedError("this action does not come from a page of this server")
        if not _same(fields.get("token", [""])[0], self.form_token(who)):
            raise RefusedError("this form is not of this server: load its page again")

    def _sign(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()


class TokenGuard:
    """An application whose clients are programs, which send the token with each request."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; see ASGI."""
        answer = self._app
        if scope["type"] == "http":
            try:
                self._access.check_bearer(Request(scope))
            except RefusedError as refused:
                asks = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
                answer = PlainTextResponse(f"{refused.status}: {refused}\n", refused.status, asks)
        await answer(scope, receive, send)


def _is_of_here(request: Request) -> bool:
    """Return whether ``Origin`` names this server."""
    origin = request.headers.get("origin", "").partition("://")[2]
    return bool(origin) and origin == request.headers.get("host")


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _name(host: str) -> str:
    """Return the name in a ``Host`` header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # an address in brackets that is none
        return ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def headers(nonce: str) -> dict[str, str]:
    """Return the headers of every page.

    Args:
        nonce: of the page's one style element.
    """
    policy = (
        f"default-src 'none'; style-src 'self' 'nonce-{nonce}'; script-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        # Not no-referrer, with which a browser sends "Origin: null" with a form.
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


# -- addresses -------------------------------------------------------------------------------------


def address(root: str, parts: Iterable[object], query: Sequence[tuple[str, object]] = ()) -> str:
    """Return the address of a page.

    A browser follows ``..`` in a path, ``%2E%2E`` too, and proxies take ``%2F`` for a slash.  Such
    parts are quoted by a ``~`` instead.

    Args:
        root: the path under which the application is mounted, quoted.
        parts: the parts of the path below.
        query: the names and values of parameters.
    """
    path = "/".join(_quoted(str(part)) for part in parts)
    return f"{root}/{path}{'?' * bool(query)}{urlencode(query, errors='replace')}"


def _quoted(part: str) -> str:
    text = quote(part, safe="", errors="surrogatepass")
    text = text.replace("~", "~7E").replace("%2F", "~2F")
    return text.replace(".", "~2E") if part in (".", "..") else text


def _part_meant(part: str) -> str:
    """Return the part of a path that :func:`address` has quoted, after the percent signs."""
    return re.sub("~(2E|2F|7E)", lambda found: chr(int(found[1], 16)), part)


def place(scope: Any) -> tuple[str, list[str]]:
    """Return where the application is mounted, and the parts of the path below."""
    above = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    parts = [unquote_to_bytes(part) for part in raw.partition(b"?")[0].split(b"/") if part]
    if above and f"{scope['path']}/".startswith(f"{above}/"):
        parts = parts[len([part for part in above.split("/") if part]) :]
    try:
        texts = [part.decode("utf-8", "surrogatepass") for part in parts]
    except UnicodeDecodeError:
        texts = [part.decode("utf-8", "replace") for part in parts]
    return quote(above), [*map(_part_meant, texts)]
