"""Killed anywhere in its function, a workflow resumes at the next statement, with its variables."""

from __future__ import annotations

import pytest
from survival import lab_of, placed, survives

# Each construct at each of its points: test_rewrite.py.
STATEMENTS = {
    "branches and loops": """
        @workflow
        def run(x=5):
            log("begin")
            pairs, n = [work(1)], 3
            if x == 1:
                work("never")
            elif work(2) == 2:
                log("in elif")
                if x == 6:
                    work("not")
                else:
                    log("in else")
                    work(4)
                work(5)
            for i in (1, 2):
                for j, letter in enumerate("ab"):
                    log(f"{i}{letter}")
                    pairs.append((work(f"{i}{j}"), letter))
                if i == 1:
                    work(f"odd {i}")
            else:
                log("else")
                work("in else")
            while (n := n - 1) >= 0:
                log(f"n is {n}")
                work(f"n is {n}")
            else:
                work("else of while")
            for i in range(9):
                if i == 1:
                    work("left out")
                    continue
                if i == 3:
                    work("enough")
                    break
                pairs.append(work(f"pass {i}"))
                log(f"pairs {pairs}")
            else:
                work("never")
            for command in (["go", 3], {"say": "hi"}, 7, "?"):
                match command:
                    case ["go", int(n)] if n > 0:
                        pairs.append(work(f"go {n}"))
                        log(f"went {n}")
                        work("arrived")
                    case {"say": what, **rest}:
                        work(f"say {what}")
                        log(f"said {what} {rest}")
                    case int() | float() as number:
                        pairs.append(work(f"number {number}"))
                    case _:
                        log("what?")
                        pairs.append(work("what?"))
            return [pairs, n]
    """,
    "try and with": """
        @stepwise.reenterable
        class Span:
            def __init__(self, name):
                self.name = name
            def __enter__(self):
                return self.name
            def __exit__(self, *exception):
                return None

        @step
        def fails():
            doing("fails()", 0)
            raise ValueError("no")

        @workflow
        def run():
            lock, found = "not a lock", [work(1)]
            try:
                log("in try")
                work(2)
            except ValueError:
                work("never")
            else:
                log("in else")
                found.append(work(3))
                work(4)
            finally:
                log("finally")
            for i in range(2):
                try:
                    log(f"pass {i}")
                    work(f"pass {i}")
                    {}["nobody"]
                except KeyError as error:
                    caught = str(error)
                log(f"went on from {caught}")
                work(f"after {i}")
            try:
                fails()
            except ValueError:
                pass
            work("then")
            with Span("one") as one, contextlib.suppress(ValueError):
                log(f"in {one}")
                work("in one")
                with Span("two") as two:
                    work("in two")
                    log(f"in {two} in {one}")
                    work("in two again")
                {}["nobody"] if lock is None else work("in one again")
                raise ValueError
            log("suppressed")
            for i in range(5):
                try:
                    if work(f"return {i}") == "return 2":
                        return [found, caught, one, two, work("found")]
                finally:
                    log(f"finally {i}")
    """,
    "names, functions and classes": """
        counter = 0

        def letters():
            for letter in "ab":
                log(f"yield {letter}")
                yield letter

        @workflow
        def run():
            global counter
            a, *rest, last = [work(1), 2, 3, 4]
            log(f"{a} {rest} {last}")
            temporary = work(2)
            del temporary
            work(3)
            assert "temporary" not in locals()
            squares, total = [q * q for q in range(work(4))], 0
            if (n := len(squares)) > 3:
                work(f"{n} squares")
            counter += 1
            box = {"k": [work(5)]}
            box["k"][0], box["new"] = work(6), work(7)
            def add(n, seen=[]):
                nonlocal total
                total += n
                seen.append(n)
                return len(seen)
            class Pair:
                size = 2
                def both(self):
                    return [total, self.size]
            pair = Pair()
            work(8)
            add(1)
            log(f"total {total}")
            work(9)
            count, twice = add(10), lambda: total * 2
            for letter in list(letters()):
                log(letter)
                work(letter)
            total += sum(1 for _ in letters())
            made = [total, count, twice(), pair.both(), isinstance(pair, Pair)]
            return [a, rest, last, squares, box, n, made, work(10)]
    """,
    "async": """
        class Numbers:
            def __init__(self, n):
                self.n = n
            def __aiter__(self):
                return self
            async def __anext__(self):
                self.n -= 1
                if self.n < 0:
                    raise StopAsyncIteration
                return self.n

        @stepwise.reenterable
        class Span:
            async def __aenter__(self):
                return "span"
            async def __aexit__(self, *exception):
                return None

        @workflow
        async def main_flow():
            seen = []
            async for n in Numbers(3):
                log(f"number {n}")
                seen.append(await awork(n))
            else:
                await awork("else")
            async with Span() as span:
                log(f"in {span}")
                await awork("one")
                await awork("two")
            lock = asyncio.Lock()
            async with lock:
                seen.append(sum(await asyncio.gather(awork(10), awork(20))))
                log("gathered")
                seen.append(await awork(30))
            return seen

        def run():
            return asyncio.run(main_flow())
    """,
    "a workflow inside a workflow": """
        @workflow
        def run():
            @workflow
            def child(name):
                log(f"child {name}")
                notes = [work(name)]
                log("between steps")
                return [*notes, work(name * 2)]

            work(0)
            return [child("a"), work(1), child("b")]
    """,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_killed_inside_of(name):
    """Killed in any step, it goes on in the middle of whatever statement that step stands in."""
    survives(STATEMENTS[name], kills=4)


BACK = {
    "a block that cannot be entered again": (
        """
        @workflow
        def run():
            work(1)
            with open(sys.argv[0]) as file:
                first = file.readline()
                work(2)
                second = file.readline()
                work(3)
            log("closed")
            work(4)
            log("end")
            return [first, second, work(5)]
        """,
        ["work(3)"],
        [
            ("work(2)", "resumes at <<with open>>"),
            ("work(3)", "resumes at <<with open>>"),
            ("work(3)", "with block at <<with open>>"),
            ("work(3)", "stepwise.reenterable"),
        ],
        {"work(2)": 1, "work(3)": 1, "work(4)": 0, "work(5)": 0},
    ),
    "a block whose head calls a step": (
        """
        class Room:
            def __init__(self, name):
                self.name = name

            def __enter__(self):
                return self.name

            def __exit__(self, *_):
                log("left")

        @workflow
        def run():
            work(1)
            with stepwise.reenterable(Room(work("book"))) as room:
                work(2)
                work(3)
            return [room, work(4)]
        """,
        ["work(2)", "work(3)"],
        [],
        {"work(3)": 1},
    ),
    "a block of a function, which is named": (
        """
        @contextlib.contextmanager
        def opened():
            yield work(1)

        @workflow
        def run():
            with opened() as first:
                second = work(2)
                return [first, second, work(3)]
        """,
        ["work(2)", "work(3)"],
        [("work(3)", "If a opened() can safely be made and entered again")],
        {"work(3)": 1},
    ),
    "a loop over a generator": (
        """
        def letters():
            yield from "abc"

        @workflow
        def run():
            seen = [work(0)]
            for letter in letters():
                seen.append(work(letter))
            return seen + [work(1)]
        """,
        ["work(b)", "work(c)"],
        [
            ("work(c)", "resumes at <<for letter>>"),
            ("work(b)", "inside the loop at <<for letter>>"),
            ("work(b)", "cannot pickle 'generator' object"),
            ("work(b)", "Iterate over a list"),
        ],
        {},
    ),
    "a handler and a finally": (
        """
        @workflow
        def run():
            try:
                work(1)
                {}["nobody"]
            except KeyError:
                work(2)
                work(3)
            finally:
                work(4)
                work(5)
            return work(6)
        """,
        ["work(3)", "work(4)", "work(5)"],
        [("work(5)", 'resumes at <<{}["nobody"]>>')],
        {},
    ),
}


@pytest.mark.parametrize("name", BACK)
def test_what_it_goes_back_before(name):
    """Where it cannot be entered again it goes back to before, answered, and says so once."""
    program, back, expected, times = BACK[name]
    said = survives(program, back=back)
    for call, text in expected:
        assert placed(program, text) in said[call]
    for call, count in times.items():
        assert said[call].count("cannot resume inside the with block") == count, call
    assert "_GeneratorContextManager" not in "".join(said.values())


HANDLERS = {
    "except": (
        """
        @workflow
        def run():
            found = []
            try:
                work("first")
                raise ValueError
            except ValueError:
                for n in range(5):
                    found.append(work(n))
            return found
        """,
        "<<except Value>>",
    ),
    "finally": (
        """
        @workflow
        def run():
            try:
                found = [work("first")]
            finally:
                found.append(work(1))
                found.append(work(2))
                found.append(work(3))
            return found
        """,
        "<<found.append(work(1))>>",
    ),
    "": (  # few steps in a handler, a comprehension, a block without a step
        """
        @workflow
        def run():
            try:
                raise ValueError
            except ValueError:
                found = [work(n) for n in range(9)]
            try:
                raise ValueError
            except ValueError:
                work("a")
                work("b")
            with open(sys.argv[0]) as file:
                first = file.readline()
                found.append(file.readline())
            work("c")
            return found
        """,
        "",
    ),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_steps_in_a_handler(kind):
    """Several steps in an except or finally block are told of once; fewer need no notice."""
    program, where = HANDLERS[kind]
    with lab_of(program) as lab:
        text = lab.run().text
    assert text.count("cannot resume inside") == bool(kind)
    if kind:
        assert placed(program, f"inside the {kind} block at {where}. It would go back") in text


# -- workflows that call workflows ---------------------------------------------------------------

NESTED = {
    "to any depth": """
        @workflow
        def leaf(name, notes):
            for i in range(2):
                log(f"leaf {name} {i}")
                notes.append(work(f"{name} {i}"))
            return name.upper()

        @workflow
        def branch(name, notes):
            log(f"branch {name}")
            left = leaf(name + "l", notes)
            log("between leaves")
            return left + leaf(name + "r", notes)

        @workflow
        def run():
            notes = []
            log("root")
            names = [branch(name, notes) for name in ("a",)]
            log("between branches")
            names.append(branch("b", notes))
            return [names, notes, work("end")]
    """,
    "by recursion": """
        @workflow
        def factorial(n):
            log(f"down to {n}")
            work(f"before {n}")
            if n == 0:
                return 1
            below = factorial(n - 1)
            log(f"up to {n}")
            return n * below * len(work("x" * n)) // n

        def run():
            return factorial(3)
    """,
    "by recursion of methods": """
        class Team:
            def __init__(self):
                self.notes = []
                self.lock = threading.Lock()

            @workflow
            def delegate(self, depth):
                self.notes.append(work(f"down {depth}"))
                log(f"notes {self.notes}")
                if depth:
                    self.delegate(depth - 1)
                with self.lock:
                    self.notes.append(work(f"up {depth}"))
                return list(self.notes)

        def run():
            team = Team()
            return [team.delegate(2), team.notes]
    """,
}


@pytest.mark.parametrize("how", NESTED)
def test_nested_workflows(how):
    """Parent and child each resume where they were, and leave their objects as they would be."""
    survives(NESTED[how], exactly=False)


def test_the_lines_of_functions_that_come_back():
    """Functions and classes defined inside know their file and today's lines after a resume."""
    program = """
        import inspect
        import traceback
        import warnings

        @workflow
        def run():
            def divide(x):
                return 1 / x

            class Divider:
                def divide(self, x):
                    warnings.warn("divides", stacklevel=1)
                    return 1 / x

            work(1)
            work(2)
            log(inspect.getsource(divide))
            log(inspect.getsource(Divider.divide))
            with warnings.catch_warnings(record=True) as told:
                for each in (divide, Divider().divide):
                    try:
                        each(0)
                    except ZeroDivisionError as error:
                        log(repr(traceback.extract_tb(error.__traceback__)[-1]))
            log(repr([(each.filename, each.lineno) for each in told]))
            return 0
    """
    with lab_of(program) as lab:
        assert lab.run(die_at="work(2) before").died
        lab.script.write_text("# one line more\n" + lab.script.read_text("utf-8"), "utf-8")
        ended = lab.run()
        assert "resumes at script.py:" in ended.text
        resumed = lab.log[2:]
        lab.environment["STEPWISE_FRESH"] = "1"
        lab.run()
        assert resumed == lab.log[-len(resumed) :]
        assert "return 1 / x" in resumed[1]


def test_a_child_that_failed_as_the_process_died():
    """Killed before its caller knew that it had failed and cleaned up, a child fails once more."""
    program = """
        import os

        @step
        def fetch():
            doing("fetch()", 0)
            if os.environ["FAILS"]:
                raise ValueError("no")

        @workflow
        def child():
            try:
                return fetch()
            finally:
                act("release")

        @workflow
        def run():
            try:
                return child()
            except ValueError:
                return work("without")

        stepwise.on_event(lambda event: event.kind == "run_failed" and here("it failed"))
    """
    with lab_of(program) as lab:
        lab.environment["FAILS"] = "1"
        assert lab.run(die_at="it failed").died
        lab.environment["FAILS"] = ""
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result == "without"
        assert lab.did == {"fetch()": 1, "act(release)": 1, "work(without)": 1}


# -- nondeterminism ------------------------------------------------------------------------------


def test_random_and_time():
    """Code between steps may draw numbers and look at the clock: it is not executed again."""
    program = """
        @workflow
        def run():
            drawn = [random.random(), time.time()]
            work(0)
            log("drawn")
            work(1)
            for _ in range(random.choice([1, 2])):
                log("pass")
                drawn.append(random.random())
                work(f"pass {len(drawn)}")
            coin = "heads" if random.random() < 0.5 else "tails"
            log(coin)
            work("end")
            return len(drawn)
    """
    for place in ("work(pass 3) before", "work(end) before"):
        with lab_of(program) as lab:
            assert lab.run(die_at=place).died
            ended = lab.run()
            assert ended.code == 0, ended.text
            assert {*lab.did.values()} == {1}
            assert lab.log.count("drawn") == 1
            assert lab.log.count("pass") == lab.result - 2
            assert lab.log.count("heads") + lab.log.count("tails") == 1


def test_the_order_of_a_set():
    """A loop over a set of strings visits each once, though the next process orders it anew."""
    program = """
        @workflow
        def run():
            names = {"ada", "bob", "cid", "dan", "eve"}
            seen = []
            for name in names:
                seen.append(work(name))
                log(f"saw {name}")
            return [sorted(seen), work("end")]
    """
    with lab_of(program) as lab:  # a fork would have the hash seed of its host
        lab.environment["PYTHONHASHSEED"] = "3"
        with lab.popen(die_at="work(cid) before") as process:
            process.communicate(timeout=300)
        assert process.returncode == -9
        lab.environment["PYTHONHASHSEED"] = "1"
        with lab.popen() as process:
            text, _ = process.communicate(timeout=300)
        assert process.returncode == 0, text
        assert lab.result == [["ada", "bob", "cid", "dan", "eve"], "end"]
        assert {*lab.did.values()} == {1}


def test_whoever_is_first():
    """A recorded winner is done at once, whatever would be first the next time."""
    survives(
        """
        @step
        async def racer(name):
            for _ in range(1 if (name == "a") == first_time else 50):
                await asyncio.sleep(0)
            return doing(f"racer({name})", name)

        @workflow
        async def race():
            tasks = [asyncio.create_task(racer(name)) for name in "ab"]
            done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = next(each for each in tasks if each in done).result()  # both may be done
            log(f"winner {winner}")
            await asyncio.gather(*others)
            del done, others, tasks
            await awork("prize for " + winner)
            await awork("party")
            return winner

        def once(path):
            with contextlib.suppress(FileExistsError), open(path, "x"):
                return True
            return False

        first_time = once(sys.argv[0] + ".began")

        def run():
            return asyncio.run(race())
    """,
        back=["racer(b)", "work(prize for a)"],
        kills=9,
    )
