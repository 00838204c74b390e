"""Kernels for tests: real ones, whose cells are executed one by one, and which are killed.

A cell that is to be killed prints ``now`` and then opens a FIFO that nobody writes to.
"""

import os
import re
import signal
import tempfile
import textwrap
import warnings

import pytest
from harness import talking
from sweeping import WHOLE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Jupyter deprecates of its own
    import nbformat
    from jupyter_client.provisioning import local_provisioner
    from jupyter_core.utils import run_sync
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

IMPORTED = ("ipykernel.kernelapp", "stepwise.notebook")


def launch_fork(command, *, cwd, env, **_):
    """Start the kernel of a command line in a fork of a host that has imported it."""
    words = command[command.index("-m") :]
    return talking(*words, cwd=cwd, env=env, imports=IMPORTED)


if not WHOLE:
    local_provisioner.launch_kernel = launch_fork


SETUP = """
    %load_ext stepwise
    import os, pathlib, stepwise
    def done(what):
        with open("done.txt", "a") as file:
            file.write(what + "\\n")
    def block():
        print("now", flush=True)
        if pathlib.Path("fifo").exists():
            open("fifo").read()
"""


class Kernel(NotebookClient):
    """A kernel that executes cells; it gets a signal when it prints ``now``."""

    def __init__(self, folder, *, at_now=None):
        super().__init__(
            nbformat.v4.new_notebook(), timeout=300, resources={"metadata": {"path": str(folder)}}
        )
        self._send = at_now

    def output(self, outs, msg, display_id, cell_index):
        if self._send and "now\n" in msg["content"].get("text", ""):
            self.signal(self._send)
            self._send = None
        return super().output(outs, msg, display_id, cell_index)

    def signal(self, number):
        os.kill(self.pid, number)

    @property
    def pid(self):
        return self.km.provisioner.pid

    def hear(self):
        """The next message about what it does."""
        return run_sync(self.kc.get_iopub_msg)(timeout=300)

    def begin(self, source):
        """Begin to execute a cell."""
        self.kc.execute(textwrap.dedent(source).strip())

    def hear_progress(self, *words):
        """Wait until the display of progress says these words; its message."""
        while True:
            message = self.hear()
            content = message["content"]
            told = content.get("data", {}).get("text/plain", "")
            if "stepwise" in content.get("metadata", {}) and all(word in told for word in words):
                return message

    def hear_end(self):
        """The messages up to the end of the cell."""
        messages = []
        while not messages or messages[-1]["content"].get("execution_state") != "idle":
            messages.append(self.hear())
        return messages

    def run(self, source):
        """Execute a cell; what it showed."""
        cell = nbformat.v4.new_code_cell(textwrap.dedent(source).strip())
        self.nb.cells.append(cell)
        self.execute_cell(cell, len(self.nb.cells) - 1)
        return Shown(cell.outputs)

    def fail(self, source):
        """Execute a cell that raises; the message, with its traceback."""
        with pytest.raises(CellExecutionError) as raised:
            self.run(source)
        return re.sub(r"\x1b\[[0-9;]*m", "", str(raised.value))


class Shown:
    """The outputs of a cell, without the notices of stepwise."""

    def __init__(self, outputs):
        texts = {"stdout": "", "stderr": ""}
        for each in outputs:
            if each.output_type == "stream":
                texts[each.name] += each.text
        lines = [(name, line) for name, text in texts.items() for line in text.splitlines()]
        self.lines = [line for line in lines if not line[1].startswith("stepwise: ")]
        self.red = [line for line in lines if line not in self.lines]
        data = [each for each in outputs if "data" in each]
        ours = [each for each in data if "stepwise" in each.metadata]
        self.progress = [dict(e.data) for e in ours if e.metadata["stepwise"] == "progress"]
        shown = [each.data for each in ours if each.metadata["stepwise"] == "notice"]
        self.notices = [each["text/plain"] for each in shown]
        self.looks = [each["text/html"] for each in shown]
        self.data = [dict(each.data) for each in data if "stepwise" not in each.metadata]

    @property
    def text(self):
        plain = [each.get("text/plain", "") for each in self.data]
        return "\n".join([*(line for _, line in self.lines), *plain])

    @property
    def skipped(self):
        return any(" is skipped: " in each for each in self.notices)

    @property
    def all(self):
        return self.lines, self.data


class Notebook:
    """A folder, and kernels that are started in it, one after the other or side by side."""

    def __init__(self, folder):
        self.folder = folder
        self._open = []
        self._processes = []
        self._sockets = tempfile.TemporaryDirectory()  # paths of sockets must be short

    def start(self, *cells, **options):
        """A new kernel that has executed some cells."""
        kernel = Kernel(self.folder, **options)
        kernel.create_kernel_manager()
        # Free ports are chosen before they are taken, so that two kernels may choose the same.
        kernel.km.transport, kernel.km.ip = "ipc", f"{self._sockets.name}/{len(self._open)}"
        context = kernel.setup_kernel()
        context.__enter__()
        self._open.append(context)
        self._processes.append(kernel.km.provisioner.process)
        kernel.run(SETUP)
        for cell in cells:
            kernel.run(cell)
        return kernel

    def killed_in(self, *cells):
        """Execute cells in a kernel that is killed in the last one; what the others showed."""
        self.block()
        kernel = self.start(at_now=signal.SIGKILL)
        shown = [kernel.run(cell) for cell in cells[:-1]]
        with pytest.raises(DeadKernelError):
            kernel.run(cells[-1])
        os.unlink(self.folder / "fifo")
        return shown

    def block(self):
        os.mkfifo(self.folder / "fifo")

    def done(self):
        file = self.folder / "done.txt"
        return file.read_text().split() if file.exists() else []

    def close(self):
        for context in self._open:
            context.__exit__(None, None, None)
        for process in self._processes:  # also of a kernel that was killed
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()
        self._sockets.cleanup()
