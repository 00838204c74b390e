"""What steps change in what they are given, in programs that are killed and started again."""

import concurrent.futures
import dataclasses
import functools
import itertools
import sqlite3
import threading

import pytest
from calls import Calls
from clocks import LIMIT, late_once

import stepwise
from stepwise import ArgumentMutatedWarning, Landed, step, tool, workflow
from stepwise.testing import SimulatedCrash, crash_at

STATE = """
import random
@dataclasses.dataclass
class State:
    messages: list = dataclasses.field(default_factory=list)
    cost: float = 0.0
    best: dict = dataclasses.field(default_factory=dict)
    seen: set = dataclasses.field(default_factory=set)
    rng: random.Random = dataclasses.field(default_factory=lambda: random.Random(1))
@step
def think(state, other, n):
    if n == 3: crash()
    state.messages.append(n)
    other["log"].append(n)
    state.cost += 0.5
    state.best["n"] = n
    state.seen.add(n)
    drawn = state.rng.random()
    did("think", "-", n)
    return drawn
@workflow
def run():
    state = State()
    other = {"log": state.messages}
    KEPT = state.messages
    BLOCK
        drawn = [think(state, other, n) for n in range(5)]
    return (
        state.messages, state.cost, state.best, sorted(state.seen), drawn,
        KEPT is state.messages, other["log"] is state.messages,
    )
print("result", repr(run()))
"""


@pytest.mark.parametrize("block", ["with open(os.devnull):", "if True:"], ids=["replay", "inside"])
def test_a_state_object_that_a_step_changes(block):
    """Lists, attributes, dicts, sets and generators of a state are as they were; aliases hold."""
    with Calls(STATE.replace("BLOCK", block)) as program:
        program.crash()
        messages, cost, best, seen, drawn, *aliases = program.rerun()
        assert messages == [each for n in range(5) for each in (n, n)]
        assert (cost, best, seen) == (2.5, {"n": 4}, [0, 1, 2, 3, 4])
        assert len(set(drawn)) == 5
        assert aliases == [True, True]
        assert len(program.bodies) == 5


@step
def end():
    """Stands where a program is killed."""


def killed_and_again(flow):
    """Kill a workflow at its last step; return what it returns when it is called again."""
    with pytest.raises(SimulatedCrash), crash_at(end):
        flow()
    return flow()


@step
def rename(one, other):
    one["items"].append("new")
    other["items"][0]["name"] = "changed"
    return one


def test_two_arguments_that_share_a_list_share_it_afterwards():
    """The changes of a call are one graph, with its value: what was one object stays one."""

    @workflow(checkpoint_every=100)
    def flow():
        items = [{"name": "first"}]
        one, other = {"items": items}, {"items": items}
        found = rename(one, other)
        end()
        return items, found is one, one["items"] is other["items"] is items

    assert killed_and_again(flow) == ([{"name": "changed"}, "new"], True, True)


class Notes:
    def __init__(self):
        self.items, self.last = [["first"]], {"read": 0}

    @step
    def itself(self):
        return self

    @step
    def newest(self):
        return self.items[-1]

    @step
    def answered(self, question):
        return {"asked": question, "last": [self.last]}


@step
def same(value):
    return value


def test_what_a_step_returns_of_what_it_was_given_is_the_very_object():
    """A record of a call that changed nothing gives the caller's objects back, not copies."""

    @workflow(checkpoint_every=100)
    def flow():
        notes, question = Notes(), {"text": "why", "parts": ["one"]}
        returned = same(question), notes.itself(), notes.newest(), notes.answered(question)
        end()
        given = question, notes, notes.items[0], question, notes.last
        found = *returned[:3], returned[3]["asked"], returned[3]["last"][0]
        return [one is other for one, other in zip(found, given, strict=True)]

    assert killed_and_again(flow) == [True] * 5


@step(ignore=("state",))
def picked(name, state):
    return state[name]


@step(key=("name",))
def found(name, state):
    return state[name]


@pytest.mark.parametrize("look", [picked, found], ids=["ignore", "key"])
def test_what_a_step_returned_counts_where_the_given_objects_hold_something_else(look):
    """If an argument that does not count holds something else now, the recorded value is given."""
    held = iter([["then"], ["now"]])

    @workflow(checkpoint_every=100)
    def flow():
        with open(__file__):
            notes = look("notes", {"notes": next(held)})
            end()
        return notes

    assert killed_and_again(flow) == ["then"]


@step
def relabel(table):
    table.loc[1, "name"] = "new"
    return 1


@pytest.mark.parametrize("kind", ["str", "object"])
def test_a_text_of_a_table_that_a_step_changes(kind):
    """A text that a step writes into a table is there when its record answers, as in the first run.

    What occurs twice in the table is one object then, too.
    """
    pandas = pytest.importorskip("pandas")
    shared = ["shared"]

    def made():
        columns = {"name": ["a", "b", None], "number": [1.0, 2.0, 3.0]}
        if kind == "object":
            columns["more"] = [shared, shared, None]
        return pandas.DataFrame(columns).astype({"name": kind})

    @workflow(checkpoint_every=100)
    def flow():
        table = made()
        relabel(table)
        end()
        more = [table["more"][0] is table["more"][1]] if kind == "object" else []
        return [*table["name"].fillna("none"), *table["number"], *more]

    again = [True] if kind == "object" else []
    third = made()["name"].fillna("none")[2]  # before pandas 3, None became the text "None"
    assert killed_and_again(flow) == ["a", "new", third, 1.0, 2.0, 3.0, *again]


@step
def label(table):
    table.attrs["unit"] = "m"


def test_the_attrs_of_a_table_that_a_step_changes():
    """What a step puts into the ``attrs`` of a table is there when its record answers."""
    pandas = pytest.importorskip("pandas")

    @workflow(checkpoint_every=100)
    def flow():
        table = pandas.DataFrame({"name": ["a"]}, index=["x"])
        label(table)
        end()
        return table.attrs

    assert killed_and_again(flow) == {"unit": "m"}


class Agent:
    def __init__(self):
        self.history, self.extra = [], 1

    @functools.cached_property
    def size(self):
        return len(self.history)

    @functools.cached_property
    def lock(self):
        return threading.Lock()

    @step
    def work(self):
        self.history.append(self.size)
        assert self.lock is not None
        del self.extra
        return self.size


def test_what_is_read_lazily_and_what_is_deleted():
    """A cached property that a step fills is no warning; an attribute that it deletes is gone."""

    @workflow(checkpoint_every=100)
    def flow():
        agent = Agent()
        agent.work()
        end()
        return agent.history, hasattr(agent, "extra"), agent.size

    assert killed_and_again(flow) == ([0], False, 0)


@dataclasses.dataclass
class Session:
    user: str = "ann"
    token: str = "old"
    notes: list = dataclasses.field(default_factory=list)


@step
def log_in(session):
    session.token = "sk-live-0123456789"  # what must not be recorded
    session.notes.append({"api_key": "sk-live-9876543210"})
    session.user = "bob"


def test_a_secret_is_not_recorded_and_that_is_told(tmp_path):
    """A field whose name is masked is in no record, whoever holds it; the first run says so."""

    @workflow(checkpoint_every=100, store=str(tmp_path / "runs"))
    def flow():
        session = Session()
        log_in(session)
        end()
        return session.user

    with pytest.warns(ArgumentMutatedWarning, match=r"session\.token.*never recorded") as told:
        assert flow() == "bob"
    assert any("session.notes" in str(each.message) for each in told)
    stored = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"sk-live" not in stored


@step(ignore=("log",), redact=("shown",))
def note(log, shown, kept):
    log.append("x")
    shown.append("y")
    kept.append("z")


def test_what_is_left_out_of_records_is_left_out_of_changes():
    """Changes of ignored and redacted arguments are told, and missing when the call is answered."""

    @workflow(checkpoint_every=100)
    def flow():
        log, shown, kept = [], [], []
        note(log, shown, kept)
        end()
        return log, shown, kept

    with pytest.warns(ArgumentMutatedWarning, match="'note' changed log, shown, which is never"):
        assert killed_and_again(flow) == ([], [], ["z"])


@step
def take(source):
    return next(source[0])


ITERATORS = {
    "a list": lambda: iter([1, 2, 3]),
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1, 2]),
    "chain": lambda: itertools.chain([1], [2]),
    "islice": lambda: itertools.islice(itertools.count(1), 3),
    "enumerate": lambda: enumerate("ab"),
    "zip": lambda: zip([1, 2], itertools.repeat(3), strict=False),
    "map of a map": lambda: map(abs, map(int, "12")),
    "filter": lambda: filter(None, [1, 2]),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
@pytest.mark.filterwarnings("ignore:Pickle, copy:DeprecationWarning")
def test_an_iterator_that_went_on_is_told_at_the_first_run(make):
    """What cannot be put back is said where it happens, with the way out."""

    @workflow
    def flow(held):
        return take(held)

    with pytest.warns(ArgumentMutatedWarning, match=r"source\[0\].*Return the change"):
        assert flow([make()]) == next(make())


def test_a_body_in_an_executor_records_no_change():
    """What a body changes in a thread of an executor is told, and is not recorded."""
    with concurrent.futures.ThreadPoolExecutor() as pool:

        @step(executor=pool)
        def fill(items):
            items.append(1)

        @workflow
        def flow():
            fill(items := [])
            return items

        with pytest.warns(ArgumentMutatedWarning, match="'.*fill' changed items, in an executor"):
            flow()


def test_a_body_past_its_timeout_records_no_change(monkeypatch):
    """What an abandoned body has changed is told, and is not recorded."""
    changed, go = threading.Event(), threading.Event()
    late_once(monkeypatch, changed)

    @step(timeout=LIMIT)
    def slow(items):
        items.append(1)
        changed.set()
        go.wait()

    @workflow
    def flow():
        try:
            slow([])
        except stepwise.StepTimeoutError:
            return "late"

    with pytest.warns(ArgumentMutatedWarning, match="changed items, by a body that goes on past"):
        assert flow() == "late"
    go.set()


together = threading.Barrier(2)


def test_many_calls_at_once_over_one_state():
    """A change that could be another call's is told; states of one call each lose nothing."""

    @step
    def add(state, own, n):
        own.append(n)
        state["sum"] = state.get("sum", 0) + n
        if n < 2:  # else the calls might come one after the other
            together.wait(300)
        return n

    @workflow
    def flow():
        state, owns = {}, [[] for _ in range(50)]
        stepwise.map(lambda n: add(state, owns[n], n), range(50), max_workers=8)
        return owns

    with pytest.warns(ArgumentMutatedWarning, match="while other calls that hold it"):
        assert flow() == [[n] for n in range(50)]


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_step_writes_into_a_database(tmp_path, kept, recwarn):
    """What a step writes through a connection is warned of if it ends with the process."""

    @step
    def write(connection):
        with connection:
            connection.execute("create table notes (text)")
            connection.execute("insert into notes values ('about tides')")

    @workflow
    def flow():
        connection = connect()
        write(connection)
        connection.close()

    @stepwise.resource
    def connect():
        return sqlite3.connect(tmp_path / "notes.db" if kept else ":memory:")

    flow()
    told = [str(each.message) for each in recwarn if each.category is ArgumentMutatedWarning]
    assert bool(told) is not kept


def traveller(in_doubt):
    class Traveller:
        def __init__(self):
            self.log = []

        @step
        def plan(self):
            self.log.append("plan")

        @tool(name="book", side_effect=True, in_doubt=in_doubt)
        def book(self):
            self.log.append("book")
            return end()

        @workflow
        def run(self):
            self.plan()
            return self.book(), self.log

    return Traveller


@pytest.mark.parametrize("asks", [True, False])
def test_what_a_call_that_landed_may_have_changed_is_named(told, asks):
    """Of a call in doubt that has landed, only the result is known: the rest is told."""
    made = traveller((lambda call: Landed("booked")) if asks else "raise")
    with pytest.raises(SimulatedCrash), crash_at(end):
        made().run()
    if not asks:
        stepwise.runs()[0].resolve("book", landed="booked")
    assert made().run() == ("booked", ["plan"])
    assert "If it changed self.log before its process died, that is missing" in told()
