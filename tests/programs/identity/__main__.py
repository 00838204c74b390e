"""The command line: ``python tests/programs/identity FIRST [LAST] [--rule RULE] [--show]``."""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from identity.judge import check_seeds
from identity.programs import draw
from identity.rules import RULES

parser = argparse.ArgumentParser(description="Kill random programs of several objects.")
parser.add_argument("first", type=int)
parser.add_argument("last", type=int, nargs="?")
parser.add_argument("--kills", type=int, default=3)
parser.add_argument("--rule", choices=RULES, help="in the library's place")
parser.add_argument("--show", action="store_true")
options = parser.parse_args()
seeds = range(options.first, options.last or options.first + 1)
if options.show:
    print(*(draw(seed).source for seed in seeds), sep="\n")
tally = check_seeds(seeds, kills=options.kills, before=RULES.get(options.rule, ""))
print(tally.text())
sys.exit(bool(tally.broken))
