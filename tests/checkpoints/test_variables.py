"""What becomes of local variables when a killed workflow goes on: state, and what is by reference.

Each program is killed in each of its steps but the first, in a process of its own, and its result
is that of the undisturbed program; see ``programs/survival.py``.
"""

from __future__ import annotations

import itertools
import pickle

import pytest
from survival import lab_of, line_of, survives

import stepwise
from stepwise._checkpoints.surroundings import Surroundings
from stepwise._checkpoints.variables import dump_few, dump_values, load_values
from stepwise._values.trees import ITERATORS

RULES = {
    "what is shared stays shared": """
        @workflow
        def run():
            notes = [work(1)]
            same, inside = notes, {"notes": notes}
            inside["me"] = inside
            work(2)
            notes.append(3)
            work(4)
            return [same, inside["notes"], same is notes, inside["me"] is inside]
    """,
    "functions share variables with the frame": """
        def outer():
            offset = 100
            @workflow
            def flow():
                count = 0
                def bump():
                    nonlocal count
                    count += 1
                    return count + offset
                show = lambda: count
                bump()
                work(1)
                bump()
                work(2)
                count += 10
                return [bump(), show()]
            return flow()

        def run():
            return outer()
    """,
    "nested functions see today's globals": """
        setting = "old"

        @workflow
        def run():
            def read():
                return setting
            first = read()
            work(1)
            work(2)
            globals()["setting"] = "new"
            return [first, read(), read.__globals__ is globals()]
    """,
    "classes and enums of the script stay themselves": """
        class Colour(enum.Enum):
            RED = 1

        class Message:
            def __init__(self, text):
                self.text = text

        class Oops(Exception):
            pass

        @workflow
        def run():
            message, colour, kind, error = Message("hi"), Colour.RED, Message, Oops("no")
            work(1)
            work(2)
            return [
                isinstance(message, Message), type(message) is kind is Message, message.text,
                colour is Colour.RED, isinstance(error, Oops), str(error),
            ]
    """,
    "the caller's objects are filled in place": """
        class Basket:
            def __init__(self):
                self.items = []

        @workflow
        def fill(numbers, table, names, queue, basket):
            for n in [1, 2]:
                numbers.append(work(n))
                table[n] = names.add(n)
                queue.append(n)
                basket.items.append(numbers)
                work(f"after {n}")
            return numbers is basket.items[-1]

        def run():
            numbers, table, names, queue, basket = [0], {0: 0}, {0}, deque([0], 2), Basket()
            same = fill(numbers, table, names, queue, basket)
            return [same, numbers, sorted(table), sorted(names), list(queue), queue.maxlen,
                    basket.items[0] is numbers]
    """,
    "loops over the caller's objects": """
        @workflow
        def walk(numbers, queue):
            seen = []
            numbers += [2, 3]
            queue.append("c")
            for n in numbers:
                seen.append(work(n))
            for n in reversed(numbers):
                seen.append(work(f"back {n}"))
            for letter, n in zip(queue, numbers):
                seen.append(work(letter))
            return seen

        def run():
            return walk([1], deque("ab"))
    """,
    "self keeps what does not pickle": """
        class Agent:
            def __init__(self):
                self.lock = threading.Lock()
                self.notes = []
                self.turn = 0

            @workflow
            def go(self):
                for _ in range(2):
                    self.turn += 1
                    with self.lock:
                        self.notes.append(work(self.turn))
                    me = self
                    self.extra = {"me": self}
                    work(f"end of {self.turn}")
                return [me is self, self.extra["me"] is self]

        def run():
            agent = Agent()
            lock, notes = agent.lock, agent.notes
            result = agent.go()
            return [result, agent.lock is lock, agent.notes is notes, notes, agent.turn]
    """,
    "lists and dicts with a class of their own": """
        from collections import Counter, defaultdict

        class Messages(list):
            def __init__(self, *items):
                super().__init__(items)
                self.total = 0

        class Table(dict):
            pass

        @workflow
        def fill(messages, table, lists, counter):
            for letter in "ab":
                messages.append(work(letter))
                messages.total += 1
                table[letter] = messages
                lists[letter].append(letter)
                counter[letter] += 1
                work(f"after {letter}")
            return [dict(lists), dict(counter)]

        def run():
            messages, table = Messages("start"), Table(start=1)
            made = fill(messages, table, defaultdict(list), Counter())
            return [made, messages, messages.total, sorted(table), table["a"] is messages]
    """,
    "slots and data classes": """
        import dataclasses

        class Slotted:
            __slots__ = ("a", "b")
            def __init__(self):
                self.a = 1

        @dataclasses.dataclass
        class State:
            n: int
            items: list = dataclasses.field(default_factory=list)

        @workflow
        def go(slotted, state):
            slotted.b = work(2)
            state.items.append(slotted)
            work(3)
            del slotted.a
            work(4)
            return [hasattr(slotted, "a"), slotted.b]

        def run():
            slotted, state = Slotted(), State(1)
            return [go(slotted, state), slotted.b, hasattr(slotted, "a"), state.items == [slotted]]
    """,
    "clients of the module": """
        class Client:
            def __init__(self):
                self.lock = threading.Lock()
            def ask(self, x):
                return work(x)

        CLIENT = Client()

        @workflow
        def run():
            client, tools = CLIENT, {"ask": CLIENT.ask}
            client.ask(1)
            tools["ask"](2)
            return [client is CLIENT, tools["ask"](3)]
    """,
    "containers of the module": """
        QUEUE = ["a", "b"]
        DEFAULTS = {"n": 1}

        @workflow
        def run():
            queue, defaults = QUEUE, DEFAULTS
            work(1)
            queue.append("c")
            work(2)
            work(3)
            return [queue, defaults is DEFAULTS]
    """,
    "steps and workflows as variables": """
        @workflow
        def child(x):
            return work(x) + 1

        class Tools:
            @step
            def look(self, x):
                return doing(f"look({x})", x)

        @workflow
        def run():
            tools = {"work": work, "child": child, "look": Tools().look}
            work(1)
            for n, name in enumerate(sorted(tools)):
                tools[name](n + 10)
            return [tools["work"] is work, tools["child"] is child]
    """,
    "deep structures": """
        @workflow
        def run():
            deep = []
            for _ in range(5000):
                deep = [deep]
            ring = {}
            ring["ring"] = [ring]
            work(1)
            work(2)
            depth = 0
            while deep:
                deep, depth = deep[0], depth + 1
            return [depth, ring["ring"][0] is ring]
    """,
    "iterators": """
        @workflow
        def run():
            numbers = iter([1, 2, 3, 4])
            pairs = enumerate("abc")
            next(numbers), next(pairs)
            work(1)
            second = next(numbers)
            work(2)
            return [second, list(numbers), list(pairs)]
    """,
    "iterators that loops share": """
        @workflow
        def run():
            items, seen = ["a", "b", "c", "d", "e", "f"], []
            for item in items:
                seen.append(work(item))
                items[-1] = f"last after {item}"
            letters = iter("abcdef")
            for letter in letters:
                work(letter.upper())
                seen.append([letter, next(letters)])
            numbers = iter(range(9, 0, -2))
            both = [numbers]
            for number in numbers:
                seen.append([work(number), next(both[0], None)])
            for number in range(9, 0, -2):
                for pair in ((1, 2), (3, 4)):
                    seen.append(work([number, *pair]))
            return seen
    """,
    "exceptions with an init of their own": """
        class RefusedError(Exception):
            def __init__(self, what, *, code):
                super().__init__(f"refused: {what}")
                self.code = code

        @workflow
        def run():
            try:
                raise RefusedError("tea", code=5)
            except RefusedError as error:
                last = error
            work(1)
            work(2)
            return [str(last), last.code, isinstance(last, RefusedError)]
    """,
    "views of an array": """
        import numpy as np

        @workflow
        def run():
            table = np.zeros((3, 3))
            row, corner, columns = table[1], table[1:, 1:], table.T
            for n in range(3):
                row[n] = work(n + 1)
                corner[n % 2, 0] += 1
            columns[2, 0] = 9
            return table.tolist()
    """,
    "views of a dict follow it": """
        import types

        @workflow
        def run():
            table = {"a": 1, "b": 2, "c": 3}
            keys, values, proxy = table.keys(), table.values(), types.MappingProxyType(table)
            seen = []
            for name, n in table.items():
                seen.append([name, n, work(name)])
                table["c"] += 10
            table["d"] = 4
            return [seen, len(keys), list(values), len(proxy)]
    """,
    "classes made inside": """
        import dataclasses

        @workflow
        def run():
            @dataclasses.dataclass
            class Point:
                x: int

            point = Point(1)
            work(1)
            work(2)
            return [repr(point), isinstance(point, Point)]
    """,
    "what a with block has closed": """
        import os

        @workflow
        def run():
            work(0)
            with open(os.devnull) as source:
                text = source.read()
            work(1)
            work(2)
            del source
            return text
    """,
    "what a with block has closed and is read later": """
        class Connection:
            def __init__(self):
                self.lock, self.rows = threading.Lock(), 5
            def __enter__(self):
                return self
            def __exit__(self, *exception):
                pass

        @workflow
        def run():
            work(0)
            with Connection() as connection:
                connection.rows += 1
            work(1)
            work(2)
            return connection.rows
    """,
    "what a loop has used up": """
        import re

        @workflow
        def run():
            found = re.search("b(c)", "abcd")
            letters = (each for each in "ab")
            seen = [each for each in letters]
            work(1)
            work(2)
            return [found[1], found.span(), list(letters), seen]
    """,
    "threads that have ended": """
        @workflow
        def run():
            seen = []
            threads = [threading.Thread(target=seen.append, args=(n,), name=f"t{n}") for n in "ab"]
            for thread in threads:
                thread.start()
                thread.number = len(seen)
            for thread in threads:
                thread.join()
            work(1)
            work(2)
            alive = [each.is_alive() for each in threads]
            own = [(each.name, each.number > -1) for each in threads]
            return sorted(seen), alive, thread is threads[1], own
    """,
    "the event loop and what has ended in it": """
        import asyncio

        @workflow
        async def flow():
            loop, places, queue = asyncio.get_running_loop(), asyncio.Semaphore(2), asyncio.Queue()

            async def one(n):
                async with places:
                    await queue.put(n)
                    return n

            done, _ = await asyncio.wait([asyncio.create_task(one(n)) for n in range(4)])
            work(1)
            work(2)
            later = loop.create_future()
            loop.call_soon(later.set_result, "later")
            return [sorted(each.result() for each in done), await later, queue.qsize()]

        def run():
            return asyncio.run(flow())
    """,
}


@pytest.mark.parametrize("rule", RULES)
def test_variables(rule):
    """A resumed function has the variables it had: its own, and those it shares with others."""
    survives(RULES[rule])


def test_resources():
    """What a ``@stepwise.resource`` factory made is made again when the run resumes."""
    program = """
        class Connection:
            def __init__(self, url):
                self.url, self.lock = url, threading.Lock()
            def __enter__(self):
                return self
            def __exit__(self, *exception):
                log("closed")

        @stepwise.resource
        def connect(url):
            log(f"connected to {url}")
            return Connection(url)

        @workflow
        def run():
            line = connect("db")
            both = [line, line]
            work(1)
            with connect("web") as web:
                work(2)
                urls = [line.url, web.url, both[0] is line]
                work(3)
            return [urls, work(4)]
    """
    survives(program, exactly=False)
    with lab_of(program) as lab:
        assert lab.run(die_at="work(3) before").died
        assert lab.run().code == 0
        expected = ["connected to db", "did work(1) -> 1", "connected to web", "did work(2) -> 2"]
        assert lab.log[:4] == expected
        assert sorted(lab.log[4:6]) == ["connected to db", "connected to web"]
        assert lab.log[6:] == ["did work(3) -> 3", "closed", "did work(4) -> 4"]


def test_a_resource_that_takes_no_weak_reference():
    """A database connection of the standard library is a resource like any other."""
    program = """
        import sqlite3

        @stepwise.resource
        def connect():
            return sqlite3.connect(":memory:")

        @workflow
        def run():
            line = connect()
            both = [line, line]
            work(1)
            work(2)
            (one,) = line.execute("select 1").fetchone()
            return [one, both[0] is line, work(3)]
    """
    survives(program)


def test_resources_that_are_over_are_released():
    """A resource that takes no weak reference lives as long as somebody uses it, and no longer."""

    class Connection:
        __slots__ = ("ended",)

        def __init__(self, ended):
            self.ended = ended

        def __del__(self):
            self.ended.append(True)

    @stepwise.resource
    def connect(ended):
        return Connection(ended)

    first, second = [], []
    used = connect(first)
    connect(second)
    connect([])
    assert (first, second) == ([], [True])
    del used
    connect([])
    assert first == [True]


@pytest.mark.parametrize("data", ["url", 7, None, ["url"], {"url": 1}, ("url",)])
def test_a_resource_is_no_plain_data(data):
    """A factory that returns plain data is refused: nothing distinguishes it from other data."""
    make = stepwise.resource(lambda: data)
    with pytest.raises(stepwise.ConfigurationError, match="which is plain data"):
        make()


ITERABLES = {
    "range": range(3, 20, 4),
    "range downwards": range(5, -5, -1),
    "empty range": range(0),
    "large range": range(10**20, 10**20 + 4),
    "list": [1, "two", None, [4]],
    "tuple": (1, (2, 3), "four"),
    "text": "four",
    "text with accents": "\u00e4\u4e2d\ud800b",
    "bytes": b"abc",
}


@pytest.mark.parametrize("taken", range(7))
@pytest.mark.parametrize("iterable", list(ITERABLES))
def test_a_half_used_iterator(iterable, taken):
    """The iterator of a loop goes on where it was, over the same object as the other variables."""
    values = {"it": iter(ITERABLES[iterable]), "of": ITERABLES[iterable]}
    list(itertools.islice(values["it"], taken))
    data = dump_few(values, Surroundings())
    if data is not None:  # another way is tested elsewhere
        loaded = load_values(data, Surroundings())
        assert type(loaded["it"]) is type(values["it"])
        if type(loaded["of"]) is list:
            loaded["of"].append("more")
            values["of"] = [*values["of"], "more"]
            more = ["more"] if taken < len(values["of"]) else []
            assert list(loaded["it"]) == [*values["it"], *more]
        else:
            assert list(loaded["it"]) == list(values["it"])
    assert (data is None) == (type(values["it"]) not in ITERATORS)


@pytest.mark.parametrize("others", [(), ([],)])
def test_iterators_of_an_earlier_version(others):
    """A checkpoint in which iterators are pickled with the other variables is read."""
    numbers = iter(range(9))
    next(numbers)
    data = pickle.dumps(({"it": numbers, "size": 3}, [], {}, *others), 5)
    loaded = load_values(data, Surroundings())
    assert (list(loaded["it"]), loaded["size"]) == ([*range(1, 9)], 3)


def test_an_iterator_with_two_names():
    """An iterator that two variables name, or that a container holds as well, stays one."""
    for hold in (lambda it: it, lambda it: [it], lambda it: {"in": (it,)}):
        numbers = iter([1, 2, 3])
        data = dump_few({"it": numbers, "other": hold(numbers)}, Surroundings())
        loaded = load_values(data, Surroundings())
        other = loaded["other"]
        while type(other) in (list, dict, tuple):
            other = other["in"] if type(other) is dict else other[0]
        assert other is loaded["it"]


@pytest.mark.parametrize("others", [{}, {"held": 1}, {"general": print}])
@pytest.mark.parametrize(
    ("kind", "way"), [(list, iter), (list, reversed), (bytearray, iter)], ids=str
)
@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_an_iterator_whose_list_became_shorter(kind, way, left, others):
    """An iterator keeps its place behind the end of a list that became shorter, and grows again."""
    values = {"of": kind(range(6)), **others}
    values["it"] = way(values["of"])
    if "held" in others:
        values["held"] = [values["it"]]
    list(itertools.islice(values["it"], 3))
    del values["of"][left:]
    data = dump_few(values, Surroundings()) or bytes(dump_values(values, Surroundings()))
    loaded = load_values(data, Surroundings())
    for each in (values, loaded):
        assert len(each["of"]) == left
        each["of"].extend(b"abcdef")
    assert list(loaded["it"]) == list(values["it"])


def test_a_resource_of_a_class_of_ones_own_that_is_a_dict():
    """A factory may return a dict of the user's own class: it may hold more than data."""

    class Shelf(dict):
        pass

    def shelf():
        return Shelf(a=1)

    made = stepwise.resource(shelf)()
    assert (type(made), made) == (Shelf, {"a": 1})


def test_a_variable_that_cannot_be_recorded():
    """A variable that cannot be recorded is named, with ways out; the run resumes before it."""
    program = """
        @workflow
        def run():
            work(1)
            local = threading.local()
            work(2)
            local.found = 5
            work(3)
            del local
            work(4)
            return work(5)
    """
    said = survives(program, back=["work(3)"])
    assert f"resumes at {line_of(program, 'local = ')}, after 1 step" in said["work(3)"]
    assert f"resumes at {line_of(program, 'work(4)')}, after 3 steps" in said["work(4)"]
    with lab_of(program) as lab:
        text = lab.run().text
    assert f"at {line_of(program, 'local.found')}: the variable 'local' is a _thread._local" in text
    assert text.count("the variable 'local'") == 1
    for way in ("inside the step that uses it", "@stepwise.resource", "`del` it"):
        assert way in text


def test_an_open_file():
    """An open file is never stored as a copy of its content: it is refused by name."""
    program = """
        @workflow
        def run():
            work(1)
            file = open(sys.argv[0])
            first = file.readline()
            work(2)
            second = file.readline()
            work(3)
            file.close()
            del file
            return [first, second, work(4)]
    """
    said = survives(program, back=["work(3)", "work(4)"])
    assert "the variable 'file' is a _io.TextIOWrapper" in said["work(2)"]
    assert "an open file cannot be recorded" in said["work(2)"]


def test_what_a_child_left_behind():
    """A completed child that is answered leaves the objects it was given as it left them then."""
    survives(
        """
        class Team:
            def __init__(self):
                self.notes = []

            @workflow
            def gather(self, names):
                self.notes.append(work(1))
                names["gathered"] = self.notes
                return self.notes

        @workflow(checkpoint_every=50)
        def run():
            team, names = Team(), {}
            notes = team.gather(names)
            work(2)
            work(3)
            return [notes is team.notes is names["gathered"], notes]
    """,
        exactly=False,
    )


def test_what_a_child_of_a_helper_left_behind():
    """A completed child whose call a replay answers leaves what it was given as it left it, too."""
    survives(
        """
        @workflow
        def child(notes):
            notes.append(work(1))

        def asking(notes):
            child(notes)
            work(2)
            work(3)
            return notes

        @workflow
        def run():
            return asking([])
    """,
        exactly=False,
    )


def test_an_attribute_that_was_deleted():
    """What the workflow deleted from an object that it was given does not come back with it."""
    survives(
        """
        class Team:
            def __init__(self):
                self.notes, self.names = ["a"], ["b"]

            @workflow
            def run(self):
                work(1)
                del self.notes
                work(2)
                work(3)
                return sorted(vars(self))

        def run():
            return Team().run()
    """,
        exactly=False,
    )


def test_a_key_that_was_renamed():
    """A dict of a result whose content moved to another key has it there after a resume."""
    survives(
        """
        def many(what):
            return [{"text": f"{what} {n}" * 20} for n in range(60)]

        @step
        def found():
            return doing("found()", {"a": many("a"), "c": many("c")})

        @workflow
        def run():
            page = found()
            work(1)
            page["b"] = page.pop("c")
            work(2)
            work(3)
            return page
    """,
        exactly=False,
    )


def test_what_a_failed_child_left_behind():
    """A failed child whose caller went on leaves the objects it was given as it left them, too."""
    survives(
        """
        @workflow
        def child(notes):
            notes.append(work(1))
            raise ValueError("no")

        def asking(notes):
            try:
                child(notes)
            except ValueError as error:
                notes.append(str(error))
            work(2)
            work(3)
            return notes

        @workflow
        def run():
            return asking([])
    """,
        exactly=False,
    )


def test_a_folder_that_is_removed_with_its_process():
    """A temporary folder is no variable of a checkpoint: after Ctrl-C the run makes it again."""
    program = """
        import os
        import tempfile

        @workflow
        def run():
            work(1)
            folder = tempfile.TemporaryDirectory()
            path = os.path.join(folder.name, "notes")
            with open(path, "w") as file:
                file.write("kept")
            work(2)
            work(3)
            text = open(path).read()
            folder.cleanup()
            work(4)
            return [text, work(5)]
    """
    for how in ("int", "kill"):
        with lab_of(program) as lab:
            lab.environment["PYTHONWARNINGS"] = "ignore::ResourceWarning"
            first = lab.run(die_at="work(3) before", how=how)
            text = first.text if first.code == 0 else lab.run().text
            assert lab.result == ["kept", 5], text
            assert set(lab.did.values()) == {1}
            assert f"resumes at {line_of(program, 'folder = ')}, after 1 step" in text
            assert "the variable 'folder' is a tempfile.TemporaryDirectory" in text
            assert "cleaned up, by TemporaryDirectory._cleanup, when it goes" in text
    survives(program, back=["work(3)"])


def test_an_array_that_is_a_file():
    """After a kill, what is written to an array that is mapped to a file still reaches the file."""
    program = """
        import os
        import numpy as np

        @workflow
        def run():
            numbers = os.path.join(os.path.dirname(sys.argv[0]), "numbers")
            work(1)
            found = np.memmap(numbers, dtype="i4", mode="w+", shape=(4,))
            found[0] = 7
            work(2)
            work(3)
            view = np.asarray(found[1:])
            del found
            work(4)
            work(5)
            view[:] = 8
            del view
            read = np.memmap(numbers, dtype="i4", mode="r")
            work(6)
            private = np.memmap(numbers, dtype="i4", mode="c")
            private[0] = 9
            work(7)
            return [np.fromfile(numbers, dtype="i4").tolist(), read.tolist(), private.tolist()]
    """
    said = survives(program, back=["work(3)", "work(4)", "work(5)"])
    assert "the variable 'found' is a numpy.memmap, which cannot be recorded" in said["work(2)"]
    assert "the variable 'view' is a numpy.ndarray, which cannot be recorded" in said["work(4)"]
    assert f"resumes at {line_of(program, 'work(7)')}" in said["work(7)"]


def test_an_attribute_that_cannot_be_recorded():
    """What a workflow puts into an attribute and cannot be recorded is named, like a variable."""
    program = """
        import socket

        class Agent:
            def __init__(self):
                self.lock, self.lazy = threading.Lock(), None

            def asked(self):
                self.lazy = self.lazy or threading.Lock()
                return type(self.lazy).__name__

            @workflow
            def run(self):
                work(1)
                self.guard = socket.socket()
                work(2)
                work(3)
                with self.guard, self.lock:
                    del self.guard
                names = [self.asked()]
                work(4)
                return [*names, self.asked(), work(5)]

        run = Agent().run
    """
    said = survives(program, back=["work(3)"])
    assert "the variable 'self.guard' is a socket.socket" in said["work(2)"]
    assert f"resumes at {line_of(program, 'self.guard = ')}, after 1 step" in said["work(3)"]
    assert f"resumes at {line_of(program, 'return [*names')}" in said["work(5)"]


def test_a_buffer_that_was_handed_in():
    """A text in memory that a workflow was given is read on where it was, not from the top."""
    program = """
        import io

        class Notes(io.StringIO):
            pass

        @workflow
        def read(buffer, notes):
            found = []
            for _ in range(3):
                found += [buffer.readline(), notes.readline()]
                work(found[-2].strip())
            return found

        run = lambda: read(io.StringIO("a\\nb\\nc\\n"), Notes("1\\n2\\n3\\n"))
    """
    survives(program)
