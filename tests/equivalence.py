"""Random workflow programs, crashed everywhere: resumed, they are what they were undisturbed.

:class:`Writer` writes a program, :func:`load` makes it a module, and :func:`check` runs it:

1. plainly, as undecorated functions, and in a run that nothing disturbs;
2. *killed* wherever that makes a difference: from a copy of the store as it was after each write,
   which is all that ``kill -9`` leaves behind; the recovery is killed and recovered in its turn;
3. *interrupted* in the middle of a step, as by Ctrl-C: the exception unwinds the program;
4. *forked* (:func:`check_forked`): a process that ends itself with ``os._exit`` in a step.

Each time the result, the log of effects, the caller's objects and the final local variables are
those of the undisturbed run, and a trace of the statements that are no steps shows that nothing ran
again that lies before the last checkpoint of its run.

``python tests/equivalence.py 0 1000`` checks the programs 0 to 999; ``--forked`` does it with
forks, ``--show SEED`` prints a program.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import linecache
import os
import pickle
import random
import sys
import tempfile
import textwrap
import time
import traceback
import types
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace

import stepwise
from stepwise import _process, _run
from stepwise.stores.disk import DiskStore
from stepwise.stores.memory import MemoryStore, _Run

FUEL = 300  # effects and traces of one execution: a broken rewriter may loop for ever
EFFECTS = 14  # of one program, at most
EXPECTED = (ValueError, ArithmeticError, LookupError, RuntimeError)
"""What programs raise on purpose."""
if sys.version_info >= (3, 11):
    EXPECTED += (ExceptionGroup,)  # noqa: F821


class Differs(AssertionError):
    """A resumed program is not what it was undisturbed."""


class Crash(KeyboardInterrupt):
    """The end of a process, played by an exception."""


class Runaway(BaseException):
    """A program does not end."""


# -- what programs do outside of themselves ------------------------------------------------------


class World:
    """Effects and trace of one execution, and when it is to crash."""

    def __init__(self):
        self.begin()

    def begin(self, crash_at=None, crash=None):
        """A new execution; in its effect number ``crash_at`` it ends."""
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

    def log(self, *what):
        if not self.crashed:
            self.burn()
            scope = _run.current_scope()
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
    """A manager that cannot: a run goes on before its block."""
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


# -- portraits of values -------------------------------------------------------------------------


def portrait(value, seen=None):
    """What a value is made of, and which of its parts are one object."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, str, bytes, range, types.ModuleType)):
        return repr(value)
    if id(value) in seen:
        return f"#{seen[id(value)][0]}"
    seen[id(value)] = len(seen), value

    def parts(values):
        return [portrait(each, seen) for each in values]

    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(repr(key), portrait(item, seen)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, parts(value)))
    if isinstance(value, (list, tuple)):
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
        return portrait(type(value), seen), portrait(vars(value), seen)
    if hasattr(value, "__next__") and type(value) is not types.GeneratorType:
        return kind, parts(value.__reduce__()[1:])
    return kind


# -- writing programs ----------------------------------------------------------------------------


class Writer:
    """Writes one program, the same for the same seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.chance = self.random.random
        self.any = self.random.choice
        self.is_async = self.chance() < 0.35
        self.is_method = self.chance() < 0.2
        self.wait = "await " if self.is_async else ""
        self.define = "async def" if self.is_async else "def"
        self.children = []
        self.number = 0

    def program(self):
        """The source of a module that defines ``prog`` or ``Agent.prog``."""
        parts = []
        if self.chance() < 0.3:
            parts.append(self.helper())
            self.children.append("helper")
        if self.chance() < 0.35:
            parts.append(self.function("child", self.any([2, 4, 6])))
            self.children.append("child")
        if self.chance() < 0.12:
            parts.append(self.recursion())
            self.children.append("down")
        main = self.function("prog", self.any([3, 4, 5, 6, 8, 10, 14]))
        if self.is_method:
            head = ["class Agent:", "    def __init__(self):", "        self.v, self.notes = 0, []"]
            main = "\n".join([*head, "", textwrap.indent(main, "    ")])
        return "\n\n".join([*parts, main]) + "\n"

    # -- functions -------------------------------------------------------------------------------

    def function(self, name, budget):
        self.budget = budget
        self.depth = self.loops = 0
        self.sealed = False  # in a finally or an except*: no break, continue, return
        self.closures = self.chance() < 0.5
        self.main = name == "prog"
        self.method = self.is_method and self.main
        every = self.any([1, 1, 1, 1, 2, 3])
        me = "self, " if self.method else ""
        lines = [f"@workflow(name={name!r}, checkpoint_every={every})"]
        if self.main:
            lines += [f"{self.define} prog({me}a, acc, m, box):", "    b, w = 1, 0"]
        else:
            lines += [
                f"{self.define} {name}(a, acc):",
                "    b, w, m, box = 1, 0, {'k': a}, Box()",
            ]
        lines += ["    alias = m"]
        if self.closures:
            lines += [
                "    count = 0",
                "    def bump():",
                "        nonlocal count",
                "        count += 1",
                "        acc.append(count % 3)",
                "        return count",
                "    f = lambda q: (q + count) % 6",
            ]
        while self.budget > 0:
            lines += self.statement("    ")
        last = "(a, b, w, list(acc), dict(m), alias is m, box.v)" if self.main else "b"
        return "\n".join([*lines, f"    return keep(locals(), {last})"])

    def helper(self):
        """Undecorated: inside of it there are no resume points."""
        return textwrap.dedent(
            f"""\
            {self.define} helper(x, acc):
                acc.append(log('helper', {self.wait}st(x)))
                return {self.wait}st(x + {self.any([0, 1])}) + len(acc)"""
        )

    def recursion(self):
        return textwrap.dedent(
            f"""\
            @workflow
            {self.define} down(n, acc):
                n = n % 3
                acc.append({self.wait}st(n))
                log('down', n)
                below = {self.wait}down(n - 1, acc) if n else 0
                {self.any(["log(below)", f"{self.wait}st(below)"])}
                return keep(locals(), below + n)"""
        )

    # -- expressions -----------------------------------------------------------------------------

    def value(self):
        """An expression for a number, without a step."""
        r = self.random
        values = ["a", "b", "a + 1", "b * 2 % 7", "len(acc)", "acc[-1] if acc else 3", "m['k'] % 9"]
        values += [str(r.randint(0, 5)), str(r.randint(0, 5)), "sum(acc) % 5", "box.v"]
        if self.closures:
            values += ["count", "bump()", "f(a)"]
        if self.method:
            values += ["self.v", "len(self.notes)"]
        return self.any(values)

    def step(self):
        """An expression that calls a step."""
        value, wait = self.value(), self.wait
        kinds = [f"{wait}st({value})"] * 8
        kinds += [
            f"{wait}tl({value})",
            f"{wait}st({wait}st({value}) % 3)",
            f"({wait}st({value}) if {self.test()} else {self.value()})",
            f"sum([{wait}st(q) for q in range({self.any([0, 1, 2])})])",
            f"(w := {wait}st({value}))",
            f"{{'x': {wait}st({value}), 'y': 1}}['x']",
            f"len(str({wait}st({value})))",
        ]
        kinds += [f"{wait}{child}({value}, acc)" for child in self.children for _ in range(3)]
        if self.is_async:
            kinds.append(f"sum(await gather(st({value}), st({self.value()})))")
        else:
            kinds.append(f"sum(st(q) for q in [{value}, 1])")
            kinds.append(f"(lambda q: st(q) + 1)({value})")
        return self.any(kinds)

    def test(self):
        value = self.value()
        return self.any(
            [
                f"({value}) % 2 == 0",
                f"({value}) > 2",
                f"1 < ({value}) <= 4",
                "acc",
                "not acc",
                "m is alias",
                f"(w := ({value})) > 1",
                f"{self.wait}st({value}) % 3 == 1",
                f"{self.wait}st({value}) > 2 and ({self.value()}) < 9",
            ]
        )

    def name(self, letter):
        self.number += 1
        return f"{letter}{self.number}"

    # -- simple statements -----------------------------------------------------------------------

    def block(self, indent):
        lines = []
        for _ in range(self.any([1, 1, 1, 2, 2, 3])):
            lines += self.statement(indent)
        return lines

    def statement(self, indent):
        self.budget -= 1
        kinds = ["step"] * 5 + ["log"] * 2 + ["assign", "mutate", "bind", "define"]
        if self.budget > 0 and self.depth < 4:
            kinds += ["if", "if", "for", "for", "while", "try", "try", "with", "match"]
        if self.loops and not self.sealed:
            kinds += ["leave", "leave"]
        if self.depth and not self.sealed and self.chance() < 0.06:
            kinds = ["early"]
        kind = self.any(kinds)
        self.depth += 1
        try:
            lines = getattr(self, f"write_{kind}")()
        finally:
            self.depth -= 1
        return [indent + line for line in lines]

    def write_step(self):
        step = self.step()
        return [
            self.any(
                [
                    step,
                    f"a = {step}",
                    f"b: int = {step}",
                    f"a = b = {step}",
                    f"acc.append({step})",
                    f"acc += [{step}]",
                    f"b += {step}",
                    f"m['k'] = {step}",
                    f"m[{self.wait}st({self.value()})] = {step}",
                    f"box.v = {step}",
                    f"b, c = {step}, {self.step()}",
                    f"a, *rest = [{step}, {self.value()}, 7]",
                    f"assert {step} is not None",
                    *([f"self.v = {step}", f"self.notes.append({step})"] if self.method else ()),
                ]
            )
        ]

    def write_log(self):
        return [f"log({self.random.randint(0, 99)}, {self.value()})"]

    def write_assign(self):
        name, value = self.any("ab"), self.value()
        return [self.any([f"{name} = {value}", f"{name} += 1", f"a, b = b, {value}", "box.v += 1"])]

    def write_mutate(self):
        changes = [
            [f"acc.append({self.value()})"],
            ["alias['z'] = len(m)"],
            ["del acc[-1:]"],
            ["m.pop('z', None)"],
            ["acc = acc[-3:]"],
            ["pair = [acc, m, box]", "pair.append(pair)"],
            ["it = iter([4, 5, 6])", "next(it)"],
            [f"acc.extend([q + a for q in range({self.any([0, 1, 2])})])"],
            [f"acc.extend([w := q for q in range({self.any([1, 2])})])"],
        ]
        if self.method:
            changes += [["self.notes.append(acc)"], ["self.v += 1"], ["self.extra = box"]]
        return self.any(changes)

    def write_bind(self):
        """A variable that comes and goes."""
        name = self.name("t")
        return [f"{name} = [a, b, acc]", self.step(), f"del {name}"]

    def write_define(self):
        """Functions and classes of the program's own."""
        g = self.name("g")
        return self.any(
            [
                [f"{g} = lambda q: q + a + {self.value()}", f"b = {g}(1) % 9"],
                [f"def {g}(q, held=[a]):", "    held.append(q)", "    return len(held) + b"]
                + [f"a = {g}(0)", self.step(), f"a = {g}(1)"],
                ["@add_one", f"def {g}(q):", "    return q + b", f"b = {g}({self.value()}) % 9"],
                ["class K:", "    z = a", "    def get(self):", "        return self.z + b"]
                + [f"{g} = K()", self.step(), f"a = {g}.get() % 11"],
                ["import math as mm", "a = mm.floor(a)"],
                ["class K(Box):", f"    x = {'a' if self.is_async else self.step()}", "b = K.x"],
                [f"{self.define} {g}():", "    nonlocal b", f"    b = {self.wait}st(b)"]
                + ["    return b", f"a = {self.wait}{g}()"],
            ]
        )

    def write_leave(self):
        what = self.any(["break", "break", "continue"])
        if self.chance() < 0.3:
            return [f"if {self.test()}:", f"    log('{what}', a)", f"    {what}"]
        return [f"if ({self.value()}) > {self.random.randint(1, 4)}: {what}"]

    def write_early(self):
        value = self.any(["('early', a, b, acc, m)", f"('early', {self.step()})"])
        return [f"return keep(locals(), {value if self.main else self.step()})"]

    # -- compound statements ---------------------------------------------------------------------

    def write_if(self):
        lines = [f"if {self.test()}:", *self.block("    ")]
        if self.chance() < 0.4:
            lines += [f"elif {self.test()}:", *self.block("    ")]
        if self.chance() < 0.5:
            lines += ["else:", *self.block("    ")]
        return lines

    def write_while(self):
        n = self.name("n")
        test = f"({n} := {n} - 1) >= 0"
        if self.chance() < 0.5:
            test += f" and {self.test()}"
        lines = [f"{n} = {self.any([1, 2, 2, 3])}", f"while {test}:"]
        if self.chance() < 0.15:
            lines = [f"{n} = 0", "while True:", f"    if ({n} := {n} + 1) > 2: break"]
        return [*lines, *self.loop_body(), *self.loop_else()]

    def write_for(self):
        i = self.name("i")
        sources = [
            (i, f"range({self.any([1, 2, 3])})"),
            (i, "list(acc[:3])"),
            (i, "acc"),
            (i, "{'p': 1, 'q': 2}"),
            (i, "{3}"),
            (i, "sorted({3, 1})"),
            (i, "reversed([1, 2])"),
            (i, f"[{self.step()}, 2]"),
            (i, "gen(2)"),
            (i, "(q for q in [a, 2])"),
            (i, "map(str, [1, 2])"),
            (i, "'xy'"),
            (f"({i}, _)", "enumerate([5, 6])"),
            (f"({i}, *_)", "zip([1, 2], [3, 4])"),
            ("box.v", "[7, 8]"),
            ("m['k']", "(2, 3)"),
        ]
        if self.is_async:
            sources += [(i, "agen(2)"), (i, "Count(2)")] * 3
        target, iterable = self.any(sources)
        wait = "async " if iterable.startswith(("agen", "Count")) else ""
        first = ["    if len(acc) > 9: break"] if iterable == "acc" else []
        return [f"{wait}for {target} in {iterable}:", *first, *self.loop_body(), *self.loop_else()]

    def loop_body(self):
        self.loops += 1
        lines = self.block("    ")
        self.loops -= 1
        return lines

    def loop_else(self):
        return ["else:", *self.block("    ")] if self.chance() < 0.25 else []

    def write_with(self):
        h = self.name("h")
        managers = [f"Good() as {h}", "Good()", "suppress(LookupError)", f"bad() as {h}"]
        managers += [f"Good(acc) as {h}", f"Good() as {h}, suppress(ValueError)", "Good(), bad()"]
        managers += [f"nullcontext([a]) as {h}", f"Good({self.step()}) as {h}"]
        manager = self.any(managers)
        wait = self.is_async and manager.startswith("Good") and "," not in manager
        lines = [f"{'async ' if wait and self.chance() < 0.5 else ''}with {manager}:"]
        lines += self.block("    ")
        if "suppress" in manager:
            lines.append(f"    {self.failure()}")
        return lines

    def failure(self):
        """A statement that may raise what :data:`EXPECTED` names."""
        return self.any(
            [
                f"{self.wait}bm({self.value()})",
                f"raise ValueError({self.value()})",
                f"a = 1 // (({self.value()}) % 2)",
                "acc[99]",
                "m['nobody']",
            ]
        )

    def write_try(self):
        body = self.block("    ")
        if self.chance() < 0.7:
            body.append(f"    {self.failure()}")
        lines = ["try:", *body]
        if self.chance() < 0.25:
            return [*lines, "finally:", *self.seal()]
        star = sys.version_info >= (3, 11) and self.chance() < 0.15
        caught = self.any(["ValueError", "(ValueError, ArithmeticError, LookupError)"])
        lines.append(f"except{'*' if star else ''} {caught} as e:")
        lines += self.seal() if star else self.block("    ")
        lines.append(self.any(["    log('caught', str(e))", "    failed = e", "    raise"]))
        if self.chance() < 0.3:
            lines += ["else:", *self.block("    ")]
        if self.chance() < 0.3:
            lines += ["finally:", *self.seal()]
        return lines

    def seal(self):
        """A block that nothing leaves: it would swallow the exception that plays a crash."""
        before, self.sealed = self.sealed, True
        lines = self.block("    ")
        self.sealed = before
        return lines

    def write_match(self):
        x, y = self.name("x"), self.name("y")
        patterns = [f"(0, {x})", f"({x}, {y}) if {x} > {y}", f"[{x}, *{y}]", f"(1 | 2 as {x}, _)"]
        lines = [f"match ({self.value()}, {self.any([self.value(), self.step()])}):"]
        if self.chance() < 0.25:
            patterns = [f"Box(v={x})", f"{{'k': {x}, **{y}}}", f"[{x}, *_]"]
            lines = [f"match {self.any(['box', 'm', 'acc'])}:"]
        self.random.shuffle(patterns)
        for pattern in patterns[: self.any([1, 2, 3])]:
            lines += [f"    case {pattern}:", *self.block("        ")]
        if self.chance() < 0.6:
            lines += ["    case _:", *self.block("        ")]
        return lines


# -- loading programs ----------------------------------------------------------------------------

MODULE = "equivalence_program"
_VOCABULARY = {
    "Box": Box,
    "Count": Count,
    "Good": Good,
    "add_one": add_one,
    "agen": agen,
    "bad": bad,
    "gather": asyncio.gather,
    "gen": gen,
    "keep": keep,
    "log": world.log,
    "nullcontext": contextlib.nullcontext,
    "suppress": contextlib.suppress,
}
_PLAIN = {
    False: {"st": same, "bm": boom, "tl": deed},
    True: {"st": asame, "bm": aboom, "tl": adeed},
}


def _undecorated(function=None, **options):
    return function if function is not None else _undecorated


def _steps(functions):
    tool = stepwise.tool(side_effect=True, in_doubt="retry", name="tl")
    return {
        name: tool(function) if name == "tl" else stepwise.step(name=name)(function)
        for name, function in functions.items()
    }


_DECORATED = {is_async: _steps(functions) for is_async, functions in _PLAIN.items()}


@dataclass(frozen=True)
class Program:
    """A program, as plain functions and as workflows."""

    name: str
    source: str
    is_async: bool
    plain: dict
    durable: dict

    def arguments(self, namespace):
        """What it is called with: new objects at each call."""
        agent = namespace.get("Agent")
        given = [] if agent is None else [agent()]
        return [*given, 2, [1], {"k": 1}, Box()]

    def call(self, namespace, store=None):
        """Execute it: what came of it, and the caller's objects afterwards."""
        arguments = self.arguments(namespace)
        agent = namespace.get("Agent")
        function = namespace["prog"] if agent is None else agent.prog
        if store is not None:
            function = function.options(store=store)
        if agent is not None:
            function = function.__get__(arguments[0], agent)
        try:
            value = function(*(arguments if agent is None else arguments[1:]))
            outcome = "returned", repr(asyncio.run(value) if self.is_async else value)
        except EXPECTED as error:
            outcome = "raised", repr(error), _variables(error.__traceback__)
        return outcome, portrait(arguments)


def _variables(trace):
    """The program's variables when it was left by an exception."""
    found = {}
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "prog":
            found = trace.tb_frame.f_locals
        trace = trace.tb_next
    return portrait({name: value for name, value in found.items() if name[0] != "@"})


def load(name, source, *, is_async=False):
    """Make a program of a source text."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, filename, "exec")
    plain = {**_VOCABULARY, **_PLAIN[is_async], "workflow": _undecorated, "__name__": MODULE}
    exec(code, plain)
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    durable = vars(module)
    durable.update(_VOCABULARY, **_DECORATED[is_async], workflow=stepwise.workflow)
    exec(code, durable)
    return Program(name, source, is_async, plain, durable)


def write(seed):
    """The program of a seed: one that does something, and not too much."""
    for attempt in itertools.count():
        writer = Writer(f"{seed}.{attempt}")
        source = writer.program()
        program = load(f"program {seed}", source, is_async=writer.is_async)
        world.begin()
        try:
            program.call(program.plain)
        except (Runaway, NameError):  # of an unbound local variable, too
            continue
        if 1 <= len(world.effects) <= EFFECTS:
            return program
    raise AssertionError


# -- executing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """What is seen of an execution."""

    outcome: tuple
    given: list
    effects: list
    trace: list

    def compare(self, other, what):
        """Raise if the other execution is not the same."""
        for name in ("outcome", "effects", "trace", "given"):
            one, two = getattr(self, name), getattr(other, name)
            if name == "effects":  # a failure that was not handled yet is tried again
                one, two = _without_failures(one), _without_failures(two)
            if one != two:
                raise Differs(f"{what}: {name}\n  expected {one}\n  got      {two}")


@dataclass(frozen=True)
class Moment:
    """What a killed process leaves behind, and what it had done by then."""

    runs: dict
    effects: list
    marks: dict

    def rest(self, trace):
        """What of a trace has to come after it."""
        return [entry for n, entry in enumerate(trace) if n >= self.marks.get(entry[0], 0)]


class RecordingStore(MemoryStore):
    """A store that keeps what a killed process would leave, after each of its writes."""

    def __init__(self, runs=None):
        super().__init__("equivalence")
        self._runs = _copied(runs or {})
        self.moments = []

    def write(self, run_id, epoch, batch):
        super().write(run_id, epoch, batch)
        if not world.crashed:
            world.note(run_id, batch)
            self.moments.append(Moment(_copied(self._runs), [*world.effects], {**world.marks}))

    def copied(self):
        return _copied(self._runs)


def _copied(runs):
    return {
        run_id: _Run(dict(run.records), dict(run.objects), run.head, run.epoch)
        for run_id, run in runs.items()
    }


def _restart():
    """As if this process had just begun."""
    vars(_process.memory).update(vars(_process.Memory()))


def execute(program, store, crash_at=None):
    """Run a program as a workflow, in a process that has just begun."""
    _restart()
    world.begin(crash_at)
    try:
        outcome, given = program.call(program.durable, store)
    except (Crash, Runaway):
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        raise Differs(f"it raised\n{text}") from error
    return Observed(outcome, given, world.effects, world.trace)


def execute_plainly(program):
    """Run a program as the plain functions that it consists of."""
    world.begin()
    outcome, given = program.call(program.plain)
    return Observed(outcome, given, world.effects, world.trace)


# -- crashing ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was tested."""

    programs: int = 0
    crashes: int = 0
    positions: Counter = field(default_factory=Counter)

    def add(self, other):
        self.programs += other.programs
        self.crashes += other.crashes
        self.positions += other.positions


def check(program, sample=None, seed=0):
    """Crash a program everywhere, or at about ``sample`` moments.

    Raises:
        Differs: a recovery is not what it should be.
    """
    choose = random.Random(f"crashes of {seed}")
    tally = Tally(1)
    try:
        plain, whole, moments = _undisturbed(program)
        tally.positions += _positions(program, moments[-1])
        for moment in _some(moments, sample, choose):
            again = _recover(program, plain, whole, moment, f"killed {_when(moment)}")
            tally.crashes += 1
            for second in _some(again, 1 if sample else 3, choose):
                rest = replace(whole, trace=moment.rest(whole.trace))
                what = f"killed {_when(moment)}, and again {_when(second)}"
                joined = replace(second, effects=moment.effects + second.effects)
                _recover(program, plain, rest, joined, what)
                tally.crashes += 1
        for number in _some(range(1, len(whole.effects) + 1), sample and sample // 2, choose):
            _interrupt(program, plain, whole, number)
            tally.crashes += 1
    except Differs as error:
        raise Differs(f"{program.name}, {error}\n\n{program.source}") from None
    return tally


def _some(items, count, choose):
    items = list(items)
    return items if not count or len(items) <= count else choose.sample(items, count)


def _undisturbed(program):
    plain = execute_plainly(program)
    store = RecordingStore()
    whole = _ended(program, store, "undisturbed")
    untagged = replace(whole, trace=[("", text) for _, text in whole.trace])
    plain.compare(untagged, "undisturbed, in a run")
    return plain, whole, _crashes(whole, store)


def _ended(program, store, what, crash_at=None):
    try:
        return execute(program, store, crash_at)
    except Runaway:
        raise Differs(f"{what}: it does not end\n  {world.effects}\n  {world.trace}") from None
    except Differs as error:
        raise Differs(f"{what}: {error}") from None


def _when(moment):
    checkpoints = sum(map(len, _checkpoints(moment)))
    return f"after {len(moment.effects)} effects, with {checkpoints} checkpoints"


def _checkpoints(moment):
    return [
        [name for name in run.objects if name.startswith("checkpoint/")]
        for run in moment.runs.values()
    ]


def _recover(program, plain, whole, moment, what):
    """Go on where a killed process stopped; the moments of this recovery."""
    store = RecordingStore(moment.runs)
    got = _ended(program, store, what)
    main = next(iter(moment.runs.values()))
    if main.head is not None and main.head.finished:
        replace(plain, effects=[], trace=[]).compare(got, f"{what}: a completed run")
        return []
    expected = replace(whole, trace=moment.rest(whole.trace))
    expected.compare(replace(got, effects=moment.effects + got.effects), what)
    return _crashes(got, store)


def _crashes(observed, store):
    """The moments at which a process may have been killed; not after a run has ended as failed."""
    return store.moments[:-1] if observed.outcome[0] == "raised" else store.moments


def _interrupt(program, plain, whole, number):
    """Crash in a step by an exception, and go on; what failed by then may be tried again."""
    what = f"interrupted in effect {number}"
    store = RecordingStore()
    try:
        _ended(program, store, what, number)
        raise Differs(f"{what}: it was not")
    except Crash:
        moment = Moment(store.copied(), world.effects, world.marks)
    got = _ended(program, RecordingStore(moment.runs), what)
    expected = replace(whole, trace=moment.rest(whole.trace))
    expected.compare(replace(got, effects=moment.effects + got.effects), what)


def _without_failures(effects):
    return [each for each in effects if "boom" not in each]


def _positions(program, moment):
    """In which kinds of statements there were checkpoints."""
    found = Counter()
    for names in _checkpoints(moment):
        found["checkpoints"] += len(names)
    return found


# -- forking -------------------------------------------------------------------------------------


class _ForkStore(DiskStore):
    def write(self, run_id, epoch, batch):
        super().write(run_id, epoch, batch)
        world.note(run_id, batch)


def _in_child(program, folder, crash_at):
    """Execute a program in a forked process: what came of it, and what it had done."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)

        def report(observed=None):
            seen = (observed, world.effects, world.trace, world.marks)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(seen, pipe)
            os._exit(0)

        try:
            world.begin(crash_at, crash=report)
            outcome, given = program.call(program.durable, _ForkStore(folder))
            report(Observed(outcome, given, world.effects, world.trace))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    if not data:
        raise Differs(f"the forked process failed (crash in effect {crash_at})")
    return pickle.loads(data)


def check_forked(program, seed=0):
    """Crash a program with ``os._exit`` in a step, twice, on a store on disk.

    Raises:
        Differs: a recovery is not what it should be.
    """
    try:
        _, whole, _ = _undisturbed(program)
        first = random.Random(f"forks of {seed}").randint(1, len(whole.effects))
        with tempfile.TemporaryDirectory() as folder:
            effects, expected = [], whole.trace
            for number, crash_at in enumerate((first, 1 + first % 2, None), 1):
                what = f"process {number}, forked, to end in effect {crash_at}"
                observed, done, trace, marks = _in_child(program, folder, crash_at)
                effects += done
                if trace != expected[: len(trace)]:
                    raise Differs(f"{what}: trace\n  expected {expected}\n  got      {trace}")
                if observed is not None:
                    break
                expected = [e for n, e in enumerate(expected) if n >= marks.get(e[0], 0)]
            whole = replace(whole, trace=expected)
            whole.compare(replace(observed, effects=effects), what)
    except Differs as error:
        raise Differs(f"{program.name}, {error}\n\n{program.source}") from None
    return Tally(1, number)


# -- the command line ----------------------------------------------------------------------------


def check_seeds(seeds, *, sample=None, forked=False):
    """Check the programs of some seeds."""
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stepwise.StepwiseWarning)
        for seed in seeds:
            program = write(seed)
            try:
                tally.add(check_forked(program, seed) if forked else check(program, sample, seed))
            except Differs as error:
                raise Differs(f"seed {seed}: {error}") from None
    return tally


def main():
    parser = argparse.ArgumentParser(description="Check random programs.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--sample", type=int, help="crashes of each kind; all by default")
    parser.add_argument("--forked", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    os.environ["STEPWISE_QUIET"] = "1"
    os.environ.setdefault("STEPWISE_HOME", tempfile.mkdtemp())
    last = options.first + 1 if options.last is None else options.last
    began, tally, bad = time.process_time(), Tally(), 0
    for seed in range(options.first, last):
        if options.show:
            print(write(seed).source)
        try:
            tally.add(check_seeds([seed], sample=options.sample, forked=options.forked))
        except Differs as error:
            bad += 1
            print(error, "\n", "-" * 100, flush=True)
    seconds = time.process_time() - began
    print(f"{tally.programs} programs, {tally.crashes} crashes, {bad} bad, {seconds:.1f} s of CPU")
    return bool(bad)


if __name__ == "__main__":
    sys.modules["equivalence"] = sys.modules["__main__"]
    sys.exit(main())
