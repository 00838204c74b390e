"""Functions of every construct, with what they are called with, and a way to see what they did."""

import asyncio
import copy
import importlib.util
import inspect
import textwrap

import pytest

from stepwise._rewrite import pending


def define_module(path, source):
    """A module by its text, which may be of a newer Python than the oldest."""
    path.write_text(textwrap.dedent(source), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    module.effect, module.fail = effect, fail
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
