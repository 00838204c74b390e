"""The decorators ``@step`` and ``@tool``, and ``spend``.

The decorators return a real function, as ``functools.wraps`` makes it, around a small
:class:`Step`.

A wrapt proxy was measured and rejected.  Stock cloudpickle loses it in ``__main__``, and
function-keyed caches take it for the raw function.  SDKs that rebuild a function from its
``__code__`` bypass it.

A cache around a side effect causes a warning: the cache is empty after a resume, so that the effect
would happen twice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, overload
from weakref import WeakKeyDictionary

from stepwise._calls.awaitables import hand_out, made_by
from stepwise._calls.call import Performance, Performer, RecordingCall, mixed
from stepwise._calls.driver import Core, Unfinished, drive, drive_on, resume, start
from stepwise._execution.account import SPENDS
from stepwise._execution.active_run import ActiveRun, Scope, current_scope
from stepwise._execution.process_memory import name_truly, register_step
from stepwise._execution.tasks import refuse_beside_branch, warn_if_unseen
from stepwise._identity.identity import FUNCTION, Key, Parameters, captured, label_of
from stepwise._identity.module_names import canonical_module
from stepwise._identity.versions import Version
from stepwise._journal.records import Call
from stepwise._matching.subjects import Identity, Subjects, Watched
from stepwise._rewrite.source import Source, capture
from stepwise._runtime import options as _options
from stepwise._runtime.forks import cached, process_lock
from stepwise._runtime.messages import caller, fold, reports, warn
from stepwise._runtime.retries import Attempts, Backoff, RetryOn
from stepwise._runtime.settings import Cache
from stepwise._runtime.system_limits import stopped
from stepwise._values.codec import Codec, Encoded
from stepwise._values.data import returned_type
from stepwise._values.digest import DECORATED
from stepwise._values.preview import Redact
from stepwise._values.trees import ATOMS, found_at
from stepwise.errors import ConfigurationError, NotRecordableError, RunWarning

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from stepwise._calls.doubt import CompletedCall, InDoubt
    from stepwise._calls.limited import Limit
    from stepwise._calls.rate_limits import LeftOfLimit


# -- caches ---------------------------------------------------------------------------------------


_DEPTH = 20  # the number of frames that are searched
_WAY_OUT = (
    "It is empty when a run resumes, so that a call which it answered before happens again. Remove "
    "it: a run records each call. To share one call, make it once and keep its value"
)


def _caches(value: object) -> bool:
    """Return whether a value is a cache such as ``functools.lru_cache``, cachetools or async_lru.

    Only classes are asked, not the users' values: some values are proxies that answer for others.
    """
    if isinstance(value, FunctionType):
        return "cache_clear" in vars(value)
    return hasattr(type(value), "cache_clear")


@reports
def warn_if_caching(function: object, what: str) -> None:
    """Warn if the body of a side effect is itself a cache, below the decorator."""
    if _caches(function):
        warn(
            f"{what} has side effects, and a cache inside (functools.cache). {_WAY_OUT}", RunWarning
        )


@reports
def warn_if_cached(
    module: str, function: Any, args: tuple[Any, ...], what: str, is_it: Callable[[Any], bool]
) -> None:
    """Warn if a side effect is called through a cache, as far as the cache can be found by name.

    Args:
        function: the undecorated function.
        args: the positional arguments of a call.
        is_it: returns whether a value wraps this very step.
    """
    if any(_caches(value) and is_it(value) for value in _around(module, function, args)):
        warn(
            f"{what} has side effects, and a cache around it (functools.cache). {_WAY_OUT}",
            RunWarning,
        )
    helper = _cached_caller()
    if helper:
        warn(
            f"{what} has side effects, and is called in {helper!r}, which is behind a cache "
            f"(functools.cache). {_WAY_OUT}",
            RunWarning,
        )


def _cached_caller() -> str:
    """Return the name of a cached function that is being executed, or "" if there is none."""
    frame = caller()
    for _ in range(_DEPTH):
        if frame is None:
            break
        code, around = frame.f_code, frame.f_back
        called: str = code.co_name
        places: list[Mapping[str, Any]] = [
            frame.f_globals,
            around.f_locals if around is not None else {},
        ]
        for name in code.co_varnames[:1]:  # a method's first parameter
            places += [vars(cls) for cls in type(frame.f_locals.get(name)).__mro__]
        for place in places:
            value = place.get(called)
            inner = getattr(value, "__wrapped__", None) if _caches(value) else None
            if getattr(inner, "__code__", None) is code:
                return called
        frame = around
    return ""


def _around(module: str, function: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the objects that may be the cache: module names, variables, the instance, its class."""
    yield found_at(module, function.__qualname__)
    frame = caller()
    if frame is not None:
        yield from [*frame.f_locals.values(), *frame.f_globals.values()]
    for cls in type(args[0]).__mro__ if args else ():
        yield from tuple(vars(cls).values())
    try:
        held = [*vars(args[0]).values()] if args else []
    except Exception:  # an object without variables, or an unbound proxy
        held = []
    yield from held


# -- steps ----------------------------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])
Compensate = Union[Callable[["CompletedCall"], Any], None]
Approve = Union[bool, Callable[..., Any]]
OnChanged = Union[Literal["keep", "rerun", "ask"], None]
Exceptions = type[BaseException] | tuple[type[BaseException], ...]

compensated_tools: dict[tuple[str, str], Step] = {}
"""The defined steps that have a compensation."""

_lambdas: WeakKeyDictionary[ActiveRun, dict[tuple[str, str], CodeType]] = WeakKeyDictionary()
"""The code of the lambda steps that each run has called, by module and name."""

_NOTHING = object()  # not None, which is the result of a decorator that forgot its return


class Step(Performer):
    """A function whose calls are recorded once per run, and its options."""

    fold = staticmethod(fold)
    coded_by: Any = None
    """The function whose code counts for the version; ``None`` for the step's own function."""
    unrecorded = ""
    """The reason why changes to the arguments of its bodies are not recorded."""
    limit: Limit | None = None
    cache: Cache = None
    says_again = False
    """True if an answer of the cache says on streams what the body would say."""
    _unkeyed: Mapping[str, Any] = MappingProxyType({})
    """The defaults of the parameters that the key of the limit may ask for."""

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
        secret: Iterable[str] = (),
        redact: Redact = (),
        side_effect: bool = False,
        in_doubt: InDoubt = "raise",
        fails_cleanly: Exceptions = (),
        idempotent: bool = False,
        approve: Approve = False,
        approvers: Iterable[str] = (),
        compensate: Compensate = None,
        record_arguments: bool | None = None,
        limit: Limit | None = None,
        cache: Cache = None,
        on_changed: OnChanged = None,
    ) -> None:
        self.function = function
        self.kind = kind
        self.name = name or label_of(function)
        self.what = f"{kind} {self.name!r}"  # for messages
        self.module = canonical_module(getattr(function, "__module__", None) or "builtins")
        self.effect = side_effect
        self.in_doubt = in_doubt
        self.fails_cleanly = fails_cleanly if isinstance(fails_cleanly, tuple) else (fails_cleanly,)
        self.idempotent = idempotent
        self.approve = approve
        self.approvers = _approvers(approvers, self.what, approve)
        self.compensate = compensate
        self.on_changed = on_changed
        self.timeout = timeout
        self.awaits = inspect.iscoroutinefunction(function)
        self.retries = retries
        self.retry_on = retry_on
        self.backoff = backoff
        self.source = _source(function)
        self.parameters = Parameters(
            function, ignore=ignore, key=key, secret=secret, redact=redact, what=self.what
        )
        self.hiding = self.parameters.hiding
        self._bindings: dict[type, bool] = {}
        self._looked_for_caches = not side_effect
        self._is_lambda = self.name.endswith("<lambda>")
        self._is_checked = self._is_lambda or side_effect
        self._records = record_arguments  # None: as the run does
        self._performance = self._kind(records=bool(record_arguments))
        if limit is not None:
            self.limit_calls(limit)
        if cache is not None:
            self.cache_calls(cache)
        self._make_known()

    def _kind(self, *, records: bool) -> type[Performance]:
        """Return the class of the calls, which has what the options of the step ask for alone.

        Args:
            records: whether the calls record their arguments.
        """
        kind: Any = Performance
        if self.approve:
            from stepwise._calls.approvals import ApprovedCall  # on use: few tools ask

            kind = ApprovedCall
        if records:
            kind = mixed(RecordingCall, kind)
        if self.limit is not None:
            from stepwise._calls.limited import LimitedCall  # on use: few steps are limited

            kind = mixed(LimitedCall, kind)
        if self.cache is not None:
            from stepwise._calls.cached import CachedCall  # on use: few steps are cached

            kind = mixed(CachedCall, kind)
        made: type[Performance] = kind
        return made

    @cached
    def qualname(self) -> str:
        """The qualified name of the function."""
        return getattr(self.function, "__qualname__", self.name)

    @cached
    def version(self) -> Version:
        """The version of the function; made at the first call in a run."""
        from stepwise._identity.following import version_of  # on use: few starts need it

        coded_by = self.coded_by or self.function
        return version_of(coded_by, self.source, is_tool=self.kind == "tool")

    @cached
    def code(self) -> str:
        """The id of the version."""
        return self.version.id

    def recognise(self, recorded: Version) -> None:
        """Take over a recorded version if no file has changed since, so that none is parsed."""
        if "version" not in vars(self) and recorded.holds(self.source):
            self.version = recorded

    def limit_calls(self, limit: Limit) -> None:
        """Let the calls wait for a limit."""
        if limit.key is not None:
            from stepwise._calls.limited import check_key  # on use

            check_key(limit, limit.key, self.what, self.function)
            parameters = inspect.signature(self.function).parameters.values()
            self._unkeyed = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.limit = limit
        self._performance = self._kind(records=bool(self._records))

    def cache_calls(self, cache: Cache) -> None:
        """Let results of other runs answer the calls."""
        self.cache = cache
        self._performance = self._kind(records=bool(self._records))

    def _make_known(self) -> None:
        root, _, inner = self.qualname.partition(".")
        code = getattr(self.function, "__code__", None)
        is_held = code is not None and code.co_name == (inner.rpartition(".")[2] or root)
        root = root if is_held and "<" not in self.qualname else ""
        self._siblings = register_step(self, root)
        if self.compensate is not None:
            compensated_tools[self.module, self.name] = self

    # -- the interface of a Performer -------------------------------------------------------------

    def may_change(self, bound: Mapping[str, Any]) -> bool:
        """Return whether an argument or a default is mutable."""
        defaults = self.parameters.changeable_defaults
        return bool(defaults) or not ATOMS.issuperset(map(type, bound.values()))

    def watched(self, bound: Mapping[str, Any]) -> Watched:
        """Return the arguments that the body of a call may change, including defaults."""
        defaults = self.parameters.changeable_defaults
        given = {**defaults, **bound} if defaults else bound
        hidden = self.hiding.hidden_in(given) if self.hiding.hides else ()
        return Watched(given, hidden, self.unrecorded, self.function)

    def attempts(self) -> Attempts:
        """Return the attempts that one call may have."""
        return Attempts(self.retries, self.retry_on, self.backoff, self.what)

    def body(self, call: Call) -> Callable[..., Any]:
        """Return the undecorated function."""
        return self.function

    @cached
    def returns(self) -> Any:
        """The annotated return type of the function."""
        return returned_type(self.function)

    def to_undo(self, bound: Mapping[str, Any], codec: Codec) -> Encoded | None:
        """Return the encoded arguments if the call can be compensated, else None."""
        if self.compensate is None:
            return None
        arguments = {
            name: value
            for name, value in self.hiding.stored(bound).items()
            if not codec.secrets.holds(value)
        }
        encoded = codec.encode(arguments, f"the arguments of {self.name!r}, kept to undo it,")
        name = codec.secrets.found_in(encoded.data)
        if name:
            raise NotRecordableError(
                f"an argument of {self.name!r} holds the secret {name!r}, and would be "
                "recorded for its compensate=: name the parameter in secret=",
                type_name="dict",
            )
        return encoded

    # -- limits ----------------------------------------------------------------------------------

    def limit_of(self, bound: Mapping[str, Any]) -> Limit | None:
        """Return the limit of a call with these arguments."""
        if self.limit is None or self.limit.key is None:
            return self.limit
        from stepwise._calls.limited import chosen_by_key

        return chosen_by_key(self.limit, self.limit.key, {**self._unkeyed, **bound})

    def tokens_of(self, bound: Mapping[str, Any]) -> int | None:
        """Return an estimate of the tokens of a call, or ``None`` if nobody knows."""
        return None if self.limit is None else self.limit.estimate

    def left_of_limit(self, bound: Mapping[str, Any]) -> LeftOfLimit | None:
        """Return what the answer to a call says is left of its limit."""

    def repeats_refused(self, bound: Mapping[str, Any]) -> bool:
        """Return whether an attempt that the provider refused can be made again in place."""
        return True

    # -- the cache -------------------------------------------------------------------------------

    def cache_for(self, bound: Mapping[str, Any]) -> Cache:
        """Return which results of other runs answer a call with these arguments."""
        return self.cache

    def cache_key(self, made: Performance) -> tuple[str, str]:
        """Return the key of a call; or an empty key, and why the call has none."""
        from stepwise._calls.cached import key_of_values
        from stepwise._identity.following import code_of

        identity, codec = made.identity, made.scope.run.codec
        holder, is_tool = identity.holder, self.kind == "tool"
        values: dict[str, Any] = {
            "step": (self.module, self.name, self.qualname),
            "codec": repr(self.returns) if codec.data_only else "",
            "arguments": self.parameters.counting(made.bound) or identity.digest,
            "held": holder.direct() if holder is not None else {},
            "class": holder.cls if holder is not None else None,
            "secret": self._secrets_of(made),  # another user's secret is another call
        }
        code = code_of(self.coded_by or self.function, self.source, is_tool=is_tool)
        around = () if holder is None or holder.instance is None else (holder.instance,)
        return key_of_values(code, self.name, values, around)

    def _secrets_of(self, made: Performance) -> dict[str, Any]:
        """Return the values that ``secret=`` names; the key of a call is stored as a tag alone."""
        holder, hiding = made.identity.holder, self.hiding
        values = {**hiding.defaults, **made.bound}
        if holder is not None and holder.instance is not None:
            of_self = (name for name in hiding.secret if name.startswith("self."))
            values |= {name: getattr(holder.instance, name[5:], None) for name in of_self}
        return {name: values[name] for name in hiding.secret & values.keys()}

    def to_cache(self, value: Any) -> Any:
        """Return the part of a result that answers equal calls of other runs."""
        return value

    def from_cache(self, value: Any, bound: Mapping[str, Any], scope: Scope) -> Any:
        """Return the result of a call that the cache answers.

        Args:
            scope: of the call.
        """
        return value

    # -- calling ---------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function: recorded inside a run, directly outside."""
        scope = current_scope()
        if scope is None:
            self._check_outside()
            if self.approve:
                from stepwise._calls.approvals import refuse_outside  # on use

                drive(refuse_outside(self, args, kwargs)).unwrap()
            return self.function(*args, **kwargs)
        ending = drive_on(self.core(scope, args, kwargs))
        if isinstance(ending, Unfinished) or ending.awaited:
            return hand_out(scope.run, self.what, ending)
        return ending.value if ending.error is None else ending.unwrap()

    def _check_outside(self) -> None:
        warn_if_unseen(self.what)
        if self.effect:
            refuse_beside_branch(self.what)

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Await the coroutine function: recorded inside a run, directly outside."""
        from stepwise._calls.async_driver import adrive  # on use: it loads asyncio

        scope = current_scope()
        if scope is None:
            self._check_outside()
            if self.approve:
                from stepwise._calls.approvals import refuse_outside  # on use

                (await adrive(refuse_outside(self, args, kwargs))).unwrap()
            return await self.function(*args, **kwargs)
        return (await adrive(self.core(scope, args, kwargs))).unwrap()

    def core(
        self,
        scope: Scope,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        instance: object = None,
        *,
        asks_first: bool = False,
    ) -> Core:
        """Return the core that executes a call inside a run.

        Args:
            instance: the first argument, if the function is an undecorated method of this object.
            asks_first: see :meth:`Performance.core`.
        """
        run = scope.run
        if self._is_checked:
            self._check(run, args)
        bound = self.parameters.bind(args, kwargs)
        if instance is None and args and self.binds(args[0]):
            instance = args[0]
        if instance is not None:
            self.parameters.take_instance(bound)
        if self.hiding.secret:
            run.secrets.add(self.hiding.secrets_of(bound, instance))
        try:
            identity = self.identify(run.subjects, instance, bound, (args, kwargs))
        except MemoryError as error:
            doing = f"the arguments of {self.name!r} were compared with recorded ones"
            raise run.stop(stopped(doing, error)) from error
        kind = self.kind_of_call(run)
        if run.effects and self.effect:
            from stepwise._calls.branching import BranchedCall  # on use: in branches only

            kind = BranchedCall
        return kind(self, scope, identity, bound, args, kwargs).core(asks_first=asks_first)

    def kind_of_call(self, run: ActiveRun) -> type[Performance]:
        """Return the class of the calls in a run."""
        if run.records_arguments and self._records is None:
            return self._kind(records=True)
        return self._performance

    def _check(self, run: ActiveRun, args: tuple[Any, ...]) -> None:
        """Refuse a second lambda of the same name, and warn of a cache around side effects."""
        if self._is_lambda:
            self._check_only(run)
        if not self._looked_for_caches:
            self._looked_for_caches = True
            warn_if_cached(self.module, self.function, args, self.what, self._is_behind)
        self._is_checked = self._is_lambda

    def identify(
        self,
        subjects: Subjects,
        instance: object,
        bound: Mapping[str, Any],
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
    ) -> Identity:
        """Return the identity of a call.

        Args:
            instance: the object or class that the method is bound to.
            call: the arguments as they were passed.
        """
        digest, parts, unknown = self.parameters.identify(bound, call)
        identity = Identity(digest, parts)
        if unknown:
            subjects.give(identity, unknown, bound)
        qualname = self.qualname
        if qualname != self.name:
            identity.parts[FUNCTION] = qualname
        if self.has_siblings:
            identity.made = self._made
        has_subject = instance is not None or self._captures or self.has_siblings
        if has_subject and not self.parameters.is_computed:
            subjects.complete(identity, self.name, self.function, self.parameters, instance)
        return identity

    @cached
    def _captures(self) -> bool:
        return bool(captured(self.function))

    @property
    def has_siblings(self) -> bool:
        """True if a factory or a loop made other live steps of the same name."""
        return len(self._siblings) > 1

    def _made(self, recorded: Call) -> bool | None:
        """Return True if no other live step of this name has the version of a record."""
        return recorded.code == self.code or recorded.code not in self._versions_beside() or None

    def _versions_beside(self) -> set[str]:
        """Return the versions of other live steps of this name that the same source defines.

        A function of another source may be an earlier edit of this one, which a cell or a reloaded
        module has replaced: its records answer.
        """
        source, found = self.source, set()
        for each in filter(None, [ref() for ref in [*self._siblings]]):
            other = each.source
            if each.module != self.module or source is None or other is None:
                continue
            if other.first_line == source.first_line or other.filename != source.filename:
                continue
            if other.lines == source.lines:
                found.add(each.code)
        return found - {self.code, ""}

    def _is_behind(self, value: Any) -> bool:
        """Return whether a value is a cache around this step, as a function or bound method."""
        inner = getattr(value, "__wrapped__", None)
        return self in (step_of(value), step_of(inner), step_of(getattr(inner, "__func__", None)))

    def _check_only(self, run: ActiveRun) -> None:
        """Refuse a second lambda of the same name: calls of the two could not be told apart."""
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

    def binds(self, first: object) -> bool:
        """Return whether the first argument is the instance or class of this method."""
        cls = first if isinstance(first, type) else type(first)
        found = self._bindings.get(cls)
        if found is None:
            found = self._bindings[cls] = any(
                self._is(step_of(_inside(held)))
                for base in cls.__mro__
                for held in tuple(base.__dict__.values())  # under any name
                if not isinstance(held, staticmethod)
            )
        return found

    def _is(self, other: Step | None) -> bool:
        """Return whether ``other`` is this step, or a copy of it in a class pickled by value."""
        return other is not None and (other.module, other.name) == (self.module, self.name)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_bindings": {}, "source": None}
        for computed in ("qualname", "version", "code", "returns", "_captures", "_siblings"):
            state.pop(computed, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, hiding=state["parameters"].hiding)
        self._make_known()


class SentStep(Step):
    """A step whose bodies run in an executor inside a run, and directly outside.

    The class is separate so that calls of other steps need not check for an executor.
    """

    decorated: Any = None
    unrecorded = "in an executor, where no change is recorded"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        kind: str,
        executor: Executor | str | None = None,
        resources: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        from stepwise._calls.executors import check_executor, refuse_awaitables  # on use

        super().__init__(function, kind=kind, **options)
        check_executor(self.what, executor, resources)
        refuse_awaitables(self.what, function)
        self.executor = executor
        self.resources = dict(resources) if resources is not None else None
        self._found: Executor | None = None

    def find(self) -> Executor:
        """Return the executor of the bodies."""
        if self._found is None:
            from stepwise._calls.executors import find_executor  # on use

            assert self.executor is not None
            self._found = find_executor(self.executor, self.resources)
        return self._found

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function: recorded with its body in the executor in a run; directly outside."""
        scope = current_scope()
        if scope is None or self.executor is None:
            return super().__call__(*args, **kwargs)
        from stepwise._calls.executors import Elsewhere  # on use

        elsewhere = Elsewhere(self.find, self.decorated, args, kwargs)
        core = self.core(scope, args, kwargs, asks_first=True)
        return resume(core, start(core), elsewhere).unwrap()

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Await the coroutine function: recorded with its body in the executor in a run."""
        scope = current_scope()
        if scope is None or self.executor is None:
            return await super().acall(*args, **kwargs)
        from stepwise._calls.async_driver import aresume
        from stepwise._calls.executors import Elsewhere  # on use

        elsewhere = Elsewhere(self.find, self.decorated, args, kwargs)
        core = self.core(scope, args, kwargs, asks_first=True)
        return (await aresume(core, start(core), elsewhere.awaited)).unwrap()

    def __getstate__(self) -> dict[str, Any]:
        # An executor stays in the process that made it; a name works in any process.
        executor = self.executor if isinstance(self.executor, str) else None
        return {**super().__getstate__(), "executor": executor, "_found": None}


def step_of(function: object) -> Step | None:
    """Return the step behind a function decorated with ``@step`` or ``@tool``, or None."""
    found = getattr(function, DECORATED, None)
    return found if isinstance(found, Step) else None


def _inside(held: Any) -> Any:
    """Return the function inside a class attribute, such as a class method or a property."""
    if isinstance(held, property):
        return held.fget
    if isinstance(held, functools.cached_property):
        return held.func
    return getattr(held, "__func__", held)


def _source(function: Any) -> Source | None:
    """Return the source of the innermost function: now, since its file may be edited later."""
    inner = inspect.unwrap(function)
    return capture(inner) if isinstance(inner, FunctionType) else None


def _as_function(given: Any) -> Any:
    """Return a function that calls a partial or a callable object; return others unchanged."""
    named = given
    while isinstance(named, functools.partial):
        named = named.func
    if step_of(named) is not None:
        return named
    if callable(named) and not hasattr(named, "__qualname__"):
        named = type(named)
    if named is given or not hasattr(named, "__qualname__"):
        return given

    def calling(*args: Any, **kwargs: Any) -> Any:
        return given(*args, **kwargs)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(calling, name, getattr(named, name))
    calling.__wrapped__ = given  # type: ignore[attr-defined]  # for its signature
    return calling


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
    secret: Iterable[str] = (),
    redact: Redact = (),
    executor: Executor | str | None = None,
    resources: Mapping[str, Any] | None = None,
    record_arguments: bool | None = None,
    limit: Limit | None = None,
    cache: Cache = None,
    on_changed: OnChanged = None,
) -> Callable[[F], F]: ...
def step(function: Any = _NOTHING, /, **options: Any) -> Any:
    """Record a function's calls: each is made once per run, then answered from the journal.

    Outside a run the decorated function behaves like the undecorated one.

    Args:
        name: the step's name in the journal; by default the qualified name of the function.  Keep
            the name when you rename the function, so that recorded calls still answer.
        retries: the number of further attempts after a failed one; 0 for none.
        retry_on: the exceptions that are worth another attempt: a class, a tuple of classes, or a
            function of the exception that returns True or False.
        backoff: the pause before the next attempt: seconds, a function that returns them (its
            argument is the number of the failed attempt, from 1), or a wait strategy of tenacity.
            ``None``: 0.1 s, doubled with each attempt up to 30 s, with jitter.
        timeout: seconds that one attempt may take; ``None`` for no limit.  A coroutine is
            cancelled.  A plain function cannot be stopped: it keeps running in its thread, and its
            late result is dropped.
        key: the values that distinguish two calls, instead of all arguments: names of parameters,
            or a function that gets the arguments and returns a value.
        ignore: names of parameters that do not distinguish calls, such as clients and trace ids.
            Their values are not shown either.  ``"self.NAME"`` is an attribute of a method's
            instance.
        secret: names of parameters whose values are never stored and never shown; ``"self.NAME"``
            is an attribute of a method's instance.  Secrets do not distinguish calls, and a resumed
            run takes them from its call.
        redact: names of parameters that are stored but not shown; or a function of a name and a
            value that returns the text to show, or ``None`` for the usual text.
        executor: executes the bodies of calls in a run: an executor of ``concurrent.futures``, or
            the name ``"ray"`` for the tasks of a Ray cluster.  The arguments, secrets included,
            are sent to the worker; changes that the body makes to them, including to ``self``,
            stay there.
        resources: options of a named executor.  For ``"ray"``, the options of a task: ``num_cpus``,
            ``num_gpus``, ``resources``, ``runtime_env`` and others.
        record_arguments: True to record the arguments of each call in full, for people who look at
            the run: as they were when the call began, without ``secret=``, ``ignore=`` and
            ``redact=``.  False not to.  ``None``: as :func:`configure` or
            ``STEPWISE_RECORD_ARGUMENTS`` says.
        limit: a :class:`Limit`, which each attempt waits for; all processes share it.
        cache: results of other runs that answer equal calls, for steps whose result depends on
            their arguments and their code alone: those of the last ``timedelta(days=1)``; or
            ``"dev"``, of any age, but none where ``STEPWISE_ENV`` is ``production``.
        on_changed: what becomes of the results that the step recorded before its code, or what the
            code reads of the project, was edited: ``"keep"`` them and say so; ``"rerun"`` the step
            (not if it has side effects); or ``"ask"``, which stops the run until a person has
            answered.  ``None``: as :func:`configure` says.

    Raises:
        ConfigurationError: an option is invalid.
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
    approve: Approve = False,
    approvers: Iterable[str] = (),
    compensate: Compensate = None,
    name: str | None = None,
    retries: int = 0,
    retry_on: RetryOn = Exception,
    backoff: Backoff = None,
    timeout: float | None = None,
    key: Key = None,
    ignore: Iterable[str] = (),
    secret: Iterable[str] = (),
    redact: Redact = (),
    executor: Executor | str | None = None,
    resources: Mapping[str, Any] | None = None,
    record_arguments: bool | None = None,
    limit: Limit | None = None,
    cache: Cache = None,
    on_changed: OnChanged = None,
) -> Callable[[F], F]: ...
def tool(function: Any = _NOTHING, /, **options: Any) -> Any:
    """Record the calls of a function that an agent may choose.

    Takes all the options of :func:`step`, and these.

    Args:
        side_effect: True if repeating a call would repeat an effect outside the program.  The call
            is then announced in the journal before its body runs.  An announced call without a
            recorded outcome is *in doubt*.
        in_doubt: what a resumed run does with a call in doubt: ``"raise"`` a
            :class:`StepInDoubtError`, so that somebody looks; ``"retry"`` it with the recorded
            idempotency key; ``"skip"`` it and return ``None``; or call a function
            ``reconcile(call)``, which looks outside and returns ``Landed(value)``,
            ``DidNotHappen`` or ``Inconclusive``.
        fails_cleanly: exceptions that prove that nothing happened.  Any other exception leaves the
            call in doubt, unless the workflow handles it.
        idempotent: True if repeating a call with the same ``current_step().idempotency_key`` is
            safe; ``retries`` then apply to every exception.
        approve: True if a person must allow each call before it runs; or a function of the tool's
            arguments, plain or ``async``, that returns True for the calls that need an approval.
            The run waits for ``stepwise approve RUN STEP`` or ``Run.approve()``.  The yes is bound
            to all arguments, and the call runs with copies of them.  A no raises
            :class:`ApprovalDenied`.
        approvers: public keys of the people who may answer, as ``stepwise approver-key`` prints
            them; an answer without the signature of one of them does not count.  By default anybody
            who has the store and its key may answer.  Needs the extra ``approvers``.
        compensate: a function of a :class:`CompletedCall` that undoes the call; the arguments of
            the call are then recorded.  ``Run.compensate()`` calls the function, and so does a
            workflow with ``compensate_on_failure=True`` that fails.

    Raises:
        ConfigurationError: an option is invalid.
    """
    return _decorate(function, "tool", options)


def _decorate(function: Any, kind: str, options: dict[str, Any]) -> Any:
    if function is _NOTHING:
        return lambda function: _decorate(function, kind, options)
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_decorate(function.__func__, kind, options))
    function = _as_function(function)
    if not callable(function) or not hasattr(function, "__qualname__") or inspect.isclass(function):
        raise ConfigurationError(_options.no_function(kind, function))
    if step_of(function) is not None or hasattr(function, "run_id_for"):
        raise ConfigurationError(
            f"{label_of(function)!r} is a step or workflow already; one decorator is enough"
        )
    name_truly(function)
    _options.check(kind, label_of(function), options)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{kind} {label_of(function)!r} is a generator function, and a step is recorded when "
            "it returns: return a list instead, or make the generator a @workflow of steps"
        )
    is_sent = options.get("executor") is not None
    if not is_sent:
        options = {n: v for n, v in options.items() if n not in ("executor", "resources")}
    recorded = (SentStep if is_sent else Step)(function, kind=kind, **options)
    if recorded.effect:
        warn_if_caching(function, recorded.what)
    wrapper: Any
    # The wrappers name no globals: pickled by value in __main__, a function includes every global
    # that it names.  The wrappers look up their step at each call, since a reloader replaces it.
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return await wrapper.__stepwise_step__.acall(*args, **kwargs)
            except BaseException as error:
                raise wrapper.__stepwise_step__.fold(error)  # noqa: B904

        made_by.add(wrapper.__code__)

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return wrapper.__stepwise_step__(*args, **kwargs)
            except BaseException as error:
                raise wrapper.__stepwise_step__.fold(error)  # noqa: B904

    setattr(wrapper, DECORATED, recorded)
    if isinstance(recorded, SentStep):
        recorded.decorated = wrapper  # a worker imports the function by its name
    return wrapper


def _approvers(texts: Iterable[str], what: str, approve: Approve) -> tuple[Any, ...]:
    if not texts:
        return ()
    if not approve:
        raise ConfigurationError(
            f"approvers= of {what} says who may answer, and without approve= nobody is asked: "
            "@tool(side_effect=True, approve=True, approvers=[...])"
        )
    from stepwise._journal.persons import approvers_of  # on use: few tools have any

    return approvers_of(texts, what)


# -- spending -------------------------------------------------------------------------------------


def spend(usd: float = 0, tokens: int = 0) -> None:
    """Report spent money or tokens to the budget of the run and to ``stepwise show``.

    In the body of a step, the amounts are recorded with the outcome of the step, including amounts
    of failed attempts.  In the workflow's own code, ``spend`` is a recorded call: answered from the
    journal, it counts nothing again.  Outside a run it does nothing, so that tools work there as
    well.

    Instrumented model requests (:func:`stepwise.instrument`) and requests of pydantic-ai's engine
    report their usage automatically.

    Args:
        usd: US dollars, 0 or more.
        tokens: tokens of a language model, 0 or more.

    Raises:
        ConfigurationError: an amount is not a number, or negative.
    """
    from stepwise._execution.budget import amount  # on use: few programs count what they spend

    usd = amount("spend(usd=...)", usd, whole=False)
    tokens = int(amount("spend(tokens=...)", tokens, whole=True))
    scope = current_scope()
    if scope is None or not (usd or tokens):
        return
    if scope.call is not None:
        scope.run.account.spend(scope.call.number, usd, tokens)
        return
    try:
        with _one_maker:  # a second step of this name would change the identity of its calls
            recorded = _recorded()
        recorded(usd=usd, tokens=tokens)
    except BaseException as error:
        raise fold(error)  # noqa: B904


def _spend(usd: float, tokens: int) -> None:
    spend(usd, tokens)


_one_maker = process_lock()


@functools.cache
def _recorded() -> Step:
    _spend.__module__ = SPENDS  # not counted as a step in the budget: the money is already spent
    return Step(_spend, kind="step", name="spend")
