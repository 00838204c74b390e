"""Whether a process is alive and ready, and a small server of such pages."""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepwise._journal.lease import Lease
from stepwise._workflows.up import Supervisor
from stepwise.errors import ConfigurationError, RunBusyError, RunStopped, StepwiseError
from stepwise.stores import Store

Page = tuple[int, str, bytes]  # status, type of the content, content
_NAME = "up:ready"  # of the lease by which a store shows that it takes writes
_ANSWERS = 3.0  # seconds in which a store has to answer
_LOOKS = 30.0  # seconds in which the loop of a supervisor has to come round
_TEXT = "text/plain; charset=utf-8"


def impatient(store: Store) -> Store:
    """Return a store that gives up early on a server that is away."""
    for_pages = getattr(store, "for_pages", None)
    quick: Store = store if for_pages is None else for_pages(to_read=False)
    return quick


class Health:
    """The health of a process.

    Args:
        stores: each of them has to take a write within three seconds.
        supervisor: its loop has to come round.
    """

    def __init__(self, stores: Iterable[Store], supervisor: Supervisor | None = None) -> None:
        self._stores = {store.url: store for store in stores}
        self._supervisor = supervisor
        self._mutex = threading.Lock()
        self._asked: dict[str, float] = {}  # since when a store has not answered
        self._problems: dict[str, str] = {}
        self._answered = threading.Condition(self._mutex)

    def alive(self) -> Page:
        """Return the page ``/healthz``: the process answers."""
        return 200, _TEXT, b"alive\n"

    def ready(self) -> Page:
        """Return the page ``/readyz``: 503 with the reasons if the process is not ready."""
        found = [*self._of_supervisor(), *self._of_stores()]
        return (
            (503 if found else 200),
            _TEXT,
            "".join(f"{t}\n" for t in found or ["ready"]).encode(),
        )

    def _of_supervisor(self) -> Iterable[str]:
        if self._supervisor is None:
            return
        silent = time.monotonic() - self._supervisor.looked
        if self._supervisor.is_stopped:
            yield "up is ending"
        elif silent > _LOOKS:
            yield f"up has not looked for due runs for {silent:.0f} s"

    def _of_stores(self) -> Iterable[str]:
        with self._mutex:
            for url in self._stores:
                if url not in self._asked:  # else an earlier question is still open
                    self._asked[url] = time.monotonic()
                    threading.Thread(target=self._ask, args=(url,), daemon=True).start()
            until = time.monotonic() + _ANSWERS
            while self._asked and (left := until - time.monotonic()) > 0:
                self._answered.wait(left)
            silent = {url: time.monotonic() - at for url, at in self._asked.items()}
            found = dict(self._problems)
        found |= {url: f"has not answered for {seconds:.0f} s" for url, seconds in silent.items()}
        return [f"the store {url}: {why}" for url, why in found.items()]

    def _ask(self, url: str) -> None:
        problem = ""
        try:
            Lease(self._stores[url], _NAME).acquire().release()
        except RunBusyError:  # another process asks the same
            problem = ""
        except (StepwiseError, RunStopped) as error:
            problem = str(error)
        with self._mutex:
            del self._asked[url]
            self._problems.pop(url, None)
            if problem:
                self._problems[url] = problem
            self._answered.notify_all()


# -- server ---------------------------------------------------------------------------------------


class PageServer:
    """A server of pages in threads of its own, until the process ends.

    Args:
        address: ``PORT`` of this machine alone, or ``HOST:PORT``; port 0 for any free one.
        pages: by path, each made for each request.

    Attributes:
        url: of the server.

    Raises:
        ConfigurationError: the address cannot be used.
    """

    def __init__(self, address: str, pages: Mapping[str, Callable[[], Page]]) -> None:
        host, _, port = address.rpartition(":")
        handler = type("PageHandler", (_Handler,), {"pages": pages})
        try:
            self._server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), handler)
        except (ValueError, OSError, OverflowError) as error:
            raise ConfigurationError(
                f"metrics cannot be served at {address!r}: {error}. Write PORT, or HOST:PORT for "
                "other machines: 9464, 0.0.0.0:9464"
            ) from error
        self.url = f"http://{host or '127.0.0.1'}:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever, name="stepwise metrics", daemon=True
        ).start()


class _Handler(BaseHTTPRequestHandler):
    pages: Mapping[str, Callable[[], Page]]
    timeout = 10  # seconds that a client may take to ask

    def do_GET(self) -> None:
        page = self.pages.get(urllib.parse.urlsplit(self.path).path)
        status, kind, content = page() if page is not None else (404, _TEXT, b"no such page\n")
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Keep quiet: each request is usual."""
