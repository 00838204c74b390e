"""A run under a debugger: its frame is restored, looked at, and goes on for real if asked to.

``stepwise debug`` starts the program of a run.  The program's call of the run restores the frame at
a checkpoint, as a resume does, but takes no lease and writes nothing.  A command that executes a
statement of the workflow first takes the lease, and then records that the run resumes.

A prompt that goes to another checkpoint, line or source, or to a fork, starts the program again
in the same process.  Leaving the frame instead would execute the ``finally`` blocks around it.

Rejected: a jump by assigning ``f_lineno``.  A rewritten function has each line twice, and Python
chooses the copy that takes no checkpoints.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import os
import pdb
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from stepwise import errors
from stepwise._calls.call import Performance, not_on_record
from stepwise._calls.driver import Core, Result
from stepwise._checkpoints.checkpoints import PREFIX, Loaded, State
from stepwise._execution.active_run import ActiveRun, debugged
from stepwise._execution.replaying import Looking, Request
from stepwise._execution.viewer import Placeholder, view_inputs
from stepwise._journal.journal import facts_of, read_on
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Call, RunFacts
from stepwise._rewrite.build import build
from stepwise._rewrite.source import following_line
from stepwise._runtime import settings
from stepwise._runtime.messages import count, is_ours, kernel_shell, printable, shell_word
from stepwise._values import codec
from stepwise._values.preview import NotShown
from stepwise._workflows.definition import Definition
from stepwise._workflows.execute import Invocation
from stepwise._workflows.frame import WorkflowFrame, mark
from stepwise._workflows.resume import WorkflowRun

# -- which call is debugged -----------------------------------------------------------------------


_wanted: list[Request] = []
_INTRODUCTION = (
    "what is typed is executed; recorded steps are answered by the journal, others are refused",
    "nothing is recorded until continue, next or step, which go on for real",
    "also: back, forward, jump LINE, reload, fork, allow NAME, quit",
)
_LIBRARY = os.path.dirname(pdb.__file__) + os.sep
_SKIPPED = ("stepwise", "stepwise.*", "wrapt", "wrapt.*", "contextlib")


def request_here() -> Request:
    """Return what ``stepwise debug`` asked of this process."""
    if settings.DEBUGGED in os.environ:
        _wanted[:] = [Request.take()]
    return _wanted[0]


def check_call(call: Invocation, facts: RunFacts | None, request: Request) -> None:
    """Refuse a call that is not the debugged run, or that has no frame to restore.

    Raises:
        ConfigurationError: the message says what to do instead.
    """
    label, run_id = call.callee.workflow.label, request.run_id
    if call.run_id != run_id:
        verb = "begin" if facts is None else "resume"
        raise errors.ConfigurationError(
            f"stepwise debug has opened run {run_id!r} alone, and a call of {label!r} that would "
            f"{verb} run {call.run_id!r} is refused. To run it, start the program itself; to look "
            f"at that run instead: stepwise debug {shell_word(call.run_id)}"
        )
    why = ""
    if debugged.look is not None and not debugged.look.live:
        why = "it is open already"
    elif facts is None:
        why = "it was deleted"
    elif facts.undoing or facts.cancelling:
        why = f"it is being {'undone' if facts.undoing else 'cancelled'}: stepwise resume ends that"
    elif call.rewritten is None or not isinstance(call.callee.workflow, Definition):
        why = (
            f"{label!r} cannot be entered in the middle of its code (a generator, a step loop, or "
            "trust='data', which loads no checkpoint)"
        )
    if why:
        raise errors.ConfigurationError(f"run {run_id!r} cannot be opened in a debugger: {why}")


# -- the prompt ------------------------------------------------------------------------------------


class Prompt(pdb.Pdb):
    """The commands at the prompt, beside those of pdb."""

    opened: DebuggedRun
    is_left = False  # True if a run that goes on is to be interrupted

    def begin(self, opened: DebuggedRun) -> None:
        """Set the run, and the breakpoints that were set before the program was started again."""
        self.opened, self.prompt = opened, "(debug) "
        for file, line in opened.request.breaks:
            self.set_break(file, line)

    def interaction(self, frame: Any, *given: Any) -> None:
        self.opened.introduce(self.message)
        super().interaction(frame, *given)
        write_back(frame)
        if self.is_left:
            raise KeyboardInterrupt

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line, but not where a loop only takes its next item."""
        if not self.opened.passes(frame):
            super().user_line(frame)

    def stop_here(self, frame: FrameType) -> bool:
        """Return whether to stop in a frame: not in the standard library that we call."""
        here: FrameType | None = frame
        while here is not None and _is_of_library(here.f_code.co_filename):
            here = here.f_back
        if here is not frame and (here is None or is_ours(here.f_code.co_filename)):
            return False
        return bool(super().stop_here(frame))

    def get_stack(self, f: Any, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the stack without our own frames."""
        stack, index = super().get_stack(f, t)
        current = stack[index][0] if stack else None
        stack = [each for each in stack if not is_ours(each[0].f_code.co_filename)] or stack
        frames = [frame for frame, _ in stack]
        return stack, frames.index(current) if current in frames else len(frames) - 1

    def postcmd(self, stop: bool, line: str) -> bool:
        """Write changed variables into the frame: moving in the stack would read it again."""
        write_back(self.curframe)
        return super().postcmd(stop, line)

    def stop_at(self, frame: FrameType) -> None:
        """Stop before the next line; ``set_trace`` of Python 3.13 stops before, in our own code."""
        self.reset()
        self.trace_from(frame)
        self.set_step()

    def trace_from(self, frame: FrameType) -> None:
        """Trace this frame and its callers, as ``set_trace`` does, without asking for a stop."""
        here: FrameType | None = frame
        while here is not None:
            here.f_trace, self.botframe, here = self.trace_dispatch, here, here.f_back
        sys.settrace(self.trace_dispatch)

    def _goes_on(self, command: Callable[[str], Any], arg: str) -> Any:
        """Execute a command that executes statements: the run goes on for real."""
        problem = self.opened.acquire()
        if problem:
            self.error(problem)
            return None
        return command(arg)

    def do_continue(self, arg: str) -> Any:
        """c(ont(inue)).

        Go on for real: under the lease of the run, recorded as usual.
        """
        return self._goes_on(super().do_continue, arg)

    def do_next(self, arg: str) -> Any:
        """n(ext).

        Go on for real, to the next line of this function.
        """
        return self._goes_on(super().do_next, arg)

    def do_step(self, arg: str) -> Any:
        """s(tep).

        Go on for real, to the next line of the program, also inside a step.
        """
        return self._goes_on(super().do_step, arg)

    def do_return(self, arg: str) -> Any:
        """r(eturn).

        Go on for real, until this function returns.
        """
        return self._goes_on(super().do_return, arg)

    def do_until(self, arg: str) -> Any:
        """unt(il) [LINE].

        Go on for real, to a higher line.
        """
        return self._goes_on(super().do_until, arg)

    def _answer(self, problem: str) -> None:
        if problem:
            self.error(problem)

    def do_jump(self, arg: str) -> None:
        """j(ump) LINE.

        Continue before the statement at a later line; the statements between are left out.
        """
        if not arg.strip().isdecimal():
            return self.error("name a line: jump 42")
        return self._answer(self.opened.jump(int(arg)))

    def do_back(self, arg: str) -> None:
        """Back.

        Go to the kept checkpoint before this one, with its variables.
        """
        self._answer(self.opened.move(-1))

    def do_forward(self, arg: str) -> None:
        """Forward.

        Go to the kept checkpoint after this one, with its variables.
        """
        self._answer(self.opened.move(1))

    def do_reload(self, arg: str) -> None:
        """Reload.

        Read the program's source again, and open the run with it; changed variables stay changed.
        """
        self._answer(self.opened.reload())

    def do_fork(self, arg: str) -> None:
        """Fork.

        Go on as a new run with these variables; the run stays as it is.
        """
        self._answer(self.opened.fork())

    def do_allow(self, arg: str) -> None:
        """Allow NAME.

        Let the next typed call of a step be executed, outside of the run and unrecorded.
        """
        if not arg.strip():
            return self.error("name a step or tool: allow send_email")
        self.opened.look.allowed.append(arg.strip())
        return self.message(f"the next typed call of {arg.strip()} is executed, and not recorded")

    def do_quit(self, arg: str) -> Any:
        """q(uit).

        Leave: nothing is recorded, unless the run goes on already, which is then interrupted.
        """
        if not self.opened.look.live:
            self.opened.leave()
        self.is_left = True
        self.set_continue()
        return True

    def do_EOF(self, arg: str) -> Any:  # noqa: N802 -- the name of cmd
        """EOF.

        Leave, as quit does.
        """
        self.message("")
        return self.do_quit(arg)

    do_c = do_cont = do_continue
    do_n, do_s, do_r, do_unt, do_j = do_next, do_step, do_return, do_until, do_jump
    do_q = do_exit = do_quit
    do_run = do_restart = do_reload


def _is_of_library(file: str) -> bool:
    """Return whether a file belongs to the standard library."""
    return file.startswith((_LIBRARY, "<frozen")) and "-packages" not in file


def write_back(frame: FrameType | None) -> None:
    """Write the dictionary of a frame's variables, which a prompt has changed, into the frame."""
    if frame is not None and sys.version_info < (3, 13):  # from then on it is no copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        _ = frame.f_locals  # Python 3.11 writes back once for each time that it was read


def new_prompt(opened: DebuggedRun) -> Prompt:
    """Return a prompt: IPython's where it is installed, otherwise pdb's."""
    kind: Any = Prompt
    with contextlib.suppress(ImportError):
        if kernel_shell() is not None:
            from IPython.core.debugger import Pdb as Base
        elif sys.stdin.isatty():
            from IPython.terminal.debugger import TerminalPdb as Base
        else:
            raise ImportError
        kind = type("Prompt", (Prompt, Base), {})
    prompt: Prompt = kind(skip=_SKIPPED, nosigint=True)
    prompt.begin(opened)
    return prompt


# -- the run ---------------------------------------------------------------------------------------


class DebuggedFrame(WorkflowFrame):
    """The frame of a debugged run, called as :func:`stepwise._rewrite.transform.announce` says."""

    opened: DebuggedRun

    def begin(self, points: int, captured: Callable[[], Any] | None = None) -> int:
        target = super().begin(points, captured)
        if not target:  # at the top
            self.opened.arrive(sys._getframe(1))
        return target

    def arrived(self, takes_item: bool = False) -> int:
        """Open the debugger: the restored frame stands before its statement.

        Args:
            takes_item: True if the innermost loop first takes its next item.
        """
        loops = self.rewritten.points[self.target].loops if takes_item else ()
        self.opened.passing = [self.rewritten.loops[name] for name in reversed(loops)]
        self.opened.arrive(sys._getframe(1))
        return 0

    def caught_up(self) -> None:
        """Take no checkpoint, since nothing is recorded before the run goes on for real."""

    def go(self, number: int) -> None:
        """Take the run up for real, if it is not yet: a statement of the workflow begins.

        Args:
            number: the point before the statement; 0 if no checkpoint can be taken there.
        """
        self.opened.go(sys._getframe(1), number)


class DebuggedRun(WorkflowRun):
    """A run that a debugger looks at, until it goes on for real.

    Attributes:
        chosen: the checkpoint whose variables are in the frame; ``None`` for the top.
        frame: the frame of the workflow, once it stands before its statement.
        is_over: True once the replayed code has raised.
        passing: the lines of loops that only take their next item before the first statement, the
            innermost first.
    """

    frame_class = DebuggedFrame
    passing: Sequence[int] = ()
    is_over = False

    def __init__(self, call: Invocation, active: ActiveRun, before: bytes, is_new: bool) -> None:
        super().__init__(call, active, before, is_new)
        self.request = request_here()
        self.look = debugged.look = Looking(self.request, self._stop_inside, self._unanswered)
        journal = active.journal
        self.names = [*journal.store.names(active.run_id, PREFIX)]
        self.chosen: Loaded | None = None
        self.frame: FrameType | None = None
        self._marks: dict[str, object] = {}  # of the variables as they are on record
        self._carried: set[str] = set()  # variables that were changed before a reload or a jump
        self._prompt: Prompt | None = None
        self._introduced = self._acquired = False

    @staticmethod
    def prepared(call: Invocation) -> Invocation:
        """Return the call with the function in the form that announces its statements."""
        workflow: Any = call.callee.workflow
        rewritten = build(workflow.function, workflow.source, debugged=True)
        return call._replace(rewritten=rewritten, timeout=None)

    def run(self) -> Any:
        with self._only_looking():
            return super().run()

    async def arun(self) -> Any:
        with self._only_looking():
            return await super().arun()

    @contextlib.contextmanager
    def _only_looking(self) -> Iterator[None]:
        """Leave the process if the function ends while the run is only looked at."""
        try:
            yield
        except BaseException as error:
            if not self.look.live:
                self._look_at_end(error)
                self._fail(error)
            raise
        if not self.look.live:
            self._fail(
                errors.ConfigurationError(
                    "no statement is left to execute: stepwise resume records the end of the run"
                )
            )

    def _look_at_end(self, error: BaseException) -> None:
        """Open the prompt in the frames of an error that the replayed code has raised."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame is not self.frame:
            trace = trace.tb_next
        if trace is not None and self.look.replays:
            told = traceback.format_exception_only(type(error), error)
            self.prompt.message(f"stepwise: the replay ends here: {''.join(told).rstrip()}")
            self.prompt.reset()
            self.is_over = True
            self.prompt.interaction(None, trace)
            self.leave()

    # -- the frame -------------------------------------------------------------------------------

    def _fitting(self) -> Iterator[tuple[Loaded, State]]:
        asked = self.request
        last = self.names.index(asked.checkpoint) if asked.checkpoint in self.names else None
        for loaded, state in super()._fitting():
            if asked.at >= 0 and state.step > asked.at and not asked.checkpoint:
                continue
            if last is None or self.names.index(loaded.name) <= last:
                yield loaded, state

    def _choose(self) -> Loaded | None:
        loaded = self.chosen = super()._choose()
        if loaded is None or not self.request.edits:
            return loaded
        active = self.active
        with open(self.request.edits_file, "rb") as file:
            opened = active.journal.seal.open(f"debug/{active.run_id}", file.read())
        state = loaded.state
        self._carried = {name for name, _, _ in opened.header}
        state = state._replace(changed=[*state.changed, *opened.header])
        return loaded._replace(state=state, payload=loaded.payload + opened.payload)

    def _target(self, loaded: Loaded) -> int:
        target = super()._target(loaded)
        if not self.request.line:
            return target
        found = self._points_at(self.request.line, target)
        if not found:
            raise errors.ConfigurationError(
                f"no statement at line {self.request.line} can be entered"
            )
        return found[0]

    def _points_at(self, line: int, target: int) -> list[int]:
        """Return the points before the statement at a line that a frame at ``target`` may enter."""
        node, rewritten = self._source.node(), self._rewritten
        assert node is not None
        assert rewritten is not None
        here = rewritten.points[target]
        return [
            number
            for number, point in rewritten.points.items()
            if following_line(node, point.position) == line
            and {*point.loops} <= {*here.loops}
            and {*point.withs} <= {*here.withs}
        ]

    def _begun(self) -> None:
        """Do nothing yet: the run is only looked at."""

    @property
    def prompt(self) -> Prompt:
        """The prompt, made when it is first needed."""
        if self._prompt is None:
            self._prompt = new_prompt(self)
        return self._prompt

    def arrive(self, frame: FrameType) -> None:
        """Open the debugger in the restored frame."""
        request = self.request
        self.frame, self.look.code = frame, frame.f_code
        self._marks = {
            name: mark(value)
            for name, value in self._variables().items()
            if name not in self._carried
        }
        with contextlib.suppress(OSError):  # the folder is gone if ``stepwise debug`` was killed
            if request.folder:
                os.mkdir(request.sign)
        if request.port:
            self.introduce(_say)
            listen(request.port, frame)
        elif request.step or request.replay:
            self.look.replays = True
        elif not request.goes:
            self.prompt.stop_at(frame)
        elif problem := self.acquire():
            self._fail(errors.RunBusyError(problem, run_id=self.active.run_id, owner=None))
        elif request.breaks:
            self.prompt.trace_from(frame)
            self.prompt.set_continue()

    def passes(self, frame: FrameType) -> bool:
        """Return whether a line is the head of a loop that takes its next item after arriving."""
        line = frame.f_lineno
        if frame is self.frame and line in self.passing:
            self.passing = self.passing[self.passing.index(line) :]  # the inner ones have ended
            return True
        self.passing = () if frame is self.frame else self.passing
        return False

    def introduce(self, tell: Callable[[str], None]) -> None:
        """Say once which run this is, where it stands, and what a prompt does."""
        if self._introduced:
            return
        self._introduced = True
        facts, why = self.active.facts, self._fits.why
        error = f": {facts.error}" if facts.error else ""
        where = "at the top of its function, since it has no checkpoint that fits"
        if self.chosen is not None:
            state = self.chosen.state
            at = time.strftime("%H:%M:%S", time.localtime(state.at))
            where = f"after {count(state.step, 'step')}, with the variables of {at}"
            newest = self.chosen.name == self.names[-1]
            where += "" if newest else "; later checkpoints are kept (forward)"
        call = f"{facts.label}({facts.arguments})"
        for line in (
            f"run {facts.run_id} of {call}, {facts.status}{error}",
            f"{where}{f' ({why})' if why else ''}",
            *_INTRODUCTION,
        ):
            tell(printable(f"stepwise: {line}", 2000))

    # -- going on for real -----------------------------------------------------------------------

    def acquire(self) -> str:
        """Take the lease of the run; return why the run cannot go on, or an empty text."""
        active, look = self.active, self.look
        if look.live or self._acquired or (look.replays and self.request.step):
            return ""
        why, journal = "", active.journal
        if self.is_over:
            why = "the code has raised: reload opens the run before it, at its checkpoint"
        elif active.facts.status == "completed":
            why = "the run has completed, and is only looked at: fork goes on as a new run"
        elif active.facts.superseded:
            why = f"its branch {active.facts.superseded} goes on instead, and it is only looked at"
        elif look.differs:
            why = f"the replay is only approximate ({look.differs}): the run cannot go on from it"
        else:
            try:
                active.lease.acquire()
            except errors.RunBusyError as error:
                why = str(error)
        if not why and not self._is_as_opened():
            active.lease.release()
            why = "another process has gone on with the run meanwhile: reload opens it as it is"
        if not why:
            journal.own(active.lease.epoch)
            self._acquired = True
        return why

    def _is_as_opened(self) -> bool:
        """Return whether the journal ends where it ended when the run was opened."""
        journal = self.active.journal
        place = journal.store, journal.seal, journal.run_id
        following = read_on(*place, journal.position)
        is_its_end = following is not None and next(following, None) is None
        return is_its_end and facts_of(*place) is not None

    def go(self, frame: FrameType, number: int) -> None:
        """Take the run up for real, now that a statement of the workflow begins."""
        if self.look.live or self.look.replays:
            return
        if self.request.port and not is_client_there():
            self.leave()
        problem = self.acquire()
        if problem:
            self._fail(errors.RunBusyError(problem, run_id=self.active.run_id, owner=None))
        self._begin_for_real()
        here, chosen = self.active.frame, self.chosen
        other = chosen is None or self.request.line or chosen.name != self.names[-1] or self.edits()
        if other and isinstance(here, DebuggedFrame):
            here.due = here.wanted = True  # at the next boundary at the latest
            if number:
                here.save(number, {**frame.f_locals})

    def _begin_for_real(self) -> None:
        """Record that the run resumes."""
        self.look.live, self.look.replays = True, False
        super()._begun()
        held = self.look.held()
        if held:
            self.active.write(*held, durable=False)

    def _stop_inside(self, why: str) -> None:
        """Open the prompt inside a call of the workflow; return once the run is live."""
        assert self.frame is not None
        prompt = self.prompt
        prompt.message(f"stepwise: the replay ends here: {why}")
        prompt.reset()
        prompt.botframe = None
        prompt.interaction(self.frame, None)
        self._begin_for_real()
        if prompt.breaks or prompt.stoplineno != -1:
            prompt.trace_from(self.frame)

    def _unanswered(self, made: Performance, call: Call, recorded: RecordedCall | None) -> Core:
        """Return once the run goes on for real, since the journal does not answer a call.

        Raises:
            OutsideRunError: the run is only looked at, and nothing is replayed.
        """
        yield from ()
        look, active, performer = self.look, made.scope.run, made.performer
        if not look.holds(active.root.run_id):
            return Result()
        if recorded is not None and recorded.call.number == self.request.step:
            self._enter_body(call, performer.body(call), made.args, made.kwargs)
        elif not look.replays:
            raise not_on_record(active, call.name, is_allowable=bool(performer.kind))
        self._stop_inside(f"the run has not made {call.name}({call.arguments}) yet")
        return Result()

    def _enter_body(
        self, call: Call, body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Execute the body of a step under the debugger, outside of the run, and leave."""
        prompt, number, why = self.prompt, self.request.step, ""
        if call.effect and not self.look.takes(call.name):
            again = f"stepwise debug {shell_word(self.active.run_id)} --step {number}"
            why = f"is a side effect, and its body would act: {again} --allow {call.name}"
        elif inspect.iscoroutinefunction(body):
            why = "is a coroutine function: set a breakpoint in it, and continue"
        if why:
            self._fail(errors.ConfigurationError(f"step {number} {why}"))
        prompt.message(f"stepwise: the body of {call.name}({call.arguments}), outside of the run")
        given = self._as_recorded(inspect.signature(body).bind(*args, **kwargs))
        try:
            value = prompt.runcall(body, *given.args, **given.kwargs)
            prompt.message(f"stepwise: it returned {value!r}")
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code is not body.__code__:
                trace = trace.tb_next
            told = traceback.format_exception(type(error), error, trace)
            prompt.message("".join(told).rstrip())
            prompt.reset()
            prompt.interaction(None, trace or error.__traceback__)
        self.leave()

    def _as_recorded(self, given: inspect.BoundArguments) -> inspect.BoundArguments:
        """Replace the arguments of the step's body by the recorded ones, if there are any."""
        journal = self.active.journal
        with contextlib.suppress(errors.UnreadableValueError):  # they are not recorded
            recorded = view_inputs(journal.store, journal.seal, journal.run_id, self.request.step)
            for name, value in recorded.items():
                if name in given.arguments and not isinstance(value, (Placeholder, NotShown)):
                    given.arguments[name] = value
            self.prompt.message("stepwise: with the arguments on record")
        return given

    # -- elsewhere -------------------------------------------------------------------------------

    def _variables(self) -> dict[str, Any]:
        """Return the variables of the frame that a checkpoint would hold."""
        assert self.frame is not None
        values, free = self.frame.f_locals, self.frame.f_code.co_freevars
        return {name: values[name] for name in values if name[0] != "@" and name not in free}

    def edits(self) -> dict[str, Any]:
        """Return the variables that were changed since the checkpoint was loaded."""
        return {
            name: value
            for name, value in self._variables().items()
            if name not in self._marks or self._marks[name] != mark(value)
        }

    def _started_again(self, **changes: Any) -> str:
        """Start the program again with another request; return why that is not possible here."""
        if kernel_shell() is not None:
            return "not in a notebook: quit, and give %stepwise debug its options"
        if self.look.live:
            return "the run goes on already: only from its first prompt"
        breaks = tuple((file, line) for file, lines in self.prompt.breaks.items() for line in lines)
        allow = tuple(self.look.allowed)
        request = self.request._replace(breaks=breaks, allow=allow, goes=False)
        request = request._replace(**changes)
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(request.cwd or ".")
        environment = {**os.environ, **request.environment()}
        try:
            os.execve(request.command[0], request.command, environment)  # noqa: S606 -- recorded
        except OSError as error:
            return f"the program cannot be started again: {error}"

    def _keep_edits(self) -> str:
        """Write the changed variables for the next start; return why that is not possible."""
        seal, run_id = self.active.journal.seal, self.active.run_id
        payload, changed = b"", list[list[Any]]()
        for name, value in self.edits().items():
            try:
                data, form = codec.encode(value, f"the new value of {name!r}")
            except errors.StepwiseError as error:
                return str(error)
            payload += bytes(data)
            changed.append([name, form, len(data)])
        secret = self.active.secrets.found_in(payload)
        if secret:
            return f"a changed variable holds the secret {secret!r}, which is never stored"
        with open(self.request.edits_file, "wb") as file:
            file.write(bytes(seal.close(f"debug/{run_id}", changed, payload)[0]))
        return ""

    def move(self, by: int) -> str:
        """Go to another kept checkpoint; return why that is not possible."""
        here = self.names.index(self.chosen.name) if self.chosen is not None else -1
        if not 0 <= here + by < len(self.names):
            which = "earlier" if by < 0 else "later"
            return f"no {which} checkpoint is kept; @workflow(retention='all') keeps all"
        return self._started_again(
            checkpoint=self.names[here + by], line=0, edits=False, replay=False
        )

    def jump(self, line: int) -> str:
        """Continue before a later statement; return why that is not possible."""
        node = self._source.node()
        if self.chosen is None or node is None or self._rewritten is None:
            return "the run has no checkpoint yet, and only a restored frame can jump"
        target = self._target(self.chosen)
        now = following_line(node, self._rewritten.points[target].position) or 0
        if line <= now:
            return (
                f"line {line} is not behind line {now}: steps between them would be made twice. "
                "back goes to an earlier checkpoint"
            )
        if not self._points_at(line, target):
            return f"no statement at line {line} can be entered from here"
        return self._keep_edits() or self._started_again(
            checkpoint=self.chosen.name, line=line, edits=True, replay=False
        )

    def reload(self) -> str:
        """Open the run again, with today's source; return why that is not possible."""
        return self._keep_edits() or self._started_again(line=0, edits=True, replay=False)

    def fork(self) -> str:
        """Go on as a fork with the variables of the frame; return why that is not possible."""
        from stepwise._runs.fork import Change, fork

        journal, run_id = self.active.journal, self.active.run_id
        if self.chosen is None:
            return "the run has no checkpoint to fork: stepwise fork --at 0 begins again"
        if kernel_shell() is not None or self.look.live:
            return self._started_again()
        problem = self._keep_edits()
        if problem:
            return problem
        change = Change(variables=self.edits(), checkpoint=self.chosen.name)
        try:
            new = fork(journal.store, journal.seal, run_id, change, None)
        except errors.StepwiseError as error:
            return str(error)
        _say(f"stepwise: fork {new} goes on")
        return self._started_again(
            run_id=new, checkpoint="", at=-1, line=0, edits=False, goes=True, replay=False
        )

    def leave(self, code: int = 0) -> Any:
        """End the process without executing any code of the program."""
        if kernel_shell() is not None:
            run_id = self.active.run_id
            why = f"the debugger has left run {run_id!r}: nothing was recorded"
            raise self.active.stop(errors.RunStopped(why, run_id=run_id))
        if self._acquired:
            self.active.lease.release()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _fail(self, error: BaseException) -> Any:
        """Say why the run cannot be looked at or go on, and leave."""
        if isinstance(error, errors.RunStopped) and error is self.active.stopped:
            raise error
        if isinstance(error, KeyboardInterrupt):
            self.leave(130)
        told = str(error)
        if not isinstance(error, (errors.StepwiseError, errors.RunStopped)):
            told = f"the frame cannot be restored: {type(error).__name__}: {error}"
        _say(f"stepwise: {printable(told, 2000)}", sys.stderr)
        self.leave(1)


def _say(text: str, file: Any = None) -> None:
    print(text, file=file, flush=True)


# -- in an editor ----------------------------------------------------------------------------------


def listen(port: int, frame: FrameType) -> None:
    """Wait for a client of the Debug Adapter Protocol, and stop at the next line of the frame."""
    import debugpy

    if not debugpy.is_client_connected():
        host, port = debugpy.listen(("127.0.0.1", port))
        _say(f"stepwise: waiting for a debugger's client at {host}:{port}")
        debugpy.wait_for_client()
    importlib.import_module("pydevd").settrace(  # of debugpy, which hides it in a folder
        suspend=True,
        trace_only_current_thread=True,
        patch_multiprocessing=False,
        stop_at_frame=frame,
    )


def is_client_there() -> bool:
    """Return whether the client is still connected."""
    import debugpy

    return bool(debugpy.is_client_connected())
