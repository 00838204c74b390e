"""The frame of every page: its request, head, navigation, forms; short texts that several show."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stepwise._display.markup import Content, Markup, Rules, markup, tag
from stepwise._display.page import document
from stepwise._display.words import ago, duration_text, when
from stepwise._execution.budget import amounts_text
from stepwise.ui._access import address
from stepwise.ui._actions import ProgramOutput


@dataclass(frozen=True)
class View:
    """The facts of a request that its page needs.

    Args:
        root: the path under which the application is mounted, without a slash at its end.
        form_token: the value of the hidden field ``token`` of each form.
        read_only: True if the page offers no action.
        open_matters: the number of matters in the inbox.
        nonce: the nonce of the page's one style element.
        who: the person who looks, as answers and requests record it.
        store: the URL of the store, without a password.
        at_least: True if there may be more open matters than ``open_matters``.
        output: on the page of a run: what its program printed, if this server has started it.
        now: the time of the request, in seconds since 1970.
    """

    root: str
    form_token: str
    read_only: bool
    open_matters: int
    nonce: str
    who: str
    store: str
    now: float
    at_least: bool = False
    output: ProgramOutput | None = None

    def at(self, *parts: object, **query: object) -> str:
        """Return the address of a page: ``at("runs", run.id, step=3)``.

        Args:
            parts: the parts of the path; see :func:`address`.
            query: parameters; ``None`` and ``""`` leave one out.
        """
        given = [(name, value) for name, value in query.items() if value not in (None, "")]
        return address(self.root, parts, given)


_ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<path d='M1 13h4v-4h4V5h4V2' fill='none' stroke='#0860ca' stroke-width='2.4'/>{}</svg>"
)
_DOT = "<circle cx='11.5' cy='11.5' r='4' fill='#cf222e'/>"
_KEYS = {
    "/": "search",
    "← →": "the step before, the step after",
    "g r, g i, g s": "runs, inbox, spending",
    "?": "this list",
}


def shell(
    view: View, title: str, *content: Content, rules: Rules | None = None, live: str = ""
) -> Markup:
    """Return a page.

    Args:
        view: the facts of the request.
        title: the title.
        content: the content of the page.
        rules: the positions of its elements.
        live: the address of its events; empty for a page that does not change.
    """
    count = f"{view.open_matters}{'+' if view.at_least else ''}"
    icon = quote(_ICON.format(_DOT if view.open_matters else ""), safe="/:=' ")
    style = rules.text if rules is not None else ""
    return Markup(
        document(
            f"({count}) {title}" if view.open_matters else title,
            markup(
                tag("a", "skip to the page", href="#main", cls="skip"),
                _navigation(view, count),
                tag("main", *content, id="main"),
                _keys(),
                tag("footer", tag("small", f"{view.store}, seen by {view.who}")),
            ),
            tag("link", rel="icon", href=f"data:image/svg+xml,{icon}", data_live="icon"),
            tag("link", rel="stylesheet", href=view.at("static", "page.css")),
            Markup(f"{tag('style', nonce=view.nonce).removesuffix('</style>')}{style}</style>"),
            tag("script", src=view.at("static", "page.js"), defer=True),
            data_events=live or None,
        )
    )


def _navigation(view: View, count: str) -> Markup:
    matters = tag("b", count, cls="count") if view.open_matters else None
    links = {
        (): ("Runs",),
        ("inbox",): ("Inbox", " ", matters) if matters else ("Inbox",),
        ("spending",): ("Spending",),
        ("schedules",): ("Schedules",),
    }
    return tag(
        "header",
        tag(
            "nav",
            tag("a", "stepwise", href=view.at(), cls="brand"),
            [tag("a", text, href=view.at(*parts)) for parts, text in links.items()],
            tag("span", "read-only", cls="store") if view.read_only else None,
            tag("span", view.store, cls="store", title=view.store),
            aria_label="pages",
            data_live="nav",
        ),
        cls="top",
    )


def _keys() -> Markup:
    rows = [markup(tag("dt", tag("kbd", key)), tag("dd", text)) for key, text in _KEYS.items()]
    close = tag("form", tag("button", "close"), method="dialog")
    return tag("dialog", tag("h2", "Keys"), tag("dl", rows), close, id="keys", aria_label="keys")


# -- forms ----------------------------------------------------------------------------------------


def form(view: View, action: str, *parts: Content, **attributes: object) -> Markup:
    """Return a form that does something; nothing on a read-only page.

    Args:
        view: the facts of the request.
        action: the address of the action.
        parts: the content.
        attributes: attributes of the form.
    """
    if view.read_only:
        return Markup()
    token = tag("input", type="hidden", name="token", value=view.form_token)
    return tag("form", token, *parts, method="post", action=action, **attributes)


def hidden(**fields: object) -> list[Markup]:
    """Return hidden fields of a form."""
    return [tag("input", type="hidden", name=k, value=v) for k, v in fields.items() if v != ""]


def button(text: str, kind: str = "", **attributes: object) -> Markup:
    """Return the button of a form; ``kind`` is ``primary``, ``danger`` or empty."""
    return tag("button", text, cls=kind or None, **attributes)


def sure(what: str) -> Markup:
    """Return a box to tick before a form can be sent that cannot be taken back."""
    return tag("label", tag("input", type="checkbox", required=True), f" yes, {what}")


def field(label: str, name: str, **attributes: object) -> Markup:
    """Return a line of text with its label."""
    return tag("label", tag("span", label), tag("input", name=name, **attributes))


def area(label: Content, name: str, text: str = "", **attributes: object) -> Markup:
    """Return lines of text with their label."""
    given = {"rows": "2", "spellcheck": "false", **attributes}
    return tag("label", tag("span", label), tag("textarea", text, name=name, **given))


# -- texts ----------------------------------------------------------------------------------------


def moment(view: View, at: float) -> Markup:
    """Return a time as ``5 min ago``, with its date as its title."""
    iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return tag("time", ago(view.now - at), datetime=iso, title=when(at))


def amounts(usd: float, tokens: float, *, at_least: bool = False) -> str:
    """Return money and tokens, as ``$0.12, 1,240 tokens``."""
    text = amounts_text({"usd": usd, "tokens": int(tokens)})
    return f"at least {text}" if at_least and text else text


def saved_text(saved: Mapping[str, float]) -> str:
    """Return what resuming has saved, as ``$0.12, 1,240 tokens, 3.4 s``."""
    text = amounts(saved.get("usd", 0.0), saved.get("tokens", 0))
    took = duration_text(saved["seconds"]) if saved.get("seconds") else ""
    return ", ".join(filter(None, (text, took)))


def figures(named: Mapping[str, Content]) -> Markup:
    """Return the main figures of a page, each with its name below."""
    shown = [
        tag("div", tag("dt", name), tag("dd", value)) for name, value in named.items() if value
    ]
    return tag("dl", shown, cls="figures") if shown else Markup()


def shortened(texts: Sequence[Any], most: int = 3) -> str:
    """Join a few texts, and say how many are left out."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{', '.join(map(str, texts[:most]))}{more}"
