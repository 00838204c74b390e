"""Paths into recorded values, short texts of values, and what differs between two."""

import collections
import dataclasses
import enum
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwise._runs.paths import (
    ABSENT,
    differences,
    find,
    length_of,
    same_value,
    short,
    short_values,
    shown,
    size_of,
)
from stepwise.errors import ConfigurationError


@dataclasses.dataclass
class Message:
    role: str
    content: str
    token: str = dataclasses.field(default="hidden", repr=False)


class Trap:
    """Each way to look at an instance with code of its class fails the test."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, **held):
        object.__setattr__(self, "slot", "in a slot")
        for name, value in held.items():
            object.__setattr__(self, name, value)

    def _fail(self, *_):
        raise AssertionError("code of the class was called")

    __getattr__ = __getitem__ = __len__ = __iter__ = __repr__ = __eq__ = __contains__ = _fail
    __getattribute__ = __class__ = __bool__ = __str__ = __setattr__ = _fail
    __hash__ = None

    @property
    def computed(self):
        raise AssertionError("a property was called")


class TrapList(list):
    __getitem__ = __len__ = __iter__ = __repr__ = __eq__ = Trap._fail
    __hash__ = None


class TrapDict(dict):
    __getitem__ = __len__ = __iter__ = __repr__ = __missing__ = __eq__ = items = keys = Trap._fail
    __hash__ = None


class Role(str, enum.Enum):
    USER = "user"


VALUES = {
    "messages": [Message("user", "hello"), {"content": "good day", "max tokens": 9}],
    "point": collections.namedtuple("Point", "x y")(1, [2, 3]),  # noqa: PYI024
    "by_number": {3: "three", (1, 2): "pair", Role.USER: "a person"},
    "text": "0123456789",
    "names": collections.deque(["a", "b"]),
    "odd": {"it's": {"a.b[0]": 1}},
    "trap": Trap(inner=TrapList([TrapDict(key="found")])),
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("messages[0].content", "hello"),
        ("messages[-1].content", "good day"),
        ("messages[1]['max tokens']", 9),
        ('messages[1]["content"][0:4]', "good"),
        ("messages[0:1][0].role", "user"),
        ("point.y[1]", 3),
        ("point[0]", 1),
        ("by_number[3]", "three"),
        ("by_number[(1, 2)]", "pair"),
        ("by_number.user", "a person"),
        ("by_number[0:1]", {3: "three"}),
        ("text[8:]", "89"),
        ("names[1]", "b"),
        ("odd[\"it's\"]['a.b[0]']", 1),
        ("trap.inner[0].key", "found"),
        ("trap.slot", "in a slot"),
    ],
)
def test_find(path, found):
    """A path leads to a key, an attribute, an item or a slice, and calls no code of a class."""
    assert find(VALUES, path) == found


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("message", "there is no message; there is messages, point"),
        ("messages[2]", "messages has no [2]: it is a list of 2 items"),
        ("messages[0].text", "messages[0] has no text: it is a Message with the attributes role, "),
        ("messages[1].text", "it is a dict of 2 with the keys 'content', 'max tokens'"),
        ("messages[0].token", "has no token"),
        ("text.upper", "text has no upper: it is a str of 10 characters"),
        ("trap.computed", "trap has no computed: it is a Trap with the attributes"),
        ("by_number[True]", "by_number has no [True]"),
    ],
)
def test_what_is_missing(path, said):
    """The error names the part that is missing, and what there is."""
    with pytest.raises(ConfigurationError) as caught:
        find(VALUES, path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["", ".a", "a.", "a[", "a[b]", "a[__import__('os')]", "a b", "a[0", "[0]", "a..b", "a" * 2000,
     "a[1:2:3]", "a()", "len(a)", "a['x]"],
)  # fmt: skip
def test_what_is_no_path(path):
    """A text that is no path is refused with an example; nothing of it is executed."""
    with pytest.raises(ConfigurationError, match="is not a path"):
        find({"a": [1]}, path)


def test_short_text():
    """A long value keeps its beginning and its end, and the paths of what was cut out are told."""
    messages = [{"role": "user", "content": "x" * 500}, *({"role": "tool"} for _ in range(40))]
    text, cut = short(messages, "messages", 300)
    assert len(text) <= 600
    assert text.startswith("[{'role': 'user', 'content': 'xxx")
    left_out = re.search(r"… (\d+) more …", text)
    assert text.endswith("{'role': 'tool'}]")
    assert find({"messages": messages}, cut[0]) == [{"role": "tool"}] * int(left_out[1])
    assert find({"messages": messages}, cut[1]) == "x" * 500
    assert short([1, 2], "few") == ("[1, 2]", ())
    assert short(Message("user", "hello"), "m").text == "Message(role='user', content='hello')"
    assert short(set(), "s").text == "set()"
    assert short(VALUES["trap"], "t").text.startswith("Trap(slot='in a slot', inner=TrapList([")


def test_secrets_are_not_shown():
    """Values under the names of secrets, and texts that look like credentials, are masked."""
    config = {"api_key": "abc", "url": "https://u:sesame@host/", "n": 1}
    text = short(config, "config").text
    assert "abc" not in text
    assert "sesame" not in text
    assert short("hunter2", "password").text == "<secret>"
    held = {"api_keys": ["abc"], "headers": [("token", "abc123def456ghi789")], "n": 1}
    for told in (short(held, "held").text, shown(held, "held"), shown(["abc"], "api_keys")):
        assert "abc" not in told
    assert shown({"api_key": "abc", "inner": Message("password", ["x"])}, "config") == (
        "{'api_key': <secret>, 'inner': Message(role='password', content=['x'])}"
    )


def test_a_whole_text_executes_nothing():
    """The whole text of a value calls no code of its classes, and ends where it holds itself."""
    value = {"key": VALUES["trap"], "long " * 40: list(range(300)), "nested": [[[[[[[[[[1]]]]]]]]]]}
    value["self"] = value
    text = shown(value, "value")
    assert "Trap(slot='in a slot', inner=TrapList([" in text
    assert repr("long " * 40) in text
    assert "298, 299]" in text
    assert "[[[[[[[[[[1]]]]]]]]]]" in text
    assert text.endswith("'self': {… 4}}")


def test_keys_and_numbers_without_a_text():
    """A number with more digits than Python writes is a key or a value like any other."""
    large = 10**5000
    value = {large: [1], (large, 1): [2] * 400, "k" * 5000: [3] * 400, float("inf"): [4] * 400}
    text, cut = short(value, "value", 200)
    assert len(text) <= 400
    for path in cut:
        find({"value": value}, path)
    assert len(differences(value, {**value, large: [2]}, "value")) == 1
    assert differences(large, large, "n") == []
    assert len(differences(large, large + 1, "n")) == 1


def test_all_variables_are_short():
    """The texts of all variables keep to the limit of JSON, whatever the variables hold."""
    few = short_values({"a": 1, "b": [1, 2]})
    assert few == {"locals": {"a": "1", "b": "[1, 2]"}, "cut": [], "left_out": 0}
    many = {f"name_{n}": "\U0001f600" * 5000 for n in range(500)}
    found = short_values(many)
    assert len(json.dumps(found, indent=2)) <= 8000
    assert found["left_out"] == 500 - len(found["locals"])
    one = short_values({"messages": [{"content": "lorem " * 100}] * 55, "n": 1})
    assert one["locals"].keys() == {"messages", "n"}
    assert find({"messages": [{"content": "x"}] * 55}, one["cut"][0])
    assert one["left_out"] == 0


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers() | st.text())
        | st.builds(Message, inner, inner)
    ),
)


@given(_ANY, st.integers(40, 300))
def test_any_value_is_short(value, room):
    """The text of any value keeps to its room, and each path of a cut part leads to a value."""
    text, cut = short(value, "x", room)
    assert len(text) <= 2 * room + 1
    for path in cut:
        find({"x": value}, path)
    assert same_value(value, value)
    assert differences(value, value, "x") == []
    assert size_of(value) > 0


def test_what_differs():
    """The deepest parts that differ are named, with what was there before and after."""
    old = {"messages": [Message("user", "hello")], "n": 1}
    new = {"messages": [Message("user", "good day"), Message("tool", "9")], "n": 1}
    first, second = differences(old, new, "state")
    assert first[:3] == ("state.messages[0].content", "'hello'", "'good day'")
    assert second[:2] == ("state.messages[1]", None)
    assert second.new == "Message(role='tool', content='9')"
    assert differences(ABSENT, [1], "x") == [("x", None, "[1]", ())]
    assert differences([1, 2, 3, 4], [1], "x") == [("x[1:4]", "[2, 3, 4]", None, ())]
    many = differences([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], "x")
    assert [each.path for each in many] == ["x"]


def test_where_long_texts_differ():
    """Of two long texts, what is around their first difference is shown; credentials are masked."""
    key = "sk-proj-" + "a1B2c3D4e5F6" * 4
    old, new = (f"{'x' * 300} {key} and {each} {'y' * 300}" for each in ("ann", "bob"))
    [found] = differences(old, new, "text")
    assert "and ann yyy" in found.old
    assert "and bob yyy" in found.new
    assert found.cut == ("text",)
    assert key[:12] not in f"{found}"
    assert key[-12:] not in f"{found}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (float("nan"), float("nan"), True),
        (True, 1, False),
        (1, 1.0, False),
        ({1: "a"}, {True: "a"}, False),
        ({1, 2}, {2, 1}, True),
        (Message("a", "b", "c"), Message("a", "b", "d"), False),
        (dataclasses.replace, dataclasses.replace, True),
    ],
)
def test_same_value(one, other, same):
    """Two values are the same by types and parts, without a call of code of their classes."""
    assert same_value(one, other) is same


def test_instances_are_compared_by_what_they_hold():
    """Instances are the same if they hold the same, whatever their classes say."""
    assert same_value(Trap(a=[1]), Trap(a=[1]))
    assert not same_value(Trap(a=[1]), Trap(a=[2]))
    assert not same_value(TrapList([1]), TrapList([2]))


def test_a_value_that_holds_itself():
    """Values in a circle are shown, measured and compared, too."""
    one, other = [1], [1]
    one.append(one)
    other.append(other)
    assert same_value(one, other)
    assert len(short(one, "x").text) < 400
    assert size_of(one) < 1000


def test_arrays():
    """Arrays are told apart by their content, and are as large as it."""
    numpy = pytest.importorskip("numpy")
    one, other = numpy.zeros(5000), numpy.zeros(5000)
    assert same_value(one, other)
    other[2500] = 1
    assert not same_value(one, other)
    assert size_of(one) >= 40_000
    assert length_of(one) is None


def test_short_text_of_much():
    """A huge value is shortened at once, and its JSON stays short."""
    huge = {f"key {n}": ["x" * 100] * 100 for n in range(100_000)}
    text, cut = short(huge, "huge", 200)
    assert len(json.dumps([text, cut])) < 1000
    assert find({"huge": huge}, cut[0].partition("[")[0]) is huge
