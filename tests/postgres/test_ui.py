"""The page of runs on a Postgres server: its list, search, inbox, actions and live events."""

import asyncio
import errno
import json
import re
import threading

import pytest

pytest.importorskip("starlette")
pytest.importorskip("psycopg")

import psycopg
from pooler import Pooler
from starlette.testclient import TestClient

import stepwise
from stepwise import StoreError, step, stores, workflow
from stepwise._journal.inbox import this_person
from stepwise.stores import Owner
from stepwise.stores.postgres import PostgresStore
from stepwise.ui import _reading, _search
from stepwise.ui._access import LOOPBACK, Access
from stepwise.ui._app import App

PLACE = "http://127.0.0.1:8276"


@step
def look(number):
    if number < 0:
        raise ValueError(f"{number} is none")
    return number


@workflow
def agent(number):
    return look(number)


@workflow
def asking(topic):
    return stepwise.approve("send it?", details={"topic": topic})


async def facts(events):
    """The facts of the next event of a change."""
    while True:
        event = await anext(events)
        if event.startswith("event: changed"):
            return json.loads(event.partition("data: ")[2])


@pytest.fixture
def browse(store, monkeypatch):
    """Opens the application for a database; returns it, and a browser."""
    monkeypatch.setattr(_reading, "_SECONDS", 60.0)  # a busy machine leaves nothing out
    stepwise.configure(store=store, suspend_after=0)
    opened = []

    def entered(where=store, **how):
        app = App(stores.open_store(where), Access(hosts=LOOPBACK), **how)
        opened.append(app)
        client = TestClient(app, base_url=PLACE)
        client.get("/", params={"token": app.access.token})
        return app, client

    yield entered
    for each in opened:
        each.reader.store.close()
    for each in stores._open.values():
        each.close()
    stores._open.clear()


@pytest.fixture
def page(browse):
    """The application for a database, and a browser that has opened it."""
    return browse()


def test_pages_and_search(page, monkeypatch):
    """Runs are listed page by page, the newest first, and found by words."""
    _, client = page
    monkeypatch.setattr(_search, "PAGE", 2)
    for number in range(5):
        agent.options(run_id=f"run {number}", tags={"odd": str(number % 2)})(number)
    path, seen = "/", []
    while path:
        text = client.get(path).text
        seen += re.findall(r'href="/runs/run%20(\d)"', text)
        older = re.search(r'href="([^"]*before=[^"]*)"', text)
        path = older[1].replace("&amp;", "&") if older else ""
    assert list(dict.fromkeys(seen)) == ["4", "3", "2", "1", "0"]
    found = client.get("/?q=tag:odd=1+number=3").text
    assert set(re.findall(r"/runs/run%20(\d)", found)) == {"3"}


def test_open_matters_and_an_answer(page):
    """The inbox has what waits for a person, until she has answered it on its page."""
    app, client = page
    with pytest.raises(ValueError, match="none"):
        agent.options(run_id="bad")(-1)
    with pytest.raises(stepwise.RunSuspended):
        asking.options(run_id="trip")("winds")
    inbox = app.reader.inbox()
    assert [row.id for row in inbox.resumable] == ["bad"]
    (asked,) = inbox.questions
    token = re.search(r'name="token"[^>]*value="(\w+)"', client.get("/inbox").text)[1]
    data = {"token": token, "step": asked.what.step, "ticket": asked.what.ticket}
    answer = client.post("/runs/trip/approve", data=data, headers={"origin": PLACE})
    assert answer.status_code == 200
    assert (app.reader.inbox().questions, app.reader.open_matters().total) == ([], 2)
    assert [row.id for row in app.reader.inbox().resumable] == ["trip", "bad"]  # it can go on now


def test_live(page):
    """An open page hears of each step that a run makes."""
    app, _ = page
    began, go = asyncio.Event(), asyncio.Event()

    @step
    async def turn(number):
        began.set()
        await go.wait()
        go.clear()
        return number

    @workflow(run_id="busy")
    async def busy():
        for number in range(2):
            await turn(number)

    async def story():
        task = asyncio.create_task(busy())
        await began.wait()
        events = app.watcher.events("busy")
        assert (await facts(events))["runs"] == []
        for _ in range(2):
            began.clear()
            go.set()
            assert (await facts(events))["runs"] == ["busy"]
        await task
        await events.aclose()

    asyncio.run(story())


# -- a server that is away -------------------------------------------------------------------------


def test_a_server_that_is_away(server, page):
    """Without the server a page says so after two seconds, and is there again with the server."""
    app, client = page
    agent.options(run_id="trip")(1)
    assert client.get("/runs/trip").status_code == 200
    server.stop()
    for path in ("/", "/inbox", "/runs/trip?step=1"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert "did not answer for 2 seconds" in answer.text
        assert f'href="{path}" class="button">Retry<' in answer.text
    data = {"token": app.access.form_token(this_person())}
    answer = client.post("/runs/trip/delete", data=data, headers={"origin": PLACE})
    assert answer.status_code == 503
    assert 'href="/runs/trip" class="button">Retry<' in answer.text
    server.start()
    assert "completed" in client.get("/runs/trip?step=1").text


def test_a_server_that_does_not_answer(proxy, postgres, browse):
    """A network that drops packets is given up after two seconds, too."""
    _, client = browse(proxy.url(postgres))
    agent.options(run_id="trip")(1)
    assert client.get("/runs/trip").status_code == 200
    proxy.stall()
    answer = client.get("/runs/trip")
    assert (answer.status_code, "did not answer for 2 seconds" in answer.text) == (503, True)
    proxy.flow()
    assert client.get("/runs/trip").status_code == 200


def test_events_go_on_when_the_server_is_back(server, page, monkeypatch):
    """An open page hears when the server is back, and of what happens after that."""
    app, _ = page
    look, has_failed = app.watcher._look, threading.Event()

    def looking(wanted):
        try:
            return look(wanted)
        except StoreError:
            has_failed.set()
            raise

    monkeypatch.setattr(app.watcher, "_look", looking)

    async def story():
        events = app.watcher.events()
        assert (await facts(events))["runs"] == []
        server.stop()
        await asyncio.to_thread(has_failed.wait)
        server.start()
        assert (await facts(events))["runs"] == []
        await asyncio.to_thread(agent.options(run_id="after"), 1)
        while "after" not in (await facts(events))["runs"]:
            pass
        await events.aclose()

    asyncio.run(story())


# -- to read only ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pooled", [False, True])
def test_a_page_to_look_at_cannot_write(postgres, browse, pooled):
    """With ``read_only`` the server refuses each write of the page, by way of a pooler, too."""
    agent.options(run_id="trip")(1)
    _, client = browse(read_only=True)
    assert "completed" in client.get("/runs/trip").text
    assert client.get("/inbox").status_code == 200
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
