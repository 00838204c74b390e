"""The JSON text of the commonest headers, byte for byte as :func:`.seal.to_json` writes them.

``json`` takes a third of the time that it takes to record a plain call.  Most facts of an intent,
an outcome and a checkpoint are empty or short, so their text is put together from a template; a
fact that is anything else goes through ``json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from math import isfinite
from typing import Any

from stepwise._journal.records import Call, Intent, Outcome, Record, to_header
from stepwise._journal.seal import to_json

__all__ = [
    "counts_text",
    "list_text",
    "mapping_text",
    "quoted",
    "record_text",
    "truth_text",
]

_EMPTY = '""'
_last: tuple[Call | None, str] = (None, "")  # an announced call, and its text


def record_text(record: Record) -> str:
    """Return the header of a record as text."""
    if isinstance(record, Outcome):
        return _outcome_text(record)
    if isinstance(record, Intent):
        call, form, ticket = record
        form_text = "null" if form is None else quoted(form)
        return f'["intent",{_call_text(call)},{form_text},{quoted(ticket)}]'
    return to_json(to_header(record))


def _outcome_text(record: Outcome) -> str:
    (
        call, status, attempts, clean, inner, preview, traceback, changed, form, at, state,
        awaited, usage, message, spent,
    ) = record  # fmt: skip
    begun = f'["outcome",{_call_text(call)},'
    if (
        clean or inner or traceback or changed or state or awaited or usage or message
        or form is not None or not isfinite(at)
    ):  # fmt: skip
        return begun + to_json(record[1:])[1:]
    return (
        f'{begun}"{status}",{attempts},false,[],{quoted(preview)},"",{{}},null,{at!r},[],"",{{}},'
        f"0,{to_json(spent) if spent else '{}'}]"
    )


def _call_text(call: Call) -> str:
    """Return the text of a call; a side effect's outcome has the same as its intent before."""
    global _last  # noqa: PLW0603
    last, text = _last
    if last is not call:
        text = _made_call_text(call)
        if call.effect:
            _last = call, text
    return text


def _made_call_text(call: Call) -> str:
    (
        number, name, module, digest, ordinal, scope, unwinding, place, site, arguments,
        effect, key, child, began, branch, serial, parts, instead, code, around,
    ) = call  # fmt: skip
    callee, where = _constant_texts(name, module, scope, unwinding, place, site)
    kind = 'false,"",""'
    if effect or key or child:
        kind = f"{truth_text(effect)},{quoted(key)},{quoted(child)}"
    texts = ",".join([f"{quoted(each)}:{quoted(text)}" for each, text in parts.items()])
    return (
        f"[{number},{callee},{quoted(digest)},{ordinal},{where},{quoted(arguments)},{kind},"
        f"{repr(began) if isfinite(began) else to_json(began)},"
        f"{quoted(branch) if branch else _EMPTY},{serial},{{{texts}}},{instead},"
        f"{quoted(code) if code else _EMPTY},{list_text(around)}]"
    )


@lru_cache(256)
def _constant_texts(
    name: str, module: str, scope: str, unwinding: int | None, place: str, site: str
) -> tuple[str, str]:
    """Return the texts of facts that all calls of one line have in common."""
    handled = "null" if unwinding is None else unwinding
    callee = f"{quoted(name)},{quoted(module)}"
    return callee, f"{quoted(scope)},{handled},{quoted(place)},{quoted(site)}"


def truth_text(truth: bool) -> str:
    """Return a truth value."""
    return "true" if truth else "false"


def list_text(items: Sequence[Any]) -> str:
    """Return a list that is mostly empty."""
    return to_json(items) if items else "[]"


def mapping_text(items: Mapping[str, Any]) -> str:
    """Return a mapping that is mostly empty."""
    return to_json(items) if items else "{}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return a mapping of texts to whole numbers."""
    return f"{{{','.join([f'{quoted(name)}:{n}' for name, n in counts.items()])}}}"
