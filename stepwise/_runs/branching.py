"""Branches: one moment of a run, continued several times, with other variables.

A branch is a run with an id that follows from its base, the point and the variables.  So the same
call finds the branches again: it goes on with the unfinished ones, and executes no finished one.

A row of a table costs a read of what the branch has recorded itself.  The records that it shares
are not read, and those of its base once for all rows, only as far as the branches are like it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stepwise import errors
from stepwise._calls.branching import answer_with, object_of, policy_of
from stepwise._calls.parallel import check_workers, variations_of
from stepwise._checkpoints.checkpoints import PREFIX, load_checkpoint, number_of
from stepwise._checkpoints.references import Vault
from stepwise._display import render
from stepwise._execution.account import pooled
from stepwise._execution.active_run import current_scope
from stepwise._execution.budget import Budget, Spent
from stepwise._execution.process_memory import known_workflow
from stepwise._identity.following import version_of
from stepwise._identity.identity import contents
from stepwise._journal.journal import (
    Position,
    branches_of,
    each_branch,
    facts_of,
    owned_journal,
    read,
    read_end,
    read_entries,
)
from stepwise._journal.logs import Bell
from stepwise._journal.persons import this_person
from stepwise._journal.records import (
    ADOPTED,
    NO_SUMS,
    Adopted,
    Call,
    Entry,
    RunFacts,
    Sums,
    Superseded,
)
from stepwise._journal.run_facts import superseded
from stepwise._journal.seal import Seal
from stepwise._runs.fork import (
    Change,
    ForkedRun,
    point_of,
    refuse_answered,
    refuse_secrets,
    refuse_undone,
    refuse_unknown,
    share,
)
from stepwise._runs.messages import forward
from stepwise._runs.paths import short
from stepwise._runs.steps import error_line, instead, settled
from stepwise._runtime.facts import NamedTuple, public
from stepwise._runtime.messages import printable, thread_context
from stepwise._runtime.options import check_kind
from stepwise._values import digest
from stepwise._values.preview import NOT_SHOWN, NotShown, preview
from stepwise._values.trees import attributes
from stepwise.errors import ConfigurationError, RunStopped, UnreadableValueError
from stepwise.stores import Store

_OVER = ("completed", "failed", "cancelled")


# -- where, and which ------------------------------------------------------------------------------


class BranchPoint:
    """A point of a run at which branches begin.

    Args:
        at: the number or name of a step, ``file:line`` of a statement, or ``None`` for the newest
            checkpoint.
    """

    def __init__(self, run: Any, at: int | str | None) -> None:
        self.run, self.source = run, ForkedRun(run.store, run._seal, run.id)
        facts = self.facts
        if facts.parent or facts.pruned:
            why = f"it is a child run of {facts.parent!r}" if facts.parent else "it was pruned"
            raise ConfigurationError(f"run {run.id!r} cannot have branches, since {why}")
        self.cut, self.loaded = point_of(self.source, self._change(at), {})
        what = f"run {run.id!r} cannot be branched there"
        refuse_undone(run.store, run._seal, facts, self.cut, what, self.source.entries)

    @property
    def facts(self) -> RunFacts:
        return self.source.facts

    def _change(self, at: int | str | None) -> Change:
        if not isinstance(at, str):
            return Change(at)
        if at.isdecimal():
            return Change(int(at))
        if ":" not in at:
            return Change(self.source.number_of(at))
        found = [*self.source.checkpoints(self.source.entries[-1].number)]
        for each in found:
            if each.state.where == at or each.state.where.endswith(f"/{at}"):
                return Change(checkpoint=each.name)
        places = ", ".join(dict.fromkeys(each.state.where for each in found)) or "none"
        raise self.source.no_step(at, f"has no checkpoint (kept are: {places})")

    def check(self, variations: Sequence[Mapping[str, Any]]) -> None:
        """Refuse variables that the frame does not have.

        Raises:
            ConfigurationError: the message lists the variables that it has.
        """
        given = {name for each in variations for name in each}
        refuse_secrets(self.facts, given)
        if given and self.loaded is None:
            raise ConfigurationError(
                f"run {self.run.id!r} has no variables before its first checkpoint: give at= a "
                "later step, or call the workflow itself with other arguments"
            )
        known = self.source.shared(self.cut, self.loaded).variables
        if self.loaded is not None:
            refuse_unknown(self.facts, self.loaded.state, known, sorted(given))

    def id_of(self, place: int, variation: Mapping[str, Any], effects: Any) -> str:
        """Return the id of a branch: the same for the same point, variables and policy.

        A function that answers side effects counts with its code, and with the texts and numbers
        that it or its object holds.  A list may be the function's own notes.

        Raises:
            ConfigurationError: two values of a variable might not be told apart.
        """
        last = self.source.shared(self.cut, self.loaded).at
        facts = [str(place), (last.link or b"").hex(), self.loaded.name if self.loaded else ""]
        for name, value in sorted(variation.items()):
            try:
                facts += [name, digest.digest(value)]
            except errors.DigestError as error:
                raise ConfigurationError(
                    f"run {self.run.id!r} cannot have a branch with {name}={preview(value)}, which "
                    f"might be taken for that of another value: {error}. Give data, or a function "
                    "that a module has by its name"
                ) from error
        if callable(effects):
            held = [each for each in _held_by(effects) if type(each) in digest.ATOMS]
            facts += [version_of(effects).id, *map(digest.digest, held)]
        return f"{self.run.id}.{place + 1}-{digest.combine(policy_of(effects), *facts)[:12]}"


def _held_by(function: Any) -> list[Any]:
    """Return what a function holds: captured, as defaults, and as attributes of its object."""
    while isinstance(function, functools.partial):  # its version has what it binds
        function = function.func
    bound = object_of(function)
    defaults = getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)
    named = {**(defaults[1] or {}), **(attributes(bound) if bound is not None else {})}
    held = itertools.chain.from_iterable(sorted(named.items()))
    return [*contents(function), *(defaults[0] or ()), *held]


# -- rows ------------------------------------------------------------------------------------------


_ROOM = 80  # characters of a value, about
_UNKNOWN = "<cannot be loaded here>"


def in_order(store: Store, seal: Seal, run_id: str, most: int | None = None) -> list[RunFacts]:
    """Return the facts of the branches of a run, by their heads, in the order of their making.

    Args:
        most: only the newest ones, if there are more; by default all of them.
    """
    found = itertools.islice(each_branch(store, seal, run_id), most)
    return sorted(found, key=lambda facts: (facts.created_at, _place(facts)))


def _place(facts: RunFacts) -> int:
    """Return the place of a branch among those that were made together."""
    number = facts.run_id.removeprefix(f"{facts.base}.").partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def variation_of(store: Store, seal: Seal, facts: RunFacts) -> dict[str, Any]:
    """Return the variables that a branch was given, as its first checkpoint has them."""
    names, vault = store.names(facts.run_id, PREFIX), Vault(store, seal, facts.run_id)
    first = next(store.read(facts.run_id), (0, b""))[0]
    loaded = load_checkpoint(vault, names[0]) if names and number_of(names[0]) < first else None
    if loaded is None or not loaded.state.changed:
        return {}
    before = load_checkpoint(Vault(store, seal, facts.base), loaded.name)
    inherited = len(before.state.changed) if before is not None else 0
    given = [name for name, *_ in loaded.state.changed[inherited:]]
    try:
        changes = loaded.changes()
    except UnreadableValueError:
        changes = dict.fromkeys(given, NotShown(_UNKNOWN))
    return {name: changes[name] for name in given}


def shown_variables(facts: RunFacts, variation: Mapping[str, Any]) -> dict[str, str]:
    """Return variables as text: hidden arguments, secrets by name and credentials are masked."""
    hidden = {*facts.hidden.split(), *facts.secrets.split()}
    shown = {name: NOT_SHOWN if name in hidden else value for name, value in variation.items()}
    return {name: short(value, name, _ROOM).text for name, value in shown.items()}


def variation_text(variables: Mapping[str, str]) -> str:
    """Return variables on one line."""
    return ", ".join(f"{name}={text}" for name, text in variables.items()) or "as it was"


def effects_text(effects: str) -> str:
    """Return what happens to the side effects of a branch, in words."""
    known = {
        "refuse": "refused",
        "collect": "collected as proposals",
        ADOPTED: "made, since the branch was adopted",
    }
    return known.get(effects, f"answered by {effects.partition(' ')[2]}")


class BranchRows:
    """Makes the rows of the branches of one run, for tables, for the page and as JSON."""

    def __init__(self, store: Store, seal: Seal, base: str) -> None:
        self._store, self._seal, self._base = store, seal, base
        self._calls: dict[int, _LikeCalls] = {}

    def row(self, run: Any, variation: Mapping[str, Any], error: str = "") -> dict[str, Any]:
        """Return what a table shows of a branch, as plain data.

        Args:
            run: the branch.
            variation: the variables that it was given.
            error: what stopped it in this process, if that is not recorded.
        """
        facts, _, status = run._standing()
        own = self._read(facts)
        amounts = run.spent if own.has_children or facts.status == "running" else own.sums
        variables = shown_variables(facts, variation)
        outcome = self._outcome(facts, own) or error
        return self._row(facts, status, variables, outcome, amounts, own.parted)

    def unread(self, facts: RunFacts, problem: str) -> dict[str, Any]:
        """Return the row of a branch whose records cannot be read."""
        return self._row(facts, facts.status, {}, problem, NO_SUMS, None)

    def _row(
        self,
        facts: RunFacts,
        status: str,
        variables: Mapping[str, str],
        outcome: str,
        amounts: Spent | Sums,
        parted: Call | None,
    ) -> dict[str, Any]:
        return {
            "run": facts.run_id,
            "base": facts.base,
            "variables": variables,
            "variation": variation_text(variables),
            "effects": facts.effects,
            "status": status,
            "result": outcome,
            "steps": amounts.steps,
            "usd": amounts.usd,
            "seconds": round(amounts.seconds, 3),
            "parted": _step_text(parted),
            "parted_at": parted.number if parted else None,
        }

    def parted(self, facts: RunFacts) -> str:
        """Return the first call of a branch that its base made otherwise, or not at all."""
        return _step_text(self._read(facts).parted)

    def _read(self, facts: RunFacts) -> _OwnRecords:
        """Read what a branch has recorded itself; the first record is that of its beginning."""
        place = self._store, self._seal
        cut = next(self._store.read(facts.run_id), (1, b""))[0] - 1
        like = self._calls.get(cut)
        if like is None:
            entries = read_entries(*place, self._base, Position(cut, None))
            like = self._calls[cut] = _LikeCalls(entries)
        parted, calls, children, sums = None, dict[int, Call](), False, NO_SUMS
        waits = {each.number for each in facts.waits if each.kind == "approval"}
        for entry, after in read(*place, facts.run_id, Position(cut, None)):
            sums = after.sums
            call = entry.call if isinstance(entry, Entry) else None
            if call is None:
                continue
            if parted is None and like.at(call.number) != (call.name, call.digest):
                parted = call
            if call.number in waits:
                calls[call.number] = call
            children = children or bool(call.child)
        return _OwnRecords(parted, calls, sums, children)

    def _outcome(self, facts: RunFacts, own: _OwnRecords) -> str:
        """Return the result or the exception of a branch, or what it proposes."""
        end = read_end(self._store, self._seal, facts) if facts.status == "completed" else None
        if end is not None and end.ended is not None:
            return end.ended.preview
        asked = [each for each in facts.waits if each.kind == "approval"]
        calls = [own.waiting.get(each.number) for each in asked]
        told = [f"{call.name}({call.arguments})" if call is not None else "" for call in calls]
        proposed = [
            text if not each.run and text else each.name
            for each, text in zip(asked, told, strict=True)
        ]
        return "; ".join(f"proposes {each}" for each in proposed) or error_line(facts.error)


def _step_text(call: Call | None) -> str:
    return f"step {call.number} {call.name}({call.arguments})" if call is not None else ""


class _OwnRecords(NamedTuple):
    """The facts that the rows need of the records that a branch has made itself.

    Args:
        parted: the first call that its base made otherwise.
        waiting: the calls that wait for an answer, by number.
        sums: what they have spent.
        has_children: whether some are child runs, which may have spent more.
    """

    parted: Call | None
    waiting: Mapping[int, Call]
    sums: Sums
    has_children: bool


class _LikeCalls:
    """The calls of a base by their numbers, read as far as they are asked for."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._known: dict[int, tuple[str, str]] = {}

    def at(self, number: int) -> tuple[str, str] | None:
        """Return the name and the digest of a call; ``None`` if there is none of that number."""
        while number not in self._known:
            entry = next(self._entries, None)
            if entry is None:
                return None
            if entry.call is not None:
                self._known[entry.call.number] = entry.call.name, entry.call.digest
        return self._known[number]


# -- the branches ----------------------------------------------------------------------------------


@public
class RunBranch:
    """One branch of a run.

    Attributes:
        run: the branch as a run.
        variation: the variables that it was given.
    """

    def __init__(self, run: Any, variation: Mapping[str, Any]) -> None:
        self.run, self.variation = run, variation
        self._error: BaseException | None = None  # what stopped it in this process

    def __repr__(self) -> str:
        shown = variation_text(shown_variables(self.run._facts(), self.variation))
        return f"<Branch {self.run.id} {self.run.status}: {shown}>"

    def _row(self, made: dict[str, BranchRows]) -> dict[str, Any]:
        facts, error = self.run._facts(), self._error
        base = facts.base or facts.run_id  # a run without a base has parted from nothing
        rows = made.setdefault(base, BranchRows(self.run.store, self.run._seal, base))
        told = f"{type(error).__name__}: {error}" if error is not None else ""
        return rows.row(self.run, self.variation, told)

    @property
    def result(self) -> Any:
        """The result of the branch; ``None`` if it has not completed."""
        return self.run.result

    @property
    def error(self) -> BaseException | None:
        """The exception that ended or stopped the branch; ``None`` if there is none."""
        failed: BaseException | None = self.run.error
        return failed if failed is not None else self._error

    @property
    def proposals(self) -> list[Any]:
        """The side effects that it would make next, with ``effects="collect"``: questions."""
        found: list[Any] = self.run.questions
        return found

    @property
    def parted(self) -> str:
        """The first step that the base made otherwise, or not at all; empty if there is none."""
        facts = self.run._facts()
        return BranchRows(self.run.store, self.run._seal, facts.base).parted(facts)

    def adopt(self) -> None:
        """Go on with this branch instead of its base; its other branches are cancelled.

        Whoever then calls, resumes, answers or cancels the base means the branch, and gets its
        result or exception.  Signals that were sent to the base since the branch was made are sent
        to the branch.  The side effects that it has proposed are questions from now on: a person's
        yes makes each of them.  Later ones are made as in any run.  The run goes on when it is
        called or resumed.  Killed and called again, this does what was left.

        Raises:
            ConfigurationError: the branch was cancelled, another one was adopted, or its side
                effects were answered by a function, so that it would go on from what never
                happened.
            RunBusyError: the branch or its base is being executed.
        """
        adopt(self.run)


@public
class RunBranches(list[RunBranch]):
    """The branches of a run, displayed as a table."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each branch, as plain data: what the table shows."""
        made = dict[str, BranchRows]()
        return [each._row(made) for each in self]

    def __str__(self) -> str:
        return render.branches_text(self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return render.branches_html(self.rows())


def existing(run: Any, most: int | None = None) -> RunBranches:
    """Return the branches of a run that there are; see :attr:`stepwise.Run.branches`.

    Args:
        most: only the newest ones, if there are more; by default all of them.
    """
    known = in_order(run.store, run._seal, run.id, most)
    return RunBranches(
        RunBranch(
            type(run)(run.store, facts.run_id, run._seal),
            variation_of(run.store, run._seal, facts),
        )
        for facts in known
    )


def make(run: Any, at: int | str | None, variations: Any, effects: Any) -> RunBranches:
    """Write the branches that are not there yet; return all of them.

    Raises:
        RunBusyError: the base is being executed.
    """
    policy, each_of = policy_of(effects), variations_of(variations, "branches")
    found = RunBranches()

    def checked(*_: Any) -> BranchPoint:
        point = BranchPoint(run, at)
        point.check(each_of)
        return point

    point = settled(run.store, run._seal, run.id, checked)
    for place, variation in enumerate(each_of):
        run_id = point.id_of(place, variation, effects)
        if facts_of(run.store, run._seal, run_id) is None:
            share(point.source, run_id, point.cut, point.loaded, variation, policy)
        found.append(RunBranch(type(run)(run.store, run_id, run._seal), variation))
        answer_with(run.store.url, run_id, effects)
    return found


def check(what: str, max_workers: Any, budget: Any) -> None:
    """Refuse what cannot execute branches.

    Args:
        what: the call, for messages.

    Raises:
        ConfigurationError: it is called inside of a run, or an argument cannot be used.
    """
    scope = current_scope()
    if scope is not None:
        raise ConfigurationError(
            f"{what} was called inside run {scope.run.run_id!r}, which would not record it: call "
            "it outside of any run"
        )
    check_workers(what, max_workers)
    if budget is not None:
        check_kind(f"budget= of {what}", budget, Budget, "give stepwise.Budget(usd=1)")


def workflow_of(run: Any) -> Any:
    """Return the workflow that executes the branches of a run.

    Raises:
        ConfigurationError: this process does not know it, or it is a generator.
    """
    workflow = known_workflow(run.workflow)
    if workflow.is_generator or workflow.is_async_generator:
        raise ConfigurationError(
            f"run {run.id!r} belongs to a generator workflow, whose items need a consumer: it "
            "cannot have branches"
        )
    return workflow


def branch(
    run: Any,
    at: int | str | None,
    variations: Any,
    effects: Any,
    max_workers: int,
    budget: Any,
    inputs: Mapping[str, Any],
) -> RunBranches:
    """Make branches, and execute those that have not ended; see :meth:`stepwise.Run.branch`."""
    check(f"branch() of run {run.id!r}", max_workers, budget)
    work = functools.partial(execute, workflow_of(run), inputs)
    found = make(run, at, variations, effects)
    spent = [each.run.spent for each in found] if budget is not None else ()
    with pooled(f"the branches of {run.id}", budget, spent):
        pool = ThreadPoolExecutor(max_workers, "stepwise branch")
        try:
            jobs = [pool.submit(thread_context().run, work, each) for each in found]
            for job in jobs:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def to_execute(branch: RunBranch) -> bool:
    """Return whether a branch has neither ended, nor proposed something, nor been adopted."""
    facts = branch.run._facts()
    return facts.status not in (*_OVER, "suspended") and facts.effects != ADOPTED


def execute(workflow: Any, inputs: Mapping[str, Any], branch: RunBranch) -> None:
    """Execute a branch until it ends, proposes something, or stops."""
    if not to_execute(branch):
        return
    try:
        workflow.resume(branch.run, inputs, here=True)
    except BaseException as error:  # the thread is that of this branch alone
        branch._error = error


def origin_of(run: Any) -> Iterator[tuple[str, str]]:
    """Yield what a person should know of a fork, a branch or a base that was adopted away."""
    facts = run._facts()
    if facts.forked_from:
        made = f"{facts.forked_from}, made by {facts.forked_by}"
        yield ("branch of" if facts.base else "fork of"), made
    if facts.base:
        given = shown_variables(facts, variation_of(run.store, run._seal, facts))
        yield "variables", printable(variation_text(given))
    if facts.effects == ADOPTED:
        yield "adopted", "the branch goes on instead of its base"
    elif facts.effects:
        yield "effects", printable(effects_text(facts.effects))
    if facts.superseded:
        yield "adopted", instead(run.store, run._seal, facts)


# -- adopting --------------------------------------------------------------------------------------


def adopted_instead(run: Any) -> Any:
    """Return the adopted branch that goes on instead of a run; end an adoption that was cut off."""
    branch = run._to_go_on()
    if branch._facts().effects != ADOPTED:
        adopt(branch)
    return branch


def adopt(run: Any) -> None:
    """Let a branch go on instead of its base; see :meth:`RunBranch.adopt`."""
    facts = run._facts()
    if not facts.base or facts.status == "cancelled":
        why = "was cancelled" if facts.base else "is no branch"
        raise ConfigurationError(f"run {run.id!r} cannot be adopted: it {why}")
    refuse_answered(run.store, run._seal, facts, "adopted")
    base, now, who = facts.base, time.time(), this_person()
    with run._journal() as (journal, _):
        with owned_journal(run.store, run._seal, base) as of_base:
            above, record = facts_of(run.store, run._seal, base), Superseded(run.id, who, now)
            entries, known = of_base.load(tolerant=True), above.superseded if above else ""
            what = f"branch {run.id!r} cannot be adopted"
            if known not in ("", run.id):
                assert above is not None
                raise ConfigurationError(f"{what}: {instead(run.store, run._seal, above)}")
            if above is not None and not known:
                if above.undoing:
                    raise ConfigurationError(
                        f"{what}: the side effects of run {base!r} are being undone. Let that end: "
                        f"stepwise.get_run({base!r}).compensate()"
                    )
                cut = next(iter(run.store.read(run.id)))[0] - 1
                refuse_undone(run.store, run._seal, above, cut, what, entries)
                of_base.append((record, b""), head=superseded(above, record))
        # Before the branch is adopted: a call of either run ends what a kill cut off up to then.
        if above is not None:
            forward(run.store, run._seal, base)
        for run_id in branches_of(run.store, run._seal, base):
            if run_id != run.id:
                _close(type(run)(run.store, run_id, run._seal), f"branch {run.id} was adopted")
        if facts.effects != ADOPTED:
            head = facts._replace(effects=ADOPTED, tally=None)
            journal.append((Adopted(who, now), b""), head=head)
    if above is not None:
        for each in (base, run.id):  # whoever waits for either goes on as the branch
            Bell(run.store, run._seal).ring(each)


def _close(other: Any, why: str) -> None:
    """Cancel a branch whose base goes on as another one, and let it unwind."""
    with contextlib.suppress(errors.RunEndedError, errors.RunNotFoundError):
        other.cancel(why)
        other = other._to_go_on()
        # It unwinds here, in the process that executes it, or else at its next start.  What its
        # clean-up raises is on its record.
        with contextlib.suppress(Exception, RunStopped):
            known_workflow(other.workflow).resume(other, {}, here=True)
