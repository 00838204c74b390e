"""Hive's session states: the run that one continues, and its changes since.

The session state of a result that failed or paused gets a key of ours: the run, how many visits
had succeeded, and a digest of each value of its memory.  A call that brings it back executes the
graph from its beginning, with the first input: what is done is answered.  What was changed in the
memory is kept in the run, and written where it had stopped, now and in every later process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwise._values import codec, digest
from stepwise._workflows.host import DamagedError, HostedRun, HostStore
from stepwise.errors import ConfigurationError, CorruptStoreError, DigestError
from stepwise.stores import Store

__all__ = ["Continued", "Session", "session_of"]

_KEY = "stepwise"
_BEGAN = "hive/began"
_CHANGED = "hive/changed"


@dataclass
class Continued:
    """A run that a session state continues.

    Args:
        input_data, session_state: those of its first call.
        visits: how many had succeeded when it stopped.
        changed: what has another value in the memory since, by key.
    """

    run_id: str
    input_data: Any
    session_state: Any
    visits: int
    changed: dict[str, Any] = field(default_factory=dict)


def session_of(store: Store, given: Any, input_data: Any) -> Continued | None:
    """Return the run that a session state continues; ``None`` if it is the beginning of one.

    Raises:
        ConfigurationError: the store does not hold the run, or not how it began.
        CorruptStoreError: how it began does not verify.
    """
    noted = given.get(_KEY) if isinstance(given, Mapping) else None
    if not noted:
        return None
    run_id = noted["run_id"]
    if HostStore(store).facts(run_id) is None:
        raise ConfigurationError(
            f"the session_state continues run {run_id!r}, which store {store.url!r} does not hold: "
            "give the executor the store of that run, or, to begin anew with its memory, remove "
            f"the key {_KEY!r} from the session_state"
        )
    began = _read(store, run_id, _BEGAN)
    if began is None:
        raise ConfigurationError(
            f"store {store.url!r} lacks the record of how run {run_id!r} began; call it with its "
            "first input, and without the session_state"
        )
    first, state = began
    changed = _changed(given.get("memory"), noted["memory"])
    if not given.get("paused_at"):  # without it, hive also writes the input to the memory
        changed.update(_changed(input_data, {key: _print(value) for key, value in first.items()}))
    return Continued(run_id, first, state, noted["visits"], changed)


def _changed(values: Any, prints: Mapping[str, str]) -> dict[str, Any]:
    """Return what has another value; what has no digest counts as it was."""
    if not isinstance(values, Mapping):
        return {}
    return {
        key: value
        for key, value in values.items()
        if (now := _print(value)) and now != prints.get(key)
    }


def _print(value: Any) -> str:
    with contextlib.suppress(DigestError):
        return digest.digest(value)
    return ""


def _read(store: Store, run_id: str, name: str) -> Any:
    """Return an object stored beside the records of a run, or ``None`` if it is missing.

    Raises:
        CorruptStoreError: it does not verify.
    """
    try:
        header, payload = HostStore(store).get(run_id, name)
    except DamagedError as error:
        if store.get(run_id, name) is None:
            return None
        raise CorruptStoreError(
            f"the session state of run {run_id!r} in store {store.url!r} is damaged ({name}: "
            f"{error}). Restore it from a backup, or start over: stepwise forget {run_id}",
            path=store.url,
            errno=None,
        ) from None
    return codec.decode(payload, header["form"])


class Session:
    """The session states of a run, as one execution knows them."""

    def __init__(
        self,
        run: HostedRun,
        input_data: Any,
        session_state: Any,
        going_on: Continued | None,
    ) -> None:
        self._run = run
        self._input_data, self._session_state = input_data, session_state
        self._going_on = going_on
        self._pending: dict[int, dict[str, Any]] = {}

    def go_on(self) -> None:
        """Store the changes since the run stopped, together with earlier changes.

        Raises:
            CorruptStoreError: what was changed before does not verify.
            NotRecordableError: what was changed cannot be kept.
        """
        run, going_on = self._run, self._going_on
        self._pending = _read(run.call.store, run.run_id, _CHANGED) or {}
        if going_on is not None and going_on.changed:
            earlier = self._pending.get(going_on.visits, {})
            self._pending[going_on.visits] = {**earlier, **going_on.changed}
            self._put(_CHANGED, self._pending)

    def begin(self) -> None:
        """Store the input with which the run began."""
        self._put(_BEGAN, (dict(self._input_data or {}), self._session_state), durable=False)

    def _put(self, name: str, value: Any, *, durable: bool = True) -> None:
        encoded = codec.encode(value, "the session state")
        self._run.put(name, {"form": encoded.form}, encoded.data, durable=durable)

    def changes(self, visits: int) -> Iterator[tuple[str, Any]]:
        """Apply the changes that were made when so many visits, or fewer, had succeeded."""
        for each in sorted(self._pending):
            if each <= visits:
                yield from self._pending.pop(each).items()

    def noted(self, result: Any, visits: int) -> Any:
        """Return a result whose session state continues this run."""
        state = getattr(result, "session_state", None)
        if isinstance(state, dict):
            memory = state.get("memory")
            held = memory if isinstance(memory, Mapping) else {}
            prints = {key: _print(value) for key, value in held.items()}
            state[_KEY] = {"run_id": self._run.run_id, "visits": visits, "memory": prints}
        return result
