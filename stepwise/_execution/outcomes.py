"""Records of the outcomes of calls and runs and of the arguments of runs, and loading them.

Each function that builds a record returns it with its payload; the caller writes them.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepwise._checkpoints import variables
from stepwise._checkpoints.variables import Surroundings
from stepwise._execution.process_memory import known_workflow
from stepwise._identity.clients import is_foreign_module
from stepwise._journal.journal import read_start
from stepwise._journal.records import Call, Entry, Outcome, RunFacts, Settled, Started, StepStatus
from stepwise._journal.seal import Seal
from stepwise._journal.summary import course_of
from stepwise._matching.subjects import Targets
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import Once, notice, reports
from stepwise._runtime.system_limits import ran_out
from stepwise._values import codec as _codec
from stepwise._values.codec import JSON, PYTHON, Codec, Encoded
from stepwise._values.data import parameter_types
from stepwise._values.preview import preview
from stepwise._values.unpickling import Data
from stepwise.errors import ConfigurationError, NotRecordableError, UnreadableValueError
from stepwise.stores import Store

if TYPE_CHECKING:
    from stepwise._execution.changes import PutBack, Recorded


# -- outcomes -------------------------------------------------------------------------------------


_NOTHING: Mapping[str, Any] = {}


class ShownValue(NamedTuple):
    """The text that a listing shows for a value, and the usage of a model request."""

    preview: str
    usage: Mapping[str, Any]


# -- records -------------------------------------------------------------------------------------


def outcome(
    codec: Codec,
    call: Call,
    status: StepStatus,
    value: Any,
    *,
    inner: Iterable[int],
    attempts: int,
    clean: bool = False,
    changes: Recorded | None = None,
    kind: Any = Any,
    shown: ShownValue | None = None,
    tries: tuple[Any, ...] = (),
) -> tuple[Outcome, Data]:
    """Build the record of the outcome of a call.

    Args:
        value: the returned value or raised exception.
        changes: the changes that the call made to its arguments.
        kind: the annotated type of the value.
        shown: the text for listings, instead of a preview of the value.
        tries: see :class:`Outcome`.

    Raises:
        NotRecordableError: the value cannot be recorded.
    """
    failed, secrets = status != "completed", codec.secrets
    if changes is None or not changes.edits:
        encoded = _encoded(codec, call, value, kind, failed=failed)
    else:
        plainly = functools.partial(_encoded, codec, call, value, kind, failed=failed)
        try:
            encoded = changes.encode(codec, value, plainly, failed=failed)
        except MemoryError as error:
            doing = f"what {call.name!r} returned and changed was recorded"
            raise ran_out(doing, error) from None
    if not (secrets.are_none or failed) and (name := secrets.found_in(encoded.data)):
        _tell_of_secret(call, name)
    masks = failed or not secrets.are_none
    text, usage = shown or (secrets.preview(value) if masks else preview(value), _NOTHING)
    facts = (  # the constructor is a Python function
        call,
        status,
        attempts,
        clean,
        tuple(inner),
        text if secrets.are_none else secrets.mask(text),
        codec.traceback(value) if failed else "",
        changes.kinds() if changes is not None else _NOTHING,
        encoded.form,
        time.time(),
        changes.state if changes is not None else (),
        "",
        usage,
        0,
        _NOTHING,
        tries,
        _NOTHING,
    )
    return tuple.__new__(Outcome, facts), encoded.data


def _encoded(codec: Codec, call: Call, value: Any, kind: Any, *, failed: bool) -> Encoded:
    if failed:
        return codec.encode_error(value, "" if call.child else _then(call))
    return codec.encode(value, f"the value returned by {call.name!r}", kind)


_is_first = Once()


@reports
def _tell_of_secret(call: Call, name: str) -> None:
    if _is_first((call.name, name)):
        notice(
            f"the result of {call.name!r}, or a changed argument, holds the secret {name!r} "
            "and is recorded with it; return a value without the secret"
        )


def _then(call: Call) -> str:
    """Describe the consequence of an exception that cannot be recorded."""
    if call.effect:
        return f"Should the run stop, {call.name!r} is in doubt when it resumes"
    return f"Should the run stop, {call.name!r} runs again when it resumes"


def settled(
    codec: Codec,
    call: Call,
    *,
    landed: bool,
    value: Any = None,
    kind: Any = Any,
    is_open: bool = False,
) -> tuple[Settled, Data]:
    """Build the record of a person's answer for a call in doubt: that it happened, and its value.

    Args:
        is_open: True if no outcome of the call is recorded that reports its spending.

    Raises:
        NotRecordableError: the value cannot be recorded.
    """
    if not landed:
        return Settled(call.number, landed=False, at=time.time()), b""
    encoded = codec.encode(value, f"the landed value of {call.name!r}", kind)
    record = Settled(
        call.number,
        landed=True,
        preview=codec.secrets.preview(value),
        form=encoded.form,
        at=time.time(),
        spent={"steps": int(not call.child), "at_least": 1} if is_open else _NOTHING,
    )
    return record, encoded.data


# -- loading -------------------------------------------------------------------------------------


class LoadedOutcome(NamedTuple):
    """The end of a recorded call or run: its value or exception, and its changes.

    Args:
        put_back: repeats the changes that the call made to its arguments.
        tracebacks: for viewers, the texts of the exception's traceback and of those linked to it.
    """

    value: Any = None
    error: BaseException | None = None
    put_back: PutBack | None = None
    tracebacks: Sequence[str] = ()


def load_outcome(
    codec: Codec,
    entry: Entry,
    given: Targets | Surroundings | None = None,
    kind: Any = Any,
    viewer: type[variables.FrameUnpickler] | None = None,
) -> LoadedOutcome:
    """Load the end of a call or a run from its record; all decoding of outcomes is done here.

    Args:
        given: the arguments of the call; or the arguments of a run, whose contents are restored.
        kind: the annotated type of the value.
        viewer: an unpickler that tolerates missing classes, for viewers: the arguments are
            stand-ins, and an exception that was recorded as data may be a summary.

    Raises:
        UnreadableValueError: the outcome cannot be loaded; the arguments are unchanged.
    """
    record, payload = entry.record, entry.payload
    form = getattr(record, "form", None)
    failed = getattr(record, "status", "completed") != "completed"
    contents, put_back = None, None
    if getattr(record, "changed", None) and isinstance(record, Outcome):
        from stepwise._execution.changes import load_changes  # on use: few calls change

        here = given if isinstance(given, Targets) else None
        loaded = load_changes(payload, form, here, viewer)
        put_back = loaded.put_back
        if loaded.plain is None and not failed:
            return LoadedOutcome(loaded.value, None, put_back)
        payload, form = loaded.plain or loaded.value
    elif getattr(record, "changed", None):
        assert isinstance(given, Surroundings)
        around = given
        if form == JSON:
            from stepwise._execution.changes import put_back as refill  # on use
            from stepwise._execution.changes import take_apart

            payload, contents = take_apart(payload)
        else:
            unpickler = viewer or variables.FrameUnpickler
            held = _codec.decode_with(
                lambda: variables.load_values(payload, around, unpickler=unpickler), form
            )
            if not failed:
                return LoadedOutcome(held["value"])
            payload, form = held["value"]
    value = None if failed else codec.decode(payload, form, kind)
    error = codec.decode_error(payload, form, whole=viewer is None) if failed else None
    if contents is not None and viewer is None:
        refill(contents, around)
    texts = _codec.traceback_texts(payload, form) if failed and viewer is not None else ()
    return LoadedOutcome(value, error, put_back, texts)


# -- arguments that a call changes ---------------------------------------------------------------


def encode_changed(
    codec: Codec,
    told: Any,
    encoded: Callable[[], Encoded],
    around: Surroundings,
    what: str,
) -> Encoded:
    """Encode the outcome of a run together with the current contents of its arguments.

    Args:
        told: the outcome as a pickle holds it: the value, or the parts of an encoded exception.
        encoded: returns the outcome encoded as data.
        what: a name of the run, for the message.

    Raises:
        NotRecordableError: the outcome or the arguments cannot be recorded.
    """
    if codec.data_only:
        from stepwise._execution import changes as _changes

        return _changes.with_contents(encoded(), around, what)
    whole = {"value": told}
    try:
        data = variables.dump_few(whole, around) or variables.dump_values(whole, around)
        return Encoded(data, PYTHON)
    except MemoryError as problem:
        doing = f"what {what} returned and changed was recorded"
        raise ran_out(doing, problem) from None
    except variables.UnpicklableError as error:
        name, (value, reason) = next(iter(error.culprits.items()))
        kind = type(value).__qualname__
        raise NotRecordableError(
            f"{what} changed its arguments, which cannot be recorded: {name!r} is or holds "
            f"a {kind} ({reason}). Return the change instead, or leave the argument as it was",
            type_name=kind,
        ) from error


# -- inputs ---------------------------------------------------------------------------------------


ABOUT = "@about"  # no parameter has such a name


class RunInputs(NamedTuple):
    """The arguments of a run.

    Args:
        values: the passed arguments by parameter name, without arguments at their default.
        method: the parameter that gets the instance or class of a method; empty for a function.
        missing: the arguments that could not be recorded, with the reason.
        run: the id of the run.
    """

    values: dict[str, Any]
    method: str = ""
    missing: Mapping[str, str] = {}
    run: str = ""

    def whole(self, given: Mapping[str, Any] | None = None, way: str = "") -> dict[str, Any]:
        """Return the arguments, with ``given`` ones replacing recorded ones.

        Args:
            way: the call that takes missing arguments; by default that of :meth:`Run.resume`.

        Raises:
            UnreadableValueError: an argument is missing.
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
                f"{way or f'stepwise.get_run({self.run!r}).resume'}({names})"
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
) -> tuple[Data, str, Mapping[str, str]]:
    """Return the payload of a run's first record, its form, and the versions of classes in it.

    Args:
        bound: the arguments by name, without a method's instance or class.
        method: the name of the parameter that gets ``instance``; empty for a plain function.
        secret: the secrets by name, which are not recorded.
    """
    missing = dict.fromkeys([name for name in bound if name in secret], "it is a secret")
    bound = {name: value for name, value in bound.items() if name not in secret}
    values = {**({method: instance} if method else {}), **bound}
    if codec.data_only:
        return _as_data(codec, function, values, method, missing), JSON, _NOTHING
    around = Surroundings.of_call(bound, instance, function, secret)
    while True:
        try:
            whole = {**values, ABOUT: (method, missing)}
            data = variables.dump_few(whole, around) or variables.dump_values(whole, around)
            lost = {name: why for name, (_, why) in around.kept.items()}
            less = False
        except variables.UnpicklableError as error:
            data, lost = b"", {name: why for name, (_, why) in error.culprits.items()}
            less = not lost.keys().isdisjoint(around.arguments)
            left = {name: held for name, held in around.arguments.items() if name not in lost}
            around = around.holding(left)
        # An attribute of an instance that does not pickle is left out, so the instance cannot be an
        # input.  Its other attributes are still needed, to restore it in the process that has it.
        roots = ((name, name.partition(".")[0]) for name in lost)
        found = {
            method if root == "self" and method else root: f"{name}: {lost[name]}"
            for name, root in roots
        }
        if not less and found.keys().isdisjoint(values):
            return data or variables.dump_arguments(around), PYTHON, _versions_of(around.classes)
        missing.update(found)
        values = {name: value for name, value in values.items() if name not in found}


def _versions_of(classes: Iterable[type]) -> Mapping[str, str]:
    classes = [each for each in classes if not is_foreign_module(each.__module__)]
    if not classes:
        return _NOTHING
    from stepwise._identity.following import versions_of  # on use: most calls have plain values

    return versions_of(classes)


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
        UnreadableValueError: the arguments were not recorded, or cannot be loaded here; the message
            says why.
    """
    start = read_start(store, seal, facts.run_id)
    if start is None:  # it is no first record: of a fork, or of a journal that was pruned
        start = read_start(store, seal, facts.run_id, course_of(store, seal, facts).started)
    if start is None:
        raise _unknown(facts, "the record of its beginning was pruned, or cannot be read")
    return inputs_in(*start, facts)


def inputs_in(record: Started, payload: bytes, facts: RunFacts) -> RunInputs:
    """Load the arguments in the record of a run's beginning, as :func:`load_inputs` does."""
    if record.form is None or not payload:
        raise _unknown(facts, "a secret is among them")
    if record.form == JSON:
        return _from_data(payload, facts)
    try:
        values = _codec.decode_with(
            lambda: variables.load_values(payload, Surroundings()), record.form
        )
    except UnreadableValueError as error:
        raise _unknown(facts, str(error)) from error
    if ABOUT not in values:
        raise _unknown(facts, "they do not pickle")
    method, missing = values.pop(ABOUT)
    return RunInputs(values, method, missing, facts.run_id)


def _from_data(payload: bytes, facts: RunFacts) -> RunInputs:
    about = json.loads(payload)
    try:  # the annotations give the types
        function = known_workflow(facts.workflow).function
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
