"""The JSON text of the commonest headers, byte for byte as :func:`.seal.to_json` writes them.

``json`` takes a third of the time that it takes to record a plain call.  Most facts of an outcome
and of a checkpoint are empty or short, so their text is put together from a template; a fact that
is anything else goes through ``json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from math import isfinite
from typing import Any

from stepwise._journal.records import Outcome, Record, to_header
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


def record_text(record: Record) -> str:
    """Return the header of a record as text."""
    if type(record) is Outcome and isfinite(record.at + record.call.at):
        return _outcome_text(record)
    return to_json(to_header(record))


def _outcome_text(record: Outcome) -> str:
    (
        (
            number, name, module, digest, ordinal, scope, unwinding, place, site, arguments,
            effect, key, child, began, branch, serial, parts, instead,
        ),
        status, attempts, clean, inner, preview, traceback, changed, form, at, state,
        awaited, usage, message, spent,
    ) = record  # fmt: skip
    return (
        f'["outcome",[{number},{_names_text(name, module)},{quoted(digest)},{ordinal},'
        f"{_site_text(scope, unwinding, place, site)},{quoted(arguments)},"
        f"{'true' if effect else 'false'},{quoted(key) if key else _EMPTY},"
        f"{quoted(child) if child else _EMPTY},{began!r},{quoted(branch) if branch else _EMPTY},"
        f'{serial},{texts_text(parts)},{instead}],"{status}",{attempts},'
        f"{'true' if clean else 'false'},{to_json(inner) if inner else '[]'},{quoted(preview)},"
        f"{quoted(traceback) if traceback else _EMPTY},{to_json(changed) if changed else '{}'},"
        f"{'null' if form is None else quoted(form)},{at!r},"
        f"{to_json(state) if state else '[]'},{quoted(awaited) if awaited else _EMPTY},"
        f"{to_json(usage) if usage else '{}'},{message},{to_json(spent) if spent else '{}'}]"
    )


@lru_cache(256)
def _names_text(name: str, module: str) -> str:
    return f"{quoted(name)},{quoted(module)}"


@lru_cache(256)
def _site_text(scope: str, unwinding: int | None, place: str, site: str) -> str:
    handled = "null" if unwinding is None else unwinding
    return f"{quoted(scope)},{handled},{quoted(place)},{quoted(site)}"


def truth_text(truth: bool) -> str:
    """Return a truth value."""
    return "true" if truth else "false"


def list_text(items: Sequence[Any]) -> str:
    """Return a list that is mostly empty."""
    return to_json(items) if items else "[]"


def mapping_text(items: Mapping[str, Any]) -> str:
    """Return a mapping that is mostly empty."""
    return to_json(items) if items else "{}"


def texts_text(texts: Mapping[str, str]) -> str:
    """Return a mapping of texts to texts."""
    return f"{{{','.join([f'{quoted(name)}:{quoted(text)}' for name, text in texts.items()])}}}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return a mapping of texts to whole numbers."""
    return f"{{{','.join([f'{quoted(name)}:{n}' for name, n in counts.items()])}}}"
