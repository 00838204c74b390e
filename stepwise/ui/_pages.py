"""The pages of many runs: the list, inbox, spending, schedules, two runs together, problems."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepwise._display.markup import (
    Content,
    Markup,
    badge,
    block,
    facts,
    markup,
    section,
    table,
    tag,
    whole,
)
from stepwise._display.page import called, could_be, differences
from stepwise._display.render import answers_to
from stepwise._display.words import counts_text, duration_text, took_text, when
from stepwise._execution.suspension import PendingWait, pending
from stepwise._runs.export import StepDifference, first_step, first_variable
from stepwise._runs.questions import Question
from stepwise._runs.run import Run
from stepwise._runs.steps import StepRecord, StoppedCall, duration_of
from stepwise._runtime.messages import count
from stepwise.ui import _shell as ui
from stepwise.ui._reading import Matters, RunRow, Spending, SpendingRow
from stepwise.ui._shell import View

# -- runs -----------------------------------------------------------------------------------------


_WORDS = (
    ("status:crashed", "running, crashed, failed, suspended, completed and so on"),
    ("workflow:agent", "a workflow"),
    ("tag:customer=ann", "a tag"),
    ("since:2d", "whose status changed in the last two days; also 30m, 6h, 2w"),
    ("error:timeout", "a text in the error"),
    ("cost:>1", "more than a dollar"),
    ("anything else", "a text in the name, the arguments, the id, the error or the tags"),
)


def runs_page(
    view: View, listing: Sequence[RunRow], query: str, older: str | None, problem: str
) -> Markup:
    """Return the list of runs.

    Args:
        view: the facts of the request.
        listing: the runs, newest first.
        query: what is searched for.
        older: the cursor of the next page; ``None`` on the last page.
        problem: what is wrong with the search, or how far back it went; empty if nothing is.
    """
    search = tag("input", type="search", name="q", value=query, aria_label="search runs",
                 placeholder="Search: words, status:crashed, workflow:agent, tag:a=b, cost:>1",
                 aria_describedby="words", autocomplete="off")  # fmt: skip
    words = tag("dl", [markup(tag("dt", tag("code", a)), tag("dd", b)) for a, b in _WORDS])
    asked = tag("form", search, ui.button("Search"), method="get", action=view.at(), cls="search")
    note = tag("p", problem, cls="note", role="status") if problem else None
    found = _runs_table(view, listing) if listing else _no_runs(query)
    following = tag("a", "older runs", href=view.at(q=query, before=older)) if older else None
    return ui.shell(
        view,
        "Runs",
        tag("h1", "Runs"),
        tag("search", asked),
        tag("details", tag("summary", "what can be searched for"), words, id="words", cls="soft"),
        tag("div", note, found, tag("p", following), data_live="runs"),
        live=view.at("live"),
    )


def _no_runs(query: str) -> Markup:
    if query:
        return tag("p", "No run matches. Leave out a word, or look at all runs.", cls="empty")
    example = "from stepwise import step, workflow\n\n@workflow\ndef hello(): ..."
    about = "No runs yet. Call a function with @workflow, and its run appears here:"
    return tag("div", tag("p", about), tag("pre", example), cls="empty")


def _runs_table(view: View, listing: Sequence[RunRow]) -> Markup:
    before: dict[str, str] = {}
    rows = []
    for run in reversed(listing):  # what differs is told from the run before
        rows.append(_run_cells(view, run, before.get(run.facts.workflow, "")))
        before[run.facts.workflow] = run.facts.arguments
    heads = ["mark", "status", "run", "steps", "began", "took", "spent"]
    marked = not view.read_only
    shown = [row if marked else row[1:] for row in reversed(rows)]
    listed = table(heads if marked else heads[1:], shown, cls="cards runs")
    acts = tag(
        "div",
        tag("span", "With the marked runs:", cls="soft"),
        ui.button("Resume", name="action", value="resume", formnovalidate=True),
        ui.button("Cancel", name="action", value="cancel", formnovalidate=True),
        ui.sure("delete them:"),
        ui.button("Forget", "danger", name="action", value="forget"),
        cls="actions marked",
    )
    return ui.form(view, view.at("marked"), listed, acts) or listed


def _run_cells(view: View, run: RunRow, before: str) -> list[Content]:
    facts, spent = run.facts, run.spent
    waits, source, instead = pending(facts), facts.forked_from, facts.superseded
    kind = "branch" if facts.base else "fork"
    notes: list[Content] = [
        tag("span", run.error[:300], cls="error-line") if run.error else "",
        f"waits: {ui.shortened(waits)}" if waits else "",
        f"left to {run.served_by}" if run.served_by else "",
        "no stepwise up has it" if facts.is_submitted and not run.served_by else "",
        (f"{kind} of ", tag("a", source, href=view.at("runs", source))) if source else "",
        (tag("a", instead, href=view.at("runs", instead)), " goes on instead") if instead else "",
        ui.shortened([f"{name}={value}" for name, value in facts.tags.items()]),
    ]
    call = tag(
        "a",
        tag("b", facts.label),
        tag("code", "(", _differing(facts.arguments[:300], before[:300]), ")"),
        href=view.at("runs", run.id),
        cls="call",
    )
    return [
        tag("input", type="checkbox", name="id", value=run.id, aria_label=f"mark {run.id}"),
        badge(run.status),
        markup(call, [tag("div", text, cls="line") for text in notes if text]),
        counts_text(run.counts),
        ui.moment(view, facts.created_at),
        duration_text(duration_of(facts)),
        ui.amounts(spent.usd, spent.tokens, at_least=spent.at_least) if spent else "",
    ]


def _differing(text: str, before: str) -> Markup:
    """Return arguments, with those that the run before had, too, in a soft colour."""
    if not before or before == text:
        return markup(text)
    pieces, known = text.split(", "), set(before.split(", "))
    shown: list[Content] = []
    for n, each in enumerate(pieces):
        comma = ", " if n else ""
        shown.append(tag("span", comma + each, cls="soft") if each in known else comma + each)
    return markup(shown)


# -- inbox ----------------------------------------------------------------------------------------


def inbox_page(view: View, matters: Matters) -> Markup:
    """Return all that waits for a person."""
    back = "inbox"
    parts: dict[str, list[tuple[RunRow, Content]]] = {
        "Approvals": [
            (run, (question(view, asked, asked._asked.before, back), _after_answer(run)))
            for run, asked, _ in matters.questions
        ],
        "In doubt: did it happen?": [
            (run, doubt(view, run.id, step, back)) for run, step, _ in matters.doubts
        ],
        "Stopped: is it the same call?": [
            (run, stopped(view, run.id, call, back)) for run, call, _ in matters.stops
        ],
        "Messages that runs wait for": [
            (run, _wait(view, wait, schema or {})) for run, wait, schema in matters.waits
        ],
        "Stopped, and can be resumed": [(run, _resumable(view, run)) for run in matters.resumable],
    }
    empty = tag("p", "Nothing waits for you.", cls="empty")
    shown = [
        section(
            (name, tag("small", f"{len(found)}")),
            [tag("article", _run_line(view, run), content) for run, content in found],
        )
        for name, found in parts.items()
    ]
    return ui.shell(
        view,
        "Inbox",
        tag("h1", "Inbox"),
        tag(
            "div",
            tag("p", matters.left_out, cls="note") if matters.left_out else None,
            shown if matters.total else empty,
            cls="inbox",
            data_live="inbox",
        ),
        live=view.at("live"),
    )


def _after_answer(run: RunRow) -> Markup | None:
    """Return who resumes a suspended run once it is answered."""
    if run.status != "suspended":
        return None
    then = f"{run.served_by} resumes it" if run.served_by else "resume it on its page"
    return tag("p", f"After the answer, {then}.", cls="soft")


def _run_line(view: View, run: RunRow) -> Markup:
    """Return a run on one line, with a link to its page."""
    facts = run.facts
    call = tag("code", f"{facts.label}({facts.arguments[:200]})")
    link, began = tag("a", call, href=view.at("runs", run.id)), ui.moment(view, facts.created_at)
    return tag("p", badge(run.status), " ", link, " ", began, cls="run-line")


def question(view: View, asked: Question, before: str, back: str) -> Markup:
    """Return a question with everything that a yes covers, and the forms that answer it."""
    fields = ui.hidden(step=asked.step, ticket=asked.ticket, back=back)
    where = view.at("runs", asked.run_id, "approve"), view.at("runs", asked.run_id, "deny")
    signers = [tag("code", whole(each)) for each in asked.approvers]
    changed = (
        tag("details", tag("summary", "what changed since the last question"),
            tag("pre", differences(before[:5000], asked.details[:5000])[1]), open=True)
        if before and before != asked.details
        else None
    )  # fmt: skip
    forms = tag(
        "div",
        ui.form(view, where[0], fields, ui.field("note", "note"), ui.button("Approve", "primary")),
        ui.form(view, where[1], fields, ui.field("reason", "reason", required=True),
             ui.button("Deny", "danger")),
        cls="answers",
    )  # fmt: skip
    command = tag("code", answers_to(asked)[0])
    if signers:
        forms = tag("p", "An approver has to sign the answer (", signers, "), with the command ",
                    command)  # fmt: skip
    if asked._proposed_by:
        branch = tag("a", asked._proposed_by, href=view.at("runs", asked._proposed_by))
        forms = tag("p", "The branch ", branch, " proposes this call. To make it, adopt the branch "
                    "first: on its page, or by ", command)  # fmt: skip
    until = f", until {duration_text(asked.until - view.now)} from now" if asked.until else ""
    return tag(
        "div",
        tag("h3", whole(asked.text)),
        tag("p", f"step {asked.step} {asked.name}, asked ", ui.moment(view, asked.asked_at), until,
            cls="soft"),
        block(asked.details, whole(asked.details)) if asked.details else None,
        changed,
        forms,
        cls="ask",
    )  # fmt: skip


def doubt(view: View, run_id: str, step: StepRecord, back: str) -> Markup:
    """Return a step in doubt, with a form for each way out."""
    about = (
        f"Step {step.number} began and has no recorded end: it may or may not have happened. Look "
        "outside, by its key, then say which."
    )
    landed = (
        ui.hidden(step=step.number, way="landed", back=back),
        ui.field("result (JSON)", "value", placeholder="null", spellcheck="false"),
        ui.button("It happened"),
    )
    missing = (
        ui.hidden(step=step.number, way="did_not_happen", back=back),
        ui.button("It did not happen"),
    )
    where = view.at("runs", run_id, "resolve")
    return tag(
        "div",
        tag("h3", tag("code", called(step)), " ", badge("in_doubt")),
        tag("p", about),
        facts(
            {
                "key": tag("code", step.idempotency_key),
                "called": (tag("code", step.site), ", ", ui.moment(view, step.started_at)),
            }
        ),
        tag("div", ui.form(view, where, *landed), ui.form(view, where, *missing), cls="answers"),
        cls="ask",
    )


def stopped(view: View, run_id: str, call: StoppedCall, back: str) -> Markup:
    """Return a call that could be a recorded side effect, with a form for each answer."""
    where = view.at("runs", run_id, "resolve")
    forms = []
    for each in call.could_be:
        fields = {"step": each.number, "stop": call.stop, "back": back}
        same, another = f"Same as step {each.number}", f"Another than step {each.number}"
        forms.append(ui.form(view, where, ui.hidden(**fields, way="same"), ui.button(same)))
        forms.append(ui.form(view, where, ui.hidden(**fields, way="another"), ui.button(another)))
    return tag(
        "div",
        tag("h3", tag("code", called(call))),
        tag("p", f"Called at {call.site or '?'}. It could be a side effect that is recorded with "
            "other arguments. The same call gets the recorded outcome; another one runs."),
        tag("ul", [tag("li", tag("code", each)) for each in could_be(call)]),
        tag("div", forms, cls="answers"),
        cls="ask",
    )  # fmt: skip


def _wait(view: View, wait: PendingWait, schema: Mapping[str, Any]) -> Markup:
    return tag(
        "div",
        tag("h3", "waits for ", tag("code", wait.name)),
        tag("p", f"{wait}", cls="soft"),
        ui.form(
            view,
            view.at("runs", wait.run_id, "send"),
            ui.hidden(name=wait.name, back="inbox"),
            [*_schema_fields(schema)],
            ui.button("Send", "primary"),
            cls="answers stacked",
        ),
        tag("details", tag("summary", "its schema"), block(json.dumps(schema, indent=2)))
        if schema
        else None,
        cls="ask",
    )


def _schema_fields(schema: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the fields of a form for a value with this JSON schema."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        kind = schema.get("type")
        if kind == "string":
            yield ui.field("value", "value", required=True)
        elif kind == "boolean":
            yield _choice("value", "value", ["true", "false"])
        else:
            yield ui.area("value (JSON)", "value", placeholder='{"id": 1}', required=True)
        return
    needed = schema.get("required", ())
    for name, each in properties.items():
        rule = each if isinstance(each, dict) else {}
        yield _property(name, rule, required=name in needed)


def _property(name: str, rule: Mapping[str, Any], *, required: bool) -> Markup:
    kind, key = rule.get("type"), f"field:{name}"
    title = str(rule.get("title", name)) + ("" if required else " (optional)")
    if kind == "boolean":
        return tag("label", tag("input", type="checkbox", name=key, value="true"), f" {title}")
    if kind == "string" and isinstance(rule.get("enum"), list):
        optional = [] if required else [""]
        return _choice(title, key, [*optional, *map(str, rule["enum"])])
    if kind in ("integer", "number"):
        step = "1" if kind == "integer" else "any"
        return ui.field(title, key, type="number", step=step, required=required)
    if kind == "string":
        return ui.field(title, key, required=required)
    return ui.area(f"{title}: JSON", key, required=required)


def _choice(label: str, name: str, values: Sequence[str]) -> Markup:
    options = [tag("option", each, value=each) for each in values]
    return tag("label", tag("span", label), tag("select", options, name=name))


def _resumable(view: View, run: RunRow) -> Markup:
    served = f"left to {run.served_by}, which starts it again" if run.served_by else ""
    come = "What it waited for has come: it goes on when it is resumed."
    resume = ui.form(
        view, view.at("runs", run.id, "resume"), ui.hidden(back="inbox"), ui.button("Resume")
    )
    return markup(
        tag("p", run.error[:500], cls="error-line") if run.error else None,
        tag("p", come, cls="soft") if run.status == "suspended" else None,
        tag("p", served, cls="soft") if served else tag("div", resume, cls="answers"),
    )


# -- spending -------------------------------------------------------------------------------------


def spending_page(view: View, spending: Spending) -> Markup:
    """Return what the runs have spent: money, tokens and time."""
    ways = [
        tag("a", way, href=view.at("spending", by=way),
            aria_current="page" if way == spending.by else None)
        for way in ("workflow", "model", "day", "tag")
    ]  # fmt: skip
    total, saved = spending.total, spending.total.saved
    most = max((each.usd or each.tokens for each in spending.rows), default=0)
    rows = [_spending_cells(view, each, most) for each in spending.rows]
    heads = [spending.by, "runs", "steps", "time", "tokens", "money", "saved by resuming", "share"]
    if spending.by == "model":
        heads[2] = "requests"
    listed = table(heads, rows) if rows else tag("p", "Nothing has been spent.", cls="empty")
    older = tag(
        "a", "count the older ones, too", href=view.at("spending", by=spending.by, longer=1)
    )
    more = ["; ", older, " (some seconds)"] if spending.more else ""
    return ui.shell(
        view,
        "Spending",
        tag("h1", "Spending"),
        ui.figures(
            {
                "spent": ui.amounts(total.usd, 0, at_least=total.at_least) or "$0",
                "tokens": f"{total.tokens:,}",
                "execution time": duration_text(total.seconds),
                "runs": f"{total.runs:,}",
                "saved by resuming": ui.saved_text(saved),
            }
        ),
        tag("p", "by ", ways, cls="ways"),
        tag("p", spending.left_out, more, cls="note") if spending.left_out else None,
        tag("div", listed, data_live="spending"),
    )


def _spending_cells(view: View, row: SpendingRow, most: float) -> list[Content]:
    name = tag("code", row.name)
    share = f"{(row.usd or row.tokens) / most:.3f}" if most else ""
    return [
        tag("a", name, href=view.at(q=row.query)) if row.query else name,
        f"{row.runs:,}" if row.runs else "",
        f"{row.steps:,}",
        duration_text(row.seconds),
        f"{row.tokens:,}" if row.tokens else "",
        ui.amounts(row.usd, 0, at_least=row.at_least),
        ui.saved_text(row.saved),
        tag("meter", min=0, max=1, value=share, aria_label=f"share of {row.name}") if share else "",
    ]


# -- schedules ------------------------------------------------------------------------------------


def schedules_page(view: View, found: Sequence[Mapping[str, Any]], damaged: int) -> Markup:
    """Return the schedules of the store; ``stepwise schedules`` pauses them and asks for runs.

    Args:
        found: the facts of each.
        damaged: how many others are damaged.
    """
    heads = ["schedule", "every", "next", "newest run", "missed", "note"]
    rows: list[list[Content]] = []
    for each in found:
        run, status, missed = each["run"], each["status"], each["missed"]
        page = tag("a", run, href=view.at("runs", run))
        link = tag("span", badge(status), " ", page) if status else ""
        following = when(each["next"]) if each["next"] is not None else ""
        shown = f"{missed:,}" if missed else ""
        rows.append(
            [each["name"], tag("code", each["every"]), following, link, shown, each["note"]]
        )
    empty = tag("p", "stepwise up has seen no workflow with every=.", cls="empty")
    lost = f"{count(damaged, 'schedule')} damaged: stepwise up says which" if damaged else ""
    listed = table(heads, rows) if rows else empty
    return ui.shell(view, "Schedules", tag("h1", "Schedules"),
                    tag("p", lost, cls="note") if lost else None, listed)  # fmt: skip


# -- two runs -------------------------------------------------------------------------------------


def compare_page(view: View, one: Run, other: Run) -> Markup:
    """Return two runs beside each other: where they part, and what each cost."""
    step, variable = first_step(one, other), first_variable(one, other)
    return ui.shell(
        view,
        f"{one.id} and {other.id}",
        tag("h1", "Two runs beside each other"),
        section("Where they part", _parting(step) if step else tag("p", "All steps are the same.")),
        section(
            "The first variable that differs",
            tag("p", tag("code", variable.name), f" after step {variable.step}, at ",
                tag("code", variable.position)),
            _beside([tag("pre", each) for each in differences(*variable.values)]),
        )
        if variable
        else None,
        _beside([_side(view, each) for each in (one, other)]),
    )  # fmt: skip


def _beside(parts: Sequence[Content]) -> Markup:
    return tag("div", [tag("div", each) for each in parts], cls="columns even")


def _parting(found: StepDifference) -> Markup:
    what = {
        "presence": "only one run has step",
        "name": "they call different steps at step",
        "arguments": "the arguments differ at step",
        "status": "the status differs at step",
        "result": "the result differs at step",
    }[found.what]
    texts = [_step_text(each) for each in found.steps]
    shown = _beside(
        [block(text, each) for text, each in zip(texts, differences(*texts), strict=True)]
    )
    return markup(tag("p", f"{what} {found.number}."), shown)


def _step_text(step: StepRecord | None) -> str:
    if step is None:
        return "(no such step)"
    return f"{called(step)[:2000]}\n{step.status} {took_text(step)}\n" + (step.preview[:2000])


def _side(view: View, run: Run) -> Markup:
    spent = run.spent
    about = facts(
        {
            "run": tag("a", run.id, href=view.at("runs", run.id)),
            "fork of": run.forked_from or "",
            "began": ui.moment(view, run.created_at),
            "took": duration_text(run.duration),
            "steps": counts_text(run.counts),
            "spent": ui.amounts(spent.usd, spent.tokens, at_least=spent.at_least),
            "execution time": duration_text(spent.seconds),
        }
    )
    call = f"{run.label}({run.arguments})"
    return tag("section", tag("h2", tag("code", call[:200]), " ", badge(run.status)), about)


# -- problems -------------------------------------------------------------------------------------


def problem_page(view: View, status: int, title: str, text: str, again: str = "") -> Markup:
    """Return a page that says why a request got no other.

    Args:
        view: the facts of the request.
        status: the HTTP status.
        title: what is wrong.
        text: why, and the way out.
        again: the address of a page that may be there when it is asked for again; empty for none.
    """
    retry = tag("a", "Retry", href=again, cls="button") if again else None
    links = tag("p", retry, " " if retry else None, tag("a", "all runs", href=view.at()))
    shown = tag("h1", title), tag("p", text), links, tag("small", f"{status}")
    return ui.shell(view, title, tag("div", *shown, cls="problem"))
