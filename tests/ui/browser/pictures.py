"""Takes the pictures of the documentation: ``make pictures-ui`` writes docs/pictures/ui-*.png.

They show the runs of ``story.py``, with the kills, the question and the doubt of that story, and of
an example that asks a model.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from conftest import BROWSER, WITHOUT, Story, sync_playwright

ROOT = pathlib.Path(__file__).parents[3]
SIZE = {"width": 1280, "height": 860}
LABELS = ("write_article", "answer_ticket", "bill", "summarize", "answer_letter")
PLAIN = """() => {
  for (const each of document.querySelectorAll(".store")) { each.textContent = "disk:.stepwise"; }
  document.querySelector("footer").remove();
}"""


def pictures(page, target, root):
    """Take each picture of a served store."""

    def take(name, address, below):
        page.goto(root + address)
        page.locator(below).evaluate("e => scrollTo(0, e.offsetTop - 12)")
        page.evaluate(PLAIN)
        page.screenshot(path=target / f"ui-{name}.png")

    page.goto(root)
    found = {
        each.inner_text().partition("(")[0].strip(): each.get_attribute("href")
        for each in page.locator("a.call").all()
    }
    page.goto("about:blank")
    take("runs", "/", "header.top")
    take("inbox", "/inbox", "header.top")
    article = found["write_article"]
    take("run", f"{article}?step=6", "main")
    model = next(href for label, href in found.items() if label not in LABELS)
    take("model", f"{model}?step=4", "[data-live=step]")
    take("branches", "/runs/letter", "[data-live=branches]")
    page.emulate_media(color_scheme="dark")
    take("run-dark", f"{article}?step=6", "main")


def main(target):
    """Write the pictures into a folder."""
    if BROWSER is None:
        sys.exit(WITHOUT)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        story = Story(pathlib.Path(name))
        shutil.copy(ROOT / "examples" / "instrumented_agent.py", name)
        for each in ("failed", "branched", "killed", "killed", "asked", "paid"):
            story.play(each)
        command = [sys.executable, "instrumented_agent.py"]
        subprocess.run(command, check=True, cwd=name, env=story.environment, capture_output=True)
        with story.served(), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            page = browser.new_page(color_scheme="light", viewport=SIZE)
            page.goto(story.address)
            pictures(page, target, story.root)
            browser.close()
    for each in sorted(target.glob("ui-*.png")):
        print(each, f"{each.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
