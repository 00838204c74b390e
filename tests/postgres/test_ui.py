"""The page of runs on a Postgres server: its list, search, inbox, actions and live events."""

import asyncio
import json
import re

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

import stepwise
from stepwise import step, workflow
from stepwise.ui import _search
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


@pytest.fixture
def page(store):
    """The application for a database, and a browser that has opened it."""
    stepwise.configure(store=store, suspend_after=0)
    app = App(store, Access(hosts=LOOPBACK))
    client = TestClient(app, base_url=PLACE)
    client.get("/", params={"token": app.access.token})
    return app, client


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
    assert [row.id for row in inbox.failed] == ["bad"]
    (asked,) = inbox.questions
    token = re.search(r'name="token"[^>]*value="(\w+)"', client.get("/inbox").text)[1]
    data = {"token": token, "step": asked.question.step, "ticket": asked.question.ticket}
    answer = client.post("/runs/trip/approve", data=data, headers={"origin": PLACE})
    assert answer.status_code == 200
    assert (app.reader.inbox().questions, app.reader.open_matters().total) == ([], 1)


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

    async def facts(events):
        while True:
            event = await anext(events)
            if event.startswith("event: changed"):
                return json.loads(event.partition("data: ")[2])

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
