"""The rows of branches in tables, on the page and in JSON: variables, result, where each parted.

A row costs a read of what the branch has recorded itself.  The records that it shares are not read,
and those of its base once for all rows, only as far as the branches are like it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from stepwise._checkpoints.checkpoints import PREFIX, load_checkpoint, number_of
from stepwise._checkpoints.references import Vault
from stepwise._execution.budget import Spent
from stepwise._journal.journal import Position, each_branch, read, read_end, read_entries
from stepwise._journal.records import ADOPTED, NO_SUMS, Call, Entry, RunFacts, Sums
from stepwise._journal.seal import Seal
from stepwise._runs.paths import short
from stepwise._runs.steps import error_line
from stepwise._runtime.facts import NamedTuple
from stepwise._values.preview import NOT_SHOWN, NotShown
from stepwise.errors import UnreadableValueError
from stepwise.stores import Store

_ROOM = 80  # characters of a value, about
_UNKNOWN = "<cannot be loaded here>"


def in_order(store: Store, seal: Seal, run_id: str, most: int | None = None) -> list[RunFacts]:
    """Return the facts of the branches of a run, by their heads, in the order of their making.

    Args:
        most: only the newest ones, if there are more; by default all of them.
    """
    found = itertools.islice(each_branch(store, seal, run_id), most)
    return sorted(found, key=lambda facts: (facts.created_at, _place(facts)))


def _place(facts: RunFacts) -> int:
    """Return the place of a branch among those that were made together."""
    number = facts.run_id.removeprefix(f"{facts.base}.").partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def variation_of(store: Store, seal: Seal, facts: RunFacts) -> dict[str, Any]:
    """Return the variables that a branch was given, as its first checkpoint has them."""
    names, vault = store.names(facts.run_id, PREFIX), Vault(store, seal, facts.run_id)
    first = next(store.read(facts.run_id), (0, b""))[0]
    loaded = load_checkpoint(vault, names[0]) if names and number_of(names[0]) < first else None
    if loaded is None or not loaded.state.changed:
        return {}
    before = load_checkpoint(Vault(store, seal, facts.base), loaded.name)
    inherited = len(before.state.changed) if before is not None else 0
    given = [name for name, *_ in loaded.state.changed[inherited:]]
    try:
        changes = loaded.changes()
    except UnreadableValueError:
        changes = dict.fromkeys(given, NotShown(_UNKNOWN))
    return {name: changes[name] for name in given}


def shown_variables(facts: RunFacts, variation: Mapping[str, Any]) -> dict[str, str]:
    """Return variables as text: hidden arguments, secrets by name and credentials are masked."""
    hidden = {*facts.hidden.split(), *facts.secrets.split()}
    shown = {name: NOT_SHOWN if name in hidden else value for name, value in variation.items()}
    return {name: short(value, name, _ROOM).text for name, value in shown.items()}


def variation_text(variables: Mapping[str, str]) -> str:
    """Return variables on one line."""
    return ", ".join(f"{name}={text}" for name, text in variables.items()) or "as it was"


def effects_text(effects: str) -> str:
    """Return what happens to the side effects of a branch, in words."""
    known = {
        "refuse": "refused",
        "collect": "collected as proposals",
        ADOPTED: "made, since the branch was adopted",
    }
    return known.get(effects, f"answered by {effects.partition(' ')[2]}")


class BranchRows:
    """Makes the rows of the branches of one run."""

    def __init__(self, store: Store, seal: Seal, base: str) -> None:
        self._store, self._seal, self._base = store, seal, base
        self._calls: dict[int, _LikeCalls] = {}

    def row(self, run: Any, variation: Mapping[str, Any], error: str = "") -> dict[str, Any]:
        """Return what a table shows of a branch, as plain data.

        Args:
            run: the branch.
            variation: the variables that it was given.
            error: what stopped it in this process, if that is not recorded.
        """
        facts, _, status = run._standing()
        own = self._read(facts)
        amounts = run.spent if own.has_children or facts.status == "running" else own.sums
        variables = shown_variables(facts, variation)
        outcome = self._outcome(facts, own) or error
        return self._row(facts, status, variables, outcome, amounts, own.parted)

    def unread(self, facts: RunFacts, problem: str) -> dict[str, Any]:
        """Return the row of a branch whose records cannot be read."""
        return self._row(facts, facts.status, {}, problem, NO_SUMS, None)

    def _row(
        self,
        facts: RunFacts,
        status: str,
        variables: Mapping[str, str],
        outcome: str,
        amounts: Spent | Sums,
        parted: Call | None,
    ) -> dict[str, Any]:
        return {
            "run": facts.run_id,
            "base": facts.base,
            "variables": variables,
            "variation": variation_text(variables),
            "effects": facts.effects,
            "status": status,
            "result": outcome,
            "steps": amounts.steps,
            "usd": amounts.usd,
            "seconds": round(amounts.seconds, 3),
            "parted": f"step {parted.number} {parted.name}({parted.arguments})" if parted else "",
            "parted_at": parted.number if parted else None,
        }

    def parted(self, facts: RunFacts) -> Call | None:
        """Return the first call of a branch that its base made otherwise, or not at all."""
        return self._read(facts).parted

    def _read(self, facts: RunFacts) -> _OwnRecords:
        """Read what a branch has recorded itself; the first record is that of its beginning."""
        place = self._store, self._seal
        cut = next(self._store.read(facts.run_id), (1, b""))[0] - 1
        like = self._calls.get(cut)
        if like is None:
            entries = read_entries(*place, self._base, Position(cut, None))
            like = self._calls[cut] = _LikeCalls(entries)
        parted, calls, children, sums = None, dict[int, Call](), False, NO_SUMS
        waits = {each.number for each in facts.waits if each.kind == "approval"}
        for entry, after in read(*place, facts.run_id, Position(cut, None)):
            sums = after.sums
            call = entry.call if isinstance(entry, Entry) else None
            if call is None:
                continue
            if parted is None and like.at(call.number) != (call.name, call.digest):
                parted = call
            if call.number in waits:
                calls[call.number] = call
            children = children or bool(call.child)
        return _OwnRecords(parted, calls, sums, children)

    def _outcome(self, facts: RunFacts, own: _OwnRecords) -> str:
        """Return the result or the exception of a branch, or what it proposes."""
        end = read_end(self._store, self._seal, facts) if facts.status == "completed" else None
        if end is not None and end.ended is not None:
            return end.ended.preview
        asked = [each for each in facts.waits if each.kind == "approval"]
        calls = [own.waiting.get(each.number) for each in asked]
        told = [f"{call.name}({call.arguments})" if call is not None else "" for call in calls]
        proposed = [
            text if not each.run and text else each.name
            for each, text in zip(asked, told, strict=True)
        ]
        return "; ".join(f"proposes {each}" for each in proposed) or error_line(facts.error)


class _OwnRecords(NamedTuple):
    """The facts that the rows need of the records that a branch has made itself.

    Args:
        parted: the first call that its base made otherwise.
        waiting: the calls that wait for an answer, by number.
        sums: what they have spent.
        has_children: whether some are child runs, which may have spent more.
    """

    parted: Call | None
    waiting: Mapping[int, Call]
    sums: Sums
    has_children: bool


class _LikeCalls:
    """The calls of a base by their numbers, read as far as they are asked for."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._known: dict[int, tuple[str, str]] = {}

    def at(self, number: int) -> tuple[str, str] | None:
        """Return the name and the digest of a call; ``None`` if there is none of that number."""
        while number not in self._known:
            entry = next(self._entries, None)
            if entry is None:
                return None
            if entry.call is not None:
                self._known[entry.call.number] = entry.call.name, entry.call.digest
        return self._known[number]
