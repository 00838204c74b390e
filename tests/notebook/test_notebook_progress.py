"""What a run is doing, shown in a notebook while it does it: by real kernels.

Times decide nothing: a cell waits at a FIFO until the display says what is expected.
"""

import html.parser
import os
import re
import signal
import types

import pytest

import stepwise
from stepwise._display.progress import Display, Doing, Output

DEFINE = """
    @stepwise.step
    def read(page):
        if page in ("<p2>", "wait"):
            block()
        return page
    @stepwise.workflow(progress=True)
    def agent(pages):
        for page in pages:
            read(page)
        if "fail" in pages:
            raise ValueError("it failed")
        return len(pages)
"""


@pytest.fixture
def kernel(notebook):
    notebook.block()
    return notebook.start(DEFINE)


def let_go(notebook):
    """The cell that waits goes on."""
    os.close(os.open(notebook.folder / "fifo", os.O_WRONLY))
    os.unlink(notebook.folder / "fifo")


def shown(messages):
    """What the display says in the end, as HTML."""
    said = [m["content"] for m in messages if "stepwise" in m["content"].get("metadata", {})]
    return said[-1]["data"]["text/html"] if said else ""


def visible(page):
    """The text of HTML, without its styles."""
    texts, parser = [], html.parser.HTMLParser()
    parser.handle_data = texts.append
    parser.feed(re.sub("<style>.*?</style>", "", page, flags=re.DOTALL))
    return "".join(texts)


def test_a_workflow(notebook, kernel):
    """A workflow shows the step, the count and the time in one output; then how it ended."""
    kernel.begin("print('before'); agent(['<p1>', '<p2>', '<p3>'])")
    first = kernel.hear_progress("agent(pages=['<p1>', '<p2>', '<p3>']) running · 1 step · 0:")
    assert first["msg_type"] == "display_data"
    assert "● running" in visible(first["content"]["data"]["text/html"])
    assert "→ read(page='<p2>')" in visible(first["content"]["data"]["text/html"])
    let_go(notebook)
    messages = kernel.hear_end()
    updates = [each for each in messages if "stepwise" in each["content"].get("metadata", {})]
    assert {each["msg_type"] for each in updates} == {"update_display_data"}
    idents = {each["content"]["transient"]["display_id"] for each in [first, *updates]}
    assert len(idents) == 1
    assert re.search("● completed agent.* 3 steps · 0:", visible(shown(messages)))
    assert "→" not in visible(shown(messages))


def test_after_a_resume(notebook, kernel):
    """A run that resumes says how many steps it skipped; one that fails says so."""
    kernel.begin("agent(['<p1>', '<p2>', 'fail'])")
    kernel.hear_progress("read(page='<p2>')")
    kernel.signal(signal.SIGINT)
    assert "● interrupted agent" in visible(shown(kernel.hear_end()))
    kernel.begin("agent(['<p1>', '<p2>', 'fail'])")
    kernel.hear_progress("1 step · 1 of them skipped, since done before · 0:")
    let_go(notebook)
    assert re.search(
        "● failed agent.* 3 steps · 1 of them skipped", visible(shown(kernel.hear_end()))
    )


def test_a_cell(notebook, kernel):
    """A ``%%step`` cell shows, unasked, what it and the runs in it do; that is not recorded."""
    cell = "%%step slow\nprint('mine')\nfound = agent(['<p1>', '<p2>', '<p3>'])\nprint('too')"
    kernel.begin(cell)
    kernel.hear_progress("cell 'slow' running · 1 step · 0:", "agent(", "; read(page='<p2>')")
    let_go(notebook)
    assert "● completed cell 'slow' 4 steps · 0:" in visible(shown(kernel.hear_end()))
    again = notebook.start(DEFINE).run(cell)
    assert again.skipped
    assert again.lines == [("stdout", "mine"), ("stdout", "now"), ("stdout", "too")]
    assert again.data == again.progress == []


def test_a_cell_that_awaits(notebook, kernel):
    """A cell with ``await`` shows what it does; after a kill, also what was skipped of it."""
    cell = """
        %%step
        import asyncio
        read("<p1>")
        found = await asyncio.to_thread(read, "wait")
    """
    kernel.begin(cell)
    kernel.hear_progress("cell 'found' running · 1 step", "read(page='wait')")
    kernel.signal(signal.SIGKILL)
    kernel.km.provisioner.process.wait()
    again = notebook.start(DEFINE)
    again.begin(cell)
    again.hear_progress("cell 'found' running · 1 step · 1 of them skipped")
    let_go(notebook)
    assert "● completed cell 'found' 2 steps" in visible(shown(again.hear_end()))


def test_a_kernel_that_dies(notebook, kernel):
    """What a killed kernel leaves says from when it is, so that nobody takes it for news."""
    kernel.begin("agent(['<p2>'])")
    left = kernel.hear_progress("read(page='<p2>')")["content"]["data"]
    kernel.signal(signal.SIGKILL)
    assert re.search(r"no news since \d\d:\d\d:\d\d", visible(left["text/html"]))
    assert re.search(r"\(\d\d:\d\d:\d\d\)$", left["text/plain"])


WATCHED = """
    import threading
    ended = []  # the threads of earlier cells may be ending still
    def ours():
        return {t for t in threading.enumerate() if t.name == "stepwise progress"}
    @stepwise.step
    def displays():
        new = ours().difference(ended)
        ended.extend(new)
        return len(new)
    @stepwise.workflow
    def watched():
        return displays()
    @stepwise.workflow(progress=True)
    def always():
        return displays()
"""


def test_only_where_it_is_wanted(notebook):
    """``STEPWISE_PROGRESS`` turns it on for all workflows, and 0 turns it off for cells.

    Where the output of a cell is captured, nothing is shown, and nothing captured either.
    """
    kernel = notebook.start(WATCHED)
    assert kernel.run("watched()").text == "0"
    assert kernel.run("always()").text == "1"
    kernel.run("%%capture captured\nfound = always()")
    assert kernel.run("found, captured.outputs, captured.stdout").text == "(0, [], '')"
    assert kernel.run("%%step\nprint(displays())").text == "1"
    kernel.run("%env STEPWISE_PROGRESS=0")
    assert kernel.run("%%step\nprint(displays(), 'again')").text == "0 again"
    kernel.run("%env STEPWISE_PROGRESS=1")
    assert kernel.run("watched()").text == "1"


def test_quick(monkeypatch):
    """However many quick steps there are, a new version of the display is made at a tick only."""
    monkeypatch.setattr(Output, "tick", 3600)  # the test ticks
    versions = []
    publisher = types.SimpleNamespace(publish=lambda data, *_, **options: versions.append(data))
    doing = Doing("quick", "many()")
    doing._began -= 10  # it has taken a moment
    output = Output(doing, publisher)

    @stepwise.step
    def read(page):
        return page

    @stepwise.workflow(store="memory:")
    def many():
        for _ in range(3):
            for _ in range(100):
                read("a")
            output.ticked()

    display = Display(doing, output)
    many.options(run_id="quick")()
    display.close()
    counts = [re.search(r"(\d+) steps", each["text/plain"])[1] for each in versions]
    assert counts == ["100", "200", "300", "300"]
    assert all(len(each["text/html"]) < 3_000 for each in versions)


def test_values_are_escaped(notebook, kernel):
    """Names and values are shown as text, shortened, whatever is in them."""
    kernel.begin("agent(['<script>alert(1)</script>', chr(27) + '[31m', 'x' * 9_999_999, '<p2>'])")
    page = kernel.hear_progress("read(page='<p2>')")["content"]["data"]["text/html"]
    let_go(notebook)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert len(page) < 4_000
    kernel.hear_end()
