"""The choice of the run that a call from outside of any run means.

A run id that the user gave names it.  Otherwise ``start=`` says what is meant: the run of these
arguments (``"same"``), the one that is unfinished (``"unfinished"``), or a new one (``"new"``).
``run_id_for`` asks the same code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from stepwise._execution.process_memory import Given, memory
from stepwise._identity import identity
from stepwise._identity.call_parts import spoken
from stepwise._journal.chain import is_of_file
from stepwise._journal.heads import is_ready, open_head, unfinished_heads
from stepwise._journal.journal import facts_of, seal_for
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import notice, reports, warn
from stepwise._values import digest as _digest
from stepwise._workflows.definition import BoundCall, Start
from stepwise.errors import RunConflictError, RunWarning
from stepwise.stores import Store

__all__ = ["Meant", "Starting"]

_MOST = 300  # unfinished runs of one name that are examined


class Meant(NamedTuple):
    """A run that a call may mean.

    Args:
        explicit: the user chose its id; a run of another call is a conflict.
        stopped: an attempt of it stopped in this process, and may have changed its arguments.
        unfinished: only while it is unfinished and nobody executes it; else the next one is meant.
        resumed: ``STEPWISE_RESUME`` names it.
        later: the process has made an equal call before.
        generated: its id was made up now.
        told: what is to be told when it is taken up.
    """

    run_id: str
    explicit: bool = False
    stopped: bool = False
    unfinished: bool = False
    resumed: bool = False
    later: bool = False
    generated: bool = False
    told: str = ""


class Starting:
    """A call that is about to be made.

    Args:
        given: the objects it is made with.
    """

    def __init__(self, callee: BoundCall, given: Given, store: Store) -> None:
        self._callee = callee
        self._workflow = workflow = callee.workflow
        self._parts = callee.parts
        self._given = given
        self._store = store
        self._bases = self._parts.bases(workflow.full_name, workflow.label)

    @cached
    def _seal(self) -> Seal:
        return seal_for(
            self._store
        )  # it creates the key, which a caller that only asks for an id does not need

    @property
    def base(self) -> str:
        """The key by which equal calls are counted, and the prefix of their run ids."""
        return self._workflow.options.run_id or self._bases[0]

    @property
    def mode(self) -> Start:
        """Choose the run for a call without a run id."""
        if settings.fresh():
            return "new"
        said: Start = self._workflow.options.start or settings.start() or "same"  # type: ignore[assignment]
        return said

    @property
    def is_said(self) -> bool:
        """True if the start mode was set explicitly, not by default."""
        return bool(self._workflow.options.start or settings.start())

    def runs(self) -> Iterator[Meant]:
        """Yield the intended run, then the next one if that is no longer unfinished or free.

        Raises:
            RunConflictError: a fork is to be resumed, and the call means the run it was made from.
        """
        for meant in self._chosen():
            if meant.run_id not in self._sources:
                yield meant
            elif not meant.unfinished:
                raise self._not_its_source(meant.run_id)

    def _chosen(self) -> Iterator[Meant]:
        run_id, mode = self._workflow.options.run_id, self.mode
        known = self._stopped() if run_id is not None or mode != "new" else None
        if run_id is not None and run_id in self._sources:
            run_id = settings.resume()  # the program names the run, and the fork takes its place
        if run_id is not None:
            resumed = run_id == settings.resume() != self._workflow.options.run_id
            yield Meant(run_id, explicit=known != run_id, stopped=known == run_id, resumed=resumed)
        elif self._is_resumed(settings.resume(), mode):
            yield Meant(settings.resume(), stopped=known == settings.resume(), resumed=True)
        elif mode == "new":
            yield self._new()
        elif mode == "unfinished":
            if known is not None:
                yield Meant(known, stopped=True, unfinished=True)
            yield from self._unfinished()
        elif known is not None:
            yield Meant(known, stopped=True)
        else:
            yield from self._same()

    def _new(self) -> Meant:
        run_id = identity.random_id(self._workflow.label)
        return Meant(
            run_id,
            generated=True,
            told=f"a fresh run: {run_id}; if it stops, "
            f".options(run_id={run_id!r}) with the same arguments resumes it",
        )

    def _stopped(self) -> str | None:
        digest = _digest.combine(self._parts.arguments, self._parts.instance)
        return memory.recognise(self._store.url, self._given, digest)

    def _is_resumed(self, run_id: str, mode: Start) -> bool:
        """Return whether the environment names this call's run as the one to resume.

        One of a derived id is found as ever, at its place among equal calls.
        """
        if run_id in ("", memory.resumed) or (mode == "same" and self.is_derived(run_id)):
            return False
        facts = self._glance(run_id)
        if facts is None:
            self._tell_of_unknown(run_id)
            return False
        if self._parts.differing(facts.parts, growing=False):
            return False
        from stepwise._workflows.other_runs import is_call_of  # on use: STEPWISE_RESUME is rare

        return is_call_of(self._store, self._seal, facts, self._callee)

    @cached
    def _sources(self) -> list[str]:
        """The run that the fork to be resumed was made from, and the runs that one comes from."""
        found: list[str] = []
        facts = self._glance(settings.resume()) if settings.resume() else None
        while facts is not None and facts.forked_from not in ("", settings.resume(), *found):
            found.append(facts.forked_from)
            facts = self._glance(facts.forked_from)
        return found

    def _not_its_source(self, run_id: str) -> RunConflictError:
        fork, label = settings.resume(), self._workflow.label
        return RunConflictError(
            f"the fork {fork!r} is to be resumed, and this call of {label!r} means run {run_id!r}, "
            "from which the fork was made: it is not executed in the fork's place. Call the "
            f"workflow with the arguments of the fork, or with .options(run_id={fork!r}); without "
            f"STEPWISE_RESUME the call resumes {run_id!r}",
            run_id=run_id,
            recorded=fork,
            given=run_id,
        )

    def _tell_of_unknown(self, run_id: str) -> None:
        """Report, once for a store, that the environment names a run that is not in it.

        The id is mistyped, or the run is that of a workflow with another store.
        """
        url = self._store.url
        if memory.is_first(f"unknown {run_id} {url}"):
            notice(
                f"STEPWISE_RESUME={run_id} is ignored by {self._workflow.label}: there is no such "
                f"run in {url}. Whole ids are listed by: stepwise runs"
            )

    def is_derived(self, run_id: str) -> bool:
        """Return whether an id is of a call that is counted with this one."""
        return any(_is_numbered(run_id, base) for base in self._bases)

    def _is_of_file(self, facts: RunFacts) -> bool:
        workflow = self._workflow
        return facts.digest == self._parts.arguments and is_of_file(
            self._store,
            self._seal,
            facts,
            [workflow.full_name, *workflow.other_names],
            workflow.file,
        )

    def remember(self, run_id: str) -> None:
        """Give the run to this call alone, if its id is not derived from it: not to one alike."""
        said = self._workflow.options.run_id is not None or self.mode != "same"
        if not said and not _is_numbered(run_id, self._bases[0]):
            memory.takes(self._store.url, run_id, self._bases[0])

    @reports
    def warn_of_another(self, run_id: str) -> None:
        """Warn, once, that a later call was answered by the run that another process made."""
        if self.is_said or not memory.is_first(f"another {self._workflow.full_name}"):
            return
        label = self._workflow.label
        warn(
            f"a later call of {label!r} with equal arguments was answered by {run_id}, which "
            "another process completed: the n-th equal call of a process is the n-th such run, so "
            "that a script that stopped can resume. To make every call a new run: start='new'. To "
            "resume unfinished runs only: start='unfinished'. For one run per request: "
            ".options(run_id=...). To keep this behaviour: start='same'",
            RunWarning,
        )

    # -- the run with these arguments ------------------------------------------------------------

    def _same(self) -> Iterator[Meant]:
        first = self._bases[0]
        ordinal = memory.ordinal(self._store.url, first)
        found = self._look_up(first, ordinal)
        if found is None and not self._parts.is_certain:
            yield from self._nearly_same()
        yield Meant(found or _numbered(first, ordinal), later=ordinal > 0)

    def _look_up(self, first: str, ordinal: int) -> str | None:
        """The run that has an id which this call may have, or had under another name."""
        for base in self._bases:
            run_id = self._free_number(base, first, ordinal)
            facts = self._glance(run_id)
            if facts is not None and (base == first or not self._parts.differing(facts.parts)):
                return run_id
        for base in self._other_bases():
            run_id = self._free_number(base, first, ordinal)
            facts = self._glance(run_id)
            if facts is not None and self._is_of_file(facts):
                return run_id
        return None

    def _glance(self, run_id: str) -> RunFacts | None:
        """The run of an id that probably is not there: no journal is read for it."""
        head = self._store.head(run_id)
        return facts_of(self._store, self._seal, run_id) if head is not None else None

    def _free_number(self, base: str, first: str, ordinal: int) -> str:
        """The id of that number that no other call of this process has been given."""
        while memory.is_taken(self._store.url, _numbered(base, ordinal), first):
            ordinal += 1
        return _numbered(base, ordinal)

    def _other_bases(self) -> list[str]:
        """The ids of this call where the workflow's file is started or imported another way."""
        workflow, parts = self._workflow, self._parts
        names = [*workflow.other_names, workflow.full_name]
        places = [name.removesuffix(f":{workflow.label}") for name in names]
        found: list[str] = []
        for name, place in zip(names, places, strict=True):
            modules = ["__main__"] if place == workflow.file else ["__main__", place]
            for module in modules if parts.of_instance_of(workflow.function.__module__) else [None]:
                found += parts.bases(name, workflow.label, module)[:1]
        return [base for base in dict.fromkeys(found) if base not in self._bases]

    def _nearly_same(self) -> Iterator[Meant]:
        """Unfinished runs that differ in what never excludes, or in what they do not know.

        None that this process executed: there, two such calls are two.
        """
        for facts in self._found():
            if facts.parts is None or self.is_derived(facts.run_id):
                continue
            if memory.has_executed(self._store.url, facts.run_id):
                continue
            yield Meant(facts.run_id, unfinished=True, told=self._difference(facts))

    def _difference(self, facts: RunFacts) -> str:
        differing = self._parts.differing(facts.parts, momentary=True)
        if not differing:
            return ""
        return (
            f"{facts.run_id} is taken over, although it began with another {spoken(differing)}: "
            "unfinished runs do not differ by times or random ids. If this should be a new run: "
            "@workflow(key=...), .options(run_id=...), .options(start='new')"
        )

    # -- the newest unfinished run ---------------------------------------------------------------

    def _unfinished(self) -> Iterator[Meant]:
        found = [
            facts
            for facts in self._found()
            if facts.parts is not None
            or self._given.instance is None
            or self.is_derived(facts.run_id)
        ]
        for place, facts in enumerate(found):
            others = ", ".join(other.run_id for other in found[place + 1 :][:5])
            told = self._difference(facts)
            if others:
                told = (
                    f"{facts.run_id} is the newest unfinished run of these arguments; there are "
                    f"others: {others}. The next start takes over the newest of them; "
                    "stepwise forget deletes one"
                )
            yield Meant(facts.run_id, unfinished=True, told=told)
        yield self._new()._replace(told="")

    def _found(self) -> list[RunFacts]:
        """The unfinished runs of this call that nobody executes, the newest first."""
        workflow = self._workflow
        found: list[RunFacts] = []
        if next(iter(self._store.heads(unfinished=True)), None) is None:
            return found
        for name in (workflow.full_name, *workflow.other_names):
            heads = unfinished_heads(self._store, self._seal, name)
            for head in itertools.islice(heads, _MOST):
                facts = open_head(self._seal, head)
                if facts is not None and self._could_be(facts, name):
                    found.append(facts)
        return sorted(found, key=lambda facts: facts.created_at, reverse=True)

    def _could_be(self, facts: RunFacts, name: str) -> bool:
        return (
            facts.digest == self._parts.arguments
            and not facts.parent
            and not is_ready(facts)
            and not self._parts.differing(facts.parts)
            and (name == self._workflow.full_name or self._is_of_file(facts))
            and self._store.owner(facts.run_id) is None
        )


def _numbered(base: str, ordinal: int) -> str:
    return f"{base}-{ordinal + 1}" if ordinal else base


def _is_numbered(run_id: str, base: str) -> bool:
    return run_id == base or run_id.removeprefix(f"{base}-").isdecimal()
