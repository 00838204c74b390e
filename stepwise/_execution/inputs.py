"""The arguments of a run, recorded when it begins, so that it can be called again with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import UnpicklableError, dump_values, load_values
from stepwise._execution.outcomes import record_arguments, surroundings
from stepwise._execution.registry import known_workflow
from stepwise._journal.journal import read_start
from stepwise._journal.records import RunFacts
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._runtime.facts import NamedTuple
from stepwise._values import codec as _codec
from stepwise._values.buffers import Data
from stepwise._values.codec import Codec
from stepwise._values.data import parameter_types
from stepwise._values.pickling import PYTHON
from stepwise.errors import ConfigurationError, NotRecordableError, UnreadableValueError
from stepwise.stores import Store

__all__ = ["JSON", "RunInputs", "load_inputs", "record_inputs"]

JSON = "json"
_ABOUT = "@about"  # no parameter has such a name


class RunInputs(NamedTuple):
    """The arguments of a run.

    Args:
        values: by the names of the parameters; those left at their default are not among them.
        method: the parameter that gets the instance or class of a method; empty for a function.
        missing: what could not be recorded, with the reason.
        run: its id.
    """

    values: dict[str, Any]
    method: str = ""
    missing: Mapping[str, str] = {}
    run: str = ""

    def whole(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the arguments, those ``given`` in the place of recorded ones.

        Raises:
            UnreadableValueError: one is missing.
        """
        chosen = given or {}
        lost = {name: why for name, why in self.missing.items() if name not in chosen}
        if lost:
            told = "; ".join(
                f"{name!r} could not be recorded ({why})" for name, why in lost.items()
            )
            names = ", ".join(f"{name}=..." for name in lost)
            raise UnreadableValueError(
                f"arguments of run {self.run!r} are not known: {told}. Give them: "
                f"stepwise.get_run({self.run!r}).resume({names})"
            )
        return {**self.values, **chosen}


# -- recording -----------------------------------------------------------------------------------


def record_inputs(
    codec: Codec,
    function: Callable[..., Any],
    bound: Mapping[str, Any],
    method: str,
    instance: Any,
    secret: Mapping[str, Any],
) -> tuple[Data, str]:
    """Return the payload of a run's first record, and its form.

    Args:
        bound: the arguments by name, without that of a method's instance or class.
        method: the name of the parameter that gets ``instance``; empty for a plain function.
        secret: the secrets by name, which are not recorded.
    """
    missing = dict.fromkeys([name for name in bound if name in secret], "it is a secret")
    bound = {name: value for name, value in bound.items() if name not in secret}
    values = {**({method: instance} if method else {}), **bound}
    if codec.data_only:
        return _as_data(codec, function, values, method, missing), JSON
    around = surroundings(bound, instance, function, secret)
    while True:
        try:
            data = dump_values({**values, _ABOUT: (method, missing)}, around)
            lost = {name: why for name, (_, why) in around.kept.items()}
            less = False
        except UnpicklableError as error:
            data, lost = b"", {name: why for name, (_, why) in error.culprits.items()}
            less = not lost.keys().isdisjoint(around.arguments)
            left = {name: held for name, held in around.arguments.items() if name not in lost}
            around = around.holding(left)
        # Of an instance, an attribute that does not pickle is left out, and so the instance is no
        # input; what else it holds is still needed, to put it back in the process that has it.
        found = {_parameter(name, method): f"{name}: {why}" for name, why in lost.items()}
        if not less and found.keys().isdisjoint(values):
            return data or record_arguments(around), PYTHON
        missing.update(found)
        values = {name: value for name, value in values.items() if name not in found}


def _parameter(name: str, method: str) -> str:
    root = name.partition(".")[0]
    return method if root == "self" and method else root


def _as_data(
    codec: Codec,
    function: Callable[..., Any],
    values: Mapping[str, Any],
    method: str,
    missing: dict[str, str],
) -> bytes:
    kinds, texts = parameter_types(function), dict[str, str]()
    for name, value in values.items():
        try:
            encoded = codec.encode(value, f"the argument {name!r}", kinds.get(name, Any))
            texts[name] = bytes(encoded.data).decode("utf-8", "surrogatepass")
        except NotRecordableError as error:
            missing[name] = str(error)
    about = {"values": texts, "method": method, "missing": missing}
    return json.dumps(about).encode()


# -- loading -------------------------------------------------------------------------------------


def load_inputs(store: Store, seal: Seal, facts: RunFacts) -> RunInputs:
    """Load the arguments of a run.

    Raises:
        UnreadableValueError: they were not recorded, or cannot be loaded here; says why.
    """
    start = read_start(store, seal, facts.run_id, course_of(store, seal, facts).started)
    if start is None:
        raise _unknown(facts, "the record of its beginning was pruned, or cannot be read")
    record, payload = start
    if record.form is None or not payload:
        raise _unknown(facts, "the version of stepwise that began it recorded only a part of them")
    Codec(facts.codec).check(record.form)
    if record.form == JSON:
        return _from_data(payload, facts)
    try:
        values = _codec.decode_with(lambda: load_values(payload, Surroundings()), record.form)
    except UnreadableValueError as error:
        raise _unknown(facts, str(error)) from error
    if _ABOUT not in values:
        raise _unknown(facts, "they do not pickle")
    method, missing = values.pop(_ABOUT)
    return RunInputs(values, method, missing, facts.run_id)


def _from_data(payload: bytes, facts: RunFacts) -> RunInputs:
    about = json.loads(payload)
    try:  # the annotations give the types
        function = known_workflow(facts.workflow).definition.function
    except ConfigurationError as error:
        raise _unknown(facts, str(error)) from None
    kinds = parameter_types(function)
    values = {
        name: _codec.decode(text.encode("utf-8", "surrogatepass"), JSON, kinds.get(name, Any))
        for name, text in about["values"].items()
    }
    return RunInputs(values, about["method"], about["missing"], facts.run_id)


def _unknown(facts: RunFacts, why: str) -> UnreadableValueError:
    return UnreadableValueError(
        f"the arguments of run {facts.run_id!r}, {facts.label}({facts.arguments}), are not known: "
        f"{why}. Call the workflow with them: .options(run_id={facts.run_id!r})(...)"
    )
