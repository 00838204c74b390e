"""What the tests of runs share that are killed and resumed in one process."""

import pathlib

from stepwise._checkpoints import references
from stepwise._execution import process_memory
from stepwise._values import trees


class Killed(KeyboardInterrupt):
    """The process ends here."""


def forget_process():
    """What a process remembers of its runs is gone, as in a new one."""
    vars(process_memory.memory).update(vars(process_memory.ProcessMemory()))


def line_of(workflow, text):
    """``file.py:N`` of the line of a workflow that holds a text."""
    source = workflow.definition.source
    lines = enumerate(source.lines[source.first_line - 1 :], source.first_line)
    number = next(number for number, line in lines if text in line)
    return f"{pathlib.Path(source.filename).name}:{number}"


def chunk_little(monkeypatch):
    """Chunks of a few items."""
    monkeypatch.setattr(references, "_LONG", 4)
    monkeypatch.setattr(references, "_BLOCK", 5)
    monkeypatch.setattr(references, "_GROUP", 2)
    monkeypatch.setattr(trees, "_LITTLE", 40)


def played_to_the_end(execute):
    """What a call gives that is killed a few times, each time in a process that knows nothing."""
    while True:
        forget_process()
        try:
            return execute()
        except Killed:
            continue
