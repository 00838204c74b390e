"""The pages of a run: where it stands, its steps, variables, branches; a value; the form of a fork.

A slider goes through the steps.  At each step the page shows what is recorded: the line that called
it, the variables of the newest checkpoint up to it, its arguments, result and traceback.  Nothing
is executed to find more, and only values that verify are loaded.

A recorded model call is shown as a conversation: the messages, and the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwise import errors
from stepwise._checkpoints.checkpoints import Loaded
from stepwise._display import page as pages
from stepwise._display.markup import (
    Content,
    Markup,
    Rules,
    badge,
    block,
    markup,
    section,
    table,
    tag,
)
from stepwise._display.render import said_html, usage_text
from stepwise._display.timeline import RunBars, timeline
from stepwise._display.words import counts_text, duration_text
from stepwise._execution.viewer import look_into
from stepwise._journal.records import ADOPTED, ANSWER, RunFacts
from stepwise._runs.branching import effects_text, shown_variables, variation_of, variation_text
from stepwise._runs.export import page_of, source_of
from stepwise._runs.overview import Overview, steps_around
from stepwise._runs.paths import HIDDEN, find, same_value, short, shown
from stepwise._runs.questions import Question
from stepwise._runs.run import Run
from stepwise._runs.steps import (
    UNFINISHED,
    StepRecord,
    checkpoint_at,
    command_to_begin,
    newest_checkpoint,
)
from stepwise._runtime.messages import count, shell_word
from stepwise.errors import UnreadableValueError
from stepwise.integrations._model_calls import answer_of, moved_prompt, request_of
from stepwise.ui import _shell as ui
from stepwise.ui._pages import doubt, question, stopped
from stepwise.ui._reading import NO_BRANCHES, BranchPage
from stepwise.ui._shell import View

_STEPS = 200  # of a page
_CHILDREN = 5  # child runs in a timeline, of _CHILD_STEPS each
_CHILD_STEPS = 40
_VALUE = 600  # characters of a variable
_VALUES = 40_000  # characters of all variables
_SAID = 4000  # bytes of a stream
_WHOLE = 1_000_000  # characters of a value on a page of its own
_NONE: Mapping[str, str] = {}
_RESUMABLE = (*UNFINISHED, "cancelling", "cancelled")  # for somebody who asks for this very run
_ENDED = ("completed", "failed", "cancelled", "superseded")
_OPEN = ("started", "waiting", "in_doubt")  # steps at which a run stands


class _Glance(Run):
    """A run whose facts are read once for a page: a crashed run derives them from its records."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.store, run.id, run._seal)
        self._known = run._facts()

    def _facts(self) -> RunFacts:
        return self._known


@dataclass(frozen=True)
class _Moment:
    """A run at one of its steps.

    Args:
        run: the run.
        seen: its overview, with the steps near this one.
        page: what the page of a run shows.
        step: the number of the step; ``None`` for now.
        chosen: the step in full.
        here, before: the checkpoint of this moment, and the one before it.
        asked: the questions that wait for an answer.
    """

    run: Run
    seen: Overview
    page: pages.RunPage
    step: int | None
    chosen: StepRecord | None
    here: Loaded | None
    before: Loaded | None
    asked: Sequence[Question]


def _moment_of(run: Run, step: int | None) -> _Moment:
    """Read a run at one of its steps.

    Raises:
        StepNotFoundError: the run has no such step.
    """
    return run._settled(lambda *_: _read_moment(_Glance(run), step))


def _read_moment(run: Run, step: int | None) -> _Moment:
    seen = run._seen(_STEPS)
    steps = {each.number: each for each in seen.steps}
    if step is not None and step not in steps:
        near = steps_around(run.store, run._seal, run._facts(), seen, step, _STEPS)
        steps = {each.number: each for each in near}
        seen = replace(seen, steps=near)
    if step is not None and step not in steps:  # a forgotten step leaves its number free
        before_it = [each for each in steps if each < step]
        if not before_it or step > max(steps):
            raise errors.StepNotFoundError(
                f"run {run.id!r} has no step {step}", run_id=run.id, step=step
            )
        step = max(before_it)
    place, course = (run.store, run._seal, run.id), seen.course
    here = newest_checkpoint(*place) if step is None else checkpoint_at(*place, step, course)
    until = here.state.step - 1 if here is not None else 0
    before = checkpoint_at(*place, until, course) if here is not None else None
    chosen = steps[step] if step is not None else _telling(seen.steps)
    page = page_of(run, seen)
    at_step = chosen if step is not None or (chosen and chosen.status in _OPEN) else None
    if at_step is not None or page.shown.status == "running":
        page = replace(page, source=_source_at(page.source, run, here, at_step))
    return _Moment(run, seen, page, step, chosen, here, before, run._asked(seen))


def _telling(steps: Sequence[StepRecord]) -> StepRecord | None:
    """Return the step that says most of where a run stands: one that did not complete, or last."""
    open_ones = [each for each in steps if each.status not in ("completed", "compensated")]
    return next(reversed(open_ones or steps), None) if steps else None


def _source_at(
    known: pages.SourceShown | None, run: Run, here: Loaded | None, chosen: StepRecord | None
) -> pages.SourceShown | None:
    """Return the source with the line that called a step, or that follows its checkpoint."""
    if known is None:
        return known
    file, _, line = chosen.site.rpartition(":") if chosen is not None else ("", "", "")
    lines = range(known.first, known.first + len(known.lines))
    if file == known.file and line.isdecimal() and int(line) in lines:
        return replace(known, here=int(line))
    return source_of(run, here, at_position=True)


# -- the page of a run ----------------------------------------------------------------------------


def run_page(view: View, run: Run, step: int | None, found: BranchPage = NO_BRANCHES) -> Markup:
    """Return the page of a run.

    Args:
        view: the facts of the request.
        run: the run.
        step: the step that the slider is at; ``None`` for now.
        found: its branches.

    Raises:
        StepNotFoundError: the run has no such step.
    """
    at, rules = _moment_of(run, step), Rules()
    shown = at.page.shown
    return ui.shell(
        view,
        f"{shown.call[:80]} {shown.status}",
        tag("div", _head(view, at), data_live="head"),
        tag("div", _asked(view, at), data_live="asked"),
        tag("div", _branches(view, at.run, found), data_live="branches"),
        tag("div", section("Timeline", _timeline(view, at, rules)), data_live="timeline"),
        tag("div", _streams(at), data_live="streams"),
        tag("div", _slider(view, at), data_live="slider"),
        tag(
            "div",
            tag(
                "div",
                section("Source", pages.source(at.page, _link(view, run))),
                data_live="source",
            ),
            tag("div", section(_variables_title(at), _variables(view, at)), data_live="variables"),
            cls="columns",
        ),
        tag("div", _chosen(view, at), data_live="step"),
        tag("div", _steps(view, at), data_live="steps"),
        rules=rules,
        live=view.at("runs", run.id, "live"),
    )


def _crumbs(view: View, *below: Content) -> Markup:
    """Return the way from the list of runs to a page."""
    return tag("p", tag("a", "Runs", href=view.at()), " / ", *below, cls="crumbs")


def _link(view: View, run: Run) -> Any:
    return lambda number: view.at("runs", run.id, step=number)


def _head(view: View, at: _Moment) -> Markup:
    shown, spent = at.page.shown, at.seen.spent
    parts: dict[str, Content] = {
        "spent": ui.amounts(spent.usd, spent.tokens, at_least=spent.at_least),
        "steps": f"{shown.total:,}" if shown.total else "",
        "execution time": duration_text(spent.seconds) if spent.seconds else "",
        "saved by resuming": ui.saved_text(spent.saved or {}),
        "saved by the cache": ui.saved_text(spent.saved_by_cache or {}),
        "down": duration_text(shown.lost) if shown.lost else "",
        "resumed": f"{at.page.resumed} times"
        if at.page.resumed > 1
        else "once"
        if at.page.resumed
        else "",
    }
    parent, facts = at.run.parent, at.run._facts()
    to_begin = command_to_begin(facts) if facts.is_submitted else ""
    return markup(
        _crumbs(view, tag("code", shown.id)),
        pages.title_of(shown),
        tag(
            "p",
            ("submitted " if to_begin else "begun ", ui.moment(view, shown.created_at)),
            (", executed ", shown.owner) if shown.owner else None,
            (", child of ", tag("a", parent, href=view.at("runs", parent))) if parent else None,
            _fork_of(view, at.run),
            (", begun by ", tag("code", to_begin)) if to_begin else None,
            (", resumes ", at.page.where) if at.page.where else None,
            cls="soft",
        ),
        _about_branch(view, at.run),
        said_html(at.run.why()) if shown.status in (*UNFINISHED, "cancelling") else None,
        block(shown.error, cls="error") if shown.error else None,
        [tag("p", each, cls="note") for each in _waits(view, at)],
        tag("p", shown.damage, cls="note bad") if shown.damage else None,
        ui.figures(parts),
        _actions(view, at),
        _output(view),
        tag("details", tag("summary", "all facts"), pages.run_facts(at.page), cls="facts"),
        section("Variables where it failed", pages.frames(at.page.frames)),
    )


def _waits(view: View, at: _Moment) -> Iterator[Content]:
    """Yield what a run waits for; if all of it has come, that the run can be resumed."""
    waits = at.run.waits if at.page.shown.waits else []
    inbox = at.run.inbox if waits else []
    sent = {each.name for each in inbox if (each.kind, each.status) == ("signal", "kept")}
    asked = {(each.run_id, each.step) for each in at.asked}
    open_ones = [
        each
        for each in waits
        if ((each.run_id, each.step) in asked if each.kind == "approval" else each.name not in sent)
    ]
    if waits and not open_ones:
        yield "All that it waited for has come: it goes on when it is resumed."
    for each in open_ones:
        to = tag("a", "send it in the inbox", href=view.at("inbox"))
        yield (f"waits {each}", (", ", to) if each.kind == "signal" else None)


def _fork_of(view: View, run: Run) -> Content:
    source_id = run.forked_from
    if not source_id:
        return None
    beside = view.at("compare", a=source_id, b=run.id)
    return (
        ", branch of " if run._facts().base else ", fork of ",
        tag("a", source_id, href=view.at("runs", source_id)),
        " (",
        tag("a", "beside each other", href=beside),
        ")",
    )


def _output(view: View) -> Markup | None:
    """Return what the program printed that this server has started."""
    output = view.output
    if output is None:
        return None
    state = "runs" if output.exit_code is None else f"ended with {output.exit_code}"
    return tag(
        "details",
        tag("summary", f"output of process {output.pid}, which {state}"),
        tag("small", tag("code", output.command)),
        block(output.text or "(nothing yet)"),
        open=output.exit_code != 0,
        cls="output" if output.exit_code is not None else "output alive",
    )


def _actions(view: View, at: _Moment) -> Markup:
    run, status = at.run, at.page.shown.status

    def to(action: str) -> str:
        return view.at("runs", run.id, action)

    starts = "Start" if status == "ready" else "Resume"
    resume = ui.form(view, to("resume"), ui.button(starts, "primary"))
    fork = tag("a", "Fork…", href=view.at("runs", run.id, "fork", step=at.step), cls="button")
    reason = ui.field("reason", "reason")
    cancel = ui.form(view, to("cancel"), reason, ui.button("Cancel the run", "danger"))
    awaited = [each.name for each in run.waits if each.kind == "signal"]
    send = ui.form(
        view,
        to("send"),
        ui.field("name", "name", required=True, value="".join(awaited[:1])),
        ui.area("value (JSON)", "value", "null"),
        ui.button("Send"),
    )
    beside = tag(
        "form",
        tag("input", type="hidden", name="a", value=run.id),
        ui.field("id of another run", "b", required=True),
        ui.button("Show both"),
        method="get",
        action=view.at("compare"),
    )
    undo = ui.form(view, to("compensate"), ui.sure("undo its completed calls"), ui.button("Undo"))
    delete = ui.form(view, to("delete"), ui.sure("delete the run and its child runs"),
                  ui.button("Delete", "danger"))  # fmt: skip
    shown: list[Content] = [
        resume if status in _RESUMABLE and not run.parent else None,
        fork if not view.read_only else None,
        tag("a", "Export", href=to("export"), cls="button"),
    ]
    folded: dict[str, Markup | None] = {
        "Compare…": beside,
        "Send…": send if status not in _ENDED else None,
        "Adopt…": _adoption(view, run.id) if _adoptable(run._facts(), status) else None,
        "Cancel…": cancel if status not in _ENDED and not run.parent else None,
        "Undo…": undo if status != "running" else None,
        "Delete…": delete if status != "running" else None,
    }
    shown += [
        tag("details", tag("summary", name, cls="button"), tag("div", each, cls="menu"))
        for name, each in folded.items()
        if each
    ]
    return tag("div", shown, cls="actions")


def _asked(view: View, at: _Moment) -> Markup:
    """Return what the run waits for from a person."""
    run = at.run
    return section(
        "Waits for you",
        [question(view, each, each._asked.before, "") for each in at.asked],
        [doubt(view, run.id, each, "") for each in at.seen.in_doubt],
        [stopped(view, run.id, each, "") for each in at.seen.stops if each.said is None],
    )


# -- streams --------------------------------------------------------------------------------------


def _streams(at: _Moment) -> Markup:
    """Return the end of what the run says on its streams; nothing at an earlier step."""
    shown: list[Content] = []
    try:
        for name, end, is_all in at.run._newest_said(_SAID) if at.step is None else ():
            whole = f"stepwise watch {shell_word(at.run.id)} --stream {shell_word(name)}"
            shown += [
                tag("h3", tag("code", name)),
                block(
                    end, ("…" * (not is_all), end), role="region", aria_label=name[:80], cls="said"
                ),
                tag("p", tag("small", "all of it: ", tag("code", whole))) if not is_all else None,
            ]
    except errors.CorruptStoreError as error:
        shown.append(tag("p", str(error), cls="note bad"))
    return section("Streams", shown)


# -- timeline and slider --------------------------------------------------------------------------


def _timeline(view: View, at: _Moment, rules: Rules) -> Markup:
    run, shown = at.run, at.page.shown
    now = view.now if shown.status == "running" else None
    chosen = at.chosen.number if at.chosen is not None else 0
    groups = [RunBars("", shown.steps, _link(view, run), shown.begun, chosen)]
    children = [each for each in shown.steps if each.child]
    for each in children[-_CHILDREN:]:
        child = Run(run.store, each.child, run._seal)
        try:
            seen = child._seen(_CHILD_STEPS)
        except errors.RunNotFoundError:
            continue
        label, begun = pages.called(each)[:120], seen.course.begun
        groups.append(RunBars(label, seen.steps, _link(view, child), begun))
    drawn = timeline(groups, now, [(when, end) for when, _, end in at.page.resumes], rules)
    left_out = shown.total - len(shown.steps)
    about = [
        f"{len(shown.steps)} of {shown.total:,} steps" if left_out > 0 else "",
        f"{_CHILDREN} of {len(children)} child runs" if len(children) > _CHILDREN else "",
    ]
    told = ", ".join(filter(None, about))
    return markup(drawn, tag("p", tag("small", f"shown: {told}")) if told else None)


def _slider(view: View, at: _Moment) -> Markup:
    last = max([at.seen.total, *(each.number for each in at.seen.steps)], default=0)
    if not last:
        return Markup()
    place = at.step if at.step is not None else last
    link = _link(view, at.run)

    def to(number: int, text: str, name: str, rel: str | None = None) -> Markup:
        inside = 1 <= number <= last and number != place
        where = link(number) if inside else None
        kind = {"rel": rel} if inside else {"role": "link", "aria_disabled": "true"}
        return tag("a", text, href=where, aria_label=name, **kind)

    numbers = [each.number for each in at.seen.steps]
    earlier = max((each for each in numbers if each < place), default=place - 1)
    later = min((each for each in numbers if each > place), default=place + 1)
    now = tag("a", "now", href=view.at("runs", at.run.id), rel="last") if at.step else None
    steps = count(last, "step")
    return tag(
        "form",
        to(1, "«", "first step"),
        to(earlier, "‹", "step before", "prev"),  # noqa: RUF001
        tag("input", type="range", name="step", min=1, max=last, value=place, aria_label="step"),
        to(later, "›", "step after", "next"),  # noqa: RUF001
        to(last, "»", "last step"),
        tag("output", f"step {place:,} of {last:,}" if at.step else f"now, after {steps}"),
        now,
        ui.button("Go"),
        method="get",
        action=view.at("runs", at.run.id),
        cls="slider",
        aria_label="slider through time",
    )


# -- variables ------------------------------------------------------------------------------------


def _variables_title(at: _Moment) -> Content:
    if at.here is None:
        return "Variables"
    state = at.here.state
    return "Variables ", tag("small", f"after step {state.step}, at {state.file}:{state.line}")


def _locals_of(run: Run, loaded: Loaded | None) -> tuple[dict[str, Any], str]:
    """Return the variables of a checkpoint, and why they cannot be shown."""
    if loaded is None:
        return {}, ""
    try:
        return run._without_hidden(look_into(loaded)), ""
    except errors.UnreadableValueError as error:
        return {}, str(error)


def _variables(view: View, at: _Moment) -> Markup:
    if at.here is None:
        kept = "No checkpoint was kept up to this step." if at.step else "No checkpoint was kept."
        return tag("p", f"{kept} ", _retention(at), cls="soft")
    values, problem = _locals_of(at.run, at.here)
    earlier, unknown = _locals_of(at.run, at.before)
    marks = {}
    if at.before is not None and not unknown:
        marks = {
            name: "changed" if name in earlier else "new"
            for name, value in values.items()
            if name not in earlier or not same_value(earlier[name], value)
        }
    limit = max(200, min(_VALUE, _VALUES // max(1, len(values))))
    link = {"of": "locals", "step": at.here.state.step}
    shown = {
        name: _value(view, at.run, value, limit, name, **link) for name, value in values.items()
    }
    gone = [name for name in earlier if name not in values] if marks else []
    told = "marked: against" if marks else "unchanged since"
    about = []
    if at.step is not None and at.here.state.step < at.step:
        about.append(
            f"No checkpoint was kept at step {at.step}: these are the variables of the newest one "
            "before it."
        )
    return markup(
        tag("p", " ".join(about), " ", _retention(at), cls="soft") if about else None,
        tag("p", problem, cls="note") if problem else None,
        pages.variables(shown, marks),
        tag("p", f"no more: {', '.join(gone)}", cls="soft") if gone else None,
        tag("small", f"{told} the checkpoint after step {at.before.state.step}")
        if at.before is not None and not unknown
        else None,
    )


def _retention(at: _Moment) -> Content:
    hint = (
        "A checkpoint follows a statement, and a run keeps its newest three; ",
        tag("code", '@workflow(retention="all")'),
        " keeps all, ",
        tag("code", '"thinned"'),
        " ever fewer of the older ones.",
    )
    return hint if at.step is not None else None


def _value(view: View, run: Run, value: Any, limit: int, path: str = "", **link: object) -> Markup:
    """Return a value; a long one is shortened, with a link to its page."""
    text, cut = short(value, path or "result", limit)
    where = view.at("runs", run.id, "value", **link, path=path)
    return markup(block(text), tag("a", "whole", href=where, cls="whole") if cut else None)


# -- steps ----------------------------------------------------------------------------------------


def _chosen(view: View, at: _Moment) -> Markup:
    """Return the chosen step in full."""
    step = at.chosen
    if step is None:
        return Markup()
    run = at.run
    arguments = {each.number: each.arguments for each in at.page.shown.steps}
    more: dict[str, Content] = {}
    inputs = _inputs(view, run, step)
    if inputs:
        more["arguments"] = inputs
    talk = _conversation(step, at.page.shown.steps)
    if step.status == "completed":
        limit = 10 * _VALUE if not talk else 200  # the conversation says the same, for people
        more["result"] = _result(view, run, step, limit)
    forget = ui.form(
        view,
        view.at("runs", run.id, "forget-step"),
        ui.hidden(step=step.number),
        ui.sure("it may happen again") if step.side_effect and step.status != "failed" else None,
        ui.button("Forget this step"),
    )
    fork = tag("a", "Fork from here…", href=view.at("runs", run.id, "fork", step=step.number),
               cls="button")  # fmt: skip
    acts = tag("div", fork, forget if at.page.shown.status != "running" else None, cls="actions")
    again = pages.compared(step, arguments.get(step.instead, ""), _link(view, run)(step.instead))
    child = tag("a", step.child, href=view.at("runs", step.child)) if step.child else None
    return section(
        markup(f"Step {step.number} ", tag("code", step.name), " ", badge(step.status)),
        talk,
        pages.step_facts(step, begun=at.page.shown.begun, again=again, child=child, **more),
        acts if not view.read_only else None,
        cls="chosen-step",
        id="step",
    )


def _inputs(view: View, run: Run, step: StepRecord) -> Markup:
    """Return the arguments in full, if they were recorded."""
    if not step.has_inputs:
        return Markup()
    try:
        values: Mapping[str, Any] = step.inputs
    except errors.UnreadableValueError as error:
        return markup(block(step.arguments), tag("small", f"{error}"))
    link = {"of": "inputs", "step": step.number}
    return pages.variables(
        {name: _value(view, run, value, _VALUE, name, **link) for name, value in values.items()}
    )


def _result(view: View, run: Run, step: StepRecord, limit: int) -> Markup:
    try:
        value = step.result
    except errors.UnreadableValueError as error:
        return markup(block(step.preview), tag("small", f"{error}"))
    return _value(view, run, value, limit, of="result", step=step.number)


def _steps(view: View, at: _Moment) -> Markup:
    """Return the list of steps, each with a link to its moment."""
    steps, link = at.page.shown.steps, _link(view, at.run)
    if not steps:
        return section("Steps", tag("p", "No step has begun.", cls="soft"))
    chosen = at.chosen.number if at.chosen is not None else 0
    rows = [
        tag(
            "a",
            pages.step_line(each),
            href=link(each.number),
            cls=f"step{' chosen' if each.number == chosen else ''}",
            aria_current="step" if each.number == chosen else None,
        )
        for each in steps
    ]
    first, last = steps[0].number, steps[-1].number
    if first > 1:
        older = tag("a", f"earlier steps, to {first - 1:,}", href=link(max(1, first - 1)))
        rows.insert(0, tag("p", older))
    if last < at.seen.total:
        rows.append(tag("p", tag("a", f"later steps, from {last + 1:,}", href=link(last + 1))))
    about = tag("small", counts_text(at.seen.statuses))
    return section(("Steps ", about), tag("div", Markup("\n".join(rows)), cls="rows"))


# -- conversations ---------------------------------------------------------------------------------


_TURNS = 30  # newest messages that are shown
_LISTS = ("messages", "input", "contents")
_ROLES = ("system", "user", "assistant", "tool", "model", "developer")


def _conversation(step: StepRecord, steps: Sequence[StepRecord]) -> Markup:
    """Return the conversation of a model call; nothing for another step.

    Args:
        step: the step.
        steps: the steps before it, whose messages its record may refer to.
    """
    try:
        body = request_of(step, [each for each in steps if each.number < step.number])
        moved = moved_prompt(step, steps)
        text, calls = answer_of(step)
    except (UnreadableValueError, RecursionError):
        return Markup()
    answer = [text] * bool(text) + [{"name": name, "arguments": given} for name, given in calls]
    turns = [*_request_turns(body), *([("assistant", answer)] if answer else [])]
    if not turns:
        return Markup()
    left_out = len(turns) - _TURNS
    shown = [_turn(role, content) for role, content in turns[-_TURNS:]]
    if left_out > 0:
        shown.insert(0, tag("p", f"{left_out} earlier messages", cls="soft"))
    if moved is not None:
        shown.insert(0, tag("p", f"The prompt {moved}", cls="soft"))
    usage = usage_text(step.usage)
    return section(("Conversation ", tag("small", usage)), shown, cls="conversation")


def _request_turns(body: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(body, Mapping):
        return
    for name in ("system", "instructions"):
        if body.get(name):
            yield "system", body[name]
    for name in _LISTS:
        given = body.get(name)
        if isinstance(given, str):
            yield "user", given
        for each in given if isinstance(given, list) else ():
            if isinstance(each, Mapping):
                yield str(each.get("role", each.get("type", "user"))), each


def _turn(role: str, content: Any) -> Markup:
    kind = role if role in _ROLES else "other"
    return tag(
        "div",
        tag("b", role),
        tag("div", [_part(each) for each in _parts(content)]),
        cls=f"turn {kind}",
    )


def _parts(content: Any) -> Iterator[Any]:
    """Yield the texts and other parts of a message."""
    if isinstance(content, Mapping):
        inner = content.get("content", content.get("parts"))
        if inner is None and not content.get("tool_calls"):
            yield content
            return
        yield from _parts(inner)
        yield from content.get("tool_calls") or ()
    elif isinstance(content, list):
        yield from content
    elif content:
        yield content


def _part(part: Any) -> Content:
    """Return a text, a call of a tool, a tool's result, or anything else as JSON."""
    if isinstance(part, str):
        return tag("p", part)
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return tag("p", part["text"])
        function = part.get("function", part)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            given = function.get("arguments", function.get("input", function.get("args", "")))
            return tag("p", tag("code", f"{function['name']}({_text(given)})"))
        if part.get("type") == "tool_result":
            return [_part(each) for each in _parts(part.get("content"))]
    return block(_text(part))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return short(value, "value", 2000).text


# -- branches --------------------------------------------------------------------------------------


FEW = 20  # branches that the page of their base shows
_COLUMNS = 4  # variables that have a column of their own
_RESULT, _STEP = 300, 120  # characters


def _branches(view: View, run: Run, found: BranchPage) -> Markup:
    """Return the branches of a run for its page, with a link to the others."""
    if not found.total:
        return Markup()
    more = tag("a", f"all {found.total:,} branches", href=view.at("runs", run.id, "branches"))
    about = tag("small", f"{found.total:,}")
    is_cut = found.following is not None or found.left_out
    return section(
        ("Branches ", about), _grid(view, run, found), tag("p", more) if is_cut else None
    )


def branches_page(view: View, run: Run, found: BranchPage) -> Markup:
    """Return a page of the branches of a run."""
    here = view.at("runs", run.id)
    following = view.at("runs", run.id, "branches", start=found.following)
    first, last = found.start + 1, found.start + len(found.rows)
    told = f"{first:,} to {last:,} of {found.total:,}" if found.rows else "none"
    return ui.shell(
        view,
        f"Branches of {run.id}",
        tag("p", tag("a", "Runs", href=view.at()), " / ", tag("a", tag("code", run.id), href=here),
            cls="crumbs"),
        tag(
            "div",
            tag("h1", "Branches ", tag("small", told)),
            tag("p", found.left_out, cls="note") if found.left_out else None,
            _grid(view, run, found),
            tag("p", tag("a", "more branches", href=following)) if found.following else None,
            data_live="branches",
        ),
        live=view.at("runs", run.id, "live"),
    )  # fmt: skip


def _grid(view: View, run: Run, found: BranchPage) -> Markup:
    """Return a table of branches: variables, result, amounts, where each parted."""
    names = [*dict.fromkeys(name for row in found.rows for name in row["variables"])]
    names = names if len(names) <= _COLUMNS else []
    adopts = not view.read_only and not run._facts().superseded
    heads = ["branch", *(names or ["variables"]), "status", "result", "steps", "spent", "time"]
    heads += ["parted", *(["adopt"] if adopts else [])]
    rows = [_cells(view, row, names, adopts=adopts) for row in found.rows]
    return table(heads, rows, cls="cards grid")


def _cells(view: View, row: Mapping[str, Any], names: list[str], *, adopts: bool) -> list[Content]:
    run_id, base, step = row["run"], row["base"], row["parted_at"]
    values = [row["variables"].get(name, "") for name in names] or [row["variation"]]
    error = row["status"] in ("failed", "interrupted", "crashed", "stuck", "cancelled")
    parted = tag("a", row["parted"].partition("(")[0][:_STEP], title=row["parted"][:_RESULT],
                 href=view.at("runs", run_id, step=step))  # fmt: skip
    beside = tag("a", "compare", href=view.at("compare", a=base, b=run_id))
    cells: list[Content] = [
        markup(
            tag("a", tag("code", run_id.removeprefix(base)), href=view.at("runs", run_id)),
            tag("div", f"side effects {effects_text(row['effects'])}", cls="line"),
        ),
        *(tag("code", value) if value else "" for value in values),
        badge(row["status"]),
        tag("div", row["result"][:_RESULT], cls="error-line" if error else "outcome"),
        f"{row['steps']:,}",
        ui.amounts(row["usd"], 0),
        duration_text(row["seconds"]),
        markup(parted if row["parted"] else "", tag("div", beside, cls="line")),
    ]
    if adopts:
        summary = tag("summary", "Adopt…", cls="button", aria_label=f"adopt {run_id}")
        menu = tag("details", summary, tag("div", _adoption(view, run_id), cls="menu"))
        is_adoptable = _can_be_adopted(row["status"], row["effects"])
        cells.append(tag("div", menu, cls="actions") if is_adoptable else "")
    return cells


def _about_branch(view: View, run: Run) -> Markup | None:
    """Return what a branch was given and does with side effects; and which branch was adopted."""
    facts, told = run._facts(), list[Content]()
    if facts.base:
        given = shown_variables(facts, variation_of(run.store, run._seal, facts))
        told.append(
            ("variables: ", tag("code", variation_text(given)),
             f"; side effects are {effects_text(facts.effects)}")
        )  # fmt: skip
    if facts.superseded:
        link = tag("a", facts.superseded, href=view.at("runs", facts.superseded))
        told.append(("its branch ", link, " was adopted, and goes on instead"))
    return markup([tag("p", each, cls="soft") for each in told]) if told else None


def _adoption(view: View, run_id: str) -> Markup:
    """Return the form that adopts a branch; nothing on a read-only page."""
    return ui.form(
        view,
        view.at("runs", run_id, "adopt"),
        tag(
            "p", "It goes on instead of its base, under its own id. Its proposals become questions."
        ),
        ui.sure("adopt it: the other branches are cancelled"),
        ui.button("Adopt", "primary"),
    )


def _adoptable(facts: RunFacts, status: str) -> bool:
    """Return whether a run is a branch that can be adopted, as far as its own facts say."""
    return bool(facts.base) and _can_be_adopted(status, facts.effects)


def _can_be_adopted(status: str, effects: str) -> bool:
    ended = status in ("cancelled", "cancelling", "superseded")
    return not ended and effects != ADOPTED and not effects.startswith(ANSWER)


# -- one value ------------------------------------------------------------------------------------


_OF = {"locals": "the variables at", "result": "the result of", "inputs": "the arguments of"}


def value_page(
    view: View, run: Run, of: str, step: int | None, path: str, begin: int = 0
) -> Markup:
    """Return one recorded value, whole; a very long one by page.

    Args:
        view: the facts of the request.
        run: the run.
        of: ``locals``, ``result`` or ``inputs``.
        step: the number of the step.
        path: a variable or an argument, and a place inside it: ``notes[3]['text']``.
        begin: the number of characters before the page.

    Raises:
        StepNotFoundError: there is no such step.
        ConfigurationError: there is no value at this path, or no such kind of values.
        UnreadableValueError: the value cannot be loaded here.
    """
    if of not in _OF:
        raise errors.ConfigurationError(f"a page shows one of {', '.join(_OF)}, not {of!r}")
    at = _moment_of(run, step)
    value: Any
    if of == "result" and at.chosen is not None:
        value = at.chosen.result
    elif of == "inputs" and at.chosen is not None:
        value = at.chosen.inputs
    else:
        value = at.run._without_hidden(look_into(at.here)) if at.here is not None else {}
    if path:
        value = find(value, path)
    text = shown(value, path or "value", sys.maxsize)
    last = max(0, len(text) - 1) // _WHOLE * _WHOLE
    begin = min(begin, last)
    part = text[begin : begin + _WHOLE]
    name = path or f"{_OF[of]} step {step}"

    def to(start: int, what: str) -> Markup | None:
        where = view.at("runs", run.id, "value", of=of, step=step, path=path, begin=start)
        return tag("a", what, href=where) if 0 <= start <= last and start != begin else None

    links = to(begin - _WHOLE, "before"), " ", to(begin + _WHOLE, "after"), " ", to(last, "end")
    told = f"characters {begin + 1:,} to {begin + len(part):,} of {len(text):,} "
    back = tag("a", f"step {step}", href=_link(view, run)(step))
    return ui.shell(
        view,
        name[:80],
        _crumbs(view, tag("a", tag("code", run.id), href=view.at("runs", run.id)), " / ", back),
        tag("h1", tag("code", name), " ", tag("small", count(len(text), "character"))),
        tag(
            "div",
            tag("pre", [part[n : n + 10_000] for n in range(0, len(part), 10_000)], cls="value",
                tabindex="0", role="region", aria_label=name[:80]),
            tag("p", told, links) if last else None,
            data_live="value",
        ),
    )  # fmt: skip


# -- fork -----------------------------------------------------------------------------------------


def fork_page(
    view: View, run: Run, step: int | None, problem: str = "", given: Mapping[str, str] = _NONE
) -> Markup:
    """Return the form that makes a fork: other variables, other results.

    Args:
        view: the facts of the request.
        run: the run.
        step: the step up to which the fork shares the records; ``None`` for the newest checkpoint.
        problem: why the last try was refused; empty on the first.
        given: the fields of the last try, by name.
    """
    at = _moment_of(run, step)
    values, unknown = _locals_of(at.run, at.here)
    done = [each for each in at.seen.steps if each.status == "completed" and not each.child]
    done = [each for each in done if step is None or each.number <= step][-20:]
    place = at.here.state if at.here is not None else None
    where = f"after {place.file}:{place.line} (step {place.step})" if place else "from the top"
    about = (
        f"The fork shares the steps up to {step}"
        if step is not None
        else "The fork shares the steps up to the newest checkpoint"
    )
    fields = [
        tag("input", type="hidden", name="step", value=step) if step is not None else None,
        tag("p", f"{about}, and resumes {where}. The run itself stays as it is. A field that "
            "stays empty changes nothing."),
        section("Variables", [_change(n, v, given) for n, v in values.items()])
        or tag("p", "There are no variables to change: no checkpoint was kept up to here."),
        tag("p", unknown, cls="note") if unknown else None,
        tag(
            "details",
            tag("summary", f"Results of steps, the newest {len(done)}"),
            [_change_result(each, given) for each in reversed(done)],
            open=any(given.get(f"result:{each.number}") for each in done),
        )
        if done
        else None,
        section("The fork", _fork_options(given)),
        tag("div", ui.button("Make the fork", "primary"), tag("a", "back",
            href=view.at("runs", run.id, step=step), cls="button"), cls="actions"),
    ]  # fmt: skip
    made = ui.form(view, view.at("runs", run.id, "fork"), fields, cls="fork")
    return ui.shell(
        view,
        f"Fork {run.label}",
        _crumbs(view, tag("a", tag("code", run.id), href=view.at("runs", run.id))),
        tag("h1", "Fork from ", f"step {step}" if step is not None else "here"),
        tag("p", problem, cls="note bad", role="alert") if problem else None,
        made or tag("p", "This page is read-only.", cls="note"),
    )  # fmt: skip


def _fork_options(given: Mapping[str, str]) -> list[Markup]:
    def box(name: str, text: str, *, checked: bool) -> Markup:
        return tag(
            "label", tag("input", type="checkbox", name=name, value="1", checked=checked), text
        )

    taken, started = bool(given.get("messages")), not given or bool(given.get("start"))
    return [
        ui.field("its id (made if empty)", "id", value=given.get("id")),
        box("messages", " take the messages that the run had not taken, too", checked=taken),
        box("start", " start its program at once", checked=started),
    ]


def _change(name: str, value: Any, given: Mapping[str, str]) -> Markup:
    """Return the field of a variable: its value now, and a place for another."""
    text, key = short(value, name, 300).text, f"variable:{name}"
    known = _json_of(value)
    known = known if known is not None and HIDDEN not in shown(value, name) else None
    more = {"data_value": known, "rows": 1, "placeholder": "unchanged (JSON or text)"}
    label = tag("code", name), " ", tag("small", text)
    return ui.area(label, key, given.get(key, ""), **more)


def _change_result(step: StepRecord, given: Mapping[str, str]) -> Markup:
    key = f"result:{step.number}"
    label = (
        tag("code", f"{step.number} {pages.called(step)[:120]}"),
        " ",
        tag("small", step.preview[:300]),
    )
    return ui.area(label, key, given.get(key, ""), rows=1, placeholder="unchanged (JSON or text)")


def _json_of(value: Any) -> str | None:
    """Return a small plain value as JSON, for editing; ``None`` for other values."""
    if type(value) not in (str, int, float, bool, list, dict, type(None)):
        return None
    try:
        text = json.dumps(value, indent=None, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) < 5000 else None
