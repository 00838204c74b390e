"""``@step(cache=...)``: calls that results of other runs answer."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import pathlib
import sqlite3
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from harness import python
from IPython.lib.pretty import pretty

import stepwise
from stepwise import ConfigurationError, Limit, spend, step, tool, workflow
from stepwise._calls import limited
from stepwise._journal import cache as caches
from stepwise._journal.seal import load_seal
from stepwise._runs.maintenance import cache_facts, clear_cache
from stepwise.stores import open_store

DAY = timedelta(days=1)
PROGRAM = """
import decimal, os, pathlib, sys, time
from dataclasses import dataclass
from datetime import timedelta
import stepwise
from stepwise import step, workflow
{head}

def did(*what):
    with open("did", "a") as file:
        file.write(" ".join(map(str, what)) + "\\n")

{body}

print(flow.options(fresh=True)())
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A store on the disk, as the default one."""
    store = open_store(f"disk:{tmp_path}/store")
    stepwise.configure(store=store)
    monkeypatch.setenv("DID", str(tmp_path / "did"))
    yield tmp_path
    store.close()


def did(*what):
    with pathlib.Path(os.environ["DID"]).open("a") as file:
        file.write(" ".join(map(str, what)) + "\n")


def done():
    """What steps of the test did, in their order."""
    path = pathlib.Path(os.environ["DID"])
    return path.read_text().splitlines() if path.exists() else []


class Answer:
    """A result that knows how it is pickled."""

    def __init__(self, text, source=None):
        self.text, self.source = text, source

    def __reduce__(self):
        return Answer, (self.text, self.source)


MISSING = object()


class Ordered(dict):
    """A dict of one's own."""


@dataclass
class Noted:
    """Its objects are equal whatever is noted."""

    text: str
    note: str = field(compare=False)


class Lab:
    """A script that is edited and run, each time as a new run."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, "STEPWISE_STORE": f"disk:{folder}/lab", "STEPWISE_QUIET": "0"}

    def run(self, body, head="", **env):
        """What the script printed, and what its steps did."""
        (self.folder / "did").unlink(missing_ok=True)
        (self.folder / "script.py").write_text(PROGRAM.format(head=head, body=body))
        ended = python("script.py", cwd=self.folder, env={**self.env, **env}, code=0)
        self.said = ended.stderr
        path = self.folder / "did"
        return ended.stdout.strip(), path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def twice(flow, *args):
    """The values of two new runs, and the second run."""
    first = flow.options(run_id="one")(*args)
    second = flow.options(run_id="two")(*args)
    return first, second, stepwise.get_run("two")


def test_another_run_is_answered():
    """An equal call of another run is answered: marked, saved, and recorded as a normal result."""

    @step(cache=DAY)
    def ask(question):
        did(question)
        spend(usd=0.25, tokens=10)
        return [question]

    @workflow
    def flow():
        return [*ask("a"), *ask("b")]

    first, second, run = twice(flow)
    assert first == second == ["a", "b"]
    assert done() == ["a", "b"]
    (a, _) = run.steps
    assert (a.cached["run"], a.cached["usd"], a.attempts, a.result) == ("one", 0.25, 0, ["a"])
    assert (run.spent.usd, run.spent.steps, run.spent.saved_by_cache["tokens"]) == (0, 0, 20)
    assert run.verify().ok


def test_an_answer_is_marked_wherever_it_is_shown(place):
    """Commands, pages, notebooks, tools of coding agents and events say where an answer is from."""
    from stepwise.mcp._agent_tools import show_step

    @step(cache=DAY)
    def ask():
        return "an answer"

    @workflow
    def flow():
        return ask()

    events = []
    flow.options(run_id="one")()
    end = stepwise.on_event(events.append)
    flow.options(run_id="two")()
    end()
    (said,) = [each for each in events if each.step]
    assert (said.kind, said.detail) == ("step_answered", "'an answer' · cached from one")
    run = stepwise.get_run("two")
    env = {**os.environ, "STEPWISE_STORE": run.store.url}

    def printed(*words):
        return python("stepwise", *words, env=env).stdout

    commands = ["show", "two"], ["show", "two", "1"], ["show", "two", "--tree"]
    shown = [*itertools.starmap(printed, commands), printed("export", "two")]
    shown += [run._repr_html_(), pretty(run), str(run.why())]
    assert ["cached from one" in text for text in shown] == [True] * len(shown)
    for facts in (printed("show", "two", "1", "--json"), json.dumps(show_step("two", 1))):
        assert '"run": "one"' in facts


def test_a_resumed_run_needs_no_cache():
    """What the cache answered is in the journal: a run resumes after the cache was cleared."""
    broken = [True]

    @step(cache=DAY)
    def ask():
        did("ask")
        return 4

    @workflow
    def flow():
        value = ask()
        if broken and stepwise.current_run().id == "two":
            raise ValueError("broken")
        return value

    flow.options(run_id="one")()
    with pytest.raises(ValueError, match="broken"):
        flow.options(run_id="two")()
    clear_cache()
    broken.clear()
    assert flow.options(run_id="two")() == 4
    assert done() == ["ask"]


def test_a_run_is_not_answered_by_its_own_results():
    """A step that is forgotten is made: whoever makes a call again wants another result."""

    @step(cache=DAY)
    def ask():
        did("ask")
        return len(done())

    @workflow
    def flow():
        if (value := ask()) < 3:
            raise ValueError(value)
        return value

    for number in (1, 2):
        with pytest.raises(ValueError, match=f"{number}"):
            flow.options(run_id="one")()
        stepwise.get_run("one").forget("ask")
    assert flow.options(run_id="one")() == 3
    assert flow.options(run_id="two")() == 3
    assert len(done()) == 3


def test_a_server_s_cache_is_local(place, monkeypatch):
    """A store on a server has its cache in the home of each machine."""
    monkeypatch.setenv("STEPWISE_HOME", f"{place}/home")
    store = SimpleNamespace(persistent=True, url="postgresql://server/runs")
    cache = caches.cache_of(store, load_seal())
    entry = caches.CacheEntry("one", 1.0, 0.0, 0.0, 0, "", None, b"value")
    cache.put("ask", "key", entry, math.inf)
    assert cache.get("ask", "key", math.inf) == entry
    assert len([*(place / "home" / "caches").iterdir()]) == 1


def test_coroutines_methods_and_retries():
    """Coroutine steps and methods are answered, and attempts that failed leave nothing behind."""

    class Agent:
        def __init__(self, persona):
            self.persona = persona

        @step(cache=DAY, retries=2, backoff=0)
        async def ask(self, question):
            did(self.persona, question)
            if len(done()) == 1:
                raise ValueError
            return f"{self.persona} says {question}"

    @workflow
    async def flow():
        return [await Agent("a").ask("x"), await Agent("b").ask("x")]

    asyncio.run(flow.options(run_id="one")())
    assert asyncio.run(flow.options(run_id="two")()) == ["a says x", "b says x"]
    assert len(done()) == 3


def test_what_a_call_changes_is_not_answered():
    """A call that changes its arguments or its instance is made: nobody would see the change."""

    class Agent:
        def __init__(self):
            self.history = []

        @step(cache=DAY)
        def learn(self, text):
            did("learn")
            self.history.append(text)
            return len(self.history)

    @step(cache=DAY)
    def add(items):
        did("add")
        items.append(1)
        return len(items)

    @workflow
    def flow():
        agent, items = Agent(), []
        return agent.learn("x"), agent.learn("x"), agent.history, add(items), add(items), items

    first, second, run = twice(flow)
    assert first == second == (1, 2, ["x", "x"], 1, 2, [1, 1])
    assert done() == ["learn", "learn", "add", "add"] * 2
    assert not any(each.cached for each in run.steps)


@pytest.mark.filterwarnings("ignore::stepwise.ArgumentMutatedWarning")
def test_a_change_that_cannot_be_recorded_is_not_answered():
    """A call that changes an argument in a way that no record can repeat is made in each run."""

    @step(cache=DAY)
    def lock(items):
        items.append(threading.Lock())
        return len(items)

    @workflow
    def flow():
        items = []
        return lock(items), len(items)

    assert twice(flow)[:2] == ((1, 1), (1, 1))


def test_what_shares_objects_is_not_answered():
    """A result that is an object which the caller has is made: a copy would hide later changes."""

    @step(cache=DAY)
    def newest(items):
        return items[-1]

    @workflow
    def flow():
        items = [["a"], ["b"]]
        newest(items).append("c")
        return items

    first, second, _ = twice(flow)
    assert first == second == [["a"], ["b", "c"]]


def test_any_class_of_results():
    """Objects of classes that know how they are pickled are answered; what they share is not."""

    @step(cache=DAY)
    def parse(messages, whole):
        did("parse")
        return Answer(messages[0]["text"], messages if whole else None)

    @workflow
    def flow(whole):
        return parse([{"text": "x"}], whole).text

    for whole, made in ((False, 1), (True, 3)):
        for number in range(2):
            assert flow.options(run_id=f"{whole} {number}")(whole) == "x"
        assert len(done()) == made


def test_what_makes_other_calls_or_speaks_is_not_answered():
    """A step in which a tool acted, another step was made, or something was said, is made."""

    @tool(side_effect=True)
    def send():
        did("send")

    @step
    def inner():
        did("inner")
        return 1

    @step(cache=DAY)
    def acting():
        send()
        return 1

    @step(cache=DAY)
    def nesting():
        return inner()

    @step(cache=DAY)
    def speaking():
        stepwise.emit("hello")
        return 1

    @workflow
    def flow():
        return acting(), nesting(), speaking()

    _, _, run = twice(flow)
    assert done() == ["send", "inner"] * 2
    assert [each.value for each in run.stream()][:-1] == ["hello"]


def test_with_a_limit_and_recorded_arguments():
    """An answered call takes nothing of a limit; its arguments are recorded, as others' are."""

    @step(cache=DAY, limit=Limit("api", requests=1, per=3600), record_arguments=True)
    def ask(question):
        did("ask")
        return question

    @workflow
    def flow():
        return ask("x")

    _, _, run = twice(flow)
    assert done() == ["ask"]
    assert run.steps[0].inputs == {"question": "x"}
    limited.settle()


def test_side_effects_are_refused():
    """``cache=`` of a side effect is refused when the decorator runs, and so is another value."""
    with pytest.raises(ConfigurationError, match="a side effect that a cache answers does not"):

        @tool(side_effect=True, cache="dev")
        def send():
            pass

    for wrong in (True, 60, timedelta(0), "always"):
        with pytest.raises(ConfigurationError, match="'dev', a timedelta above 0"):
            step(cache=wrong)(len)


def test_failures_are_not_answered():
    """A call that failed in one run is made in the next."""

    @step(cache=DAY)
    def fail():
        did("fail")
        raise ValueError

    @workflow
    def flow():
        try:
            fail()
        except ValueError:
            return "handled"

    twice(flow)
    assert done() == ["fail", "fail"]


def test_what_cannot_be_told_is_made_and_said_once(capfd):
    """A call whose arguments have no digest is made, and a notice says so once."""
    stepwise.configure(quiet=False)

    class Client:
        def __init__(self):
            self.lock = threading.Lock()

    @step(cache=DAY)
    def ask(client):
        did("ask")
        return 1

    @step(cache=DAY, ignore=["client"])
    def ask_by(client, question):
        did("ask_by")
        return question

    @workflow
    def flow():
        return ask(Client()), ask_by(Client(), "x")

    twice(flow)
    assert done() == ["ask", "ask_by", "ask"]
    assert capfd.readouterr().err.count("not answered by the cache") == 1


def test_ages(monkeypatch):
    """An entry answers up to the age that the step allows; ``"dev"`` is off in production."""

    def asked(cache, run_id):
        @step(name="ask", cache=cache)
        def ask():
            did("ask")
            return 1

        @workflow(name="flow")
        def flow():
            return ask()

        before = len(done())
        flow.options(run_id=run_id)()
        return len(done()) > before

    assert asked(DAY, "a")
    assert not asked(DAY, "b")
    later = SimpleNamespace(time=lambda: time.time() + 2 * 86400)
    monkeypatch.setattr(caches, "time", later)
    assert not asked(3 * DAY, "c")
    assert not asked("dev", "d")
    assert asked(DAY, "e")
    monkeypatch.setenv("STEPWISE_ENV", "production")
    assert asked("dev", "f")
    assert not asked(3 * DAY, "g")


CODE = """
def helper(text):
    return text.upper()

class Base:
    def tone(self, text):
        return helper(text)

class Agent(Base):
    shout = "!"

    def __init__(self, name):
        self.name = name

    @step(cache="dev")
    def ask(self, question):
        did("ask", question)
        return self.tone(question) + self.shout

class Loud(Agent):
    def tone(self, text):
        return text + text

@dataclass
class Query:
    text: str

    def plain(self):
        return self.text.strip()

MODEL = os.environ.get("MODEL", "m1")
FEE = decimal.Decimal(os.environ.get("FEE", "1"))

class Settings:
    tone = os.environ.get("TONE", "t1")
LIMITS = {"words": 3}

@step(cache="dev")
def search(query, by=helper):
    did("search")
    return MODEL, LIMITS["words"], by(query.plain()), FEE, Settings.tone

@workflow
def flow():
    return Agent("a").ask("x"), Loud("a").ask("y"), search(Query(" q "))
"""


EDITS = [
    ("# nothing", "", []),
    ("text.upper()", "text.lower()", ["ask x", "search"]),
    ('shout = "!"', 'shout = "?"', ["ask x", "ask y"]),
    ("text + text", "text * 3", ["ask y"]),
    ("self.text.strip()", "self.text", ["search"]),
    ('"words": 3', '"words": 4', ["search"]),
    ('Query(" q ")', 'Query("z")', ["search"]),
    ('Agent("a")', 'Agent("b")', ["ask x"]),
]


def test_edits_are_other_calls(lab):
    """Whatever code or value decides about a result, an edit of it makes the call, and no other."""
    lab.run(CODE)
    for old, new, again in EDITS:
        assert old in CODE or not again
        edited = CODE.replace(old, new)
        there, made = lab.run(edited)
        assert (set(again) <= set(made), bool(made)) == (True, bool(again)), new
        assert there == lab.run(edited, STEPWISE_STORE="memory:")[0]
        assert lab.run(CODE)[1] == []


def test_the_environment_that_a_module_reads(lab):
    """Variables of modules and of classes count by their values, also if their text is the same."""
    lab.run(CODE)
    for name in ("MODEL", "FEE", "TONE"):
        text, made = lab.run(CODE, **{name: "72"})
        assert ("72" in text, made) == (True, ["search"]), name
    assert lab.run(CODE)[1] == []


VALUES = """
import contextvars, dataclasses, functools, helping, string, textwrap, threading, types
from textwrap import indent
V = os.environ.get("V", "1")

def made(value):
    def inner():
        return value
    return inner

class Holder:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value

class Config:
    holder = Holder(V)
    function = staticmethod(made(V))

@dataclass(slots=True)
class Data:
    plain: str = V
    listed: list = dataclasses.field(default_factory=Holder(V).get)

def default(value=V):
    return value

def patched():
    return "1"

def noted():
    return noted.value

def wrap(function):
    @functools.wraps(function)
    def wrapper():
        return V
    return wrapper

@wrap
def wrapped():
    return 0

def patch(*_):
    return V

if V == "2":
    textwrap.dedent = indent = patch
    patched.__code__ = (lambda: "2").__code__
    helping.Patched.get = lambda self: "2"
string.digits = V
noted.value = V
closed, bound, kept = made(V), Holder(V).get, functools.cache(made(V))
upper = V.upper
space = {}
exec("def text(): return " + V, space)
proxy = types.MappingProxyType({"v": V})
context = contextvars.ContextVar("context", default=V)
local = threading.local()
local.v = V

STEPS
@workflow
def flow():
    return [ask() for name, ask in sorted(globals().items()) if name.startswith("ask")]
"""
READ = {
    "closed()": True,
    "bound()": True,
    "kept()": True,
    "default()": True,
    "Config.holder.value": True,
    "Config.function()": True,
    "Data().plain": True,
    "Data().listed": True,
    "patched()": True,
    "noted()": True,
    "wrapped()": True,
    "upper()": True,
    "proxy['v']": True,
    "helping.Patched().get()": True,
    "textwrap.dedent('1')": True,
    "indent('1', '')": True,
    "string.digits": True,
    "context.get()": False,
    "local.v": False,
    "globals()['V']": False,
    "str(space['text']())": False,
    "getattr(helping, 'V')": False,
    "__import__('helping').V": False,
}


def test_what_code_reads_counts_by_its_value(lab):
    """A value that a call reaches by any way is part of its key, or the call is made."""
    (lab.folder / "helping.py").write_text(
        "import os\nV = os.environ.get('V', '1')\nclass Patched:\n    def get(self): return '1'\n"
    )
    steps = (
        f"@step(cache='dev')\ndef ask{number:02}():\n    did({number})\n    return {expression}\n"
        for number, expression in enumerate(READ)
    )
    body = VALUES.replace("STEPS", "".join(steps))
    every = [str(number) for number in range(len(READ))]
    assert lab.run(body) == (str(["1"] * len(READ)), every)
    assert lab.run(body, V="2") == (str(["2"] * len(READ)), every)
    untold = [str(number) for number, is_told in enumerate(READ.values()) if not is_told]
    assert lab.run(body) == (str(["1"] * len(READ)), untold)


def test_a_module_that_a_call_imports(lab):
    """A module that is imported by the call alone is not known before: the call is made."""
    body = """
@step(cache="dev")
def ask():
    import helping
    return helping.helped()

@workflow
def flow():
    return ask()
"""
    for number in ("1", "20"):  # Python itself takes a file of equal size and time for the old one
        (lab.folder / "helping.py").write_text(f"def helped(): return {number}")
        assert lab.run(body)[0] == number
    assert "imported later" in lab.said


def test_what_is_equal_and_looks_different():
    """What code sees tells calls apart, also where ``==`` does not compare it."""

    @step(cache=DAY)
    def text(value):
        return f"{value!r} {getattr(value, 'flags', '')}"

    @workflow
    def flow(values):
        return [text(each) for each in values]

    values = [
        {"a": 1, "b": [0.0]},
        {"b": [-0.0], "a": 1},
        {"b": [0.0], "a": 1},
        0.0,
        -0.0,
        0,
        False,
        Decimal("1.0"),
        Decimal("1.00"),
        range(0, 3, 2),
        range(0, 4, 2),
        complex(0.0, 0.0),
        complex(0.0, -0.0),
        deque([1], maxlen=1),
        deque([1]),
        datetime(2026, 1, 1, 12, tzinfo=timezone.utc),
        datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))),
        MappingProxyType({"a": 1, "b": 2}),
        MappingProxyType({"b": 2, "a": 1}),
        Ordered(b=1, a=2),
        Ordered(a=2, b=1),
        Noted("x", "one"),
        Noted("x", "two"),
        np.array([0.0]),
        np.array([-0.0]),
        np.array([[1, 2], [3, 4]]).T,
        np.array([[1, 3], [2, 4]]),
    ]
    for turned in (values, values[::-1]):
        assert flow.options(fresh=True)(turned) == [text.__wrapped__(each) for each in turned]


@pytest.mark.filterwarnings("ignore::stepwise.ArgumentMutatedWarning")
def test_two_names_of_one_object(place):
    """Which arguments, attributes and variables are one object tells calls apart."""

    @step(cache=DAY)
    def alike(one, other=MISSING, *, more=()):
        return [one is other, other is MISSING, *(each is one for each in more)]

    @workflow
    def flow():
        one, same = [1], [1]
        found = [alike(one, one), alike(one, same), alike(same, more=[same, one, same])]
        return [*found, alike(one, more=[same, one, one]), alike(one, object()), alike(one)]

    told = [[True, False], [False, False], [False, True, True, False, True]]
    told += [[False, True, False, True, True], [False, False], [False, True]]
    assert twice(flow)[:2] == (told, told)
    assert sum(bool(each.cached) for each in stepwise.get_run("two").steps) == 6


CLIENTS = """
import httpx2, openai

def handle(request):
    return httpx2.Response(200, json=1)

def made(**more):
    web = httpx2.Client(transport=httpx2.MockTransport(handle))
    return openai.OpenAI(**{"api_key": "k", "http_client": web, **more})

other = [
    {},
    {"organization": "o"},
    {"api_key": "other"},
    {"base_url": "https://example.org"},
    {"default_headers": {"x-id": "2"}},
    {"http_client": httpx2.Client(transport=httpx2.MockTransport(lambda _: handle(0)))},
][int(os.environ.get("OTHER", 0))]
client = made(**other)

@step(cache="dev")
def of_module():
    did("of_module")
    return client.get("/x", cast_to=object)

@step(cache="dev")
def given(client):
    did("given")
    return client.get("/x", cast_to=object)

@workflow
def flow():
    return of_module(), given(made(**other))
"""


def test_clients_count_by_all_that_they_hold(lab):
    """Another account, key, address, header or transport of a client is another call."""
    for other in ("0", "1", "2", "3", "4", "5"):
        assert lab.run(CLIENTS, OTHER=other)[1] == ["of_module", "given"], other
    assert lab.run(CLIENTS)[1] == []


def test_a_client_that_cannot_be_told(lab):
    """Calls with a client whose known fields do not tell all of it are made, with a notice."""
    body = """
class Model:
    __module__, __qualname__ = "agents.models.interface", "Model"

    def __init__(self):
        self.model, self.lock = "m", __import__("threading").Lock()

@step(cache="dev")
def ask(model):
    did("ask")

@workflow
def flow():
    ask(Model())
"""
    assert [lab.run(body)[1], lab.run(body)[1]] == [["ask"], ["ask"]]
    assert "a Model among its arguments" in lab.said


def test_another_secret_is_another_call(place):
    """A secret tells calls of other runs apart, is not stored, and answers nobody else's call."""

    class Account:
        def __init__(self, token):
            self.token = token

        @step(cache=DAY, secret=["self.token"])
        def mine(self):
            did("mine")
            return self.token[-1]

    @step(cache=DAY, secret=["token"])
    def profile(token):
        did("profile")
        return token[-1]

    @workflow
    def flow(user):
        return profile("sesame" + user), Account("sesame" + user).mine()

    assert [flow.options(fresh=True)(user) for user in "aab"] == [("a", "a")] * 2 + [("b", "b")]
    assert done() == ["profile", "mine"] * 2
    data = b"".join(path.read_bytes() for path in (place / "store").rglob("*") if path.is_file())
    assert b"sesame" not in data


def test_a_call_that_changes_variables_of_modules_is_not_answered(lab):
    """What a call changes anywhere in its reach is more than its result: it is made again."""
    body = """
COUNTS = []

@step(cache="dev")
def ask():
    COUNTS.append(1)
    return len(COUNTS)

@workflow
def flow():
    return ask(), ask()
"""
    assert [lab.run(body)[0] for _ in range(2)] == ["(1, 2)"] * 2


def test_an_edited_module_while_the_program_runs(lab):
    """Code that may not be what its file says has no key: its calls are made."""
    body = """
@workflow
def flow():
    pathlib.Path("helping.py").write_text("def helped(): return 2")
    return ask()

@step(cache="dev")
def ask():
    did("ask")
    return helping.helped()
"""
    for _ in range(2):
        (lab.folder / "helping.py").write_text("def helped(): return 1")
        assert lab.run(body, head="import helping")[1] == ["ask"]
    assert "it is not known which code ask reads" in lab.said


def test_flipped_bits_are_misses(place, monkeypatch, capfd):
    """Whatever byte of an entry is changed, the call is made, and a notice says so."""
    stepwise.configure(quiet=False)
    monkeypatch.setattr(caches, "_is_first", lambda _: True)

    @step(cache=DAY)
    def ask():
        did("ask")
        return "the answer"

    @workflow(fresh=True)
    def flow():
        return ask()

    def asked():
        before = len(done())
        assert flow() == "the answer"
        return len(done()) - before, "does not verify" in capfd.readouterr().err

    assert [asked(), asked()] == [(1, False), (0, False)]
    with contextlib.closing(sqlite3.connect(place / "store" / "cache" / "cache.db")) as connection:
        ((whole,),) = connection.execute("SELECT value FROM Cache").fetchall()
        for at in [*range(0, len(whole), 9), len(whole) - 1]:
            damaged = whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]
            with connection:
                connection.execute("UPDATE Cache SET value = ?", (damaged,))
            assert asked() == (1, True), at
        for wrong in ("text", 4, None, b""):
            with connection:
                connection.execute("UPDATE Cache SET value = ?, mode = 4", (wrong,))
            assert asked()[0] == 1, wrong
        with connection:
            connection.execute("UPDATE Cache SET filename = '../../did', value = NULL, mode = 2")
        assert asked()[0] == 1


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"x" * 4096, b"nothing" * 999])
def test_a_damaged_database_fails_no_step(lab, content):
    """A database that is no database costs a notice; ``stepwise cache --clear`` mends it."""
    body = "@step(cache='dev')\ndef ask():\n    did('ask')\n\n@workflow\ndef flow():\n    ask()\n"
    lab.run(body)
    for path in (lab.folder / "lab" / "cache").iterdir():
        path.unlink()
    (lab.folder / "lab" / "cache" / "cache.db").write_bytes(content)
    assert lab.run(body)[1] == ["ask"]
    python("stepwise", "cache", "--clear", cwd=lab.folder, env=lab.env, code=0)
    assert [lab.run(body)[1] for _ in range(2)] == [["ask"], []]


def test_a_cache_that_cannot_be_written(place, capfd):
    """A full disk, or a folder that cannot be made, is a notice and fails no step."""
    stepwise.configure(quiet=False)
    (place / "store").mkdir(exist_ok=True)
    (place / "store" / "cache").write_text("in the way")

    @step(cache=DAY)
    def ask():
        return 1

    @workflow
    def flow():
        return ask()

    assert twice(flow)[:2] == (1, 1)
    assert "cannot be used" in capfd.readouterr().err


def test_eviction(monkeypatch):
    """The cache stays near its size limit, evicts the oldest entries, and 0 turns it off."""
    monkeypatch.setenv("STEPWISE_CACHE_SIZE", "1000000")

    @step(cache=DAY)
    def make(number):
        did(number)
        return os.urandom(50_000)

    @workflow
    def flow(numbers):
        for number in numbers:
            make(number)

    flow.options(run_id="one")(range(60))
    assert 300_000 < cache_facts()["size"] < 1_500_000
    flow.options(run_id="two")([58, 59, 0])
    assert done()[60:] == ["0"]
    stepwise.configure(cache_size=0)
    flow.options(run_id="three")([59])
    assert done()[61:] == ["59"]
    with pytest.raises(ConfigurationError, match="is not a number of bytes"):
        stepwise.configure(cache_size="much")


def test_a_store_in_memory_has_no_cache():
    """Calls in a store in memory are made."""
    stepwise.configure(store="memory:cached")

    @step(cache=DAY)
    def ask():
        did("ask")

    @workflow
    def flow():
        ask()

    twice(flow)
    assert len(done()) == 2


def test_the_command(lab):
    """``stepwise cache`` says what there is by step; ``--clear`` deletes it, or one step's part."""
    lab.run(CODE)

    def said(*words):
        ended = python("stepwise", "cache", *words, cwd=lab.folder, env=lab.env, together=True)
        return ended.stdout

    assert "Agent.ask" in said()
    assert '"entries": 2' in said("--stats", "--json")
    assert "1 entry deleted" in said("--clear", "--step", "search")
    assert lab.run(CODE)[1] == ["search"]
    assert '"steps": []' in said("--clear", "--json")
    assert "add --clear" in said("--step", "search")
    assert len(lab.run(CODE)[1]) == 3
