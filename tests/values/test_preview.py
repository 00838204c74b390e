"""A preview stops where it is cut off, says the same as one that does not, and calls nothing."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import functools
import os
import string
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwise._values.preview import preview, preview_arguments


@dataclasses.dataclass(frozen=True)
class Message:
    role: object
    content: object = dataclasses.field(repr=False)
    calls: object
    usage: object
    at: object
    more: object


Pair = collections.namedtuple("Pair", "one other")  # noqa: PYI024 (no types are needed)


class Text(str):
    __slots__ = ()


class Raises:
    def __repr__(self):
        raise ValueError("no text")


class Plain:
    pass


texts = st.text(max_size=12) | st.text(string.printable + "\x00\ud800\u20ac\U0001f600", max_size=90)
atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.integers(10**38, 10**42)
    | st.binary(max_size=50)
    | texts
    | st.builds(Text, texts)
    | st.builds(Raises)
    | st.builds(Plain)
    | st.sampled_from([len, Plain, 1j, b"", "", ()])
)


def holding(inner):
    keys = texts | st.integers() | st.builds(Text, texts) | st.tuples(st.integers(), texts)
    return (
        st.lists(inner, max_size=9)
        | st.lists(inner, max_size=9).map(tuple)
        | st.dictionaries(keys, inner, max_size=11)
        | st.dictionaries(keys, inner, max_size=11).map(collections.OrderedDict)
        | st.lists(inner, max_size=9).map(collections.deque)
        | st.lists(keys, max_size=60).map(lambda each: set(each[:1] * 60))
        | st.frozensets(st.integers(), max_size=60)
        | st.builds(Message, inner, inner, inner, inner, inner, inner)
        | st.builds(Pair, inner, inner)
    )


values = st.recursive(atoms, holding, max_leaves=40)
masks = st.sampled_from([None, lambda text: text.replace("1", ""), lambda text: text + "*"])


@given(value=values, limit=st.sampled_from([3, 10, 40, 80, 81, 200, 1000]), mask=masks)
def test_a_preview_is_the_whole_text_cut_off(value, limit, mask):
    """A preview with a limit is the one without, cut off; a mask sees each text of it."""
    whole = preview(value, 10**9, mask=mask)
    assert preview(value, limit, mask=mask) == cut(whole, limit)
    if mask is not None and "1" in "".join(mask("1")):
        assert whole.endswith("*")


def cut(text, limit):
    return text if len(text) <= limit else text[: limit - 3] + "..."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([*range(9)], "[0, 1, 2, 3, 4, 5, ...]"),
        ((*"abcdefgh",), "('a', 'b', 'c', 'd', 'e', 'f', ...)"),
        ({n: n for n in range(9)}, "{0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, ...}"),
        ({3, 1, 2}, "{1, 2, 3}"),
        ([[[[[1]]]]], "[[[[[...]]]]]"),
        ({"a": {"b": {"c": {"d": 1}}}}, "{'a': {'b': {'c': {'d': 1}}}}"),
        (b"x" * 41, "<41 bytes>"),
        ("x" * 100, "'" + "x" * 37 + "..." + "x" * 38 + "'"),
        (10**41, "100000000000000000...0000000000000000000"),
        (Message(1, 2, 3, 4, 5, 6), "Message(role=1, calls=3, usage=4, at=5, ...)"),
        (Plain(), "<Plain>"),
        (Raises(), "<Raises>"),
        (Text("a"), "'a'"),
        (collections.OrderedDict(a=1), "OrderedDict({'a': 1})"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_values_are_shown(value, shown):
    """A preview shows a few items of each container, and both ends of a long text."""
    assert preview(value) == shown


@given(st.dictionaries(st.sampled_from(["q", "messages", "model"]), values))
def test_arguments_are_their_previews(arguments):
    """The text of a call's arguments is that of each, cut off."""
    text = ", ".join(f"{name}={preview(value, 80)}" for name, value in arguments.items())
    assert preview_arguments(arguments) == cut(text, 400)


class Loads:
    """Loads what it shows."""

    def __init__(self, asked):
        self.asked = asked

    def __repr__(self):
        self.asked.append(self)
        return "loaded"

    __str__ = __repr__

    @property
    def shape(self):
        return (len(repr(self)),)


class Lazy(dict):
    """A dict with items of its own making."""

    def items(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("around", "shown"),
    [
        (lambda each: each, "<Loads>"),
        (lambda each: [each, (each,), {"a": each}], "[<Loads>, (<Loads>,), {'a': <Loads>}]"),
        (lambda each: collections.deque([each]), "deque([<Loads>])"),
        (lambda each: Pair(each, 1), "Pair(one=<Loads>, other=1)"),
        (lambda each: types.SimpleNamespace(a=each), "<SimpleNamespace>"),
        (lambda each: functools.partial(print, each), "<partial>"),
        (lambda each: ValueError([each]), "<ValueError>"),
        (lambda each: Lazy(a=each), "Lazy({'a': <Loads>})"),
        (
            lambda each: Message(each, 1, 2, 3, 4, 5),
            "Message(role=<Loads>, calls=2, usage=3, at=4, ...)",
        ),
        (lambda each: {each}, "{<Loads>}"),
        (lambda each: each.__repr__, "<method>"),
        (lambda _: ValueError("wrong"), "ValueError('wrong')"),
        (lambda _: dt.date(2020, 1, 1), "datetime.date(2020, 1, 1)"),
    ],
)
def test_own_code_is_not_called(around, shown):
    """A preview calls no code of a user's class, at any depth, and shows the class's name."""
    asked = []
    assert preview(around(Loads(asked))) == shown
    assert asked == []


def test_what_is_stored_nowhere_is_not_shown(monkeypatch):
    """A preview shows the environment and the namespaces of modules by name."""
    monkeypatch.setenv("AAA_API_KEY", "sk-fake-0123456789")
    assert preview([os.environ, globals(), sys.modules]) == (
        f"[<os.environ>, <{__name__}.__dict__>, <sys.modules>]"
    )
