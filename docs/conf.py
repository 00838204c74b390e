"""Sphinx's configuration of the site: ``make docs``."""

from __future__ import annotations

import configparser
import pathlib
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import stepwise  # noqa: E402 -- the checkout's

_metadata = configparser.ConfigParser()
_metadata.read(ROOT / "setup.cfg", encoding="utf-8")
REPOSITORY = _metadata["metadata"]["url"]

project = "stepwise"
author = "the stepwise authors"
project_copyright = "the stepwise authors"
version = release = stepwise.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "from_code",
    "llms",
]
source_suffix = {".md": "markdown"}
default_role = "code"
smartquotes_action = "qe"  # -- begins an option
nitpick_ignore_regex = [
    ("py:.*", r"(?!stepwise\b).*"),  # no inventories of others: the build needs no network
    ("py:.*", r"stepwise\.(.*\.)?_.*"),
    ("py:.*", r"stepwise\.stores\.base\..*"),
]

myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text says it; the annotations name private aliases
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"stepwise {version}"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
html_show_copyright = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "github-dark"

_LINK = re.compile(r"(?<=\]\()(\.\.?/[^)#\s]*)(#[^)\s]*)?(?=\))")


def to_repository(_: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links to files outside of ``docs/`` into links to the repository."""
    folder = (HERE / docname).parent

    def instead(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        if path.is_relative_to(HERE) or not path.exists():  # Sphinx says what is not there
            return found[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{path.relative_to(ROOT)}{found[2] or ''}"

    source[0] = _LINK.sub(instead, source[0])


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("source-read", to_repository)
