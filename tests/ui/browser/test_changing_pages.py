"""Pages that change while their reader moves, types and presses: whatever comes first."""

import re

import pytest
from playwright.sync_api import expect

MOVE = re.compile(r"step=\d+$")
FAILED = "Failed to load resource"  # as chromium's console has it
EVENTS = """
window.EventSource = class extends EventTarget {
  static OPEN = 1;
  static CLOSED = 2;
  static all = [];
  constructor() { super(); this.readyState = 1; EventSource.all.push(this); }
  close() { this.readyState = 2; }
};
"""


class Events:
    """The events of a page, which come when a test says so, and what the page asks for."""

    def __init__(self, page):
        self.page, self.asked, self._held, self._holds = page, [], [], False
        page.add_init_script(EVENTS)
        page.on("request", self._note)
        page.route("**", self._route)

    def _note(self, request):
        if request.resource_type == "fetch":
            self.asked.append(request.url)

    def _route(self, route):
        if route.request.resource_type != "fetch":
            route.continue_()
        elif self._holds:
            self._held.append(route)
        else:
            self.answer(route)

    def answer(self, route):
        """Answer a request of the page's script; a test may replace this."""
        route.continue_()

    def hold(self):
        """Hold what the page asks for from now on."""
        self._holds = True

    def release(self):
        """Answer what was held, and hold no more."""
        self._holds = False
        while self._held:
            self.answer(self._held.pop(0))

    def change(self):
        """Tell the page of a change."""
        self.page.evaluate("EventSource.all.at(-1).dispatchEvent(new Event('changed'))")

    def until_asked(self, count):
        """Wait until the page has asked so often."""
        while len(self.asked) < count:
            self.page.wait_for_event("request")
        assert len(self.asked) == count


@pytest.fixture
def opened(visit):
    """Opens the page of the newest run of a workflow in a tab whose events the test sends."""
    tabs = []

    def open_page(story, label, **how):
        page = visit(story, **how)
        tabs.append(page)
        events = Events(page)
        page.goto(story.root)
        page.locator("a.call", has_text=label).first.click()
        expect(page.locator("body.scripted")).to_be_attached()
        events.asked.clear()  # by the list
        return page, events

    yield open_page
    for each in tabs:
        each.unroute_all(behavior="ignoreErrors")


def is_at(page, step, last=7):
    """Wait until the page shows a step, in its address, its slider and its content."""
    expect(page).to_have_url(re.compile(f"step={step}$"))
    expect(page.locator(".slider output")).to_have_text(f"step {step} of {last}")
    expect(page.locator("[data-live=step] h2")).to_contain_text(f"Step {step} ")
    expect(page.locator(".slider input")).to_have_attribute("value", str(step))


# -- moves ---------------------------------------------------------------------------------------


def test_a_change_does_not_undo_a_move(shown, opened):
    """A change that comes while a move is fetched is asked for where the reader goes."""
    page, events = opened(shown, "write_article")
    events.hold()
    page.keyboard.press("ArrowLeft")
    events.until_asked(1)
    events.change()
    events.release()
    events.until_asked(2)
    assert [MOVE.search(each)[0] for each in events.asked] == ["step=6", "step=6"]
    is_at(page, 6)


def test_a_move_waits_for_a_change(shown, opened):
    """A move that begins while a change is fetched comes next, whatever changes meanwhile."""
    page, events = opened(shown, "write_article")
    events.hold()
    events.change()
    events.until_asked(1)
    page.keyboard.press("ArrowLeft")
    events.change()
    events.release()
    events.until_asked(2)
    is_at(page, 6)


def test_each_key_is_a_step(shown, opened):
    """Keys that are pressed while a move is fetched go on from where the reader is by then."""
    page, events = opened(shown, "write_article")
    events.hold()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    events.until_asked(1)
    events.release()
    is_at(page, 5)
    page.locator(".slider input").focus()  # the browser moves the slider itself
    events.hold()
    before = len(events.asked)
    for key in ("ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    events.until_asked(before + 1)
    events.release()
    is_at(page, 3)
    expect(page.locator(".slider input")).to_be_focused()


def test_a_move_that_fails_is_loaded_as_a_page(shown, opened):
    """A move that the server refuses opens the address, where its page says why."""
    page, events = opened(shown, "write_article", says=FAILED)
    events.answer = lambda route: route.fulfill(status=500)
    page.keyboard.press("ArrowLeft")
    is_at(page, 6)
    assert page.evaluate("performance.getEntriesByType('navigation')[0].name").endswith("step=6")


def test_a_move_without_a_connection(shown, opened):
    """A move that gets no answer is made by the next change, and until then the page says so."""
    page, events = opened(shown, "write_article", says=FAILED)
    events.answer = lambda route: route.abort()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("body.offline")).to_be_attached()
    del events.answer
    events.change()
    is_at(page, 6)
    expect(page.locator("body.offline")).to_have_count(0)


def test_the_slider_is_dragged(shown, opened):
    """A reader drags the slider through the steps; the page follows, and the slider stays held."""
    page, _ = opened(shown, "write_article")
    box = page.locator(".slider input").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 8, middle)
    page.mouse.down()
    for step in (6, 4, 2):
        page.mouse.move(box["x"] + 8 + (box["width"] - 16) * (step - 1) / 6, middle)
        expect(page.locator("[data-live=step] h2")).to_contain_text(f"Step {step} ")
    page.mouse.up()
    is_at(page, 2)


def test_a_link_of_the_slider_keeps_the_focus(shown, opened):
    """A link of the slider that is followed by keys has the focus at the next step, too."""
    page, _ = opened(shown, "write_article")
    page.get_by_role("link", name="step before").focus()
    for step in (6, 5):
        page.keyboard.press("Enter")
        is_at(page, step)
    expect(page.get_by_role("link", name="step before")).to_be_focused()


# -- what a reader does meanwhile ----------------------------------------------------------------


def changed(text, other):
    """Answer with a page in which a text is another one."""

    def answer(route):
        response = route.fetch()
        assert text in response.text()
        route.fulfill(response=response, body=response.text().replace(text, other))

    return answer


def test_a_press_is_no_lost_click(shown, opened):
    """What a reader presses is replaced after the release only, so that the click counts."""
    page, events = opened(shown, "summarize")
    events.answer = changed("<h1>", "<h1>newer ")
    page.get_by_text("Cancel…").or_(page.get_by_text("Delete…")).first.hover()
    page.mouse.down()
    with page.expect_event("requestfinished"):
        events.change()
    events.change()
    events.until_asked(2)
    assert "newer" not in page.locator("h1").inner_text()
    page.mouse.up()
    expect(page.locator("h1")).to_contain_text("newer")
    expect(page.locator(".actions details[open]")).to_have_count(1)


def test_a_text_stays_with_its_question(story, visit):
    """A text for a question that another reader answers meanwhile gets to no other question."""
    story.play("asked_twice")
    page = visit(story)
    page.goto(f"{story.root}/inbox")
    notes = page.get_by_label("note")
    expect(notes).to_have_count(2)
    first, second = notes.first, notes.last
    first.fill("only this one")
    second.fill("the other one")
    other = visit(story)
    other.goto(f"{story.root}/inbox")
    other.get_by_role("button", name="Approve").first.click()
    expect(notes).to_have_count(1)
    expect(notes).to_have_value("the other one")


def test_a_form_that_was_begun_stays_as_it_is(shown, opened):
    """A value that is typed for one message is not sent as another, for which the run waits now."""
    page, events = opened(shown, "answer_ticket")
    page.get_by_text("Send…").click()
    page.get_by_label("value (JSON)").fill("42")
    events.answer = changed('name="name" required', 'name="name" value="other" required')
    events.change()
    expect(page.locator("input[name=name][value=other]")).to_have_count(1)
    expect(page.locator("input[name=name]")).to_have_value("")
    expect(page.get_by_label("value (JSON)")).to_have_value("42")


# -- a page that gets no answer ------------------------------------------------------------------


def test_a_page_asks_again(shown, opened):
    """A page that could not be fetched says so, and is fetched again without a further change."""
    page, events = opened(shown, "summarize", says=FAILED)
    events.answer = lambda route: route.fulfill(status=503)
    events.change()
    expect(page.locator("body.offline")).to_be_attached()
    events.answer = changed("<h1>", "<h1>newer ")
    expect(page.locator("h1")).to_contain_text("newer")
    expect(page.locator("body.offline")).to_have_count(0)


def test_events_that_ended_begin_again(shown, opened):
    """A page whose events a proxy has ended asks for them again."""
    page, _ = opened(shown, "summarize")
    page.evaluate(
        "const [source] = EventSource.all; source.close(); source.dispatchEvent(new Event('error'))"
    )
    expect(page.locator("body.offline")).to_be_attached()
    expect(page.locator("body.offline")).to_have_count(0)
    assert page.evaluate("EventSource.all.length") == 2


def test_the_list_of_keys_ends_no_events(shown, opened):
    """A page whose list of keys was closed by its button still changes."""
    page, _ = opened(shown, "summarize")
    page.keyboard.press("?")
    page.get_by_role("button", name="close").click()
    expect(page.locator("#keys")).to_be_hidden()
    assert page.evaluate("EventSource.all.at(-1).readyState") == 1


def test_a_run_that_is_deleted_meanwhile(story, visit):
    """The page of a run that somebody deletes says that there is no such run."""
    page = visit(story, says=FAILED)
    page.locator("a.call").click()
    other = visit(story)
    other.goto(page.url)
    other.get_by_text("Delete…").click()
    other.get_by_label("yes, delete").check()
    other.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("No such run")


def test_a_whole_value_that_cannot_be_fetched(shown, opened):
    """A value of which the whole cannot be fetched is opened as a page."""
    page, events = opened(shown, "write_article", says=FAILED)
    events.answer = lambda route: route.abort()
    href = page.url + "/value?of=result&step=1"
    link = f"<a class='whole' href='{href}'>whole</a>"
    page.locator("main").evaluate("(e, link) => e.insertAdjacentHTML('afterbegin', link)", link)
    page.locator("a.whole").click()
    expect(page).to_have_url(href)


def test_a_change_before_the_page_listens(story, visit):
    """What happens between a page and its events is shown, too."""
    page = visit(story)

    def late(route):
        assert story.play("killed") < 0
        route.continue_()

    page.route("**/page.js", late)
    page.reload()
    expect(page.locator("a.call")).to_have_count(2)


def test_a_server_that_is_started_again(story, visit):
    """A page outlives its server: it says that it is not connected, and is new with the next."""
    options = "--token", "0123456789abcdef"
    with story.served(*options) as served:
        port = served.root.rpartition(":")[2]
        page = visit(served, says="Failed to load resource|ERR_")
        expect(page.locator("a.call")).to_have_count(1)
    expect(page.locator("body.offline")).to_be_attached()
    assert story.play("killed") < 0
    with story.served(*options, port=port):
        expect(page.locator("a.call")).to_have_count(2)
        expect(page.locator("body.offline")).to_have_count(0)
