"""A rewritten function is like the original, and resumes from each of its points."""

import contextlib
import copy
import functools
import inspect
import io
import pathlib
import pdb  # noqa: T100
import sys
import threading
import traceback
import types

import pytest
from constructs import (
    CASES,
    Base,
    Boom,
    branches,
    call,
    define,
    described,
    done,
    effect,
    fail,
    for_loops,
    observe,
    statements,
    waiting,
    without_calls,
)
from harness import interpreted, python

import stepwise
from stepwise._rewrite.build import UnsupportedError, build, rewrite
from stepwise._rewrite.frame import Frame, pending
from stepwise._rewrite.source import capture

HERE = __file__
LIBRARY = str(pathlib.Path(stepwise.__file__).parent)
FUNCTIONS = {each.values[0].function: each.id for each in CASES}
cases = pytest.mark.parametrize("case", CASES)


# -- every question to every construct -------------------------------------------------------------


def variants(function):
    """Return the function rewritten: as it is outside a run, and with a frame for every call."""
    return rewrite(function), build(function, capture(function), Frame).function


def lines_of(error):
    """Return where in the user's code an error passed: name, line, columns."""
    return [
        (each.name, each.lineno, getattr(each, "colno", 0), getattr(each, "end_colno", 0))
        for each in traceback.extract_tb(error.__traceback__)
        if not each.filename.startswith(LIBRARY)
    ]


def happened(function, argument):
    """Return what a call does, and what comes of it: a result, or errors with their lines."""
    done.clear()
    try:
        return list(done), call(function, copy.deepcopy(argument))
    except Exception as error:
        causes = [error, error.__cause__, error.__context__]
        return list(done), [(type(e), str(e), lines_of(e)) for e in causes if e is not None]


@cases
def test_like_the_original(case):
    """The result, the effects and the lines of an error are the original's, to the column."""
    original = happened(case.function, case.argument)
    for each in variants(case.function):
        assert happened(each, case.argument) == original
    for each in variants(rewrite(case.function)):  # what was rewritten can be rewritten
        assert observe(each, case.argument) == observe(case.function, case.argument)
    assert observe(case.function, case.argument)[0][0] == ("raised" if case.raises else "returned")


@contextlib.contextmanager
def traced(filename):
    """Collect the events that a trace function sees in a file."""
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


@cases
def test_trace_functions(case):
    """Debuggers and coverage tools see the same events; in a run, the same lines."""
    seen = []
    for each in (case.function, *variants(case.function)):
        with traced(case.function.__code__.co_filename) as events:
            observe(each, case.argument)
        seen.append(events)
    original, plain, in_run = seen
    assert plain == original
    assert {line for _, event, line in in_run} == {line for _, event, line in original}


class Runner(Frame):
    """Saves at every point, and resumes: what the library does, without a store."""

    def __init__(self, rewritten, saved=None):
        super().__init__()
        self.points, self.due, self.saves = rewritten.points, True, []
        if saved is not None:
            self.target, self.values = saved[0], copy.deepcopy(saved[1])

    def begin(self, points, captured=None):
        cells = {}
        if captured is not None:
            cells = dict(zip(captured.__code__.co_freevars, captured.__closure__, strict=True))
        self.values = {name: bound_to(value, cells) for name, value in self.values.items()}
        return super().begin(points, captured)

    def save(self, number, values):
        kept = {
            name: value
            for name, value in values.items()
            if name[0] != "@" or name in self.points[number].loops
        }
        self.saves.append((number, copy.deepcopy(kept), len(done)))


def bound_to(value, cells):
    """Bind a nested function to the variables of the resumed frame instead of the dead one's."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return value
    closure = tuple(
        cells.get(name, cell)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True)
    )
    bound = types.FunctionType(value.__code__, value.__globals__, None, value.__defaults__, closure)
    bound.__qualname__ = value.__qualname__
    return bound


@cases
def test_resumes(case):
    """From each of its points a function continues as if it had not stopped; nothing repeats."""
    function, argument = case.function, case.argument
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
    positions = [rewritten.points[number].position for number in numbers]
    assert tuple(positions[: len(case.points)]) == case.points
    assert bool(positions) == (function is not without_calls)


class Announced(Runner):
    """A runner that notes where a debugger would open, and which statements begin."""

    def __init__(self, rewritten, saved=None):
        super().__init__(rewritten, saved)
        self.arrivals, self.begun = 0, []

    def arrived(self, takes_item=False):
        self.arrivals += 1
        assert self.begun == []
        return 0

    def go(self, number):
        self.begun.append((number, sys._getframe(1).f_lineno))


@cases
def test_a_debugger_at_each_point(case):
    """A function for debuggers continues likewise, and says once where the next one begins."""
    function, argument = case.function, case.argument
    source = capture(function)
    rewritten = build(function, source, debugged=True)
    outcome, trace = observe(function, argument)
    whole = Announced(rewritten)
    assert observe(rewritten.function, argument, whole) == (outcome, trace)
    assert whole.arrivals == 0
    for saved in whole.saves:
        runner = Announced(rewritten, saved)
        at = rewritten.points[saved[0]]
        assert observe(rewritten.function, argument, runner) == (outcome, trace[saved[2] :]), at
        assert runner.arrivals <= 1
        if runner.arrivals == 0:  # nothing is left to execute
            assert not runner.begun


@cases
def test_resumes_again_and_again(case):
    """A resumed function can be resumed again, from what it saved since."""
    rewritten = build(case.function, capture(case.function))
    outcome, trace = observe(case.function, case.argument)
    saved, seen = None, 0
    while True:
        runner = Runner(rewritten, saved)
        assert observe(rewritten.function, case.argument, runner) == (outcome, trace[seen:])
        saved = next((save for save in runner.saves if save[2]), None)
        if saved is None:
            break
        seen += saved[2]


ATTRIBUTES = "name qualname module doc annotations defaults kwdefaults dict".split()  # noqa: SIM905
if sys.version_info >= (3, 12):
    ATTRIBUTES.append("type_params")


@pytest.mark.parametrize("function", FUNCTIONS, ids=FUNCTIONS.values())
def test_what_inspect_says(function):
    """Name, text, source, signature, defaults, annotations and lines are the original's."""
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
        wrong = []
        for asked in (function, each):
            with pytest.raises(TypeError) as caught:
                asked(**{"no such argument": 1})
            wrong.append(str(caught.value))
        assert wrong[0] == wrong[1]


def test_the_name_of_a_coroutine():
    """The coroutine of a rewritten function has the function's name."""
    coroutine = rewrite(waiting)(1)
    assert coroutine.__qualname__ == "waiting"
    coroutine.close()


def test_wrapped_functions():
    """The function that a decorator put around another is rewritten as itself."""

    @functools.wraps(described)
    def wrapper(*args, **kwargs):
        return "wrapped", described(*args, **kwargs)

    for each in variants(wrapper):
        assert inspect.signature(each) == inspect.signature(wrapper)
        assert each(1) == ("wrapped", described(1))


# -- points ----------------------------------------------------------------------------------------


def test_each_effect_has_a_point():
    """A point precedes each call, after the statements that lie between two calls."""
    rewritten = build(statements, capture(statements))
    runner = Runner(rewritten)
    _, trace = observe(rewritten.function, 1, runner)
    assert [seen for _, _, seen in runner.saves] == list(range(len(trace)))
    positions = [rewritten.points[number].position for number, _, _ in runner.saves]
    assert "after body[7]" in positions  # ``del a``, which calls nothing


def test_a_frame_is_taken_once():
    """A frame serves one call: the functions that it calls, itself included, run without one."""
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


def test_loops_let_go_of_their_iterators():
    """A generator that a loop left is closed as early as in the original, not at the end."""
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


def test_what_is_no_asynchronous_iterator():
    """An ``async for`` over a wrong object fails with Python's own words."""

    class Wrong:
        def __aiter__(self):
            return 1

    async def over(each):
        async for _ in each:
            call_nothing()

    def call_nothing(): ...

    for wrong in ((1, 2), Wrong()):
        with pytest.raises(TypeError) as expected:
            over(wrong).send(None)
        for each in variants(over):
            with pytest.raises(TypeError) as found:
                each(wrong).send(None)
            assert str(found.value) == str(expected.value)


def test_passes_of_a_loop_call_nothing_of_ours():
    """In a run, a pass of a loop calls no more than outside of one: it costs little."""

    def loop(n):
        items = []
        for i in range(n):
            if i % 3:
                items.append(i)
        return items

    def counted(function, n, frame=None):
        calls = []
        pending.set(frame)
        sys.setprofile(lambda _, event, __: calls.append(event))
        try:
            function(n)
        finally:
            sys.setprofile(None)
        return len(calls)

    rewritten = rewrite(loop)
    more = [counted(rewritten, n, Frame()) - counted(loop, n) for n in (3, 300)]
    assert more[0] == more[1]


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


# -- what a function is ----------------------------------------------------------------------------


def test_debugger():
    """A ``pdb`` session prints the same as with the original."""

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


def test_locals_that_are_kept():
    """A dict that ``locals()`` returned keeps its content, whatever is saved later."""

    def keeping(n):
        effect(n)
        kept = locals()
        x = effect("more")
        effect(x)
        return kept["n"]

    rewritten = build(keeping, capture(keeping))

    class Clearing(Frame):
        def save(self, number, values):
            values.clear()

    frame = Clearing()
    frame.due = True
    assert observe(rewritten.function, 5, frame)[0] == ("returned", 5)


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
    """A function that cannot be rewritten is refused, with its kind and the line in question."""
    function, message, text = REFUSED[what]
    with pytest.raises(UnsupportedError) as caught:
        rewrite(function)
    assert message.format(line_of(text) if text else "") in str(caught.value)


def test_refused_without_source():
    """A function without source, or whose source has changed, is refused."""
    namespace: dict = {}
    exec("def made(): pass", namespace)
    with pytest.raises(UnsupportedError, match="its source is not available"):
        rewrite(namespace["made"])
    for edited in (
        "def f(y): return y\n\n",
        "# line\ndef f(x): return x",
        "def f(x):\n    return x",
    ):
        function = define("def f(x):\n    x += 1\n    return x\n").f
        with open(function.__code__.co_filename, "w", encoding="utf-8") as file:
            file.write(edited + "\n")
        with pytest.raises(UnsupportedError, match=r"its source (does not match|is not available)"):
            rewrite(function)


OPTIMIZED = """
from stepwise._rewrite.build import rewrite

def alone():
    'A docstring on its line.'

def documented(x):
    'A docstring\\
    of two lines.'
    assert x < 0
    def inner():
        'Another.'
        return x
    return inner(), inner.__doc__, __debug__

for each in (alone, documented):
    assert rewrite(each).__doc__ == each.__doc__
print(documented(1), rewrite(documented)(1))
"""


@pytest.mark.parametrize(("option", "doc"), [("-O", "Another."), ("-OO", None)])
def test_without_docstrings_and_assertions(tmp_path, option, doc):
    """A function with a docstring and assertions is rewritten under ``-O`` and ``-OO``, too."""
    script = tmp_path / "optimized.py"
    script.write_text(OPTIMIZED, "utf-8")
    done = interpreted(option, script)
    assert done.stdout == f"{(1, doc, False)} {(1, doc, False)}\n"


def test_refused_when_too_deep():
    """A function nested beyond what the interpreter can walk is refused, not a crash."""
    cases = "".join(f"    elif x == {i}:\n        effect({i})\n" for i in range(900))
    with pytest.raises(UnsupportedError, match="nested too deeply"):
        rewrite(define(f"def f(x):\n    if x:\n        effect(x)\n{cases}").f)


SUGGESTED = """
def loops{number}(n):
    for a in range(n):
        for b in range(n):
            effect(b)
    match n:
        case 2:
            effect(b)
    return {name}

try:
    build(loops{number}, capture(loops{number}), asked).function(2)
except NameError as error:
    sys.excepthook(NameError, error, error.__traceback__)
"""
NAMES = "f t v c i0 x0 i1 x10 F at enter visible f_ iv fv i t0 frame".split()  # noqa: SIM905


def test_suggested_names(tmp_path):
    """A ``NameError`` suggests no name that the user never wrote, whatever was mistyped."""
    text = "import sys\nfrom stepwise._rewrite.build import build\neffect = print\n"
    text += "from stepwise._rewrite.frame import Frame\n"
    text += "from stepwise._rewrite.source import capture\n"
    for enter in ("Frame", "lambda: None"):
        text += f"asked = {enter}\n"
        text += "".join(SUGGESTED.format(number=n, name=name) for n, name in enumerate(NAMES))
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    ended = python(script, code=0)
    told = [line for line in ended.stderr.splitlines() if line.startswith("NameError: ")]
    assert len(told) == 2 * len(NAMES)
    for name, line in zip(NAMES * 2, told, strict=True):
        assert f"name {name!r} is not defined" in line
        assert "@" not in line
