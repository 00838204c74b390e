"""Looking at a run (:class:`Run`), finding runs, and the command that starts one again.

A ``Run`` is a handle: what it says is read from the store when it is asked.  Nothing here unpickles
unless a result or an exception is asked for.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stepwise._calls.compensation import compensate
from stepwise._calls.driver import drive
from stepwise._display.render import (
    RunShown,
    buttons,
    question_text,
    questions_html,
    run_html,
    run_text,
    runs_html,
    runs_text,
)
from stepwise._execution.active_run import current_scope, live_runs
from stepwise._execution.budget import Spent
from stepwise._execution.outcomes import load_inputs
from stepwise._execution.process_memory import known_workflow
from stepwise._execution.suspension import PendingWait, pending
from stepwise._execution.viewer import error_of, look_into, result_of
from stepwise._journal.journal import (
    Journal,
    Position,
    facts_of,
    is_of_file,
    is_ready,
    newest_mark,
    open_head,
    read_entries,
    seal_for,
    words_for,
)
from stepwise._journal.lease import Lease
from stepwise._journal.projection import Calls
from stepwise._journal.records import Entry, Forgotten, RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import how_started
from stepwise._matching.pool import key_of
from stepwise._runs.copying import Copier
from stepwise._runs.fork import Change, fork
from stepwise._runs.messages import InboxMessage, cancel, messages_of, send
from stepwise._runs.overview import (
    SHOWN,
    Overview,
    Program,
    goes_on,
    overview,
    shown,
)
from stepwise._runs.questions import (
    UNSET,
    Decision,
    Question,
    choose,
    give_answer,
    questions_of,
    said_of,
    to_record,
)
from stepwise._runs.steps import (
    RunCheckpoint,
    RunStatus,
    StepRecord,
    checkpoints_of,
    duration_of,
    each_step,
    newest_checkpoint,
    run_dict,
    status_of,
    steps_of,
)
from stepwise._runs.verify import ChildRuns, Verification, delete_run, erase, repair, verify
from stepwise._runtime import options, settings
from stepwise._runtime.facts import public
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import count, fold, printable, shell_word
from stepwise._values.codec import Codec
from stepwise._values.preview import HIDDEN, NOT_SHOWN
from stepwise.errors import (
    ConfigurationError,
    RunNotFoundError,
    StepNotFoundError,
    UnreadableValueError,
)
from stepwise.stores import Head, Owner, Store, open_store
from stepwise.stores.base import Words

# -- run ------------------------------------------------------------------------------------------


@public
class Run:
    """One execution of a workflow, across any number of crashes.

    Got from ``workflow.execute(...)``, :func:`get_run`, :func:`runs` and :func:`current_run`.
    """

    def __init__(self, store: Store, run_id: str, seal: Seal | None = None) -> None:
        self.store = store
        self.id = run_id
        self._seal = seal_for(store) if seal is None else seal

    def __repr__(self) -> str:
        facts = self._facts()
        return f"<Run {self.id} {self.status}: {facts.label}({facts.arguments})>"

    def _repr_html_(self) -> str:
        seen = self._seen()
        asked = self._asked(seen)
        return run_html(self._shown(seen)) + (questions_html(asked) if asked else "")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        seen = self._seen()
        asked = map(question_text, self._asked(seen))
        printer.text("\n\n".join([run_text(self._shown(seen)), *asked]))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        seen = self._seen()
        asked = self._asked(seen)
        return buttons(run_html(self._shown(seen)), asked) if asked else {}

    def _asked(self, seen: Overview) -> list[Question]:
        """Return the open questions, which are looked for if there may be some."""
        return self.questions if {"waiting", "started"} & seen.statuses.keys() else []

    def _shown(self, seen: Overview | None = None) -> RunShown:
        facts, owner = self._facts(), self.owner
        return shown(facts, self._status(facts, owner), owner, seen)

    def _seen(self, count: int | None = SHOWN) -> Overview:
        """Read its newest steps; all of them, if there is no ``count``."""
        seen = overview(self.store, self._seal, self._facts(), self.owner, count)
        for active in list(live_runs):
            if active.run_id == self.id and active.journal.store is self.store:
                seen.course.resumed_from = active.progress.resumed_from
                seen.course.executed = active.progress.executed
                seen.course.skipped = active.progress.skipped
        return seen

    def _each_step(self, seen: Overview) -> Iterator[StepRecord]:
        """Read all of its steps, one after the other, with only the next one in memory."""
        doubtful = {step.number for step in seen.in_doubt}
        recorded = each_step(self.store, self._seal, self._facts(), doubtful)
        return itertools.chain(recorded, seen.doing)

    def _goes_on(self) -> tuple[str, str]:
        """Return where the run resumes, and the line of source there, if it is known."""
        return goes_on(self.store, self._seal, self._facts())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.id, self.store) == (other.id, other.store)

    def __hash__(self) -> int:
        return hash(self.id)

    # -- facts -----------------------------------------------------------------------------------

    def _facts(self) -> RunFacts:
        facts = facts_of(self.store, self._seal, self.id)
        if facts is None:
            Journal(self.store, self._seal, self.id, 0, fsync=True).load()  # raises if it was lost
            what = f"run {self.id!r} is gone from {self.store.url}"
            if newest_mark(self.store, self._seal, self.id).last:
                what += (
                    ": only marks of it are left. Put the folder back from a backup and run "
                    f"stepwise restore, or delete them: stepwise forget {shell_word(self.id)}"
                )
            raise RunNotFoundError(what, run_id=self.id)
        return facts

    @property
    def workflow(self) -> str:
        """The workflow's full name, ``module:name`` or ``/path/script.py:name``."""
        return self._facts().workflow

    @property
    def label(self) -> str:
        """The workflow's short name."""
        return self._facts().label

    @property
    def arguments(self) -> str:
        """The arguments, as shortened text."""
        return self._facts().arguments

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the arguments that are never stored: a resume has to supply them."""
        return tuple(self._facts().secrets.split())

    @property
    def tags(self) -> dict[str, str]:
        """The texts by name that ``tags=`` gave it when it started."""
        return dict(self._facts().tags)

    @property
    def parent(self) -> str | None:
        """The run that called this one as a child workflow."""
        return self._facts().parent or None

    @property
    def forked_from(self) -> str | None:
        """The run that this one is a fork of."""
        return self._facts().forked_from or None

    @property
    def program(self) -> Program | None:
        """The command that started its program the last time, if it is known."""
        how = how_started(self.store, self._seal, self._facts())
        return Program(*how) if how is not None else None

    @property
    def status(self) -> RunStatus:
        """The condition of the run, as one word.

        ``running``, ``completed`` or ``failed``; ``interrupted`` if somebody stopped it: Ctrl-C, a
        cancellation, a timeout; ``suspended`` if it gave up its process and waits for a time, a
        signal or a person (``waits``); ``crashed`` if it had not ended, and its process is gone;
        ``stuck`` if that happened three times at the same step, so that ``stepwise up`` leaves it;
        ``ready`` if it is a fork that nobody has executed yet.
        """
        return self._status(self._facts(), self.owner)

    def _status(self, facts: RunFacts, owner: Owner | None) -> RunStatus:
        return status_of(self.store, self._seal, facts, owned=owner is not None)

    @property
    def waits(self) -> list[PendingWait]:
        """Return what it waits for, its child runs included, while it is suspended."""
        return pending(self._facts())

    @property
    def owner(self) -> Owner | None:
        """The process that is executing it, if one is."""
        return self.store.owner(self.id)

    @property
    def created_at(self) -> float:
        """When it began, in seconds since 1970."""
        return self._facts().created_at

    @property
    def updated_at(self) -> float:
        """When its status last changed, in seconds since 1970."""
        return self._facts().updated_at

    @property
    def duration(self) -> float | None:
        """Seconds from its start to its end, pauses included; ``None`` before its end."""
        return duration_of(self._facts())

    @property
    def counts(self) -> dict[str, int]:
        """How many steps have each status: ``{"completed": 3, "in_doubt": 1}``."""
        return self._seen(1).statuses

    @property
    def spent(self) -> Spent:
        """Return what it has spent over all of its attempts, with its child runs.

        Steps that the journal answered count once, failed attempts count, and so do steps that were
        forgotten or undone since: the money is gone.
        """
        return self._seen(1).spent

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments that it was called with, by the names of the parameters.

        As they were when it began, ``self`` included; those left at their default are not in it.

        Raises:
            UnreadableValueError: an argument could not be recorded, or cannot be loaded here; says
                which, and why.
        """
        return load_inputs(self.store, self._seal, self._facts()).whole()

    # -- history ---------------------------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        start = Position(self._facts().pruned, None)
        return read_entries(self.store, self._seal, self.id, start)

    @property
    def steps(self) -> list[StepRecord]:
        """Every recorded call, in the order in which they were first made."""
        return steps_of(self.id, [*self._entries()], owned=self.owner is not None)

    @property
    def inbox(self) -> list[InboxMessage]:
        """Return what was sent to it, in the order in which it came, and what became of each."""
        return messages_of(self.store, self._seal, self._facts())

    @property
    def checkpoints(self) -> list[RunCheckpoint]:
        """Its checkpoints, the oldest first; it resumes at the newest that is verified."""
        return [each for each, _ in checkpoints_of(self.store, self._seal, self.id)]

    def _shown_locals(self, at: int | None = None) -> dict[str, Any]:
        hidden = self._facts().hidden.split()
        return {n: NOT_SHOWN if n in hidden else v for n, v in self.locals(at).items()}

    def locals(self, at: int | None = None) -> dict[str, Any]:
        """The local variables at a checkpoint.

        What is not there in this program stands as a placeholder: instances of classes that it
        does not have, clients and resources.

        Args:
            at: the checkpoint after this many steps, or the last one before; by default the newest.

        Raises:
            StepNotFoundError: there is no verified checkpoint (so early).
            UnreadableValueError: it was written by another Python version.
        """
        loaded = newest_checkpoint(self.store, self._seal, self.id, at)
        if loaded is None:
            when = "" if at is None else f" at or before step {at}"
            steps = ", ".join(str(each.step) for each in self.checkpoints if each.verified)
            others = f"; it has some after steps {steps}" if steps else ""
            raise StepNotFoundError(
                f"run {self.id!r} has no checkpoint{when}{others}",
                run_id=self.id,
                step=at or 0,
            )
        return look_into(loaded)

    @property
    def result(self) -> Any:
        """The returned value, or ``None`` while the run has not completed.

        Raises:
            UnreadableValueError: the value could not be recorded, or cannot be loaded here; says
                why, and how to have it.
        """
        return result_of(self.store, self._seal, self._facts())

    @property
    def error(self) -> BaseException | None:
        """The raised exception, or ``None`` if the run did not fail."""
        return error_of(self.store, self._seal, self._facts())

    def _error_text(self) -> str | None:
        """Return the text of its exception, even if the exception's ``__str__`` fails.

        ``None`` also if it cannot be loaded here.
        """
        try:
            error = self.error
        except UnreadableValueError:
            return None
        if error is None:
            return None
        name = type(error).__name__
        try:
            return printable(f"{name}: {error}")
        except Exception as problem:
            return f"{name} (its text cannot be shown: {type(problem).__name__})"

    def to_dict(self) -> dict[str, Any]:
        """The facts of a listing as plain data, for JSON; nothing is unpickled.

        The names are those of the attributes; ``error`` is a text (for an interrupted run: what
        interrupted it), ``owner`` the process.  ``stepwise runs --json`` prints the same.
        """
        return self._dict_of(self._facts(), self.owner)

    def _dict_of(self, facts: RunFacts, owner: Owner | None) -> dict[str, Any]:
        seen = self._seen(1)
        return run_dict(facts, self._status(facts, owner), owner, seen.statuses, seen.spent)

    @property
    def resumed_from_step(self) -> int | None:
        """How many steps were done at the point where its last attempt resumed.

        0 if that went on from the top, ``None`` if there was only one attempt.
        """
        return self._seen(1).course.resumed_from

    @property
    def steps_executed(self) -> int:
        """How many steps its last attempt executed."""
        return self._seen(1).course.executed

    @property
    def steps_skipped(self) -> int:
        """How many steps its last attempt did not execute, since they were done."""
        return self._seen(1).course.skipped

    # -- resuming, settling and forgetting -------------------------------------------------------

    def resume(self, /, **inputs: Any) -> Any:
        """Continue the run in this process, with the arguments that it was called with.

        Args:
            inputs: arguments to use instead of the recorded ones, by name (``self`` too): those
                that could not be recorded, such as clients.

        Returns:
            a handle, as ``start()`` returns; ``.result()`` waits for the result, or is awaited.

        Raises:
            ConfigurationError: this process does not know its workflow, or it is a child run.
            UnreadableValueError: an argument is not known, and not given here.
            RunBusyError: it is being executed.
        """
        try:
            return known_workflow(self.workflow).resume(self, inputs)
        except BaseException as error:
            raise fold(error)  # noqa: B904

    def resolve(
        self,
        step: int | str,
        *,
        landed: Any = UNSET,
        did_not_happen: bool = False,
        same: bool = False,
        another: bool = False,
        stop: int | None = None,
    ) -> None:
        """Settle a step in doubt, or resolve which act a stopped call is, for the next call.

        The run stops at a call that could be a recorded side effect with other arguments.  What is
        said of such a call is bound to its call site and to how many-th call of its name it is, so
        that it holds although its arguments are others at every start.

        Args:
            step: its number, or its name if only one call of that name is in question.
            landed: it happened, and returned this.
            did_not_happen: it did not, and may run.
            same: the stopped call is this recorded one, whose outcome answers it.
            another: they are two acts: the record stays, and the stopped call runs, once.
            stop: which stopped call, if several could be this step; ``stepwise show`` lists them.

        Raises:
            StepNotFoundError: no such step is in doubt; no stopped call could be this step.
            ConfigurationError: not exactly one thing is said.
            RunBusyError: the run is being executed.
        """
        said = said_of(landed, did_not_happen, same, another, stop)
        with self._journal() as (journal, entries):
            codec = Codec(self._facts().codec)
            items = to_record(self.id, step, entries, said, codec)
            if items:
                journal.append(*items, head=self._facts())  # listings count it

    @property
    def questions(self) -> list[Question]:
        """The questions that it and its child runs wait with, for somebody to answer."""
        return questions_of(self.store, self._seal, self._facts())

    def approve(self, step: int | str, ticket: str, note: str = "", *, key: Any = None) -> None:
        """Answer the question of a step with yes: its call is made, with the arguments shown.

        The answer is on disk when this returns, whether somebody executes the run or not.

        Args:
            step: the number of the call that asks, see :attr:`questions`; or the name of its tool.
            ticket: of the question that the person has seen: ``Question.ticket``.
            note: what the workflow, and whoever looks at the run, is told.
            key: of an approver who signs the answer, where the tool has ``approvers=``: the file
                that ``stepwise approver-key`` made, or an object with the methods ``sign`` and
                ``public_key`` of an ``Ed25519PrivateKey``.

        Raises:
            StepNotFoundError: the step asks something else by now, or nothing, or somebody was
                faster; says who, and which steps wait.
            RunEndedError: the run has completed, failed or been cancelled.
            RunNotFoundError: there is no such run any more.
            ConfigurationError: an approver has to sign it, and this is no key of one.
        """
        give_answer(self.store, self._seal, self.id, step, ticket, Decision(True, note, key))

    def deny(self, step: int | str, ticket: str, reason: str, *, key: Any = None) -> None:
        """Answer the question of a step with no: its call raises :class:`ApprovalDenied`.

        Args:
            step: the number of the call that asks, see :attr:`questions`; or the name of its tool.
            ticket: of the question that the person has seen: ``Question.ticket``.
            reason: what the workflow, and whoever looks at the run, is told.
            key: as of :meth:`approve`.

        Raises:
            StepNotFoundError: the step asks something else by now, or nothing, or somebody was
                faster; says who, and which steps wait.
            RunEndedError: the run has completed, failed or been cancelled.
            RunNotFoundError: there is no such run any more.
            ConfigurationError: there is no reason; an approver has to sign it.
        """
        give_answer(self.store, self._seal, self.id, step, ticket, Decision(False, reason, key))

    def send(self, name: str, value: Any = None, key: str | None = None) -> int:
        """Send a signal to the run: a value for its ``wait_for(name)``, from any process.

        It is on disk when this returns, whether somebody executes the run or not.  Sent before the
        run waits for it, it is kept.

        Args:
            name: of the signal, as the run waits for it; up to 200 printable characters.
            value: plain data: texts, numbers, ``True``, ``None``, lists and dicts of such; with
                the extra ``json`` also models, dataclasses, dates and what else pydantic writes as
                JSON.  16 MB of JSON at most.
            key: two signals of one name with the same key are one; for a sender that tries again.

        Returns:
            the number of the message in the run's inbox.

        Raises:
            RunNotFoundError: there is no such run any more.
            RunEndedError: it has completed, failed or been cancelled.
            SignalRefusedError: the value is no data, or does not fit what the run waits for.
            ConfigurationError: the name cannot be one, or ``jsonschema`` is needed to check the
                value.
        """
        return send(self.store, self._seal, self.id, name, value, key)

    def cancel(self, reason: str = "") -> None:
        """Have the run end: its clean-up runs, it ends as ``cancelled``, its caller gets that.

        A process that executes the run notices it within a second where it awaits something, at
        its next step or wait otherwise.  A run that nobody executes unwinds at its next start.
        Calling it twice is calling it once.

        Args:
            reason: in words, for whoever looks at the run.

        Raises:
            RunEndedError: it has completed, failed or been cancelled.
            ConfigurationError: it is a child run, which ends with its parent.
            RunNotFoundError: there is no such run any more.
        """
        cancel(self.store, self._seal, self.id, reason)

    def fork(
        self,
        at: int | None = None,
        run_id: str | None = None,
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        results: Mapping[int | str, Any] | None = None,
        *,
        messages: bool = False,
    ) -> Run:
        """Start a new run from a point of this one, which stays as it is.

        What is recorded up to there is shared and never repeated; what came after is not known to
        the fork, and its side effects get idempotency keys of their own.  It is executed by calling
        the workflow with the same arguments, ``workflow.options(run_id=fork.id)(...)``, or by
        ``stepwise resume``.

        Args:
            at: share the steps up to this number, and resume at the newest checkpoint among them;
                0 for the beginning; by default, the newest checkpoint (or the last of ``results``).
            run_id: of the fork; by default one is made up.
            locals: variables that have other values at that checkpoint, by name.
            results: steps that returned something else, by number or name; the fork resumes at a
                checkpoint before them.
            messages: take along the signals that the run has been sent and had not taken by that
                point; both then take them.  Without it, such a fork is refused.

        Raises:
            StepNotFoundError: there is no such step, or no checkpoint to change variables at.
            ConfigurationError: there is no such variable; there are such signals.
            RunConflictError: the run id is taken.
        """
        change = Change(at, locals or {}, results or {}, messages)
        return Run(self.store, fork(self.store, self._seal, self.id, change, run_id))

    def forget(self, step: int | str) -> None:
        """Have a recorded step run again the next time the workflow is called.

        Args:
            step: its number, or its name if there is only one call of that name.

        Raises:
            StepNotFoundError: there is no such step.
            RunBusyError: the run is being executed.
        """
        with self._journal() as (journal, entries):
            recorded = choose(self.id, step, [*Calls(entries)], "recorded")
            outcome = recorded.outcome
            inner = outcome.inner if outcome is not None else ()
            forgotten = Forgotten((recorded.call.number, *inner), time.time())
            facts = self._facts()
            facts = facts.reopened(facts.updated_at if is_ready(facts) else time.time())
            journal.append((forgotten, b""), head=facts)

    def compensate(self) -> int:
        """Undo its completed tools that have a ``compensate=``, the newest first.

        Those of its child runs are undone in their place.  What is undone counts as not done:
        called again, the workflow makes those calls anew, while its plain steps are answered.
        Each compensation is journaled; if the process dies, call this again.

        Returns:
            how many were undone.

        Raises:
            StepInDoubtError: a compensation was started and never finished.
            RunBusyError: the run is being executed.
            ConfigurationError: a tool that is to be undone is not defined in this program.
        """
        with self._journal() as (journal, _):
            result = drive(compensate(journal, self._facts()))
        done: int = result.unwrap() or 0
        return done

    def verify(self) -> Verification:
        """Verify every record and checkpoint of it; nothing is loaded and nothing is changed."""
        return verify(self.store, self._seal, self.id)

    def repair(self, *, accept_loss: bool = False) -> Verification:
        """Put right what can be: what does not verify is set aside, what can be derived is.

        Args:
            accept_loss: give up records that are gone, even if they announced side effects, which
                then may be repeated.  Look outside first.

        Raises:
            RunBusyError: the run is being executed.
        """
        return repair(self.store, self._seal, self.id, fsync=True, accept_loss=accept_loss)

    def copy_to(
        self, store: Any, *, restored: bool = False, wait: bool = False, messages: bool = False
    ) -> Run:
        """Copy the run with its child runs and inboxes into another store; return the copy.

        The copy has the same id, and a call there continues it.  So does a call here continue the
        original: decide for one of them.  Where a copy is there already, what came since is added.

        Args:
            store: a URL, path or store object.
            restored: the run comes from a backup: it asks about each side effect that is not
                recorded, as after ``stepwise restore``.
            wait: wait while it is being executed.
            messages: copy it although it has been sent signals or answers that it has not acted on
                yet, and which the copy would act on, too.  Without it, that is refused.

        Raises:
            ConfigurationError: it has been sent such.
            RunBusyError: it is being executed.
            RunConflictError: the store holds another history of it.
            CorruptStoreError: it is damaged, here or there.
        """
        target = open_store(store)
        self._facts()
        copier = Copier(self.store, target, restored=restored, wait=wait, messages=messages)
        copier.copy(self.id)
        return Run(target, self.id, self._seal)

    def delete(self) -> None:
        """Delete the run, its journal and its child runs; calling the workflow starts afresh.

        Raises:
            RunBusyError: it, or a child run of it, is being executed.
        """
        self._delete(ChildRuns(self.store, self._seal))
        erase(self.store)

    def _delete(self, children: ChildRuns) -> None:
        """Delete the run and its child runs."""
        for child in children.of(self.id):
            Run(self.store, child, self._seal)._delete(children)
        delete_run(self.store, self._seal, self.id)

    @contextmanager
    def _journal(self) -> Iterator[tuple[Journal, list[Entry]]]:
        self._facts()  # raises for a missing run, which must not be created here
        lease = Lease(self.store, self.id).acquire(child=current_scope() is not None)
        try:
            journal = Journal(self.store, self._seal, self.id, lease.epoch, fsync=True)
            yield journal, journal.load(Position(self._facts().pruned, None))
        finally:
            lease.release()


# -- listing --------------------------------------------------------------------------------------


_NEAR = 1000  # newest runs among which an id is looked for that was meant
_SHOWN = 100  # runs of a list
_NEVER_RUNNING = ("completed", "failed", "interrupted", "suspended", "cancelled")
_RUNNING = ("running", "crashed", "stuck", "ready")  # as their heads have it
_UNFINISHED = ("running", "crashed", "stuck", "failed", "interrupted", "suspended", "ready")


class Runs(list[Run]):
    """A list of runs that shows as a table."""

    def __repr__(self) -> str:
        return runs_text(*self._few())

    def _repr_html_(self) -> str:
        return runs_html(*self._few())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _few(self) -> tuple[list[RunShown], int]:
        """Return the first runs for display, and the number of remaining ones."""
        shown = []
        for run in self[:_SHOWN]:
            try:
                shown.append(run._shown())
            except RunNotFoundError:
                shown.append(RunShown(run.id, "", "deleted"))
        return shown, len(self) - len(shown)


def current_run() -> Run | None:
    """Return the run that executes this code, or ``None`` outside of a run."""
    scope = current_scope()
    return None if scope is None else Run(scope.run.journal.store, scope.run.run_id)


def get_run(run_id: str, *, store: Any = None) -> Run:
    """Return a run by its id.

    A run of which only marks are left, since its database is gone, can be verified, repaired and
    deleted; reading anything else of it raises :class:`JournalLostError`.

    Args:
        run_id: the whole id; the command line takes the beginning of one, too.
        store: a URL, path or store object; by default the configured one.

    Raises:
        RunNotFoundError: there is none; names those with a similar id.
    """
    opened = open_store(store if store is not None else settings.store())
    run, seal = Run(opened, run_id), seal_for(opened)
    if facts_of(opened, seal, run_id) is None and not newest_mark(opened, seal, run_id).last:
        heads = _newest(opened, seal)
        ids = [head.run_id for head in itertools.islice(heads, _NEAR)]
        total = number_of_runs(opened) or len(ids)
        import difflib  # on use: only a mistake needs it

        near = difflib.get_close_matches(run_id, ids, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        hint = hint or (" They are listed by: stepwise runs" if ids else "")
        raise RunNotFoundError(
            f"there is no run {run_id!r} in {opened.url}, which holds {count(total, 'run')}.{hint}",
            run_id=run_id,
        )
    return run


def runs(
    workflow: Any = None,
    status: RunStatus | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    store: Any = None,
    limit: int | None = None,
) -> list[Run]:
    """Return the runs in the store, the newest first.

    Args:
        workflow: only those of this workflow: the workflow itself, its name or its full name.
        status: only those of this status.
        tags: only those that have all of these tags.
        store: a URL, path or store object; by default the configured one.
        limit: at most this many; a store of many runs is then not read whole.
    """
    found = listed(workflow, status, store, tags, limit=options.check_limit("runs()", limit))
    return Runs(each.run for each in found)


@dataclass(frozen=True)
class Listed:
    """A run, with the facts from one look."""

    run: Run
    facts: RunFacts
    owner: Owner | None

    @cached
    def status(self) -> RunStatus:
        """The status of the run."""
        return self.run._status(self.facts, self.owner)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as :meth:`Run.to_dict`, by the head of the run if it has ended.

        A run that goes on, or has died, is ahead of its head: its journal is read.
        """
        tally = self.facts.tally if self.facts.status != "running" else None
        if tally is None:
            return self.run._dict_of(self.facts, self.owner)
        return run_dict(self.facts, self.status, self.owner, tally.counts, Spent(*tally.spent))


def listed(
    workflow: Any = None,
    status: RunStatus | None = None,
    store: Any = None,
    tags: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
    where: Callable[[RunFacts], bool] | None = None,
) -> list[Listed]:
    """Return the runs for :func:`runs`, with the facts that were read for them.

    Args:
        where: only those of which this is true.
    """
    found = [*itertools.islice(each_listed(workflow, status, store, tags, where=where), limit)]
    # The store has them in its own order: copied runs, say, as they were copied.
    return sorted(found, key=lambda each: each.facts.created_at, reverse=True)


def each_listed(
    workflow: Any = None,
    status: RunStatus | None = None,
    store: Any = None,
    tags: Mapping[str, str] | None = None,
    *,
    where: Callable[[RunFacts], bool] | None = None,
    begins: str = "",
    oldest: bool = False,
) -> Iterator[Listed]:
    """Yield the runs of :func:`listed` one by one, the newest first, as the store has them.

    Args:
        begins: only runs whose id begins so.
        oldest: about the oldest first, if the store has them in an order at all.
    """
    if tags is not None:
        options.check_tags("runs()", tags)
    opened = open_store(store if store is not None else settings.store())
    seal = seal_for(opened)
    unfinished = status in _UNFINISHED
    kept = "running" if status in _RUNNING else status if status in _NEVER_RUNNING else None
    name = workflow if isinstance(workflow, str) else None
    words = words_for(seal, name, kept, tags or {})
    heads = opened.heads(unfinished=unfinished) if oldest else None
    for head in heads or _newest(opened, seal, unfinished=unfinished, words=words):
        if not head.run_id.startswith(begins):
            continue
        facts = open_head(seal, head) or facts_of(opened, seal, head.run_id)
        if facts is None or not _is_of(opened, seal, facts, workflow):
            continue
        if (tags and not tags.items() <= facts.tags.items()) or (where and not where(facts)):
            continue
        if facts.status == "running" and status in _NEVER_RUNNING:
            continue
        owner = opened.owner(facts.run_id) if facts.status == "running" else None
        each = Listed(Run(opened, facts.run_id, seal), facts, owner)
        if status in (None, each.status):
            yield each


def number_of_runs(store: Store | None = None) -> int | None:
    """Return how many runs a store has, child runs included; ``None`` if it cannot count them."""
    store = open_store(settings.store()) if store is None else store
    count_heads = getattr(store, "count_heads", None)
    return int(count_heads()) if count_heads is not None else None


def _newest(
    store: Store, seal: Seal, *, unfinished: bool = False, words: Words = ()
) -> Iterator[Head]:
    """Yield the heads, those of the newest runs first; if the store can, those with the words."""
    newest_heads = getattr(store, "newest_heads", None)
    if newest_heads is not None:
        yield from newest_heads(unfinished=unfinished, words=words)
        return

    def begun(head: Head) -> float:
        facts = open_head(seal, head)
        return facts.created_at if facts is not None else math.inf

    yield from sorted(store.heads(unfinished=unfinished), key=begun, reverse=True)


def _is_of(store: Store, seal: Seal, facts: RunFacts, workflow: Any) -> bool:
    """Return whether a run is of a workflow, whose file may have been started another way."""
    if getattr(workflow, "full_name", workflow) in (None, facts.workflow, facts.label):
        return True
    definition = getattr(workflow, "definition", None)
    return definition is not None and is_of_file(
        store, seal, facts, definition.other_names, definition.file
    )


# -- current --------------------------------------------------------------------------------------


@public
@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is being executed.

    Args:
        name: of the step; empty outside of one.
        idempotency_key: the same whenever this very call is repeated, and no other call's: send it
            outside so that repeats are dropped there.
        attempt: which try of the body this is, from 1.
        run_id: of the run; empty outside of one.
    """

    name: str
    idempotency_key: str
    attempt: int
    run_id: str


def current_step() -> CurrentStep:
    """Return the step that is being executed, with its idempotency key.

    Outside of a run, where nothing is repeated, each call returns a new key, so that a tool works
    there as well.
    """
    scope = current_scope()
    if scope is None or scope.call is None:
        return CurrentStep("", f"sw-{os.urandom(16).hex()}", 1, "")
    call = scope.call
    run_id = scope.run.run_id
    return CurrentStep(call.name, call.key or key_of(run_id, call), scope.attempt, run_id)


# -- program --------------------------------------------------------------------------------------


def check_start(run: Run) -> None:
    """Refuse to start what a record says, where records are not trusted.

    Raises:
        ConfigurationError: ``trust="data"`` is set.
    """
    if settings.trusts_data_only():
        raise ConfigurationError(
            "trust='data' starts no command line of a record, which somebody else with the key may "
            "have written. Start the program yourself, or without STEPWISE_TRUST=data. If it does "
            f"not find the run, set STEPWISE_RESUME={shell_word(run.id)}"
        )


def start_command(run: Run) -> tuple[tuple[str, ...], str]:
    """Return the command that starts the program of a run, and the folder to start it in.

    Raises:
        ConfigurationError: the program is gone, or was not started from a command line.
    """
    program = run.program
    command, folder = (program.command, program.cwd) if program is not None else ((), "")
    script = program.file if program and run.workflow.startswith(f"{program.file}:") else ""
    if script and not command:
        command, folder = (sys.executable, script), os.path.dirname(script)
    needed = (*command[:1], folder, *([script] if script else []))
    missing = [part for part in needed if not os.path.exists(part)]
    if command and not missing and not any(HIDDEN in part for part in command):
        return command, folder
    why = f"{missing[0]} is gone" if missing else "it was not started from a command line"
    if any(HIDDEN in part for part in command):
        why = "its command line held a secret, which is never stored"
    raise ConfigurationError(
        f"the program of run {run.id!r} cannot be started from here: {why}. Start it yourself (in "
        f"a notebook, run the cell): the call {run.label}({run.arguments}) resumes. If it "
        f"does not find the run, set STEPWISE_RESUME={shell_word(run.id)}"
    )
