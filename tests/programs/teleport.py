"""Moves calls of other people's functions to a new interpreter, at each of their statements.

``python teleport.py MODE FOLDER TESTS MODULE...``, three processes one after the other:

``record``  CPython's own tests of the modules run; the arguments of some calls of each function are
            kept, as they were at the call
``save``    each call is made as a workflow that takes a checkpoint at every statement where one can
            be taken, once for each of them: there the process ends, without a word
``load``    a new interpreter makes the same call, which has to go on inside the function, and to
            end as an undisturbed call of the plain function does

A call that the plain function ends otherwise in both interpreters (it draws, or reads a clock) is
left out.  Prints what happened as one line of JSON.
"""

import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import pathlib
import pickle
import random
import sys
import types
import unittest
import warnings
from collections import Counter

import stepwise
from stepwise._checkpoints.variables import _is_mutable as is_mutable
from stepwise._rewrite.build import UnsupportedError, build
from stepwise._rewrite.source import capture
from stepwise._values import digest
from stepwise._workflows import frame as _frames

CALLS, POINTS = 3, 8  # of each function; of each call
SAVED, NOT_HERE = 9, 7


def found(module, qualname):
    """A function by its name, and what to put another one in its place with."""
    owner = importlib.import_module(module)
    *path, name = qualname.split(".")
    for each in path:
        owner = inspect.getattr_static(owner, each)
    value = inspect.getattr_static(owner, name)
    kind = type(value) if isinstance(value, (staticmethod, classmethod)) else lambda each: each
    function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    if not isinstance(function, types.FunctionType) or function.__qualname__ != qualname:
        raise AttributeError(qualname)
    return function, lambda other: setattr(owner, name, kind(other))


def names(space, module, path=""):
    """The functions that a module or class defines, by qualified name."""
    for name, value in vars(space).items():
        inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if getattr(inner, "__module__", None) != module:
            continue
        if isinstance(inner, types.FunctionType) and inner.__qualname__ == path + name:
            yield path + name
        elif isinstance(inner, type) and inner.__qualname__ == path + name:
            yield from names(inner, module, f"{path}{name}.")


# -- recording -----------------------------------------------------------------------------------


def record(folder, tests, modules):
    """Run the tests, and keep what functions are called with."""
    kept, busy = {}, []

    def recording(function, key):
        @functools.wraps(function)
        def call(*args, **kwargs):
            if len(kept[key]) < CALLS and not busy:
                busy.append(key)  # what pickling calls is nobody's call
                with contextlib.suppress(Exception, RecursionError):
                    data = pickle.dumps((args, kwargs))
                    pickle.loads(data)
                    kept[key].setdefault(data)
                busy.clear()
            return function(*args, **kwargs)

        return call

    for module in modules:
        for qualname in list(names(importlib.import_module(module), module)):
            with contextlib.suppress(AttributeError, UnsupportedError):
                function, put = found(module, qualname)
                if build(function, capture(function)).ahead:
                    kept[module, qualname] = {}
                    put(recording(function, (module, qualname)))
    suite = unittest.defaultTestLoader.loadTestsFromName(tests)
    unittest.TextTestRunner(io.StringIO(), verbosity=0, buffer=True).run(suite)
    with open(folder / "calls", "wb") as file:
        pickle.dump([(*key, data) for key, calls in kept.items() for data in calls], file)
    return {"functions": sum(bool(each) for each in kept.values())}


# -- calling -------------------------------------------------------------------------------------


def told(value):
    """What can be compared in another process."""
    try:
        return digest.digest(value)
    except (stepwise.DigestError, RecursionError):
        return f"a {type(value).__qualname__}"


def outcome(function, data):
    """How a call ends, and what became of its arguments."""
    args, kwargs = pickle.loads(data)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ended = "returned", told(function(*args, **kwargs))
    except Exception as error:
        ended = "raised", type(error).__qualname__, str(error)
    # Those that keep their identity; one by one, since what they share inside a tuple does not.
    after = (*args, *(kwargs[name] for name in sorted(kwargs)))
    return [*ended, *(told(each) for each in after if is_mutable(each))]


def workflow_of(function, name):
    """It as a workflow, of a run of that name."""
    made = stepwise.workflow(name="foreign", key=lambda *_, **__: 0, durability="os")(function)
    return made.options(run_id=name)


class Stopping:
    """Takes a checkpoint wherever one can be taken; at the one of that number the process ends."""

    def __init__(self, number):
        self.number = number
        self.seen = 0
        save = _frames.WorkflowFrame.save

        def saving(frame, point, values):
            frame.due = frame.wanted = True
            before = frame.taken
            save(frame, point, values)
            frame.due = True
            self.seen += 1
            if self.seen == self.number:
                os._exit(SAVED if frame.taken > before else NOT_HERE)

        begin = _frames.WorkflowFrame.begin

        def beginning(frame, points, captured=None):
            target = begin(frame, points, captured)
            frame.due = frame.wanted = True
            return target

        _frames.WorkflowFrame._wants = lambda *_: True
        _frames.WorkflowFrame.save = saving
        _frames.WorkflowFrame.begin = beginning


def in_child(work):
    """The exit code of a forked process that does it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save(folder, limit):
    """Make the calls, and end at their points."""
    calls = pickle.loads((folder / "calls").read_bytes())
    random.Random(int(os.environ["STEPWISE_SEED"])).shuffle(calls)
    ended = Counter()
    saved, plain = [], {}
    for number, (module, qualname, data) in enumerate(calls):
        if len(saved) >= limit:
            break
        function, _ = found(module, qualname)
        plain[number] = outcome(function, data)
        for point in range(1, POINTS + 1):
            name = f"{number}-{point}"

            def work(function=function, name=name, data=data, point=point):
                Stopping(point)
                outcome(workflow_of(function, name), data)
                return 0

            code = in_child(work)
            if code == 0:  # it has no such point
                break
            ended[{SAVED: "saved", NOT_HERE: "not_recordable"}.get(code, "broke")] += 1
            if code == SAVED:
                saved.append((module, qualname, data, name, plain[number]))
    with open(folder / "saved", "wb") as file:
        pickle.dump(saved, file)
    return ended


def load(folder):
    """Go on with the calls."""
    going_on, resumed, wrong = [], Counter(), []
    stepwise.on_event(
        lambda event: going_on.append(event.detail) if event.kind == "run_resumed" else None
    )
    for module, qualname, data, name, before in pickle.loads((folder / "saved").read_bytes()):
        function, _ = found(module, qualname)
        if outcome(function, data) != before:
            resumed["another outcome each time"] += 1
            continue
        going_on.clear()
        after = outcome(workflow_of(function, name), data)
        inside = [each for each in going_on if each.startswith("resumes")]
        resumed["resumed"] += bool(inside)
        if after != before or not inside:
            wrong.append([module, qualname, name, going_on[:], before, after])
    return {**resumed, "wrong": wrong}


def main():
    mode, folder, limit, tests, *modules = sys.argv[1:]
    sys.argv[1:] = []
    folder = pathlib.Path(folder)
    if os.environ.get("FORGETFUL"):  # the negative control
        keep = _frames.WorkflowFrame._state_of

        def forgetting(frame, values, names):
            kept = keep(frame, values, names)
            plain = [name for name in kept if name[0] != "@" and name not in frame.around.arguments]
            return {name: kept[name] for name in kept if name not in plain[-1:]}

        _frames.WorkflowFrame._state_of = forgetting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in modules:
            importlib.import_module(each)
        said = {
            "record": lambda: record(folder, tests, modules),
            "save": lambda: save(folder, int(limit)),
            "load": lambda: load(folder),
        }[mode]()
    print(json.dumps(said), file=sys.__stdout__)


if __name__ == "__main__":
    main()
