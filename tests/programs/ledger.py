"""What the random programs of ``identity`` have in common: a ledger, and an end at any line.

Each body of a step writes to the ledger who it really is (which object with which configuration and
client), whatever the library can see of that; so a judge can tell whether a recorded outcome
answered another call.  A program is killed after the line of the ledger that ``DIE_AT`` names.
With ``PLAIN=1`` the decorators do nothing: the program is then what it is without the library.
"""

import asyncio
import functools
import inspect
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import warnings

import stepwise
from stepwise._calls import call as perform

perform.PATIENCE = 0.5  # no program of these waits on purpose

_file = os.open(os.environ["WORLD_LOG"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
_count = itertools.count(1)
_last = int((os.environ.get("DIE_AT") or "ledger 0").removeprefix("ledger "))
_lock = threading.Lock()
_chance = random.Random(os.environ.get("ORDER"))
_who = {}
PLAIN = os.environ.get("PLAIN") == "1"


def _undecorated(function=None, **options):
    return _undecorated if function is None else function


if PLAIN:
    stepwise.step = stepwise.tool = stepwise.workflow = _undecorated
    stepwise.map = lambda function, items: list(map(function, items))


def event(kind, **facts):
    """Write a line, and die if it is the last one."""
    with _lock:
        os.write(_file, f"{json.dumps({'kind': kind, **facts})}\n".encode())
        if next(_count) == _last:
            os.kill(os.getpid(), signal.SIGKILL)


# -- what programs are made of -------------------------------------------------------------------


class Client:
    """Something undigestible, which stands for an account that no rule can see."""

    def __init__(self, who):
        self._own = threading.local()  # in no checkpoint, as a lock would be
        _who[id(self)] = who, self


class Connection:
    """Another: it holds a thing like a socket."""

    def __init__(self, who):
        self.reading, self.own = iter(()), threading.local()
        _who[id(self)] = who, self


def who(client):
    """The account behind a client."""
    return _who[id(client)][0] if client is not None else "-"


def order(items):
    """The items in the order in which a set would give them to this process."""
    items = list(items)
    _chance.shuffle(items)
    return items


def body(name, truth, level, question, *, effect=False):
    """What a step does; its answer says who gave it, and is another at each execution."""
    facts = _facts(name, truth, level, question, effect)
    event("began", **facts)
    if threading.active_count() > 1:
        time.sleep(_chance.random() / 500)
    event("did", **facts)
    return facts["answer"]


async def abody(name, truth, level, question, *, effect=False):
    """The same, done beside others."""
    facts = _facts(name, truth, level, question, effect)
    event("began", **facts)
    for _ in range(_chance.randrange(4)):
        await asyncio.sleep(0)
    event("did", **facts)
    return facts["answer"]


def _facts(name, truth, level, question, effect):
    answer = f"{name}|{truth}|{level}|{question}|{os.urandom(3).hex()}"
    key = stepwise.current_step().idempotency_key
    return {"act": [name, truth, question], "effect": effect, "key": key, "answer": answer}


def got(site, answer):
    """The workflow has the answer."""
    event("got", site=site, answer=answer)
    return answer


async def agot(site, call):
    """Await a call: what a helper of a program does."""
    return got(site, await call)


def in_threads(calls):
    """Make the calls, each in a thread."""
    out = {}

    def make(site, function, question):
        out[site] = got(site, function(question))

    threads = [threading.Thread(target=make, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


# -- who calls ------------------------------------------------------------------------------------


def watch():
    """Note who makes each call of a step, and which call it was that was stopped first."""
    from stepwise._calls import call as one_call
    from stepwise._calls import steps

    def core(step, scope, args, kwargs, **options):
        act = _begun.act = _act(step, args)
        calls.append(act)
        call = right(step, scope, args, kwargs, **options)
        try:
            return (yield from call)
        except stepwise.StepInDoubtError:
            stops.append(act)
            stopped.extend(place for place, each in made if each is act)
            raise

    def begin(performance, arguments):
        act, _begun.act = getattr(_begun, "act", None), None
        call, origin = counts(performance, arguments)
        if act is not None:  # it is no child workflow
            made.append([[performance.scope.run.run_id, call.name, call.ordinal], act])
        return call, origin

    right, steps.Step.core = steps.Step.core, core
    performance = one_call.Performance
    counts, performance._begin = performance._begin, begin


calls, made, stops, stopped = [], [], [], []
_begun = threading.local()


def _act(step, args):
    """What a call is, as the body says it: looked up where the program keeps it."""
    function = step.function
    held = dict(inspect.getclosurevars(function).nonlocals)
    held.update(zip(inspect.signature(function).parameters, args, strict=False))
    for name, parameter in inspect.signature(function).parameters.items():
        held.setdefault(name, parameter.default)
    question = held["question"]
    name = function.__name__.removeprefix("do_")
    if function.__name__[-1].isdigit():
        return [name[:-1], f"{name[-1]}/-/0", question]
    for value in [*held.values()]:
        if isinstance(value, functools.partial):
            held["config"], held["client"] = [*value.args, *value.keywords.values()][:2]
        owner = getattr(value, "__self__", value)
        for attribute in ("config", "client", "mode"):
            if hasattr(owner, attribute):
                held[attribute] = getattr(owner, attribute)
    client = held.get("client")
    known = who(client) if id(client) in _who else "-"
    return [name, f"{held['config']}/{known}/{held.get('mode', 0)}", question]


# -- the end -------------------------------------------------------------------------------------


def main(run):
    """Run the program; leave how it ended beside the ledger."""
    threading.excepthook = lambda args: None  # the run itself says what stopped it
    warnings.simplefilter("always")
    warned = []
    warnings.showwarning = lambda message, category, *_: warned.append(
        [category.__name__, str(message)]
    )
    ended = {}
    if not PLAIN:
        watch()
    try:
        value = run()
        ended["result"] = asyncio.run(value) if asyncio.iscoroutine(value) else value
    except stepwise.StepInDoubtError as error:
        named = ("run_id", "step", "name", "arguments", "idempotency_key")
        ended["doubt"] = {each: getattr(error, each) for each in named} | {"text": str(error)}
    ended |= {"warned": warned, "calls": calls, "stops": stops, "made": made, "stopped": stopped}
    ended["steps"] = [] if PLAIN else [_step(each, run) for run in _runs() for each in run.steps]
    with open(os.environ["WORLD_LOG"] + ".ended", "w", encoding="utf-8") as file:
        json.dump(ended, file)
    sys.exit(3 if "doubt" in ended else 0)


def _runs():
    return [stepwise.get_run(each.id) for each in stepwise.runs()]


def _step(each, run):
    return {
        "run": run.id,
        "number": each.number,
        "name": each.name,
        "status": each.status,
        "effect": each.side_effect,
        "child": each.child,
        "inside": run.resumed_from_step,
        "key": each.idempotency_key,
        "answer": each.result if each.status == "completed" and not each.child else None,
    }
