"""The page of a run, as text: moments, variables, conversations, damage, hostile values."""

import asyncio
import contextlib
import html
import html.parser
import itertools
import json
import os
import re
import time
from pathlib import Path

import httpx2
import pytest
import sdks
from hypothesis import given
from hypothesis import strategies as st

import stepwise
import stepwise.testing
from stepwise._journal.records import RunFacts, RunWait
from stepwise._runs.export import html_page
from stepwise._runs.overview import steps_around
from stepwise._runs.steps import checkpoint_at, newest_checkpoint
from stepwise.errors import StepNotFoundError
from stepwise.ui import _pages, _run_page
from stepwise.ui._reading import Matters, RunRow, Spending, SpendingRow
from stepwise.ui._shell import View

OWNED = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ODD = "\x00\x1b[31m\u202eleft\ud800</pre></script></style>"


def view(**facts):
    """The facts of a request."""
    known = {
        "root": "/at", "form_token": "secret-token", "read_only": False, "open_matters": 0,
        "nonce": "n", "who": "ann", "store": "memory:", "now": time.time(),
    }  # fmt: skip
    return View(**{**known, **facts})


class Text(html.parser.HTMLParser):
    """The text of a page, and its elements with their attributes; all are closed."""

    def __init__(self, page):
        super().__init__()
        self.text, self.elements, self.open = "", [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@stepwise.step
def think(value):
    return value


@stepwise.workflow(retention="all")
def agent(topic):
    notes = think(f"about {topic}")
    more = think([notes])
    notes = think("none")
    return more, notes


# -- moments ---------------------------------------------------------------------------------------


def test_variables_at_a_step():
    """At each step the page has its variables, and marks what changed since the one before."""
    run = agent.execute("tides")
    second = Text(_run_page.run_page(view(), run, 2)).text
    assert "morenew" in second.replace(" ", "")
    assert "['about tides']" in second
    last = Text(_run_page.run_page(view(), run, None)).text
    assert re.search("notes.changed", last)
    assert "now, after 3 steps" in last
    with pytest.raises(StepNotFoundError):
        _run_page.run_page(view(), run, 4)


def test_a_step_that_is_forgotten():
    """The slider goes past the number of a forgotten step; a step that never was is refused."""
    run = agent.execute("tides")
    run.forget(2)
    page = _run_page.run_page(view(), run, 3)
    assert f'href="/at/runs/{run.id}?step=1" aria-label="step before"' in page
    assert "step 1 of 3" in Text(_run_page.run_page(view(), run, 2)).text
    with pytest.raises(StepNotFoundError):
        _run_page.run_page(view(), run, 9)


def test_a_moment_without_a_checkpoint():
    """Where no checkpoint was kept, the page says so, and names the option."""

    @stepwise.workflow(retention="latest_only")
    def flow():
        first = think(1)
        second = think(first)
        return [second]

    run = flow.execute()
    shown = Text(_run_page.run_page(view(), run, 1)).text
    assert "No checkpoint was kept up to this step." in shown
    assert '@workflow(retention="all") keeps all' in shown


@stepwise.tool(side_effect=True, approve=True)
def pay(amount):
    return amount


@stepwise.workflow
def paid():
    return pay(7)


def test_a_run_that_waits():
    """The line of the open call is marked without a checkpoint, and an answered run can go on."""
    stepwise.configure(suspend_after=0)
    with pytest.raises(stepwise.RunSuspended):
        paid.options(run_id="paid")()
    run = stepwise.get_run("paid")
    here = re.search(r'<tr class="here".*?</tr>', _run_page.run_page(view(), run, None))
    assert "return pay(7)" in here[0]
    stepwise.get_run("paid").questions[0].approve()
    text = Text(_run_page.run_page(view(), stepwise.get_run("paid"), None)).text
    assert "All that it waited for has come" in text
    assert "now, after 1 step" in text


def test_a_read_only_page_has_no_form():
    """A page that only shows has the slider and the search as forms, and no other."""
    run = agent.execute("tides")
    page = _run_page.run_page(view(read_only=True), run, None)
    methods = [given["method"] for tag, given in Text(page).elements if tag == "form"]
    assert set(methods) == {"get", "dialog"}
    assert "secret-token" not in page
    assert "Make the fork" not in _run_page.fork_page(view(read_only=True), run, 2, "")


def test_every_form_has_the_token():
    """Each form that acts holds the form token."""
    page = Text(_run_page.run_page(view(), agent.execute("tides"), None))
    acts = [given for tag, given in page.elements if given.get("method") == "post"]
    tokens = [given for _, given in page.elements if given.get("name") == "token"]
    assert len(acts) == len(tokens) > 2
    assert {each["value"] for each in tokens} == {"secret-token"}


def test_the_script_is_small():
    """The one script has less than 20 KB, and needs no other."""
    script = Path(_run_page.__file__).with_name("page.js").read_text("utf-8")
    assert len(script.encode()) < 20_000
    assert not re.search(r"\bimport\b", script)
    assert "http" not in script


# -- a long run ------------------------------------------------------------------------------------


FAILING = []


@stepwise.step
def refuse(number):
    raise KeyError(number)


@stepwise.workflow(checkpoint_every=1_000_000)
async def long(count, slow=0):
    async def late(release):
        await release.wait()
        return think("late")

    @stepwise.step
    async def held(release):
        await release.wait()
        return "held"

    release = asyncio.Event()
    held_back = [asyncio.create_task(held(release)) for _ in range(slow)]
    await asyncio.sleep(0)
    for number in range(count):
        with contextlib.suppress(KeyError):
            think(number) if number % 700 else refuse(number)
    release.set()
    if FAILING:
        raise ValueError(FAILING.pop())
    return await asyncio.gather(*held_back)


@pytest.mark.parametrize("resumed", [False, True])
def test_any_step_of_a_long_run(resumed):
    """Steps around any step are those that a reading of the whole run finds, ends included."""
    if resumed:
        FAILING.append("boom")
        with pytest.raises(ValueError, match="boom"):
            asyncio.run(long(1500, slow=2))
    asyncio.run(long(1500, slow=2))
    (run,) = stepwise.runs()
    every = {each.number: each for each in run.steps}
    seen = run._seen(200)
    for number in (1, 2, 3, 90, 700, 1100, 1400, 1502):
        near = steps_around(run.store, run._seal, run._facts(), seen, number, 50)
        numbers = [each.number for each in near]
        assert numbers == sorted(each for each in every if number - 25 <= each < number + 25)
        assert [(e.status, e.preview, e.finished_at) for e in near] == [
            (every[n].status, every[n].preview, every[n].finished_at) for n in numbers
        ]


CRASHES = []


@stepwise.workflow(retention="all", store="memory:", run_id="one")
def crashing():
    done = []
    for number in range(12):
        if CRASHES and number == CRASHES[0]:
            del CRASHES[0]
            raise stepwise.testing.SimulatedCrash
        done.append(think(number))
    return done


@given(st.lists(st.tuples(st.integers(1, 11), st.integers(0, 11)), max_size=4))
def test_the_checkpoint_of_any_step(deaths):
    """The newest checkpoint up to a step is found by halving, over all attempts of a run."""
    CRASHES[:] = [at for at, _ in deaths]
    for _, forgotten in [*deaths, (0, 0)]:
        with contextlib.suppress(stepwise.testing.SimulatedCrash):
            crashing()
        (run,) = stepwise.runs(store="memory:")
        if forgotten in [each.number for each in run.steps if each.status == "completed"]:
            run.forget(forgotten)
    course = run._seen(5).course
    for at in range(13):
        found = checkpoint_at(run.store, run._seal, run.id, at, course)
        wanted = newest_checkpoint(run.store, run._seal, run.id, at)
        assert (found and found.name) == (wanted and wanted.name)
    run.delete()


def test_the_page_of_a_long_run_is_small():
    """The page of a long run has 200 steps, and links to the others."""
    asyncio.run(long(700))
    (run,) = stepwise.runs()
    for step in (None, 1, 500):
        page = _run_page.run_page(view(), run, step)
        assert len(page) < 150_000
        assert page.count('class="bar ') <= 200
    assert "earlier steps, to 399" in page
    assert "later steps, from 600" in page


@stepwise.step(retries=30, backoff=0)
def stubborn(number):
    if stepwise.current_step().attempt < 25:
        raise OSError("x" * 300)
    return number


def test_the_page_of_many_attempts_is_small():
    """Where many steps were tried often, a page counts most attempts instead of drawing them."""

    @stepwise.workflow
    def flow(steps):
        for number in range(steps):
            stubborn(number)

    for steps, drawn in ((3, 20), (150, 0)):
        page = _run_page.run_page(view(), flow.execute(steps), None)
        assert len(page) < 150_000
        assert page.count('class="bar try failed') == steps * drawn
        assert page.count(f"{24 - drawn} attempts before") == steps + bool(drawn)


# -- a conversation --------------------------------------------------------------------------------


def answered(request):
    """The answer of a model: a call of a tool, then a text."""
    messages = json.loads(request.content)["messages"]
    said = {"role": "assistant", "content": f"<b>{len(messages)}</b> messages"}
    if len(messages) == 1:
        function = {"name": "price", "arguments": '{"city": "Oslo"}'}
        call = {"id": "1", "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
    reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "gpt-5"}
    choice = {"index": 0, "finish_reason": "stop", "message": said}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return httpx2.Response(200, json={**reply, "choices": [choice], "usage": usage})


def test_a_model_call_is_a_conversation():
    """A model call shows the messages of its request and the answer, calls of tools as calls."""
    stepwise.instrument()
    client = sdks.openai.OpenAI(
        api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )

    @stepwise.workflow
    def ask(question):
        messages = [{"role": "user", "content": question}]
        for _ in range(2):
            reply = client.chat.completions.create(model="gpt-5", messages=messages)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": "1", "content": "140"})

    run = ask.execute(f"What does {OWNED} cost? " * 20)
    page = _run_page.run_page(view(), run, 2)
    turns = page.partition("Conversation")[2].partition("<dl>")[0]
    assert re.findall(r'class="turn (\w+)"', turns) == ["user", "assistant", "tool", "assistant"]
    text = Text(page).text
    assert 'price({"city": "Oslo"})' in text
    assert "<b>3</b> messages" in text
    assert "gpt-5, 7 + 3 tokens" in text
    assert "<script>document" not in page


def streamed(request):
    """The answer of a model in pieces: a text, and a call of a tool."""
    function = {"name": "price", "arguments": '{"city":'}
    deltas = [
        {"role": "assistant", "content": "A mo"},
        {"content": "ment."},
        {"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "Oslo"}'}}]},
    ]
    events = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
    kind = {"content-type": "text/event-stream"}
    return httpx2.Response(200, headers=kind, text=f"{body}data: [DONE]\n\n")


def test_a_streamed_answer_is_put_together():
    """A streamed answer shows its text and its calls of tools, not the events that brought them."""
    stepwise.instrument()
    client = sdks.openai.OpenAI(
        api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(streamed))
    )

    @stepwise.workflow
    def ask(question):
        messages = [{"role": "user", "content": question}]
        return len([*client.chat.completions.create(model="m", messages=messages, stream=True)])

    text = Text(_run_page.run_page(view(), ask.execute("What does it cost?"), 1)).text
    talk = text.partition("Conversation")[2].partition("arguments")[0]
    assert "A moment." in talk
    assert 'price({"city": "Oslo"})' in talk
    assert "data:" not in talk


# -- streams ---------------------------------------------------------------------------------------


def streams_of(run, step=None):
    """The part of a page that has the streams."""
    page = _run_page.run_page(view(), run, step)
    return re.search(r'<div data-live="streams">(.*?)</div>', page, re.DOTALL)[1]


def test_streams():
    """Texts of a stream are joined, other items have a line each, and withdrawn items are gone."""

    @stepwise.step(retries=1, backoff=0)
    def draft():
        stepwise.emit("not this " if stepwise.current_step().attempt == 1 else "the moon ")
        if stepwise.current_step().attempt == 1:
            raise ValueError("cut off")

    @stepwise.workflow
    def flow():
        stepwise.emit({"asked": "why?"})
        draft()
        stepwise.emit("pulls")
        stepwise.emit(OWNED)
        stepwise.emit(0.5, "progress")
        stepwise.emit({"a": {1}}, "progress")
        think(1)

    run = flow.execute()
    part = streams_of(run)
    assert "<script>" not in part
    (main, progress) = (
        html.unescape(each) for each in re.findall(r"<pre[^>]*>(.*?)</pre>", part, re.DOTALL)
    )
    assert main == f'{{"asked":"why?"}}\nthe moon pulls{OWNED}'
    assert re.fullmatch(r"0.5\n<a value of [0-9,]+ bytes>\n", progress)
    assert "all of it" not in part
    assert streams_of(run, 1) == ""


def test_a_run_that_says_nothing():
    """A run without streams has no such section."""
    assert streams_of(agent.execute("tides")) == ""


def test_a_long_stream():
    """Only the end of a long stream is shown, with the command for all of it."""

    @stepwise.workflow(run_id="long")
    def flow():
        for number in range(3000):
            stepwise.emit(f"{number} ", "my words")

    part = streams_of(flow.execute())
    assert "2998 2999 </pre>" in part
    assert " 1000 " not in part
    assert len(part) < 6000
    assert (
        "stepwise watch long --stream &#x27;my words&#x27;" in part
        or "--stream 'my words'" in html.unescape(part)
    )


@stepwise.tool(side_effect=True)
def mail(text):
    return f"sent {text}"


@stepwise.workflow
def mailing():
    log_in()
    mail("hello")


def test_a_side_effect_is_not_forgotten_by_one_click():
    """The form that forgets a side effect has a box to tick, since it may then happen again."""
    run = mailing.execute()
    plain, effect = (_run_page.run_page(view(), run, number) for number in (1, 2))
    assert "Forget this step" in plain
    assert "it may happen again" not in plain
    assert "yes, it may happen again" in effect


@stepwise.step
def log_in():
    return "welcome"


@stepwise.workflow
def session():
    config = {"password": f"{os.getpid()}-sesame", "user": "ann"}
    return [log_in(), len(config)]


def test_what_has_the_name_of_a_secret_is_masked():
    """No page shows a variable's value under a secret's name, and neither does an exported page."""
    run = session.execute()
    secret = f"{os.getpid()}-sesame"
    assert run.locals()["config"]["password"] == secret
    for shown in (
        _run_page.run_page(view(), run, 1),
        _run_page.fork_page(view(), run, 1),
        _run_page.value_page(view(), run, "locals", 1, "config"),
        html_page(run),
    ):
        assert secret not in shown
        assert "&lt;secret&gt;" in shown


def test_what_a_stream_shows_of_secrets():
    """Values that look like credentials are masked, also where an item holds only a part."""

    @stepwise.workflow
    def flow():
        stepwise.emit({"password": "hunter2-77"})
        for part in ("sk-proj-", "abcdEFGH1234", "ijklMNOP5678", "qrstUVWX9012"):
            stepwise.emit(part)

    part = streams_of(flow.execute())
    assert "hunter2" not in part
    assert "MNOP5678" not in part


def test_streams_that_are_damaged_or_changed(monkeypatch):
    """Nothing of a stream is unpickled; one that is damaged has a note, and the page is there."""

    @stepwise.workflow(store="memory:")
    def flow():
        stepwise.emit(Tripwire())
        stepwise.emit("words")

    run = flow.execute()
    tripped.clear()
    assert "words" in streams_of(run)
    read = run.store.read

    def changed(name, *given, **more):
        rows = read(name, *given, **more)
        spoilt = name.startswith("stream:")
        return ((n, data[:-1] + bytes([data[-1] ^ spoilt])) for n, data in rows)

    monkeypatch.setattr(run.store, "read", changed)
    assert "words" not in streams_of(run)
    assert tripped == []


# -- what cannot be trusted ------------------------------------------------------------------------


class Tripwire:
    """Says when it is unpickled."""

    def __init__(self):
        self.loaded = False

    def __setstate__(self, state):
        tripped.append(state)


tripped = []


def pages_of(run):
    """Every page of a run that shows values."""
    for step in (None, 1, 2):
        yield _run_page.run_page(view(), run, step)
        yield _run_page.fork_page(view(), run, step, "")


def test_nothing_is_unpickled_that_does_not_verify(monkeypatch):
    """A checkpoint that was changed in the store is not loaded, and the page is there."""

    @stepwise.workflow(retention="all", store="memory:")
    def flow():
        mine = Tripwire()
        one = think(1)
        return think(2) if mine else one

    run = flow.execute()
    tripped.clear()
    assert all(pages_of(run))
    assert tripped
    tripped.clear()
    get = run.store.get

    def changed(run_id, name):
        data = get(run_id, name)
        return data[:-1] + bytes([data[-1] ^ 1]) if data else data

    monkeypatch.setattr(run.store, "get", changed)
    shown = [*pages_of(run)]
    assert tripped == []
    assert "No checkpoint was kept" in shown[0]
    assert "think(value=2)" in shown[0]


def test_a_value_of_several_pages(monkeypatch):
    """A value that is longer than a page is shown to its end, each character once."""
    monkeypatch.setattr(_run_page, "_WHOLE", 10)
    run = agent.execute("tides")
    shown, begin = [], 0
    while begin is not None:
        page = _run_page.value_page(view(), run, "result", 1, "", begin)
        shown.append(html.unescape(re.search(r"<pre[^>]*>\n?(.*?)</pre>", page, re.DOTALL)[1]))
        after = re.search(r'href="[^"]*begin=(\d+)">after<', page)
        begin = int(after[1]) if after else None
    assert "".join(shown) == repr(run.steps[0].result)
    assert len(shown) > 1
    assert {len(each) for each in shown[:-1]} == {10}
    last = _run_page.value_page(view(), run, "result", 1, "", 10**9)
    assert ">after</a>" not in last
    assert f"{shown[-1][-3:]}</pre>" in html.unescape(last)


def test_a_value_of_another_kind():
    """A page of values says which they are, and an unknown kind has none."""
    run = agent.execute("tides")
    assert "the variables at step 1" in _run_page.value_page(view(), run, "locals", 1, "")
    with pytest.raises(stepwise.ConfigurationError, match="not 'nothing'"):
        _run_page.value_page(view(), run, "nothing", 1, "")


def test_trust_in_data_only():
    """With trust="data" the page has the short texts, and says why it has no more."""
    run = agent.execute("tides")
    stepwise.configure(trust="data")
    shown = Text(_run_page.run_page(view(), run, 2)).text
    assert "about tides" in shown
    assert "trust='data'" in shown


# -- hostile values --------------------------------------------------------------------------------

text = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.sampled_from([OWNED, ODD, '" onload="x', "javascript:x", "</textarea>", "&#0;", "../.."]),
    st.just("x" * 25_000),
)
waits = st.builds(RunWait, st.just(1), st.just("signal"), text, st.none(), st.just(1.0))
listed = st.builds(
    RunFacts,
    st.one_of(text.filter(bool)), text, text, st.just("suspended"), text, st.just(""),
    created_at=st.just(1.0),
    updated_at=st.just(2.0),
    error=text,
    waits=st.lists(waits, max_size=4).map(tuple),
    tags=st.dictionaries(text, text, max_size=3),
    forked_from=text,
    tally=st.none(),
)  # fmt: skip
statuses = st.sampled_from(["completed", "crashed", "suspended", "cancelling"])
rows = st.builds(RunRow, listed, statuses, served_by=text)
spent = st.builds(SpendingRow, text, query=text, usd=st.floats(0, 1e9), tokens=st.integers(0, 9))


def pages(listing, query, money):
    """The pages of many runs."""
    yield _pages.runs_page(view(), listing, query, query, query)
    yield _pages.inbox_page(view(open_matters=3), Matters(resumable=listing, left_out=query))
    yield _pages.spending_page(view(), Spending(query, money, SpendingRow("all"), query))
    yield _pages.problem_page(view(store=query, who=query), 404, query, query)


@given(st.lists(rows, max_size=3), text, st.lists(spent, max_size=2))
def test_hostile_values_in_lists(listing, query, money):
    """Whatever is listed: nothing is executed or loaded, every element is closed, all is text."""
    for page in pages(listing, query, money):
        shown = Text(page)
        assert all(each.isprintable() or each in "\n\t" for each in page)
        page.encode()
        scripts = [given for tag, given in shown.elements if tag == "script"]
        assert scripts == [{"src": "/at/static/page.js", "defer": None}]
        attributes = itertools.chain(*(given for _, given in shown.elements))
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        links = [given["href"] for _, given in shown.elements if "href" in given]
        assert all(each.startswith(("/at/", "#main", "data:image/svg+xml,")) for each in links)
