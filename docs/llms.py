"""The pages for language models: ``llms.txt``, their list, and ``llms-full.txt``, their text.

The format is that of https://llmstxt.org.  A link leads to the page's Markdown, which the site has
below ``_sources``.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = {"how-to": "How-to guides", "concepts": "Concepts", "reference": "Reference"}
OPTIONAL = ("coming-from", "reliability", "benchmarks", "conformance", "design", "house")
_DESCRIPTION = 200  # characters


def pages(folder: str = "") -> list[str]:
    """Return the pages that an index lists, in its order, as paths without ``.md``."""
    below = HERE / folder
    text = (below / "index.md").read_text("utf-8")
    listed = [
        re.sub(r".*<(.*)>", r"\1", line)
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line and line[0] not in ":*"
    ]
    listed += sorted({path.stem for path in below.glob("*.md")} - {*listed, "index"})
    return [f"{folder}/{name}".lstrip("/") for name in listed]


def _all() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections with their pages."""
    yield "Start", ["index", "tutorial"]
    for folder, title in SECTIONS.items():
        yield title, pages(folder)
    rest = [[name] if (HERE / f"{name}.md").exists() else pages(name) for name in OPTIONAL]
    yield "Optional", [page for each in rest for page in each]


def _text(page: str) -> str:
    return (HERE / f"{page}.md").read_text("utf-8")


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def _description(text: str) -> str:
    """Return the first sentence of a page."""
    prose = re.sub(
        r"<!--.*?-->|^```.*?^```|^[#|!][^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE
    )
    first = " ".join(prose.strip().partition("\n\n")[0].split())
    first = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)
    sentence = re.split(r"(?<=[a-z`)])\. ", first)[0].rstrip(".:")
    return sentence if len(sentence) <= _DESCRIPTION else f"{sentence[: _DESCRIPTION - 1]}…"


def index() -> str:
    """Return ``llms.txt``."""
    parts = [f"# {_title(_text('index'))}", f"> {_description(_text('index'))}."]
    parts.append("All pages in one file: [llms-full.txt](llms-full.txt)")
    for title, names in _all():
        texts = {name: _text(name) for name in names}
        links = [
            f"- [{_title(text)}](_sources/{name}.md.txt): {_description(text)}".rstrip(": ")
            for name, text in texts.items()
        ]
        parts.append("\n".join([f"## {title}\n", *links]))
    return "\n\n".join(parts) + "\n"


def full() -> str:
    """Return ``llms-full.txt``."""
    names = (name for _, names in _all() for name in names)
    return "\n\n".join(f"<!-- {name}.md -->\n{_text(name).strip()}" for name in names) + "\n"


def write(app: Sphinx, error: Exception | None) -> None:
    """Write both files into the site."""
    if error is None:
        pathlib.Path(app.outdir, "llms.txt").write_text(index(), "utf-8")
        pathlib.Path(app.outdir, "llms-full.txt").write_text(full(), "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what is above."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
