"""A model is asked by the same bytes, whether or not the program was killed before it asked."""

import re

import pytest

pytest.importorskip("openai")
from killing import ALL, KILLS_IN_TOOLS, UNDISTURBED, Disturbance, Trial
from scripted_server import MOMENTS, REQUESTS
from sweeping import some
from test_killed_at_each_request import APART, class_of

BEFORE, MIDDLE, AFTER = MOMENTS
# Each kill repeats a request, so that every second request, counted over all starts, is a new turn.
KILLED_OFTEN = [
    Disturbance(dict(zip((1, 3, 5), moments, strict=True)))
    for moments in ((BEFORE, MIDDLE, BEFORE), (MIDDLE, AFTER, MIDDLE), (AFTER, BEFORE, AFTER))
]
KILLED_ONCE = [*(Disturbance({REQUESTS: each}) for each in MOMENTS), *KILLS_IN_TOOLS]


def variants():
    """The first variant of each program; the last too, where a framework or SDK makes prompts."""
    for program in ALL:
        both = APART == 1 and (program.loop or program.framework in ("openai", "anthropic"))
        for variant in dict.fromkeys((program.variants[0], *program.variants[-1:] * both)):
            marks = class_of(program).pytestmark
            yield pytest.param(program, variant, id=f"{program.file}-{variant}", marks=marks)


@pytest.mark.parametrize(("program", "variant"), [*variants()])
def test_resumed_prompts_are_byte_equal(program, variant, tmp_path):
    """Each request of a program, killed at requests and between them, is an undisturbed one's."""
    asked = {}
    label = f"{program.file} {variant}"
    kills = [*some(KILLED_OFTEN, 1, label), *some(KILLED_ONCE, 2, label)]
    for number, disturbance in enumerate((UNDISTURBED, *kills)):
        with Trial(program, variant, tmp_path / f"{number}") as trial:
            assert trial.run(disturbance) == []
            for each in trial.server.received:
                # An answer that is asked for again has another id: the server counts its answers.
                body = re.sub(r'"msg_\d+"', '"msg_0"', each.body)
                assert asked.setdefault(each.turn, body) == body, f"after {disturbance}"
    assert len(asked) == REQUESTS
