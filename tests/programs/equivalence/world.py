"""What random programs consist of, and what is seen of them: effects, a trace, portraits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import types
from collections import deque

import stepwise
from stepwise._execution import active_run

FUEL = 300  # effects and traces of one execution: a broken rewriter may loop for ever
MODULE = "equivalence_program"
"""The name of the module that a program is."""


class Crash(KeyboardInterrupt):
    """The end of a process, played by an exception."""


class Runaway(BaseException):
    """A program does not end."""


# -- what programs do outside of themselves ------------------------------------------------------
class World:
    """Effects and trace of one execution, and when it is to crash."""

    def __init__(self):
        self.begin()

    def begin(self, crash_at=None, crash=None, before=()):
        """A new execution; in its effect number ``crash_at`` it ends.

        Args:
            before: the effects of the processes that were killed before it.
        """
        self.before = before
        self.effects = []
        self.trace = []  # (run, text)
        self.marks = {}  # run -> how much of the trace its last checkpoint has behind it
        self.crash_at = crash_at
        self.crash = crash
        self.crashed = False
        self.fuel = FUEL

    def burn(self):
        self.fuel -= 1
        if self.fuel < 0:
            raise Runaway

    def effect(self, *what):
        if self.crashed:
            raise Crash
        self.burn()
        if len(self.effects) + 1 == self.crash_at:
            self.crashed = True
            if self.crash is not None:
                self.crash()
            raise Crash
        self.effects.append(repr(what))

    def times(self, *what):
        """How often something happened so far, in killed processes, too."""
        return [*self.before, *self.effects].count(repr(what))

    def log(self, *what):
        if not self.crashed:
            self.burn()
            scope = active_run.current_scope()
            self.trace.append((scope.run.run_id if scope is not None else "", repr(what)))
        return what[-1]

    def note(self, run_id, batch):
        """The store wrote: nothing before a checkpoint, or of a run that is over, runs again."""
        if any(name.startswith("checkpoint/") for name in batch.put) or (
            batch.head is not None and batch.head.finished
        ):
            self.marks[run_id] = len(self.trace)


world = World()


def keep(variables, value):
    """The end of a program: its local variables are part of the trace."""
    shown = {name: item for name, item in variables.items() if name[0] != "@"}
    world.log("locals", portrait(shown))
    return value


def same(x):
    world.effect("st", x)
    return x


def boom(x):
    world.effect("boom", x)
    raise ValueError(x)


def deed(x):
    world.effect("deed", x)
    return x


async def asame(x):
    return same(x)


async def aboom(x):
    return boom(x)


async def adeed(x):
    return deed(x)


drawn = itertools.count(1)


def draw():
    """A number that no other call gives, in this execution or another."""
    return next(drawn)


async def adeed_with(number, x):
    return deed_with(number, x)


def deed_with(number, x):
    """What it is called with is drawn; what comes of it is not."""
    world.effect("deed with", x)
    return x


class Absent:
    """A sentinel's class."""


UNSET, ABSENT = object(), Absent()


class Box:
    """A caller's object."""

    def __init__(self, v=0):
        self.v = v


@stepwise.reenterable
class Good:
    """A manager that can be entered again."""

    def __init__(self, value=1):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *exception):
        return None

    async def __aenter__(self):
        return self.value

    async def __aexit__(self, *exception):
        return None


@contextlib.contextmanager
def bad():
    """A manager that cannot: a run resumes before its block."""
    world.log("enter")
    yield 2
    world.log("exit")


def gen(n):
    """What cannot be part of a checkpoint."""
    for i in range(n):
        world.log("gen", i)
        yield i


async def agen(n):
    for i in gen(n):
        yield i


class Count:
    """An asynchronous iterator that can be part of a checkpoint."""

    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.n -= 1
        if self.n < 0:
            raise StopAsyncIteration
        return self.n


def add_one(function):
    """A decorator for functions inside of programs."""
    return lambda *args: function(*args) + 1


VOCABULARY = {
    "Box": Box,
    "Count": Count,
    "Good": Good,
    "ABSENT": ABSENT,
    "UNSET": UNSET,
    "add_one": add_one,
    "agen": agen,
    "bad": bad,
    "draw": draw,
    "gather": asyncio.gather,
    "gen": gen,
    "keep": keep,
    "log": world.log,
    "nullcontext": contextlib.nullcontext,
    "suppress": contextlib.suppress,
}
PLAIN = {
    False: {"st": same, "bm": boom, "tl": deed, "td": deed_with},
    True: {"st": asame, "bm": aboom, "tl": adeed, "td": adeed_with},
}
"""Whether the program is asynchronous -> its steps."""


# -- portraits of values -------------------------------------------------------------------------
def portrait(value, seen=None):
    """What a value is made of, and which of its parts are one object."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, str, bytes, range, types.ModuleType)):
        return repr(value)
    if value is UNSET or value is ABSENT:
        return "sentinel"
    if id(value) in seen:
        return f"#{seen[id(value)][0]}"
    seen[id(value)] = len(seen), value

    def parts(values):
        return [portrait(each, seen) for each in values]

    kind = type(value).__name__
    if isinstance(value, random.Random):
        return kind, hash(value.getstate())
    if isinstance(value, bytearray):
        return kind, repr(value)
    if kind == "Generator" and hasattr(value, "bit_generator"):  # of numpy, as the next
        return kind, repr(value.bit_generator.state)
    if kind == "ndarray":
        return kind, str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return kind, [(repr(key), portrait(item, seen)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, parts(value)))
    if isinstance(value, (list, tuple, deque)):
        return kind, parts(value)
    if isinstance(value, types.MethodType):
        return kind, value.__func__.__name__, portrait(value.__self__, seen)
    if isinstance(value, types.BuiltinMethodType):
        return kind, value.__name__, portrait(value.__self__, seen)
    if isinstance(value, types.FunctionType):
        return (
            kind,
            value.__name__,
            parts(value.__defaults__ or ()),
            list(zip(value.__code__.co_freevars, parts(value.__closure__ or ()), strict=True)),
        )
    if isinstance(value, types.CellType):
        try:
            return kind, portrait(value.cell_contents, seen)
        except ValueError:
            return kind
    if isinstance(value, type):
        if value.__module__ != MODULE or value.__name__ in vars(sys.modules[MODULE]):
            return kind, value.__name__
        own = {k: v for k, v in sorted(vars(value).items()) if not k.startswith("__")}
        return kind, value.__name__, portrait(own, seen)
    if isinstance(value, BaseException):
        return kind, parts(value.args)
    if hasattr(value, "__dict__") and type(value).__module__ != "builtins":
        hidden = getattr(value, "__pydantic_private__", None)
        return portrait(type(value), seen), portrait(vars(value), seen), portrait(hidden, seen)
    if hasattr(type(value), "__slots__"):
        names = [name for name in type(value).__slots__ if name != "__weakref__"]
        return kind, portrait({name: getattr(value, name, None) for name in names}, seen)
    if hasattr(value, "__next__") and type(value) is not types.GeneratorType:
        return kind, parts(value.__reduce__()[1:])
    return kind
