"""A forecast for a recorded run that today's code takes up; nothing is executed or written.

The code that resumes a run (``resume``) also decides here: which checkpoint fits, which holds, and
what the journal answers.  Where the outcome depends on code that a preflight does not execute, the
forecast names that code instead of guessing.
"""

from __future__ import annotations

import functools
import importlib.machinery
import itertools
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from stepwise._calls.edits import EditedStep, asks, edits_in, forgotten_by
from stepwise._checkpoints.checkpoints import Checkpoints, State
from stepwise._execution.loadable import Loadable
from stepwise._execution.outcomes import ABOUT
from stepwise._execution.process_memory import defined_steps, known_workflow, workflows_named
from stepwise._identity.following import versions_of
from stepwise._identity.identity import shown_parts
from stepwise._identity.module_names import file_of
from stepwise._journal import journal as journals
from stepwise._journal.lease import describe_owner
from stepwise._journal.projection import RecordedCall, is_only_submitted
from stepwise._journal.records import Entry, RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._matching.pool import Pool
from stepwise._rewrite.frame import Rewritten
from stepwise._runs.replica import Replica, taken_from
from stepwise._runs.run import each_listed
from stepwise._runs.steps import settled
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count
from stepwise._values.codec import JSON, decode
from stepwise._values.data import parameter_types
from stepwise._values.preview import error_text
from stepwise._values.trees import found_at
from stepwise._workflows.definition import BoundCall, Definition
from stepwise._workflows.other_runs import counted_here, is_call_of
from stepwise._workflows.rerun import compared
from stepwise._workflows.resume import (
    Fitting,
    GoesOn,
    cannot_replay,
    in_children,
    is_known,
    newest_that_holds,
    place_words,
    pool_of,
)
from stepwise.errors import RunStopped, StepwiseError
from stepwise.stores import Store

_CALL = "the program's own call"
_RESULTS = 200  # recorded results of a run that are examined
_SHOWN = 4  # names in a note
_PLAIN = (Any, str, int, float, bool, list, dict)  # types of arguments that are data themselves

Verdict = Literal["resumes", "replays", "begins", "recalls", "refuses", "elsewhere"]
"""The outcome of a start of a run.

    resumes    continues inside its function, at a checkpoint
    replays    begins at the top of its function, and the journal answers
    begins     begins at the top, and nothing was recorded that answers
    recalls    returns the result of a completed run
    refuses    cannot go on
    elsewhere  belongs to a program that was not examined
"""


class Forecast(NamedTuple):
    """The outcome of a start of a run with today's code.

    Args:
        facts: the recorded facts of the run.
        verdict: see :data:`Verdict`.
        at: ``file:line`` where it resumes; empty if it does not, or if that is not known.
        after: ``file:line`` of the last finished statement, as it was then.
        steps: the number of steps that need not be made again.
        lost: True if it does not resume at the checkpoint at which it would without the change.
        why: why it does not resume at its newest checkpoint, or cannot go on.
        unknown: what decides otherwise, and was not executed; empty if the verdict is certain.
        notes: what the run meets on its way.
    """

    facts: RunFacts
    verdict: Verdict
    at: str = ""
    after: str = ""
    steps: int = 0
    lost: bool = False
    why: str = ""
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def severity(self) -> int:
        """2 if the run cannot go on, 1 if it has lost its place, else 0."""
        return 2 if self.verdict == "refuses" else int(self.lost)


def forecast(store: Store, seal: Seal, facts: RunFacts) -> Forecast:
    """Return what a start of this program would make of a run."""
    if not workflows_named(facts.workflow):
        return _of_unknown(store, seal, facts)
    try:
        return _Examined(store, seal, facts, known_workflow(facts.workflow)).forecast()
    except (StepwiseError, RunStopped) as error:
        return Forecast(facts, "refuses", why=str(error))


# -- runs of unknown workflows --------------------------------------------------------------------


def _of_unknown(store: Store, seal: Seal, facts: RunFacts) -> Forecast:
    """Return the forecast for a run whose workflow this process does not know."""
    label, place = facts.label, journals.place_of_run(facts)
    is_here = place in sys.modules or any(file_of(name) == place for name in list(sys.modules))
    if facts.parts is None:
        what = "a graph, a step loop or a notebook, which a preflight does not examine"
        return Forecast(facts, "elsewhere", why=what)
    if not is_here and _exists(place):
        return Forecast(facts, "elsewhere", why=f"{place} was not named")
    effects = Counter(course_of(store, seal, facts).effects)
    made = ", ".join(f"{name} x{number}" for name, number in effects.most_common(_SHOWN))
    what = f"{label!r} is no longer in {place}" if is_here else f"{place} is gone"
    begins = f"is refused, since this run made {made}" if made else "begins a new run"
    return Forecast(
        facts,
        "refuses",
        why=f"{what}: a call of it under another name {begins}; @workflow(name={label!r}) in the "
        "place of before keeps its runs",
    )


def _exists(place: str) -> bool:
    """Return whether a script or module exists, without importing anything."""
    if os.path.isabs(place):
        return os.path.exists(place)
    where: Any = None
    name = ""
    for part in place.split("."):
        name = f"{name}.{part}" if name else part
        spec = importlib.machinery.PathFinder.find_spec(name, where)
        if spec is None:
            return False
        where = spec.submodule_search_locations
    return True


@functools.lru_cache(maxsize=1000)
def _enterable(definition: Definition) -> tuple[Rewritten | None, str]:
    """Return the function that can be entered in the middle, or why there is none."""
    if settings.trusts_data_only():
        return None, "trust='data' loads no checkpoint"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rewritten = definition.rewritten()
    return rewritten, str(caught[0].message) if caught else ""


# -- runs of known workflows ----------------------------------------------------------------------


class _Examined:
    """One run, examined with today's code of its workflow."""

    def __init__(self, store: Store, seal: Seal, facts: RunFacts, definition: Definition) -> None:
        self.store, self.seal, self.facts, self.definition = store, seal, facts, definition
        self.module = definition.function.__module__
        self.main = self.module if os.path.isabs(journals.place_of_run(facts)) else ""
        self.journal = journals.Journal(store, seal, facts.run_id, 0, fsync=False)
        self.unknown: list[str] = []
        self.notes: list[str] = []
        self.stops = ""
        self.edits = edits_in(store, seal, facts.run_id)
        owner = store.owner(facts.run_id) if facts.status == "running" else None
        if owner is not None:
            self.notes.append(f"is executed now {describe_owner(owner)}, and may be further then")

    def forecast(self) -> Forecast:
        """Return what becomes of the run."""
        made = bool(self.facts.parent) or self.definition.made(self.facts.code)
        if not made:
            if made is None:
                self.unknown.append(f"{_CALL}, which may name this run")
            may = "may belong" if made is None else "belongs"
            return self._made("refuses", why=f"it {may} to another workflow of its name")
        if self.facts.status == "completed":
            recalled = self._recalled()
            if recalled is not None:
                return recalled
        asked = asks(self.facts.run_id, self.edits)
        refused = "" if self.facts.parent else self._why_no_call() or (str(asked) if asked else "")
        if refused:
            return self._made("refuses", why=refused)
        if self.facts.parent and self.facts.status == "failed":
            self.unknown.append("the run that calls it, which may have met its failure already")
        rewritten, problem = _enterable(self.definition)
        options = self.definition.options
        fits = Fitting(
            Checkpoints(
                self.journal, options.retention, options.keep, prune_journal=options.prune_journal
            ),
            rewritten,
            self.definition.source,
        )
        found = self._checkpoint(fits)
        if found is not None:
            return self._at_checkpoint(*found, fits)
        return self._at_top(fits, problem)

    def _made(self, verdict: Verdict, **facts: Any) -> Forecast:
        unknown = tuple(dict.fromkeys(self.unknown))
        if self.stops and verdict != "refuses":
            verdict, facts["why"] = "refuses", self.stops
            if self.facts.code != self.definition.code:
                unknown = (*unknown, "its new code, which may not make that call any more")
        return Forecast(self.facts, verdict, unknown=unknown, notes=tuple(self.notes), **facts)

    def _loadable(self) -> Loadable:
        function = self.definition.function
        code = function.__code__
        captured = (f".{name}" for name in code.co_freevars)
        variables = {*code.co_cellvars, *captured, *function.__globals__}
        return Loadable(self.main, variables, self.definition.options.secret)

    # -- completed -------------------------------------------------------------------------------

    def _recalled(self) -> Forecast | None:
        """Return the forecast of a completed run; ``None`` if its result is made again."""
        end = journals.read_end(self.store, self.seal, self.facts)
        ended = end.ended if end is not None else None
        if end is None or ended is None or not ended.answers:
            return None
        loadable = self._loadable()
        loadable.look_at_outcome(end)
        if loadable.fails:
            return self._made("refuses", why=f"its result cannot be loaded: {loadable.fails}")
        self.unknown += loadable.unknown
        edited = self.facts.code != self.definition.code
        return self._made("recalls", why="its code has changed since" if edited else "")

    # -- the call --------------------------------------------------------------------------------

    def _why_no_call(self) -> str:
        """Return why the recorded call cannot be made any more; empty if it can be."""
        number = course_of(self.store, self.seal, self.facts).started
        start = journals.read_start(self.store, self.seal, self.facts.run_id, number)
        if start is None or start[0].form is None or not start[1]:
            self.unknown.append(f"{_CALL}, since its arguments are not recorded")
            return ""
        loadable = self._loadable()
        values, method = self._inputs(loadable, bytes(start[1]), start[0].form)
        if loadable.fails:
            why = f"its recorded arguments cannot be loaded: {loadable.fails}"
            self.unknown.append(f"{_CALL}, since {why}")
            return ""
        self.unknown += [f"{_CALL}, or for the recorded one {each}" for each in loadable.unknown]
        parameters, label = self.definition.parameters, self.definition.label
        if values is None:
            self.unknown.append(_CALL)
            return ""
        others = sorted(values.keys() - {*parameters.names, method})
        if others:
            return f"{label!r} has no parameter {others[0]!r} any more"
        try:
            instance, args, kwargs = parameters.call_of(values, method)
            parameters.bind(args if instance is None else (instance, *args), kwargs)
        except TypeError as error:
            return f"its recorded call does not fit any more: {error}"
        self._look_at_classes(loadable, start[0].made)
        is_plain = not (method or self.unknown or parameters.is_computed) and loadable.is_plain
        return self._why_another(BoundCall(self.definition, None, args, kwargs)) if is_plain else ""

    def _look_at_classes(self, loadable: Loadable, made: Mapping[str, str]) -> None:
        """Note the classes of arguments that may make other instances than they did."""
        recorded = {name.replace("__main__.", f"{self.main}.", 1): made[name] for name in made}
        now = versions_of(loadable.made.values())
        for name in loadable.made:
            if not now.get(name) or now[name] != recorded.get(name):
                self.unknown.append(f"{_CALL}, which makes {name} anew")

    def _inputs(
        self, loadable: Loadable, payload: bytes, form: str
    ) -> tuple[dict[str, Any] | None, str]:
        """Return the recorded arguments with stand-ins, and the parameter for the instance."""
        if form == JSON:
            about = json.loads(payload)
            kinds = parameter_types(self.definition.function)
            held = {name: decode(text.encode(), JSON) for name, text in about["values"].items()}
            typed = [name for name in held if kinds.get(name, Any) not in _PLAIN]
            self.unknown += [f"{_CALL}, which gives {name!r}" for name in typed]
            return {**held, **self._missing(about["missing"])}, about["method"]
        whole = loadable.look_at(payload, form)
        values = whole[0] if type(whole) is tuple else None
        if type(values) is not dict or ABOUT not in values:
            return None, ""
        method, missing = values.pop(ABOUT)
        return {**values, **self._missing(missing)}, method

    def _missing(self, missing: Mapping[str, str]) -> Mapping[str, str]:
        """Note the arguments that are not recorded; secrets take no part in the identity."""
        secrets = self.facts.secrets.split()
        others = (name for name in missing if name not in secrets)
        self.unknown += [f"{_CALL}, which gives {name!r}" for name in others]
        return missing

    def _why_another(self, call: BoundCall) -> str:
        """Return why the recorded call means another run now; empty if it means this one."""
        old = counted_here(self.store, self.seal, self.facts, call)
        differing = call.parts.differing(old.parts, growing=False)
        if is_call_of(self.store, self.seal, old, call) and not differing:
            return ""
        told = f": {shown_parts(differing)} differs" if differing else ""
        return f"the recorded call of {self.definition.label!r} means another run now{told}"

    # -- the place -------------------------------------------------------------------------------

    def _checkpoint(self, fits: Fitting) -> tuple[State, Pool] | None:
        """Return the checkpoint at which the run resumes, with the records that answer."""
        while True:
            found = newest_that_holds(self.journal, fits, load=self._load, damaged=fits.damaged)
            if found is None:
                return None
            loaded, state, entries = found
            loadable = self._loadable()
            loadable.look_at_checkpoint(loaded)
            if not loadable.fails:
                self.unknown += loadable.unknown
                earlier = [*state.earlier(self.store, self.seal, self.facts.run_id)]
                return state, pool_of(entries, set(), earlier, counted=state.ordinals)
            why = f"the variables at {state.where} cannot be loaded ({loadable.fails})"
            fits.refuse(loaded, why)

    def _load(self, position: journals.Position) -> list[Entry] | None:
        """Return the records after a position, with what the start itself would record first."""
        entries = self.journal.load_on(position)
        again = forgotten_by(self.edits)
        if entries is not None and again is not None:
            entries.append(Entry(self.journal.position.last + 1, again, b""))
        return entries

    def _has_lost(self, fits: Fitting, taken: State | None) -> bool:
        """Return whether the run would resume at a newer checkpoint without the change."""
        if taken is not None and not fits.why and not self.edits:
            return False
        kept = Checkpoints(self.journal, "all", 0).load()
        states = ((each.state, each.state) for each in kept if not isinstance(each, str))
        found = newest_that_holds(
            self.journal, states, load=self.journal.load_on, damaged=lambda _: None
        )
        return found is not None and (taken is None or found[0].journal[0] > taken.journal[0])

    def _at_checkpoint(self, state: State, pool: Pool, fits: Fitting) -> Forecast:
        self._look_at(pool)
        return self._made(
            "resumes",
            at=fits.resumes_at(state),
            after=state.where,
            steps=state.step,
            lost=self._has_lost(fits, state),
            why=fits.why,
        )

    def _at_top(self, fits: Fitting, problem: str) -> Forecast:
        refusal = cannot_replay(self.journal, self.facts, fits.why or problem)
        if refusal is not None:
            return self._made("refuses", why=str(refusal))
        lost = self._has_lost(fits, None)
        entries = self._load(journals.Position()) or []
        pool = pool_of(entries, set())
        done = pool.answering
        self._look_at(pool)
        first = is_only_submitted(entries)
        why = fits.why or (problem if lost or done else "")
        return self._made(
            "replays" if done else "begins",
            steps=done,
            lost=lost,
            why="it was only submitted" if first and not why else why,
        )

    # -- what it meets ---------------------------------------------------------------------------

    def _look_at(self, pool: Pool) -> None:
        """Note what the run meets: calls of missing functions, doubts, waits, results."""
        gone, lost = Counter[str](), Counter[str]()
        older = {_edit_text(each): len(each.calls) or 1 for each in self.edits}
        loadable = self._loadable()
        for number, each in enumerate(pool.all):
            name = each.call.name
            if each.in_doubt:
                self.notes.append(f"in doubt: {name}")
            if each.wait is not None:
                self.notes += self._on_wait(each, each.wait)
            elif not each.call.is_wait and not self._is_known(each):
                gone[name] += 1
            elif each.answers and number < _RESULTS:
                loadable.fails = ""
                loadable.look_at_outcome(each.entry)
                if loadable.fails:
                    self._on_lost(each, loadable.fails)
                    lost[name] += 1
        self.unknown += loadable.unknown
        for what, counted in (
            ("no function for recorded calls of", gone),
            ("results that cannot be loaded:", lost),
            ("results of older versions:", older),
        ):
            if counted:
                self.notes.append(f"{what} {_named(counted)}")
        children = in_children(pool)
        if children:
            self.notes.append(children.removeprefix(", "))

    def _on_lost(self, recorded: RecordedCall, why: str) -> None:
        call = recorded.call
        if call.effect and not call.child and not self.stops:
            self.stops = (
                f"the result of {call.name}({call.arguments}), a side effect, cannot be loaded: "
                f"{why}"
            )

    def _module(self, module: str) -> str:
        return self.main if module == "__main__" and self.main else module

    def _is_known(self, recorded: RecordedCall) -> bool:
        call = recorded.call
        modules = self._module(call.module), call.module
        return any(is_known(each, call.name) or self._is_plain(each, call.name) for each in modules)

    def _is_plain(self, module: str, name: str) -> bool:
        """Return whether a plain function is a step once the workflow gives it to ``best_of``."""
        if "best_of" not in self.definition.source.words:
            return False
        return name.endswith("<lambda>") or callable(found_at(module, name))

    def _on_wait(self, recorded: RecordedCall, wait: Any) -> Iterator[str]:
        """Yield what has changed about a wait."""
        call = recorded.call
        if call.is_wait:
            edited = self.facts.code != self.definition.code
            if wait.kind == "signal" and edited and wait.name not in self.definition.source.words:
                yield f"waits for the signal {wait.name!r}, which its function no longer names"
            return
        tools = defined_steps(self._module(call.module), call.name)
        if not tools:
            yield f"waits for a yes to {call.name}, which is gone"
        for tool in tools[:1]:
            asked = {name for name in json.loads(wait.digest or "{}") if name.isidentifier()}
            parameters = tool.parameters
            now = {n for held in parameters.all_of(dict.fromkeys(parameters.names)) for n in held}
            now.discard("self")
            if not tool.approve:
                yield f"waits for a yes to {call.name}, which asks for none now"
            elif asked and asked != now:
                differing = ", ".join(sorted(asked ^ now))
                yield f"asks anew about {call.name}: its parameters differ ({differing})"


def _edit_text(edit: EditedStep) -> str:
    again = ", which runs again" if edit.policy == "rerun" else ""
    return f"{edit.step.name} ({'; '.join(edit.differs)}){again}"


def _named(counted: Mapping[str, int]) -> str:
    names = [f"{name} x{number}" for name, number in [*counted.items()][:_SHOWN]]
    more = len(counted) - len(names)
    return ", ".join(names) + (f" and {count(more, 'other')}" if more else "")


# -- with the code executed -----------------------------------------------------------------------


_NEWEST = 1 << 60  # steps: more than any run has


class Replayed(NamedTuple):
    """The outcome of executing the code of a workflow with the recorded results.

    Args:
        told: how far the record answered, or why there was no execution.
        stops: True if the run stops there, and a person has to decide.
        goes_on: where the execution began; ``None`` if there was none.
    """

    told: str
    stops: bool = False
    goes_on: GoesOn | None = None

    @classmethod
    def loaded(cls, told: str, stops: bool, goes_on: Sequence[Any] | None) -> Replayed:
        """Return what another process found, from the lists that JSON makes of it."""
        return cls(told, stops, GoesOn(*goes_on) if goes_on is not None else None)


def replay(replica: Replica) -> Replayed:
    """Execute the code of a workflow in memory, from where its run would resume.

    Recorded results answer its calls, and other calls are refused.
    """
    try:
        definition = known_workflow(replica.facts.workflow)
        again = compared(replica, definition, _NEWEST)
    except RunStopped as error:
        return Replayed(str(error), stops=True)
    except StepwiseError as error:
        return Replayed(f"not replayed: {error}")
    except BaseException as error:  # the code of the workflow may raise anything
        told = f"{type(error).__name__}: {error_text(error)}"
        return Replayed(f"not replayed: it raises {told}")
    if again.difference is not None:
        return Replayed(f"replayed: {again.difference}", goes_on=again.goes_on)
    ends = {"record": "to the end of the record", "raised": "until it raised"}.get(again.end, "")
    told = f"replayed as recorded{', ' if ends else ''}{ends}"
    return Replayed(told, goes_on=again.goes_on)


def with_replay(found: Forecast, said: Replayed) -> Forecast:
    """Return the forecast after the code was executed, which leaves less unknown."""
    if said.stops:
        return found._replace(verdict="refuses", why=said.told, unknown=())
    now = said.goes_on
    found = found._replace(notes=(*found.notes, said.told))
    if now is None or found.verdict == "recalls":
        return found
    unknown = tuple(each for each in found.unknown if each.startswith(_CALL))
    if (now.verdict, now.at) == (found.verdict, found.at):
        return found._replace(unknown=unknown)
    if not found.unknown:
        return found._replace(unknown=(f"the replay, which {now}",))
    return found._replace(
        verdict=now.verdict, at=now.at, steps=now.steps, lost=True, unknown=unknown
    )


# -- of whole stores ------------------------------------------------------------------------------


class Forecasts:
    """The forecasts of the runs in some stores.

    Args:
        most, completed: how many unfinished and completed runs of each store are examined.
        execute: executes the code of a run, too; see :func:`replay`.

    Attributes:
        exit_code: the highest severity so far.
        is_cut: True if unfinished runs were left out.
    """

    def __init__(
        self,
        stores: Iterable[Store],
        most: int,
        completed: int,
        execute: Callable[[Replica], Replayed] | None = None,
    ) -> None:
        self._stores, self._most, self._completed = stores, most, completed
        self._execute = execute
        self.exit_code = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[Forecast]:
        for store in self._stores:
            seal = journals.seal_for(store)
            for found in self._found(store, seal):
                shown = self._replayed(store, seal, found)
                self.exit_code = max(self.exit_code, shown.severity)
                yield shown

    def _found(self, store: Store, seal: Seal) -> Iterator[Forecast]:
        unfinished = iter(store.heads(unfinished=True))
        shown: set[str] = set()
        for head in itertools.islice(unfinished, self._most):
            found = _forecast_now(store, seal, head.run_id)
            if found is not None and found.facts.status not in ("completed", "cancelled"):
                shown.add(head.run_id)
                yield found
        self.is_cut = self.is_cut or next(unfinished, None) is not None
        if self._completed:
            over = each_listed(status="completed", store=store, where=lambda each: not each.parent)
            for each in itertools.islice(over, self._completed):
                run_id = each.facts.run_id
                found = _forecast_now(store, seal, run_id) if run_id not in shown else None
                if found is not None:
                    yield found

    def _replayed(self, store: Store, seal: Seal, found: Forecast) -> Forecast:
        if self._execute is None or found.facts.parent or found.verdict in ("refuses", "elsewhere"):
            return found
        try:
            replica = taken_from(store, seal, found.facts.run_id)
        except (StepwiseError, RunStopped) as error:
            return with_replay(found, Replayed(f"not replayed: {error}"))
        return with_replay(found, self._execute(replica))


def _forecast_now(store: Store, seal: Seal, run_id: str) -> Forecast | None:
    """Return the forecast of a run as of one moment; ``None`` if it has been deleted."""
    try:
        return settled(store, seal, run_id, lambda facts, _: forecast(store, seal, facts))
    except (StepwiseError, RunStopped) as error:
        facts = journals.facts_of(store, seal, run_id)
        return Forecast(facts, "refuses", why=str(error)) if facts is not None else None


# -- in words -------------------------------------------------------------------------------------


def words_for(found: Forecast) -> Sequence[str]:
    """Return the forecast in words: what happens, then what is to be known about it."""
    told = {
        "resumes": f"resumes {place_words(found.at, found.after)}, after "
        f"{count(found.steps, 'step')}",
        "replays": f"replays from the top, {count(found.steps, 'step')} answered",
        "begins": "begins at the top",
        "recalls": "returns its result",
        "refuses": "cannot go on",
        "elsewhere": "not examined",
    }[found.verdict]
    return [
        told,
        *filter(None, (found.why,)),
        *(f"not known: {each}" for each in found.unknown),
        *found.notes,
    ]
