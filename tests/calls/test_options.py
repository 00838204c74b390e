"""Mistakes: what is no function, options that cannot mean anything, calls that do not fit."""

from __future__ import annotations

import concurrent.futures
import functools
import math
import threading

import pytest

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


@EACH
@pytest.mark.parametrize(
    "thing",
    [
        pytest.param(NotAFunction, id="class"),
        pytest.param(NotAFunction(), id="instance"),
        pytest.param(functools.partial(_add, 1), id="partial"),
        pytest.param(functools.partialmethod(_add, 1), id="partialmethod"),
        pytest.param(property(_add), id="property"),
        pytest.param(functools.cached_property(_add), id="cached_property"),
        pytest.param(3, id="number"),
        pytest.param("name", id="text"),
        pytest.param([_add], id="list"),
        pytest.param(int, id="type"),
    ],
)
def test_what_is_no_function(decorator, thing):
    """What is no function is refused when it is decorated, with a word on what it is.

    A step can be made of a partial or an instance that is called; a workflow cannot.
    """
    if decorator is not stepwise.workflow and isinstance(thing, (functools.partial, NotAFunction)):
        assert decorator(thing).__wrapped__.__wrapped__ is thing
        return
    for decorate in (decorator, decorator()):
        with pytest.raises(ConfigurationError, match=r"^@(step|tool|workflow) decorates a funct"):
            decorate(thing)


@pytest.mark.parametrize("builtin", [max, iter, dict.update], ids=lambda b: b.__name__)
@EACH
def test_builtins(decorator, builtin):
    """A built-in function without a signature is refused."""
    with pytest.raises(ConfigurationError, match="function"):
        decorator(builtin)


def test_builtins_with_a_signature():
    """A built-in function with a signature can be a step."""

    @workflow
    def flow():
        return step(len)("abc"), recorded()

    assert flow() == (3, ["len"])


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


@EACH
def test_lambdas(decorator):
    """A lambda can be decorated; in a run it is a step or a child run like another."""
    made = decorator(lambda x: 2 * x)

    @workflow
    def flow():
        return made(2), recorded()

    if decorator is workflow:
        with pytest.warns(stepwise.RunWarning, match="lambda"):
            assert flow()[0] == 4
    else:
        assert flow() == (4, ["<lambda>"])


@EACH
def test_decorating_nothing(decorator):
    """``None``, which a decorator that forgot its ``return`` leaves, is refused."""
    with pytest.raises(ConfigurationError, match="None"):
        decorator()(None)
    with pytest.raises(ConfigurationError, match="None"):
        decorator(None)


@pytest.mark.parametrize("decorator", [step, tool])
@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": "3"},
        {"retries": True},
        {"retries": 1.5},
        {"retry_on": 3},
        {"retry_on": [ValueError]},
        {"retry_on": ValueError("x")},
        {"retry_on": (ValueError, "x")},
        {"backoff": "1"},
        {"backoff": -1},
        {"backoff": math.nan},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "3s"},
        {"timeout": True},
        {"timeout": math.nan},
        {"timeout": math.inf},
        {"timeout": 1e12},
        {"key": ["c"]},
        {"key": "c"},
        {"ignore": "c"},
        {"ignore": ["a", "c"]},
        {"ignore": [3]},
        {"backoff": math.inf},
        {"key": 3},
        {"ignore": 3},
        {"ignore": None},
        {"name": 3},
        {"name": ""},
        {"name": " "},
        {"name": "a\0b"},
        {"executor": 3},
        {"executor": "dask"},
        {"executor": threading.Thread},
        {"resources": 3, "executor": "ray"},
        {"resources": {1: 1}, "executor": "ray"},
        {"retrys": 3},
        {"checkpoint_every": 3},
    ],
    ids=str,
)
def test_options_of_steps(decorator, options):
    """An option that cannot mean anything is refused where it is given, by name and value."""
    name, value = next(iter(options.items()))
    with pytest.raises(ConfigurationError) as caught:
        decorator(**options)(_add)
    shown = repr([value] if name in ("key", "ignore") and isinstance(value, str) else value)
    assert f"{name}={shown}" in str(caught.value) or f"{name!r}" in str(caught.value)
    assert len(str(caught.value)) > len(f"{name}={shown}") + 10


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


@pytest.mark.parametrize(
    "options",
    [
        {"in_doubt": "maybe"},
        {"in_doubt": None},
        {"in_doubt": ["retry"]},
        {"fails_cleanly": 3},
        {"fails_cleanly": [ValueError]},
        {"fails_cleanly": (ValueError, 3)},
        {"fails_cleanly": ValueError("x")},
        {"side_effect": "yes"},
        {"idempotent": "yes"},
        {"compensate": "undo"},
    ],
    ids=str,
)
def test_options_of_tools(options):
    """An option of a side effect that cannot mean anything is refused where it is given."""
    name = next(iter(options))
    with pytest.raises(ConfigurationError, match=name):
        tool(**{"side_effect": True, **options})(_add)


@pytest.mark.parametrize("name", ["in_doubt", "fails_cleanly", "idempotent"])
def test_options_that_need_side_effects(name):
    """An option that says what is done about a side effect needs one, and the error shows it."""
    values = {"in_doubt": "retry", "fails_cleanly": ValueError, "idempotent": True}
    with pytest.raises(ConfigurationError, match=rf"@tool\(side_effect=True, {name}=\.\.\.\)"):
        tool(**{name: values[name]})(_add)


def test_retries_that_never_apply():
    """``retries`` of a side effect without ``idempotent`` or ``fails_cleanly`` is refused."""
    with pytest.raises(ConfigurationError, match="idempotent"):
        tool(side_effect=True, retries=3)(_add)


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_every": 0},
        {"checkpoint_every": "3"},
        {"checkpoint_every": True},
        {"keep": 0},
        {"retention": "none"},
        {"durability": "none"},
        {"durability": True},
        {"store": 3},
        {"store": b"/tmp"},
        {"name": ""},
        {"name": 3},
        {"run_id": ""},
        {"run_id": " "},
        {"run_id": 3},
        {"run_id": "a\0b"},
        {"key": "c"},
        {"ignore": ["c"]},
        {"progress": 3},
        {"retries": 3},
        {"key": 3},
        {"ignore": 3},
        {"ignore": None},
        {"fresh": "no"},
        {"prune_journal": "no"},
    ],
    ids=str,
)
def test_options_of_workflows(options):
    """A workflow's option that cannot mean anything is refused where it is given."""
    name, value = next(iter(options.items()))
    shown = repr([value] if name in ("key", "ignore") and isinstance(value, str) else value)
    for decorate in (workflow(_add).options, lambda **options: workflow(**options)(_add)):
        with pytest.raises(ConfigurationError) as caught:
            decorate(**options)
        assert f"{name}={shown}" in str(caught.value) or f"{name!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("decorate", "said"),
    [
        (step(retrys=3), r"@step of '_add' has no option 'retrys': did you mean 'retries'\?"),
        (step(retry=3), r"did you mean 'retries'\?"),
        (tool(sideeffect=True), "did you mean 'side_effect'"),
        (workflow(checkpoint_evry=3), "@workflow of '_add' .* did you mean 'checkpoint_every'"),
        (lambda f: workflow(f).options(zzz=1), "'zzz'; its options are budget, checkpoint_every, "),
        (step(side_effect=True), "@step of '_add' has no option 'side_effect', .* to @tool"),
        (workflow(retries=3), "'retries', which belongs to @step"),
        (
            step(backof=3),
            "its options are .*, redact, resources, retries, .*, secret, timeout",
        ),
    ],
    ids=["step", "retry", "tool", "workflow", "options", "of tools", "of steps", "list"],
)
def test_options_that_there_are_not(decorate, said):
    """The message names the option that was meant, or the decorator that has it."""
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
    """A call that does not fit the signature is a ``TypeError``, in a run and outside, at once."""
    made = decorator(_add)

    @workflow
    def flow(*args, **kwargs):
        return made(*args, **kwargs)

    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"c": 3}), ((1,), {"a": 1})):
        for call in (made, flow.options(fresh=True)):
            with pytest.raises(TypeError, match=r"argument"):
                call(*args, **kwargs)


@EACH
def test_calls_that_do_not_fit_are_named(decorator):
    """In a run as outside, the message names the function that was called wrongly."""
    made = decorator(_add)

    @workflow
    def flow():
        return made()

    with pytest.raises(TypeError, match="_add"):
        flow()
