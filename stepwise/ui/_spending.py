"""The spending of the runs of a store, by workflow, model, day or tag.

The head of a run that ended says what it has spent, its child runs included.  Models are named by
the records of steps only.  Both are read for a tenth of a second, the newest runs first; the page
says how many runs that were, and whether one of them was too long to be read to its end.  A link
reads for longer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stepwise._execution.budget import Spent
from stepwise._journal.journal import Position, newest_mark, read_entries
from stepwise._journal.records import Entry
from stepwise._journal.summary import kept_summary
from stepwise._runs.overview import overview
from stepwise._runs.run import Listed, each_listed, number_of_runs
from stepwise._runtime.messages import count
from stepwise.errors import RunStopped, StepwiseError
from stepwise.ui._reading import RunReader
from stepwise.ui._view import Spending, SpendingRow

_SECONDS = 0.1  # that a page reads
_LONGER = 20.0  # seconds that it reads on request
_ROWS = 200  # rows of a page
_RECORDS = 5000  # of an unfinished run without a summary, that are read at once
_OFTEN = 500  # records between two looks at the time
_UNITS = ("usd", "tokens", "steps", "seconds")
_NO_MODEL, _UNREAD = "other steps", "not read"


@dataclass
class _Sum:
    """The amounts of one row."""

    runs: int = 0
    usd: float = 0.0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    saved: dict[str, float] = field(default_factory=dict)
    at_least: bool = False

    def add(self, spent: Spent) -> None:
        """Add what a run has spent."""
        self.runs += 1
        self.usd += spent.usd
        self.tokens += spent.tokens
        self.steps += spent.steps
        self.seconds += spent.seconds
        self.at_least = self.at_least or spent.at_least
        for unit, amount in (spent.saved or {}).items():
            self.saved[unit] = self.saved.get(unit, 0) + amount


def spending(reader: RunReader, by: str, *, longer: bool = False) -> Spending:
    """Return what the runs of a store have spent.

    Args:
        by: one of ``WAYS``.
        longer: True to read for longer, so that more runs are counted.
    """
    until = time.monotonic() + (_LONGER if longer else _SECONDS)
    most = _RECORDS if not longer else None
    sums: dict[str, _Sum] = {}
    queries: dict[str, str] = {}
    total, looked, children, parts = _Sum(), 0, 0, 0
    for each in each_listed(store=reader.store):
        if time.monotonic() > until:
            break
        looked += 1
        if each.facts.parent:  # its parent has the same amounts
            children += 1
            continue
        spent = _spent(reader, each, most)
        if spent is None:
            total.at_least = True
            parts += 1
            continue
        total.add(spent)
        for name, query, part in _BY[by](reader, each, spent, until):
            parts += name == _UNREAD
            sums.setdefault(name, _Sum()).add(part)
            queries[name] = query
    known = number_of_runs(reader.store)
    left = max(0, known - looked) if known is not None else 0
    told = [f"the newest {looked - children:,} runs are counted" if left else ""]
    if parts:
        told.append(f"{count(parts, 'run')} could not be read, or not to the end")
    if len(sums) > _ROWS:
        told.append(f"the largest {_ROWS} of {len(sums):,} rows are shown")
    rows = [SpendingRow(name, **vars(each), query=queries[name]) for name, each in sums.items()]
    rows.sort(key=(lambda row: row.name) if by == "day" else _size, reverse=True)
    whole = SpendingRow("all runs", **vars(total))
    more = bool(left or parts) and not longer
    return Spending(by, rows[:_ROWS], whole, "; ".join(filter(None, told)), more)


def _size(row: SpendingRow) -> tuple[float, ...]:
    return row.usd, row.tokens, row.seconds


def _spent(reader: RunReader, each: Listed, most: int | None) -> Spent | None:
    """Return what a run has spent; ``None`` if its journal cannot be read.

    Args:
        most: a longer journal is not read whole.
    """
    tally, place = each.facts.tally, (reader.store, reader.seal, each.facts.run_id)
    if each.facts.status != "running" and tally is not None:
        return Spent(*tally.spent)
    with contextlib.suppress(StepwiseError, RunStopped):
        records = newest_mark(*place).last - each.facts.pruned
        if most is not None and records > most and kept_summary(*place) is None:
            return None
        return overview(reader.store, reader.seal, each.facts, each.owner, count=1).spent
    return None


_Part = tuple[str, str, Spent]  # the name of a row, the search for its runs, and amounts


def _quoted(word: str) -> str:
    return f'"{word}"' if any(map(str.isspace, word)) else word


def _by_tag(_: RunReader, each: Listed, spent: Spent, _until: float) -> Iterable[_Part]:
    tags = [f"{name}={text}" for name, text in each.facts.tags.items()]
    return [(tag, _quoted(f"tag:{tag}"), spent) for tag in tags] or [("no tag", "", spent)]


def _by_model(reader: RunReader, each: Listed, spent: Spent, until: float) -> Iterator[_Part]:
    """Yield the amounts of each model that a run has asked, and of the remaining steps.

    Args:
        until: what is not read by then has a row of its own.
    """
    found: dict[str, Spent] = {}
    place, remaining = (reader.store, reader.seal, each.facts.run_id), _NO_MODEL
    start = Position(each.facts.pruned, None)
    with contextlib.suppress(StepwiseError, RunStopped):
        for entry in read_entries(*place, start) if spent.tokens else ():
            if entry.number % _OFTEN == 0 and time.monotonic() > until:
                remaining = _UNREAD
                break
            record = entry.outcome  # a fork has not spent what its source spent
            if record is not None and record.usage and record.spent.get("steps", 1):
                name = str(record.usage.get("model") or "unknown model")
                found[name] = _more(found.get(name, Spent()), entry)
    yield from ((name, "", part) for name, part in found.items())
    rest = {n: getattr(spent, n) - sum(getattr(p, n) for p in found.values()) for n in _UNITS}
    if not found or rest["steps"] > 0:
        rest = {unit: max(0, amount) for unit, amount in rest.items()}
        yield remaining, "", replace(spent, **rest)


def _more(before: Spent, entry: Entry) -> Spent:
    """Return amounts with those of a model request added."""
    record: Any = entry.outcome
    usage = record.usage
    tokens = sum(usage.get(f"{which}_tokens") or 0 for which in ("input", "output"))
    usd = before.usd + (usage.get("cost_usd") or 0)
    seconds = before.seconds + max(0.0, record.at - record.call.at)
    return Spent(usd, before.tokens + tokens, before.steps + 1, seconds)


_BY: dict[str, Callable[[RunReader, Listed, Spent, float], Iterable[_Part]]] = {
    "workflow": lambda _, each, spent, __: [
        (each.facts.label, _quoted(f"workflow:{each.facts.label}"), spent)
    ],
    "model": _by_model,
    "day": lambda _, each, spent, __: [
        (time.strftime("%Y-%m-%d", time.localtime(each.facts.created_at)), "", spent)
    ],
    "tag": _by_tag,
}
WAYS = tuple(_BY)
"""By what spending can be listed."""
