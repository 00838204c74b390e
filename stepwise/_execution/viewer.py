"""Views of recorded variables without the program that recorded them.

A missing class, function or resource is shown as a placeholder.  No code is called that the program
would call (no factory, no ``__reduce__`` of its own modules).
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from types import CellType
from typing import Any

from stepwise._checkpoints.checkpoints import Loaded
from stepwise._checkpoints.references import Needs, Reader, Vault
from stepwise._checkpoints.variables import FrameUnpickler, Surroundings, class_of_kind, load_values
from stepwise._execution.frames import frames_name
from stepwise._execution.inputs import inputs_name
from stepwise._execution.outcomes import LoadedOutcome, load_outcome
from stepwise._journal.journal import FRAMES, read_end
from stepwise._journal.records import Entry, RunFacts
from stepwise._journal.seal import Seal
from stepwise._values.codec import JSON, PYTHON, Codec, decode, decode_with, from_module
from stepwise._values.preview import HIDDEN, NotShown, error_text
from stepwise.errors import UnreadableValueError
from stepwise.stores import Store

_EMPTY: dict[str, Any] = {
    "builtins:list": list,
    "builtins:dict": dict,
    "builtins:set": set,
    "builtins:bytearray": bytearray,
    "collections:deque": deque,
}
_ANY = Codec()  # recorded data names its form itself
_OURS = ("stepwise._values.", "stepwise._checkpoints.")  # modules that rebuild values and variables


class Placeholder:
    """A placeholder for an object that this program lacks, with its known facts."""

    _stands_for = "?"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args = args

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2:  # __dict__ and __slots__
            state = {**(state[0] or {}), **(state[1] or {})}
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __repr__(self) -> str:
        shown = [f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_")]
        shown = shown or [repr(each) for each in getattr(self, "_args", ())]
        return f"<{self._stands_for}{' ' if shown else ''}{', '.join(shown)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self)(*args)

    def append(self, item: Any) -> None:
        """Append an item, as a list would: the placeholder may replace a list."""
        self.__dict__.setdefault("items", []).append(item)

    def __setitem__(self, key: Any, item: Any) -> None:
        self.__dict__.setdefault("items", {})[key] = item


def _placeholder(name: str) -> type[Placeholder]:
    module, _, short = name.rpartition(".")
    return type(short, (Placeholder,), {"_stands_for": name, "__module__": module or __name__})


class _ViewingUnpickler(FrameUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (from_module.__module__, from_module.__name__):
            return _found
        if module.startswith(_OURS) and name in _STANDING_IN:
            return _STANDING_IN[name]
        if (module, name) == ("builtins", "getattr"):
            return _attribute
        return _found(module, name)

    def secret(self, pid: Any) -> Any:
        _, form, parts = pid
        texts = (
            [HIDDEN] if form == "whole" else [p if isinstance(p, str) else HIDDEN for p in parts]
        )
        return "".join(texts).encode() if form == "bytes" else "".join(texts)


def _found(module: str, name: str) -> Any:
    try:
        if module != "__main__":
            importlib.import_module(module)
        return attrgetter(name)(sys.modules[module])
    except Exception:  # a user's module may raise anything
        return _placeholder(f"{module}.{name}")


def _attribute(owner: Any, name: str) -> Any:
    """Return a member of an enumeration, as some versions of Python 3.11 pickle it."""
    if isinstance(owner, type) and issubclass(owner, Placeholder):
        return owner(name)
    return getattr(owner, name)


def _make(factory: Any, args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return _placeholder(f"resource {getattr(factory, '__qualname__', factory)}")(*args)


def _function(_code: Any, _module: str, name: str, _closure: Any) -> Any:
    return _placeholder(f"function {name}")()


def _ended_future(cls: Any, cancelled: bool, error: Any, result: Any) -> Any:
    ending = "cancelled" if cancelled else error if error is not None else result
    return _placeholder(f"{cls.__module__}.{cls.__qualname__}")(ending)


def _set_attributes(function: Any, state: Any) -> None:
    """Ignore the attributes of a placeholder."""


_STANDING_IN = {
    "_make": _make,
    "_function": _function,
    "_ended_future": _ended_future,
    "_running_loop": _placeholder("the running event loop"),
    "_set_attributes": _set_attributes,
    "_synchronizer": lambda _cls, kind, _: _placeholder(kind)(),
    "_client": lambda cls, options, _: _placeholder(f"client {cls.__qualname__}")(options),
    "_taken": lambda path, kind: _placeholder(kind)(path),
    "put_state": lambda value, state: value.__setstate__(state),
    "put_given_state": lambda value, state: value.__setstate__(state),
    "_global": lambda name: _placeholder(f"global {name}")(),
}


class _Cells(dict[str, CellType]):
    def __missing__(self, name: str) -> CellType:
        return self.setdefault(name, CellType())


def look_into(loaded: Loaded) -> dict[str, Any]:
    """Return the local variables of a checkpoint, without hidden ones.

    Raises:
        UnreadableValueError: another Python version wrote the variables, or they are damaged.
    """
    state = loaded.state
    if state.python != PYTHON:
        raise UnreadableValueError(
            f"the checkpoint was written by Python {state.python}, which Python {PYTHON} must not "
            "load; use that Python to look at it"
        )
    around, reader = _stand_ins(state.arguments), loaded.reader()
    try:
        values = load_values(loaded.payload, around, reader, _ViewingUnpickler)
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableValueError(
            f"the variables cannot be loaded here: {type(error).__name__}: {error_text(error)}"
        ) from error
    values |= loaded.changes()
    return {name: value for name, value in values.items() if not name.startswith("@")}


def view(entry: Entry, codec: Codec = _ANY) -> LoadedOutcome:
    """Load the end of a recorded call or run, whatever it changed.

    Raises:
        UnreadableValueError: the outcome cannot be loaded here.
    """
    kinds: Mapping[str, str] = getattr(entry.record, "changed", None) or {}
    return load_outcome(codec, entry, _stand_ins(kinds), viewer=_ViewingUnpickler)


def result_of(store: Store, seal: Seal, facts: RunFacts) -> Any:
    """Return the result of a run, or ``None`` while it has not completed.

    Raises:
        UnreadableValueError: the result could not be recorded, or cannot be loaded here.
    """
    if facts.status != "completed":
        return None
    entry = read_end(store, seal, facts)
    ended = entry.ended if entry is not None else None
    if entry is None or ended is None or not ended.recorded:
        why = ended.again if ended is not None else "the record of its end does not verify"
        raise UnreadableValueError(
            f"run {facts.run_id!r} completed, and its result is not recorded: {why}. A call of its "
            "workflow with the same arguments has the journal make the result anew"
        )
    return view(entry).value


def error_of(store: Store, seal: Seal, facts: RunFacts) -> BaseException | None:
    """Return the error that a run raised, if it failed or was cancelled, else ``None``."""
    return failure_of(store, seal, facts).error


def failure_of(store: Store, seal: Seal, facts: RunFacts) -> LoadedOutcome:
    """Return the error that a run raised, with its traceback as text; empty if it raised none."""
    status = "cancelled" if facts.status == "cancelled" else "failed"
    entry = read_end(store, seal, facts)
    ended = entry.ended if entry is not None else None
    if entry is None or ended is None or ended.status != status or not ended.recorded:
        return LoadedOutcome()
    return view(entry)


def _stand_ins(kinds: Mapping[str, str]) -> Surroundings:
    """Return empty objects for the arguments that a recorded call or frame was given."""
    arguments = {
        name: _EMPTY.get(kind, _placeholder(class_of_kind(kind)))() for name, kind in kinds.items()
    }
    return Surroundings(_Cells(), arguments)


# -- what is recorded beside a call ---------------------------------------------------------------


def view_inputs(store: Store, seal: Seal, run_id: str, call: int) -> dict[str, Any]:
    """Return the recorded arguments of a call by name, with placeholders for hidden ones.

    Raises:
        UnreadableValueError: the arguments were not recorded, are damaged, or cannot be loaded
            here.
    """
    name = inputs_name(call)
    if store.get(run_id, name) is None:
        raise UnreadableValueError(
            f"the arguments of step {call} of run {run_id!r} were not recorded in full: "
            "record_arguments=True of @step, @tool or stepwise.configure() records those of later "
            "runs"
        )
    vault = Vault(store, seal, run_id)
    opened = vault.open(name)
    if opened is None:
        raise _damaged(run_id, call, "does not verify")
    header = opened.header
    instead = {name: NotShown(text) for name, text in header["instead"].items()}
    needs = Needs(records=header["records"])
    if not vault.holds(needs):
        raise _damaged(run_id, call, "refers to a record that does not verify")
    if header["form"] == JSON:
        names = (name for name in header["names"] if name not in instead)
        lines = bytes(opened.payload).split(b"\n")
        values = {name: decode(line, JSON) for name, line in zip(names, lines, strict=False)}
    else:
        reader = Reader(vault, needs)
        values = decode_with(
            lambda: load_values(opened.payload, Surroundings(), reader, _ViewingUnpickler),
            header["form"],
        )
    return {name: instead[name] if name in instead else values[name] for name in header["names"]}


def _damaged(run_id: str, call: int, why: str) -> UnreadableValueError:
    return UnreadableValueError(
        f"the record of the arguments of step {call} of run {run_id!r} {why}"
    )


def attempts_with_frames(store: Store, run_id: str, call: int) -> list[int]:
    """Return the failed attempts of a call whose frames are recorded; call 0 is the run."""
    names = store.names(run_id, f"{FRAMES}{call:012d}/")
    return sorted(int(name.rpartition("/")[2]) for name in names)


def view_frames(
    store: Store, seal: Seal, run_id: str, call: int, attempt: int
) -> list[tuple[str, int, str, str, dict[str, str]]]:
    """Return the recorded frames of a failed attempt: file, line, function, code, variables.

    Raises:
        UnreadableValueError: the frames are damaged.
    """
    name = frames_name(call, attempt)
    opened = Vault(store, seal, run_id).open(name)
    if opened is None:
        what = f"step {call}" if call else "the run"
        raise UnreadableValueError(
            f"the record of the local variables of {what} of run {run_id!r} does not verify"
        )
    return [tuple(each) for each in json.loads(bytes(opened.payload))]
