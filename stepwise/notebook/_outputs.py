"""Outputs of a notebook's cell: recorded while it runs, shown again when it is skipped.

Text goes on to where it went, and everything is shown as it comes: recording only listens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from stepwise._runtime.messages import count

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Recorder", "Shown", "replay"]

_TEXT = 1_000_000  # characters of printed text that are kept

Item = tuple[Any, ...]


class Shown:
    """The leftovers of a cell beside its variables.

    Args:
        items: what it showed; see :class:`Recorder`.
        gone: the variables that it deleted.
    """

    def __init__(self, items: list[Item], gone: list[str]) -> None:
        self.items = items
        self.gone = gone

    def __repr__(self) -> str:
        return f"<{count(len(self.items), 'output')}>"


class Recorder:
    """Listens to everything that is shown while it is entered.

    Attributes:
        items: ``("stdout", text)``, ``("stderr", text)``, or ``("data", data, metadata, id)``.
    """

    def __init__(self, shell: Any) -> None:
        self.items: list[Item] = []
        self._shell = shell
        self._left = _TEXT
        self._clear = False
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def __enter__(self) -> Self:
        publisher, hook = self._shell.display_pub, self._shell.displayhook
        for name in ("stdout", "stderr"):
            self._listen(getattr(sys, name), "write", partial(self._on_write, name))
        self._listen(publisher, "publish", self._on_publish)
        self._listen(publisher, "clear_output", self._on_clear)
        self._listen(hook, "write_format_data", self._on_result)
        self._listen(hook, "write_output_prompt", self._on_prompt)
        return self

    def _listen(self, owner: Any, name: str, heard: Callable[..., Any]) -> None:
        """Have a method of an object heard.  It stays the object that other code holds."""
        plain, had = getattr(owner, name), name in vars(owner)
        setattr(owner, name, partial(heard, plain))
        self._undo.append((owner, name, plain, had))

    def __exit__(self, *exception: object) -> None:
        for owner, name, plain, had in reversed(self._undo):
            if had:
                setattr(owner, name, plain)
            else:
                delattr(owner, name)

    def _add(self, item: Item) -> None:
        if self._clear:
            self._clear = False
            self.items.clear()
        self.items.append(item)

    def _text(self, stream: str, text: str) -> None:
        if self._left < 0:
            return
        kept = text[: self._left]
        if len(kept) < len(text) and self._left:
            kept += "\n[further output was too long to record]\n"
        self._left = max(0, self._left - len(text))
        if kept and self.items and self.items[-1][0] == stream and not self._clear:
            self.items[-1] = (stream, self.items[-1][1] + kept)
        elif kept:
            self._add((stream, kept))

    def _on_write(self, stream: str, plain: Callable[[str], Any], text: str) -> Any:
        self._text(stream, text)
        return plain(text)

    def _on_publish(
        self,
        plain: Callable[..., None],
        data: Any,
        metadata: Any = None,
        *args: Any,
        transient: Any = None,
        **kw: Any,
    ) -> None:
        ident = (transient or {}).get("display_id")
        if "stepwise" in (metadata or {}):  # progress and notices, which are not output of the cell
            plain(data, metadata, *args, transient=transient, **kw)
            return
        item = ("data", data, metadata or {}, ident)
        if kw.get("update"):
            self.items = [item if e[0] == "data" and e[3] == ident else e for e in self.items]
        else:
            self._add(item)
        plain(data, metadata, *args, transient=transient, **kw)

    def _on_clear(
        self, plain: Callable[..., None], wait: bool = False, *args: Any, **kw: Any
    ) -> None:
        self._clear = True
        if not wait:
            self._clear = False
            self.items.clear()
        plain(wait, *args, **kw)

    def _on_result(self, plain: Callable[..., None], data: Any, metadata: Any = None) -> None:
        self._add(("data", data, metadata or {}, None))
        with self._muted():
            plain(data, metadata)

    def _on_prompt(self, plain: Callable[[], None]) -> None:
        with self._muted():
            plain()

    @contextmanager
    def _muted(self) -> Iterator[None]:
        """A terminal's way to show a value is to print it."""
        left, self._left = self._left, -1
        try:
            yield
        finally:
            self._left = left


def replay(shell: Any, items: list[Item]) -> None:
    """Show the recorded output again."""
    for kind, *content in items:
        if kind == "data":
            shell.display_pub.publish(content[0], content[1])
        else:
            getattr(sys, kind).write(content[0])
