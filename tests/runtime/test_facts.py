"""Our named tuples are what ``typing.NamedTuple`` makes."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest
from harness import interpreted

from stepwise._runtime import facts


class Ours(facts.NamedTuple):
    """A point."""

    x: int
    y: list[str]
    z: float | None = None
    _ignored = 3

    @property
    def both(self):
        return self.x, self.y

    @classmethod
    def of(cls, x):
        return cls(x, [])

    def named(self):
        return __class__.__name__


class Theirs(typing.NamedTuple):
    """A point."""

    x: int
    y: list[str]
    z: float | None = None


def shown(value):
    return repr(value).replace("Theirs", "Ours")


def error_of(call, *arguments, **named):
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        call(*arguments, **named)
    return type(caught.value), str(caught.value).replace("Theirs", "Ours")


def test_values():
    """Values compare, hash, unpack, print, copy and convert like those of ``typing``."""
    ours, theirs = Ours(1, ["a"], z=2.5), Theirs(1, ["a"], z=2.5)
    assert ours == theirs == (1, ["a"], 2.5)
    assert hash(Ours(1, "")) == hash(Theirs(1, ""))
    assert repr(ours) == shown(theirs)
    assert ours._asdict() == theirs._asdict()
    assert (ours.x, ours.y, ours.z) == tuple(ours)
    assert ours._replace(x=2) == Ours(2, ["a"], 2.5)
    assert ours.both == (1, ["a"])
    assert Ours.of(4) == Ours._make([4, [], None]) == Ours(4, [])
    assert ours.named() == "Ours"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        loaded = pickle.loads(pickle.dumps(ours, protocol))
        assert type(loaded) is Ours
        assert loaded == ours
    assert type(copy.deepcopy(ours)) is Ours
    assert not hasattr(ours, "__dict__")
    match ours:
        case Ours(1, ["a"], z=2.5):
            pass
        case _:
            pytest.fail("does not match")


def test_classes():
    """Classes have the bases, fields, defaults, signature and documentation of those of typing."""
    for name in ("__bases__", "_fields", "_field_defaults", "__match_args__", "__doc__"):
        assert getattr(Ours, name) == getattr(Theirs, name), name
    ours, theirs = inspect.signature(Ours), inspect.signature(Theirs)
    assert [each.default for each in ours.parameters.values()] == [
        each.default for each in theirs.parameters.values()
    ]
    assert str(ours) == "(x: 'int', y: 'list[str]', z: 'float | None' = None)"
    assert list(Ours.__annotations__) == list(Theirs.__annotations__)
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)
    assert Ours.x.__doc__ == Theirs.x.__doc__
    assert type(Ours) is type
    assert (Ours.__module__, Ours.__qualname__) == (__name__, "Ours")


@pytest.mark.parametrize(
    "call",
    [
        lambda cls: cls(),
        lambda cls: cls(1, 2, 3, 4),
        lambda cls: cls(1, 2, w=3),
        lambda cls: cls(1, 2, x=3),
        lambda cls: cls._make([1]),
        lambda cls: setattr(cls(1, []), "x", 2),
        lambda cls: setattr(cls(1, []), "w", 2),
    ],
)
def test_wrong_use(call):
    """A wrong call is refused with the words of ``typing.NamedTuple``."""
    assert error_of(call, Ours) == error_of(call, Theirs)
    with pytest.raises(TypeError, match="unexpected field names: \\['w'\\]"):
        Ours(1, [])._replace(w=1)
    with pytest.raises(TypeError, match="without a default"):
        type("Wrong", (facts.NamedTuple,), {"__annotations__": {"a": int, "b": int}, "a": 1})


def test_any_number_of_fields():
    """Few fields and many are taken by place and by name, in order."""
    for count in range(facts._MOST_FIELDS + 1):
        names = [f"field{number}" for number in range(count)]
        annotations = {"__annotations__": dict.fromkeys(names)}
        cls = type(facts.NamedTuple)("Made", (facts.NamedTuple,), annotations)
        value = cls(*range(count))
        assert value == cls(**dict(zip(names, range(count), strict=True))) == tuple(range(count))
        assert [getattr(value, name) for name in names] == list(range(count))
        assert [*inspect.signature(cls).parameters] == names


def test_nothing_is_compiled():
    """Making a class of a few fields compiles nothing: each start would pay for it."""
    code = """
import sys
from stepwise._runtime.facts import NamedTuple
sys.addaudithook(lambda event, _: event == "compile" and print(event))
class Made(NamedTuple):
    a: 'list[int]'
    b: 'dict[str, int]' = {}
assert Made([1]) == ([1], {})
"""
    done = interpreted("-c", code)
    assert done.stdout == ""
