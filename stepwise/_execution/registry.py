"""The workflows that this process knows: those whose decorator has run, by their full names."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._runtime.facts import NamedTuple
from stepwise.errors import ConfigurationError

__all__ = ["KnownWorkflow", "known_workflow", "known_workflows", "names_of", "register"]


Resume = Callable[[Any, Any, Mapping[str, Any]], Any]
"""Gets the definition of a workflow, a run of it, and arguments; gives a handle."""


class KnownWorkflow(NamedTuple):
    """A workflow, and what continues runs of it."""

    definition: Any
    resumes: Resume

    def resume(self, run: Any, inputs: Mapping[str, Any]) -> Any:
        """Continue a run; gives its handle."""
        return self.resumes(self.definition, run, inputs)


_known: dict[tuple[str, str], list[tuple[weakref.ref[Any], Any]]] = {}


def register(definition: Any, resume: Resume) -> None:
    """Remember a workflow while it is alive; the newest of its name comes first."""
    name = definition.function.__module__, definition.label
    held = [each for each in _known.get(name, ()) if each[0]() is not None]
    _known[name] = [(weakref.ref(definition), resume), *held]


def known_workflows() -> list[KnownWorkflow]:
    """The workflows of this process; of several that have one name, the newest."""
    found: dict[str, KnownWorkflow] = {}
    for each in _alive():
        found.setdefault(each.definition.full_name, each)
    return list(found.values())


def _alive() -> list[KnownWorkflow]:
    return [
        KnownWorkflow(definition, resume)
        for held in list(_known.values())
        for reference, resume in held
        if (definition := reference()) is not None
    ]


def names_of(definition: Any) -> tuple[str, ...]:
    """The full names of a workflow's runs: its own, and that of its file as a script."""
    own: str = definition.full_name
    return (own, f"{definition.file}:{definition.label}") if definition.file else (own,)


def known_workflow(full_name: str) -> KnownWorkflow:
    """The workflow of that name.

    Raises:
        ConfigurationError: this process does not know it, or knows several that differ.
    """
    alive = _alive()
    found = [each for each in alive if each.definition.full_name == full_name]
    if not found:  # its file may have been started as a script, and be imported here
        found = [each for each in alive if full_name in names_of(each.definition)]
    if not found:
        raise ConfigurationError(
            f"this process knows no workflow {full_name!r}: import the module that defines it "
            "(its decorator must have run), or start the script that does"
        )
    made = [each for each in found if each.definition.function.__closure__]
    if len(made) > 1 and found[0] in made:
        raise ConfigurationError(
            f"this process has {len(made)} workflows {full_name!r}, made by a function, which "
            "may hold different values: call the intended one, .options(run_id=...)(...), "
            "or give them names: @workflow(name=...)"
        )
    return found[0]
