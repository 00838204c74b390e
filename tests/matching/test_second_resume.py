"""A run that was stopped twice: what the second start had from the first, the third has too."""

from __future__ import annotations

import pytest
from survival import lab_of

import stepwise
from stepwise import step, workflow


def start(lab, *, die_at="", **environment):
    """Start the program; it must die there, or else complete."""
    lab.environment.update(environment)
    ended = lab.run(die_at=die_at)
    assert ended.died if die_at else ended.code == 0, ended.text
    return ended.text


def test_an_effect_that_was_not_met_again_outlives_pruning():
    """A recorded side effect that the second start did not come to answers the third one."""
    program = """
        import os

        def early():
            if os.environ["WAY"] == "early":
                act("pay")
                work("die")

        @workflow(prune_journal=True, keep=1)
        def run():
            work("begin")
            early()
            for n in range(450):
                work(n)
            return act("pay")
    """
    with lab_of(program) as lab:
        start(lab, die_at="work(die) before", WAY="early")
        start(lab, die_at="work(449) before", WAY="late")
        start(lab)
        assert lab.result == "pay"
        assert lab.did["act(pay)"] == 1


BRANCH = """
    @workflow
    def run():
        values = []
        if work(1) == 1:
            values.append(work(2))
            values.append("in the branch")
        log("behind it")
        values.append(work(3))
        values.append(work(4))
        return values
"""


def test_a_branch_that_was_entered_before_the_first_stop_still_counts():
    """An edit in a branch that only the first attempt went through is noticed by the third."""
    with lab_of(BRANCH) as lab:
        start(lab, die_at="work(3) before")
        start(lab, die_at="work(4) before")
        text = lab.script.read_text(encoding="utf-8")
        lab.script.write_text(text.replace("in the branch", "edited"), encoding="utf-8")
        told = start(lab)
        assert lab.result == [2, "edited", 3, 4]
        assert "has changed" in told
        assert {*lab.did.values()} == {1}


@pytest.mark.parametrize("edited", [False, True], ids=["as it was", "edited"])
def test_a_branch_that_is_entered_later_is_no_edit(edited):
    """A loop whose later pass entered a branch resumes behind it, unless the branch was edited."""
    program = """
        @workflow(keep=1)
        def run():
            total = 0
            for n in range(4):
                if n == 2:
                    total += work("odd") == "odd"
                log(f"pass {n}")
                total += work(n)
            return total
    """
    with lab_of(program) as lab:
        start(lab, die_at="work(3) before")
        text = lab.script.read_text(encoding="utf-8")
        if edited:
            lab.script.write_text(text.replace('== "odd"', '!= "even"'), encoding="utf-8")
        told = start(lab)
        assert ("has changed" in told) == edited
        assert ("replays from the top" in told) == edited
        assert lab.result == 7
        assert {*lab.did.values()} == {1}


def test_numbers_of_calls_are_never_used_twice():
    """A run that was stopped inside a plain step counts its calls on from the checkpoint."""
    stops = [0, 0]

    @step
    def think(text):
        if stops and text == "c":
            stops.pop()
            raise KeyboardInterrupt
        return text

    @workflow
    def agent():
        done = [think(text) for text in "ab"]
        done.append(think("c"))
        return [*done, think("d")]

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            agent()
    assert agent() == [*"abcd"]
    (run,) = stepwise.runs()
    assert [each.number for each in run.steps] == [*{each.number for each in run.steps}]
    assert [each.arguments for each in run.steps] == [f"text={text!r}" for text in "abcd"]
