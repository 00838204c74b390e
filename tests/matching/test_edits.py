"""A workflow that was killed, then edited, then run again: what of it still holds.

In notebooks, where a cell is edited and run again: ``test_notebooks.py``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from survival import lab_of, line_of

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
        before, text = len(lab.log), lab.script.read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        lab.script.write_text(text, encoding="utf-8")
        ended = lab.run()
        assert ended.code == code, ended.text
        return Second(lab.result if code == 0 else None, lab.log[before:], ended.text)


def did(*calls):
    return [f"did work({call}) -> {call if isinstance(call, int) else f'{chr(34)}{call}{chr(34)}'}"
            for call in calls]  # fmt: skip


def test_below():
    """The bug below is fixed and the program run again: it resumes where it was, with new code."""
    fixed = ("result = shown(values)", 'result = "fixed " + shown(values[:2])')
    second = edit(fixed, die_at="work(after 4)")
    assert second.result == "fixed 1-2"
    assert second.log == [*did("after 4"), 'did act(fixed 1-2) -> "fixed 1-2"']
    where = line_of(PROGRAM, 'work(f"after')
    assert f"resumes at {where}, after 5 steps (the code below it was edited)\n" in second.told


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


def test_above():
    """An edit above the position: it replays from the top, and what is recorded is not repeated."""
    change = "values = [work(1)]", "values = [work(1), 'new']"
    second = edit(change, die_at="work(after 4)", program=KEEPING)
    assert second.result == "1-new-2-3-4"
    assert second.log[:3] == ["pass 3", "pass 4", *did("after 4")]
    assert "replays from the top, 5 steps answered by the journal" in second.told
    where = line_of(PROGRAM, 'log(f"pass')
    assert f"(the code before {where} has changed)" in second.told


def test_a_default():
    """An edited default counts, also that of a parameter which does not tell runs apart."""
    program = """
        @workflow(ignore=["style"])
        def run(style="plain"):
            first = work(1)
            return [style, first, work(2)]
    """
    second = edit(('style="plain"', 'style="bold"'), die_at="work(2)", program=program)
    assert second.result == ["bold", 1, 2]
    assert second.log == did(2)


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


def test_a_finally_above():
    """An edit in a ``finally`` above the position counts, as any code that was executed does."""
    program = """
        @workflow
        def run():
            values = []
            try:
                values.append(work(1))
            finally:
                values.append("tidied")
            log("behind it")
            values.append(work(2))
            return values
    """
    second = edit(('"tidied"', '"swept"'), die_at="work(2)", program=program)
    assert second.result == [1, "swept", 2]
    assert second.log == ["behind it", *did(2)]


@pytest.mark.parametrize("old", ['"caught"', '"tidied"'])
def test_a_branch_of_a_handler_above(old):
    """So does an edit in a branch within a handler or ``finally``, which are one piece each."""
    program = """
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
                for _ in range(1):
                    values.append(str("tidied"))
            values.append(random.random() < 2)
            values.append(work(2))
            return values
    """
    second = edit((old, '"edited"'), die_at="work(2)", program=program)
    assert "edited" in second.result


def test_from_an_older_checkpoint():
    """An edited run resumes at the newest checkpoint above the edit, and replays the rest."""
    program = PROGRAM.replace("@workflow", "@workflow(keep=9)")
    second = edit(
        ("values.append(work(2))", "values += [work(2), 'new']"), die_at="work(4)", program=program
    )
    assert second.result == "1-2-new-3-4"
    assert second.log[:4] == ["pass 3", "pass 4", *did(4, "after 4")]
    assert f"resumes at {line_of(program, 'if x == 1')}, after 1 step" in second.told
    assert "has changed" in second.told


def test_a_branch_not_taken():
    """An edit in a branch that this run did not take does not count."""
    second = edit(('work("never")', 'work("edited")'), die_at="work(4)")
    assert "resumes at" in second.told
    assert "after 4 steps" in second.told
    assert second.log[:1] == did(4)


def test_the_rest_of_a_loop():
    """The edited rest of a loop's body applies from this pass on, and the line says so."""
    second = edit(('work(f"after {n}")', 'work(f"then {n}")'), die_at="work(after 3)")
    assert second.log[:3] == [*did("then 3"), "pass 4", *did(4)]
    assert "after 3 steps (the code below it was edited)" in second.told


def test_the_head_of_a_loop():
    """An edited head of the loop it was in: it replays, and new items are visited."""
    change = "for n in (3, 4):", "for n in (3, 4, 5):"
    second = edit(change, die_at="work(4)", program=KEEPING)
    assert second.result == "1-2-3-4-5"
    assert "resumes at" in second.told
    assert "after 1 step " in second.told  # the newest before the loop
    assert second.log[:4] == ["pass 3", "pass 4", *did(4, "after 4")]


def test_a_step_inserted_above():
    """A step inserted above runs; those recorded do not run again."""
    second = edit(("values = [work(1)]", "values = [work(0), work(1)]"), die_at="work(4)")
    assert second.result == "0-1-2-3-4"
    assert second.log == [*did(0), "pass 3", "pass 4", *did(4, "after 4"),
                          'did act(0-1-2-3-4) -> "0-1-2-3-4"']  # fmt: skip


def test_a_step_taken_away():
    """A step taken away above is named as not met again; a side effect is warned of."""
    announce = """
    @tool(side_effect=True)
    def announce(text):
        return doing(f"announce({text})", text)
    """
    program = announce + PROGRAM.replace("(work(2))", "(work(2))\n            announce('hi')")
    second = edit(("        announce('hi')\n", ""), die_at="work(4)", program=program)
    assert second.result == "1-2-3-4"
    assert "UnusedRecordWarning" in second.told
    assert "announce(text='hi')" in second.told
    second = edit(("values = [work(1)]", "values = []"), die_at="work(4)")
    assert "recorded steps that were not called again: work x1" in second.told


def test_other_arguments_above():
    """An edited prompt is a new call: that step runs again, the others do not."""
    second = edit(("values.append(work(2))", "values.append(work(22))"), die_at="work(4)")
    assert second.result == "1-22-3-4"
    assert second.log[:5] == [*did(22), "pass 3", "pass 4", *did(4, "after 4")]


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
