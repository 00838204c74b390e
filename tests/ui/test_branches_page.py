"""The branches of a run on its page: a grid, a page of many, the adoption, live, and hostile."""

import asyncio
import re

import pytest
from browsing import Reading

import stepwise
from stepwise import step, tool, workflow
from stepwise._journal.journal import Position, read_entries
from stepwise._journal.persons import this_person
from stepwise._journal.records import Adopted, Superseded
from stepwise.ui import _reading
from stepwise.ui._live import RunWatcher
from stepwise.ui._reading import RunReader

OWNED = "<script>document.title='owned'</script>"


@step
def think(topic):
    stepwise.spend(usd=0.01)
    return f"about {topic}"


@tool(side_effect=True)
def send(text):
    return f"sent {text}"


@workflow(retention="all")
def agent(topic, model="a"):
    found = think(topic)
    found = think(f"{model} {found}")
    return send(found)


@workflow(retention="all")
def plain(topic, model="a"):
    found = think(topic)
    found = think(f"{model} {found}")
    return f"{found} at last"


def branched(effects="collect", models="bc", call=agent):
    """A run with branches."""
    run = call.options(run_id="base").execute("tides")
    return run, run.branch(at=1, variations=[{"model": m} for m in models], effects=effects)


def rows(text):
    """The rows of the grid of a page, each as its cells by their names."""
    grid = re.search(r'<table class="cards grid">.*?</table>', text, re.DOTALL)
    lines = re.findall("<tr>(.*?)</tr>", grid[0], re.DOTALL)[1:] if grid else []
    cells = re.compile(r'<td data-name="([^"]*)">(.*?)</td>', re.DOTALL)
    return [
        {name: " ".join(re.sub("<[^>]*>", " ", cell).split()) for name, cell in cells.findall(line)}
        for line in lines
    ]


def link(run):
    return f'href="/runs/{run.id}"'


# -- the grid --------------------------------------------------------------------------------------


def test_the_grid(page):
    """A row for each branch: variables, status, what it proposes, amounts, where it parted."""
    _, (one, two) = branched()
    text = page.get("/runs/base")
    first, second = rows(text)
    assert (first["model"], second["model"]) == ("&#x27;b&#x27;", "&#x27;c&#x27;")
    assert first["status"] == "suspended"
    assert first["result"] == "proposes send(text=&#x27;about b about tides&#x27;)"
    assert (first["steps"], first["spent"]) == ("1", "$0.01")
    assert first["parted"] == "step 2 think compare"
    assert 'title="step 2 think(topic=&#x27;b about tides&#x27;)"' in text
    assert first["branch"].endswith("side effects collected as proposals")
    assert first["adopt"].startswith("Adopt…")
    for each in (one, two):
        assert link(each.run) in text
        assert f'href="/runs/{each.run.id}?step=2"' in text
        assert f'href="/compare?a=base&amp;b={each.run.id}"' in text
    assert "Branches" not in page.get(f"/runs/{one.run.id}")
    assert "step 2" in page.get(f"/compare?a=base&b={one.run.id}")


def test_results_and_errors(page):
    """A branch that completed shows its result, one that was stopped its error."""
    run, _ = branched("refuse", "b")
    run.branch(at=1, effects=lambda call: "answered")
    refused, answered = rows(page.get("/runs/base"))
    assert "send(text=" in refused["result"]
    assert (answered["result"], answered["status"]) == ("&#x27;answered&#x27;", "completed")
    assert answered["model"] == ""  # as it was
    assert answered["adopt"] == ""  # it would go on from what never happened
    assert "side effects answered by" in answered["branch"]


def test_many_variables(page):
    """Where there are many variables, they share a column."""

    @workflow(retention="all", name="many")
    def many(a=0, b=0, c=0, d=0, e=0):
        think("tides")
        return think([a, b, c, d, e])

    run = many.options(run_id="base").execute()
    run.branch(at=1, variations=[{name: 1} for name in "abcde"])
    assert [each["variables"] for each in rows(page.get("/runs/base"))] == [
        f"{name}=1" for name in "abcde"
    ]


def test_a_branch_names_its_base(page):
    """The page of a branch has its variables and policy, and leads to its base."""
    _, (one, _) = branched()
    text = page.get(f"/runs/{one.run.id}")
    assert 'branch of <a href="/runs/base">' in text
    assert "<code>model=&#x27;b&#x27;</code>; side effects are collected as proposals" in text
    assert f'action="/runs/{one.run.id}/adopt"' in text
    assert f"stepwise adopt {one.run.id}" in page.get("/inbox")


def test_many_branches(page, monkeypatch):
    """The page of a run shows a few of its branches; a page of them all goes on by links."""
    _, found = branched(models=[f"m{n}" for n in range(120)], effects="refuse", call=plain)
    assert len(found) == 120
    assert len(rows(page.get("/runs/base"))) == 20
    assert 'href="/runs/base/branches">all 120 branches</a>' in page.get("/runs/base")
    path, seen = "/runs/base/branches", []
    while path:
        text = page.get(path)
        seen += [each["model"] for each in rows(text)]
        more = re.search(r'href="([^"]*)">more branches', text)
        path = more and more[1]
    assert seen == [f"&#x27;m{n}&#x27;" for n in range(120)]
    assert page.get("/runs/base/branches?start=x", 400)
    assert "none" in page.get("/runs/base/branches?start=900")
    monkeypatch.setattr(_reading, "_SECONDS", -1)
    page_of_one = page.get("/runs/base/branches?start=90")
    assert len(rows(page_of_one)) == 1
    assert 'href="/runs/base/branches?start=91">more branches' in page_of_one
    assert len(stepwise.get_run("base").branches) == 120


def test_a_row_is_read_once(browse, monkeypatch):
    """A branch that nobody executes is not read again while its head stays the same."""
    branched("refuse", call=plain)
    page = browse()
    page.get("/runs/base")
    read = []
    monkeypatch.setattr(_reading, "variation_of", lambda *_: read.append(1) or {})
    assert [each["model"] for each in rows(page.get("/runs/base"))] == [
        "&#x27;b&#x27;",
        "&#x27;c&#x27;",
    ]
    assert read == []


def test_a_damaged_branch(browse):
    """A branch whose records or checkpoints are damaged hides no other one."""
    stepwise.configure(store="memory:branches")
    try:
        run, (one, _) = branched("refuse", call=plain)
        kept = run.store._runs[one.run.id]
        for place in (kept.records, kept.objects):
            for name, data in place.items():
                place[name] = data[:-1] + bytes([data[-1] ^ 1])
        found = rows(browse().get("/runs/base"))
        assert [each["model"] for each in found][1:] == ["&#x27;c&#x27;"]
        assert len(found) == 2
    finally:
        stepwise.configure(store=None)


# -- hostile ---------------------------------------------------------------------------------------


def test_hostile_values(page):
    """What was recorded is never markup, in variables, results, errors and names of tools."""

    @tool(side_effect=True, name=OWNED)
    def act(text):
        return text

    @workflow(retention="all", name=f"hostile {OWNED}")
    def hostile(topic, model="a"):
        found = think(model)
        if model != "a":
            return act(model) if "act" in model else model
        return found

    run = hostile.options(run_id="base").execute(OWNED)
    variations = [{"model": OWNED}, {"model": f"act {OWNED}"}]
    for effects in ("collect", "refuse"):
        branches = run.branch(at=0, effects=effects)
        branches += run.branch(at=1, variations=variations, effects=effects)
    pages = [page.get("/runs/base"), page.get("/runs/base/branches"), page.get("/inbox")]
    pages += [page.get(f"/runs/{each.run.id}") for each in branches]
    pages += [page.get("/")]
    for text in pages:
        assert OWNED not in text
        assert "<script>document" not in text
    assert "&lt;script&gt;document" in pages[0]


def test_secrets(page):
    """A variable with a secret's name, or a hidden argument, is masked in the grid and the head."""

    @workflow(retention="all", redact="topic", name="hides")
    def hides(topic, model="a"):
        api_key = think("none")
        return [len(think("end")), len(model), len(api_key)]

    run = hides.options(run_id="base").execute("tides")
    given = [{"api_key": "hunter-number-2"}, {"topic": "private-topic"}]
    branches = run.branch(at=1, variations=given)
    shown = rows(page.get("/runs/base"))
    assert shown[0]["api_key"] == "&lt;secret&gt;"
    assert shown[1]["topic"] == "&lt;not shown&gt;"
    for each in branches:
        head = page.get(f"/runs/{each.run.id}").partition('data-live="timeline"')[0]
        assert "hunter-number" not in head
        assert "private-topic" not in head


# -- adopting --------------------------------------------------------------------------------------


def test_adopting(page):
    """A branch is adopted from the page, in the name of who did it; the others are cancelled."""
    run, (one, two) = branched()
    assert page.post(f"/runs/{two.run.id}/adopt") == f"/runs/{two.run.id}"
    assert (run.status, run.superseded_by) == ("superseded", two.run.id)
    assert one.run.status == "cancelled"
    by = [
        each.record.by
        for run_id in ("base", two.run.id)
        for each in read_entries(run.store, run._seal, run_id, Position())
        if isinstance(each.record, (Adopted, Superseded))
    ]
    assert by == [this_person()] * 2
    text = page.get("/runs/base")
    assert "was adopted, and goes on instead" in text
    assert link(two.run) in text
    assert 'action="/runs/base/resume"' not in text
    assert all("adopt" not in each for each in rows(text))
    assert "goes on instead" in page.get("/")
    (matter,) = [each for each in page.get("/inbox").split("<article") if two.run.id in each]
    assert "Approve" in matter


def test_what_a_superseded_run_waited_for(page):
    """Nobody is asked for what a superseded run waited for, in its child runs neither."""

    @workflow(name="below")
    def child(topic):
        return stepwise.approve(f"go below {topic}?")

    @workflow(name="above", retention="all")
    def parent(topic):
        think(topic)
        return child(topic)

    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        parent.options(run_id="base")("tides")
    assert page.get("/inbox").count("go below tides?") == 1
    [branch] = stepwise.get_run("base").branch(at=1, variations=[{"topic": "winds"}])
    assert page.get("/inbox").count("go below tides?") == 1
    page.post(f"/runs/{branch.run.id}/adopt")
    assert "go below tides?" not in page.get("/inbox")
    assert page.get("/inbox").count("go below winds?") == 1


def test_what_is_refused(page):
    """A page that is old, read-only, or another site's adopts nothing; a base is not deleted."""
    run, (one, two) = branched()
    one.adopt()
    assert "cannot be adopted" in page.post(f"/runs/{two.run.id}/adopt", 409)
    assert "is no branch" in page.post("/runs/base/adopt", 409)
    assert one.run.id in page.post("/runs/base/delete", 409)
    page.post(f"/runs/{two.run.id}/adopt", 403, token="wrong")
    page.post(f"/runs/{two.run.id}/adopt", 403, headers={"origin": "http://evil.example"})
    assert run.superseded_by == one.run.id


def test_read_only(browse):
    """A read-only page shows the grid without forms, and takes none."""
    run, (one, _) = branched()
    page = browse(read_only=True)
    text = page.get("/runs/base")
    assert len(rows(text)) == 2
    assert "adopt" not in rows(text)[0]
    assert "/adopt" not in text + page.get(f"/runs/{one.run.id}")
    page.post(f"/runs/{one.run.id}/adopt", 403, token="x")
    assert run.status == "completed"


# -- live ------------------------------------------------------------------------------------------


def test_a_page_hears_of_branches():
    """The page of a run hears of its branches: made, executed, ended, adopted."""

    async def story():
        run = await asyncio.to_thread(agent.options(run_id="base").execute, "tides")
        reading = await Reading(RunWatcher(RunReader(run.store)), "base").open()
        made = await asyncio.to_thread(run.branch, 1, effects="collect")
        await reading.until(made[0].run.id)
        await asyncio.to_thread(made[0].adopt)
        await reading.until("base")
        await reading.close()

    asyncio.run(story())
