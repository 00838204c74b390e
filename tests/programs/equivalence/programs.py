"""A source text as a program that can be called, plainly and as a workflow."""

from __future__ import annotations

import asyncio
import itertools
import linecache
import sys
import types
import warnings
from dataclasses import dataclass

import stepwise
from equivalence.world import MODULE, PLAIN, VOCABULARY, Box, Runaway, portrait, world
from equivalence.writer import Writer
from stepwise._execution.process_memory import known_steps

EFFECTS = 14  # of one program, at most
EXPECTED = (ValueError, ArithmeticError, LookupError, RuntimeError)
"""What programs raise on purpose."""
if sys.version_info >= (3, 11):
    EXPECTED += (ExceptionGroup,)  # noqa: F821


def _undecorated(function=None, **options):
    return function if function is not None else _undecorated


def _steps(functions):
    def tool(name):
        return stepwise.tool(side_effect=True, in_doubt="retry", name=name)

    return {
        name: (tool(name) if name[0] == "t" else stepwise.step(name=name))(function)
        for name, function in functions.items()
    }


_DECORATED = {is_async: _steps(functions) for is_async, functions in PLAIN.items()}


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
        namespace["TOTAL"] = 0  # as the import of the module gives it
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
    plain = {**VOCABULARY, **PLAIN[is_async], "workflow": _undecorated}
    durable = {**VOCABULARY, **_DECORATED[is_async], "workflow": stepwise.workflow}
    return Program(name, source, is_async, *load_into(name, source, plain, durable))


def load_into(name, source, plain, durable):
    """Execute a source text with two vocabularies; the second one's module is the program's."""
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, filename, "exec")
    plain = {**plain, "__name__": MODULE}
    exec(code, plain)
    for known in [each for each in known_steps if each[0] == MODULE]:
        known_steps.discard(known)  # of another program, or before a rename
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    vars(module).update(durable)
    exec(code, vars(module))
    return plain, vars(module)


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
