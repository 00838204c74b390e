"""A rewritten function goes on right from each of its resume points, and repeats nothing."""

import copy
import sys
import threading
import types

import pytest
from constructs import (
    CASES,
    Boom,
    branches,
    define_module,
    done,
    effect,
    fail,
    for_loops,
    handlers,
    observe,
    statements,
    without_calls,
)

import stepwise
from stepwise._rewrite import Frame, build, capture, pending


@pytest.fixture
def define(tmp_path):
    """Define functions by the text of a module."""
    return lambda source: define_module(tmp_path / f"m{len(list(tmp_path.iterdir()))}.py", source)


# -- a runner --------------------------------------------------------------------------------------


class Runner(Frame):
    """Saves at every point, and resumes: what the library does, without anything that lasts."""

    def __init__(self, rewritten, saved=None):
        super().__init__()
        self.points, self.due, self.saves = rewritten.points, True, []
        if saved is not None:
            self.target, self.values = saved[0], copy.deepcopy(saved[1])

    def begin(self, captured=None):
        cells = {}
        if captured is not None:
            cells = dict(zip(captured.__code__.co_freevars, captured.__closure__, strict=True))
        self.values = {name: bound_to(value, cells) for name, value in self.values.items()}
        return super().begin(captured)

    def save(self, number, values):
        kept = {
            name: value
            for name, value in values.items()
            if name[0] != "@" or name in self.points[number].loops
        }
        self.saves.append((number, copy.deepcopy(kept), len(done)))


def bound_to(value, cells):
    """A nested function of the frame that is resumed, where it was one of the frame that died."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return value
    closure = tuple(
        cells.get(name, cell)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True)
    )
    return types.FunctionType(value.__code__, value.__globals__, closure=closure)


def check_resumes(function, argument):
    """Resume a function from each of its points; the points at which it was."""
    rewritten = build(function, capture(function))
    outcome, trace = observe(function, argument)
    whole = Runner(rewritten)
    assert observe(rewritten.function, argument, whole) == (outcome, trace)
    numbers = [number for number, _, _ in whole.saves]
    for index, saved in enumerate(whole.saves):
        runner = Runner(rewritten, saved)
        at = rewritten.points[saved[0]]
        assert observe(rewritten.function, argument, runner) == (outcome, trace[saved[2] :]), at
        assert [number for number, _, _ in runner.saves] == numbers[index + 1 :], at
    return [rewritten.points[number].position for number in numbers]


@pytest.mark.parametrize(("function", "argument"), CASES)
def test_resumes(function, argument):
    """From each of its points a function goes on as if it had not stopped; nothing is repeated."""
    positions = check_resumes(function, argument)
    assert bool(positions) == (function is not without_calls)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no exception groups in 3.10")
def test_resumes_in_groups(define):
    """``try`` with ``except*`` can be entered like any other."""
    module = define(
        """
        def f(n):
            for i in range(2):
                try:
                    effect(("body", i))
                    if n:
                        raise ExceptionGroup("two", [ValueError(1), KeyError(2)])
                    effect(("not raised", i))
                except* ValueError as group:
                    effect(("value", len(group.exceptions)))
                except* KeyError:
                    effect("key")
                else:
                    effect("else")
                effect("after")
            return effect("end")
        """
    )
    body, ends = "body[0].body[0].body", ["after body[0].body[0]", "after body[0].body[1]"]
    first = ["enter body[0].body", f"after {body}[0]"]  # the point before ``try``
    assert check_resumes(module.f, 1)[:5] == [*first, f"enter {body}[1].body", *ends]
    assert check_resumes(module.f, 0)[:5] == [
        *(*first, f"after {body}[1]", "enter body[0].body[0].orelse", ends[0])
    ]


def test_points_of_each_kind():
    """The points of a function are where the design says: none in handlers and ``finally``."""
    assert check_resumes(handlers, 1) == [
        "after body[0]",
        "after body[1].body[0]",
        "enter body[1].body[1].body",
        "after body[1]",
        "after body[2]",
        "after body[3]",  # ``return``
    ]
    branch = "body[0].orelse[0].orelse[0].orelse"
    assert check_resumes(branches, 3) == [
        "enter body[0].orelse",
        "enter body[0].orelse[0].orelse",
        f"enter {branch}",
        f"after {branch}[0]",
        "after body[0]",
        "enter body[1].body",
        "after body[1]",
    ]


def test_each_effect_has_a_point():
    """Before each call there is a point, behind the statements between it and the last one."""
    rewritten = build(statements, capture(statements))
    runner = Runner(rewritten)
    _, trace = observe(rewritten.function, 1, runner)
    assert [seen for _, _, seen in runner.saves] == list(range(len(trace)))
    positions = [rewritten.points[number].position for number, _, _ in runner.saves]
    assert "after body[7]" in positions  # ``del a``, which calls nothing


def test_killed_again_and_again():
    """What was resumed can be resumed again, from what it saved since; each time one effect on."""
    rewritten = build(for_loops, capture(for_loops))
    outcome, trace = observe(for_loops, 3)
    saved, seen = None, 0
    while seen < len(trace) - 1:
        runner = Runner(rewritten, saved)
        assert observe(rewritten.function, 3, runner) == (outcome, trace[seen:])
        saved = next(save for save in runner.saves if save[2])
        seen += saved[2]
        assert saved[2] == 1


def test_a_frame_is_taken_once():
    """A frame is for one call: what the function calls, itself even, runs plainly."""
    calls = []

    def recursive(n):
        calls.append(n)
        return recursive_again(n - 1) if n else "end"

    rewritten = build(recursive, capture(recursive))
    recursive_again = rewritten.function
    runner = Runner(rewritten)
    pending.set(runner)
    assert rewritten.function(3) == "end"
    assert (calls, pending.get(), len(runner.saves)) == ([3, 2, 1, 0], None, 1)


def test_odd_iterators():
    """A loop needs no more than ``__next__``; what is not iterable is refused as ever."""

    class Bare:
        count = 3

        def __next__(self):
            self.count -= 1
            if not self.count:
                raise StopIteration
            return self.count

    class Odd:
        def __iter__(self):
            return Bare()

    def loop(items):
        found = []
        for item in items:
            found.append(effect(item))
        return found

    for items in (Odd(), [1, 2], 5, None):
        rewritten = build(loop, capture(loop))
        assert observe(loop, items) == observe(rewritten.function, items, Runner(rewritten))


def test_loops_let_go_of_their_iterators():
    """A generator that a loop left is closed when it would have been: not at the function's end."""
    closed = []

    def numbers():
        try:
            yield from range(5)
        finally:
            closed.append(len(done))

    def loop(_):
        for n in numbers():
            effect(n)
            if n == 1:
                break
        effect("after break")
        try:
            for n in numbers():
                fail(n)
        except Boom:
            pass
        effect("after exception")

    rewritten = build(loop, capture(loop))
    frame = Frame()
    observe(loop, 0)
    observe(rewritten.function, 0, frame)
    assert closed == [2, 4, 2, 4]


def test_variables_of_enclosing_functions():
    """A variable of an enclosing function that cannot be recorded does not prevent resuming."""
    guard, seen = threading.Lock(), []

    @stepwise.workflow
    def guarded():
        with stepwise.reenterable(guard):
            seen.append("begun")
        stepwise.step(effect)("first")
        seen.append("middle")
        fail("once") if failing.pop() else None
        return seen

    failing = [False, True]
    with pytest.raises(Boom):
        guarded()
    assert guarded() == ["begun", "middle"]
