"""Which run a start means: ``start=``, one identity for a file, ``run_id_for``, what differs."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
import uuid

import pytest
from harness import python
from killed import forget_process
from sweeping import some

import stepwise
from stepwise import ConfigurationError, RunConflictError, RunWarning, step, workflow

HEAD = """
import os, sys, time, uuid
import stepwise

def dies(here=True):
    if here and "DIE" in os.environ:
        os._exit(9)

def fails():
    if "FAIL" in os.environ:
        raise OSError("away")

def each(*calls):
    for call in calls:
        try:
            print(call())
        except OSError:
            print("failed")
"""


@pytest.fixture
def program(tmp_path):
    """A file with a program; executed in its folder, it gives what was printed, and told."""
    folder = tmp_path / "project"
    folder.mkdir()

    def execute(*arguments, cwd=folder, **environment):
        environment = {**os.environ, "STEPWISE_QUIET": "", **environment}
        done = python(
            *(arguments or ["agent.py"]),
            cwd=cwd,
            env=environment,
            code=(9 if "DIE" in environment else 0),
        )
        return done.stdout.split("\n")[:-1], done.stderr

    def write(text, name="agent.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{HEAD}{text}")
        return execute

    return write


def ids():
    return {run.id for run in stepwise.runs()}


# -- start= --------------------------------------------------------------------------------------

POLL = """
@stepwise.step
def check():
    print("check")
    return ["m1", "m2"]

@stepwise.tool(side_effect=True)
def reply(mail):
    print("reply", mail)
    return mail

@stepwise.workflow{options}
def poll(box="in"):
    for mail in check():
        reply(mail)
        dies(mail == "m1")

if __name__ == "__main__":
    poll()
"""
WHOLE = ["check", "reply m1", "reply m2"]


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_cron_job_resumes_what_crashed_and_else_starts_anew(program, way):
    """``start="unfinished"`` resumes the crashed run, and starts a new one where none is."""
    chosen = {} if way == "option" else {"STEPWISE_START": "unfinished"}
    poll = program(POLL.format(options="(start='unfinished')" if way == "option" else ""))
    assert poll(**chosen)[0] == WHOLE
    assert poll(**chosen)[0] == WHOLE
    assert poll(DIE="1", **chosen)[0] == ["check", "reply m1"]
    assert poll(**chosen)[0] == ["reply m2"]
    assert poll(**chosen)[0] == WHOLE
    assert [run.status for run in stepwise.runs()] == ["completed"] * 4


def test_the_newest_of_several_unfinished_runs(program):
    """Of several unfinished runs the newest goes on, the others are told; each start takes one."""
    poll = program(POLL.format(options=""))
    for _ in range(3):
        poll(DIE="1", STEPWISE_START="new")
    newest, *others = (run.id for run in stepwise.runs())
    printed, told = poll(STEPWISE_START="unfinished")
    assert printed == ["reply m2"]
    assert stepwise.get_run(newest).status == "completed"
    assert f"{newest} is the newest unfinished run of these arguments" in told
    assert f"there are others: {', '.join(others)}" in told
    assert poll(STEPWISE_START="unfinished")[0] == ["reply m2"]
    printed, told = poll(STEPWISE_START="unfinished")
    assert (printed, "others" in told) == (["reply m2"], False)
    assert poll(STEPWISE_START="unfinished")[0] == WHOLE


def test_a_run_that_somebody_executes_is_not_taken_up():
    """``start="unfinished"`` leaves alone what another call executes, and starts a new run."""
    inside, done = threading.Event(), threading.Event()

    @workflow(start="unfinished")
    def wait(number):
        if not inside.is_set():
            inside.set()
            assert done.wait(300)
        return number

    first = threading.Thread(target=wait, args=(1,))
    first.start()
    assert inside.wait(300)
    assert wait(1) == 1
    done.set()
    first.join()
    assert [run.status for run in stepwise.runs()] == ["completed"] * 2


def test_a_run_that_another_process_completes_meanwhile(monkeypatch):
    """What is no longer unfinished when its turn comes is not answered with its old result."""
    made = []

    @workflow(start="unfinished")
    def count():
        made.append(len(made))
        if len(made) == 1:
            raise OSError("once")
        return made[-1]

    with pytest.raises(OSError, match="once"):
        count()
    (run,) = stepwise.runs()
    plain = stepwise._workflows.begin.TopLevel.invocation

    def later(call, store, run_id, **how):
        monkeypatch.setattr(stepwise._workflows.begin.TopLevel, "invocation", plain)
        assert run_id == run.id
        count.options(run_id=run.id)()  # as another process would
        return plain(call, store, run_id, **how)

    monkeypatch.setattr(stepwise._workflows.begin.TopLevel, "invocation", later)
    assert count() == 2
    assert len(stepwise.runs()) == 2


def test_a_retry_loop_with_unfinished():
    """Called again after an exception, in the same process, the unfinished run resumes."""
    log = []

    @step
    def fetch(number):
        log.append(number)
        if log == [0, 1]:
            raise OSError("away")
        return number

    @workflow(start="unfinished")
    def both(start):
        return [fetch(start), fetch(start + 1)]

    with pytest.raises(OSError, match="away"):
        both(0)
    assert both(0) == [0, 1]
    assert log == [0, 1, 1]
    assert both(0) == [0, 1]
    assert len(stepwise.runs()) == 2


@pytest.mark.parametrize("way", ["start", "fresh", "STEPWISE_START=new", "STEPWISE_FRESH=1"])
def test_new_is_new_after_a_failure(monkeypatch, way):
    """A new run that failed is not resumed by the next new one in the process."""
    log = []

    @step
    def one():
        log.append("one")

    @workflow
    def agent(number):
        one()
        if len(log) < 2:
            raise ValueError("first time")
        return "ok"

    called = agent
    if "=" in way:
        monkeypatch.setenv(*way.split("="))
    else:
        called = agent.options(**{"start": {"start": "new"}, "fresh": {"fresh": True}}[way])
    with pytest.raises(ValueError, match="first time"):
        called(1)
    assert called(1) == "ok"
    assert log == ["one", "one"]
    assert sorted(run.status for run in stepwise.runs()) == ["completed", "failed"]


def test_a_new_run_is_reached_by_its_id(program):
    """``run_id=`` and ``STEPWISE_RESUME`` name a run, whatever ``start=`` says."""
    poll = program(POLL.format(options="(start='new')"))
    poll(DIE="1")
    (run,) = stepwise.runs()
    assert poll(STEPWISE_RESUME=run.id)[0] == ["reply m2"]
    poll(DIE="1")
    run = stepwise.runs()[0]
    code = f"import agent; agent.poll.options(run_id={run.id!r})()"
    assert poll("-c", code)[0] == ["reply m2"]
    assert {each.status for each in stepwise.runs()} == {"completed"}


def test_a_child_belongs_to_its_caller():
    """A child with ``start="new"`` is a new run for each call, which its caller finds again."""
    log = []

    @step
    def work(number):
        log.append(number)
        if log == [1, 2]:
            raise OSError("away")
        return number

    @workflow(start="new")
    def child(number):
        return work(number)

    @workflow
    def parent():
        return [child(1), child(2)]

    with pytest.raises(OSError, match="away"):
        parent()
    before = ids()
    assert parent() == [1, 2]
    assert (ids(), log) == (before, [1, 2, 2])


def test_bad_starts(monkeypatch):
    """What ``start=`` cannot mean is refused, where it is written."""
    with pytest.raises(
        ConfigurationError, match="start='latest' of workflow 'f': it must be 'same'"
    ):

        @workflow(start="latest")
        def f():
            pass

    @workflow
    def agent():
        return 1

    with pytest.raises(ConfigurationError, match="fresh=True and start='same' contradict"):
        agent.options(fresh=True, start="same")
    assert agent.options(fresh=True).options(fresh=False).definition.options.start is None
    kept = agent.options(start="unfinished").options(fresh=False)
    assert kept.definition.options.start == "unfinished"
    monkeypatch.setenv("STEPWISE_START", "again")
    with pytest.raises(ConfigurationError, match="STEPWISE_START='again': use 'same'"):
        agent()


# -- the n-th equal call -------------------------------------------------------------------------

PRICES = """
@stepwise.step
def price(ticker):
    return os.environ["PRICE"]

@stepwise.workflow{options}
def answer(ticker):
    return price(ticker)

@stepwise.workflow{options}
def items(ticker):
    yield price(ticker)

print(*[each for _ in range(3) for each in {call}("ACME")])
"""


@pytest.mark.parametrize("call", ["answer", "items"])
def test_a_later_call_that_another_process_answers_is_warned_about(program, call):
    """The second equal call of a process, answered by an earlier process, warns once, in words."""
    prices = program(PRICES.format(options="", call=call))
    printed, told = prices(PRICE="1")
    assert "RunWarning" not in told
    printed, told = prices(PRICE="2")
    assert printed == ["1 1 1"]
    assert told.count("RunWarning: a later call of") == 1
    for way in ("start='new'", "start='unfinished'", ".options(run_id=...)", "start='same'"):
        assert way in told
    prices = program(PRICES.format(options="(start='same')", call=call))
    assert "RunWarning" not in prices(PRICE="2")[1]


def test_a_warning_that_is_an_error_leaves_nothing_behind():
    """Where the warning is raised, the call can be made again, and nothing stays owned."""

    @workflow
    def items():
        yield 1

    assert [*items(), *items()] == [1, 1]
    forget_process()
    assert [*items()] == [1]
    with pytest.raises(RunWarning):
        [*items()]
    assert [*items()] == [1]


# -- one file, however it is started -------------------------------------------------------------

CHARGES = """
@stepwise.tool(side_effect=True)
def charge(number):
    print("charged", number, flush=True)

class Agent:
    model = "gpt"

    @stepwise.workflow
    def run(self, count):
        for number in range(count):
            charge(number)
            dies(number == 1)

@stepwise.workflow
def agent(count, model="gpt"):
    for number in range(count):
        charge(number)
        dies(number == 1)

def main():
    globals()[os.environ.get("CALL", "by_function")]()

def by_function():
    agent(3)

def by_method():
    Agent().run(3)

def by_id():
    agent.options(run_id="mine")(3)

if __name__ == "__main__":
    main()
"""
STARTS = {
    "script": ["agent.py"],
    "module": ["-m", "agent"],
    "import": ["-c", "import agent; agent.main()"],
    "package": ["-c", "import sys; sys.path.insert(0, '..'); import project.agent as a; a.main()"],
    "path": ["../project/agent.py"],
}


WAYS = [
    *((*pair, "by_function") for pair in itertools.permutations(STARTS, 2)),
    *((*pair, "by_method") for pair in itertools.permutations(["script", "module", "import"], 2)),
    *(("script", "module", "by_id"), ("import", "script", "by_id")),
]


@pytest.mark.parametrize(("first", "second", "call"), some(WAYS, 8, "starts"))
def test_one_file_is_one_workflow(program, first, second, call):
    """Begun by one way of starting a file, a run resumes by another; completed, it is recalled."""
    execute = program(CHARGES)
    assert execute(*STARTS[first], DIE="1", CALL=call)[0] == ["charged 0", "charged 1"]
    assert execute(*STARTS[second], CALL=call)[0] == ["charged 2"]
    printed, told = execute(*STARTS[first], CALL=call)
    assert (printed, "already completed" in told) == ([], True)
    assert len(stepwise.runs()) == 1


def test_a_step_of_a_file_that_is_started_and_imported(program):
    """Started and imported in one process, a file's steps answer each other's records."""
    execute = program(
        """
@stepwise.tool(side_effect=True)
def charge(number):
    print("charged", number, flush=True)

@stepwise.workflow(name="agent")
def agent():
    sys.modules[os.environ["FROM"]].charge(1)
    dies()

if __name__ == "__main__":
    import agent as imported
    agent()
"""
    )
    assert execute(DIE="1", FROM="__main__")[0] == ["charged 1"]
    assert execute(FROM="agent")[0] == []


# -- run_id_for ----------------------------------------------------------------------------------


def test_run_id_for_names_the_next_run():
    """Whatever was called before, the id that is promised is that of the next run."""
    log = []

    @step
    def work(topic):
        log.append(topic)
        if log.count("b") == 1 and topic == "b":
            raise OSError("away")

    @workflow
    def agent(topic):
        work(topic)

    def check(topic, **options):
        promised = agent.options(**options).run_id_for(topic)
        assert promised == agent.options(**options).run_id_for(topic)
        try:
            assert agent.options(**options).execute(topic).id == promised
        except OSError:
            assert stepwise.get_run(promised).status == "failed"
        return promised

    made = [check("a"), check("a"), check("a", run_id="mine"), check("a")]
    assert len(set(made)) == 4
    failed = check("b")
    assert check("b", start="unfinished") == failed
    forget_process()
    with pytest.warns(RunWarning):
        assert [check("a"), check("a"), check("a"), check("b")] == [*made[:2], made[3], failed]


def test_run_id_for_of_a_new_run(monkeypatch):
    """Where the id is only made up at the start, asking for it says so, and what to do instead."""

    @workflow
    def agent(topic):
        if not fine:
            raise OSError("away")

    fine = []
    for chosen in (agent.options(start="new"), agent.options(start="unfinished")):
        with pytest.raises(ConfigurationError, match=r"generated when it starts: give it an id"):
            chosen.run_id_for("a")
    with pytest.raises(OSError, match="away"):
        agent("a")
    (run,) = stepwise.runs()
    assert agent.options(start="unfinished").run_id_for("a") == run.id
    monkeypatch.setenv("STEPWISE_FRESH", "1")
    with pytest.raises(ConfigurationError):
        agent.run_id_for("a")
    assert agent.options(run_id="mine").run_id_for("a") == "mine"
    monkeypatch.delenv("STEPWISE_FRESH")
    new = run.fork(at=0)
    monkeypatch.setenv("STEPWISE_RESUME", new.id)
    fine.append(True)
    assert agent.options(start="new").run_id_for("a") == new.id
    assert agent.options(start="new").execute("a").id == new.id


def test_run_id_for_inside_a_run():
    """Asked inside a run, it is the id of the child run that the next call will be."""

    @workflow
    def child(number):
        return number

    @workflow
    async def achild(number):
        return number

    @workflow
    async def parent():
        pairs = []
        for _ in range(2):
            promised = child.run_id_for(1)
            pairs.append((promised, child.execute(1).id))
            promised = achild.run_id_for(1)
            pairs.append((promised, (await achild.execute(1)).id))
        return pairs

    pairs = asyncio.run(parent())
    assert all(promised == made for promised, made in pairs)
    assert len(set(pairs)) == 4


# -- what a run is told apart by -----------------------------------------------------------------

FACTORY = """
@stepwise.tool(side_effect=True)
def charge(what):
    print("charged", what, flush=True)
    dies()

def make(model):
    @stepwise.workflow
    def agent(question):
        charge(f"{model}: {question}")
        return f"{model}: {question}"
    return agent

@stepwise.workflow
def configured(question, model=os.environ.get("MODEL", "gpt")):
    charge((question, model))
    return model

@stepwise.workflow
def parent(models):
    return [make(model)("q") for model in models]

print(eval(sys.argv[1]))
"""


CLIENTS = """
import functools
import threading

class Client:
    def __init__(self, url):
        self.url, self.lock = url, threading.Lock()

class Agent:
    def __init__(self, client):
        self.client = client
    @stepwise.workflow
    def run(self, q):
        fails()
        return f"{self.client.url}: {q}"

def make(client):
    @stepwise.workflow
    def run(q):
        fails()
        return f"{client.url}: {q}"
    return run

def asking(client):
    @stepwise.step
    def ask(q):
        return f"{client.url}: {q}"
    return ask

def with_default(client):
    def ask(q, client=client):
        return f"{client.url}: {q}"
    return ask

class Model:
    def __init__(self, client):
        self.client = client
    def ask(self, q):
        return f"{self.client.url}: {q}"

def makes(ask):
    @stepwise.workflow(name="makes")
    def run(q):
        fails()
        return ask(q)
    return run

class Holder:
    def __init__(self, held):
        self.held = held
    @stepwise.workflow
    def run(self, q):
        fails()
        held = self.held[0] if isinstance(self.held, list) else self.held
        return held.ask(q) if isinstance(held, Model) else held(q)

if "DECLARED" in os.environ:
    stepwise.identity(Client, fields=["url"])
client = Client(sys.argv[1])
holding = {
    "method": Agent(client).run, "captured": make(client), "step": makes(asking(client)),
    "default": makes(with_default(client)),
    "partial": makes(functools.partial(with_default(None), client=client)),
    "bound": makes(Model(client).ask), "tools": Holder([asking(client)]).run,
    "model": Holder(Model(client)).run,
}
each(*(functools.partial(run, kind) for kind, run in holding.items()))
"""
HOLDING = ["method", "captured", "step", "default", "partial", "bound", "tools", "model"]


def test_clients_that_differ_in_a_declared_field(program):
    """A client counts by its declared fields, wherever an instance or a function holds it."""
    execute = program(CLIENTS)
    for url in ("one", "two", "one"):
        out, told = execute("agent.py", url, DECLARED="1")
        assert out == [f"{url}: {kind}" for kind in HOLDING]
    assert told.count("already completed") == len(HOLDING)


def test_a_run_that_began_before_a_field_was_declared(program):
    """A field that is declared later makes another run; the notice names the unfinished one."""
    execute = program(CLIENTS)
    assert execute("agent.py", "one", FAIL="1")[0] == ["failed"] * len(HOLDING)
    out, told = execute("agent.py", "one", DECLARED="1")
    assert out == [f"one: {kind}" for kind in HOLDING]
    assert told.count("unfinished beside it") == told.count("It differs in") == len(HOLDING)
    assert execute("agent.py", "one", DECLARED="1")[0] == out


FIELDS = """
import threading

class Engine:
    pass

class Client:
    def __init__(self):
        self.lock, self.engine, self.engines = threading.Lock(), Engine(), [Engine()]

    @property
    def url(self):
        raise RuntimeError("not connected yet")

class Agent:
    def __init__(self, field):
        self.client = type(f"Client{field}", (Client,), {})()
        stepwise.identity(type(self.client), fields=[field])

    @stepwise.workflow
    def run(self, q):
        charge(q)
        fails()
        return q

@stepwise.tool(side_effect=True)
def charge(q):
    print("charged", q)

each(*(lambda f=f: Agent(f).run(f) for f in ("engine", "engines", "url", "missing")))
"""


def test_a_declared_field_without_a_text(program):
    """A field with an address in its text, or that raises, counts by its class: the run resumes."""
    execute, fields = program(FIELDS), ["engine", "engines", "url", "missing"]
    begun = [line for field in fields for line in (f"charged {field}", "failed")]
    assert execute(FAIL="1")[0] == begun
    assert execute()[0] == fields


def test_a_default_of_the_environment(program):
    """A default that is computed belongs to the call; a value is one, given or as the default."""
    execute = program(FACTORY)
    assert execute("agent.py", "configured('q')")[0] == ["charged ('q', 'gpt')", "gpt"]
    assert execute("agent.py", "configured('q')", MODEL="claude")[0][-1] == "claude"
    assert execute("agent.py", "configured('q')")[0] == ["gpt"]
    assert execute("agent.py", "configured('q', 'gpt')", MODEL="claude")[0] == ["gpt"]


def test_children_of_a_factory(program):
    """Two children that differ in what they captured are two calls of their caller."""
    execute = program(FACTORY.replace("dies()", 'dies(what.startswith("b"))'))
    assert execute("agent.py", "parent(['a', 'b'])", DIE="1")[0] == ["charged a: q", "charged b: q"]
    (run,) = [run for run in stepwise.runs() if run.parent is None]
    (doubtful,) = [run for run in stepwise.runs() if run.status == "crashed" and run.parent]
    doubtful.resolve("charge", did_not_happen=True)
    printed, _ = execute("agent.py", "parent(['a', 'b'])")
    assert printed == ["charged b: q", "['a: q', 'b: q']"]
    assert {each.parent for each in stepwise.runs()} == {None, run.id}


ADDED = [
    ("q, a=1", "q, a=1, b=2"),
    ("q, a=1", "q, b=2, a=1"),
    ("q, a=1", "q, a=1, *, b=None, c=UNSET"),
    ("q", "q, a=1"),
]
CAPTURED = [("q", "more(q)"), ("q", "q * limit")]


BEFORE_EDITS = """
UNSET = object()
@stepwise.tool(side_effect=True)
def charge(what): print("charged", what, flush=True)
def main():
    model, limit = "gpt", 3
    @stepwise.step
    def more(q): return q
"""


def edited(version):
    """Return a program with workflows that get parameters, or capture more."""
    text = [BEFORE_EDITS]
    for n, parameters in enumerate(ADDED):
        head = f"    @stepwise.workflow\n    def added{n}({parameters[version]}):\n"
        text.append(f"{head}        charge((q, {n}))\n        fails()\n")
    for n, result in enumerate(CAPTURED):
        head = f"    @stepwise.workflow\n    def captured{n}(q):\n        charge((q, {n}, model))\n"
        text.append(f"{head}        fails()\n        return {result[version]}\n")
    flows = [f"added{n}" for n in range(4)] + [f"captured{n}" for n in range(2)]
    text.append(f"    each(*(lambda f=f: f('x') for f in ({', '.join(flows)})))\nmain()\n")
    return "".join(text)


@pytest.mark.parametrize("ended", ["failed", "completed"])
def test_a_parameter_that_is_added(program, ended):
    """A run without a parameter that has a default, or without a capture, is still the call's."""
    program(edited(0))(**({"FAIL": "1"} if ended == "failed" else {}))
    printed, _ = program(edited(1))()
    assert len(printed) == 6
    assert not [line for line in printed if "charged" in line]
    assert len(stepwise.runs()) == 6


def test_functions_and_classes_that_a_factory_is_given(program):
    """A workflow with another function, or class of that name, does not get the other's result."""
    execute = program(
        """
def short(q): return q[:1]
def long(q): return q * 2
class Base:
    @stepwise.workflow
    def run(self, q): return self.model + q
class Holder:
    def __init__(self, held): self.held = held
    @stepwise.workflow
    def run(self, q): return self.held.model + q
def class_of(name):
    class Agent:
        model = name
        @stepwise.workflow
        def run(self, q): return self.model + q
        @classmethod
        @stepwise.workflow
        def of_class(cls, q): return cls.model + q
    return Agent
def with_captured(held):
    @stepwise.workflow
    def run(q): return held.model + q
    return run
def make(answer):
    @stepwise.workflow
    def agent(q): return answer(q)
    return agent
def main(name):
    def one(q): return short(q)
    def two(q): return long(q)
    made, answer, settings = class_of(name), globals()[name], {"model": name}
    def ask(q): return settings["model"] + q
    @stepwise.workflow
    def beside(q): return answer(q)
    ways = [
        with_captured(made), with_captured(made()), made().run, made.of_class,
        type("Made", (Base,), {"model": name})().run, Holder(made).run, make(ask),
        make(answer), make({"short": one, "long": two}[name]), beside,
    ]
    each(*(lambda n=n, w=w: w(f"{n}b") for n, w in enumerate(ways)))
main(sys.argv[1])
"""
    )
    for name in ("short", "long", "short"):
        printed, told = execute("agent.py", name)
        answers = [f"{n}b" * 2 if name == "long" else str(n) for n in range(7, 10)]
        assert printed == [f"{name}{n}b" for n in range(7)] + answers
    assert told.count("already completed") == 10


def test_what_a_run_did_to_captured_variables():
    """A captured list or counter that runs change makes the next call no other one."""

    def make():
        results, count = [], 0

        @workflow
        def agent(number):
            nonlocal count
            count += 1
            results.append(number)
            return count

        return agent

    agent = make()
    made = [agent.execute(1).id for _ in range(3)]
    assert made == [made[0], f"{made[0]}-2", f"{made[0]}-3"]
    forget_process()
    agent = make()
    with pytest.warns(RunWarning):
        assert [agent.execute(1).id for _ in range(3)] == made


def test_functions_that_capture_each_other():
    """Captured functions that refer to each other, and to the workflow, have an end."""

    def make(depth):
        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != 0 and even(n - 1)

        @workflow
        def agent(n):
            return even(n) if n < depth else agent(n - 1)

        return agent

    ids_made = {make(depth).run_id_for(1) for depth in (2, 2, 3)}
    assert len(ids_made) == 2


@pytest.mark.parametrize(
    ("options", "changed", "named"),
    [
        ({}, lambda a: setattr(a, "model", "claude"), "the attribute 'model'"),
        (
            {},
            lambda a: setattr(a, "client", threading.Event()),
            "the attribute 'client'",
        ),
        ({}, lambda a: setattr(a, "__class__", Other), "the class"),
        ({}, lambda a: setattr(a, "session", uuid.uuid4()), ""),
        ({}, lambda a: setattr(a, "begun", time.time()), ""),
        ({}, lambda a: a.history.append(1), ""),
        ({"ignore": ("self.model",)}, lambda a: setattr(a, "model", "claude"), ""),
        ({"key": lambda self, q: q}, lambda a: setattr(a, "model", "claude"), ""),
    ],
)
def test_an_id_of_another_call(options, changed, named):
    """An explicit id of a run whose instance differs is a conflict that names what differs."""
    agent = Plain()
    agent.run.options(run_id="mine", **options)("q")
    forget_process()
    changed(agent)
    if named:
        with pytest.raises(RunConflictError, match=f"differing {named} of its instance\n"):
            agent.run.options(run_id="mine", **options)("q")
    else:
        assert agent.run.options(run_id="mine", **options)("q") == 1


class Plain:
    def __init__(self):
        self.model = "gpt"
        self.client = threading.Lock()
        self.session = uuid.uuid4()
        self.begun = time.time()
        self.history = []

    @workflow
    def run(self, q):
        return 1


class Other(Plain):
    pass


def test_an_id_of_another_default_or_capture():
    """The conflict names arguments and captured variables, too."""

    def make(model, limit):
        @workflow
        def agent(q, limit=limit):
            return model

        return agent.options(run_id="mine")

    make("gpt", 1)("q")
    forget_process()
    with pytest.raises(RunConflictError, match="differing the captured variable 'model'\n"):
        make("claude", 1)("q")
    with pytest.raises(RunConflictError, match="differing the argument 'limit'\n"):
        make("gpt", 2)("q")
    with pytest.raises(
        RunConflictError, match="differing the argument 'q', the argument 'limit', the capt"
    ):
        make("claude", 2)("r")
    assert make("gpt", 1)("q") == "gpt"


# -- times and random ids ------------------------------------------------------------------------

SESSIONS = """
import datetime, email.utils
@stepwise.tool(side_effect=True)
def charge(number):
    print("charged", number, flush=True)

M, EARLIER = os.environ.get("MODEL", "gpt"), "FAIL" in os.environ

class Session:
    def __init__(self):
        self.id, self.model = uuid.uuid4(), "gpt"

class Agent:
    def __init__(self, mark):
        self.mark, self.model = mark, M

    @stepwise.workflow
    def run(self, number):
        charge(number)
        fails()
        return f"done {{number}}"

def capturing(captured):
    @stepwise.workflow(name="capturing")
    def agent(number):
        charge(number)
        fails()
        return f"done {{number}}" if captured else None
    return agent

runs = [*(Agent(mark).run for mark in [{marks}]), *map(capturing, [{captured}])]
each(*(lambda n=n, run=run: run(n) for n, run in enumerate(runs)))
"""
MARKS = [
    *("uuid.uuid4()", "uuid.uuid1()", "uuid.uuid4().hex", "str(uuid.uuid4())"),
    *("time.time()", "int(time.time() * 1000)", "time.time_ns()", "time.perf_counter()"),
    "datetime.datetime.now()",
    "datetime.datetime.now(datetime.timezone.utc)",
    "datetime.datetime.now(datetime.timezone.utc).isoformat()",
    # Both starts may be in one second.
    "(datetime.datetime.now() - datetime.timedelta(seconds=EARLIER)).isoformat(timespec='seconds')",
    "time.ctime(time.time() - EARLIER)",
    "email.utils.formatdate(time.time() - EARLIER, usegmt=True)",
]
CAPTURES = ["time.time()", "uuid.uuid4()", "Session()"]
SAME_KIND = ["'invoice 12'", "uuid.uuid5(uuid.NAMESPACE_DNS, M)", "len(M)"]


def test_an_agent_with_a_time_or_a_random_id_resumes(program):
    """What is new at each start keeps an unfinished run from nothing, and is told."""
    execute = program(SESSIONS.format(marks=", ".join(MARKS), captured=", ".join(CAPTURES)))
    count = len(MARKS + CAPTURES)
    begun = [line for n in range(count) for line in (f"charged {n}", "failed")]
    assert execute(FAIL="1")[0] == begun
    printed, told = execute()
    assert printed == [f"done {n}" for n in range(count)]
    taken = "is taken over, although it differs in the attribute 'mark' of its instance"
    assert told.count(taken) == len(MARKS)
    assert [run.status for run in stepwise.runs()] == ["completed"] * count


@pytest.mark.parametrize("mark", SAME_KIND)
def test_an_agent_that_differs_otherwise_is_another(program, mark):
    """Another value of a kind that stays the same is another run, and the notice names it."""
    execute = program(SESSIONS.format(marks=mark, captured=""))
    execute(FAIL="1")
    (run,) = stepwise.runs()
    printed, told = execute(MODEL="claude")
    assert printed == ["charged 0", "done 0"]
    assert f"unfinished beside it: {run.id}(number=0)" in told
    assert "It differs in the attribute 'm" in told
    assert "the attribute 'model' of its instance" in told
    assert execute()[0] == ["done 0"]


def test_a_completed_run_of_another_session_does_not_answer(program):
    """The result of a session is not given to another one: that is a new run."""
    execute = program(SESSIONS.format(marks="uuid.uuid4()", captured=""))
    for _ in range(2):
        assert execute()[0] == ["charged 0", "done 0"]


def test_two_sessions_of_one_process():
    """In one process, an instance with another id does not go on with the run that failed there."""

    class Session:
        def __init__(self):
            self.id = uuid.uuid4()

        @workflow
        def run(self):
            if fails:
                raise OSError(fails.pop())
            return self.id

    fails = ["away"]
    one, two = Session(), Session()
    with pytest.raises(OSError, match="away"):
        one.run()
    assert two.run() == two.id
    assert one.run() == one.id


# -- what is told --------------------------------------------------------------------------------


def test_a_notice_names_what_differs(told):
    """Beside an unfinished run it is said what differs, or that nothing does, and what to do."""

    @workflow
    def agent(topic, depth=1):
        if topic == "a":
            raise OSError("away")

    with pytest.raises(OSError, match="away"):
        agent("a")
    (run,) = stepwise.runs()
    agent("b")
    assert "It differs in the argument 'topic'; called as it was, it resumes" in told()
    agent("b", depth=2)
    assert "It differs in the argument 'topic', the argument 'depth'; called" in told()
    with pytest.raises(OSError, match="away"):
        agent.options(start="new")("a")
    text = told()
    assert f"Its arguments are equal. To resume it: .options(run_id={run.id!r}), or start=" in text
    assert "Same arguments would resume it" not in text
