"""Runs the sweeps and writes what came of them into ``docs/reliability.md``: ``make sweeps``.

As much of each sweep as ``tests/programs/sweeping.py`` says (``STEPWISE_SCALE=5``,
``STEPWISE_WHOLE=1``).  Other arguments are pytest's: ``python tests/sweeps.py -n 2``.  The table is
replaced only if all have passed.  The negative controls of the sweeps run with ``make test``
and ``make test-programs``.
"""

import collections
import datetime as dt
import os
import pathlib
import platform
import random
import re
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "reliability.md"

# The same in every process of pytest-xdist.
os.environ.setdefault("STEPWISE_SEED", str(random.SystemRandom().randrange(10**6)))
sys.path.insert(0, str(HERE / "programs"))
from sweeping import SCALE, SEED, WHOLE  # noqa: E402


class Totals:
    """Adds up what ``tally(...)`` told, by sweep."""

    def __init__(self):
        self.sweeps = collections.defaultdict(lambda: [0, collections.Counter()])

    def pytest_runtest_logreport(self, report):
        for name, told in report.user_properties if report.when == "call" else ():
            if name == "sweep":
                total = self.sweeps[told["sweep"]]
                total[0] += told["trials"]
                total[1].update(told["results"])

    def table(self):
        times = "" if SCALE == 1 else f"{SCALE:g} times "
        size = "whole, or 20 times the sample" if WHOLE else f"{times}the sample of CI"
        today = dt.datetime.now(dt.timezone.utc).date()
        python = f"Python {platform.python_version()}"
        yield f"{today}, {platform.system()}, {python}; {size}; seed {SEED}"
        yield ""
        yield "| sweep | trials | how they ended |"
        yield "|---|---:|---|"
        for name, (trials, results) in self.sweeps.items():
            ends = ", ".join(f"{n:,} {key.replace('_', ' ')}" for key, n in results.items())
            yield f"| {name} | {trials:,} | {ends or 'all right'} |"
        trials = sum(total[0] for total in self.sweeps.values())
        yield f"| together | {trials:,} | 0 wrong, 0 lost, 0 doubled |"


def main():
    totals = Totals()
    where = [] if any(os.path.exists(word) for word in sys.argv[1:]) else [str(HERE)]
    code = pytest.main([*where, "--sweeps", "-q", *sys.argv[1:]], [totals])
    lines = "\n".join(totals.table())
    print(lines)
    if code == 0 and totals.sweeps:
        text = PAGE.read_text(encoding="utf-8")
        marks = r"(<!-- sweeps -->\n).*(<!-- end -->)"
        PAGE.write_text(
            re.sub(marks, lambda m: f"{m[1]}\n{lines}\n\n{m[2]}", text, flags=re.DOTALL),
            encoding="utf-8",
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
