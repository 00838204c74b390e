"""What ``@step``, ``@tool`` and ``@workflow`` leave of a function, and where it may be taken."""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import doctest
import functools
import inspect
import os
import sys
import threading
import types
import typing
import unittest.mock
import weakref

import pydantic
import pytest
import tenacity
from flows import flow_of
from harness import interpreted

import stepwise
from stepwise import ConfigurationError, Workflow, current_run, step, tool, workflow
from stepwise.testing import fresh_store

DECORATORS = {"step": step, "tool": tool, "workflow": workflow}
BARE_AND_CALLED = [
    pytest.param(decorate, id=f"{name}{form}")
    for name, decorator in DECORATORS.items()
    for form, decorate in {"": decorator, "()": decorator()}.items()
]
EVERY = pytest.mark.parametrize("decorate", BARE_AND_CALLED)
EACH = pytest.mark.parametrize("decorator", DECORATORS.values(), ids=DECORATORS)


@pytest.fixture(autouse=True)
def _memory(home):
    """Runs are kept in memory; a test that is about files says so."""
    stepwise.configure(store=f"memory:{home}")


def recorded():
    """The names of what the current run has recorded."""
    return [each.name for each in current_run().steps]


def in_a_run(call):
    """What calls give in a run, and the names of what it recorded."""
    return flow_of(lambda: (call(), recorded()))()


# -- what a decorated function says of itself ----------------------------------------------------


def original(a: int, /, b: str = "x", *rest: float, c: bytes, **more: bool) -> list[str]:
    """What it does.

    >>> 6 * 7
    42
    """
    return [f"{a}{b}{rest}{c!r}{more}"]


async def coroutine(a: int) -> str:
    """A coroutine function."""
    return str(a)


@EVERY
@pytest.mark.parametrize("function", [original, coroutine], ids=lambda f: f.__name__)
def test_source(decorate, function):
    """``inspect`` and ``typing`` find what they find of the function, in its own file."""
    made = decorate(function)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(made, name) == getattr(function, name)
    questions = [inspect.signature, inspect.getdoc, inspect.getsource, inspect.getsourcelines]
    questions += [typing.get_type_hints, inspect.iscoroutinefunction]
    if sys.version_info < (3, 14):  # where it is deprecated
        questions.append(asyncio.iscoroutinefunction)
    for question in questions:
        assert question(made) == question(function)
    assert made.__wrapped__ is inspect.unwrap(made) is function
    bound = types.SimpleNamespace(f=made)
    assert inspect.iscoroutinefunction(bound.f) == (function is coroutine)


@EACH
def test_real_functions(decorator):
    """A step or tool is a real function, which SDKs insist on; a workflow a ``Workflow``."""
    made = decorator(original)
    if decorator is not workflow:
        for function in (made, decorator(coroutine)):
            assert inspect.isfunction(function)
            assert type(function) is types.FunctionType
        return
    assert made.__class__ is type(made) is Workflow
    assert isinstance(made, Workflow)
    assert not isinstance(made, types.FunctionType)
    assert callable(made)
    assert repr(made) == str(made) == f"<workflow {__name__}:original>"
    assert made.full_name == f"{__name__}:original"
    assert {"execute", "options", "run_id_for", "full_name"} <= set(dir(made))
    assert unittest.mock.create_autospec(workflow(_add)).execute(1) is not None


class Bound:
    """For what is bound."""

    def __init__(self, value=1):
        self.value = value

    @step
    def plain(self, x):
        """A method."""
        return self.value, x

    @step()
    async def later(self, x):
        return self.value, x

    @classmethod
    @step
    def of_class(cls, x):
        return cls.__name__, x

    @step
    @classmethod
    def of_class_outside(cls, x):
        return cls.__name__, x

    @staticmethod
    @tool
    def of_none(x):
        return x

    @tool
    @staticmethod
    def of_none_outside(x):
        return x

    @workflow
    def flow(self, x):
        """A workflow method."""
        return self.plain(x), recorded()

    @workflow
    async def later_flow(self, x):
        return await self.later(x), recorded()

    @classmethod
    @workflow
    def flow_of_class(cls, x):
        return cls.of_class(x), cls.of_class_outside(x), recorded()

    @workflow
    @classmethod
    def flow_of_class_outside(cls, x):
        return cls.__name__, x

    @staticmethod
    @workflow
    def flow_of_none(x):
        return Bound.of_none(x), Bound.of_none_outside(x), recorded()

    @workflow
    @staticmethod
    def flow_of_none_outside(x):
        return x


class Lower(Bound):
    """Overrides some."""

    @step
    def plain(self, x):
        return "lower", super().plain(x)

    @workflow
    def flow(self, x):
        return "lower", super().flow(x), recorded()

    @classmethod
    @step
    def of_class(cls, x):
        return "lower", super().of_class(x)


@pytest.mark.parametrize("name", ["plain", "later", "flow", "later_flow"])
def test_bound_methods(name):
    """A bound method has the name, docstring and signature of the method, without ``self``.

    Got twice from one instance it is equal, so that a callback can be unregistered.
    """
    instance, other = Bound(), Bound()
    bound, function = getattr(instance, name), inspect.unwrap(Bound.__dict__[name])
    assert bound.__name__ == name
    assert bound.__self__ is instance
    assert str(inspect.signature(bound)) == "(x)"
    assert bound.__doc__ == function.__doc__
    assert inspect.iscoroutinefunction(bound) == ("later" in name)
    callbacks = [bound]
    callbacks.remove(getattr(instance, name))
    assert callbacks == []
    assert bound != getattr(other, name)
    assert len({bound, getattr(instance, name)}) == 1


def test_methods_in_a_run():
    """Methods of every kind are recorded, under their class's name."""
    instance = Bound(7)
    assert instance.flow(1) == ((7, 1), ["Bound.plain"])
    assert asyncio.run(instance.later_flow(1)) == ((7, 1), ["Bound.later"])
    names = ["Bound.of_class", "Bound.of_class_outside"]
    assert Bound.flow_of_class(1) == (("Bound", 1), ("Bound", 1), names)
    assert instance.flow_of_class(2) == (("Bound", 2), ("Bound", 2), names)
    assert Bound.flow_of_class_outside(1) == instance.flow_of_class_outside(1) == ("Bound", 1)
    names = ["Bound.of_none", "Bound.of_none_outside"]
    assert Bound.flow_of_none(1) == (1, 1, names)
    assert instance.flow_of_none(2) == (2, 2, names)
    assert Bound.flow_of_none_outside(1) == instance.flow_of_none_outside(1) == 1


def test_overridden_methods():
    """An overriding step or workflow calls the overridden one by ``super()``; both are recorded."""
    (value, of_class), names = in_a_run(lambda: (Lower(7).plain(1), Lower.of_class(2)))
    assert value == ("lower", (7, 1))
    assert of_class == ("lower", ("Lower", 2))
    assert names == ["Lower.plain", "Bound.plain", "Lower.of_class", "Bound.of_class"]
    label, inner, outer = Lower(7).flow(1)
    assert (label, inner[0]) == ("lower", ("lower", (7, 1)))
    assert inner[1] == ["Lower.plain", "Bound.plain"]
    assert outer == ["Bound.flow"]

    class Under(Bound):
        @classmethod
        @workflow
        def flow_of_class(cls, x):
            return "under", super().flow_of_class(x)[:2]

    assert Under.flow_of_class(1) == ("under", (("Under", 1), ("Under", 1)))


def test_inherited_methods():
    """A method is the same through the class, and another one through a subclass."""

    class Other(Bound):
        pass

    instance = Bound(7)
    assert Bound.plain(instance, 1) == (7, 1)
    assert Bound.flow(instance, 1) == ((7, 1), ["Bound.plain"])
    assert Bound.flow.run_id_for(instance, 1) == instance.flow.run_id_for(1)
    assert Other(7).later_flow.run_id_for(1) != instance.later_flow.run_id_for(1)
    assert Other(7).flow(1) == ((7, 1), ["Bound.plain"])
    assert Other.flow_of_class(1)[0] == ("Other", 1)


def test_options_of_class_methods():
    """Options of a class method's workflow keep its class, or are refused where it is not told."""
    assert Lower.flow_of_class_outside.options(run_id="outside")(1) == ("Lower", 1)
    if sys.version_info < (3, 13):
        assert Lower.flow_of_class.options(run_id="inside")(1)[0] == ("lower", ("Lower", 1))
    else:
        with pytest.raises(ConfigurationError, match="@workflow above @classmethod"):
            Lower.flow_of_class.options(run_id="inside")


@EACH
def test_equality(decorator):
    """A decorated function is equal to itself only, not to the raw function inside."""
    made = decorator(original)
    assert made == made
    assert not made != made  # noqa: SIM202
    assert made != original
    assert not made == original  # noqa: SIM201
    assert hash(made) != hash(original)
    assert {original: "raw"}.get(made) is None
    assert made not in [original, None]
    if decorator is workflow:
        assert not made == workflow(original)  # noqa: SIM201


# -- the standard library does with it what it does with functions -------------------------------


@EVERY
def test_copies(decorate):
    """A copy of a decorated function is the function itself, which can be referred to weakly."""
    made = decorate(_add)
    assert copy.copy(made) is made
    assert copy.deepcopy(made) is made
    assert copy.deepcopy({"tools": [made]})["tools"][0] is made
    assert weakref.ref(made)() is made
    assert weakref.WeakKeyDictionary({made: 1})[made] == 1


@pytest.mark.parametrize("name", ["plain", "flow"])
def test_copies_of_instances(name):
    """The copy of an instance has its own bound methods, which are recorded."""
    instance = Bound([1])
    copied = copy.deepcopy({"agent": instance, "call": getattr(instance, name)})
    assert copied["call"].__self__ is copied["agent"]
    copied["agent"].value.append(2)
    assert copied["agent"].flow(1) == (([1, 2], 1), ["Bound.plain"])
    assert instance.flow(1) == (([1], 1), ["Bound.plain"])


@EVERY
def test_partial(decorate):
    """``functools.partial`` and ``partialmethod`` of it call it, and are recorded in a run."""
    made = functools.partial(decorate(_add), 1)

    class Agent:
        @step
        def add(self, a, b):
            return a + b

        add_one = functools.partialmethod(add, 1)

    assert made(2) == 3
    found = in_a_run(lambda: (made(2), made(b=3), Agent().add_one(2)))
    assert found == ((3, 4, 3), ["_add", "_add", "Agent.add"])


def _add(a, b=0):
    return a + b


@EVERY
def test_doctest(decorate):
    """``doctest`` finds the examples of a decorated function of a module, and they hold."""
    module = types.ModuleType("documented")
    module.__dict__.update(original=decorate(original), __name__=__name__)
    found = doctest.DocTestFinder().find(module, module=sys.modules[__name__])
    (test,) = [each for each in found if each.examples]
    assert doctest.DocTestRunner().run(test) == doctest.TestResults(0, 1)


def test_fields_of_dataclasses():
    """A decorated function can be the value of a dataclass field, without becoming a method."""

    @dataclasses.dataclass
    class Toolbox:
        given: typing.Callable[[int], int]
        retries: int = 1

        @step
        def use(self, x):
            return self.given(x), self.retries

        @workflow
        def flow(self, x):
            return self.use(x), recorded()

    box = Toolbox(step(_add))
    assert box.flow(2) == ((2, 1), ["Toolbox.use", "_add"])
    assert dataclasses.replace(box, retries=2).flow(2)[0] == (2, 2)
    assert dataclasses.asdict(box)["given"] is box.given


def test_special_methods():
    """Special methods, properties and methods of classes with slots can be steps."""

    class Odd:
        __slots__ = ("x",)

        @step
        def __init__(self):
            self.x = 1

        @step
        def __call__(self, y):
            return y

        @step
        def __enter__(self):
            return 3

        @step
        def __exit__(self, *exception):
            return None

        @property
        @step
        def size(self):
            return self.x

    def calls():
        odd = Odd()
        with odd as entered:
            return odd(4), entered, odd.size

    special = ["__init__", "__enter__", "__call__", "size", "__exit__"]
    assert in_a_run(calls) == ((4, 3, 1), [f"Odd.{name}" for name in special])


@pytest.mark.parametrize("name", ["ask", "_Agent__private", "alias"])
def test_methods_under_another_name(name):
    """A method's ``self`` stays out of the identity, whatever the class calls the method."""

    class Agent:
        def __init__(self):
            self.lock = threading.Lock()

        @step
        def ask(self, x):
            return x

        @step
        def __private(self, x):
            return x

        alias = step(lambda self, x: x)

    found, _ = in_a_run(lambda: (getattr(Agent(), name)(1), getattr(Agent(), name)(1)))
    assert found == (1, 1)


def test_abstract_methods():
    """``abstractmethod`` works on either side of the decorator."""

    class Base(abc.ABC):
        @step
        @abc.abstractmethod
        def one(self): ...

        @abc.abstractmethod
        @step
        def two(self): ...

        @workflow
        @abc.abstractmethod
        def three(self): ...

    assert Base.__abstractmethods__ == {"one", "two", "three"}


@EACH
def test_caches_keyed_by_function(decorator):
    """A cache keyed by function does not hand out the raw one; one around a step asks it once."""

    @functools.lru_cache
    def schema(function):
        return function

    assert schema(original) is original
    made = decorator(original)
    assert schema(made) is made
    cached = functools.lru_cache(step(_add))
    found = in_a_run(lambda: (cached(1), cached(1), cached(2)))
    assert found == ((1, 1, 2), ["_add", "_add"])


@pytest.mark.parametrize("decorator", [step, tool])
def test_rebuilt_functions(decorator):
    """A function that an SDK rebuilds from ``__code__`` and ``__closure__`` is recorded still."""
    made = decorator(_add)
    rebuilt, whole = (
        types.FunctionType(made.__code__, names, name, made.__defaults__, made.__closure__)
        for name, names in (("another", made.__globals__), ("whole", dict(made.__globals__)))
    )
    rebuilt.__kwdefaults__ = made.__kwdefaults__
    whole.__dict__.update(made.__dict__)
    assert in_a_run(lambda: (rebuilt(1, b=2), whole(3))) == ((3, 3), ["_add", "_add"])


@pytest.mark.parametrize("decorator", [step, tool])
def test_schemas(decorator):
    """pydantic, from which SDKs make a tool's schema, sees names, types and defaults."""

    @decorator
    def search(query: str, limit: int = 3) -> list[str]:
        return [query] * limit

    search.__annotations__.update(query=str, limit=int)
    schema = pydantic.TypeAdapter(search).json_schema()
    assert schema["properties"].keys() == {"query", "limit"}
    assert schema["required"] == ["query"]
    validated = pydantic.validate_call(search)
    found, names = in_a_run(lambda: validated("a", limit="2"))
    assert (found, names) == (["a", "a"], [search.__qualname__.rpartition(".")[2]])


def test_methods_of_a_pydantic_model(tmp_path):
    """A pydantic model has steps as methods as they are, and workflows as an ignored type."""

    class Agent(pydantic.BaseModel):
        model_config = {"ignored_types": (Workflow,)}
        name: str

        @step
        def greet(self):
            return f"I am {self.name}"

        @workflow
        def run(self):
            return self.greet()

    with fresh_store(tmp_path):
        run = Agent(name="Ada").run.execute()
    assert (run.result, [each.name for each in run.steps]) == ("I am Ada", ["Agent.greet"])


@EACH
def test_mocks(decorator):
    """``unittest.mock`` specifies a mock by a step, with its signature, and by a workflow."""
    made = unittest.mock.create_autospec(decorator(_add), return_value=5)
    assert made(1, b=2) == 5
    if decorator is not workflow:
        with pytest.raises(TypeError):
            made(1, 2, 3)


def supplying(*before, **named):
    """A decorator that hands arguments of its own to the function it wraps."""

    def decorate(function):
        @functools.wraps(function)
        def outer(*args, **kwargs):
            return function(*before, *args, **named, **kwargs)

        return outer

    return decorate


@EVERY
def test_decorators_that_supply_an_argument(decorate):
    """A call fits what is called, and not what ``functools.wraps`` says of the function inside."""

    @decorate
    @supplying(db="DB")
    def by_name(x, db):
        return x, db

    @decorate
    @supplying("DB")
    def by_place(db, x=0, y=5):
        return db, x, y

    @decorate
    @unittest.mock.patch("os.getcwd")
    def patched(x, cwd):
        return x, cwd is os.getcwd

    found, _ = in_a_run(lambda: (by_name(1), by_place(1), by_place(1, 0), patched(1)))
    assert found == ((1, "DB"), ("DB", 1, 5), ("DB", 1, 0), (1, True))
    assert (by_name(2), patched(2)) == ((2, "DB"), (2, True))


def test_methods_below_a_decorator_that_supplies_an_argument():
    """The instance counts, and the other arguments, where all of them are ``*args``."""

    class Agent:
        def __init__(self, name):
            self.name = name

        @step
        @supplying(db="DB")
        def ask(self, x, db):
            return self.name, x, db

        @step
        @unittest.mock.patch("os.getcwd")
        async def later(self, x, cwd):
            return self.name, x

        @tool(side_effect=True, approve=lambda *arguments: False)
        @supplying(db="DB")
        def send(self, x, db):
            return self.name, x, db

        @workflow
        @supplying(db="DB")
        def flow(self, x, db):
            asked = [self.ask(1), self.ask(2), Agent("b").ask(1), self.send(3)]
            said = [each.arguments for each in current_run().steps]
            later = [asyncio.run(self.later(n)) for n in (1, 2)]
            return self.name, x, db, asked, said, later

    *own, asked, said, later = Agent("a").flow(7)
    assert own == ["a", 7, "DB"]
    assert asked == [("a", 1, "DB"), ("a", 2, "DB"), ("b", 1, "DB"), ("a", 3, "DB")]
    assert [each.endswith(f"args=({x},)") for each, x in zip(said, "1213", strict=True)]
    assert later == [("a", 1), ("a", 2)]


def test_names_of_parameters_below_a_decorator():
    """Options name the parameters of a function whose decorator hands its arguments on."""

    def twice(function):
        @functools.wraps(function)
        def outer(*args, **kwargs):
            return [function(*args, **kwargs) for _ in range(2)]

        return outer

    class Counted:
        def __init__(self, function):
            functools.update_wrapper(self, function)

        def __call__(self, *args, **kwargs):
            return self.__wrapped__(*args, **kwargs)

    for decorator in (twice, Counted, functools.cache, tenacity.retry):
        asked = step(ignore=("client",))(decorator(lambda question, client=None: question))
        assert asked("a", 1) in ("a", ["a", "a"])
        with pytest.raises(ConfigurationError, match="above step"):
            step(ignore=("client",))(supplying(1)(decorator(_client)))


def _client(client, question):
    return client, question


def test_parameters_of_any_name():
    """Parameters may have the names that the library uses itself, ``self`` included.

    A function may have an attribute ``__self__``, as networkx's have, and is no method.
    """

    @step
    def odd(self, function, args, kwargs, scope, recorded=0):
        return self, function, args, kwargs, scope, recorded

    @workflow
    def flow(self, workflow, instance, args, kwargs, definition=0):
        names = {"self": self, "function": workflow, "args": instance, "kwargs": args}
        return odd(**names, scope=kwargs, recorded=definition)

    names = {"self": 1, "workflow": 2, "instance": 3, "args": 4, "kwargs": 5, "definition": 6}
    assert flow(**names) == flow.execute(**names).result == (1, 2, 3, 4, 5, 6)
    assert flow.run_id_for(**names) == flow.run_id_for(*names.values())

    @functools.wraps(_client)
    def outer(*args, more=None, **kwargs):
        return _client(*args, **kwargs)

    outer.__self__ = outer
    assert workflow(outer)(1, question=2) == (1, 2)


def test_coroutines_made_before():
    """What counts is where a coroutine is awaited, not where it is made."""
    later = step(_later)

    @workflow(key=())
    async def flow(made):
        return await made, recorded()

    async def main():
        return await flow(later(1)), await later(2)

    assert asyncio.run(main()) == ((1, ["_later"]), 2)


async def _later(x):
    return x


# -- outside of a run ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, RuntimeError, BaseException])
def test_any_exception_passes(kind):
    """Exceptions with a meaning of their own pass through a step, in a run and outside."""

    @step
    def fail():
        raise kind("x")

    @workflow(key=())
    def flow():
        try:
            fail()
        except kind as error:
            return type(error)

    with pytest.raises(kind):
        fail()
    assert flow() is kind


def test_plain_results():
    """Outside a run a result is the very object that was returned, and so is an exception.

    After a refused option the function is as it was.
    """
    made = object(), (n for n in range(3)), open(os.devnull)  # noqa: SIM115
    error, calls = ValueError("mine"), []

    def give(index):
        return made[index]

    with pytest.raises(ConfigurationError):
        step(retries=-1)(give)
    assert vars(give) == {}
    with made[2]:
        assert [step(give)(index) is each for index, each in enumerate(made)] == [True] * 3

    @step(retries=3, backoff=0)
    def fail():
        calls.append(1)
        raise error

    @tool(side_effect=True, timeout=10)
    async def afail():
        raise error

    for call in (fail, lambda: asyncio.run(afail())):
        with pytest.raises(ValueError, match="mine") as caught:
            call()
        assert caught.value is error
        assert (error.__cause__, error.__context__, vars(error)) == (None, None, {})
    assert calls == [1]


def test_a_tool_works_outside():
    """Outside a run ``current_step`` gives a new key at each call, and no run."""

    @tool(side_effect=True)
    def send():
        return stepwise.current_step()

    first, second = send(), send()
    assert first.idempotency_key != second.idempotency_key
    assert (first.run_id, first.attempt) == ("", 1)
    assert current_run() is None


QUIET = """
import asyncio, os, signal, sys, threading
handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
start = threading.Thread.start
import stepwise

@stepwise.step(retries=3)
def think(x):
    return x

@stepwise.tool(side_effect=True)
async def send(x):
    return x

@stepwise.workflow
def flow(x):
    return think(x)

class Agent:
    @stepwise.step
    def ask(self):
        return 1

    @stepwise.workflow
    def run(self):
        return 2

assert think(1) == asyncio.run(send(1)) == Agent().ask() == 1
flow.options(run_id="x"), repr(flow)
stepwise.configure(store="disk:" + os.environ["STEPWISE_HOME"] + "/other")
assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
assert (sys.excepthook, threading.excepthook, sys.unraisablehook) == hooks
assert threading.Thread.start is start
assert threading.active_count() == 1
assert not {"diskcache", "cloudpickle", "sqlite3", "tenacity", "numpy"} & sys.modules.keys()
flow.run_id_for(1), Agent().run.run_id_for()  # asks the store, if there is one
print("done")
"""


def test_nothing_happens_outside_a_run(tmp_path, home):
    """Importing, decorating and calling outside a run makes no file, thread, hook or output."""
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text(QUIET, "utf-8")
    done = interpreted(
        *["-B", "-X", "dev", "-W", "error"],
        script,
        cwd=script.parent,
        env={**os.environ, "STEPWISE_QUIET": "0"},
        code=None,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not home.exists()
    assert os.listdir(script.parent) == ["script.py"]
