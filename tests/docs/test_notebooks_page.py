"""``docs/how-to/notebooks.md`` is true: its cells are executed in order, and show what it says."""

import html
import pathlib
import re
import signal
import time

from stepwise._display.progress import Doing, Output
from stepwise._runtime.event import Event

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/how-to/notebooks.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
CELLS = [text for kind, text in BLOCKS if kind == "python"]
SHOWN = [text for kind, text in BLOCKS if kind == "text" and not text.startswith("●")]
PROGRESS = next(text for kind, text in BLOCKS if text.startswith("●"))


def normal(text):
    """Without what differs from one time to the next: ids, times, and where lines are broken."""
    text = re.sub(r"(?s)^.*?(?=RunWarning)", "", text)
    text = re.sub(r"(?m)^ *# %%step.*$", "", text)  # the line that a warning points at
    text = re.sub(r"-[0-9a-f]{12}\b", "-ID", text)
    text = re.sub(r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "WHEN", text)
    text = re.sub(r"\d+(\.\d+)? m?s\b", "TIME", text)
    return " ".join(text.split())


def test_the_page_is_what_happens(notebook, monkeypatch):
    """Every cell of the page shows what the page says, the kernel being killed after the second."""
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook.folder / "sales.ipynb"))
    load, slow, link, rows, show = CELLS
    kernel = notebook.start()
    kernel.run("%unload_ext stepwise")
    told = [said(kernel.run(each)) for each in (load, slow)]
    kernel.signal(signal.SIGKILL)
    kernel.km.provisioner.process.wait()
    kernel = notebook.start()
    kernel.run("%unload_ext stepwise")
    told += [said(kernel.run(each)) for each in (load, slow, link, rows, show)]
    assert [normal(each) for each in told if each] == [normal(each) for each in SHOWN]


def said(shown):
    return "\n".join([*shown.notices, shown.text]).strip()


def test_progress_looks_so():
    """The display of progress says what the page shows."""
    doing = Doing("run", "cell 'read'", cell=True)
    doing._began = time.monotonic() - 12.5
    doing.hear(event("step_started", 1, "read"))
    doing.hear(event("step_started", 2, "research", "start='index.html'"))
    doing.hear(event("step_answered", 3, "read", skipped=1))
    doing.hear(event("step_completed", 4, "read", executed=3, skipped=1))
    doing.hear(event("step_started", 5, "read", "page='moon.html'", executed=3, skipped=1))
    page = Output(doing, None).html().replace("<br>", "\n")
    page = re.sub(r"(?s)<style>.*?</style>|<small class=.late.>.*?</small>|<[^>]+>", "", page)
    assert [" ".join(line.split()) for line in html.unescape(page).splitlines()] == [
        " ".join(line.split()) for line in PROGRESS.splitlines()
    ]


def event(kind, step, name="", arguments="", **counts):
    return Event(kind, "run", "notebook", step=step, name=name, arguments=arguments, **counts)
