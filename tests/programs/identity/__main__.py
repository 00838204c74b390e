"""The command line: ``python tests/programs/identity FIRST [LAST] [--smaller]``."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from identity.judge import KINDS, check_seeds
from identity.programs import draw
from identity.rules import RULES
from identity.smaller import smaller


def main():
    parser = argparse.ArgumentParser(description="Kill random programs of several objects.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--rule", choices=RULES, help="in the library's place")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--smaller", action="store_true", help="reduce what goes wrong")
    options = parser.parse_args()
    last = options.first + 1 if options.last is None else options.last
    if options.show:
        for seed in range(options.first, last):
            print(draw(seed).source)
    began = time.perf_counter()
    seeds, before = range(options.first, last), RULES.get(options.rule, "")
    tally = check_seeds(seeds, kills=options.kills, before=before)
    print(tally.text())
    for kind in KINDS if options.smaller else ():
        worst = tally.smallest(kind)
        if worst is not None:
            print(f"\nmade smaller, with {kind}: {smaller(worst, kind, before).text()}")
    print(f"{time.perf_counter() - began:.1f} s")
    return bool(tally.broken)


if __name__ == "__main__":
    sys.exit(main())
