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
SIZES = {"wide": (1280, 860), "phone": (390, 844)}


def pictures(page, target, root):
    """Take each picture of a served store."""

    def take(name, address, *, size="wide", below=""):
        page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
        page.goto(root + address)
        if below:
            page.locator(below).evaluate("e => scrollTo(0, e.offsetTop - 12)")
        page.wait_for_load_state("networkidle") if not below else None
        page.screenshot(path=target / f"ui-{name}.png")

    page.goto(root + "/?q=children:no")
    found = {
        each.inner_text().partition("(")[0].strip(): each.get_attribute("href")
        for each in page.locator("a.call").all()
    }
    page.goto("about:blank")
    take("runs", "/", below="header.top")
    take("inbox", "/inbox", below="header.top")
    article = found["write_article"]
    take("run", f"{article}?step=6", below="main")
    take("phone", f"{article}?step=6", size="phone", below="[data-live=timeline]")
    take("fork", f"{article}/fork?step=6", below="header.top")
    model = next(href for label, href in found.items() if label not in LABELS)
    take("model", f"{model}?step=4", below="[data-live=step]")
    page.emulate_media(color_scheme="dark")
    take("run-dark", f"{article}?step=6", below="main")


LABELS = ("write_article", "answer_ticket", "bill", "summarize")


def main(target):
    """Write the pictures into a folder."""
    if BROWSER is None:
        sys.exit(WITHOUT)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        story = Story(pathlib.Path(name))
        shutil.copy(ROOT / "examples" / "instrumented_agent.py", name)
        for each in ("failed", "killed", "killed", "asked", "paid"):
            story.play(each)
        command = [sys.executable, "instrumented_agent.py"]
        subprocess.run(command, check=True, cwd=name, env=story.environment, capture_output=True)
        with story.served(), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            page = browser.new_page(color_scheme="light")
            page.goto(story.address)
            pictures(page, target, story.root)
            browser.close()
    for each in sorted(target.glob("ui-*.png")):
        print(each, f"{each.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
