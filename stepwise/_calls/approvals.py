"""Approvals: calls that a person must allow before they run, and ``approve``.

A call asks before its intent is written.  The question is a record with a random ticket, the
arguments, and the digests of its *terms*: everything that the yes is bound to.  An answer names the
ticket.  So a yes is good for one call with these arguments, for its retries, and for another
attempt after a crash.  When the yes arrives, the terms are compared again.  If they are equal, the
call runs with copies of the recorded arguments, so that nobody can change them in between.  If they
differ, the call asks again.

All arguments belong to the terms, including arguments at their default and arguments that ``key=``
and ``ignore=`` leave out of the identity of the call.  Secrets, the instance of a method, and
arguments injected by a framework come from the call.  All of them but the injected ones are
compared with their values when the question was asked.  The digest of an argument is an
authentication code under the key of the store: nobody can find a secret, or one of few possible
values, by trying.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import json
import os
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, Protocol

from stepwise import errors
from stepwise._calls.call import Performance, record_failure, record_settled
from stepwise._calls.doubt import in_doubt
from stepwise._calls.driver import Attempt, Core, Result, Write, written
from stepwise._calls.waiting import MessageWait, check_may_wait, in_seconds, paused, waited
from stepwise._execution.active_run import ActiveRun, Scope, current_scope
from stepwise._execution.location import Origin
from stepwise._execution.outcomes import settled
from stepwise._execution.waits import waits
from stepwise._identity import identity
from stepwise._journal.journal import entries_of
from stepwise._journal.logs import Message
from stepwise._journal.persons import Approver, signer, statement, why_unsigned
from stepwise._journal.projection import RecordedCall
from stepwise._journal.records import Answered, Call, Refused, Waiting
from stepwise._journal.run_facts import Asked, Questions
from stepwise._journal.seal import Seal
from stepwise._matching.pool import Match, Verdict, differing
from stepwise._matching.subjects import Identity, Watched
from stepwise._runtime import clock
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import notice, reports
from stepwise._values import digest
from stepwise._values import digest as _digest
from stepwise._values.codec import JSON, Codec, Encoded
from stepwise._values.data import parameter_types
from stepwise._values.digest import cell_content
from stepwise._values.preview import Hiding, Secrets, preview
from stepwise._values.trees import NOT_STATE, attributes

# -- terms ----------------------------------------------------------------------------------------


class Asks(Protocol):
    """A tool whose calls need a person's yes."""

    name: str
    what: str
    approve: bool | Callable[..., Any]
    approvers: tuple[Approver, ...]
    in_doubt: Any
    function: Callable[..., Any]
    parameters: identity.Parameters
    hiding: Hiding


class Agreement(NamedTuple):
    """The terms of one call, as they are now.

    Args:
        stored: the passed arguments, encoded, without secrets and injected arguments.
        arguments: the same arguments, decoded again.
        encoded: canonical bytes of every part of the terms, by the name of the part.
        details: the text that the person is shown.
    """

    stored: Encoded
    arguments: Mapping[str, Any]
    encoded: Mapping[str, bytes]
    details: str

    def digest(self, seal: Seal, ticket: str) -> str:
        """Return the digests of the terms, as the text that is recorded with a question."""
        tags = {name: _tag(seal, ticket, name, held) for name, held in self.encoded.items()}
        return json.dumps(tags)


def terms_of(tool: Asks, codec: Codec, bound: Mapping[str, Any], instance: object) -> Agreement:
    """Return the terms of a call.

    Args:
        bound: the arguments by name, without the ``instance`` of a method.

    Raises:
        ConfigurationError: an argument has no digest, or cannot be recorded.
    """
    passed, defaults = tool.parameters.all_of(bound)
    subject = _of_subject(tool, instance)
    encoded = _encodings(tool, passed, defaults, subject, instance)
    kept = dict(tool.hiding.stored(passed))
    try:
        stored = _dumped(codec, tool, kept)
        found = codec.secrets.found_in(stored.data)
        arguments = load_arguments(codec, tool, bytes(stored.data), stored.form)
    except errors.NotRecordableError as problem:
        raise _refused(tool, str(problem)) from problem
    if found:
        raise _refused(
            tool,
            f"an argument holds the secret {found!r}, and would be recorded with the question. "
            "Name its parameter in secret=",
        )
    back = {name: _strictly(tool, name, value) for name, value in arguments.items()}
    changed = [name for name in kept if back.get(name) != encoded[name]]
    if changed:
        raise _refused(
            tool,
            f"the argument {changed[0]!r} does not come back from the store as it was passed. Pass "
            "plain data: a text, an id, a path",
        )
    given = {**passed, **arguments, **defaults}
    details = _details(tool, codec.secrets, given, subject)
    return Agreement(stored, arguments, encoded, details)


def digested(tool: Asks, bound: Mapping[str, Any], instance: object) -> Mapping[str, bytes]:
    """Return the canonical bytes of every part of the terms, as they are now."""
    subject = _of_subject(tool, instance)
    return _encodings(tool, *tool.parameters.all_of(bound), subject, instance)


def differing_parts(digest: str, terms: Mapping[str, bytes], seal: Seal, ticket: str) -> list[str]:
    """Return the names of the parts in which terms differ from the terms of a question."""
    tags = json.loads(digest) if digest else {}
    names = dict.fromkeys([*terms, *tags])
    return [n for n in names if n not in terms or not _is_tag(seal, ticket, n, terms[n], tags)]


def _tag(seal: Seal, ticket: str, name: str, held: bytes) -> str:
    return seal.tag(f"approval {ticket} {name}", held).hex()


def _is_tag(seal: Seal, ticket: str, name: str, held: bytes, tags: Mapping[str, str]) -> bool:
    tag = bytes.fromhex(tags.get(name, ""))
    return seal.is_tag(f"approval {ticket} {name}", held, tag)


def _refused(tool: Asks, why: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"approve= of {tool.what}: a yes is bound to all arguments, which are recorded with the "
        f"question, and {why}"
    )


# -- recording -----------------------------------------------------------------------------------


def _dumped(codec: Codec, tool: Asks, kept: Mapping[str, Any]) -> Encoded:
    what = f"the arguments of {tool.what}, which needs an approval,"
    if not codec.data_only:
        return codec.encode(dict(kept), what)
    kinds = parameter_types(tool.function)
    texts = {
        name: _text(codec.encode(value, f"the argument {name!r}", kinds.get(name, Any)))
        for name, value in kept.items()
    }
    return Encoded(json.dumps(texts).encode(), JSON)


def _text(encoded: Encoded) -> str:
    return bytes(encoded.data).decode("utf-8", "surrogatepass")


def load_arguments(
    codec: Codec, tool: Asks | None, data: bytes, form: str | None
) -> dict[str, Any]:
    """Load the arguments that were recorded with a question.

    Args:
        tool: the tool whose annotations give their types; ``None`` for plain data.

    Raises:
        UnreadableValueError: the arguments cannot be loaded here.
    """
    if form != JSON:
        loaded: dict[str, Any] = codec.decode(data, form)
        return loaded
    kinds = parameter_types(tool.function) if tool is not None else {}
    return {
        name: codec.decode(text.encode("utf-8", "surrogatepass"), JSON, kinds.get(name, Any))
        for name, text in json.loads(data).items()
    }


# -- digests -------------------------------------------------------------------------------------


def _encodings(
    tool: Asks,
    passed: Mapping[str, Any],
    defaults: Mapping[str, Any],
    subject: Mapping[str, Any],
    instance: object,
) -> dict[str, bytes]:
    found = {name: _strictly(tool, name, value) for name, value in passed.items()}
    for name, value in defaults.items():
        found[name] = _leniently(value, None)
    for name, value in subject.items():
        found[name] = _leniently(value, instance)
    return found


def _strictly(tool: Asks, name: str, value: Any) -> bytes:
    try:
        return _digest.encode(value)
    except errors.DigestError as error:
        reason = str(error).replace("(at value", f"(at {name}")
        raise _refused(
            tool,
            f"{name!r} has no digest: {reason}. Hold it in a variable of the module or in the "
            "instance of a method, or have the caller pass data from which the tool makes it",
        ) from None


def _leniently(value: Any, instance: object) -> bytes:
    try:
        return _digest.encode(value)
    except errors.DigestError:  # use the class, and what is known of the value
        return identity.digest_part(value, () if instance is None else (instance,))[0].encode()


def _of_subject(tool: Asks, instance: object) -> dict[str, Any]:
    """Return the attributes of the instance, and captured variables other than functions.

    Attributes that ``==`` and ``ignore=`` leave out are included: the call may act on them.
    """
    found: dict[str, Any] = {}
    instance = _made_of(tool.function) if instance is None else instance
    if instance is not None and not isinstance(instance, type):
        held = attributes(instance)
        found = {f"self.{name}": held[name] for name in held if name not in NOT_STATE}
        cls: Any = type(instance)
        read = identity.reader_of(cls)
        if read is not None:
            found[identity.ITEMS] = read(instance)
    for name, cell in identity.captured(tool.function).items():
        value = cell_content(cell)
        if identity.as_function(value) is None:
            found[f"closure.{name}"] = value
    return found


def _made_of(function: Any) -> Any:
    """Return the callable object, or the instance of the bound method, that a tool wraps."""
    given = getattr(function, "__wrapped__", function)
    while isinstance(given, functools.partial):
        given = given.func
    if inspect.ismethod(given):
        return given.__self__
    return None if inspect.isroutine(given) else given


# -- what the person is shown --------------------------------------------------------------------


def _details(
    tool: Asks, secrets: Secrets, given: Mapping[str, Any], subject: Mapping[str, Any]
) -> str:
    lines = []
    for name, value in given.items():
        text = tool.hiding.instead(name, value, ignored=False)
        lines.append(_line(name, in_full(value, secrets.mask) if text is None else text))
    for name, value in subject.items():
        text = tool.hiding.instead(name, value, ignored=False)
        lines.append(_line(name, preview(value, mask=secrets.mask) if text is None else text))
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    """Return ``name = text``; the lines of a longer text follow below, each after a bar."""
    if "\n" not in text:
        return f"{name} = {text}"
    return "\n".join([f"{name} =", *(f"  | {line}" for line in text.split("\n"))])


def in_full(value: Any, mask: Callable[[str], str]) -> str:
    """Return the whole value as text; a text of several lines is returned as it is."""
    if isinstance(value, str) and "\n" in value:
        return mask(value)
    if isinstance(value, (str, int, float, bytes, type(None))):
        return mask(repr(value))
    import pprint  # on use: few programs ask for an approval

    class Printer(pprint.PrettyPrinter):
        """A printer that shows the attributes of an instance whose class has no ``__repr__``."""

        def format(
            self, obj: Any, context: dict[int, int], maxlevels: int, level: int
        ) -> tuple[str, bool, bool]:
            cls: Any = type(obj)
            if cls in (set, frozenset) and obj:  # in one order: an approver signs this text
                shown = sorted(self.format(e, context, maxlevels, level + 1)[0] for e in obj)
                text = f"{{{', '.join(shown)}}}"
                return text if cls is set else f"frozenset({text})", False, False
            if cls.__repr__ is not object.__repr__ or id(obj) in context:
                return super().format(obj, context, maxlevels, level)
            context[id(obj)] = 1
            held = attributes(obj).items()
            texts = [f"{n}={self.format(v, context, maxlevels, level + 1)[0]}" for n, v in held]
            del context[id(obj)]
            return f"{cls.__qualname__}({', '.join(texts)})", False, False

    try:
        return mask(Printer(width=88, sort_dicts=False).pformat(value))
    except Exception as error:  # the user's __repr__: the digest binds the yes all the same
        return f"<{type(value).__qualname__}: {type(error).__name__} in repr>"


# -- approvals ------------------------------------------------------------------------------------


_SHOWN = "what the person is shown"


class _Permission(NamedTuple):
    """A call that may run.

    Args:
        call: the call, with copies of the arguments.
        asked: the question that was answered with yes; ``None`` if no approval was needed.
    """

    call: ApprovedCall
    asked: Asked | None


class ApprovedCall(Performance):
    """One call of a tool with ``approve=``."""

    __slots__ = ()

    def conduct(self, call: Call, origin: Origin, match: Match) -> Core:
        """Ask for permission, run the call, and record its outcome."""
        active, answer = self.scope.run, None
        if match.verdict is Verdict.DOUBT:
            answer = yield from self.decided(call, match.recorded[0])
        while answer is None:
            permission = yield from self._permission(call, match)
            if isinstance(permission, Result):
                inner = Scope(active, call, (*self.scope.around, call.number), 0)
                yield from record_failure(
                    self.scope,
                    inner,
                    permission,
                    None,
                    clean=True,
                    helper=origin.helper,
                )
                return permission
            yield from self._admit()  # SIGTERM may have come while it waited
            made, asked = permission
            ticket = asked.waiting.ticket if asked is not None else ""
            made.takes_off(call)
            try:
                answer = yield from made.announced(call, match, ticket)
                if answer is not None:
                    break
                if not made._changed(asked):
                    return (yield from made.carried_out(call, origin, match))
                # Other tasks had their turn while the intent was written.
                if match.verdict is Verdict.DOUBT:
                    raise active.stop(in_doubt(active, match.recorded[0]))
                yield from record_settled(
                    self.scope, call, settled(active.codec, call, landed=False)
                )
            finally:
                made.landed(call)
        return answer

    def watched(self) -> Watched:
        """Return the arguments, marked as copies: the caller does not see changes to them."""
        return (
            super()
            .watched()
            ._replace(
                unrecorded="which is a copy: a tool with approve= gets the arguments that were "
                "recorded with its question",
                copies=True,
            )
        )

    @property
    def _tool(self) -> Asks:
        tool: Any = self.performer
        return tool  # type: ignore[no-any-return]

    @property
    def _instance(self) -> Any:
        """The instance of the method: the argument that is not bound by name."""
        taken = self._tool.parameters.has_instance(self.args, self.bound)
        return self.args[0] if taken else None

    def _terms(self, active: ActiveRun) -> Agreement:
        return terms_of(self._tool, active.codec, self.bound, self._instance)

    def _with(self, arguments: Mapping[str, Any]) -> ApprovedCall:
        """Return this call with other objects as its arguments."""
        args, kwargs = self._tool.parameters.replaced(self.args, self.kwargs, self.bound, arguments)
        bound = {**self.bound, **arguments}
        return type(self)(self.performer, self.scope, self.identity, bound, args, kwargs)

    def _differs(self, asked: Asked, terms: Mapping[str, bytes]) -> list[str]:
        seal, waiting = self.scope.run.journal.seal, asked.waiting
        return differing_parts(waiting.digest, terms, seal, waiting.ticket)

    def _why_anew(self, call: Call, asked: Asked | None, terms: Agreement) -> list[str]:
        """Return the parts in which a call differs from what its question shows."""
        if asked is None:
            return []
        why = self._differs(asked, terms.encoded)
        if not why and self._tool.approvers:
            # An approver signs the shown text, so the call must run with exactly what is shown.
            now, then = self._question(call, terms).waiting, asked.waiting
            same = (now.name, now.details) == (then.name, then.details)
            why = [] if same else [_SHOWN]
        return why

    def _changed(self, asked: Asked | None) -> bool:
        """Return whether the call differs from what was allowed."""
        return asked is not None and bool(
            self._differs(asked, digested(self._tool, self.bound, self._instance))
        )

    # -- the permission --------------------------------------------------------------------------

    def _permission(self, call: Call, match: Match) -> Generator[Any, Result, _Permission | Result]:
        """Return the call that may run, or the failure: a denial or a cancellation."""
        active, recorded = self.scope.run, next(iter(match.recorded), None)
        doubtful = match.verdict is Verdict.DOUBT and self._tool.in_doubt == "retry"
        asked = _asked_before(active, recorded, self._tool.approvers)
        current, terms = self, self._terms(active)
        if asked is None and not (yield from self._is_needed(terms)):
            return _Permission(self._with(terms.arguments), None)
        if asked is None:
            check_may_wait(self.scope, f"{call.name}, which needs an approval,")
        while True:
            why = self._why_anew(call, asked, terms)
            if doubtful and recorded is not None and (asked is None or why or asked.answer is None):
                raise active.stop(in_doubt(active, recorded, _no_yes(call, why)))
            if asked is None or why:
                _tell_changed(active, call, asked, why)
                asked, recorded = self._question(call, terms), None
            if asked.answer is None:
                got = yield from self._answer(call, asked, recorded)
                if not isinstance(got, Answered):
                    return got
                asked = asked._replace(answer=got)
            answer = asked.answer
            assert answer is not None
            problem = _why_unsigned(active, self._tool.approvers, asked.waiting, answer)
            if problem:  # somebody wrote the answer into the journal
                if doubtful and recorded is not None:
                    raise active.stop(in_doubt(active, recorded, _no_yes(call, [])))
                notice(f"run {active.run_id}: {call.name} asks again: of its answer, {problem}")
                asked, recorded = self._question(call, terms), None
                continue
            if not answer.approved:
                return Result(error=denied(active.run_id, call, answer))
            try:
                form = asked.waiting.form
                arguments = load_arguments(active.codec, self._tool, asked.payload, form)
            except errors.UnreadableValueError as problem:
                notice(f"run {active.run_id}: {call.name} asks again, since {problem}")
                asked, recorded = self._question(call, terms), None
                continue
            current = current._with(arguments)
            if not current._changed(asked):
                return _Permission(current, asked)
            terms = current._terms(active)

    def _is_needed(self, terms: Agreement) -> Generator[Any, Result, bool]:
        asking = self
        if callable(self._tool.approve):  # with copies: the function may change its arguments
            codec, (data, form) = self.scope.run.codec, terms.stored
            asking = self._with(load_arguments(codec, self._tool, bytes(data), form))
        return (yield from _is_needed(self._tool, asking.args, asking.kwargs))

    def _question(self, call: Call, terms: Agreement) -> Asked:
        ticket, now = new_ticket(), clock.now()
        waiting = Waiting(
            call,
            "approval",
            f"make this call of {call.name}?",
            ticket=ticket,
            digest=terms.digest(self.scope.run.journal.seal, ticket),
            details=terms.details,
            form=terms.stored.form,
            at=now,
            approvers=tuple(map(" ".join, self._tool.approvers)),
        )
        return Asked(waiting, bytes(terms.stored.data))

    def _answer(
        self, call: Call, asked: Asked, recorded: RecordedCall | None
    ) -> Generator[Any, Result, Answered | Result]:
        """Wait for the answer, and record it."""
        active = self.scope.run
        found = yield from waited(
            self.scope,
            call,
            asked.waiting,
            lambda _: self._look(active, asked),
            recorded,
            asked.payload,
        )
        assert found is not None  # the wait has no time limit
        if found.error is not None:
            return found
        record = answer_in(found.value, call, self._tool.approvers)
        _, cancelled = written(active, (yield Write(active, (record, b""))))
        return record if cancelled is None else Result(error=cancelled)

    def _look(self, active: ActiveRun, asked: Asked) -> Result | None:
        """Return the answer to a question, or None while there is none."""
        return answered(active, asked.waiting, self._tool.approvers)


def new_ticket() -> str:
    """Return an unguessable text that names one question."""
    return f"ask-{os.urandom(6).hex()}"


def answered(
    active: ActiveRun, waiting: Waiting, approvers: Collection[Approver] = ()
) -> Result | None:
    """Return the first valid answer to a question, or None while there is none."""
    while (message := active.inbox.answer(waiting.ticket)) is not None:
        call = waiting.call
        problem = _why_unsigned(active, approvers, waiting, answer_in(message, call))
        if not problem:
            return Result(message)
        if active.inbox.ignore(message):
            refused = Refused(message.number, call.number, message.name, problem, clock.now())
            active.write((refused, b""), durable=False)
            notice(
                f"run {active.run_id}: message {message.number} ({message.by}) is no answer to "
                f"step {call.number}, {call.name}: {problem}. It still waits for one"
            )
    return None


def answer_in(message: Message, call: Call, approvers: Collection[Approver] = ()) -> Answered:
    """Return the record of an answer that the call takes now."""
    signature = message.value.decode("utf-8", "replace")
    by = signer(approvers, signature) if approvers else ""
    said = message.approved, by or message.by, message.note, message.number, message.at
    return Answered(call.number, message.name, *said, clock.now(), signature)


def _why_unsigned(
    active: ActiveRun, approvers: Collection[Approver], waiting: Waiting, answer: Answered
) -> str:
    """Return why an answer lacks the signature that a tool requires, or "" if it has one."""
    if not approvers:
        return ""
    said = statement(active.run_id, waiting, approved=answer.approved, note=answer.note)
    return why_unsigned(approvers, said, answer.signature)


def denied(run_id: str, call: Call, answer: Answered) -> errors.ApprovalDenied:
    """Return the error for a call that a person denied."""
    why = f": {answer.note}" if answer.note else ""
    return errors.ApprovalDenied(
        f"{answer.by or 'somebody'} denied step {call.number} of run {run_id!r}, "
        f"{call.name}({call.arguments}){why}",
        run_id=run_id,
        step=call.number,
        by=answer.by,
        note=answer.note,
    )


def _asked_before(
    active: ActiveRun, recorded: RecordedCall | None, approvers: Collection[Approver]
) -> Asked | None:
    """Return the question of a recorded call that still holds.

    A question holds while it has no answer, or an answer that the call has not acted on yet. If the
    call has begun since, a yes holds until the call has happened.
    """
    if recorded is None:
        return None
    wait = recorded.wait
    if wait is not None:
        wait = wait._replace(approvers=tuple(map(" ".join, approvers)))  # as in the code now
        asked = Asked(wait, recorded.origin.payload, recorded.answer)
        return asked if wait.kind == "approval" and wait.ticket else None
    journal = active.journal
    known = Questions(entries_of(journal.store, journal.seal, active.facts))
    last = known.asked.get(recorded.call.number)
    yes = last is not None and last.answer is not None and last.answer.approved
    return last if yes else None


def _parts(why: list[str]) -> str:
    return " and ".join(each if each == _SHOWN else identity.shown_part(each) for each in why)


def _no_yes(call: Call, why: list[str]) -> str:
    if not why:
        return f"{call.name} may have been made, and nobody has approved it"
    return f"{call.name} may have been made, and {_parts(why)} is not what was approved"


@reports
def _tell_changed(active: ActiveRun, call: Call, asked: Asked | None, why: list[str]) -> None:
    run_id, number = active.run_id, call.number
    if asked is not None:
        changed = _parts(why)
        what = "were" if len(why) > 1 else "was"
        answer = "its answer was" if asked.answer else "an answer to that is"
        notice(
            f"run {run_id}: step {number} ({call.name}) asks again, since {changed} {what} "
            f"different when it asked ({answer} for other arguments)"
        )
        return
    other = active.pool.get(call.instead) if call.instead else None
    if other is not None and other.wait is not None:
        changed = (
            " and ".join(map(identity.shown_part, differing(call, other.call))) or "its arguments"
        )
        notice(
            f"run {run_id}: {call.name} is called with other arguments than those of step "
            f"{call.instead}, which asked for an approval ({changed}): step {number} asks instead. "
            f"An answer to step {call.instead} does not count"
        )


# -- outside of runs -----------------------------------------------------------------------------


def refuse_outside(tool: Asks, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Core:
    """Refuse a call that needs an approval and is made outside a run.

    Raises:
        OutsideRunError: nobody could be asked.
    """
    if (yield from _is_needed(tool, args, kwargs)):
        raise errors.OutsideRunError(
            f"{tool.what} needs an approval, and was called outside of any run, so that nobody "
            "could be asked: call it in a function with @workflow. In a test, the function itself "
            f"is {tool.name}.__wrapped__",
            run_id="",
        )
    return Result()


def _is_needed(
    tool: Asks, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[Any, Result, bool]:
    if not callable(tool.approve):
        return bool(tool.approve)
    asked = yield Attempt(tool.approve, args, kwargs, None, f"approve= of {tool.name}")
    needed = asked.unwrap()
    if not isinstance(needed, bool):
        raise errors.ConfigurationError(
            f"approve= of {tool.what} returned {needed!r}: it returns True if the call needs an "
            "approval, else False"
        )
    return needed


# -- asking ---------------------------------------------------------------------------------------


@waits
def approve(
    question: str,
    details: Any = None,
    timeout: float | dt.timedelta | None = None,
) -> Any:
    """Ask a person, and return the note of the person who says yes.

    ``stepwise approve RUN STEP`` or ``Run.approve(step)`` answers the question, from any process or
    a notebook.  In a coroutine function the call is awaited; elsewhere it blocks.  To approve a
    call of a tool, use ``@tool(side_effect=True, approve=True)``, which binds the yes to the
    arguments.

    Args:
        question: the question for the person.
        details: any value, shown as text with the question.  Other details make another question,
            which an earlier yes does not answer.
        timeout: seconds, or a ``timedelta``, after which the call stops waiting; ``None`` to wait
            without limit.

    Returns:
        the note, a text; empty if the person wrote none.

    Raises:
        ApprovalDenied: a person said no.
        WaitTimeoutError: nobody answered in time.
        OutsideRunError: the call was made outside a run, where nobody could answer.
        ConfigurationError: an argument is invalid, or the call is made inside a step.
    """
    if not isinstance(question, str) or not question.strip():
        raise errors.ConfigurationError(
            f"stepwise.approve({question!r}): the question is a text that is not empty: "
            'approve("Send the letter?", details=letter)'
        )
    length = None if timeout is None else in_seconds(timeout, "approve", "timeout=")
    return paused(_Approval(question, details, length))


class _Approval(MessageWait):
    returns = str
    missing = "nobody answered"
    act = "answer"

    def __init__(self, question: str, details: Any, length: float | None) -> None:
        given = {"question": question, "details": details, "timeout": length}
        shown = {name: value for name, value in given.items() if value is not None}
        scope = current_scope()
        self._details = ""
        if details is not None:
            mask = scope.run.secrets.mask if scope is not None else str
            self._details = in_full(details, mask)
        super().__init__("approve", shown, {})
        self.about, self.length = question, length

    def identity(self) -> Identity:
        # The full digests, not prefixes: a yes is for exactly these details.
        asked = {"question": self.about, "details": self._details}
        parts = {name: digest.digest(text) for name, text in asked.items()}
        return Identity(digest.combine(*parts.values()), parts)

    def waiting(self, call: Call) -> Waiting:
        now, length = clock.now(), self.length
        return Waiting(
            call,
            "approval",
            self.about,
            None if length is None else now + length,
            length,
            new_ticket(),
            details=self._details,
            at=now,
        )

    def look(self, active: ActiveRun, waiting: Waiting) -> Result | None:
        found = answered(active, waiting)
        if found is None:
            return None
        message, call = found.value, waiting.call
        answer = answer_in(message, call)
        active.write((answer, b""))
        if message.approved:
            return Result((None, message.note))
        return Result(error=denied(active.run_id, call, answer))
