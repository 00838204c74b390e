"""A rewritten function runs as the original, and goes on right from each of its resume points."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import importlib.util
import inspect
import io
import pdb  # noqa: T100
import sys
import textwrap
import traceback
import types
import warnings

import pytest

from stepwise.rewrite import Frame, UnsupportedError, build, capture, pending, rewrite

HERE = __file__


@pytest.fixture
def define(tmp_path):
    """Define functions by the text of a module, which may be of a newer Python than the oldest."""

    def define_module(source):
        path = tmp_path / f"module{len(list(tmp_path.iterdir()))}.py"
        path.write_text(textwrap.dedent(source), "utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        module.effect, module.fail = effect, fail
        spec.loader.exec_module(module)
        return module

    return define_module


def call(function, *arguments):
    """Call a function, and wait for it if it is one to wait for."""
    result = function(*arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


# -- what the programs do --------------------------------------------------------------------------

done: list = []  # what cannot be undone


class Boom(Exception):
    pass


def effect(value):
    done.append(value)
    return value


def fail(value):
    done.append(value)
    raise Boom(value)


async def later(value):
    await asyncio.sleep(0)
    return effect(value)


class Manager:
    """A context manager for both kinds of ``with``, which may swallow a ``Boom``."""

    def __init__(self, name="m", *, swallows=False):
        self.name, self.swallows = name, swallows

    def __enter__(self):
        return self.name

    def __exit__(self, kind, error, trace):
        return self.swallows and kind is Boom

    async def __aenter__(self):
        await asyncio.sleep(0)
        return self.name

    async def __aexit__(self, kind, error, trace):
        return self.__exit__(kind, error, trace)


class Countdown:
    """An asynchronous iterator that can be copied."""

    def __init__(self, count):
        self.count = count

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.count:
            raise StopAsyncIteration
        self.count -= 1
        return self.count


# -- programs --------------------------------------------------------------------------------------
# What is done and returned tells whether they went on right: each effect has a value of its own.

CASES = []


def case(*arguments):
    """A function that is tested with these arguments, each a call."""

    def add(function):
        CASES.extend(
            pytest.param(function, argument, id=f"{function.__name__}-{argument!r}")
            for argument in arguments
        )
        return function

    return add


@case(1)
def statements(n):
    """Docstring."""
    a = n
    b = effect("one") + str(a)
    c: str = effect("two")
    c += effect("three")
    d, *e = effect("four"), a, b
    (f := effect("five"))  # noqa: PLW0131
    [x for x in effect("six") if x]
    del a
    g = {k: v + 1 for k, v in [(effect("seven"), 7)]}
    assert effect("eight")
    return b, c, d, e, f, g, effect("nine")


@case(0, 1, 2, 3)
def branches(n):
    """Docstring."""
    if effect(n) == 0:
        effect("zero")
        effect("zero again")
    elif effect(n + 10) == 11:
        if n:
            effect("one")
        effect("one again")
    elif n == 2:
        x = "no call here"
    else:
        x = effect("else")
        effect(x + "!")
    if n:
        effect("some")
    return effect("end"), sorted(locals())


@case(0, 3)
def for_loops(n):
    found = []
    for i in range(n):
        effect(("outer", i))
        for j, k in enumerate("ab"):
            if (i, j) == (1, 0):
                effect("continue")
                continue
            if (i, j) == (2, 1):
                effect("break")
                break
            found.append(effect((i, j, k)))
        else:
            effect(("inner ended", i))
    effect("outer ended")
    for x in effect([4, 5]):
        found.append(x)
        effect(x)
    return effect(found), i if n else None


@case(0, 3)
def while_loops(n):
    i = 0
    while i < n:
        effect(i)
        i += 1
        if i == 1:
            continue
        effect(("not one", i))
    effect("ended")
    while effect(i) > 0:
        i -= 1
        if effect(("at", i)) == ("at", 1):
            break
        while True:
            effect(("for ever", i))
            break
    else:
        effect("ended again")
    while effect(("test only", i)) == ("test only", 5):
        pass
    return effect(i)


@case(0, 1, 2, 3)
def handlers(n):
    log = []
    try:
        effect("body")
        if n == 1:
            fail("one")
        if n == 2:
            raise KeyError(effect("two"))
        effect("body ended")
    except Boom as error:
        log.append(effect(f"caught {error}"))
        effect("in the handler")
    except (KeyError, ValueError):
        effect("another handler")
    else:
        effect("else")
        if n == 3:
            effect("else again")
    finally:
        log.append(effect("finally"))
        effect("finally again")
    try:
        effect("second")
    finally:
        effect("second finally")
    effect("end")
    return log


@case(0, 1)
def uncaught(n):
    try:
        for i in range(2):
            effect(i)
        [fail, effect][n]("last")
    finally:
        effect("cleanup")
    return effect("not reached by 0")


@case(3)
def failing_cleanup(n):
    """What fails after the target was skipped must not leave the loop in resuming mode."""
    while effect(n):
        n -= 1
        try:
            try:
                effect(("inner", n))
            finally:
                fail(("finally", n))
        except Boom:
            continue
        effect("not reached")
    for i in range(2):
        try:
            effect(("body", i))
        finally:
            continue  # noqa: B012
    return effect("end")


@case(2)
def loops_left_by_exceptions(n):
    for i in range(n):
        try:
            for j in range(2):
                effect((i, j))
                if j:
                    fail("inner")
        except Boom:
            effect(("caught", i))
        with Manager(swallows=True):
            for j in range(2):
                effect(("with", i, j))
                fail("swallowed")
        effect(("next", i))
    return effect("end")


@case(0, 1, [2, 3], {"key": 4}, "other", "guarded")
def matching(subject):
    match effect(subject):
        case 0:
            x = effect("zero")
        case 1:
            effect("one")
            effect("one again")
            x = 1
        case [a, *b]:
            x = effect((a, b))
        case {"key": value}:
            match effect(value):
                case 4:
                    x = effect("four")
                case _:
                    x = effect("not four")
            effect("inner ended")
        case str() as s if effect(s) == "guarded":
            x = effect("guard")
        case _:
            x = effect("default")
    match x:
        case 17:
            effect("no")
    return effect(x)


@case(0, 1)
def managers(n):
    with Manager("a") as a, Manager(a + "b") as b:
        effect((a, b))
        with Manager(swallows=True):
            effect("inner")
            if n:
                fail("swallowed")
            effect("not swallowed")
        effect("between")
    with Manager("c"):
        effect("only")
    return effect(a)


@case(2)
def closures(n):
    total = 0

    def add(value):
        nonlocal total
        total += value
        return total

    class Local:
        factor = effect(10)

        def times(self):
            return total * self.factor

    effect(add(n))
    total += 1
    effect(add(n))
    later = lambda: total  # noqa: E731
    total = effect(total + 1)
    return effect(later()), add(0), total


@case((1, 2))
def arguments(pair, /, other=3, *rest, only=4, **more):
    other += 1
    effect(other)
    del pair
    effect("deleted")
    rest = effect((*rest, only))
    more["x"] = effect("more")
    return other, rest, only, more, sorted(locals())


@case(3)
def many_returns(n):
    for i in range(n):
        if effect(i) == 1:
            try:
                with Manager():
                    return effect("in the middle")
            finally:
                effect("finally")
    return effect("never")


@case(0, 2)
def loops_in_branches_in_loops(n):
    i = 0
    while True:
        i += 1
        if effect(i) > n:
            for j in "xy":
                try:
                    match j:
                        case "x":
                            effect(j)
                            continue
                        case "y":
                            effect(j)
                            break
                finally:
                    effect(("finally", j))
            break
        for _ in range(1):
            effect("single")
    return effect(i)


@case(2)
def declared(n):
    global state
    state = n
    effect("set")
    if n:
        global other_state
        other_state = effect("two")
    return state, other_state


@case([0, 1, 2, 3, 4])
def without_calls(numbers):
    total = 0
    for i in numbers:
        total += i
        if total > 3:
            continue
    while total > 5:
        total -= 1
    total = f"{total}" if total else ""
    return total  # noqa: RET504


@case(2)
async def waiting(n):
    a = await later("first")
    for i in range(n):
        await later(i)
        b = [await later((i, x)) for x in range(2)]
        effect(("after", b))
    async for i in Countdown(n):
        await later(("async for", i))
        if i == 0:
            effect("last")
    await later("else")
    async with Manager("x") as x:
        effect(x)
        await later("inside")
    async with Manager(swallows=True), Manager():
        await later("before")
        fail("swallowed")
    c = [i async for i in Countdown(2)]
    while await later(len(c)):
        c.pop()
        async for _ in Countdown(1):
            break
    try:
        await later("try")
    finally:
        await later("finally")
    return a, await later("end")


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


def observe(function, argument, frame=None):
    """What comes of a call, and what it does."""
    done.clear()
    pending.set(frame)
    try:
        outcome = "returned", call(function, copy.deepcopy(argument))
    except Exception as error:
        outcome = "raised", type(error), str(error)
    pending.set(None)
    return outcome, list(done)


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
    body, after = "body[0].body[0].body[0]", ["after body[0].body[0]", "after body[0].body[1]"]
    assert check_resumes(module.f, 1)[1:4] == [f"after {body}", *after]
    assert check_resumes(module.f, 0)[1:3] == [f"after {body}", "after body[0].body[0].body[1]"]


def test_points_of_each_kind():
    """The points of a function are where the design says: none in handlers and ``finally``."""
    assert check_resumes(handlers, 1) == [
        "after body[1].body[0]",
        "after body[1]",
        "after body[2].body[0]",
        "after body[2]",
        "after body[3]",
    ]
    branch = "body[1].orelse[0].orelse[0].orelse"
    assert check_resumes(branches, 3)[:5] == [
        "enter body[1].orelse",
        "enter body[1].orelse[0].orelse",
        f"after {branch}[0]",
        f"after {branch}[1]",
        "after body[1].orelse[0].orelse[0]",
    ]


def test_each_effect_has_a_point():
    """After each call there is a point, so that no two calls are repeated together."""
    rewritten = build(statements, capture(statements))
    runner = Runner(rewritten)
    _, trace = observe(rewritten.function, 1, runner)
    assert [seen for _, _, seen in runner.saves] == list(range(1, len(trace)))


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


# -- like the original -----------------------------------------------------------------------------


def variants(function):
    """The function rewritten: as it is outside a run, and with a frame for every call."""
    return rewrite(function), build(function, capture(function), Frame).function


def lines_of(error):
    """Where in the user's code an error passed: name, line, columns, text."""
    return [
        (each.name, each.lineno, getattr(each, "colno", 0), getattr(each, "end_colno", 0))
        for each in traceback.extract_tb(error.__traceback__)
        if "stepwise" not in each.filename or "test_" in each.filename
    ]


@contextlib.contextmanager
def traced(filename):
    """The events that a trace function sees in a file."""
    events = []

    def trace(frame, event, arg):
        if frame.f_code.co_filename != filename:
            return None
        events.append((frame.f_code.co_name, event, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield events
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(("function", "argument"), CASES)
def test_trace_functions(function, argument):
    """Debuggers and coverage tools see the same events; in a run, the same lines."""
    seen = []
    for each in (function, *variants(function)):
        given = copy.deepcopy(argument)
        with traced(HERE) as events, contextlib.suppress(Boom):
            call(each, given)
        seen.append(events)
    original, plain, in_run = seen
    assert plain == original
    assert {line for _, event, line in in_run} == {line for _, event, line in original}


FAILURES = """
def f(x):
    '''Text.'''
    if x == 1:
        return x.missing
    if x == 2: raise ValueError(
        "two")
    for a, b in [x] if x == 3 else []:
        pass
    while x == 4 and x.missing:
        pass
    with x if x == 5 else open(__file__) as file:
        file.close()
    try:
        if x == 6:
            {}["key"]
        if x == 7:
            raise KeyError(x)
    except KeyError as error:
        if x == 7:
            raise RuntimeError("seven") from error
        raise
    finally:
        if x == 8:
            1 / 0
    match x:
        case 9:
            del y
        case 10 if x.missing:
            pass
    def inner():
        return x.missing
    if x == 11:
        inner()
    [y.missing for y in [x] if x == 12]
    assert (
        x != 13
    ), "text"
    if x == 14:
        (x
         .real
         .missing())
    @(lambda f: f.missing if x == 15 else f)
    def decorated(): pass
    class Local:
        value = x.missing if x == 16 else 1
    for c in (x.missing() if x == 17 else [1]):
        c.missing if x == 18 else int(c)
    async_ = f"{x.missing if x == 19 else x}"
    while len(async_) > 9: pass
    if print: return (  # noqa
        int("x" if x == 20 else "1")
        + len("y"))
    return x
"""


@pytest.mark.parametrize("number", range(1, 22))
def test_tracebacks(number, define):
    """An exception has the lines of the original, to the column."""
    function = define(FAILURES).f
    found = []
    for each in (function, *variants(function)):
        try:
            found.append(("returned", each(number)))
        except Exception as error:
            causes = [error, error.__cause__, error.__context__]
            found.append([(type(e), str(e), lines_of(e)) for e in causes if e is not None])
    original, plain, in_run = found
    assert original[0] == "returned" if number == 21 else original[0] != "returned"
    assert plain == original
    assert in_run == original


def test_asynchronous_tracebacks():
    """The same for coroutine functions."""

    async def failing(n):
        await asyncio.sleep(0)
        async with Manager():
            async for i in Countdown(n):
                await asyncio.sleep(0)
                1 / i
        async for _ in n:
            pass

    for n in (0, 2):
        found = []
        for each in (failing, *variants(failing)):
            with pytest.raises((ZeroDivisionError, TypeError)) as caught:
                call(each, n)
            lines = [line for line in lines_of(caught.value) if line[0] == "failing"]
            found.append((caught.type, lines))
        assert found[0][1]
        assert found == [found[0]] * 3


def test_debugger():
    """A session of ``pdb`` reads the same."""

    def session(function):
        out = io.StringIO()
        commands = io.StringIO("s\n" * 4 + "n\n" * 5 + "p n\nw\nc\n")
        debugger = pdb.Pdb(stdin=commands, stdout=out, nosigint=True, readrc=False)
        debugger.use_rawinput = False
        debugger.runcall(function, 2)
        return [line for line in out.getvalue().splitlines() if "0x" not in line]

    said = session(for_loops)
    assert any("for i in range(n)" in line for line in said)
    assert session(rewrite(for_loops)) == said


# -- what a function is ----------------------------------------------------------------------------


class Base:
    def greet(self):
        return "base"


class Derived(Base):
    __private = "own"

    def greet(self):
        return f"derived of {super().greet()} {effect(self.__private)}"

    def explicit(self):
        __local = 1
        return [__class__, __local, lambda: self.__private][2]() + self.__secret()

    def __secret(self, __x=2):  # noqa: PYI063
        return f"secret {__x}"

    def nested(self):
        def inner():
            return super(Derived, self).greet(), self.__private, inner.__qualname__

        class __Inner:
            def method(self):
                return self.__absent

        return inner, __Inner

    @staticmethod
    def static(x):
        return effect(x)

    @classmethod
    def build(cls):
        return cls, super().__name__ if hasattr(super(), "__name__") else None


@pytest.mark.parametrize("index", [0, 1])
def test_methods(index):
    """``super()``, ``__class__`` and private names mean in a method what they meant."""
    self = Derived()
    for name in ("greet", "explicit", "_Derived__secret"):
        function = getattr(Derived, name)
        assert variants(function)[index](self) == function(self)
    static, build_ = Derived.static, Derived.__dict__["build"].__func__
    assert variants(static)[index](5) == 5
    assert variants(build_)[index](Derived) == Derived.build()
    inner, Local = variants(Derived.nested)[index](self)
    assert inner() == ("base", "own", "Derived.nested.<locals>.inner")
    assert Local.__qualname__ == "Derived.nested.<locals>.__Inner"
    assert variants(self.nested()[0])[index]() == inner()
    with pytest.raises(AttributeError, match="_Inner__absent"):
        Local().method()


def decorator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return "wrapped", function(*args, **kwargs)

    return wrapper


def plain_decorator(function):
    function.marked = True
    return function


@plain_decorator
@plain_decorator
def described(a: int, /, b=[1], *c: str, d: dict = {}, **e) -> tuple[int, list]:  # noqa: B006
    """What it says."""
    x: int = effect(a)
    return x, b, c, d, e


ATTRIBUTES = "name qualname module doc annotations defaults kwdefaults dict".split()  # noqa: SIM905


def test_what_inspect_says():
    """Name, text, source, signature, defaults, annotations, lines: all of the original's."""
    for function in (described, Derived.greet, waiting, closures, decorator(described)):
        for each in variants(function):
            for name in ATTRIBUTES:
                assert getattr(each, f"__{name}__") == getattr(function, f"__{name}__")
            assert each.__globals__ is function.__globals__
            assert inspect.signature(each) == inspect.signature(function)
            assert inspect.getsource(each) == inspect.getsource(function)
            assert inspect.getfile(each) == inspect.getfile(function)
            assert inspect.iscoroutinefunction(each) == inspect.iscoroutinefunction(function)
            assert each.__code__.co_firstlineno == function.__code__.co_firstlineno
            assert each.__code__.co_name == function.__code__.co_name
            own = [name for name in each.__code__.co_freevars if name[0] != "@"]
            assert own == list(function.__code__.co_freevars)
    one, two = variants(described)
    assert one(1) == two(1) == described(1)
    assert one(1)[1] is described(1)[1], "the default itself, not a copy"
    with pytest.raises(TypeError, match=r"described\(\) missing 1 required positional argument"):
        one()


def test_what_repr_says():
    """A nested function, class, lambda or coroutine has the name it would have."""

    def outer():
        class Local:
            def method(self):
                return 1

        async def waits():
            effect(1)

        return Local, Local.method, waits, lambda: 2, [lambda: 3 for _ in "x"][-1]

    expected = [each.__qualname__ for each in outer()]
    for each in variants(outer):
        assert [made.__qualname__ for made in each()] == expected
    coroutine = rewrite(waiting)(1)
    assert coroutine.__qualname__ == "waiting"
    coroutine.close()


def test_shared_variables():
    """Variables of an enclosing function stay shared with the original and its siblings."""
    count = 0

    def up():
        nonlocal count
        count += effect(1)
        return count

    one, two = variants(up)
    assert (up(), one(), two(), up(), count) == (1, 2, 3, 4, 4)
    count = 10
    assert (one(), up()) == (11, 12)


def test_recursion():
    """A function that calls itself, at the top of a module or inside another, can be rewritten."""

    def inner(n):
        return [effect(n), *inner(n - 1)] if n else []

    for each in variants(inner):
        assert each(3) == [3, 2, 1]
    for each in variants(factorial):
        assert each(5) == 120


def factorial(n):
    return n * factorial(n - 1) if effect(n) else 1


def test_names_seen_by_the_user():
    """``locals()``, ``vars()`` and ``dir()`` do not show what the rewrite needs for itself."""

    def listing(a):
        for b in range(1):
            effect(b)
        return locals(), vars(), dir(), dir(a), vars(Base)

    def inside(a):
        return [(sorted(locals()), effect(a)) for _ in "x"]

    for each in variants(listing):
        assert each(1) == listing(1)
    for each in variants(inside):
        assert each(1) == inside(1)


def test_shadowed_names():
    """A user's own ``locals``, ``iter`` or ``dir`` is called as it is."""

    def shadowed(locals, iter):  # noqa: A002
        vars = lambda: {"@f": 1}  # noqa: A001, E731
        for x in iter:
            effect(x)
        return locals(), vars()

    for each in variants(shadowed):
        assert each(lambda: {"@t": 2}, [1]) == ({"@t": 2}, {"@f": 1})


def test_locals_that_are_kept():
    """What ``locals()`` gave stays what it was, whatever is saved later."""

    def keeping(n):
        effect(n)
        kept = locals()
        x = effect("more")
        effect(x)
        return kept["n"]

    rewritten = build(keeping, capture(keeping))

    class Clearing(Runner):
        def save(self, number, values):
            values.clear()

    assert observe(rewritten.function, 5, Clearing(rewritten))[0] == ("returned", 5)


def test_no_second_warning(define):
    """A warning about the source is the compiler's, once; rewriting does not repeat it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = define("def f(x):\n    if x is 'text': return '\\d'\n    return int(x)\n").f
    assert [each(5) for each in variants(function)] == [5, 5]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are of 3.12")
def test_type_parameters(define):
    """Functions, methods and classes with type parameters keep them, and may use them."""
    module = define(
        """
        def f[T: int, *Ts](x: T, *rest: *Ts) -> T:
            type Pair = tuple[T, T]
            class Box[U]:
                content: U
                def get[V](self, v: V) -> V: return v
            effect(x)
            return T, Pair.__value__, Box.__type_params__[0].__name__, Box().get(x)

        class A[T]:
            def m(self, x: T) -> T:
                effect(x)
                return T, __class__
        """
    )
    T = module.f.__type_params__[0]
    for each in variants(module.f):
        assert each.__type_params__ == module.f.__type_params__
        assert each(1) == (T, tuple[T, T], "U", 1)
    for each in variants(module.A.m):
        assert each(module.A(), 1) == (module.A.__type_params__[0], module.A)


def test_future_annotations(define):
    """What a ``from __future__`` line means for nested functions stays so."""
    text = "def f():\n    def g(x: Undefined): pass\n    return g.__annotations__\n"
    for each in variants(define("from __future__ import annotations\n" + text).f):
        assert each() == {"x": "Undefined"}


# -- what cannot be --------------------------------------------------------------------------------


def line_of(text):
    with open(HERE, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def generator():
    effect(1)
    yield effect(2)  # a generator


async def async_generator():
    effect(1)
    for i in "x":
        yield i  # asynchronous


REFUSED = {
    "generator": (generator, "it is a generator (yield at line {})", "# a generator"),
    "async generator": (async_generator, "an asynchronous generator (yield at line {})", "# async"),
    "lambda": (lambda: 1, "it is a lambda (line {})", '"lambda": (lambda'),
    "builtin": (len, "a builtin_function_or_method is not a Python function", ""),
    "class": (Base, "a type is not a Python function", ""),
    "method": (Base().greet, "a method is not a Python function", ""),
    "partial": (functools.partial(branches), "a partial is not a Python function", ""),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    """What cannot be rewritten is refused: what it is, and the line that is in the way."""
    function, message, text = REFUSED[what]
    with pytest.raises(UnsupportedError) as caught:
        rewrite(function)
    assert message.format(line_of(text) if text else "") in str(caught.value)


def test_refused_without_source(define):
    """So is a function whose source is not there, or is another by now."""
    namespace: dict = {}
    exec("def made(): pass", namespace)
    with pytest.raises(UnsupportedError, match="its source is not to be had"):
        rewrite(namespace["made"])
    for edited in (
        "def f(y): return y\n\n",
        "# line\ndef f(x): return x",
        "def f(x):\n    return x",
    ):
        function = define("def f(x):\n    x += 1\n    return x\n").f
        with open(function.__code__.co_filename, "w", encoding="utf-8") as file:
            file.write(edited + "\n")
        with pytest.raises(UnsupportedError, match=r"its source (does not match|is not to be had)"):
            rewrite(function)


def test_refused_when_too_deep(define):
    """A function nested beyond what the interpreter can walk is refused, not a crash."""
    cases = "".join(f"    elif x == {i}:\n        effect({i})\n" for i in range(900))
    with pytest.raises(UnsupportedError, match="nested too deeply"):
        rewrite(define(f"def f(x):\n    if x:\n        effect(x)\n{cases}").f)


def test_generators_inside():
    """Generators, comprehensions and lambdas inside a function are left alone."""

    def uses(n):
        def numbers():
            for i in range(n):
                yield effect(i)

        return list(numbers()), sum(effect(x) for x in numbers()), [lambda: effect(n)][-1]()

    for each in variants(uses):
        assert observe(each, 3) == observe(uses, 3)
