"""What becomes of local variables when a killed workflow goes on: state, and what is by reference.

Each program is killed in some of its steps, in a process of its own, and its result is that of the
undisturbed program; see ``programs/survival.py``.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import re
import sys
import textwrap
import weakref

import pytest
from survival import lab_of, line_of, placed, survives
from sweeping import WHOLE

import stepwise
from stepwise._checkpoints.references import Needs, Reader
from stepwise._checkpoints.variables import Surroundings, dump_few, dump_values, load_values
from stepwise._values.trees import ITERATORS


class Message:
    """Something that is loaded."""


KEPT = {
    "what is shared stays shared": """
        notes = [1]
        same, inside = notes, {"notes": notes}
        inside["me"] = inside
        ---
        notes.append(3)
        ---
        [same, inside["notes"], same is notes, inside["me"] is inside]
    """,
    "what the interpreter has once is that": """
        env, names, modules, path, box = os.environ, globals(), sys.modules, sys.path, Box()
        box.held = [{"env": os.environ}, (vars(json), os.environb)]
        given = answers()
        ---
        [names.update(fresh=1), fresh, names is globals(), env is os.environ]
        + [modules is sys.modules, path is sys.path]
        + [box.held[0]["env"] is env, box.held[1][0] is vars(json), box.held[1][1] is os.environb]
        + [given[0] is env, given[1] is vars(json)]
    """,
    "a text that is compared by identity": """
        parser, option = argparse.ArgumentParser(), Option()
        mark, theirs = ABSENT, argparse.SUPPRESS
        parser.add_argument("--size", type=int)
        ---
        [mark is ABSENT, option.value is ABSENT, theirs is argparse.SUPPRESS]
        + [vars(parser.parse_args(["--size", "3"]))]
    """,
    "nested functions see today's globals": """
        def read():
            return setting
        first = read()
        ---
        [first, globals().update(setting="new"), read(), read.__globals__ is globals()]
    """,
    "classes and enums of the script stay themselves": """
        message, colour, kind, oops = Message("hi"), Colour.RED, Message, Oops("no")
        ---
        [isinstance(message, Message), type(message) is kind is Message, message.text]
        + [colour is Colour.RED, isinstance(oops, Oops), str(oops)]
    """,
    "clients of the module": """
        client, tools = CLIENT, {"ask": CLIENT.ask}
        client.ask(1)
        ---
        [client is CLIENT, tools["ask"](3)]
    """,
    "containers of the module": """
        queue, defaults = QUEUE, DEFAULTS
        ---
        queue.append("c")
        ---
        [queue, defaults is DEFAULTS]
    """,
    "steps and workflows as variables": """
        calls = {"work": work, "child": child, "look": Tools().look}
        found = [calls[name](n + 10) for n, name in enumerate(sorted(calls))]
        ---
        [found, calls["look"](20), calls["work"] is work, calls["child"] is child]
    """,
    "deep structures": """
        deep, ring = [], {}
        for _ in range(5000):
            deep = [deep]
        ring["ring"] = [ring]
        ---
        depth = 0
        while deep:
            deep, depth = deep[0], depth + 1
        ---
        [depth, ring["ring"][0] is ring]
    """,
    "iterators": """
        numbers, pairs = iter([1, 2, 3, 4]), enumerate("abc")
        next(numbers), next(pairs)
        ---
        second = next(numbers)
        ---
        [second, list(numbers), list(pairs)]
    """,
    "exceptions with an init of their own": """
        try:
            raise RefusedError("tea", code=5)
        except RefusedError as error:
            last = error
        ---
        [str(last), last.code, isinstance(last, RefusedError)]
    """,
    "classes made inside": """
        @dataclasses.dataclass
        class Point:
            x: int
        point = Point(1)
        ---
        [repr(point).rpartition(".")[2], isinstance(point, Point)]
    """,
    "what a with block has closed": """
        with open(os.devnull) as source:
            text = source.read()
        ---
        text
    """,
    "what a with block has closed and is read later": """
        with Connection() as connection:
            connection.rows += 1
        ---
        connection.rows
    """,
    "what a loop has used up": """
        match = re.search("b(c)", "abcd")
        letters = (each for each in "ab")
        seen = [each for each in letters]
        ---
        [match[1], match.span(), list(letters), seen]
    """,
    "threads that have ended": """
        ended = []
        threads = [threading.Thread(target=ended.append, args=(n,), name=f"t{n}") for n in "ab"]
        for thread in threads:
            thread.start()
            thread.number = len(ended)
        for thread in threads:
            thread.join()
        ---
        [sorted(ended), [each.is_alive() for each in threads], thread is threads[1]]
        + [(each.name, each.number > -1) for each in threads]
    """,
}
"""Statements before the first kill, those between two, and what has to be as it was, in parts."""

DEFINED = """
import argparse, dataclasses, json, os, re

ABSENT, setting, QUEUE, DEFAULTS = "<absent>", "old", ["a", "b"], {"n": 1}

class Box:
    pass

@step
def answers():
    return os.environ, vars(json)

class Option:
    def __init__(self):
        self.value = ABSENT

class Colour(enum.Enum):
    RED = 1

class Message:
    def __init__(self, text):
        self.text = text

class Oops(Exception):
    pass

class Client:
    def __init__(self):
        self.lock = threading.Lock()
    def ask(self, x):
        return work(f"asked {x}")

CLIENT = Client()

@workflow
def child(x):
    return work(f"child {x}") + "!"

class Tools:
    @step
    def look(self, x):
        return doing(f"look({x})", x)

class RefusedError(Exception):
    def __init__(self, what, *, code):
        super().__init__(f"refused: {what}")
        self.code = code

class Connection:
    def __init__(self):
        self.lock, self.rows = threading.Lock(), 5
    def __enter__(self):
        return self
    def __exit__(self, *exception):
        pass
"""


def keeping(*names):
    """A program whose function has the variables of these rules in two of its steps."""
    parts = [[each.strip("\n ") for each in KEPT[name].split("---\n")] for name in names]
    parts = [[textwrap.dedent(f"        {each}") for each in part] for part in parts]
    before = "\n".join(first for first, *_ in parts)
    between = "\n".join(part[1] for part in parts if len(part) > 2)
    results = ",\n".join(part[-1] for part in parts)
    body = f"{before}\nwork(1)\n{between}\nwork(2)\nreturn [\n{results}]"
    return f"{DEFINED}\n@workflow\ndef run():\n{textwrap.indent(body, '    ')}"


@pytest.mark.parametrize("names", [*([each] for each in KEPT)] if WHOLE else [[*KEPT]], ids=len)
def test_kept(names):
    """A resumed function has the values that it had, and what they were compared with."""
    survives(keeping(*names), kills=4)


RULES = {
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
    "the caller's objects are filled in place": """
        import dataclasses
        from collections import Counter, defaultdict

        class Basket:
            def __init__(self):
                self.items = []

        class Messages(list):
            def __init__(self, *items):
                super().__init__(items)
                self.total = 0

        class Slotted:
            __slots__ = ("a", "b")
            def __init__(self):
                self.a = 1

        @dataclasses.dataclass
        class State:
            n: int
            items: list = dataclasses.field(default_factory=list)

        @workflow
        def fill(numbers, table, names, queue, basket, messages, lists, counter, slotted, state):
            for n in [1, 2]:
                numbers.append(work(n))
                table[n] = names.add(n)
                queue.append(n)
                basket.items.append(numbers)
                messages.append(n)
                messages.total += 1
                lists[n].append(n)
                counter[n] += 1
                slotted.b = work(f"after {n}")
                state.items.append(slotted)
            del slotted.a
            work("end")
            return [numbers is basket.items[-1], dict(lists), dict(counter), slotted.b]

        def run():
            numbers, table, names, queue, basket = [0], {0: 0}, {0}, deque([0], 2), Basket()
            messages, slotted, state = Messages("start"), Slotted(), State(1)
            made = fill(numbers, table, names, queue, basket, messages, defaultdict(list),
                        Counter(), slotted, state)
            return [made, numbers, sorted(table), sorted(names), list(queue), queue.maxlen,
                    basket.items[0] is numbers, messages, messages.total, slotted.b,
                    hasattr(slotted, "a"), state.items == [slotted] * 2]
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
    "a text in memory that was handed in": """
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
    """,
    "a connection that a side effect is given": """
        import sqlite3

        @stepwise.resource
        def connect():
            return sqlite3.connect(":memory:")

        @tool(side_effect=True, in_doubt="retry")
        def read(line, number):
            return work(number)

        @workflow
        def run():
            line = connect()
            return [read(line, 1), read(line, 2), read(line, 3)]
    """,
    "a connection that a side effect is given beside the cache": """
        import datetime, sqlite3

        @stepwise.resource
        def connect():
            return sqlite3.connect(":memory:")

        @step(cache=datetime.timedelta(days=1))
        def twice(number):
            return 2 * number

        @tool(side_effect=True, in_doubt="retry")
        def read(line, number):
            return work(number)

        @workflow
        def other():
            return twice(1)

        @workflow
        def reads():
            line = connect()
            return [read(line, 1), read(line, 2), read(line, 3)]

        def run():
            other.options(fresh=True)()
            return reads()
    """,
    "a resource that takes no weak reference": """
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
    """,
}


@pytest.mark.parametrize("rule", RULES)
def test_variables(rule):
    """A resumed function has the variables it had: its own, and those it shares with others."""
    survives(RULES[rule])


LEFT_BEHIND = {
    "a child": """
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
    "children of a helper, one of which fails": """
        @workflow
        def child(notes):
            notes.append(work(1))

        @workflow
        def failing(notes):
            notes.append(work(2))
            raise ValueError("no")

        def asking(notes):
            child(notes)
            try:
                failing(notes)
            except ValueError as error:
                notes.append(str(error))
            work(3)
            work(4)
            return notes

        @workflow
        def run():
            return asking([])
    """,
    "an attribute that was deleted": """
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
    "what a with block has bound and closed": """
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
    "a key that was renamed": """
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
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_is_left_behind(what):
    """Objects are as a workflow, and its children, left them: also where a replay answers."""
    survives(LEFT_BEHIND[what], exactly=False, kills=3)


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


class Shelf(dict):
    """A class of the user's own, which may hold more than data."""


def test_a_resource_is_no_plain_data():
    """A factory that returns plain data is refused: nothing distinguishes it from other data."""
    for data in ("url", 7, None, ["url"], {"url": 1}, ("url",)):
        with pytest.raises(stepwise.ConfigurationError, match="which is plain data"):
            stepwise.resource(lambda data=data: data)()
    made = stepwise.resource(lambda: Shelf(a=1))()
    assert (type(made), made) == (Shelf, {"a": 1})


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
    few = dump_few(values, Surroundings())
    assert (few is None) == (type(values["it"]) not in ITERATORS)
    for data in filter(None, (few, dump_values(values, Surroundings()))):
        loaded = load_values(bytes(data), Surroundings())
        again = copy.copy(values["it"])
        assert type(loaded["it"]) is type(again)
        if type(loaded["of"]) is list:
            loaded["of"].append("more")
            more = ["more"] if taken <= len(values["of"]) else []
            assert list(loaded["it"]) == [*again, *more]
        else:
            assert list(loaded["it"]) == list(again)


def test_nothing_but_the_frame_holds_what_was_loaded():
    """What was loaded is freed with its last name; no cycle keeps it until a collection."""
    data = dump_values({"message": Message()}, Surroundings())
    gc.disable()
    try:
        reader = Reader(None, Needs())
        loaded = load_values(bytes(data), Surroundings(), reader)
        message = weakref.ref(loaded.pop("message"))
        del reader
        assert message() is None
    finally:
        gc.enable()


def test_an_iterator_with_two_names():
    """An iterator that two variables name, or that a container holds as well, stays one."""
    for hold in (lambda it: it, lambda it: [it], lambda it: {"in": (it,)}):
        numbers = iter([1, 2, 3])
        values = {"it": numbers, "other": hold(numbers)}
        assert dump_few(values, Surroundings()) is None
        data = bytes(dump_values(values, Surroundings()))
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


REFUSED = {
    "an object": (
        """
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
        """,
        ["work(3)"],
        [
            *[("work(3)", "resumes at <<local = >>, after 1 step")],
            *[("work(4)", "resumes at <<work(4)>>, after 3 steps")],
            *[("", "at <<local.found>>: the variable 'local' is a _thread._local")],
            *[("", "inside the step that uses it"), ("", "@stepwise.resource"), ("", "`del` it")],
        ],
    ),
    "a part of an object, reported once": (
        """
        class Team:
            pass

        @workflow
        def run():
            team = Team()
            team.local = threading.local()
            work(1)
            work(2)
            team.local, team.items = None, (each for each in "ab")
            work(3)
            return work(4)
        """,
        ["work(2)", "work(3)", "work(4)"],
        [("", "the variable 'team.local' is a _thread._local")],
    ),
    "an open file": (
        """
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
        """,
        ["work(3)", "work(4)"],
        [
            ("work(2)", "the variable 'file' is a _io.TextIOWrapper"),
            ("work(2)", "an open file cannot be recorded"),
        ],
    ),
    "an array that is a file, to which is still written after a kill": (
        """
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
        """,
        ["work(3)", "work(4)", "work(5)"],
        [
            ("work(2)", "the variable 'found' is a numpy.memmap, which cannot be recorded"),
            ("work(4)", "the variable 'view' is a numpy.ndarray, which cannot be recorded"),
            ("work(7)", "resumes at <<work(7)>>"),
        ],
    ),
    "an attribute that the workflow set": (
        """
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
        """,
        ["work(3)"],
        [
            ("work(2)", "the variable 'self.guard' is a socket.socket"),
            ("work(3)", "resumes at <<self.guard = >>, after 1 step"),
            ("work(5)", "resumes at <<return [*names>>"),
        ],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_variable_that_cannot_be_recorded(what):
    """A variable that cannot be recorded is named once, with ways out; a run resumes before it."""
    program, back, expected = REFUSED[what]
    said = survives(program, back=back, kills=1)
    with lab_of(program) as lab:
        undisturbed = lab.run().text
    for call, text in expected:
        assert placed(program, text) in (said[call] if call else undisturbed)
    for name in set(re.findall("the variable ('[^']+')", undisturbed)):
        assert undisturbed.count(f"the variable {name}") == 1


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


def test_the_environment_is_not_stored(monkeypatch):
    """The environment and the names of a module, keys included, are in no checkpoint."""
    monkeypatch.setenv("AAA_API_KEY", key := "sk-fake-0123456789")
    monkeypatch.setitem(globals(), "API_KEY", f"{key}-global")

    class Settings:
        def __init__(self):
            self.env = os.environ

    def flow(given, settings): ...

    given = {"given": globals(), "settings": Settings()}
    around = Surroundings.of(flow, None, given, None, {})
    values = {**given, "env": os.environ, "inside": [{1: os.environb}, (vars(os), sys.modules)]}
    payload = bytes(dump_values(values, around))
    assert key.encode() not in payload
    loaded = load_values(payload, around)
    assert loaded["given"] is globals()
    assert loaded["settings"].env is loaded["env"] is os.environ
    (first, (second, third)) = loaded["inside"]
    assert (first[1] is os.environb, second is vars(os), third is sys.modules) == (True,) * 3
