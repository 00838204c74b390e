"""``@workflow``: a function whose progress survives the process.

The :class:`Workflow` object is a wrapt ``FunctionWrapper``, since wrapt binds best to instances
and classes.  Three things differ.  A workflow reports its own class, so that stock cloudpickle does
not take it for the bare function.  It is equal only to itself, and it can be pickled.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import functools
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from stepwise import errors
from stepwise._calls.awaitables import coroutine_of
from stepwise._calls.driver import Core, Result, drive
from stepwise._calls.steps import step_of
from stepwise._checkpoints.checkpoints import Retention
from stepwise._execution.active_run import current_scope
from stepwise._execution.process_memory import keep_up_to_date, name_truly, register
from stepwise._identity.identity import Key, label_of
from stepwise._runtime import options as _options
from stepwise._runtime.messages import fold, kernel_shell
from stepwise._values.codec import pickled_by_value
from stepwise._values.preview import Redact
from stepwise._values.trees import found_at
from stepwise._workflows import definition as definitions
from stepwise._workflows.begin import ChildCall, TopLevel, WorkflowCall, next_run_id, run_of
from stepwise._workflows.execute import (
    Recall,
    execute,
    execute_async,
    execute_async_generator,
    execute_generator,
)
from stepwise.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from stepwise._execution.budget import Budget
    from stepwise._runs.run import Run
    from stepwise._workflows.handles import AsyncHandle, Handle

    class FunctionWrapper:
        """The type checker's view of wrapt's class: wrapt's own annotations say less than ours."""

        # Declared here, not in the classes below: there they would hide the function's annotations.
        __wrapped__: Any
        _self_parent: Workflow[..., Any]
        _self_instance: Any
        _self_owner: Any

    BoundFunctionWrapper = FunctionWrapper
else:
    from wrapt import BoundFunctionWrapper, FunctionWrapper


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

T = TypeVar("T")

_NOTHING = object()  # None is the result of a decorator that forgot its return


# -- the four forms of a function: plain, coroutine, generator, asynchronous generator ------------


def _invoke(
    workflow: definitions.Definition,
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    want_run: bool,
) -> Any:
    """Call a workflow; return its result or ``Run``, awaitable or iterable as its function is."""
    if workflow.is_generator or workflow.is_async_generator:
        if current_scope() is not None:
            # The items of a generator cannot be recorded as an outcome, so its steps belong to the
            # caller's run.
            return WorkflowCall(workflow, instance, args, kwargs).run_function()
        top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
        if workflow.is_generator:
            return _drain(top) if want_run else _generate(top)
        return _adrain(top) if want_run else execute_async_generator(top)
    if not workflow.is_coroutine:
        return _plain(workflow, instance, args, kwargs, want_run)
    return coroutine_of(_awaited, workflow.label, workflow, instance, args, kwargs, want_run)


def _plain(
    workflow: definitions.Definition, instance: Any, args: Any, kwargs: Any, want_run: bool
) -> Any:
    scope = current_scope()
    if scope is not None:
        child = ChildCall(workflow, instance, args, kwargs)
        return _given(child, drive(child.prepare(scope)), want_run)
    top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
    with _returning_run(top, want_run), top as opened:
        value = opened.value if isinstance(opened, Recall) else execute(opened)
    return run_of(top.store, top.run_id) if want_run else value


def _given(child: ChildCall, result: Result, want_run: bool) -> Any:
    """Return the result of a call of a child workflow, or its run."""
    if want_run and isinstance(result.error, errors.RunSkipped):
        return child.handle()
    value = result.unwrap()
    return child.handle() if want_run else value


async def _awaited(
    workflow: definitions.Definition, instance: Any, args: Any, kwargs: Any, want_run: bool
) -> Any:
    scope = current_scope()
    if scope is not None:
        from stepwise._calls.async_driver import adrive  # a synchronous program has no asyncio

        child = ChildCall(workflow, instance, args, kwargs)
        return _given(child, await adrive(child.prepare(scope)), want_run)
    import asyncio

    top = TopLevel(workflow, instance, args, kwargs, skips=want_run)
    await top.begin()
    with _returning_run(top, want_run), top as opened:
        value = opened.value if isinstance(opened, Recall) else await execute_async(opened)
        # A Ctrl-C during the last piece is raised now.  Raised after the end, it would lose the
        # result, and the next call would be a new run.
        await asyncio.sleep(0)
    return run_of(top.store, top.run_id) if want_run else value


def _generate(top: TopLevel) -> Generator[Any, Any, Any]:
    with top as opened:
        if isinstance(opened, Recall):
            return None  # skipped; a generator recalls nothing
        return (yield from execute_generator(opened))


def _drain(top: TopLevel) -> Run:
    with _returning_run(top, True):
        for _ in _generate(top):
            pass
    return run_of(top.store, top.run_id)


async def _adrain(top: TopLevel) -> Run:
    with _returning_run(top, True):
        async for _ in execute_async_generator(top):
            pass
    return run_of(top.store, top.run_id)


@contextlib.contextmanager
def _returning_run(top: TopLevel, want_run: bool) -> Generator[None, None, None]:
    """Suppress the exception of a suspension if the caller asked for the run.

    A notebook kernel outlives the cell, so it executes the run again once that must continue.
    """
    try:
        yield
    except errors.RunSuspended as error:
        if kernel_shell() is not None:
            from stepwise._execution.suspension import suspended_text  # on use
            from stepwise._workflows.handles import wake_here

            wake_here(top)
            text = suspended_text(top.run_id, error.waits)
            error.args = (f"{text}. It goes on in this kernel; then run the cell again",)
        if not want_run:
            raise


# -- the workflow ----------------------------------------------------------------------------------


Operation = Callable[[definitions.Definition, Any, tuple[Any, ...], dict[str, Any]], Any]
_give_result: Operation = functools.partial(_invoke, want_run=False)
_give_run: Operation = functools.partial(_invoke, want_run=True)


def _start(workflow: definitions.Definition, instance: Any, args: Any, kwargs: Any) -> Any:
    from stepwise._workflows.handles import start  # on use: most programs call their workflows

    return start(workflow, instance, args, kwargs)


class _KnownDefinition(definitions.Definition):
    """The definition by a decorator, by which this process knows the workflow."""

    def resume(self, run: Run, inputs: Mapping[str, Any], *, here: bool = False) -> Any:
        """Continue a run; return its handle, or its result if it is executed ``here``."""
        from stepwise._workflows.handles import resume  # on use

        return resume(self, run, inputs, here=here)


class _Offers(definitions.TakesOptions, Generic[P, R_co]):
    """The common interface of bound and unbound workflows, never mistaken for the function."""

    __slots__ = ()  # a __dict__ here would precede the __dict__ of the wrapper

    _by_name = True  # recorded by name, like a function, if the workflow has a name

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @property
    def definition(self) -> definitions.Definition:
        """The function and its options."""
        raise AssertionError

    def _with(self, definition: definitions.Definition, operation: Operation) -> Any:
        raise AssertionError

    @overload
    def execute(  # type: ignore[overload-overlap]
        self: _Offers[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Run]: ...
    @overload
    def execute(self, /, *args: P.args, **kwargs: P.kwargs) -> Run: ...
    def execute(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the workflow; return its :class:`Run`, awaitable if the function is a coroutine."""
        return self._with(self.definition, _give_run)(*args, **kwargs)

    @overload
    def start(  # type: ignore[overload-overlap]
        self: _Offers[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[T]: ...
    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...
    def start(self, /, *args: Any, **kwargs: Any) -> Any:
        """Start a run beside the caller; return its handle at once.

        The run is already recorded, so that its id can be passed on.  A plain workflow executes in
        a thread.  The interpreter waits for this thread at exit; after Ctrl-C, only up to the next
        step.  A coroutine function executes in a task of the running event loop, and ends with it.
        """
        return self._with(self.definition, _start)(*args, **kwargs)

    if TYPE_CHECKING:

        @overload
        def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> Run: ...
        @overload
        def submit(
            self,
            /,
            *args: Any,
            at: dt.datetime | dt.timedelta,
            run_id: str | None = None,
            **kwargs: Any,
        ) -> Run: ...
        @overload
        def submit(self, /, *args: Any, run_id: str, **kwargs: Any) -> Run: ...

    def submit(self, /, *args: Any, at: Any = None, run_id: Any = None, **kwargs: Any) -> Run:
        """Record a run that ``stepwise up`` begins, or ``recover()``; return it at once.

        Runs begin in the order of their submission.  Without ``run_id``, each submission is a run
        of its own.  A call of the workflow by the run's id begins it there.  Inside a run, the
        submission is a recorded step.

        Args:
            at: the run begins then at the earliest: a ``datetime`` with a time zone, or a
                ``timedelta`` from now.
            run_id: the id of the run.  If there is a run of that id and these arguments, that run
                is returned.

        Raises:
            RunConflictError: the id belongs to a run with other arguments.
            NotRecordableError: an argument cannot be recorded for the process that begins the run.
            ConfigurationError: ``at`` has no time zone; the workflow is a generator; or an argument
                of that name may be meant for the workflow.
        """
        from stepwise._workflows.submitted import submit  # on use: few programs submit

        operation = functools.partial(submit, at, run_id)
        found: Run = self._with(self.definition, operation)(*args, **kwargs)
        return found

    if not TYPE_CHECKING:

        def options(self, /, **changes: Any) -> Any:
            """Copy the workflow with other options: any of :func:`workflow`, and two more.

            Args:
                run_id: the run that a call means, instead of the run derived from its arguments.
                fresh: the same as ``start="new"``.

            Raises:
                ConfigurationError: the option is unknown, or cannot have this value.
            """
            definition = self.definition
            _options.check("workflow", definition.label, changes)
            for option in _options.OF_SCHEDULES.keys() & changes.keys():
                raise ConfigurationError(
                    f"{option}= of workflow {definition.label!r} belongs to its decorator: "
                    "stepwise up begins runs of the decorated function, and not of copies"
                )
            options = definition.options.changed(changes)
            return self._with(
                definitions.Definition(definition.function, options, definition), _give_result
            )

    @property
    def _core(self) -> Callable[..., Core] | None:
        """The function that makes the cores of calls inside a run; none for a generator."""
        definition = self.definition
        if definition.is_generator or definition.is_async_generator:
            return None

        def core(scope: Any, args: Any, kwargs: Any, *, asks_first: bool) -> Core:
            def prepare(*call: Any) -> Core:
                return ChildCall(*call).prepare(scope, asks_first=asks_first)

            made: Core = self._with(definition, prepare)(*args, **kwargs)
            return made

        return core

    def run_id_for(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the id of the run that the next call with these arguments will mean, here and now.

        Raises:
            ConfigurationError: the call will start a new run, whose id is not yet known.
        """
        run_id: str = self._with(self.definition, next_run_id)(*args, **kwargs)
        return run_id

    @property
    def full_name(self) -> str:
        """The name ``module:name``, or ``/path/script.py:name`` for a workflow of a script."""
        return self.definition.full_name

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return id(self)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<workflow {self.full_name}>"

    def __str__(self) -> str:
        return repr(self)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *dir(self.definition.function)})


class _BoundWorkflow(_Offers[P, R_co], BoundFunctionWrapper):
    """A workflow that was looked up on an instance or a class."""

    @property
    def definition(self) -> definitions.Definition:
        return self._self_parent.definition

    def _with(self, definition: definitions.Definition, operation: Operation) -> Any:
        unbound: Any = Workflow(self._self_parent.__wrapped__, definition, operation)
        return unbound.__get__(self._self_instance, self._self_owner)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _BoundWorkflow)
            and self._self_parent is other._self_parent
            and self._self_instance is other._self_instance
        )

    def __hash__(self) -> int:
        return hash((id(self._self_parent), id(self._self_instance)))

    def __deepcopy__(self, memo: Any) -> Any:
        instance = copy.deepcopy(self._self_instance, memo)
        return self._self_parent.__get__(instance, self._self_owner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        function, options = self.definition.function, self.definition.options
        instance, owner = self._self_instance, self._self_owner or type(self._self_instance)
        for base in owner.__mro__:
            for name, held in base.__dict__.items():
                found = _unbound(held)
                if isinstance(found, Workflow) and found.definition.function is function:
                    if found is self._self_parent:
                        return _get, (base, name, instance, owner)
                    return _with_options, (found.__get__(instance, owner), options)
        return _bind, (self._self_parent, instance, owner)


class Workflow(_Offers[P, R_co], FunctionWrapper):
    """A workflow function; made by :func:`workflow`."""

    __bound_function_wrapper__ = _BoundWorkflow

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type[Any], /) -> Workflow[P, R_co]: ...
        @overload
        def __get__(
            self: Workflow[Concatenate[T, Q], R_co], instance: T, owner: type[Any] | None = None, /
        ) -> Workflow[Q, R_co]: ...
        def __get__(self, *args: Any) -> Any: ...

    def __init__(
        self, wrapped: Any, definition: definitions.Definition, operation: Operation = _give_result
    ) -> None:
        def call(called: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if called is definition.function:  # not bound, though the function may have a __self__
                instance = None
            if instance is None and args and _is_class_method(args[0], definition.function):
                instance, *args = args  # since Python 3.13 a classmethod does not bind the class
            definition.follow()
            try:
                return operation(definition, instance, tuple(args), kwargs)
            except BaseException as error:
                raise fold(error)  # noqa: B904

        super().__init__(wrapped, call)  # type: ignore[call-arg]
        self._self_definition = definition

    @property
    def definition(self) -> definitions.Definition:
        return self._self_definition

    def _with(self, definition: definitions.Definition, operation: Operation) -> Any:
        function = definition.function
        if _is_class_method(definitions.class_of(function), function):
            raise ConfigurationError(
                f"{function.__qualname__} has @classmethod above @workflow: since Python 3.13, "
                "its options() and execute() cannot know their class then. Write "
                "@workflow above @classmethod"
            )
        return Workflow(self.__wrapped__, definition, operation)

    def __reduce_ex__(self, protocol: Any) -> Any:
        function, options = self.definition.function, self.definition.options
        module, name = function.__module__, function.__qualname__
        found = found_at(module, name)
        # By name, as pickle does with functions.  cloudpickle pickles definitions of __main__ by
        # value, since another process has another __main__.
        if (
            isinstance(found, Workflow)
            and found.definition.function is function
            and not (module == "__main__" and pickled_by_value())
        ):
            return name if found is self else (_with_options, (found, options))
        place = self.definition.place if module in ("__main__", "__mp_main__") else ""
        return _rebuild, (self.__wrapped__, options, place)


if TYPE_CHECKING:

    class ClassWorkflow(Workflow[Concatenate[type[T], Q], R]):
        """A class method: type checkers drop @classmethod, and keep its first parameter."""

        def __get__(  # type: ignore[override]
            self, instance: T | None, owner: type[T] | None = None, /
        ) -> Workflow[Q, R]: ...

    class WorkflowDecorator:
        @overload
        def __call__(
            self, function: Callable[Concatenate[type[T], Q], R], /
        ) -> ClassWorkflow[T, Q, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...
        def __call__(self, function: Any, /) -> Any: ...


def _rebuild(wrapped: Any, options: definitions.Options, place: str) -> Any:
    definition = _KnownDefinition(_unbound(wrapped), options, place=place)
    register(definition)
    return Workflow(wrapped, definition)


def _with_options(found: Any, options: definitions.Options) -> Any:
    return found._with(
        definitions.Definition(found.definition.function, options, found.definition), _give_result
    )


def _unbound(held: Any) -> Any:
    return held.__func__ if isinstance(held, (classmethod, staticmethod)) else held


def _is_class_method(owner: object, function: Callable[..., Any]) -> bool:
    """Return whether a workflow of this function is a class method of the owner."""
    if not isinstance(owner, type):
        return False
    for base in owner.__mro__:  # to the end, since super() calls overridden methods
        held = vars(base).get(function.__name__)
        found = held.__func__ if isinstance(held, classmethod) else None
        if isinstance(found, Workflow) and definitions.is_copy(found.definition.function, function):
            return True
    return False


def _get(base: type, name: str, instance: Any, owner: Any) -> Any:
    return _unbound(base.__dict__[name]).__get__(instance, owner)


def _bind(unbound: Any, instance: Any, owner: Any) -> Any:
    return unbound.__get__(instance, owner)


# -- the decorator -------------------------------------------------------------------------------


@overload
def workflow(function: Callable[Concatenate[type[T], Q], R], /) -> ClassWorkflow[T, Q, R]: ...
@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    checkpoint_every: int = 1,
    retention: Retention = "prune_old",
    keep: int = 3,
    prune_journal: bool = False,
    start: definitions.Start | None = None,
    compensate_on_failure: bool = False,
    progress: bool | None = None,
    codec: Literal["pickle", "json"] = ...,
    durability: Literal["fsync", "os"] = ...,
    on_owned: Literal["raise", "wait", "skip"] = ...,
    tags: Mapping[str, str] = ...,
    budget: Budget | None = None,
    timeout: float | None = None,
    concurrent: int | None = None,
    every: str | timedelta | None = None,
    timezone: str | None = None,
    missed: definitions.Missed = ...,
    arguments: Callable[[datetime], Any] | None = None,
    store: Any = None,
    key: Key = None,
    ignore: Iterable[str] = (),
    secret: Iterable[str] = (),
    redact: Redact = (),
) -> WorkflowDecorator: ...
def workflow(function: Any = _NOTHING, /, **options: Any) -> Any:
    """Make a function durable: called again after a crash, it resumes where it stopped.

    Args:
        name: the workflow's name in run ids and listings; by default the qualified name of the
            function.  It is part of the identity of a run: keep it when you rename the function.
        checkpoint_every: how many steps there are from one checkpoint to the next; one is always
            before and after a side effect.  After a crash, the code since the last checkpoint is
            executed again, with the variables of that moment, and the journal answers its steps.
        retention: which checkpoints are kept: ``"latest_only"``, ``"prune_old"`` (the newest
            ``keep``), ``"thinned"`` (the newest 20, ever fewer older ones), or ``"all"``.
        keep: how many checkpoints ``"prune_old"`` keeps.
        prune_journal: delete the records that no kept checkpoint needs, for endless loops.  The run
            can then not be replayed from the top.  Not for ``retention="all"`` or ``"thinned"``.
        start: the run that a call from outside of any run means.  ``"same"``: the run of
            these arguments; the n-th equal call of a process is the n-th such run.
            ``"unfinished"``: the newest unfinished run of these arguments that no process
            executes, otherwise a new run (a bot).  ``"new"``: a new run (a server).  ``None``: as
            ``STEPWISE_START`` says, otherwise ``"same"``.  An explicit ``"same"`` silences the
            warning that a run of another process answered a later call.
        compensate_on_failure: when the workflow raises, undo the completed tools that have a
            ``compensate=``, the newest first.  Another call of the workflow repeats them.
        progress: True to show on the terminal, or in the notebook, the current step, the number of
            steps and the time.  ``None``: as ``STEPWISE_PROGRESS`` says.
        store: where the runs are kept: a URL, a path or a store object; ``None``: as configured.
        codec: how results are recorded: ``"pickle"``, the default; or ``"json"``, as data only,
            shaped by the annotated return types of functions (pydantic models with the extra
            ``json``).  A result that would come back as something else is refused.  Checkpoints
            are pickles in any case; ``trust`` of :func:`configure` says whether to load them.
        durability: ``"fsync"``, the default: acknowledged records survive a power cut; ``"os"``:
            a killed process, not a power cut.  A child workflow has the durability of its caller.
        on_owned: what a call does if another thread or process executes its run.  ``"raise"``: it
            raises ``RunBusyError``.  ``"wait"``: it waits for the end, and takes the run over if
            its owner dies.  ``"skip"``: it raises ``RunSkipped``; ``execute()`` returns the run.
        tags: texts by name, ``{"customer": "ann"}``, recorded when the run starts, to find the run
            with ``stepwise.runs(tags=...)``.  Tags hold no secrets, and do not distinguish runs.
        timeout: seconds that a run may take since it began, waits and downtime included.  Then the
            run unwinds, its clean-up code runs, and it fails with :class:`RunTimeoutError`.
        concurrent: how many runs are executed at once, by all processes and machines of the store;
            a call waits for its turn.  Child runs and suspended runs do not count.
        budget: what a run may spend: a :class:`stepwise.Budget`.
        every: the instants at which ``stepwise up`` begins a run: a cron expression (with the extra
            ``schedules``), or a timedelta, counted from 1970-01-01 00:00 UTC on.
        timezone: the time zone of a cron expression, ``"Europe/Zurich"``; ``None`` for UTC.
        missed: the runs of instants at which no ``stepwise up`` was there within a minute:
            ``"once"``, the default, one for all; ``"skip"``, none; ``"all"``, one for each.
        arguments: a function of the instant that returns a tuple or a dict of arguments.
        key: the values that distinguish two runs, given as the ``key`` of a :func:`step`.
        ignore: names of parameters that do not distinguish runs, and whose values are not shown.
        secret: names of parameters whose values are never stored and never shown, as of a
            :func:`step`.
        redact: names of parameters that are stored but not shown, or a function, as of a
            :func:`step`.

    Raises:
        ConfigurationError: an option is invalid.
    """
    decorate = functools.partial(_decorate, given=options)
    return decorate if function is _NOTHING else decorate(function)


def _decorate(function: Any, given: dict[str, Any]) -> Any:
    plain = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
    if not callable(plain) or not hasattr(plain, "__code__"):
        raise ConfigurationError(_options.no_function("workflow", function))
    if step_of(plain) is not None or isinstance(plain, _Offers):
        raise ConfigurationError(
            f"{plain.__qualname__!r} is a step or workflow already; one decorator is enough"
        )
    name_truly(plain)
    keep_up_to_date(_Offers, _follow)
    _options.check("workflow", label_of(plain), given)
    definition = _KnownDefinition(plain, definitions.Options().changed(given))
    if not given.keys().isdisjoint(_options.OF_SCHEDULES):
        from stepwise._workflows.schedules import check_schedule  # on use

        check_schedule(definition, given)
    register(definition)
    return Workflow(function, definition)


def _follow(old: Any, new: Any) -> None:
    """Update an earlier workflow of an edited module with the new definition."""
    old, new = (
        each._self_parent if isinstance(each, _BoundWorkflow) else each for each in (old, new)
    )
    old.__wrapped__ = new.__wrapped__
    old.definition.become(new.definition)
