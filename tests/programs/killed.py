"""What the tests of runs share that are killed and resumed in one process."""

from stepwise import _process, _references, _trees


class Killed(KeyboardInterrupt):
    """The process ends here."""


def forget_process():
    """What a process remembers of its runs is gone, as in a new one."""
    vars(_process.memory).update(vars(_process.Memory()))


def chunk_little(monkeypatch):
    """Chunks of a few items."""
    monkeypatch.setattr(_references, "_LONG", 4)
    monkeypatch.setattr(_references, "_BLOCK", 5)
    monkeypatch.setattr(_references, "_GROUP", 2)
    monkeypatch.setattr(_trees, "_LITTLE", 40)


def played_to_the_end(execute):
    """What a call gives that is killed a few times, each time in a process that knows nothing."""
    while True:
        forget_process()
        try:
            return execute()
        except Killed:
            continue
