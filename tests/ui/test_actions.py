"""Every form does what the method of ``Run`` of its name does, and says who did it."""

import re

import httpx
import pydantic
import pytest
from click.testing import CliRunner

import stepwise
from stepwise import cli, step, tool, workflow
from stepwise._journal.journal import Position, read_entries
from stepwise._journal.persons import this_person
from stepwise._journal.records import Compensated, Compensating, Forgotten, Settled, Started
from stepwise.ui._actions import BadFieldError, FormFields, typed


class Order(pydantic.BaseModel):
    """What a run waits for."""

    item: str
    count: int
    gift: bool = False
    note: str = ""


@step
def think(number):
    return number * 10


def unsend(sent):
    undone.append(sent)


undone = []


@tool(side_effect=True, compensate=unsend)
def mail(text):
    return f"sent {text}"


@workflow(retention="all")
def agent(topic):
    mood = "calm"
    for number in range(1, 4):
        think(number)
    return mail(f"{topic} {mood}")


@workflow
def waiting(topic):
    return stepwise.wait_for("order", type=Order)


@workflow
def counting(topic):
    return stepwise.wait_for("count")


@workflow
def asking(topic):
    return stepwise.approve("send it?", details={"topic": topic})


def suspended(call, **options):
    with pytest.raises(stepwise.RunSuspended):
        call.options(run_id="trip", **options)("winds")
    return stepwise.get_run("trip")


# -- signals -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("suspends")
def test_a_signal_from_a_form_of_its_type(page):
    """A form made from the type of a wait gives its value: texts, numbers, switches."""
    suspended(waiting)
    fields = {"name": "order", "field:item": "tea", "field:count": "3", "field:gift": "true"}
    assert page.post("/runs/trip/send", **fields, back="inbox") == "/inbox"
    (message,) = stepwise.get_run("trip").inbox
    assert message.value == {"item": "tea", "count": 3, "gift": True}
    assert message.by == this_person()


@pytest.mark.usefixtures("suspends")
def test_a_signal_as_json(page):
    """A signal without a type is JSON, and a key makes two of it one."""
    suspended(counting)
    for value in ("[1, 2]", "[1, 2]"):
        assert page.post("/runs/trip/send", name="count", value=value, key="k") == "/runs/trip"
    (message,) = stepwise.get_run("trip").inbox
    assert message.value == [1, 2]


@pytest.mark.usefixtures("suspends")
def test_a_wrong_value_is_said_and_not_sent(page):
    """What is no JSON, or does not fit the type, gets a page that says so, and is not sent."""
    suspended(waiting)
    assert "JSON" in page.post("/runs/trip/send", 400, name="count", value="{oh")
    wrong = {"name": "order", "field:item": "tea", "field:count": "many"}
    assert "count is not JSON" in page.post("/runs/trip/send", 400, **wrong)
    wrong["field:count"] = '"3 of them"'
    assert "another form" in page.post("/runs/trip/send", 409, **wrong)
    assert stepwise.get_run("trip").inbox == []


def test_the_values_of_fields():
    """A field is read by its type in the schema; without one, as JSON, else as text."""
    assert typed({"type": "string"}, "007", "x") == "007"
    assert typed({"type": "integer"}, "7", "x") == 7
    assert typed({"type": "boolean"}, "on", "x") is True
    assert typed({"type": "boolean"}, "false", "x") is False
    assert typed({"type": "array"}, "[1]", "x") == [1]
    assert typed({"anyOf": []}, "tea", "x") == "tea"
    assert typed({"anyOf": []}, "null", "x") is None
    for text in ("NaN", "1e999", "[" * 100_000):
        with pytest.raises(BadFieldError):
            typed({"type": "number"}, text, "x")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "٣", "9" * 10, "9" * 5000])
def test_a_number_that_is_none(text):
    """A step that is no whole number is refused, however long it is."""
    with pytest.raises(BadFieldError, match="whole number"):
        FormFields({"step": [text]}).step()


# -- questions -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("suspends")
@pytest.mark.parametrize("approved", [True, False])
def test_an_answer(page, approved):
    """A question is answered once, for the ticket that the person has seen, with her name."""
    run = suspended(asking)
    (question,) = run.questions
    fields = {"step": question.step, "ticket": question.ticket, "back": "inbox"}
    text = {"note": "fine"} if approved else {"reason": "no money"}
    path = f"/runs/trip/{'approve' if approved else 'deny'}"
    assert "cannot be answered" in page.post(path, 409, **{**fields, "ticket": "ask-0"}, **text)
    assert page.post(path, **fields, **text) == "/inbox"
    (answer,) = run.inbox
    assert (answer.value, answer.note) == (approved, *text.values())
    assert answer.by == this_person()
    assert "the first answer" in page.post(path, 409, **fields, **text)


@pytest.mark.usefixtures("suspends")
def test_a_no_needs_a_reason(page):
    """A no without a reason is refused with a sentence."""
    (question,) = suspended(asking).questions
    fields = {"step": question.step, "ticket": question.ticket, "reason": " "}
    assert "a no needs a reason" in page.post("/runs/trip/deny", 409, **fields)


# -- the rest ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("suspends")
def test_cancel(page):
    """A run is cancelled with a reason, in the name of who asked for it."""
    run = suspended(counting)
    assert page.post("/runs/trip/cancel", reason="called off") == "/runs/trip"
    assert run.status == "cancelling"
    assert run._facts().cancelling == f"{this_person()}: called off"


def test_forget_a_step(page):
    """A forgotten step runs again."""
    run = agent.options(run_id="trip").execute("winds")
    assert page.post("/runs/trip/forget-step", step=2) == "/runs/trip"
    assert [each.number for each in run.steps] == [1, 3, 4]
    assert "is not a step" in page.post("/runs/trip/forget-step", 409, step=77)


ANN = "ann@example.org"


def shown(run, number):
    """Return what ``stepwise show`` prints of a step."""
    done = CliRunner().invoke(cli.main, ["show", run.id, str(number)])
    assert done.exit_code == 0, done.output
    return done.output


def decisions(run):
    """Return who made each recorded decision about a run, by the kind of the record."""
    entries = read_entries(run.store, run._seal, run.id, Position())
    kinds = Settled, Forgotten, Compensating, Compensated
    return [(type(each.record), each.record.by) for each in entries if type(each.record) in kinds]


@pytest.mark.parametrize(
    ("way", "status"), [("landed", "completed"), ("did_not_happen", "started")]
)
def test_who_settles_a_step_is_recorded(page_of_ann, killed, way, status):
    """Either way out settles a step in doubt; the journal, its page and ``show`` name who did."""
    run = killed("send")
    path = f"/runs/{run.id}/resolve"
    assert "choose one way" in page_of_ann.post(path, 400, step=4, way="maybe")
    assert "not JSON" in page_of_ann.post(path, 400, step=4, way="landed", value="{")
    assert "decided by" not in page_of_ann.get(f"/runs/{run.id}?at=4")
    page_of_ann.post(path, step=4, way=way, value='"it went"')
    assert decisions(run) == [(Settled, ANN)]
    assert [(each.status, each.by) for each in run.steps][2:] == [("completed", ""), (status, ANN)]
    assert run.steps[3].to_dict()["by"] == ANN
    assert way != "landed" or run.steps[3].result == "it went"
    assert f"<dt>decided by</dt><dd>{ANN}</dd>" in page_of_ann.get(f"/runs/{run.id}?at=4")
    assert f"by        {ANN}" in shown(run, 4)
    assert "by  " not in shown(run, 3)


def test_who_forgets_and_undoes_is_recorded(page_of_ann):
    """The journal names who forgot a step or had calls undone; an undone step names her, too."""
    run = agent.options(run_id="trip").execute("winds")
    page_of_ann.post("/runs/trip/forget-step", step=2)
    page_of_ann.post("/runs/trip/compensate")
    assert decisions(run) == [(Forgotten, ANN), (Compensating, ANN), (Compensated, ANN)]
    assert [(each.status, each.by) for each in run.steps][-1] == ("compensated", ANN)


def test_who_forks_is_recorded(page_of_ann):
    """A fork names who made it, in its first record: on its page, in ``show`` and in JSON."""
    run = agent.options(run_id="trip").execute("winds")
    assert run.forked_by is None
    page_of_ann.post("/runs/trip/fork", id="other")
    fork = stepwise.get_run("other")
    (started,) = [
        each.record
        for each in read_entries(fork.store, fork._seal, "other", Position())
        if isinstance(each.record, Started)
    ]
    assert started.by == fork.forked_by == fork.to_dict()["forked_by"] == ANN
    assert f"made by {ANN}" in CliRunner().invoke(cli.main, ["show", "other"]).output
    assert f"<dt>forked by</dt><dd><code>{ANN}</code></dd>" in page_of_ann.get("/runs/other")
    assert run.fork().forked_by == this_person()


def test_the_commands_record_who_decides(killed):
    """Without a page, the user and machine of the process are recorded, as for an answer."""
    run = killed("send")
    run.resolve(4, landed="it went")
    run.forget(2)
    assert decisions(run) == [(Settled, this_person()), (Forgotten, this_person())]


def test_what_a_program_decides_is_nobodys():
    """A run that undoes its own calls names nobody."""

    @workflow(compensate_on_failure=True)
    def failing():
        mail("hello")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing.options(run_id="trip")()
    run = stepwise.get_run("trip")
    assert decisions(run) == [(Compensating, ""), (Compensated, "")]


def test_delete(page, caplog):
    """A deleted run is gone, and its page says so; the log says who did it."""
    caplog.set_level("INFO", "stepwise.ui")
    agent.options(run_id="trip")("winds")
    assert page.post("/runs/trip/delete") == "/"
    assert f"{this_person()}: delete of run trip" in caplog.text
    assert stepwise.runs() == []
    assert "no run" in page.get("/runs/trip", 404)


def test_undo(page):
    """The completed calls of a run are undone, if their tools are of this process."""
    agent.options(run_id="trip")("winds")
    undone.clear()
    assert page.post("/runs/trip/compensate") == "/runs/trip"
    assert [each.result for each in undone] == ["sent winds calm"]


def test_undo_what_is_not_here(page, killed):
    """A tool that this process does not have cannot be undone here, and the page says so."""
    run = killed("after")
    assert "this program has no tool" in page.post(f"/runs/{run.id}/compensate", 409)


def test_a_fork(page):
    """A fork is made with the given variables and results; an empty field changes nothing."""
    agent.options(run_id="trip")("winds")
    fields = {"step": "3", "variable:mood": '"wild"', "variable:topic": "", "id": "other"}
    assert page.post("/runs/trip/fork", **fields) == "/runs/other"
    fork = stepwise.get_run("other")
    assert fork.status == "ready"
    assert fork.locals()["mood"] == "wild"
    assert fork.locals()["topic"] == "winds"
    assert page.post("/runs/trip/fork", **{"result:2": "5", "id": "third"}) == "/runs/third"
    assert [each.result for each in stepwise.get_run("third").steps][:2] == [10, 5]


def test_a_fork_that_is_refused(page):
    """A fork that cannot be made shows its form again, with the reason and what was typed."""
    agent.options(run_id="trip")("winds")
    text = page.post("/runs/trip/fork", 409, **{"step": "3", "variable:moods": "1"})
    assert "moods" in text
    assert "9" * 5000 in page.post(
        "/runs/trip/fork", 409, **{"step": "3", "result:" + "9" * 5000: "1"}
    )
    assert 'name="variable:mood"' in text
    slip = {"step": "3", "variable:mood": '["wild"', "result:2": "5", "id": "other"}
    text = page.post("/runs/trip/fork", 409, **slip)
    assert "is not JSON" in text
    for typed_text in ("[&quot;wild&quot;</textarea>", ">5</textarea>", 'value="other"'):
        assert typed_text in text
    page.post("/runs/trip/fork", 409, step="x")


def test_marked_runs(page):
    """Several runs are deleted together."""
    for name in ("three", "two", "one"):
        agent.options(run_id=name)(name)
    assert page.post("/marked", action="forget", id=["one", "two"]) == "/"
    assert [each.id for each in stepwise.runs()] == ["three"]
    assert "choose what to do" in page.post("/marked", 400, action="burn", id="three")
    assert "has ended" in page.post("/marked", 409, action="cancel", id="three")
    assert page.post("/marked", action="forget", id="three") == "/"


# -- requests that are none ----------------------------------------------------------------------


def test_a_form_that_is_too_large(page):
    """A form that is too large, has too many fields, or is none gets a page that says so."""
    run = "/runs/trip"
    agent.options(run_id="trip")("winds")
    assert "MB" in page.post(f"{run}/cancel", 413, reason="x" * 9_000_000)
    headers = {"origin": page.place, "content-type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe", b"&".join(b"a=1" for _ in range(20_000))):
        answer = page.client.post(f"{run}/cancel", content=body, headers=headers)
        assert answer.status_code == 400
        assert "winds" not in answer.text
    assert stepwise.get_run("trip").status == "completed"


def test_addresses_that_lead_nowhere(page):
    """A page, run, step or method that does not exist gets a page that says so."""
    agent.options(run_id="trip")("winds")
    assert "no page" in page.get("/nothing/here", 404)
    assert "no page" in page.get("/runs/trip/nothing", 404)
    assert "whole number" in page.get("/runs/trip?step=x", 400)
    assert "too long" in page.get(f"/?q={'x' * 10_000}", 414)
    assert "by is none" in page.get("/spending?by=moon", 400)
    assert page.client.put("/runs/trip").status_code == 405
    assert page.client.head("/runs/trip").status_code == 200
    for path in ("/runs/%00", "/runs/%FF%FE", "/runs/%ED%A0%80", "/runs/..%2F..%2Fetc"):
        page.get(path, 404)
    page.post("/runs/trip/burn", 404)


@pytest.mark.parametrize("run_id", [".", "..", "a/b", "../x", "/", "~", "~2F", "a b", "%2e%2e"])
def test_each_run_has_an_address(page, run_id):
    """A run is reached by its link, whatever its id: browsers and proxies change nothing in it."""
    agent.options(run_id=run_id)("winds")
    (link,) = set(re.findall(r'href="(/runs/[^"]*)" class="call"', page.get("/")))
    assert link.count("/") == 2
    assert not {".", "..", "%2e", "%2E"} & {*link.split("/")}
    assert "%2F" not in link
    assert str(httpx.URL(page.place).join(link)) == page.place + link
    assert "winds" in page.get(link)
    assert page.post(f"{link}/forget-step", step=2) == link
    assert page.post(f"{link}/delete") == "/"
    assert stepwise.runs() == []


def test_a_page_that_fails(page, monkeypatch, caplog):
    """An error of ours gets a page without its text; the log has it."""
    from stepwise.ui import _pages

    def fail(*_):
        raise ZeroDivisionError("a secret thing")

    monkeypatch.setattr(_pages, "inbox_page", fail)
    assert "a secret thing" not in page.get("/inbox", 500)
    assert "a secret thing" in caplog.text


def test_a_store_that_cannot_be_read(page, monkeypatch):
    """A store that cannot be used gets a page with its sentence."""
    store = page.app.reader.store

    def fail(*_, **__):
        raise stepwise.StoreError("the disk is full of sand", path="/", errno=None)

    agent.options(run_id="trip")("winds")
    token = page.token
    monkeypatch.setattr(store, "newest_heads", fail)
    monkeypatch.setattr(store, "head", fail)
    monkeypatch.setattr(page.app.reader, "_looked", float("-inf"))
    for path in ("/?q=wind&before=", "/runs/trip"):
        text = page.get(path, 503)
        assert "full of sand" in text
        assert re.search(r'href="([^"]*)"[^>]*>Retry<', text)[1] == path.replace("&", "&amp;")
    text = page.post("/runs/trip/delete", 503, token=token)
    assert 'href="/runs/trip" class="button">Retry<' in text
