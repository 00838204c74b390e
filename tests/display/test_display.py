"""Runs, steps and checkpoints as HTML and as text: everything is escaped, shortened, and fast."""

import asyncio
import html.parser
import struct
import zlib

import pytest
from IPython.lib.pretty import pretty

import stepwise
from stepwise._display import render
from stepwise._display.markup import tag
from stepwise._display.timeline import placed

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;'
ANSI = "\x1b[31mred\x1b[0m\x07\r\u202eleft"


@stepwise.step
def think(value):
    return value


@stepwise.tool(side_effect=True)
def send(value):
    raise ValueError(value)


@stepwise.workflow(store="memory:", checkpoint_every=1)
def flow(values):
    for value in values:
        think(value)
    return send(EVIL)


def run_of(*values):
    with pytest.raises(ValueError):
        flow.options(fresh=True)(list(values))
    return stepwise.runs(store="memory:")[0]


class Page(html.parser.HTMLParser):
    """The elements, their attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def pages_of(run):
    return [
        each._repr_html_()
        for each in (run, stepwise.runs(store="memory:"), *run.steps, *run.checkpoints)
    ]


def test_escaped():
    """HTML in a name, an argument, a result or an error is text; nothing comes from outside."""
    for shown in pages_of(run_of(EVIL, {EVIL: EVIL})):
        page = Page(shown)
        assert {"script", "img", "link", "iframe"}.isdisjoint(page.tags)
        assert {name for name, _ in page.attributes} <= {"class", "style", "colspan"}
        assert "http" not in shown
        assert "url(" not in shown
    assert EVIL[:8] in page.text or "alert" in Page(run_of(EVIL)._repr_html_()).text


def test_control_characters():
    """ANSI codes, bells and the marks that turn text around are written out, not obeyed."""
    run = run_of(ANSI, ANSI.encode(), b"\xff\xfe", "\ud800")
    for shown in [*pages_of(run), repr(stepwise.runs(store="memory:")), pretty(run)]:
        assert {"\x1b", "\x07", "\r", "\u202e", "\ud800"}.isdisjoint(shown)
        shown.encode()
    assert "\\x1b[31mred" in run._repr_html_()
    assert "\\x1b[31mred" in render.framed(tag("code", f"stepwise resume {ANSI}"))
    assert render.printable("a\x1b[1m\nb\u202e") == "a\\x1b[1m\nb\\u202e"


def test_large_values():
    """Ten megabytes of text or bytes are shown by their beginning and end."""
    run = run_of("x" * 10_000_000, b"y" * 10_000_000)
    assert max(map(len, pages_of(run))) < 40_000
    assert len(pretty(run)) < 4_000
    assert len(render.printable("z" * 10_000_000)) < 21_000


def test_a_checkpoint_of_an_agent():
    """A checkpoint of the classic objects shows its parts."""
    checkpoint = stepwise.Checkpoint("c", "run", 3, {"key": EVIL}, [], {"tool": ANSI})
    shown = checkpoint._repr_html_()
    assert "checkpoint of run after step 3" in shown
    assert "script" not in Page(shown).tags
    assert "\x1b" not in shown


def test_text():
    """In a terminal a run is its facts and a table of its steps, and runs() a table."""
    run = run_of(1)
    lines = pretty(run).splitlines()
    assert lines[0] == "flow(values=[1]): failed"
    assert lines[1].startswith(f"  run {run.id}, begun ")
    assert lines[1].endswith("steps: 2 (1 completed, 1 in doubt)")
    assert lines[3].split() == ["STEP", "CALL", "STATUS", "TIME", "RESULT"]
    assert lines[4].split()[:3] == ["1", "think(value=1)", "completed"]
    found = stepwise.runs(store="memory:")
    assert isinstance(found, list)
    assert repr(found).splitlines()[0].split() == ["RUN", "STATUS", "UPDATED", "CALL"]
    assert repr(found[:0]) == "[]"
    assert repr(stepwise.runs("nothing", store="memory:")) == "no runs"


def test_skipped_and_executed():
    """What was done before the last attempt began is told from what that executed."""
    run = run_of(1, 2)
    run.resolve("send", landed=None)
    run.forget(2)
    flow.options(run_id=run.id)([1, 2])
    rows = pretty(run).splitlines()[-3:]
    assert ["skipped" in row for row in rows] == [True, True, False]
    assert "● skipped" in run._repr_html_()
    assert "last attempt: 1 executed, 2 skipped" in pretty(run)


def test_timeline():
    """Bars lie in order within the whole, and times in which nothing happened are cut short."""
    day = 86_400.0
    bars = placed([(0, 1), (0.5, 2), (day, day + 2), (3 * day, 3 * day)])
    assert bars[0][0] == 0
    assert all(0 <= left <= 100 and left + width <= 100.001 for left, width in bars)
    assert bars[1][1] == pytest.approx(1.5 * bars[0][1])
    assert bars[2][1] > 40
    assert placed([]) == []


def test_many_steps():
    """Of a run of many steps the first and the last are shown, and how many are between."""

    @stepwise.workflow(store="memory:", checkpoint_every=1_000_000)
    def long():
        for number in range(1_050):
            think(number)

    long()
    run = stepwise.runs(long, store="memory:")[0]
    shown = run._repr_html_()
    assert "1,000 earlier steps" in shown
    assert shown.count("<details>") == 50
    assert "think(value=1049)" in shown


def test_asynchronous_cells_show_running():
    """A run that is in progress shows as running, and which process executes it."""

    @stepwise.step
    async def look():
        return stepwise.current_run()._repr_html_()

    @stepwise.workflow(store="memory:")
    async def looking():
        think(1)
        return await look()

    assert "● running" in asyncio.run(looking())


# -- as pictures ---------------------------------------------------------------------------------


@pytest.fixture
def picture(browse, tmp_path):
    """Take a picture of a page in light or dark: the brightness of its pixels."""

    def take(body, *, dark):
        file = tmp_path / "page.png"
        browse(body, f"--screenshot={file}", dark=dark)
        return pixels(file.read_bytes())

    return take


def pixels(png):
    """The brightness of every pixel of a PNG file of 8 bits per channel."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    channels = {2: 3, 6: 4}[kind]
    data, at = b"", 8
    while at < len(png):
        size, name = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += size + 12
    raw, stride = zlib.decompress(data), width * channels
    previous, found = bytearray(stride), []
    for row in range(height):
        start = row * (stride + 1)
        line = bytearray(raw[start + 1 : start + 1 + stride])
        unfilter(raw[start], line, previous, channels)
        found += [sum(line[i : i + 3]) // 3 for i in range(0, stride, channels)]
        previous = line
    return found


def unfilter(kind, line, above, step):
    for i, up in enumerate(above if kind else ()):
        left, corner = (line[i - step], above[i - step]) if i >= step else (0, 0)
        if kind == 4:
            guess = left + up - corner
            by_left, by_up = abs(guess - left), abs(guess - up)
            nearest = left if by_left <= by_up else up
            guess = nearest if min(by_left, by_up) <= abs(guess - corner) else corner
        else:
            guess = (left, up, (left + up) // 2)[kind - 1]
        line[i] = (line[i] + guess) & 255


def test_light_and_dark(picture):
    """In a light page the text is dark, and in a dark page it is light; both can be read."""
    body = run_of(1, EVIL, ANSI)._repr_html_()
    light, dark = picture(body, dark=False), picture(body, dark=True)
    assert max(set(light), key=light.count) > 240
    assert max(set(dark), key=dark.count) < 30
    assert sum(each < 90 for each in light) > 1_000
    assert sum(each > 170 for each in dark) > 1_000


JUPYTER = """<style>
.jp-RenderedHTMLCommon table{table-layout:fixed;margin-left:auto}
.jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td{text-align:right;vertical-align:middle}
</style>"""
MEASURE = """<script>
const seen = document.querySelector(".stepwise"), cell = getComputedStyle(seen.querySelector("td"));
const timeline = getComputedStyle(seen.querySelector("td.when, td.less")).display;
document.body.innerHTML = [seen.scrollWidth, seen.clientWidth, cell.textAlign,
  getComputedStyle(seen.querySelector("table")).tableLayout, timeline].join(" ");
</script>"""


@pytest.mark.parametrize("one", [True, False], ids=["run", "runs"])
@pytest.mark.parametrize(("width", "timeline"), [(900, "table-cell"), (360, "none")])
def test_wide_and_narrow(browse, width, timeline, one):
    """Tables fit, where it is narrow with less columns; Jupyter's own style is overruled."""
    run = run_of("x" * 200, 1)
    shown = run._repr_html_() if one else stepwise.runs(store="memory:")._repr_html_()
    body = f'<div class="jp-RenderedHTMLCommon" style="width:{width}px">{shown}</div>'
    page = browse(f"{JUPYTER}{body}{MEASURE}", "--dump-dom")
    needs, has, *styles = Page(page.partition("<body")[2].partition(">")[2]).text.split()
    assert int(needs) <= int(has) == width
    assert styles == ["left", "auto", timeline]


def test_nothing_is_unpickled():
    """Showing a run loads neither its results nor its arguments."""

    class Trap:
        def __reduce__(self):
            return _trapped, ()

    run = run_of(Trap())
    assert all("Trap" in each for each in pages_of(run)[:3])
    with pytest.raises(stepwise.UnreadableValueError, match="it was loaded"):
        _ = run.steps[0].result


def _trapped():
    raise AssertionError("it was loaded")
