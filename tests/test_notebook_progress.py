"""What a run is doing, shown in a notebook while it does it: by real kernels.

Times decide nothing: a cell waits at a FIFO until the display says what is expected.
"""

import html.parser
import os
import re
import signal

import pytest

DEFINE = """
    import time
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
    first = kernel.hear_progress("agent(pages=['<p1>', '<p2>', '<p3>']) running · 1 step · 0:0")
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
    """A run that goes on says how many steps it skipped; one that fails says so."""
    kernel.begin("agent(['<p1>', '<p2>', 'fail'])")
    kernel.hear_progress("read(page='<p2>')")
    kernel.signal(signal.SIGINT)
    assert "● stopped agent" in visible(shown(kernel.hear_end()))
    kernel.begin("agent(['<p1>', '<p2>', 'fail'])")
    kernel.hear_progress("1 step · 1 of them skipped, since done before · 0:0")
    let_go(notebook)
    assert re.search(
        "● failed agent.* 3 steps · 1 of them skipped", visible(shown(kernel.hear_end()))
    )


def test_a_cell(notebook, kernel):
    """A ``%%step`` cell shows, unasked, what it and the runs in it do; that is not recorded."""
    cell = "%%step slow\nprint('mine')\nfound = agent(['<p1>', '<p2>', '<p3>'])\nprint('too')"
    kernel.begin(cell)
    kernel.hear_progress("cell 'slow' running · 1 step · 0:0", "agent(", "; read(page='<p2>')")
    let_go(notebook)
    assert "● completed cell 'slow' 4 steps · 0:" in visible(shown(kernel.hear_end()))
    again = notebook.start(DEFINE).run(cell)
    assert again.skipped
    assert again.lines == [("stdout", "mine"), ("stdout", "now"), ("stdout", "too")]
    assert again.data == again.progress == []


def test_a_cell_that_awaits(notebook, kernel):
    """So does one with ``await``; a cell that was killed says what was skipped of it."""
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


def test_captured(notebook, kernel):
    """Where the output of a cell is captured, nothing is shown, and nothing captured either."""
    kernel.begin("""
        %%capture captured
        import threading
        threading.Timer(1.5, lambda: open("fifo", "w").close()).start()
        count = agent(["<p2>"])
    """)
    messages = kernel.hear_end()
    assert shown(messages) == ""
    assert kernel.run("captured.outputs, captured.stdout").text == "([], 'now\\n')"


def test_only_where_it_is_wanted(notebook, kernel, monkeypatch):
    """``STEPWISE_PROGRESS`` turns it on for all workflows, and 0 turns it off for cells."""
    plain = DEFINE.replace("(progress=True)", "")
    wait = "import threading; threading.Timer(1.5, lambda: open('fifo', 'w').close()).start()\n"
    kernel.run(plain)
    assert kernel.run(f"{wait}agent(['<p2>'])").progress == []
    kernel.run("%env STEPWISE_PROGRESS=0")
    assert kernel.run(f"%%step\n{wait}agent(['<p2>'])").progress == []
    kernel.run("%env STEPWISE_PROGRESS=1")
    kernel.begin("agent(['<p2>'])")
    kernel.hear_progress("read(page='<p2>')")
    let_go(notebook)
    kernel.hear_end()


def test_quick(notebook):
    """Many quick steps make a few versions of the display only."""
    kernel = notebook.start(DEFINE)
    kernel.begin("""
        @stepwise.workflow(progress=True, checkpoint_every=10_000, durability="os")
        def many():
            began = time.monotonic()
            while time.monotonic() < began + 2.5:
                read("a")
        many()
    """)
    messages = kernel.hear_end()
    versions = [each for each in messages if "stepwise" in each["content"].get("metadata", {})]
    assert 1 <= len(versions) <= 100  # of hundreds of steps
    assert all(len(each["content"]["data"]["text/html"]) < 3_000 for each in versions)


def test_values_are_escaped(notebook, kernel):
    """Names and values are shown as text, shortened, whatever is in them."""
    kernel.begin("agent(['<script>alert(1)</script>', chr(27) + '[31m', 'x' * 9_999_999, '<p2>'])")
    page = kernel.hear_progress("read(page='<p2>')")["content"]["data"]["text/html"]
    let_go(notebook)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert len(page) < 4_000
    kernel.hear_end()
