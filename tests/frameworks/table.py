"""Runs the tests of ``test_killed_at_each_request.py`` and writes what came of them into the docs.

``make frameworks-table``; as many trials as ``tests/programs/sweeping.py`` says (for example
``STEPWISE_SCALE=4``, ``STEPWISE_WHOLE=1``).  Other arguments are pytest's.  The table is replaced
only if all tests have passed.
"""

import collections
import datetime as dt
import pathlib
import re
import sys
from importlib import metadata

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "reference" / "frameworks.md"
sys.path[:0] = [str(HERE), str(HERE.parent / "programs")]

from killing import ALL  # noqa: E402 -- where that is
from scripted_server import REQUESTS  # noqa: E402

DISTRIBUTIONS = {
    "pydantic-ai": "pydantic-ai-slim",
    "LangChain": "langchain",
    "LangGraph": "langgraph",
    "OpenAI Agents SDK": "openai-agents",
}


class Told:
    """What the tests told, by framework."""

    def __init__(self):
        self.killed = collections.defaultdict(list)
        self.control = {}

    def pytest_runtest_logreport(self, report):
        for name, told in report.user_properties if report.when == "call" else ():
            if name == "killed":
                self.killed[told["framework"]].append(told)
            elif name == "control":
                self.control[told["framework"]] = told["repeated"]

    def table(self):
        yield "| framework | version | programs | killed and run again | without `instrument()` |"
        yield "|---|---|---:|---:|---|"
        for program in ALL:
            told = self.killed[program.framework]
            trials = sum(each["trials"] for each in told)
            version = metadata.version(DISTRIBUTIONS.get(program.framework, program.framework))
            plain = self.control.get(program.framework)
            without = "-" if plain is None else f"N + {plain}"
            yield f"| {program.framework} | {version} | {len(told)} | {trials:,} | {without} |"
        every = [each for told in self.killed.values() for each in told]
        trials = sum(each["trials"] for each in every)
        repeated = max(each["repeated"] for each in every)
        today = dt.datetime.now(dt.timezone.utc).date()
        yield ""
        yield (
            f"{today}: {trials:,} trials, N = {REQUESTS}, at most N + {repeated} requests. No tool "
            "that had completed ran twice, no side effect was repeated, and every text was right."
        )


def main():
    told = Told()
    test = HERE / "test_killed_at_each_request.py"
    code = pytest.main(["-q", "--dist=loadscope", str(test), *sys.argv[1:]], plugins=[told])
    if code == 0:
        page = PAGE.read_text(encoding="utf-8")
        table = "\n".join(told.table())
        marked = re.compile(r"(?<=<!-- table -->\n).*?(?=\n<!-- end of table -->)", re.DOTALL)
        PAGE.write_text(marked.sub(lambda _: table, page, count=1), encoding="utf-8")
        print(table)
    return code


if __name__ == "__main__":
    sys.exit(main())
