"""``@workflow``: a function whose progress survives the process.

The :class:`Workflow` object is a wrapt ``FunctionWrapper``: binding to instances and classes is
what wrapt does best.  Three things are different: it reports its own class, so that stock
cloudpickle does not take it for the bare function; it is equal only to itself; and it pickles.

Imports: invoke.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    overload,
)

from stepwise import _options
from stepwise._checkpoints import Retention
from stepwise._definition import Definition, Options
from stepwise._identity import Key, label_of
from stepwise._invoke import derived_run_id, invoke
from stepwise._steps import step_of
from stepwise.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepwise._runs import Run

    class FunctionWrapper:
        """For the type checker only: wrapt's own annotations say less than ours."""

        # Not in the classes below: there they would hide the annotations of the function.
        __wrapped__: Any
        _self_parent: Workflow[..., Any]
        _self_instance: Any
        _self_owner: Any

    BoundFunctionWrapper = FunctionWrapper
else:
    from wrapt import BoundFunctionWrapper, FunctionWrapper

__all__ = ["Workflow", "workflow"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

_NOTHING = object()  # None is what a decorator that forgot its return leaves

Operation = Callable[[Definition, Any, tuple[Any, ...], dict[str, Any]], Any]
_give_result: Operation = functools.partial(invoke, want_run=False)
_give_run: Operation = functools.partial(invoke, want_run=True)


class _Offers(Generic[P, R]):
    """What a workflow offers, bound or not; and it is never taken for its function."""

    __slots__ = ()  # a __dict__ of its own would stand before that of the wrapper

    _by_name = True  # recorded by its name, like a function, where it has one

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @property
    def definition(self) -> Definition:
        """The function and its options."""
        raise AssertionError

    def _with(self, definition: Definition, operation: Operation) -> Any:
        raise AssertionError

    @overload
    def execute(  # type: ignore[overload-overlap]
        self: _Offers[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Run]: ...
    @overload
    def execute(self, /, *args: P.args, **kwargs: P.kwargs) -> Run: ...
    def execute(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the workflow; gives its :class:`Run`, awaitable if the function is a coroutine."""
        return self._with(self.definition, _give_run)(*args, **kwargs)

    def options(self, /, **changes: Any) -> Self:
        """A copy of the workflow with other options: those of :func:`workflow`, and these.

        Args:
            run_id: the run that a call means, instead of the one derived from its arguments.
            fresh: each call from outside a run starts a new run, with a generated id.

        Raises:
            ConfigurationError: there is no such option, or it cannot have this value.
        """
        definition = self.definition
        _options.check("workflow", definition.label, changes)
        options = _changed(definition.options, changes)
        return self._with(  # type: ignore[no-any-return]
            Definition(definition.function, options, definition), _give_result
        )

    def run_id_for(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """The id of the run that a call with these arguments means."""
        run_id: str = self._with(self.definition, derived_run_id)(*args, **kwargs)
        return run_id

    @property
    def full_name(self) -> str:
        """``module:name``, or ``/path/script.py:name`` for a workflow of a script."""
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


class _BoundWorkflow(_Offers[P, R], BoundFunctionWrapper):
    """A workflow that was got from an instance or a class."""

    @property
    def definition(self) -> Definition:
        return self._self_parent.definition

    def _with(self, definition: Definition, operation: Operation) -> Any:
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


class Workflow(_Offers[P, R], FunctionWrapper):
    """A workflow function; made by :func:`workflow`."""

    __bound_function_wrapper__ = _BoundWorkflow

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type[Any], /) -> Workflow[P, R]: ...
        @overload
        def __get__(
            self: Workflow[Concatenate[T, Q], R], instance: T, owner: type[Any] | None = None, /
        ) -> Workflow[Q, R]: ...
        def __get__(self, *args: Any) -> Any: ...

    def __init__(
        self, wrapped: Any, definition: Definition, operation: Operation = _give_result
    ) -> None:
        def call(_: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if instance is None and args and _is_class_method(args[0], definition.function):
                instance, *args = args  # since Python 3.13 a classmethod does not bind it
            return operation(definition, instance, tuple(args), kwargs)

        super().__init__(wrapped, call)  # type: ignore[call-arg]
        self._self_definition = definition

    @property
    def definition(self) -> Definition:
        return self._self_definition

    def _with(self, definition: Definition, operation: Operation) -> Any:
        function = definition.function
        if _is_class_method(_class_of(function), function):
            raise ConfigurationError(
                f"{function.__qualname__} has @classmethod above @workflow: since Python 3.13, "
                "nothing tells then of which class its options() or execute() was asked for. Write "
                "@workflow above @classmethod"
            )
        return Workflow(self.__wrapped__, definition, operation)

    def __reduce_ex__(self, protocol: Any) -> Any:
        function, options = self.definition.function, self.definition.options
        module, name = function.__module__, function.__qualname__
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        # By name, as pickle does with functions; but cloudpickle takes what __main__ defines by
        # value, since another process has another __main__.
        if (
            isinstance(found, Workflow)
            and found.definition.function is function
            and not (module == "__main__" and _pickled_by_value())
        ):
            return name if found is self else (_with_options, (found, options))
        place = self.definition.place if module in ("__main__", "__mp_main__") else ""
        return _rebuild, (self.__wrapped__, options, place)


def _pickled_by_value() -> bool:
    """Whether it is a cloudpickle (a framework's own copy of it, too) that asks."""
    frame = sys._getframe(2)
    while frame is not None:
        if "cloudpickle" in str(frame.f_globals.get("__name__")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _rebuild(wrapped: Any, options: Options, place: str) -> Any:
    return Workflow(wrapped, Definition(_unbound(wrapped), options, place=place))


def _with_options(found: Any, options: Options) -> Any:
    return found._with(
        Definition(found.definition.function, options, found.definition), _give_result
    )


def _unbound(held: Any) -> Any:
    return held.__func__ if isinstance(held, (classmethod, staticmethod)) else held


def _is_class_method(owner: object, function: Callable[..., Any]) -> bool:
    """Whether a workflow of this function is a class method of ``owner``."""
    if not isinstance(owner, type):
        return False
    for base in owner.__mro__:  # to the end: super() calls those that are overridden
        held = vars(base).get(function.__name__)
        found = held.__func__ if isinstance(held, classmethod) else None
        if isinstance(found, Workflow) and _is_copy(found.definition.function, function):
            return True
    return False


def _is_copy(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions are one: a class that is pickled by value may come more than once."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _class_of(function: Callable[..., Any]) -> Any:
    """What the qualified name of a function says that it is defined in."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split(".")[:-1]:
        found = getattr(found, part, None)
    return found


def _get(base: type, name: str, instance: Any, owner: Any) -> Any:
    return _unbound(base.__dict__[name]).__get__(instance, owner)


def _bind(unbound: Any, instance: Any, owner: Any) -> Any:
    return unbound.__get__(instance, owner)


# -- the decorator -------------------------------------------------------------------------------


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
    compensate_on_failure: bool = False,
    progress: bool | None = None,
    codec: Literal["pickle", "json"] = ...,
    trust: Literal["all", "data"] = ...,
    durability: Literal["fsync", "os"] = ...,
    store: Any = None,
    key: Key = None,
    ignore: Iterable[str] = (),
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...
def workflow(function: Any = _NOTHING, /, **options: Any) -> Any:
    """Make a function durable: called again after a crash, it goes on where it stopped.

    Args:
        name: what it is called, instead of its qualified name; part of its runs' identity.
        checkpoint_every: a checkpoint of position and local variables after this many steps, at
            the next statement boundary; always after a side effect.  What was executed since the
            last checkpoint is executed again after a crash, on the variables as they were then.
        retention: ``"latest_only"``, ``"prune_old"`` (the newest ``keep``), or ``"all"``.
        keep: how many checkpoints ``"prune_old"`` keeps.
        prune_journal: delete the records that no kept checkpoint needs, for loops without end.
            The run can then not be replayed from the top.
        compensate_on_failure: when the workflow raises, undo the completed tools that have a
            ``compensate=``, the newest first; the exception then propagates.  Called again, the
            workflow makes them anew.
        progress: show on the terminal, or in the notebook, what a run is doing: the current step,
            how many there were, and the time; nothing where stderr is neither.  By default as
            ``STEPWISE_PROGRESS`` says.
        store: where its runs are kept: a URL, a path or a store object.
        codec: ``"pickle"``, or ``"json"``: results are recorded as data only, shaped by the types
            that functions are annotated to return (pydantic models and the like with the extra
            ``json``).  Exceptions that are not builtin come back as ``StepFailedError``.
        trust: ``"data"``: no pickle is ever loaded, not even one that verifies; it implies
            ``codec="json"``, and resuming is by replay, since variables are pickles.
        durability: ``"fsync"``: what is acknowledged survives a power cut; ``"os"``: a killed
            process, not a power cut.  A child workflow has its caller's.
        key: what tells two runs apart instead of the arguments: names of parameters, or a function
            that gets the arguments and returns a value.
        ignore: names of parameters that do not tell runs apart.

    Raises:
        ConfigurationError: an option cannot mean anything.
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
    _options.check("workflow", label_of(plain), given)
    return Workflow(function, Definition(plain, _changed(Options(), given)))


def _changed(before: Options, changes: dict[str, Any]) -> Options:
    names = changes.get("ignore")
    if isinstance(names, Iterable):
        changes = {**changes, "ignore": (names,) if isinstance(names, str) else tuple(names)}
    chosen = replace(before, **changes)
    if chosen.trust == "data" and chosen.codec == "pickle":
        raise ConfigurationError(
            "trust='data' loads no pickle, so that codec='pickle' could never be read again: a "
            "workflow has one or the other"
        )
    if chosen.compensate_on_failure and chosen.prune_journal:
        raise ConfigurationError(
            "compensate_on_failure=True needs the records that prune_journal=True deletes: a "
            "workflow has one or the other"
        )
    return chosen
