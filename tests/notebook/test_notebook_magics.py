"""``%%step``, ``%stepwise`` and ``%resume`` in real kernels, killed and started again."""

import os
import signal
import sys
import textwrap

import pytest
from kernels import Notebook

import stepwise


@pytest.fixture(scope="module")
def shared_notebook(tmp_path_factory):
    """A notebook whose kernel serves the tests that need no other one, and the kernel."""
    folder = tmp_path_factory.mktemp("notebook")
    made = Notebook(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STEPWISE_QUIET", "JPY_SESSION_NAME"):
            patch.delenv(name, raising=False)
        patch.setenv("STEPWISE_HOME", str(folder / "home"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        kernel = made.start()
    yield made, kernel
    made.close()


@pytest.fixture
def shared(shared_notebook):
    """That notebook and its kernel, in which nothing is noted."""
    (shared_notebook[0].folder / "done.txt").unlink(missing_ok=True)
    return shared_notebook


pytestmark = pytest.mark.filterwarnings("ignore")  # of Jupyter's; those of the kernel are output

LOAD = """
    %%step load
    import sys
    from IPython.display import HTML, display
    done("load")
    rows = [{"n": number} for number in range(4)]
    print("loading")
    print("careful", file=sys.stderr)
    display(HTML("<b>table</b>"))
    len(rows)
"""
SUM = """
    %%step
    done("sum")
    total = sum(row["n"] for row in rows)
    total
"""
BLOCK = """
    %%step
    done("block")
    block()
    answer = total * 7
"""


# -- skipped ---------------------------------------------------------------------------------------


def test_killed_and_run_all(notebook):
    """After kill -9 all cells run again: those done are skipped, with variables and output."""
    before = notebook.killed_in(LOAD, SUM, BLOCK)
    kernel = notebook.start()
    after = [kernel.run(LOAD), kernel.run(SUM)]
    assert [each.all for each in after] == [each.all for each in before]
    assert after[0].lines == [("stdout", "loading"), ("stderr", "careful")]
    assert [each.get("text/html") for each in after[0].data] == ["<b>table</b>", None]
    assert [each.skipped for each in after] == [True, True]
    assert not kernel.run(BLOCK).skipped
    assert kernel.run("print(answer, rows[3], sys.byteorder, display.__name__)").text == (
        f"42 {{'n': 3}} {sys.byteorder} display"
    )
    assert notebook.done() == ["load", "sum", "block", "block"]


def test_notices_do_not_look_like_errors(notebook):
    """A notice is an output of its own: nothing is on stderr, no cell keeps it."""
    cell = """
        @stepwise.workflow
        def one(text):
            return text
        for _ in range(2):
            one.options(run_id="one")("<b>")
    """
    step = "%%step tells\nstepwise._runtime.messages.notice('by the way')\nprint('done')"
    kernel = notebook.start()
    shown = kernel.run(cell)
    assert [each.partition(" at ")[0] for each in shown.notices] == [
        "stepwise: one already completed"
    ]
    assert (shown.lines, shown.red, shown.data) == ([], [], [])
    assert "stepwise: one already completed" in shown.looks[0]
    assert shown.looks[0].startswith("<div style=")
    assert kernel.run(step).notices == ["stepwise: by the way"]
    again = kernel.run(step)
    assert (again.lines, len(again.notices), again.skipped) == ([("stdout", "done")], 1, True)
    warned = kernel.run("import warnings; warnings.warn('look')")
    assert ("stderr", True) in [(stream, "look" in line) for stream, line in warned.lines]
    assert kernel.run("stepwise.configure(quiet=True); one.options(run_id='one')('<b>')").all == (
        [],
        [{"text/plain": "'<b>'"}],
    )


def test_edited(notebook):
    """A cell runs again when its code or an input has changed, not for comments and layout."""
    kernel = notebook.start(LOAD, SUM)
    assert kernel.run(LOAD).skipped
    assert kernel.run(SUM.replace("total = sum(", "# all of them\n    total = sum( ")).skipped
    assert kernel.run(SUM.replace("total = ", "total = 10 + ")).text == "16"
    kernel.run("rows = [{'n': 50}]")
    assert kernel.run(SUM).text == "50"
    assert kernel.run(LOAD).skipped
    assert kernel.run(SUM).skipped
    assert kernel.run("total").text == "6"
    assert notebook.done() == ["load", "sum", "sum", "sum"]


def test_helpers(shared):
    """An edited function or class of the notebook runs again the cells that use it."""
    helper = "def outer(x):\n    return inner(x)\ndef inner(x):\n    return x + 1"
    use = "%%step\ndone('use')\nouter(K().k)"
    _, kernel = shared
    kernel.run(helper)
    kernel.run("class K:\n    k = 1")
    assert kernel.run(use).text == "2"
    assert kernel.run(use).skipped
    kernel.run(helper.replace("+ 1", "+ 2"))
    assert kernel.run(use).text == "3"
    kernel.run("class K:\n    k = 10")
    assert kernel.run(use).text == "12"
    kernel.run(helper)
    kernel.run("class K:\n    'documented'\n    k = 1")
    assert kernel.run(use).skipped


def test_raised(shared):
    """A cell that raises is not done; its traceback shows its line, and little of ours."""
    cell = "%%step bad\ndone('bad')\nratio = 1 / len(rows)"
    notebook, kernel = shared
    kernel.run("rows = []")
    told = kernel.fail(cell)
    assert "----> 3" in told
    assert "ZeroDivisionError" in told
    assert "_perform" not in told
    assert "ZeroDivisionError" in kernel.fail(cell)
    kernel.run("rows = [1]")
    kernel.run(cell)
    assert kernel.run(cell).skipped
    assert notebook.done() == ["bad"] * 3


def test_await(notebook):
    """A cell with ``await`` at its top level is a step like any other."""
    cell = """
        %%step fetch --out values
        import asyncio
        done("fetch")
        async def fetch(n):
            await asyncio.sleep(0)
            return n
        values = await asyncio.gather(fetch(1), fetch(2))
        print("fetched")
        values
    """
    first = notebook.start().run(cell)
    second = notebook.start().run(cell)
    assert first.text == "fetched\n[1, 2]"
    assert second.all == first.all
    assert second.skipped
    assert notebook.done() == ["fetch"]


def test_interrupted(notebook):
    """The kernel's interrupt stops such a cell, and the same kernel can run it again."""
    cell = "%%step\ndone('it')\nblock()"
    notebook.block()
    kernel = notebook.start(at_now=signal.SIGINT)
    assert "KeyboardInterrupt" in kernel.fail(cell)
    os.unlink(notebook.folder / "fifo")
    kernel.run(cell)
    assert kernel.run(cell).skipped
    assert notebook.done() == ["it", "it"]


def test_what_is_restored(notebook):
    """Classes keep their identity; what a cell changed or deleted of its inputs is as it was."""
    before = "items, old = [1], 'x'"
    cell = """
        %%step
        import enum, textwrap as tw
        class Colour(enum.Enum):
            RED = 1
        def paint():
            return Colour.RED
        paints = [paint()]
        items.append(tw.dedent(" 2"))
        del old
    """
    check = "paints[0] is Colour.RED is paint(), items, 'old' in globals(), tw.__name__"
    first = notebook.start(before, cell).run(check)
    kernel = notebook.start(before)
    assert kernel.run(cell).skipped
    assert kernel.run(check).text == first.text == "(True, [1, '2'], False, 'textwrap')"


def test_steps_inside(notebook):
    """What a killed cell had done inside is not done again; another cell may do the same."""
    tool = """
        @stepwise.tool(side_effect=True)
        def send(to):
            done("send-" + to)
            return to
    """
    both = "%%step\nfirst = send('ann')\nblock()\nsecond = send('bob')\n"
    notebook.killed_in("%%step\n" + textwrap.dedent(tool), both)
    kernel = notebook.start("%%step\n" + textwrap.dedent(tool), both)
    assert notebook.done() == ["send-ann", "send-bob"]
    kernel.run("%%step again\nfirst = send('ann')")
    assert notebook.done() == ["send-ann", "send-bob", "send-ann"]
    run = stepwise.runs()[0]
    keys = [each.idempotency_key for each in run.steps if each.side_effect]
    assert len(set(keys)) == 3
    assert run.status == "completed"


def test_a_workflow_inside(notebook):
    """A workflow that a killed cell was executing goes on, too."""
    define = """
        %%step define
        @stepwise.step
        def read(page):
            done(f"page{page}")
            return page
        @stepwise.workflow
        def agent():
            pages = []
            for page in range(4):
                pages.append(read(page))
                if page == 2:
                    block()
            return pages
    """
    call = "%%step\nfound = agent()\nfound"
    notebook.killed_in(define, call)
    kernel = notebook.start()
    assert kernel.run(define).skipped
    shown = kernel.run(call)
    assert shown.text == "now\n[0, 1, 2, 3]"
    assert shown.notices == []
    assert notebook.done() == ["page0", "page1", "page2", "page3"]
    kernel.run("%reload_ext stepwise")
    assert kernel.run(call).skipped


# -- what can go wrong -----------------------------------------------------------------------------


def test_not_recordable(shared):
    """A variable that cannot be pickled is named, with the way out; the notebook goes on."""
    cell = "%%step\nimport sqlite3\nlink = sqlite3.connect(':memory:')\ncount = 3"
    _, kernel = shared
    told = kernel.run(cell).text
    assert "variable 'link' is a sqlite3.Connection" in told
    assert "%%step --out count)" in told
    assert not kernel.run(cell).skipped
    kept = cell.replace("%%step", "%%step --out count")
    kernel.run(kept)
    assert kernel.run(kept).skipped


def test_not_comparable(shared):
    """An input that cannot be compared is left out with a notice; named by --in, it is refused."""
    _, kernel = shared
    kernel.run("import threading\nlock, n = threading.Lock(), 2")
    cell = "%%step\nwith lock:\n    double = n * 2"
    assert "reads 'lock', a lock that cannot be compared" in kernel.run(cell).notices[0]
    assert kernel.run(cell).skipped
    assert "--in lock:" in kernel.fail(cell.replace("%%step", "%%step --in lock"))


def test_mistakes(shared):
    """Options that cannot mean anything are refused with a line, before the cell runs."""
    notebook, kernel = shared
    kernel.run("rows = [1]")
    assert "did you mean 'rows'?" in kernel.fail("%%step --in row\ndone('x')")
    assert "'a-b' is not the name of a variable" in kernel.fail("%%step --out a-b\ndone('x')")
    assert "unrecognized arguments" in kernel.fail("%%step a --nothing\ndone('x')")
    assert "SyntaxError" in kernel.fail("%%step\n1 +")
    assert "there is no run 'nope'" in kernel.fail("%stepwise show nope")
    assert "forget RUN [STEP]" in kernel.fail("%stepwise forget")
    assert notebook.done() == []


def test_options(shared):
    """--in and --out say what counts and what is kept; --fresh runs a cell that is done."""
    _, kernel = shared
    kernel.run("a, b = 1, 2")
    cell = "%%step --in a --out c\ndone('c')\nc = a + b\nd = 5"
    kernel.run(cell)
    kernel.run("b = 3; del d")
    assert kernel.run(cell).skipped
    assert kernel.run("c, 'd' in globals()").text == "(3, False)"
    kernel.run(cell.replace("%%step", "%%step --fresh"))
    assert kernel.run("del c\n" + "1").text == "1"
    assert kernel.run(cell).skipped
    assert kernel.run("c").text == "4"
    assert "--out e: the cell" in kernel.fail("%%step --out e\nf = 1")


def test_two_kernels(notebook):
    """While a kernel executes a cell, another one of the notebook is told so; else both work."""
    notebook.block()
    busy = notebook.start(LOAD)
    other = notebook.start()
    assert other.run(LOAD).skipped
    blocked = "%%step\nblock()"
    busy.kc.execute(blocked)
    while "now" not in (busy.hear()["content"].get("text") or ""):
        pass
    told = other.fail("%%step\nx = 1")
    assert f"a cell of this notebook is being executed by process {busy.pid} on " in told
    assert other.run(LOAD).skipped
    os.kill(busy.pid, signal.SIGKILL)
    busy.km.provisioner.process.wait()
    other.run("%%step\nx = 1")


def test_two_notebooks(notebook, monkeypatch):
    """Notebooks are told apart by their paths."""
    monkeypatch.setenv("JPY_SESSION_NAME", "/work/one.ipynb")
    notebook.start(LOAD)
    monkeypatch.setenv("JPY_SESSION_NAME", "/work/two.ipynb")
    assert not notebook.start().run(LOAD).skipped
    assert [run.label for run in stepwise.runs()] == ["two", "one"]
    assert stepwise.runs()[0].workflow == "/work/two.ipynb:notebook"


# -- looking ---------------------------------------------------------------------------------------


def test_looking(notebook):
    """%stepwise lists, shows and forgets; %resume takes over the variables of a run."""
    kernel = notebook.start(LOAD, SUM)
    shown = kernel.run("%stepwise show")
    assert "load" in shown.text
    assert '<div class="stepwise">' in shown.data[0]["text/html"]
    assert "completed" in kernel.run("%stepwise runs").text
    assert "no runs" in kernel.run("%stepwise runs failed").text
    kernel.run("%stepwise forget . load")
    assert kernel.run(SUM).skipped
    assert not kernel.run(LOAD).skipped
    kernel.fail("""
        @stepwise.step
        def one():
            return 1
        @stepwise.workflow
        def flow(n):
            found = [one()] * n
            raise ValueError(found)
        flow(2)
    """)
    assert "'found': [1, 1]" in kernel.run("%stepwise locals flow").text
    assert (
        "its variables after 1 step, at cell:6, are here: " in kernel.run("%resume flow").notices[0]
    )
    assert kernel.run("found, n").text == "([1, 1], 2)"
    kernel.run("%stepwise forget flow")
    assert "there is no run" in kernel.fail("%resume flow")


def test_display_hooks(notebook):
    """What is shown after a cell's code (figures), updated and cleared is recorded as it ended."""
    cell = """
        %%step
        from IPython.display import clear_output, display
        print("gone")
        clear_output(wait=True)
        handle = display("first", display_id="it")
        handle.update("second")
        "quiet";
    """
    setup = """
        from IPython.display import display
        figures = []
        get_ipython().events.register(
            "post_execute", lambda: figures and display(figures.pop())
        )
    """
    draw = "%%step --out n\nn = 1\nfigures.append('figure')"
    for _ in range(2):
        kernel = notebook.start(setup)
        drawn = kernel.run(draw)
        assert [each["text/plain"] for each in drawn.data] == ["'figure'"]
    assert drawn.skipped
    assert not kernel.run(cell).skipped
    again = kernel.run(cell)
    assert again.skipped
    assert [each["text/plain"] for each in again.data] == ["'second'"]
    assert again.lines == []


def test_without_ipython(monkeypatch):
    """Where IPython is missing, the error names the extra that brings it."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "IPython"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("stepwise.notebook._magics", "stepwise.notebook"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(stepwise.ConfigurationError, match=r"stepwise-agents\[notebook\]"):
        _ = stepwise.load_ipython_extension
