"""``@step`` and ``@tool``.

What they hand out is a real function in the manner of ``functools.wraps``, around a small
:class:`Step`.  A wrapt proxy was measured and rejected here: stock cloudpickle loses it in
``__main__``, function-keyed caches take it for the raw function, and SDKs that rebuild a function
from its ``__code__`` bypass it.

Imports: perform and its drivers, identity.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import WeakKeyDictionary

from stepwise import _options
from stepwise._attempts import Attempts, Backoff, RetryOn
from stepwise._codec import Codec, Encoded
from stepwise._data import returned_type
from stepwise._drive import drive
from stepwise._identity import Key, Parameters, label_of
from stepwise._mutation import Watch
from stepwise._operations import Core
from stepwise._perform import perform
from stepwise._records import Call
from stepwise._run import ActiveRun, Scope, current_scope
from stepwise._unseen import warn_if_unseen
from stepwise.errors import ConfigurationError

if TYPE_CHECKING:
    from stepwise._doubt import InDoubt

__all__ = ["Step", "compensated_tools", "known_steps", "step", "step_of", "tool"]

F = TypeVar("F", bound=Callable[..., Any])
Compensate = Callable[[Any], Any] | None
Exceptions = type[BaseException] | tuple[type[BaseException], ...]

known_steps: set[tuple[str, str]] = set()
"""(module, name) of the steps that this program has defined."""

compensated_tools: dict[tuple[str, str], Step] = {}
"""Those of them that have a compensation."""

_lambdas: WeakKeyDictionary[ActiveRun, dict[tuple[str, str], CodeType]] = WeakKeyDictionary()
"""Those that a run has called as steps."""

_STEP = "__stepwise_step__"
_NOTHING = object()  # None is what a decorator that forgot its return leaves


class Step:
    """A function that is recorded once per run, and its options."""

    child = ""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        kind: str,
        name: str | None = None,
        retries: int = 0,
        retry_on: RetryOn = Exception,
        backoff: Backoff = None,
        timeout: float | None = None,
        key: Key = None,
        ignore: Iterable[str] = (),
        side_effect: bool = False,
        in_doubt: InDoubt = "raise",
        fails_cleanly: Exceptions = (),
        idempotent: bool = False,
        compensate: Compensate = None,
    ) -> None:
        self.function = function
        self.kind = kind
        self.name = name or label_of(function)
        self.what = f"{kind} {self.name!r}"  # for messages
        self.module = getattr(function, "__module__", None) or "builtins"
        self.effect = side_effect
        self.in_doubt = in_doubt
        self.fails_cleanly = fails_cleanly if isinstance(fails_cleanly, tuple) else (fails_cleanly,)
        self.idempotent = idempotent
        self.compensate = compensate
        self.timeout = timeout
        self.retries = retries
        self.retry_on = retry_on
        self.backoff = backoff
        self.parameters = Parameters(function, ignore=ignore, key=key, what=self.what)
        self._bindings: dict[type, bool] = {}
        self._make_known()

    def _make_known(self) -> None:
        known_steps.add((self.module, self.name))
        if self.compensate is not None:
            compensated_tools[self.module, self.name] = self

    # -- what perform() asks of it ---------------------------------------------------------------

    def watch(self, bound: Mapping[str, Any]) -> Watch:
        """What notices that a call changes its arguments."""
        return Watch(bound)

    def attempts(self) -> Attempts:
        """The attempts that one call may have."""
        return Attempts(self.retries, self.retry_on, self.backoff, self.what)

    def body(self, call: Call) -> Callable[..., Any]:
        """The plain function."""
        return self.function

    @functools.cached_property
    def returns(self) -> Any:
        """The type that it is annotated to return."""
        return returned_type(self.function)

    def to_undo(self, bound: Mapping[str, Any], codec: Codec) -> Encoded | None:
        """The arguments, if the call can be compensated."""
        if self.compensate is None:
            return None
        return codec.encode(dict(bound), f"what {self.name!r} is called with, to undo it,")

    # -- calling ---------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function: recorded inside a run, plainly outside."""
        scope = current_scope()
        if scope is None:
            warn_if_unseen(self.what)
            return self.function(*args, **kwargs)
        return drive(self.core(scope, args, kwargs)).unwrap()

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Await the coroutine function: recorded inside a run, plainly outside."""
        scope = current_scope()
        if scope is None:
            warn_if_unseen(self.what)
            return await self.function(*args, **kwargs)
        from stepwise._adrive import adrive  # a synchronous program does not load asyncio

        return (await adrive(self.core(scope, args, kwargs))).unwrap()

    def core(self, scope: Scope, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Core:
        """What executes a call inside a run."""
        if self.name.endswith("<lambda>"):
            self._check_only(scope.run)
        bound = self.parameters.bind(args, kwargs)
        if args and self._binds(args[0]):
            bound.pop(self.parameters.first or "", None)  # self is not part of the identity
        digest = self.parameters.digest(bound, (args, kwargs))
        return perform(self, scope, digest, bound, args, kwargs)

    def _check_only(self, run: ActiveRun) -> None:
        """Refuse a second lambda of the same name: their calls could not be told apart."""
        lambdas = _lambdas.setdefault(run, {})
        code = self.function.__code__
        other = lambdas.setdefault((self.module, self.name), code)
        if other != code:
            where = [f"{each.co_filename}:{each.co_firstlineno}" for each in (other, code)]
            raise ConfigurationError(
                f"two lambdas are steps of one name, {self.name!r}: {where[0]} and {where[1]}. "
                "Their recorded calls could be taken for each other; give each a name: "
                f"@{self.kind}(name=...)"
            )

    def _binds(self, first: object) -> bool:
        """Whether the first argument is the instance or class that this method is bound to."""
        cls = first if isinstance(first, type) else type(first)
        found = self._bindings.get(cls)
        if found is None:
            found = self._bindings[cls] = any(
                self._is(step_of(_inside(held)))
                for base in cls.__mro__
                for held in tuple(base.__dict__.values())  # it may be held by another name
                if not isinstance(held, staticmethod)
            )
        return found

    def _is(self, other: Step | None) -> bool:
        """Whether it is this step, or a copy of it: of a class that was pickled by value."""
        return other is not None and (other.module, other.name) == (self.module, self.name)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_bindings": {}}
        state.pop("returns", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_known()


def step_of(function: object) -> Step | None:
    """The step behind what ``@step`` or ``@tool`` handed out."""
    found = getattr(function, _STEP, None)
    return found if isinstance(found, Step) else None


def _inside(held: Any) -> Any:
    """The function in what a class holds: a class method, a property."""
    if isinstance(held, property):
        return held.fget
    if isinstance(held, functools.cached_property):
        return held.func
    return getattr(held, "__func__", held)


# -- decorators ----------------------------------------------------------------------------------


@overload
def step(function: F, /) -> F: ...
@overload
def step(
    *,
    name: str | None = None,
    retries: int = 0,
    retry_on: RetryOn = Exception,
    backoff: Backoff = None,
    timeout: float | None = None,
    key: Key = None,
    ignore: Iterable[str] = (),
) -> Callable[[F], F]: ...
def step(function: Any = _NOTHING, /, **options: Any) -> Any:
    """Record a function's calls: each is made once per run, and answered from the journal after.

    Outside a run the decorated function behaves as the plain one.

    Args:
        name: what it is called in the journal; by default its qualified name.
        retries: how many more attempts may follow a failed one.
        retry_on: what is worth another attempt: an exception class, a tuple of them, or a function
            of the exception.
        backoff: seconds between two attempts, or a function of the number of the failed attempt, or
            a tenacity wait strategy; by default 0.1 s, doubling up to 30 s, with jitter.
        timeout: seconds that one attempt may take.  A coroutine is cancelled; a plain function
            cannot be stopped, so it is abandoned in its thread and its late result dropped.
        key: what tells two calls apart instead of their arguments: names of parameters, or a
            function that gets the arguments and returns a value.
        ignore: names of parameters that do not tell calls apart.

    Raises:
        ConfigurationError: an option cannot mean anything.
    """
    return _decorate(function, "step", options)


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    side_effect: bool = False,
    in_doubt: InDoubt = "raise",
    fails_cleanly: Exceptions = (),
    idempotent: bool = False,
    compensate: Compensate = None,
    name: str | None = None,
    retries: int = 0,
    retry_on: RetryOn = Exception,
    backoff: Backoff = None,
    timeout: float | None = None,
    key: Key = None,
    ignore: Iterable[str] = (),
) -> Callable[[F], F]: ...
def tool(function: Any = _NOTHING, /, **options: Any) -> Any:
    """A step that an agent may choose.  Takes all the options of :func:`step`, and these.

    Args:
        side_effect: repeating a call would double something outside.  An intent is recorded,
            durable, before the body runs; a call whose outcome is not recorded is *in doubt*.
        in_doubt: what is then done on resume: ``"raise"`` :class:`StepInDoubtError` and let
            somebody look; ``"retry"`` with the recorded idempotency key; ``"skip"`` and return
            ``None``; or a function ``reconcile(call)`` that looks itself and returns
            ``Landed(value)``, ``DidNotHappen`` or ``Inconclusive``.
        fails_cleanly: exceptions that prove that nothing happened.  Any other leaves the call in
            doubt, unless the workflow handles it.
        idempotent: repeating a call with the same ``current_step().idempotency_key`` is safe, so
            that ``retries`` apply to every exception.
        compensate: a function of a :class:`CompletedCall` that undoes the call; its arguments are
            then recorded.  Called by ``Run.compensate()``, or when a workflow with
            ``compensate_on_failure=True`` fails.

    Raises:
        ConfigurationError: an option cannot mean anything.
    """
    return _decorate(function, "tool", options)


def _decorate(function: Any, kind: str, options: dict[str, Any]) -> Any:
    if function is _NOTHING:
        return lambda function: _decorate(function, kind, options)
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_decorate(function.__func__, kind, options))
    if not callable(function) or not hasattr(function, "__qualname__") or inspect.isclass(function):
        raise ConfigurationError(_options.no_function(kind, function))
    if step_of(function) is not None or hasattr(function, "run_id_for"):
        raise ConfigurationError(
            f"{label_of(function)!r} is a step or workflow already; one decorator is enough"
        )
    _options.check(kind, label_of(function), options)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{kind} {label_of(function)!r} is a generator function, and a step is recorded when "
            "it returns: return a list instead, or make the generator a @workflow of steps"
        )
    recorded = Step(function, kind=kind, **options)
    wrapper: Any
    # The wrappers touch nothing but ``recorded``: pickled by value in __main__, a function takes
    # along every global that it names.
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await recorded.acall(*args, **kwargs)

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return recorded(*args, **kwargs)

    setattr(wrapper, _STEP, recorded)
    return wrapper
