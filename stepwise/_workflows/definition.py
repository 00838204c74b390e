"""The definition of a workflow by its decorator: its function, its options, its source."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from stepwise._checkpoints.checkpoints import Retention
from stepwise._execution.reloading import code_in_file
from stepwise._identity import identity
from stepwise._identity.identity import Key, Parameters
from stepwise._identity.module_names import file_of, other_names
from stepwise._rewrite import (
    Rewritten,
    Source,
    UnsupportedError,
    build,
    capture,
    fingerprint,
)
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import reports, warn
from stepwise._values.data import returned_type
from stepwise._values.hidden_arguments import Redact
from stepwise._workflows.resume import CheckpointPolicy
from stepwise.errors import ConfigurationError, RunWarning

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Definition", "Options", "Start", "TakesOptions", "class_of", "is_copy", "is_defined"]

Start = Literal["same", "unfinished", "new"]
"""Which run a call from outside of any run means; see :mod:`stepwise._workflows.starts`."""


@dataclass(frozen=True)
class Options:
    """The options of a workflow, checked where they are given."""

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
    trust: Literal["all", "data"] | None = None
    run_id: str | None = None
    start: Start | None = None
    on_owned: Literal["raise", "wait", "skip"] = "raise"

    def recording(self, outer: str) -> str:
        """Return how values are recorded; see :class:`stepwise._values.codec.Codec`.

        Args:
            outer: how the run that calls it as a child workflow does.
        """
        if self.trust is None and self.codec is None:
            return outer
        if self.trust == "data":
            return "data"
        return "json" if self.codec == "json" else ""

    def changed(self, changes: dict[str, Any]) -> Options:
        """Return the options with these changes.

        Raises:
            ConfigurationError: two of them exclude each other.
        """
        for option in ("ignore", "secret", "redact"):
            names = changes.get(option)
            if isinstance(names, Iterable):
                names = (names,) if isinstance(names, str) else tuple(names)
                changes = {**changes, option: names}
        if "fresh" in changes:
            changes = _with_start(self, changes)
        chosen = replace(self, **changes)
        if chosen.trust == "data" and chosen.codec == "pickle":
            raise ConfigurationError(
                "trust='data' loads no pickle, so it could never read records of codec='pickle': "
                "choose one of them"
            )
        if chosen.compensate_on_failure and chosen.prune_journal:
            raise ConfigurationError(
                "compensate_on_failure=True needs the records that prune_journal=True deletes: "
                "choose one of them"
            )
        return chosen

    @property
    def policy(self) -> CheckpointPolicy:
        """When checkpoints are taken, and how many are kept."""
        return CheckpointPolicy(
            self.checkpoint_every, self.retention, self.keep, self.prune_journal
        )


class TakesOptions:
    """An object that has ``options()``, typed by the options that there are."""

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
            trust: Literal["all", "data"] | None = ...,
            on_owned: Literal["raise", "wait", "skip"] = ...,
            start: Start | None = ...,
            run_id: str | None = ...,
            fresh: bool = ...,
        ) -> Self:
            """Copy the workflow with other options; see :meth:`Workflow.options`."""


def _with_start(before: Options, changes: dict[str, Any]) -> dict[str, Any]:
    """Replace the short form ``fresh=`` by its long form."""
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


_defined: set[tuple[str, str]] = set()  # module and label


def is_defined(module: str, label: str) -> bool:
    """Return whether this process has defined a workflow of that name in a module."""
    return (module, label) in _defined


class Definition:
    """A workflow function and the facts known when its decorator runs.

    Args:
        like: the same function with other options, whose source is taken over.
        place: the script that defines it, if it was taken from there to another process.
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
        _defined.add((function.__module__, self.label))

    def _take(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._code = function.__code__
        self.label = self.options.name or identity.label_of(function)
        what = f"workflow {self.label!r}"
        self.parameters = Parameters(
            function,
            ignore=self.options.ignore,
            key=self.options.key,
            secret=self.options.secret,
            redact=self.options.redact,
            what=what,
        )
        self.source: Source = capture(function) if self._like is None else self._like.source
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.is_generator = inspect.isgeneratorfunction(function)
        self.is_async_generator = inspect.isasyncgenfunction(function)
        # The contents of captured variables at the first call.
        self.first_seen: dict[str, bytes] = {} if self._like is None else self._like.first_seen
        self._rewritten: Rewritten | None = None
        self._tried = False
        self.__dict__.pop("returns", None)

    def become(self, other: Definition) -> None:
        """Take over the definition of the edited module."""
        self.options = other.options
        self._take(other.function)

    def follow(self) -> None:
        """Follow an edit of the function that a reloader made in place."""
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
        """The function that can be entered in the middle; made at the first run.

        ``None`` if it cannot be, which is told once.
        """
        if self._like is not None:
            return self._like.rewritten()
        if not self._tried:
            self._tried = True
            if not (self.is_generator or self.is_async_generator):
                try:
                    self._rewritten = build(self.function, self.source)
                except UnsupportedError as error:
                    self._tell_replay(error)
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
        """The module or script that defines it; asked late: a script is known when it runs."""
        return self._place or identity.place_of(self.function.__module__)

    @cached
    def returns(self) -> Any:
        """The type that the function is annotated to return."""
        return returned_type(self.function)

    @property
    def code(self) -> str:
        """Fingerprint of the code that it executes; empty without source."""
        node = self.source.node()
        return fingerprint(node) if node is not None else ""

    @property
    def full_name(self) -> str:
        """``module:label``, or ``/path/script.py:label`` for a workflow of a script."""
        return f"{self.place}:{self.label}"

    @cached
    def file(self) -> str:
        """The file that defines it, in this program; empty if it has none."""
        return "" if self._place else file_of(self.function.__module__)

    @cached
    def other_names(self) -> list[str]:
        """Its full name where that file is started or imported another way."""
        return [] if self._place else other_names(self.function.__module__, self.label)


def is_copy(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions are one, as in a class that was pickled by value twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def class_of(function: Callable[..., Any]) -> Any:
    """Return the place that the qualified name of a function says it is defined in."""
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split(".")[:-1]:
        found = getattr(found, part, None)
    return found
