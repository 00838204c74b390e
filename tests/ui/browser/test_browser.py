"""The pages in a real browser: the story of a crash, by mouse, by keyboard, without JavaScript."""

import re

import pytest
from playwright.sync_api import expect

from stepwise._display.markup import Markup, Rules, tag
from stepwise._display.page import document
from stepwise._display.render import sheet
from stepwise._display.timeline import Pause, _labels


def run_at(page, label):
    """Go from the list to the page of the newest run of a workflow."""
    page.locator("nav").get_by_role("link", name="Runs").click()
    page.locator("a.call", has_text=label).first.click()


def status(page, word):
    """Wait until the run of the page has a status."""
    expect(page.locator("h1 .badge")).to_have_text(word)


def press(page, key):
    """Press a key once the script of the page listens."""
    expect(page.locator("body.scripted")).to_be_attached()
    page.keyboard.press(key)


# -- the story -------------------------------------------------------------------------------------


def test_the_story_of_a_crash(story, visit):
    """A killed run is found, looked into, forked with another variable, and finished."""
    page = visit(story)
    expect(page.locator("a.call")).to_have_count(1)
    assert story.play("killed") < 0
    expect(page.locator("a.call")).to_have_count(2)
    press(page, "/")
    page.keyboard.type("status:crashed workflow:write_article")
    press(page, "Enter")
    expect(page).to_have_url(re.compile("q=status%3Acrashed"))
    page.locator("a.call").click()
    status(page, "crashed")
    expect(page.locator(".source .here")).to_contain_text('dies_once("killed")')
    expect(page.locator("[data-live=variables]")).to_contain_text("1. tides (vivid)")

    press(page, "ArrowLeft")
    expect(page.locator(".slider output")).to_have_text("step 5 of 6")
    expect(page.locator(".source .here")).to_contain_text("stepwise.map(research")
    expect(page.locator("[data-live=variables]")).not_to_contain_text("1. tides (vivid)")
    press(page, "ArrowRight")
    expect(page.locator(".slider output")).to_have_text("step 6 of 6")
    expect(page.locator("[data-live=variables] ins")).to_have_text("new")

    page.get_by_role("link", name="Fork from here…").click()
    area = page.locator("textarea[name='variable:plan']")
    area.focus()
    expect(area).to_have_value(re.compile("1. tides"))
    area.fill('["only the moon"]')
    page.get_by_role("button", name="Make the fork").click()
    status(page, "completed")
    expect(page.locator("[data-live=head]")).to_contain_text("fork of")
    page.locator(".facts summary").click()
    expect(page.locator(".facts")).to_contain_text("Tides: only the moon")
    page.get_by_role("link", name="beside each other").click()
    expect(page.get_by_text("The first variable that differs")).to_be_visible()
    expect(page.locator("main")).to_contain_text("only the moon")


def test_an_approval_and_a_doubt(story, visit):
    """A question is answered and a doubt settled in the inbox, and both runs are resumed there."""
    story.play("asked")
    story.play("paid")
    page = visit(story)
    assert page.title().startswith("(")
    page.locator("nav").get_by_role("link", name="Inbox").click()
    expect(page.locator("main")).to_contain_text("amount = 120")
    page.get_by_label("note").fill("she is right")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("main")).not_to_contain_text("amount = 120")
    page.get_by_label("result (JSON)").fill('"charged ann 42"')
    page.get_by_role("button", name="It happened").click()
    expect(page.get_by_role("button", name="It happened")).to_have_count(0)
    for label, result in {"bill": "charged ann 42", "answer_ticket": "refunded 120"}.items():
        run_at(page, label)
        page.get_by_role("button", name="Resume").click()
        status(page, "completed")
        expect(page.locator("[data-live=step]")).to_contain_text(result)
    run_at(page, "summarize")
    page.get_by_text("Delete…").click()
    page.get_by_label("yes, delete").check()
    page.get_by_role("button", name="Delete").click()
    page.locator("nav").get_by_role("link", name="Inbox").click()
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    expect(page).to_have_title("Inbox")


def test_without_javascript(story, visit):
    """Without the script each step of the story is a link or a form."""
    story.play("killed")
    story.play("asked")
    page = visit(story, javascript=False)
    page.get_by_label("search runs").fill("status:crashed")
    page.get_by_role("button", name="Search").click()
    page.locator("a.call").click()
    page.get_by_role("link", name="step before").click()
    expect(page.locator(".slider output")).to_have_text("step 5 of 6")
    page.locator("input[type=range]").fill("2")
    page.get_by_role("button", name="Go").click()
    expect(page.locator(".slider output")).to_have_text("step 2 of 6")
    page.get_by_role("link", name="Fork from here…").click()
    page.get_by_label(re.compile("^ start its")).uncheck()
    page.get_by_role("button", name="Make the fork").click()
    status(page, "ready")
    page.locator("nav").get_by_role("link", name="Inbox").click()
    page.get_by_label("reason").fill("too much")
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("button", name="Deny")).to_have_count(0)


@pytest.mark.parametrize("javascript", [True, False])
def test_a_branch_is_adopted(story, visit, javascript):
    """A run is seen with its branches; one of them is adopted, asks, and goes on as the run."""
    assert story.play("branched") == 0
    page = visit(story, javascript=javascript)
    page.goto(f"{story.root}/runs/letter")
    grid = page.locator("table.grid")
    expect(grid.locator("tbody tr")).to_have_count(5)
    row = grid.locator("tbody tr", has_text="formal").first
    expect(row).to_contain_text("proposes reply(")
    row.get_by_text("Adopt…").click()
    if javascript:
        other = visit(story)
        other.goto(page.url)
    row.get_by_role("button", name="Adopt").click()
    expect(page.locator("[data-live=head]")).not_to_contain_text("goes on instead")  # not checked
    row.get_by_label("yes, adopt it").check()
    row.get_by_role("button", name="Adopt").click()
    expect(page.locator("[data-live=head]")).to_contain_text("the branch was adopted")
    page.get_by_role("button", name="Approve").click()
    if javascript:
        page.get_by_role("button", name="Resume").click()
        status(page, "completed")
        expect(page.locator("[data-live=step]")).to_contain_text("replied to the tide tables")
        status(other, "superseded")  # a page that was open says so by itself
        expect(other.locator("[data-live=head]")).to_contain_text("goes on instead")
        expect(other.get_by_text("Adopt…")).to_have_count(0)


def test_many_tabs(shown, visit):
    """More tabs than a browser has connections to a server load; one that is seen again is new."""
    page = visit(shown)
    tabs = [page]
    seen = """seen => {
        Object.defineProperty(document, "hidden", {value: !seen, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    for _ in range(8):
        tabs[-1].evaluate(seen, False)  # Playwright's tabs are all seen
        tabs.append(page.context.new_page())
        tabs[-1].goto(shown.root)
    with tabs[0].expect_response(shown.root + "/"):
        tabs[0].evaluate(seen, True)


def test_a_second_click_acts_no_second_time(story, visit):
    """A form that is sent again, before the next page has come, makes one fork."""
    page = visit(story)
    page.locator("a.call").click()
    page.get_by_role("link", name="Fork…").click()
    prevented = """button => {
        const found = [];
        addEventListener("submit", (event) => { found.push(event.defaultPrevented); });
        for (const _ of [1, 2]) { button.form.requestSubmit(button); }
        return found;
    }"""
    assert page.get_by_role("button", name="Make the fork").evaluate(prevented) == [False, True]
    expect(page.locator("[data-live=head]")).to_contain_text("fork of")
    page.goto(story.root)
    expect(page.locator("a.call")).to_have_count(2)


def test_by_keyboard_alone(shown, visit):
    """Each page is reached by keys, and what has the focus is seen to have it."""
    page = visit(shown)
    press(page, "Tab")
    expect(page.get_by_text("skip to the page")).to_be_focused()
    press(page, "?")
    expect(page.locator("#keys")).to_be_visible()
    press(page, "Escape")
    expect(page.locator("#keys")).to_be_hidden()
    for key, title in (("i", "Inbox"), ("s", "Spending"), ("r", "Runs")):
        press(page, "g")
        press(page, key)
        expect(page.locator("h1")).to_have_text(title)
    press(page, "/")
    page.keyboard.type("write_article")
    press(page, "Enter")
    expect(page).to_have_url(re.compile("q=write_article"))
    call = page.locator("a.call").first
    for _ in range(40):
        press(page, "Tab")
        if call.evaluate("e => e === document.activeElement"):
            break
    assert call.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    press(page, "Enter")
    status(page, "completed")
    press(page, "ArrowLeft")
    expect(page.locator(".slider output")).to_have_text(re.compile("^step 6 of 7"))


def test_marked_runs(story, visit):
    """Marked runs are resumed at once, and deleted only by somebody who says so."""
    story.play("killed")
    page = visit(story)
    page.get_by_label(re.compile("^mark summarize")).check()
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("a.call")).to_have_count(2)
    page.get_by_label("yes, delete them").check()
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("a.call")).to_have_count(1)
    page.get_by_label(re.compile("^mark write_article")).check()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("td .badge")).to_have_text("completed")


# -- every page ------------------------------------------------------------------------------------


def addresses(page, root):
    """The address of every kind of page of the store."""
    links = page.locator("a.call")
    runs = links.evaluate_all("all => all.map((e) => e.getAttribute('href'))")
    page.goto(f"{root}/?q=workflow:write_article")
    killed = links.first.get_attribute("href")
    yield from ("/", "/?q=status:nonsense", "/inbox", "/spending", "/spending?by=day", "/nothing")
    yield from runs
    yield from (f"{killed}?step=3", f"{killed}/fork?step=6", f"{killed}/value?of=result&step=1")
    yield from ("/runs/letter", "/runs/letter/branches")
    yield f"/compare?a={killed.rpartition('/')[2]}&b=letter"


@pytest.mark.parametrize("width", [1400, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(shown, visit, accessible, scheme, width):
    """Each page fits, says nothing on the console, and axe finds no violation."""
    page = visit(shown, scheme=scheme, width=width)
    for address in [*addresses(page, shown.root)]:
        if address in ("/nothing", "/?q=status:nonsense"):
            continue  # a browser reports the status itself
        page.goto(shown.root + address)
        accessible(page)
        page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        accessible(page)


def test_a_run_looked_at_while_it_runs(story, visit):
    """A fold that is open and a text that is typed stay as they are when the page changes."""
    story.play("killed")
    page = visit(story)
    run_at(page, "write_article")
    page.get_by_text("all facts").click()
    page.get_by_text("Cancel…").click()
    page.get_by_label("reason").fill("half a sent")
    assert story.play("killed") == 0
    status(page, "completed")
    expect(page.locator(".facts")).to_have_attribute("open", "")


def test_what_a_run_says_is_seen_at_once(story, visit, accessible):
    """Words come while the run says them, those of a failed attempt go; a reload has the same."""
    with story.begun("says") as tell:
        page = visit(story)
        run_at(page, "talk")
        said = page.locator("[data-live=streams] pre")
        for word in ("the", "moon"):
            tell(word)
            expect(said).to_contain_text(word)
        tell("")
        expect(said).to_have_text('{"asked":"why are there tides?"}')
        tell("gravity " * 400)
        expect(page.locator("[data-live=streams]")).to_contain_text("gravity")
        tell("pulls")
        expect(said).to_contain_text("pulls")
        expect(said).not_to_contain_text("moon")
        assert said.evaluate("e => e.scrollHeight > e.clientHeight && Math.abs(e.scrollTop) < 2")
        plain = visit(story, javascript=False)
        plain.goto(page.url)
        expect(plain.locator("[data-live=streams] pre")).to_contain_text("pulls")
        tell("")
        status(page, "completed")
    accessible(page)


def test_bars_are_seen(shown, visit):
    """No bar of a timeline is thinner than six pixels; answered ones are hollow, attempts apart."""
    page = visit(shown, width=360)
    run_at(page, "write_article")
    expect(page.locator(".bar")).to_have_count(9)
    expect(page.locator(".bar.try.failed")).to_have_count(1)
    sizes = page.locator(".bar").evaluate_all(
        "all => all.map((e) => [e.offsetWidth, e.offsetHeight])"
    )
    assert min(min(each) for each in sizes) >= 6
    expect(page.locator(".bar.answered")).to_have_count(7)
    expect(page.locator(".lanes > .death")).to_have_count(1)
    expect(page.locator(".labels")).to_contain_text("process died, resumed after")


def test_a_label_fits_the_narrowest_page(browser):
    """The label of a pause is inside of the page, wherever in the timeline its pause is."""
    rules = Rules()
    pauses = [Pause(percent, 0.0, 3599.0, "died") for percent in range(101)]
    labels = tag("div", [_labels([each], rules) for each in pauses], cls="timeline")
    style = Markup(f"<style>{sheet('basis', 'tables', 'page')}{rules.text}</style>")
    page = browser.new_page(viewport={"width": 360, "height": 900})
    page.set_content(document("labels", tag("main", labels), style))
    expect(page.locator(".label")).to_have_count(101)
    edges = page.locator(".label").evaluate_all(
        "all => all.map((e) => e.getBoundingClientRect()).map((e) => [e.left, e.right])"
    )
    page.close()
    assert min(left for left, _ in edges) >= 0
    assert max(right for _, right in edges) <= 360


def test_hostile_values(story, visit, accessible):
    """Whatever is recorded in whatever field: nothing of it is executed or loaded, all is text."""
    assert story.play("hostile") == 75
    page = visit(story)
    asked = page.locator("a.call", has_text="hostile").get_attribute("href")
    steps = [f"{asked}?step={number}" for number in range(1, 11)]
    others = (f"{asked}/fork", f"{asked}/value?of=locals&step=8&path=huge", "/?q=<script>")
    for address in ("/", "/inbox", "/spending?by=tag", asked, *steps, *others):
        page.goto(story.root + address)
        html = page.content()
        assert "owned" not in page.title().partition("hostile")[0]
        assert page.locator("img, iframe, object, main script").count() == 0
        assert page.locator("[onerror], [onload], [style]").count() == 0
        assert len(html) < 150_000 or "/value" in address
        assert all(each.isprintable() or each in "\n\t" for each in html)
        accessible(page)
    page.goto(story.root + asked + "?step=7")
    page.locator("a.whole[href*='path=huge']").click()
    expect(page.locator("pre.value")).to_contain_text("x" * 10_000)
