"""What is known of a workflow when its decorator has run: its function, its options, its source.

Imports: identity, resume (the checkpoint policy), rewrite.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stepwise import _identity
from stepwise._checkpoints import Retention
from stepwise._data import returned_type
from stepwise._identity import Key, Parameters
from stepwise._notices import warn
from stepwise._resume import CheckpointPolicy
from stepwise.errors import RunWarning
from stepwise.rewrite import (
    Rewritten,
    Source,
    UnsupportedError,
    build,
    capture,
    fingerprint,
)

__all__ = ["Definition", "Options", "is_defined"]


@dataclass(frozen=True)
class Options:
    """The options of a workflow, checked where they are given."""

    name: str | None = None
    store: Any = None
    durability: Literal["fsync", "os"] | None = None
    key: Key = None
    ignore: tuple[str, ...] = ()
    checkpoint_every: int = 1
    retention: Retention = "prune_old"
    keep: int = 3
    prune_journal: bool = False
    compensate_on_failure: bool = False
    progress: bool | None = None
    codec: Literal["pickle", "json"] | None = None
    trust: Literal["all", "data"] | None = None
    run_id: str | None = None
    fresh: bool = False

    def recording(self, outer: str) -> str:
        """How values are recorded; see :class:`stepwise._codec.Codec`.

        Args:
            outer: how the run that calls it as a child workflow does.
        """
        if self.trust is None and self.codec is None:
            return outer
        if self.trust == "data":
            return "data"
        return "json" if self.codec == "json" else ""

    @property
    def policy(self) -> CheckpointPolicy:
        """When checkpoints are taken, and how many are kept."""
        return CheckpointPolicy(
            self.checkpoint_every, self.retention, self.keep, self.prune_journal
        )


_defined: set[tuple[str, str]] = set()  # module and label


def is_defined(module: str, label: str) -> bool:
    """Whether this process came to know a workflow of that name in a module."""
    return (module, label) in _defined


class Definition:
    """A workflow function and what is known of it when its decorator runs.

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
        self.function = function
        self.options = options
        self.label = options.name or _identity.label_of(function)
        self.parameters = Parameters(
            function, ignore=options.ignore, key=options.key, what=f"workflow {self.label!r}"
        )
        self.source: Source = capture(function) if like is None else like.source
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.is_generator = inspect.isgeneratorfunction(function)
        self.is_async_generator = inspect.isasyncgenfunction(function)
        _defined.add((function.__module__, self.label))
        self._like = like
        self._place: str = place if like is None else like._place
        self._rewritten: Rewritten | None = None
        self._tried = False

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

    def _tell_replay(self, error: UnsupportedError) -> None:
        warn(
            f"workflow {self.label!r} cannot be resumed in the middle: {error}. After a crash it "
            "runs from the top, answered by its journal; the code between its steps must then do "
            "the same again",
            RunWarning,
        )

    @property
    def place(self) -> str:
        """The module or script that defines it; asked late: a script is known when it runs."""
        return self._place or _identity.place_of(self.function.__module__)

    @functools.cached_property
    def returns(self) -> Any:
        """The type that the function is annotated to return."""
        return returned_type(self.function)

    @property
    def code(self) -> str:
        """Fingerprint of what it executes; empty without source."""
        node = self.source.node()
        return fingerprint(node) if node is not None else ""

    @property
    def full_name(self) -> str:
        """``module:label``, or ``/path/script.py:label`` for a workflow of a script."""
        return f"{self.place}:{self.label}"
