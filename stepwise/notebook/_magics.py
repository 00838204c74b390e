"""The cells of a notebook that are steps: their inputs, their outputs, their run, and the magic.

Inputs are compared by digests.  A function or class that a cell of the notebook defines counts by
its code, and by the values that the code reads in turn.  So editing a helper runs the cells again
that use it.  Outputs are recorded while they are shown, and shown again when the cell is skipped.
Recording does not change how anything is shown.
"""

from __future__ import annotations

import argparse
import difflib
import dis
import inspect
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError

from stepwise._display.progress import Display, Doing
from stepwise._display.render import RunShown
from stepwise._journal.records import Entry
from stepwise._rewrite.cells import AWAIT, parse_cell
from stepwise._rewrite.cells import Cell as Code
from stepwise._runs.overview import Overview
from stepwise._runs.run import Run, get_run
from stepwise._runtime import settings
from stepwise._runtime.messages import Once, count, notice
from stepwise._values import digest
from stepwise._workflows import host
from stepwise.errors import DigestError, NotRecordableError, RunBusyError, RunWarning, StepwiseError
from stepwise.stores import Store, open_store

if TYPE_CHECKING:
    from typing_extensions import Self


# -- inputs ---------------------------------------------------------------------------------------


_NOT_STATE = frozenset(
    f"__{name}__"
    for name in (
        *("annotations", "annotate_func", "annotations_cache", "dict", "doc", "firstlineno"),
        *("module", "qualname", "static_attributes", "weakref"),
    )
)


@dataclass
class Inputs:
    """The inputs of a cell.

    Args:
        digests: the digests of values, by name.
        left_out: why a value cannot be compared, by name.
    """

    digests: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, DigestError] = field(default_factory=dict)


def identify(names: Iterable[str], namespace: Mapping[str, Any]) -> Inputs:
    """Digest the values of these names, and of the names that functions among them read.

    Names missing from the namespace and modules do not count.
    """
    inputs, waiting = Inputs(), list(names)
    for name in waiting:
        if name not in namespace or name in inputs.digests:
            continue
        value = namespace[name]
        if isinstance(value, ModuleType):
            continue
        codes = _codes(value)
        try:
            if codes is None:
                inputs.digests[name] = digest.digest(value)
                continue
            inputs.digests[name] = digest.combine(*_parts(inspect.unwrap(value)))
        except DigestError as error:
            inputs.left_out[name] = error
            continue
        waiting += (each for code in codes for each in _reads(code))
    return inputs


def _codes(value: Any) -> list[CodeType] | None:
    """Return the code of a function or class that the notebook defines, or ``None`` for others."""
    found = inspect.unwrap(value) if callable(value) else value
    if not isinstance(found, (FunctionType, type)) or found.__module__ != "__main__":
        return None
    if isinstance(found, FunctionType):
        return [found.__code__]
    return [each.__code__ for each in map(_function, vars(found).values()) if each is not None]


def _function(held: Any) -> FunctionType | None:
    held = getattr(held, "__func__", None) or getattr(held, "fget", None) or held
    held = inspect.unwrap(held) if callable(held) else held
    return held if isinstance(held, FunctionType) else None


def _parts(value: Any) -> Iterator[bytes | str]:
    """Yield the parts that tell two functions or classes apart."""
    yield digest.class_name(type(value))
    if isinstance(value, FunctionType):
        yield value.__qualname__
        yield _code(value)
        cells = [digest.cell_content(cell, cell) for cell in value.__closure__ or ()]
        for held in (value.__defaults__, value.__kwdefaults__, *cells):
            yield from _state(held)
        return
    yield from (digest.class_name(base) for base in value.__mro__)
    for name, held in sorted(vars(value).items()):
        function = _function(held)
        if function is not None:
            yield name
            yield _code(function)
        elif name not in _NOT_STATE:
            yield name
            yield from _state(held)


def _state(value: Any) -> Iterator[bytes]:
    try:
        yield digest.encode(value)
    except DigestError:
        return


def _code(function: FunctionType) -> bytes:
    """Return the code of a function without its docstring."""
    code = function.__code__
    if function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    return repr(digest.shape_of(code)).encode("utf-8", "backslashreplace")


def _reads(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _reads(constant)


# -- outputs --------------------------------------------------------------------------------------


_TEXT = 1_000_000  # characters of printed text to keep

Item = tuple[Any, ...]


class Shown:
    """The results of a cell beside its variables.

    Args:
        items: the shown outputs; see :class:`Recorder`.
        gone: the variables that the cell deleted.
    """

    def __init__(self, items: list[Item], gone: list[str]) -> None:
        self.items = items
        self.gone = gone

    def __repr__(self) -> str:
        return f"<{count(len(self.items), 'output')}>"


class Recorder:
    """Recorder of everything that is shown while the recorder is entered.

    Attributes:
        items: ``("stdout", text)``, ``("stderr", text)``, or ``("data", data, metadata, id)``.
    """

    def __init__(self, shell: Any) -> None:
        self.items: list[Item] = []
        self._shell = shell
        self._left = _TEXT
        self._clear = False
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def __enter__(self) -> Self:
        publisher, hook = self._shell.display_pub, self._shell.displayhook
        for name in ("stdout", "stderr"):
            self._listen(getattr(sys, name), "write", partial(self._on_write, name))
        self._listen(publisher, "publish", self._on_publish)
        self._listen(publisher, "clear_output", self._on_clear)
        self._listen(hook, "write_format_data", self._on_result)
        self._listen(hook, "write_output_prompt", self._on_prompt)
        return self

    def _listen(self, owner: Any, name: str, heard: Callable[..., Any]) -> None:
        """Replace a method of an object by a listener; other code keeps holding the same object."""
        plain, had = getattr(owner, name), name in vars(owner)
        setattr(owner, name, partial(heard, plain))
        self._undo.append((owner, name, plain, had))

    def __exit__(self, *exception: object) -> None:
        for owner, name, plain, had in reversed(self._undo):
            if had:
                setattr(owner, name, plain)
            else:
                delattr(owner, name)

    def _add(self, item: Item) -> None:
        if self._clear:
            self._clear = False
            self.items.clear()
        self.items.append(item)

    def _text(self, stream: str, text: str) -> None:
        if self._left < 0:
            return
        kept = text[: self._left]
        if len(kept) < len(text) and self._left:
            kept += "\n[further output was too long to record]\n"
        self._left = max(0, self._left - len(text))
        if kept and self.items and self.items[-1][0] == stream and not self._clear:
            self.items[-1] = (stream, self.items[-1][1] + kept)
        elif kept:
            self._add((stream, kept))

    def _on_write(self, stream: str, plain: Callable[[str], Any], text: str) -> Any:
        self._text(stream, text)
        return plain(text)

    def _on_publish(
        self,
        plain: Callable[..., None],
        data: Any,
        metadata: Any = None,
        *args: Any,
        transient: Any = None,
        **kw: Any,
    ) -> None:
        ident = (transient or {}).get("display_id")
        if "stepwise" in (metadata or {}):  # progress and notices are not output of the cell
            plain(data, metadata, *args, transient=transient, **kw)
            return
        item = ("data", data, metadata or {}, ident)
        if kw.get("update"):
            self.items = [item if e[0] == "data" and e[3] == ident else e for e in self.items]
        else:
            self._add(item)
        plain(data, metadata, *args, transient=transient, **kw)

    def _on_clear(
        self, plain: Callable[..., None], wait: bool = False, *args: Any, **kw: Any
    ) -> None:
        self._clear = True
        if not wait:
            self._clear = False
            self.items.clear()
        plain(wait, *args, **kw)

    def _on_result(self, plain: Callable[..., None], data: Any, metadata: Any = None) -> None:
        self._add(("data", data, metadata or {}, None))
        with self._muted():
            plain(data, metadata)

    def _on_prompt(self, plain: Callable[[], None]) -> None:
        with self._muted():
            plain()

    @contextmanager
    def _muted(self) -> Iterator[None]:
        """Suspend recording of text: a terminal prints values, which are recorded already."""
        left, self._left = self._left, -1
        try:
            yield
        finally:
            self._left = left


def replay(shell: Any, items: list[Item]) -> None:
    """Show the recorded output again."""
    for kind, *content in items:
        if kind == "data":
            shell.display_pub.publish(content[0], content[1])
        else:
            getattr(sys, kind).write(content[0])


# -- session --------------------------------------------------------------------------------------


_CELLS = "stepwise.notebook"  # the module name of cells, as steps

Cell = host.Piece


class Notebook:
    """The run of one notebook, as this kernel knows it."""

    def __init__(self) -> None:
        name = f"{host.place_of('__main__')}:notebook"
        path = os.environ.get("JPY_SESSION_NAME", "")
        label = os.path.splitext(os.path.basename(path))[0] or "notebook"
        self.run_id = host.derived_id(name, label)
        self._cells = host.RunPieces(
            host.HostProgram(name, label, _notebook), self.run_id, _CELLS, "cell"
        )

    def run(self) -> Run:
        """Return the run, as this kernel sees it.

        Raises:
            RunNotFoundError: no cell has been executed.
        """
        found = get_run(self.run_id)
        return _NotebookRun(found.store, found.id, self)

    def as_seen(self, shown: RunShown) -> RunShown:
        """Return the display form of the run, with the cells that this kernel skipped."""
        cells = self._cells
        executed, skipped = cells.progress.executed, cells.progress.skipped
        if not executed + skipped:
            return shown
        began = cells.progress.resumed_from if cells.begun else skipped
        begun = (
            shown.begun
            if cells.begun
            else 1 + max((s._entry.number for s in shown.steps), default=0)
        )
        saved = sum(s.duration or 0.0 for s in shown.steps if s._entry.number < begun)
        return replace(
            shown,
            executed=executed,
            skipped=skipped,
            resumed_from=began,
            begun=begun,
            saved=saved,
        )

    # -- records ---------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store that is set now."""
        return open_store(settings.store())

    def find(self, name: str, digest: str) -> Entry | None:
        """Return the newest record of a cell, or ``None`` if the cell is not done."""
        return self._cells.find(self.store, name, digest)

    def load(self, entry: Entry) -> dict[str, Any]:
        """Load the variables and outputs of a skipped cell.

        Raises:
            UnreadableValueError: the values cannot be loaded here.
        """
        value: dict[str, Any] = self._cells.skip(entry)
        return value

    # -- executing -------------------------------------------------------------------------------

    def execute(self, cell: Cell) -> None:
        """Execute a cell, and record it.

        Raises:
            RunBusyError: another kernel executes a cell of this notebook; the message names the
                kernel.
            NotRecordableError: the outputs of the cell cannot be recorded.
        """
        with self._shown(cell):
            self._open(cell).execute()

    async def execute_async(self, cell: Cell) -> None:
        """Execute and record a cell that awaits; see :meth:`execute`."""
        with self._shown(cell):
            await self._open(cell).execute_async()

    @contextmanager
    def _shown(self, cell: Cell) -> Iterator[None]:
        """Show the progress of the cell within the block."""
        doing = Doing(self.run_id, f"cell {cell.name!r}", cell=True)
        display = Display.of(doing, None, unasked=True)
        try:
            yield
        finally:
            if display is not None:
                display.close()

    def _open(self, cell: Cell) -> host.PieceRun:
        try:
            return self._cells.open(self.store, cell)
        except RunBusyError as error:
            raise RunBusyError(
                f"a cell of this notebook is being executed {host.describe_owner(error.owner)}: "
                "wait until it ends, or interrupt or shut down that kernel",
                run_id=self.run_id,
                owner=error.owner,
            ) from None


class _NotebookRun(Run):
    """The run of this notebook, with the cells that this kernel skipped."""

    def __init__(self, store: Store, run_id: str, notebook: Notebook) -> None:
        super().__init__(store, run_id)
        self._notebook = notebook

    def _shown(self, seen: Overview | None = None) -> RunShown:
        return self._notebook.as_seen(super()._shown(seen))


def _notebook() -> None:
    """Stand in for the function that a notebook does not have."""


# -- magics ---------------------------------------------------------------------------------------


ATTRIBUTE = "_stepwise_cells"
"""Name of the shell's attribute that a cell with ``await`` calls."""

_MAGIC = re.compile(r"%%step(?=\s|$)")
_OUTPUT = "(shown)"  # the key of the cell's output among its variables


class _Parser(argparse.ArgumentParser):
    """Parser that raises ``UsageError`` instead of ending the process."""

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
    """A parsed ``%%step`` cell.

    Args:
        name: the cell's name in listings.
        digest: of the cell's code and inputs.
        source, raw: the cell as Python, and as it was typed.
        inputs: the compared inputs.
        outputs: the variables to record; ``None`` for all that the cell turns out to bind.
        fresh: execute the cell even if it is done.
        before: all variables before the cell.
        executed: the cell came to its end.
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
        shell: IPython's shell.
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
        """Make this cell a step: once done, it is skipped, and its results are restored.

        ::

            %%step [NAME] [--in a,b] [--out c,d] [--fresh]

        Args:
            line: NAME: the cell's name in listings.  ``--in``: the variables that it depends on; by
                default all that it reads.  ``--out``: the variables to record; by default all that
                it changes. ``--fresh``: run the cell again although it is done.
            cell: the code; comments and layout do not count.
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
        """Make a cell with ``await`` outside of its functions a step; see :meth:`step`."""
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
        """Rewrite a ``%%step`` cell with ``await`` to be awaited, which a magic function cannot do.

        Other cells stay plain, since an interrupt of the kernel reaches only plain code at once.
        """
        if not lines or not _MAGIC.match(lines[0]):
            return lines
        options, body = lines[0].rstrip("\n")[len("%%step") :].strip(), "".join(lines[1:])
        try:
            if not parse_cell(self.shell.transform_cell(body)).awaits:
                return lines
        except SyntaxError:
            return lines  # executing the cell reports it
        return [f"await get_ipython().{ATTRIBUTE}.astep({options!r}, {body!r})\n"]

    def _understand(self, line: str, cell: str) -> _Job:
        try:
            options = _step_options.parse_args(shlex.split(line, comments=True))
        except ValueError as error:
            raise UsageError(f"%%step {line}: {error}") from None
        # The first line stands for the magic's line, so that line numbers match the cell.
        source = f"# %%step {line}\n{self.shell.transform_cell(cell)}"
        code = parse_cell(source)
        inputs = self._identify(options.inputs, code)
        bound = sorted(code.binds, key=lambda each: each in code.defines)  # variables first
        name = options.name or (bound[0] if bound else "cell")
        parts = [part for pair in sorted(inputs.digests.items()) for part in pair]
        outputs = sorted(options.outputs) if options.outputs is not None else ["*"]
        told = digest.combine(code.fingerprint, "\n".join(outputs), *parts)
        kept, before = options.outputs, dict(self._variables)
        job = _Job(name, told, code, source, cell, inputs, kept, options.fresh, before)
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
        """Return the cell's code objects, and the name of their file."""
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
        """Restore and show the recorded results of a cell if it is done; return whether it was."""
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
            raise  # no reason to run a finished cell again
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
    """Return the part of a traceback that begins in a file, or all of it if none does."""
    inside = traceback
    while inside is not None and inside.tb_frame.f_code.co_filename != file:
        inside = inside.tb_next
    return inside or traceback


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, StepwiseError) else f"{type(error).__name__}: {error}"
