"""What the runs of a store have spent, by workflow, model, day and tag."""

import re

import pytest

import stepwise
from stepwise import spend, step, workflow
from stepwise._runtime import settings
from stepwise.stores import open_store
from stepwise.ui import _reading
from stepwise.ui._reading import WAYS, RunReader, spending


@step
def ask(usd):
    spend(usd=usd, tokens=int(usd * 100))
    return usd


@workflow
def agent(usd):
    return ask(usd) + ask(1.0)


@step
def check():
    if not is_well:
        raise ValueError


@workflow
def other(usd):
    first = ask(usd)
    check()
    return agent(first)


is_well = [True]


def rows(by):
    found = spending(RunReader(open_store(settings.store())), by)
    return found, {row.name: row for row in found.rows}


def test_by_workflow_and_tag():
    """Amounts are summed by workflow and by tag; a child run counts with its parent, once."""
    agent.options(tags={"customer": "ann"})(2.0)
    agent.options(tags={"customer": "ann", "tier": "gold"})(4.0)
    other(8.0)
    found, named = rows("workflow")
    assert {name: (row.runs, row.usd) for name, row in named.items()} == {
        "agent": (2, 8.0),
        "other": (1, 17.0),
    }
    assert [row.name for row in found.rows] == ["other", "agent"]
    assert (found.total.runs, found.total.usd, found.total.tokens) == (3, 25.0, 2500)
    assert (found.total.steps, found.left_out) == (8, "")
    assert named["agent"].query == "workflow:agent"
    _, named = rows("tag")
    assert {name: (row.runs, row.usd) for name, row in named.items()} == {
        "customer=ann": (2, 8.0),
        "tier=gold": (1, 5.0),
        "no tag": (1, 17.0),
    }


def test_by_day():
    """The days are those on which runs began, the newest first."""
    agent(2.0)
    (row,) = rows("day")[0].rows
    assert (len(row.name), row.usd) == (10, 3.0)


def test_what_resuming_saved():
    """What a resumed run did not spend again is summed, too."""
    is_well.clear()
    with pytest.raises(ValueError):
        other.options(run_id="trip")(8.0)
    is_well.append(True)
    other.options(run_id="trip")(8.0)
    found, _ = rows("workflow")
    assert (found.total.usd, found.total.saved["usd"]) == (17.0, 8.0)


def with_usage(count):
    """Reads records as they are read, the first outcomes as those of requests to a model."""
    known = _reading.entries_of
    usage = {"model": "m-1", "input_tokens": 30, "output_tokens": 20, "cost_usd": 0.5}

    def reading(*place):
        left = count
        for each in known(*place):
            if each.outcome is not None and left:
                left -= 1
                each = each._replace(record=each.outcome._replace(usage=usage))  # noqa: PLW2901
            yield each

    return reading


def test_by_model(monkeypatch):
    """Models come from the records of requests; what other steps spent has a row of its own."""
    agent(2.0)
    monkeypatch.setattr(_reading, "entries_of", with_usage(1))
    _, named = rows("model")
    assert (named["m-1"].usd, named["m-1"].tokens, named["m-1"].steps) == (0.5, 50, 1)
    assert (named["other steps"].usd, named["other steps"].tokens) == (2.5, 250)


def test_what_there_is_no_time_for_is_said(page, monkeypatch):
    """Spending is read for a moment; the page says how many runs that were, and can read on."""
    for usd in (1.0, 2.0):
        agent(usd)
    monkeypatch.setattr(_reading, "_SECONDS", -1.0)
    found, _ = rows("workflow")
    assert (found.total.runs, found.left_out) == (0, "the newest 0 runs are counted")
    text = page.get("/spending?by=tag")
    assert "$5.00" not in text
    path = re.search(r'href="([^"]*longer=[^"]*)"', text)[1].replace("&amp;", "&")
    text = page.get(path)
    assert "$5.00" in text
    assert "longer=" not in text


def test_a_run_that_is_too_long(monkeypatch):
    """A very long run is read for a moment; what is not read has a row, and the page says so."""
    agent(2.0)
    monkeypatch.setattr(_reading, "entries_of", with_usage(2))
    monkeypatch.setattr(_reading, "_OFTEN", 3)  # looks at the time at the second outcome
    monkeypatch.setattr(_reading, "_SECONDS", 1000.0)
    assert rows("model")[1]["m-1"].tokens == 100
    moments = iter([0.0, 0.0, 2000.0])
    monkeypatch.setattr(_reading.time, "monotonic", lambda: next(moments))
    found, named = rows("model")
    assert (named["m-1"].tokens, named["not read"].tokens) == (50, 250)
    assert (found.left_out, found.more) == ("1 run could not be read, or not to the end", True)


def test_an_unfinished_run_that_is_too_long(monkeypatch):
    """A long run in progress that nothing sums up is read on request only; the page says so."""
    seen = []

    @workflow
    def looking():
        ask(2.0)
        seen.append(rows("workflow")[0])

    monkeypatch.setattr(_reading, "_RECORDS", 1)
    looking()
    (found,) = seen
    assert (found.rows, found.total.at_least, found.more) == ([], True, True)
    assert found.left_out == "1 run could not be read, or not to the end"


def test_a_run_in_progress_counts():
    """What a run has spent counts while it is executed, as its journal says."""
    seen = []

    @workflow
    def looking():
        ask(2.0)
        seen.append(rows("workflow")[1]["looking"].usd)

    looking()
    assert seen == [2.0]


@pytest.mark.parametrize("by", WAYS)
def test_its_pages(page, by):
    """There is a page for each way; its rows lead to the runs."""
    agent(2.0)
    text = page.get(f"/spending?by={by}")
    assert "$3.00" in text
    assert stepwise.runs()
