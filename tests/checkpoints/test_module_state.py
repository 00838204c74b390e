"""Sentinels of a module, exceptions in variables, and globals, as they are after a kill."""

from __future__ import annotations

import importlib.util
import sys
import traceback

import pytest
from survival import lab_of, survives

from stepwise import step, workflow
from stepwise._checkpoints.variables import Surroundings, load_values
from stepwise._execution import process_memory
from stepwise._values import trees as sentinels
from stepwise._values.codec import Reducers, dump

SENTINELS = {
    "of modules and classes": """
        import dataclasses, inspect

        UNSET, LOCK = object(), threading.Lock()

        class NotGiven:
            def __bool__(self):
                return False

        class Named:
            def __init__(self, name):
                self.name = name

        class Config:
            UNSET, NONE = object(), NotGiven()

            class Inner:
                UNSET = object()

        class Holder:
            def __init__(self):
                self.lock = LOCK

        NOT_GIVEN, ABSENT = NotGiven(), Named("absent")

        @step
        def options():
            return {"text": "x" * 600, "temperature": NOT_GIVEN, "n": ABSENT}

        @workflow
        def flow(limit=UNSET):
            found, box, holder = UNSET, {"limit": [UNSET]}, Holder()
            def limited(limit=UNSET):
                return limit is UNSET
            missing, empty = [dataclasses.MISSING], inspect.Parameter.empty
            deep = {"unset": [Config.UNSET], "n": Config.NONE, "deep": Config.Inner.UNSET}
            given, kept = {"temperature": NOT_GIVEN, "n": ABSENT, "m": Named("absent")}, options()
            work(1)
            work(2)
            return [
                found is UNSET, box["limit"][0] is UNSET, limited(), limit is UNSET,
                missing[0] is dataclasses.MISSING, empty is inspect.Parameter.empty,
                deep["unset"][0] is Config.UNSET, deep["n"] is Config.NONE,
                deep["deep"] is Config.Inner.UNSET, holder.lock is LOCK,
                given["temperature"] is NOT_GIVEN, given["n"] is ABSENT, given["m"] is ABSENT,
                kept["temperature"] is NOT_GIVEN, kept["n"] is ABSENT, bool(NOT_GIVEN),
            ]

        run = lambda: flow()
    """,
    "one that was changed is state": """
        class Usage:
            def __init__(self):
                self.tokens = 0

        usage = Usage()

        @workflow
        def run():
            mine = usage
            mine.tokens += 5
            work(1)
            mine.tokens += 5
            work(2)
            return mine.tokens
    """,
}


@pytest.mark.parametrize("name", SENTINELS)
def test_sentinels(name):
    """What a module holds to be compared with ``is`` is the same object after a kill."""
    survives(SENTINELS[name], exactly=False)


SHARED = {
    "a list and a table": """
        TOOLS, TABLE = [1, 2], {"rows": [[1], [2]], 3: {4}}

        class Agent:
            pass

        @workflow
        def run():
            tools, table, agent = TOOLS, TABLE, Agent()
            agent.tools, agent.rows, agent.all = tools, table["rows"], [table, table["rows"][1]]
            work(1)
            tools.append(work(2))
            agent.rows[0].append(work(3))
            work(4)
            return [
                agent.tools is tools, agent.rows is table["rows"], agent.all[0] is table,
                agent.all[1] is agent.rows[1], agent.tools, repr(table),
            ]
    """,
    "one that holds itself": """
        RING = [0]
        RING.append(RING)

        @workflow
        def run():
            ring, held = RING, [RING]
            work(1)
            ring[0] = work(2)
            return [ring[1] is ring, held[0] is ring, held[0][0]]
    """,
}


INSTANCES = {
    "of many kinds": """
        import dataclasses, datetime, pathlib
        from collections import OrderedDict, defaultdict, deque

        @dataclasses.dataclass
        class Limits:
            until: datetime.date
            most: int = 3

        class Slots:
            __slots__ = ("size", "inner")

        class Items(list):
            pass

        class Table(dict):
            pass

        class State:
            def __init__(self):
                self.n, self.call = 0, lambda: 1

            def __getstate__(self):
                return {"n": self.n}

            def __setstate__(self, state):
                self.__init__()
                self.n = state["n"]

        class Config:
            def __init__(self):
                self.state, self.lock = State(), threading.Lock()
                self.tables = OrderedDict(a={1, 2}), defaultdict(list, b=[deque([1])])
                self.limits, self.folder = Limits(datetime.date(2026, 1, 1)), pathlib.Path("x")
                self.slots, self.items, self.table = Slots(), Items([1]), Table(a=1)
                self.slots.size, self.slots.inner = 1, {"deep": [Slots(), ("a", {1})]}
                self.items.note = "n"

        CONFIG = Config()

        @workflow
        def run():
            config, limits, deep = CONFIG, CONFIG.limits, CONFIG.slots.inner["deep"][0]
            held, parts = [config.state, config.items], lambda: [CONFIG.state, CONFIG.items]
            work(1)
            same = [
                config is CONFIG, limits is CONFIG.limits, deep is CONFIG.slots.inner["deep"][0],
                *(mine is own for mine, own in zip(held, parts())),
            ]
            config.limits.most = work(4)
            return [*same, limits.most, CONFIG.limits.most]
    """,
}


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_of_the_module_is_the_one_that_its_global_holds(name):
    """An instance that a variable has from a global is the global's after a kill, as before it."""
    survives(INSTANCES[name], exactly=False)


AGENTS = """
        MODE = "a constant of the module"

        class Agent:
            def __init__(self, n):
                self.n, self.mode, self.done = n, MODE, 0

        AGENTS = [Agent(1), Agent(2), Agent(3)]

        @workflow
        def run():
            for agent in AGENTS:
                agent.done = work(10 * agent.n)
            return [agent.done for agent in AGENTS]
    """


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_loop_over_instances_of_the_module(moment):
    """Killed before it has changed any of them, a loop changes the instances of the module."""
    with lab_of(AGENTS) as lab:
        assert lab.run(die_at=f"work(10) {moment}").died, lab.said
        assert lab.run().code == 0, lab.said
        assert lab.result == [10, 20, 30], lab.said


KEPT = {
    "changed before the kill": """
        class Agent:
            done = 0

        AGENT = Agent()

        @workflow
        def run():
            agent, again = AGENT, [AGENT]
            agent.done = work(1)
            agent.done += work(2)
            return [agent.done, again[0] is agent]
    """,
    "that hold each other": """
        class Part:
            def __init__(self, whole):
                self.whole, self.size = whole, 1

        class Whole:
            def __init__(self):
                self.part = Part(self)

        WHOLE = Whole()

        @workflow
        def run():
            whole, part = WHOLE, WHOLE.part
            part.size = work(2)
            work(3)
            return [whole.part is part, part.whole is whole, whole.part.size]
    """,
    "of more than a hundred": """
        class Link:
            def __init__(self, n):
                self.n, self.next = n, None

        CHAIN = last = Link(0)
        for number in range(3000):
            last.next = last = Link(number)

        @workflow
        def run():
            chain, second = CHAIN, CHAIN.next
            second.n = work(2)
            work(3)
            return [chain.next is second, chain.next.n]
    """,
    "that compares equal": """
        import dataclasses

        @dataclasses.dataclass
        class Child:
            n: int = 1
            log: list = dataclasses.field(default_factory=list, compare=False)

        @dataclasses.dataclass
        class Parent:
            child: Child

        PARENT = Parent(Child())

        @workflow
        def run():
            parent, child = PARENT, PARENT.child
            child.log.append(work(1))
            work(2)
            return [parent.child is child, parent.child.log]
    """,
}


@pytest.mark.parametrize("name", KEPT)
def test_instances_of_the_module_that_changed_stay_one_in_the_variables(name):
    """Instances that a run had changed come back as they were, and shared as they were."""
    survives(KEPT[name], exactly=False)


@pytest.mark.parametrize("name", SHARED)
def test_a_container_of_the_module_stays_shared_among_variables(name):
    """A list of the module that two variables hold, in part or whole, is one list after a kill."""
    survives(SHARED[name], exactly=False)


def test_a_sentinel_of_another_module(tmp_path, monkeypatch):
    """A sentinel is found though its class is of another module than the one that holds it."""
    monkeypatch.syspath_prepend(tmp_path)
    tmp_path.joinpath("sentinel_lib.py").write_text(
        "class Sentinel:\n    def __init__(self, name): self.name = name\n"
    )
    tmp_path.joinpath("sentinel_user.py").write_text(
        "import sentinel_lib\nUNSET = sentinel_lib.Sentinel('unset')\n"
    )
    import sentinel_user  # type: ignore[import-not-found]

    sentinels.look_for({"__name__": __name__, "user": sentinel_user})
    around = Surroundings()
    (loaded, _, _) = load_loaded(sentinel_user.UNSET, around)
    assert loaded is sentinel_user.UNSET
    (loaded, _, _) = load_loaded(sentinel_user.sentinel_lib.Sentinel("unset"), around)
    assert loaded is not sentinel_user.UNSET


def test_a_proxy_in_a_module_is_not_asked_for_its_class(tmp_path, monkeypatch):
    """Objects that load on use (those of ``openai``, say) are not loaded by a look at a module."""
    monkeypatch.syspath_prepend(tmp_path)
    tmp_path.joinpath("lazy_lib.py").write_text(
        "class Proxy:\n    @property\n    def __class__(self): raise ImportError('loaded')\n"
        "beta = Proxy()\nclass Config:\n    beta = Proxy()\n"
    )
    import lazy_lib  # type: ignore[import-not-found]

    sentinels.look_for({"__name__": __name__, "lib": lazy_lib})
    assert "lazy_lib" in sentinels._looked_at


def load_loaded(value, around):
    """A value that went through a pickle of variables."""
    data = bytes(dump(({"value": value}, [], {}, []), Reducers()))
    return load_values(data, around)["value"], None, None


def test_a_global_that_cannot_be_recorded():
    """A global that the workflow assigns and that does not pickle keeps it from no checkpoint."""
    survives(
        """
        total, guard = 0, None

        @workflow
        def run():
            global total, guard
            total, guard = work(1), [threading.local()]
            log("locked")
            total += work(2)
            total += work(3)
            return total
    """
    )


def test_kept_exceptions():
    """An exception in a variable keeps what it was raised from, and prints as before."""
    survives(
        """
        import traceback

        class Odd(Exception):
            def __init__(self, code, *, lock=None):
                super().__init__(f"odd {code}")
                self.code, self.lock = code, lock

        def fail():
            try:
                try:
                    raise ValueError("root")
                except ValueError as root:
                    raise Odd(5) from root
            except Odd:
                raise KeyError("k") from None

        @workflow
        def run():
            try:
                fail()
            except KeyError as error:
                last = error
            try:
                raise Odd(1, lock=threading.Lock())
            except Odd as odd:
                try:
                    raise RuntimeError("after a lock") from odd
                except RuntimeError as error:
                    other = error
            work(1)
            work(2)
            odd, text = last.__context__, "".join(traceback.format_exception(last))
            return [
                last.__cause__ is None, last.__suppress_context__, type(odd).__name__, odd.code,
                repr(odd.__cause__), odd.__cause__ is odd.__context__, "in fail" in text,
                [each.name for each in traceback.extract_tb(last.__traceback__)],
                [each.lineno for each in traceback.extract_tb(odd.__traceback__)],
                str(other), "odd 1" in str(other.__cause__),
            ]
        """,
        exactly=False,
    )


def test_a_kept_exception_can_be_raised_again():
    """It is raised, and its traceback printed, as any other."""
    try:
        {}["nobody"]
    except KeyError as error:
        kept = error
    from stepwise._checkpoints.exceptions import raised_form

    make, args, history, _, _, set_history = raised_form(kept)
    again = make(*args)
    set_history(again, history)
    with pytest.raises(KeyError) as caught:
        raise again
    text = "".join(traceback.format_exception(caught.value))
    assert text.count(f'File "{__file__}"') == 2
    assert '{}["nobody"]' in text


ASSIGNED = """
    TOTAL, notes, client = 0, [], None

    @workflow
    def flow(n):
        global TOTAL, notes, client
        client = threading.Lock()
        for i in range(n):
            TOTAL += work(i)
            notes = [*notes, i]
        return [TOTAL, notes]
"""


def test_assigned_globals():
    """A global that the workflow assigns goes on from the value that it had; a lock is left out."""
    survives(f"{ASSIGNED}\n    def run():\n        return flow(4)", exactly=False)


def test_a_global_that_the_process_changed_is_left():
    """What something else has assigned meanwhile is left as it is, and told."""
    program = f"""{ASSIGNED}
    @workflow
    def other():
        global TOTAL
        TOTAL += 100
        return TOTAL

    def run():
        if sys.argv[1:]:
            other()
        return flow(4)
    """
    with lab_of(program) as lab:
        assert lab.run(die_at="work(3) before").died
        lab.arguments = ["again"]
        ended = lab.run()
        assert ended.code == 0, ended.text
        assert lab.result[0] == 103
        assert "TOTAL (it was 3 and is 100), since this process changed it" in ended.text
        assert ended.text.count("these globals are not restored") == 1


def test_containers_that_were_changed_in_place_are_named():
    """A module's container that the run changed is not restored, which is told once, by name."""
    program = """
        budget, untouched = {"usd": 1.0}, [1]

        class Usage:
            tokens = 0

        usage = Usage()

        def spend():
            usage.tokens += 1

        @step
        def think(i):
            budget["usd"] -= 0.25
            return work(i)

        @workflow
        def run():
            for i in range(4):
                think(i)
                spend()
            return len(untouched) + budget["usd"] + usage.tokens
    """
    with lab_of(program) as lab:
        assert lab.run(die_at="work(2) before").died
        ended = lab.run(die_at="work(3) before")
        assert ended.died
        again = lab.run()
        for text in (ended.text, again.text):
            told = [line for line in text.splitlines() if "are not restored" in line]
            assert len(told) == 1
            assert "changes in budget, usage of the module" in told[0]
            assert "untouched" not in text


CHANGES = {
    "Agent.calls": "Agent.bump()",
    "Agent.log": "Sub.log.append(1)",
    "Agent._count": "Agent._count += 1",
    "Agent.Inner.seen": "Agent.Inner.seen[1] = 2",
    "Agent.fresh": "Agent.fresh = 1",
    "Agent(add.seen)": "Agent.add(1)",
    "helper": "helper.calls = getattr(helper, 'calls', 0) + 1",
    "helper(seen)": "helper(1)",
    "helper(known)": "helper.__kwdefaults__['known'].add(1)",
    "total": "count()",
    "slots.size": "slots.size += 1",
    "queue": "queue.append(1)",
    "groups": "groups['a'].append(1)",
    "pair": "pair[0].append(1)",
    "noted": "noted(1)",
    "TOOLS['note']": "TOOLS['note'](1)",
    "put.args[0]": "put(1)",
    "ask": "ask(1)",
    "Agent.ids": "next(Agent.ids)",
    "Meta.made": "Meta.made.append(1)",
    "ids": "next(ids)",
    "rows": "next(rows)",
    "numbers": "next(numbers)",
    "rng": "rng.random()",
    "jobs": "jobs.put(1)",
    "guarded": "guarded.add(1)",
    "tally": "tally.by['a'] += 1",
    "closure.calls": "wrapped()",
    "behind": "Agent.reach()",
    "of_instance": "guarded.reach()",
}


def test_all_that_a_module_keeps_is_watched():
    """What a run changes in classes, functions, defaults and containers is told once, by name."""
    changes = "\n            ".join(CHANGES.values())
    program = f"""
        import functools, itertools, queue, random
        from collections import Counter, defaultdict

        class Meta(type):
            made = []

        class Base:
            @staticmethod
            def reach():
                behind.append(1)

        class Agent(Base, metaclass=Meta):
            calls, log, _count, untouched, ids = 0, [], 0, [], itertools.count()

            class Inner:
                seen = {{}}

            @classmethod
            def bump(cls):
                cls.calls += 1

            @staticmethod
            def add(item, seen=[]):
                seen.append(item)

        class Sub(Agent):
            pass

        class Guarded:
            def __init__(self):
                self.lock, self.items = threading.Lock(), []

            def add(self, item):
                with self.lock:
                    self.items.append(item)

            def reach(self):
                of_instance.append(1)

        class Tally:
            def __init__(self):
                self.by = Counter()

        def counted(function):
            calls = 0
            @functools.wraps(function)
            def wrapper():
                nonlocal calls
                calls += 1
            return wrapper

        @counted
        def wrapped():
            pass

        ids, rows, numbers = itertools.count(), iter([1, 2]), (n for n in [1, 2])
        rng, jobs, guarded = random.Random(1), queue.Queue(), Guarded()
        tally, left_alone = Tally(), Tally()
        behind, of_instance, lock, kept_ids = [], [], threading.Lock(), itertools.count()

        class Slots:
            __slots__ = ("size",)

        slots, queue, groups, pair, total = Slots(), deque(), defaultdict(list), ([],), 0
        slots.size = 0

        class Notes:
            def __init__(self):
                self.items = []

            def note(self, item):
                self.items.append(item)

            def __call__(self, item):
                self.items.append(item)

        noted, ask = Notes().note, step(Notes())
        TOOLS = {{"note": Notes().note, "len": len, "untouched": Notes().note}}
        put = functools.partial(Notes.note, Notes())

        def helper(item, seen=[], *, known=set()):
            seen.append(item)

        def untouched(item, seen=[]):
            return seen

        def count():
            global total
            total += 1

        def change():
            {changes}

        @workflow
        def run():
            work(1)
            change()
            untouched(1)
            with lock:
                work(left_alone.by["b"])
            work(len([kept_ids]) + 1)
            return work(3)
    """
    with lab_of(program) as lab:
        ended = lab.run(die_at="work(3) before")
        assert ended.died
        again = lab.run()
        for text in (ended.text, again.text):
            (told,) = [line for line in text.splitlines() if "are not restored" in line]
            named = told.partition("changes in ")[2].partition(" are not restored")[0]
            of_module, _, captured = named.partition(" of the module and the captured ")
            closed = [name for name in CHANGES if name.startswith("closure.")]
            assert [f"closure.{name}" for name in captured.split(", ")] == closed
            assert sorted(of_module.split(", ")) == sorted({*CHANGES} - {*closed})


CAPTURED = """
    def counting():
        count, seen, model = 0, [], ["untouched"]
        @step
        def ask(i):
            nonlocal count
            count += len(model)
            seen.append(i)
            return work(i)
        {0}
        return ask
    ask = counting()
    {1}
"""
FLOW = """@workflow
{0}def run():
{0}    for i in range(4):
{0}        ask(i)
{0}    return len("four")
"""


@pytest.mark.parametrize("inside", [False, True])
def test_captured_variables_that_were_changed_are_named(inside):
    """What a step did to variables of the function around it is not restored, which is told."""
    if inside:
        program = CAPTURED.format(FLOW.format(" " * 8) + "        return run", "run = ask")
    else:
        program = CAPTURED.format("", FLOW.format(" " * 4))
    with lab_of(program) as lab:
        assert lab.run(die_at="work(2) before").died
        ended = lab.run()
        told = [line for line in ended.text.splitlines() if "are not restored" in line]
        assert len(told) == 1
        assert "changes in the captured" in told[0]
        assert "count" in told[0]
        assert "seen" in told[0]
        assert "model" not in told[0]


counted = 0


def test_in_the_same_process(told):
    """Called again after it failed, the workflow goes on with the values of its checkpoint."""
    global counted
    counted = 0
    vars(process_memory.memory).update(vars(process_memory.ProcessMemory()))
    dying = [True]

    @step
    def price(i):
        return i

    def check(i):
        if i == 2 and dying:
            dying.pop()
            raise ValueError(i)

    @workflow
    def bill():
        global counted
        for i in range(1, 4):
            counted += price(i)
            check(i)
        return counted

    with pytest.raises(ValueError, match="2"):
        bill()
    assert bill() == 6
    assert bill() == 12  # another run
    assert "these globals are not restored" not in told()


@pytest.mark.parametrize("registered", [False, True])
def test_a_module_that_is_not_in_sys_modules_is_named(registered, told, tmp_path, monkeypatch):
    """An object of a plugin that has no entry in ``sys.modules`` is told at the first run."""
    path = tmp_path / "plugin.py"
    path.write_text("class Box:\n    pass\n")
    spec = importlib.util.spec_from_file_location("plugin", path)
    plugin = importlib.util.module_from_spec(spec)
    if registered:
        monkeypatch.setitem(sys.modules, "plugin", plugin)
    spec.loader.exec_module(plugin)

    @step
    def work(n):
        return n

    @workflow
    def flow():
        box = plugin.Box()
        work(1)
        work(2)
        return type(box) is plugin.Box

    assert flow()
    assert told().count("sys.modules['plugin'] = module") == (not registered)
