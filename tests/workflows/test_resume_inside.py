"""Killed anywhere in its function, a workflow resumes at the next statement, with its variables."""

from __future__ import annotations

import pytest
from survival import lab_of, line_of, survives

# -- statements ----------------------------------------------------------------------------------

STATEMENTS = {
    "if, elif, else": """
        @workflow
        def run(x=5):
            log("begin")
            work(1)
            if x == 1:
                work("never")
            elif work(2) == 2:
                log("in elif")
                work(3)
                if x == 6:
                    work("not")
                else:
                    log("in else")
                    work(4)
                work(5)
            return work(6)
    """,
    "for": """
        @workflow
        def run():
            total = 0
            for i in range(3):
                log(f"pass {i}")
                total += work(i)
                if i == 1:
                    work(f"odd {i}")
            else:
                log("else")
                work("in else")
            return total + work(10)
    """,
    "nested loops": """
        @workflow
        def run():
            pairs = []
            for i in (1, 2):
                for j, letter in enumerate("ab"):
                    log(f"{i}{letter}")
                    pairs.append((work(f"{i}{j}"), letter))
                work(f"after {i}")
            return pairs
    """,
    "while": """
        @workflow
        def run():
            n = 3
            while (n := n - 1) >= 0:
                log(f"n is {n}")
                work(n)
            else:
                work("else")
            while True:
                n += 1
                log(f"again {n}")
                if work(f"again {n}") == "again 2":
                    break
            return n
    """,
    "break and continue": """
        @workflow
        def run():
            done = []
            for i in range(5):
                if i == 1:
                    work("left out")
                    continue
                if i == 3:
                    work("enough")
                    break
                done.append(work(i))
                log(f"done {done}")
            else:
                work("never")
            return done
    """,
    "early return": """
        @workflow
        def run():
            for i in range(5):
                log(f"pass {i}")
                try:
                    if work(i) == 2:
                        return work("found")
                finally:
                    log(f"finally {i}")
            return "never"
    """,
    "try": """
        @workflow
        def run():
            work(1)
            try:
                log("in try")
                work(2)
                work(3)
            except ValueError:
                work("never")
            else:
                log("in else")
                work(4)
                work(5)
            finally:
                log("finally")
            return work(6)
    """,
    "a failure that is handled": """
        @step
        def fails():
            doing("fails()", 0)
            raise ValueError("no")

        @workflow
        def run():
            work(1)
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
            return caught
    """,
    "with": """
        @stepwise.reenterable
        class Span:
            def __init__(self, name):
                self.name = name
            def __enter__(self):
                return self.name
            def __exit__(self, *exception):
                return None

        @workflow
        def run():
            lock = "not a lock"
            with Span("one") as one, contextlib.suppress(ValueError):
                log(f"in {one}")
                work(1)
                with Span("two") as two:
                    work(2)
                    log(f"in {two} in {one}")
                    work(3)
                {}["nobody"] if lock is None else work(4)
                raise ValueError
            log("suppressed")
            return [one, two, work(5)]
    """,
    "match": """
        @workflow
        def run():
            seen = []
            for command in (["go", 3], {"say": "hi"}, 7, "?"):
                match command:
                    case ["go", int(n)] if n > 0:
                        seen.append(work(f"go {n}"))
                        log(f"went {n}")
                        work("arrived")
                    case {"say": what, **rest}:
                        work(f"say {what}")
                        log(f"said {what} {rest}")
                        seen.append(work("heard"))
                    case int() | float() as number:
                        seen.append(work(number))
                    case _:
                        log("what?")
                        seen.append(work("what?"))
            return seen
    """,
    "names": """
        counter = 0

        @workflow
        def run():
            global counter
            a, *rest, last = [work(1), 2, 3, 4]
            log(f"{a} {rest} {last}")
            temporary = work(2)
            del temporary
            work(3)
            assert "temporary" not in locals()
            squares = [q * q for q in range(work(4))]
            if (n := len(squares)) > 3:
                work(f"{n} squares")
            counter += 1
            box = {"k": [work(5)]}
            box["k"][0], box["new"] = work(6), work(7)
            return [a, rest, last, squares, box, n]
    """,
    "nested functions and classes": """
        @workflow
        def run():
            total = 0
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
            work(1)
            add(1)
            log(f"total {total}")
            work(2)
            count = add(10)
            twice = lambda: total * 2
            work(3)
            total += 100
            return [total, count, twice(), pair.both(), isinstance(pair, Pair), work(4)]
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
    "a generator in the workflow": """
        def letters():
            for letter in "ab":
                log(f"yield {letter}")
                yield letter

        @workflow
        def run():
            first = list(letters())
            for letter in first:
                log(letter)
                work(letter)
            count = sum(1 for _ in letters())
            return work(count)
    """,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_killed_inside_of(name):
    """Killed in any step, it goes on in the middle of whatever statement that step stands in."""
    survives(STATEMENTS[name])


def test_a_block_that_cannot_be_entered_again():
    """Inside ``with open(...)`` it goes back to before the block, answered, and says so once."""
    program = """
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
    """
    said = survives(program, back=["work(3)"])
    for call in ("work(2)", "work(3)"):
        assert f"resumes at {line_of(program, 'with open')}" in said[call]
    told = [text.count("cannot resume inside the with block") for text in said.values()]
    assert told == [1, 1, 0, 0], said
    assert f"with block at {line_of(program, 'with open')}" in said["work(3)"]
    assert "stepwise.reenterable" in said["work(3)"]


def test_a_block_whose_head_calls_a_step():
    """A step called in the head of a ``with`` is not called again to enter the block."""
    program = """
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
    """
    said = survives(program, back=["work(2)", "work(3)"])
    assert "cannot resume inside the with block" in said["work(3)"]


def test_a_loop_over_a_generator():
    """In a loop over a generator it goes back to before the loop, answered, and says so once."""
    program = """
        def letters():
            yield from "abc"

        @workflow
        def run():
            seen = [work(0)]
            for letter in letters():
                seen.append(work(letter))
            return seen + [work(1)]
    """
    said = survives(program, back=["work(b)", "work(c)"])
    assert f"resumes at {line_of(program, 'for letter')}" in said["work(c)"]
    assert f"inside the loop at {line_of(program, 'for letter')}" in said["work(b)"]
    assert "cannot pickle 'generator' object" in said["work(b)"]
    assert "Iterate over a list" in said["work(b)"]


def test_a_handler():
    """Handlers and ``finally`` have no resume points: it goes back into the ``try``, answered."""
    program = """
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
    """
    said = survives(program, back=["work(3)", "work(4)", "work(5)"])
    where = line_of(program, '{}["nobody"]')
    assert f"resumes at {where}" in said["work(5)"]


# -- workflows that call workflows ---------------------------------------------------------------


def test_nested_workflows():
    """Parent and child each resume where they were, to any depth."""
    survives(
        """
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
        exactly=False,
    )


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


def test_recursion():
    """A workflow that calls itself goes on in each of its calls."""
    survives(
        """
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
        exactly=False,
    )


def test_recursion_of_methods():
    """Methods that call each other on one object leave it as an undisturbed run does."""
    survives(
        """
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
        exactly=False,
    )


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
            if random.random() < 0.5:
                log("heads")
                work("heads")
            else:
                log("tails")
                work("tails")
            work("end")
            with open(sys.argv[0] + ".drawn", "a") as file:
                print(drawn, file=file)
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
    for seed in ("1", "2"):
        with lab_of(program) as lab:
            lab.environment["PYTHONHASHSEED"] = "3"
            assert lab.run(die_at="work(cid) before").code == -9
            lab.environment["PYTHONHASHSEED"] = seed
            ended = lab.run()
            assert ended.code == 0, ended.text
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
    )


def test_what_a_with_bound_is_used_after_it():
    """What a ``with`` bound is there after it, if it is used there, although it does not pickle."""
    survives(
        """
        @workflow
        def run():
            work(1)
            with open(__file__) as file:
                first = file.readline()
            work(2)
            was_closed = file.closed
            work(3)
            del file
            work(4)
            return [len(first), was_closed, work(5)]
        """,
        exactly=False,
    )


def test_a_block_without_a_step_is_not_told():
    """A block that cannot be entered again and calls no step needs no notice."""
    program = """
        @contextlib.contextmanager
        def opened():
            yield 1

        @workflow
        def run():
            work(1)
            with open(sys.argv[0]) as file:
                first = file.readline()
                second = file.readline()
            work(2)
            with opened():
                third = str.upper(first)
            return [first, second, third, work(3)]
    """
    said = survives(program)
    assert "cannot resume inside" not in "".join(said.values())


def test_a_block_of_a_function_is_named_by_it():
    """The notice names the function that @contextmanager decorates, not a class of the library."""
    program = """
        @contextlib.contextmanager
        def opened():
            yield work(1)

        @workflow
        def run():
            with opened() as first:
                second = work(2)
                return [first, second, work(3)]
    """
    said = survives(program, back=["work(2)", "work(3)"])
    assert "If a opened() can safely be made and entered again" in said["work(3)"]
    assert "_GeneratorContextManager" not in "".join(said.values())


HANDLERS = {
    "except": """
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
    "finally": """
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
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_steps_in_a_handler(kind):
    """Several steps in an except or finally block are told of once: the run resumes before it."""
    program = HANDLERS[kind]
    line = {"except": "except Value", "finally": "found.append(work(1))"}[kind]
    with lab_of(program) as lab:
        text = lab.run().text
    assert text.count("a run cannot resume inside the") == 1
    assert f"inside the {kind} block at {line_of(program, line)}. It would go back" in text


def test_few_steps_in_a_handler_are_not_told():
    """Two steps in a handler, or a comprehension of many, need no notice."""
    program = """
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
            return found
    """
    with lab_of(program) as lab:
        assert "cannot resume inside" not in lab.run().text
