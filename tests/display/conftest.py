"""A browser, for the pages that are looked at in one."""

import shutil
import subprocess

import pytest


@pytest.fixture
def browse(tmp_path):
    """Have a browser open a page, in light or dark; what it prints."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(names)} is here")

    def opened(body, *options, dark=False, fragment=""):
        page = tmp_path / "page.html"
        ground = "<style>@media (prefers-color-scheme:dark){body{background:#111}}</style>"
        whole = body if body.startswith("<!doctype") else f"<!doctype html>{ground}{body}"
        marked = whole.replace("<!doctype html>", "<!doctype html><meta charset=utf-8>", 1)
        page.write_text(marked, "utf-8")
        done = subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={tmp_path / 'profile'}", "--window-size=800,400",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}",
             *options, f"{page.as_uri()}{fragment}"],
            check=True, capture_output=True, timeout=300, text=True,
        )  # fmt: skip
        return done.stdout

    return opened
