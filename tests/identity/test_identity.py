"""The identity of calls and of runs: which calls are the same call, which starts the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import types
import typing
from typing import Any, NamedTuple

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwise
from examples import sweep
from stepwise import configure
from stepwise._identity.call_parts import CallParts
from stepwise._identity.identity import (
    Parameters,
    child_id,
    derived_id,
    idempotency_key,
    random_id,
)
from stepwise._runtime import settings
from stepwise.errors import ConfigurationError, DigestError

LOCK = threading.Lock()


def instance_digest(instance):
    """The digest of an instance in a run's identity, and what in it has none."""

    def function(self): ...

    known, call = Parameters(function, what="workflow 'function'"), ((instance,), {})
    parts = CallParts(known, function, {}, {}, call, instance)
    return parts.instance, parts.by_class()


def parameters(function, **options):
    return Parameters(function, what=f"step {function.__name__!r}", **options)


def digest(function, *args, **kwargs):
    """The digest of a call, with the options that ``function.options`` holds."""
    known = parameters(function, **getattr(function, "options", {}))
    return known.digest(known.bind(args, kwargs), (args, kwargs))


def plain(a, b=1):
    pass


# -- binding ---------------------------------------------------------------------------------------


def test_forms_of_one_call():
    """However its arguments are passed, a call is the same call."""
    one = {
        digest(plain, 1, 2),
        digest(plain, 1, b=2),
        digest(plain, b=2, a=1),
        digest(plain, a=1, b=2),
    }
    assert len(one) == 1
    assert one != {digest(plain, 2, 1)}


def test_defaults():
    """An argument equal to its default is left out, whether it was passed or not."""
    assert digest(plain, 5) == digest(plain, 5, 1) == digest(plain, a=5, b=1)
    assert digest(plain, 5) != digest(plain, 5, 2)


def test_defaults_by_value():
    """An argument that is equal to its default, and another object, is left out as well."""

    def function(a, b=({"x": [1]}, "text"), c=0.0):
        pass

    assert digest(function, 5) == digest(function, 5, ({"x": [1]}, "text"), -0.0)
    assert digest(function, 5) != digest(function, 5, ({"x": [2]}, "text"))


def test_a_parameter_that_is_added():
    """A new parameter with a default keeps the digests of the calls that were recorded without."""

    def before(a):
        pass

    def after(a, b=(1, 2), *, c=None, **more):
        pass

    assert digest(before, 1) == digest(after, 1) == digest(after, 1, (1, 2), c=None)
    assert len({digest(after, 1), digest(after, 1, (1,)), digest(after, 1, c=0)}) == 3


def test_parameters_in_another_order():
    """Parameters that change places, with names unchanged, keep the digests of named arguments."""

    def before(a, b):
        pass

    def after(b, a):
        pass

    assert digest(before, 1, 2) == digest(after, 2, 1) == digest(after, a=1, b=2)


def test_defaults_of_another_type():
    """What is equal to a default only across types is another argument."""
    assert digest(plain, 5, True) != digest(plain, 5)
    assert digest(plain, 5, 1.0) != digest(plain, 5)


def test_defaults_without_a_digest():
    """A default that has no digest is left out when it is the argument; another object is not."""

    def function(a, client=LOCK):
        pass

    assert digest(function, 1) == digest(function, 1, LOCK)
    assert digest(function, 1, "another") != digest(function, 1)
    assert digest(function, 1, threading.Lock()) != digest(function, 1)


def test_a_client_as_an_argument():
    """A client counts by its class there where it stands, and with ``ignore=`` not at all."""

    def function(question, client):
        pass

    other = threading.Lock()
    assert digest(function, "tides", LOCK) == digest(function, "tides", other)
    assert digest(function, "tides", LOCK) != digest(function, "winds", LOCK)
    assert digest(function, "tides", LOCK) != digest(function, "tides", [LOCK])
    ignoring = with_options(function, ignore=("client",))
    assert digest(ignoring, "tides", LOCK) == digest(ignoring, "tides", None)


class Bank:
    def __init__(self, account, calls=0, lock=None):
        self.account, self.calls, self.lock = account, calls, lock


def test_declared_fields_of_an_argument():
    """An argument counts by the fields that are declared for its class, whatever else it holds."""
    stepwise.identity(Bank, fields=["account"])
    first = digest(three, 1, [Bank("a")])
    assert first == digest(three, 1, [Bank("a", calls=2)]) != digest(three, 1, [Bank("b")])
    assert digest(three, 1, [Bank("a", lock=LOCK)]) == first


def test_names_count():
    """The same value under another name is another call."""

    def function(a=0, b=0, **more):
        pass

    calls = [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"c": 1}, {"d": 1}, {"c": 1, "d": 1}, {}]
    assert len({digest(function, **call) for call in calls}) == len(calls)


def odd(a, /, b, *rest, c=3, **more):
    pass


def test_all_kinds_of_parameters():
    """Positional-only, variable and keyword-only parameters are bound as Python binds them."""
    known = parameters(odd)
    bound = known.bind((1, 2, 3, 4), {"c": 5, "a": 6, "z": 7})
    assert bound == {"a": 1, "b": 2, "rest": (3, 4), "c": 5, "more": {"a": 6, "z": 7}}
    assert known.first == "a"
    assert digest(odd, 1, 2, c=3) == digest(odd, 1, b=2)
    assert digest(odd, 1, 2, x=1, y=2) == digest(odd, 1, 2, y=2, x=1)
    calls = [
        *(
            ((1, 2), {}),
            ((1, 2, 3), {}),
            ((1, 2, 3, 4), {}),
            ((1, 2, (3, 4)), {}),
            ((1, 2), {"c": 4}),
        ),
        *(((1, 2), {"x": 1}), ((1, 2), {"a": 1}), ((1, 2), {"rest": (3,)}), ((1, 2), {"more": {}})),
    ]
    assert len({digest(odd, *args, **kwargs) for args, kwargs in calls}) == len(calls)


def test_arguments_named_like_the_variable_ones():
    """An extra argument that is named like ``**kwargs`` itself is not taken for all of them."""

    def function(a, **kwargs):
        pass

    assert digest(function, 1, kwargs={"x": 1}) != digest(function, 1, x=1)


@sweep
@given(
    st.lists(st.integers(0, 2), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c", "rest", "more", "z"]), st.integers(0, 2)),
)
@pytest.mark.parametrize("function", [plain, odd], ids=["plain", "odd"])
def test_binding_is_that_of_python(function, args, kwargs):
    """A call is bound as ``inspect`` binds it, or refused with a TypeError as Python refuses it."""
    known = parameters(function)
    try:
        function(*args, **kwargs)
    except TypeError:
        with contextlib.suppress(TypeError):  # Python 3.13.0 binds what it then refuses to call
            inspect.signature(function).bind(*args, **kwargs)
            return
        with pytest.raises(TypeError):
            known.bind(tuple(args), kwargs)
        return
    expected = inspect.signature(function).bind(*args, **kwargs).arguments
    assert known.bind(tuple(args), kwargs) == dict(expected)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "'a'"),
        ((1, 2, 3), {}, "too many positional"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
    ],
)
def test_mistaken_arguments(args, kwargs, said):
    """A call that does not fit the signature raises a TypeError that says why."""
    with pytest.raises(TypeError, match=said) as caught:
        parameters(plain).bind(args, kwargs)
    assert type(caught.value) is TypeError


def test_functions_without_parameters():
    """A function without parameters has one call, and no first parameter."""

    def function():
        pass

    assert digest(function) == digest(function)
    assert parameters(function).first is None


def test_wrapped_functions():
    """The parameters of a function under ``functools.wraps`` are those of the inner function."""

    @functools.wraps(plain)
    def wrapper(*args, **kwargs):
        return plain(*args, **kwargs)

    assert digest(wrapper, 1, 2) == digest(plain, b=2, a=1)


def test_other_processes():
    """Another process, with another hash seed, finds the same digests and run ids."""
    code = textwrap.dedent(
        """
        import json
        from stepwise._identity.identity import *
        def think(messages, tags=frozenset(), **more): pass
        known = Parameters(think, what="step")
        args = ([{"role": "user", "content": "hi"}],)
        kwargs = {"tags": {"b", "a", "c"}, "z": 1, "y": 2}
        digest = known.digest(known.bind(args, kwargs), (args, kwargs))
        run_id = derived_id("m:think", "think", digest)
        print(json.dumps([digest, run_id, idempotency_key("r", "think", digest, 1)]))
        """
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(json.loads(said.pop())) == 3


# -- key= and ignore= ------------------------------------------------------------------------------


def with_options(function, **options):
    """A copy of the function, whose calls :func:`digest` tells apart with these options."""
    copied: Any = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copied.__defaults__, copied.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    copied.options = options
    return copied


def three(to, body, at=0):
    pass


@pytest.mark.parametrize("ignore", [("at",), ["at"], {"at"}, "at"], ids=repr)
def test_ignored_parameters(ignore):
    """An ignored parameter does not tell calls apart, and need not have a digest."""
    function = with_options(three, ignore=ignore)
    assert digest(function, 1, 2, 3) == digest(function, 1, 2, at=4) == digest(function, 1, 2, LOCK)
    assert digest(function, 1, 3) != digest(function, 1, 2)


@pytest.mark.parametrize(
    "key", [("to", "body"), ["body", "to"], dict.fromkeys(["to", "body"])], ids=repr
)
def test_keys_by_name(key):
    """Only the parameters that ``key`` names tell calls apart, in whatever order it names them."""
    function = with_options(three, key=key)
    assert digest(function, 1, 2, 3) == digest(function, at=LOCK, body=2, to=1)
    assert len({digest(function, 1, 2), digest(function, 2, 2), digest(function, 1, 1)}) == 3
    assert digest(with_options(three, key="to"), 1, 2) == digest(
        with_options(three, key="to"), 1, 9
    )


def test_no_keys():
    """With an empty ``key``, all calls are one."""
    assert digest(with_options(three, key=()), 1, 2) == digest(with_options(three, key=()), 3, 4)


def test_keys_as_a_function():
    """A ``key`` function gets the arguments; what it returns tells calls apart."""
    seen = []

    def key(to, body, at=0):
        seen.append((to, body, at))
        return to.lower()

    function = with_options(three, key=key)
    assert digest(function, "Ann", 1, 2) == digest(function, at=LOCK, to="ANN", body=3)
    assert digest(function, "Ann", 1) != digest(function, "Bob", 1)
    assert seen[:2] == [("Ann", 1, 2), ("ANN", 3, LOCK)]


def test_keys_as_a_function_that_raises():
    """What a ``key`` function raises reaches the caller as it is."""

    def key(*args, **kwargs):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        digest(with_options(three, key=key), 1, 2)


def test_keys_without_a_digest():
    """The error for a key that has no digest names the step, and says that it is the key."""
    function = with_options(three, key=lambda *args: {"lock": LOCK})
    with pytest.raises(DigestError, match="lock") as caught:
        digest(function, 1, 2)
    assert "key" in str(caught.value)
    assert "'three'" in str(caught.value)


@pytest.mark.parametrize("option", ["key", "ignore"])
@pytest.mark.parametrize("names", [("body", "bdoy"), "bdoy", ["bdoy"]], ids=str)
def test_unknown_names(option, names):
    """A name that is no parameter is refused, with the option, the step and the parameters."""
    with pytest.raises(ConfigurationError) as caught:
        parameters(three, **{option: names})
    said = str(caught.value)
    assert f"{option}=" in said
    assert "step 'three'" in said
    assert "no parameter 'bdoy'" in said
    assert "['at', 'body', 'to']" in said


@pytest.mark.parametrize("option", ["key", "ignore"])
@pytest.mark.parametrize("names", [5, 1.5, True, [1], [1, "to"], ["to", None]], ids=str)
def test_options_that_are_no_names(option, names):
    """What is neither a name, names nor a function is refused as a setting, not as a TypeError."""
    with pytest.raises(ConfigurationError, match=f"{option}="):
        parameters(three, **{option: names})


# -- what has no digest ----------------------------------------------------------------------------


def test_arguments_that_a_call_uses_up():
    """The error for an iterator names step, argument, path and type, and the two ways out."""
    rows = (each for each in range(3))
    with pytest.raises(DigestError) as caught:
        digest(three, 1, {"rows": [rows]})
    said = str(caught.value)
    assert said.startswith("argument 'body' of step 'three': ")
    assert "(at body['rows'][0])" in said
    assert "ignore=('body',)" in said
    assert "key=" in said
    assert caught.value.path == "body['rows'][0]"
    assert caught.value.type_name == "generator"
    for path, args, kwargs in (
        ("to", (rows, 1), {}),
        ("rest[1]", (1, 2, 3, rows), {}),
        ("more['rows']", (1, 2), {"rows": rows}),
    ):
        with pytest.raises(DigestError) as caught:
            digest(three if path == "to" else odd, *args, **kwargs)
        assert caught.value.path == path


def test_data_without_a_digest_is_an_error():
    """An array of a special kind, or a value nested without end, has no class to stand for it."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, np.ma.masked_array([1, 2], mask=[0, 1])):
        with pytest.raises(DigestError, match="argument 'body'"):
            digest(three, 1, [value, LOCK])


def test_functions_without_a_name_as_arguments():
    """A lambda or an inner function counts by its code, its defaults and what it captured."""

    def made(number, *, twice):
        if twice:

            def inner(x):
                return x * number * 2
        else:

            def inner(x):
                return x * number

        return inner

    functions = [made(1, twice=True), made(2, twice=True), made(1, twice=False), lambda x: x]
    found = [digest(three, 1, each) for each in functions]
    assert len(set(found)) == len(functions)
    assert digest(three, 1, made(1, twice=True)) == found[0]


# -- what a framework injects ----------------------------------------------------------------------

T = typing.TypeVar("T")


def generic(name, module):
    return types.new_class(name, (typing.Generic[T],), {}, lambda ns: ns.update(__module__=module))


class Session:
    def __init__(self):
        self.lock = LOCK


def session_user(a: Session, b: int):
    pass


MODULES = {
    "pydantic_ai": {"RunContext": generic("RunContext", "pydantic_ai._run_context")},
    "agents": {
        "RunContextWrapper": generic("RunContextWrapper", "agents.run_context"),
        "ToolContext": generic("ToolContext", "agents.tool_context"),
    },
    "langchain_core": {
        "RunnableConfig": generic("RunnableConfig", "langchain_core.runnables.config")
    },
    "langgraph": {"InjectedState": generic("InjectedState", "langgraph.prebuilt")},
    "mcp": {"Context": generic("Context", "mcp.server")},
    "mine": {
        "RunContext": generic("RunContext", "mine"),  # a class of the user's own
        "Context": generic("Context", "mine"),
        "Session": generic("Session", "mine.web"),
    },
}


@pytest.fixture
def frameworks(monkeypatch):
    """The frameworks, as modules that can be imported."""
    for name, classes in MODULES.items():
        module = types.ModuleType(name)
        module.__dict__.update(classes)
        monkeypatch.setitem(sys.modules, name, module)


def left_out(source, name="function", **namespace):
    """The parameters of a function, given as source, that do not tell its calls apart."""
    # Not plain exec: it would take over this module's own future import.
    exec(compile(textwrap.dedent(source), "<source>", "exec", dont_inherit=True), namespace)
    function = namespace[name]
    known = parameters(function)
    names = list(inspect.signature(function).parameters)
    quiet = set()
    for one in names:
        calls = [{**dict.fromkeys(names, 0), one: value} for value in (1, 2)]
        if len({known.digest(known.bind((), call), ((), call)) for call in calls}) == 1:
            quiet.add(one)
    return quiet


LATER = "from __future__ import annotations\n"  # annotations are strings
IMPORTS = """
from typing import *
from pydantic_ai import RunContext
from agents import RunContextWrapper, ToolContext
from langchain_core import RunnableConfig
from langgraph import InjectedState
import pydantic_ai, mcp, mine
"""


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("later", ["", LATER], ids=["objects", "strings"])
@pytest.mark.parametrize(
    "annotation",
    [
        "RunContext",
        "RunContext[int]",
        "RunContextWrapper[dict[str, Any]]",
        "ToolContext",
        "RunnableConfig",
        "Optional[RunnableConfig]",
        "RunnableConfig | None",
        "Union[None, RunContext[int]]",
        "Annotated[dict, InjectedState]",
        "Annotated[dict, InjectedState()]",
        "Annotated[RunContext[int], 'docs']",
        "pydantic_ai.RunContext[int]",
        "mcp.Context",
    ],
)
def test_injected_parameters(later, annotation):
    """A parameter that a framework injects is known by its annotation, and tells no calls apart."""
    source = f"{later}{IMPORTS}\ndef function(ctx: {annotation}, question: str): pass"
    assert left_out(source) == {"ctx"}


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("later", ["", LATER], ids=["objects", "strings"])
@pytest.mark.parametrize(
    "annotation",
    [
        "str",
        "Any",
        "None",
        "mine.RunContext",
        "mine.Context",
        "mine.Session",
        "Optional[str]",
        "list[RunContext]",
        "dict[str, RunContext]",
        "Callable[[RunContext[int]], str]",
        "Literal['RunContext', 'x']",
        "type[RunContext]",
    ],
)
def test_parameters_that_only_mention_an_injected_class(later, annotation):
    """A parameter of another type tells calls apart, even if its annotation names such a class."""
    source = f"{later}{IMPORTS}\ndef function(ctx: {annotation}, question: str): pass"
    assert left_out(source) == set()


def test_names_known_to_the_type_checker_only():
    """A class imported under ``TYPE_CHECKING`` is known by its name, if that can mean no other."""
    source = (
        LATER + "def function(a: RunContext[Deps], b: Context, c: agents.ToolContext | None): pass"
    )
    assert left_out(source) == {"a", "c"}


@pytest.mark.usefixtures("frameworks")
def test_another_name_for_an_injected_class():
    """A class imported under another name is known, a user's own class of that name is not."""
    source = LATER + "from pydantic_ai import RunContext as RC\nfrom mine import RunContext\n"
    assert left_out(source + "def function(a: RC[int], b: RunContext): pass") == {"a"}


@pytest.mark.usefixtures("frameworks")
def test_returned_classes():
    """What a function returns says nothing about its parameters."""
    assert left_out(IMPORTS + "def function(a: int) -> RunContext: pass") == set()


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("later", ["", LATER], ids=["objects", "strings"])
def test_configured_classes(later):
    """``configure(injected=...)`` adds classes by their full names."""
    source = later + "import mine\ndef function(a: mine.Session[int], b: mine.Context): pass"
    assert left_out(source) == set()
    configure(injected=["mine.web.Session"])
    assert left_out(source) == {"a"}


def test_classes_configured_late():
    """What is configured as injected counts for functions decorated before, at their first call."""
    known = parameters(session_user)
    configure(injected=[f"{__name__}.Session"])
    assert known.digest({"a": Session(), "b": 1}, ((), {})) == digest(session_user, Session(), 1)


def test_configured_classes_for_the_type_checker():
    """A configured class that is imported for the type checker only is known by its full name."""
    configure(injected=["mine.web.Session"])
    source = LATER + "def function(a: mine.web.Session[int], b: str): pass"
    assert left_out(source) == {"a"}


def test_one_configured_class():
    """A single name, given without a list, is that name, not its letters."""
    configure(injected="mine.web.Session")
    assert settings.injected() == {"mine.web.Session"}


# -- the object a method is bound to ---------------------------------------------------------------


class Agent:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Other(Agent):
    pass


def test_instances():
    """Equally configured objects of a class have one digest, others another."""
    digests = [
        instance_digest(each)
        for each in (Agent(m="x"), Agent(m="y"), Agent(n="x"), Agent(), Other(m="x"))
    ]
    assert len({digest for digest, _ in digests}) == len(digests)
    assert all(left == [] for _, left in digests)
    assert instance_digest(Agent) == instance_digest(Agent) != instance_digest(Other)
    assert instance_digest(Agent(a=1, b={2, 1})) == instance_digest(Agent(b={1, 2}, a=1))


def test_attributes_left_out():
    """What has no digest counts by its class where it stands, and is named."""
    found, names = instance_digest(Agent(model="x", client=LOCK, pool=[LOCK]))
    assert names == ["client", "pool"]
    assert (
        found
        == instance_digest(Agent(model="x", client=threading.Lock(), pool=[threading.Lock()]))[0]
    )
    assert found != instance_digest(Agent(model="y", client=LOCK, pool=[LOCK]))[0]


class Slotted:
    __slots__ = ("model", "unset")

    def __init__(self, model):
        self.model = model


class SlottedChild(Slotted):
    __slots__ = ("more",)


class OneSlot:
    __slots__ = "model"  # noqa: PLC0205

    def __init__(self, model):
        self.model = model


class PrivateSlot:
    __slots__ = ("__model",)

    def __init__(self, model):
        self.__model = model


class TupleAgent(NamedTuple):
    model: str


class DictAgent(dict):
    pass


class ListAgent(list):
    pass


class TextAgent(str):
    __slots__ = ()


class Choice(enum.Enum):
    x = "x"
    y = "y"


@dataclasses.dataclass
class Data:
    model: str


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    model: str


class Model(pydantic.BaseModel):
    model: str = "x"


@pytest.mark.parametrize(
    "make",
    [
        lambda model: Agent(model=model),
        Slotted,
        SlottedChild,
        OneSlot,
        PrivateSlot,
        TupleAgent,
        lambda model: DictAgent(model=model),
        lambda model: ListAgent([model]),
        TextAgent,
        Choice,
        Data,
        Frozen,
        lambda model: Model(model=model),
    ],
    ids=[
        *("object", "slots", "inherited slots", "one slot", "private slot", "namedtuple", "dict"),
        *("list", "str", "enum", "dataclass", "frozen", "pydantic"),
    ],
)
def test_two_agents_never_share_a_run(make):
    """Whatever an agent's class is made of, two that differ have different digests."""
    assert instance_digest(make("x")) == instance_digest(make("x"))
    assert instance_digest(make("x")) != instance_digest(make("y"))


def test_private_attributes_of_a_model():
    """Of a pydantic agent's private attributes, those that have no digest are left out alone."""

    class Private(Model):
        _client: Any = pydantic.PrivateAttr(default_factory=threading.Lock)
        _turns: int = 0

    Private.__qualname__ = "Private"
    one, other = Private(), Private()
    assert instance_digest(one)[1] == ["_client"]
    other._turns = 1
    assert instance_digest(one) != instance_digest(other)


def test_defaults_of_a_model():
    """Whether a pydantic agent's field was given or is at its default makes no difference."""
    assert Model() == Model(model="x")
    assert instance_digest(Model()) == instance_digest(Model(model="x"))


# -- run ids ---------------------------------------------------------------------------------------


def test_derived_ids():
    """A run's id is readable, and differs by the workflow, the arguments and the instance."""
    run_id = derived_id("module:agent", "agent", "d1")
    assert re.fullmatch(r"agent-[0-9a-f]{12}", run_id)
    assert run_id == derived_id("module:agent", "agent", "d1")
    ids = [
        *(
            run_id,
            derived_id("other:agent", "agent", "d1"),
            derived_id("module:agent", "agent", "d2"),
        ),
        *(
            derived_id("module:agent", "agent", "d1", "i"),
            derived_id("module:agent", "agent", "d1i"),
        ),
    ]
    assert len(set(ids)) == len(ids)


def test_random_ids():
    """Random ids do not repeat."""
    ids = {random_id("agent") for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch(r"agent-[0-9a-f]{12}", run_id) for run_id in ids)


labels = st.text(st.characters(exclude_categories=()), max_size=80)


@sweep
@given(labels)
def test_odd_labels(label):
    """A run id made of any label is printable, short, and holds nothing that a path would mean."""
    for run_id in (
        derived_id("m", label, "d"),
        random_id(label),
        child_id("r", label, "d" * 32, 1),
    ):
        own = run_id.removeprefix("r/")
        assert re.fullmatch(r"[\w.-]*-[0-9a-f-]+", own)
        assert own.encode("utf-8")
        assert "/" not in own
        assert len(own) <= 100


def test_child_ids():
    """A child's id begins with its parent's, and differs by parent, name, arguments, ordinal."""
    one = child_id("parent-1", "fetch", "a" * 32, 1)
    assert one.startswith("parent-1/fetch-")
    ids = [
        *(
            one,
            child_id("parent-2", "fetch", "a" * 32, 1),
            child_id("parent-1", "save", "a" * 32, 1),
        ),
        *(child_id("parent-1", "fetch", "b" * 32, 1), child_id("parent-1", "fetch", "a" * 32, 2)),
        child_id(one, "fetch", "a" * 32, 1),
    ]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("one", "other"),
    [("fetch page", "fetch_page"), ("a/b", "a_b"), ("x" * 60 + "1", "x" * 60 + "2")],
    ids=["space", "slash", "long"],
)
def test_child_ids_of_similar_names(one, other):
    """Names that look alike in an id are still different names: their runs do not meet."""
    assert child_id("r", one, "d" * 32, 1) != child_id("r", other, "d" * 32, 1)


def test_child_ids_of_many():
    """The arguments of a hundred thousand children are told apart, not only most of them."""
    known = parameters(plain)
    digests = [known.digest({"a": n}, ((n,), {})) for n in (4288, 19649)]  # agree in 8 digits
    digests += [f"{n:032x}" for n in range(1_000)]  # differ in the last digits
    ids = {child_id("r", "fetch", digest, 1) for digest in digests}
    assert len(ids) == len(digests)


@sweep
@given(st.lists(st.tuples(labels, st.integers(1, 3)), min_size=1, max_size=40))
def test_nested_child_ids(path):
    """However deep runs are nested, their ids stay short, keep their root, and differ."""
    ids = ["root-0123456789ab"]
    for label, ordinal in path:
        ids.append(child_id(ids[-1], label, "d" * 32, ordinal))
    assert len(set(ids)) == len(ids)
    assert all(len(run_id) <= 160 for run_id in ids)
    assert all(run_id.startswith("root-0123456789ab") for run_id in ids)
    assert child_id(ids[-1], "a", "d" * 32, 1) != child_id(ids[-1], "a", "d" * 32, 2)


def test_child_ids_of_a_long_root():
    """Children of a run whose id is very long differ, and grow no longer with every level."""
    root = "r" * 500
    one = child_id(root, "fetch", "a" * 32, 1)
    two = child_id(one, "fetch", "a" * 32, 1)
    assert one != two
    assert len(two) == len(one) < 600


def test_idempotency_keys():
    """An idempotency key is the same for the same call of a run, and no other call's."""
    one = idempotency_key("r", "send", "d", 1)
    assert one == idempotency_key("r", "send", "d", 1)
    assert re.fullmatch(r"sw-[0-9a-f]{32}", one)
    others = [
        *(("r2", "send", "d", 1), ("r", "send2", "d", 1), ("r", "send", "d2", 1)),
        *(
            ("r", "send", "d", 2),
            ("rs", "end", "d", 1),
            ("r", "send", "d1", 1),
            ("r", "sen", "dd", 1),
        ),
    ]
    assert len({one, *(idempotency_key(*other) for other in others)}) == len(others) + 1


MADE_AT_ONCE = {
    *("what", "hiding", "instance_ignored", "_function", "_signature", "_called", "_simple"),
    *("_positional", "_names", "_framed", "_required", "_defaults", "_plain", "_ignored", "_key"),
    "_encoded_defaults",
}


def test_a_pickle_of_before_holds_enough():
    """Parameters need no more of a pickle than those had that runs of before hold by value."""

    def function(first, second=2):
        """Has parameters."""

    new = Parameters(function, what="step 'function'")
    old = object.__new__(Parameters)
    vars(old).update({name: each for name, each in vars(new).items() if name in MADE_AT_ONCE})
    for arguments in [(1,), {}], [(1, 3), {}], [(), {"first": 1}]:
        bound = old.bind(*arguments)
        assert bound == new.bind(*arguments)
        assert old.identify(bound, arguments) == new.identify(bound, arguments)
