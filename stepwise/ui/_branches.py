"""The branches of a run beside each other: a table on its page, a page of many, the adoption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwise._display.markup import Content, Markup, badge, markup, section, table, tag
from stepwise._display.words import duration_text
from stepwise._journal.records import ADOPTED, ANSWER, RunFacts
from stepwise._runs.branching import (
    effects_text,
    shown_variables,
    variation_of,
    variation_text,
)
from stepwise._runs.run import Run
from stepwise.ui import _shell as ui
from stepwise.ui._view import BranchPage, View

FEW = 20  # branches that the page of their base shows
_COLUMNS = 4  # variables that have a column of their own
_RESULT, _STEP = 300, 120  # characters


def section_of(view: View, run: Run, found: BranchPage) -> Markup:
    """Return the branches of a run for its page, with a link to the others."""
    if not found.total:
        return Markup()
    more = tag("a", f"all {found.total:,} branches", href=view.at("runs", run.id, "branches"))
    about = tag("small", f"{found.total:,}")
    is_cut = found.following is not None or found.left_out
    return section(("Branches ", about), grid(view, run, found), tag("p", more) if is_cut else None)


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
            grid(view, run, found),
            tag("p", tag("a", "more branches", href=following)) if found.following else None,
            data_live="branches",
        ),
        live=view.at("runs", run.id, "live"),
    )  # fmt: skip


def grid(view: View, run: Run, found: BranchPage) -> Markup:
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
        menu = tag("details", summary, tag("div", adoption(view, run_id), cls="menu"))
        is_adoptable = _can_be_adopted(row["status"], row["effects"])
        cells.append(tag("div", menu, cls="actions") if is_adoptable else "")
    return cells


def _can_be_adopted(status: str, effects: str) -> bool:
    ended = status in ("cancelled", "cancelling", "superseded")
    return not ended and effects != ADOPTED and not effects.startswith(ANSWER)


# -- one branch ------------------------------------------------------------------------------------


def adoption(view: View, run_id: str) -> Markup:
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


def adoptable(facts: RunFacts, status: str) -> bool:
    """Return whether a run is a branch that can be adopted, as far as its own facts say."""
    return bool(facts.base) and _can_be_adopted(status, facts.effects)


def about_branch(view: View, run: Run) -> Markup | None:
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
