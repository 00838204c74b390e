"""A run out of its store: in memory, to be executed again from there, or as a file for tests.

In memory, the records keep their numbers, so that the checkpoints fit.  Everything is sealed again
with the key of the store in memory.

A file is readable where the values are plain data, and has no secrets.  It holds the records, and
the variables at the kept checkpoints as far as they are plain data.  Other values are pickles,
which are code: a test that loads them executes what the repository holds, like the test itself.
Values with a secret's name or shape are masked, and the former wherever else they are.  A pickle
with such a text is left out as a whole.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import textwrap
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from stepwise._checkpoints.checkpoints import PREFIX, Loaded, sealed
from stepwise._checkpoints.references import Vault
from stepwise._execution.outcomes import RunInputs, load_inputs, record_inputs
from stepwise._execution.viewer import look_into, view
from stepwise._journal.journal import (
    INPUTS,
    Position,
    owned_journal,
    place_of_run,
    read_end,
    recorded_versions,
    seal_for,
)
from stepwise._journal.projection import as_made
from stepwise._journal.records import Entry, RecordedVersion, RunFacts, from_fields, to_fields
from stepwise._journal.seal import Seal, named
from stepwise._runs.fork import whole_records
from stepwise._runs.run import Run
from stepwise._runs.steps import listed_checkpoint, settled
from stepwise._runs.why import without_hidden
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import shell_word
from stepwise._values.codec import JSON, Codec, encode, is_plain, plain_value, texts_in
from stepwise._values.credentials import MASK, is_secret_name, masked_prose
from stepwise._values.unpickling import Data, check_trust
from stepwise.errors import ConfigurationError, StepFailedError, UnreadableValueError
from stepwise.stores import Store
from stepwise.stores.base import FORMAT
from stepwise.stores.memory import MemoryStore

# -- taken out -------------------------------------------------------------------------------------


class Variables(NamedTuple):
    """The variables of the workflow at a checkpoint.

    Args:
        step: the number of done steps.
        position: see :class:`stepwise._checkpoints.checkpoints.State`.
        variables: returns them, or raises ``UnreadableValueError``.
    """

    step: int
    position: str
    variables: Callable[[], Mapping[str, Any]]


class Replica(NamedTuple):
    """The recorded state of one run.

    Args:
        entries: the records, in order.
        end: the record of the run's end; ``None`` if the run has not ended.
        moments: the variables at the kept checkpoints, oldest first.
        checkpoints: the checkpoints themselves; none if the run comes from a file.
        beside: header and payload of the objects beside the records, by their names.
        arguments: loads those of the run, if a file holds them; else the first record does.
        masked: what a file leaves out, since it is secret.
        versions: of the steps whose results are recorded.
    """

    facts: RunFacts
    entries: tuple[Entry, ...]
    end: Entry | None
    moments: tuple[Variables, ...]
    checkpoints: tuple[Loaded, ...] = ()
    beside: Mapping[str, tuple[Any, bytes]] = {}
    arguments: Callable[[], RunInputs] | None = None
    masked: tuple[str, ...] = ()
    versions: tuple[RecordedVersion, ...] = ()


def taken_from(store: Store, seal: Seal, run_id: str) -> Replica:
    """Return the recorded state of a run; take no lease, and write nothing.

    Raises:
        CorruptStoreError: records of the run cannot be read.
    """
    return settled(store, seal, run_id, lambda facts, _: _taken(store, seal, facts))


def _taken(store: Store, seal: Seal, facts: RunFacts) -> Replica:
    run_id = facts.run_id
    place, vault = (store, seal, run_id), Vault(store, seal, run_id)
    # Before the records: the run may go on, and its next checkpoint refers to later ones.
    found = (listed_checkpoint(place, name) for name in store.names(run_id, PREFIX))
    checkpoints = tuple(each for each in found if each is not None)
    entries = whole_records(store, seal, facts, "executed again")
    ended = facts.status in ("completed", "failed")
    inputs = {name: vault.open(name) for name in store.names(run_id, INPUTS)}
    return Replica(
        facts,
        tuple(entries),
        read_end(store, seal, facts) if ended else None,
        tuple(_moment(facts, each) for each in checkpoints),
        checkpoints,
        {n: (each.header, each.payload) for n, each in inputs.items() if each is not None},
        versions=tuple(recorded_versions(store, seal, run_id)),
    )


def _moment(facts: RunFacts, loaded: Loaded) -> Variables:
    state = loaded.state
    return Variables(state.step, state.position, lambda: without_hidden(facts, look_into(loaded)))


# -- in memory -------------------------------------------------------------------------------------


_numbers = itertools.count(1)  # of the stores


def in_memory(replica: Replica, workflow: str, function: Callable[..., Any]) -> Run:
    """Return the run in a new store in memory: unfinished, with all its calls.

    Args:
        workflow, function: the workflow that will execute it: its full name, and its function.
    """
    facts = replica.facts
    run_id, store = facts.run_id, MemoryStore(f"rerun-{next(_numbers)}")
    head = facts.unfinished(workflow=workflow, parent="", restored=False)
    entries = [*as_made(replica.entries)]
    if replica.arguments is not None:
        entries = [_begun_with(entries[0], function, replica.arguments()), *entries[1:]]
    seal = seal_for(store)

    def beside(positions: list[Position]) -> dict[str, Data]:
        first, objects = entries[0].number - 1, dict[str, Data]()
        for loaded in replica.checkpoints:
            at = positions[loaded.state.journal[0] - first]
            state = loaded.state._replace(journal=at.kept(), said=())  # it says all anew
            objects |= sealed(seal, run_id, loaded, state, loaded.payload)
        for name, (header, payload) in replica.beside.items():
            objects[name] = seal.close(named(name, run_id), header, payload)[0]
        return objects

    with owned_journal(store, seal, run_id) as journal:
        journal.load(Position(entries[0].number - 1, None))
        journal.begin_with([(each.record, each.payload) for each in entries], beside, head)
    return Run(store, run_id, seal)


def _begun_with(first: Entry, function: Callable[..., Any], given: RunInputs) -> Entry:
    """Return the record of the beginning with arguments that a file held."""
    record: Any = first.record
    values, missing = {**given.values}, dict.fromkeys(given.missing)
    instance = values.pop(given.method, None)
    payload, form, _ = record_inputs(
        Codec(), function, {**missing, **values}, given.method, instance, missing
    )
    return first._replace(record=record._replace(form=form), payload=bytes(payload))


# -- writing a file --------------------------------------------------------------------------------


_DROPPED = ("command", "cwd", "trace", "file", "traceback", "tries", "by", "preview")
_FACTS = (
    "run_id", "label", "status", "arguments", "digest", "code", "codec", "created_at", "updated_at",
    "hidden", "secrets", "parts", "undone",
)  # fmt: skip
_LEFT_OUT = "left out"  # the form of a value that the file does not hold
_LEAST = 6  # characters of a secret that is masked in other texts


class _RunFile:
    """The writer of one file, which notes what it masks.

    Args:
        names: the names of the run's secrets, beside those that say it by themselves.
        secrets: values with a secret's name; the writer adds those that it meets.
    """

    def __init__(self, names: Container[str], secrets: set[str]) -> None:
        self._names, self.secrets = names, secrets
        self.masked: list[str] = []
        self.pickles = 0

    def value(self, data: bytes, form: str | None, where: str) -> dict[str, Any]:
        """Return an encoded value, readable if it is plain data.

        Args:
            where: names the value among those that are masked.
        """
        if not data:
            return {}
        if form == JSON:
            return {"json": self.clean(json.loads(data), where)}
        try:
            return {"value": self.clean(plain_value(data), where)}
        except ValueError:
            return self.pickle(data, form, where)

    def pickle(self, data: bytes, form: str | None, where: str) -> dict[str, Any]:
        """Return a pickle, unless it holds a text that is masked."""
        if any(self.hides(text) or self.text(text) != text for text in texts_in(data)):
            self.masked.append(where)
            return {_LEFT_OUT: True}
        self.pickles += 1
        named = {"form": form} if form is not None else {}
        return {"pickle": base64.b64encode(data).decode(), **named}

    def hides(self, name: str) -> bool:
        """Return whether a value of this name is a secret."""
        return name in self._names or is_secret_name(name)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for each in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(each, MASK)
        return masked_prose(text)

    def facts(self, value: Any) -> Any:
        """Return the facts of a record without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {name: self.facts(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.facts(each) for each in value]
        return value

    def clean(self, value: Any, where: str, *, secret: bool = False) -> Any:
        """Return plain data without secrets.

        Args:
            secret: the name of the value, or of what holds it, is a secret's.
        """
        if isinstance(value, dict):
            return dict(self._clean_items(value, where, secret=secret))
        if isinstance(value, list):
            return [
                self.clean(each, f"{where}[{at}]", secret=secret) for at, each in enumerate(value)
            ]
        if value in (None, "", MASK) or isinstance(value, bool):
            return value
        cleaned = value
        if secret:
            cleaned = MASK
            self.add(value)
        elif isinstance(value, str):
            cleaned = self.text(value)
        if cleaned != value:
            self.masked.append(where)
        return cleaned

    def _clean_items(
        self, held: dict[str, Any], where: str, *, secret: bool
    ) -> Iterator[tuple[str, Any]]:
        """Yield the items without secrets; the name of a ``value`` may stand beside it."""
        named = held.get("name", held.get("key"))
        for key, value in held.items():
            names = [key, named] if key == "value" and isinstance(named, str) else [key]
            name = self.text(key)
            if name != key:
                self.masked.append(f"{where}.{name}")
            hides = secret or any(map(self.hides, names))
            yield name, self.clean(value, f"{where}.{name}", secret=hides)

    def add(self, value: Any) -> None:
        """Note a secret, which is masked wherever it is."""
        if isinstance(value, str) and len(value) >= _LEAST:
            self.secrets.add(value)


def to_data(replica: Replica, run: Run) -> dict[str, Any]:
    """Return a run as plain data for a file.

    Raises:
        ConfigurationError: a file cannot hold the run; the message says why.
    """
    facts = replica.facts
    if facts.pruned:
        raise ConfigurationError(
            f"run {facts.run_id!r} cannot be a test: its first records were pruned "
            "(prune_journal=True), and a test begins at the top"
        )
    names, secrets = facts.secrets.split(), set[str]()
    _data(_RunFile(names, secrets), replica, run)  # finds the secrets
    return _data(_RunFile(names, secrets), replica, run)


def _data(writer: _RunFile, replica: Replica, run: Run) -> dict[str, Any]:
    facts = replica.facts
    arguments = _arguments(writer, run)
    first, *others = replica.entries
    records = [_beginning(writer, first, apart=arguments is not None)]
    records += [_record(writer, entry) for entry in others]
    moments = [*_moments(writer, replica)]
    return {
        "stepwise": FORMAT,
        "run": {name: writer.facts(getattr(facts, name)) for name in _FACTS},
        "workflow": os.path.basename(facts.workflow),
        "arguments": arguments,
        "masked": sorted(set(writer.masked)),
        "pickles": writer.pickles,
        "versions": [each._replace(files={}) for each in replica.versions],
        "records": records,
        "variables": moments,
    }


def _beginning(writer: _RunFile, entry: Entry, *, apart: bool) -> dict[str, Any]:
    """Return the first record, with the arguments unless they stand apart."""
    record: Any = entry.record
    payload = b"" if apart else bytes(entry.payload)
    if record.form == JSON:
        about = json.loads(payload)
        for name in [each for each in about["values"] if writer.hides(each)]:
            writer.masked.append(f"the argument {name}")
            about["missing"][name] = "it is masked in the file"
            writer.add(json.loads(about["values"].pop(name)))
        for name, text in about["values"].items():
            cleaned = writer.clean(json.loads(text), f"the argument {name}")
            about["values"][name] = json.dumps(cleaned)
        payload = json.dumps(about).encode()
    record = record._replace(
        workflow=os.path.basename(record.workflow), form=None if apart else record.form
    )
    return _record(writer, Entry(entry.number, record, payload), "the arguments")


def _record(writer: _RunFile, entry: Entry, what: str = "the result") -> dict[str, Any]:
    record, payload = entry.record, bytes(entry.payload)
    form = getattr(record, "form", None)
    fields = {name: each for name, each in to_fields(record).items() if name not in _DROPPED}
    call, outcome = entry.call, entry.outcome
    where = f"step {call.number} {call.name}" if call is not None else what
    failed = getattr(record, "status", "completed") in ("failed", "cancelled")
    if failed and payload and form != JSON:
        error = view(entry).error
        if error is not None and type(error) is not StepFailedError:  # its class is known here
            encoded = Codec(JSON).encode_error(error)
            payload, form, fields["form"] = bytes(encoded.data), JSON, JSON
    opaque = outcome is not None and outcome.changed
    held = writer.pickle if opaque else writer.value
    content = held(bytes(payload), form, where)
    return {
        "entry": entry.number,
        **writer.facts(fields),
        **({"content": content} if content else {}),
    }


def _arguments(writer: _RunFile, run: Run) -> dict[str, Any] | None:
    """Return the arguments; ``None`` if the first record has to hold them.

    Those of a user's class cannot be loaded here, where the program is not.
    """
    facts = run._facts()
    if facts.codec:
        return None  # they are data
    try:
        inputs = load_inputs(run.store, run._seal, facts)
    except UnreadableValueError:
        return None
    values, missing = dict[str, Any](), dict(inputs.missing)
    for name, value in inputs.values.items():
        if writer.hides(name):
            writer.masked.append(f"the argument {name}")
            writer.add(value)
            missing[name] = "it is masked in the file"
            continue
        data, form = encode(value, f"the argument {name!r}")
        content = writer.value(bytes(data), form, f"the argument {name}")
        if _LEFT_OUT in content:
            missing[name] = "a secret is in it, so that the file does not hold it"
        else:
            values[name] = content
    return {"values": values, "method": inputs.method, "missing": missing}


def _moments(writer: _RunFile, replica: Replica) -> Iterator[dict[str, Any]]:
    for moment in replica.moments:
        try:
            found = moment.variables()
        except UnreadableValueError:
            continue
        before = len(writer.masked)
        plain = {name: value for name, value in found.items() if is_plain(value)}
        clean = {
            name: writer.clean(value, name, secret=writer.hides(name))
            for name, value in plain.items()
        }
        del writer.masked[before:]  # a masked variable is not compared
        variables = {name: each for name, each in clean.items() if each == plain[name]}
        yield {"step": moment.step, "position": moment.position, "values": variables}


def test_of(run: Run, data: Mapping[str, Any], output: str) -> str:
    """Return the source of a test of a run, whose data stand beside it.

    Args:
        data: what :func:`to_data` returned.
        output: the path of the test.
    """
    facts = run._facts()
    module = place_of_run(facts)
    module = os.path.splitext(os.path.basename(module))[0] if os.sep in module else module
    words = re.sub(r"\W+", "_", f"test_{run.id}")
    notes = ""
    if data["pickles"]:
        notes += _filled(
            f"The data hold pickles ({data['pickles']}), since JSON cannot hold those values. To "
            "load a pickle is to execute it, like the test itself."
        )
    if data["masked"]:
        notes += _filled(f"Masked in the data: {', '.join(data['masked'])}.")
    command = f"stepwise export {shell_word(run.id)} --format test -o {shell_word(output)}"
    return _TEST.format(
        run=run.id,
        label=facts.label,
        notes=notes,
        command=command,
        place=f"{module}:{facts.label}",
        test=words,
    )


def _filled(text: str) -> str:
    return f"\n{textwrap.fill(text, 98)}\n"


_TEST = '''"""The run {run} of {label}, executed again by today's code.

No store, key or network is needed.

Written by: {command}
{notes}"""

import pathlib

from stepwise.testing import rerun

DATA = pathlib.Path(__file__).with_suffix(".json")


def {test}():
    rerun(DATA, "{place}").assert_same()
'''


# -- reading a file --------------------------------------------------------------------------------


def from_data(data: Any, path: str) -> Replica:
    """Return the run of a file.

    Raises:
        ConfigurationError: the file holds no run, or that of another version; or this process
            loads no pickles, and the file has some.
    """
    way = "stepwise export RUN --format test -o FILE"
    if not isinstance(data, dict) or "records" not in data:
        raise ConfigurationError(f"{path} is no run for a test. Make one: {way}")
    if data.get("stepwise") != FORMAT:
        raise ConfigurationError(
            f"{path} was written by another version of stepwise (format {data.get('stepwise')}, "
            f"and this one reads {FORMAT}). Write it anew from the run: {way}"
        )
    if data["pickles"]:
        check_trust(f"{path} holds pickles")
    try:
        return _replica(data)
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is no run for a test ({type(error).__name__}: {error}). Make one: {way}"
        ) from error


def _replica(data: Mapping[str, Any]) -> Replica:
    facts = RunFacts(workflow=data["workflow"], **data["run"])
    entries = tuple(map(_entry, data["records"]))
    given = data["arguments"]

    def arguments() -> RunInputs:
        values = {name: _loaded(content) for name, content in given["values"].items()}
        return RunInputs(values, given["method"], given["missing"], facts.run_id)

    ends = [each for each in entries if each.ended is not None]
    return Replica(
        facts,
        entries,
        ends[-1] if facts.status in ("completed", "failed") else None,
        tuple(
            Variables(each["step"], each["position"], each["values"].copy)
            for each in data["variables"]
        ),
        arguments=arguments if given is not None else None,
        masked=tuple(data["masked"]),
        versions=tuple(RecordedVersion(*each) for each in data["versions"]),
    )


def _entry(fields: Mapping[str, Any]) -> Entry:
    given = {**fields}
    number, content = given.pop("entry"), given.pop("content", {})
    record: Any = from_fields(given)
    payload = b""
    if "value" in content:
        encoded = encode(content["value"])
        payload, record = bytes(encoded.data), record._replace(form=encoded.form)
    elif "json" in content:
        payload = json.dumps(content["json"]).encode()
    elif "pickle" in content:
        payload = base64.b64decode(content["pickle"])
    elif _LEFT_OUT in content:
        record = record._replace(form=_LEFT_OUT)
    return Entry(number, record, payload)


def _loaded(content: Mapping[str, Any]) -> Any:
    if "value" in content:
        return content["value"]
    return Codec().decode(base64.b64decode(content["pickle"]), content.get("form"))
