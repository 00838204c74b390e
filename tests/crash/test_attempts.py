"""Steps in steps that fail, are retried and are killed: a side effect happens once.

The programs, and the model that says how often each part happens, are ``programs/attempts.py``.
"""

import itertools
import json
import os

import attempts
import pytest
from attempts import Model, World, named, program
from harness import python
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st
from sweeping import SEED, many

from stepwise.testing import fresh_store

PATTERNS = st.sampled_from(["1", "01", "11", "101", "0"])


def shapes(*kinds):
    """Programs of steps, of which each part is one of these kinds."""
    leaves = st.one_of(*kinds)
    inner = st.lists(leaves, min_size=1, max_size=5)
    for _ in range(2):
        nested = st.tuples(st.just("step"), st.integers(0, 2), inner)
        inner = st.lists(st.one_of(leaves, nested), min_size=1, max_size=5)
    step = st.tuples(st.just("step"), st.integers(0, 2), inner)
    return st.lists(st.one_of(step, *kinds[:2]), min_size=1, max_size=3)


CALLS = st.tuples(st.just("plain")), st.tuples(st.just("effect"))
FAILS = st.tuples(st.just("fail"), PATTERNS)
KILLS = st.tuples(st.just("kill"), st.sampled_from(["1", "01", "001"]))


def check(parts, folder, run):
    """Run it to its end: each part happens as often as the model says, a side effect once."""
    model = Model()
    result, starts = model.to_end(parts)
    for _ in range(starts):
        ended = run()
    assert ended == result
    found = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    assert found == model.counts
    assert {n for name, n in found.items() if name.startswith("effect")} <= {1}


EARLIER = ("step", 1, [("plain",), ("fail", "01"), ("fail", "01"), ("effect",)])


@settings(max_examples=many(60, 1000))
@given(shape=shapes(*CALLS, FAILS))
@example(shape=[("step", 0, [EARLIER, ("fail", "1")])])  # attempts that end before the effect
@example(shape=[("step", 1, [EARLIER, ("fail", "11")])])
def test_failing_steps(shape, tmp_path_factory):
    """Plain calls after a failed attempt's last side effect run again, and nothing else does."""
    parts, folder = named(shape, itertools.count(1)), tmp_path_factory.mktemp("world")

    def run():
        try:
            return program.options(run_id="r")(parts)
        except attempts.Failed:
            return None

    attempts.world = World(folder)
    with fresh_store():
        check(parts, folder, run)


@seed(SEED)
@settings(max_examples=many(8, 400))
@given(shape=shapes(*CALLS, FAILS, KILLS))
def test_failing_steps_that_are_killed(shape, tmp_path_factory):
    """A process that is killed in an attempt, or between two, decides as one that is not."""
    parts, folder = named(shape, itertools.count(1)), tmp_path_factory.mktemp("world")
    check(parts, folder, lambda: started(folder, parts))


def started(folder, parts):
    """Run the program in a process of its own; ``None`` if it failed or was killed."""
    env = {**os.environ, "STEPWISE_HOME": str(folder / "home")}
    done = python(attempts.__file__, folder, json.dumps(parts), env=env)
    assert done.returncode in (0, 3, -9), done.stderr
    return json.loads(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("where", range(5))
@pytest.mark.parametrize("pattern", ["1", "01"])
def test_a_kill_at_each_place(where, pattern, tmp_path):
    """Whether the kill comes before, between or after two attempts, nothing is done twice."""
    parts = [["plain", "1"], ["effect", "2"], ["plain", "3"], ["fail", "4", "1"]]
    parts.insert(where, ["kill", "5", pattern])
    whole = [["step", "6", 2, parts]]
    check(whole, tmp_path, lambda: started(tmp_path, whole))
