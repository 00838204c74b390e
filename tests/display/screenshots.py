"""Takes pictures of an exported run: ``make screenshots`` writes build/screenshots/.

Light and dark, wide and as narrow as a phone, folded and unfolded, and as printed; the run was
killed twice on the way.  Needs chromium, which the project does not install.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM = '''"""Write an article; the process is killed in its first two attempts."""

import os
import pathlib
import signal
import sys
import time

import stepwise
from stepwise import step, tool, workflow

ATTEMPT = int(sys.argv[1])
TRIED = pathlib.Path("tried")


def die_in(attempt):
    if attempt == ATTEMPT:
        os.kill(os.getpid(), signal.SIGKILL)


@step(retries=3, backoff=0.02)
def research(topic, depth=2):
    time.sleep(len(topic) / 100)
    if topic == "currents" and not TRIED.exists():
        TRIED.touch()
        raise ConnectionError("the search engine did not answer")
    return {"topic": topic, "sources": [f"https://example.org/{topic}/{n}" for n in range(depth)]}


@step
def outline(notes, style):
    time.sleep(0.03)
    return [f"{number}. {each['topic']}" for number, each in enumerate(notes, 1)]


@step
def check(draft):
    time.sleep(0.02)
    return f"{len(draft)} characters, <b>no</b> mistakes"


@workflow
def review(draft):
    return "looks good: " + check(draft)


@tool(side_effect=True)
def publish(title, body):
    time.sleep(0.04)
    return f"published as /{title.lower()}"


@step
def archive(path):
    raise PermissionError(13, "Permission denied", path)


@workflow(retention="all")
def write_article(title, topics):
    notes = stepwise.map(research, topics, max_workers=3)
    die_in(1)
    plan = outline(notes, style="vivid")
    draft = "\\n".join(plan)
    die_in(2)
    verdict = review(draft)
    where = publish(title, draft)
    archive(f"/var/archive/{where}")
    return where, verdict


write_article("Tides", ["tides", "winds", "currents", "waves and swell", "moon"])
'''
FRAME = (
    '<!doctype html><body style="margin:0"><iframe width=390 height={} src="{}" style="border:0">'
)


def export(folder):
    """Return the page of the run that the program makes."""
    (folder / "article.py").write_text(PROGRAM)
    environment = {**os.environ, "STEPWISE_HOME": str(folder / "home"), "STEPWISE_QUIET": "1"}
    how = {"cwd": folder, "env": environment, "capture_output": True}
    for attempt in "123":
        subprocess.run([sys.executable, "article.py", attempt], check=False, **how)
    command = [sys.executable, "-m", "stepwise", "export", "write_article"]
    return subprocess.run(command, check=True, **how).stdout.decode()


def main(target):
    """Write the pictures into a folder."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folded = export(folder)
        pages = {"folded": folded, "unfolded": folded.replace("<details ", "<details open ")}
        for kind, text in pages.items():
            (folder / f"{kind}.html").write_text(text, "utf-8")
            (folder / f"{kind}-phone.html").write_text(FRAME.format(5000, f"{kind}.html"))

        def browse(page, *options):
            quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            profile = f"--user-data-dir={folder / 'profile'}"
            command = [browser, *quiet, profile, *options, (folder / f"{page}.html").as_uri()]
            subprocess.run(command, check=True, capture_output=True)

        for kind in pages:
            for scheme, number in {"dark": 0, "light": 1}.items():
                for page, size in {kind: "1100,1700", f"{kind}-phone": "500,5000"}.items():
                    picture = target / f"export-{page}-{scheme}.png"
                    colours = f"--blink-settings=preferredColorScheme={number}"
                    browse(page, colours, f"--window-size={size}", f"--screenshot={picture}")
        browse("folded", f"--print-to-pdf={target / 'export.pdf'}", "--no-pdf-header-footer")
    print(*sorted(map(str, target.iterdir())), sep="\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
