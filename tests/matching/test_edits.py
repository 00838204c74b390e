"""A workflow that was killed, then edited, then run again: what of it still holds.

In notebooks, where a cell is edited and run again: ``test_notebooks.py``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
import restarted
from survival import lab_of, line_of, placed

PROGRAM = """
    def shown(values):
        return "-".join(map(str, values))

    @workflow
    def run(x=1):
        values = [work(1)]
        if x == 1:
            values.append(work(2))
        else:
            values.append(work("never"))
        for n in (3, 4):
            log(f"pass {n}")
            values.append(work(n))
            work(f"after {n}")
        result = shown(values)
        act(result)
        return result
"""


KEEPING = PROGRAM.replace("@workflow", "@workflow(keep=4)")


class Second(NamedTuple):
    """What the second start did: its result, what it logged, what it told about the run."""

    result: object
    log: list
    told: str


def edit(*changes, die_at, program=PROGRAM, code=0):
    """Kill the program there, change its text, and run it again."""
    with lab_of(program) as lab:
        assert lab.run(die_at=f"{die_at} before").died
        before = len(lab.log)
        restarted.edit(lab.script, *changes)
        ended = lab.run()
        assert ended.code == code, ended.text
        return Second(lab.result if code == 0 else None, lab.log[before:], ended.text)


def did(*calls):
    return [f"did work({call}) -> {call if isinstance(call, int) else f'{chr(34)}{call}{chr(34)}'}"
            for call in calls]  # fmt: skip


TRYING = """
    @workflow
    def run():
        values = []
        try:
            values.append(work(1))
            values.append({}["nobody"])
        except KeyError as error:
            if str(error):
                values.append(str("caught"))
        finally:
            values.append("swept"[:0])
            for _ in range(1):
                values.append(str("tidied"))
        log("behind it")
        values.append(work(2))
        return values
"""
STYLE = """
    @workflow(ignore=["style"])
    def run(style="plain"):
        first = work(1)
        return [style, first, work(2)]
"""
THIRD = """
    @workflow
    def run():
        first = work(1)
        second = work(2)
        third = work(3)
        log("between")
        return first + second + work(4) + third
"""
OLDER = PROGRAM.replace("@workflow", "@workflow(keep=9)")
PASSES = ["pass 3", "pass 4"]


class Edit(NamedTuple):
    """An edit between a kill and the next start.

    Args:
        die_at: the call in which it is killed.
        log: with what the log of the second start begins; all of it, if it ends with ``None``.
        told: what is said then, with places as in ``placed``.
    """

    die_at: str
    old: str
    new: str
    result: object
    log: list
    told: tuple = ()
    program: str = PROGRAM


GIVEN_UP = (
    "resumes at <<second =>>, after 1 step (the checkpoint at <<first =>> holds; the one at "
    '<<log("bet>>, after 3 steps, is given up, since the code before <<second =>> has changed)\n'
)


ANNOUNCED = """
    @tool(side_effect=True)
    def announce(text):
        return doing(f"announce({text})", text)
""" + PROGRAM.replace("(work(2))", "(work(2))\n            announce('hi')")


EDITS = {
    # The bug below is fixed and the program run again: it resumes where it was, with new code.
    "below": Edit(
        *("work(after 4)", "result = shown(values)", 'result = "fixed " + shown(values[:2])'),
        "fixed 1-2",
        [*did("after 4"), 'did act(fixed 1-2) -> "fixed 1-2"', None],
        ('resumes at <<work(f"after>>, after 5 steps (the code below it was edited)\n',),
    ),
    # Replays, and what is recorded is not repeated.
    "above": Edit(
        *("work(after 4)", "values = [work(1)]", "values = [work(1), 'new']", "1-new-2-3-4"),
        [*PASSES, *did("after 4")],
        (
            "replays from the top, 5 steps answered by the journal",
            '(the code before <<log(f"pass>> has changed)',
        ),
        KEEPING,
    ),
    "between two checkpoints": Edit(
        *("work(4)", "second = work(2)", "second = work(2) + 1", 11, ["between", *did(4), None]),
        (GIVEN_UP,),
        THIRD,
    ),
    "a default of a parameter that does not tell runs apart": Edit(
        *("work(2)", 'style="plain"', 'style="bold"', ["bold", 1, 2], [*did(2), None]), (), STYLE
    ),
    "a finally above": Edit(
        *("work(2)", '"swept"[:0]', '"swept"', [1, "caught", "swept", "tidied", 2]),
        *(["behind it", *did(2), None], (), TRYING),
    ),
    "a branch of a handler above": Edit(
        *("work(2)", '"caught"', '"edited"', [1, "edited", "", "tidied", 2], [], (), TRYING)
    ),
    "a loop of a finally above": Edit(
        *("work(2)", '"tidied"', '"edited"', [1, "caught", "", "edited", 2], [], (), TRYING)
    ),
    "above, from an older checkpoint": Edit(
        *("work(4)", "values.append(work(2))", "values += [work(2), 'new']", "1-2-new-3-4"),
        [*PASSES, *did(4, "after 4")],
        ("resumes at <<if x == 1>>, after 1 step", "has changed"),
        OLDER,
    ),
    "a branch that was not taken": Edit(
        *("work(4)", 'work("never")', 'work("edited")', "1-2-3-4", did(4)),
        ("resumes at", "after 4 steps"),
    ),
    "the rest of a loop, from this pass on": Edit(
        *("work(after 3)", 'work(f"after {n}")', 'work(f"then {n}")', "1-2-3-4"),
        [*did("then 3"), "pass 4", *did(4)],
        ("after 3 steps (the code below it was edited)",),
    ),
    "the head of the loop, so new items are visited": Edit(
        *("work(4)", "for n in (3, 4):", "for n in (3, 4, 5):", "1-2-3-4-5"),
        [*PASSES, *did(4, "after 4")],
        ("resumes at", "after 1 step "),  # the newest before the loop
        KEEPING,
    ),
    "a step inserted above runs, those recorded do not": Edit(
        *("work(4)", "values = [work(1)]", "values = [work(0), work(1)]", "0-1-2-3-4"),
        [*did(0), *PASSES, *did(4, "after 4"), 'did act(0-1-2-3-4) -> "0-1-2-3-4"', None],
    ),
    "a step taken away above is named": Edit(
        *("work(4)", "values = [work(1)]", "values = []", "2-3-4", []),
        ("recorded steps that were not called again: work x1",),
    ),
    "a side effect taken away above is warned of": Edit(
        *("work(4)", "        announce('hi')\n", "", "1-2-3-4", []),
        ("UnusedRecordWarning", "announce(text='hi')"),
        ANNOUNCED,
    ),
    "other arguments above: that step runs again": Edit(
        *("work(4)", "values.append(work(2))", "values.append(work(22))", "1-22-3-4"),
        [*did(22), *PASSES, *did(4, "after 4")],
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited(name):
    """A run goes on from the newest checkpoint that an edit leaves, and repeats no record."""
    each = EDITS[name]
    second = edit((each.old, each.new), die_at=each.die_at, program=each.program)
    assert second.result == each.result
    log = each.log[:-1] if each.log[-1:] == [None] else each.log
    assert second.log[: len(log)] == log
    assert len(second.log) == len(log) or log is each.log
    for text in each.told:
        assert placed(each.program, text) in second.told


NO_EDITS = {
    "a comment": ("values = [work(1)]", "# the first one\n    values = [work(1)]  # one"),
    "layout": ("values = [work(1)]", "values = [\n\n        work(\n            1),\n    ]"),
    "a docstring": ("values = [work(1)]", '"""What it does."""\n    values = [work(1)]'),
    "type hints": ("def run(x=1):", "def run(x: int = 1) -> str:"),
    "the type of a variable": ("values = [work(1)]", "values: list[int] = [work(1)]"),
    "quotes and parentheses": ('log(f"pass {n}")', "log((f'pass {n}'))"),
    "other functions": ('return "-".join', 'return  "+".join'),
    "code above the function": ("def shown", "UNUSED = 1\n\n\ndef shown"),
    "options of the decorator": ("@workflow\n", "@workflow(checkpoint_every=2)\n"),
}


@pytest.mark.parametrize("name", NO_EDITS)
def test_what_is_no_edit(name):
    """Comments, layout, docstrings, type hints and what lies outside the function do not count."""
    second = edit(NO_EDITS[name], die_at="work(4)")
    assert re.search(r"resumes at script.py:\d+, after 4 steps\n", second.told), second.told
    assert second.log[:2] == did(4, "after 4")


def test_a_failure_that_was_handled_before_the_stop():
    """Stopped behind a handler, and edited above it: the failure is answered, not tried again."""
    program = """
        @step
        def fails():
            doing("fails()", 0)
            raise ValueError("no")

        @workflow
        def run():
            values = [work(1)]
            try:
                fails()
            except ValueError:
                values.append("failed")
            values.append(work(here("behind it") or 2))
            return values
    """
    with lab_of(program) as lab:
        assert lab.run(die_at="behind it").died
        text = lab.script.read_text(encoding="utf-8")
        lab.script.write_text(text.replace("[work(1)]", "[work(1), 'edited']"), encoding="utf-8")
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert "has changed" in ended.text
        assert lab.result == [1, "edited", "failed", 2]
        assert {*lab.did.values()} == {1}


def test_a_pruned_journal():
    """Edited above when the journal was pruned: a clear error, with the choices, and no effect."""
    program = """
        @workflow(prune_journal=True, keep=1)
        def run():
            total = 0
            while total < 500:
                total += len([work(total)])
            return total
    """
    second = edit(("total = 0", "total = 1"), die_at="work(450)", program=program, code=1)
    last = second.told.strip().splitlines()[-1]
    assert last.startswith("stepwise.CodeChangedError: run 'run-")
    assert f"the code before {line_of(program, 'total +=')} has changed" in last
    assert "its journal was pruned" in last
    assert "Bring back the code as it was, or start over: stepwise forget run-" in last
    assert second.log == []
    second = edit(("return total", "return -total"), die_at="work(450)", program=program)
    assert second.result == -500


def test_a_child():
    """An edited child: below its position it goes on there, above it replays the child alone."""
    program = """
        @workflow
        def child(name):
            first = work(f"{name} 1")
            second = work(f"{name} 2")
            return [first, second]

        @workflow
        def run():
            head = work("head")
            return [head, *child("a"), *child("b")]
    """
    second = edit(
        ("return [first, second]", "return [second]"), die_at="work(a 2)", program=program
    )
    assert second.result == ["head", "a 2", "b 2"]
    assert second.log == did("a 2", "b 1", "b 2")
    second = edit(
        ('first = work(f"{name} 1")', "first = work(f\"{name} 1\") + '!'"),
        die_at="work(a 2)",
        program=program,
    )
    assert second.result == ["head", "a 1!", "a 2", "b 1!", "b 2"]
    assert second.log == did("a 2", "b 1", "b 2")


def test_after_it_completed():
    """A completed run gives its recorded result, and says that its code has changed since."""
    with lab_of(PROGRAM) as lab:
        assert lab.run().code == 0
        assert lab.run().text.count("has changed since") == 0
        text = lab.script.read_text(encoding="utf-8")
        lab.script.write_text(text.replace("result = shown(values)", "result = 1"))
        ended = lab.run()
        assert ended.code == 0
        assert lab.result == "1-2-3-4"
        assert {*lab.did.values()} == {1}
        assert "already completed at" in ended.text
        assert "and its code has changed since; this is its recorded result" in ended.text
        for way in ("fresh=True", "run_id=", "STEPWISE_FRESH=1", "stepwise forget run-"):
            assert way in ended.text


def test_brought_back():
    """Edited, run, failed, and brought back: it goes on from what holds each time."""
    with lab_of(PROGRAM) as lab:
        assert lab.run(die_at="work(4) before").died
        text = lab.script.read_text(encoding="utf-8")
        lab.script.write_text(text.replace("values = [work(1)]", "values = [work(1), 1 / 0]"))
        assert lab.run().code == 1
        lab.script.write_text(text)
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result == "1-2-3-4"
        assert {*lab.did.values()} == {1}
