"""Nobody else gets in: each sentence of item 8 of the design's section on the page."""

import errno
import os
import pathlib
import re
import sqlite3

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import stepwise
import stepwise.ui
from stepwise import step, workflow
from stepwise._journal.persons import this_person
from stepwise._runtime import settings
from stepwise.errors import ConfigurationError, StoreError
from stepwise.stores import Owner, open_store, store_for_pages
from stepwise.ui._access import LOOPBACK, Access, headers
from stepwise.ui._app import App

PLACE = "http://127.0.0.1:8276"
PATHS = ["/", "/inbox", "/spending", "/compare", "/live", "/runs/secret-run", "/static/page.css"]


@step
def think(topic):
    return f"about {topic}"


@workflow
def agent(topic):
    return think(topic)


@workflow
def asking(topic):
    return stepwise.approve("send it?", details={"topic": topic})


@pytest.fixture
def app():
    agent.options(run_id="secret-run")("the tides of October")
    return App(open_store(settings.store()), Access(hosts=LOOPBACK))


def client(app, place=PLACE):
    return TestClient(app, base_url=place, follow_redirects=False)


# -- who sees the page ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_shown(app, path):
    """Without the token every address answers 403, with nothing of the runs in it."""
    answer = client(app).get(path)
    assert answer.status_code == 403
    assert "tides" not in answer.text
    assert app.access.token not in answer.text
    assert app.access.form_token(this_person()) not in answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    assert "set-cookie" not in answer.headers


def test_the_token_gives_a_cookie(app):
    """The printed address gives a cookie that no script and no other site can use, and goes on."""
    answer = client(app).get("/inbox", params={"a": "b c", "token": app.access.token})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/inbox?a=b+c"
    name, value, rest = re.fullmatch(
        r"([^=]+)=([^;]+); (.*)", answer.headers["set-cookie"]
    ).groups()
    assert {each.lower() for each in rest.split("; ")} == {"httponly", "path=/", "samesite=strict"}
    assert value != app.access.token
    seen = client(app)
    seen.cookies.set(name, value)
    assert seen.get("/inbox").status_code == 200


@pytest.mark.parametrize("forged", ["", "x", "0" * 64, "\N{SNOWMAN}", "token"])
def test_a_forged_token_or_cookie_is_refused(app, forged):
    """A token or a cookie that is not ours opens nothing."""
    assert client(app).get("/", params={"token": forged}).status_code == 403
    cookie = f"{app.access.cookie}={forged}".encode()
    assert client(app).get("/", headers={"cookie": cookie}).status_code == 403


def test_two_processes_have_two_tokens(app):
    """What opens one page of a machine does not open another, and both stay open in one browser."""
    other = App(open_store(settings.store()), Access(hosts=LOOPBACK))
    assert other.access.token != app.access.token
    assert other.access.cookie != app.access.cookie
    assert client(other).get("/", params={"token": app.access.token}).status_code == 403
    seen = client(other)
    seen.cookies.set(app.access.cookie, app.access.session)
    assert seen.get("/").status_code == 403
    seen.cookies.set(other.access.cookie, other.access.session)
    assert seen.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8276", "10.0.0.1", "["])
def test_a_foreign_host_is_refused(app, host):
    """A name that was rebound to this machine gets 403, even with the cookie or the token."""
    seen = client(app)
    seen.cookies.set(app.access.cookie, app.access.session)
    for path in ("/", f"/?token={app.access.token}"):
        answer = seen.get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "tides" not in answer.text
        assert "set-cookie" not in answer.headers


def test_the_names_of_this_machine_are_answered(app):
    """``localhost``, 127.0.0.1 and ``[::1]`` are this machine, with any port."""
    for host in ("localhost:8276", "127.0.0.1:1", "[::1]:8276", "LOCALHOST"):
        answer = client(app).get("/", params={"token": app.access.token}, headers={"host": host})
        assert answer.status_code == 303, host


@pytest.mark.parametrize("path", ["//evil.example/", "/%2F%2Fevil.example", "/\\evil.example"])
def test_the_token_leads_to_no_other_site(app, path):
    """The redirect after the token stays on this server, whatever the path is."""
    request = client(app).build_request("GET", "/", params={"token": app.access.token})
    request.url = request.url.copy_with(raw_path=f"{path}?token={app.access.token}".encode())
    answer = client(app).send(request)
    assert answer.status_code == 303
    assert re.match(r"/($|[^/\\])", answer.headers["location"])


# -- who acts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "null",
        "http://evil.example",
        "http://127.0.0.1:9999",
        "http://localhost:8276",
        "http://[",
    ],
)
def test_a_foreign_origin_does_nothing(page, origin):
    """A form of another site, port or name does nothing, even with our form token."""
    agent.options(run_id="kept")("winds")
    refused = page.post(
        "/runs/kept/delete", 403, headers={} if origin is None else {"origin": origin}
    )
    assert "winds" not in refused
    assert stepwise.get_run("kept").status == "completed"


@pytest.mark.parametrize("token", ["", "x", "0" * 64, "\N{SNOWMAN}"])
def test_a_forged_form_token_does_nothing(page, token):
    """A form without our token does nothing, even with our cookie and origin."""
    agent.options(run_id="kept")("winds")
    refused = page.post("/runs/kept/delete", 403, token=token)
    assert "winds" not in refused
    assert page.token not in refused
    assert stepwise.get_run("kept").status == "completed"


def test_an_action_is_never_a_link(page):
    """An address that a form posts to changes nothing when it is only opened."""
    agent.options(run_id="kept")("winds")
    page.get("/runs/kept/delete", 404)
    page.get("/marked", 404)
    assert stepwise.get_run("kept").status == "completed"


def test_a_page_to_look_at_changes_nothing(browse):
    """With ``read_only`` no action is possible, no form is shown, and the store cannot be written.

    The store refuses by itself, so that no mistake of the page writes.
    """
    agent.options(run_id="kept")("winds")
    page = browse(read_only=True)
    assert "delete" not in page.get("/runs/kept").casefold().replace("deleted", "")
    access = page.app.access
    answer = page.client.post(
        "/runs/kept/delete",
        data={"token": access.form_token(this_person())},
        headers={"origin": PLACE},
    )
    assert answer.status_code == 403
    assert "--read-only" in answer.text
    with pytest.raises(ConfigurationError, match="read only"):
        stepwise.Run(page.app.reader.store, "kept").delete()
    assert stepwise.get_run("kept").status == "completed"


def test_a_database_is_opened_to_read_only(browse):
    """With ``read_only`` the system lets nothing be written, and no file is made or changed."""
    store = open_store(settings.store())
    agent.options(run_id="kept")("winds")
    os.unlink(f"{store.path}/leases")
    files = {each for each in os.listdir(store.path) if not each.endswith(("-wal", "-shm"))}
    kept = pathlib.Path(store.path, "cache.db").read_bytes()
    page = browse(read_only=True)
    for path in ("/", "/inbox", "/spending", "/runs/kept", "/runs/kept/export"):
        page.get(path)
    reading = store_for_pages(store, to_read=True)._store
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reading._opened()._con.execute("DELETE FROM Heads")
    with pytest.raises(StoreError) as caught:
        reading.acquire("kept", Owner(1, "here", 1.0))
    assert caught.value.errno == errno.EROFS
    assert {each for each in os.listdir(store.path) if not each.endswith(("-wal", "-shm"))} == files
    assert pathlib.Path(store.path, "cache.db").read_bytes() == kept


def test_a_page_to_look_at_follows_a_run(browse):
    """What the process of a page with ``read_only`` records itself is seen on the page."""
    page = browse(read_only=True)

    @workflow(run_id="busy")
    def busy():
        for number in range(3):
            think(number)
            assert f"<b>{number + 1}</b><code>think(topic={number})" in page.get("/runs/busy")

    busy()
    assert "completed" in page.get("/runs/busy")


# -- what a browser is told ----------------------------------------------------------------------


def test_each_page_has_its_policy(page):
    """Every answer names a policy without ``unsafe-inline``, and a nonce that is new each time."""
    agent.options(run_id="kept")("winds")
    nonces = []
    for path in ("/", "/inbox", "/runs/kept", "/runs/none", "/static/page.css"):
        answer = page.client.get(path)
        policy = answer.headers["content-security-policy"]
        nonces += re.findall(r"'nonce-([\w-]{20,})'", policy)
        assert "unsafe" not in policy
        rules = dict(each.strip().split(" ", 1) for each in policy.split(";"))
        assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
        assert rules["script-src"] == rules["form-action"] == "'self'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
    assert len(set(nonces)) == 5


def test_a_page_has_nothing_that_its_policy_refuses(page):
    """No page has inline styles, inline scripts, or resources of other places."""
    agent.options(run_id="kept")("winds")
    for path in ("/", "/inbox", "/spending", "/runs/kept", "/runs/kept/fork", "/runs/none"):
        answer = page.client.get(path)
        assert not re.search(r"<[^>]+\s(style|on\w+)\s*=", answer.text)
        assert not re.search(r"<script(?![^>]* src=)", answer.text)
        assert not re.search(r"""(src|href|action)\s*=\s*["'](https?:)?//""", answer.text)
        nonce = re.search(r"'nonce-([\w-]+)'", answer.headers["content-security-policy"])[1]
        for style in re.findall(r"<style[^>]*>", answer.text):
            assert f'nonce="{nonce}"' in style


def test_the_policy_is_complete():
    """What the policy does not name, it refuses."""
    assert headers("n")["Content-Security-Policy"].startswith("default-src 'none';")


# -- in another application ----------------------------------------------------------------------


def mounted(authorize, prefix="/tools/runs"):
    outer = Starlette()
    outer.mount(prefix, stepwise.ui.app(authorize=authorize))
    return client(outer, "https://app.example")


def test_mounted_under_a_prefix():
    """A mounted page works under any prefix: its links, forms and redirects have it."""
    agent.options(run_id="a/b c")("winds")
    seen = mounted(lambda request: True)
    text = seen.get("/tools/runs/").text
    links = set(re.findall(r'(?:href|src|action)="([^"]*)"', text))
    assert {each for each in links if not each.startswith(("/tools/runs/", "#", "data:"))} == set()
    assert "/tools/runs/runs/a~2Fb%20c" in links
    assert "winds" in seen.get("/tools/runs/runs/a%2Fb%20c").text
    token = re.search(r'name="token"[^>]*value="(\w+)"', text)[1]
    done = seen.post(
        "/tools/runs/runs/a%2Fb%20c/delete",
        data={"token": token},
        headers={"origin": "https://app.example"},
    )
    assert (done.status_code, done.headers["location"]) == (303, "/tools/runs/")
    assert stepwise.runs() == []


@pytest.mark.usefixtures("suspends")
def test_who_acts_is_recorded():
    """The name that ``authorize`` returns is recorded with what the person does."""
    with pytest.raises(stepwise.RunSuspended):
        asking.options(run_id="trip")("winds")

    async def authorize(request):
        return request.headers.get("x-user", "")

    seen = mounted(authorize)
    assert seen.get("/tools/runs/").status_code == 403
    mine = {"x-user": "ann@example.org", "origin": "https://app.example"}
    token = re.search(
        r'name="token"[^>]*value="(\w+)"', seen.get("/tools/runs/inbox", headers=mine).text
    )[1]
    (question,) = stepwise.get_run("trip").questions
    data = {"token": token, "step": question.step, "ticket": question.ticket, "note": "fine"}
    other = {**mine, "x-user": "bob@example.org"}
    path = "/tools/runs/runs/trip/approve"
    assert seen.post(path, data=data, headers=other).status_code == 403  # a token is of one person
    assert seen.post(path, data=data, headers=mine).status_code == 303
    (answer,) = stepwise.get_run("trip").inbox
    assert (answer.kind, answer.value, answer.by) == ("answer", True, "ann@example.org")
    assert this_person() != "ann@example.org"


def test_processes_of_one_application_take_each_others_forms():
    """A form that one process of a server has shown can be sent to another process of it."""
    agent.options(run_id="kept")("winds")
    one, other = mounted(lambda request: "ann"), mounted(lambda request: "ann")
    token = re.search(r'name="token"[^>]*value="(\w+)"', one.get("/tools/runs/").text)[1]
    done = other.post(
        "/tools/runs/runs/kept/delete",
        data={"token": token},
        headers={"origin": "https://app.example"},
    )
    assert done.status_code == 303


def test_the_form_token_of_an_application_is_no_public_text():
    """Who knows the source but not the store's key cannot make the form token of a person."""
    app = stepwise.ui.app(authorize=lambda request: "ann")
    guessed = app.reader.seal.index("forms of the page of runs", "forms of the page")
    for key in guessed:
        assert Access(lambda request: "ann", key=key).form_token("ann") != app.access.form_token(
            "ann"
        )
    assert app.access.form_token("ann") == stepwise.ui.app(authorize=print).access.form_token("ann")


def test_mounted_without_a_rule(capfd, monkeypatch):
    """An application without ``authorize=`` needs a token, which a notice shows."""
    monkeypatch.setenv("STEPWISE_QUIET", "")
    agent("winds")
    capfd.readouterr()
    seen = client(stepwise.ui.app(), "http://app.example")
    token = re.search(r"\?token=(\S+)", capfd.readouterr().err)[1]
    assert seen.get("/").status_code == 403
    assert seen.get("/", params={"token": token}).status_code == 303
    assert "winds" in seen.get("/").text
