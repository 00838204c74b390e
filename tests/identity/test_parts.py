"""The parts of a call's identity: what attributes and captured variables count for."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import email.utils
import enum
import threading
import time
import uuid

import pytest

import stepwise
from stepwise._identity.identity import captured, digest_part, parse, short, shown_part


def text(value):
    return digest_part(value)[0]


def same(one, other):
    return parse(text(one)).same(parse(text(other)))


# -- values --------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    model: str
    client: object = dataclasses.field(default=None, compare=False)


class Memory:
    def __init__(self, **held):
        self.__dict__.update(held)


OTHER = [
    *(("gpt", "claude"), (1, 2), (0.5, 0.7), (True, 1), (None, ""), ([1], [2])),
    *(({"a": 1}, {"a": 2}), (Colour.RED, Colour.BLUE), (Config("gpt"), Config("claude"))),
    (Memory(model="gpt"), Memory(model="claude")),
    (Memory(model="gpt", lock=threading.Lock()), Memory(model="claude", lock=None)),
    *((len, max), (int, str), (dt.date(2026, 1, 1), dt.date(2026, 1, 2))),
    # In an object with a UUID, what is not one still counts.
    (Memory(id=uuid.uuid4().hex, user="x"), Memory(id=uuid.uuid4().hex, user="y")),
]


@pytest.mark.parametrize(("one", "other"), OTHER, ids=lambda value: type(value).__name__)
def test_other_values_are_other_parts(one, other):
    """Values that are not equal have other parts, whatever kind they are of."""
    assert not same(one, other)
    assert text(one) == text(copy.copy(one))


VOLATILE = {
    "UUID": lambda _: uuid.uuid4(),
    "hex": lambda _: uuid.uuid4().hex,
    "text": lambda _: str(uuid.uuid4()),
    "moment": lambda day: dt.datetime(2026, 1, day),  # noqa: DTZ001
    "text of a moment": ("", "2026-01-01T10:00:00Z", "2026-01-02 11:30").__getitem__,
    "ctime": lambda day: time.ctime(day * 10**8),
    "mail": lambda day: email.utils.formatdate(day * 10**8, usegmt=day == 2),
    "in an object": lambda _: Memory(id=uuid.uuid4().hex, user="x"),
    "in a dict": lambda day: {"at": dt.datetime(2026, 1, day)},  # noqa: DTZ001
}


@pytest.mark.parametrize("kind", VOLATILE)
def test_times_and_uuids_do_not_tell_apart(kind):
    """A time or a UUID, by type or form of text, is the same part as another one."""
    one, other = map(VOLATILE[kind], (1, 2))
    assert same(one, other)
    assert parse(text(one)).exact != parse(text(other)).exact


def test_what_the_clock_showed_does_not_tell_apart():
    """A number that the clock has shown since the process began counts like a time."""
    shown = [time.time(), time.time_ns(), int(time.time() * 1000), time.monotonic()]
    for value in shown:
        assert parse(text(value)).volatile, value
        assert same(value, type(value)(12))
    for value in (0.7, 30, 4096, 1_000_000.5, 10**12):
        assert not parse(text(value)).volatile, value


def test_what_the_clock_showed_soon_after_boot(monkeypatch):
    """Soon after boot, a clock's number is known by its digits after the point."""
    monkeypatch.setattr("time.monotonic", lambda: 12.000_000_5)
    assert parse(text(11.999_999_123)).volatile
    for value in (11.9, 11.999, 12):
        assert not parse(text(value)).volatile, value


def test_what_has_no_digest_counts_by_its_class():
    """Two locks are one part, and are handed out so that it can be asked whether they are one.

    Of somebody else's object that holds a lock nothing counts but its class.
    """
    locks = threading.Lock(), threading.Lock()
    one, other = threading.Event(), threading.Event()
    other.set()
    assert same(*locks)
    assert same(one, other)
    assert not same(locks[0], one)
    for value, held in (
        ({"a": [locks[0]]}, locks[0]),
        (Memory(lock=locks[1], n=1), locks[1]),
        (one, one),
    ):
        assert digest_part(value)[1] == [held]


def test_what_is_nested_too_deeply_counts_by_its_class():
    """A value nested a hundred thousand levels deep costs no error; a cycle has a part."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert digest_part(deep)[1] == [deep]
    one = Memory(name="a")
    one.me = one
    assert digest_part(one)[1] == []
    assert digest_part([one], (one,))[1] == []


# -- clients -------------------------------------------------------------------------------------


class Client:
    def __init__(self, url, key):
        self.url, self.key, self.lock = url, key, threading.Lock()


def test_a_declared_class_counts_by_its_fields():
    """stepwise.identity() says what tells the objects of a class apart, and nothing else does."""

    class Declared(Client):
        pass

    assert digest_part(Declared("u", "k"))[1] != []
    stepwise.identity(Declared, fields=["url"])
    assert digest_part(Declared("u", "k"))[1] == []
    assert same(Declared("u", "k"), Declared("u", "other"))
    assert not same(Declared("u", "k"), Declared("v", "k"))


def test_a_wrong_declaration_is_refused():
    """identity() of what is no class, or by what is no name, says so."""
    for cls, fields in (("Client", ["url"]), (Client, [3]), (Client, [""])):
        with pytest.raises(stepwise.ConfigurationError, match=r"stepwise\.identity"):
            stepwise.identity(cls, fields=fields)


def test_known_clients_count_by_their_address():
    """An OpenAI client counts by its base URL and organization, never by its key."""
    openai = pytest.importorskip("openai")
    one = openai.OpenAI(api_key="a")
    assert same(one, openai.OpenAI(api_key="b"))
    assert not same(one, openai.OpenAI(api_key="a", base_url="http://127.0.0.1:1"))
    assert digest_part(one)[1] == []


# -- functions -----------------------------------------------------------------------------------


def make(unit, factor=1):
    def convert(x, scale=factor):
        return f"{x * scale} {unit}"

    return convert


def test_functions_count_by_what_they_captured_and_their_defaults():
    """Two functions of one factory differ in a captured variable or in a default."""
    assert text([make("m")]) == text([make("m")])
    assert text([make("m")]) != text([make("ft")])
    assert text([make("m")]) != text([make("m", 2)])


def test_the_text_of_a_function_is_no_part():
    """An edited function of the same name is the same part."""
    texts = []
    for body in ("return 1", "return 2"):
        namespace = {"__name__": __name__}
        exec(f"def edited():\n    {body}", namespace)
        texts.append(text(namespace["edited"]))
    assert texts[0] == texts[1]


def test_what_captured_functions_captured_is_found():
    """The variables of a function that another one captured have dotted names."""
    count = 0

    def helper():
        return count

    def outer():
        return helper()

    assert set(captured(outer)) == {"helper", "helper.count"}
    assert captured(len) == {}


# -- their texts ---------------------------------------------------------------------------------


def test_parts_are_named_for_messages():
    """A message speaks of arguments, attributes and captured variables."""
    assert shown_part("question") == "the argument 'question'"
    assert shown_part("self.model") == "the attribute 'model' of its instance"
    private = shown_part("self.__pydantic_private__['_model']")
    assert private == "the attribute '_model' of its instance"
    assert shown_part("self.[]") == "the content of its instance"
    assert shown_part("of:node 'ask':model") == "model of node 'ask'"
    assert shown_part("closure.unit") == "the captured variable 'unit'"
    assert shown_part("closure") == "the argument 'closure'"
    assert shown_part("@class") == "the class of its instance"


def test_parts_are_short():
    """A part takes eight characters, and less for what is shorter itself."""
    assert len(short(b"s" * 64)) == 8
    assert short(b"N") == "=N"
