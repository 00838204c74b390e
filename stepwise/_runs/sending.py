"""Sending to a run from outside of it: signals, and whatever else lies in its inbox."""

from __future__ import annotations

import json
import math
from typing import Any

from stepwise._journal.bell import Bell
from stepwise._journal.inbox import Inbox, MessageKind
from stepwise._journal.journal import facts_of
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import open_waits
from stepwise._runtime.messages import notice, reports, shell_word
from stepwise._runtime.options import check_signal
from stepwise._values.data import json_bytes, plain
from stepwise._values.schemas import misfit
from stepwise.errors import (
    ConfigurationError,
    RunEndedError,
    RunNotFoundError,
    SignalRefusedError,
)
from stepwise.stores import Store

__all__ = ["ENDED", "deliver", "ended_error", "refuse_ended", "send"]

LARGEST = 16_000_000  # bytes of JSON; all that was sent is in the memory of the process that waits
ENDED = ("completed", "failed", "cancelled")


def send(store: Store, seal: Seal, run_id: str, name: str, value: Any, key: str | None) -> int:
    """Put a signal into a run's inbox; see :meth:`stepwise.Run.send`."""
    check_signal(name)
    if key is not None and not (isinstance(key, str) and key):
        raise ConfigurationError(f"key is {key!r}; give a text, not empty, or leave it out")
    facts = _facts(store, seal, run_id)
    data = _to_json(value, run_id, name)
    _check_schema(store, seal, facts, name, data)
    number, before = deliver(store, seal, facts, "signal", name, data, key=key or "")
    if before is not None and before != data:
        _report_other_value(run_id, name, number, key)
    return number


def deliver(
    store: Store,
    seal: Seal,
    facts: RunFacts,
    kind: MessageKind,
    name: str = "",
    value: bytes = b"",
    **more: Any,
) -> tuple[int, bytes | None]:
    """Put a message into the inbox of a run that has not ended, and ring for it.

    Args:
        more: as of :meth:`stepwise._journal.inbox.Inbox.post`.

    Returns:
        its number; and the value of the message with its key that was there already, if one was.

    Raises:
        RunEndedError: the run has completed, failed or been cancelled.
        RunNotFoundError: it was deleted meanwhile.
    """
    refuse_ended(facts)
    inbox = Inbox(store, seal, facts.run_id)
    number = inbox.post(kind, name, value, **more)
    if facts_of(store, seal, facts.run_id) is None:  # deleted meanwhile: nobody else deletes this
        inbox.delete()
        raise _gone(store, facts.run_id)
    Bell(store, seal).ring(facts.run_id)
    return number, next((each.value for each in inbox.messages if each.number == number), None)


def ended_error(facts: RunFacts) -> RunEndedError:
    """Return the error for a message to a run that has ended."""
    return RunEndedError(
        f"run {facts.run_id!r} has ended ({facts.status}), so nothing in it can take what is "
        f"sent to it. Look at it: stepwise show {shell_word(facts.run_id)}",
        run_id=facts.run_id,
        status=facts.status,
    )


def refuse_ended(facts: RunFacts) -> None:
    """Refuse what only a run in progress can take.

    Raises:
        RunEndedError: it has completed, failed or been cancelled.
    """
    if facts.status in ENDED:
        raise ended_error(facts)


def _facts(store: Store, seal: Seal, run_id: str) -> RunFacts:
    facts = facts_of(store, seal, run_id)
    if facts is None:
        raise _gone(store, run_id)
    return facts


def _gone(store: Store, run_id: str) -> RunNotFoundError:
    return RunNotFoundError(f"run {run_id!r} is gone from {store.url}", run_id=run_id)


@reports
def _report_other_value(run_id: str, name: str, number: int, key: str | None) -> None:
    notice(
        f"message {number} of run {run_id!r} is a signal {name!r} with the key {key!r} and another "
        "value; it counts, and what was sent now does not"
    )


# -- values --------------------------------------------------------------------------------------


def _to_json(value: Any, run_id: str, name: str) -> bytes:
    """Encode what is sent.

    Raises:
        SignalRefusedError: it is no data, or too much; says where in the value.
    """
    try:
        data = json_bytes(_plain(value, "value"))
    except _NoDataError as error:
        why = str(error)
    except RecursionError:
        why = "it is nested too deeply, or holds itself"
    else:
        if len(data) <= LARGEST:
            return data
        why = (
            f"it is {len(data) / 1e6:.0f} MB of JSON, and {LARGEST / 1e6:.0f} MB are the limit: "
            "put it into a file or a database, and send where it is"
        )
    raise SignalRefusedError(
        f"{name!r} cannot be sent to run {run_id!r}: {why}", run_id=run_id, name=name
    )


class _NoDataError(Exception):
    """A part of a value has no form in JSON."""


def _plain(value: Any, where: str) -> Any:
    """Return a value as JSON data; what is no such data is asked for its form.

    What JSON would change silently is refused: keys that are no texts, numbers that it lacks.
    """
    kind = type(value)
    if kind in (str, int, bool) or value is None:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        raise _NoDataError(f"{where} is {value}, which JSON does not have")
    if kind in (list, tuple):
        return [_plain(each, f"{where}[{number}]") for number, each in enumerate(value)]
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise _NoDataError(f"{where} has the key {key!r:.80}; in JSON, keys are texts")
        return {key: _plain(each, f"{where}[{key!r:.80}]") for key, each in value.items()}
    try:
        return _plain(plain(value), where)
    except TypeError as error:
        raise _NoDataError(f"{where} is a {kind.__qualname__}: {error}") from None


# -- what the run waits for ----------------------------------------------------------------------


def _check_schema(store: Store, seal: Seal, facts: RunFacts, name: str, data: bytes) -> None:
    """Check a value against the schema of an open wait for a signal of that name, if it has one.

    Raises:
        SignalRefusedError: it does not fit.
    """
    if facts.status == "suspended" and name not in (each.name for each in facts.waits):
        return
    waits = [call.wait for call in open_waits(store, seal, facts)]
    schemas = {
        each.schema for each in waits if each and each.kind == "signal" and each.name == name
    }
    if not schemas or "" in schemas:
        return
    problems = [misfit(each, json.loads(data)) for each in sorted(schemas)]
    if all(problems):
        raise SignalRefusedError(
            f"run {facts.run_id!r} waits for {name!r} with a value of another form. At "
            f"{problems[0]}. To see what it waits for: stepwise show {shell_word(facts.run_id)}",
            run_id=facts.run_id,
            name=name,
        )
