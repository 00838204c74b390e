"""Lists of typed objects in checkpoints: written once, and given back as they were."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import os
import pathlib
import re
import uuid
from typing import Any

import pytest
from harness import python
from hypothesis import example, given, settings
from hypothesis import strategies as st
from killed import Killed, chunk_little, forget_process, line_of, played_to_the_end

import stepwise
from stepwise import step, workflow
from stepwise._checkpoints import references
from stepwise._values import digest, list_digest, trees
from stepwise.stores import open_store

try:
    import pydantic
except ImportError:
    pydantic = None
try:
    import attrs
except ImportError:
    attrs = None

ALL = {"retention": "all"}


class Role(enum.Enum):
    USER = "user"
    MODEL = "model"


@dataclasses.dataclass
class Plain:
    role: Any
    content: Any
    tools: list[Any] = dataclasses.field(default_factory=list)
    tags: Any = dataclasses.field(default_factory=set)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Derived(Plain):
    extra: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    role: Any
    content: Any
    tools: list[Any] = dataclasses.field(default_factory=list)
    tags: Any = dataclasses.field(default_factory=set)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    role: Any
    content: Any
    tools: list[Any] = dataclasses.field(default_factory=list)
    tags: Any = dataclasses.field(default_factory=set)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


class SlotsAndDict(Slotted):
    pass


class OwnState:
    """Pickles itself, as pydantic's models do, and keeps part of it in slots."""

    __slots__ = ("__dict__", "given", "private")

    def __init__(self, role, content, tools, tags, more):
        self.role, self.content, self.tools, self.more = role, content, tools, more
        self.given, self.private = tags, {"parts": [1]}

    @property
    def tags(self):
        return self.given

    def __getstate__(self):
        return {"held": self.__dict__, "given": self.given, "private": copy.copy(self.private)}

    def __setstate__(self, state):
        object.__setattr__(self, "__dict__", state["held"])
        self.given, self.private = state["given"], state["private"]


class Forgetful(OwnState):
    """Comes back with more than was pickled."""

    def __setstate__(self, state):
        super().__setstate__(state)
        self.found = {"again": [True]}


KINDS = [Plain, Derived, Slotted, Frozen, SlotsAndDict, OwnState, Forgetful]
if pydantic is not None:

    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        role: Any
        content: Any
        tools: list[Any]
        tags: Any
        more: dict[str, Any]
        _private: list[Any] = pydantic.PrivateAttr(default_factory=list)

        def __init__(self, role, content, tools, tags, more):
            super().__init__(role=role, content=content, tools=tools, tags=tags, more=more)

    KINDS.append(Model)
if attrs is not None:

    @attrs.define
    class Attrs:
        role: Any
        content: Any
        tools: list[Any]
        tags: Any
        more: dict[str, Any]

    KINDS.append(Attrs)
AT = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)


def message(kind, n):
    more = {"at": AT + dt.timedelta(n), "id": uuid.UUID(int=n), "cost": decimal.Decimal(n)}
    more["file"] = pathlib.Path("a") / str(n)
    return kind(Role.USER if n % 2 else Role.MODEL, f"{n} " * 200, [{"id": n}], {"a", n}, more)


dying = set()  # numbers of steps in which the process ends, once


@pytest.fixture(autouse=True)
def nothing_known():
    dying.clear()
    list_digest.forget()


@step
def tick(number):
    if number in dying:
        dying.remove(number)
        raise Killed
    return number


@step
def think(number, kind):
    return message(KINDS[kind], number)


def held(value):
    """What an instance holds, by name."""
    slots = [n for c in type(value).__mro__ for n in vars(c).get("__slots__", ())]
    named = {n: getattr(value, n) for n in slots if n[:2] != "__" and hasattr(value, n)}
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        named["extra"], named["private"] = value.model_extra, value.__pydantic_private__
        named["set"] = value.model_fields_set
    return {**getattr(value, "__dict__", {}), **named}


def described(value, met=None):
    """A value with its types, its order, and what is shared in it."""
    met = {} if met is None else met
    cls = type(value)
    if cls in (list, dict, set) or cls in KINDS or cls is Attribute:
        if id(value) in met:
            return f"#{met[id(value)]}"
        met[id(value)] = len(met)
    if cls in (list, tuple):
        return [cls.__name__, *(described(each, met) for each in value)]
    if cls is dict:
        return ["dict", *((repr(k), described(v, met)) for k, v in value.items())]
    if isinstance(value, set):
        return ["set", *sorted(map(repr, value))]
    if cls in KINDS or cls is Attribute:
        found = {n: v for n, v in held(value).items() if n != "found"}  # see Forgetful
        return [cls.__name__, *((n, described(v, met)) for n, v in found.items())]
    return f"{cls.__name__} {value!r}"


class Attribute:
    """A class that a message may change to."""


# -- any program ---------------------------------------------------------------------------------


def put(each, name, value):
    object.__setattr__(each, name, value)


def replace_dict(each):
    if hasattr(each, "__dict__"):
        put(each, "__dict__", dict(each.__dict__, new=1))


def same_dict(each):
    if hasattr(each, "__dict__"):
        put(each, "__dict__", dict(each.__dict__))


def swap(each):
    one, other = each.content, each.role
    put(each, "content", other)
    put(each, "role", one)


def rename(each):
    """Take an attribute away, and give another one its value."""
    if hasattr(each, "__dict__") and "content" in vars(each):
        vars(each)["other"] = vars(each).pop("content")
    elif type(each) is OwnState:
        each.given, each.private = each.private, each.given


def other_class(each):
    if type(each) is Plain:
        each.__class__ = Derived
    elif type(each) is Derived:
        each.__class__ = Plain


CHANGES = {
    "content": lambda each: put(each, "content", "new"),
    "equal": lambda each: put(each, "content", copy.deepcopy(getattr(each, "content", 0)) * 1),
    "constant": lambda each: put(each, "role", Role.MODEL),
    "moment": lambda each: each.more.update(at=AT),
    "attribute": lambda each: hasattr(each, "__dict__") and put(each, "added", [1]),
    "rename": rename,
    "replace": replace_dict,
    "same": same_dict,
    "class": other_class,
    "slot": lambda each: put(each, "tools", list(each.tools)),
    "deep": lambda each: each.tools.append({"id": 2}),
    "inner": lambda each: [t.update(id=True) for t in each.tools if type(t) is dict],
    "set": lambda each: each.tags.add("new"),
    "fields": lambda each: isinstance(each.tags, set) and each.tags.discard("a"),
    "itself": lambda each: each.tools.append(each),
    "unknown": lambda each: each.tools.append(bytearray(b"x")),
    "private": lambda each: (getattr(each, "private", None) or {}).update(secret=[2]),
}


def change(operation, at, how, kind, messages, others):
    """Do one thing to the messages that is no step."""
    if operation == "append":
        messages.append(message(KINDS[kind], at))
    elif operation == "many":
        messages.extend(message(KINDS[(kind + n) % len(KINDS)], n) for n in range(at))
    elif operation == "dict":
        messages.append({"role": "user", "of": messages[-1:], "n": at})
    elif operation == "alias" and messages:
        others.append(messages[at % len(messages)])
    elif operation == "inside" and messages:
        each = messages[at % len(messages)]
        if type(each) in KINDS:
            others.append([each.tools, each.tags, each.more])
    elif operation == "parent" and len(messages) > 1:
        if type(messages[-1]) in KINDS:
            messages[-1].more["parent"] = messages[at % len(messages)]
    elif operation == "delete":
        del messages[at : at + 1]
    elif operation == "cut":
        del messages[:at]
    elif operation == "turn":
        messages.reverse()
    elif operation == "drop":
        others.clear()
    elif operation == "change" and messages:
        each = messages[at % len(messages)]
        if type(each) in KINDS:
            CHANGES[how](each)


KIND = st.integers(0, len(KINDS) - 1)
operations = st.tuples(
    st.sampled_from(
        ["append", "many", "dict", "alias", "inside", "parent", "delete", "cut", "turn", "drop"]
        + ["copy", "hand", *["change", "think"] * 7]
    ),
    st.integers(0, 12),
    st.sampled_from(sorted(CHANGES)),
    KIND,
)
expected = {}
names = itertools.count()


@workflow(**ALL)
def play(program, given):
    messages, others, last, ticked = [], [], None, None
    for number, (operation, at, how, kind) in enumerate(program):
        if operation == "think":
            last = think(number, kind)
            messages.append(last)
        elif operation == "copy":
            messages = [*messages]
        else:
            change(operation, at, how, kind, messages, others)
        if operation == "hand":
            given.extend(messages[:at])
        expected[number] = described([messages, others, last, given])
        ticked = tick(number)
    return ticked


TICKS = line_of(play, "expected[number] =")
"""The statement after which a checkpoint holds what is expected of it."""


@pytest.fixture
def small(monkeypatch):
    """Chunks of a few items."""
    chunk_little(monkeypatch)


def played(program, kills=(), **options):
    """The run of a program that is killed in some of its steps, and resumed."""
    expected.clear()
    dying.update(number for number in kills if number < len(program))
    name = f"play-{next(names)}"
    return played_to_the_end(
        lambda: play.options(store="memory:", run_id=name, **options).execute(program, [])
    )


def check(run, program):
    """Each checkpoint of a run of a program holds what the variables were."""
    found = 0
    for checkpoint in run.checkpoints:
        assert checkpoint.verified
        values = run.locals(at=checkpoint.step)
        if checkpoint.position == TICKS:
            here = [values[name] for name in ("messages", "others", "last", "given")]
            assert described(here) == expected[values["number"]]
            found += 1
    assert found == len(program)


@settings(
    max_examples=80,
)
@given(program=st.lists(operations, max_size=40), kills=st.sets(st.integers(0, 40), max_size=3))
@example(program=[("think", 0, "set", k) for k in range(len(KINDS))] * 3, kills={5, 8})
@example(program=[*[("think", 0, "set", 6)] * 9, ("change", 1, "set", 0)], kills={5, 8})
def test_any_checkpoint_gives_back_what_the_variables_were(small, program, kills):
    """Whatever is done to a list of typed messages, each checkpoint holds it as it was.

    Types, attributes, their order and what is shared are as they were, also after kills.
    """
    check(played(program, kills), program)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("made", ["think", "append"])
def test_every_change_is_seen(small, kind, made):
    """A message that is changed in place, whatever its class, is written again."""
    program = [(made, n % 12, "", kind) for n in range(13)]
    for at, how in enumerate(sorted(CHANGES)):
        program += [("change", at, how, kind), (made, 1, "", kind)]
    run = played(program)
    assert open_store(run.store.url).names(run.id, "chunk/")
    check(run, program)


def test_a_change_that_is_not_seen_would_be_found(small, monkeypatch):
    """The tests here fail if changes are not looked for."""
    monkeypatch.setattr(trees.Watch, "holds", lambda _: True)
    with pytest.raises(AssertionError):
        test_every_change_is_seen(small, 0, "append")


# -- how little is written -----------------------------------------------------------------------

LARGE = 2048


@workflow
def converse(count, kind):
    messages = []
    for number in range(count):
        messages.append(say(number, kind, len(messages)))
    return len(messages)


@step
def say(number, kind, _length):
    return KINDS[kind]("model", f"{number:08} " * (LARGE // 9), [], set(), {})


@workflow(**ALL)
def listen(count, kind):
    heard = []
    for number in range(count):
        heard.append(say.__wrapped__(tick(number), kind, 0))
    return len(heard)


def sizes(run, prefix):
    store = open_store(run.store.url)
    return [len(store.get(run.id, name)) for name in store.names(run.id, prefix)]


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_results_are_not_written_again(kind):
    """Checkpoints refer to typed messages that steps returned: the journal has them."""
    run = converse.options(store="memory:").execute(500, kind)
    assert run.checkpoints[-1].size < 3000
    assert sum(sizes(run, "chunk/")) < 0.1 * 500 * LARGE
    assert described(run.locals()["messages"]) == described([each.result for each in run.steps])


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_what_a_list_grew_by_is_written_a_few_times(kind):
    """Typed messages that no step returned are written a few times, however many there are."""
    run = listen.options(store="memory:").execute(300, kind)
    assert max(each.size for each in run.checkpoints) <= references.HEAVY
    assert sum(sizes(run, "chunk/")) < 3.5 * 300 * (LARGE + 200)
    assert len(run.locals()["heard"]) == 300


class Unknown(list):
    """A class with a layout of C."""


def test_what_is_not_understood_is_written_as_ever():
    """A list with objects of which not everything is known comes back, and makes no chunk."""

    @dataclasses.dataclass
    class Local:
        number: int

    @workflow(**ALL)
    def agent(count):
        heard = []
        for number in range(count):
            heard.append(Plain("user", Unknown([tick(number)])))
            heard.append(Local(number))
        return len(heard)

    run = agent.options(store="memory:").execute(40)
    assert sizes(run, "chunk/") == []
    heard = run.locals()["heard"]
    assert [each.content[0] for each in heard[::2]] == list(range(40))
    # The last checkpoint is before or after the last item, as its cost allows.
    assert [each.number for each in heard[1::2]] == list(range(len(heard) // 2))
    assert len(heard) >= 79


class Connection:
    """Would pickle, and is made anew all the same."""

    def __init__(self):
        self.opened = True


@stepwise.resource
def connect():
    return Connection()


@workflow(**ALL)
def with_resource(count):
    heard = []
    connection = connect()
    for number in range(count):
        connection.opened = tick(number)
        heard.append(Plain("user", connection))
    return heard[0].content is heard[-1].content is connection, connection.opened


def test_a_resource_in_a_message_is_made_anew():
    """Messages that hold a resource are no reason to store it."""
    dying.add(30)
    with pytest.raises(Killed):
        with_resource.options(store="memory:", run_id="resource")(31)
    forget_process()
    run = with_resource.options(store="memory:", run_id="resource").execute(31)
    assert run.result == (True, 30)
    assert sizes(run, "chunk/") == []


@workflow
def chain(count):
    messages, last = [], None
    for number in range(count):
        last = Plain("user", str(number), [], set(), {"parent": last})
        messages.append(last)
        tick(number)
    return [each.more["parent"] for each in messages[1:]] == messages[:-1] and len(messages)


def test_messages_that_know_the_one_before_them():
    """A long chain of objects, each of which refers to the one before, is restored."""
    dying.add(799)
    with pytest.raises(Killed):
        chain.options(store="memory:", run_id="chain")(800)
    forget_process()
    run = chain.options(store="memory:", run_id="chain").execute(800)
    assert run.resumed_from_step == 799
    messages = run.locals()["messages"]
    assert all(b.more["parent"] is a for a, b in itertools.pairwise(messages))


# -- digests -------------------------------------------------------------------------------------


def plainly(value):
    """The digest of a value without anything that was known of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "LONG", 1 << 30)
        return digest.digest(value)


def digested(value):
    """A digest, or why there is none."""
    try:
        return digest.digest(value), plainly(value)
    except stepwise.DigestError as error:
        with pytest.raises(stepwise.DigestError, match=re.escape(str(error))):
            plainly(value)
        return str(error), str(error)


digestible = st.tuples(st.sampled_from(["append", "change", "change"]), st.integers(0, 99),
                       st.sampled_from(sorted(CHANGES)), KIND)  # fmt: skip


@settings(max_examples=60)
@given(operations=st.lists(digestible, max_size=12), kind=KIND)
def test_the_digest_is_the_same(operations, kind):
    """Whatever was done to a list of objects between two digests, the second is as without one."""
    messages = [message(KINDS[kind], n) for n in range(80)]
    for operation in operations:
        change(*operation, messages, [])
        one, other = digested(messages)
        assert one == other


class Defaults:
    """Reads what its class holds."""

    role = "user"

    def __init__(self, n):
        self.n = n


@dataclasses.dataclass
class Inherits(Defaults):
    n: int
    role: str = "user"

    def __post_init__(self):
        del self.role


def test_a_class_is_part_of_the_digest_of_its_instances(monkeypatch):
    """What a message has from its class is looked at again when that has changed."""
    messages = [Inherits(n) for n in range(100)]
    before = digest.digest(messages)
    monkeypatch.setattr(Inherits, "role", "other")
    assert digest.digest(messages) == plainly(messages) != before


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_only_what_is_new_is_digested(monkeypatch, kind):
    """Of a list of objects that grew, those that were there are not digested again."""
    messages = [message(KINDS[kind], n) for n in range(300)]
    for _ in "12":  # what classes make of themselves at first use has changed them
        digest.digest(messages)
    digested = []
    right = digest.Encoder.joined
    monkeypatch.setattr(
        digest.Encoder,
        "joined",
        lambda self, new, *how: (digested.extend(new), right(self, new, *how))[1],
    )
    messages += [message(KINDS[kind], 1)]
    assert digest.digest(messages) == plainly(messages)
    assert [id(each) for each in digested] == [id(messages[-1])]


# -- real crashes, edited classes, no classes ----------------------------------------------------

SCRIPT = """
import dataclasses, os, signal
from enum import Enum
import stepwise
from stepwise import step, workflow

class Role(Enum):
    USER = "user"
    MODEL = "model"

@dataclasses.dataclass
class Message:
    role: Role
    content: str
    parts: list = dataclasses.field(default_factory=list)

class Kept:
    __slots__ = ("__dict__", "fields")

    def __init__(self, content):
        self.content, self.fields = content, {"content"}

    def __getstate__(self):
        return {"__dict__": self.__dict__, "fields": self.fields}

    def __setstate__(self, state):
        object.__setattr__(self, "__dict__", state["__dict__"])
        self.fields = state["fields"]

try:
    import pydantic
except ImportError:
    Model = Kept
else:
    class Model(pydantic.BaseModel):
        content: str

        def __init__(self, content):
            super().__init__(content=content)

@step
def think(number):
    if os.environ.get("DIE") == str(number):
        os.kill(os.getpid(), signal.SIGKILL)
    print("think", number, flush=True)
    return Message(Role.MODEL, str(number) * 700)

@workflow
def agent(count):
    mine, heard, last, kept = [], [], None, None
    for number in range(count):
        last = think(number)
        mine.append(last)
        heard.append(Message(Role.USER, last.content, [number]))
        heard.append(Model(last.content))
        heard.append(Kept(last.content))
        kept = heard[2]
        if number % 50 == 25:
            mine[3].content = heard[0].content = f"changed at {number}"
            kept.fields.add(str(number))
    assert last is mine[-1] and kept is heard[2]
    assert [each.content for each in mine[4:]] == [str(n) * 700 for n in range(4, count)]
    assert [each.parts for each in heard[::3]] == [[n] for n in range(count)]
    assert [each.content for each in heard[3:]] == [str(n) * 700 for n in range(1, count) for _ in "123"]
    assert all(type(each) is Message and each.role is Role.USER for each in heard[::3])
    assert all(type(each) is Model for each in heard[1::3])
    return mine[3].content, heard[0].content, sorted(kept.fields), len(heard)

if __name__ == "__main__":
    print("result", agent(130))
"""  # noqa: E501


def start(script, die=None):
    environment = {**os.environ, "DIE": str(die), "STEPWISE_QUIET": ""}
    return python(script, cwd=script.parent, env=environment)


def test_killed_and_resumed(tmp_path):
    """A script with typed messages that is killed again and again has all of them each time."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    said = []
    for die in (20, 70, 71, 110, None):
        done = start(script, die)
        assert done.returncode == (-9 if die is not None else 0), done.stderr
        said += re.findall(r"^think (\d+)$", done.stdout, re.MULTILINE)
    assert said == [str(number) for number in range(130)]
    fields = ["125", "25", "75", "content"]
    assert f"result ('changed at 125', 'changed at 125', {fields}, 390)" in done.stdout


def test_looked_at_without_its_classes(tmp_path):
    """The messages of another program are shown with their class and attributes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert start(script, 90).returncode == -9
    run = stepwise.runs()[0]
    values = run.locals()
    assert len(values["heard"]) == 3 * 90
    assert values["heard"][4 * 3].content == "4" * 700
    assert "Message role=" in repr(values["heard"][0])
    assert values["kept"] is values["heard"][2]


def test_a_class_that_is_gone(tmp_path):
    """Without a class that is named in its messages a run replays from the top, and says why."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert start(script, 90).returncode == -9
    text = SCRIPT.replace("class Kept:", "class Other:").replace("Kept(", "Other(")
    script.write_text(text.replace("Model = Kept", "Model = Other"), encoding="utf-8")
    done = start(script)
    assert done.returncode == 0, done.stderr
    assert "cannot be loaded" in done.stderr
    assert "replays from the top, 90 steps answered" in done.stderr
    assert "result ('changed at 125', 'changed at 125'" in done.stdout


def test_a_class_that_was_edited(tmp_path):
    """Messages get their attributes back when their class has got more of them."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert start(script, 90).returncode == -9
    text = SCRIPT.replace(
        "    content: str\n    parts", "    content: str\n    cost: int = 0\n    parts"
    )
    text = text.replace("content, [number]", "content, parts=[number]")
    script.write_text(text, encoding="utf-8")
    done = start(script)
    assert done.returncode == 0, done.stderr
    assert "result ('changed at 125', 'changed at 125'" in done.stdout


# -- what is known of an instance ----------------------------------------------------------------


class Secret:
    """Leaves something out of what is pickled."""

    def __init__(self):
        self.name, self.key = "name", ["key"]

    def __getstate__(self):
        return {"name": self.name, "key": "hidden"}


class Reduces(Plain):
    def __reduce__(self):
        return Plain, ("user", "text")


class Computes(Plain):
    """Answers for attributes that it does not have."""

    def __getattribute__(self, name):
        return super().__getattribute__(name)


class Shadows(Slotted):
    role = property(lambda _: "other")


class Text(str):
    __slots__ = ()


def unset():
    message = Slotted("user", "text")
    del message.tools
    return message


class Zone(dt.tzinfo):
    """May tell another time tomorrow."""


UNKNOWN = {
    "state": Secret,
    "reduced": lambda: Reduces("user", "text"),
    "attributes": lambda: Computes("user", "text"),
    "shadowed": lambda: Shadows.__new__(Shadows),
    "slot not set": unset,
    "text": lambda: Text("text"),
    "exception": lambda: ValueError("no"),
    "zone": lambda: AT.replace(tzinfo=Zone()),
    "class": lambda: Plain,
    "set of large": lambda: {"x" * 1000},
    "keys": lambda: {Role.USER: 1},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_known_is_in_no_tree(what):
    """An object of which a class may say more than it holds is pickled as ever."""
    assert trees.walk([Plain("user", "text")]) is not None
    assert trees.walk([Plain("user", UNKNOWN[what]())]) is None
