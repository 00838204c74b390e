"""A run that this process executes again from its records: for a debugger, or to compare.

A :class:`Replay` hears of the calls of such a run.  While a debugger looks at a run, the process
has no lease, and nothing is written.  The journal answers the calls of steps, or they are refused.
Calls typed at a prompt are recognized by the frames of the debugger on the stack, or by their
thread, so that other threads of a live run are not held up.
"""

from __future__ import annotations

import cmd
import json
import os
import sys
import threading
from collections.abc import Callable, Generator
from types import CodeType, FrameType
from typing import Any

from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, Record
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import notice
from stepwise._runtime.settings import DEBUGGED
from stepwise._values.unpickling import Data

Core = Generator[Any, Any, Any]  # as for stepwise._calls.driver

_DEBUGGERS = ("_pydevd", "pydevd")  # modules of debugpy


class Request(NamedTuple):
    """The request of ``stepwise debug`` to the program that it starts.

    Args:
        run_id: the run to open.
        folder: a private folder, for the changed variables and the sign that the run was opened.
        command, cwd: the command of the program, and the folder to start it in.
        at: open the newest checkpoint after this many steps or fewer; -1 for the newest.
        checkpoint: open the checkpoint of this name, or the newest before it; empty for any.
        line: continue before the statement at this line; 0 for the checkpoint's own.
        edits: True if the folder holds changed variables.
        port: where to wait for a client of the Debug Adapter Protocol; 0 for a prompt.
        step: execute the body of this step under the debugger, outside of the run; 0 for none.
        replay: execute the code from the checkpoint to step ``at``, with recorded results.
        goes: continue at once.
        allow: names of steps that may be executed once, outside of the run.
        breaks: breakpoints, as file and line.
    """

    run_id: str
    folder: str = ""
    command: tuple[str, ...] = ()
    cwd: str = ""
    at: int = -1
    checkpoint: str = ""
    line: int = 0
    edits: bool = False
    port: int = 0
    step: int = 0
    replay: bool = False
    goes: bool = False
    allow: tuple[str, ...] = ()
    breaks: tuple[tuple[str, int], ...] = ()

    def environment(self, *, resumes: bool = True) -> dict[str, str]:
        """Return the environment variables with which a program opens the run.

        Args:
            resumes: True if the program's call of the run is to be found, as by ``resume``.
        """
        found = {DEBUGGED: json.dumps(self._asdict())}
        return {**found, "STEPWISE_RESUME": self.run_id} if resumes else found

    @classmethod
    def take(cls) -> Request:
        """Take the request out of the environment, so that other programs do not inherit it."""
        return cls(**json.loads(os.environ.pop(DEBUGGED)))

    @property
    def edits_file(self) -> str:
        """The file with the changed variables."""
        return os.path.join(self.folder, "edits")

    @property
    def sign(self) -> str:
        """The file that exists once the run has been opened."""
        return os.path.join(self.folder, "opened")


class TypedThread:
    """A thread, or a job of a pool, that was started at the prompt of a debugger."""

    def __init__(self, typing: set[int]) -> None:
        self._typing, self._ident = typing, 0

    def __enter__(self) -> None:
        """Mark the calls of the current thread as typed."""
        self._ident = threading.get_ident()
        self._typing.add(self._ident)

    def __exit__(self, *_: object) -> None:
        """Note that the thread or job has ended."""
        self._typing.discard(self._ident)


class Replay:
    """A run that is executed again from its records, as its calls see it.

    Attributes:
        run_id: the id of the run.
        live: True once the run goes on for real, under its lease.
        replays: True while recorded results answer the calls of the workflow's own code.
        compares: True if a call that differs from its record is not answered, but reported.
    """

    run_id: str
    live = False
    replays = True
    compares = False

    def holds(self, run_id: str) -> bool:
        """Return whether records of a run are kept back instead of written."""
        return False

    def hold(self, items: tuple[tuple[Record, Data], ...]) -> list[int]:
        """Keep records back; return numbers for them, which are not real."""
        raise AssertionError

    def takes(self, name: str) -> bool:
        """Use up the permission to execute a typed call once; return False if there is none."""
        raise AssertionError

    def is_typed(self) -> bool:
        """Return whether the calling code was typed at the prompt of a debugger."""
        return False

    def new_thread(self) -> TypedThread:
        """Return the listener of a thread, or of a job, that is started at the prompt."""
        raise AssertionError

    def check(self, call: Any) -> None:
        """Refuse the call of a workflow if it means another run than the one executed again.

        Args:
            call: the :class:`stepwise._workflows.execute.Invocation`.

        Raises:
            ConfigurationError: it means another run.
        """
        raise NotImplementedError

    def opened(self, *taken: Any) -> Any:
        """Return the run that was taken up, as one that is executed again.

        Args:
            taken: as for :class:`stepwise._workflows.resume.WorkflowRun`.
        """
        raise NotImplementedError

    def before(self, made: Any, name: str) -> None:
        """Note that a call begins.

        Args:
            made: the :class:`stepwise._calls.call.Performance`.
        """

    def answers(self, made: Any, call: Call, recorded: RecordedCall, *, same: bool) -> bool:
        """Return whether a record answers a call.

        Args:
            made: the :class:`stepwise._calls.call.Performance`.
            same: False if their arguments differ.
        """
        raise NotImplementedError

    def unanswered(self, made: Any, call: Call, recorded: RecordedCall | None) -> Core:
        """Return if a call may be made that the journal does not answer; otherwise raise.

        Args:
            made: the :class:`stepwise._calls.call.Performance`.
            recorded: the record that the call would continue.
        """
        raise NotImplementedError


class Looking(Replay):
    """The debugged run of this process, as its calls see it.

    Args:
        stop: opens the prompt inside a call, and returns once the run is live; the argument says
            why it stops.
        unanswered: see :meth:`Replay.unanswered`.

    Attributes:
        differs: the first replayed call that differs from its record; empty while none does.
        code: the code of the workflow function, whose callers do not matter.
    """

    def __init__(
        self, request: Request, stop: Callable[[str], None], unanswered: Callable[..., Core]
    ) -> None:
        self.request, self.run_id = request, request.run_id
        self.allowed = [*request.allow]
        self.stop = stop
        self._unanswered = unanswered
        self.live = self.replays = False
        self.differs = ""
        self.code: CodeType | None = None
        self._held: list[tuple[Record, Data]] = []
        self._typing: set[int] = set()  # threads that execute what was typed

    def holds(self, run_id: str) -> bool:
        """Return whether a run is only looked at, so that nothing may be written or made."""
        return not self.live and run_id == self.request.run_id

    def is_typed(self) -> bool:
        """Return whether the calling code was typed at the prompt of a debugger."""
        if threading.get_ident() in self._typing:
            return True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self.code:
            if frame.f_code is cmd.Cmd.onecmd.__code__:
                return True
            if str(frame.f_globals.get("__name__", "")).startswith(_DEBUGGERS):
                return True
            frame = frame.f_back
        return False

    def new_thread(self) -> TypedThread:
        """Return the listener of a thread, or of a job, that is started at the prompt."""
        return TypedThread(self._typing)

    def before(self, made: Any, name: str) -> None:
        """Stop a replay before a call, once it has got as far as was asked for."""
        done = made.scope.run.progress.skipped
        if self.replays and done >= self.request.at >= 0:
            self.stop(f"{name} comes next, after {done} steps")

    def answers(self, made: Any, call: Call, recorded: RecordedCall, *, same: bool) -> bool:
        """Return whether a record answers a call; note the first that differs from its record."""
        if not same and self.replays and not self.differs:
            number = recorded.call.number
            self.differs = f"{call.name}({call.arguments}), which differs from step {number}"
            notice(f"from here on the replay is approximate: {self.differs} on record")
        return True

    def unanswered(self, made: Any, call: Call, recorded: RecordedCall | None) -> Core:
        """Return once the run goes on for real; see the base class."""
        return self._unanswered(made, call, recorded)

    def takes(self, name: str) -> bool:
        """Use up the permission to execute a step once; return False if there is none."""
        if name in self.allowed:
            self.allowed.remove(name)
            return True
        return False

    def hold(self, items: tuple[tuple[Record, Data], ...]) -> list[int]:
        """Keep records until the run goes on; return numbers for them, which are not real."""
        self._held += items
        return [0] * len(items)

    def held(self) -> list[tuple[Record, Data]]:
        """Return the kept records, and forget them."""
        held, self._held = self._held, []
        return held
