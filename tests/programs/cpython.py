"""Rewrites every function of some modules of the standard library, then runs CPython's tests of it.

``python cpython.py MODE TESTS MODULE...``, with the modes

``original``  nothing is rewritten
``plain``     functions run without a frame, as they do outside a run
``run``       each call has a frame that is asked to save at every point
``broken``    as ``run``, and each function with two statements in a row lost one: must fail

Prints what happened as one line of JSON.  Generators are left alone.
"""

import functools
import importlib
import importlib.machinery
import io
import json
import sys
import types
import unittest
import warnings
from collections import Counter

from stepwise._rewrite.build import UnsupportedError, build
from stepwise._rewrite.frame import Frame
from stepwise._rewrite.source import capture
from stepwise._rewrite.transform import FRAME, _Rewriter

mode, tests, *wanted = sys.argv[1:]
rewritten, made, classes, refused = set(), set(), set(), Counter()
calls = {"entered": 0, "saved": 0}  # no Counter: it may be what is tested


class Saving(Frame):
    """A frame that wants a checkpoint at each point, of all local variables."""

    def __init__(self):
        super().__init__()
        self.due = True
        calls["entered"] += 1

    def save(self, number, values):
        calls["saved"] += 1
        assert FRAME in values
        values.clear()  # before Python 3.13 they are the frame's, and would outlive a ``del``


def no_frame():
    """What a rewritten function finds outside a run."""
    calls["entered"] += 1


@functools.cache
def changed(function):
    """A function rewritten, if it can be; the same for its other names, in other modules too."""
    if function in made:
        return function
    try:
        enter = no_frame if mode == "plain" else Saving
        result = build(function, capture(function), enter).function
    except UnsupportedError as error:
        refused[str(error).partition(" (")[0]] += 1
        return function
    rewritten.add((function.__module__, function.__qualname__))
    made.add(result)
    return result


def changed_value(value):
    """What to put in the place of a function, method or property; a class is changed in place."""
    if isinstance(value, types.FunctionType) and value.__module__ in wanted:
        return changed(value)
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(changed_value(value.__func__))
    if type(value) is property:
        parts = [changed_value(each) for each in (value.fget, value.fset, value.fdel)]
        return property(*parts, doc=value.__doc__)
    if isinstance(value, functools.cached_property):
        value.func = changed_value(value.func)
    if isinstance(value, type) and value.__module__ in wanted and value not in classes:
        classes.add(value)
        change(value)
    return value


def change(space):
    """Rewrite what a module or class holds."""
    new = {key: changed_value(value) for key, value in list(vars(space).items())}
    for key, value in new.items():
        if value is not vars(space)[key]:
            setattr(space, key, value)


def exec_module(loader, module, original=importlib.machinery.SourceFileLoader.exec_module):
    """Also for modules that the tests import afresh, to test them without their C part."""
    original(loader, module)
    if module.__name__ in wanted:
        change(module)


def drop_a_statement(self, stmts, path, around, original=_Rewriter.group):
    """The deliberate mistake."""
    return original(self, stmts[1:] if len(stmts) > 1 else stmts, path, around)


def main():
    if mode == "broken":
        _Rewriter.group = drop_a_statement
    if mode != "original":
        loaded = [sys.modules[name] for name in wanted if name in sys.modules]
        importlib.machinery.SourceFileLoader.exec_module = exec_module
        for module in loaded:
            change(module)
        for name in wanted:
            importlib.import_module(name)
    said = io.StringIO()
    sys.argv[1:] = []
    with warnings.catch_warnings():
        suite = unittest.defaultTestLoader.loadTestsFromName(tests)
        result = unittest.TextTestRunner(said, verbosity=0, buffer=True).run(suite)
    bad = [*result.failures, *result.errors]
    answer = {
        "rewritten": len(rewritten),
        "refused": refused,
        **calls,
        "tests": result.testsRun - len(result.skipped),
        "bad": sorted({test.id() for test, _ in bad}),
        "text": said.getvalue()[-6000:] if mode != "broken" else "",
    }
    print(json.dumps(answer), file=sys.__stdout__)


if __name__ == "__main__":
    main()
