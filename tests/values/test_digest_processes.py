"""Digests are the same in every process, with every hash seed, in every version of Python."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap

import pytest
from pythons import interpreter

import stepwise

VALUES = textwrap.dedent(
    """
    import array, collections, dataclasses, datetime as dt, decimal, enum, fractions, functools
    import http, io, ipaddress, math, operator, pathlib, random, re, signal, string, time, types
    import uuid, zoneinfo

    class Color(enum.Enum):
        RED = 1
    class Word(str, enum.Enum):
        YES = "yes"
    class Permission(enum.Flag):
        READ = 1
        WRITE = 2
    class IntPermission(enum.IntFlag):
        READ = 1
        WRITE = 2
    @dataclasses.dataclass
    class Point:
        x: object
        tags: set = dataclasses.field(default_factory=set)
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        x: int
    Pair = collections.namedtuple("Pair", "left right")
    class Plain:
        def __init__(self, **attributes):
            self.__dict__.update(attributes)
        def ask(self):
            pass
    class Slotted:
        __slots__ = ("a", "b")
    slotted = Slotted()
    slotted.a = {"y", "x"}
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    values = {
        "none": None, "int": 12345678901234567890, "float": 0.1, "nan": math.nan,
        "text": "h\\xe9\\U0001f600",
        "long": "x" * 100_000, "bytes": b"\\0\\xff", "complex": 1 + 2j, "ellipsis": ...,
        "set": set(words), "frozenset": frozenset(words[1:]),
        "nested": {frozenset(words): set(words)},
        "dict": {w: len(w) for w in set(words)}, "sets": {frozenset({w, "x"}) for w in words},
        "ordered": collections.OrderedDict(b=1, a=2), "counter": collections.Counter("hello"),
        "deque": collections.deque([1]), "chain": collections.ChainMap({"a": 1}),
        "user dict": collections.UserDict(a=1), "user list": collections.UserList([1]),
        "decimal": decimal.Decimal("1.10"), "fraction": fractions.Fraction(1, 3),
        "uuid": uuid.UUID(int=5),
        "date": dt.date(2024, 2, 29), "aware": dt.datetime(2024, 7, 1, tzinfo=berlin),
        "naive": dt.datetime(2024, 7, 1, 1, 2, 3, 4), "delta": dt.timedelta(1, 2, 3),
        "time": dt.time(1, 2),
        "aware time": dt.time(1, tzinfo=dt.timezone.utc), "zone": berlin, "offset": dt.timezone.utc,
        "path": pathlib.Path("a/b"), "windows": pathlib.PureWindowsPath("A/b"),
        "range": range(1, 9, 2),
        "slice": slice(1, None), "pattern": re.compile("a|b", re.I | re.M), "module": re,
        "enum": Color.RED, "text enum": Word.YES, "flag": Permission.READ | Permission.WRITE,
        "no flag": Permission(0), "int flag": IntPermission.READ | IntPermission.WRITE,
        "regex flag": re.I | re.M, "status": http.HTTPStatus.NOT_FOUND, "signal": signal.SIGINT,
        "dataclass": Point([1], set(words)), "frozen": Frozen(1), "namedtuple": Pair(1, set(words)),
        "object": Plain(b=set(words), a=1), "slots": slotted,
        "namespace": types.SimpleNamespace(a=1, b=2),
        "class": Plain, "function": math.sqrt, "method": Plain(a=1).ask,
        "method of a class": str.upper,
        "partial": functools.partial(int, base=2), "getter": operator.attrgetter("a.b"),
        "address": ipaddress.ip_address("1.2.3.4"), "network": ipaddress.ip_network("10.0.0.0/8"),
        "array": array.array("d", [1.5]), "struct": time.gmtime(0),
        "template": string.Template("$x"),
        "random": random.Random(1), "context": decimal.Context(prec=5),
        "error": ValueError("a", {"b"}),
        "os error": OSError(2, "gone", "f"), "buffer": io.BytesIO(b"a"),
        "text buffer": io.StringIO("a"),
        "iterator": iter([1, 2]), "tuple": (1, (2, (3,))),
    }
    """
)
PRINT = (
    "\nimport json\nprint(json.dumps({name: digest(value) for name, value in values.items()}))\n"
)
# A package that has stepwise's folder but not its __init__, which imports what only the
# environment of the tests has.
STUB = textwrap.dedent(
    f"""
    import sys, types
    package = types.ModuleType("stepwise")
    package.__path__ = [{os.path.dirname(stepwise.__file__)!r}]
    sys.modules["stepwise"] = package
    from stepwise._values.digest import digest
    """
)


def digests_of(script, python=sys.executable, seed="random"):
    """What a script's ``values`` digest to in a process of their own."""
    done = subprocess.run(
        [python, "-B", "-W", "error::BytesWarning", "-c", STUB + script + PRINT],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@functools.cache
def reference(script):
    return digests_of(script, seed="0")


def differing(script, **how):
    found, expected = digests_of(script, **how), reference(script)
    assert len(found) == len(expected)
    return sorted(name for name in expected if expected[name] != found[name])


@pytest.mark.parametrize("seed", ["1", "4242", "random"])
def test_other_processes(seed):
    """Another process, with another hash seed, finds the same digests."""
    assert differing(VALUES, seed=seed) == []
    assert len(set(reference(VALUES).values())) == len(reference(VALUES))


LIBRARY_VALUES = textwrap.dedent(
    """
    from typing import Any
    import attrs, numpy as np, pandas as pd, pydantic

    class Model(pydantic.BaseModel):
        tags: set[str]
        more: Any = None
    @attrs.define
    class Record:
        tags: set[str]
    words = {"alpha", "beta", "gamma", "delta", "epsilon"}
    ordered = sorted(words)
    values = {
        "model": Model(tags=words, more={"m": Model(tags=words)}), "attrs": Record(words),
        "secret": pydantic.SecretStr("s"), "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(1),
        "objects": np.array([words, None]), "dtype": np.dtype("f4"),
        "frame": pd.DataFrame({"a": [1, 2], "b": ["x", None]}),
        "series": pd.Series([1.5], name="s"),
        "category": pd.Series(ordered, dtype="category"), "index": pd.Index(ordered),
        "columns": pd.DataFrame({"a": ["x", "y"], "b": pd.to_datetime(["2024-01-01", None])}),
        "timestamp": pd.Timestamp("2024-01-01"), "delta": pd.Timedelta("1h"),
        "period": pd.Period("2024-01"),
        "type made": pydantic.create_model("Answer", a=(set[str], ...), b=(int, 1)),
        "records": attrs.make_class("Answer", ["a", "b"]),
        "sets": pd.DataFrame({"a": [frozenset(words)]}), "missing": pd.NA, "no time": pd.NaT,
    }
    """
)


def test_other_processes_with_libraries():
    """Another process finds the same digests of values of numpy, pandas, pydantic and attrs."""
    assert differing(LIBRARY_VALUES, seed="7") == []


SUBCLASS_VALUES = textwrap.dedent(
    """
    class Names(set):
        pass
    class Frozen(frozenset):
        pass
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    values = {"set": Names(words), "frozenset": Frozen(words)}
    """
)


def test_subclasses_of_sets_in_other_processes():
    """A subclass of set has one digest in every process, whatever the hash seed."""
    assert [differing(SUBCLASS_VALUES, seed=seed) for seed in ("1", "2", "3")] == [[], [], []]


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_other_pythons(version):
    """Another version of Python finds the same digests, so that a run survives an upgrade."""
    assert differing(VALUES, python=interpreter(version)) == []


TYPES = textwrap.dedent(
    """
    import typing
    values = {
        "list[int]": list[int], "list[str]": list[str], "dict": dict[str, list[int]],
        "set": typing.Set[int], "optional": typing.Optional[int],
        "literal": typing.Literal["a", "b"], "union": typing.Union[int, str],
    }
    """
)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_types_in_other_pythons(version):
    """Types, as they are given for structured output, have one digest in every Python."""
    python = interpreter(version)
    found = digests_of(TYPES, python=python)
    assert len(set(found.values())) == len(found), "two types share a digest"
    assert differing(TYPES, python=python) == []
