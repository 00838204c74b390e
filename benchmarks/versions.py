"""What the versions of steps cost: the first version of a module, each further one, a start again.

The module has 1,000 lines: steps that read a helper, a constant and a class of theirs.

    python benchmarks/versions.py
"""

from __future__ import annotations

import importlib.util
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from stepwise._calls.steps import step_of
from stepwise._identity import following
from stepwise._identity.versions import Version

PIECE = """
PROMPT_{0} = "Answer number {0}, in one sentence."


class Answer_{0}:
    def __init__(self, text):
        self.text = text

    def short(self):
        return self.text[:{0} + 20]


def helper_{0}(text):
    words = [word.strip() for word in text.split()]
    return " ".join(word for word in words if len(word) > {0})


@step
def ask_{0}(question):
    text = helper_{0}(question)
    if not text:
        raise ValueError(question)
    return Answer_{0}(PROMPT_{0} + text).short()
"""
LINES = 1000


def program(folder: str) -> Any:
    """Import a module of that many lines."""
    text, number = "from stepwise import step\n", 0
    while text.count("\n") < LINES:
        text, number = text + PIECE.format(number), number + 1
    file = pathlib.Path(folder) / "asking.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("asking", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["asking"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def took(do: Callable[[], object]) -> float:
    """Return the milliseconds of processor time of a call."""
    began = time.process_time()
    do()
    return (time.process_time() - began) * 1000


def _version(step: Any) -> Version:
    return following.version_of(step.function, step.source)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        module = program(folder)
        steps = [step_of(each) for name, each in vars(module).items() if name.startswith("ask_")]
        firsts, others, again = [], [], []
        for _ in range(9):
            following._modules.clear()
            times = [took(lambda each=each: _version(each)) for each in steps]
            firsts.append(times[0])
            others.append(statistics.median(times[1:]))
            version = _version(steps[0])
            again.append(took(lambda version=version: version.holds(steps[0].source)))
    print(f"first version of a module of {LINES} lines: {min(firsts):.1f} ms")
    print(f"each further step: {min(others) * 1000:.0f} us")
    print(f"a start whose files have not changed: {min(again) * 1000:.0f} us for each step")


if __name__ == "__main__":
    main()
