"""The command line: ``python tests/programs/equivalence FIRST [LAST] [--show] [--forked]``."""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from equivalence.checker import Differs, check_seeds
from equivalence.programs import write
from equivalence.states import write_states

parser = argparse.ArgumentParser(description="Check random programs.")
parser.add_argument("first", type=int)
parser.add_argument("last", type=int, nargs="?")
parser.add_argument("--sample", type=int, help="crashes of each kind; all by default")
parser.add_argument("--forked", action="store_true")
parser.add_argument("--show", action="store_true")
parser.add_argument("--states", help="features of agents, as a,b; see the docstring")
options = parser.parse_args()
os.environ["STEPWISE_QUIET"] = "1"
os.environ.setdefault("STEPWISE_HOME", tempfile.mkdtemp())
features = (options.states or "").split(",")
write = functools.partial(write_states, features=features) if options.states else write
bad = 0
for seed in range(options.first, options.last or options.first + 1):
    if options.show:
        print(write(seed).source)
    try:
        print(check_seeds([seed], sample=options.sample, forked=options.forked, write=write))
    except Differs as error:
        bad += 1
        print(error, "\n", "-" * 100, flush=True)
sys.exit(bool(bad))
