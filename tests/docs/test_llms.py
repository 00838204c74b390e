"""``llms.txt`` and ``llms-full.txt``: every page once, and links that lead somewhere."""

import re
import sys

from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import llms

PAGES = {
    path.relative_to(ROOT / "docs").with_suffix("").as_posix()
    for path in (ROOT / "docs").rglob("*.md")
}
INDICES = {page for page in PAGES if page.endswith("/index")}


def test_the_list_of_pages():
    """It has the form of llmstxt.org, and links each page of the site once, with a sentence."""
    text = llms.index()
    assert re.match(r"# stepwise\n\n> Durable Python agents: .*\.\n\n", text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-1] == "Optional"
    items = re.findall(r"^- \[(.+?)\]\(_sources/(.+?)\.md\.txt\): (.+)$", text, re.MULTILINE)
    assert len(items) == text.count("\n- ")
    assert sorted(page for _, page, _ in items) == sorted(PAGES - INDICES)


def test_the_text_of_all_pages():
    """The long file has each page whole, in the order of the list."""
    text, at = llms.full(), 0
    for page in re.findall(r"\(_sources/(.+?)\.md\.txt\)", llms.index()):
        whole = (ROOT / f"docs/{page}.md").read_text("utf-8").strip()
        at = text.index(whole, at)


class _Site:
    def __init__(self, folder):
        self.outdir = folder


def test_the_site_has_both(tmp_path):
    """The build of the site writes both files; a build that failed writes none."""
    llms.write(_Site(tmp_path), RuntimeError())
    assert [*tmp_path.iterdir()] == []
    llms.write(_Site(tmp_path), None)
    assert {path.name for path in tmp_path.iterdir()} == {"llms.txt", "llms-full.txt"}
