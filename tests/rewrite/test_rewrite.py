"""A rewritten function is like the original, to the last line of a traceback."""

import asyncio
import contextlib
import copy
import functools
import inspect
import io
import pdb  # noqa: T100
import pickle
import subprocess
import sys
import traceback
import warnings

import constructs
import pytest
from constructs import (
    CASES,
    Boom,
    Countdown,
    Manager,
    branches,
    call,
    closures,
    define_module,
    effect,
    for_loops,
    observe,
    waiting,
)

from stepwise._rewrite import Frame, UnsupportedError, build, capture, rewrite

HERE = __file__


@pytest.fixture
def define(tmp_path):
    """Define functions by the text of a module."""
    return lambda source: define_module(tmp_path / f"m{len(list(tmp_path.iterdir()))}.py", source)


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
        with traced(constructs.__file__) as events, contextlib.suppress(Boom):
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
    """An exception in a coroutine function has the lines of the original, to the column."""

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


def test_rewritten_twice():
    """What was rewritten can be rewritten; it is the same again."""
    for each in variants(rewrite(closures)):
        assert observe(each, 2) == observe(closures, 2)


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

    class Clearing(Frame):
        def save(self, number, values):
            values.clear()

    frame = Clearing()
    frame.due = True
    assert observe(rewritten.function, 5, frame)[0] == ("returned", 5)


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
    """A function whose source is not there, or is another by now, is refused."""
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


def test_global_definitions(define):
    """What a function declares ``global`` and defines has the name it would have in the module."""
    module = define(
        """
        import pickle

        class Holder:
            def defines(self):
                global helper, Kind, other

                def helper():
                    return lambda: 1

                class Kind:
                    def method(self):
                        pass

                def inner():
                    global other

                    def other():
                        pass

                inner()
                defined = helper, helper(), Kind, Kind.method, other, inner
                return [each.__qualname__ for each in defined]
        """
    )
    sys.modules[module.__name__] = module
    names = [
        *("helper", "helper.<locals>.<lambda>", "Kind", "Kind.method", "other"),
        "Holder.defines.<locals>.inner",
    ]
    for each in (module.Holder.defines, *variants(module.Holder.defines)):
        assert each(None) == names
        for made in (module.helper, module.Kind, module.other):
            assert pickle.loads(pickle.dumps(made)) is made
    del sys.modules[module.__name__]


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


@pytest.mark.parametrize("enter", ["Frame", "lambda: None"])
def test_suggested_names(tmp_path, enter):
    """A ``NameError`` suggests no name that the user never wrote, whatever was mistyped."""
    text = "import sys\nfrom stepwise._rewrite import Frame, build, capture\n"
    text += f"effect, asked = print, {enter}\n"
    for number, name in enumerate(NAMES):
        text += SUGGESTED.format(number=number, name=name)
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    told = [line for line in ended.stderr.splitlines() if line.startswith("NameError: ")]
    assert len(told) == len(NAMES)
    for name, line in zip(NAMES, told, strict=True):
        assert f"name {name!r} is not defined" in line
        assert "@" not in line
