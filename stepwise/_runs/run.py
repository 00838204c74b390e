"""The handle of a run (:class:`Run`), and how runs are listed and found.

A ``Run`` is a handle: each attribute is read from the store when it is accessed.  Nothing is
unpickled unless the caller requests inputs, local variables, a result or an exception.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from stepwise import errors
from stepwise._calls.branching import BranchCall
from stepwise._calls.compensation import compensate
from stepwise._calls.driver import drive
from stepwise._checkpoints.checkpoints import Loaded
from stepwise._display import render
from stepwise._display.terminal import elided, line_of
from stepwise._display.words import ago
from stepwise._execution.active_run import current_scope, live_runs
from stepwise._execution.budget import Budget, Spent
from stepwise._execution.outcomes import load_inputs
from stepwise._execution.process_memory import known_workflow
from stepwise._execution.suspension import PendingWait, pending
from stepwise._execution.viewer import error_of, look_into, result_of
from stepwise._journal import journal as journals
from stepwise._journal.persons import this_person
from stepwise._journal.projection import Calls
from stepwise._journal.records import Entry, Forgotten, RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.stream import StreamLog
from stepwise._journal.summary import how_started
from stepwise._matching.pool import key_of
from stepwise._runs import questions
from stepwise._runs import steps as run_steps
from stepwise._runs import why as reasons
from stepwise._runs.branching import RunBranches, existing
from stepwise._runs.copying import Copier
from stepwise._runs.fork import Change, fork
from stepwise._runs.messages import InboxMessage, cancel, messages_of, refuse_in_branch, send
from stepwise._runs.overview import SHOWN, Overview, Program, goes_on, overview, shown
from stepwise._runs.streaming import RunStream, shown_text
from stepwise._runs.verify import (
    ChildRuns,
    Verification,
    delete_runs,
    erase,
    refuse_called,
    repair,
    verify,
)
from stepwise._runtime import options, settings
from stepwise._runtime.facts import public
from stepwise._runtime.forks import cached
from stepwise._runtime.messages import count, fold, printable, shell_word
from stepwise._runtime.settings import public_url
from stepwise._values.codec import Codec
from stepwise.stores import Head, Owner, Store, open_store
from stepwise.stores.base import Words

T = TypeVar("T")

# -- run ------------------------------------------------------------------------------------------


@public
class Run:
    """One execution of a workflow, across any number of crashes.

    ``workflow.execute(...)``, :func:`get_run`, :func:`runs` and :func:`current_run` return runs.
    """

    def __init__(self, store: Store, run_id: str, seal: Seal | None = None) -> None:
        self.store = store
        self.id = run_id
        self._seal = journals.seal_for(store) if seal is None else seal

    @property
    def _place(self) -> run_steps.Place:
        return self.store, self._seal, self.id

    def __reduce__(self) -> Any:
        return _run_in, (self.store.url, self.id)

    def __repr__(self) -> str:
        facts = self._facts()
        return f"<Run {self.id} {self.status}: {facts.label}({facts.arguments})>"

    def _repr_html_(self) -> str:
        seen = self._seen()
        asked = self._asked(seen)
        return render.run_html(self._shown(seen)) + (render.questions_html(asked) if asked else "")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        seen = self._seen()
        asked = map(render.question_text, self._asked(seen))
        printer.text("\n\n".join([render.run_text(self._shown(seen)), *asked]))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        seen = self._seen()
        asked = self._asked(seen)
        return render.buttons(render.run_html(self._shown(seen)), asked) if asked else {}

    def _asked(self, seen: Overview) -> list[questions.Question]:
        """Return the open questions; the store is asked only if the run may have some."""
        return self.questions if "waiting" in seen.statuses or seen.course.children else []

    def _shown(self, seen: Overview | None = None) -> render.RunShown:
        return shown(seen.standing if seen is not None else self._standing(), seen)

    def _seen(self, count: int | None = SHOWN) -> Overview:
        """Read the overview with the ``count`` newest steps; with all steps if it is ``None``."""
        seen = overview(*self._place, count)
        for active in list(live_runs):
            if active.run_id == self.id and active.journal.store is self.store:
                seen.course.resumed_from = active.progress.resumed_from
                seen.course.executed = active.progress.executed
                seen.course.skipped = active.progress.skipped
        return seen

    def _each_step(self, seen: Overview) -> Iterator[run_steps.StepRecord]:
        """Read all steps of the run one by one, with only the next step in memory."""
        doubtful = {step.number for step in seen.in_doubt}
        recorded = run_steps.each_step(self.store, self._seal, self._facts(), doubtful)
        return itertools.chain(recorded, seen.doing)

    def _goes_on(self) -> tuple[str, str]:
        """Return where the run resumes, and the line of source there, if known."""
        return goes_on(self.store, self._seal, self._facts())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.id, self.store) == (other.id, other.store)

    def __hash__(self) -> int:
        return hash(self.id)

    # -- facts -----------------------------------------------------------------------------------

    def _facts(self) -> RunFacts:
        return run_steps.known_facts(*self._place)

    def _settled(self, read: Callable[[RunFacts, Owner | None], T]) -> T:
        """Return what a function reads of the run, as of one moment."""
        return run_steps.settled(*self._place, read)

    def _standing(self) -> run_steps.Observed:
        def read(facts: RunFacts, owner: Owner | None) -> run_steps.Observed:
            return run_steps.standing(self.store, self._seal, facts, owner)

        return self._settled(read)

    def _to_go_on(self) -> Run:
        """Return the run, or the adopted branch that goes on instead of it."""
        run_id = run_steps.facts_to_go_on(self.store, self._seal, self.id).run_id
        return self if run_id == self.id else Run(self.store, run_id, self._seal)

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
        """The names of the arguments that are never stored; a resume has to supply them."""
        return tuple(self._facts().secrets.split())

    @property
    def tags(self) -> dict[str, str]:
        """The tags that the run was started with (``tags=``), as texts by name."""
        return dict(self._facts().tags)

    @property
    def parent(self) -> str | None:
        """The id of the run that called this run as a child workflow; ``None`` for other runs."""
        return self._facts().parent or None

    @property
    def forked_from(self) -> str | None:
        """The id of the run that this run is a fork of; ``None`` if it is not a fork."""
        return self._facts().forked_from or None

    @property
    def forked_by(self) -> str | None:
        """The maker of the fork, as ``user@host``; ``None`` if the run is not a fork."""
        return self._facts().forked_by or None

    @property
    def superseded_by(self) -> str | None:
        """The id of the adopted branch that goes on instead of this run; ``None`` without one."""
        return self._facts().superseded or None

    @property
    def program(self) -> Program | None:
        """The command that last started the program of the run; ``None`` if unknown."""
        how = self._settled(lambda facts, _: how_started(self.store, self._seal, facts))
        return Program(*how) if how is not None else None

    @property
    def status(self) -> run_steps.RunStatus:
        """The status of the run, as one word.

        ``running``, ``completed``, ``failed``.  ``interrupted``: stopped by Ctrl-C, by a
        cancellation or timeout in its caller, or by a used-up budget.  ``cancelling`` and
        ``cancelled``: somebody cancelled the run.  ``suspended``: it released its process and waits
        for a time, a signal or a person (see ``waits``).  ``crashed``: its process is gone, and the
        run has not ended.  ``stuck``: it crashed three times at the same step, so ``stepwise up``
        leaves it alone.  ``ready``: a fork that nobody has executed yet.  ``superseded``: a branch
        was adopted, and goes on instead of the run.
        """
        return self._standing().status

    @property
    def waits(self) -> list[PendingWait]:
        """The waits of a suspended run, including the waits of its child runs."""
        return pending(self._facts())

    @property
    def owner(self) -> Owner | None:
        """The process that is executing the run; ``None`` if there is none."""
        return self.store.owner(self.id)

    @property
    def created_at(self) -> float:
        """The time when the run began, in seconds since 1970."""
        return self._facts().created_at

    @property
    def updated_at(self) -> float:
        """The time when the status of the run last changed, in seconds since 1970."""
        return self._facts().updated_at

    @property
    def duration(self) -> float | None:
        """The seconds from the start of the run to its end, with pauses; ``None`` until it ends."""
        return run_steps.duration_of(self._facts())

    @property
    def counts(self) -> dict[str, int]:
        """The number of steps by status: ``{"completed": 3, "in_doubt": 1}``."""
        return self._seen(1).statuses

    @property
    def spent(self) -> Spent:
        """The spending of the run over all its attempts, including its child runs.

        A step that the journal answered counts once.  Failed attempts count, and so do steps that
        were forgotten or undone since: the money is gone.
        """
        return self._seen(1).spent

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of the run when it began, by parameter name.

        ``self`` is included; arguments left at their default are not.

        Raises:
            UnreadableValueError: an argument could not be recorded, or cannot be loaded here; the
                message names the argument and the reason.
        """
        return self._settled(lambda facts, _: load_inputs(self.store, self._seal, facts).whole())

    # -- history ---------------------------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        return journals.entries_of(self.store, self._seal, self._facts())

    @property
    def steps(self) -> list[run_steps.StepRecord]:
        """All recorded calls, in the order in which they were first made."""

        def read(_: RunFacts, owner: Owner | None) -> list[run_steps.StepRecord]:
            return run_steps.steps_of(self._place, [*self._entries()], owned=owner is not None)

        return self._settled(read)

    @property
    def inbox(self) -> list[InboxMessage]:
        """The messages that were sent to the run, in the order of arrival, each with its fate."""
        return self._settled(lambda facts, _: messages_of(self.store, self._seal, facts))

    def stream(
        self, after: int | None = None, stream: str = "main", *, follow: bool = True
    ) -> RunStream:
        """Return the items that the run says with :func:`emit`, for ``for`` and ``async for``.

        The iterator waits for new items until the run has ended, in this process or any other; a
        run that was killed may be resumed meanwhile.  A reader that comes back gives the offset of
        the last thing that it got, and loses nothing.

        Args:
            after: only what follows this offset, which a reader got with its last item; by default
                everything.
            stream: the name of the stream.
            follow: False to end with what is there now.

        Raises:
            ConfigurationError: the stream has no such offset.
            CorruptStoreError: a part of the stream is damaged or missing.
            UnreadableValueError: a value cannot be loaded here.
        """
        log = StreamLog(self.store, self._seal, self.id)
        return RunStream(log, self._facts, stream, after, follow=follow)

    def _newest_said(self, size: int) -> Iterator[tuple[str, str, bool]]:
        """Yield each stream's name, the end of what it says, and whether that is all.

        Nothing is unpickled, and what looks like a credential is masked.

        Args:
            size: the characters of a text at most.
        """
        from stepwise._values.credentials import masked_prose  # on use

        newest = StreamLog(self.store, self._seal, self.id).newest()
        for name, following in newest.after().items() if newest is not None else ():
            found, is_all = self.stream(following - 1, name).newest(size)
            if found:
                text = shown_text(found)
                end = masked_prose(text[-4 * size :])[-size:]
                yield name, end, is_all and len(text) <= size

    @property
    def checkpoints(self) -> list[run_steps.RunCheckpoint]:
        """The checkpoints of the run, oldest first; it resumes at the newest that is verified."""

        def read(*_: Any) -> list[run_steps.RunCheckpoint]:
            return [each for each, _ in run_steps.checkpoints_of(*self._place)]

        return self._settled(read)

    def _shown_locals(self, at: int | None = None) -> dict[str, Any]:
        return self._shown_at(self._checkpoint(at))

    def _shown_at(self, loaded: Loaded) -> dict[str, Any]:
        return self._without_hidden(look_into(loaded))

    def _without_hidden(self, values: dict[str, Any]) -> dict[str, Any]:
        return reasons.without_hidden(self._facts(), values)

    def locals(self, at: int | None = None) -> dict[str, Any]:
        """Return the local variables at a checkpoint, by name.

        Placeholders replace objects that this program lacks: instances of unknown classes, clients
        and resources.

        Args:
            at: a number of steps, for the last checkpoint after that many steps or fewer; by
                default the newest checkpoint.

        Raises:
            StepNotFoundError: there is no verified checkpoint (that early).
            UnreadableValueError: another Python version wrote the checkpoint.
        """
        return look_into(self._checkpoint(at))

    def _checkpoint(self, at: int | None) -> Loaded:
        """Return the newest checkpoint, or the last one after so many steps; see :meth:`locals`."""
        loaded = run_steps.newest_checkpoint(*self._place, at)
        if loaded is None:
            when = "" if at is None else f" at or before step {at}"
            steps = ", ".join(str(each.step) for each in self.checkpoints if each.verified)
            if steps and at is None:  # its first one has come meanwhile
                return self._checkpoint(at)
            others = f"; it has some after steps {steps}" if steps else ""
            raise errors.StepNotFoundError(
                f"run {self.id!r} has no checkpoint{when}{others}",
                run_id=self.id,
                step=at or 0,
            )
        return loaded

    def why(self, at: int | None = None) -> reasons.Why:
        """Return why the run stands where it stands: what it was doing, and what happened.

        The facts are those of one screen: the statement with the lines around it, the exception
        with the user's frames, the step in doubt or the wait, what was done and spent, the
        variables at the newest checkpoint and which changed last, and the commands that go on.
        Nothing of the program is executed, and a run in progress is looked at, too.

        Args:
            at: a number of steps, for the statement and the variables at the last checkpoint after
                that many steps or fewer; by default those of now.

        Raises:
            StepNotFoundError: no checkpoint is kept that early.
        """
        return reasons.why_of(self._place, at)

    def history(self, name: str, limit: int = 1000) -> reasons.VariableHistory:
        """Return how a variable changed over the kept checkpoints, oldest first.

        Args:
            name: the variable, or a path to a part of it, such as ``messages[0].content``.
            limit: the number of checkpoints to look at: the newest ones.

        Returns:
            a list of :class:`VariableChange`, whose ``note`` says what was left out.

        Raises:
            ConfigurationError: this is no path, or no kept checkpoint has such a variable.
            StepNotFoundError: the run has no checkpoint.
        """
        return self._settled(lambda facts, _: reasons.history_of(self._place, facts, name, limit))

    def bisect(self, expression: str, *, every: bool = False) -> reasons.FirstTrue:
        """Return the first kept checkpoint at which an expression over the variables is true.

        The expression is executed, with the code of your classes that it calls.  Up to 48 evenly
        spread checkpoints are looked at, then the gap before the first that fits is halved.

        Args:
            expression: an expression of Python, such as ``len(messages) > 40``.  Where it raises,
                it counts as false.
            every: True to look at each checkpoint, which finds a condition that was true for a
                while only.

        Raises:
            ConfigurationError: this is no expression.
            StepNotFoundError: the run has no checkpoint.
        """
        return self._settled(
            lambda facts, _: reasons.bisect_of(self._place, facts, expression, every=every)
        )

    @property
    def result(self) -> Any:
        """The returned value, or ``None`` while the run has not completed.

        Raises:
            UnreadableValueError: the value could not be recorded, or cannot be loaded here; the
                message says why, and how to get the value.
        """
        return self._settled(lambda facts, _: result_of(self.store, self._seal, facts))

    @property
    def error(self) -> BaseException | None:
        """The raised exception, or ``None`` if the run did not fail."""
        return self._settled(lambda facts, _: error_of(self.store, self._seal, facts))

    @property
    def frames(self) -> tuple[run_steps.RecordedFrame, ...]:
        """The frames of the run's failure, outermost first, with local variables.

        Empty if the run did not fail, or ``configure(record_locals=True)`` was not set.

        Raises:
            UnreadableValueError: the frames are damaged.
        """

        def read(facts: RunFacts, _: Owner | None) -> tuple[run_steps.RecordedFrame, ...]:
            failed = facts.status == "failed"
            failures = run_steps.failures_of(self._place, 0) if failed else {}
            return failures.get(facts.end, ())

        return self._settled(read)

    def _error_text(self) -> str | None:
        """Return the text of the run's exception, even if the exception's ``__str__`` fails.

        Return ``None`` without an exception, or if the exception cannot be loaded here.
        """
        try:
            error = self.error
        except errors.UnreadableValueError:
            return None
        return run_steps.text_of_error(error) if error is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of a listing as plain data, for JSON; nothing is unpickled.

        The keys are the names of the attributes.  ``error`` is a text; for an interrupted run it
        names the interruption.  ``owner`` is the process.  ``stepwise runs --json`` prints the same
        data.
        """
        seen = self._seen(1)
        return run_steps.run_dict(seen.standing, seen.statuses, seen.spent)

    @property
    def resumed_from_step(self) -> int | None:
        """The number of steps that were done at the point where the last attempt resumed.

        0 if the last attempt resumed from the top, ``None`` if there was only one attempt.
        """
        return self._seen(1).course.resumed_from

    @property
    def steps_executed(self) -> int:
        """The number of steps that the last attempt executed."""
        return self._seen(1).course.executed

    @property
    def steps_skipped(self) -> int:
        """The number of steps that the last attempt skipped, since they were already done."""
        return self._seen(1).course.skipped

    # -- resuming, settling and forgetting -------------------------------------------------------

    def resume(self, /, **inputs: Any) -> Any:
        """Continue the run in this process, with its original arguments.

        Args:
            inputs: arguments that replace the recorded ones, by name (``self``, too), such as
                clients, which cannot be recorded.

        Returns:
            a handle, as ``start()`` returns it; ``.result()`` waits for the result, and is awaited
            for an asynchronous run.

        Raises:
            ConfigurationError: this process does not know the workflow, or the run is a child run.
            UnreadableValueError: an argument is not recorded, and not passed here.
            RunBusyError: the run is being executed.
        """
        try:
            return known_workflow(self.workflow).resume(self, inputs)
        except BaseException as error:
            raise fold(error)  # noqa: B904

    def resolve(
        self,
        step: int | str,
        *,
        landed: Any = questions.UNSET,
        did_not_happen: bool = False,
        same: bool = False,
        another: bool = False,
        stop: int | None = None,
    ) -> None:
        """Settle a step in doubt, or say whether a stopped call is a recorded step.

        A run stops at a call that could be a recorded side effect with other arguments.  The answer
        is bound to the call site and to the ordinal of the call among calls of its name.  So the
        answer holds even if the arguments differ at every start.  The next start of the run uses
        the answer.

        Args:
            step: the number of the step, or its name if only one call of that name is in question.
            landed: the step happened, and returned this value.
            did_not_happen: True if the step did not happen, and may run.
            same: True if the stopped call is the recorded step, whose outcome answers it; for an
                edited step (``on_changed="ask"``), if its results stay in use.
            another: True if they are two acts: the record stays, and the stopped call runs, once;
                for an edited step, if it runs again.
            stop: the number of the stopped call, if several could be this step; ``stepwise show``
                lists them.

        Raises:
            StepNotFoundError: no such step is in doubt, or no stopped call could be this step.
            ConfigurationError: the arguments do not give exactly one answer.
            RunBusyError: the run is being executed.
        """
        said = questions.said_of(landed, did_not_happen, same, another, stop)
        with self._journal() as (journal, entries):
            codec, facts = Codec(self._facts().codec), self._facts()
            items = None
            if said.same is not None:
                items = questions.settle_edited(journal, step, entries, same=said.same)
                facts = facts.reopened(time.time()) if items else facts
            if items is None:
                items = questions.to_record(self.id, step, entries, said, codec)
            if items:
                journal.append(*items, head=facts)  # listings count it

    @property
    def questions(self) -> list[questions.Question]:
        """The open questions of the run and its child runs, which wait for a person's answer."""

        def read(facts: RunFacts, _: Owner | None) -> list[questions.Question]:
            return questions.RunQuestions(self.store, self._seal, facts).open

        return self._settled(read)

    def approve(self, step: int | str, ticket: str, note: str = "", *, key: Any = None) -> None:
        """Answer the question of a step with yes: its call runs with the arguments shown.

        The answer is on disk when this method returns, even if nobody executes the run.

        Args:
            step: the number of the asking call, see :attr:`questions`, or the name of its tool.
            ticket: the ticket of the question that the person has seen: ``Question.ticket``.
            note: a note for the workflow, and for people who look at the run.
            key: the key of an approver who signs the answer, if the tool has ``approvers=``: the
                file that ``stepwise approver-key`` made, or an object with the methods ``sign`` and
                ``public_key`` of an ``Ed25519PrivateKey``.

        Raises:
            StepNotFoundError: the step now asks another question or none, or somebody else answered
                first; the message says who, and which steps wait.
            RunEndedError: the run has completed, failed or been cancelled.
            RunNotFoundError: the run no longer exists.
            ConfigurationError: an approver has to sign the answer, and this key is not an
                approver's key.
        """
        questions.give_answer(*self._place, step, ticket, questions.Decision(True, note, key))

    def deny(self, step: int | str, ticket: str, reason: str, *, key: Any = None) -> None:
        """Answer the question of a step with no: its call raises :class:`ApprovalDenied`.

        Args:
            step: the number of the asking call, see :attr:`questions`, or the name of its tool.
            ticket: the ticket of the question that the person has seen: ``Question.ticket``.
            reason: the reason, for the workflow and for people who look at the run.
            key: the key of an approver; see :meth:`approve`.

        Raises:
            StepNotFoundError: the step now asks another question or none, or somebody else answered
                first; the message says who, and which steps wait.
            RunEndedError: the run has completed, failed or been cancelled.
            RunNotFoundError: the run no longer exists.
            ConfigurationError: the reason is empty, or an approver has to sign the answer, and this
                key is not an approver's key.
        """
        questions.give_answer(*self._place, step, ticket, questions.Decision(False, reason, key))

    def send(self, name: str, value: Any = None, key: str | None = None) -> int:
        """Send a signal to the run, from any process: a value for its ``wait_for(name)``.

        The signal is on disk when this method returns, even if nobody executes the run.  A signal
        that arrives before the run waits for it is kept.

        Args:
            name: the name of the signal, as the run waits for it; up to 200 printable characters.
            value: plain data: texts, numbers, ``True``, ``None``, lists and dicts of these.  With
                the extra ``json``, also models, dataclasses, dates and other values that pydantic
                writes as JSON.  16 MB of JSON at most.
            key: a key for a sender that retries: two signals with the same name and key count as
                one.

        Returns:
            the number of the message in the run's inbox.

        Raises:
            RunNotFoundError: the run no longer exists.
            RunEndedError: the run has completed, failed or been cancelled.
            SignalRefusedError: the value is not plain data, or does not fit what the run waits for.
            ConfigurationError: the name is invalid, or ``jsonschema`` is needed to check the value.
        """
        return send(self.store, self._seal, self.id, name, value, key)

    def cancel(self, reason: str = "") -> None:
        """Cancel the run: its clean-up runs, it ends as ``cancelled``, and its caller gets that.

        A process that executes the run notices the request within a second if the run awaits
        something, otherwise at its next step or wait.  A run that nobody executes unwinds at its
        next start.  A second request has no effect.

        Args:
            reason: the reason in words, for people who look at the run.

        Raises:
            RunEndedError: the run has completed, failed or been cancelled.
            ConfigurationError: the run is a child run, which ends with its parent.
            RunNotFoundError: the run no longer exists.
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
        """Create a new run that continues from a point of this run, which stays unchanged.

        The fork shares the records up to that point, and never repeats them.  The fork does not
        know later records, and its side effects get their own idempotency keys.  To execute the
        fork, call the workflow with the same arguments, ``workflow.options(run_id=fork.id)(...)``,
        or use ``stepwise resume``.

        Args:
            at: share the steps up to this number, and resume at the newest checkpoint among them; 0
                for the beginning; by default, the newest checkpoint (or the last of ``results``).
            run_id: the id of the fork; by default it is generated.
            locals: new values of variables at that checkpoint, by name.
            results: new return values of steps, by number or name; the fork resumes at a checkpoint
                before these steps.
            messages: True to copy the signals that this run had not taken by that point; both runs
                then take them.  If it is False, and there are such signals, the fork is refused.

        Returns:
            the new run, with the status ``ready``.

        Raises:
            StepNotFoundError: there is no such step, or no checkpoint to change variables at.
            ConfigurationError: there is no such variable, or there are signals as above.
            RunConflictError: the run id is taken.
        """
        refuse_in_branch(f"makes no run, such as a fork of {self.id!r}")
        change = Change(at, locals or {}, results or {}, messages)
        return Run(self.store, fork(self.store, self._seal, self.id, change, run_id))

    def branch(
        self,
        at: int | str | None = None,
        variations: int | Iterable[Mapping[str, Any]] = 1,
        *,
        effects: Literal["refuse", "collect"] | Callable[[BranchCall], Any] = "refuse",
        max_workers: int = 8,
        budget: Budget | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> RunBranches:
        """Continue one moment of the run several times, each time with other variables.

        Each branch is a run of its own, which shares the records before that moment with this run:
        they are neither copied nor made again.  Plain steps are executed; no branch makes a side
        effect that this run had not made.  The call returns when every branch has ended, has
        proposed a side effect, or was stopped.  Called again with the same arguments, it goes on
        with the same branches, after a kill too, and executes none that has ended.

        Args:
            at: the number or name of the last step that is shared, or the ``position`` of a
                checkpoint, ``file:line``; by default the newest checkpoint.
            variations: for each branch, the variables that differ, by name: local variables and
                arguments of the workflow, not those of modules; or a number of branches.
            effects: what happens to side effects. ``"refuse"``: the branch stops with
                :class:`EffectRefusedError`. ``"collect"``: the branch stops there and proposes
                the call, see :meth:`RunBranch.adopt`.  Or a function of a :class:`BranchCall`,
                whose value the call returns.
            max_workers: the number of branches that are executed at the same time.
            budget: what all branches together may spend; seconds are those of the clock.
            inputs: arguments that were not recorded, such as clients, by name.

        Returns:
            the branches, which print as a table.

        Raises:
            ConfigurationError: there is no such variable, or the run cannot have branches: a child
                run, a generator, a run without its first records, or another process's workflow.
            StepNotFoundError: there is no such step or statement.
            RunBusyError: the run is being executed.
        """
        from stepwise._runs.branching import branch

        return branch(self, at, variations, effects, max_workers, budget, inputs or {})

    @property
    def branches(self) -> RunBranches:
        """The branches of the run, oldest first, with the variables that each was given."""
        return existing(self)

    def forget(self, step: int | str) -> None:
        """Forget a recorded step, so that it runs again the next time the workflow is called.

        Args:
            step: the number of the step, or its name if only one call has that name.

        Raises:
            StepNotFoundError: there is no such step.
            RunBusyError: the run is being executed.
            ConfigurationError: an adopted branch goes on instead of the run.
        """
        branch = self._to_go_on()
        if branch is not self:
            raise errors.ConfigurationError(
                f"run {self.id!r} makes no step again, since its branch {branch.id!r} goes on "
                f"instead. Its steps: stepwise show {shell_word(branch.id)}"
            )
        with self._journal() as (journal, entries):
            recorded = questions.choose(self.id, step, [*Calls(entries)], "recorded")
            outcome = recorded.outcome
            inner = outcome.inner if outcome is not None else ()
            forgotten = Forgotten((recorded.call.number, *inner), time.time(), this_person())
            facts = self._facts()
            facts = facts.reopened(facts.updated_at if journals.is_ready(facts) else time.time())
            journal.append((forgotten, b""), head=facts)

    def compensate(self) -> int:
        """Undo the completed calls of tools that have a ``compensate=``, newest first.

        The calls of child runs are undone at their place in this order.  Undone calls count as not
        done: called again, the workflow makes them anew, while the journal answers its plain steps.
        Each compensation is journaled; if the process dies, call this method again.

        Returns:
            the number of undone calls.

        Raises:
            StepInDoubtError: a compensation was started and never finished.
            RunBusyError: the run is being executed.
            ConfigurationError: a tool whose call must be undone is not defined in this program.
        """
        with self._journal() as (journal, _):
            result = drive(compensate(journal, self._facts(), this_person()))
        done: int = result.unwrap() or 0
        return done

    def verify(self) -> Verification:
        """Verify every record and checkpoint of the run; nothing is unpickled or changed."""
        return verify(self.store, self._seal, self.id)

    def repair(self, *, accept_loss: bool = False) -> Verification:
        """Repair the run: set unverifiable records aside, and derive again what can be derived.

        Args:
            accept_loss: True to give up lost records, even if they announced side effects, which
                may then be repeated.  Check the outside world first.

        Raises:
            RunBusyError: the run is being executed.
        """
        return repair(*self._place, accept_loss=accept_loss)

    def copy_to(self, store: Any, *, restored: bool = False, messages: bool = False) -> Run:
        """Copy the run with its child runs and inboxes into another store; return the copy.

        The copy has the same id, and a call there continues the copy.  A call here continues the
        original, so use only one of the two.  If the other store already has a copy, the records
        since then are added to it.

        Args:
            store: a URL, path or store object.
            restored: True if the run comes from a backup: the copy asks about each side effect that
                is not recorded, as after ``stepwise restore``.
            messages: True to copy the run even if it has signals or answers that it has not acted
                on yet, on which the copy would act, too.  If it is False, such a copy is refused.

        Raises:
            ConfigurationError: the run has such signals or answers, and ``messages`` is False.
            RunBusyError: the run is being executed.
            RunConflictError: the other store holds another history of the run.
            CorruptStoreError: the run is damaged, here or there.
        """
        target = open_store(store)
        self._facts()
        copier = Copier(self.store, target, restored=restored, messages=messages)
        copier.copy(self.id)
        return Run(target, self.id, self._seal)

    def delete(self) -> None:
        """Delete the run, its journal and its child runs; the next call of the workflow starts new.

        Raises:
            RunBusyError: the run or one of its child runs is being executed.
            ConfigurationError: it is a child run, which is deleted with its caller, or branches
                share its records.
        """
        refuse_in_branch(f"deletes no run, such as {self.id!r}")
        refuse_called(*self._place)
        delete_runs(*self._place, ChildRuns(self.store, self._seal))
        erase(self.store)

    @contextmanager
    def _journal(self) -> Iterator[tuple[journals.Journal, list[Entry]]]:
        self._facts()  # raises for a missing run, which must not be created here
        refuse_in_branch(f"changes no run, such as {self.id!r}")
        inside = current_scope() is not None
        with journals.owned_journal(self.store, self._seal, self.id, child=inside) as journal:
            yield journal, journal.load(journals.Position(self._facts().pruned, None))


# -- listing --------------------------------------------------------------------------------------


_NEAR = 1000  # newest runs that are searched for an id similar to a misspelled one
_SHOWN = 100  # runs that a list shows
_NEVER_RUNNING = ("completed", "failed", "interrupted", "suspended", "cancelled", "superseded")
_RUNNING = ("running", "crashed", "stuck", "ready")  # as their heads have it
_UNFINISHED = {"running", *run_steps.UNFINISHED} - {"suspended"}  # submitted runs are apart


def _run_in(url: str, run_id: str) -> Run:
    """Return a run that was pickled."""
    return Run(open_store(url), run_id)


class Runs(list[Run]):
    """A list of runs that is displayed as a table."""

    def __repr__(self) -> str:
        return render.runs_text(*self._few())

    def _repr_html_(self) -> str:
        return render.runs_html(*self._few())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _few(self) -> tuple[list[render.RunShown], int]:
        """Return the first runs for display, and the number of remaining ones."""
        shown = []
        for run in self[:_SHOWN]:
            try:
                shown.append(run._shown())
            except errors.RunNotFoundError:
                shown.append(render.RunShown(run.id, "", "deleted"))
        return shown, len(self) - len(shown)


def current_run() -> Run | None:
    """Return the run that executes this code, or ``None`` outside a run."""
    scope = current_scope()
    return None if scope is None else Run(scope.run.journal.store, scope.run.run_id)


def get_run(run_id: str, *, store: Any = None) -> Run:
    """Return a run by its id.

    If the database of a run is gone and only its marks are left, the run can still be verified,
    repaired and deleted.  Every other use of such a run raises :class:`JournalLostError`.

    Args:
        run_id: the whole id; the command line also accepts the beginning of an id.
        store: a URL, path or store object; by default the configured store.

    Raises:
        RunNotFoundError: there is no such run; the message names runs with a similar id.
    """
    opened = open_store(store if store is not None else settings.store())
    run = known_run(opened, run_id)
    if run is None:
        error = _no_run(opened, run_id)
        run = known_run(opened, run_id)  # it may have begun meanwhile
        if run is None:
            raise error
    return run


def known_run(store: Store, run_id: str) -> Run | None:
    """Return the run with that id, or ``None`` if the store has neither its records nor a mark."""
    seal = journals.seal_for(store)
    if (
        journals.facts_of(store, seal, run_id) is None
        and not journals.newest_mark(store, seal, run_id).last
    ):
        return None
    return Run(store, run_id, seal)


def _no_run(store: Store, run_id: str) -> errors.RunNotFoundError:
    import difflib  # on use: only a mistake needs it

    heads = newest_heads(store, journals.seal_for(store))
    ids = [head.run_id for head in itertools.islice(heads, _NEAR)]
    total = number_of_runs(store) or len(ids)
    near = difflib.get_close_matches(run_id, ids, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    hint = hint or (" They are listed by: stepwise runs" if ids else "")
    return errors.RunNotFoundError(
        f"there is no run {run_id!r} in {store.url}, which holds {count(total, 'run')}.{hint}",
        run_id=run_id,
    )


def runs(
    workflow: Any = None,
    status: run_steps.RunStatus | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    store: Any = None,
    limit: int | None = None,
) -> list[Run]:
    """Return the runs in the store, newest first.

    Args:
        workflow: return only runs of this workflow: the workflow itself, its name or its full name.
        status: return only runs with this status.
        tags: return only runs that have all these tags.
        store: a URL, path or store object; by default the configured store.
        limit: the maximum number of runs; a large store is then not read whole.
    """
    found = listed(workflow, status, store, tags, limit=options.check_limit("runs()", limit))
    return Runs(each.run for each in found)


@dataclass(frozen=True)
class Listed:
    """A run, with its facts from one read of the store."""

    run: Run
    facts: RunFacts
    owner: Owner | None

    @cached
    def status(self) -> run_steps.RunStatus:
        """The status of the run."""
        owned = self.owner is not None
        return run_steps.status_of(self.run.store, self.run._seal, self.facts, owned=owned)

    @property
    def counted(self) -> tuple[Mapping[str, int], Spent] | None:
        """The steps by status, and the amounts, as the head says; ``None`` if it does not.

        A run that goes on, or has died, is ahead of its head.
        """
        tally = self.facts.tally if self.facts.status != "running" else None
        return (tally.counts, Spent(*tally.spent)) if tally is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the same as :meth:`Run.to_dict`, by the head of the run if that says enough."""
        counted = self.counted
        if counted is None:
            return self.run.to_dict()
        return run_steps.run_dict(run_steps.Observed(self.facts, self.owner, self.status), *counted)


def listed(
    workflow: Any = None,
    status: run_steps.RunStatus | None = None,
    store: Any = None,
    tags: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
    where: Callable[[RunFacts], bool] | None = None,
) -> list[Listed]:
    """Return the runs for :func:`runs`, with the facts that were read for them.

    Args:
        where: return only runs for which this predicate is true.
    """
    found = [*itertools.islice(each_listed(workflow, status, store, tags, where=where), limit)]
    # The store has its own order: copied runs, for example, are in the order of the copying.
    return sorted(found, key=lambda each: each.facts.created_at, reverse=True)


def each_listed(
    workflow: Any = None,
    status: run_steps.RunStatus | None = None,
    store: Any = None,
    tags: Mapping[str, str] | None = None,
    *,
    where: Callable[[RunFacts], bool] | None = None,
    look: Callable[[str], None] | None = None,
    before: str = "",
    prefix: str = "",
    oldest: bool = False,
) -> Iterator[Listed]:
    """Yield the runs of :func:`listed` one by one, newest first, in the order of the store.

    Args:
        look: called with the id of each run that is looked at, before its head is opened.
        before: yield only runs that follow the run with this id in the listing.
        prefix: yield only runs whose ids begin with this text.
        oldest: True to yield roughly the oldest first, if the store has an order at all.
    """
    if tags is not None:
        options.check_tags("runs()", tags)
    opened = open_store(store if store is not None else settings.store())
    seal = journals.seal_for(opened)
    unfinished = status in _UNFINISHED
    kept = "running" if status in _RUNNING else status if status in _NEVER_RUNNING else None
    name = workflow if isinstance(workflow, str) else None
    words = journals.words_for(seal, name, kept, tags or {})
    if oldest:
        heads = opened.heads(unfinished=unfinished)
    else:
        heads = newest_heads(
            opened, seal, before, unfinished=unfinished, words=words, prefix=prefix
        )
    for head in heads:
        if not head.run_id.startswith(prefix):
            continue
        if look is not None:
            look(head.run_id)
        facts = journals.open_head(seal, head) or journals.facts_of(opened, seal, head.run_id)
        if facts is None or not _is_of(opened, seal, facts, workflow):
            continue
        if (tags and not tags.items() <= facts.tags.items()) or (where and not where(facts)):
            continue
        if facts.status == "running" and status in _NEVER_RUNNING:
            continue
        with suppress(errors.RunNotFoundError):  # deleted meanwhile
            each = Listed(Run(opened, facts.run_id, seal), *run_steps.owned(opened, seal, facts))
            if status is None or status == each.status:
                yield each


def number_of_runs(store: Store | None = None) -> int | None:
    """Return the number of runs in a store, with child runs; ``None`` if it cannot count them."""
    store = open_store(settings.store()) if store is None else store
    count_heads = getattr(store, "count_heads", None)
    return int(count_heads()) if count_heads is not None else None


def newest_heads(
    store: Store,
    seal: Seal,
    before: str = "",
    *,
    unfinished: bool = False,
    words: Words = (),
    prefix: str = "",
) -> Iterator[Head]:
    """Yield the heads of runs, newest runs first; a store that can looks for words and prefix."""
    ordered = getattr(store, "newest_heads", None)
    if ordered is not None:
        yield from ordered(unfinished=unfinished, words=words, before=before, prefix=prefix)
        return

    def begun(head: Head) -> float:
        facts = journals.open_head(seal, head)
        return facts.created_at if facts is not None else math.inf

    found = sorted(store.heads(unfinished=unfinished), key=begun, reverse=True)
    if before:
        found = [*itertools.dropwhile(lambda head: head.run_id != before, found)][1:]
    yield from found


def _is_of(store: Store, seal: Seal, facts: RunFacts, workflow: Any) -> bool:
    """Return whether a run belongs to a workflow, whose file may have been started another way."""
    if getattr(workflow, "full_name", workflow) in (None, facts.workflow, facts.label):
        return True
    definition = getattr(workflow, "definition", None)
    return definition is not None and journals.is_of_file(
        store, seal, facts, definition.other_names, definition.file
    )


# -- finding ---------------------------------------------------------------------------------------


def call_text(run: Any) -> str:
    """Return the call of a run as ``label(arguments)``."""
    return printable(f"{run.label}({run.arguments})", 500)


def find_run(run_id: str | None) -> Run:
    """Return the run with that id, or the only run whose id begins with it.

    A child run is returned only if no other run matches.

    Without an id, return the latest run.
    """
    if run_id is None:
        latest = next((each for each in each_listed() if not run_steps.is_inner(each.facts)), None)
        if latest is None:
            raise errors.RunNotFoundError(
                f"no runs in {public_url(str(settings.store()))}", run_id=""
            )
        return latest.run
    run = known_run(open_store(settings.store()), run_id)
    if run is not None:
        return run
    begun = [*each_listed(prefix=run_id)] if run_id else []
    found = [each for each in begun if not run_steps.is_inner(each.facts)] or begun
    if not found:
        return get_run(run_id)  # its error names runs with a similar id
    if len(found) == 1:
        return found[0].run
    calls = [line_of(call_text(each.facts), 1000) for each in found[:8]]
    lines = "\n".join(
        f"  {each.run.id}  {each.status}  {ago(time.time() - each.facts.updated_at)}  "
        f"{elided(call, 60, calls, every=True)}"
        for each, call in zip(found, calls, strict=False)
    )
    more = f"\n  and {len(found) - 8} more: stepwise runs" if len(found) > 8 else ""
    raise errors.RunNotFoundError(
        f"{len(found)} runs begin with {run_id!r}; write more of the id:\n{lines}{more}",
        run_id=run_id,
    )


def find_step(run: Run, number: int) -> run_steps.StepRecord:
    """Return a step by its number.

    Raises:
        StepNotFoundError: the run has no such step.
    """
    for step in run._each_step(run._seen(1)):
        if step.number == number:
            return step
    run._facts()  # raises if it was deleted meanwhile
    raise errors.StepNotFoundError(
        f"run {run.id!r} has no step {number}. Its steps: stepwise show {shell_word(run.id)}",
        run_id=run.id,
        step=number,
    )


def unsettled() -> Iterator[tuple[Run, Overview]]:
    """Yield the runs with steps in doubt or stopped calls, each with its overview."""
    for each in listed():
        with suppress(errors.RunNotFoundError):  # deleted meanwhile
            seen = each.run._seen(1) if each.status in run_steps.UNFINISHED else None
            if seen is not None and (seen.in_doubt or seen.stops):
                yield each.run, seen


# -- current --------------------------------------------------------------------------------------


@public
@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step that is being executed.

    Args:
        name: the name of the step; empty outside a step.
        idempotency_key: a key that stays the same when this call is repeated, and that no other
            call has.  Send it to the outside system, so that the system can drop repeats.
        attempt: the number of this try of the body, from 1.
        run_id: the id of the run; empty outside a run.
    """

    name: str
    idempotency_key: str
    attempt: int
    run_id: str


def current_step() -> CurrentStep:
    """Return the step that is being executed, with its idempotency key.

    Outside a step, each call returns a new key, so that a tool also works outside a run, where
    nothing is repeated.
    """
    scope = current_scope()
    if scope is None or scope.call is None:
        return CurrentStep("", f"sw-{os.urandom(16).hex()}", 1, "")
    call = scope.call
    run_id = scope.run.run_id
    return CurrentStep(call.name, call.key or key_of(run_id, call), scope.attempt, run_id)
