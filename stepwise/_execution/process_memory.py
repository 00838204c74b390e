"""The memory of this process: its runs, its workflows and steps, and code edits meanwhile.

Some facts decide which run a call means and are in no store:

- How many runs with equal arguments have completed here: a loop that calls a workflow five times
  means five runs.
- Which objects a stopped run was given: it may have changed them, and a call with the same objects
  means that run.
- Which runs were executed here.

A workflow or a step is known once its decorator has run.

IPython's ``%autoreload`` replaces the code of functions in place, or passes old and new objects of
a module to update rules.  It compiles methods inside a placeholder class.
"""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from stepwise._identity.call_parts import same_code
from stepwise._identity.module_names import holds_name
from stepwise._journal.records import WAITS
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import process_lock
from stepwise._runtime.messages import Once, kernel_shell
from stepwise._runtime.settings import hide_passwords
from stepwise._values.digest import DECORATED
from stepwise._values.trees import found_at
from stepwise.errors import ConfigurationError, DigestError

# -- reloading ------------------------------------------------------------------------------------


_CLASS = "__autoreload_class__."
_PATCHER = "IPython.extensions.deduperreload"


def name_truly(function: Any) -> None:
    """Give a recompiled method the name of its class, which is part of its identity."""
    if not getattr(function, "__qualname__", "").startswith(_CLASS):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PATCHER):
            prefixes = frame.f_locals.get("prefixes")
            if prefixes:
                function.__qualname__ = ".".join((*prefixes, function.__name__))
                return
        frame = frame.f_back


def keep_up_to_date(kind: type, update: Callable[[Any, Any], None]) -> None:
    """Let the reloader, if any, update old objects of a class from the new ones."""
    reloader = sys.modules.get("IPython.extensions.autoreload")
    rules: list[Any] | None = getattr(reloader, "UPDATE_RULES", None)
    if rules is not None and all(rule[1] is not update for rule in rules):
        rules.append((lambda old, new: isinstance(old, kind) and isinstance(new, kind), update))


def code_in_file(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function as its file has it now, or ``None`` if the codes differ.

    Code compiled by the reloader has line numbers that match no file.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    try:
        found = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    for name in function.__qualname__.split("."):
        inner = [
            each for each in found.co_consts if isinstance(each, CodeType) and each.co_name == name
        ]
        if not inner:
            return None
        found = inner[-1]
    return found if same_code(found, code) else None


# -- process memory -------------------------------------------------------------------------------


_STOPPED = 32  # runs whose objects are held
_EXECUTED = 1000  # runs whose ids are held
_NONE = 0, None
_ATOMS = (type(None), bool, int, float, complex, str, bytes)


class Given(NamedTuple):
    """The objects a workflow was called with."""

    name: str
    bound: Mapping[str, Any]
    instance: Any

    def same_as(self, other: Given) -> bool:
        """Return whether both hold the very same objects."""
        return (
            self.name == other.name
            and self.instance is other.instance
            and self.bound.keys() == other.bound.keys()
            and all(_same(value, other.bound[name]) for name, value in self.bound.items())
        )


def _same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _ATOMS and one == other)


class ProcessMemory:
    """The memory of this process; see the module."""

    _mutex = process_lock()

    def __init__(self) -> None:
        # The number of runs, and a token for the last one.
        self._completed: dict[tuple[str, str], tuple[int, object]] = {}
        self.resumed: str = ""  # the run named by STEPWISE_RESUME, once it has been taken up
        self.globals: dict[tuple[str, str], object] = {}
        """Stand-ins for the values of globals, by module and name; see ``ModuleState``."""
        self.runs: dict[str, dict[str, object]] = {}
        """Stand-ins for the globals as left by runs whose functions were entered here."""
        self._stopped: OrderedDict[tuple[str, str], tuple[Given, str]] = OrderedDict()
        self._executed: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._taken: dict[tuple[str, str], str] = {}
        self.is_first = Once()  # of notices in this process
        self.is_executor = False
        """True if this process continues runs that others began, with other command lines."""
        self.only_looks = False
        """True if this process only imports workflows to look at runs, so that none begins."""

    def executes(self, store: str, run_id: str) -> None:
        """Remember that a run is executed in this process.

        The objects that it was given before are released: beside the current ones they would be
        twins.
        """
        with self._mutex:
            self._stopped.pop((store, run_id), None)
            self._executed[store, run_id] = None
            while len(self._executed) > _EXECUTED:
                self._executed.popitem(last=False)

    def has_executed(self, store: str, run_id: str) -> bool:
        """Return whether a run was recently executed in this process."""
        return (store, run_id) in self._executed

    def takes(self, store: str, run_id: str, base: str) -> None:
        """Assign a run to the calls counted by ``base``, from which its id is not derived."""
        with self._mutex:
            self._taken[store, run_id] = base

    def is_taken(self, store: str, run_id: str, base: str) -> bool:
        """Return whether another group of equal calls already has that run."""
        return self._taken.get((store, run_id), base) != base

    def ordinal(self, store: str, base: str) -> int:
        """Return how many runs of this derived id have completed here."""
        with self._mutex:
            return self._completed.get((store, base), _NONE)[0]

    def completed(self, store: str, base: str, run_id: str) -> None:
        """Count a run that completed, or whose result was recalled.

        If a Ctrl-C arrives in here, the caller does not get the result, so the count is undone: the
        next call gets it.
        """
        this = object()
        try:
            with self._mutex:
                self._stopped.pop((store, run_id), None)
                count, _ = self._completed.get((store, base), _NONE)
                self._completed[store, base] = count + 1, this
        except BaseException:
            with self._mutex:
                count, last = self._completed.get((store, base), _NONE)
                if last is this:
                    self._completed[store, base] = count - 1, None
            raise

    def stopped(self, store: str, run_id: str, given: Given, digest: Callable[[], str]) -> None:
        """Remember a run that failed or was interrupted, with a ``digest`` of its arguments."""
        try:
            now = digest()
        except DigestError:
            return
        with self._mutex:
            self._stopped[store, run_id] = given, now
            self._stopped.move_to_end((store, run_id))
            while len(self._stopped) > _STOPPED:
                self._stopped.popitem(last=False)

    def recognise(self, store: str, given: Given, digest: Callable[[], str]) -> str | None:
        """Return the id of the stopped run that left these objects as they are, or ``None``."""
        with self._mutex:
            for (where, run_id), (before, left) in reversed(self._stopped.items()):
                if where == store and before.same_as(given) and left == digest():
                    return run_id
        return None


memory = ProcessMemory()


def command(mask: Callable[[str], str] = str) -> tuple[tuple[str, ...], str]:
    """Return the command that started this process, and its folder.

    The result is empty where no command line applies: an interpreter at a prompt, a notebook's
    kernel, a process spawned by another, an executor of runs that others began.

    Args:
        mask: replaces the secrets in a text.
    """
    given = getattr(sys, "orig_argv", [])[1:]
    spawned = "--multiprocessing-fork" in given
    main = getattr(sys.modules.get("__main__"), "__file__", None) or "-c" in given
    others = spawned or memory.is_executor or kernel_shell() is not None
    if others or main in (False, "<stdin>") or not sys.executable:
        return (), ""
    try:
        return (sys.executable, *map(mask, hide_passwords(given))), os.getcwd()
    except FileNotFoundError:  # the folder is gone
        return (), ""


# -- workflows ------------------------------------------------------------------------------------


_known: dict[tuple[str, str], list[weakref.ref[Any]]] = {}


def register(definition: Any) -> None:
    """Remember a workflow while it is alive; the newest of its name comes first."""
    name = definition.function.__module__, definition.label
    held = [each for each in _known.get(name, ()) if each() is not None]
    _known[name] = [weakref.ref(definition), *held]


def known_workflows() -> list[Any]:
    """Return the definitions of this process's workflows; for several of one name, the newest."""
    found: dict[str, Any] = {}
    for each in _alive():
        found.setdefault(each.full_name, each)
    return list(found.values())


def _alive() -> list[Any]:
    references = [reference for held in list(_known.values()) for reference in held]
    return [each for each in [reference() for reference in references] if each is not None]


def names_of(definition: Any) -> tuple[str, ...]:
    """Return the full names of a workflow's runs: its own, and that of its file as a script."""
    own: str = definition.full_name
    return (own, f"{definition.file}:{definition.label}") if definition.file else (own,)


def workflows_named(full_name: str) -> list[Any]:
    """Return the definitions of the workflows of that name: none, one, or several."""
    alive = _alive()
    found = [each for each in alive if each.full_name == full_name]
    # Its file may have been started as a script, and be imported here.
    return found or [each for each in alive if full_name in names_of(each)]


def known_workflow(full_name: str) -> Any:
    """Return the definition of the workflow of that name, whose ``resume`` continues its runs.

    Raises:
        ConfigurationError: this process does not know it, or knows several that differ.
    """
    found = workflows_named(full_name)
    if not found:
        raise ConfigurationError(
            f"this process knows no workflow {full_name!r}: import the module that defines it "
            "(its decorator must have run), or start the script that does"
        )
    made = [each for each in found if each.function.__closure__]
    if len(made) > 1 and found[0] in made:
        raise ConfigurationError(
            f"this process has {len(made)} workflows {full_name!r}, made by a function, which "
            "may hold different values: call the intended one, .options(run_id=...)(...), "
            "or give them names: @workflow(name=...)"
        )
    return found[0]


# -- steps ----------------------------------------------------------------------------------------


known_steps: set[tuple[str, ...]] = {
    (WAITS, f"{WAITS}.{name}") for name in ("sleep", "sleep_until", "wait_for", "approve")
}
"""The steps that this program has defined: (module, name), and (module, name, qualified name)."""

_roots: dict[tuple[str, str], set[str]] = {}
"""The root names under which a module holds the functions behind its steps of one name.

A root name is empty if the module need not hold the function: a factory made it, or it has another
name.
"""

_siblings: dict[tuple[str, str], set[weakref.ref[Any]]] = {}
"""Weak references to the live steps of one name and qualified name: made by a factory or a loop."""


def register_step(step: Any, root: str) -> set[weakref.ref[Any]]:
    """Remember a step while it is alive; return references to all live steps of its name.

    Args:
        root: the root name under which its module holds its function; empty if it need not.
    """
    _roots.setdefault((step.module, step.name), set()).add(root)
    known_steps.update([(step.module, step.name), (step.module, step.name, step.qualname)])
    # Each call asks for the number of siblings, which a WeakSet computes in Python.
    siblings = _siblings.setdefault((step.name, step.qualname), set())
    siblings.add(weakref.ref(step, siblings.discard))
    return siblings


def is_defined_now(module: str, name: str) -> bool:
    """Return whether this program defines a step of that name now.

    A step whose function is no longer in its module was renamed or removed while the program ran
    (the module was loaded again), and does not count.
    """
    if (module, name) not in known_steps:
        return False
    return any(not root or holds_name(module, root) for root in _roots.get((module, name), ("",)))


def defined_steps(module: str, name: str) -> list[Any]:
    """Return the live steps of a name; only those that their module still holds, if there are any.

    Args:
        module: the module of the steps.  A file that is imported now may have been started then.
    """
    live = [
        each
        for (named, _), references in [*_siblings.items()]
        if named == name
        for each in [reference() for reference in [*references]]
        if each is not None and (each.module == module or "__main__" in (each.module, module))
    ]
    held = [(each, found_at(each.module, each.qualname)) for each in live]
    return [step for step, function in held if getattr(function, DECORATED, None) is step] or live


def look_at_code_again() -> None:
    """Make the versions of all steps anew: a notebook may have defined again what they read."""
    for references in [*_siblings.values()]:
        for step in filter(None, [reference() for reference in [*references]]):
            vars(step).pop("version", None)
            vars(step).pop("code", None)


def steps_around(function: object) -> list[Any]:
    """Return the steps whose body is this undecorated function."""
    live = [reference() for each in list(_siblings.values()) for reference in [*each]]
    return [each for each in live if each is not None and each.function is function]
