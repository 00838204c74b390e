"""A model is asked by the same bytes, whether or not the program was killed before it asked."""

import pytest

pytest.importorskip("openai")
from killing import ALL, KILLS_IN_TOOLS, UNDISTURBED, Disturbance, Trial
from scripted_server import REQUESTS
from test_killed_at_each_request import APART, class_of

KILLS = [Disturbance({REQUESTS: "before"}), KILLS_IN_TOOLS[-1]]


def variants():
    """The first variant of each program; the last too, where a framework makes the prompts."""
    for program in ALL:
        last = program.variants[-1:] if program.loop and APART == 1 else ()
        for variant in (program.variants[0], *last):
            marks = class_of(program).pytestmark
            yield pytest.param(program, variant, id=f"{program.file}-{variant}", marks=marks)


@pytest.mark.parametrize(("program", "variant"), [*variants()])
def test_resumed_prompts_are_byte_equal(program, variant, tmp_path):
    """Each request of a program that is killed and resumed is that of an undisturbed one."""
    asked = {}
    for disturbance in (UNDISTURBED, *KILLS):
        with Trial(program, variant, tmp_path / f"{len(asked)}{disturbance.tool[:3]}") as trial:
            assert trial.run(disturbance) == []
            for each in trial.server.received:
                assert asked.setdefault(each.turn, each.body) == each.body
    assert len(asked) == REQUESTS
