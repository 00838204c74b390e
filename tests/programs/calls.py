"""Programs that are ended once and started again, and carriers of what tells two calls apart.

``CARRIERS`` are texts that define ``make(who)``: something with ``ask(question)``, a plain step,
and ``post(question)``, a side effect, whose bodies say in the log who did it.  All texts begin with
``HEAD``.
"""

import ast
import re

from harness import Lab
from restarted import edit

HEAD = """
import asyncio, dataclasses, datetime, functools, os, threading, time, uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
import stepwise
from stepwise import step, tool, workflow
import world

FIRST = bool(os.environ.get("CRASH"))

def did(what, who, question):
    world.log(f"did {what} {who} {question}")
    return f"{who}: {question}"

async def adid(what, who, question):
    if FIRST and who == os.environ.get("HANGS"):
        await asyncio.Event().wait()
    return did(what, who, question)

def crash():
    if FIRST:
        os._exit(7)
"""

_METHODS = """
    @step
    async def ask(self, question): return await adid("ask", self.who, question)
    @tool(side_effect=True)
    async def post(self, question): return await adid("post", self.who, question)
"""
_FUNCTIONS = """
    @step
    async def ask(question): return await adid("ask", {0}, question)
    @tool(side_effect=True)
    async def post(question): return await adid("post", {0}, question)
    return SimpleNamespace(ask=ask, post=post)
"""
_BOTH = 'make = {"bull": BULL, "bear": BEAR}.get\n'

CARRIERS = {
    "instance": f"class make:\n    def __init__(self, who): self.who = who\n{_METHODS}",
    "instance that grows": (
        "class make:\n    def __init__(self, who): self.who, self.seen = who, []\n"
        + _METHODS.replace("return await adid(", "self.seen.append(question); return await adid(")
        .replace(": self.seen", ":\n        self.seen")
        .replace("; return", "\n        return")
    ),
    "instance with a client and a time": (
        "class make:\n    def __init__(self, who):\n"
        "        self.who, self.client = who, threading.Lock()\n"
        f"        self.made, self.session = time.time(), uuid.uuid4().hex\n{_METHODS}"
    ),
    "frozen dataclass": (
        f"@dataclasses.dataclass(frozen=True)\nclass make:\n    who: str\n{_METHODS}"
    ),
    "slots": (
        'class make:\n    __slots__ = ("who",)\n'
        f"    def __init__(self, who): self.who = who\n{_METHODS}"
    ),
    "slotted dataclass": (
        f"@dataclasses.dataclass(slots=True)\nclass make:\n    who: str\n{_METHODS}"
    ),
    "attrs": f"import attrs\n@attrs.define\nclass make:\n    who: str\n{_METHODS}",
    "pydantic": (
        "import pydantic\nclass Agent(pydantic.BaseModel):\n    who: str\n"
        f"{_METHODS}\ndef make(who): return Agent(who=who)\n"
    ),
    "nested configuration": (
        "class Model:\n    def __init__(self, who): self.who = who\n"
        "class make:\n    def __init__(self, who): self.model = {'inner': [Model(who)]}\n"
        + _METHODS.replace("self.who", 'self.model["inner"][0].who')
    ),
    "instances of two subclasses": (
        f"class Agent:\n{_METHODS}\nclass Bull(Agent): who = 'bull'\n"
        f"class Bear(Agent): who = 'bear'\nBULL, BEAR = Bull(), Bear()\n{_BOTH}"
    ),
    "class methods of two subclasses": (
        "class Agent:\n"
        + _METHODS.replace("    @", "    @classmethod\n    @").replace("self", "cls")
        + f"class BULL(Agent): who = 'bull'\nclass BEAR(Agent): who = 'bear'\n{_BOTH}"
    ),
    "callable held by an instance": (
        "class Model:\n    def __init__(self, who): self.who = who\n"
        "    def __call__(self): return self.who\n"
        "class make:\n    def __init__(self, who): self.model = Model(who)\n"
        + _METHODS.replace("self.who", "self.model()")
    ),
    "captured variable": f"def make(who):\n{_FUNCTIONS.format('who')}",
    "captured instance": (
        "class Model:\n    def __init__(self, who): self.who = who\n"
        f"def make(who):\n    model = Model(who)\n{_FUNCTIONS.format('model.who')}"
    ),
    "captured closure": (
        f"def make(who):\n    def inner(): return who\n{_FUNCTIONS.format('inner()')}"
    ),
    "captured partial": (
        "def given(who): return who\n"
        f"def make(who):\n    inner = functools.partial(given, who)\n{_FUNCTIONS.format('inner()')}"
    ),
    "captured bound method": (
        "class Model:\n    def __init__(self, name): self.name = name\n"
        "    def who(self): return self.name\n"
        f"def make(name):\n    inner = Model(name).who\n{_FUNCTIONS.format('inner()')}"
    ),
    "decorated function": (
        "def twice(function):\n    @functools.wraps(function)\n"
        "    async def wrapper(*args): return await function(*args)\n    return wrapper\n"
        "def make(who):\n" + _FUNCTIONS.format("who").replace("    async", "    @twice\n    async")
    ),
    "default value": (
        "def make(name):\n"
        + _FUNCTIONS.format("who").replace("(question):", "(question, who=name):")
    ),
    "made in a loop": (
        "BOTH = {}\nfor name in ('bull', 'bear'):\n"
        + _FUNCTIONS.format("who")
        .replace("(question):", "(question, who=name):")
        .replace("return Simple", "BOTH[name] = Simple")
        + "make = BOTH.get\n"
    ),
    "two functions of one name": (
        "".join(
            f'@step(name="ask")\nasync def ask_{who}(question):\n'
            f'    return await adid("ask", "{who}", question)\n'
            f'@tool(name="post", side_effect=True)\nasync def post_{who}(question):\n'
            f'    return await adid("post", "{who}", question)\n'
            for who in ("bull", "bear")
        )
        + "BULL = SimpleNamespace(ask=ask_bull, post=post_bull)\n"
        + f"BEAR = SimpleNamespace(ask=ask_bear, post=post_bear)\n{_BOTH}"
    ),
    "dataclass": f"@dataclasses.dataclass\nclass make:\n    who: str\n{_METHODS}",
    "captured function": (
        "def bull(): return 'bull'\ndef bear(): return 'bear'\n"
        "def make(who):\n    inner = {'bull': bull, 'bear': bear}[who]\n"
        + _FUNCTIONS.format("inner()")
    ),
    "captured lambda": (
        "def made(inner):\n"
        + _FUNCTIONS.format("inner()")
        + "make = {'bull': made(lambda: 'bull'), 'bear': made(lambda: 'bear')}.get\n"
    ),
    "lambda held by an instance": (
        "class Agent:\n    def __init__(self, inner): self.inner = inner\n"
        + _METHODS.replace("self.who", "self.inner()")
        + "make = {'bull': Agent(lambda: 'bull'), 'bear': Agent(lambda: 'bear')}.get\n"
    ),
    "class made by a factory": (
        "def classes(name):\n    class Agent:\n        who = name\n"
        + _METHODS.replace("    ", "        ")
        + "    return Agent\nmake = {each: classes(each)() for each in ('bull', 'bear')}.get\n"
    ),
    "class made by a factory, of itself": (
        "def classes(name):\n    class Agent:\n        who = name\n"
        + _METHODS.replace("    @", "        @classmethod\n        @")
        .replace("    async", "        async")
        .replace("self", "cls")
        + "    return Agent\nmake = {each: classes(each) for each in ('bull', 'bear')}.get\n"
    ),
    "classes made by type()": (
        f"class Agent:\n{_METHODS}\n"
        "make = {each: type('Made', (Agent,), {'who': each})() for each in ('bull', 'bear')}.get\n"
    ),
    "class with a base made by a factory": (
        "def classes(name):\n    class Base:\n        who = name\n    class Agent(Base):\n"
        + _METHODS.replace("    ", "        ")
        + "    return Agent\nmake = {each: classes(each)() for each in ('bull', 'bear')}.get\n"
    ),
    "class whose methods captured": (
        "def classes(name):\n    class Agent:\n        who = property(lambda self: name)\n"
        + _METHODS.replace("    ", "        ").replace("self.who", "self.given()")
        + "        def given(self): return name\n"
        + "    return Agent\nmake = {each: classes(each)() for each in ('bull', 'bear')}.get\n"
    ),
    "class held by an instance": (
        "def classes(name):\n    class Model:\n        who = name\n    return Model\n"
        "class make:\n    def __init__(self, who): self.model = classes(who)\n"
        + _METHODS.replace("self.who", "self.model.who")
    ),
    "captured instance of a class made by a factory": (
        "def model(name):\n    class Model:\n        who = name\n    return Model()\n"
        f"def make(who):\n    held = model(who)\n{_FUNCTIONS.format('held.who')}"
    ),
    "class of data made on the fly": (
        "class make:\n    def __init__(self, who):\n"
        "        self.out = dataclasses.make_dataclass('Out', [who])\n"
        + _METHODS.replace("self.who", "dataclasses.fields(self.out)[0].name")
    ),
    "text": f"class make(str):\n    who = property(str.__str__)\n{_METHODS}",
    "number": (
        "class Agent(int):\n    who = property(('bull', 'bear').__getitem__)\n"
        f"{_METHODS}\nmake = {{'bull': Agent(0), 'bear': Agent(1)}}.get\n"
    ),
    "named tuple": (
        f"from typing import NamedTuple\nclass make(NamedTuple):\n    who: str\n{_METHODS}"
    ),
    "exception": (
        "class make(Exception):\n    who = property(lambda self: self.args[0])\n" + _METHODS
    ),
    "deque": (
        "import collections\nclass Agent(collections.deque):\n"
        "    who = property(lambda self: self[0])\n"
        f"{_METHODS}\ndef make(who): return Agent([who])\n"
    ),
    "instance whose class defines equality": (
        "class make:\n    def __init__(self, who): self.who = who\n"
        "    def __eq__(self, other): raise RuntimeError('not comparable')\n"
        f"    __hash__ = None\n{_METHODS}"
    ),
    "instances that know each other": (
        "class Agent:\n    def __init__(self, who): self.who, self.peers = who, []\n"
        f"{_METHODS}\n"
        "BULL, BEAR = Agent('bull'), Agent('bear')\n"
        f"BULL.peers.append(BEAR)\nBEAR.peers += [BULL, BEAR]\n{_BOTH}"
    ),
    "attribute that cannot be read": (
        "class Broken:\n    def __getattribute__(self, name):\n"
        "        if name != '__class__': raise RuntimeError(name)\n"
        "        return object.__getattribute__(self, name)\n"
        "class make:\n    def __init__(self, who): self.broken, self.who = Broken(), who\n"
        f"{_METHODS}"
    ),
    "large configuration": (
        "import numpy\nDATA = numpy.arange(400_000)\nTEXT = 'x' * 3_000_000\n"
        "class make:\n    def __init__(self, who):\n"
        "        self.data, self.text, self.who = DATA, TEXT, who\n"
        f"{_METHODS}"
    ),
    "child workflow with a captured variable": (
        "def make(who):\n"
        + _FUNCTIONS.format("who").replace("def ", "def do_").partition("    return S")[0]
        + "    @workflow\n    async def ask(question): return await do_ask(question)\n"
        "    @workflow\n    async def post(question): return await do_post(question)\n"
        "    return SimpleNamespace(ask=ask, post=post)\n"
    ),
    "child workflow that is a method": (
        "class make:\n    def __init__(self, who): self.who = who\n"
        + _METHODS.replace("def ", "def do_")
        + "    @workflow\n    async def ask(self, question): return await self.do_ask(question)\n"
        "    @workflow\n    async def post(self, question): return await self.do_post(question)\n"
    ),
}


class Calls(Lab):
    """A program that is started with ``CRASH=1``, and then without."""

    def __init__(self, text, **environment):
        super().__init__(HEAD + text, STEPWISE_QUIET="1", **environment)

    def crash(self, **environment):
        """Start it; it must end where it is to."""
        self.environment.update(environment, CRASH="1")
        ended = self.run()
        assert ended.code == 7, ended.text
        return ended.text

    def rerun(self, **environment):
        """Start it again: what it gives, or the text of what stopped it."""
        self.environment.update(environment, CRASH="")
        ended = self.run()
        found = re.findall(r"^result (.*)$", ended.text, re.MULTILINE)
        if not found:
            assert ended.code, ended.text
            return ended.text
        assert not ended.code, ended.text
        return ast.literal_eval(found[-1])

    def edit(self, *changes):
        """Change its text."""
        edit(self.script, *changes)

    @property
    def bodies(self):
        """What bodies did, in order: ``post bull hello``."""
        return [line.removeprefix("did ") for line in self.log if line.startswith("did ")]

    def resolve(self, text, *answer):
        """Answer the stop of which this is the text, by the command line."""
        run = re.search(r"^  run +(\S+)$", text, re.MULTILINE)[1]
        number = re.search(r"^  (?:step|recorded) +(\d+) ", text, re.MULTILINE)[1]
        ended = self.run(command=["resolve", run, number, *answer])
        assert ended.code == 0, ended.text


def stopped(ended):
    """Whether a start was stopped to ask."""
    return isinstance(ended, str) and "StepInDoubtError" in ended
