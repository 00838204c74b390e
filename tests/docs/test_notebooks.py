"""The notebooks, run as a person runs them: all cells, the kernel killed or interrupted, again.

A page that the agent is going to read is a FIFO while the kernel is being stopped: opening it
blocks until somebody writes, so the agent cannot get past it, however slow the test is.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import warnings
from collections import Counter

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Jupyter deprecates of its own
    import nbformat
    from jupyter_core.utils import run_sync
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BLOCKED = "harrison.html"  # the fifth of seven pages
PAGES = 7

pytestmark = pytest.mark.filterwarnings("ignore")  # of Jupyter's; those of the kernel are output


class Client(NotebookClient):
    """Runs the cells of a notebook, and sends its kernel a signal when it prints something."""

    def __init__(self, nb, folder, *, at="", send=signal.SIGKILL):
        super().__init__(nb, timeout=300, resources={"metadata": {"path": str(folder)}})
        self._at, self._send = at, send

    def output(self, outs, msg, display_id, cell_index):
        text = msg["content"].get("text", "")
        if self._at and f"{self._at}\n" in text:
            self._at = ""
            os.kill(self.km.provisioner.pid, self._send)
        return super().output(outs, msg, display_id, cell_index)


class Notebook:
    """A copy of the notebook, in a folder of its own with the pages it reads."""

    def __init__(self, folder, name="durable_agent.ipynb"):
        self.folder = folder / "notebooks"
        shutil.copytree(ROOT / "notebooks", self.folder)
        shutil.copytree(ROOT / "examples" / "site", folder / "examples" / "site")
        self._page = folder / "examples" / "site" / BLOCKED
        self._text = self._page.read_text(encoding="utf-8")
        self.nb = nbformat.read(self.folder / name, as_version=4)

    def block(self):
        self._page.unlink()
        os.mkfifo(self._page)

    def unblock(self):
        self._page.unlink()
        self._page.write_text(self._text, encoding="utf-8")

    def client(self, **options):
        return Client(self.nb, self.folder, **options)

    def run_all(self, **options):
        """Run all cells in a new kernel; what they printed."""
        self.client(**options).execute()
        return self.printed()

    def killed_at(self, line):
        """Run all cells in a new kernel that is killed when it prints a line."""
        self.block()
        with pytest.raises(DeadKernelError):
            self.client(at=line).execute()
        self.unblock()
        return self.printed()

    def run_cell(self, client, ident):
        """Run one cell in a kernel that is there; what it printed."""
        index = self.index(ident)
        client.execute_cell(self.nb.cells[index], index)
        return self.printed(ident)

    def index(self, ident):
        return next(i for i, cell in enumerate(self.nb.cells) if cell.id == ident)

    def edit(self, ident, old, new):
        cell = self.nb.cells[self.index(ident)]
        assert cell.source.count(old) == 1
        cell.source = cell.source.replace(old, new)

    def add(self, source):
        self.nb.cells.append(nbformat.v4.new_code_cell(source))

    def printed(self, ident=None):
        cells = self.nb.cells if ident is None else [self.nb.cells[self.index(ident)]]
        outputs = [each for cell in cells for each in cell.get("outputs", ())]
        return "".join(
            each.get("text") or each.get("data", {}).get("text/plain", "") + "\n"
            for each in outputs
        )

    def report(self):
        file = self.folder / "longitude_report.txt"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.delenv("STEPWISE_QUIET")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


@pytest.fixture
def notebook(tmp_path):
    return Notebook(tmp_path)


def done(printed):
    """The steps that printed their line, and how often."""
    lines = [line for line in printed.splitlines() if line.startswith(("read ", "note ", "file "))]
    return Counter(lines)


def test_run_all(notebook):
    """Run from top to bottom in a new kernel, the notebook does its work without an error."""
    printed = notebook.run_all()
    assert set(done(printed).values()) == {1}
    assert len(notebook.report()) == PAGES
    assert "resumes" not in printed


def test_killed_kernel(notebook):
    """A kernel killed in the middle, restarted and run all: the agent resumes at its line."""
    before = notebook.killed_at(f"read {BLOCKED}")
    after = notebook.run_all()
    assert "resumes at cell:6, after 8 steps" in after
    again = done(before) & done(after)
    assert set(again) == {f"read {BLOCKED}"}  # the one it was killed in
    assert len(done(before) | done(after)) == 2 * PAGES + 1
    assert len(notebook.report()) == PAGES


def test_killed_in_the_asynchronous_workflow(notebook):
    """A kernel killed while a cell awaits: of the gathered calls, none is made again that ended."""
    client = notebook.client(at=f"count {BLOCKED}")
    with pytest.raises(DeadKernelError), client.setup_kernel():
        for ident in ("setup", "classes", "steps", "agent", "run"):
            notebook.run_cell(client, ident)
        notebook.block()
        notebook.run_cell(client, "async")
    before = notebook.printed("async").splitlines()
    notebook.unblock()
    assert "already completed" in notebook.run_all()
    after = notebook.printed("async").splitlines()
    assert before[0] == "count index.html"
    assert set(before) & set(after) == {f"count {BLOCKED}"}
    assert len(notebook.report()) == PAGES


def test_identity_of_classes(notebook):
    """Values of classes and enums from cells are instances of the restarted kernel's classes."""
    notebook.killed_at(f"read {BLOCKED}")
    notebook.add("print(type(notes[0]) is Note, notes[0].topic is Topic.SKY, notes[0] == Note(")
    notebook.nb.cells[-1].source += "\n    **vars(notes[0])), {Topic.SKY: 'found'}[notes[0].topic])"
    assert notebook.run_all().endswith("True True True found\n")


@contextlib.contextmanager
def interrupted(notebook):
    """A kernel that was interrupted in the cell ``run``; it continues when that is unblocked."""
    notebook.block()
    client = notebook.client(at=f"read {BLOCKED}", send=signal.SIGINT)
    with client.setup_kernel():
        for ident in ("setup", "classes", "steps", "agent"):
            notebook.run_cell(client, ident)
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            notebook.run_cell(client, "run")
        yield client


def test_interrupted_kernel(notebook):
    """After the kernel's interrupt, the same cell run again in the same kernel resumes."""
    with interrupted(notebook) as client:
        before = done(notebook.printed("run"))
        notebook.unblock()
        after = notebook.run_cell(client, "run")
        assert "resumes at cell:6, after 8 steps" in after
        assert set(before & done(after)) == {f"read {BLOCKED}"}
        assert len(notebook.report()) == PAGES


def test_edited_below(notebook):
    """A cell edited below the line where the agent stopped: it goes on there, with the new code."""
    with interrupted(notebook) as client:
        notebook.unblock()
        notebook.edit("agent", "{note.words} words", "{note.words} words read")
        notebook.run_cell(client, "agent")
        after = notebook.run_cell(client, "run")
    assert "resumes at cell:6, after 8 steps (the code below it was edited)" in after
    assert "read index.html" not in after
    assert all(line.endswith("words read)") for line in notebook.report())


def test_edited_above(notebook):
    """A cell edited above it, and a new kernel: the journal answers what was done, and says so."""
    notebook.killed_at(f"read {BLOCKED}")
    notebook.edit("agent", "[start], {start}, []", "[start], {start, 'scilly.html'}, []")
    after = notebook.run_all()
    assert "replays from the top, 8 steps answered by the journal" in after
    assert "read index.html" not in after
    assert len(notebook.report()) == PAGES - 1


# -- the tutorial ----------------------------------------------------------------------------------

BIRDS = ["wren", "robin", "dunnock", "siskin", "linnet", "twite"]


def test_tutorial(tmp_path):
    """It kills its kernel; run again, it goes on and does the rest once; then nothing is left."""
    notebook = Notebook(tmp_path, "tutorial.ipynb")
    with pytest.raises(DeadKernelError):
        notebook.run_all()
    assert looked_up(notebook, "crash") == BIRDS[:3]
    printed = notebook.run_all()
    assert looked_up(notebook, "crash") == BIRDS[3:]
    assert "resumes at cell:6, after 3 steps" in notebook.printed("crash")
    assert len(displayed(notebook, "crash")[0]["text/plain"].splitlines()) == len(BIRDS)
    assert "3 executed, 3 skipped" in displayed(notebook, "look")[0]["text/plain"]
    assert raised(notebook) == {
        "offline": "ConnectionError",
        "order": "TimeoutError",
        "in-doubt": "StepInDoubtError",
    }
    assert looked_up(notebook, "offline") == ["bittern"]
    assert printed.count("posting") == printed.count("ordering") == 1
    assert printed.count("looking up bittern") == 1
    assert displayed(notebook, "settle") == [{"text/plain": "'order 1187'"}]
    assert "could not be recorded" not in printed
    notes = displayed(notebook, "crash")
    printed = notebook.run_all()
    assert [each for each in ("looking up", "posting", "ordering") if each in printed] == []
    assert displayed(notebook, "crash") == notes
    assert raised(notebook) == {}


def looked_up(notebook, ident):
    """The birds that a cell has looked up."""
    return re.findall(r"^looking up (\w+)$", notebook.printed(ident), re.MULTILINE)


def raised(notebook):
    """The names of the exceptions, by cell."""
    return {
        cell.id: each.ename
        for cell in notebook.nb.cells
        for each in cell.get("outputs", ())
        if each.output_type == "error"
    }


# -- the data analysis -----------------------------------------------------------------------------

CELLS = ["tidy", "seasons", "events", "history", "bootstrap", "histogram"]
SLOW = 4  # of these; its pieces are steps


class Analysis(Notebook):
    """The analysis, with a place where it waits to be killed."""

    def __init__(self, folder):
        super().__init__(folder, "sea_temperature.ipynb")
        self.edit("piece", "time.sleep(PAUSE)", "piece == 4 and open('wait').read()")
        self._wait = self.folder / "wait"

    def killed_at_piece_4(self):
        os.mkfifo(self._wait)
        with pytest.raises(DeadKernelError):
            self.client(at="drawing, piece 4").execute()
        self._wait.unlink()
        self._wait.touch()

    def executed(self):
        """The cells and the pieces that the kernel has executed in the last run of all."""
        told = skipped(self.printed())
        again = self.printed("bootstrap")
        pieces = [] if "bootstrap" in told else re.findall(r"drawing, piece (\d)", again)
        return [each for each in CELLS if each not in told], list(map(int, pieces))


def test_analysis_killed_half_way(tmp_path):
    """Of six cells the four that were done are skipped, of ten pieces the four that were done."""
    notebook = Analysis(tmp_path)
    notebook.killed_at_piece_4()
    assert notebook.executed() == (CELLS, [0, 1, 2, 3, 4])
    before = [displayed(notebook, each) for each in CELLS[:SLOW]]
    printed = notebook.run_all()
    assert notebook.executed() == (CELLS[SLOW:], [4, 5, 6, 7, 8, 9])
    assert skipped(printed) == CELLS[:SLOW]
    assert [displayed(notebook, each) for each in CELLS[:SLOW]] == before
    assert "17 events" in printed


def test_analysis_again(tmp_path):
    """Run all in a new kernel: no cell is executed, and all tables and figures are there again."""
    notebook = Analysis(tmp_path)
    notebook._wait.touch()
    notebook.run_all()
    shown = [displayed(notebook, each) for each in CELLS]
    kinds = [list(each) for cell in shown for each in cell]
    assert sum("image/png" in each for each in kinds) == 3
    assert sum("text/html" in each for each in kinds) == 2
    notebook.run_all()
    assert notebook.executed() == ([], [])
    assert [displayed(notebook, each) for each in CELLS] == shown
    look = displayed(notebook, "look")[0]["text/plain"]
    assert "0 executed, 6 skipped" in look
    assert {each.split("(")[0].split()[-1] for each in re.findall(".*  skipped  ", look)} >= {
        *CELLS
    }


def test_analysis_edited(tmp_path):
    """After an edit those cells run that it concerns, and no others."""
    notebook = Analysis(tmp_path)
    notebook._wait.touch()
    notebook.run_all()
    notebook.edit("events", "len(each) >= 5", "len(each) >= 4")
    notebook.run_all()
    assert notebook.executed() == (["events"], [])
    notebook.edit("unusual", 'transform("mean")', 'transform("median")')
    notebook.run_all()
    assert notebook.executed() == (["events", "history"], [])
    data = notebook.folder / "data" / "sea_temperature.csv"
    data.write_text(data.read_text(encoding="utf-8").replace("23.11", "23.12"), encoding="utf-8")
    notebook.run_all()
    # What is unusual in the middle of the Pacific is what it was, and "history" reads that only.
    assert notebook.executed() == ([e for e in CELLS if e != "history"], list(range(10)))


# -- all of them -----------------------------------------------------------------------------------


def skipped(printed):
    """The names of the cells that were skipped."""
    return re.findall(r"^stepwise: cell '(\w+)' is skipped", printed, re.MULTILINE)


def displayed(notebook, ident):
    """What a cell displayed."""
    outputs = notebook.nb.cells[notebook.index(ident)].outputs
    shown = [each for each in outputs if "data" in each and "stepwise" not in each.metadata]
    return [dict(each.data) for each in shown]


def test_all_notebooks_are_run():
    """Every notebook is one that the tests above kill and run again."""
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["approvals", "durable_agent", "sea_temperature", "tutorial"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_committed_without_outputs(path):
    """Notebooks are committed without outputs, so that what a reader sees is what they get."""
    nb = nbformat.read(path, as_version=4)
    nbformat.validate(nb)
    for cell in nb.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


# -- approvals -------------------------------------------------------------------------------------

WIDGET = "application/vnd.jupyter.widget-view+json"


def clicked(client, cell, button, note=""):
    """Click a button that a cell shows, as a browser does, and wait until that has been handled."""
    (view,) = [each["data"][WIDGET] for each in cell.outputs if WIDGET in each.get("data", {})]
    top = widget(client, view["model_id"])
    (wanted,), (text,) = (
        find(client, top, "ButtonModel", description=button),
        find(client, top, "TextModel"),
    )
    send(client, text.ident, {"method": "update", "state": {"value": note}, "buffer_paths": []})
    send(client, wanted.ident, {"method": "custom", "content": {"event": "click"}})


class Widget:
    def __init__(self, ident, state):
        self.ident, self.state = ident, state


def widget(client, ident):
    return Widget(ident, client.widget_state[ident])


def find(client, top, model, **state):
    """The widgets of a kind inside another one."""
    children = [each.removeprefix("IPY_MODEL_") for each in top.state.get("children", ())]
    found = []
    for each in (widget(client, ident) for ident in children):
        if each.state["_model_name"] == model and state.items() <= each.state.items():
            found.append(each)
        found += find(client, each, model, **state)
    return found


def send(client, ident, data):
    """Send a message to a widget, as a page does; wait until the kernel has handled it."""
    message = client.kc.session.msg("comm_msg", {"comm_id": ident, "data": data})
    client.kc.shell_channel.send(message)
    sent = message["header"]["msg_id"]
    while True:
        heard = run_sync(client.kc.get_iopub_msg)(timeout=300)
        parent = heard["parent_header"].get("msg_id")
        if parent == sent and heard["content"].get("execution_state") == "idle":
            return


def test_approvals(tmp_path):
    """A click on a button answers the question of a run, which goes on in the same kernel."""
    notebook = Notebook(tmp_path, "approvals.ipynb")
    outbox = notebook.folder / "outbox.txt"
    notebook.add("import time")
    notebook.nb.cells[-1].source += (
        "\ndef asked(number):\n    while [each.step for each in handle.run.questions] != [number]:"
        "\n        time.sleep(0.01)"
    )
    notebook.nb.cells[-1].id = "wait"
    client = notebook.client()
    with client.setup_kernel():
        for ident in ("setup", "tools", "agent", "start", "wait"):
            notebook.run_cell(client, ident)
        for ident, number, button, note in (
            ("ask", 4, "Approve", "fine"),
            ("again", 6, "Deny", "she is away"),
        ):
            notebook.add(f"asked({number})")
            client.execute_cell(notebook.nb.cells[-1], len(notebook.nb.cells) - 1)
            notebook.run_cell(client, ident)
            shown = "".join(str(each) for each in notebook.nb.cells[notebook.index(ident)].outputs)
            assert "please come on Friday" in shown
            before = outbox.read_text(encoding="utf-8")
            assert len(before.splitlines()) == 1 + (number == 6)
            clicked(client, notebook.nb.cells[notebook.index(ident)], button, note)
        said = notebook.run_cell(client, "end")
    assert "'sent to ann@home', 'sent to bob@example.com'" in " ".join(said.split())
    assert "not sent to cleo@example.com: she is away" in said
    assert len(outbox.read_text(encoding="utf-8").splitlines()) == 2
