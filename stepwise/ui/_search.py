"""The search field: its words, and a page of the runs that they find.

A word finds itself in a run's name, arguments, id, error and tags.  The other words are::

    status:crashed workflow:agent tag:customer=ann since:2d error:timeout cost:>1 tokens:>5000
    id:trip children:yes

All of them have to hold.  Quotes keep a text with spaces together: ``error:"timed out"``.

Listings find a status, a workflow and tags by an index; anything else opens every head.  So a
search looks for a fraction of a second, and its page says how far back that went.
"""

from __future__ import annotations

import contextlib
import operator
import re
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

from stepwise._journal.records import RunFacts
from stepwise._runs.run import Listed, each_listed
from stepwise._runs.steps import RunStatus
from stepwise._runtime.facts import NamedTuple
from stepwise._runtime.messages import count
from stepwise.errors import RunNotFoundError
from stepwise.stores import Store
from stepwise.ui._view import RunRow

PAGE = 50  # runs
_SECONDS = 0.1  # that a page of a search looks for runs
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_STATUSES = get_args(RunStatus)


class WrongWordsError(Exception):
    """A search that cannot be understood; the text says how to write it."""


class SearchPage(NamedTuple):
    """A page of a listing.

    Args:
        rows: the runs.
        older: the cursor of the next page; ``None`` on the last page.
        note: how far back the search went, if it did not fill its page; else empty.
    """

    rows: list[RunRow]
    older: str | None
    note: str


class Search(NamedTuple):
    """The conditions of a search; see the module.

    Args:
        workflow, status, tags: as of ``each_listed``.
        begins: the beginning of the ids.
        children: child runs, too.
        where: further conditions.
    """

    workflow: str | None = None
    status: RunStatus | None = None
    tags: dict[str, str] = {}  # noqa: RUF012  # never changed
    begins: str = ""
    children: bool = False
    where: tuple[Callable[[RunFacts], bool], ...] = ()

    def is_meant(self, facts: RunFacts) -> bool:
        """Return whether a run is looked for, as far as its facts say."""
        if facts.parent and not self.children:
            return False
        return all(holds(facts) for holds in self.where)


def parsed(query: str, now: float) -> Search:
    """Read the words of the search field.

    Args:
        now: in seconds since 1970.

    Raises:
        WrongWordsError: a word cannot be understood.
    """
    try:
        words = shlex.split(query)
    except ValueError:
        raise WrongWordsError('a quote is not closed: error:"timed out"') from None
    search = Search(tags={})
    for word in words:
        name, colon, value = word.partition(":")
        reader = _READERS.get(name) if colon else None
        if reader is None:
            search = _with(search, _says(word, _texts))
        else:
            search = reader(search, value, now)
    return search


def _with(search: Search, condition: Callable[[RunFacts], bool]) -> Search:
    return search._replace(where=(*search.where, condition))


def _texts(facts: RunFacts) -> Iterator[str]:
    yield from (facts.label, facts.arguments, facts.run_id, facts.error)
    yield from (f"{name}={text}" for name, text in facts.tags.items())


def _says(word: str, texts: Callable[[RunFacts], Iterator[str]]) -> Callable[[RunFacts], bool]:
    folded = word.casefold()
    return lambda facts: any(folded in text.casefold() for text in texts(facts))


def _status(search: Search, value: str, _: float) -> Search:
    if value not in _STATUSES:
        raise WrongWordsError(f"status:{value} is none of {', '.join(_STATUSES)}")
    status: Any = value
    return search._replace(status=status)


def _tag(search: Search, value: str, _: float) -> Search:
    name, sign, text = value.partition("=")
    if not (name and sign and text):
        raise WrongWordsError(f"tag:{value} has no value: write tag:customer=ann")
    return search._replace(tags={**search.tags, name: text})


def _since(search: Search, value: str, now: float) -> Search:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smhdw])", value)
    if match is None:
        raise WrongWordsError(f"since:{value} is not a duration: write since:90s, 15m, 2h, 30d, 4w")
    start = now - float(match[1]) * _UNITS[match[2]]
    return _with(search, lambda facts: facts.updated_at >= start)


def _error(search: Search, value: str, _: float) -> Search:
    return _with(search, _says(value, lambda facts: iter((facts.error,))))


def _amount(unit: int, name: str) -> Callable[[Search, str, float], Search]:
    """Return the reader of a limit on an amount that a run has spent.

    Args:
        unit: the place of the amount in :class:`stepwise.Spent`.
        name: the word.
    """

    def read(search: Search, value: str, _: float) -> Search:
        match = re.fullmatch(r"([<>]=?)(\d{1,12}(?:\.\d+)?)", value)
        if match is None:
            raise WrongWordsError(f"{name}:{value} is no limit: write {name}:>1 or {name}:<0.5")
        compare, limit = _COMPARED[match[1]], float(match[2])
        return _with(
            search,
            lambda facts: compare(facts.tally.spent[unit] if facts.tally is not None else 0, limit),
        )

    return read


_READERS: dict[str, Callable[[Search, str, float], Search]] = {
    "status": _status,
    "workflow": lambda search, value, _: search._replace(workflow=value),
    "tag": _tag,
    "since": _since,
    "error": _error,
    "cost": _amount(0, "cost"),
    "tokens": _amount(1, "tokens"),
    "id": lambda search, value, _: search._replace(begins=value),
    "children": lambda search, value, _: search._replace(children=value != "no"),
}


# -- a page ---------------------------------------------------------------------------------------


class _EnoughError(Exception):
    """The page is full, or its time is over."""


def find(
    store: Store, search: Search, before: str, row_of: Callable[[Listed], RunRow]
) -> SearchPage:
    """Return a page of the runs that a search finds, newest first.

    Args:
        before: the cursor of the page; empty for the first page.
        row_of: makes a row of a run.
    """
    if before and store.head(before) is None:
        raise RunNotFoundError(
            f"the run {before!r}, after which this page begins, is gone", run_id=before
        )
    until, last, looked = time.monotonic() + _SECONDS, "", 0
    rows: list[RunRow] = []

    def can_be(run_id: str) -> bool:
        nonlocal last, looked
        if len(rows) == PAGE or (looked and time.monotonic() > until):
            raise _EnoughError
        last, looked = run_id, looked + 1
        return run_id.startswith(search.begins)

    asked = search.workflow, search.status, store, search.tags
    try:
        for each in each_listed(*asked, where=search.is_meant, ids=can_be, before=before):
            with contextlib.suppress(RunNotFoundError):  # deleted meanwhile
                rows.append(row_of(each))
    except _EnoughError:
        note = f"searched {count(looked, 'run')}; older ones may follow"
        return SearchPage(rows, last, "" if len(rows) == PAGE else note)
    return SearchPage(rows, None, "")
