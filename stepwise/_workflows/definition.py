"""The definition of a workflow by its decorator, and a single call of the workflow."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from stepwise._checkpoints.checkpoints import Retention
from stepwise._execution.process_memory import code_in_file
from stepwise._identity import identity
from stepwise._identity.call_parts import CallParts, Parts
from stepwise._identity.identity import Key, Parameters
from stepwise._identity.module_names import canonical_module, file_of, other_names, place_of
from stepwise._rewrite.build import UnsupportedError, build
from stepwise._rewrite.frame import Rewritten
from stepwise._rewrite.source import FunctionNode, Source, capture, decorators_of, fingerprint
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached, process_lock
from stepwise._runtime.messages import Once, notice, reports, warn
from stepwise._values.data import returned_type
from stepwise._values.preview import NO_HIDING, Redact
from stepwise._values.trees import found_at
from stepwise.errors import ConfigurationError, RunWarning

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from typing_extensions import Self

    from stepwise._execution.budget import Budget


Start = Literal["same", "unfinished", "new"]
"""The run that a call from outside of any run means; see :mod:`stepwise._workflows.begin`."""
Missed = Literal["skip", "once", "all"]
"""The rule for instants of a schedule at which no ``stepwise up`` was there."""


class Options:
    """The options of a workflow, checked when they are given, and never changed.

    Rejected: a dataclass.  Making one with so many fields takes a hundredth of a start.
    """

    name: str | None = None
    store: Any = None
    durability: Literal["fsync", "os"] | None = None
    key: Key = None
    ignore: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    redact: Redact = ()
    checkpoint_every: int = 1
    retention: Retention = "prune_old"
    keep: int = 3
    prune_journal: bool = False
    compensate_on_failure: bool = False
    progress: bool | None = None
    codec: Literal["pickle", "json"] | None = None
    run_id: str | None = None
    start: Start | None = None
    on_owned: Literal["raise", "wait", "skip"] = "raise"
    tags: tuple[tuple[str, str], ...] = ()
    budget: Budget | None = None
    timeout: float | None = None
    concurrent: int | None = None
    every: str | timedelta | None = None
    timezone: str | None = None
    missed: Missed = "once"
    arguments: Callable[[datetime], Any] | None = None

    def __init__(self, **chosen: Any) -> None:
        vars(self).update(chosen)  # the class holds the defaults, which most options keep

    def __eq__(self, other: object) -> bool:
        names = Options.__annotations__
        return type(other) is Options and all(getattr(self, n) == getattr(other, n) for n in names)

    __hash__ = None  # type: ignore[assignment]

    def recording(self, outer: str) -> str:
        """Return how values are recorded; see :class:`stepwise._values.codec.Codec`.

        Args:
            outer: the recording if the option does not say it: that of the run that calls this
                workflow as a child, or the only one that this process can read.
        """
        if self.codec is None:
            return outer
        return "json" if self.codec == "json" else ""

    def changed(self, changes: dict[str, Any]) -> Options:
        """Return the options with these changes.

        Raises:
            ConfigurationError: two of the options exclude each other.
        """
        for option in ("ignore", "secret", "redact"):
            names = changes.get(option)
            if isinstance(names, Iterable):
                names = (names,) if isinstance(names, str) else tuple(names)
                changes = {**changes, option: names}
        if "tags" in changes:
            changes = {**changes, "tags": tuple(changes["tags"].items())}
        if "fresh" in changes:
            changes = _with_start(self, changes)
        chosen = Options(**{**vars(self), **changes})
        if chosen.compensate_on_failure and chosen.prune_journal:
            raise ConfigurationError(
                "compensate_on_failure=True needs the records that prune_journal=True deletes: "
                "choose one of them"
            )
        if chosen.prune_journal and chosen.retention in ("all", "thinned"):
            raise ConfigurationError(
                "prune_journal=True deletes the records before the oldest checkpoint, and "
                f"retention={chosen.retention!r} keeps that one: nothing would be deleted. Choose "
                'retention="prune_old" with keep=, or leave one of them out'
            )
        return chosen


class TakesOptions:
    """The typed signature of ``options()``, for type checkers."""

    __slots__ = ()

    if TYPE_CHECKING:

        def options(
            self,
            /,
            *,
            name: str | None = ...,
            store: Any = ...,
            durability: Literal["fsync", "os"] | None = ...,
            key: Key = ...,
            ignore: Iterable[str] = ...,
            secret: Iterable[str] = ...,
            redact: Redact = ...,
            checkpoint_every: int = ...,
            retention: Retention = ...,
            keep: int = ...,
            prune_journal: bool = ...,
            compensate_on_failure: bool = ...,
            progress: bool | None = ...,
            codec: Literal["pickle", "json"] | None = ...,
            on_owned: Literal["raise", "wait", "skip"] = ...,
            start: Start | None = ...,
            tags: Mapping[str, str] = ...,
            budget: Budget | None = ...,
            timeout: float | None = ...,
            concurrent: int | None = ...,
            run_id: str | None = ...,
            fresh: bool = ...,
        ) -> Self:
            """Copy the workflow with other options; see :meth:`Workflow.options`."""


def _with_start(before: Options, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes with the short form ``fresh=`` replaced by ``start=``."""
    changes = dict(changes)
    fresh, start = changes.pop("fresh"), changes.get("start")
    if start is not None and fresh != (start == "new"):
        raise ConfigurationError(
            f"fresh={fresh} and start={start!r} contradict each other: fresh=True is short for "
            "start='new'; give one of them"
        )
    if start is None and (fresh or before.start == "new"):
        changes["start"] = "new" if fresh else None
    return changes


_defined: dict[tuple[str, str], WeakSet[Definition]] = {}
"""The live workflows by module and label; the labels stay known when their functions are gone."""
_rewriting = process_lock()


def is_defined(module: str, label: str) -> bool:
    """Return whether this process has defined a workflow of this name in a module."""
    here = canonical_module(module)  # computed here: few programs ask, and a start is costly
    return any(name == label and canonical_module(each) == here for each, name in _defined.copy())


class Definition:
    """A workflow function and the facts known when its decorator runs.

    Args:
        like: the same function with other options, whose source is reused.
        place: the script that defines the function, if it came from there to another process.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        like: Definition | None = None,
        place: str = "",
    ) -> None:
        self.options = options
        self._like = like
        self._place: str = place if like is None else like._place
        self._take(function)
        known = _defined.setdefault((function.__module__, self.label), WeakSet())
        if like is None or like.label != self.label:
            known.add(self)

    def _take(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._code = function.__code__
        self.label = self.options.name or identity.label_of(function)
        self.parameters = self._parameters(function)
        self.source: Source = capture(function) if self._like is None else self._like.source
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.is_generator = inspect.isgeneratorfunction(function)
        self.is_async_generator = inspect.isasyncgenfunction(function)
        # The contents of captured variables at the first call.
        self.first_seen: dict[str, bytes] = {} if self._like is None else self._like.first_seen
        self._rewritten: Rewritten | None = None
        self._tried = False
        for computed in ("returns", "code", "_others", "_text_has_namesakes"):
            self.__dict__.pop(computed, None)

    def _parameters(self, function: Callable[..., Any]) -> Parameters:
        like, options = self._like, self.options
        if like is not None and like.function is function and like.label == self.label:
            theirs = like.options
            given = (options.ignore, options.key, options.secret, options.redact)
            if given == (theirs.ignore, theirs.key, theirs.secret, theirs.redact):
                return like.parameters  # a copy for each run id would cost time and memory
        return Parameters(
            function,
            ignore=options.ignore,
            key=options.key,
            secret=options.secret,
            redact=options.redact,
            what=f"workflow {self.label!r}",
        )

    def become(self, other: Definition) -> None:
        """Take over the definition from the edited module."""
        self.options = other.options
        self._take(other.function)

    def follow(self) -> None:
        """Adopt an edit of the function that a reloader made in place."""
        like = self._like
        if like is not None:
            like.follow()
            if self._code is not like._code:
                self._take(like.function)
        elif self.function.__code__ is not self._code:
            located = code_in_file(self.function)
            if located is not None:
                self.function.__code__ = located
            self._take(self.function)

    def rewritten(self) -> Rewritten | None:
        """Return the function in a form that can be entered in the middle, made at the first run.

        Return ``None`` if there is no such form, and warn once.
        """
        if self._like is not None:
            return self._like.rewritten()
        problem: UnsupportedError | None = None
        if not self._tried:
            with _rewriting:  # a thread that did not wait would execute its run unresumable
                if not (self._tried or self.is_generator or self.is_async_generator):
                    try:
                        self._rewritten = build(self.function, self.source)
                    except UnsupportedError as error:
                        problem = error
                self._tried = True
        if problem is not None:
            self._tell_replay(problem)
        return self._rewritten

    @reports
    def _tell_replay(self, error: UnsupportedError) -> None:
        warn(
            f"workflow {self.label!r} cannot be resumed in the middle: {error}. After a crash it "
            "runs from the top, and its journal answers; the code between its steps must then do "
            "the same again",
            RunWarning,
        )

    @property
    def place(self) -> str:
        """The module or script that defines the function; looked up late, when a script runs."""
        return self._place or place_of(self.function.__module__)

    @cached
    def returns(self) -> Any:
        """The type that the function is annotated to return."""
        return returned_type(self.function) if self._like is None else self._like.returns

    @cached
    def code(self) -> str:
        """The fingerprint of the function's code; empty without source."""
        if self._like is not None and self._like.source is self.source:
            return self._like.code
        node = self.source.node()
        return fingerprint(node) if node is not None else ""

    def made(self, code: str) -> bool | None:
        """Return whether this function made a run of its name, and not another function.

        Code that no function of the file has any more may be that of any function of the name,
        before an edit: ``None`` means that nobody knows whose it was.

        Args:
            code: the fingerprint of the code that the run executed last.
        """
        if not self.code or code == self.code or not self.has_namesakes:
            return True
        node = self.source.node()
        mine = decorators_of(node) if node is not None else {}
        may_have = False
        for qualname, other in self._others.items():
            given = decorators_of(other)
            label = qualname.rpartition("<locals>.")[2]
            if self.label not in {label, *given.values()}:
                continue
            if fingerprint(other) == code:
                return False
            may_have = may_have or any(
                each in mine and (name or label) == self.label for each, name in given.items()
            )
        return None if may_have or self._live_namesakes() else True

    @property
    def has_namesakes(self) -> bool:
        """True if other functions of the file may have the name of the workflow.

        Functions within different functions may, and so may those that ``name=`` names.
        """
        return self._text_has_namesakes or bool(self._live_namesakes())

    @cached
    def _text_has_namesakes(self) -> bool:
        text = "".join(self.source.lines)
        last, given = re.escape(self.function.__name__), re.escape(self.label)
        return (
            len(re.findall(rf"def\s+{last}\b", text)) > 1
            or len(re.findall(rf"name\s*=\s*(['\"]){given}\1", text)) > 1
        )

    def _live_namesakes(self) -> list[Definition]:
        key, own = (self.function.__module__, self.label), self.function.__qualname__
        others = [each for each in _defined.get(key, ()) if each.function.__qualname__ != own]
        return [each for each in others if each.source.lines == self.source.lines]

    @cached
    def _others(self) -> dict[str, FunctionNode]:
        """The other functions in the file that defines the function, by qualified name."""
        if self._like is not None and self._like.source is self.source:
            return self._like._others
        others = dict(self.source.functions())
        others.pop(self.function.__qualname__, None)
        return others

    @property
    def full_name(self) -> str:
        """``module:label``, or ``/path/script.py:label`` for a workflow of a script."""
        return f"{self.place}:{self.label}"

    @cached
    def file(self) -> str:
        """The file that defines the function, in this program; empty if there is none."""
        return "" if self._place else file_of(self.function.__module__)

    @cached
    def other_names(self) -> list[str]:
        """The full names that the workflow has if its file is started or imported another way."""
        return [] if self._place else other_names(self.function.__module__, self.label)


def is_copy(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions are copies, as in a class that was pickled by value twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def class_of(function: Callable[..., Any]) -> Any:
    """Return the class or module that defines a function, according to its qualified name."""
    return found_at(function.__module__, function.__qualname__.rpartition(".")[0])


# -- calls ---------------------------------------------------------------------------------------


class HostProgram(NamedTuple):
    """The code of a run without a workflow function: a step loop, a graph, a notebook's cells.

    Args:
        full_name, label, file, other_names: as in :class:`Definition`.
        function: represents the code.
        code: fingerprint of the executed code; empty if unknown.
    """

    full_name: str
    label: str
    function: Callable[..., Any]
    source: Source = Source("", "", 0, [])
    code: str = ""
    file: str = ""
    other_names: Sequence[str] = ()
    returns: Any = Any


class Callee:
    """The code that a run executes, with its arguments.

    Args:
        bound: the arguments by parameter name, without ``self``.
        digest: of the arguments.
        parts: the values that distinguish calls; ``None`` if there are none.

    Attributes:
        instance: the object or class that a method is bound to.
        method: the parameter that receives the instance; empty if the workflow is not a method.
        secret: the secret arguments by name.
        hiding: which arguments are not stored, or not shown.
        options: of the workflow; those of a host's program are at their defaults.
        promised: whether the caller receives the run id at once, and relies on it.
    """

    instance: Any = None
    method = ""
    secret: Mapping[str, Any] = {}
    hiding = NO_HIDING
    options = Options()
    promised = False

    def __init__(
        self,
        workflow: Definition | HostProgram,
        bound: Mapping[str, Any],
        digest: str,
        parts: Parts | None = None,
    ) -> None:
        self.workflow = workflow
        self.bound = bound
        self.digest = digest
        self.parts = parts


class BoundCall(Callee):
    """One call of a workflow: its arguments, bound and digested."""

    workflow: Definition
    bound: dict[str, Any]
    parts: CallParts

    def __init__(
        self, workflow: Definition, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.workflow = workflow
        self.options = workflow.options
        self.hiding = workflow.parameters.hiding
        self.instance = instance
        self.args = args if instance is None else (instance, *args)
        self.kwargs = kwargs
        self.bound = workflow.parameters.bind(self.args, kwargs)
        self.method = (workflow.parameters.first or "") if instance is not None else ""
        if instance is not None:
            workflow.parameters.take_instance(self.bound)
        self.secret = self.hiding.secrets_of(self.bound, instance)
        self.parts = self.look()
        self.digest = self.parts.arguments

    def look(self) -> CallParts:
        """Return the parts of the call, computed from the current state of its objects."""
        workflow = self.workflow
        parts = CallParts(
            workflow.parameters,
            workflow.function,
            workflow.first_seen,
            self.bound,
            (self.args, self.kwargs),
            self.instance,
        )
        by_class = parts.by_class()
        whose = workflow.label if self.instance is None else type(self.instance).__name__
        if by_class and _is_first((whose, *by_class)):
            notice(
                f"objects that {whose} holds or is given and that have no digest count only by "
                f"their class in a run's identity: {', '.join(by_class)}"
            )
        return parts

    def run_function(self) -> Any:
        """Call the plain function."""
        return self.workflow.function(*self.args, **self.kwargs)


_is_first = Once()
