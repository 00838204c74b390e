"""What has no digest, and how that is told: the culprit, its path, what it is."""

from __future__ import annotations

import collections
import functools
import os
import socket
import sys
import threading
import types
import zoneinfo
from typing import Any

import numpy as np
import pytest
from digested import Attrs, Model, Pair, Plain, Point, Slotted, WithSlots, closure, local_class

from stepwise._values.digest import digest
from stepwise.errors import DigestError


def generator():
    yield 1


async def coroutine():
    pass


def culprits():
    """(name, what has no digest, how to get rid of it)."""
    yield "lock", threading.Lock(), None
    yield "rlock", threading.RLock(), None
    yield "generator", generator(), None
    opened = open(os.devnull)  # noqa: SIM115
    yield "file", opened, opened.close
    written = open(os.devnull, "wb")  # noqa: SIM115
    yield "binary file", written, written.close
    yield "lambda", lambda: 1, None
    yield "local function", closure(1), None
    yield "local class", local_class(), None
    connected = socket.socket()
    yield "socket", connected, connected.close
    awaited = coroutine()
    yield "coroutine", awaited, awaited.close
    yield "thread local", threading.local(), None
    yield "frame", sys._getframe(), None
    yield "method of a list", [].append, None
    yield "mapping proxy", types.MappingProxyType({}), None
    yield "dict view", {}.keys(), None
    with open(zoneinfo.ZoneInfo("UTC").key and _zone_file(), "rb") as file:
        yield "zone without a name", zoneinfo.ZoneInfo.from_file(file), None


def _zone_file():
    import importlib.resources

    return str(importlib.resources.files("tzdata") / "zoneinfo" / "UTC")


CULPRITS = [name for name, _, close in culprits() if close is None or close() is None]


@pytest.fixture
def culprit(request):
    for name, value, close in culprits():
        if name == request.param:
            yield value
        if close is not None:
            close()


@pytest.mark.parametrize("culprit", CULPRITS, indirect=True)
def test_refused(culprit):
    """What has no identity is refused, with its type and the path to it."""
    with pytest.raises(DigestError) as caught:
        digest({"a": [1, culprit]})
    assert caught.value.path == "['a'][1]"
    assert "(at value['a'][1])" in str(caught.value)
    assert caught.value.type_name
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, TypeError)
    with pytest.raises(DigestError) as caught:
        digest(culprit)
    assert caught.value.path == ""
    assert "(at" not in str(caught.value)


LOCK = threading.Lock()
PATHS = {
    "[2]": [1, 2, LOCK],
    "[0][1]": ((1, LOCK),),
    "{...}": {LOCK},
    "['k']": collections.OrderedDict(k=LOCK),
    "['d']": collections.defaultdict(list, d=LOCK),
    "[1]": collections.deque([1, LOCK]),
    "[1][0]": Pair(1, [LOCK]),
    ".x": Point(LOCK),
    ".x[0]": Slotted([LOCK]),
    ".x['a']": Attrs({"a": LOCK}),
    ".x[3]": Model(x=[1, 2, 3, LOCK]),
    "._secret": None,  # made below: a model's private attribute
    ".a.b": Plain(a=Plain(b=LOCK)),
    ".y": WithSlots(1),
    "['a'].x[0].a": {"a": Point([Plain(a=LOCK)])},
    "[0]": np.array([LOCK]),
    "['nested'][1]": {"nested": np.array([1, LOCK])},
}
PATHS["._secret"] = Model()
PATHS["._secret"]._secret = LOCK
PATHS[".y"].y = LOCK


@pytest.mark.parametrize("path", PATHS)
def test_paths(path):
    """The path to what has no identity goes through every kind of container."""
    with pytest.raises(DigestError) as caught:
        digest(PATHS[path])
    assert caught.value.path == path
    assert caught.value.type_name == "_thread.lock"
    assert f"value{path}" in str(caught.value)


def test_path_through_a_slice():
    """The path does not begin anew inside a slice."""
    with pytest.raises(DigestError) as caught:
        digest({"a": [slice(LOCK)]})
    assert caught.value.path.startswith("['a'][0]")


def test_keys_without_a_repr():
    """A key whose ``repr`` raises does not keep the refusal from being told."""

    class Mute:
        def __repr__(self):
            raise RuntimeError("no text")

    with pytest.raises(DigestError, match=r"_thread\.lock"):
        digest({Mute(): LOCK})


def test_long_keys_are_shortened():
    """A long key is shortened in the path."""
    with pytest.raises(DigestError) as caught:
        digest({"x" * 10_000: LOCK})
    assert len(str(caught.value)) < 300


def test_released_memory():
    """A memory view that was released is refused."""
    view = memoryview(b"gone")
    view.release()
    with pytest.raises(DigestError):
        digest([view])


def test_objects_that_fail_to_reduce():
    """An object whose reduction raises is refused with what it said."""

    class Stubborn:
        def __reduce_ex__(self, protocol):
            raise ZeroDivisionError("I am a client")

    with pytest.raises(DigestError, match="I am a client") as caught:
        digest([Stubborn()])
    assert caught.value.path == "[0]"


def test_objects_made_by_a_callable_object():
    """An object that a callable object makes counts by that, too."""

    class Odd:
        def __init__(self, base):
            self.base = base

        def __reduce__(self):
            return functools.partial(int, base=self.base), ("1",)

    assert digest(Odd(2)) == digest(Odd(2)) != digest(Odd(3))


def deep(depth, wrap):
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: (inner,),
        lambda inner: {"k": inner},
        Point,
        lambda inner: Plain(inner=inner),
        lambda inner: Pair(1, inner),
        lambda inner: functools.partial(int, inner),
        slice,
    ],
    ids=["list", "tuple", "dict", "dataclass", "object", "namedtuple", "partial", "slice"],
)
def test_deep_nesting(wrap):
    """What is nested too deeply is refused; it does not crash the interpreter."""
    value = deep(20_000, wrap)
    try:
        with pytest.raises(DigestError) as caught:
            digest(value)
        assert len(str(caught.value)) < 2_000
    finally:
        while value is not None:  # taken apart from outside: freeing it would recurse as well
            value = _inner(value)


def _inner(value):
    if isinstance(value, slice):
        return value.stop
    if isinstance(value, functools.partial):
        return value.args[0]
    if isinstance(value, (list, tuple)):
        return value[-1]
    if isinstance(value, dict):
        return value["k"]
    return value.x if isinstance(value, Point) else value.inner


def test_moderate_nesting():
    """A hundred levels, as no prompt has, are no problem."""
    assert digest(deep(100, lambda inner: [inner])) != digest(deep(99, lambda inner: [inner]))
    assert digest(deep(100, Point)) == digest(deep(100, Point))
