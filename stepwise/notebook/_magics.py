"""``%%step``: a cell of a notebook that is a step."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import shlex
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

from stepwise._rewrite.cells import AWAIT, parse_cell
from stepwise._rewrite.cells import Cell as Code
from stepwise._runtime.messages import Once, notice
from stepwise._values import digest as _digest
from stepwise.errors import ConfigurationError, NotRecordableError, RunWarning, StepwiseError
from stepwise.notebook._inputs import Inputs, identify
from stepwise.notebook._outputs import Recorder, Shown, replay
from stepwise.notebook._session import Cell, Notebook

try:
    from IPython.core.error import UsageError
except ImportError as error:
    raise ConfigurationError(
        "stepwise in notebooks needs IPython: pip install 'stepwise-agents[notebook]'"
    ) from error

__all__ = ["ATTRIBUTE", "StepMagic", "UsageError"]

ATTRIBUTE = "_stepwise_cells"
"""The method of the shell that a cell with ``await`` calls."""

_MAGIC = re.compile(r"%%step(?=\s|$)")
_OUTPUT = "(shown)"  # the key of the cell's output, among the variables


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not name.isidentifier():
            raise UsageError(f"{name!r} is not the name of a variable; give them as a,b,c")
    return names


_step_options = _Parser(prog="%%step", add_help=False)
_step_options.add_argument("name", nargs="?")
_step_options.add_argument("--in", dest="inputs", type=_names, metavar="a,b")
_step_options.add_argument("--out", dest="outputs", type=_names, metavar="c,d")
_step_options.add_argument("--fresh", action="store_true")


@dataclass
class _Job:
    """A ``%%step`` cell, understood.

    Args:
        name: in listings.
        digest: of its code and its inputs.
        source, raw: of the cell: Python, and as it was typed.
        outputs: what is recorded; ``None`` for what it turns out to bind.
        fresh: it is executed even if it is done.
        before: all variables, as they were.
        executed: it came to its end.
    """

    name: str
    digest: str
    code: Code
    source: str
    raw: str
    inputs: Inputs
    outputs: list[str] | None
    fresh: bool
    before: dict[str, Any]
    executed: bool = False


class StepMagic:
    """The cell magic.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.notebook = Notebook()
        self._is_first = Once()

    @property
    def _variables(self) -> dict[str, Any]:
        variables: dict[str, Any] = self.shell.user_ns
        return variables

    def step(self, line: str, cell: str) -> None:
        """Make this cell a step: skipped, with its variables and its output, once it is done.

        ::

            %%step [NAME] [--in a,b] [--out c,d] [--fresh]

        Args:
            line: NAME: in listings.  ``--in``: the variables that it depends on; by default those
                that it reads.  ``--out``: those that are recorded; by default all that it changes.
                ``--fresh``: run it again although it is done.
            cell: comments and layout in it do not count.
        """
        __tracebackhide__ = True
        job = self._understand(line, cell)
        if self._skip(job):
            return
        body, file = self._body(job)

        def execute() -> Any:
            with Recorder(self.shell) as recorder:
                for each in body:
                    exec(each, self._variables)  # noqa: S102
                self.shell.events.trigger("post_execute")  # the figures of matplotlib
            return self._outputs(job, recorder)

        try:
            self.notebook.execute(self._cell(job, execute))
        except BaseException as error:
            self._fail(job, error, file)

    async def astep(self, line: str, cell: str) -> None:
        """The same for a cell with ``await`` outside of its functions."""
        __tracebackhide__ = True
        job = self._understand(line, cell)
        if self._skip(job):
            return
        body, file = self._body(job)

        async def execute() -> Any:
            with Recorder(self.shell) as recorder:
                for each in body:
                    value = eval(each, self._variables)  # noqa: S307
                    if each.co_flags & inspect.CO_COROUTINE:
                        await value
                self.shell.events.trigger("post_execute")
            return self._outputs(job, recorder)

        try:
            await self.notebook.execute_async(self._cell(job, execute))
        except BaseException as error:
            self._fail(job, error, file)

    def await_steps(self, lines: list[str]) -> list[str]:
        """Have a ``%%step`` cell with ``await`` awaited, which a magic function cannot.

        The others stay plain, since an interrupt of the kernel reaches only plain code at once.
        """
        if not lines or not _MAGIC.match(lines[0]):
            return lines
        options, body = lines[0].rstrip("\n")[len("%%step") :].strip(), "".join(lines[1:])
        try:
            if not parse_cell(self.shell.transform_cell(body)).awaits:
                return lines
        except SyntaxError:
            return lines  # reported on execution
        return [f"await get_ipython().{ATTRIBUTE}.astep({options!r}, {body!r})\n"]

    def _understand(self, line: str, cell: str) -> _Job:
        try:
            options = _step_options.parse_args(shlex.split(line, comments=True))
        except ValueError as error:
            raise UsageError(f"%%step {line}: {error}") from None
        # The first line is the magic's, so that line numbers are those in the cell.
        source = f"# %%step {line}\n{self.shell.transform_cell(cell)}"
        code = parse_cell(source)
        inputs = self._identify(options.inputs, code)
        bound = sorted(code.binds, key=lambda each: each in code.defines)  # variables first
        name = options.name or (bound[0] if bound else "cell")
        parts = [part for pair in sorted(inputs.digests.items()) for part in pair]
        outputs = sorted(options.outputs) if options.outputs is not None else ["*"]
        digest = _digest.combine(code.fingerprint, "\n".join(outputs), *parts)
        kept, before = options.outputs, dict(self._variables)
        job = _Job(name, digest, code, source, cell, inputs, kept, options.fresh, before)
        for left_out in inputs.left_out:
            self._tell_left_out(job, left_out)
        return job

    def _identify(self, given: list[str] | None, code: Code) -> Inputs:
        hidden = self.shell.user_ns_hidden  # IPython's own
        variables = {
            name: value
            for name, value in self._variables.items()
            if name not in hidden or hidden[name] is not value
        }
        if given is None:
            return identify(code.reads, variables)
        for name in given:
            if name not in variables:
                near = difflib.get_close_matches(name, variables, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise UsageError(f"--in {name}: there is no variable of that name{hint}")
        inputs = identify(given, variables)
        for name in given:
            if name in inputs.left_out:
                raise UsageError(f"--in {name}: {inputs.left_out[name]}")
        return inputs

    def _tell_left_out(self, job: _Job, name: str) -> None:
        if self._is_first((job.name, name)):
            kind = type(self._variables[name]).__name__
            notice(
                f"cell {job.name!r} reads {name!r}, a {kind} that cannot be compared: a change of "
                "it does not run the cell again. Name the inputs that count: %%step --in"
            )

    def _cell(self, job: _Job, execute: Callable[[], Any]) -> Cell:
        values = {n: self._variables[n] for n in job.inputs.digests if n in self._variables}
        site = f"In[{self.shell.execution_count}]"
        return Cell(job.name, job.digest, values, site, execute)

    def _body(self, job: _Job) -> tuple[list[Any], str]:
        """The cell's code objects, and the name of their file."""
        shell = self.shell
        compiler = shell.compile
        file = compiler.cache(job.source, shell.execution_count, raw_code=job.raw)
        tree = shell.transform_ast(job.code.tree)
        parts = job.code.parts(tree, quiet=job.raw.rstrip().endswith(";"))
        with compiler.extra_flags(AWAIT if job.code.awaits else 0):
            return [compiler(each, file, mode) for each, mode in parts], file

    # -- outputs ---------------------------------------------------------------------------------

    def _outputs(self, job: _Job, recorder: Recorder) -> dict[str, Any]:
        """Build the record of an executed cell."""
        variables = self._variables
        names = job.outputs if job.outputs is not None else self._changed(job)
        missing = [name for name in names if name not in variables]
        if missing:
            raise UsageError(f"--out {missing[0]}: the cell {job.name!r} does not bind it")
        gone = [n for n in job.before if n not in variables and not n.startswith("_")]
        job.executed = True
        found = {name: variables[name] for name in names}
        return {**found, _OUTPUT: Shown(recorder.items, gone)}

    def _changed(self, job: _Job) -> list[str]:
        """Return the variables that the cell has bound, and the inputs that it has changed."""
        variables, before, binds = self._variables, job.before, set(job.code.binds)
        after = identify(job.inputs.digests, variables).digests
        return [
            name
            for name, value in variables.items()
            if name not in job.code.defines
            and (not name.startswith("_") or name in binds)
            and (
                name in binds
                or name not in before
                or before[name] is not value
                or after.get(name) != job.inputs.digests.get(name)
            )
        ]

    def _skip(self, job: _Job) -> bool:
        """Restore and show the recorded results of a cell, if it is done."""
        entry = None if job.fresh else self.notebook.find(job.name, job.digest)
        if entry is None:
            return False
        variables = self._variables
        try:
            # Classes first, since restored objects may be their instances.
            file = self.shell.compile.cache(job.source, self.shell.execution_count, job.raw)
            exec(self.shell.compile(job.code.definitions, file, "exec"), variables)  # noqa: S102
            value = self.notebook.load(entry)
        except MemoryError:
            raise  # not a reason to run a done cell again
        except Exception as error:
            notice(f"cell {job.name!r} is done, but runs again, since {_told(error)}")
            return False
        shown: Shown = value.pop(_OUTPUT)
        variables.update(value)
        for name in shown.gone:
            variables.pop(name, None)
        call, at = entry.record.call, entry.record.at  # type: ignore[union-attr]
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        restored = f"; restored {', '.join(value)}" if value else ""
        notice(
            f"cell {job.name!r} is skipped: done at {when} in {at - call.at:.1f} s{restored} "
            "(%%step --fresh runs it again)"
        )
        replay(self.shell, shown.items)
        return True

    def _fail(self, job: _Job, error: BaseException, file: str) -> None:
        """Raise the exception of a cell, or warn that its results cannot be recorded."""
        __tracebackhide__ = True
        if not isinstance(error, NotRecordableError) or not job.executed:
            raise error.with_traceback(_from(error.__traceback__, file))
        name = _VARIABLE.match(error.path)
        which = f"its variable {name[1]!r}{name[2]}" if name else "its output"
        kept = [
            n for n in job.code.binds if n not in job.code.defines and not (name and n == name[1])
        ]
        warnings.warn_explicit(
            f"cell {job.name!r} was executed, but is not recorded, and runs again next time: "
            f"{which} is a {error.type_name}, which cannot be pickled. Name the variables to keep "
            f"(%%step --out {','.join(kept) or 'a,b'}), or make the others in a plain cell",
            RunWarning,
            filename=file,
            lineno=1,
        )


_VARIABLE = re.compile(r"\['(\w+)'\](.*)", re.DOTALL)


def _from(traceback: TracebackType | None, file: str) -> TracebackType | None:
    """A traceback from where it enters a file on."""
    inside = traceback
    while inside is not None and inside.tb_frame.f_code.co_filename != file:
        inside = inside.tb_next
    return inside or traceback


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, StepwiseError) else f"{type(error).__name__}: {error}"
