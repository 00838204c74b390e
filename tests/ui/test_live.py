"""Live pages: one watcher looks for all of them, and the runs pay nothing."""

import asyncio
import threading

import pytest
from browsing import Reading, Turns, agent

import stepwise
import stepwise.ui
from stepwise import workflow
from stepwise._runtime import settings
from stepwise.stores import open_store
from stepwise.testing import fresh_store
from stepwise.ui import _app, _events, _live
from stepwise.ui._live import RunWatcher
from stepwise.ui._reading import RunReader

_WATCHER = "stepwise watches runs"


@workflow
def above(number):
    return agent.options(run_id="below")(number)


@workflow
def waiting():
    return stepwise.wait_for("go")


@pytest.fixture(params=["disk", "memory:live"])
def store(request, tmp_path):
    where = tmp_path / "store" if request.param == "disk" else request.param
    with fresh_store(where) as made:
        yield made


def watching(store):
    return RunWatcher(RunReader(store))


def test_a_page_hears_of_new_and_changed_runs(store):
    """The page of all runs hears of each run that begins, makes steps and ends."""

    async def story():
        reading = await Reading(watching(store)).open()
        await asyncio.to_thread(agent.options(run_id="first"), 1)
        await reading.until("first")
        await asyncio.to_thread(agent.options(run_id="second"), 2)
        assert await reading.until("second") <= {"first", "second"}
        await reading.close()

    asyncio.run(story())


def test_each_step_of_a_run_in_progress_is_heard(store):
    """The page of a run hears of each of its steps while they happen, and of no other run."""

    async def story():
        watcher = watching(store)
        busy = Turns("busy", 3)
        await busy.began()
        reading, other = await Reading(watcher, "busy").open(), Reading(watcher, "other")
        await other.open()
        for number in range(3):
            assert await busy.next() == number
            assert await reading.until("busy") == {"busy"}
        await busy.task
        nothing = asyncio.create_task(other.next())
        await asyncio.to_thread(agent.options(run_id="other"), 1)
        assert (await nothing)["runs"] == ["other"]
        await reading.close()
        await other.close()

    asyncio.run(story())


def test_the_page_of_a_run_hears_of_its_streams(store):
    """What a run says between its steps is heard on its page."""

    async def story():
        began, go = asyncio.Event(), asyncio.Event()

        @workflow(run_id="saying")
        async def saying():
            began.set()
            await go.wait()
            stepwise.emit("a word")
            await asyncio.Event().wait()

        task = asyncio.create_task(saying())
        await began.wait()
        reading = await Reading(watching(store), "saying").open()
        go.set()
        assert await reading.until("saying") == {"saying"}
        assert [each.value for each in stepwise.get_run("saying").stream(follow=False)] == [
            "a word"
        ]
        await reading.close()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(story())


def test_the_page_of_a_run_hears_of_its_child_runs(store):
    """What a child run does is heard on the page of the run that called it."""

    async def story():
        reading = await Reading(watching(store), "above").open()
        await asyncio.to_thread(above.options(run_id="above"), 1)
        seen = set()
        while seen != {"above", "below"}:
            seen |= set((await reading.next())["runs"])
        await reading.close()

    asyncio.run(story())


@pytest.mark.usefixtures("suspends")
def test_a_page_hears_of_open_matters(store):
    """The number of open matters comes with each event, and its change is an event."""

    async def story():
        reading = await Reading(watching(store)).open()
        with pytest.raises(stepwise.RunSuspended):
            await asyncio.to_thread(waiting.options(run_id="trip"))
        while (await reading.next())["open"] != 1:
            pass
        stepwise.get_run("trip").send("go", 1)
        await asyncio.to_thread(waiting.options(run_id="trip"))
        while (await reading.next())["open"] != 0:
            pass
        await reading.close()

    asyncio.run(story())


@pytest.mark.usefixtures("suspends")
def test_the_page_of_a_run_hears_of_open_matters(store):
    """The page of a run shows the number of open matters, too, and hears when that changes."""

    async def story():
        reading = await Reading(watching(store), "other").open()
        with pytest.raises(stepwise.RunSuspended):
            await asyncio.to_thread(waiting.options(run_id="trip"))
        told = await reading.next()
        assert (told["runs"], told["open"]) == ([], 1)
        await reading.close()

    asyncio.run(story())


def test_one_watcher_looks_for_all_pages(store, monkeypatch):
    """However many pages are open, one thread looks, and it ends when the last page is closed."""

    def watchers():
        return [each for each in threading.enumerate() if each.name == _WATCHER]

    async def story():
        watcher = watching(store)
        readings = [await Reading(watcher, run_id).open() for run_id in ("", "", "x", "y")]
        (thread,) = watchers()
        for each in readings:
            await each.close()
        await asyncio.to_thread(thread.join)
        assert watchers() == []
        again = await Reading(watcher).open()  # a page that is opened later is watched again
        await again.close()

    asyncio.run(story())


def test_a_run_that_is_deleted_is_heard(store):
    """The page of a run hears that the run was deleted."""

    async def story():
        await asyncio.to_thread(agent.options(run_id="gone"), 1)
        reading = await Reading(watching(store), "gone").open()
        stepwise.get_run("gone").delete()
        assert await reading.until("gone") == {"gone"}
        await reading.close()

    asyncio.run(story())


def test_nothing_to_tell(monkeypatch):
    """A page without news gets a comment now and then, so that a broken connection is noticed."""
    monkeypatch.setattr(_live, "_ALIVE", 0.01)

    async def story():
        watcher = watching(open_store(settings.store()))
        reading = await Reading(watcher).open()
        assert await anext(reading.events) == ":\n\n"
        await reading.close()

    asyncio.run(story())


class Reader:
    """What a browser gets from an open address of events."""

    def __init__(self, app, path):
        self._told, self.status = asyncio.Queue(), None
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        self.task = asyncio.create_task(app(scope, asyncio.Event().wait, self._told.put))

    async def until(self, text):
        """Read up to a text; return whether it came before the end."""
        while True:
            part = await self._told.get()
            self.status = part.get("status", self.status)
            if text in part.get("body", b"").decode():
                return True
            if part["type"] == "http.response.body" and not part.get("more_body"):
                return False


@pytest.mark.parametrize("there_is_news", [True, False])
def test_a_login_that_ended_ends_the_events(store, monkeypatch, there_is_news):
    """An application is asked again while a page is open, whose events end with the login."""
    monkeypatch.setattr(_app, "_TRUSTED", -1.0)
    monkeypatch.setattr(_live, "_ALIVE", 60.0 if there_is_news else 0.01)
    people = {"ann"}
    app = stepwise.ui.app(store, authorize=lambda _: "ann" in people)

    async def story():
        reader = Reader(app, "/live")
        assert await reader.until('"runs": []')
        await asyncio.to_thread(agent.options(run_id="first"), 1)
        assert await reader.until("first")
        people.clear()
        if there_is_news:
            await asyncio.to_thread(agent.options(run_id="second"), 2)
        assert not await reader.until("second")
        await reader.task
        again = Reader(app, "/live")
        assert not await again.until("second")
        assert (reader.status, again.status) == (200, 403)

    asyncio.run(story())


def test_the_end_of_the_server_ends_all_pages(store, monkeypatch):
    """When the server ends, no open page keeps it, and the thread that looks for pages ends."""
    app = stepwise.ui.app(store, authorize=lambda _: "ann")
    others = {*threading.enumerate()}  # those of another test may still be ending

    async def story():
        reader = Reader(app, "/live")
        assert await reader.until('"runs": []')
        [watching] = [each for each in {*threading.enumerate()} - others if each.name == _WATCHER]
        monkeypatch.setattr(_events, "server_ends", lambda: True)
        assert not await reader.until("nothing")
        await reader.task
        await asyncio.to_thread(watching.join)

    asyncio.run(story())


def test_a_run_may_have_the_name_of_an_address(page):
    """The page of a run that is called live is a page, and no other address tells of changes."""
    agent.options(run_id="live")(1)
    assert "agent" in page.get("/runs/live")
    page.get("/inbox/live", 404)
    page.get("/runs/live/value/live", 404)
