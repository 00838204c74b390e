"""The page of ``stepwise export``: complete, safe with any value, readable without JavaScript."""

import base64
import hashlib
import html.parser
import itertools
import re
import types
from dataclasses import replace

import hypothesis
import pytest
from click.testing import CliRunner
from harness import python
from hypothesis import given
from hypothesis import strategies as st
from sweeping import WHOLE

import stepwise
import stepwise.testing
from stepwise import cli
from stepwise._display.markup import Rules
from stepwise._display.page import CheckpointShown, RunPage, SourceShown, page
from stepwise._display.render import RunShown
from stepwise._display.timeline import RunBars, timeline
from stepwise._runs.verify import delete_runs
from stepwise._runtime.messages import printable

OWNED = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ODD = "\x00\x1b[31m\u202eleft\ud800</pre></script>"
VOID = {"meta", "input"}
INERT = re.findall(
    r"\w+",
    """
    html head meta title style body header footer section h1 h2 h3 dl dt dd div span small p ul li
    code pre details summary b i u del ins a table thead tbody tr th td input select option
    button script main
    """,
)


class Page(html.parser.HTMLParser):
    """The elements of a page, each with its attributes and text; checks that all are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = types.SimpleNamespace(tag=tag, text="", **{"with": dict(attributes)})
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        for element in self.open:
            element.text += data
        if not {"style", "script"} & {each.tag for each in self.open}:
            self.text += data

    def all(self, tag, **attributes):
        """The elements of that name with these attributes (``cls`` among others)."""
        wanted = {key.replace("cls", "class"): value for key, value in attributes.items()}
        return [
            each
            for each in self.elements
            if each.tag == tag and wanted.items() <= vars(each)["with"].items()
        ]

    def one(self, tag, **attributes):
        (found,) = self.all(tag, **attributes)
        return found


def exported(run):
    """The page of a run, as the command writes it."""
    done = CliRunner().invoke(cli.main, ["export", run.id], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def step_of(number, *, start=0.0, end=1.0, **facts):
    """A step as a page gets it."""
    default = {
        "name": "work", "status": "completed", "arguments": "x=1", "preview": "1", "attempts": 1,
        "side_effect": False, "idempotency_key": "", "site": "", "child": "", "traceback": "",
        "instead": 0, "why": "", "usage": {}, "by": "", "failures": {}, "waited": 0.0, "tries": (),
        "cached": {},
    }  # fmt: skip
    ended = {"finished_at": end, "duration": None if end is None else end - start}
    entry = types.SimpleNamespace(number=number, call=None)
    facts = {**default, **ended, **facts}
    return types.SimpleNamespace(number=number, started_at=start, _entry=entry, **facts)


# -- what it says ----------------------------------------------------------------------------------


@stepwise.step
def think(topic, mood="calm"):
    return f"about {topic}"


@stepwise.tool(side_effect=True, fails_cleanly=ValueError)
def send(body):
    raise ValueError(f"no mail: {body}")


@stepwise.workflow
def child(topic):
    return think(topic)


@stepwise.workflow(retention="all")
def agent(topic):
    notes = think(topic)
    more = child(f"more {topic}")
    send(notes)
    return more


@pytest.fixture
def failed():
    with pytest.raises(ValueError, match="no mail"):
        agent("tides")
    (run,) = [each for each in stepwise.runs() if each.parent is None]
    return run


def test_the_facts_of_a_run(failed):
    """The head of a page says what ``show`` says: call, status, times, counts, error."""
    shown = Page(exported(failed))
    head = shown.one("h1").text
    assert head == "agent(topic='tides') failed"
    for text in (failed.id, failed.workflow, "no mail: about tides", "3 (2 completed, 1 failed)"):
        assert text in shown.text
    assert {each.text for each in shown.all("dt")} >= {"run", "started", "ended", "took", "error"}


def test_the_steps_of_a_run(failed):
    """Each step is an entry with arguments, result or error, traceback and place of the call."""
    shown = Page(exported(failed))
    entries = [each for each in shown.all("details") if "step" in vars(each)["with"]["class"]]
    assert len(entries) == 3 + 1  # and that of the child run
    first, _, last = (shown.one("details", id=f"s{number}").text for number in (1, 2, 3))
    assert "topic='tides'" in first
    assert "'about tides'" in first
    assert failed.steps[0].site in first
    assert "Traceback" in last
    assert failed.steps[2].idempotency_key in last


def test_the_child_runs(failed):
    """A child run is on the page of its parent, with a link; one that is deleted is named only."""
    shown = Page(exported(failed))
    link = shown.one("a", href="#r1-run")
    assert link.text == failed.steps[1].child
    section = shown.one("section", id="r1-run").text
    assert "child(topic='more tides') completed" in section
    assert shown.one("details", id="r1-s1").text in section
    child = stepwise.get_run(failed.steps[1].child)
    delete_runs(child.store, child._seal, child.id)
    shown = Page(exported(failed))
    assert failed.steps[1].child in shown.one("details", id="s2").text
    assert shown.all("section", cls="child") == []


def test_the_source_with_its_position(failed):
    """The source is shown with the line at which the run resumes, and the steps of each line."""
    shown = Page(exported(failed))
    assert "send(notes)" in shown.one("tr", cls="here").text
    (line, *_) = [each.text for each in shown.all("tr") if "think(topic)" in each.text]
    number = failed.steps[0].site.rpartition(":")[2]
    assert re.fullmatch(rf"{number}1 \d+ ms    notes = think\(topic\)", line)
    links = {vars(each)["with"]["href"] for each in shown.all("a") if each.text == "3"}
    assert links == {"#s3"}


def test_the_variables_at_each_checkpoint(failed):
    """The kept checkpoints are listed, the newest first, with their variables."""
    shown = Page(exported(failed))
    found = [each.text for each in shown.all("details", cls="checkpoint")]
    assert len(found) >= 2
    assert "more'about more tides'" in found[0]
    assert "more" not in found[-1].partition("value")[2]


EDITED = """
from stepwise import step, workflow

@step
def think(topic):
    return topic

@workflow
def agent(topic):
    return think(topic)

if __name__ == "__main__":
    agent("tides")
"""


def test_source_that_was_edited(tmp_path):
    """Source that is not what the run executed is shown with a doubt; a missing one is named."""
    script = tmp_path / "script.py"
    script.write_text(EDITED)
    python(script, code=0)
    (run,) = stepwise.runs()
    assert "return think(topic)" in exported(run)
    assert "edited since" not in exported(run)
    script.write_text(EDITED.replace("return think(topic)", "return think(topic + topic)"))
    assert "was edited since" in exported(run)
    script.write_text("agent = 1\n")
    assert "the function of &#x27;agent&#x27; is not found" in exported(run)
    script.unlink()
    assert "not on this machine" in exported(run)


def test_source_of_a_renamed_workflow():
    """The source of a workflow is found by its code, if the workflow has another name."""

    @stepwise.workflow(name="other")
    def flow(topic):
        return think(topic)

    assert "def flow(topic)" in Page(exported(flow.execute("moon"))).text


def test_tags_and_a_result():
    """The tags of a completed run and its result are shown, and no line at which it resumes."""
    done = child.options(tags={"customer": "ann", "job": "3"}).execute("stars")
    shown = Page(exported(done))
    assert "'about stars'" in shown.one("header").text
    assert "customer=ann, job=3" in shown.one("header").text
    assert shown.all("tr", cls="here") == []


def test_what_is_hidden_stays_out():
    """No value of a secret or redacted argument is on a page, only the names."""

    @stepwise.workflow(secret=["token"], redact=["body"])
    def flow(token, body, topic):
        return think(topic)

    shown = exported(flow.execute("hunter2", "hidden text", "stars"))
    assert "about stars" in shown
    assert "token" in shown
    assert "hunter2" not in shown
    assert "hidden text" not in shown


def test_a_side_effect_in_doubt():
    """A side effect in doubt is told at the top, with the commands that settle it."""

    @stepwise.tool(side_effect=True)
    def pay(amount):
        raise stepwise.testing.SimulatedCrash

    @stepwise.workflow
    def flow():
        pay(3)

    with pytest.raises(BaseException):  # noqa: B017
        flow()
    (run,) = stepwise.runs()
    (asked,) = Page(exported(run)).all("section", cls="ask")
    assert "pay(amount=3)" in asked.text
    assert f"stepwise resolve {run.id} 1 --did-not-happen" in asked.text


def test_differing_arguments():
    """A step that ran although it was recorded shows in which words the two calls differ."""
    why = "work ran, since 'mood' differs"
    again = step_of(2, arguments="mood='bold', n=1", instead=1, why=why)
    steps = [step_of(1, arguments="mood='calm', n=1"), again]
    shown = Page(page(RunPage(RunShown("r", "f()", "completed", steps=steps))))
    assert "work ran, since 'mood' differs" in shown.one("details", id="s2").text
    assert "work ran, since 'mood' differs" in [each.text for each in shown.all("a", href="#s1")]
    assert [each.text for each in shown.all("del")] == ["calm"]
    assert [each.text for each in shown.all("ins")] == ["bold"]


# -- the timeline ----------------------------------------------------------------------------------


def bars(*steps, now=None, resumes=()):
    """Left edge, right edge and top of each bar; the texts below."""
    rules = Rules()
    drawn = Page(timeline([RunBars("", steps, "#s{}".format)], now, resumes, rules))
    rules = {
        name: dict(each.split(":") for each in rule.split(";"))
        for name, rule in re.findall(r"\.(\w+)\{(.*)\}", rules.text)
    }
    found = [rules[vars(each)["with"]["class"].split()[-1]] for each in drawn.all("a")]
    spans = [
        (
            float(each["left"][:-1]),
            float(each["left"][:-1]) + float(each["width"][:-1]),
            int(each["top"][:-2]),
        )
        for each in found
    ]
    labels = [each.text for each in drawn.all("small") if "resumed after" in each.text]
    return spans, labels


def test_parallel_steps_are_side_by_side():
    """Steps that ran at one time are in lanes of their own; others share a lane."""
    spans, _ = bars(step_of(1, end=2), step_of(2, start=1, end=3), step_of(3, start=2, end=4))
    assert [top for _, _, top in spans] == [0, 22, 0]
    assert spans[0][0] == 0
    assert spans[1][0] == pytest.approx(25)
    assert spans[2][1] == pytest.approx(100)


def test_many_parallel_steps():
    """Many lanes are thin, so that the picture stays as high as a screen."""
    spans, _ = bars(*(step_of(number) for number in range(1, 61)))
    tops = [top for _, _, top in spans]
    assert tops == [*range(0, 480, 8)]


def test_a_time_in_which_it_was_down():
    """The time between two attempts of a run is shortened and named, with the end of the first."""
    later = step_of(2, start=3600, end=3601)
    spans, labels = bars(step_of(1), later, resumes=[(3600.0, "died")])
    assert labels == ["process died, resumed after 59 min 59 s"]
    _, labels = bars(step_of(1), later, resumes=[(3600.0, "suspended")])
    assert labels == ["suspended, resumed after 59 min 59 s"]
    _, labels = bars(step_of(1), later, resumes=[(3600.0, "")])
    assert labels == ["resumed after 59 min 59 s"]
    assert spans[1][0] - spans[0][1] < 5


def test_attempts_that_did_nothing():
    """Attempts that were killed before their first step belong to one time of being down."""
    _, labels = bars(
        step_of(1),
        step_of(2, start=60, end=61),
        resumes=[(at, "died") for at in (20.0, 40.0, 60.0)],
    )
    assert labels == ["process died, resumed after 59.0 s"]


def test_labels_do_not_overlap():
    """A label near the right edge stands left of its place, and only where no other one is."""
    steps = [step_of(1, end=60), step_of(2, start=100, end=120), step_of(3, start=160, end=180)]
    _, labels = bars(*steps, resumes=[(100.0, "died"), (160.0, "suspended")])
    assert labels == ["process died, resumed after 40.0 s"]


def test_a_step_that_was_executed_again():
    """A step whose first execution was killed begins, in the picture, with the last attempt."""
    spans, _ = bars(step_of(1), step_of(2, start=1, end=101), resumes=[(100.0, "died")])
    assert spans[1][1] - spans[1][0] < 60


def test_the_line_of_a_resume():
    """A death, a suspension and another end are lines of other kinds, each with its words."""
    ends = {5.0: "died", 6.0: "suspended", 7.0: "interrupted"}
    steps = [step_of(1), step_of(2, start=9, end=10)]
    drawn = Page(timeline([RunBars("", steps, "#s{}".format)], None, [*ends.items()], Rules()))
    lines = [vars(each)["with"] for each in drawn.all("i") if "cut" in vars(each)["with"]["class"]]
    assert [each["class"].split()[1] for each in lines] == ["death", "sleep", "stop"]
    assert [each["title"] for each in lines] == [
        "process died, then resumed", "suspended, then resumed", "interrupted, then resumed",
    ]  # fmt: skip
    for words in ("solid line: process died", "dotted line: suspended", "dashed line: interrupted"):
        assert words in drawn.text


def tried(number, status, started_at, finished_at, error=""):
    return types.SimpleNamespace(
        number=number, status=status, started_at=started_at, finished_at=finished_at, error=error
    )


def test_attempts_and_waits_are_apart():
    """Each attempt of a step has a bar; what it waited is no bar of its own time, and is cut."""
    tries = (tried(1, "failed", 1000, 1010, "E()"), tried(2, "completed", 1012, 1020))
    step = step_of(2, end=1020, duration=20, waited=1000.0, attempts=2, tries=tries)
    rules = Rules()
    drawn = Page(timeline([RunBars("", [step_of(1), step], "#s{}".format)], None, [], rules))
    shown = [vars(each)["with"] for each in drawn.all("a")]
    assert [each["title"] for each in shown] == [
        "1 work: completed, 1.0 s",
        "2 work: attempt 1 failed after 10.0 s: E()",
        "2 work: completed, 20.0 s, waited 16 min 40 s, 2 tries",
    ]
    assert [each["href"] for each in shown] == ["#s1", "#s2", "#s2"]
    waits = [vars(each)["with"] for each in drawn.all("i") if "gap" in vars(each)["with"]["class"]]
    assert [each["title"] for each in waits] == ["waited 16 min 40 s", "next attempt after 2.0 s"]
    spans, _ = bars(step_of(1), step)
    assert spans[0][2] != spans[1][2] == spans[2][2]
    assert spans[0][1] < spans[1][0] < 15
    assert spans[1][1] < spans[2][0]
    shown = Page(page(RunPage(RunShown("r", "f()", "completed", steps=[step]))))
    assert "attempt 1 failed after 10.0 s: E()" in shown.one("details", id="s2").text


def test_attempts_while_the_clock_is_set_back():
    """No bar leaves the picture or stands left of its beginning, whatever the clock did."""
    tries = (tried(1, "failed", 100, 60, "E()"), tried(2, "completed", 60, 60))
    step = step_of(2, start=100, end=60, duration=0, attempts=2, tries=tries)
    spans, _ = bars(step_of(1), step, step_of(3, start=60, end=61))
    assert len(spans) == 4
    assert all(0 <= left < right <= 100 for left, right, _ in spans)
    assert spans[0][0] == 0


def test_attempts_that_are_not_recorded():
    """Of a step with many attempts the picture says how many there were before those it has."""
    tries = tuple(tried(n, "failed", n, n + 0.5) for n in range(11, 32))
    step = step_of(1, end=31.5, attempts=31, tries=tries)
    drawn = Page(timeline([RunBars("", [step], "#s{}".format)], None, [], Rules()))
    waits = [vars(each)["with"] for each in drawn.all("i") if "gap" in vars(each)["with"]["class"]]
    assert waits[0]["title"] == "10 attempts before"
    assert len(drawn.all("a")) == 21
    steps = [step] * 40
    drawn = Page(timeline([RunBars("", steps, "#s{}".format)], None, [], Rules()))
    assert len(drawn.all("a")) == 40 * 3


def test_unfinished_steps():
    """A step in progress goes on to now; one that nobody executes has no length."""
    (running,), _ = bars(step_of(1, end=None, status="started"), now=5.0)
    assert running[1] == 100
    spans, _ = bars(step_of(1), step_of(2, end=None, status="in_doubt"))
    assert spans[1][1] - spans[1][0] == pytest.approx(0.4)


def test_what_the_journal_answered_is_hollow():
    """Steps from before the last attempt are hollow bars, and a line marks its beginning."""
    steps = [step_of(1), step_of(9, start=5, end=6)]
    rules = Rules()
    drawn = Page(
        timeline([RunBars("", steps, "#s{}".format, begun=5)], None, [(5.0, "died")], rules)
    )
    kinds = [vars(each)["with"]["class"].split() for each in drawn.all("a")]
    assert ["answered" in each for each in kinds] == [True, False]
    assert len([each for each in drawn.all("i") if "death" in vars(each)["with"]["class"]]) == 1


def test_child_runs_are_below():
    """The steps of a child run are in a group of their own, on the axis of their parent."""
    parent = RunBars("", [step_of(1, end=10)], "#s{}".format)
    child = RunBars("review", [step_of(1, start=5, end=10)], "#r1-s{}".format)
    rules = Rules()
    drawn = Page(timeline([parent, child], None, [], rules))
    assert [each.text for each in drawn.all("small")] == ["review"]
    assert drawn.one("div", cls="group child").text.startswith("review")
    assert [vars(each)["with"]["href"] for each in drawn.all("a")] == ["#s1", "#r1-s1"]
    assert "left:50.00%;width:50.00%" in rules.text


def test_recorded_arguments_and_variables(tmp_path):
    """Arguments in full and the variables of a failure are on the page, if they were recorded."""
    stepwise.configure(record_arguments=True, record_locals=True)
    long_text = "x" * 1500
    with pytest.raises(ValueError, match="no mail"):
        agent(long_text)
    (run,) = [each for each in stepwise.runs() if each.parent is None]
    shown = Page(exported(run))
    assert long_text in shown.one("details", id="s1").text
    assert "Variables where it failed" in [each.text for each in shown.all("h2")]


span = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(sorted)


@given(st.lists(span, min_size=1, max_size=30), st.lists(st.floats(0, 1e6), max_size=4))
def test_every_timeline_fits(spans, resumes):
    """Whenever steps ran, each bar is inside the picture, and no two overlap in one lane."""
    steps = [step_of(number, start=a, end=b) for number, (a, b) in enumerate(spans, 1)]
    found, _ = bars(*steps, resumes=[(at, "died") for at in sorted(resumes)])
    assert all(-0.01 <= left < right <= 100.02 for left, right, _ in found)
    if len({top for _, _, top in found}) < 24:
        for one, other in itertools.combinations(found, 2):
            alone = one[2] != other[2] or one[1] <= other[0] + 0.9 or other[1] <= one[0] + 0.9
            assert alone, (one, other)


# -- safe with any value ---------------------------------------------------------------------------

text = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.sampled_from([OWNED, ODD, '" onload="x', "javascript:x", "]]>", "<!--", "&#0;"]),
    st.just("x" * 25_000),
)
steps = st.builds(
    step_of,
    st.integers(1, 5),
    attempts=st.just(2),
    tries=st.tuples(st.builds(tried, st.just(1), text, st.just(0.0), st.just(0.5), text)),
    **dict.fromkeys(("name", "arguments", "preview", "site", "child", "traceback"), text),
    idempotency_key=text,
    by=text,
    instead=st.integers(0, 2),
    why=text,
    status=st.sampled_from(["completed", "failed", "in_doubt", "started", "cancelled"]),
    side_effect=st.booleans(),
)
pages = st.builds(
    RunPage,
    st.builds(RunShown, text, text, st.just("failed"), text, text, error=text,
              steps=st.lists(steps, max_size=3)),
    facts=st.dictionaries(st.just("child of"), text),
    resumes=st.lists(st.tuples(st.just(1.0), text, text), max_size=2),
    result=text,
    where=text,
    line=text,
    source=st.builds(SourceShown, text, st.just(1), st.lists(text, max_size=2), note=text),
    checkpoints=st.lists(
        st.builds(CheckpointShown, text, st.dictionaries(text, text, max_size=2), text), max_size=2
    ),
    in_doubt=st.lists(steps, max_size=1),
    stops=st.lists(
        st.builds(
            types.SimpleNamespace, name=text, arguments=text, site=text, said=st.none(),
            commands=st.tuples(text, text), meanings=st.tuples(text, text),
            could_be=st.lists(
                st.builds(types.SimpleNamespace, number=st.just(1), name=text, arguments=text,
                          why=text), max_size=2,
            ),
        ),
        max_size=1,
    ),
)  # fmt: skip


@hypothesis.settings(max_examples=500 if WHOLE else 20)
@given(pages, text)
def test_hostile_values(run, called):
    """Whatever is recorded: nothing is executed or loaded, every element is closed, all is text."""
    inner = RunPage(RunShown("child", called, "completed"))
    whole = page(replace(run, children={"child": inner}))
    shown = Page(whole)
    assert {each.tag for each in shown.elements} <= {*INERT}
    assert len(shown.all("script")) == len(shown.all("style")) == 1
    for each in shown.elements:
        given = vars(each)["with"]
        assert not [name for name in given if name.startswith("on") or name in ("src", "style")]
        assert given.get("href", "#").startswith("#")
    whole.encode("utf-8")
    assert all(each.isprintable() or each in "\n\t" for each in whole)
    for value in (run.shown.call, run.where, called):
        assert printable(value) in shown.text


def test_huge_values():
    """The middle of a huge value is left out, and the number of its characters is said."""
    shown = page(RunPage(RunShown("r", "f()", "completed"), result="x" * 1_000_000))
    assert len(shown) < 60_000
    assert "[... 980000 characters ...]" in shown


def test_the_policy_allows_what_is_ours():
    """The Content-Security-Policy names the digests of the style and the script, and no source."""
    shown = Page(page(RunPage(RunShown("r", "f()", "completed"))))
    policy = vars(shown.all("meta", **{"http-equiv": "Content-Security-Policy"})[0])["with"]
    rules = dict(each.strip().split(" ", 1) for each in policy["content"].split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name in ("style", "script"):
        digest = hashlib.sha256(shown.one(name).text.encode()).digest()
        assert rules[f"{name}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"


def test_without_javascript(failed):
    """Without the script nothing is missing."""
    whole = exported(failed)
    assert Page(re.sub("<script>.*?</script>", "", whole, flags=re.DOTALL)).text == Page(whole).text


# -- in a browser ----------------------------------------------------------------------------------

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
OVERFLOW = """<script>
const fits = document.documentElement.scrollWidth <= innerWidth;
(parent === self ? (text) => document.body.append(text) : (text) => parent.postMessage(text, "*"))(
  `${innerWidth} ${fits} ${document.title}`);
</script>"""
FRAME = """<!doctype html><script>
addEventListener("message", (event) => document.body.append(event.data));
</script><iframe width=375 height=600 src="inner.html"></iframe>"""


@stepwise.workflow(store="memory:")
def hostile(values):
    for value in values:
        think(value)
    send(OWNED)


def hostile_page():
    with pytest.raises(ValueError, match="no mail"):
        hostile.options(fresh=True)(["x" * 300, OWNED, ODD])
    (run,) = stepwise.runs(hostile, store="memory:")
    done = CliRunner().invoke(cli.main, ["export", run.id, "--store", "memory:"])
    return done.stdout


def test_a_wide_page_in_a_browser(browse):
    """The page fits a wide browser, and executes nothing of what is recorded."""
    whole = POLICY.sub("", hostile_page()).replace("<details", "<details open")
    shown = browse(whole.replace("</html>", f"{OVERFLOW}</html>"), "--dump-dom",
                   "--window-size=1200,600")  # fmt: skip
    assert "1200 true hostile(" in Page(shown).text


def test_a_page_on_a_phone(browse, tmp_path):
    """The page fits a browser that is as narrow as a phone."""
    whole = POLICY.sub("", hostile_page()).replace("<details", "<details open")
    (tmp_path / "inner.html").write_text(whole.replace("</html>", f"{OVERFLOW}</html>"))
    shown = browse(FRAME, "--dump-dom", "--virtual-time-budget=2000")
    assert re.search(r"3\d\d true hostile\(", Page(shown).text)


def test_the_policy_in_a_browser(browse):
    """A browser executes the page's script, which opens the step of a link, and none beside it."""
    added = "<script>document.body.append('added')</script>"
    whole = hostile_page().replace("</body>", f"{added}</body>")
    shown = browse(whole, "--dump-dom", fragment="#s2")
    assert "open" in vars(Page(shown).one("details", id="s2"))["with"]
    assert "open" not in vars(Page(shown).one("details", id="s3"))["with"]
    assert Page(shown).text.count("added") == 0
