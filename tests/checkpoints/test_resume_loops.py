"""Killed in a loop whose iterator cannot be recorded, a run resumes behind the items it had."""

from __future__ import annotations

import itertools
import os

import pytest
from survival import lab_of, line_of, needs, survives, undisturbed
from sweeping import WHOLE, some

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


def goes_on_in_the_loop(program):
    """Fail unless a run skips the items that it had, wherever it is killed in the loop."""
    for call, text in survives(program, kills=1).items():
        assert "cannot resume" not in text
        where = f"of the loop at {line_of(program, 'for each in')}"
        assert (where in text) == (call != "work(end)")


def goes_back(program):
    """Fail unless a kill in the loop sets a run back to before the loop, which is said."""
    said = survives(program, exactly=False, kills=0)
    for call in some(said.calls[:-1], 2, program):
        assert "skips" not in said[call]
    assert any("cannot resume inside the" in said[call] for call in said.calls[:-1])


@pytest.mark.parametrize("head", HEADS)
def test_a_loop_that_is_begun_again(head):
    """A loop over what the head makes of variables goes on behind the items that it had given."""
    program = loop(head)
    goes_on_in_the_loop(program)


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
    said = survives(program, kills=0)
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
            return [work("end"), str(sorted(seen)), len(outer)]
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
    """Where the items might be others, a kill sets it back to before the loop, which is said.

    A set that was pickled may give its items in another order, so the result does not hold it.
    """
    goes_back(BAR + BACK.format(head=REFUSED[case], statement="pass"))


@pytest.mark.parametrize("statement", ["names.append('c')", "names = [*names]"])
def test_a_loop_over_a_variable_that_changes(statement):
    """Once a variable of the head is another, a kill sets it back to before the change."""
    program = BAR + BACK.format(
        head="tqdm(names)", statement=f"if each == 'b':\n                    {statement}"
    )
    said = survives(program, exactly=False, kills=0)
    for call in ("work(second a 1)", "work(first b 2)", "work(second b 2)"):
        assert "skips" in said[call], call
    assert "'names' changed since it began" in said["work(first b 2)"]


@pytest.mark.parametrize("head", ["iterrows()", "groupby('age')"])
def test_a_loop_over_a_data_frame(head):
    """A loop over a frame's rows goes on behind those it had, unless the frame was changed."""
    needs("pandas")
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


FILE = """
    import csv
    import gc
    import pathlib
    {bar}

    MADE, DATA = (pathlib.Path(__file__).with_name(name) for name in ("made", "data"))
    if not MADE.exists():
        MADE.touch()
        DATA.write_bytes({data!r})

    def still_open():
        files = [file for file in gc.get_objects() if type(file).__name__ == "FileIO"]
        return [str(file) for file in files if not file.closed and file.name in (DATA, str(DATA))]

    @workflow{options}
    def run():
        path, there = str(DATA), DATA
        work("begin")
        seen = []
        {block}
            seen.append(str(each))
            log(f"pass {{len(seen)}}")
            work(f"first {{len(seen)}} {{each[0]}}")
            log("between")
            work(f"second {{len(seen)}}")
        log(f"end, open: {{still_open()}}")
        return [work("end"), seen]
"""

TEXT = 'a, "b\nc"\r\n\xe4b,"d\r\n""e"" \xe4",\nlast,'.encode()

IN_HEAD = [
    "open(path)",
    "open(there, newline='', encoding='utf-8')",
    "open(path, 'rb')",
    "open(path, mode='rt', errors='replace')",
    "there.open('r')",
    "csv.reader(open(path, newline=''))",
    "enumerate(tqdm(open(path)), 1)",
]

IN_WITH = [
    ("open(path, newline='')", "csv.reader(file, skipinitialspace=True)"),
    ("open(path, 'rb')", "file"),
    ("there.open()", "enumerate(file)"),
]


def reading(head, opening="", data=TEXT, options=""):
    """A program with a loop over that, in which a file may be opened before."""
    block = f"for each in {head}:"
    if opening:
        inside = block.replace("\n", "\n  ")
        block = f"with {opening} as file:\n         {inside}"
    return FILE.format(bar=BAR, block=block, data=data, options=options)


READ = {head: reading(head) for head in IN_HEAD}
READ |= {f"{head} with {file}": reading(head, file) for file, head in IN_WITH}


@pytest.mark.parametrize("how", READ)
def test_a_loop_over_a_file(how):
    """A loop over a file that is only read goes on behind the items that it had given."""
    goes_on_in_the_loop(READ[how])


NOT_TWICE = {
    "written to": reading("open(path, 'r+')"),
    "two of them": reading("zip(open(path), open(path))"),
    "named twice": reading("file", "open(path)").replace("log(", "file.name; log(", 1),
    "read before": reading("file", "open(path)").replace(
        "for each in", "next(file)\n         for each in"
    ),
    "in a loop": reading("file", "open(path)").replace(
        "for each in file:", "for _ in 'ab':\n          for each in file:"
    ),
}


@pytest.mark.parametrize("case", NOT_TWICE)
def test_a_file_that_is_not_skipped(case):
    """A kill in a loop over a file that may not be what it was sets it back to before the loop."""
    goes_back(NOT_TWICE[case])


def grows(data):
    """Something is appended."""
    with data.open("ab") as file:
        file.write(b"x\n")


def is_rewritten(data):
    """The part that was read holds something else, and its size and time are as before."""
    before = data.stat()
    with data.open("r+b") as file:
        file.write(b"A")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))


def is_touched(data):
    """Its time is another."""
    os.utime(data, ns=(0, 0))


def is_replaced(data):
    """Another file with the same contents and time is in its place."""
    before, other = data.stat(), data.with_name("other")
    other.write_bytes(data.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(data)


CHANGES = {
    grows: "it had 6 bytes and has 8",
    is_rewritten: "the part that was read is different",
    is_touched: "it was written to",
    is_replaced: "it is another file",
}
OPTIONS = ["", "(keep=1)", "(prune_journal=True)"]


@pytest.mark.parametrize(
    ("change", "opening", "options"),
    [*itertools.product(CHANGES, ["", "open(path)"], OPTIONS)][:: 1 if WHOLE else 4],
)
def test_a_file_that_changes(change, opening, options):
    """Once its file is another, a run goes back to before the loop, and reads it as it is now."""
    program = reading("file" if opening else "open(path)", opening, b"a\nb\nc\n", options)
    with lab_of(program) as lab:
        assert lab.run(die_at="work(second 3) before").died
        change(lab.folder / "data")
        ended = lab.run()
        assert ended.code == 0, ended.text
        where = line_of(program, "for each in")
        why = f"the file that the loop at {where} reads has changed ({CHANGES[change]})"
        assert ended.text.count(why) == 1, ended.text
        begins = line_of(program, "with open" if opening else "for each in")
        assert f"resumes at {begins}, after 1 step (" in ended.text
        assert "skips" not in ended.text
        _, seen = lab.result
        assert "".join(seen) == (lab.folder / "data").read_text()
        assert lab.did["work(second 2)"] == 1


def test_a_file_that_is_gone():
    """Once its file is gone, a run goes back to before the loop, which fails as it would anew."""
    program = reading("open(path)")
    with lab_of(program) as lab:
        assert lab.run(die_at="work(second 2) before").died
        data = lab.folder / "data"
        data.rename(data.with_name("gone"))
        ended = lab.run()
        assert ended.code != 0
        assert "reads has changed (FileNotFoundError: " in ended.text
        data.with_name("gone").rename(data)
        assert lab.run().code == 0
        assert {*lab.did.values()} == {1}


def test_a_long_file_that_changes():
    """While a loop over a file goes on, what is needed to go back to before it is not pruned."""
    program = reading("open(path)", data=b"a\nb\n" * 75, options="(prune_journal=True, keep=1)")
    with lab_of(program) as lab:
        assert lab.run(die_at="work(second 140) before").died
        assert "skips 140 items of the loop" in lab.run(die_at="work(second 145) before").text
        grows(lab.folder / "data")
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert f"resumes at {line_of(program, 'for each in')}, after 1 step (" in ended.text
        assert len(lab.result[1]) == 151
        assert {*lab.did.values()} == {1}


def test_loops_over_files_in_loops():
    """Loops over files around each other go on, each behind its own items; one may have changed."""
    program = """
    import pathlib

    FOLDER = pathlib.Path(__file__).parent
    for name in "xy":
        if not (FOLDER / name).exists():
            (FOLDER / name).write_text("a\\nb\\n")

    @workflow
    async def flow():
        path, other = FOLDER / "x", str(FOLDER / "y")
        seen = [await awork("begin")]
        with open(path) as outer:
            for one in outer:
                with open(other) as inner:
                    for two in inner:
                        seen.append(await awork(one.strip() + two.strip()))
                        log("between")
                        await awork(f"then {len(seen)}")
                await awork(f"after {len(seen)}")
            await awork("late")
        return seen

    def run():
        return asyncio.run(flow())
    """
    said = survives(program, back=["work(late)"], kills=0)
    assert said["work(ba)"].count("skips") == 2
    assert said["work(after 3)"].count("skips 1 item of the loop") == 1
    with lab_of(program) as lab:
        assert lab.run(die_at="work(then 5) before").died
        (lab.folder / "y").write_text("a\nb\nc\n")
        ended = lab.run()
        assert f"loop at {line_of(program, 'for two in')} reads has changed" in ended.text
        assert ended.code == 0, ended.text
        assert lab.result == ["begin", "aa", "ab", "ac", "ba", "bb", "bc"]
        assert {*lab.did.values()} == {1}


STARTS_OVER = """
    import itertools

    class Count:
        asked = 0

        def __iter__(self):
            self.at, self.asked = 0, self.asked + 1
            return self

        def __next__(self):
            if self.at == 3:
                raise StopIteration
            self.at += 1
            return self.at

        __aiter__ = __iter__

        async def __anext__(self):
            try:
                return next(self)
            except StopIteration:
                raise StopAsyncIteration from None

    @workflow
    async def main_flow():
        seen, count = [], Count()
        {loop}
            seen.append(await awork(each))
        return [seen, count.asked]

    def run():
        import asyncio
        return asyncio.run(main_flow())
"""


@pytest.mark.parametrize(
    "loop",
    [
        "for each in count:",
        "async for each in count:",
        "for _, each in enumerate(count):",
        "for _, each in zip('abc', count):",
        "for each in map(abs, count):",
    ],
)
def test_an_iterator_that_starts_over(loop):
    """An iterator that starts over when it is asked for its iterator is asked once, and goes on."""
    program = STARTS_OVER.format(loop=loop)
    assert undisturbed(program)[0] == [[1, 2, 3], 1]
    survives(program, kills=1)
