"""The programs of a story: a killed one, one that asks, one that dies in the middle of a payment.

``python story.py NAME`` runs one of them.  ``killed`` and ``paid`` kill themselves in their first
attempt: in the middle of a draft, and between a payment and its record.
"""

import os
import pathlib
import signal
import sys

import stepwise
from stepwise import step, tool, workflow

HERE = pathlib.Path(__file__).parent


def dies_once(name):
    """Kill this process, unless it was killed at this place before."""
    mark = HERE / f"{name}.killed"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@step(retries=2, backoff=0.01)
def research(topic, depth=2):
    tried = HERE / f"{topic}.tried"
    if topic == "currents" and not tried.exists():
        tried.touch()
        raise ConnectionError("the search engine did not answer")
    return {"topic": topic, "sources": [f"https://example.org/{topic}/{n}" for n in range(depth)]}


@step
def outline(notes, style):
    return [f"{number}. {each['topic']} ({style})" for number, each in enumerate(notes, 1)]


@step
def check(text):
    return f"{len(text)} characters, <b>no</b> mistakes"


@workflow
def review(draft):
    return f"looks good: {check(draft)}"


@workflow(retention="all")
def write_article(title, topics):
    style = "vivid"
    notes = stepwise.map(research, topics, max_workers=3)
    plan = outline(notes, style)
    dies_once("killed")
    draft = "\n".join(plan)
    verdict = review(draft)
    return f"{title}: {draft} ({verdict})"


@tool(side_effect=True, approve=True)
def refund(order, amount, reason):
    return f"refunded {amount} for {order}"


@workflow
def answer_ticket(ticket):
    facts = research(ticket, depth=1)
    return refund(order="A-1041", amount=120, reason=f"late delivery, see {facts['topic']}")


@workflow
def answer_both():
    return stepwise.map(lambda order: refund(order, 120, "late"), ["A-1041", "A-1042"])


@tool(side_effect=True)
def charge(customer, amount):
    dies_once("paid")
    return f"charged {customer} {amount}"


@workflow(tags={"customer": "ann"})
def bill(customer, amount):
    note = check(customer)
    return charge(customer, amount), note


@workflow
def summarize(papers):
    for each in papers:
        research(each, depth=1)
    raise TimeoutError("the model did not answer within 30 s")


@step
def draft(ticket, model, tone):
    stepwise.spend(usd={"small": 0.002, "large": 0.031}[model], tokens=900)
    return f"{tone} answer to {ticket}, by the {model} model"


@tool(side_effect=True)
def reply(ticket, text):
    return f"replied to {ticket}"


@workflow(retention="all")
def answer_letter(ticket, model="small", tone="short"):
    facts = research(ticket, depth=1)
    text = draft(facts["topic"], model, tone)
    return reply(ticket, text)


def branched():
    """Make branches of a run: four that propose what they would send, and one that is refused."""
    run = answer_letter.options(run_id="letter").execute("the tide tables came late")
    if run.forked_from:  # an adopted branch goes on
        return
    ways = [{"model": m, "tone": t} for m in ("small", "large") for t in ("warm", "formal")]
    run.branch(at=1, variations=ways, effects="collect")
    run.branch(at=1, variations=[{"model": "large"}], effects="refuse")


OWNED = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ODD = "\x00\x1b[31m\u202eleft\ud800</pre></textarea></style></script>"
HOSTILE = OWNED + ODD


@step(name=OWNED)
def think(value, note=""):
    return value


@tool(side_effect=True, approve=True)
def send(body, note=""):
    return body


@workflow(name=f"hostile {OWNED}", tags={"owned": OWNED}, retention="all")
def hostile(values):
    deep = []
    for _ in range(400):
        deep = [deep]
    huge = HOSTILE + "x" * 10_000_000
    named = {HOSTILE: HOSTILE}
    stepwise.emit(OWNED + ODD.replace("\ud800", ""), stream="a </pre>")
    stepwise.emit(named)
    for each in [*values, huge, named, deep[:0]]:
        think(each, note=HOSTILE)
    try:
        raise_it(HOSTILE)
    except ValueError as error:
        told = str(error)
    return send(told, note=HOSTILE)


@step
def raise_it(text):
    raise ValueError(text)


@step(retries=1, backoff=0)
def speak():
    while word := input():
        stepwise.emit(word + " ")
    if stepwise.current_step().attempt == 1:
        raise ConnectionError("cut off")


@workflow
def talk():
    stepwise.emit({"asked": "why are there tides?"})
    speak()


PROGRAMS = {
    "says": talk,
    "branched": branched,
    "hostile": lambda: hostile([HOSTILE, OWNED, ODD, b"\xff\x00<b>", 10**4000]),
    "killed": lambda: write_article("Tides", ["tides", "winds", "currents", "waves", "moon"]),
    "asked": lambda: answer_ticket("A-1041 came late"),
    "asked_twice": answer_both,
    "paid": lambda: bill("ann", 42),
    "failed": lambda: summarize(["one", "two"]),
}

if __name__ == "__main__":
    stepwise.configure(suspend_after=0)
    print(PROGRAMS[sys.argv[1]]())
