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
from harness import interpreted, python
from hypothesis import given
from hypothesis import strategies as st

import stepwise
import stepwise.testing
from examples import sweep
from stepwise import configure
from stepwise._identity import identity as _identity
from stepwise._identity.call_parts import CallParts
from stepwise._identity.identity import Parameters, child_id, derived_id, idempotency_key, random_id
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
    """The digest of a call."""
    return digests(function, [(args, kwargs)]).pop()


def plain(a, b=1):
    pass


def call(*args, **kwargs):
    return args, kwargs


def digests(function, calls, **options):
    """The digests of calls, with options of the decorator."""
    known = parameters(function, **options)
    return {known.digest(known.bind(args, kwargs), (args, kwargs)) for args, kwargs in calls}


# -- binding ---------------------------------------------------------------------------------------


def with_values(a, b=({"x": [1]}, "text"), c=0.0):
    pass


def with_client(a, client=LOCK):
    pass


def named(a=0, b=0, **more):
    pass


def odd(a, /, b, *rest, c=3, **more):
    pass


def three(to, body, at=0):
    pass


@functools.wraps(plain)
def handing_on(*args, **kwargs):
    return plain(*args, **kwargs)


def inner(session, a=0, b=5):
    pass


@functools.wraps(inner)
def supplying(*args, **kwargs):
    return inner("session", *args, **kwargs)


@functools.wraps(inner)
def changing(*args, **kwargs):
    kwargs["b"] = 7
    return inner(*args, **kwargs)


@functools.wraps(inner)
def adding_first(*args, **kwargs):
    return inner(*args, **MORE, **kwargs)


@functools.wraps(inner)
def adding_last(session, **kwargs):
    return inner(session, **kwargs, **MORE)


MORE = {"b": 7}


def made(number, *, twice):
    """A function without a name of its own."""
    return (lambda x: x * number * 2) if twice else (lambda x: x * number)


SAME = {
    "in any form": (plain, [call(1, 2), call(1, b=2), call(b=2, a=1), call(a=1, b=2)]),
    "a default": (plain, [call(5), call(5, 1), call(a=5, b=1)]),
    "a default by value": (with_values, [call(5), call(5, ({"x": [1]}, "text"), -0.0)]),
    "a default without a digest": (with_client, [call(1), call(1, LOCK)]),
    "positional only": (odd, [call(1, 2, c=3), call(1, b=2)]),
    "named in any order": (odd, [call(1, 2, x=1, y=2), call(1, 2, y=2, x=1)]),
    "without parameters": (lambda: None, [call(), call()]),
    "handed on by a wrapper": (handing_on, [call(1, 2), call(b=2, a=1)]),
    "a client counts by its class": (three, [call(1, LOCK), call(1, threading.Lock())]),
    "equal lambdas": (three, [call(1, made(1, twice=True)), call(1, made(1, twice=True))]),
    **{
        f"ignored by {names!r}": (three, [call(1, 2, 3), call(1, 2, LOCK)], {"ignore": names})
        for names in (("at",), ["at"], {"at"}, "at")
    },
    **{
        f"no key of {names!r}": (
            three,
            [call(1, 2, 3), call(at=LOCK, body=2, to=1)],
            {"key": names},
        )
        for names in (("to", "body"), ["body", "to"], dict.fromkeys(["to", "body"]))
    },
    "one key": (three, [call(1, 2), call(1, 9)], {"key": "to"}),
    "no keys": (three, [call(1, 2), call(3, 4)], {"key": ()}),
}
APART = {
    "places": (plain, [call(1, 2), call(2, 1), call(5), call(5, 2)]),
    "a default by value": (with_values, [call(5), call(5, ({"x": [2]}, "text"))]),
    "a default of another type": (plain, [call(5), call(5, True), call(5, 1.0)]),
    "a default without a digest": (
        with_client,
        [call(1), call(1, "another"), call(1, threading.Lock())],
    ),
    "names": (
        named,
        [
            *(call(a=1), call(b=1), call(a=1, b=1), call(c=1), call(d=1), call(c=1, d=1)),
            *(call(), call(more={"x": 1}), call(x=1)),  # one has the name of all of them
        ],
    ),
    "kinds of parameters": (
        odd,
        [
            *(call(1, 2), call(1, 2, 3), call(1, 2, 3, 4), call(1, 2, (3, 4)), call(1, 2, c=4)),
            *(call(1, 2, x=1), call(1, 2, a=1), call(1, 2, rest=(3,)), call(1, 2, more={})),
        ],
    ),
    **{
        f"the default of what {wrapper.__code__.co_name} wraps": (wrapper, [call(1), call(1, a=0)])
        for wrapper in (supplying, changing, adding_first, adding_last)
    },
    "a client where it stands": (three, [call(1, LOCK), call(2, LOCK), call(1, [LOCK])]),
    "code, defaults and captures": (
        three,
        [
            *(call(1, made(1, twice=True)), call(1, made(2, twice=True))),
            *(call(1, made(1, twice=False)), call(1, lambda x: x)),
        ],
    ),
    "what is not ignored": (three, [call(1, 2), call(1, 3)], {"ignore": "at"}),
    "keys": (three, [call(1, 2), call(2, 2), call(1, 1)], {"key": ["body", "to"]}),
}


@pytest.mark.parametrize("what", SAME)
def test_forms_of_one_call(what):
    """However its arguments are passed, at their defaults or not, a call is the same call."""
    function, calls, *options = SAME[what]
    assert len(digests(function, calls, **dict(*options))) == 1


@pytest.mark.parametrize("what", APART)
def test_other_calls(what):
    """A value in another place, under another name or of another type is another call."""
    function, calls, *options = APART[what]
    assert len(digests(function, calls, **dict(*options))) == len(calls)


def test_a_parameter_that_is_added():
    """A parameter that is new, with a default, or in another place keeps the recorded digests."""

    def after(a, b=(1, 2), *, c=None, **more):
        pass

    def turned(b, a):
        pass

    before = digest(lambda a: None, 1)
    assert before == digest(after, 1) == digest(after, 1, (1, 2), c=None)
    assert len(digests(after, [call(1), call(1, (1,)), call(1, c=0)])) == 3
    assert digest(plain, 1, 2) == digest(turned, 2, 1) == digest(turned, a=1, b=2)


def test_all_kinds_of_parameters():
    """Positional-only, variable and keyword-only parameters are bound as Python binds them."""
    known = parameters(odd)
    bound = known.bind((1, 2, 3, 4), {"c": 5, "a": 6, "z": 7})
    assert bound == {"a": 1, "b": 2, "rest": (3, 4), "c": 5, "more": {"a": 6, "z": 7}}
    assert (known.first, parameters(lambda: None).first) == ("a", None)


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


def test_mistaken_arguments():
    """A call that does not fit the signature raises a TypeError that says why."""
    for (args, kwargs), said in (
        (call(), "'a'"),
        (call(1, 2, 3), "too many positional"),
        (call(1, a=1), "multiple values for argument 'a'"),
        (call(1, z=1), "unexpected keyword argument 'z'"),
    ):
        with pytest.raises(TypeError, match=said) as caught:
            parameters(plain).bind(args, kwargs)
        assert type(caught.value) is TypeError


OTHER_PROCESS = """
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


def test_other_processes():
    """Another process, with another hash seed, finds the same digests and run ids."""
    said = set()
    for seed in ("1", "4242"):  # a fork would have that of its host
        done = interpreted("-c", OTHER_PROCESS, env={**os.environ, "PYTHONHASHSEED": seed})
        said.add(done.stdout)
    assert len(said) == 1
    assert len(json.loads(said.pop())) == 3


# -- key= and ignore= ------------------------------------------------------------------------------


def test_keys_as_a_function():
    """A ``key`` function gets the arguments; what it returns tells calls apart.

    What it raises comes out; a key without a digest is named with its step.
    """
    seen = []

    def key(to, body, at=0):
        seen.append((to, body, at))
        return to.lower()

    assert len(digests(three, [call("Ann", 1, 2), call(at=LOCK, to="ANN", body=3)], key=key)) == 1
    assert len(digests(three, [call("Ann", 1), call("Bob", 1)], key=key)) == 2
    assert seen[:2] == [("Ann", 1, 2), ("ANN", 3, LOCK)]
    with pytest.raises(ZeroDivisionError):
        digests(three, [call(1, 2)], key=lambda *args: 1 / 0)
    with pytest.raises(DigestError, match="lock") as caught:
        digests(three, [call(1, 2)], key=lambda *args: {"lock": LOCK})
    assert "key" in str(caught.value)
    assert "'three'" in str(caught.value)


@pytest.mark.parametrize("option", ["key", "ignore"])
def test_unknown_names(option):
    """What names no parameter is refused, with the option, the step and the parameters."""
    for names in (("body", "bdoy"), "bdoy", ["bdoy"]):
        with pytest.raises(ConfigurationError, match=f"{option}=.* of step 'three'") as caught:
            parameters(three, **{option: names})
        assert "no parameter 'bdoy'" in str(caught.value)
        assert "['at', 'body', 'to']" in str(caught.value)
    for names in (5, 1.5, True, [1], [1, "to"], ["to", None]):
        with pytest.raises(ConfigurationError, match=f"{option}="):
            parameters(three, **{option: names})


# -- what has no digest ----------------------------------------------------------------------------


def test_arguments_that_a_call_uses_up():
    """The error for an iterator names step, argument, path and type, and the ways out."""
    rows = (each for each in range(3))
    with pytest.raises(DigestError, match="Pass a list of what it yields"):
        digest(three, 1, rows)
    with pytest.raises(DigestError) as caught:
        digest(three, 1, {"rows": [rows]})
    said = str(caught.value)
    assert said.startswith("argument 'body' of step 'three': ")
    for part in ("(at body['rows'][0])", "ignore=('body',)", "key="):
        assert part in said
    assert (caught.value.path, caught.value.type_name) == ("body['rows'][0]", "generator")
    for path, function, (args, kwargs) in (
        ("to", three, call(rows, 1)),
        ("rest[1]", odd, call(1, 2, 3, rows)),
        ("more['rows']", odd, call(1, 2, rows=rows)),
    ):
        with pytest.raises(DigestError) as caught:
            digest(function, *args, **kwargs)
        assert caught.value.path == path


def test_data_without_a_digest_is_an_error():
    """An array of a special kind, or a value nested without end, has no class to stand for it."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, np.ma.masked_array([1, 2], mask=[0, 1])):
        with pytest.raises(DigestError, match="argument 'body'"):
            digest(three, 1, [value, LOCK])


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


INJECTED = [
    *("RunContext", "RunContext[int]", "RunContextWrapper[dict[str, Any]]", "ToolContext"),
    *("RunnableConfig", "Optional[RunnableConfig]", "RunnableConfig | None"),
    *("Union[None, RunContext[int]]", "Annotated[dict, InjectedState]"),
    *("Annotated[dict, InjectedState()]", "Annotated[RunContext[int], 'docs']"),
    *("pydantic_ai.RunContext[int]", "mcp.Context"),
]
MENTIONED = [
    *("str", "Any", "None", "mine.RunContext", "mine.Context", "mine.Session", "Optional[str]"),
    *("list[RunContext]", "dict[str, RunContext]", "Callable[[RunContext[int]], str]"),
    *("Literal['RunContext', 'x']", "type[RunContext]"),
]


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("later", ["", LATER], ids=["objects", "strings"])
@pytest.mark.parametrize("annotation", [*INJECTED, *MENTIONED])
def test_injected_parameters(later, annotation):
    """A parameter that a framework injects is known by its annotation, and tells no calls apart.

    One of another type does, even if its annotation mentions such a class.
    """
    source = f"{later}{IMPORTS}\ndef function(ctx: {annotation}, question: str): pass"
    assert left_out(source) == ({"ctx"} if annotation in INJECTED else set())


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
    assert left_out(IMPORTS + "def function(a: int) -> RunContext: pass") == set()


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("later", ["", LATER], ids=["objects", "strings"])
@pytest.mark.parametrize("given", [["mine.web.Session"], "mine.web.Session"], ids=["list", "one"])
def test_configured_classes(later, given):
    """``configure(injected=...)`` adds classes by their full names."""
    source = later + "import mine\ndef function(a: mine.Session[int], b: mine.Context): pass"
    checked = LATER + "def function(a: mine.web.Session[int], b: str): pass"  # not imported
    assert left_out(source) == left_out(checked) == set()
    configure(injected=given)
    assert left_out(source) == left_out(checked) == {"a"}


def test_classes_configured_late():
    """What is configured as injected counts for functions decorated before, at their first call."""
    known = parameters(session_user)
    configure(injected=[f"{__name__}.Session"])
    assert known.digest({"a": Session(), "b": 1}, ((), {})) == digest(session_user, Session(), 1)


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
    """What has no digest counts by its class where it stands, and is named; a mere lock is not."""
    one, other = threading.local(), threading.local()
    found, names = instance_digest(Agent(model="x", client=one, pool=[one, LOCK], lock=LOCK))
    assert names == ["client", "pool"]
    equal = Agent(model="x", client=other, pool=[other, threading.Lock()], lock=threading.Lock())
    assert found == instance_digest(equal)[0]
    assert found != instance_digest(Agent(model="y", client=one, pool=[one, LOCK], lock=LOCK))[0]
    assert instance_digest(Agent(lock=LOCK, event=threading.Event(), more=[LOCK]))[1] == []


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


KINDS = {
    "object": lambda model: Agent(model=model),
    "slots": Slotted,
    "inherited slots": SlottedChild,
    "one slot": OneSlot,
    "private slot": PrivateSlot,
    "namedtuple": TupleAgent,
    "dict": lambda model: DictAgent(model=model),
    "list": lambda model: ListAgent([model]),
    "str": TextAgent,
    "enum": Choice,
    "dataclass": Data,
    "frozen": Frozen,
    "pydantic": lambda model: Model(model=model),
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_agents_never_share_a_run(kind):
    """Whatever an agent's class is made of, two that differ have different digests."""
    make = KINDS[kind]
    assert instance_digest(make("x")) == instance_digest(make("x"))
    assert instance_digest(make("x")) != instance_digest(make("y"))


def test_private_attributes_of_a_model():
    """Of a pydantic agent's private attributes, those that have no digest are left out alone.

    Whether a field was given or is at its default makes no difference.
    """

    class Private(Model):
        _client: Any = pydantic.PrivateAttr(default_factory=threading.local)
        _turns: int = 0

    Private.__qualname__ = "Private"
    one, other = Private(), Private()
    assert instance_digest(one)[1] == ["_client"]
    other._turns = 1
    assert instance_digest(one) != instance_digest(other)
    assert instance_digest(Model()) == instance_digest(Model(model="x"))


# -- run ids ---------------------------------------------------------------------------------------


def test_derived_ids():
    """A run's id is readable, and differs by the workflow, the arguments and the instance."""
    run_id = derived_id("module:agent", "agent", "d1")
    assert re.fullmatch(r"agent-[0-9a-f]{12}", run_id)
    assert run_id == derived_id("module:agent", "agent", "d1")
    others = [
        derived_id(*given)
        for given in (
            ("other:agent", "agent", "d1"),
            ("module:agent", "agent", "d2"),
            ("module:agent", "agent", "d1", "i"),
            ("module:agent", "agent", "d1i"),
        )
    ]
    assert len({run_id, *others}) == 5
    drawn = {random_id("agent") for _ in range(1_000)}
    assert len(drawn) == 1_000
    assert all(re.fullmatch(r"agent-[0-9a-f]{12}", each) for each in drawn)


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
    a, b = "a" * 32, "b" * 32
    one = child_id("parent-1", "fetch", a, 1)
    assert one.startswith("parent-1/fetch-")
    calls = [
        *(("parent-1", "fetch", a, 1), ("parent-2", "fetch", a, 1), ("parent-1", "save", a, 1)),
        *(("parent-1", "fetch", b, 1), ("parent-1", "fetch", a, 2), (one, "fetch", a, 1)),
        # Names that look alike in an id.
        *(("r", name, a, 1) for name in ("fetch page", "fetch_page", "a/b", "a_b")),
        *(("r", "x" * 60 + end, a, 1) for end in "12"),
    ]
    assert len({child_id(*each) for each in calls}) == len(calls)


def test_child_ids_of_many():
    """The arguments of a hundred thousand children are told apart, not only most of them."""
    known = parameters(plain)
    digests = [known.digest({"a": n}, ((n,), {})) for n in (4288, 19649)]  # agree in 8 digits
    digests += [f"{n:032x}" for n in range(1_000)]  # differ in the last digits
    ids = {child_id("r", "fetch", digest, 1) for digest in digests}
    assert len(ids) == len(digests)


@sweep
@given(st.lists(st.tuples(labels, st.integers(1, 3)), min_size=1, max_size=40))
@pytest.mark.parametrize(("root", "longest"), [("root-0123456789ab", 160), ("r" * 500, 600)])
def test_nested_child_ids(root, longest, path):
    """However deep runs are nested, their ids stay short, keep their root, and differ."""
    ids = [root]
    for label, ordinal in path:
        ids.append(child_id(ids[-1], label, "d" * 32, ordinal))
    assert len(set(ids)) == len(ids)
    assert all(len(run_id) <= longest for run_id in ids)
    assert all(run_id.startswith(root[:17]) for run_id in ids)
    assert child_id(ids[-1], "a", "d" * 32, 1) != child_id(ids[-1], "a", "d" * 32, 2)


def test_idempotency_keys():
    """An idempotency key is the same for the same call of a run, and no other call's."""
    one = idempotency_key("r", "send", "d", 1)
    assert one == idempotency_key("r", "send", "d", 1)
    assert re.fullmatch(r"sw-[0-9a-f]{32}", one)
    others = [
        *(("r2", "send", "d", 1), ("r", "send2", "d", 1), ("r", "send", "d2", 1)),
        *(("r", "send", "d", 2), ("rs", "end", "d", 1), ("r", "send", "d1", 1)),
        ("r", "sen", "dd", 1),
    ]
    assert len({one, *(idempotency_key(*other) for other in others)}) == len(others) + 1


NAMELESS = """
from stepwise import step, workflow

@step
def add(x):
    return x + {number} if x in {{"a", "b", 1}} else None

@workflow
def main():
    return add(1)

print(main())
"""


@pytest.mark.parametrize("how", ["-c", "-"])
def test_programs_without_a_file(how, tmp_path):
    """Two programs of ``python -c``, or on stdin, in one folder are two; the same one is itself."""

    def run(number):
        text, env = NAMELESS.format(number=number), {**os.environ, "STEPWISE_QUIET": ""}
        if how == "-c":
            done = python("-c", text, cwd=tmp_path, env=env)
        else:
            command = [sys.executable, "-"]
            done = subprocess.run(
                command,
                check=False,
                timeout=300,
                input=text,
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
            )
        return int(done.stdout), "already completed" in done.stderr

    assert [run(1), run(2), run(1)] == [(2, False), (3, False), (2, True)]


class Bound(functools.partial):
    """A class that C lays out: its vectorcall offset reads as an address."""


def test_what_c_says_of_a_layout_is_no_attribute():
    """The attributes of an instance are the same in every process."""
    from stepwise._values.trees import attributes

    assert attributes(Bound(len)).keys() <= {"args", "func", "keywords"}


class Voice(pydantic.BaseModel):
    model_config = {"extra": "allow"}
    _tone: str = pydantic.PrivateAttr("")


class Speaker:
    def __init__(self, tone):
        self._tone, self.voice = "any", Voice()
        self.voice._tone = tone

    @stepwise.step(ignore=["self._tone"])
    def say(self):
        return self.voice._tone


def test_what_is_ignored_is_the_own_attribute():
    """An attribute of the same name in an object that the instance holds tells calls apart."""
    tones = ["kind"]

    def end():
        if len(tones) == 1:
            raise LookupError

    @stepwise.workflow
    def agent():
        return [Speaker(tones[-1]).say(), end()]  # in one statement: executed again

    with stepwise.testing.fresh_store():
        with pytest.raises(LookupError):
            agent()
        tones.append("rude")
        assert agent() == ["rude", None]


def test_the_parts_of_plain_defaults_are_made_once(monkeypatch):
    """A default that nothing can change is digested at the first call; a list at each, as it is."""

    def ask(prompt, model="large", limit=3, stop=None, tags=[]):  # noqa: B006
        """A step with defaults."""

    made = []
    digest_part = _identity.digest_part
    monkeypatch.setattr(
        _identity, "digest_part", lambda value: (made.append(value), digest_part(value))[1]
    )
    parameters = _identity.Parameters(ask, what="step 'ask'")
    parts = [parameters.identify({"prompt": "hello"}, ((), {}))[1] for _ in range(3)]
    assert parts[0] == parts[1] == parts[2]
    assert set(parts[0]) == {"prompt", "model", "limit", "stop", "tags"}
    assert made == ["large", 3, None, [], [], []]
