"""A browser without a screen for the page of runs, and workflows to look at."""

import asyncio
import json
import re

from starlette.testclient import TestClient

import stepwise
from stepwise import step, workflow

PLACE = "http://127.0.0.1:8276"


class Browser:
    """A browser that has opened the address with the token."""

    def __init__(self, app, place=PLACE, root=""):
        self.app, self.root, self.place = app, root, place
        self.client = TestClient(app, base_url=place, follow_redirects=False)

    def enter(self):
        """Open the address that was printed."""
        answer = self.client.get(f"{self.root}/", params={"token": self.app.access.token})
        assert answer.status_code == 303
        return self

    def get(self, path, status=200, **how):
        """Load a page."""
        answer = self.client.get(self.root + path, **how)
        assert answer.status_code == status, answer.text
        return answer.text

    @property
    def token(self):
        """The hidden field of a form."""
        return re.search(r'name="token"[^>]*value="(\w+)"', self.get("/"))[1]

    def post(self, path, status=303, headers=None, token=None, **fields):
        """Send a form; return where it leads, or the text of its problem."""
        given = {"token": self.token if token is None else token, **fields}
        origin = {"origin": self.place}
        answer = self.client.post(
            self.root + path, data=given, headers=origin if headers is None else headers
        )
        assert answer.status_code == status, answer.text
        return answer.headers.get("location", answer.text)

    def walk(self, path="/"):
        """Yield the pages of a list of runs, by the links to older ones."""
        while path:
            text = self.get(path)
            yield text
            older = re.search(r'href="([^"]*before=[^"]*)"', text)
            path = older[1].replace("&amp;", "&") if older else ""


class Reading:
    """The events that a page gets."""

    def __init__(self, watcher, run_id=""):
        self.events = watcher.events(run_id)

    async def open(self):
        """Read what a page gets at once."""
        assert await anext(self.events) == "retry: 1000\n\n"
        assert (await self.next())["runs"] == []
        return self

    async def next(self):
        """The facts of the next event."""
        while (event := await anext(self.events)) == ":\n\n":  # nothing has happened for a while
            pass
        name, data, *rest = event.split("\n")
        assert (name, rest) == ("event: changed", ["", ""])
        return json.loads(data.removeprefix("data: "))

    async def until(self, run_id):
        """Read events until one names a run; return all that were named."""
        seen = set()
        while run_id not in seen:
            seen |= set((await self.next())["runs"])
        return seen

    async def close(self):
        await self.events.aclose()


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


class Turns:
    """A run whose steps end one by one, when they are told to."""

    def __init__(self, run_id, count):
        began, go, went = asyncio.Event(), asyncio.Event(), asyncio.Queue()

        @step
        async def turn(number):
            began.set()
            await go.wait()
            go.clear()
            return number

        @workflow(run_id=run_id)
        async def flow():
            for number in range(count):
                went.put_nowait(await turn(number))

        self.task, self.began = asyncio.create_task(flow()), began.wait
        self._go, self._went = go, went

    async def next(self):
        """Let a step end; return its result."""
        self._go.set()
        return await self._went.get()
