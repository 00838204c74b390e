"""Requests and answers of the application, in the process of the test."""

import asyncio
import datetime as dt
import logging
import time

import pytest
import talking
from reconnecting import events_of
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

import stepwise
import stepwise.http
from stepwise import emit, step, wait_for, workflow
from stepwise._journal.lease import Lease
from stepwise._runs.maintenance import delete_each, old_runs
from stepwise._runtime import settings
from stepwise.errors import ConfigurationError
from stepwise.http._app import Startable
from stepwise.stores import open_store


@workflow
def count(to: int, since: dt.date | None = None, *, loud: bool = False) -> int:
    for number in range(to):
        emit(f"{number}!" if loud else number)
    return to


@workflow
async def listen(name: str) -> str:
    emit("listens")
    return f"{name} got {await wait_for('word')}"


@workflow
def odd(*, before: int = 0) -> None:
    for number in range(before):
        emit(number)
    emit({"a": object()})


@workflow
def break_down() -> None:
    raise ValueError("the disk is on fire")


def anybody(request, run_id, action):
    return True


@pytest.fixture
def client():
    """A client of an application, with one event loop for all its requests."""
    opened = []

    def make(workflows=(count, listen, odd, break_down), authorize=anybody, **how):
        app = stepwise.http.app(workflows=workflows, authorize=authorize, **how)
        opened.append(TestClient(app))
        return opened[-1].__enter__()

    yield make
    for each in opened:
        each.__exit__(None, None, None)


def events(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [*events_of(answer)]


def test_a_run_is_started_and_followed(client):
    """One request starts a run, and gets its items, with their offsets as ids, and its end."""
    page = client()
    answer = page.post("/start/count?run_id=a/b c", json={"to": 2, "since": "2026-11-29"})
    assert answer.headers["x-run-id"] == "a/b%20c"
    assert events(answer) == [("item", "0", 0), ("item", "1", 1), ("end", "end", "completed")]
    run = stepwise.get_run("a/b c")
    assert run.inputs == {"to": 2, "since": dt.date(2026, 11, 29)}
    state = page.get("/runs/a%2Fb%20c").json()
    assert state == {"run": "a/b c", "workflow": "count", "status": "completed", "result": 2}
    assert page.get("/runs/" + answer.headers["x-run-id"].replace("/", "%2F")).json() == state


def test_a_run_gets_an_id(client):
    """Without an id each request starts a run of its own."""
    page = client()
    ids = {page.post("/start/count", json={"to": 1}).headers["x-run-id"] for _ in range(2)}
    assert {run.id for run in stepwise.runs()} == ids
    assert len(ids) == 2


def test_the_same_id_is_the_same_run(client):
    """A request that comes again finds its run; other arguments or another workflow are refused."""
    page = client()
    for given in ({"to": 2}, {"to": 2}, {"to": 2, "loud": False}):
        assert len(events(page.post("/start/count?run_id=r", json=given))) == 3
    for name, given in (("count", {"to": 3}), ("count", {"to": 2, "loud": True}), ("odd", {})):
        answer = page.post(f"/start/{name}?run_id=r", json=given)
        assert answer.status_code == 409
        assert "another call's" in answer.json()["error"]
    assert len(stepwise.runs()) == 1


def test_an_adopted_branch_answers_for_its_base(client):
    """Requests that name a run whose branch was adopted get the branch: its state, its stream."""
    page = client()
    page.post("/start/count?run_id=r", json={"to": 2})
    run = stepwise.get_run("r")
    [branch] = run.branch(at=0)
    branch.adopt()
    assert page.get("/runs/r").json()["run"] == branch.run.id
    again = page.post("/start/count?run_id=r", json={"to": 2})
    assert again.headers["x-run-id"] == branch.run.id
    assert events(again) == events(page.get("/runs/r/stream"))
    assert [each.kind for each in run.stream()] == ["item", "item", "end"]
    branch.run.delete()
    assert page.get("/runs/r").status_code == 404


def test_a_run_that_is_deleted_meanwhile(client, monkeypatch):
    """A run that is deleted while its state is read gets 404, like one that never was."""
    page = client()
    page.post("/start/count?run_id=r", json={"to": 1})

    def deleted(run):
        run.delete()
        return run

    monkeypatch.setattr(stepwise.Run, "_to_go_on", deleted)
    assert page.get("/runs/r").status_code == 404


def test_it_is_rejoined_at_any_offset(client):
    """A reader gets what follows its offset, from Last-Event-ID or from the address."""
    page = client()
    whole = events(page.post("/start/count?run_id=r", json={"to": 5}))
    for offset in range(-1, 5):
        assert events(page.get(f"/runs/r/stream?after={offset}")) == whole[offset + 1 :]
        told = page.get("/runs/r/stream?after=0", headers={"last-event-id": str(offset)})
        assert events(told) == whole[offset + 1 :]
    assert page.get("/runs/r/stream", headers={"last-event-id": "end"}).status_code == 204


FORGED = ["5", "-2", "99999999999999999999", "1.5", "x", "٣", "0x1", "end%20", "+1", " 1"]


@pytest.mark.parametrize("offset", FORGED)
@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
def test_forged_offsets_get_404(client, offset, accept):
    """An offset that the stream does not have gets status 404, and no data."""
    page = client()
    page.post("/start/count?run_id=r", json={"to": 5})
    answer = page.get(f"/runs/r/stream?after={offset}", headers={"accept": accept})
    assert (answer.status_code, [*answer.json()]) == (404, ["error"])


def test_items_that_were_deleted_get_404(client):
    """A reader that lacks deleted items gets status 404; one that has all of them gets the end."""
    count.options(run_id="r")(3)
    ended = old_runs(time.time() + 1, keep=0, streams=True)
    assert [problem for _, problem in delete_each(ended, streams=True)] == [None]
    page = client()
    for asked in ("", "?after=1"):
        answer = page.get(f"/runs/r/stream{asked}", headers={"accept": "application/json"})
        assert answer.status_code == 404
        assert "deleted" in answer.json()["error"]
    answer = page.get("/runs/r/stream?after=2", headers={"accept": "application/json"})
    assert [each["kind"] for each in answer.json()["items"]] == ["end"]


NO_RUNS = ["x", "stream:r:", "inbox:r", "r%00", "%2E%2E", "~2E~2E", "r%2F", "%FF", "R", "r:"]


@pytest.mark.parametrize("run_id", NO_RUNS)
def test_run_ids_that_are_none_get_404(client, run_id):
    """An id that is not a run's gets status 404 at each address."""
    page = client()
    page.post("/start/count?run_id=r", json={"to": 1})
    for path in (f"/runs/{run_id}", f"/runs/{run_id}/stream"):
        assert page.get(path).status_code == 404, path
    assert page.post(f"/runs/{run_id}/cancel", json={}).status_code == 404


def test_plain_json_by_offset(client):
    """With Accept: application/json, a reader asks for what is there, and waits for more."""
    page = client()
    asked = {"accept": "application/json"}
    given = {"name": "ann"}
    answer = page.post("/start/listen?run_id=r", json=given, headers=asked)
    assert (answer.status_code, answer.json()["run"]) == (202, "r")

    def get(query):
        found = page.get(f"/runs/r/stream?{query}", headers=asked)
        assert found.status_code == 200, found.text
        return found.json()

    first = get("wait=60")
    assert first["items"] == [{"offset": 0, "kind": "item", "value": "listens"}]
    assert (first["after"], first["ended"]) == (0, False)
    nothing = {"run": "r", "items": [], "after": 0, "ended": False}
    assert get("after=0") == get("after=0&wait=0.01") == nothing
    stepwise.get_run("r").send("word", "hello")
    last = get("after=0&wait=60")
    assert last["items"] == [{"offset": 0, "kind": "end", "value": "completed"}]
    assert last["ended"]
    assert page.get("/runs/r").json()["result"] == "ann got hello"
    assert page.get("/runs/r/stream?wait=61", headers=asked).status_code == 422


def test_each_user_has_her_runs(client):
    """A user whom authorize names has the runs that she started; others' do not exist for her."""
    page = client(authorize=lambda request, run_id, action: request.headers.get("who"))
    ann, bob = {"who": "ann"}, {"who": "bob"}
    page.post("/start/count?run_id=r", json={"to": 1}, headers=ann)
    assert stepwise.get_run("r").tags == {"by": "ann"}
    for who, status in ((ann, 200), (bob, 404), ({}, 404)):
        assert page.get("/runs/r", headers=who).status_code == status
        assert page.get("/runs/r/stream", headers=who).status_code == status
        again = page.post("/start/count?run_id=r", json={"to": 1}, headers=who)
        assert again.status_code == status
    assert page.post("/runs/r/cancel", json={}, headers=bob).status_code == 404
    assert page.post("/runs/r/cancel", json={}, headers=ann).status_code == 409  # it has ended
    assert page.post("/start/count", json={"to": 1}).status_code == 403
    assert page.get("/ai-sdk/count/c/stream").status_code == 403


@pytest.mark.parametrize("first", ["ann", "bob"])
def test_two_requests_begin_the_same_run(client, monkeypatch, first):
    """Who comes second while a run begins gets it if it is hers, and else 404."""
    here = client(authorize=lambda *_: "ann")
    lease = Lease(open_store(settings.store()), "r")
    lease.acquire()  # the first request begins the run, and has recorded nothing yet
    find, looks = Startable._existing, []

    def existing(*given):
        looks.append(given)
        if len(looks) == 2:
            lease.release()
            count.options(run_id="r", tags={"by": first})(2)
        return find(*given)

    monkeypatch.setattr(Startable, "_existing", existing)
    answer = here.post("/start/count?run_id=r", json={"to": 2})
    assert answer.status_code == (200 if first == "ann" else 404)
    assert len(looks) == 2


def test_a_run_of_somebody_else_that_ends_meanwhile(client, monkeypatch):
    """A run that another user begins and ends between two looks is not shown."""

    def existing(*_):
        count.options(run_id="r", tags={"by": "bob"})(2)

    monkeypatch.setattr(Startable, "_existing", existing)
    here = client(authorize=lambda *_: "ann")
    answer = here.post("/start/count?run_id=r", json={"to": 2})
    assert answer.status_code == 404


def test_a_stream_without_a_name_begins_no_run(client):
    """The name of a stream is checked before a run begins."""
    here = client()
    answer = here.post("/start/count?run_id=r&stream=", json={"to": 1})
    assert answer.status_code == 422
    assert "cannot be the name of a stream" in answer.json()["error"]
    assert here.get("/runs/r").status_code == 404


def test_authorize_decides_for_each_run(client):
    """The function gets the run and the action, may be a coroutine, and may raise an answer."""
    seen = []

    async def authorize(request, run_id, action):
        await asyncio.sleep(0)
        seen.append((run_id, action))
        if request.headers.get("who") == "nobody":
            raise HTTPException(401, "log in", {"www-authenticate": "Basic"})
        return action != "cancel"

    page = client(authorize=authorize)
    page.post("/start/count?run_id=r", json={"to": 1})
    page.get("/runs/r")
    assert page.post("/runs/r/cancel", json={}).status_code == 404
    assert seen == [("r", "start"), ("r", "read"), ("r", "cancel")]
    answer = page.get("/runs/r", headers={"who": "nobody"})
    assert (answer.status_code, answer.json()) == (401, {"error": "log in"})
    assert answer.headers["www-authenticate"] == "Basic"


@pytest.mark.parametrize("said", [1, "", [], object()])
def test_authorize_that_says_something_else_lets_nobody_in(client, said, caplog):
    """Only a name and True let somebody in."""
    page = client(authorize=lambda *_: said)
    assert page.post("/start/count", json={"to": 1}).status_code in (403, 500)
    assert stepwise.runs() == []


BAD = [
    ({"to": "two"}, "argument 'to'"),
    ({"to": 2.5}, "argument 'to'"),
    ({"to": True}, "argument 'to'"),
    ({}, "'to'"),
    ({"to": 1, "from": 2}, "'from'"),
    ({"to": 1, "since": "yesterday"}, "argument 'since'"),
]


@pytest.mark.parametrize(("given", "named"), BAD)
def test_arguments_are_checked(client, given, named):
    """Arguments that do not fit the signature, or its types, get status 422 and their name."""
    answer = client().post("/start/count", json=given)
    assert answer.status_code == 422
    assert named in answer.json()["error"]
    assert stepwise.runs() == []


def test_bodies_that_are_refused(client):
    """A body is a JSON object, with its type, and not too large."""
    page, kind = client(), {"content-type": "application/json"}
    for body, headers, status in (
        (b'{"to": 1}', {"content-type": "text/plain"}, 415),  # as a form of another site sends it
        (b"{", kind, 400),
        (b"\xff", kind, 400),
        (b"[1]", kind, 422),
        (b"[" * 100_000, kind, 400),
        (b'"' + b"x" * 16_000_000, kind, 413),
    ):
        answer = page.post("/start/count", content=body, headers=headers)
        assert answer.status_code == status, body[:10]
    assert page.post("/start/other", json={}).status_code == 404
    assert page.get("/start/count").status_code == 404
    assert page.post("/start/count?run_id=stream:r:", json={"to": 1}).status_code == 422


def test_what_cannot_be_served_is_refused():
    """An application that nobody is let into, or that starts nothing, is an error at once."""

    @workflow
    def tell():
        yield 1

    @step
    def work(): ...

    class Unknown: ...

    @workflow
    def take(what: Unknown): ...

    for what, told in (
        ({"workflows": [count], "authorize": None}, "authorize=lambda"),
        ({"workflows": [tell], "authorize": anybody}, "emit"),
        ({"workflows": [work], "authorize": anybody}, "no workflow"),
        ({"workflows": [asyncio], "authorize": anybody}, "no workflow"),
        ({"workflows": [take], "authorize": anybody}, "argument 'what' of"),
        (
            {"workflows": [count, count.options(name="count")], "authorize": anybody},
            "two workflows",
        ),
        ({"workflows": [count], "authorize": anybody, "cancel_when_left": -1}, "cancel_when_left"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            stepwise.http.app(**what)
    stepwise.http.app(workflows=[talking], authorize=anybody)


def test_a_run_is_cancelled(client):
    """A run is cancelled by a request, with a reason; its readers get that."""
    page = client()
    page.post("/start/listen?run_id=r", json={"name": "x"}, headers={"accept": "application/json"})
    assert page.post("/runs/r/cancel", json={"reason": 1}).status_code == 422
    assert page.post("/runs/r/cancel", json={"reason": "enough"}).status_code == 202
    assert events(page.get("/runs/r/stream"))[-1] == ("end", "end", "cancelled")
    assert page.get("/runs/r").json()["status"] == "cancelled"
    assert page.post("/runs/r/cancel", json={}).status_code == 409


def test_a_failed_run_says_so(client):
    """The end of a failed run says that; its error is for who asks for the run."""
    page = client()
    answer = page.post("/start/break_down?run_id=r", json={})
    assert events(answer) == [("end", "end", "failed")]
    assert "the disk is on fire" in page.get("/runs/r").json()["error"]


def test_a_value_without_json(client, caplog):
    """A value that JSON cannot hold ends the stream with a problem that names the item."""
    caplog.set_level(logging.CRITICAL, "stepwise.http")
    page = client()
    ((kind, number, text),) = events(page.post("/start/odd?run_id=r", json={}))
    assert (kind, number) == ("problem", "end")
    assert "the item 0 has no form in JSON" in text
    answer = page.get("/runs/r/stream", headers={"accept": "application/json"})
    assert answer.status_code == 500


def test_what_precedes_a_value_without_json(client, caplog):
    """The items before a value that JSON cannot hold are sent, as events and as a page."""
    caplog.set_level(logging.CRITICAL, "stepwise.http")
    page = client()
    found = events(page.post("/start/odd?run_id=r", json={"before": 2}))
    assert [kind for kind, *_ in found] == ["item", "item", "problem"]
    asked = {"headers": {"accept": "application/json"}}
    answer = page.get("/runs/r/stream", **asked).json()
    assert ([each["value"] for each in answer["items"]], answer["after"]) == ([0, 1], 1)
    assert page.get("/runs/r/stream?after=1", **asked).status_code == 500


def test_a_format_that_fails(client, caplog):
    """A ``format`` that raises ends the stream with a problem, so that nobody reconnects to it."""
    caplog.set_level(logging.CRITICAL, "stepwise.http")
    page = client(format=lambda item: {"n": 1 // item.value})
    found = events(page.post("/start/count?run_id=r", json={"to": 1}))
    assert [kind for kind, *_ in found] == ["problem"]


def test_a_format_of_ones_own(client):
    """A function writes the items: as bytes, as a text, as plain data, or not at all."""

    def form(item):
        if item.kind == "end":
            return b"data: bye\n\n"
        return {0: None, 1: "one\ntwo", 2: {"two": item.value}}[item.offset]

    answer = client(format=form).post("/start/count", json={"to": 3})
    assert answer.text == (
        'retry: 1000\n\nid: 1\ndata: one\ndata: two\n\nid: 2\ndata: {"two":2}\n\ndata: bye\n\n'
    )


def test_a_server_that_ends_closes_its_connections(client, monkeypatch):
    """No client keeps a server alive by asking again on the same connection."""
    page = client()
    assert "connection" not in page.get("/runs/r").headers
    monkeypatch.setattr(stepwise.http._app, "server_ends", lambda: True)
    assert page.get("/runs/r").headers["connection"] == "close"


def test_it_is_mounted():
    """Under a prefix the addresses are the same, and the host application answers the others."""
    from fastapi import FastAPI

    host = FastAPI()
    host.mount("/agents", stepwise.http.app(workflows=[count], authorize=anybody))
    with TestClient(host) as page:
        answer = page.post("/agents/start/count?run_id=a/b", json={"to": 1})
        assert len(events(answer)) == 2
        assert page.get("/agents/runs/a%2Fb").json()["result"] == 1
        assert page.get("/agents/other").json() == {
            "error": "there is no such address, or not with this method"
        }
        assert page.get("/runs/a%2Fb").status_code == 404
