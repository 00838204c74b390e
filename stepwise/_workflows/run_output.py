"""The output of runs, told apart while several execute in one process: a log for each.

``sys.stdout`` and ``sys.stderr`` are replaced by writers that look which run is printing: by a
context variable in its own threads and tasks, and by its scope in threads that its code starts.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import urllib.parse
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any

from stepwise._execution.active_run import current_scope
from stepwise._runtime.event import Event
from stepwise._runtime.events import listen
from stepwise._runtime.messages import reports

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RunLog", "RunOutput", "log_name"]

_LONGEST = 200  # characters of a file's name


def log_name(run_id: str) -> str:
    """Return the name of a run's log: the id, other characters than letters and ``-._~`` as %XX."""
    name = urllib.parse.quote(run_id, safe="", errors="surrogatepass")
    if len(name) > _LONGEST:
        import hashlib

        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        name = f"{name[:_LONGEST]}~{digest}"
    return f"{name}.log"


class RunLog:
    """Where one run's output goes: its file, or the terminal, with its id before each line."""

    def __init__(self, run_id: str, folder: str, terminal: IO[str]) -> None:
        self.run_id = run_id
        self._path = os.path.join(folder, log_name(run_id)) if folder else ""
        self._terminal = terminal
        self._file: IO[str] | None = None
        self._rest = ""  # a line that has not ended
        self._mutex = threading.RLock()

    @property
    def has_file(self) -> bool:
        """True if it goes to a file."""
        return bool(self._path)

    def write(self, text: str) -> None:
        """Write what the run prints."""
        with self._mutex:
            if self._path:
                try:
                    self._opened().write(text)
                except OSError as error:  # the disk is full: no reason for a run to fail
                    self._path, self._file = "", None
                    self.write(f"{text}\nthe log cannot be written: {error}\n")
                return
            *lines, self._rest = f"{self._rest}{text}".split("\n")
            if lines:
                self._terminal.write("".join(f"{self.run_id} | {line}\n" for line in lines))
                self._terminal.flush()

    def _opened(self) -> IO[str]:
        if self._file is None:
            self._file = open(  # noqa: SIM115
                self._path, "a", encoding="utf-8", errors="backslashreplace", buffering=1
            )
        return self._file

    def close(self) -> None:
        """End the last line, and close the file; what comes later opens it again."""
        with self._mutex:
            if self._rest:
                self.write("\n")
            if self._file is not None:
                self._file.close()
                self._file = None


_current: ContextVar[RunLog | None] = ContextVar("stepwise_run_log", default=None)


class RunOutput:
    """The logs of the runs of this process, while it is installed.

    Args:
        folder: for the logs; empty to print everything on stderr.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._logs: dict[str, RunLog] = {}
        self._before: tuple[Any, Any] | None = None

    def __enter__(self) -> Self:
        if self._folder:
            os.makedirs(self._folder, exist_ok=True)
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _PrintedBy(sys.stdout, self), _PrintedBy(sys.stderr, self)
        self._end = listen(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        if self._before is not None:
            sys.stdout, sys.stderr = self._before
        for log in list(self._logs.values()):
            log.close()

    @property
    def terminal(self) -> IO[str]:
        """The standard output of the process itself."""
        return self._before[0] if self._before is not None else sys.stdout

    def begin(self, run_id: str) -> RunLog:
        """Return the log of a run that begins; the caller enters it in the run's context."""
        assert self._before is not None
        log = self._logs[run_id] = RunLog(run_id, self._folder, self._before[1])
        return log

    def enter(self, log: RunLog) -> None:
        """Have what this context prints go to a log."""
        _current.set(log)

    def end(self, log: RunLog) -> None:
        """Close the log of a run that ended."""
        self._logs.pop(log.run_id, None)
        log.close()

    def here(self) -> RunLog | None:
        """Return the log for what is printed here; ``None`` outside of any run."""
        log = _current.get()
        if log is None and (scope := current_scope()) is not None:
            log = self._logs.get(scope.run.root.run_id)
        return log

    @reports
    def _note(self, event: Event) -> None:
        log = self.here()
        if log is not None and log.has_file:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
            log.write(f"{at} {event}\n")


class _PrintedBy(io.TextIOBase):
    """Stands for ``sys.stdout`` or ``sys.stderr``."""

    def __init__(self, terminal: IO[str], output: RunOutput) -> None:
        self._terminal, self._output = terminal, output

    def write(self, text: str) -> int:
        log = self._output.here()
        if log is None:
            return self._terminal.write(text)
        log.write(text)
        return len(text)

    def flush(self) -> None:
        self._terminal.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._terminal, "encoding", "utf-8"))

    @property
    def buffer(self) -> Any:
        """The bytes below, which no run is told apart in."""
        return self._terminal.buffer  # type: ignore[attr-defined]
