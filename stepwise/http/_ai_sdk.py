"""The UI message stream of the AI SDK (``ai`` on npm, ``useChat``), version 1 of the protocol.

Each turn of a chat is a run.  The client sends its whole conversation; the fields of its request
become the arguments of the workflow of the same names.  A run's id is the chat's and that of the
user's message, so the same request again is the same run; a message that was edited, and
``regenerate()``, begin another.  The id of the run is that of the assistant's message, so a client
that rejoins replaces the message that it has.

The protocol cannot take back what a client has shown.  It can mark it: a text whose items were
withdrawn ends with ``providerMetadata: {stepwise: {withdrawn: true}}``, and what still holds of it
begins a new text.  A page leaves out texts that are marked.  A client that comes later gets none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stepwise._identity.identity import random_id
from stepwise.http._following import END, event, json_text

CHAT = "chat"
"""The tag of a run with the id of its chat."""

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}

_KINDS = ("text-", "reasoning-", "tool-", "source-", "data-")
_TYPES = ("file", "start-step", "finish-step", "message-metadata")
_WITHDRAWN = {"stepwise": {"withdrawn": True}}
_DONE = b"data: [DONE]\n\n"


def run_ids(body: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the id of a chat, and the id of the run for a request; ``None`` for an invalid one."""
    chat, messages = body.get("id"), body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    message = last.get("id") if isinstance(last, dict) else None
    if not (isinstance(chat, str) and chat and isinstance(message, str) and message):
        return None, ""
    run_id = f"{chat}:{message}"
    return chat, another(run_id) if body.get("trigger") == "regenerate-message" else run_id


def another(run_id: str) -> str:
    """Return the id for another answer to the same message."""
    return f"{run_id}:{random_id('again')}"


class _TextPart:
    """A text that the client shows, with the offsets of its pieces."""

    def __init__(self, offset: int) -> None:
        self.id = str(offset)
        self.pieces: list[tuple[int, str]] = []


class UiMessage:
    """The chunks of one assistant's message.

    Texts stay open until the end, since only an open one can be marked as withdrawn.

    Args:
        message_id: the id of the message.
    """

    def __init__(self, message_id: str) -> None:
        self._begun = json.dumps({"type": "start", "messageId": message_id})
        self._texts: list[_TextPart] = []
        self._current: _TextPart | None = None
        self._data: list[int] = []  # the offsets of values that are no chunks

    def encode(self, items: list[Any]) -> Iterator[bytes]:
        """Yield the events for items."""
        if self._begun:
            yield event(self._begun)
            self._begun = ""
        for item in items:
            for chunk in self._chunks(item):
                yield event(json_text(chunk, f"the item {item.offset}"))
            if item.kind == END:
                yield _DONE

    def problem(self, text: str) -> bytes:
        """Return the last events of a message that cannot go on."""
        return event(json.dumps({"type": "error", "errorText": text})) + _DONE

    def _chunks(self, item: Any) -> list[dict[str, Any]]:
        if item.kind == END:
            return self._end(item.value)
        if item.kind == "reset":
            return self._withdraw(item.value, item.offset)
        if isinstance(item.value, str):
            return self._say(item.offset, item.value)
        self._current = None
        kind = item.value.get("type") if isinstance(item.value, dict) else None
        if isinstance(kind, str) and (kind.startswith(_KINDS) or kind in _TYPES):
            return [item.value]
        self._data.append(item.offset)
        return [{"type": "data-item", "id": str(item.offset), "data": item.value}]

    def _say(self, offset: int, text: str) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        if self._current is None:
            self._current = _TextPart(offset)
            self._texts.append(self._current)
            chunks.append({"type": "text-start", "id": self._current.id})
        self._current.pieces.append((offset, text))
        return [*chunks, {"type": "text-delta", "id": self._current.id, "delta": text}]

    def _withdraw(self, first: int, at: int) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        kept: list[str] = []
        for text in [each for each in self._texts if each.pieces[-1][0] >= first]:
            self._texts.remove(text)
            kept += [piece for offset, piece in text.pieces if offset < first]
            chunks.append({"type": "text-end", "id": text.id, "providerMetadata": _WITHDRAWN})
        gone = [offset for offset in self._data if offset >= first]
        chunks += [{"type": "data-item", "id": str(each), "data": None} for each in gone]
        self._data = [offset for offset in self._data if offset < first]
        self._current = None
        return [*chunks, *(self._say(at, "".join(kept)) if kept else [])]

    def _end(self, status: str) -> list[dict[str, Any]]:
        ends: list[dict[str, Any]] = [{"type": "text-end", "id": each.id} for each in self._texts]
        last = {
            "completed": {"type": "finish"},
            "cancelled": {"type": "abort"},
            "superseded": {"type": "abort"},
            "failed": {"type": "error", "errorText": "The run failed."},
        }
        return [*ends, last[status]]
