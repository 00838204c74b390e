"""The command line: ``python tests/programs/equivalence FIRST LAST``."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from equivalence.checker import Differs, Tally, check, check_renamed, check_seeds
from equivalence.programs import write
from equivalence.states import write_states


def main():
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
    last = options.first + 1 if options.last is None else options.last
    began, tally, bad = time.process_time(), Tally(), 0
    features = options.states and options.states.split(",")
    how = {"write": write if features is None else lambda seed: write_states(seed, features)}
    how["check"] = check_renamed if features and "renames" in features else check
    for seed in range(options.first, last):
        if options.show:
            print(how["write"](seed).source)
        try:
            tally.add(check_seeds([seed], sample=options.sample, forked=options.forked, **how))
        except Differs as error:
            bad += 1
            print(error, "\n", "-" * 100, flush=True)
    seconds = time.process_time() - began
    print(f"{tally.programs} programs, {tally.crashes} crashes, {bad} bad, {seconds:.1f} s of CPU")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
