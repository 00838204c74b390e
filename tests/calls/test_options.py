"""Mistakes: what is no function, options that cannot mean anything, calls that do not fit."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import decimal
import functools
import math
import threading

import pytest
from flows import flow_of

import stepwise
from stepwise import ConfigurationError, Workflow, current_run, step, tool, workflow
from stepwise._calls.steps import SentStep, step_of

DECORATORS = {"step": step, "tool": tool, "workflow": workflow}
EACH = pytest.mark.parametrize("decorator", DECORATORS.values(), ids=DECORATORS)


@pytest.fixture(autouse=True)
def _memory(home):
    """Runs are kept in memory."""
    stepwise.configure(store=f"memory:{home}")


def recorded():
    """The names of what the current run has recorded."""
    return [each.name for each in current_run().steps]


def _add(a, b=0):
    return a + b


async def _later(a):
    return a


def generator():
    yield 1


async def async_generator():
    yield 1


class NotAFunction:
    def __call__(self):
        return 1

    def method(self):
        return 1


NO_FUNCTIONS = {
    "class": NotAFunction,
    "instance": NotAFunction(),
    "partial": functools.partial(_add, 1),
    "partialmethod": functools.partialmethod(_add, 1),
    "property": property(_add),
    "cached_property": functools.cached_property(_add),
    "number": 3,
    "text": "name",
    "list": [_add],
    "type": int,
    "nothing": None,  # which a decorator that forgot its ``return`` leaves
}
WAYS_OUT = {
    "class": "decorate its methods",
    "property": "@property above @",
    "number": "options have names",
    "text": "name='name'",
    "type": "decorate its methods",
}


@EACH
@pytest.mark.parametrize("what", NO_FUNCTIONS)
def test_what_is_no_function(decorator, what):
    """What is no function is refused when it is decorated, with a word on what it is.

    A step can be made of a partial or an instance that is called; a workflow cannot.
    """
    thing = NO_FUNCTIONS[what]
    if decorator is not stepwise.workflow and isinstance(thing, (functools.partial, NotAFunction)):
        assert decorator(thing).__wrapped__.__wrapped__ is thing
        return
    said = "None" if thing is None else r"^@(step|tool|workflow) decorates a funct"
    for decorate in (decorator, decorator()):
        with pytest.raises(ConfigurationError, match=said) as caught:
            decorate(thing)
        assert WAYS_OUT.get(what, "") in str(caught.value)


@EACH
def test_builtins(decorator):
    """A built-in function can be a step if it has a signature."""
    for builtin in (max, iter, dict.update):
        with pytest.raises(ConfigurationError, match="function"):
            decorator(builtin)
    assert flow_of(lambda: (step(len)("abc"), recorded()))() == (3, ["len"])


@pytest.mark.parametrize("decorator", [step, tool])
@pytest.mark.parametrize("function", [generator, async_generator], ids=lambda f: f.__name__)
def test_generators(decorator, function):
    """A generator function is refused as a step, and told what to do instead."""
    with pytest.raises(ConfigurationError, match=r"generator function.*return a list.*@workflow"):
        decorator(function)
    assert isinstance(workflow(function), Workflow)


@EACH
@pytest.mark.parametrize("inner", DECORATORS.values(), ids=DECORATORS)
def test_decorating_twice(decorator, inner):
    """One decorator is enough, and the message says so; class and static methods too."""
    for again in (
        inner(_add),
        inner()(_add),
        classmethod(inner(_add)),
        staticmethod(inner(_add)),
    ):
        for decorate in (decorator, decorator()):
            with pytest.raises(ConfigurationError, match="'_add' is a step or workflow already"):
                decorate(again)
    if inner is not workflow:
        way = "write a function that calls it" if decorator is workflow else "workflow already"
        with pytest.raises(ConfigurationError, match=way):
            decorator(functools.partial(inner(_add), 1))


@EACH
def test_lambdas(decorator):
    """A lambda can be decorated; in a run it is a step or a child run like another."""
    made = decorator(lambda x: 2 * x)
    flow = flow_of(lambda: (made(2), recorded()))
    if decorator is workflow:
        with pytest.warns(stepwise.RunWarning, match="lambda"):
            assert flow()[0] == 4
    else:
        assert flow() == (4, ["<lambda>"])


def refused(decorate, name, value):
    """Refuse an option where it is given, with its name and value."""
    with pytest.raises(ConfigurationError) as caught:
        decorate(**{name: value})
    shown = repr([value] if name in ("key", "ignore") and isinstance(value, str) else value)
    assert f"{name}={shown}" in str(caught.value) or f"{name!r}" in str(caught.value)
    assert len(str(caught.value)) > len(f"{name}={shown}") + 10


OF_STEPS = {
    "retries": [-1, "3", True, False, 1.5, None, (1,)],
    "retry_on": [
        *(3, None, "ValueError", [ValueError], {KeyError}, ValueError("x"), int),
        *((ValueError, "x"), (ValueError, len)),
    ],
    "backoff": [
        *("1", -1, -0.5, True, [1], (1, 2), math.nan, math.inf),
        *(dt.timedelta(seconds=1), decimal.Decimal(1)),
    ],
    "timeout": [0, -1, "3s", True, math.nan, math.inf, 1e12],
    "key": [["c"], "c", 3],
    "ignore": ["c", ["a", "c"], [3], 3, None],
    "name": [3, "", " ", "a\0b"],
    "executor": [3, "dask", threading.Thread],
    "resources": [3, {1: 1}],
    "retrys": [3],
    "checkpoint_every": [3],
}


@pytest.mark.parametrize("decorator", [step, tool])
@pytest.mark.parametrize("name", OF_STEPS)
def test_options_of_steps(decorator, name):
    """An option that cannot mean anything is refused where it is given, by name and value."""
    more = {"executor": "ray"} if name == "resources" else {}
    for value in OF_STEPS[name]:
        refused(lambda **options: decorator(**options, **more)(_add), name, value)


def test_executors_of_steps():
    """An executor is an object or a known name; resources belong to a name; awaitables stay."""
    with pytest.raises(ConfigurationError, match=r"executor='dask' of step '_add': .*: 'ray'$"):
        step(executor="dask")(_add)
    with pytest.raises(ConfigurationError, match=r"@tool\(executor='ray', resources=\.\.\.\)"):
        tool(resources={"num_gpus": 1})(_add)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with pytest.raises(ConfigurationError, match="ThreadPoolExecutor was made with its own"):
            step(executor=pool, resources={"num_gpus": 1})(_add)
        with pytest.raises(ConfigurationError, match=r"returns an awaitable.*write an `async def`"):
            step(executor=pool)(functools.partial(_later, 1))
        decorate = step(executor=pool)
        assert {type(step_of(decorate(each))) for each in (_add, _later)} == {SentStep}
    assert type(step_of(step(executor=None, resources=None)(_add))) is not SentStep


def test_the_longest_timeout(monkeypatch):
    """The longest time that the system can wait is a timeout like any other."""
    waited, wait = threading.Event(), threading.Condition.wait

    def waiting(condition, timeout=None):
        if timeout == threading.TIMEOUT_MAX:
            waited.set()
        return wait(condition, timeout)

    @step(timeout=threading.TIMEOUT_MAX)
    def slow():
        return waited.wait(300)

    @workflow
    def flow():
        return slow()

    monkeypatch.setattr(threading.Condition, "wait", waiting)
    assert flow()


OF_TOOLS = {
    "in_doubt": ["maybe", None, ["retry"]],
    "fails_cleanly": [3, [ValueError], (ValueError, 3), ValueError("x")],
    "side_effect": ["yes"],
    "idempotent": ["yes"],
    "compensate": ["undo"],
}


@pytest.mark.parametrize("name", OF_TOOLS)
def test_options_of_tools(name):
    """An option of a side effect that cannot mean anything is refused where it is given."""
    for value in OF_TOOLS[name]:
        with pytest.raises(ConfigurationError, match=name):
            tool(**{"side_effect": True, name: value})(_add)


def test_options_that_need_side_effects():
    """An option that says what is done about a side effect needs one, and the error shows it."""
    values = {"in_doubt": "retry", "fails_cleanly": ValueError, "idempotent": True}
    for name, value in values.items():
        with pytest.raises(ConfigurationError, match=rf"@tool\(side_effect=True, {name}=\.\.\.\)"):
            tool(**{name: value})(_add)


def test_retries_that_never_apply():
    """``retries`` of a side effect without ``idempotent`` or ``fails_cleanly`` is refused."""
    with pytest.raises(ConfigurationError, match="idempotent"):
        tool(side_effect=True, retries=3)(_add)


OF_WORKFLOWS = {
    "checkpoint_every": [0, "3", True],
    "keep": [0],
    "retention": ["none"],
    "durability": ["none", True],
    "store": [3, b"/tmp"],
    "name": ["", 3],
    "run_id": ["", " ", 3, "a\0b"],
    "key": ["c", 3],
    "ignore": [["c"], 3, None],
    "progress": [3],
    "retries": [3],
    "fresh": ["no"],
    "prune_journal": ["no"],
    "timeout": [0, -1, "10", True],
}


@pytest.mark.parametrize("name", OF_WORKFLOWS)
def test_options_of_workflows(name):
    """A workflow's option that cannot mean anything is refused where it is given."""
    for value in OF_WORKFLOWS[name]:
        refused(workflow(_add).options, name, value)
        refused(lambda **options: workflow(**options)(_add), name, value)


MEANT = {
    "step": (step(retrys=3), r"@step of '_add' has no option 'retrys': did you mean 'retries'\?"),
    "retry": (step(retry=3), r"did you mean 'retries'\?"),
    "tool": (tool(sideeffect=True), "did you mean 'side_effect'"),
    "workflow": (
        workflow(checkpoint_evry=3),
        "@workflow of '_add' .* did you mean 'checkpoint_every'",
    ),
    "options": (
        lambda f: workflow(f).options(zzz=1),
        "'zzz'; its options are arguments, budget, checkpoint_every, ",
    ),
    "of tools": (
        step(side_effect=True),
        "@step of '_add' has no option 'side_effect', .* to @tool",
    ),
    "of steps": (workflow(retries=3), "'retries', which belongs to @step"),
    "list": (step(backof=3), "its options are .*, redact, resources, retries, .*, secret, timeout"),
}


@pytest.mark.parametrize("what", MEANT)
def test_options_that_there_are_not(what):
    """The message names the option that was meant, or the decorator that has it."""
    decorate, said = MEANT[what]
    with pytest.raises(ConfigurationError, match=said):
        decorate(_add)


@pytest.mark.parametrize("url", ["mysql://host/db", "redis:x", "disk:", ""])
def test_stores_that_there_are_not(url):
    """A store that there is not is refused at the first call, and told what there is."""
    flow = workflow(store=url)(_add)
    with pytest.raises(ConfigurationError, match="disk:/path"):
        flow(1)


def test_positional_options():
    """Options are given by name; a second positional argument is refused by Python itself."""
    for decorator in DECORATORS.values():
        with pytest.raises(TypeError, match="positional argument"):
            decorator(_add, 3)
    with pytest.raises(TypeError, match="positional argument"):
        workflow(_add).options("run")


def test_options_make_a_copy():
    """``options`` hands out another workflow and leaves the first as it is."""
    first = workflow(keep=5)(_add)
    second = first.options(run_id="x").options(keep=7)
    assert first.definition.options == first.options().definition.options
    assert (first.definition.options.run_id, first.definition.options.keep) == (None, 5)
    assert (second.definition.options.run_id, second.definition.options.keep) == ("x", 7)
    assert second.options(run_id=None).run_id_for(1) == first.run_id_for(1)
    assert second.run_id_for(1) == "x"


@EACH
def test_calls_that_do_not_fit(decorator):
    """A call that does not fit is a ``TypeError`` that names the function, wherever it is made."""
    made = decorator(_add)

    @workflow
    def flow(*args, **kwargs):
        return made(*args, **kwargs)

    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"c": 3}), ((1,), {"a": 1})):
        for call in (made, flow.options(fresh=True)):
            with pytest.raises(TypeError, match=r"_add.*argument"):
                call(*args, **kwargs)
