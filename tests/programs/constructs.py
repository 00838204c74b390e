"""Functions of every construct of Python, their arguments, and a way to see what they did.

A new construct is one more function under ``@case``, or one more text for ``case_of``, if its
syntax is of a newer Python or its layout must stay as it is.
"""

import asyncio
import atexit
import copy
import importlib.util
import inspect
import shutil
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepwise._rewrite.frame import pending

_folder = Path(tempfile.mkdtemp(prefix="stepwise-constructs-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def define(source):
    """Return a module made of its text."""
    path = _folder / f"constructs_{len(list(_folder.glob('*.py')))}.py"
    path.write_text(textwrap.dedent(source), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(effect=effect, fail=fail, Manager=Manager)
    sys.modules[path.stem] = module
    with warnings.catch_warnings():  # of the compiler; rewriting must not repeat them
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def call(function, *arguments):
    """Call a function, and wait for it if it is one to wait for."""
    result = function(*arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


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


class Case(NamedTuple):
    """A call of a function.

    Args:
        raises: the call ends with an exception.
        points: the positions of the first points that the call reaches, if the table says them.
    """

    function: Any
    argument: Any
    raises: bool
    points: tuple[str, ...]


def case(*arguments, raises=(), points={}, name=""):  # noqa: B006
    """Add a function to the table: one call for each of these arguments.

    Args:
        points: by the argument's ``repr``, see ``Case``.
    """

    def add(function):
        CASES.extend(
            pytest.param(
                Case(function, each, each in raises, points.get(repr(each), ())),
                id=f"{name or function.__name__}-{getattr(each, '__name__', repr(each))}",
            )
            for each in arguments
        )
        return function

    return add


def case_of(source, *arguments, since=(3, 10), name="f", **expected):
    """Add the function ``f`` of a module to the table, by the module's text."""
    if sys.version_info >= since:
        case(*arguments, **expected, name=name)(define(source).f)


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


@case(
    *(0, 1, 2, 3),
    points={
        "3": (
            "enter body[0].orelse",
            "enter body[0].orelse[0].orelse",
            "enter body[0].orelse[0].orelse[0].orelse",
            "after body[0].orelse[0].orelse[0].orelse[0]",
            "after body[0]",
            "enter body[1].body",
            "after body[1]",
        )
    },
)
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


@case(
    *(0, 1, 2, 3),
    points={
        "1": (  # none in handlers and ``finally``
            "after body[0]",
            "after body[1].body[0]",
            "enter body[1].body[1].body",
            "after body[1]",
            "after body[2]",
            "after body[3]",  # ``return``
        )
    },
)
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


@case(0, 1, raises=[0])
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


@case(0, 2, raises=[0, 2])
async def failing_in_coroutines(n):
    await asyncio.sleep(0)
    async with Manager():
        async for i in Countdown(n):
            await asyncio.sleep(0)
            1 / i
    async for _ in n:
        pass


@case(3)
def generators(n):
    def numbers():
        for i in range(n):
            yield effect(i)

    return list(numbers()), sum(effect(x) for x in numbers()), [lambda: effect(n)][-1]()


class Odd:
    """An iterable whose iterator has no more than ``__next__``."""

    def __repr__(self):
        return "Odd"

    def __iter__(self):
        return Bare()


class Bare:
    count = 3

    def __next__(self):
        self.count -= 1
        if not self.count:
            raise StopIteration
        return self.count


@case(Odd(), [1, 2], 5, None, raises=[5, None])
def odd_iterators(items):
    found = []
    for item in items:
        found.append(effect(item))
    return found


def make_recursive():
    def recursive(n):
        effect(("at", n))
        return [effect(n), *recursive(n - 1)] if n else []

    return recursive


case(3)(make_recursive())


@case(5)
def factorial(n):
    effect(("at", n))
    return n * factorial(n - 1) if effect(n) else 1


# -- names, scopes and classes ---------------------------------------------------------------------


class Base:
    def greet(self):
        return "base"


class Derived(Base):
    __private = "own"

    def __repr__(self):
        return "Derived"

    def greet(self):
        effect("greets")
        return f"derived of {super().greet()} {effect(self.__private)}"

    def explicit(self):
        __local = 1
        return [__class__, __local, lambda: self.__private][2]() + self.__secret()

    def __secret(self, __x=2):  # noqa: PYI063
        effect("secret")
        return f"secret {effect(__x)}"

    def nested(self):
        def inner(_=None):
            effect("inner")
            return super(Derived, self).greet(), self.__private, inner.__qualname__

        class __Inner:
            def method(self):
                return self.__absent

        try:
            effect(__Inner().method())
        except AttributeError as error:
            message = str(error)
        return inner(), __Inner.__qualname__, effect(message)

    def inner(self):
        def inner(_=None):
            effect("inner")
            return super(Derived, self).greet(), self.__private, inner.__qualname__

        return inner

    @staticmethod
    def static(x):
        effect("static")
        return effect(x)

    @classmethod
    def build(cls):
        effect("built")
        return cls, super().__name__ if hasattr(super(), "__name__") else None


for each in (Derived.greet, Derived.explicit, Derived._Derived__secret, Derived.nested):
    case(Derived())(each)
case(5)(Derived.static)
case(Derived)(Derived.__dict__["build"].__func__)
case(None, name="inner function of a method")(Derived().inner())


@case(1)
def qualified_names(n):
    class Local:
        def method(self):
            return n

    async def waits():
        effect(1)

    made = Local, Local.method, waits, lambda: 2, [lambda: 3 for _ in "x"][-1]
    return effect([each.__qualname__ for each in made])


@case(1)
def names_seen_by_the_user(a):
    for b in range(1):
        effect(b)
    inside = [(sorted(locals()), effect(a)) for _ in "x"]
    return locals(), vars(), dir(), dir(a), vars(Base), inside


@case(lambda: {"@t": 2}, name="shadowed names")
def shadowed(locals, iter=(1,)):  # noqa: A002
    vars = lambda: {"@f": 1}  # noqa: A001, E731
    for x in iter:
        effect(x)
    return locals(), vars()


DEFAULT = [1]


def plain_decorator(function):
    function.marked = True
    return function


@case(1)
@plain_decorator
@plain_decorator
def described(a: int, /, b=DEFAULT, *c: str, d: dict = {}, **e) -> tuple[int, list]:  # noqa: B006
    """What it says."""
    kept: bool = effect(b is DEFAULT)
    x: int = effect(a)
    return x, b, c, d, e, kept


# -- texts -----------------------------------------------------------------------------------------

case_of(
    """
    def f(x):
        '''Text.'''
        effect("one"); effect("two")
        if x == 1:
            return x.missing
        if x == 2: raise ValueError(
            "two")
        for a, b in [x] if x == 3 else []:
            pass
        while x == 4 and x.missing:
            pass
        with x if x == 5 else Manager() as name:
            name.upper()
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
    """,
    *range(1, 22),
    raises=range(1, 21),
    name="a statement that fails",
)
_BODY = "body[0].body[0].body"
case_of(
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
    """,
    *(0, 1),
    since=(3, 11),
    name="except*",
    points={
        "0": (  # the first is before ``try``
            *("enter body[0].body", f"after {_BODY}[0]", f"after {_BODY}[1]"),
            *("enter body[0].body[0].orelse", "after body[0].body[0]"),
        ),
        "1": (
            *("enter body[0].body", f"after {_BODY}[0]", f"enter {_BODY}[1].body"),
            *("after body[0].body[0]", "after body[0].body[1]"),
        ),
    },
)
case_of(
    """
    def f[T: int, *Ts](x: T, *rest: *Ts) -> T:
        type Pair = tuple[T, T]
        class Box[U]:
            content: U
            def get[V](self, v: V) -> V: return v
        effect(x)
        return T, Pair.__value__, Box.__type_params__[0].__name__, Box().get(x)
    """,
    1,
    since=(3, 12),
    name="type parameters of a function",
)
case_of(
    """
    class A[T]:
        def m(self, x: T = 1) -> T:
            effect(x)
            return T, __class__
    f = A.m
    """,
    1,
    since=(3, 12),
    name="type parameters of a class",
)
case_of(
    """
    from __future__ import annotations
    def f(n):
        def g(x: Undefined): pass
        effect(n)
        return g.__annotations__
    """,
    1,
    name="annotations of the future",
)
case_of(
    """
    def f(n):
        name = effect("name")
        found = t"{effect('one')!r:>{effect(4)}} of {name}"
        for each in [*t"{effect('two')}, {n}"]:
            effect(getattr(each, "expression", each))
        try:
            if n:
                raise KeyError(effect("key"))
            effect("no key")
        except KeyError, ValueError:
            effect("caught")
        specs = [each.format_spec for each in found.interpolations]
        return effect(specs), found.strings, found.values
    """,
    *(0, 1),
    since=(3, 14),
    name="template strings",
)
case_of(
    """
    def f(n: Later) -> Later:
        def inner(x: Nowhere):
            return effect(x)
        value: Nowhere = effect(n)
        return inner(value), effect("end")

    Later = int
    """,
    1,
    since=(3, 14),
    name="annotations without a value",
)
case_of(
    "def f(x):\n    if x is 'text': return '\\d'\n    return effect(int(x))\n",
    5,
    name="warned of by the compiler",
)
case_of(
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
            effect([pickle.loads(pickle.dumps(each)) is each for each in (helper, Kind, other)])
            made = helper, helper(), Kind, Kind.method, other, inner
            return [each.__qualname__ for each in made]

    f = Holder.defines
    """,
    None,
    name="global definitions",
)
