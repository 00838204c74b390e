"""The search field, and the pages of a list."""

import itertools
import re
import time

import pytest

import stepwise
from stepwise import spend, step, workflow
from stepwise._runtime import settings
from stepwise.stores import open_store
from stepwise.testing import fresh_store
from stepwise.ui import _reading
from stepwise.ui._reading import RunReader, WrongWordsError, find, parsed

NOW = 1_800_000_000.0


@step
def look(number):
    spend(usd=float(number), tokens=1000 * number)
    return number


@workflow
def agent(number):
    return look(number)


@workflow
def other(text):
    raise TimeoutError(f"no answer from {text}")


@workflow
def family(number):
    return agent(number)


def found(query, before="", store=None, **how):
    store = store or open_store(settings.store())
    page = find(store, parsed(query, time.time()), before, RunReader(store).rows())
    return [row.id for row in page.rows]


@pytest.fixture
def runs():
    agent.options(run_id="one", tags={"customer": "ann", "tier": "gold"})(1)
    agent.options(run_id="two", tags={"customer": "bob"})(2)
    for name in ("Rome <b>", "Turin"):
        with pytest.raises(TimeoutError):
            other.options(run_id=f"failed {name}")(name)
    family.options(run_id="parent")(3)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["parent", "failed Turin", "failed Rome <b>", "two", "one"]),
        ("status:failed", ["failed Turin", "failed Rome <b>"]),
        ("workflow:agent", ["two", "one"]),
        ("tag:customer=ann", ["one"]),
        ("tag:customer=ann tag:tier=gold", ["one"]),
        ("tag:customer=ann status:failed", []),
        ("error:turin", ["failed Turin"]),
        ('error:"answer from Rome"', ["failed Rome <b>"]),
        ("turin", ["failed Turin"]),
        ("number=2", ["two"]),
        ("bob", ["two"]),
        ("<b>", ["failed Rome <b>"]),
        ("cost:>1.5", ["parent", "two"]),
        ("cost:<1 workflow:agent", []),
        ("since:1h", ["parent", "failed Turin", "failed Rome <b>", "two", "one"]),
        ("nothing:such", []),
        ("http://x", []),
    ],
)
@pytest.mark.usefixtures("runs")
def test_words(query, ids):
    """Each word of a search holds for the runs that it finds, the newest first."""
    assert found(query) == ids


@pytest.mark.parametrize(
    "query",
    ["status:broken", "tag:customer", "tag:=x", "since:yesterday", "since:2", "cost:1", "cost:>x"]
    + ['error:"open', "cost:many", "since:" + "9" * 400 + "d"],
)
def test_words_that_are_wrong(query):
    """A word that cannot be understood is answered with how to write it."""
    with pytest.raises(WrongWordsError):
        parsed(query, NOW)


@pytest.mark.usefixtures("runs")
def test_a_wrong_search_is_said_on_its_page(page):
    """The page of a wrong search says what is wrong, and keeps what was typed."""
    text = page.get("/?q=status%3Abroken+%3Cb%3E")
    assert "status:broken is none of" in text
    assert "status:broken &lt;b&gt;" in text


@pytest.fixture(params=["memory:many", "disk", "without an order"])
def many(request, tmp_path):
    """A store with 23 runs, which lists them by an order of its own, or by none."""
    with fresh_store("memory:many" if request.param == "memory:many" else tmp_path / "s") as store:
        for number in range(23):
            agent.options(run_id=f"run {number:02}")(0)

        class Plain:
            def __getattr__(self, name):
                if name == "newest_heads":
                    raise AttributeError(name)
                return getattr(store, name)

        yield Plain() if request.param == "without an order" else store


def test_pages(many, monkeypatch):
    """A list is read page by page: each run is on one page, in the order of the runs."""
    monkeypatch.setattr(_reading, "PAGE", 10)
    reader, before, pages = RunReader(many), "", []
    while before is not None:
        page = find(many, parsed("", NOW), before, reader.rows())
        pages.append([row.id for row in page.rows])
        before = page.older
    assert [len(each) for each in pages] == [10, 10, 3]
    assert [*itertools.chain(*pages)] == [f"run {number:02}" for number in reversed(range(23))]


def test_a_page_that_begins_after_a_run_that_is_gone(page, monkeypatch):
    """A page whose cursor was deleted shows the newest runs, and says so."""
    monkeypatch.setattr(_reading, "PAGE", 2)
    for number in range(4):
        agent.options(run_id=f"run {number}")(0)
    older = re.search(r'href="([^"]*before=[^"]*)"', page.get("/"))[1].replace("&amp;", "&")
    assert "run 1" in page.get(older)
    stepwise.get_run("run 2").delete()
    text = page.get(older)
    assert "is gone" in text
    assert "run 3" in text


def test_a_search_that_takes_long(page, monkeypatch):
    """A search looks for a moment, says how far that went, and goes on from there by a link."""
    for number in range(6):
        agent.options(run_id=f"run {number}")(number)
    monkeypatch.setattr(_reading, "_SECONDS", -1.0)  # there is time for one run
    texts = [*page.walk("/?q=run")]
    assert ["searched 1 run;" in text for text in texts] == [*[True] * (len(texts) - 1), False]
    seen = [re.findall(r'href="/runs/run%20(\d)"', text) for text in texts]
    assert [*itertools.chain(*seen)] == ["5", "4", "3", "2", "1", "0"]


def test_runs_with_other_ids_take_time_too(page, monkeypatch):
    """A search for an id that no run has ends after a moment, and says how far that went."""
    for number in range(2):
        agent.options(run_id=f"run {number}")(number)
    monkeypatch.setattr(_reading, "_SECONDS", -1.0)
    assert "searched 1 run;" in page.get("/?q=id:other")


@pytest.mark.usefixtures("runs")
def test_how_far_a_search_went_is_kept_up_to_date(page, monkeypatch):
    """How far back a search went, and what is left out, is in the part that a change replaces."""
    monkeypatch.setattr(_reading, "_SECONDS", -1.0)
    for path, part, said in (
        ("/?q=id:none", "runs", "searched 1 run;"),
        ("/inbox", "inbox", "not read yet"),
    ):
        before, _, after = page.get(path).partition(f'data-live="{part}"')
        assert (said in before, said in after) == (False, True)
