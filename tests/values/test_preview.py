"""A preview stops where it is cut off, and says the same as one that does not."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import reprlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwise._values.preview import preview, preview_arguments


class Whole(reprlib.Repr):
    """The way in which previews were made before: all of the text, which was then cut off."""

    def __init__(self, text, mask):
        super().__init__()
        self.mask = mask
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 6
        self.maxdict = 8
        self.maxstring = text
        self.maxother = 80
        self.maxlong = 40

    def repr1(self, x, level):
        kind = type(x)
        if kind is str:
            if self.mask is not None:
                x = self.mask(x)
            if len(x) <= self.maxstring and len(text := repr(x)) <= self.maxstring:
                return text
        elif kind in {type(None), bool, float} or (kind is int and abs(x) < 10**18):
            return repr(x)
        try:
            return super().repr1(x, level)
        except Exception as error:
            return f"<{type(x).__name__}: {type(error).__name__} in repr>"

    def repr_instance(self, x, level):
        cls = type(x)
        names = None
        if dataclasses.is_dataclass(cls):
            names = [f.name for f in dataclasses.fields(cls) if f.repr]
        elif isinstance(x, tuple):
            names = cls._fields
        if names is not None:
            if level <= 0:
                return f"{cls.__name__}(...)"
            shown = [f"{n}={self.repr1(getattr(x, n, '?'), level - 1)}" for n in names[:4]]
            return f"{cls.__name__}({', '.join(shown + ['...'] * (len(names) > 4))})"
        if isinstance(x, dict):
            return f"{cls.__name__}({self.repr_dict(x, level)})"
        if cls.__repr__ is object.__repr__:
            return f"<{cls.__name__}>"
        text = repr(x) if self.mask is None else self.mask(repr(x))
        return text if len(text) <= 80 else f"{text[:40]}...{text[-40:]}"

    def repr_set(self, x, level):
        few = x if len(x) <= 50 else itertools.islice(x, 7)
        return super().repr_set(set(few), level)

    def repr_frozenset(self, x, level):
        few = x if len(x) <= 50 else itertools.islice(x, 7)
        return super().repr_frozenset(frozenset(few), level)

    def repr_dict(self, x, level):
        if level <= 0 and x:
            return "{...}"
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}"
            for key, item in itertools.islice(x.items(), 8)
        ]
        return f"{{{', '.join(shown + ['...'] * (len(x) > 8))}}}"

    def repr_bytes(self, x, _level):
        if len(x) > 40:
            return f"<{len(x)} bytes>"
        return repr(x) if self.mask is None else self.mask(repr(x))


def former(value, limit=200, mask=None):
    """The preview as it was made before."""
    text = Whole(80 if type(value) is str else 40, mask).repr1(value, 4)
    text = text if mask is None else mask(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


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
def test_a_preview_is_the_text_that_it_was(value, limit, mask):
    """A preview is what it was when all of its text was made before it was cut off."""
    assert preview(value, limit, mask=mask) == former(value, limit, mask)


@given(st.dictionaries(st.sampled_from(["q", "messages", "model"]), values))
def test_arguments_are_the_text_that_they_were(arguments):
    """The text of a call's arguments is what it was, too."""
    text = ", ".join(f"{name}={former(value, 80)}" for name, value in arguments.items())
    assert preview_arguments(arguments) == (text if len(text) <= 400 else text[:397] + "...")


@pytest.mark.parametrize("around", [list, tuple, lambda each: dict(enumerate(each))])
def test_what_is_cut_off_is_not_asked_for_its_text(around):
    """An object behind the end of a preview is not asked for its text."""
    asked = []

    class Asked:
        def __repr__(self):
            asked.append(self)
            return "x" * 60

    shown = preview(around([Asked(), Asked(), Asked(), Asked()]), 80)
    assert (len(shown), len(asked)) == (80, 2)
