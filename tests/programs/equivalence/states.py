"""State objects, the operations that change them in place, and programs that are made of both.

The steps of these programs are defined in their own source text.  As plain functions they are what
they are, except that :class:`Attempts` says what a retry means: the inner calls of a failed attempt
answer the next one up to the last side effect.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import random
import threading
from collections import deque

import stepwise
from equivalence.programs import Program, load_into
from equivalence.state_writer import StateWriter
from equivalence.world import Runaway, keep, world

EFFECTS = 24  # of one program, at most
GARBAGE = "garbage"


# -- state objects -------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    items: list
    table: dict
    n: int = 0
    cost: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    items: list
    table: dict


class Own:
    def __init__(self, items, table, n=0):
        self.items, self.table, self.n = items, table, n


class Slotted:
    __slots__ = ("items", "n", "peer", "table")

    def __init__(self, items, table, n=0):
        self.items, self.table, self.n = items, table, n


@dataclasses.dataclass(frozen=True)
class FrozenSlotted:
    __slots__ = ("items", "table")
    items: list
    table: dict

    def __getstate__(self):  # before Python 3.11, pickle cannot set the slots of a frozen class
        return self.items, self.table

    def __setstate__(self, state):
        for name, value in zip(self.__slots__, state, strict=True):
            object.__setattr__(self, name, value)


class Client:
    """It holds a lock, as the clients of SDKs do."""

    def __init__(self, model):
        self.model = model
        self.lock = threading.Lock()


def _dict(items, table):
    return {"items": items, "table": table, "n": 0}


def _bags(items, table):
    own = Own(items, table)
    own.bag, own.queue, own.raw = {1}, deque([1, 2], 3), bytearray(b"abc")
    return own


def _random(items, table):
    own = Own(items, table)
    own.rng = random.Random(7)
    return own


KINDS = {
    "data": Data,
    "frozen": Frozen,
    "own": Own,
    "slotted": Slotted,
    "frozen_slotted": FrozenSlotted,
    "dict": _dict,
    "bags": _bags,
    "random": _random,
}
"""Kind of state object -> what makes one of a list and a dict."""

if importlib.util.find_spec("attrs"):
    import attrs

    @attrs.define
    class Attrs:
        items: list
        table: dict
        n: int = 0

    KINDS["attrs"] = Attrs

if importlib.util.find_spec("pydantic"):
    import pydantic

    class Model(pydantic.BaseModel):
        items: list
        table: dict
        n: int = 0
        _private: int = pydantic.PrivateAttr(0)

    def _model(items, table):
        return Model.model_construct(items=items, table=table)  # validation would copy both

    KINDS["model"] = _model

if importlib.util.find_spec("numpy"):
    import numpy as np

    def _grid(items, table):
        own = Own(items, table)
        own.grid, own.draws = np.arange(4), np.random.default_rng(7)
        return own

    KINDS["grid"] = _grid


def make(kind, seed=1, client=None):
    """Make a state object: a list of numbers, a dict of dicts, and what its kind holds beside."""
    state = KINDS[kind]([seed, 2, 3], {"k": {"deep": seed}})
    if client is not None:
        state.client = Client(client)
    return state


def get(state, name):
    """The part of a state object of that name; ``None`` if there is none."""
    return state.get(name) if isinstance(state, dict) else getattr(state, name, None)


def put(state, name, value):
    """Set a part, if the object allows it; else leave it."""
    if isinstance(state, dict):
        state[name] = value
    else:
        with contextlib.suppress(AttributeError, ValueError):  # ValueError: no field of a model
            setattr(state, name, value)
    return value


# -- operations ----------------------------------------------------------------------------------


def _set_first(s, x):
    s["items"][:1] = [x]


def _deep(s, x):
    s["table"]["k"]["deep"] = x


def _new_key(s, x):
    s["table"].setdefault(f"k{x % 3}", {})["deep"] = x


def _reinsert(s, x):
    s["table"]["k"] = s["table"].pop("k")  # the order of the keys


def _drop(s, x):
    del s["items"][2:]


def _count(s, x):
    put(s.state, "n", (get(s.state, "n") or 0) + x)


def _rebind(s, x):
    put(s.state, "items", [*s["items"], x][-5:])


def _hidden(s, x):
    if isinstance(s.state, Data):
        s.state.cost += 0.5
    elif type(s.state).__name__ == "Model":
        s.state._private += x


def _bag(s, x):
    if (bag := s["bag"]) is not None:
        bag.discard(1)
        bag.add(x + 10)


def _queue(s, x):
    if (queue := s["queue"]) is not None:
        queue.append(x)


def _raw(s, x):
    if (raw := s["raw"]) is not None:
        raw[0] = x % 100


def _grid_cell(s, x):
    if (grid := s["grid"]) is not None:
        grid[0] += x
        grid *= 2
        grid %= 97


def _draw(s, x):
    if (rng := s["rng"]) is not None:
        s["items"][-1:] = [rng.randrange(100)]
    if (draws := s["draws"]) is not None:
        s["items"][-1:] = [int(draws.integers(100))]


def _peer(s, x):
    peer = s["peer"]
    if peer is not None:
        get(peer, "items").append(x)


OPERATIONS = {
    "append": lambda s, x: s["items"].append(x),
    "first": _set_first,
    "reverse": lambda s, x: s["items"].reverse(),
    "drop": _drop,
    "deep": _deep,
    "key": _new_key,
    "order": _reinsert,
    "count": _count,
    "rebind": _rebind,
    "hidden": _hidden,
    "bag": _bag,
    "queue": _queue,
    "raw": _raw,
    "grid": _grid_cell,
    "draw": _draw,
    "peer": _peer,
    "look": lambda s, x: None,
}
"""Name -> a change in place, at some depth; ``look`` changes nothing."""


class _Parts(collections.UserDict):
    """The parts of a state object by name; ``None`` for one that it lacks."""

    def __init__(self, state):
        self.state = state

    def __getitem__(self, name):
        return get(self.state, name)


def summary(state):
    """A number that depends on each part of a state object."""
    items, table = get(state, "items"), get(state, "table")
    more = sum(get(state, name) is not None for name in ("peer", "rng", "grid"))
    deep = sum(n * inner["deep"] for n, inner in enumerate(table.values(), 1))
    weighted = sum(n * item for n, item in enumerate(items, 1))
    return (weighted + deep + (get(state, "n") or 0) + more) % 89


def change(state, operation, x):
    """The body of a step: change the state, and return what depends on all of it."""
    world.effect(operation, x)
    OPERATIONS[operation](_Parts(state), x)
    return summary(state)


def quietly(state, operation, x):
    """A change that is no effect: of the workflow's own code, or of an outer step."""
    OPERATIONS[operation](_Parts(state), x)
    return summary(state)


def model(tag, x):
    """A model that answers garbage when it is asked for the first time under a tag."""
    asked = world.times("asked", tag)
    world.effect("asked", tag)
    if not asked:
        return GARBAGE
    return x + 1


def paid(x):
    world.effect("paid", x)
    return x + 1


def told(x):
    world.effect("told", x)
    return x + 1


def checked(answer):
    """An outer step fails on garbage."""
    if answer == GARBAGE:
        raise ValueError(answer)
    return answer


VOCABULARY = {
    each.__name__: each
    for each in (change, checked, get, make, model, paid, put, quietly, summary, told)
}


# -- what the plain functions do -----------------------------------------------------------------


class Attempts:
    """What a retry means: inner calls answer the next attempt up to the last side effect."""

    def __init__(self):
        self.open = []  # of each outer step in progress: its inner calls, and how many were met

    def outer(self, function, retries):
        """An outer step, as a plain function."""

        @functools.wraps(function)
        def outer(*args):
            self.open.append(([], 0))
            try:
                for attempt in range(retries + 1):
                    try:
                        return function(*args)
                    except ValueError:
                        if attempt == retries:
                            raise
                        made, _ = self.open[-1]
                        last = max((n for n, (effect, _) in enumerate(made) if effect), default=-1)
                        self.open[-1] = made[: last + 1], 0
            finally:
                self.open.pop()

        return outer

    def inner(self, function, *, effect):
        """A step or tool, as a plain function."""

        @functools.wraps(function)
        def inner(*args):
            if not self.open:
                return function(*args)
            made, met = self.open[-1]
            if met == len(made):
                made.append((effect, function(*args)))
            self.open[-1] = made, met + 1
            return made[met][1]

        return inner


def _plain():
    """``step``, ``tool`` and ``workflow`` for the plain functions."""
    attempts = Attempts()

    def step(function=None, *, retries=None, backoff=0):
        if function is None:
            return lambda function: attempts.outer(function, retries)
        return attempts.inner(function, effect=False)

    def tool(**options):
        return lambda function: attempts.inner(function, effect=True)

    return {"step": step, "tool": tool, "workflow": lambda **options: lambda function: function}


# -- programs ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StateProgram(Program):
    """A program whose steps change state objects.

    Args:
        kind: of the caller's state object.
        client: the model of its client; ``None`` if it has none.
    """

    kind: str = "own"
    client: str | None = None

    def arguments(self, namespace):
        """What it is called with: new objects at each call."""
        agent = namespace.get("Agent")
        given = [] if agent is None else [agent(make(self.kind, 4, self.client))]
        return [*given, 2, make(self.kind, 5, self.client)]


def load_states(name, source, **facts):
    """Make a program of a source text."""
    vocabulary = {**VOCABULARY, "log": world.log, "keep": keep}
    durable = {"step": stepwise.step, "tool": stepwise.tool, "workflow": stepwise.workflow}
    plain, durable = load_into(name, source, {**vocabulary, **_plain()}, {**vocabulary, **durable})
    return StateProgram(name, source, False, plain, durable, **facts)


def write_states(seed, features):
    """The program of a seed: one that does something, and not too much.

    Args:
        features: of it: ``changes``, ``clients``, ``retries``.
    """
    attempt = 0
    while True:
        writer = StateWriter(f"{seed}.{attempt}", features, KINDS, OPERATIONS)
        source = writer.program()
        program = load_states(
            f"program {seed}", source, kind=writer.given, client=writer.given_client
        )
        world.begin()
        try:
            program.call(program.plain)
        except Runaway:
            world.effects *= EFFECTS
        if 2 <= len(world.effects) <= EFFECTS:
            return program
        attempt += 1
