"""The arguments of a call, recorded in full beside its records, if that was asked for.

An object ``inputs/CALL`` holds the arguments as they were when the call began.  It is written in
the batch of the run's next record: of the intent of a side effect, or of the outcome of a plain
step.  So it costs no flush, and no record needs another form.  If many calls begin before the next
record, their arguments are written earlier: they do not wait in memory.

A part of an argument that an earlier step returned, and that has not changed since, is a reference
to the record of that step, as in a checkpoint.  Chunks are not referred to: they are deleted with
the checkpoints that need them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._checkpoints.references import ResultReferences
from stepwise._checkpoints.variables import FrameReducers, Surroundings
from stepwise._execution.active_run import ActiveRun
from stepwise._journal.journal import INPUTS
from stepwise._runtime.messages import reports
from stepwise._values.codec import JSON, PYTHON, Codec, dump
from stepwise._values.data import parameter_types
from stepwise._values.preview import HIDDEN, Hiding, type_name


def inputs_name(call: int) -> str:
    """Return the name of the object that holds the arguments of a call."""
    return f"{INPUTS}{call:012d}"


@reports
def record_inputs_of(
    active: ActiveRun,
    call: int,
    given: Mapping[str, Any],
    hiding: Hiding,
    function: Callable[..., Any] | None,
) -> None:
    """Record the arguments of a call with the next record of its run.

    An argument that cannot be recorded is a placeholder.

    Args:
        given: the arguments by name.
        hiding: the arguments whose values must not be recorded.
        function: the function whose annotations give their types.
    """
    secrets = active.secrets
    texts = {name: hiding.instead(name, value) for name, value in given.items()}
    instead = {name: secrets.mask(text) for name, text in texts.items() if text is not None}
    values = {name: value for name, value in given.items() if name not in instead}
    form = _InputTexts(active.codec, function) if active.codec.data_only else _InputPickle(active)
    try:
        data = form.dump(values)
        clean = not secrets.found_in(data)
    except Exception:  # some argument does not pickle, or its class raises
        clean = False
    if not clean:
        values = _recordable(form, active, values, instead)
        data = form.dump(values)
    header = {
        "names": [*given],
        "instead": instead,
        "form": form.name,
        "records": form.references.records if form.references is not None else [],
    }
    active.journal.put_with_next(inputs_name(call), header, data)


def _recordable(
    form: _InputPickle | _InputTexts,
    active: ActiveRun,
    values: Mapping[str, Any],
    instead: dict[str, str],
) -> dict[str, Any]:
    """Return the arguments that can be recorded, without secrets; name the others in ``instead``.

    A secret text in plain data is masked.
    """
    secrets, found = active.secrets, dict[str, Any]()
    for name, value in values.items():
        try:
            if secrets.found_in(form.dump({name: value})):
                value = secrets.masked(value)  # noqa: PLW2901
                if secrets.found_in(form.dump({name: value})):
                    instead[name] = HIDDEN
                    continue
        except Exception:
            instead[name] = f"<{type_name(value)}, which cannot be recorded>"
            continue
        found[name] = value
    return found


class _InputReducers(FrameReducers):
    """The reduction of arguments: memory that several objects share is written for each."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.keeps_links = False


class _InputPickle:
    """Arguments as a pickle of the form that ``load_values`` reads."""

    name = PYTHON

    def __init__(self, active: ActiveRun) -> None:
        self.around = Surroundings()
        self.references: ResultReferences | None = None
        # Other threads make calls, too, and only the workflow's own may use its known values.
        if active.frame is not None and active.home == threading.get_ident():
            self.references = self.around.references = ResultReferences(active.frame.known_now())

    def dump(self, values: Mapping[str, Any]) -> bytes:
        """Return the pickle; its bytes share no memory with the arguments."""
        return bytes(dump((dict(values), [], {}, []), _InputReducers(self.around)))


class _InputTexts:
    """Arguments as data: the JSON of each, a line each, as a search for secrets knows it."""

    name = JSON
    references = None

    def __init__(self, codec: Codec, function: Callable[..., Any] | None) -> None:
        self._codec = codec
        self._kinds = parameter_types(function) if function is not None else {}

    def dump(self, values: Mapping[str, Any]) -> bytes:
        """Return the lines.

        Raises:
            NotRecordableError: an argument would not come back as it is.
        """
        kinds, encode = self._kinds, self._codec.encode
        return b"\n".join(
            bytes(encode(value, f"the argument {name!r}", kinds.get(name, Any)).data)
            for name, value in values.items()
        )
