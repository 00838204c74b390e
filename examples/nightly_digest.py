"""A digest of what changed in a folder, made every night, within a budget.

    python examples/nightly_digest.py [FOLDER] [--out FILE]

Shows a job for cron whose starts never overlap.  A start takes over the night that is unfinished,
else it begins a new one.  Two lines of a crontab are all that it needs::

    0 3 * * *    cd examples && python nightly_digest.py
    */5 * * * *  cd examples && stepwise up --once nightly_digest

The second one continues a night whose process was killed.  Rules stand where a model would be
asked, and say what that would cost.  A night that has spent its budget stops before the next page,
and a larger budget lets it go on; what was paid for once is not paid for again.

Every step prints a line when it really runs.  Crash it (Ctrl-C, ``kill -9``, or
``python -u examples/nightly_digest.py | head -n 3``) and run it again: pages that were read are
not read again, and the digest is delivered once.  If it was killed while it delivered, it looks
into the file.
"""

from __future__ import annotations

import argparse
import html
import pathlib
import re
from typing import TypedDict

from stepwise import (
    Budget,
    DidNotHappen,
    InDoubtCall,
    Landed,
    current_step,
    spend,
    step,
    tool,
    workflow,
)

SITE = pathlib.Path(__file__).with_name("site")
WORDS = 12  # of a page in the digest
PRICE = 0.000002  # US dollars for a word
NIGHT = Budget(usd=0.50, tokens=200_000, steps=500)


class Page(TypedDict):
    """A page, understood."""

    name: str
    title: str
    gist: str


@step
def list_pages(folder: str) -> list[str]:
    """The pages of tonight."""
    found = sorted(path.name for path in pathlib.Path(folder).glob("*.html"))
    print(f"[list_pages] {len(found)}")
    return found


@step(retries=2)
def summarize(folder: str, name: str) -> Page:
    """What a page says, in a few words."""
    print(f"[summarize] {name}")
    text = pathlib.Path(folder, name).read_text("utf-8")
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    body = re.sub(r"<head>.*?</head>|<[^>]*>", " ", text, flags=re.DOTALL)
    words = html.unescape(body).split()
    spend(usd=PRICE * len(words), tokens=len(words))
    return {"name": name, "title": title[1] if title else name, "gist": " ".join(words[:WORDS])}


def was_delivered(call: InDoubtCall) -> Landed | type[DidNotHappen]:
    """Look into the file whether the digest was appended before the crash."""
    out = pathlib.Path(call.arguments["out"])
    there = out.exists() and call.idempotency_key in out.read_text("utf-8")
    return Landed() if there else DidNotHappen


@tool(side_effect=True, in_doubt=was_delivered)
def deliver(out: str, digest: str) -> None:
    """Append the digest to a file, as one would mail it."""
    print("[deliver]")
    with open(out, "a", encoding="utf-8") as file:
        file.write(f"{digest}\n<!-- {current_step().idempotency_key} -->\n")


@workflow(start="unfinished", budget=NIGHT)
def nightly_digest(folder: str, out: str) -> str:
    """Summarize the pages of a folder, one by one, and deliver the digest."""
    pages = []
    for name in list_pages(folder):
        pages.append(summarize(folder, name))  # noqa: PERF401 - each turn is a place to resume
    digest = "\n".join(f"- {page['title']}: {page['gist']}" for page in pages)
    deliver(out, digest)
    return digest


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Deliver a digest of the pages of a folder.")
    parser.add_argument("folder", nargs="?", default=str(SITE), help="default: the example's site")
    parser.add_argument("--out", default="digests.md", help="file that is appended to")
    given = parser.parse_args()
    print(
        nightly_digest(
            str(pathlib.Path(given.folder).resolve()), str(pathlib.Path(given.out).resolve())
        )
    )


if __name__ == "__main__":
    main()
