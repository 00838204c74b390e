"""The services and the model that the broken programs talk to.

Their answers stand in ``outside.json``, which nobody who looks for a cause gets to see: so is it
with the answers of a real service.
"""

from __future__ import annotations

import asyncio
import copy
import json
import pathlib
import re
import sys

_HERE = pathlib.Path(__file__).with_suffix(".json")
_KNOWN = json.loads(_HERE.read_text(encoding="utf-8"))[pathlib.Path(sys.argv[0]).stem]
_asked: dict[str, int] = {}
_together = asyncio.Event()


def _first(rules, text, matching):
    """Return the answer of the first rule that matches, with what its groups have found."""
    for pattern, answer in rules:
        found = matching(pattern, text, re.DOTALL)
        if found is not None:
            return _filled(answer, found)
    raise LookupError(f"there is no answer to {text!r}")


def _filled(answer, found):
    if isinstance(answer, str):
        return found.expand(answer)
    if isinstance(answer, list):
        return [_filled(each, found) for each in answer]
    if isinstance(answer, dict):
        return {name: _filled(each, found) for name, each in answer.items()}
    return answer


def get(path):
    """Return the answer of a service; one with several answers gives one after the other."""
    answers = _KNOWN["services"].get(path)
    if answers is None:
        answers = _first(_KNOWN["others"], path, re.fullmatch)
    number = _asked[path] = _asked.get(path, 0) + 1
    answer = answers
    if isinstance(answers, dict) and "each" in answers:
        answer = answers["each"][number - 1]
    if answer == "down":
        raise ConnectionError(f"{path}: 503 Service Unavailable")
    return copy.deepcopy(answer)


async def get_slowly(path):
    """Return the answer of a service that has two callers at a time."""
    answer = get(path)
    if _asked[path] == 2:
        _together.set()
    await _together.wait()
    return answer


def put(path, value):
    """Set what a service answers from now on."""
    _KNOWN["services"][path] = value
    return "ok"


def chat(messages):
    """Return the reply of the model: that of the first pattern found in the messages."""
    text = "\n".join(f"{each['role']}: {each['content']}" for each in messages)
    return _first(_KNOWN["model"], text, re.search)
