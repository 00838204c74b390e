"""Open questions of runs: as text, as HTML, and in a notebook with buttons.

All that a person is asked to allow is shown, however long it is.  Buttons need ipywidgets; without,
the commands are shown that answer.
"""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from stepwise._display.render import framed
from stepwise._display.terminal import when
from stepwise._runtime.messages import printable, publisher, shell_word
from stepwise.errors import StepwiseError

__all__ = ["Asking", "buttons", "question_text", "questions_html"]

_VIEW = "application/vnd.jupyter.widget-view+json"


class Asking(Protocol):
    """An open question; see :class:`stepwise.Question`."""

    @property
    def run_id(self) -> str:
        """The run that asks."""

    @property
    def step(self) -> int:
        """The number of the call that asks."""

    @property
    def text(self) -> str:
        """The question."""

    @property
    def details(self) -> str:
        """Everything that a yes is bound to."""

    @property
    def asked_at(self) -> float:
        """When it was asked."""

    def approve(self, note: str = "") -> None:
        """Say yes."""

    def deny(self, reason: str) -> None:
        """Say no."""


def question_text(question: Asking) -> str:
    """Return a question in lines, with the commands that answer it."""
    return "\n".join(
        [
            f"step {question.step} asks since {when(question.asked_at)}: {_whole(question.text)}",
            *(f"    {line}" for line in _whole(question.details).splitlines()),
            *(f"  {command}" for command in _commands(question)),
        ]
    )


def _whole(text: str) -> str:
    return printable(text, len(text))


def _commands(question: Asking) -> list[str]:
    step = f"{shell_word(question.run_id)} {question.step}"
    return [f"stepwise approve {step} [--note TEXT]", f"stepwise deny {step} --reason TEXT"]


def questions_html(questions: Iterable[Asking], *, commands: bool = True) -> str:
    """Return questions as HTML; with the commands that answer them."""
    return framed(*(_question_html(each, commands=commands) for each in questions))


def _question_html(question: Asking, *, commands: bool) -> str:
    parts = [
        f"<div><b>step {question.step} asks: {html.escape(_whole(question.text))}</b></div>",
        f"<pre>{html.escape(_whole(question.details))}</pre>" if question.details else "",
    ]
    if commands:
        lines = "".join(
            f"<div><code>{html.escape(each)}</code></div>" for each in _commands(question)
        )
        parts.append(f"<small>{lines}</small>")
    return "".join(parts)


# -- buttons -------------------------------------------------------------------------------------


def buttons(around: str, questions: Sequence[Asking]) -> dict[str, Any]:
    """Return the output of a notebook that answers questions; empty where there are no widgets.

    Args:
        around: HTML that is shown above the questions.
    """
    if not questions or publisher() is None or importlib.util.find_spec("ipywidgets") is None:
        return {}
    import ipywidgets

    rows = [_row(ipywidgets, each) for each in questions]
    shown = ipywidgets.VBox([*([ipywidgets.HTML(around)] if around else []), *rows])
    view: Any = shown._repr_mimebundle_()
    return {_VIEW: view[_VIEW]} if _VIEW in view else {}


def _row(ipywidgets: Any, question: Asking) -> Any:
    """Return the widgets of one question: what is asked, a line for a note, two buttons."""
    asked = ipywidgets.HTML(questions_html([question], commands=False))
    note = ipywidgets.Text(placeholder="a note; to deny, the reason")
    yes = ipywidgets.Button(description="Approve", button_style="success")
    no = ipywidgets.Button(description="Deny", button_style="danger")
    said = ipywidgets.HTML()

    def answers(answer: Callable[[str], None], done: str) -> Callable[[Any], None]:
        def click(_: Any) -> None:
            try:
                answer(note.value)
            except StepwiseError as error:
                said.value = html.escape(str(error))
                return
            yes.disabled = no.disabled = note.disabled = True
            said.value = done

        return click

    yes.on_click(answers(question.approve, "approved"))
    no.on_click(answers(question.deny, "denied"))
    return ipywidgets.VBox([asked, ipywidgets.HBox([note, yes, no, said])])
