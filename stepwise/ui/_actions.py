"""Actions of the pages: each form calls the method of :class:`stepwise.Run` of its name.

The fields of the forms, beside ``token``::

    resume, compensate           none
    delete, adopt                none
    cancel                       reason
    send                         name, key, and value (JSON) or a field:NAME for each property
    approve                      step, ticket, note
    deny                         step, ticket, reason
    resolve                      step, way, value, stop
    forget-step                  step
    fork                         step, variable:NAME, result:NUMBER, id, messages, start

``way`` is ``landed``, ``did_not_happen``, ``same`` or ``another``.  An empty variable or result of
a fork stays as it is.  ``back`` is the page to show next: ``inbox``, ``runs``, or empty for the
run's.

``resume`` starts the recorded program, never in this process: its output goes into a file without a
name, so that it lives on when the server ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from stepwise._journal.persons import acting_as
from stepwise._journal.summary import open_waits
from stepwise._runs import starting
from stepwise._runs.branching import adopt
from stepwise._runs.messages import json_or_text, parsed_json
from stepwise._runs.run import Run
from stepwise._runtime.messages import printable
from stepwise.errors import ConfigurationError, RunStopped, StepwiseError
from stepwise.stores import Store
from stepwise.ui._reading import RunReader

_logger = logging.getLogger("stepwise.ui")

# -- fields ---------------------------------------------------------------------------------------


class BadFieldError(Exception):
    """A field of a form cannot be understood; the text says how to write it."""


class FormFields:
    """The fields of a form."""

    def __init__(self, given: Mapping[str, list[str]]) -> None:
        self._given = given

    def one(self, name: str) -> str:
        """Return the value of a field; empty if it is missing."""
        return self._given.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Return the values of a field that may be repeated."""
        return self._given.get(name, [])

    def below(self, prefix: str) -> dict[str, str]:
        """Return the values of the fields whose names begin so, by the remaining names."""
        begun = [name for name in self._given if name.startswith(prefix)]
        return {name[len(prefix) :]: self.one(name) for name in begun}

    def step(self) -> int:
        """Return the number of a step."""
        return self.number("step")

    def number(self, name: str) -> int:
        """Return a whole number.

        Raises:
            BadFieldError: the field is none.
        """
        text = self.one(name)
        if not (text.isdecimal() and text.isascii() and len(text) < 10):
            raise BadFieldError(f"{name} is {text[:80]!r}, which is no whole number")
        return int(text)


def _json(text: str, what: str) -> Any:
    try:
        return parsed_json(text)
    except ValueError as error:
        raise BadFieldError(
            f'{what} is not JSON ({error}): write "text", 42, true, null, ["a"] or {{"id": 1}}'
        ) from None


def _json_or_text(text: str) -> Any:
    try:
        return json_or_text(text)
    except ValueError as error:
        raise BadFieldError(str(error)) from None


def typed(schema: Mapping[str, Any], text: str, what: str) -> Any:
    """Return the value of a form's field, by the JSON schema of its type."""
    kind = schema.get("type")
    if kind == "string":
        return text
    if kind == "boolean":
        return text in ("true", "on", "1", "yes")
    return _json(text, what) if kind else _json_or_text(text)


def _object(schema: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the object that a form made from a schema gives; an empty field is left out."""
    found = {}
    needed = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        text = given.get(name, "")
        is_switch = each.get("type") == "boolean"  # a browser does not send one that is off
        if text or is_switch or (name in needed and each.get("type") == "string"):
            found[name] = typed(each, text, name)
    return found


def _changes(fields: FormFields, prefix: str) -> dict[str, Any]:
    """Return the values that a form gives, by name; an empty field gives none."""
    return {name: _json_or_text(text) for name, text in fields.below(prefix).items() if text}


# -- actions --------------------------------------------------------------------------------------


def _send(run: Run, fields: FormFields) -> None:
    name, given = fields.one("name"), fields.below("field:")
    schema: Mapping[str, Any] = {}
    for call in open_waits(run.store, run._seal, run._facts()):
        if call.wait is not None and call.wait.name == name and call.wait.schema:
            schema = parsed_json(call.wait.schema)
    value: Any
    if given:
        value = _object(schema, given)
    elif schema.get("type") == "string":
        value = fields.one("value")
    else:
        value = _json(fields.one("value"), "the value")
    run.send(name, value, fields.one("key") or None)


def _resolve(run: Run, fields: FormFields) -> None:
    way = fields.one("way")
    if way not in ("landed", "did_not_happen", "same", "another"):
        raise BadFieldError("choose one way: landed, did not happen, same or another")
    answer: dict[str, Any] = {way: True}
    if way == "landed":
        answer[way] = _json(fields.one("value") or "null", "the result")
    stop = fields.number("stop") if fields.one("stop") else None
    run.resolve(fields.step(), stop=stop, **answer)


_ACTIONS: dict[str, Callable[[Run, FormFields], object]] = {
    "cancel": lambda run, fields: run.cancel(fields.one("reason")),
    "send": _send,
    "approve": lambda run, fields: run.approve(
        fields.step(), fields.one("ticket"), fields.one("note")
    ),
    "deny": lambda run, fields: run.deny(fields.step(), fields.one("ticket"), fields.one("reason")),
    "resolve": _resolve,
    "forget-step": lambda run, fields: run.forget(fields.step()),
    "compensate": lambda run, _: run.compensate(),
    "delete": lambda run, _: run.delete(),
    "adopt": lambda run, _: adopt(run),
}
NAMES = frozenset((*_ACTIONS, "resume", "fork"))
_MARKED = {"resume": "resume", "cancel": "cancel", "forget": "delete"}


class Actions:
    """The actions of the forms of one application.

    Args:
        reader: of the store.
        store: the object that writes, which has more patience than that of the pages.
    """

    def __init__(self, reader: RunReader, store: Store) -> None:
        self._reader, self._store = reader, store
        self.programs = Programs()

    def do(self, who: str, action: str, run_id: str, fields: FormFields) -> tuple[str, ...]:
        """Do what a form says; return the parts of the address to go to.

        Args:
            who: the person, as what is recorded names her.

        Raises:
            BadFieldError: a field cannot be understood.
            StepwiseError: of the method of :class:`stepwise.Run`.
        """
        run = Run(self._store, run_id, self._reader.seal)
        with acting_as(who):
            if action == "fork":
                made = self._fork(run, fields)
                _logger.info("%s: fork of run %s, as %s", who, run.id, made.id)
                return "runs", made.id
            if action == "resume":
                self.resume(run)
            else:
                _ACTIONS[action](run, fields)
        _logger.info("%s: %s of run %s", who, action, run.id)
        if action == "delete" or fields.one("back") == "runs":
            return ()
        return ("inbox",) if fields.one("back") == "inbox" else ("runs", run.id)

    def do_marked(self, who: str, fields: FormFields) -> list[str]:
        """Do the same with several runs; return the problems, each with the id of its run.

        Raises:
            BadFieldError: the action is none that several runs can have.
        """
        action = _MARKED.get(fields.one("action"))
        if action is None:
            raise BadFieldError("choose what to do with the marked runs: resume, cancel or forget")
        problems = []
        for run_id in fields.all("id"):
            try:
                self.do(who, action, run_id, fields)
            except (StepwiseError, RunStopped) as problem:
                problems.append(f"{run_id}: {problem}")
        return problems

    def _fork(self, run: Run, fields: FormFields) -> Run:
        results: Any = _changes(fields, "result:")
        if fields.one("start"):  # before the fork is made, which has the same program
            starting.start_command(run)
            starting.check_start(run)
        made = run.fork(
            fields.step() if fields.one("step") else None,
            fields.one("id") or None,
            _changes(fields, "variable:"),
            results,
            messages=bool(fields.one("messages")),
        )
        if fields.one("start"):
            self.programs.start(made)
        return made

    def resume(self, run: Run) -> None:
        """Start the program of a run, unless a supervisor continues the run.

        Raises:
            ConfigurationError: the run has completed, a supervisor has it, or it cannot be started.
            RunBusyError: a process executes the run.
        """
        run = starting.top_of(run)
        status, workflow = run.status, run.workflow
        if not starting.can_resume(run):
            raise ConfigurationError(f"run {run.id!r} has completed: there is nothing to resume")
        supervisor = self._reader.supervisor(workflow)
        if supervisor and status in ("crashed", "suspended", "cancelling"):
            raise ConfigurationError(
                f"run {run.id!r} is left to {supervisor}, which continues the runs of {workflow} "
                "by itself: this one once its time or message has come, or after a pause if its "
                "process died"
            )
        self.programs.start(run)


# -- programs -------------------------------------------------------------------------------------


_TAIL = 64 << 10  # bytes of output that are kept
_MOST = 1 << 20  # bytes of output, after which only the end is kept
_PAUSE = 1.0  # seconds between two looks at the size of the output
_PROGRAMS = 100  # programs whose output is remembered


@dataclass(frozen=True)
class ProgramOutput:
    """The output of a program that the page has started.

    Args:
        command: the command line.
        pid: of the process.
        exit_code: its exit code; negative for a signal, ``None`` while it runs.
        text: the end of what it printed, on stdout and stderr.
    """

    command: str
    pid: int
    exit_code: int | None
    text: str


class Programs:
    """The programs that the pages have started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[str, _Launched] = {}

    def start(self, run: Run) -> None:
        """Start the program of a run.

        Raises:
            ConfigurationError: it cannot be started; or it was, and has not ended.
        """
        with self._lock:
            before = self._started.get(run.id)
            if before is not None and not before.has_ended:
                raise ConfigurationError(
                    f"the program of run {run.id!r} was started from this page already, as process "
                    f"{before.process.pid}, and has not ended"
                )
            ended = [each for each, program in self._started.items() if program.has_ended]
            for each in ended[: max(0, len(self._started) - _PROGRAMS + 1)]:
                del self._started[each]
            self._started[run.id] = _Launched(run)

    def wait(self, run_id: str, seconds: float) -> None:
        """Wait until the program of a run has ended, for so long at most."""
        program = self._started.get(run_id)
        if program is not None:
            program.watcher.join(seconds)

    def output(self, run_id: str) -> ProgramOutput | None:
        """Return what the program of a run printed; ``None`` if it was not started here."""
        program = self._started.get(run_id)
        return program.output() if program is not None else None


class _Launched:
    """A started program, and the file with its output, which has no name."""

    def __init__(self, run: Run) -> None:
        descriptor, path = tempfile.mkstemp(prefix="stepwise-")
        os.close(descriptor)
        self._lock, self._text = threading.Lock(), b""
        self._file: BinaryIO = open(path, "a+b", buffering=0)  # noqa: SIM115 -- closed at its end
        os.unlink(path)
        try:
            self.process = starting.launch(
                run,
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C for the server is none for the program
            )
        except BaseException:
            self._file.close()
            raise
        name = f"stepwise output of {self.process.pid}"
        self.watcher = threading.Thread(target=self._watch, name=name, daemon=True)
        self.watcher.start()

    def _watch(self) -> None:
        """Keep the output short until the program has ended."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_PAUSE)
                break
            if os.fstat(self._file.fileno()).st_size > _MOST:
                tail = self._tail()
                os.ftruncate(self._file.fileno(), 0)
                self._file.write(tail)
        with self._lock:
            self._text = self._tail()
            self._file.close()

    @property
    def has_ended(self) -> bool:
        """True if the program has ended."""
        return self._file.closed

    def _tail(self) -> bytes:
        size = os.fstat(self._file.fileno()).st_size
        return os.pread(self._file.fileno(), _TAIL, max(0, size - _TAIL))

    def output(self) -> ProgramOutput:
        """Return what is known of the program."""
        with self._lock:
            text = self._text if self.has_ended else self._tail()
        command: Any = self.process.args
        return ProgramOutput(
            command=printable(shlex.join(command)),
            pid=self.process.pid,
            exit_code=self.process.returncode,
            text=text.decode("utf-8", "replace"),
        )
