"""Which recorded outcome answers which call: programs that are ended once and started again.

The programs of ``tests/programs/identity`` are the same at random.
"""

import itertools
from typing import NamedTuple

import pytest
from calls import CARRIERS, HEAD, Calls, stopped
from restarted import edited
from sweeping import WHOLE

BOTH = {"bull": "bull: why", "bear": "bear: why"}


def once(function):
    return [f"{function} bear why", f"{function} bull why"]


# -- two of a kind -------------------------------------------------------------------------------

BESIDE = """
@workflow
async def debate(question):
    bull, bear = make("bull"), make("bear")
    async def second():
        answer = await bear.{0}(question)
        crash()
        return answer
    found = await asyncio.gather(bull.{0}(question), second())
    return dict(zip(("bull", "bear"), found))
print("result", repr(asyncio.run(debate("why"))))
"""


IN_ANOTHER_ORDER = """
@workflow
async def debate(question):
    agents = {{who: make(who) for who in ("bull", "bear")}}
    given = {{}}
    with open(os.devnull):
        for who in ("bear", "bull") if FIRST else ("bull", "bear"):
            given[who] = await agents[who].{0}(question)
            crash()
    return given
print("result", repr(asyncio.run(debate("why"))))
"""


LATER = """
@workflow
async def debate(question):
    given = {{}}
    with open(os.devnull):
        for who in ("bear", "bull") if FIRST else ("bull", "bear"):
            given[who] = await make(who).{0}(question)
            crash()
    return given
print("result", repr(asyncio.run(debate("why"))))
"""


NAMESAKES = {
    "by name=": "".join(
        f'@workflow(name="ask")\nasync def ask_{who}(question):\n'
        f'    return await adid("ask", "{who}", question)\n'
        for who in ("bull", "bear")
    )
    + "make = {'bull': SimpleNamespace(ask=ask_bull), 'bear': SimpleNamespace(ask=ask_bear)}.get\n",
    "within functions": "".join(
        f"def {who}():\n    @workflow\n    async def ask(question):\n"
        f'        return await adid("ask", "{who}", question)\n'
        "    return SimpleNamespace(ask=ask)\n"
        for who in ("bull", "bear")
    )
    + "def make(who): return {'bull': bull, 'bear': bear}[who]()\n",
}


IN_MODULES = """
import bear, bull
make = {"bull": bull, "bear": bear}.get
"""


THREADS = """
class Model:
    def __init__(self, name): self.name = name
    @step
    def complete(self, prompt):
        if FIRST and self.name == "gpt":
            done.wait()
            crash()
        return did("complete", self.name, prompt)
done = threading.Event()
@workflow
def panel(prompt):
    models = [Model(name) for name in ("gpt", "claude", "gemini")]
    out = {}
    def ask(model):
        out[model.name] = model.complete(prompt)
        if len(out) == 2:
            done.set()
    {how}
    return out
print("result", repr(dict(sorted(panel("why").items()))))
"""
IN_THREADS = """threads = [threading.Thread(target=ask, args=(m,)) for m in models]
    for each in threads: each.start()
    for each in threads: each.join()"""
IN_A_POOL = """with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, models))"""


MAP = """
class Model:
    def __init__(self, name): self.name = name
    @step
    def complete(self, prompt): return did("complete", self.name, prompt)
@workflow
def panel():
    gpt, claude = Model("gpt"), Model("claude")
    with open(os.devnull):
        first, second = (gpt, claude) if FIRST else (claude, gpt)
        found = {first.name: stepwise.map(first.complete, ["a", "b"])}
        crash()
        found[second.name] = stepwise.map(second.complete, ["a", "b"])
    return dict(sorted(found.items()))
print("result", repr(panel()))
"""


INTERRUPTED = """
class Agent:
    def __init__(self, who): self.who = who
    @step
    async def ask(self, question): return await adid("ask", self.who, question)
@workflow
async def debate(question):
    bull, bear = Agent("bull"), Agent("bear")
    async def second():
        answer = await bear.ask(question)
        if FIRST: os.kill(os.getpid(), 2)
        return answer
    return await asyncio.gather(bull.ask(question), second())
try:
    print("result", repr(asyncio.run(debate("why"))))
except KeyboardInterrupt:
    FIRST = False
    print("result", repr(asyncio.run(debate("why"))))
"""


def test_after_ctrl_c_in_one_process_each_gets_its_own():
    """A run that resumes in the process in which Ctrl-C stopped it mixes up no instances."""
    with Calls(INTERRUPTED, HANGS="bull", CRASH="1") as program:
        ended = program.run()
        assert "result ['bull: why', 'bear: why']" in ended.text
        assert program.bodies == once("ask")


TOLD_APART = """
class Agent:
    def __init__(self): self.mode = "short"
    @step
    def ask(self, question): return did("ask", self.mode, question)
@workflow
def run():
    agent, given = Agent(), {}
    with open(os.devnull):
        for mode in ("short", "long") if FIRST else ("long", "short"):
            agent.mode = mode
            given[mode] = agent.ask("why")
            crash()
    return given
print("result", repr(run()))
"""


FAN_OUT = """
class Plugin:
    def __init__(self, name, **options):
        self.name, self.options = name, options
    @tool(side_effect=True)
    def post(self, text): return did("post", self.name, text)
@workflow
def announce(text):
    slack, mail = Plugin("slack", retries=1), Plugin("mail")
    plugins = {"slack": slack.post, "mail": mail.post}
    if not FIRST: plugins = dict(reversed(plugins.items()))
    with open(os.devnull):
        found = {}
        for name, post in plugins.items():
            found[name] = post(text)
            crash()
    return dict(sorted(found.items()))
print("result", repr(announce("hello")))
"""


KEYS = """
class Channel:
    def __init__(self, name): self.name = name
    @tool(side_effect=True)
    def post(self, text): return did("post", self.name, stepwise.current_step().idempotency_key)
    @step
    def look(self, text): return did("look", self.name, stepwise.current_step().idempotency_key)
@workflow
def announce(text):
    slack, mail = Channel("slack"), Channel("mail")
    with open(os.devnull):
        for each in (slack, mail) if FIRST else (mail, slack):
            each.post(text)
            each.look(text)
            crash()
        for each in (slack, mail):
            each.post(text)
            each.look(text)
print("result", repr(announce("hello")))
"""


def test_each_act_has_an_idempotency_key_of_its_own():
    """A call of another object, in the place of a recorded one, is not given its key."""
    with Calls(KEYS) as program:
        program.crash()
        program.rerun()
        assert len(program.bodies) == 8
        assert len({each.split()[-1] for each in program.bodies}) == 8


TWO_OF_ONE_NAME = """
def make(kind):
    if kind == "bull":
        @DECORATOR
        def ask(question): return did("ask", "bull", question)
    else:
        @DECORATOR
        def ask(question): return did("ask", "bear", question)
    return ask
bull, bear = make("bull"), make("bear")
@workflow
def run():
    with open(os.devnull):
        asked = {}
        for who in ("bear", "bull") if FIRST else ("bull", "bear"):
            asked[who] = globals()[who]("why")
            crash()
    return asked
print("result", repr(run()))
"""


@pytest.mark.parametrize("decorator", ["step", "tool(side_effect=True)"])
def test_two_functions_of_one_name_answer_their_own_calls(decorator):
    """A record of another function of the name answers no plain call, and a side effect asks."""
    with Calls(TWO_OF_ONE_NAME.replace("DECORATOR", decorator)) as program:
        program.crash()
        ended = program.rerun()
        if decorator == "step":
            assert ended == BOTH
        else:
            assert stopped(ended)
        assert program.bodies == ["ask bear why"] + ["ask bull why"] * (ended == BOTH)


# -- one level up: workflows ---------------------------------------------------------------------

EQUAL_CHILDREN = """
def make(config):
    @tool(side_effect=True)
    def do_post(question): return did("post", config, question)
    @workflow
    def post(question): return do_post(question)
    return post
@workflow
def main():
    both = [make("x"), make("x")]
    first = [each("hello") for each in both]
    with open(os.devnull):
        for each in both if FIRST else both[::-1]:
            first.append(each("hello"))
            crash()
    return first
print("result", repr(main()))
"""


CHILD_RUNS = """
@workflow(start="new")
def child(): return did("child", "-", "x")
@workflow
def main():
    with open(os.devnull):
        run = child.execute()
        crash()
    return [run.id in [each.id for each in stepwise.runs()], run.result]
print("result", repr(main()))
"""


# -- other ways to call --------------------------------------------------------------------------

CONTEXT = """
from stepwise import CheckpointStore, RecoverableAgent
class Channel:
    def __init__(self, name): self.name = name
    @tool(side_effect=True)
    def post(self, text): return did("post", self.name, text)
    def plain(self, text): return did("post", self.name, text)
def make(name):
    def post(text): return did("post", name, text)
    return post
{0}
async def agent(ctx):
    found = {{}}
    for name in ("slack", "mail") if FIRST else ("mail", "slack"):
        found[name] = await ctx.tool(channels[name], "hello")
        crash()
    return sorted(found.items())
store = CheckpointStore("disk:" + os.environ["STEPWISE_HOME"] + "/agents")
done = asyncio.run(RecoverableAgent(agent, store).run_with_recovery("announce", "r"))
print("result", repr(done["result"]))
"""


# -- state ---------------------------------------------------------------------------------------

CONVERSATION = """
class Agent:
    def __init__(self):
        self.client, self.history, self.count = threading.Lock(), [], 0
        self.made, self.session = datetime.datetime.now(), uuid.uuid4()
    @step
    def ask(self, question):
        self.history.append(question)
        self.count += 1
        answer = did("ask", self.count, question)
        self.history.append(answer)
        return answer
    @tool(side_effect=True)
    def post(self, text):
        self.count += 1
        return did("post", self.count, text)
{0}
@workflow
def run():
    {1}
    {2}
        out = []
        for n in range(4):
            out.append(agent.ask("why"))
            out.append(agent.post("so"))
            if n == int(os.environ["DIES"]): crash()
    return out, agent.count, len(agent.history)
print("result", repr(run()))
"""


LOST = """
class Agent:
    def __init__(self):
        self.history, self.count, self.text, self.known, self.seen = [], 0, "", {}, set()
        self.old, self.inner, self.deep, self.same = 1, SimpleNamespace(n=0), {"a": [[]]}, ["x"]
    @step
    def ask(self, question):
        if question == "b": crash()
        self.history.append(question)
        self.count += 1
        self.text += question
        self.known[question] = len(self.known)
        self.seen.add(question)
        self.new = getattr(self, "new", ()) + (question,)
        vars(self).pop("old", None)
        self.inner.n += 1
        self.deep["a"][0].append(question)
        self.same[0] += question
        return did("ask", "-", question)
@workflow
def run():
    self = Agent()
    out = [self.ask("a"), self.ask("b")]
    self.inner, self.seen = self.inner.n, sorted(self.seen)
    return out, vars(self)
print("result", repr(run()))
"""


CAPTURED = """
def make():
    seen, usage, count = [], SimpleNamespace(tokens=0), 0
    @step
    def ask(question):
        nonlocal count
        if question == "b": crash()
        seen.append(question)
        usage.tokens += 100
        count += 1
        return did("ask", "-", question)
    return ask, lambda: (seen, usage.tokens, count)
@workflow
def run():
    ask, state = make()
    out = [ask("a"), ask("b")]
    return out, state()
print("result", repr(run()))
"""


CHANGED_BY_ANOTHER = """
def make():
    history = []
    @step
    def ask(question):
        history.append(question)
        return did("ask", "-", question)
    @tool(side_effect=True)
    def post(text):
        return did("post", len(history), text)
    return ask, post
@workflow
def run():
    ask, post = make()
    ask("first")
    with open(os.devnull):
        out = {}
        for name in ("ask", "post") if FIRST else ("post", "ask"):
            out[name] = {"ask": ask, "post": post}[name]("x")
        crash()
    return sorted(out.items())
print("result", repr(run()))
"""


IN_FLIGHT = """
def make(client):
    history = []
    @step
    async def ask(question):
        if FIRST: await asyncio.Event().wait()
        history.append(question)
        for _ in range(50): await asyncio.sleep(0)
    @tool(side_effect=True)
    async def post(text):
        async with client: return did("post", "-", text + "".join(history[1:]))
    return ask, post
@workflow
async def run():
    (ask, post), twin = make(UnknownClient()), make(UnknownClient())
    async def last():
        found = await post("x")
        crash()
        return found
    return (await asyncio.gather(ask("x"), last()))[1]
class UnknownClient:
    def __init__(self): self.lock = threading.Lock()
    async def __aenter__(self): pass
    async def __aexit__(self, *error): pass
print("result", repr(asyncio.run(run())))
"""


COUNTED_BESIDE = """
class Agent:
    def __init__(self): self.count = 0
    @step
    async def ask(self, question):
        for _ in range(20 * (question == "slow")): await asyncio.sleep(0)
        self.count += 1
        return did("ask", "-", question)
@workflow
async def run():
    agent = Agent()
    await agent.ask("first")
    async def two():
        return [await agent.ask("second"), await agent.ask("third")]
    with open(os.devnull):
        found = await asyncio.gather(agent.ask("slow"), two())
        crash()
    return found
print("result", repr(asyncio.run(run())))
"""


# -- what cannot be seen -------------------------------------------------------------------------

TWINS = """
class Agent:
    def __init__(self, client): self.client = client
    @step
    def ask(self, question): return did("ask", NAMES[id(self.client)], question)
    @tool(side_effect=True)
    def post(self, text): return did("post", NAMES[id(self.client)], text)
A, B = threading.Lock(), threading.Lock()
NAMES = {id(A): "a", id(B): "b"}
@workflow
def run():
    a, b = Agent(A), Agent(B)
    out = {}
    with open(os.devnull):
        for name in "ab" if FIRST else "ba":
            out[name] = {"a": a, "b": b}[name].CALL("x")
            crash()
    return sorted(out.items())
print("result", repr(run()))
"""


def test_twins_are_told():
    """Instances that look alike are named once, with the way to tell them apart."""
    with Calls(TWINS.replace("CALL", "ask")) as program:
        program.environment["STEPWISE_QUIET"] = ""
        text = program.crash() + str(program.rerun()) + "".join(program.said)
        assert "Agent" in text
        assert "stepwise.identity" in text


GARBAGE = """
import gc
gc.disable()
def made(client):
    @tool(side_effect=True)
    def post(text):
        with client:
            return did("post", "-", text)
    return post
post = made(threading.Lock())
post = made(threading.Lock())
@workflow
def run():
    with open(os.devnull):
        out = post("x")
        crash()
    return out
print("result", repr(run()))
"""


RETRIED = """
import gc
gc.disable()  # garbage stays as long as nobody asks
class Agent:
    def __init__(self, model):
        self.model, self.lock, self.said = model, threading.local(), []
        self.tools = [self.post]
    @tool(side_effect=True)
    def post(self, text):
        self.said.append(text)
        return did("post", self.model, text)
models, failures = {0}, [OSError()]
@workflow
def run():
    agent = Agent(models[len(failures) - 1])
    first = agent.post("x")
    if failures:
        raise failures.pop()
    return [first, agent.post("y"), agent.said]
try:
    run()
except OSError:
    pass
print("result", repr(run()))
"""


def test_the_instance_of_a_failed_attempt_is_no_twin():
    """A run that is tried again in one process gets the answers of the instance that is gone."""
    with Calls(RETRIED.format(["a", "a"])) as program:
        assert "result ['a: x', 'a: y', ['x', 'y']]" in program.run().text
        assert program.bodies == ["post a x", "post a y"]


def test_the_instance_of_a_failed_attempt_will_not_claim_its_record():
    """A run that is tried again with another configuration asks before it does the same again."""
    with Calls(RETRIED.format(["a", "b"])) as program:
        assert "StepInDoubtError" in program.run().text
        assert program.bodies == ["post a x"]


DECLARED = """
class Client:
    def __init__(self, account): self.account, self.lock = account, threading.Lock()
stepwise.identity(Client, fields=["account"])
"""


SINGLE = """
class Agent:
    def __init__(self):
        self.client = threading.local()
        self.version = "2" if not FIRST else "1"
    @OPTIONS
    def ask(self, question): return did("ask", self.version, question)
def called(agent):  # not by a statement of the workflow, which makes its calls once
    return agent.ask("x")
@workflow
def run():
    agent = Agent()
    with open(os.devnull):
        found = called(agent)
        crash()
    return found
print("result", repr(run()))
"""


CACHED = """
@functools.cache
@tool(side_effect=True)
def post(text): return did("post", "-", text)
@workflow
def run():
    found = [post("x")]
    crash()
    found.append(post("x"))
    return found
print("result", repr(run()))
"""


def test_a_cache_around_a_side_effect_is_warned_about():
    """``functools.cache`` around a tool, which answers less often on resume, is told."""
    with Calls(CACHED) as program:
        program.crash()
        program.run()
        assert "cache" in "".join(program.said)


# -- programs that are changed -------------------------------------------------------------------

EDITED = """
class Agent:
    def __init__(self): self.who = "ann"
    @KIND
    def ask(self, question): return did("ask", self.who, question)
@KIND
def fetch(number): return did("fetch", "-", number)
@workflow
def run():
    agent = Agent()
    with open(os.devnull):
        found = [agent.ask("x"), fetch(1)]
        crash()
    return found
print("result", repr(run()))
"""
DEFAULTS = """
@KIND
def ask(question, model="gpt"): return did("ask", model, question)
def called(): return ask("x")
@workflow
def run():
    with open(os.devnull):
        found = called()
        crash()
    return found
print("result", repr(run()))
"""


FLOWS = """
import os
from stepwise import workflow
AGENTS = []
@workflow
def run():
    with open(os.devnull):
        found = [agent.ask("x") for agent in AGENTS]
        if os.environ.get("CRASH"):
            os._exit(7)
    return found
"""
ARGUMENTS = """
import enum
import flows

class Size(enum.Enum):
    SMALL = 1

@dataclasses.dataclass
class Order:
    number: int
    size: Size = Size.SMALL

@tool(side_effect=True)
def charge(order, limit=Order(0)): return did("charge", order.number, limit.number)

@step
def quote(orders): return did("quote", "all", len(orders))

@tool(side_effect=True, key=lambda order: order)
def ship(order): return did("ship", "by key", order.number)

@tool(side_effect=True)
def pack(how): return did("pack", how.__name__, 5)

def carefully(): pass

class Work:
    def ask(self, question):
        orders = [Order(n) for n in range(80)]
        charged = [charge(orders[1]), charge(Order(2), limit=Order(3))]
        return [quote(orders), *charged, ship(Order(4)), pack(carefully)]

class Model: name = "ann"

class Agent:
    def __init__(self): self.model = Model()
    @tool(side_effect=True)
    def ask(self, question): return did("ask", self.model.name, question)

def make(model):
    @tool(side_effect=True)
    def ask(question): return did("make", model.name, question)
    return SimpleNamespace(ask=ask)

flows.AGENTS += [Work(), Agent(), make(Model())]
print("result", repr(flows.run()))
"""


@pytest.mark.parametrize("start", ["script", "module", "import"])
def test_what_a_script_defines_makes_the_same_calls(start):
    """However a file is started after a crash, its classes and functions make the same calls."""
    with Calls(ARGUMENTS) as program:
        (program.folder / "flows.py").write_text(FLOWS, encoding="utf-8")
        program.crash()
        if start != "script":
            program.script = program.folder / "starter.py"
            how = "import script" if start == "import" else RUN_MODULE
            program.script.write_text(how, encoding="utf-8")
        worked = ["all: 80", "1: 0", "2: 3", "by key: 4", "carefully: 5"]
        assert program.rerun() == [worked, "ann: x", "ann: x"]
        once = ["charge 1 0", "charge 2 3", "quote all 80", "ship by key 4", "pack carefully 5"]
        assert program.bodies == [*once, "ask ann x", "make ann x"]


RUN_MODULE = """
import runpy
runpy.run_module("script", run_name="__main__", alter_sys=True)  # what -m does
"""


# -- whose record answers ------------------------------------------------------------------------


class Row(NamedTuple):
    """A program that is ended once and started again, and which calls their records answer.

    Args:
        result: what it gives in the end.
        bodies: what bodies did, in both processes together; or how many did something.
        answers: to the questions with which it stops.
        asks: whether it stops for sure.
        says: a word in the first question.
        edits: of its text, between the two processes.
        environment: of both.
    """

    text: str
    result: object
    bodies: object = None
    answers: tuple = ()
    asks: bool = True
    says: str = ""
    edits: tuple = ()
    environment: tuple = ()


def carried():
    """Give the rows of two equal calls of two objects, for each carrier of what they are.

    In CI one way for each carrier, all with ``STEPWISE_WHOLE=1``.
    """
    hangs, never = (("HANGS", "bull"),), "was started and never finished"
    for place, (who, carrier) in enumerate(CARRIERS.items()):
        child = who.startswith("child workflow")
        for effect, function in enumerate(("ask", "post")):
            happened = ("--did-not-happen",) if effect else ()
            # A child workflow asks like a side effect: it could be the recorded one, changed.
            further = ("--another",) if effect or child else ()
            ways = [
                # The one in flight beside the recorded one; in another order; one after the other.
                ("in flight", BESIDE, (happened, bool(effect) and not child, never, (), hangs)),
                ("in another order", IN_ANOTHER_ORDER, ()),
                ("made later", LATER, (further, not effect)),
            ]
            for number, (way, text, more) in enumerate(ways):
                if WHOLE or place % 6 == 2 * number + effect:
                    row = Row(carrier + text.format(function), BOTH, once(function), *more)
                    yield f"{who}: {function}, {way}", row
    for who in ("instance", "captured variable", "two functions of one name"):
        text = CARRIERS[who].replace("side_effect=True", 'side_effect=True, in_doubt="retry"')
        row = Row(text + BESIDE.format("post"), BOTH, once("post"), environment=hangs)
        yield f"{who}: post, in flight, and tried again by its own object", row


def conversations():
    """Give the rows of one agent whose client, history, counter and times are of each process."""
    for place, block, dies in itertools.product(("local", "global"), ("replay", "inside"), "02"):
        if (place, block) != ("global", "inside"):  # what a global holds is not restored
            made = ("", "agent = Agent()") if place == "local" else ("agent = Agent()", "pass")
            head = "with open(os.devnull):" if block == "replay" else "if True:"
            out = [f"{n + 1}: {'so' if n % 2 else 'why'}" for n in range(8)]
            text = CONVERSATION.format(*made, head)
            row = Row(text, (out, 8, 8), 8, environment=(("DIES", dies),))
            yield f"an agent of ordinary make is paid for once: {place}, {block}, {dies}", row


CLIENTS = "A, B = threading.Lock(), threading.Lock()"
EFFECT = "tool(side_effect=True"
TWO, A_AND_B = [("a", "a: x"), ("b", "b: x")], ["post a x", "post b x"]
MODELS = {"claude": "claude: why", "gemini": "gemini: why", "gpt": "gpt: why"}
POSTED = [("mail", "mail: hello"), ("slack", "slack: hello")]
CHANNELS = ["post slack hello", "post mail hello"]
SAME, OLD = ["ann: x", "-: 1"], ["ask ann x", "fetch - 1"]
CLAUDE = (('model="gpt"', 'model="claude"'),)
HIS_OWN = (
    "class Agent:\n    def __init__(self):\n        self.client = threading.local()\n"
    '        self.version = "2" if not FIRST else "1"\n'
)
COMPARED = (
    "@dataclasses.dataclass\nclass Agent:\n    version: str = dataclasses.field(compare=False,"
    ' default_factory=lambda: "1" if FIRST else "2")\n'
)
BY_CLASS = "key=lambda self, question: (type(self).__name__, question)"
DONE = {"history": ["a", "b"], "count": 2, "text": "ab", "known": {"a": 0, "b": 1}, "inner": 2}
DONE |= {"seen": ["a", "b"], "new": ("a", "b"), "deep": {"a": [["a", "b"]]}, "same": ["xab"]}


ROWS = {
    **dict(carried()),
    **dict(conversations()),
    "three models in threads": Row(THREADS.replace("{how}", IN_THREADS), MODELS, 3),
    "three models in a pool": Row(THREADS.replace("{how}", IN_A_POOL), MODELS, 3),
    "a mapped method": Row(
        MAP, {"claude": ["claude: a", "claude: b"], "gpt": ["gpt: a", "gpt: b"]}, 4
    ),
    "an instance that the workflow configures anew": Row(
        TOLD_APART,
        {"long": "long: why", "short": "short: why"},
        ["ask short why", "ask long why"],
    ),
    "tools out of a dict in another order": Row(FAN_OUT, dict(POSTED), CHANNELS),
    **{
        f"{what} of a recoverable agent": Row(
            CONTEXT.format(f"channels = {{name: {made} for name in ('slack', 'mail')}}"),
            *(POSTED, CHANNELS),
        )
        for what, made in (
            ("decorated tools", "Channel(name).post"),
            ("methods as tools", "Channel(name).plain"),
            ("closures as tools", "make(name)"),
        )
    },
    "a new child call before an equal recorded one": Row(EQUAL_CHILDREN, ["x: hello"] * 4, 4),
    **{
        f"child workflows of one name {how}: {way}": Row(
            carrier + text.format("ask"), BOTH, once("ask"), environment=(("HANGS", hangs),)
        )
        for how, carrier in NAMESAKES.items()
        for way, text, hangs in (
            ("in flight", BESIDE, "bull"),
            ("in another order", IN_ANOTHER_ORDER, ""),
            ("made later", LATER, ""),
        )
    },
    # Which of them an edited one was, its record does not say.
    "child workflows of one name, and the first was edited": Row(
        NAMESAKES["within functions"] + IN_ANOTHER_ORDER.format("ask"),
        *(BOTH, once("ask"), ("--another", "--same"), True, "another object or function"),
        edits=((', "bear", question)', ', "be" + "ar", question)'),),
    ),
    "execute() of a recorded child run": Row(CHILD_RUNS, [True, "-: x"], ["child - x"]),
    "what an answered step did to its instance is done": Row(
        LOST, (["-: a", "-: b"], DONE), ["ask - a", "ask - b"]
    ),
    "what an answered step did to captured variables is done": Row(
        CAPTURED, (["-: a", "-: b"], (["a", "b"], 200, 2))
    ),
    "a captured list that another step changes is state": Row(
        CHANGED_BY_ANOTHER,
        [("ask", "-: x"), ("post", "2: x")],
        ["ask - first", "ask - x", "post 2 x"],
    ),
    "what a call in flight changes gives nothing to a twin": Row(
        IN_FLIGHT, "-: x", ["post - x"], ("--same",)
    ),
    "a counter of an instance that came back": Row(
        COUNTED_BESIDE, ["-: slow", ["-: second", "-: third"]], 4
    ),
    # Instances that look alike and hold clients of their own do not answer for each other.
    "twins: a plain call runs again": Row(
        edited(TWINS, ("CALL", "ask")), TWO, ["ask a x", "ask b x", "ask a x"]
    ),
    "twins: a side effect asks": Row(
        edited(TWINS, ("CALL", "post")), TWO, A_AND_B, ("--another", "--same"), False
    ),
    **{
        f"no twins: they share a client, {call}": Row(
            edited(TWINS, ("Agent(B)", "Agent(A)"), ("CALL", call)),
            *([("a", "a: x"), ("b", "a: x")], 2),
        )
        for call in ("ask", "post")
    },
    "no twins: only the garbage collector knows one": Row(GARBAGE, "-: x", ["post - x"]),
    **{
        f"no twins: {what}": Row(
            edited("import httpx\n" + TWINS, (CLIENTS, clients), ("CALL", "post")), TWO, A_AND_B
        )
        for what, clients in (
            ("stepwise.identity says", f'{DECLARED}A, B = Client("a"), Client("b")'),
            (
                "httpx clients of two URLs",
                "A, B = (httpx.Client(base_url=f'https://{each}') for each in 'ab')",
            ),
        )
    },
    "no twins: key= is a function of an attribute": Row(
        edited(
            TWINS,
            ("step\n", "step(key=lambda self, q: (NAMES[id(self.client)], q))\n"),
            ("CALL", "ask"),
        ),
        TWO,
        ["ask a x", "ask b x"],
    ),
    "key= names parameters: instances stay apart": Row(
        edited(CARRIERS["instance"], ("@step\n", '@step(key=("question",))\n'))
        + IN_ANOTHER_ORDER.format("ask"),
        BOTH,
    ),
    # One object, and a part of it that differs.
    "another part: a plain call runs again": Row(edited(SINGLE, ("OPTIONS", "step")), "2: x"),
    "another part: a side effect asks": Row(
        edited(SINGLE, ("OPTIONS", EFFECT + ")")),
        "1: x",
        ["ask 1 x"],
        ("--same",),
        says="version",
    ),
    "another part: ignored": Row(
        edited(SINGLE, ("OPTIONS", EFFECT + ', ignore=("self.version",))')), "1: x", ["ask 1 x"]
    ),
    "another part: a function as key=": Row(
        edited(SINGLE, ("OPTIONS", f"{EFFECT}, {BY_CLASS})")), "1: x", ["ask 1 x"]
    ),
    "another part: a field that equality leaves out": Row(
        edited(SINGLE, (HIS_OWN, COMPARED), ("OPTIONS", EFFECT + ")")), "1: x", ["ask 1 x"]
    ),
    "another default: a plain step runs again": Row(
        edited(DEFAULTS, ("KIND", "step")), "claude: x", edits=CLAUDE
    ),
    "another default: a side effect asks": Row(
        edited(DEFAULTS, ("KIND", EFFECT + ")")),
        *("gpt: x", ["ask gpt x"], ("--same",), True, "model", CLAUDE),
    ),
    "an attribute was added": Row(
        edited(EDITED, ("KIND", "step")),
        *(SAME, OLD),
        edits=(('self.who = "ann"', 'self.who, self.tries = "ann", 3'),),
    ),
}
for kind in ("step", EFFECT + ")"):
    text = EDITED.replace("KIND", kind)
    named = f'@{kind[:-1]}, name="fetch")' if "(" in kind else '@step(name="fetch")'
    changed = {
        "bodies were edited": (
            ('did("ask", self.who', 'did("other", self.who'),
            ('did("fetch"', 'did("another"'),
        ),
        "a step was renamed and keeps its name=": (
            (f"@{kind}\ndef fetch(number)", f"{named}\ndef get(number)"),
            ("fetch(1)]", "get(1)]"),
        ),
        "parameters with defaults were added": (
            ("def fetch(number)", "def fetch(number, unit='m')"),
            ("def ask(self, question)", "def ask(self, question, *, short=False)"),
        ),
    }
    ROWS |= {
        f"{what}: {kind}": Row(text, SAME, OLD, edits=edits) for what, edits in changed.items()
    }


def test_child_workflows_of_one_name_in_two_modules():
    """A record of a child workflow answers no workflow of that name in another module."""
    with Calls(IN_MODULES + IN_ANOTHER_ORDER.format("ask")) as program:
        for who in ("bull", "bear"):
            text = NAMESAKES["by name="].partition("@workflow")[2].partition("@workflow")[0]
            text = f"{HEAD}@workflow{text}ask = ask_bull\n".replace("bull", who)
            (program.folder / f"{who}.py").write_text(text, encoding="utf-8")
        program.crash()
        assert (program.rerun(), program.bodies) == (BOTH, once("ask"))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_record_answers_the_call_that_it_is_of(row):
    """Started again, a program gets recorded outcomes for its own calls, runs the others, or asks.

    A call with side effects asks before it does what another object may have done.
    """
    with Calls(row.text, **dict(row.environment)) as program:
        program.crash()
        program.edit(*row.edits)
        answers = list(row.answers)
        while stopped(ended := program.rerun()):
            assert answers, ended
            assert row.says in ended.rpartition("StepInDoubtError")[2]
            if isinstance(row.bodies, list):
                assert program.bodies == row.bodies[: len(program.bodies)]
            program.resolve(ended, answers.pop(0))
        assert not (row.asks and answers)
        assert ended == row.result
        if row.bodies is not None:
            done = program.bodies
            assert (done if isinstance(row.bodies, list) else len(done)) == row.bodies
