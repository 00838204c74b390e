"""Open questions of a run, its calls in doubt, and people's answers to both."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepwise._calls.approvals import load_arguments
from stepwise._display.render import buttons, question_text, questions_html
from stepwise._display.words import when
from stepwise._execution.outcomes import settled
from stepwise._journal import persons
from stepwise._journal.journal import Journal, entries_of, facts_of, recorded_versions
from stepwise._journal.logs import Inbox, Message
from stepwise._journal.persons import this_person
from stepwise._journal.projection import Calls, RecordedCall, to_run_again
from stepwise._journal.records import (
    COLLECT,
    OVER,
    Entry,
    Forgotten,
    Record,
    RecordedVersion,
    Resumed,
    Ruled,
    RunFacts,
)
from stepwise._journal.run_facts import Asked, Questions, Stop, stops_in
from stepwise._journal.seal import Seal
from stepwise._runs.messages import deliver, ended_error
from stepwise._runs.steps import facts_to_go_on, known_facts, top_facts
from stepwise._runtime.facts import NamedTuple, PlainFacts, public
from stepwise._runtime.messages import shell_word
from stepwise._values.codec import Codec
from stepwise._values.unpickling import Data
from stepwise.errors import ConfigurationError, StepNotFoundError, StepwiseError
from stepwise.stores import Store

# -- questions ------------------------------------------------------------------------------------


_KEY = "answer"  # the key of every answer, so that only the first answer to a question counts


class Decision(NamedTuple):
    """A person's answer to a question.

    Args:
        note: the person's comment; for a no, the reason.
        key: the approver's key to sign with: a file, or an object that signs; or ``None``.
        passphrase: asks for the passphrase of the file.
    """

    approved: bool
    note: str
    key: Any = None
    passphrase: Callable[[], str] | None = None


@public
@dataclass(frozen=True, slots=True)
class Question(PlainFacts):
    """A question of a run that waits for a person's answer.

    Args:
        run_id: the run that asks; a run's questions include those of its child runs.
        step: the number of the call that asks; STEP on the command line.
        name: of the tool, or ``stepwise.approve``.
        text: the question.
        details: everything that a yes covers, in full; for a tool, all arguments.
        asked_at: the time of the question, in seconds since 1970.
        until: when the call stops waiting; ``None`` for never.
        ticket: the id of this question; a call that asks again gets another ticket.
        site: ``file:line`` of the call.
        approvers: the public keys of the people who may answer; empty for anyone with the store's
            key.
    """

    run_id: str
    step: int
    name: str
    text: str
    details: str
    asked_at: float
    until: float | None
    ticket: str
    site: str
    approvers: tuple[str, ...]
    _asked: Any = field(repr=False)  # an Asked: annotations of a public class name public types
    _where: Any = field(repr=False)  # the store and its seal

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the pending call, by name; loaded on access.

        Secrets, values that a framework injects, and defaults are left out.

        Raises:
            UnreadableValueError: the arguments need a class that this program does not have.
        """
        if not self._asked.payload:
            return {}
        store, seal = self._where
        codec = Codec(known_facts(store, seal, self.run_id).codec)
        return load_arguments(codec, None, self._asked.payload, self._asked.waiting.form)

    def approve(self, note: str = "", *, key: Any = None) -> None:
        """Answer with yes; see :meth:`Run.approve`."""
        self._answer(Decision(True, note, key))

    def deny(self, reason: str, *, key: Any = None) -> None:
        """Answer with no; see :meth:`Run.deny`."""
        self._answer(Decision(False, reason, key))

    @property
    def _proposed_by(self) -> str:
        """The branch that has to be adopted before the question can be answered, or empty."""
        store, seal = self._where
        top = top_facts(store, seal, known_facts(store, seal, self.run_id))
        return top.run_id if top.effects == COLLECT else ""

    def _answer(self, said: Decision) -> None:
        store, seal = self._where
        give_answer(store, seal, self.run_id, self.step, self.ticket, said)

    def __str__(self) -> str:
        return question_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(question_text(self))

    def _repr_html_(self) -> str:
        return questions_html([self])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return buttons("", [self])


class RunQuestions:
    """The questions of a run and its unfinished child runs, by one reading of their records.

    Attributes:
        open: the open questions, the run's own first.
    """

    def __init__(self, store: Store, seal: Seal, facts: RunFacts) -> None:
        self._store, self._seal, self._facts = store, seal, facts
        entries = [*entries_of(store, seal, facts)]
        self._known = Questions(entries)
        asked = self._known.waited_for(facts)
        given = self._answers() if asked else {}
        # An answer may be there that the run has not taken yet.
        self.open = [self._question(each) for each in asked if each.waiting.ticket not in given]
        children = [each.call.child for each in Calls(entries) if not each.answers]
        known = (facts_of(store, seal, child) for child in children if child)
        self._below = [RunQuestions(store, seal, each) for each in known if each is not None]
        self.open += [question for each in self._below for question in each.open]
        if facts.superseded:  # the adopted branch asks instead
            self.open = []

    def _question(self, asked: Asked) -> Question:
        waiting = asked.waiting
        call = waiting.call
        return Question(
            self._facts.run_id,
            call.number,
            call.name,
            waiting.name,
            waiting.details,
            waiting.at,
            waiting.until,
            waiting.ticket,
            call.site,
            waiting.approvers,
            asked,
            (self._store, self._seal),
        )

    def _answers(self) -> dict[str, Message]:
        """Return the first valid answer to each question of the run itself, by its ticket."""
        found: dict[str, Message] = {}
        asked = {each.waiting.ticket: each for each in self._known.asked.values()}
        for message in Inbox(self._store, self._seal, self._facts.run_id).look():
            if message.kind == "answer" and message.name not in found:
                question = asked.get(message.name)
                run_id = self._facts.run_id
                counts = message if question is None else _counted(run_id, question, message)
                if counts is not None:
                    found[message.name] = counts
        return found

    # -- answering -------------------------------------------------------------------------------

    def find(self, step: int | str) -> Question:
        """Return the open question of a step: the run's own, otherwise a child run's.

        Args:
            step: its number, or the name of the tool.

        Raises:
            StepNotFoundError: no step of that name asks, or several do; the error says who
                answered.
        """
        named = self._named(step)
        own = [each for each in named if each.run_id == self._facts.run_id] or named
        if len(own) == 1:
            return own[0]
        raise self._refusal(step, "")

    def answer(self, step: int | str, ticket: str, said: Decision) -> None:
        """Answer the question of a step; see :func:`give_answer`."""
        question = next((each for each in self._named(step) if each.ticket == ticket), None)
        if question is None:
            raise self._refusal(step, ticket)
        if question._proposed_by:
            raise ConfigurationError(
                f"run {question._proposed_by!r} is a branch, and proposes {question.name}: adopt "
                "it first, then say yes or no: branch.adopt(), or stepwise adopt "
                + shell_word(question._proposed_by)
            )
        asks = self._of(question.run_id)
        signature = _signature(question, said).encode()
        # Only the first answer with a key counts; an unsigned answer must not block the approvers.
        more: Any = {"step": question.step, "approved": said.approved, "note": said.note}
        more |= {"by": this_person(), "key": "" if question.approvers else _KEY}
        place = self._store, self._seal, asks._facts
        number, before = deliver(*place, "answer", ticket, signature, **more)
        first = asks._answers().get(ticket)
        if before is not None or (first is not None and first.number != number):
            raise self._refusal(step, ticket)  # another person was faster

    def _named(self, step: int | str) -> list[Question]:
        return [each for each in self.open if _is_of(step, each.step, each.name)]

    def _of(self, run_id: str) -> RunQuestions:
        """Return what a run asks that has an open question: this run, or one below."""
        has = (each for each in self._below if any(q.run_id == run_id for q in each.open))
        return self if run_id == self._facts.run_id else next(has)._of(run_id)

    def _last_asked(self, step: int | str) -> tuple[RunQuestions, Asked | None]:
        """Return the last question of a step, and which run asks it: this one, or one below."""
        asked = self._known.asked
        of_step = [n for n, each in asked.items() if _is_of(step, n, each.waiting.call.name)]
        if of_step:
            return self, asked[max(of_step)]
        below = (each._last_asked(step) for each in self._below)
        return next((each for each in below if each[1] is not None), (self, None))

    def _refusal(self, step: int | str, ticket: str) -> StepwiseError:
        """Return the error for an answer that no open question of the step expects.

        Args:
            ticket: the ticket that the person named; empty for the last question of the step.
        """
        asks, last = self._last_asked(step)
        wanted = ticket or (last.waiting.ticket if last is not None else "")
        given = asks._answers().get(wanted)
        instead = asks._known.instead.get(last.waiting.call.number if last is not None else 0)
        if given is not None:
            said = "yes" if given.approved else "no"
            note = f" ({given.note})" if given.note else ""
            why = (
                f"{given.by} answered that at {when(given.at)}, with {said}{note}: the first "
                "answer counts"
            )
        elif self._facts.status in OVER:
            return ended_error(self._facts)
        elif not ticket and len(self._named(step)) > 1:
            why = "several calls of that name ask; give the number of one"
        elif instead is not None:
            why = f"its call is made with other arguments now, for which step {instead} asks"
        elif ticket in asks._known.earlier:
            why = "it has asked again since, as what it is about has changed: look at it anew"
        elif last is not None and ticket != last.waiting.ticket:
            look = f"stepwise show {shell_word(asks._facts.run_id)}"
            why = f"{ticket!r} is not the ticket of what it asks; look at it: {look}"
        else:
            why = "it does not wait for an approval"
        asking = [f"{each.step} ({each.name}) of run {each.run_id!r}" for each in self.open]
        return StepNotFoundError(
            f"step {step!r} of run {self._facts.run_id!r} cannot be answered: {why}. Steps that "
            f"wait for an answer: {', '.join(asking) or 'none'}",
            run_id=self._facts.run_id,
            step=step,
        )


def give_answer(
    store: Store, seal: Seal, run_id: str, step: int | str, ticket: str, said: Decision
) -> None:
    """Answer the question of a step; durable when this returns.

    Args:
        step: its number, or the name of the tool.
        ticket: of the question that the person has seen.

    Raises:
        StepNotFoundError: the step no longer asks this question; the error says who answered.
        RunEndedError: the run has ended.
        RunNotFoundError: the run no longer exists.
        ConfigurationError: a no without a reason, or an answer that an approver has to sign.
    """
    note = said.note
    if not isinstance(note, str) or not (said.approved or note.strip()):
        raise ConfigurationError(
            f"a no needs a reason, and {note!r} is none: the workflow gets it, and so does whoever "
            'looks at the run: question.deny("too expensive")'
        )
    RunQuestions(store, seal, facts_to_go_on(store, seal, run_id)).answer(step, ticket, said)


def _signature(question: Question, said: Decision) -> str:
    """Return the signature of an answer; empty if none is needed and no key is given.

    Raises:
        ConfigurationError: an approver has to sign, and the key is missing or not an approver's.
    """
    approvers = persons.approvers_of(question.approvers)
    names = ", ".join(map(str, approvers))
    if said.key is None:
        if not approvers:
            return ""
        command = f"{shell_word(question.run_id)} {question.step} {question.ticket}"
        raise ConfigurationError(
            f"step {question.step} ({question.name}) of run {question.run_id!r} takes an answer "
            f"that one of its approvers has signed: {names}. With the key of one: stepwise "
            f"{'approve' if said.approved else 'deny'} {command} --key FILE"
        )
    waiting, note = question._asked.waiting, said.note
    text = persons.statement(question.run_id, waiting, approved=said.approved, note=note)
    public, signature = persons.sign(said.key, text, said.passphrase)
    if approvers and not persons.signer(approvers, signature):
        raise ConfigurationError(
            f"the key {public} is none of the approvers of step {question.step} ({question.name}) "
            f"of run {question.run_id!r}: {names}"
        )
    return signature


def _is_of(step: int | str, number: int, name: str) -> bool:
    return str(step) in (str(number), name)


def _counted(run_id: str, asked: Asked, message: Message) -> Message | None:
    """Return the answer, with the name of its signer; ``None`` if a needed signature is missing.

    The run itself verifies the signature again.
    """
    waiting = asked.waiting
    if not waiting.approvers:
        return message
    try:
        approvers = persons.approvers_of(waiting.approvers)
    except ConfigurationError:  # the extra for signatures is not installed
        return None
    said = persons.statement(run_id, waiting, approved=message.approved, note=message.note)
    signature = message.value.decode("utf-8", "replace")
    if persons.why_unsigned(approvers, said, signature):
        return None
    return message._replace(by=persons.signer(approvers, signature))


# -- settling -------------------------------------------------------------------------------------


UNSET: Any = object()


def choose(run_id: str, step: int | str, among: list[RecordedCall], what: str) -> RecordedCall:
    """Return the call that a number or a name means.

    Raises:
        StepNotFoundError: no call matches, or several do.
    """
    found = [each for each in among if _is_of(step, each.call.number, each.call.name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{each.call.number} ({each.call.name})" for each in among[:20])
    problem = f"is not a step {what}" if not found else "names more than one; give its number"
    raise StepNotFoundError(
        f"{step!r} of run {run_id!r} {problem}. Steps {what}: {listed or 'none'}",
        run_id=run_id,
        step=step,
    )


class _Said(NamedTuple):
    """A person's answer about a step.

    Args:
        happened: for a step in doubt, whether it happened; ``value`` is what it returned.
        same: for a stopped call, whether it is the recorded call.
        stop: the number of the stopped call's record; needed if several calls are possible.
    """

    happened: bool | None = None
    value: Any = None
    same: bool | None = None
    stop: int | None = None


def said_of(
    landed: Any, did_not_happen: bool, same: bool, another: bool, stop: int | None
) -> _Said:
    """Return the answer that the arguments of ``resolve`` give.

    Raises:
        ConfigurationError: there is not exactly one answer.
    """
    given = [landed is not UNSET, did_not_happen, same, another]
    if sum(map(bool, given)) != 1:
        raise ConfigurationError(
            "give exactly one answer: for a step in doubt, resolve(step, landed=value) or "
            "resolve(step, did_not_happen=True); for a call at which the run stopped because of a "
            "step, resolve(step, same=True) or resolve(step, another=True)"
        )
    if same or another:
        return _Said(same=bool(same), stop=stop)
    if stop is not None:
        raise ConfigurationError(
            "stop= chooses a stopped call, for same=True and another=True only"
        )
    return _Said(happened=False) if did_not_happen else _Said(happened=True, value=landed)


def to_record(
    run_id: str, step: int | str, entries: list[Entry], said: _Said, codec: Codec
) -> list[tuple[Record, Data]]:
    """Build the records of a person's answer for a step; none if the answer is recorded already.

    Raises:
        StepNotFoundError: no such step is in doubt, or no stopped call could be the step.
        ConfigurationError: the answer contradicts an earlier one about another stopped call.
        NotRecordableError: the value cannot be recorded.
    """
    if said.same is not None:
        ruled = _ruling(run_id, step, entries, said.same, said.stop)
        return [] if ruled is None else [(ruled, b"")]
    # Steps in doubt, and the cancelled calls that the workflow handled.
    among = [
        each
        for each in Calls(entries)
        if each.in_doubt or (each.cancelled and each.may_have_happened and not each.call.child)
    ]
    recorded = choose(run_id, step, among, "in doubt")
    happened, is_open = bool(said.happened), recorded.outcome is None
    record, payload = settled(
        codec, recorded.call, landed=happened, value=said.value, is_open=is_open
    )
    return [(record._replace(by=this_person()), payload)]


def settle_edited(
    journal: Journal, step: int | str, entries: list[Entry], *, same: bool
) -> list[tuple[Record, Data]] | None:
    """Settle what becomes of results that an edited step has recorded.

    Return the records to write, or ``None`` if the run has not asked about this step.

    Args:
        same: the results stay in use; else the step runs again.
    """
    if any(step in (each.call.name, *each.steps) for each in stops_in(entries)):
        return None
    store, seal = journal.store, journal.seal
    older = [e for e in recorded_versions(store, seal, journal.run_id) if e.used_by]
    calls: dict[int, RecordedVersion] = {}
    answers = [each for each in Calls(entries) if each.answers]
    known = {each.call.number: each.call for each in answers}
    for each, number in itertools.product(older, known):
        call, inside = known[number], each._replace(child="")
        own = (call.code, call.name) == (each.id, each.name) and not each.child
        if own or (call.child and each.child and inside.key in store.names(call.child, inside.key)):
            calls[number] = each
    chosen = {number: each for number, each in calls.items() if step in (number, each.name)}
    effects = [number for number in chosen if known[number].effect and not known[number].child]
    facts = facts_of(store, seal, journal.run_id)
    is_pruned = facts is not None and facts.pruned > 0
    again = () if is_pruned else to_run_again(chosen, answers)
    gone = [each for each in older if is_pruned and each.name == step]
    versions = {each.key: each for each in (*chosen.values(), *gone)}
    if not versions or ((effects or not again) and not same):
        return None
    for version in versions.values():
        kept, used_by = (this_person(), version.used_by) if same else ("", "")
        said = version._replace(kept=kept, used_by=used_by)
        journal.put(said.key, [*said], b"", durable=True)
    if same:
        return []
    return [(Forgotten(again, time.time(), this_person()), b"")]


# -- stopped calls -------------------------------------------------------------------------------


def _ruling(
    run_id: str, step: int | str, entries: list[Entry], same: bool, wanted: int | None
) -> Ruled | None:
    """Build a ruling on a stopped call; return ``None`` if the ruling is recorded already."""
    stops = stops_in(entries)
    if not stops:
        raise StepNotFoundError(
            f"run {run_id!r} has not stopped at a call that could be a recorded one. Run the "
            "program again: if it stops at such a call, it names the step to resolve",
            run_id=run_id,
            step=step,
        )
    steps = {number for each in stops for number in each.steps}
    among = [each for each in Calls(entries) if each.call.number in steps]
    number = choose(run_id, step, among, "that a stopped call could be").call.number
    chosen = _stop_at(run_id, number, stops, wanted)
    for other in stops:
        if same and other is not chosen and (other.ruled or ())[1:3] == ((number,), True):
            raise ConfigurationError(
                f"step {number} of run {run_id!r} was resolved as the call of stop {other.number}, "
                f"{_text(other)}, and a recorded call answers one call only. To take that back: "
                f"stepwise resolve {shell_word(run_id)} {number} --another --stop {other.number}"
            )
    beside = not same and _were_beside(chosen, entries)
    said = (number,) if same else chosen.steps, same, time.time(), beside, this_person()
    ruled = Ruled(chosen.call, *said)
    return None if ruled[1:3] == (chosen.ruled or ())[1:3] else ruled


def _were_beside(stop: Stop, entries: list[Entry]) -> bool:
    """Return whether the attempts that made the recorded calls also called the stopped tool."""
    made = min(stop.records, default=0)
    for entry in entries:
        if isinstance(entry.record, Resumed) and entry.number > made:
            return False
        if entry.call is not None and entry.call.name == stop.call.name:
            return True
    return False


def _stop_at(run_id: str, number: int, stops: list[Stop], wanted: int | None) -> Stop:
    found = [each for each in stops if number in each.steps and wanted in (None, each.number)]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{each.number} is {_text(each)}" for each in stops if number in each.steps)
    raise StepNotFoundError(
        f"stop {wanted} of run {run_id!r} is not a call that could be step {number}: {listed}"
        if wanted is not None
        else f"several stopped calls of run {run_id!r} could be step {number}; choose one with "
        f"stop= or --stop: {listed}",
        run_id=run_id,
        step=number,
    )


def _text(stop: Stop) -> str:
    at = f" at {stop.call.site}" if stop.call.site else ""
    return f"{stop.call.name}({stop.call.arguments}){at}"
