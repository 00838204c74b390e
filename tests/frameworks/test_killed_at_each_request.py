"""Agent programs of each framework, killed at each request and in each tool, and run again.

``python tests/frameworks/table.py`` runs these tests and writes what came of them into the docs.
"""

import importlib.util

import pytest

pytest.importorskip("openai")
from killing import ALL, Disturbance, Program, Trial, disturbances
from scripted_server import REQUESTS
from sweeping import SCALE, WHOLE

APART = 1 if SCALE >= 1 or WHOLE else 4  # of the variants, in a small sample


def pytest_generate_tests(metafunc):
    variants = metafunc.cls.program.variants
    if "each_variant" in metafunc.fixturenames:
        metafunc.parametrize("each_variant", variants[::APART])
    elif "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", variants[:1])


class KilledAtEachRequest:
    """The tests of a framework, in a class of their own: one worker loads it (``loadscope``)."""

    program: Program

    def test_each_request_is_made_once(self, each_variant, tmp_path, record_property):
        """Killed at a request or in a tool and run again: N + 1 requests, each tool once."""
        program = self.program
        with Trial(program, each_variant, tmp_path / "undisturbed") as trial:
            assert trial.run() == []
            assert trial.requests == REQUESTS
        killed = disturbances(program, each_variant)
        wrong, repeated = {}, 0
        for number, disturbance in enumerate(killed):
            # Where the answers of the model differ, all that follows shows a repeated request.
            numbered = bool(number % 2)
            with Trial(program, each_variant, tmp_path / f"{number}", numbered=numbered) as trial:
                wrong[f"{disturbance}, {numbered=}"] = trial.run(disturbance)
                repeated = max(repeated, trial.requests - REQUESTS - trial.faults)
        assert {how: what for how, what in wrong.items() if what} == {}
        told = {"framework": program.framework, "trials": len(killed), "repeated": repeated}
        record_property("killed", told)

    def test_a_limit_is_no_answer(self, variant, tmp_path):
        """A program that failed for a server that is down, or limits it, later ends well."""
        limited = self.program.framework != "smolagents"  # which waits minutes for a limit
        with Trial(self.program, variant, tmp_path / "down") as trial:
            trial.server.plan = {1: "", 0: "429" if limited else "500"}
            assert trial.start().code == 1
            failed = trial.requests - 1
            assert failed == trial.faults > 0
            assert trial.run() == [], "the recorded failure answered"
            assert trial.requests == REQUESTS + failed

    def test_the_control(self, variant, tmp_path, record_property):
        """Without ``instrument()``, these trials find repeated requests, and doubts."""
        program, late = self.program, Disturbance({REQUESTS: "before"})
        if not program.loop:
            pytest.skip("a loop of one's own resumes inside")
        with Trial(program, variant, tmp_path / "plain", plain=True) as trial:
            assert "requests, by turn" in str(trial.run(late))
            repeated = trial.requests - REQUESTS
        with Trial(program, variant, tmp_path / "numbered", plain=True, numbered=True) as trial:
            assert "StepInDoubtError" in str(trial.run(late))
        record_property("control", {"framework": program.framework, "repeated": repeated})


def class_of(program):
    """The tests of a framework; skipped where a module that it needs is not installed."""
    roots = {name.split(".")[0] for name in program.modules}
    missing = sorted(name for name in roots if importlib.util.find_spec(name) is None)
    skipped = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
    name = "Test" + "".join(filter(str.isalnum, program.framework.title()))
    return skipped(type(name, (KilledAtEachRequest,), {"program": program}))


globals().update({made.__name__: made for made in map(class_of, ALL)})
