"""Pages that need a server: executed with the real address in the place of the one they show."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))

from pages import ROOT, Page, blocks


class PageWith(Page):
    """A page of ``docs/``; ``<!-- executed by ... -->`` in it names the test that is this one.

    Args:
        name: below ``docs/``.
        instead: what stands in its place while it is executed, by the text that the page shows.
    """

    def __init__(self, name, instead):
        super().__init__(ROOT / "docs" / name)
        self.instead = instead
        text = self.text.replace("<!-- executed by", "<!-- this is")
        for shown, real in instead.items():
            text = text.replace(shown, real)
        self.text, self.blocks = text, blocks(text)
