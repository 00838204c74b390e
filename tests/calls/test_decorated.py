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
import subprocess
import sys
import threading
import traceback
import types
import typing
import unittest.mock
import weakref

import pydantic
import pytest

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
def test_name_and_docstring(decorate, function):
    """Name, docstring, module and signature are those of the function."""
    made = decorate(function)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        assert getattr(made, name) == getattr(function, name)
    assert inspect.signature(made) == inspect.signature(function)
    assert inspect.getdoc(made) == inspect.getdoc(function)
    assert made.__wrapped__ is function
    assert inspect.unwrap(made) is function


@EVERY
@pytest.mark.parametrize("function", [original, coroutine], ids=lambda f: f.__name__)
def test_type_hints(decorate, function):
    """Type hints are those of the function, and resolve where it was defined."""
    made = decorate(function)
    assert made.__annotations__ == function.__annotations__
    assert typing.get_type_hints(made) == typing.get_type_hints(function)


@EVERY
def test_source(decorate):
    """``inspect`` finds the function's own source, in its own file."""
    made = decorate(original)
    assert inspect.getsource(made) == inspect.getsource(original)
    assert inspect.getsourcelines(made)[1] == original.__code__.co_firstlineno


@EVERY
def test_coroutine_functions(decorate):
    """``iscoroutinefunction``, of ``inspect`` and ``asyncio``, says the same as of the function."""
    assert inspect.iscoroutinefunction(decorate(coroutine))
    assert not inspect.iscoroutinefunction(decorate(original))
    if sys.version_info < (3, 14):  # where it is deprecated
        assert asyncio.iscoroutinefunction(decorate(coroutine))
        assert not asyncio.iscoroutinefunction(decorate(original))
    bound = types.SimpleNamespace(f=decorate(coroutine))
    assert inspect.iscoroutinefunction(bound.f)


@pytest.mark.parametrize("decorator", [step, tool])
def test_real_functions(decorator):
    """What ``@step`` and ``@tool`` hand out is a real function, which SDKs insist on."""
    for function in (original, coroutine):
        assert inspect.isfunction(decorator(function))
        assert type(decorator(function)) is types.FunctionType


def test_workflow_objects():
    """A workflow says that it is a ``Workflow``, and shows its name."""
    made = workflow(original)
    assert made.__class__ is type(made) is Workflow
    assert isinstance(made, Workflow)
    assert not isinstance(made, types.FunctionType)
    assert callable(made)
    assert repr(made) == f"<workflow {__name__}:original>"
    assert made.full_name == f"{__name__}:original"


def test_printing_a_workflow():
    """``print(agent)`` shows what ``repr`` shows."""
    assert str(workflow(original)) == repr(workflow(original))


def test_completion_in_a_notebook():
    """``dir`` of a workflow, from which a notebook completes names, lists what it offers."""
    offered = {"execute", "options", "run_id_for", "full_name"}
    assert offered <= set(dir(workflow(original)))
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
    """A bound method has the name, docstring and signature of the method, without ``self``."""
    instance = Bound()
    bound, function = getattr(instance, name), inspect.unwrap(Bound.__dict__[name])
    assert bound.__name__ == name
    assert bound.__self__ is instance
    assert str(inspect.signature(bound)) == "(x)"
    assert bound.__doc__ == function.__doc__
    assert inspect.iscoroutinefunction(bound) == ("later" in name)


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

    @workflow
    def flow():
        return Lower(7).plain(1), Lower.of_class(2), recorded()

    value, of_class, names = flow()
    assert value == ("lower", (7, 1))
    assert of_class == ("lower", ("Lower", 2))
    assert names == ["Lower.plain", "Bound.plain", "Lower.of_class", "Bound.of_class"]
    label, inner, outer = Lower(7).flow(1)
    assert (label, inner[0]) == ("lower", ("lower", (7, 1)))
    assert inner[1] == ["Lower.plain", "Bound.plain"]
    assert outer == ["Bound.flow"]


def test_overridden_class_methods():
    """A class method's workflow calls the overridden one by ``super()``, of any class."""

    class Upper:
        @classmethod
        @workflow
        def flow(cls, x):
            return cls.__name__, x

    class Under(Upper):
        @classmethod
        @workflow
        def flow(cls, x):
            return "under", super().flow(x)

    assert Under.flow(1) == ("under", ("Under", 1))


def test_inherited_methods():
    """A method inherited by a subclass is recorded, and runs of the two classes are two."""

    class Other(Bound):
        pass

    assert Other(7).later_flow.run_id_for(1) != Bound(7).later_flow.run_id_for(1)
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


def test_methods_called_through_the_class():
    """``Class.method(instance, x)`` is the same call as ``instance.method(x)``."""
    instance = Bound(7)
    assert Bound.plain(instance, 1) == (7, 1)
    assert Bound.flow(instance, 1) == ((7, 1), ["Bound.plain"])
    assert Bound.flow.run_id_for(instance, 1) == instance.flow.run_id_for(1)


def test_equality():
    """A decorated function is equal to itself only, not to the raw function inside."""
    for made in (step(original), tool(original), workflow(original)):
        assert made == made
        assert not made == original  # noqa: SIM201
        assert hash(made) != hash(original)
        assert {original: "raw"}.get(made) is None
        assert made not in [original, None]
    assert not workflow(original) == workflow(original)  # noqa: SIM201


@EACH
def test_inequality(decorator):
    """``!=`` says the opposite of ``==``."""
    made = decorator(original)
    assert made != original
    assert not made != made  # noqa: SIM202


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "later",
        "flow",
    ],
)
def test_equality_of_bound_methods(name):
    """A method got twice from one instance is equal, so that a callback can be unregistered."""
    instance, other = Bound(), Bound()
    callbacks = [getattr(instance, name)]
    callbacks.remove(getattr(instance, name))
    assert callbacks == []
    assert getattr(instance, name) != getattr(other, name)
    assert len({getattr(instance, name), getattr(instance, name)}) == 1


# -- the standard library does with it what it does with functions -------------------------------


@EVERY
def test_copies(decorate):
    """A copy, deep or not, of a decorated function is the function itself."""
    made = decorate(original)
    assert copy.copy(made) is made
    assert copy.deepcopy(made) is made
    assert copy.deepcopy({"tools": [made]})["tools"][0] is made


def test_copies_of_instances():
    """The copy of an instance has its own bound methods, which are recorded."""
    instance = Bound([1])
    copied = copy.deepcopy(instance)
    copied.value.append(2)
    assert copied.flow(1) == (([1, 2], 1), ["Bound.plain"])
    assert instance.flow(1) == (([1], 1), ["Bound.plain"])


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "flow",
    ],
)
def test_deep_copies_of_bound_methods(name):
    """A bound method that is copied with its instance is bound to the copy."""
    instance = Bound([1])
    copied = copy.deepcopy({"agent": instance, "call": getattr(instance, name)})
    assert copied["call"].__self__ is copied["agent"]
    assert copied["agent"] is not instance


@EVERY
def test_weak_references(decorate):
    """A decorated function can be referred to weakly, and is freed when nothing else does."""

    def function(x):
        return x

    made = decorate(function)
    reference = weakref.ref(made)
    assert reference() is made
    assert weakref.WeakKeyDictionary({made: 1})[made] == 1


@EVERY
def test_partial(decorate):
    """``functools.partial`` of it calls it, and is recorded in a run."""
    made = functools.partial(decorate(_add), 1)

    @workflow
    def flow():
        return made(2), made(b=3), recorded()

    assert made(2) == 3
    assert flow() == (3, 4, ["_add", "_add"])


def _add(a, b=0):
    return a + b


def test_partial_methods():
    """``functools.partialmethod`` of a step calls it as a method."""

    class Agent:
        @step
        def add(self, a, b):
            return a + b

        add_one = functools.partialmethod(add, 1)

        @workflow
        def flow(self):
            return self.add_one(2), recorded()

    name = "Agent.add"
    assert Agent().flow() == (3, [name])


@step
def documented(x):
    """Twice.

    >>> documented(2)
    4
    """
    return 2 * x


@workflow(store="memory:")
def documented_workflow(x):
    """Twice, durably.

    >>> documented_workflow(3)
    6
    """
    return documented(x)


@pytest.mark.parametrize("function", [documented, documented_workflow], ids=["step", "workflow"])
def test_doctest(function):
    """``doctest`` finds the examples of a decorated function of a module, and they hold."""
    module = types.ModuleType("documented")
    module.__dict__.update({function.__name__: function, "__name__": __name__})
    finder = doctest.DocTestFinder(recurse=True)
    found = [test for test in finder.find(module, module=sys.modules[__name__]) if test.examples]
    assert [len(test.examples) for test in found] == [1]
    test = found[0]
    test.globs[function.__name__] = function
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

    @workflow
    def flow():
        odd = Odd()
        with odd as entered:
            pass
        return odd(4), entered, odd.size, recorded()

    *values, names = flow()
    assert values == [4, 3, 1]
    special = ["__init__", "__enter__", "__exit__", "__call__", "size"]
    assert names == [f"Odd.{name}" for name in special]


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

    @workflow(key=())
    def flow():
        return getattr(Agent(), name)(1), getattr(Agent(), name)(1)

    assert flow() == (1, 1)


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


def test_caches_keyed_by_function():
    """A cache keyed by function that has seen the raw one does not hand out that for the step."""

    @functools.lru_cache
    def schema(function):
        return function

    for decorator in DECORATORS.values():
        assert schema(original) is original
        made = decorator(original)
        assert schema(made) is made


def test_cached_steps():
    """A ``functools.lru_cache`` around a step asks it once, and it is recorded."""
    cached = functools.lru_cache(step(_add))

    @workflow
    def flow():
        return cached(1), cached(1), cached(2), recorded()

    assert flow() == (1, 1, 2, ["_add", "_add"])


@pytest.mark.parametrize("decorator", [step, tool])
def test_rebuilt_functions(decorator):
    """A function that an SDK rebuilds from ``__code__`` and ``__closure__`` is recorded still."""
    made = decorator(_add)
    rebuilt = types.FunctionType(
        made.__code__, made.__globals__, "another", made.__defaults__, made.__closure__
    )
    rebuilt.__kwdefaults__ = made.__kwdefaults__
    whole = types.FunctionType(
        made.__code__, dict(made.__globals__), "whole", made.__defaults__, made.__closure__
    )
    whole.__dict__.update(made.__dict__)

    @workflow
    def flow():
        return rebuilt(1, b=2), whole(3), recorded()

    assert flow() == (3, 3, ["_add", "_add"])


def test_schemas():
    """pydantic, from which SDKs make a tool's schema, sees names, types and defaults."""
    for decorator in (step, tool):

        @decorator
        def search(query: str, limit: int = 3) -> list[str]:
            return [query] * limit

        search.__annotations__.update(query=str, limit=int)
        schema = pydantic.TypeAdapter(search).json_schema()
        assert schema["properties"].keys() == {"query", "limit"}
        assert schema["required"] == ["query"]
        validated = pydantic.validate_call(search)

        @workflow
        def flow(validated=validated):
            return validated("a", limit="2"), recorded()

        assert flow.options(ignore="validated", fresh=True)() == (
            ["a", "a"],
            [search.__qualname__.rpartition(".")[2]],
        )


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


def test_mocks():
    """``unittest.mock`` specifies a mock by a step, with its signature, and by a workflow."""
    for decorator in DECORATORS.values():
        made = unittest.mock.create_autospec(decorator(_add), return_value=5)
        assert made(1, b=2) == 5
        if decorator is not workflow:
            with pytest.raises(TypeError):
                made(1, 2, 3)


@pytest.mark.parametrize("decorator", [step, tool])
def test_decorators_around(decorator):
    """A decorator of the user around a step or tool works, and the call is recorded."""

    def logged(function):
        @functools.wraps(function)
        def outer(*args, **kwargs):
            return "logged", function(*args, **kwargs)

        return outer

    made = logged(decorator(_add))

    @workflow
    def flow():
        return made(1), recorded()

    assert flow() == (("logged", 1), ["_add"])


def test_parameters_of_any_name():
    """Parameters may have the names that the library uses itself."""

    @step
    def odd(self, function, args, kwargs, scope, recorded=0):
        return self, function, args, kwargs, scope, recorded

    @workflow
    def flow(self, workflow, instance, args, kwargs, definition=0):
        names = {"self": self, "function": workflow, "args": instance, "kwargs": args}
        return odd(**names, scope=kwargs, recorded=definition)

    names = {"self": 1, "workflow": 2, "instance": 3, "args": 4, "kwargs": 5}
    assert flow(**names, definition=6) == (1, 2, 3, 4, 5, 6)


def test_a_parameter_named_self():
    """A workflow's parameter may be called ``self`` in ``execute`` and ``run_id_for``, too."""

    @workflow
    def flow(self):
        return self

    assert flow.execute(self=3).result == 3
    assert flow.run_id_for(self=3) == flow.run_id_for(3)


def test_recursion():
    """A step may call itself, and a workflow itself: each call is recorded in its caller."""

    @step
    def down(n):
        return [n, *down(n - 1)] if n else []

    @workflow
    def deeper(n):
        return [n, *deeper(n - 1)] if n else down(2)

    run = deeper.execute(2)
    assert run.result == [2, 1, 2, 1]
    child = stepwise.get_run(run.steps[0].child)
    grandchild = stepwise.get_run(child.steps[0].child)
    assert [each.name for each in grandchild.steps] == ["down", "down", "down"]


def test_coroutines_made_before():
    """What counts is where a coroutine is awaited, not where it is made."""

    @step
    async def later(x):
        return x

    @workflow(key=())
    async def flow(made):
        return await made, recorded()

    async def main():
        return await flow(later(1)), await later(2)

    assert asyncio.run(main()) == ((1, ["later"]), 2)


# -- outside of a run ----------------------------------------------------------------------------


def test_plain_exceptions():
    """Outside a run an exception is the very one that was raised, with nothing added."""
    error = ValueError("mine")

    @step(retries=3, backoff=0)
    def fail():
        calls.append(1)
        raise error

    @tool(side_effect=True, timeout=10)
    async def afail():
        raise error

    calls = []
    for call in (fail, lambda: asyncio.run(afail())):
        with pytest.raises(ValueError, match="mine") as caught:
            call()
        assert caught.value is error
        assert error.__cause__ is None
        assert error.__context__ is None
        assert not hasattr(error, "__notes__")
        assert vars(error) == {}
    assert calls == [1]


def test_plain_tracebacks():
    """A traceback ends in the user's line, with at most two lines of the library above it."""

    @step
    def fail():
        raise ValueError

    try:
        fail()
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
    assert frames[-1].name == "fail"
    assert frames[-1].line == "raise ValueError"
    assert len(frames) <= 4


def test_any_exception_passes():
    """Exceptions with a meaning of their own pass through a step, in a run and outside."""

    class Mine(BaseException):
        pass

    for kind in (StopIteration, StopAsyncIteration, RuntimeError, Mine, AssertionError):

        @step
        def fail(kind=kind):
            raise kind("x")

        @workflow(key=())
        def flow(fail=fail, kind=kind):
            try:
                fail()
            except kind as error:
                return type(error)

        with pytest.raises(kind):
            fail()
        assert flow.options(fresh=True)() is kind


def test_plain_results():
    """Outside a run a result is the very object that was returned, whatever it is."""
    made = object(), (n for n in range(3)), open(os.devnull)  # noqa: SIM115

    @step
    def give(index):
        return made[index]

    with made[2]:
        assert [give(index) is each for index, each in enumerate(made)] == [True] * 3


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
    done = subprocess.run(
        [sys.executable, "-B", "-X", "dev", "-W", "error", script],
        cwd=script.parent,
        env={**os.environ, "STEPWISE_QUIET": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not home.exists()
    assert os.listdir(script.parent) == ["script.py"]


def test_a_failed_decoration_leaves_nothing():
    """After a refused option the function is as it was, and can be decorated."""

    def function(a):
        return a

    before = dict(vars(function))
    with pytest.raises(ConfigurationError):
        step(retries=-1)(function)
    assert vars(function) == before
    assert step(function)(1) == 1
    assert vars(function) == before
