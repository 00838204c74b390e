"""The page of runs on a Postgres server: its list, search, inbox, actions and live events."""

import asyncio
import errno
import re
import threading

import pytest

pytest.importorskip("starlette")
pytest.importorskip("psycopg")

import psycopg
from browsing import Browser, Reading, Turns, agent, asking
from pooler import Pooler

import stepwise
from stepwise import StoreError, stores
from stepwise.stores import Owner
from stepwise.stores.postgres import PostgresStore
from stepwise.ui import _reading
from stepwise.ui._access import LOOPBACK, Access
from stepwise.ui._app import App


@pytest.fixture
def browse(store, monkeypatch):
    """Opens the page of a database."""
    monkeypatch.setattr(_reading, "_SECONDS", 60.0)  # a busy machine leaves nothing out
    stepwise.configure(store=store, suspend_after=0)
    opened = []

    def entered(where=store, **how):
        opened.append(App(stores.open_store(where), Access(hosts=LOOPBACK), **how))
        return Browser(opened[-1]).enter()

    yield entered
    for each in opened:
        each.reader.store.close()
    for each in stores._open.values():
        each.close()
    stores._open.clear()


@pytest.fixture
def page(browse):
    """The page of a database, in a browser."""
    return browse()


def test_pages_and_search(page, monkeypatch):
    """Runs are listed page by page, the newest first, and found by words."""
    monkeypatch.setattr(_reading, "PAGE", 2)
    for number in range(5):
        agent.options(run_id=f"run {number}", tags={"odd": str(number % 2)})(number)
    seen = [re.findall(r'href="/runs/run%20(\d)"', text) for text in page.walk()]
    assert seen == [["4", "3"], ["2", "1"], ["0"]]
    found = page.get("/?q=tag:odd=1+number=3")
    assert set(re.findall(r"/runs/run%20(\d)", found)) == {"3"}


def test_open_matters_and_an_answer(page):
    """The inbox has what waits for a person, until she has answered it on its page."""
    with pytest.raises(ValueError, match="none"):
        agent.options(run_id="bad")(-1)
    with pytest.raises(stepwise.RunSuspended):
        asking.options(run_id="trip")("winds")
    reader = page.app.reader
    assert [row.id for row in reader.inbox().resumable] == ["bad"]
    (asked,) = reader.inbox().questions
    fields = {"step": asked.what.step, "ticket": asked.what.ticket}
    assert page.post("/runs/trip/approve", **fields) == "/runs/trip"
    assert (reader.inbox().questions, reader.open_matters().total) == ([], 2)
    assert [row.id for row in reader.inbox().resumable] == ["trip", "bad"]  # it can go on now


def test_live(page):
    """An open page hears of each step that a run makes."""

    async def story():
        busy = Turns("busy", 2)
        await busy.began()
        reading = await Reading(page.app.watcher, "busy").open()
        for _ in range(2):
            await busy.next()
            assert await reading.until("busy") == {"busy"}
        await busy.task
        await reading.close()

    asyncio.run(story())


# -- a server that is away -------------------------------------------------------------------------


def test_a_server_that_is_away(server, page):
    """Without the server a page says so after two seconds, and is there again with the server."""
    agent.options(run_id="trip")(1)
    page.get("/runs/trip")
    token = page.token
    server.stop()
    for path in ("/", "/inbox", "/runs/trip?step=1"):
        text = page.get(path, 503)
        assert "did not answer for 2 seconds" in text
        assert f'href="{path}" class="button">Retry<' in text
    text = page.post("/runs/trip/delete", 503, token=token)
    assert 'href="/runs/trip" class="button">Retry<' in text
    server.start()
    assert "completed" in page.get("/runs/trip?step=1")


def test_a_server_that_does_not_answer(proxy, postgres, browse):
    """A network that drops packets is given up after two seconds, too."""
    page = browse(proxy.url(postgres))
    agent.options(run_id="trip")(1)
    page.get("/runs/trip")
    proxy.stall()
    assert "did not answer for 2 seconds" in page.get("/runs/trip", 503)
    proxy.flow()
    page.get("/runs/trip")


def test_events_go_on_when_the_server_is_back(server, page, monkeypatch):
    """An open page hears when the server is back, and of what happens after that."""
    watcher, has_failed = page.app.watcher, threading.Event()
    look = watcher._look

    def looking(wanted):
        try:
            return look(wanted)
        except StoreError:
            has_failed.set()
            raise

    monkeypatch.setattr(watcher, "_look", looking)

    async def story():
        reading = await Reading(watcher).open()
        server.stop()
        await asyncio.to_thread(has_failed.wait)
        server.start()
        assert (await reading.next())["runs"] == []
        await asyncio.to_thread(agent.options(run_id="after"), 1)
        await reading.until("after")
        await reading.close()

    asyncio.run(story())


# -- to read only ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pooled", [False, True])
def test_a_page_to_look_at_cannot_write(postgres, browse, pooled):
    """With ``read_only`` the server refuses each write of the page, by way of a pooler, too."""
    agent.options(run_id="trip")(1)
    page = browse(read_only=True)
    assert "completed" in page.get("/runs/trip")
    page.get("/inbox")
    with Pooler(postgres, 1) as pooler:
        url = pooler.url() if pooled else postgres
        reading, writing = PostgresStore(url, to_read=True), PostgresStore(url)
        delete = "DELETE FROM stepwise.runs"
        with pytest.raises(StoreError, match="read-only transaction") as caught:
            reading._connections.use(lambda connection: connection.execute(delete))
        assert caught.value.errno == errno.EROFS
        assert [head.run_id for head in reading.newest_heads()] == ["trip"]
        writing.acquire("other", Owner(1, "here", 1.0))  # a pooler's connection is no other now
        reading.close()
        writing.close()


def test_nothing_is_made_to_read_only(postgres):
    """A database without a store gets none from a page that only reads."""
    reading = PostgresStore(postgres, to_read=True)
    with pytest.raises(StoreError, match="there is no store at"):
        reading.head("trip")
    reading.close()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT to_regnamespace('stepwise')").fetchone() == (None,)
