"""Killed in a loop whose iterator cannot be recorded, a run goes on behind the items it had."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "programs"))

from survival import lab_of, line_of, survives, undisturbed

BAR = """
    class tqdm:
        __module__ = "tqdm.std"

        def __init__(self, iterable, desc="", total=None):
            self.iterable = iterable

        def __iter__(self):
            for item in self.iterable:
                yield item

    tqdm.__qualname__ = "tqdm"
"""
"""A stand-in for the progress bar, which need not be installed."""

LOOP = """
    import csv
    {bar}

    @workflow
    def run():
        import itertools

        names = list(work("abc"))
        ages = dict(zip(names, (1, 2, 3, 4)))
        size = len(names)
        seen = []
        for each in {head}:
            seen.append(each)
            log(f"pass {{each}}")
            work(f"first {{each}}")
            log("between")
            work(f"second {{each}}")
        log("end")
        return [work("end"), len(seen), str(seen)]
"""

HEADS = [
    "tqdm(names[:-1], desc='names', total=size)",
    "enumerate(tqdm(names), 1)",
    "tqdm(ages.items())",
    "tqdm(sorted(names, reverse=True))",
    "itertools.pairwise(names)",
    "itertools.islice(tqdm(itertools.chain(names, ages)), 1, 3)",
    "csv.reader(names)",
]


def loop(head):
    """A program with a loop over that."""
    return LOOP.format(head=head, bar=BAR)


@pytest.mark.parametrize("head", HEADS)
def test_a_loop_that_is_begun_again(head):
    """A loop over what the head makes of variables goes on behind the items that it had given."""
    program = loop(head)
    said = survives(program)
    for call, text in said.items():
        assert "cannot resume" not in text
        assert (f"of the loop at {line_of(program, 'for each in')}" in text) == (
            call != "work(end)"
        )


def test_loops_in_loops():
    """Loops around each other go on, each behind its own items, and begin anew in the next pass."""
    program = f"""
{BAR}

    @workflow
    async def flow(names):
        seen = []
        for one in tqdm(names):
            log(f"one {{one}}")
            for number, two in enumerate(tqdm(names)):
                seen.append(await awork(f"{{one}}{{two}}"))
                if one == two == "b":
                    break
                log(f"two {{number}}")
            else:
                await awork(f"all of {{one}}")
            await awork(f"after {{one}}")
        return seen

    def run():
        return asyncio.run(flow([*"abc"]))
    """
    said = survives(program)
    assert "skips 2 items of the loop" in said["work(bb)"]
    assert said["work(bb)"].count("skips") == 2
    assert said["work(after b)"].count("skips") == 1


BACK = """
    NAMES = [*"ab"]

    class mine:
        class tqdm(tqdm):
            pass

    def turned(names):
        return names[::-1]

    def make(outer):
        @workflow
        def run():
            names, some = list(work("ab")), {{"a", "b"}}
            pairs = [[name] for name in names]
            seen = []
            for each in {head}:
                seen.append(each)
                work(f"first {{each}} {{len(seen)}}")
                {statement}
                work(f"second {{each}} {{len(seen)}}")
            return [work("end"), str(seen), len(outer)]
        return run

    run = make([*"ab"])
"""

REFUSED = {
    "a generator": "tqdm(name for name in names)",
    "a set": "tqdm({*names})",
    "a set in a variable": "tqdm(some)",
    "a global variable": "tqdm(NAMES)",
    "a variable of an enclosing function": "tqdm(outer)",
    "a function that is not known": "tqdm(turned(names))",
    "a class of that name": "mine.tqdm(names)",
    "a function that is given": "tqdm(sorted(names, key=turned))",
    "what is sorted by its contents": "tqdm(sorted(pairs))",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_loop_that_goes_back(case):
    """Where the items might be others, a kill sets it back to before the loop, which is said."""
    program = BAR + BACK.format(head=REFUSED[case], statement="pass")
    said = survives(program, exactly=False)
    *inside, _ = said
    assert not [call for call in said if "skips" in said[call]]
    assert any("cannot resume inside the loop" in said[call] for call in inside)


@pytest.mark.parametrize("statement", ["names.append('c')", "names = [*names]"])
def test_a_loop_over_a_variable_that_changes(statement):
    """Once a variable of the head is another, a kill sets it back to before the change."""
    program = BAR + BACK.format(
        head="tqdm(names)", statement=f"if each == 'b':\n                    {statement}"
    )
    said = survives(program, exactly=False)
    for call in ("work(second a 1)", "work(first b 2)", "work(second b 2)"):
        assert "skips" in said[call], call
    assert "'names' changed since it began" in said["work(first b 2)"]


@pytest.mark.parametrize("head", ["iterrows()", "groupby('age')"])
def test_a_loop_over_a_data_frame(head):
    """A loop over a frame's rows goes on behind those it had, unless the frame was changed."""
    pytest.importorskip("pandas")
    program = f"""
        import pandas

        @workflow
        def run():
            frame = pandas.DataFrame({{"name": list(work("abc")), "age": [0, 1, 2]}})
            seen = []
            for index, part in frame.{head}:
                seen.append(str(part.name))
                work(f"first {{index}}")
                if index == 1:
                    frame.loc[2, "name"] = "changed"
                work(f"second {{index}}")
            return [seen, str(frame), work("end")]
    """
    expected, _ = undisturbed(program)
    with lab_of(program) as lab:
        assert lab.run(die_at="work(first 1) before").died
        second = lab.run(die_at="work(first 2) before")
        assert second.died
        assert "skips 2 items" in second.text
        assert "'frame' changed since it began" in second.text
        assert "skips 2 items" in lab.run().text
        assert lab.result == expected
        assert {*lab.did.values()} == {1}
