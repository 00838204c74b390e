"""Research on a web site: its pages are fetched and analysed side by side, then compared.

    python examples/site_research.py [FOLDER or URL] [--limit N] [--out FILE] [--latency SECONDS]

Shows an asynchronous workflow: ``asyncio.gather`` over steps, retries, and a tool that settles its
own doubts.  A folder is put on a local server, slow and flaky as servers are: it answers 500 at the
first request of some pages.  The default is the folder ``site`` beside this file.

Every step prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``, or
``python -u examples/site_research.py | head -n 4``) and run it again: no page that was fetched is
fetched again, and the report is filed once.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any, TypedDict
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx

from stepwise import DidNotHappen, InDoubtCall, Landed, current_step, step, tool, workflow

client = httpx.AsyncClient(follow_redirects=True)


class Page(TypedDict):
    """What there is to say about one page; its links are those within the site."""

    status: int
    title: str
    words: int
    links: list[str]


@step(retries=3, retry_on=(httpx.HTTPStatusError, httpx.TransportError), backoff=0.05)
async def fetch(address: str) -> tuple[int, str]:
    """The status and the HTML of a page; a server's errors are worth another try."""
    print(f"[fetch] {address} attempt {current_step().attempt}")
    response = await client.get(address)
    if response.is_server_error:
        response.raise_for_status()
    is_page = response.is_success and "html" in response.headers.get("content-type", "")
    return response.status_code, response.text if is_page else ""


@step
def analyse(address: str, status: int, html: str) -> Page:
    """Title, number of words, and links of a page."""
    print(f"[analyse] {address}")
    reader = Reader()
    reader.feed(html)
    targets = {urldefrag(urljoin(address, link)).url for link in reader.links}
    return {
        "status": status,
        "title": " ".join("".join(reader.title).split()),
        "words": len("".join(reader.text).split()),
        "links": sorted(target for target in targets if is_same_site(target, address)),
    }


class Reader(HTMLParser):
    """Collects the title, the text and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links, and the elements that hold no text of the page."""
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
        elif tag in ("title", "script", "style"):
            self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        """Leave such an element."""
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        """Sort text by the element that it is in."""
        if not self.inside:
            self.text.append(data)
        elif self.inside == "title":
            self.title.append(data)


def is_same_site(one: str, other: str) -> bool:
    """Whether two addresses, paths among them, belong to one site."""
    return urlsplit(one)[:2] == urlsplit(other)[:2]


def is_filed(call: InDoubtCall) -> Landed | type[DidNotHappen]:
    """Look into the file whether a report was appended before the crash."""
    if not os.path.exists(call.arguments["out"]):
        return DidNotHappen
    with open(call.arguments["out"], encoding="utf-8") as file:
        return Landed() if call.idempotency_key in file.read() else DidNotHappen


@tool(side_effect=True, in_doubt=is_filed)
def file_report(out: str, report: str) -> None:
    """Append the report to a file of reports."""
    print(f"[file_report] {out}")
    with open(out, "a", encoding="utf-8") as file:
        file.write(f"{report}\n<!-- {current_step().idempotency_key} -->\n\n")


@workflow
async def research(site: str, start: str, limit: int, out: str) -> str:
    """Read a site, link by link from where to start, and file a report on it."""
    pages: dict[str, Page] = {}
    wave = [start]
    while wave:
        pages.update(zip(wave, await asyncio.gather(*map(visit, wave)), strict=True))
        linked = {link for page in pages.values() for link in page["links"]}
        wave = sorted(linked - pages.keys())[: limit - len(pages)]
    report = compare(site, pages)
    file_report(out, report)
    return report


async def visit(address: str) -> Page:
    """Fetch and analyse one page."""
    return analyse(address, *await fetch(address))


def compare(site: str, pages: dict[str, Page]) -> str:
    """The report: pages, links between them, and what stands out."""
    good = {address: page for address, page in sorted(pages.items()) if page["status"] == 200}
    sources = {to: [address for address in good if to in good[address]["links"]] for to in pages}
    words = sum(page["words"] for page in good.values())
    lines = [f"# {site}", "", f"{len(good)} pages, {words} words.", ""]
    for address, page in good.items():
        links = ", ".join(page["links"]) or "nothing"
        lines.append(f"- {address}: {page['title']}. {page['words']} words, links to {links}")
    if good:
        top = max(good, key=lambda address: len(sources[address]))
        lines += ["", f"Most linked: {top}, from {len(sources[top])} pages"]
    for address in sorted(pages.keys() - good.keys()):
        status, told = pages[address]["status"], ", ".join(sources[address]) or "nowhere"
        lines.append(f"Broken: {address}, status {status}, linked from {told}")
    return "\n".join(lines)


# -- a local server -------------------------------------------------------------------------------


@contextmanager
def serving(folder: str, latency: float) -> Iterator[str]:
    """Put a folder on a server that is slow and flaky; gives its address."""
    failed = set()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=folder)

        def do_GET(self) -> None:
            time.sleep(latency)
            if sum(self.path.encode()) % 2 and self.path not in failed:
                failed.add(self.path)
                self.send_error(500, "Ask again")
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


async def run(site: str, limit: int, out: str, latency: float) -> str:
    """Research a URL, or a folder that is served meanwhile: the port is no part of the run."""
    async with client:
        if "://" in site:
            return await research(site, site, limit, out)
        with serving(site, latency) as client.base_url:
            return await research(site, "/index.html", limit, out)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Report on the pages of a web site.")
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
    parser.add_argument("site", nargs="?", default=own, help="folder with index.html, or URL")
    parser.add_argument("--limit", type=int, default=20, help="number of pages (%(default)s)")
    parser.add_argument("--out", default="reports.md", help="file that is appended to")
    parser.add_argument("--latency", type=float, default=0.3, help="of our server (%(default)s)")
    given = parser.parse_args()
    site = given.site if "://" in given.site else os.path.abspath(given.site)
    if "://" not in site and not os.path.exists(os.path.join(site, "index.html")):
        parser.error(f"{site} is neither a URL nor a folder with an index.html")
    print(asyncio.run(run(site, given.limit, os.path.abspath(given.out), given.latency)))


if __name__ == "__main__":
    main()
