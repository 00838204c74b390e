"""Fields of message classes that are new at every start: times, usage, and ids made up by the way.

A *volatile* field does not tell calls apart.  A *reference* is an id that other fields may name: it
counts by the order in which it first appears in the call, so that a result still belongs to its
own call.  Classes are known by the package they come from and their name, subclasses with them; no
library is imported, and a plain dict has no such fields, whatever its keys are called.

Checked with pydantic-ai 2.68, langchain-core 1.7, openai 3.54, openai-agents 0.24, anthropic 2.12;
a field that another version does not have does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args

from stepwise._runtime import settings
from stepwise._runtime.facts import NamedTuple

__all__ = ["EACH", "Numbering", "Rule", "rules_of"]

EACH = "[]"


FieldKind = Literal["volatile", "reference", "plain"]
"""The way in which a field counts: not at all, by the order of first appearance, or as it is."""

Rule = Union[FieldKind, "dict[str, Rule]"]
"""How a value counts, or how its parts do: by field or key, ``[]`` for each item."""


class _FieldPaths(NamedTuple):
    volatile: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()


def _of(volatile: str = "", references: str = "", plain: str = "") -> _FieldPaths:
    return _FieldPaths((*volatile.split(),), (*references.split(),), (*plain.split(),))


_TIME, _ID, _CALL = _of("timestamp"), _of("", "id"), _of("", "tool_call_id id")
_TIME_AND_CALL, _RUN = _of("timestamp", "tool_call_id"), "run_id conversation_id"

_KNOWN: dict[str, dict[str, _FieldPaths]] = {
    "pydantic_ai": {
        "SystemPromptPart": _TIME,
        "UserPromptPart": _TIME,
        "RetryFeedbackPart": _TIME,
        "BaseToolReturnPart": _TIME_AND_CALL,
        "ToolReturnPart": _TIME_AND_CALL,
        "BuiltinToolReturnPart": _TIME_AND_CALL,
        "RetryPromptPart": _TIME_AND_CALL,
        "BaseToolCallPart": _CALL,
        "ToolCallPart": _CALL,
        "BuiltinToolCallPart": _CALL,
        "ToolAvailabilityDeltaPart": _CALL,
        "CapabilityLoadDeltaPart": _CALL,
        "TextPart": _ID,
        "ThinkingPart": _ID,
        "FilePart": _ID,
        "CompactionPart": _ID,
        "SpeechPart": _ID,
        "ModelRequest": _of("timestamp", _RUN),
        "ModelResponse": _of(
            "timestamp usage provider_details vendor_details history_digest failed_attempts",
            f"provider_response_id vendor_id {_RUN}",
        ),
    },
    "langchain_core": {
        "BaseMessage": _of("response_metadata", "id"),
        "AIMessage": _of(
            "usage_metadata",
            "tool_calls[].id invalid_tool_calls[].id content[].id "
            "additional_kwargs.tool_calls[].id",
        ),
        "AIMessageChunk": _of("", "tool_call_chunks[].id"),
        "ToolMessage": _of("", "tool_call_id"),
        "RemoveMessage": _of("", "", "id"),  # the message that it removes
        "ChatResult": _of("llm_output"),
        "ChatGeneration": _of("generation_info"),
        "LLMResult": _of("llm_output run"),
    },
    "openai": {
        "ChatCompletion": _of("created usage system_fingerprint service_tier", "id"),
        "ChatCompletionChunk": _of("created usage system_fingerprint service_tier", "id"),
        "ChatCompletionMessageToolCall": _ID,
        "ChatCompletionMessageFunctionToolCall": _ID,
        "ChatCompletionMessageCustomToolCall": _ID,
        "Response": _of("created_at completed_at usage", "id previous_response_id"),
        "ResponseOutputMessage": _ID,
        "ResponseReasoningItem": _ID,
        "ResponseFunctionToolCall": _of("", "id call_id"),
        "ResponseFunctionToolCallOutputItem": _of("", "id call_id"),
        "ResponseCustomToolCall": _of("", "id call_id"),
    },
    "agents": {
        "ModelResponse": _of("usage raw_usage request_id", "response_id"),
        "RunItemBase": _of("_agent_ref"),
        "HandoffOutputItem": _of("_source_agent_ref _target_agent_ref"),
    },
    "anthropic": {
        "Message": _of("usage", "id"),
        "ToolUseBlock": _ID,
        "ServerToolUseBlock": _ID,
        "WebSearchToolResultBlock": _of("", "tool_use_id"),
    },
}


def rules_of(cls: type) -> dict[str, Rule] | None:
    """Return how the fields of a class count that do not count unchanged, or ``None``."""
    return _rules(cls, settings.fields())


@functools.lru_cache(maxsize=1000)
def _rules(cls: type, given: settings.Fields) -> dict[str, Rule] | None:
    rules: dict[str, Rule] = {}
    for base in reversed(cls.__mro__):
        of_package = _KNOWN.get(base.__module__.partition(".")[0], {})
        known = of_package.get(base.__qualname__, _FieldPaths())
        name = f"{base.__module__}.{base.__qualname__}"
        fields = known._replace(
            volatile=given.volatile.get(name, known.volatile),
            references=given.references.get(name, known.references),
        )
        for mark, paths in zip(get_args(FieldKind), fields, strict=True):
            for path in paths:
                _add(rules, path.replace(EACH, f".{EACH}").split("."), mark)
    return rules or None


def _add(rules: dict[str, Rule], path: Iterable[str], mark: FieldKind) -> None:
    *around, last = path
    for each in around:
        inner = rules.get(each)
        if not isinstance(inner, dict):
            inner = rules[each] = {}
        rules = inner
    rules[last] = mark


class Numbering:
    """The order in which references first appear in one digest.

    A long list numbers its own, so that its digest goes on from one call to the next; where its
    references are those of something before it, *links* say so.
    """

    __slots__ = ("lists", "numbers")

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.lists: tuple[dict[Any, int], ...] = ()

    def __bool__(self) -> bool:
        """Tell whether anything was met that depends on what was met before."""
        return bool(self.numbers or self.lists)

    def of(self, reference: object) -> bytes:
        """Return the token that replaces a reference."""
        number = self.numbers.get(reference)
        if number is None:
            for place, table in enumerate(self.lists):
                if reference in table:
                    return b"&%d:%d" % (place, table[reference])
            number = self.numbers[reference] = len(self.numbers)
        return b"&%d" % number

    def take(self, inner: Numbering) -> None:
        """Continue with what another one has numbered, if nothing was met before."""
        if not self:
            self.numbers.update(inner.numbers)
            self.lists += inner.lists

    def attach(self, inner: Numbering) -> bytes:
        """A long list comes next: the links between its references and those before it."""
        links: list[tuple[int, int, int, int]] = []
        if not inner.numbers and not inner.lists:  # as of most lists
            self.lists += (inner.numbers,)
            return b""
        for table in (inner.numbers, *inner.lists):
            for place, known in enumerate((self.numbers, *self.lists)):
                links += [
                    (place, known[each], len(self.lists), table[each])
                    for each in known.keys() & table.keys()
                ]
            self.lists += (table,)
        return b"".join(b"&%d:%d=%d:%d" % link for link in sorted(links))
